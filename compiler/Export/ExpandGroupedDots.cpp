//===- ExpandGroupedDots.cpp - products of groups, as backends know them --===//

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/PlainOps.h"
#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Export/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Chlo/ChloOps.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/SetVector.h"
#include <map>

namespace alpa::exporter {
#define GEN_PASS_DEF_ALPAEXPANDGROUPEDDOTS
#include "compiler/Export/Passes.h.inc"
} // namespace alpa::exporter

using namespace mlir;
using namespace alpa;
namespace hlo = mlir::stablehlo;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }
static ArrayRef<int64_t> shapeOf(Value value) { return typeOf(value).getShape(); }

namespace {

/// The products of a block. What is sorted once is sorted for all of them.
class Expander : analysis::PlainOps {
public:
  explicit Expander(Block &block)
      : PlainOps(OpBuilder(block.getParentOp()->getContext()), block.getParentOp()->getLoc()),
        block(block) {}

  void run();
  unsigned numExpanded = 0;

private:
  using Direction = hlo::ComparisonDirection;

  /// What each run of a loop takes: [count] first rows, groups and ends of the groups' rows.
  struct Runs {
    Value rows, groups, ends;
  };
  /// Rows by their group; rows of no group come last, in place or not.
  struct Order {
    Value order, inverse, sizes, isInside; // No order where rows are in it.
    Value first; // Where they are, the first row of the groups, unless it is that of all.
    llvm::DenseMap<Value, Value> sorted; // By value in the old order.
    std::map<int64_t, Runs> runs;        // By rows of a run.
  };
  /// Makes what a run adds, from its number and what all runs share.
  using MakeRun = llvm::function_ref<Value(Value run, ValueRange shared, Value made)>;

  void splitBatches(GroupedSumOp op);
  void expand(Operation *op);
  Value dense(Operation *op, Value groups, int64_t count);
  Value sorted(Operation *op, Order &order, analysis::GroupedLoop loop);
  Value product(GroupedDotOp op, Order &order, analysis::GroupedLoop loop);
  Value sumOfRows(GroupedSumOp op, Order &order, analysis::GroupedLoop loop);
  Order makeOrder(Value groups, int64_t count, std::optional<int64_t> ordered);
  const Runs &runsOf(Order &order, int64_t rows, analysis::GroupedLoop loop);
  Value repeat(int64_t count, ValueRange shared, Value first, MakeRun makeRun);
  Value sum(Value value, int64_t dim = 0) { return reduce(value, {dim}, analysis::Reducer::Sum); }
  Value turned(Value rows, Value first);
  Value sortedRows(Value rows, Order &order);
  bool followsFromSorted(Value rows, const Order &order, unsigned depth = 0);
  Value rowsAt(Value rows, Value indices);
  Value isOf(Value groups, int64_t count, int64_t dim);
  Value partAt(Value value, ValueRange starts, ArrayRef<int64_t> sizes);
  Value numberAt(Value list, Value place);
  Value moreRows(Value value, int64_t count);
  SmallVector<NamedAttribute> attributesOf(Operation *op, ArrayRef<int64_t> lhs,
                                           ArrayRef<int64_t> rhs);

  SmallVector<Value> sort(ValueRange values);

  Block &block;
  std::map<std::pair<void *, int64_t>, Order> orders; // By groups, and how many there are.
};

} // namespace

/// By the first of two lists of int32.
SmallVector<Value> Expander::sort(ValueRange values) {
  OperationState state(loc, "stablehlo.sort", values, ValueRange(values).getTypes());
  state.addAttribute("dimension", builder.getI64IntegerAttr(0));
  state.addAttribute("is_stable", builder.getBoolAttr(true));
  Block *body = new Block();
  state.addRegion()->push_back(body);
  auto scalar = RankedTensorType::get({}, builder.getI32Type());
  for (size_t i = 0; i < 2 * values.size(); ++i)
    body->addArgument(scalar, loc);
  {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToEnd(body);
    Value isLess = compare(Direction::LT, body->getArgument(0), body->getArgument(1));
    OperationState end(loc, "stablehlo.return");
    end.addOperands(isLess);
    builder.create(end);
  }
  return SmallVector<Value>(builder.create(state)->getResults());
}

