//===- ClusterLayers.cpp - ops into layers --------------------------------===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Import/NameStack.h"
#include "compiler/Sharding/Problem/OpFacts.h"
#include "compiler/Stage/Layers/LayerDp.h"
#include "compiler/Stage/Layers/StageShape.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Slice/SliceUtils.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"

#include <cmath>
#include <map>
#include <optional>
#include <set>

namespace alpa::stage {
#define GEN_PASS_DEF_ALPACLUSTERLAYERS
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace alpa;
using namespace alpa::stage;
using namespace mlir;
using importer::getUsedValues;

//===----------------------------------------------------------------------===//
// The equations of the forward computation
//===----------------------------------------------------------------------===//

namespace {

/// The forward ops of a step in groups of one equation each, in the order in
/// which layers are cut. That is the order of equations, but what is made of
/// state alone (a weight in another precision, a random key) comes right before
/// the equation that first reads it, so that it does not cross layers.
struct ForwardUnits {
  LayerProblem problem;
  std::vector<llvm::SmallVector<Operation *>> ops; // By unit.
  std::vector<int64_t> eqns;                       // By unit.
  std::vector<int64_t>
      places; // By unit, ascending: the equation that it belongs before, or its own.

  bool isMoved(unsigned unit) const { return places[unit] != eqns[unit]; }
};

} // namespace

static int64_t eqnOf(Operation *op) { return op->getAttrOfType<IntegerAttr>(attr::eqn).getInt(); }

/// Whether the op takes one row of a stack of several.
static bool takesRow(Operation *op) {
  auto slice = dyn_cast<stablehlo::SliceOp>(op);
  return slice &&
         llvm::any_of(
             llvm::zip_equal(slice.getType().getShape(), slice.getOperand().getType().getShape()),
             [](auto sizes) { return std::get<0>(sizes) == 1 && std::get<1>(sizes) > 1; });
}

/// Whether layers read rows of stacks of state, which are whole on one mesh and split otherwise.
static bool readsStacks(func::FuncOp main, ArrayRef<Operation *> forward) {
  auto isRow = [&](Operation *op) {
    auto argument = takesRow(op) ? dyn_cast<BlockArgument>(op->getOperand(0)) : BlockArgument();
    return argument && main.getArgAttr(argument.getArgNumber(), attr::kind) ==
                           StringAttr::get(main.getContext(), "state");
  };
  for (BlockArgument argument : main.getArguments())
    if (main.getArgAttr(argument.getArgNumber(), attr::piece))
      return true;
  return llvm::any_of(forward, isRow);
}

/// What the op does, whatever values it works on: where they come from differs
/// between the blocks of a model, and so may the values of constants, and the
/// rows of stacks that stay whole (on one mesh).
static llvm::hash_code hashOp(Operation *op) {
  NamedAttrList attributes(op->getAttrDictionary());
  for (StringRef name : {attr::eqn, attr::layer, attr::stage})
    attributes.erase(name);
  if (isa<stablehlo::ConstantOp>(op))
    attributes.erase("value");
  if (takesRow(op))
    for (StringRef name : {"start_indices", "limit_indices"})
      attributes.erase(name);
  llvm::hash_code hash =
      llvm::hash_combine(op->getName().getAsOpaquePointer(),
                         attributes.getDictionary(op->getContext()).getAsOpaquePointer());
  for (Type type : op->getOperandTypes())
    hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
  for (Type type : op->getResultTypes())
    hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
  for (Region &region : op->getRegions())
    for (Block &block : region)
      for (Operation &nested : block)
        hash = llvm::hash_combine(hash, hashOp(&nested));
  return hash;
}

namespace {

class UnitCollector {
public:
  UnitCollector(func::FuncOp main, ArrayRef<Operation *> forward) : main(main) {
    for (Operation *op : forward)
      opsOfEqn[eqnOf(op)].push_back(op);
  }

