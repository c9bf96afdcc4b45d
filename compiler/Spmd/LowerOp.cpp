//===- LowerOp.cpp - one op on one device ---------------------------------===//

#include "compiler/Spmd/LowerOp.h"

#include "compiler/Analysis/PartOfOp.h"
#include "compiler/Spmd/ShardedModule.h"
#include "mlir/IR/IRMapping.h"

using namespace alpa;
using namespace mlir;
namespace hlo = mlir::stablehlo;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

RankedTensorType OpLowering::partialType(unsigned result) {
  return localType(typeOf(op->getResult(result)), split.partials[result], devices.getMeshShape());
}

Operation *OpLowering::clone(ValueRange operands) {
  IRMapping mapping;
  mapping.map(op->getOperands(), operands);
  // An operand that is there twice may be there in two forms.
  Operation *made = builder.clone(*op, mapping);
  made->setOperands(operands);
  for (auto [i, result] : llvm::enumerate(made->getResults()))
    if (isa<RankedTensorType>(result.getType()))
      result.setType(partialType(i));
  for (NamedAttribute attribute : llvm::to_vector(made->getDiscardableAttrs()))
    if (attribute.getName().strref().starts_with("alpa."))
      made->removeDiscardableAttr(attribute.getName());
  fitSizes(made, op);
  return made;
}

Value OpLowering::iota() {
  Value made = clone({})->getResult(0);
  auto dim = static_cast<int64_t>(cast<hlo::IotaOp>(op).getIotaDimension());
  ArrayRef<unsigned> axes = split.results[0].dims[dim];
  if (axes.empty())
    return made;
  RankedTensorType type = typeOf(made);
  Value offset = devices.pieceOffset(axes, type.getDimSize(dim), op->getLoc());
  if (type.getElementType() != typeOf(offset).getElementType())
    offset = hlo::ConvertOp::create(builder, op->getLoc(),
                                    typeOf(offset).clone(type.getElementType()), offset);
  return devices.binary("stablehlo.add", made,
                        devices.splat(offset, type.getShape(), op->getLoc()));
}

Value OpLowering::constant() {
  auto value = cast<hlo::ConstantOp>(op).getValue();
  auto dense = dyn_cast<DenseElementsAttr>(value);
  if (dense && dense.isSplat())
    return hlo::ConstantOp::create(builder, op->getLoc(),
                                   cast<ElementsAttr>(dense.resizeSplat(partialType(0))));
  Value whole = hlo::ConstantOp::create(builder, op->getLoc(), value);
  return devices.partOf(whole, split.results[0], op->getLoc());
}

/// Differences must neither wrap around nor lose their sign.
Value OpLowering::withSafeType(Value indices) {
  auto element = cast<IntegerType>(typeOf(indices).getElementType());
  bool fits = !element.isUnsigned() && element.getWidth() >= 32;
  if (fits)
    return indices;
  unsigned width = element.getWidth() < 32 ? 32 : 64;
  return hlo::ConvertOp::create(builder, op->getLoc(),
                                typeOf(indices).clone(builder.getIntegerType(width)), indices);
}

OpLowering::LocalIndices OpLowering::localIndices(Value indices, int64_t vectorDim,
                                                  int64_t position, int64_t size,
                                                  ArrayRef<unsigned> axes, bool clamps) {
  Location loc = op->getLoc();
  RankedTensorType type = typeOf(indices);
  int64_t rank = type.getRank();
  bool isVector = vectorDim < rank;
  auto part = [&](int64_t from, int64_t to) -> Value {
    SmallVector<int64_t> starts(rank, 0), limits(type.getShape()), strides(rank, 1);
    starts[vectorDim] = from;
    limits[vectorDim] = to;
    SmallVector<int64_t> shape(limits);
    shape[vectorDim] = to - from;
    return hlo::SliceOp::create(
        builder, loc, type.clone(shape), indices, builder.getDenseI64ArrayAttr(starts),
        builder.getDenseI64ArrayAttr(limits), builder.getDenseI64ArrayAttr(strides));
  };
  Value component = isVector ? part(position, position + 1) : indices;
  ArrayRef<int64_t> shape = typeOf(component).getShape();
  auto filled = [&](int64_t value) {
    return devices.splat(devices.scalar(value, type.getElementType(), loc), shape, loc);
  };
  if (clamps) { // As the op on whole tensors does it.
    component = devices.binary("stablehlo.maximum", component, filled(0));
    component = devices.binary("stablehlo.minimum", component, filled(size - 1));
  }
  int64_t pieces = 1;
  for (unsigned axis : axes)
    pieces *= devices.getMeshShape()[axis];
  Value offset = devices.pieceOffset(axes, size / pieces, loc);
  if (typeOf(offset).getElementType() != type.getElementType())
    offset =
        hlo::ConvertOp::create(builder, loc, typeOf(offset).clone(type.getElementType()), offset);
  component = devices.binary("stablehlo.subtract", component, devices.splat(offset, shape, loc));
  if (!isVector)
    return {component, component};
  SmallVector<Value> parts;
  if (position > 0)
    parts.push_back(part(0, position));
  parts.push_back(component);
  if (position + 1 < type.getDimSize(vectorDim))
    parts.push_back(part(position + 1, type.getDimSize(vectorDim)));
  Value joined = parts.size() == 1
                     ? component
                     : hlo::ConcatenateOp::create(builder, loc, type, parts,
                                                  builder.getI64IntegerAttr(vectorDim));
  return {joined, component};
}

