//===- ReductionRules.cpp - reductions over dimensions and windows --------===//

#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/StableHLO/StableHLOOps.h"

using namespace alpa;
using namespace alpa::analysis;
namespace hlo = mlir::stablehlo;

/// Inputs, then one initial value each. Several inputs (an argmax) are combined by
/// no collective.
static ShardingRule reduce(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto dimensions = llvm::cast<hlo::ReduceOp>(op).getDimensions();
  unsigned inputs = op->getNumResults();
  std::optional<Reducer> reducer;
  if (inputs == 1)
    reducer = reducerOf(op->getRegion(0));
  int64_t resultDim = 0;
  for (auto [dim, size] : llvm::enumerate(shapeOf(op->getOperand(0)))) {
    bool isReduced = llvm::is_contained(dimensions, static_cast<int64_t>(dim));
    unsigned factor = isReduced ? builder.reduction(size, reducer) : builder.factor(size);
    for (unsigned i = 0; i < inputs; ++i) {
      builder.operand(i, dim, {factor});
      if (!isReduced)
        builder.result(i, resultDim, {factor});
    }
    resultDim += !isReduced;
  }
  if (reducer)
    builder.rule.broughtOnce = {1};
  return builder.rule;
}

bool WindowDim::isTiled() const {
  int64_t extent = (size - 1) * windowDilation + 1;
  return padLow == 0 && padHigh == 0 && baseDilation == 1 && extent <= stride && in == out * stride;
}

std::pair<DimFactors, DimFactors> WindowDim::factors(RuleBuilder &builder) const {
  if (isTiled()) {
    unsigned windows = builder.factor(out);
    if (stride == 1)
      return {{windows}, {windows}};
    return {{windows, builder.factor(stride, FactorKind::Window)}, {windows}};
  }
  // One loop, so that analyses see which dimension goes where.
  unsigned sliding = builder.factor(in, FactorKind::Window);
  return {{sliding}, {sliding}};
}

/// The windows of reduce_window and select_and_scatter, dimension by dimension.
template <typename Windowed>
static llvm::SmallVector<WindowDim> windowsOf(Windowed op, llvm::ArrayRef<int64_t> in,
                                              llvm::ArrayRef<int64_t> out) {
  llvm::SmallVector<WindowDim> windows(in.size());
  auto set = [&](auto values, int64_t WindowDim::*member) {
    if (values)
      for (auto [window, value] : llvm::zip_equal(windows, *values))
        window.*member = value;
  };
  set(std::optional(in), &WindowDim::in);
  set(std::optional(out), &WindowDim::out);
  set(std::optional(op.getWindowDimensions()), &WindowDim::size);
  set(op.getWindowStrides(), &WindowDim::stride);
  if constexpr (std::is_same_v<Windowed, hlo::ReduceWindowOp>) {
    set(op.getBaseDilations(), &WindowDim::baseDilation);
    set(op.getWindowDilations(), &WindowDim::windowDilation);
  }
  if (auto padding = op.getPadding())
    for (auto [i, value] : llvm::enumerate(padding->template getValues<int64_t>()))
      (i % 2 ? windows[i / 2].padHigh : windows[i / 2].padLow) = value;
  return windows;
}

/// Inputs, then one initial value each, which goes into every window.
static ShardingRule reduceWindow(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto windows = windowsOf(llvm::cast<hlo::ReduceWindowOp>(op), shapeOf(op->getOperand(0)),
                           shapeOf(op->getResult(0)));
  for (auto [dim, window] : llvm::enumerate(windows)) {
    auto [in, out] = window.factors(builder);
    for (unsigned i = 0; i < op->getNumResults(); ++i)
      builder.operand(i, dim, in).result(i, dim, out);
  }
  return builder.rule;
}

/// Operands: operand, source, initial value; the result has the operand's shape.
static ShardingRule selectAndScatter(mlir::Operation *op) {
  RuleBuilder builder(op);
  auto windows = windowsOf(llvm::cast<hlo::SelectAndScatterOp>(op), shapeOf(op->getOperand(0)),
                           shapeOf(op->getOperand(1)));
  for (auto [dim, window] : llvm::enumerate(windows)) {
    auto [in, out] = window.factors(builder);
    builder.operand(0, dim, in).operand(1, dim, out).result(0, dim, in);
  }
  return builder.rule;
}

void analysis::attachReductionRules(mlir::MLIRContext &context) {
  attachRule<reduce, hlo::ReduceOp>(context);
  attachRule<reduceWindow, hlo::ReduceWindowOp>(context);
  attachRule<selectAndScatter, hlo::SelectAndScatterOp>(context);
}
