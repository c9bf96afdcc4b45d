//===- Solve.cpp - from a problem to a proven answer ----------------------===//
//
// Without memory the reduced graph is eliminated exactly if its tables are small.
// Otherwise costs are moved until the bound meets a solution, or until so few
// choices are left that tables are small or a search ends. When memory binds, prices on the bytes
// of each moment (Lagrange multipliers, subgradient steps of Polyak's length) turn the limit into
// costs: the priced optimum bounds the true one from below, its choices are repaired and improved,
// and branch and bound closes the gap if the time allows. Prices are fractions with a fixed
// denominator and are rounded in the bound's disfavour, so bounds hold exactly.
//
//===----------------------------------------------------------------------===//

#include "compiler/Solver/Solve.h"
#include "compiler/Solver/Dual.h"
#include "compiler/Solver/Search.h"

#include "llvm/ADT/STLExtras.h"

#include <chrono>
#include <cmath>

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

constexpr double kMaxEntries = 1 << 25; // Of all tables: 256 MiB.
constexpr double kWorkPerSecond = 3e8;  // Table entries; a cautious figure.
constexpr double kSmallWork = 3e6;      // Elimination at once, whatever the time limit.
constexpr unsigned kPriceShift = 30;

class Solver {
public:
  Solver(const Problem &problem, const SolveOptions &options)
      : problem(problem), options(options), start(std::chrono::steady_clock::now()) {}

  llvm::Expected<Solution> run() {
    solution.nodes = problem.nodes.size();
    if (!solveWithoutMemory())
      return finish();
    if (problem.usageLimitBytes && solution.status != SolveStatus::Infeasible) {
      Evaluation evaluation = evaluate(problem, solution.choices);
      if (evaluation.peakUsageBytes > *problem.usageLimitBytes)
        solveWithMemory();
    }
    return finish();
  }

private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  bool outOfTime() const { return seconds() > options.timeLimitSeconds; }

  /// Tables as large as an elimination in a share of the time allows.
  std::unique_ptr<Buckets> makeBuckets(const Graph &graph, double share) {
    auto buckets = std::make_unique<Buckets>(graph);
    buckets->plan(kWorkPerSecond * options.timeLimitSeconds * share, kMaxEntries);
    return buckets;
  }

  /// Choices of the graph's variables as choices of the problem's nodes.
  std::vector<unsigned> expand(const Graph &graph, llvm::ArrayRef<unsigned> values) const {
    std::vector<unsigned> choices(problem.nodes.size(), 0);
    for (auto [node, choice] : graph.fixed)
      choices[node] = choice;
    for (unsigned v = 0; v < values.size(); ++v)
      choices[graph.variables[v].node] = graph.variables[v].choices[values[v]];
    return choices;
  }

  void accept(SolveStatus status, std::vector<unsigned> choices, CostSum lowerBound) {
    solution.status = status;
    solution.choices = std::move(choices);
    solution.lowerBound = lowerBound;
  }

  void refuse(std::string reason) {
    solution.status = SolveStatus::Infeasible;
    solution.choices.clear();
    solution.infeasibleReason = std::move(reason);
  }

  /// False if the answer is already known: nothing is allowed.
  bool solveWithoutMemory() {
    Graph graph = buildGraph(problem, /*withMemory=*/false);
    if (!graph.infeasibleReason.empty()) {
      refuse(graph.infeasibleReason);
      return false;
    }
    Buckets small(graph);
    small.plan(kSmallWork, kMaxEntries);
    solution.eliminated = graph.fixed.size() + small.numSimple();
    if (small.isExact())
      return acceptExact(graph, small);

    // With a memory limit to come, this may not use all of the time.
    double share = problem.usageLimitBytes ? 0.3 : 1.0;
    std::function<bool()> stop = [&] { return seconds() > options.timeLimitSeconds * share; };
    Tightened tight =
        tighten(graph, [&] { return seconds() > options.timeLimitSeconds * share * 0.5; });
    if (tight.best && tight.graph.constant >= tight.upper) {
      memoryFreeBound = tight.upper;
      accept(SolveStatus::Optimal, expand(graph, *tight.best), tight.upper);
      return true;
    }
    std::unique_ptr<Buckets> buckets = makeBuckets(tight.graph, share * 0.3);
    if (buckets->isExact())
      return acceptExact(tight.graph, *buckets);
    CostSum bound = buckets->eliminate({});
    CostSum upper = tight.best ? tight.upper - tight.graph.constant
                               : CostSum(kInfinity) * (1 + graph.variables.size());
    SearchResult result = branchAndBound(tight.graph, *buckets, nullptr, bound, upper, stop);
    if (!tight.best && !result.choices) {
      tooLarge = graph.clipped;
      refuse(result.complete ? "no combination of choices avoids all forbidden pairs"
                             : "no allowed choices were found in the time limit; that there are "
                               "none is not proven");
      return false;
    }
    std::vector<unsigned> choices =
        result.choices ? expand(tight.graph, *result.choices) : expand(graph, *tight.best);
    memoryFreeBound = result.complete ? evaluate(problem, choices).objective
                                      : std::max(bound, CostSum(0)) + tight.graph.constant;
    accept(result.complete ? SolveStatus::Optimal : SolveStatus::Feasible, std::move(choices),
           memoryFreeBound);
    return true;
  }

