//===- LazyStageDp.cpp - the best stages, solving few ---------------------===//

#include "compiler/Stage/Search/LazyStageDp.h"

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Stage/Search/StageInfeasibility.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/Support/FormatVariadic.h"

#include <chrono>

using namespace alpa;
using namespace alpa::stage;
using namespace mlir;

/// How much slower than the best plan by the DP's formula one may be that is timed.
static constexpr double kClose = 1.05;
/// Plans at most that are timed with another schedule; of schedules that look for an order,
/// which takes long, fewer. And how much faster one that splits backward phases has to be:
/// launches and what both parts compute are not foreseen.
static constexpr size_t kMostReordered = 48, kMostSearchedOrders = 8;
static constexpr double kWorthSplitting = 0.01;
/// Layers that are solved for what is not likely to be faster; small models want no more.
static constexpr size_t kLittleWork = 64;

LazyStageDp::LazyStageDp(StageCosts &costs, const PlanTimer &timer, StageDpProblem problem,
                         double gap)
    : costs(costs), timer(timer), problem(std::move(problem)), gap(gap) {
  this->problem.choices = [this](unsigned lo, unsigned hi, unsigned submesh) {
    return this->costs.choices(lo, hi, submesh);
  };
}

StagePlan LazyStageDp::runDp(std::vector<StagePlan> *others) {
  auto begin = std::chrono::steady_clock::now();
  StagePlan plan = solveStageDp(problem, others);
  dpSeconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return plan;
}

std::vector<StageCosts::Request> LazyStageDp::requestsOf(const StagePlan &plan,
                                                         bool onlyHopes) const {
  std::vector<StageCosts::Request> requests;
  for (auto [index, stage] : llvm::enumerate(plan.stages))
    if (!onlyHopes || costs.isHope(stage.choice.id))
      requests.push_back({stage.choice.id, problem.held(plan.stages.size() - index)});
  return requests;
}

/// The same stages as they turned out, if all fit.
StagePlan LazyStageDp::solved(StagePlan plan) const {
  for (auto [index, stage] : llvm::enumerate(plan.stages)) {
    std::optional<StageChoice> known =
        costs.known(stage.choice.id, problem.held(plan.stages.size() - index));
    if (!known)
      return {};
    stage.choice = *known;
  }
  plan.seconds = stagePlanSeconds(problem, plan.stages);
  return plan;
}

llvm::Expected<StagePlan> LazyStageDp::search(double mostSeconds, size_t mostWork) {
  // In a round: enough to keep threads busy, few enough that each tells something. The same
  // for any number of threads, which must not decide what is found.
  constexpr size_t kMostRequests = 8;
  const size_t workBefore = costs.work();
  StagePlan best;
  problem.mostSeconds = mostSeconds;
  auto end =
      llvm::scope_exit([&] { problem.mostSeconds = std::numeric_limits<double>::infinity(); });
  auto offer = [&](StagePlan plan) {
    if (!plan.stages.empty() && plan.seconds < best.seconds)
      best = std::move(plan);
  };
  while (true) {
    costs.refresh(/*onlySolved=*/false);
    std::vector<StagePlan> others;
    StagePlan hoped = runDp(&others);
    ++numRounds;
    if (hoped.stages.empty() && best.stages.empty())
      return StagePlan();
    if (hoped.stages.empty() || best.seconds * (1 - gap) <= hoped.seconds ||
        costs.work() - workBefore >= mostWork)
      break;
    std::vector<StageCosts::Request> missing = requestsOf(hoped, /*onlyHopes=*/true);
    if (missing.empty()) {
      offer(std::move(hoped));
      break;
    }
    // Plans that are nearly as good will be asked for next; together they keep all
    // threads busy.
    llvm::sort(others,
               [](const StagePlan &a, const StagePlan &b) { return a.seconds < b.seconds; });
    for (const StagePlan &plan : others)
      if (plan.seconds * (1 - gap) <= hoped.seconds && missing.size() < kMostRequests)
        llvm::append_range(missing, requestsOf(plan, /*onlyHopes=*/true));
    if (llvm::Error error = costs.solve(missing))
      return std::move(error);
    offer(solved(hoped));
    for (const StagePlan &plan : others)
      offer(solved(plan));
  }
  // What was solved on the way may go together better, by their events if not by the formula; what
  // is in the plan is worth more time.
  problem.mostSeconds = std::numeric_limits<double>::infinity();
  while (true) {
    costs.refresh(/*onlySolved=*/true);
    seen.clear();
    offer(runDp(&seen));
    if (mostWork < ~size_t(0))
      return best;
    llvm::Expected<bool> better = costs.improve(requestsOf(best, /*onlyHopes=*/false));
    if (!better)
      return better.takeError();
    if (!*better)
      return best;
    offer(solved(best));
  }
}

