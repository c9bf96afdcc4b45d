//===- Dual.h - lower bounds by shifting costs -------------------*- C++ -*-===//
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

#ifndef ALPA_COMPILER_SOLVER_DUAL_H
#define ALPA_COMPILER_SOLVER_DUAL_H

#include "compiler/Solver/Graph.h"

namespace alpa {

class Dual {
public:
  explicit Dual(const Graph &graph);

  /// Adds prices (one per choice) to the costs of a variable, in place of those
  /// it had before.
  void setPrices(unsigned variable, llvm::ArrayRef<int64_t> prices);

  /// One sweep back and one forth. Choices of which no solution cheaper than
  /// `upper` (with prices, without the graph's constant) can make use are
  /// removed. False if a variable has none left: `upper` cannot be beaten.
  bool sweep(CostSum upper);
  /// Bounds costs with prices, without the graph's constant.
  CostSum bound() const { return total; }
  /// Choices that look best after the last sweep; not necessarily allowed.
  std::vector<unsigned> decode() const;

  size_t numRemoved() const { return removedChoices; }
  /// The graph with costs as shifted, prices included, without removed choices.
  Graph shifted() const;

private:
  struct Link {
    unsigned edge;
    unsigned other;
    bool isA; // Whether the variable is the edge's a.
  };

  bool visit(unsigned variable, bool forward, CostSum upper);
  void pull(unsigned variable, const Link &link);
  void remove(unsigned variable, unsigned choice);
  std::vector<int64_t> &message(const Link &link) {
    return link.isA ? toA[link.edge] : toB[link.edge];
  }

  const Graph &graph;
  std::vector<std::vector<Link>> links;
  std::vector<std::vector<int64_t>> theta; // Costs of choices after shifts.
  std::vector<std::vector<int64_t>> prices;
  /// Shifted from each edge to its ends.
  std::vector<std::vector<int64_t>> toA, toB;
  std::vector<std::vector<char>> removed;
  std::vector<int64_t> least; // Of theta.
  std::vector<int64_t> scratch;
  CostSum total = 0;
  size_t removedChoices = 0;
};

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_DUAL_H
