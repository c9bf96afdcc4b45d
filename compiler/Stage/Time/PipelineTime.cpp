//===- PipelineTime.cpp - when a pipeline's runs take place ---------------===//

#include "compiler/Stage/Time/PipelineTime.h"

#include "compiler/Schedule/Timeline.h"

#include "llvm/ADT/STLExtras.h"
#include <limits>
#include <vector>

using namespace alpa;
using namespace alpa::stage;
using schedule::RunKind;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

static schedule::ScheduleProblem problemOf(llvm::ArrayRef<StageTimes> stages,
                                           int64_t numMicroBatches,
                                           llvm::ArrayRef<int64_t> meshOf) {
  schedule::ScheduleProblem problem =
      schedule::oneStagePerMesh(int64_t(stages.size()), numMicroBatches);
  if (!meshOf.empty())
    problem.meshOf.assign(meshOf.begin(), meshOf.end());
  for (const StageTimes &time : stages) {
    problem.seconds.push_back({time.forwardSeconds,
                               time.backwardSeconds - time.backwardWeightSeconds,
                               time.backwardWeightSeconds, time.forthSeconds, time.backSeconds,
                               time.barrierSeconds, time.prepareSeconds});
    problem.hasBarrier |= time.barrierSeconds > 0;
  }
  return problem;
}

PipelineOrder stage::orderPipeline(const schedule::ScheduleInfo &schedule,
                                   llvm::ArrayRef<StageTimes> stages, int64_t numMicroBatches,
                                   llvm::ArrayRef<int64_t> meshOf, std::vector<double> limits,
                                   std::vector<double> keptParts, std::vector<double> sizes,
                                   schedule::ForEach forEach) {
  schedule::ScheduleProblem problem = problemOf(stages, numMicroBatches, meshOf);
  // Steps without backward runs have one schedule, whatever is asked for (alpa-build-schedule).
  bool isForwardOnly =
      llvm::all_of(stages, [](const StageTimes &time) { return time.backwardSeconds == 0; });
  if (isForwardOnly)
    problem.hasBackward.assign(stages.size(), false);
  problem.limits = std::move(limits);
  problem.keptParts = std::move(keptParts);
  problem.sizes = std::move(sizes);
  problem.forEach = std::move(forEach);
  llvm::Expected<std::vector<schedule::StepList>> lists = schedule::scheduleSteps(
      isForwardOnly ? *schedule::findSchedule("inference") : schedule, problem);
  if (!lists) {
    llvm::consumeError(lists.takeError());
    return {problem.meshOf, {}};
  }
  return {problem.meshOf, std::move(*lists)};
}

std::vector<StageFlights> stage::countFlights(const PipelineOrder &order,
                                              llvm::ArrayRef<FlightBytes> bytes) {
  std::vector<StageFlights> most(order.meshOf.size()), now(order.meshOf.size());
  for (const schedule::StepList &steps : order.meshes) {
    int64_t held = 0, mostHeld = 0; // By all stages of the mesh.
    std::vector<int64_t> stages;
    for (const schedule::ScheduleStep &step : steps)
      if (!llvm::is_contained(stages, step.stage))
        stages.push_back(step.stage);
    auto bytesOf = [&](int64_t stage) {
      return now[stage].inFlight * bytes[stage].inFlight +
             now[stage].waiting * bytes[stage].waiting;
    };
    for (const schedule::ScheduleStep &step : steps) {
      StageFlights &mine = now[step.stage], &limit = most[step.stage];
      mine.inFlight += step.kind == RunKind::Forward;
      mine.waiting += step.kind == RunKind::BackwardInput;
      limit.inFlight = std::max(limit.inFlight, mine.inFlight);
      limit.waiting = std::max(limit.waiting, mine.waiting);
      if (!bytes.empty()) {
        int64_t &before = now[step.stage].bytes;
        held += bytesOf(step.stage) - before;
        before = bytesOf(step.stage);
        if (held > mostHeld) {
          mostHeld = held;
          for (int64_t stage : stages)
            most[stage].bytes = now[stage].bytes;
        }
      }
      mine.inFlight -= step.kind == RunKind::Backward || step.kind == RunKind::BackwardInput;
      mine.waiting -= step.kind == RunKind::BackwardWeight;
      if (!bytes.empty()) {
        held += bytesOf(step.stage) - now[step.stage].bytes;
        now[step.stage].bytes = bytesOf(step.stage);
      }
    }
  }
  return most;
}

double stage::pipelineSeconds(const PipelineOrder &order, llvm::ArrayRef<StageTimes> stages,
                              int64_t numMicroBatches, std::optional<double> meetSeconds,
                              llvm::ArrayRef<HandedSum> sums) {
  if (order.meshes.empty())
    return kInfinity;
  llvm::ArrayRef<int64_t> meshOf = order.meshOf;
  std::vector<double> linkFree(order.meshes.size() * order.meshes.size(), 0);
  auto send = [&](int64_t from, int64_t to, double now) {
    if (meshOf[from] == meshOf[to])
      return now;
    bool isForth = to > from;
    const StageTimes &link = stages[isForth ? from : from - 1];
    double seconds = isForth ? link.forthSeconds : link.backSeconds;
    double latency = isForth ? link.forthLatencySeconds : link.backLatencySeconds;
    double &free = linkFree[meshOf[from] * order.meshes.size() + meshOf[to]];
    return free = std::max(free, now + latency) + seconds - latency;
  };
  std::optional<schedule::Timeline> timeline =
      schedule::followSteps(problemOf(stages, numMicroBatches, meshOf), order.meshes, send);
  if (!timeline)
    return kInfinity;
  double meeting = meetSeconds ? timeline->seconds() + *meetSeconds : 0, end = 0;
  std::vector<double> done; // Of each mesh.
  for (const schedule::Timeline::Span &span : timeline->spans)
    done.push_back(std::max(span.end, meeting));
  for (const HandedSum &sum : sums) {
    double &begin = done[meshOf[sum.to]];
    begin = std::max(begin, timeline->spans[meshOf[sum.from]].end + sum.seconds);
  }
  for (auto [mesh, time] : llvm::zip_equal(meshOf, stages))
    end = std::max(end, done[mesh] += time.updateSeconds);
  return end;
}
