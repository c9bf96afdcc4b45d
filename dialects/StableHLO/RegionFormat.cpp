//===- RegionFormat.cpp - pretty form of constant, reduce and while -------===//

#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/TypeUtilities.h"

using namespace mlir;
using namespace mlir::stablehlo;

//===----------------------------------------------------------------------===//
// constant: `dense<1.0> : tensor<f32>`
//===----------------------------------------------------------------------===//

void ConstantOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  Type element = getElementTypeOrSelf(getType());
  setName(getOutput(), isa<IntegerType>(element) ? "c" : "cst");
}

ParseResult ConstantOp::parse(OpAsmParser &parser, OperationState &result) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  Attribute value;
  if (parser.parseOptionalAttrDict(result.attributes) || parser.parseAttribute(value))
    return failure();
  auto elements = dyn_cast<ElementsAttr>(value);
  if (!elements)
    return parser.emitError(loc) << "expected the elements of a tensor, got " << value;
  result.getOrAddProperties<Properties>().value = elements;
  result.addTypes(elements.getType());
  return success();
}

void ConstantOp::print(OpAsmPrinter &printer) {
  printer.printOptionalAttrDict((*this)->getDiscardableAttrDictionary().getValue());
  printer << " " << getValue();
}

void RngBitGeneratorOp::getAsmResultNames(OpAsmSetValueNameFn setName) {
  setName(getOutputState(), "output_state");
  setName(getOutput(), "output");
}

//===----------------------------------------------------------------------===//
// reduce: `(%x init: %i) applies stablehlo.add across dimensions = [0] : type`
//===----------------------------------------------------------------------===//

/// The name of the one binary op of this dialect that the body is, if it is one:
/// `op(first argument, second argument)` without attributes, returned at once,
/// with the location of the reduction (there is no room for another).
static Operation *getPlainReducer(ReduceOp op) {
  Block &block = op.getBody().front();
  if (op.getInputs().size() != 1 || block.getNumArguments() != 2 ||
      !llvm::hasNItems(block.begin(), block.end(), 2))
    return nullptr;
  Operation &inner = block.front();
  auto returned = dyn_cast<ReturnOp>(block.back());
  if (!returned || !isa_and_nonnull<StablehloDialect>(inner.getDialect()) ||
      inner.getNumOperands() != 2 || inner.getNumResults() != 1 || inner.getNumRegions() != 0 ||
      !inner.hasTrait<OpTrait::SameOperandsAndResultType>())
    return nullptr;
  if (inner.getOperand(0) != block.getArgument(0) || inner.getOperand(1) != block.getArgument(1) ||
      !llvm::equal(returned.getResults(), inner.getResults()))
    return nullptr;
  auto initType = dyn_cast<RankedTensorType>(op.getInitValues().front().getType());
  Type elementType = getElementTypeOrSelf(op.getInputs().front().getType());
  if (!initType || initType != RankedTensorType::get({}, elementType) ||
      block.getArgument(0).getType() != initType || block.getArgument(1).getType() != initType)
    return nullptr;
  bool plain = inner.getAttrDictionary().empty() && returned->getAttrDictionary().empty() &&
               inner.getLoc() == op.getLoc();
  return plain ? &inner : nullptr;
}

