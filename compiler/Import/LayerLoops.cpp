//===- LayerLoops.cpp - loops whose iterations are layers -----------------===//

#include "compiler/Import/LayerLoops.h"

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Import/NameStack.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace alpa;
namespace hlo = mlir::stablehlo;
using Role = LoopShape::Role;

static bool hasPhase(Operation *op, StringRef phase) {
  auto attribute = op->getAttrOfType<StringAttr>(attr::phase);
  return attribute && attribute.getValue() == phase;
}

/// What a value of the body is outside of it, if every iteration sees the same.
static Value outsideOf(const LoopShape &shape, Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  if (argument && argument.getOwner() == &shape.body())
    return shape.roles[argument.getArgNumber()] == Role::Invariant
               ? shape.loop->getOperand(argument.getArgNumber())
               : Value();
  return value.getParentBlock() == &shape.body() ? Value() : value;
}

namespace {

/// What an iteration's values depend on.
class BodyFlow {
public:
  BodyFlow(const LoopShape &shape, const BatchAnalysis &batch) : shape(shape), batch(batch) {
    for (BlockArgument argument : shape.body().getArguments()) {
      Role role = shape.roles[argument.getArgNumber()];
      if (role == Role::Carry)
        carried.insert(argument);
    }
  }

  bool multipliesLayers() {
    for (Operation &op : shape.body().without_terminator())
      if (visit(&op))
        return true;
    return false;
  }

private:
  /// Neither carried nor of the batch: the same in every micro-batch.
  bool isFixed(Value value) const {
    if (Value outside = outsideOf(shape, value))
      return !batch.dependsOnBatch(outside);
    auto argument = dyn_cast<BlockArgument>(value);
    if (argument)
      return shape.roles[argument.getArgNumber()] == Role::Counter;
    return fixed.contains(value);
  }

  bool visit(Operation *op) {
    SmallVector<Value> used = getUsedValues(op);
    auto isCarried = [&](Value value) { return carried.contains(value); };
    auto isLayer = [&](Value value) { return layers.contains(value); };
    std::optional<ShardingRule> rule = getShardingRule(op);
    if (rule && rule->heavy && llvm::any_of(used, isLayer) && llvm::any_of(used, isCarried))
      return true;
    auto slice = dyn_cast<hlo::DynamicSliceOp>(op);
    bool takesLayer = slice && outsideOf(shape, slice.getOperand()) && !used.empty() &&
                      slice->getNumOperands() > 1 && !KnownScalars().get(slice->getOperand(1));
    bool allFixed = llvm::all_of(used, [&](Value value) { return isFixed(value); });
    for (Value result : op->getResults()) {
      if (llvm::any_of(used, isCarried))
        carried.insert(result);
      if (!allFixed)
        continue;
      fixed.insert(result);
      if (takesLayer || llvm::any_of(used, isLayer))
        layers.insert(result);
    }
    return false;
  }

  const LoopShape &shape;
  const BatchAnalysis &batch;
  llvm::DenseSet<Value> carried, fixed, layers;
};

/// Where in dimension 0 of a tensor outside each iteration reads or writes.
using Places = SmallVector<std::pair<Value, SmallVector<int64_t>>>;

} // namespace

static Places readPlaces(const LoopShape &shape) {
  Places places;
  SmallVector<hlo::DynamicSliceOp> slices;
  for (Operation &op : shape.body().without_terminator())
    if (auto slice = dyn_cast<hlo::DynamicSliceOp>(op); slice && slice->getNumOperands() > 1)
      if (Value outside = outsideOf(shape, slice.getOperand())) {
        slices.push_back(slice);
        places.push_back({outside, {}});
      }
  forEachIteration(shape, [&](int64_t, const KnownScalars &scalars) {
    for (auto [slice, place] : llvm::zip_equal(slices, places))
      place.second.push_back(scalars.get(slice->getOperand(1)).value_or(-1));
  });
  return places;
}

/// Whether the backward loop takes what the forward one read or wrote in reverse.
static bool goesBack(const LoopShape &forward, const LoopShape &backward) {
  if (forward.trips != backward.trips)
    return false;
  llvm::DenseMap<Value, SmallVector<int64_t>> places;
  for (auto &[value, starts] : readPlaces(forward))
    places.try_emplace(value, starts);
  for (auto &[index, starts] : forward.writes)
    places[forward.loop->getResult(index)] = starts;
  bool found = false;
  for (auto &[value, starts] : readPlaces(backward)) {
    auto it = places.find(value);
    if (it == places.end())
      continue;
    if (!llvm::equal(llvm::reverse(it->second), starts))
      return false;
    found = true;
  }
  return found;
}

