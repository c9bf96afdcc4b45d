//===- LowerToCollectives.cpp - programs of one device --------------------===//

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Sharding/Problem/Reshard.h"
#include "compiler/Spmd/OpSplit.h"
#include "compiler/Spmd/Passes.h"
#include "compiler/Spmd/ShardedModule.h"
#include "dialects/Common/Diagnostics.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"

namespace alpa::spmd {
#define GEN_PASS_DEF_LOWERTOCOLLECTIVES
#include "compiler/Spmd/Passes.h.inc"
} // namespace alpa::spmd

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Writing what one device does
//===----------------------------------------------------------------------===//

namespace {

/// Makes the ops of a per-device program that depend on which device runs it.
/// Devices are numbered row-major in the mesh, and are replicas to StableHLO.
class DeviceBuilder {
public:
  DeviceBuilder(MLIRContext *context, llvm::ArrayRef<int64_t> meshShape)
      : builder(context), meshShape(meshShape) {}

  OpBuilder builder;
  unsigned numCollectives = 0;

  llvm::ArrayRef<int64_t> getMeshShape() const { return meshShape; }

  /// Place of this device's part in a dimension that `axes` split, as an i32 scalar.
  Value pieceIndex(llvm::ArrayRef<unsigned> axes, Location loc);
  /// First element of that part, if parts have `size` elements.
  Value pieceOffset(llvm::ArrayRef<unsigned> axes, int64_t size, Location loc);

  /// This device's part of a whole tensor.
  Value partOf(Value whole, const ShardingSpec &spec, Location loc);
  /// `value` is a part under `from`; the result is one under the step's spec.
  Value apply(const sharding::ReshardStep &step, const ShardingSpec &from, Value value);
  /// `reducer` is an op of two scalars: `stablehlo.add`.
  Value allReduce(Value value, unsigned axis, llvm::StringRef reducer);
  Value reduceScatter(Value value, unsigned axis, int64_t dim, llvm::StringRef reducer);

  /// The number in any element type.
  Value scalar(int64_t value, Type element, Location loc);
  Value splat(Value scalar, llvm::ArrayRef<int64_t> shape, Location loc);
  Value binary(llvm::StringRef name, Value lhs, Value rhs);
  Value compare(stablehlo::ComparisonDirection direction, Value lhs, Value rhs);
  Value select(Value predicate, Value onTrue, Value onFalse);

private:
  void fillReducer(Region &region, llvm::StringRef name, Value like);
  Value coordinate(unsigned axis, Location loc);
  DenseIntElementsAttr groupsAlong(unsigned axis);
  RankedTensorType withDim(Value value, int64_t dim, int64_t size);

  llvm::ArrayRef<int64_t> meshShape;
  llvm::DenseMap<std::pair<Block *, unsigned>, Value> coordinates;
};

} // namespace

namespace hlo = mlir::stablehlo;
using analysis::nameOf;
using sharding::ReshardKind;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

static int64_t strideOf(unsigned axis, ArrayRef<int64_t> meshShape) {
  int64_t stride = 1;
  for (int64_t size : meshShape.drop_front(axis + 1))
    stride *= size;
  return stride;
}

Value DeviceBuilder::scalar(int64_t value, Type element, Location loc) {
  return hlo::ConstantOp::create(builder, loc,
                                 analysis::splatOf(value, RankedTensorType::get({}, element)));
}

Value DeviceBuilder::binary(StringRef name, Value lhs, Value rhs) {
  OperationState state(lhs.getLoc(), name, {lhs, rhs}, {lhs.getType()});
  return builder.create(state)->getResult(0);
}

Value DeviceBuilder::compare(hlo::ComparisonDirection direction, Value lhs, Value rhs) {
  OperationState state(lhs.getLoc(), hlo::CompareOp::getOperationName());
  state.addOperands({lhs, rhs});
  state.addTypes(typeOf(lhs).clone(builder.getI1Type()));
  state.addAttribute("comparison_direction",
                     hlo::ComparisonDirectionAttr::get(builder.getContext(), direction));
  return builder.create(state)->getResult(0);
}