  bool acceptExact(const Graph &graph, Buckets &buckets) {
    memoryFreeBound = buckets.eliminate({}) + graph.constant;
    std::vector<unsigned> choices = expand(graph, buckets.decode());
    if (!allowed(choices)) {
      tooLarge = graph.clipped;
      refuse("no combination of choices avoids all forbidden pairs");
      return false;
    }
    accept(SolveStatus::Optimal, std::move(choices), memoryFreeBound);
    return true;
  }

  bool allowed(llvm::ArrayRef<unsigned> choices) const {
    for (unsigned i = 0; i < choices.size(); ++i)
      if (problem.nodes[i].costs[choices[i]] >= kForbiddenCost)
        return false;
    return llvm::none_of(problem.edges, [&](const ProblemEdge &edge) {
      return edge.costs[choices[edge.a] * problem.nodes[edge.b].costs.size() + choices[edge.b]] >=
             kForbiddenCost;
    });
  }

  /// Names the nodes that use most at a moment.
  std::string describe(const Moments &moments, const Graph &graph, const Usage &usage,
                       unsigned moment) const {
    std::vector<unsigned> live(usage.liveAt(moment).begin(), usage.liveAt(moment).end());
    llvm::sort(live, [&](unsigned x, unsigned y) {
      return std::make_pair(usage.least(y), x) < std::make_pair(usage.least(x), y);
    });
    std::string text = "live at moment " + std::to_string(moments.times[moment]) + ":";
    constexpr size_t kNamed = 8;
    for (size_t i = 0; i < std::min(kNamed, live.size()); ++i) {
      unsigned node = graph.variables[live[i]].node;
      const std::string &name = problem.nodes[node].name;
      text += (i ? ", " : " ") + (name.empty() ? "node " + std::to_string(node) : name) +
              " (at least " + std::to_string(usage.least(live[i])) + " bytes)";
    }
    if (live.size() > kNamed)
      text += " and " + std::to_string(live.size() - kNamed) + " more";
    return text;
  }

  void solveWithMemory() {
    Graph graph = buildGraph(problem, /*withMemory=*/true);
    if (!graph.infeasibleReason.empty())
      return refuse(graph.infeasibleReason);
    Moments moments = compressMoments(problem);
    int64_t limit = *problem.usageLimitBytes;
    Usage usage(graph, moments, limit);
    for (unsigned v = 0; v < graph.variables.size(); ++v)
      usage.add(v, usage.least(v));
    std::optional<unsigned> fullest = usage.fullest();
    std::string tightest = fullest ? describe(moments, graph, usage, *fullest) : "";
    if (fullest && usage.at()[*fullest] > limit)
      return refuse("at least " + std::to_string(usage.at()[*fullest]) +
                    " bytes are needed, the limit is " + std::to_string(limit) + "; " + tightest);

    std::unique_ptr<Buckets> buckets = makeBuckets(graph, 0.02);
    CostSum lower = memoryFreeBound - graph.constant;
    CostSum worst = CostSum(kInfinity) * (1 + graph.variables.size());
    CostSum upper = worst;
    std::vector<unsigned> best;
    std::vector<int64_t> prices(moments.times.size(), 0), bestPrices = prices;
    optimizePrices(graph, *buckets, usage, prices, bestPrices, lower, upper, best);

    bool proven = !best.empty() && lower >= upper;
    if (!proven) {
      CostSum bound = priced(graph, *buckets, usage, bestPrices);
      SearchResult result =
          branchAndBound(graph, *buckets, &usage, bound, upper, [&] { return outOfTime(); });
      if (result.choices) {
        best = *result.choices;
        upper = result.objective;
      }
      proven = result.complete;
    }
    if (best.empty()) {
      tooLarge = graph.clipped && proven;
      return refuse((proven ? "no combination of choices stays within "
                            : "no choices were found in the time limit that stay within ") +
                    std::to_string(limit) +
                    (proven ? " bytes; " : " bytes (that there are none is not proven); ") +
                    tightest);
    }
    accept(proven ? SolveStatus::Optimal : SolveStatus::Feasible, expand(graph, best),
           (proven ? upper : lower) + graph.constant);
  }

