//===- Phases.h - forward, backward, update ----------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_PHASES_H
#define ALPA_COMPILER_IMPORT_PHASES_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa {

/// Sets `alpa.phase` and `alpa.eqn` on every op of @main's body that is not
/// repeatable (see DataFlow.h), then repeats those that are for each phase and
/// equation of their users.
mlir::LogicalResult assignPhases(mlir::func::FuncOp main);

} // namespace alpa

#endif // ALPA_COMPILER_IMPORT_PHASES_H
