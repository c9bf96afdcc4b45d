//===- ContractionRules.cpp - dot products and convolutions ---------------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/StableHLO/StableHLOOps.h"

using namespace alpa;
using namespace alpa::analysis;
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
    unsigned factor = builder.reduction(lhs[left], sumOf(op->getResult(0)));
    builder.operand(0, left, {factor}).operand(1, right, {factor});
  }
  builder.rule.heavy = true;
  return builder.rule;
}

static ShardingRule dotGeneral(mlir::Operation *op) {
  auto numbers = llvm::cast<hlo::DotGeneralOp>(op).getDotDimensionNumbers();
  return contraction(op, numbers.getLhsBatchingDimensions(), numbers.getRhsBatchingDimensions(),
                     numbers.getLhsContractingDimensions(), numbers.getRhsContractingDimensions());
}

/// Entry `i` of an optional attribute of the window, or what its absence means.
template <typename Attr> static int64_t entry(const Attr &values, size_t i, int64_t absent) {
  return values ? (*values)[i] : absent;
}

/// Spatial dimensions are windows, split only where windows do not overlap. With
/// groups, the features of input and output are groups times features of a group:
/// a part of the groups is a convolution of fewer groups.
static ShardingRule convolution(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto conv = llvm::cast<hlo::ConvolutionOp>(op);
  auto numbers = conv.getDimensionNumbers();
  llvm::ArrayRef<int64_t> image = shapeOf(op->getOperand(0)), kernel = shapeOf(op->getOperand(1)),
                          out = shapeOf(op->getResult(0));
  int64_t kernelIn = numbers.getKernelInputFeatureDimension();
  int64_t kernelOut = numbers.getKernelOutputFeatureDimension();
  auto groups = static_cast<int64_t>(conv.getFeatureGroupCount());
  auto batchGroups = static_cast<int64_t>(conv.getBatchGroupCount());

  unsigned batchGroup = builder.factor(batchGroups);
  unsigned batch = builder.factor(out[numbers.getOutputBatchDimension()]);
  unsigned group = builder.factor(groups);
  unsigned input = builder.reduction(kernel[kernelIn], sumOf(op->getResult(0)));
  unsigned output = builder.factor(kernel[kernelOut] / (groups * batchGroups));

  builder.operand(0, numbers.getInputBatchDimension(), {batchGroup, batch})
      .operand(0, numbers.getInputFeatureDimension(), {group, input})
      .operand(1, kernelIn, {input})
      .operand(1, kernelOut, {batchGroup, group, output})
      .result(0, numbers.getOutputBatchDimension(), {batch})
      .result(0, numbers.getOutputFeatureDimension(), {batchGroup, group, output});
  llvm::SmallVector<int64_t> padding;
  if (auto values = conv.getPadding())
    llvm::append_range(padding, values->getValues<int64_t>());
  for (auto [i, inDim, kernelDim, outDim] :
       llvm::enumerate(numbers.getInputSpatialDimensions(), numbers.getKernelSpatialDimensions(),
                       numbers.getOutputSpatialDimensions())) {
    WindowDim window;
    window.in = image[inDim];
    window.out = out[outDim];
    window.size = kernel[kernelDim];
    window.stride = entry(conv.getWindowStrides(), i, 1);
    window.baseDilation = entry(conv.getLhsDilation(), i, 1);
    window.windowDilation = entry(conv.getRhsDilation(), i, 1);
    if (!padding.empty()) {
      window.padLow = padding[2 * i];
      window.padHigh = padding[2 * i + 1];
    }
    auto [inFactors, outFactors] = window.factors(builder);
    builder.operand(0, inDim, inFactors).result(0, outDim, outFactors);
    builder.operand(1, kernelDim, {builder.factor(window.size, FactorKind::Window)});
  }
  builder.rule.heavy = true;
  return builder.rule;
}

void analysis::attachContractionRules(mlir::MLIRContext &context) {
  attachRule<dotGeneral, hlo::DotGeneralOp>(context);
  attachRule<convolution, hlo::ConvolutionOp>(context);
}
