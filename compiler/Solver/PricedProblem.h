//===- PricedProblem.h - one problem at many prices on bytes ------*- C++ -*-===//
//
// Costs of nodes grow with a price on the bytes of their choices. What no price makes worth
// taking is ruled out once, for all prices.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_PRICEDPROBLEM_H
#define ALPA_COMPILER_SOLVER_PRICEDPROBLEM_H

#include "compiler/Solver/Model/Graph.h"
#include "compiler/Solver/Solve.h"

namespace alpa::solver {

/// For a node, its bytes of one kind by choice.
using NodeBytes = std::vector<int64_t>;

class PricedProblem {
public:
  /// `kinds` lists for each node what prices may count: bytes of each kind, by choice. The
  /// problem has no memory limit.
  PricedProblem(const Problem &problem, llvm::ArrayRef<llvm::SmallVector<NodeBytes, 1>> kinds);

  /// Solves with `costPerByte` on the bytes of each node, which are a sum of its kinds, each any
  /// number of times, or none where the list is empty. Prices are rounded down, so that the lower
  /// bound holds for the exact ones as well. Bound and choices are the whole problem's; what the
  /// solution says besides is of what was left of it.
  llvm::Expected<Solution> solve(llvm::ArrayRef<NodeBytes> bytes, double costPerByte,
                                 const SolveOptions &options = {});

  /// Of the costs that are left.
  size_t numBytes() const;

private:
  void take(const Problem &problem);
  void reduce(const Problem &problem, llvm::ArrayRef<llvm::SmallVector<NodeBytes, 1>> kinds);

  Graph graph;                             // Says which choices of nodes those of `small` are.
  Problem small;                           // Costs of nodes differ from call to call.
  std::vector<std::vector<int64_t>> costs; // Without a price.
  size_t numNodes = 0;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_PRICEDPROBLEM_H
