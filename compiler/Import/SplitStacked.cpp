//===- SplitStacked.cpp - stacks of layers into their layers --------------===//

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Import/Passes.h"
#include "compiler/Import/StackedRows.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

#include <algorithm>
#include <set>

namespace alpa::importer {
#define GEN_PASS_DEF_ALPASPLITSTACKED
#include "compiler/Import/Passes.h.inc"
} // namespace alpa::importer

using namespace alpa;
using namespace alpa::importer;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Which tensors are split into their layers
//===----------------------------------------------------------------------===//

namespace {

/// The tensors of @main that are stacks of layers, and which dimension of each the layers are:
/// state whose single rows are read, concatenations of single rows, and what is connected with
/// these by ops that work by row or from step to step. Only stacks that hold state or are made
/// of parts count.
class StackedValues {
public:
  explicit StackedValues(func::FuncOp main);

  std::optional<int64_t> axisOf(Value value) const {
    auto it = axes.find(value);
    return it == axes.end() ? std::nullopt : std::optional(it->second);
  }
  bool contains(Value value) const { return axes.contains(value); }
  bool empty() const { return axes.empty(); }

private:
  void grow(Value seed);
  void visit(Value value, llvm::SmallVectorImpl<Value> &next);
  bool isFollowed(Operation *op) const;

  func::FuncOp main;
  llvm::DenseMap<Value, int64_t> axes, seen;
  llvm::DenseMap<Value, llvm::SmallVector<Value, 1>> nextSteps; // Both ways.
  std::set<std::vector<int64_t>> stateShapes;
};

} // namespace

namespace hlo = mlir::stablehlo;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

static int64_t rowsIn(Value value, int64_t axis) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.getRank() > axis ? type.getDimSize(axis) : 1;
}

/// Ops that say nothing about the rows apart from their types (and a slice's limits).
static bool isSplittableKind(Operation *op) {
  StringRef name = op->getName().getStringRef();
  if (auto constant = dyn_cast<hlo::ConstantOp>(op)) {
    auto value = dyn_cast<DenseElementsAttr>(constant.getValue());
    return value && value.isSplat();
  }
  if (name.starts_with("chlo.")) // One number for one number.
    return op->getNumRegions() == 0 && llvm::all_of(op->getOperandTypes(), [&](Type type) {
             return getElementTypeOrSelf(type).isFloat() &&
                    cast<ShapedType>(type).getShape() ==
                        cast<ShapedType>(op->getResult(0).getType()).getShape();
           });
  return analysis::isElementwiseName(name) || op->hasAttr(attr::pin) ||
         isa<hlo::IotaOp, hlo::BroadcastInDimOp, hlo::ReshapeOp, hlo::TransposeOp,
             hlo::DotGeneralOp, hlo::SliceOp, hlo::PadOp, hlo::ConcatenateOp, hlo::ReverseOp,
             hlo::ReduceOp, hlo::BitcastConvertOp>(op);
}

static bool splits(ShardingAttr pin, int64_t dim) {
  return pin && int64_t(pin.getSpec().dims.size()) > dim && !pin.getSpec().dims[dim].empty();
}

/// Whether a pin leaves rows together; those of a constraint, which a plan may drop, do not.
static bool pinsRows(Operation *op, int64_t axis) {
  return splits(op->getAttrOfType<ShardingAttr>(attr::pin), axis) &&
         !op->getParentOfType<ModuleOp>()->hasAttr(attr::pinAxes);
}

/// A pin of a stack as one of a row.
static ShardingAttr pinOfRow(ShardingAttr pin, int64_t axis) {
  ShardingSpec spec = pin.getSpec();
  if (int64_t(spec.dims.size()) > axis)
    spec.dims[axis].clear();
  return ShardingAttr::get(pin.getContext(), spec);
}

namespace {

/// Where the rows are of an op that can be written once for each row.
struct RowAxes {
  SmallVector<std::optional<int64_t>> operands; // None of those that all rows see whole.
  SmallVector<int64_t> results;
};

} // namespace

