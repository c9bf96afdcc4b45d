//===- BranchAndBound.h - branch and bound by prices ------------*- C++ -*-===//
//
// Closes what is left between the bound and the best answer: a choice is taken,
// or ruled out; prices, reductions and collapse then work on what remains.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_SEARCH_BRANCHANDBOUND_H
#define ALPA_COMPILER_SOLVER_SEARCH_BRANCHANDBOUND_H

#include "compiler/Solver/Model/Graph.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <memory>

namespace alpa::solver {

class LagrangianBound;

/// Depth first; can be stopped and gone on with.
class BranchAndBound {
public:
  /// `graph` is collapsed; `prices` are per byte at each of its time points.
  BranchAndBound(const Graph &graph, int64_t limitBytes, llvm::ArrayRef<double> prices,
                 CostSum lower);
  ~BranchAndBound();

  /// Goes through at least `work` combinations, unless it is stopped. `offer` is told of choices of
  /// the graph's variables within the limit that cost less than `upper`, and returns the new
  /// `upper`.
  void run(double work, CostSum upper,
           llvm::function_ref<CostSum(const std::vector<unsigned> &, CostSum)> offer, Stop stop);

  /// Nothing costs less than this, or than the least `upper` that was known.
  bool isDone() const { return open.empty(); }
  CostSum lower() const;
  uint64_t numNodes() const { return nodes; }
  /// Combinations that the last run went through.
  double work() const { return spent; }

private:
  struct Node;
  struct Split;
  static Split chooseSplit(const Graph &graph, const LagrangianBound &bound);
  void expand(Node &&node);
  void tryAnswer(const Graph &graph, llvm::ArrayRef<unsigned> values);

  size_t numVariables;
  int64_t limit;
  std::vector<Node> open;
  uint64_t nodes = 0;
  CostSum upper = 0;
  double spent = 0;
  llvm::function_ref<CostSum(const std::vector<unsigned> &, CostSum)> *offer = nullptr;
  Stop stop;
};

/// The same graph with its variables as the nodes: much to carry around is left
/// behind. Its choices are read out by `readOut`.
Graph lighten(const Graph &graph);

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_SEARCH_BRANCHANDBOUND_H
