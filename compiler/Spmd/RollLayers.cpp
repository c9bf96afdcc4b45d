//===- RollLayers.cpp - equal layers of a stage become a loop -------------===//
//
// A stage is planned layer by layer, written out. What a device compiles needs each layer
// once: functions whose ops repeat get loops, and values that exist once for each layer
// (weights, moments, gradients, what the backward pass keeps) become stacks.
//
// All of it is decided by trying. A stage is copied, its functions are rewritten for the
// stacks that are known so far, and loops say which others they would need. When nothing
// is asked for any more, and no stack would have to be taken apart again, the copy takes
// the stage's place.
//
//===----------------------------------------------------------------------===//

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Spmd/Passes.h"
#include "compiler/Spmd/ShardedModule.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Threading.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/SetVector.h"
#include <map>
#include <set>

namespace alpa::spmd {
#define GEN_PASS_DEF_ROLLLAYERS
#include "compiler/Spmd/Passes.h.inc"
} // namespace alpa::spmd

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;
namespace hlo = mlir::stablehlo;

/// Constants of more bytes are handed to a loop rather than made in it.
static constexpr int64_t kSmallConstant = 4096;
/// Values of at most so many bytes may be put into stacks and taken out one by one.
static constexpr int64_t kSmallValue = 4096;
/// Sequences of fewer ops are not worth a loop.
static constexpr int64_t kLeastPeriod = 8;
/// But for the half of a backward pass that has products for weights alone, where else its stage
/// has no loops.
static constexpr int64_t kLeastWeights = 4;
/// So many of the places at which an iteration may begin are tried, and all of the best ones.
static constexpr int64_t kMostCuts = 16;
/// Ops side by side by which repetitions are looked for.
static constexpr int64_t kWindow = 6;

/// Marks ops that put values into stacks or take them out again, while a stage is tried.
static constexpr llvm::StringLiteral kStack = "alpa.stack";

//===----------------------------------------------------------------------===//
// Values and their shardings
//===----------------------------------------------------------------------===//

static ShardingAttr shardingOf(Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    Operation *owner = argument.getOwner()->getParentOp();
    if (auto function = dyn_cast<func::FuncOp>(owner))
      return function.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(), attr::sharding);
    if (isa<hlo::WhileOp>(owner))
      return shardingOf(owner->getOperand(argument.getArgNumber()));
    return {};
  }
  auto result = cast<OpResult>(value);
  if (auto reshard = dyn_cast<ReshardOp>(result.getOwner()))
    return reshard.getTo();
  auto shardings = result.getOwner()->getAttrOfType<ArrayAttr>(attr::shardings);
  if (!shardings || result.getResultNumber() >= shardings.size())
    return {};
  return dyn_cast<ShardingAttr>(shardings[result.getResultNumber()]);
}

static bool isPlainTensor(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  ShardingAttr sharding = shardingOf(value);
  return type && type.hasStaticShape() && type.getElementType().isIntOrFloat() && sharding &&
         sharding.getSpec().unreduced.empty();
}

static DenseElementsAttr constantOf(Value value) {
  auto op = value.getDefiningOp<hlo::ConstantOp>();
  return op ? dyn_cast<DenseElementsAttr>(op.getValue()) : DenseElementsAttr();
}

static bool isSplat(Value value) {
  DenseElementsAttr constant = constantOf(value);
  return constant && constant.isSplat();
}

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

static int64_t bytesOf(Type type) { return int64_t(analysis::getTensorBytes(type)); }

/// The type of `count` values of a type: rows of dimension 0 where each is one row, a
/// dimension of its own otherwise.
static bool isRow(RankedTensorType type, ShardingAttr sharding) {
  return type.getRank() > 0 && type.getDimSize(0) == 1 && sharding.getSpec().dims[0].empty();
}
static RankedTensorType withRows(RankedTensorType type, int64_t count, bool isRow) {
  SmallVector<int64_t> shape(type.getShape());
  if (isRow)
    shape[0] = count;
  else
    shape.insert(shape.begin(), count);
  return type.clone(shape);
}
static ShardingAttr withRow(ShardingAttr sharding) {
  ShardingSpec spec = sharding.getSpec();
  spec.dims.insert(spec.dims.begin(), SmallVector<unsigned, 2>());
  return ShardingAttr::get(sharding.getContext(), spec);
}

namespace {

/// Makes ops that say how their results are held.
class HeldBuilder : public OpBuilder {
public:
  using OpBuilder::OpBuilder;

  template <typename Op, typename... Args>
  Op held(Location loc, ShardingAttr sharding, Args &&...args) {
    auto op = Op::create(*this, loc, std::forward<Args>(args)...);
    op->setAttr(attr::shardings, getArrayAttr({sharding}));
    return op;
  }
  ShardingAttr replicated(size_t rank) {
    return ShardingAttr::get(getContext(), ShardingSpec::replicated(rank));
  }
  Value integer(int64_t value, Location loc) {
    auto type = RankedTensorType::get({}, getI32Type());
    return held<hlo::ConstantOp>(
        loc, replicated(0),
        cast<ElementsAttr>(DenseElementsAttr::get(type, APInt(32, value, true))));
  }
  Value zeros(RankedTensorType type, ShardingAttr sharding, Location loc) {
    auto scalar = RankedTensorType::get({}, type.getElementType());
    Value zero =
        held<hlo::ConstantOp>(loc, replicated(0), cast<ElementsAttr>(analysis::splatOf(0, scalar)));
    return held<hlo::BroadcastInDimOp>(loc, sharding, type, zero, getDenseI64ArrayAttr({}));
  }
  Value reshaped(Value value, RankedTensorType type, ShardingAttr sharding, Location loc) {
    if (value.getType() == type)
      return value;
    return held<hlo::ReshapeOp>(loc, sharding, type, value);
  }
  /// Row `row` of a stack, as a value of `type`.
  Value row(Value stack, ShardingAttr held, int64_t row, RankedTensorType type,
            ShardingAttr sharding, Location loc) {
    SmallVector<int64_t> starts(typeOf(stack).getRank(), 0), limits(typeOf(stack).getShape()),
        strides(typeOf(stack).getRank(), 1);
    starts[0] = row;
    limits[0] = row + 1;
    SmallVector<int64_t> shape(limits);
    shape[0] = 1;
    Value slice = this->held<hlo::SliceOp>(
        loc, held, typeOf(stack).clone(shape), stack, getDenseI64ArrayAttr(starts),
        getDenseI64ArrayAttr(limits), getDenseI64ArrayAttr(strides));
    return reshaped(slice, type, sharding, loc);
  }
  Value markedRow(Value stack, ShardingAttr held, int64_t number, RankedTensorType type,
                  ShardingAttr sharding, Location loc) {
    Value made = row(stack, held, number, type, sharding, loc);
    made.getDefiningOp()->setAttr(kStack, getUnitAttr());
    if (auto reshape = made.getDefiningOp<hlo::ReshapeOp>())
      reshape.getOperand().getDefiningOp()->setAttr(kStack, getUnitAttr());
    return made;
  }
  Value stack(ArrayRef<Value> rows, Location loc) {
    ShardingAttr sharding = shardingOf(rows[0]);
    bool areRows = isRow(typeOf(rows[0]), sharding);
    RankedTensorType one = withRows(typeOf(rows[0]), 1, areRows);
    ShardingAttr held = areRows ? sharding : withRow(sharding);
    if (llvm::all_of(rows, constantOf)) {
      SmallVector<Attribute> elements;
      for (Value row : rows)
        llvm::append_range(elements, constantOf(row).getValues<Attribute>());
      RankedTensorType type = withRows(typeOf(rows[0]), int64_t(rows.size()), areRows);
      return this->held<hlo::ConstantOp>(
          loc, held, cast<ElementsAttr>(DenseElementsAttr::get(type, elements)));
    }
    auto parts = llvm::map_to_vector(rows, [&](Value v) { return reshaped(v, one, held, loc); });
    return this->held<hlo::ConcatenateOp>(loc, held,
                                          withRows(typeOf(rows[0]), int64_t(rows.size()), areRows),
                                          ValueRange(parts), getI64IntegerAttr(0));
  }
};

//===----------------------------------------------------------------------===//
// What is equal
//===----------------------------------------------------------------------===//

/// Numbers values of a function; two of one number are equal.
class ValueNumbers {
public:
  explicit ValueNumbers(Block &block) {
    for (Operation &op : block.without_terminator())
      visit(&op);
  }
  unsigned of(Value value) {
    auto [it, isNew] = numbers.try_emplace(value, next);
    next += isNew;
    return it->second;
  }
  /// Made of constants alone, and small enough to be made again.
  bool isConstant(Value value) const { return constants.contains(value); }

private:
  void visit(Operation *op) {
    if (op->getNumRegions() > 0 || !isMemoryEffectFree(op) ||
        isa<hlo::RngOp, hlo::CustomCallOp>(op))
      return;
    std::vector<const void *> key{op->getName().getAsOpaquePointer(),
                                  op->getAttrDictionary().getAsOpaquePointer()};
    for (Type type : op->getResultTypes())
      key.push_back(type.getAsOpaquePointer());
    for (Value operand : op->getOperands())
      key.push_back(reinterpret_cast<const void *>(uintptr_t(of(operand)) * 2 + 1));
    auto [it, isNew] = known.try_emplace(std::move(key), next);
    if (isNew)
      next += op->getNumResults();
    for (auto [i, result] : llvm::enumerate(op->getResults()))
      numbers[result] = it->second + i;
    bool isSmall = true;
    if (isa<hlo::ConstantOp>(op))
      isSmall = isSplat(op->getResult(0)) || bytesOf(typeOf(op->getResult(0))) <= kSmallConstant;
    if (isSmall && llvm::all_of(op->getOperands(), [&](Value v) { return isConstant(v); }))
      constants.insert(op->result_begin(), op->result_end());
  }

  std::map<std::vector<const void *>, unsigned> known;
  llvm::DenseMap<Value, unsigned> numbers;
  llvm::DenseSet<Value> constants;
  unsigned next = 1;
};

} // namespace

/// Operands, and what regions use from outside of the op.
static SmallVector<Value> usedBy(Operation *op) {
  SmallVector<Value> values(op->getOperands());
  if (op->getNumRegions() > 0) {
    llvm::SetVector<Value> captures;
    getUsedValuesDefinedAbove(op->getRegions(), captures);
    llvm::append_range(values, captures);
  }
  return values;
}

/// Moves what an op reads in front of it, and nothing else: layers stay as they are beside a loop
/// that reads what is made behind its place.
static void moveInFrontOfReaders(Block &block) {
  llvm::DenseSet<Operation *> entered;
  SmallVector<Operation *> waiting;
  llvm::SetVector<Operation *> order;
  for (Operation &each : block) {
    if (!entered.contains(&each))
      waiting.push_back(&each);
    while (!waiting.empty()) {
      Operation *op = waiting.back();
      if (entered.insert(op).second) {
        SmallVector<Value> used = usedBy(op);
        for (Value value : llvm::reverse(used))
          if (Operation *source = value.getDefiningOp();
              source && source->getBlock() == &block && !entered.contains(source))
            waiting.push_back(source);
        continue;
      }
      waiting.pop_back();
      order.insert(op);
    }
  }
  for (Operation *op : order)
    op->moveBefore(&block, block.end());
}

/// Whether regions do the same if values from outside are what `partner` says of them. (MLIR's
/// own comparison takes a value for equal to itself, also where its partner is another.)
static bool isSameRegion(Region &a, Region &b, llvm::DenseMap<Value, Value> &partner) {
  auto pair = [&](ValueRange left, ValueRange right) {
    if (left.getTypes() != right.getTypes())
      return false;
    for (auto [x, y] : llvm::zip_equal(left, right))
      partner[x] = y;
    return true;
  };
  if (!a.hasOneBlock() || !b.hasOneBlock())
    return a.empty() && b.empty();
  if (!pair(a.getArguments(), b.getArguments()) ||
      a.front().getOperations().size() != b.front().getOperations().size())
    return false;
  for (auto [left, right] : llvm::zip_equal(a.front(), b.front())) {
    if (left.getName() != right.getName() || left.getNumOperands() != right.getNumOperands() ||
        left.getAttrDictionary() != right.getAttrDictionary() ||
        left.getNumRegions() != right.getNumRegions())
      return false;
    for (auto [x, y] : llvm::zip_equal(left.getOperands(), right.getOperands()))
      if (partner.lookup(x) != y)
        return false;
    for (auto [inLeft, inRight] : llvm::zip_equal(left.getRegions(), right.getRegions()))
      if (!isSameRegion(inLeft, inRight, partner))
        return false;
    if (!pair(left.getResults(), right.getResults()))
      return false;
  }
  return true;
}

/// Whether the ops do the same with what they use, in the order of `usedBy`.
static bool isSameOp(Operation *a, Operation *b) {
  if (a->getName() != b->getName() || a->getResultTypes() != b->getResultTypes() ||
      a->getAttrDictionary() != b->getAttrDictionary() ||
      a->getNumOperands() != b->getNumOperands() || a->getNumRegions() != b->getNumRegions() ||
      llvm::any_of(llvm::zip(a->getOperandTypes(), b->getOperandTypes()),
                   [](auto pair) { return std::get<0>(pair) != std::get<1>(pair); }))
    return false;
  if (a->getNumRegions() == 0)
    return true;
  SmallVector<Value> left = usedBy(a), right = usedBy(b);
  if (left.size() != right.size())
    return false;
  llvm::DenseMap<Value, Value> partner;
  for (auto [x, y] : llvm::zip_equal(left, right)) {
    if (x.getType() != y.getType())
      return false;
    partner[x] = y;
  }
  return llvm::all_of(llvm::zip_equal(a->getRegions(), b->getRegions()), [&](auto regions) {
    return isSameRegion(std::get<0>(regions), std::get<1>(regions), partner);
  });
}

/// Of ops that `isSameOp` holds for, the same number, and of slices that may read other rows.
static uint64_t hashOf(Operation *op) {
  Attribute attributes =
      isa<hlo::SliceOp>(op) ? op->getAttr(attr::shardings) : Attribute(op->getAttrDictionary());
  llvm::hash_code hash = llvm::hash_combine(op->getName().getAsOpaquePointer(), op->getNumRegions(),
                                            attributes.getAsOpaquePointer());
  for (Type type : op->getResultTypes())
    hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
  for (Type type : op->getOperandTypes())
    hash = llvm::hash_combine(hash, type.getAsOpaquePointer());
  return hash;
}

//===----------------------------------------------------------------------===//
// Loops of one function
//===----------------------------------------------------------------------===//

namespace {

/// Values that exist once for each iteration, as ids of `alpa.value`.
using Ids = SmallVector<int64_t>;

/// Which row of the stage's stacks a value is, or begins with. Of state the caller says it, of
/// other values what loops read beside them.
struct RowInfo {
  int64_t row = 0;
  bool isState = false;
  bool isWhole = false; // A stack of the caller's, of which only rows can be read.
};
using RowOf = llvm::function_ref<std::optional<RowInfo>(Value)>;

/// How the body of a loop gets a value from outside.
struct Source {
  enum Kind { Invariant, Constant, Computed, Row, Stacked, Argument } kind;
  Value value;             // Invariant, Constant; Row: the stack.
  Operation *op = nullptr; // Computed: of the first iteration; Row: its slice.
  SmallVector<std::shared_ptr<Source>> operands; // Computed.
  int64_t dim = 0, start = 0, step = 0;          // Row.
  SmallVector<Value> values;                     // Stacked, Argument: one for each iteration.
};

class Loop {
public:
  Loop(func::FuncOp function, ArrayRef<Operation *> sequence, int64_t begin, int64_t period,
       int64_t count, ValueNumbers &numbers, const llvm::DenseSet<Operation *> &views)
      : function(function), period(period), count(count), numbers(numbers), views(views) {
    ops.assign(sequence.begin() + begin, sequence.begin() + begin + period * count);
    for (auto [i, op] : llvm::enumerate(ops))
      position[op] = i;
  }

