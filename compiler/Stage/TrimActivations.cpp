//===- TrimActivations.cpp - what is cheap is computed again ---------------===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Schedule/SlicedModule.h"
#include "compiler/Stage/MinCut.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/SliceUtils.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/StringSet.h"

#include <limits>

namespace alpa {
#define GEN_PASS_DEF_ALPATRIMACTIVATIONS
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

/// What the backward function of one stage reads of its forward function.
class Activations {
public:
  Activations(const SlicedModule &sliced, const Stage &stage, llvm::DenseSet<int64_t> readElsewhere,
              int64_t &nextId)
      : sliced(sliced), stage(stage), readElsewhere(std::move(readElsewhere)), nextId(nextId),
        forward(stage.forward->op), backward(stage.backward->op), builder(forward.getContext()) {}

  void trim();

  int64_t numRepeated = 0, bytesBefore = 0, bytesAfter = 0;

private:
  void findCrossing();
  unsigned addToGraph(MinCut &graph, Value value);
  int64_t keepCost(Value value) const;
  int64_t repeatCost(Value value) const;
  bool canRepeat(Operation *op) const;
  void chooseKept();
  void findRepeated();
  int64_t bytesOf(Value value) const { return bytesOf(value, *specOf(value)); }
  int64_t bytesOf(Value value, const ShardingSpec &spec) const;
  std::optional<ShardingSpec> specOf(Value value) const;
  Value argumentFor(Value value);
  void rewriteBackward();
  void rewriteForward();

  const SlicedModule &sliced;
  const Stage &stage;
  llvm::DenseSet<int64_t> readElsewhere;
  int64_t &nextId;
  func::FuncOp forward, backward;
  OpBuilder builder;
  llvm::MapVector<Value, SmallVector<BlockArgument, 1>> crossing; // As @backward has them.
  llvm::DenseMap<int64_t, BlockArgument> inputs;                  // Of @backward, by value id.
  llvm::DenseMap<Value, int64_t> resultIds;                       // Of @forward.
  llvm::SetVector<Value> kept;
  llvm::DenseSet<Operation *> repeated;
  llvm::DenseMap<Value, unsigned> nodes;
  SmallVector<Value> values; // By node.
};

/// More than any activation.
constexpr int64_t cannotBeKept = std::numeric_limits<int64_t>::max() / 1024;

} // namespace

std::optional<ShardingSpec> Activations::specOf(Value value) const {
  if (auto argument = dyn_cast<BlockArgument>(value))
    return stage.forward->inputs[argument.getArgNumber()].sharding.getSpec();
  Operation *op = value.getDefiningOp();
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type)
    return std::nullopt;
  auto specs = op->getAttrOfType<ArrayAttr>(attr::shardings);
  ShardingSpec spec =
      specs ? cast<ShardingAttr>(specs[cast<OpResult>(value).getResultNumber()]).getSpec()
            : ShardingSpec::replicated(type.getRank());
  // Terms of a sum, and pieces of unequal size, stay within a function.
  auto silent = [&] { return InFlightDiagnostic(); };
  if (!spec.partial.empty() || failed(verifySpec(silent, spec, type, stage.mesh.getShape())))
    return std::nullopt;
  return spec;
}

int64_t Activations::bytesOf(Value value, const ShardingSpec &spec) const {
  return int64_t(getTensorBytes(value.getType())) / spec.numPieces(stage.mesh.getShape());
}

/// Values that no other function reads, held in both functions as the op makes them.
void Activations::findCrossing() {
  for (auto [index, port] : llvm::enumerate(stage.backward->inputs))
    inputs[port.id] = backward.getArgument(index);
  Operation *returned = forward.front().getTerminator();
  for (auto [port, value] : llvm::zip_equal(stage.forward->outputs, returned->getOperands())) {
    if (!value.getDefiningOp() || !port.accumulate.empty() || port.nextOf >= 0 || port.partOf >= 0)
      continue;
    std::optional<ShardingSpec> spec = specOf(value);
    if (!spec || *spec != port.sharding.getSpec())
      continue;
    resultIds.try_emplace(value, port.id);
    if (BlockArgument input = inputs.lookup(port.id))
      if (stage.backward->inputs[input.getArgNumber()].sharding == port.sharding)
        crossing[value].push_back(input);
  }
}

/// Without communication, and always with the same result.
bool Activations::canRepeat(Operation *op) const {
  return isRepeatable(op) && !op->hasAttr(attr::useShardings) && specOf(op->getResult(0));
}

