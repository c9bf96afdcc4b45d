//===- StageProblem.cpp - a stage, solved at many prices ------------------===//

#include "compiler/Sharding/Problem/StageProblem.h"

#include "compiler/Sharding/Problem/LayerTies.h"
#include "compiler/Sharding/Problem/StageMemory.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/STLExtras.h"
#include <cmath>
#include <optional>

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;
using solver::CostSum;

static constexpr double kPicosecond = 1e-12;

int64_t StageUsage::bytes(llvm::ArrayRef<unsigned> choices) const {
  int64_t sum = fixedBytes;
  for (auto [usage, choice] : llvm::zip_equal(ofNode, choices))
    if (!usage.empty())
      sum += usage[choice];
  return sum;
}

int64_t StageUsage::leastBytes() const {
  int64_t sum = fixedBytes;
  for (const std::vector<int64_t> &usage : ofNode)
    if (!usage.empty())
      sum += *llvm::min_element(usage);
  return sum;
}

void StageUsage::add(const StageUsage &other, int64_t times) {
  fixedBytes += times * other.fixedBytes;
  for (auto [mine, theirs] : llvm::zip_equal(ofNode, other.ofNode)) {
    mine.resize(std::max(mine.size(), theirs.size()));
    for (size_t choice = 0; choice < theirs.size(); ++choice)
      mine[choice] += times * theirs[choice];
  }
}

llvm::Expected<std::unique_ptr<StageProblem>>
StageProblem::build(StageView view, const cost::CostModel &model, const IntraOpOptions &options) {
  std::unique_ptr<StageProblem> stage(new StageProblem(std::move(view), model, options));
  stage->options.memoryLimitBytes.reset();
  stage->options.microBatchesInFlight = 1;
  if (llvm::Error error = stage->builder.build())
    return error;
  stage->liveness = computeLiveness(stage->builder, stage->options);
  const std::vector<OpInfo> &ops = stage->builder.getOps();
  for (unsigned op : stage->liveness.order)
    stage->steadyEnd += ops[op].phase != OpPhase::Update;
  return stage;
}

/// Adds an item's bytes for each choice of its node, which is back at its first one then.
void StageProblem::addItem(const LiveItem &item, std::vector<unsigned> &choices,
                           solver::NodeBytes &bytes) const {
  unsigned &choice = choices[builder.getValues()[item.value].node];
  for (choice = 0; choice < bytes.size(); ++choice)
    bytes[choice] += itemBytes(builder, item, choices);
  choice = 0;
}

std::vector<llvm::SmallVector<solver::NodeBytes, 1>> StageProblem::bytesOfNodes() const {
  const std::vector<NodeInfo> &nodes = builder.getNodes();
  std::vector<llvm::SmallVector<solver::NodeBytes, 1>> kinds(nodes.size());
  std::vector<unsigned> choices(nodes.size(), 0);
  for (const LiveItem &item : liveness.items) {
    int node = builder.getValues()[item.value].node;
    if (node < 0)
      continue;
    solver::NodeBytes bytes(nodes[node].numChoices());
    addItem(item, choices, bytes);
    if (!llvm::is_contained(kinds[node], bytes))
      kinds[node].push_back(std::move(bytes));
  }
  return kinds;
}

solver::PricedProblem &StageProblem::priced(double exposure) const {
  auto known = pricedAt.find(exposure);
  if (known == pricedAt.end())
    known =
        pricedAt
            .try_emplace(exposure,
                         exposure == 0 ? builder.getProblem() : builder.exposedProblem(exposure),
                         bytesOfNodes())
            .first;
  return known->second;
}

double StageProblem::seconds(CostSum picoseconds, double fixedPicoseconds) const {
  return (double(picoseconds) + fixedPicoseconds) * kPicosecond / double(options.numMicroBatches);
}

llvm::Expected<StageProblem::Priced>
StageProblem::solve(const StageUsage *usage, double secondsPerByte, const Effort &effort) const {
  double picosecondsPerByte = secondsPerByte / kPicosecond * double(options.numMicroBatches);
  solver::SolveOptions solveOptions;
  solveOptions.workLimit = effort.workLimit;
  solveOptions.timeLimitSeconds = effort.timeLimitSeconds;
  solveOptions.acceptableGap = effort.acceptableGap;
  llvm::Expected<solver::Solution> solution =
      priced(effort.exposure)
          .solve(usage ? usage->ofNode : std::vector<solver::NodeBytes>(), picosecondsPerByte,
                 solveOptions);
  if (!solution)
    return solution.takeError();
  timedOut += solution->isOutOfTime;
  Priced answer;
  answer.boundSeconds =
      seconds(solution->lowerBound, double(builder.fixedPicoseconds(effort.exposure)));
  if (usage)
    answer.boundSeconds += secondsPerByte * double(usage->fixedBytes);
  if (solution->choices.empty() && !builder.getNodes().empty())
    return answer;
  CostSum objective = solver::evaluate(builder.getProblem(), solution->choices).objective;
  answer.point = measure(std::move(solution->choices), objective);
  return answer;
}