ParseResult ReduceOp::parse(OpAsmParser &parser, OperationState &result) {
  SmallVector<OpAsmParser::UnresolvedOperand> inputs, inits;
  llvm::SMLoc loc = parser.getCurrentLocation();
  auto parsePair = [&]() -> ParseResult {
    return failure(parser.parseLParen() || parser.parseOperand(inputs.emplace_back()) ||
                   parser.parseKeyword("init") || parser.parseColon() ||
                   parser.parseOperand(inits.emplace_back()) || parser.parseRParen());
  };
  if (parser.parseCommaSeparatedList(parsePair))
    return failure();

  std::optional<OperationName> reducer;
  llvm::SMLoc reducerLoc;
  if (succeeded(parser.parseOptionalKeyword("applies"))) {
    reducerLoc = parser.getCurrentLocation();
    FailureOr<OperationName> name = parser.parseCustomOperationName();
    if (failed(name))
      return failure();
    reducer = *name;
    if (!reducer->isRegistered() || reducer->getDialectNamespace() != "stablehlo" ||
        !reducer->hasTrait<OpTrait::SameOperandsAndResultType>() ||
        !reducer->hasTrait<OpTrait::NOperands<2>::Impl>())
      return parser.emitError(reducerLoc)
             << "expected an op of two operands and one result of the same type, got " << *reducer;
    if (inputs.size() != 1)
      return parser.emitError(reducerLoc) << "expected one input beside `applies`";
  }
  FunctionType type;
  Attribute dimensions;
  if (parser.parseKeyword("across") || parser.parseKeyword("dimensions") || parser.parseEqual())
    return failure();
  dimensions = DenseI64ArrayAttr::parse(parser, Type());
  if (!dimensions || parser.parseOptionalAttrDict(result.attributes) || parser.parseColonType(type))
    return failure();
  result.getOrAddProperties<Properties>().dimensions = cast<DenseI64ArrayAttr>(dimensions);
  result.addTypes(type.getResults());
  SmallVector<OpAsmParser::UnresolvedOperand> operands(inputs);
  llvm::append_range(operands, inits);
  if (type.getNumInputs() != operands.size())
    return parser.emitError(loc) << "expected types of " << operands.size() << " operands, got "
                                 << type.getNumInputs();
  if (parser.resolveOperands(operands, type.getInputs(), loc, result.operands))
    return failure();

  Region *body = result.addRegion();
  if (reducer) {
    std::optional<Location> trailing;
    if (parser.parseOptionalLocationSpecifier(trailing))
      return failure();
    if (trailing)
      result.location = *trailing;
    Location where = result.location;
    Type scalar = RankedTensorType::get({}, getElementTypeOrSelf(type.getInput(0)));
    OpBuilder builder(parser.getContext());
    Block *block = builder.createBlock(body, {}, {scalar, scalar}, {where, where});
    OperationState state(where, *reducer);
    state.addOperands(block->getArguments());
    state.addTypes(scalar);
    Operation *inner = builder.create(state);
    ReturnOp::create(builder, where, inner->getResults());
    return success();
  }

  // Arguments come in pairs, one pair an input: (%a, %b) stands at i and N + i.
  SmallVector<OpAsmParser::Argument> left, right;
  if (parser.parseKeyword("reducer"))
    return failure();
  for (size_t i = 0; i < inputs.size(); ++i)
    if (parser.parseLParen() ||
        parser.parseArgument(left.emplace_back(), /*allowType=*/true, /*allowAttrs=*/false) ||
        parser.parseComma() ||
        parser.parseArgument(right.emplace_back(), /*allowType=*/true, /*allowAttrs=*/false) ||
        parser.parseRParen())
      return failure();
  llvm::append_range(left, right);
  return parser.parseRegion(*body, left);
}

void ReduceOp::print(OpAsmPrinter &printer) {
  llvm::interleaveComma(llvm::zip(getInputs(), getInitValues()), printer, [&](auto pair) {
    printer << "(" << std::get<0>(pair) << " init: " << std::get<1>(pair) << ")";
  });
  Operation *reducer = getPlainReducer(*this);
  if (reducer)
    printer << " applies " << reducer->getName().getStringRef();
  printer << " across dimensions = [";
  llvm::interleaveComma(getDimensions(), printer);
  printer << "]";
  printer.printOptionalAttrDict((*this)->getDiscardableAttrDictionary().getValue());
  printer << " : ";
  printer.printFunctionalType(*this);
  if (reducer)
    return;
  printer.printNewline();
  printer << " reducer";
  Block &block = getBody().front();
  size_t pairs = block.getNumArguments() / 2;
  for (size_t i = 0; i < pairs; ++i) {
    printer << "(";
    printer.printRegionArgument(block.getArgument(i));
    printer << ", ";
    printer.printRegionArgument(block.getArgument(i + pairs));
    printer << ") ";
  }
  printer << ' ';
  printer.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}