/// If each row of the op's results follows from the same row of those operands that have it.
/// The rows are dimension `axis` of one of its operands or results, as `from` says.
static std::optional<RowAxes>
rowAxes(Operation *op, int64_t axis,
        llvm::function_ref<const analysis::TensorFactors &(const analysis::ShardingRule &)> from) {
  if (op->getNumResults() == 0 || !isSplittableKind(op))
    return std::nullopt;
  std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
  if (!rule || int64_t(from(*rule).size()) <= axis || from(*rule)[axis].size() != 1)
    return std::nullopt;
  unsigned rows = from(*rule)[axis][0];
  const analysis::Factor &factor = rule->factors[rows];
  if (factor.kind != analysis::FactorKind::Parallel || factor.size < 2)
    return std::nullopt;
  auto find = [&](const analysis::TensorFactors &tensor, Value value,
                  std::optional<int64_t> &found) {
    for (auto [dim, factors] : llvm::enumerate(tensor)) {
      if (!llvm::is_contained(factors, rows))
        continue;
      if (found || factors.size() != 1 || rowsIn(value, int64_t(dim)) != factor.size)
        return false;
      found = int64_t(dim);
    }
    return true;
  };
  RowAxes axes;
  for (auto [tensor, value] : llvm::zip_equal(rule->operands, op->getOperands()))
    if (!find(tensor, value, axes.operands.emplace_back()))
      return std::nullopt;
  for (auto [tensor, value] : llvm::zip_equal(rule->results, op->getResults())) {
    std::optional<int64_t> found;
    if (!find(tensor, value, found) || !found || pinsRows(op, *found))
      return std::nullopt;
    axes.results.push_back(*found);
  }
  if (auto iota = dyn_cast<hlo::IotaOp>(op);
      iota && int64_t(iota.getIotaDimension()) == axes.results[0])
    return std::nullopt;
  // Layers lie side by side in products; what else a product is spread over is none of them.
  if (isa<hlo::DotGeneralOp>(op) &&
      (axes.results[0] != 0 || llvm::any_of(axes.operands, [](std::optional<int64_t> axis) {
         return axis.value_or(0) != 0;
       })))
    return std::nullopt;
  return axes;
}

static std::optional<RowAxes> rowAxes(OpResult result, int64_t axis) {
  return rowAxes(result.getOwner(), axis,
                 [&](const analysis::ShardingRule &rule) -> const analysis::TensorFactors & {
                   return rule.results[result.getResultNumber()];
                 });
}

static std::optional<RowAxes> rowAxes(OpOperand &operand, int64_t axis) {
  return rowAxes(operand.getOwner(), axis,
                 [&](const analysis::ShardingRule &rule) -> const analysis::TensorFactors & {
                   return rule.operands[operand.getOperandNumber()];
                 });
}

/// Whether rows of a tensor may be layers: those of a random key are words of it.
static bool mayHoldLayers(Value value) {
  RankedTensorType type = typeOf(value);
  return type.getRank() != 1 || !type.getElementType().isUnsignedInteger();
}

/// Whether an argument of @main may become one argument for each row.
static bool canSplitArgument(func::FuncOp main, Value value, int64_t axis) {
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument || rowsIn(value, axis) < 2)
    return false;
  auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind);
  auto pinned = main.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(), attr::sharding);
  return (!kind || kind.getValue() == "state") && !splits(pinned, axis);
}

