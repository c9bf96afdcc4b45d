//===- ProblemBuilder.cpp - a stage as an optimization problem ------------===//

#include "compiler/Sharding/ProblemBuilder.h"

#include "compiler/Sharding/Reshard.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace alpa;
using namespace mlir;

Phase alpa::phaseOf(Operation *op) {
  if (auto attr = op->getAttrOfType<StringAttr>("alpa.phase")) {
    if (attr.getValue() == "backward")
      return Phase::Backward;
    if (attr.getValue() == "update")
      return Phase::Update;
  }
  return Phase::Forward;
}

static llvm::Error makeError(Operation *op, const llvm::Twine &what) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  stream << op->getLoc() << ": '" << op->getName() << "' op " << what;
  return llvm::createStringError(text);
}

static llvm::ArrayRef<int64_t> shapeOf(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type ? type.getShape() : llvm::ArrayRef<int64_t>();
}

static int64_t numElements(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type ? type.getNumElements() : 1;
}

//===----------------------------------------------------------------------===//
// Values, tables, nodes, edges
//===----------------------------------------------------------------------===//

int ProblemBuilder::find(Value value) const {
  auto it = valueIndex.find(value);
  return it == valueIndex.end() ? -1 : static_cast<int>(it->second);
}

PackedSpec ProblemBuilder::specOf(int node, unsigned table,
                                  llvm::ArrayRef<unsigned> choices) const {
  if (node < 0)
    return {};
  return tables[table].specs[tables[table].index[choices[node]]];
}

PackedSpec ProblemBuilder::specOf(const ValueInfo &info, llvm::ArrayRef<unsigned> choices) const {
  return specOf(info.node, info.table, choices);
}

unsigned ProblemBuilder::addValue(Value value) {
  auto [it, isNew] = valueIndex.try_emplace(value, values.size());
  if (isNew) {
    ValueInfo info;
    info.value = value;
    info.bytes = getTensorBytes(value.getType());
    values.push_back(info);
  }
  return it->second;
}

unsigned ProblemBuilder::valueOf(Value value) {
  if (int known = find(value); known >= 0)
    return known;
  unsigned index = addValue(value);
  values[index].isInput = true;
  // What other stages make of constants alone is made anew here.
  if (Operation *op = value.getDefiningOp();
      op && op->getNumOperands() == 0 && op->getNumRegions() == 0 && getShardingRule(op))
    values[index].kind = ValueKind::Free;
  else
    setAnySpec(index);
  return index;
}

unsigned ProblemBuilder::addTable(const std::vector<uint32_t> &codes) {
  auto [it, isNew] = tableIndex.try_emplace(codes, tables.size());
  if (!isNew)
    return it->second;
  SpecTable table;
  llvm::DenseMap<uint64_t, uint16_t> seen;
  for (uint32_t code : codes) {
    auto [entry, isNewSpec] = seen.try_emplace(code, table.specs.size());
    if (isNewSpec)
      table.specs.push_back(PackedSpec{code});
    table.index.push_back(entry->second);
  }
  tables.push_back(std::move(table));
  return it->second;
}

unsigned ProblemBuilder::deriveTable(unsigned base, llvm::ArrayRef<PackedSpec> specs) {
  if (specs == llvm::ArrayRef(tables[base].specs))
    return base;
  std::vector<uint32_t> key{base};
  for (PackedSpec spec : specs)
    key.push_back(spec.code);
  auto it = derivedIndex.find(key);
  if (it != derivedIndex.end())
    return it->second;
  std::vector<uint32_t> codes;
  for (uint16_t entry : tables[base].index)
    codes.push_back(specs[entry].code);
  unsigned table = addTable(codes);
  derivedIndex.emplace(std::move(key), table);
  return table;
}

