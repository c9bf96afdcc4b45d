//===- InsertReshards.cpp - every change of a sharding becomes an op ------===//

#include "compiler/Sharding/Problem/Reshard.h"
#include "compiler/Spmd/OpSplit.h"
#include "compiler/Spmd/Passes.h"
#include "compiler/Spmd/ShardedModule.h"
#include "dialects/Common/Diagnostics.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Transforms/RegionUtils.h"

namespace alpa::spmd {
#define GEN_PASS_DEF_INSERTRESHARDS
#include "compiler/Spmd/Passes.h.inc"
} // namespace alpa::spmd

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;
using analysis::ShardingRule;
using sharding::ReshardPlanner;

namespace {

class ReshardInserter {
public:
  ReshardInserter(func::FuncOp function, MeshAttr mesh, ReshardPlanner &planner)
      : function(function), meshShape(mesh.getShape()), planner(planner),
        builder(function.getContext()) {}

  LogicalResult run();

  unsigned numReshards = 0, numRemade = 0;

private:
  LogicalResult visitBlock(Block &block);
  LogicalResult visit(Operation *op);
  LogicalResult visitRegions(Operation *op, const ShardingRule &rule, const OpSplit &split);
  LogicalResult bringCaptures(Operation *op, const ShardingRule &rule, const OpSplit &split);
  FailureOr<OpSplit> chooseSplit(Operation *op, const ShardingRule &rule,
                                 std::optional<SmallVector<ShardingSpec>> &results);
  LogicalResult visitReturn(func::ReturnOp op);
  LogicalResult useAs(OpOperand &use, const ShardingSpec &spec);
  FailureOr<Value> valueAs(Value value, const ShardingSpec &spec, Operation *user);
  FailureOr<Value> remake(Operation *op, const ShardingSpec &spec, Operation *user);
  FailureOr<Value> reshard(Value value, const ShardingSpec &from, const ShardingSpec &to,
                           Operation *user);
  bool isFree(Operation *op);
  bool isView(Operation *op);
  FailureOr<SmallVector<ShardingSpec>> specsOf(Operation *op, StringRef name, TypeRange types);
  FailureOr<ShardingSpec> read(Operation *op, Attribute attribute, Type type);
  void setResults(Operation *op, ArrayRef<ShardingSpec> specs);
  ShardingAttr attributeOf(const ShardingSpec &spec) {
    return ShardingAttr::get(builder.getContext(), spec);
  }

  func::FuncOp function;
  ArrayRef<int64_t> meshShape;
  ReshardPlanner &planner;
  OpBuilder builder;
  DenseMap<Value, ShardingSpec> held;
  DenseMap<std::pair<Value, Attribute>, Value> made; // By value and spec, in the value's block.
  DenseMap<Operation *, bool> freeOps;
};

} // namespace

FailureOr<ShardingSpec> ReshardInserter::read(Operation *op, Attribute attribute, Type type) {
  auto sharding = dyn_cast_or_null<ShardingAttr>(attribute);
  if (!isa<RankedTensorType>(type))
    return ShardingSpec{};
  if (!sharding)
    return ShardingSpec::replicated(cast<RankedTensorType>(type).getRank());
  if (failed(verifySpec([&] { return op->emitError(); }, sharding.getSpec(), type, meshShape)))
    return failure();
  return withoutOnes(sharding.getSpec(), meshShape);
}

FailureOr<SmallVector<ShardingSpec>> ReshardInserter::specsOf(Operation *op, StringRef name,
                                                              TypeRange types) {
  SmallVector<ShardingSpec> specs;
  for (auto [item, type] : llvm::zip_equal(op->getAttrOfType<ArrayAttr>(name), types)) {
    FailureOr<ShardingSpec> spec = read(op, item, type);
    if (failed(spec))
      return failure();
    specs.push_back(std::move(*spec));
  }
  return specs;
}

