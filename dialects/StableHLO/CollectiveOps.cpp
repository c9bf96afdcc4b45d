//===- CollectiveOps.cpp - verifiers of ops between devices ---------------===//

#include "dialects/StableHLO/Verify.h"

#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/SmallSet.h"

using namespace mlir;
using namespace mlir::stablehlo;

/// Devices in a group.
static int64_t groupSize(DenseIntElementsAttr groups) {
  return cast<ShapedType>(groups.getType()).getDimSize(1);
}

static LogicalResult verifyCount(Operation *op) {
  if (op->getNumOperands() != 0 && op->getNumOperands() == op->getNumResults())
    return success();
  return op->emitOpError("expected operands and one result for each, got ")
         << op->getNumOperands() << " and " << op->getNumResults();
}

LogicalResult AllGatherOp::verify() {
  if (failed(verifyCount(*this)) ||
      failed(verifyGroups(*this, "all_gather_c2", "all_gather_c3", getReplicaGroups(),
                          /*mayBeShort=*/true)))
    return failure();
  int64_t dim = getAllGatherDimAttr().getInt(), size = groupSize(getReplicaGroups());
  for (auto [operand, result] : llvm::zip_equal(getOperands(), getResults())) {
    auto from = typeOf(operand), to = typeOf(result);
    if (failed(verifyDims(*this, "all_gather_c1", "all_gather_dim", dim, from.getRank())))
      return failure();
    SmallVector<int64_t> shape(from.getShape());
    // Groups may be left to the number of devices; then any multiple will do.
    bool open = from.isDynamicDim(dim) || size == 0;
    if (open && to.getRank() == from.getRank() && !to.isDynamicDim(dim) && shape[dim] > 0 &&
        to.getDimSize(dim) % shape[dim] != 0)
      return emitOpError("all_gather_c6: ") << to << " is no multiple of " << from;
    shape[dim] = open ? ShapedType::kDynamic : shape[dim] * size;
    if (failed(verifyResult(*this, "all_gather_c6", to, from.clone(shape))))
      return failure();
  }
  return success();
}

LogicalResult AllReduceOp::verify() {
  if (failed(verifyCount(*this)) ||
      failed(verifyGroups(*this, "all_reduce_c1", "all_reduce_c2", getReplicaGroups(),
                          /*mayBeShort=*/true)))
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
      failed(verifyGroups(*this, "all_to_all_c5", "all_to_all_c6", getReplicaGroups(),
                          /*mayBeShort=*/false)))
    return failure();
  int64_t split = getSplitDimensionAttr().getInt(), concat = getConcatDimensionAttr().getInt(),
          count = getSplitCountAttr().getInt();
  if (count <= 0)
    return emitOpError("all_to_all_c4: expected a positive split_count, got ") << count;
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
  return verifyGroups(*this, "collective_broadcast_c1", "collective_broadcast_c2",
                      getReplicaGroups(), /*mayBeShort=*/false);
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
  if (failed(verifyGroups(*this, "reduce_scatter_c2", "reduce_scatter_c3", getReplicaGroups(),
                          /*mayBeShort=*/true)))
    return failure();
  auto from = typeOf(getOperand()), to = typeOf(getResult());
  int64_t dim = getScatterDimensionAttr().getInt(), size = groupSize(getReplicaGroups());
  if (failed(verifyDims(*this, "reduce_scatter_c1", "scatter_dimension", dim, from.getRank())) ||
      failed(verifyReducer(*this, "reduce_scatter_c7", getComputation(), from.getElementType(),
                           getResult().getType())))
    return failure();
  SmallVector<int64_t> shape(from.getShape());
  if (size == 0 || from.isDynamicDim(dim))
    shape[dim] = ShapedType::kDynamic;
  else if (shape[dim] % size != 0)
    return emitOpError("reduce_scatter_c8: a group of ")
           << size << " devices does not divide dimension " << dim << " of " << from;
  else
    shape[dim] /= size;
  return verifyResult(*this, "reduce_scatter_c8", to, to.clone(shape));
}
