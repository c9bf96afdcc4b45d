//===- Passes.h - passes of the schedule room --------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_PASSES_H
#define ALPA_COMPILER_SCHEDULE_PASSES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace alpa::schedule {

#define GEN_PASS_DECL
#include "compiler/Schedule/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "compiler/Schedule/Passes.h.inc"

} // namespace alpa::schedule

#endif // ALPA_COMPILER_SCHEDULE_PASSES_H
