//===- RegionOps.cpp - verifiers of control flow and reductions -----------===//

#include "dialects/StableHLO/Verify.h"

#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::stablehlo;

/// The return that ends the region, or null.
static ReturnOp returnOf(Region &region) {
  Block &block = region.front();
  return block.empty() ? ReturnOp() : dyn_cast<ReturnOp>(block.back());
}

static SmallVector<Type> elementTypes(ValueRange values) {
  SmallVector<Type> types;
  for (Type type : values.getTypes())
    types.push_back(getElementTypeOrSelf(type));
  return types;
}

/// All tensors have the first one's shape.
static bool oneShape(ValueRange values) {
  return llvm::all_of(values, [&](Value value) {
    return shapesAgree(typeOf(value).getShape(), typeOf(values.front()).getShape());
  });
}

/// Initial values are scalars that can be combined in the results' element types.
static LogicalResult verifyInits(Operation *op, StringRef label, ValueRange inits,
                                 TypeRange results) {
  for (auto [init, result] : llvm::zip_equal(inits, results)) {
    if (typeOf(init).getRank() != 0)
      return op->emitOpError(label) << ": expected scalar initial values, got " << init.getType();
    if (!isPromotable(typeOf(init).getElementType(), getElementTypeOrSelf(result)))
      return op->emitOpError(label) << ": expected an initial value of element type "
                                    << getElementTypeOrSelf(result) << ", got " << init.getType();
  }
  return success();
}

LogicalResult CaseOp::verify() {
  if (getBranches().empty())
    return emitOpError("case_c1: expected a branch");
  if (typeOf(getIndex()).getRank() != 0)
    return emitOpError("case_c4: expected a scalar index, got ") << getIndex().getType();
  for (auto [i, branch] : llvm::enumerate(getBranches())) {
    if (branch.getNumArguments() != 0)
      return emitOpError("case_c2: expected branch ") << i << " to have no arguments";
    ReturnOp returned = returnOf(branch);
    if (!returned || !allTypesAgree(returned.getOperandTypes(), getResultTypes()))
      return emitOpError("case_c3: expected branch ") << i << " to return the types of the results";
  }
  return success();
}

LogicalResult IfOp::verify() {
  if (typeOf(getPred()).getRank() != 0)
    return emitOpError("if_c4: expected a scalar predicate, got ") << getPred().getType();
  for (auto [label, name, branch] : {std::tuple("if_c2", "true_branch", &getTrueBranch()),
                                     {"if_c3", "false_branch", &getFalseBranch()}}) {
    if (branch->getNumArguments() != 0)
      return emitOpError("if_c1: expected ") << name << " to have no arguments";
    ReturnOp returned = returnOf(*branch);
    if (!returned || !allTypesAgree(returned.getOperandTypes(), getResultTypes()))
      return emitOpError(label) << ": expected " << name << " to return the types of the results";
  }
  return success();
}

LogicalResult MapOp::verify() {
  if (getInputs().empty())
    return emitOpError("map_c2: expected an input");
  int64_t rank = typeOf(getResult()).getRank();
  if (!llvm::equal(getDimensions(), llvm::seq<int64_t>(0, rank)))
    return emitOpError("map_c3: expected dimensions 0 to ") << rank - 1 << " in order";
  return verifyScalarRegion(*this, "map_c4", "a computation", getComputation(),
                            elementTypes(getInputs()), typeOf(getResult()).getElementType());
}

LogicalResult WhileOp::verify() {
  TypeRange types = getOperandTypes();
  ReturnOp condition = returnOf(getCond()), next = returnOf(getBody());
  auto isPredicate = [](Type type) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    return tensor && tensor.getRank() == 0 && tensor.getElementType().isInteger(1);
  };
  if (!allTypesAgree(getCond().getArgumentTypes(), types) || !condition ||
      condition.getNumOperands() != 1 || !isPredicate(condition.getOperandTypes().front()))
    return emitOpError("while_c1: expected cond to take the operands' types and to return "
                       "tensor<i1>");
  if (!allTypesAgree(getBody().getArgumentTypes(), types) || !next ||
      !allTypesAgree(next.getOperandTypes(), types))
    return emitOpError("while_c2: expected body to take and return the operands' types");
  if (!allTypesAgree(getResultTypes(), types))
    return emitOpError("while_c3: expected results of the operands' types");
  return success();
}

