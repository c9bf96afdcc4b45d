//===- Collapser.h - one collapse, from begin to end -------------*- C++ -*-===//
//
// Queues of edges and variables that may have become simpler. Choices are
// renumbered as they go; what has been merged is sorted out at the end.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_PRESOLVE_COLLAPSER_H
#define ALPA_COMPILER_SOLVER_PRESOLVE_COLLAPSER_H

#include "compiler/Solver/Model/Graph.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

namespace alpa {

class Collapser {
  struct Merge {
    unsigned from;
    unsigned into;
    std::vector<unsigned> map; // Of choices as they were at first.
  };
  struct Removal {
    unsigned variable;
    unsigned a, b;
    std::vector<unsigned> choices; // By those of a and b as they were at first.
  };

public:
  Collapser(Graph &graph, std::vector<unsigned> *followed);

  void run();

private:
  static std::pair<unsigned, unsigned> key(unsigned a, unsigned b) {
    return {std::min(a, b), std::max(a, b)};
  }
  unsigned size(unsigned v) const { return variables[v].numChoices(); }
  static unsigned otherEnd(const GraphEdge &edge, unsigned v) {
    return edge.a == v ? edge.b : edge.a;
  }
  int64_t cost(const GraphEdge &edge, unsigned v, unsigned choice, unsigned other) const {
    return edge.a == v ? edge.costs[size_t(choice) * size(edge.b) + other]
                       : edge.costs[size_t(other) * size(edge.b) + choice];
  }

  void pushEdge(unsigned e) {
    if (!queuedEdge[e]) {
      queuedEdge[e] = true;
      edgeQueue.push_back(e);
    }
  }
  void pushVariable(unsigned v) {
    if (!queuedVariable[v]) {
      queuedVariable[v] = true;
      variableQueue.push_back(v);
    }
  }

  /// Drops dead edges from the list of a variable.
  std::vector<unsigned> &liveEdges(unsigned v) {
    llvm::erase_if(edgesOf[v], [&](unsigned e) { return dead[e]; });
    return edgesOf[v];
  }

  void kill(unsigned e);

  /// Adds costs of allowed choices; what becomes too large counts as forbidden.
  void add(int64_t &sum, int64_t cost);

  /// Keeps only some choices, and all tables that know of them small.
  void keep(unsigned v, llvm::ArrayRef<unsigned> kept);

  void keepWhere(unsigned v, llvm::ArrayRef<char> wanted);

  void dropForbidden(unsigned v);

  void reduceEdge(unsigned e);

  /// `map` says which choice `from` takes for each choice of `into`.
  void merge(unsigned into, unsigned from, unsigned e, llvm::ArrayRef<unsigned> map);

  size_t originSize(unsigned v) const { return variables[v].members.front().choices.size(); }

  /// The edge of two variables; made if there is none yet.
  unsigned edgeBetween(unsigned a, unsigned b);

  void moveEdge(unsigned f, unsigned from, unsigned into, llvm::ArrayRef<unsigned> map);

  /// An edge whose costs are a sum of one part per end is none.
  bool foldSeparable(unsigned e);

  /// Variables with many uses are tidied before they are looked at again.
  void tidyLater(unsigned v);

  void reduceVariable(unsigned v);

  /// By how much `choice` costs more at an edge than `better`, at the least.
  int64_t leastExcess(const GraphEdge &edge, unsigned v, unsigned better, unsigned choice) const;

  /// Whether `better` never costs more than `choice`, whatever the neighbours
  /// take; `slack` is what it saves elsewhere. `except` is left out.
  bool costsNoMore(unsigned v, unsigned better, unsigned choice, int64_t slack, int except) const;

  bool dropDominated(unsigned v);

  /// Merges v into a neighbour if, once that has chosen, one choice of v is
  /// best whatever the others do.
  bool mergeByPreference(unsigned v);

  /// A variable without memory between two others leaves an edge, unless that
  /// would be much larger than the two edges to it.
  void eliminate(unsigned v);

  /// Nodes of the problem tell which choice their variables took.
  void record(const Removal &removal, llvm::SmallVector<Member, 1> members);

  /// Costs that moved to the ends may have left negative ones; bounds count on
  /// edges that cost nothing at the least.
  void makeNonNegative(GraphEdge &edge);

  /// Members take over what their variables became; numbers become dense.
  void finish();

  Graph &graph;
  std::vector<unsigned> *followed;
  std::vector<Variable> &variables;
  std::vector<GraphEdge> &edges;
  std::vector<std::vector<unsigned>> edgesOf;
  std::vector<std::vector<unsigned>> origin; // Of each choice that is left.
  std::vector<char> gone, queuedVariable;
  std::vector<char> dead, queuedEdge;
  std::vector<unsigned> edgeQueue, variableQueue;
  llvm::DenseMap<std::pair<unsigned, unsigned>, unsigned> between;
  std::vector<Merge> merges;
  std::vector<Removal> removals;
};

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_PRESOLVE_COLLAPSER_H
