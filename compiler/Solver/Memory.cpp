//===- Memory.cpp - usage over time, and choices that respect it ----------===//

#include "compiler/Solver/Memory.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

using namespace alpa;

Usage::Usage(const Graph &graph, const Moments &moments, int64_t limit)
    : live(moments.times.size()), bytesAt(moments.times.size(), 0), limitBytes(limit) {
  for (unsigned v = 0; v < graph.variables.size(); ++v) {
    const Variable &variable = graph.variables[v];
    usages.push_back(variable.usages);
    for (int64_t &bytes : usages.back())
      bytes = std::min(bytes, limit + 1);
    leastUsage.push_back(usages.back().empty() ? 0 : *llvm::min_element(usages.back()));
    bool none = variable.usages.empty() || moments.times.empty();
    lives.push_back(none ? std::vector<MomentRange>() : moments.ofNode[variable.node]);
    for (MomentRange range : lives.back())
      for (unsigned t = range.begin; t < range.end; ++t)
        live[t].push_back(v);
  }
}

bool Usage::fits(unsigned variable, int64_t bytes) const {
  for (MomentRange range : lives[variable])
    for (unsigned t = range.begin; t < range.end; ++t)
      if (bytesAt[t] + bytes > limitBytes)
        return false;
  return true;
}

void Usage::add(unsigned variable, int64_t bytes) {
  if (bytes == 0)
    return;
  for (MomentRange range : lives[variable])
    for (unsigned t = range.begin; t < range.end; ++t)
      bytesAt[t] += bytes;
}

std::optional<unsigned> Usage::fullest() const {
  if (bytesAt.empty())
    return std::nullopt;
  return llvm::max_element(bytesAt) - bytesAt.begin();
}

LocalSearch::LocalSearch(const Graph &graph, Usage &usage)
    : graph(graph), usage(usage), links(graph.variables.size()) {
  for (unsigned e = 0; e < graph.edges.size(); ++e) {
    links[graph.edges[e].a].push_back({e, graph.edges[e].b});
    links[graph.edges[e].b].push_back({e, graph.edges[e].a});
  }
}

int64_t LocalSearch::pairCost(const Link &link, unsigned variable, unsigned choice,
                              unsigned other) const {
  const GraphEdge &edge = graph.edges[link.edge];
  size_t columns = graph.variables[edge.b].choices.size();
  return edge.a == variable ? edge.costs[choice * columns + other]
                            : edge.costs[other * columns + choice];
}

int64_t LocalSearch::costOf(unsigned variable, unsigned choice,
                            llvm::ArrayRef<unsigned> choices) const {
  int64_t cost = graph.variables[variable].costs[choice];
  for (const Link &link : links[variable])
    cost = clip(cost + pairCost(link, variable, choice, choices[link.other]));
  return cost;
}

CostSum LocalSearch::objective(llvm::ArrayRef<unsigned> choices) const {
  CostSum total = graph.constant;
  for (unsigned v = 0; v < choices.size(); ++v)
    total += graph.variables[v].costs[choices[v]];
  for (const GraphEdge &edge : graph.edges)
    total += edge.costs[choices[edge.a] * graph.variables[edge.b].choices.size() + choices[edge.b]];
  return total;
}

void LocalSearch::load(llvm::ArrayRef<unsigned> choices) {
  usage.clear();
  for (unsigned v = 0; v < choices.size(); ++v)
    usage.add(v, usage.of(v, choices[v]));
}

void LocalSearch::move(unsigned variable, unsigned choice, std::vector<unsigned> &choices) {
  usage.add(variable, usage.of(variable, choice) - usage.of(variable, choices[variable]));
  choices[variable] = choice;
}

bool LocalSearch::repair(std::vector<unsigned> &choices) {
  load(choices);
  // Every move uses less, so this ends.
  for (;;) {
    std::optional<unsigned> moment = usage.fullest();
    if (!moment || usage.at()[*moment] <= usage.limit())
      break;
    int64_t over = usage.at()[*moment] - usage.limit();
    double best = 0;
    std::optional<std::pair<unsigned, unsigned>> taken;
    for (unsigned v : usage.liveAt(*moment)) {
      int64_t now = costOf(v, choices[v], choices);
      for (unsigned c = 0; c < graph.variables[v].choices.size(); ++c) {
        int64_t gain = std::min(over, usage.of(v, choices[v]) - usage.of(v, c));
        if (gain <= 0)
          continue;
        int64_t cost = costOf(v, c, choices);
        if (cost >= kInfinity)
          continue;
        double price = double(cost - now);
        price = price > 0 ? price / double(gain) : price * double(gain);
        if (!taken || price < best) {
          best = price;
          taken = {v, c};
        }
      }
    }
    if (!taken)
      return false;
    move(taken->first, taken->second, choices);
  }
  return objective(choices) - graph.constant < kInfinity;
}

bool LocalSearch::improveOne(unsigned variable, std::vector<unsigned> &choices) {
  int64_t best = costOf(variable, choices[variable], choices);
  unsigned taken = choices[variable];
  int64_t now = usage.of(variable, taken);
  for (unsigned c = 0; c < graph.variables[variable].choices.size(); ++c) {
    int64_t cost = costOf(variable, c, choices);
    if (cost < best &&
        (usage.of(variable, c) <= now || usage.fits(variable, usage.of(variable, c) - now))) {
      best = cost;
      taken = c;
    }
  }
  if (taken == choices[variable])
    return false;
  move(variable, taken, choices);
  return true;
}

bool LocalSearch::improvePair(unsigned variable, const Link &link, std::vector<unsigned> &choices) {
  unsigned other = link.other, oldA = choices[variable], oldB = choices[other];
  size_t sizeA = graph.variables[variable].choices.size();
  size_t sizeB = graph.variables[other].choices.size();
  // Costs of each end without the edge between them.
  std::vector<int64_t> a(sizeA), b(sizeB);
  auto without = [&](unsigned v, unsigned except, std::vector<int64_t> &costs) {
    for (size_t c = 0; c < costs.size(); ++c) {
      costs[c] = graph.variables[v].costs[c];
      for (const Link &l : links[v])
        if (l.other != except)
          costs[c] = clip(costs[c] + pairCost(l, v, c, choices[l.other]));
    }
  };
  without(variable, other, a);
  without(other, variable, b);
  int64_t now = a[oldA] + b[oldB] + pairCost(link, variable, oldA, oldB);
  for (unsigned i = 0; i < sizeA; ++i) {
    if (a[i] >= kInfinity)
      continue;
    for (unsigned j = 0; j < sizeB; ++j) {
      if (a[i] + b[j] + pairCost(link, variable, i, j) >= now)
        continue;
      move(variable, i, choices);
      move(other, j, choices);
      if (usage.fits(variable, 0) && usage.fits(other, 0))
        return true;
      move(variable, oldA, choices);
      move(other, oldB, choices);
    }
  }
  return false;
}

void LocalSearch::polish(std::vector<unsigned> &choices, llvm::function_ref<bool()> outOfTime) {
  load(choices);
  for (bool changed = true; changed;) {
    changed = false;
    for (unsigned v = 0; v < choices.size() && !outOfTime(); ++v)
      changed |= improveOne(v, choices);
    if (changed)
      continue;
    for (unsigned v = 0; v < choices.size() && !outOfTime(); ++v)
      for (const Link &link : links[v])
        if (v < link.other)
          changed |= improvePair(v, link, choices);
    if (outOfTime())
      return;
  }
}