/// For how many micro-batches' activations stages need room that hold other things too.
static int64_t heldBy(const StagePlan &plan, const TimedPlan &timed) {
  int64_t most = 1;
  for (auto [stage, bytes] : llvm::zip_equal(plan.stages, timed.peakBytes)) {
    const StageChoice &choice = stage.choice;
    int64_t others = choice.stateBytes + choice.temporaryBytes;
    int64_t each = std::max<int64_t>(1, choice.activationBytes);
    most = std::max(most, (std::max<int64_t>(0, bytes - others) + each - 1) / each);
  }
  return most;
}

/// The same layers on the same submesh.
static bool isSamePlace(const PlannedStage &a, const PlannedStage &b) {
  return a.lo == b.lo && a.hi == b.hi && a.submesh == b.submesh;
}

static bool areSame(const StagePlan &a, const StagePlan &b) {
  return llvm::equal(a.stages, b.stages, [](const PlannedStage &mine, const PlannedStage &other) {
    return isSamePlace(mine, other) && mine.choice.id == other.choice.id;
  });
}

void LazyStageDp::addCandidate(const StagePlan &plan) {
  if (llvm::none_of(candidates, [&](const Candidate &c) { return areSame(c.plan, plan); }))
    candidates.push_back({plan, problem.schedule});
}

/// Of a plan and those close to it that the DP saw, the one whose step takes the
/// least time. What waits for weight parts is not known to the DP; `held` is set to
/// what may be enough, if that leaves none.
llvm::Expected<FoundPlan> LazyStageDp::fastest(const StagePlan &plan, int64_t &held) {
  FoundPlan best;
  held = std::numeric_limits<int64_t>::max();
  double most = plan.seconds * kClose;
  auto offer = [&](const StagePlan &other) -> llvm::Error {
    llvm::Expected<TimedPlan> timed = timer.time(other, problem);
    if (!timed)
      return timed.takeError();
    if (problem.schedule->splitsBackward && !timed->devices.empty() && !timed->fits(problem, other))
      held = std::min(held, heldBy(other, *timed));
    else if (!best.schedule || timed->stepSeconds < best.timed.stepSeconds)
      best = {other, problem.schedule, std::move(*timed), problem.schedule};
    return llvm::Error::success();
  };
  std::vector<const StagePlan *> close{&plan};
  for (const StagePlan &other : seen)
    if (other.seconds <= most)
      close.push_back(&other);
  for (const StagePlan *other : close) {
    addCandidate(*other);
    if (llvm::Error error = offer(*other))
      return std::move(error);
  }
  return best;
}

/// Every stage runs all micro-batches, the first of which comes through the stages before.
double LazyStageDp::leastStepSeconds(const StagePlan &plan) const {
  double least = 0, before = 0;
  for (const PlannedStage &stage : plan.stages) {
    const auto &times = costs.pointOf(stage.choice.id).times;
    double each = times.forwardSeconds + times.backwardSeconds;
    // The weights of a later stage are prepared while the first micro-batch is on its way.
    double begin = std::max(before, times.prepareSeconds);
    least = std::max(least, begin + each * double(problem.numMicroBatches) + times.updateSeconds);
    before = begin + times.forwardSeconds;
  }
  return least;
}

