//===- RingAttention.cpp - attention whose tokens are split ---------------===//

#include "compiler/Spmd/RingAttention.h"

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/PlainOps.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;
using analysis::AttentionCall;
using analysis::PlainOps;
namespace hlo = mlir::stablehlo;

llvm::ArrayRef<unsigned> spmd::ringAxes(const AttentionCall &call, const ShardingSpec &queries) {
  return queries.dims[call.tokenDim()];
}

Ring::Pairs spmd::ringPairs(const Ring::Pairs &places, llvm::ArrayRef<unsigned> axes,
                            llvm::ArrayRef<int64_t> meshShape) {
  SmallVector<int64_t> strides(meshShape.size(), 1);
  for (size_t axis = meshShape.size(); axis-- > 1;)
    strides[axis - 1] = strides[axis] * meshShape[axis];
  int64_t devices = strides[0] * meshShape[0];
  // Of a place: what its coordinates along the axes add to a device's number.
  auto offsetOf = [&](int64_t place) {
    int64_t offset = 0;
    for (unsigned axis : llvm::reverse(axes)) {
      offset += place % meshShape[axis] * strides[axis];
      place /= meshShape[axis];
    }
    return offset;
  };
  Ring::Pairs pairs;
  for (int64_t first = 0; first < devices; ++first) {
    bool isFirst = llvm::all_of(
        axes, [&](unsigned axis) { return first / strides[axis] % meshShape[axis] == 0; });
    if (isFirst)
      for (auto [from, to] : places)
        pairs.push_back({first + offsetOf(from), first + offsetOf(to)});
  }
  return pairs;
}

DenseIntElementsAttr spmd::sourceTargetPairs(const Ring::Pairs &pairs, Builder &builder) {
  SmallVector<int64_t> flat;
  for (auto [source, target] : pairs)
    flat.append({source, target});
  auto type = RankedTensorType::get({static_cast<int64_t>(pairs.size()), 2}, builder.getI64Type());
  return DenseIntElementsAttr::get(type, flat);
}

void spmd::setGathers(Ring &ring, OpBuilder &builder, ArrayRef<unsigned> axes,
                      ArrayRef<int64_t> meshShape,
                      std::function<std::optional<int64_t>()> channel) {
  Ring::Pairs all;
  for (int64_t place = 0; place < ring.count; ++place)
    all.push_back({place, place});
  SmallVector<int64_t> members =
      llvm::to_vector(llvm::make_first_range(ringPairs(all, axes, meshShape)));
  int64_t rings = static_cast<int64_t>(members.size()) / ring.count;
  auto groups = DenseIntElementsAttr::get(
      RankedTensorType::get({rings, ring.count}, builder.getI64Type()), members);
  int64_t count = ring.count;
  auto make = [&builder, groups, channel](StringRef name, StringRef dimName, Value value,
                                          int64_t dim, int64_t size) {
    auto type = cast<RankedTensorType>(value.getType());
    SmallVector<int64_t> shape(type.getShape());
    shape[dim] = size;
    OperationState state(value.getLoc(), name, value, type.clone(shape));
    state.addAttribute(dimName, builder.getI64IntegerAttr(dim));
    state.addAttribute("replica_groups", groups);
    if (std::optional<int64_t> number = channel()) {
      state.addAttribute("channel_handle",
                         hlo::ChannelHandleAttr::get(builder.getContext(), *number, 1));
      state.addAttribute("use_global_device_ids", builder.getUnitAttr());
    }
    return state;
  };
  ring.gather = [&builder, make, count](Value value, int64_t dim) {
    int64_t size = cast<RankedTensorType>(value.getType()).getDimSize(dim) * count;
    return builder
        .create(make(hlo::AllGatherOp::getOperationName(), "all_gather_dim", value, dim, size))
        ->getResult(0);
  };
  ring.scatterSum = [&builder, make, count](Value value, int64_t dim) {
    int64_t size = cast<RankedTensorType>(value.getType()).getDimSize(dim) / count;
    OperationState state =
        make(hlo::ReduceScatterOp::getOperationName(), "scatter_dimension", value, dim, size);
    Location loc = value.getLoc();
    auto type = RankedTensorType::get({}, cast<RankedTensorType>(value.getType()).getElementType());
    state.addRegion()->emplaceBlock().addArguments({type, type}, {loc, loc});
    Operation *made = builder.create(state);
    OpBuilder body = OpBuilder::atBlockEnd(&made->getRegion(0).front());
    ValueRange terms = made->getRegion(0).getArguments();
    Value sum = PlainOps(body, loc).binary("stablehlo.add", terms[0], terms[1]);
    hlo::ReturnOp::create(body, loc, sum);
    return made->getResult(0);
  };
}

namespace {

/// Tokens that lie one behind another, the first at a place of the sequence.
struct Run {
  Value start; // A scalar of type i32.
  int64_t size = 0;
};
using Tokens = SmallVector<Run, 2>;

/// Queries, and what else an operand or result has of each of them.
struct Rows {
  Value query, statistics, gradient, output;
  Value bias; // For the keys of the whole sequence.
  Tokens tokens;
  Value count = {}; // How many, the first ones, count: [examples]; nothing if all do.
};

struct Columns {
  Value key, value;
  Tokens tokens;
  // Whether there are any, and how many of them, the first ones, count: [examples]; nothing if all
  // do.
  Value exist = {}, count = {};
};

class RingWriter {
public:
  RingWriter(OpBuilder &builder, const AttentionCall &call, const Ring &ring)
      : builder(builder), call(call), ring(ring), loc(hlo::CustomCallOp(call.op).getLoc()),
        dim(call.tokenDim()) {}

  SmallVector<Value> forward(ValueRange parts, TypeRange types);
  SmallVector<Value> backward(ValueRange parts, TypeRange types);
  SmallVector<Value> forwardGathered(ValueRange parts, TypeRange types);
  SmallVector<Value> backwardGathered(ValueRange parts, TypeRange types);
  SmallVector<Value> forwardOfWindow(ValueRange parts, TypeRange types);
  SmallVector<Value> backwardOfWindow(ValueRange parts, TypeRange types);

private:
  using Values = SmallVector<Value>;