  /// Whether it is one; what it needs to be written is known then.
  bool analyze();
  int64_t carriedBytes() const;
  /// The row of the stacks that the first iteration reads, and how far the next one's is, of
  /// most stacks, and of how many it is not so.
  std::optional<std::pair<int64_t, int64_t>> rows(RowOf rowOf, int64_t &others) const;
  /// Function arguments and results that have to become stacks.
  SmallVector<SmallVector<Value>> wantedArguments() const;
  SmallVector<SmallVector<Value>> wantedResults() const { return returned; }
  /// With `isDescending`, stacks that nobody asked for have the last iteration's value first.
  Operation *write(bool isDescending);

  int64_t getCount() const { return count; }
  /// Stacks that other loops read of which this one makes single rows.
  int64_t numMissedStacks() const { return int64_t(missed.size()); }

private:
  Operation *at(int64_t iteration, int64_t place) const { return ops[iteration * period + place]; }
  /// Whether the op at a place takes a row of a stack from outside, in each iteration the next.
  bool isRowRead(int64_t place) const {
    ArrayRef<Use> used = uses[place];
    return used.size() == 1 && used[0].source && used[0].source->kind == Source::Row &&
           used[0].source->op == at(0, place);
  }
  bool isInFront(Value value) const {
    Operation *op = value.getDefiningOp();
    return !op || op->isBeforeInBlock(ops.front());
  }
  std::optional<int64_t> placeOf(Value value) const {
    Operation *op = value.getDefiningOp();
    auto it = op ? position.find(op) : position.end();
    return it == position.end() ? std::nullopt : std::optional(it->second);
  }
  bool analyzeUse(int64_t place, unsigned index, ArrayRef<SmallVector<Value>> used);
  bool analyzeResult(OpResult first);
  void analyzeReturnedViews();
  SmallVector<Value> rowsOf(Operation *stack, RankedTensorType type) const;
  std::shared_ptr<Source> sourceOf(ArrayRef<Value> values);
  std::shared_ptr<Source> findSource(ArrayRef<Value> values);
  std::shared_ptr<Source> findRows(ArrayRef<Value> values);
  std::shared_ptr<Source> findComputed(ArrayRef<Value> values);
  unsigned carry(Value init, OpResult next);
  Value emit(const Source &source, HeldBuilder &builder);
  void stackUp(Source &source, HeldBuilder &builder);

  /// What is carried from one iteration to the next: `next` of the first iteration's ops.
  struct Carry {
    Value init;
    OpResult next; // Of the first iteration.
    bool hasFinal = false;
  };
  /// A result of which every iteration's is used behind the loop.
  struct Output {
    OpResult value;                // Of the first iteration.
    std::optional<unsigned> carry; // What the iteration begins with, instead.
    bool isReversed = false;
    Operation *stack = nullptr; // The concatenation that it stands for; none: rows are read.
    std::shared_ptr<Source> source = nullptr; // What it is, unless an op of the sequence makes it.
    int64_t offset = 0; // Of its rows among those of the stack, whose others are made outside.
  };
  struct Use {
    enum Kind { Inside, Carried, Outside } kind;
    unsigned carry = 0;
    std::shared_ptr<Source> source;
  };

  func::FuncOp function;
  int64_t period, count;
  ValueNumbers &numbers;
  const llvm::DenseSet<Operation *> &views;
  SmallVector<Operation *> ops;
  llvm::DenseMap<Operation *, int64_t> position;
  SmallVector<Carry> carries;
  SmallVector<Output> outputs;
  SmallVector<SmallVector<Use>> uses; // By place, then in the order of `usedBy`.
  std::map<std::vector<void *>, std::shared_ptr<Source>> sources;
  std::vector<std::shared_ptr<Source>> inOrder; // The same, as they were met.
  SmallVector<SmallVector<Value>> returned;
  llvm::DenseSet<Operation *> missed;
  llvm::SetVector<Value> invariants;
  // While the loop is written.
  IRMapping inBody;
  llvm::DenseMap<const Source *, Value> emitted;
  Value number;
};

} // namespace

unsigned Loop::carry(Value init, OpResult next) {
  for (auto [i, known] : llvm::enumerate(carries))
    if (known.init == init && known.next == next)
      return i;
  carries.push_back({init, next});
  return carries.size() - 1;
}

std::shared_ptr<Source> Loop::sourceOf(ArrayRef<Value> values) {
  std::vector<void *> key;
  for (Value value : values)
    key.push_back(value.getAsOpaquePointer());
  if (auto it = sources.find(key); it != sources.end())
    return it->second;
  std::shared_ptr<Source> made = findSource(values);
  sources[key] = made;
  if (made)
    inOrder.push_back(made);
  return made;
}

/// Rows of one stack from outside, each next one as far from the one before; or nothing.
std::shared_ptr<Source> Loop::findRows(ArrayRef<Value> values) {
  SmallVector<ArrayRef<int64_t>> starts;
  auto first = values[0].getDefiningOp<hlo::SliceOp>();
  Value stack = first ? first.getOperand() : Value();
  if (!stack || placeOf(stack) || !shardingOf(stack))
    return nullptr;
  for (Value value : values) {
    auto each = value.getDefiningOp<hlo::SliceOp>();
    if (!each || each.getType() != first.getType() || placeOf(each.getOperand()) ||
        numbers.of(each.getOperand()) != numbers.of(stack) ||
        shardingOf(value) != shardingOf(values[0]) ||
        llvm::any_of(each.getStrides(), [](int64_t s) { return s != 1; }))
      return nullptr;
    starts.push_back(each.getStartIndices());
  }
  int64_t changing = -1;
  for (int64_t dim = 0; dim < int64_t(starts[0].size()); ++dim) {
    if (llvm::all_of(starts, [&](ArrayRef<int64_t> s) { return s[dim] == starts[0][dim]; }))
      continue;
    if (changing >= 0)
      return nullptr;
    changing = dim;
  }
  if (changing < 0 || !shardingOf(stack).getSpec().dims[changing].empty())
    return nullptr;
  auto rows = std::make_shared<Source>();
  rows->kind = Source::Row;
  rows->value = stack;
  rows->op = first;
  rows->dim = changing;
  rows->start = starts[0][changing];
  rows->step = starts[1][changing] - starts[0][changing];
  for (int64_t i = 0; i < count; ++i)
    if (starts[i][changing] != rows->start + i * rows->step)
      return nullptr;
  invariants.insert(stack);
  return rows;
}

/// Results of equal ops whose operands the loop can have; or nothing.
std::shared_ptr<Source> Loop::findComputed(ArrayRef<Value> values) {
  Operation *op = values[0].getDefiningOp();
  if (op->getNumOperands() == 0 || op->getNumResults() != 1 || op->getNumRegions() > 0 ||
      llvm::any_of(values, [&](Value v) { return !isSameOp(op, v.getDefiningOp()); }))
    return nullptr;
  auto computed = std::make_shared<Source>();
  computed->kind = Source::Computed;
  computed->value = values[0];
  computed->op = op;
  for (unsigned i = 0; i < op->getNumOperands(); ++i) {
    auto operands =
        llvm::map_to_vector(values, [&](Value v) { return v.getDefiningOp()->getOperand(i); });
    computed->operands.push_back(sourceOf(operands));
    if (!computed->operands.back())
      return nullptr;
  }
  return computed;
}

std::shared_ptr<Source> Loop::findSource(ArrayRef<Value> values) {
  Value first = values[0];
  auto is = [&](Source::Kind kind) {
    auto source = std::make_shared<Source>();
    source->kind = kind;
    source->value = first;
    return source;
  };
  unsigned numberOfFirst = numbers.of(first);
  if (llvm::all_of(values, [&](Value v) { return numbers.of(v) == numberOfFirst; })) {
    bool isConstant = numbers.isConstant(first);
    if (!isConstant)
      invariants.insert(first);
    return is(isConstant ? Source::Constant : Source::Invariant);
  }
  if (llvm::any_of(values, [&](Value v) { return v.getType() != first.getType(); }))
    return nullptr;
  if (std::shared_ptr<Source> rows = findRows(values))
    return rows;
  auto isView = [&](Value v) { return v.getDefiningOp() && views.contains(v.getDefiningOp()); };
  auto isConstant = [&](Value v) { return numbers.isConstant(v); };
  if (llvm::all_of(values, isView) || llvm::all_of(values, isConstant))
    if (std::shared_ptr<Source> computed = findComputed(values))
      return computed;
  if (llvm::any_of(values, [](Value v) { return !isPlainTensor(v); }) ||
      llvm::any_of(values, [&](Value v) { return shardingOf(v) != shardingOf(first); }))
    return nullptr;
  bool areArguments = llvm::all_of(values, [](Value v) { return isa<BlockArgument>(v); });
  // What the functions of the stage hand to each other is a stack already, or is to be one.
  bool areSmall = bytesOf(typeOf(first)) <= kSmallValue && llvm::none_of(values, [](Value v) {
                    Operation *op = v.getDefiningOp();
                    return !op || op->hasAttr(kStack);
                  });
  if (!areArguments && !areSmall && !llvm::all_of(values, isSplat))
    return nullptr;
  auto source = is(areArguments ? Source::Argument : Source::Stacked);
  source->values.assign(values.begin(), values.end());
  return source;
}

bool Loop::analyzeUse(int64_t place, unsigned index, ArrayRef<SmallVector<Value>> used) {
  auto valueAt = [&](int64_t iteration) { return used[iteration][index]; };
  auto defined = [&](int64_t iteration) { return placeOf(valueAt(iteration)); };
  auto sameResult = [&](Value a, Value b) {
    return cast<OpResult>(a).getResultNumber() == cast<OpResult>(b).getResultNumber();
  };
  std::optional<int64_t> first = defined(0), second = defined(1);
  if (first) { // Made in the same iteration.
    if (*first >= period)
      return false;
    for (int64_t i = 1; i < count; ++i) {
      std::optional<int64_t> each = defined(i);
      if (!each || *each != *first + i * period || !sameResult(valueAt(i), valueAt(0)))
        return false;
    }
    uses[place].push_back({Use::Inside, 0, nullptr});
    return true;
  }
  if (second) { // Made in the iteration before.
    if (*second >= period)
      return false;
    for (int64_t i = 2; i < count; ++i) {
      std::optional<int64_t> each = defined(i);
      if (!each || *each != *second + (i - 1) * period || !sameResult(valueAt(i), valueAt(1)))
        return false;
    }
    Value init = valueAt(0);
    if (init.getType() != valueAt(1).getType() || !isPlainTensor(valueAt(1)) ||
        shardingOf(init) != shardingOf(valueAt(1)))
      return false;
    uses[place].push_back({Use::Carried, carry(init, cast<OpResult>(valueAt(1))), nullptr});
    return true;
  }
  SmallVector<Value> values;
  for (int64_t i = 0; i < count; ++i) {
    if (defined(i))
      return false;
    values.push_back(valueAt(i));
  }
  std::shared_ptr<Source> source = sourceOf(values);
  if (!source)
    return false;
  uses[place].push_back({Use::Outside, 0, source});
  return true;
}

/// The values of which a concatenation makes a stack, most of which the loop may make; none if it
/// is another one.
SmallVector<Value> Loop::rowsOf(Operation *stack, RankedTensorType type) const {
  auto total = int64_t(stack->getNumOperands());
  if (total < count || 2 * count < total)
    return {};
  SmallVector<Value> rows;
  for (Value operand : stack->getOperands()) {
    auto reshape = operand.getDefiningOp<hlo::ReshapeOp>();
    Value row = operand.getType() != type && reshape ? Value(reshape.getOperand()) : operand;
    if (row.getType() != type || !isPlainTensor(row))
      return {};
    rows.push_back(row);
  }
  bool areRows = isRow(type, shardingOf(rows[0]));
  for (Value row : rows)
    if (isRow(type, shardingOf(row)) != areRows)
      return {};
  if (stack->getResult(0).getType() != withRows(type, total, areRows))
    return {};
  return rows;
}

/// What happens behind the loop with a result.
bool Loop::analyzeResult(OpResult first) {
  int64_t place = position.lookup(first.getOwner());
  auto valueAt = [&](int64_t i) { return at(i, place)->getResult(first.getResultNumber()); };
  auto isInside = [&](Operation *user) {
    for (; user && user->getBlock() != &function.front(); user = user->getParentOp())
      ;
    return position.contains(user);
  };
  SmallVector<SmallVector<Operation *>> outside(count);
  SmallVector<int64_t> read;
  for (int64_t i = 0; i < count; ++i) {
    for (Operation *user : valueAt(i).getUsers())
      if (!isInside(user))
        outside[i].push_back(user);
    if (!outside[i].empty())
      read.push_back(i);
  }
  if (read.empty())
    return true;
  if (!isPlainTensor(first))
    return false;

  // Stacks that are made of it, with or without what the first iteration begins with.
  llvm::SetVector<Operation *> stacks;
  llvm::DenseSet<Operation *> taken; // Readers that are stacks, or lead to them.
  SmallVector<Output> made;
  for (int64_t i : read)
    for (Operation *user : outside[i]) {
      if (isa<hlo::ReshapeOp>(user) && user->hasOneUse())
        user = *user->getUsers().begin();
      if (auto concat = dyn_cast<hlo::ConcatenateOp>(user);
          concat && concat.getDimension() == 0 && int64_t(concat->getNumOperands()) >= count)
        stacks.insert(concat);
    }
  for (Operation *stack : stacks) {
    SmallVector<Value> parts = rowsOf(stack, typeOf(first));
    auto total = int64_t(parts.size());
    if (parts.empty())
      continue;
    for (bool isReversed : {false, true}) {
      if (isReversed)
        std::reverse(parts.begin(), parts.end());
      std::optional<Output> output;
      for (int64_t begin = 0; begin + count <= total && !output; ++begin) {
        bool all = true, shifted = true;
        for (int64_t i = 0; i < count; ++i) {
          all &= parts[begin + i] == valueAt(i);
          shifted &= i == 0 || parts[begin + i] == valueAt(i - 1);
        }
        std::optional<unsigned> carry;
        for (auto [index, known] : llvm::enumerate(carries))
          if (shifted && known.next == first && known.init == parts[begin])
            carry = unsigned(index);
        // The others are made outside.
        auto isMadeHere = [&](Value v) { return placeOf(v).has_value(); };
        if (llvm::any_of(ArrayRef(parts).take_front(begin), isMadeHere) ||
            llvm::any_of(ArrayRef(parts).drop_front(begin + count), isMadeHere))
          continue;
        // What is there in front of the loop may be handed on for the stack alone.
        if (!all && !carry && shifted && isInFront(parts[begin]) &&
            shardingOf(parts[begin]) == shardingOf(first))
          carry = this->carry(parts[begin], first);
        if (!all && !carry)
          continue;
        int64_t offset = isReversed ? total - count - begin : begin;
        output = Output{first, all ? std::nullopt : carry, isReversed, stack, nullptr, offset};
      }
      if (!output)
        continue;
      made.push_back(*output);
      taken.insert(stack);
      for (Value operand : stack->getOperands())
        if (operand.getType() != first.getType() && operand.getDefiningOp())
          taken.insert(operand.getDefiningOp());
      break;
    }
  }
  auto isRead = [&](int64_t i) {
    return llvm::any_of(outside[i], [&](Operation *user) { return !taken.contains(user); });
  };
  SmallVector<int64_t> rest;
  for (int64_t i : read)
    if (isRead(i))
      rest.push_back(i);
  llvm::append_range(outputs, made);
  if (rest.empty())
    return true;
  if (rest.size() == 1 && rest[0] == count - 1) {
    for (Carry &known : carries)
      if (known.next == first) {
        known.hasFinal = true;
        return true;
      }
    carries.push_back({Value(), first, true});
    return true;
  }
  // Every iteration's is read by itself. Where the function returns them, a stack is wanted.
  SmallVector<Value> values;
  bool areReturned = true;
  for (int64_t i : rest)
    areReturned &=
        llvm::any_of(outside[i], [](Operation *user) { return isa<func::ReturnOp>(user); });
  for (int64_t i = 0; i < count; ++i)
    values.push_back(valueAt(i));
  if (areReturned) {
    if (int64_t(rest.size()) == count)
      returned.push_back(values);
    else if (rest.front() == 0 && rest.back() == count - 2 && int64_t(rest.size()) == count - 1) {
      // What each iteration begins with.
      for (const Carry &known : carries)
        if (known.next == first && known.init) {
          values.insert(values.begin(), known.init);
          values.pop_back();
          returned.push_back(values);
          break;
        }
    }
  }
  outputs.push_back({first, std::nullopt, false, nullptr});
  for (int64_t i : rest)
    for (Operation *user : outside[i]) {
      if (isa<hlo::ReshapeOp>(user) && user->hasOneUse())
        user = *user->getUsers().begin();
      if (isa<hlo::ConcatenateOp>(user) && user->hasAttr(kStack))
        missed.insert(user);
    }
  return true;
}

