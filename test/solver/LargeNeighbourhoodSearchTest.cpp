//===- LargeNeighbourhoodSearchTest.cpp - the search under a limit, by itself -===//
//
// Without bounds and branching, which would find what the search misses. Small
// random problems are enumerated; others are built so that no single choice can
// be changed: room has to be exchanged, along a chain of lives.
//
//===----------------------------------------------------------------------===//

#include "compiler/Solver/MemoryLimited/LargeNeighbourhoodSearch.h"
#include "compiler/Solver/Solve.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

using namespace alpa;
using namespace alpa::solver;
namespace cl = llvm::cl;

static cl::opt<unsigned> count("problems", cl::desc("How many random problems"), cl::init(600));

static int fail(const llvm::Twine &message) {
  llvm::errs() << "large-neighbourhood-search-test: " << message << "\n";
  return 1;
}

/// Up to 9 nodes with 4 choices, edges between most neighbours in time, and about
/// as much room as half of the choices need.
static Problem randomProblem(Random &random) {
  Problem problem;
  unsigned nodes = 1 + random.below(9), horizon = 2 + random.below(6);
  int64_t most = 0;
  for (unsigned n = 0; n < nodes; ++n) {
    ProblemNode &node = problem.nodes.emplace_back();
    int64_t begin = random.below(horizon);
    node.intervals.push_back({begin, begin + 1 + random.below(horizon)});
    unsigned choices = 1 + random.below(4);
    for (unsigned c = 0; c < choices; ++c) {
      node.costs.push_back(random.below(12) == 0 ? kForbiddenCost : random.below(50));
      node.usagesBytes.push_back(random.below(20));
      most += node.usagesBytes.back();
    }
  }
  for (unsigned n = 1; n < nodes; ++n)
    for (unsigned step = 1; step <= std::min(n, 2u); ++step) {
      if (random.below(3) == 0)
        continue;
      ProblemEdge &edge = problem.edges.emplace_back();
      edge.a = n - step;
      edge.b = n;
      size_t size = problem.nodes[n - step].costs.size() * problem.nodes[n].costs.size();
      for (size_t i = 0; i < size; ++i)
        edge.costs.push_back(random.below(5) == 0 ? kForbiddenCost : random.below(30));
    }
  problem.usageLimitBytes = most / 8 + random.below(most / 4 + 1);
  return problem;
}

static std::optional<CostSum> enumerate(const Problem &problem) {
  std::optional<CostSum> least;
  std::vector<unsigned> choices(problem.nodes.size(), 0);
  for (;;) {
    Evaluation evaluation = evaluate(problem, choices);
    if (evaluation.feasible && (!least || evaluation.objective < *least))
      least = evaluation.objective;
    size_t n = 0;
    while (n < choices.size() && ++choices[n] == problem.nodes[n].costs.size())
      choices[n++] = 0;
    if (n == choices.size())
      return least;
  }
}

static Graph graphOf(const Problem &problem) {
  TimePoints timePoints = collectTimePoints(problem);
  return translate(problem, &timePoints);
}

static int testRandom() {
  unsigned missed = 0, feasible = 0;
  for (unsigned p = 0; p < count; ++p) {
    Random random(p);
    Problem problem = randomProblem(random);
    std::optional<CostSum> best = enumerate(problem);
    Graph graph = graphOf(problem);
    LargeNeighbourhoodSearch search(graph, *problem.usageLimitBytes, p),
        twin = {graph, *problem.usageLimitBytes, p};
    for (LargeNeighbourhoodSearch *each : {&search, &twin})
      each->run(1e6, [] { return false; });
    if (search.best() != twin.best() || search.work() != twin.work())
      return fail("problem " + llvm::Twine(p) + ": two runs with one seed differ");
    if (search.best().empty() != !best)
      return fail("problem " + llvm::Twine(p) +
                  (best ? ": found nothing" : ": found what is none"));
    if (!best)
      continue;
    ++feasible;
    std::vector<unsigned> choices = readOut(graph, search.best(), problem.nodes.size());
    Evaluation evaluation = evaluate(problem, choices);
    if (!evaluation.feasible || evaluation.objective != graph.constant + CostSum(search.bestCost()))
      return fail("problem " + llvm::Twine(p) + ": the choices cost " +
                  toText(evaluation.objective) + (evaluation.feasible ? "" : " and do not fit") +
                  llvm::formatv(", {0} was said", search.bestCost()).str());
    missed += evaluation.objective != *best;
  }
  llvm::outs() << llvm::formatv("random: {0} with an answer, {1} of them not the best\n", feasible,
                                missed);
  return 0;
}

/// `links` nodes, each live with the one before and the one after, that fill the
/// limit in turn with 6 and 4 bytes. Who takes 6 instead of 4 gains, but only
/// once all neighbours gave way, which costs them more: no single change is any
/// good, nor are most short ones.
static Problem chain(unsigned links) {
  Problem problem;
  problem.usageLimitBytes = 10;
  for (unsigned n = 0; n < links; ++n) {
    bool even = n % 2 == 0;
    ProblemNode &node = problem.nodes.emplace_back();
    node.intervals.push_back({n, n + 2});
    node.costs = {even ? 0 : 3, even ? 2 : 0};
    node.usagesBytes = {even ? 6 : 4, even ? 4 : 6};
  }
  return problem;
}

static int testChain() {
  for (unsigned links : {2u, 6u, 20u}) {
    Problem problem = chain(links);
    Graph graph = graphOf(problem);
    LargeNeighbourhoodSearch search(graph, *problem.usageLimitBytes, 0);
    std::vector<unsigned> start(links, 0);
    search.offer(start);
    double before = search.bestCost();
    search.run(1e6, [] { return false; });
    // All the other way round: each pair saves one.
    if (before != 3.0 * (links / 2) || search.bestCost() != 2.0 * (links / 2))
      return fail("chain of " + llvm::Twine(links) + ": found " +
                  llvm::formatv("{0}", search.bestCost()).str());
  }
  llvm::outs() << "chains: room was exchanged\n";
  return 0;
}

/// What a proposal that does not fit is good for.
static int testProposal() {
  Problem problem;
  problem.usageLimitBytes = 8;
  for (unsigned n = 0; n < 12; ++n) {
    ProblemNode &node = problem.nodes.emplace_back();
    node.intervals.push_back({n / 4, n / 4 + 1});
    node.costs = {10, int64_t(n % 4)};
    node.usagesBytes = {1, 3};
  }
  Graph graph = graphOf(problem);
  LargeNeighbourhoodSearch search(graph, *problem.usageLimitBytes, 0);
  search.offer(std::vector<unsigned>(12, 0));
  search.propose(std::vector<unsigned>(12, 1));
  search.run(1e6, [] { return false; });
  // Of four at a time, the two that gain most.
  if (search.bestCost() != 3 * (0 + 1 + 10 + 10))
    return fail("proposal: found " + llvm::formatv("{0}", search.bestCost()).str());
  llvm::outs() << "proposals: their parts were taken\n";
  return 0;
}

int main(int argc, char **argv) {
  cl::ParseCommandLineOptions(argc, argv, "Tests the search under a limit by itself.\n");
  return testRandom() || testChain() || testProposal();
}
