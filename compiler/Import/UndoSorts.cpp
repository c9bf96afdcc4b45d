//===- UndoSorts.cpp - products of sorted rows, without the order ---------===//
//
// Experts without a capacity sort tokens by their expert, multiply runs of rows with
// `chlo.ragged_dot`, and put the rows back into the old order. A sort needs all rows; but
// what happens between the sort and its inverse treats rows alike. So each value of sorted
// rows is the image of one in the old order, and an op that treats rows alike makes the
// image of what it makes of the old order:
//
//   gather(x, perm)              image of x
//   op(image of a, image of b)   image of op(a, b), for elementwise ops and products of rows
//   ragged_dot(image of a, w, n) image of grouped_dot(a, w, g), if n counts the groups g
//                                that the rows are sorted by
//   gather(image of a, inverse)  a
//   sum over rows of images      the sum of what they are images of
//
// The values on the right are made beside the old ones, and take their place if no product
// of sorted rows is left.
//
// A sort along the last dimension of keys with others sorts each batch by itself. Images of
// it have the same dimensions first, and one batch's rows are the rows of one list less.
//
//===----------------------------------------------------------------------===//

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Import/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Chlo/ChloOps.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Matchers.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/TypeSwitch.h"
#include <limits>
#include <map>
#include <numeric>

namespace alpa::importer {
#define GEN_PASS_DEF_ALPAUNDOSORTS
#include "compiler/Import/Passes.h.inc"
} // namespace alpa::importer

using namespace mlir;
using namespace alpa;
namespace hlo = mlir::stablehlo;
using analysis::isSplatOf;
using analysis::splatOf;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }
static ArrayRef<int64_t> shapeOf(Value value) { return typeOf(value).getShape(); }

/// Whether they are all numbers from `first` on.
static bool counts(ArrayRef<int64_t> dims, int64_t first) {
  for (auto [i, dim] : llvm::enumerate(dims))
    if (dim != int64_t(i) + first)
      return false;
  return true;
}

static int64_t numElementsOf(ArrayRef<int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t(1), std::multiplies<>());
}

//===----------------------------------------------------------------------===//
// Integers that a program computes of constants
//===----------------------------------------------------------------------===//

namespace {

/// Looks through values that were found equal to others.
using Equal = llvm::DenseMap<Value, Value>;

class Integers {
public:
  Integers(const Equal &equal, Block &block) : equal(equal), block(block) {}

  Value resolve(Value value) const {
    for (auto it = equal.find(value); it != equal.end(); it = equal.find(value))
      value = it->second;
    return value;
  }
  /// The value itself behind reshapes, barriers, and conversions to wider integers.
  Value rootOf(Value value) const;

  /// Whether a value follows from constants alone, and its element i, in row-major order, is
  /// i / `length` % `count`.
  bool isSteps(Value value, int64_t length, int64_t count) {
    return areSteps(value, {1, length, count, 0});
  }
  /// The same for one number that all elements are.
  bool isAll(Value value, int64_t number) { return areSteps(value, Steps::of(number)); }

  /// The least and the greatest element, if something bounds them.
  std::optional<std::pair<int64_t, int64_t>> rangeOf(Value value, unsigned depth = 0) const;

  /// An index into a dimension: a number, or any, where kAny - d stands for dimension d of
  /// who asks.
  static constexpr int64_t kAny = -1;
  using Index = SmallVector<int64_t, 4>;
  /// A value whose elements are not known. Its first dimensions, those of `batches`, are also
  /// the first ones of who asks.
  struct Leaf {
    Value value;
    ArrayRef<int64_t> batches;
    int64_t number = 0;
  };
  /// The element at an index, where each element of the leaf is its number; nothing unless it
  /// depends on what is any through the leaf alone, of which it reads the one element that
  /// all of these dimensions together say, in the batch of who asks.
  std::optional<int64_t> at(Value value, const Index &index, const Leaf &leaf, unsigned depth = 0);

  /// Equal for values of the block that are computed alike, as a backward pass computes again
  /// what the forward pass has computed. In the order of the block nothing recurses far.
  unsigned numberOf(Value value);

private:
  Value operandOf(OpResult result);
  /// A list of words of its own for each computation.
  using Key = std::vector<uintptr_t>;
  /// Appends what the op and its regions compute; not of ops whose results may differ. Values
  /// defined in its regions are `inner`.
  bool describe(Operation *op, llvm::DenseMap<Value, unsigned> &inner, Key &key);
  static std::optional<int64_t> combine(Operation *op, ArrayRef<int64_t> args);
  static int64_t wrap(APInt value, Type type) {
    return cast<IntegerType>(type).isUnsigned() || type.isInteger(1)
               ? static_cast<int64_t>(value.getZExtValue())
               : value.getSExtValue();
  }

  const Equal &equal;
  Block &block;
  std::map<Key, unsigned> numbers; // Of an op's first result.
  llvm::DenseMap<Value, unsigned> numbered;
  unsigned nextNumber = 0;

  /// Element i of a part is `scale` * (i / `length` % `count`) + `first`.
  struct Steps {
    int64_t scale, length, count, first;

    static constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();
    static Steps of(int64_t number) { return {0, 1, kEndless, number}; }
    bool isNumber() const { return scale == 0; }
    /// The least and the greatest element.
    std::optional<std::pair<int64_t, int64_t>> range(int64_t begin, int64_t end) const;
    /// Written in one way only.
    std::optional<Steps> normal(int64_t begin, int64_t end) const;
    bool operator==(const Steps &other) const {
      return scale == other.scale && length == other.length && count == other.count &&
             first == other.first;
    }
  };
  /// Elements [begin, end) of values, as far as they are steps; and the work that is left.
  struct Walk {
    unsigned left = 1 << 12;
    std::map<std::tuple<unsigned, int64_t, int64_t>, std::optional<Steps>> found;
  };
  std::optional<Steps> stepsOf(Value value, int64_t begin, int64_t end, Walk &walk);
  std::optional<Steps> makeSteps(Value value, int64_t begin, int64_t end, Walk &walk);
  std::optional<Steps> spreadSteps(hlo::BroadcastInDimOp op, int64_t begin, int64_t end,
                                   Walk &walk);
  std::optional<Steps> stepsOf(DenseElementsAttr dense, Type type);
  static std::optional<Steps> combineSteps(Operation *op, ArrayRef<Steps> args, int64_t begin,
                                           int64_t end);
  bool areSteps(Value value, const Steps &wanted);
  bool areSteps(Value value, const Steps &wanted, int64_t begin, int64_t end, Walk &walk);

  llvm::DenseMap<Attribute, std::optional<Steps>> constants;
};

} // namespace

static IntegerType integerOf(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  auto element = type ? dyn_cast<IntegerType>(type.getElementType()) : IntegerType();
  return element && element.getWidth() <= 64 ? element : IntegerType();
}

static bool widens(hlo::ConvertOp op) {
  IntegerType from = integerOf(op.getOperand()), to = integerOf(op.getResult());
  return from && to && from.getWidth() <= to.getWidth() && from.isUnsigned() == to.isUnsigned() &&
         (from.getWidth() > 1 || to.getWidth() > 1);
}

Value Integers::rootOf(Value value) const {
  while (true) {
    value = resolve(value);
    Operation *op = value.getDefiningOp();
    if (!op)
      return value;
    if (isa<hlo::OptimizationBarrierOp>(op))
      value = op->getOperand(cast<OpResult>(value).getResultNumber());
    else if (isa<hlo::ReshapeOp>(op))
      value = op->getOperand(0);
    else if (auto convert = dyn_cast<hlo::ConvertOp>(op); convert && widens(convert))
      value = op->getOperand(0);
    else
      return value;
  }
}

/// One element of an elementwise op on integers, as the op's type holds it.
std::optional<int64_t> Integers::combine(Operation *op, ArrayRef<int64_t> args) {
  IntegerType type = integerOf(op->getResult(0));
  if (!type || op->getNumResults() != 1)
    return std::nullopt;
  auto made = [&](APInt value) -> std::optional<int64_t> { return wrap(std::move(value), type); };
  unsigned width = type.getWidth();
  auto bits = [&](unsigned i) {
    return APInt(width, static_cast<uint64_t>(args[i]), /*isSigned=*/true, /*implicitTrunc=*/true);
  };
  bool isUnsigned = type.isUnsigned() || width == 1;
  if (auto compare = dyn_cast<hlo::CompareOp>(op)) {
    IntegerType compared = integerOf(op->getOperand(0));
    if (!compared || (compared.isUnsigned() && compared.getWidth() == 64))
      return std::nullopt;
    switch (compare.getComparisonDirection()) {
    case hlo::ComparisonDirection::EQ:
      return args[0] == args[1];
    case hlo::ComparisonDirection::NE:
      return args[0] != args[1];
    case hlo::ComparisonDirection::GE:
      return args[0] >= args[1];
    case hlo::ComparisonDirection::GT:
      return args[0] > args[1];
    case hlo::ComparisonDirection::LE:
      return args[0] <= args[1];
    case hlo::ComparisonDirection::LT:
      return args[0] < args[1];
    }
    return std::nullopt;
  }
  return llvm::TypeSwitch<Operation *, std::optional<int64_t>>(op)
      .Case([&](hlo::ConvertOp convert) -> std::optional<int64_t> {
        if (width == 1)
          return args[0] != 0;
        return made(bits(0));
      })
      .Case([&](hlo::SelectOp) { return std::optional(args[0] ? args[1] : args[2]); })
      .Case([&](hlo::AddOp) -> std::optional<int64_t> {
        return width == 1 ? std::nullopt : made(bits(0) + bits(1));
      })
      .Case([&](hlo::SubtractOp) -> std::optional<int64_t> {
        return width == 1 ? std::nullopt : made(bits(0) - bits(1));
      })
      .Case([&](hlo::MulOp) -> std::optional<int64_t> {
        return width == 1 ? std::nullopt : made(bits(0) * bits(1));
      })
      .Case([&](hlo::DivOp) -> std::optional<int64_t> {
        if (bits(1).isZero() || (!isUnsigned && bits(0).isMinSignedValue()))
          return std::nullopt;
        return made(isUnsigned ? bits(0).udiv(bits(1)) : bits(0).sdiv(bits(1)));
      })
      .Case([&](hlo::RemOp) -> std::optional<int64_t> {
        if (bits(1).isZero() || (!isUnsigned && bits(0).isMinSignedValue()))
          return std::nullopt;
        return made(isUnsigned ? bits(0).urem(bits(1)) : bits(0).srem(bits(1)));
      })
      .Case([&](hlo::MaxOp) -> std::optional<int64_t> {
        return isUnsigned && width == 64 ? std::nullopt : std::optional(std::max(args[0], args[1]));
      })
      .Case([&](hlo::MinOp) -> std::optional<int64_t> {
        return isUnsigned && width == 64 ? std::nullopt : std::optional(std::min(args[0], args[1]));
      })
      .Case([&](hlo::ClampOp) -> std::optional<int64_t> {
        return isUnsigned && width == 64
                   ? std::nullopt
                   : std::optional(std::min(std::max(args[0], args[1]), args[2]));
      })
      .Case([&](hlo::AndOp) { return made(bits(0) & bits(1)); })
      .Case([&](hlo::OrOp) { return made(bits(0) | bits(1)); })
      .Case([&](hlo::XorOp) { return made(bits(0) ^ bits(1)); })
      .Case([&](hlo::NotOp) { return made(~bits(0)); })
      .Case([&](hlo::NegOp) { return made(-bits(0)); })
      .Case([&](hlo::SignOp) -> std::optional<int64_t> {
        return isUnsigned ? std::optional(int64_t(args[0] != 0))
                          : std::optional(int64_t(args[0] > 0) - int64_t(args[0] < 0));
      })
      .Default([](Operation *) { return std::nullopt; });
}

