//===- LocalSearch.cpp - usage over time, and choices that respect it -----===//

#include "compiler/Solver/MemoryLimited/LocalSearch.h"
#include "compiler/Solver/Model/Graph.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

using namespace alpa;
using namespace alpa::solver;

Usage::Usage(const Graph &graph, int64_t limit) : leastAt(graph.baseBytes), limitBytes(limit) {
  for (const Variable &variable : graph.variables) {
    firstSegment.push_back(allSegments.size());
    if (!leastAt.empty())
      addSegments(variable);
  }
  firstSegment.push_back(allSegments.size());
  clear();
}

void Usage::addSegments(const Variable &variable) {
  size_t first = allSegments.size();
  UsageSteps profile(variable);
  for (const auto &[range, sum] : profile.steps()) {
    auto [begin, end] = range;
    int64_t least = *llvm::min_element(sum);
    for (unsigned t = begin; t < end; ++t)
      leastAt[t] += least;
    size_t bytes = allBytes.size();
    bool differs = false;
    for (int64_t use : sum) {
      allBytes.push_back(use - least);
      differs |= use != least;
    }
    if (!differs) {
      allBytes.resize(bytes);
      continue;
    }
    if (allSegments.size() > first && allSegments.back().end == begin &&
        std::equal(allBytes.begin() + bytes, allBytes.end(),
                   allBytes.begin() + allSegments.back().bytes)) {
      allSegments.back().end = end;
      allBytes.resize(bytes);
      continue;
    }
    allSegments.push_back({begin, end, bytes});
  }
}

void Usage::load(llvm::ArrayRef<unsigned> choices) {
  clear();
  for (unsigned v = 0; v < choices.size(); ++v)
    place(v, choices[v]);
}

void Usage::add(unsigned variable, unsigned choice, int sign) {
  for (const Segment &segment : segments(variable)) {
    int64_t more = sign * bytes(segment, choice);
    if (more != 0)
      for (unsigned t = segment.begin; t < segment.end; ++t)
        bytesAt[t] += more;
  }
}

void Usage::move(unsigned variable, unsigned from, unsigned to) {
  for (const Segment &segment : segments(variable)) {
    int64_t more = bytes(segment, to) - bytes(segment, from);
    if (more != 0)
      for (unsigned t = segment.begin; t < segment.end; ++t)
        bytesAt[t] += more;
  }
}

bool Usage::fits(unsigned variable, unsigned choice) const {
  for (const Segment &segment : segments(variable)) {
    int64_t room = limitBytes - bytes(segment, choice);
    if (room != limitBytes)
      for (unsigned t = segment.begin; t < segment.end; ++t)
        if (bytesAt[t] > room)
          return false;
  }
  return true;
}

bool Usage::fitsMove(unsigned variable, unsigned from, unsigned to) const {
  for (const Segment &segment : segments(variable)) {
    int64_t more = bytes(segment, to) - bytes(segment, from);
    if (more > 0)
      for (unsigned t = segment.begin; t < segment.end; ++t)
        if (bytesAt[t] > limitBytes - more)
          return false;
  }
  return true;
}

bool Usage::holds(unsigned variable) const {
  for (const Segment &segment : segments(variable))
    for (unsigned t = segment.begin; t < segment.end; ++t)
      if (bytesAt[t] > limitBytes)
        return false;
  return true;
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
  size_t columns = graph.variables[edge.b].numChoices();
  return edge.a == variable ? edge.costs[choice * columns + other]
                            : edge.costs[other * columns + choice];
}

int64_t LocalSearch::costOf(unsigned variable, unsigned choice,
                            llvm::ArrayRef<unsigned> choices) const {
  int64_t cost = graph.variables[variable].costs[choice];
  spent += double(1 + links[variable].size());
  for (const Link &link : links[variable])
    cost = addCosts(cost, pairCost(link, variable, choice, choices[link.other]));
  return cost;
}

/// Costs may be negative here, so that the sum does not tell.
bool LocalSearch::isAllowed(llvm::ArrayRef<unsigned> choices) const {
  for (unsigned v = 0; v < choices.size(); ++v)
    if (graph.variables[v].costs[choices[v]] >= kInfinity)
      return false;
  return llvm::all_of(graph.edges, [&](const GraphEdge &edge) {
    size_t columns = graph.variables[edge.b].numChoices();
    return edge.costs[choices[edge.a] * columns + choices[edge.b]] < kInfinity;
  });
}