StackedValues::StackedValues(func::FuncOp main) : main(main) {
  Block &body = main.getBody().front();
  for (BlockArgument argument : body.getArguments()) {
    if (auto carried =
            main.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), attr::carriedBy)) {
      Value next = body.getTerminator()->getOperand(carried.getInt());
      nextSteps[argument].push_back(next);
      nextSteps[next].push_back(argument);
    }
    auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind);
    if (auto type = dyn_cast<RankedTensorType>(argument.getType());
        type && (!kind || kind.getValue() == "state"))
      stateShapes.insert(type.getShape().vec());
  }
  SmallVector<Value> seeds;
  llvm::MapVector<Value, llvm::BitVector> rowsRead;
  for (Operation &op : body.without_terminator()) {
    if (isStack(&op) && mayHoldLayers(op.getResult(0)))
      seeds.push_back(op.getResult(0));
    if (std::optional<int64_t> row = takenRow(&op); row && mayHoldLayers(op.getOperand(0))) {
      llvm::BitVector &rows = rowsRead[op.getOperand(0)];
      rows.resize(rowsIn(op.getOperand(0), 0));
      rows.set(*row);
    }
  }
  for (auto &[value, rows] : rowsRead)
    if (rows.all())
      seeds.push_back(value);
  // A stack of blocks of layers has its blocks in dimension 0. The layers of one block, whose
  // gradients are put together first, would be the other dimension of the whole stack.
  for (bool areArguments : {true, false})
    for (Value seed : seeds)
      if (isa<BlockArgument>(seed) == areArguments && !seen.contains(seed))
        grow(seed);
}

void StackedValues::grow(Value seed) {
  SmallVector<Value> found{seed};
  seen[seed] = 0;
  bool counts = false;
  for (size_t i = 0; i < found.size(); ++i) {
    Value value = found[i];
    Operation *op = value.getDefiningOp();
    counts |= op ? isStack(op) && seen[value] == 0 : canSplitArgument(main, value, seen[value]);
    visit(value, found);
  }
  if (counts)
    for (Value value : found)
      axes[value] = seen[value];
}

/// Loops over layers go along dimension 0, and state may have its layers in another one. What
/// else is transposed (the three parts of an attention's activations) are no layers.
bool StackedValues::isFollowed(Operation *op) const {
  return !isa<hlo::TransposeOp>(op) ||
         stateShapes.count(typeOf(op->getOperand(0)).getShape().vec()) != 0 ||
         stateShapes.count(typeOf(op->getResult(0)).getShape().vec()) != 0;
}

void StackedValues::visit(Value value, SmallVectorImpl<Value> &next) {
  auto add = [&](Value other, int64_t axis) {
    if (mayHoldLayers(other) && seen.try_emplace(other, axis).second)
      next.push_back(other);
  };
  int64_t axis = seen[value];
  auto connect = [&](Operation *op, const std::optional<RowAxes> &rows) {
    if (!rows || !isFollowed(op))
      return;
    for (auto [operand, axis] : llvm::zip_equal(op->getOperands(), rows->operands))
      if (axis)
        add(operand, *axis);
    for (auto [result, axis] : llvm::zip_equal(op->getResults(), rows->results))
      add(result, axis);
  };
  if (Operation *op = value.getDefiningOp(); op && !(isStack(op) && axis == 0))
    connect(op, rowAxes(cast<OpResult>(value), axis));
  for (OpOperand &use : value.getUses())
    if (Operation *user = use.getOwner();
        user->getBlock() == &main.getBody().front() && !takenRow(user))
      connect(user, rowAxes(use, axis));
  for (Value other : nextSteps.lookup(value))
    add(other, axis);
}

//===----------------------------------------------------------------------===//
// Stacks of layers into their layers
//===----------------------------------------------------------------------===//

static RankedTensorType rowType(RankedTensorType type, int64_t axis) {
  SmallVector<int64_t> shape(type.getShape());
  shape[axis] = 1;
  return type.clone(shape);
}

/// Rows stand in front in arguments and results of their own.
template <typename Dims> static void moveToFront(Dims &dims, int64_t axis) {
  std::rotate(dims.begin(), dims.begin() + axis, dims.begin() + axis + 1);
}

static RankedTensorType pieceType(RankedTensorType type, int64_t axis) {
  SmallVector<int64_t> shape(rowType(type, axis).getShape());
  moveToFront(shape, axis);
  return type.clone(shape);
}