llvm::Error LazyStageDp::reorder(FoundPlan &best, const StageSearchSpace &space, size_t first) {
  std::vector<std::pair<double, size_t>> ranked;
  for (size_t index = first; index < candidates.size(); ++index)
    ranked.emplace_back(leastStepSeconds(candidates[index].plan), index);
  llvm::sort(ranked);
  if (ranked.size() > kMostReordered)
    ranked.resize(kMostReordered);
  const size_t mostWork = costs.work() + kLittleWork + costs.work() / 16;
  auto offer = [&](const Candidate &candidate, const schedule::ScheduleInfo *schedule,
                   double worth) -> llvm::Error {
    StageDpProblem reordered = problem;
    reordered.schedule = schedule;
    StagePlan plan = candidate.plan;
    // What fits with what this schedule keeps; the DP does not know what a split one does.
    if (!schedule->splitsBackward && candidate.searched != schedule) {
      problem.schedule = schedule;
      plan = solved(std::move(plan));
      if (plan.stages.empty())
        return llvm::Error::success();
    }
    llvm::Expected<TimedPlan> timed = timer.time(plan, reordered);
    if (!timed)
      return timed.takeError();
    if (timed->devices.empty())
      return llvm::Error::success();
    if (schedule->splitsBackward && timed->stepSeconds < split.timed.stepSeconds)
      split = {plan, schedule, *timed, candidate.searched};
    if (timed->stepSeconds >= best.timed.stepSeconds * (1 - worth))
      return llvm::Error::success();
    if (schedule->splitsBackward && !timed->fits(reordered, plan) && costs.work() < mostWork) {
      // With ways to run the stages that leave more room.
      problem.schedule = schedule;
      problem.leastHeld = heldBy(plan, *timed);
      std::vector<StageCosts::Request> requests = requestsOf(plan, /*onlyHopes=*/false);
      if (llvm::Error error = costs.solve(requests))
        return error;
      if (llvm::Expected<bool> better = costs.improve(requests); !better)
        return better.takeError();
      plan = solved(std::move(plan));
      problem.leastHeld = 1;
      if (plan.stages.empty())
        return llvm::Error::success();
      timed = timer.time(plan, reordered);
      if (!timed)
        return timed.takeError();
    }
    if (timed->stepSeconds < best.timed.stepSeconds * (1 - worth) && timed->fits(reordered, plan))
      best = {std::move(plan), schedule, std::move(*timed), candidate.searched};
    return llvm::Error::success();
  };
  for (auto [least, index] : ranked)
    for (const schedule::ScheduleInfo *schedule : space.schedules)
      if (least < best.timed.stepSeconds && !schedule->splitsBackward)
        if (llvm::Error error = offer(candidates[index], schedule, 0))
          return error;
  if (ranked.size() > kMostSearchedOrders)
    ranked.resize(kMostSearchedOrders);
  std::vector<const schedule::ScheduleInfo *> orders = space.reorderings;
  llvm::copy_if(space.schedules, std::back_inserter(orders),
                [](const auto *schedule) { return schedule->splitsBackward; });
  // Among themselves the faster one counts.
  bool isSplit = best.schedule->splitsBackward;
  for (auto [least, index] : ranked)
    for (const schedule::ScheduleInfo *schedule : orders) {
      double worth = isSplit ? 0 : kWorthSplitting;
      if (least >= best.timed.stepSeconds * (1 - worth) || candidates[index].plan.stages.size() < 2)
        continue;
      if (llvm::Error error = offer(candidates[index], schedule, worth))
        return error;
      isSplit = best.schedule->splitsBackward;
    }
  return llvm::Error::success();
}

//===----------------------------------------------------------------------===//
// Plans next to the best one
//===----------------------------------------------------------------------===//

/// What a step may take, by bounds: a third of a stage's seconds are forward runs.
double LazyStageDp::likelyStepSeconds(const StagePlan &plan) const {
  double most = 0, before = 0;
  for (auto [index, stage] : llvm::enumerate(plan.stages)) {
    most = std::max(most, before + stage.choice.seconds * double(problem.numMicroBatches));
    before += stage.choice.seconds / 3;
    if (index + 1 < plan.stages.size() && problem.transferSeconds)
      before +=
          problem.transferSeconds(stage.hi, stage.submesh, plan.stages[index + 1].submesh).forth;
  }
  return most;
}

/// Stages that may become others at once.
static constexpr unsigned kMostAtOnce = 3;

/// Where stages begin, and their end.
using Cut = llvm::SmallVector<unsigned, kMostAtOnce + 1>;

/// Ways to cut layers [lo, hi) into so many stages; of many layers about even ones alone.
static std::vector<Cut> cutsOf(unsigned lo, unsigned hi, unsigned count) {
  constexpr unsigned kMany = 8;
  std::vector<Cut> cuts{{lo}};
  for (unsigned part = 1; part < count; ++part) {
    std::vector<Cut> longer;
    for (const Cut &cut : cuts) {
      unsigned first = cut.back() + 1, last = hi - (count - part);
      if (hi - lo > kMany)
        first = last = lo + (hi - lo) * part / count;
      for (unsigned begin = first; begin <= last; ++begin) {
        longer.push_back(cut);
        longer.back().push_back(begin);
      }
    }
    cuts = std::move(longer);
  }
  for (Cut &cut : cuts)
    cut.push_back(hi);
  return cuts;
}

