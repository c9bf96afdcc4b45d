//===- ContractionFormat.cpp - pretty form of dot and convolution ---------===//

#include "dialects/Common/StructText.h"
#include "dialects/StableHLO/AssemblyFormat.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace mlir::stablehlo;

using alpa::parseDims;
using alpa::printDims;

ParseResult mlir::parseDotDimensionNumbers(OpAsmParser &parser, DotDimensionNumbersAttr &numbers) {
  SmallVector<int64_t> lhsBatching, rhsBatching, lhsContracting, rhsContracting;
  auto parsePair = [&](auto &lhs, auto &rhs) -> ParseResult {
    return failure(parser.parseEqual() || parseDims(parser, lhs) || parser.parseKeyword("x") ||
                   parseDims(parser, rhs));
  };
  if (succeeded(parser.parseOptionalKeyword("batching_dims")) &&
      (parsePair(lhsBatching, rhsBatching) || parser.parseComma()))
    return failure();
  if (parser.parseKeyword("contracting_dims") || parsePair(lhsContracting, rhsContracting))
    return failure();
  numbers = DotDimensionNumbersAttr::get(parser.getContext(), lhsBatching, rhsBatching,
                                         lhsContracting, rhsContracting);
  return success();
}

void mlir::printDotDimensionNumbers(OpAsmPrinter &printer, Operation *,
                                    DotDimensionNumbersAttr numbers) {
  auto printPair = [&](StringRef name, ArrayRef<int64_t> lhs, ArrayRef<int64_t> rhs) {
    printer << name << " = ";
    printDims(printer, lhs);
    printer << " x ";
    printDims(printer, rhs);
  };
  if (!numbers.getLhsBatchingDimensions().empty() || !numbers.getRhsBatchingDimensions().empty()) {
    printPair("batching_dims", numbers.getLhsBatchingDimensions(),
              numbers.getRhsBatchingDimensions());
    printer << ", ";
  }
  printPair("contracting_dims", numbers.getLhsContractingDimensions(),
            numbers.getRhsContractingDimensions());
}

ParseResult mlir::parsePrecisionConfigAndAlgorithm(OpAsmParser &parser, ArrayAttr &precision,
                                                   DotAlgorithmAttr &algorithm) {
  auto parsePrecision = [&](SmallVectorImpl<Attribute> &items) -> ParseResult {
    llvm::SMLoc loc = parser.getCurrentLocation();
    StringRef word;
    if (parser.parseKeyword(&word))
      return failure();
    std::optional<Precision> value = symbolizePrecision(word);
    if (!value)
      return parser.emitError(loc) << "expected DEFAULT, HIGH or HIGHEST, got " << word;
    items.push_back(PrecisionAttr::get(parser.getContext(), *value));
    return success();
  };
  if (failed(parser.parseOptionalComma()))
    return success();
  if (succeeded(parser.parseOptionalKeyword("precision"))) {
    SmallVector<Attribute> items;
    if (parser.parseEqual() || parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, [&] {
          return parsePrecision(items);
        }))
      return failure();
    precision = parser.getBuilder().getArrayAttr(items);
    if (failed(parser.parseOptionalComma()))
      return success();
  }
  if (parser.parseKeyword("algorithm") || parser.parseEqual())
    return failure();
  algorithm = dyn_cast_or_null<DotAlgorithmAttr>(DotAlgorithmAttr::parse(parser, Type()));
  return success(algorithm != nullptr);
}

void mlir::printPrecisionConfigAndAlgorithm(OpAsmPrinter &printer, Operation *, ArrayAttr precision,
                                            DotAlgorithmAttr algorithm) {
  if (precision) {
    printer << ", precision = [";
    llvm::interleaveComma(precision, printer, [&](Attribute item) {
      printer << stringifyPrecision(cast<PrecisionAttr>(item).getValue());
    });
    printer << "]";
  }
  if (algorithm) {
    printer << ", algorithm = ";
    algorithm.print(printer);
  }
}

//===----------------------------------------------------------------------===//
// Convolution
//===----------------------------------------------------------------------===//

