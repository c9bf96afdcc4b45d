//===- OpSplit.cpp - one strategy of an op, read off its specs ------------===//

#include "compiler/Spmd/OpSplit.h"

#include "compiler/Sharding/Problem/Strategies.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;
using analysis::ShardingRule;
using analysis::TensorFactors;

bool spmd::isControlFlow(Operation *op) {
  return llvm::is_contained({"stablehlo.while", "stablehlo.case", "stablehlo.if"},
                            op->getName().getStringRef());
}

bool spmd::carriesOperands(Operation *op) { return isa<stablehlo::WhileOp>(op); }

size_t spmd::specRank(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type ? type.getRank() : 0;
}

ShardingSpec spmd::withoutOnes(const ShardingSpec &spec, llvm::ArrayRef<int64_t> meshShape) {
  ShardingSpec kept = spec;
  for (auto &axes : kept.dims)
    llvm::erase_if(axes, [&](unsigned axis) { return meshShape[axis] == 1; });
  return kept;
}

ShardingSpec spmd::specInBody(const TensorFactors &tensor, const OpSplit &split) {
  ShardingSpec spec = ShardingSpec::replicated(tensor.size());
  for (auto [axes, dim] : llvm::zip_equal(spec.dims, tensor))
    if (!dim.empty())
      axes = split.factorAxes[dim[0]];
  return spec;
}

llvm::SmallVector<OpSplit::SummedAxis, 2> OpSplit::summedAxesOf(size_t result) const {
  llvm::SmallVector<SummedAxis, 2> axes = summedAxes;
  llvm::erase_if(axes, [&](SummedAxis summed) {
    return llvm::any_of(unreduced[result].dims, [&](llvm::ArrayRef<unsigned> split) {
      return llvm::is_contained(split, summed.axis);
    });
  });
  return axes;
}

namespace {

class SplitBuilder {
public:
  SplitBuilder(const ShardingRule &rule, llvm::ArrayRef<int64_t> meshShape)
      : rule(rule), meshShape(meshShape), projection(rule, meshShape) {
    split.factorAxes.resize(rule.factors.size());
    isSet.assign(rule.factors.size(), false);
  }

  /// Lets factors that nothing has split yet be split as the tensor is. With
  /// `onlyReductions`, only those.
  void take(const TensorFactors &tensor, const ShardingSpec &spec, bool onlyReductions = false) {
    for (auto [dim, axes] : llvm::zip_equal(tensor, spec.dims)) {
      if (dim.empty() || axes.empty() || isSet[dim[0]] || !projection.canSplit(dim[0]))
        continue;
      if (onlyReductions && rule.factors[dim[0]].kind != analysis::FactorKind::Reduction)
        continue;
      int64_t pieces = 1;
      for (unsigned axis : axes) {
        pieces *= meshShape[axis];
        if ((used >> axis & 1) || rule.factors[dim[0]].size % pieces != 0)
          break;
        split.factorAxes[dim[0]].push_back(axis);
        used |= 1u << axis;
      }
      isSet[dim[0]] = !split.factorAxes[dim[0]].empty();
    }
  }

  void take(llvm::ArrayRef<TensorFactors> tensors, llvm::ArrayRef<ShardingSpec> specs) {
    for (auto [tensor, spec] : llvm::zip_equal(tensors, specs))
      take(tensor, spec);
  }

  void takeCaptures(llvm::ArrayRef<ShardingSpec> specs) {
    for (auto [capture, spec] : llvm::zip(rule.captures, specs))
      take(capture.second, spec);
  }

