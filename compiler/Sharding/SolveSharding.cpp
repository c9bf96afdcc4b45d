//===- SolveSharding.cpp - split @main over one mesh ----------------------===//

#include "compiler/Sharding/Passes.h"
#include "compiler/Sharding/WholeStepProblem.h"
#include "dialects/Common/Diagnostics.h"

namespace alpa::sharding {
#define GEN_PASS_DEF_SOLVESHARDING
#include "compiler/Sharding/Passes.h.inc"
} // namespace alpa::sharding

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

namespace {

struct SolveSharding : public sharding::impl::SolveShardingBase<SolveSharding> {
  using SolveShardingBase::SolveShardingBase;

  void runOnOperation() override {
    if (llvm::Error error = run()) {
      withError(getOperation().emitError(), std::move(error));
      signalPassFailure();
    }
  }

private:
  llvm::Error run();
};

} // namespace

llvm::Error SolveSharding::run() {
  llvm::Expected<WholeStepProblem> stage = readWholeStepProblem(
      getOperation(),
      {cluster, {meshShape.begin(), meshShape.end()}, method, microBatches, memoryLimit});
  if (!stage)
    return stage.takeError();
  stage->options.workLimit = workLimit;
  stage->options.timeLimitSeconds = timeLimit;
  stage->options.acceptableGap = gap;
  llvm::Expected<IntraOpResult> result = solveIntraOp(stage->view, *stage->model, stage->options);
  if (!result)
    return result.takeError();
  const solver::Solution &solution = result->solution;
  if (solution.status == solver::SolveStatus::Infeasible && stage->options.memoryLimitBytes)
    return makeError(ErrorCode::Infeasible, "no sharding of @main fits in " +
                                                llvm::Twine(*stage->options.memoryLimitBytes) +
                                                " bytes a device: " + solution.infeasibleReason);
  if (solution.status == solver::SolveStatus::Infeasible)
    return makeError(ErrorCode::Infeasible,
                     "no sharding of @main is allowed: " + solution.infeasibleReason);
  numNodes = solution.nodes;
  numChoices = result->choices;
  numEliminated = solution.eliminated;
  boundNanoseconds = static_cast<uint64_t>(solution.lowerBound / 1000);
  objectiveNanoseconds = static_cast<uint64_t>(solution.objective / 1000);
  solveMicroseconds = static_cast<uint64_t>(solution.seconds * 1e6);
  annotateMain(*stage, *result);
  return llvm::Error::success();
}
