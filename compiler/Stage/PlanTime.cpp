//===- PlanTime.cpp - seconds of a plan on the hosts ----------------------===//

#include "compiler/Stage/PlanTime.h"

#include "compiler/CostModel/CostModel.h"
#include "compiler/CostModel/TransferPath.h"
#include "compiler/Stage/PipelineTime.h"
#include "compiler/Stage/Placement.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

PlanTimer::PlanTimer(const Cluster &cluster, const StageDpProblem &problem,
                     const Crossings &crossings,
                     std::function<const IntraOpResult *(unsigned id)> result)
    : cluster(cluster), hostDevices(problem.hostDevices), hostKinds(problem.hostKinds),
      submeshes(problem.submeshes), numMicroBatches(problem.numMicroBatches), crossings(crossings),
      result(std::move(result)) {
  for (const Submesh &from : submeshes)
    for (const Submesh &to : submeshes)
      links.push_back(transferLink(cluster, from, to));
}

SendSeconds PlanTimer::send(unsigned cut, const Link &forth, const Link &back) const {
  return {forth.secondsFor(crossings.forwardBytes[cut]),
          back.secondsFor(crossings.backwardBytes[cut])};
}

SendSeconds PlanTimer::sendAfter(llvm::ArrayRef<PlannedStage> stages, size_t index,
                                 bool sharesHost) const {
  const Submesh &from = submeshes[stages[index].submesh],
                &to = submeshes[stages[index + 1].submesh];
  return send(stages[index].hi, transferLink(cluster, from, to, sharesHost),
              transferLink(cluster, to, from, sharesHost));
}

std::pair<double, double> PlanTimer::secondsBetween(llvm::ArrayRef<int64_t> from,
                                                    llvm::ArrayRef<int64_t> to,
                                                    double bytes) const {
  llvm::Expected<TransferPath> path = transferPath(cluster, from, to);
  if (path)
    return {path->seconds(bytes), bytes > 0 ? path->latencySeconds : 0};
  llvm::consumeError(path.takeError()); // Placed devices are those of the cluster.
  return {std::numeric_limits<double>::infinity(), 0};
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

TimedPlan PlanTimer::time(const StagePlan &plan, const ScheduleInfo &schedule) const {
  std::vector<Submesh> chosen;
  for (const PlannedStage &stage : plan.stages)
    chosen.push_back(submeshes[stage.submesh]);
  std::vector<double> savings(plan.stages.size(), 0);
  for (size_t i = 0; i + 1 < plan.stages.size(); ++i)
    if (chosen[i].hosts == 1 && chosen[i + 1].hosts == 1)
      savings[i] = std::max(0.0, sendAfter(plan.stages, i, false).sum() -
                                     sendAfter(plan.stages, i, true).sum());
  TimedPlan timed;
  auto devices = placeSubmeshes(hostDevices, chosen, hostKinds, savings);
  if (!devices)
    return timed;
  timed.devices = std::move(*devices);
  std::vector<StageTimes> times;
  for (auto [index, stage] : llvm::enumerate(plan.stages)) {
    const IntraOpResult *solved = result(stage.choice.id);
    StageTimes &stageTimes = times.emplace_back(
        StageTimes{solved->forwardSeconds, solved->backwardSeconds, solved->updateSeconds, 0, 0});
    if (index + 1 == plan.stages.size())
      continue;
    llvm::ArrayRef<int64_t> mine = timed.devices[index], next = timed.devices[index + 1];
    std::tie(stageTimes.forthSeconds, stageTimes.forthLatencySeconds) =
        secondsBetween(mine, next, crossings.forwardBytes[stage.hi]);
    std::tie(stageTimes.backSeconds, stageTimes.backLatencySeconds) =
        secondsBetween(next, mine, crossings.backwardBytes[stage.hi]);
    timed.transferSeconds += stageTimes.forthSeconds + stageTimes.backSeconds;
  }
  std::optional<double> meetSeconds = this->meetSeconds(plan.stages, timed.devices);
  timed.stepSeconds = pipelineSeconds(schedule, times, numMicroBatches, meetSeconds);
  return timed;
}
