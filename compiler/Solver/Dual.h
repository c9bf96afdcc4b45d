//===- Dual.h - bounds by moving costs between variables ---------*- C++ -*-===//
//
// An equal problem has other costs on variables and edges, but the same sum for
// every assignment. Costs are moved so that what every assignment must pay, the
// constant, grows: that bounds the optimum from below, and a choice whose own
// cost exceeds what is left between bound and best known solution can be
// dropped. On operator graphs without memory the bound is usually the optimum.
//
// Source: Kolmogorov, "A new look at reweighted message passing" (2015), the
// pairwise case; all in integers, so that bounds hold exactly.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_DUAL_H
#define ALPA_COMPILER_SOLVER_DUAL_H

#include "compiler/Solver/Graph.h"

#include <functional>
#include <optional>

namespace alpa {

struct Tightened {
  /// Equal to the given graph on all solutions that are not worse than `best`;
  /// its constant is a lower bound. Variables keep their numbers.
  Graph graph;
  /// Best solution seen, in the given graph's numbering of choices.
  std::optional<std::vector<unsigned>> best;
  CostSum upper = 0;                       // Its objective, constant included.
  std::vector<std::vector<unsigned>> kept; // Choices of each variable that are left.
};

/// Improves the bound until it meets the best solution, no longer rises, or
/// `stop` says so. Forbidden pairs are respected.
Tightened tighten(const Graph &graph, const std::function<bool()> &stop);

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_DUAL_H
