//===- Gpipe.cpp - all forwards, then all backwards -----------------------===//

#include "compiler/Schedule/Families.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

/// All activations are alive at once. With several stages on a mesh, one stage's
/// runs follow the other's.
llvm::Expected<std::vector<StepList>> alpa::generateGpipe(const ScheduleProblem &problem) {
  std::vector<StepList> lists(problem.numMeshes());
  int64_t numStages = problem.numStages();
  auto add = [&](RunKind kind, int64_t stage) {
    for (int64_t index = 0; index < problem.numMicroBatches; ++index)
      lists[problem.meshOf[stage]].push_back({kind, stage, index});
  };
  for (int64_t stage = 0; stage < numStages; ++stage)
    add(RunKind::Forward, stage);
  for (int64_t stage = numStages; stage-- > 0;)
    add(RunKind::Backward, stage);
  return lists;
}

int64_t alpa::inFlightGpipe(int64_t, int64_t numMicroBatches) { return numMicroBatches; }

int64_t alpa::keptGpipe(const ScheduleProblem &problem, int64_t mesh) {
  return problem.numMicroBatches * llvm::count(problem.meshOf, mesh);
}
