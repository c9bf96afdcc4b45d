//===- DeferSums.cpp - terms of sums get a place in their types -----------===//

#include "compiler/Sharding/Problem/DeferredSum.h"
#include "compiler/Spmd/Passes.h"
#include "compiler/Spmd/SumTerms.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Matchers.h"

namespace alpa {
#define GEN_PASS_DEF_DEFERSUMS
#include "compiler/Spmd/Passes.h.inc"
} // namespace alpa

using namespace alpa;
using namespace mlir;
namespace hlo = mlir::stablehlo;

namespace {

RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

class SumDeferrer {
public:
  SumDeferrer(func::FuncOp function, function_ref<MeshAttr(Operation *)> meshOf)
      : function(function), meshOf(meshOf), builder(function.getContext()) {}

  LogicalResult run();
  unsigned numDeferred = 0, numSums = 0;

private:
  LogicalResult visit(Operation *op, const ShardingSpec &spec);
  FailureOr<Terms> passOn(Operation *op, unsigned operand, const ShardingSpec &spec);
  Value uniform(Operation *user, Value value, const Terms &like, ShardingAttr sharding);
  Value sum(Operation *op, const Terms &terms, ShardingAttr sharding);
  ShardingAttr attributeOf(const ShardingSpec &spec) {
    return ShardingAttr::get(builder.getContext(), spec);
  }

  func::FuncOp function;
  function_ref<MeshAttr(Operation *)> meshOf;
  OpBuilder builder;
  DenseMap<Value, Terms> terms;
  SmallVector<Operation *> replaced;
};

} // namespace

/// The same number for every term.
Value SumDeferrer::uniform(Operation *user, Value value, const Terms &like, ShardingAttr sharding) {
  SmallVector<int64_t> shape(like.sizes);
  llvm::append_range(shape, typeOf(value).getShape());
  DenseElementsAttr constant;
  if (matchPattern(value, m_Constant(&constant))) {
    auto made = hlo::ConstantOp::create(
        builder, user->getLoc(),
        cast<ElementsAttr>(constant.resizeSplat(typeOf(value).clone(shape))));
    return placeLike(made, user, sharding.getSpec())->getResult(0);
  }
  auto broadcast = value.getDefiningOp<hlo::BroadcastInDimOp>();
  auto dims = llvm::map_to_vector(broadcast.getBroadcastDimensions(),
                                  [&](int64_t dim) { return dim + like.rank(); });
  Operation *made = builder.clone(*broadcast);
  made->getResult(0).setType(typeOf(value).clone(shape));
  cast<hlo::BroadcastInDimOp>(made).setBroadcastDimensions(dims);
  made->setAttr(attr::shardings, builder.getArrayAttr(sharding));
  made->removeAttr(attr::useShardings);
  return made->getResult(0);
}

FailureOr<Terms> SumDeferrer::passOn(Operation *op, unsigned operand, const ShardingSpec &spec) {
  Terms made = terms[op->getOperand(operand)];
  ShardingSpec source = usedSpec(op, operand);
  if (source.partial != spec.partial)
    return op->emitError("alpa_defer_sums_c3: takes terms of a sum as ")
           << source.str() << " and gives " << spec.str();
  ShardingSpec madeSpec = withLeading(made.axes, spec);
  SmallVector<int64_t> shape(made.sizes);
  llvm::append_range(shape, typeOf(op->getResult(0)).getShape());
  SmallVector<Value> operands;
  SmallVector<Attribute> uses;
  for (auto [i, value] : llvm::enumerate(op->getOperands())) {
    if (isa<hlo::ReduceOp>(op) && i != operand) { // What is added to nothing.
      operands.push_back(value);
      uses.push_back(attributeOf(usedSpec(op, i)));
      continue;
    }
    ShardingAttr use = attributeOf(withLeading(made.axes, usedSpec(op, i)));
    operands.push_back(i == operand ? made.value : uniform(op, value, made, use));
    uses.push_back(use);
  }
  Operation *clone = cloneAs(builder, op, operands, shape, madeSpec);
  clone->setAttr(attr::useShardings, builder.getArrayAttr(uses));
  if (auto transpose = dyn_cast<hlo::TransposeOp>(clone)) {
    auto permutation = llvm::to_vector(llvm::seq<int64_t>(0, made.rank()));
    for (int64_t dim : transpose.getPermutation())
      permutation.push_back(dim + made.rank());
    transpose.setPermutation(permutation);
  }
  if (auto broadcast = dyn_cast<hlo::BroadcastInDimOp>(clone)) {
    auto dims = llvm::to_vector(llvm::seq<int64_t>(0, made.rank()));
    for (int64_t dim : broadcast.getBroadcastDimensions())
      dims.push_back(dim + made.rank());
    broadcast.setBroadcastDimensions(dims);
  }
  if (auto reduceOp = dyn_cast<hlo::ReduceOp>(clone))
    reduceOp.setDimensions(llvm::map_to_vector(reduceOp.getDimensions(),
                                               [&](int64_t dim) { return dim + made.rank(); }));
  made.value = clone->getResult(0);
  return made;
}