/// Stacks that the function returns of views of a stack's rows, such as converted weights: the
/// loop makes them beside what it computes of the same rows.
void Loop::analyzeReturnedViews() {
  auto rootOf = [&](Value value) {
    while (value.getDefiningOp() && views.contains(value.getDefiningOp()))
      value = value.getDefiningOp()->getOperand(0);
    return value;
  };
  auto isRead = [&](ArrayRef<Value> rows) {
    std::vector<void *> key;
    for (Value row : rows)
      key.push_back(row.getAsOpaquePointer());
    auto it = sources.find(key);
    return it != sources.end() && it->second;
  };
  for (Value returned : function.front().getTerminator()->getOperands()) {
    auto stack = returned.getDefiningOp<hlo::ConcatenateOp>();
    if (!stack || !stack->hasAttr(kStack) ||
        llvm::any_of(outputs, [&](const Output &output) { return output.stack == stack; }))
      continue;
    auto reshape = stack->getOperand(0).getDefiningOp<hlo::ReshapeOp>();
    Value one = reshape && reshape->hasAttr(kStack) ? reshape.getOperand() : stack->getOperand(0);
    SmallVector<Value> parts = rowsOf(stack, typeOf(one));
    auto total = int64_t(parts.size());
    // Only of what is there in front of the loop.
    auto isReady = [&](Value v) {
      Value root = rootOf(v);
      return v != root && (isa<BlockArgument>(root) || invariants.contains(root));
    };
    bool isFound = false;
    for (bool isReversed : {false, true}) {
      if (isReversed)
        std::reverse(parts.begin(), parts.end());
      for (int64_t begin = 0; begin + count <= total && !isFound; ++begin) {
        ArrayRef<Value> rows = ArrayRef(parts).slice(begin, count);
        if (!llvm::all_of(rows, isReady) || llvm::any_of(rows, [&](Value v) {
              return rootOf(v) != rootOf(rows[0]) || shardingOf(v) != shardingOf(rows[0]);
            }))
          continue;
        // All of them, or those that the loop reads itself.
        if (total > count && !isRead(rows))
          continue;
        std::shared_ptr<Source> source = sourceOf(rows);
        if (!source || (source->kind != Source::Computed && source->kind != Source::Row))
          continue;
        int64_t offset = isReversed ? total - count - begin : begin;
        outputs.push_back(
            {cast<OpResult>(rows[0]), std::nullopt, isReversed, stack, source, offset});
        isFound = true;
      }
    }
  }
}

bool Loop::analyze() {
  uses.assign(period, {});
  for (int64_t place = 0; place < period; ++place) {
    SmallVector<SmallVector<Value>> used;
    bool areSame = true;
    for (int64_t i = 0; i < count; ++i) {
      areSame &= i == 0 || isSameOp(at(0, place), at(i, place));
      used.push_back(usedBy(at(i, place)));
    }
    if (!areSame) {
      SmallVector<Value> values;
      for (int64_t i = 0; i < count && isa<hlo::SliceOp>(at(i, place)); ++i)
        values.push_back(at(i, place)->getResult(0));
      std::shared_ptr<Source> rows = int64_t(values.size()) == count ? sourceOf(values) : nullptr;
      if (!rows || rows->kind != Source::Row)
        return false;
      uses[place].push_back({Use::Outside, 0, rows});
      continue;
    }
    for (unsigned index = 0; index < used[0].size(); ++index)
      if (!analyzeUse(place, index, used))
        return false;
  }
  for (int64_t place = 0; place < period; ++place)
    for (OpResult result : at(0, place)->getResults())
      if (!analyzeResult(result))
        return false;
  analyzeReturnedViews();
  return true;
}

int64_t Loop::carriedBytes() const {
  int64_t bytes = 0;
  for (const Carry &carry : carries)
    bytes += bytesOf(typeOf(carry.next));
  return bytes;
}

std::optional<std::pair<int64_t, int64_t>> Loop::rows(RowOf rowOf, int64_t &others) const {
  std::map<std::pair<int64_t, int64_t>, int64_t> ofState, ofOthers; // How many say so.
  for (const std::shared_ptr<Source> &source : inOrder) {
    if (source->kind == Source::Argument) {
      std::optional<RowInfo> first = rowOf(source->values[0]), second = rowOf(source->values[1]);
      if (first && second && !first->isWhole && !second->isWhole)
        ++(first->isState ? ofState : ofOthers)[{first->row, second->row - first->row}];
    } else if (source->kind == Source::Row && source->dim == 0) {
      if (std::optional<RowInfo> first = rowOf(source->value))
        ++(first->isState ? ofState : ofOthers)[{first->row + source->start, source->step}];
    }
  }
  const auto &votes = ofState.empty() ? ofOthers : ofState;
  if (votes.empty())
    return std::nullopt;
  auto most = llvm::max_element(votes, [](auto &a, auto &b) { return a.second < b.second; });
  others = -most->second;
  for (auto &[rows, count] : votes)
    others += count;
  return most->first;
}

SmallVector<SmallVector<Value>> Loop::wantedArguments() const {
  SmallVector<SmallVector<Value>> wanted;
  for (const std::shared_ptr<Source> &source : inOrder)
    if (source->kind == Source::Argument)
      wanted.push_back(source->values);
  return wanted;
}

Value Loop::emit(const Source &source, HeldBuilder &builder) {
  if (auto it = emitted.find(&source); it != emitted.end())
    return it->second;
  Location loc = source.op ? source.op->getLoc() : source.value.getLoc();
  Value made;
  switch (source.kind) {
  case Source::Invariant:
    made = inBody.lookup(source.value);
    break;
  case Source::Constant: {
    // The ops that make it, each once.
    std::function<Value(Value)> again = [&](Value value) -> Value {
      if (Value known = inBody.lookupOrNull(value))
        return known;
      Operation *op = value.getDefiningOp();
      for (Value operand : op->getOperands())
        again(operand);
      builder.clone(*op, inBody);
      return inBody.lookup(value);
    };
    made = again(source.value);
    break;
  }
  case Source::Computed: {
    auto operands =
        llvm::map_to_vector(source.operands, [&](auto &each) { return emit(*each, builder); });
    Operation *copy = builder.clone(*source.op);
    copy->setOperands(operands);
    made = copy->getResult(0);
    break;
  }
  case Source::Row: {
    auto slice = cast<hlo::SliceOp>(source.op);
    Value stack = inBody.lookup(source.value);
    Value place = number;
    ShardingAttr scalar = builder.replicated(0);
    if (source.step != 1)
      place = builder.held<hlo::MulOp>(loc, scalar, place, builder.integer(source.step, loc));
    if (source.start != 0)
      place = builder.held<hlo::AddOp>(loc, scalar, place, builder.integer(source.start, loc));
    SmallVector<Value> starts;
    for (auto [dim, start] : llvm::enumerate(slice.getStartIndices()))
      starts.push_back(int64_t(dim) == source.dim ? place : builder.integer(start, loc));
    made = builder.held<hlo::DynamicSliceOp>(
        loc, shardingOf(slice.getResult()), slice.getType(), stack, ValueRange(starts),
        builder.getDenseI64ArrayAttr(cast<RankedTensorType>(slice.getType()).getShape()));
    break;
  }
  case Source::Stacked:
  case Source::Argument:
    llvm_unreachable("stacks are read by rows when a loop is written");
  }
  emitted[&source] = made;
  return made;
}

/// Makes a stack of values that differ, whose rows the body reads.
void Loop::stackUp(Source &source, HeldBuilder &builder) {
  Location loc = ops.front()->getLoc();
  SmallVector<Value> values = source.values;
  RankedTensorType type = typeOf(values[0]);
  ShardingAttr sharding = shardingOf(values[0]);
  // The ops for the first row say what the body computes.
  bool areSplats = type.getRank() > 0 && llvm::all_of(values, isSplat);
  if (areSplats) {
    auto scalar = RankedTensorType::get({}, type.getElementType());
    for (Value &value : values)
      value =
          builder.held<hlo::ConstantOp>(loc, builder.replicated(0),
                                        cast<ElementsAttr>(DenseElementsAttr::get(
                                            scalar, constantOf(value).getSplatValue<Attribute>())));
  }
  Value stack = builder.stack(values, loc);
  invariants.insert(stack);
  Value row =
      builder.row(stack, shardingOf(stack), 0, typeOf(values[0]), shardingOf(values[0]), loc);
  if (areSplats)
    row = builder.held<hlo::BroadcastInDimOp>(loc, sharding, type, row,
                                              builder.getDenseI64ArrayAttr({}));
  std::function<std::shared_ptr<Source>(Value)> read = [&](Value value) {
    auto each = std::make_shared<Source>();
    each->value = value;
    each->op = value.getDefiningOp();
    if (isa<hlo::SliceOp>(each->op)) {
      each->kind = Source::Row;
      each->value = stack;
      each->step = 1;
    } else {
      each->kind = Source::Computed;
      each->operands = {read(each->op->getOperand(0))};
    }
    return each;
  };
  source = *read(row);
}

Operation *Loop::write(bool isDescending) {
  for (Output &output : outputs)
    output.isReversed |= !output.stack && isDescending;
  HeldBuilder builder(function.getContext());
  builder.setInsertionPoint(ops.front());
  Location loc = ops.front()->getLoc();

  // Small values that differ become stacks in front of the loop.
  for (const std::shared_ptr<Source> &source : inOrder)
    if (source->kind == Source::Stacked)
      stackUp(*source, builder);

  SmallVector<Value> inits{builder.integer(0, loc)};
  for (Carry &carry : carries)
    inits.push_back(carry.init ? carry.init
                               : builder.zeros(typeOf(carry.next), shardingOf(carry.next), loc));
  SmallVector<bool> areRows;
  for (Output &output : outputs) {
    ShardingAttr sharding = shardingOf(output.value);
    areRows.push_back(isRow(typeOf(output.value), sharding));
    int64_t total = output.stack ? output.stack->getNumOperands() : count;
    inits.push_back(builder.zeros(withRows(typeOf(output.value), total, areRows.back()),
                                  areRows.back() ? sharding : withRow(sharding), loc));
  }
  size_t numVarying = inits.size();
  llvm::append_range(inits, invariants);

  SmallVector<Attribute> shardings;
  for (Value init : inits)
    shardings.push_back(shardingOf(init));
  OperationState state(loc, hlo::WhileOp::getOperationName());
  state.addOperands(inits);
  for (Value init : inits)
    state.addTypes(init.getType());
  state.addAttribute(attr::shardings, builder.getArrayAttr(shardings));
  state.addRegion();
  state.addRegion();
  Operation *loop = builder.create(state);
  auto blockOf = [&](unsigned region) {
    Block *block = &loop->getRegion(region).emplaceBlock();
    for (Value init : inits)
      block->addArgument(init.getType(), loc);
    return block;
  };
  Block *condition = blockOf(0), *body = blockOf(1);
  builder.setInsertionPointToEnd(condition);
  auto truth = RankedTensorType::get({}, builder.getI1Type());
  Value goesOn = builder.held<hlo::CompareOp>(
      loc, builder.replicated(0), truth, condition->getArgument(0), builder.integer(count, loc),
      hlo::ComparisonDirectionAttr::get(builder.getContext(), hlo::ComparisonDirection::LT),
      hlo::ComparisonTypeAttr::get(builder.getContext(), hlo::ComparisonType::SIGNED));
  hlo::ReturnOp::create(builder, loc, ValueRange{goesOn});

  builder.setInsertionPointToEnd(body);
  number = body->getArgument(0);
  for (auto [value, argument] :
       llvm::zip_equal(invariants, body->getArguments().drop_front(numVarying)))
    inBody.map(value, argument);
  auto carried = [&](unsigned index) -> Value { return body->getArgument(1 + index); };
  for (int64_t place = 0; place < period; ++place) {
    Operation *op = at(0, place);
    if (isRowRead(place)) {
      inBody.map(op->getResult(0), emit(*uses[place][0].source, builder));
      continue;
    }
    SmallVector<Value> used = usedBy(op), given;
    for (auto [value, use] : llvm::zip_equal(used, uses[place])) {
      if (use.kind == Use::Inside)
        given.push_back(inBody.lookup(value));
      else if (use.kind == Use::Carried)
        given.push_back(carried(use.carry));
      else
        given.push_back(emit(*use.source, builder));
    }
    // A value from outside may stand for different ones in different places.
    IRMapping mapping;
    for (auto [value, here] : llvm::zip_equal(used, given))
      mapping.map(value, here);
    Operation *copy = builder.clone(*op, mapping);
    copy->setOperands(ArrayRef(given).take_front(op->getNumOperands()));
    for (auto [result, here] : llvm::zip_equal(op->getResults(), copy->getResults()))
      inBody.map(result, here);
  }
  SmallVector<Value> ends{
      builder.held<hlo::AddOp>(loc, builder.replicated(0), number, builder.integer(1, loc))};
  for (Carry &carry : carries)
    ends.push_back(inBody.lookup(carry.next));
  for (auto [i, output] : llvm::enumerate(outputs)) {
    Value stack = body->getArgument(1 + carries.size() + i);
    Value row = output.carry    ? carried(*output.carry)
                : output.source ? emit(*output.source, builder)
                                : inBody.lookup(Value(output.value));
    RankedTensorType type = typeOf(row);
    ShardingAttr sharding = shardingOf(stack);
    row = builder.reshaped(row, withRows(type, 1, areRows[i]), sharding, loc);
    Value place = number;
    if (output.isReversed)
      place = builder.held<hlo::SubtractOp>(loc, builder.replicated(0),
                                            builder.integer(count - 1, loc), number);
    if (output.offset > 0)
      place = builder.held<hlo::AddOp>(loc, builder.replicated(0), place,
                                       builder.integer(output.offset, loc));
    SmallVector<Value> starts(typeOf(stack).getRank(), Value());
    for (auto [dim, start] : llvm::enumerate(starts))
      start = dim == 0 ? place : builder.integer(0, loc);
    ends.push_back(builder.held<hlo::DynamicUpdateSliceOp>(loc, sharding, stack.getType(), stack,
                                                           row, ValueRange(starts)));
  }
  llvm::append_range(ends, body->getArguments().drop_front(numVarying));
  hlo::ReturnOp::create(builder, loc, ends);

  // Readers behind the loop.
  auto isInside = [&](OpOperand &use) {
    Operation *user = use.getOwner();
    for (; user && user->getBlock() != &function.front(); user = user->getParentOp())
      ;
    return position.contains(user);
  };
  builder.setInsertionPointAfter(loop);
  for (auto [i, output] : llvm::enumerate(outputs)) {
    Value stack = loop->getResult(1 + carries.size() + i);
    if (output.stack) {
      // The other rows are put in behind the loop.
      for (auto [row, part] : llvm::enumerate(output.stack->getOperands())) {
        auto number = int64_t(row);
        if (number >= output.offset && number < output.offset + count)
          continue;
        SmallVector<Value> starts{builder.integer(number, loc)};
        while (int64_t(starts.size()) < typeOf(stack).getRank())
          starts.push_back(builder.integer(0, loc));
        stack = builder.held<hlo::DynamicUpdateSliceOp>(loc, shardingOf(stack), stack.getType(),
                                                        stack, part, ValueRange(starts));
      }
      output.stack->getResult(0).replaceAllUsesWith(stack);
      continue;
    }
    int64_t place = position.lookup(output.value.getOwner());
    for (int64_t each = 0; each < count; ++each) {
      Value value = at(each, place)->getResult(output.value.getResultNumber());
      Value row;
      for (OpOperand &use : llvm::make_early_inc_range(value.getUses())) {
        if (isInside(use))
          continue;
        if (!row)
          row = builder.markedRow(stack, shardingOf(stack),
                                  output.isReversed ? count - 1 - each : each, typeOf(value),
                                  shardingOf(value), loc);
        use.set(row);
      }
    }
  }
  for (auto [i, carry] : llvm::enumerate(carries)) {
    if (!carry.hasFinal)
      continue;
    Value last = at(count - 1, position.lookup(carry.next.getOwner()))
                     ->getResult(carry.next.getResultNumber());
    for (OpOperand &use : llvm::make_early_inc_range(last.getUses()))
      if (!isInside(use))
        use.set(loop->getResult(1 + i));
  }
  // Stacks that the loop stands for now are without readers.
  for (Output &output : outputs)
    if (output.stack && output.stack->use_empty()) {
      llvm::SetVector<Operation *> parts;
      for (Value part : output.stack->getOperands())
        if (auto reshape = part.getDefiningOp<hlo::ReshapeOp>();
            reshape && !position.contains(reshape))
          parts.insert(reshape);
      output.stack->erase();
      for (Operation *part : parts)
        if (part->use_empty())
          part->erase();
    }
  for (Operation *op : llvm::reverse(ops))
    op->erase();
  return loop;
}

