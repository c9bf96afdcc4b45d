//===- TestApplyStrategies.cpp - every strategy of one op, for tests ------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Sharding/Problem/Strategies.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "test/passes/Passes.h"

namespace alpa {
#define GEN_PASS_DEF_TESTAPPLYSTRATEGIES
#include "test/passes/Passes.h.inc"
} // namespace alpa

using namespace alpa;
using namespace mlir;
using analysis::ShardingRule;
using sharding::Strategy;

namespace {

struct TestApplyStrategies : public alpa::impl::TestApplyStrategiesBase<TestApplyStrategies> {
  using TestApplyStrategiesBase::TestApplyStrategiesBase;

  void runOnOperation() override;
  std::vector<Strategy> strategiesOf(Operation *op, const ShardingRule &rule) const;
  void annotate(func::FuncOp main, const ShardingRule &rule, const Strategy &strategy);
  MeshAttr mesh();
};

} // namespace

/// All that a search may choose, and all that an op which follows another, or one
/// in a body, may be made to do: every assignment of axes, heavy op or not.
std::vector<Strategy> TestApplyStrategies::strategiesOf(Operation *op,
                                                        const ShardingRule &rule) const {
  llvm::ArrayRef<int64_t> resultShape;
  if (op->getNumResults())
    resultShape = analysis::shapeOf(op->getResult(0));
  ShardingRule light = rule;
  light.heavy = false;
  std::vector<Strategy> strategies = sharding::enumerateStrategies(light, resultShape, meshShape);
  for (const Strategy &strategy : sharding::enumerateStrategies(rule, resultShape, meshShape))
    if (llvm::none_of(strategies, [&](const Strategy &known) {
          return known.axes == strategy.axes && known.scatter == strategy.scatter;
        }))
      strategies.push_back(strategy);
  return strategies;
}

MeshAttr TestApplyStrategies::mesh() {
  int64_t size = 1;
  for (int64_t devices : meshShape)
    size *= devices;
  return MeshAttr::get(&getContext(), meshShape, llvm::to_vector(llvm::seq<int64_t>(0, size)));
}

void TestApplyStrategies::annotate(func::FuncOp main, const ShardingRule &rule,
                                   const Strategy &strategy) {
  sharding::RuleProjection projection(rule, meshShape);
  Operation *end = main.getBody().front().getTerminator(), *op = end->getPrevNode();
  llvm::DenseMap<Value, Attribute> held;
  auto attrOf = [&](size_t rank, PackedSpec spec) -> Attribute {
    return ShardingAttr::get(&getContext(), spec.unpack(rank, meshShape.size()));
  };
  auto specOf = [&](Value value) {
    auto it = held.find(value);
    return it == held.end() ? attrOf(analysis::shapeOf(value).size(), {}) : it->second;
  };
  llvm::SmallVector<Attribute> uses, captures, results;
  for (auto [value, tensor] : llvm::zip_equal(op->getOperands(), rule.operands)) {
    uses.push_back(attrOf(tensor.size(), projection.toSpec(tensor, strategy.axes)));
    held.try_emplace(value, uses.back());
  }
  for (const auto &[value, tensor] : rule.captures) {
    captures.push_back(attrOf(tensor.size(), projection.toSpec(tensor, strategy.axes)));
    held.try_emplace(value, captures.back());
  }
  for (auto [i, value, tensor] : llvm::enumerate(op->getResults(), rule.results)) {
    PackedSpec spec = projection.toSpec(tensor, strategy.axes);
    results.push_back(
        attrOf(tensor.size(), i == 0 ? sharding::scatteredSpec(spec, strategy) : spec));
    held[value] = results.back();
  }

  Builder builder(&getContext());
  for (BlockArgument argument : main.getArguments())
    main.setArgAttr(argument.getArgNumber(), attr::sharding, specOf(argument));
  for (OpOperand &result : end->getOpOperands())
    main.setResultAttr(result.getOperandNumber(), attr::sharding, specOf(result.get()));
  for (Operation &other : main.getBody().front().without_terminator())
    other.setAttr(attr::shardings,
                  builder.getArrayAttr(llvm::map_to_vector(other.getResults(), specOf)));
  op->setAttr(attr::useShardings, builder.getArrayAttr(uses));
  if (!captures.empty())
    op->setAttr(attr::captureShardings, builder.getArrayAttr(captures));
}

void TestApplyStrategies::runOnOperation() {
  ModuleOp module = getOperation();
  auto main = module.lookupSymbol<func::FuncOp>("main");
  if (!main || main.isExternal() || !main.getBody().front().getTerminator()->getPrevNode()) {
    module.emitError("expected a function @main with an op in its body");
    return signalPassFailure();
  }
  Operation *op = main.getBody().front().getTerminator()->getPrevNode();
  std::optional<ShardingRule> rule = analysis::getShardingRule(op);
  if (!rule) {
    op->emitOpError("has no sharding rule");
    return signalPassFailure();
  }
  auto builder = OpBuilder::atBlockEnd(module.getBody());
  for (auto [i, strategy] : llvm::enumerate(strategiesOf(op, *rule))) {
    auto part = ModuleOp::create(builder, op->getLoc(), "strategy_" + std::to_string(i));
    part->setAttr(attr::mesh, mesh());
    func::FuncOp copy = main.clone();
    part.push_back(copy);
    // The copy's op has values of its own, which the rule's captures name.
    Operation *copied = copy.getBody().front().getTerminator()->getPrevNode();
    annotate(copy, *analysis::getShardingRule(copied), strategy);
  }
  main.erase();
}
