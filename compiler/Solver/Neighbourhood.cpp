//===- Neighbourhood.cpp - search for good choices within the limit -------===//

#include "compiler/Solver/Neighbourhood.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>
#include <numeric>

using namespace alpa;

PrimalSearch::PrimalSearch(const Graph &graph, int64_t limitBytes, uint64_t seed)
    : costs(graph), state(costs, Usage(graph, limitBytes)), sub(state), random(seed),
      lowest(std::numeric_limits<double>::infinity()), isFreed(costs.count(), false) {
  // The largest is the whole problem, whatever the shape.
  for (double size = 12; size < 1.5 * costs.count(); size *= 2.5)
    for (Shape shape : {Ball, Tight, Window}) {
      arms.push_back({shape, unsigned(size)});
      arms.back().work = 1e3 * size;
      if (size >= costs.count())
        break;
    }
  for (unsigned size : {1, 2, 4}) {
    arms.push_back({Fuse, size});
    arms.back().work = 100.0 * costs.count();
  }
}

bool PrimalSearch::fits() const {
  return state.cost() < kBlocked / 2 &&
         llvm::all_of(
             state.usage.at(), [&](int64_t bytes) { return bytes <= state.usage.limit(); });
}

void PrimalSearch::keep() {
  if (fits() && (bestChoices.empty() || state.cost() < lowest)) {
    lowest = state.cost();
    bestChoices = state.all();
  }
}

void PrimalSearch::offer(llvm::ArrayRef<unsigned> choices) {
  std::vector<unsigned> before = state.all();
  state.load(choices);
  bool better = bestChoices.empty() || (fits() && state.cost() < lowest);
  if (!better)
    state.load(before);
  keep();
}

void PrimalSearch::propose(llvm::ArrayRef<unsigned> choices) {
  constexpr size_t kMostProposals = 16;
  if (proposals.size() < kMostProposals)
    proposals.emplace_back();
  proposals[nextProposal].assign(choices.begin(), choices.end());
  nextProposal = (nextProposal + 1) % kMostProposals;
}

void PrimalSearch::setPrices(llvm::ArrayRef<double> given) {
  prices.assign(given.begin(), given.end());
  sub.priceSums.assign(1, 0);
  for (double price : prices)
    sub.priceSums.push_back(sub.priceSums.back() + price);
}

void PrimalSearch::free(unsigned variable) {
  if (!isFreed[variable]) {
    isFreed[variable] = true;
    freed.push_back(variable);
  }
}

void PrimalSearch::addBall(unsigned seed, size_t size) {
  size_t next = freed.size();
  free(seed);
  for (; next < freed.size() && freed.size() < size; ++next) {
    llvm::ArrayRef<FlatCosts::Arc> arcs = costs.arcs(freed[next]);
    unsigned start = arcs.empty() ? 0 : random.below(arcs.size());
    for (size_t i = 0; i < arcs.size() && freed.size() < size; ++i)
      free(arcs[(start + i) % arcs.size()].other);
  }
}

void PrimalSearch::addLiveAt(unsigned begin, unsigned end, size_t size) {
  std::vector<unsigned> live;
  for (unsigned v = 0; v < costs.count(); ++v)
    for (const Usage::Segment &segment : state.usage.segments(v))
      if (segment.begin < end && begin < segment.end) {
        live.push_back(v);
        break;
      }
  for (size_t i = 0; i < live.size() && freed.size() < size; ++i) {
    std::swap(live[i], live[i + random.below(live.size() - i)]);
    free(live[i]);
  }
}

/// One of those that are nearly full, or the one of some that has least room.
unsigned PrimalSearch::tightMoment() {
  llvm::ArrayRef<int64_t> at = state.usage.at();
  unsigned best = random.below(at.size());
  for (unsigned i = 0; i < 4; ++i) {
    unsigned other = random.below(at.size());
    if (at[other] > at[best])
      best = other;
  }
  return best;
}

void PrimalSearch::freeAll() {
  freed.resize(costs.count());
  std::iota(freed.begin(), freed.end(), 0);
  isFreed.assign(costs.count(), true);
}

