//===- SdyDialect.cpp - ops of meshes and shardings -----------------------===//

#include "dialects/Common/UnknownOps.h"
#include "dialects/Sdy/SdyOps.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace mlir::sdy;

#include "dialects/Sdy/SdyDialect.cpp.inc"
#define GET_OP_CLASSES
#include "dialects/Sdy/SdyOps.cpp.inc"

void SdyDialect::registerOps() {
  addOperations<
#define GET_OP_LIST
#include "dialects/Sdy/SdyOps.cpp.inc"
      >();
}

std::optional<Dialect::ParseOpHook> SdyDialect::getParseOperationHook(StringRef) const {
  return alpa::refuseUnknownOps();
}

void SdyDialect::initialize() {
  registerAttributes();
  registerOps();
  addInterfaces<alpa::InlineAnything>();
  alpa::explainUnknownOps(*this);
}

//===----------------------------------------------------------------------===//
// sharding_constraint, reshard
//===----------------------------------------------------------------------===//

static LogicalResult verifySharding(Operation *op, StringRef label, TensorShardingAttr sharding,
                                    Type type, SymbolTableCollection &symbols) {
  auto mesh = dyn_cast<MeshAttr>(sharding.getMeshOrRef());
  if (!mesh) {
    auto name = cast<FlatSymbolRefAttr>(sharding.getMeshOrRef());
    auto meshOp = symbols.lookupNearestSymbolFrom<MeshOp>(op, name);
    if (!meshOp)
      return op->emitOpError(label) << "_c1: there is no mesh " << name;
    mesh = meshOp.getMesh();
  }
  SmallVector<AxisRefAttr> axes(sharding.getReplicatedAxes());
  llvm::append_range(axes, sharding.getUnreducedAxes());
  for (DimensionShardingAttr dim : sharding.getDimShardings())
    llvm::append_range(axes, dim.getAxes());
  for (AxisRefAttr axis : axes)
    if (mesh.getAxisSize(axis.getName()) == 0)
      return op->emitOpError(label) << "_c1: the mesh has no axis \"" << axis.getName() << "\"";
  int64_t rank = cast<RankedTensorType>(type).getRank();
  // A mesh of one device shards nothing; JAX then leaves the dimensions out.
  bool maximal = mesh.getAxes().empty() && !mesh.getDeviceIds().empty();
  if (!maximal && int64_t(sharding.getDimShardings().size()) != rank)
    return op->emitOpError(label) << "_c2: expected " << rank << " entries, got "
                                  << sharding.getDimShardings().size();
  return success();
}

LogicalResult ShardingConstraintOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifySharding(*this, "sdy_sharding_constraint", getSharding(), getType(), symbols);
}

LogicalResult ReshardOp::verifySymbolUses(SymbolTableCollection &symbols) {
  return verifySharding(*this, "sdy_reshard", getSharding(), getType(), symbols);
}

//===----------------------------------------------------------------------===//
// manual_computation
//===----------------------------------------------------------------------===//

LogicalResult ManualComputationOp::verify() {
  if (getInShardings().getShardings().size() != getTensors().size() ||
      getOutShardings().getShardings().size() != getResults().size())
    return emitOpError("sdy_manual_computation_c1: expected ")
           << getTensors().size() << " and " << getResults().size() << " shardings, got "
           << getInShardings().getShardings().size() << " and "
           << getOutShardings().getShardings().size();
  Block &block = getBody().front();
  if (block.getNumArguments() != getTensors().size() || block.empty() ||
      !isa<ReturnOp>(block.back()) || block.back().getNumOperands() != getResults().size())
    return emitOpError("sdy_manual_computation_c2: expected a body from ")
           << getTensors().size() << " values to " << getResults().size()
           << " that ends in sdy.return";
  return success();
}

/// One attribute of the form that stands behind its name and `=`.
template <typename T> static ParseResult parseNamed(OpAsmParser &parser, StringRef name, T &value) {
  if (parser.parseKeyword(name) || parser.parseEqual())
    return failure();
  value = dyn_cast_or_null<T>(T::parse(parser, Type()));
  return success(value != nullptr);
}

/// `[<@mesh, [{"x"}]>, ...]`: the attribute without its outer `<>`.
static ParseResult parseShardings(OpAsmParser &parser, StringRef name,
                                  TensorShardingPerValueAttr &value) {
  SmallVector<TensorShardingAttr> shardings;
  auto parseItem = [&]() -> ParseResult {
    auto item = TensorShardingAttr::parse(parser, Type());
    shardings.push_back(dyn_cast_or_null<TensorShardingAttr>(item));
    return success(item != nullptr);
  };
  if (parser.parseKeyword(name) || parser.parseEqual() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseItem))
    return failure();
  value = TensorShardingPerValueAttr::get(parser.getContext(), shardings);
  return success();
}

ParseResult ManualComputationOp::parse(OpAsmParser &parser, OperationState &result) {
  SmallVector<OpAsmParser::UnresolvedOperand> operands;
  SmallVector<OpAsmParser::Argument> arguments;
  FunctionType type;
  auto &properties = result.getOrAddProperties<Properties>();
  llvm::SMLoc loc = parser.getCurrentLocation();
  if (parser.parseOperandList(operands, AsmParser::Delimiter::Paren) ||
      parseShardings(parser, "in_shardings", properties.in_shardings) ||
      parseShardings(parser, "out_shardings", properties.out_shardings) ||
      parseNamed(parser, "manual_axes", properties.manual_axes) ||
      parser.parseArgumentList(arguments, AsmParser::Delimiter::Paren, /*allowType=*/true) ||
      parser.parseRegion(*result.addRegion(), arguments) ||
      parser.parseOptionalAttrDict(result.attributes) || parser.parseColonType(type))
    return failure();
  result.addTypes(type.getResults());
  if (type.getNumInputs() != operands.size())
    return parser.emitError(loc) << "expected types of " << operands.size() << " operands, got "
                                 << type.getNumInputs();
  return parser.resolveOperands(operands, type.getInputs(), loc, result.operands);
}

void ManualComputationOp::print(OpAsmPrinter &printer) {
  auto printShardings = [&](StringRef name, TensorShardingPerValueAttr value) {
    printer << " " << name << "=[";
    llvm::interleaveComma(value.getShardings(), printer,
                          [&](TensorShardingAttr item) { item.print(printer); });
    printer << "]";
  };
  printer << "(" << getTensors() << ")";
  printShardings("in_shardings", getInShardings());
  printShardings("out_shardings", getOutShardings());
  printer << " manual_axes=";
  getManualAxes().print(printer);
  printer << " (";
  llvm::interleaveComma(getBody().getArguments(), printer,
                        [&](BlockArgument argument) { printer.printRegionArgument(argument); });
  printer << ") ";
  printer.printRegion(getBody(), /*printEntryBlockArgs=*/false);
  printer.printOptionalAttrDict((*this)->getDiscardableAttrDictionary().getValue());
  printer << " : ";
  printer.printFunctionalType(*this);
}
