//===- Methods.cpp - ways to parallelize that are known by name -----------===//

#include "compiler/Sharding/Methods/Methods.h"

#include "compiler/Analysis/Draws.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "compiler/Sharding/Problem/Strategies.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Common/ErrorCode.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/OpDefinition.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallBitVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;
using analysis::shapeOf;
using analysis::ShardingRule;
using analysis::TensorFactors;

//===----------------------------------------------------------------------===//
// What a step's values are to a method
//===----------------------------------------------------------------------===//

MethodRoles::MethodRoles(func::FuncOp main) : main(main) {
  for (Operation &op : main.getBody().front().without_terminator())
    if (std::optional<ShardingRule> rule = analysis::getShardingRule(&op))
      rules.try_emplace(&op, std::move(*rule));
  findRoles();
  findBatch();
  findWeights();
  findExperts();
}

const ShardingRule *MethodRoles::ruleOf(Operation *op) const {
  auto it = rules.find(op);
  return it == rules.end() ? nullptr : &it->second;
}

static constexpr uint64_t kAllDims = ~uint64_t(0);

static bool isReal(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type && llvm::isa<FloatType, ComplexType>(type.getElementType());
}

/// Whether an op of such a phase reads the value; what the function returns is read by nobody.
static bool isReadIn(Value value, llvm::function_ref<bool(OpPhase)> isWanted) {
  return llvm::any_of(value.getUsers(), [&](Operation *user) {
    Operation *top = value.getParentBlock()->findAncestorOpInBlock(*user);
    return top && !top->hasTrait<OpTrait::IsTerminator>() && isWanted(opPhaseOf(top));
  });
}
static bool isUpdate(OpPhase phase) { return phase == OpPhase::Update; }
static bool isNoUpdate(OpPhase phase) { return phase != OpPhase::Update; }
static bool isOfMicroBatches(OpPhase phase) { return !runsOnce(phase); }

void MethodRoles::findRoles() {
  for (BlockArgument argument : main.getArguments()) {
    auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind);
    if (kind && kind.getValue() == "batch")
      roles[argument] = ValueRole::Batch;
    else if (!isReal(argument))
      roles[argument] = ValueRole::Bookkeeping;
    else
      roles[argument] =
          isReadIn(argument, isNoUpdate) ? ValueRole::Parameter : ValueRole::OptimizerState;
  }
  for (Operation &op : main.getBody().front().without_terminator())
    for (Value result : op.getResults()) {
      if (!isReal(result))
        continue;
      // Micro-batches read it in place of a parameter.
      if (opPhaseOf(&op) == OpPhase::Prepare && isReadIn(result, isOfMicroBatches))
        roles[result] = ValueRole::Parameter;
      else if (opPhaseOf(&op) == OpPhase::Backward && isReadIn(result, isUpdate))
        roles[result] = ValueRole::Gradient;
    }
}

/// Factors that are the major one of a labelled dimension.
static void mark(Value value, const TensorFactors &tensor, uint64_t dims,
                 llvm::SmallBitVector &factors) {
  for (size_t dim = 0; dim < std::min<size_t>(tensor.size(), 64); ++dim)
    if (((dims >> dim) & 1) && !tensor[dim].empty())
      factors.set(tensor[dim][0]);
}

static uint64_t dimsOf(const TensorFactors &tensor, const llvm::SmallBitVector &factors) {
  uint64_t dims = 0;
  for (size_t dim = 0; dim < std::min<size_t>(tensor.size(), 64); ++dim)
    if (!tensor[dim].empty() && factors.test(tensor[dim][0]))
      dims |= uint64_t(1) << dim;
  return dims;
}

/// What an op reads: its operands, and what its regions use from outside, as the branches of a
/// case do.
static llvm::SmallVector<std::pair<Value, TensorFactors>> readsOf(Operation *op,
                                                                  const ShardingRule &rule) {
  llvm::SmallVector<std::pair<Value, TensorFactors>> reads;
  for (auto [value, tensor] : llvm::zip_equal(op->getOperands(), rule.operands))
    reads.emplace_back(value, tensor);
  for (const auto &[value, tensor] : rule.captures)
    reads.emplace_back(value, tensor);
  return reads;
}

bool MethodRoles::pushForward(Operation *op, const ShardingRule &rule, Labels &labels) {
  llvm::SmallBitVector factors(rule.factors.size());
  for (const auto &[value, tensor] : readsOf(op, rule))
    mark(value, tensor, labels.lookup(value), factors);
  bool isNew = false;
  if (factors.none())
    return false;
  for (auto [value, tensor] : llvm::zip_equal(op->getResults(), rule.results)) {
    uint64_t dims = dimsOf(tensor, factors);
    uint64_t &known = labels[value];
    isNew |= (dims & ~known) != 0;
    known |= dims;
  }
  return isNew;
}

