//===- ElementwiseOps.cpp - verifiers and folds of elementwise ops --------===//

#include "dialects/StableHLO/Verify.h"

#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::stablehlo;

/// The element type of the parts of a complex type, else the type itself.
static Type partType(Type type) {
  auto complex = dyn_cast<ComplexType>(type);
  return complex ? complex.getElementType() : type;
}

static LogicalResult verifyPart(Operation *op, StringRef label) {
  auto from = typeOf(op->getOperand(0)), to = typeOf(op->getResult(0));
  return verifyResult(op, label, to, from.clone(partType(from.getElementType())));
}

LogicalResult AbsOp::verify() { return verifyPart(*this, "abs_c2"); }
LogicalResult RealOp::verify() { return verifyPart(*this, "real_c2"); }
LogicalResult ImagOp::verify() { return verifyPart(*this, "imag_c2"); }

LogicalResult ReducePrecisionOp::verify() {
  if (getExponentBitsAttr().getInt() < 1)
    return emitOpError("reduce_precision_c2: expected at least 1 exponent bit, got ")
           << getExponentBitsAttr().getInt();
  if (getMantissaBitsAttr().getInt() < 0)
    return emitOpError("reduce_precision_c3: expected mantissa bits not to be negative, got ")
           << getMantissaBitsAttr().getInt();
  return success();
}

LogicalResult CompareOp::verify() {
  Type element = typeOf(getLhs()).getElementType();
  ComparisonDirection direction = getComparisonDirection();
  if (isa<ComplexType>(element) && direction != ComparisonDirection::EQ &&
      direction != ComparisonDirection::NE)
    return emitOpError("compare_c4: complex numbers have no order, got ")
           << stringifyComparisonDirection(direction);
  std::optional<ComparisonType> type = getCompareType();
  if (!type || *type == ComparisonType::NOTYPE)
    return success();
  bool fits;
  switch (*type) {
  case ComparisonType::SIGNED:
    fits = element.isSignlessInteger() && !element.isInteger(1);
    break;
  case ComparisonType::UNSIGNED:
    fits = element.isUnsignedInteger() || element.isSignlessInteger(1);
    break;
  case ComparisonType::FLOAT:
    fits = isa<FloatType, ComplexType>(element);
    break;
  default:
    fits = isa<FloatType>(element);
  }
  if (!fits)
    return emitOpError("compare_c3: elements of type ")
           << element << " are not compared as " << stringifyComparisonType(*type);
  return success();
}

LogicalResult ComplexOp::verify() {
  auto parts = typeOf(getLhs());
  return verifyResult(*this, "complex_c2", getType(),
                      parts.clone(ComplexType::get(parts.getElementType())));
}

LogicalResult ClampOp::verify() {
  auto operand = typeOf(getOperand());
  auto verifyBound = [&](StringRef label, StringRef name, Value bound) -> LogicalResult {
    if (typeOf(bound).getRank() != 0 && !shapesAgree(typeOf(bound).getShape(), operand.getShape()))
      return emitOpError(label) << ": expected " << name << " to be a scalar or of type " << operand
                                << ", got " << bound.getType();
    if (typeOf(bound).getElementType() != operand.getElementType())
      return emitOpError("clamp_c3: expected ")
             << name << " of element type " << operand.getElementType() << ", got "
             << typeOf(bound).getElementType();
    return success();
  };
  if (failed(verifyBound("clamp_c1", "min", getMin())) ||
      failed(verifyBound("clamp_c2", "max", getMax())))
    return failure();
  return verifyResult(*this, "clamp_c4", getType(), operand);
}

LogicalResult SelectOp::verify() {
  auto pred = typeOf(getPred()), onTrue = typeOf(getOnTrue());
  if (pred.getRank() != 0 && !shapesAgree(pred.getShape(), onTrue.getShape()))
    return emitOpError("select_c1: expected pred to be a scalar or of the shape of ")
           << onTrue << ", got " << pred;
  if (!typesAgree(getOnTrue().getType(), getOnFalse().getType()))
    return emitOpError("select_c2: expected branches of one type, got ")
           << getOnTrue().getType() << " and " << getOnFalse().getType();
  return verifyResult(*this, "select_c2", getType(), onTrue);
}

//===----------------------------------------------------------------------===//
// Folds: those that need no arithmetic
//===----------------------------------------------------------------------===//

OpFoldResult ConvertOp::fold(FoldAdaptor) {
  return getOperand().getType() == getType() ? OpFoldResult(getOperand()) : OpFoldResult();
}

OpFoldResult SelectOp::fold(FoldAdaptor adaptor) {
  if (getOnTrue() == getOnFalse() && getOnTrue().getType() == getType())
    return getOnTrue();
  auto pred = dyn_cast_or_null<SplatElementsAttr>(adaptor.getPred());
  if (!pred)
    return {};
  Value chosen = pred.getSplatValue<bool>() ? getOnTrue() : getOnFalse();
  return chosen.getType() == getType() ? OpFoldResult(chosen) : OpFoldResult();
}
