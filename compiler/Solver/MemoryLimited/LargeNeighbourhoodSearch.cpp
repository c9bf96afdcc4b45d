//===- LargeNeighbourhoodSearch.cpp - search for good choices within the limit -===//

#include "compiler/Solver/MemoryLimited/LargeNeighbourhoodSearch.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace alpa;
using namespace alpa::solver;

//===----------------------------------------------------------------------===//
// Which variables to free together
//===----------------------------------------------------------------------===//

Selection::Selection(const PrimalState &state, Random &random)
    : state(state), random(random), isChosen(state.costs.count(), false) {}

void Selection::clear() {
  for (unsigned v : chosen)
    isChosen[v] = false;
  chosen.clear();
}

void Selection::add(unsigned variable) {
  if (!isChosen[variable]) {
    isChosen[variable] = true;
    chosen.push_back(variable);
  }
}

void Selection::addAll() {
  for (unsigned v = 0; v < isChosen.size(); ++v)
    add(v);
}

void Selection::addBall(unsigned variable, size_t size) {
  size_t next = chosen.size();
  add(variable);
  for (; next < chosen.size() && chosen.size() < size; ++next) {
    llvm::ArrayRef<FlatCosts::Arc> arcs = state.costs.arcs(chosen[next]);
    unsigned start = arcs.empty() ? 0 : random.below(arcs.size());
    for (size_t i = 0; i < arcs.size() && chosen.size() < size; ++i)
      add(arcs[(start + i) % arcs.size()].other);
  }
}

void Selection::addLive(unsigned begin, unsigned end, size_t size) {
  std::vector<unsigned> live;
  for (unsigned v = 0; v < isChosen.size(); ++v)
    if (llvm::any_of(state.usage.segments(v), [&](const Usage::Segment &segment) {
          return segment.begin < end && begin < segment.end;
        }))
      live.push_back(v);
  for (size_t i = 0; i < live.size() && chosen.size() < size; ++i) {
    std::swap(live[i], live[i + random.below(live.size() - i)]);
    add(live[i]);
  }
}

void Selection::spread(size_t size) {
  for (size_t next = 0; next < chosen.size() && chosen.size() < size; ++next)
    for (const FlatCosts::Arc &arc : state.costs.arcs(chosen[next]))
      if (chosen.size() < size)
        add(arc.other);
}

void Selection::addDifferent(llvm::ArrayRef<const std::vector<unsigned> *> others) {
  for (unsigned v = 0; v < isChosen.size(); ++v)
    if (llvm::any_of(others, [&](auto *choices) { return (*choices)[v] != state.at(v); }))
      add(v);
}

unsigned Selection::tightTimePoint() {
  constexpr unsigned kTried = 4;
  llvm::ArrayRef<int64_t> at = state.usage.at();
  unsigned best = random.below(at.size());
  for (unsigned i = 0; i < kTried; ++i) {
    unsigned other = random.below(at.size());
    if (at[other] > at[best])
      best = other;
  }
  return best;
}

