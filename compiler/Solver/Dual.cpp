//===- Dual.cpp - lower bounds by shifting costs --------------------------===//

#include "compiler/Solver/Dual.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

using namespace alpa;

/// Keeps sums of shifts far from overflow; a smaller shift is valid too.
static constexpr int64_t kMostShift = int64_t(1) << 52;
/// Cost of a removed choice, and what it makes its edges cost.
static constexpr int64_t kRemoved = int64_t(1) << 57;

Dual::Dual(const Graph &graph) : graph(graph), links(graph.variables.size()) {
  for (unsigned e = 0; e < graph.edges.size(); ++e) {
    const GraphEdge &edge = graph.edges[e];
    links[edge.a].push_back({e, edge.b, true});
    links[edge.b].push_back({e, edge.a, false});
    toA.emplace_back(graph.variables[edge.a].numChoices(), 0);
    toB.emplace_back(graph.variables[edge.b].numChoices(), 0);
  }
  for (const Variable &variable : graph.variables) {
    theta.push_back(variable.costs);
    removed.emplace_back(variable.numChoices(), false);
    least.push_back(*llvm::min_element(variable.costs));
    total += least.back();
  }
  prices.resize(graph.variables.size());
}

void Dual::setPrices(unsigned variable, llvm::ArrayRef<int64_t> values) {
  std::vector<int64_t> &old = prices[variable];
  old.resize(values.size(), 0);
  for (size_t c = 0; c < values.size(); ++c) {
    if (!removed[variable][c])
      theta[variable][c] += values[c] - old[c];
    old[c] = values[c];
  }
  total -= least[variable];
  least[variable] = *llvm::min_element(theta[variable]);
  total += least[variable];
}

/// Shifts to the variable all that the edge is sure to cost with each choice.
void Dual::pull(unsigned variable, const Link &link) {
  const GraphEdge &edge = graph.edges[link.edge];
  std::vector<int64_t> &own = message(link);
  const std::vector<int64_t> &other = link.isA ? toB[link.edge] : toA[link.edge];
  size_t sizeA = toA[link.edge].size(), sizeB = toB[link.edge].size();
  const int64_t *costs = edge.costs.data();
  scratch.assign(own.size(), 2 * kInfinity);
  if (link.isA) {
    for (size_t i = 0; i < sizeA; ++i) {
      int64_t best = 2 * kInfinity;
      for (size_t j = 0; j < sizeB; ++j)
        best = std::min(best, costs[i * sizeB + j] - other[j]);
      scratch[i] = best;
    }
  } else {
    int64_t *best = scratch.data();
    for (size_t i = 0; i < sizeA; ++i)
      for (size_t j = 0; j < sizeB; ++j)
        best[j] = std::min(best[j], costs[i * sizeB + j] - other[i]);
  }
  std::vector<int64_t> &cost = theta[variable];
  for (size_t c = 0; c < own.size(); ++c) {
    if (removed[variable][c])
      continue;
    int64_t shift = std::min(scratch[c] - own[c], kMostShift);
    if (shift > 0 && cost[c] > kRemoved / 2)
      continue;
    own[c] += shift;
    cost[c] += shift;
  }
}

void Dual::remove(unsigned variable, unsigned choice) {
  removed[variable][choice] = true;
  theta[variable][choice] = kRemoved;
  for (const Link &link : links[variable])
    message(link)[choice] = -kRemoved;
  ++removedChoices;
}

bool Dual::visit(unsigned variable, bool forward, CostSum upper) {
  std::vector<int64_t> &cost = theta[variable];
  int64_t ahead = 0, behind = 0;
  for (const Link &link : links[variable]) {
    pull(variable, link);
    ((link.other > variable) == forward ? ahead : behind) += 1;
  }
  total -= least[variable];
  least[variable] = *llvm::min_element(cost);
  total += least[variable];
  bool any = false;
  for (unsigned c = 0; c < cost.size(); ++c) {
    if (removed[variable][c])
      continue;
    if (total + (cost[c] - least[variable]) >= upper)
      remove(variable, c);
    else
      any = true;
  }
  if (!any)
    return false;
  if (ahead == 0)
    return true;
  // An equal share to every edge ahead, so that what is known here is used there.
  int64_t shares = std::max(ahead, behind);
  for (unsigned c = 0; c < cost.size(); ++c) {
    if (removed[variable][c])
      continue;
    int64_t share = std::min((cost[c] - least[variable]) / shares, kMostShift);
    if (share == 0)
      continue;
    for (const Link &link : links[variable])
      if ((link.other > variable) == forward)
        message(link)[c] -= share;
    cost[c] -= share * ahead;
  }
  return true;
}

bool Dual::sweep(CostSum upper) {
  unsigned count = graph.variables.size();
  for (unsigned v = 0; v < count; ++v)
    if (!visit(v, /*forward=*/true, upper))
      return false;
  for (unsigned v = count; v-- > 0;)
    if (!visit(v, /*forward=*/false, upper))
      return false;
  return true;
}

std::vector<unsigned> Dual::decode() const {
  // The last sweep went back, so a variable knows all that comes after it.
  std::vector<unsigned> values(graph.variables.size(), 0);
  std::vector<int64_t> cost;
  for (unsigned v = 0; v < values.size(); ++v) {
    cost = theta[v];
    for (const Link &link : links[v]) {
      if (link.other > v)
        continue;
      const std::vector<int64_t> &costs = graph.edges[link.edge].costs;
      size_t sizeB = toB[link.edge].size(), other = values[link.other];
      for (size_t c = 0; c < cost.size(); ++c) {
        int64_t shifted = link.isA ? costs[c * sizeB + other] - toA[link.edge][c]
                                   : costs[other * sizeB + c] - toB[link.edge][c];
        cost[c] = std::min(cost[c] + std::min(shifted, kRemoved), 4 * kRemoved);
      }
    }
    for (size_t c = 0; c < cost.size(); ++c)
      if (removed[v][c])
        cost[c] = 8 * kRemoved;
    values[v] = llvm::min_element(cost) - cost.begin();
  }
  return values;
}

Graph Dual::shifted() const {
  Graph result;
  result.constant = graph.constant;
  result.fixed = graph.fixed;
  result.eliminated = graph.eliminated;
  result.baseBytes = graph.baseBytes;
  result.clipped = graph.clipped;
  std::vector<std::vector<unsigned>> kept(graph.variables.size());
  for (unsigned v = 0; v < kept.size(); ++v) {
    const Variable &from = graph.variables[v];
    for (unsigned c = 0; c < from.numChoices(); ++c)
      if (!removed[v][c])
        kept[v].push_back(c);
    Variable &variable = result.variables.emplace_back(from);
    variable.costs = theta[v];
    variable.keep(kept[v]);
  }
  for (unsigned e = 0; e < graph.edges.size(); ++e) {
    const GraphEdge &from = graph.edges[e];
    GraphEdge &edge = result.edges.emplace_back();
    edge.a = from.a;
    edge.b = from.b;
    size_t sizeB = toB[e].size();
    for (unsigned i : kept[from.a])
      for (unsigned j : kept[from.b]) {
        int64_t cost = from.costs[i * sizeB + j];
        edge.costs.push_back(cost >= kInfinity ? kInfinity : clip(cost - toA[e][i] - toB[e][j]));
      }
  }
  return result;
}