template <typename Wanted>
bool MethodRoles::pushBackward(Operation *op, const ShardingRule &rule, Labels &labels,
                               Wanted wanted) {
  llvm::SmallBitVector factors(rule.factors.size());
  for (auto [value, tensor] : llvm::zip_equal(op->getResults(), rule.results))
    mark(value, tensor, labels.lookup(value), factors);
  auto reads = readsOf(op, rule);
  for (const auto &[value, tensor] : reads)
    mark(value, tensor, labels.lookup(value), factors);
  bool isNew = false;
  for (const auto &[value, tensor] : reads) {
    uint64_t dims = dimsOf(tensor, factors) & wanted(value);
    if (!dims)
      continue;
    uint64_t &known = labels[value];
    isNew |= (dims & ~known) != 0;
    known |= dims;
  }
  return isNew;
}

/// Dimensions of the results along which an op reads nothing that has parts: those that a
/// broadcast grows, and what is made of them. `known` says so of operands.
static void findGrown(Operation &op, const ShardingRule &rule,
                      llvm::function_ref<uint64_t(Value)> known,
                      llvm::DenseMap<Value, uint64_t> &grown) {
  if (rule.forwards) {
    for (auto [operand, result] : llvm::zip_equal(op.getOperands(), op.getResults()))
      grown[result] = known(operand);
    return;
  }
  // Loops draw random bits.
  if (op.getNumRegions() > 0 && !llvm::isa<stablehlo::WhileOp>(op))
    return;
  llvm::SmallBitVector free(rule.factors.size());
  for (auto [index, factor] : llvm::enumerate(rule.factors))
    free[index] = factor.kind == analysis::FactorKind::Parallel;
  for (const auto &[value, tensor] : readsOf(&op, rule)) {
    uint64_t dims = known(value);
    for (auto [dim, factors] : llvm::enumerate(tensor))
      if (dim >= 64 || !((dims >> dim) & 1))
        for (unsigned factor : factors)
          free.reset(factor);
  }
  for (auto [value, tensor] : llvm::zip_equal(op.getResults(), rule.results))
    grown[value] = dimsOf(tensor, free);
}

/// Whether what the op's regions use from outside is all as `isWanted` says.
static bool capturesOnly(Operation &op, llvm::function_ref<bool(Value)> isWanted) {
  bool all = true;
  mlir::visitUsedValuesDefinedAbove(op.getRegions(),
                                    [&](mlir::OpOperand *use) { all &= isWanted(use->get()); });
  return all;
}

void MethodRoles::findBatch() {
  for (BlockArgument argument : main.getArguments())
    if (of(argument) == ValueRole::Batch)
      batch[argument] = 1;
  // Or made of the micro-batch's number, such as positions.
  llvm::DenseSet<Value> constants;
  for (BlockArgument argument : main.getArguments())
    if (main.getArgAttr(argument.getArgNumber(), attr::perMicroBatch))
      constants.insert(argument);
  auto isConstant = [&](Value value) { return constants.contains(value); };
  llvm::DenseMap<Value, uint64_t> grown;
  auto freeDims = [&](Value value) { return isConstant(value) ? kAllDims : grown.lookup(value); };
  Block &body = main.getBody().front();
  analysis::Draws draws(main);
  for (Operation &op : body.without_terminator()) {
    if (const ShardingRule *rule = ruleOf(&op)) {
      if (opPhaseOf(&op) != OpPhase::Update)
        for (unsigned operand : draws.operandsOf(&op))
          batch[op.getOperand(operand)] |= 1;
      pushForward(&op, *rule, batch);
      findGrown(op, *rule, freeDims, grown);
    }
    if (llvm::isa<stablehlo::OptimizationBarrierOp>(op)) {
      for (auto [operand, result] : llvm::zip_equal(op.getOperands(), op.getResults()))
        if (isConstant(operand))
          constants.insert(result);
    } else if (llvm::all_of(op.getOperands(), isConstant) && capturesOnly(op, isConstant)) {
      constants.insert(op.result_begin(), op.result_end());
    }
  }
  // A constant has the batch where its user does, such as the zeros that the gradient
  // of a gather adds to, and so does what is broadcast, such as a bias of all examples.
  for (Operation &op : llvm::reverse(body.without_terminator()))
    if (const ShardingRule *rule = ruleOf(&op))
      pushBackward(&op, *rule, batch, freeDims);
}

