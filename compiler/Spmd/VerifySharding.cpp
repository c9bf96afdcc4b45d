//===- VerifySharding.cpp - all shardings are strategies of their ops -----===//

#include "compiler/Sharding/Problem/Reshard.h"
#include "compiler/Spmd/OpSplit.h"
#include "compiler/Spmd/Passes.h"
#include "compiler/Spmd/ShardedModule.h"
#include "dialects/Common/Diagnostics.h"

namespace alpa::spmd {
#define GEN_PASS_DEF_VERIFYSHARDING
#include "compiler/Spmd/Passes.h.inc"
} // namespace alpa::spmd

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;

namespace {

class ShardingVerifier {
public:
  ShardingVerifier(func::FuncOp function, MeshAttr mesh)
      : function(function), meshShape(mesh.getShape()) {}

  LogicalResult run();

private:
  LogicalResult verify(Block &block);
  LogicalResult verify(Operation *op);
  LogicalResult verify(ReshardOp op);
  LogicalResult verifyRegions(Operation *op, ArrayRef<ShardingSpec> operands,
                              ArrayRef<ShardingSpec> results);
  LogicalResult verifyEnd(Operation *op, Block &block, ArrayRef<ShardingSpec> expected);
  LogicalResult fits(Operation *op, const ShardingSpec &spec, Type type) {
    return verifySpec([&] { return op->emitError("alpa_verify_sharding_c1: "); }, spec, type,
                      meshShape);
  }

  func::FuncOp function;
  ArrayRef<int64_t> meshShape;
  DenseMap<Value, ShardingSpec> held;
};

} // namespace

LogicalResult ShardingVerifier::verify(ReshardOp op) {
  ShardingSpec before = withoutOnes(op.getFrom().getSpec(), meshShape);
  const ShardingSpec &found = held[op.getOperand()];
  if (before != found)
    return op.emitError("alpa_verify_sharding_c4: the operand is held as ")
           << found.str() << ", expected " << before.str();
  for (const ShardingSpec &spec : op.specsAfterFrom()) {
    ShardingSpec after = withoutOnes(spec, meshShape);
    if (failed(fits(op, after, op.getType())))
      return failure();
    if (after == before || !sharding::singleStep(before, after, meshShape))
      return op.emitError("alpa_verify_sharding_c4: from ")
             << before.str() << " to " << after.str() << " is not one step";
    before = after;
  }
  held[op.getResult()] = before;
  return success();
}

LogicalResult ShardingVerifier::verify(Operation *op) {
  if (auto reshard = dyn_cast<ReshardOp>(op))
    return verify(reshard);
  std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
  if (!rule)
    return withCode(op->emitError("has no sharding rule yet"), ErrorCode::UnsupportedOp);
  auto shardings = op->getAttrOfType<ArrayAttr>(attr::shardings);
  if (!shardings || op->hasAttr(attr::useShardings))
    return op->emitError("alpa_verify_sharding_c2: expected an op with `")
           << attr::shardings << "` and without `" << attr::useShardings
           << "`; run alpa-insert-reshards first";
  auto operands = llvm::map_to_vector(op->getOperands(), [&](Value v) { return held[v]; });
  SmallVector<ShardingSpec> results;
  for (auto [result, item] : llvm::zip_equal(op->getResults(), shardings)) {
    ShardingSpec spec;
    if (isa<RankedTensorType>(result.getType())) {
      spec = cast<ShardingAttr>(item).getSpec();
      if (failed(fits(op, spec, result.getType())))
        return failure();
      spec = withoutOnes(spec, meshShape);
    }
    results.push_back(std::move(spec));
  }
  // Of a loop nothing need be split alike but what it hands from one iteration to the next: its
  // ops are verified one by one.
  if (carriesOperands(op)) {
    for (auto [i, got, expected] : llvm::enumerate(results, operands))
      if (got != expected)
        return op->emitError("alpa_verify_sharding_c3: result ")
               << i << " of the loop is " << got.str() << ", and begins as " << expected.str();
    for (auto [result, spec] : llvm::zip_equal(op->getResults(), results))
      held[result] = spec;
    return verifyRegions(op, operands, results);
  }
  auto captures =
      llvm::map_to_vector(rule->captures, [&](const auto &item) { return held[item.first]; });
  llvm::Expected<OpSplit> split = readSplit(*rule, operands, results, captures, meshShape);
  if (!split)
    return op->emitError("alpa_verify_sharding_c3: no strategy of the op has these shardings: ")
           << llvm::toString(split.takeError());
  for (auto [result, spec] : llvm::zip_equal(op->getResults(), results))
    held[result] = spec;
  for (auto [i, got, expected] : llvm::enumerate(captures, split->captures))
    if (got != expected)
      return op->emitError("alpa_verify_sharding_c3: the body uses a value from outside that is ")
             << got.str() << ", expected " << expected.str();
  return isControlFlow(op) ? verifyRegions(op, operands, results) : success();
}

