//===- ContractionRules.cpp - dot products and convolutions ---------------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/StableHLO/StableHLOOps.h"

using namespace alpa;
namespace hlo = mlir::stablehlo;

static ShardingRule contraction(mlir::Operation *op, llvm::ArrayRef<int64_t> lhsBatch,
                                llvm::ArrayRef<int64_t> rhsBatch,
                                llvm::ArrayRef<int64_t> lhsContracting,
                                llvm::ArrayRef<int64_t> rhsContracting) {
  RuleBuilder builder(op);
  llvm::ArrayRef<int64_t> lhs = shapeOf(op->getOperand(0)), rhs = shapeOf(op->getOperand(1));
  int64_t resultDim = 0;
  for (auto [left, right] : llvm::zip_equal(lhsBatch, rhsBatch)) {
    unsigned factor = builder.factor(lhs[left]);
    builder.operand(0, left, {factor}).operand(1, right, {factor}).result(0, resultDim++, {factor});
  }
  for (auto [operand, shape, batch, contracting] :
       {std::tuple(0u, lhs, lhsBatch, lhsContracting), {1u, rhs, rhsBatch, rhsContracting}})
    for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim) {
      if (llvm::is_contained(batch, dim) || llvm::is_contained(contracting, dim))
        continue;
      unsigned factor = builder.factor(shape[dim]);
      builder.operand(operand, dim, {factor}).result(0, resultDim++, {factor});
    }
  for (auto [left, right] : llvm::zip_equal(lhsContracting, rhsContracting)) {
    unsigned factor = builder.factor(lhs[left], FactorKind::Reduction);
    builder.operand(0, left, {factor}).operand(1, right, {factor});
  }
  builder.rule.heavy = true;
  return builder.rule;
}

static std::optional<ShardingRule> dotGeneral(mlir::Operation *op) {
  auto numbers = llvm::cast<hlo::DotGeneralOp>(op).getDotDimensionNumbers();
  return contraction(op, numbers.getLhsBatchingDimensions(), numbers.getRhsBatchingDimensions(),
                     numbers.getLhsContractingDimensions(), numbers.getRhsContractingDimensions());
}

/// The last dimension of the left operand with the first of the right.
static std::optional<ShardingRule> dot(mlir::Operation *op) {
  return contraction(op, {}, {}, {static_cast<int64_t>(shapeOf(op->getOperand(0)).size()) - 1},
                     {0});
}

/// Spatial dimensions are windows. With feature groups, the features of input and
/// output are groups times features of a group; batch groups stay whole.
static std::optional<ShardingRule> convolution(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto conv = llvm::cast<hlo::ConvolutionOp>(op);
  auto numbers = conv.getDimensionNumbers();
  llvm::ArrayRef<int64_t> kernel = shapeOf(op->getOperand(1)), out = shapeOf(op->getResult(0));
  int64_t kernelIn = numbers.getKernelInputFeatureDimension();
  int64_t kernelOut = numbers.getKernelOutputFeatureDimension();
  auto groups = static_cast<int64_t>(conv.getFeatureGroupCount());
  auto batchGroups = static_cast<int64_t>(conv.getBatchGroupCount());

  unsigned batchGroup = builder.factor(batchGroups, FactorKind::Sequential);
  unsigned batch = builder.factor(out[numbers.getOutputBatchDimension()]);
  unsigned group = builder.factor(groups);
  unsigned input = builder.factor(kernel[kernelIn], FactorKind::Reduction);
  unsigned output = builder.factor(kernel[kernelOut] / (groups * batchGroups));

  builder.operand(0, numbers.getInputBatchDimension(), {batchGroup, batch})
      .operand(0, numbers.getInputFeatureDimension(), {group, input})
      .operand(1, kernelIn, {input})
      .operand(1, kernelOut, {batchGroup, group, output})
      .result(0, numbers.getOutputBatchDimension(), {batch})
      .result(0, numbers.getOutputFeatureDimension(), {batchGroup, group, output});
  for (auto [in, window, result] :
       llvm::zip_equal(numbers.getInputSpatialDimensions(), numbers.getKernelSpatialDimensions(),
                       numbers.getOutputSpatialDimensions())) {
    builder.operand(0, in, {builder.factor(shapeOf(op->getOperand(0))[in], FactorKind::Window)});
    builder.operand(1, window, {builder.factor(kernel[window], FactorKind::Window)});
    builder.result(0, result, {builder.factor(out[result], FactorKind::Window)});
  }
  builder.rule.heavy = true;
  return builder.rule;
}

void alpa::addContractionRules(RuleTable &table) {
  table["stablehlo.dot_general"] = dotGeneral;
  table["stablehlo.dot"] = dot;
  table["stablehlo.convolution"] = convolution;
}