//===----------------------------------------------------------------------===//
// Where functions repeat
//===----------------------------------------------------------------------===//

static void eraseUnused(Block &block) {
  SmallVector<Operation *> ops;
  for (Operation &op : block.without_terminator())
    ops.push_back(&op);
  for (Operation *op : llvm::reverse(ops))
    if (op->use_empty() && isMemoryEffectFree(op))
      op->erase();
}

/// Only moves, converts or spreads its one operand.
static bool isViewKind(Operation *op) {
  return isa<hlo::ReshapeOp, hlo::ConvertOp, hlo::SliceOp, hlo::TransposeOp, hlo::BroadcastInDimOp,
             ReshardOp>(op);
}

static bool isHeavy(Operation *op) {
  return isa<hlo::DotGeneralOp, hlo::ConvolutionOp, hlo::CustomCallOp, hlo::WhileOp, MapOp>(op);
}

namespace {

/// What a loop of a function would need to be written.
struct Wish {
  SmallVector<Ids> arguments, results;
  std::optional<std::pair<int64_t, int64_t>> rows; // Of the first iteration, and the step.
  bool isLoop = false;                             // Otherwise of ops that are joined.
};

/// Rows of the stacks of a stage that loops may read, from the first on to behind the last.
using RowRange = std::pair<int64_t, int64_t>;

class FunctionRoller {
public:
  FunctionRoller(func::FuncOp function, RowOf rowOf, RowRange allowed, int64_t leastPeriod)
      : function(function), rowOf(rowOf), allowed(allowed), leastPeriod(leastPeriod) {}

  /// Writes loops until none is left, or one wishes for stacks.
  void run(std::vector<Wish> &wishes);
  int64_t numLoops = 0, numIterations = 0;
  std::vector<RowRange> ranges; // Of the stacks that the loops read.

private:
  struct Candidate {
    int64_t begin, period, length;
  };
  void read();
  std::vector<Candidate> candidates() const;
  SmallVector<int64_t> narrowestCuts(const Candidate &candidate);
  std::unique_ptr<Loop> bestLoop(const Candidate &candidate);
  Wish wishOf(const Loop &loop);

  func::FuncOp function;
  RowOf rowOf;
  RowRange allowed;
  int64_t leastPeriod;
  llvm::DenseSet<Operation *> loops; // That were written here.
  std::unique_ptr<ValueNumbers> numbers;
  llvm::DenseSet<Operation *> views;
  SmallVector<Operation *> sequence;
};

} // namespace

void FunctionRoller::read() {
  Block &block = function.front();
  numbers = std::make_unique<ValueNumbers>(block);
  views.clear();
  sequence.clear();
  for (Operation &op : block.without_terminator()) {
    if (op.getNumResults() > 0 &&
        llvm::all_of(op.getResults(), [&](Value v) { return numbers->isConstant(v); }))
      continue;
    if (isViewKind(&op)) {
      Value operand = op.getOperand(0);
      Operation *def = operand.getDefiningOp();
      if (!def || views.contains(def) || loops.contains(def)) {
        views.insert(&op);
        continue;
      }
    }
    sequence.push_back(&op);
  }
}

std::vector<FunctionRoller::Candidate> FunctionRoller::candidates() const {
  auto size = int64_t(sequence.size());
  std::vector<uint64_t> hashes;
  for (Operation *op : sequence)
    hashes.push_back(hashOf(op));
  // Distances between equal windows.
  std::map<int64_t, int64_t> distances;
  llvm::DenseMap<uint64_t, int64_t> last;
  for (int64_t i = 0; i + kWindow <= size; ++i) {
    uint64_t window = llvm::hash_combine_range(hashes.begin() + i, hashes.begin() + i + kWindow);
    window &= ~(uint64_t(3) << 62); // The map has keys of its own.
    auto [it, isNew] = last.try_emplace(window, i);
    if (!isNew) {
      ++distances[i - it->second];
      it->second = i;
    }
  }
  std::vector<std::pair<int64_t, int64_t>> common;
  for (auto [distance, times] : distances)
    if (distance >= leastPeriod)
      common.push_back({-times, distance});
  llvm::sort(common);
  std::vector<Candidate> found;
  for (auto [times, period] : llvm::ArrayRef(common).take_front(16)) {
    int64_t begin = 0;
    for (int64_t i = 0; i + period <= size; ++i) {
      bool isEqual = i + period < size && hashes[i] == hashes[i + period];
      if (isEqual)
        continue;
      if (i - begin >= period)
        found.push_back({begin, period, i - begin});
      begin = i + 1;
    }
  }
  llvm::erase_if(found, [&](const Candidate &candidate) {
    return llvm::none_of(ArrayRef(sequence).slice(candidate.begin, candidate.period), isHeavy);
  });
  auto saved = [](const Candidate &candidate) {
    return candidate.length / candidate.period * candidate.period;
  };
  llvm::sort(found, [&](const Candidate &a, const Candidate &b) {
    return std::make_tuple(-saved(a), a.period, a.begin) <
           std::make_tuple(-saved(b), b.period, b.begin);
  });
  return found;
}

/// Places of an iteration before which the fewest bytes are alive.
SmallVector<int64_t> FunctionRoller::narrowestCuts(const Candidate &candidate) {
  int64_t period = candidate.period, end = candidate.begin + candidate.length + period;
  llvm::DenseMap<Operation *, int64_t> place;
  for (int64_t i = candidate.begin; i < std::min(end, candidate.begin + 3 * period); ++i)
    place[sequence[i]] = i;
  // Of values of the first iteration or the second, up to their last readers.
  SmallVector<int64_t> more(2 * period + 1, 0); // Bytes that begin to be alive, by cut.
  for (int64_t i = 0; i < 2 * period; ++i)
    for (Value result : sequence[candidate.begin + i]->getResults()) {
      int64_t last = i;
      for (Operation *user : result.getUsers()) {
        while (user && user->getBlock() != &function.front())
          user = user->getParentOp();
        if (auto it = place.find(user); it != place.end())
          last = std::max(last, it->second - candidate.begin);
      }
      auto type = dyn_cast<RankedTensorType>(result.getType());
      int64_t bytes = type ? bytesOf(type) : 0;
      more[i + 1] += bytes;
      if (last + 1 <= 2 * period)
        more[last + 1] -= bytes;
    }
  SmallVector<std::pair<int64_t, int64_t>> cuts;
  int64_t alive = 0;
  for (int64_t cut = 0; cut < 2 * period; ++cut) {
    alive += more[cut];
    if (cut >= period)
      cuts.push_back({alive, cut - period});
  }
  llvm::sort(cuts);
  auto count = size_t(kMostCuts);
  while (count < cuts.size() && cuts[count].first == cuts[0].first)
    ++count;
  return llvm::to_vector(llvm::make_second_range(ArrayRef(cuts).take_front(count)));
}

/// Where in the sequence iterations begin is free: there where least is carried.
std::unique_ptr<Loop> FunctionRoller::bestLoop(const Candidate &candidate) {
  int64_t period = candidate.period;
  struct Place {
    int64_t bytes, askew, begin, first, count; // Of the iterations, which are allowed.
  };
  std::vector<Place> places;
  for (int64_t shift : narrowestCuts(candidate)) {
    Place place{0, 0, candidate.begin + shift, 0, (candidate.length + period - shift) / period};
    if (place.count < 2)
      continue;
    // Some of its iterations, for the first ones may be others.
    std::unique_ptr<Loop> sample;
    int64_t from = 0;
    for (int64_t first : {int64_t(0), int64_t(1), place.count / 2 - 1}) {
      int64_t count = std::min<int64_t>(place.count - first, 3);
      if (sample || first < 0 || count < 2)
        continue;
      from = first;
      sample = std::make_unique<Loop>(function, sequence, place.begin + first * period, period,
                                      count, *numbers, views);
      if (!sample->analyze())
        sample = nullptr;
    }
    if (!sample)
      continue;
    if (auto rows = sample->rows(rowOf, place.askew)) {
      auto isAllowed = [&](int64_t i) {
        int64_t row = rows->first + (i - from) * rows->second;
        return row >= allowed.first && row < allowed.second;
      };
      while (place.count > 0 && !isAllowed(place.first)) {
        ++place.first;
        --place.count;
      }
      while (place.count > 0 && !isAllowed(place.first + place.count - 1))
        --place.count;
    }
    if (place.count < 2)
      continue;
    place.bytes = sample->carriedBytes();
    places.push_back(place);
  }
  llvm::sort(places, [](const Place &a, const Place &b) {
    return std::make_tuple(a.bytes, a.askew, a.begin) < std::make_tuple(b.bytes, b.askew, b.begin);
  });
  auto tried = [&](const Place &place, int64_t first, int64_t count) -> std::unique_ptr<Loop> {
    auto loop =
        std::make_unique<Loop>(function, sequence, place.begin + (place.first + first) * period,
                               period, count, *numbers, views);
    return loop->analyze() ? std::move(loop) : nullptr;
  };
  // From one op of a layer on, a loop makes stacks of which it would make other rows from another.
  std::unique_ptr<Loop> best;
  auto take = [&](std::unique_ptr<Loop> loop) {
    if (loop && (!best || (loop->numMissedStacks() < best->numMissedStacks() &&
                           2 * loop->getCount() >= best->getCount())))
      best = std::move(loop);
  };
  for (const Place &place : ArrayRef(places).take_front(8)) {
    if (best && best->numMissedStacks() == 0)
      break;
    if (std::unique_ptr<Loop> loop = tried(place, 0, place.count)) {
      take(std::move(loop));
      continue;
    }
    // The longest run of iterations each of which goes with the next.
    int64_t bestFirst = 0, bestCount = 0, first = 0;
    for (int64_t i = 0; i < place.count; ++i) {
      bool goesOn = i + 1 < place.count && tried(place, i, 2);
      if (i + 1 - first > bestCount) {
        bestCount = i + 1 - first;
        bestFirst = first;
      }
      if (!goesOn)
        first = i + 1;
    }
    if (bestCount >= 2)
      take(tried(place, bestFirst, bestCount));
  }
  return best;
}

Wish FunctionRoller::wishOf(const Loop &loop) {
  Wish wish;
  int64_t askew = 0;
  wish.isLoop = true;
  wish.rows = loop.rows(rowOf, askew);
  auto idOfArgument = [&](Value value) -> int64_t {
    auto argument = dyn_cast<BlockArgument>(value);
    if (!argument)
      return -1;
    return function.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), attr::value).getInt();
  };
  for (ArrayRef<Value> values : loop.wantedArguments())
    wish.arguments.push_back(llvm::to_vector(llvm::map_range(values, idOfArgument)));
  Operation *end = function.front().getTerminator();
  for (ArrayRef<Value> values : loop.wantedResults()) {
    Ids ids;
    for (Value value : values) {
      auto it = llvm::find(end->getOperands(), value);
      ids.push_back(it == end->operand_end()
                        ? idOfArgument(value)
                        : function
                              .getResultAttrOfType<IntegerAttr>(unsigned(it - end->operand_begin()),
                                                                attr::value)
                              .getInt());
    }
    if (!llvm::is_contained(ids, -1))
      wish.results.push_back(std::move(ids));
  }
  return wish;
}

void FunctionRoller::run(std::vector<Wish> &wishes) {
  while (true) {
    read();
    std::unique_ptr<Loop> loop;
    for (const Candidate &candidate : candidates())
      if ((loop = bestLoop(candidate)))
        break;
    if (!loop)
      break;
    Wish wish = wishOf(*loop);
    if (wish.rows) {
      int64_t first = wish.rows->first;
      int64_t last = first + (loop->getCount() - 1) * wish.rows->second;
      ranges.push_back({std::min(first, last), std::max(first, last) + 1});
    }
    if (!wish.arguments.empty() || !wish.results.empty())
      wishes.push_back(wish);
    if (!wish.arguments.empty())
      break;
    loops.insert(loop->write(wish.rows && wish.rows->second < 0));
    ++numLoops;
    numIterations += loop->getCount();
    moveInFrontOfReaders(function.front());
  }
  eraseUnused(function.front());
}