double StageProblem::countedSeconds(const StagePoint &point, double exposure) const {
  return seconds(builder.exposedObjective(point.choices, exposure),
                 double(builder.fixedPicoseconds(exposure)));
}

llvm::Expected<StageProblem::Exposed>
StageProblem::solveExposed(const Priced &free, Effort effort,
                           std::vector<std::shared_ptr<StagePoint>> &points) const {
  constexpr unsigned kMostSolves = 4;
  Exposed best{free.point, free.boundSeconds, 0};
  if (!free.point || free.point->exposedSeconds == 0)
    return best;
  // A plan's cost is a straight line of the exposure; where the cheapest known plans of its
  // two ends cost the same, another one may be cheaper.
  std::shared_ptr<StagePoint> left = free.point, right;
  double exposure = 1;
  for (unsigned i = 0; i < kMostSolves; ++i) {
    effort.exposure = exposure;
    llvm::Expected<Priced> priced = solve(nullptr, 0, effort);
    if (!priced)
      return priced.takeError();
    if (priced->boundSeconds > best.boundSeconds) {
      best.boundSeconds = priced->boundSeconds;
      best.exposure = exposure;
    }
    if (!priced->point)
      break;
    points.push_back(priced->point);
    if (priced->point->seconds < best.point->seconds)
      best.point = priced->point;
    (!right || priced->point->exposedSeconds == 0 ? right : left) = priced->point;
    double leftFalls = countedSeconds(*left, 1) - countedSeconds(*left, 0);
    double rightFalls = countedSeconds(*right, 1) - countedSeconds(*right, 0);
    double apart = countedSeconds(*right, 0) - countedSeconds(*left, 0);
    double next = leftFalls > rightFalls ? apart / (leftFalls - rightFalls) : 0;
    if (next <= 1e-3 || next >= 1 || std::abs(next - exposure) < 1e-3)
      break;
    exposure = next;
  }
  return best;
}

StageUsage StageProblem::usageOf(llvm::function_ref<bool(const LiveItem &)> counts) const {
  StageUsage usage;
  const std::vector<NodeInfo> &nodes = builder.getNodes();
  usage.ofNode.resize(nodes.size());
  std::vector<unsigned> choices(nodes.size(), 0);
  for (const LiveItem &item : liveness.items) {
    if (!counts(item))
      continue;
    int node = builder.getValues()[item.value].node;
    if (node < 0) {
      usage.fixedBytes += itemBytes(builder, item, choices);
      continue;
    }
    std::vector<int64_t> &bytes = usage.ofNode[node];
    bytes.resize(nodes[node].numChoices());
    addItem(item, choices, bytes);
  }
  return usage;
}

/// Whether it is a weight that this stage prepares for all micro-batches.
bool StageProblem::isPreparedHere(const LiveItem &item) const {
  const ValueInfo &value = builder.getValues()[item.value];
  return !value.isInput && !item.isInner && item.life.begin == 0 &&
         opPhaseOf(value.value.getDefiningOp()) == OpPhase::Prepare;
}

StageUsage StageProblem::stateUsage(const llvm::DenseSet<Value> &uncounted) const {
  return usageOf([&](const LiveItem &item) {
    return (item.lifetime == Lifetime::State || isPreparedHere(item)) &&
           !uncounted.contains(builder.getValues()[item.value].value);
  });
}

StageUsage StageProblem::activationUsage(const llvm::DenseSet<Value> &uncounted) const {
  return usageOf([&](const LiveItem &item) {
    return item.lifetime == Lifetime::Activation && !item.isOnHost &&
           !uncounted.contains(builder.getValues()[item.value].value);
  });
}

