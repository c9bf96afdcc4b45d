//===- UnlimitedSearch.cpp - solving without a memory limit ---------------===//

#include "compiler/Solver/Search/UnlimitedSearch.h"

#include "compiler/Solver/MemoryLimited/LocalSearch.h"
#include "compiler/Solver/Search/BucketElimination.h"
#include "compiler/Solver/Search/CostShifting.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <algorithm>
#include <numeric>
#include <optional>

using namespace alpa;
using namespace alpa::solver;

//===----------------------------------------------------------------------===//
// Branch and bound over bucket tables
//===----------------------------------------------------------------------===//

namespace {

struct SearchResult {
  bool complete = false;                        // Everything cheaper than the answer was ruled out.
  std::optional<std::vector<unsigned>> choices; // Better ones than known before.
  CostSum objective = 0;
};

} // namespace

namespace {

struct Level {
  std::vector<int64_t> regrets;
  std::vector<unsigned> order; // Choices by regret.
  size_t next = 0;
  CostSum bound = 0; // Before this level's choice.
};

} // namespace

/// Depth first in the buckets' order of assignment, least regret first. `bound`
/// is what `BucketElimination::eliminate` found, with all constants, so that it bounds what
/// `objective` says about complete assignments. Finds only solutions cheaper than
/// `upper`.
static SearchResult branchAndBound(const BucketElimination &buckets, CostSum bound, CostSum upper,
                                   llvm::function_ref<CostSum(llvm::ArrayRef<unsigned>)> objective,
                                   Budget &budget) {
  SearchResult result;
  llvm::ArrayRef<unsigned> order = buckets.assignmentOrder();
  size_t depth = order.size();
  std::vector<unsigned> values(depth, 0);
  std::vector<Level> levels(depth + 1);
  auto enter = [&](size_t at, CostSum lower) {
    Level &level = levels[at];
    level.bound = lower;
    level.next = 0;
    constexpr double kWorkPerNode = 100;
    budget.spend(kWorkPerNode);
    if (at == depth)
      return;
    budget.spend(buckets.regretWork(order[at]));
    buckets.regrets(order[at], values, level.regrets);
    level.order.resize(level.regrets.size());
    std::iota(level.order.begin(), level.order.end(), 0);
    llvm::sort(level.order, [&](unsigned x, unsigned y) {
      return std::tie(level.regrets[x], x) < std::tie(level.regrets[y], y);
    });
  };
  enter(0, bound);
  uint64_t steps = 0;
  for (size_t at = 0;;) {
    if ((++steps & 0xff) == 0 && budget.isOver())
      return result;
    Level &level = levels[at];
    if (at == depth) {
      CostSum cost = objective(values);
      if (cost < upper) {
        upper = cost;
        result.objective = cost;
        result.choices = values;
      }
    }
    bool descended = false;
    while (at < depth && level.next < level.order.size()) {
      unsigned v = order[at], choice = level.order[level.next++];
      if (level.regrets[choice] >= kInfinity || level.bound + level.regrets[choice] >= upper) {
        level.next = level.order.size(); // The others are no better.
        break;
      }
      values[v] = choice;
      enter(at + 1, level.bound + level.regrets[choice]);
      ++at;
      descended = true;
      break;
    }
    if (descended)
      continue;
    if (at == 0) {
      result.complete = true;
      return result;
    }
    --at;
  }
}

//===----------------------------------------------------------------------===//
// Solving without a memory limit
//===----------------------------------------------------------------------===//

static constexpr double kMaxEntries = 1 << 25; // Of all tables: 256 MiB.
static constexpr double kWorkPerSecond = 6e8;  // Combinations; a cautious figure.
static constexpr double kShareOfSweeps = 0.7;  // The rest is for what they leave.

static constexpr double kNoBound = std::numeric_limits<double>::infinity();

static size_t countEntries(const Graph &graph) {
  size_t entries = 0;
  for (const GraphEdge &edge : graph.edges)
    entries += edge.costs.size();
  return entries;
}

std::optional<CostSum> solver::allowedCost(const Problem &problem,
                                           llvm::ArrayRef<unsigned> choices) {
  CostSum sum = 0;
  bool allowed = true;
  auto add = [&](int64_t cost) {
    sum += cost;
    allowed &= cost < kForbiddenCost;
  };
  for (unsigned i = 0; i < choices.size(); ++i)
    add(problem.nodes[i].costs[choices[i]]);
  for (const ProblemEdge &edge : problem.edges)
    add(edge.costs[choices[edge.a] * problem.nodes[edge.b].costs.size() + choices[edge.b]]);
  return allowed ? std::optional<CostSum>(sum) : std::nullopt;
}

UnlimitedSearch::UnlimitedSearch(const Problem &problem, const SolveOptions &options,
                                 Budget &budget)
    : problem(problem), options(options), budget(budget),
      graph(buildGraph(problem, /*timePoints=*/nullptr, [&] { return budget.isLate(); })) {
  impossibleNode = graph.impossibleNode;
  if (impossibleNode)
    return;
  // Shifting costs takes many passes over all edges; tables that cost less than
  // some of them are better eliminated at once.
  constexpr double kPasses = 64;
  double passes = kPasses * double(countEntries(graph));
  double atOnce = std::max(options.quickWork, std::min(passes, 1e3 * options.quickWork));
  buckets = std::make_unique<BucketElimination>(graph, atOnce, [&] { return budget.isLate(); });
  quick = buckets->exactWork() <= atOnce;
  eliminated = problem.nodes.size() - graph.variables.size() + buckets->numSimple();
  upper = CostSum(kInfinity) * (1 + graph.variables.size() + graph.edges.size());
}