/// Plans in which two neighbours share their layers otherwise, and may change places, or one to
/// three stages become as many on equal submeshes.
std::vector<StagePlan> LazyStageDp::neighbours(const FoundPlan &best,
                                               const StageSearchSpace &space) const {
  std::vector<StagePlan> list;
  llvm::ArrayRef<PlannedStage> stages = best.plan.stages;
  int64_t used = 0;
  for (const PlannedStage &stage : stages)
    used += problem.submeshes[stage.submesh].numDevices();
  auto isAllowed = [&](const StagePlan &plan) {
    if (!llvm::all_of(plan.stages, [&](const PlannedStage &stage) {
          return problem.mayBeStage(stage.lo, stage.hi, stage.submesh);
        }))
      return false;
    return llvm::any_of(space.rules, [&](const StageRule &rule) {
      return !rule || llvm::all_of(plan.stages, [&](const PlannedStage &stage) {
        return rule(stage.lo, stage.hi, stage.submesh);
      });
    });
  };
  // Stages [first, last) become others.
  auto offer = [&](size_t first, size_t last, llvm::ArrayRef<PlannedStage> others) {
    int64_t devices = used;
    for (const PlannedStage &stage : stages.slice(first, last - first))
      devices -= problem.submeshes[stage.submesh].numDevices();
    for (const PlannedStage &stage : others)
      devices += problem.submeshes[stage.submesh].numDevices();
    if (devices > problem.numUsable() || (problem.usesAllDevices && devices < problem.numUsable()))
      return;
    if (llvm::equal(stages.slice(first, last - first), others, isSamePlace))
      return;
    StagePlan plan;
    llvm::append_range(plan.stages, stages.take_front(first));
    llvm::append_range(plan.stages, others);
    llvm::append_range(plan.stages, stages.drop_front(last));
    if (plan.stages.size() > problem.mostStages || !isAllowed(plan))
      return;
    for (auto [index, stage] : llvm::enumerate(plan.stages)) {
      int64_t held = problem.held(plan.stages.size() - index);
      StageChoice fastest;
      fastest.seconds = std::numeric_limits<double>::infinity();
      for (const StageChoice &choice : costs.choices(stage.lo, stage.hi, stage.submesh))
        if (choice.seconds < fastest.seconds &&
            choice.peakBytes(held) <= problem.memoryOf(stage.submesh))
          fastest = choice;
      if (!std::isfinite(fastest.seconds))
        return;
      stage.choice = fastest;
    }
    plan.seconds = likelyStepSeconds(plan);
    list.push_back(std::move(plan));
  };
  for (size_t i = 0; i < stages.size(); ++i) {
    const PlannedStage &stage = stages[i];
    if (i + 1 < stages.size()) {
      const PlannedStage &next = stages[i + 1];
      for (unsigned cut = stage.lo + 1; cut < next.hi; ++cut) {
        if (cut != stage.hi)
          offer(i, i + 2, {{stage.lo, cut, stage.submesh, {}}, {cut, next.hi, next.submesh, {}}});
        if (stage.submesh != next.submesh)
          offer(i, i + 2, {{stage.lo, cut, next.submesh, {}}, {cut, next.hi, stage.submesh, {}}});
      }
    }
    // So many stages become others on equal submeshes.
    for (size_t last = i + 1; last <= std::min(i + kMostAtOnce, stages.size()); ++last) {
      unsigned lo = stage.lo, hi = stages[last - 1].hi;
      for (unsigned count = 1; count <= std::min(kMostAtOnce, hi - lo); ++count)
        for (const Cut &cut : cutsOf(lo, hi, count))
          for (unsigned m = 0; m < problem.submeshes.size(); ++m) {
            llvm::SmallVector<PlannedStage, kMostAtOnce> others;
            for (unsigned part = 0; part < count; ++part)
              others.push_back({cut[part], cut[part + 1], m, {}});
            offer(i, last, others);
          }
    }
  }
  llvm::sort(list, [](const StagePlan &a, const StagePlan &b) { return a.seconds < b.seconds; });
  return list;
}

