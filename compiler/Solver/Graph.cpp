//===- Graph.cpp - exact reductions ---------------------------------------===//

#include "compiler/Solver/Graph.h"
#include "compiler/Solver/Collapse.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <deque>
#include <numeric>

using namespace alpa;

namespace {

class Reducer {
public:
  explicit Reducer(Graph &graph)
      : graph(graph), alive(graph.variables.size()), edgesOf(graph.variables.size()),
        queued(graph.variables.size(), false) {
    for (unsigned i = 0; i < alive.size(); ++i)
      alive[i].assign(graph.variables[i].numChoices(), true);
    for (unsigned e = 0; e < graph.edges.size(); ++e) {
      edgesOf[graph.edges[e].a].push_back(e);
      edgesOf[graph.edges[e].b].push_back(e);
    }
  }

  void run() {
    for (unsigned i = 0; i < graph.variables.size(); ++i) {
      for (unsigned c = 0; c < alive[i].size(); ++c)
        if (graph.variables[i].costs[c] >= kInfinity)
          alive[i][c] = false;
      push(i);
    }
    // Fewer choices of one variable may make choices of its neighbours useless.
    // First come, first served, so that a variable waits for all of them.
    while (!queue.empty() && !graph.impossibleNode) {
      unsigned i = queue.front();
      queue.pop_front();
      queued[i] = false;
      reduce(i);
    }
    if (!graph.impossibleNode)
      compact();
  }

private:
  void push(unsigned i) {
    if (!queued[i]) {
      queued[i] = true;
      queue.push_back(i);
    }
  }

  int64_t cost(const GraphEdge &edge, unsigned i, unsigned choice, unsigned other) const {
    return edge.a == i ? edge.costs[size_t(choice) * alive[edge.b].size() + other]
                       : edge.costs[size_t(other) * alive[edge.b].size() + choice];
  }

  bool drop(unsigned i, unsigned choice) {
    alive[i][choice] = false;
    for (unsigned e : edgesOf[i])
      push(graph.edges[e].a == i ? graph.edges[e].b : graph.edges[e].a);
    return true;
  }

  /// Drops choices without an allowed partner, then dominated ones.
  void reduce(unsigned i) {
    bool changed = false;
    for (unsigned c = 0; c < alive[i].size(); ++c)
      if (alive[i][c] && !hasSupport(i, c))
        changed |= drop(i, c);
    if (!llvm::is_contained(alive[i], true)) {
      graph.impossibleNode = graph.variables[i].members.front().node;
      return;
    }
    changed |= dropDominated(i);
    if (changed)
      push(i);
  }

  bool hasSupport(unsigned i, unsigned choice) const {
    if (graph.variables[i].costs[choice] >= kInfinity)
      return false;
    for (unsigned e : edgesOf[i]) {
      const GraphEdge &edge = graph.edges[e];
      unsigned other = edge.a == i ? edge.b : edge.a;
      bool supported = false;
      for (unsigned d = 0; d < alive[other].size() && !supported; ++d)
        supported = alive[other][d] && cost(edge, i, choice, d) < kInfinity;
      if (!supported)
        return false;
    }
    return true;
  }

  /// Whether taking `better` for `choice` never costs more, whatever the
  /// neighbours take. `cheapest` are the choices of the neighbours, edge by edge,
  /// with which `choice` costs least.
  bool dominates(unsigned i, unsigned better, unsigned choice,
                 llvm::ArrayRef<unsigned> cheapest) const {
    const Variable &variable = graph.variables[i];
    for (const Use &use : variable.uses)
      if (use.bytes[better] > use.bytes[choice])
        return false;
    int64_t slack = variable.costs[choice] - variable.costs[better];
    // One column of each edge says no for most pairs.
    CostSum most = slack;
    for (auto [e, d] : llvm::zip_equal(edgesOf[i], cheapest))
      if (int64_t with = cost(graph.edges[e], i, choice, d); with < kInfinity)
        most += with - cost(graph.edges[e], i, better, d);
      else
        most += kInfinity;
    if (most < 0)
      return false;
    for (unsigned e : edgesOf[i]) {
      const GraphEdge &edge = graph.edges[e];
      unsigned other = edge.a == i ? edge.b : edge.a;
      int64_t least = kInfinity;
      for (unsigned d = 0; d < alive[other].size(); ++d) {
        if (!alive[other][d])
          continue;
        int64_t with = cost(edge, i, choice, d);
        if (with < kInfinity)
          least = std::min(least, with - cost(edge, i, better, d));
      }
      slack = std::min(slack + least, kInfinity);
      if (slack <= -kInfinity)
        return false;
    }
    return slack >= 0;
  }

