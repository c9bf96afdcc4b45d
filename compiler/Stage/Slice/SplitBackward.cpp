//===- SplitBackward.cpp - gradients that others wait for come first ------===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Schedule/ScheduleRegistry.h"
#include "compiler/Schedule/SlicedModule.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Slice/MinimumCut.h"
#include "compiler/Stage/Slice/SliceUtils.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"

namespace alpa::stage {
#define GEN_PASS_DEF_ALPASPLITBACKWARD
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;
using schedule::SlicedModule;

namespace {

/// An argument or a result of one of the two functions.
struct Carried {
  Value value;
  DictionaryAttr attributes;
};

/// The cut of one stage's @backward.
class BackwardSplit {
public:
  BackwardSplit(const SlicedModule &sliced, const schedule::StageFunction &backward,
                const llvm::DenseSet<int64_t> &awaited, int64_t &nextId)
      : sliced(sliced), backward(backward), awaited(awaited), nextId(nextId), function(backward.op),
        builder(function.getContext()) {}

  /// False if there is nothing to send back, or nothing else to do.
  bool isNeeded();
  LogicalResult split();

  int64_t numHanded = 0, handedBytes = 0, numRepeated = 0;

private:
  /// Whether another stage waits for it.
  bool isAwaited(const schedule::Port &port) const { return awaited.contains(port.id); }
  void markNeeded(Value value, llvm::DenseSet<Operation *> &marked);
  bool inInput(Value value) const {
    Operation *op = value.getDefiningOp();
    return op && inputOps.contains(op);
  }
  bool isArgument(Value value) const { return !value.getDefiningOp(); }
  void chooseHanded();
  LogicalResult handOver();
  int64_t bytesOf(Value value) const;
  ShardingSpec specOf(Value value) const;
  void write(StringRef name, const llvm::DenseSet<Operation *> &ops, ArrayRef<Carried> inputs,
             ArrayRef<Carried> results);
  SmallVector<Carried> argumentsOf(const llvm::DenseSet<Operation *> &ops,
                                   ArrayRef<Carried> results);

  const SlicedModule &sliced;
  const schedule::StageFunction &backward;
  const llvm::DenseSet<int64_t> &awaited;
  int64_t &nextId;
  func::FuncOp function; // @backward.
  OpBuilder builder;
  llvm::DenseSet<Operation *> inputOps, weightOps;
  SmallVector<Carried> inputResults, weightResults;
  llvm::SetVector<Value> used;   // By the weight part, made by the input part.
  llvm::DenseSet<Value> held;    // Arguments that the weight part reads anyway.
  llvm::SetVector<Value> handed; // From the input part to the weight part.
  SmallVector<Carried> received; // The same as arguments.
};

} // namespace

void BackwardSplit::markNeeded(Value value, llvm::DenseSet<Operation *> &marked) {
  SmallVector<Value> worklist{value};
  while (!worklist.empty()) {
    Operation *op = worklist.pop_back_val().getDefiningOp();
    if (op && !inputOps.contains(op) && marked.insert(op).second)
      llvm::append_range(worklist, importer::getUsedValues(op));
  }
}

bool BackwardSplit::isNeeded() {
  auto returned = function.front().getTerminator()->getOperands();
  llvm::DenseSet<Operation *> marked;
  for (auto [port, value] : llvm::zip_equal(backward.outputs, returned))
    if (isAwaited(port))
      markNeeded(value, marked);
  inputOps = std::move(marked);
  for (auto [index, value] : llvm::enumerate(returned)) {
    // What the input part makes anyway leaves from there.
    bool isInput = isAwaited(backward.outputs[index]) || inInput(value);
    (isInput ? inputResults : weightResults).push_back({value, function.getResultAttrDict(index)});
    if (!isInput)
      markNeeded(value, weightOps);
  }
  return !inputResults.empty() && !weightOps.empty();
}

ShardingSpec BackwardSplit::specOf(Value value) const {
  Operation *op = value.getDefiningOp();
  if (auto specs = op->getAttrOfType<ArrayAttr>(attr::shardings))
    return cast<ShardingAttr>(specs[cast<OpResult>(value).getResultNumber()]).getSpec();
  return ShardingSpec::replicated(cast<RankedTensorType>(value.getType()).getRank());
}

/// What keeping the value until the weight part costs a device; weights stay anyway, and what is
/// in the host's memory stays there.
int64_t BackwardSplit::bytesOf(Value value) const {
  auto type = cast<RankedTensorType>(value.getType());
  ShardingSpec spec;
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    const schedule::Port &port = backward.inputs[argument.getArgNumber()];
    if (port.isOnHost || (sliced.isArgument(port.id) && !sliced.isBatch(port.id)))
      return 0;
    spec = port.sharding.getSpec();
  } else {
    spec = specOf(value);
  }
  MeshAttr mesh = sliced.stages[backward.stage].mesh;
  return int64_t(analysis::getTensorBytes(type)) / spec.numPieces(mesh.getShape());
}

