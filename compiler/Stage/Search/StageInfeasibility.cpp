//===- StageInfeasibility.cpp - how far stages are from fitting -----------===//

#include "compiler/Stage/Search/StageInfeasibility.h"

#include "compiler/Stage/Search/PeriodSearch.h"

#include "llvm/ADT/STLExtras.h"
#include <cmath>

using namespace alpa;
using namespace alpa::stage;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
static constexpr double kPrecise = 1.001;

static double partOfMemory(const StageDpProblem &problem, const StageChoice &choice,
                           unsigned submesh, int64_t inFlight) {
  return double(choice.peakBytes(inFlight)) /
         double(std::max<int64_t>(problem.memoryOf(submesh), 1));
}

/// Some plan that fits into so many times the memory, whatever its time.
static std::vector<PlannedStage> planWithin(StageDpProblem problem, double factor) {
  for (int64_t &bytes : problem.memoryBytes)
    bytes = int64_t(std::min(double(bytes) * factor, 0x1p62));
  StageTable table(problem);
  return PeriodSearch(table).solve(kInfinity, kInfinity);
}

static std::pair<double, unsigned> mostNeeded(const StageDpProblem &problem,
                                              llvm::ArrayRef<PlannedStage> stages) {
  std::pair<double, unsigned> most(0, 0);
  for (auto [index, stage] : llvm::enumerate(stages)) {
    double part = partOfMemory(problem, stage.choice, stage.submesh,
                               problem.held(unsigned(stages.size() - index)));
    if (part > most.first)
      most = {part, unsigned(index)};
  }
  return most;
}

static void findLayer(const StageDpProblem &problem, StageInfeasibility &infeasibility) {
  for (unsigned layer = 0; layer < problem.numLayers; ++layer) {
    double least = kInfinity;
    for (unsigned m = 0; m < problem.submeshes.size(); ++m)
      if (problem.mayBeStage(layer, layer + 1, m))
        for (const StageChoice &choice : problem.choices(layer, layer + 1, m))
          least = std::min(least, partOfMemory(problem, choice, m, problem.held(1)));
    if (least < kInfinity && least > std::max(1.0, infeasibility.layerFactor)) {
      infeasibility.layer = layer;
      infeasibility.layerFactor = least;
    }
  }
}

StageInfeasibility stage::findStageInfeasibility(const StageDpProblem &problem) {
  StageInfeasibility infeasibility;
  if (problem.numLayers == 0 || problem.submeshes.empty() || problem.hostDevices.empty() ||
      problem.memoryBytes.empty())
    return infeasibility;
  findLayer(problem, infeasibility);
  StageDpProblem free = problem;
  free.memoryBytes.clear();
  infeasibility.plan.stages = planWithin(free, 1);
  if (infeasibility.plan.stages.empty())
    return infeasibility;
  // A plan that fits into less tells how much less: each try lowers the upper end.
  double low = 1;
  std::tie(infeasibility.factor, infeasibility.stage) =
      mostNeeded(problem, infeasibility.plan.stages);
  while (infeasibility.factor > low * kPrecise) {
    double middle = std::sqrt(low * infeasibility.factor);
    std::vector<PlannedStage> stages = planWithin(problem, middle);
    if (stages.empty()) {
      low = middle;
      continue;
    }
    infeasibility.plan.stages = std::move(stages);
    std::tie(infeasibility.factor, infeasibility.stage) =
        mostNeeded(problem, infeasibility.plan.stages);
  }
  infeasibility.plan.seconds = stagePlanSeconds(problem, infeasibility.plan.stages);
  return infeasibility;
}
