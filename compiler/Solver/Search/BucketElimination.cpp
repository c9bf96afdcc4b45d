//===- BucketElimination.cpp - elimination of variables one by one --------===//

#include "compiler/Solver/Search/BucketElimination.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <queue>

using namespace alpa;
using namespace alpa::solver;

BucketElimination::BucketElimination(const Graph &graph, double mostWork, Stop stop)
    : graph(graph) {
  order(mostWork, stop);
}

void BucketElimination::plan(double maxWork, double maxEntries) {
  constexpr double kLeastTable = 1 << 10;
  double maxTable = std::max(kLeastTable, std::min(largestTable, maxWork));
  for (;; maxTable /= 4) {
    planTables(maxTable);
    if (maxTable <= kLeastTable || (totalWork <= maxWork && totalEntries <= maxEntries))
      break;
  }
  for (unsigned e = 0; e < graph.edges.size(); ++e) {
    const GraphEdge &edge = graph.edges[e];
    BucketTable &factor = factors[e];
    if (factor.scope.front() == edge.a) {
      factor.table = edge.costs;
      continue;
    }
    size_t sizeA = graph.variables[edge.a].numChoices();
    size_t sizeB = graph.variables[edge.b].numChoices();
    factor.table.resize(factor.size);
    for (size_t i = 0; i < sizeA; ++i)
      for (size_t j = 0; j < sizeB; ++j)
        factor.table[j * sizeA + i] = edge.costs[i * sizeB + j];
  }
}

/// Cheapest elimination first; among equals the one that adds fewest edges is
/// found by the size of its table, which counts the neighbours.
void BucketElimination::order(double mostWork, Stop stop) {
  unsigned count = graph.variables.size();
  std::vector<std::vector<unsigned>> neighbours(count); // Sorted.
  for (const GraphEdge &edge : graph.edges) {
    neighbours[edge.a].push_back(edge.b);
    neighbours[edge.b].push_back(edge.a);
  }
  auto size = [&](unsigned v) { return double(graph.variables[v].numChoices()); };
  auto weigh = [&](unsigned v) {
    double table = size(v);
    for (unsigned n : neighbours[v])
      table *= size(n);
    return table;
  };
  using Entry = std::pair<double, unsigned>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue;
  std::vector<double> weight(count);
  for (unsigned v = 0; v < count; ++v) {
    llvm::sort(neighbours[v]);
    queue.emplace(weight[v] = weigh(v), v);
  }
  position.assign(count, 0);
  std::vector<char> gone(count, false);
  std::vector<unsigned> merged;
  for (unsigned at = 0; at < count;) {
    double table = queue.top().first;
    unsigned v = queue.top().second;
    queue.pop();
    if (gone[v] || table != weight[v])
      continue;
    gone[v] = true;
    position[v] = at++;
    assignment.push_back(v);
    orderWork += table;
    if (orderWork > mostWork || stops(stop)) {
      orderWork = kNoBound;
      return;
    }
    largestTable = std::max(largestTable, table);
    simple += neighbours[v].size() <= 2;
    for (unsigned n : neighbours[v]) {
      merged.clear();
      std::set_union(neighbours[n].begin(), neighbours[n].end(), neighbours[v].begin(),
                     neighbours[v].end(), std::back_inserter(merged));
      llvm::erase_if(merged, [&](unsigned m) { return m == n || m == v; });
      neighbours[n] = merged;
    }
    for (unsigned n : neighbours[v])
      queue.emplace(weight[n] = weigh(n), n);
    neighbours[v].clear();
  }
  std::reverse(assignment.begin(), assignment.end());
}

