//===- SliceSums.cpp - sums of stages in the sliced step ------------------===//

#include "compiler/Stage/Slice/SlicePlan.h"
#include "compiler/Stage/Slice/SliceUtils.h"

using namespace mlir;
using namespace alpa;

int64_t SlicePlan::rankOfPart(Value value, int64_t stage) const {
  int64_t rank = std::max(kUpdateRank, knownFrom.lookup(value));
  if (std::optional<Key> home = homeOf(value))
    rank = std::max(rank, home->second + (home->second >= kUpdateRank && home->first != stage));
  return rank;
}

LogicalResult SlicePlan::assignSum(SumOfStagesOp sum) {
  if (phaseOf(sum) != Phase::Update)
    return sum.emitError("adds up values of stages outside of the update");
  if (sum.getStages().back() >= int64_t(stages.size()))
    return sum.emitError() << "adds up a value of stage " << sum.getStages().back()
                           << ", but `alpa.stages` has " << stages.size();
  int64_t &known = knownFrom[sum.getSum()];
  for (auto [value, stage] : llvm::zip_equal(sum.getParts(), sum.getStages()))
    known = std::max(known, rankOfPart(value, stage) + 1);
  return success();
}

/// Each stage's part is a result of its own, however else the value is used.
void SlicePlan::planParts(SumOfStagesOp sum) {
  for (auto [value, stage] : llvm::zip_equal(sum.getParts(), sum.getStages())) {
    Piece &piece = pieceAt(stage, rankOfPart(value, stage));
    need(piece, value);
    PieceResult &result = piece.results.emplace_back();
    result.source = value;
    result.partOf = sum.getSum();
    result.spec = specOn(sum.getSum(), stage);
  }
}