CostSum LocalSearch::objective(llvm::ArrayRef<unsigned> choices) const {
  CostSum total = graph.constant;
  for (unsigned v = 0; v < choices.size(); ++v)
    total += graph.variables[v].costs[choices[v]];
  for (const GraphEdge &edge : graph.edges)
    total += edge.costs[choices[edge.a] * graph.variables[edge.b].numChoices() + choices[edge.b]];
  return total;
}

void LocalSearch::move(unsigned variable, unsigned choice, std::vector<unsigned> &choices) {
  usage.move(variable, choices[variable], choice);
  choices[variable] = choice;
}

/// Whether a move uses no more at any time point.
bool LocalSearch::usesLess(unsigned variable, unsigned from, unsigned to) const {
  return llvm::all_of(usage.segments(variable), [&](const Usage::Segment &segment) {
    return usage.bytes(segment, to) <= usage.bytes(segment, from);
  });
}

bool LocalSearch::repair(std::vector<unsigned> &choices, double maxWork, Stop stop) {
  usage.load(choices);
  // Every move uses less, so this ends.
  for (;;) {
    std::optional<unsigned> timePoint = usage.fullest();
    if (!timePoint || usage.at()[*timePoint] <= usage.limit())
      break;
    if (stops(stop))
      return false;
    int64_t over = usage.at()[*timePoint] - usage.limit();
    double best = 0;
    std::optional<std::pair<unsigned, unsigned>> taken;
    maxWork -= double(choices.size());
    spent += double(choices.size());
    for (unsigned v = 0; v < choices.size(); ++v) {
      const auto *here = llvm::find_if(usage.segments(v), [&](const Usage::Segment &segment) {
        return segment.begin <= *timePoint && *timePoint < segment.end;
      });
      if (here == usage.segments(v).end())
        continue;
      int64_t now = costOf(v, choices[v], choices);
      maxWork -= double(graph.variables[v].numChoices());
      for (unsigned c = 0; c < graph.variables[v].numChoices(); ++c) {
        int64_t gain = std::min(over, usage.bytes(*here, choices[v]) - usage.bytes(*here, c));
        if (gain <= 0 || !usesLess(v, choices[v], c))
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
    if (!taken || maxWork < 0)
      return false;
    move(taken->first, taken->second, choices);
  }
  return isAllowed(choices);
}

bool LocalSearch::improveOne(unsigned variable, std::vector<unsigned> &choices) {
  int64_t best = costOf(variable, choices[variable], choices);
  unsigned taken = choices[variable];
  for (unsigned c = 0; c < graph.variables[variable].numChoices(); ++c) {
    int64_t cost = costOf(variable, c, choices);
    if (cost < best && usage.fitsMove(variable, choices[variable], c)) {
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
  size_t sizeA = graph.variables[variable].numChoices();
  size_t sizeB = graph.variables[other].numChoices();
  // Costs of each end without the edge between them.
  std::vector<int64_t> a(sizeA), b(sizeB);
  auto without = [&](unsigned v, unsigned except, std::vector<int64_t> &costs) {
    for (size_t c = 0; c < costs.size(); ++c) {
      costs[c] = graph.variables[v].costs[c];
      for (const Link &l : links[v])
        if (l.other != except)
          costs[c] = addCosts(costs[c], pairCost(l, v, c, choices[l.other]));
    }
  };
  spent += double(sizeA * links[variable].size() + sizeB * links[other].size() + sizeA * sizeB);
  without(variable, other, a);
  without(other, variable, b);
  auto costOfPair = [&](unsigned i, unsigned j) {
    return addCosts(addCosts(a[i], b[j]), pairCost(link, variable, i, j));
  };
  int64_t now = costOfPair(oldA, oldB);
  for (unsigned i = 0; i < sizeA; ++i) {
    if (a[i] >= kInfinity)
      continue;
    for (unsigned j = 0; j < sizeB; ++j) {
      if (costOfPair(i, j) >= now)
        continue;
      move(variable, i, choices);
      move(other, j, choices);
      if (usage.holds(variable) && usage.holds(other))
        return true;
      move(variable, oldA, choices);
      move(other, oldB, choices);
    }
  }
  return false;
}

void LocalSearch::polish(std::vector<unsigned> &choices, Stop stop) {
  usage.load(choices);
  for (bool changed = true; changed;) {
    changed = false;
    for (unsigned v = 0; v < choices.size() && !stops(stop); ++v)
      changed |= improveOne(v, choices);
    if (changed)
      continue;
    for (unsigned v = 0; v < choices.size() && !stops(stop); ++v)
      for (const Link &link : links[v])
        if (v < link.other)
          changed |= improvePair(v, link, choices);
    if (stops(stop))
      return;
  }
}
