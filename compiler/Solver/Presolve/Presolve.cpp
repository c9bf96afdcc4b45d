//===- Presolve.cpp - exact reductions that respect memory ----------------===//

#include "compiler/Solver/Presolve/Presolve.h"

#include "compiler/Solver/Model/Graph.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>

using namespace alpa;
using namespace alpa::solver;

//===----------------------------------------------------------------------===//
// One collapse, from begin to end
//
// Queues of edges and variables that may have become simpler. Choices are
// renumbered as they go; what has been merged is sorted out at the end.
//===----------------------------------------------------------------------===//

namespace {

class Presolver {
  struct Merge {
    unsigned from;
    unsigned into;
    std::vector<unsigned> map; // Of choices as they were at first.
  };
  struct Removal {
    unsigned variable;
    unsigned a, b;
    std::vector<unsigned> choices; // By those of a and b as they were at first.
  };

public:
  Presolver(Graph &graph, std::vector<unsigned> *followed);

  void run(Stop stop);

private:
  static std::pair<unsigned, unsigned> key(unsigned a, unsigned b) {
    return {std::min(a, b), std::max(a, b)};
  }
  unsigned size(unsigned v) const { return variables[v].numChoices(); }
  static unsigned otherEnd(const GraphEdge &edge, unsigned v) {
    return edge.a == v ? edge.b : edge.a;
  }
  int64_t cost(const GraphEdge &edge, unsigned v, unsigned choice, unsigned other) const {
    return edge.a == v ? edge.costs[size_t(choice) * size(edge.b) + other]
                       : edge.costs[size_t(other) * size(edge.b) + choice];
  }

  void pushEdge(unsigned e) {
    if (!queuedEdge[e]) {
      queuedEdge[e] = true;
      edgeQueue.push_back(e);
    }
  }
  void pushVariable(unsigned v) {
    if (!queuedVariable[v]) {
      queuedVariable[v] = true;
      variableQueue.push_back(v);
    }
  }

  /// Drops dead edges from the list of a variable.
  std::vector<unsigned> &liveEdges(unsigned v) {
    llvm::erase_if(edgesOf[v], [&](unsigned e) { return dead[e]; });
    return edgesOf[v];
  }

  void kill(unsigned e);

  /// Adds costs of allowed choices; what becomes too large counts as forbidden.
  void add(int64_t &sum, int64_t cost);

  /// Keeps only some choices, and all tables that know of them small.
  void keep(unsigned v, llvm::ArrayRef<unsigned> kept);

  void keepWhere(unsigned v, llvm::ArrayRef<char> wanted);

  void dropForbidden(unsigned v);

  void reduceEdge(unsigned e);

  /// `map` says which choice `from` takes for each choice of `into`.
  void merge(unsigned into, unsigned from, unsigned e, llvm::ArrayRef<unsigned> map);

  size_t originSize(unsigned v) const { return variables[v].members.front().choices.size(); }

  /// The edge of two variables; made if there is none yet.
  unsigned edgeBetween(unsigned a, unsigned b);

  void moveEdge(unsigned f, unsigned from, unsigned into, llvm::ArrayRef<unsigned> map);

  /// An edge whose costs are a sum of one part per end is none.
  bool foldSeparable(unsigned e);

  /// Variables with many uses are tidied before they are looked at again.
  void tidyLater(unsigned v);

  void reduceVariable(unsigned v);

  /// By how much `choice` costs more at an edge than `better`, at the least.
  int64_t leastExcess(const GraphEdge &edge, unsigned v, unsigned better, unsigned choice) const;

  /// Whether `better` never costs more than `choice`, whatever the neighbours
  /// take; `slack` is what it saves elsewhere. `except` is left out.
  bool costsNoMore(unsigned v, unsigned better, unsigned choice, int64_t slack, int except) const;

  bool dropDominated(unsigned v);

  /// Merges v into a neighbour if, once that has chosen, one choice of v is
  /// best whatever the others do.
  bool mergeByPreference(unsigned v);

