//===- LoopRules.cpp - bodies split along what all their ops keep ----------===//
//
// A loop is split by one assignment for all of its iterations, a case by one for
// all of its branches. Dimensions of the values in the body are joined into classes
// wherever an op's rule walks through them by one factor. A class that every op can
// split, and that reaches a value outside, is a factor: the batch of a scanned
// layer, or its features.
//
//===----------------------------------------------------------------------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/IntEqClasses.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;

namespace {

/// Work that the same classes divide, and sums alike.
struct BodyWork {
  double flops = 0, bytes = 0;
  llvm::SmallVector<unsigned> elements;
  llvm::StringRef type;
  bool heavy = false;
};
struct BodySum {
  double bytes = 0, times = 0;
  llvm::SmallVector<unsigned> elements, summed;
};

class BodyAnalysis {
public:
  explicit BodyAnalysis(Operation *owner) : owner(owner) {}
  /// False if the body has something that cannot be looked into.
  bool run();
  ShardingRule getRule() { return makeRule().rule; }
  BodyFactors getBodyFactors();

private:
  bool visit(Operation &op, const ShardingRule &rule, double bytes, double times);
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
  /// Joins what the regions' arguments and results stand for.
  bool joinOutside(Region &region);
  void joinClasses();
  RuleBuilder makeRule();
  TensorFactors factorsOf(Value value);
  llvm::SmallVector<Value> getOutside() const {
    llvm::SmallVector<Value> values(owner->getOperands());
    llvm::append_range(values, owner->getResults());
    llvm::append_range(values, captures);
    return values;
  }

  /// More factors would only make the loop's choices many; the ones that divide
  /// the most work are kept.
  static constexpr unsigned kMaxFactors = 8;

  Operation *owner;
  llvm::SetVector<Value> captures; // Used by the body from outside.
  llvm::SmallVector<int64_t> sizes;
  llvm::SmallVector<bool> whole; // Must not be split.
  std::vector<std::pair<unsigned, unsigned>> joins;
  std::vector<llvm::SmallVector<unsigned>> apart; // Must be in classes of their own.
  llvm::DenseMap<Value, llvm::SmallVector<unsigned, 4>> valueDims;
  std::vector<BodyWork> work;
  std::vector<BodySum> sums;
  bool heavy = false;

  llvm::IntEqClasses classes;
  llvm::DenseMap<unsigned, unsigned> factorOf; // Of a class, if it is split.
};

/// Bytes that each op of a body moves. What is said of kernels is what ProblemBuilder has of ops
/// outside of loops: XLA computes elementwise values where they are read, goes on with rows that it
/// has reduced, and writes a part of what a loop carries where that is.
class BodyKernels {
public:
  BodyKernels(Operation *owner, llvm::ArrayRef<std::pair<Operation *, ShardingRule>> ops)
      : owner(owner), ops(ops) {
    for (const auto &[op, rule] : ops)
      rules[op] = &rule;
  }
  std::vector<double> bytes();

private:
  using Values = llvm::SmallSetVector<Value, 8>;

  static bool isElementwise(Operation *op, const ShardingRule &rule) {
    return op->getNumResults() == 1 && analysis::isElementwise(op, rule);
  }
  bool isElementwise(Operation *op) const {
    auto rule = rules.find(op);
    return rule != rules.end() && isElementwise(op, *rule->second);
  }
  bool isComputedInUsers(Operation *op, const ShardingRule &rule) const;
  double bytesOf(Operation *op, const ShardingRule &rule);
  /// What is read for a value.
  llvm::SmallVector<Value> sourcesOf(Value value) const {
    auto known = reads.find(value);
    return known == reads.end() ? llvm::SmallVector<Value>{value} : known->second;
  }
  bool isOneNumber(Value value) const;

  Operation *owner;
  llvm::ArrayRef<std::pair<Operation *, ShardingRule>> ops;
  llvm::DenseMap<Operation *, const ShardingRule *> rules;
  llvm::DenseMap<Value, llvm::SmallVector<Value>> reads; // Of what is not in memory.
  llvm::DenseMap<Value, llvm::SmallVector<Value>> rows;  // That the kernel of a value has reduced.
  std::set<std::vector<const void *>> reductions;        // What was reduced, and along what.
};

} // namespace