/// Whether an op would move nothing of one row but dimensions of size 1.
static bool keepsOrder(Operation *op, int64_t axis) {
  auto transpose = dyn_cast<hlo::TransposeOp>(op);
  if (!transpose || op->hasAttr(attr::pin))
    return false;
  RankedTensorType type = rowType(typeOf(transpose.getOperand()), axis);
  SmallVector<int64_t> moved;
  for (int64_t dim : transpose.getPermutation())
    if (type.getDimSize(dim) != 1)
      moved.push_back(dim);
  return llvm::is_sorted(moved);
}

/// Whether an op does the same where the rows are in front.
static bool isFreeOfOrder(Operation *op, const RowAxes &axes) {
  StringRef name = op->getName().getStringRef();
  if (op->hasAttr(attr::pin) || op->getNumResults() != 1)
    return false;
  if (auto broadcast = dyn_cast<hlo::BroadcastInDimOp>(op))
    return broadcast.getBroadcastDimensions().empty();
  bool isElementwise = analysis::isElementwiseName(name) || name.starts_with("chlo.");
  return isa<hlo::ConstantOp>(op) ||
         (isElementwise &&
          llvm::all_of(llvm::zip_equal(op->getOperands(), axes.operands), [](auto pair) {
            auto [operand, axis] = pair;
            return axis || typeOf(operand).getRank() == 0;
          }));
}

/// Phase and equation of an op, for what is made in its place.
static DictionaryAttr attributesOf(Operation *op) {
  NamedAttrList attributes;
  for (StringRef name : {StringRef(attr::phase), StringRef(attr::eqn)})
    if (Attribute value = op->getAttr(name))
      attributes.set(name, value);
  if (attributes.empty()) // The terminator.
    attributes.set(attr::phase, StringAttr::get(op->getContext(), "update"));
  return attributes.getDictionary(op->getContext());
}

/// The op that a reduction over the rows puts two values together with, if the reduction may
/// be done in parts.
static Operation *findReducer(Operation *op, int64_t axis) {
  auto reduce = dyn_cast<hlo::ReduceOp>(op);
  if (!reduce || op->getNumResults() != 1 || !llvm::is_contained(reduce.getDimensions(), axis))
    return nullptr;
  std::optional<analysis::Reducer> reducer = analysis::reducerOf(op->getRegion(0));
  return reducer && analysis::isNeutral(op->getOperand(1), *reducer)
             ? &op->getRegion(0).front().front()
             : nullptr;
}

namespace {

class Splitter {
public:
  Splitter(func::FuncOp main, const StackedValues &stacked)
      : main(main), body(main.getBody().front()), stacked(stacked), builder(main.getContext()) {}

  void run();

  unsigned numArguments = 0, numOps = 0;

private:
  void splitArguments();
  void visit(Operation *op);
  void splitByRow(Operation *op, const RowAxes &axes);
  bool reduceByRow(Operation *op);
  void useWhole(Operation *op);
  void splitResults(unsigned oldArguments);
  void moveToReaders();
  Value formed(Value row, RankedTensorType type, Operation *reader);
  Value rowOf(Value value, int64_t axis, int64_t row, Operation *reader);
  Value partOf(Value value, int64_t axis, int64_t row, Operation *reader);
  Value wholeOf(Value value, Operation *reader);
  bool isSplitAt(Value value, int64_t axis) const {
    auto it = parts.find(value);
    return it != parts.end() && it->second.axis == axis;
  }

  struct Parts { // Each with its row in front, or where it was: these are reshapes of another.
    int64_t axis = 0;
    SmallVector<Value> rows;
  };
  struct Given { // An argument or a result of the new @main.
    unsigned index = 0;
    int64_t axis = 0, row = -1;
  };
  DictionaryAttr attributesOfPart(DictionaryAttr old, StringRef of, Given part);

