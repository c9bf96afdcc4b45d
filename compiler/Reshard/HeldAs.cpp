//===- HeldAs.cpp - how programs hold their buffers -----------------------===//

#include "compiler/Reshard/HeldAs.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace alpa;

ShardingAttr HeldAs::operator()(Value buffer) {
  SmallVector<Value> way; // Sums are held as their first term is.
  ShardingAttr found;
  while (Operation *op = buffer.getDefiningOp()) {
    if (auto it = sums.find(buffer); it != sums.end()) {
      found = it->second;
    } else if (isa<AccumulateOp, AllReduceOp>(op)) {
      way.push_back(buffer);
      buffer = op->getOperand(0);
      continue;
    } else if (auto reshard = dyn_cast<ReshardOp>(op)) {
      found = reshard.getTo();
    } else if (auto run = dyn_cast<RunOp>(op)) {
      auto stage = symbols.lookup<ModuleOp>(run.getCallee().getRootReference());
      auto callee = stage ? stage.lookupSymbol<func::FuncOp>(run.getCallee().getLeafReference())
                          : func::FuncOp();
      if (callee)
        found = callee.getResultAttrOfType<ShardingAttr>(cast<OpResult>(buffer).getResultNumber(),
                                                         attr::sharding);
    } else {
      found = op->getAttrOfType<ShardingAttr>("sharding");
    }
    break;
  }
  for (Value sum : way)
    sums[sum] = found;
  return found;
}

int64_t alpa::bytesOfElement(Type element) {
  if (auto complex = dyn_cast<ComplexType>(element))
    return 2 * bytesOfElement(complex.getElementType());
  return element.isIntOrFloat() ? (element.getIntOrFloatBitWidth() + 7) / 8 : 0;
}
