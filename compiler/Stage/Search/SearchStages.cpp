//===- SearchStages.cpp - stages, meshes and shardings of a step ----------===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Schedule/SlicedModule.h"
#include "compiler/Sharding/Problem/IntraOp.h"
#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Remat/Rematerialize.h"
#include "compiler/Stage/Remat/StepVariants.h"
#include "compiler/Stage/Search/LazyStageDp.h"
#include "compiler/Stage/Search/SearchSpace.h"
#include "compiler/Stage/Search/StageDp.h"
#include "compiler/Stage/Search/VirtualStageSearch.h"
#include "compiler/Stage/Search/WarmStart.h"
#include "compiler/Stage/Time/PipelineTime.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Common/Diagnostics.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/StringExtras.h"

#include <chrono>
#include <cmath>
#include <deque>
#include <set>

namespace alpa::stage {
#define GEN_PASS_DEF_ALPASEARCHSTAGES
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace alpa;
using namespace alpa::stage;
using namespace mlir;
using cost::Cluster;
using schedule::ScheduleInfo;
using sharding::IntraOpResult;
using sharding::OpPhase;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

//===----------------------------------------------------------------------===//
// One search for stages
//===----------------------------------------------------------------------===//

namespace {

/// What all searches for the stages of a step have in common.
struct SearchSetup {
  MLIRContext *context;
  const Cluster &cluster;
  SearchSpace space;
  std::vector<double> flopsOfLayer;
  StageSearchSpace tried;
  StageDpProblem problem;   // All but choices and sends.
  StageCostOptions options; // All but what depends on the method's look at a variant.
  double gap = 0;
};

/// A search among some variants of the step, and the plan that it found.
class StageAttempt {
public:
  /// The variants and the setup outlive it. `ignoresMemory` finds the best plan if that fits, and
  /// one that does not otherwise.
  StageAttempt(const SearchSetup &setup, std::vector<const StepVariant *> variants,
               bool ignoresMemory = false);

  /// Looks for a step that takes fewer seconds; only stages that share meshes know of it.
  llvm::Error run(double mostSeconds = kInfinity, size_t mostWork = ~size_t(0));
  /// Splits equal layers of each stage alike where the step gets no slower for that.
  llvm::Error align();
  bool hasPlan() const { return !found.plan.stages.empty(); }
  /// Whether the plan fits into memory.
  bool fits() const;
  const StepVariant &variantOf(const PlannedStage &stage) const {
    return *variants[costs.variantOfChoice(stage.choice.id)];
  }

private:
  StageCostOptions makeOptions() const;
  StageDpProblem makeProblem() const;

  const SearchSetup &setup;
  std::vector<const StepVariant *> variants;
  bool ignoresMemory;

public:
  StageCosts costs;
  PlanTimer timer;
  LazyStageDp search;
  FoundPlan found;
};

} // namespace

static std::vector<std::shared_ptr<const KnownLayers>>
layersOf(llvm::ArrayRef<const StepVariant *> variants) {
  std::vector<std::shared_ptr<const KnownLayers>> layers;
  for (const StepVariant *variant : variants)
    layers.push_back(variant->known);
  return layers;
}

StageAttempt::StageAttempt(const SearchSetup &setup, std::vector<const StepVariant *> given,
                           bool ignoresMemory)
    : setup(setup), variants(std::move(given)), ignoresMemory(ignoresMemory),
      costs(setup.context, layersOf(variants), setup.space.meshes, setup.space.views,
            makeOptions()),
      // What is sent between layers does not depend on what is computed again within them.
      timer(setup.cluster, setup.problem, variants.front()->layers, costs),
      search(costs, timer, makeProblem(), setup.gap) {}

StageCostOptions StageAttempt::makeOptions() const {
  StageCostOptions options = setup.options;
  if (ignoresMemory)
    llvm::fill(options.memoryBytes, std::numeric_limits<int64_t>::max());
  for (const StepVariant *variant : variants)
    llvm::append_range(options.filters, variant->filters);
  if (const auto &pins = variants.front()->pins; !pins->empty())
    for (const cost::LogicalMesh &mesh : setup.space.meshes)
      options.pinKeys.push_back(pins->keyOn(mesh.shape));
  return options;
}

StageDpProblem StageAttempt::makeProblem() const {
  StageDpProblem problem = setup.problem;
  if (ignoresMemory)
    problem.memoryBytes.clear();
  problem.transferSeconds = [this](unsigned cut, unsigned from, unsigned to) {
    return timer.send(cut, from, to);
  };
  return problem;
}

llvm::Error StageAttempt::run(double mostSeconds, size_t mostWork) {
  // As if memory were no matter is of use where it turns out to be none.
  auto isOfUse = [&](const FoundPlan &plan) {
    return !ignoresMemory || plan.timed.devices.empty() ||
           plan.timed.fits(setup.problem, plan.plan);
  };
  llvm::Expected<FoundPlan> plan =
      setup.tried.stagesPerMesh
          ? VirtualStageSearch(costs, timer, setup.space, search.getProblem(), setup.gap)
                .run(setup.tried, mostSeconds, mostWork)
          : search.run(setup.tried, isOfUse);
  if (!plan)
    return plan.takeError();
  found = std::move(*plan);
  return llvm::Error::success();
}

llvm::Error StageAttempt::align() {
  // Less than any prediction can tell.
  constexpr double kSlack = 1e-4;
  StagePlan aligned = found.plan;
  std::vector<int64_t> inFlight;
  for (const StageFlights &flights : found.timed.flights)
    inFlight.push_back(flights.inFlight);
  llvm::Expected<std::vector<StageChoice>> choices =
      costs.align(aligned.stages, inFlight, std::min(kSlack, setup.options.tolerance));
  if (!choices)
    return choices.takeError();
  bool isChanged = false;
  for (auto [stage, choice] : llvm::zip_equal(aligned.stages, *choices)) {
    isChanged |= choice.id != stage.choice.id;
    stage.choice = choice;
  }
  if (!isChanged)
    return llvm::Error::success();
  StageDpProblem problem = setup.problem;
  problem.schedule = found.schedule;
  llvm::Expected<TimedPlan> timed = timer.time(aligned, problem);
  if (!timed)
    return timed.takeError();
  if (timed->devices.empty() || timed->stepSeconds > found.timed.stepSeconds * (1 + kSlack) ||
      !timed->fits(setup.problem, aligned))
    return llvm::Error::success();
  aligned.seconds = found.plan.seconds;
  found.plan = std::move(aligned);
  found.timed = std::move(*timed);
  return llvm::Error::success();
}

bool StageAttempt::fits() const {
  return hasPlan() && !found.timed.devices.empty() && found.timed.fits(setup.problem, found.plan);
}

//===----------------------------------------------------------------------===//
// A plan as attributes of the module
//===----------------------------------------------------------------------===//

namespace {

/// One stage as it will run.
struct StageOutcome {
  unsigned firstLayer = 0, endLayer = 0;
  llvm::SmallVector<int64_t, 3> meshShape;
  std::vector<int64_t> devices;
  const IntraOpResult *result = nullptr;
  StageFlights flights;       // Micro-batches whose values it keeps.
  int64_t peakBytes = 0;      // Of a device, of this stage's values.
  SendSeconds sends;          // To the next stage and back.
  DictionaryAttr explanation; // Where the time goes, and what else was close.
  /// Of a run, to move what other stages of the mesh made.
  double forwardMoveSeconds = 0, backwardMoveSeconds = 0;
};

struct PlanOutcome {
  std::vector<StageOutcome> stages;
  int64_t numMicroBatches = 1;
  const ScheduleInfo *schedule = nullptr;
  std::vector<double> limits, keptParts, sizes; // As TimedPlan has them.
  double stepSeconds = 0, slowestStageSeconds = 0, transferSeconds = 0, updateSeconds = 0;
  double searchSeconds = 0;
  double dpSeconds = 0; // Of the search, in the stage DP itself.
  int64_t solvedStages = 0, reusedStages = 0, possibleStages = 0;
  int64_t timedOutSolves = 0; // By all of the search.
  std::string idleReason;     // Empty if all devices are used.
  double allDevicesSeconds = std::numeric_limits<double>::infinity();
};

} // namespace

namespace {

class PlanAnnotator {
public:
  PlanAnnotator(func::FuncOp main, const PlanOutcome &plan)
      : main(main), plan(plan), context(main.getContext()), builder(context) {}