std::vector<unsigned> UnlimitedSearch::expand(llvm::ArrayRef<unsigned> values) const {
  return readOut(graph, values, problem.nodes.size());
}

void UnlimitedSearch::offer(std::vector<unsigned> other) {
  std::optional<CostSum> cost = allowedCost(problem, other);
  if (cost && (*cost < upper || choices.empty())) {
    upper = *cost;
    choices = std::move(other);
  }
}

/// Rules out choices by a bound; false if the answer is good enough.
bool UnlimitedSearch::tighten() {
  unsigned sweeps = 0;
  while (true) {
    switch (sweepOver(sweeps)) {
    case Progress::Enough:
      return false;
    case Progress::Shrunk:
      break;
    case Progress::Stuck:
      return true;
    }
  }
}

/// Bounds the graph until that leads no further, or until so much is ruled out
/// that a graph of what is left is worth its making.
UnlimitedSearch::Progress UnlimitedSearch::sweepOver(unsigned &sweeps) {
  constexpr unsigned kMaxSweeps = 500;
  constexpr unsigned kCheckEvery = 8;
  Usage none(graph, 0);
  LocalSearch local(graph, none);
  CostShifting dual(graph);
  CostSum lastBound = dual.bound();
  size_t lastRemoved = 0, triedAt = 0, entries = countEntries(graph);
  auto late = [&] { return budget.isLate(kShareOfSweeps); };
  auto isOver = [&] { return budget.isOver(kShareOfSweeps); };
  auto take = [&](Graph left, Progress progress) {
    graph = std::move(left);
    proven = graph.impossibleNode.has_value();
    return proven ? Progress::Enough : progress;
  };
  auto reduced = [&] {
    budget.spend(dual.sweepWork());
    Graph left = dual.shifted();
    reduceGraph(left, [&] { return budget.isLate(); });
    return left;
  };
  // The first answer is awaited as long as there is time.
  for (; sweeps < kMaxSweeps && !(sweeps < kCheckEvery ? late() : isOver()); ++sweeps) {
    budget.spend(dual.sweepWork());
    if (!dual.sweep(upper - graph.constant, late)) {
      proven = true;
      return Progress::Enough;
    }
    lower = std::max(lower, dual.bound() + graph.constant);
    if (sweeps % kCheckEvery != kCheckEvery - 1)
      continue;
    std::vector<unsigned> values = dual.decode();
    double polished = local.work();
    local.polish(values, late);
    budget.spend(local.work() - polished);
    offer(expand(values));
    proven = lower >= upper;
    if (proven || double(upper - lower) <= options.acceptableGap * double(upper))
      return Progress::Enough;
    double gain = double(dual.bound() - lastBound);
    double gap = double(upper - lower);
    bool removes = dual.numRemoved() > lastRemoved;
    if (gain < 2e-3 * gap && !removes)
      break;
    lastBound = dual.bound();
    lastRemoved = dual.numRemoved();
    if (lastRemoved <= 1.25 * double(triedAt))
      continue;
    // What is left may already be easy.
    triedAt = lastRemoved;
    Graph left = reduced();
    if (left.impossibleNode ||
        BucketElimination(left, options.quickWork).exactWork() <= options.quickWork)
      return take(std::move(left), Progress::Stuck);
    if (2 * countEntries(left) <= entries) {
      ++sweeps;
      return take(std::move(left), Progress::Shrunk);
    }
  }
  if (choices.empty())
    offer(expand(dual.decode()));
  return take(reduced(), Progress::Stuck);
}

/// Solves what is left of the graph, or bounds it and searches over its tables.
void UnlimitedSearch::eliminateRest() {
  if (!quick)
    buckets = std::make_unique<BucketElimination>(graph, kNoBound, [&] { return budget.isLate(); });
  if (budget.isLate())
    return;
  double work =
      std::min(budget.workLeft(), kWorkPerSecond * options.timeLimitSeconds * kShareOfSweeps);
  buckets->plan(std::max(options.quickWork, work), kMaxEntries);
  budget.spend(buckets->work());
  CostSum bound = buckets->eliminate({}, [&] { return budget.isLate(); }) + graph.constant;
  if (budget.isLate())
    return;
  offer(expand(buckets->decode()));
  // After an elimination the evaluator must agree with its bound.
  lower = std::max(lower, choices.empty() ? bound : std::min(bound, upper));
  proven = buckets->isExact() && (choices.empty() || lower == upper);
  if (buckets->isExact())
    return;
  auto objective = [&](llvm::ArrayRef<unsigned> values) {
    return allowedCost(problem, expand(values)).value_or(upper);
  };
  SearchResult result = branchAndBound(*buckets, bound, upper, objective, budget);
  if (result.choices)
    offer(expand(*result.choices));
  proven = result.complete;
}

void UnlimitedSearch::run() {
  if (impossibleNode) {
    proven = true;
    return;
  }
  if (quick || tighten())
    eliminateRest();
  if (proven && !choices.empty())
    lower = upper;
}
