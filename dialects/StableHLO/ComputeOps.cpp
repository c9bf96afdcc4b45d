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
  auto real = realIn ? from : to;
  if ((realIn || realOut) &&
      (real.getRank() < rank || !shapesAgree(real.getShape().take_back(rank), length)))
    return emitOpError("fft_c4: ") << real << " does not fit the lengths";
  // Half of what a transform of real numbers gives says the rest.
  auto halve = [&](ArrayRef<int64_t> sizes) {
    SmallVector<int64_t> shape(sizes);
    llvm::copy(length, MutableArrayRef<int64_t>(shape).take_back(rank).begin());
    if (shape.back() != 0)
      shape.back() = shape.back() / 2 + 1;
    return shape;
  };
  if (!realOut)
    return verifyResult(
        *this, "fft_c5", to,
        to.clone(realIn ? halve(from.getShape()) : SmallVector<int64_t>(from.getShape())));
  if (to.getRank() != from.getRank() || !shapesAgree(halve(to.getShape()), from.getShape()))
    return emitOpError("fft_c5: ") << to << " does not fit " << from;
  return success();
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
  if (failed(verifyUnique(*this, "gather_c4", "offset_dims", offset)) ||
      failed(verifySorted(*this, "gather_c4", "offset_dims", offset)) ||
      failed(verifyRange(*this, "gather_c5", "offset_dims", offset, batchRank + offset.size())) ||
      failed(verifyUnique(*this, "gather_c6", "collapsed and batching dimensions", dropped)) ||
      failed(verifySorted(*this, "gather_c7", "collapsed_slice_dims", collapsed)) ||
      failed(verifyRange(*this, "gather_c8", "collapsed_slice_dims", collapsed, rank)) ||
      failed(verifySorted(*this, "gather_c10", "operand_batching_dims", batching)) ||
      failed(verifyRange(*this, "gather_c11", "operand_batching_dims", batching, rank)) ||
      failed(verifyUnique(*this, "gather_c13", "start_indices_batching_dims", indicesBatching)) ||
      failed(verifyRange(*this, "gather_c14", "start_indices_batching_dims", indicesBatching,
                         indices.getRank())))
    return failure();
  if (llvm::is_contained(indicesBatching, vector))
    return emitOpError("gather_c15: index_vector_dim ")
           << vector << " is named in start_indices_batching_dims";
  if (failed(verifySize(*this, "gather_c16", "start_indices_batching_dims", indicesBatching.size(),
                        batching.size())))
    return failure();
  for (auto [a, b] : llvm::zip_equal(batching, indicesBatching))
    if (!sizesAgree(operand.getDimSize(a), indices.getDimSize(b)))
      return emitOpError("gather_c17: batching dimensions ")
             << a << " of " << operand << " and " << b << " of " << indices << " differ in size";
  if (failed(verifyUnique(*this, "gather_c18", "start_index_map and batching dimensions", indexMap,
                          batching)) ||
      failed(verifyRange(*this, "gather_c19", "start_index_map", indexMap, rank)) ||
      failed(verifySize(*this, "gather_c20", "slice_sizes", sizes.size(), rank)))
    return failure();
  for (auto [label, dims] : {std::pair("gather_c9", collapsed), {"gather_c12", batching}})
    for (int64_t dim : dims)
      if (sizes[dim] > 1)
        return emitOpError(label) << ": expected slices of size 1 in dimension " << dim << ", got "
                                  << sizes[dim];
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

/// The part of a value that the indices lead to, through tuples in tuples.
static Type partAt(Type type, ArrayRef<int64_t> indices) {
  for (int64_t index : indices) {
    auto tuple = dyn_cast_if_present<TupleType>(type);
    if (!tuple || index < 0 || index >= int64_t(tuple.size()))
      return {};
    type = tuple.getType(index);
  }
  return type;
}

static LogicalResult verifyAlias(CustomCallOp op, OutputOperandAliasAttr alias) {
  int64_t index = alias.getOperandIndex(), count = op.getInputs().size();
  if (index < 0 || index >= count)
    return op.emitOpError("custom_call_c2: expected an alias of an operand in [0, ")
           << count << "), got " << index;
  Type operand = partAt(op.getInputs()[index].getType(), alias.getOperandTupleIndices());
  // Several results are indexed as one tuple of them.
  Type results = op.getNumResults() == 1
                     ? op.getResult(0).getType()
                     : Type(TupleType::get(op.getContext(), op.getResultTypes()));
  Type result = partAt(results, alias.getOutputTupleIndices());
  if (!operand || !result)
    return op.emitOpError("custom_call_c2: the ")
           << (operand ? "results have" : "operand has") << " no part at the indices of " << alias;
  if (!typesAgree(operand, result))
    return op.emitOpError("custom_call_c2: an alias of ")
           << operand << " cannot be a result of type " << result;
  return success();
}

LogicalResult CustomCallOp::verify() {
  if (getOperandLayouts().has_value() != getResultLayouts().has_value())
    return emitOpError("custom_call_c1: expected layouts of operands and results, or of neither");
  if (failed(verifyLayouts(*this, "operand_layouts", getOperandLayouts(), getInputs())) ||
      failed(verifyLayouts(*this, "result_layouts", getResultLayouts(), getResults())))
    return failure();
  for (Attribute item : getOutputOperandAliases())
    if (failed(verifyAlias(*this, cast<OutputOperandAliasAttr>(item))))
      return failure();
  // Of the typed foreign function interface.
  constexpr int64_t kTyped = 4;
  int64_t version = getApiVersion();
  if (version < 0 || version > kTyped)
    return emitOpError("custom_call_c3: expected an api_version from 0 to ")
           << kTyped << ", got " << version;
  Attribute config = getBackendConfigAttr();
  if (config && (version == kTyped ? !isa<DictionaryAttr>(config) : !isa<StringAttr>(config)))
    return emitOpError("custom_call_c4: expected backend_config to be ")
           << (version == kTyped ? "a dictionary" : "a string") << " with api_version " << version
           << ", got " << config;
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