  bool dropDominated(unsigned i) {
    // Only the choices that look cheapest are tried as the better one.
    constexpr unsigned kCandidates = 6;
    std::vector<std::pair<int64_t, unsigned>> order;
    size_t numEdges = edgesOf[i].size();
    std::vector<unsigned> cheapest(alive[i].size() * numEdges, 0);
    for (unsigned c = 0; c < alive[i].size(); ++c) {
      if (!alive[i][c])
        continue;
      int64_t least = graph.variables[i].costs[c];
      for (size_t at = 0; at < numEdges; ++at) {
        const GraphEdge &edge = graph.edges[edgesOf[i][at]];
        unsigned other = edge.a == i ? edge.b : edge.a;
        int64_t best = kInfinity;
        for (unsigned d = 0; d < alive[other].size(); ++d)
          if (alive[other][d])
            if (int64_t with = cost(edge, i, c, d); with < best) {
              best = with;
              cheapest[c * numEdges + at] = d;
            }
        least = clip(least + best);
      }
      order.emplace_back(least, c);
    }
    llvm::sort(order);
    bool changed = false;
    for (size_t worse = order.size(); worse-- > 1;) {
      unsigned tried = 0;
      for (size_t better = 0; better < worse && tried < kCandidates; ++better) {
        if (!alive[i][order[better].second])
          continue;
        ++tried;
        unsigned choice = order[worse].second;
        if (dominates(i, order[better].second, choice,
                      llvm::ArrayRef(cheapest).slice(choice * numEdges, numEdges))) {
          changed = drop(i, choice);
          break;
        }
      }
    }
    return changed;
  }

  /// Renumbers choices, folds in fixed variables and separable edges.
  void compact() {
    std::vector<Variable> &variables = graph.variables;
    std::vector<std::vector<unsigned>> left(alive.size());
    for (unsigned i = 0; i < alive.size(); ++i) {
      for (unsigned c = 0; c < alive[i].size(); ++c)
        if (alive[i][c])
          left[i].push_back(c);
      variables[i].keep(left[i]);
    }
    std::vector<GraphEdge> edges;
    for (GraphEdge &edge : graph.edges) {
      GraphEdge small{edge.a, edge.b, {}};
      small.costs.reserve(left[edge.a].size() * left[edge.b].size());
      for (unsigned c : left[edge.a])
        for (unsigned d : left[edge.b])
          small.costs.push_back(cost(edge, edge.a, c, d));
      std::vector<int64_t>().swap(edge.costs);
      if (!foldSeparable(small))
        edges.push_back(std::move(small));
    }
    graph.edges = std::move(edges);

    // A single choice leaves only its cost and its bytes.
    std::vector<unsigned> number(variables.size());
    std::vector<Variable> kept;
    for (unsigned i = 0; i < variables.size(); ++i) {
      Variable &variable = variables[i];
      number[i] = kept.size();
      if (variable.numChoices() > 1) {
        kept.push_back(std::move(variable));
        continue;
      }
      graph.constant += variable.costs.front();
      for (const Member &member : variable.members)
        graph.fixed.emplace_back(member.node, member.choices.front());
      for (const Use &use : variable.uses)
        for (MomentRange range : use.life)
          for (unsigned t = range.begin; t < range.end; ++t)
            graph.baseBytes[t] += use.bytes.front();
    }
    variables = std::move(kept);
    for (GraphEdge &edge : graph.edges) {
      edge.a = number[edge.a];
      edge.b = number[edge.b];
    }
  }

  /// An edge whose costs are a sum of one part per end is none.
  bool foldSeparable(const GraphEdge &edge) {
    std::vector<int64_t> &a = graph.variables[edge.a].costs, &b = graph.variables[edge.b].costs;
    for (size_t i = 0; i < a.size(); ++i)
      for (size_t j = 0; j < b.size(); ++j) {
        int64_t here = edge.costs[i * b.size() + j];
        if (here >= kInfinity || here + edge.costs[0] != edge.costs[i * b.size()] + edge.costs[j])
          return false;
      }
    for (size_t i = 0; i < a.size(); ++i)
      if (a[i] + edge.costs[i * b.size()] >= kInfinity)
        return false;
    for (size_t j = 0; j < b.size(); ++j)
      if (b[j] + edge.costs[j] - edge.costs[0] >= kInfinity)
        return false;
    for (size_t i = 0; i < a.size(); ++i)
      a[i] += edge.costs[i * b.size()];
    for (size_t j = 0; j < b.size(); ++j)
      b[j] += edge.costs[j] - edge.costs[0];
    return true;
  }

  Graph &graph;
  std::vector<std::vector<char>> alive;
  std::vector<std::vector<unsigned>> edgesOf;
  std::deque<unsigned> queue;
  std::vector<char> queued;
};

} // namespace

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

void alpa::reduceGraph(Graph &graph) { Reducer(graph).run(); }

std::vector<unsigned> alpa::readOut(const Graph &graph, llvm::ArrayRef<unsigned> values,
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

Graph alpa::translate(const Problem &problem, const Moments *moments) {
  Graph graph;
  if (moments)
    graph.baseBytes.assign(moments->times.size(), 0);
  auto clipInput = [&](int64_t cost) {
    if (cost < kInfinity)
      return cost;
    graph.clipped |= cost < kForbiddenCost;
    return kInfinity;
  };
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
      variable.costs.push_back(clipInput(cost));
    if (!moments || moments->ofNode[i].empty())
      continue;
    Use &use = variable.uses.emplace_back();
    use.life.assign(moments->ofNode[i].begin(), moments->ofNode[i].end());
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
        bool allowed = sum < kInfinity && cost < kInfinity;
        sum = clip(sum + clipInput(cost));
        graph.clipped |= allowed && sum >= kInfinity;
      }
  }
  return graph;
}

Graph alpa::buildGraph(const Problem &problem, const Moments *moments) {
  Graph graph = translate(problem, moments);
  if (moments)
    collapseGraph(graph);
  else
    reduceGraph(graph);
  return graph;
}
