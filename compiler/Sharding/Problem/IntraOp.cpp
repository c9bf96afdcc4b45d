//===- IntraOp.cpp - the best way to split a stage on one mesh ------------===//

#include "compiler/Sharding/Problem/IntraOp.h"

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Sharding/Problem/StageMemory.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/STLExtras.h"

#include <chrono>
#include <limits>

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;
using cost::CostModel;
using solver::kForbiddenCost;
using solver::Problem;
using solver::Solution;

//===----------------------------------------------------------------------===//
// What a stage cannot do without
//===----------------------------------------------------------------------===//

namespace {

/// The smallest memory in which the stage's plans fit.
struct LeastMemory {
  int64_t lowerBytes = 0;        // No plan needs less.
  int64_t upperBytes = 0;        // A plan needs this.
  bool isOutOfTime = false;      // The clock ended the search.
  std::vector<unsigned> choices; // That plan.
};

} // namespace

/// Minimizes the peak by minimizing weighted sums of the bytes at some moments,
/// of which each bounds it from below; the answer's fullest moment gets more
/// weight until the two bounds meet, or for some rounds.
static LeastMemory findLeastMemory(const ProblemBuilder &builder, const Liveness &liveness,
                                   double timeLimitSeconds) {
  constexpr unsigned kMaxRounds = 24;
  constexpr double kWorkPerRound = 2.5e8; // About half a second.
  LeastMemory least;
  least.upperBytes = std::numeric_limits<int64_t>::max();
  // What may be combined counts, what it costs does not.
  Problem sums = builder.getProblem();
  llvm::erase_if(sums.edges, [](solver::ProblemEdge &edge) {
    for (int64_t &cost : edge.costs)
      cost = cost < kForbiddenCost ? 0 : kForbiddenCost;
    return llvm::all_of(edge.costs, [](int64_t cost) { return cost == 0; });
  });
  for (solver::ProblemNode &node : sums.nodes)
    for (int64_t &cost : node.costs)
      cost = cost < kForbiddenCost ? 0 : kForbiddenCost;
  int64_t fixedBytes = 0; // What no choice changes, as often as it was counted.
  std::vector<unsigned> choices(sums.nodes.size(), 0);
  for (unsigned round = 1; round <= kMaxRounds; ++round) {
    // One more count of the fullest moment.
    int64_t time = measureMemory(builder, liveness, choices).peakTime;
    Problem moment = builder.getProblem();
    addMemory(moment, builder, liveness, std::numeric_limits<int64_t>::max(), {time});
    for (auto [i, node] : llvm::enumerate(moment.nodes)) {
      if (i >= sums.nodes.size()) {
        fixedBytes += node.usagesBytes.front();
        continue;
      }
      for (auto [cost, bytes] : llvm::zip(sums.nodes[i].costs, node.usagesBytes))
        if (cost < kForbiddenCost)
          cost += bytes;
    }
    solver::SolveOptions options;
    options.workLimit = kWorkPerRound;
    options.timeLimitSeconds = timeLimitSeconds;
    llvm::Expected<Solution> solution = solver::solve(sums, options);
    if (!solution) {
      llvm::consumeError(solution.takeError());
      break;
    }
    least.isOutOfTime |= solution->isOutOfTime;
    if (solution->choices.empty() && !sums.nodes.empty())
      break;
    auto bound = static_cast<int64_t>((solution->lowerBound + fixedBytes + round - 1) / round);
    least.lowerBytes = std::max(least.lowerBytes, bound);
    choices = solution->choices;
    int64_t peak = measureMemory(builder, liveness, choices).peakBytes;
    if (peak < least.upperBytes) {
      least.upperBytes = peak;
      least.choices = choices;
    }
    if (least.lowerBytes >= least.upperBytes)
      break;
  }
  return least;
}

static std::string describe(Value value) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto argument = llvm::dyn_cast<BlockArgument>(value)) {
    auto function = llvm::dyn_cast<FunctionOpInterface>(argument.getOwner()->getParentOp());
    auto name = function
                    ? function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::name)
                    : StringAttr();
    if (name)
      os << name.getValue();
    else
      os << "argument " << argument.getArgNumber();
  } else {
    os << "a result of '" << value.getDefiningOp()->getName() << "'";
  }
  os << " : " << value.getType();
  return text;
}

