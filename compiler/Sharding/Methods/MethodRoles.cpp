//===- MethodRoles.cpp - what a step's values are to a method -------------===//

#include "compiler/Sharding/Methods/MethodRoles.h"

#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "mlir/IR/OpDefinition.h"
#include "llvm/ADT/SmallBitVector.h"

using namespace alpa;
using namespace mlir;

MethodRoles::MethodRoles(func::FuncOp main) : main(main) {
  for (Operation &op : main.getBody().front().without_terminator())
    if (std::optional<ShardingRule> rule = getShardingRule(&op))
      rules.try_emplace(&op, std::move(*rule));
  findRoles();
  findBatch();
  findExperts();
}

const ShardingRule *MethodRoles::ruleOf(Operation *op) const {
  auto it = rules.find(op);
  return it == rules.end() ? nullptr : &it->second;
}

static bool isReal(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type && llvm::isa<FloatType, ComplexType>(type.getElementType());
}

/// Whether an op of the wanted phases reads the value; what the function returns
/// is read by nobody.
static bool isReadIn(Value value, bool update) {
  return llvm::any_of(value.getUsers(), [&](Operation *user) {
    Operation *top = value.getParentBlock()->findAncestorOpInBlock(*user);
    return top && !top->hasTrait<OpTrait::IsTerminator>() &&
           (opPhaseOf(top) == OpPhase::Update) == update;
  });
}

void MethodRoles::findRoles() {
  for (BlockArgument argument : main.getArguments()) {
    auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), "alpa.kind");
    if (kind && kind.getValue() == "batch")
      roles[argument] = ValueRole::Batch;
    else if (!isReal(argument))
      roles[argument] = ValueRole::Bookkeeping;
    else
      roles[argument] =
          isReadIn(argument, /*update=*/false) ? ValueRole::Parameter : ValueRole::OptimizerState;
  }
  for (Operation &op : main.getBody().front().without_terminator())
    if (opPhaseOf(&op) == OpPhase::Backward)
      for (Value result : op.getResults())
        if (isReal(result) && isReadIn(result, /*update=*/true))
          roles[result] = ValueRole::Gradient;
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

bool MethodRoles::pushForward(Operation *op, const ShardingRule &rule, Labels &labels) {
  llvm::SmallBitVector factors(rule.factors.size());
  for (auto [value, tensor] : llvm::zip_equal(op->getOperands(), rule.operands))
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
  for (auto [value, tensor] : llvm::zip_equal(op->getOperands(), rule.operands))
    mark(value, tensor, labels.lookup(value), factors);
  bool isNew = false;
  for (auto [value, tensor] : llvm::zip_equal(op->getOperands(), rule.operands)) {
    if (!wanted(value))
      continue;
    uint64_t dims = dimsOf(tensor, factors);
    if (!dims)
      continue;
    uint64_t &known = labels[value];
    isNew |= (dims & ~known) != 0;
    known |= dims;
  }
  return isNew;
}

void MethodRoles::findBatch() {
  for (BlockArgument argument : main.getArguments())
    if (of(argument) == ValueRole::Batch)
      batch[argument] = 1;
  for (Operation &op : main.getBody().front().without_terminator())
    if (const ShardingRule *rule = ruleOf(&op))
      pushForward(&op, *rule, batch);
}

/// Factors by which all operands and the result of a dot are batched.
static llvm::SmallBitVector batchFactors(const ShardingRule &rule) {
  llvm::SmallBitVector all(rule.factors.size(), true);
  auto keep = [&](const TensorFactors &tensor) {
    llvm::SmallBitVector here(rule.factors.size());
    for (const DimFactors &dim : tensor)
      if (!dim.empty() && rule.factors[dim[0]].kind == FactorKind::Parallel &&
          rule.factors[dim[0]].size > 1)
        here.set(dim[0]);
    all &= here;
  };
  llvm::for_each(rule.operands, keep);
  llvm::for_each(rule.results, keep);
  return all;
}

void MethodRoles::findExperts() {
  Block &body = main.getBody().front();
  // Weights and what cheap ops make of them alone: casts, transposes.
  llvm::DenseSet<Value> weights, constants;
  for (BlockArgument argument : main.getArguments())
    if (of(argument) == ValueRole::Parameter)
      weights.insert(argument);
  for (Operation &op : body.without_terminator()) {
    const ShardingRule *rule = ruleOf(&op);
    if (!rule || rule->heavy || rule->leads || op.getNumRegions() > 0)
      continue;
    bool anyWeight = false, isPure = true;
    for (Value operand : op.getOperands()) {
      anyWeight |= weights.count(operand);
      isPure &= weights.count(operand) || constants.count(operand);
    }
    if (isPure)
      (anyWeight ? weights : constants).insert(op.result_begin(), op.result_end());
  }
  for (Operation &op : body.without_terminator()) {
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
      pushBackward(&op, *rule, experts, [&](Value value) { return weights.count(value) != 0; });
  bool isNew = true;
  while (isNew) {
    isNew = false;
    for (Operation &op : body.without_terminator()) {
      const ShardingRule *rule = ruleOf(&op);
      if (!rule)
        continue;
      isNew |= pushForward(&op, *rule, experts);
      if (opPhaseOf(&op) == OpPhase::Update && isElementwiseName(op.getName().getStringRef()))
        isNew |= pushBackward(&op, *rule, experts, [&](Value) { return true; });
    }
  }
  for (Operation &op : body.without_terminator()) {
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