/// The weight part needs values of the input part, or what they are made of: an op that
/// costs little may run in both. The fewest bytes to keep are a minimum cut.
void BackwardSplit::chooseHanded() {
  auto keepCost = [&](Value value) {
    return isArgument(value) && held.contains(value) ? 0 : bytesOf(value);
  };
  auto remaking = [](Value value) -> std::optional<Remaking> {
    Operation *op = value.getDefiningOp();
    if (op && isRepeatable(op))
      return Remaking{0, op->getOperands()};
    return op && importer::isConstantLike(op) ? std::optional(Remaking()) : std::nullopt;
  };
  ValueCut cut = cutValues(used.getArrayRef(), keepCost, remaking);
  for (Value value : cut.kept)
    if (!isArgument(value))
      handed.insert(value);
  weightOps.insert(cut.remade.begin(), cut.remade.end());
  numRepeated = int64_t(cut.remade.size());
}

/// Gives each value that is handed over an id, or finds the one that it has.
LogicalResult BackwardSplit::handOver() {
  MeshAttr mesh = sliced.stages[backward.stage].mesh;
  SmallVector<Value> ordered(handed.begin(), handed.end());
  llvm::sort(ordered, [](Value a, Value b) {
    Operation *first = a.getDefiningOp(), *second = b.getDefiningOp();
    if (first == second)
      return cast<OpResult>(a).getResultNumber() < cast<OpResult>(b).getResultNumber();
    return first->isBeforeInBlock(second);
  });
  for (Value value : ordered) {
    ShardingSpec spec = specOf(value);
    auto emit = [&] { return value.getDefiningOp()->emitError() << "alpa_split_backward_c1: "; };
    if (!spec.unreduced.empty())
      return emit() << "devices hold terms of the sum that the rest of the backward pass reads; "
                       "run alpa-defer-sums before alpa-slice-stages";
    if (failed(verifySpec(emit, spec, value.getType(), mesh.getShape())))
      return failure();
    auto sharding = ShardingAttr::get(builder.getContext(), spec);
    ++numHanded;
    handedBytes += bytesOf(value);
    auto *known = llvm::find_if(inputResults, [&](const Carried &result) {
      return result.value == value && result.attributes.get(attr::sharding) == sharding;
    });
    Attribute id = known == inputResults.end() ? builder.getI64IntegerAttr(nextId++)
                                               : known->attributes.get(attr::value);
    auto attributes = builder.getDictionaryAttr(
        {builder.getNamedAttr(attr::sharding, sharding), builder.getNamedAttr(attr::value, id)});
    received.push_back({value, attributes});
    if (known == inputResults.end())
      inputResults.push_back({value, attributes});
  }
  return success();
}

SmallVector<Carried> BackwardSplit::argumentsOf(const llvm::DenseSet<Operation *> &ops,
                                                ArrayRef<Carried> results) {
  llvm::DenseSet<Value> read;
  for (Operation *op : ops)
    for (Value value : importer::getUsedValues(op))
      read.insert(value);
  for (const Carried &result : results)
    read.insert(result.value);
  SmallVector<Carried> arguments;
  for (BlockArgument argument : function.getArguments())
    if (read.contains(argument))
      arguments.push_back({argument, function.getArgAttrDict(argument.getArgNumber())});
  return arguments;
}

