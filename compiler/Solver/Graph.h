//===- Graph.h - the working form of a problem -------------------*- C++ -*-===//
//
// At most one edge between two variables, forbidden choices dropped, choices of
// every variable renumbered. Reductions are exact: each optimal solution of the
// reduced graph extends to one of the problem.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_GRAPH_H
#define ALPA_COMPILER_SOLVER_GRAPH_H

#include "compiler/Solver/Problem.h"

#include "llvm/ADT/ArrayRef.h"

namespace alpa {

/// Stands for a forbidden choice in sums; 31 of them can be added. Finite costs
/// at or above it are treated alike, which `Graph::clipped` tells.
inline constexpr int64_t kInfinity = int64_t(1) << 58;

inline int64_t clip(int64_t cost) { return cost < kInfinity ? cost : kInfinity; }

struct Variable {
  unsigned node = 0;             // Index in the problem.
  std::vector<unsigned> choices; // Of the node, as numbered in the problem.
  std::vector<int64_t> costs;
  std::vector<int64_t> usages; // Empty if the variable uses no memory.
};

/// `costs` is row-major, a's choices are rows.
struct GraphEdge {
  unsigned a = 0;
  unsigned b = 0;
  std::vector<int64_t> costs;
};

struct Graph {
  std::vector<Variable> variables;
  std::vector<GraphEdge> edges;
  CostSum constant = 0;
  /// Nodes that have but one choice left and are no variables.
  std::vector<std::pair<unsigned, unsigned>> fixed;
  /// A node all of whose choices are ruled out, if there is one.
  std::optional<unsigned> impossibleNode;
  bool clipped = false;
};

/// Drops forbidden and dominated choices, fixed variables and separable edges.
/// A choice is dropped only for one that uses no more memory.
void reduceGraph(Graph &graph);

/// The reduced graph of a problem. Memory counts only if `withMemory`.
Graph buildGraph(const Problem &problem, bool withMemory);

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_GRAPH_H
