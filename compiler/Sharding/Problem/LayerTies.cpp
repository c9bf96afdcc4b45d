//===- LayerTies.cpp - layers of a stage that are split alike -------------===//

#include "compiler/Sharding/Problem/LayerTies.h"

#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

namespace {

/// The row of a caller's array that an argument is.
struct Row {
  int64_t argument = 0, number = 0;
};

/// Distances between equal nodes, and the one that most nodes share.
class PeriodFinder {
public:
  PeriodFinder(llvm::ArrayRef<int64_t> equations, llvm::ArrayRef<unsigned> kinds)
      : equations(equations), kinds(kinds) {}

  /// 0 if no two of the nodes are alike. `next` gets the node one period on, or -1.
  int64_t find(llvm::ArrayRef<bool> isOpen, std::vector<int> &next) const;

private:
  unsigned link(int64_t period, llvm::ArrayRef<bool> isOpen, std::vector<int> &next) const;

  llvm::ArrayRef<int64_t> equations;
  llvm::ArrayRef<unsigned> kinds;
};

} // namespace

/// Nodes that are linked.
unsigned PeriodFinder::link(int64_t period, llvm::ArrayRef<bool> isOpen,
                            std::vector<int> &next) const {
  // Several of a kind at one equation are told apart by their order.
  std::map<std::pair<unsigned, int64_t>, llvm::SmallVector<unsigned, 2>> at;
  for (size_t node = 0; node < kinds.size(); ++node)
    if (isOpen[node])
      at[{kinds[node], equations[node]}].push_back(node);
  next.assign(kinds.size(), -1);
  unsigned linked = 0;
  for (const auto &[key, nodes] : at) {
    auto other = at.find({key.first, key.second + period});
    if (other == at.end() || other->second.size() != nodes.size())
      continue;
    for (auto [from, to] : llvm::zip_equal(nodes, other->second))
      next[from] = to;
    linked += nodes.size();
  }
  return linked;
}

int64_t PeriodFinder::find(llvm::ArrayRef<bool> isOpen, std::vector<int> &next) const {
  // Equal ops of one layer, such as its projections, are fewer than this.
  constexpr size_t kWindow = 16;
  constexpr size_t kMostTried = 8;
  std::map<unsigned, std::vector<int64_t>> ofKind;
  for (size_t node = 0; node < kinds.size(); ++node)
    if (isOpen[node])
      ofKind[kinds[node]].push_back(equations[node]);
  std::map<int64_t, unsigned> count;
  for (auto &[kind, places] : ofKind) {
    llvm::sort(places);
    for (size_t i = 0; i < places.size(); ++i)
      for (size_t j = i + 1; j < std::min(places.size(), i + kWindow); ++j)
        count[places[j] - places[i]] += places[j] > places[i];
  }
  std::vector<std::pair<unsigned, int64_t>> likely; // Most frequent first, then shortest.
  for (auto [period, times] : count)
    if (times > 0)
      likely.push_back({times, -period});
  llvm::sort(likely, std::greater<>());
  if (likely.size() > kMostTried)
    likely.resize(kMostTried);
  int64_t best = 0;
  unsigned most = 0;
  std::vector<int> links;
  for (auto [times, negative] : likely)
    if (unsigned linked = link(-negative, isOpen, links); linked > most) {
      most = linked;
      best = -negative;
      next = links;
    }
  return best;
}

static std::optional<Row> rowOf(Value value) {
  auto argument = llvm::dyn_cast<BlockArgument>(value);
  auto function =
      argument ? llvm::dyn_cast<func::FuncOp>(argument.getOwner()->getParentOp()) : func::FuncOp();
  if (!function)
    return std::nullopt;
  auto piece = function.getArgAttrOfType<DictionaryAttr>(argument.getArgNumber(), attr::piece);
  auto of = piece ? piece.getAs<IntegerAttr>("argument") : IntegerAttr();
  auto offset = piece ? piece.getAs<IntegerAttr>("offset") : IntegerAttr();
  auto size = piece ? piece.getAs<IntegerAttr>("size") : IntegerAttr();
  if (!of || !offset || !size || size.getInt() <= 0)
    return std::nullopt;
  return Row{of.getInt(), offset.getInt() / size.getInt()};
}

