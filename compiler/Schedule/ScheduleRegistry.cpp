//===- ScheduleRegistry.cpp - the table of schedules ----------------------===//

#include "compiler/Schedule/ScheduleRegistry.h"

#include "compiler/Schedule/ScheduleFamilies.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::schedule;

llvm::ArrayRef<ScheduleInfo> schedule::getSchedules() {
  static const ScheduleInfo schedules[] = {
      {"1f1b", "one forward, one backward in turn after a warm-up", generate1F1B, inFlight1F1B,
       kept1F1B},
      {"1f1b-overlap",
       "1f1b after a warm-up about twice as long: sending hides behind computing, for more memory",
       generateOverlap, inFlightOverlap, keptOverlap},
      {"gpipe", "all forwards, then all backwards", generateGpipe, inFlightGpipe, keptGpipe,
       /*splitsBackward=*/false, /*takesSeveralStages=*/true, /*isForwardOnly=*/false,
       /*takesBarrier=*/true},
      {"interleaved-1f1b",
       "1f1b with several stages on each mesh in rounds: less waiting, for more sending and memory",
       generateInterleaved, inFlight1F1B, keptInterleaved, /*splitsBackward=*/false,
       /*takesSeveralStages=*/true, /*isForwardOnly=*/false, /*takesBarrier=*/false,
       /*stagesPerMesh=*/2},
      {"breadth-first",
       "gpipe with several stages on each mesh in rounds, one after the other: less waiting, and "
       "what a stage's weights need is needed once",
       generateBreadthFirst, inFlightGpipe, keptGpipe, /*splitsBackward=*/false,
       /*takesSeveralStages=*/true, /*isForwardOnly=*/false, /*takesBarrier=*/true,
       /*stagesPerMesh=*/2},
      {"zb-h1",
       "1f1b whose weight gradients fill what the last stages wait: a third of the waiting, no "
       "more activations than 1f1b's first stage",
       generateZbH1, inFlight1F1B, keptZbH1, /*splitsBackward=*/true},
      {"zb-auto",
       "zero bubble, found from the seconds of all runs and sends under a limit on activations",
       generateZbAuto, inFlight1F1B, keptZbAuto, /*splitsBackward=*/true,
       /*takesSeveralStages=*/false, /*isForwardOnly=*/false, /*takesBarrier=*/false,
       /*stagesPerMesh=*/1, Placement::Rounds, /*heedsLimits=*/true},
      {"zb-v",
       "zero bubble with two stages on each mesh in a V: no more activations than 1f1b's first "
       "stage",
       generateZbV, inFlight1F1B, keptZbV, /*splitsBackward=*/true, /*takesSeveralStages=*/true,
       /*isForwardOnly=*/false, /*takesBarrier=*/false, /*stagesPerMesh=*/2, Placement::V,
       /*heedsLimits=*/true},
      {"v-half", "zb-v with about half of 1f1b's activations", generateVHalf, inFlight1F1B,
       keptVHalf, /*splitsBackward=*/true, /*takesSeveralStages=*/true,
       /*isForwardOnly=*/false, /*takesBarrier=*/false, /*stagesPerMesh=*/2, Placement::V,
       /*heedsLimits=*/true},
      {"v-min", "zb-v with about a third of 1f1b's activations", generateVMin, inFlight1F1B,
       keptVMin, /*splitsBackward=*/true, /*takesSeveralStages=*/true,
       /*isForwardOnly=*/false, /*takesBarrier=*/false, /*stagesPerMesh=*/2, Placement::V,
       /*heedsLimits=*/true},
      {"dualpipe-v",
       "two stages on each mesh in a V, forward runs of one in turn with backward runs of the "
       "other",
       generateDualPipeV, inFlight1F1B, keptDualPipeV, /*splitsBackward=*/true,
       /*takesSeveralStages=*/true,
       /*isForwardOnly=*/false, /*takesBarrier=*/false, /*stagesPerMesh=*/2, Placement::V,
       /*heedsLimits=*/true},
      {"custom", "steps that are given", generateCustom, inFlight1F1B, keptCustom,
       /*splitsBackward=*/true, /*takesSeveralStages=*/true},
      {"inference", "forwards only; chosen by itself if no stage has a backward", generateInference,
       inFlightInference, keptInference, /*splitsBackward=*/false, /*takesSeveralStages=*/true,
       /*isForwardOnly=*/true},
  };
  return schedules;
}