/// A device finds the rows it holds; where an index is another's, its row is zero,
/// so that the sum over devices is the row.
LogicalResult OpLowering::gather(ValueRange operands, SmallVectorImpl<Value> &results) {
  Location loc = op->getLoc();
  auto numbers = cast<hlo::GatherOp>(op).getDimensionNumbers();
  int64_t vectorDim = numbers.getIndexVectorDim();
  Value indices = operands[1], isMine;
  for (int64_t dim : numbers.getCollapsedSliceDims()) {
    ArrayRef<unsigned> axes = axesOf(0, dim);
    if (axes.empty())
      continue;
    auto position =
        llvm::find(numbers.getStartIndexMap(), dim) - numbers.getStartIndexMap().begin();
    indices = withSafeType(indices);
    LocalIndices local = localIndices(indices, vectorDim, position,
                                      typeOf(op->getOperand(0)).getDimSize(dim), axes, true);
    indices = local.indices;
    RankedTensorType type = typeOf(local.component);
    auto filled = [&](int64_t value) {
      return devices.splat(devices.scalar(value, type.getElementType(), loc), type.getShape(), loc);
    };
    Value isInside = devices.binary(
        "stablehlo.and", devices.compare(hlo::ComparisonDirection::GE, local.component, filled(0)),
        devices.compare(hlo::ComparisonDirection::LT, local.component,
                        filled(typeOf(operands[0]).getDimSize(dim))));
    isMine = isMine ? devices.binary("stablehlo.and", isMine, isInside) : isInside;
  }
  Operation *made = clone({operands[0], indices});
  Value result = made->getResult(0);
  if (isMine) {
    // One truth value for each slice; spread over the slice.
    SmallVector<int64_t> batch(typeOf(isMine).getShape()), dims;
    if (vectorDim < typeOf(isMine).getRank())
      batch.erase(batch.begin() + vectorDim);
    isMine = hlo::ReshapeOp::create(builder, loc, typeOf(isMine).clone(batch), isMine);
    for (int64_t dim = 0; dim < typeOf(result).getRank(); ++dim)
      if (!llvm::is_contained(numbers.getOffsetDims(), dim))
        dims.push_back(dim);
    Value mask =
        hlo::BroadcastInDimOp::create(builder, loc, typeOf(result).clone(builder.getI1Type()),
                                      isMine, builder.getDenseI64ArrayAttr(dims));
    Value zeros = devices.splat(devices.scalar(0, typeOf(result).getElementType(), loc),
                                typeOf(result).getShape(), loc);
    result = devices.select(mask, result, zeros);
  }
  results.push_back(result);
  return success();
}

/// Updates that fall on another device's part fall outside of this one's, where
/// scatter drops them.
LogicalResult OpLowering::scatter(SmallVectorImpl<Value> &operands) {
  auto numbers = cast<hlo::ScatterOp>(op).getScatterDimensionNumbers();
  unsigned inputs = op->getNumResults();
  for (int64_t dim : numbers.getInsertedWindowDims()) {
    ArrayRef<unsigned> axes = axesOf(0, dim);
    if (axes.empty())
      continue;
    ArrayRef<int64_t> map = numbers.getScatterDimsToOperandDims();
    if (!llvm::is_contained(map, dim))
      return op->emitError("dimension ")
             << dim << " of the input is split, but no index says where updates fall in it";
    operands[inputs] = withSafeType(operands[inputs]);
    operands[inputs] = localIndices(operands[inputs], numbers.getIndexVectorDim(),
                                    llvm::find(map, dim) - map.begin(),
                                    typeOf(op->getOperand(0)).getDimSize(dim), axes, false)
                           .indices;
  }
  return success();
}

/// What goes into a result once is left out of the partial results, and put to the
/// whole one. (XLA drops a reduction's initial value where the part of a dimension has
/// one element, so it cannot be left to one of the devices.)
void OpLowering::takeOut(SmallVectorImpl<Value> &operands) {
  if (split.summedAxes.empty())
    return;
  Reducer reducer = split.summedAxes[0].reducer;
  for (unsigned index : rule.broughtOnce) {
    RankedTensorType type = typeOf(operands[index]);
    if (isNeutral(op->getOperand(index), reducer))
      continue;
    DenseElementsAttr neutral = neutralOf(reducer, type.getElementType());
    takenOut.push_back({index, operands[index]});
    operands[index] =
        devices.splat(hlo::ConstantOp::create(builder, op->getLoc(), cast<ElementsAttr>(neutral)),
                      type.getShape(), op->getLoc());
  }
}

