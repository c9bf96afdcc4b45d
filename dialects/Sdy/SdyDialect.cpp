//===- SdyDialect.cpp - the dialect and its ops ---------------------------===//

#include "dialects/Sdy/SdyDialect.h"

#include "mlir/IR/Builders.h"
#include "mlir/Transforms/InliningUtils.h"

using namespace mlir;
using namespace mlir::sdy;

#include "dialects/Sdy/SdyDialect.cpp.inc"

#define GET_OP_CLASSES
#include "dialects/Sdy/SdyOps.cpp.inc"

namespace {
struct SdyInliner : DialectInlinerInterface {
  using DialectInlinerInterface::DialectInlinerInterface;
  bool isLegalToInline(Operation *, Region *, bool, IRMapping &) const final { return true; }
  bool isLegalToInline(Region *, Region *, bool, IRMapping &) const final { return true; }
};
} // namespace

void SdyDialect::initialize() {
  registerAttributes();
  addOperations<
#define GET_OP_LIST
#include "dialects/Sdy/SdyOps.cpp.inc"
      >();
  addInterfaces<SdyInliner>();
}

// The parts of the pretty form are `in_shardings=[<..>, ..]`, and so on.
static ParseResult parseKeyword(OpAsmParser &parser, StringRef keyword) {
  return failure(parser.parseKeyword(keyword) || parser.parseEqual());
}

static ParseResult parsePerValue(OpAsmParser &parser, StringRef keyword, StringAttr name,
                                 OperationState &state) {
  SmallVector<TensorShardingAttr> shardings;
  auto parseOne = [&]() -> ParseResult {
    auto sharding = dyn_cast_or_null<TensorShardingAttr>(TensorShardingAttr::parse(parser, Type()));
    if (!sharding)
      return failure();
    shardings.push_back(sharding);
    return success();
  };
  if (parseKeyword(parser, keyword) ||
      parser.parseCommaSeparatedList(OpAsmParser::Delimiter::Square, parseOne))
    return failure();
  state.addAttribute(name, TensorShardingPerValueAttr::get(parser.getContext(), shardings));
  return success();
}

ParseResult ManualComputationOp::parse(OpAsmParser &parser, OperationState &state) {
  SmallVector<OpAsmParser::UnresolvedOperand> operands;
  SMLoc operandsLoc = parser.getCurrentLocation();
  if (parser.parseOperandList(operands, OpAsmParser::Delimiter::Paren) ||
      parsePerValue(parser, "in_shardings", getInShardingsAttrName(state.name), state) ||
      parsePerValue(parser, "out_shardings", getOutShardingsAttrName(state.name), state) ||
      parseKeyword(parser, "manual_axes"))
    return failure();
  Attribute axes = ManualAxesAttr::parse(parser, Type());
  if (!axes)
    return failure();
  state.addAttribute(getManualAxesAttrName(state.name), axes);

  SmallVector<OpAsmParser::Argument> arguments;
  FunctionType type;
  Region *body = state.addRegion();
  if (parser.parseArgumentList(arguments, OpAsmParser::Delimiter::Paren, /*allowType=*/true) ||
      parser.parseRegion(*body, arguments) || parser.parseOptionalAttrDict(state.attributes) ||
      parser.parseColonType(type) ||
      parser.resolveOperands(operands, type.getInputs(), operandsLoc, state.operands))
    return failure();
  state.addTypes(type.getResults());
  ensureTerminator(*body, parser.getBuilder(), state.location);
  return success();
}

void ManualComputationOp::print(OpAsmPrinter &printer) {
  auto printPerValue = [&](StringRef keyword, TensorShardingPerValueAttr shardings) {
    printer << " " << keyword << "=[";
    llvm::interleaveComma(shardings.getShardings(), printer,
                          [&](TensorShardingAttr sharding) { sharding.print(printer); });
    printer << "]";
  };
  printer << "(" << getTensors() << ")";
  printPerValue("in_shardings", getInShardings());
  printPerValue("out_shardings", getOutShardings());
  printer << " manual_axes=";
  getManualAxes().print(printer);
  printer << " (";
  llvm::interleaveComma(getBody().getArguments(), printer,
                        [&](BlockArgument argument) { printer.printRegionArgument(argument); });
  printer << ") ";
  printer.printRegion(getBody(), /*printEntryBlockArgs=*/false);
  printer.printOptionalAttrDict(
      (*this)->getAttrs(),
      {getInShardingsAttrName(), getOutShardingsAttrName(), getManualAxesAttrName()});
  printer << " : ";
  printer.printFunctionalType(*this);
}

LogicalResult ManualComputationOp::verify() {
  auto differ = [&](StringRef label, StringRef what, size_t got, size_t expected) {
    return emitOpError(label) << ": got " << got << " " << what << ", expected " << expected;
  };
  size_t ins = getInShardings().getShardings().size(),
         outs = getOutShardings().getShardings().size();
  if (ins != getTensors().size())
    return differ("sdy_manual_computation_c1", "in_shardings", ins, getTensors().size());
  if (outs != getNumResults())
    return differ("sdy_manual_computation_c1", "out_shardings", outs, getNumResults());
  if (getBody().getNumArguments() != getTensors().size())
    return differ("sdy_manual_computation_c2", "body arguments", getBody().getNumArguments(),
                  getTensors().size());
  return success();
}

LogicalResult ManualComputationOp::verifyRegions() {
  size_t returned = getBody().front().getTerminator()->getNumOperands();
  if (returned != getNumResults())
    return emitOpError("sdy_manual_computation_c2: got ")
           << returned << " returned values, expected " << getNumResults();
  return success();
}