  PlainOps ops() { return PlainOps(builder, loc); }
  static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }
  Value binary(StringRef name, Value lhs, Value rhs) { return ops().binary(name, lhs, rhs); }
  Value add(Value lhs, Value rhs) { return binary("stablehlo.add", lhs, rhs); }
  Value both(Value lhs, Value rhs) { return lhs ? binary("stablehlo.and", lhs, rhs) : rhs; }
  Value compare(hlo::ComparisonDirection direction, Value lhs, Value rhs) {
    return ops().compare(direction, lhs, rhs);
  }
  Value select(Value isFirst, Value first, Value second) {
    return ops().select(isFirst, first, second);
  }
  Value spread(Value rows, Value like);
  Value exponential(Value value) { return ops().unary("stablehlo.exponential", value); }
  Value convert(Value value, Type element) { return ops().convert(value, element); }
  Value real(Value value) { return convert(value, builder.getF32Type()); }
  Value number(int64_t value, ArrayRef<int64_t> shape = {}) {
    return filled(RankedTensorType::get(shape, builder.getI32Type()), value);
  }
  Value filled(RankedTensorType type, double value) { return ops().splat(value, type); }
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();

  Value slice(Value value, int64_t dim, int64_t start, int64_t size);
  Value reversed(Value value, int64_t dim) {
    return ops().make("stablehlo.reverse", value, value.getType(), ops().dims("dimensions", {dim}));
  }
  /// The first or the second half of a value's tokens.
  Value half(Value value, int64_t dim, bool second) {
    int64_t size = typeOf(value).getDimSize(dim) / 2;
    return slice(value, dim, second ? size : 0, size);
  }
  /// The value in the midst of others that are all `otherwise`, `before` and `behind` it.
  Value padded(Value value, int64_t dim, int64_t before, int64_t behind, double otherwise = 0);
  Value joined(Value first, Value second, int64_t dim);
  Rows halfOf(const Rows &rows, bool isLate);
  Columns earlyHalf(const Columns &columns);
  /// The value on the next device of the ring.
  Value next(Value value);
  Values next(ValueRange values) {
    return llvm::map_to_vector(values, [&](Value value) { return next(value); });
  }
  /// From halves 2 i and 2 i + 1 of all tokens, on place i, to i and 2 n - 1 - i; and back.
  Value balanced(Value value, int64_t dim, bool back);
  /// The tokens of a place's device, which has so many.
  Tokens tokensOf(Value place, int64_t count);
  /// The tokens whose keys are at hand in a step.
  Tokens tokensIn(Value step, int64_t count);
  static int64_t numTokens(const Tokens &tokens) {
    int64_t count = 0;
    for (const Run &run : tokens)
      count += run.size;
    return count;
  }
  /// Of tokens in an operand; -1 if there is none.
  int64_t tokenDimOf(int operand) const {
    return operand == call.statistics || operand == call.bias       ? 2
           : call.queryLengths >= 0 && operand >= call.queryLengths ? -1
                                                                    : dim;
  }
  /// Of operands, and of results backward.
  static bool isOfKeys(size_t index) { return index == 1 || index == 2; }
  /// The queries of the device.
  Rows begin(ValueRange given, TypeRange types);

  /// What one kernel finds of some queries and some keys.
  Values kernel(const Rows &rows, const Columns &columns, bool isCausal);
  /// The number for each example.
  Value ofExamples(Value number) {
    return ops().broadcast(number, cast<RankedTensorType>(locals[0]).getShape().take_front(), {});
  }
  /// The same, where no row without a key and no example without tokens leaves its mark: such rows
  /// have outputs of zero and statistics of minus infinity, and no gradients.
  Values attend(const Rows &rows, const Columns &columns, bool isCausal);
  /// The same for queries of packed sequences and keys that are all before them.
  Values attendSequence(const Rows &rows, const Columns &columns);
  std::pair<Value, Value> sequences();
  /// Where the sequence of a token of each example begins and ends; zeros if it has none.
  std::pair<Value, Value> holderOf(Value token);
  /// Of the sequences' parts that some tokens are.
  struct Lists {
    Value lengths, offsets;
  };
  Lists listsOf(const Tokens &tokens);
  /// Which of the tokens belong to a sequence: [examples, tokens].
  Value tokensInSequences(const Tokens &tokens);
  Value firstOf(Value count, int64_t size);
  Value within(Value value, int64_t least, int64_t most);
  /// How many of the tokens, the first ones, are within the lengths: [examples].
  Value lengthsIn(int operand, const Tokens &tokens);
  Value biasOf(const Rows &rows, const Columns &columns);
  /// Which examples have queries and keys here: [examples]. Nothing if all have.
  Value examplesSeen(const Rows &rows, const Columns &columns);
  /// Which queries see keys here, in the statistics' shape; nothing if all do.
  Value rowsSeen(const Rows &rows, const Columns &columns, bool isCausal, RankedTensorType type);
  bool mayLackKeys() const { return call.bias >= 0 || call.queryLengths >= 0; }

  /// `body` for steps first .. end - 1, of the step's number and what is carried.
  Values loop(int64_t first, int64_t end, Values carried,
              llvm::function_ref<Values(Value, ValueRange)> body);
  /// What `step` makes of `known` in steps 1 to the last: `step` gets its number, what was known
  /// before, and the keys and values of that step, which begin as `keys`.
  Values around(Values known, Values keys,
                llvm::function_ref<Values(Value, ValueRange, ValueRange)> step);
  /// The first if keys of step `step` are earlier than all queries of the late half.
  Values earlierOrLater(Value step, llvm::function_ref<Values()> earlier,
                        llvm::function_ref<Values()> later);
  /// What is known of some keys, in float32: a sum of outputs weighted by the exponentials of their
  /// statistics less the greatest of these, that one, and the sum of the weights. The greatest is
  /// one of the kernel's own numbers, so that nothing of it is rounded from step to step.
  Values begun(Values found);
  Values merged(ValueRange known, Values found);
  Values finishedGradients(Values gradients);

  /// Of all keys, where they are gathered, those of some tokens.
  Columns columnsAt(const Run &run);
  /// What one kernel finds of a half's queries and the keys before them, which are among the first
  /// `size` ones.
  Values attendBefore(const Rows &rows, int64_t size);

  /// Of the keys before a device's own, `columns` from `start` on, and its first `rows` queries.
  struct Piece {
    int64_t rows, start, columns;
    bool isReversed;
  };
  SmallVector<Piece> pieces() const;
  int64_t numBefore() const { return call.windowKeys(typeOf(parts[0]).getDimSize(dim)); }
  /// Devices that have them.
  int64_t numHops() const {
    return llvm::divideCeil(numBefore(), typeOf(parts[0]).getDimSize(dim));
  }
  /// For each of them, the farthest first: who sends to whom, and the columns.
  void forHops(llvm::function_ref<void(const Ring::Pairs &, int64_t, int64_t)> hop);
  Value before(Value value);
  /// How many of its queries, the first ones, see any of its columns, and how many of these, the
  /// last ones: [examples]. Nothing where all queries do.
  struct Counts {
    Value rows, columns;
  };
  Counts countsOf(const Piece &piece);
  Values attendPiece(const Rows &rows, Value keys, Value values, const Piece &piece);
  /// The output and the statistics.
  Values finished(Values sums);
  Values outputOf(Value step, const Rows &rows, const Columns &columns);
  Values gradientsOf(Value step, const Rows &rows, const Columns &columns);
  /// Puts the gradient of a bias's columns in its place.
  Value putColumns(Value whole, Value found, const Tokens &columns);
  static RankedTensorType resized(Type type, int64_t dim, int64_t size) {
    auto tensor = cast<RankedTensorType>(type);
    SmallVector<int64_t> shape(tensor.getShape());
    shape[dim] = size;
    return tensor.clone(shape);
  }