namespace {
/// `[b, 0, 1, f]`: two letters among the spatial dimensions in their order.
struct Roles {
  int64_t first = -1, second = -1;
  SmallVector<int64_t> spatial;
};
} // namespace

static ParseResult parseRoles(AsmParser &parser, StringRef first, StringRef second, Roles &roles) {
  llvm::SMLoc loc = parser.getCurrentLocation();
  SmallVector<int64_t> order;
  int64_t position = 0;
  auto parseRole = [&]() -> ParseResult {
    int64_t place = position++;
    llvm::SMLoc here = parser.getCurrentLocation();
    int64_t number;
    OptionalParseResult parsed = parser.parseOptionalInteger(number);
    if (parsed.has_value()) {
      if (failed(*parsed))
        return failure();
      if (number < 0 || number > 64)
        return parser.emitError(here) << "no spatial dimension " << number;
      if (number >= int64_t(order.size()))
        order.resize(number + 1, -1);
      if (order[number] != -1)
        return parser.emitError(here) << "spatial dimension " << number << " is named twice";
      order[number] = place;
      return success();
    }
    StringRef word;
    // `?` stands for a dimension of no known role.
    if (parser.parseKeyword(&word))
      return failure();
    int64_t &slot = word == first ? roles.first : roles.second;
    if (word != first && word != second)
      return parser.emitError(here)
             << "expected " << first << ", " << second << " or a number, got " << word;
    if (slot != -1)
      return parser.emitError(here) << "dimension " << word << " is named twice";
    slot = place;
    return success();
  };
  if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseRole))
    return failure();
  if (roles.first == -1 || roles.second == -1)
    return parser.emitError(loc) << "expected dimensions " << first << " and " << second;
  if (llvm::is_contained(order, -1))
    return parser.emitError(loc) << "expected spatial dimensions 0 to " << order.size() - 1;
  roles.spatial = order;
  return success();
}

static void printRoles(AsmPrinter &printer, StringRef firstName, int64_t first,
                       StringRef secondName, int64_t second, ArrayRef<int64_t> spatial) {
  int64_t rank = int64_t(spatial.size()) + 2;
  printer << "[";
  llvm::interleaveComma(llvm::seq<int64_t>(0, rank), printer, [&](int64_t place) {
    if (place == first)
      printer << firstName;
    else if (place == second)
      printer << secondName;
    else
      printer << int64_t(llvm::find(spatial, place) - spatial.begin());
  });
  printer << "]";
}

ParseResult mlir::parseConvolutionDimensions(AsmParser &parser, ConvDimensionNumbersAttr &numbers) {
  Roles input, kernel, output;
  if (parseRoles(parser, "b", "f", input) || parser.parseKeyword("x") ||
      parseRoles(parser, "i", "o", kernel) || parser.parseArrow() ||
      parseRoles(parser, "b", "f", output))
    return failure();
  numbers = ConvDimensionNumbersAttr::get(
      parser.getContext(), input.first, input.second, input.spatial, kernel.first, kernel.second,
      kernel.spatial, output.first, output.second, output.spatial);
  return success();
}

void mlir::printConvolutionDimensions(AsmPrinter &printer, ConvDimensionNumbersAttr numbers) {
  printRoles(printer, "b", numbers.getInputBatchDimension(), "f",
             numbers.getInputFeatureDimension(), numbers.getInputSpatialDimensions());
  printer << "x";
  printRoles(printer, "i", numbers.getKernelInputFeatureDimension(), "o",
             numbers.getKernelOutputFeatureDimension(), numbers.getKernelSpatialDimensions());
  printer << "->";
  printRoles(printer, "b", numbers.getOutputBatchDimension(), "f",
             numbers.getOutputFeatureDimension(), numbers.getOutputSpatialDimensions());
}

void mlir::printConvolutionDimensions(AsmPrinter &printer, Operation *,
                                      ConvDimensionNumbersAttr numbers) {
  printConvolutionDimensions(printer, numbers);
}

Attribute ConvDimensionNumbersAttr::parse(AsmParser &parser, Type) {
  ConvDimensionNumbersAttr numbers;
  if (parser.parseLess() || parseConvolutionDimensions(parser, numbers) || parser.parseGreater())
    return {};
  return numbers;
}