bool Integers::describe(Operation *op, llvm::DenseMap<Value, unsigned> &inner, Key &key) {
  auto add = [&](const void *pointer) { key.push_back(reinterpret_cast<uintptr_t>(pointer)); };
  NamedAttrList own;
  for (NamedAttribute attribute : op->getAttrDictionary())
    if (!attribute.getName().strref().starts_with("alpa."))
      own.push_back(attribute);
  add(op->getName().getAsOpaquePointer());
  add(own.getDictionary(op->getContext()).getAsOpaquePointer());
  key.insert(key.end(), {op->getNumOperands(), op->getNumResults(), op->getNumRegions()});
  for (Type type : op->getResultTypes())
    add(type.getAsOpaquePointer());
  for (Value operand : op->getOperands()) {
    auto it = inner.find(operand);
    key.push_back(it == inner.end() ? uintptr_t(numberOf(operand)) * 2
                                    : uintptr_t(it->second) * 2 + 1);
  }
  for (Region &region : op->getRegions()) {
    if (!region.hasOneBlock())
      return false;
    key.insert(key.end(), {region.getNumArguments(), region.front().getOperations().size()});
    for (BlockArgument argument : region.getArguments()) {
      add(argument.getType().getAsOpaquePointer());
      inner.try_emplace(argument, inner.size());
    }
    for (Operation &each : region.front()) {
      if (!describe(&each, inner, key))
        return false;
      for (Value result : each.getResults())
        inner.try_emplace(result, inner.size());
    }
  }
  return isMemoryEffectFree(op) && !isa<hlo::RngOp, hlo::CustomCallOp>(op);
}

/// The operand that a result is, if it is always the same one.
Value Integers::operandOf(OpResult result) {
  Operation *op = result.getDefiningOp();
  if (isa<hlo::OptimizationBarrierOp>(op))
    return op->getOperand(result.getResultNumber());
  if (auto rounded = dyn_cast<hlo::ReducePrecisionOp>(op)) {
    Type type = typeOf(result).getElementType();
    if (!type.isBF16() && !type.isF16() && !type.isF32() && !type.isF64())
      return {};
    auto width = cast<FloatType>(type).getWidth(),
         digits = cast<FloatType>(type).getFPMantissaWidth();
    return rounded.getExponentBits() >= width - digits && rounded.getMantissaBits() >= digits - 1
               ? rounded.getOperand()
               : Value();
  }
  if (!isa<hlo::SelectOp>(op))
    return {};
  return isAll(op->getOperand(0), 1)   ? op->getOperand(1)
         : isAll(op->getOperand(0), 0) ? op->getOperand(2)
                                       : Value();
}

unsigned Integers::numberOf(Value value) {
  value = resolve(value);
  if (auto it = numbered.find(value); it != numbered.end())
    return it->second;
  Operation *op = value.getDefiningOp();
  if (op && op->getBlock() == &block)
    if (Value same = operandOf(cast<OpResult>(value))) {
      unsigned number = numberOf(same);
      return numbered[value] = number;
    }
  Key key;
  llvm::DenseMap<Value, unsigned> inner;
  if (!op || op->getBlock() != &block || !describe(op, inner, key))
    return numbered[value] = nextNumber++;
  auto [it, isNew] = numbers.try_emplace(std::move(key), nextNumber);
  if (isNew)
    nextNumber += op->getNumResults();
  for (auto [i, result] : llvm::enumerate(op->getResults()))
    numbered[result] = it->second + i;
  return numbered[value];
}

std::optional<std::pair<int64_t, int64_t>> Integers::Steps::range(int64_t begin,
                                                                  int64_t end) const {
  int64_t low = begin / length, high = (end - 1) / length, least = 0, most = 0;
  bool hasAll = high - low >= count - 1 || low % count > high % count;
  low = hasAll ? 0 : low % count;
  high = hasAll ? count - 1 : high % count;
  if (llvm::MulOverflow(scale, low, least) || llvm::MulOverflow(scale, high, most) ||
      llvm::AddOverflow(least, first, least) || llvm::AddOverflow(most, first, most))
    return std::nullopt;
  return std::pair(std::min(least, most), std::max(least, most));
}

std::optional<Integers::Steps> Integers::Steps::normal(int64_t begin, int64_t end) const {
  auto found = range(begin, end);
  if (!found)
    return std::nullopt;
  if (found->first == found->second)
    return of(found->first);
  Steps made = *this;
  if ((end - 1) / length < count)
    made.count = kEndless;
  return made;
}

/// Of an elementwise op on integers; nothing also where only parts of its elements are steps.
std::optional<Integers::Steps> Integers::combineSteps(Operation *op, ArrayRef<Steps> args,
                                                      int64_t begin, int64_t end) {
  using Range = std::optional<std::pair<int64_t, int64_t>>;
  using Result = std::optional<Steps>;
  if (llvm::all_of(args, [](const Steps &each) { return each.isNumber(); })) {
    auto numbers = llvm::map_to_vector<3>(args, [](const Steps &each) { return each.first; });
    std::optional<int64_t> made = combine(op, numbers);
    return made ? Result(Steps::of(*made)) : std::nullopt;
  }
  IntegerType type = integerOf(op->getResult(0));
  unsigned width = type.getWidth();
  auto range = [&](const Steps &steps) { return steps.range(begin, end); };
  // As the op's type holds it.
  auto fitted = [&](Result steps) -> Result {
    Range found = steps ? range(*steps) : std::nullopt;
    bool isSigned = !type.isUnsigned() && width > 1;
    int64_t most = width - isSigned >= 63 ? std::numeric_limits<int64_t>::max()
                                          : (int64_t(1) << (width - isSigned)) - 1;
    if (!found || found->first < (isSigned ? -most - 1 : 0) || found->second > most)
      return std::nullopt;
    return steps->normal(begin, end);
  };
  auto scaled = [](Steps steps, int64_t by, int64_t more) -> Result {
    if (llvm::MulOverflow(steps.scale, by, steps.scale) ||
        llvm::MulOverflow(steps.first, by, steps.first) ||
        llvm::AddOverflow(steps.first, more, steps.first))
      return std::nullopt;
    return steps;
  };
  auto sum = [&](const Steps &a, const Steps &b, int64_t sign) -> Result {
    Result other = scaled(b, sign, 0);
    if (!other || other->isNumber() || a.isNumber())
      return !other              ? Result()
             : other->isNumber() ? scaled(a, 1, other->first)
                                 : scaled(*other, 1, a.first);
    Result both = scaled(a, 1, other->first);
    if (!both || a.length != b.length || a.count != b.count ||
        llvm::AddOverflow(both->scale, other->scale, both->scale))
      return std::nullopt;
    return both;
  };
  auto difference = [&]() -> Range {
    Result found = sum(args[0], args[1], -1);
    return found ? range(*found) : std::nullopt;
  };
  auto greater = [&](bool isWanted) -> Result {
    Range found = difference();
    if (!found || (found->first < 0 && found->second > 0))
      return std::nullopt;
    return args[(found->first >= 0) == isWanted ? 0 : 1];
  };
  // Elements that are not negative, by a number.
  auto quotient = [&](bool isRest) -> Result {
    const Steps &steps = args[0];
    Range found = range(steps);
    int64_t by = args[1].first, length = 0;
    if (!args[1].isNumber() || by <= 0 || !found || found->first < 0)
      return std::nullopt;
    bool isEndless = steps.count == Steps::kEndless;
    if (isRest) {
      if (found->second < by)
        return steps;
      if (steps.scale != 1 || steps.first != 0 || (!isEndless && steps.count % by != 0))
        return std::nullopt;
      return Steps{1, steps.length, by, 0}.normal(begin, end);
    }
    if (steps.first >= 0 && steps.scale % by == 0)
      return Steps{steps.scale / by, steps.length, steps.count, steps.first / by};
    if (steps.scale <= 0 || by % steps.scale != 0 || steps.first < 0 || steps.first >= steps.scale)
      return std::nullopt;
    int64_t longer = by / steps.scale;
    if ((!isEndless && steps.count % longer != 0) ||
        llvm::MulOverflow(steps.length, longer, length))
      return std::nullopt;
    return Steps{1, length, isEndless ? Steps::kEndless : steps.count / longer, 0}.normal(begin,
                                                                                          end);
  };
  auto decided = [](bool isKnown, bool value) {
    return isKnown ? Result(Steps::of(value)) : std::nullopt;
  };
  if (auto compare = dyn_cast<hlo::CompareOp>(op)) {
    IntegerType compared = integerOf(op->getOperand(0));
    Range found = difference();
    if (!found || (compared.isUnsigned() && compared.getWidth() == 64))
      return std::nullopt;
    auto [least, most] = *found;
    bool areEqual = least == 0 && most == 0, areNot = least > 0 || most < 0;
    switch (compare.getComparisonDirection()) {
    case hlo::ComparisonDirection::EQ:
      return decided(areEqual || areNot, areEqual);
    case hlo::ComparisonDirection::NE:
      return decided(areEqual || areNot, areNot);
    case hlo::ComparisonDirection::GE:
      return decided(least >= 0 || most < 0, least >= 0);
    case hlo::ComparisonDirection::LT:
      return decided(least >= 0 || most < 0, most < 0);
    case hlo::ComparisonDirection::GT:
      return decided(least > 0 || most <= 0, least > 0);
    case hlo::ComparisonDirection::LE:
      return decided(least > 0 || most <= 0, most <= 0);
    }
  }
  if (width == 1)
    return std::nullopt;
  return llvm::TypeSwitch<Operation *, Result>(op)
      .Case([&](hlo::ConvertOp) { return fitted(args[0]); })
      .Case([&](hlo::AddOp) { return fitted(sum(args[0], args[1], 1)); })
      .Case([&](hlo::SubtractOp) { return fitted(sum(args[0], args[1], -1)); })
      .Case([&](hlo::MulOp) {
        bool isFirst = args[0].isNumber(), isAny = isFirst || args[1].isNumber();
        return isAny ? fitted(scaled(args[isFirst], args[!isFirst].first, 0)) : Result();
      })
      .Case([&](hlo::NegOp) { return fitted(scaled(args[0], -1, 0)); })
      .Case([&](hlo::DivOp) { return quotient(/*isRest=*/false); })
      .Case([&](hlo::RemOp) { return quotient(/*isRest=*/true); })
      .Case([&](hlo::MaxOp) { return greater(true); })
      .Case([&](hlo::MinOp) { return greater(false); })
      .Case([&](hlo::SignOp) {
        Range found = range(args[0]);
        return decided(found && found->first > 0, true);
      })
      .Default([](Operation *) { return std::nullopt; });
}

