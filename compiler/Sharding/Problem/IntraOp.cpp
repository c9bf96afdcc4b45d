//===- IntraOp.cpp - the best way to split a stage on one mesh ------------===//

#include "compiler/Sharding/Problem/IntraOp.h"

#include "compiler/Sharding/Problem/LeastMemory.h"
#include "compiler/Sharding/Problem/ReportPlan.h"
#include "mlir/IR/BuiltinTypes.h"
#include <chrono>

using namespace alpa;
using namespace mlir;

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

llvm::Expected<Problem> alpa::buildIntraOpProblem(const StageView &stage, const CostModel &model,
                                                  const IntraOpOptions &options) {
  ProblemBuilder builder(stage, model, options);
  if (llvm::Error error = builder.build())
    return error;
  Problem problem = builder.getProblem();
  if (options.memoryLimitBytes)
    addMemory(problem, builder, computeLiveness(builder, options), *options.memoryLimitBytes);
  return problem;
}

/// Specs of all values, and the uses that want another one.
static void readSpecs(const ProblemBuilder &builder, IntraOpResult &result) {
  unsigned numAxes = builder.getMeshShape().size();
  llvm::ArrayRef<unsigned> choices = result.solution.choices;
  std::vector<PackedSpec> specs;
  for (const ValueInfo &info : builder.getValues())
    specs.push_back(info.sumOf < 0 ? builder.specOf(info, choices)
                                   : builder.completionOf(info, choices).summed);
  for (auto [info, spec] : llvm::zip_equal(builder.getValues(), specs)) {
    if (info.sumOf < 0)
      result.specs[info.value] = spec.unpack(rankOf(info.value), numAxes);
    else if (specs[info.sumOf].isPartial())
      result.sumSpecs[info.value] = spec.unpack(rankOf(info.value), numAxes);
  }
  for (const Demand &demand : builder.getDemands()) {
    PackedSpec wanted = builder.specOf(demand.node, demand.table, choices);
    if (demand.user && wanted != specs[demand.value])
      result.useSpecs[{demand.user, demand.operand}] =
          wanted.unpack(rankOf(builder.getValues()[demand.value].value), numAxes);
  }
}

void alpa::reportPlan(const ProblemBuilder &builder, const MemoryUse &use, IntraOpResult &result) {
  std::array<double, kNumPhases> phases = builder.phaseSeconds(result.solution.choices);
  result.forwardSeconds = phases[unsigned(OpPhase::Forward)];
  result.barrierSeconds = phases[unsigned(OpPhase::Barrier)];
  result.backwardSeconds = phases[unsigned(OpPhase::Backward)];
  result.updateSeconds = phases[unsigned(OpPhase::Update)];
  result.stateBytes = use.stateBytes;
  result.activationBytes = use.activationBytes;
  result.temporaryBytes = use.temporaryBytes();
  result.scratchBytes = use.scratchBytes;
  readSpecs(builder, result);
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
  for (const ProblemNode &node : problem.nodes)
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
    SolveOptions solveOptions;
    solveOptions.timeLimitSeconds = options.timeLimitSeconds;
    llvm::Expected<Solution> solution = solve(problem, solveOptions);
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
    if (result.solution.status == SolveStatus::Infeasible)
      return std::move(result);
    reportPlan(builder, use, result);
    return std::move(result);
  }

private:
  llvm::Error solveWithin(int64_t limitBytes) {
    auto start = std::chrono::steady_clock::now();
    Problem problem = builder.getProblem();
    addMemory(problem, builder, liveness, limitBytes);
    result.buildSeconds += secondsSince(start);
    CostSum lowerBound = result.solution.lowerBound;
    double seconds = result.solution.seconds;
    SolveOptions solveOptions;
    solveOptions.timeLimitSeconds = std::max(0.1, options.timeLimitSeconds - seconds);
    solveOptions.acceptableGap = options.acceptableGap;
    llvm::Expected<Solution> solution = solve(problem, solveOptions);
    if (!solution)
      return solution.takeError();
    result.solution = std::move(*solution);
    result.solution.seconds += seconds;
    result.solution.lowerBound = std::max(result.solution.lowerBound, lowerBound);
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
    LeastMemory least = findLeastMemory(builder, liveness);
    if (least.choices.empty() || least.upperBytes > limitBytes) {
      if (options.explainsInfeasible)
        solution.infeasibleReason =
            explainInfeasible(builder, liveness, least, limitBytes, !solution.isUnknown);
      return llvm::Error::success();
    }
    solution.status = SolveStatus::Feasible;
    solution.isUnknown = false;
    solution.infeasibleReason.clear();
    solution.choices = std::move(least.choices);
    solution.objective = evaluate(builder.getProblem(), solution.choices).objective;
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

llvm::Expected<IntraOpResult> alpa::solveIntraOp(const StageView &stage, const CostModel &model,
                                                 const IntraOpOptions &options) {
  return IntraOpSolver(stage, model, options).run();
}

llvm::Expected<IntraOpResult> alpa::applyChoices(const StageView &stage, const CostModel &model,
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
  Evaluation evaluation = evaluate(problem, choices);
  if (problem.usageLimitBytes && evaluation.peakUsageBytes > *problem.usageLimitBytes)
    return llvm::createStringError("the solution needs %lld bytes a device; %lld are allowed",
                                   static_cast<long long>(evaluation.peakUsageBytes),
                                   static_cast<long long>(*problem.usageLimitBytes));
  if (!evaluation.feasible)
    return llvm::createStringError("the solution takes a pair of choices that is forbidden");
  Solution &solution = result.solution;
  solution.status = SolveStatus::Feasible;
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
