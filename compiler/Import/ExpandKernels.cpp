//===- ExpandKernels.cpp - kernels known by name, in plain ops ------------===//

#include "compiler/Import/ExpandKernels.h"
#include "compiler/Analysis/Calls/AttentionCall.h"
#include "compiler/Analysis/Calls/BlockScaledDot.h"
#include "compiler/Analysis/Calls/TransformerEngineCall.h"
#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/PlainOps.h"
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
using analysis::PlainOps;
using analysis::TransformerEngineCall;
namespace hlo = mlir::stablehlo;

namespace {

/// Attention in float32: softmax(scale * query * key^T + bias, where masks allow) * value
/// and its gradient (Dao et al., "FlashAttention", NeurIPS 2022, appendix B), with all
/// scores in memory. Values have dimensions [batch, key heads, query heads of each,
/// tokens, features], keys no query heads; rows without a key are zero. Packed sequences
/// are those of one example, or each example's own.
class ReferenceAttention : PlainOps {
public:
  explicit ReferenceAttention(AttentionCall call)
      : PlainOps(call.op), call(call), group(call.heads / call.keyHeads) {}

  void expand();

private:
  Value queries(int operand);
  Value keys(int operand);
  Value rowsOf(Value perRow) { return broadcast(perRow, scoreShape(), {0, 1, 2, 3}); }
  Shape scoreShape() const {
    return {call.batch, call.keyHeads, group, call.tokens, call.keyTokens};
  }
  /// Packed sequences. What is asked of them are numbers of float32.
  struct Packed {
    Value begin, length; // [sequences]
    Value isInside;      // [sequences, tokens]: one where a token is in the sequence.
    Value place;         // [tokens]: of a token in its sequence.
  };
  Packed packed(int lengths, int offsets, int64_t count, int64_t stride);
  void allowOwnSequences(Value &row, Value &column, llvm::function_ref<void(Value)> allow);
  Value placeOfStatistics();
  Value count(ArrayRef<int64_t> shape, int64_t dim) {
    return make("stablehlo.iota", ValueRange(), real(shape),
                builder.getNamedAttr("iota_dimension", builder.getI64IntegerAttr(dim)));
  }
  Value truth(Value value) { return convert(value, builder.getF32Type()); }
  Value given(int operand);
  Value lengths(int operand);
  Value scores();
  Value mask();
  void finish(unsigned result, Value value);
  void finishTensors(ArrayRef<Value> values);
  void forward();
  void backward();

  AttentionCall call;
  int64_t group;
};

} // namespace

/// An operand in float32; a query, key or value out of the tensor that holds several.
Value ReferenceAttention::given(int operand) {
  int64_t first = 3 - call.packed; // Of those in one tensor.
  if (operand > 2 || operand < first || call.packed == 1)
    return convert(call.op->getOperand(operand), builder.getF32Type());
  Value value = call.op->getOperand(static_cast<unsigned>(first));
  Shape shape(typeOf(value).getShape()), starts(shape.size(), 0), limits = shape;
  starts[2] = operand - first;
  limits[2] = starts[2] + 1;
  shape[2] = 1;
  value = make("stablehlo.slice", value, typeOf(value).clone(shape),
               {dims("start_indices", starts), dims("limit_indices", limits),
                dims("strides", Shape(shape.size(), 1))});
  shape.erase(shape.begin() + 2);
  return convert(reshape(value, shape), builder.getF32Type());
}

/// [batch]: numbers of tokens in float32.
Value ReferenceAttention::lengths(int operand) {
  Value value = truth(call.op->getOperand(operand));
  if (!call.isTransformerEngine || call.hasOwnLengths) // A list of one sequence, too.
    return typeOf(value).getRank() == 1 ? value : reshape(value, {call.batch});
  auto part = [&](int64_t start) {
    return make("stablehlo.slice", value, real({call.batch}),
                {dims("start_indices", {start}), dims("limit_indices", {start + call.batch}),
                 dims("strides", {1})});
  };
  Value ends = part(1);
  return binary("stablehlo.subtract", ends, part(0));
}

