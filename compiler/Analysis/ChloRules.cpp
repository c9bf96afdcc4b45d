//===- ChloRules.cpp - functions beside StableHLO -------------------------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Chlo/ChloOps.h"

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir::chlo;

static ShardingRule topK(mlir::Operation *op) { return innermostRule(op, 1); }

/// A dot of which one dimension is cut into groups of run-time sizes: rows of lhs
/// with a right side for each group, a contraction with a result for each group, or
/// a batch. Of rows and contractions a device takes a part, in which it counts how many of
/// each group there are; the lowering to collectives does that. Groups stay whole, and so
/// does a batch.
static ShardingRule raggedDot(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto numbers = llvm::cast<RaggedDotOp>(op).getRaggedDotDimensionNumbers();
  llvm::ArrayRef<int64_t> lhs = shapeOf(op->getOperand(0)), rhs = shapeOf(op->getOperand(1)),
                          result = shapeOf(op->getResult(0));
  int64_t ragged = numbers.getLhsRaggedDimensions()[0];
  // The result: groups if they are contracted, batches, rows, columns.
  llvm::SmallVector<unsigned> resultFactors;
  if (llvm::is_contained(numbers.getLhsContractingDimensions(), ragged) && !result.empty())
    resultFactors.push_back(builder.factor(result[0], FactorKind::Sequential));
  for (auto [left, right] :
       llvm::zip_equal(numbers.getLhsBatchingDimensions(), numbers.getRhsBatchingDimensions())) {
    unsigned factor =
        builder.factor(lhs[left], left == ragged ? FactorKind::Sequential : FactorKind::Parallel);
    builder.operand(0, left, {factor}).operand(1, right, {factor});
    resultFactors.push_back(factor);
  }
  for (int64_t dim = 0; dim < static_cast<int64_t>(lhs.size()); ++dim)
    if (!llvm::is_contained(numbers.getLhsBatchingDimensions(), dim) &&
        !llvm::is_contained(numbers.getLhsContractingDimensions(), dim)) {
      resultFactors.push_back(builder.factor(lhs[dim]));
      builder.operand(0, dim, {resultFactors.back()});
    }
  for (int64_t dim = 0; dim < static_cast<int64_t>(rhs.size()); ++dim)
    if (!llvm::is_contained(numbers.getRhsBatchingDimensions(), dim) &&
        !llvm::is_contained(numbers.getRhsContractingDimensions(), dim) &&
        !llvm::is_contained(numbers.getRhsGroupDimensions(), dim)) {
      resultFactors.push_back(builder.factor(rhs[dim]));
      builder.operand(1, dim, {resultFactors.back()});
    }
  for (auto [left, right] : llvm::zip_equal(numbers.getLhsContractingDimensions(),
                                            numbers.getRhsContractingDimensions())) {
    unsigned factor = builder.reduction(lhs[left], sumOf(op->getResult(0)));
    builder.operand(0, left, {factor}).operand(1, right, {factor});
  }
  // Sizes of groups are one list for all batches, or one for each: those stay whole.
  bool fits = resultFactors.size() == result.size() && shapeOf(op->getOperand(2)).size() == 1;
  for (auto [dim, factor] : llvm::enumerate(resultFactors)) {
    fits = fits && builder.rule.factors[factor].size == result[dim];
    if (fits)
      builder.result(0, dim, {factor});
  }
  if (!fits)
    return RuleBuilder(op).rule;
  builder.rule.heavy = true;
  return builder.rule;
}

void analysis::attachChloRules(mlir::MLIRContext &context) {
  attachRule<elementwiseRule, AcosOp, AcoshOp, AsinAcosKernelOp, AsinOp, AsinhOp, AtanOp, AtanhOp,
             BesselI1eOp, ConjOp, CoshOp, DigammaOp, ErfInvOp, ErfOp, ErfcOp, IsInfOp, IsNegInfOp,
             IsPosInfOp, LgammaOp, MulhiOp, NextAfterOp, PolygammaOp, SinhOp, SquareOp, TanOp,
             ZetaOp>(context);
  attachRule<topK, TopKOp>(context);
  attachRule<raggedDot, RaggedDotOp>(context);
}
