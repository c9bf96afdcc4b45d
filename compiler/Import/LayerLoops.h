//===- LayerLoops.h - loops whose iterations are layers ----------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_LAYERLOOPS_H
#define ALPA_COMPILER_IMPORT_LAYERLOOPS_H

#include "compiler/Import/UnrollLoop.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa {

/// A scan over layers, and its gradient, which goes through them in reverse.
struct LayerLoop {
  LoopShape forward;
  std::optional<LoopShape> backward;
};

/// The loops of @main that `maxOps` lets be unrolled and whose iterations are layers:
/// they multiply what they carry by weights that they take from a stack of state, another
/// for each iteration. A recurrence over time is none: all of its steps share the weights.
/// Left out are loops whose gradient is not one loop that goes through the same stacks in
/// reverse (a checkpoint around a whole scan computes all layers again first).
llvm::SmallVector<LayerLoop> findLayerLoops(mlir::func::FuncOp main, int64_t maxOps);

/// Numbers of the equations of a body that its ops stem from, by their scopes
/// `alpa_inner<level>_<i>`, or by data flow where an op has none. All are below the
/// result's `count`, which is 1 for a body without scopes.
struct BodyEquations {
  int64_t count = 1;
  llvm::DenseMap<mlir::Operation *, int64_t> forward, backward;
};
BodyEquations numberBody(const LayerLoop &loop, unsigned level);

} // namespace alpa

#endif // ALPA_COMPILER_IMPORT_LAYERLOOPS_H