llvm::Error LazyStageDp::climb(FoundPlan &best, const StageSearchSpace &space) {
  constexpr size_t kMostNeighbours = 8;
  const size_t mostWork = costs.work() + std::max(kLittleWork, costs.work() / 16);
  for (double before = std::numeric_limits<double>::infinity();
       best.timed.stepSeconds < before && costs.work() < mostWork;) {
    before = best.timed.stepSeconds;
    setObjective(best.searched, nullptr);
    costs.refresh(/*onlySolved=*/false);
    std::vector<StagePlan> list;
    for (StagePlan &plan : neighbours(best, space))
      if (list.size() < kMostNeighbours &&
          llvm::none_of(list, [&](const StagePlan &other) { return areSame(plan, other); }))
        list.push_back(std::move(plan));
    // From the most promising one on, as many as the work is allowed for.
    std::vector<StageCosts::Request> missing;
    size_t work = costs.work();
    llvm::erase_if(list, [&](const StagePlan &plan) {
      std::vector<StageCosts::Request> requests = requestsOf(plan, /*onlyHopes=*/true);
      if (plan.seconds >= best.timed.stepSeconds || (work >= mostWork && !requests.empty()))
        return true;
      for (const StageCosts::Request &request : requests) {
        bool isNew = llvm::none_of(
            missing, [&](const StageCosts::Request &other) { return other.id == request.id; });
        work += isNew ? costs.numLayersOf(request.id) : 0;
        missing.push_back(request);
      }
      return false;
    });
    // What is asked for first may only sharpen bounds.
    for (int tries = 0; tries < 3; ++tries)
      if (llvm::Error error = costs.solve(missing))
        return error;
    size_t first = candidates.size();
    for (const StagePlan &plan : list)
      if (StagePlan known = solved(plan); !known.stages.empty())
        addCandidate(known);
    if (llvm::Error error = reorder(best, space, first))
      return error;
  }
  return llvm::Error::success();
}

void LazyStageDp::ignoreMemory() {
  problem.memoryBytes.clear();
  costs.ignoreMemory();
}

/// What the DP is asked for next.
void LazyStageDp::setObjective(const schedule::ScheduleInfo *schedule, const StageRule &rule) {
  problem.schedule = schedule;
  problem.allows = rule;
  problem.weightPart = nullptr;
  problem.leastHeld = 1;
  if (schedule->splitsBackward)
    problem.weightPart = [this](unsigned lo, unsigned hi, unsigned submesh) {
      return costs.weightPart(lo, hi, submesh);
    };
}

llvm::Error LazyStageDp::beat(FoundPlan &best, const schedule::ScheduleInfo *schedule,
                              const StageRule &rule, double mostSeconds) {
  // Where there is a plan already, another one is worth less.
  const int mostTries = !best.schedule ? 4 : rule ? 1 : 2;
  setObjective(schedule, rule);
  for (int tries = 0; tries < mostTries; ++tries) {
    llvm::Expected<StagePlan> plan = search(mostSeconds);
    if (!plan)
      return plan.takeError();
    if (plan->stages.empty())
      break;
    int64_t held = 0;
    llvm::Expected<FoundPlan> found = fastest(*plan, held);
    if (!found)
      return found.takeError();
    if (found->schedule) {
      if (!best.schedule || found->timed.stepSeconds < best.timed.stepSeconds)
        best = std::move(*found);
      break;
    }
    problem.leastHeld = std::max(problem.leastHeld + 1, held);
  }
  return llvm::Error::success();
}

int64_t FoundPlan::numDevices(const StageDpProblem &problem) const {
  int64_t sum = 0;
  for (auto [index, stage] : llvm::enumerate(plan.stages))
    if (plan.numMeshes == 0 || index < plan.numMeshes)
      sum += problem.submeshes[stage.submesh].numDevices();
  return sum;
}

/// What stages hand to each other once a step is in no formula of the DP; any pipeline pays for it.
llvm::Error LazyStageDp::tryOneStage(FoundPlan &best, const StageSearchSpace &space) {
  constexpr double kMuch = 0.02;
  if (best.plan.stages.size() < 2 || best.timed.onceSeconds < kMuch * best.timed.stepSeconds)
    return llvm::Error::success();
  for (const StageRule &rule : space.rules) {
    StageRule whole = [&, last = costs.numLayers()](unsigned lo, unsigned hi, unsigned submesh) {
      return lo == 0 && hi == last && (!rule || rule(lo, hi, submesh));
    };
    FoundPlan found;
    if (llvm::Error error =
            beat(found, space.schedules.front(), whole, std::numeric_limits<double>::infinity()))
      return error;
    if (found.schedule && found.timed.stepSeconds < best.timed.stepSeconds)
      best = std::move(found);
  }
  return llvm::Error::success();
}