/// [batch, key heads, query heads of each, tokens, features]
Value ReferenceAttention::queries(int operand) {
  Value value = given(operand);
  if (!call.headsFirst)
    value = transpose(value, {0, 2, 1, 3});
  return reshape(value,
                 {call.batch, call.keyHeads, group, call.tokens, typeOf(value).getDimSize(3)});
}

/// [batch, heads, tokens, features]
Value ReferenceAttention::keys(int operand) {
  Value value = given(operand);
  return call.headsFirst ? value : transpose(value, {0, 2, 1, 3});
}

ReferenceAttention::Packed ReferenceAttention::packed(int lengths, int offsets, int64_t count,
                                                      int64_t stride) {
  auto listed = [&](int operand) {
    Value value = call.op->getOperand(operand);
    RankedTensorType type = typeOf(value);
    value = make("stablehlo.slice", value, type.clone({1, call.segments}),
                 {dims("start_indices", {0, 0}), dims("limit_indices", {1, call.segments}),
                  dims("strides", {1, 1})});
    return convert(reshape(value, {call.segments}), builder.getF32Type());
  };
  Packed made;
  made.length = listed(lengths);
  made.begin = listed(offsets);
  made.begin = binary("stablehlo.divide", made.begin,
                      splat(static_cast<double>(stride), typeOf(made.begin)));
  Shape shape{call.segments, count};
  Value begin = broadcast(made.begin, shape, {0}), token = this->count(shape, 1);
  Value place = binary("stablehlo.subtract", token, begin);
  using Direction = hlo::ComparisonDirection;
  made.isInside = truth(binary("stablehlo.and", compare(Direction::GE, token, begin),
                               compare(Direction::LT, place, broadcast(made.length, shape, {0}))));
  made.place =
      reduce(binary("stablehlo.multiply", made.isInside, place), {0}, analysis::Reducer::Sum);
  return made;
}

/// [sequences, places, tokens]: one where a query of the sequence has that place in it. The
/// statistics of packed sequences begin anew for each of them.
Value ReferenceAttention::placeOfStatistics() {
  Packed of = packed(call.queryLengths, call.queryOffsets, call.tokens, call.heads * call.features);
  Shape shape{call.segments, call.tokens, call.tokens};
  Value place = count(shape, 1), token = count(shape, 2);
  using Direction = hlo::ComparisonDirection;
  Value meets = compare(Direction::EQ, token,
                        binary("stablehlo.add", place, broadcast(of.begin, shape, {0})));
  return truth(binary("stablehlo.and", meets,
                      compare(Direction::LT, place, broadcast(of.length, shape, {0}))));
}

/// Sequences of each example: tokens see those of the same one, by their places in it.
void ReferenceAttention::allowOwnSequences(Value &row, Value &column,
                                           llvm::function_ref<void(Value)> allow) {
  using Direction = hlo::ComparisonDirection;
  auto of = [&](int lengths, int offsets, int64_t tokens) {
    Value length = truth(call.op->getOperand(lengths)), begin = truth(call.op->getOperand(offsets));
    Shape list{call.batch, call.segments}, shape{call.batch, call.segments, tokens};
    begin =
        make("stablehlo.slice", begin, real(list),
             {dims("start_indices", {0, 0}), dims("limit_indices", list), dims("strides", {1, 1})});
    Value place = binary("stablehlo.subtract", count(shape, 2), broadcast(begin, shape, {0, 1}));
    Value isInside =
        truth(binary("stablehlo.and", compare(Direction::GE, place, splat(0, real(shape))),
                     compare(Direction::LT, place, broadcast(length, shape, {0, 1}))));
    return std::pair(isInside, reduce(binary("stablehlo.multiply", isInside, place), {1},
                                      analysis::Reducer::Sum));
  };
  auto [isQuery, queryPlace] = of(call.queryLengths, call.queryOffsets, call.tokens);
  auto [isKey, keyPlace] = of(call.keyLengths, call.keyOffsets, call.keyTokens);
  Value shared = dot(isQuery, isKey, 1, {1}, {1});
  allow(
      broadcast(compare(Direction::GT, shared, splat(0, typeOf(shared))), scoreShape(), {0, 3, 4}));
  row = broadcast(queryPlace, scoreShape(), {0, 3});
  column = broadcast(keyPlace, scoreShape(), {0, 4});
}

