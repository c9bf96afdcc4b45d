//===- ProblemOps.cpp - ops that lead and ops that follow -----------------===//

#include "compiler/Sharding/Problem/ProblemBuilder.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Sharding/Problem/Reshard.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace mlir;

static int64_t numElements(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type ? type.getNumElements() : 1;
}

/// Another name for what is in memory already.
bool ProblemBuilder::isAlias(const OpInfo &info) const {
  return llvm::isa<stablehlo::ReshapeOp, stablehlo::OptimizationBarrierOp>(info.op) &&
         llvm::all_of(info.operands, [&](unsigned index) { return values[index].materialized; });
}

int64_t ProblemBuilder::picoseconds(const OpInfo &info, const RuleProjection &projection,
                                    const Strategy &strategy) const {
  if (!info.rule.work.empty())
    return toPicoseconds(
        bodySeconds(info.rule, strategy.axes, getComputeType(info.op), projection, model));
  double bytes = 0;
  bool isFused = !info.results.empty() && llvm::none_of(info.results, [&](unsigned index) {
    return values[index].materialized;
  });
  llvm::SmallVector<unsigned, 8> read;
  for (auto [index, tensor] : llvm::zip_equal(info.operands, info.rule.operands)) {
    if (isFused || isAlias(info))
      continue; // Its users read.
    int64_t pieces = projection.toSpec(tensor, strategy.axes).numPieces(meshShape);
    for (unsigned other : values[index].reads) {
      if (values[other].kind == ValueKind::Free || llvm::is_contained(read, other))
        continue;
      read.push_back(other);
      // What is spread in between need not be split.
      bool isSpread = numElements(values[other].value) < numElements(values[index].value);
      bytes += values[other].bytes / static_cast<double>(isSpread ? 1 : pieces);
    }
  }
  for (auto [index, tensor] : llvm::zip_equal(info.results, info.rule.results))
    if (values[index].materialized && values[index].kind != ValueKind::Free && !isAlias(info))
      bytes += values[index].bytes / projection.toSpec(tensor, strategy.axes).numPieces(meshShape);
  if (bytes == 0 && info.fusible && info.flops == 0)
    return 0;
  double seconds = model.computeSeconds(info.flops / projection.numShares(strategy.axes), bytes,
                                        getComputeType(info.op), info.rule.heavy);
  for (unsigned result = 0; result < info.results.size(); ++result)
    seconds += reductionSeconds(info.rule, result, strategy, values[info.results[result]].bytes,
                                projection, model);
  return toPicoseconds(seconds);
}

void ProblemBuilder::setSettled(unsigned value, int node, unsigned table) {
  bool isFixed = node < 0 || isReplicated(table);
  node = isFixed ? -1 : node;
  table = isFixed ? 0 : table;
  Value whole = values[value].value;
  bool hasTerms =
      llvm::any_of(tables[table].specs, [](PackedSpec spec) { return spec.isPartial(); });
  if (isFiltered && !hasTerms && // Else the filter says how the sum is held.
      !llvm::all_of(tables[table].specs, [&](PackedSpec spec) { return isAllowed(whole, spec); })) {
    // Held as the filter wants it, which is a choice of its own.
    setAnySpec(value);
    values[value].isMoved = true;
    values[value].madeNode = node;
    values[value].madeTable = table;
    moveAtOnce(values[value]);
    return;
  }
  values[value].node = node;
  values[value].table = table;
}

/// The cost between how an op makes a value and how it is held.
void ProblemBuilder::moveAtOnce(const ValueInfo &value) {
  if (value.madeNode < 0)
    return; // Made whole: every device keeps its slice.
  OpPhase phase = opPhaseOf(value.value.getDefiningOp());
  const std::vector<int64_t> &matrix = reshardCosts(value.madeTable, value.table, value);
  if (matrix.empty())
    return;
  if (value.node < 0)
    addNodeCosts(value.madeNode, phase, value.madeTable, matrix);
  else
    addEdge(value.madeNode, value.madeTable, value.node, value.table, matrix, weight(phase));
}

