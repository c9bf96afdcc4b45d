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

static LogicalResult verifyExist(Operation *op, StringRef label, StringRef what,
                                 ArrayRef<int64_t> dims, int64_t rank) {
  for (int64_t dim : dims)
    if (dim < 0 || dim >= rank)
      return op->emitOpError(label)
             << ": expected " << what << " in [0, " << rank << "), got " << dim;
  return success();
}

static LogicalResult verifyUnique(Operation *op, StringRef label, StringRef side,
                                  ArrayRef<int64_t> a, ArrayRef<int64_t> b) {
  SmallVector<int64_t> all(a);
  llvm::append_range(all, b);
  llvm::sort(all);
  auto twice = std::adjacent_find(all.begin(), all.end());
  if (twice != all.end())
    return op->emitOpError(label) << ": dimension " << *twice << " of " << side
                                  << " is named twice";
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
  if (failed(verifyUnique(*this, "dot_general_c3", "lhs", lhsBatch, lhsContract)) ||
      failed(verifyUnique(*this, "dot_general_c4", "rhs", rhsBatch, rhsContract)) ||
      failed(verifyExist(*this, "dot_general_c5", "lhs batching dimensions", lhsBatch,
                         lhs.getRank())) ||
      failed(verifyExist(*this, "dot_general_c6", "lhs contracting dimensions", lhsContract,
                         lhs.getRank())) ||
      failed(verifyExist(*this, "dot_general_c7", "rhs batching dimensions", rhsBatch,
                         rhs.getRank())) ||
      failed(verifyExist(*this, "dot_general_c8", "rhs contracting dimensions", rhsContract,
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
  ConvDimensionNumbersAttr numbers = getDimensionNumbers();
  auto verifyRoles = [&](StringRef what, int64_t first, int64_t second,
                         ArrayRef<int64_t> spatial) -> LogicalResult {
    SmallVector<int64_t> all(spatial);
    all.append({first, second});
    if (failed(verifySize(*this, "convolution_c13", what, all.size(), rank)))
      return failure();
    return verifyDims(*this, "convolution_c13", what, all, rank);
  };
  if (failed(verifyRoles("input dimensions", numbers.getInputBatchDimension(),
                         numbers.getInputFeatureDimension(),
                         numbers.getInputSpatialDimensions())) ||
      failed(verifyRoles("kernel dimensions", numbers.getKernelInputFeatureDimension(),
                         numbers.getKernelOutputFeatureDimension(),
                         numbers.getKernelSpatialDimensions())) ||
      failed(verifyRoles("output dimensions", numbers.getOutputBatchDimension(),
                         numbers.getOutputFeatureDimension(),
                         numbers.getOutputSpatialDimensions())))
    return failure();

  SmallVector<int64_t> kernel;
  for (int64_t dim : numbers.getKernelSpatialDimensions())
    kernel.push_back(rhs.getDimSize(dim));
  std::optional<ArrayRef<bool>> reversal = getWindowReversal();
  if (reversal &&
      failed(verifySize(*this, "convolution_c2", "reverse", reversal->size(), rank - 2)))
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
  auto divides = [](int64_t count, int64_t size) {
    return ShapedType::isDynamic(size) || size % count == 0;
  };
  if (featureGroups <= 0 || batchGroups <= 0 || !divides(batchGroups, batch) ||
      !divides(featureGroups, inputFeatures) || !divides(featureGroups, kernelOutput) ||
      !divides(batchGroups, kernelOutput))
    return emitOpError("convolution_c10: expected group counts that divide batch and features, "
                       "got ")
           << featureGroups << " of features and " << batchGroups << " of batches";
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
