//===- ContractionOps.cpp - verifiers of dot, convolution, linear algebra -===//

#include "dialects/StableHLO/Verify.h"

using namespace mlir;
using namespace mlir::stablehlo;

static LogicalResult verifyPrecision(Operation *op, StringRef label,
                                     std::optional<ArrayAttr> precision) {
  if (!precision || precision->empty() || precision->size() == 2)
    return success();
  return op->emitOpError(label) << ": expected 0 or 2 precisions, got " << precision->size();
}

/// Whether some hardware has products of these types, component and operation counts.
static bool isKnown(DotAlgorithmAttr algorithm) {
  Type lhs = algorithm.getLhsPrecisionType(), sum = algorithm.getAccumulationType();
  Type rhs = algorithm.getRhsPrecisionType();
  int64_t operations = algorithm.getNumPrimitiveOperations();
  if (algorithm.getLhsComponentCount() != 1 || algorithm.getRhsComponentCount() != 1)
    return false;
  auto isByte = [](Type type) {
    return isa<FloatType>(type) && type.getIntOrFloatBitWidth() == 8 &&
           !isa<Float8E8M0FNUType>(type);
  };
  auto isOne = [&](std::initializer_list<int64_t> counts) {
    return llvm::is_contained(counts, operations);
  };
  if (isByte(lhs) && isByte(rhs))
    return sum.isF32() && (isOne({1}) || (!algorithm.getAllowImpreciseAccumulation() &&
                                          isa<Float8E4M3FNType>(lhs) &&
                                          isa<Float8E4M3FNType>(rhs) && isOne({3, 4})));
  if (lhs != rhs || algorithm.getAllowImpreciseAccumulation())
    return false;
  if (lhs.isF16())
    return (sum.isF16() || sum.isF32()) && isOne({1});
  if (lhs.isBF16())
    return (sum.isBF16() && isOne({1})) || (sum.isF32() && isOne({1, 3, 6, 9}));
  if (lhs.isTF32())
    return sum.isF32() && isOne({1, 3});
  return (lhs.isF32() || lhs.isF64()) && sum == lhs && isOne({1});
}

static LogicalResult verifyAlgorithm(DotGeneralOp op, DotAlgorithmAttr algorithm) {
  if (std::optional<ArrayAttr> precisions = op.getPrecisionConfig())
    for (Attribute precision : *precisions)
      if (cast<PrecisionAttr>(precision).getValue() != Precision::DEFAULT)
        return op.emitOpError("dot_general_c21: expected precision DEFAULT with an algorithm, got ")
               << precision;
  for (auto [label, what, count] :
       {std::tuple("dot_general_c22", "lhs_component_count", algorithm.getLhsComponentCount()),
        {"dot_general_c23", "rhs_component_count", algorithm.getRhsComponentCount()},
        {"dot_general_c24", "num_primitive_operations", algorithm.getNumPrimitiveOperations()}})
    if (count <= 0)
      return op.emitOpError(label) << ": expected a positive " << what << ", got " << count;
  if (!isKnown(algorithm))
    return op.emitOpError("dot_general_c24: no hardware is known to have ") << algorithm;
  return success();
}

