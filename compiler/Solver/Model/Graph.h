//===- Graph.h - the working form of a problem -------------------*- C++ -*-===//
//
// At most one edge between two variables, forbidden choices dropped, choices of
// every variable renumbered. A variable may stand for several nodes of the
// problem. Reductions are exact: each optimal solution of the reduced graph
// extends to one of the problem.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_MODEL_GRAPH_H
#define ALPA_COMPILER_SOLVER_MODEL_GRAPH_H

#include "compiler/Solver/Model/Budget.h"
#include "compiler/Solver/Model/TimePoints.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

namespace alpa::solver {

/// Stands for a forbidden choice in sums; 31 of them can be added. `solve` refuses problems
/// whose allowed costs may reach it in sum.
inline constexpr int64_t kInfinity = int64_t(1) << 58;

inline int64_t clip(int64_t cost) { return cost < kInfinity ? cost : kInfinity; }
/// What is forbidden stays so, whatever negative cost is added.
inline int64_t addCosts(int64_t a, int64_t b) {
  return a >= kInfinity || b >= kInfinity ? kInfinity : clip(a + b);
}

/// A node of the problem, and its choice for each choice of the variable.
struct Member {
  unsigned node = 0;
  std::vector<unsigned> choices;
};

/// Bytes in use throughout a set of time points, for each choice of the variable.
struct Use {
  llvm::SmallVector<TimeRange, 1> life;
  std::vector<int64_t> bytes;
};

/// The uses of a variable may overlap: they add up.
/// The first member tells by its choice which one the variable took.
struct Variable {
  llvm::SmallVector<Member, 1> members;
  std::vector<int64_t> costs;
  std::vector<Use> uses; // None if the variable uses no memory.

  unsigned numChoices() const { return costs.size(); }
  /// Drops all but some choices.
  void keep(llvm::ArrayRef<unsigned> choices);
};

/// `costs` is row-major, a's choices are rows. None is negative outside of a
/// reduction.
struct GraphEdge {
  unsigned a = 0;
  unsigned b = 0;
  std::vector<int64_t> costs;
};

/// A variable without memory whose best choice follows from those of two others.
struct Elimination {
  llvm::SmallVector<Member, 1> members;
  unsigned a = 0; // Nodes of the problem that tell what the two others took.
  unsigned b = 0;
  unsigned columns = 0;          // One more than the last choice of b.
  std::vector<unsigned> choices; // By choices of a and b in the problem, row-major.
};

struct Graph {
  std::vector<Variable> variables;
  std::vector<GraphEdge> edges;
  CostSum constant = 0;
  /// Nodes that have but one choice left and are no variables.
  std::vector<std::pair<unsigned, unsigned>> fixed;
  /// In the order of elimination.
  std::vector<Elimination> eliminated;
  /// What the fixed nodes, and all others at the least, use at each time point; empty if memory
  /// does not count.
  std::vector<int64_t> baseBytes;
  /// A node all of whose choices are ruled out, if there is one.
  std::optional<unsigned> impossibleNode;
};

/// Drops forbidden and dominated choices, fixed variables and separable edges.
/// A choice is dropped only for one that never uses more memory.
/// Once it is stopped, what is done so far stands.
void reduceGraph(Graph &graph, Stop stop = nullptr);

/// Choices of the variables as choices of the problem's nodes.
std::vector<unsigned> readOut(const Graph &graph, llvm::ArrayRef<unsigned> values, size_t numNodes);

/// A problem as it stands, apart from parallel edges, which are added up.
Graph translate(const Problem &problem, const TimePoints *timePoints);

/// The reduced graph of a problem. Memory counts only if there are time points.
Graph buildGraph(const Problem &problem, const TimePoints *timePoints, Stop stop = nullptr);

/// The sum of a variable's uses, as steps: stretches of time points throughout
/// which no use begins or ends.
class UsageSteps {
public:
  struct Step {
    TimeRange range;
    std::vector<int64_t> bytes; // Per choice.
  };

  explicit UsageSteps(const Variable &variable);

  llvm::ArrayRef<Step> steps() const { return all; }
  /// Whether `better` uses no more than `choice` at any time point.
  bool usesNoMore(unsigned better, unsigned choice) const;

private:
  std::vector<Step> all;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MODEL_GRAPH_H
