//===- AssemblyFormat.cpp - pieces of the pretty form ---------------------===//

#include "dialects/StableHLO/AssemblyFormat.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace mlir::stablehlo;

/// Hands out the types of a function type that was read where types may repeat.
static ParseResult assignFunctionType(OpAsmParser &parser, llvm::SMLoc loc, FunctionType function,
                                      ArrayRef<Type *> operands, Type &result) {
  if (function.getNumInputs() != operands.size() || function.getNumResults() != 1)
    return parser.emitError(loc) << "expected a type from " << operands.size()
                                 << " operands to 1 result, got " << function;
  for (auto [operand, type] : llvm::zip_equal(operands, function.getInputs()))
    *operand = type;
  result = function.getResult(0);
  return success();
}

static void printFunctionType(OpAsmPrinter &printer, TypeRange operands, TypeRange results) {
  printer.printFunctionalType(operands, results);
}

ParseResult mlir::parseSameTypes(OpAsmParser &parser, ArrayRef<Type *> types) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  Type type;
  if (parser.parseType(type))
    return failure();
  if (auto function = dyn_cast<FunctionType>(type))
    return assignFunctionType(parser, loc, function, types.drop_back(), *types.back());
  for (Type *item : types)
    *item = type;
  return success();
}

void mlir::printSameTypes(OpAsmPrinter &printer, ArrayRef<Type> types) {
  if (llvm::all_equal(types))
    printer.printType(types.front());
  else
    printFunctionType(printer, types.drop_back(), types.back());
}

ParseResult mlir::parseVariadicSameOperandsAndResultType(OpAsmParser &parser, Operands &operands,
                                                         SmallVectorImpl<Type> &operandTypes,
                                                         Type &result) {
  operandTypes.resize(operands.size());
  SmallVector<Type *> types;
  for (Type &type : operandTypes)
    types.push_back(&type);
  types.push_back(&result);
  return parseSameTypes(parser, types);
}

void mlir::printVariadicSameOperandsAndResultType(OpAsmPrinter &printer, Operation *, OperandRange,
                                                  TypeRange operandTypes, Type result) {
  SmallVector<Type> types(operandTypes);
  types.push_back(result);
  printSameTypes(printer, types);
}

ParseResult mlir::parseSelectOpType(OpAsmParser &parser, Type &pred, Type &onTrue, Type &onFalse,
                                    Type &result) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  Type first;
  if (parser.parseType(first))
    return failure();
  if (auto function = dyn_cast<FunctionType>(first))
    return assignFunctionType(parser, loc, function, {&pred, &onTrue, &onFalse}, result);
  pred = first;
  if (parser.parseComma() || parser.parseType(result))
    return failure();
  onTrue = onFalse = result;
  return success();
}

void mlir::printSelectOpType(OpAsmPrinter &printer, Operation *, Type pred, Type onTrue,
                             Type onFalse, Type result) {
  if (onTrue == result && onFalse == result)
    printer << pred << ", " << result;
  else
    printFunctionType(printer, TypeRange({pred, onTrue, onFalse}), result);
}

/// The type of the parts of a complex tensor, or null.
static Type partsOf(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  auto element = tensor ? dyn_cast<ComplexType>(tensor.getElementType()) : ComplexType();
  return element ? Type(tensor.clone(element.getElementType())) : Type();
}

ParseResult mlir::parseComplexOpType(OpAsmParser &parser, Type &lhs, Type &rhs, Type &result) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  if (parser.parseType(result))
    return failure();
  if (auto function = dyn_cast<FunctionType>(result))
    return assignFunctionType(parser, loc, function, {&lhs, &rhs}, result);
  lhs = rhs = partsOf(result);
  if (!lhs)
    return parser.emitError(loc) << "expected a tensor of complex elements, got " << result;
  return success();
}

void mlir::printComplexOpType(OpAsmPrinter &printer, Operation *, Type lhs, Type rhs, Type result) {
  Type parts = partsOf(result);
  if (parts && lhs == parts && rhs == parts)
    printer << result;
  else
    printFunctionType(printer, TypeRange({lhs, rhs}), result);
}

ParseResult mlir::parseTupleOpType(OpAsmParser &parser, SmallVectorImpl<Type> &operands,
                                   Type &result) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  if (parser.parseType(result))
    return failure();
  if (auto tuple = dyn_cast<TupleType>(result)) {
    llvm::append_range(operands, tuple.getTypes());
    return success();
  }
  auto function = dyn_cast<FunctionType>(result);
  if (!function || function.getNumResults() != 1)
    return parser.emitError(loc) << "expected a tuple type, got " << result;
  llvm::append_range(operands, function.getInputs());
  result = function.getResult(0);
  return success();
}

