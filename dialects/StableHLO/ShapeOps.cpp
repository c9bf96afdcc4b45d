//===- ShapeOps.cpp - verifiers and folds of data movement ----------------===//

#include "dialects/StableHLO/Verify.h"

#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::stablehlo;

static LogicalResult verifySameElement(Operation *op, StringRef label) {
  Type from = typeOf(op->getOperand(0)).getElementType();
  Type to = typeOf(op->getResult(0)).getElementType();
  if (from != to)
    return op->emitOpError(label) << ": expected result of element type " << from << ", got " << to;
  return success();
}

LogicalResult ConstantOp::verify() {
  return getValue().getType() == getType() ? success()
                                           : emitOpError("constant_c1: expected result type ")
                                                 << getValue().getType() << ", got " << getType();
}

OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValue(); }

LogicalResult IotaOp::verify() {
  return verifyDims(*this, "iota_c1", "iota_dimension", getIotaDimensionAttr().getInt(),
                    typeOf(getOutput()).getRank());
}

/// Bits of an element; those of both parts of a complex number.
static int64_t widthOf(Type type) {
  auto complex = dyn_cast<ComplexType>(type);
  return complex ? 2 * complex.getElementType().getIntOrFloatBitWidth()
                 : type.getIntOrFloatBitWidth();
}

LogicalResult BitcastConvertOp::verify() {
  auto from = typeOf(getOperand()), to = typeOf(getResult());
  if (isa<ComplexType>(from.getElementType()) != isa<ComplexType>(to.getElementType()))
    return emitOpError("bitcast_convert_c2: expected both or no element types to be complex, got ")
           << from << " and " << to;
  int64_t fromWidth = widthOf(from.getElementType()), toWidth = widthOf(to.getElementType());
  auto wide = fromWidth >= toWidth ? from : to, narrow = fromWidth >= toWidth ? to : from;
  int64_t ratio = std::max(fromWidth, toWidth) / std::min(fromWidth, toWidth);
  bool fits = ratio * std::min(fromWidth, toWidth) == std::max(fromWidth, toWidth);
  SmallVector<int64_t> shape(wide.getShape());
  if (ratio > 1)
    shape.push_back(ratio);
  if (!fits || !shapesAgree(shape, narrow.getShape()))
    return emitOpError("bitcast_convert_c1: the bits of ") << from << " do not make up " << to;
  return success();
}

/// Labels are `name` and a number.
static LogicalResult verifyBroadcast(Operation *op, StringRef name, ArrayRef<int64_t> dims) {
  auto from = typeOf(op->getOperand(0)), to = typeOf(op->getResult(0));
  auto label = [&](int number) { return (name + "_c" + Twine(number)).str(); };
  if (failed(verifySameElement(op, label(1))) ||
      failed(verifySize(op, label(2), "dims", dims.size(), from.getRank())) ||
      failed(verifyRange(op, label(3), "dims", dims, to.getRank())) ||
      failed(verifyUnique(op, label(4), "dims", dims)))
    return failure();
  for (auto [i, dim] : llvm::enumerate(dims))
    if (from.getDimSize(i) != 1 && !sizesAgree(from.getDimSize(i), to.getDimSize(dim)))
      return op->emitOpError(label(5))
             << ": expected dimension " << i << " of the operand to have size 1 or "
             << to.getDimSize(dim) << ", got " << from.getDimSize(i);
  return success();
}

LogicalResult BroadcastInDimOp::verify() {
  return verifyBroadcast(*this, "broadcast_in_dim", getBroadcastDimensions());
}

OpFoldResult BroadcastInDimOp::fold(FoldAdaptor) {
  ArrayRef<int64_t> dims = getBroadcastDimensions();
  bool identity =
      getOperand().getType() == getType() && llvm::equal(dims, llvm::seq<int64_t>(0, dims.size()));
  return identity && typeOf(getResult()).hasStaticShape() ? OpFoldResult(getOperand())
                                                          : OpFoldResult();
}

LogicalResult ReshapeOp::verify() {
  auto from = typeOf(getOperand()), to = typeOf(getResult());
  if (failed(verifySameElement(*this, "reshape_c1")))
    return failure();
  if (from.hasStaticShape() && to.hasStaticShape() && from.getNumElements() != to.getNumElements())
    return emitOpError("reshape_c2: expected a result of ")
           << from.getNumElements() << " elements, got " << to.getNumElements();
  return success();
}

OpFoldResult ReshapeOp::fold(FoldAdaptor) {
  if (getOperand().getType() == getType() && typeOf(getResult()).hasStaticShape())
    return getOperand();
  auto inner = getOperand().getDefiningOp<ReshapeOp>();
  if (inner && inner.getOperand().getType() == getType() && typeOf(getResult()).hasStaticShape())
    return inner.getOperand();
  return {};
}