Value DeviceBuilder::select(Value predicate, Value onTrue, Value onFalse) {
  OperationState state(onTrue.getLoc(), hlo::SelectOp::getOperationName(),
                       {predicate, onTrue, onFalse}, {onTrue.getType()});
  return builder.create(state)->getResult(0);
}

Value DeviceBuilder::splat(Value scalar, ArrayRef<int64_t> shape, Location loc) {
  if (shape.empty())
    return scalar;
  return hlo::BroadcastInDimOp::create(builder, loc, typeOf(scalar).clone(shape), scalar,
                                       builder.getDenseI64ArrayAttr({}));
}

/// Worked out once at the start of every block that needs it.
Value DeviceBuilder::coordinate(unsigned axis, Location loc) {
  Block *block = builder.getInsertionBlock();
  Value &known = coordinates[{block, axis}];
  if (known)
    return known;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(block);
  Type ui32 = builder.getIntegerType(32, /*isSigned=*/false);
  Value value = hlo::ReplicaIdOp::create(builder, loc, RankedTensorType::get({}, ui32));
  if (int64_t stride = strideOf(axis, meshShape); stride > 1)
    value = binary("stablehlo.divide", value, scalar(stride, ui32, loc));
  value = binary("stablehlo.remainder", value, scalar(meshShape[axis], ui32, loc));
  value =
      hlo::ConvertOp::create(builder, loc, RankedTensorType::get({}, builder.getI32Type()), value);
  return coordinates[{block, axis}] = value;
}

Value DeviceBuilder::pieceIndex(ArrayRef<unsigned> axes, Location loc) {
  Value index;
  for (unsigned axis : axes) {
    Value next = coordinate(axis, loc);
    if (index)
      next = binary(
          "stablehlo.add",
          binary("stablehlo.multiply", index, scalar(meshShape[axis], builder.getI32Type(), loc)),
          next);
    index = next;
  }
  return index ? index : scalar(0, builder.getI32Type(), loc);
}

Value DeviceBuilder::pieceOffset(ArrayRef<unsigned> axes, int64_t size, Location loc) {
  Value index = pieceIndex(axes, loc);
  if (axes.empty() || size == 1)
    return index;
  return binary("stablehlo.multiply", index, scalar(size, builder.getI32Type(), loc));
}

RankedTensorType DeviceBuilder::withDim(Value value, int64_t dim, int64_t size) {
  SmallVector<int64_t> shape(typeOf(value).getShape());
  shape[dim] = size;
  return typeOf(value).clone(shape);
}

Value DeviceBuilder::partOf(Value whole, const ShardingSpec &spec, Location loc) {
  if (spec.isReplicated())
    return whole;
  SmallVector<Value> starts;
  SmallVector<int64_t> sizes(typeOf(whole).getShape());
  for (auto [size, axes] : llvm::zip_equal(sizes, spec.dims)) {
    for (unsigned axis : axes)
      size /= meshShape[axis];
    starts.push_back(pieceOffset(axes, size, loc));
  }
  return hlo::DynamicSliceOp::create(builder, loc, typeOf(whole).clone(sizes), whole, starts,
                                     builder.getDenseI64ArrayAttr(sizes));
}

DenseIntElementsAttr DeviceBuilder::groupsAlong(unsigned axis) {
  int64_t devices = 1;
  for (int64_t size : meshShape)
    devices *= size;
  int64_t stride = strideOf(axis, meshShape), size = meshShape[axis];
  SmallVector<int64_t> members;
  for (int64_t first = 0; first < devices; ++first)
    if (first / stride % size == 0)
      for (int64_t i = 0; i < size; ++i)
        members.push_back(first + i * stride);
  return DenseIntElementsAttr::get(
      RankedTensorType::get({devices / size, size}, builder.getI64Type()), members);
}

