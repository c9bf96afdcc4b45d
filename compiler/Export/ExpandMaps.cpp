//===- ExpandMaps.cpp - kernels, called as they were written --------------===//

#include "compiler/Analysis/Calls/AttentionCall.h"
#include "compiler/Analysis/PlainOps.h"
#include "compiler/Export/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"

namespace alpa::exporter {
#define GEN_PASS_DEF_ALPAEXPANDMAPS
#include "compiler/Export/Passes.h.inc"
} // namespace alpa::exporter

using namespace mlir;
using namespace alpa;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

namespace {

class MapExpander {
public:
  explicit MapExpander(MapOp map) : map(map), builder(map), loc(map.getLoc()) {}

  void run();

private:
  Value reshaped(Value value, RankedTensorType type) {
    if (value.getType() == type)
      return value;
    return builder.create(OperationState(loc, "stablehlo.reshape", value, type))->getResult(0);
  }
  Value blockOf(unsigned operand, ArrayRef<int64_t> place);

  MapOp map;
  OpBuilder builder;
  Location loc;
};

} // namespace

/// What the body takes at a place of the levels.
Value MapExpander::blockOf(unsigned operand, ArrayRef<int64_t> place) {
  Value whole = map.getOperand(operand);
  SmallVector<int64_t> shape(typeOf(whole).getShape()), starts(shape.size(), 0), limits(shape);
  for (auto [dim, level] : llvm::enumerate(map.levelsOf(operand))) {
    starts[dim] = place[level];
    limits[dim] = place[level] + 1;
    shape[dim] = 1;
  }
  RankedTensorType part = typeOf(whole).clone(shape);
  if (whole.getType() != part)
    whole = builder
                .create(OperationState(
                    loc, "stablehlo.slice", whole, part,
                    {builder.getNamedAttr("start_indices", builder.getDenseI64ArrayAttr(starts)),
                     builder.getNamedAttr("limit_indices", builder.getDenseI64ArrayAttr(limits)),
                     builder.getNamedAttr("strides", builder.getDenseI64ArrayAttr(
                                                         SmallVector<int64_t>(shape.size(), 1)))}))
                ->getResult(0);
  return reshaped(whole, cast<RankedTensorType>(map.getBody().getArgument(operand).getType()));
}

void MapExpander::run() {
  ArrayRef<int64_t> sizes = map.levelSizes();
  Block &body = map.getBody().front();
  SmallVector<SmallVector<Value>> made(map.getNumResults());
  int64_t count = 1;
  for (int64_t size : sizes)
    count *= size;
  for (int64_t index = 0; index < count; ++index) {
    SmallVector<int64_t> place(sizes.size());
    int64_t rest = index;
    for (size_t level = sizes.size(); level-- > 0; rest /= sizes[level])
      place[level] = rest % sizes[level];
    IRMapping mapping;
    for (BlockArgument argument : body.getArguments())
      mapping.map(argument, blockOf(argument.getArgNumber(), place));
    for (Operation &op : body.without_terminator())
      builder.clone(op, mapping);
    for (auto [list, value] : llvm::zip_equal(made, body.getTerminator()->getOperands()))
      list.push_back(mapping.lookup(value));
  }
  for (auto [result, blocks] : llvm::zip_equal(map.getResults(), made)) {
    RankedTensorType type = typeOf(result);
    ArrayRef<int64_t> ofBlock = type.getShape().drop_front(sizes.size());
    SmallVector<int64_t> one{1}, all{count};
    llvm::append_range(one, ofBlock);
    llvm::append_range(all, ofBlock);
    if (count != 1) {
      for (Value &block : blocks)
        block = reshaped(block, type.clone(one));
      OperationState state(loc, "stablehlo.concatenate", blocks, type.clone(all));
      state.addAttribute("dimension", builder.getI64IntegerAttr(0));
      blocks = {builder.create(state)->getResult(0)};
    }
    result.replaceAllUsesWith(reshaped(blocks[0], type));
  }
  map.erase();
}