void BackwardSplit::write(StringRef name, const llvm::DenseSet<Operation *> &ops,
                          ArrayRef<Carried> inputs, ArrayRef<Carried> results) {
  auto typesOf = [](ArrayRef<Carried> list) {
    return llvm::map_to_vector(list, [](const Carried &item) { return item.value.getType(); });
  };
  auto attributesOf = [](ArrayRef<Carried> list) {
    return llvm::map_to_vector(list, [](const Carried &item) { return item.attributes; });
  };
  builder.setInsertionPoint(function);
  auto part = func::FuncOp::create(builder, function.getLoc(), name,
                                   builder.getFunctionType(typesOf(inputs), typesOf(results)));
  part.setPublic();
  Block *entry = part.addEntryBlock();
  IRMapping mapping;
  for (auto [input, argument] : llvm::zip_equal(inputs, entry->getArguments()))
    mapping.map(input.value, argument);
  builder.setInsertionPointToEnd(entry);
  for (Operation &op : function.front())
    if (ops.contains(&op))
      builder.clone(op, mapping);
  auto returned = llvm::map_to_vector(
      results, [&](const Carried &result) { return mapping.lookup(result.value); });
  func::ReturnOp::create(builder, function.front().getTerminator()->getLoc(), returned);
  part.setAllArgAttrs(attributesOf(inputs));
  part.setAllResultAttrs(attributesOf(results));
}

LogicalResult BackwardSplit::split() {
  for (Operation *op : weightOps)
    for (Value value : importer::getUsedValues(op)) {
      if (inInput(value))
        used.insert(value);
      if (isArgument(value))
        held.insert(value);
    }
  for (const Carried &result : weightResults)
    if (isArgument(result.value))
      held.insert(result.value);
  chooseHanded();
  if (failed(handOver()))
    return failure();
  SmallVector<Carried> weightInputs = argumentsOf(weightOps, weightResults);
  llvm::append_range(weightInputs, received);
  write("backward_input", inputOps, argumentsOf(inputOps, inputResults), inputResults);
  write("backward_weight", weightOps, weightInputs, weightResults);
  function.erase();
  return success();
}

namespace {

struct SplitBackward : stage::impl::AlpaSplitBackwardBase<SplitBackward> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto name = module->getAttrOfType<StringAttr>(attr::schedule);
    const schedule::ScheduleInfo *schedule =
        schedule::findSchedule(name ? name.getValue() : StringRef());
    if (!always && !(schedule && schedule->splitsBackward))
      return;
    FailureOr<SlicedModule> sliced = schedule::readSlicedModule(module);
    if (failed(sliced))
      return signalPassFailure();
    int64_t nextId = 0;
    for (const auto &[id, flow] : sliced->flows)
      nextId = std::max(nextId, id + 1);
    llvm::DenseSet<int64_t> awaited = awaitedValues(*sliced);
    for (const schedule::Stage &stage : sliced->stages) {
      if (!stage.backward || func::FuncOp(stage.backward->op).isDeclaration())
        continue;
      BackwardSplit split(*sliced, *stage.backward, awaited, nextId);
      if (!split.isNeeded())
        continue;
      if (failed(split.split()))
        return signalPassFailure();
      ++numFunctions;
      numHanded += split.numHanded;
      handedBytes += split.handedBytes;
      numRepeated += split.numRepeated;
    }
  }

private:
  llvm::DenseSet<int64_t> awaitedValues(const SlicedModule &sliced) const;
};

} // namespace

/// Values that a micro-batch's functions take from another stage.
llvm::DenseSet<int64_t> SplitBackward::awaitedValues(const SlicedModule &sliced) const {
  llvm::DenseSet<int64_t> awaited;
  for (const schedule::Stage &stage : sliced.stages)
    for (const auto *function : {&stage.forward, &stage.backward})
      if (*function)
        for (const schedule::Port &port : (*function)->inputs)
          if (sliced.flows.find(port.id)->second.stage != (*function)->stage)
            awaited.insert(port.id);
  return awaited;
}
