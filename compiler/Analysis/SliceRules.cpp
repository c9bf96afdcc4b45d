//===- SliceRules.cpp - parts of tensors, and tensors from parts ----------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/StableHLO/StableHLOOps.h"

using namespace alpa;
using namespace alpa::analysis;
namespace hlo = mlir::stablehlo;

/// slice, dynamic_slice, dynamic_update_slice: a slice as long as the dimension
/// takes all of it (dynamic starts are clamped to 0). Start indices are scalars.
static ShardingRule slice(mlir::Operation *op) {
  llvm::ArrayRef<int64_t> whole = shapeOf(op->getOperand(0));
  bool isUpdate = llvm::isa<hlo::DynamicUpdateSliceOp>(op);
  llvm::ArrayRef<int64_t> part = shapeOf(isUpdate ? op->getOperand(1) : op->getResult(0));
  return untouchedRule(op, [&](unsigned dim) { return whole[dim] != part[dim]; });
}

static ShardingRule pad(mlir::Operation *op) {
  auto padOp = llvm::cast<hlo::PadOp>(op);
  return untouchedRule(op, [&](unsigned dim) {
    return padOp.getEdgePaddingLow()[dim] != 0 || padOp.getEdgePaddingHigh()[dim] != 0 ||
           padOp.getInteriorPadding()[dim] != 0;
  });
}

static ShardingRule concatenate(mlir::Operation *op) {
  auto dimension = static_cast<unsigned>(llvm::cast<hlo::ConcatenateOp>(op).getDimension());
  return untouchedRule(op, [&](unsigned dim) { return dim == dimension; });
}

static ShardingRule reverse(mlir::Operation *op) {
  auto dimensions = llvm::cast<hlo::ReverseOp>(op).getDimensions();
  return untouchedRule(op, [&](unsigned dim) { return llvm::is_contained(dimensions, dim); });
}

static ShardingRule sort(mlir::Operation *op) {
  auto dimension = static_cast<int64_t>(llvm::cast<hlo::SortOp>(op).getDimension());
  if (dimension < 0)
    dimension += static_cast<int64_t>(shapeOf(op->getResult(0)).size());
  return untouchedRule(op, [&](unsigned dim) { return dim == dimension; });
}

static ShardingRule cholesky(mlir::Operation *op) { return innermostRule(op, 2); }

static ShardingRule fft(mlir::Operation *op) {
  return innermostRule(op, llvm::cast<hlo::FftOp>(op).getFftLength().size());
}

/// Batches and right-hand sides are independent; an equation needs all of a matrix.
static ShardingRule triangularSolve(mlir::Operation *op) {
  RuleBuilder builder(op);
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getResult(0));
  int64_t rank = shape.size();
  for (int64_t dim = 0; dim < rank - 2; ++dim) {
    unsigned factor = builder.factor(shape[dim]);
    builder.operand(0, dim, {factor}).operand(1, dim, {factor}).result(0, dim, {factor});
  }
  bool isLeft = llvm::cast<hlo::TriangularSolveOp>(op).getLeftSide();
  int64_t unknowns = isLeft ? rank - 2 : rank - 1, systems = isLeft ? rank - 1 : rank - 2;
  unsigned solved = builder.factor(shape[unknowns], FactorKind::Sequential);
  unsigned system = builder.factor(shape[systems]);
  builder.operand(0, rank - 2, {solved}).operand(0, rank - 1, {solved});
  builder.operand(1, unknowns, {solved}).result(0, unknowns, {solved});
  builder.operand(1, systems, {system}).result(0, systems, {system});
  return builder.rule;
}

void analysis::attachSliceRules(mlir::MLIRContext &context) {
  attachRule<slice, hlo::SliceOp, hlo::DynamicSliceOp, hlo::DynamicUpdateSliceOp>(context);
  attachRule<pad, hlo::PadOp>(context);
  attachRule<concatenate, hlo::ConcatenateOp>(context);
  attachRule<reverse, hlo::ReverseOp>(context);
  attachRule<sort, hlo::SortOp>(context);
  attachRule<fft, hlo::FftOp>(context);
  attachRule<cholesky, hlo::CholeskyOp>(context);
  attachRule<triangularSolve, hlo::TriangularSolveOp>(context);
}
