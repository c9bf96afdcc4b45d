//===- SubProblem.cpp - some variables of a state, all others fixed -------===//

#include "compiler/Solver/MemoryLimited/SubProblem.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

using namespace alpa;
using namespace alpa::solver;

//===----------------------------------------------------------------------===//
// What some variables see of a state
//===----------------------------------------------------------------------===//

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
  auto spanAt = [&](unsigned timePoint) {
    return llvm::lower_bound(cuts, timePoint) - cuts.begin();
  };
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

//===----------------------------------------------------------------------===//
// Some variables of a state, all others fixed
//===----------------------------------------------------------------------===//

/// Costs are integers: what is better is better by one.
static constexpr double kLeastGain = 0.5;

SubProblem::SubProblem(PrimalState &state) : state(state), localOf(state.costs.count(), -1) {}

double SubProblem::evaluate(llvm::ArrayRef<unsigned> taken) const {
  return tables.cost(costs, taken);
}

/// The priced optimum less the price of all room: a bound.
double SubProblem::runPriced() {
  std::vector<double> sums(spans.size() + 1, 0);
  double offset = 0;
  for (size_t s = 0; s < spans.size(); ++s) {
    sums[s + 1] = sums[s] + prices[s];
    offset += prices[s] * spans[s].room;
  }
  priced = costs;
  for (unsigned i = 0; i < free.size(); ++i)
    for (const Stretch &stretch : stretchesOf(i)) {
      double price = sums[stretch.end] - sums[stretch.begin];
      if (price > 0)
        for (unsigned c = 0; c < tables.size(i); ++c)
          priced[tables.first(i) + c] += price * bytes[stretch.bytes + c];
    }
  totalWork += tables.work();
  return tables.run(priced) - offset;
}

void SubProblem::useOf(llvm::ArrayRef<unsigned> taken) {
  use.assign(spans.size() + 1, 0);
  for (unsigned i = 0; i < free.size(); ++i)
    for (const Stretch &stretch : stretchesOf(i)) {
      double b = taken.empty() ? stretch.least : bytes[stretch.bytes + taken[i]];
      use[stretch.begin] += b;
      use[stretch.end] -= b;
    }
  double sum = 0;
  for (size_t s = 0; s < spans.size(); ++s)
    use[s] = sum += use[s];
}

double SubProblem::overOf() const {
  double over = 0;
  for (size_t s = 0; s < spans.size(); ++s)
    over += std::max(0.0, use[s] - spans[s].room);
  return over;
}

void SubProblem::place(unsigned variable, unsigned value, double sign) {
  for (const Stretch &stretch : stretchesOf(variable)) {
    double more = sign * (bytes[stretch.bytes + value] - stretch.least);
    if (more != 0)
      for (unsigned s = stretch.begin; s < stretch.end; ++s)
        use[s] += more;
  }
}

/// By how much a choice would exceed the room further.
double SubProblem::overWith(unsigned variable, unsigned value) const {
  double over = 0;
  for (const Stretch &stretch : stretchesOf(variable)) {
    double more = bytes[stretch.bytes + value] - stretch.least;
    if (more > 0)
      for (unsigned s = stretch.begin; s < stretch.end; ++s)
        over += std::max(0.0, use[s] + more - std::max(spans[s].room, use[s]));
  }
  return over;
}

void SubProblem::decode() {
  values.assign(free.size(), 0);
  llvm::SmallVector<double, 64> rise;
  for (unsigned i = free.size(); i-- > 0;) {
    rise.resize(tables.size(i));
    tables.regrets(i, priced, values, rise.data());
    values[i] = std::min_element(rise.begin(), rise.end()) - rise.begin();
  }
}

bool SubProblem::offer(llvm::ArrayRef<unsigned> taken, double over) {
  if (over > 0 && std::isinf(penalty))
    return false;
  double value = evaluate(taken) + (over > 0 ? penalty * over : 0);
  if (value > bestValue - kLeastGain)
    return false;
  bestValue = value;
  bestValues.assign(taken.begin(), taken.end());
  return true;
}