//===----------------------------------------------------------------------===//
// Ops of all rows of a stack as one
//===----------------------------------------------------------------------===//

namespace {

/// Ops that are there once for each row of stacks, such as an optimizer's, become one op on
/// the stacks.
class RowJoiner {
public:
  RowJoiner(func::FuncOp function)
      : function(function), numbers(function.front()), builder(function.getContext()) {}

  void run(std::vector<Wish> &wishes);

private:
  struct Rows {
    Value stack; // A dimension of its own for the rows.
    SmallVector<Value> values;
  };
  using Member = std::pair<unsigned, int64_t>; // Rows, and which of them.

  void addStack(Value whole);
  Value join(ArrayRef<Value> values);
  Value make(ArrayRef<Operation *> ops);
  Value spread(Value value, int64_t count);
  unsigned add(Value stack, ArrayRef<Value> values);
  bool isSimilar(Value first, Value other, int64_t row, int depth);
  SmallVector<Operation *> partnersOf(Operation *op);

  func::FuncOp function;
  ValueNumbers numbers;
  HeldBuilder builder;
  std::vector<Rows> all;
  llvm::DenseMap<Value, Member> members;
  std::set<std::vector<void *>> failed, active;
  llvm::DenseSet<Operation *> joined;
  std::vector<Ids> wanted;
};

} // namespace

unsigned RowJoiner::add(Value stack, ArrayRef<Value> values) {
  all.push_back({stack, SmallVector<Value>(values)});
  for (auto [i, value] : llvm::enumerate(values))
    members[value] = {all.size() - 1, i};
  return all.size() - 1;
}

/// The rows that are taken out of a stack that the function is given, or a loop has made.
void RowJoiner::addStack(Value whole) {
  auto stackType = dyn_cast<RankedTensorType>(whole.getType());
  if (!stackType || stackType.getRank() == 0 || stackType.getDimSize(0) < 2)
    return;
  llvm::SmallVector<Value> rows(stackType.getDimSize(0));
  RankedTensorType type;
  // Nothing but rows of the caller's stacks is prepared of them.
  bool isPrepare = function.getSymName() == "prepare" && isPlainTensor(whole);
  ArrayRef<int64_t> each = stackType.getShape().drop_front();
  for (Operation *user : whole.getUsers()) {
    auto slice = dyn_cast<hlo::SliceOp>(user);
    bool isRow = slice && isPrepare && typeOf(slice.getResult()).getDimSize(0) == 1 &&
                 typeOf(slice.getResult()).getShape().drop_front() == each;
    if (!slice || !(isRow || slice->hasAttr(kStack)))
      continue;
    Value row = slice.getResult();
    for (Operation *next : row.getUsers())
      if (isa<hlo::ReshapeOp>(next) &&
          (next->hasAttr(kStack) || (isRow && typeOf(next->getResult(0)).getShape() == each)))
        row = next->getResult(0);
    Value &known = rows[slice.getStartIndices()[0]];
    if (known && isRow)
      continue;
    known = row;
    type = typeOf(row);
  }
  if (!type || llvm::is_contained(rows, Value()))
    return;
  builder.setInsertionPointAfterValue(whole);
  SmallVector<int64_t> shape(type.getShape());
  shape.insert(shape.begin(), int64_t(rows.size()));
  add(builder.reshaped(whole, type.clone(shape), withRow(shardingOf(rows[0])), whole.getLoc()),
      rows);
}

/// Whether the value may be for row `row` what the other is for the first one.
bool RowJoiner::isSimilar(Value first, Value other, int64_t row, int depth) {
  auto it = members.find(first), also = members.find(other);
  if (it != members.end() || also != members.end())
    return it != members.end() && also != members.end() && it->second.first == also->second.first &&
           it->second.second == 0 && also->second.second == row;
  if (numbers.of(first) == numbers.of(other))
    return true;
  if (first.getType() != other.getType() || shardingOf(first) != shardingOf(other))
    return false;
  Operation *a = first.getDefiningOp(), *b = other.getDefiningOp();
  if (!a || !b)
    return !a && !b;
  if (!isSameOp(a, b))
    return false;
  return depth == 0 || llvm::all_of(llvm::zip(a->getOperands(), b->getOperands()), [&](auto pair) {
           return isSimilar(std::get<0>(pair), std::get<1>(pair), row, depth - 1);
         });
}

/// The ops that do for the other rows what this one does for the first.
SmallVector<Operation *> RowJoiner::partnersOf(Operation *op) {
  SmallVector<Operation *> partners{op};
  std::optional<unsigned> operand;
  for (auto [i, value] : llvm::enumerate(op->getOperands()))
    if (auto it = members.find(value); it != members.end() && it->second.second == 0)
      operand = i;
  if (!operand)
    return {};
  ArrayRef<Value> rows = all[members[op->getOperand(*operand)].first].values;
  for (size_t row = 1; row < rows.size(); ++row) {
    Value value = rows[row];
    SmallVector<Operation *> users(value.getUsers());
    llvm::sort(users, [](Operation *a, Operation *b) { return a->isBeforeInBlock(b); });
    Operation *partner = nullptr;
    for (Operation *user : users) {
      if (user->getBlock() != op->getBlock() || joined.contains(user) ||
          llvm::is_contained(partners, user) || !isSameOp(op, user) ||
          user->getOperand(*operand) != value)
        continue;
      bool fits = llvm::all_of(llvm::zip(op->getOperands(), user->getOperands()), [&](auto pair) {
        return isSimilar(std::get<0>(pair), std::get<1>(pair), int64_t(row), 4);
      });
      if (fits) {
        partner = user;
        break;
      }
    }
    if (!partner)
      return {};
    partners.push_back(partner);
  }
  return partners;
}

/// The same for all rows.
Value RowJoiner::spread(Value value, int64_t count) {
  RankedTensorType type = typeOf(value);
  SmallVector<int64_t> shape(type.getShape()), dims;
  shape.insert(shape.begin(), count);
  Value from = value;
  if (auto broadcast = value.getDefiningOp<hlo::BroadcastInDimOp>()) {
    from = broadcast.getOperand();
    for (int64_t dim : broadcast.getBroadcastDimensions())
      dims.push_back(dim + 1);
  } else {
    for (int64_t dim = 0; dim < type.getRank(); ++dim)
      dims.push_back(dim + 1);
  }
  return builder.held<hlo::BroadcastInDimOp>(value.getLoc(), withRow(shardingOf(value)),
                                             type.clone(shape), from,
                                             builder.getDenseI64ArrayAttr(dims));
}

/// The stack of the values, or nothing.
Value RowJoiner::join(ArrayRef<Value> values) {
  auto it = members.find(values[0]);
  if (it != members.end()) {
    const Rows &rows = all[it->second.first];
    return ArrayRef(rows.values) == values ? rows.stack : Value();
  }
  if (llvm::any_of(values, [&](Value v) { return members.contains(v) || !isPlainTensor(v); }))
    return {};
  std::vector<void *> key;
  for (Value value : values)
    key.push_back(value.getAsOpaquePointer());
  if (failed.count(key) || !active.insert(key).second)
    return {};
  Value made;
  if (llvm::all_of(values, [](Value v) { return isa<BlockArgument>(v); })) {
    Ids ids;
    for (Value value : values)
      ids.push_back(
          function
              .getArgAttrOfType<IntegerAttr>(cast<BlockArgument>(value).getArgNumber(), attr::value)
              .getInt());
    if (!llvm::is_contained(wanted, ids))
      wanted.push_back(ids);
  } else if (llvm::all_of(values, [](Value v) { return v.getDefiningOp() != nullptr; })) {
    made =
        make(llvm::to_vector(llvm::map_range(values, [](Value v) { return v.getDefiningOp(); })));
  }
  active.erase(key);
  if (!made)
    failed.insert(key);
  return made;
}

/// One op for the ops of all rows, which are equal but for their operands.
Value RowJoiner::make(ArrayRef<Operation *> ops) {
  Operation *op = ops[0];
  auto count = int64_t(ops.size());
  if (op->getNumResults() != 1 || !isPlainTensor(op->getResult(0)) ||
      llvm::any_of(ops, [&](Operation *each) {
        return joined.contains(each) || each->getBlock() != op->getBlock() || !isSameOp(op, each) ||
               shardingOf(each->getResult(0)) != shardingOf(op->getResult(0));
      }))
    return {};
  llvm::SmallDenseSet<Operation *> distinct(ops.begin(), ops.end());
  if (distinct.size() != ops.size())
    return {};
  bool isElementwise = analysis::isElementwiseName(op->getName().getStringRef()) ||
                       op->getName().getStringRef().starts_with("chlo.");
  auto reduce = dyn_cast<hlo::ReduceOp>(op);
  bool isConcat = isa<hlo::ConcatenateOp>(op) && !op->hasAttr(kStack);
  if (!isElementwise && !isConcat && !isViewKind(op) && !(reduce && reduce.getInputs().size() == 1))
    return {};
  if (isElementwise && typeOf(op->getResult(0)).getRank() == 0)
    return {}; // Sums over the rows, not rows.

  RankedTensorType result = typeOf(op->getResult(0));
  SmallVector<Value> operands;
  unsigned numJoined = 0;
  for (unsigned i = 0; i < op->getNumOperands(); ++i) {
    SmallVector<Value> values;
    for (Operation *each : ops)
      values.push_back(each->getOperand(i));
    Value first = values[0];
    bool isOne = llvm::all_of(values, [&](Value v) { return numbers.of(v) == numbers.of(first); });
    if (!isOne) {
      Value stack = join(values);
      if (!stack)
        return {};
      operands.push_back(stack);
      ++numJoined;
      continue;
    }
    if (members.contains(first) || !isPlainTensor(first))
      return {};
    operands.push_back(first);
  }
  if (numJoined == 0)
    return {};
  // Behind all operands: order is found at the end.
  builder.setInsertionPoint(op);
  auto isStack = [&](unsigned i) { return operands[i] != op->getOperand(i); };
  auto rankOf = [&](unsigned i) { return typeOf(op->getOperand(i)).getRank(); };
  for (unsigned i = 0; i < operands.size(); ++i) {
    if (reduce && i > 0) {
      if (isStack(i))
        return {};
      continue;
    }
    if (isElementwise && rankOf(i) == 0 && result.getRank() > 0) { // One truth value, or limit.
      if (!isStack(i))
        continue;
      SmallVector<int64_t> shape(result.getShape());
      shape.insert(shape.begin(), count);
      ShardingSpec spec = ShardingSpec::replicated(shape.size());
      for (auto [dim, axes] : llvm::enumerate(shardingOf(op->getResult(0)).getSpec().dims))
        spec.dims[dim + 1] = axes;
      operands[i] = builder.held<hlo::BroadcastInDimOp>(
          op->getLoc(), ShardingAttr::get(builder.getContext(), spec),
          typeOf(operands[i]).clone(shape), operands[i], builder.getDenseI64ArrayAttr({0}));
      continue;
    }
    if (!isStack(i))
      operands[i] = spread(operands[i], count);
  }
  SmallVector<int64_t> shape(result.getShape());
  shape.insert(shape.begin(), count);
  Operation *copy = builder.clone(*op);
  copy->setOperands(operands);
  copy->getResult(0).setType(result.clone(shape));
  if (copy->hasAttr(attr::shardings))
    copy->setAttr(attr::shardings, builder.getArrayAttr({withRow(shardingOf(op->getResult(0)))}));
  copy->removeAttr(kStack);
  auto oneOn = [](ArrayRef<int64_t> dims) {
    return llvm::to_vector(llvm::map_range(dims, [](int64_t dim) { return dim + 1; }));
  };
  auto with = [](int64_t value, ArrayRef<int64_t> values) {
    SmallVector<int64_t> all{value};
    llvm::append_range(all, values);
    return all;
  };
  if (auto each = dyn_cast<hlo::BroadcastInDimOp>(copy))
    each.setBroadcastDimensions(with(0, oneOn(each.getBroadcastDimensions())));
  else if (auto each = dyn_cast<hlo::TransposeOp>(copy))
    each.setPermutation(with(0, oneOn(each.getPermutation())));
  else if (auto each = dyn_cast<hlo::ReduceOp>(copy))
    each.setDimensions(oneOn(each.getDimensions()));
  else if (auto each = dyn_cast<hlo::ConcatenateOp>(copy))
    each.setDimension(each.getDimension() + 1);
  else if (auto each = dyn_cast<hlo::SliceOp>(copy)) {
    each.setStartIndices(with(0, each.getStartIndices()));
    each.setLimitIndices(with(count, each.getLimitIndices()));
    each.setStrides(with(1, each.getStrides()));
  } else if (auto each = dyn_cast<ReshardOp>(copy)) {
    each.setFromAttr(withRow(each.getFrom()));
    each.setToAttr(withRow(each.getTo()));
    SmallVector<Attribute> through;
    for (Attribute spec : each.getThrough())
      through.push_back(withRow(cast<ShardingAttr>(spec)));
    each.setThroughAttr(builder.getArrayAttr(through));
  }
  joined.insert(ops.begin(), ops.end());
  SmallVector<Value> values;
  for (Operation *each : ops)
    values.push_back(each->getResult(0));
  add(copy->getResult(0), values);
  return copy->getResult(0);
}

