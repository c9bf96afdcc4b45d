//===- Passes.h - from sharded functions to per-device programs --*- C++ -*-===//

#ifndef ALPA_COMPILER_SPMD_PASSES_H
#define ALPA_COMPILER_SPMD_PASSES_H

#include "dialects/Alpa/AlpaDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace alpa::spmd {

#define GEN_PASS_DECL
#include "compiler/Spmd/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "compiler/Spmd/Passes.h.inc"

} // namespace alpa::spmd

#endif // ALPA_COMPILER_SPMD_PASSES_H
