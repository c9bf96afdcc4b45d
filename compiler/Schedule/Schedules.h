//===- Schedules.h - the order of runs on each stage -------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_SCHEDULES_H
#define ALPA_COMPILER_SCHEDULE_SCHEDULES_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"

namespace alpa {

struct ScheduleStep {
  bool backward;
  int64_t microBatch;
};

/// The runs of `stage`, out of `numStages`, for all micro-batches. Each kind of
/// run takes the micro-batches in ascending order.
using ScheduleFunction = llvm::SmallVector<ScheduleStep> (*)(int64_t stage, int64_t numStages,
                                                             int64_t numMicroBatches);

/// How many micro-batches a stage has begun and not finished at most, if there
/// are so many stages from it to the end, itself included. It keeps their
/// activations, and begins no other one before the first of them came back.
using InFlightFunction = int64_t (*)(int64_t stagesFromHere, int64_t numMicroBatches);

struct ScheduleInfo {
  llvm::StringLiteral name;
  llvm::StringLiteral summary;
  ScheduleFunction generate;
  InFlightFunction inFlight;
};

/// All schedules; a new one needs one entry.
llvm::ArrayRef<ScheduleInfo> getSchedules();
/// Their names, "a, b or c", for messages.
std::string scheduleNames();
/// Null if there is none of that name.
const ScheduleInfo *findSchedule(llvm::StringRef name);

} // namespace alpa

#endif // ALPA_COMPILER_SCHEDULE_SCHEDULES_H