/// Which keys a query sees, or nothing if all.
Value ReferenceAttention::mask() {
  Value row = count(scoreShape(), 3), column = count(scoreShape(), 4), seen;
  auto allow = [&](Value next) { seen = seen ? binary("stablehlo.and", seen, next) : next; };
  using Direction = hlo::ComparisonDirection;
  if (call.hasOwnSequences) {
    allowOwnSequences(row, column, allow);
  } else if (call.segments > 1) {
    Packed query =
        packed(call.queryLengths, call.queryOffsets, call.tokens, call.heads * call.features);
    Packed key =
        packed(call.keyLengths, call.keyOffsets, call.keyTokens, call.keyHeads * call.features);
    Value shared = dot(query.isInside, key.isInside, 0, {0}, {0});
    allow(
        broadcast(compare(Direction::GT, shared, splat(0, typeOf(shared))), scoreShape(), {3, 4}));
    row = broadcast(query.place, scoreShape(), {3});
    column = broadcast(key.place, scoreShape(), {4});
  }
  if (call.isCausal)
    allow(compare(Direction::GE, row, column));
  if (call.window > 0) {
    Value width = splat(static_cast<double>(call.window), real(scoreShape()));
    allow(compare(Direction::LT, row, binary("stablehlo.add", column, width)));
  }
  if (call.isPadded && call.segments == 1)
    for (auto [operand, place] : {std::pair(call.queryLengths, row), {call.keyLengths, column}})
      allow(compare(Direction::LT, place, broadcast(lengths(operand), scoreShape(), {0})));
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
    found = select(seen, found, nothing);
  }
  return found;
}

/// Takes the place of a result, which has the heads in one dimension.
void ReferenceAttention::finish(unsigned result, Value value) {
  auto wanted = typeOf(call.op->getResult(result));
  value = convert(reshape(value, wanted.getShape()), wanted.getElementType());
  call.op->getResult(result).replaceAllUsesWith(value);
}

/// Takes the place of the first results: values with [batch, .. heads, tokens, features].
void ReferenceAttention::finishTensors(ArrayRef<Value> values) {
  for (auto [index, value] : llvm::enumerate(values)) {
    if (!call.isTransformerEngine) {
      finish(static_cast<unsigned>(index), value);
      continue;
    }
    // Heads behind the tokens, and those of one tensor side by side.
    int64_t first = values.size() == 1 ? 0 : 3 - call.packed;
    auto turned = [&](Value value) {
      RankedTensorType type = typeOf(value);
      int64_t rank = type.getRank(), heads = 1;
      for (int64_t size : type.getShape().slice(1, rank - 3))
        heads *= size;
      Value merged =
          reshape(value, {call.batch, heads, type.getDimSize(rank - 2), type.getDimSize(rank - 1)});
      return transpose(merged, {0, 2, 1, 3});
    };
    if (static_cast<int64_t>(index) < first || call.packed == 1 || values.size() == 1) {
      finish(static_cast<unsigned>(index), turned(value));
      continue;
    }
    SmallVector<Value> parts;
    for (Value part : values.drop_front(first)) {
      part = turned(part);
      Shape shape(typeOf(part).getShape());
      shape.insert(shape.begin() + 2, 1);
      parts.push_back(reshape(part, shape));
    }
    Shape shape(typeOf(parts[0]).getShape());
    shape[2] = static_cast<int64_t>(parts.size());
    finish(static_cast<unsigned>(first),
           make("stablehlo.concatenate", parts, real(shape),
                builder.getNamedAttr("dimension", builder.getI64IntegerAttr(2))));
    break;
  }
}

