//===- BlockScaledDot.cpp - products of blocks with scales ----------------===//

#include "compiler/Analysis/Calls/BlockScaledDot.h"

#include "compiler/Analysis/RuleBuilder.h"

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;
namespace hlo = mlir::stablehlo;

std::optional<BlockScaledDot> BlockScaledDot::read(Operation *op) {
  auto custom = dyn_cast<hlo::CustomCallOp>(op);
  if (!custom || custom.getCallTargetName() != "__op$block_scaled_dot" ||
      custom.getHasSideEffect() || custom->getNumOperands() != 4 || custom->getNumResults() != 1)
    return std::nullopt;
  for (Type type : llvm::concat<const Type>(op->getOperandTypes(), op->getResultTypes())) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor || !tensor.hasStaticShape() || tensor.getRank() != 3 ||
        !isa<FloatType>(tensor.getElementType()))
      return std::nullopt;
  }
  llvm::ArrayRef<int64_t> lhs = shapeOf(op->getOperand(0)), rhs = shapeOf(op->getOperand(1)),
                          lhsScales = shapeOf(op->getOperand(2)),
                          rhsScales = shapeOf(op->getOperand(3)), out = shapeOf(op->getResult(0));
  int64_t blocks = lhsScales[2];
  if (lhs[0] != rhs[0] || lhs[2] != rhs[2] || blocks < 1 || lhs[2] % blocks != 0 ||
      lhsScales.take_front(2) != lhs.take_front(2) ||
      rhsScales.take_front(2) != rhs.take_front(2) || rhsScales[2] != blocks || out[0] != lhs[0] ||
      out[1] != lhs[1] || out[2] != rhs[1])
    return std::nullopt;
  return BlockScaledDot{custom, blocks};
}

ShardingRule BlockScaledDot::rule() const {
  RuleBuilder builder(op);
  hlo::CustomCallOp call = op;
  llvm::ArrayRef<int64_t> lhs = shapeOf(call->getOperand(0)), rhs = shapeOf(call->getOperand(1));
  unsigned batch = builder.factor(lhs[0]), row = builder.factor(lhs[1]),
           column = builder.factor(rhs[1]),
           block = builder.reduction(blocks, sumOf(call->getResult(0))),
           within = builder.factor(lhs[2] / blocks, FactorKind::Sequential);
  for (auto [operand, side] : {std::pair(0u, row), {1u, column}, {2u, row}, {3u, column}}) {
    DimFactors last = operand < 2 ? DimFactors{block, within} : DimFactors{block};
    builder.operand(operand, 0, {batch}).operand(operand, 1, {side}).operand(operand, 2, last);
  }
  builder.result(0, 0, {batch}).result(0, 1, {row}).result(0, 2, {column});
  builder.rule.heavy = true;
  return builder.rule;
}

double BlockScaledDot::flops() const {
  hlo::CustomCallOp call = op;
  double flops = 2 * static_cast<double>(shapeOf(call->getOperand(0))[2]);
  for (int64_t size : shapeOf(call->getResult(0)))
    flops *= static_cast<double>(size);
  return flops;
}
