//===- SearchStages.cpp - stages, meshes and shardings of a step ----------===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Sharding/Methods.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/PipelineMethods.h"
#include "compiler/Stage/PlanAttributes.h"
#include "compiler/Stage/SearchOptions.h"
#include "compiler/Stage/StageCosts.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <chrono>
#include <numeric>

namespace alpa {
#define GEN_PASS_DEF_ALPASEARCHSTAGES
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

/// Bytes that cross the cut before each layer, for one micro-batch.
struct Crossings {
  std::vector<double> forwardBytes, backwardBytes;
};

class AlpaSearchStagesPass : public alpa::impl::AlpaSearchStagesBase<AlpaSearchStagesPass> {
public:
  using AlpaSearchStagesBase::AlpaSearchStagesBase;

  void getDependentDialects(DialectRegistry &registry) const override {
    registry.insert<AlpaDialect>();
  }

  void runOnOperation() override {
    if (llvm::Error error = run()) {
      // Without the note that prints the whole module.
      emitError(getOperation().getLoc(), llvm::toString(std::move(error)));
      signalPassFailure();
    }
  }

private:
  llvm::Error fail(const llvm::Twine &message) const {
    return llvm::createStringError("alpa-search-stages: " + message);
  }
  llvm::Error checkOptions();
  llvm::Error readLayers();
  Crossings findCrossings();
  llvm::Error run();
  StagePlan runDp(const StageDpProblem &problem);
  llvm::Expected<StagePlan> search(StageCosts &costs, StageDpProblem &problem);
  llvm::Expected<StagePlan> searchRules(StageCosts &costs, StageDpProblem &problem,
                                        ArrayRef<StageRule> rules);
  llvm::Error explainMisfit(StageCosts &costs, StageDpProblem problem, ArrayRef<StageRule> rules);

  func::FuncOp main;
  std::vector<SmallVector<Operation *>> opsOfLayer;
  llvm::DenseMap<Operation *, unsigned> layerOfOp;
  double dpSeconds = 0;
};

} // namespace

llvm::Error AlpaSearchStagesPass::checkOptions() {
  main = getOperation().lookupSymbol<func::FuncOp>("main");
  if (!main || main.isDeclaration())
    return fail("the module has no function @main");
  if (cluster.empty())
    return fail("option cluster is missing; give a cluster file or a preset (" +
                llvm::join(clusterPresets(), ", ") + ")");
  if (numMicroBatches < 1)
    return fail("num-micro-batches must be 1 or more, got " + llvm::Twine(numMicroBatches));
  if (llvm::Error error = checkMethod(method))
    return fail(llvm::toString(std::move(error)));
  if (llvm::Error error = checkPipelineMethod(pipeline))
    return fail(llvm::toString(std::move(error)));
  if (meshAxes != 2 && meshAxes != 3)
    return fail("mesh-axes must be 2 or 3, got " + llvm::Twine(meshAxes));
  if (!findSchedule(schedule))
    return fail("unknown schedule '" + schedule + "'; expected " + scheduleNames());
  if (!(memoryFraction > 0 && memoryFraction <= 1))
    return fail("memory-fraction must be above 0 and at most 1");
  if (submeshes.empty() && (!meshShapes.empty() || !layerRanges.empty()))
    return fail("mesh-shapes and layer-ranges need submeshes");
  return llvm::Error::success();
}

llvm::Error AlpaSearchStagesPass::readLayers() {
  opsOfLayer.clear();
  layerOfOp.clear();
  for (Operation &op : main.front().without_terminator()) {
    auto layer = op.getAttrOfType<IntegerAttr>(attr::layer);
    if (!layer || layer.getInt() < 0 || !op.getAttr(attr::phase))
      return fail("op '" + op.getName().getStringRef() +
                  "' has no layer or phase; run alpa-import and alpa-cluster-layers first");
    size_t index = layer.getInt();
    if (opsOfLayer.size() <= index)
      opsOfLayer.resize(index + 1);
    opsOfLayer[index].push_back(&op);
    layerOfOp[&op] = index;
  }
  if (opsOfLayer.empty())
    return fail("@main has no ops to plan");
  return llvm::Error::success();
}