  void run(const Cluster &cluster) {
    flops.resize(plan.stages.size());
    for (Operation &op : main.front().without_terminator())
      annotate(&op);
    for (BlockArgument arg : main.getArguments())
      annotate(arg);
    annotateModule(cluster);
  }

private:
  Attribute seconds(double value) { return builder.getF64FloatAttr(value); }
  Attribute integer(int64_t value) { return builder.getI64IntegerAttr(value); }

  unsigned stageOf(Operation *op) const {
    int64_t layer = *layerOf(op);
    for (auto [index, stage] : llvm::enumerate(plan.stages))
      if (layer < stage.endLayer)
        return index;
    return plan.stages.size() - 1;
  }

  /// As `user` finds it, if it is given.
  Attribute specOf(Value value, unsigned stage, Operation *user = nullptr) const {
    const IntraOpResult &result = *plan.stages[stage].result;
    auto it = result.specs.find(value);
    if (const ShardingSpec *held = user                       ? result.heldFor(user, value)
                                   : it == result.specs.end() ? nullptr
                                                              : &it->second)
      return ShardingAttr::get(context, *held);
    int64_t rank = cast<RankedTensorType>(value.getType()).getRank();
    return ShardingAttr::get(context, ShardingSpec::replicated(rank));
  }

  void annotate(Operation *op) {
    unsigned stage = stageOf(op);
    op->setAttr(attr::stage, integer(stage));
    if (auto phase = op->getAttrOfType<StringAttr>(attr::phase))
      flops[stage][phase.getValue()] += analysis::getFlops(op);
    SmallVector<Attribute> results, operands, uses;
    const auto &useSpecs = plan.stages[stage].result->useSpecs;
    const auto &sumSpecs = plan.stages[stage].result->sumSpecs;
    bool foreign = false, moved = false;
    for (Value value : op->getResults()) {
      auto sharding = cast<ShardingAttr>(specOf(value, stage));
      results.push_back(sharding);
      // alpa-defer-sums asks how the factors that make terms are split.
      moved |= !sharding.getSpec().unreduced.empty();
      if (auto sum = sumSpecs.find(value); sum != sumSpecs.end())
        op->setAttr(attr::summedAs, ShardingAttr::get(context, sum->second));
    }
    op->setAttr(attr::shardings, builder.getArrayAttr(results));
    if (Attribute made = sharding::madeShardings(op, *plan.stages[stage].result)) {
      op->setAttr(attr::madeShardings, made);
      moved = true;
    }

    for (OpOperand &operand : op->getOpOperands()) {
      Operation *source = operand.get().getDefiningOp();
      foreign |= !source || stageOf(source) != stage;
      operands.push_back(specOf(operand.get(), stage, op));
      auto use = useSpecs.find({op, operand.getOperandNumber()});
      moved |= use != useSpecs.end();
      uses.push_back(use == useSpecs.end() ? operands.back()
                                           : ShardingAttr::get(context, use->second));
    }
    if (plan.stages[stage].result->gatherKeys.contains(op))
      op->setAttr(attr::gathersKeys, builder.getUnitAttr());
    if (foreign)
      op->setAttr(attr::operandShardings, builder.getArrayAttr(operands));
    if (moved)
      op->setAttr(attr::useShardings, builder.getArrayAttr(uses));
    auto heldAs = [&](Value value) { return specOf(value, stage); };
    if (Attribute captured = sharding::captureShardings(op, useSpecs, heldAs))
      op->setAttr(attr::captureShardings, captured);
  }

  /// State lives where its next value is made, other arguments where they are
  /// first read.
  void annotate(BlockArgument arg) {
    unsigned index = arg.getArgNumber();
    std::optional<unsigned> owner;
    Value next;
    if (auto carried = main.getArgAttrOfType<IntegerAttr>(index, attr::carriedBy)) {
      next = main.front().getTerminator()->getOperand(carried.getInt());
      if (Operation *source = next.getDefiningOp())
        owner = stageOf(source);
    }
    bool read = false;
    std::optional<unsigned> first;
    for (Operation *user : importer::getUsers(arg))
      if (!user->hasTrait<OpTrait::IsTerminator>()) {
        unsigned stage = stageOf(user);
        first = std::min(first.value_or(stage), stage);
        read |= owner && *owner == stage;
      }
    unsigned stage = owner ? *owner : first.value_or(0);
    // The search asks how the owner holds the state even if only the next is made there.
    read |= plan.stages[stage].result->specs.count(arg);
    main.setArgAttr(index, attr::stage, integer(stage));
    main.setArgAttr(index, attr::sharding, specOf(owner && !read ? next : Value(arg), stage));
  }

  /// Layers of the stage that are computed again for their gradients.
  int64_t countRematerialized(const StageOutcome &stage) const {
    auto again = main->getAttrOfType<DenseI64ArrayAttr>(attr::rematerialized);
    return again ? llvm::count_if(again.asArrayRef(),
                                  [&](int64_t layer) {
                                    return layer >= stage.firstLayer && layer < stage.endLayer;
                                  })
                 : 0;
  }

