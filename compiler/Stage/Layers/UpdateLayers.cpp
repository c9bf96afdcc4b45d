//===- UpdateLayers.cpp - where the weight update happens -----------------===//

#include "compiler/Stage/Layers/UpdateLayers.h"

#include "compiler/Import/DataFlow.h"

#include <optional>

using namespace mlir;
using namespace alpa;

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
    if (source && isSplatLike(source))
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
    for (Operation *user : getUsers(value)) {
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

void alpa::assignUpdateLayers(func::FuncOp main, llvm::DenseMap<Operation *, unsigned> &layers) {
  UpdateLayers(main, layers).run();
}