  OpBuilder &builder;
  const AttentionCall &call;
  const Ring &ring;
  Location loc;
  int64_t dim;              // Of tokens in operands like the query.
  Values parts;             // Operands on one device, as its queries are taken.
  SmallVector<Type> locals; // Of the results on one device.
};

} // namespace

Value RingWriter::slice(Value value, int64_t dim, int64_t start, int64_t size) {
  if (size == typeOf(value).getDimSize(dim))
    return value;
  RankedTensorType type = resized(value.getType(), dim, size);
  SmallVector<int64_t> starts(type.getRank(), 0), ends(type.getShape()), ones(type.getRank(), 1);
  starts[dim] = start;
  ends[dim] = start + size;
  return hlo::SliceOp::create(builder, loc, type, value, builder.getDenseI64ArrayAttr(starts),
                              builder.getDenseI64ArrayAttr(ends),
                              builder.getDenseI64ArrayAttr(ones));
}

Value RingWriter::padded(Value value, int64_t dim, int64_t before, int64_t behind,
                         double otherwise) {
  auto others = [&](int64_t size) {
    return filled(resized(value.getType(), dim, size), otherwise);
  };
  if (before > 0)
    value = joined(others(before), value, dim);
  return behind > 0 ? joined(value, others(behind), dim) : value;
}

Rows RingWriter::halfOf(const Rows &rows, bool isLate) {
  auto part = [&](Value value, int64_t dim) { return value ? half(value, dim, isLate) : value; };
  return {part(rows.query, dim),    part(rows.statistics, 2),
          part(rows.gradient, dim), part(rows.output, dim),
          part(rows.bias, 2),       {isLate ? rows.tokens.back() : rows.tokens.front()}};
}

Columns RingWriter::earlyHalf(const Columns &columns) {
  return {half(columns.key, dim, false),
          half(columns.value, dim, false),
          {columns.tokens.front()},
          {},
          {}};
}

Value RingWriter::joined(Value first, Value second, int64_t dim) {
  SmallVector<int64_t> shape(typeOf(first).getShape());
  shape[dim] += typeOf(second).getDimSize(dim);
  return hlo::ConcatenateOp::create(builder, loc, typeOf(first).clone(shape),
                                    ValueRange{first, second}, builder.getI64IntegerAttr(dim));
}

Value RingWriter::next(Value value) {
  Ring::Pairs pairs;
  for (int64_t place = 0; place < ring.count; ++place)
    pairs.push_back({place, (place + 1) % ring.count});
  return ring.send(value, pairs);
}

Value RingWriter::balanced(Value value, int64_t dim, bool back) {
  // Even halves come from the first half of a device, odd ones from the second, and of the two
  // that a device gets one is even.
  Ring::Pairs even, odd;
  for (int64_t place = 0; place < ring.count; ++place)
    for (auto [isOdd, pairs] : {std::pair(0, &even), {1, &odd}}) {
      int64_t number = 2 * place + isOdd;
      int64_t target = number < ring.count ? number : 2 * ring.count - 1 - number;
      pairs->push_back(back ? std::pair(target, place) : std::pair(place, target));
    }
  Value parity = binary("stablehlo.remainder", ring.place, number(2));
  Value isEven = compare(hlo::ComparisonDirection::EQ, parity, number(0));
  Value first = half(value, dim, false), second = half(value, dim, true);
  if (back) {
    Value evens = select(isEven, first, second), odds = select(isEven, second, first);
    return joined(ring.send(evens, even), ring.send(odds, odd), dim);
  }
  Value evens = ring.send(first, even), odds = ring.send(second, odd);
  return joined(select(isEven, evens, odds), select(isEven, odds, evens), dim);
}

Tokens RingWriter::tokensOf(Value place, int64_t count) {
  auto run = [&](Value index, int64_t size) {
    return Run{binary("stablehlo.multiply", index, number(size)), size};
  };
  if (!call.isBalanced())
    return {run(place, count)};
  Value last = binary("stablehlo.subtract", number(2 * ring.count - 1), place);
  return {run(place, count / 2), run(last, count / 2)};
}

Tokens RingWriter::tokensIn(Value step, int64_t count) {
  Value place = add(binary("stablehlo.subtract", ring.place, step), number(ring.count));
  return tokensOf(binary("stablehlo.remainder", place, number(ring.count)), count);
}

Rows RingWriter::begin(ValueRange given, TypeRange types) {
  locals.assign(types.begin(), types.end());
  parts = llvm::to_vector(given);
  for (auto [index, each] : llvm::enumerate(parts))
    if (call.gathersKeys() && isOfKeys(index))
      each = ring.gather(each, dim);
    else if (int64_t tokens = tokenDimOf(static_cast<int>(index)); call.isBalanced() && tokens >= 0)
      each = balanced(each, tokens, false);
  auto part = [&](int operand) { return operand < 0 ? Value() : parts[operand]; };
  return {parts[0],
          part(call.statistics),
          part(call.outputGradient),
          part(call.output),
          part(call.bias),
          tokensOf(ring.place, typeOf(parts[0]).getDimSize(dim))};
}

Value RingWriter::lengthsIn(int operand, const Tokens &tokens) {
  Value lengths = convert(parts[operand], builder.getI32Type()), sum;
  ArrayRef<int64_t> shape = typeOf(lengths).getShape();
  for (const Run &run : tokens) {
    Value ahead = binary("stablehlo.subtract", lengths, ops().broadcast(run.start, shape, {}));
    Value some = within(ahead, 0, run.size);
    sum = sum ? add(sum, some) : some;
  }
  return sum;
}

Value RingWriter::biasOf(const Rows &rows, const Columns &columns) {
  Value found;
  for (const Run &run : columns.tokens) {
    Value part = ops().dynamicSlice(rows.bias, 3, run.start, run.size);
    found = found ? joined(found, part, 3) : part;
  }
  return found;
}

Value RingWriter::examplesSeen(const Rows &rows, const Columns &columns) {
  if (columns.exist)
    return columns.exist;
  if (call.queryLengths < 0 || call.segments > 1)
    return {};
  Value seen;
  for (auto [operand, tokens] :
       {std::pair(call.queryLengths, &rows.tokens), {call.keyLengths, &columns.tokens}}) {
    Value length = lengthsIn(operand, *tokens);
    seen = both(
        seen, compare(hlo::ComparisonDirection::GT, length, number(0, typeOf(length).getShape())));
  }
  return seen;
}

