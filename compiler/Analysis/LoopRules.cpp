//===- LoopRules.cpp - loops split along what every iteration keeps -------===//
//
// A loop is split by one assignment for all of its iterations. Dimensions of the
// values in its body are joined into classes wherever an op's rule walks through
// them by one factor. A class that every op can split, and that reaches a carried
// value, is a factor of the loop: the batch of a scanned layer, or its features.
//
//===----------------------------------------------------------------------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/IntEqClasses.h"
#include "llvm/ADT/STLExtras.h"
#include <map>
#include <numeric>

using namespace alpa;
using namespace mlir;

namespace {

/// Work that the same classes divide, and sums alike.
struct BodyWork {
  double flops = 0, bytes = 0;
  llvm::SmallVector<unsigned> elements;
};
struct BodySum {
  double bytes = 0, times = 0;
  llvm::SmallVector<unsigned> elements, summed;
};

class LoopAnalysis {
public:
  explicit LoopAnalysis(Operation *loop) : loop(loop) {}
  ShardingRule run();

private:
  bool visit(Operation &op, double times);
  void join(unsigned a, unsigned b) { joins.push_back({a, b}); }
  unsigned element(int64_t size) {
    sizes.push_back(size);
    whole.push_back(size == 1);
    return sizes.size() - 1;
  }
  llvm::ArrayRef<unsigned> dims(Value value) {
    auto [it, isNew] = valueDims.try_emplace(value);
    if (isNew)
      for (int64_t size : shapeOf(value))
        it->second.push_back(element(size));
    return it->second;
  }
  void connect(Value value, const TensorFactors &tensor, llvm::ArrayRef<unsigned> factors);
  void joinValues(Value a, Value b);
  ShardingRule makeRule();

  /// More factors would only make the loop's choices many; the ones that divide
  /// the most work are kept.
  static constexpr unsigned kMaxFactors = 8;

  Operation *loop;
  llvm::SmallVector<int64_t> sizes;
  llvm::SmallVector<bool> whole; // Must not be split.
  std::vector<std::pair<unsigned, unsigned>> joins;
  std::vector<llvm::SmallVector<unsigned>> apart; // Must be in classes of their own.
  llvm::DenseMap<Value, llvm::SmallVector<unsigned, 4>> valueDims;
  std::vector<BodyWork> work;
  std::vector<BodySum> sums;
  bool heavy = false;
};

} // namespace

void LoopAnalysis::connect(Value value, const TensorFactors &tensor,
                           llvm::ArrayRef<unsigned> factors) {
  // A copy: new elements may move the map.
  llvm::SmallVector<unsigned, 4> elements(dims(value));
  for (auto [element, dim] : llvm::zip_equal(elements, tensor)) {
    if (dim.empty()) {
      whole[element] = true;
      continue;
    }
    join(element, factors[dim[0]]);
    for (unsigned minor : llvm::drop_begin(dim))
      whole[factors[minor]] = true;
  }
}

void LoopAnalysis::joinValues(Value a, Value b) {
  llvm::SmallVector<unsigned, 4> left(dims(a)), right(dims(b));
  for (auto [x, y] : llvm::zip_equal(left, right))
    join(x, y);
}

bool LoopAnalysis::visit(Operation &op, double times) {
  std::optional<ShardingRule> rule = getShardingRule(&op);
  if (!rule)
    return false;
  heavy |= rule->heavy;
  llvm::SmallVector<unsigned> factors;
  for (const Factor &factor : rule->factors) {
    factors.push_back(element(factor.size));
    whole.back() |= factor.kind == FactorKind::Window || factor.kind == FactorKind::Sequential;
  }
  for (auto [operand, tensor] : llvm::zip_equal(op.getOperands(), rule->operands))
    connect(operand, tensor, factors);
  for (auto [result, tensor] : llvm::zip_equal(op.getResults(), rule->results))
    connect(result, tensor, factors);
  // One axis cannot split two loops of an op: rows of a table by what they are and
  // the indices by where they stand would miss what crosses.
  if (!rule->forwards)
    apart.push_back(factors);

  auto elements = [&](llvm::ArrayRef<unsigned> list) {
    return llvm::map_to_vector(list, [&](unsigned factor) { return factors[factor]; });
  };
  if (rule->work.empty()) {
    work.push_back({times * getFlops(&op), times * getBytes(&op), factors});
  } else {
    for (const ShardingRule::Work &part : rule->work)
      work.push_back({times * part.flops, times * part.bytes, elements(part.factors)});
    for (const ShardingRule::PartialSum &sum : rule->sums)
      sums.push_back({sum.bytes, times * sum.times, elements(sum.factors), elements(sum.summed)});
  }
  for (auto [result, tensor] : llvm::zip_equal(op.getResults(), rule->results)) {
    BodySum sum{getTensorBytes(result.getType()), times, {}, {}};
    for (const DimFactors &dim : tensor)
      if (!dim.empty())
        sum.elements.push_back(factors[dim[0]]);
    for (auto [i, factor] : llvm::enumerate(rule->factors))
      if (factor.kind == FactorKind::Reduction && !llvm::is_contained(sum.elements, factors[i]))
        sum.summed.push_back(factors[i]);
    if (!sum.summed.empty())
      sums.push_back(std::move(sum));
  }
  return true;
}

