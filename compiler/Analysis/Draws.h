//===- Draws.h - what a step draws ------------------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_DRAWS_H
#define ALPA_COMPILER_ANALYSIS_DRAWS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"

namespace alpa::analysis {

/// The operand of a product or a lookup with a step's weights that is drawn in the step, with a row
/// for each example of its batch, such as what a generator makes examples of. It depends on no
/// example, but its rows are split as those of the batch are.
class Draws {
public:
  explicit Draws(mlir::func::FuncOp main);

  /// The operand's number, or -1.
  int operandOf(mlir::Operation *op) const;

private:
  /// Values that follow from random keys, and those that follow from these and constants.
  llvm::DenseSet<mlir::Value> drawn, known;
  llvm::DenseSet<int64_t> rows; // Of the batch's arguments.
};

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_DRAWS_H
