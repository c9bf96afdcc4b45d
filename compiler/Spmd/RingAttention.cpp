//===- RingAttention.cpp - attention whose tokens are split ---------------===//

#include "compiler/Spmd/RingAttention.h"

#include "compiler/Analysis/PartSizes.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;
using analysis::AttentionCall;
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

namespace {

class RingWriter {
public:
  RingWriter(OpBuilder &builder, const AttentionCall &call, const Ring &ring)
      : builder(builder), call(call), ring(ring), loc(hlo::CustomCallOp(call.op).getLoc()) {}

  SmallVector<Value> forward(ValueRange parts, TypeRange types);
  SmallVector<Value> backward(ValueRange parts, TypeRange types);

private:
  using Values = SmallVector<Value>;

  static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }
  Value make(StringRef name, ValueRange operands, Type type,
             ArrayRef<NamedAttribute> attributes = {}) {
    OperationState state(loc, name, operands, type, attributes);
    return builder.create(state)->getResult(0);
  }
  Value binary(StringRef name, Value lhs, Value rhs) {
    return make(name, {lhs, rhs}, lhs.getType());
  }
  Value add(Value lhs, Value rhs) { return binary("stablehlo.add", lhs, rhs); }
  Value spread(Value rows, Value like);
  Value exponential(Value value) { return make("stablehlo.exponential", value, value.getType()); }
  Value convert(Value value, Type element) {
    return typeOf(value).getElementType() == element
               ? value
               : make("stablehlo.convert", value, typeOf(value).clone(element));
  }
  Value real(Value value) { return convert(value, builder.getF32Type()); }
  Value number(int64_t value) {
    return hlo::ConstantOp::create(builder, loc,
                                   cast<ElementsAttr>(analysis::splatOf(
                                       value, RankedTensorType::get({}, builder.getI32Type()))));
  }
  Value filled(RankedTensorType type, double value) {
    return hlo::ConstantOp::create(
        builder, loc,
        cast<ElementsAttr>(DenseElementsAttr::get(
            type, builder.getFloatAttr(type.getElementType(), value).getValue())));
  }
  Value compare(hlo::ComparisonDirection direction, Value lhs, Value rhs) {
    return make("stablehlo.compare", {lhs, rhs}, typeOf(lhs).clone(builder.getI1Type()),
                builder.getNamedAttr("comparison_direction", hlo::ComparisonDirectionAttr::get(
                                                                 builder.getContext(), direction)));
  }

  /// The first or the second half of a value's tokens.
  Value half(Value value, int64_t dim, bool second);
  Value joined(Value first, Value second, int64_t dim);
  Values halves(ValueRange values, ArrayRef<int64_t> dims, bool second);
  /// The value on the next device of the ring.
  Value next(Value value);
  Values next(ValueRange values) {
    return llvm::map_to_vector(values, [&](Value value) { return next(value); });
  }
  /// From halves 2 i and 2 i + 1 of all tokens, on place i, to i and 2 n - 1 - i; and back.
  Value balanced(Value value, int64_t dim, bool back);
  Values kernel(ValueRange operands, ArrayRef<Type> types, bool isCausal);
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
  Values outputOf(Value step, Value query, Value key, Value value, ArrayRef<Type> types);
  Values gradientsOf(Value step, ValueRange queries, Value key, Value value, ArrayRef<Type> types);
  RankedTensorType halved(Type type, int64_t dim) {
    auto tensor = cast<RankedTensorType>(type);
    SmallVector<int64_t> shape(tensor.getShape());
    shape[dim] /= 2;
    return tensor.clone(shape);
  }

  OpBuilder &builder;
  const AttentionCall &call;
  const Ring &ring;
  Location loc;
};

} // namespace

Value RingWriter::half(Value value, int64_t dim, bool second) {
  RankedTensorType type = halved(value.getType(), dim);
  SmallVector<int64_t> starts(type.getRank(), 0), ends(type.getShape()), ones(type.getRank(), 1);
  if (second) {
    starts[dim] = type.getDimSize(dim);
    ends[dim] = 2 * type.getDimSize(dim);
  }
  return hlo::SliceOp::create(builder, loc, type, value, builder.getDenseI64ArrayAttr(starts),
                              builder.getDenseI64ArrayAttr(ends),
                              builder.getDenseI64ArrayAttr(ones));
}

