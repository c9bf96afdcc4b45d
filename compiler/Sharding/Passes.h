//===- Passes.h - splitting ops over a mesh ----------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_PASSES_H
#define ALPA_COMPILER_SHARDING_PASSES_H

#include "dialects/Alpa/AlpaDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace alpa::sharding {

#define GEN_PASS_DECL
#include "compiler/Sharding/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "compiler/Sharding/Passes.h.inc"

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PASSES_H
