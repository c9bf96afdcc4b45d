//===- SliceUtils.cpp - small questions that slicing asks an op -----------===//

#include "compiler/Stage/SliceUtils.h"

#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace alpa;

std::optional<Phase> alpa::phaseOf(Operation *op) {
  auto phase = op->getAttrOfType<StringAttr>(attr::phase);
  if (!phase)
    return std::nullopt;
  return llvm::StringSwitch<std::optional<Phase>>(phase.getValue())
      .Case("forward", Phase::Forward)
      .Case("backward", Phase::Backward)
      .Case("update", Phase::Update)
      .Default(std::nullopt);
}

StringRef alpa::stringifyPhase(Phase phase) {
  switch (phase) {
  case Phase::Forward:
    return "forward";
  case Phase::Backward:
    return "backward";
  case Phase::Update:
    break;
  }
  return "update";
}

std::optional<int64_t> alpa::stageOf(Operation *op) {
  if (auto stage = op->getAttrOfType<IntegerAttr>(attr::stage))
    return stage.getInt();
  return std::nullopt;
}

void alpa::forEachInput(Operation *op, function_ref<void(Value)> callback) {
  for (Value operand : op->getOperands())
    callback(operand);
  if (op->getNumRegions() == 0)
    return;
  llvm::SetVector<Value> captured;
  getUsedValuesDefinedAbove(op->getRegions(), captured);
  for (Value value : captured)
    callback(value);
}

bool alpa::isRepeatable(Operation *op) {
  static const llvm::StringSet<> names = [] {
    llvm::StringSet<> set;
    for (StringRef name : {"abs",
                           "add",
                           "and",
                           "atan2",
                           "bitcast_convert",
                           "broadcast_in_dim",
                           "cbrt",
                           "ceil",
                           "clamp",
                           "compare",
                           "complex",
                           "concatenate",
                           "constant",
                           "convert",
                           "cosine",
                           "count_leading_zeros",
                           "divide",
                           "exponential",
                           "exponential_minus_one",
                           "floor",
                           "imag",
                           "iota",
                           "is_finite",
                           "log",
                           "log_plus_one",
                           "logistic",
                           "maximum",
                           "minimum",
                           "multiply",
                           "negate",
                           "not",
                           "or",
                           "pad",
                           "popcnt",
                           "power",
                           "real",
                           "reduce_precision",
                           "remainder",
                           "reshape",
                           "reverse",
                           "round_nearest_afz",
                           "round_nearest_even",
                           "rsqrt",
                           "select",
                           "shift_left",
                           "shift_right_arithmetic",
                           "shift_right_logical",
                           "sign",
                           "sine",
                           "slice",
                           "sqrt",
                           "subtract",
                           "tan",
                           "tanh",
                           "transpose",
                           "xor"})
      set.insert(("stablehlo." + name).str());
    set.insert("chlo.square");
    set.insert("chlo.constant");
    return set;
  }();
  return op->getNumResults() == 1 && op->getNumRegions() == 0 &&
         names.contains(op->getName().getStringRef()) &&
         isa<RankedTensorType>(op->getResult(0).getType());
}

bool alpa::isBroadcast(Operation *op) {
  return op->getName().getStringRef() == "stablehlo.broadcast_in_dim";
}

bool alpa::isElementwise(Operation *op) {
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

bool alpa::isSingleElement(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  return tensor && tensor.hasStaticShape() && tensor.getNumElements() == 1;
}
