//===- ScheduleFamilies.cpp - the families of pipeline schedules --------------------===//

#include "compiler/Schedule/ScheduleFamilies.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

using namespace alpa;
using namespace alpa::schedule;

static llvm::Error checkRounds(llvm::StringRef name, const ScheduleProblem &problem) {
  if (isInRounds(problem))
    return llvm::Error::success();
  return makeError(ErrorCode::Method,
                   "schedule '" + name.str() +
                       "' takes stages in rounds over the meshes, stage s on mesh s modulo their "
                       "number; got " +
                       std::to_string(problem.numStages()) + " stages on " +
                       std::to_string(problem.numMeshes()) + " meshes in another order");
}

//===----------------------------------------------------------------------===//
// Forward runs only
//===----------------------------------------------------------------------===//

/// Stages in rounds take turns group by group, which fills the pipeline once; other
/// ones come one after the other.
llvm::Expected<std::vector<StepList>> schedule::generateInference(const ScheduleProblem &problem) {
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
int64_t schedule::inFlightInference(int64_t, int64_t) { return 1; }
int64_t schedule::keptInference(const ScheduleProblem &, int64_t) { return 1; }

//===----------------------------------------------------------------------===//
// All forwards, then all backwards
//===----------------------------------------------------------------------===//

/// All activations are alive at once. With several stages on a mesh, one stage's
/// runs follow the other's.
llvm::Expected<std::vector<StepList>> schedule::generateGpipe(const ScheduleProblem &problem) {
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

/// Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023: with stages in rounds that
/// order fills the pipeline with a v-th of a mesh's work.
llvm::Expected<std::vector<StepList>>
schedule::generateBreadthFirst(const ScheduleProblem &problem) {
  if (llvm::Error error = checkRounds("breadth-first", problem))
    return std::move(error);
  return generateGpipe(problem);
}

int64_t schedule::inFlightGpipe(int64_t, int64_t numMicroBatches) { return numMicroBatches; }

int64_t schedule::keptGpipe(const ScheduleProblem &problem, int64_t mesh) {
  return problem.numMicroBatches * llvm::count(problem.meshOf, mesh);
}

//===----------------------------------------------------------------------===//
// Forward and backward in turn
//===----------------------------------------------------------------------===//

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

llvm::Expected<std::vector<StepList>> schedule::generate1F1B(const ScheduleProblem &problem) {
  return alternate(problem, inFlight1F1B);
}

llvm::Expected<std::vector<StepList>> schedule::generateOverlap(const ScheduleProblem &problem) {
  return alternate(problem, inFlightOverlap);
}

/// As many as there are stages to the end: enough if sending took no time.
int64_t schedule::inFlight1F1B(int64_t stagesFromHere, int64_t numMicroBatches) {
  return std::min(stagesFromHere, numMicroBatches);
}

/// One more for each send on the way to the last stage, so that a stage computes
/// while what it sent and what it waits for travel.
int64_t schedule::inFlightOverlap(int64_t stagesFromHere, int64_t numMicroBatches) {
  return std::min(2 * stagesFromHere - 1, numMicroBatches);
}

int64_t schedule::kept1F1B(const ScheduleProblem &problem, int64_t mesh) {
  return inFlight1F1B(problem.numMeshes() - mesh, problem.numMicroBatches);
}

int64_t schedule::keptOverlap(const ScheduleProblem &problem, int64_t mesh) {
  return inFlightOverlap(problem.numMeshes() - mesh, problem.numMicroBatches);
}

//===----------------------------------------------------------------------===//
// Several stages on a mesh, in rounds
//
// Megatron-LM's order (Narayanan et al., SC 2021, section 2.2): stage s lies on mesh
// s modulo p, micro-batches go through a mesh's stages in groups of p, and the
// warm-up of mesh i is 2 (p - i - 1) + (v - 1) p runs. A group of fewer than p would
// have to wait for itself, so that the groups of p + 1 and more take the rest.
//===----------------------------------------------------------------------===//

bool schedule::isInRounds(const ScheduleProblem &problem) {
  int64_t numMeshes = problem.numMeshes();
  return problem.numStages() % numMeshes == 0 &&
         problem.meshOf == stagesInRounds(numMeshes, problem.numStages() / numMeshes, 1).meshOf;
}

std::vector<int64_t> schedule::groupMicroBatches(int64_t numMicroBatches, int64_t numMeshes) {
  int64_t numGroups = std::max<int64_t>(1, numMicroBatches / numMeshes);
  std::vector<int64_t> groups(numGroups, numMicroBatches / numGroups);
  for (int64_t group = 0; group < numMicroBatches % numGroups; ++group)
    ++groups[group];
  return groups;
}

StepList schedule::stepsInRounds(const ScheduleProblem &problem, int64_t mesh, RunKind kind,
                                 bool descending) {
  int64_t numMeshes = problem.numMeshes(), rounds = problem.numStages() / numMeshes;
  StepList steps;
  steps.reserve(rounds * problem.numMicroBatches);
  int64_t begin = 0;
  for (int64_t size : groupMicroBatches(problem.numMicroBatches, numMeshes)) {
    for (int64_t round = 0; round < rounds; ++round) {
      int64_t stage = (descending ? rounds - 1 - round : round) * numMeshes + mesh;
      for (int64_t index = begin; index < begin + size; ++index)
        steps.push_back({kind, stage, index});
    }
    begin += size;
  }
  return steps;
}

/// Forward runs before the first backward run.
static int64_t warmUp(const ScheduleProblem &problem, int64_t mesh) {
  int64_t numMeshes = problem.numMeshes(), rounds = problem.numStages() / numMeshes;
  int64_t largest = groupMicroBatches(problem.numMicroBatches, numMeshes).front();
  return std::min(2 * (numMeshes - mesh - 1) + (rounds - 1) * largest,
                  rounds * problem.numMicroBatches);
}

llvm::Expected<std::vector<StepList>>
schedule::generateInterleaved(const ScheduleProblem &problem) {
  if (llvm::Error error = checkRounds("interleaved-1f1b", problem))
    return std::move(error);
  if (problem.numStages() == problem.numMeshes())
    return generate1F1B(problem);
  std::vector<StepList> lists;
  for (int64_t mesh = 0; mesh < problem.numMeshes(); ++mesh) {
    StepList forwards = stepsInRounds(problem, mesh, RunKind::Forward, false);
    StepList backwards = stepsInRounds(problem, mesh, RunKind::Backward, true);
    int64_t first = warmUp(problem, mesh), total = int64_t(forwards.size());
    StepList &steps = lists.emplace_back(forwards.begin(), forwards.begin() + first);
    steps.reserve(2 * total);
    for (int64_t index = 0; index < total; ++index) {
      if (first + index < total)
        steps.push_back(forwards[first + index]);
      steps.push_back(backwards[index]);
    }
  }
  return lists;
}

int64_t schedule::keptInterleaved(const ScheduleProblem &problem, int64_t mesh) {
  if (problem.numStages() == problem.numMeshes())
    return kept1F1B(problem, mesh);
  return std::min(warmUp(problem, mesh) + 1,
                  problem.numMicroBatches * problem.numStages() / problem.numMeshes());
}
