//===- UnrollLayers.cpp - scans over layers, layer by layer ---------------===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Import/NameStack.h"
#include "compiler/Import/Passes.h"
#include "compiler/Import/StackedRows.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/Operation.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringSwitch.h"

#include <map>
#include <optional>

namespace alpa::importer {
#define GEN_PASS_DEF_ALPAUNROLLLAYERS
#include "compiler/Import/Passes.h.inc"
} // namespace alpa::importer

using namespace alpa;
using namespace alpa::importer;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Integer scalars of a loop, computed
//===----------------------------------------------------------------------===//

namespace {

/// Values of the integer scalars that are known, such as a loop's counter.
class KnownScalars {
public:
  /// The value, if it was set, or is a constant with one element.
  std::optional<int64_t> get(Value value) const;
  void set(Value value, int64_t number) { numbers[value] = number; }
  /// Computes the result of an op on integer scalars, as the op's type wraps it.
  /// False if an operand is unknown or the op is of another kind.
  bool run(Operation *op);

private:
  llvm::DenseMap<Value, int64_t> numbers;
};

} // namespace

namespace hlo = mlir::stablehlo;

static ArrayRef<int64_t> shapeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape();
}

/// Of a tensor of integers of at most 64 bits.
static IntegerType elementOf(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  auto element = tensor ? dyn_cast<IntegerType>(tensor.getElementType()) : IntegerType();
  return element && element.getWidth() <= 64 ? element : IntegerType();
}

static IntegerType scalarType(Type type) {
  IntegerType element = elementOf(type);
  return element && cast<RankedTensorType>(type).getRank() == 0 ? element : IntegerType();
}

static bool isUnsigned(IntegerType type) { return type.isUnsigned() || type.getWidth() == 1; }

/// What is left of a number in a type.
static int64_t wrapped(uint64_t number, IntegerType type) {
  APInt bits(64, number);
  bits = bits.trunc(type.getWidth());
  return isUnsigned(type) ? int64_t(bits.getZExtValue()) : bits.getSExtValue();
}

/// Whether the type is a tensor of rank 0 with integers of at most 64 bits.
static bool isIndexScalar(Type type) { return bool(scalarType(type)); }

std::optional<int64_t> KnownScalars::get(Value value) const {
  if (auto it = numbers.find(value); it != numbers.end())
    return it->second;
  IntegerType type = scalarType(value.getType());
  DenseIntElementsAttr constant;
  if (!type || !matchPattern(value, m_Constant(&constant)))
    return std::nullopt;
  APInt bits = *constant.value_begin<APInt>();
  return isUnsigned(type) ? int64_t(bits.getZExtValue()) : bits.getSExtValue();
}

static bool compares(hlo::ComparisonDirection direction, int64_t left, int64_t right, bool noSign) {
  bool less = noSign ? uint64_t(left) < uint64_t(right) : left < right;
  switch (direction) {
  case hlo::ComparisonDirection::EQ:
    return left == right;
  case hlo::ComparisonDirection::NE:
    return left != right;
  case hlo::ComparisonDirection::GE:
    return !less;
  case hlo::ComparisonDirection::GT:
    return !less && left != right;
  case hlo::ComparisonDirection::LE:
    return less || left == right;
  case hlo::ComparisonDirection::LT:
    break;
  }
  return less;
}

/// What an elementwise op on integers makes of one element of each operand, as its type wraps it;
/// nothing for other ops.
static std::optional<int64_t> compute(Operation *op, ArrayRef<int64_t> in) {
  IntegerType type = elementOf(op->getResult(0).getType());
  IntegerType from = elementOf(op->getOperand(0).getType());
  if (!type || !from || in.empty() || in.size() > 3)
    return std::nullopt;
  auto less = [&] {
    return compares(hlo::ComparisonDirection::LT, in[0], in[1], isUnsigned(from));
  };
  std::optional<uint64_t> result;
  if (auto compare = dyn_cast<hlo::CompareOp>(op)) {
    result = compares(compare.getComparisonDirection(), in[0], in[1], isUnsigned(from));
  } else if (isa<hlo::ConvertOp>(op)) { // To a truth value: whether it is zero.
    result = type.getWidth() == 1 ? uint64_t(in[0] != 0) : uint64_t(in[0]);
  } else if (isa<hlo::SelectOp>(op)) {
    result = in[0] ? in[1] : in[2];
  } else if (isa<hlo::NotOp>(op)) {
    result = ~uint64_t(in[0]);
  } else if (isa<hlo::NegOp>(op)) {
    result = -uint64_t(in[0]);
  } else if (in.size() == 2) {
    auto name = op->getName().getStringRef();
    // On truth values sums and products are logical.
    if (type.getWidth() > 1)
      result = llvm::StringSwitch<std::optional<uint64_t>>(name)
                   .Case("stablehlo.add", uint64_t(in[0]) + uint64_t(in[1]))
                   .Case("stablehlo.subtract", uint64_t(in[0]) - uint64_t(in[1]))
                   .Case("stablehlo.multiply", uint64_t(in[0]) * uint64_t(in[1]))
                   .Case("stablehlo.minimum", less() ? in[0] : in[1])
                   .Case("stablehlo.maximum", less() ? in[1] : in[0])
                   .Default(std::nullopt);
    if (!result)
      result = llvm::StringSwitch<std::optional<uint64_t>>(name)
                   .Case("stablehlo.and", uint64_t(in[0]) & uint64_t(in[1]))
                   .Case("stablehlo.or", uint64_t(in[0]) | uint64_t(in[1]))
                   .Case("stablehlo.xor", uint64_t(in[0]) ^ uint64_t(in[1]))
                   .Default(std::nullopt);
    // By zero, and the one quotient that has no number, are left to the device.
    bool isQuotient = isa<hlo::DivOp, hlo::RemOp>(op) && in[1] != 0 && in[1] != -1;
    if (isQuotient && isUnsigned(type))
      result = isa<hlo::DivOp>(op) ? uint64_t(in[0]) / uint64_t(in[1])
                                   : uint64_t(in[0]) % uint64_t(in[1]);
    else if (isQuotient)
      result = isa<hlo::DivOp>(op) ? in[0] / in[1] : in[0] % in[1];
  }
  return result ? std::optional<int64_t>(wrapped(*result, type)) : std::nullopt;
}

bool KnownScalars::run(Operation *op) {
  if (op->getNumResults() != 1 || op->getNumRegions() > 0 || op->getNumOperands() > 3)
    return false;
  if (!scalarType(op->getResult(0).getType()))
    return false;
  if (op->getNumOperands() == 0)
    return get(op->getResult(0)).has_value();
  SmallVector<int64_t, 3> in;
  for (Value operand : op->getOperands()) {
    std::optional<int64_t> number = get(operand);
    if (!number)
      return false;
    in.push_back(*number);
  }
  std::optional<int64_t> result = compute(op, in);
  if (!result)
    return false;
  set(op->getResult(0), *result);
  return true;
}