llvm::Error LazyStageDp::tryAllDevices(FoundPlan &best, const StageSearchSpace &space) {
  if (best.numDevices(problem) == problem.numDevices())
    return llvm::Error::success();
  problem.usesAllDevices = true;
  auto end = llvm::scope_exit([&] { problem.usesAllDevices = false; });
  // The first of these may only sharpen bounds.
  constexpr unsigned kMostRounds = 8;
  for (unsigned round = 0; round < kMostRounds; ++round) {
    costs.refresh(/*onlySolved=*/false);
    StagePlan hoped = runDp();
    if (hoped.stages.empty())
      return llvm::Error::success();
    if (llvm::Error error = costs.solve(requestsOf(hoped, /*onlyHopes=*/true)))
      return error;
    if (!solved(hoped).stages.empty())
      break;
  }
  costs.refresh(/*onlySolved=*/true);
  seen.clear();
  StagePlan plan = runDp(&seen);
  if (plan.stages.empty())
    return llvm::Error::success();
  int64_t held = 0;
  size_t first = candidates.size();
  llvm::Expected<FoundPlan> found = fastest(plan, held);
  if (!found)
    return found.takeError();
  if (!found->schedule || found->timed.devices.empty())
    return llvm::Error::success();
  if (llvm::Error error = reorder(*found, space, first))
    return error;
  if (llvm::Error error = climb(*found, space))
    return error;
  if (found->timed.stepSeconds <= best.timed.stepSeconds)
    best = std::move(*found);
  else
    best.allDevicesSeconds = found->timed.stepSeconds;
  return llvm::Error::success();
}

llvm::Expected<FoundPlan> LazyStageDp::run(const StageSearchSpace &space,
                                           llvm::function_ref<bool(const FoundPlan &)> isOfUse) {
  FoundPlan best;
  candidates.clear();
  if (!isPrepared)
    if (llvm::Error error = costs.prepare())
      return std::move(error);
  isPrepared = true;
  if (llvm::any_of(space.schedules, [](const auto *info) { return info->splitsBackward; }))
    if (llvm::Error error = costs.askAll())
      return std::move(error);
  FoundPlan own;
  for (const schedule::ScheduleInfo *schedule : space.schedules)
    if (space.start)
      if (llvm::Error error = beat(own, schedule, space.start, own.plan.seconds * (1 - gap)))
        return std::move(error);
  best = own;
  // By the DP's formula, which is about as far off for all schedules.
  for (const schedule::ScheduleInfo *schedule : space.schedules)
    for (const StageRule &rule : space.rules) {
      if (llvm::Error error = beat(best, schedule, rule, best.plan.seconds * (1 - gap)))
        return std::move(error);
      if (best.schedule && isOfUse && !isOfUse(best))
        return best;
    }
  // It takes updates for a part of every micro-batch, so that it overlooks long ones
  // beside the slowest stage. Even stages have no such.
  if (!best.plan.stages.empty())
    for (const schedule::ScheduleInfo *schedule : space.schedules)
      for (const StageRule &rule : space.evenRules)
        if (llvm::Error error = beat(best, schedule, rule, best.timed.stepSeconds * (1 - gap / 2)))
          return std::move(error);
  if (best.schedule)
    if (llvm::Error error = finish(best, space))
      return std::move(error);
  if (space.lastTolerance > 0)
    for (FoundPlan *found : {&best, &own})
      if (found->schedule)
        if (llvm::Error error = polish(*found, space.lastTolerance))
          return std::move(error);
  if (own.schedule && own.timed.stepSeconds < best.timed.stepSeconds)
    best = std::move(own);
  return best;
}