  /// A variable without memory between two others leaves an edge, unless that
  /// would be much larger than the two edges to it.
  void eliminate(unsigned v);

  /// Nodes of the problem tell which choice their variables took.
  void record(const Removal &removal, llvm::SmallVector<Member, 1> members);

  /// Costs that moved to the ends may have left negative ones; bounds count on
  /// edges that cost nothing at the least.
  void makeNonNegative(GraphEdge &edge);

  /// Members take over what their variables became; numbers become dense.
  void finish();

  Graph &graph;
  std::vector<unsigned> *followed;
  std::vector<Variable> &variables;
  std::vector<GraphEdge> &edges;
  std::vector<std::vector<unsigned>> edgesOf;
  std::vector<std::vector<unsigned>> origin; // Of each choice that is left.
  std::vector<char> gone, queuedVariable;
  std::vector<char> dead, queuedEdge;
  std::vector<unsigned> edgeQueue, variableQueue;
  llvm::DenseMap<std::pair<unsigned, unsigned>, unsigned> between;
  std::vector<Merge> merges;
  std::vector<Removal> removals;
};

} // namespace

//===----------------------------------------------------------------------===//
// Exact reductions that respect memory
//===----------------------------------------------------------------------===//

Presolver::Presolver(Graph &graph, std::vector<unsigned> *followed)
    : graph(graph), followed(followed), variables(graph.variables), edges(graph.edges),
      edgesOf(variables.size()), gone(variables.size(), false),
      queuedVariable(variables.size(), false), dead(edges.size(), false),
      queuedEdge(edges.size(), false) {
  for (const Variable &variable : variables) {
    origin.emplace_back(variable.numChoices());
    std::iota(origin.back().begin(), origin.back().end(), 0);
  }
  for (unsigned e = 0; e < edges.size(); ++e) {
    edgesOf[edges[e].a].push_back(e);
    edgesOf[edges[e].b].push_back(e);
    between[key(edges[e].a, edges[e].b)] = e;
    pushEdge(e);
  }
}

void Presolver::run(Stop stop) {
  for (unsigned v = 0; v < variables.size() && !graph.impossibleNode; ++v) {
    dropForbidden(v);
    pushVariable(v);
  }
  constexpr unsigned kSteps = 0x1f; // Between looks at the clock.
  for (unsigned steps = 0; !graph.impossibleNode; ++steps) {
    if ((steps & kSteps) == 0 && stops(stop))
      break;
    if (!edgeQueue.empty()) {
      unsigned e = edgeQueue.back();
      edgeQueue.pop_back();
      queuedEdge[e] = false;
      if (!dead[e])
        reduceEdge(e);
      continue;
    }
    if (variableQueue.empty())
      break;
    unsigned v = variableQueue.back();
    variableQueue.pop_back();
    queuedVariable[v] = false;
    if (!gone[v])
      reduceVariable(v);
  }
  if (!graph.impossibleNode)
    finish();
}

void Presolver::kill(unsigned e) {
  dead[e] = true;
  between.erase(key(edges[e].a, edges[e].b));
  std::vector<int64_t>().swap(edges[e].costs);
}

void Presolver::add(int64_t &sum, int64_t cost) { sum = addCosts(sum, cost); }

void Presolver::keep(unsigned v, llvm::ArrayRef<unsigned> kept) {
  if (kept.empty()) {
    graph.impossibleNode = variables[v].members.front().node;
    return;
  }
  for (unsigned e : liveEdges(v)) {
    GraphEdge &edge = edges[e];
    size_t columns = size(edge.b), at = 0;
    if (edge.a == v) {
      for (unsigned c : kept)
        for (size_t j = 0; j < columns; ++j)
          edge.costs[at++] = edge.costs[c * columns + j];
    } else {
      size_t rows = size(edge.a);
      for (size_t i = 0; i < rows; ++i)
        for (unsigned c : kept)
          edge.costs[at++] = edge.costs[i * columns + c];
    }
    edge.costs.resize(at);
    pushEdge(e);
    pushVariable(otherEnd(edge, v));
  }
  auto select = [&](auto &values) {
    for (size_t k = 0; k < kept.size(); ++k)
      values[k] = values[kept[k]];
    values.resize(kept.size());
  };
  if (followed) {
    auto *at = llvm::find(kept, (*followed)[v]);
    (*followed)[v] = at == kept.end() ? 0 : at - kept.begin();
  }
  // Members keep all choices until the end; `origin` says which are left.
  select(variables[v].costs);
  select(origin[v]);
  for (Use &use : variables[v].uses)
    select(use.bytes);
  pushVariable(v);
}

