//===- PipelineTime.cpp - when a pipeline's runs take place ---------------===//

#include "compiler/Stage/PipelineTime.h"

#include "llvm/ADT/STLExtras.h"
#include <limits>
#include <vector>

using namespace alpa;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

namespace {

class Pipeline {
public:
  Pipeline(const ScheduleInfo &schedule, llvm::ArrayRef<StageTimes> times, int64_t numMicroBatches)
      : times(times), stages(times.size()) {
    for (auto [index, stage] : llvm::enumerate(stages)) {
      stage.steps = schedule.generate(int64_t(index), int64_t(times.size()), numMicroBatches);
      stage.inputs.assign(numMicroBatches, index == 0 ? 0 : kInfinity);
      stage.gradients.assign(numMicroBatches, index + 1 == times.size() ? 0 : kInfinity);
      stage.ends.assign(numMicroBatches, kInfinity);
    }
  }

  /// Runs each stage as far as it gets; what it sends may wake its neighbours.
  double run(std::optional<double> meetSeconds) {
    std::vector<size_t> awake;
    for (size_t index = stages.size(); index-- > 0;)
      awake.push_back(index);
    while (!awake.empty()) {
      size_t index = awake.back();
      awake.pop_back();
      bool sentForth = false, sentBack = false;
      while (runStep(index, sentForth, sentBack)) {
      }
      if (sentBack)
        awake.push_back(index - 1);
      if (sentForth)
        awake.push_back(index + 1);
    }
    double meeting = 0, end = 0;
    for (const Stage &stage : stages) {
      if (stage.next != stage.steps.size())
        return kInfinity;
      if (meetSeconds)
        meeting = std::max(meeting, stage.free + *meetSeconds);
    }
    for (auto [stage, time] : llvm::zip_equal(stages, times))
      end = std::max(end, std::max(stage.free, meeting) + time.updateSeconds);
    return end;
  }

private:
  struct Stage {
    llvm::SmallVector<ScheduleStep> steps;
    size_t next = 0;
    double free = 0;                       // When it is done with the steps so far.
    double forthFree = 0, backFree = 0;    // When its links are.
    std::vector<double> inputs, gradients; // When they arrive, by micro-batch.
    std::vector<double> ends;              // Of forward runs.
  };

  bool runStep(size_t index, bool &sentForth, bool &sentBack) {
    Stage &stage = stages[index];
    if (stage.next == stage.steps.size())
      return false;
    auto [backward, microBatch] = stage.steps[stage.next];
    double ready = backward ? std::max(stage.gradients[microBatch], stage.ends[microBatch])
                            : stage.inputs[microBatch];
    if (ready == kInfinity)
      return false;
    ++stage.next;
    const StageTimes &time = times[index];
    stage.free =
        std::max(stage.free, ready) + (backward ? time.backwardSeconds : time.forwardSeconds);
    if (!backward) {
      stage.ends[microBatch] = stage.free;
      if (index + 1 < stages.size()) {
        stage.forthFree = std::max(stage.forthFree, stage.free + time.forthLatencySeconds) +
                          time.forthSeconds - time.forthLatencySeconds;
        stages[index + 1].inputs[microBatch] = stage.forthFree;
        sentForth = true;
      }
    } else if (index > 0) {
      const StageTimes &link = times[index - 1];
      stage.backFree = std::max(stage.backFree, stage.free + link.backLatencySeconds) +
                       link.backSeconds - link.backLatencySeconds;
      stages[index - 1].gradients[microBatch] = stage.backFree;
      sentBack = true;
    }
    return true;
  }

  llvm::ArrayRef<StageTimes> times;
  std::vector<Stage> stages;
};

} // namespace

double alpa::pipelineSeconds(const ScheduleInfo &schedule, llvm::ArrayRef<StageTimes> stages,
                             int64_t numMicroBatches, std::optional<double> meetSeconds) {
  return Pipeline(schedule, stages, numMicroBatches).run(meetSeconds);
}
