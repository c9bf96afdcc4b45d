//===- SearchStages.cpp - stages, meshes and shardings of a step ----------===//

#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Remat/Rematerialize.h"
#include "compiler/Stage/Search/PlanAttributes.h"
#include "compiler/Stage/Search/StageAttempt.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "llvm/ADT/ScopeExit.h"
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
    registry.insert<AlpaDialect, stablehlo::StablehloDialect>();
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
  llvm::Error readSchedules(StageSearchSpace &tried);
  llvm::Expected<std::unique_ptr<StageAttempt>> attempt(const SearchSetup &setup,
                                                        std::vector<const StepVariant *> variants,
                                                        bool ignoresMemory = false);
  llvm::Expected<std::unique_ptr<StageAttempt>> searchWays(const SearchSetup &setup);
  llvm::Expected<std::unique_ptr<StageAttempt>> searchSchedules(const SearchSetup &setup);
  llvm::Error settle(StageAttempt &attempt, ArrayRef<LogicalMesh> meshes);
  llvm::Error run();

  func::FuncOp main;
  /// The step as it is written, and with layers computed again.
  std::shared_ptr<StepVariant> plain, again;
  std::shared_ptr<StepVariant> settled; // As the plan wants it.
  /// With several stages on each mesh; without schedules if none of that kind is asked for.
  StageSearchSpace virtualTried;
  std::optional<SearchSetup> virtualSetup;
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
  if (remat != "none" && remat != "auto")
    return fail("remat must be none or auto, got '" + remat + "'");
  if (submeshes.empty() && (!meshShapes.empty() || !layerRanges.empty()))
    return fail("mesh-shapes and layer-ranges need submeshes");
  return llvm::Error::success();
}

/// Whether something runs once between the forward runs of all micro-batches and their
/// backward runs.
static bool hasBarrier(func::FuncOp main) {
  return llvm::any_of(main.front(), [](Operation &op) {
    auto phase = op.getAttrOfType<StringAttr>(attr::phase);
    return phase && phase.getValue() == "barrier";
  });
}

/// A list of names; for "auto" those with one stage on each mesh and whole backward
/// phases. A step with a barrier has gpipe instead of any that is not like it.
llvm::Error AlpaSearchStagesPass::readSchedules(StageSearchSpace &tried) {
  constexpr StringLiteral kAuto = "1f1b,1f1b-overlap,gpipe";
  SmallVector<StringRef> names;
  bool meets = hasBarrier(main);
  (schedule == "auto" ? StringRef(kAuto) : StringRef(schedule)).split(names, ',');
  for (StringRef name : names) {
    const ScheduleInfo *info = findSchedule(name.trim());
    if (!info)
      return fail("unknown schedule '" + name + "'; expected " + scheduleNames() +
                  ", several of them with commas between, or auto");
    if (meets && !info->takesBarrier && info->name != "custom")
      info = findSchedule("gpipe");
    if (info->name == "custom")
      return fail("schedule 'custom' is one of alpa-build-schedule; search with the schedule that "
                  "its steps are like");
    bool isInterleaved = info->name == "interleaved-1f1b";
    auto &schedules = (isInterleaved || virtualStages > 1 ? virtualTried : tried).schedules;
    if (!llvm::is_contained(schedules, info))
      schedules.push_back(info);
    if (virtualStages > 1 && !info->takesSeveralStages)
      return fail("virtual-stages needs a schedule that takes several stages on a mesh, such as "
                  "interleaved-1f1b; got '" +
                  name.trim() + "'");
  }
  if (virtualTried.schedules.size() > 1)
    return fail("of the schedules with several stages on a mesh only one can be asked for");
  if (!virtualTried.schedules.empty() && !tried.schedules.empty() && !submeshes.empty())
    return fail("with submeshes, interleaved-1f1b is asked for alone");
  virtualTried.stagesPerMesh = virtualStages > 0 ? virtualStages : 2;
  return llvm::Error::success();
}

static double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

llvm::Expected<std::unique_ptr<StageAttempt>>
AlpaSearchStagesPass::attempt(const SearchSetup &setup, std::vector<const StepVariant *> variants,
                              bool ignoresMemory) {
  auto attempt = std::make_unique<StageAttempt>(setup, std::move(variants), ignoresMemory);
  if (llvm::Error error = attempt->run())
    return std::move(error);
  attempt->costs.keep();
  numRounds += attempt->search.numRounds;
  return std::move(attempt);
}

/// Micro-batches whose activations a stage may have to hold, or as much in other values:
/// what waits for weight parts counts like several more.
static int64_t mostInFlight(ArrayRef<const ScheduleInfo *> schedules, unsigned numLayers,
                            int64_t numMicroBatches) {
  int64_t most = 1;
  for (const ScheduleInfo *info : schedules)
    most =
        std::max(most, info->inFlight(numLayers, numMicroBatches) * (info->splitsBackward ? 4 : 1));
  return most;
}