/// Factors by which all operands and the result of a dot are batched.
static llvm::SmallBitVector batchFactors(const ShardingRule &rule) {
  llvm::SmallBitVector all(rule.factors.size(), true);
  auto keep = [&](const TensorFactors &tensor) {
    llvm::SmallBitVector here(rule.factors.size());
    for (const analysis::DimFactors &dim : tensor)
      if (!dim.empty() && rule.factors[dim[0]].kind == analysis::FactorKind::Parallel &&
          rule.factors[dim[0]].size > 1)
        here.set(dim[0]);
    all &= here;
  };
  llvm::for_each(rule.operands, keep);
  llvm::for_each(rule.results, keep);
  return all;
}

void MethodRoles::findWeights() {
  llvm::DenseSet<Value> constants;
  for (BlockArgument argument : main.getArguments())
    if (of(argument) == ValueRole::Parameter)
      weights.insert(argument);
  for (Operation &op : main.getBody().front().without_terminator()) {
    const ShardingRule *rule = ruleOf(&op);
    if (!rule || rule->heavy || rule->leads || op.getNumRegions() > 0)
      continue;
    bool anyWeight = false, isPure = true;
    for (Value operand : op.getOperands()) {
      anyWeight |= weights.contains(operand);
      isPure &= weights.contains(operand) || constants.contains(operand);
    }
    if (isa<stablehlo::OptimizationBarrierOp>(op)) { // As jax.checkpoint has them.
      for (auto [operand, result] : llvm::zip_equal(op.getOperands(), op.getResults()))
        if (weights.contains(operand))
          weights.insert(result);
    } else if (isPure) {
      (anyWeight ? weights : constants).insert(op.result_begin(), op.result_end());
    }
  }
}

/// What a product of rows with the weights of their group has the groups in, and that
/// dimension's bit: its weights, or the sums that are their gradient.
static std::pair<Value, uint64_t> groupsOf(Operation &op) {
  if (auto dot = llvm::dyn_cast<GroupedDotOp>(op))
    return {dot.getWeights(), 1};
  if (auto sum = llvm::dyn_cast<GroupedSumOp>(op))
    return {sum.getResult(), uint64_t(1) << (shapeOf(sum.getLhs()).size() - 2)};
  return {nullptr, 0};
}

void MethodRoles::findExperts() {
  Block &body = main.getBody().front();
  for (Operation &op : body.without_terminator()) {
    if (auto [groups, dim] = groupsOf(op); groups && weights.count(groups))
      experts[groups] |= dim;
    const ShardingRule *rule = ruleOf(&op);
    if (!rule || !rule->heavy || op.getNumOperands() != 2 || op.getNumResults() != 1)
      continue;
    if (weights.count(op.getOperand(0)) == weights.count(op.getOperand(1)))
      continue;
    llvm::SmallBitVector factors = batchFactors(*rule), overBatch(rule->factors.size());
    for (unsigned i : {0u, 1u})
      mark(op.getOperand(i), rule->operands[i], batchDims(op.getOperand(i)), overBatch);
    factors.reset(overBatch);
    if (factors.none())
      continue;
    for (unsigned i : {0u, 1u})
      if (weights.count(op.getOperand(i)))
        experts[op.getOperand(i)] |= dimsOf(rule->operands[i], factors);
  }
  if (experts.empty())
    return;
  // Up to the arguments, down to everything made of them, and from the gradients
  // to the optimizer's state.
  for (Operation &op : llvm::reverse(body.without_terminator()))
    if (const ShardingRule *rule = ruleOf(&op); rule && !rule->heavy && !rule->leads)
      pushBackward(&op, *rule, experts,
                   [&](Value value) { return weights.count(value) ? kAllDims : 0; });
  bool isNew = true;
  while (isNew) {
    isNew = false;
    for (Operation &op : body.without_terminator()) {
      const ShardingRule *rule = ruleOf(&op);
      if (!rule)
        continue;
      isNew |= pushForward(&op, *rule, experts);
      if (opPhaseOf(&op) == OpPhase::Update &&
          analysis::isElementwiseName(op.getName().getStringRef()))
        isNew |= pushBackward(&op, *rule, experts, [](Value) { return kAllDims; });
    }
  }
  for (Operation &op : body.without_terminator()) {
    if (auto [groups, dim] = groupsOf(op); groups && (expertDims(groups) & dim))
      expertOps.insert(&op);
    const ShardingRule *rule = ruleOf(&op);
    if (!rule || !rule->heavy || op.getNumOperands() != 2 || op.getNumResults() != 1)
      continue;
    llvm::SmallBitVector factors = batchFactors(*rule), overExperts(rule->factors.size());
    for (unsigned i : {0u, 1u})
      mark(op.getOperand(i), rule->operands[i], expertDims(op.getOperand(i)), overExperts);
    factors &= overExperts;
    if (factors.none())
      continue;
    expertOps.insert(&op);
    // What the experts take lies by expert too.
    for (unsigned i : {0u, 1u})
      experts[op.getOperand(i)] |= dimsOf(rule->operands[i], factors);
  }
}

