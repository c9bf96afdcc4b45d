//===- LimitedSearch.cpp - answers and bounds under a memory limit --------===//

#include "compiler/Solver/MemoryLimited/LimitedSearch.h"
#include "compiler/Solver/MemoryLimited/LocalSearch.h"
#include "compiler/Solver/Presolve/Presolve.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <atomic>
#include <thread>

using namespace alpa;
using namespace alpa::solver;

/// Table entries that bounds go through before they look at the search's news;
/// it begins with little, so that what is easy is over soon.
static constexpr double kFirstWork = 1e6;
static constexpr double kMostWork = 2e8;
/// What the search goes through meanwhile, by entry.
static constexpr double kPrimalShare = 0.1;

LimitedSearch::LimitedSearch(const Graph &graph, int64_t limitBytes, const SolveOptions &options,
                             Budget &budget, CostSum lower, std::vector<unsigned> start)
    : graph(graph), limit(limitBytes), options(options), budget(budget),
      upper(CostSum(kInfinity) * (1 + graph.variables.size() + graph.edges.size())), lowest(lower) {
  bestInCore = best = std::move(start);
  if (!best.empty()) {
    Usage usage(graph, limit);
    upper = LocalSearch(graph, usage).objective(best);
  }
  setCore(lighten(graph), {});
}

LimitedSearch::~LimitedSearch() = default;

/// The core without choices that priced answers have not taken lately, searched
/// for better answers by itself: small enough to be solved to the end.
struct LimitedSearch::Part {
  SolveOptions options;
  Graph graph;
  std::unique_ptr<LimitedSearch> search;
  double work = 0;
};

void LimitedSearch::startPart() {
  constexpr float kLately = 1e-3f;
  part = std::make_unique<Part>();
  part->options = options;
  part->options.threads = 1;
  part->options.acceptableGap = 0;
  part->graph = lighten(*core);
  size_t at = 0;
  for (unsigned v = 0; v < part->graph.variables.size(); ++v) {
    std::vector<int64_t> &costs = part->graph.variables[v].costs;
    for (unsigned c = 0; c < costs.size(); ++c)
      if (bound->shares()[at + c] < kLately && c != bestInCore[v])
        costs[c] = kInfinity;
    at += costs.size();
  }
  std::vector<unsigned> followed = bestInCore;
  presolveWithin(part->graph, limit, &followed, [&] { return budget.isLate(); });
  if (budget.isLate())
    return;
  // The best choices are in it, so it is not impossible.
  if (part->graph.variables.empty())
    offer(readOut(part->graph, {}, core->variables.size()));
  else
    part->search = std::make_unique<LimitedSearch>(part->graph, limit, part->options, budget,
                                                   lowest, std::move(followed));
  if (part->search)
    part->search->isPart = true;
}

void LimitedSearch::partRound(double work) {
  constexpr double kMost = 40 * kMostWork;
  if (!part)
    startPart();
  if (part->search) {
    part->search->round(work);
    part->search->exchange();
    part->work += work;
    if (part->search->upper < upper)
      offer(readOut(part->graph, part->search->best, core->variables.size()));
  }
  if (!part->search || part->search->isEnough() || part->work > kMost) {
    part.reset();
    bound->restart();
  }
}

void LimitedSearch::setCore(Graph next, llvm::ArrayRef<double> prices) {
  part.reset();
  bound.reset();
  core = std::make_unique<Graph>(std::move(next));
  bound = std::make_unique<LagrangianBound>(*core, limit, [&] { return budget.isLate(); });
  if (!prices.empty())
    bound->startFrom(prices);
  numChoices = 0;
  for (const Variable &variable : core->variables)
    numChoices += variable.numChoices();
  removedAt = 0;
  primal = std::make_unique<LargeNeighbourhoodSearch>(*core, limit, options.seed);
  if (!bestInCore.empty())
    primal->offer(bestInCore);
}

bool LimitedSearch::isEnough() const {
  return proven ||
         (!best.empty() &&
          (lowest >= upper || double(upper - lowest) <= options.acceptableGap * double(upper)));
}

/// Keeps choices of the core's variables that are the best yet.
void LimitedSearch::offer(std::vector<unsigned> values) {
  std::vector<unsigned> choices = readOut(*core, values, graph.variables.size());
  Usage usage(graph, limit);
  CostSum cost = LocalSearch(graph, usage).objective(choices);
  if (!best.empty() && cost >= upper)
    return;
  upper = cost;
  best = std::move(choices);
  bestInCore = std::move(values);
}

/// Makes what prices suggest fit.
void LimitedSearch::offerRepaired(std::vector<unsigned> values) {
  Usage usage(*core, limit);
  LocalSearch local(*core, usage);
  constexpr double kMostWork = 5e7;
  auto late = [&] { return budget.isLate(); };
  bool fits = local.repair(values, kMostWork, late);
  budget.spend(local.work());
  if (!fits)
    return;
  double repairing = local.work();
  // Polishing is worth while for what is nearly the best.
  if (best.empty() || local.objective(values) - lowest < 2 * (upper - lowest))
    local.polish(values, late);
  budget.spend(local.work() - repairing);
  offer(std::move(values));
}

