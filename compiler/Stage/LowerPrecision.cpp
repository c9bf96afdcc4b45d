//===- LowerPrecision.cpp - a step of narrower numbers, for costing -------===//

#include "compiler/Stage/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Common/Diagnostics.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Verifier.h"

namespace alpa::stage {
#define GEN_PASS_DEF_ALPALOWERPRECISION
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;
namespace hlo = mlir::stablehlo;

namespace {

class AlpaLowerPrecisionPass : public stage::impl::AlpaLowerPrecisionBase<AlpaLowerPrecisionPass> {
public:
  using AlpaLowerPrecisionBase::AlpaLowerPrecisionBase;

  void runOnOperation() override {
    if (failed(run()))
      signalPassFailure();
  }

private:
  LogicalResult run();
  LogicalResult readOptions();
  LogicalResult lowerPrecision();
  LogicalResult finish();
  template <typename Callback> LogicalResult forEachValue(Callback callback);

  func::FuncOp main;
  FloatType wanted;
};

} // namespace

LogicalResult AlpaLowerPrecisionPass::readOptions() {
  ModuleOp module = getOperation();
  main = module.lookupSymbol<func::FuncOp>("main");
  if (!main || main.isDeclaration())
    return emitError(module.getLoc(), "alpa-lower-precision: the module has no function @main");
  Builder builder(&getContext());
  if (dtype == "bfloat16")
    wanted = builder.getBF16Type();
  else if (dtype == "float16")
    wanted = builder.getF16Type();
  else
    return withCode(emitError(module.getLoc()), ErrorCode::Precision)
           << "alpa-lower-precision: dtype must be bfloat16 or float16, got '" << dtype << "'";
  return success();
}

LogicalResult AlpaLowerPrecisionPass::run() {
  if (failed(readOptions()))
    return failure();
  if (failed(lowerPrecision()))
    return failure();
  return finish();
}

template <typename Callback> LogicalResult AlpaLowerPrecisionPass::forEachValue(Callback callback) {
  auto visit = [&](Operation *op) {
    for (Value result : op->getResults())
      if (failed(callback(result)))
        return WalkResult::interrupt();
    for (Region &region : op->getRegions())
      for (Block &block : region)
        for (Value argument : block.getArguments())
          if (failed(callback(argument)))
            return WalkResult::interrupt();
    return WalkResult::advance();
  };
  return failure(main->walk<WalkOrder::PreOrder>(visit).wasInterrupted());
}

LogicalResult AlpaLowerPrecisionPass::lowerPrecision() {
  auto isWider = [&](Type type) {
    auto real = dyn_cast<FloatType>(type);
    return real && real.getWidth() > wanted.getWidth();
  };
  LogicalResult done = forEachValue([&](Value value) -> LogicalResult {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    if (!type)
      return success();
    if (isa<ComplexType>(type.getElementType()))
      return withCode(emitError(value.getLoc()), ErrorCode::Precision)
             << "alpa-lower-precision: complex numbers have no form in " << dtype;
    if (isWider(type.getElementType())) {
      value.setType(type.clone(wanted));
      ++numLowered;
    }
    return success();
  });
  if (failed(done))
    return failure();
  SmallVector<Operation *> bitcasts;
  main->walk([&](Operation *op) {
    if (auto constant = dyn_cast<hlo::ConstantOp>(op)) {
      auto elements = dyn_cast<DenseFPElementsAttr>(constant.getValue());
      if (elements && isWider(elements.getElementType()))
        constant.setValueAttr(elements.mapValues(wanted, [&](const APFloat &number) {
          APFloat lower = number;
          bool loses;
          lower.convert(wanted.getFloatSemantics(), APFloat::rmNearestTiesToEven, &loses);
          return lower.bitcastToAPInt();
        }));
    } else if (auto dot = dyn_cast<hlo::DotGeneralOp>(op)) {
      dot.removeAlgorithmAttr(); // It names the old types.
    } else if (isa<hlo::BitcastConvertOp>(op)) {
      bitcasts.push_back(op);
    }
  });
  // Bits of 32 make no number of 16; a conversion costs the same.
  for (Operation *op : bitcasts) {
    OpBuilder builder(op);
    Operation *convert = hlo::ConvertOp::create(builder, op->getLoc(), op->getResult(0).getType(),
                                                op->getOperand(0));
    convert->setDiscardableAttrs(op->getDiscardableAttrDictionary());
    op->replaceAllUsesWith(convert);
    op->erase();
  }
  return success();
}

LogicalResult AlpaLowerPrecisionPass::finish() {
  Operation *end = main.front().getTerminator();
  main.setType(
      FunctionType::get(&getContext(), main.front().getArgumentTypes(), end->getOperandTypes()));
  std::string reason;
  {
    ScopedDiagnosticHandler quiet(&getContext(), [&](Diagnostic &diagnostic) {
      if (reason.empty())
        reason = diagnostic.str();
      return success();
    });
    if (succeeded(verify(main)))
      return success();
  }
  return withCode(emitError(main.getLoc()), ErrorCode::Precision)
         << "alpa-lower-precision: an op does not allow the new types: " << reason;
}