  ForwardUnits run() {
    orderEqns();
    for (int64_t eqn : order)
      addUnit(eqn);
    return std::move(units);
  }

private:
  /// Equations whose ops only prepare state go to their first reader.
  void orderEqns() {
    importer::BatchAnalysis batch(main);
    // A step without a batch has nothing but state.
    bool anyBatch = false;
    for (auto &[eqn, ops] : opsOfEqn)
      for (Operation *op : ops)
        for (Value result : op->getResults())
          anyBatch |= batch.dependsOnBatch(result);
    for (auto &[eqn, ops] : llvm::reverse(opsOfEqn)) {
      std::optional<int64_t> first;
      bool movable = anyBatch;
      for (Operation *op : ops)
        for (Value result : op->getResults()) {
          movable &= !batch.dependsOnBatch(result);
          for (Operation *user : importer::getUsers(result)) {
            if (!isOfPhase(user, "forward") || eqnOf(user) == eqn)
              continue;
            // Readers come later, unless ops without a name were given an equation.
            auto at = place.find(eqnOf(user));
            int64_t reader = at == place.end() ? eqnOf(user) : at->second;
            first = std::min(first.value_or(reader), reader);
          }
        }
      place[eqn] = movable && first ? std::max(*first, eqn) : eqn;
    }
    for (auto &[eqn, ops] : opsOfEqn)
      order.push_back(eqn);
    llvm::sort(order, [&](int64_t a, int64_t b) {
      return std::pair(place[a], a) < std::pair(place[b], b);
    });
  }

  void addUnit(int64_t eqn) {
    unsigned number = units.ops.size();
    LayerProblem::Unit &unit = units.problem.units.emplace_back();
    units.eqns.push_back(eqn);
    units.places.push_back(place[eqn]);
    llvm::hash_code kind(0);
    for (Operation *op : opsOfEqn[eqn]) {
      unitOfOp[op] = number;
      unit.flops += analysis::getFlops(op);
      if (std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
          rule && (rule->heavy || llvm::any_of(rule->work, [](const auto &part) {
                     return part.heavy; // Of a loop that nothing splits.
                   })))
        ++unit.heavy;
      kind = llvm::hash_combine(kind, hashOp(op));
      for (Value value : getUsedValues(op)) {
        auto source = unitOfOp.find(value.getDefiningOp());
        if (source == unitOfOp.end() || source->second >= number)
          continue;
        unsigned id = valueNumbers.try_emplace(value, valueNumbers.size()).first->second;
        unit.inputs.push_back({source->second, id, analysis::getTensorBytes(value.getType())});
      }
    }
    unit.kind = size_t(kind);
    units.ops.push_back(std::move(opsOfEqn[eqn]));
  }

  func::FuncOp main;
  std::map<int64_t, SmallVector<Operation *>> opsOfEqn;
  std::vector<int64_t> order;
  std::map<int64_t, int64_t> place; // By equation.
  llvm::DenseMap<Operation *, unsigned> unitOfOp;
  llvm::DenseMap<Value, unsigned> valueNumbers;
  ForwardUnits units;
};

} // namespace

/// `forward` are the forward ops of `main` in program order, with `alpa.eqn`.
static ForwardUnits collectForwardUnits(func::FuncOp main, ArrayRef<Operation *> forward) {
  return UnitCollector(main, forward).run();
}

//===----------------------------------------------------------------------===//
// Where the weight update happens
//===----------------------------------------------------------------------===//

namespace {

class UpdateLayers {
public:
  UpdateLayers(func::FuncOp main, llvm::DenseMap<Operation *, unsigned> &layers)
      : main(main), layers(layers) {
    for (Operation &op : main.getBody().front().without_terminator())
      if (!layers.contains(&op))
        pending.push_back(&op);
    for (BlockArgument arg : main.getArguments())
      if (std::optional<unsigned> layer = firstReader(arg))
        argLayers[arg] = *layer;
  }

  void run() {
    // Evidence comes from both sides; every round settles at least one op.
    for (bool changed = true; changed;) {
      changed = false;
      for (Operation *op : pending)
        if (!layers.contains(op))
          changed |= settle(op, fromOperands(op));
      for (Operation *op : llvm::reverse(pending))
        if (!layers.contains(op))
          changed |= settle(op, fromReaders(op));
      for (BlockArgument arg : main.getArguments())
        if (!argLayers.contains(arg))
          if (std::optional<unsigned> layer = firstReader(arg))
            changed |= argLayers.try_emplace(arg, *layer).second;
    }
    for (Operation *op : pending)
      if (!layers.contains(op))
        layers[op] = smallestOperandLayer(op).value_or(0);
  }

private:
  bool settle(Operation *op, std::optional<unsigned> layer) {
    if (layer)
      layers[op] = *layer;
    return layer.has_value();
  }

  static int64_t elements(Value value) {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    return type ? type.getNumElements() : 0;
  }

  std::optional<unsigned> layerOf(Value value) const {
    Operation *source = value.getDefiningOp();
    if (source && importer::isSplatLike(source))
      return std::nullopt; // Lives wherever its reader does.
    if (source) {
      auto it = layers.find(source);
      return it == layers.end() ? std::nullopt : std::optional<unsigned>(it->second);
    }
    auto it = argLayers.find(value);
    return it == argLayers.end() ? std::nullopt : std::optional<unsigned>(it->second);
  }