void Presolver::keepWhere(unsigned v, llvm::ArrayRef<char> wanted) {
  std::vector<unsigned> kept;
  for (unsigned c = 0; c < wanted.size(); ++c)
    if (wanted[c])
      kept.push_back(c);
  if (kept.size() < wanted.size())
    keep(v, kept);
}

void Presolver::dropForbidden(unsigned v) {
  std::vector<char> wanted;
  for (int64_t cost : variables[v].costs)
    wanted.push_back(cost < kInfinity);
  keepWhere(v, wanted);
}

void Presolver::reduceEdge(unsigned e) {
  GraphEdge &edge = edges[e];
  unsigned a = edge.a, b = edge.b;
  size_t rows = size(a), columns = size(b);
  std::vector<unsigned> inRow(rows, 0), inColumn(columns, 0);
  size_t allowed = 0;
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j)
      if (edge.costs[i * columns + j] < kInfinity) {
        ++inRow[i];
        ++inColumn[j];
        ++allowed;
      }
  if (allowed == rows * columns && foldSeparable(e))
    return;
  if (llvm::is_contained(inRow, 0u))
    return keepWhere(a, std::vector<char>(inRow.begin(), inRow.end()));
  if (llvm::is_contained(inColumn, 0u))
    return keepWhere(b, std::vector<char>(inColumn.begin(), inColumn.end()));
  bool ofA = allowed == rows, ofB = allowed == columns; // One choice of b for each of a.
  if (!ofA && !ofB)
    return;
  auto weight = [&](unsigned v) { return edgesOf[v].size() + variables[v].uses.size(); };
  bool intoA = ofA && (!ofB || weight(b) <= weight(a));
  unsigned into = intoA ? a : b, from = intoA ? b : a;
  std::vector<unsigned> map(size(into));
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j)
      if (edge.costs[i * columns + j] < kInfinity)
        map[intoA ? i : j] = intoA ? j : i;
  merge(into, from, e, map);
}

void Presolver::merge(unsigned into, unsigned from, unsigned e, llvm::ArrayRef<unsigned> map) {
  Variable &target = variables[into], &source = variables[from];
  size_t count = map.size();
  for (size_t c = 0; c < count; ++c) {
    add(target.costs[c], source.costs[map[c]]);
    add(target.costs[c], cost(edges[e], into, c, map[c]));
  }
  for (Use &use : source.uses) {
    Use &added = target.uses.emplace_back();
    added.life = std::move(use.life);
    added.bytes.resize(count);
    for (size_t c = 0; c < count; ++c)
      added.bytes[c] = use.bytes[map[c]];
  }
  source.uses.clear();
  Merge &record = merges.emplace_back(Merge{from, into, {}});
  record.map.resize(originSize(into), 0);
  for (size_t c = 0; c < count; ++c)
    record.map[origin[into][c]] = origin[from][map[c]];
  kill(e);
  for (unsigned f : liveEdges(from))
    moveEdge(f, from, into, map);
  edgesOf[from].clear();
  gone[from] = true;
  tidyLater(into);
  dropForbidden(into);
  pushVariable(into);
}

unsigned Presolver::edgeBetween(unsigned a, unsigned b) {
  auto [at, isNew] = between.try_emplace(key(a, b), edges.size());
  unsigned e = at->second;
  if (isNew) {
    edges.push_back({a, b, std::vector<int64_t>(size_t(size(a)) * size(b), 0)});
    dead.push_back(false);
    queuedEdge.push_back(false);
    edgesOf[a].push_back(e);
    edgesOf[b].push_back(e);
  }
  return e;
}