void ConvDimensionNumbersAttr::print(AsmPrinter &printer) const {
  printer << "<";
  printConvolutionDimensions(printer, *this);
  printer << ">";
}

ParseResult mlir::parseWindowAttributes(OpAsmParser &parser, DenseI64ArrayAttr &strides,
                                        DenseIntElementsAttr &padding,
                                        DenseI64ArrayAttr &lhsDilation,
                                        DenseI64ArrayAttr &rhsDilation,
                                        DenseBoolArrayAttr &reversal) {
  Builder &builder = parser.getBuilder();
  llvm::StringSet<> seen;
  auto parsePadding = [&]() -> ParseResult {
    SmallVector<int64_t> values;
    int64_t rows = 0;
    auto parseRow = [&]() -> ParseResult {
      llvm::SMLoc loc = parser.getCurrentLocation();
      if (parseDims(parser, values))
        return failure();
      if (int64_t(values.size()) != 2 * ++rows)
        return parser.emitError(loc) << "expected [low, high]";
      return success();
    };
    if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseRow))
      return failure();
    padding = DenseIntElementsAttr::get(
        RankedTensorType::get({rows, 2}, builder.getIntegerType(64)), ArrayRef<int64_t>(values));
    return success();
  };
  auto parseReversal = [&]() -> ParseResult {
    SmallVector<bool> values;
    auto parseFlag = [&]() -> ParseResult {
      if (succeeded(parser.parseOptionalKeyword("true")))
        values.push_back(true);
      else if (succeeded(parser.parseOptionalKeyword("false")))
        values.push_back(false);
      else
        return parser.emitError(parser.getCurrentLocation(), "expected true or false");
      return success();
    };
    if (parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseFlag))
      return failure();
    reversal = builder.getDenseBoolArrayAttr(values);
    return success();
  };
  auto parseList = [&](DenseI64ArrayAttr &list) -> ParseResult {
    SmallVector<int64_t> values;
    if (parseDims(parser, values))
      return failure();
    list = builder.getDenseI64ArrayAttr(values);
    return success();
  };
  StringRef word;
  while (succeeded(parser.parseOptionalKeyword(
      &word, {"stride", "pad", "lhs_dilate", "rhs_dilate", "reverse"}))) {
    if (!seen.insert(word).second)
      return parser.emitError(parser.getCurrentLocation()) << word << " is given twice";
    if (parser.parseEqual())
      return failure();
    ParseResult parsed = word == "stride"       ? parseList(strides)
                         : word == "pad"        ? parsePadding()
                         : word == "lhs_dilate" ? parseList(lhsDilation)
                         : word == "rhs_dilate" ? parseList(rhsDilation)
                                                : parseReversal();
    if (parsed)
      return failure();
    if (failed(parser.parseOptionalComma()))
      break;
  }
  return success();
}

void mlir::printWindowAttributes(OpAsmPrinter &printer, Operation *, DenseI64ArrayAttr strides,
                                 DenseIntElementsAttr padding, DenseI64ArrayAttr lhsDilation,
                                 DenseI64ArrayAttr rhsDilation, DenseBoolArrayAttr reversal) {
  bool first = true;
  auto start = [&](StringRef name) {
    if (!first)
      printer << ", ";
    first = false;
    printer << name << " = ";
  };
  auto printList = [&](StringRef name, DenseI64ArrayAttr list) {
    if (!list)
      return;
    start(name);
    printDims(printer, list);
  };
  printList("stride", strides);
  if (padding) {
    start("pad");
    SmallVector<int64_t> values(padding.getValues<int64_t>());
    printer << "[";
    for (size_t i = 0; i + 1 < values.size(); i += 2) {
      printer << (i ? ", " : "");
      printDims(printer, {values[i], values[i + 1]});
    }
    printer << "]";
  }
  printList("lhs_dilate", lhsDilation);
  printList("rhs_dilate", rhsDilation);
  if (reversal) {
    start("reverse");
    printer << "[";
    llvm::interleaveComma(reversal.asArrayRef(), printer,
                          [&](bool flag) { printer << (flag ? "true" : "false"); });
    printer << "]";
  }
}