//===----------------------------------------------------------------------===//
// Split the inputs, propagate the rest
//
// The baseline "Heuristic" of Alpa (OSDI 2022, section 8.2): the largest dimension
// of every input is split over all devices, and shardings are propagated as GSPMD
// does (Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation
// Graphs", 2021, section 3.5): to and fro through the ops until nothing changes,
// through elementwise ops before others, and never against what is set already.
//===----------------------------------------------------------------------===//

namespace {

class Propagation {
public:
  Propagation(const MethodRoles &roles, llvm::ArrayRef<int64_t> meshShape)
      : roles(roles), meshShape(meshShape) {}

  PlanFilter run();

private:
  struct Visit {
    Operation *op;
    const ShardingRule *rule;
    unsigned priority; // 0 elementwise, 1 other cheap ops, 2 dots and the like.
  };

  PackedSpec largestDim(Value value) const;
  Assignment assign(const Visit &visit, bool resultsFirst) const;
  bool visit(const Visit &visit);
  bool refine(Value value, PackedSpec wanted);

  const MethodRoles &roles;
  llvm::ArrayRef<int64_t> meshShape;
  llvm::DenseMap<Value, PackedSpec> specs;
};

} // namespace

PackedSpec Propagation::largestDim(Value value) const {
  llvm::ArrayRef<int64_t> shape = shapeOf(value);
  PackedSpec spec;
  if (shape.empty())
    return spec;
  int dim = static_cast<int>(llvm::max_element(shape) - shape.begin());
  int64_t pieces = 1;
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (meshShape[axis] > 1 && shape[dim] % (pieces * meshShape[axis]) == 0) {
      spec.set(axis, dim);
      pieces *= meshShape[axis];
    }
  return spec;
}

/// What each axis splits, by the result and the operands, larger ones first. A sum
/// is split only if no axis of the result says otherwise.
Assignment Propagation::assign(const Visit &visit, bool resultsFirst) const {
  RuleProjection projection(*visit.rule, meshShape);
  Assignment axes;
  auto take = [&](const TensorFactors &tensor, Value value) {
    Assignment other = projection.fromSpec(tensor, specs.lookup(value));
    for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
      int16_t factor = other.factor[axis];
      if (factor < 0 || axes.factor[axis] >= 0)
        continue;
      int64_t pieces = meshShape[axis];
      for (unsigned before = 0; before < meshShape.size(); ++before)
        if (axes.factor[before] == factor)
          pieces *= meshShape[before];
      if (visit.rule->factors[factor].size % pieces == 0)
        axes.factor[axis] = factor;
    }
  };
  auto takeResults = [&] {
    for (auto [value, tensor] : llvm::zip_equal(visit.op->getResults(), visit.rule->results))
      take(tensor, value);
  };
  if (resultsFirst)
    takeResults();
  llvm::SmallVector<std::pair<double, unsigned>> order; // Largest first, then the first.
  for (auto [i, operand] : llvm::enumerate(visit.op->getOperands()))
    order.push_back({-analysis::getTensorBytes(operand.getType()), static_cast<unsigned>(i)});
  llvm::sort(order);
  for (auto [bytes, operand] : order)
    take(visit.rule->operands[operand], visit.op->getOperand(operand));
  if (!resultsFirst)
    takeResults();
  return axes;
}

/// Adds the axes that a value does not use yet; true if there was one.
bool Propagation::refine(Value value, PackedSpec wanted) {
  if (llvm::isa<BlockArgument>(value))
    return false; // Inputs stay as they were marked.
  PackedSpec &spec = specs[value], before = spec;
  llvm::ArrayRef<int64_t> shape = shapeOf(value);
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    int dim = wanted.dimOf(axis);
    if (dim >= 0 && spec.dimOf(axis) < 0 &&
        shape[dim] % (spec.numPieces(dim, meshShape) * meshShape[axis]) == 0)
      spec.set(axis, dim);
  }
  return spec != before;
}

