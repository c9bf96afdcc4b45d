//===- RepeatedOps.h - what stages repeat rather than send -------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SLICE_REPEATEDOPS_H
#define ALPA_COMPILER_STAGE_SLICE_REPEATEDOPS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"

namespace alpa {

/// Constants, what is made of them element by element, and scalar arithmetic on
/// state and on sums of stages: each function that uses it computes it again.
class RepeatedOps {
public:
  explicit RepeatedOps(mlir::func::FuncOp main);

  bool contains(mlir::Operation *op) const { return ops.contains(op); }
  /// Whether the value differs between micro-batches.
  bool isTainted(mlir::Value value) const { return tainted.contains(value); }
  /// Whether a function can have the value without another stage's help: it is a state
  /// argument, or repeated.
  bool isAvailable(mlir::Value value) const;
  /// Whether the op would be repeated if these values were available as well.
  bool isScalarArithmetic(mlir::Operation *op,
                          const llvm::DenseSet<mlir::Value> &alsoAvailable) const;

private:
  void taint(mlir::func::FuncOp main, mlir::Value value);
  bool isRepeated(mlir::Operation *op);

  llvm::DenseSet<mlir::Value> tainted;
  llvm::DenseSet<mlir::Value> constants;
  llvm::DenseSet<mlir::Operation *> ops;
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SLICE_REPEATEDOPS_H
