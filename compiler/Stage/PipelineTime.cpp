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
  Pipeline(std::vector<StepList> lists, llvm::ArrayRef<int64_t> meshOf,
           llvm::ArrayRef<StageTimes> times, int64_t numMicroBatches)
      : times(times), meshOf(meshOf), stages(times.size()), meshes(lists.size()) {
    for (auto [mesh, list] : llvm::zip_equal(meshes, lists))
      mesh.steps = std::move(list);
    for (auto [index, stage] : llvm::enumerate(stages)) {
      stage.inputs.assign(numMicroBatches, index == 0 ? 0 : kInfinity);
      stage.gradients.assign(numMicroBatches, index + 1 == times.size() ? 0 : kInfinity);
      stage.ends.assign(numMicroBatches, kInfinity);
    }
  }

  /// Runs each mesh as far as it gets; what it sends may wake others.
  double run(std::optional<double> meetSeconds) {
    for (size_t index = meshes.size(); index-- > 0;)
      wake(index);
    while (!awake.empty()) {
      Mesh &mesh = meshes[awake.back()];
      awake.pop_back();
      mesh.isAwake = false;
      while (runStep(mesh)) {
      }
    }
    double meeting = 0, end = 0;
    for (const Mesh &mesh : meshes) {
      if (mesh.next != mesh.steps.size())
        return kInfinity;
      if (meetSeconds)
        meeting = std::max(meeting, mesh.free + *meetSeconds);
    }
    for (Mesh &mesh : meshes)
      mesh.free = std::max(mesh.free, meeting);
    for (auto [mesh, time] : llvm::zip_equal(meshOf, times))
      end = std::max(end, meshes[mesh].free += time.updateSeconds);
    return end;
  }

private:
  struct Stage {
    double forthFree = 0, backFree = 0;    // When its links are.
    std::vector<double> inputs, gradients; // When they arrive, by micro-batch.
    std::vector<double> ends;              // Of forward runs.
  };
  struct Mesh {
    StepList steps;
    size_t next = 0;
    double free = 0; // When it is done with the steps so far.
    bool isAwake = false;
  };

  void wake(size_t mesh) {
    if (!std::exchange(meshes[mesh].isAwake, true))
      awake.push_back(mesh);
  }

  bool runStep(Mesh &mesh) {
    if (mesh.next == mesh.steps.size())
      return false;
    auto [kind, index, microBatch] = mesh.steps[mesh.next];
    Stage &stage = stages[index];
    const StageTimes &time = times[index];
    double ready = 0, seconds = time.forwardSeconds;
    switch (kind) {
    case RunKind::Forward:
      ready = stage.inputs[microBatch];
      break;
    case RunKind::Backward:
    case RunKind::BackwardInput:
      ready = std::max(stage.gradients[microBatch], stage.ends[microBatch]);
      seconds = time.backwardSeconds;
      if (kind == RunKind::BackwardInput)
        seconds -= time.backwardWeightSeconds;
      break;
    case RunKind::BackwardWeight: // It follows the input part on the same mesh.
      seconds = time.backwardWeightSeconds;
      break;
    }
    if (ready == kInfinity)
      return false;
    ++mesh.next;
    mesh.free = std::max(mesh.free, ready) + seconds;
    if (kind == RunKind::Forward) {
      stage.ends[microBatch] = mesh.free;
      if (size_t(index) + 1 < stages.size()) {
        stage.forthFree = std::max(stage.forthFree, mesh.free + time.forthLatencySeconds) +
                          time.forthSeconds - time.forthLatencySeconds;
        stages[index + 1].inputs[microBatch] = stage.forthFree;
        wake(meshOf[index + 1]);
      }
    } else if (kind != RunKind::BackwardWeight && index > 0) {
      const StageTimes &link = times[index - 1];
      stage.backFree = std::max(stage.backFree, mesh.free + link.backLatencySeconds) +
                       link.backSeconds - link.backLatencySeconds;
      stages[index - 1].gradients[microBatch] = stage.backFree;
      wake(meshOf[index - 1]);
    }
    return true;
  }

  llvm::ArrayRef<StageTimes> times;
  llvm::ArrayRef<int64_t> meshOf;
  std::vector<Stage> stages;
  std::vector<Mesh> meshes;
  std::vector<size_t> awake;
};

} // namespace

double alpa::pipelineSeconds(const ScheduleInfo &schedule, llvm::ArrayRef<StageTimes> stages,
                             int64_t numMicroBatches, std::optional<double> meetSeconds,
                             llvm::ArrayRef<int64_t> meshOf) {
  ScheduleProblem problem = oneStagePerMesh(int64_t(stages.size()), numMicroBatches);
  if (!meshOf.empty())
    problem.meshOf.assign(meshOf.begin(), meshOf.end());
  for (const StageTimes &time : stages)
    problem.seconds.push_back({time.forwardSeconds,
                               time.backwardSeconds - time.backwardWeightSeconds,
                               time.backwardWeightSeconds, time.forthSeconds, time.backSeconds});
  llvm::Expected<std::vector<StepList>> lists = scheduleSteps(schedule, problem);
  if (!lists) {
    llvm::consumeError(lists.takeError());
    return kInfinity;
  }
  return Pipeline(std::move(*lists), problem.meshOf, stages, numMicroBatches).run(meetSeconds);
}