void BucketElimination::planTables(double maxTable) {
  unsigned count = graph.variables.size();
  factors.clear();
  buckets.assign(count, {});
  exact = true;
  totalWork = totalEntries = 0;
  std::vector<std::vector<unsigned>> waiting(count); // Factors by first eliminated variable.
  auto size = [&](unsigned v) { return graph.variables[v].numChoices(); };
  auto addFactor = [&](llvm::SmallVector<unsigned, 4> scope) {
    llvm::sort(scope, [&](unsigned x, unsigned y) { return position[x] > position[y]; });
    BucketTable &factor = factors.emplace_back();
    factor.strides.resize(scope.size());
    factor.size = 1;
    for (size_t i = scope.size(); i-- > 0; factor.size *= size(scope[i]))
      factor.strides[i] = factor.size;
    totalEntries += double(factor.size);
    waiting[scope.back()].push_back(factors.size() - 1);
    factor.scope = std::move(scope);
    return factors.size() - 1;
  };
  for (const GraphEdge &edge : graph.edges)
    addFactor({edge.a, edge.b});
  for (unsigned v : llvm::reverse(assignment)) {
    std::vector<unsigned> inputs = waiting[v];
    llvm::sort(inputs, [&](unsigned x, unsigned y) {
      return std::make_pair(factors[y].scope.size(), x) <
             std::make_pair(factors[x].scope.size(), y);
    });
    std::vector<llvm::SmallVector<unsigned, 4>> scopes;
    auto tableSize = [&](llvm::ArrayRef<unsigned> scope) {
      double table = 1;
      for (unsigned s : scope)
        table *= size(s);
      return table;
    };
    for (unsigned input : inputs) {
      unsigned at = 0;
      for (; at < scopes.size(); ++at) {
        llvm::SmallVector<unsigned, 4> joined = scopes[at];
        for (unsigned s : factors[input].scope)
          if (!llvm::is_contained(joined, s))
            joined.push_back(s);
        if (joined.size() == scopes[at].size() || tableSize(joined) <= maxTable) {
          scopes[at] = std::move(joined);
          break;
        }
      }
      if (at == scopes.size()) {
        scopes.push_back(factors[input].scope);
        buckets[v].emplace_back();
      }
      buckets[v][at].inputs.push_back(input);
    }
    exact &= scopes.size() <= 1;
    if (scopes.empty()) {
      buckets[v].emplace_back();
      scopes.push_back({v});
    }
    for (size_t at = 0; at < scopes.size(); ++at) {
      totalWork += tableSize(scopes[at]);
      llvm::erase(scopes[at], v);
      if (!scopes[at].empty())
        buckets[v][at].output = addFactor(scopes[at]);
    }
  }
}

CostSum BucketElimination::eliminate(llvm::ArrayRef<std::vector<int64_t>> prices, Stop stop) {
  costs.resize(graph.variables.size());
  for (unsigned v = 0; v < costs.size(); ++v) {
    costs[v] = graph.variables[v].costs;
    if (!prices.empty() && !prices[v].empty())
      for (size_t c = 0; c < costs[v].size(); ++c)
        costs[v][c] = clip(costs[v][c] + clip(prices[v][c]));
  }
  CostSum total = 0;
  std::vector<int64_t> none;
  for (unsigned v : llvm::reverse(assignment)) {
    bool first = true;
    for (MiniBucket &bucket : buckets[v]) {
      none.assign(costs[v].size(), 0);
      if (stops(stop))
        return 0;
      total += eliminate(v, bucket, first ? costs[v] : none, stop);
      first = false;
    }
  }
  return total;
}

/// The inner loop of everything; 64-bit minima need more than the base x86-64.
#if defined(__x86_64__) && defined(__linux__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static int64_t leastSum(const int64_t *a, const int64_t *b, size_t size) {
  int64_t least = 2 * kInfinity;
  for (size_t c = 0; c < size; ++c)
    least = std::min(least, a[c] + b[c]);
  return least;
}

