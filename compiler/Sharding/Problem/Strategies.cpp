//===- Strategies.cpp - mesh axes assigned to an op's factors -------------===//

#include "compiler/Sharding/Problem/Strategies.h"

#include "llvm/ADT/STLExtras.h"
#include <numeric>

using namespace alpa;
using namespace alpa::sharding;
using analysis::FactorKind;
using analysis::ShardingRule;
using analysis::TensorFactors;
using cost::CostModel;

RuleProjection::RuleProjection(const ShardingRule &rule, llvm::ArrayRef<int64_t> meshShape)
    : rule(rule), meshShape(meshShape) {
  for (const analysis::Factor &factor : rule.factors)
    splittable.push_back(factor.size > 1 &&
                         (factor.kind == FactorKind::Parallel ||
                          factor.kind == FactorKind::Reduction || factor.kind == FactorKind::Ring));
  auto dropMinor = [&](const TensorFactors &tensor) {
    for (const analysis::DimFactors &dim : tensor)
      for (unsigned factor : llvm::drop_begin(dim, dim.empty() ? 0 : 1))
        splittable[factor] = false;
  };
  llvm::for_each(rule.operands, dropMinor);
  llvm::for_each(rule.results, dropMinor);
}

Assignment RuleProjection::fromSpec(const TensorFactors &tensor, PackedSpec spec) const {
  Assignment axes;
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    int dim = spec.dimOf(axis);
    if (dim < 0 || spec.isUnreduced(axis) || tensor[dim].empty() || !splittable[tensor[dim][0]])
      continue;
    unsigned factor = tensor[dim][0];
    int64_t pieces = meshShape[axis];
    for (unsigned other = 0; other < axis; ++other)
      if (axes.factor[other] == static_cast<int16_t>(factor))
        pieces *= meshShape[other];
    if (rule.factors[factor].size % pieces == 0)
      axes.factor[axis] = static_cast<int16_t>(factor);
  }
  return axes;
}

PackedSpec RuleProjection::toSpec(const TensorFactors &tensor, const Assignment &axes) const {
  PackedSpec spec;
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    if (axes.factor[axis] < 0)
      continue;
    for (int dim = 0; dim < static_cast<int>(tensor.size()); ++dim)
      if (!tensor[dim].empty() && static_cast<int>(tensor[dim][0]) == axes.factor[axis])
        spec.set(axis, dim);
  }
  return spec;
}

int64_t RuleProjection::numShares(const Assignment &axes) const {
  int64_t shares = 1;
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (axes.factor[axis] >= 0)
      shares *= meshShape[axis];
  return shares;
}

int64_t RuleProjection::numShares(const Assignment &axes, llvm::ArrayRef<unsigned> factors) const {
  int64_t shares = 1;
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (axes.factor[axis] >= 0 &&
        llvm::is_contained(factors, static_cast<unsigned>(axes.factor[axis])))
      shares *= meshShape[axis];
  return shares;
}

/// Dimensions of the result over which the sum along `axis` can be scattered: all,
/// or the one that is split least.
static llvm::SmallVector<int> scatterDims(const ShardingRule &rule,
                                          const RuleProjection &projection,
                                          const Strategy &strategy, unsigned axis,
                                          llvm::ArrayRef<int64_t> resultShape,
                                          llvm::ArrayRef<int64_t> meshShape, bool everyDim) {
  llvm::SmallVector<int> dims;
  int16_t factor = strategy.axes.factor[axis];
  if (factor < 0 || !rule.isReduced(0, factor))
    return dims;
  PackedSpec spec = scatteredSpec(projection.toSpec(rule.results[0], strategy.axes), strategy);
  for (int dim = 0; dim < static_cast<int>(resultShape.size()); ++dim) {
    int64_t pieces = spec.numPieces(dim, meshShape);
    if (resultShape[dim] % (pieces * meshShape[axis]) != 0 ||
        spec.hasMinorAxis(axis, dim, meshShape.size()))
      continue;
    if (everyDim || dims.empty())
      dims.push_back(dim);
    else if (pieces < spec.numPieces(dims.front(), meshShape))
      dims.front() = dim;
  }
  return dims;
}

