//===- PlanTime.cpp - seconds of a plan on the hosts ----------------------===//

#include "compiler/Stage/Time/PlanTime.h"

#include "compiler/CostModel/CostModel.h"
#include "compiler/CostModel/Network.h"
#include "compiler/Stage/Time/Placement.h"

#include "llvm/ADT/STLExtras.h"
#include <set>

using namespace alpa;
using namespace alpa::stage;
using cost::Submesh;

PlanTimer::PlanTimer(const cost::Cluster &cluster, const StageDpProblem &problem,
                     const StepLayers &layers, StageCosts &costs)
    : cluster(cluster), network(cluster), hostDevices(problem.hostDevices),
      hostKinds(problem.hostKinds), hostRacks(problem.hostRacks), submeshes(problem.submeshes),
      numMicroBatches(problem.numMicroBatches), crossings(layers.crossings),
      handedOnce(layers.handedOnce), costs(costs) {
  for (const Submesh &from : submeshes)
    for (const Submesh &to : submeshes)
      links.push_back(cost::transferLink(cluster, from, to));
}

SendSeconds PlanTimer::send(unsigned cut, const cost::Link &forth, const cost::Link &back) const {
  double there = crossings.forwardBytes[cut], again = crossings.backwardBytes[cut];
  return {forth.secondsFor(there), back.secondsFor(again), there > 0 ? forth.latencySeconds : 0,
          again > 0 ? back.latencySeconds : 0};
}

SendSeconds PlanTimer::sendAfter(llvm::ArrayRef<PlannedStage> stages, size_t index,
                                 cost::Span span) const {
  const Submesh &from = submeshes[stages[index].submesh],
                &to = submeshes[stages[index + 1].submesh];
  return send(stages[index].hi, cost::transferLink(cluster, from, to, span),
              cost::transferLink(cluster, to, from, span));
}

std::pair<double, double> PlanTimer::secondsBetween(llvm::ArrayRef<int64_t> from,
                                                    llvm::ArrayRef<int64_t> to,
                                                    double bytes) const {
  if (from == to)
    return {0, 0}; // Stages of one mesh.
  cost::TransferPath path = cost::transferPath(network, from, to);
  return {path.seconds(bytes), bytes > 0 ? path.latencySeconds : 0};
}

std::optional<double> PlanTimer::meetSeconds(llvm::ArrayRef<PlannedStage> stages,
                                             llvm::ArrayRef<std::vector<int64_t>> devices) const {
  std::optional<double> seconds;
  for (size_t first = 0, index; first + 1 < stages.size(); first = index + 1) {
    double there = 0, back = 0;
    for (index = first; index + 1 < stages.size() && crossings.updatesMeet[stages[index].hi];
         ++index) {
      there = std::max(there, secondsBetween(devices[index + 1], devices[first], 1).second);
      back = std::max(back, secondsBetween(devices[first], devices[index + 1], 1).second);
    }
    if (index > first)
      seconds = std::max(seconds.value_or(0), there + back);
  }
  return seconds;
}

bool TimedPlan::fits(const StageDpProblem &problem, const StagePlan &plan) const {
  std::vector<int64_t> left;
  for (auto [index, stage] : llvm::enumerate(plan.stages)) {
    unsigned mesh = plan.meshOf(unsigned(index));
    if (mesh == left.size())
      left.push_back(problem.memoryOf(stage.submesh));
    if ((left[mesh] -= peakBytes[index]) < 0)
      return false;
  }
  return true;
}

