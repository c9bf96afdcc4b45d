//===- MinimumCut.cpp - which values to keep, which to make again ---------===//

#include "compiler/Stage/Slice/MinimumCut.h"

#include "compiler/Analysis/ShardingRule.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringSet.h"

#include <cstdint>
#include <limits>
#include <vector>

using namespace alpa;
using namespace alpa::stage;
using namespace mlir;

//===----------------------------------------------------------------------===//
// The cheapest values to cut a graph at
//===----------------------------------------------------------------------===//

namespace {

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

} // namespace

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

//===----------------------------------------------------------------------===//
// Which values to keep, which to make again
//===----------------------------------------------------------------------===//

int64_t stage::fusedBytes(Operation *op) {
  static const llvm::StringSet<> copies = {"stablehlo.concatenate", "stablehlo.pad",
                                           "stablehlo.reverse", "stablehlo.transpose"};
  static const llvm::StringSet<> simple = {"stablehlo.abs",
                                           "stablehlo.add",
                                           "stablehlo.and",
                                           "stablehlo.ceil",
                                           "stablehlo.clamp",
                                           "stablehlo.compare",
                                           "stablehlo.convert",
                                           "stablehlo.floor",
                                           "stablehlo.maximum",
                                           "stablehlo.minimum",
                                           "stablehlo.multiply",
                                           "stablehlo.negate",
                                           "stablehlo.not",
                                           "stablehlo.or",
                                           "stablehlo.select",
                                           "stablehlo.shift_left",
                                           "stablehlo.shift_right_arithmetic",
                                           "stablehlo.shift_right_logical",
                                           "stablehlo.sign",
                                           "stablehlo.subtract",
                                           "stablehlo.xor",
                                           "chlo.square"};
  StringRef name = op->getName().getStringRef();
  auto type = cast<RankedTensorType>(op->getResult(0).getType());
  if (copies.contains(name))
    return static_cast<int64_t>(analysis::getTensorBytes(type));
  if (analysis::getFlops(op) == 0)
    return 0;
  return simple.contains(name) ? type.getNumElements() / 4 : 2 * type.getNumElements();
}

ValueCut stage::cutValues(ArrayRef<Value> wanted, function_ref<int64_t(Value)> keepCost,
                          function_ref<std::optional<Remaking>(Value)> remaking) {
  MinCut graph;
  llvm::DenseMap<Value, unsigned> nodes;
  SmallVector<Value> values; // By node.
  auto nodeOf = [&](Value value) {
    auto [it, isNew] = nodes.try_emplace(value, values.size());
    if (isNew) {
      graph.addNode(keepCost(value));
      values.push_back(value);
    }
    return it->second;
  };
  for (Value value : wanted)
    graph.addSink(nodeOf(value));
  for (unsigned node = 0; node < values.size(); ++node) { // Grows on the way.
    std::optional<Remaking> again = remaking(values[node]);
    if (!again) {
      graph.addSource(node);
      continue;
    }
    if (again->cost > 0)
      graph.addRepeat(node, again->cost);
    for (Value operand : again->operands)
      graph.addEdge(nodeOf(operand), node);
  }
  ValueCut cut;
  for (unsigned node : graph.solve())
    cut.kept.insert(values[node]);
  // Everything else is made again.
  SmallVector<Value> worklist(wanted);
  while (!worklist.empty()) {
    Value value = worklist.pop_back_val();
    if (cut.kept.contains(value) || !remaking(value))
      continue;
    Operation *op = value.getDefiningOp();
    if (cut.remade.insert(op).second)
      llvm::append_range(worklist, op->getOperands());
  }
  return cut;
}