std::vector<Strategy> sharding::enumerateStrategies(const ShardingRule &rule,
                                                    llvm::ArrayRef<int64_t> resultShape,
                                                    llvm::ArrayRef<int64_t> meshShape,
                                                    bool mayIdle) {
  RuleProjection projection(rule, meshShape);
  std::vector<Strategy> strategies{Strategy{}};
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    if (meshShape[axis] <= 1)
      continue;
    size_t known = strategies.size();
    for (size_t i = 0; i < known; ++i) {
      for (unsigned factor = 0; factor < rule.factors.size(); ++factor) {
        Strategy next = strategies[i];
        int64_t pieces = meshShape[axis];
        for (unsigned other = 0; other < axis; ++other)
          if (next.axes.factor[other] == static_cast<int16_t>(factor))
            pieces *= meshShape[other];
        if (!projection.canSplit(factor) || rule.factors[factor].size % pieces != 0)
          continue;
        next.axes.factor[axis] = static_cast<int16_t>(factor);
        strategies.push_back(next);
      }
    }
  }
  if (rule.heavy && !mayIdle) {
    int64_t most = 0;
    for (const Strategy &strategy : strategies)
      most = std::max(most, projection.numShares(strategy.axes));
    llvm::erase_if(strategies, [&](const Strategy &strategy) {
      return projection.numShares(strategy.axes) < most;
    });
  }
  if (!rule.heavy || rule.results.empty())
    return strategies;

  // Sums scattered over dimensions instead of repeated, where pieces stay even and
  // neighbours stay neighbours: over any dimension while that leaves few strategies,
  // else over the best one of each sum. On three axes even those could be hundreds;
  // then the later axes repeat their sums.
  constexpr size_t kFewStrategies = 64, kMaxStrategies = 256;
  auto scatter = [&](size_t limit, bool everyDim) {
    std::vector<Strategy> all = strategies;
    for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
      size_t known = all.size();
      for (size_t i = 0; i < known && all.size() < limit; ++i)
        for (int dim :
             scatterDims(rule, projection, all[i], axis, resultShape, meshShape, everyDim)) {
          Strategy next = all[i];
          next.scatter[axis] = static_cast<int16_t>(dim);
          all.push_back(next);
        }
    }
    return all;
  };
  std::vector<Strategy> all = scatter(kFewStrategies + 1, /*everyDim=*/true);
  return all.size() <= kFewStrategies ? all : scatter(kMaxStrategies, /*everyDim=*/false);
}

PackedSpec sharding::scatteredSpec(PackedSpec spec, const Strategy &strategy) {
  for (unsigned axis = 0; axis < PackedSpec::kMaxAxes; ++axis)
    if (strategy.scatter[axis] >= 0)
      spec.set(axis, strategy.scatter[axis]);
    else if (strategy.isDeferred(axis))
      spec.set(axis, PackedSpec::kUnreduced);
  return spec;
}

llvm::SmallVector<CollectiveUse> sharding::reductionUses(const ShardingRule &rule, unsigned result,
                                                         const Strategy &strategy, double fullBytes,
                                                         const RuleProjection &projection,
                                                         const CostModel &model) {
  llvm::ArrayRef<int64_t> meshShape = model.getMesh().shape;
  PackedSpec spec = projection.toSpec(rule.results[result], strategy.axes);
  double localBytes = fullBytes / spec.numPieces(meshShape);
  llvm::SmallVector<CollectiveUse> uses;
  auto isUnreduced = [&](unsigned axis) {
    int16_t factor = strategy.axes.factor[axis];
    return factor >= 0 && rule.factors[factor].kind == FactorKind::Reduction &&
           spec.dimOf(axis) < 0 && !strategy.isDeferred(axis);
  };
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    if (!isUnreduced(axis) || result != 0 || strategy.scatter[axis] < 0)
      continue;
    uses.push_back({cost::Collective::ReduceScatter, axis, localBytes, 1,
                    model.reduceScatterSeconds(localBytes, axis)});
    localBytes /= meshShape[axis];
  }
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (isUnreduced(axis) && (result != 0 || strategy.scatter[axis] < 0))
      uses.push_back({cost::Collective::AllReduce, axis, localBytes, 1,
                      model.allReduceSeconds(localBytes, axis)});
  return uses;
}