void RowJoiner::run(std::vector<Wish> &wishes) {
  Block &block = function.front();
  for (BlockArgument argument : function.getArguments())
    addStack(argument);
  for (auto loop : llvm::to_vector(block.getOps<hlo::WhileOp>()))
    for (Value result : loop->getResults())
      addStack(result);
  if (all.empty())
    return;
  SmallVector<Operation *> ops;
  for (Operation &op : block.without_terminator())
    ops.push_back(&op);
  for (Operation *op : ops) {
    if (joined.contains(op) || op->hasAttr(kStack))
      continue;
    SmallVector<Operation *> partners = partnersOf(op);
    if (!partners.empty())
      make(partners);
  }
  // Stacks that the rows were put together to are there already, or are a part of what is put
  // together.
  for (Operation *op : ops) {
    auto concat = dyn_cast<hlo::ConcatenateOp>(op);
    if (!concat || concat.getDimension() != 0)
      continue;
    SmallVector<Value> given(concat.getInputs()), parts, kept;
    for (Value operand : given) {
      auto reshape = operand.getDefiningOp<hlo::ReshapeOp>();
      parts.push_back(members.contains(operand) || !reshape ? operand : reshape.getOperand());
    }
    builder.setInsertionPoint(concat);
    for (size_t i = 0; i < parts.size();) {
      auto it = members.find(parts[i]);
      ArrayRef<Value> rows = it == members.end() ? ArrayRef<Value>() : all[it->second.first].values;
      // Rows of dimension 0 or a dimension of their own, not rows of several each.
      if (rows.empty() || ArrayRef(parts).drop_front(i).take_front(rows.size()) != rows ||
          typeOf(given[i]) !=
              withRows(typeOf(rows[0]), 1, isRow(typeOf(rows[0]), shardingOf(rows[0])))) {
        kept.push_back(given[i++]);
        continue;
      }
      SmallVector<int64_t> shape(typeOf(given[i]).getShape());
      shape[0] = int64_t(rows.size());
      kept.push_back(builder.reshaped(all[it->second.first].stack, typeOf(given[i]).clone(shape),
                                      shardingOf(given[i]), concat.getLoc()));
      i += rows.size();
    }
    if (kept.size() == 1 && kept.size() < given.size())
      concat.getResult().replaceAllUsesWith(kept[0]);
    else if (kept.size() < given.size())
      concat->setOperands(kept);
  }
  // What else reads a row takes it out; rows that are results wish to be a stack.
  Operation *end = block.getTerminator();
  Wish wish;
  wish.arguments.assign(wanted.begin(), wanted.end());
  for (const Rows &rows : llvm::ArrayRef(all)) {
    Ids ids;
    for (Value value : rows.values) {
      auto it = llvm::find(end->getOperands(), value);
      if (it != end->operand_end())
        ids.push_back(
            function
                .getResultAttrOfType<IntegerAttr>(unsigned(it - end->operand_begin()), attr::value)
                .getInt());
    }
    if (ids.size() == rows.values.size())
      wish.results.push_back(std::move(ids));
  }
  if (!wish.arguments.empty() || !wish.results.empty())
    wishes.push_back(std::move(wish));
  for (const Rows &rows : llvm::ArrayRef(all))
    for (auto [i, value] : llvm::enumerate(rows.values)) {
      Operation *made = value.getDefiningOp();
      if (!made || !joined.contains(made))
        continue;
      Value row;
      for (OpOperand &use : llvm::make_early_inc_range(value.getUses())) {
        if (joined.contains(use.getOwner()))
          continue;
        if (!row) {
          builder.setInsertionPointAfterValue(rows.stack);
          row = builder.row(rows.stack, shardingOf(rows.stack), int64_t(i), typeOf(value),
                            shardingOf(value), value.getLoc());
        }
        use.set(row);
      }
    }
  moveInFrontOfReaders(block);
  eraseUnused(block);
}

//===----------------------------------------------------------------------===//
// A stage
//===----------------------------------------------------------------------===//

namespace {

/// An argument of @main that is rows of a stack of the caller's, or an array of the caller's.
struct StatePiece {
  int64_t argument = 0, offset = 0, size = 0;
  int64_t stage = -1;
  int64_t carriedBy = -1;        // The id of its next value; none if it has none.
  DictionaryAttr form, nextForm; // What @main says of both, but for what tells them apart.
};

/// Values of a stage that become one.
struct Group {
  Ids ids;
  int64_t id = -1; // Of the stack.
  bool isState = false;
  bool isOfArrays = false; // Of state: its rows are arrays of the caller's.
  StringRef maker;         // The function whose result it is; of state, none.
};

/// What all stages know of the step.
class StepValues {
public:
  /// Without `withArrays`, rows of stacks are all the state that a loop may go through.
  StepValues(ModuleOp module, bool withArrays);

  const StatePiece *pieceOf(int64_t id) const {
    auto it = pieces.find(id);
    return it == pieces.end() ? nullptr : &it->second;
  }
  /// An argument of the caller's that is state, in one piece.
  const StatePiece *arrayOf(int64_t id) const {
    auto it = arrays.find(id);
    return it == arrays.end() ? nullptr : &it->second;
  }
  bool isStateRow(ArrayRef<int64_t> ids) const {
    return pieceOf(ids[0]) || llvm::all_of(ids, [&](int64_t id) { return arrayOf(id); });
  }
  /// Whether functions of other stages make the value or take it.
  bool isSeenBeside(int64_t id, ModuleOp stage) const {
    auto it = users.find(id);
    return it != users.end() &&
           llvm::any_of(it->second, [&](Operation *user) { return user != stage.getOperation(); });
  }
  bool isResult(int64_t id) const { return results.contains(id); }
  /// How many results of the step it is.
  unsigned numResults(int64_t id) const { return results.lookup(id); }
  bool isState(int64_t id) const { return states.contains(id); }
  /// Above all that the step has.
  int64_t firstFreeId() const { return next; }

private:
  llvm::DenseMap<int64_t, StatePiece> pieces, arrays;
  llvm::DenseMap<int64_t, llvm::SmallVector<Operation *, 2>> users;
  llvm::DenseMap<int64_t, unsigned> results;
  llvm::DenseSet<int64_t> states;
  int64_t next = 0;
};

class StageRoller {
public:
  /// Stacks get ids from `firstId` on.
  StageRoller(ModuleOp stage, const StepValues &values, int64_t firstId)
      : stage(stage), values(values), nextId(firstId) {}

  /// Whether loops were written; `groups` are the stacks then.
  bool run();
  llvm::ArrayRef<Group> getGroups() const { return groups; }
  int64_t numLoops = 0, numIterations = 0;

private:
  bool tryRounds();
  void seedPrepared();
  bool attempt(ModuleOp copy, std::vector<std::pair<std::string, Wish>> &wishes);
  void take(StringRef function, const Wish &wish, bool results);
  void narrow(ArrayRef<int64_t> ids);
  bool unite(ArrayRef<int64_t> ids);
  bool areArrays(ArrayRef<int64_t> ids) const;
  bool setsRows(const Wish &wish) const;
  bool isEnough(const Group &group, llvm::function_ref<bool(int64_t)> has) const;
  bool addState(ArrayRef<int64_t> ids);
  bool addValue(const Ids &ids, bool isTrial = false);
  void rewrite(func::FuncOp function, const llvm::DenseSet<int64_t> &seen);
  const Group *groupOf(int64_t id) const {
    auto it = groupIndex.find(id);
    return it == groupIndex.end() ? nullptr : &groups[it->second];
  }

