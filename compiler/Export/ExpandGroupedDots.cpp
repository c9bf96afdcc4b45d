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
using analysis::splatOf;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }
static ArrayRef<int64_t> shapeOf(Value value) { return typeOf(value).getShape(); }

namespace {

/// The products of a block. What is sorted once is sorted for all of them.
class Expander {
public:
  explicit Expander(Block &block) : block(block), builder(block.getParentOp()->getContext()) {}

  void run();
  unsigned numExpanded = 0;

private:
  /// Rows by their group; rows of no group come last, in place or not.
  struct Order {
    Value order, inverse, sizes, isInside; // No order where rows are in it.
    Value first; // Where they are, the first row of the groups, unless it is that of all.
    llvm::DenseMap<Value, Value> sorted; // By value in the old order.
  };

  void splitBatches(GroupedSumOp op);
  void expand(Operation *op);
  Value dense(Operation *op, Value groups, int64_t count);
  Value sorted(Operation *op, Order &order, int64_t count);
  Order makeOrder(Value groups, int64_t count, std::optional<int64_t> ordered);
  Value sum(Value value);
  Value turned(Value rows, Value first);
  Value sortedRows(Value rows, Order &order);
  bool followsFromSorted(Value rows, const Order &order, unsigned depth = 0);
  Value rowsAt(Value rows, Value indices);
  Value isOf(Value groups, int64_t count, int64_t dim);

  Value make(StringRef name, ValueRange operands, Type type,
             ArrayRef<NamedAttribute> attributes = {}) {
    OperationState state(*loc, name, operands, type, attributes);
    return builder.create(state)->getResult(0);
  }
  Value spread(Value value, ArrayRef<int64_t> shape, ArrayRef<int64_t> dims) {
    return make("stablehlo.broadcast_in_dim", value, typeOf(value).clone(shape),
                builder.getNamedAttr("broadcast_dimensions", builder.getDenseI64ArrayAttr(dims)));
  }
  Value iota(RankedTensorType type, int64_t dim) {
    return make("stablehlo.iota", {}, type,
                builder.getNamedAttr("iota_dimension", builder.getI64IntegerAttr(dim)));
  }
  Value splat(int64_t number, RankedTensorType type) {
    auto scalar = RankedTensorType::get({}, type.getElementType());
    Value value = make("stablehlo.constant", {}, scalar,
                       builder.getNamedAttr("value", splatOf(number, scalar)));
    return type.getRank() == 0 ? value : spread(value, type.getShape(), {});
  }
  Value compare(hlo::ComparisonDirection direction, Value lhs, Value rhs) {
    return make("stablehlo.compare", {lhs, rhs}, typeOf(lhs).clone(builder.getI1Type()),
                builder.getNamedAttr("comparison_direction", hlo::ComparisonDirectionAttr::get(
                                                                 builder.getContext(), direction)));
  }
  Value select(Value predicate, Value yes, Value no) {
    return make("stablehlo.select", {predicate, yes, no}, yes.getType());
  }
  SmallVector<Value> sort(ValueRange values);

  Block &block;
  OpBuilder builder;
  std::optional<Location> loc;
  std::map<std::pair<void *, int64_t>, Order> orders; // By groups, and how many there are.
};

} // namespace

