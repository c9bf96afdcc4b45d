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

llvm::SmallVector<unsigned> Draws::operandsOf(Operation *op) const {
  auto multiplies = [](Operation *op) { return isa<hlo::DotGeneralOp, hlo::ConvolutionOp>(op); };
  bool isLoop = isa<hlo::WhileOp>(op);
  if (!isLoop && !multiplies(op) && !isa<hlo::GatherOp>(op))
    return {};
  llvm::SmallVector<unsigned> operands;
  bool readsOthers = false;
  for (OpOperand &operand : op->getOpOperands()) {
    Value value = operand.get();
    auto type = dyn_cast<RankedTensorType>(value.getType());
    readsOthers |= !known.contains(value);
    if (type && type.getRank() > 0 && drawn.contains(value) && rows.contains(type.getDimSize(0)))
      operands.push_back(operand.getOperandNumber());
  }
  if (operands.empty() || !readsOthers)
    return {};
  if (isLoop && !op->walk([&](Operation *inner) {
                     return multiplies(inner) ? WalkResult::interrupt() : WalkResult::advance();
                   }).wasInterrupted())
    return {};
  return operands;
}
