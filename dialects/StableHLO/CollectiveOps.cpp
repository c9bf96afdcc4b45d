//===- CollectiveOps.cpp - verifiers of ops between devices ---------------===//

#include "dialects/StableHLO/Verify.h"

#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/SmallSet.h"

using namespace mlir;
using namespace mlir::stablehlo;

/// Devices that are listed, not replicas or partitions, have a channel and a group.
static LogicalResult verifyGlobalDevices(Operation *op, StringRef label, bool global,
                                         std::optional<ChannelHandleAttr> channel,
                                         DenseIntElementsAttr groups) {
  if (!global)
    return success();
  if (groups.getNumElements() == 0)
    return op->emitOpError(label) << ": expected a group of devices with use_global_device_ids";
  int64_t handle = channel ? channel->getHandle() : 0;
  if (handle > 0)
    return success();
  return op->emitOpError(label)
         << ": expected a positive channel handle with use_global_device_ids, got " << handle;
}

/// The shape of a whole is that of a part, times some count in dimension `dim`.
/// The count of devices that share a dimension is not known from the groups: a group
/// of replicas takes their partitions in.
static LogicalResult verifyParts(Operation *op, StringRef count, StringRef shape,
                                 RankedTensorType whole, RankedTensorType part, int64_t dim) {
  bool known =
      whole.getRank() == part.getRank() && !whole.isDynamicDim(dim) && !part.isDynamicDim(dim);
  if (known && (part.getDimSize(dim) <= 0 || whole.getDimSize(dim) <= 0 ||
                whole.getDimSize(dim) % part.getDimSize(dim) != 0))
    return op->emitOpError(count) << ": expected dimension " << dim << " of " << whole
                                  << " to be a positive multiple of that of " << part;
  SmallVector<int64_t> sizes(part.getShape()), others(whole.getShape());
  sizes[dim] = ShapedType::kDynamic;
  if (shapesAgree(sizes, others) && whole.getElementType() == part.getElementType())
    return success();
  return op->emitOpError(shape) << ": expected " << whole << " and " << part
                                << " to differ in dimension " << dim << " only";
}

static LogicalResult verifyCount(Operation *op) {
  if (op->getNumOperands() != 0 && op->getNumOperands() == op->getNumResults())
    return success();
  return op->emitOpError("expected operands and one result for each, got ")
         << op->getNumOperands() << " and " << op->getNumResults();
}

LogicalResult AllGatherOp::verify() {
  if (failed(verifyCount(*this)) ||
      failed(verifyGroups(*this, {"all_gather_c2", "all_gather_c3", "all_gather_c4"},
                          getReplicaGroups())) ||
      failed(verifyGlobalDevices(*this, "all_gather_c5", getUseGlobalDeviceIds(),
                                 getChannelHandle(), getReplicaGroups())))
    return failure();
  int64_t dim = getAllGatherDimAttr().getInt();
  for (auto [operand, result] : llvm::zip_equal(getOperands(), getResults()))
    if (failed(
            verifyDims(*this, "all_gather_c1", "all_gather_dim", dim, typeOf(operand).getRank())) ||
        failed(verifyParts(*this, "all_gather_c6", "all_gather_c6", typeOf(result), typeOf(operand),
                           dim)))
      return failure();
  return success();
}

LogicalResult AllReduceOp::verify() {
  if (failed(verifyCount(*this)) ||
      failed(verifyGroups(*this, {"all_reduce_c1", "", "all_reduce_c3"}, getReplicaGroups())) ||
      failed(verifyGlobalDevices(*this, "all_reduce_c4", getUseGlobalDeviceIds(),
                                 getChannelHandle(), getReplicaGroups())))
    return failure();
  for (auto [operand, result] : llvm::zip_equal(getOperands(), getResults())) {
    auto from = typeOf(operand), to = typeOf(result);
    if (failed(verifyReducer(*this, "all_reduce_c5", getComputation(), from.getElementType(),
                             result.getType())) ||
        failed(verifyResult(*this, "all_reduce_c6", to, to.clone(from.getShape()))))
      return failure();
  }
  return success();
}