/// With remat=auto, layers are computed again only where memory is short: what is
/// fastest without a limit and fits needs no other look.
llvm::Expected<std::unique_ptr<StageAttempt>>
AlpaSearchStagesPass::searchWays(const SearchSetup &setup) {
  constexpr double kLittle = 0.05;
  RematerializationSavings savings;
  if (remat == "auto")
    savings = findSavings(main, setup.problem.numLayers);
  bool isWorth = savings.part >= kLittle;
  llvm::Expected<std::unique_ptr<StageAttempt>> first =
      attempt(setup, {plain.get()}, /*ignoresMemory=*/isWorth);
  if (!first || (*first)->fits() || !llvm::is_contained(savings.layers, true))
    return first;
  if (isWorth && !(*first)->hasPlan()) // To say why.
    return attempt(setup, {plain.get()});
  llvm::Expected<std::unique_ptr<StepVariant>> variant =
      StepVariant::read(cloneRematerialized(main, savings.layers), method, setup.space.meshes);
  if (!variant)
    return variant.takeError();
  again = std::move(*variant);
  if (!setup.options.allDiffer)
    return attempt(setup, {plain.get(), again.get()});
  // What such a method does to a stage depends on how the others are written.
  llvm::Expected<std::unique_ptr<StageAttempt>> kept = attempt(setup, {plain.get()});
  if (!kept)
    return kept;
  llvm::Expected<std::unique_ptr<StageAttempt>> recomputed = attempt(setup, {again.get()});
  if (!recomputed || (*recomputed)->found.timed.stepSeconds < (*kept)->found.timed.stepSeconds)
    return recomputed;
  return kept;
}

/// The best of both kinds of schedules.
llvm::Expected<std::unique_ptr<StageAttempt>>
AlpaSearchStagesPass::searchSchedules(const SearchSetup &setup) {
  if (virtualTried.schedules.empty())
    return searchWays(setup);
  if (llvm::Error error = checkVirtualStages(virtualTried, setup.space, setup.problem))
    return fail(llvm::toString(std::move(error)));
  virtualSetup.emplace(setup);
  virtualSetup->tried = virtualTried;
  virtualSetup->tried.rules = setup.tried.rules;
  llvm::Expected<std::unique_ptr<StageAttempt>> shared = searchWays(*virtualSetup);
  if (!shared || setup.tried.schedules.empty())
    return shared;
  llvm::Expected<std::unique_ptr<StageAttempt>> apart = searchWays(setup);
  if (!apart || (*apart)->found.timed.stepSeconds <= (*shared)->found.timed.stepSeconds)
    return apart;
  return shared;
}

/// Writes the layers of the plan's stages in @main as their choices have them.
llvm::Error AlpaSearchStagesPass::settle(StageAttempt &attempt, ArrayRef<LogicalMesh> meshes) {
  if (!again)
    return llvm::Error::success();
  auto known = again->function->getAttrOfType<DenseI64ArrayAttr>(attr::rematerialized);
  SmallVector<bool> chosen(plain->layers.opsOfLayer.size(), false);
  for (const PlannedStage &stage : attempt.found.plan.stages)
    for (unsigned layer = stage.lo; layer < stage.hi; ++layer)
      chosen[layer] = &attempt.variantOf(stage) == again.get() &&
                      llvm::is_contained(known.asArrayRef(), int64_t(layer));
  rematerializeLayers(main, chosen);
  llvm::Expected<std::unique_ptr<StepVariant>> variant = StepVariant::read(main, method, meshes);
  if (!variant)
    return variant.takeError();
  settled = std::move(*variant);
  attempt.costs.settle(settled->layers.opsOfLayer, settled->filters);
  return llvm::Error::success();
}

