//===- SearchStages.cpp - stages, meshes and shardings of a step ----------===//

#include "compiler/Sharding/Methods.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/PlanAttributes.h"
#include "compiler/Stage/SearchOptions.h"
#include "compiler/Stage/StageSearch.h"
#include "compiler/Stage/StepLayers.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "llvm/ADT/StringExtras.h"
#include <chrono>

namespace alpa {
#define GEN_PASS_DEF_ALPASEARCHSTAGES
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

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
  llvm::Expected<std::vector<const ScheduleInfo *>> readSchedules();
  llvm::Error makeFilters(ArrayRef<LogicalMesh> meshes, std::optional<MethodRoles> &roles,
                          StageCostOptions &options);
  llvm::Error run();

  func::FuncOp main;
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
  if (!(memoryFraction > 0 && memoryFraction <= 1))
    return fail("memory-fraction must be above 0 and at most 1");
  if (!(timeLimit > 0))
    return fail("time-limit must be above 0 seconds");
  if (!(gap >= 0 && gap < 1) || !(epsilon >= 0))
    return fail("gap must be at least 0 and below 1, and epsilon at least 0");
  if (submeshes.empty() && (!meshShapes.empty() || !layerRanges.empty()))
    return fail("mesh-shapes and layer-ranges need submeshes");
  return llvm::Error::success();
}

/// A list of names, or all for "auto".
llvm::Expected<std::vector<const ScheduleInfo *>> AlpaSearchStagesPass::readSchedules() {
  std::vector<const ScheduleInfo *> schedules;
  if (schedule == "auto") {
    for (const ScheduleInfo &info : getSchedules())
      schedules.push_back(&info);
    return schedules;
  }
  SmallVector<StringRef> names;
  StringRef(schedule).split(names, ',');
  for (StringRef name : names) {
    schedules.push_back(findSchedule(name.trim()));
    if (!schedules.back())
      return fail("unknown schedule '" + name + "'; expected " + scheduleNames() +
                  ", several of them with commas between, or auto");
  }
  return schedules;
}

/// What a method leaves of each stage's plans.
llvm::Error AlpaSearchStagesPass::makeFilters(ArrayRef<LogicalMesh> meshes,
                                              std::optional<MethodRoles> &roles,
                                              StageCostOptions &options) {
  roles.emplace(main);
  for (const LogicalMesh &mesh : meshes) {
    llvm::Expected<PlanFilter> filter = makeFilter(method, *roles, mesh);
    if (!filter)
      return fail(llvm::toString(filter.takeError()));
    options.filters.push_back(std::move(*filter));
  }
  options.describe = [&roles](Value value, std::vector<uint64_t> &words) {
    words.push_back(uint64_t(roles->of(value)));
    words.push_back(roles->batchDims(value));
    words.push_back(roles->expertDims(value));
  };
  // These depend on all of the step.
  options.allDiffer = method == "heuristic" || method == "manual";
  return llvm::Error::success();
}

static double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

