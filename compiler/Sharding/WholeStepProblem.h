//===- WholeStepProblem.h - all of @main as one stage -----------*- C++ -*-===//
//
// What the passes that build, solve and apply @main's problem share.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_WHOLESTEPPROBLEM_H
#define ALPA_COMPILER_SHARDING_WHOLESTEPPROBLEM_H

#include "compiler/Sharding/Methods/ConstraintPins.h"
#include "compiler/Sharding/Methods/Methods.h"
#include "compiler/Sharding/Problem/IntraOp.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa::sharding {

/// The options of those passes, as they are written.
struct WholeStepOptions {
  std::string cluster;
  llvm::SmallVector<int64_t> meshShape;
  std::string method;
  int64_t microBatches = 1;
  int64_t memoryLimit = 0; // 0 for what the device has, negative for no limit.
};

struct WholeStepProblem {
  mlir::func::FuncOp main;
  StageView view;
  std::unique_ptr<cost::CostModel> model;
  std::unique_ptr<MethodRoles> roles; // That the filter looks at.
  std::unique_ptr<ConstraintPins> pins;
  PlanFilter freeFilter; // Without these.
  IntraOpOptions options;
  std::string clusterText;
};

llvm::Expected<WholeStepProblem> readWholeStepProblem(mlir::ModuleOp module,
                                                      const WholeStepOptions &options);

/// Writes the answer down on ops, arguments and the module.
void annotateMain(const WholeStepProblem &stage, const IntraOpResult &result);

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_WHOLESTEPPROBLEM_H