/// Whether ops take single rows of one stack, all but dimension 0 of each whole.
static bool readsRows(llvm::ArrayRef<Operation *> ops) {
  llvm::DenseMap<Value, stablehlo::SliceOp> readers;
  for (Operation *op : ops) {
    auto slice = llvm::dyn_cast<stablehlo::SliceOp>(op);
    if (!slice)
      continue;
    auto whole = llvm::cast<RankedTensorType>(slice.getOperand().getType());
    auto row = llvm::cast<RankedTensorType>(slice.getType());
    if (whole.getRank() == 0 || row.getDimSize(0) != 1 || whole.getDimSize(0) == 1 ||
        whole.getShape().drop_front() != row.getShape().drop_front())
      continue;
    auto [it, isNew] = readers.try_emplace(slice.getOperand(), slice);
    if (!isNew && it->second.getStartIndices() != slice.getStartIndices())
      return true;
  }
  return false;
}

/// Numbers that are equal for nodes with the same ways to choose from.
static std::vector<unsigned> findKinds(const ProblemBuilder &builder) {
  std::map<std::vector<const void *>, unsigned> known;
  std::vector<unsigned> kinds;
  for (const NodeInfo &node : builder.getNodes()) {
    std::vector<const void *> key{node.value.getType().getAsOpaquePointer(),
                                  reinterpret_cast<const void *>(node.numChoices()),
                                  reinterpret_cast<const void *>(node.strategies.size())};
    Operation *op = node.value.getDefiningOp();
    if (op && builder.isInStage(op)) {
      key.push_back(op->getName().getAsOpaquePointer());
      key.push_back(reinterpret_cast<const void *>(size_t(opPhaseOf(op))));
      for (Type type : op->getOperandTypes())
        key.push_back(type.getAsOpaquePointer());
      for (Type type : op->getResultTypes())
        key.push_back(type.getAsOpaquePointer());
    }
    kinds.push_back(known.try_emplace(std::move(key), known.size()).first->second);
  }
  return kinds;
}

llvm::SmallVector<LayerEntry> sharding::findLayerEntries(const StageView &view) {
  llvm::SmallVector<LayerEntry> entries;
  auto isRow = [](Operation *op) {
    return llvm::any_of(op->getOperands(), [](Value value) { return rowOf(value).has_value(); });
  };
  if (!llvm::any_of(view.ops, isRow) && !readsRows(view.ops))
    return entries;
  std::vector<int64_t> equations;
  std::vector<unsigned> kinds;
  llvm::SmallVector<bool> isOpen;
  std::map<std::vector<const void *>, unsigned> known;
  llvm::DenseMap<Operation *, unsigned> number;
  for (auto [index, op] : llvm::enumerate(view.ops)) {
    number[op] = index;
    auto eqn = op->getAttrOfType<IntegerAttr>(attr::eqn);
    OpPhase phase = opPhaseOf(op);
    equations.push_back(eqn ? eqn.getInt() : -1);
    isOpen.push_back(eqn && !runsOnce(phase));
    std::vector<const void *> key{op->getName().getAsOpaquePointer(),
                                  reinterpret_cast<const void *>(size_t(phase))};
    for (Type type : op->getOperandTypes())
      key.push_back(type.getAsOpaquePointer());
    for (Type type : op->getResultTypes())
      key.push_back(type.getAsOpaquePointer());
    kinds.push_back(known.try_emplace(std::move(key), known.size()).first->second);
  }
  std::vector<int> next;
  if (PeriodFinder(equations, kinds).find(isOpen, next) == 0)
    return entries;
  llvm::SmallVector<bool> isLinked(view.ops.size(), false);
  for (auto [from, to] : llvm::enumerate(next))
    if (to >= 0)
      isLinked[from] = isLinked[to] = true;
  llvm::DenseSet<Value> found;
  auto lookAt = [&](Operation *first, Operation *second) {
    for (auto [value, carried] : llvm::zip_equal(first->getOperands(), second->getOperands())) {
      Operation *maker = value.getDefiningOp(), *carrier = carried.getDefiningOp();
      if (value == carried || !carrier || opPhaseOf(carrier) != opPhaseOf(first))
        continue;
      auto inner = number.find(carrier);
      if (inner == number.end() || !isLinked[inner->second])
        continue;
      if (maker &&
          (opPhaseOf(maker) != opPhaseOf(first) || maker->hasTrait<OpTrait::ConstantLike>()))
        continue;
      if (auto outer = maker ? number.find(maker) : number.end();
          outer != number.end() && isLinked[outer->second])
        continue;
      auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
      if (type && type.getRank() > 0 && found.insert(value).second)
        entries.push_back({value, carried});
    }
  };
  // The backward computation begins at the last layer.
  for (auto [from, to] : llvm::enumerate(next))
    if (to >= 0) {
      bool isForward = opPhaseOf(view.ops[from]) == OpPhase::Forward;
      lookAt(view.ops[isForward ? from : to], view.ops[isForward ? to : from]);
    }
  return entries;
}