llvm::Error AlpaSearchStagesPass::run() {
  auto begin = std::chrono::steady_clock::now();
  if (llvm::Error error = checkOptions())
    return error;
  StageSearchSpace tried;
  llvm::Expected<std::vector<const ScheduleInfo *>> schedules = readSchedules();
  if (!schedules)
    return schedules.takeError();
  tried.schedules = std::move(*schedules);
  llvm::Expected<StepLayers> layers = readLayers(main);
  if (!layers)
    return fail(llvm::toString(layers.takeError()));
  unsigned numLayers = layers->opsOfLayer.size();
  llvm::Expected<Cluster> described = loadCluster(cluster);
  if (!described)
    return described.takeError();
  llvm::Expected<SearchSpace> space =
      submeshes.empty()
          ? llvm::Expected<SearchSpace>(wholeSearchSpace(*described, meshAxes))
          : manualSearchSpace(*described, numLayers, meshAxes, submeshes, meshShapes, layerRanges);
  if (!space)
    return space.takeError();
  llvm::Expected<std::vector<StageRule>> rules =
      applyPipelineMethod(pipeline, *described, numLayers, *space);
  if (!rules)
    return fail(llvm::toString(rules.takeError()));
  tried.rules = std::move(*rules);
  if (pipeline == "auto" && !space->manual)
    tried.evenRules = evenRules(*described, numLayers, *space);
  if (method == "megatron" && !space->manual)
    addTurnedViews(*described, *space);

  StageDpProblem problem;
  problem.numLayers = numLayers;
  for (const Host &host : described->hosts)
    problem.hostDevices.push_back(host.devices);
  problem.hostKinds = described->kindOfHosts();
  problem.submeshes = space->submeshes;
  problem.numMicroBatches = numMicroBatches;
  for (ArrayRef<unsigned> views : space->views) {
    int64_t memoryBytes = std::numeric_limits<int64_t>::max();
    for (unsigned view : views)
      memoryBytes = std::min(memoryBytes, space->meshes[view].device.memoryBytes);
    problem.memoryBytes.push_back(int64_t(memoryBytes * memoryFraction));
  }
  problem.epsilonSeconds = epsilon;
  problem.epsilonPart = gap / 4;
  problem.usesAllDevices = pipeline != "auto"; // As the methods of that name do.
  problem.manual = space->manual;
  problem.manualLayers = space->layerRanges;

  StageCostOptions options;
  options.numMicroBatches = numMicroBatches;
  for (const LogicalMesh &mesh : space->meshes)
    options.memoryBytes.push_back(int64_t(mesh.device.memoryBytes * memoryFraction));
  options.tolerance = gap;
  for (const ScheduleInfo *info : tried.schedules)
    options.mostInFlight =
        std::max(options.mostInFlight, info->inFlight(numLayers, numMicroBatches));
  options.timeLimitSeconds = timeLimit;
  std::optional<MethodRoles> roles;
  if (method != "auto")
    if (llvm::Error error = makeFilters(space->meshes, roles, options))
      return error;
  options.methodKey = method;
  if (!cacheDir.empty() && !options.allDiffer) {
    llvm::Expected<std::shared_ptr<StageStore>> store = StageStore::open(cacheDir);
    if (!store)
      return fail("cache-dir: " + llvm::toString(store.takeError()));
    options.store = *store;
  }
  main.front().recomputeOpOrder(); // Nothing changes the block while threads read it.
  StageCosts costs(&getContext(), {layers->opsOfLayer}, space->meshes, space->views,
                   std::move(options));
  PlanTimer timer(*described, problem, layers->crossings,
                  [&](unsigned id) { return costs.timesOf(id); });
  problem.transferSeconds = [&](unsigned cut, unsigned from, unsigned to) {
    return timer.send(cut, from, to);
  };

  StageSearch search(costs, timer, problem, gap);
  llvm::Expected<FoundPlan> found = search.run(tried);
  if (!found)
    return found.takeError();
  costs.keep();
  const StagePlan *plan = &found->plan;
  if (plan->stages.empty() && !explainsMisfit)
    return fail("no plan fits into memory");
  if (plan->stages.empty()) {
    std::string why = llvm::toString(explainMisfit(search, costs, tried, main));
    if (pipeline != "auto" && StringRef(why).starts_with("no plan exists"))
      why = "no plan exists: with pipeline '" + pipeline +
            "' no stages use all devices of cluster '" + described->name +
            "'; use pipeline 'auto', or another number of devices or layers";
    return fail(why);
  }

  PlanOutcome outcome;
  std::vector<std::shared_ptr<IntraOpResult>> results;
  const TimedPlan &timed = found->timed;
  if (timed.devices.empty())
    return fail("the submeshes do not fit side by side into cluster '" + described->name + "'");
  for (auto [index, stage] : llvm::enumerate(plan->stages)) {
    int64_t inFlight = search.getProblem().inFlight(plan->stages.size() - index);
    llvm::Expected<std::shared_ptr<IntraOpResult>> result = costs.result(stage, inFlight);
    if (!result)
      return result.takeError();
    results.push_back(*result);
    outcome.slowestStageSeconds = std::max(outcome.slowestStageSeconds,
                                           (*result)->forwardSeconds + (*result)->backwardSeconds);
    outcome.updateSeconds = std::max(outcome.updateSeconds, (*result)->updateSeconds);
    llvm::Expected<Explanation> explanation = costs.explain(stage, **result);
    if (!explanation)
      return explanation.takeError();
    outcome.stages.push_back({stage.lo, stage.hi, costs.meshOf(stage.choice.id).shape,
                              timed.devices[index], result->get(), inFlight,
                              explanation->toAttribute(&getContext())});
  }
  outcome.stepSeconds = timed.stepSeconds;
  outcome.transferSeconds = timed.transferSeconds;
  outcome.numMicroBatches = numMicroBatches;
  outcome.schedule = found->schedule->name.str();
  outcome.solvedStages = costs.numSolved();
  outcome.reusedStages = costs.numReused();
  outcome.possibleStages = costs.numPossible();
  outcome.searchSeconds = secondsSince(begin);
  outcome.dpSeconds = search.dpSeconds;
  annotatePlan(main, *described, outcome);
  numRounds += search.numRounds;
  numStages += outcome.stages.size();
  numPossible += costs.numPossible();
  numSolved += costs.numSolved();
  numReused += costs.numReused();
  numLoaded += costs.numLoaded();
  return llvm::Error::success();
}
