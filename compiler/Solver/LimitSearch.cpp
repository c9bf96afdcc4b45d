//===- LimitSearch.cpp - answers and bounds under a memory limit ----------===//

#include "compiler/Solver/LimitSearch.h"
#include "compiler/Solver/Collapse.h"
#include "compiler/Solver/Memory.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>

using namespace alpa;

/// Combinations that one thread goes through before it looks at the other's news.
static constexpr double kRoundWork = 5e7;
/// A search that has no answer yet may take this much longer.
static constexpr double kGraceSeconds = 2.0;

LimitSearch::LimitSearch(const Graph &graph, int64_t limitBytes, const SolveOptions &options,
                         const Clock &clock, CostSum lower)
    : graph(graph), limit(limitBytes), options(options), clock(clock),
      upper(CostSum(kInfinity) * (1 + graph.variables.size() + graph.edges.size())), lowest(lower) {
  setCore(lighten(graph), {});
}

void LimitSearch::setCore(Graph next, llvm::ArrayRef<double> prices) {
  bound.reset();
  core = std::make_unique<Graph>(std::move(next));
  bound = std::make_unique<PricedBound>(*core, limit);
  if (!prices.empty())
    bound->startFrom(prices);
  numChoices = 0;
  for (const Variable &variable : core->variables)
    numChoices += variable.numChoices();
  removedAt = 0;
}

bool LimitSearch::outOfTime() const {
  return clock.isLate() && (!best.empty() || clock.isLate(1.0, kGraceSeconds));
}

bool LimitSearch::isEnough() const {
  return proven ||
         (!best.empty() &&
          (lowest >= upper || double(upper - lowest) <= options.acceptableGap * double(upper)));
}

/// Keeps choices of the graph's variables that are the best yet.
void LimitSearch::offer(std::vector<unsigned> values) {
  Usage usage(graph, limit);
  CostSum cost = LocalSearch(graph, usage).objective(values);
  if (!best.empty() && cost >= upper)
    return;
  upper = cost;
  best = std::move(values);
}

void LimitSearch::offerRepaired(llvm::ArrayRef<unsigned> coreValues) {
  Usage usage(*core, limit);
  LocalSearch local(*core, usage);
  std::vector<unsigned> values(coreValues.begin(), coreValues.end());
  if (!local.repair(values))
    return;
  // Polishing is worth while for what is nearly the best.
  if (best.empty() || local.objective(values) - lowest < 2 * (upper - lowest))
    local.polish(values, [&] { return clock.isLate(); });
  offer(readOut(*core, values, graph.variables.size()));
}

void LimitSearch::boundRound() {
  // At least a few steps, so that there is something to go on.
  constexpr unsigned kFewest = 10;
  double work = 0;
  for (unsigned step = 0; step < kFewest || work < kRoundWork; ++step) {
    if (outOfTime() || bound->isStuck())
      break;
    if (!bound->step(upper + !best.empty())) {
      proven = true;
      return;
    }
    lowest = std::max(lowest, std::min(bound->lower(), upper));
    work += bound->stepWork();
    if (step % kFewest == 0)
      offerRepaired(bound->values());
    if (isEnough())
      return;
  }
}

/// Drops what no answer as good as the best can make use of.
void LimitSearch::shrink() {
  constexpr double kWorthwhile = 0.1;
  bool lower = upper < shrunkAt || shrunkAt == 0;
  bool more = double(bound->numRemoved() - removedAt) > kWorthwhile * double(numChoices);
  if (best.empty() || !(more || (lower && bound->isStuck())))
    return;
  shrunkAt = upper;
  std::optional<Graph> left = bound->restricted(upper + 1);
  lowest = std::max(lowest, std::min(bound->lower(), upper));
  removedAt = bound->numRemoved();
  if (!left) {
    proven = true;
    return;
  }
  std::vector<double> prices = bound->pricePerByte();
  std::vector<int> standIn = collapseWithin(*left, limit);
  if (left->impossibleNode) {
    proven = true;
    return;
  }
  if (left->variables.empty()) {
    offer(readOut(*left, {}, graph.variables.size()));
    proven = true;
    return;
  }
  std::vector<double> moved(left->baseBytes.size(), 0);
  for (size_t t = 0; t < standIn.size(); ++t)
    if (standIn[t] >= 0)
      moved[standIn[t]] += prices[t];
  setCore(std::move(*left), moved);
}

void LimitSearch::branchRound() {
  if (!branching)
    branching = std::make_unique<Branching>(*core, limit, bound->pricePerByte(), lowest);
  branching->run(
      kRoundWork, upper,
      [&](const std::vector<unsigned> &values, CostSum) {
        offer(readOut(*core, values, graph.variables.size()));
        return upper;
      },
      [&] { return outOfTime(); });
  lowest = std::max(lowest, std::min(branching->lower(), upper));
  proven = branching->isDone();
}

void LimitSearch::run() {
  while (!isEnough() && !outOfTime()) {
    if (branching || bound->isStuck()) {
      branchRound();
      continue;
    }
    boundRound();
    if (!isEnough())
      shrink();
  }
  if (proven && !best.empty())
    lowest = upper;
}
