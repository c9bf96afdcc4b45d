//===- CostShifting.h - lower bounds by shifting costs ----------*- C++ -*-===//
//
// Costs are shifted between edges and their ends so that the sum of every
// variable's least cost, a lower bound, grows. Sweeps in order and back average
// what a variable knows over its edges, which never lowers the bound. All
// shifts are integers, so the shifted graph has exactly the same solutions.
//
// Source: Kolmogorov, "Convergent tree-reweighted message passing for energy
// minimization" (2006), in the form of equivalent transformations.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_SEARCH_COSTSHIFTING_H
#define ALPA_COMPILER_SOLVER_SEARCH_COSTSHIFTING_H

#include "compiler/Solver/Model/Graph.h"

namespace alpa::solver {

class CostShifting {
public:
  explicit CostShifting(const Graph &graph);

  /// Adds prices (one per choice) to the costs of a variable, in place of those
  /// it had before.
  void setPrices(unsigned variable, llvm::ArrayRef<int64_t> prices);

  /// One sweep forth and one back. Choices of which no solution cheaper than
  /// `upper` (with prices, without the graph's constant) can make use are
  /// removed. False if a variable has none left: `upper` cannot be beaten. May be
  /// stopped on the way; bounds hold at any time.
  bool sweep(CostSum upper, Stop stop = nullptr);
  /// Table entries that one sweep goes through.
  double sweepWork() const { return workOfSweep; }
  /// Bounds costs with prices, without the graph's constant.
  CostSum bound() const { return total; }
  /// Choices that look best after the last sweep; not necessarily allowed.
  std::vector<unsigned> decode() const;

  size_t numRemoved() const { return removedChoices; }
  /// The graph with costs as shifted, prices included, without removed choices.
  Graph shifted() const;
  /// The same with prices left out, so that costs of solutions are as in the
  /// graph, and with pairs forbidden of which no solution cheaper than `upper`
  /// (with prices) can make use. `followed` is renumbered.
  Graph restricted(CostSum upper, std::vector<unsigned> *followed = nullptr) const;

private:
  struct Link {
    unsigned other;
    unsigned edge;
    bool isA;       // Whether the variable is the edge's a.
    size_t own;     // Where the edge's shifts to the variable are,
    size_t theirs;  // and those to the other end.
    size_t columns; // Where the table with the variable's choices as columns is.
  };

  bool visit(unsigned variable, bool forward, CostSum upper);
  void pull(unsigned variable, const Link &link);
  void remove(unsigned variable, unsigned choice);
  unsigned size(unsigned variable) const { return first[variable + 1] - first[variable]; }
  /// What an edge still costs, for choices of its a and b.
  int64_t left(unsigned edge, unsigned choiceA, unsigned choiceB) const;
  Graph leftOver(std::optional<CostSum> upper, std::vector<unsigned> *followed) const;

  const Graph &graph;
  std::vector<size_t> first; // Of each variable's choices in all arrays of choices.
  std::vector<std::vector<Link>> links;
  std::vector<int64_t> theta; // Costs of choices after shifts.
  std::vector<int64_t> prices;
  std::vector<char> removed;
  std::vector<int64_t> shifts; // From each edge to its ends.
  std::vector<size_t> shiftsA; // By edge.
  std::vector<size_t> shiftsB; // By edge.
  std::vector<int64_t> tables; // Of each edge, once for either end.
  std::vector<int64_t> least;  // Of theta, by variable.
  std::vector<int64_t> scratch;
  CostSum total = 0;
  size_t removedChoices = 0;
  double workOfSweep = 0;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_SEARCH_COSTSHIFTING_H
