//===- IntraOp.cpp - the best way to split a stage on one mesh ------------===//

#include "compiler/Sharding/IntraOp.h"

#include "compiler/Sharding/Memory.h"
#include "compiler/Sharding/ProblemBuilder.h"
#include "mlir/IR/BuiltinTypes.h"
#include "llvm/Support/FormatVariadic.h"
#include <chrono>

using namespace alpa;
using namespace mlir;

static size_t rankOf(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type ? type.getRank() : 0;
}

llvm::Expected<Problem> alpa::buildIntraOpProblem(const StageView &stage, const CostModel &model,
                                                  const IntraOpOptions &options) {
  ProblemBuilder builder(stage, model, options);
  if (llvm::Error error = builder.build())
    return error;
  Problem problem = builder.takeProblem();
  if (options.memoryLimitBytes)
    addMemory(problem, builder, valueLifetimes(builder), {}, options.microBatchesInFlight,
              *options.memoryLimitBytes);
  if (problem.usageLimitBytes && *problem.usageLimitBytes < 0)
    return llvm::createStringError(
        "values that no strategy splits need more than the memory limit");
  return problem;
}

/// Specs of all values, and the uses that want another one.
static void readSpecs(const ProblemBuilder &builder, IntraOpResult &result) {
  unsigned numAxes = builder.getMeshShape().size();
  llvm::ArrayRef<unsigned> choices = result.solution.choices;
  std::vector<PackedSpec> specs;
  for (const ValueInfo &info : builder.getValues())
    specs.push_back(builder.specOf(info, choices));
  for (auto [info, spec] : llvm::zip_equal(builder.getValues(), specs))
    result.specs[info.value] = spec.unpack(rankOf(info.value), numAxes);
  for (const Demand &demand : builder.getDemands()) {
    PackedSpec wanted = builder.specOf(demand.node, demand.table, choices);
    if (demand.user && wanted != specs[demand.value])
      result.useSpecs[{demand.user, demand.operand}] =
          wanted.unpack(rankOf(builder.getValues()[demand.value].value), numAxes);
  }
}

llvm::Expected<IntraOpResult> alpa::solveIntraOp(const StageView &stage, const CostModel &model,
                                                 const IntraOpOptions &options) {
  auto start = std::chrono::steady_clock::now();
  ProblemBuilder builder(stage, model, options);
  if (llvm::Error error = builder.build())
    return error;
  Problem problem = builder.takeProblem();
  std::vector<Lifetime> lifetimes = valueLifetimes(builder);
  IntraOpResult result;
  for (const ProblemNode &node : problem.nodes)
    result.choices += node.costs.size();
  result.buildSeconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  // Memory is left out while the fastest plan fits: the problem is then much
  // easier. Otherwise state, activations and the values of the worst moment are
  // limited, until the worst moment of the answer fits as well.
  MemoryUse use;
  std::vector<unsigned> peakValues;
  double seconds = 0;
  constexpr unsigned kMaxRounds = 4;
  for (unsigned round = 0; round <= kMaxRounds; ++round) {
    SolveOptions solveOptions;
    solveOptions.timeLimitSeconds = std::max(0.1, options.timeLimitSeconds - seconds);
    llvm::Expected<Solution> solution = solve(problem, solveOptions);
    if (!solution)
      return solution.takeError();
    seconds += solution->seconds;
    result.solution = std::move(*solution);
    result.solution.seconds = seconds;
    if (result.solution.status == SolveStatus::Infeasible)
      return result;
    use = measureMemory(builder, lifetimes, result.solution.choices);
    if (!options.memoryLimitBytes ||
        use.total(options.microBatchesInFlight) <= *options.memoryLimitBytes)
      break;
    if (round == kMaxRounds) {
      result.solution.status = SolveStatus::Infeasible;
      result.solution.choices.clear();
      result.solution.infeasibleReason =
          llvm::formatv("the stage needs {0} bytes a device of {1}: {2} of state, {3} of "
                        "activations in each of {4} micro-batches in flight, {5} of temporaries",
                        use.total(options.microBatchesInFlight), *options.memoryLimitBytes,
                        use.stateBytes, use.activationBytes, options.microBatchesInFlight,
                        use.temporaryBytes)
              .str();
      return result;
    }
    // Every moment seen so far stays limited.
    for (unsigned value : use.peakValues)
      if (!llvm::is_contained(peakValues, value))
        peakValues.push_back(value);
    problem = builder.takeProblem();
    addMemory(problem, builder, lifetimes, round == 0 ? use.peakValues : peakValues,
              options.microBatchesInFlight, *options.memoryLimitBytes);
    if (*problem.usageLimitBytes < 0) {
      result.solution.status = SolveStatus::Infeasible;
      result.solution.choices.clear();
      result.solution.infeasibleReason =
          llvm::formatv("values that no strategy splits need {0} bytes a device more than the {1} "
                        "that are allowed",
                        -*problem.usageLimitBytes, *options.memoryLimitBytes)
              .str();
      return result;
    }
  }

  std::array<double, kNumPhases> phases = builder.phaseSeconds(result.solution.choices);
  result.forwardSeconds = phases[0];
  result.backwardSeconds = phases[1];
  result.updateSeconds = phases[2];
  result.stateBytes = use.stateBytes;
  result.activationBytes = use.activationBytes;
  result.temporaryBytes = use.temporaryBytes;
  readSpecs(builder, result);
  return result;
}