/// Devices of each stage.
std::optional<std::vector<std::vector<int64_t>>> PlanTimer::place(const StagePlan &plan) const {
  size_t numStages = plan.stages.size(), numMeshes = plan.numMeshes ? plan.numMeshes : numStages;
  std::vector<Submesh> chosen;
  for (size_t i = 0; i < numMeshes; ++i)
    chosen.push_back(submeshes[plan.stages[i].submesh]);
  std::vector<double> savings(numMeshes, 0);
  for (size_t i = 0; i + 1 < numStages; ++i)
    if (size_t mesh = std::min(plan.meshOf(i), plan.meshOf(i + 1)),
        other = std::max(plan.meshOf(i), plan.meshOf(i + 1));
        mesh + 1 == other && chosen[mesh].hosts == 1 && chosen[other].hosts == 1)
      savings[mesh] += std::max(0.0, sendAfter(plan.stages, i, cost::Span::Rack).sum() -
                                         sendAfter(plan.stages, i, cost::Span::Host).sum());
  auto devices = placeSubmeshes(hostDevices, chosen, hostKinds, savings, hostRacks);
  if (devices)
    for (size_t i = numMeshes; i < numStages; ++i)
      devices->push_back((*devices)[plan.meshOf(i)]);
  return devices;
}

/// What is left for activations on each mesh. Those of the mesh's first stage count as one.
void PlanTimer::findRoom(const StagePlan &plan, const StageDpProblem &problem,
                         llvm::ArrayRef<FlightBytes> bytes, TimedPlan &timed) const {
  size_t numMeshes = plan.numMeshes ? plan.numMeshes : plan.stages.size();
  std::vector<double> left(numMeshes), each(numMeshes, 0), least(numMeshes, 0), most(numMeshes, 0);
  std::vector<int64_t> waiting(numMeshes, 0);
  for (auto [index, stage] : llvm::enumerate(plan.stages)) {
    unsigned mesh = plan.meshOf(unsigned(index));
    if (each[mesh] == 0) {
      each[mesh] = double(std::max<int64_t>(1, bytes[index].inFlight));
      left[mesh] = double(problem.memoryOf(stage.submesh));
    }
    double size = double(bytes[index].inFlight) / each[mesh];
    if (numMeshes < plan.stages.size())
      timed.sizes.push_back(size);
    left[mesh] -= double(costs.pointOf(stage.choice.id).steadyPeakBytes(0));
    waiting[mesh] = std::max(waiting[mesh], bytes[index].waiting);
    least[mesh] += std::max(1.0, size);
    // What waits for weight parts may be more than activations are.
    most[mesh] += double(numMicroBatches) * std::max(1.0, size) * (1 + timed.keptParts[index]);
  }
  for (size_t mesh = 0; mesh < numMeshes; ++mesh) {
    // While an input part runs, both of what it reads and makes are there.
    double room = (left[mesh] - double(waiting[mesh])) / each[mesh];
    timed.limits.push_back(std::clamp(room, least[mesh], most[mesh]));
  }
}

std::vector<HandedSum> PlanTimer::handOver(const StagePlan &plan, std::vector<StageTimes> &times,
                                           TimedPlan &timed) const {
  std::vector<HandedSum> sums;
  auto stageOf = [&](unsigned layer) {
    return size_t(llvm::find_if(plan.stages,
                                [&](const PlannedStage &stage) {
                                  return stage.lo <= layer && layer < stage.hi;
                                }) -
                  plan.stages.begin());
  };
  std::set<std::pair<unsigned, unsigned>> known; // Values and the meshes that have them.
  for (const HandedOnce &handed : handedOnce) {
    size_t from = stageOf(handed.from), to = stageOf(handed.to);
    if (plan.meshOf(from) == plan.meshOf(to) ||
        !known.insert({handed.value, plan.meshOf(to)}).second)
      continue;
    double seconds = secondsBetween(timed.devices[from], timed.devices[to], handed.bytes).first;
    timed.onceSeconds += seconds;
    if (handed.isWeight)
      times[to].prepareSeconds += seconds;
    else
      sums.push_back({from, to, seconds});
  }
  return sums;
}