bool BodyKernels::isComputedInUsers(Operation *op, const ShardingRule &rule) const {
  if (!isElementwise(op, rule) || op->use_empty() || (!op->hasOneUse() && isComputedOnce(op)))
    return false;
  return llvm::all_of(op->getUsers(), [&](Operation *user) {
    auto it = rules.find(user);
    return it != rules.end() && !it->second->heavy && (!it->second->leads || readsPart(user));
  });
}

/// Whether a value is a constant with equal elements. JAX makes such ones in front of a loop; XLA
/// makes them within.
bool BodyKernels::isOneNumber(Value value) const {
  if (auto argument = llvm::dyn_cast<BlockArgument>(value)) {
    auto loop = llvm::dyn_cast<stablehlo::WhileOp>(owner);
    if (!loop || argument.getOwner()->getParentOp() != owner ||
        argument.getOwner()->getTerminator()->getOperand(argument.getArgNumber()) != argument)
      return false;
    value = loop->getOperand(argument.getArgNumber());
  }
  while (auto repeated = value.getDefiningOp<stablehlo::BroadcastInDimOp>())
    value = repeated.getOperand();
  auto constant = value.getDefiningOp<stablehlo::ConstantOp>();
  return constant && llvm::cast<DenseElementsAttr>(constant.getValue()).isSplat();
}

double BodyKernels::bytesOf(Operation *op, const ShardingRule &rule) {
  constexpr size_t kMostReads = 16;
  auto listOf = [](const Values &values) { return llvm::SmallVector<Value>(values.getArrayRef()); };
  if (llvm::isa<stablehlo::ReshapeOp, stablehlo::OptimizationBarrierOp>(op) || keepsPrecision(op)) {
    for (auto [operand, result] : llvm::zip_equal(op->getOperands(), op->getResults())) {
      reads[result] = sourcesOf(operand);
      rows[result] = llvm::SmallVector<Value>(rows.lookup(operand));
    }
    return 0;
  }
  Values sources, held;
  for (Value operand : op->getOperands()) {
    sources.insert_range(sourcesOf(operand));
    held.insert_range(rows.lookup(operand));
  }
  bool isReduction = reducesRows(op);
  if (sources.size() <= kMostReads && isComputedInUsers(op, rule)) {
    reads[op->getResult(0)] = listOf(sources);
    rows[op->getResult(0)] = listOf(held);
    return 0;
  }
  if (isReduction) {
    Values all = held;
    all.insert_range(sources);
    rows[op->getResult(0)] = listOf(all);
  }
  double most = std::numeric_limits<double>::infinity(), moved = 0;
  if (readsPart(op))
    most = getTensorBytes(op->getResult(0).getType());
  auto write = llvm::dyn_cast<stablehlo::DynamicUpdateSliceOp>(op);
  if (write)
    moved = most = getTensorBytes(write.getUpdate().getType());
  else
    for (Value result : op->getResults())
      moved += isWorkspace(result) ? 0 : getTensorBytes(result.getType());
  // The kernel of another reduction of the same makes both results.
  if (auto reduce = llvm::dyn_cast<stablehlo::ReduceOp>(op)) {
    std::vector<const void *> key;
    for (Value source : sources)
      key.push_back(source.getAsOpaquePointer());
    llvm::sort(key);
    key.push_back(reduce.getDimensionsAttr().getAsOpaquePointer());
    if (!reductions.insert(std::move(key)).second)
      return moved;
  }
  bool isFree = isElementwise(op, rule);
  auto isAtHand = [&](Value source) {
    if ((isFree || isReduction) && held.contains(source))
      return true;
    // Kernels of elementwise ops write what others need beside what comes next.
    Operation *made = source.getDefiningOp();
    return isFree && made && isElementwise(made) &&
           llvm::cast<RankedTensorType>(source.getType()).getNumElements() ==
               llvm::cast<RankedTensorType>(op->getResult(0).getType()).getNumElements();
  };
  for (Value source : sources)
    if (!(write && source == write.getOperand()) && !isAtHand(source) && !isOneNumber(source))
      moved += std::min(most, getTensorBytes(source.getType()));
  return moved;
}

std::vector<double> BodyKernels::bytes() {
  std::vector<double> moved;
  for (const auto &[op, rule] : ops)
    moved.push_back(bytesOf(op, rule));
  return moved;
}

