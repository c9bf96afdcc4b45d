//===- SdyAttrs.cpp - text of meshes and shardings ------------------------===//

#include "dialects/Common/StructText.h"
#include "dialects/Sdy/SdyOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/SmallSet.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mlir::sdy;
using Delimiter = AsmParser::Delimiter;

#define GET_ATTRDEF_CLASSES
#include "dialects/Sdy/SdyAttrs.cpp.inc"

void SdyDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Sdy/SdyAttrs.cpp.inc"
      >();
}

static void printName(AsmPrinter &printer, StringRef name) { printer.printString(name); }

//===----------------------------------------------------------------------===//
// Meshes
//===----------------------------------------------------------------------===//

Attribute MeshAxisAttr::parse(AsmParser &parser, Type) {
  std::string name;
  int64_t size;
  if (parser.parseString(&name) || parser.parseEqual() || parser.parseInteger(size))
    return {};
  return get(parser.getContext(), name, size);
}

void MeshAxisAttr::print(AsmPrinter &printer) const {
  printName(printer, getName());
  printer << "=" << getSize();
}

Attribute MeshAttr::parse(AsmParser &parser, Type) {
  SmallVector<MeshAxisAttr> axes;
  SmallVector<int64_t> ids;
  llvm::SMLoc loc = parser.getCurrentLocation();
  auto parseAxis = [&]() -> ParseResult {
    axes.push_back(dyn_cast_or_null<MeshAxisAttr>(MeshAxisAttr::parse(parser, Type())));
    return success(axes.back() != nullptr);
  };
  if (parser.parseLess() || parser.parseCommaSeparatedList(Delimiter::Square, parseAxis))
    return {};
  if (succeeded(parser.parseOptionalComma()) &&
      (parser.parseKeyword("device_ids") || parser.parseEqual() || alpa::parseDims(parser, ids)))
    return {};
  if (parser.parseGreater())
    return {};
  return parser.getChecked<MeshAttr>(loc, parser.getContext(), axes, ids);
}

void MeshAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getAxes(), printer, [&](MeshAxisAttr axis) { axis.print(printer); });
  printer << "]";
  if (!getDeviceIds().empty()) {
    printer << ", device_ids=";
    alpa::printDims(printer, getDeviceIds());
  }
  printer << ">";
}

LogicalResult MeshAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                               ArrayRef<MeshAxisAttr> axes, ArrayRef<int64_t> ids) {
  llvm::StringSet<> names;
  int64_t places = 1;
  for (MeshAxisAttr axis : axes) {
    if (!names.insert(axis.getName()).second)
      return emitError() << "sdy_mesh_c1: axis \"" << axis.getName() << "\" is named twice";
    if (axis.getSize() <= 0)
      return emitError() << "sdy_mesh_c1: expected a positive size of axis \"" << axis.getName()
                         << "\", got " << axis.getSize();
    if (llvm::MulOverflow(places, axis.getSize(), places))
      return emitError() << "sdy_mesh_c1: the mesh is too large";
  }
  if (ids.empty())
    return success();
  if (int64_t(ids.size()) != places)
    return emitError() << "sdy_mesh_c2: expected " << places << " device ids, got " << ids.size();
  llvm::SmallSet<int64_t, 16> seen;
  for (int64_t id : ids)
    if (id < 0 || !seen.insert(id).second)
      return emitError() << "sdy_mesh_c2: device id " << id << " is negative or named twice";
  return success();
}

int64_t MeshAttr::getAxisSize(StringRef name) const {
  for (MeshAxisAttr axis : getAxes())
    if (axis.getName() == name)
      return axis.getSize();
  return 0;
}

//===----------------------------------------------------------------------===//
// Shardings
//===----------------------------------------------------------------------===//

Attribute AxisRefAttr::parse(AsmParser &parser, Type) {
  std::string name;
  int64_t pre = 0, size = 0;
  llvm::SMLoc loc = parser.getCurrentLocation();
  if (parser.parseString(&name))
    return {};
  if (succeeded(parser.parseOptionalColon())) {
    if (parser.parseLParen() || parser.parseInteger(pre) || parser.parseRParen() ||
        parser.parseInteger(size))
      return {};
    if (pre <= 0 || size <= 1) {
      parser.emitError(loc, "expected a sub-axis of a size above 1");
      return {};
    }
  }
  return get(parser.getContext(), name, pre, size);
}

void AxisRefAttr::print(AsmPrinter &printer) const {
  printName(printer, getName());
  if (!isFullAxis())
    printer << ":(" << getPreSize() << ")" << getSubSize();
}

