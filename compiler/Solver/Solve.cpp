//===- Solve.cpp - from a problem to a proven answer ----------------------===//
//
// Without memory: reductions; exact elimination if its tables are small; else a
// bound by shifting costs, which with a good answer at hand rules out most
// choices; elimination of what is left, or branch and bound. When memory binds:
// prices on the bytes of each moment, then branch and bound if time is left.
//
//===----------------------------------------------------------------------===//

#include "compiler/Solver/Solve.h"
#include "compiler/Solver/Collapse.h"
#include "compiler/Solver/Prices.h"
#include "compiler/Solver/Search.h"

#include "llvm/ADT/STLExtras.h"

#include <chrono>

using namespace alpa;

llvm::StringRef alpa::stringifySolveStatus(SolveStatus status) {
  switch (status) {
  case SolveStatus::Optimal:
    return "optimal";
  case SolveStatus::Feasible:
    return "feasible";
  case SolveStatus::Infeasible:
    return "infeasible";
  }
  return "";
}

namespace {

constexpr double kGraceSeconds = 2.0;   // To find any answer at all.
constexpr double kMaxEntries = 1 << 25; // Of all tables: 256 MiB.
constexpr double kWorkPerSecond = 6e8;  // Combinations; a cautious figure.
constexpr double kPricedShare = 0.2;    // Of the quick work: eliminated again for all prices.

class Solver {
public:
  Solver(const Problem &problem, const SolveOptions &options)
      : problem(problem), options(options), start(std::chrono::steady_clock::now()) {}

  llvm::Expected<Solution> run() {
    solution.nodes = problem.nodes.size();
    if (problem.nodes.empty()) {
      solution.status = SolveStatus::Optimal;
      return finish();
    }
    if (solveWithoutMemory() && problem.usageLimitBytes &&
        (solution.choices.empty() ||
         evaluate(problem, solution.choices).peakUsageBytes > *problem.usageLimitBytes))
      solveWithMemory();
    return finish();
  }

private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  bool outOfTime(double share = 1.0, double grace = 0.0) const {
    return seconds() > options.timeLimitSeconds * share + grace;
  }

  /// Combinations that an elimination may go through in a share of the time.
  double workFor(double share) const {
    return std::max(options.quickWork, kWorkPerSecond * options.timeLimitSeconds * share);
  }

  /// Choices of the graph's variables as choices of the problem's nodes.
  std::vector<unsigned> expand(const Graph &graph, llvm::ArrayRef<unsigned> values) const {
    return readOut(graph, values, problem.nodes.size());
  }