  func::FuncOp main;
  Block &body;
  const StackedValues &stacked;
  OpBuilder builder;
  llvm::DenseMap<Value, Parts> parts;
  llvm::DenseMap<std::pair<Value, Attribute>, Value> wholes;
  llvm::DenseMap<std::tuple<Value, Attribute, int64_t>, SmallVector<Value>> slices;
  llvm::DenseMap<std::tuple<Value, Type, Attribute>, Value> forms;
  SmallVector<Operation *> replaced, made;
  SmallVector<unsigned> splitArgs;
};

} // namespace

void Splitter::run() {
  unsigned oldArguments = main.getNumArguments();
  splitArguments();
  for (Operation &op : llvm::make_early_inc_range(body.without_terminator()))
    visit(&op);
  moveToReaders();
  splitResults(oldArguments);
  for (Operation *op : llvm::reverse(made))
    if (isa<hlo::ReshapeOp>(op) && op->use_empty())
      op->erase();
}

/// New arguments stand behind the old ones until these are gone.
void Splitter::splitArguments() {
  for (unsigned index = 0, e = main.getNumArguments(); index < e; ++index) {
    BlockArgument argument = body.getArgument(index);
    std::optional<int64_t> axis = stacked.axisOf(argument);
    if (!axis || !canSplitArgument(main, argument, *axis))
      continue;
    splitArgs.push_back(index);
    ++numArguments;
    Parts &made = parts[argument];
    made.axis = *axis;
    for (int64_t row = 0, rows = rowsIn(argument, *axis); row < rows; ++row)
      made.rows.push_back(body.addArgument(pieceType(typeOf(argument), *axis), argument.getLoc()));
  }
}

void Splitter::visit(Operation *op) {
  builder.setInsertionPoint(op);
  if (isStack(op) && stacked.axisOf(op->getResult(0)) == 0) {
    auto isSplit = [&](Value value) { return parts.contains(value); };
    auto rows = llvm::map_to_vector(op->getOperands(), [&](Value value) {
      return isSplit(value) ? wholeOf(value, op) : value;
    });
    parts[op->getResult(0)] = {0, std::move(rows)};
    replaced.push_back(op);
    return;
  }
  if (std::optional<int64_t> row = takenRow(op); row && isSplitAt(op->getOperand(0), 0)) {
    op->getResult(0).replaceAllUsesWith(partOf(op->getOperand(0), 0, *row, op));
    replaced.push_back(op);
    return;
  }
  if (op->getNumResults() > 0)
    if (std::optional<int64_t> axis = stacked.axisOf(op->getResult(0)))
      if (std::optional<RowAxes> axes = rowAxes(op->getResult(0), *axis))
        return splitByRow(op, *axes);
  if (!reduceByRow(op))
    useWhole(op);
}

/// A row in another form.
Value Splitter::formed(Value row, RankedTensorType type, Operation *reader) {
  if (auto reshape = row.getDefiningOp<hlo::ReshapeOp>();
      reshape && reshape.getOperand().getType() == type)
    return reshape.getOperand();
  if (row.getType() == type)
    return row;
  Value &found = forms[{row, type, attributesOf(reader)}];
  if (!found) {
    auto reshape = hlo::ReshapeOp::create(builder, reader->getLoc(), type, row);
    reshape->setDiscardableAttrs(attributesOf(reader));
    made.push_back(reshape);
    found = reshape;
  }
  return found;
}

/// A row of a dimension, in either form.
Value Splitter::rowOf(Value value, int64_t axis, int64_t row, Operation *reader) {
  if (auto it = parts.find(value); it != parts.end() && it->second.axis == axis)
    return it->second.rows[row];
  SmallVector<Value> &rows = slices[{value, attributesOf(reader), axis}];
  if (rows.empty()) {
    Value whole = parts.contains(value) ? wholeOf(value, reader) : value;
    for (int64_t i = 0, e = rowsIn(value, axis); i < e; ++i)
      rows.push_back(rowsOf(builder, whole, axis, i, 1, attributesOf(reader), reader->getLoc()));
  }
  return rows[row];
}