Crossings AlpaSearchStagesPass::findCrossings() {
  Crossings crossings;
  crossings.forwardBytes.assign(opsOfLayer.size() + 1, 0);
  crossings.backwardBytes.assign(opsOfLayer.size() + 1, 0);
  auto isUpdate = [](Operation *op) {
    return op->getAttrOfType<StringAttr>(attr::phase).getValue() == "update";
  };
  for (auto [source, layer] : layerOfOp) {
    if (isUpdate(source))
      continue;
    for (Value value : source->getResults()) {
      unsigned low = layer, high = layer;
      for (Operation *user : getUsers(value)) {
        auto it = layerOfOp.find(user);
        if (it == layerOfOp.end() || isUpdate(user))
          continue;
        low = std::min(low, it->second);
        high = std::max(high, it->second);
      }
      double bytes = getTensorBytes(value.getType());
      for (unsigned cut = layer + 1; cut <= high; ++cut)
        crossings.forwardBytes[cut] += bytes;
      for (unsigned cut = low + 1; cut <= layer; ++cut)
        crossings.backwardBytes[cut] += bytes;
    }
  }
  return crossings;
}

static double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

StagePlan AlpaSearchStagesPass::runDp(const StageDpProblem &problem) {
  auto begin = std::chrono::steady_clock::now();
  StagePlan plan = solveStageDp(problem);
  dpSeconds += secondsSince(begin);
  return plan;
}

/// Runs the DP on bounds, solves what its plan rests on, and repeats until the
/// plan rests on solutions, or one that does cannot be beaten by more than `gap`.
llvm::Expected<StagePlan> AlpaSearchStagesPass::search(StageCosts &costs, StageDpProblem &problem) {
  if (llvm::Error error = costs.solve(&getContext(), costs.singleLayers()))
    return error;
  while (true) {
    costs.refresh(/*onlySolved=*/false);
    StagePlan hoped = runDp(problem);
    ++numRounds;
    SmallVector<StageCosts::Request> missing;
    for (auto [index, stage] : llvm::enumerate(hoped.stages))
      if (!costs.result(stage.choice.id))
        missing.push_back({stage.choice.id, problem.inFlight(hoped.stages.size() - index)});
    if (missing.empty())
      return hoped;
    costs.refresh(/*onlySolved=*/true);
    StagePlan known = runDp(problem);
    if (!known.stages.empty() && known.seconds * (1 - gap) <= hoped.seconds)
      return known;
    if (llvm::Error error = costs.solve(&getContext(), missing))
      return error;
  }
}

/// The best plan that follows one of the rules.
llvm::Expected<StagePlan> AlpaSearchStagesPass::searchRules(StageCosts &costs,
                                                            StageDpProblem &problem,
                                                            ArrayRef<StageRule> rules) {
  StagePlan best;
  for (const StageRule &rule : rules) {
    problem.allows = rule;
    llvm::Expected<StagePlan> plan = search(costs, problem);
    if (!plan)
      return plan.takeError();
    if (plan->seconds < best.seconds)
      best = std::move(*plan);
  }
  return best;
}

static std::string formatBytes(double bytes) {
  static constexpr const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  unsigned unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit)
    bytes /= 1024;
  return llvm::formatv(unit == 0 ? "{0:F0} {1}" : "{0:F2} {1}", bytes, units[unit]).str();
}