//===----------------------------------------------------------------------===//
// Integers that follow from constants alone
//===----------------------------------------------------------------------===//

namespace {

/// Single elements of integers that ops of @main make of constants: which layers are local, say.
class KnownElements {
public:
  /// The element at a place in row-major order; nothing if it depends on anything else.
  std::optional<int64_t> at(Value value, int64_t place);

private:
  std::optional<int64_t> make(Value value, int64_t place);
  static constexpr size_t kMost = 1 << 14, kDeepest = 256;
  size_t depth = 0;
  std::map<std::pair<const void *, int64_t>, std::optional<int64_t>> known;
};

} // namespace

static SmallVector<int64_t> indexOf(int64_t place, ArrayRef<int64_t> shape) {
  SmallVector<int64_t> index(shape.size());
  for (size_t dim = shape.size(); dim-- > 0; place /= shape[dim])
    index[dim] = place % shape[dim];
  return index;
}

static int64_t placeOf(ArrayRef<int64_t> index, ArrayRef<int64_t> shape) {
  int64_t place = 0;
  for (auto [at, size] : llvm::zip_equal(index, shape))
    place = place * size + at;
  return place;
}

std::optional<int64_t> KnownElements::at(Value value, int64_t place) {
  if (!elementOf(value.getType()))
    return std::nullopt;
  auto [it, isNew] = known.try_emplace({value.getAsOpaquePointer(), place}, std::nullopt);
  if (!isNew || known.size() > kMost || depth == kDeepest)
    return it->second;
  ++depth;
  it->second = make(value, place);
  --depth;
  return it->second;
}

std::optional<int64_t> KnownElements::make(Value value, int64_t place) {
  Operation *op = value.getDefiningOp();
  if (!op || op->getNumResults() != 1 || op->getNumRegions() > 0)
    return std::nullopt;
  ArrayRef<int64_t> shape = shapeOf(value);
  IntegerType type = elementOf(value.getType());
  DenseIntElementsAttr constant;
  if (matchPattern(op, m_Constant(&constant))) {
    APInt bits = constant.isSplat() ? constant.getSplatValue<APInt>()
                                    : constant.getValues<APInt>()[size_t(place)];
    return isUnsigned(type) ? int64_t(bits.getZExtValue()) : bits.getSExtValue();
  }
  SmallVector<int64_t> index = indexOf(place, shape);
  if (auto iota = dyn_cast<hlo::IotaOp>(op))
    return wrapped(uint64_t(index[iota.getIotaDimension()]), type);
  if (isa<hlo::ReshapeOp>(op))
    return at(op->getOperand(0), place);
  if (auto spread = dyn_cast<hlo::BroadcastInDimOp>(op)) {
    ArrayRef<int64_t> from = shapeOf(spread.getOperand());
    SmallVector<int64_t> source;
    for (auto [size, dim] : llvm::zip_equal(from, spread.getBroadcastDimensions()))
      source.push_back(size == 1 ? 0 : index[dim]);
    return at(spread.getOperand(), placeOf(source, from));
  }
  if (auto slice = dyn_cast<hlo::SliceOp>(op)) {
    for (auto [at, start, stride] :
         llvm::zip_equal(index, slice.getStartIndices(), slice.getStrides()))
      at = start + at * stride;
    return at(slice.getOperand(), placeOf(index, shapeOf(slice.getOperand())));
  }
  if (auto slice = dyn_cast<hlo::DynamicSliceOp>(op)) {
    ArrayRef<int64_t> from = shapeOf(slice.getOperand());
    for (auto [dim, start] : llvm::enumerate(slice.getStartIndices())) {
      std::optional<int64_t> number = at(start, 0);
      if (!number || *number < 0) // Large ones without a sign are not told apart.
        return std::nullopt;
      index[dim] += std::min(*number, from[dim] - shape[dim]);
    }
    return at(slice.getOperand(), placeOf(index, from));
  }
  if (auto joined = dyn_cast<hlo::ConcatenateOp>(op)) {
    for (Value part : joined.getInputs()) {
      int64_t size = shapeOf(part)[joined.getDimension()];
      if (index[joined.getDimension()] < size)
        return at(part, placeOf(index, shapeOf(part)));
      index[joined.getDimension()] -= size;
    }
    return std::nullopt;
  }
  SmallVector<int64_t, 3> in;
  for (Value operand : op->getOperands()) {
    // The condition of a select may be one for all.
    bool isSame = shapeOf(operand) == shape;
    if (!isSame && !shapeOf(operand).empty())
      return std::nullopt;
    std::optional<int64_t> number = at(operand, isSame ? place : 0);
    if (!number)
      return std::nullopt;
    in.push_back(*number);
  }
  return in.empty() ? std::nullopt : compute(op, in);
}

/// The known start indices of a dynamic slice or update, clamped as the op does it;
/// nothing if one is unknown. `whole` and `part` are the shapes of operand and slice.
static std::optional<SmallVector<int64_t>> knownStarts(ValueRange starts, ArrayRef<int64_t> whole,
                                                       ArrayRef<int64_t> part,
                                                       const KnownScalars &scalars) {
  SmallVector<int64_t> result;
  for (auto [start, size, taken] : llvm::zip_equal(starts, whole, part)) {
    if (size == taken) { // Clamped, whatever it is.
      result.push_back(0);
      continue;
    }
    std::optional<int64_t> number = scalars.get(start);
    if (!number)
      return std::nullopt;
    bool isHuge = isUnsigned(scalarType(start.getType())) && *number < 0; // Of 64 bits.
    result.push_back(isHuge ? size - taken : std::clamp<int64_t>(*number, 0, size - taken));
  }
  return result;
}

//===----------------------------------------------------------------------===//
// The iterations of a loop, one after another
//===----------------------------------------------------------------------===//

namespace {

/// How a loop uses the values that it carries.
struct LoopShape {
  enum class Role {
    Invariant, // Every iteration gives it on as it is.
    Counter,   // An integer scalar whose values are known.
    Stack,     // Each iteration puts a part into dimension 0; together they fill it.
    Carry,     // Anything else.
  };
  stablehlo::WhileOp loop;
  int64_t trips = 0;
  llvm::SmallVector<Role> roles;
  /// For each stack: where in dimension 0 each iteration puts its part.
  llvm::DenseMap<unsigned, llvm::SmallVector<int64_t>> writes;

