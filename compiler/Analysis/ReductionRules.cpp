//===- ReductionRules.cpp - reductions over dimensions and windows --------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/StableHLO/StableHLOOps.h"

using namespace alpa;
namespace hlo = mlir::stablehlo;

/// Whether partial results of parts can be combined by one collective: the body
/// is a single add, multiply, minimum, maximum, and, or or xor.
static bool isCollective(mlir::Region &body) {
  if (!body.hasOneBlock())
    return false;
  mlir::Block &block = body.front();
  if (llvm::range_size(block) != 2 || block.front().getNumOperands() != 2 ||
      block.front().getOperand(0) == block.front().getOperand(1))
    return false;
  return llvm::is_contained({"stablehlo.add", "stablehlo.multiply", "stablehlo.minimum",
                             "stablehlo.maximum", "stablehlo.and", "stablehlo.or"},
                            block.front().getName().getStringRef());
}

/// Inputs, then one initial value each.
static std::optional<ShardingRule> reduce(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto dimensions = llvm::cast<hlo::ReduceOp>(op).getDimensions();
  bool isSum = op->getNumResults() == 1 && isCollective(op->getRegion(0));
  FactorKind kind = isSum ? FactorKind::Reduction : FactorKind::Sequential;
  unsigned inputs = op->getNumResults();
  int64_t resultDim = 0;
  for (auto [dim, size] : llvm::enumerate(shapeOf(op->getOperand(0)))) {
    bool isReduced = llvm::is_contained(dimensions, static_cast<int64_t>(dim));
    unsigned factor = builder.factor(size, isReduced ? kind : FactorKind::Parallel);
    for (unsigned i = 0; i < inputs; ++i) {
      builder.operand(i, dim, {factor});
      if (!isReduced)
        builder.result(i, resultDim, {factor});
    }
    resultDim += !isReduced;
  }
  return builder.rule;
}

/// Dimensions of window size 1 that are neither padded nor strided are split.
template <typename Windowed> static llvm::SmallVector<bool> slidingDims(Windowed op, size_t rank) {
  llvm::SmallVector<bool> slides(rank, false);
  auto mark = [&](auto values, int64_t neutral) {
    if (values)
      for (auto [dim, value] : llvm::enumerate(*values))
        slides[dim] |= value != neutral;
  };
  mark(std::optional(op.getWindowDimensions()), 1);
  mark(op.getWindowStrides(), 1);
  if (auto padding = op.getPadding())
    for (auto [i, value] : llvm::enumerate(padding->template getValues<int64_t>()))
      slides[i / 2] |= value != 0;
  return slides;
}

static std::optional<ShardingRule> reduceWindow(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto window = llvm::cast<hlo::ReduceWindowOp>(op);
  llvm::ArrayRef<int64_t> in = shapeOf(op->getOperand(0)), out = shapeOf(op->getResult(0));
  llvm::SmallVector<bool> slides = slidingDims(window, in.size());
  for (unsigned dim = 0; dim < in.size(); ++dim) {
    bool isWindow = slides[dim] || in[dim] != out[dim];
    unsigned factor = builder.factor(in[dim], isWindow ? FactorKind::Window : FactorKind::Parallel);
    for (unsigned i = 0; i < op->getNumResults(); ++i)
      builder.operand(i, dim, {factor}).result(i, dim, {factor});
  }
  return builder.rule;
}

/// Operands: operand, source, initial value; the result has the operand's shape.
static std::optional<ShardingRule> selectAndScatter(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto scatter = llvm::cast<hlo::SelectAndScatterOp>(op);
  llvm::ArrayRef<int64_t> whole = shapeOf(op->getOperand(0)), source = shapeOf(op->getOperand(1));
  llvm::SmallVector<bool> slides(whole.size(), false);
  if (auto sizes = scatter.getWindowDimensions())
    for (auto [dim, size] : llvm::enumerate(*sizes))
      slides[dim] = size != 1;
  for (unsigned dim = 0; dim < whole.size(); ++dim) {
    bool isWindow = slides[dim] || whole[dim] != source[dim];
    unsigned factor =
        builder.factor(whole[dim], isWindow ? FactorKind::Window : FactorKind::Parallel);
    builder.operand(0, dim, {factor}).operand(1, dim, {factor}).result(0, dim, {factor});
  }
  return builder.rule;
}

void alpa::addReductionRules(RuleTable &table) {
  table["stablehlo.reduce"] = reduce;
  table["stablehlo.reduce_window"] = reduceWindow;
  table["stablehlo.select_and_scatter"] = selectAndScatter;
}
