//===- CostShifting.cpp - lower bounds by shifting costs ------------------===//

#include "compiler/Solver/Search/CostShifting.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>

using namespace alpa;
using namespace alpa::solver;

/// Keeps sums of shifts far from overflow; a smaller shift is valid too.
static constexpr int64_t kMostShift = int64_t(1) << 52;
/// Cost of a removed choice, and what it makes its edges cost.
static constexpr int64_t kRemoved = int64_t(1) << 57;
/// Tables are cut into strips of this many columns, so that the least of each
/// column stays in registers.
static constexpr size_t kStrip = 8;

static size_t padded(size_t size) { return (size + kStrip - 1) / kStrip * kStrip; }

CostShifting::CostShifting(const Graph &graph) : graph(graph), links(graph.variables.size()) {
  first.push_back(0);
  for (const Variable &variable : graph.variables) {
    theta.insert(theta.end(), variable.costs.begin(), variable.costs.end());
    first.push_back(theta.size());
    least.push_back(*llvm::min_element(variable.costs));
    total += least.back();
  }
  prices.resize(theta.size(), 0);
  removed.resize(theta.size(), false);
  size_t numShifts = 0, entries = 0, widest = 0;
  for (const GraphEdge &edge : graph.edges) {
    size_t a = size(edge.a), b = size(edge.b);
    numShifts += a + b;
    workOfSweep += 4.0 * double(a * b);
    entries += a * padded(b) + b * padded(a);
    widest = std::max({widest, padded(a), padded(b)});
  }
  shifts.resize(numShifts, 0);
  tables.resize(entries, kInfinity);
  scratch.resize(widest);
  workOfSweep += double(theta.size());
  size_t shift = 0, table = 0;
  for (unsigned e = 0; e < graph.edges.size(); ++e) {
    const GraphEdge &edge = graph.edges[e];
    size_t a = size(edge.a), b = size(edge.b);
    shiftsA.push_back(shift);
    shiftsB.push_back(shift + a);
    size_t byA = table, byB = table + b * padded(a); // Columns are the choices of a, of b.
    links[edge.a].push_back({edge.b, e, true, shift, shift + a, byA});
    links[edge.b].push_back({edge.a, e, false, shift + a, shift, byB});
    for (size_t i = 0; i < a; ++i)
      for (size_t j = 0; j < b; ++j) {
        int64_t cost = edge.costs[i * b + j];
        tables[byA + i / kStrip * kStrip * b + j * kStrip + i % kStrip] = cost;
        tables[byB + j / kStrip * kStrip * a + i * kStrip + j % kStrip] = cost;
      }
    shift += a + b;
    table = byB + a * padded(b);
  }
}

void CostShifting::setPrices(unsigned variable, llvm::ArrayRef<int64_t> values) {
  int64_t *cost = theta.data() + first[variable], *old = prices.data() + first[variable];
  int64_t lowest = std::numeric_limits<int64_t>::max();
  for (size_t c = 0; c < values.size(); ++c) {
    if (!removed[first[variable] + c])
      cost[c] += values[c] - old[c];
    old[c] = values[c];
    lowest = std::min(lowest, cost[c]);
  }
  total += lowest - least[variable];
  least[variable] = lowest;
}

/// The least of every column of a table cut into strips, less a number for every
/// row. 64-bit minima need more than the base x86-64.
#if defined(__x86_64__) && defined(__linux__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void columnMinima(const int64_t *table, const int64_t *rows, size_t numRows, size_t width,
                         int64_t *result) {
  for (size_t strip = 0; strip < width; strip += kStrip) {
    int64_t lowest[kStrip];
    for (size_t k = 0; k < kStrip; ++k)
      lowest[k] = 2 * kInfinity;
    for (size_t i = 0; i < numRows; ++i, table += kStrip)
      for (size_t k = 0; k < kStrip; ++k) {
        int64_t value = table[k] - rows[i];
        lowest[k] = value < lowest[k] ? value : lowest[k];
      }
    for (size_t k = 0; k < kStrip; ++k)
      result[strip + k] = lowest[k];
  }
}

/// Shifts to the variable all that the edge is sure to cost with each choice.
void CostShifting::pull(unsigned variable, const Link &link) {
  size_t count = size(variable);
  columnMinima(tables.data() + link.columns, shifts.data() + link.theirs, size(link.other),
               padded(count), scratch.data());
  int64_t *cost = theta.data() + first[variable], *own = shifts.data() + link.own;
  const char *gone = removed.data() + first[variable];
  for (size_t c = 0; c < count; ++c) {
    if (gone[c])
      continue;
    int64_t shift = std::min(scratch[c] - own[c], kMostShift);
    if (shift > 0 && cost[c] > kRemoved / 2)
      continue;
    own[c] += shift;
    cost[c] += shift;
  }
}

void CostShifting::remove(unsigned variable, unsigned choice) {
  removed[first[variable] + choice] = true;
  theta[first[variable] + choice] = kRemoved;
  for (const Link &link : links[variable])
    shifts[link.own + choice] = -kRemoved;
  ++removedChoices;
}