/// Of a constant that is no splat.
std::optional<Integers::Steps> Integers::stepsOf(DenseElementsAttr dense, Type type) {
  auto [it, isNew] = constants.try_emplace(dense);
  if (!isNew)
    return it->second;
  auto values = llvm::map_to_vector<0>(dense.getValues<APInt>(),
                                       [&](const APInt &each) { return wrap(each, type); });
  auto size = static_cast<int64_t>(values.size());
  int64_t length = 1;
  while (length < size && values[length] == values[0])
    ++length;
  Steps steps{0, length, Steps::kEndless, values[0]};
  if (length < size && llvm::SubOverflow(values[length], values[0], steps.scale))
    return std::nullopt;
  for (int64_t i = length; i < size && steps.count == Steps::kEndless; i += length)
    if (values[i] == values[0])
      steps.count = i / length;
  for (int64_t i = 0; i < size; ++i) {
    int64_t each = 0;
    if (llvm::MulOverflow(steps.scale, i / length % steps.count, each) ||
        llvm::AddOverflow(each, steps.first, each) || each != values[i])
      return std::nullopt;
  }
  return it->second = steps;
}

std::optional<Integers::Steps> Integers::spreadSteps(hlo::BroadcastInDimOp op, int64_t begin,
                                                     int64_t end, Walk &walk) {
  auto after = [](ArrayRef<int64_t> shape, int64_t dim) {
    return numElementsOf(shape.drop_front(dim + 1));
  };
  Value operand = op.getOperand();
  ArrayRef<int64_t> source = shapeOf(operand), shape = shapeOf(op.getResult());
  int64_t size = numElementsOf(source), place = 0;
  SmallVector<int64_t> dims;
  for (auto [dim, into] : llvm::enumerate(op.getBroadcastDimensions()))
    if (source[dim] != 1) {
      dims.push_back(into);
      place += begin / after(shape, into) % shape[into] * after(source, int64_t(dim));
    }
  if (begin + 1 == end || size == 1)
    return stepsOf(operand, place, place + 1, walk);
  // Dimensions of the source stay side by side.
  for (size_t i = 1; i < dims.size(); ++i)
    if (dims[i] <= dims[i - 1] ||
        after(shape, dims[i - 1]) != shape[dims[i]] * after(shape, dims[i]))
      return std::nullopt;
  int64_t inner = after(shape, dims.back()), low = begin / inner, high = (end - 1) / inner;
  bool isPart = low / size == high / size; // Of one of the repeated sources.
  std::optional<Steps> steps =
      stepsOf(operand, isPart ? low % size : 0, isPart ? high % size + 1 : size, walk);
  if (!steps || steps->isNumber())
    return steps;
  Steps made{steps->scale, steps->length * inner, steps->count, steps->first};
  if (high >= size && steps->count == Steps::kEndless)
    made.count = size / steps->length;
  int64_t period = high < size ? size : made.count * steps->length;
  return size % period == 0 ? made.normal(begin, end) : std::nullopt;
}

std::optional<Integers::Steps> Integers::makeSteps(Value value, int64_t begin, int64_t end,
                                                   Walk &walk) {
  Operation *op = value.getDefiningOp();
  if (!op || !integerOf(value) || op->getNumRegions() > 0 || begin == end)
    return std::nullopt;
  if (isa<hlo::ReshapeOp, hlo::OptimizationBarrierOp>(op))
    return stepsOf(op->getOperand(cast<OpResult>(value).getResultNumber()), begin, end, walk);
  ArrayRef<int64_t> shape = shapeOf(value);
  if (isa<hlo::ConstantOp>(op)) {
    DenseElementsAttr dense;
    if (!matchPattern(op, m_Constant(&dense)))
      return std::nullopt;
    Type type = typeOf(value).getElementType();
    if (dense.isSplat() || begin + 1 == end)
      return Steps::of(
          wrap(*(dense.getValues<APInt>().begin() + (dense.isSplat() ? 0 : begin)), type));
    std::optional<Steps> steps = stepsOf(dense, type);
    return steps ? steps->normal(begin, end) : std::nullopt;
  }
  if (auto iota = dyn_cast<hlo::IotaOp>(op)) {
    auto dim = static_cast<int64_t>(iota.getIotaDimension());
    unsigned width = integerOf(value).getWidth();
    if (width < 63 && shape[dim] > (int64_t(1) << (width - 1)))
      return std::nullopt;
    return Steps{1, numElementsOf(shape.drop_front(dim + 1)), shape[dim], 0}.normal(begin, end);
  }
  if (auto spread = dyn_cast<hlo::BroadcastInDimOp>(op))
    return spreadSteps(spread, begin, end, walk);
  auto argument = [&](Value operand) -> std::optional<Steps> {
    bool isScalar = shapeOf(operand).empty() && !shape.empty();
    if (!isScalar && shapeOf(operand) != shape)
      return std::nullopt;
    return stepsOf(operand, isScalar ? 0 : begin, isScalar ? 1 : end, walk);
  };
  // What is not chosen, or is masked, may be anything.
  if (isa<hlo::SelectOp>(op)) {
    std::optional<Steps> chosen = argument(op->getOperand(0));
    return chosen && chosen->isNumber() ? argument(op->getOperand(chosen->first ? 1 : 2))
                                        : std::nullopt;
  }
  bool isMask = isa<hlo::AndOp, hlo::OrOp>(op) && integerOf(value).getWidth() == 1;
  SmallVector<Steps, 3> args;
  for (Value operand : op->getOperands()) {
    std::optional<Steps> arg = argument(operand);
    if (arg && isMask && *arg == Steps::of(isa<hlo::OrOp>(op)))
      return arg;
    if (arg)
      args.push_back(*arg);
    else if (!isMask)
      return std::nullopt;
  }
  return !args.empty() && args.size() == op->getNumOperands() && op->getNumResults() == 1
             ? combineSteps(op, args, begin, end)
             : std::nullopt;
}

std::optional<Integers::Steps> Integers::stepsOf(Value value, int64_t begin, int64_t end,
                                                 Walk &walk) {
  value = resolve(value);
  std::tuple key{numberOf(value), begin, end};
  if (auto it = walk.found.find(key); it != walk.found.end())
    return it->second;
  if (walk.left == 0)
    return std::nullopt;
  --walk.left;
  return walk.found[key] = makeSteps(value, begin, end, walk);
}

/// Halves the elements where they are not seen to be the same steps all through: a quotient may
/// ask for the sign of what is divided, and the first element alone is zero.
bool Integers::areSteps(Value value, const Steps &wanted, int64_t begin, int64_t end, Walk &walk) {
  std::optional<Steps> found = stepsOf(value, begin, end, walk);
  if (found && found == wanted.normal(begin, end))
    return true;
  int64_t middle = begin + (end - begin) / 2;
  return walk.left > 0 && begin + 1 < end && areSteps(value, wanted, begin, middle, walk) &&
         areSteps(value, wanted, middle, end, walk);
}

bool Integers::areSteps(Value value, const Steps &wanted) {
  Walk walk;
  return integerOf(value) && areSteps(value, wanted, 0, typeOf(value).getNumElements(), walk);
}