void Presolver::moveEdge(unsigned f, unsigned from, unsigned into, llvm::ArrayRef<unsigned> map) {
  unsigned other = otherEnd(edges[f], from);
  size_t columns = size(other);
  unsigned target = edgeBetween(into, other);
  const GraphEdge &old = edges[f];
  GraphEdge &edge = edges[target];
  for (size_t c = 0; c < map.size(); ++c)
    for (size_t d = 0; d < columns; ++d)
      add(edge.a == into ? edge.costs[c * columns + d] : edge.costs[d * map.size() + c],
          cost(old, from, map[c], d));
  kill(f);
  pushEdge(target);
  pushVariable(other);
}

bool Presolver::foldSeparable(unsigned e) {
  GraphEdge &edge = edges[e];
  std::vector<int64_t> &a = variables[edge.a].costs, &b = variables[edge.b].costs;
  const std::vector<int64_t> &costs = edge.costs;
  size_t columns = b.size();
  for (size_t i = 1; i < a.size(); ++i)
    for (size_t j = 1; j < columns; ++j)
      if (costs[i * columns + j] + costs[0] != costs[i * columns] + costs[j])
        return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] + costs[i * columns] >= kInfinity)
      return false;
  for (size_t j = 0; j < columns; ++j)
    if (b[j] + costs[j] - costs[0] >= kInfinity)
      return false;
  for (size_t i = 0; i < a.size(); ++i)
    a[i] += costs[i * columns];
  for (size_t j = 0; j < columns; ++j)
    b[j] += costs[j] - costs[0];
  pushVariable(edge.a);
  pushVariable(edge.b);
  kill(e);
  return true;
}

void Presolver::tidyLater(unsigned v) {
  constexpr size_t kMany = 64;
  if (variables[v].uses.size() > kMany && llvm::isPowerOf2_64(variables[v].uses.size()))
    tidyUses(graph, variables[v]);
}

void solver::presolveGraph(Graph &graph, std::vector<unsigned> *followed, Stop stop) {
  Presolver(graph, followed).run(stop);
}

//===----------------------------------------------------------------------===//
// What one variable allows
//===----------------------------------------------------------------------===//

void Presolver::reduceVariable(unsigned v) {
  tidyUses(graph, variables[v]);
  liveEdges(v);
  if (size(v) == 1 || !edgesOf[v].empty() || !variables[v].uses.empty()) {
    if (size(v) > 1 && !dropDominated(v) && !mergeByPreference(v))
      eliminate(v);
    return;
  }
  // Alone and free, it takes its cheapest choice.
  unsigned best = llvm::min_element(variables[v].costs) - variables[v].costs.begin();
  if (followed)
    (*followed)[v] = best;
  keep(v, {best});
}

int64_t Presolver::leastExcess(const GraphEdge &edge, unsigned v, unsigned better,
                               unsigned choice) const {
  size_t columns = size(edge.b), count = edge.a == v ? columns : size(edge.a);
  size_t step = edge.a == v ? 1 : columns;
  const int64_t *with = edge.costs.data() + choice * (edge.a == v ? columns : 1);
  const int64_t *without = edge.costs.data() + better * (edge.a == v ? columns : 1);
  int64_t least = kInfinity;
  for (size_t d = 0; d < count; ++d)
    if (with[d * step] < kInfinity)
      least = std::min(least, with[d * step] - without[d * step]);
  return least;
}

bool Presolver::costsNoMore(unsigned v, unsigned better, unsigned choice, int64_t slack,
                            int except) const {
  for (unsigned e : edgesOf[v]) {
    if (int(e) == except)
      continue;
    slack = std::min(slack + leastExcess(edges[e], v, better, choice), kInfinity);
    if (slack <= -kInfinity / 2)
      return false;
  }
  return slack >= 0;
}