void ReferenceAttention::forward() {
  Value found = scores();
  Value most = reduce(found, {4}, analysis::Reducer::Maximum); // [b, k, g, t]
  Value zero = splat(0, real(typeOf(most).getShape()));
  Value isEmpty =
      compare(hlo::ComparisonDirection::EQ, most,
              splat(-std::numeric_limits<double>::infinity(), real(typeOf(most).getShape())));
  most = select(isEmpty, zero, most);
  Value weights = unary("stablehlo.exponential", binary("stablehlo.subtract", found, rowsOf(most)));
  Value sums = reduce(weights, {4}, analysis::Reducer::Sum);
  Value safe = select(isEmpty, splat(1, real(typeOf(sums).getShape())), sums);
  Value shares = binary("stablehlo.divide", weights, rowsOf(safe));
  finishTensors(dot(shares, keys(2), 2, {4}, {2})); // [b, k, g, t, d]
  if (!call.isTransformerEngine && call.op->getNumResults() != 3)
    return;
  Value statistics = binary("stablehlo.add", most, unary("stablehlo.log", safe));
  if (call.isNumbered()) {
    statistics = reshape(statistics, {call.heads, call.tokens});
    statistics = transpose(dot(placeOfStatistics(), statistics, 0, {2}, {1}), {0, 2, 1});
  }
  finish(1, statistics);
}

void ReferenceAttention::backward() {
  Shape rows{call.batch, call.keyHeads, group, call.tokens};
  Value statistics = call.op->getOperand(call.statistics);
  if (call.isNumbered())
    statistics = transpose(dot(placeOfStatistics(), statistics, 0, {0, 1}, {0, 2}), {1, 0});
  statistics = reshape(statistics, rows);
  Value shares =
      unary("stablehlo.exponential", binary("stablehlo.subtract", scores(), rowsOf(statistics)));
  Value made = queries(call.outputGradient), output = queries(call.output);
  Value ofValue = dot(shares, made, 2, {2, 3}, {2, 3}); // [b, k, s, d]
  Value ofShares = dot(made, keys(2), 2, {4}, {3});     // [b, k, g, t, s]
  Value mean = reduce(binary("stablehlo.multiply", made, output), {4}, analysis::Reducer::Sum);
  Value ofScores =
      binary("stablehlo.multiply", shares, binary("stablehlo.subtract", ofShares, rowsOf(mean)));
  Value scaled = binary("stablehlo.multiply", ofScores, splat(call.scale, real(scoreShape())));
  Value ofQuery = dot(scaled, keys(1), 2, {4}, {2});
  Value ofKey = dot(scaled, queries(0), 2, {2, 3}, {2, 3});
  finishTensors({ofQuery, ofKey, ofValue});
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
  for (Value rest :
       op->getResults()) // The workspace, and a state of random bits that are not drawn.
    if (!rest.use_empty())
      rest.replaceAllUsesWith(splat(0, typeOf(rest)));
  op->erase();
}

namespace {

/// Norms, softmax, products, quantization and losses of Transformer Engine in float32. Rows are all
/// dimensions but the last.
class ReferenceCall : PlainOps {
public:
  explicit ReferenceCall(TransformerEngineCall call) : PlainOps(call.op), call(call) {
    wide = call.kind == TransformerEngineCall::Kind::NormBackward
               ? real(typeOf(call.input()).getShape())
               : real(typeOf(call.op->getOperand(0)).getShape());
    last = wide.getRank() - 1;
  }

  void expand();
  /// Whether there were any.
  bool writeSumsOfRows();

private:
  Value operand(unsigned index) {
    return convert(call.op->getOperand(index), builder.getF32Type());
  }
  Value sum(Value value) { return reduce(value, {last}, analysis::Reducer::Sum); }
  Value mean(Value value) {
    Value total = sum(value);
    return binary("stablehlo.divide", total,
                  splat(static_cast<double>(wide.getDimSize(last)), typeOf(total)));
  }
  Value ofRows(Value perRow) {
    return broadcast(perRow, wide.getShape(), llvm::to_vector(llvm::seq<int64_t>(0, last)));
  }
  Value times(Value lhs, Value rhs) { return binary("stablehlo.multiply", lhs, rhs); }
  Value minus(Value lhs, Value rhs) { return binary("stablehlo.subtract", lhs, rhs); }
  Value scaled(Value value) { return times(value, splat(call.scale, wide)); }
  Value weight() {
    Value gamma = convert(call.gamma(), builder.getF32Type());
    if (call.isZeroCentered)
      gamma = binary("stablehlo.add", gamma, splat(1, typeOf(gamma)));
    return broadcast(gamma, wide.getShape(), {last});
  }
  /// Of the backward call.
  Value normed() {
    Value x = operand(1);
    if (!call.isRootMeanSquare)
      x = minus(x, ofRows(operand(2)));
    return times(x, ofRows(operand(3)));
  }
  void finish(unsigned result, Value value) {
    auto wanted = typeOf(call.op->getResult(result));
    call.op->getResult(result).replaceAllUsesWith(convert(value, wanted.getElementType()));
  }
  void normForward();
  void normBackward();
  void weightGradients();
  void softmaxForward();
  void softmaxBackward();
  bool product();
  bool quantize();
  void quantizationSums();
  void auxLoss();
  void auxLossBackward();