/// A row of a dimension, where it was.
Value Splitter::partOf(Value value, int64_t axis, int64_t row, Operation *reader) {
  return formed(rowOf(value, axis, row, reader), rowType(typeOf(value), axis), reader);
}

void Splitter::splitByRow(Operation *op, const RowAxes &axes) {
  int64_t rows = rowsIn(op->getResult(0), axes.results[0]);
  for (auto [result, axis] : llvm::zip_equal(op->getResults(), axes.results)) {
    parts[result].axis = axis;
    parts[result].rows.reserve(rows);
  }
  bool haveRows = false;
  for (auto [index, axis] : llvm::enumerate(axes.operands)) {
    haveRows |= axis.has_value();
    if (!axis && parts.contains(op->getOperand(index)))
      op->setOperand(index, wholeOf(op->getOperand(index), op));
  }
  bool isInFront = isFreeOfOrder(op, axes);
  for (int64_t row = 0; row < rows; ++row) {
    if (haveRows && keepsOrder(op, *axes.operands[0])) {
      Value part = rowOf(op->getOperand(0), *axes.operands[0], row, op);
      parts[op->getResult(0)].rows.push_back(
          formed(part, rowType(typeOf(op->getResult(0)), axes.results[0]), op));
      continue;
    }
    if (row > 0 && !haveRows && isSplatLike(op)) { // One for all; layers repeat it where they are.
      for (Value result : op->getResults())
        parts[result].rows.push_back(parts[result].rows[0]);
      continue;
    }
    SmallVector<Value> operands(op->getOperands()); // Their slices stand before the copy.
    for (auto [operand, axis] : llvm::zip_equal(operands, axes.operands))
      if (axis)
        operand = isInFront ? formed(rowOf(operand, *axis, row, op),
                                     pieceType(typeOf(operand), *axis), op)
                            : partOf(operand, *axis, row, op);
    Operation *copy = builder.clone(*op);
    copy->setOperands(operands);
    for (auto [result, axis] : llvm::zip_equal(copy->getResults(), axes.results))
      result.setType(isInFront ? pieceType(typeOf(result), axis) : rowType(typeOf(result), axis));
    if (auto pin = copy->getAttrOfType<ShardingAttr>(attr::pin))
      copy->setAttr(attr::pin, pinOfRow(pin, axes.results[0]));
    if (auto slice = dyn_cast<hlo::SliceOp>(copy)) {
      SmallVector<int64_t> limits(slice.getLimitIndices());
      limits[axes.results[0]] = 1;
      slice.setLimitIndices(limits);
    }
    if (auto constant = dyn_cast<hlo::ConstantOp>(copy))
      constant.setValueAttr(cast<ElementsAttr>(
          cast<DenseElementsAttr>(constant.getValue()).resizeSplat(typeOf(constant))));
    for (auto [result, part] : llvm::zip_equal(op->getResults(), copy->getResults()))
      parts[result].rows.push_back(part);
    made.push_back(copy);
  }
  replaced.push_back(op);
  ++numOps;
}

bool Splitter::reduceByRow(Operation *op) {
  auto it = op->getNumOperands() == 2 ? parts.find(op->getOperand(0)) : parts.end();
  Operation *reducer = it != parts.end() ? findReducer(op, it->second.axis) : nullptr;
  if (!reducer)
    return false;
  Value sum, value = op->getOperand(0);
  int64_t axis = it->second.axis;
  SmallVector<int64_t> dims;
  for (int64_t dim : cast<hlo::ReduceOp>(op).getDimensions())
    dims.push_back(dim == axis ? 0 : dim < axis ? dim + 1 : dim);
  llvm::sort(dims);
  for (int64_t row = 0, rows = rowsIn(value, axis); row < rows; ++row) {
    Value part = formed(rowOf(value, axis, row, op), pieceType(typeOf(value), axis), op);
    auto copy = cast<hlo::ReduceOp>(builder.clone(*op));
    copy->setOperand(0, part);
    copy.setDimensions(dims);
    if (!sum) {
      sum = copy->getResult(0);
      continue;
    }
    OperationState state(op->getLoc(), reducer->getName());
    state.addOperands({sum, copy->getResult(0)});
    state.addTypes(sum.getType());
    Operation *add = builder.create(state);
    add->setDiscardableAttrs(attributesOf(op));
    sum = add->getResult(0);
  }
  op->getResult(0).replaceAllUsesWith(sum);
  replaced.push_back(op);
  ++numOps;
  return true;
}