  /// The priced optimum less the price of the limit: a lower bound.
  CostSum priced(const Graph &graph, Buckets &buckets, const Usage &usage,
                 llvm::ArrayRef<int64_t> prices) {
    std::vector<CostSum> sums(prices.size() + 1, 0);
    for (size_t t = 0; t < prices.size(); ++t)
      sums[t + 1] = sums[t] + prices[t];
    std::vector<std::vector<int64_t>> added(graph.variables.size());
    for (unsigned v = 0; v < added.size(); ++v) {
      CostSum price = 0;
      for (MomentRange range : usage.life(v))
        price += sums[range.end] - sums[range.begin];
      if (price == 0)
        continue;
      for (int64_t bytes : graph.variables[v].usages) {
        CostSum most = CostSum(kInfinity) << kPriceShift;
        bool large = bytes > 0 && price > most / bytes;
        added[v].push_back(large ? kInfinity : int64_t((price * bytes) >> kPriceShift));
      }
    }
    return buckets.eliminate(added) - ((sums.back() * usage.limit()) >> kPriceShift);
  }

  void optimizePrices(const Graph &graph, Buckets &buckets, Usage &usage,
                      std::vector<int64_t> &prices, std::vector<int64_t> &bestPrices,
                      CostSum &lower, CostSum &upper, std::vector<unsigned> &best) {
    constexpr unsigned kMaxRounds = 400;
    constexpr unsigned kPatience = 6;
    LocalSearch local(graph, usage);
    double pace = 1.0;
    unsigned stale = 0;
    bool hasBound = false;
    double share = options.timeLimitSeconds * 0.6;
    for (unsigned round = 0; round < kMaxRounds && seconds() < share; ++round) {
      CostSum bound = priced(graph, buckets, usage, prices);
      std::vector<unsigned> values = buckets.decode();
      std::vector<unsigned> fixed = values;
      if (local.repair(fixed)) {
        CostSum objective = local.objective(fixed) - graph.constant;
        // Polishing is worth while for what is nearly the best.
        if (best.empty() || objective - lower < 2 * (upper - lower)) {
          local.polish(fixed, [&] { return outOfTime(); });
          objective = local.objective(fixed) - graph.constant;
        }
        if (best.empty() || objective < upper) {
          upper = objective;
          best = fixed;
        }
      }
      if (!hasBound || bound > lower) {
        // Small gains do not count as progress.
        bool progress = !hasBound || double(bound - lower) > 1e-4 * double(upper - lower);
        stale = progress ? 0 : stale + 1;
        lower = std::max(lower, bound);
        bestPrices = prices;
        hasBound = true;
      } else {
        ++stale;
      }
      if (!best.empty() && lower >= upper)
        return;
      if (stale >= kPatience) {
        pace *= 0.5;
        stale = 0;
        if (pace < 1e-3)
          return;
      }
      step(graph, usage, values, bound, lower, upper, best.empty(), pace, prices);
    }
  }

  /// Raises prices where the limit is exceeded, lowers them where bytes are left.
  void step(const Graph &graph, Usage &usage, llvm::ArrayRef<unsigned> values, CostSum bound,
            CostSum lower, CostSum upper, bool noUpper, double pace, std::vector<int64_t> &prices) {
    usage.clear();
    for (unsigned v = 0; v < values.size(); ++v)
      usage.add(v, usage.of(v, values[v]));
    double norm = 0;
    auto slope = [&](size_t t) {
      double excess = double(usage.at()[t] - usage.limit());
      return prices[t] == 0 && excess < 0 ? 0.0 : excess;
    };
    for (size_t t = 0; t < prices.size(); ++t)
      norm += slope(t) * slope(t);
    if (norm == 0)
      return;
    double target = noUpper ? std::max(std::abs(double(lower)) * 0.1, 1.0) : double(upper - bound);
    double length = pace * std::max(target, 1.0) / norm * double(int64_t(1) << kPriceShift);
    for (size_t t = 0; t < prices.size(); ++t) {
      double next = double(prices[t]) + length * slope(t);
      prices[t] = int64_t(std::clamp(next, 0.0, 0x1p60));
    }
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
      if (solution.lowerBound < solution.objective)
        solution.status = SolveStatus::Feasible;
      else
        solution.lowerBound = solution.objective;
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