/// The bytes of an activation on a device; weights and what is kept anyway are free.
int64_t Activations::keepCost(Value value) const {
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    const Port &port = stage.forward->inputs[argument.getArgNumber()];
    if (sliced.nextVersion.contains(port.id)) // The next micro-batch may have changed it.
      return cannotBeKept;
    bool isOwn = sliced.isArgument(port.id) && !sliced.isBatch(port.id) &&
                 sliced.flows.find(port.id)->second.stage == stage.forward->stage;
    return isOwn || inputs.contains(port.id) ? 0 : bytesOf(value);
  }
  return specOf(value) ? bytesOf(value) : cannotBeKept;
}

/// In bytes that could be read or written in the same time. Broadcasts and slices take part in
/// the loops of their readers, transposes and the like are copies.
int64_t Activations::repeatCost(Value value) const {
  static const llvm::StringSet<> copies = {"stablehlo.concatenate", "stablehlo.pad",
                                           "stablehlo.reverse", "stablehlo.transpose"};
  static const llvm::StringSet<> simple = {"stablehlo.abs",
                                           "stablehlo.add",
                                           "stablehlo.and",
                                           "stablehlo.ceil",
                                           "stablehlo.clamp",
                                           "stablehlo.compare",
                                           "stablehlo.convert",
                                           "stablehlo.floor",
                                           "stablehlo.maximum",
                                           "stablehlo.minimum",
                                           "stablehlo.multiply",
                                           "stablehlo.negate",
                                           "stablehlo.not",
                                           "stablehlo.or",
                                           "stablehlo.select",
                                           "stablehlo.sign",
                                           "stablehlo.subtract",
                                           "stablehlo.xor",
                                           "stablehlo.shift_left",
                                           "stablehlo.shift_right_arithmetic",
                                           "stablehlo.shift_right_logical",
                                           "chlo.square"};
  Operation *op = value.getDefiningOp();
  StringRef name = op->getName().getStringRef();
  auto type = cast<RankedTensorType>(value.getType());
  int64_t elements = type.getNumElements() / specOf(value)->numPieces(stage.mesh.getShape());
  int64_t cost = 0;
  if (copies.contains(name))
    cost = bytesOf(value);
  else if (getFlops(op) > 0)
    cost = simple.contains(name) ? elements / 4 : 2 * elements;
  // Products and the like read memory: the value is written and read as if it were kept.
  for (BlockArgument argument : crossing.lookup(value))
    if (llvm::any_of(argument.getUsers(), [](Operation *user) {
          return !isRepeatable(user) && user->getName().getStringRef() != "stablehlo.reduce";
        }))
      return cost + bytesOf(value);
  return cost;
}

unsigned Activations::addToGraph(MinCut &graph, Value value) {
  auto [it, isNew] = nodes.try_emplace(value, 0);
  if (!isNew)
    return it->second;
  unsigned node = graph.addNode(keepCost(value));
  it->second = node;
  values.push_back(value);
  return node;
}

void Activations::chooseKept() {
  MinCut graph;
  for (auto &[value, arguments] : crossing)
    graph.addSink(addToGraph(graph, value));
  for (size_t i = 0; i < values.size(); ++i) { // Grows on the way.
    Value value = values[i];
    Operation *op = value.getDefiningOp();
    if (op && isConstantLike(op) && canRepeat(op))
      continue;
    if (!op || !canRepeat(op)) {
      graph.addSource(i);
      continue;
    }
    graph.addRepeat(i, repeatCost(value));
    for (Value operand : op->getOperands())
      graph.addEdge(addToGraph(graph, operand), i);
  }
  for (unsigned node : graph.solve())
    if (values[node].getDefiningOp())
      kept.insert(values[node]);
}

void Activations::findRepeated() {
  SmallVector<Value> worklist;
  for (auto &[value, arguments] : crossing)
    worklist.push_back(value);
  while (!worklist.empty()) {
    Value value = worklist.pop_back_val();
    Operation *op = value.getDefiningOp();
    if (op && !kept.contains(value) && repeated.insert(op).second)
      llvm::append_range(worklist, op->getOperands());
  }
}