Value Splitter::wholeOf(Value value, Operation *reader) {
  Value &whole = wholes[{value, attributesOf(reader)}];
  if (!whole) {
    int64_t axis = parts.find(value)->second.axis;
    SmallVector<Value> rows;
    for (int64_t row = 0; row < rowsIn(value, axis); ++row)
      rows.push_back(partOf(value, axis, row, reader));
    auto concat =
        hlo::ConcatenateOp::create(builder, reader->getLoc(), value.getType(), rows, axis);
    concat->setDiscardableAttrs(attributesOf(reader));
    whole = concat;
  }
  return whole;
}

void Splitter::useWhole(Operation *op) {
  for (Value value : getUsedValues(op)) {
    if (!parts.contains(value))
      continue;
    Value whole = wholeOf(value, op);
    op->walk([&](Operation *inner) { inner->replaceUsesOfWith(value, whole); });
  }
}

/// Rows of weights that are prepared before the first layer belong to their layer, and so do
/// gradients that are treated after the last one.
void Splitter::moveToReaders() {
  auto eqnOf = [](Operation *op) { return op->getAttrOfType<IntegerAttr>(attr::eqn); };
  auto least = [&](IntegerAttr &found, Operation *op) {
    IntegerAttr eqn = eqnOf(op);
    if (eqn && (!found || eqn.getInt() < found.getInt()))
      found = eqn;
  };
  for (Operation *op : llvm::reverse(made)) {
    IntegerAttr eqn;
    if (isOfPhase(op, "forward"))
      for (Operation *user : getUsers(op->getResult(0)))
        if (isOfPhase(user, "forward"))
          least(eqn, user);
    if (eqn)
      op->setAttr(attr::eqn, eqn);
  }
  for (Operation *op : made) {
    IntegerAttr eqn;
    if (isOfPhase(op, "backward"))
      for (Value value : getUsedValues(op))
        if (Operation *source = value.getDefiningOp(); source && isOfPhase(source, "backward"))
          least(eqn, source);
    if (eqn)
      op->setAttr(attr::eqn, eqn);
  }
}

DictionaryAttr Splitter::attributesOfPart(DictionaryAttr old, StringRef of, Given part) {
  NamedAttrList attributes(old);
  if (auto name = old.getAs<StringAttr>(attr::name))
    attributes.set(attr::name,
                   builder.getStringAttr(name.getValue() + "[" + Twine(part.row) + "]"));
  for (StringRef name : {StringRef(attr::pin), StringRef(attr::sharding)})
    if (auto pin = old.getAs<ShardingAttr>(name)) {
      ShardingSpec spec = pinOfRow(pin, part.axis).getSpec();
      if (!spec.dims.empty())
        moveToFront(spec.dims, part.axis);
      attributes.set(name, ShardingAttr::get(builder.getContext(), spec));
    }
  attributes.set(attr::piece,
                 builder.getDictionaryAttr(
                     {builder.getNamedAttr(of, builder.getI64IntegerAttr(part.index)),
                      builder.getNamedAttr("axis", builder.getI64IntegerAttr(part.axis)),
                      builder.getNamedAttr("offset", builder.getI64IntegerAttr(part.row)),
                      builder.getNamedAttr("size", builder.getI64IntegerAttr(1))}));
  return attributes.getDictionary(builder.getContext());
}

