//===- ShardingRule.cpp - how an op's dimensions may be split -------------===//

#include "compiler/Analysis/ShardingRule.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Chlo/ChloOps.h"
#include "dialects/Sdy/SdyOps.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/TypeSwitch.h"

#include "compiler/Analysis/ShardingRuleInterface.cpp.inc"

using namespace alpa;
using namespace alpa::analysis;

llvm::ArrayRef<int64_t> analysis::shapeOf(mlir::Value value) {
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
  rule.factors.push_back({size, kind, Reducer::Sum});
  return rule.factors.size() - 1;
}

unsigned RuleBuilder::reduction(int64_t size, std::optional<Reducer> reducer) {
  unsigned index = factor(size, reducer ? FactorKind::Reduction : FactorKind::Sequential);
  if (reducer)
    rule.factors.back().reducer = *reducer;
  return index;
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

static bool isBoolean(mlir::Type type) { return mlir::getElementTypeOrSelf(type).isInteger(1); }

Reducer analysis::sumOf(mlir::Value value) {
  return isBoolean(value.getType()) ? Reducer::Or : Reducer::Sum;
}

std::optional<Reducer> analysis::reducerOf(mlir::Region &body) {
  if (!body.hasOneBlock() || body.getNumArguments() != 2)
    return std::nullopt;
  mlir::Block &block = body.front();
  mlir::Operation &combine = block.front(), &end = block.back();
  if (combine.getNextNode() != &end || combine.getNumOperands() != 2 ||
      combine.getNumResults() != 1 || end.getNumOperands() != 1 ||
      end.getOperand(0) != combine.getResult(0))
    return std::nullopt;
  mlir::Value left = combine.getOperand(0), right = combine.getOperand(1);
  mlir::Value first = body.getArgument(0), second = body.getArgument(1);
  if (!(left == first && right == second) && !(left == second && right == first))
    return std::nullopt;
  bool isBool = isBoolean(first.getType());
  namespace hlo = mlir::stablehlo;
  // Of bits of wider integers no collective makes an and or an or.
  return llvm::TypeSwitch<mlir::Operation *, std::optional<Reducer>>(&combine)
      .Case<hlo::AddOp>([&](auto) { return isBool ? Reducer::Or : Reducer::Sum; })
      .Case<hlo::MulOp>([&](auto) { return isBool ? Reducer::And : Reducer::Product; })
      .Case<hlo::MaxOp>([&](auto) { return isBool ? Reducer::Or : Reducer::Maximum; })
      .Case<hlo::MinOp>([&](auto) { return isBool ? Reducer::And : Reducer::Minimum; })
      .Case<hlo::OrOp>([&](auto) { return isBool ? std::optional(Reducer::Or) : std::nullopt; })
      .Case<hlo::AndOp>([&](auto) { return isBool ? std::optional(Reducer::And) : std::nullopt; })
      .Default([](auto) { return std::nullopt; });
}

ShardingRule analysis::untouchedRule(mlir::Operation *op,
                                     llvm::function_ref<bool(unsigned)> isTouched) {
  RuleBuilder builder(op);
  size_t rank = shapeOf(op->getResult(0)).size();
  for (unsigned dim = 0; dim < rank; ++dim) {
    FactorKind kind = isTouched(dim) ? FactorKind::Sequential : FactorKind::Parallel;
    unsigned factor = builder.factor(shapeOf(op->getResult(0))[dim], kind);
    for (unsigned i = 0; i < op->getNumOperands(); ++i)
      if (shapeOf(op->getOperand(i)).size() == rank)
        builder.operand(i, dim, {factor});
    for (unsigned i = 0; i < op->getNumResults(); ++i)
      if (shapeOf(op->getResult(i)).size() == rank)
        builder.result(i, dim, {factor});
  }
  return builder.rule;
}

ShardingRule analysis::innermostRule(mlir::Operation *op, size_t inner) {
  size_t rank = shapeOf(op->getResult(0)).size();
  return untouchedRule(op, [&](unsigned dim) { return dim + inner >= rank; });
}

bool analysis::holds(const TensorFactors &tensor, unsigned factor) {
  return llvm::any_of(tensor,
                      [&](const DimFactors &dim) { return llvm::is_contained(dim, factor); });
}

bool ShardingRule::isReduced(size_t result, unsigned factor) const {
  return factors[factor].kind == FactorKind::Reduction && !holds(results[result], factor);
}

bool ShardingRule::isMixed(unsigned factor) const {
  return factors[factor].kind == FactorKind::Reduction &&
         llvm::any_of(results, [&](const TensorFactors &tensor) { return holds(tensor, factor); });
}

std::optional<ShardingRule> analysis::getShardingRule(mlir::Operation *op) {
  if (auto splits = llvm::dyn_cast<ShardingRuleInterface>(op))
    return splits.getShardingRule();
  return std::nullopt;
}

void analysis::registerShardingRules(mlir::DialectRegistry &registry) {
  registry.addExtension(+[](mlir::MLIRContext *context, mlir::stablehlo::StablehloDialect *) {
    attachElementwiseRules(*context);
    attachShapeRules(*context);
    attachSliceRules(*context);
    attachContractionRules(*context);
    attachReductionRules(*context);
    attachIndexingRules(*context);
    attachLoopRules(*context);
    attachCallRules(*context);
  });
  registry.addExtension(
      +[](mlir::MLIRContext *context, mlir::chlo::ChloDialect *) { attachChloRules(*context); });
  registry.addExtension(+[](mlir::MLIRContext *context, AlpaDialect *) {
    attachGroupedRules(*context);
    attachMapRules(*context);
  });
  registry.addExtension(
      +[](mlir::MLIRContext *context, mlir::sdy::SdyDialect *) { attachSdyRules(*context); });
}
