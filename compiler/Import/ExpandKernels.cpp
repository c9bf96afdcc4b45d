//===- ExpandKernels.cpp - kernels known by name, in plain ops ------------===//

#include "compiler/Analysis/AttentionCall.h"
#include "compiler/Analysis/PartSizes.h"
#include "compiler/Import/Passes.h"
#include "dialects/Common/Diagnostics.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"

namespace alpa::importer {
#define GEN_PASS_DEF_ALPAEXPANDKERNELS
#include "compiler/Import/Passes.h.inc"
} // namespace alpa::importer

using namespace alpa;
using namespace mlir;
using analysis::AttentionCall;
namespace hlo = mlir::stablehlo;

namespace {

/// Attention in float32: softmax(scale * query * key^T + bias, where masks allow) * value
/// and its gradient (Dao et al., "FlashAttention", NeurIPS 2022, appendix B), with all
/// scores in memory. Values have dimensions [batch, key heads, query heads of each,
/// tokens, features], keys no query heads; rows without a key are zero.
class ReferenceAttention {
public:
  explicit ReferenceAttention(AttentionCall call)
      : call(call), builder(call.op), loc(call.op.getLoc()), group(call.heads / call.keyHeads) {}

  void expand();

private:
  using Shape = SmallVector<int64_t>;

  static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }
  RankedTensorType real(ArrayRef<int64_t> shape) {
    return RankedTensorType::get(shape, builder.getF32Type());
  }
  Value make(StringRef name, ValueRange operands, Type type,
             ArrayRef<NamedAttribute> attributes = {}) {
    OperationState state(loc, name, operands, type, attributes);
    return builder.create(state)->getResult(0);
  }
  NamedAttribute dims(StringRef name, ArrayRef<int64_t> values) {
    return builder.getNamedAttr(name, builder.getDenseI64ArrayAttr(values));
  }
  Value binary(StringRef name, Value lhs, Value rhs) {
    return make(name, {lhs, rhs}, lhs.getType());
  }
  Value unary(StringRef name, Value value) { return make(name, value, value.getType()); }
  Value convert(Value value, Type element) {
    return typeOf(value).getElementType() == element
               ? value
               : make("stablehlo.convert", value, typeOf(value).clone(element));
  }
  Value transpose(Value value, ArrayRef<int64_t> order) {
    Shape shape;
    for (int64_t dim : order)
      shape.push_back(typeOf(value).getDimSize(dim));
    return make("stablehlo.transpose", value, typeOf(value).clone(shape),
                dims("permutation", order));
  }
  Value reshape(Value value, ArrayRef<int64_t> shape) {
    return make("stablehlo.reshape", value, typeOf(value).clone(shape));
  }
  Value broadcast(Value value, ArrayRef<int64_t> shape, ArrayRef<int64_t> where) {
    return make("stablehlo.broadcast_in_dim", value, typeOf(value).clone(shape),
                dims("broadcast_dimensions", where));
  }
  Value splat(double number, RankedTensorType type) {
    return hlo::ConstantOp::create(
        builder, loc,
        DenseElementsAttr::get(type, builder.getFloatAttr(type.getElementType(), number)));
  }
  Value reduce(Value value, ArrayRef<int64_t> over, analysis::Reducer reducer);
  Value dot(Value lhs, Value rhs, int64_t batching, ArrayRef<int64_t> lhsContracting,
            ArrayRef<int64_t> rhsContracting);

  Value queries(int operand);
  Value keys(int operand);
  Value rowsOf(Value perRow) { return broadcast(perRow, scoreShape(), {0, 1, 2, 3}); }
  Shape scoreShape() const {
    return {call.batch, call.keyHeads, group, call.tokens, call.keyTokens};
  }
  Value scores();
  Value mask();
  Value compare(hlo::ComparisonDirection direction, Value lhs, Value rhs);
  void finish(unsigned result, Value value);
  void forward();
  void backward();

  AttentionCall call;
  OpBuilder builder;
  Location loc;
  int64_t group;
};

} // namespace

