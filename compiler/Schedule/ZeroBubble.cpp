//===- ZeroBubble.cpp - weight gradients fill what others wait ------------===//
//
// ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1.
//
//===----------------------------------------------------------------------===//

#include "compiler/Schedule/Families.h"

using namespace alpa;

/// 1F1B of forward runs and input parts. Mesh i begins the weight parts i runs later
/// than it could, so that all meshes keep as many activations as the first one, and
/// the last ones do weight parts while they would wait at the end.
llvm::Expected<std::vector<StepList>> alpa::generateZbH1(const ScheduleProblem &problem) {
  std::vector<StepList> lists;
  int64_t numMeshes = problem.numMeshes(), total = problem.numMicroBatches;
  for (int64_t stage = 0; stage < numMeshes; ++stage) {
    StepList &steps = lists.emplace_back();
    steps.reserve(3 * total);
    int64_t warmUp = inFlight1F1B(numMeshes - stage, total) - 1;
    for (int64_t index = 0; index < warmUp; ++index)
      steps.push_back({RunKind::Forward, stage, index});
    for (int64_t index = 0; index < total; ++index) {
      if (warmUp + index < total)
        steps.push_back({RunKind::Forward, stage, warmUp + index});
      steps.push_back({RunKind::BackwardInput, stage, index});
      if (index >= stage)
        steps.push_back({RunKind::BackwardWeight, stage, index - stage});
    }
    for (int64_t index = std::max<int64_t>(0, total - stage); index < total; ++index)
      steps.push_back({RunKind::BackwardWeight, stage, index});
  }
  return lists;
}

int64_t alpa::keptZbH1(const ScheduleProblem &problem, int64_t) {
  return std::min(problem.numMeshes(), problem.numMicroBatches);
}