void ReshardInserter::setResults(Operation *op, ArrayRef<ShardingSpec> specs) {
  SmallVector<Attribute> attributes;
  for (auto [result, spec] : llvm::zip_equal(op->getResults(), specs)) {
    held[result] = spec;
    attributes.push_back(attributeOf(spec));
  }
  op->setAttr(attr::shardings, builder.getArrayAttr(attributes));
  op->removeAttr(attr::useShardings);
  op->removeAttr(attr::madeShardings);
}

/// Ops whose sums or shapes XLA fuses into their users.
static bool isFusible(Operation *op) {
  if (op->getNumRegions() || op->getNumResults() != 1 || !isMemoryEffectFree(op))
    return false;
  std::optional<ShardingRule> rule = analysis::getShardingRule(op);
  return rule && !rule->heavy && !rule->leads && !rule->forwards &&
         llvm::none_of(rule->factors, [](const analysis::Factor &f) {
           return f.kind == analysis::FactorKind::Reduction;
         });
}

/// Made of constants alone, as the search's Free values are.
bool ReshardInserter::isFree(Operation *op) {
  auto known = freeOps.find(op);
  if (known != freeOps.end())
    return known->second;
  // Operands come first in program order, so they are known by now.
  bool isFree = isFusible(op) && llvm::all_of(op->getOperands(), [&](Value operand) {
                  Operation *source = operand.getDefiningOp();
                  return source && source->getBlock() == op->getBlock() && freeOps.lookup(source);
                });
  return freeOps[op] = isFree;
}

bool ReshardInserter::isView(Operation *op) {
  if (op->getNumOperands() != 1 || !isFusible(op))
    return false;
  auto from = dyn_cast<RankedTensorType>(op->getOperand(0).getType());
  auto to = dyn_cast<RankedTensorType>(op->getResult(0).getType());
  return from && to && to.getNumElements() > from.getNumElements();
}

FailureOr<Value> ReshardInserter::reshard(Value value, const ShardingSpec &from,
                                          const ShardingSpec &to, Operation *user) {
  if (from == to)
    return value;
  auto type = cast<RankedTensorType>(value.getType());
  auto path = planner.of(type.getShape(), analysis::getTensorBytes(type)).path(from, to);
  if (!path)
    return user->emitError() << "cannot change " << type << " from " << attributeOf(from) << " to "
                             << attributeOf(to) << ": pieces are uneven";
  SmallVector<Attribute> through;
  for (const sharding::ReshardStep &step : llvm::drop_end(*path))
    through.push_back(attributeOf(step.spec));
  builder.setInsertionPoint(user);
  Value result = ReshardOp::create(builder, value.getLoc(), type, value, attributeOf(from),
                                   builder.getArrayAttr(through), attributeOf(to));
  held[result] = to;
  ++numReshards;
  return result;
}

/// The op again, with its result split as nearly to `spec` as its rule can.
FailureOr<Value> ReshardInserter::remake(Operation *op, const ShardingSpec &spec, Operation *user) {
  ShardingRule rule = *analysis::getShardingRule(op);
  auto operands = llvm::map_to_vector(op->getOperands(), [&](Value v) { return held[v]; });
  for (ShardingSpec &operand : operands) // They are made as the result wants them.
    operand = ShardingSpec::replicated(operand.dims.size());
  OpSplit split = nearestSplit(op, rule, operands, ArrayRef(spec), {}, meshShape);
  Value result = op->getResult(0);
  if (split.results[0] != held[result]) {
    Value &known = made[{result, attributeOf(split.results[0])}];
    if (!known) {
      IRMapping mapping;
      for (auto [operand, wanted] : llvm::zip_equal(op->getOperands(), split.operands)) {
        FailureOr<Value> source = valueAs(operand, wanted, user);
        if (failed(source))
          return failure();
        mapping.map(operand, *source);
      }
      builder.setInsertionPoint(user);
      Operation *clone = builder.clone(*op, mapping);
      setResults(clone, split.results);
      freeOps[clone] = freeOps.lookup(op);
      ++numRemade;
      made[{result, attributeOf(split.results[0])}] = clone->getResult(0);
    }
    result = made[{op->getResult(0), attributeOf(split.results[0])}];
  }
  return reshard(result, held[result], spec, user);
}

