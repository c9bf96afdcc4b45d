//===- Devices.cpp - writing what one device does -------------------------===//

#include "compiler/Spmd/Devices.h"

#include "compiler/Analysis/PartOfOp.h"

using namespace alpa;
using namespace mlir;
namespace hlo = mlir::stablehlo;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

static int64_t strideOf(unsigned axis, ArrayRef<int64_t> meshShape) {
  int64_t stride = 1;
  for (int64_t size : meshShape.drop_front(axis + 1))
    stride *= size;
  return stride;
}

Value DeviceBuilder::scalar(int64_t value, Type element, Location loc) {
  return hlo::ConstantOp::create(builder, loc, splatOf(value, RankedTensorType::get({}, element)));
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

Value DeviceBuilder::apply(const ReshardStep &step, const ShardingSpec &from, Value value) {
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
    auto pairs = permutePairs(from, step.spec, meshShape);
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