  ModuleOp stage;
  const StepValues &values;
  int64_t nextId;
  std::vector<Group> groups;
  llvm::DenseMap<int64_t, unsigned> groupIndex; // By id of a member.
  std::set<Ids> refused;
  llvm::DenseMap<int64_t, int64_t> rowOfId; // Of values that loops read, the rows beside them.
  RowRange allowed{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  RowRange common; // That all loops of the last attempt read.
  bool isNarrowed = false;
  // Stacks of overlapping wishes, where these are united.
  bool mayUnite = true, isUnited = false;
  int64_t leastWeights = kLeastPeriod; // Ops of an iteration of `backward_weight`.
  SmallVector<Ids> unions;
  std::set<Ids> tried;
};

} // namespace

static int64_t idOf(DictionaryAttr attributes) {
  auto id = attributes ? attributes.getAs<IntegerAttr>(attr::value) : IntegerAttr();
  return id ? id.getInt() : -1;
}

StepValues::StepValues(ModuleOp module, bool withArrays) {
  auto main = module.lookupSymbol<func::FuncOp>("main");
  for (unsigned i = 0; i < main.getNumResults(); ++i) {
    int64_t id = idOf(main.getResultAttrDict(i));
    ++results[id];
    next = std::max(next, id + 1);
  }
  for (unsigned i = 0; i < main.getNumArguments(); ++i) {
    DictionaryAttr attributes = main.getArgAttrDict(i);
    int64_t id = idOf(attributes);
    next = std::max(next, id + 1);
    auto kind = attributes ? attributes.getAs<StringAttr>(attr::kind) : StringAttr();
    if (!kind || kind.getValue() != "state")
      continue;
    states.insert(id);
    auto piece = attributes.getAs<DictionaryAttr>(attr::piece);
    auto carriedBy = attributes.getAs<IntegerAttr>(attr::carriedBy);
    auto stage = attributes.getAs<IntegerAttr>(attr::stage);
    if (!stage || (piece && !carriedBy))
      continue;
    DictionaryAttr result;
    if (carriedBy) {
      if (carriedBy.getInt() < 0 || carriedBy.getInt() >= int64_t(main.getNumResults()))
        continue;
      result = main.getResultAttrDict(unsigned(carriedBy.getInt()));
      if (!result || bool(result.getAs<DictionaryAttr>(attr::piece)) != bool(piece) ||
          main.getResultTypes()[carriedBy.getInt()] != main.getArgumentTypes()[i])
        continue;
    }
    auto form = [](DictionaryAttr given) {
      NamedAttrList all;
      for (NamedAttribute each : given)
        if (StringRef name = each.getName(); name.starts_with("alpa.") && name != attr::value &&
                                             name != attr::name && name != attr::piece &&
                                             name != attr::carriedBy)
          all.push_back(each);
      return all.getDictionary(given.getContext());
    };
    auto number = [&](StringRef key) {
      auto given = piece ? piece.getAs<IntegerAttr>(key) : IntegerAttr();
      return given ? given.getInt() : 0;
    };
    auto type = dyn_cast<RankedTensorType>(main.getArgumentTypes()[i]);
    // The data of random keys is not the caller's array itself.
    if (!piece && (!withArrays || !type || type.getElementType().isUnsignedInteger()))
      continue;
    (piece ? pieces : arrays)[id] = {number("argument"),
                                     number("offset"),
                                     number("size"),
                                     stage.getInt(),
                                     result ? idOf(result) : -1,
                                     form(attributes),
                                     result ? form(result) : DictionaryAttr()};
  }
  for (auto stage : module.getOps<ModuleOp>())
    for (auto function : stage.getOps<func::FuncOp>()) {
      for (unsigned i = 0; i < function.getNumArguments(); ++i) {
        int64_t id = idOf(function.getArgAttrDict(i));
        next = std::max(next, id + 1);
        users[id].push_back(stage);
      }
      for (unsigned i = 0; i < function.getNumResults(); ++i) {
        DictionaryAttr attributes = function.getResultAttrDict(i);
        int64_t id = idOf(attributes);
        next = std::max(next, id + 1);
        users[id].push_back(stage);
        if (auto partOf = attributes.getAs<IntegerAttr>(attr::partOf)) {
          next = std::max(next, partOf.getInt() + 1);
          users[id].push_back(nullptr);
        }
      }
    }
}

/// Rows of a stack of the caller's, in rising order, or arrays of the caller's that become rows
/// of one, and with them their next values.
bool StageRoller::addState(ArrayRef<int64_t> ids) {
  Group state, nextState;
  state.ids.assign(ids.begin(), ids.end());
  const StatePiece *first = values.pieceOf(ids[0]);
  state.isOfArrays = nextState.isOfArrays = !first;
  if (!first)
    first = values.arrayOf(ids[0]);
  llvm::SmallDenseSet<int64_t> distinct, distinctNext;
  for (auto [i, id] : llvm::enumerate(ids)) {
    const StatePiece *piece = state.isOfArrays ? values.arrayOf(id) : values.pieceOf(id);
    if (!piece || piece->stage != first->stage || values.isSeenBeside(id, stage) ||
        groupIndex.contains(id) || !distinct.insert(id).second ||
        values.numResults(id) != (piece->carriedBy == id ? 1 : 0))
      return false;
    if (!state.isOfArrays && (piece->argument != first->argument || piece->size != 1 ||
                              piece->offset != first->offset + int64_t(i)))
      return false;
    if (piece->form != first->form || piece->nextForm != first->nextForm ||
        (piece->carriedBy == -1) != (first->carriedBy == -1) ||
        !distinctNext.insert(piece->carriedBy == -1 ? id : piece->carriedBy).second)
      return false;
    nextState.ids.push_back(piece->carriedBy);
  }
  bool isCarried = first->carriedBy != -1, isPassedOn = nextState.ids == state.ids;
  // A function makes all of them, or none, and holds all of them likewise.
  for (auto function : stage.getOps<func::FuncOp>()) {
    auto isAlike = [](ShardingAttr &form, DictionaryAttr given, Type type) {
      auto sharding = given.getAs<ShardingAttr>(attr::sharding);
      if (!form)
        form = sharding;
      auto tensor = cast<RankedTensorType>(type);
      bool isOneRow = tensor.getRank() > 0 && tensor.getDimSize(0) == 1;
      return form == sharding && isRow(tensor, sharding) == isOneRow;
    };
    llvm::DenseMap<int64_t, unsigned> made, given;
    for (unsigned i = 0; i < function.getNumResults(); ++i)
      made[idOf(function.getResultAttrDict(i))] = i;
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      given[idOf(function.getArgAttrDict(i))] = i;
    for (const Ids *all : {&state.ids, &nextState.ids}) {
      ShardingAttr taken, returned;
      int64_t count = 0;
      for (int64_t id : *all) {
        if (auto it = made.find(id); it != made.end()) {
          ++count;
          if (!isAlike(returned, function.getResultAttrDict(it->second),
                       function.getResultTypes()[it->second]))
            return false;
        }
        if (auto it = given.find(id); it != given.end())
          if (!isAlike(taken, function.getArgAttrDict(it->second),
                       function.getArgumentTypes()[it->second]))
            return false;
      }
      if (count != 0 && size_t(count) != all->size())
        return false;
    }
  }
  if (isCarried && !isPassedOn)
    for (int64_t id : nextState.ids)
      if (groupIndex.contains(id) || values.isSeenBeside(id, stage) || values.isState(id) ||
          values.numResults(id) != 1)
        return false;
  state.isState = true;
  state.id = nextId++;
  for (int64_t id : state.ids)
    groupIndex[id] = groups.size();
  groups.push_back(state);
  if (!isCarried || isPassedOn)
    return true;
  nextState.isState = true;
  nextState.id = nextId++;
  for (int64_t id : nextState.ids)
    groupIndex[id] = groups.size();
  groups.push_back(nextState);
  return true;
}

/// Values that one function makes (or has: what the first layer begins with) and others of
/// the stage take.
bool StageRoller::addValue(const Ids &ids, bool isTrial) {
  func::FuncOp maker;
  DictionaryAttr form;
  Type type;
  for (auto function : stage.getOps<func::FuncOp>()) {
    llvm::DenseMap<int64_t, unsigned> results, arguments;
    for (unsigned i = 0; i < function.getNumResults(); ++i)
      results[idOf(function.getResultAttrDict(i))] = i;
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      arguments[idOf(function.getArgAttrDict(i))] = i;
    if (llvm::none_of(ids, [&](int64_t id) { return results.contains(id); }))
      continue;
    if (maker)
      return false;
    maker = function;
    for (int64_t id : ids) {
      if (!results.contains(id)) {
        if (!arguments.contains(id) || values.pieceOf(id))
          return false;
        unsigned argument = arguments[id];
        if (type && function.getArgumentTypes()[argument] != type)
          return false;
        type = function.getArgumentTypes()[argument];
        continue;
      }
      NamedAttrList attributes(function.getResultAttrDict(results[id]));
      attributes.erase(attr::value);
      auto each = attributes.getDictionary(function.getContext());
      if (each.contains(attr::partOf) || (form && each != form))
        return false;
      form = each;
      if (type && function.getResultTypes()[results[id]] != type)
        return false;
      type = function.getResultTypes()[results[id]];
    }
  }
  if (!maker || llvm::any_of(ids, [&](int64_t id) { return groupIndex.contains(id); }))
    return false;
  if (isTrial)
    return true;
  Group group;
  group.ids = ids;
  group.id = nextId++;
  group.maker = maker.getSymName();
  for (int64_t id : ids)
    groupIndex[id] = groups.size();
  groups.push_back(group);
  return true;
}

/// Where functions repeat for other rows of a stack, all of them take those that they have in
/// common.
void StageRoller::narrow(ArrayRef<int64_t> ids) {
  auto rowOf = [&](int64_t id) -> std::optional<int64_t> {
    if (const StatePiece *piece = values.pieceOf(id))
      return piece->offset;
    auto it = rowOfId.find(id);
    return it == rowOfId.end() ? std::nullopt : std::optional(it->second);
  };
  const Group *other = nullptr;
  bool differs = false;
  std::optional<RowRange> common;
  for (int64_t id : ids) {
    const Group *group = groupOf(id);
    if (!group)
      continue;
    differs |= (other && group != other) || group->ids != Ids(ids);
    other = group;
    std::optional<int64_t> row = rowOf(id);
    if (!row)
      return;
    common = common ? RowRange{std::min(common->first, *row), std::max(common->second, *row + 1)}
                    : RowRange{*row, *row + 1};
  }
  if (!differs || !common)
    return;
  common = {std::max(common->first, allowed.first), std::min(common->second, allowed.second)};
  isNarrowed |= *common != allowed;
  allowed = *common;
}

/// Where functions want overlapping rows of a stack, as the halves of a backward pass may, all
/// get one with the rows of both. Whether the wish is met then.
bool StageRoller::unite(ArrayRef<int64_t> ids) {
  const Group *group = nullptr;
  for (int64_t id : ids)
    if (const Group *other = groupOf(id)) {
      if (group && other != group)
        return false;
      group = other;
    }
  if (!mayUnite || !group || group->isState != values.isStateRow(ids))
    return false;
  auto shared = llvm::find_if(ids, [&](int64_t id) { return groupOf(id) != nullptr; });
  // Where the wish begins among the group's rows.
  int64_t begin = (llvm::find(group->ids, *shared) - group->ids.begin()) - (shared - ids.begin());
  auto numIds = int64_t(ids.size()), numRows = int64_t(group->ids.size());
  Ids all;
  for (int64_t i = std::min<int64_t>(begin, 0); i < std::max(begin + numIds, numRows); ++i) {
    bool isRow = i >= 0 && i < numRows, isWished = i >= begin && i < begin + numIds;
    if (isRow && isWished && group->ids[i] != ids[i - begin])
      return false;
    all.push_back(isRow ? group->ids[i] : ids[i - begin]);
  }
  if (llvm::SmallDenseSet<int64_t>(all.begin(), all.end()).size() != all.size())
    return false;
  if (all == group->ids)
    return true;
  if (!tried.insert(all).second)
    return false;
  llvm::erase_if(unions, [&](const Ids &other) { return llvm::is_contained(all, other[0]); });
  unions.push_back(all);
  isUnited = true;
  return true;
}

/// Whether a function with some of a stack's rows takes the stack.
bool StageRoller::isEnough(const Group &group, llvm::function_ref<bool(int64_t)> has) const {
  auto count = llvm::count_if(group.ids, has);
  return count == int64_t(group.ids.size()) ||
         (mayUnite && count > 1 && 2 * count >= int64_t(group.ids.size()));
}

bool StageRoller::areArrays(ArrayRef<int64_t> ids) const {
  return llvm::all_of(ids, [&](int64_t id) { return values.arrayOf(id); });
}

/// Whether it is a loop over arrays of the caller's, of whose rows nothing is known yet.
bool StageRoller::setsRows(const Wish &wish) const {
  return wish.isLoop && !wish.rows &&
         llvm::any_of(wish.arguments, [&](const Ids &ids) { return areArrays(ids); });
}

/// Adds the stacks that a loop wishes for, those that it reads or those that it makes.
void StageRoller::take(StringRef function, const Wish &wish, bool results) {
  bool isReversed = wish.rows && wish.rows->second < 0, knowsDirection = wish.rows.has_value();
  if (wish.rows)
    for (ArrayRef<int64_t> ids : results ? wish.results : wish.arguments)
      for (size_t i = 0; i < ids.size(); ++i) {
        int64_t row = wish.rows->first + int64_t(i) * wish.rows->second;
        auto [it, isNew] = rowOfId.try_emplace(ids[i], row);
        if (!isNew && !results)
          it->second = row;
      }
  auto see = [&](ArrayRef<int64_t> ids) {
    if (knowsDirection)
      return;
    const StatePiece *a = values.pieceOf(ids[0]), *b = values.pieceOf(ids[1]);
    if (a && b) {
      isReversed = a->offset > b->offset;
      knowsDirection = true;
    } else if (const Group *group = groupOf(ids[0]); group && group == groupOf(ids[1])) {
      isReversed = llvm::find(group->ids, ids[0]) > llvm::find(group->ids, ids[1]);
      knowsDirection = true;
    }
  };
  for (ArrayRef<int64_t> ids : wish.arguments)
    see(ids);
  for (ArrayRef<int64_t> ids : wish.results)
    see(ids);
  for (Ids ids : results ? wish.results : wish.arguments) {
    if (isReversed)
      std::reverse(ids.begin(), ids.end());
    // Arrays of the caller's have rows since a loop reads them.
    if (!results && setsRows(wish) && areArrays(ids))
      for (auto [row, id] : llvm::enumerate(ids))
        rowOfId.try_emplace(id, int64_t(row));
    if (const Group *group = groupOf(ids[0]); group && group->ids == ids)
      continue;
    if (refused.count(ids) || unite(ids))
      continue;
    if (!results)
      narrow(ids);
    bool isAdded = values.isStateRow(ids) ? addState(ids) : addValue(ids);
    if (isAdded)
      continue;
    refused.insert(ids);
    auto isTaken = [&](int64_t id) { return groupIndex.contains(id); };
    if (results || !wish.rows || ids.size() < 3 || values.isStateRow(ids) ||
        llvm::any_of(ids, isTaken))
      continue;
    // What the first layer begins with, or the last, may be held otherwise.
    for (bool first : {true, false}) {
      Ids fewer(first ? ArrayRef(ids).drop_front() : ArrayRef(ids).drop_back());
      if (!addValue(fewer, /*isTrial=*/true))
        continue;
      int64_t low = rowOfId.lookup(fewer.front()), high = rowOfId.lookup(fewer.back());
      RowRange common{std::max(allowed.first, std::min(low, high)),
                      std::min(allowed.second, std::max(low, high) + 1)};
      isNarrowed |= common != allowed;
      allowed = common;
      break;
    }
  }
}

/// Gives the function the stacks in place of their members. `seen` are the values that some
/// function or the caller still wants by themselves.
void StageRoller::rewrite(func::FuncOp function, const llvm::DenseSet<int64_t> &seen) {
  Block &block = function.front();
  MLIRContext *context = function.getContext();
  HeldBuilder builder(context);
  Location loc = function.getLoc();
  Operation *end = block.getTerminator();

  llvm::DenseMap<int64_t, Value> valueOf; // Results, and arguments that are not results.
  for (BlockArgument argument : function.getArguments())
    valueOf[idOf(function.getArgAttrDict(argument.getArgNumber()))] = argument;
  llvm::DenseMap<int64_t, unsigned> resultOf;
  for (unsigned i = 0; i < function.getNumResults(); ++i) {
    resultOf[idOf(function.getResultAttrDict(i))] = i;
    valueOf[idOf(function.getResultAttrDict(i))] = end->getOperand(i);
  }
  StringRef name = function.getSymName();

  // Results first: they may be arguments.
  SmallVector<Value> ends;
  SmallVector<DictionaryAttr> endAttrs;
  llvm::DenseMap<int64_t, unsigned> newResult; // By id.
  llvm::DenseMap<int64_t, int64_t> aliased;    // Argument id to the id of the result it becomes.
  for (BlockArgument argument : function.getArguments())
    if (auto alias =
            function.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), "tf.aliasing_output");
        alias && alias.getValue().ult(function.getNumResults()))
      aliased[idOf(function.getArgAttrDict(argument.getArgNumber()))] =
          idOf(function.getResultAttrDict(unsigned(alias.getInt())));
  llvm::DenseSet<unsigned> done;
  auto addGroup = [&](unsigned index) {
    const Group &group = groups[index];
    if (!done.insert(index).second)
      return;
    SmallVector<Value> rows;
    DictionaryAttr form;
    for (int64_t id : group.ids) {
      rows.push_back(valueOf[id]);
      if (resultOf.contains(id))
        form = function.getResultAttrDict(resultOf[id]);
    }
    builder.setInsertionPoint(end);
    ShardingAttr sharding = shardingOf(rows[0]);
    Value stack = builder.stack(rows, loc);
    stack.getDefiningOp()->setAttr(kStack, builder.getUnitAttr());
    for (Value part : stack.getDefiningOp()->getOperands())
      if (!llvm::is_contained(rows, part))
        part.getDefiningOp()->setAttr(kStack, builder.getUnitAttr());
    NamedAttrList attributes(form);
    attributes.set(attr::value, builder.getI64IntegerAttr(group.id));
    if (!isRow(typeOf(rows[0]), sharding))
      attributes.set(attr::sharding, withRow(sharding));
    newResult[group.id] = ends.size();
    ends.push_back(stack);
    endAttrs.push_back(attributes.getDictionary(context));
  };
  for (unsigned i = 0; i < function.getNumResults(); ++i) {
    int64_t id = idOf(function.getResultAttrDict(i));
    auto it = groupIndex.find(id);
    const Group *group = it == groupIndex.end() ? nullptr : &groups[it->second];
    bool isMade = group && (group->isState || group->maker == name);
    if (isMade)
      addGroup(it->second);
    if (isMade && (group->isState || !seen.contains(id)))
      continue;
    newResult[id] = ends.size();
    ends.push_back(end->getOperand(i));
    endAttrs.push_back(function.getResultAttrDict(i));
  }
  end->setOperands(ends);

  // Arguments. Those of a stack that this function makes stay what they are.
  SmallVector<DictionaryAttr> argAttrs;
  llvm::BitVector gone(function.getNumArguments());
  unsigned numOld = function.getNumArguments();
  llvm::DenseMap<unsigned, unsigned> stackOf; // Group to its argument.
  for (unsigned i = 0; i < numOld; ++i) {
    DictionaryAttr attributes = function.getArgAttrDict(i);
    auto it = groupIndex.find(idOf(attributes));
    const Group *group = it == groupIndex.end() ? nullptr : &groups[it->second];
    bool isTaken = group && (group->isState || group->maker != name);
    if (isTaken && !group->isState) // Most of them, or each by itself.
      isTaken = isEnough(*group, [&](int64_t id) {
        return valueOf.contains(id) && isa<BlockArgument>(valueOf[id]) && !resultOf.contains(id);
      });
    if (!isTaken)
      continue;
    gone.set(i);
    BlockArgument member = block.getArgument(i);
    auto sharding = attributes.getAs<ShardingAttr>(attr::sharding);
    auto type = cast<RankedTensorType>(member.getType());
    bool isRowType = isRow(type, sharding);
    if (!stackOf.contains(it->second)) {
      stackOf[it->second] = block.getNumArguments();
      block.addArgument(withRows(type, int64_t(group->ids.size()), isRowType), member.getLoc());
    }
    BlockArgument stack = block.getArgument(stackOf[it->second]);
    int64_t row = llvm::find(group->ids, idOf(attributes)) - group->ids.begin();
    builder.setInsertionPointToStart(&block);
    ShardingAttr held = isRowType ? sharding : withRow(sharding);
    Value value = builder.markedRow(stack, held, row, type, sharding, loc);
    member.replaceAllUsesWith(value);
  }
  for (unsigned i = 0; i < numOld; ++i)
    if (!gone.test(i))
      argAttrs.push_back(function.getArgAttrDict(i));
  SmallVector<std::pair<unsigned, unsigned>> stacks; // Argument, group.
  for (auto [group, argument] : stackOf)
    stacks.push_back({argument, group});
  llvm::sort(stacks);
  for (auto [argument, index] : stacks) {
    const Group &group = groups[index];
    // As its first member that the function has.
    DictionaryAttr form;
    for (unsigned i = 0; i < numOld && !form; ++i)
      if (auto each = function.getArgAttrDict(i); llvm::is_contained(group.ids, idOf(each)))
        form = each;
    NamedAttrList attributes(form);
    auto sharding = cast<ShardingAttr>(attributes.get(attr::sharding));
    bool isRowType =
        typeOf(block.getArgument(argument)).getRank() == int64_t(sharding.getSpec().dims.size());
    if (!isRowType)
      attributes.set(attr::sharding, withRow(sharding));
    // What becomes of the first row becomes of all.
    if (attributes.get("tf.aliasing_output"))
      aliased[group.id] = aliased[idOf(form)];
    attributes.set(attr::value, builder.getI64IntegerAttr(group.id));
    argAttrs.push_back(attributes.getDictionary(context));
  }
  gone.resize(block.getNumArguments());
  block.eraseArguments(gone);
  for (DictionaryAttr &each : argAttrs) {
    if (!each.contains("tf.aliasing_output"))
      continue;
    NamedAttrList attributes(each);
    int64_t result = aliased[idOf(each)];
    if (const Group *group = groupOf(result))
      result = group->id;
    if (auto it = newResult.find(result); it != newResult.end())
      attributes.set("tf.aliasing_output", builder.getI32IntegerAttr(int32_t(it->second)));
    else
      attributes.erase("tf.aliasing_output");
    each = attributes.getDictionary(context);
  }
  SmallVector<Type> resultTypes(end->getOperandTypes());
  function.setFunctionType(FunctionType::get(context, block.getArgumentTypes(), resultTypes));
  function.setAllArgAttrs(argAttrs);
  function.setAllResultAttrs(endAttrs);
  moveInFrontOfReaders(block);
}

/// Rewrites a copy for the known stacks. False if stacks would be taken apart again.
bool StageRoller::attempt(ModuleOp copy, std::vector<std::pair<std::string, Wish>> &wishes) {
  llvm::DenseSet<int64_t> seen;
  for (auto function : copy.getOps<func::FuncOp>()) {
    StringRef name = function.getSymName();
    llvm::DenseSet<int64_t> given;
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      given.insert(idOf(function.getArgAttrDict(i)));
    for (int64_t id : given) {
      const Group *group = groupOf(id);
      bool isTaken = group && group->maker != name &&
                     isEnough(*group, [&](int64_t each) { return given.contains(each); });
      if (!isTaken || values.isSeenBeside(id, stage))
        seen.insert(id);
    }
    for (unsigned i = 0; i < function.getNumResults(); ++i) {
      int64_t id = idOf(function.getResultAttrDict(i));
      if (values.isSeenBeside(id, stage) || values.isResult(id))
        seen.insert(id);
    }
  }
  numLoops = numIterations = 0;
  common = allowed;
  bool isWhole = true;
  for (auto function : copy.getOps<func::FuncOp>()) {
    rewrite(function, seen);
    auto rowOf = [&](Value value) -> std::optional<RowInfo> {
      while (value.getDefiningOp() && isa<ReshardOp, hlo::ConvertOp>(value.getDefiningOp()))
        value = value.getDefiningOp()->getOperand(0);
      auto argument = dyn_cast<BlockArgument>(value);
      if (!argument || argument.getOwner() != &function.front())
        return std::nullopt;
      int64_t id = idOf(function.getArgAttrDict(argument.getArgNumber()));
      for (const Group &group : groups)
        if (group.id == id)
          id = group.ids[0];
      if (const StatePiece *piece = values.pieceOf(id))
        return RowInfo{piece->offset, true};
      auto it = rowOfId.find(id);
      if (it != rowOfId.end())
        return RowInfo{it->second, values.isState(id)};
      return values.isState(id) ? std::optional(RowInfo{0, true, true}) : std::nullopt;
    };
    std::vector<Wish> own;
    bool isOfWeights = function.getSymName() == "backward_weight";
    FunctionRoller roller(function, rowOf, allowed, isOfWeights ? leastWeights : kLeastPeriod);
    roller.run(own);
    numLoops += roller.numLoops;
    numIterations += roller.numIterations;
    for (RowRange range : roller.ranges)
      common = {std::max(common.first, range.first), std::min(common.second, range.second)};
    RowJoiner(function).run(own);
    for (Wish &wish : own)
      wishes.push_back({function.getSymName().str(), std::move(wish)});
    llvm::MapVector<Value, int64_t> taken; // Stacks, and how many of their rows are taken out.
    function.walk([&](Operation *op) {
      if (!op->hasAttr(kStack))
        return;
      if (!op->use_empty() && bytesOf(typeOf(op->getResult(0))) > kSmallValue) {
        isWhole &= !isa<hlo::ConcatenateOp>(op);
        if (isa<hlo::SliceOp>(op))
          ++taken[op->getOperand(0)];
      }
      op->removeAttr(kStack);
    });
    // As a loop does with the others.
    for (auto [stack, count] : taken)
      isWhole &= 2 * count <= typeOf(stack).getDimSize(0) &&
                 (stack.getDefiningOp<hlo::WhileOp>() ||
                  llvm::any_of(stack.getUsers(), llvm::IsaPred<hlo::WhileOp>));
  }
  return isWhole;
}

