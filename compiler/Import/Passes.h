//===- Passes.h - passes of the import room ----------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_PASSES_H
#define ALPA_COMPILER_IMPORT_PASSES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace alpa::importer {

#define GEN_PASS_DECL
#include "compiler/Import/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "compiler/Import/Passes.h.inc"

} // namespace alpa::importer

#endif // ALPA_COMPILER_IMPORT_PASSES_H
