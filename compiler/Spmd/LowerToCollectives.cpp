//===- LowerToCollectives.cpp - programs of one device --------------------===//

#include "compiler/Spmd/LowerOp.h"
#include "compiler/Spmd/Passes.h"
#include "compiler/Spmd/ShardedModule.h"

#include "mlir/IR/IRMapping.h"

namespace alpa {
#define GEN_PASS_DEF_LOWERTOCOLLECTIVES
#include "compiler/Spmd/Passes.h.inc"
} // namespace alpa

using namespace alpa;
using namespace mlir;

namespace {

class FunctionLowering {
public:
  FunctionLowering(func::FuncOp function, MeshAttr mesh)
      : function(function), meshShape(mesh.getShape()),
        devices(function.getContext(), mesh.getShape()) {}

  LogicalResult run();
  unsigned numCollectives() const { return devices.numCollectives; }

private:
  LogicalResult lower(Block &block);
  LogicalResult lower(Operation *op);
  LogicalResult lower(ReshardOp op);
  LogicalResult lowerControlFlow(Operation *op);
  Type localTypeOf(Value value) {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    return type ? localType(type, held[value], meshShape) : value.getType();
  }

  func::FuncOp function;
  ArrayRef<int64_t> meshShape;
  DeviceBuilder devices;
  DenseMap<Value, ShardingSpec> held;
  IRMapping parts; // Of each value, what a device holds.
};

} // namespace

LogicalResult FunctionLowering::lower(ReshardOp op) {
  Value value = parts.lookup(op.getOperand());
  ShardingSpec before = withoutOnes(op.getFrom().getSpec(), meshShape);
  for (const ShardingSpec &spec : op.specsAfterFrom()) {
    ShardingSpec after = withoutOnes(spec, meshShape);
    std::optional<ReshardStep> step = singleStep(before, after, meshShape);
    if (!step)
      return op.emitError("from ") << before.str() << " to " << after.str() << " is not one step";
    value = devices.apply(*step, before, value);
    before = after;
  }
  held[op.getResult()] = before;
  parts.map(op.getResult(), value);
  return success();
}

LogicalResult FunctionLowering::lowerControlFlow(Operation *op) {
  OpBuilder &builder = devices.builder;
  Operation *made = builder.cloneWithoutRegions(*op, parts);
  for (auto [result, local] : llvm::zip_equal(op->getResults(), made->getResults()))
    local.setType(localTypeOf(result));
  made->removeDiscardableAttr(attr::shardings);
  OpBuilder::InsertionGuard guard(builder);
  for (auto [region, local] : llvm::zip_equal(op->getRegions(), made->getRegions())) {
    Block *block = builder.createBlock(&local);
    for (auto [argument, operand] : llvm::zip(region.getArguments(), op->getOperands())) {
      ShardingSpec spec = held[operand]; // A copy: the map may grow.
      held[argument] = std::move(spec);
      parts.map(argument, block->addArgument(localTypeOf(argument), argument.getLoc()));
    }
    if (failed(lower(region.front())))
      return failure();
    builder.clone(*region.front().getTerminator(), parts);
  }
  return success();
}

LogicalResult FunctionLowering::lower(Operation *op) {
  if (auto reshard = dyn_cast<ReshardOp>(op))
    return lower(reshard);
  std::optional<ShardingRule> rule = getShardingRule(op);
  auto shardings = op->getAttrOfType<ArrayAttr>(attr::shardings);
  if (!rule || !shardings)
    return op->emitError(rule ? "has no `alpa.shardings`; run alpa-insert-reshards first"
                              : "has no sharding rule yet");
  auto operands = llvm::map_to_vector(op->getOperands(), [&](Value v) { return held[v]; });
  SmallVector<ShardingSpec> results;
  for (auto [result, item] : llvm::zip_equal(op->getResults(), shardings)) {
    ShardingSpec spec;
    if (isa<RankedTensorType>(result.getType()))
      spec = withoutOnes(cast<ShardingAttr>(item).getSpec(), meshShape);
    results.push_back(spec);
    held[result] = spec;
  }
  auto captures =
      llvm::map_to_vector(rule->captures, [&](const auto &item) { return held[item.first]; });
  llvm::Expected<OpSplit> split = readSplit(*rule, operands, results, captures, meshShape);
  if (!split)
    return op->emitError("no strategy of the op has these shardings: ")
           << llvm::toString(split.takeError());
  if (isControlFlow(op))
    return lowerControlFlow(op);
  SmallVector<Value> given, made;
  for (Value operand : op->getOperands())
    given.push_back(parts.lookup(operand));
  if (failed(OpLowering(op, *rule, *split, devices).lower(given, made)))
    return failure();
  parts.map(op->getResults(), made);
  return success();
}

LogicalResult FunctionLowering::lower(Block &block) {
  for (Operation &op : block.without_terminator())
    if (failed(lower(&op)))
      return failure();
  return success();
}

LogicalResult FunctionLowering::run() {
  if (!function.getBody().hasOneBlock())
    return function.emitError("expected a function of one block");
  Block &body = function.getBody().front();
  auto specOf = [&](DictionaryAttr attributes, Type type) -> FailureOr<ShardingSpec> {
    auto sharding = attributes ? attributes.getAs<ShardingAttr>(attr::sharding) : ShardingAttr();
    if (!isa<RankedTensorType>(type))
      return ShardingSpec{};
    if (!sharding)
      return function.emitError("expected `")
             << attr::sharding << "` on every argument and result; run alpa-insert-reshards first";
    return withoutOnes(sharding.getSpec(), meshShape);
  };
  for (BlockArgument argument : function.getArguments()) {
    FailureOr<ShardingSpec> spec =
        specOf(function.getArgAttrDict(argument.getArgNumber()), argument.getType());
    if (failed(spec))
      return failure();
    held[argument] = *spec;
  }
  Block *local = devices.builder.createBlock(&function.getBody(), function.getBody().end());
  for (BlockArgument argument : body.getArguments())
    parts.map(argument, local->addArgument(localTypeOf(argument), argument.getLoc()));
  if (failed(lower(body)))
    return failure();
  Operation *terminator = devices.builder.clone(*body.getTerminator(), parts);
  body.erase();
  function.setType(FunctionType::get(function.getContext(), local->getArgumentTypes(),
                                     terminator->getOperandTypes()));
  return success();
}

namespace {

struct LowerToCollectives : public alpa::impl::LowerToCollectivesBase<LowerToCollectives> {
  void runOnOperation() override {
    auto visit = [&](func::FuncOp function, MeshAttr mesh) -> LogicalResult {
      auto module = function->getParentOfType<ModuleOp>();
      FunctionLowering lowering(function, mesh);
      if (failed(lowering.run()))
        return failure();
      module->setAttr(attr::perDevice, UnitAttr::get(&getContext()));
      numCollectives += lowering.numCollectives();
      return success();
    };
    if (failed(forEachShardedFunction(getOperation(), visit)))
      signalPassFailure();
  }
};

} // namespace