StageUsage StageProblem::innerUsage(llvm::ArrayRef<unsigned> choices) const {
  // When activations of hosts are on the device depends on other layers.
  auto counts = [&](const LiveItem &item) {
    return item.isInner && !item.isOnHost && !builder.getValues()[item.value].isHostActivation;
  };
  std::vector<int64_t> change(liveness.numTimes() + 1, 0);
  for (const LiveItem &item : liveness.items)
    if (counts(item)) {
      int64_t bytes = itemBytes(builder, item, choices);
      change[item.life.begin] += bytes;
      change[item.life.end] -= bytes;
    }
  int64_t live = 0, most = -1, fullest = 0;
  for (int64_t time = 0; time < steadyEnd; ++time) {
    live += change[time];
    if (live > most) {
      most = live;
      fullest = time;
    }
  }
  return usageOf([&](const LiveItem &item) {
    return counts(item) && item.life.begin <= fullest && fullest < item.life.end;
  });
}

StageUsage StageProblem::usageAt(int64_t time, int64_t inFlight) const {
  StageUsage usage = usageOf(
      [&](const LiveItem &item) { return item.life.begin <= time && time < item.life.end; });
  if (time < steadyEnd && inFlight > 1)
    usage.add(activationUsage(), inFlight - 1);
  if (time == liveness.hostTime() && inFlight > 1)
    usage.add(usageOf([](const LiveItem &item) {
                return item.lifetime == Lifetime::Activation && item.isOnHost;
              }),
              inFlight - 1);
  return usage;
}

std::shared_ptr<StagePoint> StageProblem::measure(std::vector<unsigned> choices,
                                                  CostSum objective) const {
  auto point = std::make_shared<StagePoint>();
  MemoryUse use = measureMemory(builder, liveness, choices);
  point->seconds = seconds(objective, double(builder.fixedPicoseconds()));
  point->stateBytes = use.stateBytes;
  point->activationBytes = use.activationBytes;
  point->hostActivationBytes = use.hostActivationBytes;
  point->hostTime = liveness.hostTime();
  for (auto [time, bytes] : llvm::enumerate(use.bytesAt)) {
    if (int64_t(time) == liveness.hostTime()) {
      point->hostBytes = bytes;
      continue;
    }
    bool isSteady = int64_t(time) < steadyEnd;
    int64_t &peak = isSteady ? point->steadyBytes : point->updateBytes;
    if (bytes > peak) {
      peak = bytes;
      (isSteady ? point->steadyTime : point->updateTime) = time;
    }
  }
  PhaseSeconds run = builder.phaseSeconds(choices);
  point->exposedSeconds = run.exposedInStep / double(options.numMicroBatches);
  point->copySeconds = run.copiesInStep / double(options.numMicroBatches);
  point->seconds += point->exposedSeconds + point->copySeconds;
  point->times.setSeconds(run.seconds);
  point->choices = std::move(choices);
  return point;
}

std::shared_ptr<StagePoint> StageProblem::evaluate(std::vector<unsigned> choices) const {
  const solver::Problem &problem = builder.getProblem();
  if (choices.size() != problem.nodes.size())
    return nullptr;
  for (auto [node, choice] : llvm::zip_equal(problem.nodes, choices))
    if (choice >= node.costs.size())
      return nullptr;
  solver::Evaluation evaluation = solver::evaluate(problem, choices);
  return evaluation.feasible ? measure(std::move(choices), evaluation.objective) : nullptr;
}

/// For each node the forward equation that it belongs to.
std::vector<int64_t> StageProblem::findEquations() const {
  auto equationOf = [](Operation *op) {
    auto eqn = op->getAttrOfType<IntegerAttr>(attr::eqn);
    return eqn ? eqn.getInt() : -1;
  };
  std::vector<int64_t> equations;
  for (const NodeInfo &node : builder.getNodes()) {
    Operation *source = node.value.getDefiningOp();
    int64_t equation = source && builder.isInStage(source) ? equationOf(source) : -1;
    // Inputs are where they are read first.
    for (Operation *user : node.value.getUsers()) {
      if (source && builder.isInStage(source))
        break;
      int64_t other = builder.isInStage(user) ? equationOf(user) : -1;
      if (other >= 0 && (equation < 0 || other < equation))
        equation = other;
    }
    equations.push_back(equation);
  }
  return equations;
}

std::shared_ptr<StagePoint> StageProblem::mix(const StagePoint &a, const StagePoint &b,
                                              int64_t inFlight, int64_t limitBytes) const {
  constexpr size_t kMostCuts = 24;
  std::vector<int64_t> equations = findEquations(), cuts = equations;
  llvm::sort(cuts);
  cuts.erase(llvm::unique(cuts), cuts.end());
  size_t stride = cuts.size() / kMostCuts + 1;
  std::shared_ptr<StagePoint> best;
  for (size_t cut = stride; cut < cuts.size(); cut += stride)
    for (const StagePoint *first : {&a, &b}) {
      const StagePoint &second = first == &a ? b : a;
      std::vector<unsigned> choices = second.choices;
      for (size_t node = 0; node < choices.size(); ++node)
        if (equations[node] < cuts[cut])
          choices[node] = first->choices[node];
      std::shared_ptr<StagePoint> point = evaluate(std::move(choices));
      if (point && point->peakBytes(inFlight) <= limitBytes &&
          (!best || point->seconds < best->seconds))
        best = std::move(point);
    }
  return best;
}