int ProblemBuilder::addNode(Value value, size_t numChoices) {
  NodeInfo node;
  node.value = value;
  for (auto &costs : node.costs)
    costs.resize(numChoices);
  std::string number = std::to_string(nodes.size());
  if (auto argument = llvm::dyn_cast<BlockArgument>(value))
    node.name = "argument " + std::to_string(argument.getArgNumber());
  else
    node.name = value.getDefiningOp()->getName().getStringRef().str() + " (node " + number + ")";
  nodes.push_back(std::move(node));
  return static_cast<int>(nodes.size()) - 1;
}

void ProblemBuilder::addNodeCosts(int node, Phase phase, unsigned table,
                                  llvm::ArrayRef<int64_t> costs) {
  if (node < 0) {
    fixedCosts[static_cast<size_t>(phase)] += costs[0];
    return;
  }
  std::vector<int64_t> &sums = nodes[node].costs[static_cast<size_t>(phase)];
  for (size_t choice = 0; choice < sums.size(); ++choice)
    sums[choice] += costs[tables[table].index[choice]];
}

void ProblemBuilder::addEdge(unsigned a, unsigned tableA, unsigned b, unsigned tableB,
                             llvm::ArrayRef<int64_t> matrix) {
  size_t choicesA = nodes[a].numChoices(), choicesB = nodes[b].numChoices();
  bool isSwapped = a > b;
  auto [it, isNew] = edgeIndex.try_emplace(std::minmax(a, b), edges.size());
  if (isNew)
    edges.push_back({std::min(a, b), std::max(a, b), std::vector<int64_t>(choicesA * choicesB)});
  std::vector<int64_t> &costs = edges[it->second].costs;
  const SpecTable &from = tables[tableA], &to = tables[tableB];
  for (size_t i = 0; i < choicesA; ++i) {
    const int64_t *row = &matrix[from.index[i] * to.specs.size()];
    for (size_t j = 0; j < choicesB; ++j)
      costs[isSwapped ? j * choicesA + i : i * choicesB + j] += row[to.index[j]];
  }
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

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
    info.phase = phaseOf(op);
    info.flops = getFlops(op);
    bool hasReduction = llvm::any_of(
        rule->factors, [](const Factor &f) { return f.kind == FactorKind::Reduction; });
    info.fusible = !rule->heavy && !rule->leads && !hasReduction && op->getNumRegions() == 0;
    info.rule = std::move(*rule);
    ops.push_back(std::move(info));
  }
  return llvm::Error::success();
}

/// XLA computes a fusible value inside its user if that is the only one.
static bool isComputedInUser(const OpInfo &info, const std::vector<OpInfo> &ops,
                             const llvm::DenseMap<Operation *, unsigned> &opIndex) {
  if (!info.fusible || info.op->getNumResults() != 1 || !info.op->getResult(0).hasOneUse())
    return false;
  Operation *user = *info.op->getResult(0).user_begin();
  auto it = opIndex.find(user);
  if (it == opIndex.end())
    return false;
  const OpInfo &userInfo = ops[it->second];
  return userInfo.phase == info.phase && !userInfo.rule.heavy && !userInfo.rule.leads;
}

int64_t ProblemBuilder::picoseconds(const OpInfo &info, const RuleProjection &projection,
                                    const Strategy &strategy) const {
  double bytes = 0;
  auto addBytes = [&](unsigned index, const TensorFactors &tensor) {
    if (values[index].materialized && values[index].kind != ValueKind::Free)
      bytes += values[index].bytes / projection.toSpec(tensor, strategy.axes).numPieces(meshShape);
  };
  for (auto [index, tensor] : llvm::zip_equal(info.operands, info.rule.operands))
    addBytes(index, tensor);
  for (auto [index, tensor] : llvm::zip_equal(info.results, info.rule.results))
    addBytes(index, tensor);
  if (bytes == 0 && info.fusible && info.flops == 0)
    return 0;
  double seconds = model.computeSeconds(info.flops / projection.numShares(strategy.axes), bytes,
                                        getComputeType(info.op));
  for (unsigned result = 0; result < info.results.size(); ++result)
    seconds += reductionSeconds(info.rule, result, strategy, values[info.results[result]].bytes,
                                projection, model);
  return toPicoseconds(seconds);
}