Value RingWriter::rowsSeen(const Rows &rows, const Columns &columns, bool isCausal,
                           RankedTensorType type) {
  auto index = [&](ArrayRef<int64_t> shape, int64_t dim) {
    return ops().iota(RankedTensorType::get(shape, builder.getI32Type()), dim);
  };
  ArrayRef<int64_t> shape = type.getShape();
  Value seen;
  Value examples = examplesSeen(rows, columns);
  if (examples)
    seen = ops().broadcast(examples, shape, {0});
  auto isFirst = [&](Value count) {
    return compare(hlo::ComparisonDirection::LT, index(shape, 2),
                   ops().broadcast(count, shape, {0}));
  };
  if (rows.count)
    seen = both(seen, isFirst(rows.count));
  else if (call.segments > 1 && !columns.count)
    seen = ops().broadcast(tokensInSequences(rows.tokens), shape, {0, 2});
  else if (call.queryLengths >= 0 && !columns.count)
    seen = both(seen, isFirst(lengthsIn(call.queryLengths, rows.tokens)));
  if (call.bias < 0)
    return seen;
  // A bias of minus infinity is a mask.
  Value bias = biasOf(rows, columns), visible;
  SmallVector<int64_t> wide(typeOf(bias).getShape());
  if (isCausal)
    visible = compare(hlo::ComparisonDirection::GE, index(wide, 2), index(wide, 3));
  if (call.keyLengths >= 0 || columns.count) {
    wide[0] = shape[0];
    bias = ops().broadcast(bias, wide, {0, 1, 2, 3});
    if (visible)
      visible = ops().broadcast(visible, wide, {0, 1, 2, 3});
    Value within = ops().broadcast(
        columns.count ? columns.count : lengthsIn(call.keyLengths, columns.tokens), wide, {0});
    visible = both(visible, compare(hlo::ComparisonDirection::LT, index(wide, 3), within));
  }
  if (visible)
    bias = select(visible, bias, filled(typeOf(bias), kNothing));
  Value most = ops().reduce(bias, {3}, analysis::Reducer::Maximum);
  Value isFinite = compare(hlo::ComparisonDirection::GT, most, filled(typeOf(most), kNothing));
  return both(seen, ops().broadcast(isFinite, shape, {0, 1, 2}));
}

SmallVector<Value> RingWriter::kernel(const Rows &rows, const Columns &columns, bool isCausal) {
  hlo::CustomCallOp whole = call.op;
  // Lengths and offsets come last.
  Values operands(call.queryLengths < 0 ? whole->getNumOperands() : call.queryLengths);
  auto give = [&](int operand, Value value) {
    if (operand >= 0)
      operands[operand] = value;
  };
  give(0, rows.query);
  give(1, columns.key);
  give(2, columns.value);
  give(call.statistics, rows.statistics);
  give(call.outputGradient, rows.gradient);
  give(call.output, rows.output);
  if (call.bias >= 0)
    give(call.bias, biasOf(rows, columns));
  int64_t queries = numTokens(rows.tokens), keys = numTokens(columns.tokens);
  SmallVector<Type> types{resized(locals[0], 2, queries)};
  if (call.isBackward) {
    types.append({resized(locals[1], 2, keys), resized(locals[2], 2, keys)});
    if (call.biasGradient >= 0)
      types.push_back(operands[call.bias].getType());
  } else {
    types.push_back(resized(locals[1], 2, queries));
  }
  size_t numTensors = operands.size();
  bool isPacked = call.segments > 1 && !columns.count, isPadded = isPacked;
  if (isPacked) {
    Lists lists = listsOf(rows.tokens);
    operands.append({lists.lengths, lists.lengths, lists.offsets, lists.offsets});
  } else if (columns.count || call.queryLengths >= 0) {
    // Kernels are not called for no tokens.
    auto atLeastOne = [&](Value count) {
      return binary("stablehlo.maximum", count, number(1, typeOf(count).getShape()));
    };
    auto lengths = [&](Value count, int operand, const Tokens &tokens) {
      bool isGiven = call.queryLengths >= 0 && call.segments == 1 && !columns.count;
      operands.push_back(atLeastOne(count     ? count
                                    : isGiven ? lengthsIn(operand, tokens)
                                              : ofExamples(number(numTokens(tokens)))));
    };
    lengths(rows.count, call.queryLengths, rows.tokens);
    lengths(columns.count, call.keyLengths, columns.tokens);
    isPadded = true;
  }
  auto made = cast<hlo::CustomCallOp>(builder.clone(*whole.getOperation()));
  made->setOperands(operands);
  if (ArrayAttr layouts = whole.getOperandLayoutsAttr()) { // Of the lists, minor to major.
    SmallVector<Attribute> all(layouts.getValue());
    all.truncate(numTensors);
    for (Value list : ArrayRef(operands).drop_front(numTensors))
      all.push_back(builder.getIndexTensorAttr(
          llvm::to_vector(llvm::reverse(llvm::seq<int64_t>(0, typeOf(list).getRank())))));
    made.setOperandLayoutsAttr(builder.getArrayAttr(all));
  }
  for (NamedAttribute attribute : llvm::to_vector(made->getDiscardableAttrs()))
    if (attribute.getName().strref().starts_with("alpa."))
      made->removeDiscardableAttr(attribute.getName());
  for (auto [result, type] : llvm::zip(made->getResults(), types))
    result.setType(type);
  int64_t window = isCausal && call.window < queries ? call.window : 0;
  analysis::setMask(made, isCausal, isPadded, window, isPacked ? call.segments : 1);
  if (!isPacked)
    AttentionCall::setOwnSequences(made, false);
  analysis::fitAttention(made);
  return llvm::to_vector_of<Value>(made->getResults().take_front(types.size()));
}

