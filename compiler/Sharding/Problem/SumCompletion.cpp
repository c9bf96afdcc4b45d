//===- SumCompletion.cpp - sums over devices that wait for the update -----===//

#include "compiler/Sharding/Problem/SumCompletion.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/OpDefinition.h"

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;
namespace hlo = mlir::stablehlo;

static Type elementOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getElementType();
}

/// Integers wrap and truth values saturate; rounded numbers are what is averaged.
static bool isReal(Value value) {
  return isa<RankedTensorType>(value.getType()) && isa<FloatType, ComplexType>(elementOf(value));
}

bool sharding::isUniform(Value value) {
  DenseElementsAttr constant;
  if (matchPattern(value, m_Constant(&constant)))
    return constant.isSplat();
  auto broadcast = value.getDefiningOp<hlo::BroadcastInDimOp>();
  if (!broadcast)
    return false;
  auto type = dyn_cast<RankedTensorType>(broadcast.getOperand().getType());
  return type && type.hasStaticShape() && type.getNumElements() == 1;
}

static bool isZero(Value value) {
  DenseElementsAttr constant;
  if (auto broadcast = value.getDefiningOp<hlo::BroadcastInDimOp>())
    value = broadcast.getOperand();
  if (!matchPattern(value, m_Constant(&constant)) || !constant.isSplat())
    return false;
  if (auto real = dyn_cast<FloatType>(constant.getElementType()))
    return constant.getSplatValue<APFloat>().isPosZero();
  return false;
}

static bool isWiderOrEqual(Type to, Type from) {
  if (to == from)
    return true;
  auto wide = dyn_cast<FloatType>(to), narrow = dyn_cast<FloatType>(from);
  if (!wide || !narrow)
    return false;
  const llvm::fltSemantics &big = wide.getFloatSemantics(), &small = narrow.getFloatSemantics();
  return APFloat::isRepresentableBy(small, big);
}

static bool addsUp(Region &body, Value like) {
  return analysis::reducerOf(body) == analysis::Reducer::Sum && isReal(like);
}

int sharding::linkOperand(Operation *op) {
  if (op->getNumResults() != 1 || !isReal(op->getResult(0)))
    return -1;
  if (isa<hlo::TransposeOp, hlo::ReshapeOp, hlo::NegOp>(op))
    return 0;
  if (isa<hlo::BroadcastInDimOp>(op)) { // Where it only adds dimensions of size 1.
    auto from = cast<RankedTensorType>(op->getOperand(0).getType());
    auto to = cast<RankedTensorType>(op->getResult(0).getType());
    return from.hasStaticShape() && to.hasStaticShape() &&
                   from.getNumElements() == to.getNumElements()
               ? 0
               : -1;
  }
  if (isa<hlo::ConvertOp>(op))
    return isWiderOrEqual(elementOf(op->getResult(0)), elementOf(op->getOperand(0))) ? 0 : -1;
  if (isa<hlo::DivOp>(op))
    return isUniform(op->getOperand(1)) ? 0 : -1;
  if (isa<hlo::MulOp>(op))
    return isUniform(op->getOperand(1)) ? 0 : isUniform(op->getOperand(0)) ? 1 : -1;
  if (auto reduce = dyn_cast<hlo::ReduceOp>(op)) {
    auto isOne = [&](int64_t dim) { return analysis::shapeOf(op->getOperand(0))[dim] == 1; };
    bool isReshape = addsUp(op->getRegion(0), op->getResult(0)) && isZero(op->getOperand(1)) &&
                     llvm::all_of(reduce.getDimensions(), isOne);
    return isReshape ? 0 : -1;
  }
  return -1;
}

static bool canLeaveTerms(Operation *op) {
  if (op->getNumResults() != 1 || !isReal(op->getResult(0)))
    return false;
  if (isa<hlo::DotGeneralOp, GroupedSumOp>(op))
    return true;
  if (auto conv = dyn_cast<hlo::ConvolutionOp>(op))
    return conv.getFeatureGroupCount() == 1 && conv.getBatchGroupCount() == 1;
  if (isa<hlo::ReduceOp>(op))
    return addsUp(op->getRegion(0), op->getResult(0)) && isZero(op->getOperand(1));
  if (isa<hlo::ScatterOp>(op))
    return addsUp(op->getRegion(0), op->getResult(0)) && isZero(op->getOperand(0));
  return false;
}

llvm::SmallVector<unsigned> sharding::deferrableFactors(Operation *op,
                                                        const analysis::ShardingRule &rule) {
  llvm::SmallVector<unsigned> factors;
  if (!canLeaveTerms(op))
    return factors;
  for (auto [index, factor] : llvm::enumerate(rule.factors))
    if (factor.kind == analysis::FactorKind::Reduction &&
        factor.reducer == analysis::Reducer::Sum && factor.size > 1)
      factors.push_back(index);
  return factors;
}

