//===- UpdateLayers.h - where the weight update happens ----------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_LAYERS_UPDATELAYERS_H
#define ALPA_COMPILER_STAGE_LAYERS_UPDATELAYERS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"

namespace alpa {

/// Gives update ops a layer; `layers` holds those of forward and backward ops.
/// An op goes where its largest operand is if that is no smaller than its
/// result; else (broadcasts, optimizer state that is only read here) where its
/// readers are. A scalar made from several layers' values goes to layer 0.
void assignUpdateLayers(mlir::func::FuncOp main,
                        llvm::DenseMap<mlir::Operation *, unsigned> &layers);

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_LAYERS_UPDATELAYERS_H
