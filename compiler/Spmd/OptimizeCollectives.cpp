//===- OptimizeCollectives.cpp - sums scattered where they can be ---------===//
//
// Rajbhandari et al., "ZeRO" (SC 2020), and Xu et al., "Automatic Cross-Replica
// Sharding of Weight Update in Data-Parallel Training" (2020): an all-reduce is a
// reduce-scatter and an all-gather, and what lies between the two may work on parts.
//
//===----------------------------------------------------------------------===//

#include "compiler/Spmd/OpSplit.h"
#include "compiler/Spmd/Passes.h"
#include "compiler/Spmd/ShardedModule.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/SetVector.h"

namespace alpa::spmd {
#define GEN_PASS_DEF_OPTIMIZECOLLECTIVES
#include "compiler/Spmd/Passes.h.inc"
} // namespace alpa::spmd

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;

namespace {

/// A further axis at the end of a dimension's axes.
struct Cut {
  unsigned axis = 0;
  int64_t dim = 0;
  bool operator==(const Cut &other) const { return axis == other.axis && dim == other.dim; }
};

class CollectiveOptimizer {
public:
  CollectiveOptimizer(func::FuncOp function, MeshAttr mesh)
      : function(function), meshShape(mesh.getShape()), builder(function.getContext()) {}

  void run();
  unsigned numScattered = 0, numHoisted = 0, numUpdates = 0, numRows = 0;

private:
  bool sliceFirst(ReshardOp reshard);
  bool shardUpdate(Operation *op);
  bool cutResult(Operation *op);
  std::optional<Cut> commonCut(Value value);
  std::optional<OpSplit> splitOf(Operation *op);
  std::optional<unsigned> resultOf(BlockArgument argument);

  ShardingSpec specOf(Value value);
  ShardingSpec cutSpec(ShardingSpec spec, Cut cut) {
    spec.dims[cut.dim].push_back(cut.axis);
    return spec;
  }
  bool fits(Value value, const ShardingSpec &spec) {
    auto quiet = [&] {
      InFlightDiagnostic diagnostic = emitError(value.getLoc());
      diagnostic.abandon();
      return diagnostic;
    };
    return succeeded(verifySpec(quiet, spec, value.getType(), meshShape));
  }
  void setSpec(Value result, const ShardingSpec &spec);
  Value reshard(Value value, const ShardingSpec &from, const ShardingSpec &to, Operation *before);
  ShardingAttr attributeOf(const ShardingSpec &spec) {
    return ShardingAttr::get(builder.getContext(), spec);
  }

  func::FuncOp function;
  ArrayRef<int64_t> meshShape;
  OpBuilder builder;
};

} // namespace

ShardingSpec CollectiveOptimizer::specOf(Value value) {
  ShardingAttr sharding;
  if (auto argument = dyn_cast<BlockArgument>(value))
    sharding = function.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(), attr::sharding);
  else if (auto reshard = value.getDefiningOp<ReshardOp>())
    sharding = reshard.getTo();
  else if (auto specs = value.getDefiningOp()->getAttrOfType<ArrayAttr>(attr::shardings))
    sharding = cast<ShardingAttr>(specs[cast<OpResult>(value).getResultNumber()]);
  return sharding ? withoutOnes(sharding.getSpec(), meshShape)
                  : ShardingSpec::replicated(specRank(value));
}

void CollectiveOptimizer::setSpec(Value result, const ShardingSpec &spec) {
  Operation *op = result.getDefiningOp();
  SmallVector<Attribute> specs(op->getAttrOfType<ArrayAttr>(attr::shardings).getValue());
  specs[cast<OpResult>(result).getResultNumber()] = attributeOf(spec);
  op->setAttr(attr::shardings, builder.getArrayAttr(specs));
}

/// One step: the specs differ in one minor axis.
Value CollectiveOptimizer::reshard(Value value, const ShardingSpec &from, const ShardingSpec &to,
                                   Operation *before) {
  builder.setInsertionPoint(before);
  return ReshardOp::create(builder, value.getLoc(), value.getType(), value, attributeOf(from),
                           builder.getArrayAttr({}), attributeOf(to));
}