/// What a reduction's body returns in place `result`, if it chooses among the two elements
/// that it was given there.
static bool choosesAmong(Value value, Block &body, unsigned result, unsigned count) {
  if (auto argument = dyn_cast<BlockArgument>(value))
    return argument.getOwner() == &body && argument.getArgNumber() % count == result;
  Operation *op = value.getDefiningOp();
  if (isa_and_nonnull<hlo::SelectOp>(op))
    return choosesAmong(op->getOperand(1), body, result, count) &&
           choosesAmong(op->getOperand(2), body, result, count);
  return isa_and_nonnull<hlo::MinOp, hlo::MaxOp>(op) &&
         choosesAmong(op->getOperand(0), body, result, count) &&
         choosesAmong(op->getOperand(1), body, result, count);
}

std::optional<std::pair<int64_t, int64_t>> Integers::rangeOf(Value value, unsigned depth) const {
  using Range = std::optional<std::pair<int64_t, int64_t>>;
  value = resolve(value);
  Operation *op = value.getDefiningOp();
  IntegerType type = integerOf(value);
  if (!op || !type || depth > 64 || (type.isUnsigned() && type.getWidth() == 64))
    return std::nullopt;
  unsigned number = cast<OpResult>(value).getResultNumber();
  auto of = [&](Value other) { return rangeOf(other, depth + 1); };
  auto hull = [&](ValueRange values) -> Range {
    Range all;
    for (Value each : values) {
      Range range = of(each);
      if (!range)
        return std::nullopt;
      all =
          all ? std::pair(std::min(all->first, range->first), std::max(all->second, range->second))
              : *range;
    }
    return all;
  };
  if (isa<hlo::ConstantOp>(op)) {
    DenseElementsAttr dense;
    if (!matchPattern(op, m_Constant(&dense)) || dense.getNumElements() == 0)
      return std::nullopt;
    int64_t least = std::numeric_limits<int64_t>::max(), most = std::numeric_limits<int64_t>::min();
    for (const APInt &each : dense.getValues<APInt>()) {
      least = std::min(least, wrap(each, type));
      most = std::max(most, wrap(each, type));
    }
    return std::pair(least, most);
  }
  if (auto iota = dyn_cast<hlo::IotaOp>(op)) {
    int64_t count = shapeOf(value)[iota.getIotaDimension()];
    bool fits = type.getWidth() >= 63 || count <= (int64_t(1) << (type.getWidth() - 1));
    return count > 0 && fits ? Range(std::pair<int64_t, int64_t>(0, count - 1)) : std::nullopt;
  }
  if (isa<chlo::TopKOp>(op)) {
    int64_t count = shapeOf(op->getOperand(0)).back();
    return number == 1 && count > 0 ? Range(std::pair<int64_t, int64_t>(0, count - 1))
                                    : std::nullopt;
  }
  if (auto convert = dyn_cast<hlo::ConvertOp>(op)) {
    Range range = integerOf(convert.getOperand()) ? of(convert.getOperand()) : std::nullopt;
    unsigned width = type.getWidth();
    int64_t most =
        width >= 63 ? std::numeric_limits<int64_t>::max() : (int64_t(1) << (width - 1)) - 1;
    return range && range->first >= 0 && range->second <= most ? range : std::nullopt;
  }
  if (isa<hlo::ReshapeOp, hlo::BroadcastInDimOp, hlo::TransposeOp, hlo::SliceOp, hlo::ReverseOp,
          hlo::DynamicSliceOp, hlo::GatherOp>(op))
    return of(op->getOperand(0));
  if (isa<hlo::OptimizationBarrierOp, hlo::SortOp>(op))
    return of(op->getOperand(number));
  if (isa<hlo::SelectOp>(op))
    return hull({op->getOperand(1), op->getOperand(2)});
  if (isa<hlo::ConcatenateOp>(op))
    return hull(op->getOperands());
  if (isa<hlo::MaxOp, hlo::MinOp>(op)) {
    // What is not known is as large as its type allows: `jnp.clip` is one of each.
    unsigned width = type.getWidth() - (type.isUnsigned() || type.isInteger(1) ? 0 : 1);
    int64_t most = width >= 63 ? std::numeric_limits<int64_t>::max() : (int64_t(1) << width) - 1;
    Range all =
        std::pair<int64_t, int64_t>(type.isUnsigned() || type.isInteger(1) ? 0 : -most - 1, most);
    Range a = of(op->getOperand(0)), b = of(op->getOperand(1));
    if (!a && !b)
      return std::nullopt;
    a = a ? a : all;
    b = b ? b : all;
    return isa<hlo::MaxOp>(op)
               ? std::pair(std::max(a->first, b->first), std::max(a->second, b->second))
               : std::pair(std::min(a->first, b->first), std::min(a->second, b->second));
  }
  if (isa<hlo::ClampOp>(op)) {
    Range low = of(op->getOperand(0)), high = of(op->getOperand(2));
    if (low && high && low->second <= high->first)
      return std::pair(low->first, high->second);
    return std::nullopt;
  }
  if (isa<hlo::RemOp>(op)) {
    Range a = of(op->getOperand(0)), b = of(op->getOperand(1));
    if (a && b && a->first >= 0 && b->first > 0)
      return std::pair<int64_t, int64_t>(0, std::min(a->second, b->second - 1));
    return std::nullopt;
  }
  if (auto reduce = dyn_cast<hlo::ReduceOp>(op)) {
    unsigned count = op->getNumResults();
    Block &body = reduce.getBody().front();
    if (!choosesAmong(body.getTerminator()->getOperand(number), body, number, count))
      return std::nullopt;
    return hull({op->getOperand(number), op->getOperand(count + number)});
  }
  return std::nullopt;
}

std::optional<int64_t> Integers::at(Value value, const Index &index, const Leaf &leaf,
                                    unsigned depth) {
  value = resolve(value);
  if (depth > 64 || !integerOf(value))
    return std::nullopt;
  ArrayRef<int64_t> shape = shapeOf(value);
  bool hasAny = llvm::any_of(index, [](int64_t each) { return each <= kAny; });
  if (numberOf(rootOf(value)) == numberOf(leaf.value)) {
    llvm::SmallDenseSet<int64_t> seen;
    for (auto [each, size] : llvm::zip_equal(index, shape))
      if (size != 1 && (each > kAny || !seen.insert(each).second))
        return std::nullopt;
    size_t next = 0;
    for (auto [batch, size] : llvm::enumerate(leaf.batches)) {
      while (size != 1 && next < shape.size() && shape[next] == 1)
        ++next;
      if (size != 1 && (next == shape.size() || shape[next] != size ||
                        index[next++] != kAny - static_cast<int64_t>(batch)))
        return std::nullopt;
    }
    return leaf.number;
  }
  Operation *op = value.getDefiningOp();
  if (!op || op->getNumRegions() > 0)
    return std::nullopt;
  if (isa<hlo::OptimizationBarrierOp>(op))
    return at(op->getOperand(cast<OpResult>(value).getResultNumber()), index, leaf, depth + 1);
  if (op->getNumResults() != 1)
    return std::nullopt;
  if (isa<hlo::ConstantOp>(op)) {
    DenseElementsAttr dense;
    if (!matchPattern(op, m_Constant(&dense)) || dense.getNumElements() == 0)
      return std::nullopt;
    if (dense.isSplat())
      return wrap(dense.getSplatValue<APInt>(), integerOf(value));
    if (hasAny)
      return std::nullopt;
    SmallVector<uint64_t> place(index.begin(), index.end());
    return wrap(dense.getValues<APInt>()[place], integerOf(value));
  }
  if (auto iota = dyn_cast<hlo::IotaOp>(op)) {
    int64_t each = index[iota.getIotaDimension()];
    return each > kAny ? std::optional(each) : std::nullopt;
  }
  if (auto spread = dyn_cast<hlo::BroadcastInDimOp>(op)) {
    ArrayRef<int64_t> source = shapeOf(op->getOperand(0));
    Index inner;
    for (auto [dim, into] : llvm::enumerate(spread.getBroadcastDimensions()))
      inner.push_back(source[dim] == 1 ? 0 : index[into]);
    return at(op->getOperand(0), inner, leaf, depth + 1);
  }
  if (isa<hlo::ReshapeOp>(op)) { // Only dimensions of size 1 come or go.
    ArrayRef<int64_t> source = shapeOf(op->getOperand(0));
    Index inner;
    size_t next = 0;
    for (int64_t size : source) {
      if (size == 1) {
        inner.push_back(0);
        continue;
      }
      while (next < shape.size() && shape[next] == 1)
        ++next;
      if (next == shape.size() || shape[next] != size)
        return std::nullopt;
      inner.push_back(index[next++]);
    }
    while (next < shape.size() && shape[next] == 1)
      ++next;
    return next == shape.size() ? at(op->getOperand(0), inner, leaf, depth + 1) : std::nullopt;
  }
  SmallVector<int64_t, 3> args;
  for (Value operand : op->getOperands()) {
    bool isScalar = shapeOf(operand).empty() && !shape.empty();
    if (!isScalar && shapeOf(operand) != shape)
      return std::nullopt;
    std::optional<int64_t> arg = at(operand, isScalar ? Index() : index, leaf, depth + 1);
    if (!arg)
      return std::nullopt;
    args.push_back(*arg);
  }
  return args.empty() ? std::nullopt : combine(op, args);
}

//===----------------------------------------------------------------------===//
// Images of rows
//===----------------------------------------------------------------------===//

namespace {

/// Slices along `dim` are those of `before`, in the order of the sort, or, with `isInverse`,
/// in the one from which the sort makes the old order.
struct Image {
  unsigned sort = 0;
  bool isInverse = false;
  int64_t dim = 0;
  Value before;
  bool hasProduct = false; // Comes from a product of sorted rows.

  bool isLike(const Image &other) const {
    return sort == other.sort && isInverse == other.isInverse;
  }
};

class SortUndoer {
public:
  explicit SortUndoer(Block &block) : block(block), integers(equal, block) {}

