//===- StepLayers.h - the layers of a step -----------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_LAYERS_STEPLAYERS_H
#define ALPA_COMPILER_STAGE_LAYERS_STEPLAYERS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/Support/Error.h"

#include <vector>

namespace alpa::stage {

/// Bytes that cross the cut before each layer, for one micro-batch.
struct Crossings {
  std::vector<double> forwardBytes, backwardBytes;
  /// Whether updates before and after the cut wait for each other's gradients, as for
  /// a norm of all of them.
  std::vector<bool> updatesMeet;
};

/// What one layer hands to another once a step, beyond a few numbers.
struct HandedOnce {
  unsigned value = 0; // Number of what is handed: stages get it once for all of their layers.
  unsigned from = 0, to = 0;
  double bytes = 0;
  /// A weight that another layer holds, before its forward runs (tied embeddings); or else a sum
  /// over micro-batches, before an update.
  bool isWeight = false;
};

/// The ops of `@main` by their `alpa.layer`, in program order.
struct StepLayers {
  std::vector<llvm::SmallVector<mlir::Operation *>> opsOfLayer;
  Crossings crossings;
  std::vector<HandedOnce> handedOnce;
  std::vector<double> flops; // Of each layer.
};

/// The error names an op without layer or phase, or of a layer beyond all ops.
llvm::Expected<unsigned> countLayers(mlir::func::FuncOp main);
/// The same error.
llvm::Expected<StepLayers> readLayers(mlir::func::FuncOp main);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_LAYERS_STEPLAYERS_H