  Block &body() const { return stablehlo::WhileOp(loop).getBody().front(); }
  /// What an iteration gives on.
  Value yielded(unsigned index) const { return body().getTerminator()->getOperand(index); }
};

} // namespace

using Role = LoopShape::Role;

/// A dynamic_update_slice that puts one part of dimension 0 into the carried value.
static bool isStackWrite(Value yielded, BlockArgument argument) {
  auto write = yielded.getDefiningOp<hlo::DynamicUpdateSliceOp>();
  if (!write || write->getBlock() != argument.getOwner() || write.getOperand() != argument ||
      !argument.hasOneUse() || !yielded.hasOneUse())
    return false;
  ArrayRef<int64_t> whole = shapeOf(write.getOperand()), part = shapeOf(write.getUpdate());
  return !whole.empty() && whole.drop_front() == part.drop_front();
}

/// Counters as they are when the loop begins.
static KnownScalars atStart(const LoopShape &shape) {
  KnownScalars scalars;
  for (auto [index, role] : llvm::enumerate(shape.roles))
    if (role == Role::Counter)
      scalars.set(shape.body().getArgument(index),
                  *KnownScalars().get(shape.loop->getOperand(index)));
  return scalars;
}

/// Counters as they are an iteration later.
static KnownScalars afterwards(const LoopShape &shape, const KnownScalars &scalars) {
  KnownScalars next;
  for (auto [index, role] : llvm::enumerate(shape.roles))
    if (role == Role::Counter)
      next.set(shape.body().getArgument(index), *scalars.get(shape.yielded(index)));
  return next;
}

static void runBlock(Block &block, KnownScalars &scalars) {
  for (Operation &op : block.without_terminator())
    scalars.run(&op);
}

/// The known scalars of every iteration, in order.
static void forEachIteration(const LoopShape &shape,
                             llvm::function_ref<void(int64_t, const KnownScalars &)> visit) {
  KnownScalars scalars = atStart(shape);
  for (int64_t trip = 0; trip < shape.trips; ++trip) {
    runBlock(shape.body(), scalars);
    visit(trip, scalars);
    scalars = afterwards(shape, scalars);
  }
}

/// What the condition says of the counters; nothing if it asks for more.
static std::optional<bool> goesOn(const LoopShape &shape, const KnownScalars &counters) {
  Block &block = hlo::WhileOp(shape.loop).getCond().front();
  KnownScalars scalars;
  for (auto [index, argument] : llvm::enumerate(block.getArguments())) {
    std::optional<int64_t> number;
    if (shape.roles[index] == Role::Counter)
      number = counters.get(shape.body().getArgument(index));
    else if (shape.roles[index] == Role::Invariant && isIndexScalar(argument.getType()))
      number = KnownScalars().get(shape.loop->getOperand(index));
    if (number)
      scalars.set(argument, *number);
  }
  runBlock(block, scalars);
  std::optional<int64_t> answer = scalars.get(block.getTerminator()->getOperand(0));
  return answer ? std::optional<bool>(*answer != 0) : std::nullopt;
}

/// A scalar that depends on more than counters is none, which may unmake others.
static void findCounters(LoopShape &shape) {
  for (bool changed = true; changed;) {
    changed = false;
    KnownScalars scalars = atStart(shape);
    runBlock(shape.body(), scalars);
    for (auto [index, role] : llvm::enumerate(shape.roles))
      if (role == Role::Counter && !scalars.get(shape.yielded(index))) {
        role = Role::Carry;
        changed = true;
      }
  }
}

static bool countTrips(LoopShape &shape, int64_t mostTrips) {
  KnownScalars scalars = atStart(shape);
  for (; shape.trips <= mostTrips; ++shape.trips) {
    std::optional<bool> more = goesOn(shape, scalars);
    if (!more.value_or(false))
      return more.has_value();
    runBlock(shape.body(), scalars);
    scalars = afterwards(shape, scalars);
  }
  return false;
}

/// Whether parts of `size` rows at these places fill the dimension.
static bool fill(SmallVector<int64_t> starts, int64_t size, int64_t whole) {
  llvm::sort(starts);
  for (auto [index, start] : llvm::enumerate(starts))
    if (start != int64_t(index) * size)
      return false;
  return int64_t(starts.size()) * size == whole;
}

static void findWrites(LoopShape &shape) {
  for (auto [index, role] : llvm::enumerate(shape.roles))
    if (role == Role::Stack)
      shape.writes[index];
  forEachIteration(shape, [&](int64_t, const KnownScalars &scalars) {
    for (auto &[index, starts] : shape.writes) {
      auto write = shape.yielded(index).getDefiningOp<hlo::DynamicUpdateSliceOp>();
      auto at = knownStarts(write.getStartIndices(), shapeOf(write.getOperand()),
                            shapeOf(write.getUpdate()), scalars);
      starts.push_back(at ? (*at)[0] : -1);
    }
  });
  for (auto [index, role] : llvm::enumerate(shape.roles))
    if (role == Role::Stack) {
      auto write = shape.yielded(index).getDefiningOp<hlo::DynamicUpdateSliceOp>();
      if (!fill(shape.writes[index], shapeOf(write.getUpdate())[0], shapeOf(write.getOperand())[0]))
        role = Role::Carry;
    }
}

/// Nothing if the number of iterations is unknown, or more than `mostTrips`.
static std::optional<LoopShape> readLoop(hlo::WhileOp loop, int64_t mostTrips) {
  if (!loop.getBody().hasOneBlock() || !loop.getCond().hasOneBlock())
    return std::nullopt;
  LoopShape shape;
  shape.loop = loop;
  for (BlockArgument argument : shape.body().getArguments()) {
    Value given = shape.yielded(argument.getArgNumber());
    Value init = loop->getOperand(argument.getArgNumber());
    if (given == argument)
      shape.roles.push_back(Role::Invariant);
    else if (isIndexScalar(init.getType()) && KnownScalars().get(init))
      shape.roles.push_back(Role::Counter);
    else
      shape.roles.push_back(isStackWrite(given, argument) ? Role::Stack : Role::Carry);
  }
  findCounters(shape);
  if (!countTrips(shape, mostTrips))
    return std::nullopt;
  findWrites(shape);
  return shape;
}

namespace {

class Unroller {
public:
  Unroller(const LoopShape &shape,
           llvm::function_ref<DictionaryAttr(Operation *, int64_t)> attributesOf,
           llvm::function_ref<void(Operation *, Operation *)> onClone)
      : shape(shape), attributesOf(attributesOf), onClone(onClone), builder(shape.loop),
        carried(shape.loop->getOperands()) {
    for (auto [index, role] : llvm::enumerate(shape.roles))
      if (role == Role::Stack)
        stackWrites.insert(shape.yielded(index).getDefiningOp());
  }

