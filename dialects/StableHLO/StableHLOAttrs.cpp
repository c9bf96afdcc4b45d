//===- StableHLOAttrs.cpp - text of the attribute structures --------------===//

#include "dialects/Common/StructText.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::stablehlo;

#include "dialects/StableHLO/StableHLOEnums.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/StableHLO/StableHLOAttrs.cpp.inc"

void StablehloDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/StableHLO/StableHLOAttrs.cpp.inc"
      >();
}

using alpa::parseDims;
using alpa::parseStruct;
using alpa::StructPrinter;
using Dims = SmallVector<int64_t>;

Attribute DotDimensionNumbersAttr::parse(AsmParser &parser, Type) {
  Dims lhsBatching, rhsBatching, lhsContracting, rhsContracting;
  if (parseStruct(
          parser,
          {{"lhs_batching_dimensions", [&] { return parseDims(parser, lhsBatching); }},
           {"rhs_batching_dimensions", [&] { return parseDims(parser, rhsBatching); }},
           {"lhs_contracting_dimensions", [&] { return parseDims(parser, lhsContracting); }},
           {"rhs_contracting_dimensions", [&] { return parseDims(parser, rhsContracting); }}}))
    return {};
  return get(parser.getContext(), lhsBatching, rhsBatching, lhsContracting, rhsContracting);
}

void DotDimensionNumbersAttr::print(AsmPrinter &printer) const {
  StructPrinter(printer)
      .dims("lhs_batching_dimensions", getLhsBatchingDimensions())
      .dims("rhs_batching_dimensions", getRhsBatchingDimensions())
      .dims("lhs_contracting_dimensions", getLhsContractingDimensions())
      .dims("rhs_contracting_dimensions", getRhsContractingDimensions());
}

Attribute DotAlgorithmAttr::parse(AsmParser &parser, Type) {
  Type lhs, rhs, accumulation;
  int64_t lhsCount = 1, rhsCount = 1, operations = 1;
  bool imprecise = false;
  llvm::SMLoc loc = parser.getCurrentLocation();
  auto parseFlag = [&]() -> ParseResult {
    if (succeeded(parser.parseOptionalKeyword("true")))
      imprecise = true;
    else if (failed(parser.parseOptionalKeyword("false")))
      return parser.emitError(parser.getCurrentLocation(), "expected true or false");
    return success();
  };
  if (parseStruct(parser,
                  {{"lhs_precision_type", [&] { return parser.parseType(lhs); }},
                   {"rhs_precision_type", [&] { return parser.parseType(rhs); }},
                   {"accumulation_type", [&] { return parser.parseType(accumulation); }},
                   {"lhs_component_count", [&] { return parser.parseInteger(lhsCount); }},
                   {"rhs_component_count", [&] { return parser.parseInteger(rhsCount); }},
                   {"num_primitive_operations", [&] { return parser.parseInteger(operations); }},
                   {"allow_imprecise_accumulation", [&] { return parseFlag(); }}}))
    return {};
  if (!lhs || !rhs || !accumulation) {
    parser.emitError(loc, "expected lhs_precision_type, rhs_precision_type and accumulation_type");
    return {};
  }
  return get(parser.getContext(), lhs, rhs, accumulation, lhsCount, rhsCount, operations,
             imprecise);
}

void DotAlgorithmAttr::print(AsmPrinter &printer) const {
  StructPrinter(printer)
      .value("lhs_precision_type", getLhsPrecisionType())
      .value("rhs_precision_type", getRhsPrecisionType())
      .value("accumulation_type", getAccumulationType())
      .value("lhs_component_count", getLhsComponentCount())
      .value("rhs_component_count", getRhsComponentCount())
      .value("num_primitive_operations", getNumPrimitiveOperations())
      .value("allow_imprecise_accumulation", getAllowImpreciseAccumulation() ? "true" : "false");
}

Attribute GatherDimensionNumbersAttr::parse(AsmParser &parser, Type) {
  Dims offset, collapsed, operandBatching, indicesBatching, indexMap;
  int64_t indexVectorDim = 0;
  if (parseStruct(
          parser,
          {{"offset_dims", [&] { return parseDims(parser, offset); }},
           {"collapsed_slice_dims", [&] { return parseDims(parser, collapsed); }},
           {"operand_batching_dims", [&] { return parseDims(parser, operandBatching); }},
           {"start_indices_batching_dims", [&] { return parseDims(parser, indicesBatching); }},
           {"start_index_map", [&] { return parseDims(parser, indexMap); }},
           {"index_vector_dim", [&] { return parser.parseInteger(indexVectorDim); }}}))
    return {};
  return get(parser.getContext(), offset, collapsed, operandBatching, indicesBatching, indexMap,
             indexVectorDim);
}

