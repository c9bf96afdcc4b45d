//===- ClusterLayers.cpp - ops into layers --------------------------------===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Stage/LayerDp.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/UpdateLayers.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/SetVector.h"
#include <cmath>
#include <map>

namespace alpa {
#define GEN_PASS_DEF_ALPACLUSTERLAYERS
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

/// More layers make the search slower, and rarely better.
static constexpr unsigned kMostLayers = 8;

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
    if (!(delta >= 0) || !std::isfinite(delta)) {
      emitError(getOperation().getLoc(), "alpa-cluster-layers: delta must be 0 or more, got ")
          << double(delta);
      return signalPassFailure();
    }
    layerOfOp.clear();
    for (auto &phase : phases)
      phase.clear();
    if (failed(readPhases(main)))
      return signalPassFailure();
    clusterForward();
    placeBackward();
    assignUpdateLayers(main, layerOfOp);

    Builder builder(&getContext());
    for (auto &[op, layer] : layerOfOp)
      op->setAttr("alpa.layer", builder.getI64IntegerAttr(layer));
    repeatForReaders(main, {"alpa.phase", "alpa.eqn", "alpa.layer"}, isSplatLike);
  }

private:
  enum { Forward, Backward, Update };

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
      phases[phase.getValue() == "forward" ? Forward : Backward].push_back(&op);
    }
    return success();
  }

  static int64_t eqnOf(Operation *op) {
    return op->getAttrOfType<IntegerAttr>("alpa.eqn").getInt();
  }

  void clusterForward() {
    std::map<int64_t, unsigned> unitOfEqn; // In order of equations.
    for (Operation *op : phases[Forward])
      unitOfEqn[eqnOf(op)] = 0;
    unsigned numUnits = 0;
    for (auto &[eqn, unit] : unitOfEqn)
      unit = numUnits++;

    LayerProblem problem;
    problem.units.resize(numUnits);
    llvm::DenseMap<Value, unsigned> numbers;
    llvm::DenseMap<Operation *, unsigned> unitOfOp;
    llvm::SmallSetVector<unsigned, 16> heavy;
    for (Operation *op : phases[Forward]) {
      unsigned unit = unitOfOp[op] = unitOfEqn[eqnOf(op)];
      problem.units[unit].flops += getFlops(op);
      if (std::optional<ShardingRule> rule = getShardingRule(op); rule && rule->heavy)
        heavy.insert(unit);
      for (Value value : getUsedValues(op)) {
        auto source = unitOfOp.find(value.getDefiningOp());
        if (source == unitOfOp.end() || source->second >= unit)
          continue;
        unsigned number = numbers.try_emplace(value, numbers.size()).first->second;
        problem.units[unit].inputs.push_back(
            {source->second, number, getTensorBytes(value.getType())});
      }
    }
    unsigned wanted = layers ? unsigned(layers) : std::min<unsigned>(kMostLayers, heavy.size());
    Layering layering = clusterLayers(problem, wanted, delta);
    numLayers += layering.numLayers;

    for (auto &[eqn, unit] : unitOfEqn)
      layerOfEqn[eqn] = layering.layerOfUnit[unit];
    for (Operation *op : phases[Forward]) {
      unsigned layer = layerOfEqn[eqnOf(op)], least = layer;
      for (Value value : getUsedValues(op))
        if (auto source = layerOfOp.find(value.getDefiningOp()); source != layerOfOp.end())
          least = std::max(least, source->second);
      movedOps += least != layer;
      layerOfOp[op] = least;
    }
  }

  /// The layer of an equation; of the one before it if nothing is left of it.
  unsigned lookupEqn(int64_t eqn) const {
    auto it = layerOfEqn.upper_bound(eqn);
    if (it == layerOfEqn.begin())
      return it == layerOfEqn.end() ? 0 : it->second;
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

  SmallVector<Operation *> phases[3];
  std::map<int64_t, unsigned> layerOfEqn;
  llvm::DenseMap<Operation *, unsigned> layerOfOp;
};

} // namespace
