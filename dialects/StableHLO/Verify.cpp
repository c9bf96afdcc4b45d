//===- Verify.cpp - what verifiers of several ops ask ---------------------===//

#include "dialects/StableHLO/Verify.h"

#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/SmallSet.h"

using namespace mlir;
using namespace mlir::stablehlo;

bool stablehlo::shapesAgree(ArrayRef<int64_t> a, ArrayRef<int64_t> b) {
  return a.size() == b.size() && llvm::all_of(llvm::zip_equal(a, b), [](auto pair) {
           return sizesAgree(std::get<0>(pair), std::get<1>(pair));
         });
}

bool stablehlo::typesAgree(Type a, Type b) {
  auto left = dyn_cast<RankedTensorType>(a), right = dyn_cast<RankedTensorType>(b);
  if (!left || !right)
    return a == b;
  return left.getElementType() == right.getElementType() &&
         shapesAgree(left.getShape(), right.getShape());
}

bool stablehlo::allTypesAgree(TypeRange a, TypeRange b) {
  return a.size() == b.size() && llvm::all_of(llvm::zip_equal(a, b), [](auto pair) {
           return typesAgree(std::get<0>(pair), std::get<1>(pair));
         });
}

LogicalResult stablehlo::verifyRange(Operation *op, StringRef label, StringRef what,
                                     ArrayRef<int64_t> dims, int64_t rank) {
  for (int64_t dim : dims)
    if (dim < 0 || dim >= rank)
      return op->emitOpError(label)
             << ": expected " << what << " in [0, " << rank << "), got " << dim;
  return success();
}

LogicalResult stablehlo::verifyUnique(Operation *op, StringRef label, StringRef what,
                                      ArrayRef<int64_t> dims, ArrayRef<int64_t> more) {
  llvm::SmallSet<int64_t, 8> seen;
  for (int64_t dim : llvm::concat<const int64_t>(dims, more))
    if (!seen.insert(dim).second)
      return op->emitOpError(label) << ": dimension " << dim << " is named twice in " << what;
  return success();
}

LogicalResult stablehlo::verifySorted(Operation *op, StringRef label, StringRef what,
                                      ArrayRef<int64_t> dims) {
  if (llvm::is_sorted(dims))
    return success();
  InFlightDiagnostic error = op->emitOpError(label) << ": expected " << what << " in order, got [";
  llvm::interleaveComma(dims, error);
  return error << "]";
}

LogicalResult stablehlo::verifyDims(Operation *op, StringRef label, StringRef what,
                                    ArrayRef<int64_t> dims, int64_t rank) {
  return failure(failed(verifyRange(op, label, what, dims, rank)) ||
                 failed(verifyUnique(op, label, what, dims)));
}

LogicalResult stablehlo::verifySize(Operation *op, StringRef label, StringRef what, size_t got,
                                    size_t size) {
  if (got == size)
    return success();
  return op->emitOpError(label) << ": expected " << size << " entries of " << what << ", got "
                                << got;
}

LogicalResult stablehlo::verifyResult(Operation *op, StringRef label, Type got, Type expected) {
  if (typesAgree(got, expected))
    return success();
  return op->emitOpError(label) << ": expected result type " << expected << ", got " << got;
}

LogicalResult stablehlo::verifyIndices(Operation *op, StringRef label, ValueRange indices) {
  for (Value index : indices)
    if (typeOf(index).getRank() != 0 || index.getType() != indices.front().getType())
      return op->emitOpError(label)
             << ": expected scalar indices of one type, got " << index.getType();
  return success();
}

/// Types of the values that the region returns, or nothing with an error.
static FailureOr<TypeRange> returnedTypes(Operation *op, StringRef label, StringRef what,
                                          Region &region) {
  auto returned = region.front().empty() ? ReturnOp() : dyn_cast<ReturnOp>(region.front().back());
  if (!returned)
    return op->emitOpError(label) << ": expected " << what << " to end in stablehlo.return";
  return TypeRange(returned.getOperandTypes());
}

LogicalResult stablehlo::verifyScalarRegion(Operation *op, StringRef label, StringRef what,
                                            Region &region, ArrayRef<Type> arguments,
                                            ArrayRef<Type> results) {
  auto scalars = [](ArrayRef<Type> elements) {
    return llvm::to_vector_of<Type>(
        llvm::map_range(elements, [](Type type) { return RankedTensorType::get({}, type); }));
  };
  FailureOr<TypeRange> returned = returnedTypes(op, label, what, region);
  if (failed(returned))
    return failure();
  SmallVector<Type> in = scalars(arguments), out = scalars(results);
  if (region.getArgumentTypes() == TypeRange(in) && *returned == TypeRange(out))
    return success();
  auto *context = op->getContext();
  return op->emitOpError(label) << ": expected " << what << " of type "
                                << FunctionType::get(context, in, out) << ", got "
                                << FunctionType::get(context, region.getArgumentTypes(), *returned);
}

