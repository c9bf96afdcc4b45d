//===- PrimalState.cpp - choices under change -----------------------------===//

#include "compiler/Solver/MemoryLimited/PrimalState.h"

#include <algorithm>
#include <cmath>

using namespace alpa;
using namespace alpa::solver;

static double toDouble(int64_t cost) { return cost >= kInfinity ? kBlocked : double(cost); }

/// The mean of the size of those that are allowed.
static double meanOf(llvm::ArrayRef<int64_t> costs) {
  double sum = 0, count = 0;
  for (int64_t cost : costs)
    if (cost < kInfinity) {
      sum += std::abs(double(cost));
      ++count;
    }
  return sum / std::max(1.0, count);
}

FlatCosts::FlatCosts(const Graph &graph) {
  unsigned count = graph.variables.size();
  std::vector<unsigned> degree(count, 0);
  size_t entries = 0;
  for (const GraphEdge &edge : graph.edges) {
    ++degree[edge.a];
    ++degree[edge.b];
    entries += 2 * edge.costs.size();
  }
  firstArc.push_back(0);
  for (unsigned v = 0; v < count; ++v) {
    sizes.push_back(graph.variables[v].numChoices());
    firsts.push_back(own.size());
    typicalCost += meanOf(graph.variables[v].costs);
    for (int64_t cost : graph.variables[v].costs)
      own.push_back(toDouble(cost));
    firstArc.push_back(firstArc.back() + degree[v]);
  }
  allArcs.resize(firstArc.back());
  tables.resize(entries);
  std::vector<size_t> next(firstArc.begin(), firstArc.end() - 1);
  double *to = tables.data();
  for (const GraphEdge &edge : graph.edges) {
    typicalCost += meanOf(edge.costs);
    unsigned sizeA = sizes[edge.a], sizeB = sizes[edge.b];
    allArcs[next[edge.b]++] = {edge.a, to};
    for (int64_t cost : edge.costs)
      *to++ = toDouble(cost);
    allArcs[next[edge.a]++] = {edge.b, to};
    for (unsigned j = 0; j < sizeB; ++j)
      for (unsigned i = 0; i < sizeA; ++i)
        *to++ = toDouble(edge.costs[size_t(i) * sizeB + j]);
  }
}

PrimalState::PrimalState(const FlatCosts &costs, const Usage &usage) : costs(costs), usage(usage) {
  load(std::vector<unsigned>(costs.count(), 0));
}

void PrimalState::load(llvm::ArrayRef<unsigned> taken) {
  choices.assign(taken.begin(), taken.end());
  usage.load(choices);
  total = 0;
  for (unsigned v = 0; v < choices.size(); ++v) {
    total += costs.costs(v)[choices[v]];
    for (const FlatCosts::Arc &arc : costs.arcs(v))
      if (arc.other < v)
        total += arc.rows[size_t(choices[arc.other]) * costs.size(v) + choices[v]];
  }
}

void PrimalState::move(unsigned variable, unsigned choice) {
  usage.move(variable, choices[variable], choice);
  choices[variable] = choice;
}

double PrimalState::excess() const {
  double sum = 0;
  for (int64_t bytes : usage.at())
    sum += double(std::max<int64_t>(0, bytes - usage.limit()));
  return sum;
}