LogicalResult DotGeneralOp::verify() {
  auto lhs = typeOf(getLhs()), rhs = typeOf(getRhs());
  DotDimensionNumbersAttr numbers = getDotDimensionNumbers();
  ArrayRef<int64_t> lhsBatch = numbers.getLhsBatchingDimensions(),
                    rhsBatch = numbers.getRhsBatchingDimensions(),
                    lhsContract = numbers.getLhsContractingDimensions(),
                    rhsContract = numbers.getRhsContractingDimensions();
  if (lhsBatch.size() != rhsBatch.size())
    return emitOpError("dot_general_c1: expected as many batching dimensions on either side, got ")
           << lhsBatch.size() << " and " << rhsBatch.size();
  if (lhsContract.size() != rhsContract.size())
    return emitOpError(
               "dot_general_c2: expected as many contracting dimensions on either side, got ")
           << lhsContract.size() << " and " << rhsContract.size();
  if (failed(verifyUnique(*this, "dot_general_c3", "dimensions of lhs", lhsBatch, lhsContract)) ||
      failed(verifyUnique(*this, "dot_general_c4", "dimensions of rhs", rhsBatch, rhsContract)) ||
      failed(verifyRange(*this, "dot_general_c5", "lhs batching dimensions", lhsBatch,
                         lhs.getRank())) ||
      failed(verifyRange(*this, "dot_general_c6", "lhs contracting dimensions", lhsContract,
                         lhs.getRank())) ||
      failed(verifyRange(*this, "dot_general_c7", "rhs batching dimensions", rhsBatch,
                         rhs.getRank())) ||
      failed(verifyRange(*this, "dot_general_c8", "rhs contracting dimensions", rhsContract,
                         rhs.getRank())))
    return failure();
  auto verifyPairs = [&](StringRef label, StringRef what, ArrayRef<int64_t> left,
                         ArrayRef<int64_t> right) -> LogicalResult {
    for (auto [l, r] : llvm::zip_equal(left, right))
      if (!sizesAgree(lhs.getDimSize(l), rhs.getDimSize(r)))
        return emitOpError(label) << ": expected " << what << " dimensions of one size, got "
                                  << lhs.getDimSize(l) << " and " << rhs.getDimSize(r);
    return success();
  };
  if (std::optional<DotAlgorithmAttr> algorithm = getAlgorithm();
      algorithm && failed(verifyAlgorithm(*this, *algorithm)))
    return failure();
  if (failed(verifyPairs("dot_general_c9", "batching", lhsBatch, rhsBatch)) ||
      failed(verifyPairs("dot_general_c10", "contracting", lhsContract, rhsContract)) ||
      failed(verifyPrecision(*this, "dot_general_c11", getPrecisionConfig())))
    return failure();
  SmallVector<int64_t> shape;
  for (int64_t dim : lhsBatch)
    shape.push_back(lhs.getDimSize(dim));
  for (int64_t dim = 0; dim < lhs.getRank(); ++dim)
    if (!llvm::is_contained(lhsBatch, dim) && !llvm::is_contained(lhsContract, dim))
      shape.push_back(lhs.getDimSize(dim));
  for (int64_t dim = 0; dim < rhs.getRank(); ++dim)
    if (!llvm::is_contained(rhsBatch, dim) && !llvm::is_contained(rhsContract, dim))
      shape.push_back(rhs.getDimSize(dim));
  // The result may accumulate in another element type than the operands have.
  return verifyResult(*this, "dot_general_c12", getType(), typeOf(getResult()).clone(shape));
}