uint8_t sharding::deferrableAxes(Operation *op, const analysis::ShardingRule &rule,
                                 llvm::ArrayRef<unsigned> factors, const Strategy &strategy) {
  auto isSplit = [&](unsigned factor) {
    return llvm::is_contained(strategy.axes.factor, static_cast<int16_t>(factor));
  };
  // A convolution's terms are groups of output features, so those must be whole.
  if (auto conv = dyn_cast<hlo::ConvolutionOp>(op)) {
    const analysis::DimFactors &features =
        rule.results[0][conv.getDimensionNumbers().getOutputFeatureDimension()];
    if (llvm::any_of(features, isSplit))
      return 0;
  }
  uint8_t axes = 0;
  for (unsigned factor : factors) {
    uint8_t own = 0;
    bool isScattered = false;
    for (unsigned axis = 0; axis < PackedSpec::kMaxAxes; ++axis) {
      if (strategy.axes.factor[axis] != static_cast<int16_t>(factor))
        continue;
      own |= 1u << axis;
      isScattered |= strategy.scatter[axis] >= 0;
    }
    if (!isScattered)
      axes |= own;
  }
  return axes;
}

WaitingValues::WaitingValues(llvm::ArrayRef<Operation *> stageOps) {
  llvm::DenseSet<Operation *> inStage(stageOps.begin(), stageOps.end());
  // Users come later in program order, so they are known.
  for (Operation *op : llvm::reverse(stageOps)) {
    if (op->getNumResults() != 1 || opPhaseOf(op) == OpPhase::Update || !isReal(op->getResult(0)))
      continue;
    Value value = op->getResult(0);
    // A result of the step leaves by its reduction, a body takes what it captures as it is.
    auto isUpdated = [&](Operation *user) {
      return user->getBlock() == op->getBlock() && !user->hasTrait<OpTrait::IsTerminator>() &&
             opPhaseOf(user) == OpPhase::Update;
    };
    if (value.use_empty())
      continue;
    if (llvm::all_of(value.getUsers(), isUpdated)) {
      crossing.insert(value);
      waiting.insert(value);
      continue;
    }
    if (!value.hasOneUse())
      continue;
    OpOperand &use = *value.use_begin();
    Operation *user = use.getOwner();
    if (inStage.contains(user) && linkOperand(user) == static_cast<int>(use.getOperandNumber()) &&
        waiting.contains(user->getResult(0)))
      waiting.insert(value);
  }
}

SumCompletion sharding::completeSum(llvm::ArrayRef<int64_t> shape, double bytes, PackedSpec from,
                                    PackedSpec to, TensorReshards &reshards,
                                    const cost::CostModel &model) {
  llvm::ArrayRef<int64_t> meshShape = model.getMesh().shape;
  llvm::SmallVector<unsigned> axes;
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (from.isUnreduced(axis))
      axes.push_back(axis);
  PackedSpec whole = from.withoutUnreduced();
  SumCompletion best;
  bool isFirst = true;
  // Scatters come first, in the order of axes, as ops complete their sums.
  llvm::SmallVector<int> dims(axes.size(), -1);
  auto tryDims = [&] {
    SumCompletion next;
    next.summed = whole;
    double localBytes = bytes / whole.numPieces(meshShape);
    auto run = [&](cost::Collective collective, unsigned axis, double seconds) {
      next.uses.push_back({collective, axis, localBytes, 1, seconds});
      next.picoseconds += toPicoseconds(seconds);
    };
    for (auto [axis, dim] : llvm::zip_equal(axes, dims)) {
      if (dim < 0)
        continue;
      run(cost::Collective::ReduceScatter, axis, model.reduceScatterSeconds(localBytes, axis));
      localBytes /= meshShape[axis];
      next.summed.set(axis, dim);
    }
    for (auto [axis, dim] : llvm::zip_equal(axes, dims))
      if (dim < 0)
        run(cost::Collective::AllReduce, axis, model.allReduceSeconds(localBytes, axis));
    next.picoseconds += reshards.picoseconds(next.summed, to);
    auto rank = [&](const SumCompletion &way) {
      return std::make_pair(way.picoseconds, way.summed != to);
    };
    if (isFirst || rank(next) < rank(best))
      best = std::move(next);
    isFirst = false;
  };
  // Every way to scatter over dimensions that stay even and keep axes in order.
  auto choose = [&](auto &&self, size_t i, PackedSpec spec) -> void {
    if (i == axes.size())
      return tryDims();
    dims[i] = -1;
    self(self, i + 1, spec);
    for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
      if (shape[dim] == 0 ||
          shape[dim] % (spec.numPieces(dim, meshShape) * meshShape[axes[i]]) != 0 ||
          spec.hasMinorAxis(axes[i], dim, meshShape.size()))
        continue;
      PackedSpec scattered = spec;
      scattered.set(axes[i], dim);
      dims[i] = dim;
      self(self, i + 1, scattered);
      dims[i] = -1;
    }
  };
  choose(choose, 0, whole);
  return best;
}
