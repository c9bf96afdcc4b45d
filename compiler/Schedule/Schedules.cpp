//===- Schedules.cpp - the order of runs on each stage --------------------===//

#include "compiler/Schedule/Schedules.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

/// Every forward, then every backward: all activations are alive at once.
static llvm::SmallVector<ScheduleStep> generateGpipe(int64_t, int64_t, int64_t numMicroBatches) {
  llvm::SmallVector<ScheduleStep> steps;
  for (bool backward : {false, true})
    for (int64_t index = 0; index < numMicroBatches; ++index)
      steps.push_back({backward, index});
  return steps;
}

static int64_t inFlightGpipe(int64_t, int64_t numMicroBatches) { return numMicroBatches; }

/// Forwards until all but one of those that may be in flight are, then one
/// forward and one backward in turn.
template <InFlightFunction inFlight>
static llvm::SmallVector<ScheduleStep> generateAlternating(int64_t stage, int64_t numStages,
                                                           int64_t numMicroBatches) {
  int64_t warmUp = inFlight(numStages - stage, numMicroBatches) - 1;
  llvm::SmallVector<ScheduleStep> steps;
  int64_t forward = 0, backward = 0;
  while (forward < warmUp)
    steps.push_back({false, forward++});
  while (forward < numMicroBatches) {
    steps.push_back({false, forward++});
    steps.push_back({true, backward++});
  }
  while (backward < numMicroBatches)
    steps.push_back({true, backward++});
  return steps;
}

/// As many as there are stages to the end: enough if sending took no time.
static int64_t inFlight1F1B(int64_t stagesFromHere, int64_t numMicroBatches) {
  return std::min(stagesFromHere, numMicroBatches);
}

/// One more for each send on the way to the last stage, so that a stage computes
/// while what it sent and what it waits for travel.
static int64_t inFlightOverlap(int64_t stagesFromHere, int64_t numMicroBatches) {
  return std::min(2 * stagesFromHere - 1, numMicroBatches);
}

llvm::ArrayRef<ScheduleInfo> alpa::getSchedules() {
  static const ScheduleInfo schedules[] = {
      {"1f1b", "one forward, one backward in turn after a warm-up",
       generateAlternating<inFlight1F1B>, inFlight1F1B},
      {"1f1b-overlap",
       "1f1b after a warm-up about twice as long: sending hides behind computing, for more memory",
       generateAlternating<inFlightOverlap>, inFlightOverlap},
      {"gpipe", "all forwards, then all backwards", generateGpipe, inFlightGpipe},
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