LogicalResult ReduceOp::verify() {
  if (getInputs().empty() || getNumResults() != getInputs().size())
    return emitOpError("reduce_c3: expected inputs and one result for each, got ")
           << getInputs().size() << " and " << getNumResults();
  if (!oneShape(getInputs()))
    return emitOpError("reduce_c1: expected inputs of one shape");
  if (failed(verifyInits(*this, "reduce_c2", getInitValues(), getResultTypes())))
    return failure();
  auto input = typeOf(getInputs().front());
  ArrayRef<int64_t> dims = getDimensions();
  for (auto [i, dim] : llvm::enumerate(dims))
    if (llvm::is_contained(dims.take_front(i), dim))
      return emitOpError("reduce_c5: dimension ") << dim << " is named twice";
  if (failed(verifyDims(*this, "reduce_c4", "dimensions", dims, input.getRank())) ||
      failed(verifyReducer(*this, "reduce_c6", getBody(), elementTypes(getInputs()),
                           getResultTypes())))
    return failure();
  SmallVector<int64_t> shape;
  for (int64_t dim = 0; dim < input.getRank(); ++dim)
    if (!llvm::is_contained(dims, dim))
      shape.push_back(input.getDimSize(dim));
  for (Value result : getResults())
    if (failed(verifyResult(*this, "reduce_c7", result.getType(), typeOf(result).clone(shape))))
      return failure();
  return success();
}

LogicalResult ReduceWindowOp::verify() {
  if (getInputs().empty() || getNumResults() != getInputs().size())
    return emitOpError("reduce_window_c1: expected inputs and one result for each, got ")
           << getInputs().size() << " and " << getNumResults();
  if (!oneShape(getInputs()))
    return emitOpError("reduce_window_c2: expected inputs of one shape");
  if (failed(verifyInits(*this, "reduce_window_c3", getInitValues(), getResultTypes())))
    return failure();
  auto input = typeOf(getInputs().front());
  ArrayRef<int64_t> sizes = getWindowDimensions();
  if (failed(verifySize(*this, "reduce_window_c4", "window_dimensions", sizes.size(),
                        input.getRank())))
    return failure();
  for (int64_t size : sizes)
    if (size <= 0)
      return emitOpError("reduce_window_c5: expected positive window sizes, got ") << size;
  FailureOr<SmallVector<WindowDim>> window =
      readWindow(*this, "reduce_window_c5", sizes, getWindowStrides(), getPadding(),
                 getBaseDilations(), getWindowDilations());
  if (failed(window) || failed(verifyReducer(*this, "reduce_window_c13", getBody(),
                                             elementTypes(getInputs()), getResultTypes())))
    return failure();
  SmallVector<int64_t> shape;
  for (auto [size, dim] : llvm::zip_equal(input.getShape(), *window))
    shape.push_back(countPlaces(size, dim));
  for (Value result : getResults())
    if (failed(verifyResult(*this, "reduce_window_c15", result.getType(),
                            typeOf(result).clone(shape))))
      return failure();
  return success();
}

