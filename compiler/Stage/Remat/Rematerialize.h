//===- Rematerialize.h - forward values computed again -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_REMAT_REMATERIALIZE_H
#define ALPA_COMPILER_STAGE_REMAT_REMATERIALIZE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa::stage {

/// The backward ops of every layer for which `chosen` holds stop reading what the
/// layer's forward ops made: they read clones of those ops, computed again in the
/// backward phase from what came into the layer. What becomes of a layer does not
/// depend on the others that are chosen. Ops of @main need `alpa.phase`, `alpa.eqn`
/// and `alpa.layer`; the layers that changed are listed in its `alpa.rematerialized`.
/// With `alpa.keeps_products` of @main, results of products stay kept, but for those of
/// activations that are larger than what they are made of, as scores of attention.
/// Returns the number of clones.
unsigned rematerializeLayers(mlir::func::FuncOp main, llvm::ArrayRef<bool> chosen);

/// For each layer, the unsharded bytes of what its backward ops read of the forward
/// phase of one micro-batch.
std::vector<int64_t> keptBytes(mlir::func::FuncOp main, unsigned numLayers);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_REMAT_REMATERIALIZE_H
