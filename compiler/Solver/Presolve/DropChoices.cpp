//===- DropChoices.cpp - choices that no best solution needs --------------===//

#include "compiler/Solver/Model/Graph.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <deque>

using namespace alpa;
using namespace alpa::solver;

/// By how much the better choice of a variable can be dearer than the worse one at
/// an edge, negated: the least of worse - better where the worse one is allowed.
#if defined(__x86_64__) && defined(__linux__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static int64_t leastSlack(const int64_t *worse, const int64_t *better, size_t size) {
  int64_t least = kInfinity;
  for (size_t d = 0; d < size; ++d) {
    int64_t slack = worse[d] >= kInfinity ? kInfinity : worse[d] - better[d];
    least = std::min(least, slack);
  }
  return least;
}

namespace {

class Reducer {
public:
  explicit Reducer(Graph &graph)
      : graph(graph), left(graph.variables.size()), edgesOf(graph.variables.size()),
        queued(graph.variables.size(), false) {
    for (unsigned e = 0; e < graph.edges.size(); ++e) {
      edgesOf[graph.edges[e].a].push_back(e);
      edgesOf[graph.edges[e].b].push_back(e);
    }
  }

  void run(Stop stop) {
    for (unsigned i = 0; i < graph.variables.size(); ++i) {
      for (unsigned c = 0; c < graph.variables[i].numChoices(); ++c)
        if (graph.variables[i].costs[c] < kInfinity)
          left[i].push_back(c);
      push(i);
    }
    // Fewer choices of one variable may make choices of its neighbours useless.
    // First come, first served, so that a variable waits for all of them.
    while (!queue.empty() && !graph.impossibleNode && !stops(stop)) {
      unsigned i = queue.front();
      queue.pop_front();
      queued[i] = false;
      reduce(i);
    }
    for (unsigned i = 0; i < left.size() && !graph.impossibleNode; ++i)
      if (left[i].empty())
        graph.impossibleNode = graph.variables[i].members.front().node;
    if (!graph.impossibleNode)
      compact();
  }

private:
  /// What a choice of the variable at hand costs beside those that are left of its
  /// neighbours, edge by edge.
  struct Row {
    unsigned choice;
    int64_t least = 0; // Of its own cost and the least of each edge.
    const int64_t *costs = nullptr;
    const unsigned *cheapest = nullptr; // For each edge where its least is.
  };

  void push(unsigned i) {
    if (!queued[i]) {
      queued[i] = true;
      queue.push_back(i);
    }
  }

  /// Drops choices without an allowed partner, then dominated ones.
  void reduce(unsigned i) {
    std::vector<Row> rows = gather(i);
    size_t before = left[i].size();
    if (rows.empty()) {
      graph.impossibleNode = graph.variables[i].members.front().node;
      return;
    }
    dropDominated(i, rows);
    if (rows.size() == before)
      return;
    left[i].clear();
    for (const Row &row : rows)
      left[i].push_back(row.choice);
    llvm::sort(left[i]);
    for (unsigned e : edgesOf[i])
      push(other(e, i));
    push(i);
  }

  unsigned other(unsigned e, unsigned i) const {
    return graph.edges[e].a == i ? graph.edges[e].b : graph.edges[e].a;
  }

