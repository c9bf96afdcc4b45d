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

/// The ops of `@main` by their `alpa.layer`, in program order.
struct StepLayers {
  std::vector<llvm::SmallVector<mlir::Operation *>> opsOfLayer;
  Crossings crossings;
};

/// The error names an op without layer or phase, or of a layer beyond all ops.
llvm::Expected<unsigned> countLayers(mlir::func::FuncOp main);
/// The same error.
llvm::Expected<StepLayers> readLayers(mlir::func::FuncOp main);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_LAYERS_STEPLAYERS_H
