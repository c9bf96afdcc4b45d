//===- RepeatedOps.cpp - what stages repeat rather than send --------------===//

#include "compiler/Stage/Slice/RepeatedOps.h"

#include "compiler/Stage/Slice/SliceUtils.h"

using namespace mlir;
using namespace alpa;

RepeatedOps::RepeatedOps(func::FuncOp main) {
  for (BlockArgument arg : main.getArguments())
    if (!isStateArgument(arg))
      taint(main, arg);
  for (Operation &op : main.front())
    if (isRepeated(&op))
      ops.insert(&op);
}

/// Marks values that differ between micro-batches.
void RepeatedOps::taint(func::FuncOp main, Value value) {
  SmallVector<Value> worklist{value};
  while (!worklist.empty()) {
    Value next = worklist.pop_back_val();
    if (!tainted.insert(next).second)
      continue;
    for (Operation *user : next.getUsers()) {
      Operation *op = main.front().findAncestorOpInBlock(*user);
      std::optional<Phase> phase = phaseOf(op);
      if (phase != Phase::Update && phase != Phase::Barrier &&
          !op->hasTrait<OpTrait::IsTerminator>())
        llvm::append_range(worklist, op->getResults());
    }
  }
}

bool RepeatedOps::isAvailable(Value value) const {
  if (isa<BlockArgument>(value))
    return isStateArgument(value) && !isTainted(value);
  Operation *op = value.getDefiningOp();
  return ops.contains(op) || isa<SumOfStagesOp>(op);
}

bool RepeatedOps::isScalarArithmetic(Operation *op, const DenseSet<Value> &alsoAvailable) const {
  return isRepeatable(op) && !isTainted(op->getResult(0)) &&
         (isSingleElement(op->getResult(0).getType()) || isBroadcast(op)) &&
         llvm::all_of(op->getOperands(), [&](Value operand) {
           return isSingleElement(operand.getType()) &&
                  (isAvailable(operand) || alsoAvailable.contains(operand));
         });
}

bool RepeatedOps::isRepeated(Operation *op) {
  if (!isRepeatable(op) || isTainted(op->getResult(0)))
    return false;
  if (llvm::all_of(op->getOperands(), [&](Value value) { return constants.contains(value); })) {
    constants.insert(op->getResult(0));
    return true;
  }
  return isScalarArithmetic(op, {});
}
