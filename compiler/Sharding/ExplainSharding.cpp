//===- ExplainSharding.cpp - say why @main is split as it is --------------===//

#include "compiler/Sharding/Explain/Explain.h"
#include "compiler/Sharding/Passes.h"
#include "compiler/Sharding/WholeStepProblem.h"
#include "dialects/Common/Diagnostics.h"

namespace alpa::sharding {
#define GEN_PASS_DEF_EXPLAINSHARDING
#include "compiler/Sharding/Passes.h.inc"
} // namespace alpa::sharding

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

namespace {

struct ExplainSharding : public sharding::impl::ExplainShardingBase<ExplainSharding> {
  using ExplainShardingBase::ExplainShardingBase;

  void runOnOperation() override {
    if (llvm::Error error = run()) {
      withError(getOperation().emitError(), std::move(error));
      signalPassFailure();
    }
  }

private:
  llvm::Error run() {
    llvm::Expected<WholeStepProblem> stage = readWholeStepProblem(
        getOperation(),
        {cluster, {meshShape.begin(), meshShape.end()}, method, microBatches, memoryLimit});
    if (!stage)
      return stage.takeError();
    stage->options.workLimit = workLimit;
    stage->options.timeLimitSeconds = timeLimit;
    llvm::Expected<IntraOpResult> result = solveIntraOp(stage->view, *stage->model, stage->options);
    if (!result)
      return result.takeError();
    if (result->solution.choices.empty() &&
        result->solution.status == solver::SolveStatus::Infeasible)
      return makeError(ErrorCode::Infeasible,
                       "nothing to explain: no sharding of @main fits in memory: " +
                           result->solution.infeasibleReason);
    llvm::Expected<Explanation> explanation =
        explainIntraOp(stage->view, *stage->model, stage->options, result->solution.choices);
    if (!explanation)
      return explanation.takeError();
    ConstraintPins::FreeWay free{cost::CostModel(stage->model->getMesh()), stage->options};
    free.options.filter = stage->freeFilter;
    if (llvm::Error error =
            stage->pins->explain(*explanation, stage->view, *stage->model, *result, free))
      return error;
    explanation->print(llvm::outs(), op, most);
    getOperation()->setAttr("alpa.explanation", explanation->toAttribute(&getContext()));
    return llvm::Error::success();
  }
};

} // namespace