  void run();

  unsigned numSorts = 0, numProducts = 0;

private:
  bool visit(Operation *op);
  bool sort(hlo::SortOp op);
  std::optional<Image> rowNumbers(Value indices, int64_t indexVectorDim) const;
  bool gather(hlo::GatherOp op);
  bool scatter(hlo::ScatterOp op);
  bool product(chlo::RaggedDotOp op);
  bool select(hlo::SelectOp op);
  bool barrier(Operation *op);
  bool byRule(Operation *op);
  Value countsOf(Value sizes, int64_t rows) const;
  bool countsGroups(Value sizes, unsigned sort);

  /// What the value is the image of, in the order of `like`; itself, if slices along the
  /// dimension are equal. Null if it is neither.
  Value beforeOf(Value value, const Image &like, int64_t dim);
  bool isConstantAlong(Value value, int64_t dim, unsigned depth = 0);
  bool isTrue(Value value);
  /// Whether element i of each batch is i / `length`, which divides their number.
  bool isSteps(Value value, int64_t length, unsigned sort);
  bool isIota(Value value, unsigned sort) { return isSteps(value, 1, sort); }
  /// The number of equal neighbours if rows are all of `count` ones in their order, each so
  /// many times; nothing for other rows.
  std::optional<int64_t> repeatsOf(Value rows, int64_t count, unsigned sort);

  bool isImage(Value value) const { return images.contains(value); }
  void define(Value value, const Image &like, int64_t dim, Value before) {
    Image image = like;
    image.dim = dim;
    image.before = before;
    images[value] = image;
  }
  void replace(Value value, unsigned sort, Value by) {
    equal[value] = by;
    replaced.push_back({value, sort});
  }
  Value make(Operation *op, StringRef name, ValueRange operands, Type type,
             ArrayRef<NamedAttribute> attributes = {});
  Value reshape(Operation *op, Value value, ArrayRef<int64_t> shape) {
    return make(op, "stablehlo.reshape", value, typeOf(value).clone(shape));
  }
  void apply();

  struct Sort {
    Value key;
    /// Sizes of its first dimensions.
    ArrayRef<int64_t> batches() const { return shapeOf(key).drop_back(); }
    unsigned products = 0;
    bool isKept = false;
  };

  Block &block;
  Equal equal;
  Integers integers;
  SmallVector<Sort> sorts;
  std::map<std::pair<unsigned, bool>, unsigned> sortOf; // By the key's number and stability.
  llvm::MapVector<Value, Image> images;
  llvm::DenseSet<Operation *> understood;
  SmallVector<std::pair<Value, unsigned>> replaced;
};

} // namespace

Value SortUndoer::make(Operation *op, StringRef name, ValueRange operands, Type type,
                       ArrayRef<NamedAttribute> attributes) {
  OpBuilder builder(op);
  OperationState state(op->getLoc(), name, operands, type, attributes);
  Operation *made = builder.create(state);
  for (StringRef own : {StringRef(attr::phase), StringRef(attr::eqn)})
    if (Attribute value = op->getAttr(own))
      made->setAttr(own, value);
  return made->getResult(0);
}

bool SortUndoer::isConstantAlong(Value value, int64_t dim, unsigned depth) {
  value = integers.resolve(value);
  Operation *op = value.getDefiningOp();
  if (!op || depth > 8)
    return false;
  DenseElementsAttr dense;
  if (matchPattern(op, m_Constant(&dense)))
    return dense.isSplat();
  if (auto iota = dyn_cast<hlo::IotaOp>(op))
    return int64_t(iota.getIotaDimension()) != dim;
  if (auto spread = dyn_cast<hlo::BroadcastInDimOp>(op)) {
    for (auto [from, into] : llvm::enumerate(spread.getBroadcastDimensions()))
      if (into == dim && shapeOf(spread.getOperand())[from] != 1)
        return isConstantAlong(spread.getOperand(), int64_t(from), depth + 1);
    return true;
  }
  return analysis::isElementwiseName(op->getName().getStringRef()) && op->getNumOperands() > 0 &&
         llvm::all_of(op->getOperands(), [&](Value operand) {
           return shapeOf(operand).empty() || isConstantAlong(operand, dim, depth + 1);
         });
}

Value SortUndoer::beforeOf(Value value, const Image &like, int64_t dim) {
  if (auto it = images.find(value); it != images.end())
    return it->second.isLike(like) && it->second.dim == dim ? it->second.before : Value();
  return isConstantAlong(value, dim) ? value : Value();
}

/// Whether all elements are true, as a check whether indices are within bounds says of those
/// that are.
bool SortUndoer::isTrue(Value value) {
  while (Operation *op = integers.resolve(value).getDefiningOp()) {
    auto reduce = dyn_cast<hlo::ReduceOp>(op);
    bool isAll = reduce && op->getNumResults() == 1 && isSplatOf(op->getOperand(1), 1) &&
                 isa<hlo::AndOp>(reduce.getBody().front().front()) &&
                 reduce.getBody().front().getOperations().size() == 2;
    if (!isAll && !isa<hlo::BroadcastInDimOp, hlo::ReshapeOp>(op))
      break;
    value = op->getOperand(0);
  }
  return typeOf(value).getElementType().isInteger(1) && integers.isAll(value, 1);
}

/// The derivative of a scatter chooses by numbers that it scatters and reads again, which are the
/// same where indices are an order.
bool SortUndoer::select(hlo::SelectOp op) {
  Value choice = op->getOperand(0);
  auto it = images.find(choice);
  if (it != images.end())
    choice = it->second.before;
  bool isFirst = isTrue(choice);
  if (!isFirst && !integers.isAll(choice, 0))
    return byRule(op);
  Value chosen = op->getOperand(isFirst ? 1 : 2), other = op->getOperand(isFirst ? 2 : 1);
  if (auto image = images.find(chosen); image != images.end()) {
    const Image order = image->second;
    define(op.getResult(), order, order.dim, order.before);
  } else {
    replace(op.getResult(), (it == images.end() ? images.find(other) : it)->second.sort, chosen);
  }
  return true;
}

bool SortUndoer::isSteps(Value value, int64_t length, unsigned sort) {
  Value key = sorts[sort].key;
  return typeOf(value).getNumElements() == typeOf(key).getNumElements() &&
         integers.isSteps(value, length, shapeOf(key).back() / length);
}

std::optional<int64_t> SortUndoer::repeatsOf(Value rows, int64_t count, unsigned sort) {
  int64_t size = shapeOf(sorts[sort].key).back();
  if (count == 0 || size == 0 || size % count || !isSteps(rows, size / count, sort))
    return std::nullopt;
  return size / count;
}

/// Whether a sort's comparison is that of its first operand's integers, the least first.
static bool sortsIntegers(hlo::SortOp op) {
  Block &body = op.getComparator().front();
  auto compare = dyn_cast<hlo::CompareOp>(body.front());
  return compare && body.getOperations().size() == 2 &&
         body.getTerminator()->getOperand(0) == compare.getResult() &&
         compare.getComparisonDirection() == hlo::ComparisonDirection::LT &&
         compare.getLhs() == body.getArgument(0) && compare.getRhs() == body.getArgument(1) &&
         integerOf(op->getOperand(0));
}

bool SortUndoer::sort(hlo::SortOp op) {
  Value key = op->getOperand(0);
  auto dim = static_cast<int64_t>(shapeOf(key).size()) - 1;
  if (dim < 0 || op.getDimension() != static_cast<uint64_t>(dim) || !sortsIntegers(op))
    return false;
  if (auto it = images.find(key); it != images.end()) {
    const Image order = it->second; // A copy: the map may grow.
    if (order.dim != dim || !isIota(order.before, order.sort))
      return false;
    // The old order again.
    Image undone = order;
    undone.isInverse = !order.isInverse;
    SmallVector<Value> before;
    for (Value operand : op->getOperands()) {
      if (!isImage(operand))
        before.push_back(operand);
      else if (Value value = beforeOf(operand, order, dim))
        before.push_back(value);
      else
        return false;
    }
    for (auto [operand, result, value] :
         llvm::zip_equal(op->getOperands(), op->getResults(), before)) {
      if (isImage(operand))
        replace(result, order.sort, value);
      else
        define(result, undone, dim, value);
    }
    return true;
  }
  if (llvm::any_of(op->getOperands(), [&](Value operand) { return isImage(operand); }))
    return false;
  auto [it, isNew] = sortOf.try_emplace({integers.numberOf(key), op.getIsStable()}, sorts.size());
  if (isNew || !op.getIsStable()) {
    it->second = sorts.size();
    sorts.push_back({key});
  }
  Image image;
  image.sort = it->second;
  for (auto [operand, result] : llvm::zip_equal(op->getOperands(), op->getResults()))
    define(result, image, dim, operand);
  return true;
}

/// Indices of single rows, `[batches, rows]` or `[batches, rows, 1]`, in a sort's order.
std::optional<Image> SortUndoer::rowNumbers(Value indices, int64_t indexVectorDim) const {
  auto it = images.find(indices);
  if (it == images.end())
    return std::nullopt;
  const Image &order = it->second;
  ArrayRef<int64_t> shape = shapeOf(indices), key = shapeOf(sorts[order.sort].key);
  bool isList = shape.size() <= key.size() + 1 && shape.take_front(key.size()) == key &&
                typeOf(indices).getNumElements() == numElementsOf(key);
  return isList && order.dim + 1 == int64_t(key.size()) && indexVectorDim == order.dim + 1
             ? std::optional(order)
             : std::nullopt;
}

