//===- StageCosts.cpp - seconds and bytes of possible stages --------------===//

#include "compiler/Stage/Costs/StageCosts.h"

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Sharding/Problem/LayerTies.h"
#include "compiler/Sharding/Problem/Reshard.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Common/ErrorCode.h"

#include "mlir/IR/Threading.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/Format.h"

#include <chrono>

using namespace alpa;
using namespace alpa::stage;
using namespace mlir;
using sharding::IntraOpResult;
using sharding::StagePoint;
using sharding::StageProblem;
using sharding::StageUsage;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
/// Of one stage, about a second. What is left of the gap is in the bound.
static constexpr double kStageWork = 5e8;

namespace {
/// Adds up the seconds of a scope.
class Timer {
public:
  explicit Timer(double &sum) : sum(sum), start(std::chrono::steady_clock::now()) {}
  Timer(const Timer &) = delete;
  ~Timer() {
    sum += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

private:
  double &sum;
  std::chrono::steady_clock::time_point start;
};
} // namespace

WrittenLayers::WrittenLayers(LayerOps opsOfLayer)
    : opsOfLayer(std::move(opsOfLayer)), table(std::make_shared<sharding::OpTable>()) {}

KnownLayers::KnownLayers(LayerOps ops, const DescribeValue &describe, bool allDiffer)
    : WrittenLayers(std::move(ops)), ranges(opsOfLayer, describe, allDiffer) {}

StageCosts::StageCosts(MLIRContext *context,
                       std::vector<std::shared_ptr<const KnownLayers>> variants,
                       std::vector<cost::LogicalMesh> meshes,
                       std::vector<llvm::SmallVector<unsigned>> views, StageCostOptions options)
    : context(context), variants(std::move(variants)), meshes(std::move(meshes)),
      views(std::move(views)), options(std::move(options)) {
  unsigned n = numLayers();
  classes.assign(size_t(n) * (n + 1), 0);
  std::map<std::vector<unsigned>, unsigned> known;
  for (unsigned lo = 0; lo < n; ++lo)
    for (unsigned hi = lo + 1; hi <= n; ++hi) {
      std::vector<unsigned> key;
      for (const auto &variant : this->variants)
        key.push_back(variant->ranges.classOf(lo, hi));
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
    for (const cost::LogicalMesh &mesh : this->meshes)
      meshKeys.push_back(cost::printMesh(mesh));
  for (Table &table : tables) {
    table.choices.resize(examples.size() * this->views.size());
    table.isCurrent.assign(examples.size() * this->views.size(), false);
  }
}

size_t StageCosts::numPossible() const {
  return size_t(numLayers()) * (numLayers() + 1) / 2 * numWays();
}

sharding::IntraOpOptions StageCosts::intraOpOptions(unsigned way) const {
  sharding::IntraOpOptions intraOp;
  intraOp.numMicroBatches = options.numMicroBatches;
  intraOp.workLimit = options.workLimit;
  intraOp.timeLimitSeconds = options.timeLimitSeconds;
  intraOp.makesLoops = options.makesLoops;
  if (!options.filters.empty())
    intraOp.filter = options.filters[way];
  return intraOp;
}

/// Lets values that come into equal layers be moved once.
static void addMovable(sharding::IntraOpOptions &options, const sharding::StageView &view) {
  for (const sharding::LayerEntry &entry : sharding::findLayerEntries(view))
    if (entry.value.getDefiningOp())
      options.filter.movable.insert(entry.value);
}

sharding::IntraOpOptions StageCosts::intraOpOptions(unsigned id,
                                                    const sharding::StageView &view) const {
  sharding::IntraOpOptions intraOp = intraOpOptions(wayOf(id));
  const Run *run = findRun(classOf(id), wayOf(id));
  if (run && run->moving.count(id % kSlots))
    addMovable(intraOp, view);
  return intraOp;
}

sharding::StageView StageCosts::viewOf(unsigned lo, unsigned hi, unsigned way) const {
  const WrittenLayers &layers = layersOf(variantOf(way));
  return {orderLayerRange(llvm::ArrayRef(layers.opsOfLayer).slice(lo, hi - lo)), layers.table};
}

llvm::Error stage::forAll(MLIRContext *context, size_t count,
                          llvm::function_ref<llvm::Error(size_t)> work) {
  std::vector<std::optional<CodedError>> errors(count);
  parallelFor(context, 0, count, [&](size_t i) {
    if (llvm::Error error = work(i))
      errors[i] = takeParts(std::move(error));
  });
  for (std::optional<CodedError> &error : errors)
    if (error)
      return llvm::make_error<CodedError>(std::move(*error));
  return llvm::Error::success();
}

StageProblem::Effort StageCosts::effort(double exposure) const {
  return {std::min(options.workLimit, kStageWork), options.timeLimitSeconds, options.tolerance / 8,
          exposure};
}

/// Adds up what the clock ended, before a problem is forgotten.
void StageCosts::count(Run &run) const {
  if (run.problem)
    run.timedOut += run.problem->takeTimedOut();
}

unsigned StageCosts::numTimedOut() const {
  unsigned sum = 0;
  for (const auto &[key, run] : runs)
    sum += run.timedOut;
  return sum;
}

llvm::Expected<std::unique_ptr<StageProblem>> StageCosts::build(unsigned lo, unsigned hi,
                                                                unsigned way) const {
  return StageProblem::build(viewOf(lo, hi, way), modelOf(way), intraOpOptions(way));
}

/// States the problem, and solves it without a memory limit.
llvm::Error StageCosts::state(Run &run, unsigned rangeClass, unsigned way) const {
  auto [lo, hi] = examples[rangeClass];
  if (!run.problem) {
    llvm::Expected<std::unique_ptr<StageProblem>> problem = build(lo, hi, way);
    if (!problem)
      return problem.takeError();
    run.problem = std::move(*problem);
  }
  if (run.free.point || !run.answers.empty())
    return llvm::Error::success();
  llvm::Expected<StageProblem::Priced> free = run.problem->solve(nullptr, 0, effort());
  if (!free)
    return free.takeError();
  run.free = std::move(*free);
  if (run.free.point)
    run.points.push_back(run.free.point);
  return llvm::Error::success();
}

/// Solves a stage whose work ends before the collectives beside it with these counted more.
llvm::Error StageCosts::countExposed(Run &run) const {
  if (run.boundSeconds > 0 || !run.free.point)
    return llvm::Error::success();
  llvm::Expected<StageProblem::Exposed> exposed =
      run.problem->solveExposed(run.free, effort(), run.points);
  if (!exposed)
    return exposed.takeError();
  run.free.point = exposed->point;
  run.boundSeconds = exposed->boundSeconds;
  run.exposure = exposed->exposure;
  return llvm::Error::success();
}

void StageCosts::ignoreMemory() {
  options.store.reset(); // Its entries are for the limit.
  llvm::fill(options.memoryBytes, kNoLimit);
  forgetAnswers();
}

void StageCosts::shareMemory(std::function<double(int64_t)> part, std::string name) {
  if (name == partName)
    return; // What is known is for it.
  keep();
  partOf = std::move(part);
  partName = std::move(name);
  forgetAnswers();
}

/// Those for another limit.
void StageCosts::forgetAnswers() {
  for (auto &[key, run] : runs) {
    run.answers.clear();
    run.isRestored = run.isRestored && !options.store;
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

llvm::Error StageCosts::answer(Run &run, unsigned rangeClass, unsigned way,
                               int64_t inFlight) const {
  Answer &mine = run.answers[inFlight];
  mine = {-1, kInfinity, false};
  if (!run.free.point)
    return llvm::Error::success();
  if (llvm::Error error = countExposed(run))
    return error;
  auto [lo, hi] = examples[rangeClass];
  StageProblem::Priced free = run.free;
  free.boundSeconds = run.boundSeconds;
  llvm::Expected<RunAnswer> found =
      solveWithin(*run.problem, free, inFlight, memoryOf(way, inFlight),
                  bounds->priceFor(way, lo, hi, inFlight, memoryOf(way, inFlight)),
                  options.tolerance / 4, effort(run.exposure), run.points);
  if (!found)
    return found.takeError();
  mine.boundSeconds = found->boundSeconds;
  if (found->point)
    mine.slot = slotOf(run, found->point);
  // Prices found nothing that fits, but there may be something.
  if (!found->point && found->boundSeconds < kInfinity)
    if (llvm::Expected<bool> better = improve(run, rangeClass, way, inFlight); !better)
      return better.takeError();
  if (!found->least || found->boundSeconds < kInfinity)
    return llvm::Error::success();
  // Plans with fewer in flight would be asked for one by one: the fewest that do not
  // fit speak for all.
  int64_t fewer = inFlight;
  while (fewer > 1 && found->least->peakBytes(fewer - 1) > memoryOf(way, fewer - 1))
    --fewer;
  return run.answers.count(fewer) ? llvm::Error::success() : answer(run, rangeClass, way, fewer);
}

llvm::Error StageCosts::solve(llvm::ArrayRef<Request> all) {
  WantedCurves curves;
  llvm::Expected<std::vector<Request>> requests = priceLayers(all, curves);
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
    llvm::MutableArrayRef<WantedCurve> curves;
    std::set<int64_t> inFlight;
    Run *run = nullptr;
    bool isSolved = false; // Or else the store knew it.
  };
  std::map<std::pair<unsigned, unsigned>, Job> jobOf;
  for (auto &[key, list] : curves)
    jobOf[key].curves = list;
  for (auto &[key, inFlight] : wanted)
    if (!inFlight.empty())
      jobOf[key].inFlight = std::move(inFlight);
  std::vector<Job> jobs;
  for (auto &[key, job] : jobOf) {
    job.key = key;
    job.run = &runs[key];
    job.run->usedAt = ++clock;
    jobs.push_back(std::move(job));
  }
  // Large ones first, so that all threads end together.
  llvm::sort(jobs, [&](const Job &a, const Job &b) {
    auto size = [&](const Job &job) {
      auto [lo, hi] = examples[job.key.first];
      return (hi - lo) * (job.inFlight.size() + job.curves.size());
    };
    return std::make_pair(size(b), a.key) < std::make_pair(size(a), b.key);
  });
  llvm::Error error = forAll(context, jobs.size(), [&](size_t i) -> llvm::Error {
    auto [rangeClass, way] = jobs[i].key;
    Run &run = *jobs[i].run;
    if (!jobs[i].curves.empty())
      if (llvm::Error error = traceCurves(run, rangeClass, way, jobs[i].curves))
        return error;
    if (!jobs[i].inFlight.empty())
      restore(run, rangeClass, way);
    for (int64_t inFlight : llvm::reverse(jobs[i].inFlight)) {
      if (run.answers.count(inFlight))
        continue;
      Timer timer(run.solveSeconds);
      if (llvm::Error error = state(run, rangeClass, way))
        return error;
      if (llvm::Error error = answer(run, rangeClass, way, inFlight))
        return error;
      run.isNew = jobs[i].isSolved = true;
      int slot = run.answers.at(inFlight).slot;
      if (options.wantsParts && slot >= 0 && !run.parts.count(run.chosen[slot]))
        run.parts[run.chosen[slot]] = run.problem->backwardParts(*run.chosen[slot]);
    }
    count(run);
    return llvm::Error::success();
  });
  if (error)
    return error;
  takeCurves(curves);
  solvedCount += llvm::count_if(jobs, [](const Job &job) { return job.isSolved; });
  for (const Job &job : jobs) {
    if (job.inFlight.empty())
      continue;
    auto [lo, hi] = examples[job.key.first];
    solvedLayers += job.isSolved ? hi - lo : 0;
    for (const auto &[inFlight, answer] : job.run->answers)
      addLevel(inFlight);
    touch(job.key.first, job.key.second);
  }
  forgetProblems();
  return llvm::Error::success();
}

bool StageCosts::canImprove(const Run &run, unsigned way, int64_t inFlight) const {
  auto it = run.answers.find(inFlight);
  // With the limit in it a problem counts as if all collectives were hidden that can be.
  if (it == run.answers.end() || !isLimited(way) || run.exposure > 0)
    return false;
  const Answer &answer = it->second;
  if (answer.isImproved || answer.boundSeconds == kInfinity)
    return false;
  return answer.slot < 0 ||
         run.chosen[answer.slot]->seconds * (1 - options.tolerance) > answer.boundSeconds;
}

/// Solves with the limit in the problem itself.
llvm::Expected<bool> StageCosts::improve(Run &run, unsigned rangeClass, unsigned way,
                                         int64_t inFlight) const {
  Timer timer(run.solveSeconds);
  Answer &answer = run.answers[inFlight];
  answer.isImproved = true;
  run.isNew = true;
  auto [lo, hi] = examples[rangeClass];
  sharding::IntraOpOptions intraOp = intraOpOptions(way);
  intraOp.memoryLimitBytes = memoryOf(way, inFlight);
  intraOp.microBatchesInFlight = inFlight;
  intraOp.acceptableGap = options.tolerance / 2;
  llvm::Expected<IntraOpResult> result =
      sharding::solveIntraOp(viewOf(lo, hi, way), modelOf(way), intraOp);
  if (!result)
    return result.takeError();
  run.timedOut += result->solution.isOutOfTime;
  if (result->solution.status == solver::SolveStatus::Infeasible)
    return false;
  if (llvm::Error error = state(run, rangeClass, way))
    return std::move(error);
  std::shared_ptr<StagePoint> point = run.problem->evaluate(result->solution.choices);
  if (!point || point->peakBytes(inFlight) > memoryOf(way, inFlight))
    return llvm::createStringError("internal error: a stage's solution does not fit when it is "
                                   "evaluated anew");
  if (answer.slot >= 0 && run.chosen[answer.slot]->seconds <= point->seconds)
    return false;
  run.points.push_back(point);
  answer.slot = slotOf(run, point);
  return true;
}

void StageCosts::setTolerance(double part) {
  if (part < options.tolerance)
    for (auto &[key, run] : runs)
      for (auto &[inFlight, answer] : run.answers)
        answer.isImproved = false;
  options.tolerance = part;
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
  llvm::Error error = forAll(context, jobs.size(), [&](size_t i) -> llvm::Error {
    auto [rangeClass, way] = jobs[i].first;
    Run &run = runs.find(jobs[i].first)->second;
    for (int64_t inFlight : jobs[i].second) {
      llvm::Expected<bool> better = improve(run, rangeClass, way, inFlight);
      if (!better)
        return better.takeError();
      isBetter[i] |= *better;
    }
    count(run);
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
static void dropProblems(std::vector<SolvedRun *> runs) {
  constexpr size_t kMostBytes = size_t(400) << 20;
  llvm::erase_if(runs, [](SolvedRun *run) { return !run->problem; });
  llvm::sort(runs, [](SolvedRun *a, SolvedRun *b) { return a->usedAt > b->usedAt; });
  size_t bytes = 0;
  for (SolvedRun *run : runs)
    if ((bytes += run->problem->numBytes()) > kMostBytes)
      run->problem.reset();
}

void StageCosts::forgetProblems() {
  std::vector<SolvedRun *> all;
  for (auto &[key, run] : runs)
    all.push_back(&run);
  dropProblems(std::move(all));
}

/// From now on this number is told apart from others.
void StageCosts::addLevel(int64_t inFlight) {
  for (int64_t level : {inFlight, inFlight + 1})
    if (auto it = llvm::lower_bound(levels, level);
        level <= options.mostInFlight && (it == levels.end() || *it != level))
      levels.insert(it, level);
}

const StageCosts::Run *StageCosts::findRun(unsigned rangeClass, unsigned way) const {
  auto it = runs.find({rangeClass, way});
  return it == runs.end() ? nullptr : &it->second;
}

static StageChoice choiceOf(const StagePoint &point, int64_t inFlight, unsigned id) {
  return {point.seconds, point.stateBytes, point.activationBytes,
          point.peakBytes(inFlight) - point.stateBytes - inFlight * point.activationBytes, id};
}

std::optional<StageChoice> StageCosts::known(unsigned id, int64_t inFlight) const {
  const Run *run = findRun(classOf(id), wayOf(id));
  std::optional<StageChoice> best;
  if (!run)
    return best;
  for (auto [slot, point] : llvm::enumerate(run->chosen))
    if (point->peakBytes(inFlight) <= memoryOf(wayOf(id), inFlight) &&
        (!best || point->seconds < best->seconds))
      best = choiceOf(*point, inFlight, unsigned(id / kSlots * kSlots + slot));
  return best;
}

const StagePoint &StageCosts::pointOf(unsigned id) const {
  return *findRun(classOf(id), wayOf(id))->chosen[id % kSlots];
}

llvm::Expected<sharding::BackwardParts> StageCosts::partsOf(unsigned id) {
  unsigned rangeClass = classOf(id), way = wayOf(id), slot = id % kSlots;
  Run &run = runs.find({rangeClass, way})->second;
  if (auto known = run.parts.find(run.chosen[slot]); known != run.parts.end())
    return known->second;
  if (llvm::Error error = state(run, rangeClass, way))
    return std::move(error);
  count(run);
  run.usedAt = ++clock;
  return run.parts[run.chosen[slot]] = run.problem->backwardParts(*run.chosen[slot]);
}

/// Aligns a run's layers in the problem in which values are moved before them. `slot` is
/// that of the point, if one is found.
llvm::Error StageCosts::alignMoving(Run &run, unsigned rangeClass, unsigned way, double mostSeconds,
                                    int64_t mostBytes, int64_t inFlight, int &slot) const {
  auto [lo, hi] = examples[rangeClass];
  sharding::StageView view = viewOf(lo, hi, way);
  sharding::IntraOpOptions intraOp = intraOpOptions(way);
  addMovable(intraOp, view);
  if (intraOp.filter.movable.empty())
    return llvm::Error::success();
  llvm::Expected<std::unique_ptr<StageProblem>> problem =
      StageProblem::build(view, modelOf(way), intraOp);
  if (!problem)
    return problem.takeError();
  llvm::Expected<std::shared_ptr<StagePoint>> aligned = (*problem)->alignLayers(
      nullptr, mostSeconds, mostBytes, inFlight, /*mayDiffer=*/false, effort(run.exposure));
  if (!aligned)
    return aligned.takeError();
  double bound = run.bound();
  if (*aligned && (*aligned)->seconds < bound * (1 + options.tolerance)) {
    // There are more plans, and so the bound is another one.
    llvm::Expected<StageProblem::Priced> free = (*problem)->solve(nullptr, 0, effort(run.exposure));
    if (!free)
      return free.takeError();
    bound = free->boundSeconds;
  }
  run.timedOut += (*problem)->takeTimedOut();
  if (!*aligned)
    return llvm::Error::success();
  slot = slotOf(run, *aligned);
  if (slot < 0)
    return llvm::Error::success();
  run.moving[slot] = std::min(bound, (*aligned)->seconds);
  run.parts[*aligned] = (*problem)->backwardParts(**aligned);
  return llvm::Error::success();
}

/// The slot of the aligned point, or the given one.
llvm::Expected<unsigned> StageCosts::alignRun(Run &run, unsigned rangeClass, unsigned way,
                                              unsigned slot, int64_t inFlight, double slack) const {
  if (llvm::Error error = state(run, rangeClass, way))
    return std::move(error);
  std::shared_ptr<StagePoint> point = run.chosen[slot];
  double mostSeconds = point->seconds * (1 + slack);
  int64_t mostBytes = std::max(memoryOf(way, inFlight), point->peakBytes(inFlight));
  for (bool mayDiffer : {false, true}) {
    llvm::Expected<std::shared_ptr<StagePoint>> aligned = run.problem->alignLayers(
        point, mostSeconds, mostBytes, inFlight, mayDiffer, effort(run.exposure));
    if (!aligned)
      return aligned.takeError();
    count(run);
    int found = -1;
    if (*aligned) {
      found = slotOf(run, *aligned);
      return found < 0 ? slot : unsigned(found);
    }
    if (!mayDiffer)
      if (llvm::Error error =
              alignMoving(run, rangeClass, way, mostSeconds, mostBytes, inFlight, found))
        return std::move(error);
    if (found >= 0)
      return unsigned(found);
  }
  return slot;
}

/// Which ops of a stage make what comes into equal layers, by their places.
static std::vector<size_t> placesOfMovable(const sharding::StageView &view) {
  sharding::IntraOpOptions intraOp;
  addMovable(intraOp, view);
  std::vector<size_t> places;
  for (auto [place, op] : llvm::enumerate(view.ops))
    for (Value result : op->getResults())
      if (intraOp.filter.movable.contains(result))
        places.push_back(place);
  return places;
}

llvm::Expected<std::vector<StageChoice>> StageCosts::align(llvm::ArrayRef<PlannedStage> stages,
                                                           llvm::ArrayRef<int64_t> inFlight,
                                                           double slack) {
  using Wanted = std::pair<unsigned, int64_t>; // Slot and micro-batches in flight.
  std::map<std::pair<unsigned, unsigned>, std::vector<Wanted>> wanted;
  for (auto [stage, flying] : llvm::zip_equal(stages, inFlight)) {
    std::pair<unsigned, unsigned> key(classOf(stage.choice.id), wayOf(stage.choice.id));
    Run &run = runs.find(key)->second;
    unsigned slot = stage.choice.id % kSlots;
    run.usedAt = ++clock;
    if (run.aligned.try_emplace({slot, flying}, slot).second)
      wanted[key].push_back({slot, flying});
  }
  std::vector<std::pair<std::pair<unsigned, unsigned>, std::vector<Wanted>>> jobs(wanted.begin(),
                                                                                  wanted.end());
  llvm::Error error = forAll(context, jobs.size(), [&](size_t i) -> llvm::Error {
    auto [rangeClass, way] = jobs[i].first;
    Run &run = runs.find(jobs[i].first)->second;
    for (auto [slot, flying] : jobs[i].second) {
      llvm::Expected<unsigned> found = alignRun(run, rangeClass, way, slot, flying, slack);
      if (!found)
        return found.takeError();
      run.aligned[{slot, flying}] = *found;
    }
    return llvm::Error::success();
  });
  if (error)
    return std::move(error);
  std::vector<StageChoice> choices;
  for (auto [stage, flying] : llvm::zip_equal(stages, inFlight)) {
    unsigned id = stage.choice.id, rangeClass = classOf(id), way = wayOf(id), slot = id % kSlots;
    const Run &run = *findRun(rangeClass, way);
    unsigned found = run.aligned.at({slot, flying});
    // Equal stages may number their equations otherwise.
    auto [lo, hi] = examples[rangeClass];
    bool isKept = found == slot ||
                  (run.moving.count(found) && placesOfMovable(viewOf(lo, hi, way)) !=
                                                  placesOfMovable(viewOf(stage.lo, stage.hi, way)));
    choices.push_back(isKept ? stage.choice
                             : choiceOf(*run.chosen[found], flying, id / kSlots * kSlots + found));
  }
  return std::move(choices);
}

void StageCosts::settle(LayerOps layers, std::vector<sharding::PlanFilter> filters) {
  for (auto &[key, run] : runs)
    run.problem.reset(); // Of ops that may be gone.
  settled.emplace(std::move(layers));
  options.filters.clear();
  for (unsigned way = 0; way < numWays() && !filters.empty(); ++way)
    options.filters.push_back(filters[meshIndex(way)]);
}

llvm::Expected<StageCosts::Detail> StageCosts::detail(const PlannedStage &stage, int64_t inFlight,
                                                      bool explains) const {
  unsigned way = wayOf(stage.choice.id);
  const Run *run = findRun(classOf(stage.choice.id), way);
  unsigned slot = stage.choice.id % kSlots;
  const StagePoint &point = *run->chosen[slot];
  sharding::StageView view = viewOf(stage.lo, stage.hi, way);
  llvm::Expected<std::unique_ptr<StageProblem>> problem =
      StageProblem::build(view, modelOf(way), intraOpOptions(stage.choice.id, view));
  if (!problem)
    return problem.takeError();
  std::shared_ptr<StagePoint> mine = (*problem)->evaluate(point.choices);
  if (!mine || mine->peakBytes(inFlight) != point.peakBytes(inFlight) ||
      std::abs(mine->seconds - point.seconds) > 1e-9 * point.seconds)
    return llvm::createStringError("internal error: stages that are taken for equal are not");
  double bound = run->bound();
  if (auto it = run->answers.find(inFlight); it != run->answers.end())
    bound = std::min(std::max(bound, it->second.boundSeconds), mine->seconds);
  if (auto it = run->moving.find(slot); it != run->moving.end())
    bound = it->second;
  auto result = std::make_shared<IntraOpResult>((*problem)->result(*mine, bound, inFlight));
  sharding::BackwardParts parts = (*problem)->backwardParts(*mine);
  result->backwardWeightSeconds = parts.weightSeconds;
  result->waitingBytes = parts.waitingBytes;
  result->solution.seconds = run->solveSeconds;
  result->solution.isOutOfTime = run->timedOut > 0;
  Detail detail;
  detail.result = std::move(result);
  if (explains)
    detail.explanation = sharding::explainChoices((*problem)->getBuilder(), (*problem)->getModel(),
                                                  detail.result->solution.choices);
  return detail;
}

llvm::Expected<std::shared_ptr<IntraOpResult>> StageCosts::result(const PlannedStage &stage,
                                                                  int64_t inFlight) const {
  llvm::Expected<Detail> found = detail(stage, inFlight, /*explains=*/false);
  if (!found)
    return found.takeError();
  return std::move(found->result);
}

llvm::Expected<std::vector<StageCosts::Detail>>
StageCosts::details(llvm::ArrayRef<PlannedStage> stages, llvm::ArrayRef<int64_t> inFlight) const {
  std::vector<Detail> list(stages.size());
  llvm::Error error = forAll(context, stages.size(), [&](size_t i) -> llvm::Error {
    llvm::Expected<Detail> found = detail(stages[i], inFlight[i], /*explains=*/true);
    if (!found)
      return found.takeError();
    list[i] = std::move(*found);
    return llvm::Error::success();
  });
  if (error)
    return std::move(error);
  return std::move(list);
}

/// How a planned stage holds all values that it reads or makes.
llvm::Expected<const StageCosts::HeldValues *> StageCosts::heldValues(const PlannedStage &stage) {
  auto [it, isNew] = held.try_emplace({stage.choice.id, stage.lo, stage.hi});
  if (!isNew)
    return &it->second;
  HeldValues &values = it->second;
  unsigned rangeClass = classOf(stage.choice.id), way = wayOf(stage.choice.id);
  sharding::StageView view = viewOf(stage.lo, stage.hi, way);
  Run &run = runs.find({rangeClass, way})->second;
  if (run.moving.count(stage.choice.id % kSlots)) { // Equal stages may move other values.
    llvm::Expected<std::unique_ptr<StageProblem>> problem =
        StageProblem::build(view, modelOf(way), intraOpOptions(stage.choice.id, view));
    if (!problem)
      return problem.takeError();
    values = (*problem)->specs(pointOf(stage.choice.id));
    return &values;
  }
  auto [lo, hi] = examples[rangeClass];
  if (stage.lo == lo && stage.hi == hi) {
    if (llvm::Error error = state(run, rangeClass, way))
      return std::move(error);
    run.usedAt = ++clock;
    values = run.problem->specs(pointOf(stage.choice.id));
    return &values;
  }
  // Equal stages hold what equal ops read and make in the same way.
  PlannedStage example{lo, hi, stage.submesh, stage.choice};
  llvm::Expected<const HeldValues *> known = heldValues(example);
  if (!known)
    return known.takeError();
  auto take = [&](Value mine, Value theirs) {
    if (auto spec = (*known)->find(theirs); spec != (*known)->end())
      values.try_emplace(mine, spec->second);
  };
  for (auto [mine, theirs] : llvm::zip_equal(view.ops, viewOf(lo, hi, way).ops)) {
    for (auto [read, other] :
         llvm::zip(importer::getUsedValues(mine), importer::getUsedValues(theirs)))
      take(read, other);
    for (auto [made, other] : llvm::zip(mine->getResults(), theirs->getResults()))
      take(made, other);
  }
  return &values;
}

llvm::ArrayRef<StageCosts::HandedValue> StageCosts::handedBy(unsigned variant, unsigned layer) {
  auto [known, isNew] = handed.try_emplace({variant, layer});
  if (!isNew)
    return known->second;
  for (Operation *op : layersOf(variant).opsOfLayer[layer]) {
    if (sharding::runsOnce(sharding::opPhaseOf(op)))
      continue;
    for (Value value : op->getResults()) {
      llvm::SmallVector<unsigned, 2> readers;
      for (Operation *user : importer::getUsers(value)) {
        std::optional<int64_t> reader = layerOf(user);
        if (reader && !sharding::runsOnce(sharding::opPhaseOf(user)) &&
            !llvm::is_contained(readers, unsigned(*reader)))
          readers.push_back(unsigned(*reader));
      }
      if (!readers.empty())
        known->second.push_back({value, std::move(readers)});
    }
  }
  return known->second;
}

llvm::Expected<double> StageCosts::moveSeconds(const PlannedStage &from, const PlannedStage &to) {
  unsigned way = wayOf(from.choice.id);
  if (way != wayOf(to.choice.id))
    return 0;
  auto [known, isNew] =
      moves.try_emplace({from.choice.id, from.lo, from.hi, to.choice.id, to.lo, to.hi}, 0);
  if (!isNew)
    return known->second;
  std::vector<Value> values;
  for (unsigned layer = from.lo; layer < from.hi; ++layer)
    for (const HandedValue &handed : handedBy(variantOf(way), layer))
      if (llvm::any_of(handed.readers,
                       [&](unsigned reader) { return reader >= to.lo && reader < to.hi; }))
        values.push_back(handed.value);
  if (values.empty())
    return 0;
  llvm::Expected<const HeldValues *> made = heldValues(from);
  if (!made)
    return made.takeError();
  llvm::Expected<const HeldValues *> wanted = heldValues(to);
  if (!wanted)
    return wanted.takeError();
  cost::CostModel model = modelOf(way);
  sharding::ReshardPlanner planner(model);
  double picoseconds = 0;
  for (Value value : values) {
    auto source = (*made)->find(value), target = (*wanted)->find(value);
    if (source == (*made)->end() || target == (*wanted)->end() ||
        !source->second.unreduced.empty() || !target->second.unreduced.empty())
      continue;
    auto type = cast<RankedTensorType>(value.getType());
    auto path = planner.of(type.getShape(), analysis::getTensorBytes(type))
                    .path(source->second, target->second);
    for (const sharding::ReshardStep &step : path.value_or(std::vector<sharding::ReshardStep>()))
      picoseconds += double(step.picoseconds);
  }
  return known->second = sharding::toSeconds(picoseconds);
}

llvm::Error StageCosts::explainPins(sharding::Explanation &explanation, const PlannedStage &stage,
                                    int64_t inFlight, const IntraOpResult &result,
                                    const sharding::ConstraintPins &pins,
                                    llvm::ArrayRef<unsigned> views, FilterOn free) const {
  unsigned way = wayOf(stage.choice.id);
  std::vector<sharding::ConstraintPins::FreeWay> ways;
  for (unsigned view : views) {
    llvm::Expected<sharding::PlanFilter> filter = free(meshes[view]);
    if (!filter)
      return filter.takeError();
    auto &[model, intraOp] = ways.emplace_back(
        sharding::ConstraintPins::FreeWay{cost::CostModel(meshes[view]), intraOpOptions(way)});
    intraOp.filter = std::move(*filter);
    intraOp.workLimit = std::min(intraOp.workLimit, kStageWork);
    intraOp.microBatchesInFlight = inFlight;
    if (options.memoryBytes[view] < kNoLimit)
      intraOp.memoryLimitBytes = options.memoryBytes[view];
  }
  return pins.explain(explanation, viewOf(stage.lo, stage.hi, way), modelOf(way), result, ways);
}

//===----------------------------------------------------------------------===//
// What single layers say about stages
//===----------------------------------------------------------------------===//

/// Of one layer at one price, about 0.05 s. What is left of the gap is in the bound.
static constexpr double kLayerWork = 2.5e7, kLayerGap = 1e-3;

static LayerBounds::Bytes bytesOf(const StageUsage &state, const StageUsage &activations,
                                  llvm::function_ref<int64_t(const StageUsage &)> count) {
  return {count(state), count(activations)};
}

/// The layer as a run of its own, without a limit.
llvm::Error StageCosts::askLayer(Run &run, unsigned layer, unsigned way) const {
  auto [facts, isNew] = run.layers.try_emplace(variants[variantOf(way)]->ranges.countingOf(layer));
  if (!isNew)
    return llvm::Error::success();
  if (llvm::Error error = state(run, classOfLayer(layer), way))
    return error;
  LayerBounds::Layer &known = facts->second.known;
  run.isNew = true;
  if (!run.free.point) {
    known.numImpossible = 1;
    return llvm::Error::success();
  }
  const auto &uncounted = variants[variantOf(way)]->ranges.countedBelow(layer);
  StageUsage state = run.problem->stateUsage(uncounted);
  StageUsage activations = run.problem->activationUsage(uncounted);
  known.freeSeconds = run.free.boundSeconds;
  sharding::BackwardParts parts = run.problem->backwardParts(*run.free.point);
  known.backwardSeconds = parts.inputSeconds + parts.weightSeconds;
  known.weightSeconds = parts.weightSeconds;
  known.waitingBytes = parts.waitingBytes;
  known.free = bytesOf(state, activations, [&](const StageUsage &usage) {
    return usage.bytes(run.free.point->choices);
  });
  known.least =
      bytesOf(state, activations, [](const StageUsage &usage) { return usage.leastBytes(); });
  StageUsage inner = run.problem->innerUsage(run.free.point->choices);
  known.freeInner = inner.bytes(run.free.point->choices);
  known.leastInner = inner.leastBytes();
  return llvm::Error::success();
}

/// The layers that a layer's answers on a way are those of.
llvm::SmallVector<unsigned> StageCosts::layersLike(unsigned example, unsigned way) const {
  llvm::ArrayRef<unsigned> kinds = layerKinds[variantOf(way)];
  llvm::SmallVector<unsigned> layers;
  for (auto [layer, kind] : llvm::enumerate(kinds))
    if (kind == kinds[example])
      layers.push_back(layer);
  return layers;
}

llvm::Error StageCosts::prepare() {
  bounds = std::make_unique<LayerBounds>(numWays(), numLayers(), options.mostInFlight);
  isAsked.assign(numWays(), false);
  // Layers whose bytes count alike.
  layerKinds.assign(variants.size(), {});
  for (unsigned variant = 0; variant < variants.size(); ++variant) {
    std::map<std::pair<unsigned, uint64_t>, unsigned> known;
    for (unsigned layer = 0; layer < numLayers(); ++layer) {
      std::pair<unsigned, uint64_t> key(classOfLayer(layer),
                                        variants[variant]->ranges.countingOf(layer));
      layerKinds[variant].push_back(known.try_emplace(key, known.size()).first->second);
    }
  }
  size_t solves = 0;
  for (llvm::ArrayRef<unsigned> kinds : layerKinds)
    solves += std::set<unsigned>(kinds.begin(), kinds.end()).size() * meshes.size();
  return solves <= options.mostAtOnce ? askAll() : boundBySingleDevices();
}

/// The mesh of one of its devices.
static cost::LogicalMesh singleDeviceOf(cost::LogicalMesh mesh) {
  mesh.shape.assign(1, 1);
  mesh.axes.assign(1, mesh.intraHost.among(1));
  mesh.devicesOnHost.assign(1, 1);
  mesh.devicesInRack.assign(1, 1);
  mesh.groupsPerHost.assign(1, 1);
  mesh.groupsPerRack.assign(1, 1);
  mesh.interHost = mesh.interRack = {};
  return mesh;
}

/// Devices of a mesh share at best all that one of them would do and hold.
llvm::Error StageCosts::boundBySingleDevices() {
  struct Single {
    unsigned variant, layer;
    cost::LogicalMesh mesh;
    LayerBounds::Layer known;
  };
  std::vector<Single> singles;
  std::map<std::string, unsigned> meshOf; // Kinds of single devices.
  std::vector<unsigned> kindOfMesh;
  std::map<std::array<unsigned, 3>, size_t> singleOf; // By kind, variant and kind of layer.
  for (unsigned index = 0; index < meshes.size(); ++index) {
    cost::LogicalMesh single = singleDeviceOf(meshes[index]);
    auto [it, isNew] = meshOf.try_emplace(cost::printMesh(single), meshOf.size());
    kindOfMesh.push_back(it->second);
    for (unsigned variant = 0; isNew && variant < variants.size(); ++variant)
      for (unsigned layer = 0; layer < numLayers(); ++layer)
        if (singleOf.try_emplace({it->second, variant, layerKinds[variant][layer]}, singles.size())
                .second)
          singles.push_back({variant, layer, single, {}});
  }
  llvm::Error error = forAll(context, singles.size(), [&](size_t i) -> llvm::Error {
    auto &[variant, layer, mesh, known] = singles[i];
    sharding::IntraOpOptions intraOp = intraOpOptions(variant * meshes.size());
    intraOp.filter = sharding::PlanFilter(); // A method leaves out some plans.
    llvm::Expected<std::unique_ptr<StageProblem>> problem = StageProblem::build(
        viewOf(layer, layer + 1, variant * meshes.size()), cost::CostModel(mesh), intraOp);
    if (!problem)
      return problem.takeError();
    llvm::Expected<StageProblem::Priced> free = (*problem)->solve(nullptr, 0, effort());
    if (!free)
      return free.takeError();
    const auto &uncounted = variants[variant]->ranges.countedBelow(layer);
    known.freeSeconds = free->boundSeconds;
    known.least = {(*problem)->stateUsage(uncounted).leastBytes(),
                   (*problem)->activationUsage(uncounted).leastBytes()};
    return llvm::Error::success();
  });
  if (error)
    return error;
  shares.resize(numWays());
  for (unsigned way = 0; way < numWays(); ++way) {
    int64_t devices = meshes[meshIndex(way)].numDevices();
    for (unsigned layer = 0; layer < numLayers(); ++layer) {
      LayerBounds::Layer known = singles[singleOf.at({kindOfMesh[meshIndex(way)], variantOf(way),
                                                      layerKinds[variantOf(way)][layer]})]
                                     .known;
      known.freeSeconds /= double(devices);
      known.least = {known.least.state / devices, known.least.activations / devices};
      bounds->setLayer(way, layer, known);
      shares[way].push_back(known);
    }
    bounds->update(way);
  }
  return llvm::Error::success();
}

schedule::ForEach StageCosts::forEach() const {
  return [context = context](size_t count, llvm::function_ref<void(size_t)> work) {
    parallelFor(context, 0, count, work);
  };
}

double StageCosts::leastSeconds(llvm::ArrayRef<unsigned> meshesOfViews) const {
  double sum = 0;
  for (unsigned layer = 0; layer < numLayers(); ++layer) {
    double least = kInfinity;
    for (unsigned variant = 0; variant < variants.size(); ++variant)
      for (unsigned mesh : meshesOfViews)
        least =
            std::min(least, bounds->freeSeconds(variant * meshes.size() + mesh, layer, layer + 1));
    sum += least;
  }
  return sum;
}

llvm::Error StageCosts::askAll() {
  std::set<unsigned> ways;
  for (unsigned way = 0; way < numWays(); ++way)
    if (!isAsked[way])
      ways.insert(way);
  return ask(ways);
}

/// Solves the single layers on these ways, without a limit.
llvm::Error StageCosts::ask(const std::set<unsigned> &ways) {
  struct Job {
    unsigned way;
    std::vector<unsigned> layers; // One of each kind.
    Run *run;
    bool isSolved = false; // Or else they were known.
  };
  std::vector<Job> jobs;
  std::map<std::pair<unsigned, unsigned>, size_t> jobOf; // By class and way.
  for (unsigned way : ways) {
    std::set<unsigned> seen;
    for (unsigned layer = 0; layer < numLayers(); ++layer) {
      if (!seen.insert(layerKinds[variantOf(way)][layer]).second)
        continue;
      std::pair<unsigned, unsigned> key(classOfLayer(layer), way);
      auto [it, isNew] = jobOf.try_emplace(key, jobs.size());
      if (isNew)
        jobs.push_back({way, {}, &runs[key]});
      jobs[it->second].layers.push_back(layer);
    }
  }
  llvm::Error error = forAll(context, jobs.size(), [&](size_t i) -> llvm::Error {
    Job &job = jobs[i];
    restore(*job.run, classOfLayer(job.layers.front()), job.way);
    size_t known = job.run->layers.size();
    for (unsigned layer : job.layers)
      if (llvm::Error error = askLayer(*job.run, layer, job.way))
        return error;
    job.isSolved = job.run->layers.size() > known;
    count(*job.run);
    job.run->problem.reset(); // Few are asked for again, and all together are large.
    return llvm::Error::success();
  });
  if (error)
    return error;
  for (const Job &job : jobs)
    for (unsigned example : job.layers) {
      const LayerFacts &facts =
          job.run->layers.at(variants[variantOf(job.way)]->ranges.countingOf(example));
      for (unsigned layer : layersLike(example, job.way)) {
        bounds->setLayer(job.way, layer, facts.known);
        for (const auto &[inFlight, curve] : facts.curves)
          if (inFlight <= options.mostInFlight)
            bounds->setCurve(job.way, layer, bounds->curveIndex(inFlight), curve);
      }
    }
  for (unsigned way : ways) {
    isAsked[way] = true;
    bounds->update(way);
    touchAll(way);
    if (variantOf(way) == 0)
      boundOtherVariants(way);
  }
  for (const Job &job : jobs)
    for (const auto &[inFlight, answer] : job.run->answers)
      addLevel(inFlight);
  size_t solved = llvm::count_if(jobs, [](const Job &job) { return job.isSolved; });
  solvedCount += solved;
  solvedLayers += solved;
  reusedCount += size_t(numLayers()) * ways.size() - jobs.size();
  return llvm::Error::success();
}

/// What a variant computes more than the first one, devices share at best.
void StageCosts::boundOtherVariants(unsigned way) {
  if (shares.empty())
    return;
  for (unsigned variant = 1; variant < variants.size(); ++variant) {
    unsigned other = variant * meshes.size() + way;
    if (isAsked[other])
      continue;
    for (unsigned layer = 0; layer < numLayers(); ++layer) {
      LayerBounds::Layer known = shares[other][layer], first = bounds->layerOf(way, layer);
      double more = known.freeSeconds - shares[way][layer].freeSeconds;
      known.numImpossible = first.numImpossible;
      known.freeSeconds = std::max(known.freeSeconds, first.freeSeconds + more);
      bounds->setLayer(other, layer, known);
    }
    bounds->update(other);
    touchAll(other);
  }
}

/// Those that the requests' views and others about as fast rest on. Of the first variant, which
/// bounds the others, those of all views of a submesh.
llvm::Error StageCosts::askFor(llvm::ArrayRef<Request> requests) {
  constexpr double kClose = 1.02;
  std::set<unsigned> ways;
  for (const Request &request : requests) {
    unsigned way = wayOf(request.id), first = variantOf(way) * meshes.size();
    if (isAsked[way])
      continue;
    bool isBounded = isAsked[meshIndex(way)];
    auto [lo, hi] = examples[classOf(request.id)];
    double most = kClose * bounds->freeSeconds(way, lo, hi);
    for (llvm::ArrayRef<unsigned> ofSubmesh : views)
      if (llvm::is_contained(ofSubmesh, meshIndex(way)))
        for (unsigned mesh : ofSubmesh) {
          unsigned other = isBounded ? first + mesh : mesh;
          if (!isAsked[other] && (!isBounded || bounds->freeSeconds(other, lo, hi) <= most))
            ways.insert(other);
        }
  }
  return ask(ways);
}

/// Solves the single layers that requests rest on, or lists their price curves, by class and way,
/// where these are not known. Returns the requests for which there is nothing to do.
llvm::Expected<std::vector<StageCosts::Request>>
StageCosts::priceLayers(llvm::ArrayRef<Request> requests, WantedCurves &curves) {
  std::set<std::array<unsigned, 3>> seen; // Way, kind and index.
  std::vector<Request> asked, others;
  llvm::copy_if(requests, std::back_inserter(asked),
                [&](const Request &request) { return isAsked[wayOf(request.id)]; });
  if (llvm::Error error = askFor(requests))
    return std::move(error);
  for (const Request &request : asked) {
    unsigned way = wayOf(request.id);
    auto [lo, hi] = examples[classOf(request.id)];
    bool isReady = true;
    if (isLimited(way) &&
        !bounds->fitsFreely(way, lo, hi, request.inFlight, memoryOf(way, request.inFlight))) {
      unsigned index = bounds->curveIndex(request.inFlight);
      for (unsigned layer = lo; layer < hi; ++layer) {
        if (bounds->hasCurve(way, layer, index))
          continue;
        isReady = false;
        if (seen.insert({way, layerKinds[variantOf(way)][layer], index}).second)
          curves[{classOfLayer(layer), way}].push_back({layer, index, nullptr});
      }
    }
    if (isReady)
      others.push_back(request);
  }
  return others;
}

llvm::Error StageCosts::traceCurves(Run &run, unsigned rangeClass, unsigned way,
                                    llvm::MutableArrayRef<WantedCurve> curves) const {
  constexpr double kTolerance = 0.003;
  constexpr unsigned kMostSolves = 10;
  StageProblem::Effort effort{std::min(options.workLimit, kLayerWork), options.timeLimitSeconds,
                              kLayerGap};
  if (llvm::Error error = state(run, rangeClass, way))
    return error;
  for (WantedCurve &one : curves) {
    const auto &uncounted = variants[variantOf(way)]->ranges.countedBelow(one.layer);
    StageUsage usage = run.problem->stateUsage(uncounted);
    usage.add(run.problem->activationUsage(uncounted), bounds->inFlightOf(one.index));
    llvm::Expected<PriceCurve> curve =
        tracePriceCurve(*run.problem, usage, run.free, kTolerance, kMostSolves, effort, run.points);
    if (!curve)
      return curve.takeError();
    one.curve = std::make_shared<PriceCurve>(std::move(*curve));
    run.layers.at(variants[variantOf(way)]->ranges.countingOf(one.layer))
        .curves[bounds->inFlightOf(one.index)] = one.curve;
    run.isNew = true;
  }
  return llvm::Error::success();
}

void StageCosts::takeCurves(const WantedCurves &curves) {
  std::set<unsigned> changed;
  for (const auto &[key, list] : curves)
    for (const WantedCurve &one : list) {
      unsigned way = key.second;
      for (unsigned layer : layersLike(one.layer, way))
        bounds->setCurve(way, layer, one.index, one.curve);
      changed.insert(way);
    }
  for (unsigned way : changed) {
    bounds->update(way);
    touchAll(way);
  }
}

//===----------------------------------------------------------------------===//
// What the stage DP may choose from
//===----------------------------------------------------------------------===//

/// For each number in flight the fastest of some views, and its bound where it is not
/// known.
void StageCosts::listChoices(unsigned rangeClass, llvm::ArrayRef<unsigned> views, bool onlySolved,
                             std::vector<StageChoice> &list) const {
  constexpr double kHopeless = 30; // Times as slow as without a limit.
  auto [lo, hi] = examples[rangeClass];
  list.clear();
  std::vector<StageChoice> fastest(levels.size(), {kInfinity, 0, 0, 0, 0});
  for (unsigned variant = 0; variant < variants.size(); ++variant)
    for (unsigned mesh : views) {
      unsigned way = variant * meshes.size() + mesh;
      unsigned id = (rangeClass * numWays() + way) * kSlots;
      const Run *run = findRun(rangeClass, way);
      // Where memory is no matter, or nothing was found even so, one answer is that for any
      // number in flight.
      bool isSettled = run && !run->answers.empty() && (!isLimited(way) || !run->free.point);
      double free = run && run->free.point ? run->bound() : bounds->freeSeconds(way, lo, hi);
      if (free == kInfinity)
        continue;
      double atLeast = 0; // With fewer in flight.
      for (auto [index, level] : llvm::enumerate(levels)) {
        int64_t last = index + 1 < levels.size() ? levels[index + 1] - 1 : options.mostInFlight;
        StageChoice choice{kInfinity, 0, 0, 0, id};
        if (std::optional<StageChoice> found = known(id, last))
          choice = *found;
        bool isSolved = isSettled;
        if (run && run->answers.count(level)) {
          // What fits with more in flight is no faster than what was found for fewer.
          std::optional<StageChoice> found = known(id, level);
          atLeast = std::max(atLeast, found ? found->seconds : kInfinity);
          isSolved |= level == last;
        }
        if (!isSolved && !onlySolved && atLeast < kInfinity) {
          double bound = free;
          if (isLimited(way))
            bound = std::max(bound, bounds->seconds(way, lo, hi, level, memoryOf(way, level)));
          bound = std::max(bound, atLeast);
          bool isHopeless = bound > kHopeless * free;
          int64_t bytes = isLimited(way) ? memoryOf(way, last) / last : 0;
          if (!isHopeless && bound < choice.seconds * (1 - options.tolerance / 4))
            choice = {bound, 0, bytes, 0, id + kHope, last};
        }
        if (choice.seconds < fastest[index].seconds)
          fastest[index] = choice;
      }
    }
  // What fits with more in flight also fits with fewer.
  double best = kInfinity;
  for (const StageChoice &choice : llvm::reverse(fastest))
    if (choice.seconds < best) {
      best = choice.seconds;
      list.push_back(choice);
    }
}

/// What is listed of a class of layer ranges, or of all, on the submeshes of a way is out of
/// date.
void StageCosts::touch(unsigned rangeClass, unsigned way) {
  for (Table &table : tables)
    for (unsigned submesh = 0; submesh < views.size(); ++submesh)
      if (llvm::is_contained(views[submesh], meshIndex(way)))
        table.isCurrent[rangeClass * views.size() + submesh] = false;
  for (Table &table : tablesOfMeshes)
    if (!table.isCurrent.empty())
      table.isCurrent[rangeClass * meshes.size() + meshIndex(way)] = false;
}

void StageCosts::touchAll(unsigned way) {
  for (unsigned rangeClass = 0; rangeClass < examples.size(); ++rangeClass)
    touch(rangeClass, way);
}

void StageCosts::refresh(bool onlySolved) {
  shown = onlySolved;
  Table &table = tables[shown];
  parallelFor(context, 0, examples.size(), [&](size_t rangeClass) {
    for (unsigned submesh = 0; submesh < views.size(); ++submesh) {
      size_t at = rangeClass * views.size() + submesh;
      if (!table.isCurrent[at])
        listChoices(rangeClass, views[submesh], onlySolved, table.choices[at]);
      table.isCurrent[at] = true;
    }
  });
}

llvm::ArrayRef<StageChoice> StageCosts::choices(unsigned lo, unsigned hi, unsigned submesh) const {
  return tables[shown].choices[classes[lo * (numLayers() + 1) + hi] * views.size() + submesh];
}

llvm::ArrayRef<StageChoice> StageCosts::choicesOn(unsigned lo, unsigned hi, unsigned mesh) {
  Table &table = tablesOfMeshes[shown];
  table.choices.resize(examples.size() * meshes.size());
  table.isCurrent.resize(table.choices.size(), false);
  unsigned rangeClass = classes[lo * (numLayers() + 1) + hi];
  size_t at = rangeClass * meshes.size() + mesh;
  if (!table.isCurrent[at])
    listChoices(rangeClass, mesh, shown, table.choices[at]);
  table.isCurrent[at] = true;
  return table.choices[at];
}

double StageCosts::weightPart(unsigned lo, unsigned hi, unsigned submesh) const {
  if (lo == 0)
    return 0; // Nobody waits for its gradients.
  double least = kInfinity, part = 0;
  for (unsigned way : views[submesh]) { // Of the first variant.
    LayerBounds::Layer sum = bounds->sumOf(way, lo, hi);
    if (sum.numImpossible || sum.freeSeconds <= 0 || sum.freeSeconds >= least)
      continue;
    least = sum.freeSeconds;
    part = std::min(1.0, sum.weightSeconds / sum.freeSeconds);
  }
  return part;
}

//===----------------------------------------------------------------------===//
// Solved stages from and to the store
//===----------------------------------------------------------------------===//

std::pair<LayerRangeKey, unsigned> StageCosts::cacheKey(unsigned rangeClass, unsigned way) const {
  unsigned variant = variantOf(way);
  return {variants[variant]->ranges.keyOf(parts[rangeClass][variant]), meshIndex(way)};
}

/// The name of the store's entry.
std::string StageCosts::nameOf(unsigned rangeClass, unsigned way) const {
  LayerRangeKey key = cacheKey(rangeClass, way).first;
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "run " << key[0] << ' ' << key[1] << "\nmesh " << meshKeys[meshIndex(way)] << "\nmemory "
     << options.memoryBytes[meshIndex(way)] << partName << "\nmicro-batches "
     << options.numMicroBatches << "\nwork " << llvm::format("%.17g", options.workLimit)
     << "\ntolerance " << llvm::format("%.17g", options.tolerance) << "\nmethod "
     << options.methodKey << (options.makesLoops ? "\nloops" : "");
  if (!options.pinKeys.empty())
    os << "\npins " << options.pinKeys[meshIndex(way)];
  return options.store->nameOf(text);
}

/// Takes over what is known of a run that is looked at for the first time.
void StageCosts::restore(Run &run, unsigned rangeClass, unsigned way) {
  if (run.isRestored)
    return;
  run.isRestored = true;
  if (options.known && run.points.empty() && run.layers.empty()) {
    auto known = options.known->runs.find(cacheKey(rangeClass, way));
    if (known != options.known->runs.end()) {
      unsigned usedAt = run.usedAt; // By the clock of this search.
      static_cast<SolvedRun &>(run) = known->second;
      run.usedAt = usedAt;
      run.isNew = true; // For the store, unless it has more.
      auto [lo, hi] = examples[rangeClass];
      if (run.problem && run.problem->getView().ops != viewOf(lo, hi, way).ops)
        run.problem.reset(); // Of equal ops, but of others.
    }
  }
  if (!options.store)
    return;
  std::optional<StoredRun> stored = options.store->load(nameOf(rangeClass, way));
  if (!stored)
    return;
  ++loadedCount;
  run.points.clear();
  run.isNew = false;
  for (StagePoint &point : stored->points)
    run.points.push_back(std::make_shared<StagePoint>(std::move(point)));
  run.free.boundSeconds = stored->freeBoundSeconds;
  run.boundSeconds = stored->boundSeconds;
  run.exposure = stored->exposure;
  if (stored->freePoint >= 0)
    run.free.point = run.points[stored->freePoint];
  for (const StoredRun::Answer &answer : stored->answers)
    run.answers[answer.inFlight] = {answer.point < 0 ? -1 : slotOf(run, run.points[answer.point]),
                                    answer.boundSeconds, answer.isImproved};
  run.layers = std::move(stored->layers);
}

/// For other searches: what is known whatever the limit.
void StageCosts::remember() {
  if (!options.known)
    return;
  SolvedRuns &known = *options.known;
  for (const auto &[key, run] : runs) {
    // What the clock ended another search would find otherwise.
    if (run.timedOut || (run.points.empty() && run.layers.empty()))
      continue;
    SolvedRun &kept = known.runs[cacheKey(key.first, key.second)] = run;
    kept.usedAt += known.clock;
  }
  known.clock += clock;
  std::vector<SolvedRun *> solved;
  for (auto &[key, run] : known.runs)
    solved.push_back(&run);
  dropProblems(solved);
}

void StageCosts::keep() {
  remember();
  constexpr uint64_t kMostBytes = uint64_t(512) << 20;
  if (!options.store)
    return;
  for (const auto &[key, run] : runs) {
    // What the clock ended another search would find otherwise.
    if (!run.isNew || run.timedOut)
      continue;
    StoredRun stored;
    std::map<const StagePoint *, int> numbers;
    auto numberOf = [&](const std::shared_ptr<StagePoint> &point) {
      auto [it, isNew] = numbers.try_emplace(point.get(), stored.points.size());
      if (isNew)
        stored.points.push_back(*point);
      return it->second;
    };
    stored.freeBoundSeconds = run.free.boundSeconds;
    stored.boundSeconds = run.boundSeconds;
    stored.exposure = run.exposure;
    if (run.free.point)
      stored.freePoint = numberOf(run.free.point);
    for (const auto &[inFlight, answer] : run.answers)
      stored.answers.push_back({inFlight, answer.slot < 0 ? -1 : numberOf(run.chosen[answer.slot]),
                                answer.boundSeconds, answer.isImproved});
    stored.layers = run.layers;
    options.store->save(nameOf(key.first, key.second), stored);
  }
  options.store->shrink(kMostBytes);
}
