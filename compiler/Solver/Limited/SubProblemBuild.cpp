//===- SubProblemBuild.cpp - what some variables see of a state -----------===//

#include "compiler/Solver/Limited/SubProblem.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>

using namespace alpa;

/// Costs and allowed choices beside those that are not free.
void SubProblem::gatherCosts(llvm::ArrayRef<unsigned> candidates) {
  const FlatCosts &flat = state.costs;
  costs.clear();
  allowed.clear();
  tables.clear();
  llvm::SmallVector<double, 64> sum;
  for (unsigned v : candidates) {
    unsigned size = flat.size(v);
    sum.assign(flat.costs(v), flat.costs(v) + size);
    for (const FlatCosts::Arc &arc : flat.arcs(v)) {
      if (localOf[arc.other] >= 0)
        continue;
      const double *row = arc.rows + size_t(state.at(arc.other)) * size;
      for (unsigned c = 0; c < size; ++c)
        sum[c] += row[c];
    }
    size_t before = allowed.size();
    auto isWanted = [&](unsigned c) {
      return pool.empty() || llvm::any_of(pool, [&](const std::vector<unsigned> *taken) {
               return (*taken)[v] == c;
             });
    };
    for (unsigned c = 0; c < size; ++c)
      if (c == state.at(v) || (sum[c] < kBlocked / 2 && isWanted(c))) {
        allowed.push_back(c);
        costs.push_back(sum[c]);
      }
    // Where everything is forbidden, anything may be a step out of it.
    if (allowed.size() == before + 1 && costs.back() >= kBlocked / 2) {
      allowed.resize(before);
      costs.resize(before);
      for (unsigned c = 0; c < size; ++c) {
        allowed.push_back(c);
        costs.push_back(sum[c]);
      }
    }
    tables.addVariable(allowed.size() - before);
  }
}

bool SubProblem::build(llvm::ArrayRef<unsigned> variables, double maxTable, Random &random) {
  for (unsigned v : free)
    localOf[v] = -1;
  for (unsigned v : variables)
    localOf[v] = 0;
  constexpr double kWorkPerVariable = 100; // To gather all there is.
  totalWork += kWorkPerVariable * double(1 + variables.size());
  gatherCosts(variables);
  std::vector<unsigned> open, sizes;
  for (unsigned i = 0; i < variables.size(); ++i) {
    if (tables.size(i) == 1)
      localOf[variables[i]] = -1;
    else {
      localOf[variables[i]] = open.size();
      open.push_back(variables[i]);
      sizes.push_back(tables.size(i));
    }
  }
  std::vector<llvm::SmallVector<unsigned, 6>> neighbours(open.size());
  for (unsigned i = 0; i < open.size(); ++i)
    for (const FlatCosts::Arc &arc : state.costs.arcs(open[i]))
      if (localOf[arc.other] >= 0)
        neighbours[i].push_back(localOf[arc.other]);
  order.run(neighbours, sizes, maxTable, random);
  for (unsigned v : open)
    localOf[v] = -1;
  free.clear();
  for (unsigned i : order.order) {
    localOf[open[i]] = free.size();
    free.push_back(open[i]);
  }
  if (free.empty())
    return false;
  gatherCosts(free);
  addTables();
  addSpans();
  return true;
}

void SubProblem::addTables() {
  const FlatCosts &flat = state.costs;
  for (unsigned b = 0; b < free.size(); ++b) {
    unsigned sizeB = tables.size(b), all = flat.size(free[b]);
    const unsigned *choicesB = allowed.data() + tables.first(b);
    for (const FlatCosts::Arc &arc : flat.arcs(free[b])) {
      int a = localOf[arc.other];
      if (a < 0 || unsigned(a) > b)
        continue;
      double *to = tables.addPair(a, b);
      const unsigned *choicesA = allowed.data() + tables.first(a);
      for (unsigned i = 0; i < tables.size(a); ++i) {
        const double *row = arc.rows + size_t(choicesA[i]) * all;
        for (unsigned j = 0; j < sizeB; ++j)
          *to++ = row[choicesB[j]];
      }
    }
  }
  tables.plan();
  totalWork += tables.work();
}

void SubProblem::addSpans() {
  const Usage &usage = state.usage;
  spans.clear();
  stretches.clear();
  bytes.clear();
  firstStretch.assign(1, 0);
  std::vector<unsigned> cuts;
  for (unsigned v : free)
    for (const Usage::Segment &segment : usage.segments(v)) {
      cuts.push_back(segment.begin);
      cuts.push_back(segment.end);
    }
  llvm::sort(cuts);
  cuts.erase(llvm::unique(cuts), cuts.end());
  auto spanAt = [&](unsigned moment) { return llvm::lower_bound(cuts, moment) - cuts.begin(); };
  // What the free variables use now and at most, as differences.
  std::vector<double> now(cuts.size() + 1, 0), most(cuts.size() + 1, 0);
  std::vector<std::pair<unsigned, unsigned>> ranges;
  for (unsigned i = 0; i < free.size(); ++i)
    for (const Usage::Segment &segment : usage.segments(free[i])) {
      unsigned begin = spanAt(segment.begin), end = spanAt(segment.end);
      ranges.emplace_back(begin, end);
      double taken = usage.bytes(segment, state.at(free[i])), highest = 0;
      for (unsigned c = 0; c < tables.size(i); ++c)
        highest = std::max(highest, double(usage.bytes(segment, allowed[tables.first(i) + c])));
      now[begin] += taken;
      now[end] -= taken;
      most[begin] += highest;
      most[end] -= highest;
    }
  std::vector<unsigned> kept(cuts.size() + 1, 0);
  double taken = 0, highest = 0;
  for (size_t s = 0; s + 1 < cuts.size(); ++s) {
    kept[s] = spans.size();
    taken += now[s];
    highest += most[s];
    if (highest == 0)
      continue;
    unsigned tightest = cuts[s];
    for (unsigned t = cuts[s] + 1; t < cuts[s + 1]; ++t)
      if (usage.at()[t] > usage.at()[tightest])
        tightest = t;
    double room = double(usage.limit()) - double(usage.at()[tightest]) + taken;
    if (highest > room)
      spans.push_back({cuts[s], cuts[s + 1], tightest, room});
  }
  if (!cuts.empty())
    kept[cuts.size() - 1] = spans.size();
  auto range = ranges.begin();
  for (unsigned i = 0; i < free.size(); ++i) {
    for (const Usage::Segment &segment : usage.segments(free[i])) {
      unsigned begin = kept[range->first], end = kept[range->second];
      ++range;
      if (begin == end)
        continue;
      Stretch stretch{begin, end, bytes.size(), std::numeric_limits<double>::infinity()};
      for (unsigned c = 0; c < tables.size(i); ++c) {
        bytes.push_back(usage.bytes(segment, allowed[tables.first(i) + c]));
        stretch.least = std::min(stretch.least, bytes.back());
      }
      stretches.push_back(stretch);
    }
    firstStretch.push_back(stretches.size());
  }
  prices.assign(spans.size(), 0);
  if (!priceSums.empty())
    for (size_t s = 0; s < spans.size(); ++s)
      prices[s] = std::min(penalty, priceSums[spans[s].end] - priceSums[spans[s].begin]);
}