Value Expander::rowsAt(Value rows, Value indices) {
  int64_t count = shapeOf(indices)[0];
  SmallVector<int64_t> shape(shapeOf(rows)), offsets, sizes(shapeOf(rows));
  shape[0] = count;
  sizes[0] = 1;
  for (int64_t dim = 1; dim < typeOf(rows).getRank(); ++dim)
    offsets.push_back(dim);
  Value vectors = reshape(indices, {count, 1});
  auto numbers = hlo::GatherDimensionNumbersAttr::get(builder.getContext(), offsets, {0}, {}, {},
                                                      {0}, /*indexVectorDim=*/1);
  return make("stablehlo.gather", {rows, vectors}, typeOf(rows).clone(shape),
              {builder.getNamedAttr("dimension_numbers", numbers), dims("slice_sizes", sizes)});
}

/// Whether row i is of group g, for all groups along `dim` of two dimensions.
Value Expander::isOf(Value groups, int64_t count, int64_t dim) {
  SmallVector<int64_t> shape(2, shapeOf(groups)[0]);
  shape[dim] = count;
  auto type = typeOf(groups).clone(shape);
  return compare(Direction::EQ, broadcast(groups, shape, {1 - dim}), iota(type, dim));
}

Value Expander::partAt(Value value, ValueRange starts, ArrayRef<int64_t> sizes) {
  SmallVector<Value> operands{value};
  llvm::append_range(operands, starts);
  while (operands.size() <= sizes.size())
    operands.push_back(splat(0, typeOf(starts[0])));
  return make("stablehlo.dynamic_slice", operands, typeOf(value).clone(sizes),
              dims("slice_sizes", sizes));
}

Value Expander::numberAt(Value list, Value place) { return reshape(partAt(list, place, {1}), {}); }

/// With so many rows of zeros behind.
Value Expander::moreRows(Value value, int64_t count) {
  RankedTensorType type = typeOf(value);
  SmallVector<int64_t> shape(type.getShape()), none(shape.size(), 0), high(none);
  shape[0] += count;
  high[0] = count;
  Value zero = splat(0, RankedTensorType::get({}, type.getElementType()));
  return make("stablehlo.pad", {value, zero}, type.clone(shape),
              {dims("edge_padding_low", none), dims("edge_padding_high", high),
               dims("interior_padding", none)});
}

/// Rows from number `first` on, and then those before it.
Value Expander::turned(Value rows, Value first) {
  RankedTensorType type = typeOf(rows);
  SmallVector<int64_t> twice(type.getShape());
  twice[0] *= 2;
  Value both = make("stablehlo.concatenate", {rows, rows}, type.clone(twice),
                    builder.getNamedAttr("dimension", builder.getI64IntegerAttr(0)));
  return partAt(both, first, type.getShape());
}

/// With `ordered` groups in all, rows are in order: those of groups that others have come before
/// or behind.
Expander::Order Expander::makeOrder(Value groups, int64_t count, std::optional<int64_t> ordered) {
  Order order;
  RankedTensorType type = typeOf(groups);
  auto i32 = type.clone(builder.getI32Type());
  order.isInside = make("stablehlo.and",
                        {compare(Direction::GE, groups, splat(0, type)),
                         compare(Direction::LT, groups, splat(count, type))},
                        type.clone(builder.getI1Type()));
  auto number = [&](Value truth) {
    return make("stablehlo.convert", truth, typeOf(truth).clone(builder.getI32Type()));
  };
  if (ordered && *ordered != count) {
    order.first = sum(number(compare(Direction::LT, groups, splat(0, type))));
  } else if (!ordered) {
    Value keys = select(order.isInside, groups, splat(count, type));
    if (keys.getType() != i32)
      keys = make("stablehlo.convert", keys, i32);
    order.order = sort({keys, iota(i32, 0)})[1];
    order.inverse = sort({order.order, iota(i32, 0)})[1];
  }
  order.sizes = sum(number(isOf(groups, count, 1)));
  return order;
}

/// Whether all elements are equal.
static bool isConstant(Value value) {
  Operation *op = value.getDefiningOp();
  while (isa_and_nonnull<hlo::BroadcastInDimOp, hlo::ReshapeOp>(op) &&
         typeOf(op->getResult(0)).getNumElements() > 0) {
    if (typeOf(op->getOperand(0)).getNumElements() == 1)
      return true;
    op = op->getOperand(0).getDefiningOp();
  }
  DenseElementsAttr dense;
  return op && matchPattern(op, m_Constant(&dense)) && dense.isSplat();
}