  void run(DictionaryAttr stackAttributes) {
    forEachIteration(shape,
                     [&](int64_t trip, const KnownScalars &scalars) { iterate(trip, scalars); });
    for (auto &[index, parts] : stacks) {
      if (parts.size() == 1) { // It fills the stack.
        carried[index] = parts[0];
        continue;
      }
      auto concat = hlo::ConcatenateOp::create(builder, shape.loop->getLoc(),
                                               shape.loop->getResult(index).getType(),
                                               inOrder(parts, shape.writes.lookup(index)), 0);
      concat->setDiscardableAttrs(stackAttributes);
      carried[index] = concat;
    }
    shape.loop->replaceAllUsesWith(carried);
    shape.loop->erase();
  }

private:
  static SmallVector<Value> inOrder(ArrayRef<Value> parts, ArrayRef<int64_t> starts) {
    SmallVector<std::pair<int64_t, Value>> sorted;
    for (auto [start, part] : llvm::zip_equal(starts, parts))
      sorted.push_back({start, part});
    llvm::sort(sorted, llvm::less_first());
    return llvm::to_vector(llvm::make_second_range(sorted));
  }

  void iterate(int64_t trip, const KnownScalars &scalars) {
    mapping = IRMapping();
    made.clear();
    mapping.map(shape.body().getArguments(), carried);
    for (Operation &op : shape.body().without_terminator()) {
      bool isKnown = op.getNumResults() == 1 && scalars.get(op.getResult(0));
      if (isKnown || isConstantLike(&op) || stackWrites.contains(&op))
        continue; // Made where it is read, or not at all.
      DictionaryAttr attributes = attributesOf(&op, trip);
      if (!makeSlice(&op, attributes, scalars) && !passOn(&op))
        clone(&op, attributes, scalars);
    }
    Operation *end = shape.body().getTerminator();
    DictionaryAttr attributes = attributesOf(end, trip);
    SmallVector<Value> next(carried);
    for (auto [index, role] : llvm::enumerate(shape.roles)) {
      Value given = shape.yielded(index);
      if (role == Role::Stack)
        stacks[index].push_back(read(given.getDefiningOp<hlo::DynamicUpdateSliceOp>().getUpdate(),
                                     attributes, scalars));
      else if (role != Role::Invariant)
        next[index] = read(given, attributes, scalars);
    }
    carried = std::move(next);
  }

  /// The value in this iteration, for a reader with these attributes. Constants are
  /// made for each kind of reader, so that nothing has to carry them.
  Value read(Value value, DictionaryAttr attributes, const KnownScalars &scalars) {
    if (value.getParentBlock() != &shape.body())
      return value;
    Operation *op = value.getDefiningOp();
    std::optional<int64_t> number =
        isIndexScalar(value.getType()) ? scalars.get(value) : std::nullopt;
    if (!number && (!op || !isConstantLike(op)))
      return mapping.lookup(value);
    Value &known = made[{value, attributes.getAsOpaquePointer()}];
    if (known)
      return known;
    if (number) {
      auto type = cast<RankedTensorType>(value.getType());
      unsigned width = type.getElementType().getIntOrFloatBitWidth();
      APInt bits = APInt(64, uint64_t(*number)).trunc(width);
      auto constant = hlo::ConstantOp::create(
          builder, value.getLoc(), cast<ElementsAttr>(DenseElementsAttr::get(type, bits)));
      constant->setDiscardableAttrs(attributes);
      return made[{value, attributes.getAsOpaquePointer()}] = constant;
    }
    return made[{value, attributes.getAsOpaquePointer()}] =
               clone(op, attributes, scalars)->getResult(cast<OpResult>(value).getResultNumber());
  }

  Operation *clone(Operation *op, DictionaryAttr attributes, const KnownScalars &scalars) {
    for (Value used : getUsedValues(op))
      if (Value value = read(used, attributes, scalars); value != used)
        mapping.map(used, value);
    Operation *copy = builder.clone(*op, mapping);
    for (NamedAttribute attribute : attributes)
      copy->setDiscardableAttr(attribute.getName(), attribute.getValue());
    onClone(op, copy);
    return copy;
  }

  /// A slice of whole rows at known places.
  bool makeSlice(Operation *op, DictionaryAttr attributes, const KnownScalars &scalars) {
    auto slice = dyn_cast<hlo::DynamicSliceOp>(op);
    if (!slice)
      return false;
    ArrayRef<int64_t> whole = shapeOf(slice.getOperand()), part = shapeOf(slice.getResult());
    auto starts = knownStarts(slice.getStartIndices(), whole, part, scalars);
    if (!starts || whole.empty() || whole.drop_front() != part.drop_front())
      return false;
    Value operand = read(slice.getOperand(), attributes, scalars);
    mapping.map(slice.getResult(),
                rowsOf(builder, operand, 0, (*starts)[0], part[0], attributes, op->getLoc()));
    return true;
  }

  /// A part loses the dimension that it was given for the stack.
  bool passOn(Operation *op) {
    auto reshape = dyn_cast<hlo::ReshapeOp>(op);
    Operation *source =
        reshape ? mapping.lookupOrDefault(reshape.getOperand()).getDefiningOp() : nullptr;
    if (!source || !isa<hlo::ReshapeOp, hlo::BroadcastInDimOp>(source) ||
        source->getBlock() != shape.loop->getBlock() ||
        source->getOperand(0).getType() != reshape.getType() || isConstantLike(source))
      return false;
    auto broadcast = dyn_cast<hlo::BroadcastInDimOp>(source);
    if (broadcast && !llvm::is_sorted(broadcast.getBroadcastDimensions()))
      return false;
    mapping.map(reshape.getResult(), source->getOperand(0));
    return true;
  }

  const LoopShape &shape;
  llvm::function_ref<DictionaryAttr(Operation *, int64_t)> attributesOf;
  llvm::function_ref<void(Operation *, Operation *)> onClone;
  OpBuilder builder;
  IRMapping mapping; // From the body to the iteration at hand.
  llvm::DenseMap<std::pair<Value, const void *>, Value> made;
  SmallVector<Value> carried;
  llvm::DenseSet<Operation *> stackWrites;
  std::map<unsigned, SmallVector<Value>> stacks; // Parts in the order of iterations.
};

} // namespace

/// Writes out every iteration before the loop and erases it. `attributesOf` gives the
/// attributes of an op of the body in an iteration, `onClone` hears of every copy of an
/// op. Slices at known places become static; a stack becomes the concatenation of its
/// parts (with `stackAttributes`), and a slice of one the part.
static void unrollLoop(const LoopShape &shape, DictionaryAttr stackAttributes,
                       llvm::function_ref<DictionaryAttr(Operation *, int64_t)> attributesOf,
                       llvm::function_ref<void(Operation *, Operation *)> onClone) {
  Unroller(shape, attributesOf, onClone).run(stackAttributes);
}

