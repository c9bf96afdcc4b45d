//===- AssemblyFormat.h - pieces of the pretty form --------------*- C++ -*-===//
//
// The functions that the ops' `custom<...>` directives name. Types are written
// once where they repeat, and as a function type where they do not.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_DIALECTS_STABLEHLO_ASSEMBLYFORMAT_H
#define ALPA_DIALECTS_STABLEHLO_ASSEMBLYFORMAT_H

#include "dialects/StableHLO/StableHLOOps.h"

namespace mlir {

/// `t`, or `(t, u) -> t`; `types` are those of the operands, then the result.
ParseResult parseSameTypes(OpAsmParser &parser, ArrayRef<Type *> types);
void printSameTypes(OpAsmPrinter &printer, ArrayRef<Type> types);

template <typename... Types>
ParseResult parseSameOperandsAndResultType(OpAsmParser &parser, Types &...types) {
  return parseSameTypes(parser, {&types...});
}
template <typename... Types>
void printSameOperandsAndResultType(OpAsmPrinter &printer, Operation *, Types... types) {
  printSameTypes(printer, {types...});
}

using Operands = SmallVectorImpl<OpAsmParser::UnresolvedOperand>;

/// `t`, for any number of operands.
ParseResult parseVariadicSameOperandsAndResultType(OpAsmParser &parser, Operands &operands,
                                                   SmallVectorImpl<Type> &operandTypes,
                                                   Type &result);
void printVariadicSameOperandsAndResultType(OpAsmPrinter &printer, Operation *, OperandRange,
                                            TypeRange operandTypes, Type result);

/// `pred, t`, or a function type.
ParseResult parseSelectOpType(OpAsmParser &parser, Type &pred, Type &onTrue, Type &onFalse,
                              Type &result);
void printSelectOpType(OpAsmPrinter &printer, Operation *, Type pred, Type onTrue, Type onFalse,
                       Type result);

/// The complex type, or a function type.
ParseResult parseComplexOpType(OpAsmParser &parser, Type &lhs, Type &rhs, Type &result);
void printComplexOpType(OpAsmPrinter &printer, Operation *, Type lhs, Type rhs, Type result);

/// The tuple type, or a function type.
ParseResult parseTupleOpType(OpAsmParser &parser, SmallVectorImpl<Type> &operands, Type &result);
void printTupleOpType(OpAsmPrinter &printer, Operation *, TypeRange operands, Type result);

/// `t, u` for operands and results alike, or a function type.
ParseResult parsePairwiseOpType(OpAsmParser &parser, SmallVectorImpl<Type> &operands,
                                SmallVectorImpl<Type> &results);
void printPairwiseOpType(OpAsmPrinter &printer, Operation *, TypeRange operands, TypeRange results);

/// `%a, %b,`
ParseResult parseVariadicOperandWithAttribute(OpAsmParser &parser, Operands &operands);
void printVariadicOperandWithAttribute(OpAsmPrinter &printer, Operation *, OperandRange operands);

/// `[0:4, 1:8:2]`
ParseResult parseSliceRanges(OpAsmParser &parser, DenseI64ArrayAttr &start,
                             DenseI64ArrayAttr &limit, DenseI64ArrayAttr &strides);
void printSliceRanges(OpAsmPrinter &printer, Operation *, DenseI64ArrayAttr start,
                      DenseI64ArrayAttr limit, DenseI64ArrayAttr strides);

/// `e5m10`
ParseResult parseExponentMantissa(OpAsmParser &parser, IntegerAttr &exponent,
                                  IntegerAttr &mantissa);
void printExponentMantissa(OpAsmPrinter &printer, Operation *, IntegerAttr exponent,
                           IntegerAttr mantissa);

/// `@name`
ParseResult parseCustomCallTarget(OpAsmParser &parser, StringAttr &target);
void printCustomCallTarget(OpAsmPrinter &printer, Operation *, StringAttr target);

/// `batching_dims = [0] x [0], contracting_dims = [2] x [1]`
ParseResult parseDotDimensionNumbers(OpAsmParser &parser,
                                     stablehlo::DotDimensionNumbersAttr &numbers);
void printDotDimensionNumbers(OpAsmPrinter &printer, Operation *,
                              stablehlo::DotDimensionNumbersAttr numbers);

/// `, precision = [HIGH, DEFAULT], algorithm = <...>`
ParseResult parsePrecisionConfigAndAlgorithm(OpAsmParser &parser, ArrayAttr &precision,
                                             stablehlo::DotAlgorithmAttr &algorithm);
void printPrecisionConfigAndAlgorithm(OpAsmPrinter &printer, Operation *, ArrayAttr precision,
                                      stablehlo::DotAlgorithmAttr algorithm);

/// `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`
ParseResult parseConvolutionDimensions(AsmParser &parser,
                                       stablehlo::ConvDimensionNumbersAttr &numbers);
void printConvolutionDimensions(AsmPrinter &printer, stablehlo::ConvDimensionNumbersAttr numbers);
void printConvolutionDimensions(AsmPrinter &printer, Operation *,
                                stablehlo::ConvDimensionNumbersAttr numbers);

/// `stride = [1, 1], pad = [[0, 1], [0, 1]], lhs_dilate = .., rhs_dilate = .., reverse = ..`
ParseResult parseWindowAttributes(OpAsmParser &parser, DenseI64ArrayAttr &strides,
                                  DenseIntElementsAttr &padding, DenseI64ArrayAttr &lhsDilation,
                                  DenseI64ArrayAttr &rhsDilation, DenseBoolArrayAttr &reversal);
void printWindowAttributes(OpAsmPrinter &printer, Operation *, DenseI64ArrayAttr strides,
                           DenseIntElementsAttr padding, DenseI64ArrayAttr lhsDilation,
                           DenseI64ArrayAttr rhsDilation, DenseBoolArrayAttr reversal);

} // namespace mlir

#endif // ALPA_DIALECTS_STABLEHLO_ASSEMBLYFORMAT_H