std::optional<unsigned> Selection::exceededTimePoint() {
  llvm::ArrayRef<int64_t> at = state.usage.at();
  unsigned start = at.empty() ? 0 : random.below(at.size());
  for (unsigned i = 0; i < at.size(); ++i) {
    unsigned t = (start + i) % at.size();
    if (at[t] > state.usage.limit())
      return t;
  }
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Search for good choices within the limit
//===----------------------------------------------------------------------===//

static constexpr double kNoLimit = std::numeric_limits<double>::infinity();

void Pool::add(llvm::ArrayRef<unsigned> choices) {
  constexpr size_t kMost = 12;
  if (next == kept.size())
    kept.emplace_back();
  kept[next].assign(choices.begin(), choices.end());
  next = (next + 1) % kMost;
  isNew = true;
}

const std::vector<unsigned> *Pool::takeNewest() {
  if (!isNew)
    return nullptr;
  isNew = false;
  return &kept[(next + kept.size() - 1) % kept.size()];
}

LargeNeighbourhoodSearch::LargeNeighbourhoodSearch(const Graph &graph, int64_t limitBytes,
                                                   uint64_t seed)
    : costs(graph), state(costs, Usage(graph, limitBytes)), sub(state), random(seed),
      selection(state, random), lowest(kNoLimit) {
  auto addArm = [&](Shape shape, double size, double work) {
    arms.push_back({shape, unsigned(size)});
    arms.back().work = work;
  };
  // The largest is the whole problem, whatever the shape.
  double count = costs.count();
  for (double size = 12;; size *= 2.5) {
    addArm(Ball, size, 1e3 * size);
    if (size >= count)
      break;
    addArm(Tight, size, 1e3 * size);
    addArm(Window, size, 1e3 * size);
  }
  for (unsigned size : {1, 2, 4})
    addArm(Fuse, size, 1e2 * count);
  addArm(Restart, 1, 5e3 * count);
}

bool LargeNeighbourhoodSearch::fits() const {
  return state.cost() < kBlocked / 2 &&
         llvm::all_of(
             state.usage.at(), [&](int64_t bytes) { return bytes <= state.usage.limit(); });
}

void LargeNeighbourhoodSearch::keep() {
  if (fits() && (bestChoices.empty() || state.cost() < lowest)) {
    lowest = state.cost();
    bestChoices = state.all();
  }
}

void LargeNeighbourhoodSearch::offer(llvm::ArrayRef<unsigned> choices) {
  std::vector<unsigned> before = state.all();
  state.load(choices);
  penalty = 0;
  if (!bestChoices.empty() && !(fits() && state.cost() < lowest))
    state.load(before);
  keep();
}

void LargeNeighbourhoodSearch::setPrices(llvm::ArrayRef<double> given) {
  prices.assign(given.begin(), given.end());
  sub.priceSums.assign(1, 0);
  for (double price : prices)
    sub.priceSums.push_back(sub.priceSums.back() + price);
}

/// More than a byte is worth anywhere, as far as is known.
double LargeNeighbourhoodSearch::firstPenalty() const {
  double most = prices.empty() ? 0 : *llvm::max_element(prices);
  if (most > 0)
    return 2 * most;
  double cost = state.cost() < kBlocked / 2 ? std::abs(state.cost()) : costs.typical();
  return 0.1 * std::max(1.0, cost) / double(std::max<int64_t>(1, state.usage.limit()));
}

/// Makes what is above the limit dearer until nothing is: by all variables at
/// once, or where that does not help, by parts at the time points concerned.
void LargeNeighbourhoodSearch::settle(Done done, Done stop) {
  constexpr double kMostPenalty = 1e12, kLeastHelp = 0.05;
  constexpr unsigned kParts = 24;
  std::vector<double> given = prices;
  while (!done() && !fits()) {
    if (penalty == 0)
      penalty = firstPenalty();
    double before = valued(), above = penalty * state.excess();
    sub.penalty = penalty;
    SubProblem::Effort effort;
    effort.rounds = inParts ? 8 : 4;
    effort.nodes = 0;
    effort.stop = stop;
    for (unsigned part = 0; part < (inParts ? kParts : 1) && !done(); ++part) {
      selection.clear();
      if (!inParts) {
        selection.addAll();
      } else if (std::optional<unsigned> timePoint = selection.exceededTimePoint()) {
        double size = std::pow(2, 4 + 5 * random.unit());
        selection.addLive(*timePoint, *timePoint + 1, size / 3 + 1);
        selection.spread(size);
      } else {
        selection.addBall(random.below(costs.count()), 50);
      }
      if (sub.build(selection.variables(), 2000, random))
        sub.solve(effort);
    }
    if (!inParts) {
      sub.exportPrices(prices);
      setPrices(std::vector<double>(prices));
    }
    if (valued() > before - kLeastHelp * above) {
      if (inParts)
        penalty = std::min(4 * penalty, kMostPenalty);
      inParts = !inParts;
    }
  }
  if (!given.empty())
    setPrices(given);
  if (fits())
    penalty = 0;
  keep();
}

/// Mostly what gained most for its work of late.
LargeNeighbourhoodSearch::Arm &LargeNeighbourhoodSearch::chooseArm(bool evenly) {
  constexpr double kExplore = 0.5; // Share of the work, by arms alike.
  constexpr double kLeastGain = 1e-9;
  std::vector<double> weight;
  double sum = 0, plain = 0;
  auto plainly = [&](const Arm &arm) {
    double share = 1;
    if (arm.shape == Restart)
      share = proposals.hasNew() ? 8 : 0;
    else if (arm.shape == Fuse)
      share = proposals.size() + optima.size() > 0 ? 3 : 0;
    return share / std::max(double(costs.count()), arm.work); // To look at all takes time, too.
  };
  for (const Arm &arm : arms) {
    bool matters = !evenly && arm.gain > kLeastGain * std::abs(lowest);
    weight.push_back(matters ? arm.gain / std::max(1.0, arm.work * arm.work) : 0);
    sum += weight.back();
    plain += plainly(arm);
  }
  double mark = random.unit();
  size_t taken = 0;
  for (; taken + 1 < arms.size(); ++taken) {
    double even = plainly(arms[taken]) / plain;
    mark -= sum > 0 ? kExplore * even + (1 - kExplore) * weight[taken] / sum : even;
    if (mark < 0)
      break;
  }
  return arms[taken];
}

void LargeNeighbourhoodSearch::select(Shape shape, unsigned size) {
  selection.clear();
  sub.pool.clear();
  if (size >= costs.count() && shape != Fuse)
    return selection.addAll();
  bool isTight = shape == Tight && !state.usage.at().empty();
  unsigned variable = random.below(costs.count());
  llvm::ArrayRef<Usage::Segment> segments = state.usage.segments(variable);
  if (shape == Fuse) {
    for (unsigned i = 0; i < size && proposals.size() + optima.size() > 0; ++i) {
      unsigned at = random.below(proposals.size() + optima.size());
      sub.pool.push_back(at < proposals.size() ? &proposals[at] : &optima[at - proposals.size()]);
    }
    selection.addDifferent(sub.pool);
  } else if (isTight) {
    unsigned timePoint = selection.tightTimePoint();
    selection.addLive(timePoint, timePoint + 1, size / 3 + 1);
    selection.spread(size); // Room is worth nothing without someone to use it.
  } else if (shape == Window && !segments.empty()) {
    constexpr unsigned kLongest = 8;
    const Usage::Segment &segment = segments[random.below(segments.size())];
    selection.addLive(segment.begin, segment.begin + 1 + random.below(kLongest), size / 2 + 1);
    selection.spread(size);
  } else {
    selection.addBall(variable, size);
  }
}

void LargeNeighbourhoodSearch::improveBy(const Arm &arm, Done stop) {
  constexpr double kMaxTable = 3000, kMaxFusedTable = 20000;
  SubProblem::Effort effort;
  effort.stop = stop;
  select(arm.shape, arm.size);
  sub.penalty = kNoLimit;
  if (sub.build(selection.variables(), arm.shape == Fuse ? kMaxFusedTable : kMaxTable, random))
    sub.solve(effort);
  sub.pool.clear();
}

/// Looking around costs something too, or searches of next to nothing would
/// never end.
double LargeNeighbourhoodSearch::spent() {
  constexpr double kLook = 200;
  return sub.work() + (looks += kLook);
}

/// Goes on from a proposal for a while, and back if that does not pay.
void LargeNeighbourhoodSearch::restart(Done stop) {
  const std::vector<unsigned> *start = proposals.takeNewest();
  if (!start)
    return;
  const double settling = spent() + 1e4 * costs.count();
  const double improving = 4e3 * costs.count();
  state.load(*start);
  penalty = 0;
  inParts = false;
  settle([&] { return stop() || spent() > settling; }, stop);
  double end = spent() + improving;
  while (fits() && spent() < end && !stop()) {
    const Arm &arm = chooseArm(/*evenly=*/true);
    if (arm.shape != Restart)
      improveBy(arm, stop);
  }
  keep();
  if (state.cost() > lowest) {
    if (fits())
      optima.add(state.all());
    state.load(bestChoices);
  }
  penalty = 0;
}

void LargeNeighbourhoodSearch::improve(Done stop) {
  constexpr double kForget = 0.9;
  Arm &arm = chooseArm(/*evenly=*/false);
  double before = state.cost(), worked = sub.work();
  if (arm.shape == Restart)
    restart(stop);
  else
    improveBy(arm, stop);
  keep();
  double gain = before - state.cost(), work = sub.work() - worked;
  arm.gain = kForget * arm.gain + gain;
  arm.work = kForget * arm.work + (1 - kForget) * work;
}

void LargeNeighbourhoodSearch::run(double work, Done stop) {
  if (costs.count() == 0)
    return keep();
  double end = spent() + work;
  auto done = [&] { return stop() || spent() >= end; };
  if (!fits())
    settle(done, stop);
  // However well all else does, a later proposal is tried once in a while.
  constexpr double kGrowth = 1.5;
  while (!done() && fits()) {
    if (!proposals.hasNew() || sub.work() < nextRestart) {
      improve(stop);
      continue;
    }
    restart(stop);
    nextRestart = kGrowth * sub.work();
  }
}