bool Propagation::visit(const Visit &visit) {
  RuleProjection projection(*visit.rule, meshShape);
  Assignment axes = assign(visit, /*resultsFirst=*/true);
  bool isNew = false;
  for (auto [value, tensor] : llvm::zip_equal(visit.op->getResults(), visit.rule->results))
    isNew |= refine(value, projection.toSpec(tensor, axes));
  for (auto [value, tensor] : llvm::zip_equal(visit.op->getOperands(), visit.rule->operands))
    isNew |= refine(value, projection.toSpec(tensor, axes));
  return isNew;
}

PlanFilter Propagation::run() {
  Block &body = roles.getFunction().getBody().front();
  for (BlockArgument argument : body.getArguments())
    if (roles.of(argument) != ValueRole::Bookkeeping)
      specs[argument] = largestDim(argument);
  std::vector<Visit> visits;
  for (Operation &op : body.without_terminator())
    if (const ShardingRule *rule = roles.ruleOf(&op))
      visits.push_back({&op, rule,
                        analysis::isElementwiseName(op.getName().getStringRef()) ? 0u
                        : rule->heavy                                            ? 2u
                                                                                 : 1u});
  // Specs only gain axes, so this ends.
  for (unsigned priority = 0; priority <= 2;) {
    bool isNew = false;
    for (const Visit &next : visits)
      isNew |= next.priority <= priority && visit(next);
    for (const Visit &next : llvm::reverse(visits))
      isNew |= next.priority <= priority && visit(next);
    priority = isNew ? 0 : priority + 1;
  }

  using Wanted = std::pair<llvm::SmallVector<ShardingSpec>, llvm::SmallVector<ShardingSpec>>;
  auto strategies = std::make_shared<llvm::DenseMap<Operation *, Wanted>>();
  PlanFilter filter;
  for (BlockArgument argument : body.getArguments())
    if (llvm::isa<RankedTensorType>(argument.getType()))
      filter.pinned[argument] =
          specs.lookup(argument).unpack(shapeOf(argument).size(), meshShape.size());
  for (const Visit &next : visits) {
    if (!next.rule->heavy && !next.rule->leads)
      continue;
    RuleProjection projection(*next.rule, meshShape);
    Assignment axes = assign(next, /*resultsFirst=*/true);
    Wanted &wanted = (*strategies)[next.op];
    for (auto [value, tensor] : llvm::zip_equal(next.op->getOperands(), next.rule->operands))
      wanted.first.push_back(
          projection.toSpec(tensor, axes).unpack(shapeOf(value).size(), meshShape.size()));
    for (auto [value, tensor] : llvm::zip_equal(next.op->getResults(), next.rule->results))
      wanted.second.push_back(
          projection.toSpec(tensor, axes).unpack(shapeOf(value).size(), meshShape.size()));
  }
  filter.allowsStrategy = [strategies](Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                                       llvm::ArrayRef<ShardingSpec> results) {
    auto it = strategies->find(op);
    return it == strategies->end() || (llvm::ArrayRef(it->second.first) == operands &&
                                       llvm::ArrayRef(it->second.second) == results);
  };
  return filter;
}

PlanFilter sharding::propagatedFilter(const MethodRoles &roles, llvm::ArrayRef<int64_t> meshShape) {
  return Propagation(roles, meshShape).run();
}

//===----------------------------------------------------------------------===//
// Ways to parallelize that are known by name
//===----------------------------------------------------------------------===//

static constexpr MethodInfo kMethods[] = {
    {"auto", "Everything is the solver's choice"},
    {"data-parallel", "The batch is split over all devices, everything else is replicated, and "
                      "gradients are all-reduced"},
    {"zero-2", "Data parallel, with gradients and optimizer state split over all devices"},
    {"zero-3", "Data parallel, with gradients, optimizer state and parameters split over all "
               "devices; parameters are gathered for use"},
    {"megatron", "The batch is split over all mesh axes but the last, and dots by columns or rows "
                 "over the last"},
    {"megatron-sequence", "megatron, with the sums of its dots scattered where that is cheaper, so "
                          "that values between them are split over the last axis as well"},
    {"megatron-zero-1", "megatron-sequence, with optimizer state split over all devices"},
    {"megatron-zero-3", "megatron-sequence, with optimizer state and parameters split over all "
                        "devices; parameters are gathered for use"},
    {"hybrid-zero-3", "zero-3 over the last mesh axis, data parallel over the others"},
    {"expert-parallel", "Experts are split over all devices, everything else is data parallel"},
    {"expert-zero-2", "Experts are split over all devices, and for everything else gradients and "
                      "optimizer state are"},
    {"heuristic", "The largest dimension of every input is split over all devices, and propagated "
                  "through the step as GSPMD does"},
    {"manual", "What the user has pinned is kept, and the rest is the solver's choice"},
};
llvm::ArrayRef<MethodInfo> sharding::methodTable() { return kMethods; }

