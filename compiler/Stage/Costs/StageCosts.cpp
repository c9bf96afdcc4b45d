//===- StageCosts.cpp - seconds and bytes of possible stages --------------===//

#include "compiler/Stage/Costs/StageCosts.h"

#include "compiler/Solver/Model/Clock.h"
#include "mlir/IR/Threading.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
/// Of one stage. What is left of the gap is in the bound.
static constexpr double kStageSeconds = 1;

namespace {
/// Adds up the seconds of a scope.
class Timer {
public:
  explicit Timer(double &sum) : sum(sum), clock(kInfinity) {}
  Timer(const Timer &) = delete;
  ~Timer() { sum += clock.seconds(); }

private:
  double &sum;
  Clock clock;
};
} // namespace

StageCosts::StageCosts(MLIRContext *context, std::vector<LayerOps> variants,
                       std::vector<LogicalMesh> meshes,
                       std::vector<llvm::SmallVector<unsigned>> views, StageCostOptions options)
    : context(context), variants(std::move(variants)), meshes(std::move(meshes)),
      views(std::move(views)), options(std::move(options)) {
  for (const LayerOps &layers : this->variants)
    classesOf.emplace_back(layers, this->options.describe, this->options.allDiffer);
  unsigned n = numLayers();
  classes.assign(size_t(n) * (n + 1), 0);
  std::map<std::vector<unsigned>, unsigned> known;
  for (unsigned lo = 0; lo < n; ++lo)
    for (unsigned hi = lo + 1; hi <= n; ++hi) {
      std::vector<unsigned> key;
      for (const RunClasses &variant : classesOf)
        key.push_back(variant.classOf(lo, hi));
      auto [it, isNew] = known.try_emplace(key, examples.size());
      if (isNew) {
        examples.push_back({lo, hi});
        parts.push_back(key);
      }
      classes[lo * (n + 1) + hi] = it->second;
    }
  for (int64_t level = 1; level <= this->options.mostInFlight;
       level += std::max<int64_t>(1, level / 8))
    levels.push_back(level);
  if (this->options.store)
    for (const LogicalMesh &mesh : this->meshes)
      meshKeys.push_back(printMesh(mesh));
  for (Table &table : tables) {
    table.choices.resize(examples.size() * this->views.size());
    table.isCurrent.assign(examples.size() * this->views.size(), false);
  }
}

size_t StageCosts::numPossible() const {
  return size_t(numLayers()) * (numLayers() + 1) / 2 * numWays();
}

IntraOpOptions StageCosts::intraOpOptions(unsigned way) const {
  IntraOpOptions intraOp;
  intraOp.numMicroBatches = options.numMicroBatches;
  intraOp.timeLimitSeconds = options.timeLimitSeconds;
  if (!options.filters.empty())
    intraOp.filter = options.filters[way];
  return intraOp;
}

StageView StageCosts::viewOf(unsigned lo, unsigned hi, unsigned way) const {
  return {orderRun(llvm::ArrayRef(variants[variantOf(way)]).slice(lo, hi - lo))};
}

llvm::Error StageCosts::forAll(size_t count, llvm::function_ref<llvm::Error(size_t)> work) const {
  std::vector<std::string> errors(count);
  parallelFor(context, 0, count, [&](size_t i) {
    if (llvm::Error error = work(i))
      errors[i] = llvm::toString(std::move(error));
  });
  for (const std::string &error : errors)
    if (!error.empty())
      return llvm::createStringError(error);
  return llvm::Error::success();
}

llvm::Expected<std::unique_ptr<StageProblem>> StageCosts::build(unsigned lo, unsigned hi,
                                                                unsigned way) const {
  return StageProblem::build(viewOf(lo, hi, way), modelOf(way), intraOpOptions(way));
}

/// States the problem, and solves it without a memory limit.
llvm::Error StageCosts::state(Run &run, unsigned runClass, unsigned way) const {
  auto [lo, hi] = examples[runClass];
  if (!run.problem) {
    llvm::Expected<std::unique_ptr<StageProblem>> problem = build(lo, hi, way);
    if (!problem)
      return problem.takeError();
    run.problem = std::move(*problem);
  }
  if (run.free.point || !run.answers.empty())
    return llvm::Error::success();
  llvm::Expected<StageProblem::Priced> free = run.problem->solve(
      nullptr, 0, {std::min(options.timeLimitSeconds, kStageSeconds), options.tolerance / 8});
  if (!free)
    return free.takeError();
  run.free = std::move(*free);
  if (run.free.point)
    run.points.push_back(run.free.point);
  return llvm::Error::success();
}

