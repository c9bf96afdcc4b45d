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
    Value zeros = stablehlo::ConstantOp::create(ops.builder, ops.loc, analysis::splatOf(0, square));
    Value counted = ops.make("stablehlo.select", {isBefore, spread, zeros}, square);
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
    getOperation().walk(sumLengths);
  }
};

} // namespace
