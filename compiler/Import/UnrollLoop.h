//===- UnrollLoop.h - the iterations of a loop, one after another -*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_UNROLLLOOP_H
#define ALPA_COMPILER_IMPORT_UNROLLLOOP_H

#include "compiler/Import/IndexArithmetic.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "llvm/ADT/STLFunctionalExtras.h"
#include <optional>

namespace alpa {

/// How a loop uses the values that it carries.
struct LoopShape {
  enum class Role {
    Invariant, // Every iteration gives it on as it is.
    Counter,   // An integer scalar whose values are known.
    Stack,     // Each iteration puts a part into dimension 0; together they fill it.
    Carry,     // Anything else.
  };
  mlir::stablehlo::WhileOp loop;
  int64_t trips = 0;
  llvm::SmallVector<Role> roles;
  /// For each stack: where in dimension 0 each iteration puts its part.
  llvm::DenseMap<unsigned, llvm::SmallVector<int64_t>> writes;

  mlir::Block &body() const { return mlir::stablehlo::WhileOp(loop).getBody().front(); }
  /// What an iteration gives on.
  mlir::Value yielded(unsigned index) const { return body().getTerminator()->getOperand(index); }
};

/// Nothing if the number of iterations is unknown, or more than `mostTrips`.
std::optional<LoopShape> readLoop(mlir::stablehlo::WhileOp loop, int64_t mostTrips);

/// The known scalars of every iteration, in order.
void forEachIteration(const LoopShape &shape,
                      llvm::function_ref<void(int64_t trip, const KnownScalars &)> visit);

/// Writes out every iteration before the loop and erases it. `attributesOf` gives the
/// attributes of an op of the body in an iteration, `onClone` hears of every copy of an
/// op. Slices at known places become static; a stack becomes the concatenation of its
/// parts (with `stackAttributes`), and a slice of one the part.
void unrollLoop(const LoopShape &shape, mlir::DictionaryAttr stackAttributes,
                llvm::function_ref<mlir::DictionaryAttr(mlir::Operation *, int64_t)> attributesOf,
                llvm::function_ref<void(mlir::Operation *from, mlir::Operation *to)> onClone);

} // namespace alpa

#endif // ALPA_COMPILER_IMPORT_UNROLLLOOP_H
