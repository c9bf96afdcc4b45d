//===- PartSizes.cpp - ops on parts of their tensors ----------------------===//

#include "compiler/Analysis/PartSizes.h"

#include "compiler/Analysis/Calls/AttentionCall.h"
#include "compiler/Analysis/Calls/CallRule.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;
namespace hlo = mlir::stablehlo;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

void analysis::fitSizes(Operation *part, Operation *whole) {
  auto isSplit = [&](unsigned operand, int64_t dim) {
    return typeOf(part->getOperand(operand)).getDimSize(dim) !=
           typeOf(whole->getOperand(operand)).getDimSize(dim);
  };
  llvm::TypeSwitch<Operation *>(part)
      .Case([&](hlo::SliceOp slice) {
        SmallVector<int64_t> limits(slice.getLimitIndices());
        for (auto [dim, size] : llvm::enumerate(typeOf(slice.getOperand()).getShape()))
          if (isSplit(0, dim)) // All of a split dimension is taken.
            limits[dim] = size;
        slice.setLimitIndices(limits);
      })
      .Case([&](hlo::DynamicSliceOp slice) {
        slice.setSliceSizes(typeOf(slice.getResult()).getShape());
      })
      .Case([&](hlo::GatherOp gather) {
        SmallVector<int64_t> sizes(gather.getSliceSizes());
        for (auto [dim, size] : llvm::enumerate(typeOf(gather.getOperand()).getShape()))
          if (isSplit(0, dim) && sizes[dim] != 1)
            sizes[dim] = size;
        gather.setSliceSizes(sizes);
      })
      .Case([&](hlo::CustomCallOp call) {
        fitAttention(call);
        fitCallRule(call, whole);
      })
      .Case([&](hlo::ConvolutionOp convolution) {
        auto numbers = convolution.getDimensionNumbers();
        int64_t features =
            typeOf(convolution.getLhs()).getDimSize(numbers.getInputFeatureDimension());
        int64_t ofGroup =
            typeOf(convolution.getRhs()).getDimSize(numbers.getKernelInputFeatureDimension());
        if (ofGroup > 0)
          convolution.setFeatureGroupCount(features / ofGroup);
        int64_t batch = typeOf(convolution.getLhs()).getDimSize(numbers.getInputBatchDimension());
        int64_t ofBatchGroup =
            typeOf(convolution.getResult()).getDimSize(numbers.getOutputBatchDimension());
        if (ofBatchGroup > 0)
          convolution.setBatchGroupCount(batch / ofBatchGroup);
      });
}

DenseElementsAttr analysis::splatOf(int64_t number, RankedTensorType type) {
  Type element = type.getElementType();
  if (auto complex = dyn_cast<ComplexType>(element)) {
    auto part = cast<FloatType>(complex.getElementType());
    APFloat real = FloatAttr::get(part, static_cast<double>(number)).getValue();
    return DenseElementsAttr::get(
        type, std::complex<APFloat>(real, APFloat::getZero(real.getSemantics())));
  }
  if (auto real = dyn_cast<FloatType>(element))
    return DenseElementsAttr::get(type,
                                  FloatAttr::get(real, static_cast<double>(number)).getValue());
  unsigned width = element.getIntOrFloatBitWidth();
  return DenseElementsAttr::get(
      type, APInt(width, static_cast<uint64_t>(number), /*isSigned=*/true, /*implicitTrunc=*/true));
}

StringRef analysis::nameOf(Reducer reducer, Type element) {
  switch (reducer) {
  case Reducer::Sum: // Of truth values, of which one at most is true, or which are added.
    return element.isInteger(1) ? "stablehlo.or" : "stablehlo.add";
  case Reducer::Product:
    return element.isInteger(1) ? "stablehlo.and" : "stablehlo.multiply";
  case Reducer::Maximum:
    return "stablehlo.maximum";
  case Reducer::Minimum:
    return "stablehlo.minimum";
  case Reducer::And:
    return "stablehlo.and";
  case Reducer::Or:
    break;
  }
  return "stablehlo.or";
}

DenseElementsAttr analysis::neutralOf(Reducer reducer, Type element) {
  auto type = RankedTensorType::get({}, element);
  bool isLeast = reducer == Reducer::Maximum, isMost = reducer == Reducer::Minimum;
  if (auto real = dyn_cast<FloatType>(element); real && (isLeast || isMost)) {
    const llvm::fltSemantics &semantics = real.getFloatSemantics();
    return DenseElementsAttr::get(type, APFloat::semanticsHasInf(semantics)
                                            ? APFloat::getInf(semantics, isLeast)
                                            : APFloat::getLargest(semantics, isLeast));
  }
  auto integer = dyn_cast<IntegerType>(element);
  bool isOne = reducer == Reducer::Product;
  if (!integer || isOne || reducer == Reducer::Sum || reducer == Reducer::Or)
    return splatOf(isOne, type);
  unsigned width = integer.getWidth();
  bool isSigned = !integer.isUnsigned() && width > 1;
  if (isLeast)
    return DenseElementsAttr::get(type, isSigned ? APInt::getSignedMinValue(width)
                                                 : APInt::getZero(width));
  if (isMost && isSigned)
    return DenseElementsAttr::get(type, APInt::getSignedMaxValue(width));
  return DenseElementsAttr::get(type, APInt::getAllOnes(width)); // Also of And.
}

/// The constant that a value is spread from.
static DenseElementsAttr splatBehind(Value value) {
  while (Operation *op = value.getDefiningOp()) {
    DenseElementsAttr known;
    if (matchPattern(op, m_Constant(&known)))
      return known.isSplat() ? known : DenseElementsAttr();
    if (!isa<hlo::BroadcastInDimOp, hlo::ReshapeOp, hlo::TransposeOp>(op))
      return {};
    value = op->getOperand(0);
  }
  return {};
}

bool analysis::isSplatOf(Value value, int64_t number) {
  DenseElementsAttr known = splatBehind(value);
  if (!known)
    return false;
  auto scalar = RankedTensorType::get({}, known.getElementType());
  if (auto real = dyn_cast<FloatType>(known.getElementType()))
    return known.getSplatValue<APFloat>().isExactlyValue(static_cast<double>(number));
  return known.resizeSplat(scalar) == splatOf(number, scalar);
}

bool analysis::isNeutral(Value value, Reducer reducer) {
  DenseElementsAttr known = splatBehind(value);
  if (!known)
    return false;
  if (reducer == Reducer::Sum && isa<FloatType>(known.getElementType()))
    return known.getSplatValue<APFloat>().isZero(); // Of either sign.
  DenseElementsAttr neutral = neutralOf(reducer, known.getElementType());
  return known.resizeSplat(neutral.getType()) == neutral;
}
