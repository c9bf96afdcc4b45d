//===- StepLayers.cpp - the layers of a step ------------------------------===//

#include "compiler/Stage/Layers/StepLayers.h"

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;
using sharding::OpPhase;
using sharding::opPhaseOf;

static bool isUpdate(Operation *op) { return opPhaseOf(op) == OpPhase::Update; }

/// Not for each micro-batch.
static bool runsOnce(Operation *op) { return sharding::runsOnce(opPhaseOf(op)); }

static Crossings findCrossings(const StepLayers &layers,
                               const llvm::DenseMap<Operation *, unsigned> &layerOfOp) {
  Crossings crossings;
  crossings.forwardBytes.assign(layers.opsOfLayer.size() + 1, 0);
  crossings.backwardBytes.assign(layers.opsOfLayer.size() + 1, 0);
  for (auto [source, layer] : layerOfOp) {
    if (runsOnce(source))
      continue;
    for (Value value : source->getResults()) {
      unsigned low = layer, high = layer;
      for (Operation *user : importer::getUsers(value)) {
        auto it = layerOfOp.find(user);
        if (it == layerOfOp.end() || runsOnce(user))
          continue;
        low = std::min(low, it->second);
        high = std::max(high, it->second);
      }
      double bytes = analysis::getTensorBytes(value.getType());
      for (unsigned cut = layer + 1; cut <= high; ++cut)
        crossings.forwardBytes[cut] += bytes;
      for (unsigned cut = low + 1; cut <= layer; ++cut)
        crossings.backwardBytes[cut] += bytes;
    }
  }
  return crossings;
}

/// Cuts across which updates read what others made of gradients.
static std::vector<bool> findMeetings(func::FuncOp main, size_t numLayers,
                                      const llvm::DenseMap<Operation *, unsigned> &layerOfOp) {
  std::vector<bool> meet(numLayers + 1, false);
  llvm::DenseSet<Operation *> ofGradients; // Updates that read any, themselves or by others.
  for (Operation &op : main.front().without_terminator()) {
    if (!isUpdate(&op))
      continue;
    for (Value value : importer::getUsedValues(&op)) {
      Operation *source = value.getDefiningOp();
      if (!source || !layerOfOp.contains(source))
        continue;
      if (!isUpdate(source)) {
        if (opPhaseOf(source) == OpPhase::Backward)
          ofGradients.insert(&op);
        continue;
      }
      if (!ofGradients.contains(source))
        continue;
      ofGradients.insert(&op);
      auto [low, high] = std::minmax(layerOfOp.lookup(source), layerOfOp.lookup(&op));
      for (unsigned cut = low + 1; cut <= high; ++cut)
        meet[cut] = true;
    }
  }
  return meet;
}

static std::vector<HandedOnce>
findHandedOnce(func::FuncOp main, const llvm::DenseMap<Operation *, unsigned> &layerOfOp) {
  constexpr double kFewBytes = 1 << 16;
  std::vector<HandedOnce> handed;
  unsigned count = 0;
  auto hand = [&](Value value, unsigned from, bool isWeight,
                  llvm::function_ref<bool(Operation *)> reads) {
    double bytes = analysis::getTensorBytes(value.getType());
    if (bytes < kFewBytes)
      return;
    llvm::SmallVector<unsigned, 2> readers;
    for (Operation *user : importer::getUsers(value)) {
      auto it = layerOfOp.find(user);
      if (it == layerOfOp.end() || it->second == from || !reads(user) ||
          llvm::is_contained(readers, it->second))
        continue;
      readers.push_back(it->second);
      handed.push_back({count, from, it->second, bytes, isWeight});
    }
    ++count;
  };
  auto isEarly = [](Operation *user) { return !isUpdate(user); };
  Operation *end = main.front().getTerminator();
  for (BlockArgument arg : main.getArguments()) {
    if (!isStateArgument(arg))
      continue;
    // It is held where it is updated, or else read first.
    std::optional<unsigned> owner;
    auto carried = main.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), attr::carriedBy);
    if (carried && carried.getInt() >= 0 && carried.getInt() < int64_t(end->getNumOperands()))
      if (auto it = layerOfOp.find(end->getOperand(carried.getInt()).getDefiningOp());
          it != layerOfOp.end())
        owner = it->second;
    bool isUpdated = owner.has_value();
    for (Operation *user : importer::getUsers(arg))
      if (auto it = layerOfOp.find(user); it != layerOfOp.end() && !isUpdated)
        owner = std::min(owner.value_or(it->second), it->second);
    if (owner)
      hand(arg, *owner, /*isWeight=*/true, isEarly);
  }
  for (Operation &op : main.front().without_terminator())
    for (Value value : op.getResults()) {
      unsigned layer = layerOfOp.lookup(&op);
      if (opPhaseOf(&op) == OpPhase::Prepare)
        hand(value, layer, /*isWeight=*/true, isEarly);
      else
        hand(value, layer, /*isWeight=*/false, isUpdate);
    }
  return handed;
}

llvm::Expected<unsigned> stage::countLayers(func::FuncOp main) {
  auto numOps = int64_t(main.front().getOperations().size()) - 1;
  unsigned count = 0;
  for (Operation &op : main.front().without_terminator()) {
    auto layer = op.getAttrOfType<IntegerAttr>(attr::layer);
    if (!layer || layer.getInt() < 0 || !op.getAttr(attr::phase))
      return llvm::createStringError(
          "op '" + op.getName().getStringRef() +
          "' has no layer or phase; run alpa-import and alpa-cluster-layers first");
    if (layer.getInt() >= numOps)
      return llvm::createStringError(
          "op '" + op.getName().getStringRef() + "' is of layer " + llvm::Twine(layer.getInt()) +
          ", but @main has " + llvm::Twine(numOps) + " ops; number layers from 0, each with an op");
    count = std::max(count, unsigned(layer.getInt()) + 1);
  }
  return count;
}

llvm::Expected<StepLayers> stage::readLayers(func::FuncOp main) {
  llvm::Expected<unsigned> count = countLayers(main);
  if (!count)
    return count.takeError();
  StepLayers layers;
  layers.opsOfLayer.resize(*count);
  llvm::DenseMap<Operation *, unsigned> layerOfOp;
  for (Operation &op : main.front().without_terminator()) {
    unsigned index = *layerOf(&op);
    layers.opsOfLayer[index].push_back(&op);
    layerOfOp[&op] = index;
    layers.flops.resize(*count);
    layers.flops[index] += analysis::getFlops(&op);
  }
  if (layers.opsOfLayer.empty())
    return llvm::createStringError("the step computes nothing: @main has no ops to plan");
  layers.crossings = findCrossings(layers, layerOfOp);
  layers.crossings.updatesMeet = findMeetings(main, layers.opsOfLayer.size(), layerOfOp);
  layers.handedOnce = findHandedOnce(main, layerOfOp);
  return layers;
}
