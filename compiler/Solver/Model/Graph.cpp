//===- Graph.cpp - the working form of a problem --------------------------===//

#include "compiler/Solver/Model/Graph.h"

#include "compiler/Solver/Presolve/Presolve.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

#include <numeric>

using namespace alpa;
using namespace alpa::solver;

void Variable::keep(llvm::ArrayRef<unsigned> choices) {
  auto select = [&](auto &values) {
    for (size_t k = 0; k < choices.size(); ++k)
      values[k] = values[choices[k]];
    values.resize(choices.size());
  };
  select(costs);
  for (Member &member : members)
    select(member.choices);
  for (Use &use : uses)
    select(use.bytes);
}

std::vector<unsigned> solver::readOut(const Graph &graph, llvm::ArrayRef<unsigned> values,
                                      size_t numNodes) {
  std::vector<unsigned> choices(numNodes, 0);
  for (auto [node, choice] : graph.fixed)
    choices[node] = choice;
  for (unsigned v = 0; v < values.size(); ++v)
    for (const Member &member : graph.variables[v].members)
      choices[member.node] = member.choices[values[v]];
  for (const Elimination &elimination : llvm::reverse(graph.eliminated)) {
    unsigned taken =
        elimination
            .choices[size_t(choices[elimination.a]) * elimination.columns + choices[elimination.b]];
    for (const Member &member : elimination.members)
      choices[member.node] = member.choices[taken];
  }
  return choices;
}

Graph solver::translate(const Problem &problem, const TimePoints *timePoints) {
  Graph graph;
  if (timePoints)
    graph.baseBytes.assign(timePoints->times.size(), 0);
  graph.variables.resize(problem.nodes.size());
  for (unsigned i = 0; i < problem.nodes.size(); ++i) {
    const ProblemNode &node = problem.nodes[i];
    Variable &variable = graph.variables[i];
    Member &member = variable.members.emplace_back();
    member.node = i;
    member.choices.resize(node.costs.size());
    std::iota(member.choices.begin(), member.choices.end(), 0);
    variable.costs.reserve(node.costs.size());
    for (int64_t cost : node.costs)
      variable.costs.push_back(clip(cost));
    if (!timePoints || timePoints->ofNode[i].empty())
      continue;
    Use &use = variable.uses.emplace_back();
    use.life.assign(timePoints->ofNode[i].begin(), timePoints->ofNode[i].end());
    use.bytes = node.usagesBytes;
  }
  // Parallel edges become one.
  llvm::DenseMap<std::pair<unsigned, unsigned>, unsigned> known;
  for (const ProblemEdge &edge : problem.edges) {
    unsigned a = std::min(edge.a, edge.b), b = std::max(edge.a, edge.b);
    size_t sizeA = problem.nodes[a].costs.size(), sizeB = problem.nodes[b].costs.size();
    auto [at, isNew] = known.try_emplace({a, b}, graph.edges.size());
    if (isNew) {
      // Most edges are as they should be.
      bool isClean =
          edge.a == a && llvm::all_of(edge.costs, [](int64_t cost) { return cost < kInfinity; });
      graph.edges.push_back({a, b, isClean ? edge.costs : std::vector<int64_t>(sizeA * sizeB)});
      if (isClean)
        continue;
    }
    std::vector<int64_t> &costs = graph.edges[at->second].costs;
    for (size_t i = 0; i < sizeA; ++i)
      for (size_t j = 0; j < sizeB; ++j) {
        int64_t cost = edge.a == a ? edge.costs[i * sizeB + j] : edge.costs[j * sizeA + i];
        int64_t &sum = costs[i * sizeB + j];
        sum = addCosts(sum, cost);
      }
  }
  return graph;
}

Graph solver::buildGraph(const Problem &problem, const TimePoints *timePoints, Stop stop) {
  Graph graph = translate(problem, timePoints);
  if (timePoints)
    presolveGraph(graph, /*followed=*/nullptr, stop);
  else
    reduceGraph(graph, stop);
  return graph;
}

//===----------------------------------------------------------------------===//
// A variable's bytes over time
//===----------------------------------------------------------------------===//

UsageSteps::UsageSteps(const Variable &variable) {
  if (variable.uses.size() == 1) {
    // Its ranges are all alike.
    const Use &use = variable.uses.front();
    for (TimeRange range : use.life)
      if (range.begin < range.end)
        all.push_back({range, use.bytes});
    return;
  }
  struct Event {
    unsigned timePoint;
    unsigned use;
    bool begins;
  };
  std::vector<Event> events;
  for (unsigned u = 0; u < variable.uses.size(); ++u)
    for (TimeRange range : variable.uses[u].life) {
      events.push_back({range.begin, u, true});
      events.push_back({range.end, u, false});
    }
  llvm::sort(events, [](const Event &x, const Event &y) {
    return std::tie(x.timePoint, x.use, x.begins) < std::tie(y.timePoint, y.use, y.begins);
  });
  std::vector<int64_t> bytes(variable.numChoices(), 0);
  for (size_t i = 0; i < events.size(); ++i) {
    const std::vector<int64_t> &change = variable.uses[events[i].use].bytes;
    for (size_t c = 0; c < bytes.size(); ++c)
      bytes[c] += events[i].begins ? change[c] : -change[c];
    bool last = i + 1 == events.size() || events[i + 1].timePoint != events[i].timePoint;
    if (last && i + 1 < events.size() && llvm::any_of(bytes, [](int64_t b) { return b != 0; }))
      all.push_back({{events[i].timePoint, events[i + 1].timePoint}, bytes});
  }
}

bool UsageSteps::usesNoMore(unsigned better, unsigned choice) const {
  return llvm::all_of(all,
                      [&](const Step &step) { return step.bytes[better] <= step.bytes[choice]; });
}