bool SortUndoer::gather(hlo::GatherOp op) {
  auto numbers = op.getDimensionNumbers();
  Value operand = op->getOperand(0), indices = op->getOperand(1);
  std::optional<Image> found = rowNumbers(indices, numbers.getIndexVectorDim());
  if (!found)
    return false;
  const Image order = *found;
  int64_t dim = order.dim;
  // Of all rows, or of those of the own batch.
  bool isInBatch = static_cast<int64_t>(numbers.getOperandBatchingDims().size()) == dim;
  int64_t row = isInBatch ? dim : 0;
  if ((!isInBatch && !numbers.getOperandBatchingDims().empty()) ||
      !counts(numbers.getOperandBatchingDims(), 0) ||
      !counts(numbers.getStartIndicesBatchingDims(), 0) ||
      numbers.getCollapsedSliceDims() != ArrayRef<int64_t>{row} ||
      numbers.getStartIndexMap() != ArrayRef<int64_t>{row} ||
      !counts(numbers.getOffsetDims(), dim + 1) ||
      op.getSliceSizes().drop_front(row + 1) != shapeOf(operand).drop_front(row + 1))
    return false;
  std::optional<int64_t> repeats;
  if (isInBatch)
    repeats = repeatsOf(order.before, shapeOf(operand)[dim], order.sort);
  if (isImage(operand)) { // There and back.
    Image other = order;
    other.isInverse = !order.isInverse;
    Value before = repeats == 1 ? beforeOf(operand, other, dim) : Value();
    if (!before)
      return false;
    replace(op.getResult(), order.sort, before);
    return true;
  }
  Value before = operand;
  if (repeats && *repeats > 1) {
    SmallVector<int64_t> shape(shapeOf(operand)), dims;
    shape.insert(shape.begin() + dim + 1, *repeats);
    for (int64_t each = 0; each < int64_t(shape.size()); ++each)
      if (each != dim + 1)
        dims.push_back(each);
    OpBuilder builder(op);
    before = make(op, "stablehlo.broadcast_in_dim", operand, typeOf(operand).clone(shape),
                  builder.getNamedAttr("broadcast_dimensions", builder.getDenseI64ArrayAttr(dims)));
    before = reshape(op, before, shapeOf(op.getResult()));
  } else if (!repeats) {
    auto made = cast<hlo::GatherOp>(OpBuilder(op).clone(*op));
    made->setOperand(1, order.before);
    made.setIndicesAreSorted(false); // They were of the sorted rows.
    before = made.getResult();
  }
  define(op.getResult(), order, dim, before);
  return true;
}

bool SortUndoer::scatter(hlo::ScatterOp op) {
  auto numbers = op.getScatterDimensionNumbers();
  if (op->getNumResults() != 1)
    return false;
  Value input = integers.resolve(op->getOperand(0));
  Value indices = op->getOperand(1), updates = op->getOperand(2);
  std::optional<Image> found = rowNumbers(indices, numbers.getIndexVectorDim());
  if (!found)
    return false;
  const Image order = *found;
  int64_t dim = order.dim;
  Block &body = op.getUpdateComputation().front();
  bool sets = body.getOperations().size() == 1 && body.front().getOperand(0) == body.getArgument(1);
  bool adds = body.getOperations().size() == 2 && isa<hlo::AddOp>(body.front()) &&
              body.front().getOperand(0) != body.front().getOperand(1) &&
              llvm::all_of(body.front().getOperands(),
                           [](Value value) { return isa<BlockArgument>(value); }) &&
              body.back().getOperand(0) == body.front().getResult(0);
  if (isImage(input) || static_cast<int64_t>(numbers.getInputBatchingDims().size()) != dim ||
      !counts(numbers.getInputBatchingDims(), 0) ||
      !counts(numbers.getScatterIndicesBatchingDims(), 0) ||
      numbers.getInsertedWindowDims() != ArrayRef<int64_t>{dim} ||
      numbers.getScatterDimsToOperandDims() != ArrayRef<int64_t>{dim} ||
      !counts(numbers.getUpdateWindowDims(), dim + 1) ||
      shapeOf(updates).drop_front(dim + 1) != shapeOf(input).drop_front(dim + 1) ||
      !(sets || adds) || typeOf(input).getElementType().isInteger(1))
    return false;
  std::optional<int64_t> repeats = repeatsOf(order.before, shapeOf(input)[dim], order.sort);
  bool coversAll = repeats == 1 && (sets || isSplatOf(input, 0));
  Value before = beforeOf(updates, order, dim);
  if (!before) {
    // Rows of the old order, each to its place.
    if (isImage(updates) || !coversAll)
      return false;
    Image other = order;
    other.isInverse = !order.isInverse;
    other.hasProduct = false;
    define(op->getResult(0), other, dim, updates);
    return true;
  }
  if (coversAll) {
    replace(op->getResult(0), order.sort, before);
    return true;
  }
  if (!adds)
    return false;
  OpBuilder builder(op);
  if (!repeats || !isSplatOf(input, 0)) {
    auto made = cast<hlo::ScatterOp>(builder.clone(*op));
    made->setOperands({input, order.before, before});
    made.setIndicesAreSorted(false);
    replace(op->getResult(0), order.sort, made->getResult(0));
    return true;
  }
  SmallVector<int64_t> shape(shapeOf(input));
  shape.insert(shape.begin() + dim + 1, *repeats);
  Value terms = reshape(op, before, shape);
  Value zero =
      make(op, "stablehlo.constant", {}, RankedTensorType::get({}, typeOf(input).getElementType()),
           builder.getNamedAttr(
               "value", splatOf(0, RankedTensorType::get({}, typeOf(input).getElementType()))));
  OperationState state(op->getLoc(), "stablehlo.reduce", {terms, zero}, input.getType(),
                       builder.getNamedAttr("dimensions", builder.getDenseI64ArrayAttr({dim + 1})));
  for (StringRef own : {StringRef(attr::phase), StringRef(attr::eqn)})
    if (Attribute value = op->getAttr(own))
      state.addAttribute(own, value);
  IRMapping mapping;
  op.getUpdateComputation().cloneInto(state.addRegion(), mapping);
  replace(op->getResult(0), order.sort, builder.create(state)->getResult(0));
  return true;
}

/// What numbers of rows are behind conversions to integers of any width that holds them all: with
/// 64-bit integers, counts of 64 bits become sizes of 32. Whether they are counts is seen there.
Value SortUndoer::countsOf(Value sizes, int64_t rows) const {
  while (true) {
    sizes = integers.rootOf(sizes);
    auto convert = sizes.getDefiningOp<hlo::ConvertOp>();
    IntegerType from = convert ? integerOf(convert.getOperand()) : IntegerType();
    if (!from || integerOf(sizes).getWidth() < 32 || from.getWidth() < 32 ||
        rows > std::numeric_limits<int32_t>::max())
      return sizes;
    sizes = convert.getOperand();
  }
}

/// Whether `sizes` says how many of the rows have each number as their key, so that the sort
/// puts those of group g where the product looks for them.
bool SortUndoer::countsGroups(Value sizes, unsigned sort) {
  constexpr int64_t kMostPairs = int64_t(1) << 22;
  Value key = integers.rootOf(sorts[sort].key);
  std::optional<std::pair<int64_t, int64_t>> range = integers.rangeOf(key);
  sizes = countsOf(sizes, typeOf(key).getNumElements());
  Operation *op = sizes.getDefiningOp();
  ArrayRef<int64_t> batches = sorts[sort].batches();
  auto dim = static_cast<int64_t>(batches.size());
  if (!range || !op || op->getNumResults() != 1 || shapeOf(sizes).size() != batches.size() + 1 ||
      shapeOf(sizes).drop_back() != batches || !integerOf(sizes) ||
      integerOf(sizes).getWidth() < 32)
    return false;
  auto [least, most] = *range;
  int64_t groups = shapeOf(sizes).back(), rows = typeOf(key).getNumElements();
  if (least < 0 || (most - least + 1) > kMostPairs / std::max<int64_t>(groups, 1))
    return false;
  if (auto scatter = dyn_cast<hlo::ScatterOp>(op)) {
    auto numbers = scatter.getScatterDimensionNumbers();
    Value indices = op->getOperand(1), updates = op->getOperand(2);
    ArrayRef<int64_t> shape = shapeOf(indices);
    if (analysis::nameOf(analysis::Reducer::Sum, typeOf(sizes).getElementType()) !=
            scatter.getUpdateComputation().front().front().getName().getStringRef() ||
        scatter.getUpdateComputation().front().getOperations().size() != 2 ||
        !isSplatOf(op->getOperand(0), 0) || !isSplatOf(updates, 1) ||
        typeOf(updates).getNumElements() != rows || !numbers.getUpdateWindowDims().empty() ||
        static_cast<int64_t>(numbers.getInputBatchingDims().size()) != dim ||
        !counts(numbers.getInputBatchingDims(), 0) ||
        !counts(numbers.getScatterIndicesBatchingDims(), 0) ||
        numbers.getInsertedWindowDims() != ArrayRef<int64_t>{dim} ||
        numbers.getScatterDimsToOperandDims() != ArrayRef<int64_t>{dim})
      return false;
    Integers::Index index;
    for (auto [dim, size] : llvm::enumerate(shape))
      index.push_back(int64_t(dim) == numbers.getIndexVectorDim() ? 0
                                                                  : Integers::kAny - int64_t(dim));
    for (int64_t each = least; each <= most; ++each)
      if (integers.at(indices, index, {key, batches, each}) != each)
        return false;
    return true;
  }
  if (auto reduce = dyn_cast<hlo::ReduceOp>(op)) {
    Value counted = op->getOperand(0);
    ArrayRef<int64_t> shape = shapeOf(counted);
    if (analysis::nameOf(analysis::Reducer::Sum, typeOf(sizes).getElementType()) !=
            reduce.getBody().front().front().getName().getStringRef() ||
        reduce.getBody().front().getOperations().size() != 2 || !isSplatOf(op->getOperand(1), 0) ||
        typeOf(counted).getNumElements() != rows * groups)
      return false;
    Integers::Index index;
    int64_t kept = -1;
    for (int64_t each = 0; each < int64_t(shape.size()); ++each) {
      index.push_back(Integers::kAny - each);
      if (each >= dim && !llvm::is_contained(reduce.getDimensions(), each))
        kept = each;
    }
    if (kept < 0 || llvm::any_of(reduce.getDimensions(), [&](int64_t each) { return each < dim; }))
      return false;
    for (int64_t each = least; each <= most; ++each)
      for (int64_t group = 0; group < groups; ++group) {
        index[kept] = group;
        if (integers.at(counted, index, {key, batches, each}) != int64_t(each == group))
          return false;
      }
    return true;
  }
  return false;
}