void ProblemBuilder::setSettled(unsigned value, int node, unsigned table) {
  bool isFixed = node < 0 || isReplicated(table);
  values[value].node = isFixed ? -1 : node;
  values[value].table = isFixed ? 0 : table;
}

void ProblemBuilder::lead(const OpInfo &info) {
  Value result = info.op->getResult(0);
  std::vector<Strategy> strategies = enumerateStrategies(info.rule, shapeOf(result), meshShape);
  RuleProjection projection(info.rule, meshShape);
  int node = strategies.size() > 1 ? addNode(result, strategies.size()) : -1;
  for (size_t choice = 0; choice < strategies.size(); ++choice) {
    int64_t cost = picoseconds(info, projection, strategies[choice]);
    auto phase = static_cast<size_t>(info.phase);
    (node < 0 ? fixedCosts[phase] : nodes[node].costs[phase][choice]) += cost;
  }
  std::vector<uint32_t> codes(strategies.size());
  for (auto [i, index] : llvm::enumerate(info.results)) {
    for (size_t choice = 0; choice < strategies.size(); ++choice) {
      PackedSpec spec = projection.toSpec(info.rule.results[i], strategies[choice].axes);
      codes[choice] = (i == 0 ? scatteredSpec(spec, strategies[choice]) : spec).code;
    }
    setSettled(index, node, node < 0 ? 0 : addTable(codes));
  }
  for (auto [i, index] : llvm::enumerate(info.operands)) {
    for (size_t choice = 0; choice < strategies.size(); ++choice)
      codes[choice] = projection.toSpec(info.rule.operands[i], strategies[choice].axes).code;
    pending.push_back({index, info.op, static_cast<unsigned>(i), node,
                       node < 0 ? 0 : addTable(codes), info.phase});
  }
  demand();
}

void ProblemBuilder::settle(const OpInfo &info, const TensorFactors &tensor, int node,
                            unsigned table, bool isFirst, Phase phase) {
  RuleProjection projection(info.rule, meshShape);
  llvm::SmallVector<Strategy> strategies;
  llvm::SmallVector<int64_t> costs;
  for (PackedSpec spec : tables[table].specs) {
    strategies.push_back({projection.fromSpec(tensor, spec), Strategy{}.scatter});
    if (isFirst)
      costs.push_back(picoseconds(info, projection, strategies.back()));
  }
  auto derive = [&](const TensorFactors &other) {
    llvm::SmallVector<PackedSpec> specs;
    for (const Strategy &strategy : strategies)
      specs.push_back(projection.toSpec(other, strategy.axes));
    return deriveTable(table, specs);
  };
  if (isFirst) {
    addNodeCosts(node, info.phase, table, costs);
    for (auto [index, result] : llvm::zip_equal(info.results, info.rule.results))
      setSettled(index, node, derive(result));
  }
  for (auto [i, index] : llvm::enumerate(info.operands))
    pending.push_back({index, isFirst ? info.op : nullptr, static_cast<unsigned>(i), node,
                       derive(info.rule.operands[i]), phase});
}

void ProblemBuilder::demand() {
  while (!pending.empty()) {
    Pending request = pending.pop_back_val();
    ValueKind kind = values[request.value].kind;
    bool isFirst = !values[request.value].isAsked;
    values[request.value].isAsked = true;
    Operation *op = values[request.value].value.getDefiningOp();
    if (kind != ValueKind::Settled && !values[request.value].isInput &&
        (isFirst || kind == ValueKind::View)) {
      const OpInfo &info = ops[opIndex.lookup(op)];
      unsigned result = llvm::cast<OpResult>(values[request.value].value).getResultNumber();
      if (isFirst)
        for (unsigned other : info.results)
          values[other].isAsked = true;
      // A view is recomputed for each user, so its operand is wanted by the user.
      settle(info, info.rule.results[result], request.node, request.table, isFirst,
             kind == ValueKind::View ? request.phase : info.phase);
      if (kind == ValueKind::Lazy)
        for (unsigned other : info.results)
          values[other].kind = ValueKind::Settled;
    }
    if (kind == ValueKind::Settled || kind == ValueKind::Lazy)
      charge(request);
  }
}

