//===- OneForwardOneBackward.cpp - forward and backward in turn -----------===//

#include "compiler/Schedule/Families.h"

#include <algorithm>

using namespace alpa;

/// Forwards until all but one of those that may be in flight are, then one
/// forward and one backward in turn.
static StepList alternate(int64_t stage, int64_t inFlight, int64_t numMicroBatches) {
  StepList steps;
  steps.reserve(2 * numMicroBatches);
  int64_t forward = 0, backward = 0;
  while (forward < inFlight - 1)
    steps.push_back({RunKind::Forward, stage, forward++});
  while (forward < numMicroBatches) {
    steps.push_back({RunKind::Forward, stage, forward++});
    steps.push_back({RunKind::Backward, stage, backward++});
  }
  while (backward < numMicroBatches)
    steps.push_back({RunKind::Backward, stage, backward++});
  return steps;
}

static std::vector<StepList> alternate(const ScheduleProblem &problem, InFlightFunction inFlight) {
  std::vector<StepList> lists;
  int64_t numStages = problem.numStages();
  for (int64_t stage = 0; stage < numStages; ++stage)
    lists.push_back(alternate(stage, inFlight(numStages - stage, problem.numMicroBatches),
                              problem.numMicroBatches));
  return lists;
}

llvm::Expected<std::vector<StepList>> alpa::generate1F1B(const ScheduleProblem &problem) {
  return alternate(problem, inFlight1F1B);
}

llvm::Expected<std::vector<StepList>> alpa::generateOverlap(const ScheduleProblem &problem) {
  return alternate(problem, inFlightOverlap);
}

/// As many as there are stages to the end: enough if sending took no time.
int64_t alpa::inFlight1F1B(int64_t stagesFromHere, int64_t numMicroBatches) {
  return std::min(stagesFromHere, numMicroBatches);
}

/// One more for each send on the way to the last stage, so that a stage computes
/// while what it sent and what it waits for travel.
int64_t alpa::inFlightOverlap(int64_t stagesFromHere, int64_t numMicroBatches) {
  return std::min(2 * stagesFromHere - 1, numMicroBatches);
}

int64_t alpa::kept1F1B(const ScheduleProblem &problem, int64_t mesh) {
  return inFlight1F1B(problem.numMeshes() - mesh, problem.numMicroBatches);
}

int64_t alpa::keptOverlap(const ScheduleProblem &problem, int64_t mesh) {
  return inFlightOverlap(problem.numMeshes() - mesh, problem.numMicroBatches);
}