void ProblemBuilder::lead(const OpInfo &info) {
  Value result = info.op->getResult(0);
  // A filter may leave only strategies that use few axes; of those that it allows,
  // the ones that use the most are taken.
  bool isRestricted = static_cast<bool>(options.filter.allowsStrategy);
  std::vector<Strategy> strategies =
      enumerateStrategies(info.rule, shapeOf(result), meshShape, /*mayIdle=*/isRestricted);
  RuleProjection projection(info.rule, meshShape);
  if (isRestricted) {
    llvm::erase_if(strategies, [&](const Strategy &strategy) {
      return !isAllowed(info, projection, strategy);
    });
    int64_t most = 0;
    for (const Strategy &strategy : strategies)
      most = std::max(most, projection.numShares(strategy.axes));
    llvm::erase_if(strategies, [&](const Strategy &strategy) {
      return projection.numShares(strategy.axes) < most;
    });
  }
  if (strategies.empty()) {
    failure = "has no strategy that is allowed";
    return;
  }
  for (Strategy &strategy : strategies)
    deferSums(info, strategy);
  // Followers of a single strategy that splits something need a node to follow.
  bool isWhole = strategies.size() == 1 && strategies[0].axes == Assignment{};
  int node = !isWhole ? addNode(result, strategies.size()) : -1;
  for (size_t choice = 0; choice < strategies.size(); ++choice) {
    int64_t cost = picoseconds(info, projection, strategies[choice]);
    auto phase = static_cast<size_t>(info.phase);
    (node < 0 ? fixedCosts[phase] : nodes[node].costs[phase][choice]) += cost;
  }
  parts.push_back({static_cast<unsigned>(&info - ops.data()), node, 0, /*leads=*/true, {}});
  if (node >= 0)
    nodes[node].strategies = strategies;
  std::vector<uint32_t> codes(strategies.size());
  for (auto [i, index] : llvm::enumerate(info.results)) {
    for (size_t choice = 0; choice < strategies.size(); ++choice) {
      PackedSpec spec = projection.toSpec(info.rule.results[i], strategies[choice].axes);
      codes[choice] = (i == 0 ? scatteredSpec(spec, strategies[choice]) : spec).code;
    }
    setSettled(index, node, node < 0 ? 0 : addTable(codes));
    values[index].isLed = true;
    addSum(index);
  }
  for (auto [i, index] : llvm::enumerate(info.operands)) {
    for (size_t choice = 0; choice < strategies.size(); ++choice)
      codes[choice] = projection.toSpec(info.rule.operands[i], strategies[choice].axes).code;
    pending.push_back({index, info.op, static_cast<unsigned>(i), node,
                       node < 0 ? 0 : addTable(codes), info.phase});
  }
  demand();
}

void ProblemBuilder::deferSums(const OpInfo &info, Strategy &strategy) const {
  if (!info.deferrable.empty())
    strategy.deferred = deferrableAxes(info.op, info.rule, info.deferrable, strategy);
}

Strategy ProblemBuilder::strategyFor(const OpInfo &info, const RuleProjection &projection,
                                     const TensorFactors &tensor, PackedSpec spec) const {
  Strategy strategy;
  strategy.axes = projection.fromSpec(tensor, spec);
  deferSums(info, strategy);
  if (info.link >= 0)
    strategy.deferred = static_cast<uint8_t>(spec.partialAxes());
  return strategy;
}

void ProblemBuilder::settle(const OpInfo &info, const TensorFactors &tensor, int node,
                            unsigned table, bool isFirst, OpPhase phase) {
  RuleProjection projection(info.rule, meshShape);
  llvm::SmallVector<Strategy> strategies;
  llvm::SmallVector<int64_t> costs;
  for (PackedSpec spec : tables[table].specs) {
    strategies.push_back(strategyFor(info, projection, tensor, spec));
    if (isFirst)
      costs.push_back(picoseconds(info, projection, strategies.back()));
  }
  auto derive = [&](const TensorFactors &other, bool hasTerms) {
    llvm::SmallVector<PackedSpec> specs;
    for (const Strategy &strategy : strategies) {
      PackedSpec spec = projection.toSpec(other, strategy.axes);
      specs.push_back(hasTerms ? scatteredSpec(spec, strategy) : spec);
    }
    return deriveTable(table, specs);
  };
  if (isFirst) {
    parts.push_back({static_cast<unsigned>(&info - ops.data()), node, table, false, tensor});
    addNodeCosts(node, info.phase, table, costs);
    for (auto [i, index, result] : llvm::enumerate(info.results, info.rule.results)) {
      setSettled(index, node, derive(result, i == 0));
      values[index].isLed = info.link >= 0 && values[info.operands[info.link]].isLed;
      addSum(index);
    }
  }
  for (auto [i, index] : llvm::enumerate(info.operands))
    pending.push_back({index, isFirst ? info.op : nullptr, static_cast<unsigned>(i), node,
                       derive(info.rule.operands[i], static_cast<int>(i) == info.link), phase});
}

/// Result i takes what operand i has; operands not settled yet get a node each.
void ProblemBuilder::forward(const OpInfo &info) {
  for (auto [i, operand, result] : llvm::enumerate(info.operands, info.results)) {
    values[result].depth = values[operand].depth + 1;
    if (values[operand].kind == ValueKind::Settled) {
      setSettled(result, values[operand].node, values[operand].table);
    } else {
      setAnySpec(result);
    }
    pending.push_back({operand, info.op, static_cast<unsigned>(i), values[result].node,
                       values[result].table, info.phase});
  }
  demand();
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
    if (info.link >= 0 && info.link != static_cast<int>(i))
      continue; // Terms are passed on as they are.
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
    else if (request.user) // Costs nothing, but is wanted so.
      demands.push_back({request.value, request.user, request.operand, request.node, request.table,
                         request.phase, false});
  }
}