LogicalResult ReverseOp::verify() {
  ArrayRef<int64_t> dims = getDimensions();
  for (auto [i, dim] : llvm::enumerate(dims))
    if (llvm::is_contained(dims.take_front(i), dim))
      return emitOpError("reverse_c2: dimension ") << dim << " is named twice";
  return verifyDims(*this, "reverse_c3", "dims", dims, typeOf(getOperand()).getRank());
}

LogicalResult TransposeOp::verify() {
  auto from = typeOf(getOperand());
  ArrayRef<int64_t> permutation = getPermutation();
  if (failed(verifySameElement(*this, "transpose_c1")) ||
      failed(verifySize(*this, "transpose_c2", "dims", permutation.size(), from.getRank())) ||
      failed(verifyDims(*this, "transpose_c2", "dims", permutation, from.getRank())))
    return failure();
  SmallVector<int64_t> shape;
  for (int64_t dim : permutation)
    shape.push_back(from.getDimSize(dim));
  return verifyResult(*this, "transpose_c3", getType(), from.clone(shape));
}

OpFoldResult TransposeOp::fold(FoldAdaptor) {
  ArrayRef<int64_t> dims = getPermutation();
  bool identity =
      getOperand().getType() == getType() && llvm::equal(dims, llvm::seq<int64_t>(0, dims.size()));
  return identity ? OpFoldResult(getOperand()) : OpFoldResult();
}

//===----------------------------------------------------------------------===//
// Parts
//===----------------------------------------------------------------------===//

LogicalResult ConcatenateOp::verify() {
  if (getInputs().empty())
    return emitOpError("concatenate_c3: expected an operand");
  auto first = typeOf(getInputs().front());
  int64_t dim = getDimensionAttr().getInt();
  if (failed(verifyDims(*this, "concatenate_c4", "dim", dim, first.getRank())))
    return failure();
  SmallVector<int64_t> shape(first.getShape());
  for (Value input : getInputs().drop_front()) {
    auto type = typeOf(input);
    if (type.getElementType() != first.getElementType())
      return emitOpError("concatenate_c1: expected operands of element type ")
             << first.getElementType() << ", got " << type.getElementType();
    bool fits = type.getRank() == first.getRank();
    for (int64_t i = 0; fits && i < first.getRank(); ++i)
      fits = i == dim || sizesAgree(type.getDimSize(i), first.getDimSize(i));
    if (!fits)
      return emitOpError("concatenate_c2: expected shapes that differ in dimension ")
             << dim << " only, got " << first << " and " << type;
    bool dynamic = ShapedType::isDynamic(shape[dim]) || type.isDynamicDim(dim);
    shape[dim] = dynamic ? ShapedType::kDynamic : shape[dim] + type.getDimSize(dim);
  }
  return verifyResult(*this, "concatenate_c6", getType(), first.clone(shape));
}

OpFoldResult ConcatenateOp::fold(FoldAdaptor) {
  bool same = getInputs().size() == 1 && getInputs().front().getType() == getType();
  return same ? OpFoldResult(getInputs().front()) : OpFoldResult();
}

LogicalResult SliceOp::verify() {
  auto from = typeOf(getOperand());
  ArrayRef<int64_t> starts = getStartIndices(), limits = getLimitIndices(), strides = getStrides();
  if (failed(verifySameElement(*this, "slice_c1")) ||
      failed(verifySize(*this, "slice_c2", "start_indices", starts.size(), from.getRank())) ||
      failed(verifySize(*this, "slice_c2", "limit_indices", limits.size(), from.getRank())) ||
      failed(verifySize(*this, "slice_c2", "strides", strides.size(), from.getRank())))
    return failure();
  SmallVector<int64_t> shape;
  for (int64_t i = 0; i < from.getRank(); ++i) {
    int64_t size = from.getDimSize(i);
    if (starts[i] < 0 || starts[i] > limits[i] ||
        (!ShapedType::isDynamic(size) && limits[i] > size))
      return emitOpError("slice_c3: expected 0 <= start <= limit <= ")
             << size << " in dimension " << i << ", got " << starts[i] << " and " << limits[i];
    if (strides[i] <= 0)
      return emitOpError("slice_c4: expected a positive stride, got ") << strides[i];
    int64_t length = limits[i] - starts[i];
    shape.push_back(length / strides[i] + (length % strides[i] != 0));
  }
  return verifyResult(*this, "slice_c5", getType(), from.clone(shape));
}