llvm::Error sharding::checkName(llvm::StringRef kind, llvm::ArrayRef<MethodInfo> table,
                                llvm::StringRef name) {
  std::string names;
  for (const MethodInfo &info : table) {
    if (info.name == name)
      return llvm::Error::success();
    names += (names.empty() ? "" : ", ") + info.name.str();
  }
  return makeError(ErrorCode::Method,
                   "unknown " + kind + " '" + name + "', expected one of " + names);
}

llvm::StringRef sharding::useOfLastAxis(llvm::StringRef name) {
  return name.starts_with("megatron") ? "tensors" : name.starts_with("hybrid") ? "state" : "";
}

llvm::Error sharding::checkMethod(llvm::StringRef name) {
  return checkName("method", kMethods, name);
}

namespace {

/// Whether the axis splits one of the tensor's dimensions in `dims`, another one,
/// or none.
enum class Splits { Nothing, Wanted, Other };
Splits splits(const ShardingSpec &spec, unsigned axis, uint64_t dims) {
  for (size_t dim = 0; dim < spec.dims.size(); ++dim)
    if (llvm::is_contained(spec.dims[dim], axis))
      return dim < 64 && ((dims >> dim) & 1) ? Splits::Wanted : Splits::Other;
  return Splits::Nothing;
}

bool uses(const ShardingSpec &spec, unsigned axis) {
  return splits(spec, axis, 0) != Splits::Nothing;
}

struct Restriction {
  const MethodRoles &roles;
  llvm::SmallVector<int64_t> meshShape;
  bool splitsState = false;      // Optimizer state and gradients: ZeRO.
  bool splitsParameters = false; // ZeRO-3.
  bool splitsExperts = false;
  int tensorAxis = -1; // Megatron: all other axes are for the batch.
  bool scattersTensorSums = false;
  unsigned zeroAxes = ~0u; // Over which state is split, one bit each.

  bool allowsSpec(Value value, const ShardingSpec &spec) const;
  bool allowsStrategy(Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                      llvm::ArrayRef<ShardingSpec> results) const;

private:
  bool isBatchAxis(unsigned axis) const { return static_cast<int>(axis) != tensorAxis; }
  bool isZeroAxis(unsigned axis) const { return (zeroAxes >> axis) & 1; }
  bool splitsWeight(Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                    llvm::ArrayRef<ShardingSpec> results, unsigned axis) const;
  bool isMostSplit(Value value, const ShardingSpec &spec, uint64_t dims,
                   llvm::function_ref<bool(unsigned)> mayUse) const;
};

} // namespace

/// Whether no even spec that splits `dims` only, by axes that it may use, has more
/// pieces.
bool Restriction::isMostSplit(Value value, const ShardingSpec &spec, uint64_t dims,
                              llvm::function_ref<bool(unsigned)> mayUse) const {
  auto isCandidate = [&](const ShardingSpec &other) {
    for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
      Splits how = splits(other, axis, dims);
      if (how == Splits::Other || (how == Splits::Wanted && !mayUse(axis)))
        return false;
    }
    return true;
  };
  if (!isCandidate(spec))
    return false;
  llvm::ArrayRef<int64_t> shape = shapeOf(value);
  int64_t pieces = spec.numPieces(meshShape);
  return llvm::none_of(allSpecs(shape, meshShape), [&](PackedSpec packed) {
    ShardingSpec other = packed.unpack(shape.size(), meshShape.size());
    return other.numPieces(meshShape) > pieces && isCandidate(other);
  });
}

bool Restriction::allowsSpec(Value value, const ShardingSpec &spec) const {
  auto isBatch = [&](unsigned axis) { return isBatchAxis(axis); };
  auto isZero = [&](unsigned axis) { return isZeroAxis(axis); };
  ValueRole role = roles.of(value);
  switch (role) {
  case ValueRole::Other:
    return true;
  case ValueRole::Batch:
    return isMostSplit(value, spec, /*dims=*/1, isBatch);
  case ValueRole::Bookkeeping:
    return spec.isReplicated();
  case ValueRole::Parameter:
  case ValueRole::OptimizerState:
  case ValueRole::Gradient:
    break;
  }
  if (splitsExperts && roles.expertDims(value))
    return isMostSplit(value, spec, roles.expertDims(value), [](unsigned) { return true; });
  if (role == ValueRole::Parameter ? splitsParameters : splitsState) {
    Operation *maker = value.getDefiningOp();
    bool mayBeGathered = maker && maker->hasAttr(attr::movable);
    return isMostSplit(value, spec, kAllDims, isZero) || (mayBeGathered && spec.isReplicated());
  }
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (isBatchAxis(axis) && uses(spec, axis))
      return false;
  return true;
}