void BodyAnalysis::connect(Value value, const TensorFactors &tensor,
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

void BodyAnalysis::joinValues(Value a, Value b) {
  llvm::SmallVector<unsigned, 4> left(dims(a)), right(dims(b));
  for (auto [x, y] : llvm::zip_equal(left, right))
    join(x, y);
}

bool BodyAnalysis::visit(Operation &op, const ShardingRule &rule, double bytes, double times) {
  heavy |= rule.heavy;
  llvm::SmallVector<unsigned> factors;
  for (const Factor &factor : rule.factors) {
    factors.push_back(element(factor.size));
    whole.back() |= factor.kind != FactorKind::Parallel && factor.kind != FactorKind::Reduction;
  }
  for (auto [operand, tensor] : llvm::zip_equal(op.getOperands(), rule.operands))
    connect(operand, tensor, factors);
  llvm::SetVector<Value> used;
  getUsedValuesDefinedAbove(op.getRegions(), used);
  for (const auto &[value, tensor] : rule.captures) {
    connect(value, tensor, factors);
    used.remove(value);
  }
  for (Value value : used) // Needed whole.
    connect(value, TensorFactors(shapeOf(value).size()), factors);
  for (auto [result, tensor] : llvm::zip_equal(op.getResults(), rule.results))
    connect(result, tensor, factors);
  // One axis cannot split two loops of an op: rows of a table by what they are and
  // the indices by where they stand would miss what crosses.
  if (!rule.forwards)
    apart.push_back(factors);

  auto elements = [&](llvm::ArrayRef<unsigned> list) {
    return llvm::map_to_vector(list, [&](unsigned factor) { return factors[factor]; });
  };
  if (rule.work.empty()) {
    work.push_back({times * timesComputed(&op) * getFlops(&op), times * bytes, factors,
                    getComputeType(&op), rule.heavy});
  } else {
    for (const ShardingRule::Work &part : rule.work)
      work.push_back(
          {times * part.flops, times * part.bytes, elements(part.factors), part.type, part.heavy});
    for (const ShardingRule::PartialSum &sum : rule.sums)
      sums.push_back({sum.bytes, times * sum.times, elements(sum.factors), elements(sum.summed)});
  }
  for (auto [result, tensor] : llvm::zip_equal(op.getResults(), rule.results)) {
    BodySum sum{getTensorBytes(result.getType()), times, {}, {}};
    for (const DimFactors &dim : tensor)
      if (!dim.empty())
        sum.elements.push_back(factors[dim[0]]);
    for (auto [i, factor] : llvm::enumerate(rule.factors))
      if (factor.kind == FactorKind::Reduction && !llvm::is_contained(sum.elements, factors[i]))
        sum.summed.push_back(factors[i]);
    if (!sum.summed.empty())
      sums.push_back(std::move(sum));
  }
  return true;
}

bool BodyAnalysis::joinOutside(Region &region) {
  Operation *end = region.front().getTerminator();
  if (auto loop = llvm::dyn_cast<stablehlo::WhileOp>(owner)) {
    if (region.getNumArguments() != loop->getNumOperands())
      return false;
    for (auto [operand, argument] : llvm::zip_equal(loop->getOperands(), region.getArguments()))
      joinValues(operand, argument);
    if (&region == &loop.getCond())
      return true;
    for (auto [operand, result] : llvm::zip_equal(loop->getOperands(), loop->getResults()))
      joinValues(operand, result);
  }
  for (auto [result, value] : llvm::zip_equal(owner->getResults(), end->getOperands()))
    joinValues(result, value);
  return true;
}

bool BodyAnalysis::run() {
  getUsedValuesDefinedAbove(owner->getRegions(), captures);
  double times = llvm::isa<stablehlo::WhileOp>(owner) ? getTripCount(owner) : 1;
  bool isChoice = llvm::isa<stablehlo::CaseOp>(owner);
  unsigned counted = isChoice ? getLongestBranch(owner) : 0;
  for (Region &region : owner->getRegions()) {
    double runs = isChoice && region.getRegionNumber() != counted ? 0 : times;
    if (!region.hasOneBlock() || !joinOutside(region))
      return false;
    std::vector<std::pair<Operation *, ShardingRule>> ops;
    for (Operation &op : region.front().without_terminator()) {
      std::optional<ShardingRule> rule = getShardingRule(&op);
      if (!rule)
        return false;
      ops.emplace_back(&op, std::move(*rule));
    }
    std::vector<double> bytes = BodyKernels(owner, ops).bytes();
    for (auto [op, moved] : llvm::zip_equal(ops, bytes))
      if (!visit(*op.first, op.second, moved, runs))
        return false;
  }
  joinClasses();
  return true;
}

void BodyAnalysis::joinClasses() {
  for (Value value : getOutside())
    (void)dims(value);
  classes.grow(sizes.size());
  for (auto [a, b] : joins)
    classes.join(a, b);
  classes.compress();
}

RuleBuilder BodyAnalysis::makeRule() {
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

  RuleBuilder builder(owner);
  llvm::SmallVector<unsigned> kept;
  for (Value value : getOutside())
    for (unsigned element : dims(value))
      if (unsigned id = classes[element]; !isWhole[id] && !llvm::is_contained(kept, id))
        kept.push_back(id);
  llvm::sort(kept, [&](unsigned a, unsigned b) {
    return std::make_pair(-benefit[a], a) < std::make_pair(-benefit[b], b);
  });
  if (kept.size() > kMaxFactors)
    kept.resize(kMaxFactors);
  for (unsigned id : kept)
    factorOf[id] = builder.factor(classSize[id]);
  for (auto [operand, tensor] : llvm::zip_equal(owner->getOperands(), builder.rule.operands))
    tensor = factorsOf(operand);
  for (auto [result, tensor] : llvm::zip_equal(owner->getResults(), builder.rule.results))
    tensor = factorsOf(result);
  for (Value value : captures)
    builder.rule.captures.push_back({value, factorsOf(value)});

  auto factors = [&](llvm::ArrayRef<unsigned> elements) {
    llvm::SmallVector<unsigned> list;
    for (unsigned element : elements)
      if (auto it = factorOf.find(classes[element]); it != factorOf.end())
        list.push_back(it->second);
    llvm::sort(list);
    list.erase(llvm::unique(list), list.end());
    return list;
  };
  std::map<std::tuple<std::vector<unsigned>, llvm::StringRef, bool>, ShardingRule::Work> merged;
  for (const BodyWork &part : work) {
    auto list = factors(part.elements);
    ShardingRule::Work &sum = merged[{{list.begin(), list.end()}, part.type, part.heavy}];
    sum.flops += part.flops;
    sum.bytes += part.bytes;
    sum.factors = list;
    sum.type = part.type;
    sum.heavy = part.heavy;
  }
  for (auto &[key, part] : merged)
    builder.rule.work.push_back(std::move(part));
  for (const BodySum &sum : sums)
    if (auto summed = factors(sum.summed); !summed.empty())
      builder.rule.sums.push_back({sum.bytes, sum.times, factors(sum.elements), summed});
  builder.rule.heavy = heavy && !kept.empty();
  builder.rule.leads = true;
  return builder;
}

TensorFactors BodyAnalysis::factorsOf(Value value) {
  TensorFactors tensor;
  for (unsigned element : dims(value)) {
    tensor.emplace_back();
    if (auto it = factorOf.find(classes[element]); it != factorOf.end())
      tensor.back().push_back(it->second);
  }
  return tensor;
}

BodyFactors BodyAnalysis::getBodyFactors() {
  makeRule();
  BodyFactors factors;
  for (const auto &[value, elements] : valueDims)
    factors[value] = factorsOf(value);
  return factors;
}

static ShardingRule body(Operation *op) {
  BodyAnalysis analysis(op);
  return analysis.run() ? analysis.getRule() : RuleBuilder(op).rule;
}

BodyFactors analysis::getBodyFactors(Operation *op) {
  BodyAnalysis analysis(op);
  return analysis.run() ? analysis.getBodyFactors() : BodyFactors();
}

/// Levels are parallel; blocks stay as their kernel was written for them.
static ShardingRule map(Operation *op) {
  auto map = llvm::cast<MapOp>(op);
  RuleBuilder builder(op);
  llvm::SmallVector<unsigned> levels;
  for (int64_t size : map.levelSizes())
    levels.push_back(builder.factor(size));
  for (unsigned index = 0; index < op->getNumOperands(); ++index)
    for (auto [dim, level] : llvm::enumerate(map.levelsOf(index)))
      builder.operand(index, static_cast<int64_t>(dim), {levels[level]});
  for (unsigned index = 0; index < op->getNumResults(); ++index)
    for (auto [dim, level] : llvm::enumerate(levels))
      builder.result(index, static_cast<int64_t>(dim), {level});
  builder.rule.heavy = true;
  return builder.rule;
}

void analysis::attachLoopRules(MLIRContext &context) {
  attachRule<body, stablehlo::WhileOp, stablehlo::CaseOp>(context);
}

void analysis::attachMapRules(MLIRContext &context) { attachRule<map, MapOp>(context); }
