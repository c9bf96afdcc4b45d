//===- SliceRules.cpp - parts of tensors, and tensors from parts ----------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/StableHLO/StableHLOOps.h"

using namespace alpa;
namespace hlo = mlir::stablehlo;

/// Operands and results of the shape of result 0 but for the dimensions that
/// `isTouched` names, which stay whole. Scalars have no dimensions.
static ShardingRule untouched(mlir::Operation *op, llvm::function_ref<bool(unsigned)> isTouched) {
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

/// slice, dynamic_slice, dynamic_update_slice: a slice as long as the dimension
/// takes all of it (dynamic starts are clamped to 0).
static std::optional<ShardingRule> slice(mlir::Operation *op) {
  llvm::ArrayRef<int64_t> whole = shapeOf(op->getOperand(0));
  bool isUpdate = llvm::isa<hlo::DynamicUpdateSliceOp>(op);
  llvm::ArrayRef<int64_t> part = shapeOf(isUpdate ? op->getOperand(1) : op->getResult(0));
  ShardingRule rule = untouched(op, [&](unsigned dim) { return whole[dim] != part[dim]; });
  // A vector of one dimension must not be taken for an index.
  for (unsigned i = isUpdate ? 2 : 1; i < rule.operands.size(); ++i)
    for (DimFactors &dim : rule.operands[i])
      dim.clear();
  return rule;
}

static std::optional<ShardingRule> pad(mlir::Operation *op) {
  auto padOp = llvm::cast<hlo::PadOp>(op);
  return untouched(op, [&](unsigned dim) {
    return padOp.getEdgePaddingLow()[dim] != 0 || padOp.getEdgePaddingHigh()[dim] != 0 ||
           padOp.getInteriorPadding()[dim] != 0;
  });
}

static std::optional<ShardingRule> concatenate(mlir::Operation *op) {
  auto dimension = static_cast<unsigned>(llvm::cast<hlo::ConcatenateOp>(op).getDimension());
  return untouched(op, [&](unsigned dim) { return dim == dimension; });
}

static std::optional<ShardingRule> reverse(mlir::Operation *op) {
  auto dimensions = llvm::cast<hlo::ReverseOp>(op).getDimensions();
  return untouched(op, [&](unsigned dim) { return llvm::is_contained(dimensions, dim); });
}

static std::optional<ShardingRule> sort(mlir::Operation *op) {
  auto dimension = static_cast<int64_t>(llvm::cast<hlo::SortOp>(op).getDimension());
  if (dimension < 0)
    dimension += static_cast<int64_t>(shapeOf(op->getResult(0)).size());
  return untouched(op, [&](unsigned dim) { return dim == dimension; });
}

/// Works on whole vectors along the last `inner` dimensions.
static ShardingRule innermost(mlir::Operation *op, size_t inner) {
  size_t rank = shapeOf(op->getResult(0)).size();
  return untouched(op, [&](unsigned dim) { return dim + inner >= rank; });
}

static std::optional<ShardingRule> topK(mlir::Operation *op) { return innermost(op, 1); }
static std::optional<ShardingRule> matrixSolve(mlir::Operation *op) { return innermost(op, 2); }
static std::optional<ShardingRule> fft(mlir::Operation *op) {
  return innermost(op, llvm::cast<hlo::FftOp>(op).getFftLength().size());
}

void alpa::addSliceRules(RuleTable &table) {
  table["stablehlo.slice"] = slice;
  table["stablehlo.dynamic_slice"] = slice;
  table["stablehlo.dynamic_update_slice"] = slice;
  table["stablehlo.pad"] = pad;
  table["stablehlo.concatenate"] = concatenate;
  table["stablehlo.reverse"] = reverse;
  table["stablehlo.sort"] = sort;
  table["stablehlo.fft"] = fft;
  table["stablehlo.cholesky"] = matrixSolve;
  table["stablehlo.triangular_solve"] = matrixSolve;
  table["chlo.top_k"] = topK;
}