namespace {

/// A `chlo.ragged_dot` of rows with one of their group's matrices, or of two sides with as
/// many rows, a product for each group. With batches first, on all operands: each of them has
/// rows and sizes of its own, and weights are the same for all.
struct RowProduct {
  bool isSum = false;
  int64_t contracting = 1; // Of the weights.
  size_t batches = 0;
  Value rhs;

  static std::optional<RowProduct> read(chlo::RaggedDotOp op) {
    auto numbers = op.getRaggedDotDimensionNumbers();
    ArrayRef<int64_t> left = numbers.getLhsContractingDimensions(),
                      right = numbers.getRhsContractingDimensions();
    RowProduct product;
    product.batches = numbers.getLhsBatchingDimensions().size();
    product.rhs = op.getRhs();
    auto first = static_cast<int64_t>(product.batches);
    size_t rhsRank = shapeOf(op.getRhs()).size();
    if (shapeOf(op.getLhs()).size() != product.batches + 2 ||
        shapeOf(op.getGroupSizes()).size() != product.batches + 1 ||
        !counts(numbers.getLhsBatchingDimensions(), 0) ||
        numbers.getRhsBatchingDimensions() != numbers.getLhsBatchingDimensions() ||
        left.size() != 1 || right.size() != 1 ||
        numbers.getLhsRaggedDimensions() != ArrayRef<int64_t>{first})
      return std::nullopt;
    product.isSum = left[0] == first && right[0] == first && rhsRank == product.batches + 2 &&
                    numbers.getRhsGroupDimensions().empty();
    if (product.isSum)
      return product;
    if (left[0] != first + 1 || right[0] <= first || rhsRank != product.batches + 3 ||
        numbers.getRhsGroupDimensions() != ArrayRef<int64_t>{first})
      return std::nullopt;
    product.contracting = right[0] - first;
    if (product.batches == 0)
      return product;
    auto spread = op.getRhs().getDefiningOp<hlo::BroadcastInDimOp>();
    if (!spread || shapeOf(spread.getOperand()) != shapeOf(op.getRhs()).drop_front(first) ||
        !counts(spread.getBroadcastDimensions(), first))
      return std::nullopt;
    product.rhs = spread.getOperand();
    return product;
  }

  SmallVector<NamedAttribute> attributes(chlo::RaggedDotOp op) const {
    Builder builder(op.getContext());
    SmallVector<NamedAttribute> made;
    if (!isSum)
      made.push_back(builder.getNamedAttr("contracting", builder.getI64IntegerAttr(contracting)));
    if (ArrayAttr precision = op.getPrecisionConfigAttr())
      made.push_back(builder.getNamedAttr("precision_config", precision));
    return made;
  }
  StringRef name() const { return isSum ? "alpa.grouped_sum" : "alpa.grouped_dot"; }

  using Make = llvm::function_ref<Value(StringRef, ValueRange, Type, ArrayRef<NamedAttribute>)>;
  /// The product of rows in the order that they have, each of the group that `ids` say.
  Value make(chlo::RaggedDotOp op, Value lhs, Value rhs, Value ids, Make make) const {
    Builder builder(op.getContext());
    Type result = op.getResult().getType();
    if (batches == 0)
      return make(name(), {lhs, rhs, ids}, result, attributes(op));
    auto joined = [&](Value value, size_t dims) {
      SmallVector<int64_t> shape{numElementsOf(shapeOf(value).take_front(dims))};
      llvm::append_range(shape, shapeOf(value).drop_front(dims));
      return make("stablehlo.reshape", value, typeOf(value).clone(shape), {});
    };
    if (!isSum) {
      Value rows = joined(lhs, batches + 1);
      SmallVector<int64_t> shape{shapeOf(rows)[0], shapeOf(op.getResult()).back()};
      Value flat = make(name(), {rows, rhs, joined(ids, batches + 1)},
                        typeOf(op.getResult()).clone(shape), attributes(op));
      return make("stablehlo.reshape", flat, result, {});
    }
    // [groups, batches, ..], of [batches, groups, ..].
    ArrayRef<int64_t> wanted = shapeOf(op.getResult());
    SmallVector<int64_t> shape(wanted.slice(1, batches)), order;
    shape.push_back(wanted[0]);
    llvm::append_range(shape, wanted.take_back(2));
    Value sums = make(name(), {lhs, rhs, ids}, typeOf(op.getResult()).clone(shape), attributes(op));
    order.push_back(int64_t(batches));
    for (int64_t dim = 0; dim < int64_t(wanted.size()); ++dim)
      if (dim != int64_t(batches))
        order.push_back(dim);
    return make("stablehlo.transpose", sums, result,
                builder.getNamedAttr("permutation", builder.getDenseI64ArrayAttr(order)));
  }
};

} // namespace

bool SortUndoer::product(chlo::RaggedDotOp op) {
  std::optional<RowProduct> product = RowProduct::read(op);
  Image order;
  for (Value operand : {op.getRhs(), op.getLhs()})
    if (auto it = images.find(operand); it != images.end())
      order = it->second;
  if (!product || order.isInverse || isImage(op.getGroupSizes()) ||
      sorts[order.sort].batches().size() != product->batches)
    return false;
  auto dim = static_cast<int64_t>(product->batches);
  Value lhs = beforeOf(op.getLhs(), order, dim);
  Value rhs = product->isSum         ? beforeOf(op.getRhs(), order, dim)
              : isImage(op.getRhs()) ? Value()
                                     : product->rhs;
  if (!lhs || !rhs || !countsGroups(op.getGroupSizes(), order.sort))
    return false;
  Value result = product->make(
      op, lhs, rhs, sorts[order.sort].key,
      [&](StringRef name, ValueRange operands, Type type, ArrayRef<NamedAttribute> attributes) {
        return make(op, name, operands, type, attributes);
      });
  ++sorts[order.sort].products;
  if (product->isSum) {
    replace(op.getResult(), order.sort, result);
  } else {
    order.hasProduct = true;
    define(op.getResult(), order, dim, result);
  }
  return true;
}

/// Images go through a barrier of their own.
bool SortUndoer::barrier(Operation *op) {
  SmallVector<Value> before;
  for (Value operand : op->getOperands())
    if (auto it = images.find(operand); it != images.end())
      before.push_back(it->second.before);
  OperationState state(op->getLoc(), op->getName(), before, ValueRange(before).getTypes(),
                       op->getAttrs());
  Operation *made = OpBuilder(op).create(state);
  unsigned next = 0;
  for (auto [operand, result] : llvm::zip_equal(op->getOperands(), op->getResults()))
    if (auto it = images.find(operand); it != images.end()) {
      const Image image = it->second;
      define(result, image, image.dim, made->getResult(next++));
    }
  return true;
}

/// Ops that do the same for each slice along a parallel factor of their rule, wherever it
/// stands, and whose reductions do not ask for an order.
static bool treatsSlicesAlike(Operation *op) {
  return analysis::isElementwiseName(op->getName().getStringRef()) ||
         isa<hlo::BroadcastInDimOp, hlo::ReshapeOp, hlo::TransposeOp, hlo::SliceOp,
             hlo::ConcatenateOp, hlo::PadOp, hlo::ReverseOp, hlo::ReduceOp, hlo::DotGeneralOp,
             hlo::ReducePrecisionOp, chlo::TopKOp, GroupedDotOp>(op) ||
         (isa<chlo::ChloDialect>(op->getDialect()) && op->hasTrait<OpTrait::Elementwise>());
}

bool SortUndoer::byRule(Operation *op) {
  if (!treatsSlicesAlike(op) || op->getNumResults() != 1)
    return false;
  std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
  const Image *first = nullptr;
  for (Value operand : op->getOperands())
    if (auto it = images.find(operand); it != images.end() && !first)
      first = &it->second;
  if (!rule || !first)
    return false;
  Image order = *first;
  // The loop over the rows.
  std::optional<unsigned> rows;
  for (auto [operand, factors] : llvm::zip_equal(op->getOperands(), rule->operands))
    if (auto it = images.find(operand); it != images.end()) {
      const analysis::DimFactors &dim = factors[it->second.dim];
      if (dim.size() != 1 || (rows && *rows != dim[0]) || !it->second.isLike(order))
        return false;
      rows = dim[0];
      order.hasProduct |= it->second.hasProduct;
    }
  auto dimOf = [&](const analysis::TensorFactors &factors,
                   unsigned factor) -> std::optional<int64_t> {
    int64_t found = -1;
    for (auto [dim, each] : llvm::enumerate(factors))
      if (llvm::is_contained(each, factor)) {
        if (found >= 0 || each.size() != 1)
          return std::nullopt;
        found = int64_t(dim);
      }
    return found;
  };
  // Rows of a batch meet what is of the batch: their first dimensions are the same loops.
  size_t batches = sorts[order.sort].batches().size();
  llvm::ArrayRef<analysis::DimFactors> batchFactors;
  for (auto [operand, factors] : llvm::zip_equal(op->getOperands(), rule->operands))
    if (isImage(operand)) {
      auto own = llvm::ArrayRef(factors).take_front(batches);
      if (!batchFactors.empty() && own != batchFactors)
        return false;
      batchFactors = own;
    }
  for (auto [batch, size] : llvm::enumerate(sorts[order.sort].batches())) {
    if (size == 1)
      continue;
    if (batchFactors[batch].size() != 1)
      return false;
    unsigned factor = batchFactors[batch][0];
    std::optional<int64_t> result = dimOf(rule->results[0], factor);
    if (rule->factors[factor].kind != analysis::FactorKind::Parallel ||
        rule->factors[factor].size != size || result != int64_t(batch))
      return false;
  }
  const analysis::Factor &factor = rule->factors[*rows];
  SmallVector<Value> operands;
  for (auto [operand, factors] : llvm::zip_equal(op->getOperands(), rule->operands)) {
    std::optional<int64_t> dim = dimOf(factors, *rows);
    if (!dim || (*dim < 0 && isImage(operand)))
      return false;
    if (*dim >= 0 && shapeOf(operand)[*dim] != factor.size)
      return false;
    Value before = *dim < 0 ? operand : beforeOf(operand, order, *dim);
    if (!before)
      return false;
    operands.push_back(before);
  }
  std::optional<int64_t> dim = dimOf(rule->results[0], *rows);
  bool isParallel = factor.kind == analysis::FactorKind::Parallel;
  if (!dim || (*dim >= 0) != isParallel ||
      (!isParallel && factor.kind != analysis::FactorKind::Reduction))
    return false;
  Operation *made = OpBuilder(op).clone(*op);
  made->setOperands(operands);
  if (isParallel)
    define(op->getResult(0), order, *dim, made->getResult(0));
  else
    replace(op->getResult(0), order.sort, made->getResult(0));
  return true;
}

