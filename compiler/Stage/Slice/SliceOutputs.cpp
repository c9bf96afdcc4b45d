//===- SliceOutputs.cpp - how results leave the sliced step ---------------===//

#include "compiler/Stage/Slice/SlicePlan.h"
#include "compiler/Stage/Slice/SliceUtils.h"

using namespace mlir;
using namespace alpa;

StringRef SlicePlan::reductionOf(int64_t index) const {
  auto reduction = main.getResultAttrOfType<StringAttr>(index, attr::reduction);
  return reduction ? reduction.getValue() : StringRef();
}

std::string SlicePlan::resultName(int64_t index) const {
  std::string name = "result " + std::to_string(index);
  if (auto given = main.getResultAttrOfType<StringAttr>(index, attr::name))
    name += " (" + given.getValue().str() + ")";
  return name;
}

std::string SlicePlan::resultReachedBy(Value value) const {
  SmallVector<Value> worklist{value};
  DenseSet<Value> seen;
  while (!worklist.empty()) {
    Value next = worklist.pop_back_val();
    if (!seen.insert(next).second)
      continue;
    for (OpOperand &use : next.getUses()) {
      if (use.getOwner() == main.front().getTerminator())
        return resultName(use.getOperandNumber());
      llvm::append_range(worklist,
                         main.front().findAncestorOpInBlock(*use.getOwner())->getResults());
    }
  }
  return "the update";
}

void SlicePlan::outputFrom(Piece &piece, Value value, int64_t index, Accumulate kind) {
  BlockArgument carried = carriedArgs[index];
  ShardingSpec spec = specOn(value, piece.stage);
  if (carried && ownerOf(carried) == piece.stage)
    spec = specOn(carried, piece.stage);
  // What other functions use is kept apart from sums and parts that only leave.
  bool isShared = kind != Accumulate::Sum && kind != Accumulate::Concat;
  auto it = piece.resultOf.find(value);
  if (isShared && it != piece.resultOf.end()) {
    PieceResult &result = piece.results[it->second];
    bool sameKind = result.accumulate == kind || result.accumulate == Accumulate::None;
    if (result.mainResult < 0 && (sameKind || numMicroBatches == 1) && result.spec == spec) {
      result.accumulate = kind;
      result.mainResult = index;
      return;
    }
  } else if (isShared) {
    piece.resultOf[value] = piece.results.size();
  }
  PieceResult &result = piece.results.emplace_back();
  result.source = value;
  result.accumulate = kind;
  result.mainResult = index;
  result.spec = spec;
}

void SlicePlan::outputThrough(int64_t stage, int64_t rank, Value value, int64_t index,
                              Accumulate kind) {
  Piece &piece = pieceAt(stage, rank);
  need(piece, value);
  BlockArgument carried = carriedArgs[index];
  PieceResult &result = piece.results.emplace_back();
  result.source = value;
  result.accumulate = kind;
  result.mainResult = index;
  result.spec = specOn(carried && ownerOf(carried) == stage ? Value(carried) : value, stage);
}

LogicalResult SlicePlan::planOutput(int64_t index) {
  Value value = returned(index);
  if (auto arg = dyn_cast<BlockArgument>(value))
    return planArgumentOutput(index, arg);
  StringRef reduction = reductionOf(index);
  bool perMicroBatch = numMicroBatches > 1 && (reduction == "sum" || reduction == "concat");
  std::optional<Key> home = homeOf(value);
  int64_t known = knownFrom.lookup(value);
  // What runs once is made of all micro-batches.
  bool isOfAll = known > 0 || (home && runsOnce(home->second));
  if (isOfAll && numMicroBatches > 1 && reduction == "concat")
    return value.getDefiningOp()->emitError()
           << resultName(index) << " is computed once a step, but has a part for each of "
           << numMicroBatches
           << " micro-batches; compute it inside the loss function, or use one micro-batch";
  if (!home) { // Repeated, or a sum of stages: made or passed on where the result is needed.
    BlockArgument carried = carriedArgs[index];
    int64_t stage = carried ? ownerOf(carried) : stageOf(value.getDefiningOp()).value_or(0);
    Accumulate kind = reduction == "sum" ? Accumulate::Sum : Accumulate::Concat;
    if (perMicroBatch && !isOfAll)
      outputThrough(stage, 0, value, index, kind);
    else
      outputThrough(stage, std::max(known, kUpdateRank), value, index, Accumulate::None);
    return success();
  }
  if (!runsOnce(home->second))
    return planMicroBatchOutput(index, cast<OpResult>(value));
  outputFrom(pieces.find(*home)->second, value, index, Accumulate::None);
  return success();
}

LogicalResult SlicePlan::planArgumentOutput(int64_t index, BlockArgument arg) {
  StringRef reduction = reductionOf(index);
  BlockArgument carried = carriedArgs[index];
  bool concat = reduction == "concat";
  if (carried == arg || (!isStateArgument(arg) && concat)) {
    mainResultIds[index] = arg.getArgNumber();
    return success();
  }
  int64_t stage = ownerOf(carried ? carried : arg);
  if (numMicroBatches > 1 && (concat || reduction == "sum")) {
    outputThrough(stage, 0, arg, index, concat ? Accumulate::Concat : Accumulate::Sum);
    return success();
  }
  if (!isStateArgument(arg) && numMicroBatches > 1)
    return main.emitError() << resultName(index) << " is batch argument " << arg.getArgNumber()
                            << ", which has a value for each of " << numMicroBatches
                            << " micro-batches; give it the reduction `concat` or `sum`";
  outputThrough(stage, kUpdateRank, arg, index, Accumulate::None);
  return success();
}

LogicalResult SlicePlan::planMicroBatchOutput(int64_t index, OpResult value) {
  Piece &piece = pieces.find(*homeOf(value))->second;
  BlockArgument carried = carriedArgs[index];
  StringRef reduction = reductionOf(index);
  if (reduction == "sum" || reduction == "concat") {
    outputFrom(piece, value, index, reduction == "sum" ? Accumulate::Sum : Accumulate::Concat);
    return success();
  }
  if (numMicroBatches == 1 || (carried && !isTainted(value))) {
    outputFrom(piece, value, index, Accumulate::Last);
    return success();
  }
  // A sum leaves from the update.
  outputThrough(piece.stage, kUpdateRank, value, index, Accumulate::None);
  return success();
}

LogicalResult SlicePlan::checkAccumulated() {
  if (numMicroBatches == 1)
    return success();
  for (auto &[key, piece] : pieces) {
    for (PieceResult &result : piece.results) {
      Type element = cast<RankedTensorType>(result.source.getType()).getElementType();
      if (result.accumulate != Accumulate::Sum || !element.isInteger(1))
        continue;
      std::string name =
          result.mainResult >= 0 ? resultName(result.mainResult) : resultReachedBy(result.source);
      return emitError(result.source.getLoc())
             << name << " needs the sum over " << numMicroBatches
             << " micro-batches of a value of type " << result.source.getType()
             << "; run alpa-split-batch first";
    }
  }
  return success();
}