void ProblemBuilder::charge(const Pending &request) {
  const ValueInfo &value = values[request.value];
  int node = isReplicated(request.table) ? -1 : request.node;
  unsigned table = node < 0 ? 0 : request.table;
  uint64_t user = (static_cast<uint64_t>(node + 1) << 32) | table;
  uint64_t source =
      (static_cast<uint64_t>(request.value) << 2) | static_cast<uint64_t>(request.phase);
  Demand record{request.value, request.user, request.operand, node, table, request.phase, false};
  record.charged = value.node >= 0 && charged.insert({source, user}).second;
  demands.push_back(record);
  if (!record.charged)
    return;
  const SpecTable &from = tables[value.table], &to = tables[table];
  std::vector<int64_t> matrix;
  bool isCostly = false;
  for (PackedSpec source : from.specs)
    for (PackedSpec target : to.specs) {
      matrix.push_back(reshardPicoseconds(source, target, value.bytes, model));
      isCostly |= matrix.back() != 0;
    }
  if (!isCostly)
    return;
  if (node < 0) {
    addNodeCosts(value.node, request.phase, value.table, matrix);
  } else if (node == value.node) {
    std::vector<int64_t> &sums = nodes[node].costs[static_cast<size_t>(request.phase)];
    for (size_t choice = 0; choice < sums.size(); ++choice)
      sums[choice] += matrix[from.index[choice] * to.specs.size() + to.index[choice]];
  } else {
    for (int64_t &cost : matrix)
      cost *= weight(request.phase);
    addEdge(value.node, value.table, node, table, matrix);
  }
}

/// Result i takes what operand i has; operands not settled yet get a node each.
void ProblemBuilder::forward(const OpInfo &info) {
  for (auto [i, operand, result] : llvm::enumerate(info.operands, info.results)) {
    values[result].depth = values[operand].depth + 1;
    if (values[operand].kind == ValueKind::Settled) {
      values[result].node = values[operand].node;
      values[result].table = values[operand].table;
    } else {
      setAnySpec(result);
    }
    pending.push_back({operand, info.op, static_cast<unsigned>(i), values[result].node,
                       values[result].table, info.phase});
  }
  demand();
}

void ProblemBuilder::setAnySpec(unsigned value) {
  std::vector<uint32_t> codes;
  for (PackedSpec spec : allSpecs(shapeOf(values[value].value), meshShape))
    codes.push_back(spec.code);
  if (codes.size() <= 1)
    return;
  values[value].table = addTable(codes);
  values[value].node = addNode(values[value].value, codes.size());
}

void ProblemBuilder::visit(const OpInfo &info) {
  if (info.rule.forwards)
    return forward(info);
  int best = -1;
  unsigned depth = 0;
  bool areFree = true, isSpread = false;
  int64_t operandElements = 0, resultElements = 0;
  for (auto [i, index] : llvm::enumerate(info.operands)) {
    const ValueInfo &value = values[index];
    depth = std::max(depth, value.depth + 1);
    areFree &= value.kind == ValueKind::Free;
    operandElements = std::max(operandElements, numElements(value.value));
    if (value.kind != ValueKind::Settled || value.node < 0)
      continue;
    isSpread = true;
    auto rank = [&](unsigned operand) {
      const ValueInfo &other = values[info.operands[operand]];
      return std::make_pair(numElements(other.value), other.depth);
    };
    if (best < 0 || rank(i) > rank(best))
      best = static_cast<int>(i);
  }
  for (Value result : info.op->getResults())
    resultElements = std::max(resultElements, numElements(result));
  for (unsigned index : info.results)
    values[index].depth = depth;

  bool isView = info.fusible && info.operands.size() == 1 && resultElements > operandElements;
  ValueKind kind = ValueKind::Lazy;
  if (info.rule.heavy || info.rule.leads || (!isSpread && !info.fusible)) {
    if (info.results.empty()) {
      for (auto [i, index] : llvm::enumerate(info.operands))
        pending.push_back({index, info.op, static_cast<unsigned>(i), -1, 0, info.phase});
      return demand();
    }
    return lead(info);
  }
  if (areFree)
    kind = ValueKind::Free;
  else if (isView)
    kind = ValueKind::View;
  else if (isSpread) {
    const ValueInfo &leader = values[info.operands[best]];
    settle(info, info.rule.operands[best], leader.node, leader.table, true, info.phase);
    return demand();
  }
  for (unsigned index : info.results) {
    values[index].kind = kind;
    if (kind == ValueKind::Free)
      values[index].depth = 0;
  }
}

