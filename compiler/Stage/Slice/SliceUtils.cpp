//===- SliceUtils.cpp - small questions that slicing asks an op -----------===//

#include "compiler/Stage/Slice/SliceUtils.h"

#include "compiler/Analysis/ShardingRule.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/StringSwitch.h"

using namespace alpa;
using namespace alpa::stage;
using namespace mlir;

std::optional<Phase> stage::phaseOf(Operation *op) {
  auto phase = op->getAttrOfType<StringAttr>(attr::phase);
  if (!phase)
    return std::nullopt;
  return llvm::StringSwitch<std::optional<Phase>>(phase.getValue())
      .Case("prepare", Phase::Prepare)
      .Case("forward", Phase::Forward)
      .Case("barrier", Phase::Barrier)
      .Case("backward", Phase::Backward)
      .Case("update", Phase::Update)
      .Default(std::nullopt);
}

StringRef stage::stringifyPhase(Phase phase) {
  switch (phase) {
  case Phase::Prepare:
    return "prepare";
  case Phase::Forward:
    return "forward";
  case Phase::Barrier:
    return "barrier";
  case Phase::Backward:
    return "backward";
  case Phase::Update:
    break;
  }
  return "update";
}

std::optional<int64_t> stage::stageOf(Operation *op) {
  if (auto stage = op->getAttrOfType<IntegerAttr>(attr::stage))
    return stage.getInt();
  return std::nullopt;
}

func::FuncOp stage::findLayeredMain(ModuleOp module) {
  auto main = module.lookupSymbol<func::FuncOp>("main");
  if (!main || main.isDeclaration()) {
    module.emitError("the module has no function @main");
    return {};
  }
  for (Operation &op : main.front().without_terminator())
    if (!phaseOf(&op) || !op.hasAttr(attr::layer)) {
      op.emitError("has no `alpa.phase` or `alpa.layer`; run alpa-import and "
                   "alpa-cluster-layers first");
      return {};
    }
  return main;
}

bool stage::isRepeatable(Operation *op) {
  // Of the ops that are not elementwise, those that only move elements.
  static const llvm::StringSet<> others = {"stablehlo.bitcast_convert",
                                           "stablehlo.broadcast_in_dim",
                                           "stablehlo.concatenate",
                                           "stablehlo.pad",
                                           "stablehlo.reshape",
                                           "stablehlo.reverse",
                                           "stablehlo.slice",
                                           "stablehlo.transpose",
                                           "chlo.constant",
                                           "chlo.square"};
  StringRef name = op->getName().getStringRef();
  return op->getNumResults() == 1 && op->getNumRegions() == 0 &&
         (analysis::isElementwiseName(name) || others.contains(name) || op->hasAttr(attr::pin)) &&
         isa<RankedTensorType>(op->getResult(0).getType());
}

bool stage::isBroadcast(Operation *op) {
  return op->getName().getStringRef() == "stablehlo.broadcast_in_dim";
}

bool stage::isElementwise(Operation *op) {
  if (!isRepeatable(op) || op->getNumOperands() == 0)
    return false;
  StringRef name = op->getName().getStringRef();
  if (llvm::is_contained({"stablehlo.transpose", "stablehlo.reverse", "stablehlo.concatenate",
                          "stablehlo.pad", "stablehlo.slice", "stablehlo.reshape",
                          "stablehlo.broadcast_in_dim"},
                         name))
    return false;
  ArrayRef<int64_t> shape = cast<RankedTensorType>(op->getResult(0).getType()).getShape();
  return llvm::all_of(op->getOperandTypes(), [&](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return tensor && tensor.getShape() == shape;
  });
}

bool stage::isSingleElement(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && tensor.hasStaticShape() && tensor.getNumElements() == 1;
}

template <typename Attr> static Attr argumentAttr(BlockArgument arg, StringRef name) {
  auto main = cast<func::FuncOp>(arg.getOwner()->getParentOp());
  return main.getArgAttrOfType<Attr>(arg.getArgNumber(), name);
}

std::optional<int64_t> stage::carriedBy(BlockArgument arg) {
  if (auto result = argumentAttr<IntegerAttr>(arg, attr::carriedBy))
    return result.getInt();
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// What stages repeat rather than send
//===----------------------------------------------------------------------===//

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
