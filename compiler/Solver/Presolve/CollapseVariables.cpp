//===- CollapseVariables.cpp - what one variable allows -------------------===//

#include "compiler/Solver/Model/UsageSteps.h"
#include "compiler/Solver/Presolve/Collapser.h"
#include "compiler/Solver/Presolve/Presolve.h"

#include <algorithm>

using namespace alpa;

void Collapser::reduceVariable(unsigned v) {
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

int64_t Collapser::leastExcess(const GraphEdge &edge, unsigned v, unsigned better,
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

bool Collapser::costsNoMore(unsigned v, unsigned better, unsigned choice, int64_t slack,
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

bool Collapser::dropDominated(unsigned v) {
  constexpr unsigned kCandidates = 12; // Only those that look cheapest.
  constexpr size_t kManyEdges = 256;
  const Variable &variable = variables[v];
  if (edgesOf[v].size() > kManyEdges)
    return false;
  Profile profile(variable);
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

bool Collapser::mergeByPreference(unsigned v) {
  constexpr size_t kManyEdges = 8;
  if (edgesOf[v].empty() || edgesOf[v].size() > kManyEdges)
    return false;
  const Variable &variable = variables[v];
  Profile profile(variable);
  for (unsigned e : edgesOf[v]) {
    const GraphEdge &edge = edges[e];
    unsigned other = otherEnd(edge, v);
    std::vector<unsigned> map;
    for (unsigned i = 0, n = size(other); i < n && map.size() == i; ++i) {
      auto costHere = [&](unsigned c) {
        int64_t pair = cost(edge, v, c, i);
        return pair >= kInfinity ? kInfinity : clip(variable.costs[c] + pair);
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

void Collapser::eliminate(unsigned v) {
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