std::optional<OpSplit> CollectiveOptimizer::splitOf(Operation *op) {
  std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
  if (!rule || rule->forwards || !op->hasAttr(attr::shardings))
    return std::nullopt;
  auto specs = [&](auto values) {
    return llvm::map_to_vector(values, [&](Value value) { return specOf(value); });
  };
  llvm::Expected<OpSplit> split =
      readSplit(*rule, specs(op->getOperands()), specs(op->getResults()), {}, meshShape);
  if (split)
    return std::move(*split);
  llvm::consumeError(split.takeError());
  return std::nullopt;
}

/// The slice with which all users begin.
std::optional<Cut> CollectiveOptimizer::commonCut(Value value) {
  std::optional<Cut> common;
  for (Operation *user : value.getUsers()) {
    auto reshard = dyn_cast<ReshardOp>(user);
    if (!reshard || reshard->getBlock() != value.getParentBlock())
      return std::nullopt;
    ShardingSpec from = withoutOnes(reshard.getFrom().getSpec(), meshShape);
    ShardingSpec first = withoutOnes(reshard.specsAfterFrom().front(), meshShape);
    std::optional<Cut> cut;
    for (auto [dim, axes] : llvm::enumerate(first.dims))
      if (axes.size() == from.dims[dim].size() + 1)
        cut = Cut{axes.back(), static_cast<int64_t>(dim)};
    if (!cut || cutSpec(from, *cut) != first || (common && !(*common == *cut)))
      return std::nullopt;
    common = cut;
  }
  return common;
}

/// If all users take parts of a result, the op gives parts: its sum is scattered, or
/// it works on parts of its operands, which are slices in their turn.
bool CollectiveOptimizer::cutResult(Operation *op) {
  if (op->getNumResults() != 1 || op->getNumOperands() == 0 || op->getNumRegions() > 1 ||
      isControlFlow(op) || isa<ReshardOp>(op))
    return false;
  Value result = op->getResult(0);
  std::optional<Cut> cut = commonCut(result);
  std::optional<OpSplit> split = cut ? splitOf(op) : std::nullopt;
  if (!split)
    return false;
  ShardingSpec before = specOf(result), after = cutSpec(before, *cut);
  bool isSummed = llvm::any_of(split->summedAxes, [&](auto sum) { return sum.axis == cut->axis; });
  if (!isSummed) {
    analysis::ShardingRule rule = *analysis::getShardingRule(op);
    SmallVector<ShardingSpec> operands = split->operands;
    const analysis::DimFactors &factors = rule.results[0][cut->dim];
    if (factors.empty() || !split->summedAxes.empty())
      return false;
    for (auto [tensor, spec] : llvm::zip_equal(rule.operands, operands))
      for (auto [dim, axes] : llvm::zip_equal(tensor, spec.dims))
        if (!dim.empty() && dim[0] == factors[0])
          axes.push_back(cut->axis);
    for (auto [operand, spec] : llvm::zip_equal(op->getOperands(), operands))
      if (isa<RankedTensorType>(operand.getType()) && !fits(operand, spec))
        return false;
    llvm::Expected<OpSplit> parts = readSplit(rule, operands, {after}, {}, meshShape);
    if (!parts) {
      llvm::consumeError(parts.takeError());
      return false;
    }
    for (auto [use, was, spec] :
         llvm::zip_equal(op->getOpOperands(), split->operands, parts->operands))
      if (was != spec)
        use.set(reshard(use.get(), was, spec, op));
    ++numHoisted;
  } else {
    ++numScattered;
  }
  setSpec(result, after);
  for (Operation *user : llvm::make_early_inc_range(result.getUsers())) {
    auto reshard = cast<ReshardOp>(user);
    if (reshard.getThrough().empty()) {
      reshard.getResult().replaceAllUsesWith(result);
      reshard.erase();
      continue;
    }
    reshard.setFromAttr(attributeOf(after));
    reshard.setThroughAttr(builder.getArrayAttr(reshard.getThrough().getValue().drop_front()));
  }
  return true;
}