  std::optional<unsigned> fromOperands(Operation *op) const {
    int64_t least = 1;
    for (Value result : op->getResults())
      least = std::max(least, elements(result));
    std::optional<unsigned> layer;
    int64_t most = 0;
    bool differ = false;
    for (Value value : getUsedValues(op)) {
      std::optional<unsigned> candidate = layerOf(value);
      if (!candidate || elements(value) < least)
        continue;
      differ |= layer && *layer != *candidate;
      // A gradient that several layers add up goes to the first, which holds the weight.
      if (elements(value) > most || (elements(value) == most && *candidate < *layer)) {
        most = elements(value);
        layer = candidate;
      }
    }
    return least == 1 && most == 1 && differ ? 0 : layer;
  }

  std::optional<unsigned> fromReaders(Operation *op) const {
    std::optional<unsigned> layer;
    for (Value result : op->getResults())
      if (std::optional<unsigned> candidate = firstReader(result))
        layer = std::min(layer.value_or(*candidate), *candidate);
    return layer;
  }

  std::optional<unsigned> firstReader(Value value) const {
    std::optional<unsigned> layer;
    for (Operation *user : importer::getUsers(value)) {
      auto it = layers.find(user);
      if (it != layers.end())
        layer = std::min(layer.value_or(it->second), it->second);
    }
    return layer;
  }

  std::optional<unsigned> smallestOperandLayer(Operation *op) const {
    std::optional<unsigned> layer;
    for (Value value : getUsedValues(op))
      if (std::optional<unsigned> candidate = layerOf(value))
        layer = std::min(layer.value_or(*candidate), *candidate);
    return layer;
  }

  func::FuncOp main;
  llvm::DenseMap<Operation *, unsigned> &layers;
  llvm::DenseMap<Value, unsigned> argLayers;
  llvm::SmallVector<Operation *> pending;
};

} // namespace

/// Gives update ops a layer; `layers` holds those of forward and backward ops.
/// An op goes where its largest operand is if that is no smaller than its
/// result; else (broadcasts, optimizer state that is only read here) where its
/// readers are. A scalar made from several layers' values goes to layer 0.
static void assignUpdateLayers(func::FuncOp main, llvm::DenseMap<Operation *, unsigned> &layers) {
  UpdateLayers(main, layers).run();
}

/// The ops that make, of nothing but constants and by few ops, the indices of a rotary embedding,
/// say, or a causal mask; with the number of these. A layer that reads it makes it again, as a
/// stage would: else all layers but the first would be taken to read it from memory, at its full
/// size, and to keep it for their gradients.
static llvm::DenseMap<Operation *, unsigned> findConstants(func::FuncOp main) {
  constexpr unsigned kFew = 256; // Each as often as it is read: hashes of constants are more.
  llvm::DenseMap<Operation *, unsigned> counts;
  for (Operation &op : main.front()) {
    if (!importer::isConstantLike(&op) && !isRepeatable(&op))
      continue;
    unsigned count = 1;
    for (Value operand : op.getOperands()) {
      auto known = counts.find(operand.getDefiningOp());
      count = known == counts.end() || count > kFew ? kFew + 1 : count + known->second;
    }
    if (count <= kFew)
      counts[&op] = count;
  }
  return counts;
}

//===----------------------------------------------------------------------===//
// Ops into layers
//===----------------------------------------------------------------------===//

namespace {

class AlpaClusterLayersPass : public stage::impl::AlpaClusterLayersBase<AlpaClusterLayersPass> {
public:
  using AlpaClusterLayersBase::AlpaClusterLayersBase;

  void runOnOperation() override {
    auto main = getOperation().lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration()) {
      emitError(getOperation().getLoc(), "the module has no function @main");
      return signalPassFailure();
    }
    layerOfOp.clear();
    layerOfEqn.clear();
    keptEqns.clear();
    for (auto &phase : phases)
      phase.clear();
    if (failed(checkOptions()) || failed(readPhases(main)) || failed(clusterForward(main)))
      return signalPassFailure();
    placeBackward();
    assignUpdateLayers(main, layerOfOp);

    Builder builder(&getContext());
    for (auto &[op, layer] : layerOfOp)
      op->setAttr(attr::layer, builder.getI64IntegerAttr(layer));
    llvm::DenseMap<Operation *, unsigned> constants = findConstants(main);
    importer::repeatForReaders(main, {attr::phase, attr::eqn, attr::layer}, [&](Operation *op) {
      // What the barrier reads is the sum of all micro-batches; elsewhere it would be one's term.
      bool readsSums = sharding::opPhaseOf(op) == sharding::OpPhase::Barrier;
      return constants.contains(op) || (importer::isSplatLike(op) && !readsSums);
    });
    countKinds(main);
  }

private:
  enum { Forward, Barrier, Backward, Update };

