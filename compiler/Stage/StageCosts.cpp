//===- StageCosts.cpp - seconds and bytes of possible stages --------------===//

#include "compiler/Stage/StageCosts.h"

#include "mlir/IR/Threading.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Seconds of layers for which there is no plan at all; can be added up.
static constexpr double kImpossible = 1e30;
static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
/// Of one layer at one price, and of one stage. What is left of the gap is in the
/// bound.
static constexpr double kLayerSeconds = 0.05, kLayerGap = 5e-3, kStageSeconds = 1;

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
}

size_t StageCosts::numPossible() const {
  return size_t(numLayers()) * (numLayers() + 1) / 2 * numWays();
}

IntraOpOptions StageCosts::intraOpOptions(unsigned way) const {
  IntraOpOptions intraOp;
  intraOp.numMicroBatches = options.numMicroBatches;
  intraOp.timeLimitSeconds = options.timeLimitSeconds;
  if (!options.filters.empty())
    intraOp.filter = options.filters[meshIndex(way)];
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

/// Solves single layers without a limit and at the prices at which they change.
llvm::Error StageCosts::prepare() {
  bounds = std::make_unique<LayerBounds>(numWays(), numLayers(), options.mostInFlight);
  struct Job {
    unsigned layer, way;
    bool isExample; // Of its class, whose answer it is.
    Run run;
    std::vector<PriceCurve> curves; // By ratio.
  };
  std::vector<Job> jobs;
  std::map<std::tuple<unsigned, uint64_t, unsigned>, size_t> jobOf;
  std::map<std::pair<unsigned, unsigned>, bool> seen;
  auto keyOf = [&](unsigned layer, unsigned way) {
    return std::make_tuple(classes[layer * (numLayers() + 1) + layer + 1],
                           classesOf[variantOf(way)].countingOf(layer), way);
  };
  for (unsigned layer = 0; layer < numLayers(); ++layer)
    for (unsigned way = 0; way < numWays(); ++way) {
      auto key = keyOf(layer, way);
      if (!jobOf.try_emplace(key, jobs.size()).second)
        continue;
      bool isFirst = seen.try_emplace({std::get<0>(key), way}, true).second;
      jobs.push_back({layer, way, isFirst, {}, {}});
    }
  constexpr double kTolerance = 0.01;
  constexpr unsigned kMostSolves = 7;
  StageProblem::Effort effort{std::min(options.timeLimitSeconds, kLayerSeconds), kLayerGap};
  llvm::Error error = forAll(jobs.size(), [&](size_t i) -> llvm::Error {
    Job &job = jobs[i];
    unsigned runClass = classes[job.layer * (numLayers() + 1) + job.layer + 1];
    llvm::Expected<std::unique_ptr<StageProblem>> problem =
        build(job.layer, job.layer + 1, job.way);
    if (!problem)
      return problem.takeError();
    job.run.problem = std::move(*problem);
    if (llvm::Error error = state(job.run, runClass, job.way))
      return error;
    job.curves.resize(bounds->ratios().size());
    const auto &uncounted = classesOf[variantOf(job.way)].countedBelow(job.layer);
    StageUsage stateBytes = job.run.problem->stateUsage(uncounted);
    StageUsage activationBytes = job.run.problem->activationUsage(uncounted);
    for (auto [ratio, inFlight] : llvm::enumerate(bounds->ratios())) {
      job.curves[ratio].known.push_back(
          {0, job.run.free.point ? job.run.free.boundSeconds : kImpossible});
      if (!job.run.free.point || memoryOf(job.way) == kNoLimit)
        continue;
      StageUsage usage = stateBytes;
      usage.add(activationBytes, inFlight);
      llvm::Expected<PriceCurve> curve = tracePriceCurve(
          *job.run.problem, usage, job.run.free, kTolerance, kMostSolves, effort, job.run.points);
      if (!curve)
        return curve.takeError();
      job.curves[ratio] = std::move(*curve);
    }
    job.run.problem.reset();
    return llvm::Error::success();
  });
  if (error)
    return error;
  for (unsigned way = 0; way < numWays(); ++way) {
    std::vector<std::vector<const PriceCurve *>> curves(numLayers());
    for (unsigned layer = 0; layer < numLayers(); ++layer)
      for (const PriceCurve &curve : jobs[jobOf[keyOf(layer, way)]].curves)
        curves[layer].push_back(&curve);
    bounds->set(way, curves);
  }
  for (Job &job : jobs)
    if (job.isExample)
      runs[{classes[job.layer * (numLayers() + 1) + job.layer + 1], job.way}] = std::move(job.run);
  solvedCount += jobs.size();
  reusedCount += size_t(numLayers()) * numWays() - jobs.size();
  return llvm::Error::success();
}

void StageCosts::ignoreMemory() {
  llvm::fill(options.memoryBytes, kNoLimit);
  for (auto &[key, run] : runs) {
    run.answers.clear();
    if (run.free.point)
      slotOf(run, run.free.point);
  }
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
  llvm::Expected<RunAnswer> found = solveWithin(
      *run.problem, run.free, inFlight, memoryOf(way), options.tolerance / 4,
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
  return llvm::Error::success();
}

llvm::Error StageCosts::solve(llvm::ArrayRef<Request> requests) {
  std::map<std::pair<unsigned, unsigned>, std::set<int64_t>> wanted;
  for (const Request &request : requests) {
    std::pair<unsigned, unsigned> key(classOf(request.id), wayOf(request.id));
    auto run = runs.find(key);
    if (run != runs.end() && run->second.answers.count(request.inFlight))
      ++reusedCount;
    else
      reusedCount += !wanted[key].insert(request.inFlight).second;
    addLevel(request.inFlight);
  }
  struct Job {
    std::pair<unsigned, unsigned> key;
    const std::set<int64_t> *inFlight;
    Run *run;
  };
  std::vector<Job> jobs;
  for (auto &[key, inFlight] : wanted)
    if (!inFlight.empty()) {
      jobs.push_back({key, &inFlight, &runs[key]});
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
    if (llvm::Error error = state(*jobs[i].run, runClass, way))
      return error;
    for (int64_t inFlight : llvm::reverse(*jobs[i].inFlight))
      if (llvm::Error error = answer(*jobs[i].run, runClass, way, inFlight))
        return error;
    return llvm::Error::success();
  });
  solvedCount += jobs.size();
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
  Answer &answer = run.answers[inFlight];
  answer.isImproved = true;
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

/// For each number in flight the fastest of all views, and its bound where it is not
/// known.
void StageCosts::listChoices(unsigned runClass, unsigned submesh, bool onlySolved,
                             std::vector<StageChoice> &list) const {
  constexpr double kHopeless = 30; // Times as slow as without a limit.
  auto [lo, hi] = examples[runClass];
  list.clear();
  std::vector<StageChoice> fastest(levels.size(), {kInfinity, 0, 0, 0, 0});
  for (unsigned variant = 0; variant < variants.size(); ++variant)
    for (unsigned mesh : views[submesh]) {
      unsigned way = variant * meshes.size() + mesh;
      unsigned id = (runClass * numWays() + way) * kSlots;
      int64_t memory = memoryOf(way);
      const Run *run = findRun(runClass, way);
      double free = run && run->free.point ? run->free.boundSeconds
                                           : bounds->seconds(way, lo, hi, 1, kNoLimit / 2);
      if (free >= kImpossible)
        continue;
      double atLeast = 0; // With fewer in flight.
      for (auto [index, level] : llvm::enumerate(levels)) {
        int64_t last = index + 1 < levels.size() ? levels[index + 1] - 1 : options.mostInFlight;
        StageChoice choice{kInfinity, 0, 0, 0, id};
        if (std::optional<StageChoice> found = known(id, last))
          choice = *found;
        bool isSolved = false;
        if (run && run->answers.count(level)) {
          // What fits with more in flight is no faster than what was found for fewer.
          std::optional<StageChoice> found = known(id, level);
          atLeast = std::max(atLeast, found ? found->seconds : kInfinity);
          isSolved = level == last;
        }
        if (!isSolved && !onlySolved && atLeast < kInfinity) {
          double bound = free;
          if (memory < kNoLimit)
            bound = std::max(bound, bounds->seconds(way, lo, hi, level, memory));
          bound = std::max(bound, atLeast);
          bool isHopeless = bound > kHopeless * free;
          if (!isHopeless && bound < choice.seconds * (1 - options.tolerance / 4))
            choice = {bound, 0, memory < kNoLimit ? memory / last : 0, 0, id + kHope};
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

void StageCosts::refresh(bool onlySolved) {
  table.resize(examples.size() * views.size());
  parallelFor(context, 0, examples.size(), [&](size_t runClass) {
    for (unsigned submesh = 0; submesh < views.size(); ++submesh)
      listChoices(runClass, submesh, onlySolved, table[runClass * views.size() + submesh]);
  });
}

llvm::ArrayRef<StageChoice> StageCosts::choices(unsigned lo, unsigned hi, unsigned submesh) const {
  return table[classes[lo * (numLayers() + 1) + hi] * views.size() + submesh];
}

const IntraOpResult *StageCosts::timesOf(unsigned id) const {
  return &findRun(classOf(id), wayOf(id))->chosen[id % kSlots]->times;
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
  return std::make_shared<IntraOpResult>((*problem)->result(*mine, bound, inFlight));
}

llvm::Expected<Explanation> StageCosts::explain(const PlannedStage &stage,
                                                const IntraOpResult &result) const {
  unsigned way = wayOf(stage.choice.id);
  return explainIntraOp(viewOf(stage.lo, stage.hi, way), modelOf(way), intraOpOptions(way),
                        result.solution.choices);
}