bool SortUndoer::visit(Operation *op) {
  if (auto sorted = dyn_cast<hlo::SortOp>(op))
    return sort(sorted);
  if (llvm::none_of(op->getOperands(), [&](Value operand) { return isImage(operand); }))
    return true;
  return llvm::TypeSwitch<Operation *, bool>(op)
      .Case([&](hlo::GatherOp gathered) { return gather(gathered); })
      .Case([&](hlo::ScatterOp scattered) { return scatter(scattered); })
      .Case([&](chlo::RaggedDotOp dot) { return product(dot); })
      .Case([&](hlo::SelectOp chosen) { return select(chosen); })
      .Case([&](hlo::OptimizationBarrierOp) { return barrier(op); })
      .Default([&](Operation *) { return byRule(op); });
}

/// Sorts stay of which a product is left, or a value that comes from one.
void SortUndoer::run() {
  SmallVector<Operation *> ops;
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block))) {
    if (isOpTriviallyDead(&op))
      op.erase();
    else
      ops.push_back(&op);
  }
  for (Operation *op : llvm::reverse(ops)) {
    for (Value result : op->getResults())
      integers.numberOf(result);
    if (!op->hasTrait<OpTrait::IsTerminator>() && visit(op))
      understood.insert(op);
  }
  for (const auto &[value, image] : images)
    for (Operation *user : value.getUsers())
      if (!understood.contains(user) && (image.hasProduct || isa<chlo::RaggedDotOp>(user)))
        sorts[image.sort].isKept = true;
  apply();
}

void SortUndoer::apply() {
  auto isUndone = [&](unsigned sort) { return sorts[sort].products > 0 && !sorts[sort].isKept; };
  Equal accepted;
  for (auto [value, sort] : replaced)
    if (isUndone(sort))
      accepted[value] = equal.lookup(value);
  Integers chain(accepted, block);
  for (auto [value, sort] : replaced)
    if (accepted.contains(value))
      value.replaceAllUsesWith(chain.resolve(value));
  for (unsigned sort = 0; sort < sorts.size(); ++sort)
    if (isUndone(sort)) {
      ++numSorts;
      numProducts += sorts[sort].products;
    }
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block))) {
    if (isOpTriviallyDead(&op)) {
      op.erase();
      continue;
    }
    // A barrier lets go of what nobody reads behind it.
    if (!isa<hlo::OptimizationBarrierOp>(op) ||
        llvm::none_of(op.getResults(), [](Value result) { return result.use_empty(); }))
      continue;
    SmallVector<Value> operands, results;
    for (auto [operand, result] : llvm::zip_equal(op.getOperands(), op.getResults()))
      if (!result.use_empty()) {
        operands.push_back(operand);
        results.push_back(result);
      }
    OperationState state(op.getLoc(), op.getName(), operands, ValueRange(operands).getTypes(),
                         op.getAttrs());
    Operation *made = OpBuilder(&op).create(state);
    for (auto [result, other] : llvm::zip_equal(results, made->getResults()))
      result.replaceAllUsesWith(other);
    op.erase();
  }
}

//===----------------------------------------------------------------------===//
// Products that stay sorted
//===----------------------------------------------------------------------===//

/// The group of each row, from the sizes, so that groups can be split. Row i is behind the end of
/// as many groups as there are before its own.
static void writeGroups(chlo::RaggedDotOp op) {
  std::optional<RowProduct> product = RowProduct::read(op);
  if (!product)
    return;
  OpBuilder builder(op);
  Location loc = op->getLoc();
  auto dim = static_cast<int64_t>(product->batches);
  int64_t groups = shapeOf(op.getGroupSizes())[dim], rows = shapeOf(op.getLhs())[dim];
  bool isOrdered = product->isSum || dim == 0; // Rows of batches are joined otherwise.
  auto make = [&](StringRef name, ValueRange operands, Type type,
                  ArrayRef<NamedAttribute> attributes = {}) {
    OperationState state(loc, name, operands, type, attributes);
    if (name == product->name() && isOrdered) // Read by alpa-expand-grouped-dots.
      state.addAttribute(attr::ordered, builder.getI64IntegerAttr(groups));
    for (StringRef own : {StringRef(attr::phase), StringRef(attr::eqn)})
      if (Attribute value = op->getAttr(own))
        state.addAttribute(own, value);
    return builder.create(state)->getResult(0);
  };
  auto i32 = builder.getI32Type();
  auto convert = [&](Value value) {
    return typeOf(value).getElementType() == i32
               ? value
               : make("stablehlo.convert", value, typeOf(value).clone(i32));
  };
  auto spread = [&](Value value, ArrayRef<int64_t> shape, ArrayRef<int64_t> dims) {
    return make("stablehlo.broadcast_in_dim", value, typeOf(value).clone(shape),
                builder.getNamedAttr("broadcast_dimensions", builder.getDenseI64ArrayAttr(dims)));
  };
  auto count = [&](ArrayRef<int64_t> shape, int64_t dim) {
    return make("stablehlo.iota", {}, RankedTensorType::get(shape, i32),
                builder.getNamedAttr("iota_dimension", builder.getI64IntegerAttr(dim)));
  };
  auto scalar = RankedTensorType::get({}, i32);
  Value zero =
      make("stablehlo.constant", {}, scalar, builder.getNamedAttr("value", splatOf(0, scalar)));
  auto sum = [&](Value value, int64_t dim) {
    SmallVector<int64_t> shape(shapeOf(value));
    shape.erase(shape.begin() + dim);
    OperationState state(loc, "stablehlo.reduce", {value, zero}, typeOf(value).clone(shape),
                         builder.getNamedAttr("dimensions", builder.getDenseI64ArrayAttr({dim})));
    for (StringRef own : {StringRef(attr::phase), StringRef(attr::eqn)})
      if (Attribute given = op->getAttr(own))
        state.addAttribute(own, given);
    Block *body = new Block();
    state.addRegion()->push_back(body);
    body->addArguments({scalar, scalar}, {loc, loc});
    OpBuilder inner(op.getContext());
    inner.setInsertionPointToEnd(body);
    OperationState add(loc, "stablehlo.add", body->getArguments(), scalar);
    OperationState end(loc, "stablehlo.return");
    end.addOperands(inner.create(add)->getResults());
    inner.create(end);
    return builder.create(state)->getResult(0);
  };
  auto compare = [&](Value lhs, Value rhs) {
    return make("stablehlo.compare", {lhs, rhs}, typeOf(lhs).clone(builder.getI1Type()),
                builder.getNamedAttr("comparison_direction",
                                     hlo::ComparisonDirectionAttr::get(
                                         op.getContext(), hlo::ComparisonDirection::GE)));
  };
  auto ofBatches = [&](ArrayRef<int64_t> inner) {
    SmallVector<int64_t> shape(shapeOf(op.getLhs()).take_front(dim));
    llvm::append_range(shape, inner);
    return shape;
  };
  auto square = ofBatches({groups, groups}), pairs = ofBatches({rows, groups});
  SmallVector<int64_t> last = llvm::to_vector(llvm::seq<int64_t>(0, dim));
  last.push_back(dim + 1);
  Value sizes = spread(convert(op.getGroupSizes()), square, last);
  Value upTo = convert(compare(count(square, dim), count(square, dim + 1)));
  Value ends = sum(make("stablehlo.multiply", {sizes, upTo}, sizes.getType()), dim + 1);
  Value isBehind = compare(count(pairs, dim), spread(ends, pairs, last));
  Value ids = sum(convert(isBehind), dim + 1);
  op.getResult().replaceAllUsesWith(product->make(op, op.getLhs(), product->rhs, ids, make));
  op.erase();
}

namespace {

class AlpaUndoSortsPass : public importer::impl::AlpaUndoSortsBase<AlpaUndoSortsPass> {
public:
  using AlpaUndoSortsBase::AlpaUndoSortsBase;

  void runOnOperation() override {
    llvm::SetVector<Block *> blocks;
    getOperation().walk([&](chlo::RaggedDotOp op) { blocks.insert(op->getBlock()); });
    for (Block *block : blocks) {
      SortUndoer undoer(*block);
      undoer.run();
      numSorts += undoer.numSorts;
      numProducts += undoer.numProducts;
    }
    SmallVector<chlo::RaggedDotOp> left;
    getOperation().walk([&](chlo::RaggedDotOp op) { left.push_back(op); });
    for (chlo::RaggedDotOp op : left)
      writeGroups(op);
  }
};

} // namespace