llvm::Error LazyStageDp::polish(FoundPlan &found, double tolerance) {
  const double before = costs.tolerance();
  costs.setTolerance(tolerance);
  setObjective(found.searched, nullptr);
  problem.schedule = found.schedule;
  if (found.schedule->splitsBackward)
    problem.leastHeld = heldBy(found.plan, found.timed);
  auto end = llvm::scope_exit([&] {
    costs.setTolerance(before); // That the store has them by.
    problem.leastHeld = 1;
  });
  while (true) {
    llvm::Expected<bool> better = costs.improve(requestsOf(found.plan, /*onlyHopes=*/false));
    if (!better)
      return better.takeError();
    StagePlan plan = *better ? solved(found.plan) : StagePlan();
    if (plan.stages.empty())
      return llvm::Error::success();
    llvm::Expected<TimedPlan> timed = timer.time(plan, problem);
    if (!timed)
      return timed.takeError();
    if (timed->devices.empty() || !timed->fits(problem, plan) ||
        timed->stepSeconds >= found.timed.stepSeconds)
      return llvm::Error::success();
    found.plan = std::move(plan);
    found.timed = std::move(*timed);
  }
}

/// What the DP, which counts every schedule by itself and by a formula, does not see.
llvm::Error LazyStageDp::finish(FoundPlan &best, const StageSearchSpace &space) {
  if (!space.reorderings.empty() && !problem.manual)
    for (const StageRule &rule : space.rules) {
      setObjective(space.reorderings.front(), rule);
      llvm::Expected<StagePlan> plan =
          search(best.timed.stepSeconds * kClose, kLittleWork + costs.work() / 16);
      if (!plan)
        return plan.takeError();
      if (plan->stages.empty())
        continue;
      addCandidate(*plan);
      for (const StagePlan &other : seen)
        if (other.seconds <= plan->seconds * kClose)
          addCandidate(other);
    }
  split = FoundPlan();
  if (llvm::Error error = reorder(best, space))
    return error;
  if (!problem.manual) {
    if (llvm::Error error = climb(best, space))
      return error;
    // The DP's formula is furthest off for orders of split phases: which of two neighbours is
    // the slower one may say more than how slow it is.
    if (!best.schedule->splitsBackward &&
        split.timed.stepSeconds < best.timed.stepSeconds * kClose) {
      FoundPlan other = std::move(split);
      if (llvm::Error error = climb(other, space))
        return error;
      problem.schedule = other.schedule;
      if (other.timed.stepSeconds < best.timed.stepSeconds * (1 - kWorthSplitting) &&
          other.timed.fits(problem, other.plan))
        best = std::move(other);
    }
  }
  if (!problem.manual)
    if (llvm::Error error = tryOneStage(best, space))
      return error;
  if (!problem.manual && !problem.usesAllDevices && problem.numReserved() == 0) {
    setObjective(best.searched, space.rules.back());
    return tryAllDevices(best, space);
  }
  return llvm::Error::success();
}

//===----------------------------------------------------------------------===//
// Why no plan fits into memory
//===----------------------------------------------------------------------===//

static std::string formatBytes(double bytes) {
  static constexpr const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  unsigned unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit)
    bytes /= 1024;
  return llvm::formatv(unit == 0 ? "{0:F0} {1}" : "{0:F2} {1}", bytes, units[unit]).str();
}

