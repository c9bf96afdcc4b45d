//===- PipelineTime.h - when a pipeline's runs take place --------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_TIME_PIPELINETIME_H
#define ALPA_COMPILER_STAGE_TIME_PIPELINETIME_H

#include "compiler/Schedule/ScheduleRegistry.h"

#include <optional>

namespace alpa::stage {

/// Seconds of one stage: for a micro-batch, and once for its weights, the barrier and the update.
/// `forthSeconds` are those of sending to the next stage, `backSeconds` of that
/// one sending back, latency included; the next send need not wait for a latency.
struct StageTimes {
  double forwardSeconds = 0, backwardSeconds = 0, updateSeconds = 0;
  double forthSeconds = 0, backSeconds = 0;
  double forthLatencySeconds = 0, backLatencySeconds = 0;
  double backwardWeightSeconds = 0; // Part of `backwardSeconds`, if the schedule splits it.
  double barrierSeconds = 0;        // Behind all forward runs of the mesh.
  double prepareSeconds = 0;        // Before all of them.
};

/// A schedule's order for some stages.
struct PipelineOrder {
  std::vector<int64_t> meshOf; // Of each stage.
  std::vector<schedule::StepList>
      meshes; // Steps of each mesh; none if it does not take the stages.
};

/// `meshOf` gives the mesh of each stage, a mesh each if it is empty. For schedules that
/// look for an order by themselves `limits`, `keptParts`, `sizes` and `forEach` are those of
/// ScheduleProblem.
PipelineOrder orderPipeline(const schedule::ScheduleInfo &schedule,
                            llvm::ArrayRef<StageTimes> stages, int64_t numMicroBatches,
                            llvm::ArrayRef<int64_t> meshOf = {}, std::vector<double> limits = {},
                            std::vector<double> keptParts = {}, std::vector<double> sizes = {},
                            schedule::ForEach forEach = nullptr);

/// The most micro-batches of a stage at a time, from the beginning of the forward run
/// to the end of the backward run, or of its input part; and from the beginning of
/// the input part to the end of the weight part.
struct StageFlights {
  int64_t inFlight = 0, waiting = 0;
  int64_t bytes = 0; // What both hold together when all of the mesh hold the most.
};
/// What a micro-batch holds of a stage in each of the two times.
struct FlightBytes {
  int64_t inFlight = 0, waiting = 0;
};
/// `bytes` of each stage; empty if they are of no matter.
std::vector<StageFlights> countFlights(const PipelineOrder &order,
                                       llvm::ArrayRef<FlightBytes> bytes = {});

/// A sum over micro-batches that one stage sends to another, whose update reads it.
struct HandedSum {
  size_t from = 0, to = 0;
  double seconds = 0;
};

/// When the last stage is done with a step, by following every run and send: a
/// mesh runs one thing at a time, in the order of the schedule; from each mesh to
/// each other goes a link, which carries one send after the other while the meshes go
/// on. Infinity for an order that waits forever, or is none. With `meetSeconds` no
/// update begins before that long after the last backward run of any stage, and none before the
/// sums that it reads are there.
double pipelineSeconds(const PipelineOrder &order, llvm::ArrayRef<StageTimes> stages,
                       int64_t numMicroBatches, std::optional<double> meetSeconds = {},
                       llvm::ArrayRef<HandedSum> sums = {});

/// The same for a schedule.
inline double pipelineSeconds(const schedule::ScheduleInfo &schedule,
                              llvm::ArrayRef<StageTimes> stages, int64_t numMicroBatches,
                              std::optional<double> meetSeconds = {},
                              llvm::ArrayRef<int64_t> meshOf = {}) {
  return pipelineSeconds(orderPipeline(schedule, stages, numMicroBatches, meshOf), stages,
                         numMicroBatches, meetSeconds);
}

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_TIME_PIPELINETIME_H
