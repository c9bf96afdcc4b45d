//===- PlanAttributes.cpp - a plan as attributes of the module ------------===//

#include "compiler/Stage/Search/PlanAttributes.h"

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Schedule/SlicedModule.h"
#include "compiler/Sharding/Problem/CaptureShardings.h"
#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace alpa;

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
    int64_t layer = op->getAttrOfType<IntegerAttr>(attr::layer).getInt();
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
      flops[stage][phase.getValue()] += getFlops(op);
    SmallVector<Attribute> results, operands, uses;
    const auto &useSpecs = plan.stages[stage].result->useSpecs;
    const auto &sumSpecs = plan.stages[stage].result->sumSpecs;
    bool foreign = false, moved = false;
    for (Value value : op->getResults()) {
      auto sharding = cast<ShardingAttr>(specOf(value, stage));
      results.push_back(sharding);
      // alpa-defer-sums asks how the factors that make terms are split.
      moved |= !sharding.getSpec().partial.empty();
      if (auto sum = sumSpecs.find(value); sum != sumSpecs.end())
        op->setAttr(attr::summedAs, ShardingAttr::get(context, sum->second));
    }
    op->setAttr(attr::shardings, builder.getArrayAttr(results));

    for (OpOperand &operand : op->getOpOperands()) {
      Operation *source = operand.get().getDefiningOp();
      foreign |= !source || stageOf(source) != stage;
      operands.push_back(specOf(operand.get(), stage, op));
      auto use = useSpecs.find({op, operand.getOperandNumber()});
      moved |= use != useSpecs.end();
      uses.push_back(use == useSpecs.end() ? operands.back()
                                           : ShardingAttr::get(context, use->second));
    }
    if (foreign)
      op->setAttr(attr::operandShardings, builder.getArrayAttr(operands));
    if (moved)
      op->setAttr(attr::useShardings, builder.getArrayAttr(uses));
    auto heldAs = [&](Value value) { return specOf(value, stage); };
    if (Attribute captured = captureShardings(op, useSpecs, heldAs))
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
    for (Operation *user : getUsers(arg))
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
    const Solution &solution = result.solution;
    auto named = [&](StringRef name, Attribute value) { return builder.getNamedAttr(name, value); };
    auto scratchBytes = [&](OpPhase phase) {
      return integer(result.scratchBytes[unsigned(phase)]);
    };
    SmallVector<NamedAttribute> predicted{
        named("forward_seconds", seconds(result.forwardSeconds)),
        named("backward_seconds", seconds(result.backwardSeconds)),
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
        named("peak_bytes", integer(stage.peakBytes)),
        named("rematerialized_layers", integer(countRematerialized(stage))),
    };
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
          named("backward_input_seconds", seconds(result.backwardSeconds - weight)),
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
        named("status", builder.getStringAttr(stringifySolveStatus(solution.status))),
        named("objective_seconds", seconds(double(solution.objective) * kPicosecond)),
        named("lower_bound_seconds", seconds(double(solution.lowerBound) * kPicosecond)),
        named("gap", seconds(solution.gap)),
        named("nodes", integer(solution.nodes)),
        named("choices", integer(result.choices)),
        named("seconds", seconds(solution.seconds)),
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
    module->setAttr("alpa.cluster", builder.getStringAttr(printCluster(cluster)));
    auto named = [&](StringRef name, Attribute value) { return builder.getNamedAttr(name, value); };
    if (plan.schedule->name == "zb-auto")
      module->setAttr(attr::scheduleParameters,
                      builder.getDictionaryAttr({named("limit", seconds(plan.limit)),
                                                 named("kept_part", seconds(plan.keptPart))}));
    module->setAttr(attr::predicted,
                    builder.getDictionaryAttr(
                        {named("step_seconds", seconds(plan.stepSeconds)),
                         named("slowest_stage_seconds", seconds(plan.slowestStageSeconds)),
                         named("transfer_seconds", seconds(plan.transferSeconds)),
                         named("update_seconds", seconds(plan.updateSeconds)),
                         named("search_seconds", seconds(plan.searchSeconds)),
                         named("dp_seconds", seconds(plan.dpSeconds)),
                         named("solved_stages", integer(plan.solvedStages)),
                         named("reused_stages", integer(plan.reusedStages)),
                         named("possible_stages", integer(plan.possibleStages))}));
  }

  func::FuncOp main;
  const PlanOutcome &plan;
  MLIRContext *context;
  Builder builder;
  /// Of all of a stage's ops of a phase, on all its devices together.
  std::vector<llvm::StringMap<double>> flops;
};

} // namespace

void alpa::annotatePlan(func::FuncOp main, const Cluster &cluster, const PlanOutcome &plan) {
  PlanAnnotator(main, plan).run(cluster);
}