/// Whether the axis splits the weight of a dot that has one, if it splits the dot: by
/// columns or by rows, not what is multiplied with a whole weight.
bool Restriction::splitsWeight(Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                               llvm::ArrayRef<ShardingSpec> results, unsigned axis) const {
  bool anyWeight = false, isSplit = false, isUsed = false;
  for (auto [value, spec] : llvm::zip_equal(op->getOperands(), operands)) {
    isUsed |= uses(spec, axis);
    if (!roles.isWeight(value))
      continue;
    anyWeight = true;
    isSplit |= uses(spec, axis);
  }
  for (const ShardingSpec &spec : results)
    isUsed |= uses(spec, axis);
  return !anyWeight || isSplit || !isUsed;
}

bool Restriction::allowsStrategy(Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                                 llvm::ArrayRef<ShardingSpec> results) const {
  bool isUpdate = opPhaseOf(op) == OpPhase::Update;
  if (isUpdate && (splitsState || splitsExperts))
    return true;
  // Rows of a stack of weights lie as the stack does.
  if (op->getNumResults() == 1 && roles.isWeight(op->getResult(0)))
    return true;
  const ShardingRule *rule = roles.ruleOf(op);
  bool isGrouped = llvm::isa<GroupedDotOp, GroupedSumOp>(op);
  auto isByExpert = [&](ValueRange values, llvm::ArrayRef<ShardingSpec> specs, unsigned axis) {
    return llvm::any_of(llvm::zip_equal(values, specs), [&](auto pair) {
      auto [value, spec] = pair;
      return splits(spec, axis, roles.expertDims(value)) == Splits::Wanted;
    });
  };
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    bool wantsBatch = isBatchAxis(axis);
    // A device has all rows of its groups, or all groups of its rows.
    bool isExpertOp = splitsExperts && roles.isExpertOp(op) &&
                      (!isGrouped || isByExpert(op->getOperands(), operands, axis) ||
                       isByExpert(op->getResults(), results, axis));
    if (!wantsBatch && rule && rule->heavy && !splitsWeight(op, operands, results, axis))
      return false;
    unsigned summed = rule ? rule->factors.size() : 0; // The reduction that is split.
    for (auto [i, value, spec] : llvm::enumerate(op->getOperands(), operands)) {
      uint64_t dims = isExpertOp ? roles.expertDims(value) : roles.batchDims(value);
      Splits how = splits(spec, axis, dims);
      if (how != Splits::Nothing && (how == Splits::Wanted) != wantsBatch)
        return false;
      if (how != Splits::Nothing && isUpdate && wantsBatch)
        return false;
      for (size_t dim = 0; rule && dim < spec.dims.size(); ++dim)
        if (llvm::is_contained(spec.dims[dim], axis) && !rule->operands[i][dim].empty())
          if (unsigned factor = rule->operands[i][dim][0];
              rule->factors[factor].kind == analysis::FactorKind::Reduction)
            summed = factor;
    }
    for (auto [i, value, spec] : llvm::enumerate(op->getResults(), results)) {
      if (!uses(spec, axis))
        continue;
      bool isSummed = rule && summed < rule->factors.size() && rule->isReduced(i, summed);
      if (isSummed) { // A sum that is scattered.
        bool isBatch = splits(spec, axis, roles.batchDims(value)) == Splits::Wanted;
        if (isExpertOp && isGrouped && isBatch) // Rows go back to where they came from.
          continue;
        if (wantsBatch ? !splitsState || !isZeroAxis(axis) : !scattersTensorSums || isBatch)
          return false;
        continue;
      }
      uint64_t dims = isExpertOp ? roles.expertDims(value) : roles.batchDims(value);
      if ((splits(spec, axis, dims) == Splits::Wanted) != wantsBatch)
        return false;
    }
  }
  return true;
}