OpFoldResult SliceOp::fold(FoldAdaptor) {
  auto type = typeOf(getOperand());
  bool whole = type == getType() && type.hasStaticShape() &&
               llvm::equal(getLimitIndices(), type.getShape()) &&
               llvm::all_of(getStrides(), [](int64_t stride) { return stride == 1; });
  if (whole)
    return getOperand();
  // What was padded.
  auto pad = getOperand().getDefiningOp<PadOp>();
  if (!pad || pad.getOperand().getType() != getType() ||
      !llvm::equal(getStartIndices(), pad.getEdgePaddingLow()) ||
      llvm::any_of(getStrides(), [](int64_t stride) { return stride != 1; }) ||
      llvm::any_of(pad.getEdgePaddingHigh(), [](int64_t high) { return high < 0; }) ||
      llvm::any_of(pad.getInteriorPadding(), [](int64_t size) { return size != 0; }))
    return {};
  return pad.getOperand();
}

LogicalResult DynamicSliceOp::verify() {
  auto from = typeOf(getOperand());
  ArrayRef<int64_t> sizes = getSliceSizes();
  if (failed(verifySameElement(*this, "dynamic_slice_c1")) ||
      failed(verifySize(*this, "dynamic_slice_c2", "start_indices", getStartIndices().size(),
                        from.getRank())) ||
      failed(verifySize(*this, "dynamic_slice_c2", "sizes", sizes.size(), from.getRank())) ||
      failed(verifyIndices(*this, "dynamic_slice_c3", getStartIndices())))
    return failure();
  for (auto [size, whole] : llvm::zip_equal(sizes, from.getShape()))
    if (size < 0 || (!ShapedType::isDynamic(whole) && size > whole))
      return emitOpError("dynamic_slice_c4: expected sizes from 0 to ")
             << whole << ", got " << size;
  return verifyResult(*this, "dynamic_slice_c5", getType(), from.clone(sizes));
}

LogicalResult DynamicUpdateSliceOp::verify() {
  auto operand = typeOf(getOperand()), update = typeOf(getUpdate());
  if (failed(verifyResult(*this, "dynamic_update_slice_c1", getType(), operand)))
    return failure();
  if (update.getElementType() != operand.getElementType())
    return emitOpError("dynamic_update_slice_c2: expected update of element type ")
           << operand.getElementType() << ", got " << update.getElementType();
  if (update.getRank() != operand.getRank())
    return emitOpError("dynamic_update_slice_c3: expected update of rank ")
           << operand.getRank() << ", got " << update.getRank();
  if (failed(verifySize(*this, "dynamic_update_slice_c4", "start_indices", getStartIndices().size(),
                        operand.getRank())) ||
      failed(verifyIndices(*this, "dynamic_update_slice_c5", getStartIndices())))
    return failure();
  for (auto [size, whole] : llvm::zip_equal(update.getShape(), operand.getShape()))
    if (!ShapedType::isDynamic(size) && !ShapedType::isDynamic(whole) && size > whole)
      return emitOpError("dynamic_update_slice_c6: update ")
             << update << " does not fit " << operand;
  return success();
}

LogicalResult PadOp::verify() {
  auto from = typeOf(getOperand()), value = typeOf(getPaddingValue());
  if (value.getRank() != 0 || value.getElementType() != from.getElementType())
    return emitOpError("pad_c1: expected a scalar of ")
           << from.getElementType() << " as padding value, got " << value;
  ArrayRef<int64_t> low = getEdgePaddingLow(), high = getEdgePaddingHigh(),
                    interior = getInteriorPadding();
  if (failed(verifySize(*this, "pad_c2", "low", low.size(), from.getRank())) ||
      failed(verifySize(*this, "pad_c2", "high", high.size(), from.getRank())) ||
      failed(verifySize(*this, "pad_c2", "interior", interior.size(), from.getRank())))
    return failure();
  SmallVector<int64_t> shape;
  for (int64_t i = 0; i < from.getRank(); ++i) {
    if (interior[i] < 0)
      return emitOpError("pad_c3: expected interior padding not to be negative, got ")
             << interior[i];
    int64_t size = from.getDimSize(i);
    int64_t padded = low[i] + size + std::max<int64_t>(size - 1, 0) * interior[i] + high[i];
    if (!ShapedType::isDynamic(size) && padded < 0)
      return emitOpError("pad_c4: dimension ") << i << " would have size " << padded;
    shape.push_back(ShapedType::isDynamic(size) ? size : padded);
  }
  return verifyResult(*this, "pad_c4", getType(), from.clone(shape));
}

LogicalResult GetDimensionSizeOp::verify() {
  return verifyDims(*this, "get_dimension_size_c1", "dim", getDimensionAttr().getInt(),
                    typeOf(getOperand()).getRank());
}

//===----------------------------------------------------------------------===//
// Sizes of run-time values
//===----------------------------------------------------------------------===//

/// A list of sizes has one entry a dimension.
static LogicalResult verifySizes(Operation *op, StringRef label, StringRef what, Value sizes,
                                 int64_t rank) {
  int64_t count = typeOf(sizes).getDimSize(0);
  return ShapedType::isDynamic(count) ? success() : verifySize(op, label, what, count, rank);
}