llvm::Error AlpaSearchStagesPass::run() {
  auto begin = std::chrono::steady_clock::now();
  if (llvm::Error error = checkOptions())
    return error;
  auto end = llvm::scope_exit([&] {
    if (again)
      again->function.erase();
    plain = again = settled = nullptr;
  });
  StageSearchSpace tried;
  if (llvm::Error error = readSchedules(tried))
    return error;
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
          : manualSearchSpace(*described, numLayers, meshAxes, submeshes, meshShapes, layerRanges,
                              virtualTried.schedules.empty() ? 1 : virtualTried.stagesPerMesh);
  if (!space)
    return space.takeError();
  llvm::Expected<std::vector<StageRule>> rules =
      applyPipelineMethod(pipeline, *described, numLayers, *space);
  if (!rules)
    return fail(llvm::toString(rules.takeError()));
  std::vector<StageRule> even;
  if (pipeline == "auto" && !space->manual)
    even = evenRules(*described, numLayers, *space);
  if (method == "megatron" && !space->manual)
    addTurnedViews(*described, *space);

  tried.rules = std::move(*rules);
  tried.evenRules = std::move(even);
  SearchSetup setup{&getContext(), *described, std::move(*space), std::move(tried), {}, {}, gap};
  StageDpProblem &problem = setup.problem;
  problem.numLayers = numLayers;
  for (const Host &host : described->hosts)
    problem.hostDevices.push_back(host.devices);
  problem.hostKinds = described->kindOfHosts();
  problem.submeshes = setup.space.submeshes;
  problem.numMicroBatches = numMicroBatches;
  for (ArrayRef<unsigned> views : setup.space.views) {
    int64_t memoryBytes = std::numeric_limits<int64_t>::max();
    for (unsigned view : views)
      memoryBytes = std::min(memoryBytes, setup.space.meshes[view].device.memoryBytes);
    problem.memoryBytes.push_back(int64_t(memoryBytes * memoryFraction));
  }
  problem.epsilonSeconds = epsilon;
  problem.epsilonPart = gap / 4;
  problem.usesAllDevices = pipeline != "auto"; // As the methods of that name do.
  problem.manual = setup.space.manual;
  problem.manualLayers = setup.space.layerRanges;

  StageCostOptions &options = setup.options;
  options.numMicroBatches = numMicroBatches;
  for (const LogicalMesh &mesh : setup.space.meshes)
    options.memoryBytes.push_back(int64_t(mesh.device.memoryBytes * memoryFraction));
  options.tolerance = gap;
  options.mostInFlight = mostInFlight(setup.tried.schedules, numLayers, numMicroBatches);
  if (!virtualTried.schedules.empty()) // Warming up takes at most so many.
    options.mostInFlight = std::max<int64_t>(options.mostInFlight, 2 * numLayers);
  options.timeLimitSeconds = timeLimit;
  // These depend on all of the step.
  options.allDiffer = method == "heuristic" || method == "manual";
  options.methodKey = method;
  if (!cacheDir.empty() && !options.allDiffer) {
    llvm::Expected<std::shared_ptr<StageStore>> store = StageStore::open(cacheDir);
    if (!store)
      return fail("cache-dir: " + llvm::toString(store.takeError()));
    options.store = *store;
  }

  llvm::Expected<std::unique_ptr<StepVariant>> variant =
      StepVariant::read(main, method, setup.space.meshes);
  if (!variant)
    return fail(llvm::toString(variant.takeError()));
  plain = std::move(*variant);
  llvm::Expected<std::unique_ptr<StageAttempt>> best = searchSchedules(setup);
  if (!best)
    return best.takeError();
  if (!(*best)->hasPlan() && !explainsMisfit)
    return fail("no plan fits into memory");
  if (!(*best)->hasPlan() && setup.tried.schedules.empty()) {
    llvm::Expected<std::unique_ptr<StageAttempt>> free =
        attempt(*virtualSetup, {again ? again.get() : plain.get()}, /*ignoresMemory=*/true);
    if (!free)
      return free.takeError();
    return fail(llvm::toString(explainVirtualMisfit((*free)->found, problem, virtualTried)));
  }
  // The least that is needed is what layers that are computed again need.
  if (!(*best)->hasPlan() && again && !options.allDiffer)
    best = attempt(setup, {again.get()});
  if (!best)
    return best.takeError();
  StageCosts &costs = (*best)->costs;
  const FoundPlan &found = (*best)->found;
  if (!(*best)->hasPlan()) {
    std::string why =
        llvm::toString(explainMisfit((*best)->search, costs, setup.tried, main, again != nullptr));
    if (pipeline != "auto" && StringRef(why).starts_with("no plan exists"))
      why = "no plan exists: with pipeline '" + pipeline +
            "' no stages use all devices of cluster '" + described->name +
            "'; use pipeline 'auto', or another number of devices or layers";
    return fail(why);
  }
  const TimedPlan &timed = found.timed;
  if (timed.devices.empty())
    return fail("the submeshes do not fit side by side into cluster '" + described->name + "'");
  if (llvm::Error error = settle(**best, setup.space.meshes))
    return error;

  PlanOutcome outcome;
  std::vector<std::shared_ptr<IntraOpResult>> results;
  for (auto [index, stage] : llvm::enumerate(found.plan.stages)) {
    const StageFlights &flights = timed.flights[index];
    llvm::Expected<std::shared_ptr<IntraOpResult>> result = costs.result(stage, flights.inFlight);
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
                              timed.devices[index], result->get(), flights, timed.peakBytes[index],
                              index < timed.sends.size() ? timed.sends[index] : SendSeconds(),
                              explanation->toAttribute(&getContext())});
  }
  outcome.stepSeconds = timed.stepSeconds;
  outcome.transferSeconds = timed.transferSeconds;
  outcome.numMicroBatches = numMicroBatches;
  outcome.schedule = found.schedule;
  outcome.limit = timed.limit;
  outcome.keptPart = timed.keptPart;
  outcome.solvedStages = costs.numSolved();
  outcome.reusedStages = costs.numReused();
  outcome.possibleStages = costs.numPossible();
  outcome.searchSeconds = secondsSince(begin);
  outcome.dpSeconds = (*best)->search.dpSeconds;
  annotatePlan(main, *described, outcome);
  numStages += outcome.stages.size();
  numPossible += costs.numPossible();
  numSolved += costs.numSolved();
  numReused += costs.numReused();
  numLoaded += costs.numLoaded();
  return llvm::Error::success();
}