void GatherDimensionNumbersAttr::print(AsmPrinter &printer) const {
  StructPrinter text(printer);
  text.dims("offset_dims", getOffsetDims())
      .dims("collapsed_slice_dims", getCollapsedSliceDims())
      .dims("operand_batching_dims", getOperandBatchingDims())
      .dims("start_indices_batching_dims", getStartIndicesBatchingDims())
      .dims("start_index_map", getStartIndexMap());
  if (getIndexVectorDim())
    text.value("index_vector_dim", getIndexVectorDim());
}

Attribute ScatterDimensionNumbersAttr::parse(AsmParser &parser, Type) {
  Dims window, inserted, inputBatching, indicesBatching, toOperand;
  int64_t indexVectorDim = 0;
  if (parseStruct(
          parser,
          {{"update_window_dims", [&] { return parseDims(parser, window); }},
           {"inserted_window_dims", [&] { return parseDims(parser, inserted); }},
           {"input_batching_dims", [&] { return parseDims(parser, inputBatching); }},
           {"scatter_indices_batching_dims", [&] { return parseDims(parser, indicesBatching); }},
           {"scatter_dims_to_operand_dims", [&] { return parseDims(parser, toOperand); }},
           {"index_vector_dim", [&] { return parser.parseInteger(indexVectorDim); }}}))
    return {};
  return get(parser.getContext(), window, inserted, inputBatching, indicesBatching, toOperand,
             indexVectorDim);
}

void ScatterDimensionNumbersAttr::print(AsmPrinter &printer) const {
  StructPrinter text(printer);
  text.dims("update_window_dims", getUpdateWindowDims())
      .dims("inserted_window_dims", getInsertedWindowDims())
      .dims("input_batching_dims", getInputBatchingDims())
      .dims("scatter_indices_batching_dims", getScatterIndicesBatchingDims())
      .dims("scatter_dims_to_operand_dims", getScatterDimsToOperandDims());
  if (getIndexVectorDim())
    text.value("index_vector_dim", getIndexVectorDim());
}

Attribute ChannelHandleAttr::parse(AsmParser &parser, Type) {
  int64_t handle = 0, type = 0;
  if (parseStruct(parser, {{"handle", [&] { return parser.parseInteger(handle); }},
                           {"type", [&] { return parser.parseInteger(type); }}}))
    return {};
  return get(parser.getContext(), handle, type);
}

void ChannelHandleAttr::print(AsmPrinter &printer) const {
  StructPrinter(printer).value("handle", getHandle()).value("type", getType());
}

Attribute OutputOperandAliasAttr::parse(AsmParser &parser, Type) {
  Dims output, operand;
  int64_t index = 0;
  if (parseStruct(parser, {{"output_tuple_indices", [&] { return parseDims(parser, output); }},
                           {"operand_index", [&] { return parser.parseInteger(index); }},
                           {"operand_tuple_indices", [&] { return parseDims(parser, operand); }}}))
    return {};
  return get(parser.getContext(), output, index, operand);
}

void OutputOperandAliasAttr::print(AsmPrinter &printer) const {
  StructPrinter(printer)
      .dims("output_tuple_indices", getOutputTupleIndices(), /*always=*/true)
      .value("operand_index", getOperandIndex())
      .dims("operand_tuple_indices", getOperandTupleIndices(), /*always=*/true);
}

LogicalResult ResultAccuracyAttr::verify(function_ref<InFlightDiagnostic()> emitError, APFloat atol,
                                         APFloat rtol, int64_t ulps, ResultAccuracyModeAttr mode) {
  if (atol.isNegative() || rtol.isNegative() || ulps < 0)
    return emitError() << "result_accuracy_c1: expected tolerances not to be negative";
  bool none = atol.isZero() && rtol.isZero() && ulps == 0;
  if (!none && mode.getValue() != ResultAccuracyMode::TOLERANCE)
    return emitError() << "result_accuracy_c2: expected no tolerances with mode "
                       << stringifyResultAccuracyMode(mode.getValue());
  return success();
}

Attribute ResultAccuracyAttr::parse(AsmParser &parser, Type) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  double atol = 0, rtol = 0;
  int64_t ulps = 0;
  ResultAccuracyModeAttr mode =
      ResultAccuracyModeAttr::get(parser.getContext(), ResultAccuracyMode::DEFAULT);
  if (parseStruct(parser, {{"atol", [&] { return parser.parseFloat(atol); }},
                           {"rtol", [&] { return parser.parseFloat(rtol); }},
                           {"ulps", [&] { return parser.parseInteger(ulps); }},
                           {"mode", [&] { return parser.parseAttribute(mode); }}}))
    return {};
  return getChecked([&] { return parser.emitError(loc); }, parser.getContext(), APFloat(atol),
                    APFloat(rtol), ulps, mode);
}

void ResultAccuracyAttr::print(AsmPrinter &printer) const {
  StructPrinter text(printer);
  if (!getAtol().isZero())
    printer.printFloat((text.start("atol"), getAtol()));
  if (!getRtol().isZero())
    printer.printFloat((text.start("rtol"), getRtol()));
  if (getUlps())
    text.value("ulps", getUlps());
  text.value("mode", getMode());
}
