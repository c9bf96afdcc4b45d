//===- ShapeRules.cpp - broadcast, transpose, reshape ---------------------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include <numeric>

using namespace alpa;
using namespace alpa::analysis;
namespace hlo = mlir::stablehlo;

static ShardingRule broadcastInDim(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto broadcast = llvm::cast<hlo::BroadcastInDimOp>(op);
  llvm::ArrayRef<int64_t> from = shapeOf(op->getOperand(0)), to = shapeOf(op->getResult(0));
  for (auto [dim, size] : llvm::enumerate(to))
    builder.result(0, dim, {builder.factor(size)});
  // A dimension of size 1 that grows is repeated on every device.
  for (auto [dim, target] : llvm::enumerate(broadcast.getBroadcastDimensions()))
    if (from[dim] == to[target])
      builder.operand(0, dim, builder.rule.results[0][target]);
  return builder.rule;
}

static ShardingRule transpose(mlir::Operation *op) {
  RuleBuilder builder(op);
  for (auto [dim, source] : llvm::enumerate(llvm::cast<hlo::TransposeOp>(op).getPermutation())) {
    unsigned factor = builder.factor(shapeOf(op->getResult(0))[dim]);
    builder.operand(0, source, {factor}).result(0, dim, {factor});
  }
  return builder.rule;
}

/// Both shapes are cut, from the major side, into the coarsest factors that they
/// share: [6, 4] -> [2, 12] has the factors 2, 3, 4. Where neither of two sizes
/// divides the other, they share their greatest common divisor, and what is left of
/// both dimensions and of those behind is one unsplit factor, up to where both
/// shapes have the same number of elements behind them.
static ShardingRule reshape(mlir::Operation *op) {
  RuleBuilder builder(op);
  llvm::ArrayRef<int64_t> from = shapeOf(op->getOperand(0)), to = shapeOf(op->getResult(0));
  llvm::SmallVector<DimFactors> fromFactors(from.size()), toFactors(to.size());
  size_t i = 0, j = 0;
  int64_t leftFrom = 1, leftTo = 1;
  while (true) {
    while (leftFrom == 1 && i < from.size())
      leftFrom = from[i++];
    while (leftTo == 1 && j < to.size())
      leftTo = to[j++];
    if (leftFrom <= 1 || leftTo <= 1)
      break; // The end, or a tensor without elements.
    int64_t size = std::gcd(leftFrom, leftTo);
    if (size > 1) {
      unsigned factor = builder.factor(size);
      fromFactors[i - 1].push_back(factor);
      toFactors[j - 1].push_back(factor);
      leftFrom /= size;
      leftTo /= size;
    }
    if (leftFrom == 1 || leftTo == 1)
      continue;
    unsigned whole = builder.factor(leftFrom, FactorKind::Sequential);
    fromFactors[i - 1].push_back(whole);
    toFactors[j - 1].push_back(whole);
    while (leftFrom != leftTo) {
      if (leftFrom < leftTo) {
        leftFrom *= from[i];
        fromFactors[i++].push_back(whole);
      } else {
        leftTo *= to[j];
        toFactors[j++].push_back(whole);
      }
    }
    leftFrom = leftTo = 1;
  }
  for (auto [dim, factors] : llvm::enumerate(fromFactors))
    builder.operand(0, dim, factors);
  for (auto [dim, factors] : llvm::enumerate(toFactors))
    builder.result(0, dim, factors);
  return builder.rule;
}

void analysis::attachShapeRules(mlir::MLIRContext &context) {
  attachRule<broadcastInDim, hlo::BroadcastInDimOp>(context);
  attachRule<transpose, hlo::TransposeOp>(context);
  attachRule<reshape, hlo::ReshapeOp>(context);
}
