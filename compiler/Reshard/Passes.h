//===- Passes.h - passes of the reshard room ---------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_PASSES_H
#define ALPA_COMPILER_RESHARD_PASSES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace alpa::reshard {

#define GEN_PASS_DECL
#include "compiler/Reshard/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "compiler/Reshard/Passes.h.inc"

} // namespace alpa::reshard

#endif // ALPA_COMPILER_RESHARD_PASSES_H
