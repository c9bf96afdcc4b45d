//===- PlanTime.h - seconds of a plan on the hosts ---------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_PLANTIME_H
#define ALPA_COMPILER_STAGE_PLANTIME_H

#include "compiler/Sharding/IntraOp.h"
#include "compiler/Stage/StageDp.h"
#include "compiler/Stage/StepLayers.h"

namespace alpa {

/// A plan on the hosts of the cluster.
struct TimedPlan {
  std::vector<std::vector<int64_t>> devices; // Of each stage; empty if they do not fit.
  double stepSeconds = std::numeric_limits<double>::infinity();
  double transferSeconds = 0; // Of one micro-batch, forth and back.
};

/// Sends between submeshes, and the steps of plans that are made of solved stages.
class PlanTimer {
public:
  /// `result` gives the solution behind a choice.
  PlanTimer(const Cluster &cluster, const StageDpProblem &problem, const Crossings &crossings,
            std::function<const IntraOpResult *(unsigned id)> result);

  /// What crosses a cut, between submeshes of which it is not known where they lie.
  SendSeconds send(unsigned cut, unsigned from, unsigned to) const {
    return send(cut, links[from * submeshes.size() + to], links[to * submeshes.size() + from]);
  }
  /// Follows every run and send of a step. Stages are placed such that sends take as
  /// little time as possible.
  TimedPlan time(const StagePlan &plan, const ScheduleInfo &schedule) const;

private:
  SendSeconds send(unsigned cut, const Link &forth, const Link &back) const;
  /// And how many of them are latency.
  std::pair<double, double> secondsBetween(llvm::ArrayRef<int64_t> from, llvm::ArrayRef<int64_t> to,
                                           double bytes) const;
  /// How long updates take to add up a number or two: those of neighbours that meet
  /// send them to the first stage, which sends the sum back. None if no updates meet.
  std::optional<double> meetSeconds(llvm::ArrayRef<PlannedStage> stages,
                                    llvm::ArrayRef<std::vector<int64_t>> devices) const;
  SendSeconds sendAfter(llvm::ArrayRef<PlannedStage> stages, size_t index, bool sharesHost) const;

  const Cluster &cluster;
  std::vector<int64_t> hostDevices;
  std::vector<unsigned> hostKinds;
  std::vector<Submesh> submeshes;
  int64_t numMicroBatches;
  const Crossings &crossings;
  std::function<const IntraOpResult *(unsigned id)> result;
  std::vector<Link> links; // From each submesh to each.
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_PLANTIME_H