bool Presolver::dropDominated(unsigned v) {
  constexpr unsigned kCandidates = 12; // Only those that look cheapest.
  constexpr size_t kManyEdges = 256;
  const Variable &variable = variables[v];
  if (edgesOf[v].size() > kManyEdges)
    return false;
  UsageSteps profile(variable);
  std::vector<std::pair<int64_t, unsigned>> order;
  for (unsigned c = 0; c < size(v); ++c) {
    int64_t least = variable.costs[c];
    for (unsigned e : edgesOf[v]) {
      const GraphEdge &edge = edges[e];
      int64_t best = kInfinity;
      for (unsigned d = 0, n = size(otherEnd(edge, v)); d < n; ++d)
        best = std::min(best, cost(edge, v, c, d));
      least = clip(least + best);
    }
    order.emplace_back(least, c);
  }
  llvm::sort(order);
  std::vector<char> wanted(size(v), true);
  bool changed = false;
  for (size_t worse = order.size(); worse-- > 1;) {
    unsigned tried = 0, choice = order[worse].second;
    for (size_t at = 0; at < worse && tried < kCandidates; ++at) {
      unsigned better = order[at].second;
      if (!wanted[better] || !profile.usesNoMore(better, choice))
        continue;
      ++tried;
      if (costsNoMore(v, better, choice, variable.costs[choice] - variable.costs[better], -1)) {
        wanted[choice] = false;
        changed = true;
        if (followed && (*followed)[v] == choice)
          (*followed)[v] = better;
        break;
      }
    }
  }
  keepWhere(v, wanted);
  return changed;
}

bool Presolver::mergeByPreference(unsigned v) {
  constexpr size_t kManyEdges = 8;
  if (edgesOf[v].empty() || edgesOf[v].size() > kManyEdges)
    return false;
  const Variable &variable = variables[v];
  UsageSteps profile(variable);
  for (unsigned e : edgesOf[v]) {
    const GraphEdge &edge = edges[e];
    unsigned other = otherEnd(edge, v);
    std::vector<unsigned> map;
    for (unsigned i = 0, n = size(other); i < n && map.size() == i; ++i) {
      auto costHere = [&](unsigned c) {
        int64_t pair = cost(edge, v, c, i);
        return addCosts(variable.costs[c], pair);
      };
      unsigned best = 0;
      for (unsigned c = 1; c < size(v); ++c)
        if (costHere(c) < costHere(best))
          best = c;
      bool wins = true;
      for (unsigned c = 0; c < size(v) && wins; ++c)
        wins = c == best || costHere(c) >= kInfinity ||
               (profile.usesNoMore(best, c) &&
                costsNoMore(v, best, c, costHere(c) - costHere(best), int(e)));
      if (wins)
        map.push_back(best);
    }
    if (map.size() == size(other)) {
      merge(other, v, e, map);
      return true;
    }
  }
  return false;
}

void Presolver::eliminate(unsigned v) {
  constexpr size_t kGrowth = 2;
  if (edgesOf[v].size() != 2 || !variables[v].uses.empty())
    return;
  unsigned e = edgesOf[v][0], f = edgesOf[v][1];
  unsigned a = otherEnd(edges[e], v), b = otherEnd(edges[f], v);
  size_t rows = size(a), columns = size(b);
  if (rows * columns > kGrowth * size(v) * (rows + columns))
    return;
  Removal removal{v, a, b, {}};
  removal.choices.resize(originSize(a) * originSize(b), 0);
  std::vector<int64_t> costs(rows * columns);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j) {
      int64_t least = 2 * kInfinity;
      unsigned taken = 0;
      for (unsigned c = 0; c < size(v); ++c) {
        int64_t sum = variables[v].costs[c];
        add(sum, cost(edges[e], v, c, i));
        add(sum, cost(edges[f], v, c, j));
        if (sum < least) {
          least = sum;
          taken = c;
        }
      }
      costs[i * columns + j] = least;
      removal.choices[origin[a][i] * originSize(b) + origin[b][j]] = taken;
    }
  kill(e);
  kill(f);
  gone[v] = true;
  edgesOf[v].clear();
  removals.push_back(std::move(removal));
  unsigned g = edgeBetween(a, b);
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < columns; ++j)
      add(edges[g].a == a ? edges[g].costs[i * columns + j] : edges[g].costs[j * rows + i],
          costs[i * columns + j]);
  pushEdge(g);
  pushVariable(a);
  pushVariable(b);
}