//===----------------------------------------------------------------------===//
// Loops whose iterations are layers
//===----------------------------------------------------------------------===//

namespace {

/// A scan over layers, and its gradient, which goes through them in reverse.
struct LayerLoop {
  LoopShape forward;
  std::optional<LoopShape> backward;
};

/// Numbers of the equations of a body that its ops stem from, by their scopes
/// `alpa_inner<level>_<i>`, or by data flow where an op has none. All are below the
/// result's `count`, which is 1 for a body without scopes.
struct BodyEquations {
  int64_t count = 1;
  llvm::DenseMap<Operation *, int64_t> forward, backward;
};

} // namespace

/// What a value of the body is outside of it, if every iteration sees the same.
static Value outsideOf(const LoopShape &shape, Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  if (argument && argument.getOwner() == &shape.body())
    return shape.roles[argument.getArgNumber()] == Role::Invariant
               ? shape.loop->getOperand(argument.getArgNumber())
               : Value();
  return value.getParentBlock() == &shape.body() ? Value() : value;
}

namespace {

/// What an iteration's values depend on.
class BodyFlow {
public:
  BodyFlow(const LoopShape &shape, const BatchAnalysis &batch) : shape(shape), batch(batch) {
    for (BlockArgument argument : shape.body().getArguments()) {
      Role role = shape.roles[argument.getArgNumber()];
      if (role == Role::Carry)
        carried.insert(argument);
    }
  }

  bool multipliesLayers() {
    for (Operation &op : shape.body().without_terminator())
      if (visit(&op))
        return true;
    return false;
  }

private:
  /// Neither carried nor of the batch: the same in every micro-batch.
  bool isFixed(Value value) const {
    if (Value outside = outsideOf(shape, value))
      return !batch.dependsOnBatch(outside);
    auto argument = dyn_cast<BlockArgument>(value);
    if (argument)
      return shape.roles[argument.getArgNumber()] == Role::Counter;
    return fixed.contains(value);
  }

  bool visit(Operation *op) {
    SmallVector<Value> used = getUsedValues(op);
    auto isCarried = [&](Value value) { return carried.contains(value); };
    auto isLayer = [&](Value value) { return layers.contains(value); };
    std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
    if (rule && rule->heavy && llvm::any_of(used, isLayer) && llvm::any_of(used, isCarried))
      return true;
    auto slice = dyn_cast<hlo::DynamicSliceOp>(op);
    bool takesLayer = slice && outsideOf(shape, slice.getOperand()) && !used.empty() &&
                      slice->getNumOperands() > 1 && !KnownScalars().get(slice->getOperand(1));
    bool allFixed = llvm::all_of(used, [&](Value value) { return isFixed(value); });
    for (Value result : op->getResults()) {
      if (llvm::any_of(used, isCarried))
        carried.insert(result);
      if (!allFixed)
        continue;
      fixed.insert(result);
      if (takesLayer || llvm::any_of(used, isLayer))
        layers.insert(result);
    }
    return false;
  }

  const LoopShape &shape;
  const BatchAnalysis &batch;
  llvm::DenseSet<Value> carried, fixed, layers;
};

/// Where in dimension 0 of a tensor outside each iteration reads or writes.
using Places = SmallVector<std::pair<Value, SmallVector<int64_t>>>;

} // namespace

static Places readPlaces(const LoopShape &shape) {
  Places places;
  SmallVector<hlo::DynamicSliceOp> slices;
  for (Operation &op : shape.body().without_terminator())
    if (auto slice = dyn_cast<hlo::DynamicSliceOp>(op); slice && slice->getNumOperands() > 1)
      if (Value outside = outsideOf(shape, slice.getOperand())) {
        slices.push_back(slice);
        places.push_back({outside, {}});
      }
  forEachIteration(shape, [&](int64_t, const KnownScalars &scalars) {
    for (auto [slice, place] : llvm::zip_equal(slices, places))
      place.second.push_back(scalars.get(slice->getOperand(1)).value_or(-1));
  });
  return places;
}

/// Whether the backward loop takes what the forward one read or wrote in reverse.
static bool goesBack(const LoopShape &forward, const LoopShape &backward) {
  if (forward.trips != backward.trips)
    return false;
  llvm::DenseMap<Value, SmallVector<int64_t>> places;
  for (auto &[value, starts] : readPlaces(forward))
    places.try_emplace(value, starts);
  for (auto &[index, starts] : forward.writes)
    places[forward.loop->getResult(index)] = starts;
  bool found = false;
  for (auto &[value, starts] : readPlaces(backward)) {
    auto it = places.find(value);
    if (it == places.end())
      continue;
    if (!llvm::equal(llvm::reverse(it->second), starts))
      return false;
    found = true;
  }
  return found;
}

/// Nothing if the loop would become more than `maxOps` ops.
static std::optional<LoopShape> readLoopWithin(hlo::WhileOp loop, int64_t maxOps) {
  if (!loop.getBody().hasOneBlock())
    return std::nullopt;
  return readLoop(loop, maxOps / int64_t(loop.getBody().front().getOperations().size()));
}

/// The loops that may be the gradient of `loop`: of its equation, and of several those that read
/// what it gives. Gradients of later loops may read that as well (of a decoder, say, that reads
/// what an encoder gives). Where none has its equation, they are those that read what it gives
/// and have the equation of no other loop.
static SmallVector<hlo::WhileOp> gradientsOf(hlo::WhileOp loop, ArrayRef<hlo::WhileOp> forward,
                                             ArrayRef<hlo::WhileOp> backward) {
  auto eqnOf = [](hlo::WhileOp op) { return op->getAttr(attr::eqn); };
  SmallVector<hlo::WhileOp> own, readers, ownReaders;
  for (hlo::WhileOp other : backward) {
    bool isOwn = eqnOf(other) == eqnOf(loop);
    bool reads = llvm::any_of(getUsedValues(other),
                              [&](Value value) { return value.getDefiningOp() == loop; });
    bool isOfOther = llvm::any_of(
        forward, [&](hlo::WhileOp each) { return each != loop && eqnOf(each) == eqnOf(other); });
    if (isOwn)
      own.push_back(other);
    if (isOwn && reads)
      ownReaders.push_back(other);
    if (reads && !isOfOther)
      readers.push_back(other);
  }
  return own.empty() ? readers : own.size() > 1 ? ownReaders : own;
}

