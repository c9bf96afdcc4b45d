//===- ValueCut.cpp - which values to keep, which to make again -----------===//

#include "compiler/Stage/Slice/ValueCut.h"
#include "compiler/Stage/Slice/MinCut.h"

#include "mlir/IR/Operation.h"

using namespace mlir;
using namespace alpa;

ValueCut alpa::cutValues(ArrayRef<Value> wanted, function_ref<int64_t(Value)> keepCost,
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
