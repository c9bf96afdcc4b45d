//===- Families.h - what generates each family of schedules ------*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_FAMILIES_H
#define ALPA_COMPILER_SCHEDULE_FAMILIES_H

#include "compiler/Schedule/Schedules.h"

namespace alpa {

// Gpipe.cpp
llvm::Expected<std::vector<StepList>> generateGpipe(const ScheduleProblem &problem);
int64_t inFlightGpipe(int64_t stagesFromHere, int64_t numMicroBatches);

// OneForwardOneBackward.cpp
llvm::Expected<std::vector<StepList>> generate1F1B(const ScheduleProblem &problem);
llvm::Expected<std::vector<StepList>> generateOverlap(const ScheduleProblem &problem);
int64_t inFlight1F1B(int64_t stagesFromHere, int64_t numMicroBatches);
int64_t inFlightOverlap(int64_t stagesFromHere, int64_t numMicroBatches);

} // namespace alpa

#endif // ALPA_COMPILER_SCHEDULE_FAMILIES_H