/// A value of @forward as an argument of @backward.
Value Activations::argumentFor(Value value) {
  int64_t id;
  DictionaryAttr attributes;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    id = stage.forward->inputs[argument.getArgNumber()].id;
    auto sharding = forward.getArgAttr(argument.getArgNumber(), attr::sharding);
    attributes = builder.getDictionaryAttr(
        {builder.getNamedAttr(attr::sharding, sharding),
         builder.getNamedAttr(attr::value, builder.getI64IntegerAttr(id))});
  } else {
    auto [it, isNew] = resultIds.try_emplace(value, nextId);
    id = it->second;
    attributes = builder.getDictionaryAttr(
        {builder.getNamedAttr(attr::sharding,
                              ShardingAttr::get(builder.getContext(), *specOf(value))),
         builder.getNamedAttr(attr::value, builder.getI64IntegerAttr(id))});
    if (isNew) {
      ++nextId;
      unsigned position = forward.getNumResults();
      (void)forward.insertResult(position, value.getType(), attributes);
      forward.front().getTerminator()->insertOperands(position, value);
    }
  }
  if (BlockArgument known = inputs.lookup(id))
    return known;
  unsigned position = backward.getNumArguments();
  (void)backward.insertArgument(position, value.getType(), attributes, value.getLoc());
  return inputs[id] = backward.getArgument(position);
}

void Activations::rewriteBackward() {
  IRMapping mapping;
  auto mapped = [&](Value value) {
    if (!mapping.contains(value))
      mapping.map(value, argumentFor(value));
    return mapping.lookup(value);
  };
  builder.setInsertionPointToStart(&backward.front());
  for (Operation &op : forward.front()) {
    if (!repeated.contains(&op))
      continue;
    for (Value operand : op.getOperands())
      (void)mapped(operand);
    builder.clone(op, mapping);
    ++numRepeated;
  }
  llvm::BitVector unread(backward.getNumArguments());
  for (auto &[value, arguments] : crossing)
    for (BlockArgument argument : arguments) {
      Value source = mapped(value);
      if (source == argument)
        continue;
      argument.replaceAllUsesWith(source);
      unread.set(argument.getArgNumber());
    }
  (void)backward.eraseArguments(unread);
}

/// What nobody reads any more is not returned, and not computed.
void Activations::rewriteForward() {
  llvm::DenseSet<int64_t> &read = readElsewhere;
  for (unsigned i = 0, e = backward.getNumArguments(); i < e; ++i)
    read.insert(backward.getArgAttrOfType<IntegerAttr>(i, attr::value).getInt());
  Operation *returned = forward.front().getTerminator();
  llvm::BitVector unread(forward.getNumResults());
  for (auto &[value, arguments] : crossing) {
    if (!repeated.contains(value.getDefiningOp()))
      continue;
    for (unsigned i = 0, e = forward.getNumResults(); i < e; ++i) {
      int64_t id = forward.getResultAttrOfType<IntegerAttr>(i, attr::value).getInt();
      if (returned->getOperand(i) == value && resultIds.lookup(value) == id && !read.contains(id))
        unread.set(i);
    }
  }
  returned->eraseOperands(unread);
  (void)forward.eraseResults(unread);
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(forward.front())))
    if (repeated.contains(&op) && op.use_empty())
      op.erase();
}

void Activations::trim() {
  findCrossing();
  if (crossing.empty())
    return;
  chooseKept();
  findRepeated();
  for (auto &[value, arguments] : crossing)
    bytesBefore += bytesOf(value);
  for (Value value : kept)
    bytesAfter += bytesOf(value);
  if (repeated.empty())
    return;
  rewriteBackward();
  rewriteForward();
}

namespace {

struct TrimActivations : alpa::impl::AlpaTrimActivationsBase<TrimActivations> {
  using Base::Base;

  void runOnOperation() override {
    FailureOr<SlicedModule> sliced = readSlicedModule(getOperation());
    if (failed(sliced))
      return signalPassFailure();
    int64_t nextId = 0;
    for (const auto &[id, flow] : sliced->flows)
      nextId = std::max(nextId, id + 1);
    for (const Stage &stage : sliced->stages) {
      if (!stage.forward || !stage.backward)
        continue;
      Activations activations(*sliced, stage, readOutside(*sliced, stage), nextId);
      activations.trim();
      numRepeated += activations.numRepeated;
      bytesBefore += activations.bytesBefore;
      bytesAfter += activations.bytesAfter;
    }
  }

private:
  /// Results of a stage's forward function that others than its backward function read.
  llvm::DenseSet<int64_t> readOutside(SlicedModule &sliced, const Stage &stage) const {
    llvm::DenseSet<int64_t> read;
    forEachFunction(sliced, [&](StageFunction &function, bool) {
      if (&function != &*stage.backward)
        for (const Port &port : function.inputs)
          read.insert(port.id);
    });
    for (const auto &[id, results] : sliced.resultsOf)
      read.insert(id);
    return read;
  }
};

} // namespace