Value DeviceBuilder::apply(const sharding::ReshardStep &step, const ShardingSpec &from,
                           Value value) {
  Location loc = value.getLoc();
  int64_t size = step.kind == ReshardKind::Permute ? 1 : meshShape[step.axis];
  auto dimSize = [&](int dim) { return typeOf(value).getDimSize(dim); };
  if (step.kind == ReshardKind::Slice) {
    ShardingSpec part = ShardingSpec::replicated(from.dims.size());
    part.dims[step.toDim].push_back(step.axis);
    return partOf(value, part, loc);
  }
  ++numCollectives;
  if (step.kind == ReshardKind::Permute) {
    SmallVector<int64_t> flat;
    auto pairs = sharding::permutePairs(from, step.spec, meshShape);
    for (auto [source, target] : pairs)
      flat.append({source, target});
    auto type =
        RankedTensorType::get({static_cast<int64_t>(pairs.size()), 2}, builder.getI64Type());
    OperationState state(loc, hlo::CollectivePermuteOp::getOperationName(), value, value.getType());
    state.addAttribute("source_target_pairs", DenseIntElementsAttr::get(type, flat));
    return builder.create(state)->getResult(0);
  }
  OperationState state(loc, step.kind == ReshardKind::AllGather
                                ? hlo::AllGatherOp::getOperationName()
                                : hlo::AllToAllOp::getOperationName());
  state.addOperands(value);
  state.addAttribute("replica_groups", groupsAlong(step.axis));
  if (step.kind == ReshardKind::AllGather) {
    state.addAttribute("all_gather_dim", builder.getI64IntegerAttr(step.fromDim));
    state.addTypes(withDim(value, step.fromDim, dimSize(step.fromDim) * size));
  } else {
    SmallVector<int64_t> shape(typeOf(value).getShape());
    shape[step.fromDim] *= size;
    shape[step.toDim] /= size;
    state.addAttribute("split_dimension", builder.getI64IntegerAttr(step.toDim));
    state.addAttribute("concat_dimension", builder.getI64IntegerAttr(step.fromDim));
    state.addAttribute("split_count", builder.getI64IntegerAttr(size));
    state.addTypes(typeOf(value).clone(shape));
  }
  return builder.create(state)->getResult(0);
}

void DeviceBuilder::fillReducer(Region &region, StringRef name, Value like) {
  OpBuilder::InsertionGuard guard(builder);
  Location loc = like.getLoc();
  auto type = RankedTensorType::get({}, typeOf(like).getElementType());
  Block *block = builder.createBlock(&region, region.end(), {type, type}, {loc, loc});
  Value combined = binary(name, block->getArgument(0), block->getArgument(1));
  hlo::ReturnOp::create(builder, loc, combined);
}

Value DeviceBuilder::allReduce(Value value, unsigned axis, StringRef reducer) {
  ++numCollectives;
  OperationState state(value.getLoc(), hlo::AllReduceOp::getOperationName(), value,
                       value.getType());
  state.addAttribute("replica_groups", groupsAlong(axis));
  fillReducer(*state.addRegion(), reducer, value);
  return builder.create(state)->getResult(0);
}

Value DeviceBuilder::reduceScatter(Value value, unsigned axis, int64_t dim, StringRef reducer) {
  ++numCollectives;
  int64_t size = typeOf(value).getDimSize(dim) / meshShape[axis];
  OperationState state(value.getLoc(), hlo::ReduceScatterOp::getOperationName(), value,
                       withDim(value, dim, size));
  state.addAttribute("scatter_dimension", builder.getI64IntegerAttr(dim));
  state.addAttribute("replica_groups", groupsAlong(axis));
  fillReducer(*state.addRegion(), reducer, value);
  return builder.create(state)->getResult(0);
}

//===----------------------------------------------------------------------===//
// One op on one device
//===----------------------------------------------------------------------===//

namespace {

/// Writes what one device does for an op without control flow: the op on parts,
/// then the collectives that complete sums.
class OpLowering {
public:
  OpLowering(Operation *op, const analysis::ShardingRule &rule, const OpSplit &split,
             DeviceBuilder &devices)
      : op(op), rule(rule), split(split), devices(devices), builder(devices.builder) {}

