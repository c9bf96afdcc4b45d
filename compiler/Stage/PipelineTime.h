//===- PipelineTime.h - when a pipeline's runs take place --------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_PIPELINETIME_H
#define ALPA_COMPILER_STAGE_PIPELINETIME_H

#include "compiler/Schedule/Schedules.h"

#include <optional>

namespace alpa {

/// Seconds of one stage: for a micro-batch, and for the update after all of them.
/// `forthSeconds` are those of sending to the next stage, `backSeconds` of that
/// one sending back, latency included; the next send need not wait for a latency.
struct StageTimes {
  double forwardSeconds = 0, backwardSeconds = 0, updateSeconds = 0;
  double forthSeconds = 0, backSeconds = 0;
  double forthLatencySeconds = 0, backLatencySeconds = 0;
  double backwardWeightSeconds = 0; // Part of `backwardSeconds`, if the schedule splits it.
};

/// When the last stage is done with a step, by following every run and send: a
/// mesh runs one thing at a time, in the order of the schedule; neighbouring stages
/// have a link of their own each way, which carries one micro-batch after the other
/// while the meshes go on. Infinity for a schedule that waits forever or does not
/// take these stages. With `meetSeconds` no update begins before that long after the
/// last backward run of any stage. `meshOf` gives the mesh of each stage, a mesh each
/// if it is empty.
double pipelineSeconds(const ScheduleInfo &schedule, llvm::ArrayRef<StageTimes> stages,
                       int64_t numMicroBatches, std::optional<double> meetSeconds = {},
                       llvm::ArrayRef<int64_t> meshOf = {});

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_PIPELINETIME_H