SmallVector<Value> RingWriter::halves(ValueRange values, ArrayRef<int64_t> dims, bool second) {
  Values parts;
  for (auto [value, dim] : llvm::zip_equal(values, dims))
    parts.push_back(half(value, dim, second));
  return parts;
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
  auto choose = [&](Value onTrue, Value onFalse) {
    return make("stablehlo.select", {isEven, onTrue, onFalse}, onTrue.getType());
  };
  Value first = half(value, dim, false), second = half(value, dim, true);
  if (back) {
    Value evens = choose(first, second), odds = choose(second, first);
    return joined(ring.send(evens, even), ring.send(odds, odd), dim);
  }
  Value evens = ring.send(first, even), odds = ring.send(second, odd);
  return joined(choose(evens, odds), choose(odds, evens), dim);
}

SmallVector<Value> RingWriter::kernel(ValueRange operands, ArrayRef<Type> types, bool isCausal) {
  hlo::CustomCallOp whole = call.op;
  auto made = cast<hlo::CustomCallOp>(builder.clone(*whole.getOperation()));
  made->setOperands(operands);
  for (NamedAttribute attribute : llvm::to_vector(made->getDiscardableAttrs()))
    if (attribute.getName().strref().starts_with("alpa."))
      made->removeDiscardableAttr(attribute.getName());
  for (auto [result, type] : llvm::zip(made->getResults(), types))
    result.setType(type);
  analysis::setCausal(made, isCausal);
  analysis::fitAttention(made);
  return llvm::to_vector_of<Value>(made->getResults().take_front(types.size()));
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
  return make(
      "stablehlo.broadcast_in_dim", rows, like.getType(),
      builder.getNamedAttr("broadcast_dimensions", builder.getDenseI64ArrayAttr({0, 1, 2})));
}

SmallVector<Value> RingWriter::begun(Values found) {
  Value statistics = real(found[1]);
  return {real(found[0]), statistics, filled(typeOf(statistics), 1)};
}

SmallVector<Value> RingWriter::merged(ValueRange known, Values found) {
  Value statistics = real(found[1]), most = binary("stablehlo.maximum", known[1], statistics);
  Value before = exponential(binary("stablehlo.subtract", known[1], most));
  Value now = exponential(binary("stablehlo.subtract", statistics, most));
  auto weighted = [&](Value value, Value weight) {
    return binary("stablehlo.multiply", value, spread(weight, value));
  };
  return {add(weighted(known[0], before), weighted(real(found[0]), now)), most,
          add(binary("stablehlo.multiply", known[2], before), now)};
}

SmallVector<Value> RingWriter::outputOf(Value step, Value query, Value key, Value value,
                                        ArrayRef<Type> types) {
  if (!call.isCausal)
    return kernel({query, key, value}, types, false);
  int64_t dim = call.tokenDim();
  return earlierOrLater(
      step,
      [&] { return kernel({query, half(key, dim, false), half(value, dim, false)}, types, false); },
      [&] {
        Type output = halved(types[0], 2), statistics = halved(types[1], 2);
        Values found = kernel({half(query, dim, true), key, value}, {output, statistics}, false);
        Value nothing = filled(cast<RankedTensorType>(output), 0);
        Value least =
            filled(cast<RankedTensorType>(statistics), -std::numeric_limits<double>::infinity());
        return Values{joined(nothing, found[0], 2), joined(least, found[1], 2)};
      });
}

SmallVector<Value> RingWriter::forward(ValueRange parts, TypeRange types) {
  int64_t dim = call.tokenDim();
  Values given = llvm::to_vector(parts);
  if (call.isCausal)
    for (Value &each : given)
      each = balanced(each, dim, false);
  SmallVector<Type> own{types[0], types[1]};
  Values keys = next(ValueRange{given[1], given[2]});
  Values known = begun(kernel(given, own, call.isCausal));
  Values sums = around(known, keys, [&](Value number, ValueRange known, ValueRange keys) {
    return merged(known, outputOf(number, given[0], keys[0], keys[1], own));
  });
  Value output = binary("stablehlo.divide", sums[0], spread(sums[2], sums[0]));
  Value statistics = add(sums[1], make("stablehlo.log", sums[2], sums[2].getType()));
  Values found{convert(output, cast<RankedTensorType>(types[0]).getElementType()),
               convert(statistics, cast<RankedTensorType>(types[1]).getElementType())};
  if (call.isCausal)
    for (Value &each : found)
      each = balanced(each, 2, true);
  return found;
}