/// Nothing if the loop would become more than `maxOps` ops.
static std::optional<LoopShape> readLoopWithin(hlo::WhileOp loop, int64_t maxOps) {
  if (!loop.getBody().hasOneBlock())
    return std::nullopt;
  return readLoop(loop, maxOps / int64_t(loop.getBody().front().getOperations().size()));
}

SmallVector<LayerLoop> alpa::findLayerLoops(func::FuncOp main, int64_t maxOps) {
  SmallVector<hlo::WhileOp> forward, backward;
  for (auto loop : main.getBody().front().getOps<hlo::WhileOp>()) {
    if (hasPhase(loop, "forward"))
      forward.push_back(loop);
    else if (hasPhase(loop, "backward"))
      backward.push_back(loop);
  }
  SmallVector<LayerLoop> found;
  if (forward.empty())
    return found;
  BatchAnalysis batch(main);
  llvm::DenseMap<Attribute, unsigned> loopsOfEqn;
  for (hlo::WhileOp loop : forward)
    ++loopsOfEqn[loop->getAttr(attr::eqn)];
  for (hlo::WhileOp loop : forward) {
    if (loopsOfEqn.lookup(loop->getAttr(attr::eqn)) > 1)
      continue; // Which op belongs to which of them is not known.
    std::optional<LoopShape> shape = readLoopWithin(loop, maxOps);
    if (!shape || shape->trips < 2 || !BodyFlow(*shape, batch).multipliesLayers())
      continue;
    LayerLoop layers{*shape, std::nullopt};
    SmallVector<hlo::WhileOp> gradients;
    for (hlo::WhileOp other : backward)
      if (other->getAttr(attr::eqn) == loop->getAttr(attr::eqn) ||
          llvm::any_of(getUsedValues(other),
                       [&](Value value) { return value.getDefiningOp() == loop; }))
        gradients.push_back(other);
    if (gradients.size() > 1)
      continue;
    if (!gradients.empty()) {
      layers.backward = readLoopWithin(gradients[0], maxOps);
      if (!layers.backward || !goesBack(layers.forward, *layers.backward))
        continue;
    }
    found.push_back(std::move(layers));
  }
  return found;
}

BodyEquations alpa::numberBody(const LayerLoop &loop, unsigned level) {
  BodyEquations result;
  auto readTags = [&](const LoopShape &shape, llvm::DenseMap<Operation *, int64_t> &numbers) {
    for (Operation &op : shape.body().without_terminator())
      if (std::optional<int64_t> eqn = readBodyEqn(op.getLoc(), level))
        numbers[&op] = *eqn;
  };
  auto least = [](auto &numbers, auto &&ops) {
    std::optional<int64_t> number;
    for (Operation *op : ops)
      if (auto it = numbers.find(op); it != numbers.end())
        number = std::min(number.value_or(it->second), it->second);
    return number;
  };
  auto most = [](auto &numbers, auto &&ops) {
    std::optional<int64_t> number;
    for (Operation *op : ops)
      if (auto it = numbers.find(op); it != numbers.end())
        number = std::max(number.value_or(it->second), it->second);
    return number;
  };
  auto sources = [](Operation *op) {
    SmallVector<Operation *> ops;
    for (Value value : getUsedValues(op))
      if (Operation *source = value.getDefiningOp())
        ops.push_back(source);
    return ops;
  };
  auto readers = [](Operation *op) {
    llvm::SetVector<Operation *> ops;
    for (Value value : op->getResults())
      ops.insert_range(getUsers(value));
    return ops.takeVector();
  };

  // What is made for later belongs to its first reader, the rest to the last it reads.
  Block &forward = loop.forward.body();
  readTags(loop.forward, result.forward);
  for (const auto &[op, number] : result.forward)
    result.count = std::max(result.count, number + 1);
  for (Operation &op : llvm::reverse(forward.without_terminator()))
    if (!result.forward.contains(&op))
      if (auto number = least(result.forward, readers(&op)))
        result.forward[&op] = *number;
  for (Operation &op : forward.without_terminator())
    if (!result.forward.contains(&op))
      result.forward[&op] = most(result.forward, sources(&op)).value_or(0);
  if (!loop.backward)
    return result;

  // Gradients go back in step with those that they are made of.
  Block &backward = loop.backward->body();
  readTags(*loop.backward, result.backward);
  for (auto &[op, number] : result.backward)
    number = std::min(number, result.count - 1);
  for (Operation &op : backward.without_terminator())
    if (!result.backward.contains(&op))
      if (auto number = least(result.backward, sources(&op)))
        result.backward[&op] = *number;
  for (Operation &op : llvm::reverse(backward.without_terminator()))
    if (!result.backward.contains(&op))
      result.backward[&op] = most(result.backward, readers(&op)).value_or(result.count - 1);
  return result;
}
