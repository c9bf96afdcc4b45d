//===- ProblemBuilder.cpp - a stage as an optimization problem ------------===//

#include "compiler/Sharding/Problem/ProblemBuilder.h"

#include "compiler/Analysis/HostMemory.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Sharding/Problem/Reshard.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Chlo/ChloOps.h"
#include "dialects/Common/ErrorCode.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/MathExtras.h"
#include <cmath>

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;
using analysis::shapeOf;
using solver::kForbiddenCost;

static llvm::Error errorAt(Operation *op, const llvm::Twine &what,
                           ErrorCode code = ErrorCode::Pass) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  stream << op->getLoc() << ": '" << op->getName() << "' op " << what;
  return makeError(code, text);
}

llvm::Error ProblemBuilder::collectOps() {
  llvm::SmallVector<Operation *> list;
  llvm::copy_if(stage.ops, std::back_inserter(list),
                [](Operation *op) { return !op->hasTrait<OpTrait::IsTerminator>(); });
  ops.reserve(list.size());
  for (auto [op, facts] : llvm::zip_equal(list, opTable->find(list))) {
    if (!facts->hasPlainTypes)
      return errorAt(op, "has a tensor of dynamic shape or of more than " +
                             std::to_string(PackedSpec::kMaxRank) + " dimensions");
    if (!facts->hasRule)
      return errorAt(op, "has no sharding rule yet", ErrorCode::UnsupportedOp);
    opIndex[op] = ops.size();
    OpInfo &info = ops.emplace_back();
    info.op = op;
    info.facts = facts;
    info.phase = facts->phase;
    info.rule = &facts->rule;
    info.flops = facts->flops;
    info.fusible = facts->fusible;
    info.attention = facts->attention ? &*facts->attention : nullptr;
    if (op->getNumResults() == 1 && waiting.waits(op->getResult(0))) {
      info.deferrable = facts->deferrable;
      info.link = facts->link;
    }
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

/// XLA computes a fusible value inside its users if all of them can do that.
bool ProblemBuilder::isComputedInUsers(const OpInfo &info) const {
  if (!info.fusible || info.op->getNumResults() != 1)
    return false;
  Value result = info.op->getResult(0);
  if (result.use_empty() || (!result.hasOneUse() && info.facts->computedOnce))
    return false;
  return llvm::all_of(result.getUsers(), [&](Operation *user) {
    auto it = opIndex.find(user);
    if (it == opIndex.end())
      return false;
    const OpInfo &userInfo = ops[it->second];
    if (userInfo.phase != info.phase)
      return false;
    // A product in 8 bits reads these, and applies their scales itself.
    if (multiplies8Bits && userInfo.facts->isQuantizedDot)
      return static_cast<bool>(analysis::getQuantized(result));
    return !userInfo.rule->heavy && (!userInfo.rule->leads || userInfo.facts->readsPart);
  });
}

/// Whoever computes a value on the fly reads what that is made of instead, every
/// user anew. Of very many values one is made, as XLA does; of a few, a scalar (a norm).
void ProblemBuilder::findReads(const OpInfo &info) {
  size_t mostReads = numElements(info.op->getResult(0)) == 1 ? 4 : 16;
  llvm::SmallSetVector<unsigned, 8> reads, spread;
  for (unsigned operand : info.operands)
    reads.insert(values[operand].reads.begin(), values[operand].reads.end());
  bool repeats = llvm::isa<stablehlo::BroadcastInDimOp>(info.op) &&
                 numElements(info.op->getResult(0)) > numElements(info.op->getOperand(0));
  for (unsigned read : reads)
    if (repeats || llvm::all_of(info.operands, [&](unsigned operand) {
          return !llvm::is_contained(values[operand].reads, read) ||
                 llvm::is_contained(values[operand].spread, read);
        }))
      spread.insert(read);
  bool isFused = isComputedInUsers(info) && reads.size() <= mostReads;
  if (info.phase == OpPhase::Update && info.fusible && !isFused)
    for (unsigned read : reads)
      updateReaders.try_emplace(read, info.op);
  if (auto reduce = llvm::dyn_cast<stablehlo::ReduceOp>(info.op)) {
    std::vector<unsigned> key(reads.begin(), reads.end());
    llvm::sort(key);
    key.push_back(static_cast<unsigned>(info.phase));
    key.insert(key.end(), reduce.getDimensions().begin(), reduce.getDimensions().end());
    if (!reductions.insert(std::move(key)).second)
      reducedBeside.insert(info.op);
  }
  llvm::SmallSetVector<unsigned, 8> rows;
  bool reducesRows = info.facts->reducesRows, endsRows = !isFused && !reducesRows;
  for (unsigned operand : info.operands) {
    if (!endsRows)
      rows.insert(values[operand].rows.begin(), values[operand].rows.end());
    if (reducesRows)
      rows.insert(values[operand].reads.begin(), values[operand].reads.end());
  }
  for (unsigned index : info.results) {
    values[index].materialized = !isFused;
    values[index].rows.assign(rows.begin(), rows.end());
    if (isFused) {
      values[index].reads.assign(reads.begin(), reads.end());
      values[index].spread.assign(spread.begin(), spread.end());
    } else {
      values[index].reads.assign(1, index);
    }
  }
}

/// A product, or a kernel or loop that may hold some.
static bool multiplies(Operation *op) {
  StringRef name = op->getName().getStringRef();
  return name.ends_with("dot_general") || name.ends_with("ragged_dot") ||
         isa<stablehlo::ConvolutionOp, stablehlo::CustomCallOp, stablehlo::WhileOp>(op);
}

void ProblemBuilder::findValuesForUpdate() {
  // In a stage that hands no gradient on, the update is the end of all there is; but what the
  // backward products of earlier layers wait for does not hide beside them.
  constexpr unsigned kMostProducts = 1; // Of a weight's gradient.
  llvm::DenseMap<Operation *, unsigned> productsAhead;
  // Users come later in program order, so they are known.
  for (Operation *op : llvm::reverse(stage.ops)) {
    if (opPhaseOf(op) != OpPhase::Backward || op->use_empty())
      continue;
    unsigned ahead = 0;
    bool rests = llvm::all_of(op->getUsers(), [&](Operation *user) {
      if (user->getBlock() != op->getBlock() || user->hasTrait<OpTrait::IsTerminator>())
        return false;
      if (opPhaseOf(user) == OpPhase::Update)
        return true;
      auto known = productsAhead.find(user);
      if (known == productsAhead.end())
        return false;
      ahead = std::max(ahead, known->second + multiplies(user));
      return ahead <= kMostProducts;
    });
    if (!rests)
      continue;
    productsAhead[op] = ahead;
    forUpdate.insert(op->result_begin(), op->result_end());
  }
}

void ProblemBuilder::findStateValues(const OpInfo &info) {
  bool isOfState = false;
  for (unsigned operand : info.operands) {
    isOfState |= values[operand].isOfState;
    if (!values[operand].isOfState && values[operand].kind != ValueKind::Free)
      return;
  }
  for (unsigned result : info.results)
    values[result].isOfState = isOfState;
}

llvm::Error ProblemBuilder::build() {
  if (meshShape.size() > PackedSpec::kMaxAxes)
    return makeError(ErrorCode::Method, "a mesh of " + llvm::Twine(meshShape.size()) +
                                            " axes is not supported; at most " +
                                            llvm::Twine(PackedSpec::kMaxAxes) + " are");
  addTable({0});
  // With one micro-batch there is nothing to save.
  if (options.numMicroBatches > 1)
    waiting = WaitingValues(stage.ops);
  if (model.hiddenPart() < 1)
    findValuesForUpdate();
  if (llvm::Error error = collectOps())
    return error;
  if (llvm::Error error = collectPins())
    return error;
  // Inputs, sums and scratch come to the results.
  values.reserve(2 * ops.size());
  parts.reserve(ops.size());
  demands.reserve(2 * ops.size());
  for (OpInfo &info : ops) {
    for (Value operand : info.op->getOperands())
      info.operands.push_back(valueFor(info.phase, operand));
    for (Value result : info.op->getResults())
      info.results.push_back(addValue(result));
    findReads(info);
    for (const auto &[value, tensor] : info.rule->captures)
      info.operands.push_back(valueOf(value));
    for (Value value : info.facts->captured)
      pending.push_back({valueOf(value), nullptr, 0, -1, 0, info.phase});
    findStateValues(info);
    demand();
    visit(info);
    if (!failure.empty())
      return errorAt(info.op, failure);
  }
  carryState();
  for (unsigned index = 0; index < values.size(); ++index)
    if (values[index].kind != ValueKind::Settled && !values[index].isAsked)
      pending.push_back({index, nullptr, 0, -1, 0, OpPhase::Forward});
  demand();
  findHostActivations();
  addNodesToProblem();
  return llvm::Error::success();
}

void ProblemBuilder::findHostActivations() {
  Operation *last = nullptr, *first = nullptr;
  for (unsigned index = 0; index < values.size(); ++index) {
    Value value = values[index].value;
    if (values[index].isInput || values[index].isScratch || values[index].sumOf >= 0 ||
        !analysis::isHostActivation(value, [&](Operation *op) { return isInStage(op); }))
      continue;
    hostActivations.push_back({index});
    values[index].isHostActivation = true;
    Operation *source = value.getDefiningOp(), *reader = analysis::firstBackwardReader(value);
    if (!last || last->isBeforeInBlock(source))
      last = source;
    if (!first || reader->isBeforeInBlock(first))
      first = reader;
  }
  for (HostActivation &activation : hostActivations) {
    Value value = values[activation.value].value;
    activation.isLast = value.getDefiningOp() == last;
    activation.isFirst = layerOf(analysis::firstBackwardReader(value)) == layerOf(first);
  }
}

void ProblemBuilder::carryState() {
  if (ops.empty())
    return;
  auto function = ops.front().op->getParentOfType<FunctionOpInterface>();
  if (!function || function.isExternal())
    return;
  Operation *terminator = function.getFunctionBody().front().getTerminator();
  llvm::DenseSet<int> seen;
  for (BlockArgument argument : function.getArguments()) {
    auto attr =
        function.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), alpa::attr::carriedBy);
    if (!attr || attr.getInt() < 0 ||
        attr.getInt() >= static_cast<int64_t>(terminator->getNumOperands()))
      continue;
    int next = find(terminator->getOperand(attr.getInt()));
    if (next < 0)
      continue;
    // What is another argument's value too, or becomes two arguments', is moved for this one.
    if (values[next].isInput && (argument == values[next].value || find(argument) < 0))
      continue;
    unsigned index = valueOf(argument);
    if (!values[next].isInput && seen.insert(next).second)
      carried.push_back({index, static_cast<unsigned>(next)});
    pending.push_back({static_cast<unsigned>(next), nullptr, 0, values[index].node,
                       values[index].table, OpPhase::Update});
    demand();
  }
}