llvm::Expected<std::shared_ptr<StagePoint>>
StageProblem::alignLayers(std::shared_ptr<StagePoint> point, double mostSeconds, int64_t mostBytes,
                          int64_t inFlight, bool mayDiffer, const Effort &effort) const {
  LayerTies ties(builder, findEquations(), findLayerEntries(view));
  if (ties.empty())
    return point;
  solver::SolveOptions solveOptions;
  solveOptions.workLimit = effort.workLimit;
  solveOptions.timeLimitSeconds = effort.timeLimitSeconds;
  std::map<double, std::optional<solver::Problem>> problems; // By exposure.
  for (double exposure : {0.0, effort.exposure})
    problems.try_emplace(exposure);
  llvm::SmallVector<LayerTies::Ends> tried{{false, false}};
  if (mayDiffer)
    tried.append({{true, false}, {false, true}, {true, true}});
  for (LayerTies::Ends free : tried) {
    if (point && ties.holdFor(point->choices, free))
      return point;
    std::shared_ptr<StagePoint> best;
    auto offer = [&](std::vector<unsigned> choices) {
      if (!ties.holdFor(choices, free))
        return;
      std::shared_ptr<StagePoint> other = evaluate(std::move(choices));
      if (other && other->seconds <= mostSeconds && other->peakBytes(inFlight) <= mostBytes &&
          (!best || other->seconds < best->seconds))
        best = std::move(other);
    };
    if (point)
      offer(ties.likeMost(point->choices, free));
    for (auto &[exposure, problem] : problems) {
      if (!problem)
        problem = builder.exposedProblem(exposure);
      std::vector<unsigned> variableOf;
      solver::Problem tied = ties.tie(*problem, free, variableOf);
      llvm::Expected<solver::Solution> solution = solver::solveInUnits(tied, solveOptions);
      if (!solution)
        return solution.takeError();
      timedOut += solution->isOutOfTime;
      if (solution->choices.empty())
        continue;
      std::vector<unsigned> choices;
      for (unsigned variable : variableOf)
        choices.push_back(solution->choices[variable]);
      offer(std::move(choices));
    }
    if (best)
      return best;
  }
  return std::shared_ptr<StagePoint>();
}

IntraOpResult StageProblem::result(const StagePoint &point, double boundSeconds,
                                   int64_t inFlight) const {
  IntraOpOptions flying = options;
  flying.microBatchesInFlight = inFlight;
  IntraOpResult result;
  solver::Solution &solution = result.solution;
  solution.choices = point.choices;
  solution.objective =
      solver::evaluate(builder.getProblem(), point.choices).objective +
      toPicoseconds((point.exposedSeconds + point.copySeconds) * double(options.numMicroBatches));
  double bound = boundSeconds * double(options.numMicroBatches) / kPicosecond -
                 double(builder.fixedPicoseconds());
  solution.lowerBound = std::min(solution.objective, CostSum(std::max(0.0, std::min(bound, 1e30))));
  // What is lost by counting in doubles is no gap.
  if (double(solution.objective - solution.lowerBound) <= 1e-9 * double(solution.objective))
    solution.lowerBound = solution.objective;
  solution.status = solution.lowerBound == solution.objective ? solver::SolveStatus::Optimal
                                                              : solver::SolveStatus::Feasible;
  if (solution.objective > 0)
    solution.gap = double(solution.objective - solution.lowerBound) / double(solution.objective);
  solution.nodes = builder.getNodes().size();
  for (const solver::ProblemNode &node : builder.getProblem().nodes)
    result.choices += node.costs.size();
  MemoryUse use = measureMemory(builder, computeLiveness(builder, flying), point.choices);
  solution.peakUsageBytes = use.peakBytes;
  reportPlan(builder, use, result);
  return result;
}

size_t StageProblem::numBytes() const {
  size_t numbers = 0;
  for (const solver::ProblemEdge &edge : builder.getProblem().edges)
    numbers += edge.costs.size();
  // What the matrices were made of is about as large as they are.
  size_t bytes = 2 * sizeof(int64_t) * numbers;
  for (const auto &[exposure, problem] : pricedAt)
    bytes += problem.numBytes();
  return bytes;
}