llvm::Expected<TimedPlan> PlanTimer::time(const StagePlan &plan,
                                          const StageDpProblem &problem) const {
  const schedule::ScheduleInfo &schedule = *problem.schedule;
  TimedPlan timed;
  auto devices = place(plan);
  if (!devices)
    return timed;
  timed.devices = std::move(*devices);
  std::vector<StageTimes> times;
  std::vector<FlightBytes> bytes;
  std::vector<int64_t> meshOf;
  for (auto [index, stage] : llvm::enumerate(plan.stages)) {
    meshOf.push_back(plan.meshOf(index));
    const sharding::StagePoint &point = costs.pointOf(stage.choice.id);
    StageTimes &stageTimes = times.emplace_back();
    stageTimes.forwardSeconds = point.times.forwardSeconds;
    stageTimes.backwardSeconds = point.times.backwardSeconds;
    stageTimes.prepareSeconds = point.times.prepareSeconds;
    stageTimes.barrierSeconds = point.times.barrierSeconds;
    stageTimes.updateSeconds = point.times.updateSeconds;
    bytes.push_back({point.activationBytes, 0});
    if (schedule.splitsBackward) {
      llvm::Expected<sharding::BackwardParts> parts = costs.partsOf(stage.choice.id);
      if (!parts)
        return parts.takeError();
      stageTimes.backwardWeightSeconds = parts->weightSeconds;
      bytes.back().waiting = parts->waitingBytes;
      double each = double(std::max<int64_t>(1, point.activationBytes));
      timed.keptParts.push_back(double(parts->waitingBytes) / each);
    }
    if (index + 1 == plan.stages.size())
      continue;
    if (plan.meshOf(index) == plan.meshOf(index + 1)) {
      timed.sends.emplace_back();
      continue;
    }
    llvm::ArrayRef<int64_t> mine = timed.devices[index], next = timed.devices[index + 1];
    std::tie(stageTimes.forthSeconds, stageTimes.forthLatencySeconds) =
        secondsBetween(mine, next, crossings.forwardBytes[stage.hi]);
    std::tie(stageTimes.backSeconds, stageTimes.backLatencySeconds) =
        secondsBetween(next, mine, crossings.backwardBytes[stage.hi]);
    timed.sends.push_back({stageTimes.forthSeconds, stageTimes.backSeconds,
                           stageTimes.forthLatencySeconds, stageTimes.backLatencySeconds});
    timed.transferSeconds += timed.sends.back().sum();
  }
  if (plan.numMeshes > 0) {
    timed.moveSeconds.resize(plan.stages.size());
    for (size_t from = 0; from < plan.stages.size(); ++from)
      for (size_t to = 0; to < plan.stages.size(); ++to) {
        if (from == to || plan.meshOf(from) != plan.meshOf(to))
          continue;
        llvm::Expected<double> seconds = costs.moveSeconds(plan.stages[from], plan.stages[to]);
        if (!seconds)
          return seconds.takeError();
        auto &[forward, backward] = timed.moveSeconds[to];
        (from < to ? forward : backward) += *seconds;
        (from < to ? times[to].forwardSeconds : times[to].backwardSeconds) += *seconds;
      }
  }
  if (schedule.splitsBackward)
    findRoom(plan, problem, bytes, timed);
  std::vector<HandedSum> sums = handOver(plan, times, timed);
  PipelineOrder order = orderPipeline(schedule, times, numMicroBatches, meshOf, timed.limits,
                                      timed.keptParts, timed.sizes, costs.forEach());
  timed.stepSeconds =
      pipelineSeconds(order, times, numMicroBatches, meetSeconds(plan.stages, timed.devices), sums);
  timed.flights = countFlights(order, bytes);
  for (auto [stage, flights] : llvm::zip_equal(plan.stages, timed.flights)) {
    const sharding::StagePoint &point = costs.pointOf(stage.choice.id);
    timed.peakBytes.push_back(std::max({point.steadyPeakBytes(0) + flights.bytes, point.updateBytes,
                                        point.hostPeakBytes(flights.inFlight)}));
  }
  return timed;
}
