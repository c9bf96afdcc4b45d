//===- ChloDialect.cpp - functions beside StableHLO that JAX emits --------===//

#include "dialects/Chlo/ChloOps.h"
#include "dialects/Common/StructText.h"
#include "dialects/Common/UnknownOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::chlo;

#include "dialects/Chlo/ChloDialect.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Chlo/ChloAttrs.cpp.inc"
#define GET_OP_CLASSES
#include "dialects/Chlo/ChloOps.cpp.inc"

void ChloDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Chlo/ChloAttrs.cpp.inc"
      >();
}

void ChloDialect::registerOps() {
  addOperations<
#define GET_OP_LIST
#include "dialects/Chlo/ChloOps.cpp.inc"
      >();
}

std::optional<Dialect::ParseOpHook> ChloDialect::getParseOperationHook(StringRef) const {
  return alpa::refuseUnknownOps();
}

void ChloDialect::initialize() {
  registerAttributes();
  registerOps();
  addInterfaces<alpa::InlineAnything>();
  alpa::explainUnknownOps(*this);
}

Attribute RaggedDotDimensionNumbersAttr::parse(AsmParser &parser, Type) {
  SmallVector<int64_t> lhsBatching, rhsBatching, lhsContracting, rhsContracting, ragged, group;
  auto dims = [&](SmallVector<int64_t> &list) {
    return [&] { return alpa::parseDims(parser, list); };
  };
  auto parseLhsBatching = dims(lhsBatching), parseRhsBatching = dims(rhsBatching),
       parseLhsContracting = dims(lhsContracting), parseRhsContracting = dims(rhsContracting),
       parseRagged = dims(ragged), parseGroup = dims(group);
  if (alpa::parseStruct(parser, {{"lhs_batching_dimensions", parseLhsBatching},
                                 {"rhs_batching_dimensions", parseRhsBatching},
                                 {"lhs_contracting_dimensions", parseLhsContracting},
                                 {"rhs_contracting_dimensions", parseRhsContracting},
                                 {"lhs_ragged_dimensions", parseRagged},
                                 {"rhs_group_dimensions", parseGroup}}))
    return {};
  return get(parser.getContext(), lhsBatching, rhsBatching, lhsContracting, rhsContracting, ragged,
             group);
}

void RaggedDotDimensionNumbersAttr::print(AsmPrinter &printer) const {
  alpa::StructPrinter(printer)
      .dims("lhs_batching_dimensions", getLhsBatchingDimensions())
      .dims("rhs_batching_dimensions", getRhsBatchingDimensions())
      .dims("lhs_contracting_dimensions", getLhsContractingDimensions())
      .dims("rhs_contracting_dimensions", getRhsContractingDimensions())
      .dims("lhs_ragged_dimensions", getLhsRaggedDimensions())
      .dims("rhs_group_dimensions", getRhsGroupDimensions());
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

void TopKOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getValues(), "values");
  setName(getIndices(), "indices");
}

LogicalResult TopKOp::verify() {
  auto type = cast<RankedTensorType>(getOperand().getType());
  if (type.getRank() == 0)
    return emitOpError("top_k_c1: expected an operand with a dimension, got ") << type;
  int64_t k = getKAttr().getInt(), size = type.getShape().back();
  if (k < 0 || (!ShapedType::isDynamic(size) && k > size))
    return emitOpError("top_k_c2: expected k from 0 to ") << size << ", got " << k;
  SmallVector<int64_t> shape(type.getShape());
  shape.back() = k;
  auto values = cast<RankedTensorType>(getValues().getType());
  if (failed(verifyCompatibleShape(values.getShape(), shape)) ||
      values.getElementType() != type.getElementType() ||
      failed(
          verifyCompatibleShape(cast<RankedTensorType>(getIndices().getType()).getShape(), shape)))
    return emitOpError("top_k_c3: expected results of shape ")
           << type.clone(shape) << " and its indices, got " << getValues().getType() << " and "
           << getIndices().getType();
  return success();
}

LogicalResult RaggedDotOp::verify() {
  auto numbers = getRaggedDotDimensionNumbers();
  auto lhs = cast<RankedTensorType>(getLhs().getType());
  auto rhs = cast<RankedTensorType>(getRhs().getType());
  auto exist = [&](StringRef side, ArrayRef<int64_t> dims, int64_t rank) -> LogicalResult {
    for (int64_t dim : dims)
      if (dim < 0 || dim >= rank)
        return emitOpError("ragged_dot_c3: ") << side << " has no dimension " << dim;
    return success();
  };
  for (ArrayRef<int64_t> dims :
       {numbers.getLhsBatchingDimensions(), numbers.getLhsContractingDimensions(),
        numbers.getLhsRaggedDimensions()})
    if (failed(exist("lhs", dims, lhs.getRank())))
      return failure();
  for (ArrayRef<int64_t> dims :
       {numbers.getRhsBatchingDimensions(), numbers.getRhsContractingDimensions(),
        numbers.getRhsGroupDimensions()})
    if (failed(exist("rhs", dims, rhs.getRank())))
      return failure();
  auto pair = [&](StringRef label, ArrayRef<int64_t> left, ArrayRef<int64_t> right) {
    bool fits = left.size() == right.size();
    for (size_t i = 0; fits && i < left.size(); ++i)
      fits = succeeded(verifyCompatibleShape(ArrayRef(lhs.getDimSize(left[i])),
                                             ArrayRef(rhs.getDimSize(right[i]))));
    return fits ? success() : emitOpError(label) << ": dimensions of lhs and rhs do not pair up";
  };
  if (failed(pair("ragged_dot_c1", numbers.getLhsBatchingDimensions(),
                  numbers.getRhsBatchingDimensions())) ||
      failed(pair("ragged_dot_c2", numbers.getLhsContractingDimensions(),
                  numbers.getRhsContractingDimensions())))
    return failure();
  if (numbers.getLhsRaggedDimensions().size() != 1 || numbers.getRhsGroupDimensions().size() > 1)
    return emitOpError("ragged_dot_c4: expected one ragged dimension of lhs and at most one of "
                       "groups of rhs");
  return success();
}
