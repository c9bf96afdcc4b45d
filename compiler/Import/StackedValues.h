//===- StackedValues.h - which tensors are split into their layers -*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_STACKEDVALUES_H
#define ALPA_COMPILER_IMPORT_STACKEDVALUES_H

#include "compiler/Analysis/ShardingRule.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"

namespace alpa {

/// Whether each row of dimension 0 of the op's results follows from the same rows of those
/// operands that have them: an op that can be written once for each row.
bool worksByRow(mlir::Operation *op);

/// For an op that works by row: the operands that have the rows.
llvm::SmallVector<unsigned> operandsWithRows(mlir::Operation *op);

/// The tensors of @main that are stacks of layers: state whose single rows are read,
/// concatenations of single rows, and what is connected with these by ops that work by
/// row or from step to step. Only stacks that hold state or are made of parts count.
class StackedValues {
public:
  explicit StackedValues(mlir::func::FuncOp main);

  bool contains(mlir::Value value) const { return values.contains(value); }
  bool empty() const { return values.empty(); }

private:
  void grow(mlir::Value seed);
  void visit(mlir::Value value, llvm::SmallVectorImpl<mlir::Value> &next);

  mlir::func::FuncOp main;
  llvm::DenseSet<mlir::Value> values, seen;
  llvm::DenseMap<mlir::Value, llvm::SmallVector<mlir::Value, 1>> nextSteps; // Both ways.
};

/// Whether an argument of @main may become one argument for each row.
bool canSplitArgument(mlir::func::FuncOp main, mlir::Value value);

} // namespace alpa

#endif // ALPA_COMPILER_IMPORT_STACKEDVALUES_H
