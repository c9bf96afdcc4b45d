//===- ClusterLayers.cpp - ops into layers --------------------------------===//

#include "compiler/Import/DataFlow.h"
#include "compiler/Import/NameStack.h"
#include "compiler/Stage/Layers/ForwardUnits.h"
#include "compiler/Stage/Layers/LayerBlocks.h"
#include "compiler/Stage/Layers/StageShape.h"
#include "compiler/Stage/Layers/UpdateLayers.h"
#include "compiler/Stage/Passes.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>
#include <map>
#include <set>

namespace alpa {
#define GEN_PASS_DEF_ALPACLUSTERLAYERS
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

class AlpaClusterLayersPass : public alpa::impl::AlpaClusterLayersBase<AlpaClusterLayersPass> {
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
      op->setAttr("alpa.layer", builder.getI64IntegerAttr(layer));
    repeatForReaders(main, {"alpa.phase", "alpa.eqn", "alpa.layer"}, isSplatLike);
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
      auto phase = op.getAttrOfType<StringAttr>("alpa.phase");
      if (!phase)
        return op.emitOpError() << "has no alpa.phase; run alpa-import first";
      if (phase.getValue() == "update") {
        phases[Update].push_back(&op);
        continue;
      }
      if (!op.hasAttr("alpa.eqn"))
        return op.emitOpError() << "has no alpa.eqn; run alpa-import first";
      phases[phase.getValue() == "forward"   ? Forward
             : phase.getValue() == "barrier" ? Barrier
                                             : Backward]
          .push_back(&op);
    }
    return success();
  }

  static int64_t eqnOf(Operation *op) {
    return op->getAttrOfType<IntegerAttr>("alpa.eqn").getInt();
  }

  /// Equations at which the program says that a layer begins.
  std::vector<int64_t> takeMarks() {
    llvm::DenseMap<int64_t, unsigned> opsOfEqn;
    for (Operation *op : phases[Forward])
      ++opsOfEqn[eqnOf(op)];
    std::set<int64_t> marks;
    llvm::erase_if(phases[Forward], [&](Operation *op) {
      if (!op->hasAttr(kBoundaryAttr))
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
      unit.flops = llvm::count_if(ops, [](Operation *op) { return !isConstantLike(op); });
    return clusterLayers(problem, count, /*delta=*/0);
  }

  /// How many different problems the layers pose, for people who look at cuts.
  void countKinds(func::FuncOp main) {
    std::vector<std::vector<Operation *>> ops;
    for (Operation &op : main.front().without_terminator()) {
      size_t layer = op.getAttrOfType<IntegerAttr>("alpa.layer").getInt();
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
      bool onlyUpdate = llvm::all_of(getUsers(op->getResult(0)), [](Operation *user) {
        auto phase = user->getAttrOfType<StringAttr>("alpa.phase");
        return phase && phase.getValue() == "update";
      });
      if (sources.size() < 2 || !onlyUpdate)
        continue;
      op->setAttr("alpa.phase", StringAttr::get(&getContext(), "update"));
      op->removeAttr("alpa.eqn");
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