LogicalResult SelectAndScatterOp::verify() {
  auto operand = typeOf(getOperand()), source = typeOf(getSource());
  Type element = operand.getElementType(), scalar = RankedTensorType::get({}, element);
  if (source.getElementType() != element)
    return emitOpError("select_and_scatter_c1: expected source of element type ")
           << element << ", got " << source.getElementType();
  if (getInitValue().getType() != scalar)
    return emitOpError("select_and_scatter_c3: expected an initial value of type ")
           << scalar << ", got " << getInitValue().getType();
  SmallVector<int64_t> sizes(operand.getRank(), 1);
  if (std::optional<ArrayRef<int64_t>> given = getWindowDimensions()) {
    if (failed(verifySize(*this, "select_and_scatter_c4", "window_dimensions", given->size(),
                          operand.getRank())))
      return failure();
    for (int64_t size : *given)
      if (size <= 0)
        return emitOpError("select_and_scatter_c5: expected positive window sizes, got ") << size;
    llvm::copy(*given, sizes.begin());
  } else if (operand.getRank() != 0) {
    return emitOpError("select_and_scatter_c4: expected window_dimensions");
  }
  FailureOr<SmallVector<WindowDim>> window =
      readWindow(*this, "select_and_scatter_c4", sizes, getWindowStrides(), getPadding(),
                 std::nullopt, std::nullopt);
  if (failed(window))
    return failure();
  SmallVector<int64_t> shape;
  for (auto [size, dim] : llvm::zip_equal(operand.getShape(), *window))
    shape.push_back(countPlaces(size, dim));
  if (!shapesAgree(source.getShape(), shape))
    return emitOpError("select_and_scatter_c2: expected source of type ")
           << operand.clone(shape) << ", got " << source;
  Type pred = IntegerType::get(getContext(), 1);
  if (failed(verifyScalarRegion(*this, "select_and_scatter_c9", "select", getSelect(),
                                {element, element}, pred)) ||
      failed(verifyScalarRegion(*this, "select_and_scatter_c10", "scatter", getScatter(),
                                {element, element}, element)))
    return failure();
  return verifyResult(*this, "select_and_scatter_c11", getType(), operand);
}

LogicalResult SortOp::verify() {
  if (getInputs().empty())
    return emitOpError("sort_c1: expected an input");
  if (!allTypesAgree(getInputs().getTypes(), getResultTypes()))
    return emitOpError("sort_c2: expected results of the inputs' types");
  auto input = typeOf(getInputs().front());
  int64_t dim = int64_t(getDimension()), rank = input.getRank();
  if (dim < -rank || dim >= rank)
    return emitOpError("sort_c4: expected dimension in [")
           << -rank << ", " << rank << "), got " << dim;
  SmallVector<Type> scalars;
  for (Type element : elementTypes(getInputs()))
    scalars.append(2, element);
  return verifyScalarRegion(*this, "sort_c5", "a comparison", getComparator(), scalars,
                            IntegerType::get(getContext(), 1));
}

//===----------------------------------------------------------------------===//
// scatter
//===----------------------------------------------------------------------===//