/// The loops of @main that `maxOps` lets be unrolled and whose iterations are layers:
/// they multiply what they carry by weights that they take from a stack of state, another
/// for each iteration. A recurrence over time is none: all of its steps share the weights.
/// Left out are loops whose gradient is not one loop that goes through the same stacks in
/// reverse (a checkpoint around a whole scan computes all layers again first).
static SmallVector<LayerLoop> findLayerLoops(func::FuncOp main, int64_t maxOps) {
  SmallVector<hlo::WhileOp> forward, backward;
  for (auto loop : main.getBody().front().getOps<hlo::WhileOp>()) {
    if (isOfPhase(loop, "forward"))
      forward.push_back(loop);
    else if (isOfPhase(loop, "backward"))
      backward.push_back(loop);
  }
  SmallVector<LayerLoop> found;
  if (forward.empty())
    return found;
  BatchAnalysis batch(main);
  SmallVector<LoopShape> overLayers;
  // JAX takes loops that depend on nothing out of the body, with the equation's number.
  llvm::DenseMap<Attribute, unsigned> loopsOfEqn;
  for (hlo::WhileOp loop : forward) {
    std::optional<LoopShape> shape = readLoopWithin(loop, maxOps);
    if (!shape || shape->trips < 1 || !BodyFlow(*shape, batch).multipliesLayers())
      continue;
    ++loopsOfEqn[loop->getAttr(attr::eqn)];
    overLayers.push_back(std::move(*shape));
  }
  for (const LoopShape &shape : overLayers) {
    hlo::WhileOp loop = shape.loop;
    if (loopsOfEqn.lookup(loop->getAttr(attr::eqn)) > 1)
      continue; // Which op belongs to which of them is not known.
    SmallVector<hlo::WhileOp> gradients = gradientsOf(loop, forward, backward);
    if (gradients.size() > 1)
      continue;
    LayerLoop layers{shape, std::nullopt};
    if (!gradients.empty()) {
      layers.backward = readLoopWithin(gradients[0], maxOps);
      if (!layers.backward || !goesBack(layers.forward, *layers.backward))
        continue;
    }
    found.push_back(std::move(layers));
  }
  return found;
}

static BodyEquations numberBody(const LayerLoop &loop, unsigned level) {
  BodyEquations result;
  auto readTags = [&](const LoopShape &shape, llvm::DenseMap<Operation *, int64_t> &numbers) {
    for (Operation &op : shape.body().without_terminator())
      if (std::optional<int64_t> eqn = readBodyEqn(op.getLoc(), level))
        numbers[&op] = *eqn;
  };
  auto least = [](auto &numbers, auto &&ops) {
    std::optional<int64_t> number;
    for (Operation *op : ops)
      if (auto it = numbers.find(op); it != numbers.end())
        number = std::min(number.value_or(it->second), it->second);
    return number;
  };
  auto most = [](auto &numbers, auto &&ops) {
    std::optional<int64_t> number;
    for (Operation *op : ops)
      if (auto it = numbers.find(op); it != numbers.end())
        number = std::max(number.value_or(it->second), it->second);
    return number;
  };
  auto sources = [](Operation *op) {
    SmallVector<Operation *> ops;
    for (Value value : getUsedValues(op))
      if (Operation *source = value.getDefiningOp())
        ops.push_back(source);
    return ops;
  };
  auto readers = [](Operation *op) {
    llvm::SetVector<Operation *> ops;
    for (Value value : op->getResults())
      ops.insert_range(getUsers(value));
    return ops.takeVector();
  };

  // What is made for later belongs to its first reader, the rest to the last it reads.
  Block &forward = loop.forward.body();
  readTags(loop.forward, result.forward);
  for (const auto &[op, number] : result.forward)
    result.count = std::max(result.count, number + 1);
  for (Operation &op : llvm::reverse(forward.without_terminator()))
    if (!result.forward.contains(&op))
      if (auto number = least(result.forward, readers(&op)))
        result.forward[&op] = *number;
  for (Operation &op : forward.without_terminator())
    if (!result.forward.contains(&op))
      result.forward[&op] = most(result.forward, sources(&op)).value_or(0);
  if (!loop.backward)
    return result;

  // Gradients go back in step with those that they are made of.
  Block &backward = loop.backward->body();
  readTags(*loop.backward, result.backward);
  for (auto &[op, number] : result.backward)
    number = std::min(number, result.count - 1);
  for (Operation &op : backward.without_terminator())
    if (!result.backward.contains(&op))
      if (auto number = least(result.backward, sources(&op)))
        result.backward[&op] = *number;
  for (Operation &op : llvm::reverse(backward.without_terminator()))
    if (!result.backward.contains(&op))
      result.backward[&op] = most(result.backward, readers(&op)).value_or(result.count - 1);
  return result;
}

//===----------------------------------------------------------------------===//
// Rows of blocks of rows
//===----------------------------------------------------------------------===//

/// Whether the result has the operand's elements in their order, in another shape.
static bool isRegrouping(Operation *op) {
  if (isa<hlo::ReshapeOp>(op))
    return true;
  auto broadcast = dyn_cast<hlo::BroadcastInDimOp>(op);
  return broadcast && llvm::is_sorted(broadcast.getBroadcastDimensions()) &&
         cast<RankedTensorType>(broadcast.getType()).getNumElements() ==
             cast<RankedTensorType>(broadcast.getOperand().getType()).getNumElements();
}

static Value ungrouped(Value value) {
  for (Operation *op = value.getDefiningOp(); op && isRegrouping(op); op = value.getDefiningOp())
    value = op->getOperand(0);
  return value;
}

/// The value in another shape, for what stands in the place of `reader`.
static Value regroup(Value value, Type type, Operation *reader) {
  if (value.getType() == type)
    return value;
  OpBuilder builder(reader);
  auto reshape = hlo::ReshapeOp::create(builder, reader->getLoc(), type, value);
  reshape->setDiscardableAttrs(reader->getDiscardableAttrDictionary());
  return reshape;
}

static int64_t elementsOfRow(Value value) {
  ArrayRef<int64_t> shape = shapeOf(value);
  return shape.empty() ? 1 : llvm::product_of(shape.drop_front());
}

/// Where the first row of a slice of whole rows lies; nothing if it is another slice.
static std::optional<int64_t> firstRow(hlo::SliceOp slice) {
  ArrayRef<int64_t> whole = shapeOf(slice.getOperand()), part = shapeOf(slice.getResult());
  if (whole.empty() || whole.drop_front() != part.drop_front() || slice.getStrides()[0] != 1)
    return std::nullopt;
  return slice.getStartIndices()[0];
}