namespace {

/// Calls cuDNN for each example with packed sequences of its own: one call numbers the sequences of
/// all its examples.
class SequenceExpander : analysis::PlainOps {
public:
  explicit SequenceExpander(const analysis::AttentionCall &call)
      : PlainOps(call.op), call(call), held(stablehlo::CustomCallOp(call.op)) {}

  void run();

private:
  using Direction = stablehlo::ComparisonDirection;
  struct List {
    Value lengths, begins; // [sequences], those that there are in front; in tokens.
  };

  RankedTensorType whole(ArrayRef<int64_t> shape) {
    return RankedTensorType::get(shape, builder.getI32Type());
  }
  Value number(int64_t value, ArrayRef<int64_t> shape) { return splat(value, whole(shape)); }
  Value sum(Value isCounted, Value value, int64_t over) {
    Value zeros = number(0, typeOf(value).getShape());
    Value counted = select(isCounted, value, zeros);
    return reduce(counted, {over}, analysis::Reducer::Sum);
  }
  Value slice(Value value, int64_t start, int64_t size);
  List listOf(int lengths, int offsets, int64_t tokens, int64_t example);
  Value isInside(const List &list, int64_t tokens);
  Value ofTokens(Value statistics, const List &list);
  Value ofSequences(Value statistics, const List &list);
  Value offsets(const List &list, int64_t tokens, int64_t stride);
  Value gather(Value value, Value indices, ArrayRef<int64_t> taken, ArrayRef<int64_t> sizes,
               RankedTensorType type);
  SmallVector<Value> callExample(int64_t example);

  analysis::AttentionCall call;
  Operation *held;
};

} // namespace

/// Of the first dimension.
Value SequenceExpander::slice(Value value, int64_t start, int64_t size) {
  SmallVector<int64_t> shape(typeOf(value).getShape()), starts(shape.size(), 0), limits(shape);
  starts[0] = start;
  limits[0] = start + size;
  shape[0] = size;
  return make("stablehlo.slice", value, typeOf(value).clone(shape),
              {dims("start_indices", starts), dims("limit_indices", limits),
               dims("strides", SmallVector<int64_t>(shape.size(), 1))});
}

SequenceExpander::List SequenceExpander::listOf(int lengths, int offsets, int64_t tokens,
                                                int64_t example) {
  int64_t count = call.segments;
  auto given = [&](int operand) {
    Value value = slice(held->getOperand(operand), example, 1);
    int64_t size = typeOf(value).getDimSize(1);
    value = convert(reshape(value, {size}), builder.getI32Type());
    return size == count ? value : slice(value, 0, count);
  };
  Value length = given(lengths), begin = given(offsets);
  Value isThere = compare(Direction::GT, length, number(0, {count}));
  Shape square{count, count};
  Value row = iota(whole(square), 0), column = iota(whole(square), 1);
  Value isBefore =
      binary("stablehlo.and", compare(Direction::LT, column, row), broadcast(isThere, square, {1}));
  Value place = sum(isBefore, number(1, square), 1);
  Value moves = binary("stablehlo.and", compare(Direction::EQ, broadcast(place, square, {1}), row),
                       broadcast(isThere, square, {1}));
  auto moved = [&](Value value) { return sum(moves, broadcast(value, square, {1}), 1); };
  Value lengthsInFront = moved(length);
  Value isLast = compare(Direction::EQ, lengthsInFront, number(0, {count}));
  Value begins = select(isLast, number(tokens, {count}), moved(begin));
  return {lengthsInFront, begins};
}

/// [sequences, tokens]
Value SequenceExpander::isInside(const List &list, int64_t tokens) {
  Shape shape{call.segments, tokens};
  Value place =
      binary("stablehlo.subtract", iota(whole(shape), 1), broadcast(list.begins, shape, {0}));
  return binary("stablehlo.and", compare(Direction::GE, place, number(0, shape)),
                compare(Direction::LT, place, broadcast(list.lengths, shape, {0})));
}