/// A prepared weight is the row of the stack that it is made of.
void StageRoller::seedPrepared() {
  auto prepare = stage.lookupSymbol<func::FuncOp>("prepare");
  if (!prepare)
    return;
  for (auto [index, value] : llvm::enumerate(prepare.front().getTerminator()->getOperands())) {
    int64_t offset = 0;
    Value source = value;
    while (Operation *op = source.getDefiningOp()) {
      if (op->getNumOperands() == 0)
        break;
      if (auto slice = dyn_cast<hlo::SliceOp>(op))
        offset += slice.getStartIndices()[0];
      source = op->getOperand(0);
    }
    auto argument = dyn_cast<BlockArgument>(source);
    if (!argument)
      continue;
    int64_t id = idOf(prepare.getArgAttrDict(argument.getArgNumber()));
    const StatePiece *piece = values.pieceOf(id);
    if (piece || offset > 0 || source.getType() != value.getType())
      rowOfId[idOf(prepare.getResultAttrDict(unsigned(index)))] =
          offset + (piece ? piece->offset : 0);
  }
}

bool StageRoller::run() {
  bool isSplit = bool(stage.lookupSymbol<func::FuncOp>("backward_weight"));
  for (int attempt = 0; attempt < (isSplit ? 4 : 2); ++attempt) {
    mayUnite = attempt % 2 == 1;
    leastWeights = attempt < 2 ? kLeastPeriod : kLeastWeights;
    groups.clear();
    groupIndex.clear();
    refused.clear();
    rowOfId.clear();
    seedPrepared();
    allowed = {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
    isNarrowed = isUnited = false;
    if (tryRounds())
      return true;
  }
  return false;
}

bool StageRoller::tryRounds() {
  OwningOpRef<ModuleOp> copy;
  // As of the last round that left nothing to be taken apart: what is wished behind it may not
  // work.
  struct Whole {
    OwningOpRef<ModuleOp> stage;
    std::vector<Group> groups;
    int64_t numLoops, numIterations;
  };
  std::optional<Whole> whole;
  for (int round = 0; round < 48; ++round) {
    copy = stage.clone();
    std::vector<std::pair<std::string, Wish>> wishes;
    bool isWhole = attempt(*copy, wishes);
    if (isWhole && numLoops > 0)
      whole = Whole{std::move(copy), groups, numLoops, numIterations};
    size_t before = groups.size();
    // What is read must be as its readers want it; what is made can follow.
    // Loops that do not say which rows they read come when others have said it.
    for (bool all : {false, true}) {
      if (all && groups.size() > before)
        break;
      // By the first loop over arrays of the caller's, the rows that others read are known.
      const Wish *only = nullptr;
      for (bool results : {false, true}) {
        if (results && groups.size() > before)
          break; // Loops that come behind those that read may read what these make.
        for (auto &[function, wish] : wishes) {
          if (all && !only && setsRows(wish))
            only = &wish;
          if (only ? only == &wish : all || !wish.isLoop || wish.rows)
            take(function, wish, results);
        }
      }
    }
    bool isLast = !isNarrowed && !isUnited && groups.size() == before;
    // Loops over some of the rows leave the others of their stacks to be taken out.
    if (isLast && !isWhole && common != allowed && common.second - common.first >= 2) {
      allowed = common;
      isNarrowed = true;
    }
    if (isNarrowed || isUnited) {
      groups.clear();
      groupIndex.clear();
      refused.clear();
      if (isNarrowed) {
        // What the allowed rows are counted by stays.
        llvm::SmallVector<int64_t> others;
        for (auto [id, row] : rowOfId)
          if (!values.arrayOf(id))
            others.push_back(id);
        for (int64_t id : others)
          rowOfId.erase(id);
        seedPrepared();
        unions.clear();
      }
      isNarrowed = isUnited = false;
      for (const Ids &ids : unions)
        if (!(values.isStateRow(ids) ? addState(ids) : addValue(ids)))
          refused.insert(ids);
      continue;
    }
    if (isLast)
      break;
  }
  if (!whole)
    return false;
  stage.getBodyRegion().takeBody(whole->stage->getBodyRegion());
  groups = std::move(whole->groups);
  numLoops = whole->numLoops;
  numIterations = whole->numIterations;
  return true;
}

//===----------------------------------------------------------------------===//
// The step
//===----------------------------------------------------------------------===//

/// The signature of @main with stacks in place of their rows, and ids counted anew, those of
/// arguments first.
static void rewriteMain(ModuleOp module, ArrayRef<Group> groups) {
  auto main = module.lookupSymbol<func::FuncOp>("main");
  MLIRContext *context = module.getContext();
  Builder builder(context);
  llvm::DenseMap<int64_t, const Group *> groupOf;
  for (const Group &group : groups)
    for (int64_t id : group.ids)
      groupOf[id] = &group;

  // What the caller calls each of them, by id.
  llvm::DenseMap<int64_t, std::pair<int64_t, StringAttr>> argumentOf, resultOf;
  auto count = [&](llvm::DenseMap<int64_t, std::pair<int64_t, StringAttr>> &known,
                   DictionaryAttr attributes, int64_t &next) {
    auto piece = attributes ? attributes.getAs<DictionaryAttr>(attr::piece) : DictionaryAttr();
    auto offset = piece ? piece.getAs<IntegerAttr>("offset") : IntegerAttr();
    if (!offset || offset.getInt() == 0)
      ++next;
    auto name = attributes ? attributes.getAs<StringAttr>(attr::name) : StringAttr();
    known.try_emplace(idOf(attributes), next, name);
  };
  int64_t lastArgument = -1, lastResult = -1;
  for (unsigned i = 0; i < main.getNumArguments(); ++i)
    count(argumentOf, main.getArgAttrDict(i), lastArgument);
  for (unsigned i = 0; i < main.getNumResults(); ++i)
    count(resultOf, main.getResultAttrDict(i), lastResult);

  SmallVector<Type> argTypes, resultTypes;
  SmallVector<DictionaryAttr> argAttrs, resultAttrs;
  SmallVector<int64_t> resultAt; // Where each result is now.
  auto stacked = [&](DictionaryAttr given, Type type, const Group *group, bool isResult,
                     Type &madeType) {
    NamedAttrList attributes(given);
    auto count = int64_t(group->ids.size());
    auto one = cast<RankedTensorType>(type);
    if (!group->isOfArrays) {
      NamedAttrList rows(given.getAs<DictionaryAttr>(attr::piece));
      rows.set("size", builder.getI64IntegerAttr(count));
      attributes.set(attr::piece, rows.getDictionary(context));
      madeType = withRows(one, count, true);
      return attributes;
    }
    bool isOneRow = one.getRank() > 0 && one.getDimSize(0) == 1;
    madeType = withRows(one, count, isOneRow);
    if (auto sharding = given.getAs<ShardingAttr>(attr::sharding); sharding && !isOneRow)
      attributes.set(attr::sharding, withRow(sharding));
    SmallVector<int64_t> numbers;
    SmallVector<Attribute> names;
    for (int64_t id : group->ids) {
      auto [number, name] = (isResult ? resultOf : argumentOf).lookup(id);
      numbers.push_back(number);
      names.push_back(name ? name : builder.getStringAttr(""));
    }
    NamedAttrList rows;
    rows.set(isResult ? "results" : "arguments", builder.getDenseI64ArrayAttr(numbers));
    rows.set("names", builder.getArrayAttr(names));
    rows.set("shape", builder.getDenseI64ArrayAttr(one.getShape()));
    attributes.set(attr::rows, rows.getDictionary(context));
    auto text = [&](Attribute name) { return cast<StringAttr>(name).getValue(); };
    attributes.set(attr::name,
                   builder.getStringAttr(text(names.front()) + " .. " + text(names.back())));
    return attributes;
  };
  auto isStack = [&](DictionaryAttr attributes) -> const Group * {
    const Group *group = groupOf.lookup(idOf(attributes));
    bool isPiece = attributes && attributes.getAs<DictionaryAttr>(attr::piece);
    return group && group->isState && group->isOfArrays != isPiece ? group : nullptr;
  };
  for (unsigned i = 0; i < main.getNumResults(); ++i) {
    DictionaryAttr attributes = main.getResultAttrDict(i);
    const Group *group = isStack(attributes);
    if (group && group->ids[0] != idOf(attributes)) {
      resultAt.push_back(int64_t(resultTypes.size()) - 1);
      continue;
    }
    resultAt.push_back(int64_t(resultTypes.size()));
    Type type = main.getResultTypes()[i];
    if (group) {
      NamedAttrList made = stacked(attributes, type, group, /*isResult=*/true, type);
      made.set(attr::value, builder.getI64IntegerAttr(group->id));
      attributes = made.getDictionary(context);
    }
    resultTypes.push_back(type);
    resultAttrs.push_back(attributes);
  }
  llvm::DenseMap<int64_t, int64_t> renumbered;
  for (unsigned i = 0; i < main.getNumArguments(); ++i) {
    DictionaryAttr given = main.getArgAttrDict(i);
    const Group *group = isStack(given);
    if (group && group->ids[0] != idOf(given))
      continue;
    Type type = main.getArgumentTypes()[i];
    NamedAttrList attributes(given);
    int64_t id = idOf(given);
    if (group) {
      attributes = stacked(given, type, group, /*isResult=*/false, type);
      id = group->id;
    }
    if (auto carriedBy = given.getAs<IntegerAttr>(attr::carriedBy))
      if (auto index = size_t(carriedBy.getInt()); index < resultAt.size())
        attributes.set(attr::carriedBy, builder.getI64IntegerAttr(resultAt[index]));
    renumbered[id] = int64_t(argTypes.size());
    attributes.set(attr::value, builder.getI64IntegerAttr(id));
    argTypes.push_back(type);
    argAttrs.push_back(attributes.getDictionary(context));
  }
  main.setFunctionType(FunctionType::get(context, argTypes, resultTypes));
  auto anew = [&](int64_t id) {
    auto next = int64_t(renumbered.size());
    return renumbered.try_emplace(id, next).first->second;
  };
  auto rename = [&](DictionaryAttr given) {
    if (!given)
      return given;
    NamedAttrList attributes(given);
    for (StringRef name : {attr::value, attr::partOf})
      if (auto id = given.getAs<IntegerAttr>(name))
        attributes.set(name, builder.getI64IntegerAttr(anew(id.getInt())));
    return attributes.getDictionary(context);
  };
  auto renameAll = [&](func::FuncOp function, SmallVector<DictionaryAttr> args,
                       SmallVector<DictionaryAttr> results) {
    for (DictionaryAttr &each : args)
      each = rename(each);
    for (DictionaryAttr &each : results)
      each = rename(each);
    function.setAllArgAttrs(args);
    function.setAllResultAttrs(results);
  };
  renameAll(main, argAttrs, resultAttrs);
  for (auto stage : module.getOps<ModuleOp>())
    for (auto function : stage.getOps<func::FuncOp>()) {
      SmallVector<DictionaryAttr> args, results;
      for (unsigned i = 0; i < function.getNumArguments(); ++i)
        args.push_back(function.getArgAttrDict(i));
      for (unsigned i = 0; i < function.getNumResults(); ++i)
        results.push_back(function.getResultAttrDict(i));
      renameAll(function, args, results);
    }
}

/// Whether the functions say of all values how they are held, and of their arguments and results
/// which values they are.
static bool isComplete(ModuleOp stage) {
  auto isKnown = [](DictionaryAttr attributes, Type type) {
    return attributes && attributes.getAs<IntegerAttr>(attr::value) &&
           attributes.getAs<ShardingAttr>(attr::sharding) && isa<RankedTensorType>(type) &&
           cast<RankedTensorType>(type).hasStaticShape();
  };
  for (auto function : stage.getOps<func::FuncOp>()) {
    if (!function.getBody().hasOneBlock())
      return false;
    for (auto [i, type] : llvm::enumerate(function.getArgumentTypes()))
      if (!isKnown(function.getArgAttrDict(i), type))
        return false;
    for (auto [i, type] : llvm::enumerate(function.getResultTypes()))
      if (!isKnown(function.getResultAttrDict(i), type))
        return false;
    for (Operation &op : function.front().without_terminator())
      if (llvm::any_of(op.getResults(), [](Value v) {
            return isa<RankedTensorType>(v.getType()) && !shardingOf(v);
          }))
        return false;
  }
  return true;
}

/// A stack of it would be on the device as a whole.
static bool isPartlyOnHost(ModuleOp stage) {
  return llvm::any_of(stage.getOps<func::FuncOp>(), [](func::FuncOp function) {
    return llvm::any_of(function.getArguments(), isHostArgument);
  });
}

namespace {

struct RollLayers : public spmd::impl::RollLayersBase<RollLayers> {
  using RollLayersBase::RollLayersBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (!module.lookupSymbol<func::FuncOp>("main"))
      return;
    if (!llvm::all_of(module.getOps<ModuleOp>(), isComplete))
      return; // A later pass says what is missing.
    StepValues values(module, written);
    constexpr int64_t kMostIds = int64_t(1) << 32; // Of a stage.
    std::vector<StageRoller> rollers;
    for (auto stage : module.getOps<ModuleOp>())
      if (stage->hasAttr(attr::mesh) && !isPartlyOnHost(stage))
        rollers.emplace_back(stage, values,
                             values.firstFreeId() + kMostIds * int64_t(rollers.size()));
    std::vector<char> isRolled(rollers.size(), false);
    parallelFor(&getContext(), 0, rollers.size(),
                [&](size_t i) { isRolled[i] = rollers[i].run(); });
    std::vector<Group> groups;
    for (auto [roller, rolled] : llvm::zip_equal(rollers, isRolled)) {
      if (!rolled)
        continue;
      numLoops += roller.numLoops;
      numIterations += roller.numIterations;
      llvm::append_range(groups, roller.getGroups());
    }
    if (!groups.empty())
      rewriteMain(module, groups);
  }
};

} // namespace