/// Rows of a block of a stack as rows of the stack, and rows of what was put together as what
/// they were; null if nothing stands between.
static Value directRows(Operation *op) {
  auto slice = cast<hlo::SliceOp>(op);
  std::optional<int64_t> row = firstRow(slice);
  if (!row)
    return nullptr;
  Value whole = slice.getOperand();
  int64_t start = *row * elementsOfRow(whole);
  int64_t size = cast<RankedTensorType>(slice.getType()).getNumElements();
  while (Operation *source = whole.getDefiningOp()) {
    if (isRegrouping(source)) {
      whole = source->getOperand(0);
      continue;
    }
    if (auto outer = dyn_cast<hlo::SliceOp>(source)) {
      std::optional<int64_t> first = firstRow(outer);
      if (!first)
        break;
      start += *first * elementsOfRow(outer.getOperand());
      whole = outer.getOperand();
      continue;
    }
    auto concat = dyn_cast<hlo::ConcatenateOp>(source);
    if (!concat || concat.getDimension() != 0)
      break;
    Value holder;
    int64_t begin = start;
    for (Value part : concat.getInputs()) {
      int64_t elements = cast<RankedTensorType>(part.getType()).getNumElements();
      if (begin < elements) {
        holder = begin + size <= elements ? part : Value();
        break;
      }
      begin -= elements;
    }
    if (!holder)
      break;
    whole = holder;
    start = begin;
  }
  if (whole == slice.getOperand())
    return nullptr;
  auto type = cast<RankedTensorType>(whole.getType());
  if (size == type.getNumElements())
    return regroup(whole, slice.getType(), op);
  int64_t rowSize = elementsOfRow(whole);
  if (type.getRank() == 0 || start % rowSize || size % rowSize)
    return nullptr;
  OpBuilder builder(op);
  Value rows = rowsOf(builder, whole, 0, start / rowSize, size / rowSize,
                      op->getDiscardableAttrDictionary(), op->getLoc());
  return regroup(rows, slice.getType(), op);
}

/// One concatenation for one of stacks of rows, some of which may be blocks; null if the op is
/// none.
static Value stackOfRows(Operation *op) {
  auto type = cast<RankedTensorType>(op->getResult(0).getType());
  Operation *outer = op;
  while (outer && isRegrouping(outer))
    outer = outer->getOperand(0).getDefiningOp();
  auto concat = dyn_cast_or_null<hlo::ConcatenateOp>(outer);
  if (!concat || concat.getDimension() != 0 || type.getRank() == 0)
    return nullptr;
  SmallVector<Value> rows;
  for (Value part : concat.getInputs()) {
    Operation *inner = ungrouped(part).getDefiningOp();
    if (inner && isStack(inner) &&
        shapeOf(inner->getResult(0)).drop_front() == type.getShape().drop_front())
      llvm::append_range(rows, inner->getOperands());
    else if (shapeOf(part).drop_front() == type.getShape().drop_front())
      rows.push_back(part);
    else
      return nullptr;
  }
  if (rows.size() == concat.getInputs().size())
    return nullptr;
  OpBuilder builder(op);
  auto stack = hlo::ConcatenateOp::create(builder, concat.getLoc(), type, rows, 0);
  stack->setDiscardableAttrs(concat->getDiscardableAttrDictionary());
  return stack;
}

/// What was regrouped before, at once; null if nothing was.
static Value regrouped(Operation *op) {
  if (Value stack = stackOfRows(op))
    return stack;
  Operation *source = op->getOperand(0).getDefiningOp();
  return source && isRegrouping(source)
             ? regroup(ungrouped(op->getOperand(0)), op->getResult(0).getType(), op)
             : Value();
}

//===----------------------------------------------------------------------===//
// Scans over layers, layer by layer
//===----------------------------------------------------------------------===//

namespace {

/// The equations that take the place of a loop's one: `count` in each iteration.
struct Numbers {
  const LayerLoop *loop = nullptr;
  BodyEquations body;
  int64_t eqn = 0, first = 0;

  int64_t extra() const { return loop->forward.trips * body.count - 1; }
  int64_t last() const { return first + extra(); }
};

class AlpaUnrollLayersPass : public importer::impl::AlpaUnrollLayersBase<AlpaUnrollLayersPass> {
public:
  using AlpaUnrollLayersBase::AlpaUnrollLayersBase;

  void runOnOperation() override {
    auto main = getOperation().lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration()) {
      emitError(getOperation().getLoc(), "the module has no function @main");
      return signalPassFailure();
    }
    for (Operation &op : main.getBody().front().without_terminator())
      if (!op.hasAttr(attr::phase)) {
        op.emitOpError() << "has no alpa.phase; run alpa-import first";
        return signalPassFailure();
      }
    levels.clear();
    bool any = false;
    do { // Loops within the layers come out as loops of @main.
      foundLoops = false;
      any |= unrollAll(main);
      any |= writeOutShort(main);
      any |= takeBranches(main);
    } while (foundLoops);
    if (any) {
      joinBlocks(main);
      convertRows(main);
      repeatForReaders(main, {attr::phase, attr::eqn}, isConstantLike);
      eraseUnused(main.getBody().front());
    }
  }

private:
  static int64_t eqnOf(Operation *op) { return op->getAttrOfType<IntegerAttr>(attr::eqn).getInt(); }

  bool unrollAll(func::FuncOp main) {
    SmallVector<LayerLoop> loops = findLayerLoops(main, maxOps);
    if (loops.empty())
      return false;
    std::map<int64_t, Numbers> byEqn;
    for (const LayerLoop &loop : loops) {
      Numbers numbers;
      numbers.loop = &loop;
      numbers.eqn = eqnOf(loop.forward.loop);
      numbers.body = numberBody(loop, levels.lookup(loop.forward.loop) + 1);
      byEqn[numbers.eqn] = std::move(numbers);
    }
    int64_t shift = 0;
    for (auto &[eqn, numbers] : byEqn) {
      numbers.first = eqn + shift;
      shift += numbers.extra();
    }
    renumber(main, byEqn);
    for (auto &[eqn, numbers] : byEqn) {
      unroll(numbers, numbers.loop->forward, false);
      if (numbers.loop->backward)
        unroll(numbers, *numbers.loop->backward, true);
      ++numLoops;
      numIterations += numbers.loop->forward.trips;
    }
    return true;
  }

