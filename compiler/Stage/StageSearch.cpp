//===- StageSearch.cpp - the best stages, solving few ---------------------===//

#include "compiler/Stage/StageSearch.h"

#include <chrono>

using namespace mlir;
using namespace alpa;

StageSearch::StageSearch(MLIRContext *context, StageCosts &costs, StageDpProblem problem,
                         double gap)
    : context(context), costs(costs), problem(std::move(problem)), gap(gap) {
  this->problem.choices = [this](unsigned lo, unsigned hi, unsigned submesh) {
    return this->costs.choices(lo, hi, submesh);
  };
}

StagePlan StageSearch::runDp() {
  auto begin = std::chrono::steady_clock::now();
  StagePlan plan = solveStageDp(problem);
  dpSeconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return plan;
}

llvm::Expected<StagePlan> StageSearch::search() {
  if (llvm::Error error = costs.solve(context, costs.singleLayers()))
    return error;
  while (true) {
    costs.refresh(/*onlySolved=*/false);
    StagePlan hoped = runDp();
    ++numRounds;
    SmallVector<StageCosts::Request> missing;
    for (auto [index, stage] : llvm::enumerate(hoped.stages))
      if (!costs.result(stage.choice.id))
        missing.push_back({stage.choice.id, problem.inFlight(hoped.stages.size() - index)});
    if (missing.empty())
      return hoped;
    costs.refresh(/*onlySolved=*/true);
    StagePlan known = runDp();
    if (!known.stages.empty() && known.seconds * (1 - gap) <= hoped.seconds)
      return known;
    if (llvm::Error error = costs.solve(context, missing))
      return error;
  }
}

llvm::Expected<FoundPlan> StageSearch::run(const StageSearchSpace &space) {
  FoundPlan best;
  for (const ScheduleInfo *schedule : space.schedules)
    for (const StageRule &rule : space.rules) {
      problem.schedule = schedule;
      problem.allows = rule;
      llvm::Expected<StagePlan> plan = search();
      if (!plan)
        return plan.takeError();
      if (!best.schedule || plan->seconds < best.plan.seconds)
        best = {std::move(*plan), schedule};
    }
  problem.schedule = best.schedule;
  return best;
}
