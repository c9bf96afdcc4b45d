//===- Solve.cpp - from a problem to a proven answer ----------------------===//
//
// Without memory first, if that is quick: what it finds often fits. Otherwise
// the limit binds, or may bind, and prices on memory lead the search.
//
//===----------------------------------------------------------------------===//

#include "compiler/Solver/Solve.h"
#include "compiler/Solver/MemoryLimited/Infeasibility.h"
#include "compiler/Solver/MemoryLimited/LimitedSearch.h"
#include "compiler/Solver/Model/TimePoints.h"
#include "compiler/Solver/Presolve/Presolve.h"
#include "compiler/Solver/Search/UnlimitedSearch.h"

using namespace alpa;
using namespace alpa::solver;

llvm::StringRef solver::stringifySolveStatus(SolveStatus status) {
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

class Solver {
public:
  Solver(const Problem &problem, const SolveOptions &options)
      : problem(problem), options(options),
        budget(options.timeLimitSeconds, options.workLimit, options.spentSeconds) {}

  llvm::Expected<Solution> run() {
    solution.nodes = problem.nodes.size();
    if (problem.nodes.empty()) {
      solution.status = SolveStatus::Optimal;
      return finish();
    }
    if (solveFree())
      solveWithin(*problem.usageLimitBytes);
    return finish();
  }

private:
  void refuse(std::string reason, bool proven = true) {
    solution.isUnknown = !proven;
    solution.status = SolveStatus::Infeasible;
    solution.infeasibleReason = std::move(reason);
  }

  std::string limitThatStruck() const {
    return budget.workLeft() > 0 ? "time limit" : "work limit";
  }

  void refuseImpossible(unsigned node) {
    refuse("every choice of " + nameOfNode(problem, node) +
           " is forbidden, by itself or with all choices of a neighbour");
  }

  void accept(std::vector<unsigned> choices, CostSum lowerBound) {
    solution.status = SolveStatus::Feasible; // Until the evaluator agrees.
    solution.choices = std::move(choices);
    solution.lowerBound = lowerBound;
  }

  /// Whether memory has still to be looked at.
  bool solveFree() {
    UnlimitedSearch search(problem, options, budget);
    solution.eliminated = search.eliminated;
    if (search.impossibleNode) {
      refuseImpossible(*search.impossibleNode);
      return false;
    }
    if (problem.usageLimitBytes && !search.isQuick())
      return true; // Prices of zero are where the search with memory begins.
    search.run();
    if (search.choices.empty()) {
      refuse(search.proven ? std::string("no combination of choices avoids all forbidden pairs")
                           : "no allowed choices were found in the " + limitThatStruck() +
                                 "; that there are none is not proven",
             search.proven);
      return false;
    }
    memoryFreeBound = search.lower;
    if (problem.usageLimitBytes &&
        evaluate(problem, search.choices).peakUsageBytes > *problem.usageLimitBytes)
      return true;
    accept(std::move(search.choices), search.lower);
    return false;
  }

  void solveWithin(int64_t limit) {
    TimePoints timePoints = collectTimePoints(problem);
    auto late = [&] { return budget.isLate(); };
    Graph graph = buildGraph(problem, &timePoints, late);
    if (graph.impossibleNode)
      return refuseImpossible(*graph.impossibleNode);
    std::optional<Tightest> tightest = findTightest(problem, timePoints, graph);
    std::string live = tightest ? tightest->live : "";
    if (tightest && tightest->bytes > limit)
      return refuse("at least " + std::to_string(tightest->bytes) +
                    " bytes are needed, the limit is " + std::to_string(limit) + "; " + live +
                    nameEnough(timePoints, tightest->bytes));
    presolveWithin(graph, limit, /*followed=*/nullptr, late);
    std::vector<unsigned> values;
    bool proven = true, found = !graph.impossibleNode;
    CostSum lower = std::max(memoryFreeBound, graph.constant);
    if (found && late()) {
      found = proven = false;
    } else if (found && !graph.variables.empty()) {
      LimitedSearch search(graph, limit, options, budget, memoryFreeBound);
      search.run();
      found = !search.choices().empty();
      values = search.choices();
      proven = search.isProven();
      lower = search.lower();
    }
    if (found)
      return accept(readOut(graph, values, problem.nodes.size()), lower);
    refuse((proven ? std::string("no combination of choices stays within ")
                   : "no choices were found in the " + limitThatStruck() + " that stay within ") +
               std::to_string(limit) +
               (proven ? " bytes; " : " bytes (that there are none is not proven); ") + live +
               nameEnough(timePoints, tightest ? tightest->bytes : 0),
           proven);
  }

  /// What to ask for instead.
  std::string nameEnough(const TimePoints &timePoints, int64_t atLeast) const {
    if (!options.findsEnough || budget.isLate())
      return "";
    std::optional<int64_t> enough = findEnough(
        buildGraph(problem, &timePoints, [&] { return budget.isLate(); }), atLeast, budget);
    return enough ? "; " + std::to_string(*enough) + " bytes would do" : "";
  }

  llvm::Expected<Solution> finish() {
    if (solution.status != SolveStatus::Infeasible) {
      Evaluation evaluation = evaluate(problem, solution.choices);
      solution.objective = evaluation.objective;
      solution.peakUsageBytes = evaluation.peakUsageBytes;
      if (!evaluation.feasible)
        return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                       "internal error of the solver: its answer breaks the limit "
                                       "or takes a forbidden choice");
      if (solution.lowerBound > solution.objective)
        return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                       "internal error of the solver: its answer costs less than "
                                       "its lower bound");
      if (solution.lowerBound == solution.objective)
        solution.status = SolveStatus::Optimal;
      if (solution.objective > 0)
        solution.gap =
            double(solution.objective - solution.lowerBound) / double(solution.objective);
    }
    solution.seconds = budget.seconds();
    solution.isOutOfTime = budget.wasLate();
    solution.work = budget.work();
    return std::move(solution);
  }

  const Problem &problem;
  const SolveOptions &options;
  Budget budget;
  Solution solution;
  CostSum memoryFreeBound = 0;
};

} // namespace

