//===- ShardingRule.cpp - how an op's dimensions may be split -------------===//

#include "compiler/Analysis/ShardingRule.h"

#include "compiler/Analysis/RuleBuilder.h"

using namespace alpa;

llvm::ArrayRef<int64_t> alpa::shapeOf(mlir::Value value) {
  auto type = llvm::dyn_cast<mlir::RankedTensorType>(value.getType());
  return type ? type.getShape() : llvm::ArrayRef<int64_t>();
}

RuleBuilder::RuleBuilder(mlir::Operation *op) : op(op) {
  for (mlir::Value operand : op->getOperands())
    rule.operands.emplace_back(shapeOf(operand).size());
  for (mlir::Value result : op->getResults())
    rule.results.emplace_back(shapeOf(result).size());
}

unsigned RuleBuilder::factor(int64_t size, FactorKind kind) {
  rule.factors.push_back({size, kind});
  return rule.factors.size() - 1;
}

/// Factors of size 1 split nothing, and would hide the factor that they precede.
static DimFactors withoutOnes(const ShardingRule &rule, const DimFactors &factors) {
  DimFactors kept;
  for (unsigned factor : factors)
    if (factors.size() == 1 || rule.factors[factor].size != 1)
      kept.push_back(factor);
  return kept;
}

RuleBuilder &RuleBuilder::operand(unsigned index, int64_t dim, DimFactors factors) {
  rule.operands[index][dim] = withoutOnes(rule, factors);
  return *this;
}

RuleBuilder &RuleBuilder::result(unsigned index, int64_t dim, DimFactors factors) {
  rule.results[index][dim] = withoutOnes(rule, factors);
  return *this;
}

static const RuleTable &ruleTable() {
  static const RuleTable table = [] {
    RuleTable rules;
    addElementwiseRules(rules);
    addShapeRules(rules);
    addSliceRules(rules);
    addContractionRules(rules);
    addReductionRules(rules);
    addIndexingRules(rules);
    addLoopRules(rules);
    return rules;
  }();
  return table;
}

std::optional<ShardingRule> alpa::getShardingRule(mlir::Operation *op) {
  auto it = ruleTable().find(op->getName().getStringRef());
  if (it == ruleTable().end())
    return std::nullopt;
  return it->second(op);
}
