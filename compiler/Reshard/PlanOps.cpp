//===- PlanOps.cpp - plans of transfers as ops ----------------------------===//

#include "compiler/Reshard/PlanOps.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseMap.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::reshard;

void reshard::writePlan(CrossMeshReshardOp op, const TransferPlan &plan) {
  OpBuilder builder = OpBuilder::atBlockEnd(op.getBody());
  op.setStrategy(plan.strategy);
  op.setSecondsAttr(builder.getF64FloatAttr(plan.seconds));
  op.setSlowBytesAttr(builder.getI64IntegerAttr(plan.slowBytes));
  Location loc = op.getLoc();
  SmallVector<Value> tiles;
  auto number = [&](int64_t value) { return builder.getI64IntegerAttr(value); };
  auto typeOf = [&](const Box &box) { return op.getTensorType().clone(box.sizes()); };
  for (const PlanStep &step : plan.steps) {
    auto operands = llvm::map_to_vector(step.operands, [&](int64_t tile) { return tiles[tile]; });
    switch (step.kind) {
    case StepKind::Tile:
      tiles.push_back(TileOp::create(builder, loc, typeOf(step.box), number(step.devices.front()),
                                     builder.getDenseI64ArrayAttr(step.box.begin)));
      break;
    case StepKind::Send:
      tiles.push_back(SendTileOp::create(builder, loc, operands.front().getType(), operands.front(),
                                         number(step.devices.front())));
      break;
    case StepKind::Broadcast:
      llvm::append_range(tiles, BroadcastOp::create(builder, loc, operands.front(),
                                                    builder.getDenseI64ArrayAttr(step.devices),
                                                    number(step.chunks))
                                    .getCopies());
      break;
    case StepKind::AllGather:
      SmallVector<Type> types(operands.size(), typeOf(step.box));
      llvm::append_range(tiles, AllGatherOp::create(builder, loc, types, operands).getWholes());
      break;
    }
  }
}

TransferPlan reshard::readPlan(CrossMeshReshardOp op) {
  TransferPlan plan;
  plan.strategy = op.getStrategy().value_or("by hand").str();
  plan.seconds = op.getSeconds() ? op.getSeconds()->convertToDouble() : 0;
  plan.slowBytes = op.getSlowBytes().value_or(0);
  llvm::DenseMap<Value, int64_t> tiles;
  llvm::DenseMap<Value, int64_t> devices;
  for (Operation &operation : *op.getBody()) {
    PlanStep &step = plan.steps.emplace_back();
    step.firstTile = int64_t(tiles.size());
    for (Value operand : operation.getOperands())
      step.operands.push_back(tiles.lookup(operand));
    if (auto tile = dyn_cast<TileOp>(operation)) {
      step.devices.push_back(tile.getDevice());
      step.box = Box::at(tile.getOffsets(), tile.getTile().getType().getShape());
    } else if (auto send = dyn_cast<SendTileOp>(operation)) {
      step.kind = StepKind::Send;
      step.devices.push_back(send.getDevice());
    } else if (auto broadcast = dyn_cast<BroadcastOp>(operation)) {
      step.kind = StepKind::Broadcast;
      llvm::append_range(step.devices, broadcast.getDevices());
      step.chunks = broadcast.getChunks();
    } else {
      step.kind = StepKind::AllGather;
      for (Value operand : operation.getOperands())
        step.devices.push_back(devices.lookup(operand));
    }
    for (auto [result, device] : llvm::zip_equal(operation.getResults(), step.devices)) {
      int64_t number = int64_t(tiles.size());
      tiles[result] = number;
      devices[result] = device;
    }
  }
  return plan;
}