void ProblemBuilder::addNodesToProblem() {
  for (const NodeInfo &info : nodes) {
    solver::ProblemNode node;
    node.name = info.name;
    for (size_t choice = 0; choice < info.numChoices(); ++choice) {
      solver::CostSum cost = 0;
      bool isForbidden = false;
      for (unsigned phase = 0; phase < kNumPhases; ++phase) {
        cost += solver::CostSum(info.costs[phase][choice]) * weight(static_cast<OpPhase>(phase));
        isForbidden |= info.costs[phase][choice] >= kForbiddenCost;
      }
      // What takes longer than a problem may hold is as dear as allowed choices get.
      auto most = solver::CostSum(kForbiddenCost) - (isForbidden ? 0 : 1);
      node.costs.push_back(int64_t(std::min(cost, most)));
    }
    problem.nodes.push_back(std::move(node));
  }
}

/// What of it is paid; forbidden costs stay forbidden.
static int64_t partOf(int64_t picoseconds, double part) {
  return part == 1 || picoseconds >= kForbiddenCost
             ? picoseconds
             : std::llround(static_cast<double>(picoseconds) * part);
}

double ProblemBuilder::paidPart(const ValueInfo &value, OpPhase phase) const {
  bool isEarly = phase == OpPhase::Forward || phase == OpPhase::Backward;
  bool hides = (isEarly && value.isOfState) ||
               (phase == OpPhase::Backward && forUpdate.contains(value.value));
  return hides ? model.hiddenPart() : 1;
}

double ProblemBuilder::paidPart(const OpInfo &info) const {
  bool hides = info.phase == OpPhase::Backward && info.op->getNumResults() == 1 &&
               forUpdate.contains(info.op->getResult(0));
  return hides ? model.hiddenPart() : 1;
}

int64_t ProblemBuilder::movePicoseconds(const ValueInfo &value, PackedSpec from, PackedSpec to,
                                        OpPhase phase) const {
  return partOf(reshardPicoseconds(value, from, to), paidPart(value, phase));
}

PhaseSeconds ProblemBuilder::phaseSeconds(llvm::ArrayRef<unsigned> choices) const {
  std::array<double, kNumPhases> totals{}, hideable{};
  for (unsigned phase = 0; phase < kNumPhases; ++phase) {
    totals[phase] = static_cast<double>(fixedCosts[phase]);
    hideable[phase] = static_cast<double>(fixedHideable[phase]);
    for (auto [node, choice] : llvm::zip_equal(nodes, choices)) {
      totals[phase] += static_cast<double>(node.costs[phase][choice]);
      if (!node.hideable[phase].empty())
        hideable[phase] += static_cast<double>(node.hideable[phase][choice]);
    }
  }
  auto addMove = [&](const ValueInfo &value, PackedSpec from, PackedSpec to, OpPhase phase) {
    int64_t whole = reshardPicoseconds(value, from, to);
    double part = paidPart(value, phase);
    totals[static_cast<size_t>(phase)] += static_cast<double>(partOf(whole, part));
    if (part < 1)
      hideable[static_cast<size_t>(phase)] += static_cast<double>(whole);
  };
  for (const ValueInfo &value : values)
    if (value.isMoved && value.madeNode >= 0 && value.node >= 0)
      addMove(value, specOf(value.madeNode, value.madeTable, choices), specOf(value, choices),
              opPhaseOf(value.value.getDefiningOp()));
  for (const ValueInfo &value : values)
    if (value.sumOf >= 0 && value.node >= 0 && value.node != values[value.sumOf].node)
      totals[static_cast<size_t>(OpPhase::Update)] +=
          static_cast<double>(completionOf(value, choices).picoseconds);
  for (const OperandDemand &demand : demands) {
    const ValueInfo &value = values[demand.value];
    if (!demand.charged || demand.node < 0 || demand.node == value.node)
      continue; // Part of a node's own costs.
    addMove(value, specOf(value, choices), specOf(demand.node, demand.table, choices),
            demand.phase);
    totals[static_cast<size_t>(demand.phase)] -= static_cast<double>(savedOf(demand, choices));
  }
  PhaseSeconds result;
  double part = model.hiddenPart();
  for (unsigned phase = 0; phase < kNumPhases; ++phase) {
    double rest = totals[phase] - part * hideable[phase];
    double exposed = (1 - part) * std::max(0.0, hideable[phase] - rest);
    result.exposedInStep +=
        toSeconds(static_cast<double>(weight(static_cast<OpPhase>(phase))) * exposed);
    result.seconds[phase] = toSeconds(totals[phase] + exposed);
  }
  addHostCopies(choices, result);
  return result;
}

/// Copies run beside the work of their phase, but for the last value that goes to the host and
/// the first piece that comes back.
void ProblemBuilder::addHostCopies(llvm::ArrayRef<unsigned> choices, PhaseSeconds &result) const {
  if (hostActivations.empty())
    return;
  for (OpPhase phase : {OpPhase::Forward, OpPhase::Backward}) {
    double all = 0, alone = 0;
    for (const HostActivation &activation : hostActivations) {
      const ValueInfo &value = values[activation.value];
      int64_t pieces = specOf(value, choices).numPieces(meshShape);
      double copy = model.hostSeconds(value.bytes / static_cast<double>(pieces));
      all += copy;
      if (phase == OpPhase::Forward ? activation.isLast : activation.isFirst)
        alone += copy;
    }
    double &seconds = result.seconds[static_cast<size_t>(phase)];
    double waits = std::max(0.0, all - alone - seconds) + alone;
    seconds += waits;
    auto times = static_cast<double>(weight(phase));
    result.copiesInStep += times * waits;
    result.hiddenCopiesInStep += times * (all - waits);
  }
}