Value ReferenceAttention::reduce(Value value, ArrayRef<int64_t> over, analysis::Reducer reducer) {
  Shape shape;
  for (auto [dim, size] : llvm::enumerate(typeOf(value).getShape()))
    if (!llvm::is_contained(over, static_cast<int64_t>(dim)))
      shape.push_back(size);
  Type element = typeOf(value).getElementType();
  Value initial = hlo::ConstantOp::create(builder, loc, analysis::neutralOf(reducer, element));
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
  Value combined =
      binary(analysis::nameOf(reducer, element), inner.getArgument(0), inner.getArgument(1));
  builder.create(OperationState(loc, "stablehlo.return", combined, TypeRange()));
  return made->getResult(0);
}

/// The first `batching` dimensions of both sides are batches.
Value ReferenceAttention::dot(Value lhs, Value rhs, int64_t batching,
                              ArrayRef<int64_t> lhsContracting, ArrayRef<int64_t> rhsContracting) {
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

/// [batch, key heads, query heads of each, tokens, features]
Value ReferenceAttention::queries(int operand) {
  Value value = convert(call.op->getOperand(operand), builder.getF32Type());
  if (!call.headsFirst)
    value = transpose(value, {0, 2, 1, 3});
  return reshape(value,
                 {call.batch, call.keyHeads, group, call.tokens, typeOf(value).getDimSize(3)});
}

/// [batch, heads, tokens, features]
Value ReferenceAttention::keys(int operand) {
  Value value = convert(call.op->getOperand(operand), builder.getF32Type());
  return call.headsFirst ? value : transpose(value, {0, 2, 1, 3});
}

Value ReferenceAttention::compare(hlo::ComparisonDirection direction, Value lhs, Value rhs) {
  return make("stablehlo.compare", {lhs, rhs}, typeOf(lhs).clone(builder.getI1Type()),
              builder.getNamedAttr("comparison_direction", hlo::ComparisonDirectionAttr::get(
                                                               builder.getContext(), direction)));
}

/// Which keys a query sees, or nothing if all.
Value ReferenceAttention::mask() {
  auto places = RankedTensorType::get(scoreShape(), builder.getI32Type());
  auto count = [&](int64_t dim) {
    return make("stablehlo.iota", ValueRange(), places,
                builder.getNamedAttr("iota_dimension", builder.getI64IntegerAttr(dim)));
  };
  Value row = count(3), column = count(4), seen;
  auto allow = [&](Value next) { seen = seen ? binary("stablehlo.and", seen, next) : next; };
  using Direction = hlo::ComparisonDirection;
  if (call.isCausal)
    allow(compare(Direction::GE, row, column));
  if (call.window > 0) {
    Value width = hlo::ConstantOp::create(builder, loc, analysis::splatOf(call.window, places));
    allow(compare(Direction::LT, row, binary("stablehlo.add", column, width)));
  }
  if (call.queryLengths >= 0)
    for (auto [operand, place] : {std::pair(call.queryLengths, row), {call.keyLengths, column}})
      allow(compare(Direction::LT, place,
                    broadcast(convert(call.op->getOperand(operand), builder.getI32Type()),
                              scoreShape(), {0})));
  return seen;
}

/// Where a query does not see a key, minus infinity.
Value ReferenceAttention::scores() {
  Value products = dot(queries(0), keys(1), 2, {4}, {3}); // [b, k, g, t, s]
  Value found = binary("stablehlo.multiply", products, splat(call.scale, real(scoreShape())));
  if (call.bias >= 0) {
    Value bias = convert(call.op->getOperand(call.bias), builder.getF32Type());
    Shape spread{call.batch, call.heads, call.tokens, call.keyTokens};
    SmallVector<int64_t> where{0, 1, 2, 3};
    bias = reshape(broadcast(bias, spread, where), scoreShape());
    found = binary("stablehlo.add", found, bias);
  }
  if (Value seen = mask()) {
    Value nothing = splat(-std::numeric_limits<double>::infinity(), real(scoreShape()));
    found = make("stablehlo.select", {seen, found, nothing}, found.getType());
  }
  return found;
}

/// Takes the place of a result, which has the heads in one dimension.
void ReferenceAttention::finish(unsigned result, Value value) {
  auto wanted = typeOf(call.op->getResult(result));
  value = convert(reshape(value, wanted.getShape()), wanted.getElementType());
  call.op->getResult(result).replaceAllUsesWith(value);
}

void ReferenceAttention::forward() {
  Value found = scores();
  Value most = reduce(found, {4}, analysis::Reducer::Maximum); // [b, k, g, t]
  Value zero = splat(0, real(typeOf(most).getShape()));
  Value isEmpty =
      compare(hlo::ComparisonDirection::EQ, most,
              splat(-std::numeric_limits<double>::infinity(), real(typeOf(most).getShape())));
  most = make("stablehlo.select", {isEmpty, zero, most}, most.getType());
  Value weights = unary("stablehlo.exponential", binary("stablehlo.subtract", found, rowsOf(most)));
  Value sums = reduce(weights, {4}, analysis::Reducer::Sum);
  Value safe = make("stablehlo.select", {isEmpty, splat(1, real(typeOf(sums).getShape())), sums},
                    sums.getType());
  Value shares = binary("stablehlo.divide", weights, rowsOf(safe));
  finish(0, dot(shares, keys(2), 2, {4}, {2})); // [b, k, g, t, d]
  if (call.op->getNumResults() == 3)
    finish(1, binary("stablehlo.add", most, unary("stablehlo.log", safe)));
}

void ReferenceAttention::backward() {
  Shape rows{call.batch, call.keyHeads, group, call.tokens};
  Value statistics = reshape(call.op->getOperand(call.statistics), rows);
  Value shares =
      unary("stablehlo.exponential", binary("stablehlo.subtract", scores(), rowsOf(statistics)));
  Value made = queries(call.outputGradient), output = queries(call.output);
  Value ofValue = dot(shares, made, 2, {2, 3}, {2, 3}); // [b, k, s, d]
  Value ofShares = dot(made, keys(2), 2, {4}, {3});     // [b, k, g, t, s]
  Value mean = reduce(binary("stablehlo.multiply", made, output), {4}, analysis::Reducer::Sum);
  Value ofScores =
      binary("stablehlo.multiply", shares, binary("stablehlo.subtract", ofShares, rowsOf(mean)));
  Value scaled = binary("stablehlo.multiply", ofScores, splat(call.scale, real(scoreShape())));
  finish(0, dot(scaled, keys(1), 2, {4}, {2}));
  finish(1, dot(scaled, queries(0), 2, {2, 3}, {2, 3}));
  finish(2, ofValue);
  if (call.biasGradient < 0)
    return;
  Shape whole{call.batch, call.heads, call.tokens, call.keyTokens};
  ArrayRef<int64_t> wanted = typeOf(call.op->getResult(call.biasGradient)).getShape();
  SmallVector<int64_t> over;
  for (int64_t dim : {0, 1})
    if (wanted[dim] != whole[dim])
      over.push_back(dim);
  Value ofBias = reshape(ofScores, whole);
  finish(call.biasGradient, over.empty() ? ofBias : reduce(ofBias, over, analysis::Reducer::Sum));
}

void ReferenceAttention::expand() {
  call.isBackward ? backward() : forward();
  Operation *op = call.op;
  unsigned last = op->getNumResults() - 1; // The workspace.
  if (!op->getResult(last).use_empty())
    op->getResult(last).replaceAllUsesWith(
        hlo::ConstantOp::create(builder, loc, analysis::splatOf(0, typeOf(op->getResult(last)))));
  op->erase();
}

namespace {

struct ExpandKernels : public importer::impl::AlpaExpandKernelsBase<ExpandKernels> {
  void runOnOperation() override {
    SmallVector<hlo::CustomCallOp> calls;
    getOperation().walk([&](hlo::CustomCallOp op) { calls.push_back(op); });
    for (hlo::CustomCallOp op : calls) {
      std::optional<AttentionCall> call = AttentionCall::read(op);
      if (!call)
        continue;
      if (call->dropout > 0 || call->segments > 1) {
        withCode(op.emitError("fused attention with ")
                     << (call->dropout > 0 ? "dropout" : "packed sequences")
                     << " has no form in plain ops; plan for a platform that has the kernel",
                 ErrorCode::UnsupportedOp);
        return signalPassFailure();
      }
      ReferenceAttention(*call).expand();
      ++numExpanded;
    }
  }
};

} // namespace
