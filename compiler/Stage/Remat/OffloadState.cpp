//===- OffloadState.cpp - state that the update alone needs, on the host --===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Slice/SliceUtils.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

namespace alpa::stage {
#define GEN_PASS_DEF_ALPAOFFLOADSTATE
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;

namespace {

struct OffloadState : stage::impl::AlpaOffloadStateBase<OffloadState> {
  using Base::Base;

  void runOnOperation() override {
    func::FuncOp main = findLayeredMain(getOperation());
    if (!main)
      return signalPassFailure();
    for (BlockArgument arg : main.getArguments()) {
      if (!isOfUpdate(main, arg))
        continue;
      main.setArgAttr(arg.getArgNumber(), attr::memory, StringAttr::get(&getContext(), "host"));
      ++numOffloaded;
    }
  }

private:
  /// Whether the update alone reads the argument and makes its next value, all of it in one
  /// layer and so on one mesh.
  bool isOfUpdate(func::FuncOp main, BlockArgument arg) const {
    auto carried = main.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), attr::carriedBy);
    Operation *end = main.front().getTerminator();
    if (!isStateArgument(arg) || arg.use_empty() || !carried || carried.getInt() < 0 ||
        carried.getInt() >= int64_t(end->getNumOperands()) ||
        analysis::getTensorBytes(arg.getType()) < double(leastBytes))
      return false;
    Value next = end->getOperand(carried.getInt());
    Operation *maker = next.getDefiningOp();
    if (!maker || phaseOf(maker) != Phase::Update || next.getType() != arg.getType() ||
        llvm::count(end->getOperands(), next) != 1)
      return false;
    auto isBeside = [&](Operation *user) {
      return phaseOf(user) == Phase::Update &&
             user->getAttr(attr::layer) == maker->getAttr(attr::layer);
    };
    return llvm::all_of(importer::getUsers(arg), isBeside) &&
           llvm::all_of(importer::getUsers(next),
                        [&](Operation *user) { return user == end || isBeside(user); });
  }
};

} // namespace