/// Whether elementwise ops of this block make the value of rows that are sorted already.
bool Expander::followsFromSorted(Value rows, const Order &order, unsigned depth) {
  Operation *op = rows.getDefiningOp();
  if (!op || op->getBlock() != &block || depth > 12 || op->getNumResults() != 1 ||
      op->getNumRegions() > 0 || !analysis::isElementwiseName(op->getName().getStringRef()))
    return false;
  bool anySorted = false;
  for (Value operand : op->getOperands()) {
    if (isConstant(operand))
      continue;
    if (!order.sorted.contains(operand) && !followsFromSorted(operand, order, depth + 1))
      return false;
    anySorted = true;
  }
  return anySorted;
}

/// Rows in their groups' order: what comes from sorted rows is made of these, rather than
/// sorted again.
Value Expander::sortedRows(Value rows, Order &order) {
  if (Value known = order.sorted.lookup(rows))
    return known;
  if (!followsFromSorted(rows, order))
    return order.sorted[rows] = order.order   ? rowsAt(rows, order.order)
                                : order.first ? turned(rows, order.first)
                                              : rows;
  Operation *op = rows.getDefiningOp();
  SmallVector<Value> operands;
  for (Value operand : op->getOperands())
    operands.push_back(isConstant(operand) ? operand : sortedRows(operand, order));
  Operation *made = builder.clone(*op);
  made->setOperands(operands);
  return order.sorted[rows] = made->getResult(0);
}

/// The runs of groups are one behind another. Those that are left over take rows behind the last.
const Expander::Runs &Expander::runsOf(Order &order, int64_t rows, analysis::GroupedLoop loop) {
  auto [it, isNew] = order.runs.try_emplace(loop.rows);
  if (!isNew)
    return it->second;
  auto binary = [&](StringRef name, Value lhs, Value rhs) {
    return make(name, {lhs, rhs}, lhs.getType());
  };
  RankedTensorType type = typeOf(order.sizes); // [groups]
  int64_t groups = type.getDimSize(0);
  auto square = type.clone({groups, groups}), table = type.clone({groups, loop.count});
  auto list = type.clone({loop.count});
  Value isBefore = compare(Direction::LE, iota(square, 0), iota(square, 1));
  auto endsOf = [&](Value lengths) { // Sums of those up to each.
    return sum(select(isBefore, broadcast(lengths, square.getShape(), {0}), splat(0, square)));
  };
  Value rounded = binary("stablehlo.add", order.sizes, splat(loop.rows - 1, type));
  Value runs = binary("stablehlo.divide", rounded, splat(loop.rows, type));
  Value lastRun = endsOf(runs), lastRow = endsOf(order.sizes);
  Value firstRun = binary("stablehlo.subtract", lastRun, runs);
  Value firstRow = binary("stablehlo.subtract", lastRow, order.sizes);

  Value number = iota(table, 1);
  Value isBehind = compare(Direction::LE, broadcast(lastRun, table.getShape(), {0}), number);
  Value group = sum(convert(isBehind, builder.getI32Type()));
  Value isMine = compare(Direction::EQ, broadcast(group, table.getShape(), {1}), iota(table, 0));
  auto ofMine = [&](Value value) {
    return sum(select(isMine, broadcast(value, table.getShape(), {0}), splat(0, table)));
  };
  Value size = splat(loop.rows, list);
  Value place = binary("stablehlo.subtract", iota(list, 0), ofMine(firstRun));
  Value row = binary("stablehlo.add", ofMine(firstRow), binary("stablehlo.multiply", place, size));
  Value hasGroup = compare(Direction::LT, group, splat(groups, list));
  it->second.rows = select(hasGroup, row, splat(rows, list));
  it->second.groups = binary("stablehlo.minimum", group, splat(groups - 1, list));
  it->second.ends = ofMine(lastRow);
  return it->second;
}

