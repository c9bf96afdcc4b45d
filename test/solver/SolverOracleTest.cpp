//===- SolverOracleTest.cpp - solvers against enumeration -----------------===//
//
// Small random problems of every kind that the form allows: several intervals,
// empty ones, parallel and reversed edges, forbidden choices and pairs, no and
// zero usages, limits from none to impossible, ties, and costs whose sums reach what
// can be added up exactly; on demand edges that fall from row to row, whose parts
// are negative costs of their ends inside the solver. Cost and memory are counted here
// anew, time point by time point, and every combination of choices is tried.
//
//===----------------------------------------------------------------------===//

#include "compiler/Solver/Backends/Backends.h"
#include "compiler/Solver/PricedProblem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FormatVariadic.h"

#include <chrono>
#include <random>

using namespace alpa;
using namespace alpa::solver;
namespace cl = llvm::cl;

static cl::opt<unsigned> count("problems", cl::desc("How many problems"), cl::init(10000));
static cl::opt<uint64_t> firstSeed("seed", cl::desc("Seed of the first problem"), cl::init(0));
static cl::opt<bool> falling("falling", cl::desc("With edges that leave negative costs"));
static cl::opt<bool> priced("priced", cl::desc("At several prices on bytes, without a limit"));
static cl::opt<std::string> method("method", cl::desc("Which solver"), cl::init("built-in"));

namespace {

/// Choices of one problem tend to look alike, so that ties and conflicts happen.
class Generator {
public:
  explicit Generator(uint64_t seed) : random(seed) {}
  Problem problem();
  void letFall(Problem &problem);
  unsigned below(unsigned bound) { return random() % bound; }

private:
  int64_t cost();
  std::vector<int64_t> costs(size_t size);
  std::vector<int64_t> usages(size_t size);

  std::mt19937_64 random;
  int64_t maxCost = 0, maxUsage = 0;
  unsigned forbiddenPercent = 0;
};

} // namespace

int64_t Generator::cost() {
  return below(100) < forbiddenPercent ? kForbiddenCost : int64_t(random() % (maxCost + 1));
}

std::vector<int64_t> Generator::costs(size_t size) {
  std::vector<int64_t> result(size);
  for (int64_t &value : result)
    value = cost();
  return result;
}

std::vector<int64_t> Generator::usages(size_t size) {
  std::vector<int64_t> result;
  unsigned kind = below(6);
  if (kind == 0)
    return result;
  for (size_t i = 0; i < size; ++i)
    result.push_back(kind == 1 ? 0 : int64_t(random() % (maxUsage + 1)));
  return result;
}

Problem Generator::problem() {
  constexpr unsigned kMaxCombinations = 4000;
  static constexpr int64_t kMaxCosts[] = {
      0, 1, 3, 30, 1'000'000, 1'000'000'000'000'000, 20'000'000'000'000'000};
  // Others count in doubles, which cannot prove the last digits of large sums.
  unsigned inDoubles = method == "built-in" ? 0 : 2;
  maxCost = kMaxCosts[below(std::size(kMaxCosts) - inDoubles)];
  maxUsage = below(4) == 0 ? 1'000'000'000'000 : 9;
  forbiddenPercent = below(3) == 0 ? below(60) : below(10);
  Problem result;
  unsigned horizon = 1 + below(8), combinations = 1;
  for (unsigned wanted = below(11); result.nodes.size() < wanted;) {
    unsigned choices = 1 + below(5);
    if (combinations * choices > kMaxCombinations)
      continue;
    combinations *= choices;
    ProblemNode node;
    for (unsigned left = below(3) == 0 ? below(4) : 1; left > 0; --left) {
      int64_t begin = int64_t(below(horizon)) - 2;
      node.intervals.push_back({begin, begin + below(5)});
    }
    node.costs = costs(choices);
    node.usagesBytes = usages(choices);
    result.nodes.push_back(std::move(node));
  }
  unsigned nodes = result.nodes.size();
  for (unsigned left = nodes > 1 ? below(2 * nodes + 2) : 0; left > 0; --left) {
    unsigned a = below(nodes), b = (a + 1 + below(nodes - 1)) % nodes;
    size_t size = result.nodes[a].costs.size() * result.nodes[b].costs.size();
    std::vector<int64_t> pairs = costs(size);
    // Sparse matrices, as most of a compiler's are.
    for (int64_t &pair : pairs)
      if (pair < kForbiddenCost && below(3) == 0)
        pair = 0;
    result.edges.push_back({a, b, std::move(pairs)});
  }
  if (below(4) != 0)
    result.usageLimitBytes = int64_t(random() % (maxUsage * (1 + nodes / 2) + 1));
  return result;
}

