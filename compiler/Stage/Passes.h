//===- Passes.h - passes of the stage room -----------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_PASSES_H
#define ALPA_COMPILER_STAGE_PASSES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace alpa::stage {

#define GEN_PASS_DECL
#include "compiler/Stage/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "compiler/Stage/Passes.h.inc"

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_PASSES_H
