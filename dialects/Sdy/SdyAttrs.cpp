//===- SdyAttrs.cpp - text forms of meshes and shardings ------------------===//

#include "dialects/Sdy/SdyDialect.h"

#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace mlir::sdy;

#define GET_ATTRDEF_CLASSES
#include "dialects/Sdy/SdyAttrs.cpp.inc"

void SdyDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Sdy/SdyAttrs.cpp.inc"
      >();
}

/// A list of attributes that have no prefix of their own where they stand.
template <typename Attr>
static ParseResult parseList(AsmParser &parser, AsmParser::Delimiter delimiter,
                             SmallVectorImpl<Attr> &list) {
  return parser.parseCommaSeparatedList(delimiter, [&]() -> ParseResult {
    auto attribute = llvm::dyn_cast_or_null<Attr>(Attr::parse(parser, Type()));
    if (!attribute)
      return failure();
    list.push_back(attribute);
    return success();
  });
}

template <typename Attr>
static void printList(AsmPrinter &printer, char open, ArrayRef<Attr> list, char close) {
  printer << open;
  llvm::interleaveComma(list, printer, [&](Attr attribute) { attribute.print(printer); });
  printer << close;
}

static void printName(AsmPrinter &printer, StringRef name) {
  printer << '"';
  llvm::printEscapedString(name, printer.getStream());
  printer << '"';
}

// --- Meshes -----------------------------------------------------------------

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
  SmallVector<int64_t> devices;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parseList(parser, AsmParser::Delimiter::Square, axes))
    return {};
  if (succeeded(parser.parseOptionalComma()) &&
      (parser.parseKeyword("device_ids") || parser.parseEqual() ||
       parser.parseCommaSeparatedList(AsmParser::Delimiter::Square,
                                      [&] { return parser.parseInteger(devices.emplace_back()); })))
    return {};
  if (parser.parseGreater())
    return {};
  return getChecked([&] { return parser.emitError(loc); }, parser.getContext(), axes, devices);
}

void MeshAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printList(printer, '[', getAxes(), ']');
  if (!getDeviceIds().empty()) {
    printer << ", device_ids=[";
    llvm::interleaveComma(getDeviceIds(), printer);
    printer << "]";
  }
  printer << ">";
}

LogicalResult MeshAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                               ArrayRef<MeshAxisAttr> axes, ArrayRef<int64_t> devices) {
  int64_t total = 1;
  llvm::StringSet<> names;
  for (MeshAxisAttr axis : axes) {
    if (axis.getSize() <= 0)
      return emitError() << "sdy_mesh_c1: axis \"" << axis.getName() << "\" has size "
                         << axis.getSize() << ", expected a positive one";
    if (!names.insert(axis.getName()).second)
      return emitError() << "sdy_mesh_c2: axis \"" << axis.getName() << "\" stands twice";
    if (llvm::MulOverflow(total, axis.getSize(), total))
      return emitError() << "sdy_mesh_c1: the product of the axis sizes overflows";
  }
  if (devices.empty())
    return success();
  if (axes.empty() && devices.size() == 1 && devices.front() >= 0)
    return success();
  if (int64_t(devices.size()) != total)
    return emitError() << "sdy_mesh_c3: got " << devices.size() << " device ids, expected "
                       << total;
  SmallVector<int64_t> sorted(devices);
  llvm::sort(sorted);
  for (auto [expected, id] : llvm::enumerate(sorted))
    if (id != int64_t(expected))
      return emitError() << "sdy_mesh_c3: device ids are not a permutation of 0 to " << total - 1;
  return success();
}

// --- Shardings --------------------------------------------------------------

Attribute AxisRefAttr::parse(AsmParser &parser, Type) {
  std::string name;
  int64_t preSize = 1, size = 0;
  if (parser.parseString(&name))
    return {};
  if (succeeded(parser.parseOptionalColon()) &&
      (parser.parseLParen() || parser.parseInteger(preSize) || parser.parseRParen() ||
       parser.parseInteger(size)))
    return {};
  return get(parser.getContext(), name, preSize, size);
}

void AxisRefAttr::print(AsmPrinter &printer) const {
  printName(printer, getName());
  if (getSize() != 0)
    printer << ":(" << getPreSize() << ")" << getSize();
}