void LimitedSearch::boundRound(double most) {
  // At least a few steps, so that there is something to go on.
  constexpr unsigned kFewest = 10;
  constexpr size_t kFew = 4000; // Choices; with more, the search is better at it.
  double work = 0;
  for (unsigned step = 0; step < kFewest || work < most; ++step) {
    if (budget.isLate() || bound->isStuck())
      break;
    budget.spend(bound->stepWork());
    if (!bound->step(upper + !best.empty(), [&] { return budget.isLate(); })) {
      proven = true;
      return;
    }
    lowest = std::max(lowest, std::min(bound->lower(), upper));
    work += bound->stepWork();
    if (numChoices < kFew ? step % kFewest == 0 : best.empty() && step == 0)
      offerRepaired(bound->values().vec());
    if (isEnough())
      return;
  }
}

/// Drops what no answer as good as the best can make use of, once that promises
/// to be much. The search for answers begins anew on what is left, so it is left
/// alone while answers are poor.
void LimitedSearch::shrink() {
  constexpr double kWorthwhile = 0.1, kPoor = 0.1;
  double gap = double(upper - lowest);
  bool more = double(bound->numRemoved() - removedAt) > kWorthwhile * double(numChoices);
  bool closer = shrunkGap == 0 ? gap < kPoor * double(upper) : gap < (1 - kWorthwhile) * shrunkGap;
  if (best.empty() || !(more || (closer && (branching || bound->isStuck()))))
    return;
  shrunkGap = gap;
  std::vector<unsigned> followed = bestInCore;
  auto late = [&] { return budget.isLate(); };
  budget.spend(bound->restrictWork());
  std::optional<Graph> left = bound->restricted(upper + 1, &followed, late);
  lowest = std::max(lowest, std::min(bound->lower(), upper));
  removedAt = bound->numRemoved();
  if (!left) {
    proven = true;
    return;
  }
  std::vector<double> prices = bound->pricePerByte();
  std::vector<int> standIn = presolveWithin(*left, limit, &followed, late);
  if (left->impossibleNode) {
    proven = true;
    return;
  }
  if (late())
    return;
  std::vector<double> moved(left->baseBytes.size(), 0);
  for (size_t t = 0; t < standIn.size(); ++t)
    if (standIn[t] >= 0)
      moved[standIn[t]] += prices[t];
  bestInCore = std::move(followed);
  branching.reset();
  restarts = 0;
  bool solved = left->variables.empty();
  if (solved) {
    core = std::make_unique<Graph>(std::move(*left));
    offer({});
    proven = true;
    return;
  }
  setCore(std::move(*left), moved);
}

void LimitedSearch::branchRound(double work) {
  if (!branching)
    branching = std::make_unique<BranchAndBound>(*core, limit, bound->pricePerByte(), lowest);
  branching->run(
      work, upper,
      [&](const std::vector<unsigned> &values, CostSum) {
        offer(values);
        return upper;
      },
      [&] { return budget.isLate(); });
  budget.spend(branching->work());
  lowest = std::max(lowest, std::min(branching->lower(), upper));
  proven = branching->isDone();
}

void LimitedSearch::round(double work) {
  std::atomic<bool> over = false;
  // The other thread must not look at what this one changes, nor count with it.
  auto search = [&] { primal->run(kPrimalShare * work, [&] { return over || budget.isLate(); }); };
  double searched = primal->work();
  double before = primal->bestCost();
  bool had = !primal->best().empty();
  std::thread thread;
  if (options.threads > 1)
    thread = std::thread(search);
  // Branching is no use while bounding a branch takes long.
  constexpr double kQuickStep = 5e5;
  constexpr unsigned kRestarts = 2;
  bool large = bound->stepWork() > kQuickStep;
  bool mayPart = !isPart && !bestInCore.empty();
  if (!branching && !part && bound->isStuck() && (restarts < kRestarts || (large && !mayPart))) {
    bound->restart();
    ++restarts;
  }
  if (part || (bound->isStuck() && large && mayPart))
    partRound(work);
  else if (branching || bound->isStuck())
    branchRound(work);
  else
    boundRound(work);
  over = isEnough();
  if (thread.joinable())
    thread.join();
  else
    search();
  if (over)
    return;
  budget.spend((primal->work() - searched) / kPrimalShare);
  if (!primal->best().empty() && (!had || primal->bestCost() < before))
    offer(primal->best());
}

/// Tells either side the other's news.
void LimitedSearch::exchange() {
  if (!isEnough())
    shrink();
  if (isEnough())
    return;
  if (!best.empty())
    primal->offer(bestInCore);
  if (!bound->values().empty()) {
    primal->propose(bound->values());
    primal->setPrices(bound->pricePerByte());
  }
}

void LimitedSearch::run() {
  double work = kFirstWork;
  while (!isEnough() && !budget.isOver()) {
    round(std::min(work, budget.workLeft()));
    work = std::min(2 * work, kMostWork);
    exchange();
  }
  if (proven && !best.empty())
    lowest = upper;
}
