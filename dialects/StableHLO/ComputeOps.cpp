//===- ComputeOps.cpp - verifiers of transforms, indexing, random bits, calls ===//

#include "dialects/StableHLO/Verify.h"

#include "mlir/IR/TypeUtilities.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace mlir;
using namespace mlir::stablehlo;

LogicalResult FftOp::verify() {
  auto from = typeOf(getOperand()), to = typeOf(getResult());
  ArrayRef<int64_t> length = getFftLength();
  int64_t rank = int64_t(length.size());
  if (rank < 1 || rank > 3)
    return emitOpError("fft_c3: expected 1 to 3 lengths, got ") << rank;
  if (from.getRank() < rank)
    return emitOpError("fft_c1: expected an operand of rank ") << rank << " or more, got " << from;
  FftType type = getFftType();
  bool realIn = type == FftType::RFFT, realOut = type == FftType::IRFFT;
  Type in = from.getElementType(), out = to.getElementType();
  auto part = [](Type element) {
    auto complex = dyn_cast<ComplexType>(element);
    return complex ? complex.getElementType() : element;
  };
  if (isa<ComplexType>(in) == realIn || isa<ComplexType>(out) == realOut || part(in) != part(out))
    return emitOpError("fft_c2: element types ")
           << in << " and " << out << " do not fit " << stringifyFftType(type);
  SmallVector<int64_t> shape(from.getShape());
  MutableArrayRef<int64_t> last = MutableArrayRef<int64_t>(shape).take_back(rank);
  SmallVector<int64_t> expected(length);
  if (realOut)
    expected.back() = expected.back() / 2 + 1;
  if (!shapesAgree(last, expected))
    return emitOpError("fft_c4: ") << from << " does not fit the lengths";
  llvm::copy(length, last.begin());
  if (realIn)
    last.back() = last.back() / 2 + 1;
  return verifyResult(*this, "fft_c5", to, to.clone(shape));
}

LogicalResult RngOp::verify() {
  auto result = typeOf(getResult()), shape = typeOf(getShape());
  Type scalar = RankedTensorType::get({}, result.getElementType());
  if (getA().getType() != scalar || getB().getType() != scalar || shape.getRank() != 1 ||
      !sizesAgree(shape.getDimSize(0), result.getRank()))
    return emitOpError("rng_c1: expected two scalars of ")
           << result.getElementType() << " and a shape of " << result.getRank() << " entries";
  return success();
}

LogicalResult RngBitGeneratorOp::verify() {
  auto state = typeOf(getInitialState());
  if (failed(verifyResult(*this, "rng_bit_generator_c1", getOutputState().getType(), state)))
    return failure();
  int64_t size = state.getRank() == 1 ? state.getDimSize(0) : 0;
  int64_t bits = size * state.getElementType().getIntOrFloatBitWidth();
  bool fits = getRngAlgorithm() == RngAlgorithm::THREE_FRY ? bits == 128
              : getRngAlgorithm() == RngAlgorithm::PHILOX  ? bits == 128 || bits == 192
                                                           : size > 0;
  if (!fits)
    return emitOpError("rng_bit_generator_c2: ")
           << stringifyRngAlgorithm(getRngAlgorithm()) << " has no state of type " << state;
  return success();
}

//===----------------------------------------------------------------------===//
// gather
//===----------------------------------------------------------------------===//

LogicalResult GatherOp::verify() {
  auto operand = typeOf(getOperand()), indices = typeOf(getStartIndices());
  GatherDimensionNumbersAttr numbers = getDimensionNumbers();
  ArrayRef<int64_t> offset = numbers.getOffsetDims(), collapsed = numbers.getCollapsedSliceDims(),
                    batching = numbers.getOperandBatchingDims(),
                    indicesBatching = numbers.getStartIndicesBatchingDims(),
                    indexMap = numbers.getStartIndexMap(), sizes = getSliceSizes();
  int64_t rank = operand.getRank(), vector = numbers.getIndexVectorDim();
  if (int64_t(offset.size() + collapsed.size() + batching.size()) != rank)
    return emitOpError("gather_c1: expected offset, collapsed and batching dimensions to be ")
           << rank << " together, got " << offset.size() << ", " << collapsed.size() << " and "
           << batching.size();
  if (vector < 0 || vector > indices.getRank())
    return emitOpError("gather_c2: expected index_vector_dim in [0, ")
           << indices.getRank() << "], got " << vector;
  int64_t length = vector < indices.getRank() ? indices.getDimSize(vector) : 1;
  if (!sizesAgree(length, indexMap.size()))
    return emitOpError("gather_c3: expected ")
           << length << " entries of start_index_map, got " << indexMap.size();
  SmallVector<int64_t> dropped(collapsed);
  llvm::append_range(dropped, batching);
  int64_t batchRank = indices.getRank() - (vector < indices.getRank() ? 1 : 0);
  if (failed(verifyDims(*this, "gather_c4", "offset_dims", offset, batchRank + offset.size())) ||
      failed(verifyDims(*this, "gather_c4", "collapsed and batching dimensions", dropped, rank)) ||
      failed(verifyDims(*this, "gather_c4", "start_index_map", indexMap, rank)) ||
      failed(verifyDims(*this, "gather_c4", "start_indices_batching_dims", indicesBatching,
                        indices.getRank())))
    return failure();
  if (batching.size() != indicesBatching.size())
    return emitOpError("gather_c5: expected as many batching dimensions of operand and indices");
  for (auto [a, b] : llvm::zip_equal(batching, indicesBatching))
    if (b == vector || !sizesAgree(operand.getDimSize(a), indices.getDimSize(b)))
      return emitOpError("gather_c5: batching dimensions ")
             << a << " and " << b << " do not pair up";
  if (failed(verifySize(*this, "gather_c20", "slice_sizes", sizes.size(), rank)))
    return failure();
  for (int64_t dim : dropped)
    if (sizes[dim] > 1)
      return emitOpError("gather_c8: expected slices of size 1 in dimension ")
             << dim << ", got " << sizes[dim];
  for (auto [size, whole] : llvm::zip_equal(sizes, operand.getShape()))
    if (size < 0 || (!ShapedType::isDynamic(whole) && size > whole))
      return emitOpError("gather_c21: expected slice sizes from 0 to ")
             << whole << ", got " << size;
  SmallVector<int64_t> batch, window, shape;
  for (int64_t dim = 0; dim < indices.getRank(); ++dim)
    if (dim != vector)
      batch.push_back(indices.getDimSize(dim));
  for (int64_t dim = 0; dim < rank; ++dim)
    if (!llvm::is_contained(dropped, dim))
      window.push_back(sizes[dim]);
  size_t nextBatch = 0, nextWindow = 0;
  for (int64_t dim = 0; dim < int64_t(batch.size() + window.size()); ++dim)
    shape.push_back(llvm::is_contained(offset, dim) ? window[nextWindow++] : batch[nextBatch++]);
  if (typeOf(getResult()).getElementType() != operand.getElementType())
    return emitOpError("gather_c23: expected a result of element type ")
           << operand.getElementType() << ", got " << typeOf(getResult()).getElementType();
  return verifyResult(*this, "gather_c22", getType(), operand.clone(shape));
}