/// Why nothing fits: the smallest memory that would do, the fullest moment of the
/// plan that needs least, and what takes most room then. `isProven` says that
/// nothing fits for certain.
static std::string explainInfeasible(const ProblemBuilder &builder, const Liveness &liveness,
                                     const LeastMemory &least, int64_t limitBytes, bool isProven) {
  if (least.choices.empty())
    return "no combination of choices is allowed at all";
  std::string text;
  llvm::raw_string_ostream os(text);
  int64_t lower = least.lowerBytes;
  if (isProven)
    lower = std::max(lower, std::min(limitBytes + 1, least.upperBytes));
  if (lower >= least.upperBytes)
    os << "the smallest memory that would do is " << least.upperBytes << " bytes";
  else
    os << least.upperBytes << " bytes would do, fewer than " << lower << " would not";
  MemoryUse use = measureMemory(builder, liveness, least.choices);
  if (liveness.order.empty())
    return text;
  if (use.peakTime >= liveness.end()) {
    os << "; most of it, for " << use.hostBytes
       << " bytes in the part that a device has of its host's memory";
    return text;
  }
  const OpInfo &op = builder.getOps()[liveness.order[use.peakTime]];
  os << "; the fullest moment is then '" << op.op->getName() << "' of the " << phaseName(op.phase)
     << " phase at " << op.op->getLoc() << ", which needs";
  // A value in several copies or roles is one tensor.
  std::vector<std::pair<int64_t, unsigned>> live;
  llvm::DenseMap<unsigned, size_t> places;
  for (const LiveItem &item : liveness.items) {
    int64_t bytes = itemBytes(builder, item, least.choices);
    if (bytes == 0 || item.life.begin > use.peakTime || item.life.end <= use.peakTime)
      continue;
    auto [it, isNew] = places.try_emplace(item.value, live.size());
    if (isNew)
      live.emplace_back(0, item.value);
    live[it->second].first -= bytes;
  }
  llvm::sort(live);
  constexpr size_t kNamed = 6;
  for (size_t i = 0; i < std::min(kNamed, live.size()); ++i)
    os << (i ? ", " : " ") << -live[i].first << " bytes for "
       << describe(builder.getValues()[live[i].second].value);
  if (live.size() > kNamed) {
    int64_t rest = 0;
    for (size_t i = kNamed; i < live.size(); ++i)
      rest -= live[i].first;
    os << ", and " << rest << " for " << live.size() - kNamed << " more";
  }
  return text;
}

//===----------------------------------------------------------------------===//
// The best way to split a stage on one mesh
//===----------------------------------------------------------------------===//

static double secondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

static size_t rankOf(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type ? type.getRank() : 0;
}

const ShardingSpec *IntraOpResult::heldFor(Operation *user, Value value) const {
  if (opPhaseOf(user) == OpPhase::Update)
    if (auto sum = sumSpecs.find(value); sum != sumSpecs.end())
      return &sum->second;
  auto held = specs.find(value);
  return held == specs.end() ? nullptr : &held->second;
}

llvm::Expected<Problem> sharding::buildIntraOpProblem(const StageView &stage,
                                                      const CostModel &model,
                                                      const IntraOpOptions &options) {
  ProblemBuilder builder(stage, model, options);
  if (llvm::Error error = builder.build())
    return error;
  Problem problem = builder.getProblem();
  if (options.memoryLimitBytes)
    addMemory(problem, builder, computeLiveness(builder, options), *options.memoryLimitBytes);
  return problem;
}

llvm::DenseMap<Value, ShardingSpec> sharding::heldSpecs(const ProblemBuilder &builder,
                                                        llvm::ArrayRef<unsigned> choices) {
  llvm::DenseMap<Value, ShardingSpec> specs;
  for (const ValueInfo &info : builder.getValues())
    if (!info.isScratch && info.sumOf < 0)
      specs[info.value] =
          builder.specOf(info, choices).unpack(rankOf(info.value), builder.getMeshShape().size());
  return specs;
}