  TransformerEngineCall call;
  RankedTensorType wide;
  int64_t last = 0;
};

} // namespace

void ReferenceCall::normForward() {
  Value x = operand(0), average;
  if (!call.isRootMeanSquare) {
    average = mean(x);
    x = minus(x, ofRows(average));
  }
  Value variance = mean(times(x, x));
  Value inverse = unary("stablehlo.rsqrt",
                        binary("stablehlo.add", variance, splat(call.epsilon, typeOf(variance))));
  Value made = times(times(x, ofRows(inverse)), weight());
  if (!call.isRootMeanSquare)
    made = binary("stablehlo.add", made,
                  broadcast(operand(call.op->getNumOperands() - 1), wide.getShape(), {last}));
  finish(0, made);
  if (average)
    finish(5, average);
  finish(6, inverse);
}

void ReferenceCall::normBackward() {
  weightGradients();
  Value made = times(operand(0), weight()), x = normed();
  Value rest = minus(made, times(x, ofRows(mean(times(made, x)))));
  if (!call.isRootMeanSquare)
    rest = minus(rest, ofRows(mean(made)));
  finish(0, times(rest, ofRows(operand(3))));
}

void ReferenceCall::weightGradients() {
  SmallVector<int64_t> rows = llvm::to_vector(llvm::seq<int64_t>(0, last));
  auto over = [&](Value value) { return reduce(value, rows, analysis::Reducer::Sum); };
  if (!call.op->getResult(1).use_empty())
    finish(1, over(times(operand(0), normed())));
  if (!call.isRootMeanSquare && !call.op->getResult(2).use_empty())
    finish(2, over(operand(0)));
}

void ReferenceCall::softmaxForward() {
  Value x = operand(0);
  RankedTensorType places = wide.clone(builder.getI32Type());
  Value hidden;
  if (call.mask == TransformerEngineCall::Mask::Causal) {
    auto count = [&](int64_t dim) {
      return make("stablehlo.iota", ValueRange(), places,
                  builder.getNamedAttr("iota_dimension", builder.getI64IntegerAttr(dim)));
    };
    hidden = compare(hlo::ComparisonDirection::GT, count(last), count(last - 1));
  } else if (call.mask == TransformerEngineCall::Mask::Given) {
    Value mask = broadcast(convert(call.op->getOperand(1), builder.getI32Type()), wide.getShape(),
                           {0, 1, 2, 3});
    hidden = compare(hlo::ComparisonDirection::NE, mask, splat(0, places));
  }
  if (hidden) {
    Value far = binary("stablehlo.add", x, splat(-1e10, wide));
    x = select(hidden, far, x);
  }
  x = scaled(x);
  Value most = reduce(x, {last}, analysis::Reducer::Maximum);
  Value shares = unary("stablehlo.exponential", minus(x, ofRows(most)));
  finish(0, binary("stablehlo.divide", shares, ofRows(sum(shares))));
}

void ReferenceCall::softmaxBackward() {
  Value made = operand(0), output = operand(1);
  Value rest = minus(made, ofRows(sum(times(made, output))));
  finish(0, scaled(times(output, rest)));
}

/// False with GELU, of which the sources do not say which formula cuBLAS has.
bool ReferenceCall::product() {
  if (call.hasGelu)
    return false;
  Value made = dot(operand(0), operand(2), 0, call.lhsContracting(), call.rhsContracting());
  if (call.scaling != TransformerEngineCall::NoScaling) {
    Value scales = times(reshape(operand(1), {}), reshape(operand(3), {}));
    made = times(made, broadcast(scales, typeOf(made).getShape(), {}));
  }
  if (call.hasBias) {
    RankedTensorType type = typeOf(made);
    int64_t rank = typeOf(call.bias()).getRank();
    auto dims = llvm::to_vector(llvm::seq<int64_t>(type.getRank() - rank, type.getRank()));
    made = binary("stablehlo.add", made, broadcast(operand(4), type.getShape(), dims));
  }
  finish(0, made);
  return true;
}