  LogicalResult fail(const llvm::Twine &message) {
    return emitError(getOperation().getLoc(), "alpa-cluster-layers: " + message);
  }

  LogicalResult checkOptions() {
    if (!(delta >= 0) || !std::isfinite(delta))
      return fail("delta must be 0 or more, got " + llvm::formatv("{0:F}", double(delta)).str());
    if (balance != "communication" && balance != "operators")
      return fail("unknown balance '" + balance + "'; expected communication or operators");
    if (maxLayers < 1)
      return fail("max-layers must be 1 or more");
    if (!boundaries.empty() && layers)
      return fail("give either layers or boundaries");
    return success();
  }

  LogicalResult readPhases(func::FuncOp main) {
    for (Operation &op : main.getBody().front().without_terminator()) {
      auto phase = op.getAttrOfType<StringAttr>(attr::phase);
      if (!phase)
        return op.emitOpError() << "has no alpa.phase; run alpa-import first";
      if (phase.getValue() == "update") {
        phases[Update].push_back(&op);
        continue;
      }
      if (!op.hasAttr(attr::eqn))
        return op.emitOpError() << "has no alpa.eqn; run alpa-import first";
      phases[phase.getValue() == "forward"   ? Forward
             : phase.getValue() == "barrier" ? Barrier
                                             : Backward]
          .push_back(&op);
    }
    return success();
  }

  static int64_t eqnOf(Operation *op) { return op->getAttrOfType<IntegerAttr>(attr::eqn).getInt(); }

  /// Equations at which the program says that a layer begins.
  std::vector<int64_t> takeMarks() {
    llvm::DenseMap<int64_t, unsigned> opsOfEqn;
    for (Operation *op : phases[Forward])
      ++opsOfEqn[eqnOf(op)];
    std::set<int64_t> marks;
    llvm::erase_if(phases[Forward], [&](Operation *op) {
      if (!op->hasAttr(importer::kBoundaryAttr))
        return false;
      if (opsOfEqn[eqnOf(op)] == 1)
        marks.insert(eqnOf(op));
      else
        op->emitWarning("this layer boundary cuts nothing: it stands inside jax.checkpoint or "
                        "another function whose derivative is a whole");
      op->replaceAllUsesWith(op->getOperands());
      op->erase();
      return true;
    });
    return {marks.begin(), marks.end()};
  }

  LogicalResult clusterForward(func::FuncOp main) {
    std::vector<int64_t> marks = takeMarks();
    ForwardUnits units = collectForwardUnits(main, phases[Forward]);
    // Nothing may stand between two marks, or before the first.
    int64_t place = -1;
    llvm::erase_if(marks, [&](int64_t mark) {
      auto next = llvm::lower_bound(units.places, mark);
      bool empty = next == units.places.end() || next == units.places.begin() || *next == place;
      place = next == units.places.end() ? place : *next;
      return empty;
    });
    Layering layering;
    if (!boundaries.empty()) {
      if (failed(cutByHand(units, boundaries, layering)))
        return failure();
    } else if (!marks.empty() && layers == 0) {
      if (failed(cutByHand(units, marks, layering)))
        return failure();
    } else {
      units.problem.hasStacks = readsStacks(main, phases[Forward]);
      units.problem.isComputedAgain = computedAgain;
      layering = clusterBlocks(units.problem, layers, maxLayers, delta);
      if (balance == "operators")
        layering = balanceOperators(units, layering.numLayers);
    }
    numLayers += layering.numLayers;

    // What needs all examples at once runs where the last of them are.
    for (Operation *op : phases[Barrier])
      layerOfOp[op] = layering.numLayers - 1;
    for (auto [unit, eqn] : llvm::enumerate(units.eqns)) {
      layerOfEqn[eqn] = layering.layerOfUnit[unit];
      if (!units.isMoved(unit))
        keptEqns[eqn] = layering.layerOfUnit[unit];
    }
    for (Operation *op : phases[Forward]) {
      unsigned layer = layerOfEqn[eqnOf(op)], least = layer;
      for (Value value : getUsedValues(op))
        if (auto source = layerOfOp.find(value.getDefiningOp()); source != layerOfOp.end())
          least = std::max(least, source->second);
      movedOps += least != layer;
      layerOfOp[op] = least;
    }
    return success();
  }