void StageCosts::ignoreMemory() {
  options.store.reset(); // Its entries are for the limit.
  llvm::fill(options.memoryBytes, kNoLimit);
  for (auto &[key, run] : runs) {
    run.answers.clear();
    if (run.free.point)
      slotOf(run, run.free.point);
  }
  for (unsigned way = 0; way < numWays(); ++way)
    touchAll(way);
}

/// The slot of a point among the chosen ones.
int StageCosts::slotOf(Run &run, std::shared_ptr<StagePoint> point) const {
  auto it = llvm::find(run.chosen, point);
  if (it != run.chosen.end())
    return it - run.chosen.begin();
  if (run.chosen.size() == kHope)
    return -1; // Plans refer to all of them.
  run.chosen.push_back(std::move(point));
  return run.chosen.size() - 1;
}

llvm::Error StageCosts::answer(Run &run, unsigned runClass, unsigned way, int64_t inFlight) const {
  Answer &mine = run.answers[inFlight];
  mine = {-1, kInfinity, false};
  if (!run.free.point)
    return llvm::Error::success();
  auto [lo, hi] = examples[runClass];
  llvm::Expected<RunAnswer> found = solveWithin(
      *run.problem, run.free, inFlight, memoryOf(way),
      bounds->priceFor(way, lo, hi, inFlight, memoryOf(way)), options.tolerance / 4,
      {std::min(options.timeLimitSeconds, kStageSeconds), options.tolerance / 8}, run.points);
  if (!found)
    return found.takeError();
  mine.boundSeconds = found->boundSeconds;
  if (found->point)
    mine.slot = slotOf(run, found->point);
  // Prices found nothing that fits, but there may be something.
  if (!found->point && found->boundSeconds < kInfinity)
    if (llvm::Expected<bool> better = improve(run, runClass, way, inFlight); !better)
      return better.takeError();
  if (!found->least || found->boundSeconds < kInfinity)
    return llvm::Error::success();
  // Plans with fewer in flight would be asked for one by one: the fewest that do not
  // fit speak for all.
  int64_t fewer = inFlight;
  while (fewer > 1 && found->least->peakBytes(fewer - 1) > memoryOf(way))
    --fewer;
  return run.answers.count(fewer) ? llvm::Error::success() : answer(run, runClass, way, fewer);
}

llvm::Error StageCosts::solve(llvm::ArrayRef<Request> all) {
  llvm::Expected<std::vector<Request>> requests = priceLayers(all);
  if (!requests)
    return requests.takeError();
  std::map<std::pair<unsigned, unsigned>, std::set<int64_t>> wanted;
  for (const Request &request : *requests) {
    std::pair<unsigned, unsigned> key(classOf(request.id), wayOf(request.id));
    auto run = runs.find(key);
    if (run != runs.end() && run->second.answers.count(request.inFlight)) {
      ++reusedCount;
      touch(key.first, key.second);
    } else {
      reusedCount += !wanted[key].insert(request.inFlight).second;
    }
    addLevel(request.inFlight);
  }
  struct Job {
    std::pair<unsigned, unsigned> key;
    const std::set<int64_t> *inFlight;
    Run *run;
    bool isSolved; // Or else the store knew it.
  };
  std::vector<Job> jobs;
  for (auto &[key, inFlight] : wanted)
    if (!inFlight.empty()) {
      jobs.push_back({key, &inFlight, &runs[key], false});
      jobs.back().run->usedAt = ++clock;
    }
  // Large ones first, so that all threads end together.
  llvm::sort(jobs, [&](const Job &a, const Job &b) {
    auto size = [&](const Job &job) {
      auto [lo, hi] = examples[job.key.first];
      return (hi - lo) * job.inFlight->size();
    };
    return std::make_pair(size(b), a.key) < std::make_pair(size(a), b.key);
  });
  llvm::Error error = forAll(jobs.size(), [&](size_t i) -> llvm::Error {
    auto [runClass, way] = jobs[i].key;
    Run &run = *jobs[i].run;
    restore(run, runClass, way);
    for (int64_t inFlight : llvm::reverse(*jobs[i].inFlight)) {
      if (run.answers.count(inFlight))
        continue;
      Timer timer(run.solveSeconds);
      if (llvm::Error error = state(run, runClass, way))
        return error;
      if (llvm::Error error = answer(run, runClass, way, inFlight))
        return error;
      run.isNew = jobs[i].isSolved = true;
    }
    return llvm::Error::success();
  });
  solvedCount += llvm::count_if(jobs, [](const Job &job) { return job.isSolved; });
  for (const Job &job : jobs) {
    for (const auto &[inFlight, answer] : job.run->answers)
      addLevel(inFlight);
    touch(job.key.first, job.key.second);
  }
  forgetProblems();
  return error;
}

