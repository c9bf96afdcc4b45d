//===- PlanTime.h - seconds of a plan on the hosts ---------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_TIME_PLANTIME_H
#define ALPA_COMPILER_STAGE_TIME_PLANTIME_H

#include "compiler/CostModel/Network.h"
#include "compiler/Stage/Costs/StageCosts.h"
#include "compiler/Stage/Layers/StepLayers.h"
#include "compiler/Stage/Time/PipelineTime.h"

namespace alpa::stage {

/// A plan on the hosts of the cluster.
struct TimedPlan {
  std::vector<std::vector<int64_t>> devices; // Of each stage; empty if they do not fit.
  double stepSeconds = std::numeric_limits<double>::infinity();
  double transferSeconds = 0;     // Of one micro-batch, forth and back.
  double onceSeconds = 0;         // Of weights and sums that stages hand to others once a step.
  std::vector<SendSeconds> sends; // After each stage but the last.
  /// For schedules that look for an order by themselves (ScheduleProblem).
  std::vector<double> limits, keptParts, sizes;
  /// For each stage, in forward and backward runs: what its mesh takes to move what other stages
  /// of it made. Empty with one stage on each mesh.
  std::vector<std::pair<double, double>> moveSeconds;
  std::vector<StageFlights> flights;
  std::vector<int64_t> peakBytes; // Of a device, for each stage.

  /// Whether all stages of a mesh together fit into that of a device.
  bool fits(const StageDpProblem &problem, const StagePlan &plan) const;
};

/// Sends between submeshes, and the steps of plans that are made of solved stages.
class PlanTimer {
public:
  PlanTimer(const cost::Cluster &cluster, const StageDpProblem &problem, const StepLayers &layers,
            StageCosts &costs);

  /// What crosses a cut, between submeshes of which it is not known where they lie.
  SendSeconds send(unsigned cut, unsigned from, unsigned to) const {
    return send(cut, links[from * submeshes.size() + to], links[to * submeshes.size() + from]);
  }
  /// Follows every run and send of a step. Stages are placed such that sends take as
  /// little time as possible. Of the problem the schedule counts, and the memory.
  llvm::Expected<TimedPlan> time(const StagePlan &plan, const StageDpProblem &problem) const;

private:
  SendSeconds send(unsigned cut, const cost::Link &forth, const cost::Link &back) const;
  /// And how many of them are latency.
  std::pair<double, double> secondsBetween(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to,
                                           double bytes) const;
  /// How long updates take to add up a number or two: those of neighbours that meet
  /// send them to the first stage, which sends the sum back. None if no updates meet.
  std::optional<double> meetSeconds(llvm::ArrayRef<PlannedStage> stages,
                                    llvm::ArrayRef<std::vector<int64_t>> devices) const;
  SendSeconds sendAfter(llvm::ArrayRef<PlannedStage> stages, size_t index, cost::Span span) const;
  std::optional<std::vector<std::vector<int64_t>>> place(const StagePlan &plan) const;
  /// Adds to `times` what stages wait for weights of others.
  std::vector<HandedSum> handOver(const StagePlan &plan, std::vector<StageTimes> &times,
                                  TimedPlan &timed) const;
  void findRoom(const StagePlan &plan, const StageDpProblem &problem,
                llvm::ArrayRef<FlightBytes> bytes, TimedPlan &timed) const;

  const cost::Cluster &cluster;
  cost::Network network;
  std::vector<int64_t> hostDevices;
  std::vector<unsigned> hostKinds;
  std::vector<int64_t> hostRacks;
  std::vector<cost::Submesh> submeshes;
  int64_t numMicroBatches;
  const Crossings &crossings;
  llvm::ArrayRef<HandedOnce> handedOnce;
  StageCosts &costs;
  std::vector<cost::Link> links; // From each submesh to each.
};

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_TIME_PLANTIME_H