Value SequenceExpander::gather(Value value, Value indices, ArrayRef<int64_t> taken,
                               ArrayRef<int64_t> sizes, RankedTensorType type) {
  auto numbers = stablehlo::GatherDimensionNumbersAttr::get(
      builder.getContext(), {1}, taken, {}, {}, taken, typeOf(indices).getRank() - 1);
  return make("stablehlo.gather", {value, indices}, type,
              {builder.getNamedAttr("dimension_numbers", numbers), dims("slice_sizes", sizes)});
}

/// [sequences, heads, tokens] to [1, heads, tokens], zeros outside of sequences.
Value SequenceExpander::ofTokens(Value statistics, const List &list) {
  int64_t tokens = call.tokens, heads = call.heads;
  Value inside = isInside(list, tokens);
  Shape shape{call.segments, tokens}, column{tokens, 1};
  Value sequence = sum(inside, iota(whole(shape), 0), 0);
  Value begin = sum(inside, broadcast(list.begins, shape, {0}), 0);
  Value isSome = compare(Direction::GT, sum(inside, number(1, shape), 0), number(0, {tokens}));
  Value place = binary("stablehlo.subtract", iota(whole({tokens}), 0), begin);
  Value indices =
      make("stablehlo.concatenate", {reshape(sequence, column), reshape(place, column)},
           whole({tokens, 2}), builder.getNamedAttr("dimension", builder.getI64IntegerAttr(1)));
  RankedTensorType type = typeOf(statistics);
  Value found = gather(statistics, indices, {0, 2}, {1, heads, 1}, type.clone({tokens, heads}));
  found = transpose(found, {1, 0});
  Value kept = broadcast(isSome, {heads, tokens}, {1});
  found = select(kept, found, splat(0, typeOf(found)));
  return reshape(found, {1, heads, tokens});
}

/// [1, heads, tokens] to [sequences, heads, tokens]; what is behind a sequence nobody reads.
Value SequenceExpander::ofSequences(Value statistics, const List &list) {
  int64_t tokens = call.tokens, heads = call.heads;
  Shape shape{call.segments, tokens};
  Value token = binary("stablehlo.add", iota(whole(shape), 1), broadcast(list.begins, shape, {0}));
  token = binary("stablehlo.minimum", token, number(tokens - 1, shape));
  RankedTensorType type = typeOf(statistics);
  return gather(reshape(statistics, {heads, tokens}), reshape(token, {call.segments, tokens, 1}),
                {1}, {heads, 1}, type.clone({call.segments, heads, tokens}));
}

/// [1, sequences + 1], in elements of an operand.
Value SequenceExpander::offsets(const List &list, int64_t tokens, int64_t stride) {
  Value all =
      make("stablehlo.concatenate", {list.begins, number(tokens, {1})}, whole({call.segments + 1}),
           builder.getNamedAttr("dimension", builder.getI64IntegerAttr(0)));
  all = binary("stablehlo.multiply", all, number(stride, {call.segments + 1}));
  return reshape(all, {1, call.segments + 1});
}

SmallVector<Value> SequenceExpander::callExample(int64_t example) {
  List ofQueries = listOf(call.queryLengths, call.queryOffsets, call.tokens, example);
  List ofKeys = listOf(call.keyLengths, call.keyOffsets, call.keyTokens, example);
  SmallVector<Value> operands;
  for (auto [index, operand] : llvm::enumerate(held->getOperands())) {
    auto number = static_cast<int>(index);
    bool isShared = number == call.bias && typeOf(operand).getDimSize(0) != call.batch;
    operands.push_back(isShared ? operand : slice(operand, example, 1));
  }
  if (call.statistics >= 0)
    operands[call.statistics] = ofSequences(operands[call.statistics], ofQueries);
  operands[call.queryLengths] = reshape(ofQueries.lengths, {1, call.segments});
  operands[call.keyLengths] = reshape(ofKeys.lengths, {1, call.segments});
  operands[call.queryOffsets] = offsets(ofQueries, call.tokens, call.heads * call.features);
  operands[call.keyOffsets] = offsets(ofKeys, call.keyTokens, call.keyHeads * call.features);
  auto made = cast<stablehlo::CustomCallOp>(builder.clone(*held));
  Operation *op = made;
  op->setOperands(operands);
  analysis::AttentionCall::setOwnSequences(made, false);
  for (Value result : op->getResults()) {
    auto type = cast<RankedTensorType>(result.getType());
    if (type.getRank() < 3)
      continue; // The workspace.
    SmallVector<int64_t> shape(type.getShape());
    shape[0] = type.getRank() == 3 ? call.segments : 1;
    result.setType(type.clone(shape));
  }
  analysis::fitAttention(made);
  SmallVector<Value> found(op->getResults());
  if (!call.isBackward && found.size() == 3)
    found[1] = ofTokens(found[1], ofQueries);
  return found;
}