/// A loop that counts to `count`; what runs share goes through it as it is.
Value Expander::repeat(int64_t count, ValueRange shared, Value first, MakeRun makeRun) {
  auto scalar = RankedTensorType::get({}, builder.getI32Type());
  SmallVector<Value> operands{splat(0, scalar), first};
  llvm::append_range(operands, shared);
  OperationState state(loc, "stablehlo.while", operands, ValueRange(operands).getTypes());
  auto region = [&](auto makeResults) {
    Block *body = new Block();
    state.addRegion()->push_back(body);
    for (Value operand : operands)
      body->addArgument(operand.getType(), loc);
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToEnd(body);
    OperationState end(loc, "stablehlo.return");
    end.addOperands(makeResults(body->getArguments()));
    builder.create(end);
  };
  region([&](ValueRange values) {
    return SmallVector<Value>{compare(Direction::LT, values[0], splat(count, scalar))};
  });
  region([&](ValueRange values) {
    SmallVector<Value> results(values);
    results[1] = makeRun(values[0], values.drop_front(2), values[1]);
    results[0] = make("stablehlo.add", {values[0], splat(1, scalar)}, scalar);
    return results;
  });
  return builder.create(state)->getResult(1);
}

/// Of a plain product that is made of a product of groups.
SmallVector<NamedAttribute> Expander::attributesOf(Operation *op, ArrayRef<int64_t> lhs,
                                                   ArrayRef<int64_t> rhs) {
  auto numbers = hlo::DotDimensionNumbersAttr::get(builder.getContext(), {}, {}, lhs, rhs);
  SmallVector<NamedAttribute> attributes{builder.getNamedAttr("dot_dimension_numbers", numbers)};
  if (auto precisions = op->getAttrOfType<ArrayAttr>("precision_config")) {
    auto known = llvm::map_to_vector(precisions, [](Attribute precision) -> Attribute {
      auto ofChlo = dyn_cast<chlo::PrecisionAttr>(precision);
      return ofChlo ? hlo::PrecisionAttr::get(precision.getContext(), ofChlo.getValue())
                    : precision;
    });
    attributes.push_back(builder.getNamedAttr("precision_config", builder.getArrayAttr(known)));
  }
  return attributes;
}

static Value updated(analysis::PlainOps &ops, Value whole, Value part, ValueRange starts) {
  SmallVector<Value> operands{whole, part};
  llvm::append_range(operands, starts);
  return ops.make("stablehlo.dynamic_update_slice", operands, whole.getType());
}

/// Each run multiplies rows from the first of its own on. Rows of the groups behind that the last
/// run of a group takes are written once more, by the runs of their own groups.
Value Expander::product(GroupedDotOp op, Order &order, analysis::GroupedLoop loop) {
  Value rows = moreRows(sortedRows(op.getRows(), order), loop.rows), weights = op->getOperand(1);
  const Runs &runs = runsOf(order, shapeOf(op.getRows())[0], loop);
  ArrayRef<int64_t> ofWeights = shapeOf(weights);
  RankedTensorType result = typeOf(op.getResult());
  SmallVector<NamedAttribute> attributes =
      attributesOf(op, {1}, {static_cast<int64_t>(op.getContracting()) - 1});
  int64_t columns = result.getDimSize(1);
  Value first = splat(0, result.clone({shapeOf(rows)[0], columns}));
  Value made = repeat(loop.count, {runs.rows, runs.groups, rows, weights}, first,
                      [&](Value run, ValueRange shared, Value made) {
                        Value row = numberAt(shared[0], run), group = numberAt(shared[1], run);
                        Value lhs = partAt(shared[2], row, {loop.rows, shapeOf(rows)[1]});
                        Value rhs = partAt(shared[3], group, {1, ofWeights[1], ofWeights[2]});
                        rhs = reshape(rhs, ofWeights.drop_front());
                        Value part = make("stablehlo.dot_general", {lhs, rhs},
                                          result.clone({loop.rows, columns}), attributes);
                        return updated(*this, made, part, {row, splat(0, typeOf(row))});
                      });
  return make("stablehlo.slice", made, result,
              {dims("start_indices", {0, 0}), dims("limit_indices", result.getShape()),
               dims("strides", {1, 1})});
}

