//===- Subset.cpp - what a single-device step may hold --------------------===//

#include "compiler/Import/Subset.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;

static bool isShardingAnnotation(Operation *op) {
  llvm::StringRef name = op->getName().getStringRef();
  if (op->getNumOperands() != 1 || op->getNumResults() != 1)
    return false;
  if (name == "sdy.sharding_constraint")
    return true;
  if (name != "stablehlo.custom_call")
    return false;
  auto target = op->getAttrOfType<StringAttr>("call_target_name");
  return target && target.getValue() == "Sharding";
}

void alpa::dropShardingAnnotations(ModuleOp module, func::FuncOp main) {
  main.walk([](Operation *op) {
    if (!isShardingAnnotation(op))
      return;
    op->getResult(0).replaceAllUsesWith(op->getOperand(0));
    op->erase();
  });
  for (Operation &op : llvm::make_early_inc_range(*module.getBody()))
    if (op.getName().getStringRef() == "sdy.mesh")
      op.erase();
  for (unsigned i = 0; i < main.getNumArguments(); ++i) {
    main.removeArgAttr(i, "sdy.sharding");
    main.removeArgAttr(i, "mhlo.sharding");
  }
  for (unsigned i = 0; i < main.getNumResults(); ++i) {
    main.removeResultAttr(i, StringAttr::get(main.getContext(), "sdy.sharding"));
    main.removeResultAttr(i, StringAttr::get(main.getContext(), "mhlo.sharding"));
  }
}

static bool isPartitioned(llvm::StringRef name) {
  return llvm::StringSwitch<bool>(name)
      .Cases({"stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.all_to_all"}, true)
      .Cases({"stablehlo.reduce_scatter", "stablehlo.collective_permute"}, true)
      .Cases({"stablehlo.collective_broadcast", "stablehlo.cross-replica-sum"}, true)
      .Cases({"stablehlo.partition_id", "stablehlo.replica_id"}, true)
      .Cases({"sdy.manual_computation", "sdy.all_gather", "sdy.all_reduce"}, true)
      .Default(false);
}

LogicalResult alpa::verifySubset(func::FuncOp main) {
  if (!main.getBody().hasOneBlock())
    return emitError(main.getLoc())
           << "@main must have one block; control flow is written as stablehlo ops";
  WalkResult result = main.walk([](Operation *op) -> WalkResult {
    llvm::StringRef name = op->getName().getStringRef();
    llvm::StringRef dialect = op->getName().getDialectNamespace();
    if (isPartitioned(name)) {
      op->emitOpError() << "belongs to a program that is already partitioned; give the "
                           "single-device step instead (no pmap, shard_map or collectives)";
      return WalkResult::interrupt();
    }
    if (dialect != "stablehlo" && dialect != "chlo" && !isa<func::FuncOp, func::ReturnOp>(op)) {
      op->emitOpError() << "is not of the supported set (dialects stablehlo and chlo)";
      return WalkResult::interrupt();
    }
    for (Type type : op->getResultTypes())
      if (auto tensor = dyn_cast<RankedTensorType>(type); !tensor || !tensor.hasStaticShape()) {
        op->emitOpError() << "gives " << type << "; every value must be a tensor of static shape";
        return WalkResult::interrupt();
      }
    return WalkResult::advance();
  });
  if (result.wasInterrupted())
    return failure();
  for (BlockArgument arg : main.getArguments())
    if (auto tensor = dyn_cast<RankedTensorType>(arg.getType());
        !tensor || !tensor.hasStaticShape())
      return emitError(main.getLoc())
             << "argument " << arg.getArgNumber() << " is " << arg.getType()
             << "; every value must be a tensor of static shape";
  return success();
}

LogicalResult alpa::verifySignature(func::FuncOp main) {
  unsigned numArgs = main.getNumArguments(), numResults = main.getNumResults();
  bool any = false;
  for (unsigned i = 0; i < numArgs; ++i)
    any |= bool(main.getArgAttr(i, "alpa.kind"));
  if (!any) {
    for (unsigned i = 0; i < numArgs; ++i)
      main.setArgAttr(i, "alpa.kind", StringAttr::get(main.getContext(), "state"));
    return success();
  }

  llvm::SmallVector<std::optional<unsigned>> carrier(numResults);
  for (unsigned i = 0; i < numArgs; ++i) {
    auto kind = main.getArgAttrOfType<StringAttr>(i, "alpa.kind");
    if (!kind || (kind.getValue() != "state" && kind.getValue() != "batch"))
      return emitError(main.getLoc())
             << "argument " << i << " needs alpa.kind = \"state\" or \"batch\", got "
             << main.getArgAttr(i, "alpa.kind");
    auto type = cast<RankedTensorType>(main.getArgumentTypes()[i]);
    if (kind.getValue() == "batch") {
      if (type.getRank() == 0)
        return emitError(main.getLoc())
               << "argument " << i << " is of kind \"batch\" but has no dimension to split";
      if (main.getArgAttr(i, "alpa.per_micro_batch"))
        continue; // The micro-batch's number, however many samples it has.
    }
    auto carried = main.getArgAttrOfType<IntegerAttr>(i, "alpa.carried_by");
    if (!carried)
      continue;
    int64_t result = carried.getInt();
    if (result < 0 || result >= int64_t(numResults))
      return emitError(main.getLoc()) << "argument " << i << " is carried by result " << result
                                      << ", but there are " << numResults << " results";
    if (main.getResultTypes()[result] != type)
      return emitError(main.getLoc())
             << "argument " << i << " is " << type << " but result " << result
             << " that carries it is " << main.getResultTypes()[result];
    if (carrier[result])
      return emitError(main.getLoc()) << "result " << result << " carries both argument "
                                      << *carrier[result] << " and argument " << i;
    carrier[result] = i;
  }
  for (unsigned i = 0; i < numResults; ++i)
    if (auto reduction = main.getResultAttrOfType<StringAttr>(i, "alpa.reduction"))
      if (reduction.getValue() != "sum" && reduction.getValue() != "concat")
        return emitError(main.getLoc()) << "result " << i << " has the unknown alpa.reduction "
                                        << reduction << "; expected \"sum\" or \"concat\"";
  return success();
}
