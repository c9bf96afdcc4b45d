//===- LocalTables.cpp - minimization over part of a problem --------------===//

#include "compiler/Solver/MemoryLimited/LocalTables.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <queue>

using namespace alpa;
using namespace alpa::solver;

/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators" (2014).
uint64_t Random::next() {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

void EliminationOrder::run(std::vector<llvm::SmallVector<unsigned, 6>> &neighbours,
                           llvm::ArrayRef<unsigned> sizes, double maxTable, Random &random) {
  unsigned count = sizes.size();
  order.clear();
  frozen.assign(count, false);
  auto weigh = [&](unsigned v) {
    double table = sizes[v];
    for (unsigned n : neighbours[v])
      table *= sizes[n];
    return table;
  };
  using Entry = std::pair<double, unsigned>;
  std::vector<Entry> entries;
  std::vector<double> weight(count);
  for (unsigned v = 0; v < count; ++v) {
    llvm::sort(neighbours[v]);
    entries.emplace_back(weight[v] = weigh(v), v);
  }
  std::priority_queue<Entry, std::vector<Entry>, std::greater<Entry>> queue(std::greater<Entry>(),
                                                                            std::move(entries));
  std::vector<char> gone(count, false);
  llvm::SmallVector<unsigned, 16> merged;
  auto drop = [&](unsigned v) {
    gone[v] = true;
    for (unsigned n : neighbours[v])
      neighbours[n].erase(llvm::lower_bound(neighbours[n], v));
  };
  auto reweigh = [&](llvm::ArrayRef<unsigned> changed) {
    for (unsigned n : changed)
      queue.emplace(weight[n] = weigh(n), n);
  };
  while (!queue.empty()) {
    auto [table, v] = queue.top();
    queue.pop();
    if (gone[v] || table != weight[v])
      continue;
    if (table > maxTable) {
      // What stands in the way of most is frozen; not always the same.
      unsigned taken = v;
      double best = -1;
      auto look = [&](unsigned u) {
        double score = double(neighbours[u].size()) * (0.5 + random.unit());
        if (score > best) {
          best = score;
          taken = u;
        }
      };
      look(v);
      for (unsigned n : neighbours[v])
        look(n);
      frozen[taken] = true;
      llvm::SmallVector<unsigned, 16> changed(neighbours[taken].begin(), neighbours[taken].end());
      drop(taken);
      reweigh(changed);
      continue;
    }
    order.push_back(v);
    drop(v);
    for (unsigned n : neighbours[v]) {
      merged.clear();
      std::set_union(neighbours[n].begin(), neighbours[n].end(), neighbours[v].begin(),
                     neighbours[v].end(), std::back_inserter(merged));
      merged.erase(llvm::lower_bound(merged, n));
      neighbours[n].assign(merged.begin(), merged.end());
    }
    reweigh(neighbours[v]);
  }
}

void LocalTables::clear() {
  sizes.clear();
  firsts.assign(1, 0);
  factors.clear();
  tables.clear();
  totalWork = 0;
}

void LocalTables::addVariable(unsigned size) {
  sizes.push_back(size);
  firsts.push_back(firsts.back() + size);
}

unsigned LocalTables::addFactor(llvm::ArrayRef<unsigned> scope) {
  Factor &factor = factors.emplace_back();
  factor.scope.assign(scope.begin(), scope.end());
  factor.strides.resize(scope.size());
  for (size_t i = scope.size(); i-- > 0; factor.size *= sizes[scope[i]])
    factor.strides[i] = factor.size;
  factor.at = tables.size();
  tables.resize(tables.size() + factor.size);
  return factors.size() - 1;
}

double *LocalTables::addPair(unsigned a, unsigned b) {
  unsigned factor = addFactor({a, b}); // Moves the tables.
  return tables.data() + factors[factor].at;
}

void LocalTables::plan() {
  numPairs = factors.size();
  buckets.assign(sizes.size(), {});
  for (unsigned f = 0; f < factors.size(); ++f)
    buckets[factors[f].scope.front()].inputs.push_back(f);
  llvm::SmallVector<unsigned, 8> scope;
  for (unsigned v = 0; v < sizes.size(); ++v) {
    scope.clear();
    for (unsigned input : buckets[v].inputs)
      for (unsigned s : factors[input].scope)
        if (s != v && !llvm::is_contained(scope, s))
          scope.push_back(s);
    double table = sizes[v];
    for (unsigned s : scope)
      table *= sizes[s];
    totalWork += table;
    if (scope.empty())
      continue;
    llvm::sort(scope);
    buckets[v].output = addFactor(scope);
    buckets[scope.front()].inputs.push_back(buckets[v].output);
  }
}

double LocalTables::run(llvm::ArrayRef<double> costs) {
  double total = 0;
  for (unsigned v = 0; v < sizes.size(); ++v)
    total += eliminate(v, costs.data() + firsts[v]);
  return total;
}

double LocalTables::eliminate(unsigned variable, const double *own) {
  Bucket &bucket = buckets[variable];
  unsigned size = sizes[variable];
  if (bucket.output < 0) {
    bucket.constant = *std::min_element(own, own + size);
    return bucket.constant;
  }
  const Factor &output = factors[bucket.output];
  size_t rank = output.scope.size(), last = output.strides.size() ? sizes[output.scope.back()] : 1;
  size_t numInputs = bucket.inputs.size();
  // What one step of an output dimension means for the place in each input.
  llvm::SmallVector<size_t, 24> steps(numInputs * rank, 0);
  llvm::SmallVector<const double *, 6> at;
  llvm::SmallVector<size_t, 6> rows;
  llvm::SmallVector<unsigned, 6> inner, outer;
  for (size_t i = 0; i < numInputs; ++i) {
    const Factor &input = factors[bucket.inputs[i]];
    at.push_back(tables.data() + input.at);
    rows.push_back(input.strides.front());
    for (size_t d = 0; d < rank; ++d)
      for (size_t s = 1; s < input.scope.size(); ++s)
        if (input.scope[s] == output.scope[d])
          steps[i * rank + d] = input.strides[s];
    (steps[i * rank + rank - 1] ? inner : outer).push_back(i);
  }
  scratch.resize(last);
  double *out = tables.data() + output.at, *end = out + output.size;
  llvm::SmallVector<unsigned, 6> index(rank, 0);
  while (out != end) {
    std::fill(out, out + last, 8 * kBlocked);
    for (unsigned c = 0; c < size; ++c) {
      double base = own[c];
      for (unsigned i : outer)
        base += at[i][c * rows[i]];
      if (inner.size() == 1) {
        const double *table = at[inner[0]] + c * rows[inner[0]];
        for (size_t o = 0; o < last; ++o) {
          double sum = base + table[o];
          out[o] = sum < out[o] ? sum : out[o];
        }
        continue;
      }
      const double *table = at[inner[0]] + c * rows[inner[0]];
      for (size_t o = 0; o < last; ++o)
        scratch[o] = base + table[o];
      for (size_t k = 1; k < inner.size(); ++k) {
        table = at[inner[k]] + c * rows[inner[k]];
        for (size_t o = 0; o < last; ++o)
          scratch[o] += table[o];
      }
      for (size_t o = 0; o < last; ++o)
        out[o] = scratch[o] < out[o] ? scratch[o] : out[o];
    }
    out += last;
    for (size_t d = rank - 1; d-- > 0;) {
      ++index[d];
      for (size_t i = 0; i < numInputs; ++i)
        at[i] += steps[i * rank + d];
      if (index[d] < sizes[output.scope[d]])
        break;
      for (size_t i = 0; i < numInputs; ++i)
        at[i] -= steps[i * rank + d] * index[d];
      index[d] = 0;
    }
  }
  return 0;
}

size_t LocalTables::offset(const Factor &factor, llvm::ArrayRef<unsigned> values,
                           unsigned from) const {
  size_t at = factor.at;
  for (size_t i = from; i < factor.scope.size(); ++i)
    at += factor.strides[i] * values[factor.scope[i]];
  return at;
}

void LocalTables::regrets(unsigned variable, llvm::ArrayRef<double> costs,
                          llvm::ArrayRef<unsigned> values, double *result) const {
  const Bucket &bucket = buckets[variable];
  unsigned size = sizes[variable];
  double before =
      bucket.output < 0 ? bucket.constant : tables[offset(factors[bucket.output], values, 0)];
  for (unsigned c = 0; c < size; ++c)
    result[c] = costs[firsts[variable] + c] - before;
  for (unsigned input : bucket.inputs) {
    const Factor &factor = factors[input];
    const double *table = tables.data() + offset(factor, values, 1);
    for (unsigned c = 0; c < size; ++c)
      result[c] += table[c * factor.strides[0]];
  }
}

double LocalTables::cost(llvm::ArrayRef<double> costs, llvm::ArrayRef<unsigned> values) const {
  double sum = 0;
  for (unsigned v = 0; v < sizes.size(); ++v)
    sum += costs[firsts[v] + values[v]];
  for (size_t f = 0; f < numPairs; ++f)
    sum += tables[offset(factors[f], values, 0)];
  return sum;
}
