//===- ChloDialect.cpp - client ops that JAX emits ------------------------===//

#include "dialects/Chlo/ChloDialect.h"

#include "mlir/IR/Builders.h"
#include "mlir/Transforms/InliningUtils.h"

using namespace mlir;
using namespace mlir::chlo;

#include "dialects/Chlo/ChloDialect.cpp.inc"

#define GET_OP_CLASSES
#include "dialects/Chlo/ChloOps.cpp.inc"

namespace {
struct ChloInliner : DialectInlinerInterface {
  using DialectInlinerInterface::DialectInlinerInterface;
  bool isLegalToInline(Operation *, Region *, bool, IRMapping &) const final { return true; }
};
} // namespace

void ChloDialect::initialize() {
  addOperations<
#define GET_OP_LIST
#include "dialects/Chlo/ChloOps.cpp.inc"
      >();
  addInterfaces<ChloInliner>();
}

LogicalResult TopKOp::verify() {
  auto operand = cast<RankedTensorType>(getOperand().getType());
  int64_t k = getK();
  if (operand.getRank() == 0)
    return emitOpError("chlo_top_k_c1: the operand is a scalar");
  if (!operand.isDynamicDim(operand.getRank() - 1) && operand.getShape().back() < k)
    return emitOpError("chlo_top_k_c1: got k = ")
           << k << ", but the last dimension has size " << operand.getShape().back();
  SmallVector<int64_t> shape(operand.getShape());
  shape.back() = k;
  auto values = RankedTensorType::get(shape, operand.getElementType());
  if (getValues().getType() != values)
    return emitOpError("chlo_top_k_c2: got values of type ")
           << getValues().getType() << ", expected " << values;
  auto indices = RankedTensorType::get(shape, IntegerType::get(getContext(), 32));
  if (getIndices().getType() != indices)
    return emitOpError("chlo_top_k_c2: got indices of type ")
           << getIndices().getType() << ", expected " << indices;
  return success();
}