//===----------------------------------------------------------------------===//
// The whole stage
//===----------------------------------------------------------------------===//

llvm::Error ProblemBuilder::build() {
  if (meshShape.size() > PackedSpec::kMaxAxes)
    return llvm::createStringError("a mesh of %zu axes is not supported; at most %u are",
                                   meshShape.size(), PackedSpec::kMaxAxes);
  addTable({0});
  if (llvm::Error error = collectOps())
    return error;
  for (OpInfo &info : ops) {
    for (Value operand : info.op->getOperands())
      info.operands.push_back(valueOf(operand));
    for (Value result : info.op->getResults())
      info.results.push_back(addValue(result));
    if (isComputedInUser(info, ops, opIndex))
      values[info.results[0]].materialized = false;
    // What regions use from outside is needed whole.
    llvm::SetVector<Value> captured;
    getUsedValuesDefinedAbove(info.op->getRegions(), captured);
    for (Value value : captured)
      pending.push_back({valueOf(value), nullptr, 0, -1, 0, info.phase});
    demand();
    visit(info);
  }
  carryState();
  for (unsigned index = 0; index < values.size(); ++index)
    if (values[index].kind != ValueKind::Settled && !values[index].isAsked)
      pending.push_back({index, nullptr, 0, -1, 0, Phase::Forward});
  demand();
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
  addEdge(left.node, left.table, right.node, right.table, matrix);
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
                       values[index].table, Phase::Update});
    demand();
  }
}

Problem ProblemBuilder::takeProblem() const {
  Problem problem;
  for (const NodeInfo &info : nodes) {
    ProblemNode node;
    node.name = info.name;
    for (size_t choice = 0; choice < info.numChoices(); ++choice) {
      int64_t cost = 0;
      for (unsigned phase = 0; phase < kNumPhases; ++phase)
        cost += info.costs[phase][choice] * weight(static_cast<Phase>(phase));
      node.costs.push_back(cost);
    }
    problem.nodes.push_back(std::move(node));
  }
  problem.edges = edges;
  return problem;
}

std::array<double, kNumPhases>
ProblemBuilder::phaseSeconds(llvm::ArrayRef<unsigned> choices) const {
  std::array<double, kNumPhases> totals{};
  for (unsigned phase = 0; phase < kNumPhases; ++phase) {
    totals[phase] = static_cast<double>(fixedCosts[phase]);
    for (auto [node, choice] : llvm::zip_equal(nodes, choices))
      totals[phase] += static_cast<double>(node.costs[phase][choice]);
  }
  for (const Demand &demand : demands) {
    const ValueInfo &value = values[demand.value];
    if (!demand.charged || demand.node < 0 || demand.node == value.node)
      continue; // Part of a node's own costs.
    totals[static_cast<size_t>(demand.phase)] += static_cast<double>(reshardPicoseconds(
        specOf(value, choices), specOf(demand.node, demand.table, choices), value.bytes, model));
  }
  for (double &total : totals)
    total = toSeconds(total);
  return totals;
}
