//===- ScaledDims.cpp - where a step's batch is in its tensors ------------===//

#include "compiler/Stage/ScaledDims.h"

#include "compiler/Analysis/ShardingRule.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/BuiltinTypes.h"

using namespace alpa;
using namespace mlir;
namespace hlo = mlir::stablehlo;

static ArrayRef<int64_t> sizes(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type ? type.getShape() : ArrayRef<int64_t>();
}

static InFlightDiagnostic refuse(Operation *op) {
  return emitError(op->getLoc()) << "alpa-rescale: '" << op->getName() << "' ";
}

FailureOr<ScaledDims> ScaledDims::find(func::FuncOp main) {
  ScaledDims dims;
  if (failed(dims.run(main)))
    return failure();
  return dims;
}

LogicalResult ScaledDims::run(func::FuncOp main) {
  for (BlockArgument argument : main.getArguments()) {
    auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind);
    // The number of a micro-batch is one, however large that is.
    if (!kind || kind.getValue() != "batch" ||
        main.getArgAttr(argument.getArgNumber(), "alpa.per_micro_batch"))
      continue;
    ArrayRef<int64_t> shape = sizes(argument);
    if (shape.empty() || shape[0] < 2)
      return emitError(main.getLoc())
             << "alpa-rescale: batch argument " << argument.getArgNumber() << " has "
             << (shape.empty() ? 0 : shape[0])
             << " examples; sizes of 1 are told from others only in a module with 2 or more";
    if (failed(set(main, argument, 0, {1, shape[0]})))
      return failure();
    extents.insert(shape[0]);
  }
  if (failed(visitPending()))
    return failure();
  SmallVector<hlo::WhileOp> loops;
  main.walk([&](hlo::WhileOp loop) { loops.push_back(loop); });
  for (hlo::WhileOp loop : loops)
    if (failed(visitUnread(loop)) || failed(visitPending()))
      return failure();
  // Examples picked by numbers that do not come from the batch: how many, nothing says.
  hlo::GatherOp picks;
  main.walk([&](hlo::GatherOp gather) {
    for (int64_t dim : gather.getDimensionNumbers().getCollapsedSliceDims())
      if (at(gather.getOperand(), dim) && !isScaled(gather.getStartIndices()))
        picks = gather;
  });
  if (picks)
    return refuse(picks) << "picks examples of the batch by number";
  for (BlockArgument argument : main.getArguments()) {
    auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind);
    if (isScaled(argument) && !(kind && kind.getValue() == "batch")) {
      auto name = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::name);
      return emitError(main.getLoc())
             << "alpa-rescale: state argument "
             << (name ? name.getValue().str() : std::to_string(argument.getArgNumber()))
             << " has a dimension of the batch, whose size it fixes";
    }
  }
  return success();
}

LogicalResult ScaledDims::visitPending() {
  while (!pending.empty())
    if (failed(visit(pending.pop_back_val())))
      return failure();
  return success();
}

/// JAX's gradients of loops carry zeros along that no op reads, so that none says
/// what they are; they only take memory, and their size tells.
LogicalResult ScaledDims::visitUnread(hlo::WhileOp loop) {
  Operation *end = loop.getBody().front().getTerminator();
  for (unsigned i = 0; i < loop->getNumOperands(); ++i) {
    BlockArgument carried = loop.getBody().getArgument(i);
    bool isUnread = loop.getCond().getArgument(i).use_empty() && end->getOperand(i) == carried &&
                    carried.hasOneUse();
    if (!isUnread || isScaled(carried))
      continue;
    for (auto [dim, size] : llvm::enumerate(sizes(carried)))
      if (extents.contains(size)) {
        if (failed(set(loop, carried, dim, {1, size})))
          return failure();
        break;
      }
  }
  return success();
}

LogicalResult ScaledDims::set(Operation *op, Value value, unsigned dim, BatchPart part) {
  ArrayRef<int64_t> shape = sizes(value);
  if (!part || dim >= shape.size())
    return success();
  BatchParts &known = parts.try_emplace(value, shape.size(), BatchPart()).first->second;
  if (known[dim] == part)
    return success();
  if (known[dim])
    return refuse(op) << "has the batch in two ways in dimension " << dim << " of a "
                      << value.getType();
  if (part.extent * part.inner > shape[dim] || shape[dim] % (part.extent * part.inner) != 0)
    return refuse(op) << "has a part of the batch only in dimension " << dim << " of a "
                      << value.getType();
  known[dim] = part;
  auto enqueue = [&](Operation *touched) {
    // What a body ends with belongs to the op around it.
    if (touched->hasTrait<OpTrait::IsTerminator>())
      touched = touched->getParentOp();
    if (!isa<func::FuncOp>(touched))
      pending.insert(touched);
  };
  for (Operation *user : value.getUsers())
    enqueue(user);
  if (Operation *source = value.getDefiningOp())
    enqueue(source);
  else if (Operation *owner = value.getParentBlock()->getParentOp())
    enqueue(owner);
  return success();
}

LogicalResult ScaledDims::join(Operation *op, ValueRange values) {
  for (unsigned dim = 0; dim < sizes(values.front()).size(); ++dim)
    for (Value from : values)
      if (BatchPart part = at(from, dim))
        for (Value to : values)
          if (failed(set(op, to, dim, part)))
            return failure();
  return success();
}