bool StageCosts::canImprove(const Run &run, unsigned way, int64_t inFlight) const {
  auto it = run.answers.find(inFlight);
  if (it == run.answers.end() || memoryOf(way) == kNoLimit)
    return false;
  const Answer &answer = it->second;
  if (answer.isImproved || answer.boundSeconds == kInfinity)
    return false;
  return answer.slot < 0 ||
         run.chosen[answer.slot]->seconds * (1 - options.tolerance) > answer.boundSeconds;
}

/// Solves with the limit in the problem itself.
llvm::Expected<bool> StageCosts::improve(Run &run, unsigned runClass, unsigned way,
                                         int64_t inFlight) const {
  Timer timer(run.solveSeconds);
  Answer &answer = run.answers[inFlight];
  answer.isImproved = true;
  run.isNew = true;
  auto [lo, hi] = examples[runClass];
  IntraOpOptions intraOp = intraOpOptions(way);
  intraOp.memoryLimitBytes = memoryOf(way);
  intraOp.microBatchesInFlight = inFlight;
  intraOp.acceptableGap = options.tolerance / 2;
  llvm::Expected<IntraOpResult> result = solveIntraOp(viewOf(lo, hi, way), modelOf(way), intraOp);
  if (!result)
    return result.takeError();
  if (result->solution.status == SolveStatus::Infeasible)
    return false;
  if (llvm::Error error = state(run, runClass, way))
    return std::move(error);
  std::shared_ptr<StagePoint> point = run.problem->evaluate(result->solution.choices);
  if (!point || point->peakBytes(inFlight) > memoryOf(way))
    return llvm::createStringError("internal error: a stage's solution does not fit when it is "
                                   "evaluated anew");
  if (answer.slot >= 0 && run.chosen[answer.slot]->seconds <= point->seconds)
    return false;
  run.points.push_back(point);
  answer.slot = slotOf(run, point);
  return true;
}

llvm::Expected<bool> StageCosts::improve(llvm::ArrayRef<Request> requests) {
  std::map<std::pair<unsigned, unsigned>, std::set<int64_t>> wanted;
  for (const Request &request : requests) {
    std::pair<unsigned, unsigned> key(classOf(request.id), wayOf(request.id));
    if (canImprove(runs[key], key.second, request.inFlight))
      wanted[key].insert(request.inFlight);
  }
  std::vector<std::pair<std::pair<unsigned, unsigned>, std::set<int64_t>>> jobs(wanted.begin(),
                                                                                wanted.end());
  std::vector<char> isBetter(jobs.size(), 0);
  llvm::Error error = forAll(jobs.size(), [&](size_t i) -> llvm::Error {
    auto [runClass, way] = jobs[i].first;
    Run &run = runs.find(jobs[i].first)->second;
    for (int64_t inFlight : jobs[i].second) {
      llvm::Expected<bool> better = improve(run, runClass, way, inFlight);
      if (!better)
        return better.takeError();
      isBetter[i] |= *better;
    }
    return llvm::Error::success();
  });
  if (error)
    return std::move(error);
  for (const auto &job : jobs)
    touch(job.first.first, job.first.second);
  forgetProblems();
  return llvm::is_contained(isBetter, 1);
}

