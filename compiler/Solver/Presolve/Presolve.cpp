//===- Presolve.cpp - exact reductions that respect memory ----------------===//

#include "compiler/Solver/Presolve/Presolve.h"
#include "compiler/Solver/Presolve/Collapser.h"

#include <algorithm>
#include <numeric>

using namespace alpa;

Collapser::Collapser(Graph &graph, std::vector<unsigned> *followed)
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

void Collapser::run() {
  for (unsigned v = 0; v < variables.size() && !graph.impossibleNode; ++v) {
    dropForbidden(v);
    pushVariable(v);
  }
  while (!graph.impossibleNode) {
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

void Collapser::kill(unsigned e) {
  dead[e] = true;
  between.erase(key(edges[e].a, edges[e].b));
  std::vector<int64_t>().swap(edges[e].costs);
}

void Collapser::add(int64_t &sum, int64_t cost) {
  bool allowed = sum < kInfinity && cost < kInfinity;
  sum = allowed ? clip(sum + cost) : kInfinity;
  graph.clipped |= allowed && sum >= kInfinity;
}

void Collapser::keep(unsigned v, llvm::ArrayRef<unsigned> kept) {
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

void Collapser::keepWhere(unsigned v, llvm::ArrayRef<char> wanted) {
  std::vector<unsigned> kept;
  for (unsigned c = 0; c < wanted.size(); ++c)
    if (wanted[c])
      kept.push_back(c);
  if (kept.size() < wanted.size())
    keep(v, kept);
}

void Collapser::dropForbidden(unsigned v) {
  std::vector<char> wanted;
  for (int64_t cost : variables[v].costs)
    wanted.push_back(cost < kInfinity);
  keepWhere(v, wanted);
}

void Collapser::reduceEdge(unsigned e) {
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

void Collapser::merge(unsigned into, unsigned from, unsigned e, llvm::ArrayRef<unsigned> map) {
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

unsigned Collapser::edgeBetween(unsigned a, unsigned b) {
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

void Collapser::moveEdge(unsigned f, unsigned from, unsigned into, llvm::ArrayRef<unsigned> map) {
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

bool Collapser::foldSeparable(unsigned e) {
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

void Collapser::tidyLater(unsigned v) {
  constexpr size_t kMany = 64;
  if (variables[v].uses.size() > kMany && llvm::isPowerOf2_64(variables[v].uses.size()))
    tidyUses(graph, variables[v]);
}

void alpa::collapseGraph(Graph &graph, std::vector<unsigned> *followed) {
  Collapser(graph, followed).run();
}
