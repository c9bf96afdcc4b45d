//===- StackedValues.cpp - which tensors are split into their layers ------===//

#include "compiler/Import/StackedValues.h"

#include "compiler/Import/Stacked.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace alpa;
namespace hlo = mlir::stablehlo;

static RankedTensorType typeOf(Value value) { return dyn_cast<RankedTensorType>(value.getType()); }

static int64_t rowsIn(Value value) {
  RankedTensorType type = typeOf(value);
  return type && type.getRank() > 0 ? type.getDimSize(0) : 1;
}

/// Ops that say nothing about dimension 0 apart from their types (and a slice's limits).
static bool isSplittableKind(Operation *op) {
  StringRef name = op->getName().getStringRef();
  if (auto constant = dyn_cast<hlo::ConstantOp>(op)) {
    auto value = dyn_cast<DenseElementsAttr>(constant.getValue());
    return value && value.isSplat();
  }
  if (auto iota = dyn_cast<hlo::IotaOp>(op))
    return iota.getIotaDimension() != 0;
  if (name.starts_with("chlo.")) // One number for one number.
    return op->getNumRegions() == 0 && llvm::all_of(op->getOperandTypes(), [&](Type type) {
             return getElementTypeOrSelf(type).isFloat() &&
                    cast<ShapedType>(type).getShape() ==
                        cast<ShapedType>(op->getResult(0).getType()).getShape();
           });
  return isElementwiseName(name) ||
         isa<hlo::BroadcastInDimOp, hlo::ReshapeOp, hlo::TransposeOp, hlo::DotGeneralOp,
             hlo::SliceOp, hlo::PadOp, hlo::ConcatenateOp, hlo::ReverseOp, hlo::ReduceOp,
             hlo::BitcastConvertOp>(op);
}

/// The rule, if all results have one and the same parallel factor as their dimension 0,
/// and no operand has it anywhere else.
static std::optional<ShardingRule> rowRule(Operation *op, unsigned &rows) {
  if (op->getNumResults() == 0 || rowsIn(op->getResult(0)) < 2 || op->hasAttr(attr::pin) ||
      !isSplittableKind(op))
    return std::nullopt;
  std::optional<ShardingRule> rule = getShardingRule(op);
  if (!rule || rule->results[0].empty() || rule->results[0][0].size() != 1)
    return std::nullopt;
  rows = rule->results[0][0][0];
  const Factor &factor = rule->factors[rows];
  if (factor.kind != FactorKind::Parallel || factor.size != rowsIn(op->getResult(0)))
    return std::nullopt;
  auto fits = [&](const TensorFactors &tensor, bool isNeeded) {
    for (auto [dim, factors] : llvm::enumerate(tensor)) {
      bool has = llvm::is_contained(factors, rows);
      if (has && (dim != 0 || factors.size() != 1))
        return false;
      if (dim == 0 && isNeeded && !has)
        return false;
    }
    return !tensor.empty() || !isNeeded;
  };
  for (const TensorFactors &tensor : rule->operands)
    if (!fits(tensor, false))
      return std::nullopt;
  for (const TensorFactors &tensor : rule->results)
    if (!fits(tensor, true))
      return std::nullopt;
  return rule;
}

bool alpa::worksByRow(Operation *op) {
  unsigned rows;
  return rowRule(op, rows).has_value();
}

SmallVector<unsigned> alpa::operandsWithRows(Operation *op) {
  SmallVector<unsigned> found;
  unsigned rows;
  if (std::optional<ShardingRule> rule = rowRule(op, rows))
    for (auto [index, tensor] : llvm::enumerate(rule->operands))
      if (!tensor.empty() && llvm::is_contained(tensor[0], rows))
        found.push_back(index);
  return found;
}

bool alpa::canSplitArgument(func::FuncOp main, Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument || rowsIn(value) < 2)
    return false;
  auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind);
  auto pinned = main.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(), attr::sharding);
  return (!kind || kind.getValue() == "state") &&
         (!pinned || pinned.getSpec().dims.empty() || pinned.getSpec().dims[0].empty());
}

StackedValues::StackedValues(func::FuncOp main) : main(main) {
  Block &body = main.getBody().front();
  for (BlockArgument argument : body.getArguments())
    if (auto carried =
            main.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), attr::carriedBy)) {
      Value next = body.getTerminator()->getOperand(carried.getInt());
      nextSteps[argument].push_back(next);
      nextSteps[next].push_back(argument);
    }
  SmallVector<Value> seeds;
  llvm::MapVector<Value, llvm::BitVector> rowsRead;
  for (Operation &op : body.without_terminator()) {
    if (isStack(&op))
      seeds.push_back(op.getResult(0));
    if (std::optional<int64_t> row = takenRow(&op)) {
      llvm::BitVector &rows = rowsRead[op.getOperand(0)];
      rows.resize(rowsIn(op.getOperand(0)));
      rows.set(*row);
    }
  }
  for (auto &[value, rows] : rowsRead)
    if (rows.all())
      seeds.push_back(value);
  for (Value seed : seeds)
    if (!seen.contains(seed))
      grow(seed);
}

void StackedValues::grow(Value seed) {
  SmallVector<Value> found{seed};
  seen.insert(seed);
  bool counts = false;
  for (size_t i = 0; i < found.size(); ++i) {
    Value value = found[i];
    Operation *op = value.getDefiningOp();
    counts |= op ? isStack(op) : canSplitArgument(main, value);
    visit(value, found);
  }
  if (counts)
    values.insert(found.begin(), found.end());
}

void StackedValues::visit(Value value, SmallVectorImpl<Value> &next) {
  auto add = [&](Value other) {
    if (seen.insert(other).second)
      next.push_back(other);
  };
  auto connect = [&](Operation *op) {
    SmallVector<unsigned> operands = operandsWithRows(op);
    bool isThrough = llvm::is_contained(op->getResults(), value) ||
                     llvm::any_of(operands, [&](unsigned i) { return op->getOperand(i) == value; });
    if (!isThrough)
      return;
    for (unsigned index : operands)
      add(op->getOperand(index));
    for (Value result : op->getResults())
      add(result);
  };
  if (Operation *op = value.getDefiningOp(); op && !isStack(op) && worksByRow(op))
    connect(op);
  for (Operation *user : value.getUsers())
    if (user->getBlock() == &main.getBody().front() && !takenRow(user) && worksByRow(user))
      connect(user);
  for (Value other : nextSteps.lookup(value))
    add(other);
}