FailureOr<Value> ReshardInserter::valueAs(Value value, const ShardingSpec &spec, Operation *user) {
  if (held[value] == spec)
    return value;
  auto key = std::make_pair(value, Attribute(attributeOf(spec)));
  if (Value known = made.lookup(key))
    return known;
  Operation *source = value.getDefiningOp();
  bool isRemade = source && (isFree(source) || isView(source));
  FailureOr<Value> result =
      isRemade ? remake(source, spec, user) : reshard(value, ShardingSpec(held[value]), spec, user);
  if (succeeded(result))
    made[key] = *result;
  return result;
}

LogicalResult ReshardInserter::useAs(OpOperand &use, const ShardingSpec &spec) {
  Operation *user = use.getOwner();
  FailureOr<Value> value = valueAs(use.get(), spec, user);
  if (failed(value))
    return failure();
  use.set(*value);
  return success();
}

/// `results` are what the annotation says, if there is one.
FailureOr<OpSplit> ReshardInserter::chooseSplit(Operation *op, const ShardingRule &rule,
                                                std::optional<SmallVector<ShardingSpec>> &results) {
  auto operands = llvm::map_to_vector(op->getOperands(), [&](Value v) { return held[v]; });
  auto captures =
      llvm::map_to_vector(rule.captures, [&](const auto &item) { return held[item.first]; });
  if (auto wanted = op->getAttrOfType<ArrayAttr>(attr::captureShardings);
      wanted && wanted.size() == captures.size())
    for (auto [spec, item, capture] : llvm::zip_equal(captures, wanted, rule.captures)) {
      FailureOr<ShardingSpec> read = this->read(op, item, capture.first.getType());
      if (failed(read))
        return failure();
      spec = std::move(*read);
    }
  if (op->hasAttr(attr::shardings)) {
    auto given = specsOf(op, attr::shardings, op->getResultTypes());
    if (failed(given))
      return failure();
    results = std::move(*given);
  }
  if (!results)
    return nearestSplit(op, rule, operands, std::nullopt, captures, meshShape);
  bool isExact = op->hasAttr(attr::useShardings);
  if (isExact) {
    auto given = specsOf(op, attr::useShardings, op->getOperandTypes());
    if (failed(given))
      return failure();
    operands = std::move(*given);
  }
  // A result may be held otherwise than the op makes it, such as a gradient that the
  // update wants split.
  SmallVector<ShardingSpec> made = *results;
  if (op->hasAttr(attr::madeShardings)) {
    auto given = specsOf(op, attr::madeShardings, op->getResultTypes());
    if (failed(given))
      return failure();
    made = std::move(*given);
  }
  llvm::Expected<OpSplit> split = readSplit(rule, operands, made, captures, meshShape);
  if (split)
    return std::move(*split);
  std::string why = llvm::toString(split.takeError());
  if (isExact)
    return op->emitError("no strategy of the op has these shardings: ") << why;
  return nearestSplit(op, rule, operands, ArrayRef<ShardingSpec>(*results), captures, meshShape);
}