static ParseResult parseAxis(AsmParser &parser, SmallVectorImpl<AxisRefAttr> &axes) {
  axes.push_back(dyn_cast_or_null<AxisRefAttr>(AxisRefAttr::parse(parser, Type())));
  return success(axes.back() != nullptr);
}

Attribute DimensionShardingAttr::parse(AsmParser &parser, Type) {
  SmallVector<AxisRefAttr> axes;
  bool closed = true;
  int64_t priority = -1;
  auto parseItem = [&]() -> ParseResult {
    if (!closed)
      return parser.emitError(parser.getCurrentLocation(), "expected nothing behind `?`");
    if (succeeded(parser.parseOptionalQuestion())) {
      closed = false;
      return success();
    }
    return parseAxis(parser, axes);
  };
  if (parser.parseCommaSeparatedList(Delimiter::Braces, parseItem))
    return {};
  llvm::SMLoc loc = parser.getCurrentLocation();
  StringRef word;
  if (succeeded(parser.parseOptionalKeyword(&word)) &&
      (!word.consume_front("p") || word.getAsInteger(10, priority) || priority < 0)) {
    parser.emitError(loc, "expected a priority such as p0");
    return {};
  }
  return get(parser.getContext(), axes, closed, priority);
}

static void printAxes(AsmPrinter &printer, ArrayRef<AxisRefAttr> axes) {
  llvm::interleaveComma(axes, printer, [&](AxisRefAttr axis) { axis.print(printer); });
}

void DimensionShardingAttr::print(AsmPrinter &printer) const {
  printer << "{";
  printAxes(printer, getAxes());
  if (!getIsClosed())
    printer << (getAxes().empty() ? "?" : ", ?");
  printer << "}";
  if (hasPriority())
    printer << "p" << getPriority();
}

Attribute TensorShardingAttr::parse(AsmParser &parser, Type) {
  Attribute mesh;
  SmallVector<DimensionShardingAttr> dims;
  SmallVector<AxisRefAttr> replicated, unreduced;
  llvm::SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess())
    return {};
  if (succeeded(parser.parseOptionalKeyword("mesh"))) {
    mesh = MeshAttr::parse(parser, Type());
  } else {
    StringAttr name;
    if (parser.parseSymbolName(name))
      return {};
    mesh = FlatSymbolRefAttr::get(name);
  }
  auto parseDim = [&]() -> ParseResult {
    auto dim = DimensionShardingAttr::parse(parser, Type());
    dims.push_back(dyn_cast_or_null<DimensionShardingAttr>(dim));
    return success(dim != nullptr);
  };
  if (!mesh || parser.parseComma() || parser.parseCommaSeparatedList(Delimiter::Square, parseDim))
    return {};
  while (succeeded(parser.parseOptionalComma())) {
    llvm::SMLoc wordLoc = parser.getCurrentLocation();
    StringRef word;
    if (parser.parseKeyword(&word) || parser.parseEqual())
      return {};
    if (word != "replicated" && word != "unreduced") {
      parser.emitError(wordLoc) << "expected replicated or unreduced, got " << word;
      return {};
    }
    SmallVector<AxisRefAttr> &axes = word == "replicated" ? replicated : unreduced;
    if (parser.parseCommaSeparatedList(Delimiter::Braces, [&] { return parseAxis(parser, axes); }))
      return {};
  }
  if (parser.parseGreater())
    return {};
  return parser.getChecked<TensorShardingAttr>(loc, parser.getContext(), mesh, dims, replicated,
                                               unreduced);
}

void TensorShardingAttr::print(AsmPrinter &printer) const {
  printer << "<";
  if (auto mesh = dyn_cast<MeshAttr>(getMeshOrRef())) {
    printer << "mesh";
    mesh.print(printer);
  } else {
    printer.printAttribute(getMeshOrRef());
  }
  printer << ", [";
  llvm::interleaveComma(getDimShardings(), printer,
                        [&](DimensionShardingAttr dim) { dim.print(printer); });
  printer << "]";
  auto printList = [&](StringRef name, ArrayRef<AxisRefAttr> axes) {
    if (axes.empty())
      return;
    printer << ", " << name << "={";
    printAxes(printer, axes);
    printer << "}";
  };
  printList("replicated", getReplicatedAxes());
  printList("unreduced", getUnreducedAxes());
  printer << ">";
}