LogicalResult ConvolutionOp::verify() {
  auto lhs = typeOf(getLhs()), rhs = typeOf(getRhs());
  int64_t rank = lhs.getRank();
  if (rank < 2 || rhs.getRank() != rank)
    return emitOpError("convolution_c1: expected operands of one rank of at least 2, got ")
           << lhs << " and " << rhs;
  if (lhs.getElementType() != rhs.getElementType())
    return emitOpError("convolution_c27: expected operands of one element type, got ")
           << lhs << " and " << rhs;
  ConvDimensionNumbersAttr numbers = getDimensionNumbers();
  auto verifyRoles = [&](StringRef count, StringRef each, StringRef what, int64_t first,
                         int64_t second, ArrayRef<int64_t> spatial) -> LogicalResult {
    SmallVector<int64_t> all(spatial);
    all.append({first, second});
    if (failed(verifySize(*this, count, what, all.size(), rank)))
      return failure();
    return verifyDims(*this, each, what, all, rank);
  };
  if (failed(verifyRoles("convolution_c12", "convolution_c13", "input dimensions",
                         numbers.getInputBatchDimension(), numbers.getInputFeatureDimension(),
                         numbers.getInputSpatialDimensions())) ||
      failed(verifyRoles("convolution_c17", "convolution_c18", "kernel dimensions",
                         numbers.getKernelInputFeatureDimension(),
                         numbers.getKernelOutputFeatureDimension(),
                         numbers.getKernelSpatialDimensions())) ||
      failed(verifyRoles("convolution_c19", "convolution_c20", "output dimensions",
                         numbers.getOutputBatchDimension(), numbers.getOutputFeatureDimension(),
                         numbers.getOutputSpatialDimensions())))
    return failure();

  SmallVector<int64_t> kernel;
  for (int64_t dim : numbers.getKernelSpatialDimensions())
    kernel.push_back(rhs.getDimSize(dim));
  std::optional<ArrayRef<bool>> reversal = getWindowReversal();
  if (reversal &&
      failed(verifySize(*this, "convolution_c9", "reverse", reversal->size(), rank - 2)))
    return failure();
  FailureOr<SmallVector<WindowDim>> window =
      readWindow(*this, "convolution_c3", kernel, getWindowStrides(), getPadding(),
                 getLhsDilation(), getRhsDilation());
  if (failed(window))
    return failure();

  int64_t featureGroups = getFeatureGroupCountAttr().getInt();
  int64_t batchGroups = getBatchGroupCountAttr().getInt();
  int64_t batch = lhs.getDimSize(numbers.getInputBatchDimension());
  int64_t inputFeatures = lhs.getDimSize(numbers.getInputFeatureDimension());
  int64_t kernelInput = rhs.getDimSize(numbers.getKernelInputFeatureDimension());
  int64_t kernelOutput = rhs.getDimSize(numbers.getKernelOutputFeatureDimension());
  for (auto [label, what, count] :
       {std::tuple("convolution_c21", "feature_group_count", featureGroups),
        {"convolution_c22", "batch_group_count", batchGroups}})
    if (count <= 0)
      return emitOpError(label) << ": expected a positive " << what << ", got " << count;
  for (auto [label, what, count, size] :
       {std::tuple("convolution_c10", "batch_group_count", batchGroups, batch),
        {"convolution_c11", "feature_group_count", featureGroups, inputFeatures},
        {"convolution_c15", "batch_group_count", batchGroups, kernelOutput},
        {"convolution_c16", "feature_group_count", featureGroups, kernelOutput}})
    if (!ShapedType::isDynamic(size) && size % count != 0)
      return emitOpError(label) << ": expected " << what << " " << count << " to divide " << size;
  if (!ShapedType::isDynamic(inputFeatures) &&
      !sizesAgree(kernelInput, inputFeatures / featureGroups))
    return emitOpError("convolution_c14: expected ")
           << inputFeatures / featureGroups << " input features of the kernel, got " << kernelInput;
  if (featureGroups > 1 && batchGroups > 1)
    return emitOpError("convolution_c23: expected one group count to be 1");
  if (failed(verifyPrecision(*this, "convolution_c24", getPrecisionConfig())))
    return failure();

  SmallVector<int64_t> shape(rank);
  shape[numbers.getOutputBatchDimension()] =
      ShapedType::isDynamic(batch) ? batch : batch / batchGroups;
  shape[numbers.getOutputFeatureDimension()] = kernelOutput;
  for (auto [i, dim] : llvm::enumerate(numbers.getOutputSpatialDimensions()))
    shape[dim] = countPlaces(lhs.getDimSize(numbers.getInputSpatialDimensions()[i]), (*window)[i]);
  return verifyResult(*this, "convolution_c25", getType(), typeOf(getResult()).clone(shape));
}

LogicalResult CholeskyOp::verify() {
  auto type = typeOf(getA());
  if (type.getRank() < 2)
    return emitOpError("cholesky_c2: expected a rank of at least 2, got ") << type;
  if (!sizesAgree(type.getShape().back(), type.getShape().drop_back().back()))
    return emitOpError("cholesky_c3: expected square matrices, got ") << type;
  return success();
}

LogicalResult TriangularSolveOp::verify() {
  auto a = typeOf(getA()), b = typeOf(getB());
  if (a.getElementType() != b.getElementType())
    return emitOpError("triangular_solve_c1: expected one element type, got ") << a << " and " << b;
  if (a.getRank() < 2 || a.getRank() != b.getRank())
    return emitOpError("triangular_solve_c2: expected one rank of at least 2, got ")
           << a << " and " << b;
  int64_t size = b.getShape().take_back(2)[getLeftSide() ? 0 : 1];
  ArrayRef<int64_t> square = a.getShape().take_back(2);
  if (!sizesAgree(square[0], square[1]) || !sizesAgree(square[0], size) ||
      !shapesAgree(a.getShape().drop_back(2), b.getShape().drop_back(2)))
    return emitOpError("triangular_solve_c3: ") << a << " does not fit " << b;
  return verifyResult(*this, "triangular_solve_c4", getType(), b);
}