void SequenceExpander::run() {
  SmallVector<SmallVector<Value>> found(held->getNumResults());
  for (int64_t example = 0; example < call.batch; ++example)
    for (auto [list, value] : llvm::zip_equal(found, callExample(example)))
      list.push_back(value);
  for (auto [result, parts] : llvm::zip_equal(held->getResults(), found)) {
    RankedTensorType type = typeOf(result);
    Value all = parts[0];
    if (type.getRank() >= 3 && typeOf(all) != type) {
      all = make("stablehlo.concatenate", parts, type,
                 builder.getNamedAttr("dimension", builder.getI64IntegerAttr(0)));
    } else if (type.getRank() >= 3 && parts.size() > 1) { // Of a bias that all examples share.
      all = convert(all, builder.getF32Type());
      for (Value part : ArrayRef(parts).drop_front())
        all = binary("stablehlo.add", all, convert(part, builder.getF32Type()));
      all = convert(all, type.getElementType());
    }
    result.replaceAllUsesWith(all);
  }
  held->erase();
}

/// Gives attention of Transformer Engine the sums of lengths that it reads: element i is the sum
/// of the first i lengths, as a comparison of indices and a sum.
static void sumLengths(stablehlo::CustomCallOp call) {
  std::optional<analysis::AttentionCall> attention = analysis::AttentionCall::read(call);
  if (!attention || !attention->hasOwnLengths)
    return;
  Operation *op = call;
  analysis::PlainOps ops(op);
  for (int operand : {attention->queryLengths, attention->keyLengths}) {
    Value lengths = op->getOperand(operand);
    RankedTensorType type = typeOf(lengths);
    int64_t count = type.getDimSize(0);
    RankedTensorType square = type.clone({count + 1, count});
    Value isBefore =
        ops.compare(stablehlo::ComparisonDirection::LT, ops.iota(square, 1), ops.iota(square, 0));
    Value spread = ops.broadcast(lengths, square.getShape(), {1});
    Value counted = ops.select(isBefore, spread, ops.splat(0, square));
    op->setOperand(operand, ops.reduce(counted, {1}, analysis::Reducer::Sum));
  }
  attention->setOwnLengths(false);
}

namespace {

class AlpaExpandMapsPass : public exporter::impl::AlpaExpandMapsBase<AlpaExpandMapsPass> {
public:
  using AlpaExpandMapsBase::AlpaExpandMapsBase;

  void runOnOperation() override {
    SmallVector<MapOp> maps;
    getOperation().walk([&](MapOp map) { maps.push_back(map); });
    for (MapOp map : maps)
      MapExpander(map).run();
    numExpanded += maps.size();
    SmallVector<analysis::AttentionCall> packed;
    getOperation().walk([&](stablehlo::CustomCallOp op) {
      std::optional<analysis::AttentionCall> call = analysis::AttentionCall::read(op);
      if (call && call->hasOwnSequences)
        packed.push_back(*call);
    });
    for (const analysis::AttentionCall &call : packed)
      SequenceExpander(call).run();
    numExpanded += packed.size();
    getOperation().walk(sumLengths);
  }
};

} // namespace
