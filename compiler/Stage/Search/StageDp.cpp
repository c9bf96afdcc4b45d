//===- StageDp.cpp - layers onto submeshes --------------------------------===//

#include "compiler/Stage/Search/StageDp.h"

#include "compiler/Stage/Search/PeriodSearch.h"
#include "compiler/Stage/Time/Placement.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::stage;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Periods this close count as one; far more than rounding, far less than matters.
static constexpr double kSamePeriod = 1e-12;

namespace {

/// Searches the periods. Of the plans of at most a period the one of least sum s
/// is known after one search; a plan of a longer period than (best - s) / (B - 1)
/// is no better than the best, so that the next search is below both this and the
/// period of the plan that was found.
class PeriodSweep {
public:
  PeriodSweep(const StageDpProblem &problem, std::vector<StagePlan> *others)
      : problem(problem), others(others), table(problem), search(table),
        gaps(double(problem.numMicroBatches - 1)) {}

  StagePlan run() {
    double least = search.leastPeriod();
    if (least == kInfinity)
      return {};
    if (gaps == 0) { // The period is of no matter to a single micro-batch.
      look(kInfinity, problem.mostSeconds);
      return std::move(best); // Its seconds are its sum.
    }
    double mostSum = problem.mostSeconds - gaps * least;
    if (search.leastSum() >= mostSum)
      return {};
    // A good plan first: near the least period, where many micro-batches want it.
    for (double part : {0.01, 0.05, 0.2, 1.0, 4.0})
      if (least > 0 && best.stages.empty())
        look(least * (1 + part), mostSum);
    if (best.stages.empty() && look(kInfinity, mostSum) == kInfinity)
      return {};
    double period = (target() - search.leastSum()) / gaps;
    while (period >= least) {
      double sum = look(period, target() - gaps * least);
      if (sum == kInfinity)
        break;
      period = std::min(
          {period * (1 - kSamePeriod), found * (1 - kSamePeriod), (target() - sum) / gaps});
    }
    return best.seconds < problem.mostSeconds ? std::move(best) : StagePlan();
  }

private:
  /// What a plan has to be below to be looked for.
  double target() const {
    if (best.stages.empty())
      return problem.mostSeconds;
    double nearly = std::max(gaps * problem.epsilonSeconds, problem.epsilonPart * best.seconds);
    return std::min(best.seconds - nearly, problem.mostSeconds);
  }

  /// The sum of the plan that was found, or infinity.
  double look(double period, double limit) {
    StagePlan plan;
    plan.stages = search.solve(period, limit);
    if (plan.stages.empty())
      return kInfinity;
    found = stagePlanPeriod(problem, plan.stages);
    plan.seconds = stagePlanSeconds(problem, plan.stages);
    double sum = plan.seconds - gaps * found;
    if (others)
      others->push_back(plan);
    if (plan.seconds < best.seconds)
      best = std::move(plan);
    return sum;
  }

  const StageDpProblem &problem;
  std::vector<StagePlan> *others;
  StageTable table;
  PeriodSearch search;
  double gaps;
  double found = 0; // Period of the last plan.
  StagePlan best;
};

} // namespace

/// Gives stages larger submeshes of what is idle, where that is no slower.
static void useIdleDevices(const StageDpProblem &problem, StagePlan &plan) {
  auto devices = [&] {
    int64_t used = 0;
    for (const PlannedStage &stage : plan.stages)
      used += problem.submeshes[stage.submesh].numDevices();
    return used;
  };
  int64_t idle = problem.numUsable() - devices();
  std::vector<unsigned> largest(problem.submeshes.size());
  for (unsigned m = 0; m < largest.size(); ++m)
    largest[m] = m;
  llvm::sort(largest, [&](unsigned a, unsigned b) {
    return std::make_pair(-problem.submeshes[a].numDevices(), a) <
           std::make_pair(-problem.submeshes[b].numDevices(), b);
  });
  for (PlannedStage &stage : plan.stages)
    for (unsigned m : largest) {
      int64_t more =
          problem.submeshes[m].numDevices() - problem.submeshes[stage.submesh].numDevices();
      if (idle == 0 || more <= 0)
        break;
      if (more > idle || !problem.mayBeStage(stage.lo, stage.hi, m))
        continue;
      PlannedStage before = stage;
      bool changed = false;
      for (const StageChoice &choice : problem.choices(stage.lo, stage.hi, m)) {
        stage = {before.lo, before.hi, m, choice};
        if (choice.seconds <= before.choice.seconds && stagePlanFits(problem, plan.stages) &&
            stagePlanSeconds(problem, plan.stages) <= plan.seconds &&
            placeStages(problem, plan.stages)) {
          changed = true;
          break;
        }
      }
      if (changed) {
        idle -= more;
        break;
      }
      stage = before;
    }
  plan.seconds = stagePlanSeconds(problem, plan.stages);
}

StagePlan stage::solveStageDp(const StageDpProblem &problem, std::vector<StagePlan> *others) {
  if (problem.numLayers == 0 || problem.submeshes.empty() || problem.hostDevices.empty())
    return {};
  StagePlan plan = PeriodSweep(problem, others).run();
  if (!problem.manual && !plan.stages.empty())
    useIdleDevices(problem, plan);
  return plan;
}

static SendSeconds sendAfter(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages,
                             size_t i) {
  if (i + 1 >= stages.size() || !problem.transferSeconds)
    return {};
  return problem.transferSeconds(stages[i].hi, stages[i].submesh, stages[i + 1].submesh);
}

double stage::stagePlanPeriod(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages) {
  double period = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    int64_t inFlight = problem.inFlight(stages.size() - i);
    double trip = 0;
    for (size_t j = i; j < stages.size(); ++j) {
      const PlannedStage &stage = stages[j];
      SendSeconds send = sendAfter(problem, stages, j);
      trip += stage.choice.seconds *
              (i == j ? 1 : problem.partOfTrip(stage.lo, stage.hi, stage.submesh));
      int64_t served = inFlight - problem.inFlight(stages.size() - j) + 1;
      if (i == j)
        period = std::max({period, stage.choice.seconds, send.busiest()});
      else if (inFlight < problem.numMicroBatches)
        period = std::max(period, trip / served);
      trip += send.sum();
    }
  }
  return period;
}

double stage::stagePlanSeconds(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages) {
  double sum = 0;
  for (size_t i = 0; i < stages.size(); ++i)
    sum += stages[i].choice.seconds *
               problem.partOfSum(stages[i].lo, stages[i].hi, stages[i].submesh) +
           sendAfter(problem, stages, i).sum();
  return sum + (problem.numMicroBatches - 1) * stagePlanPeriod(problem, stages);
}

bool stage::stagePlanFits(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages) {
  for (size_t i = 0; i < stages.size(); ++i)
    if (stages[i].choice.peakBytes(problem.held(stages.size() - i)) >
        problem.memoryOf(stages[i].submesh))
      return false;
  return true;
}
