//===- UnrollLoop.cpp - the iterations of a loop, one after another -------===//

#include "compiler/Import/UnrollLoop.h"

#include "compiler/Import/DataFlow.h"
#include "compiler/Import/Stacked.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/DenseSet.h"
#include <map>

using namespace mlir;
using namespace alpa;
namespace hlo = mlir::stablehlo;
using Role = LoopShape::Role;

static ArrayRef<int64_t> shapeOf(Value value) {
  return cast<RankedTensorType>(value.getType()).getShape();
}

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

void alpa::forEachIteration(const LoopShape &shape,
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

std::optional<LoopShape> alpa::readLoop(hlo::WhileOp loop, int64_t mostTrips) {
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
                rowsOf(builder, operand, (*starts)[0], part[0], attributes, op->getLoc()));
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

void alpa::unrollLoop(const LoopShape &shape, DictionaryAttr stackAttributes,
                      llvm::function_ref<DictionaryAttr(Operation *, int64_t)> attributesOf,
                      llvm::function_ref<void(Operation *, Operation *)> onClone) {
  Unroller(shape, attributesOf, onClone).run(stackAttributes);
}
