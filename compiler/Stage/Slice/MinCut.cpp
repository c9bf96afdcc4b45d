//===- MinCut.cpp - the cheapest values to cut a graph at -----------------===//

#include "compiler/Stage/Slice/MinCut.h"

#include "llvm/ADT/STLExtras.h"

#include <limits>

using namespace alpa;

static constexpr unsigned source = 0, sink = 1, unreached = ~0u;
static constexpr int64_t unlimited = std::numeric_limits<int64_t>::max() / 4;

unsigned MinCut::addNode(int64_t cost) {
  unsigned node = arcsOf.size() / 2 - 1;
  arcsOf.resize(arcsOf.size() + 2);
  addArc(entryOf(node), exitOf(node), cost);
  return node;
}

void MinCut::addArc(unsigned from, unsigned to, int64_t capacity) {
  arcsOf[from].push_back(arcs.size());
  arcs.push_back({to, capacity});
  arcsOf[to].push_back(arcs.size());
  arcs.push_back({from, 0});
}

void MinCut::addEdge(unsigned from, unsigned to) { addArc(exitOf(from), entryOf(to), unlimited); }
void MinCut::addSource(unsigned node) { addArc(source, entryOf(node), unlimited); }
void MinCut::addRepeat(unsigned node, int64_t cost) { addArc(source, entryOf(node), cost); }
void MinCut::addSink(unsigned node) { addArc(exitOf(node), sink, unlimited); }

/// Distances from the source along arcs that may still carry something.
bool MinCut::findLevels() {
  levels.assign(arcsOf.size(), unreached);
  levels[source] = 0;
  std::vector<unsigned> queue{source};
  for (size_t head = 0; head < queue.size(); ++head)
    for (unsigned arc : arcsOf[queue[head]])
      if (arcs[arc].left > 0 && levels[arcs[arc].to] == unreached) {
        levels[arcs[arc].to] = levels[queue[head]] + 1;
        queue.push_back(arcs[arc].to);
      }
  return levels[sink] != unreached;
}

/// Fills all shortest ways to the sink; depth first, without recursion, for ways may
/// be as long as a function.
void MinCut::augment() {
  next.assign(arcsOf.size(), 0);
  std::vector<unsigned> way; // Arcs from the source on.
  for (unsigned vertex = source;;) {
    if (vertex == sink) {
      int64_t flow = unlimited;
      for (unsigned arc : way)
        flow = std::min(flow, arcs[arc].left);
      size_t full = way.size();
      for (size_t i = way.size(); i-- > 0;) {
        arcs[way[i]].left -= flow;
        arcs[way[i] ^ 1].left += flow;
        if (arcs[way[i]].left == 0)
          full = i;
      }
      vertex = arcs[way[full] ^ 1].to;
      way.resize(full);
      continue;
    }
    unsigned &index = next[vertex];
    while (index < arcsOf[vertex].size()) {
      const Arc &arc = arcs[arcsOf[vertex][index]];
      if (arc.left > 0 && levels[arc.to] == levels[vertex] + 1)
        break;
      ++index;
    }
    if (index < arcsOf[vertex].size()) {
      way.push_back(arcsOf[vertex][index]);
      vertex = arcs[way.back()].to;
    } else if (way.empty()) {
      return;
    } else {
      vertex = arcs[way.back() ^ 1].to;
      ++next[vertex];
      way.pop_back();
    }
  }
}

llvm::SmallVector<unsigned> MinCut::solve() {
  while (findLevels())
    augment();
  // What can still reach the sink lies behind the cut.
  std::vector<bool> behind(arcsOf.size());
  behind[sink] = true;
  std::vector<unsigned> queue{sink};
  for (size_t head = 0; head < queue.size(); ++head)
    for (unsigned arc : arcsOf[queue[head]])
      if (unsigned from = arcs[arc].to; arcs[arc ^ 1].left > 0 && !behind[from]) {
        behind[from] = true;
        queue.push_back(from);
      }
  llvm::SmallVector<unsigned> cut;
  for (unsigned node = 0, e = arcsOf.size() / 2 - 1; node < e; ++node)
    if (!behind[entryOf(node)] && behind[exitOf(node)])
      cut.push_back(node);
  return cut;
}
