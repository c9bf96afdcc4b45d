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

struct ScheduleInfo {
  llvm::StringLiteral name;
  llvm::StringLiteral summary;
  ScheduleFunction generate;
};

/// All schedules; a new one needs one entry.
llvm::ArrayRef<ScheduleInfo> getSchedules();
/// Null if there is none of that name.
const ScheduleInfo *findSchedule(llvm::StringRef name);

} // namespace alpa

#endif // ALPA_COMPILER_SCHEDULE_SCHEDULES_H
