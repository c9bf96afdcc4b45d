//===- LazyStageDp.h - the best stages, solving few --------------*- C++ -*-===//
//
// Runs the stage DP on bounds, solves the stages that its plan rests on, and
// repeats until the plan rests on solutions, or one that does cannot be beaten by
// more than `gap`.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_LAZYSTAGEDP_H
#define ALPA_COMPILER_STAGE_SEARCH_LAZYSTAGEDP_H

#include "compiler/Stage/Costs/StageCosts.h"
#include "compiler/Stage/Search/PipelineMethods.h"
#include "compiler/Stage/Search/StageDp.h"
#include "compiler/Stage/Time/PlanTime.h"

#include <limits>

namespace alpa::stage {

/// What may be tried in turn; the best plan of all counts.
struct StageSearchSpace {
  std::vector<StageRule> rules{nullptr};
  /// Families of plans that are looked at as well where their best one by the DP's
  /// formula takes less than the best plan does by its events.
  std::vector<StageRule> evenRules;
  std::vector<const schedule::ScheduleInfo *> schedules;
  /// Schedules with split backward phases, which the plans of the others, and plans of their
  /// own that take little more work, are timed with as well.
  std::vector<const schedule::ScheduleInfo *> reorderings;
  /// For a schedule that takes several stages on a mesh, the only one then: how many.
  unsigned stagesPerMesh = 0;
  /// Where a search begins: the stages of a plan from before, which bound the others; or null.
  StageRule start;
  /// How far, as a part, the stages of the plan may be above their bounds in the end, where
  /// `StageCostOptions::tolerance` is more; 0 where it is not.
  double lastTolerance = 0;
};

struct FoundPlan {
  StagePlan plan;                                   // Without stages if there is none.
  const schedule::ScheduleInfo *schedule = nullptr; // Null if there is none.
  TimedPlan timed;
  /// The schedule that its stages were searched for, which need not be `schedule`.
  const schedule::ScheduleInfo *searched = nullptr;
  /// Of the fastest plan known that uses all devices, where this one does not; infinity if
  /// none is.
  double allDevicesSeconds = std::numeric_limits<double>::infinity();

  /// That the plan takes.
  int64_t numDevices(const StageDpProblem &problem) const;
};

class LazyStageDp {
public:
  /// `problem` says all but rule, schedule and choices.
  LazyStageDp(StageCosts &costs, const PlanTimer &timer, StageDpProblem problem, double gap);

  /// Ends with the first plan where `isOfUse` says that it is none.
  llvm::Expected<FoundPlan> run(const StageSearchSpace &space,
                                llvm::function_ref<bool(const FoundPlan &)> isOfUse = nullptr);
  /// Spends more time on the stages of a plan, up to that tolerance.
  llvm::Error polish(FoundPlan &found, double tolerance);

  /// From now on, as if memory were no matter.
  void ignoreMemory();
  const StageDpProblem &getProblem() const { return problem; }

  double dpSeconds = 0;
  unsigned numRounds = 0; // Runs of the DP on bounds.

private:
  /// Stages that were found, and what they were searched for.
  struct Candidate {
    StagePlan plan;
    const schedule::ScheduleInfo *searched;
  };

  void setObjective(const schedule::ScheduleInfo *schedule, const StageRule &rule);
  StagePlan runDp(std::vector<StagePlan> *others = nullptr);
  /// No plan if all take that many seconds or more. Ends early where more than `mostWork`
  /// (`StageCosts::work`) would be solved.
  llvm::Expected<StagePlan> search(double mostSeconds, size_t mostWork = ~size_t(0));
  std::vector<StageCosts::Request> requestsOf(const StagePlan &plan, bool onlyHopes) const;
  StagePlan solved(StagePlan plan) const;
  llvm::Expected<FoundPlan> fastest(const StagePlan &plan, int64_t &held);
  void addCandidate(const StagePlan &plan);
  /// What using all devices would cost, by few rounds of solves.
  llvm::Error tryOneStage(FoundPlan &best, const StageSearchSpace &space);
  llvm::Error tryAllDevices(FoundPlan &best, const StageSearchSpace &space);
  /// Takes the best of the candidates from that one on, in any order of their runs, if it is
  /// faster.
  llvm::Error reorder(FoundPlan &best, const StageSearchSpace &space, size_t first = 0);
  llvm::Error finish(FoundPlan &best, const StageSearchSpace &space);
  /// Takes plans next to the best one as long as these are faster.
  llvm::Error climb(FoundPlan &best, const StageSearchSpace &space);
  std::vector<StagePlan> neighbours(const FoundPlan &best, const StageSearchSpace &space) const;
  double leastStepSeconds(const StagePlan &plan) const;
  double likelyStepSeconds(const StagePlan &plan) const;
  /// Takes the best plan under a rule if it is faster, and faster than `mostSeconds`.
  llvm::Error beat(FoundPlan &best, const schedule::ScheduleInfo *schedule, const StageRule &rule,
                   double mostSeconds);

  StageCosts &costs;
  const PlanTimer &timer;
  StageDpProblem problem;
  std::vector<StagePlan> seen; // By the last run of the DP.
  std::vector<Candidate> candidates;
  /// The fastest plan with split backward phases that was timed, whether it fits or not.
  FoundPlan split;
  double gap;
  bool isPrepared = false;
};

/// The error that describes the plan that would be fastest if memory were no matter,
/// and which of its stages exceeds which limit. `isRematerialized` says that layers
/// are computed again for their gradients; `whyNone` says why there may be no plan
/// even so.
llvm::Error explainInfeasible(LazyStageDp &search, StageCosts &costs, const StageSearchSpace &space,
                              mlir::func::FuncOp main, bool isRematerialized,
                              llvm::function_ref<llvm::Error()> whyNone);
/// The same where stages share meshes; `found` is the best plan without a limit.
llvm::Error explainVirtualInfeasible(const FoundPlan &found, const StageDpProblem &problem,
                                     const StageSearchSpace &space);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_LAZYSTAGEDP_H