  /// `operands` are parts; fills in the parts of the results.
  LogicalResult lower(ValueRange operands, llvm::SmallVectorImpl<Value> &results);

private:
  Operation *clone(ValueRange operands);
  RankedTensorType unreducedType(unsigned result);
  Value iota();
  Value random(ValueRange operands);
  Value constant();
  LogicalResult gather(ValueRange operands, llvm::SmallVectorImpl<Value> &results);
  LogicalResult scatter(SmallVectorImpl<Value> &operands);
  void takeOut(SmallVectorImpl<Value> &operands);
  void putBack(SmallVectorImpl<Value> &results);
  /// Axes that split dimension `dim` of operand `operand`.
  llvm::ArrayRef<unsigned> axesOf(unsigned operand, int64_t dim) const {
    return split.operands[operand].dims[dim];
  }
  /// Indices into a dimension of `size` elements that `axes` split, counted from
  /// this device's part. `component` is where index vectors hold that dimension.
  struct LocalIndices {
    Value indices, component;
  };
  LocalIndices localIndices(Value indices, int64_t vectorDim, int64_t position, int64_t size,
                            llvm::ArrayRef<unsigned> axes, bool clamps);
  Value withSafeType(Value indices);
  Value complete(Value unreduced, unsigned result);

  Operation *op;
  const analysis::ShardingRule &rule;
  const OpSplit &split;
  DeviceBuilder &devices;
  OpBuilder &builder;
  llvm::SmallVector<std::pair<unsigned, Value>> takenOut; // By number of operand.
};

} // namespace

RankedTensorType OpLowering::unreducedType(unsigned result) {
  return localType(typeOf(op->getResult(result)), split.unreduced[result], devices.getMeshShape());
}

Operation *OpLowering::clone(ValueRange operands) {
  IRMapping mapping;
  mapping.map(op->getOperands(), operands);
  // An operand that is there twice may be there in two forms.
  Operation *made = builder.clone(*op, mapping);
  made->setOperands(operands);
  for (auto [i, result] : llvm::enumerate(made->getResults()))
    if (isa<RankedTensorType>(result.getType()))
      result.setType(unreducedType(i));
  for (NamedAttribute attribute : llvm::to_vector(made->getDiscardableAttrs()))
    if (attribute.getName().strref().starts_with("alpa."))
      made->removeDiscardableAttr(attribute.getName());
  analysis::fitSizes(made, op);
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
                                   cast<ElementsAttr>(dense.resizeSplat(unreducedType(0))));
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

/// What goes into a result once is left out of the unreduced results, and put to the
/// whole one. (XLA drops a reduction's initial value where the part of a dimension has
/// one element, so it cannot be left to one of the devices.)
void OpLowering::takeOut(SmallVectorImpl<Value> &operands) {
  if (split.summedAxes.empty())
    return;
  analysis::Reducer reducer = split.summedAxes[0].reducer;
  for (unsigned index : rule.broughtOnce) {
    RankedTensorType type = typeOf(operands[index]);
    if (analysis::isNeutral(op->getOperand(index), reducer))
      continue;
    DenseElementsAttr neutral = analysis::neutralOf(reducer, type.getElementType());
    takenOut.push_back({index, operands[index]});
    operands[index] =
        devices.splat(hlo::ConstantOp::create(builder, op->getLoc(), cast<ElementsAttr>(neutral)),
                      type.getShape(), op->getLoc());
  }
}

/// Result i is brought operand broughtOnce[i], held as the unreduced result is.
void OpLowering::putBack(SmallVectorImpl<Value> &results) {
  for (auto [index, value] : takenOut) {
    auto result = llvm::find(rule.broughtOnce, index) - rule.broughtOnce.begin();
    RankedTensorType type = typeOf(results[result]);
    if (typeOf(value).getRank() != type.getRank()) {
      value = devices.splat(value, type.getShape(), op->getLoc());
    } else if (type.getRank() > 0) {
      // What the sum was scattered over splits the operand now, too.
      ShardingSpec part = ShardingSpec::replicated(type.getRank());
      for (auto [axes, whole, unreduced] :
           llvm::zip_equal(part.dims, split.results[result].dims, split.unreduced[result].dims))
        axes.append(whole.begin() + unreduced.size(), whole.end());
      value = devices.partOf(value, part, op->getLoc());
    }
    analysis::Reducer reducer = split.summedAxes[0].reducer;
    results[result] =
        devices.binary(nameOf(reducer, type.getElementType()), results[result], value);
  }
}