bool stablehlo::isPromotable(Type from, Type to) {
  if (from == to || (isa<FloatType>(from) && isa<FloatType>(to)))
    return true;
  if (isa<ComplexType>(from) && isa<ComplexType>(to)) {
    from = cast<ComplexType>(from).getElementType();
    to = cast<ComplexType>(to).getElementType();
  } else if (!isa<IntegerType>(from) || !isa<IntegerType>(to)) {
    return false;
  }
  return from.getIntOrFloatBitWidth() <= to.getIntOrFloatBitWidth();
}

LogicalResult stablehlo::verifyReducer(Operation *op, StringRef label, Region &region,
                                       ArrayRef<Type> elements, TypeRange results) {
  SmallVector<Type> out;
  for (Type type : results)
    out.push_back(getElementTypeOrSelf(type));
  for (auto [element, type] : llvm::zip(elements, out))
    if (!isPromotable(element, type))
      return op->emitOpError(label) << ": expected results of element type " << element
                                    << " or a wider one of its kind, got " << type;
  SmallVector<Type> in(out);
  llvm::append_range(in, out);
  return verifyScalarRegion(op, label, "a computation", region, in, out);
}

FailureOr<SmallVector<WindowDim>>
stablehlo::readWindow(Operation *op, StringRef label, ArrayRef<int64_t> sizes,
                      std::optional<ArrayRef<int64_t>> strides,
                      std::optional<DenseIntElementsAttr> padding,
                      std::optional<ArrayRef<int64_t>> baseDilations,
                      std::optional<ArrayRef<int64_t>> windowDilations) {
  size_t rank = sizes.size();
  SmallVector<WindowDim> window(rank);
  auto read = [&](StringRef what, std::optional<ArrayRef<int64_t>> values,
                  int64_t WindowDim::*field) -> LogicalResult {
    if (!values)
      return success();
    if (failed(verifySize(op, label, what, values->size(), rank)))
      return failure();
    for (auto [dim, value] : llvm::zip_equal(window, *values)) {
      if (value <= 0)
        return op->emitOpError(label) << ": expected positive " << what << ", got " << value;
      dim.*field = value;
    }
    return success();
  };
  for (auto [dim, size] : llvm::zip_equal(window, sizes)) {
    // A kernel of size 0 has no places; only declared windows must be positive.
    dim.size = size;
  }
  if (failed(read("window strides", strides, &WindowDim::stride)) ||
      failed(read("base dilations", baseDilations, &WindowDim::baseDilation)) ||
      failed(read("window dilations", windowDilations, &WindowDim::windowDilation)))
    return failure();
  if (padding && *padding) {
    auto type = cast<ShapedType>(padding->getType());
    if (type.getRank() != 2 || type.getDimSize(0) != int64_t(rank) || type.getDimSize(1) != 2)
      return op->emitOpError(label) << ": expected padding of shape " << rank << "x2, got " << type;
    auto values = padding->getValues<int64_t>();
    for (size_t i = 0; i < rank; ++i) {
      window[i].low = values[2 * i];
      window[i].high = values[2 * i + 1];
    }
  }
  return window;
}

int64_t stablehlo::countPlaces(int64_t size, const WindowDim &dim) {
  if (ShapedType::isDynamic(size) || ShapedType::isDynamic(dim.size))
    return ShapedType::kDynamic;
  auto dilate = [](int64_t n, int64_t by) { return n == 0 ? 0 : (n - 1) * by + 1; };
  int64_t padded = dim.low + dilate(size, dim.baseDilation) + dim.high;
  int64_t window = dilate(dim.size, dim.windowDilation);
  return padded <= 0 || window > padded ? 0 : (padded - window) / dim.stride + 1;
}

LogicalResult stablehlo::verifyGroups(Operation *op, GroupLabels labels,
                                      DenseIntElementsAttr groups) {
  auto type = cast<ShapedType>(groups.getType());
  if (type.getRank() != 2)
    return op->emitOpError(labels.unique) << ": expected groups as rows of devices, got " << type;
  llvm::SmallSet<int64_t, 16> seen;
  // Two of equal elements say as much as all.
  int64_t count =
      groups.isSplat() ? std::min<int64_t>(groups.getNumElements(), 2) : groups.getNumElements();
  auto devices = groups.getValues<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    int64_t device = devices[i];
    if (device == -1 && labels.sizes.empty())
      continue;
    if (device < 0)
      return op->emitOpError(device == -1 ? labels.sizes : labels.numbers)
             << ": there is no device " << device;
    if (!seen.insert(device).second)
      return op->emitOpError(labels.unique) << ": device " << device << " is in two groups";
  }
  for (int64_t device = 0; device < int64_t(seen.size()); ++device)
    if (!seen.contains(device))
      return op->emitOpError(labels.numbers) << ": expected groups of devices 0 to "
                                             << seen.size() - 1 << ", " << device << " is missing";
  return success();
}
