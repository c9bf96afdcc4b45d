//===- GroupedRules.cpp - products of rows with weights of their group ----===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"

using namespace alpa;
using namespace alpa::analysis;

/// What a device knows of some groups only are the rows of these, and zeros.
static ShardingRule groupedDot(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto contracting = static_cast<int64_t>(llvm::cast<GroupedDotOp>(op).getContracting());
  llvm::ArrayRef<int64_t> rows = shapeOf(op->getOperand(0)), weights = shapeOf(op->getOperand(1));
  unsigned row = builder.factor(rows[0]), column = builder.factor(weights[3 - contracting]);
  unsigned group = builder.reduction(weights[0], sumOf(op->getResult(0)));
  unsigned inner = builder.reduction(rows[1], sumOf(op->getResult(0)));
  builder.operand(0, 0, {row}).operand(0, 1, {inner});
  builder.operand(1, 0, {group}).operand(1, contracting, {inner});
  builder.operand(1, 3 - contracting, {column}).operand(2, 0, {row});
  builder.result(0, 0, {row}).result(0, 1, {column});
  builder.rule.heavy = true;
  return builder.rule;
}

static ShardingRule groupedSum(mlir::Operation *op) {
  RuleBuilder builder(op);
  llvm::ArrayRef<int64_t> lhs = shapeOf(op->getOperand(0)), result = shapeOf(op->getResult(0));
  auto batches = static_cast<int64_t>(lhs.size()) - 2;
  for (int64_t dim = 0; dim < batches; ++dim) {
    unsigned batch = builder.factor(lhs[dim]);
    builder.operand(0, dim, {batch}).operand(1, dim, {batch}).operand(2, dim, {batch});
    builder.result(0, dim, {batch});
  }
  unsigned group = builder.factor(result[batches]), left = builder.factor(result[batches + 1]);
  unsigned right = builder.factor(result[batches + 2]);
  unsigned row = builder.reduction(lhs[batches], sumOf(op->getResult(0)));
  builder.operand(0, batches, {row}).operand(0, batches + 1, {left});
  builder.operand(1, batches, {row}).operand(1, batches + 1, {right}).operand(2, batches, {row});
  builder.result(0, batches, {group}).result(0, batches + 1, {left});
  builder.result(0, batches + 2, {right});
  builder.rule.heavy = true;
  return builder.rule;
}

void analysis::attachGroupedRules(mlir::MLIRContext &context) {
  attachRule<groupedDot, GroupedDotOp>(context);
  attachRule<groupedSum, GroupedSumOp>(context);
}