void PrimalSearch::chooseFreed(Shape shape, unsigned size) {
  if (size >= costs.count() && shape != Fuse)
    return freeAll();
  for (unsigned v : freed)
    isFreed[v] = false;
  freed.clear();
  switch (shape) {
  case Fuse:
    for (unsigned i = 0; i < size && !proposals.empty(); ++i)
      sub.pool.push_back(&proposals[random.below(proposals.size())]);
    for (unsigned v = 0; v < costs.count(); ++v)
      if (llvm::any_of(sub.pool, [&](auto *choices) { return (*choices)[v] != state.at(v); }))
        free(v);
    return;
  case Tight:
    if (!state.usage.at().empty()) {
      unsigned t = tightMoment();
      addLiveAt(t, t + 1, size / 3 + 1);
      break;
    }
    [[fallthrough]];
  case Ball:
    addBall(random.below(costs.count()), size);
    return;
  case Window: {
    unsigned v = random.below(costs.count());
    llvm::ArrayRef<Usage::Segment> segments = state.usage.segments(v);
    if (segments.empty()) {
      addBall(v, size);
      return;
    }
    const Usage::Segment &segment = segments[random.below(segments.size())];
    unsigned length = 1 + random.below(8);
    addLiveAt(segment.begin, segment.begin + length, size / 2 + 1);
    break;
  }
  }
  // Room is worth nothing without neighbours that can make use of it.
  for (size_t next = 0; next < freed.size() && freed.size() < size; ++next)
    for (const FlatCosts::Arc &arc : costs.arcs(freed[next]))
      if (freed.size() < size)
        free(arc.other);
}

bool PrimalSearch::solveFreed(double maxTable, const SubProblem::Effort &effort) {
  sub.penalty = penalty;
  if (!sub.build(freed, maxTable, random))
    return false;
  return sub.solve(effort) == SubProblem::Outcome::Better;
}

/// Makes what is above the limit dearer until nothing is.
void PrimalSearch::settle(llvm::function_ref<bool()> done) {
  constexpr double kMostPenalty = 1e12;
  std::vector<double> given = prices;
  state.load(state.all());
  double scale = 0;
  for (double price : prices)
    scale = std::max(scale, price);
  if (scale == 0)
    scale = 1e-3 * std::abs(state.cost()) / double(std::max<int64_t>(1, state.usage.limit()));
  if (state.cost() >= kBlocked / 2)
    scale = 0;
  penalty = scale;
  while (!done() && !fits()) {
    freeAll();
    double before = state.excess();
    SubProblem::Effort effort;
    effort.rounds = 4;
    effort.nodes = 0;
    solveFreed(2000, effort);
    sub.exportPrices(prices);
    setPrices(std::vector<double>(prices));
    if (state.excess() > 0.5 * before || state.excess() == 0) {
      if (penalty == 0)
        penalty = 1e-3 * std::abs(state.cost()) / double(std::max<int64_t>(1, state.usage.limit()));
      penalty = std::min(2 * penalty, kMostPenalty);
    }
    if (state.cost() >= kBlocked / 2)
      state.load(state.all());
  }
  state.load(state.all());
  if (!given.empty())
    setPrices(given);
  keep();
}

/// Mostly what gained most for its work of late.
PrimalSearch::Arm &PrimalSearch::chooseArm() {
  constexpr double kExplore = 0.5; // Share of the work, by arms alike.
  constexpr double kLeastGain = 1e-9;
  std::vector<double> weight;
  double sum = 0, plain = 0;
  for (const Arm &arm : arms) {
    bool matters = arm.gain > kLeastGain * std::abs(lowest);
    weight.push_back(matters ? arm.gain / std::max(1.0, arm.work * arm.work) : 0);
    sum += weight.back();
    plain += 1 / std::max(1.0, arm.work);
  }
  double mark = random.unit();
  size_t taken = 0;
  for (; taken + 1 < arms.size(); ++taken) {
    double even = 1 / std::max(1.0, arms[taken].work) / plain;
    mark -= sum > 0 ? kExplore * even + (1 - kExplore) * weight[taken] / sum : even;
    if (mark < 0)
      break;
  }
  return arms[taken];
}

void PrimalSearch::improve() {
  penalty = sub.penalty = std::numeric_limits<double>::infinity();
  Arm &arm = chooseArm();
  chooseFreed(arm.shape, arm.size);
  double before = state.cost(), worked = sub.work();
  SubProblem::Outcome outcome = SubProblem::Outcome::Same;
  if (sub.build(freed, arm.shape == Fuse ? 20000 : 3000, random))
    outcome = sub.solve(SubProblem::Effort());
  sub.pool.clear();
  constexpr double kForget = 0.9;
  double gain = before - state.cost(), work = sub.work() - worked;
  arm.gain = kForget * arm.gain + gain;
  arm.work = kForget * arm.work + (1 - kForget) * work;
  if (outcome == SubProblem::Outcome::Better)
    keep();
}

void PrimalSearch::run(double work, llvm::function_ref<bool()> stop) {
  if (costs.count() == 0) {
    keep();
    return;
  }
  double end = sub.work() + work;
  auto done = [&] { return stop() || sub.work() >= end; };
  if (!fits())
    settle(done);
  while (!done() && fits())
    improve();
}
