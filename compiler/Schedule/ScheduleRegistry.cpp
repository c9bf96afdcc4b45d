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
       /*takesSeveralStages=*/true},
      {"zb-h1",
       "1f1b whose weight gradients fill what the last stages wait: a third of the waiting, no "
       "more activations than 1f1b's first stage",
       generateZbH1, inFlight1F1B, keptZbH1, /*splitsBackward=*/true},
      {"zb-auto",
       "zero bubble, found from the seconds of all runs and sends under a limit on activations",
       generateZbAuto, inFlight1F1B, keptZbAuto, /*splitsBackward=*/true},
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

ScheduleProblem schedule::stagesInRounds(int64_t numMeshes, int64_t stagesPerMesh,
                                         int64_t numMicroBatches) {
  ScheduleProblem problem;
  problem.numMicroBatches = numMicroBatches;
  for (int64_t stage = 0; stage < numMeshes * stagesPerMesh; ++stage)
    problem.meshOf.push_back(stage % numMeshes);
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