/// Specs of all values, and the uses that want another one.
static void readSpecs(const ProblemBuilder &builder, IntraOpResult &result) {
  unsigned numAxes = builder.getMeshShape().size();
  llvm::ArrayRef<unsigned> choices = result.solution.choices;
  result.specs = heldSpecs(builder, choices);
  std::vector<PackedSpec> specs;
  for (const ValueInfo &info : builder.getValues())
    specs.push_back(info.isScratch   ? PackedSpec()
                    : info.sumOf < 0 ? builder.specOf(info, choices)
                                     : builder.completionOf(info, choices).summed);
  for (auto [info, spec] : llvm::zip_equal(builder.getValues(), specs)) {
    if (info.isScratch)
      continue;
    if (info.isMoved && info.sumOf < 0)
      if (PackedSpec made = builder.specOf(info.madeNode, info.madeTable, choices); made != spec)
        result.madeSpecs[info.value] = made.unpack(rankOf(info.value), numAxes);
    if (info.sumOf >= 0 && specs[info.sumOf].isUnreduced())
      result.sumSpecs[info.value] = spec.unpack(rankOf(info.value), numAxes);
  }
  for (const OperandDemand &demand : builder.getDemands()) {
    PackedSpec wanted = builder.specOf(demand.node, demand.table, choices);
    if (demand.user && wanted != specs[demand.value])
      result.useSpecs[{demand.user, demand.operand}] =
          wanted.unpack(rankOf(builder.getValues()[demand.value].value), numAxes);
  }
  for (const OpPart &part : builder.getParts())
    if (part.leads && part.node >= 0 &&
        builder.getNodes()[part.node].strategies[choices[part.node]].gathersKeys)
      result.gatherKeys.insert(builder.getOps()[part.op].op);
}

void IntraOpResult::setSeconds(const std::array<double, kNumPhases> &phases) {
  forwardSeconds = phases[unsigned(OpPhase::Forward)];
  prepareSeconds = phases[unsigned(OpPhase::Prepare)];
  barrierSeconds = phases[unsigned(OpPhase::Barrier)];
  backwardSeconds = phases[unsigned(OpPhase::Backward)];
  updateSeconds = phases[unsigned(OpPhase::Update)];
}

void sharding::reportPlan(const ProblemBuilder &builder, const MemoryUse &use,
                          IntraOpResult &result) {
  PhaseSeconds run = builder.phaseSeconds(result.solution.choices);
  result.setSeconds(run.seconds);
  result.stateBytes = use.stateBytes;
  result.activationBytes = use.activationBytes;
  result.temporaryBytes = use.temporaryBytes();
  result.hostBytes = use.hostBytes;
  result.hostSeconds =
      toSeconds(static_cast<double>(builder.hostPicoseconds(result.solution.choices))) +
      run.copiesInStep;
  result.hiddenHostSeconds = run.hiddenCopiesInStep;
  result.hostExcessBytes = use.peakBytes - use.deviceBytes;
  result.scratchBytes = use.scratchBytes;
  readSpecs(builder, result);
}

/// What the problem does not count: collectives that nothing is left to hide, and waiting for
/// copies of activations.
static void countExposed(const ProblemBuilder &builder, IntraOpResult &result) {
  Solution &solution = result.solution;
  PhaseSeconds run = builder.phaseSeconds(solution.choices);
  double seconds = run.exposedInStep + run.copiesInStep;
  if (seconds == 0)
    return;
  solution.objective += toPicoseconds(seconds);
  solution.status = solver::SolveStatus::Feasible;
  solution.gap = double(solution.objective - solution.lowerBound) / double(solution.objective);
}

/// Two ways to count the same bytes: values and when they live, and the problem.
static llvm::Error checkAgreement(const MemoryUse &use, int64_t peakUsageBytes) {
  if (use.peakBytes == peakUsageBytes)
    return llvm::Error::success();
  return llvm::createStringError("internal error: the problem counts %lld bytes a device, its "
                                 "values add up to %lld",
                                 static_cast<long long>(peakUsageBytes),
                                 static_cast<long long>(use.peakBytes));
}

