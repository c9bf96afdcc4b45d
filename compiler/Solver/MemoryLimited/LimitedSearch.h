//===- LimitedSearch.h - answers and bounds under a memory limit -*- C++ -*-===//
//
// Prices on memory bound the cost from below and suggest answers; what no better
// answer can make use of is dropped and the rest collapsed again, until prices
// no longer help and branch and bound takes over. Beside all that, in a thread of
// its own if there are two, large neighbourhoods are searched for answers. The
// two sides tell each other their news after fixed amounts of work, so that an
// answer depends on the seed, not on threads, and on time only where time cuts it
// short.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_MEMORYLIMITED_LIMITEDSEARCH_H
#define ALPA_COMPILER_SOLVER_MEMORYLIMITED_LIMITEDSEARCH_H

#include "compiler/Solver/MemoryLimited/LargeNeighbourhoodSearch.h"
#include "compiler/Solver/Model/Budget.h"
#include "compiler/Solver/Search/BranchAndBound.h"
#include "compiler/Solver/Search/LagrangianBound.h"
#include "compiler/Solver/Solve.h"

namespace alpa::solver {

class LimitedSearch {
public:
  /// `graph` is collapsed and has variables; `lower` is a bound known before, and
  /// `start` are choices within the limit, or empty.
  LimitedSearch(const Graph &graph, int64_t limitBytes, const SolveOptions &options, Budget &budget,
                CostSum lower, std::vector<unsigned> start = {});
  ~LimitedSearch();

  void run();

  /// Of the graph's variables; empty if nothing was found.
  const std::vector<unsigned> &choices() const { return best; }
  CostSum lower() const { return lowest; }
  /// Nothing is cheaper than the choices; or there are none at all.
  bool isProven() const { return proven; }

private:
  struct Part;

  bool isEnough() const;
  void offer(std::vector<unsigned> values);
  void offerRepaired(std::vector<unsigned> values);
  void round(double work);
  void exchange();
  void boundRound(double work);
  void branchRound(double work);
  void shrink();
  void partRound(double work);
  void startPart();
  void setCore(Graph graph, llvm::ArrayRef<double> prices);

  const Graph &graph;
  int64_t limit;
  const SolveOptions &options;
  Budget &budget;
  std::vector<unsigned> best;
  CostSum upper = 0;
  CostSum lowest;
  bool proven = false;
  bool isPart = false; // Of another search.

  // What is left of the graph; its nodes are the graph's variables.
  std::unique_ptr<Graph> core;
  std::vector<unsigned> bestInCore; // Empty if `best` is.
  std::unique_ptr<LagrangianBound> bound;
  std::unique_ptr<BranchAndBound> branching;
  std::unique_ptr<LargeNeighbourhoodSearch> primal;
  size_t numChoices = 0;
  std::unique_ptr<Part> part;
  double shrunkGap = 0; // When something was last dropped.
  size_t removedAt = 0;
  unsigned restarts = 0;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MEMORYLIMITED_LIMITEDSEARCH_H