LogicalResult ShardingVerifier::verifyRegions(Operation *op, ArrayRef<ShardingSpec> operands,
                                              ArrayRef<ShardingSpec> results) {
  for (auto [index, region] : llvm::enumerate(op->getRegions())) {
    for (auto [argument, spec] : llvm::zip(region.getArguments(), operands))
      held[argument] = spec;
    if (failed(verify(region.front())))
      return failure();
    SmallVector<ShardingSpec> ends(results);
    if (carriesOperands(op) && index == 0)
      ends.assign(1, ShardingSpec{});
    if (failed(verifyEnd(op, region.front(), ends)))
      return failure();
  }
  return success();
}

LogicalResult ShardingVerifier::verifyEnd(Operation *op, Block &block,
                                          ArrayRef<ShardingSpec> expected) {
  for (auto [i, value, spec] : llvm::enumerate(block.getTerminator()->getOperands(), expected))
    if (held[value] != spec)
      return block.getTerminator()->emitError("alpa_verify_sharding_c5: value ")
             << i << " is held as " << held[value].str() << ", expected " << spec.str();
  return success();
}

LogicalResult ShardingVerifier::verify(Block &block) {
  for (Operation &op : block.without_terminator())
    if (failed(verify(&op)))
      return failure();
  return success();
}

LogicalResult ShardingVerifier::run() {
  auto read = [&](DictionaryAttr attributes, Type type, ShardingSpec &spec) -> LogicalResult {
    auto given = attributes ? attributes.getAs<ShardingAttr>(attr::sharding) : ShardingAttr();
    if (!isa<RankedTensorType>(type))
      return success();
    if (!given)
      return function.emitError("alpa_verify_sharding_c2: expected `")
             << attr::sharding << "` on every argument and result; run alpa-insert-reshards first";
    if (failed(fits(function, given.getSpec(), type)))
      return failure();
    spec = withoutOnes(given.getSpec(), meshShape);
    return success();
  };
  if (!function.getBody().hasOneBlock())
    return function.emitError("expected a function of one block");
  for (BlockArgument argument : function.getArguments())
    if (failed(read(function.getArgAttrDict(argument.getArgNumber()), argument.getType(),
                    held[argument])))
      return failure();
  SmallVector<ShardingSpec> results(function.getNumResults());
  for (auto [i, type] : llvm::enumerate(function.getResultTypes()))
    if (failed(read(function.getResultAttrDict(i), type, results[i])))
      return failure();
  Block &body = function.getBody().front();
  if (failed(verify(body)))
    return failure();
  return verifyEnd(function, body, results);
}

namespace {

struct VerifySharding : public spmd::impl::VerifyShardingBase<VerifySharding> {
  void runOnOperation() override {
    auto visit = [&](func::FuncOp function, MeshAttr mesh) {
      return ShardingVerifier(function, mesh).run();
    };
    if (failed(forEachShardedFunction(getOperation(), visit)))
      signalPassFailure();
  }
};

} // namespace
