//===- WritePlan.h - a sliced and scheduled module as a plan ----*- C++ -*-===//

#ifndef ALPA_COMPILER_EXPORT_WRITEPLAN_H
#define ALPA_COMPILER_EXPORT_WRITEPLAN_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"
#include <map>
#include <string>

namespace alpa::exporter {

struct ExportedPlan {
  std::string json;                         // The form is in docs/plan.md.
  std::map<std::string, std::string> files; // "stage_0.mlir", "stage_0.explain.json" to text.
};

/// `module` has gone through alpa-export-shardy or alpa-lower-to-collectives. What is missing is
/// named.
llvm::Expected<ExportedPlan> exportPlan(mlir::ModuleOp module);

} // namespace alpa::exporter

#endif // ALPA_COMPILER_EXPORT_WRITEPLAN_H
