//===- Backends.h - the solvers to choose from -------------------*- C++ -*-===//
//
// All solve the same problem, and the evaluator recomputes what each answers.
// The built-in one needs nothing else; the others serve as oracles.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_BACKENDS_BACKENDS_H
#define ALPA_COMPILER_SOLVER_BACKENDS_BACKENDS_H

#include "compiler/Solver/Solve.h"

namespace alpa::solver {

struct Backend {
  llvm::StringRef name;
  llvm::StringRef description;
  llvm::Expected<Solution> (*solve)(const Problem &problem, const SolveOptions &options);
};

/// The first is the default.
llvm::ArrayRef<Backend> backends();

/// Solves by the back end of this name; an unknown name is an error that lists them.
llvm::Expected<Solution> solveWith(llvm::StringRef method, const Problem &problem,
                                   const SolveOptions &options);

/// What another solver found: `choices` (empty if it found none), and whether it
/// proved that there are none. The evaluator decides on the cost; `lowerBound` is
/// the solver's, and the status is optimal only if the two agree.
llvm::Expected<Solution> checkedSolution(const Problem &problem, llvm::StringRef solver,
                                         std::vector<unsigned> choices, CostSum lowerBound,
                                         bool provesInfeasible);

/// By mixed-integer programming in HiGHS (Highs.cpp).
llvm::Expected<Solution> solveByHighs(const Problem &problem, const SolveOptions &options);

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_BACKENDS_BACKENDS_H