/// With one scale: a number too large becomes the largest of its type. False with scales of
/// blocks.
bool ReferenceCall::quantize() {
  quantizationSums();
  if (call.scaling == TransformerEngineCall::Blocks)
    return false;
  Value made = times(operand(0), broadcast(reshape(operand(1), {}), wide.getShape(), {}));
  bool hasRows = typeOf(call.op->getResult(0)).getNumElements() > 1;
  auto type = cast<FloatType>(typeOf(call.op->getResult(hasRows ? 0 : 1)).getElementType());
  double most = APFloat::getLargest(type.getFloatSemantics()).convertToDouble();
  made = binary("stablehlo.minimum", made, splat(most, wide));
  made = binary("stablehlo.maximum", made, splat(-most, wide));
  if (hasRows)
    finish(0, made);
  if (typeOf(call.op->getResult(1)).getNumElements() <= 1)
    return true;
  SmallVector<int64_t> order = llvm::to_vector(llvm::seq(call.flattenAxis, wide.getRank()));
  llvm::append_range(order, llvm::seq<int64_t>(0, call.flattenAxis));
  finish(1, transpose(made, order));
  return true;
}

/// The inverse of the scale, the largest magnitude, at least that of before, and the sum of rows.
void ReferenceCall::quantizationSums() {
  bool hasOneScale = call.scaling != TransformerEngineCall::Blocks;
  auto results = call.op->getResults();
  if (hasOneScale && !results[2].use_empty()) {
    Value scale = reshape(operand(1), typeOf(results[2]).getShape());
    finish(2, binary("stablehlo.divide", splat(1, typeOf(scale)), scale));
  }
  // Of the current scale, the form of two operands does not say what it is.
  bool hasBefore = call.op->getNumOperands() > 2;
  bool isLargest = call.scaling == TransformerEngineCall::Delayed ||
                   (call.scaling == TransformerEngineCall::Current && hasBefore);
  if (isLargest && !results[4].use_empty()) {
    Value most =
        reduce(unary("stablehlo.abs", operand(0)),
               llvm::to_vector(llvm::seq<int64_t>(0, wide.getRank())), analysis::Reducer::Maximum);
    most = reshape(most, typeOf(results[4]).getShape());
    if (hasBefore)
      most = binary("stablehlo.maximum", most, operand(2));
    finish(4, most);
  }
  if (!results[5].use_empty())
    finish(5, reduce(operand(0), llvm::to_vector(llvm::seq<int64_t>(0, call.flattenAxis)),
                     analysis::Reducer::Sum));
}

/// factor * sum over experts of (sum of their probabilities) * (their tokens).
void ReferenceCall::auxLoss() {
  Value sums = reduce(operand(0), {0}, analysis::Reducer::Sum);
  Value loss = reduce(times(sums, operand(1)), {0}, analysis::Reducer::Sum);
  loss = times(loss, splat(call.factor, typeOf(loss)));
  finish(0, reshape(loss, typeOf(call.op->getResult(0)).getShape()));
  finish(1, splat(call.factor, real(typeOf(call.op->getResult(1)).getShape())));
}

void ReferenceCall::auxLossBackward() {
  RankedTensorType type = typeOf(call.op->getResult(0));
  Value factor =
      make("stablehlo.slice", operand(0), real({1}),
           {dims("start_indices", {0}), dims("limit_indices", {1}), dims("strides", {1})});
  Value scale = times(reshape(factor, {}), reshape(operand(2), {}));
  Value tokens = operand(1);
  Value row = times(tokens, broadcast(scale, typeOf(tokens).getShape(), {}));
  finish(0, broadcast(row, type.getShape(), {1}));
}