SmallVector<Value> RingWriter::attend(const Rows &rows, const Columns &columns, bool isCausal) {
  if (call.segments > 1 && !isCausal && !columns.count)
    return attendSequence(rows, columns);
  Values found = kernel(rows, columns, isCausal);
  auto keep = [&](Value &value, Value isKept, ArrayRef<int64_t> dims, double otherwise) {
    // The gradient of a bias for all examples, which are all alike here.
    isKept = slice(isKept, 0, 0, typeOf(value).getDimSize(0));
    isKept = ops().broadcast(isKept, typeOf(value).getShape(), dims);
    value = select(isKept, value, filled(typeOf(value), otherwise));
  };
  if (!call.isBackward) {
    if (Value seen = rowsSeen(rows, columns, isCausal, typeOf(found[1]))) {
      keep(found[0], seen, {0, 1, 2}, 0);
      keep(found[1], seen, {0, 1, 2}, kNothing);
    }
    return found;
  }
  for (Value &value : MutableArrayRef(found).take_front(3))
    value = real(value);
  if (Value examples = examplesSeen(rows, columns))
    for (Value &value : found)
      keep(value, examples, {0}, 0);
  // What the kernel does not compute it need not write.
  auto keepTokens = [&](Value &value, Value count) {
    if (Value isInside = count ? firstOf(count, typeOf(value).getDimSize(2))
                         : call.segments > 1 && !columns.count ? tokensInSequences(rows.tokens)
                                                               : Value())
      keep(value, isInside, {0, 2}, 0);
  };
  keepTokens(found[0], rows.count);
  keepTokens(found[1], columns.count);
  keepTokens(found[2], columns.count);
  if (found.size() > 3)
    for (auto [dim, count] : {std::pair(2, rows.count), {3, columns.count}})
      if (count)
        keep(found[3], firstOf(count, typeOf(found[3]).getDimSize(dim)), {0, dim}, 0);
  return found;
}

Value RingWriter::firstOf(Value count, int64_t size) {
  SmallVector<int64_t> shape{typeOf(count).getDimSize(0), size};
  return compare(hlo::ComparisonDirection::LT,
                 ops().iota(RankedTensorType::get(shape, builder.getI32Type()), 1),
                 ops().broadcast(count, shape, {0}));
}

/// [examples, sequences]: where each begins and ends.
std::pair<Value, Value> RingWriter::sequences() {
  Value lengths = convert(parts[call.queryLengths], builder.getI32Type());
  Value offsets = convert(parts[call.queryOffsets], builder.getI32Type());
  Value begins = slice(offsets, 1, 0, call.segments);
  ArrayRef<int64_t> shape = typeOf(lengths).getShape();
  return {begins, add(begins, binary("stablehlo.maximum", lengths, number(0, shape)))};
}

Value RingWriter::within(Value value, int64_t least, int64_t most) {
  ArrayRef<int64_t> shape = typeOf(value).getShape();
  value = binary("stablehlo.maximum", value, number(least, shape));
  return binary("stablehlo.minimum", value, number(most, shape));
}

std::pair<Value, Value> RingWriter::holderOf(Value token) {
  auto [begins, ends] = sequences();
  ArrayRef<int64_t> shape = typeOf(begins).getShape();
  Value place = ops().broadcast(token, shape, {0});
  Value holds = both(compare(hlo::ComparisonDirection::LE, begins, place),
                     compare(hlo::ComparisonDirection::GT, ends, place));
  auto ofHolder = [&](Value value) {
    return ops().reduce(select(holds, value, number(0, shape)), {1}, analysis::Reducer::Sum);
  };
  return {ofHolder(begins), ofHolder(ends)};
}

RingWriter::Lists RingWriter::listsOf(const Tokens &tokens) {
  auto [begins, ends] = sequences();
  SmallVector<int64_t> shape(typeOf(begins).getShape());
  auto sum = [&](Value place) { // Tokens here that are before a place of the sequence.
    Value before;
    for (const Run &run : tokens) {
      Value ahead = binary("stablehlo.subtract", place, ops().broadcast(run.start, shape, {}));
      Value some = within(ahead, 0, run.size);
      before = before ? add(before, some) : some;
    }
    return before;
  };
  Value from = sum(begins), to = sum(ends);
  Value last = number(numTokens(tokens), {shape[0], 1});
  return {binary("stablehlo.subtract", to, from), joined(from, last, 1)};
}

Value RingWriter::tokensInSequences(const Tokens &tokens) {
  Lists lists = listsOf(tokens);
  SmallVector<int64_t> shape(typeOf(lists.lengths).getShape());
  Value begins = slice(lists.offsets, 1, 0, shape[1]);
  shape.push_back(numTokens(tokens));
  Value token = ops().iota(RankedTensorType::get(shape, builder.getI32Type()), 2);
  Value place = binary("stablehlo.subtract", token, ops().broadcast(begins, shape, {0, 1}));
  Value isInside = both(
      compare(hlo::ComparisonDirection::GE, place, number(0, shape)),
      compare(hlo::ComparisonDirection::LT, place, ops().broadcast(lists.lengths, shape, {0, 1})));
  return ops().reduce(isInside, {1}, analysis::Reducer::Or);
}

/// Of the sequences, the one that the first query of a run belongs to may have begun before, where
/// the keys are. Its queries are the first ones of the run, its keys the last ones of those. Where
/// a late run has some, so have all queries of the run before.
SmallVector<Value> RingWriter::attendSequence(const Rows &rows, const Columns &columns) {
  SmallVector<int64_t> one{cast<RankedTensorType>(locals[0]).getDimSize(0)};
  Rows queries = rows;
  Columns keys{reversed(columns.key, dim), reversed(columns.value, dim), columns.tokens};
  for (const Run &run : rows.tokens) {
    Value first = ops().broadcast(run.start, one, {}), seen;
    auto [begin, end] = holderOf(first);
    for (const Run &column : columns.tokens) {
      Value behind = ops().broadcast(add(column.start, number(column.size)), one, {});
      Value some = within(binary("stablehlo.subtract", behind, begin), 0, column.size);
      seen = seen ? add(seen, some) : some;
    }
    Value own = within(binary("stablehlo.subtract", end, first), 0, run.size);
    Value none = number(0, one);
    Value meets = both(compare(hlo::ComparisonDirection::GT, own, none),
                       compare(hlo::ComparisonDirection::GT, seen, none));
    own = select(meets, own, none);
    seen = select(meets, seen, none);
    queries.count = queries.count ? add(queries.count, own) : own;
    keys.count = keys.count ? binary("stablehlo.maximum", keys.count, seen) : seen;
  }
  keys.exist = compare(hlo::ComparisonDirection::GT, keys.count, number(0, one));
  Values found = attend(queries, keys, false);
  if (call.isBackward)
    for (Value &value : MutableArrayRef(found).slice(1, 2))
      value = reversed(value, 2);
  return found;
}