void mlir::printTupleOpType(OpAsmPrinter &printer, Operation *, TypeRange operands, Type result) {
  auto tuple = dyn_cast<TupleType>(result);
  if (tuple && TypeRange(tuple.getTypes()) == operands)
    printer << result;
  else
    printFunctionType(printer, operands, result);
}

ParseResult mlir::parsePairwiseOpType(OpAsmParser &parser, SmallVectorImpl<Type> &operands,
                                      SmallVectorImpl<Type> &results) {
  if (parser.parseTypeList(operands))
    return failure();
  auto function = operands.size() == 1 ? dyn_cast<FunctionType>(operands.front()) : FunctionType();
  if (!function) {
    results.assign(operands.begin(), operands.end());
    return success();
  }
  operands.assign(function.getInputs().begin(), function.getInputs().end());
  results.assign(function.getResults().begin(), function.getResults().end());
  return success();
}

void mlir::printPairwiseOpType(OpAsmPrinter &printer, Operation *, TypeRange operands,
                               TypeRange results) {
  if (operands == results)
    llvm::interleaveComma(operands, printer);
  else
    printFunctionType(printer, operands, results);
}

ParseResult mlir::parseVariadicOperandWithAttribute(OpAsmParser &parser, Operands &operands) {
  while (true) {
    OpAsmParser::UnresolvedOperand operand;
    OptionalParseResult parsed = parser.parseOptionalOperand(operand);
    if (!parsed.has_value())
      return operands.empty() ? parser.parseComma() : ParseResult(success());
    if (failed(*parsed) || parser.parseComma())
      return failure();
    operands.push_back(operand);
  }
}

void mlir::printVariadicOperandWithAttribute(OpAsmPrinter &printer, Operation *,
                                             OperandRange operands) {
  llvm::interleaveComma(operands, printer);
  printer << ",";
}

ParseResult mlir::parseSliceRanges(OpAsmParser &parser, DenseI64ArrayAttr &start,
                                   DenseI64ArrayAttr &limit, DenseI64ArrayAttr &strides) {
  SmallVector<int64_t> starts, limits, steps;
  auto parseRange = [&]() -> ParseResult {
    if (parser.parseInteger(starts.emplace_back()) || parser.parseColon() ||
        parser.parseInteger(limits.emplace_back()))
      return failure();
    steps.push_back(1);
    if (succeeded(parser.parseOptionalColon()))
      return parser.parseInteger(steps.back());
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseRange))
    return failure();
  start = parser.getBuilder().getDenseI64ArrayAttr(starts);
  limit = parser.getBuilder().getDenseI64ArrayAttr(limits);
  strides = parser.getBuilder().getDenseI64ArrayAttr(steps);
  return success();
}

void mlir::printSliceRanges(OpAsmPrinter &printer, Operation *, DenseI64ArrayAttr start,
                            DenseI64ArrayAttr limit, DenseI64ArrayAttr strides) {
  printer << "[";
  // Lists of unequal lengths occur in ops that do not verify; print what there is.
  llvm::interleaveComma(llvm::zip(start.asArrayRef(), limit.asArrayRef(), strides.asArrayRef()),
                        printer, [&](auto range) {
                          auto [from, to, step] = range;
                          printer << from << ":" << to;
                          if (step != 1)
                            printer << ":" << step;
                        });
  printer << "]";
}

ParseResult mlir::parseExponentMantissa(OpAsmParser &parser, IntegerAttr &exponent,
                                        IntegerAttr &mantissa) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  StringRef word;
  if (parser.parseKeyword(&word))
    return failure();
  StringRef rest = word;
  int32_t exponentBits, mantissaBits;
  if (!rest.consume_front("e") || rest.consumeInteger(10, exponentBits) ||
      !rest.consume_front("m") || rest.consumeInteger(10, mantissaBits) || !rest.empty())
    return parser.emitError(loc) << "expected a format such as e5m10, got " << word;
  exponent = parser.getBuilder().getI32IntegerAttr(exponentBits);
  mantissa = parser.getBuilder().getI32IntegerAttr(mantissaBits);
  return success();
}

void mlir::printExponentMantissa(OpAsmPrinter &printer, Operation *, IntegerAttr exponent,
                                 IntegerAttr mantissa) {
  printer << "e" << exponent.getInt() << "m" << mantissa.getInt();
}

ParseResult mlir::parseCustomCallTarget(OpAsmParser &parser, StringAttr &target) {
  return parser.parseSymbolName(target);
}

void mlir::printCustomCallTarget(OpAsmPrinter &printer, Operation *, StringAttr target) {
  printer.printSymbolName(target.getValue());
}