llvm::Error stage::explainInfeasible(LazyStageDp &search, StageCosts &costs,
                                     const StageSearchSpace &space, func::FuncOp main,
                                     bool isRematerialized,
                                     llvm::function_ref<llvm::Error()> whyNone) {
  std::vector<int64_t> available = search.getProblem().memoryBytes;
  search.ignoreMemory();
  llvm::Expected<FoundPlan> found = search.run(space);
  if (!found)
    return found.takeError();
  const StagePlan *plan = &found->plan;
  const StageDpProblem &problem = search.getProblem();
  if (plan->stages.empty())
    return whyNone();
  const PlannedStage *worst = nullptr;
  int64_t needed = -1, inFlight = 1;
  unsigned number = 0;
  for (auto [index, stage] : llvm::enumerate(plan->stages)) {
    bool isTimed = !found->timed.peakBytes.empty();
    int64_t flying = isTimed ? found->timed.flights[index].inFlight
                             : problem.inFlight(plan->stages.size() - index);
    int64_t bytes = isTimed ? found->timed.peakBytes[index] : stage.choice.peakBytes(flying);
    if (bytes > needed) {
      needed = bytes;
      worst = &stage;
      inFlight = flying;
      number = index;
    }
  }
  // Among the stages that were solved; what is only hoped for would fit.
  costs.refresh(/*onlySolved=*/true);
  StageDpProblem limited = problem;
  limited.memoryBytes = available;
  StageInfeasibility infeasibility = findStageInfeasibility(limited);
  std::string closest;
  if (infeasibility.layer)
    closest = llvm::formatv("; layer {0} alone needs {1:F2} times the memory, on any submesh that "
                            "was tried",
                            *infeasibility.layer, infeasibility.layerFactor);
  else if (!infeasibility.plan.stages.empty() && infeasibility.factor > 1)
    closest =
        llvm::formatv("; the plan that is closest, of {0} stages, needs {1:F2} times the "
                      "memory for stage {2}",
                      infeasibility.plan.stages.size(), infeasibility.factor, infeasibility.stage);
  const StageChoice &choice = worst->choice;
  std::vector<std::pair<int64_t, std::string>> largest;
  llvm::Expected<std::shared_ptr<sharding::IntraOpResult>> result = costs.result(*worst, inFlight);
  if (!result)
    return result.takeError();
  for (auto &[value, spec] : (*result)->specs) {
    auto arg = dyn_cast<BlockArgument>(value);
    if (!arg)
      continue;
    auto name = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::name);
    largest.push_back({int64_t(analysis::getTensorBytes(arg.getType())) /
                           spec.numPieces(costs.meshOf(choice.id).shape),
                       name ? name.str() : "argument " + std::to_string(arg.getArgNumber())});
  }
  llvm::sort(largest, std::greater<>());
  std::string names;
  for (auto &[bytes, name] : llvm::ArrayRef(largest).take_front(3))
    names += (names.empty() ? "" : ", ") + name + " (" + formatBytes(bytes) + ")";
  std::string host;
  if (int64_t bytes = (*result)->hostBytes)
    host = "; " + formatBytes(bytes) + " more lie in its host's memory" +
           ((*result)->hostExcessBytes > 0
                ? ", of which a device has too little: that is counted as memory of the device"
                : "");
  return makeError(ErrorCode::Infeasible,
                   llvm::Twine("no plan fits into memory: ") +
                       (isRematerialized ? "with layers computed again " : "") +
                       "the fastest one needs " + formatBytes(needed) + " on a device of stage " +
                       llvm::Twine(number) + " of " + llvm::Twine(plan->stages.size()) + ", " +
                       formatBytes(available[worst->submesh]) + " are available; it holds " +
                       formatBytes(choice.stateBytes) + " of state and gradients, " +
                       formatBytes(choice.activationBytes) + " of activations for each of " +
                       llvm::Twine(inFlight) + " micro-batches and " +
                       formatBytes(choice.temporaryBytes) + " of temporaries" + host +
                       (names.empty() ? "" : "; the largest arguments are " + names) + closest,
                   isRematerialized ? "use more devices or more and smaller micro-batches"
                                    : "use more devices, more and smaller micro-batches, or "
                                      "rematerialization (jax.checkpoint)");
}

llvm::Error stage::explainVirtualInfeasible(const FoundPlan &found, const StageDpProblem &problem,
                                            const StageSearchSpace &space) {
  std::string name = space.schedules.front()->name.str();
  if (found.plan.stages.empty())
    return makeError(ErrorCode::Method,
                     "no plan exists: the layers cannot be cut into " +
                         llvm::Twine(space.stagesPerMesh) +
                         " stages on each of several equal meshes, as schedule '" + name +
                         "' needs; use fewer virtual-stages or another schedule");
  std::vector<int64_t> needed;
  for (auto [index, bytes] : llvm::enumerate(found.timed.peakBytes)) {
    unsigned mesh = found.plan.meshOf(unsigned(index));
    needed.resize(std::max<size_t>(needed.size(), mesh + 1));
    needed[mesh] += bytes;
  }
  auto worst = llvm::max_element(needed);
  size_t mesh = worst - needed.begin();
  int64_t available = problem.memoryOf(found.plan.stages[mesh].submesh);
  return makeError(ErrorCode::Infeasible,
                   "no plan fits into memory: with schedule '" + name + "' the fastest one needs " +
                       formatBytes(double(*worst)) + " on a device of mesh " + llvm::Twine(mesh) +
                       " of " + llvm::Twine(needed.size()) + " for its " +
                       llvm::Twine(space.stagesPerMesh) + " stages, " +
                       formatBytes(double(available)) +
                       " are available; use fewer virtual-stages, another schedule, more devices, "
                       "more and smaller "
                       "micro-batches, or rematerialization (jax.checkpoint)");
}