/// Each run adds to the sum of its group, in float32 at least.
Value Expander::sumOfRows(GroupedSumOp op, Order &order, analysis::GroupedLoop loop) {
  Value lhs = moreRows(sortedRows(op.getLhs(), order), loop.rows);
  Value rhs = moreRows(sortedRows(op.getRhs(), order), loop.rows);
  const Runs &runs = runsOf(order, shapeOf(op.getLhs())[0], loop);
  RankedTensorType result = typeOf(op.getResult());
  Type element = result.getElementType();
  bool isNarrow = isa<FloatType>(element) && element.getIntOrFloatBitWidth() < 32;
  RankedTensorType wide = isNarrow ? result.clone(builder.getF32Type()) : result;
  SmallVector<NamedAttribute> attributes = attributesOf(op, {0}, {0});
  int64_t left = result.getDimSize(1), right = result.getDimSize(2);
  Value made = repeat(
      loop.count, {runs.rows, runs.groups, runs.ends, lhs, rhs}, splat(0, wide),
      [&](Value run, ValueRange shared, Value made) {
        Value row = numberAt(shared[0], run), group = numberAt(shared[1], run);
        auto i32 = RankedTensorType::get({loop.rows}, builder.getI32Type());
        Value place = make("stablehlo.add", {iota(i32, 0), broadcast(row, {loop.rows}, {})}, i32);
        Value end = broadcast(numberAt(shared[2], run), {loop.rows}, {});
        auto mine = [&](Value rows, int64_t columns) {
          Value part = partAt(rows, row, {loop.rows, columns});
          Value isMine = compare(Direction::LT, place, end);
          return select(broadcast(isMine, shapeOf(part), {0}), part, splat(0, typeOf(part)));
        };
        Value part = make("stablehlo.dot_general", {mine(shared[3], left), mine(shared[4], right)},
                          wide.clone({left, right}), attributes);
        Value before = partAt(made, group, {1, left, right});
        part = reshape(part, shapeOf(before));
        part = make("stablehlo.add", {before, part}, before.getType());
        Value zero = splat(0, typeOf(group));
        return updated(*this, made, part, {group, zero, zero});
      });
  return convert(made, element);
}

Value Expander::sorted(Operation *op, Order &order, analysis::GroupedLoop loop) {
  if (auto summed = dyn_cast<GroupedSumOp>(op))
    return sumOfRows(summed, order, loop);
  Value result = product(cast<GroupedDotOp>(op), order, loop);
  Value isInside = broadcast(sortedRows(order.isInside, order), shapeOf(result), {0});
  result = select(isInside, result, splat(0, typeOf(result)));
  Value rows = result;
  if (order.order) {
    rows = rowsAt(result, order.inverse);
  } else if (order.first) {
    RankedTensorType type = typeOf(order.first);
    Value all = splat(shapeOf(result)[0], type);
    rows = turned(result, make("stablehlo.subtract", {all, order.first}, type));
  }
  order.sorted[rows] = result;
  return rows;
}

/// A product with the weights of all groups, where all rows but those of the group are zero.
Value Expander::dense(Operation *op, Value groups, int64_t count) {
  Value lhs = op->getOperand(0), rhs = op->getOperand(1);
  int64_t rows = shapeOf(lhs)[0], columns = shapeOf(lhs)[1];
  SmallVector<int64_t> shape{count, rows, columns};
  RankedTensorType type = typeOf(lhs).clone(shape);
  Value isMine = broadcast(isOf(groups, count, 0), shape, {0, 1});
  Value masked = select(isMine, broadcast(lhs, shape, {1, 2}), splat(0, type));
  auto dot = dyn_cast<GroupedDotOp>(op);
  SmallVector<NamedAttribute> attributes =
      dot ? attributesOf(op, {2, 0}, {static_cast<int64_t>(dot.getContracting()), 0})
          : attributesOf(op, {1}, {0});
  return make("stablehlo.dot_general", {masked, rhs}, op->getResult(0).getType(), attributes);
}

void Expander::expand(Operation *op) {
  builder.setInsertionPoint(op);
  loc = op->getLoc();
  Value groups = op->getOperand(2);
  bool isSum = isa<GroupedSumOp>(op);
  int64_t count = shapeOf(isSum ? op->getResult(0) : op->getOperand(1))[0];
  analysis::GroupedLoop loop =
      analysis::getGroupedLoop(shapeOf(op->getOperand(0))[0], count, isSum);
  Value result;
  if (loop.count == 0) {
    result = dense(op, groups, count);
  } else {
    auto [it, isNew] = orders.try_emplace({groups.getAsOpaquePointer(), count});
    if (isNew) {
      auto ordered = op->getAttrOfType<IntegerAttr>(attr::ordered);
      it->second =
          makeOrder(groups, count, ordered ? std::optional(ordered.getInt()) : std::nullopt);
    }
    result = sorted(op, it->second, loop);
  }
  for (NamedAttribute attribute : op->getDiscardableAttrs())
    if (attribute.getName() != attr::ordered)
      result.getDefiningOp()->setAttr(attribute.getName(), attribute.getValue());
  op->getResult(0).replaceAllUsesWith(result);
  op->erase();
  ++numExpanded;
}