ShardingRule LoopAnalysis::run() {
  ShardingRule opaque = RuleBuilder(loop).rule;
  double times = getTripCount(loop);
  for (Region &region : loop->getRegions()) {
    if (!region.hasOneBlock() || region.getNumArguments() != loop->getNumOperands())
      return opaque;
    for (Operation &op : region.front().without_terminator())
      if (!visit(op, times))
        return opaque;
  }
  Region &body = loop->getRegion(1);
  Operation *terminator = body.front().getTerminator();
  for (unsigned i = 0; i < loop->getNumOperands(); ++i) {
    joinValues(loop->getOperand(i), loop->getResult(i));
    for (Region &region : loop->getRegions())
      joinValues(loop->getOperand(i), region.getArgument(i));
    joinValues(loop->getOperand(i), terminator->getOperand(i));
  }
  // Values from outside that are not carried are needed whole.
  for (auto &[value, elements] : valueDims) {
    bool isInside = loop->isAncestor(value.getParentRegion()->getParentOp());
    if (!isInside && value.getDefiningOp() != loop &&
        !llvm::is_contained(loop->getOperands(), value))
      for (unsigned element : elements)
        whole[element] = true;
  }
  return makeRule();
}

ShardingRule LoopAnalysis::makeRule() {
  llvm::IntEqClasses classes(sizes.size());
  for (auto [a, b] : joins)
    classes.join(a, b);
  classes.compress();
  unsigned numClasses = classes.getNumClasses();
  llvm::SmallVector<int64_t> classSize(numClasses, 0);
  llvm::SmallVector<bool> isWhole(numClasses, false);
  llvm::SmallVector<double> benefit(numClasses, 0);
  for (unsigned i = 0; i < sizes.size(); ++i) {
    classSize[classes[i]] = std::gcd(classSize[classes[i]], sizes[i]);
    isWhole[classes[i]] = isWhole[classes[i]] || whole[i];
  }
  // One tensor or op cannot be split twice by the same axes.
  auto keepApart = [&](llvm::ArrayRef<unsigned> elements) {
    for (unsigned i = 0; i < elements.size(); ++i)
      for (unsigned j = 0; j < i; ++j)
        if (classes[elements[i]] == classes[elements[j]])
          isWhole[classes[elements[i]]] = true;
  };
  for (auto &[value, elements] : valueDims)
    keepApart(elements);
  for (const auto &factors : apart)
    keepApart(factors);
  for (const BodyWork &part : work)
    for (unsigned element : part.elements)
      benefit[classes[element]] += part.flops + part.bytes;

  RuleBuilder builder(loop);
  llvm::SmallVector<unsigned> kept;
  for (Value operand : loop->getOperands())
    for (unsigned element : dims(operand))
      if (unsigned id = classes[element]; !isWhole[id] && !llvm::is_contained(kept, id))
        kept.push_back(id);
  llvm::sort(kept, [&](unsigned a, unsigned b) {
    return std::make_pair(-benefit[a], a) < std::make_pair(-benefit[b], b);
  });
  if (kept.size() > kMaxFactors)
    kept.resize(kMaxFactors);
  llvm::DenseMap<unsigned, unsigned> factorOf;
  for (unsigned id : kept)
    factorOf[id] = builder.factor(classSize[id]);
  for (auto [i, operand] : llvm::enumerate(loop->getOperands()))
    for (auto [dim, element] : llvm::enumerate(dims(operand)))
      if (auto it = factorOf.find(classes[element]); it != factorOf.end())
        builder.operand(i, dim, {it->second}).result(i, dim, {it->second});

  auto factors = [&](llvm::ArrayRef<unsigned> elements) {
    llvm::SmallVector<unsigned> list;
    for (unsigned element : elements)
      if (auto it = factorOf.find(classes[element]); it != factorOf.end())
        list.push_back(it->second);
    llvm::sort(list);
    list.erase(llvm::unique(list), list.end());
    return list;
  };
  std::map<std::vector<unsigned>, ShardingRule::Work> merged;
  for (const BodyWork &part : work) {
    auto list = factors(part.elements);
    ShardingRule::Work &sum = merged[{list.begin(), list.end()}];
    sum.flops += part.flops;
    sum.bytes += part.bytes;
    sum.factors = list;
  }
  for (auto &[key, part] : merged)
    builder.rule.work.push_back(std::move(part));
  for (const BodySum &sum : sums)
    if (auto summed = factors(sum.summed); !summed.empty())
      builder.rule.sums.push_back({sum.bytes, sum.times, factors(sum.elements), summed});
  builder.rule.heavy = heavy && !kept.empty();
  builder.rule.leads = true;
  return builder.rule;
}

static ShardingRule whileLoop(Operation *op) { return LoopAnalysis(op).run(); }

void alpa::attachLoopRules(MLIRContext &context) {
  attachRule<whileLoop, stablehlo::WhileOp>(context);
  attachWhole<stablehlo::CaseOp>(context);
}
