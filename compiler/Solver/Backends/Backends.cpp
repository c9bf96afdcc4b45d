//===- Backends.cpp - the solvers to choose from --------------------------===//

#include "compiler/Solver/Backends/Backends.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"

using namespace alpa;
using namespace alpa::solver;
using llvm::Twine;

static llvm::Expected<Solution> solveByGurobi(const Problem &, const SolveOptions &) {
  // Its package has no headers, only a Python module.
  return llvm::createStringError("method 'gurobi' is reached from Python only: "
                                 "alpa_mlir.solve_problem(.., method=\"gurobi\")");
}

llvm::ArrayRef<Backend> solver::backends() {
  static const Backend table[] = {
      {"built-in", "reductions, exact and local search, proven bounds", solve},
      {"highs", "mixed-integer programming by HiGHS", solveByHighs},
      {"gurobi", "mixed-integer programming by Gurobi, from Python only", solveByGurobi},
  };
  return table;
}

llvm::Expected<Solution> solver::solveWith(llvm::StringRef method, const Problem &problem,
                                           const SolveOptions &options) {
  std::string names;
  for (const Backend &backend : backends()) {
    if (backend.name == method)
      return backend.solve(problem, options);
    names += (names.empty() ? "" : ", ") + backend.name.str();
  }
  return llvm::createStringError("found method '" + method + "', expected one of " + names);
}

llvm::Expected<Solution> solver::checkedSolution(const Problem &problem, llvm::StringRef solver,
                                                 std::vector<unsigned> choices, CostSum lowerBound,
                                                 bool provesInfeasible) {
  Solution solution;
  solution.nodes = problem.nodes.size();
  if (choices.empty() && !problem.nodes.empty()) {
    solution.isUnknown = !provesInfeasible;
    solution.infeasibleReason =
        (provesInfeasible ? solver + " proved that no allowed combination of choices stays within "
                                     "the limit"
                          : solver + " found nothing in the time limit; that there is nothing is "
                                     "not proven")
            .str();
    return solution;
  }
  Evaluation evaluation = evaluate(problem, choices);
  if (!evaluation.feasible)
    return llvm::createStringError("the answer of " + solver +
                                   " takes a forbidden choice or breaks the limit, within its "
                                   "tolerances; use method 'built-in'");
  solution.choices = std::move(choices);
  solution.objective = evaluation.objective;
  solution.peakUsageBytes = evaluation.peakUsageBytes;
  solution.lowerBound = std::clamp<CostSum>(lowerBound, 0, evaluation.objective);
  solution.status =
      solution.lowerBound == solution.objective ? SolveStatus::Optimal : SolveStatus::Feasible;
  if (solution.objective > 0)
    solution.gap = double(solution.objective - solution.lowerBound) / double(solution.objective);
  return solution;
}