/// Describes the plan that would be fastest if memory were no matter.
llvm::Error AlpaSearchStagesPass::explainMisfit(StageCosts &costs, StageDpProblem problem,
                                                ArrayRef<StageRule> rules) {
  std::vector<int64_t> available = std::move(problem.memoryBytes);
  problem.memoryBytes.clear();
  costs.refresh(/*onlySolved=*/false);
  llvm::Expected<StagePlan> plan = searchRules(costs, problem, rules);
  if (!plan)
    return plan.takeError();
  if (plan->stages.empty())
    return fail("no plan exists: no way to split the model's operators was found for any stage");
  const PlannedStage *worst = nullptr;
  int64_t needed = -1, inFlight = 1;
  unsigned number = 0;
  for (auto [index, stage] : llvm::enumerate(plan->stages)) {
    int64_t flying = problem.inFlight(plan->stages.size() - index);
    if (stage.choice.peakBytes(flying) > needed) {
      needed = stage.choice.peakBytes(flying);
      worst = &stage;
      inFlight = flying;
      number = index;
    }
  }
  const StageChoice &choice = worst->choice;
  std::vector<std::pair<int64_t, std::string>> largest;
  const IntraOpResult *result = costs.result(choice.id);
  for (auto &[value, spec] : result->specs) {
    auto arg = dyn_cast<BlockArgument>(value);
    if (!arg)
      continue;
    auto name = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::name);
    largest.push_back(
        {int64_t(getTensorBytes(arg.getType())) / spec.numPieces(costs.mesh(choice.id).shape),
         name ? name.str() : "argument " + std::to_string(arg.getArgNumber())});
  }
  llvm::sort(largest, std::greater<>());
  std::string names;
  for (auto &[bytes, name] : llvm::ArrayRef(largest).take_front(3))
    names += (names.empty() ? "" : ", ") + name + " (" + formatBytes(bytes) + ")";
  return fail(llvm::Twine("no plan fits into memory: the fastest one needs ") +
              formatBytes(needed) + " on a device of stage " + llvm::Twine(number) + " of " +
              llvm::Twine(plan->stages.size()) + ", " + formatBytes(available[worst->submesh]) +
              " are available; it holds " + formatBytes(choice.stateBytes) +
              " of state and gradients, " + formatBytes(choice.activationBytes) +
              " of activations for each of " + llvm::Twine(inFlight) + " micro-batches and " +
              formatBytes(choice.temporaryBytes) + " of temporaries" +
              (names.empty() ? "" : "; the largest arguments are " + names) +
              "; use more devices, more and smaller micro-batches, or rematerialization "
              "(jax.checkpoint)");
}

