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

/// As many forwards as there are later stages, then one forward and one backward
/// in turn: at most `numStages - stage` micro-batches are in flight.
static llvm::SmallVector<ScheduleStep> generate1F1B(int64_t stage, int64_t numStages,
                                                    int64_t numMicroBatches) {
  int64_t warmUp = std::min(numStages - 1 - stage, numMicroBatches);
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

llvm::ArrayRef<ScheduleInfo> alpa::getSchedules() {
  static const ScheduleInfo schedules[] = {
      {"1f1b", "one forward, one backward in turn after a warm-up", generate1F1B},
      {"gpipe", "all forwards, then all backwards", generateGpipe},
  };
  return schedules;
}

const ScheduleInfo *alpa::findSchedule(llvm::StringRef name) {
  const ScheduleInfo *it =
      llvm::find_if(getSchedules(), [&](const ScheduleInfo &info) { return info.name == name; });
  return it == getSchedules().end() ? nullptr : it;
}