/// By the first of two lists of int32.
SmallVector<Value> Expander::sort(ValueRange values) {
  OperationState state(*loc, "stablehlo.sort", values, ValueRange(values).getTypes());
  state.addAttribute("dimension", builder.getI64IntegerAttr(0));
  state.addAttribute("is_stable", builder.getBoolAttr(true));
  Block *body = new Block();
  state.addRegion()->push_back(body);
  auto scalar = RankedTensorType::get({}, builder.getI32Type());
  for (size_t i = 0; i < 2 * values.size(); ++i)
    body->addArgument(scalar, *loc);
  {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToEnd(body);
    Value isLess =
        compare(hlo::ComparisonDirection::LT, body->getArgument(0), body->getArgument(1));
    OperationState end(*loc, "stablehlo.return");
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
  Value vectors = make("stablehlo.reshape", indices, typeOf(indices).clone({count, 1}));
  auto numbers = hlo::GatherDimensionNumbersAttr::get(builder.getContext(), offsets, {0}, {}, {},
                                                      {0}, /*indexVectorDim=*/1);
  return make("stablehlo.gather", {rows, vectors}, typeOf(rows).clone(shape),
              {builder.getNamedAttr("dimension_numbers", numbers),
               builder.getNamedAttr("slice_sizes", builder.getDenseI64ArrayAttr(sizes))});
}

/// Whether row i is of group g, for all groups along `dim` of two dimensions.
Value Expander::isOf(Value groups, int64_t count, int64_t dim) {
  SmallVector<int64_t> shape(2, shapeOf(groups)[0]);
  shape[dim] = count;
  auto type = typeOf(groups).clone(shape);
  return compare(hlo::ComparisonDirection::EQ, spread(groups, shape, {1 - dim}), iota(type, dim));
}

/// Over the first dimension.
Value Expander::sum(Value value) {
  return analysis::PlainOps(builder, *loc).reduce(value, {0}, analysis::Reducer::Sum);
}

/// Rows from number `first` on, and then those before it.
Value Expander::turned(Value rows, Value first) {
  RankedTensorType type = typeOf(rows);
  SmallVector<int64_t> twice(type.getShape());
  twice[0] *= 2;
  Value both = make("stablehlo.concatenate", {rows, rows}, type.clone(twice),
                    builder.getNamedAttr("dimension", builder.getI64IntegerAttr(0)));
  SmallVector<Value> operands{both, first};
  for (int64_t dim = 1; dim < type.getRank(); ++dim)
    operands.push_back(splat(0, typeOf(first)));
  return make("stablehlo.dynamic_slice", operands, type,
              builder.getNamedAttr("slice_sizes", builder.getDenseI64ArrayAttr(type.getShape())));
}

/// With `ordered` groups in all, rows are in order: those of groups that others have come before
/// or behind.
Expander::Order Expander::makeOrder(Value groups, int64_t count, std::optional<int64_t> ordered) {
  Order order;
  RankedTensorType type = typeOf(groups);
  auto i32 = type.clone(builder.getI32Type());
  order.isInside = make("stablehlo.and",
                        {compare(hlo::ComparisonDirection::GE, groups, splat(0, type)),
                         compare(hlo::ComparisonDirection::LT, groups, splat(count, type))},
                        type.clone(builder.getI1Type()));
  auto number = [&](Value truth) {
    return make("stablehlo.convert", truth, typeOf(truth).clone(builder.getI32Type()));
  };
  if (ordered && *ordered != count) {
    order.first = sum(number(compare(hlo::ComparisonDirection::LT, groups, splat(0, type))));
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

Value Expander::sorted(Operation *op, Order &order, int64_t count) {
  auto ragged = [&](Value lhs, Value rhs, ArrayRef<int64_t> left, ArrayRef<int64_t> right,
                    ArrayRef<int64_t> group) {
    auto numbers = chlo::RaggedDotDimensionNumbersAttr::get(builder.getContext(), {}, {}, left,
                                                            right, {0}, group);
    SmallVector<NamedAttribute> attributes{
        builder.getNamedAttr("ragged_dot_dimension_numbers", numbers)};
    if (Attribute precision = op->getAttr("precision_config"))
      attributes.push_back(builder.getNamedAttr("precision_config", precision));
    return make("chlo.ragged_dot", {lhs, rhs, order.sizes}, op->getResult(0).getType(), attributes);
  };
  Value lhs = sortedRows(op->getOperand(0), order);
  if (isa<GroupedSumOp>(op))
    return ragged(lhs, sortedRows(op->getOperand(1), order), {0}, {0}, {});
  auto contracting = static_cast<int64_t>(cast<GroupedDotOp>(op).getContracting());
  Value result = ragged(lhs, op->getOperand(1), {1}, {contracting}, {0});
  // Kernels leave rows behind the last group as they are.
  Value isInside = spread(sortedRows(order.isInside, order), shapeOf(result), {0});
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
  Value isMine = spread(isOf(groups, count, 0), shape, {0, 1});
  Value masked = select(isMine, spread(lhs, shape, {1, 2}), splat(0, type));
  bool isSum = isa<GroupedSumOp>(op);
  auto numbers = isSum ? hlo::DotDimensionNumbersAttr::get(builder.getContext(), {}, {}, {1}, {0})
                       : hlo::DotDimensionNumbersAttr::get(
                             builder.getContext(), {}, {}, {2, 0},
                             {static_cast<int64_t>(cast<GroupedDotOp>(op).getContracting()), 0});
  return make("stablehlo.dot_general", {masked, rhs}, op->getResult(0).getType(),
              builder.getNamedAttr("dot_dimension_numbers", numbers));
}

void Expander::expand(Operation *op) {
  builder.setInsertionPoint(op);
  loc = op->getLoc();
  Value groups = op->getOperand(2);
  int64_t count =
      isa<GroupedSumOp>(op) ? shapeOf(op->getResult(0))[0] : shapeOf(op->getOperand(1))[0];
  bool isEmpty = typeOf(op->getOperand(0)).getNumElements() == 0;
  Value result;
  if (op->hasAttr("dense") || isEmpty) {
    result = dense(op, groups, count);
  } else {
    auto [it, isNew] = orders.try_emplace({groups.getAsOpaquePointer(), count});
    if (isNew) {
      auto ordered = op->getAttrOfType<IntegerAttr>(attr::ordered);
      it->second =
          makeOrder(groups, count, ordered ? std::optional(ordered.getInt()) : std::nullopt);
    }
    result = sorted(op, it->second, count);
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
    for (StringRef name :
         {StringRef("precision_config"), StringRef("dense"), StringRef(attr::ordered)})
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