std::string schedule::scheduleNames() {
  std::string names;
  for (const ScheduleInfo &info : getSchedules()) {
    if (&info != getSchedules().begin())
      names += &info == &getSchedules().back() ? " or " : ", ";
    names += info.name;
  }
  return names;
}

const ScheduleInfo *schedule::findSchedule(llvm::StringRef name) {
  const ScheduleInfo *it =
      llvm::find_if(getSchedules(), [&](const ScheduleInfo &info) { return info.name == name; });
  return it == getSchedules().end() ? nullptr : it;
}

int64_t ScheduleProblem::numMeshes() const {
  return meshOf.empty() ? 0 : *llvm::max_element(meshOf) + 1;
}

int64_t schedule::meshOfStage(Placement placement, int64_t numMeshes, int64_t stage) {
  int64_t mesh = stage % numMeshes;
  bool goesBack = placement == Placement::V && stage / numMeshes % 2 == 1;
  return goesBack ? numMeshes - 1 - mesh : mesh;
}

int64_t schedule::stageOnMesh(Placement placement, int64_t numMeshes, int64_t mesh, int64_t round) {
  return round * numMeshes + meshOfStage(placement, numMeshes, round * numMeshes + mesh);
}

ScheduleProblem schedule::placeStages(Placement placement, int64_t numMeshes, int64_t stagesPerMesh,
                                      int64_t numMicroBatches) {
  ScheduleProblem problem;
  problem.numMicroBatches = numMicroBatches;
  for (int64_t stage = 0; stage < numMeshes * stagesPerMesh; ++stage)
    problem.meshOf.push_back(meshOfStage(placement, numMeshes, stage));
  return problem;
}

void schedule::leaveOutMissing(const ScheduleProblem &problem, std::vector<StepList> &lists) {
  if (problem.hasBackward.empty())
    return;
  for (StepList &list : lists)
    llvm::erase_if(list, [&](const ScheduleStep &step) {
      return step.kind != RunKind::Forward && !problem.hasBackward[step.stage];
    });
}

llvm::Expected<std::vector<StepList>> schedule::scheduleSteps(const ScheduleInfo &schedule,
                                                              const ScheduleProblem &problem) {
  if (!schedule.takesSeveralStages && problem.numMeshes() != problem.numStages())
    return makeError(ErrorCode::Method, "schedule '" + schedule.name.str() +
                                            "' takes one stage on each mesh, got " +
                                            std::to_string(problem.numStages()) + " stages on " +
                                            std::to_string(problem.numMeshes()) + " meshes");
  if (schedule.isForwardOnly &&
      (problem.hasBackward.empty() || llvm::is_contained(problem.hasBackward, true)))
    return makeError(ErrorCode::Method, "schedule '" + schedule.name.str() +
                                            "' runs forwards only, but the step has backward runs");
  llvm::Expected<std::vector<StepList>> lists = schedule.generate(problem);
  if (!lists)
    return lists;
  leaveOutMissing(problem, *lists);
  auto isForward = [](const ScheduleStep &step) { return step.kind == RunKind::Forward; };
  for (auto [mesh, list] : llvm::enumerate(*lists))
    if (problem.hasBarrier && !std::is_partitioned(list.begin(), list.end(), isForward))
      return makeError(ErrorCode::MicroBatches, "schedule '" + schedule.name.str() +
                                                    "' has a backward run on mesh " +
                                                    std::to_string(mesh) +
                                                    " before the last forward run, but the step "
                                                    "has a barrier, before which all forward runs "
                                                    "come; use schedule gpipe, or one micro-batch");
  return lists;
}
