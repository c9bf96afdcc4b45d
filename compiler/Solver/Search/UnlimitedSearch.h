//===- UnlimitedSearch.h - solving without a memory limit -------*- C++ -*-===//
//
// Reductions; exact elimination if its tables are small; else a bound by
// shifting costs, which with a good answer at hand rules out most choices;
// elimination of what is left, or branch and bound.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_SEARCH_UNLIMITEDSEARCH_H
#define ALPA_COMPILER_SOLVER_SEARCH_UNLIMITEDSEARCH_H

#include "compiler/Solver/Model/Budget.h"
#include "compiler/Solver/Search/BucketElimination.h"
#include "compiler/Solver/Solve.h"

#include <memory>

namespace alpa::solver {

class UnlimitedSearch {
public:
  UnlimitedSearch(const Problem &problem, const SolveOptions &options, Budget &budget);

  /// Whether `run` is a matter of moments.
  bool isQuick() const { return quick; }
  void run();

  /// Of the problem's nodes; empty if none were found.
  std::vector<unsigned> choices;
  CostSum upper = 0; // Their cost.
  CostSum lower = 0;
  bool proven = false;     // Or that there are none.
  unsigned eliminated = 0; // Nodes that exact reductions took away.
  /// A node that has no allowed choice, if one was found.
  std::optional<unsigned> impossibleNode;

private:
  void offer(std::vector<unsigned> other);
  enum class Progress { Enough, Shrunk, Stuck };
  bool tighten();
  Progress sweepOver(unsigned &sweeps);
  void eliminateRest();
  std::vector<unsigned> expand(llvm::ArrayRef<unsigned> values) const;

  const Problem &problem;
  const SolveOptions &options;
  Budget &budget;
  Graph graph;
  std::unique_ptr<BucketElimination> buckets; // Of the graph.
  bool quick = false;
};

/// The cost of choices of a problem's nodes, or none if something forbidden is
/// taken.
std::optional<CostSum> allowedCost(const Problem &problem, llvm::ArrayRef<unsigned> choices);

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_SEARCH_UNLIMITEDSEARCH_H
