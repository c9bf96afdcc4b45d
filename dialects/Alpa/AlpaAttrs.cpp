//===- AlpaAttrs.cpp - shardings, meshes and stages -----------------------===//

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/SmallSet.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace alpa;

#define GET_ATTRDEF_CLASSES
#include "dialects/Alpa/AlpaAttrs.cpp.inc"

void AlpaDialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "dialects/Alpa/AlpaAttrs.cpp.inc"
      >();
}

llvm::hash_code alpa::hash_value(const ShardingSpec &spec) {
  llvm::hash_code code = llvm::hash_value(spec.dims.size());
  for (ArrayRef<unsigned> axes : spec.dims)
    code = llvm::hash_combine(code, llvm::hash_combine_range(axes));
  return llvm::hash_combine(code, llvm::hash_combine_range(spec.unreduced));
}

Attribute ShardingAttr::parse(AsmParser &parser, Type) {
  ShardingSpec spec;
  auto parseEntry = [&]() -> ParseResult {
    llvm::SMLoc loc = parser.getCurrentLocation();
    StringRef word;
    if (parser.parseKeyword(&word))
      return failure();
    auto &axes = spec.dims.emplace_back();
    if (word == "R")
      return success();
    StringRef digits = word;
    if (!digits.consume_front("S") || digits.empty() ||
        !llvm::all_of(digits, [](char c) { return c >= '0' && c <= '9'; }))
      return parser.emitError(loc, "alpa_sharding_c1: expected `R` or `S` and axis digits, got `")
             << word << "`";
    for (char digit : digits)
      axes.push_back(digit - '0');
    return success();
  };
  llvm::SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseEntry))
    return {};
  if (succeeded(parser.parseOptionalComma())) {
    auto parseAxis = [&] { return parser.parseInteger(spec.unreduced.emplace_back()); };
    if (parser.parseKeyword("unreduced") || parser.parseEqual() ||
        parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseAxis))
      return {};
  }
  if (parser.parseGreater())
    return {};
  return parser.getChecked<ShardingAttr>(loc, parser.getContext(), spec);
}

void ShardingAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getSpec().dims, printer, [&](ArrayRef<unsigned> axes) {
    printer << (axes.empty() ? "R" : "S");
    for (unsigned axis : axes)
      printer << axis;
  });
  printer << "]";
  if (!getSpec().unreduced.empty()) {
    printer << ", unreduced = [";
    llvm::interleaveComma(getSpec().unreduced, printer);
    printer << "]";
  }
  printer << ">";
}

LogicalResult ShardingAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                                   ShardingSpec spec) {
  llvm::SmallSet<unsigned, 4> seen;
  for (ArrayRef<unsigned> axes : spec.dims) {
    for (unsigned axis : axes) {
      if (axis > 9)
        return emitError() << "alpa_sharding_c1: mesh axis " << axis << " is not one digit";
      if (!seen.insert(axis).second)
        return emitError() << "alpa_sharding_c2: mesh axis " << axis
                           << " is used twice; an axis splits one dimension, once";
    }
  }
  for (auto [i, axis] : llvm::enumerate(spec.unreduced)) {
    if (axis > 9)
      return emitError() << "alpa_sharding_c1: mesh axis " << axis << " is not one digit";
    if (!seen.insert(axis).second || (i > 0 && axis < spec.unreduced[i - 1]))
      return emitError() << "alpa_sharding_c3: expected unreduced axes that rise and split "
                            "no dimension, got mesh axis "
                         << axis;
  }
  return success();
}

LogicalResult MeshAttr::verify(function_ref<InFlightDiagnostic()> emitError,
                               ArrayRef<int64_t> shape, ArrayRef<int64_t> devices) {
  if (shape.empty() || shape.size() > 3)
    return emitError() << "alpa_mesh_c1: expected one to three mesh axes, got " << shape.size();
  int64_t product = 1;
  for (int64_t size : shape) {
    if (size < 1)
      return emitError() << "alpa_mesh_c1: expected axes of size at least 1, got " << size;
    product *= size;
  }
  if (int64_t(devices.size()) != product)
    return emitError() << "alpa_mesh_c2: the shape needs " << product << " devices, got "
                       << devices.size();
  llvm::DenseSet<int64_t> seen;
  for (int64_t device : devices) {
    if (device < 0)
      return emitError() << "alpa_mesh_c3: device " << device << " is negative";
    if (!seen.insert(device).second)
      return emitError() << "alpa_mesh_c3: device " << device << " is there twice";
  }
  return success();
}

LogicalResult StageAttr::verify(function_ref<InFlightDiagnostic()> emitError, MeshAttr mesh,
                                int64_t firstLayer, int64_t endLayer, DictionaryAttr predicted,
                                DictionaryAttr solver) {
  if (firstLayer < 0 || endLayer <= firstLayer)
    return emitError() << "alpa_stage_c1: expected 0 <= first < end, got layers [" << firstLayer
                       << ", " << endLayer << "]";
  return success();
}

LogicalResult alpa::verifySpec(function_ref<InFlightDiagnostic()> emitError,
                               const ShardingSpec &spec, Type type, ArrayRef<int64_t> meshShape) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  if (!tensor)
    return emitError() << "a sharding needs a ranked tensor, got " << type;
  if (tensor.getRank() != int64_t(spec.dims.size()))
    return emitError() << "the sharding has " << spec.dims.size() << " entries, but " << type
                       << " has " << tensor.getRank() << " dimensions";
  if (meshShape.empty())
    return success();
  if (!spec.unreduced.empty())
    return emitError() << "only terms of a sum are there along mesh axis " << spec.unreduced.front()
                       << "; run alpa-defer-sums first";
  for (auto [dim, axes] : llvm::enumerate(spec.dims)) {
    int64_t pieces = 1;
    for (unsigned axis : axes) {
      if (axis >= meshShape.size())
        return emitError() << "the sharding uses mesh axis " << axis << ", but the mesh has "
                           << meshShape.size() << " axes";
      pieces *= meshShape[axis];
    }
    if (tensor.getDimSize(dim) % pieces != 0)
      return emitError() << "dimension " << dim << " of " << type << " is not divisible by its "
                         << pieces << " pieces";
  }
  return success();
}