/// `queries` are the query, the statistics, the gradient of the output, and the output.
SmallVector<Value> RingWriter::gradientsOf(Value step, ValueRange queries, Value key, Value value,
                                           ArrayRef<Type> types) {
  int64_t dim = call.tokenDim();
  auto run = [&](ValueRange rows, Value keys, Value values, ArrayRef<Type> own, bool isCausal) {
    hlo::CustomCallOp whole = call.op;
    Values operands(whole->getNumOperands());
    operands[0] = rows[0];
    operands[1] = keys;
    operands[2] = values;
    operands[call.statistics] = rows[1];
    operands[call.outputGradient] = rows[2];
    operands[call.output] = rows[3];
    Values found = kernel(operands, own, isCausal);
    for (Value &each : found)
      each = real(each);
    return found;
  };
  if (!step || !call.isCausal)
    return run(queries, key, value, types, call.isCausal);
  auto nothing = [&](Value like) { return filled(typeOf(like), 0); };
  return earlierOrLater(
      step,
      [&] {
        Values found = run(queries, half(key, dim, false), half(value, dim, false),
                           {types[0], halved(types[1], 2), halved(types[2], 2)}, false);
        return Values{found[0], joined(found[1], nothing(found[1]), 2),
                      joined(found[2], nothing(found[2]), 2)};
      },
      [&] {
        Values found = run(halves(queries, {dim, 2, dim, dim}, true), key, value,
                           {halved(types[0], 2), types[1], types[2]}, false);
        return Values{joined(nothing(found[0]), found[0], 2), found[1], found[2]};
      });
}

SmallVector<Value> RingWriter::backward(ValueRange parts, TypeRange types) {
  int64_t dim = call.tokenDim();
  Values given = llvm::to_vector(parts);
  if (call.isCausal)
    for (auto [index, each] : llvm::enumerate(given))
      each = balanced(each, static_cast<int>(index) == call.statistics ? 2 : dim, false);
  Values queries{given[0], given[call.statistics], given[call.outputGradient], given[call.output]};
  SmallVector<Type> own{types[0], types[1], types[2]};
  Values keys = next(ValueRange{given[1], given[2]});
  Values known = gradientsOf(Value(), queries, given[1], given[2], own);
  // Gradients of keys and values follow them, one step behind.
  Values found = around(known, keys, [&](Value number, ValueRange known, ValueRange keys) {
    Values sums = next(known.drop_front());
    Values found = gradientsOf(number, queries, keys[0], keys[1], own);
    return Values{add(known[0], found[0]), add(sums[0], found[1]), add(sums[1], found[2])};
  });
  Values home = next(ValueRange(found).drop_front());
  Values gradients{found[0], home[0], home[1]};
  for (auto [each, type] : llvm::zip_equal(gradients, own)) {
    each = convert(each, cast<RankedTensorType>(type).getElementType());
    if (call.isCausal)
      each = balanced(each, 2, true);
  }
  return gradients;
}

SmallVector<Value> spmd::writeRing(OpBuilder &builder, const AttentionCall &call, ValueRange parts,
                                   TypeRange types, const Ring &ring) {
  RingWriter writer(builder, call, ring);
  SmallVector<Value> results =
      call.isBackward ? writer.backward(parts, types) : writer.forward(parts, types);
  // The workspace of kernels, which nobody reads.
  for (Type type : types.drop_front(results.size()))
    results.push_back(hlo::ConstantOp::create(
        builder, hlo::CustomCallOp(call.op).getLoc(),
        cast<ElementsAttr>(analysis::splatOf(0, cast<RankedTensorType>(type)))));
  return results;
}
