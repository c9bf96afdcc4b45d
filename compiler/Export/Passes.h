//===- Passes.h - passes of the export room ----------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_EXPORT_PASSES_H
#define ALPA_COMPILER_EXPORT_PASSES_H

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"

namespace alpa::exporter {

#define GEN_PASS_DECL
#include "compiler/Export/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "compiler/Export/Passes.h.inc"

} // namespace alpa::exporter

#endif // ALPA_COMPILER_EXPORT_PASSES_H
