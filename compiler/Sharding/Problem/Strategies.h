//===- Strategies.h - mesh axes assigned to an op's factors ------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_STRATEGIES_H
#define ALPA_COMPILER_SHARDING_PROBLEM_STRATEGIES_H

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/CostModel/CostModel.h"
#include "dialects/Alpa/PackedSpec.h"
#include <array>

namespace alpa::sharding {

/// The factor that each mesh axis splits, or -1.
struct Assignment {
  std::array<int16_t, PackedSpec::kMaxAxes> factor{-1, -1, -1, -1};
  bool operator==(const Assignment &other) const { return factor == other.factor; }
};

/// An assignment, and for every axis that splits a reduction the dimension of
/// result 0 over which its sum is scattered, or -1 for a sum on every device; or,
/// for axes in `deferred` (one bit each), no sum: the devices keep their terms. Of attention whose
/// tokens are split, whether devices gather keys and values, instead of sending them round.
struct Strategy {
  Assignment axes;
  std::array<int16_t, PackedSpec::kMaxAxes> scatter{-1, -1, -1, -1};
  uint8_t deferred = 0;
  bool gathersKeys = false;
  bool isDeferred(unsigned axis) const { return deferred >> axis & 1; }
};

/// Reads specs as assignments and back, by one op's rule on one mesh. A factor
/// can be split if it is parallel or a reduction and is the major one of every
/// dimension that contains it; pieces are always even.
class RuleProjection {
public:
  RuleProjection(const analysis::ShardingRule &rule, llvm::ArrayRef<int64_t> meshShape);

  /// What is left of a tensor's spec once axes are dropped that the op cannot use.
  Assignment fromSpec(const analysis::TensorFactors &tensor, PackedSpec spec) const;
  PackedSpec toSpec(const analysis::TensorFactors &tensor, const Assignment &axes) const;
  /// Devices among which the op's work is divided.
  int64_t numShares(const Assignment &axes) const;
  /// The same, if only `factors` are divided.
  int64_t numShares(const Assignment &axes, llvm::ArrayRef<unsigned> factors) const;
  bool canSplit(unsigned factor) const { return splittable[factor]; }

private:
  const analysis::ShardingRule &rule;
  llvm::ArrayRef<int64_t> meshShape;
  llvm::SmallVector<bool> splittable;
};

/// The strategies of an op. Those of a heavy op use as many axes as any of its
/// strategies can, and may scatter a sum over a dimension of the result: over any,
/// also one that other axes split, or, where those would be many strategies and so
/// much more work for the solver, over the one that is split least. `resultShape` is
/// result 0's. With `mayIdle` also those of a heavy op that use fewer axes.
std::vector<Strategy> enumerateStrategies(const analysis::ShardingRule &rule,
                                          llvm::ArrayRef<int64_t> resultShape,
                                          llvm::ArrayRef<int64_t> meshShape, bool mayIdle = false);

/// Result 0's spec after the scatters of a strategy, and unreduced over what it defers.
PackedSpec scatteredSpec(PackedSpec spec, const Strategy &strategy);

/// Runs of one collective on one mesh axis; `bytes` as CostModel counts them.
struct CollectiveUse {
  cost::Collective collective = cost::Collective::AllReduce;
  unsigned axis = 0;
  double bytes = 0;
  double times = 1;
  double seconds = 0; // All runs.
};

/// What completes the sums of one result of `fullBytes`, and its seconds.
llvm::SmallVector<CollectiveUse> reductionUses(const analysis::ShardingRule &rule, unsigned result,
                                               const Strategy &strategy, double fullBytes,
                                               const RuleProjection &projection,
                                               const cost::CostModel &model);
double reductionSeconds(const analysis::ShardingRule &rule, unsigned result,
                        const Strategy &strategy, double fullBytes,
                        const RuleProjection &projection, const cost::CostModel &model);

/// What one device multiplies in a dot or a convolution of so many FLOPs of its own.
cost::Product productOf(const analysis::ShardingRule &rule, const Assignment &axes, double flops,
                        const RuleProjection &projection);

/// The sums that a loop's iterations complete.
llvm::SmallVector<CollectiveUse> bodyUses(const analysis::ShardingRule &rule,
                                          const Assignment &axes, const RuleProjection &projection,
                                          const cost::CostModel &model);
/// Seconds of the body of a loop, all iterations, with their sums.
double bodySeconds(const analysis::ShardingRule &rule, const Assignment &axes,
                   const RuleProjection &projection, const cost::CostModel &model);

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_STRATEGIES_H