  OpSplit finish() {
    for (const TensorFactors &tensor : rule.operands)
      split.operands.push_back(specInBody(tensor, split));
    for (const TensorFactors &tensor : rule.results)
      split.unreduced.push_back(specInBody(tensor, split));
    for (const auto &capture : rule.captures)
      split.captures.push_back(specInBody(capture.second, split));
    split.results = split.unreduced;
    for (auto [factor, axes] : llvm::zip_equal(rule.factors, split.factorAxes))
      if (factor.kind == analysis::FactorKind::Reduction)
        for (unsigned axis : axes)
          split.summedAxes.push_back({axis, factor.reducer});
    llvm::sort(split.summedAxes);
    return std::move(split);
  }

private:
  const ShardingRule &rule;
  llvm::ArrayRef<int64_t> meshShape;
  sharding::RuleProjection projection;
  OpSplit split;
  llvm::SmallVector<bool> isSet;
  unsigned used = 0; // Bit a: axis a splits some factor.
};

/// The specs of an op that only passes its operands on.
OpSplit forwarded(llvm::ArrayRef<ShardingSpec> specs) {
  OpSplit split;
  split.operands.assign(specs.begin(), specs.end());
  split.results = split.unreduced = split.operands;
  return split;
}

llvm::Error mismatch(const char *what, size_t index, const ShardingSpec &got,
                     const ShardingSpec &expected) {
  return llvm::createStringError("%s %zu is %s, expected %s", what, index, got.str().c_str(),
                                 expected.str().c_str());
}

/// Whether `spec` is `unreduced` with some of the summed axes behind it.
bool isScattered(const ShardingSpec &spec, const ShardingSpec &unreduced,
                 llvm::ArrayRef<OpSplit::SummedAxis> summedAxes) {
  for (auto [axes, before] : llvm::zip_equal(spec.dims, unreduced.dims)) {
    if (axes.size() < before.size() || !std::equal(before.begin(), before.end(), axes.begin()))
      return false;
    for (unsigned axis : llvm::drop_begin(axes, before.size()))
      if (llvm::none_of(summedAxes, [&](auto summed) { return summed.axis == axis; }))
        return false;
  }
  return true;
}

} // namespace

llvm::Expected<OpSplit> spmd::readSplit(const ShardingRule &rule,
                                        llvm::ArrayRef<ShardingSpec> operands,
                                        llvm::ArrayRef<ShardingSpec> results,
                                        llvm::ArrayRef<ShardingSpec> captures,
                                        llvm::ArrayRef<int64_t> meshShape) {
  if (rule.forwards) {
    for (auto [i, operand, result] : llvm::enumerate(operands, results))
      if (operand != result)
        return mismatch("result", i, result, operand);
    return forwarded(results);
  }
  SplitBuilder builder(rule, meshShape);
  builder.take(rule.operands, operands);
  builder.take(rule.results, results);
  builder.takeCaptures(captures);
  OpSplit split = builder.finish();
  for (auto [i, got, expected] : llvm::enumerate(operands, split.operands))
    if (got != expected)
      return mismatch("operand", i, got, expected);
  for (auto [i, got, expected] : llvm::enumerate(results, split.unreduced)) {
    if (!isScattered(got, expected, split.summedAxesOf(i)))
      return mismatch("result", i, got, expected);
    split.results[i] = got;
  }
  return split;
}

OpSplit spmd::nearestSplit(Operation *op, const ShardingRule &rule,
                           llvm::ArrayRef<ShardingSpec> operands,
                           std::optional<llvm::ArrayRef<ShardingSpec>> results,
                           llvm::ArrayRef<ShardingSpec> captures,
                           llvm::ArrayRef<int64_t> meshShape) {
  if (rule.forwards)
    return forwarded(results ? *results : operands);
  SplitBuilder builder(rule, meshShape);
  if (results)
    builder.take(rule.results, *results);
  auto elements = [&](unsigned operand) {
    auto type = dyn_cast<RankedTensorType>(op->getOperand(operand).getType());
    return type && type.hasStaticShape() ? type.getNumElements() : int64_t(0);
  };
  auto order = llvm::to_vector(llvm::seq<unsigned>(0, operands.size()));
  llvm::sort(order, [&](unsigned a, unsigned b) {
    return std::make_pair(-elements(a), a) < std::make_pair(-elements(b), b);
  });
  for (unsigned operand : order)
    builder.take(rule.operands[operand], operands[operand], results.has_value());
  builder.takeCaptures(captures);
  return builder.finish();
}