LogicalResult TensorShardingAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                         Attribute mesh, ArrayRef<DimensionShardingAttr> dims,
                                         ArrayRef<AxisRefAttr> replicated,
                                         ArrayRef<AxisRefAttr> unreduced) {
  if (!isa_and_nonnull<FlatSymbolRefAttr, MeshAttr>(mesh))
    return emitError() << "expected a mesh or its name";
  SmallVector<AxisRefAttr> all;
  for (DimensionShardingAttr dim : dims)
    llvm::append_range(all, dim.getAxes());
  llvm::append_range(all, replicated);
  llvm::append_range(all, unreduced);
  llvm::SmallDenseSet<Attribute, 8> seen;
  for (AxisRefAttr axis : all)
    if (!seen.insert(axis).second)
      return emitError() << "sdy_sharding_c1: axis \"" << axis.getName() << "\" is used twice";
  return success();
}

Attribute TensorShardingPerValueAttr::parse(AsmParser &parser, Type) {
  SmallVector<TensorShardingAttr> shardings;
  auto parseItem = [&]() -> ParseResult {
    auto item = TensorShardingAttr::parse(parser, Type());
    shardings.push_back(dyn_cast_or_null<TensorShardingAttr>(item));
    return success(item != nullptr);
  };
  if (parser.parseLess() || parser.parseCommaSeparatedList(Delimiter::Square, parseItem) ||
      parser.parseGreater())
    return {};
  return get(parser.getContext(), shardings);
}

void TensorShardingPerValueAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getShardings(), printer,
                        [&](TensorShardingAttr item) { item.print(printer); });
  printer << "]>";
}

Attribute ManualAxesAttr::parse(AsmParser &parser, Type) {
  SmallVector<StringAttr> names;
  auto parseName = [&]() -> ParseResult {
    std::string name;
    if (parser.parseString(&name))
      return failure();
    names.push_back(StringAttr::get(parser.getContext(), name));
    return success();
  };
  if (parser.parseCommaSeparatedList(Delimiter::Braces, parseName))
    return {};
  return get(parser.getContext(), names);
}

void ManualAxesAttr::print(AsmPrinter &printer) const {
  printer << "{";
  llvm::interleaveComma(getValue(), printer,
                        [&](StringAttr name) { printName(printer, name.getValue()); });
  printer << "}";
}

//===----------------------------------------------------------------------===//
// Sharding rules: `<([i, jk])->([k]) {i=2, j=2, k=4} reduction={j}, custom>`
//===----------------------------------------------------------------------===//

Attribute OpShardingRuleAttr::parse(AsmParser &parser, Type) {
  std::string text;
  llvm::raw_string_ostream os(text);
  // A list in brackets, rewritten with the usual spaces.
  auto parseList = [&](Delimiter delimiter, StringRef open, StringRef close,
                       function_ref<ParseResult()> parseItem) -> ParseResult {
    bool first = true;
    os << open;
    auto separated = [&]() -> ParseResult {
      os << (first ? "" : ", ");
      first = false;
      return parseItem();
    };
    if (parser.parseCommaSeparatedList(delimiter, separated))
      return failure();
    os << close;
    return success();
  };
  auto parseFactors = [&]() -> ParseResult {
    StringRef factors;
    if (parser.parseKeyword(&factors))
      return failure();
    os << factors;
    return success();
  };
  auto parseTensor = [&] { return parseList(Delimiter::Square, "[", "]", parseFactors); };
  auto parseSize = [&]() -> ParseResult {
    int64_t size;
    if (parseFactors() || parser.parseEqual() || parser.parseInteger(size))
      return failure();
    os << "=" << size;
    return success();
  };
  if (parser.parseLess() || parseList(Delimiter::Paren, "(", ")->", parseTensor) ||
      parser.parseArrow() || parseList(Delimiter::Paren, "(", ") ", parseTensor) ||
      parseList(Delimiter::Braces, "{", "}", parseSize))
    return {};
  StringRef word;
  while (succeeded(parser.parseOptionalKeyword(&word))) {
    os << " " << word << "=";
    if (parser.parseEqual() || parseList(Delimiter::Braces, "{", "}", parseFactors))
      return {};
  }
  if (succeeded(parser.parseOptionalComma())) {
    if (parser.parseKeyword("custom"))
      return {};
    os << ", custom";
  }
  if (parser.parseGreater())
    return {};
  return get(parser.getContext(), text);
}

void OpShardingRuleAttr::print(AsmPrinter &printer) const { printer << "<" << getText() << ">"; }