static unsigned countChoices(const Problem &problem) {
  unsigned choices = 0;
  for (const solver::ProblemNode &node : problem.nodes)
    choices += node.costs.size();
  return choices;
}

namespace {

class IntraOpSolver {
public:
  IntraOpSolver(const StageView &stage, const CostModel &model, const IntraOpOptions &options)
      : builder(stage, model, options), options(options) {}

  llvm::Expected<IntraOpResult> run() {
    auto start = std::chrono::steady_clock::now();
    if (llvm::Error error = builder.build())
      return error;
    const Problem &problem = builder.getProblem();
    result.choices = countChoices(problem);
    result.buildSeconds = secondsSince(start);

    // Memory is left out while the fastest plan fits: the problem is then much
    // smaller.
    solver::SolveOptions solveOptions;
    solveOptions.workLimit = options.workLimit;
    solveOptions.timeLimitSeconds = options.timeLimitSeconds;
    llvm::Expected<Solution> solution = solver::solveInUnits(problem, solveOptions);
    if (!solution)
      return solution.takeError();
    result.solution = std::move(*solution);
    if (result.solution.choices.empty() && !problem.nodes.empty())
      return std::move(result);
    liveness = computeLiveness(builder, options);
    use = measureMemory(builder, liveness, result.solution.choices);
    if (options.memoryLimitBytes && use.peakBytes > *options.memoryLimitBytes)
      if (llvm::Error error = solveWithin(*options.memoryLimitBytes))
        return error;
    if (result.solution.status == solver::SolveStatus::Infeasible)
      return std::move(result);
    reportPlan(builder, use, result);
    countExposed(builder, result);
    return std::move(result);
  }

private:
  llvm::Error solveWithin(int64_t limitBytes) {
    auto start = std::chrono::steady_clock::now();
    Problem problem = builder.getProblem();
    addMemory(problem, builder, liveness, limitBytes);
    result.buildSeconds += secondsSince(start);
    Solution free = std::move(result.solution);
    solver::SolveOptions solveOptions;
    // With a reserve, so that there is an answer at all.
    solveOptions.workLimit = std::max(0.1 * options.workLimit, options.workLimit - free.work);
    solveOptions.timeLimitSeconds = options.timeLimitSeconds;
    solveOptions.spentSeconds = free.seconds;
    solveOptions.acceptableGap = options.acceptableGap;
    llvm::Expected<Solution> solution = solver::solveInUnits(problem, solveOptions);
    if (!solution)
      return solution.takeError();
    result.solution = std::move(*solution);
    result.solution.isOutOfTime |= free.isOutOfTime;
    result.solution.lowerBound = std::max(result.solution.lowerBound, free.lowerBound);
    if (result.solution.choices.empty())
      return takeLeast(limitBytes);
    int64_t peakBytes = result.solution.peakUsageBytes;
    result.solution.choices.resize(builder.getNodes().size());
    use = measureMemory(builder, liveness, result.solution.choices);
    return checkAgreement(use, peakBytes);
  }

  /// Where no plan was found: the one that needs least, if it fits. Else says why.
  llvm::Error takeLeast(int64_t limitBytes) {
    Solution &solution = result.solution;
    if (!solution.isUnknown && !options.explainsInfeasible)
      return llvm::Error::success();
    LeastMemory least = findLeastMemory(builder, liveness, options.timeLimitSeconds);
    solution.isOutOfTime |= least.isOutOfTime;
    if (least.choices.empty() || least.upperBytes > limitBytes) {
      if (options.explainsInfeasible)
        solution.infeasibleReason =
            explainInfeasible(builder, liveness, least, limitBytes, !solution.isUnknown);
      return llvm::Error::success();
    }
    solution.status = solver::SolveStatus::Feasible;
    solution.isUnknown = false;
    solution.infeasibleReason.clear();
    solution.choices = std::move(least.choices);
    solution.objective = solver::evaluate(builder.getProblem(), solution.choices).objective;
    solution.peakUsageBytes = least.upperBytes;
    solution.gap = double(solution.objective - solution.lowerBound) / double(solution.objective);
    use = measureMemory(builder, liveness, solution.choices);
    return llvm::Error::success();
  }

