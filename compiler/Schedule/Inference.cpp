//===- Inference.cpp - forward runs only ----------------------------------===//

#include "compiler/Schedule/Families.h"

using namespace alpa;

/// Stages in rounds take turns group by group, which fills the pipeline once; other
/// ones come one after the other.
llvm::Expected<std::vector<StepList>> alpa::generateInference(const ScheduleProblem &problem) {
  std::vector<StepList> lists(problem.numMeshes());
  if (isInRounds(problem)) {
    for (int64_t mesh = 0; mesh < problem.numMeshes(); ++mesh)
      lists[mesh] = stepsInRounds(problem, mesh, RunKind::Forward, false);
    return lists;
  }
  for (int64_t stage = 0; stage < problem.numStages(); ++stage)
    for (int64_t index = 0; index < problem.numMicroBatches; ++index)
      lists[problem.meshOf[stage]].push_back({RunKind::Forward, stage, index});
  return lists;
}

/// Nothing is kept for later.
int64_t alpa::inFlightInference(int64_t, int64_t) { return 1; }
int64_t alpa::keptInference(const ScheduleProblem &, int64_t) { return 1; }