  /// Loops of at most one iteration are no loops; what they do is the loop's one equation.
  bool writeOutShort(func::FuncOp main) {
    SmallVector<LoopShape> shapes;
    for (auto loop : main.getBody().front().getOps<hlo::WhileOp>())
      if (std::optional<LoopShape> shape = readLoop(loop, 1))
        shapes.push_back(std::move(*shape));
    for (const LoopShape &shape : shapes) {
      NamedAttrList kept;
      for (StringRef name : {StringRef(attr::eqn), StringRef(attr::phase)})
        if (Attribute attribute = shape.loop->getAttr(name))
          kept.append(name, attribute);
      DictionaryAttr attributes = kept.getDictionary(&getContext());
      numIterations += shape.trips;
      ++numLoops;
      unrollLoop(
          shape, attributes, [&](Operation *, int64_t) { return attributes; },
          [](Operation *, Operation *) {});
    }
    foundLoops |= !shapes.empty();
    return !shapes.empty();
  }

  /// Of a choice by a number that follows from constants, such as which layers are local, the
  /// branch that is taken; it is the choice's one equation.
  bool takeBranches(func::FuncOp main) {
    KnownElements elements;
    bool any = false;
    for (auto choice : llvm::make_early_inc_range(main.getBody().front().getOps<hlo::CaseOp>())) {
      std::optional<int64_t> number = elements.at(choice->getOperand(0), 0);
      if (!number)
        continue;
      // Out of range it is the last one.
      int64_t last = choice->getNumRegions() - 1;
      Block &taken = choice->getRegion(*number < 0 || *number > last ? last : *number).front();
      unsigned level = levels.lookup(choice);
      for (Operation &op : taken.without_terminator()) {
        for (StringRef name : {StringRef(attr::eqn), StringRef(attr::phase)})
          if (Attribute attribute = choice->getAttr(name))
            op.setAttr(name, attribute);
        if (isa<hlo::WhileOp, hlo::CaseOp>(op))
          levels[&op] = level;
        foundLoops |= isa<hlo::WhileOp, hlo::CaseOp>(op);
      }
      Operation *end = taken.getTerminator();
      SmallVector<Value> results(end->getOperands());
      Block &body = *choice->getBlock();
      body.getOperations().splice(choice->getIterator(), taken.getOperations(), taken.begin(),
                                  end->getIterator());
      choice->replaceAllUsesWith(results);
      levels.erase(choice);
      choice->erase();
      any = true;
    }
    return any;
  }

  /// Equations after a loop's move up; what else is of the loop's own belongs to its
  /// beginning or its end.
  void renumber(func::FuncOp main, const std::map<int64_t, Numbers> &byEqn) {
    Builder builder(&getContext());
    for (Operation &op : main.getBody().front().without_terminator()) {
      auto attribute = op.getAttrOfType<IntegerAttr>(attr::eqn);
      if (!attribute)
        continue;
      int64_t eqn = attribute.getInt(), number = eqn;
      auto next = byEqn.lower_bound(eqn);
      if (next != byEqn.begin())
        number += std::prev(next)->second.last() - std::prev(next)->first;
      if (next != byEqn.end() && next->first == eqn) {
        const Numbers &numbers = next->second;
        bool isBackward = op.getAttrOfType<StringAttr>(attr::phase).getValue() == "backward";
        Operation *loop = numbers.loop->forward.loop;
        if (isBackward)
          loop = numbers.loop->backward ? numbers.loop->backward->loop : nullptr;
        bool isBefore = !loop || op.isBeforeInBlock(loop);
        number = isBefore == isBackward ? numbers.last() : numbers.first;
      }
      op.setAttr(attr::eqn, builder.getI64IntegerAttr(number));
    }
  }

  void unroll(const Numbers &numbers, const LoopShape &shape, bool isBackward) {
    Builder builder(&getContext());
    Attribute phase = shape.loop->getAttr(attr::phase);
    auto attributes = [&](int64_t eqn) {
      return builder.getDictionaryAttr(
          {builder.getNamedAttr(attr::eqn, builder.getI64IntegerAttr(eqn)),
           builder.getNamedAttr(attr::phase, phase)});
    };
    const auto &numberOf = isBackward ? numbers.body.backward : numbers.body.forward;
    int64_t count = numbers.body.count;
    unsigned level = levels.lookup(shape.loop) + 1;
    unrollLoop(
        shape, attributes(isBackward ? numbers.first : numbers.last()),
        [&](Operation *op, int64_t trip) {
          int64_t iteration = isBackward ? shape.trips - 1 - trip : trip;
          auto it = numberOf.find(op);
          int64_t number = it != numberOf.end() ? it->second : isBackward ? 0 : count - 1;
          return attributes(numbers.first + iteration * count + number);
        },
        [&](Operation *, Operation *copy) {
          if (isa<hlo::WhileOp, hlo::CaseOp>(copy))
            levels[copy] = level;
          foundLoops |= isa<hlo::WhileOp>(copy);
        });
  }

  /// A scan with `unroll` takes several rows of its stacks at once, by which it reshapes them.
  /// Its layers take single rows, and give single rows for stacks, as those of other scans do.
  static void joinBlocks(func::FuncOp main) {
    for (Operation &op : llvm::make_early_inc_range(main.getBody().front().without_terminator())) {
      Value joined = isa<hlo::SliceOp>(op)         ? directRows(&op)
                     : isa<hlo::ConcatenateOp>(op) ? stackOfRows(&op)
                     : isRegrouping(&op)           ? regrouped(&op)
                                                   : Value();
      if (!joined)
        continue;
      op.getResult(0).replaceAllUsesWith(joined);
      op.erase();
    }
  }

  /// A stack that is only converted for its rows (masters in float32) is sliced first, so
  /// that each layer reads what is its own.
  static void convertRows(func::FuncOp main) {
    Block &body = main.getBody().front();
    SmallVector<hlo::ConvertOp> converts(body.getOps<hlo::ConvertOp>());
    for (hlo::ConvertOp convert : llvm::reverse(converts)) {
      auto isSlice = [](Operation *user) { return isa<hlo::SliceOp>(user); };
      if (convert->use_empty() || !llvm::all_of(convert->getUsers(), isSlice))
        continue;
      auto from = cast<RankedTensorType>(convert->getOperand(0).getType());
      for (Operation *slice : llvm::to_vector(convert->getUsers())) {
        OpBuilder builder(slice);
        auto type = cast<RankedTensorType>(slice->getResult(0).getType());
        Operation *row = builder.clone(*slice);
        row->setOperand(0, convert->getOperand(0));
        row->getResult(0).setType(type.clone(from.getElementType()));
        Operation *made = builder.clone(*convert);
        made->setAttrs(slice->getDiscardableAttrDictionary());
        made->setOperand(0, row->getResult(0));
        made->getResult(0).setType(type);
        slice->getResult(0).replaceAllUsesWith(made->getResult(0));
        slice->erase();
      }
      convert->erase();
    }
  }

  llvm::DenseMap<Operation *, unsigned> levels; // Loops around it that were unrolled.
  bool foundLoops = false;
};

} // namespace