//===----------------------------------------------------------------------===//
// The graph that a collapse leaves
//===----------------------------------------------------------------------===//

void Presolver::record(const Removal &removal, llvm::SmallVector<Member, 1> members) {
  const Member &a = variables[removal.a].members.front();
  const Member &b = variables[removal.b].members.front();
  Elimination &elimination = graph.eliminated.emplace_back();
  elimination.members = std::move(members);
  elimination.a = a.node;
  elimination.b = b.node;
  elimination.columns = *llvm::max_element(b.choices) + 1;
  elimination.choices.resize(size_t(*llvm::max_element(a.choices) + 1) * elimination.columns, 0);
  for (size_t i = 0; i < a.choices.size(); ++i)
    for (size_t j = 0; j < b.choices.size(); ++j)
      elimination.choices[size_t(a.choices[i]) * elimination.columns + b.choices[j]] =
          removal.choices[i * b.choices.size() + j];
}

void Presolver::makeNonNegative(GraphEdge &edge) {
  int64_t least = *llvm::min_element(edge.costs);
  if (least >= 0)
    return;
  graph.constant += least;
  for (int64_t &cost : edge.costs)
    add(cost, -least);
}

void Presolver::finish() {
  // What each choice of the variable that is left means for one merged into it.
  std::vector<std::vector<unsigned>> taken(variables.size());
  std::vector<unsigned> root(variables.size());
  std::iota(root.begin(), root.end(), 0);
  for (unsigned v = 0; v < variables.size(); ++v)
    if (!gone[v])
      taken[v] = origin[v];
  for (const Removal &removal : removals)
    taken[removal.variable] = origin[removal.variable];
  for (const Merge &record : llvm::reverse(merges)) {
    root[record.from] = root[record.into];
    for (unsigned c : taken[record.into])
      taken[record.from].push_back(record.map[c]);
  }
  std::vector<llvm::SmallVector<Member, 1>> members(variables.size());
  auto moveMembers = [&](unsigned v) {
    for (Member &member : variables[v].members) {
      Member &moved = members[root[v]].emplace_back();
      moved.node = member.node;
      for (unsigned c : taken[v])
        moved.choices.push_back(member.choices[c]);
    }
  };
  // A variable's own members come first.
  for (bool own : {true, false})
    for (unsigned v = 0; v < variables.size(); ++v)
      if ((root[v] == v) == own)
        moveMembers(v);
  for (Removal &removal : removals)
    record(removal, std::move(members[removal.variable]));
  std::vector<unsigned> number(variables.size());
  std::vector<Variable> left;
  for (unsigned v = 0; v < variables.size(); ++v) {
    if (gone[v])
      continue;
    number[v] = left.size();
    tidyUses(graph, variables[v]);
    // Edges to it are left only where the presolve was stopped.
    if (size(v) == 1 && liveEdges(v).empty()) {
      graph.constant += variables[v].costs.front();
      for (const Member &member : members[v])
        graph.fixed.emplace_back(member.node, member.choices.front());
      continue;
    }
    variables[v].members = std::move(members[v]);
    if (followed)
      (*followed)[number[v]] = (*followed)[v];
    left.push_back(std::move(variables[v]));
  }
  variables = std::move(left);
  if (followed)
    followed->resize(variables.size());
  std::vector<GraphEdge> kept;
  for (unsigned e = 0; e < edges.size(); ++e)
    if (!dead[e]) {
      edges[e].a = number[edges[e].a];
      edges[e].b = number[edges[e].b];
      makeNonNegative(edges[e]);
      kept.push_back(std::move(edges[e]));
    }
  edges = std::move(kept);
}