static double secondsOf(llvm::ArrayRef<CollectiveUse> uses) {
  double seconds = 0;
  for (const CollectiveUse &use : uses)
    seconds += use.seconds;
  return seconds;
}

double sharding::reductionSeconds(const ShardingRule &rule, unsigned result,
                                  const Strategy &strategy, double fullBytes,
                                  const RuleProjection &projection, const CostModel &model) {
  return secondsOf(reductionUses(rule, result, strategy, fullBytes, projection, model));
}

llvm::SmallVector<CollectiveUse> sharding::bodyUses(const ShardingRule &rule,
                                                    const Assignment &axes,
                                                    const RuleProjection &projection,
                                                    const CostModel &model) {
  llvm::SmallVector<CollectiveUse> uses;
  for (const ShardingRule::PartialSum &sum : rule.sums) {
    double bytes = sum.bytes / static_cast<double>(projection.numShares(axes, sum.factors));
    for (unsigned axis = 0; axis < model.getMesh().shape.size(); ++axis)
      if (axes.factor[axis] >= 0 &&
          llvm::is_contained(sum.summed, static_cast<unsigned>(axes.factor[axis])))
        uses.push_back({cost::Collective::AllReduce, axis, bytes, sum.times,
                        sum.times * model.allReduceSeconds(bytes, axis)});
  }
  return uses;
}

cost::Product sharding::productOf(const ShardingRule &rule, const Assignment &axes, double flops,
                                  const RuleProjection &projection) {
  cost::Product product;
  if (rule.operands.size() < 2 || rule.results.empty())
    return product;
  // The other side is the next operand that has loops: a kernel may have scales in between.
  const auto *other = llvm::find_if(llvm::drop_begin(rule.operands), [](const auto &tensor) {
    return llvm::any_of(tensor, [](const analysis::DimFactors &dim) { return !dim.empty(); });
  });
  const TensorFactors &right = other == rule.operands.end() ? rule.operands[1] : *other;
  double results = 1;
  for (auto [index, factor] : llvm::enumerate(rule.factors)) {
    unsigned i = static_cast<unsigned>(index);
    if (!analysis::holds(rule.results[0], i))
      continue;
    double size =
        static_cast<double>(factor.size) / static_cast<double>(projection.numShares(axes, {i}));
    results *= size;
    if (!analysis::holds(right, i))
      continue;
    (analysis::holds(rule.operands[0], i) ? product.count : product.columns) *= size;
  }
  product.rows = results / (product.count * product.columns);
  product.inner = flops / (2 * results);
  for (const TensorFactors *tensor : {&rule.operands[0], &right, &rule.results[0]})
    for (const analysis::DimFactors &dim : llvm::reverse(*tensor)) {
      int64_t size = 1, whole = 1;
      for (unsigned factor : dim) {
        whole *= rule.factors[factor].size;
        size *= rule.factors[factor].size / projection.numShares(axes, {factor});
      }
      if (whole == 1)
        continue;
      product.alignment = std::gcd(product.alignment, size);
      break;
    }
  return product;
}

double sharding::bodySeconds(const ShardingRule &rule, const Assignment &axes,
                             const RuleProjection &projection, const CostModel &model) {
  double seconds = 0;
  for (const ShardingRule::Work &work : rule.work) {
    double shares = static_cast<double>(projection.numShares(axes, work.factors));
    seconds += model.computeSeconds(work.flops / shares, work.bytes / shares, work.type);
  }
  return seconds + secondsOf(bodyUses(rule, axes, projection, model));
}