LayerTies::LayerTies(const ProblemBuilder &builder, llvm::ArrayRef<int64_t> equations,
                     llvm::ArrayRef<LayerEntry> given)
    : builder(builder) {
  for (const LayerEntry &entry : given) {
    int value = builder.find(entry.value), carried = builder.find(entry.carried);
    if (value >= 0 && carried >= 0 && builder.getValues()[value].node >= 0 &&
        builder.getValues()[carried].node >= 0)
      entries.push_back(entry);
  }
  const std::vector<NodeInfo> &nodes = builder.getNodes();
  std::vector<unsigned> kinds = findKinds(builder);
  llvm::SmallVector<bool> isOpen(nodes.size(), true);
  std::map<std::pair<int64_t, unsigned>, Tie> rows; // By argument and kind.
  for (auto [index, node] : llvm::enumerate(nodes)) {
    isOpen[index] = equations[index] >= 0;
    if (std::optional<Row> row = rowOf(node.value)) {
      rows[{row->argument, kinds[index]}].push_back({row->number, unsigned(index)});
      isOpen[index] = false;
    }
  }
  for (auto &[key, tie] : rows) {
    llvm::sort(tie, [](const Member &a, const Member &b) {
      return std::pair(a.layer, a.node) < std::pair(b.layer, b.node);
    });
    if (tie.size() > 1)
      ties.push_back(std::move(tie));
  }
  std::vector<Operation *> ops;
  for (const OpInfo &info : builder.getOps())
    ops.push_back(info.op);
  if (ties.empty() && !readsRows(ops))
    return;
  if (!ties.empty()) {
    firstLayer = ties.front().front().layer;
    lastLayer = ties.front().back().layer;
  }
  for (const Tie &tie : ties) {
    firstLayer = std::min(firstLayer, tie.front().layer);
    lastLayer = std::max(lastLayer, tie.back().layer);
  }

  // Scans with different bodies have different periods.
  constexpr unsigned kMostPeriods = 4;
  PeriodFinder finder(equations, kinds);
  for (unsigned i = 0; i < kMostPeriods; ++i) {
    std::vector<int> next;
    if (finder.find(isOpen, next) == 0)
      break;
    llvm::SmallVector<bool> isReached(nodes.size(), false);
    for (int node : next)
      if (node >= 0)
        isReached[node] = true;
    std::vector<Tie> chains;
    size_t longest = 0;
    for (size_t node = 0; node < nodes.size(); ++node) {
      if (next[node] < 0 || isReached[node])
        continue;
      Tie &tie = chains.emplace_back();
      for (int at = node; at >= 0; at = next[at]) {
        tie.push_back({firstLayer + int64_t(tie.size()), unsigned(at)});
        isOpen[at] = false;
      }
      longest = std::max(longest, tie.size());
    }
    // Much shorter ones are equal by chance.
    for (Tie &tie : chains)
      if (2 * tie.size() > longest) {
        lastLayer = std::max(lastLayer, tie.back().layer);
        ties.push_back(std::move(tie));
      }
  }
}

bool LayerTies::isCarried(const LayerEntry &entry, llvm::ArrayRef<unsigned> choices) const {
  const ValueInfo &value = builder.getValues()[builder.find(entry.value)];
  const ValueInfo &carried = builder.getValues()[builder.find(entry.carried)];
  return builder.specOf(value, choices) == builder.specOf(carried, choices);
}

bool LayerTies::holdFor(llvm::ArrayRef<unsigned> choices, Ends free) const {
  if (!free.first && !free.last &&
      !llvm::all_of(entries, [&](const LayerEntry &entry) { return isCarried(entry, choices); }))
    return false;
  for (const Tie &tie : ties) {
    std::optional<unsigned> choice;
    for (const Member &member : tie)
      if (isTied(member, free) && choices[member.node] != choice.value_or(choices[member.node]))
        return false;
      else if (isTied(member, free))
        choice = choices[member.node];
  }
  return true;
}

