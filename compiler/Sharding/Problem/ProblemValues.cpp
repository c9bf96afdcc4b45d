//===- ProblemValues.cpp - values, nodes and edges of the problem ---------===//

#include "compiler/Sharding/Problem/ProblemBuilder.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

using namespace alpa;
using namespace mlir;

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
    info.reads.assign(1, values.size());
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

unsigned ProblemBuilder::valueFor(OpPhase phase, Value value) {
  unsigned index = valueOf(value);
  auto sum = phase == OpPhase::Update ? sums.find(index) : sums.end();
  return sum == sums.end() ? index : sum->second;
}

SumCompletion ProblemBuilder::completion(const ValueInfo &value, PackedSpec from,
                                         PackedSpec to) const {
  return completeSum(shapeOf(value.value), value.bytes, from, to, reshardsOf(value), model);
}

SumCompletion ProblemBuilder::completionOf(const ValueInfo &sum,
                                           llvm::ArrayRef<unsigned> choices) const {
  return completion(sum, specOf(values[sum.sumOf], choices), specOf(sum, choices));
}

void ProblemBuilder::addSum(unsigned value) {
  int node = values[value].node;
  unsigned table = values[value].table;
  auto isTerms = [](PackedSpec spec) { return spec.isPartial(); };
  if (!waiting.crosses(values[value].value) || node < 0 || values[value].isMoved ||
      llvm::none_of(tables[table].specs, isTerms))
    return;
  auto sum = static_cast<unsigned>(values.size());
  ValueInfo info;
  info.value = values[value].value;
  info.bytes = values[value].bytes;
  info.depth = values[value].depth;
  info.sumOf = static_cast<int>(value);
  values.push_back(std::move(info));
  sums[value] = sum;

  llvm::SmallVector<PackedSpec> wholes;
  for (PackedSpec spec : tables[table].specs)
    wholes.push_back(spec.withoutPartial());
  if (values[value].isLed || (isFiltered && !llvm::all_of(wholes, [&](PackedSpec spec) {
                                return isAllowed(values[sum].value, spec);
                              }))) {
    setAnySpec(sum);
  } else {
    values[sum].node = node;
    values[sum].table = deriveTable(table, wholes);
  }
  // What the solver pays to have it so.
  const ValueInfo &made = values[sum];
  if (made.node == node || made.node < 0) {
    llvm::SmallVector<int64_t> costs;
    for (auto [spec, whole] : llvm::zip_equal(tables[table].specs, wholes))
      costs.push_back(completion(made, spec, made.node < 0 ? PackedSpec() : whole).picoseconds);
    return addNodeCosts(node, OpPhase::Update, table, costs);
  }
  std::vector<int64_t> matrix;
  for (PackedSpec from : tables[table].specs)
    for (PackedSpec to : tables[made.table].specs)
      matrix.push_back(completion(made, from, to).picoseconds);
  addEdge(node, table, made.node, made.table, matrix, weight(OpPhase::Update));
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

void ProblemBuilder::addNodeCosts(int node, OpPhase phase, unsigned table,
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
                             llvm::ArrayRef<int64_t> matrix, int64_t times) {
  size_t choicesA = nodes[a].numChoices(), choicesB = nodes[b].numChoices();
  bool isSwapped = a > b;
  auto [it, isNew] = edgeIndex.try_emplace(std::minmax(a, b), problem.edges.size());
  if (isNew)
    problem.edges.push_back(
        {std::min(a, b), std::max(a, b), std::vector<int64_t>(choicesA * choicesB)});
  std::vector<int64_t> &costs = problem.edges[it->second].costs;
  const SpecTable &from = tables[tableA], &to = tables[tableB];
  for (size_t i = 0; i < choicesA; ++i) {
    const int64_t *row = &matrix[from.index[i] * to.specs.size()];
    for (size_t j = 0; j < choicesB; ++j) {
      int64_t &cost = costs[isSwapped ? j * choicesA + i : i * choicesB + j], more = 0;
      bool isForbidden = llvm::MulOverflow(times, row[to.index[j]], more) ||
                         llvm::AddOverflow(cost, more, cost) || cost > kForbiddenCost;
      if (isForbidden) // For several reasons, too.
        cost = kForbiddenCost;
    }
  }
}

/// Random keys are unsigned words along the last dimension (two for Threefry, four
/// for RBG and Philox); JAX keeps them together.
static bool splitsRandomKey(Value value, PackedSpec spec) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  if (!type || type.getRank() == 0 || !type.getElementType().isUnsignedInteger(32) ||
      type.getShape().back() > 4)
    return false;
  for (unsigned axis = 0; axis < PackedSpec::kMaxAxes; ++axis)
    if (spec.dimOf(axis) == type.getRank() - 1)
      return true;
  return false;
}