void ReferenceCall::expand() {
  using Kind = TransformerEngineCall::Kind;
  switch (call.kind) {
  case Kind::NormForward:
    normForward();
    break;
  case Kind::NormBackward:
    normBackward();
    break;
  case Kind::SoftmaxForward:
    softmaxForward();
    break;
  case Kind::SoftmaxBackward:
    softmaxBackward();
    break;
  case Kind::Product:
    if (!product())
      return;
    break;
  case Kind::Quantize:
    if (!quantize())
      return;
    break;
  case Kind::AuxLoss:
    auxLoss();
    break;
  case Kind::AuxLossBackward:
    auxLossBackward();
    break;
  case Kind::Activation: // What the numbers of activations mean changed with versions.
  case Kind::ActivationBackward:
  case Kind::Router: // And so did scores.
    return;
  }
  for (Value result : call.op->getResults())
    if (!result.use_empty())
      return;
  call.op->erase();
}

bool ReferenceCall::writeSumsOfRows() {
  auto isUsed = [&](unsigned result) { return !call.op->getResult(result).use_empty(); };
  switch (call.kind) {
  case TransformerEngineCall::Kind::NormBackward:
    if (!isUsed(1) && !isUsed(2))
      return false;
    weightGradients();
    return true;
  case TransformerEngineCall::Kind::Quantize: {
    bool hasSome = llvm::any_of(llvm::seq(2u, 6u), isUsed);
    if (hasSome)
      quantizationSums();
    return hasSome;
  }
  case TransformerEngineCall::Kind::AuxLoss:
  case TransformerEngineCall::Kind::AuxLossBackward:
    expand();
    return true;
  default:
    return false;
  }
}

unsigned importer::writeSumsOfRows(Operation *function) {
  SmallVector<TransformerEngineCall> calls;
  function->walk([&](hlo::CustomCallOp op) {
    if (std::optional<TransformerEngineCall> call = TransformerEngineCall::read(op))
      calls.push_back(*call);
  });
  return static_cast<unsigned>(llvm::count_if(
      calls, [](TransformerEngineCall &call) { return ReferenceCall(call).writeSumsOfRows(); }));
}

namespace {

/// Numbers times the scales of their blocks, and their product, in float32.
class ReferenceDot : PlainOps {
public:
  explicit ReferenceDot(analysis::BlockScaledDot call) : PlainOps(call.op), call(call) {}

  void expand() {
    Value out = call.op->getResult(0);
    Value product = dot(scaled(0), scaled(1), 1, {2}, {2});
    out.replaceAllUsesWith(convert(product, typeOf(out).getElementType()));
    call.op->erase();
  }

private:
  Value scaled(unsigned side) {
    Value numbers = convert(call.op->getOperand(side), builder.getF32Type());
    Value scales = convert(call.op->getOperand(side + 2), builder.getF32Type());
    Shape shape(typeOf(numbers).getShape());
    Shape blocks{shape[0], shape[1], call.blocks, shape[2] / call.blocks};
    Value made = binary("stablehlo.multiply", reshape(numbers, blocks),
                        broadcast(scales, blocks, {0, 1, 2}));
    return reshape(made, shape);
  }

  analysis::BlockScaledDot call;
};

struct ExpandKernels : public importer::impl::AlpaExpandKernelsBase<ExpandKernels> {
  void runOnOperation() override {
    SmallVector<hlo::CustomCallOp> calls;
    getOperation().walk([&](hlo::CustomCallOp op) { calls.push_back(op); });
    for (hlo::CustomCallOp op : calls) {
      if (std::optional<TransformerEngineCall> rows = TransformerEngineCall::read(op)) {
        ReferenceCall(*rows).expand();
        ++numExpanded;
        continue;
      }
      if (std::optional<analysis::BlockScaledDot> blocks = analysis::BlockScaledDot::read(op)) {
        ReferenceDot(*blocks).expand();
        ++numExpanded;
        continue;
      }
      std::optional<AttentionCall> call = AttentionCall::read(op);
      if (!call)
        continue;
      if (call->dropout > 0 || !call->hasPlainForm || (call->isNumbered() && call->batch > 1)) {
        withCode(op.emitError("fused attention with ")
                     << (call->dropout > 0     ? "dropout"
                         : !call->hasPlainForm ? "this mask, bias or kind of statistics"
                                               : "packed sequences of several examples")
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
