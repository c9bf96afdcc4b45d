//===- Dual.cpp - bounds by moving costs between variables ----------------===//

#include "compiler/Solver/Dual.h"

#include "compiler/Solver/Memory.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>

using namespace alpa;

namespace {

constexpr unsigned kMaxSweeps = 2000;
constexpr unsigned kSweepsPerRound = 8; // Between attempts at a solution.
constexpr unsigned kPatience = 6;       // Rounds without a gain that counts.

class DualAscent {
public:
  DualAscent(const Graph &original, const std::function<bool()> &stop)
      : original(original), stop(stop), graph(original), links(original.variables.size()) {
    result.kept.resize(graph.variables.size());
    for (unsigned v = 0; v < graph.variables.size(); ++v) {
      result.kept[v].resize(graph.variables[v].costs.size());
      std::iota(result.kept[v].begin(), result.kept[v].end(), 0);
    }
    for (unsigned e = 0; e < graph.edges.size(); ++e) {
      links[graph.edges[e].a].push_back(e);
      links[graph.edges[e].b].push_back(e);
    }
  }

  Tightened run() {
    unsigned stale = 0;
    for (unsigned sweep = 0; sweep < kMaxSweeps && !hopeless && !stop(); sweep += kSweepsPerRound) {
      CostSum before = graph.constant;
      size_t choicesBefore = numChoices();
      for (unsigned i = 0; i < kSweepsPerRound && !stop(); ++i)
        for (bool forward : {true, false})
          for (unsigned v = 0; v < graph.variables.size(); ++v)
            visit(forward ? v : graph.variables.size() - 1 - v, forward);
      tryRounding();
      if (result.best) {
        if (graph.constant >= result.upper)
          break;
        dropCostly();
      }
      bool gained =
          double(graph.constant - before) > 1e-3 * double(result.upper - graph.constant) ||
          numChoices() < choicesBefore;
      stale = gained ? 0 : stale + 1;
      if (stale >= kPatience || (result.best && numChoices() == graph.variables.size()))
        break;
    }
    foldDecided();
    result.graph = std::move(graph);
    return std::move(result);
  }

private:
  size_t numChoices() const {
    size_t sum = 0;
    for (const Variable &variable : graph.variables)
      sum += variable.costs.size();
    return sum;
  }

  size_t columns(const GraphEdge &edge) const { return graph.variables[edge.b].costs.size(); }

  /// Calls `body(own choice, other's choice, cost)` for every pair of an edge.
  template <typename Body> void forEachPair(GraphEdge &edge, bool own, Body body) {
    size_t width = columns(edge), rows = graph.variables[edge.a].costs.size();
    int64_t *cost = edge.costs.data();
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < width; ++j, ++cost)
        own ? body(i, j, *cost) : body(j, i, *cost);
  }

  /// Takes from the edges all that a choice must pay on them, puts what every
  /// choice pays into the constant, and hands shares on in the sweep's direction.
  void visit(unsigned v, bool forward) {
    std::vector<int64_t> &costs = graph.variables[v].costs;
    unsigned later = 0, earlier = 0;
    for (unsigned e : links[v]) {
      GraphEdge &edge = graph.edges[e];
      bool own = edge.a == v;
      unsigned other = own ? edge.b : edge.a;
      ++(other > v ? later : earlier);
      least.assign(costs.size(), kInfinity);
      forEachPair(edge, own,
                  [&](size_t i, size_t, int64_t &cost) { least[i] = std::min(least[i], cost); });
      forEachPair(edge, own, [&](size_t i, size_t, int64_t &cost) {
        if (cost < kInfinity)
          cost -= least[i];
      });
      for (size_t i = 0; i < costs.size(); ++i)
        costs[i] = clip(costs[i] + least[i]);
    }
    int64_t floor = *llvm::min_element(costs);
    if (floor >= kInfinity) {
      hopeless = true; // The search that follows proves it and says so.
      return;
    }
    graph.constant += floor;
    for (int64_t &cost : costs)
      if (cost < kInfinity)
        cost -= floor;
    int64_t parts = std::max({later, earlier, 1u});
    for (unsigned e : links[v]) {
      GraphEdge &edge = graph.edges[e];
      bool own = edge.a == v;
      if (((own ? edge.b : edge.a) > v) != forward)
        continue;
      forEachPair(edge, own, [&](size_t i, size_t, int64_t &cost) {
        if (cost < kInfinity && costs[i] < kInfinity)
          cost = clip(cost + costs[i] / parts);
      });
    }
    unsigned receivers = forward ? later : earlier;
    for (int64_t &cost : costs)
      if (cost < kInfinity)
        cost -= cost / parts * receivers;
  }