/// Makes edges sums of a row and a column part, most of them less in later rows; some
/// pairs keep what they had beside that.
void Generator::letFall(Problem &problem) {
  for (const ProblemNode &node : problem.nodes)
    for (int64_t cost : node.costs)
      maxCost = cost < kForbiddenCost ? std::max(maxCost, cost) : maxCost;
  for (ProblemEdge &edge : problem.edges) {
    if (below(3) == 0)
      continue;
    size_t rows = problem.nodes[edge.a].costs.size(), columns = problem.nodes[edge.b].costs.size();
    std::vector<int64_t> row, column;
    for (size_t i = 0; i < rows; ++i)
      row.push_back(int64_t(random() % (maxCost + 1)));
    for (size_t j = 0; j < columns; ++j)
      column.push_back(int64_t(random() % (maxCost + 1)));
    llvm::sort(row, std::greater<>());
    if (below(2))
      llvm::sort(column, std::greater<>());
    bool isPure = below(2);
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j) {
        int64_t &pair = edge.costs[i * columns + j];
        if (isPure || (pair < kForbiddenCost && below(4) != 0))
          pair = 0;
        if (pair < kForbiddenCost)
          pair += row[i] + column[j];
      }
  }
}

/// Cost of the choices, or none if they are not allowed.
static std::optional<CostSum> costOf(const Problem &problem, llvm::ArrayRef<unsigned> choices) {
  CostSum sum = 0;
  for (unsigned n = 0; n < choices.size(); ++n) {
    if (problem.nodes[n].costs[choices[n]] == kForbiddenCost)
      return std::nullopt;
    sum += problem.nodes[n].costs[choices[n]];
  }
  for (const ProblemEdge &edge : problem.edges) {
    size_t columns = problem.nodes[edge.b].costs.size();
    int64_t cost = edge.costs[choices[edge.a] * columns + choices[edge.b]];
    if (cost == kForbiddenCost)
      return std::nullopt;
    sum += cost;
  }
  if (!problem.usageLimitBytes)
    return sum;
  for (int64_t timePoint = -2; timePoint < 12; ++timePoint) {
    int64_t used = 0;
    for (unsigned n = 0; n < choices.size(); ++n) {
      bool isLive = false;
      for (const Interval &interval : problem.nodes[n].intervals)
        isLive |= interval.begin <= timePoint && timePoint < interval.end;
      if (isLive && !problem.nodes[n].usagesBytes.empty())
        used += problem.nodes[n].usagesBytes[choices[n]];
    }
    if (used > *problem.usageLimitBytes)
      return std::nullopt;
  }
  return sum;
}

/// The best choices; none if nothing is allowed.
static std::optional<std::vector<unsigned>> enumerate(const Problem &problem) {
  std::optional<CostSum> least;
  std::vector<unsigned> choices(problem.nodes.size(), 0), best;
  while (true) {
    std::optional<CostSum> cost = costOf(problem, choices);
    if (cost && (!least || *cost < *least)) {
      least = cost;
      best = choices;
    }
    size_t n = 0;
    while (n < choices.size() && ++choices[n] == problem.nodes[n].costs.size())
      choices[n++] = 0;
    if (n == choices.size())
      return least ? std::optional(best) : std::nullopt;
  }
}

/// Sets a limit that the best choices without one just break; false if they use
/// nothing.
static bool tighten(Problem &problem, Generator &generator) {
  problem.usageLimitBytes.reset();
  std::optional<std::vector<unsigned>> best = enumerate(problem);
  int64_t low = 0, high = kMaxUsageBytes;
  problem.usageLimitBytes = 0;
  if (!best || costOf(problem, *best))
    return false;
  while (high - low > 1) { // `low` is too little, `high` enough.
    problem.usageLimitBytes = low + (high - low) / 2;
    (costOf(problem, *best) ? high : low) = *problem.usageLimitBytes;
  }
  problem.usageLimitBytes = low - low / 100 * generator.below(50);
  return true;
}

/// The sum of the largest allowed cost of each node and edge.
static CostSum mostOfAllowed(const Problem &problem) {
  CostSum sum = 0;
  auto most = [](llvm::ArrayRef<int64_t> costs) {
    int64_t found = 0;
    for (int64_t cost : costs)
      if (cost != kForbiddenCost)
        found = std::max(found, cost);
    return found;
  };
  for (const ProblemNode &node : problem.nodes)
    sum += most(node.costs);
  for (const ProblemEdge &edge : problem.edges)
    sum += most(edge.costs);
  return sum;
}