  ProblemBuilder builder;
  const IntraOpOptions &options;
  Liveness liveness;
  MemoryUse use;
  IntraOpResult result;
};

} // namespace

llvm::Expected<IntraOpResult> sharding::solveIntraOp(const StageView &stage, const CostModel &model,
                                                     const IntraOpOptions &options) {
  return IntraOpSolver(stage, model, options).run();
}

llvm::Expected<IntraOpResult> sharding::applyChoices(const StageView &stage, const CostModel &model,
                                                     const IntraOpOptions &options,
                                                     llvm::ArrayRef<unsigned> choices) {
  auto start = std::chrono::steady_clock::now();
  ProblemBuilder builder(stage, model, options);
  if (llvm::Error error = builder.build())
    return error;
  Problem problem = builder.getProblem();
  Liveness liveness = computeLiveness(builder, options);
  IntraOpResult result;
  result.choices = countChoices(problem);
  if (options.memoryLimitBytes)
    addMemory(problem, builder, liveness, *options.memoryLimitBytes);
  result.buildSeconds = secondsSince(start);
  if (choices.size() != problem.nodes.size())
    return llvm::createStringError("the solution has %zu choices, but the problem has %zu nodes",
                                   choices.size(), problem.nodes.size());
  for (auto [node, choice] : llvm::zip_equal(problem.nodes, choices))
    if (choice >= node.costs.size())
      return llvm::createStringError("the solution takes choice %u of '%s', which has %zu", choice,
                                     node.name.c_str(), node.costs.size());
  solver::Evaluation evaluation = solver::evaluate(problem, choices);
  if (problem.usageLimitBytes && evaluation.peakUsageBytes > *problem.usageLimitBytes)
    return llvm::createStringError("the solution needs %lld bytes a device; %lld are allowed",
                                   static_cast<long long>(evaluation.peakUsageBytes),
                                   static_cast<long long>(*problem.usageLimitBytes));
  if (!evaluation.feasible)
    return llvm::createStringError("the solution takes a pair of choices that is forbidden");
  Solution &solution = result.solution;
  solution.status = solver::SolveStatus::Feasible;
  solution.choices.assign(choices.begin(), choices.begin() + builder.getNodes().size());
  solution.objective = evaluation.objective;
  solution.gap = evaluation.objective > 0 ? 1 : 0;
  solution.peakUsageBytes = evaluation.peakUsageBytes;
  solution.nodes = problem.nodes.size();
  MemoryUse use = measureMemory(builder, liveness, solution.choices);
  if (options.memoryLimitBytes)
    if (llvm::Error error = checkAgreement(use, evaluation.peakUsageBytes))
      return error;
  reportPlan(builder, use, result);
  return result;
}

mlir::Attribute sharding::madeShardings(mlir::Operation *op, const IntraOpResult &result) {
  llvm::SmallVector<mlir::Attribute> made;
  bool isMoved = false;
  for (Value value : op->getResults()) {
    auto it = result.madeSpecs.find(value);
    isMoved |= it != result.madeSpecs.end();
    made.push_back(ShardingAttr::get(
        op->getContext(), it == result.madeSpecs.end() ? result.specs.lookup(value) : it->second));
  }
  return isMoved ? mlir::Builder(op->getContext()).getArrayAttr(made) : mlir::Attribute();
}

mlir::Attribute sharding::captureShardings(
    mlir::Operation *op,
    const llvm::DenseMap<std::pair<mlir::Operation *, unsigned>, ShardingSpec> &useSpecs,
    llvm::function_ref<mlir::Attribute(mlir::Value)> heldAs) {
  if (op->getNumRegions() == 0)
    return {};
  std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
  if (!rule || rule->captures.empty())
    return {};
  llvm::SmallVector<mlir::Attribute> wanted;
  unsigned number = op->getNumOperands();
  for (const auto &capture : rule->captures) {
    auto use = useSpecs.find({op, number++});
    wanted.push_back(use == useSpecs.end()
                         ? heldAs(capture.first)
                         : mlir::Attribute(ShardingAttr::get(op->getContext(), use->second)));
  }
  return mlir::Builder(op->getContext()).getArrayAttr(wanted);
}
