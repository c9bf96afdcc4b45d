//===- Draws.cpp - what a step draws --------------------------------------===//

#include "compiler/Analysis/Draws.h"

#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "mlir/Transforms/RegionUtils.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::analysis;
namespace hlo = mlir::stablehlo;

Draws::Draws(func::FuncOp main) {
  for (BlockArgument argument : main.getArguments()) {
    auto type = dyn_cast<RankedTensorType>(argument.getType());
    if (!type)
      continue;
    if (main.getArgAttr(argument.getArgNumber(), attr::perMicroBatch)) {
      known.insert(argument);
    } else if (!isStateArgument(argument)) {
      if (type.getRank() > 0)
        rows.insert(type.getDimSize(0));
    } else if (type.getElementType().isInteger()) {
      drawn.insert(argument);
      known.insert(argument);
    }
  }
  for (Operation &op : main.front().without_terminator()) {
    bool isKnown = true, isDrawn = false;
    auto read = [&](Value value) {
      isKnown &= known.contains(value);
      isDrawn |= drawn.contains(value);
    };
    llvm::for_each(op.getOperands(), read);
    visitUsedValuesDefinedAbove(op.getRegions(), [&](OpOperand *use) { read(use->get()); });
    if (!isKnown)
      continue;
    known.insert(op.result_begin(), op.result_end());
    if (isDrawn)
      drawn.insert(op.result_begin(), op.result_end());
  }
}

int Draws::operandOf(Operation *op) const {
  if (op->getNumOperands() != 2 || !isa<hlo::DotGeneralOp, hlo::ConvolutionOp, hlo::GatherOp>(op))
    return -1;
  for (int i : {0, 1}) {
    Value value = op->getOperand(i);
    auto type = dyn_cast<RankedTensorType>(value.getType());
    if (type && type.getRank() > 0 && drawn.contains(value) && rows.contains(type.getDimSize(0)) &&
        !known.contains(op->getOperand(1 - i)))
      return i;
  }
  return -1;
}
