//===- ProblemBuilder.cpp - a stage as an optimization problem ------------===//

#include "compiler/Sharding/Problem/ProblemBuilder.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringSwitch.h"

using namespace alpa;
using namespace mlir;

OpPhase alpa::opPhaseOf(Operation *op) {
  if (auto attr = op->getAttrOfType<StringAttr>("alpa.phase")) {
    if (attr.getValue() == "barrier")
      return OpPhase::Barrier;
    if (attr.getValue() == "backward")
      return OpPhase::Backward;
    if (attr.getValue() == "update")
      return OpPhase::Update;
  }
  return OpPhase::Forward;
}

static llvm::Error makeError(Operation *op, const llvm::Twine &what) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  stream << op->getLoc() << ": '" << op->getName() << "' op " << what;
  return llvm::createStringError(text);
}

llvm::Error ProblemBuilder::checkType(Operation *op, Type type) const {
  auto tensor = llvm::dyn_cast<RankedTensorType>(type);
  if (!tensor || (tensor.hasStaticShape() && tensor.getRank() <= PackedSpec::kMaxRank))
    return llvm::Error::success();
  return makeError(op, "has a tensor of dynamic shape or of more than " +
                           std::to_string(PackedSpec::kMaxRank) + " dimensions");
}

llvm::Error ProblemBuilder::collectOps() {
  for (Operation *op : stage.ops) {
    if (op->hasTrait<OpTrait::IsTerminator>())
      continue;
    for (Type type : llvm::concat<const Type>(op->getOperandTypes(), op->getResultTypes()))
      if (llvm::Error error = checkType(op, type))
        return error;
    std::optional<ShardingRule> rule = getShardingRule(op);
    if (!rule)
      return makeError(op, "has no sharding rule yet");
    opIndex[op] = ops.size();
    OpInfo info;
    info.op = op;
    info.phase = opPhaseOf(op);
    info.flops = getFlops(op);
    bool hasReduction = llvm::any_of(
        rule->factors, [](const Factor &f) { return f.kind == FactorKind::Reduction; });
    info.fusible = !rule->heavy && !rule->leads && !hasReduction && op->getNumRegions() == 0;
    if (op->getNumResults() == 1 && waiting.waits(op->getResult(0))) {
      info.deferrable = deferrableFactors(op, *rule);
      info.link = linkOperand(op);
    }
    info.rule = std::move(*rule);
    ops.push_back(std::move(info));
  }
  return llvm::Error::success();
}

llvm::Error ProblemBuilder::collectPins() {
  isFiltered = !options.filter.pinned.empty() || options.filter.allowsSpec;
  for (const auto &[value, spec] : options.filter.pinned) {
    std::optional<PackedSpec> packed = PackedSpec::pack(spec);
    if (!packed || !llvm::is_contained(allSpecs(shapeOf(value), meshShape), *packed))
      return llvm::createStringError("a value is pinned to %s, which does not split it evenly on "
                                     "this mesh, or lists its axes out of order",
                                     spec.str().c_str());
    pinned[value] = *packed;
  }
  return llvm::Error::success();
}

/// What XLA takes for too dear on a GPU to be computed again for every user.
static bool isComputedOnce(Operation *op) {
  return llvm::StringSwitch<bool>(op->getName().getStringRef())
      .Cases({"stablehlo.tanh", "stablehlo.log", "stablehlo.log_plus_one", "stablehlo.power",
              "stablehlo.exponential_minus_one", "stablehlo.logistic", "stablehlo.sine",
              "stablehlo.cosine", "stablehlo.tan", "stablehlo.atan2", "stablehlo.cbrt",
              "stablehlo.concatenate", "stablehlo.rng_bit_generator"},
             true)
      .Default(op->getDialect() && op->getDialect()->getNamespace() == "chlo");
}

/// XLA computes a fusible value inside its users if all of them can do that.
bool ProblemBuilder::isComputedInUsers(const OpInfo &info) const {
  if (!info.fusible || info.op->getNumResults() != 1)
    return false;
  Value result = info.op->getResult(0);
  if (result.use_empty() || (!result.hasOneUse() && isComputedOnce(info.op)))
    return false;
  return llvm::all_of(result.getUsers(), [&](Operation *user) {
    auto it = opIndex.find(user);
    if (it == opIndex.end())
      return false;
    const OpInfo &userInfo = ops[it->second];
    return userInfo.phase == info.phase && !userInfo.rule.heavy && !userInfo.rule.leads;
  });
}

/// Whoever computes a value on the fly reads what that is made of instead, every
/// user anew. Of very many values one is made, as XLA does.
void ProblemBuilder::findReads(const OpInfo &info) {
  constexpr size_t kMostReads = 16;
  llvm::SmallSetVector<unsigned, 8> reads;
  for (unsigned operand : info.operands)
    reads.insert(values[operand].reads.begin(), values[operand].reads.end());
  bool isFused = isComputedInUsers(info) && reads.size() <= kMostReads;
  for (unsigned index : info.results) {
    values[index].materialized = !isFused;
    if (isFused)
      values[index].reads.assign(reads.begin(), reads.end());
    else
      values[index].reads.assign(1, index);
  }
}

