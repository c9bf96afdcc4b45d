//===- StructText.cpp - `<name = value, ...>` as text ---------------------===//

#include "dialects/Common/StructText.h"

#include "llvm/ADT/StringSet.h"

using namespace mlir;

ParseResult alpa::parseStruct(AsmParser &parser, ArrayRef<StructField> fields) {
  llvm::StringSet<> seen;
  auto parseField = [&]() -> ParseResult {
    llvm::SMLoc loc = parser.getCurrentLocation();
    StringRef name;
    if (parser.parseKeyword(&name))
      return failure();
    const StructField *field =
        llvm::find_if(fields, [&](const StructField &f) { return f.name == name; });
    if (field == fields.end()) {
      InFlightDiagnostic diagnostic = parser.emitError(loc) << "unknown field " << name;
      diagnostic << "; expected one of ";
      llvm::interleaveComma(fields, diagnostic,
                            [&](const StructField &f) { diagnostic << f.name; });
      return diagnostic;
    }
    if (!seen.insert(name).second)
      return parser.emitError(loc) << "field " << name << " is given twice";
    if (parser.parseEqual())
      return failure();
    return field->parse();
  };
  return parser.parseCommaSeparatedList(AsmParser::Delimiter::LessGreater, parseField);
}

ParseResult alpa::parseDims(AsmParser &parser, SmallVectorImpl<int64_t> &dims) {
  return parser.parseCommaSeparatedList(AsmParser::Delimiter::Square,
                                        [&]() { return parser.parseInteger(dims.emplace_back()); });
}

void alpa::printDims(AsmPrinter &printer, ArrayRef<int64_t> dims) {
  printer << "[";
  llvm::interleaveComma(dims, printer);
  printer << "]";
}