SmallVector<Value> RingWriter::loop(int64_t first, int64_t end, Values carried,
                                    llvm::function_ref<Values(Value, ValueRange)> body) {
  if (end - first <= 1) {
    for (int64_t step = first; step < end; ++step)
      carried = body(number(step), carried);
    return carried;
  }
  carried.insert(carried.begin(), number(first));
  auto types = llvm::map_to_vector(carried, [](Value value) { return value.getType(); });
  SmallVector<Location> locations(types.size(), loc);
  OperationState state(loc, hlo::WhileOp::getOperationName(), carried, types);
  Block *condition = &state.addRegion()->emplaceBlock(),
        *steps = &state.addRegion()->emplaceBlock();
  condition->addArguments(types, locations);
  steps->addArguments(types, locations);
  Operation *made = builder.create(state);
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToEnd(condition);
  Value goesOn = compare(hlo::ComparisonDirection::LT, condition->getArgument(0), number(end));
  hlo::ReturnOp::create(builder, loc, goesOn);
  builder.setInsertionPointToEnd(steps);
  Value step = steps->getArgument(0);
  Values after = body(step, steps->getArguments().drop_front());
  after.insert(after.begin(), add(step, number(1)));
  hlo::ReturnOp::create(builder, loc, after);
  return llvm::to_vector_of<Value>(made->getResults().drop_front());
}

SmallVector<Value>
RingWriter::around(Values known, Values keys,
                   llvm::function_ref<Values(Value, ValueRange, ValueRange)> step) {
  size_t own = known.size();
  Values carried = std::move(known);
  llvm::append_range(carried, keys);
  // The last step sends no keys on.
  carried = loop(1, ring.count - 1, carried, [&](Value number, ValueRange carried) {
    Values later = next(carried.drop_front(own));
    Values found = step(number, carried.take_front(own), carried.drop_front(own));
    llvm::append_range(found, later);
    return found;
  });
  ValueRange last = carried;
  return step(number(ring.count - 1), last.take_front(own), last.drop_front(own));
}

SmallVector<Value> RingWriter::earlierOrLater(Value step, llvm::function_ref<Values()> earlier,
                                              llvm::function_ref<Values()> later) {
  Value isLater = compare(hlo::ComparisonDirection::LT, ring.place, step);
  OperationState state(loc, hlo::CaseOp::getOperationName());
  state.addOperands(convert(isLater, builder.getI32Type()));
  Values found;
  for (auto branch : {earlier, later}) {
    OpBuilder::InsertionGuard guard(builder);
    Block *block = &state.addRegion()->emplaceBlock();
    builder.setInsertionPointToEnd(block);
    found = branch();
    hlo::ReturnOp::create(builder, loc, found);
  }
  for (Value value : found)
    state.addTypes(value.getType());
  return llvm::to_vector_of<Value>(builder.create(state)->getResults());
}

Value RingWriter::spread(Value rows, Value like) {
  return ops().broadcast(rows, typeOf(like).getShape(), {0, 1, 2});
}

SmallVector<Value> RingWriter::begun(Values found) {
  Value statistics = real(found[1]);
  return {real(found[0]), statistics, filled(typeOf(statistics), 1)};
}

SmallVector<Value> RingWriter::merged(ValueRange known, Values found) {
  Value statistics = real(found[1]), most = binary("stablehlo.maximum", known[1], statistics);
  Value shift = most;
  if (mayLackKeys()) { // Minus infinity less minus infinity is no number.
    Value nothing = filled(typeOf(most), kNothing);
    shift =
        select(compare(hlo::ComparisonDirection::EQ, most, nothing), filled(typeOf(most), 0), most);
  }
  Value before = exponential(binary("stablehlo.subtract", known[1], shift));
  Value now = exponential(binary("stablehlo.subtract", statistics, shift));
  auto weighted = [&](Value value, Value weight) {
    return binary("stablehlo.multiply", value, spread(weight, value));
  };
  return {add(weighted(known[0], before), weighted(real(found[0]), now)), most,
          add(binary("stablehlo.multiply", known[2], before), now)};
}

SmallVector<Value> RingWriter::outputOf(Value step, const Rows &rows, const Columns &columns) {
  if (!call.isCausal)
    return attend(rows, columns, false);
  return earlierOrLater(
      step, [&] { return attend(rows, earlyHalf(columns), false); },
      [&] {
        Values found = attend(halfOf(rows, true), columns, false);
        int64_t early = typeOf(found[0]).getDimSize(2);
        return Values{padded(found[0], 2, early, 0), padded(found[1], 2, early, 0, kNothing)};
      });
}

SmallVector<Value> RingWriter::forward(ValueRange given, TypeRange types) {
  Rows rows = begin(given, types);
  Values keys = next(ValueRange{parts[1], parts[2]});
  Values known = begun(attend(rows, {parts[1], parts[2], rows.tokens}, call.isCausal));
  int64_t count = numTokens(rows.tokens);
  Values sums = around(known, keys, [&](Value number, ValueRange known, ValueRange keys) {
    return merged(known, outputOf(number, rows, {keys[0], keys[1], tokensIn(number, count)}));
  });
  return finished(sums);
}

SmallVector<Value> RingWriter::finished(Values sums) {
  if (mayLackKeys()) {
    RankedTensorType type = typeOf(sums[2]);
    Value lacks = compare(hlo::ComparisonDirection::EQ, sums[1], filled(type, kNothing));
    sums[1] = select(lacks, filled(type, 0), sums[1]);
    sums[2] = select(lacks, filled(type, 1), sums[2]);
  }
  Value output = binary("stablehlo.divide", sums[0], spread(sums[2], sums[0]));
  Value statistics = add(sums[1], ops().unary("stablehlo.log", sums[2]));
  Values found{convert(output, cast<RankedTensorType>(locals[0]).getElementType()),
               convert(statistics, cast<RankedTensorType>(locals[1]).getElementType())};
  if (call.isBalanced())
    for (Value &each : found)
      each = balanced(each, 2, true);
  return found;
}

SmallVector<Value> RingWriter::gradientsOf(Value step, const Rows &rows, const Columns &columns) {
  if (!step || !call.isCausal)
    return attend(rows, columns, call.isCausal);
  auto beside = [&](Value value, int64_t dim, bool isFirst) {
    int64_t size = typeOf(value).getDimSize(dim);
    return padded(value, dim, isFirst ? 0 : size, isFirst ? size : 0);
  };
  return earlierOrLater(
      step,
      [&] {
        Values found = attend(rows, earlyHalf(columns), false);
        for (auto [index, dim] : {std::pair(1, 2), {2, 2}, {3, 3}})
          if (index < static_cast<int>(found.size()))
            found[index] = beside(found[index], dim, true);
        return found;
      },
      [&] {
        Values found = attend(halfOf(rows, true), columns, false);
        for (int index : {0, 3})
          if (index < static_cast<int>(found.size()))
            found[index] = beside(found[index], 2, false);
        return found;
      });
}

Value RingWriter::putColumns(Value whole, Value found, const Tokens &columns) {
  int64_t at = 0;
  for (const Run &run : columns) {
    Value part = slice(found, 3, at, run.size);
    at += run.size;
    whole = ops().updateSlice(whole, part, 3, run.start);
  }
  return whole;
}