//===----------------------------------------------------------------------===//
// while: `(%i = %init) : type cond {..} do {..}`
//
// Sizes may be known in some of operands, arguments and results only; then all types are
// written: `(%i : type = %init) : type -> type cond {..} do (%j : type) {..}`.
//===----------------------------------------------------------------------===//

void WhileOp::getAsmBlockArgumentNames(Region &region, OpAsmSetValueNameFn setName) {
  if (!region.empty())
    for (BlockArgument argument : region.front().getArguments())
      setName(argument, "iterArg");
}

/// Whether operands, arguments and results have the same types, not only such that agree.
static bool hasOneTypeEach(WhileOp op) {
  TypeRange types = op.getOperandTypes();
  return types == op.getResultTypes() && types == op.getCond().getArgumentTypes() &&
         types == op.getBody().getArgumentTypes();
}

ParseResult WhileOp::parse(OpAsmParser &parser, OperationState &result) {
  SmallVector<OpAsmParser::Argument> cond, body;
  SmallVector<OpAsmParser::UnresolvedOperand> operands;
  SmallVector<Type> types;
  llvm::SMLoc loc = parser.getCurrentLocation();
  auto parsePair = [&]() -> ParseResult {
    OpAsmParser::Argument &argument = cond.emplace_back();
    return failure(parser.parseArgument(argument) ||
                   (succeeded(parser.parseOptionalColon()) && parser.parseType(argument.type)) ||
                   parser.parseEqual() || parser.parseOperand(operands.emplace_back()));
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Paren, parsePair))
    return failure();
  if (!operands.empty() && parser.parseColonTypeList(types))
    return failure();
  if (parser.resolveOperands(operands, types, loc, result.operands))
    return failure();
  bool differ = succeeded(parser.parseOptionalArrow());
  if (differ ? bool(parser.parseTypeList(result.types)) : (result.addTypes(types), false))
    return failure();
  for (auto [argument, type] : llvm::zip_equal(cond, types))
    if (!argument.type)
      argument.type = type;
  body = cond;
  if (parser.parseOptionalAttrDictWithKeyword(result.attributes) || parser.parseKeyword("cond") ||
      parser.parseRegion(*result.addRegion(), cond) || parser.parseKeyword("do"))
    return failure();
  if (differ) {
    body.clear();
    if (parser.parseArgumentList(body, AsmParser::Delimiter::Paren, /*allowType=*/true))
      return failure();
  }
  return parser.parseRegion(*result.addRegion(), body);
}

void WhileOp::print(OpAsmPrinter &printer) {
  bool differ = !hasOneTypeEach(*this);
  printer << '(';
  if (!differ)
    printer.shadowRegionArgs(getBody(), getCond().front().getArguments());
  llvm::interleaveComma(llvm::zip(getCond().front().getArguments(), getOperand()), printer,
                        [&](auto pair) {
                          printer.printOperand(std::get<0>(pair));
                          if (differ)
                            printer << " : " << std::get<0>(pair).getType();
                          printer << " = " << std::get<1>(pair);
                        });
  printer << ")";
  if (getNumOperands() != 0) {
    printer << " : ";
    llvm::interleaveComma(getOperandTypes(), printer);
  }
  if (differ) {
    printer << " -> ";
    llvm::interleaveComma(getResultTypes(), printer);
  }
  printer.printOptionalAttrDictWithKeyword((*this)->getDiscardableAttrDictionary().getValue());
  printer.printNewline();
  printer << "cond ";
  printer.printRegion(getCond(), /*printEntryBlockArgs=*/false);
  printer << " do ";
  if (differ) {
    printer << '(';
    llvm::interleaveComma(getBody().front().getArguments(), printer,
                          [&](BlockArgument argument) { printer.printRegionArgument(argument); });
    printer << ") ";
  }
  printer.printRegion(getBody(), /*printEntryBlockArgs=*/false);
}
