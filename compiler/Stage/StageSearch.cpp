//===- StageSearch.cpp - the best stages, solving few ---------------------===//

#include "compiler/Stage/StageSearch.h"

#include <chrono>

using namespace mlir;
using namespace alpa;

/// How much slower than the best plan by the DP's formula one may be that is timed.
static constexpr double kClose = 1.05;

StageSearch::StageSearch(MLIRContext *context, StageCosts &costs, const PlanTimer &timer,
                         StageDpProblem problem, double gap)
    : context(context), costs(costs), timer(timer), problem(std::move(problem)), gap(gap) {
  this->problem.choices = [this](unsigned lo, unsigned hi, unsigned submesh) {
    return this->costs.choices(lo, hi, submesh);
  };
}

StagePlan StageSearch::runDp() {
  auto begin = std::chrono::steady_clock::now();
  seen.clear();
  StagePlan plan = solveStageDp(problem, &seen);
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

/// Of a plan and those close to it that the DP saw, the one whose step takes the
/// least time.
FoundPlan StageSearch::fastest(StagePlan plan) const {
  FoundPlan best{std::move(plan), problem.schedule, {}};
  if (best.plan.stages.empty())
    return best;
  best.timed = timer.time(best.plan, *problem.schedule);
  double most = best.plan.seconds * kClose;
  for (const StagePlan &other : seen) {
    bool isSolved = llvm::all_of(other.stages, [&](const PlannedStage &stage) {
      return costs.result(stage.choice.id) != nullptr;
    });
    if (!isSolved || other.seconds > most)
      continue;
    TimedPlan timed = timer.time(other, *problem.schedule);
    if (timed.stepSeconds < best.timed.stepSeconds)
      best = {other, problem.schedule, std::move(timed)};
  }
  return best;
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
      FoundPlan found = fastest(std::move(*plan));
      if (!best.schedule || found.timed.stepSeconds < best.timed.stepSeconds)
        best = std::move(found);
    }
  problem.schedule = best.schedule;
  return best;
}
