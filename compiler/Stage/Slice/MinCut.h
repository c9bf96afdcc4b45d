//===- MinCut.h - the cheapest values to cut a graph at -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SLICE_MINCUT_H
#define ALPA_COMPILER_STAGE_SLICE_MINCUT_H

#include "llvm/ADT/SmallVector.h"
#include <cstdint>
#include <vector>

namespace alpa {

/// Nodes with costs, edges without: which nodes separate the sources from the sinks
/// for the smallest sum of costs? By Dinic's algorithm for maximum flows. Nodes between
/// the cut and the sinks may have a cost of their own (`addRepeat`).
class MinCut {
public:
  /// Returns the node's number; numbers count from 0.
  unsigned addNode(int64_t cost);
  void addEdge(unsigned from, unsigned to);
  void addSource(unsigned node);
  /// What it costs that the node lies behind the cut, not on it.
  void addRepeat(unsigned node, int64_t cost);
  void addSink(unsigned node);

  /// The nodes of the cheapest cut, rising; of equally cheap ones those closest to
  /// the sinks.
  llvm::SmallVector<unsigned> solve();

private:
  struct Arc {
    unsigned to;
    int64_t left; // What may still flow.
  };
  // A node is two vertices with an arc of its cost between them.
  static unsigned entryOf(unsigned node) { return 2 * node + 2; }
  static unsigned exitOf(unsigned node) { return 2 * node + 3; }
  void addArc(unsigned from, unsigned to, int64_t capacity);
  bool findLevels();
  void augment();

  std::vector<Arc> arcs; // An arc and its reverse are neighbours.
  std::vector<llvm::SmallVector<unsigned, 4>> arcsOf{2};
  std::vector<unsigned> levels, next;
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SLICE_MINCUT_H