/// With r for the seconds of other work, h for those of the collectives, and s for what a
/// second of them slows it down, a phase takes the longer of r + s h and h + s r; so no
/// less than any mean of the two.
int64_t ProblemBuilder::counted(int64_t cost, double hideable, double exposure) const {
  double part = model.hiddenPart();
  return exposure == 0 || cost >= kForbiddenCost
             ? cost
             : static_cast<int64_t>((1 - exposure * (1 - part)) * static_cast<double>(cost) +
                                    exposure * (1 - part * part) * hideable);
}

int64_t ProblemBuilder::fixedPicoseconds(double exposure) const {
  int64_t cost = 0;
  double hideable = 0;
  for (unsigned phase = 0; phase < kNumPhases; ++phase) {
    int64_t times = weight(static_cast<OpPhase>(phase));
    cost += times * fixedCosts[phase];
    hideable += static_cast<double>(times) * static_cast<double>(fixedHideable[phase]);
  }
  return counted(cost, hideable, exposure);
}

int64_t ProblemBuilder::nodeCost(unsigned node, unsigned choice, double exposure) const {
  double hideable = 0;
  for (unsigned phase = 0; phase < kNumPhases; ++phase)
    if (!nodes[node].hideable[phase].empty())
      hideable += static_cast<double>(nodes[node].hideable[phase][choice]) *
                  static_cast<double>(weight(static_cast<OpPhase>(phase)));
  return counted(problem.nodes[node].costs[choice], hideable, exposure);
}

int64_t ProblemBuilder::edgeCost(unsigned edge, size_t pair, double exposure) const {
  auto hideable = hideableEdges.find(edge);
  return counted(problem.edges[edge].costs[pair],
                 hideable == hideableEdges.end() ? 0 : static_cast<double>(hideable->second[pair]),
                 exposure);
}

solver::Problem ProblemBuilder::exposedProblem(double exposure) const {
  solver::Problem exposed = problem;
  if (exposure == 0)
    return exposed;
  for (unsigned node = 0; node < exposed.nodes.size(); ++node)
    for (auto [choice, cost] : llvm::enumerate(exposed.nodes[node].costs))
      cost = nodeCost(node, choice, exposure);
  for (unsigned edge = 0; edge < exposed.edges.size(); ++edge)
    for (auto [pair, cost] : llvm::enumerate(exposed.edges[edge].costs))
      cost = edgeCost(edge, pair, exposure);
  return exposed;
}

solver::CostSum ProblemBuilder::exposedObjective(llvm::ArrayRef<unsigned> choices,
                                                 double exposure) const {
  solver::CostSum sum = 0;
  for (auto [node, choice] : llvm::enumerate(choices))
    sum += nodeCost(node, choice, exposure);
  for (auto [index, edge] : llvm::enumerate(problem.edges)) {
    size_t columns = problem.nodes[edge.b].costs.size();
    sum += edgeCost(index, choices[edge.a] * columns + choices[edge.b], exposure);
  }
  return sum;
}

//===----------------------------------------------------------------------===//
// Values, nodes and edges of the problem
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
    info.bytes = analysis::getTensorBytes(value.getType());
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
  values[index].isOfState = isStateArgument(value);
  // What other stages make of constants alone is made anew here.
  if (Operation *op = value.getDefiningOp();
      op && op->getNumOperands() == 0 && op->getNumRegions() == 0 && analysis::getShardingRule(op))
    values[index].kind = ValueKind::Free;
  else
    setAnySpec(index);
  if (isOnHost(values[index]))
    chargeHostCopy(values[index]);
  return index;
}

double ProblemBuilder::hostByteWeight() const {
  constexpr double kNoMemory = 0x1p16; // More than any device has.
  const cost::LogicalMesh &mesh = model.getMesh();
  return mesh.hostMemory ? static_cast<double>(mesh.device.memoryBytes) /
                               static_cast<double>(std::max<int64_t>(1, mesh.hostMemory->bytes))
                         : kNoMemory;
}

void ProblemBuilder::chargeHostCopy(const ValueInfo &value) {
  auto costOf = [&](PackedSpec spec) {
    return toPicoseconds(
        model.hostSeconds(value.bytes / static_cast<double>(spec.numPieces(meshShape))));
  };
  if (value.node < 0) {
    fixedHostCost += costOf({});
    fixedCosts[static_cast<size_t>(OpPhase::Update)] += costOf({});
    return;
  }
  NodeInfo &node = nodes[value.node];
  std::vector<int64_t> &costs = node.costs[static_cast<size_t>(OpPhase::Update)];
  node.hostCosts.resize(node.numChoices());
  for (auto [choice, entry] : llvm::enumerate(tables[value.table].index)) {
    node.hostCosts[choice] = costOf(tables[value.table].specs[entry]);
    costs[choice] += node.hostCosts[choice];
  }
}