  /// The choices that have an allowed partner at each edge; `ends` and the memory
  /// behind the rows are overwritten by the next call.
  std::vector<Row> gather(unsigned i) {
    const std::vector<unsigned> &mine = left[i];
    size_t numEdges = edgesOf[i].size(), width = 0;
    ends.clear();
    for (unsigned e : edgesOf[i])
      ends.push_back(width += left[other(e, i)].size());
    costs.resize(mine.size() * width);
    cheapest.resize(mine.size() * numEdges);
    size_t begin = 0;
    for (size_t at = 0; at < numEdges; ++at) {
      const GraphEdge &edge = graph.edges[edgesOf[i][at]];
      const std::vector<unsigned> &theirs = left[other(edgesOf[i][at], i)];
      size_t columns = graph.variables[edge.b].numChoices();
      size_t stepMine = edge.a == i ? columns : 1, stepTheirs = edge.a == i ? 1 : columns;
      for (size_t k = 0; k < mine.size(); ++k) {
        const int64_t *from = edge.costs.data() + mine[k] * stepMine;
        int64_t *to = costs.data() + k * width + begin;
        for (size_t d = 0; d < theirs.size(); ++d)
          to[d] = from[theirs[d] * stepTheirs];
      }
      begin = ends[at];
    }
    std::vector<Row> rows;
    rows.reserve(mine.size());
    for (size_t k = 0; k < mine.size(); ++k) {
      Row row{mine[k], graph.variables[i].costs[mine[k]], costs.data() + k * width,
              cheapest.data() + k * numEdges};
      bool isSupported = true;
      begin = 0;
      for (size_t at = 0; at < numEdges && isSupported; ++at) {
        isSupported = begin < ends[at]; // A neighbour may have nothing left.
        if (!isSupported)
          break;
        const int64_t *best = std::min_element(row.costs + begin, row.costs + ends[at]);
        cheapest[k * numEdges + at] = best - row.costs;
        isSupported = *best < kInfinity;
        row.least = clip(row.least + *best);
        begin = ends[at];
      }
      if (isSupported)
        rows.push_back(row);
    }
    return rows;
  }

  /// Whether taking `better` for `worse` never costs more, whatever the neighbours
  /// take, and never uses more.
  bool dominates(const Variable &variable, const Row &better, const Row &worse) const {
    for (const Use &use : variable.uses)
      if (use.bytes[better.choice] > use.bytes[worse.choice])
        return false;
    int64_t slack = variable.costs[worse.choice] - variable.costs[better.choice];
    // One column of each edge says no for most pairs.
    CostSum most = slack;
    for (size_t at = 0; at < ends.size(); ++at)
      most += worse.costs[worse.cheapest[at]] - better.costs[worse.cheapest[at]];
    if (most < 0)
      return false;
    size_t begin = 0;
    for (size_t end : ends) {
      int64_t least = leastSlack(worse.costs + begin, better.costs + begin, end - begin);
      slack = std::min(slack + least, kInfinity);
      if (slack <= -kInfinity)
        return false;
      begin = end;
    }
    return slack >= 0;
  }

  void dropDominated(unsigned i, std::vector<Row> &rows) const {
    // Only the choices that look cheapest are tried as the better one.
    constexpr unsigned kCandidates = 6;
    llvm::sort(rows, [](const Row &a, const Row &b) {
      return std::make_pair(a.least, a.choice) < std::make_pair(b.least, b.choice);
    });
    // From the dearest one on; those before it are all still there.
    for (size_t worse = rows.size(); worse-- > 1;)
      for (size_t better = 0; better < std::min<size_t>(worse, kCandidates); ++better)
        if (dominates(graph.variables[i], rows[better], rows[worse])) {
          rows.erase(rows.begin() + worse);
          break;
        }
  }

  /// Renumbers choices, folds in fixed variables and separable edges.
  void compact() {
    std::vector<Variable> &variables = graph.variables;
    std::vector<unsigned> sizes;
    for (unsigned i = 0; i < left.size(); ++i) {
      sizes.push_back(variables[i].numChoices());
      variables[i].keep(left[i]);
    }
    std::vector<GraphEdge> edges;
    for (GraphEdge &edge : graph.edges) {
      GraphEdge small{edge.a, edge.b, {}};
      small.costs.reserve(left[edge.a].size() * left[edge.b].size());
      for (unsigned c : left[edge.a])
        for (unsigned d : left[edge.b])
          small.costs.push_back(edge.costs[size_t(c) * sizes[edge.b] + d]);
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
        for (TimeRange range : use.life)
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
  std::vector<std::vector<unsigned>> left; // Choices of each variable, rising.
  std::vector<std::vector<unsigned>> edgesOf;
  std::deque<unsigned> queue;
  std::vector<char> queued;
  // Of the variable at hand.
  std::vector<size_t> ends; // Of each edge's part of a row.
  std::vector<int64_t> costs;
  std::vector<unsigned> cheapest;
};

} // namespace

void solver::reduceGraph(Graph &graph, Stop stop) { Reducer(graph).run(stop); }