LogicalResult DynamicBroadcastInDimOp::verify() {
  if (failed(verifyBroadcast(*this, "dynamic_broadcast_in_dim", getBroadcastDimensions())))
    return failure();
  return verifySizes(*this, "dynamic_broadcast_in_dim_c7", "output_dimensions",
                     getOutputDimensions(), typeOf(getResult()).getRank());
}

LogicalResult DynamicReshapeOp::verify() {
  auto from = typeOf(getOperand()), to = typeOf(getResult());
  if (failed(verifySameElement(*this, "dynamic_reshape_c1")))
    return failure();
  if (from.hasStaticShape() && to.hasStaticShape() && from.getNumElements() != to.getNumElements())
    return emitOpError("dynamic_reshape_c2: expected a result of ")
           << from.getNumElements() << " elements, got " << to.getNumElements();
  return verifySizes(*this, "dynamic_reshape_c3", "output_shape", getOutputShape(), to.getRank());
}

LogicalResult DynamicIotaOp::verify() {
  int64_t rank = typeOf(getOutput()).getRank();
  return failure(
      failed(verifyRange(*this, "dynamic_iota_c1", "iota_dimension",
                         getIotaDimensionAttr().getInt(), rank)) ||
      failed(verifySizes(*this, "dynamic_iota_c2", "output_shape", getOutputShape(), rank)));
}

LogicalResult DynamicPadOp::verify() {
  auto from = typeOf(getOperand()), value = typeOf(getPaddingValue());
  int64_t rank = from.getRank();
  if (value.getRank() != 0 || value.getElementType() != from.getElementType())
    return emitOpError("dynamic_pad_c1: expected a scalar of ")
           << from.getElementType() << " as padding value, got " << value;
  if (failed(verifySameElement(*this, "dynamic_pad_c1")) ||
      failed(verifySizes(*this, "dynamic_pad_c2", "low", getEdgePaddingLow(), rank)) ||
      failed(verifySizes(*this, "dynamic_pad_c2", "high", getEdgePaddingHigh(), rank)) ||
      failed(verifySizes(*this, "dynamic_pad_c2", "interior", getInteriorPadding(), rank)))
    return failure();
  SmallVector<int64_t> shape(rank, ShapedType::kDynamic);
  return verifyResult(*this, "dynamic_pad_c4", getType(), from.clone(shape));
}

LogicalResult RealDynamicSliceOp::verify() {
  auto from = typeOf(getOperand());
  int64_t rank = from.getRank();
  SmallVector<int64_t> shape(rank, ShapedType::kDynamic);
  return failure(
      failed(verifyResult(*this, "real_dynamic_slice_c1", getType(), from.clone(shape))) ||
      failed(
          verifySizes(*this, "real_dynamic_slice_c2", "start_indices", getStartIndices(), rank)) ||
      failed(
          verifySizes(*this, "real_dynamic_slice_c2", "limit_indices", getLimitIndices(), rank)) ||
      failed(verifySizes(*this, "real_dynamic_slice_c2", "strides", getStrides(), rank)));
}

LogicalResult DynamicGatherOp::verify() {
  if (failed(verifySizes(*this, "dynamic_gather_c1", "slice_sizes", getSliceSizes(),
                         typeOf(getOperand()).getRank())))
    return failure();
  return verifySameElement(*this, "dynamic_gather_c2");
}

//===----------------------------------------------------------------------===//
// Tuples, barriers
//===----------------------------------------------------------------------===//

LogicalResult TupleOp::verify() {
  return verifyResult(*this, "tuple_c1", getType(),
                      TupleType::get(getContext(), getOperandTypes()));
}

LogicalResult GetTupleElementOp::verify() {
  auto tuple = cast<TupleType>(getOperand().getType());
  int64_t index = getIndexAttr().getInt();
  if (index < 0 || index >= int64_t(tuple.size()))
    return emitOpError("get_tuple_element_c1: expected an index in [0, ")
           << tuple.size() << "), got " << index;
  return verifyResult(*this, "get_tuple_element_c2", getType(), tuple.getType(index));
}

OpFoldResult GetTupleElementOp::fold(FoldAdaptor) {
  auto tuple = getOperand().getDefiningOp<TupleOp>();
  int64_t index = getIndexAttr().getInt();
  return tuple && index >= 0 && index < int64_t(tuple.getVal().size())
             ? OpFoldResult(tuple.getVal()[index])
             : OpFoldResult();
}

LogicalResult OptimizationBarrierOp::verify() {
  if (TypeRange(getOperandTypes()) != TypeRange(getResultTypes()))
    return emitOpError("optimization_barrier_c1: expected results of the operands' types");
  return success();
}
