//===- OpCost.cpp - arithmetic and memory traffic of an op ----------------===//

#include "compiler/Analysis/Attention.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Chlo/ChloOps.h"
#include "mlir/IR/Matchers.h"
#include "llvm/ADT/StringSwitch.h"
#include <cmath>

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;

static double numElements(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type && type.hasStaticShape() ? static_cast<double>(type.getNumElements()) : 0;
}

double analysis::getTensorBytes(Type type) {
  auto tensor = llvm::dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.hasStaticShape())
    return 0;
  Type element = tensor.getElementType();
  double scale = 1;
  if (auto complex = llvm::dyn_cast<ComplexType>(element)) {
    element = complex.getElementType();
    scale = 2;
  }
  if (!element.isIntOrFloat())
    return 0;
  // Booleans and other narrow types take a byte.
  double bytes = std::max(1u, element.getIntOrFloatBitWidth() / 8);
  return scale * bytes * static_cast<double>(tensor.getNumElements());
}

double analysis::getBytes(Operation *op) {
  double bytes = 0;
  for (Type type : llvm::concat<const Type>(op->getOperandTypes(), op->getResultTypes()))
    bytes += getTensorBytes(type);
  return bytes;
}

llvm::StringRef analysis::getComputeType(Operation *op) {
  Value value = op->getNumOperands()  ? op->getOperand(0)
                : op->getNumResults() ? op->getResult(0)
                                      : Value();
  auto tensor = value ? llvm::dyn_cast<RankedTensorType>(value.getType()) : RankedTensorType();
  if (!tensor)
    return "float32";
  Type element = tensor.getElementType();
  if (auto complex = llvm::dyn_cast<ComplexType>(element))
    element = complex.getElementType();
  if (element.isBF16())
    return "bfloat16";
  if (element.isF16())
    return "float16";
  if (element.isF64())
    return "float64";
  if (llvm::isa<FloatType>(element) && element.getIntOrFloatBitWidth() == 8)
    return "float8";
  if (element.isInteger(8))
    return "int8";
  return "float32";
}

double analysis::getTripCount(Operation *loop) {
  Region &condition = loop->getRegion(0);
  if (!condition.hasOneBlock())
    return 1;
  for (Operation &compare : condition.front()) {
    if (compare.getName().getStringRef() != "stablehlo.compare")
      continue;
    DenseIntElementsAttr bound;
    Value limit = compare.getOperand(1);
    // The limit may be a constant outside of the loop that is carried along.
    if (auto argument = llvm::dyn_cast<BlockArgument>(limit);
        argument && argument.getOwner() == &condition.front())
      limit = loop->getOperand(argument.getArgNumber());
    if (matchPattern(limit, m_Constant(&bound)) && bound.getNumElements() == 1)
      return std::max(1.0, static_cast<double>((*bound.begin()).getSExtValue()));
  }
  return 1;
}

static double regionFlops(Operation *op) {
  double flops = 0;
  for (Region &region : op->getRegions())
    for (Block &block : region)
      for (Operation &inner : block)
        flops += getFlops(&inner);
  return flops;
}

double analysis::getFlops(Operation *op) {
  llvm::StringRef name = op->getName().getStringRef();
  if (name == "stablehlo.while")
    return getTripCount(op) * regionFlops(op);
  if (name == "stablehlo.case")
    return regionFlops(op); // All branches: which one runs is not known.
  if (op->getNumResults() == 0)
    return 0;
  double results = numElements(op->getResult(0));
  if (name == "stablehlo.dot_general" || name == "stablehlo.convolution") {
    std::optional<ShardingRule> rule = getShardingRule(op);
    if (!rule)
      return 0;
    double flops = 2 * results;
    for (const Factor &factor : rule->factors)
      if (factor.kind == FactorKind::Reduction)
        flops *= static_cast<double>(factor.size);
    // A convolution's window: the kernel's spatial dimensions.
    if (name == "stablehlo.convolution")
      for (const DimFactors &dim : rule->operands[1])
        if (dim.size() == 1 && rule->factors[dim[0]].kind == FactorKind::Window)
          flops *= static_cast<double>(rule->factors[dim[0]].size);
    return flops;
  }
  if (auto dot = llvm::dyn_cast<chlo::RaggedDotOp>(op)) {
    auto numbers = dot.getRaggedDotDimensionNumbers();
    llvm::ArrayRef<int64_t> lhs = shapeOf(dot.getLhs());
    double flops = 2 * results;
    for (int64_t dim : numbers.getLhsContractingDimensions())
      flops *= static_cast<double>(lhs[dim]);
    // Each group contracts a part of its own.
    bool isParted = llvm::is_contained(numbers.getLhsContractingDimensions(),
                                       numbers.getLhsRaggedDimensions()[0]);
    return isParted ? flops / std::max(1.0, numElements(dot.getGroupSizes())) : flops;
  }
  if (std::optional<AttentionCall> call = AttentionCall::read(op))
    return call->flops();
  bool movesOnly = llvm::StringSwitch<bool>(name)
                       .Cases({"stablehlo.constant", "stablehlo.iota", "stablehlo.broadcast_in_dim",
                               "stablehlo.reshape", "stablehlo.transpose", "stablehlo.slice",
                               "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice",
                               "stablehlo.concatenate", "stablehlo.pad", "stablehlo.reverse",
                               "stablehlo.gather", "stablehlo.optimization_barrier",
                               "stablehlo.bitcast_convert", "sdy.sharding_constraint"},
                              true)
                       .Default(false);
  if (movesOnly)
    return 0;
  if (name == "stablehlo.reduce")
    return numElements(op->getOperand(0));
  if (name == "stablehlo.scatter")
    return numElements(op->getOperand(op->getNumResults() + 1));
  if (name == "stablehlo.sort" || name == "chlo.top_k")
    return numElements(op->getOperand(0)) * std::log2(2 + numElements(op->getOperand(0)));
  if (name == "stablehlo.fft")
    return 5 * numElements(op->getOperand(0)) * std::log2(2 + numElements(op->getOperand(0)));
  if (name == "stablehlo.reduce_window")
    if (auto window = op->getAttrOfType<DenseI64ArrayAttr>("window_dimensions"))
      for (int64_t size : window.asArrayRef())
        results *= static_cast<double>(size);
  return results;
}
