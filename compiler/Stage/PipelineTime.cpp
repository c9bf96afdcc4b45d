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
  Pipeline(const PipelineOrder &order, llvm::ArrayRef<StageTimes> times, int64_t numMicroBatches)
      : times(times), meshOf(order.meshOf), stages(times.size()), meshes(order.meshes.size()),
        linkFree(meshes.size() * meshes.size(), 0) {
    for (auto [mesh, list] : llvm::zip_equal(meshes, order.meshes))
      mesh.steps = list;
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
    std::vector<double> inputs, gradients; // When they arrive, by micro-batch.
    std::vector<double> ends;              // Of forward runs.
  };
  struct Mesh {
    llvm::ArrayRef<ScheduleStep> steps;
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
      if (size_t(index) + 1 < stages.size())
        stages[index + 1].inputs[microBatch] =
            send(index, index + 1, mesh.free, time.forthSeconds, time.forthLatencySeconds);
    } else if (kind != RunKind::BackwardWeight && index > 0) {
      const StageTimes &link = times[index - 1];
      stages[index - 1].gradients[microBatch] =
          send(index, index - 1, mesh.free, link.backSeconds, link.backLatencySeconds);
    }
    return true;
  }

  /// When what one stage sends at `now` is with another one.
  double send(int64_t from, int64_t to, double now, double seconds, double latency) {
    wake(meshOf[to]);
    if (meshOf[from] == meshOf[to])
      return now;
    double &free = linkFree[meshOf[from] * meshes.size() + meshOf[to]];
    return free = std::max(free, now + latency) + seconds - latency;
  }

  llvm::ArrayRef<StageTimes> times;
  llvm::ArrayRef<int64_t> meshOf;
  std::vector<Stage> stages;
  std::vector<Mesh> meshes;
  std::vector<double> linkFree; // When the link from each mesh to each is.
  std::vector<size_t> awake;
};

} // namespace

PipelineOrder alpa::orderPipeline(const ScheduleInfo &schedule, llvm::ArrayRef<StageTimes> stages,
                                  int64_t numMicroBatches, llvm::ArrayRef<int64_t> meshOf,
                                  double limit, double keptPart) {
  ScheduleProblem problem = oneStagePerMesh(int64_t(stages.size()), numMicroBatches);
  if (!meshOf.empty())
    problem.meshOf.assign(meshOf.begin(), meshOf.end());
  for (const StageTimes &time : stages)
    problem.seconds.push_back({time.forwardSeconds,
                               time.backwardSeconds - time.backwardWeightSeconds,
                               time.backwardWeightSeconds, time.forthSeconds, time.backSeconds});
  // A schedule of forwards asks whether that is all there is.
  if (schedule.isForwardOnly)
    for (const StageTimes &time : stages)
      problem.hasBackward.push_back(time.backwardSeconds > 0);
  problem.limit = limit;
  problem.keptPart = keptPart;
  llvm::Expected<std::vector<StepList>> lists = scheduleSteps(schedule, problem);
  if (!lists) {
    llvm::consumeError(lists.takeError());
    return {problem.meshOf, {}};
  }
  return {problem.meshOf, std::move(*lists)};
}

std::vector<StageFlights> alpa::countFlights(const PipelineOrder &order,
                                             llvm::ArrayRef<FlightBytes> bytes) {
  std::vector<StageFlights> most(order.meshOf.size()), now(order.meshOf.size());
  for (const StepList &steps : order.meshes)
    for (const ScheduleStep &step : steps) {
      StageFlights &mine = now[step.stage], &limit = most[step.stage];
      mine.inFlight += step.kind == RunKind::Forward;
      mine.waiting += step.kind == RunKind::BackwardInput;
      limit.inFlight = std::max(limit.inFlight, mine.inFlight);
      limit.waiting = std::max(limit.waiting, mine.waiting);
      if (!bytes.empty()) {
        FlightBytes each = bytes[step.stage];
        limit.bytes =
            std::max(limit.bytes, mine.inFlight * each.inFlight + mine.waiting * each.waiting);
      }
      mine.inFlight -= step.kind == RunKind::Backward || step.kind == RunKind::BackwardInput;
      mine.waiting -= step.kind == RunKind::BackwardWeight;
    }
  return most;
}

double alpa::pipelineSeconds(const PipelineOrder &order, llvm::ArrayRef<StageTimes> stages,
                             int64_t numMicroBatches, std::optional<double> meetSeconds) {
  if (order.meshes.empty())
    return kInfinity;
  return Pipeline(order, stages, numMicroBatches).run(meetSeconds);
}