/// What is wrong with the answer; empty if nothing is.
static std::string mistake(const Problem &problem, const SolveOptions &options,
                           std::optional<CostSum> best) {
  std::string text = printProblem(problem);
  llvm::Expected<Problem> again = parseProblem(text);
  if (!again)
    return "does not read back: " + llvm::toString(again.takeError());
  if (printProblem(*again) != text)
    return "reads back as another problem";
  llvm::Expected<Solution> solution = solveWith(method, *again, options);
  if (!solution) {
    std::string error = llvm::toString(solution.takeError());
    bool isRight = mostOfAllowed(problem) >= (CostSum(1) << 58) &&
                   llvm::StringRef(error).contains("too large to be added up exactly");
    return isRight ? "" : "error: " + error;
  }
  std::string wanted = best ? toText(*best) : "infeasible";
  std::string found =
      solution->status == SolveStatus::Infeasible ? "infeasible" : toText(solution->objective);
  if (found != wanted)
    return "found " + found + ", expected " + wanted;
  if (!best)
    return solution->isUnknown || solution->infeasibleReason.empty() ? "no proof or no reason" : "";
  if (solution->status != SolveStatus::Optimal || solution->lowerBound != *best ||
      solution->gap != 0)
    return "the optimum is not proven";
  if (costOf(problem, solution->choices) != best)
    return "the choices do not cost what is said";
  Evaluation evaluation = evaluate(problem, solution->choices);
  if (!evaluation.feasible || evaluation.objective != *best ||
      evaluation.peakUsageBytes != solution->peakUsageBytes)
    return "the evaluator disagrees";
  return "";
}

/// What is wrong with the answers at some prices on sums of two kinds of bytes.
static std::string mistakeAtPrices(Problem problem, const SolveOptions &options,
                                   Generator &generator) {
  problem.usageLimitBytes.reset();
  std::vector<llvm::SmallVector<NodeBytes, 1>> kinds(problem.nodes.size());
  for (auto [ofNode, node] : llvm::zip_equal(kinds, problem.nodes)) {
    if (!node.usagesBytes.empty())
      ofNode.push_back(node.usagesBytes);
    NodeBytes other;
    for (size_t choice = 0; choice < node.costs.size(); ++choice)
      other.push_back(generator.below(4));
    if (generator.below(3) == 0)
      ofNode.push_back(std::move(other));
  }
  PricedProblem prices(problem, kinds);
  for (double price : {0.0, 1.0, 3.0, 40.0, 0.0}) {
    std::vector<NodeBytes> bytes(problem.nodes.size());
    Problem dear = problem;
    for (auto [node, total] : llvm::enumerate(bytes)) {
      for (const NodeBytes &kind : kinds[node]) {
        int64_t times = generator.below(3);
        total.resize(kind.size());
        for (size_t choice = 0; choice < kind.size(); ++choice)
          total[choice] += times * kind[choice];
      }
      for (size_t choice = 0; choice < total.size(); ++choice)
        if (int64_t &cost = dear.nodes[node].costs[choice]; cost != kForbiddenCost)
          cost += int64_t(price) * total[choice];
    }
    if (mostOfAllowed(dear) >= (CostSum(1) << 58))
      continue;
    std::optional<std::vector<unsigned>> best = enumerate(dear);
    llvm::Expected<Solution> solution = prices.solve(bytes, price, options);
    std::string at = llvm::formatv(" at a price of {0}", price).str();
    if (!solution)
      return "error" + at + ": " + llvm::toString(solution.takeError());
    if (!best) {
      if (!solution->choices.empty())
        return "found choices where none are allowed" + at;
      continue;
    }
    CostSum wanted = *costOf(dear, *best);
    if (solution->choices.size() != problem.nodes.size() ||
        costOf(dear, solution->choices) != wanted || solution->lowerBound != wanted)
      return "not the cheapest, or not proven" + at + ": " + toText(solution->lowerBound) +
             ", expected " + toText(wanted);
  }
  return "";
}

int main(int argc, char **argv) {
  cl::ParseCommandLineOptions(argc, argv, "Compares a solver with enumeration.\n");
  unsigned infeasible = 0, bound = 0;
  for (uint64_t seed = firstSeed; seed < firstSeed + count; ++seed) {
    Generator generator(seed);
    Problem problem = generator.problem();
    if (falling)
      generator.letFall(problem);
    SolveOptions options;
    // Every path of the solver: tables at once, bounds first, and what is between.
    options.quickWork = generator.below(3) == 0 ? 0 : generator.below(2) ? 40 : 2e6;
    options.threads = 1 + (generator.below(32) == 0);
    options.seed = generator.below(3);
    options.timeLimitSeconds = 20;
    if (priced) {
      if (std::string text = mistakeAtPrices(problem, options, generator); !text.empty()) {
        llvm::errs() << llvm::formatv("problem {0}: {1}\n{2}", seed, text, printProblem(problem));
        return 1;
      }
      continue;
    }
    bool binds = generator.below(2) && tighten(problem, generator);
    std::optional<std::vector<unsigned>> choices = enumerate(problem);
    std::optional<CostSum> best = choices ? costOf(problem, *choices) : std::nullopt;
    if (std::string text = mistake(problem, options, best); !text.empty()) {
      llvm::errs() << llvm::formatv("problem {0} (quick work {1}, threads {2}, seed {3}): {4}\n{5}",
                                    seed, options.quickWork, options.threads, options.seed, text,
                                    printProblem(problem));
      return 1;
    }
    infeasible += !best;
    bound += best && binds;
  }
  llvm::outs() << llvm::formatv(
      "{0} problems equal enumeration: {1} infeasible, memory binds in {2}\n", count, infeasible,
      bound);
  return 0;
}