LogicalResult ReshardInserter::visit(Operation *op) {
  if (auto reshard = dyn_cast<ReshardOp>(op)) { // There already.
    held[reshard.getResult()] = withoutOnes(reshard.getTo().getSpec(), meshShape);
    return useAs(reshard->getOpOperand(0), withoutOnes(reshard.getFrom().getSpec(), meshShape));
  }
  std::optional<ShardingRule> rule = analysis::getShardingRule(op);
  if (!rule)
    return withCode(op->emitError("has no sharding rule yet"), ErrorCode::UnsupportedOp);
  isFree(op);
  std::optional<SmallVector<ShardingSpec>> results;
  FailureOr<OpSplit> split = chooseSplit(op, *rule, results);
  if (failed(split))
    return failure();
  for (auto [use, spec] : llvm::zip_equal(op->getOpOperands(), split->operands))
    if (failed(useAs(use, spec)))
      return failure();
  setResults(op, split->results);
  if (isControlFlow(op) && failed(visitRegions(op, *rule, *split)))
    return failure();
  if (!results)
    return success();
  // What the op cannot make as its annotation says is made so behind it.
  for (auto [result, made, spec] : llvm::zip_equal(op->getResults(), split->results, *results)) {
    if (made == spec || result.use_empty())
      continue;
    FailureOr<Value> moved = reshard(result, made, spec, op->getNextNode());
    if (failed(moved))
      return failure();
    result.replaceAllUsesExcept(*moved, moved->getDefiningOp());
  }
  return success();
}

/// What the body uses from outside is held as the op's factors say.
LogicalResult ReshardInserter::bringCaptures(Operation *op, const ShardingRule &rule,
                                             const OpSplit &split) {
  llvm::SetVector<Value> captured;
  getUsedValuesDefinedAbove(op->getRegions(), captured);
  for (Value value : captured) {
    ShardingSpec wanted = ShardingSpec::replicated(specRank(value));
    for (auto [capture, spec] : llvm::zip_equal(rule.captures, split.captures))
      if (capture.first == value)
        wanted = spec;
    FailureOr<Value> brought = valueAs(value, wanted, op);
    if (failed(brought))
      return failure();
    if (*brought != value)
      for (Region &region : op->getRegions())
        replaceAllUsesInRegionWith(value, *brought, region);
  }
  return success();
}

/// Values in the body are split by the factors of its op, too.
LogicalResult ReshardInserter::visitRegions(Operation *op, const ShardingRule &rule,
                                            const OpSplit &split) {
  if (failed(bringCaptures(op, rule, split)))
    return failure();
  op->removeAttr(attr::captureShardings);
  analysis::BodyFactors factors = analysis::getBodyFactors(op);
  for (auto [index, region] : llvm::enumerate(op->getRegions())) {
    if (!region.hasOneBlock())
      return op->emitError("has a region of several blocks");
    for (auto [argument, spec] : llvm::zip(region.getArguments(), split.operands))
      held[argument] = spec;
    for (Operation &inner : region.front().without_terminator()) {
      SmallVector<Attribute> specs;
      for (Value result : inner.getResults()) {
        auto it = factors.find(result);
        specs.push_back(attributeOf(it == factors.end() ? ShardingSpec::replicated(specRank(result))
                                                        : specInBody(it->second, split)));
      }
      inner.setAttr(attr::shardings, builder.getArrayAttr(specs));
    }
    if (failed(visitBlock(region.front())))
      return failure();
    bool isCondition = carriesOperands(op) && index == 0;
    Operation *terminator = region.front().getTerminator();
    for (OpOperand &use : terminator->getOpOperands()) {
      ShardingSpec spec = isCondition ? ShardingSpec::replicated(specRank(use.get()))
                                      : split.results[use.getOperandNumber()];
      if (failed(useAs(use, spec)))
        return failure();
    }
  }
  return success();
}

LogicalResult ReshardInserter::visitBlock(Block &block) {
  for (Operation &op : llvm::make_early_inc_range(block.without_terminator()))
    if (failed(visit(&op)))
      return failure();
  return success();
}