LogicalResult AllToAllOp::verify() {
  if (failed(verifyCount(*this)) ||
      failed(verifyGroups(*this, {"all_to_all_c5", "all_to_all_c8", "all_to_all_c7"},
                          getReplicaGroups())))
    return failure();
  int64_t split = getSplitDimensionAttr().getInt(), concat = getConcatDimensionAttr().getInt(),
          count = getSplitCountAttr().getInt();
  if (count <= 0)
    return emitOpError("all_to_all_c4: expected a positive split_count, got ") << count;
  if (int64_t size = cast<ShapedType>(getReplicaGroups().getType()).getDimSize(1); size != count)
    return emitOpError("all_to_all_c8: expected groups of split_count devices, ")
           << count << ", got " << size;
  for (auto [operand, result] : llvm::zip_equal(getOperands(), getResults())) {
    auto from = typeOf(operand);
    if (failed(verifyDims(*this, "all_to_all_c1", "split_dimension", split, from.getRank())) ||
        failed(verifyDims(*this, "all_to_all_c3", "concat_dimension", concat, from.getRank())))
      return failure();
    SmallVector<int64_t> shape(from.getShape());
    if (!from.isDynamicDim(split)) {
      if (shape[split] % count != 0)
        return emitOpError("all_to_all_c2: split_count ")
               << count << " does not divide " << shape[split];
      shape[split] /= count;
    }
    if (!ShapedType::isDynamic(shape[concat]))
      shape[concat] *= count;
    if (failed(verifyResult(*this, "all_to_all_c9", result.getType(), from.clone(shape))))
      return failure();
  }
  return success();
}

LogicalResult CollectiveBroadcastOp::verify() {
  auto groups = getReplicaGroups();
  auto type = cast<ShapedType>(groups.getType());
  if (type.getRank() != 2)
    return emitOpError("collective_broadcast_c1: expected groups as rows of devices, got ") << type;
  llvm::SmallSet<int64_t, 16> seen;
  for (int64_t device : groups.getValues<int64_t>()) {
    if (device < 0)
      return emitOpError("collective_broadcast_c2: there is no device ") << device;
    if (!seen.insert(device).second)
      return emitOpError("collective_broadcast_c1: device ") << device << " is in two groups";
  }
  return success();
}

LogicalResult CollectivePermuteOp::verify() {
  auto pairs = getSourceTargetPairs();
  auto type = cast<ShapedType>(pairs.getType());
  if (type.getRank() != 2 || type.getDimSize(1) != 2)
    return emitOpError("collective_permute_c1: expected rows of two devices, got ") << type;
  llvm::SmallSet<int64_t, 16> sources, targets;
  for (auto [i, device] : llvm::enumerate(pairs.getValues<int64_t>())) {
    bool source = i % 2 == 0;
    if (device < 0)
      return emitOpError("collective_permute_c4: there is no device ") << device;
    if (!(source ? sources : targets).insert(device).second)
      return emitOpError(source ? "collective_permute_c2: source "
                                : "collective_permute_c3: target ")
             << device << " is named twice";
  }
  return success();
}

LogicalResult ReduceScatterOp::verify() {
  auto from = typeOf(getOperand()), to = typeOf(getResult());
  int64_t dim = getScatterDimensionAttr().getInt();
  if (failed(verifyGroups(*this, {"reduce_scatter_c3", "reduce_scatter_c4", "reduce_scatter_c5"},
                          getReplicaGroups())) ||
      failed(verifyGlobalDevices(*this, "reduce_scatter_c6", getUseGlobalDeviceIds(),
                                 getChannelHandle(), getReplicaGroups())) ||
      failed(verifyDims(*this, "reduce_scatter_c2", "scatter_dimension", dim, from.getRank())) ||
      failed(verifyReducer(*this, "reduce_scatter_c7", getComputation(), from.getElementType(),
                           getResult().getType())))
    return failure();
  // The computation may have widened the elements.
  return verifyParts(*this, "reduce_scatter_c1", "reduce_scatter_c8",
                     from.clone(to.getElementType()), to, dim);
}