Value SumDeferrer::sum(Operation *op, const Terms &terms, ShardingAttr sharding) {
  Location loc = op->getLoc();
  RankedTensorType type = typeOf(op->getResult(0));
  auto scalar = RankedTensorType::get({}, type.getElementType());
  StringAttr update = builder.getStringAttr("update");
  Operation *zero =
      hlo::ConstantOp::create(builder, loc, cast<ElementsAttr>(builder.getZeroAttr(scalar)));
  placeLike(zero, op, ShardingSpec())->setAttr(attr::phase, update);
  OperationState state(loc, hlo::ReduceOp::getOperationName());
  state.addOperands({terms.value, zero->getResult(0)});
  state.addTypes(type);
  state.addAttribute("dimensions", builder.getDenseI64ArrayAttr(
                                       llvm::to_vector(llvm::seq<int64_t>(0, terms.rank()))));
  state.addRegion();
  Operation *made = builder.create(state);
  placeLike(made, op, sharding.getSpec())->setAttr(attr::phase, update);
  made->removeAttr(attr::eqn);
  OpBuilder::InsertionGuard guard(builder);
  Block &body = made->getRegion(0).emplaceBlock();
  body.addArguments({scalar, scalar}, {loc, loc});
  builder.setInsertionPointToEnd(&body);
  Value added = hlo::AddOp::create(builder, loc, body.getArgument(0), body.getArgument(1));
  OperationState end(loc, hlo::ReturnOp::getOperationName());
  end.addOperands(added);
  builder.create(end);
  return made->getResult(0);
}

LogicalResult SumDeferrer::visit(Operation *op, const ShardingSpec &spec) {
  int link = linkOperand(op);
  bool isLink = link >= 0 && terms.contains(op->getOperand(link));
  std::optional<ShardingRule> rule = getShardingRule(op);
  if (!isLink && (!rule || deferrableFactors(op, *rule).empty()))
    return op->emitError("alpa_defer_sums_c1: the result is ")
           << spec.str() << ", but the op neither sums over devices nor passes terms on";
  if (!op->getAttrOfType<ArrayAttr>(attr::useShardings))
    return op->emitError("alpa_defer_sums_c1: expected `")
           << attr::useShardings << "` on an op whose result is " << spec.str();
  builder.setInsertionPoint(op);
  FailureOr<Terms> made =
      isLink ? passOn(op, link, spec) : makeTerms(builder, op, spec, meshOf(op));
  if (failed(made))
    return failure();
  numDeferred += !isLink;
  replaced.push_back(op);
  Value value = op->getResult(0);
  if (auto sharding = op->getAttrOfType<ShardingAttr>(attr::summedAs)) {
    value.replaceAllUsesWith(sum(op, *made, sharding));
    ++numSums;
    return success();
  }
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    auto shardings = user->getAttrOfType<ArrayAttr>(attr::shardings);
    if (linkOperand(user) != static_cast<int>(use.getOperandNumber()) || !shardings ||
        cast<ShardingAttr>(shardings[0]).getSpec().partial != spec.partial)
      return user->emitError("alpa_defer_sums_c3: uses terms of a sum (")
             << spec.str() << ") as if they were the sum";
  }
  terms[value] = std::move(*made);
  return success();
}

LogicalResult SumDeferrer::run() {
  for (Operation &op : llvm::make_early_inc_range(function.front().without_terminator())) {
    auto shardings = op.getAttrOfType<ArrayAttr>(attr::shardings);
    if (!shardings)
      continue;
    bool isPartial = llvm::any_of(shardings, [](Attribute item) {
      return !cast<ShardingAttr>(item).getSpec().partial.empty();
    });
    if (!isPartial)
      continue;
    if (op.getNumResults() != 1)
      return op.emitError("alpa_defer_sums_c1: an op of several results keeps no terms of a sum");
    if (!meshOf(&op))
      return op.emitError("has no mesh; run alpa-search-stages or alpa-solve-sharding first");
    if (failed(visit(&op, cast<ShardingAttr>(shardings[0]).getSpec())))
      return failure();
  }
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
  return success();
}

namespace {

struct DeferSums : public alpa::impl::DeferSumsBase<DeferSums> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto whole = module->getAttrOfType<MeshAttr>(attr::mesh);
    auto stages = module->getAttrOfType<ArrayAttr>(attr::stages);
    auto meshOf = [&](Operation *op) -> MeshAttr {
      auto stage = op->getAttrOfType<IntegerAttr>(attr::stage);
      if (!stage || !stages || stage.getInt() >= static_cast<int64_t>(stages.size()))
        return whole;
      return cast<StageAttr>(stages[stage.getInt()]).getMesh();
    };
    for (auto function : module.getOps<func::FuncOp>()) {
      if (function.isExternal() || !llvm::hasSingleElement(function.getBody()))
        continue;
      SumDeferrer deferrer(function, meshOf);
      if (failed(deferrer.run()))
        return signalPassFailure();
      numDeferred += deferrer.numDeferred;
      numSums += deferrer.numSums;
    }
  }
};

} // namespace