/// The sum of the largest allowed cost of each node and edge.
static CostSum mostOfAllowed(const Problem &problem) {
  CostSum sum = 0;
  auto add = [&](llvm::ArrayRef<int64_t> costs) {
    int64_t most = 0;
    for (int64_t cost : costs)
      most = cost < kForbiddenCost ? std::max(most, cost) : most;
    sum += most;
  };
  for (const ProblemNode &node : problem.nodes)
    add(node.costs);
  for (const ProblemEdge &edge : problem.edges)
    add(edge.costs);
  return sum;
}

bool solver::addsUp(const Problem &problem) { return mostOfAllowed(problem) < kInfinity; }

llvm::Expected<Solution> solver::solve(const Problem &problem, const SolveOptions &options) {
  if (llvm::Error error = verifyProblem(problem))
    return error;
  if (!addsUp(problem))
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "costs are too large to be added up exactly: allowed ones may "
                                   "reach 2^58 in sum; count in a larger unit");
  return Solver(problem, options).run();
}

llvm::Expected<Solution> solver::solveInUnits(const Problem &problem, const SolveOptions &options) {
  CostSum most = mostOfAllowed(problem);
  unsigned bits = 0;
  while (most >> bits >= kInfinity)
    ++bits;
  if (bits == 0) {
    if (llvm::Error error = verifyProblem(problem))
      return error;
    return Solver(problem, options).run();
  }
  Problem coarse = problem;
  auto shift = [bits](std::vector<int64_t> &costs) {
    for (int64_t &cost : costs)
      if (cost < kForbiddenCost)
        cost >>= bits;
  };
  for (ProblemNode &node : coarse.nodes)
    shift(node.costs);
  for (ProblemEdge &edge : coarse.edges)
    shift(edge.costs);
  llvm::Expected<Solution> solution = solve(coarse, options);
  if (!solution)
    return solution;
  solution->lowerBound *= CostSum(1) << bits;
  if (solution->choices.empty() && !problem.nodes.empty())
    return solution;
  solution->objective = evaluate(problem, solution->choices).objective;
  CostSum apart = solution->objective - solution->lowerBound;
  solution->gap = apart > 0 ? double(apart) / double(solution->objective) : 0;
  if (apart > 0)
    solution->status = SolveStatus::Feasible;
  return solution;
}