LogicalResult ScaledDims::visit(Operation *op) {
  if (isa<hlo::ConstantOp, hlo::IotaOp, hlo::RngBitGeneratorOp>(op))
    return success(); // As large as the users want.
  if (isa<hlo::ReshapeOp>(op))
    return visitReshape(op);
  if (isa<hlo::ConcatenateOp>(op))
    return visitConcatenate(op);
  if (auto loop = dyn_cast<hlo::WhileOp>(op)) {
    Operation *end = loop.getBody().front().getTerminator();
    for (unsigned i = 0; i < loop->getNumOperands(); ++i)
      if (failed(join(op, {loop->getOperand(i), loop->getResult(i), loop.getCond().getArgument(i),
                           loop.getBody().getArgument(i), end->getOperand(i)})))
        return failure();
    return success();
  }
  if (isa<hlo::CaseOp>(op)) {
    for (unsigned i = 0; i < op->getNumResults(); ++i) {
      SmallVector<Value> same = {op->getResult(i)};
      for (Region &region : op->getRegions())
        same.push_back(region.front().getTerminator()->getOperand(i));
      if (failed(join(op, same)))
        return failure();
    }
    return success();
  }
  if (std::optional<ShardingRule> rule = getShardingRule(op))
    return visitRule(op, *rule);
  return refuse(op) << "has no sharding rule, so the batch cannot be followed through it";
}

LogicalResult ScaledDims::visitRule(Operation *op, const ShardingRule &rule) {
  SmallVector<BatchPart> factors(rule.factors.size());
  auto collect = [&](Value value, const TensorFactors &tensor) -> LogicalResult {
    const BatchParts *found = lookup(value);
    for (unsigned dim = 0; found && dim < tensor.size(); ++dim) {
      BatchPart part = (*found)[dim];
      if (!part)
        continue;
      int64_t inner = 1;
      bool placed = false;
      for (unsigned factor : llvm::reverse(tensor[dim])) {
        int64_t size = rule.factors[factor].size;
        if (part.inner % inner == 0 && part.inner * part.extent <= inner * size) {
          BatchPart within{part.inner / inner, part.extent};
          if (rule.factors[factor].kind == FactorKind::Window && size > 1)
            return refuse(op) << "slides a window along the batch";
          if (factors[factor] && factors[factor] != within)
            return refuse(op) << "has the batch in two ways in one loop";
          factors[factor] = within;
          placed = true;
        }
        inner *= size;
      }
      if (!placed || inner != sizes(value)[dim])
        return refuse(op) << "takes a part of the batch, in dimension " << dim << " of a "
                          << value.getType();
    }
    return success();
  };
  auto spread = [&](Value value, const TensorFactors &tensor) -> LogicalResult {
    for (auto [dim, list] : llvm::enumerate(tensor)) {
      int64_t inner = 1;
      for (unsigned factor : llvm::reverse(list)) {
        BatchPart part = factors[factor];
        if (part && failed(set(op, value, dim, {part.inner * inner, part.extent})))
          return failure();
        inner *= rule.factors[factor].size;
      }
    }
    return success();
  };
  for (auto action : {0, 1}) {
    for (auto [operand, tensor] : llvm::zip_equal(op->getOperands(), rule.operands))
      if (failed(action == 0 ? collect(operand, tensor) : spread(operand, tensor)))
        return failure();
    for (auto [result, tensor] : llvm::zip_equal(op->getResults(), rule.results))
      if (failed(action == 0 ? collect(result, tensor) : spread(result, tensor)))
        return failure();
  }
  return success();
}

/// Elements keep their order, so the batch keeps its stride.
LogicalResult ScaledDims::visitReshape(Operation *op) {
  auto move = [&](Value from, Value to) -> LogicalResult {
    const BatchParts *found = lookup(from);
    if (!found)
      return success();
    BatchParts known = *found; // A copy: new values may move the map.
    int64_t behind = 1;
    for (int dim = int(known.size()) - 1; dim >= 0; behind *= sizes(from)[dim--]) {
      if (!known[dim])
        continue;
      int64_t stride = behind * known[dim].inner, end = stride * known[dim].extent;
      int64_t below = 1;
      bool placed = false;
      for (int other = int(sizes(to).size()) - 1; other >= 0; --other) {
        int64_t above = below * sizes(to)[other];
        if (stride >= below && end <= above && stride % below == 0 && above % end == 0) {
          if (failed(set(op, to, other, {stride / below, known[dim].extent})))
            return failure();
          placed = true;
          break;
        }
        below = above;
      }
      if (!placed)
        return refuse(op) << "splits the batch: " << from.getType() << " into " << to.getType();
    }
    return success();
  };
  if (failed(move(op->getOperand(0), op->getResult(0))))
    return failure();
  return move(op->getResult(0), op->getOperand(0));
}

/// Along the batch, all parts have to be of the batch; together they are one of
/// another size.
LogicalResult ScaledDims::visitConcatenate(Operation *op) {
  auto along = static_cast<unsigned>(cast<hlo::ConcatenateOp>(op).getDimension());
  SmallVector<Value> values(op->getOperands());
  values.push_back(op->getResult(0));
  for (unsigned dim = 0; dim < sizes(values.front()).size(); ++dim) {
    if (dim != along) {
      for (Value from : values)
        if (BatchPart part = at(from, dim))
          for (Value to : values)
            if (failed(set(op, to, dim, part)))
              return failure();
      continue;
    }
    unsigned scaled =
        llvm::count_if(op->getOperands(), [&](Value value) { return bool(at(value, dim)); });
    bool isResultScaled = bool(at(op->getResult(0), dim));
    if (scaled == 0 && !isResultScaled)
      continue;
    if (scaled < op->getNumOperands() && isResultScaled)
      return refuse(op) << "joins the batch with something else along dimension " << dim;
    // The other parts may be found out about later; the result waits for them.
    if (scaled == op->getNumOperands())
      if (failed(set(op, op->getResult(0), dim, {1, sizes(op->getResult(0))[dim]})))
        return failure();
  }
  return success();
}
