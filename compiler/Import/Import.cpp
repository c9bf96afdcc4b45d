//===- Import.cpp - from JAX's module to one planned function -------------===//

#include "compiler/Import/Inline.h"
#include "compiler/Import/Passes.h"
#include "compiler/Import/Phases.h"
#include "compiler/Import/Subset.h"
#include "compiler/Import/TransposedDots.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"

namespace alpa {
#define GEN_PASS_DEF_ALPAIMPORT
#include "compiler/Import/Passes.h.inc"
} // namespace alpa

using namespace mlir;

namespace {

class AlpaImportPass : public alpa::impl::AlpaImportBase<AlpaImportPass> {
public:
  using AlpaImportBase::AlpaImportBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto main = module.lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration()) {
      emitError(module.getLoc(), "the module has no function @main to import");
      return signalPassFailure();
    }
    unsigned calls = 0;
    if (failed(alpa::inlineCalls(main, calls)))
      return signalPassFailure();
    inlinedCalls += calls;
    if (keepShardings && failed(alpa::keepShardingAnnotations(module, main)))
      return signalPassFailure();
    alpa::dropShardingAnnotations(module, main);
    if (failed(removeOtherFunctions(module, main)) || failed(alpa::verifySubset(main)) ||
        failed(alpa::verifySignature(main)))
      return signalPassFailure();
    foldedTransposes += alpa::foldTransposedDots(main);

    // Before phases are known, because folding shares constants; it merges no other ops.
    OpPassManager canonicalize("builtin.module");
    canonicalize.addPass(createCanonicalizerPass());
    if (failed(runPipeline(canonicalize, module)) || failed(alpa::assignPhases(main)))
      return signalPassFailure();
    // Attributes count when ops are compared, so nothing merges across phases or equations.
    OpPassManager merge("builtin.module");
    merge.addPass(createCSEPass());
    if (failed(runPipeline(merge, module)))
      return signalPassFailure();
    count(main);
  }

private:
  LogicalResult removeOtherFunctions(ModuleOp module, func::FuncOp main) {
    for (Operation &op : llvm::make_early_inc_range(*module.getBody())) {
      if (&op == main)
        continue;
      auto function = dyn_cast<func::FuncOp>(op);
      if (!function)
        return op.emitOpError() << "cannot be planned; only functions may stand beside @main";
      std::optional<SymbolTable::UseRange> uses = SymbolTable::getSymbolUses(function, main);
      if (uses && !uses->empty())
        return (*uses->begin()).getUser()->emitOpError()
               << "refers to @" << function.getName() << ", which cannot be inlined";
      op.erase();
    }
    return success();
  }

  void count(func::FuncOp main) {
    for (Operation &op : main.getBody().front().without_terminator()) {
      auto phase = op.getAttrOfType<StringAttr>("alpa.phase");
      if (phase.getValue() == "forward")
        ++forwardOps;
      else if (phase.getValue() == "backward")
        ++backwardOps;
      else
        ++updateOps;
    }
  }
};

} // namespace