static size_t rankOf(Value value) { return shapeOf(value).size(); }

bool ProblemBuilder::isAllowed(Value value, PackedSpec spec) const {
  spec = spec.withoutPartial();
  if (auto it = pinned.find(value); it != pinned.end())
    return it->second == spec;
  const auto &allows = options.filter.allowsSpec;
  return !allows || allows(value, spec.unpack(rankOf(value), meshShape.size()));
}

bool ProblemBuilder::isAllowed(const OpInfo &info, const RuleProjection &projection,
                               const Strategy &strategy) const {
  if (!options.filter.allowsStrategy)
    return true;
  llvm::SmallVector<ShardingSpec> operands, results;
  for (auto [value, tensor] : llvm::zip(info.op->getOperands(), info.rule.operands))
    operands.push_back(
        projection.toSpec(tensor, strategy.axes).unpack(rankOf(value), meshShape.size()));
  for (auto [i, value, tensor] : llvm::enumerate(info.op->getResults(), info.rule.results)) {
    PackedSpec spec = projection.toSpec(tensor, strategy.axes);
    results.push_back(
        (i == 0 ? scatteredSpec(spec, strategy) : spec).unpack(rankOf(value), meshShape.size()));
    results.back().partial.clear(); // Whether the sum waits is nothing to a filter.
  }
  return options.filter.allowsStrategy(info.op, operands, results);
}

std::vector<uint32_t> ProblemBuilder::possibleSpecs(Value value) {
  std::vector<uint32_t> codes;
  for (PackedSpec spec : allSpecs(shapeOf(value), meshShape))
    if (!splitsRandomKey(value, spec) && (!isFiltered || isAllowed(value, spec)))
      codes.push_back(spec.code);
  if (codes.empty()) {
    failure = "has a value for which no sharding is allowed";
    codes.push_back(0);
  }
  return codes;
}

void ProblemBuilder::setAnySpec(unsigned value) {
  std::vector<uint32_t> codes = possibleSpecs(values[value].value);
  if (codes.size() <= 1 && codes.front() == 0)
    return;
  values[value].table = addTable(codes);
  values[value].node = addNode(values[value].value, codes.size());
  // Slices cost nothing, so a whole input and a split one would often tie. A
  // nominal price on held bytes, far below any transfer, prefers the split one.
  constexpr double kBytesPerPicosecond = 1024;
  std::vector<int64_t> &costs = nodes.back().costs[static_cast<size_t>(OpPhase::Update)];
  for (size_t choice = 0; choice < codes.size(); ++choice)
    costs[choice] = static_cast<int64_t>(
        values[value].bytes / PackedSpec{codes[choice]}.numPieces(meshShape) / kBytesPerPicosecond);
  nodes.back().heldPrices = costs;
}

/// Between an op and the links behind it terms stay terms.
int64_t ProblemBuilder::reshardPicoseconds(const ValueInfo &value, PackedSpec from,
                                           PackedSpec to) const {
  if (from.partialAxes() != to.partialAxes())
    return kForbiddenCost;
  return reshardsOf(value).picoseconds(from.withoutPartial(), to.withoutPartial());
}

/// Layers are alike, so most matrices are asked for again.
const std::vector<int64_t> &ProblemBuilder::reshardCosts(unsigned from, unsigned to,
                                                         const ValueInfo &value) {
  TensorReshards &tensor = reshards.of(shapeOf(value.value), value.bytes);
  auto [it, isNew] = reshardIndex.try_emplace({from, to, &tensor});
  std::vector<int64_t> &matrix = it->second;
  if (!isNew)
    return matrix;
  for (PackedSpec source : tables[from].specs)
    for (PackedSpec target : tables[to].specs)
      matrix.push_back(reshardPicoseconds(value, source, target));
  if (llvm::all_of(matrix, [](int64_t cost) { return cost == 0; }))
    matrix.clear();
  return matrix;
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
  const std::vector<int64_t> &matrix = reshardCosts(value.table, table, value);
  if (matrix.empty())
    return;
  const SpecTable &from = tables[value.table], &to = tables[table];
  if (node < 0) {
    addNodeCosts(value.node, request.phase, value.table, matrix);
  } else if (node == value.node) {
    std::vector<int64_t> &sums = nodes[node].costs[static_cast<size_t>(request.phase)];
    for (size_t choice = 0; choice < sums.size(); ++choice)
      sums[choice] += matrix[from.index[choice] * to.specs.size() + to.index[choice]];
  } else {
    addEdge(value.node, value.table, node, table, matrix, weight(request.phase));
  }
}