Attribute DimensionShardingAttr::parse(AsmParser &parser, Type) {
  SmallVector<AxisRefAttr> axes;
  bool closed = true;
  auto parseOne = [&]() -> ParseResult {
    if (!closed)
      return parser.emitError(parser.getCurrentLocation(), "`?` must stand last");
    if (succeeded(parser.parseOptionalQuestion())) {
      closed = false;
      return success();
    }
    auto axis = llvm::dyn_cast_or_null<AxisRefAttr>(AxisRefAttr::parse(parser, Type()));
    if (!axis)
      return failure();
    axes.push_back(axis);
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Braces, parseOne))
    return {};
  // A priority is one word: p and digits.
  int64_t priority = -1;
  StringRef word;
  SMLoc loc = parser.getCurrentLocation();
  if (succeeded(parser.parseOptionalKeyword(&word)) &&
      (!word.consume_front("p") || word.getAsInteger(10, priority) || priority < 0)) {
    parser.emitError(loc, "expected a priority such as `p1`");
    return {};
  }
  return get(parser.getContext(), axes, closed, priority);
}

void DimensionShardingAttr::print(AsmPrinter &printer) const {
  printer << "{";
  llvm::interleaveComma(getAxes(), printer, [&](AxisRefAttr axis) { axis.print(printer); });
  if (!getIsClosed())
    printer << (getAxes().empty() ? "?" : ", ?");
  printer << "}";
  if (getPriority() >= 0)
    printer << "p" << getPriority();
}

Attribute TensorShardingAttr::parse(AsmParser &parser, Type) {
  Attribute mesh;
  StringAttr symbol;
  SmallVector<DimensionShardingAttr> dims;
  SmallVector<AxisRefAttr> replicated, unreduced;
  if (parser.parseLess())
    return {};
  if (succeeded(parser.parseOptionalKeyword("mesh"))) {
    mesh = MeshAttr::parse(parser, Type());
    if (!mesh)
      return {};
  } else {
    if (parser.parseSymbolName(symbol))
      return {};
    mesh = FlatSymbolRefAttr::get(symbol);
  }
  if (parser.parseComma() || parseList(parser, AsmParser::Delimiter::Square, dims))
    return {};
  while (succeeded(parser.parseOptionalComma())) {
    StringRef word;
    SMLoc loc = parser.getCurrentLocation();
    if (parser.parseKeyword(&word) || parser.parseEqual())
      return {};
    if (word != "replicated" && word != "unreduced") {
      parser.emitError(loc, "expected `replicated` or `unreduced`, got `") << word << "`";
      return {};
    }
    if (parseList(parser, AsmParser::Delimiter::Braces,
                  word == "replicated" ? replicated : unreduced))
      return {};
  }
  if (parser.parseGreater())
    return {};
  return get(parser.getContext(), mesh, dims, replicated, unreduced);
}

void TensorShardingAttr::print(AsmPrinter &printer) const {
  printer << "<";
  if (auto mesh = llvm::dyn_cast<MeshAttr>(getMeshOrRef())) {
    printer << "mesh";
    mesh.print(printer);
  } else {
    printer << getMeshOrRef();
  }
  printer << ", ";
  printList(printer, '[', getDims(), ']');
  auto printAxes = [&](StringRef word, ArrayRef<AxisRefAttr> axes) {
    if (axes.empty())
      return;
    printer << ", " << word << "=";
    printList(printer, '{', axes, '}');
  };
  printAxes("replicated", getReplicated());
  printAxes("unreduced", getUnreduced());
  printer << ">";
}

Attribute TensorShardingPerValueAttr::parse(AsmParser &parser, Type) {
  SmallVector<TensorShardingAttr> shardings;
  if (parser.parseLess() || parseList(parser, AsmParser::Delimiter::Square, shardings) ||
      parser.parseGreater())
    return {};
  return get(parser.getContext(), shardings);
}

void TensorShardingPerValueAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printList(printer, '[', getShardings(), ']');
  printer << ">";
}

Attribute ManualAxesAttr::parse(AsmParser &parser, Type) {
  SmallVector<StringAttr> axes;
  auto parseOne = [&]() -> ParseResult {
    std::string name;
    if (parser.parseString(&name))
      return failure();
    axes.push_back(StringAttr::get(parser.getContext(), name));
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Braces, parseOne))
    return {};
  return get(parser.getContext(), axes);
}

void ManualAxesAttr::print(AsmPrinter &printer) const {
  printer << "{";
  llvm::interleaveComma(getAxes(), printer,
                        [&](StringAttr axis) { printName(printer, axis.getValue()); });
  printer << "}";
}