  LogicalResult cutByHand(const ForwardUnits &units, ArrayRef<int64_t> boundaries,
                          Layering &layering) {
    layering.numLayers = boundaries.size() + 1;
    std::vector<bool> used(layering.numLayers);
    for (int64_t place : units.places) {
      unsigned layer = llvm::count_if(boundaries, [&](int64_t first) { return first <= place; });
      layering.layerOfUnit.push_back(layer);
      used[layer] = true;
    }
    int64_t last = -1;
    for (auto [index, first] : llvm::enumerate(boundaries)) {
      if (first <= last)
        return fail("boundaries must ascend from 0, got " + llvm::Twine(first) + " after " +
                    llvm::Twine(last));
      last = first;
    }
    auto empty = llvm::find(used, false);
    if (empty == used.end())
      return success();
    return fail("layer " + llvm::Twine(empty - used.begin()) +
                " of the given boundaries holds no equation; equations of the forward "
                "computation are numbered from " +
                llvm::Twine(units.places.empty() ? 0 : units.places.front()) + " to " +
                llvm::Twine(units.places.empty() ? 0 : units.places.back()));
  }

  /// The paper's baseline "equal operator".
  Layering balanceOperators(const ForwardUnits &units, unsigned count) const {
    LayerProblem problem;
    problem.units.resize(units.ops.size());
    for (auto [unit, ops] : llvm::zip(problem.units, units.ops))
      unit.flops = llvm::count_if(ops, [](Operation *op) { return !importer::isConstantLike(op); });
    return clusterLayers(problem, count, /*delta=*/0);
  }

  /// How many different problems the layers pose, for people who look at cuts.
  void countKinds(func::FuncOp main) {
    std::vector<std::vector<Operation *>> ops;
    for (Operation &op : main.front().without_terminator()) {
      size_t layer = op.getAttrOfType<IntegerAttr>(attr::layer).getInt();
      ops.resize(std::max(ops.size(), layer + 1));
      ops[layer].push_back(&op);
    }
    std::set<std::vector<uintptr_t>> kinds;
    for (ArrayRef<Operation *> layer : ops)
      kinds.insert(describeStage(layer).words);
    numKinds += kinds.size();
  }

  /// The layer of an equation; of the one before it if nothing is left of it.
  unsigned lookupEqn(int64_t eqn) const {
    if (auto exact = layerOfEqn.find(eqn); exact != layerOfEqn.end())
      return exact->second;
    auto it = keptEqns.upper_bound(eqn);
    if (it == keptEqns.begin())
      return it == keptEqns.end() ? 0 : it->second;
    return std::prev(it)->second;
  }

  void placeBackward() {
    llvm::DenseMap<Operation *, unsigned> tagged;
    for (Operation *op : phases[Backward])
      tagged[op] = lookupEqn(eqnOf(op));
    moveGradientSums(tagged);
    for (Operation *op : phases[Backward]) {
      unsigned layer = tagged[op], most = layer;
      for (Value value : getUsedValues(op)) {
        Operation *source = value.getDefiningOp();
        if (auto it = layerOfOp.find(source); it != layerOfOp.end() && tagged.contains(source))
          most = std::min(most, it->second);
      }
      movedOps += most != layer;
      layerOfOp[op] = most;
    }
  }

  /// A weight that several layers use (tied embeddings) gets a gradient from
  /// each. Averages are linear: their sum can wait for the update, which saves
  /// sending one of them in every micro-batch.
  void moveGradientSums(llvm::DenseMap<Operation *, unsigned> &tagged) {
    for (Operation *op : llvm::reverse(phases[Backward])) {
      if (op->getName().getStringRef() != "stablehlo.add")
        continue;
      llvm::SmallSetVector<unsigned, 2> sources;
      for (Value value : op->getOperands())
        if (auto it = tagged.find(value.getDefiningOp()); it != tagged.end())
          sources.insert(it->second);
      bool onlyUpdate = llvm::all_of(importer::getUsers(op->getResult(0)),
                                     [](Operation *user) { return isOfPhase(user, "update"); });
      if (sources.size() < 2 || !onlyUpdate)
        continue;
      op->setAttr(attr::phase, StringAttr::get(&getContext(), "update"));
      op->removeAttr(attr::eqn);
      tagged.erase(op);
      phases[Update].push_back(op);
    }
    llvm::erase_if(phases[Backward], [&](Operation *op) { return !tagged.contains(op); });
  }

  SmallVector<Operation *> phases[4];
  std::map<int64_t, unsigned> layerOfEqn, keptEqns; // The latter without moved ones.
  llvm::DenseMap<Operation *, unsigned> layerOfOp;
};

} // namespace