  /// Takes the cheapest choice of each variable beside those taken before.
  void tryRounding() {
    std::vector<unsigned> values(graph.variables.size(), 0);
    for (unsigned v = 0; v < values.size(); ++v) {
      std::vector<int64_t> sums = graph.variables[v].costs;
      for (unsigned e : links[v]) {
        GraphEdge &edge = graph.edges[e];
        bool own = edge.a == v;
        unsigned other = own ? edge.b : edge.a;
        least.assign(sums.size(), kInfinity);
        forEachPair(edge, own, [&](size_t i, size_t j, int64_t &cost) {
          if (other > v || j == values[other])
            least[i] = std::min(least[i], cost);
        });
        for (size_t i = 0; i < sums.size(); ++i)
          sums[i] = clip(sums[i] + least[i]);
      }
      values[v] = llvm::min_element(sums) - sums.begin();
    }
    for (unsigned v = 0; v < values.size(); ++v)
      values[v] = result.kept[v][values[v]];
    Usage none(original, Moments(), 0);
    LocalSearch local(original, none);
    if (!isAllowed(values))
      return;
    local.polish(values, stop);
    CostSum objective = local.objective(values);
    if (!result.best || objective < result.upper) {
      result.best = values;
      result.upper = objective;
    }
  }

  bool isAllowed(llvm::ArrayRef<unsigned> values) const {
    for (unsigned v = 0; v < values.size(); ++v)
      if (original.variables[v].costs[values[v]] >= kInfinity)
        return false;
    return llvm::none_of(original.edges, [&](const GraphEdge &edge) {
      size_t width = original.variables[edge.b].costs.size();
      return edge.costs[values[edge.a] * width + values[edge.b]] >= kInfinity;
    });
  }

  /// No solution that is as good as the best one has a choice dropped here.
  void dropCostly() {
    CostSum slack = result.upper - graph.constant;
    std::vector<std::vector<unsigned>> stay(graph.variables.size());
    for (unsigned v = 0; v < stay.size(); ++v)
      for (unsigned i = 0; i < graph.variables[v].costs.size(); ++i)
        if (graph.variables[v].costs[i] < kInfinity && graph.variables[v].costs[i] <= slack)
          stay[v].push_back(i);
    restrictTo(stay);
  }

  void restrictTo(llvm::ArrayRef<std::vector<unsigned>> stay) {
    auto changed = [&](unsigned v) { return stay[v].size() != graph.variables[v].costs.size(); };
    for (GraphEdge &edge : graph.edges) {
      if (!changed(edge.a) && !changed(edge.b))
        continue;
      std::vector<int64_t> costs;
      costs.reserve(stay[edge.a].size() * stay[edge.b].size());
      size_t width = columns(edge);
      for (unsigned i : stay[edge.a])
        for (unsigned j : stay[edge.b])
          costs.push_back(edge.costs[i * width + j]);
      edge.costs = std::move(costs);
    }
    auto pick = [](auto &list, llvm::ArrayRef<unsigned> indices) {
      if (list.empty())
        return;
      for (auto [to, from] : llvm::enumerate(indices))
        list[to] = list[from];
      list.resize(indices.size());
    };
    for (unsigned v = 0; v < stay.size(); ++v) {
      if (!changed(v))
        continue;
      pick(graph.variables[v].choices, stay[v]);
      pick(graph.variables[v].costs, stay[v]);
      pick(graph.variables[v].usages, stay[v]);
      pick(result.kept[v], stay[v]);
    }
  }

  /// An edge of a variable with one choice left is a cost of the other alone.
  void foldDecided() {
    llvm::erase_if(graph.edges, [&](GraphEdge &edge) {
      bool aDecided = graph.variables[edge.a].costs.size() == 1;
      if (!aDecided && graph.variables[edge.b].costs.size() != 1)
        return false;
      std::vector<int64_t> &costs = graph.variables[aDecided ? edge.b : edge.a].costs;
      for (size_t i = 0; i < costs.size(); ++i)
        costs[i] = clip(costs[i] + edge.costs[i]);
      return true;
    });
  }

  const Graph &original;
  const std::function<bool()> &stop;
  Graph graph;
  std::vector<llvm::SmallVector<unsigned, 8>> links; // Edges of each variable.
  std::vector<int64_t> least;
  bool hopeless = false;
  Tightened result;
};

} // namespace

Tightened alpa::tighten(const Graph &graph, const std::function<bool()> &stop) {
  return DualAscent(graph, stop).run();
}