LogicalResult ReshardInserter::visitReturn(func::ReturnOp op) {
  SmallVector<DictionaryAttr> resultAttrs;
  DenseMap<int64_t, BlockArgument> carried; // By the result that replaces it.
  for (BlockArgument argument : function.getArguments())
    if (auto result =
            function.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), attr::carriedBy))
      carried.try_emplace(result.getInt(), argument);
  for (OpOperand &use : op->getOpOperands()) {
    unsigned index = use.getOperandNumber();
    Attribute given = function.getResultAttr(index, attr::sharding);
    BlockArgument argument = carried.lookup(index);
    ShardingSpec spec = held[use.get()];
    if (given) {
      FailureOr<ShardingSpec> read = this->read(op, given, use.get().getType());
      if (failed(read))
        return failure();
      spec = std::move(*read);
    } else if (argument && argument.getType() == use.get().getType()) {
      spec = held[argument]; // The next step finds the state as this one did.
    }
    if (failed(useAs(use, spec)))
      return failure();
    NamedAttrList attributes(function.getResultAttrDict(index));
    if (isa<RankedTensorType>(use.get().getType()))
      attributes.set(attr::sharding, attributeOf(spec));
    resultAttrs.push_back(attributes.getDictionary(builder.getContext()));
  }
  function.setAllResultAttrs(resultAttrs);
  return success();
}

LogicalResult ReshardInserter::run() {
  if (!function.getBody().hasOneBlock())
    return function.emitError("expected a function of one block");
  SmallVector<DictionaryAttr> argAttrs;
  for (BlockArgument argument : function.getArguments()) {
    NamedAttrList attributes(function.getArgAttrDict(argument.getArgNumber()));
    FailureOr<ShardingSpec> spec =
        read(function, attributes.get(attr::sharding), argument.getType());
    if (failed(spec))
      return failure();
    held[argument] = *spec;
    if (isa<RankedTensorType>(argument.getType()))
      attributes.set(attr::sharding, attributeOf(*spec));
    argAttrs.push_back(attributes.getDictionary(builder.getContext()));
  }
  function.setAllArgAttrs(argAttrs);
  Block &body = function.getBody().front();
  auto returned = dyn_cast<func::ReturnOp>(body.getTerminator());
  if (!returned)
    return function.emitError("expected `func.return` at the end");
  if (failed(visitBlock(body)) || failed(visitReturn(returned)))
    return failure();
  // What a pin asked for is done. An argument is not returned under the name of a result.
  function.walk([&](Operation *op) {
    if (!op->hasAttr(attr::pin) || op->getNumOperands() != 1)
      return;
    Value value = op->getOperand(0), result = op->getResult(0);
    bool isReturned =
        isa<BlockArgument>(value) && llvm::any_of(result.getUsers(), [](Operation *user) {
          return user->hasTrait<OpTrait::IsTerminator>();
        });
    if (isReturned || held.lookup(value) != held.lookup(result))
      return;
    result.replaceAllUsesWith(value);
    op->erase();
  });
  // What was made anew for every user is not needed itself.
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body)))
    if (isOpTriviallyDead(&op))
      op.erase();
  return success();
}

namespace {

struct InsertReshards : public spmd::impl::InsertReshardsBase<InsertReshards> {
  void runOnOperation() override {
    llvm::DenseMap<Attribute, std::unique_ptr<cost::CostModel>> models;
    llvm::DenseMap<Attribute, std::unique_ptr<ReshardPlanner>> planners;
    auto visit = [&](func::FuncOp function, MeshAttr mesh) -> LogicalResult {
      std::unique_ptr<ReshardPlanner> &planner = planners[mesh];
      if (!planner) {
        llvm::Expected<cost::LogicalMesh> logical = logicalMeshOf(getOperation(), mesh);
        if (!logical)
          return withError(function.emitError(), logical.takeError());
        std::unique_ptr<cost::CostModel> &model = models[mesh];
        model = std::make_unique<cost::CostModel>(std::move(*logical));
        planner = std::make_unique<ReshardPlanner>(*model);
      }
      ReshardInserter inserter(function, mesh, *planner);
      if (failed(inserter.run()))
        return failure();
      numReshards += inserter.numReshards;
      numRemade += inserter.numRemade;
      return success();
    };
    if (failed(forEachShardedFunction(getOperation(), visit)))
      signalPassFailure();
  }
};

} // namespace
