//===- IndexArithmetic.h - integer scalars of a loop, computed ---*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_INDEXARITHMETIC_H
#define ALPA_COMPILER_IMPORT_INDEXARITHMETIC_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallVector.h"
#include <optional>

namespace alpa {

/// Values of the integer scalars that are known, such as a loop's counter.
class KnownScalars {
public:
  /// The value, if it was set, or is a constant with one element.
  std::optional<int64_t> get(mlir::Value value) const;
  void set(mlir::Value value, int64_t number) { numbers[value] = number; }
  /// Computes the result of an op on integer scalars, as the op's type wraps it.
  /// False if an operand is unknown or the op is of another kind.
  bool run(mlir::Operation *op);

private:
  llvm::DenseMap<mlir::Value, int64_t> numbers;
};

/// Whether the type is a tensor of rank 0 with integers of at most 64 bits.
bool isIndexScalar(mlir::Type type);

/// The known start indices of a dynamic slice or update, clamped as the op does it;
/// nothing if one is unknown. `whole` and `part` are the shapes of operand and slice.
std::optional<llvm::SmallVector<int64_t>> knownStarts(mlir::ValueRange starts,
                                                      llvm::ArrayRef<int64_t> whole,
                                                      llvm::ArrayRef<int64_t> part,
                                                      const KnownScalars &scalars);

} // namespace alpa

#endif // ALPA_COMPILER_IMPORT_INDEXARITHMETIC_H
