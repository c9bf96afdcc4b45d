//===- Passes.h - passes for tests of the compiler ---------------*- C++ -*-===//

#ifndef ALPA_TEST_PASSES_PASSES_H
#define ALPA_TEST_PASSES_PASSES_H

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace alpa {

#define GEN_PASS_DECL
#include "test/passes/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "test/passes/Passes.h.inc"

} // namespace alpa

#endif // ALPA_TEST_PASSES_PASSES_H