//===----------------------------------------------------------------------===//
// Calls
//===----------------------------------------------------------------------===//

static LogicalResult verifyLayouts(Operation *op, StringRef what, std::optional<ArrayAttr> layouts,
                                   ValueRange values) {
  if (!layouts)
    return success();
  SmallVector<Type> types(values.getTypes());
  // A single tuple may have its elements' layouts.
  if (auto tuple = types.size() == 1 ? dyn_cast<TupleType>(types.front()) : TupleType())
    if (layouts->size() == tuple.size())
      types.assign(tuple.getTypes().begin(), tuple.getTypes().end());
  if (failed(verifySize(op, "custom_call_c1", what, layouts->size(), types.size())))
    return failure();
  for (auto [layout, type] : llvm::zip_equal(*layouts, types)) {
    auto order = dyn_cast<DenseIntElementsAttr>(layout);
    auto tensor = dyn_cast<RankedTensorType>(type);
    int64_t rank = tensor ? tensor.getRank() : 0;
    if (!order || order.getType().getRank() != 1 || order.getNumElements() != rank)
      return op->emitOpError("custom_call_c1: expected ")
             << what << " to order " << rank << " dimensions, got " << layout;
    SmallVector<int64_t> dims;
    for (const APInt &dim : order.getValues<APInt>())
      dims.push_back(dim.getSExtValue());
    if (failed(verifyDims(op, "custom_call_c1", what, dims, rank)))
      return failure();
  }
  return success();
}

LogicalResult CustomCallOp::verify() {
  if (getOperandLayouts().has_value() != getResultLayouts().has_value())
    return emitOpError("custom_call_c1: expected layouts of operands and results, or of neither");
  if (failed(verifyLayouts(*this, "operand_layouts", getOperandLayouts(), getInputs())) ||
      failed(verifyLayouts(*this, "result_layouts", getResultLayouts(), getResults())))
    return failure();
  for (Attribute item : getOutputOperandAliases()) {
    int64_t index = cast<OutputOperandAliasAttr>(item).getOperandIndex();
    if (index < 0 || index >= int64_t(getInputs().size()))
      return emitOpError("custom_call_c2: expected an alias of an operand in [0, ")
             << getInputs().size() << "), got " << index;
  }
  return success();
}

void CustomCallOp::getEffects(SmallVectorImpl<MemoryEffects::EffectInstance> &effects) {
  if (!getHasSideEffect())
    return;
  effects.emplace_back(MemoryEffects::Write::get());
  effects.emplace_back(MemoryEffects::Read::get());
}

LogicalResult CompositeOp::verifySymbolUses(SymbolTableCollection &symbols) {
  if (!getName().contains('.'))
    return emitOpError("composite_c1: expected a name such as dialect.op, got \"")
           << getName() << "\"";
  auto function =
      symbols.lookupNearestSymbolFrom<FunctionOpInterface>(*this, getDecompositionAttr());
  if (!function)
    return emitOpError("composite_c2: there is no function ") << getDecompositionAttr();
  if (TypeRange(function.getArgumentTypes()) != TypeRange(getOperandTypes()))
    return emitOpError("composite_c3: ")
           << getDecompositionAttr() << " does not take the operands' types";
  if (TypeRange(function.getResultTypes()) != TypeRange(getResultTypes()))
    return emitOpError("composite_c4: ")
           << getDecompositionAttr() << " does not return the results' types";
  return success();
}