llvm::Error AlpaSearchStagesPass::run() {
  auto begin = std::chrono::steady_clock::now();
  dpSeconds = 0;
  if (llvm::Error error = checkOptions())
    return error;
  if (llvm::Error error = readLayers())
    return error;
  llvm::Expected<Cluster> described = loadCluster(cluster);
  if (!described)
    return described.takeError();
  llvm::Expected<SearchSpace> space =
      submeshes.empty() ? llvm::Expected<SearchSpace>(wholeSearchSpace(*described, meshAxes))
                        : manualSearchSpace(*described, opsOfLayer.size(), meshAxes, submeshes,
                                            meshShapes, layerRanges);
  if (!space)
    return space.takeError();
  llvm::Expected<std::vector<StageRule>> rules =
      applyPipelineMethod(pipeline, *described, opsOfLayer.size(), *space);
  if (!rules)
    return fail(llvm::toString(rules.takeError()));

  StageDpProblem problem;
  problem.numLayers = opsOfLayer.size();
  for (const Host &host : described->hosts)
    problem.hostDevices.push_back(host.devices);
  problem.submeshes = space->submeshes;
  problem.numMicroBatches = numMicroBatches;
  problem.schedule = findSchedule(schedule);
  for (ArrayRef<unsigned> views : space->views) {
    int64_t memoryBytes = std::numeric_limits<int64_t>::max();
    for (unsigned view : views)
      memoryBytes = std::min(memoryBytes, space->meshes[view].device.memoryBytes);
    problem.memoryBytes.push_back(int64_t(memoryBytes * memoryFraction));
  }
  problem.epsilonSeconds = epsilon;
  problem.epsilonPart = gap / 4;
  problem.manual = space->manual;
  problem.manualLayers = space->layerRanges;

  StageCostOptions options;
  options.numMicroBatches = numMicroBatches;
  options.memoryBytes = *llvm::min_element(problem.memoryBytes);
  options.mostInFlight = problem.inFlight(problem.numLayers);
  options.timeLimitSeconds = timeLimit;
  std::optional<MethodRoles> roles;
  if (method != "auto") {
    roles.emplace(main);
    for (const LogicalMesh &mesh : space->meshes) {
      llvm::Expected<PlanFilter> filter = makeFilter(method, *roles, mesh);
      if (!filter)
        return fail(llvm::toString(filter.takeError()));
      options.filters.push_back(std::move(*filter));
    }
    bool looksFurther = method == "heuristic" || method == "manual";
    options.describe = [&roles, looksFurther](const StageShape &shape,
                                              std::vector<uintptr_t> &words) {
      for (Value value : shape.values) {
        words.push_back(uintptr_t(roles->of(value)));
        words.push_back(roles->batchDims(value));
        words.push_back(roles->expertDims(value));
      }
      // These depend on all of the step: no two stages are alike.
      if (looksFurther && !shape.ops.empty()) {
        words.push_back(uintptr_t(shape.ops.front()));
        words.push_back(uintptr_t(shape.ops.back()));
      }
    };
  }
  main.front().recomputeOpOrder(); // Nothing changes the block while threads read it.
  StageCosts costs(opsOfLayer, space->meshes, space->views, std::move(options));
  Crossings crossings = findCrossings();
  problem.choices = [&](unsigned lo, unsigned hi, unsigned submesh) {
    return costs.choices(lo, hi, submesh);
  };
  auto sending = [&](unsigned cut, const Submesh &from, const Submesh &to) {
    double forward = crossings.forwardBytes[cut], backward = crossings.backwardBytes[cut];
    return SendSeconds{transferSeconds(*described, from, to, forward),
                       transferSeconds(*described, to, from, backward)};
  };
  problem.transferSeconds = [&](unsigned cut, unsigned from, unsigned to) {
    return sending(cut, problem.submeshes[from], problem.submeshes[to]);
  };

  llvm::Expected<StagePlan> plan = searchRules(costs, problem, *rules);
  if (!plan)
    return plan.takeError();
  if (plan->stages.empty())
    return explainMisfit(costs, problem, *rules);

  PlanOutcome outcome;
  std::vector<Submesh> chosen;
  for (const PlannedStage &stage : plan->stages)
    chosen.push_back(problem.submeshes[stage.submesh]);
  auto devices = placeSubmeshes(problem.hostDevices, chosen);
  if (!devices)
    return fail("the submeshes do not fit side by side into cluster '" + described->name + "'");
  for (auto [index, stage] : llvm::enumerate(plan->stages)) {
    const IntraOpResult *result = costs.result(stage.choice.id);
    double t = result->forwardSeconds + result->backwardSeconds;
    if (index + 1 < plan->stages.size())
      outcome.transferSeconds += sending(stage.hi, chosen[index], chosen[index + 1]).sum();
    outcome.slowestStageSeconds = std::max(outcome.slowestStageSeconds, t);
    outcome.updateSeconds = std::max(outcome.updateSeconds, result->updateSeconds);
    llvm::Expected<Explanation> explanation = costs.explain(stage.choice.id);
    if (!explanation)
      return explanation.takeError();
    outcome.stages.push_back(
        {stage.lo, stage.hi, costs.mesh(stage.choice.id).shape, (*devices)[index], result,
         problem.inFlight(plan->stages.size() - index), explanation->toAttribute(&getContext())});
  }
  outcome.stepSeconds = plan->seconds;
  outcome.numMicroBatches = numMicroBatches;
  outcome.schedule = schedule;
  outcome.solvedStages = costs.numSolved();
  outcome.reusedStages = costs.numReused();
  outcome.possibleStages = costs.numPossible();
  outcome.searchSeconds = secondsSince(begin);
  outcome.dpSeconds = dpSeconds;
  annotatePlan(main, *described, outcome);
  numStages += outcome.stages.size();
  numPossible += costs.numPossible();
  numSolved += costs.numSolved();
  numReused += costs.numReused();
  return llvm::Error::success();
}