void Splitter::splitResults(unsigned oldArguments) {
  Operation *end = body.getTerminator();
  builder.setInsertionPoint(end);
  SmallVector<Value> returned;
  SmallVector<DictionaryAttr> resultAttrs, argAttrs;
  SmallVector<unsigned> firstOfResult;
  llvm::SmallDenseMap<int64_t, int64_t> splitCarriers; // Only what a split argument is next.
  for (unsigned arg : splitArgs)
    if (auto carried = main.getArgAttrOfType<IntegerAttr>(arg, attr::carriedBy))
      splitCarriers[carried.getInt()] = parts[body.getArgument(arg)].axis;
  for (auto [index, value] : llvm::enumerate(end->getOperands())) {
    firstOfResult.push_back(returned.size());
    DictionaryAttr attributes = main.getResultAttrDict(index);
    attributes = attributes ? attributes : builder.getDictionaryAttr({});
    Operation *source = value.getDefiningOp();
    if (auto it = splitCarriers.find(index); it != splitCarriers.end()) {
      int64_t axis = it->second;
      Operation *reader = source ? source : end;
      for (int64_t row = 0, rows = rowsIn(value, axis); row < rows; ++row) {
        Value part = rowOf(value, axis, row, reader);
        returned.push_back(formed(part, pieceType(typeOf(value), axis), reader));
        resultAttrs.push_back(attributesOfPart(attributes, "result", {unsigned(index), axis, row}));
      }
      continue;
    }
    returned.push_back(parts.contains(value) ? wholeOf(value, source ? source : end) : value);
    resultAttrs.push_back(attributes);
  }
  end->setOperands(returned);

  // The arguments in their order, parts in the place of their stack.
  SmallVector<Value> order;
  for (unsigned index = 0; index < oldArguments; ++index) {
    BlockArgument argument = body.getArgument(index);
    DictionaryAttr attributes = main.getArgAttrDict(index);
    attributes = attributes ? attributes : builder.getDictionaryAttr({});
    auto carried = attributes.getAs<IntegerAttr>(attr::carriedBy);
    auto withCarrier = [&](DictionaryAttr old, int64_t row) {
      if (!carried)
        return old;
      NamedAttrList list(old);
      list.set(attr::carriedBy, builder.getI64IntegerAttr(firstOfResult[carried.getInt()] + row));
      return list.getDictionary(builder.getContext());
    };
    auto it = parts.find(argument);
    if (it == parts.end()) {
      order.push_back(argument);
      argAttrs.push_back(withCarrier(attributes, 0));
      continue;
    }
    for (auto [row, part] : llvm::enumerate(it->second.rows)) {
      order.push_back(part);
      Given given{index, it->second.axis, int64_t(row)};
      argAttrs.push_back(withCarrier(attributesOfPart(attributes, "argument", given), row));
    }
  }
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
  unsigned known = body.getNumArguments();
  for (Value value : order)
    value.replaceAllUsesWith(body.addArgument(value.getType(), value.getLoc()));
  body.eraseArguments(0, known);
  main.setFunctionType(builder.getFunctionType(body.getArgumentTypes(), end->getOperandTypes()));
  main.setAllArgAttrs(argAttrs);
  main.setAllResultAttrs(resultAttrs);
}

namespace {

struct AlpaSplitStackedPass : importer::impl::AlpaSplitStackedBase<AlpaSplitStackedPass> {
  using AlpaSplitStackedBase::AlpaSplitStackedBase;

  void runOnOperation() override {
    auto main = getOperation().lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration()) {
      emitError(getOperation().getLoc(), "the module has no function @main");
      return signalPassFailure();
    }
    StackedValues stacked(main);
    if (stacked.empty())
      return;
    Splitter splitter(main, stacked);
    splitter.run();
    numArguments += splitter.numArguments;
    numOps += splitter.numOps;
  }
};

} // namespace