llvm::Error ProblemBuilder::build() {
  if (meshShape.size() > PackedSpec::kMaxAxes)
    return llvm::createStringError("a mesh of %zu axes is not supported; at most %u are",
                                   meshShape.size(), PackedSpec::kMaxAxes);
  addTable({0});
  // With one micro-batch there is nothing to save.
  if (options.numMicroBatches > 1)
    waiting = WaitingValues(stage.ops);
  if (llvm::Error error = collectOps())
    return error;
  if (llvm::Error error = collectPins())
    return error;
  for (OpInfo &info : ops) {
    for (Value operand : info.op->getOperands())
      info.operands.push_back(valueFor(info.phase, operand));
    for (Value result : info.op->getResults())
      info.results.push_back(addValue(result));
    findReads(info);
    // What a body uses from outside is like an operand; other regions need it whole.
    llvm::SetVector<Value> captured;
    getUsedValuesDefinedAbove(info.op->getRegions(), captured);
    for (const auto &[value, tensor] : info.rule.captures) {
      captured.remove(value);
      info.operands.push_back(valueOf(value));
      info.rule.operands.push_back(tensor);
    }
    for (Value value : captured)
      pending.push_back({valueOf(value), nullptr, 0, -1, 0, info.phase});
    demand();
    visit(info);
    if (!failure.empty())
      return makeError(info.op, failure);
  }
  carryState();
  for (unsigned index = 0; index < values.size(); ++index)
    if (values[index].kind != ValueKind::Settled && !values[index].isAsked)
      pending.push_back({index, nullptr, 0, -1, 0, OpPhase::Forward});
  demand();
  addNodesToProblem();
  return llvm::Error::success();
}

void ProblemBuilder::requireEqual(unsigned a, unsigned b) {
  const ValueInfo &left = values[a], &right = values[b];
  if (left.node < 0 || right.node < 0 || left.node == right.node)
    return;
  std::vector<int64_t> matrix;
  for (PackedSpec from : tables[left.table].specs)
    for (PackedSpec to : tables[right.table].specs)
      matrix.push_back(from == to ? 0 : kForbiddenCost);
  addEdge(left.node, left.table, right.node, right.table, matrix, 1);
}

void ProblemBuilder::carryState() {
  if (ops.empty())
    return;
  auto function = ops.front().op->getParentOfType<FunctionOpInterface>();
  if (!function || function.isExternal())
    return;
  Operation *terminator = function.getFunctionBody().front().getTerminator();
  llvm::DenseMap<unsigned, unsigned> firstArgument;
  for (BlockArgument argument : function.getArguments()) {
    auto attr = function.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), "alpa.carried_by");
    if (!attr || attr.getInt() < 0 ||
        attr.getInt() >= static_cast<int64_t>(terminator->getNumOperands()))
      continue;
    int next = find(terminator->getOperand(attr.getInt()));
    if (next < 0)
      continue;
    if (values[next].isInput) {
      if (int index = find(argument); index >= 0)
        requireEqual(index, next);
      continue;
    }
    unsigned index = valueOf(argument);
    auto [it, isNew] = firstArgument.try_emplace(next, index);
    if (!isNew) {
      requireEqual(it->second, index);
      continue;
    }
    carried.push_back({index, static_cast<unsigned>(next)});
    pending.push_back({static_cast<unsigned>(next), nullptr, 0, values[index].node,
                       values[index].table, OpPhase::Update});
    demand();
  }
}

void ProblemBuilder::addNodesToProblem() {
  for (const NodeInfo &info : nodes) {
    ProblemNode node;
    node.name = info.name;
    for (size_t choice = 0; choice < info.numChoices(); ++choice) {
      int64_t cost = 0;
      for (unsigned phase = 0; phase < kNumPhases; ++phase)
        cost += info.costs[phase][choice] * weight(static_cast<OpPhase>(phase));
      node.costs.push_back(cost);
    }
    problem.nodes.push_back(std::move(node));
  }
}

std::array<double, kNumPhases>
ProblemBuilder::phaseSeconds(llvm::ArrayRef<unsigned> choices) const {
  std::array<double, kNumPhases> totals{};
  for (unsigned phase = 0; phase < kNumPhases; ++phase) {
    totals[phase] = static_cast<double>(fixedCosts[phase]);
    for (auto [node, choice] : llvm::zip_equal(nodes, choices))
      totals[phase] += static_cast<double>(node.costs[phase][choice]);
  }
  for (const ValueInfo &value : values)
    if (value.isMoved && value.madeNode >= 0 && value.madeNode != value.node)
      totals[static_cast<size_t>(opPhaseOf(value.value.getDefiningOp()))] +=
          static_cast<double>(reshards.of(shapeOf(value.value), value.bytes)
                                  .picoseconds(specOf(value.madeNode, value.madeTable, choices),
                                               specOf(value, choices)));
  for (const ValueInfo &value : values)
    if (value.sumOf >= 0 && value.node >= 0 && value.node != values[value.sumOf].node)
      totals[static_cast<size_t>(OpPhase::Update)] +=
          static_cast<double>(completionOf(value, choices).picoseconds);
  for (const Demand &demand : demands) {
    const ValueInfo &value = values[demand.value];
    if (!demand.charged || demand.node < 0 || demand.node == value.node)
      continue; // Part of a node's own costs.
    totals[static_cast<size_t>(demand.phase)] += static_cast<double>(reshardPicoseconds(
        value, specOf(value, choices), specOf(demand.node, demand.table, choices)));
  }
  for (double &total : totals)
    total = toSeconds(total);
  return totals;
}
