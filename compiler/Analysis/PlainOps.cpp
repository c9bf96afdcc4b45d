//===- PlainOps.cpp - short ways to make ops ------------------------------===//

#include "compiler/Analysis/PlainOps.h"

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;
namespace hlo = mlir::stablehlo;

Value PlainOps::splat(double number, RankedTensorType type) {
  auto real = dyn_cast<FloatType>(type.getElementType());
  return hlo::ConstantOp::create(
      builder, loc,
      real ? DenseElementsAttr::get(type, builder.getFloatAttr(real, number))
           : splatOf(static_cast<int64_t>(number), type));
}

Value PlainOps::reduce(Value value, ArrayRef<int64_t> over, Reducer reducer) {
  Shape shape;
  for (auto [dim, size] : llvm::enumerate(typeOf(value).getShape()))
    if (!llvm::is_contained(over, static_cast<int64_t>(dim)))
      shape.push_back(size);
  Type element = typeOf(value).getElementType();
  Value initial = hlo::ConstantOp::create(builder, loc, neutralOf(reducer, element));
  OperationState state(loc, hlo::ReduceOp::getOperationName(), {value, initial},
                       typeOf(value).clone(shape));
  state.addAttribute("dimensions", builder.getDenseI64ArrayAttr(over));
  Block &body = state.addRegion()->emplaceBlock();
  auto scalar = RankedTensorType::get({}, element);
  body.addArguments({scalar, scalar}, {loc, loc});
  Operation *made = builder.create(state);
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(&made->getRegion(0).front());
  Block &inner = made->getRegion(0).front();
  Value combined = binary(nameOf(reducer, element), inner.getArgument(0), inner.getArgument(1));
  builder.create(OperationState(loc, "stablehlo.return", combined, TypeRange()));
  return made->getResult(0);
}

/// `start` for the dimension, zeros for others.
static SmallVector<Value> startsAt(PlainOps &ops, Value value, int64_t dim, Value start) {
  Value zero = hlo::ConstantOp::create(
      ops.builder, ops.loc,
      cast<ElementsAttr>(splatOf(0, cast<RankedTensorType>(start.getType()))));
  SmallVector<Value> starts(PlainOps::typeOf(value).getRank(), zero);
  starts[dim] = start;
  return starts;
}

Value PlainOps::dynamicSlice(Value value, int64_t dim, Value start, int64_t size) {
  Shape shape(typeOf(value).getShape());
  shape[dim] = size;
  SmallVector<Value> operands = startsAt(*this, value, dim, start);
  operands.insert(operands.begin(), value);
  return make("stablehlo.dynamic_slice", operands, typeOf(value).clone(shape),
              dims("slice_sizes", shape));
}

Value PlainOps::updateSlice(Value whole, Value part, int64_t dim, Value start) {
  SmallVector<Value> operands = startsAt(*this, whole, dim, start);
  operands.insert(operands.begin(), {whole, part});
  return make("stablehlo.dynamic_update_slice", operands, whole.getType());
}

/// The first `batching` dimensions of both sides are batches.
Value PlainOps::dot(Value lhs, Value rhs, int64_t batching, ArrayRef<int64_t> lhsContracting,
                    ArrayRef<int64_t> rhsContracting) {
  auto batches = llvm::to_vector(llvm::seq<int64_t>(0, batching));
  Shape shape(typeOf(lhs).getShape().take_front(batching));
  for (auto [value, contracting] : {std::pair(lhs, lhsContracting), {rhs, rhsContracting}})
    for (int64_t dim = batching; dim < typeOf(value).getRank(); ++dim)
      if (!llvm::is_contained(contracting, dim))
        shape.push_back(typeOf(value).getDimSize(dim));
  auto numbers = hlo::DotDimensionNumbersAttr::get(builder.getContext(), batches, batches,
                                                   lhsContracting, rhsContracting);
  return make("stablehlo.dot_general", {lhs, rhs}, typeOf(lhs).clone(shape),
              builder.getNamedAttr("dot_dimension_numbers", numbers));
}

Value PlainOps::compare(hlo::ComparisonDirection direction, Value lhs, Value rhs) {
  return make("stablehlo.compare", {lhs, rhs}, typeOf(lhs).clone(builder.getI1Type()),
              builder.getNamedAttr("comparison_direction", hlo::ComparisonDirectionAttr::get(
                                                               builder.getContext(), direction)));
}
