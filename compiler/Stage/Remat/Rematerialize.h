//===- Rematerialize.h - forward values computed again -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_REMAT_REMATERIALIZE_H
#define ALPA_COMPILER_STAGE_REMAT_REMATERIALIZE_H

#include "compiler/CostModel/CostModel.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseSet.h"

namespace alpa::stage {

/// Forward ops whose results are kept in layers that are computed again.
using KeptOps = llvm::DenseSet<mlir::Operation *>;

/// The backward ops of every layer for which `chosen` holds stop reading what the
/// layer's forward ops made: they read clones of those ops, computed again in the
/// backward phase from what came into the layer. What becomes of a layer does not
/// depend on the others that are chosen. Ops of @main need `alpa.phase`, `alpa.eqn`
/// and `alpa.layer`; the layers that changed are listed in its `alpa.rematerialized`.
/// Without `kept`, and with `alpa.keeps_products` of @main, those of `findKeptProducts` stay kept.
/// Returns the number of clones.
unsigned rematerializeLayers(mlir::func::FuncOp main, llvm::ArrayRef<bool> chosen,
                             const KeptOps *kept = nullptr);

/// Dots, convolutions and the like, but for products of activations whose result is larger than
/// both together, as scores of attention, which are cheaper to make than to keep.
KeptOps findKeptProducts(mlir::func::FuncOp main);

/// What else to keep while the rest of these layers is computed again: a minimum cut between what
/// comes into a layer and what its gradients read, where a value costs its bytes at some price in
/// seconds, or the seconds of making it again on a device. Of all prices' cuts the one that saves
/// the most seconds beside a mixture of all and nothing, if there is one.
std::optional<KeptOps> findCut(mlir::func::FuncOp main, llvm::ArrayRef<bool> layers,
                               const cost::CostModel &device);

/// One that keeps about half way between these bytes (of the whole program's tensors), if there is
/// one. Values that cost the same a byte to make again, such as products of one depth, need not all
/// be kept or none: those that come later in a layer are computed again first.
std::optional<KeptOps> findCutBetween(mlir::func::FuncOp main, llvm::ArrayRef<bool> layers,
                                      const cost::CostModel &device, double leastBytes,
                                      double mostBytes);

/// Of the same cuts the one that makes the least again whose values the link to the host carries
/// while the forward phase runs.
KeptOps findHostCut(mlir::func::FuncOp main, llvm::ArrayRef<bool> layers,
                    const cost::CostModel &device);

/// Marks what backward ops read of these layers' forward ops, but for the last layer of several,
/// whose gradients come at once, for what is made of state alone, and for small values: it waits in
/// the host's memory (`alpa.offloaded`). Returns the number of values.
unsigned offloadActivations(mlir::func::FuncOp main, llvm::ArrayRef<bool> layers);

/// For each layer, the unsharded bytes of what its backward ops read of the forward
/// phase of one micro-batch.
std::vector<int64_t> keptBytes(mlir::func::FuncOp main, unsigned numLayers);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_REMAT_REMATERIALIZE_H
