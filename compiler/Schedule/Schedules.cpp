//===- Schedules.cpp - the table of schedules -----------------------------===//

#include "compiler/Schedule/Schedules.h"

#include "compiler/Schedule/Families.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

llvm::ArrayRef<ScheduleInfo> alpa::getSchedules() {
  static const ScheduleInfo schedules[] = {
      {"1f1b", "one forward, one backward in turn after a warm-up", generate1F1B, inFlight1F1B},
      {"1f1b-overlap",
       "1f1b after a warm-up about twice as long: sending hides behind computing, for more memory",
       generateOverlap, inFlightOverlap},
      {"gpipe", "all forwards, then all backwards", generateGpipe, inFlightGpipe, false, true},
  };
  return schedules;
}

std::string alpa::scheduleNames() {
  std::string names;
  for (const ScheduleInfo &info : getSchedules()) {
    if (&info != getSchedules().begin())
      names += &info == &getSchedules().back() ? " or " : ", ";
    names += info.name;
  }
  return names;
}

const ScheduleInfo *alpa::findSchedule(llvm::StringRef name) {
  const ScheduleInfo *it =
      llvm::find_if(getSchedules(), [&](const ScheduleInfo &info) { return info.name == name; });
  return it == getSchedules().end() ? nullptr : it;
}

int64_t ScheduleProblem::numMeshes() const {
  return meshOf.empty() ? 0 : *llvm::max_element(meshOf) + 1;
}

ScheduleProblem alpa::oneStagePerMesh(int64_t numStages, int64_t numMicroBatches) {
  ScheduleProblem problem;
  problem.numMicroBatches = numMicroBatches;
  for (int64_t stage = 0; stage < numStages; ++stage)
    problem.meshOf.push_back(stage);
  return problem;
}

llvm::Expected<std::vector<StepList>> alpa::scheduleSteps(const ScheduleInfo &schedule,
                                                          const ScheduleProblem &problem) {
  if (!schedule.takesSeveralStages && problem.numMeshes() != problem.numStages())
    return llvm::createStringError("schedule '" + schedule.name.str() +
                                   "' takes one stage on each mesh, got " +
                                   std::to_string(problem.numStages()) + " stages on " +
                                   std::to_string(problem.numMeshes()) + " meshes");
  llvm::Expected<std::vector<StepList>> lists = schedule.generate(problem);
  if (lists && !problem.hasBackward.empty())
    for (StepList &list : *lists)
      llvm::erase_if(list, [&](const ScheduleStep &step) {
        return step.kind != RunKind::Forward && !problem.hasBackward[step.stage];
      });
  return lists;
}
