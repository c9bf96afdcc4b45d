//===- Draws.h - what a step draws ------------------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_DRAWS_H
#define ALPA_COMPILER_ANALYSIS_DRAWS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SmallVector.h"

namespace alpa::analysis {

/// The operands of a product or a lookup with a step's weights, or of a loop that has such, that
/// are drawn in the step, with a row for each example of its batch, such as what a generator makes
/// examples of. They depend on no example, but their rows are split as those of the batch are.
class Draws {
public:
  explicit Draws(mlir::func::FuncOp main);

  /// Their numbers; none of most ops.
  llvm::SmallVector<unsigned> operandsOf(mlir::Operation *op) const;

private:
  /// Values that follow from random keys, and those that follow from these and constants.
  llvm::DenseSet<mlir::Value> drawn, known;
  llvm::DenseSet<int64_t> rows; // Of the batch's arguments.
};

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_DRAWS_H