std::optional<unsigned> CollectiveOptimizer::resultOf(BlockArgument argument) {
  auto next = function.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), attr::carriedBy);
  if (!next || next.getInt() >= static_cast<int64_t>(function.getNumResults()))
    return std::nullopt;
  return next.getInt();
}

/// Rows of a stack that is gathered are taken first and gathered one by one, if no axis splits
/// the dimension that they are cut from: what is whole is then one row, where and when it is read.
bool CollectiveOptimizer::sliceFirst(ReshardOp reshard) {
  Value source = reshard.getOperand(), whole = reshard.getResult();
  SmallVector<stablehlo::SliceOp> slices;
  int64_t elements = 0;
  for (Operation *user : whole.getUsers()) {
    auto slice = dyn_cast<stablehlo::SliceOp>(user);
    if (!slice || slice->getBlock() != reshard->getBlock())
      return false;
    slices.push_back(slice);
    elements += cast<RankedTensorType>(slice->getResult(0).getType()).getNumElements();
  }
  ArrayRef<int64_t> shape = cast<RankedTensorType>(whole.getType()).getShape();
  if (slices.empty() || elements > cast<RankedTensorType>(whole.getType()).getNumElements())
    return false;
  SmallVector<ShardingSpec> specs{reshard.getFrom().getSpec()};
  llvm::append_range(specs, reshard.specsAfterFrom());
  for (stablehlo::SliceOp slice : slices) {
    ArrayRef<int64_t> row = cast<RankedTensorType>(slice->getResult(0).getType()).getShape();
    for (size_t dim = 0; dim < shape.size(); ++dim)
      if (row[dim] != shape[dim] &&
          llvm::any_of(specs, [&](const ShardingSpec &spec) { return !spec.dims[dim].empty(); }))
        return false;
  }
  for (stablehlo::SliceOp slice : slices) {
    builder.setInsertionPoint(slice);
    Operation *row = builder.clone(*slice);
    row->setOperand(0, source);
    row->setAttr(attr::shardings, builder.getArrayAttr({reshard.getFrom()}));
    auto gathered =
        ReshardOp::create(builder, reshard.getLoc(), row->getResult(0).getType(), row->getResult(0),
                          reshard.getFrom(), reshard.getThrough(), reshard.getTo());
    slice->getResult(0).replaceAllUsesWith(gathered.getResult());
    slice->erase();
  }
  numRows += slices.size();
  reshard.erase();
  return true;
}