CostSum BucketElimination::eliminate(unsigned variable, MiniBucket &bucket,
                                     llvm::ArrayRef<int64_t> own, Stop stop) {
  size_t size = own.size();
  if (bucket.output < 0) {
    std::vector<int64_t> sum(own.begin(), own.end());
    for (unsigned input : bucket.inputs)
      for (size_t c = 0; c < size; ++c)
        sum[c] = clip(sum[c] + factors[input].table[c]);
    bucket.constant = *std::min_element(sum.begin(), sum.end());
    return bucket.constant;
  }
  BucketTable &output = factors[bucket.output];
  output.table.resize(output.size);
  size_t rank = output.scope.size(), numInputs = bucket.inputs.size();
  // What one step of an output dimension means for the place in each input.
  std::vector<size_t> steps(numInputs * rank), at(numInputs, 0);
  // An input changes when a dimension in its scope does; those that change least
  // are added up once for the inner dimension.
  std::vector<unsigned> inner, outer;
  for (size_t i = 0; i < numInputs; ++i) {
    const BucketTable &input = factors[bucket.inputs[i]];
    for (size_t d = 0; d < rank; ++d)
      for (size_t s = 0; s < input.scope.size(); ++s)
        if (input.scope[s] == output.scope[d])
          steps[i * rank + d] = input.strides[s];
    (steps[i * rank + rank - 1] ? inner : outer).push_back(i);
  }
  auto extent = [&](size_t d) { return graph.variables[output.scope[d]].numChoices(); };
  size_t last = extent(rank - 1), rows = output.table.size() / last;
  std::vector<unsigned> index(rank, 0);
  std::vector<int64_t> base(size), sum(size);
  constexpr size_t kRows = 0x3ff; // Between looks at the clock.
  for (size_t row = 0; row < rows; ++row) {
    if ((row & kRows) == kRows && stops(stop))
      return 0;
    std::copy(own.begin(), own.end(), base.begin());
    for (unsigned i : outer) {
      const int64_t *table = factors[bucket.inputs[i]].table.data() + at[i];
      for (size_t c = 0; c < size; ++c)
        base[c] = clip(base[c] + table[c]);
    }
    int64_t *out = output.table.data() + row * last;
    for (size_t o = 0; o < last; ++o) {
      const int64_t *from = base.data();
      for (size_t k = 0; k + 1 < inner.size(); ++k) {
        unsigned i = inner[k];
        const int64_t *table =
            factors[bucket.inputs[i]].table.data() + at[i] + o * steps[i * rank + rank - 1];
        for (size_t c = 0; c < size; ++c)
          sum[c] = clip(from[c] + table[c]);
        from = sum.data();
      }
      unsigned i = inner.back();
      out[o] = clip(leastSum(
          from, factors[bucket.inputs[i]].table.data() + at[i] + o * steps[i * rank + rank - 1],
          size));
    }
    for (size_t d = rank - 1; d-- > 0;) {
      ++index[d];
      for (size_t i = 0; i < numInputs; ++i)
        at[i] += steps[i * rank + d];
      if (index[d] < extent(d))
        break;
      for (size_t i = 0; i < numInputs; ++i)
        at[i] -= steps[i * rank + d] * index[d];
      index[d] = 0;
    }
  }
  return 0;
}

void BucketElimination::regrets(unsigned variable, llvm::ArrayRef<unsigned> values,
                                std::vector<int64_t> &result) const {
  result.assign(costs[variable].begin(), costs[variable].end());
  int64_t before = 0;
  for (const MiniBucket &bucket : buckets[variable]) {
    for (unsigned input : bucket.inputs) {
      const BucketTable &factor = factors[input];
      const int64_t *table = factor.table.data() + factor.offset(values, 1);
      for (size_t c = 0; c < result.size(); ++c)
        result[c] = clip(result[c] + table[c]);
    }
    before += bucket.output < 0
                  ? bucket.constant
                  : factors[bucket.output].table[factors[bucket.output].offset(values, 0)];
  }
  for (int64_t &regret : result)
    regret = regret >= kInfinity ? kInfinity : std::max<int64_t>(0, regret - before);
}

double BucketElimination::regretWork(unsigned variable) const {
  size_t inputs = 1;
  for (const MiniBucket &bucket : buckets[variable])
    inputs += bucket.inputs.size();
  return double(inputs * graph.variables[variable].numChoices());
}

std::vector<unsigned> BucketElimination::decode() const {
  std::vector<unsigned> values(graph.variables.size(), 0);
  std::vector<int64_t> rise;
  for (unsigned v : assignment) {
    regrets(v, values, rise);
    values[v] = std::min_element(rise.begin(), rise.end()) - rise.begin();
  }
  return values;
}