SmallVector<Value> RingWriter::backward(ValueRange given, TypeRange types) {
  Rows rows = begin(given, types);
  Values keys = next(ValueRange{parts[1], parts[2]});
  Values known = gradientsOf(Value(), rows, {parts[1], parts[2], rows.tokens});
  bool hasBias = call.biasGradient >= 0;
  if (hasBias)
    known[3] = putColumns(filled(cast<RankedTensorType>(types[call.biasGradient]), 0), known[3],
                          rows.tokens);
  // Gradients of keys and values follow them, one step behind.
  int64_t count = numTokens(rows.tokens);
  Values found = around(known, keys, [&](Value number, ValueRange known, ValueRange keys) {
    Values sums = next(known.slice(1, 2));
    Tokens columns = tokensIn(number, count);
    Values found = gradientsOf(number, rows, {keys[0], keys[1], columns});
    Values made{add(known[0], found[0]), add(sums[0], found[1]), add(sums[1], found[2])};
    if (hasBias)
      made.push_back(putColumns(known[3], found[3], columns));
    return made;
  });
  Values home = next(ValueRange(found).slice(1, 2));
  Values gradients{found[0], home[0], home[1]};
  if (hasBias)
    gradients.push_back(found[3]);
  return finishedGradients(gradients);
}

SmallVector<Value> RingWriter::finishedGradients(Values gradients) {
  for (auto [index, each] : llvm::enumerate(gradients)) {
    each = convert(each, cast<RankedTensorType>(locals[index]).getElementType());
    if (call.isBalanced() && !(call.gathersKeys() && isOfKeys(index)))
      each = balanced(each, 2, true);
  }
  return gradients;
}

Columns RingWriter::columnsAt(const Run &run) {
  auto part = [&](Value value) { return ops().dynamicSlice(value, dim, run.start, run.size); };
  return {part(parts[1]), part(parts[2]), {run}};
}

/// Of packed sequences those that count are the last ones before the rows, so columns end there,
/// with nothing in front of the first token.
SmallVector<Value> RingWriter::attendBefore(const Rows &rows, int64_t size) {
  const Run &run = rows.tokens.front();
  if (call.segments > 1) {
    auto ending = [&](Value value) {
      Value behind = padded(slice(value, dim, 0, size), dim, size, 0);
      return ops().dynamicSlice(behind, dim, run.start, size);
    };
    Run before{binary("stablehlo.subtract", run.start, number(size)), size};
    Values found = attend(rows, {ending(parts[1]), ending(parts[2]), {before}}, false);
    if (call.isBackward)
      for (Value &each : MutableArrayRef(found).slice(1, 2))
        each = slice(
            ops().updateSlice(filled(resized(each.getType(), 2, 2 * size), 0), each, 2, run.start),
            2, size, size);
    return found;
  }
  Columns columns{
      slice(parts[1], dim, 0, size), slice(parts[2], dim, 0, size), {{number(0), size}}};
  Rows seeing = rows;
  Value none = ofExamples(number(0));
  auto isSome = [&](Value count) { return compare(hlo::ComparisonDirection::GT, count, none); };
  columns.count = ofExamples(run.start);
  if (call.queryLengths >= 0) {
    Value lengths = convert(parts[call.keyLengths], builder.getI32Type());
    columns.count = binary("stablehlo.minimum", columns.count, lengths);
    seeing.count = lengthsIn(call.queryLengths, rows.tokens);
    columns.exist = isSome(seeing.count);
  }
  columns.exist = both(columns.exist, isSome(columns.count));
  return attend(seeing, columns, false);
}

SmallVector<Value> RingWriter::forwardGathered(ValueRange given, TypeRange types) {
  Rows rows = begin(given, types);
  if (!call.isBalanced()) {
    Values found = attend(rows, {parts[1], parts[2], {{number(0), call.tokens}}}, false);
    return mayLackKeys() ? finished(begun(found)) : found;
  }
  Values sums;
  for (bool isLate : {false, true}) {
    Rows half = halfOf(rows, isLate);
    Values own = begun(attend(half, columnsAt(half.tokens.front()), true));
    Values found = merged(own, attendBefore(half, call.tokens));
    if (!isLate)
      sums = found;
    else
      for (auto [sum, late] : llvm::zip_equal(sums, found))
        sum = joined(sum, late, 2);
  }
  return finished(sums);
}

SmallVector<Value> RingWriter::backwardGathered(ValueRange given, TypeRange types) {
  Rows rows = begin(given, types);
  Values gradients;
  if (!call.isBalanced())
    gradients = attend(rows, {parts[1], parts[2], {{number(0), call.tokens}}}, false);
  for (bool isLate : {true, false}) {
    if (!call.isBalanced())
      break;
    Rows half = halfOf(rows, isLate);
    const Run &run = half.tokens.front();
    Values own = attend(half, columnsAt(run), true);
    // Before the early half is less than half of all.
    int64_t size = isLate ? call.tokens : call.tokens / 2;
    Values found = attendBefore(half, size);
    found[0] = add(found[0], own[0]);
    for (int index : {1, 2}) {
      Value sum = padded(found[index], 2, 0, call.tokens - size);
      sum = isLate ? sum : add(gradients[index], sum);
      Value part = add(ops().dynamicSlice(sum, 2, run.start, run.size), own[index]);
      found[index] = ops().updateSlice(sum, part, 2, run.start);
    }
    if (found.size() > 3)
      found[3] = putColumns(padded(found[3], 3, 0, call.tokens - size), own[3], half.tokens);
    for (int index : {0, 3})
      if (!isLate && index < static_cast<int>(found.size()))
        found[index] = joined(found[index], gradients[index], 2);
    gradients = found;
  }
  for (int index : {1, 2})
    gradients[index] = ring.scatterSum(gradients[index], 2);
  return finishedGradients(gradients);
}

/// The keys that queries see on devices before: of w tokens that a window has, the w - 1 in front
/// of a device's first one. Columns that all its queries see are one kernel; of the others a later
/// query sees fewer, which is a causal mask with queries and keys in reverse.
SmallVector<RingWriter::Piece> RingWriter::pieces() const {
  int64_t own = typeOf(parts[0]).getDimSize(dim);
  int64_t all = std::max<int64_t>(call.window - own, 0), rows = std::min(call.window, own) - 1;
  SmallVector<Piece> found;
  if (rows > 0)
    found.push_back({rows, 0, numBefore() - all, true});
  if (all > 0)
    found.push_back({own, numBefore() - all, all, false});
  return found;
}