LogicalResult ScatterOp::verify() {
  if (getInputs().empty() || getNumResults() != getInputs().size() ||
      getUpdates().size() != getInputs().size())
    return emitOpError("scatter_c5: expected as many inputs, updates and results, got ")
           << getInputs().size() << ", " << getUpdates().size() << " and " << getNumResults();
  if (!oneShape(getInputs()))
    return emitOpError("scatter_c1: expected inputs of one shape");
  if (!oneShape(getUpdates()))
    return emitOpError("scatter_c3: expected updates of one shape");
  auto input = typeOf(getInputs().front()), indices = typeOf(getScatterIndices()),
       update = typeOf(getUpdates().front());
  ScatterDimensionNumbersAttr numbers = getScatterDimensionNumbers();
  ArrayRef<int64_t> window = numbers.getUpdateWindowDims(),
                    inserted = numbers.getInsertedWindowDims(),
                    batching = numbers.getInputBatchingDims(),
                    indicesBatching = numbers.getScatterIndicesBatchingDims(),
                    toOperand = numbers.getScatterDimsToOperandDims();
  int64_t rank = input.getRank(), vector = numbers.getIndexVectorDim();
  if (int64_t(window.size() + inserted.size() + batching.size()) != rank)
    return emitOpError("scatter_c2: expected window, inserted and batching dimensions to be ")
           << rank << " together, got " << window.size() << ", " << inserted.size() << " and "
           << batching.size();
  if (vector < 0 || vector > indices.getRank())
    return emitOpError("scatter_c22: expected index_vector_dim in [0, ")
           << indices.getRank() << "], got " << vector;
  int64_t length = vector < indices.getRank() ? indices.getDimSize(vector) : 1;
  if (!sizesAgree(length, toOperand.size()))
    return emitOpError("scatter_c19: expected ")
           << length << " entries of scatter_dims_to_operand_dims, got " << toOperand.size();
  SmallVector<int64_t> dropped(inserted);
  llvm::append_range(dropped, batching);
  if (failed(verifyUnique(*this, "scatter_c7", "update_window_dims", window)) ||
      failed(verifySorted(*this, "scatter_c7", "update_window_dims", window)) ||
      failed(verifyRange(*this, "scatter_c8", "update_window_dims", window, update.getRank())) ||
      failed(verifyUnique(*this, "scatter_c9", "inserted and batching dimensions", dropped)) ||
      failed(verifySorted(*this, "scatter_c10", "inserted_window_dims", inserted)) ||
      failed(verifyRange(*this, "scatter_c11", "inserted_window_dims", inserted, rank)) ||
      failed(verifySorted(*this, "scatter_c12", "input_batching_dims", batching)) ||
      failed(verifyRange(*this, "scatter_c13", "input_batching_dims", batching, rank)) ||
      failed(
          verifyUnique(*this, "scatter_c14", "scatter_indices_batching_dims", indicesBatching)) ||
      failed(verifyRange(*this, "scatter_c15", "scatter_indices_batching_dims", indicesBatching,
                         indices.getRank())))
    return failure();
  if (llvm::is_contained(indicesBatching, vector))
    return emitOpError("scatter_c16: index_vector_dim ")
           << vector << " is named in scatter_indices_batching_dims";
  if (failed(verifySize(*this, "scatter_c17", "scatter_indices_batching_dims",
                        indicesBatching.size(), batching.size())))
    return failure();
  for (auto [a, b] : llvm::zip_equal(batching, indicesBatching))
    if (!sizesAgree(input.getDimSize(a), indices.getDimSize(b)))
      return emitOpError("scatter_c18: batching dimensions ")
             << a << " of " << input << " and " << b << " of " << indices << " differ in size";
  if (failed(verifyUnique(*this, "scatter_c20",
                          "scatter_dims_to_operand_dims and batching "
                          "dimensions",
                          toOperand, batching)) ||
      failed(verifyRange(*this, "scatter_c21", "scatter_dims_to_operand_dims", toOperand, rank)))
    return failure();

  // Dimensions of the updates are those of the indices, and windows that fit.
  SmallVector<int64_t> batch, sizes;
  for (int64_t dim = 0; dim < indices.getRank(); ++dim)
    if (dim != vector)
      batch.push_back(indices.getDimSize(dim));
  for (int64_t dim = 0; dim < rank; ++dim)
    if (!llvm::is_contained(dropped, dim))
      sizes.push_back(input.getDimSize(dim));
  bool fits = update.getRank() == int64_t(batch.size() + window.size());
  size_t nextBatch = 0, nextWindow = 0;
  for (int64_t dim = 0; fits && dim < update.getRank(); ++dim) {
    int64_t size = update.getDimSize(dim);
    if (!llvm::is_contained(window, dim)) {
      fits = sizesAgree(size, batch[nextBatch++]);
      continue;
    }
    int64_t whole = sizes[nextWindow++];
    fits = ShapedType::isDynamic(size) || ShapedType::isDynamic(whole) || size <= whole;
  }
  if (!fits)
    return emitOpError("scatter_c4: updates of type ")
           << update << " do not fit " << input << " and indices " << indices;
  for (auto [to, from] : llvm::zip_equal(getResultTypes(), getUpdates()))
    if (!isPromotable(typeOf(from).getElementType(), getElementTypeOrSelf(to)))
      return emitOpError("scatter_c6: expected updates of element type ")
             << getElementTypeOrSelf(to) << ", got " << typeOf(from).getElementType();
  if (failed(verifyReducer(*this, "scatter_c23", getUpdateComputation(), elementTypes(getInputs()),
                           getResultTypes())))
    return failure();
  for (Value result : getResults())
    if (failed(verifyResult(*this, "scatter_c24", result.getType(),
                            typeOf(result).clone(input.getShape()))))
      return failure();
  return success();
}