llvm::Expected<PlanFilter> sharding::makeFilter(llvm::StringRef method, const MethodRoles &roles,
                                                const cost::LogicalMesh &mesh) {
  if (llvm::Error error = checkMethod(method))
    return error;
  llvm::SmallVector<int64_t> meshShape(mesh.shape.begin(), mesh.shape.end());
  if (method == "auto")
    return PlanFilter();
  if (method == "manual")
    return pinnedFilter(roles, meshShape);
  if (method == "heuristic")
    return propagatedFilter(roles, meshShape);
  auto restriction = std::make_shared<Restriction>(Restriction{roles, meshShape});
  restriction->splitsParameters = method.ends_with("zero-3");
  restriction->splitsState = method.contains("zero");
  restriction->splitsExperts = method == "expert-parallel" || method == "expert-zero-2";
  int last = static_cast<int>(meshShape.size()) - 1;
  llvm::StringRef use = useOfLastAxis(method);
  if (!use.empty() && last < 1)
    return makeError(ErrorCode::Method, "method '" + method +
                                            "' needs a mesh of two axes or more, the last for " +
                                            use + "; this one has one");
  if (use == "tensors") {
    restriction->tensorAxis = last;
    restriction->scattersTensorSums = method != "megatron";
  } else if (use == "state") {
    restriction->zeroAxes = 1u << last;
  }
  PlanFilter filter;
  filter.allowsSpec = [restriction](Value value, const ShardingSpec &spec) {
    return restriction->allowsSpec(value, spec);
  };
  filter.allowsStrategy = [restriction](Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                                        llvm::ArrayRef<ShardingSpec> results) {
    return restriction->allowsStrategy(op, operands, results);
  };
  return filter;
}

//===----------------------------------------------------------------------===//
// Shardings that the user has decided
//===----------------------------------------------------------------------===//

/// Axes of one device split nothing, and shardings do not name them.
static ShardingSpec dropUnusedAxes(ShardingSpec spec, llvm::ArrayRef<int64_t> meshShape) {
  for (auto &dim : spec.dims)
    llvm::erase_if(dim,
                   [&](unsigned axis) { return axis < meshShape.size() && meshShape[axis] == 1; });
  return spec;
}

llvm::Expected<PlanFilter> sharding::pinnedFilter(const MethodRoles &roles,
                                                  llvm::ArrayRef<int64_t> meshShape) {
  func::FuncOp main = roles.getFunction();
  if (auto shape = main->getParentOp()->getAttrOfType<DenseI64ArrayAttr>(attr::pinMesh);
      shape && shape.asArrayRef() != meshShape)
    return makeError(
        ErrorCode::Method,
        llvm::formatv(
            "method 'manual': the step's shardings are for a mesh of [{0}], but this one is [{1}]; "
            "give the mesh's shape",
            llvm::make_range(shape.asArrayRef().begin(), shape.asArrayRef().end()),
            llvm::make_range(meshShape.begin(), meshShape.end())));
  PlanFilter filter;
  for (BlockArgument argument : main.getArguments())
    if (auto pin = main.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(), attr::sharding))
      filter.pinned[argument] = dropUnusedAxes(pin.getSpec(), meshShape);
  // Open dimensions may be split further.
  auto open = std::make_shared<llvm::DenseMap<Value, std::pair<ShardingSpec, uint64_t>>>();
  for (Operation &op : main.getBody().front()) {
    auto pin = op.getAttrOfType<ShardingAttr>(attr::pin);
    if (!pin || op.getNumResults() != 1)
      continue;
    ShardingSpec spec = dropUnusedAxes(pin.getSpec(), meshShape);
    auto dims = op.getAttrOfType<DenseI64ArrayAttr>(attr::pinOpen);
    if (!dims || dims.empty()) {
      filter.pinned[op.getResult(0)] = spec;
      continue;
    }
    uint64_t mask = 0;
    for (int64_t dim : dims.asArrayRef())
      if (dim >= 0 && dim < 64)
        mask |= uint64_t(1) << dim;
    (*open)[op.getResult(0)] = {spec, mask};
  }
  if (!open->empty())
    filter.allowsSpec = [open](Value value, const ShardingSpec &spec) {
      auto it = open->find(value);
      if (it == open->end())
        return true;
      const auto &[wanted, mask] = it->second;
      for (size_t dim = 0; dim < spec.dims.size() && dim < wanted.dims.size(); ++dim) {
        llvm::ArrayRef<unsigned> have = spec.dims[dim], want = wanted.dims[dim];
        bool isOpen = dim < 64 && ((mask >> dim) & 1);
        if (isOpen ? !llvm::equal(have.take_front(want.size()), want) : have != want)
          return false;
      }
      return true;
    };
  return filter;
}