/// Problems of stages are large: only those that were used last are remembered.
void StageCosts::forgetProblems() {
  constexpr size_t kMostBytes = size_t(400) << 20;
  std::vector<Run *> remembered;
  for (auto &[key, run] : runs)
    if (run.problem)
      remembered.push_back(&run);
  llvm::sort(remembered, [](Run *a, Run *b) { return a->usedAt > b->usedAt; });
  size_t bytes = 0;
  for (Run *run : remembered)
    if ((bytes += run->problem->numBytes()) > kMostBytes)
      run->problem.reset();
}

/// From now on this number is told apart from others.
void StageCosts::addLevel(int64_t inFlight) {
  for (int64_t level : {inFlight, inFlight + 1})
    if (auto it = llvm::lower_bound(levels, level);
        level <= options.mostInFlight && (it == levels.end() || *it != level))
      levels.insert(it, level);
}

const StageCosts::Run *StageCosts::findRun(unsigned runClass, unsigned way) const {
  auto it = runs.find({runClass, way});
  return it == runs.end() ? nullptr : &it->second;
}

std::optional<StageChoice> StageCosts::known(unsigned id, int64_t inFlight) const {
  const Run *run = findRun(classOf(id), wayOf(id));
  std::optional<StageChoice> best;
  if (!run)
    return best;
  for (auto [slot, point] : llvm::enumerate(run->chosen))
    if (point->peakBytes(inFlight) <= memoryOf(wayOf(id)) &&
        (!best || point->seconds < best->seconds))
      best = {point->seconds, point->stateBytes, point->activationBytes,
              point->peakBytes(inFlight) - point->stateBytes - inFlight * point->activationBytes,
              unsigned(id / kSlots * kSlots + slot)};
  return best;
}

const StagePoint &StageCosts::pointOf(unsigned id) const {
  return *findRun(classOf(id), wayOf(id))->chosen[id % kSlots];
}

llvm::Expected<BackwardParts> StageCosts::partsOf(unsigned id) {
  unsigned runClass = classOf(id), way = wayOf(id), slot = id % kSlots;
  Run &run = runs.find({runClass, way})->second;
  if (auto known = run.parts.find(slot); known != run.parts.end())
    return known->second;
  if (llvm::Error error = state(run, runClass, way))
    return std::move(error);
  run.usedAt = ++clock;
  return run.parts[slot] = run.problem->backwardParts(*run.chosen[slot]);
}

void StageCosts::settle(LayerOps layers, std::vector<PlanFilter> filters) {
  for (auto &[key, run] : runs)
    run.problem.reset(); // Of ops that may be gone.
  llvm::fill(variants, layers);
  options.filters.clear();
  for (unsigned way = 0; way < numWays() && !filters.empty(); ++way)
    options.filters.push_back(filters[meshIndex(way)]);
}

llvm::Expected<std::shared_ptr<IntraOpResult>> StageCosts::result(const PlannedStage &stage,
                                                                  int64_t inFlight) const {
  unsigned way = wayOf(stage.choice.id);
  const Run *run = findRun(classOf(stage.choice.id), way);
  const StagePoint &point = *run->chosen[stage.choice.id % kSlots];
  llvm::Expected<std::unique_ptr<StageProblem>> problem = build(stage.lo, stage.hi, way);
  if (!problem)
    return problem.takeError();
  std::shared_ptr<StagePoint> mine = (*problem)->evaluate(point.choices);
  if (!mine || mine->peakBytes(inFlight) != point.peakBytes(inFlight) ||
      std::abs(mine->seconds - point.seconds) > 1e-9 * point.seconds)
    return llvm::createStringError("internal error: stages that are taken for equal are not");
  double bound = run->free.boundSeconds;
  if (auto it = run->answers.find(inFlight); it != run->answers.end())
    bound = std::max(bound, it->second.boundSeconds);
  auto result = std::make_shared<IntraOpResult>((*problem)->result(*mine, bound, inFlight));
  BackwardParts parts = (*problem)->backwardParts(*mine);
  result->backwardWeightSeconds = parts.weightSeconds;
  result->waitingBytes = parts.waitingBytes;
  result->solution.seconds = run->solveSeconds;
  return result;
}

llvm::Expected<Explanation> StageCosts::explain(const PlannedStage &stage,
                                                const IntraOpResult &result) const {
  unsigned way = wayOf(stage.choice.id);
  return explainIntraOp(viewOf(stage.lo, stage.hi, way), modelOf(way), intraOpOptions(way),
                        result.solution.choices);
}