  Attribute stageAttr(const StageOutcome &stage, llvm::StringMap<double> &flopsOf) {
    const IntraOpResult &result = *stage.result;
    const solver::Solution &solution = result.solution;
    auto named = [&](StringRef name, Attribute value) { return builder.getNamedAttr(name, value); };
    auto scratchBytes = [&](OpPhase phase) {
      return integer(result.scratchBytes[unsigned(phase)]);
    };
    SmallVector<NamedAttribute> predicted{
        named("forward_seconds", seconds(result.forwardSeconds + stage.forwardMoveSeconds)),
        named("backward_seconds", seconds(result.backwardSeconds + stage.backwardMoveSeconds)),
        named("update_seconds", seconds(result.updateSeconds)),
        named("forward_flops", builder.getF64FloatAttr(flopsOf["forward"])),
        named("backward_flops", builder.getF64FloatAttr(flopsOf["backward"])),
        named("update_flops", builder.getF64FloatAttr(flopsOf["update"])),
        named("state_bytes", integer(result.stateBytes)),
        named("activation_bytes", integer(result.activationBytes)),
        named("temporary_bytes", integer(result.temporaryBytes)),
        named("forward_scratch_bytes", scratchBytes(OpPhase::Forward)),
        named("backward_scratch_bytes", scratchBytes(OpPhase::Backward)),
        named("update_scratch_bytes", scratchBytes(OpPhase::Update)),
        named("micro_batches_in_flight", integer(stage.flights.inFlight)),
        named("peak_bytes", integer(stage.peakBytes - result.hostExcessBytes)),
        named("rematerialized_layers", integer(countRematerialized(stage))),
    };
    if (result.hostBytes > 0)
      predicted.append({
          named("host_bytes", integer(result.hostBytes)),
          named("host_seconds", seconds(result.hostSeconds)),
          named("hidden_host_seconds", seconds(result.hiddenHostSeconds)),
      });
    if (flopsOf.contains("prepare"))
      predicted.append({
          named("prepare_seconds", seconds(result.prepareSeconds)),
          named("prepare_flops", builder.getF64FloatAttr(flopsOf["prepare"])),
          named("prepare_scratch_bytes", scratchBytes(OpPhase::Prepare)),
      });
    if (flopsOf.contains("barrier"))
      predicted.append({
          named("barrier_seconds", seconds(result.barrierSeconds)),
          named("barrier_flops", builder.getF64FloatAttr(flopsOf["barrier"])),
          named("barrier_scratch_bytes", scratchBytes(OpPhase::Barrier)),
      });
    if (plan.schedule->splitsBackward) {
      // Each part holds no more inside than the whole.
      double weight = result.backwardWeightSeconds;
      predicted.append({
          named("backward_input_seconds",
                seconds(result.backwardSeconds + stage.backwardMoveSeconds - weight)),
          named("backward_weight_seconds", seconds(weight)),
          named("backward_input_scratch_bytes", scratchBytes(OpPhase::Backward)),
          named("backward_weight_scratch_bytes", scratchBytes(OpPhase::Backward)),
          named("waiting_bytes", integer(result.waitingBytes)),
          named("micro_batches_waiting", integer(stage.flights.waiting)),
          named("forth_seconds", seconds(stage.sends.forth)),
          named("back_seconds", seconds(stage.sends.back)),
      });
    }
    constexpr double kPicosecond = 1e-12;
    DictionaryAttr solver = builder.getDictionaryAttr({
        named("status", builder.getStringAttr(solver::stringifySolveStatus(solution.status))),
        named("objective_seconds", seconds(double(solution.objective) * kPicosecond)),
        named("lower_bound_seconds", seconds(double(solution.lowerBound) * kPicosecond)),
        named("gap", seconds(solution.gap)),
        named("nodes", integer(solution.nodes)),
        named("choices", integer(result.choices)),
        named("explanation", stage.explanation),
    });
    MeshAttr mesh = MeshAttr::get(context, stage.meshShape, stage.devices);
    return StageAttr::get(context, mesh, stage.firstLayer, stage.endLayer,
                          builder.getDictionaryAttr(predicted), solver);
  }

  void annotateModule(const Cluster &cluster) {
    auto module = main->getParentOfType<ModuleOp>();
    SmallVector<Attribute> stages;
    for (auto [stage, flopsOf] : llvm::zip_equal(plan.stages, flops))
      stages.push_back(stageAttr(stage, flopsOf));
    module->setAttr(attr::stages, builder.getArrayAttr(stages));
    module->setAttr(attr::numMicroBatches, integer(plan.numMicroBatches));
    module->setAttr(attr::schedule, builder.getStringAttr(plan.schedule->name));
    module->setAttr(attr::cluster, builder.getStringAttr(cost::printCluster(cluster)));
    auto named = [&](StringRef name, Attribute value) { return builder.getNamedAttr(name, value); };
    if (plan.schedule->heedsLimits) {
      SmallVector<NamedAttribute> parameters = {
          named("limits", builder.getDenseF64ArrayAttr(plan.limits)),
          named("kept_parts", builder.getDenseF64ArrayAttr(plan.keptParts))};
      if (!plan.sizes.empty())
        parameters.push_back(named("sizes", builder.getDenseF64ArrayAttr(plan.sizes)));
      module->setAttr(attr::scheduleParameters, builder.getDictionaryAttr(parameters));
    }
    SmallVector<NamedAttribute> predicted = {
        named("step_seconds", seconds(plan.stepSeconds)),
        named("slowest_stage_seconds", seconds(plan.slowestStageSeconds)),
        named("transfer_seconds", seconds(plan.transferSeconds)),
        named("update_seconds", seconds(plan.updateSeconds))};
    if (std::isfinite(plan.allDevicesSeconds))
      predicted.push_back(named("all_devices_step_seconds", seconds(plan.allDevicesSeconds)));
    module->setAttr(attr::predicted, builder.getDictionaryAttr(predicted));
    SmallVector<Attribute> stageSeconds;
    for (const StageOutcome &stage : plan.stages)
      stageSeconds.push_back(seconds(stage.result->solution.seconds));
    SmallVector<NamedAttribute> planning = {
        named("search_seconds", seconds(plan.searchSeconds)),
        named("dp_seconds", seconds(plan.dpSeconds)),
        named("stage_seconds", builder.getArrayAttr(stageSeconds)),
        named("solved_stages", integer(plan.solvedStages)),
        named("reused_stages", integer(plan.reusedStages)),
        named("possible_stages", integer(plan.possibleStages)),
        named("timed_out_solves", integer(plan.timedOutSolves))};
    if (!plan.idleReason.empty())
      planning.push_back(named("idle_reason", builder.getStringAttr(plan.idleReason)));
    module->setAttr(attr::planning, builder.getDictionaryAttr(planning));
  }

  func::FuncOp main;
  const PlanOutcome &plan;
  MLIRContext *context;
  Builder builder;
  /// Of all of a stage's ops of a phase, on all its devices together.
  std::vector<llvm::StringMap<double>> flops;
};

} // namespace

/// Sets the attributes that docs/ir.md gives to search-stages. Ops
/// carry `alpa.layer`.
static void annotatePlan(func::FuncOp main, const Cluster &cluster, const PlanOutcome &plan) {
  PlanAnnotator(main, plan).run(cluster);
}

//===----------------------------------------------------------------------===//
// Stages, meshes and shardings of a step
//===----------------------------------------------------------------------===//

namespace {

class AlpaSearchStagesPass : public stage::impl::AlpaSearchStagesBase<AlpaSearchStagesPass> {
public:
  using AlpaSearchStagesBase::AlpaSearchStagesBase;

  void getDependentDialects(DialectRegistry &registry) const override {
    registry.insert<AlpaDialect, stablehlo::StablehloDialect>();
  }

  void runOnOperation() override {
    if (llvm::Error error = run()) {
      // Without the note that prints the whole module.
      withError(emitError(getOperation().getLoc()), std::move(error));
      signalPassFailure();
    }
  }

private:
  llvm::Error fail(const llvm::Twine &message) const {
    return makeError(ErrorCode::Method, "alpa-search-stages: " + message);
  }
  llvm::Error fail(llvm::Error error) const {
    return prefixError("alpa-search-stages: ", std::move(error), ErrorCode::Method);
  }
  llvm::Error checkOptions();
  std::string limitsText() const;
  llvm::Error readSchedules(StageSearchSpace &tried);
  llvm::Expected<std::unique_ptr<StageAttempt>>
  attempt(const SearchSetup &setup, std::vector<const StepVariant *> variants,
          bool ignoresMemory = false, double mostSeconds = kInfinity, size_t mostWork = ~size_t(0));
  llvm::Expected<std::unique_ptr<StageAttempt>> searchWays(const SearchSetup &setup);
  llvm::Error tryKeptProducts(const SearchSetup &setup, ArrayRef<bool> layers,
                              std::unique_ptr<StageAttempt> &best);
  llvm::Error tryOnStages(const SearchSetup &setup, std::vector<const StepVariant *> variants,
                          double worth, std::unique_ptr<StageAttempt> &best);
  llvm::Error tryToKeepMore(const SearchSetup &setup, ArrayRef<bool> layers,
                            std::unique_ptr<StageAttempt> &best);
  llvm::Expected<std::unique_ptr<StageAttempt>> searchOffloaded(const SearchSetup &setup,
                                                                ArrayRef<bool> layers);
  llvm::Expected<std::unique_ptr<StageAttempt>> searchSchedules(const SearchSetup &setup);
  const SearchSetup &addVirtualSetup(const SearchSetup &setup, StageSearchSpace tried);
  llvm::Error tryVirtualStages(const SearchSetup &setup, std::unique_ptr<StageAttempt> &best);
  llvm::Error settle(StageAttempt &attempt, ArrayRef<cost::LogicalMesh> meshes);
  llvm::Error run();