  /// The true cost, or none if something forbidden is taken.
  std::optional<CostSum> costOf(llvm::ArrayRef<unsigned> choices) const {
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

  std::string nameOf(unsigned node) const {
    const std::string &name = problem.nodes[node].name;
    return name.empty() ? "node " + std::to_string(node) : name;
  }

  void refuse(std::string reason, bool proven = true) {
    solution.isUnknown = !proven;
    solution.status = SolveStatus::Infeasible;
    solution.choices.clear();
    solution.infeasibleReason = std::move(reason);
  }

  bool refuseImpossible(const Graph &graph) {
    tooLarge |= graph.clipped;
    refuse("every choice of " + nameOf(*graph.impossibleNode) +
           " is forbidden, by itself or with all choices of a neighbour");
    return false;
  }

  /// The best known answer. `upper` is its cost, or more than any answer's.
  struct Incumbent {
    std::vector<unsigned> choices; // Of the problem's nodes.
    CostSum upper = 0;

    void offer(std::vector<unsigned> other, std::optional<CostSum> cost) {
      if (cost && (*cost < upper || choices.empty())) {
        upper = *cost;
        choices = std::move(other);
      }
    }
  };

  /// Shifting costs takes many passes over all edges; tables that cost less than
  /// some of them are better eliminated at once.
  double eliminateAtOnce(const Graph &graph) const {
    constexpr double kPasses = 64;
    double entries = 0;
    for (const GraphEdge &edge : graph.edges)
      entries += double(edge.costs.size());
    return std::max(options.quickWork, std::min(kPasses * entries, 1e3 * options.quickWork));
  }

  /// Rules out choices by a bound; false if the incumbent is proven. `best` is
  /// improved on the way, `lower` bounds the cost.
  bool tighten(Graph &graph, Incumbent &best, CostSum &lower, double share) {
    constexpr unsigned kMaxSweeps = 500;
    constexpr unsigned kCheckEvery = 8;
    Usage none(graph, 0);
    LocalSearch local(graph, none);
    Dual dual(graph);
    CostSum lastBound = dual.bound();
    size_t lastRemoved = 0, triedAt = 0;
    std::optional<Graph> next;
    for (unsigned sweep = 0; sweep < kMaxSweeps; ++sweep) {
      // The first answer is awaited.
      if (sweep >= kCheckEvery && outOfTime(share))
        break;
      if (!dual.sweep(best.upper - graph.constant)) {
        lower = best.upper;
        return false;
      }
      lower = std::max(lower, dual.bound() + graph.constant);
      if (sweep % kCheckEvery != kCheckEvery - 1)
        continue;
      std::vector<unsigned> values = dual.decode();
      local.polish(values, [&] { return outOfTime(share); });
      std::vector<unsigned> choices = expand(graph, values);
      best.offer(choices, costOf(choices));
      if (lower >= best.upper)
        return false;
      if (double(best.upper - lower) <= options.acceptableGap * double(best.upper))
        return false;
      double gain = double(dual.bound() - lastBound);
      double gap = double(best.upper - lower);
      bool removes = dual.numRemoved() > lastRemoved;
      if (gain < 2e-3 * gap && !removes)
        break;
      lastBound = dual.bound();
      lastRemoved = dual.numRemoved();
      // What is left may already be easy.
      if (lastRemoved > 1.25 * double(triedAt)) {
        triedAt = lastRemoved;
        Graph left = dual.shifted();
        reduceGraph(left);
        if (left.impossibleNode || Buckets(left).exactWork() <= options.quickWork) {
          next = std::move(left);
          break;
        }
      }
    }
    if (!next) {
      next = dual.shifted();
      reduceGraph(*next);
    }
    graph = std::move(*next);
    if (graph.impossibleNode)
      lower = best.upper;
    return !graph.impossibleNode;
  }

  /// False if there is no answer.
  bool solveWithoutMemory() {
    Graph graph = buildGraph(problem, /*moments=*/nullptr);
    if (graph.impossibleNode)
      return refuseImpossible(graph);
    bool clipped = graph.clipped;
    auto buckets = std::make_unique<Buckets>(graph);
    solution.eliminated = graph.fixed.size() + buckets->numSimple();
    Incumbent best;
    best.upper = CostSum(kInfinity) * (1 + graph.variables.size() + graph.edges.size());
    CostSum lower = 0;
    // With a memory limit to come, this may not use all of the time.
    double share = problem.usageLimitBytes ? 0.3 : 1.0;
    bool open = true, exact = false;
    if (buckets->exactWork() > eliminateAtOnce(graph)) {
      if (problem.usageLimitBytes)
        return true; // Prices of zero are where the search with memory begins.
      open = tighten(graph, best, lower, share * 0.7);
      buckets = std::make_unique<Buckets>(graph);
    }
    if (open) {
      buckets->plan(workFor(problem.usageLimitBytes ? 0.05 : 0.7), kMaxEntries);
      CostSum bound = buckets->eliminate({}) + graph.constant;
      lower = std::max(lower, bound);
      auto objective = [&](llvm::ArrayRef<unsigned> values) {
        return costOf(expand(graph, values)).value_or(best.upper);
      };
      std::vector<unsigned> choices = expand(graph, buckets->decode());
      best.offer(choices, costOf(choices));
      if (buckets->isExact()) {
        lower = std::min(bound, best.upper);
        exact = true;
      } else {
        SearchResult result = branchAndBound(*buckets, nullptr, bound, best.upper, objective,
                                             [&] { return outOfTime(share); });
        if (result.choices)
          best.offer(expand(graph, *result.choices), result.objective);
        open = !result.complete;
        if (result.complete)
          lower = best.upper;
      }
    }
    if (best.choices.empty()) {
      tooLarge |= clipped;
      refuse(open && !exact
                 ? "no allowed choices were found in the time limit; that there are none is not "
                   "proven"
                 : "no combination of choices avoids all forbidden pairs",
             !open || exact);
      return false;
    }
    // After an elimination the evaluator must agree with its bound.
    memoryFreeBound = std::min(lower, best.upper);
    accept(std::move(best.choices), memoryFreeBound);
    return true;
  }

  void accept(std::vector<unsigned> choices, CostSum lowerBound) {
    solution.status = SolveStatus::Feasible; // Until the evaluator agrees.
    solution.choices = std::move(choices);
    solution.lowerBound = lowerBound;
  }

  /// Names the nodes that use most at a moment, whatever they choose.
  std::string describe(const Moments &moments, const Graph &graph, unsigned moment) const {
    std::vector<int64_t> least(problem.nodes.size(), 0);
    for (auto [node, choice] : graph.fixed)
      if (!moments.ofNode[node].empty())
        least[node] = problem.nodes[node].usagesBytes[choice];
    for (const Variable &variable : graph.variables)
      for (const Member &member : variable.members) {
        if (moments.ofNode[member.node].empty())
          continue;
        int64_t bytes = std::numeric_limits<int64_t>::max();
        for (unsigned choice : member.choices)
          bytes = std::min(bytes, problem.nodes[member.node].usagesBytes[choice]);
        least[member.node] = bytes;
      }
    std::vector<unsigned> live;
    for (unsigned node = 0; node < moments.ofNode.size(); ++node)
      if (llvm::any_of(moments.ofNode[node], [&](MomentRange range) {
            return range.begin <= moment && moment < range.end;
          }))
        live.push_back(node);
    llvm::sort(live, [&](unsigned x, unsigned y) {
      return std::make_pair(least[y], x) < std::make_pair(least[x], y);
    });
    std::string text = "live at moment " + std::to_string(moments.times[moment]) + ":";
    constexpr size_t kNamed = 8;
    for (size_t i = 0; i < std::min(kNamed, live.size()); ++i)
      text += (i ? ", " : " ") + nameOf(live[i]) + " (at least " + std::to_string(least[live[i]]) +
              " bytes)";
    if (live.size() > kNamed)
      text += " and " + std::to_string(live.size() - kNamed) + " more";
    return text;
  }

  void solveWithMemory() {
    Moments moments = compressMoments(problem);
    Graph graph = buildGraph(problem, &moments);
    if (graph.impossibleNode) {
      refuseImpossible(graph);
      return;
    }
    int64_t limit = *problem.usageLimitBytes;
    std::string tightest;
    {
      Usage least(graph, limit);
      std::optional<unsigned> fullest = least.fullest();
      tightest = fullest ? describe(moments, graph, *fullest) : "";
      if (fullest && least.at()[*fullest] > limit)
        return refuse("at least " + std::to_string(least.at()[*fullest]) +
                      " bytes are needed, the limit is " + std::to_string(limit) + "; " + tightest);
    }
    collapseWithin(graph, limit);
    if (graph.impossibleNode)
      return refuse("no combination of choices stays within " + std::to_string(limit) + " bytes; " +
                    tightest);
    if (graph.variables.empty()) {
      std::vector<unsigned> choices = expand(graph, {});
      CostSum cost = *costOf(choices);
      return accept(std::move(choices), cost);
    }
    Usage usage(graph, limit);

    Buckets quick(graph);
    bool isQuick = quick.exactWork() <= options.quickWork * kPricedShare;
    if (isQuick)
      quick.plan(1e18, kMaxEntries);
    auto late = [&] { return outOfTime(); };
    PriceSearch prices(graph, usage, isQuick ? &quick : nullptr, late);
    prices.lower = memoryFreeBound - graph.constant;
    prices.acceptable = CostSum(options.acceptableGap * double(memoryFreeBound));
    // Saying too early that nothing fits would be worse than being late.
    prices.run(
        [&] { return outOfTime(0.6) && (!prices.best.empty() || outOfTime(1.0, kGraceSeconds)); });

    CostSum offset = 0;
    bool proven = prices.proven;
    std::vector<unsigned> choices;
    if (!prices.best.empty())
      choices = expand(graph, prices.best);
    CostSum lower = std::max(prices.lower + graph.constant, memoryFreeBound);
    bool enough = !choices.empty() && prices.upper - prices.lower <= prices.acceptable;
    if (!proven && !enough) {
      Graph left = prices.remaining(offset);
      lower = std::max(lower, prices.lower + graph.constant);
      // Not collapsed: of two choices, the one that is cheaper with prices and uses
      // less may be dearer without them.
      proven = prices.proven || left.impossibleNode;
      if (!proven)
        proven = closeGap(left, offset, prices.upper + graph.constant, choices, lower);
    }
    if (choices.empty()) {
      tooLarge |= graph.clipped && proven;
      return refuse((proven ? "no combination of choices stays within "
                            : "no choices were found in the time limit that stay within ") +
                        std::to_string(limit) +
                        (proven ? " bytes; " : " bytes (that there are none is not proven); ") +
                        tightest,
                    proven);
    }
    if (proven)
      lower = *costOf(choices);
    accept(std::move(choices), lower);
  }

  /// Branch and bound over what prices left open. True if it ends in time.
  bool closeGap(const Graph &graph, CostSum offset, CostSum upper, std::vector<unsigned> &choices,
                CostSum &lower) {
    Buckets buckets(graph);
    buckets.plan(workFor(0.05), kMaxEntries);
    Usage usage(graph, *problem.usageLimitBytes);
    CostSum bound = buckets.eliminate({}) + graph.constant - offset;
    lower = std::max(lower, std::min(bound, upper));
    auto objective = [&](llvm::ArrayRef<unsigned> values) {
      return costOf(expand(graph, values)).value_or(upper);
    };
    SearchResult result =
        branchAndBound(buckets, &usage, bound, upper, objective, [&] { return outOfTime(); });
    if (result.choices)
      choices = expand(graph, *result.choices);
    return result.complete;
  }

  llvm::Expected<Solution> finish() {
    if (tooLarge)
      return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                     "costs are too large to be added up exactly: allowed ones "
                                     "reach 2^58 in sum; count in a larger unit");
    if (solution.status != SolveStatus::Infeasible) {
      Evaluation evaluation = evaluate(problem, solution.choices);
      solution.objective = evaluation.objective;
      solution.peakUsageBytes = evaluation.peakUsageBytes;
      if (!evaluation.feasible)
        return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                       "internal error of the solver: its answer breaks the limit "
                                       "or takes a forbidden choice");
      if (solution.lowerBound >= solution.objective) {
        solution.status = SolveStatus::Optimal;
        solution.lowerBound = solution.objective;
      }
      if (solution.objective > 0)
        solution.gap =
            double(solution.objective - solution.lowerBound) / double(solution.objective);
    }
    solution.seconds = seconds();
    return std::move(solution);
  }

  const Problem &problem;
  const SolveOptions &options;
  std::chrono::steady_clock::time_point start;
  Solution solution;
  CostSum memoryFreeBound = 0;
  bool tooLarge = false;
};

} // namespace

llvm::Expected<Solution> alpa::solve(const Problem &problem, const SolveOptions &options) {
  if (llvm::Error error = verifyProblem(problem))
    return error;
  return Solver(problem, options).run();
}