/// A sum for each batch. Devices have one, most often.
void Expander::splitBatches(GroupedSumOp op) {
  builder.setInsertionPoint(op);
  loc = op->getLoc();
  // All dimensions of batches as one.
  auto listed = [&](Value value, int64_t inner) {
    SmallVector<int64_t> shape{1};
    for (int64_t size : shapeOf(value).drop_back(inner))
      shape[0] *= size;
    llvm::append_range(shape, shapeOf(value).take_back(inner));
    return shapeOf(value) == ArrayRef(shape)
               ? value
               : make("stablehlo.reshape", value, typeOf(value).clone(shape));
  };
  Value lhs = listed(op.getLhs(), 2), rhs = listed(op.getRhs(), 2),
        groups = listed(op.getGroups(), 1);
  auto wanted = typeOf(op.getResult());
  SmallVector<int64_t> all{shapeOf(lhs)[0]};
  llvm::append_range(all, wanted.getShape().take_back(3));
  RankedTensorType type = wanted.clone(all);
  auto batchOf = [&](Value value, int64_t batch) {
    SmallVector<int64_t> shape(shapeOf(value)), starts(shape.size(), 0), limits(shape);
    starts[0] = batch;
    limits[0] = batch + 1;
    shape[0] = 1;
    Value part =
        make("stablehlo.slice", value, typeOf(value).clone(shape),
             {builder.getNamedAttr("start_indices", builder.getDenseI64ArrayAttr(starts)),
              builder.getNamedAttr("limit_indices", builder.getDenseI64ArrayAttr(limits)),
              builder.getNamedAttr(
                  "strides", builder.getDenseI64ArrayAttr(SmallVector<int64_t>(shape.size(), 1)))});
    return make("stablehlo.reshape", part, typeOf(part).clone(ArrayRef(shape).drop_front()));
  };
  SmallVector<Value> sums;
  SmallVector<int64_t> one(type.getShape());
  one[0] = 1;
  for (int64_t batch = 0; batch < type.getDimSize(0); ++batch) {
    SmallVector<NamedAttribute> attributes;
    for (StringRef name : {StringRef("precision_config"), StringRef(attr::ordered)})
      if (Attribute value = op->getAttr(name))
        attributes.push_back(builder.getNamedAttr(name, value));
    Value sum =
        make("alpa.grouped_sum", {batchOf(lhs, batch), batchOf(rhs, batch), batchOf(groups, batch)},
             type.clone(type.getShape().drop_front()), attributes);
    sums.push_back(make("stablehlo.reshape", sum, type.clone(one)));
  }
  Value result = sums.size() == 1
                     ? sums[0]
                     : make("stablehlo.concatenate", sums, type,
                            builder.getNamedAttr("dimension", builder.getI64IntegerAttr(0)));
  if (wanted != type)
    result = make("stablehlo.reshape", result, wanted);
  for (NamedAttribute attribute : op->getDiscardableAttrs())
    if (attribute.getName() != attr::ordered)
      result.getDefiningOp()->setAttr(attribute.getName(), attribute.getValue());
  op.getResult().replaceAllUsesWith(result);
  op.erase();
}

void Expander::run() {
  for (Operation &op : llvm::make_early_inc_range(block))
    if (auto sum = dyn_cast<GroupedSumOp>(op); sum && typeOf(sum.getLhs()).getRank() > 2)
      splitBatches(sum);
  SmallVector<Operation *> ops;
  for (Operation &op : block)
    if (isa<GroupedDotOp, GroupedSumOp>(op))
      ops.push_back(&op);
  for (Operation *op : ops)
    expand(op);
}

namespace {

class AlpaExpandGroupedDotsPass
    : public exporter::impl::AlpaExpandGroupedDotsBase<AlpaExpandGroupedDotsPass> {
public:
  using AlpaExpandGroupedDotsBase::AlpaExpandGroupedDotsBase;

  void runOnOperation() override {
    llvm::SetVector<Block *> blocks;
    getOperation().walk([&](Operation *op) {
      if (isa<GroupedDotOp, GroupedSumOp>(op))
        blocks.insert(op->getBlock());
    });
    for (Block *block : blocks) {
      Expander expander(*block);
      expander.run();
      numExpanded += expander.numExpanded;
    }
  }
};

} // namespace
