//===- Rematerialize.h - forward values computed again -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_REMATERIALIZE_H
#define ALPA_COMPILER_STAGE_REMATERIALIZE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa {

/// The backward ops of every layer for which `chosen` holds stop reading what the
/// layer's forward ops made: they read clones of those ops, computed again in the
/// backward phase from what came into the layer. Ops of @main need `alpa.phase`,
/// `alpa.eqn` and `alpa.layer`. Returns the number of clones.
unsigned rematerializeLayers(mlir::func::FuncOp main, llvm::ArrayRef<bool> chosen);

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_REMATERIALIZE_H
