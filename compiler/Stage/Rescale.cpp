//===- Rescale.cpp - a step of another micro-batch size, for costing ------===//

#include "compiler/Stage/Passes.h"
#include "compiler/Stage/ScaledDims.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/Verifier.h"

namespace alpa {
#define GEN_PASS_DEF_ALPARESCALE
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;
namespace hlo = mlir::stablehlo;

namespace {

class AlpaRescalePass : public alpa::impl::AlpaRescaleBase<AlpaRescalePass> {
public:
  using AlpaRescaleBase::AlpaRescaleBase;

  void runOnOperation() override {
    if (failed(run()))
      signalPassFailure();
  }

private:
  LogicalResult run();
  LogicalResult readOptions();
  LogicalResult resize(const ScaledDims &dims);
  LogicalResult resizeAttributes(Operation *op, const ScaledDims &dims);
  LogicalResult lowerPrecision();
  LogicalResult finish();
  FailureOr<RankedTensorType> resized(Value value, const ScaledDims &dims) const;
  template <typename Callback> LogicalResult forEachValue(Callback callback);

  func::FuncOp main;
  int64_t numerator = 1, denominator = 1;
  FloatType wanted;
};

} // namespace

LogicalResult AlpaRescalePass::readOptions() {
  ModuleOp module = getOperation();
  main = module.lookupSymbol<func::FuncOp>("main");
  if (!main || main.isDeclaration())
    return emitError(module.getLoc(), "alpa-rescale: the module has no function @main");
  auto [above, below] = StringRef(batch).split('/');
  if (above.getAsInteger(10, numerator) || numerator < 1 ||
      (batch.find('/') != std::string::npos &&
       (below.getAsInteger(10, denominator) || denominator < 1)))
    return emitError(module.getLoc(),
                     "alpa-rescale: batch must be a factor such as 4 or 1/2, got '")
           << batch << "'";
  Builder builder(&getContext());
  if (dtype == "bfloat16")
    wanted = builder.getBF16Type();
  else if (dtype == "float16")
    wanted = builder.getF16Type();
  else if (!dtype.empty())
    return emitError(module.getLoc(), "alpa-rescale: dtype must be bfloat16 or float16, got '")
           << dtype << "'";
  return success();
}

LogicalResult AlpaRescalePass::run() {
  if (failed(readOptions()))
    return failure();
  if (numerator != denominator) {
    FailureOr<ScaledDims> dims = ScaledDims::find(main);
    if (failed(dims) || failed(resize(*dims)))
      return failure();
  }
  if (wanted && failed(lowerPrecision()))
    return failure();
  return finish();
}

template <typename Callback> LogicalResult AlpaRescalePass::forEachValue(Callback callback) {
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

FailureOr<RankedTensorType> AlpaRescalePass::resized(Value value, const ScaledDims &dims) const {
  auto type = cast<RankedTensorType>(value.getType());
  SmallVector<int64_t> shape(type.getShape());
  for (auto [size, part] : llvm::zip_equal(shape, *dims.lookup(value))) {
    if (!part)
      continue;
    if (part.extent * numerator % denominator != 0)
      return emitError(value.getLoc()) << "alpa-rescale: " << numerator << "/" << denominator
                                       << " of " << part.extent << " examples is no whole number";
    size = size / denominator * numerator + size % denominator * numerator / denominator;
  }
  return RankedTensorType::get(shape, type.getElementType(), type.getEncoding());
}

/// The sizes that an op states besides its types. Along the batch an op takes all of
/// it (ScaledDims has seen to that), so the new sizes are those of the new types.
LogicalResult AlpaRescalePass::resizeAttributes(Operation *op, const ScaledDims &dims) {
  auto replace = [&](ArrayRef<int64_t> old, Value value) -> FailureOr<SmallVector<int64_t>> {
    SmallVector<int64_t> sizes(old);
    if (const BatchParts *parts = dims.lookup(value)) {
      FailureOr<RankedTensorType> type = resized(value, dims);
      if (failed(type))
        return failure();
      auto before = cast<RankedTensorType>(value.getType()).getShape();
      for (auto [dim, part] : llvm::enumerate(*parts))
        if (part && sizes[dim] == before[dim])
          sizes[dim] = type->getDimSize(dim);
    }
    return sizes;
  };
  if (auto slice = dyn_cast<hlo::SliceOp>(op)) {
    FailureOr<SmallVector<int64_t>> limits = replace(slice.getLimitIndices(), slice.getOperand());
    if (failed(limits))
      return failure();
    slice.setLimitIndices(*limits);
  } else if (auto slice = dyn_cast<hlo::DynamicSliceOp>(op)) {
    FailureOr<SmallVector<int64_t>> taken = replace(slice.getSliceSizes(), slice.getOperand());
    if (failed(taken))
      return failure();
    slice.setSliceSizes(*taken);
  } else if (auto gather = dyn_cast<hlo::GatherOp>(op)) {
    FailureOr<SmallVector<int64_t>> taken = replace(gather.getSliceSizes(), gather.getOperand());
    if (failed(taken))
      return failure();
    gather.setSliceSizes(*taken);
  } else if (auto constant = dyn_cast<hlo::ConstantOp>(op)) {
    if (dims.lookup(constant->getResult(0))) {
      FailureOr<RankedTensorType> type = resized(constant->getResult(0), dims);
      if (failed(type))
        return failure();
      // A table of the batch's size is not a splat; what it costs does not depend on
      // what is in it.
      auto elements = cast<ElementsAttr>(constant.getValue());
      constant.setValueAttr(DenseElementsAttr::get(*type, *elements.value_begin<Attribute>()));
    }
  }
  return success();
}

LogicalResult AlpaRescalePass::resize(const ScaledDims &dims) {
  // Attributes first: they are told by the old types.
  if (main->walk([&](Operation *op) {
            return failed(resizeAttributes(op, dims)) ? WalkResult::interrupt()
                                                      : WalkResult::advance();
          })
          .wasInterrupted())
    return failure();
  return forEachValue([&](Value value) -> LogicalResult {
    if (!dims.lookup(value))
      return success();
    FailureOr<RankedTensorType> type = resized(value, dims);
    if (failed(type))
      return failure();
    value.setType(*type);
    ++numResized;
    return success();
  });
}

LogicalResult AlpaRescalePass::lowerPrecision() {
  auto isWider = [&](Type type) {
    auto real = dyn_cast<FloatType>(type);
    return real && real.getWidth() > wanted.getWidth();
  };
  LogicalResult done = forEachValue([&](Value value) -> LogicalResult {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    if (!type)
      return success();
    if (isa<ComplexType>(type.getElementType()))
      return emitError(value.getLoc()) << "alpa-rescale: complex numbers have no form in " << dtype;
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

LogicalResult AlpaRescalePass::finish() {
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
  return emitError(main.getLoc()) << "alpa-rescale: an op does not allow the new types: " << reason;
}