/// As the search counts: scatters first, then the rest of the axes.
Value OpLowering::complete(Value unreduced, unsigned result) {
  Type element = typeOf(unreduced).getElementType();
  SmallVector<std::pair<unsigned, int64_t>> scatters;
  for (auto [dim, axes] : llvm::enumerate(split.results[result].dims))
    for (unsigned axis : llvm::drop_begin(axes, split.unreduced[result].dims[dim].size()))
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
        unreduced = devices.reduceScatter(unreduced, axis, dim, nameOf(summed.reducer, element));
  for (OpSplit::SummedAxis summed : split.summedAxes)
    if (!isScattered(summed.axis))
      unreduced = devices.allReduce(unreduced, summed.axis, nameOf(summed.reducer, element));
  return unreduced;
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
    drawn = devices.allReduce(drawn, axis, nameOf(analysis::Reducer::Sum, type.getElementType()));
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

//===----------------------------------------------------------------------===//
// Programs of one device
//===----------------------------------------------------------------------===//

namespace {

class FunctionLowering {
public:
  FunctionLowering(func::FuncOp function, MeshAttr mesh)
      : function(function), meshShape(mesh.getShape()),
        devices(function.getContext(), mesh.getShape()) {}

  LogicalResult run();
  unsigned numCollectives() const { return devices.numCollectives; }

private:
  LogicalResult lower(Block &block);
  LogicalResult lower(Operation *op);
  LogicalResult lower(ReshardOp op);
  LogicalResult lowerControlFlow(Operation *op);
  Type localTypeOf(Value value) {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    return type ? localType(type, held[value], meshShape) : value.getType();
  }

  func::FuncOp function;
  ArrayRef<int64_t> meshShape;
  DeviceBuilder devices;
  DenseMap<Value, ShardingSpec> held;
  IRMapping parts; // Of each value, what a device holds.
};

} // namespace

LogicalResult FunctionLowering::lower(ReshardOp op) {
  Value value = parts.lookup(op.getOperand());
  ShardingSpec before = withoutOnes(op.getFrom().getSpec(), meshShape);
  for (const ShardingSpec &spec : op.specsAfterFrom()) {
    ShardingSpec after = withoutOnes(spec, meshShape);
    std::optional<sharding::ReshardStep> step = sharding::singleStep(before, after, meshShape);
    if (!step)
      return op.emitError("from ") << before.str() << " to " << after.str() << " is not one step";
    value = devices.apply(*step, before, value);
    before = after;
  }
  held[op.getResult()] = before;
  parts.map(op.getResult(), value);
  return success();
}

LogicalResult FunctionLowering::lowerControlFlow(Operation *op) {
  OpBuilder &builder = devices.builder;
  Operation *made = builder.cloneWithoutRegions(*op, parts);
  for (auto [result, local] : llvm::zip_equal(op->getResults(), made->getResults()))
    local.setType(localTypeOf(result));
  made->removeDiscardableAttr(attr::shardings);
  OpBuilder::InsertionGuard guard(builder);
  for (auto [region, local] : llvm::zip_equal(op->getRegions(), made->getRegions())) {
    Block *block = builder.createBlock(&local);
    for (auto [argument, operand] : llvm::zip(region.getArguments(), op->getOperands())) {
      ShardingSpec spec = held[operand]; // A copy: the map may grow.
      held[argument] = std::move(spec);
      parts.map(argument, block->addArgument(localTypeOf(argument), argument.getLoc()));
    }
    if (failed(lower(region.front())))
      return failure();
    builder.clone(*region.front().getTerminator(), parts);
  }
  return success();
}

LogicalResult FunctionLowering::lower(Operation *op) {
  if (auto reshard = dyn_cast<ReshardOp>(op))
    return lower(reshard);
  std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
  auto shardings = op->getAttrOfType<ArrayAttr>(attr::shardings);
  if (!rule)
    return withCode(op->emitError("has no sharding rule yet"), ErrorCode::UnsupportedOp);
  if (!shardings)
    return op->emitError("has no `alpa.shardings`; run alpa-insert-reshards first");
  auto operands = llvm::map_to_vector(op->getOperands(), [&](Value v) { return held[v]; });
  SmallVector<ShardingSpec> results;
  for (auto [result, item] : llvm::zip_equal(op->getResults(), shardings)) {
    ShardingSpec spec;
    if (isa<RankedTensorType>(result.getType()))
      spec = withoutOnes(cast<ShardingAttr>(item).getSpec(), meshShape);
    results.push_back(spec);
    held[result] = spec;
  }
  auto captures =
      llvm::map_to_vector(rule->captures, [&](const auto &item) { return held[item.first]; });
  llvm::Expected<OpSplit> split = readSplit(*rule, operands, results, captures, meshShape);
  if (!split)
    return op->emitError("no strategy of the op has these shardings: ")
           << llvm::toString(split.takeError());
  if (isControlFlow(op))
    return lowerControlFlow(op);
  SmallVector<Value> given, made;
  for (Value operand : op->getOperands())
    given.push_back(parts.lookup(operand));
  if (failed(OpLowering(op, *rule, *split, devices).lower(given, made)))
    return failure();
  parts.map(op->getResults(), made);
  return success();
}

LogicalResult FunctionLowering::lower(Block &block) {
  for (Operation &op : block.without_terminator())
    if (failed(lower(&op)))
      return failure();
  return success();
}

LogicalResult FunctionLowering::run() {
  if (!function.getBody().hasOneBlock())
    return function.emitError("expected a function of one block");
  Block &body = function.getBody().front();
  auto specOf = [&](DictionaryAttr attributes, Type type) -> FailureOr<ShardingSpec> {
    auto sharding = attributes ? attributes.getAs<ShardingAttr>(attr::sharding) : ShardingAttr();
    if (!isa<RankedTensorType>(type))
      return ShardingSpec{};
    if (!sharding)
      return function.emitError("expected `")
             << attr::sharding << "` on every argument and result; run alpa-insert-reshards first";
    return withoutOnes(sharding.getSpec(), meshShape);
  };
  for (BlockArgument argument : function.getArguments()) {
    FailureOr<ShardingSpec> spec =
        specOf(function.getArgAttrDict(argument.getArgNumber()), argument.getType());
    if (failed(spec))
      return failure();
    held[argument] = *spec;
  }
  Block *local = devices.builder.createBlock(&function.getBody(), function.getBody().end());
  for (BlockArgument argument : body.getArguments())
    parts.map(argument, local->addArgument(localTypeOf(argument), argument.getLoc()));
  if (failed(lower(body)))
    return failure();
  Operation *terminator = devices.builder.clone(*body.getTerminator(), parts);
  body.erase();
  function.setType(FunctionType::get(function.getContext(), local->getArgumentTypes(),
                                     terminator->getOperandTypes()));
  return success();
}

namespace {

struct LowerToCollectives : public spmd::impl::LowerToCollectivesBase<LowerToCollectives> {
  void runOnOperation() override {
    auto visit = [&](func::FuncOp function, MeshAttr mesh) -> LogicalResult {
      auto module = function->getParentOfType<ModuleOp>();
      FunctionLowering lowering(function, mesh);
      if (failed(lowering.run()))
        return failure();
      module->setAttr(attr::perDevice, UnitAttr::get(&getContext()));
      numCollectives += lowering.numCollectives();
      return success();
    };
    if (failed(forEachShardedFunction(getOperation(), visit)))
      signalPassFailure();
  }
};

} // namespace