void RingWriter::forHops(
    llvm::function_ref<void(const Ring::Pairs &, int64_t start, int64_t size)> hop) {
  int64_t own = typeOf(parts[0]).getDimSize(dim), before = numBefore();
  for (int64_t far = numHops(); far > 0; --far) {
    Ring::Pairs pairs;
    for (int64_t place = 0; place + far < ring.count; ++place)
      pairs.push_back({place, place + far});
    int64_t start = std::max<int64_t>(before - far * own, 0);
    hop(pairs, start, before - (far - 1) * own - start);
  }
}

Value RingWriter::before(Value value) {
  Value found;
  int64_t own = typeOf(value).getDimSize(dim);
  forHops([&](const Ring::Pairs &pairs, int64_t, int64_t size) {
    Value sent = ring.send(slice(value, dim, own - size, size), pairs);
    found = found ? joined(found, sent, dim) : sent;
  });
  return found;
}

RingWriter::Counts RingWriter::countsOf(const Piece &piece) {
  SmallVector<int64_t> one{cast<RankedTensorType>(locals[0]).getDimSize(0)};
  int64_t later = numBefore() - piece.start - piece.columns;
  Value first = ofExamples(
      binary("stablehlo.multiply", ring.place, number(typeOf(parts[0]).getDimSize(dim))));
  Value behind = binary("stablehlo.subtract", first, number(later, one)), end, begin;
  if (call.queryLengths < 0)
    return {Value(), within(behind, 0, piece.columns)};
  if (call.segments > 1) {
    std::tie(begin, end) = holderOf(first);
    behind = binary("stablehlo.subtract", behind, begin);
  } else {
    end = convert(parts[call.queryLengths], builder.getI32Type());
  }
  Value own = within(binary("stablehlo.subtract", end, first), 0, piece.rows),
        none = number(0, one);
  Value isSome = compare(hlo::ComparisonDirection::GT, own, none);
  return {own, select(isSome, within(behind, 0, piece.columns), none)};
}

SmallVector<Value> RingWriter::attendPiece(const Rows &rows, Value keys, Value values,
                                           const Piece &piece) {
  Counts counts = countsOf(piece);
  Value own = counts.rows, count = counts.columns;
  // In reverse the queries that count would be the last ones: others are zero then.
  auto ofRows = [&](Value value, int64_t dim) {
    if (!value)
      return value;
    Value found = slice(value, dim, 0, piece.rows);
    if (!piece.isReversed)
      return found;
    if (own && call.isBackward) {
      Value isOwn = ops().broadcast(firstOf(own, piece.rows), typeOf(found).getShape(), {0, dim});
      found = select(isOwn, found, filled(typeOf(found), 0));
    }
    return reversed(found, dim);
  };
  Rows seeing{ofRows(rows.query, dim),
              ofRows(rows.statistics, 2),
              ofRows(rows.gradient, dim),
              ofRows(rows.output, dim),
              {},
              {{{}, piece.rows}},
              piece.isReversed ? Value() : own};
  // The first devices, and sequences that begin here, lack the earliest columns, which in reverse
  // are the last.
  bool isWhole = numHops() == 1 && !own, turns = piece.isReversed || !isWhole;
  auto ofColumns = [&](Value value) {
    Value found = slice(value, dim, piece.start, piece.columns);
    return turns ? reversed(found, dim) : found;
  };
  Columns columns{ofColumns(keys), ofColumns(values), {{{}, piece.columns}}};
  columns.exist = compare(hlo::ComparisonDirection::GT, count, number(0, typeOf(count).getShape()));
  if (!isWhole)
    columns.count = count;
  Values found = attend(seeing, columns, piece.isReversed);
  auto inOrder = [&](Value value, double otherwise) {
    if (piece.isReversed)
      value = reversed(value, 2);
    if (piece.isReversed && own) {
      Value isOwn = ops().broadcast(firstOf(own, piece.rows), typeOf(value).getShape(), {0, 2});
      value = select(isOwn, value, filled(typeOf(value), otherwise));
    }
    return padded(value, 2, 0, typeOf(rows.query).getDimSize(dim) - piece.rows, otherwise);
  };
  found[0] = inOrder(found[0], 0);
  if (!call.isBackward) {
    found[1] = inOrder(found[1], kNothing);
    return found;
  }
  for (Value &each : MutableArrayRef(found).drop_front())
    each = turns ? reversed(each, 2) : each;
  return found;
}

SmallVector<Value> RingWriter::forwardOfWindow(ValueRange given, TypeRange types) {
  Rows rows = begin(given, types);
  Value keys = before(parts[1]), values = before(parts[2]);
  Values sums = begun(attend(rows, {parts[1], parts[2], rows.tokens}, true));
  for (const Piece &piece : pieces())
    sums = merged(sums, attendPiece(rows, keys, values, piece));
  return finished(sums);
}

SmallVector<Value> RingWriter::backwardOfWindow(ValueRange given, TypeRange types) {
  Rows rows = begin(given, types);
  Value keys = before(parts[1]), values = before(parts[2]);
  Values sums = attend(rows, {parts[1], parts[2], rows.tokens}, true);
  Values ofOthers(2);
  for (const Piece &piece : pieces()) {
    Values found = attendPiece(rows, keys, values, piece);
    sums[0] = add(sums[0], found[0]);
    for (auto [all, each] : llvm::zip_equal(ofOthers, ValueRange(found).drop_front()))
      all = all ? joined(all, each, 2) : each;
  }
  int64_t own = typeOf(sums[1]).getDimSize(2);
  forHops([&](Ring::Pairs pairs, int64_t start, int64_t size) {
    for (auto &[from, to] : pairs)
      std::swap(from, to);
    for (auto [sum, found] : llvm::zip_equal(MutableArrayRef(sums).drop_front(), ofOthers))
      sum = add(sum, padded(ring.send(slice(found, 2, start, size), pairs), 2, own - size, 0));
  });
  return finishedGradients(sums);
}

SmallVector<Value> spmd::writeRing(OpBuilder &builder, const AttentionCall &call, ValueRange parts,
                                   TypeRange types, const Ring &ring) {
  RingWriter writer(builder, call, ring);
  SmallVector<Value> results;
  if (call.gathersKeys())
    results = call.isBackward ? writer.backwardGathered(parts, types)
                              : writer.forwardGathered(parts, types);
  else if (call.hasWindow())
    results = call.isBackward ? writer.backwardOfWindow(parts, types)
                              : writer.forwardOfWindow(parts, types);
  else
    results = call.isBackward ? writer.backward(parts, types) : writer.forward(parts, types);
  // The workspace of kernels, which nobody reads.
  for (Type type : types.drop_front(results.size()))
    results.push_back(hlo::ConstantOp::create(
        builder, hlo::CustomCallOp(call.op).getLoc(),
        cast<ElementsAttr>(analysis::splatOf(0, cast<RankedTensorType>(type)))));
  return results;
}
