//===- IndexingRules.cpp - gather and scatter -----------------------------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/StableHLO/StableHLOOps.h"

using namespace alpa;
using namespace alpa::analysis;
namespace hlo = mlir::stablehlo;

/// Dimensions of 0 .. rank - 1 that are not in `without`, in order.
static llvm::SmallVector<int64_t> others(int64_t rank, llvm::ArrayRef<int64_t> without) {
  llvm::SmallVector<int64_t> kept;
  for (int64_t dim = 0; dim < rank; ++dim)
    if (!llvm::is_contained(without, dim))
      kept.push_back(dim);
  return kept;
}

/// Three kinds of loops: those over the indices (batch dimensions of the result),
/// some of which walk through the operand too (batching dimensions); those over a
/// slice that takes all of a dimension; and the indexed dimensions, where a device
/// that holds a part contributes only the rows it has, so that results add up.
static ShardingRule gather(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto gatherOp = llvm::cast<hlo::GatherOp>(op);
  auto numbers = gatherOp.getDimensionNumbers();
  llvm::ArrayRef<int64_t> operand = shapeOf(op->getOperand(0)),
                          indices = shapeOf(op->getOperand(1)), result = shapeOf(op->getResult(0));
  llvm::SmallVector<int64_t> dropped(numbers.getCollapsedSliceDims());
  llvm::append_range(dropped, numbers.getOperandBatchingDims());

  auto batchDims = others(result.size(), numbers.getOffsetDims());
  auto indexDims = others(indices.size(), {numbers.getIndexVectorDim()});
  for (auto [resultDim, indexDim] : llvm::zip_equal(batchDims, indexDims)) {
    unsigned factor = builder.factor(indices[indexDim]);
    builder.operand(1, indexDim, {factor}).result(0, resultDim, {factor});
    for (auto [batching, start] :
         llvm::zip_equal(numbers.getOperandBatchingDims(), numbers.getStartIndicesBatchingDims()))
      if (start == indexDim)
        builder.operand(0, batching, {factor});
  }
  for (auto [resultDim, dim] :
       llvm::zip_equal(numbers.getOffsetDims(), others(operand.size(), dropped))) {
    bool isWhole = gatherOp.getSliceSizes()[dim] == operand[dim];
    unsigned factor =
        builder.factor(operand[dim], isWhole ? FactorKind::Parallel : FactorKind::Sequential);
    builder.operand(0, dim, {factor}).result(0, resultDim, {factor});
  }
  for (int64_t dim : numbers.getCollapsedSliceDims())
    if (llvm::is_contained(numbers.getStartIndexMap(), dim) && gatherOp.getSliceSizes()[dim] == 1)
      builder.operand(0, dim, {builder.reduction(operand[dim], sumOf(op->getResult(0)))});
  builder.rule.leads = true;
  return builder.rule;
}

/// Inputs, indices, updates. The mirror of gather: with a body that collectives
/// know, updates may be split by index, and the results are combined. A part of an
/// indexed dimension takes only the updates that fall on it.
static ShardingRule scatter(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto scatterOp = llvm::cast<hlo::ScatterOp>(op);
  auto numbers = scatterOp.getScatterDimensionNumbers();
  unsigned inputs = op->getNumResults();
  llvm::ArrayRef<int64_t> input = shapeOf(op->getOperand(0)),
                          indices = shapeOf(op->getOperand(inputs)),
                          update = shapeOf(op->getOperand(inputs + 1));
  std::optional<Reducer> reducer;
  if (inputs == 1)
    reducer = reducerOf(op->getRegion(0));
  auto setInput = [&](int64_t dim, unsigned factor) {
    for (unsigned i = 0; i < inputs; ++i)
      builder.operand(i, dim, {factor}).result(i, dim, {factor});
  };
  auto setUpdate = [&](int64_t dim, unsigned factor) {
    for (unsigned i = 0; i < inputs; ++i)
      builder.operand(inputs + 1 + i, dim, {factor});
  };

  llvm::SmallVector<int64_t> dropped(numbers.getInsertedWindowDims());
  llvm::append_range(dropped, numbers.getInputBatchingDims());
  auto scatterDims = others(update.size(), numbers.getUpdateWindowDims());
  auto indexDims = others(indices.size(), {numbers.getIndexVectorDim()});
  for (auto [updateDim, indexDim] : llvm::zip_equal(scatterDims, indexDims)) {
    int64_t batching = -1;
    for (auto [dim, start] :
         llvm::zip_equal(numbers.getInputBatchingDims(), numbers.getScatterIndicesBatchingDims()))
      if (start == indexDim)
        batching = dim;
    unsigned factor = batching >= 0 ? builder.factor(indices[indexDim])
                                    : builder.reduction(indices[indexDim], reducer);
    builder.operand(inputs, indexDim, {factor});
    setUpdate(updateDim, factor);
    if (batching >= 0)
      setInput(batching, factor);
  }
  for (auto [updateDim, dim] :
       llvm::zip_equal(numbers.getUpdateWindowDims(), others(input.size(), dropped))) {
    bool isWhole = update[updateDim] == input[dim];
    unsigned factor =
        builder.factor(input[dim], isWhole ? FactorKind::Parallel : FactorKind::Sequential);
    setInput(dim, factor);
    setUpdate(updateDim, factor);
  }
  // A dimension that no index speaks of is written at its first element.
  for (int64_t dim : numbers.getInsertedWindowDims()) {
    bool isIndexed = llvm::is_contained(numbers.getScatterDimsToOperandDims(), dim);
    setInput(dim,
             builder.factor(input[dim], isIndexed ? FactorKind::Parallel : FactorKind::Sequential));
  }
  if (reducer)
    builder.rule.broughtOnce = {0};
  builder.rule.leads = true;
  return builder.rule;
}

void analysis::attachIndexingRules(mlir::MLIRContext &context) {
  attachRule<gather, hlo::GatherOp>(context);
  attachRule<scatter, hlo::ScatterOp>(context);
}
