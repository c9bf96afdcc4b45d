//===- Temp.cpp - placeholders until the verifiers land --------------------===//

#include "dialects/StableHLO/StableHLOOps.h"
using namespace mlir;
using namespace mlir::stablehlo;
LogicalResult AbsOp::verify() { return success(); }
OpFoldResult ConvertOp::fold(FoldAdaptor) { return {}; }
LogicalResult RealOp::verify() { return success(); }
LogicalResult ImagOp::verify() { return success(); }
LogicalResult ReducePrecisionOp::verify() { return success(); }
LogicalResult CompareOp::verify() { return success(); }
LogicalResult ComplexOp::verify() { return success(); }
LogicalResult ClampOp::verify() { return success(); }
LogicalResult SelectOp::verify() { return success(); }
OpFoldResult SelectOp::fold(FoldAdaptor) { return {}; }
LogicalResult DotGeneralOp::verify() { return success(); }
LogicalResult ConvolutionOp::verify() { return success(); }
LogicalResult CholeskyOp::verify() { return success(); }
LogicalResult TriangularSolveOp::verify() { return success(); }
LogicalResult FftOp::verify() { return success(); }
LogicalResult RngOp::verify() { return success(); }
LogicalResult RngBitGeneratorOp::verify() { return success(); }
LogicalResult CustomCallOp::verify() { return success(); }
LogicalResult CaseOp::verify() { return success(); }
LogicalResult WhileOp::verify() { return success(); }
LogicalResult ReduceOp::verify() { return success(); }
LogicalResult ReduceWindowOp::verify() { return success(); }
LogicalResult ScatterOp::verify() { return success(); }
LogicalResult SelectAndScatterOp::verify() { return success(); }
LogicalResult SortOp::verify() { return success(); }
LogicalResult ConstantOp::verify() { return success(); }
LogicalResult IotaOp::verify() { return success(); }
LogicalResult BitcastConvertOp::verify() { return success(); }
LogicalResult BroadcastInDimOp::verify() { return success(); }
OpFoldResult BroadcastInDimOp::fold(FoldAdaptor) { return {}; }
LogicalResult ReshapeOp::verify() { return success(); }
OpFoldResult ReshapeOp::fold(FoldAdaptor) { return {}; }
LogicalResult ReverseOp::verify() { return success(); }
LogicalResult TransposeOp::verify() { return success(); }
OpFoldResult TransposeOp::fold(FoldAdaptor) { return {}; }
LogicalResult ConcatenateOp::verify() { return success(); }
OpFoldResult ConcatenateOp::fold(FoldAdaptor) { return {}; }
LogicalResult SliceOp::verify() { return success(); }
OpFoldResult SliceOp::fold(FoldAdaptor) { return {}; }
LogicalResult DynamicSliceOp::verify() { return success(); }
LogicalResult DynamicUpdateSliceOp::verify() { return success(); }
LogicalResult PadOp::verify() { return success(); }
LogicalResult GatherOp::verify() { return success(); }
LogicalResult GetDimensionSizeOp::verify() { return success(); }
LogicalResult TupleOp::verify() { return success(); }
LogicalResult GetTupleElementOp::verify() { return success(); }
OpFoldResult GetTupleElementOp::fold(FoldAdaptor) { return {}; }
LogicalResult OptimizationBarrierOp::verify() { return success(); }
LogicalResult AllGatherOp::verify() { return success(); }
LogicalResult AllReduceOp::verify() { return success(); }
LogicalResult AllToAllOp::verify() { return success(); }
LogicalResult CollectiveBroadcastOp::verify() { return success(); }
LogicalResult CollectivePermuteOp::verify() { return success(); }
LogicalResult ReduceScatterOp::verify() { return success(); }
OpFoldResult ConstantOp::fold(FoldAdaptor) { return getValue(); }
void CustomCallOp::getEffects(SmallVectorImpl<MemoryEffects::EffectInstance> &effects) {
  if (!getHasSideEffect())
    return;
  effects.emplace_back(MemoryEffects::Write::get());
  effects.emplace_back(MemoryEffects::Read::get());
}
LogicalResult CompositeOp::verifySymbolUses(SymbolTableCollection &) { return success(); }
