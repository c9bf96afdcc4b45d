//===- Solve.h - solving and evaluating intra-op problems --------*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_SOLVE_H
#define ALPA_COMPILER_SOLVER_SOLVE_H

#include "compiler/Solver/Model/Problem.h"

#include <limits>
#include <optional>

namespace alpa::solver {

enum class SolveStatus { Optimal, Feasible, Infeasible };
llvm::StringRef stringifySolveStatus(SolveStatus status);

struct SolveOptions {
  /// The outer bound; a search that it ends might have found something else on
  /// another day.
  double timeLimitSeconds = 60.0;
  /// Seconds of the limit that are over already.
  double spentSeconds = 0.0;
  /// Table entries and combinations to go through at most, about 5e8 of them a second.
  double workLimit = std::numeric_limits<double>::infinity();
  uint64_t seed = 0;
  /// Threads to search with, at least 1.
  unsigned threads = 1;
  /// The search ends when (cost - bound) / cost is no more than this. 0 asks for a
  /// proof; under a memory limit the last part in a thousand takes most of the time.
  double acceptableGap = 0.0;
  /// Tables up to this many combinations are eliminated at once, without a bound
  /// first; tests lower it to reach what larger problems need.
  double quickWork = 2e6;
  /// Without an answer, whether to look for a limit that would do.
  bool findsEnough = false;
  /// File of a back end's shared library; empty for where it usually is.
  std::string library;
};

struct Solution {
  SolveStatus status = SolveStatus::Infeasible;
  std::vector<unsigned> choices; // One per node; empty when infeasible.
  CostSum objective = 0;
  CostSum lowerBound = 0;
  double gap = 0.0; // (objective - lowerBound) / objective, 0 when proven.
  int64_t peakUsageBytes = 0;
  double seconds = 0.0;
  unsigned nodes = 0;           // Of the problem as given.
  unsigned eliminated = 0;      // By exact reductions.
  std::string infeasibleReason; // Names nodes live at the binding time point.
  /// With status infeasible: time ran out before an answer was found, and that
  /// there is none is not proven.
  bool isUnknown = false;
  /// The clock ended the search, rather than a proof or the work limit.
  bool isOutOfTime = false;
  double work = 0; // In the units of the limit.
};

struct Evaluation {
  bool feasible = false; // No forbidden choice or pair, memory under the limit.
  CostSum objective = 0;
  int64_t peakUsageBytes = 0;
  int64_t peakTime = 0;
};

/// Recomputes cost and memory from the choices alone.
Evaluation evaluate(const Problem &problem, llvm::ArrayRef<unsigned> choices);

/// Whether allowed costs can be added up exactly, whatever is chosen.
bool addsUp(const Problem &problem);

/// Solves and re-evaluates; the reported objective is always the evaluator's.
llvm::Expected<Solution> solve(const Problem &problem, const SolveOptions &options = {});

/// The same, where costs do not add up as they are in units of a power of two in which they
/// do, rounded down. The objective is exact then, and the bound one of the problem.
llvm::Expected<Solution> solveInUnits(const Problem &problem, const SolveOptions &options = {});

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_SOLVE_H
