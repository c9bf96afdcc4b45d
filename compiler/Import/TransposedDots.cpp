//===- TransposedDots.cpp - products that are transposed -------------------===//

#include "compiler/Import/TransposedDots.h"

#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"

using namespace mlir;

/// Whether the permutation exchanges what the operands give to the result, and no more.
static bool exchangesOperands(stablehlo::DotGeneralOp dot, ArrayRef<int64_t> permutation) {
  auto numbers = dot.getDotDimensionNumbers();
  int64_t batch = numbers.getLhsBatchingDimensions().size();
  int64_t left = cast<RankedTensorType>(dot.getLhs().getType()).getRank() - batch -
                 int64_t(numbers.getLhsContractingDimensions().size());
  int64_t rank = permutation.size();
  if (left == 0 || left + batch == rank)
    return false; // A matrix and a vector: nothing changes places.
  for (int64_t i = 0; i < rank; ++i) {
    int64_t source = i < batch ? i : i < rank - left ? i + left : i - (rank - batch - left);
    if (permutation[i] != source)
      return false;
  }
  return true;
}

static bool fold(stablehlo::TransposeOp transpose) {
  auto dot = transpose.getOperand().getDefiningOp<stablehlo::DotGeneralOp>();
  // An algorithm names the types of both operands.
  if (!dot || !dot->hasOneUse() || dot->getBlock() != transpose->getBlock() ||
      dot.getAlgorithmAttr() || !exchangesOperands(dot, transpose.getPermutation()))
    return false;
  OpBuilder builder(dot);
  auto numbers = dot.getDotDimensionNumbers();
  auto swapped = cast<stablehlo::DotGeneralOp>(builder.clone(*dot));
  swapped->setOperands({dot.getRhs(), dot.getLhs()});
  swapped.setDotDimensionNumbersAttr(stablehlo::DotDimensionNumbersAttr::get(
      dot.getContext(), numbers.getRhsBatchingDimensions(), numbers.getLhsBatchingDimensions(),
      numbers.getRhsContractingDimensions(), numbers.getLhsContractingDimensions()));
  if (ArrayAttr precision = dot.getPrecisionConfigAttr(); precision && precision.size() == 2)
    swapped.setPrecisionConfigAttr(builder.getArrayAttr({precision[1], precision[0]}));
  swapped->getResult(0).setType(transpose.getType());
  transpose.getResult().replaceAllUsesWith(swapped.getResult());
  transpose.erase();
  dot.erase();
  return true;
}

unsigned alpa::foldTransposedDots(func::FuncOp main) {
  SmallVector<stablehlo::TransposeOp> transposes;
  main.walk([&](stablehlo::TransposeOp op) { transposes.push_back(op); });
  return llvm::count_if(transposes, fold);
}