/// A gradient that is summed on every device only to update state that every device
/// holds: each device updates a part, holds that part of the state that nothing else
/// reads (moments), and the one value that all need (the parameter) is gathered.
bool CollectiveOptimizer::shardUpdate(Operation *op) {
  if (op->getNumResults() != 1)
    return false;
  Value gradient = op->getResult(0);
  std::optional<OpSplit> split = splitOf(op);
  if (!split || split->summedAxes.empty())
    return false;
  ShardingSpec before = specOf(gradient);
  std::optional<Cut> cut;
  for (OpSplit::SummedAxis summed : split->summedAxes)
    for (int64_t dim = 0; dim < static_cast<int64_t>(before.dims.size()) && !cut; ++dim) {
      bool isUsed = llvm::any_of(before.dims, [&](ArrayRef<unsigned> axes) {
        return llvm::is_contained(axes, summed.axis);
      });
      if (!isUsed && fits(gradient, cutSpec(before, {summed.axis, dim})))
        cut = Cut{summed.axis, dim};
    }
  if (!cut)
    return false;
  ShardingSpec after = cutSpec(before, *cut);

  // What is computed of the gradient, element by element.
  ArrayRef<int64_t> shape = cast<RankedTensorType>(gradient.getType()).getShape();
  auto hasShape = [&](Value value) {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    return type && type.getShape() == shape;
  };
  llvm::SetVector<Operation *> updates;
  SmallVector<Value> worklist{gradient};
  SmallVector<OpOperand *> returned;
  Operation *terminator = function.getBody().front().getTerminator();
  while (!worklist.empty()) {
    Value value = worklist.pop_back_val();
    for (OpOperand &use : value.getUses()) {
      Operation *user = use.getOwner();
      if (user == terminator) {
        returned.push_back(&use);
        continue;
      }
      if (user->getBlock() != terminator->getBlock() || user->getNumRegions() ||
          user->getNumResults() != 1 || !hasShape(user->getResult(0)) ||
          !analysis::isElementwiseName(user->getName().getStringRef()) ||
          specOf(user->getResult(0)) != before)
        return false;
      if (updates.insert(user))
        worklist.push_back(user->getResult(0));
    }
  }
  SmallVector<BlockArgument> state;
  llvm::SmallSetVector<Value, 2> gathered;
  double gatheredBytes = 0;
  for (OpOperand *use : returned) {
    BlockArgument found;
    for (BlockArgument argument : function.getArguments())
      if (resultOf(argument) == use->getOperandNumber() && specOf(argument) == before &&
          argument.getType() == use->get().getType() &&
          !llvm::is_contained(terminator->getOperands(), argument) &&
          llvm::all_of(argument.getUsers(), [&](Operation *u) { return updates.contains(u); }))
        found = argument;
    if (found)
      state.push_back(found);
    else if (gathered.insert(use->get()))
      gatheredBytes += analysis::getTensorBytes(use->get().getType());
  }
  // The all-gathers must cost no more than the half of the all-reduce that is saved.
  if (state.empty() || gatheredBytes > analysis::getTensorBytes(gradient.getType()))
    return false;

  setSpec(gradient, after);
  for (Operation *update : updates)
    setSpec(update->getResult(0), after);
  for (BlockArgument argument : state) {
    function.setArgAttr(argument.getArgNumber(), attr::sharding, attributeOf(after));
    function.setResultAttr(*resultOf(argument), attr::sharding, attributeOf(after));
  }
  for (Operation *update : updates)
    for (OpOperand &use : update->getOpOperands())
      if (hasShape(use.get()) && specOf(use.get()) == before)
        use.set(reshard(use.get(), before, after, update));
  for (Value value : gathered) {
    Value whole = reshard(value, after, before, terminator);
    for (OpOperand *use : returned)
      if (use->get() == value && llvm::none_of(state, [&](BlockArgument argument) {
            return resultOf(argument) == use->getOperandNumber();
          }))
        use->set(whole);
  }
  ++numUpdates;
  return true;
}

void CollectiveOptimizer::run() {
  if (!function.getBody().hasOneBlock())
    return;
  Block &body = function.getBody().front();
  // Users come before what they use, so that slices rise all the way.
  auto rise = [&] {
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body.without_terminator())))
      while (cutResult(&op)) {
      }
  };
  rise();
  for (ReshardOp reshard : llvm::to_vector(body.getOps<ReshardOp>()))
    sliceFirst(reshard);
  // Functions of a stage share their state; only a whole step owns its signature.
  bool isWholeStep = llvm::none_of(function.getArguments(), [&](BlockArgument argument) {
    return function.getArgAttr(argument.getArgNumber(), attr::value) != nullptr;
  });
  if (!isWholeStep)
    return;
  for (Operation &op : llvm::make_early_inc_range(body.without_terminator()))
    while (shardUpdate(&op)) {
    }
  rise();
}

namespace {

struct OptimizeCollectives : public spmd::impl::OptimizeCollectivesBase<OptimizeCollectives> {
  void runOnOperation() override {
    auto visit = [&](func::FuncOp function, MeshAttr mesh) {
      CollectiveOptimizer optimizer(function, mesh);
      optimizer.run();
      numScattered += optimizer.numScattered;
      numHoisted += optimizer.numHoisted;
      numUpdates += optimizer.numUpdates;
      numRows += optimizer.numRows;
      return success();
    };
    if (failed(forEachShardedFunction(getOperation(), visit)))
      signalPassFailure();
  }
};

} // namespace