/// Result i is brought operand broughtOnce[i], held as the partial result is.
void OpLowering::putBack(SmallVectorImpl<Value> &results) {
  for (auto [index, value] : takenOut) {
    auto result = llvm::find(rule.broughtOnce, index) - rule.broughtOnce.begin();
    RankedTensorType type = typeOf(results[result]);
    if (typeOf(value).getRank() != type.getRank()) {
      value = devices.splat(value, type.getShape(), op->getLoc());
    } else if (type.getRank() > 0) {
      // What the sum was scattered over splits the operand now, too.
      ShardingSpec part = ShardingSpec::replicated(type.getRank());
      for (auto [axes, whole, partial] :
           llvm::zip_equal(part.dims, split.results[result].dims, split.partials[result].dims))
        axes.append(whole.begin() + partial.size(), whole.end());
      value = devices.partOf(value, part, op->getLoc());
    }
    Reducer reducer = split.summedAxes[0].reducer;
    results[result] =
        devices.binary(nameOf(reducer, type.getElementType()), results[result], value);
  }
}

/// As the search counts: scatters first, then the rest of the axes.
Value OpLowering::complete(Value partial, unsigned result) {
  Type element = typeOf(partial).getElementType();
  SmallVector<std::pair<unsigned, int64_t>> scatters;
  for (auto [dim, axes] : llvm::enumerate(split.results[result].dims))
    for (unsigned axis : llvm::drop_begin(axes, split.partials[result].dims[dim].size()))
      scatters.push_back({axis, static_cast<int64_t>(dim)});
  // Of one dimension the major axis first; rising axes keep that order.
  bool rises = llvm::all_of(split.results[result].dims,
                            [&](ArrayRef<unsigned> axes) { return llvm::is_sorted(axes); });
  if (rises)
    llvm::sort(scatters);
  auto isScattered = [&](unsigned axis) {
    return llvm::is_contained(llvm::make_first_range(scatters), axis);
  };
  for (auto [axis, dim] : scatters)
    for (OpSplit::SummedAxis summed : split.summedAxes)
      if (summed.axis == axis)
        partial = devices.reduceScatter(partial, axis, dim, nameOf(summed.reducer, element));
  for (OpSplit::SummedAxis summed : split.summedAxes)
    if (!isScattered(summed.axis))
      partial = devices.allReduce(partial, summed.axis, nameOf(summed.reducer, element));
  return partial;
}

/// Each device would draw numbers of its own; all take the first one's.
Value OpLowering::random(ValueRange operands) {
  Location loc = op->getLoc();
  Value drawn = clone(operands)->getResult(0);
  SmallVector<unsigned> axes;
  for (auto [axis, size] : llvm::enumerate(devices.getMeshShape()))
    if (size > 1)
      axes.push_back(axis);
  if (axes.empty())
    return drawn;
  RankedTensorType type = typeOf(drawn);
  Value place = devices.pieceIndex(axes, loc);
  Value isFirst = devices.compare(hlo::ComparisonDirection::EQ, place,
                                  devices.scalar(0, typeOf(place).getElementType(), loc));
  Value zeros = devices.splat(devices.scalar(0, type.getElementType(), loc), type.getShape(), loc);
  drawn = devices.select(isFirst, drawn, zeros);
  for (unsigned axis : axes)
    drawn = devices.allReduce(drawn, axis, nameOf(Reducer::Sum, type.getElementType()));
  return drawn;
}

LogicalResult OpLowering::lower(ValueRange given, SmallVectorImpl<Value> &results) {
  StringRef name = op->getName().getStringRef();
  SmallVector<Value> operands(given);
  if (name == "sdy.sharding_constraint" || name == "sdy.reshard") {
    results.push_back(operands[0]);
    return success();
  }
  if (isa<hlo::IotaOp>(op)) {
    results.push_back(iota());
    return success();
  }
  if (isa<hlo::RngOp>(op)) {
    results.push_back(random(operands));
    return success();
  }
  if (isa<hlo::ConstantOp>(op)) {
    results.push_back(constant());
    return success();
  }
  if (isa<hlo::GatherOp>(op)) {
    if (failed(gather(operands, results)))
      return failure();
    results[0] = complete(results[0], 0);
    return success();
  }
  if (isa<hlo::ScatterOp>(op) && failed(scatter(operands)))
    return failure();
  takeOut(operands);
  llvm::append_range(results, clone(operands)->getResults());
  if (split.summedAxes.empty())
    return success();
  for (auto [i, result] : llvm::enumerate(results))
    result = complete(result, i);
  putBack(results);
  return success();
}
