//===- ElementwiseRules.cpp - ops that work element by element ------------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Sdy/SdyOps.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "llvm/ADT/StringSet.h"

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir::stablehlo;

ShardingRule analysis::elementwiseRule(mlir::Operation *op) {
  RuleBuilder builder(op);
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getResult(0));
  for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim) {
    unsigned factor = builder.factor(shape[dim]);
    for (unsigned operand = 0; operand < op->getNumOperands(); ++operand)
      if (shapeOf(op->getOperand(operand)) == shape)
        builder.operand(operand, dim, {factor});
    builder.result(0, dim, {factor});
  }
  return builder.rule;
}

/// Leading dimensions stay; a dimension that holds the parts of one element
/// (conversion between widths) is not split.
static ShardingRule bitcastConvert(mlir::Operation *op) {
  RuleBuilder builder(op);
  llvm::ArrayRef<int64_t> from = shapeOf(op->getOperand(0)), to = shapeOf(op->getResult(0));
  for (int64_t dim = 0, end = std::min(from.size(), to.size()); dim < end; ++dim) {
    unsigned factor = builder.factor(from[dim]);
    builder.operand(0, dim, {factor}).result(0, dim, {factor});
  }
  return builder.rule;
}

/// Every operand passes through on its own.
static ShardingRule passThrough(mlir::Operation *op) {
  RuleBuilder builder(op);
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    for (auto [dim, size] : llvm::enumerate(shapeOf(op->getOperand(i)))) {
      unsigned factor = builder.factor(size);
      builder.operand(i, dim, {factor}).result(i, dim, {factor});
    }
  builder.rule.forwards = true;
  return builder.rule;
}

namespace {
template <typename... Ops> struct OpList {
  static void attach(mlir::MLIRContext &context) { attachRule<elementwiseRule, Ops...>(context); }
  static llvm::StringSet<> names() { return {{Ops::getOperationName()...}}; }
};

using ElementwiseOps =
    OpList<AbsOp, AddOp, AndOp, Atan2Op, CbrtOp, CeilOp, ClampOp, ClzOp, CompareOp, ComplexOp,
           ConstantOp, ConvertOp, CosineOp, DivOp, ExpOp, Expm1Op, FloorOp, ImagOp, IotaOp,
           IsFiniteOp, Log1pOp, LogOp, LogisticOp, MaxOp, MinOp, MulOp, NegOp, NotOp, OrOp,
           PopulationCountOp, PowOp, RealOp, ReducePrecisionOp, RemOp, RoundNearestEvenOp, RoundOp,
           RsqrtOp, SelectOp, ShiftLeftOp, ShiftRightArithmeticOp, ShiftRightLogicalOp, SignOp,
           SineOp, SqrtOp, SubtractOp, TanOp, TanhOp, XorOp>;
} // namespace

bool analysis::isElementwiseName(llvm::StringRef name) {
  static const llvm::StringSet<> names = ElementwiseOps::names();
  return names.contains(name);
}

void analysis::attachElementwiseRules(mlir::MLIRContext &context) {
  ElementwiseOps::attach(context);
  attachRule<bitcastConvert, BitcastConvertOp>(context);
  attachRule<passThrough, OptimizationBarrierOp>(context);
  // Not looked into: composites; tuples and tokens, which have no dimensions. Random
  // numbers that are made in parts would be other numbers. The size of a dimension
  // is asked of the whole tensor.
  attachWhole<CompositeOp, TupleOp, GetTupleElementOp, CreateTokenOp, AfterAllOp, RngOp,
              RngBitGeneratorOp, GetDimensionSizeOp>(context);
  // No rule: collectives, partition_id and replica_id. They speak of devices; on a
  // mesh they would say something else than in the single-device program.
}

void analysis::attachSdyRules(mlir::MLIRContext &context) {
  attachRule<elementwiseRule, mlir::sdy::ShardingConstraintOp, mlir::sdy::ReshardOp>(context);
}