bool CostShifting::visit(unsigned variable, bool forward, CostSum upper) {
  int64_t ahead = 0, behind = 0;
  // Edges ahead hold nothing new: this variable was the last to change them.
  for (const Link &link : links[variable]) {
    if ((link.other > variable) == forward) {
      ++ahead;
      continue;
    }
    ++behind;
    pull(variable, link);
  }
  size_t count = size(variable);
  int64_t *cost = theta.data() + first[variable];
  const char *gone = removed.data() + first[variable];
  int64_t lowest = *std::min_element(cost, cost + count);
  total += lowest - least[variable];
  least[variable] = lowest;
  // Costs from here on are too much.
  int64_t most = static_cast<int64_t>(
      std::min<CostSum>(std::max<CostSum>(upper - total, -1), kRemoved) + lowest);
  bool any = false;
  for (unsigned c = 0; c < count; ++c) {
    if (gone[c])
      continue;
    if (cost[c] >= most)
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
  for (unsigned c = 0; c < count; ++c)
    scratch[c] = gone[c] ? 0 : std::min((cost[c] - lowest) / shares, kMostShift);
  for (const Link &link : links[variable]) {
    if ((link.other > variable) != forward)
      continue;
    int64_t *own = shifts.data() + link.own;
    for (unsigned c = 0; c < count; ++c)
      own[c] -= scratch[c];
  }
  for (unsigned c = 0; c < count; ++c)
    cost[c] -= scratch[c] * ahead;
  return true;
}

bool CostShifting::sweep(CostSum upper, Stop stop) {
  unsigned count = graph.variables.size();
  for (unsigned v = 0; v < count && !stops(stop); ++v)
    if (!visit(v, /*forward=*/true, upper))
      return false;
  for (unsigned v = count; v-- > 0 && !stops(stop);)
    if (!visit(v, /*forward=*/false, upper))
      return false;
  return true;
}

int64_t CostShifting::left(unsigned edge, unsigned choiceA, unsigned choiceB) const {
  int64_t cost = graph.edges[edge].costs[size_t(choiceA) * size(graph.edges[edge].b) + choiceB];
  return cost - shifts[shiftsA[edge] + choiceA] - shifts[shiftsB[edge] + choiceB];
}

std::vector<unsigned> CostShifting::decode() const {
  // The last sweep went back, so a variable knows all that comes after it.
  std::vector<unsigned> values(graph.variables.size(), 0);
  std::vector<int64_t> cost;
  for (unsigned v = 0; v < values.size(); ++v) {
    cost.assign(theta.begin() + first[v], theta.begin() + first[v + 1]);
    for (const Link &link : links[v]) {
      if (link.other > v)
        continue;
      unsigned taken = values[link.other];
      for (unsigned c = 0; c < cost.size(); ++c) {
        int64_t shifted = link.isA ? left(link.edge, c, taken) : left(link.edge, taken, c);
        cost[c] = std::min(cost[c] + std::min(shifted, kRemoved), 4 * kRemoved);
      }
    }
    for (size_t c = 0; c < cost.size(); ++c)
      if (removed[first[v] + c])
        cost[c] = 8 * kRemoved;
    values[v] = llvm::min_element(cost) - cost.begin();
  }
  return values;
}

Graph CostShifting::shifted() const {
  return leftOver(/*upper=*/std::nullopt, /*followed=*/nullptr);
}

Graph CostShifting::restricted(CostSum upper, std::vector<unsigned> *followed) const {
  return leftOver(upper, followed);
}

Graph CostShifting::leftOver(std::optional<CostSum> upper, std::vector<unsigned> *followed) const {
  Graph result;
  result.constant = graph.constant;
  result.fixed = graph.fixed;
  result.eliminated = graph.eliminated;
  result.baseBytes = graph.baseBytes;
  result.variables = graph.variables;
  std::vector<std::vector<unsigned>> kept(graph.variables.size());
  for (unsigned v = 0; v < kept.size(); ++v) {
    for (unsigned c = 0; c < size(v); ++c)
      if (!removed[first[v] + c])
        kept[v].push_back(c);
    if (followed) {
      auto at = llvm::find(kept[v], (*followed)[v]);
      (*followed)[v] = at == kept[v].end() ? 0 : at - kept[v].begin();
    }
    result.variables[v].keep(kept[v]);
    for (size_t c = 0; c < kept[v].size(); ++c) {
      size_t at = first[v] + kept[v][c];
      result.variables[v].costs[c] = upper ? theta[at] - prices[at] : theta[at];
    }
  }
  for (unsigned e = 0; e < graph.edges.size(); ++e) {
    const GraphEdge &from = graph.edges[e];
    GraphEdge &edge = result.edges.emplace_back(GraphEdge{from.a, from.b, {}});
    edge.costs.reserve(kept[from.a].size() * kept[from.b].size());
    CostSum others = total - least[from.a] - least[from.b];
    for (unsigned i : kept[from.a])
      for (unsigned j : kept[from.b]) {
        int64_t cost = left(e, i, j);
        bool forbidden = from.costs[size_t(i) * size(from.b) + j] >= kInfinity;
        if (upper)
          forbidden |=
              others + theta[first[from.a] + i] + theta[first[from.b] + j] + cost >= *upper;
        edge.costs.push_back(forbidden ? kInfinity : clip(cost));
      }
  }
  return result;
}