/// What is forbidden stays so, and what is allowed too.
static void addTo(int64_t &sum, int64_t cost) {
  if (sum >= solver::kForbiddenCost || cost >= solver::kForbiddenCost)
    sum = solver::kForbiddenCost;
  else
    sum = std::min(sum + cost, solver::kForbiddenCost - 1);
}

solver::Problem LayerTies::tie(const solver::Problem &problem, Ends free,
                               std::vector<unsigned> &variableOf) const {
  constexpr unsigned kNone = ~0u;
  std::vector<unsigned> leaderOf(problem.nodes.size());
  for (size_t node = 0; node < leaderOf.size(); ++node)
    leaderOf[node] = node;
  for (const Tie &tie : ties) {
    unsigned leader = kNone;
    for (const Member &member : tie)
      if (isTied(member, free)) {
        leader = leader == kNone ? member.node : leader;
        leaderOf[member.node] = leader;
      }
  }
  solver::Problem tied;
  tied.name = problem.name;
  variableOf.assign(problem.nodes.size(), kNone);
  auto add = [](std::vector<int64_t> &sums, llvm::ArrayRef<int64_t> costs) {
    for (auto [sum, cost] : llvm::zip_equal(sums, costs))
      addTo(sum, cost);
  };
  for (size_t node = 0; node < leaderOf.size(); ++node)
    if (leaderOf[node] == node) {
      variableOf[node] = tied.nodes.size();
      tied.nodes.push_back(problem.nodes[node]);
    }
  for (size_t node = 0; node < leaderOf.size(); ++node)
    if (leaderOf[node] != node) {
      variableOf[node] = variableOf[leaderOf[node]];
      add(tied.nodes[variableOf[node]].costs, problem.nodes[node].costs);
    }
  std::map<std::pair<unsigned, unsigned>, unsigned> edgeOf;
  for (const solver::ProblemEdge &edge : problem.edges) {
    unsigned a = variableOf[edge.a], b = variableOf[edge.b];
    size_t columns = problem.nodes[edge.b].costs.size();
    if (a == b) {
      for (auto [choice, sum] : llvm::enumerate(tied.nodes[a].costs))
        addTo(sum, edge.costs[choice * columns + choice]);
      continue;
    }
    auto [it, isNew] = edgeOf.try_emplace({a, b}, tied.edges.size());
    if (isNew)
      tied.edges.push_back({a, b, edge.costs});
    else
      add(tied.edges[it->second].costs, edge.costs);
  }
  if (free.first || free.last)
    return tied;
  std::vector<unsigned> choices(problem.nodes.size(), 0);
  for (const LayerEntry &entry : entries) {
    unsigned a = builder.getValues()[builder.find(entry.value)].node;
    unsigned b = builder.getValues()[builder.find(entry.carried)].node;
    if (variableOf[a] == variableOf[b])
      continue;
    unsigned numA = problem.nodes[a].costs.size(), numB = problem.nodes[b].costs.size();
    std::vector<int64_t> costs;
    for (choices[a] = 0; choices[a] < numA; ++choices[a])
      for (choices[b] = 0; choices[b] < numB; ++choices[b])
        costs.push_back(isCarried(entry, choices) ? 0 : solver::kForbiddenCost);
    choices[a] = choices[b] = 0;
    tied.edges.push_back({variableOf[a], variableOf[b], std::move(costs)});
  }
  return tied;
}

std::vector<unsigned> LayerTies::likeMost(llvm::ArrayRef<unsigned> choices, Ends free) const {
  std::map<int64_t, std::vector<unsigned>> ofLayer;
  for (const Tie &tie : ties)
    for (const Member &member : tie)
      if (isTied(member, free))
        ofLayer[member.layer].push_back(choices[member.node]);
  std::map<std::vector<unsigned>, unsigned> times;
  int64_t most = firstLayer;
  unsigned timesOfMost = 0;
  for (const auto &[layer, mine] : ofLayer)
    ++times[mine];
  for (const auto &[layer, mine] : ofLayer)
    if (times[mine] > timesOfMost) {
      timesOfMost = times[mine];
      most = layer;
    }
  std::vector<unsigned> alike(choices.begin(), choices.end());
  for (const Tie &tie : ties) {
    const auto *model = llvm::find_if(
        tie, [&](const Member &member) { return member.layer == most && isTied(member, free); });
    if (model == tie.end())
      continue;
    for (const Member &member : tie)
      if (isTied(member, free))
        alike[member.node] = choices[model->node];
  }
  return alike;
}