/// Depth first, least regret first. True if all better choices were seen.
bool SubProblem::dive(double bound, size_t maxNodes) {
  unsigned count = free.size();
  useOf({});
  bool strict = std::isinf(penalty);
  levels.assign(count + 1, {});
  regrets.resize(costs.size());
  ranking.resize(costs.size());
  std::vector<double> scores(costs.size());
  values.assign(count, 0);
  levels[0].bound = bound;
  levels[0].over = overOf();
  if (strict && levels[0].over > 0)
    return true;
  auto enter = [&](unsigned depth) {
    unsigned v = count - 1 - depth;
    size_t first = tables.first(v);
    unsigned size = tables.size(v);
    tables.regrets(v, priced, values, regrets.data() + first);
    for (unsigned c = 0; c < size; ++c) {
      ranking[first + c] = c;
      scores[first + c] = regrets[first + c];
      if (!strict && levels[depth].bound + regrets[first + c] < bestValue)
        scores[first + c] += penalty * overWith(v, c);
    }
    std::sort(ranking.begin() + first, ranking.begin() + first + size, [&](unsigned x, unsigned y) {
      return std::make_pair(scores[first + x], x) < std::make_pair(scores[first + y], y);
    });
    levels[depth].next = 0;
    levels[depth].placed = false;
  };
  enter(0);
  constexpr double kWorkPerNode = 50;
  size_t nodes = 0;
  for (unsigned depth = 0;;) {
    if (depth == count) {
      offer(values, levels[depth].over);
    } else {
      Level &level = levels[depth];
      unsigned v = count - 1 - depth, size = tables.size(v);
      size_t first = tables.first(v);
      if (level.placed) {
        place(v, values[v], -1);
        level.placed = false;
      }
      bool descended = false;
      while (level.next < size) {
        unsigned c = ranking[first + level.next++];
        double next = level.bound + std::max(0.0, regrets[first + c]);
        if (next > bestValue - kLeastGain) {
          if (strict)
            level.next = size;
          continue;
        }
        double over = overWith(v, c);
        if (strict && over > 0)
          continue;
        if (++nodes > maxNodes)
          return false;
        totalWork += kWorkPerNode;
        values[v] = c;
        place(v, c, 1);
        level.placed = true;
        levels[depth + 1].bound = next;
        levels[depth + 1].over = level.over + over;
        ++depth;
        if (depth < count)
          enter(depth);
        descended = true;
        break;
      }
      if (descended)
        continue;
    }
    if (depth == 0)
      return true;
    --depth;
  }
}

/// Towards what is exceeded, by a step that would reach the best value.
bool SubProblem::stepPrices(double bound, double pace) {
  decode();
  useOf(values);
  double norm = 0;
  for (size_t s = 0; s < spans.size(); ++s) {
    double slope = use[s] - spans[s].room;
    if (slope > 0 || prices[s] > 0)
      norm += slope * slope;
  }
  if (norm == 0)
    return false;
  double length = pace * (bestValue - bound) / norm;
  for (size_t s = 0; s < spans.size(); ++s)
    prices[s] = std::clamp(prices[s] + length * (use[s] - spans[s].room), 0.0, penalty);
  return true;
}

SubProblem::Outcome SubProblem::solve(const Effort &effort) {
  std::vector<unsigned> current(free.size());
  for (unsigned i = 0; i < free.size(); ++i) {
    const unsigned *from = allowed.data() + tables.first(i);
    current[i] = std::find(from, from + tables.size(i), state.at(free[i])) - from;
  }
  useOf(current);
  double over = overOf();
  bestValue = evaluate(current) + (over > 0 ? penalty * over : 0) + effort.slack;
  bestValues.clear();
  bool proven = false;
  double pace = 1.0, bestBound = -std::numeric_limits<double>::infinity();
  unsigned stale = 0;
  for (unsigned round = 0; round < effort.rounds && !stops(effort.stop); ++round) {
    double bound = runPriced();
    if (bound > bestBound) {
      bestBound = bound;
      bestPrices = prices;
      stale = 0;
    } else if (++stale == 3) {
      stale = 0;
      pace *= 0.5;
      prices = bestPrices;
      bound = runPriced();
    }
    if (bestBound > bestValue - kLeastGain) {
      proven = true;
      break;
    }
    if (dive(bound, free.size() + std::min<size_t>(64, effort.nodes))) {
      proven = true;
      break;
    }
    if (spans.empty() || !stepPrices(bound, pace))
      break;
  }
  if (!proven && !spans.empty() && effort.nodes > 64 && !stops(effort.stop)) {
    prices = bestPrices;
    proven = dive(runPriced(), free.size() + effort.nodes);
  }
  if (!bestValues.empty()) {
    for (unsigned i = 0; i < free.size(); ++i)
      state.move(free[i], allowed[tables.first(i) + bestValues[i]]);
    state.addToCost(evaluate(bestValues) - evaluate(current));
    if (state.cost() >= kBlocked / 2 || evaluate(current) >= kBlocked / 2)
      state.load(std::vector<unsigned>(state.all()));
    return Outcome::Better;
  }
  return proven ? Outcome::Proven : Outcome::Same;
}

void SubProblem::exportPrices(std::vector<double> &result) const {
  result.assign(state.usage.at().size(), 0);
  for (size_t s = 0; s < spans.size() && s < bestPrices.size(); ++s)
    result[spans[s].tightest] += bestPrices[s];
}