  func::FuncOp main;
  unsigned timedOutSolves = 0;
  size_t solvedLayers = 0; // By all attempts.
  /// Layers to compute again, and of them what is kept, which is found when it is asked for.
  struct Recomputation {
    ArrayRef<bool> layers;
    std::function<std::optional<KeptOps>()> findKept = nullptr;
  };
  llvm::Error addAgain(const SearchSetup &setup, ArrayRef<Recomputation> ways);
  std::optional<KeptOps> findCut(const SearchSetup &setup, ArrayRef<bool> layers) const;
  llvm::Expected<std::shared_ptr<StepVariant>>
  readVariant(func::FuncOp function, ArrayRef<cost::LogicalMesh> meshes) const;
  llvm::Expected<std::unique_ptr<StageAttempt>>
  attemptEach(const SearchSetup &setup, std::vector<const StepVariant *> variants);
  bool offloads() const { return offload == "activations"; }
  /// What the method does to a stage depends on all of the step.
  bool allDiffer() const { return method == "heuristic" || method == "manual"; }

  /// The step as it is written, and in other ways: with layers computed again, or with `offload`
  /// all ways, with activations in the hosts' memory.
  std::shared_ptr<StepVariant> plain;
  struct Again {
    std::shared_ptr<StepVariant> variant;
    SmallVector<bool> layers;    // That it computes again.
    std::optional<KeptOps> kept; // Ops of @main; or else what `alpa.keeps_products` says.
  };
  std::vector<Again> again; // What needs the least memory comes first, if it is there.
  bool hasAgain = false;    // All of them are.
  std::shared_ptr<StepVariant> withProducts; // One of them, that keeps products; or null.
  std::shared_ptr<StepVariant> settled;      // As the plan wants it.
  std::optional<WarmStart> start;            // If a plan from before is given.
  /// With several stages on each mesh; without schedules if none of that kind is asked for.
  StageSearchSpace virtualTried;
  std::deque<SearchSetup> otherSetups; // Attempts refer to them.
};

} // namespace

llvm::Error AlpaSearchStagesPass::checkOptions() {
  main = getOperation().lookupSymbol<func::FuncOp>("main");
  if (!main || main.isDeclaration())
    return fail("the module has no function @main");
  if (cluster.empty())
    return fail("option cluster is missing; give a cluster file or a preset (" +
                llvm::join(cost::clusterPresets(), ", ") + ")");
  if (numMicroBatches < 1)
    return fail("num-micro-batches must be 1 or more, got " + llvm::Twine(numMicroBatches));
  if (llvm::Error error = sharding::checkMethod(method))
    return fail(std::move(error));
  if (llvm::Error error = checkPipelineMethod(pipeline))
    return fail(std::move(error));
  if (meshAxes != 2 && meshAxes != 3)
    return fail("mesh-axes must be 2 or 3, got " + llvm::Twine(meshAxes));
  if (!(memoryFraction > 0 && memoryFraction <= 1))
    return fail("memory-fraction must be above 0 and at most 1");
  if (!(timeLimit > 0))
    return fail("time-limit must be above 0 seconds");
  if (!(workLimit > 0))
    return fail("work-limit must be above 0");
  if (!(gap >= 0 && gap < 1) || !(startGap >= 0 && startGap < 1) || !(epsilon >= 0))
    return fail("gap and start-gap must be at least 0 and below 1, and epsilon at least 0");
  if (remat != "none" && remat != "auto")
    return fail("remat must be none or auto, got '" + remat + "'");
  if (offload != "none" && offload != "activations")
    return fail("offload must be none or activations, got '" + offload + "'");
  if (rematKeeps != "given" && rematKeeps != "auto")
    return fail("remat-keeps must be given or auto, got '" + rematKeeps + "'");
  if (maxDevices && (pipeline != "auto" || !submeshes.empty()))
    return fail("max-devices needs pipeline auto and no submeshes: others say which devices a plan "
                "takes");
  if (submeshes.empty() && !meshShapes.empty())
    return fail("mesh-shapes need submeshes");
  if (startSubmeshes.empty() != startLayers.empty())
    return fail("start-submeshes and start-layers go together");
  if (!startSubmeshes.empty() && (pipeline != "auto" || !submeshes.empty()))
    return fail("start-submeshes need pipeline auto and no submeshes");
  if (!schedule::findSchedule(startSchedule))
    return fail("unknown start-schedule '" + startSchedule + "'; expected " +
                schedule::scheduleNames());
  if (maxStages && !submeshes.empty())
    return fail("max-stages with submeshes, which say how many stages there are");
  if (maxStages && layerRanges.size() > maxStages)
    return fail(llvm::Twine(layerRanges.size()) + " layer-ranges with max-stages " +
                llvm::Twine(maxStages));
  if (submeshes.empty() && !layerRanges.empty() && pipeline != "auto" && pipeline != "equal-mesh")
    return fail("layer-ranges with pipeline '" + pipeline + "', which chooses the layers");
  return llvm::Error::success();
}

/// The limits that the user has set, `at most 2 stages and 4 devices`.
std::string AlpaSearchStagesPass::limitsText() const {
  SmallVector<std::string> limits;
  for (auto [most, noun] : {std::pair(unsigned(maxStages), "stage"), {maxDevices, "device"}})
    if (most)
      limits.push_back("at most " + std::to_string(most) + " " + noun + (most == 1 ? "" : "s"));
  if (!layerRanges.empty())
    limits.push_back("stages of layers " + llvm::join(layerRanges, ", "));
  return llvm::join(limits, " and ");
}

/// Whether something runs once between the forward runs of all micro-batches and their
/// backward runs.
static bool hasBarrier(func::FuncOp main) {
  return llvm::any_of(main.front(), [](Operation &op) { return isOfPhase(&op, "barrier"); });
}

/// A list of names; for "auto" those with one stage on each mesh and whole backward
/// phases, whose plans zb-auto orders anew. A step with a barrier has gpipe instead of any
/// that is not like it.
llvm::Error AlpaSearchStagesPass::readSchedules(StageSearchSpace &tried) {
  constexpr StringLiteral kAuto = "1f1b,1f1b-overlap,gpipe";
  SmallVector<StringRef> names;
  bool meets = hasBarrier(main);
  (schedule == "auto" ? StringRef(kAuto) : StringRef(schedule)).split(names, ',');
  for (StringRef name : names) {
    const ScheduleInfo *info = schedule::findSchedule(name.trim());
    if (!info)
      return fail("unknown schedule '" + name + "'; expected " + schedule::scheduleNames() +
                  ", several of them with commas between, or auto");
    if (meets && !info->takesBarrier && info->name != "custom")
      info = schedule::findSchedule("gpipe");
    if (info->name == "custom")
      return fail("schedule 'custom' is one of alpa-build-schedule; search with the schedule that "
                  "its steps are like");
    bool hasSeveral = info->stagesPerMesh > 1 || virtualStages > 1;
    auto &schedules = (hasSeveral ? virtualTried : tried).schedules;
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
    return fail("with submeshes, " + virtualTried.schedules.front()->name.str() +
                " is asked for alone");
  if (schedule == "auto" && !meets)
    for (StringRef name : {"zb-auto", "zb-h1"})
      tried.reorderings.push_back(schedule::findSchedule(name));
  virtualTried.stagesPerMesh = virtualStages > 0 ? virtualStages : 2;
  return llvm::Error::success();
}

static double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

llvm::Expected<std::unique_ptr<StageAttempt>>
AlpaSearchStagesPass::attempt(const SearchSetup &setup, std::vector<const StepVariant *> variants,
                              bool ignoresMemory, double mostSeconds, size_t mostWork) {
  auto attempt = std::make_unique<StageAttempt>(setup, std::move(variants), ignoresMemory);
  if (llvm::Error error = attempt->run(mostSeconds, mostWork))
    return std::move(error);
  attempt->costs.keep();
  solvedLayers += attempt->costs.work();
  timedOutSolves += attempt->costs.numTimedOut();
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

/// Of a plan that fits: its stages with all but products computed again, where that is faster. What
/// gradients are computed of need not be written then, such as a softmax in float32.
llvm::Error AlpaSearchStagesPass::tryKeptProducts(const SearchSetup &setup, ArrayRef<bool> layers,
                                                  std::unique_ptr<StageAttempt> &best) {
  if (setup.tried.stagesPerMesh || allDiffer())
    return llvm::Error::success();
  if (!withProducts) {
    if (llvm::Error error =
            addAgain(setup, Recomputation{layers, [&] { return findKeptProducts(main); }}))
      return error;
    withProducts = again.back().variant;
  }
  constexpr double kWorth = 0.01; // Less may be lost to what the compiler makes of it.
  return tryOnStages(setup, {plain.get(), withProducts.get()}, kWorth, best);
}

/// The same stages as in the best plan, written in one of these ways each: the best plan, where
/// that is faster by more than this part.
llvm::Error AlpaSearchStagesPass::tryOnStages(const SearchSetup &setup,
                                              std::vector<const StepVariant *> variants,
                                              double worth, std::unique_ptr<StageAttempt> &best) {
  std::set<std::array<unsigned, 3>> stages;
  for (const PlannedStage &stage : best->found.plan.stages)
    stages.insert({stage.lo, stage.hi, stage.submesh});
  SearchSetup &mine = otherSetups.emplace_back(setup);
  mine.tried.schedules = {best->found.searched};
  mine.tried.evenRules.clear();
  mine.tried.rules = {[stages](unsigned lo, unsigned hi, unsigned submesh) {
    return stages.count({lo, hi, submesh}) != 0;
  }};
  mine.options.mostAtOnce = 0; // Of other stages nothing is asked for.
  llvm::Expected<std::unique_ptr<StageAttempt>> other = attempt(mine, std::move(variants));
  if (!other)
    return other.takeError();
  double allDevicesSeconds = best->found.allDevicesSeconds;
  if ((*other)->fits() &&
      (*other)->found.timed.stepSeconds < best->found.timed.stepSeconds * (1 - worth)) {
    best = std::move(*other);
    best->found.allDevicesSeconds = std::min(best->found.allDevicesSeconds, allDevicesSeconds);
  }
  return llvm::Error::success();
}

/// Of a plan with one stage whose layers are computed again: whether cuts that keep more, but less
/// than the next way that was tried, fit too and are faster. Those are found by halving what is
/// between them. For several stages that would take much of the search's time.
llvm::Error AlpaSearchStagesPass::tryToKeepMore(const SearchSetup &setup, ArrayRef<bool> layers,
                                                std::unique_ptr<StageAttempt> &best) {
  constexpr unsigned kMostRounds = 4;
  constexpr double kLeastGap = 0.05, kWorth = 0.002;
  cost::CostModel device(setup.space.meshes.front());
  llvm::DenseMap<const StepVariant *, double> bytesOf;
  std::vector<const StepVariant *> variants;
  auto add = [&](const StepVariant *variant) {
    variants.push_back(variant);
    std::vector<int64_t> bytes = keptBytes(variant->function, layers.size());
    for (auto [again, kept] : llvm::zip_equal(layers, bytes))
      bytesOf[variant] += again ? double(kept) : 0;
  };
  add(plain.get());
  for (const Again &way : again)
    add(way.variant.get());
  for (unsigned round = 0; round < kMostRounds; ++round) {
    const StepVariant *mine = &best->variantOf(best->found.plan.stages.front());
    double least = bytesOf.lookup(mine), most = kInfinity;
    for (const auto &[variant, bytes] : bytesOf)
      if (bytes > least * (1 + kLeastGap))
        most = std::min(most, bytes);
    if (most == kInfinity)
      break;
    Recomputation between{layers,
                          [&] { return findCutBetween(main, layers, device, least, most); }};
    size_t known = again.size();
    if (llvm::Error error = addAgain(setup, between))
      return error;
    if (again.size() == known)
      break;
    add(again.back().variant.get());
    if (llvm::Error error = tryOnStages(setup, variants, kWorth, best))
      return error;
  }
  return llvm::Error::success();
}

/// With remat=auto, layers are computed again where memory is short; of what is fastest without a
/// limit and fits, only the same stages are looked at so.
llvm::Expected<std::unique_ptr<StageAttempt>>
AlpaSearchStagesPass::searchWays(const SearchSetup &setup) {
  constexpr double kLittle = 0.05;
  RematerializationSavings savings;
  if (remat == "auto")
    savings = findSavings(main, setup.problem.numLayers);
  if (offloads())
    return searchOffloaded(setup, savings.layers);
  bool isWorth = savings.part >= kLittle;
  llvm::Expected<std::unique_ptr<StageAttempt>> first =
      attempt(setup, {plain.get()}, /*ignoresMemory=*/isWorth);
  if (!first || !llvm::is_contained(savings.layers, true))
    return first;
  bool mayKeepProducts = rematKeeps == "auto";
  if ((*first)->fits()) {
    if (isWorth && mayKeepProducts)
      if (llvm::Error error = tryKeptProducts(setup, savings.layers, *first))
        return std::move(error);
    return first;
  }
  if (isWorth && !(*first)->hasPlan()) // To say why.
    return attempt(setup, {plain.get()});
  if (!hasAgain) { // Both kinds of schedules have the same.
    hasAgain = true;
    std::vector<Recomputation> ways{{savings.layers}};
    if (mayKeepProducts) {
      ways.push_back({savings.layers, [&] { return findCut(setup, savings.layers); }});
      if (!withProducts)
        ways.push_back({savings.layers, [&] { return findKeptProducts(main); }});
    }
    if (llvm::Error error = addAgain(setup, ways))
      return std::move(error);
    if (mayKeepProducts && !withProducts)
      withProducts = again.back().variant;
  }
  std::vector<const StepVariant *> variants{plain.get()};
  for (const Again &way : again)
    variants.push_back(way.variant.get());
  llvm::Expected<std::unique_ptr<StageAttempt>> best = attemptEach(setup, std::move(variants));
  if (best && (*best)->fits() && (*best)->found.plan.stages.size() == 1 && mayKeepProducts &&
      !allDiffer())
    if (llvm::Error error = tryToKeepMore(setup, savings.layers, *best))
      return std::move(error);
  return best;
}

llvm::Expected<std::unique_ptr<StageAttempt>>
AlpaSearchStagesPass::attemptEach(const SearchSetup &setup,
                                  std::vector<const StepVariant *> variants) {
  if (!allDiffer()) // Or how the others are written matters.
    return attempt(setup, std::move(variants));
  llvm::Expected<std::unique_ptr<StageAttempt>> best = attempt(setup, {variants.front()});
  for (const StepVariant *variant : llvm::drop_begin(variants)) {
    if (!best)
      return best;
    llvm::Expected<std::unique_ptr<StageAttempt>> other = attempt(setup, {variant});
    if (!other || (*other)->found.timed.stepSeconds < (*best)->found.timed.stepSeconds)
      best = std::move(other);
  }
  return best;
}

/// With activations on the hosts: all that gradients read, or where `layers` may be computed again,
/// what comes into them, products, or the values of minimum cuts.
llvm::Expected<std::unique_ptr<StageAttempt>>
AlpaSearchStagesPass::searchOffloaded(const SearchSetup &setup, ArrayRef<bool> layers) {
  if (again.empty()) {
    SmallVector<bool> none(setup.problem.numLayers, false);
    std::vector<Recomputation> ways{{none}};
    if (llvm::is_contained(layers, true))
      ways = {{layers},
              {layers, [&] { return findCut(setup, layers); }},
              {layers, [&] { return findKeptProducts(main); }},
              {layers, [&] {
                 return findHostCut(main, layers, cost::CostModel(setup.space.meshes.front()));
               }}};
    if (llvm::Error error = addAgain(setup, ways))
      return std::move(error);
  }
  auto isOnHost = [](Operation &op) { return op.hasAttr(attr::offloaded); };
  if (llvm::none_of(again, [&](const Again &way) {
        return llvm::any_of(way.variant->function.front(), isOnHost);
      }))
    return makeError(ErrorCode::Method,
                     "offload: but for the last layer, gradients read no value of 256 KiB or more "
                     "of the forward phase",
                     "use offload=\"auto\"");
  std::vector<const StepVariant *> variants;
  for (const Again &way : again)
    variants.push_back(way.variant.get());
  return attemptEach(setup, std::move(variants));
}

std::optional<KeptOps> AlpaSearchStagesPass::findCut(const SearchSetup &setup,
                                                     ArrayRef<bool> layers) const {
  cost::CostModel device(setup.space.meshes.front());
  return stage::findCut(main, layers, device);
}

llvm::Error AlpaSearchStagesPass::addAgain(const SearchSetup &setup, ArrayRef<Recomputation> ways) {
  std::vector<func::FuncOp> functions;
  for (size_t i = 0; i < ways.size(); ++i)
    functions.push_back(cloneMain(main));
  std::vector<std::optional<Again>> found(ways.size());
  llvm::Error error = forAll(&getContext(), ways.size(), [&](size_t i) -> llvm::Error {
    const auto &[layers, findKept] = ways[i];
    std::optional<KeptOps> kept = findKept ? findKept() : std::nullopt;
    if (findKept && !kept)
      return llvm::Error::success(); // There is no such way.
    rematerializeCopy(main, functions[i], layers, kept ? &*kept : nullptr);
    if (offloads())
      offloadActivations(functions[i], SmallVector<bool>(layers.size(), true));
    auto variant = readVariant(functions[i], setup.space.meshes);
    if (!variant)
      return variant.takeError();
    found[i] = {std::move(*variant), SmallVector<bool>(layers), std::move(kept)};
    return llvm::Error::success();
  });
  for (auto [function, way] : llvm::zip_equal(functions, found))
    if (way)
      again.push_back(std::move(*way));
    else
      function.erase();
  return error;
}

llvm::Expected<std::shared_ptr<StepVariant>>
AlpaSearchStagesPass::readVariant(func::FuncOp function, ArrayRef<cost::LogicalMesh> meshes) const {
  llvm::Expected<std::unique_ptr<StepVariant>> variant =
      StepVariant::read(function, method, meshes);
  if (!variant)
    return variant.takeError();
  (*variant)->know(allDiffer());
  return std::move(*variant);
}

/// Of the views of a submesh, those that hold the most of the program's sharding constraints:
/// a view is not chosen because it cannot do what the user wants.
static void keepPinningViews(const sharding::ConstraintPins &pins, SearchSpace &space) {
  if (pins.empty())
    return;
  std::vector<unsigned> held;
  for (const cost::LogicalMesh &mesh : space.meshes)
    held.push_back(pins.numHeld(mesh.shape));
  for (SmallVector<unsigned> &views : space.views) {
    unsigned most = 0;
    for (unsigned view : views)
      most = std::max(most, held[view]);
    llvm::erase_if(views, [&](unsigned view) { return held[view] < most; });
  }
}

const SearchSetup &AlpaSearchStagesPass::addVirtualSetup(const SearchSetup &setup,
                                                         StageSearchSpace tried) {
  SearchSetup &mine = otherSetups.emplace_back(setup);
  mine.tried = std::move(tried);
  mine.options.mostAtOnce = 0; // Most views are not asked for.
  // Warming up takes at most so many.
  mine.options.mostInFlight =
      std::max({mine.options.mostInFlight, int64_t(2 * setup.problem.numLayers),
                mostInFlight(mine.tried.schedules, setup.problem.numLayers, numMicroBatches)});
  return mine;
}

/// With schedule=auto: whether several stages on each mesh are faster than the best pipeline with
/// one, by more than what their launches, which are not foreseen, may take. Of both placements
/// each takes at most a quarter of the work that finding that one took.
llvm::Error AlpaSearchStagesPass::tryVirtualStages(const SearchSetup &setup,
                                                   std::unique_ptr<StageAttempt> &best) {
  // A plan from before that is one of them is not given up for less.
  const double kWorth = start ? 0 : 0.01;
  // Written as the stages of that one are.
  std::vector<const StepVariant *> variants;
  auto addUsed = [&](const StepVariant &variant) {
    if (llvm::any_of(best->found.plan.stages, [&](const PlannedStage &stage) {
          return &best->variantOf(stage) == &variant;
        }))
      variants.push_back(&variant);
  };
  addUsed(*plain);
  for (const Again &way : again)
    addUsed(*way.variant);
  constexpr size_t kLittleWork = 64; // Layers that small models may want.
  const size_t mostWork = start ? ~size_t(0) : std::max(kLittleWork, solvedLayers / 4);
  double mostSeconds = best->found.timed.stepSeconds * (1 - kWorth);
  double allDevicesSeconds = best->found.allDevicesSeconds;
  if (best->found.numDevices(setup.problem) == setup.problem.numDevices())
    allDevicesSeconds = best->found.timed.stepSeconds;
  // So much slower are the plans of a placement of which others are not looked at, if it is the
  // second one.
  constexpr double kHopeless = 1.1;
  constexpr unsigned kMostHopeless = 2;
  // Orders of the same stages are timed together, what keeps the most activations first.
  struct Way {
    std::vector<StringRef> names;
    unsigned stagesPerMesh;
  };
  SmallVector<Way> inRounds, inV{{{"zb-v", "dualpipe-v"}, 2}, {{"v-half"}, 2}, {{"v-min"}, 2}};
  SmallVector<unsigned> counts{4, 3, 2, 6};
  if (start) { // As many as the plan has, placed as there.
    counts.clear();
    if (schedule::findSchedule(startSchedule)->placement == schedule::Placement::Rounds) {
      counts.push_back(start->stagesPerMesh);
      inV.clear();
    }
  }
  for (unsigned each : counts)
    inRounds.push_back({{"interleaved-1f1b", "breadth-first"}, each});
  for (ArrayRef<Way> ways : {ArrayRef<Way>(inRounds), ArrayRef<Way>(inV)}) {
    size_t work = mostWork;
    unsigned numHopeless = 0; // One after another.
    for (const Way &way : ways) {
      if (way.stagesPerMesh > mostVirtualStages || numHopeless >= kMostHopeless)
        continue;
      StageSearchSpace tried;
      for (StringRef name : way.names)
        tried.schedules.push_back(schedule::findSchedule(name));
      tried.stagesPerMesh = way.stagesPerMesh;
      tried.rules = pipelineRules(pipeline, setup.cluster, setup.flopsOfLayer, setup.space,
                                  way.stagesPerMesh);
      if (start && start->stages)
        tried.rules.insert(tried.rules.begin(), start->stages);
      if (llvm::Error error = checkVirtualStages(tried, setup.space, setup.problem)) {
        consumeError(std::move(error)); // There are no such plans.
        continue;
      }
      llvm::Expected<std::unique_ptr<StageAttempt>> other =
          attempt(addVirtualSetup(setup, std::move(tried)), variants, /*ignoresMemory=*/false,
                  mostSeconds, work);
      if (!other)
        return other.takeError();
      work -= std::min(work, (*other)->costs.work());
      bool isHopeless =
          (*other)->hasPlan() && (*other)->found.timed.stepSeconds > mostSeconds * kHopeless;
      numHopeless = isHopeless ? numHopeless + 1 : 0;
      if (!(*other)->fits() || (*other)->found.timed.stepSeconds >= mostSeconds)
        continue;
      best = std::move(*other);
      mostSeconds = best->found.timed.stepSeconds;
      double &all = best->found.allDevicesSeconds;
      all = allDevicesSeconds = std::min(all, allDevicesSeconds);
    }
  }
  return llvm::Error::success();
}

/// The best of both kinds of schedules.
llvm::Expected<std::unique_ptr<StageAttempt>>
AlpaSearchStagesPass::searchSchedules(const SearchSetup &setup) {
  if (virtualTried.schedules.empty())
    return searchWays(setup);
  if (llvm::Error error = checkVirtualStages(virtualTried, setup.space, setup.problem))
    return fail(std::move(error));
  virtualTried.rules = setup.tried.rules;
  if (start && start->stagesPerMesh == virtualTried.stagesPerMesh && start->stages)
    virtualTried.rules.insert(virtualTried.rules.begin(), start->stages);
  llvm::Expected<std::unique_ptr<StageAttempt>> shared =
      searchWays(addVirtualSetup(setup, virtualTried));
  if (!shared || setup.tried.schedules.empty())
    return shared;
  llvm::Expected<std::unique_ptr<StageAttempt>> apart = searchWays(setup);
  if (!apart || (*apart)->found.timed.stepSeconds <= (*shared)->found.timed.stepSeconds)
    return apart;
  return shared;
}

/// Writes the layers of the plan's stages in @main as their choices have them.
llvm::Error AlpaSearchStagesPass::settle(StageAttempt &attempt,
                                         ArrayRef<cost::LogicalMesh> meshes) {
  if (again.empty())
    return llvm::Error::success();
  SmallVector<bool> chosen(plain->layers.opsOfLayer.size(), false);
  KeptOps kept;
  bool isGiven = false;
  for (const PlannedStage &stage : attempt.found.plan.stages)
    for (const Again &way : again) {
      if (&attempt.variantOf(stage) != way.variant.get())
        continue;
      for (unsigned layer = stage.lo; layer < stage.hi; ++layer)
        chosen[layer] = way.layers[layer];
      isGiven |= way.kept.has_value();
      for (unsigned layer = stage.lo; way.kept && layer < stage.hi; ++layer)
        for (Operation *op : plain->layers.opsOfLayer[layer])
          if (way.kept->contains(op))
            kept.insert(op);
    }
  rematerializeLayers(main, chosen, isGiven ? &kept : nullptr);
  if (offloads())
    offloadActivations(main, SmallVector<bool>(chosen.size(), true));
  llvm::Expected<std::unique_ptr<StepVariant>> variant = StepVariant::read(main, method, meshes);
  if (!variant)
    return variant.takeError();
  settled = std::move(*variant);
  attempt.costs.settle(settled->layers.opsOfLayer, settled->filters);
  return llvm::Error::success();
}

llvm::Error AlpaSearchStagesPass::run() {
  auto begin = std::chrono::steady_clock::now();
  timedOutSolves = 0;
  solvedLayers = 0;
  if (llvm::Error error = checkOptions())
    return error;
  auto end = llvm::scope_exit([&] {
    for (Again &way : again)
      way.variant->function.erase();
    again.clear();
    plain = settled = nullptr;
    otherSetups.clear();
  });
  StageSearchSpace tried;
  if (llvm::Error error = readSchedules(tried))
    return error;
  llvm::Expected<StepLayers> layers = readLayers(main);
  if (!layers)
    return fail(layers.takeError());
  unsigned numLayers = layers->opsOfLayer.size();
  llvm::Expected<Cluster> described = cost::loadCluster(cluster);
  if (!described)
    return described.takeError();
  llvm::Expected<SearchSpace> space =
      submeshes.empty()
          ? llvm::Expected<SearchSpace>(wholeSearchSpace(*described, meshAxes))
          : manualSearchSpace(*described, numLayers, meshAxes, submeshes, meshShapes, layerRanges,
                              virtualTried.schedules.empty() ? 1 : virtualTried.stagesPerMesh);
  if (!space)
    return space.takeError();
  if (!startSubmeshes.empty()) {
    llvm::Expected<WarmStart> near =
        startNear(*space, *described, numLayers, meshAxes, startSubmeshes, startLayers);
    if (!near)
      return near.takeError();
    start = std::move(*near);
  }
  bool keepsState = llvm::any_of(main.getArguments(), isHostArgument);
  if ((keepsState || offloads()) && llvm::none_of(space->meshes, [](const cost::LogicalMesh &mesh) {
        return mesh.hostMemory.has_value();
      }))
    return makeError(ErrorCode::Method,
                     llvm::Twine("the cluster does not say what memory its hosts have, in which ") +
                         (keepsState ? "state is" : "activations are") +
                         " to be kept; give `host_memory` of `hosts`");
  llvm::Expected<std::vector<StageRule>> rules =
      applyPipelineMethod(pipeline, *described, layers->flops, *space,
                          tried.schedules.empty() ? virtualTried.stagesPerMesh : 1);
  if (!rules)
    return fail(rules.takeError());
  if (submeshes.empty())
    if (llvm::Error error = readLayerRanges(layerRanges, numLayers, space->layerRanges))
      return error;
  std::vector<StageRule> even;
  if (pipeline == "auto" && !space->manual)
    even = evenRules(*described, numLayers, *space);
  if (!sharding::useOfLastAxis(method).empty() && !space->manual)
    addTurnedViews(*described, *space);

  if (dropPins && getOperation()->hasAttr(attr::pinAxes))
    getOperation()->setAttr(attr::pinDropped,
                            StringAttr::get(&getContext(), "no plan fits with the constraints"));
  std::vector<SmallVector<unsigned>> allViews = space->views;
  keepPinningViews(sharding::ConstraintPins(main), *space);

  tried.rules = std::move(*rules);
  bool isNear = start && start->stagesPerMesh == 1;
  if (isNear) {
    tried.start = start->stages;
    tried.lastTolerance = gap;
  }
  tried.evenRules = std::move(even);
  if (start) // Its schedule is the first to be looked at, so that it bounds the others.
    if (auto own = llvm::find(tried.schedules, schedule::findSchedule(startSchedule));
        own != tried.schedules.end())
      std::rotate(tried.schedules.begin(), own, std::next(own));
  // Near a plan from before little is to be gained: most solves would only say so.
  const double nearTolerance = 2.5 * startGap;
  SearchSetup setup{&getContext(),
                    *described,
                    std::move(*space),
                    layers->flops,
                    std::move(tried),
                    {},
                    {},
                    isNear ? std::max<double>(gap, startGap) : gap};
  StageDpProblem &problem = setup.problem;
  problem.numLayers = numLayers;
  for (const cost::Host &host : described->hosts)
    problem.hostDevices.push_back(host.devices);
  problem.hostKinds = described->kindOfHosts();
  for (int64_t host = 0; host < int64_t(described->hosts.size()); ++host)
    problem.hostRacks.push_back(described->rackOf(host));
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
  if (maxDevices)
    problem.mostDevices = maxDevices;
  if (maxStages)
    problem.mostStages = maxStages;
  problem.manual = setup.space.manual;
  problem.layerRanges = setup.space.layerRanges;

  StageCostOptions &options = setup.options;
  options.numMicroBatches = numMicroBatches;
  for (const cost::LogicalMesh &mesh : setup.space.meshes)
    options.memoryBytes.push_back(int64_t(mesh.device.memoryBytes * memoryFraction));
  options.tolerance = isNear ? std::max<double>(gap, nearTolerance) : gap;
  options.mostInFlight = mostInFlight(setup.tried.schedules, numLayers, numMicroBatches);
  options.workLimit = workLimit;
  options.timeLimitSeconds = timeLimit;
  options.makesLoops = makesLoops;
  options.wantsParts = schedule == "auto" || // Which orders split phases in the end.
                       llvm::any_of(setup.tried.schedules,
                                    [](const ScheduleInfo *info) { return info->splitsBackward; });
  options.methodKey = method;
  if (!allDiffer())
    options.known = std::make_shared<SolvedRuns>();
  if (!cacheDir.empty() && !allDiffer()) {
    llvm::Expected<std::shared_ptr<StageStore>> store = StageStore::open(cacheDir);
    if (!store)
      return fail(prefixError("cache-dir: ", store.takeError(), ErrorCode::Method));
    options.store = *store;
  }

  llvm::Expected<std::shared_ptr<StepVariant>> variant = readVariant(main, setup.space.meshes);
  if (!variant)
    return fail(variant.takeError());
  plain = std::move(*variant);
  llvm::Expected<std::unique_ptr<StageAttempt>> best = searchSchedules(setup);
  if (!best)
    return best.takeError();
  if (schedule == "auto" && pipeline != "intra-only" && !allDiffer() && !isNear &&
      !setup.space.manual && !hasBarrier(main) && (*best)->fits())
    if (llvm::Error error = tryVirtualStages(setup, *best))
      return error;
  if (!(*best)->hasPlan() && !explainsMisfit)
    return fail(
        makeError(ErrorCode::Infeasible,
                  "no plan fits into memory" +
                      (timedOutSolves ? "; the time limit ended " + std::to_string(timedOutSolves) +
                                            " solves, so that there may be one"
                                      : std::string())));
  if (!(*best)->hasPlan() && setup.tried.schedules.empty()) {
    llvm::Expected<std::unique_ptr<StageAttempt>> free =
        attempt(otherSetups.front(), {again.empty() ? plain.get() : again.front().variant.get()},
                /*ignoresMemory=*/true);
    if (!free)
      return free.takeError();
    return fail(explainVirtualInfeasible((*free)->found, problem, virtualTried));
  }
  // The least that is needed is what layers that are computed again need.
  if (!(*best)->hasPlan() && !again.empty() && !allDiffer())
    best = attempt(setup, {again.front().variant.get()});
  if (!best)
    return best.takeError();
  StageCosts &costs = (*best)->costs;
  const FoundPlan &found = (*best)->found;
  if (!(*best)->hasPlan()) {
    auto whyNone = [&]() -> llvm::Error {
      if (pipeline != "auto")
        return makeError(ErrorCode::Infeasible,
                         "no plan exists: with pipeline '" + llvm::Twine(pipeline) +
                             "' no stages use all devices of cluster '" + described->name +
                             "'; use pipeline 'auto', or another number of devices or layers");
      if (method != "auto")
        return makeError(ErrorCode::Method,
                         "method '" + llvm::Twine(method) +
                             "' leaves no way to split the model's operators, whatever the "
                             "memory; use another method");
      if (maxStages || maxDevices || !layerRanges.empty())
        return makeError(ErrorCode::Infeasible, "no plan exists with " + limitsText());
      return makeError(ErrorCode::Infeasible,
                       "no plan exists: no way to split the model's operators was found for any "
                       "stage");
    };
    return fail(explainInfeasible((*best)->search, costs, setup.tried, main,
                                  !again.empty() && remat == "auto", whyNone));
  }
  const TimedPlan &timed = found.timed;
  if (timed.devices.empty())
    return fail("the submeshes do not fit side by side into cluster '" + described->name + "'");
  if (llvm::Error error = (*best)->align())
    return error;
  if (llvm::Error error = settle(**best, setup.space.meshes))
    return error;

  PlanOutcome outcome;
  std::vector<int64_t> inFlight;
  for (const StageFlights &flights : timed.flights)
    inFlight.push_back(flights.inFlight);
  llvm::Expected<std::vector<StageCosts::Detail>> details =
      costs.details(found.plan.stages, inFlight);
  if (!details)
    return details.takeError();
  for (auto [index, stage] : llvm::enumerate(found.plan.stages)) {
    const StageFlights &flights = timed.flights[index];
    auto &[result, explanation] = (*details)[index];
    outcome.slowestStageSeconds =
        std::max(outcome.slowestStageSeconds, result->forwardSeconds + result->backwardSeconds);
    outcome.updateSeconds = std::max(outcome.updateSeconds, result->updateSeconds);
    if (const StepVariant &variant = settled ? *settled : (*best)->variantOf(stage);
        !variant.pins->empty()) {
      auto free = [&](const cost::LogicalMesh &mesh) { return variant.freeFilter(method, mesh); };
      if (llvm::Error error = costs.explainPins(explanation, stage, flights.inFlight, *result,
                                                *variant.pins, allViews[stage.submesh], free))
        return error;
    }
    outcome.stages.push_back({stage.lo, stage.hi, costs.meshOf(stage.choice.id).shape,
                              timed.devices[index], result.get(), flights, timed.peakBytes[index],
                              index < timed.sends.size() ? timed.sends[index] : SendSeconds(),
                              explanation.toAttribute(&getContext())});
    if (!timed.moveSeconds.empty())
      std::tie(outcome.stages.back().forwardMoveSeconds,
               outcome.stages.back().backwardMoveSeconds) = timed.moveSeconds[index];
  }
  std::set<int64_t> used;
  for (const StageOutcome &stage : outcome.stages)
    used.insert(stage.devices.begin(), stage.devices.end());
  if (int64_t(used.size()) < described->numDevices()) {
    outcome.allDevicesSeconds = found.allDevicesSeconds;
    outcome.idleReason = setup.space.manual ? "the submeshes are given"
                         : problem.numReserved() > 0
                             ? "at most " + std::to_string(problem.mostDevices) + " are wanted" +
                                   (int64_t(used.size()) < problem.mostDevices
                                        ? ", and no faster plan was found that takes as many"
                                        : "")
                         : std::isfinite(found.allDevicesSeconds)
                             ? "the best plan found that uses them is slower"
                             : "no plan that uses them was found";
  }
  outcome.stepSeconds = timed.stepSeconds;
  outcome.transferSeconds = timed.transferSeconds;
  outcome.numMicroBatches = numMicroBatches;
  outcome.schedule = found.schedule;
  outcome.limits = timed.limits;
  outcome.keptParts = timed.keptParts;
  outcome.sizes = timed.sizes;
  outcome.solvedStages = costs.numSolved();
  outcome.reusedStages = costs.numReused();
  outcome.possibleStages = costs.numPossible();
  outcome.timedOutSolves = timedOutSolves;
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
