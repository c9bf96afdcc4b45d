//===- SliceUtils.h - small questions that slicing asks an op ----*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SLICE_SLICEUTILS_H
#define ALPA_COMPILER_STAGE_SLICE_SLICEUTILS_H

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/DenseSet.h"

namespace alpa::stage {

/// Weights are prepared once, before the forward runs of all micro-batches; the barrier is
/// what runs once, between them and the backward runs.
enum class Phase { Prepare, Forward, Barrier, Backward, Update };

std::optional<Phase> phaseOf(mlir::Operation *op);
llvm::StringRef stringifyPhase(Phase phase);
std::optional<int64_t> stageOf(mlir::Operation *op);

/// @main of the module, whose ops have phases and layers; null, with an error, if there is none
/// such.
mlir::func::FuncOp findLayeredMain(mlir::ModuleOp module);

/// One result computed element by element (or a constant, or only moved), no
/// regions: running it twice costs little and changes nothing.
bool isRepeatable(mlir::Operation *op);
bool isBroadcast(mlir::Operation *op);
/// Result and operands have one shape, and elements do not move.
bool isElementwise(mlir::Operation *op);
bool isSingleElement(mlir::Type type);
/// Index of the result of @main that is the argument's next value.
std::optional<int64_t> carriedBy(mlir::BlockArgument arg);

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

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SLICE_SLICEUTILS_H