int64_t ProblemBuilder::hostPicoseconds(llvm::ArrayRef<unsigned> choices) const {
  int64_t sum = fixedHostCost;
  for (auto [node, choice] : llvm::zip_equal(nodes, choices))
    if (!node.hostCosts.empty())
      sum += node.hostCosts[choice];
  return sum;
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
  auto isTerms = [](PackedSpec spec) { return spec.isUnreduced(); };
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
    wholes.push_back(spec.withoutUnreduced());
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

std::vector<int64_t> &ProblemBuilder::nodeCosts(int node, OpPhase phase, Count count) {
  NodeInfo &info = nodes[node];
  auto index = static_cast<size_t>(phase);
  std::vector<int64_t> &costs = count == Count::Paid ? info.costs[index] : info.hideable[index];
  costs.resize(info.numChoices());
  return costs;
}

void ProblemBuilder::addNodeCosts(int node, OpPhase phase, unsigned table,
                                  llvm::ArrayRef<int64_t> costs, Count count) {
  if (node < 0) {
    auto &fixed = count == Count::Paid ? fixedCosts : fixedHideable;
    fixed[static_cast<size_t>(phase)] += costs[0];
    return;
  }
  std::vector<int64_t> &sums = nodeCosts(node, phase, count);
  for (size_t choice = 0; choice < sums.size(); ++choice)
    sums[choice] += costs[tables[table].index[choice]];
}

void ProblemBuilder::addMoves(const ValueInfo &value, int from, unsigned fromTable, int to,
                              unsigned toTable, OpPhase phase) {
  const std::vector<int64_t> &matrix = reshardCosts(fromTable, toTable, value);
  if (matrix.empty())
    return;
  auto add = [&](llvm::ArrayRef<int64_t> costs, Count count) {
    if (to < 0)
      return addNodeCosts(from, phase, fromTable, costs, count);
    if (to != from)
      return addEdge(from, fromTable, to, toTable, costs, weight(phase), count);
    const SpecTable &held = tables[fromTable], &wanted = tables[toTable];
    std::vector<int64_t> &sums = nodeCosts(from, phase, count);
    for (size_t choice = 0; choice < sums.size(); ++choice)
      sums[choice] += costs[held.index[choice] * wanted.specs.size() + wanted.index[choice]];
  };
  double part = paidPart(value, phase);
  if (part == 1)
    return add(matrix, Count::Paid);
  std::vector<int64_t> paid, hideable;
  for (int64_t cost : matrix) {
    paid.push_back(partOf(cost, part));
    hideable.push_back(cost >= kForbiddenCost ? 0 : cost);
  }
  add(paid, Count::Paid);
  add(hideable, Count::Hideable);
}

void ProblemBuilder::addEdge(unsigned a, unsigned tableA, unsigned b, unsigned tableB,
                             llvm::ArrayRef<int64_t> matrix, int64_t times, Count count) {
  size_t choicesA = nodes[a].numChoices(), choicesB = nodes[b].numChoices();
  bool isSwapped = a > b;
  auto [it, isNew] = edgeIndex.try_emplace(std::minmax(a, b), problem.edges.size());
  if (isNew)
    problem.edges.push_back(
        {std::min(a, b), std::max(a, b), std::vector<int64_t>(choicesA * choicesB)});
  std::vector<int64_t> &costs =
      count == Count::Paid ? problem.edges[it->second].costs : hideableEdges[it->second];
  costs.resize(choicesA * choicesB);
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
  spec = spec.withoutUnreduced();
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
  for (auto [value, tensor] : llvm::zip(info.op->getOperands(), info.rule->operands))
    operands.push_back(
        projection.toSpec(tensor, strategy.axes).unpack(rankOf(value), meshShape.size()));
  for (auto [i, value, tensor] : llvm::enumerate(info.op->getResults(), info.rule->results)) {
    PackedSpec spec = projection.toSpec(tensor, strategy.axes);
    results.push_back(
        (i == 0 ? scatteredSpec(spec, strategy) : spec).unpack(rankOf(value), meshShape.size()));
    results.back().unreduced.clear(); // Whether the sum waits is nothing to a filter.
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

TensorReshards &ProblemBuilder::reshardsOf(const ValueInfo &value) const {
  TensorReshards *&known = reshardsOfTypes[value.value.getType()];
  if (!known)
    known = &reshards.of(shapeOf(value.value), value.bytes);
  return *known;
}

/// Between an op and the links behind it terms stay terms.
int64_t ProblemBuilder::reshardPicoseconds(const ValueInfo &value, PackedSpec from,
                                           PackedSpec to) const {
  if (from.unreducedAxes() != to.unreducedAxes())
    return kForbiddenCost;
  return reshardsOf(value).picoseconds(from.withoutUnreduced(), to.withoutUnreduced());
}

/// Layers are alike, so most matrices are asked for again.
const std::vector<int64_t> &ProblemBuilder::reshardCosts(unsigned from, unsigned to,
                                                         const ValueInfo &value) {
  TensorReshards &tensor = reshardsOf(value);
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
      static_cast<uint64_t>(request.value) * kNumPhases + static_cast<uint64_t>(request.phase);
  OperandDemand record{request.value, request.user, request.operand, node, table,
                       request.phase, false};
  record.charged = value.node >= 0 && charged.insert({source, user}).second;
  bool mayHide = record.charged && model.cutsProducts() && request.node >= 0 &&
                 llvm::isa_and_nonnull<stablehlo::DotGeneralOp>(request.user) &&
                 paidPart(value, request.phase) == 1;
  record.product = mayHide ? request.node : -1;
  demands.push_back(record);
  if (!record.charged)
    return;
  addMoves(value, value.node, value.table, node, table, request.phase);
  if (mayHide)
    addSavings(record);
}

std::optional<cost::CollectiveMatmul>
ProblemBuilder::matmulOf(const OpInfo &info, const RuleProjection &projection,
                         const Strategy &strategy, const analysis::DimFactors &cut) const {
  if (cut.size() != 1)
    return std::nullopt;
  auto has = [&](const analysis::TensorFactors &tensor) {
    return llvm::any_of(tensor, [&](const analysis::DimFactors &dim) {
      return llvm::is_contained(dim, cut.front());
    });
  };
  bool isOfLhs = has(info.rule->operands[0]), isOfRhs = has(info.rule->operands[1]);
  if (isOfLhs == isOfRhs || !has(info.rule->results[0]))
    return std::nullopt;
  cost::CollectiveMatmul matmul;
  double flops = info.flops / static_cast<double>(projection.numShares(strategy.axes));
  matmul.product = productOf(*info.rule, strategy.axes, flops, projection);
  matmul.cutsRows = isOfLhs;
  matmul.elementBytes = values[info.operands[0]].bytes /
                        static_cast<double>(numElements(values[info.operands[0]].value));
  matmul.dtype = info.facts->computeType;
  return matmul;
}

int64_t ProblemBuilder::savedOf(const OpInfo &info, const RuleProjection &projection,
                                const Strategy &strategy) const {
  if (!model.cutsProducts() || paidPart(info) < 1 || !llvm::isa<stablehlo::DotGeneralOp>(info.op))
    return 0;
  llvm::SmallVector<CollectiveUse> uses =
      reductionUses(*info.rule, 0, strategy, values[info.results[0]].bytes, projection, model);
  if (uses.size() != 1 || uses[0].collective != cost::Collective::ReduceScatter)
    return 0;
  std::optional<cost::CollectiveMatmul> matmul =
      matmulOf(info, projection, strategy, info.rule->results[0][strategy.scatter[uses[0].axis]]);
  if (!matmul)
    return 0;
  matmul->collective = cost::Collective::ReduceScatter;
  matmul->axis = uses[0].axis;
  matmul->bytes = uses[0].bytes;
  return toPicoseconds(model.savedByPieces(*matmul));
}

int64_t ProblemBuilder::savedOf(const OperandDemand &demand, PackedSpec from,
                                unsigned choice) const {
  const ValueInfo &value = values[demand.value];
  const OpInfo &info = ops[opIndex.find(demand.user)->second];
  RuleProjection projection(*info.rule, meshShape);
  const Strategy &strategy = nodes[demand.product].strategies[choice];
  const analysis::TensorFactors &tensor = info.rule->operands[demand.operand];
  PackedSpec to = projection.toSpec(tensor, strategy.axes);
  size_t rank = shapeOf(value.value).size();
  if (from.unreducedAxes() || to.unreducedAxes())
    return 0;
  std::optional<ReshardStep> step =
      singleStep(from.unpack(rank, meshShape.size()), to.unpack(rank, meshShape.size()), meshShape);
  if (!step || step->kind != ReshardKind::AllGather)
    return 0;
  std::optional<cost::CollectiveMatmul> matmul =
      matmulOf(info, projection, strategy, tensor[step->fromDim]);
  if (!matmul)
    return 0;
  matmul->keepsWhole = llvm::any_of(value.value.getUses(), [&](mlir::OpOperand &use) {
    auto it = opIndex.find(use.getOwner());
    if (it == opIndex.end() || ops[it->second].phase != demand.phase)
      return false;
    const analysis::ShardingRule &rule = *ops[it->second].rule;
    if (!llvm::isa<stablehlo::DotGeneralOp>(use.getOwner()))
      return true;
    unsigned factor = rule.operands[use.getOperandNumber()][step->fromDim].front();
    return rule.factors[factor].kind == analysis::FactorKind::Reduction;
  });
  matmul->axis = step->axis;
  matmul->bytes = value.bytes / static_cast<double>(to.numPieces(meshShape));
  return std::min(toPicoseconds(model.savedByPieces(*matmul)), reshardPicoseconds(value, from, to));
}

int64_t ProblemBuilder::savedOf(const OperandDemand &demand,
                                llvm::ArrayRef<unsigned> choices) const {
  if (demand.product < 0)
    return 0;
  PackedSpec from = specOf(values[demand.value], choices);
  if (demand.node >= 0)
    return savedOf(demand, from, choices[demand.product]);
  // What is read whole whatever the product chooses costs the same for all of its choices.
  int64_t least = kForbiddenCost;
  for (unsigned choice = 0; choice < nodes[demand.product].numChoices(); ++choice)
    least = std::min(least, savedOf(demand, from, choice));
  return least;
}

int64_t ProblemBuilder::demandPicoseconds(const OperandDemand &demand,
                                          llvm::ArrayRef<unsigned> choices) const {
  const ValueInfo &value = values[demand.value];
  return movePicoseconds(value, specOf(value, choices), specOf(demand.node, demand.table, choices),
                         demand.phase) -
         savedOf(demand, choices);
}

void ProblemBuilder::addSavings(const OperandDemand &demand) {
  const ValueInfo &value = values[demand.value];
  unsigned held = value.node, product = demand.product;
  std::vector<unsigned> choices(nodes.size());
  auto savedBy = [&](unsigned i, unsigned j) {
    choices[product] = j;
    choices[held] = i;
    return savedOf(demand, choices);
  };
  if (demand.node < 0 || held == product) {
    std::vector<int64_t> &costs = nodeCosts(value.node, demand.phase, Count::Paid);
    for (unsigned i = 0; i < costs.size(); ++i)
      costs[i] -= savedBy(i, held == product ? i : 0);
    return;
  }
  // Of the moves that were just added to the edge.
  auto it = edgeIndex.find(std::minmax(held, product));
  if (it == edgeIndex.end())
    return; // Which none of them needs.
  std::vector<int64_t> &costs = problem.edges[it->second].costs;
  size_t numHeld = nodes[held].numChoices(), numProduct = nodes[product].numChoices();
  int64_t times = weight(demand.phase);
  for (unsigned j = 0; j < numProduct; ++j) {
    llvm::SmallDenseMap<uint16_t, int64_t, 16> known; // By the spec that is held.
    for (unsigned i = 0; i < numHeld; ++i) {
      int64_t &cost = costs[held > product ? j * numHeld + i : i * numProduct + j];
      auto [saved, isNew] = known.try_emplace(tables[value.table].index[i], 0);
      if (isNew)
        saved->second = savedBy(i, j);
      if (cost < kForbiddenCost)
        cost -= times * saved->second;
    }
  }
}

//===----------------------------------------------------------------------===//
// Ops that lead and ops that follow
//===----------------------------------------------------------------------===//

/// Whether each run of a loop's body gives on what it got.
static bool isHandedOn(stablehlo::WhileOp loop, unsigned result) {
  Block &body = loop.getBody().front();
  return body.getTerminator()->getOperand(result) == body.getArgument(result);
}

int ProblemBuilder::aliasOf(const OpInfo &info, unsigned result) const {
  auto loop = llvm::dyn_cast<stablehlo::WhileOp>(info.op);
  bool isName = info.facts->isName || (loop && isHandedOn(loop, result));
  unsigned operand = isName ? info.operands[result] : 0;
  return isName && values[operand].materialized ? static_cast<int>(operand) : -1;
}

bool ProblemBuilder::isAlias(const OpInfo &info) const {
  return !info.results.empty() &&
         llvm::all_of(llvm::seq<unsigned>(0, info.results.size()),
                      [&](unsigned result) { return aliasOf(info, result) >= 0; });
}

MemoryTraffic ProblemBuilder::trafficOf(const OpInfo &info) const {
  MemoryTraffic traffic;
  bool isFused = !info.results.empty() && llvm::none_of(info.results, [&](unsigned index) {
    return values[index].materialized;
  });
  // What is alias or part of another kernel, the users read. XLA updates the weights of a step in
  // few kernels, since they do not depend on each other.
  bool isNone = isFused || isAlias(info);
  traffic.isPart = isNone || (info.fusible && info.phase == OpPhase::Update);
  auto hasRows = [&](unsigned other) {
    return llvm::any_of(info.operands, [&](unsigned index) {
      return llvm::is_contained(values[index].rows, other);
    });
  };
  // XLA's kernels of elementwise ops write what others need beside what comes next.
  auto isAtHand = [&](unsigned other, unsigned index) {
    if (!info.fusible || numElements(values[other].value) != numElements(values[index].value))
      return false;
    // Behind a barrier is what came to it.
    while (true) {
      auto it = opIndex.find(values[other].value.getDefiningOp());
      if (it == opIndex.end())
        return false;
      const OpInfo &maker = ops[it->second];
      auto result = llvm::cast<OpResult>(values[other].value);
      int source = aliasOf(maker, result.getResultNumber());
      if (source < 0)
        return maker.fusible && maker.phase == info.phase;
      other = static_cast<unsigned>(source);
    }
  };
  bool mayGoOn = info.fusible || info.facts->reducesRows;
  bool isBeside = reducedBeside.contains(info.op);
  llvm::SmallVector<unsigned, 8> read;
  for (auto [operand, index] :
       llvm::enumerate(isNone ? llvm::ArrayRef<unsigned>() : llvm::ArrayRef(info.operands)))
    for (unsigned other : values[index].reads) {
      if (values[other].kind == ValueKind::Free || llvm::is_contained(read, other))
        continue;
      read.push_back(other);
      // One kernel updates a weight and what the optimizer keeps of it.
      if (info.phase == OpPhase::Update && info.fusible && updateReaders.lookup(other) != info.op)
        continue;
      if (isAtHand(other, index) || isBeside) {
        traffic.isPart = true; // It goes on in the kernel that has them.
        continue;
      }
      // What a broadcast repeats need not be split; of what is cut, a part is read.
      int64_t has = numElements(values[other].value);
      int64_t wants = info.facts->readsPart ? numElements(info.op->getResult(0))
                                            : numElements(values[index].value);
      traffic.reads.push_back({static_cast<unsigned>(operand),
                               values[other].bytes * std::min(1.0, static_cast<double>(wants) /
                                                                       std::max<int64_t>(has, 1)),
                               llvm::is_contained(values[index].spread, other),
                               mayGoOn && !info.rule->operands[operand].empty() && hasRows(other)});
    }
  for (auto [result, index] : llvm::enumerate(info.results))
    if (values[index].materialized && values[index].kind != ValueKind::Free &&
        aliasOf(info, result) < 0 && !analysis::isWorkspace(values[index].value))
      traffic.writes.push_back({static_cast<unsigned>(result), values[index].bytes});
  return traffic;
}

double ProblemBuilder::localFlops(const OpInfo &info, const RuleProjection &projection,
                                  const Strategy &strategy) const {
  double flops = info.flops / static_cast<double>(projection.numShares(strategy.axes));
  return llvm::isa<chlo::RaggedDotOp>(info.op) ? flops * analysis::timesComputed(info.op) : flops;
}

LocalWork ProblemBuilder::workOf(const OpInfo &info, const RuleProjection &projection,
                                 const Strategy &strategy) const {
  LocalWork work;
  work.flops = localFlops(info, projection, strategy);
  bool goesOn = false; // In the kernel that has the rows.
  for (const MemoryTraffic::Read &read : info.traffic.reads) {
    const analysis::TensorFactors &tensor = info.rule->operands[read.operand];
    PackedSpec spec = projection.toSpec(tensor, strategy.axes);
    if (read.isOfRows && spec.numPieces(static_cast<int>(tensor.size()) - 1, meshShape) == 1) {
      goesOn = true;
      continue;
    }
    work.bytes += read.bytes / static_cast<double>(read.isSpread ? 1 : spec.numPieces(meshShape));
  }
  for (const MemoryTraffic::Write &write : info.traffic.writes)
    work.bytes +=
        write.bytes /
        static_cast<double>(projection.toSpec(info.rule->results[write.result], strategy.axes)
                                .numPieces(meshShape));
  work.launches = (work.bytes > 0 || work.flops > 0) && !info.traffic.isPart && !goesOn;
  return work;
}

std::pair<int64_t, llvm::SmallVector<unsigned>>
ProblemBuilder::ringOf(const OpInfo &info, const Strategy &strategy) const {
  int64_t devices = 1;
  llvm::SmallVector<unsigned> axes;
  for (unsigned axis = 0; info.attention && axis < meshShape.size(); ++axis) {
    int16_t factor = strategy.axes.factor[axis];
    if (factor < 0 || info.rule->factors[factor].kind != analysis::FactorKind::Ring)
      continue;
    devices *= meshShape[axis];
    axes.push_back(axis);
  }
  return {devices, axes};
}

double ProblemBuilder::localBytes(unsigned value, const analysis::TensorFactors &tensor,
                                  const RuleProjection &projection,
                                  const Strategy &strategy) const {
  PackedSpec spec = projection.toSpec(tensor, strategy.axes);
  return values[value].bytes / static_cast<double>(spec.numPieces(meshShape));
}

double ProblemBuilder::localKeys(const OpInfo &info, const RuleProjection &projection,
                                 const Strategy &strategy) const {
  return localBytes(info.operands[1], info.rule->operands[1], projection, strategy) +
         localBytes(info.operands[2], info.rule->operands[2], projection, strategy);
}

double ProblemBuilder::localKeySums(const OpInfo &info, const RuleProjection &projection,
                                    const Strategy &strategy) const {
  double bytes = 0;
  for (unsigned result : {1u, 2u}) {
    Value value = values[info.results[result]].value;
    bytes += localBytes(info.results[result], info.rule->results[result], projection, strategy) *
             32 / llvm::cast<RankedTensorType>(value.getType()).getElementTypeBitWidth();
  }
  return bytes;
}

/// Of causal attention each half's own keys and those before are put together in float32. Gradients
/// are those of all keys: two kernels write them, of them one for the first half of the keys alone,
/// and they are added in float32.
double ProblemBuilder::gatheredSeconds(const OpInfo &info, const RuleProjection &projection,
                                       const Strategy &strategy) const {
  const analysis::AttentionCall &call = *info.attention;
  LocalWork work = workOf(info, projection, strategy);
  llvm::StringRef dtype = info.facts->computeType;
  double devices = static_cast<double>(ringOf(info, strategy).first);
  work.bytes += (devices - 1) * localKeys(info, projection, strategy);
  double bytes = 0;
  if (call.isBalanced()) {
    double elements = static_cast<double>(numElements(values[info.results[0]].value));
    bytes = 2 * (8 * elements / values[info.results[0]].bytes + 1) *
            localBytes(info.results[0], info.rule->results[0], projection, strategy);
  }
  if (call.isBackward) {
    double written = (call.isBalanced() ? 1.5 : 1) * devices *
                     (localBytes(info.results[1], info.rule->results[1], projection, strategy) +
                      localBytes(info.results[2], info.rule->results[2], projection, strategy));
    work.bytes += written - written / devices;
    bytes += written + devices * localKeySums(info, projection, strategy);
  }
  double kernels = static_cast<double>(call.gatherKernels());
  return kernels * model.attentionSeconds(work.flops / kernels, work.bytes / kernels, dtype) +
         model.computeSeconds(0, bytes, dtype);
}

/// One kernel, or one for each step of a ring, whose results are put together in float32.
double ProblemBuilder::attentionSeconds(const OpInfo &info, const RuleProjection &projection,
                                        const Strategy &strategy) const {
  if (strategy.gathersKeys)
    return gatheredSeconds(info, projection, strategy);
  LocalWork work = workOf(info, projection, strategy);
  llvm::StringRef dtype = info.facts->computeType;
  double steps = static_cast<double>(ringOf(info, strategy).first);
  if (steps > 1 && info.attention->hasWindow())
    steps = static_cast<double>(
        info.attention->windowKernels(info.attention->tokens / static_cast<int64_t>(steps)));
  double seconds = steps * model.attentionSeconds(work.flops / steps, work.bytes / steps, dtype);
  if (steps == 1)
    return seconds;
  double bytes = 0;
  size_t sums = info.attention->isBackward ? 3 : 1;
  for (size_t result = 0; result < sums; ++result) {
    const ValueInfo &value = values[info.results[result]];
    double elements = static_cast<double>(numElements(value.value));
    PackedSpec spec = projection.toSpec(info.rule->results[result], strategy.axes);
    // Read and written as float32, beside what the kernel wrote.
    bytes += (8 * elements + value.bytes) / static_cast<double>(spec.numPieces(meshShape));
  }
  return seconds + model.computeSeconds(0, steps * bytes, dtype);
}

llvm::SmallVector<CollectiveUse> ProblemBuilder::ringUses(const OpInfo &info,
                                                          const RuleProjection &projection,
                                                          const Strategy &strategy) const {
  llvm::SmallVector<CollectiveUse> uses;
  auto ring = ringOf(info, strategy);
  int64_t devices = ring.first;
  llvm::SmallVector<unsigned> &axes = ring.second;
  if (devices == 1)
    return uses;
  const analysis::AttentionCall &call = *info.attention;
  unsigned slowest = axes.front();
  auto sendSeconds = [&](double bytes) {
    double seconds = 0;
    for (unsigned axis : axes)
      if (double next = model.collectivePermuteSeconds(bytes, axis); next > seconds) {
        seconds = next;
        slowest = axis;
      }
    return seconds;
  };
  auto add = [&](double bytes, double times, double seconds) {
    uses.push_back({cost::Collective::Permute, slowest, bytes, times, seconds});
  };
  // Of the device's own tokens.
  double keys = localKeys(info, projection, strategy);
  double sums = call.isBackward ? localKeySums(info, projection, strategy) : 0;
  if (call.hasWindow()) {
    // The keys before come beside the first kernel, their gradients go home behind the last.
    int64_t own = call.tokens / devices;
    double share = static_cast<double>(call.windowKeys(own)) / static_cast<double>(own);
    double kernel =
        attentionSeconds(info, projection, strategy) / static_cast<double>(call.windowKernels(own));
    double sent = sendSeconds(share * keys);
    add(share * keys, 1, std::max(0.0, sent - kernel));
    if (sums > 0) {
      double back = sendSeconds(share * sums);
      add(share * sums, 1, back);
    }
    return uses;
  }
  if (strategy.gathersKeys) {
    for (unsigned axis : llvm::reverse(axes)) {
      double size = static_cast<double>(meshShape[axis]);
      keys *= size;
      uses.push_back(
          {cost::Collective::AllGather, axis, keys, 1, model.allGatherSeconds(keys, axis)});
      if (sums == 0)
        continue;
      sums *= size;
      uses.push_back(
          {cost::Collective::ReduceScatter, axis, sums, 1, model.reduceScatterSeconds(sums, axis)});
    }
  } else {
    double rounds = static_cast<double>(devices - 1);
    double kernel = attentionSeconds(info, projection, strategy) / static_cast<double>(devices);
    double sent = sendSeconds(keys + sums);
    add(keys + sums, rounds, rounds * std::max(0.0, sent - kernel));
    if (sums > 0) { // Home again, when all has been added.
      double last = sendSeconds(sums);
      add(sums, 1, last);
    }
  }
  if (!call.isBalanced())
    return uses;
  // Halves are exchanged before and behind.
  double bytes = 0, seconds = 0;
  auto exchange = [&](unsigned value, const analysis::TensorFactors &tensor) {
    double local = localBytes(value, tensor, projection, strategy);
    bytes += local;
    seconds += 2 * sendSeconds(local / 2);
  };
  auto isOfKeys = [](size_t index) { return index == 1 || index == 2; };
  for (size_t operand = 0; operand < info.operands.size(); ++operand)
    if (!strategy.gathersKeys || !isOfKeys(operand))
      exchange(info.operands[operand], info.rule->operands[operand]);
  for (size_t result = 0; result + 1 < info.results.size(); ++result)
    if (!strategy.gathersKeys || !call.isBackward || !isOfKeys(result))
      exchange(info.results[result], info.rule->results[result]);
  add(bytes / 2, 2, seconds);
  return uses;
}

void ProblemBuilder::addGathers(const OpInfo &info, const RuleProjection &projection,
                                std::vector<Strategy> &strategies) const {
  if (!info.attention || !info.attention->mayGather())
    return;
  std::vector<Strategy> all;
  for (const Strategy &strategy : strategies) {
    all.push_back(strategy);
    if (ringOf(info, strategy).first == 1)
      continue;
    Strategy gather = strategy;
    gather.gathersKeys = true;
    if (picoseconds(info, projection, gather) < picoseconds(info, projection, strategy))
      all.push_back(gather);
  }
  strategies = std::move(all);
}

/// Of a gradient what a kernel writes, and the sum in float32.
void ProblemBuilder::addScratch(OpInfo &info, const RuleProjection &projection, int node,
                                llvm::ArrayRef<Strategy> strategies) {
  if (node < 0 || llvm::none_of(strategies, [](const Strategy &each) { return each.gathersKeys; }))
    return;
  ValueInfo scratch;
  scratch.value = info.op->getResult(0);
  scratch.isScratch = true;
  scratch.node = node;
  scratch.bytes = localKeys(info, projection, Strategy());
  if (info.attention->isBackward)
    scratch.bytes += (info.attention->isBalanced() ? 1.5 : 1) * scratch.bytes +
                     localKeySums(info, projection, Strategy());
  std::vector<uint32_t> codes;
  for (const Strategy &strategy : strategies) {
    PackedSpec spec = projection.toSpec(info.rule->operands[1], strategy.axes);
    if (strategy.gathersKeys) {
      for (unsigned axis : ringOf(info, strategy).second)
        spec.set(axis, -1);
    } else {
      info.scratchFits = std::max(
          info.scratchFits,
          static_cast<int64_t>(std::ceil(scratch.bytes / double(spec.numPieces(meshShape)))));
    }
    codes.push_back(spec.code);
  }
  scratch.table = addTable(codes);
  info.scratch = static_cast<int>(values.size());
  values.push_back(std::move(scratch));
}

/// As alpa-expand-grouped-dots writes them.
double ProblemBuilder::groupedSeconds(const OpInfo &info, const RuleProjection &projection,
                                      const Strategy &strategy) const {
  bool isSum = llvm::isa<GroupedSumOp>(info.op);
  auto sizeOf = [&](Value value, const analysis::TensorFactors &tensor, int64_t fromLast) {
    llvm::ArrayRef<int64_t> shape = llvm::cast<RankedTensorType>(value.getType()).getShape();
    return shape.end()[-fromLast] / projection.numShares(strategy.axes, tensor.end()[-fromLast]);
  };
  Value lhs = info.op->getOperand(0), rhs = info.op->getOperand(1);
  Value result = info.op->getResult(0);
  int64_t rows = sizeOf(lhs, info.rule->operands[0], 2),
          left = sizeOf(lhs, info.rule->operands[0], 1);
  int64_t columns = sizeOf(result, info.rule->results[0], 1);
  int64_t groups =
      isSum ? sizeOf(result, info.rule->results[0], 3) : sizeOf(rhs, info.rule->operands[1], 3);
  double batches = 1;
  for (int64_t dim = 3; isSum && dim <= static_cast<int64_t>(info.rule->operands[0].size()); ++dim)
    batches *= static_cast<double>(sizeOf(lhs, info.rule->operands[0], dim));

  auto bytesOf = [](Value value, int64_t elements) {
    auto type = llvm::cast<RankedTensorType>(value.getType());
    return static_cast<double>(elements) * analysis::getElementBits(type) / 8;
  };
  llvm::StringRef dtype = info.facts->computeType;
  auto product = [&](int64_t m, int64_t n, int64_t inner) {
    double bytes = bytesOf(lhs, m * inner) + bytesOf(rhs, inner * n) + bytesOf(result, m * n);
    cost::Product shape;
    shape.rows = static_cast<double>(m);
    shape.columns = static_cast<double>(n);
    shape.inner = static_cast<double>(inner);
    return model.kernelSeconds(2 * shape.rows * shape.columns * shape.inner, bytes, dtype, shape);
  };
  auto copy = [&](double bytes) { return model.kernelSeconds(0, 2 * bytes, dtype); };
  analysis::GroupedLoop loop = analysis::getGroupedLoop(rows, groups, isSum);
  if (loop.count == 0) {
    double masked = copy(bytesOf(lhs, groups * rows * left));
    return batches * (masked + (isSum ? product(groups * left, columns, rows)
                                      : product(rows, columns, groups * left)));
  }
  // Rows are sorted before, and results put back behind.
  double apart = copy(bytesOf(lhs, rows * left)), run = copy(bytesOf(lhs, loop.rows * left));
  if (isSum) {
    // In float32: what the product writes is read, and added to what is there.
    apart += copy(bytesOf(rhs, rows * columns)) + copy(bytesOf(result, groups * left * columns));
    run += copy(bytesOf(rhs, loop.rows * columns)) +
           copy(1.5 * 4 * static_cast<double>(left * columns)) + product(left, columns, loop.rows);
  } else {
    apart += copy(bytesOf(result, rows * columns));
    run += copy(bytesOf(rhs, left * columns)) + copy(bytesOf(result, loop.rows * columns)) +
           product(loop.rows, columns, left);
  }
  return batches * (apart + static_cast<double>(loop.count) * run);
}

cost::Product ProblemBuilder::shapeOfProduct(const OpInfo &info, const RuleProjection &projection,
                                             const Strategy &strategy) const {
  cost::Product product =
      productOf(*info.rule, strategy.axes, localFlops(info, projection, strategy), projection);
  if (!llvm::isa<stablehlo::DotGeneralOp>(info.op)) // Others' kernels bring their own layouts.
    product.alignment = 0;
  return product;
}

llvm::SmallVector<CollectiveUse> ProblemBuilder::sumUses(const OpInfo &info,
                                                         const RuleProjection &projection,
                                                         const Strategy &strategy) const {
  llvm::SmallVector<CollectiveUse> uses;
  if (llvm::none_of(info.rule->factors, [](const analysis::Factor &factor) {
        return factor.kind == analysis::FactorKind::Reduction;
      }))
    return uses;
  for (auto [result, value] : llvm::enumerate(info.results))
    if (!(info.results.size() > 1 && info.op->getResult(result).use_empty()))
      llvm::append_range(uses, reductionUses(*info.rule, result, strategy, values[value].bytes,
                                             projection, model));
  return uses;
}

int64_t ProblemBuilder::picoseconds(const OpInfo &info, const RuleProjection &projection,
                                    const Strategy &strategy) const {
  if (!info.rule->work.empty())
    return toPicoseconds(bodySeconds(*info.rule, strategy.axes, projection, model));
  LocalWork work = workOf(info, projection, strategy);
  if (work.bytes == 0 && info.fusible && info.flops == 0)
    return 0;
  llvm::StringRef dtype = info.facts->computeType;
  std::optional<cost::Product> product;
  if (info.rule->heavy && !info.attention)
    product = shapeOfProduct(info, projection, strategy);
  double seconds = info.attention ? attentionSeconds(info, projection, strategy)
                   : llvm::isa<GroupedDotOp, GroupedSumOp>(info.op)
                       ? groupedSeconds(info, projection, strategy)
                   : work.launches ? model.kernelSeconds(work.flops, work.bytes, dtype, product)
                                   : model.computeSeconds(work.flops, work.bytes, dtype, product);
  for (const CollectiveUse &use : ringUses(info, projection, strategy))
    seconds += use.seconds;
  for (const CollectiveUse &use : sumUses(info, projection, strategy))
    seconds += paidPart(info) * use.seconds;
  return toPicoseconds(seconds) - savedOf(info, projection, strategy);
}

int64_t ProblemBuilder::hideablePicoseconds(const OpInfo &info, const RuleProjection &projection,
                                            const Strategy &strategy) const {
  return paidPart(info) == 1 || !info.rule->work.empty()
             ? 0
             : toPicoseconds(reductionSeconds(*info.rule, 0, strategy,
                                              values[info.results[0]].bytes, projection, model));
}

void ProblemBuilder::setSettled(unsigned value, int node, unsigned table) {
  bool isFixed = node < 0 || isReplicated(table);
  node = isFixed ? -1 : node;
  table = isFixed ? 0 : table;
  Value whole = values[value].value;
  bool hasTerms =
      llvm::any_of(tables[table].specs, [](PackedSpec spec) { return spec.isUnreduced(); });
  // How the sum of terms is held is a choice anyway.
  bool isMovable =
      options.filter.movable.contains(whole) || whole.getDefiningOp()->hasAttr(alpa::attr::movable);
  if (!hasTerms && ((node >= 0 && isMovable) ||
                    (isFiltered && !llvm::all_of(tables[table].specs, [&](PackedSpec spec) {
                       return isAllowed(whole, spec);
                     })))) {
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
  addMoves(value, value.madeNode, value.madeTable, value.node, value.table,
           opPhaseOf(value.value.getDefiningOp()));
}

llvm::SmallVector<std::pair<Value, analysis::TensorFactors>> sharding::pinsOfBody(Operation *op) {
  llvm::SmallVector<std::pair<Value, analysis::TensorFactors>> pins;
  bool isAny = false;
  for (Region &region : op->getRegions())
    region.walk([&](Operation *inner) { isAny |= inner->hasAttr(alpa::attr::pin); });
  if (!isAny)
    return pins;
  analysis::BodyFactors factors = analysis::getBodyFactors(op);
  for (Region &region : op->getRegions())
    region.walk([&](Operation *inner) {
      if (!inner->hasAttr(alpa::attr::pin) || inner->getNumResults() != 1)
        return;
      if (auto it = factors.find(inner->getResult(0)); it != factors.end())
        pins.emplace_back(inner->getResult(0), it->second);
    });
  return pins;
}

void ProblemBuilder::keepPinsOfBody(const OpInfo &info, const RuleProjection &projection,
                                    std::vector<Strategy> &strategies) const {
  for (const auto &[pin, tensor] : pinsOfBody(info.op)) {
    Value value = pin;
    const analysis::TensorFactors &dims = tensor;
    auto breaks = [&](const Strategy &strategy) {
      return !isAllowed(value, projection.toSpec(dims, strategy.axes));
    };
    if (!llvm::all_of(strategies, breaks))
      llvm::erase_if(strategies, breaks);
  }
}

void ProblemBuilder::lead(const OpInfo &info) {
  Value result = info.op->getResult(0);
  // A filter may leave only strategies that use few axes; of those that it allows for
  // a heavy op, the ones that use the most are taken.
  bool isRestricted = static_cast<bool>(options.filter.allowsStrategy);
  bool hasPins = isFiltered && !pinsOfBody(info.op).empty();
  std::vector<Strategy> strategies = enumerateStrategies(*info.rule, shapeOf(result), meshShape,
                                                         /*mayIdle=*/isRestricted || hasPins);
  RuleProjection projection(*info.rule, meshShape);
  ops[&info - ops.data()].traffic = trafficOf(info);
  if (isRestricted) {
    llvm::erase_if(strategies, [&](const Strategy &strategy) {
      return !isAllowed(info, projection, strategy);
    });
  }
  if (hasPins)
    keepPinsOfBody(info, projection, strategies);
  if (info.rule->heavy && (isRestricted || hasPins)) {
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
  addGathers(info, projection, strategies);
  // Followers of a single strategy that splits something need a node to follow.
  bool isWhole = strategies.size() == 1 && strategies[0].axes == Assignment{};
  int node = !isWhole ? addNode(result, strategies.size()) : -1;
  for (size_t choice = 0; choice < strategies.size(); ++choice) {
    int64_t cost = picoseconds(info, projection, strategies[choice]);
    auto phase = static_cast<size_t>(info.phase);
    (node < 0 ? fixedCosts[phase] : nodes[node].costs[phase][choice]) += cost;
    int64_t hideable = hideablePicoseconds(info, projection, strategies[choice]);
    if (hideable > 0)
      (node < 0 ? fixedHideable[phase] : nodeCosts(node, info.phase, Count::Hideable)[choice]) +=
          hideable;
  }
  parts.push_back({static_cast<unsigned>(&info - ops.data()), node, 0, /*leads=*/true, {}});
  if (node >= 0)
    nodes[node].strategies = strategies;
  std::vector<uint32_t> codes(strategies.size());
  for (auto [i, index] : llvm::enumerate(info.results)) {
    for (size_t choice = 0; choice < strategies.size(); ++choice) {
      PackedSpec spec = projection.toSpec(info.rule->results[i], strategies[choice].axes);
      codes[choice] = (i == 0 ? scatteredSpec(spec, strategies[choice]) : spec).code;
    }
    setSettled(index, node, node < 0 ? 0 : addTable(codes));
    values[index].isLed = true;
    addSum(index);
  }
  for (auto [i, index] : llvm::enumerate(info.operands)) {
    for (size_t choice = 0; choice < strategies.size(); ++choice)
      codes[choice] = projection.toSpec(info.rule->operands[i], strategies[choice].axes).code;
    pending.push_back({index, info.op, static_cast<unsigned>(i), node,
                       node < 0 ? 0 : addTable(codes), info.phase});
  }
  addScratch(ops[&info - ops.data()], projection, node, strategies);
  demand();
}

void ProblemBuilder::deferSums(const OpInfo &info, Strategy &strategy) const {
  if (!info.deferrable.empty())
    strategy.deferred = deferrableAxes(info.op, *info.rule, info.deferrable, strategy);
}

Strategy ProblemBuilder::strategyFor(const OpInfo &info, const RuleProjection &projection,
                                     const analysis::TensorFactors &tensor, PackedSpec spec) const {
  Strategy strategy;
  strategy.axes = projection.fromSpec(tensor, spec);
  deferSums(info, strategy);
  if (info.link >= 0)
    strategy.deferred = static_cast<uint8_t>(spec.unreducedAxes());
  return strategy;
}

void ProblemBuilder::settle(const OpInfo &info, const analysis::TensorFactors &tensor, int node,
                            unsigned table, bool isFirst, OpPhase phase) {
  RuleProjection projection(*info.rule, meshShape);
  if (isFirst)
    ops[&info - ops.data()].traffic = trafficOf(info);
  llvm::SmallVector<Strategy> strategies;
  llvm::SmallVector<int64_t> costs, hideable;
  for (PackedSpec spec : tables[table].specs) {
    strategies.push_back(strategyFor(info, projection, tensor, spec));
    if (isFirst) {
      costs.push_back(picoseconds(info, projection, strategies.back()));
      hideable.push_back(hideablePicoseconds(info, projection, strategies.back()));
    }
  }
  auto derive = [&](const analysis::TensorFactors &other, bool hasTerms) {
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
    if (llvm::any_of(hideable, [](int64_t cost) { return cost > 0; }))
      addNodeCosts(node, info.phase, table, hideable, Count::Hideable);
    for (auto [i, index, result] : llvm::enumerate(info.results, info.rule->results)) {
      setSettled(index, node, derive(result, i == 0));
      values[index].isLed = info.link >= 0 && values[info.operands[info.link]].isLed;
      addSum(index);
    }
  }
  for (auto [i, index] : llvm::enumerate(info.operands))
    pending.push_back({index, isFirst ? info.op : nullptr, static_cast<unsigned>(i), node,
                       derive(info.rule->operands[i], static_cast<int>(i) == info.link), phase});
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
    // What is held otherwise is made as the operand is.
    const ValueInfo &made = values[result];
    pending.push_back({operand, info.op, static_cast<unsigned>(i),
                       made.isMoved ? made.madeNode : made.node,
                       made.isMoved ? made.madeTable : made.table, info.phase});
  }
  demand();
}

/// Whether the op must have whole what may be split where it would follow. Then it would gather
/// that, while an all-to-all could split it along another dimension.
bool ProblemBuilder::losesAxes(const OpInfo &info, const analysis::TensorFactors &tensor,
                               const SpecTable &table) const {
  if (info.link >= 0 ||
      !llvm::isa<stablehlo::ConcatenateOp, stablehlo::PadOp, stablehlo::SliceOp>(info.op))
    return false;
  RuleProjection projection(*info.rule, meshShape);
  return llvm::any_of(table.specs, [&](PackedSpec spec) {
    Assignment kept = projection.fromSpec(tensor, spec);
    for (unsigned axis = 0; axis < meshShape.size(); ++axis)
      if (meshShape[axis] > 1 && spec.dimOf(axis) >= 0 && !spec.isUnreduced(axis) &&
          kept.factor[axis] < 0)
        return true;
    return false;
  });
}

void ProblemBuilder::visit(const OpInfo &info) {
  if (info.rule->forwards)
    return forward(info);
  int best = -1;
  unsigned depth = 0;
  bool areFree = true, isSpread = false;
  int64_t operandElements = 0, resultElements = 0;
  bool followsLink = info.link >= 0;
  if (followsLink) { // What every device has whole, or its users settle, has no terms.
    const ValueInfo &linked = values[info.operands[info.link]];
    followsLink = linked.kind == ValueKind::Settled && linked.node >= 0;
  }
  for (auto [i, index] : llvm::enumerate(info.operands)) {
    const ValueInfo &value = values[index];
    depth = std::max(depth, value.depth + 1);
    areFree &= value.kind == ValueKind::Free;
    operandElements = std::max(operandElements, numElements(value.value));
    if (value.kind != ValueKind::Settled || value.node < 0)
      continue;
    isSpread = true;
    if (followsLink && info.link != static_cast<int>(i))
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
  if (info.rule->heavy || info.rule->leads || (!isSpread && !info.fusible)) {
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
    if (losesAxes(info, info.rule->operands[best], tables[leader.table]))
      return lead(info);
    settle(info, info.rule->operands[best], leader.node, leader.table, true, info.phase);
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
      settle(info, info.rule->results[result], request.node, request.table, isFirst,
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
