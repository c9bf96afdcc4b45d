//===- Diagnostics.cpp - codes of errors on MLIR's diagnostics ------------===//
//
// The first metadatum of a diagnostic is its code. If there is a second one, its
// text ends with so many arguments that are the separator and the fix.
//
//===----------------------------------------------------------------------===//

#include "dialects/Common/Diagnostics.h"

using namespace alpa;
using namespace mlir;

static constexpr unsigned kFixArguments = 2;

InFlightDiagnostic alpa::withCode(InFlightDiagnostic &&diagnostic, ErrorCode code) {
  diagnostic.getUnderlyingDiagnostic()->getMetadata().emplace_back(unsigned(code));
  return std::move(diagnostic);
}

InFlightDiagnostic alpa::withError(InFlightDiagnostic &&diagnostic, llvm::Error error) {
  CodedError parts = takeParts(std::move(error));
  if (!parts.where.empty())
    diagnostic << parts.where << ": error: ";
  diagnostic << parts.what;
  InFlightDiagnostic coded = withCode(std::move(diagnostic), parts.code);
  if (!parts.fix.empty()) {
    coded << "; " << parts.fix;
    coded.getUnderlyingDiagnostic()->getMetadata().emplace_back(kFixArguments);
  }
  return coded;
}

CodedError alpa::partsOf(Diagnostic &diagnostic, ErrorCode otherwise) {
  ArrayRef<DiagnosticArgument> metadata = diagnostic.getMetadata();
  ArrayRef<DiagnosticArgument> arguments = std::as_const(diagnostic).getArguments();
  CodedError parts(otherwise, "");
  auto print = [](ArrayRef<DiagnosticArgument> list, std::string &text) {
    llvm::raw_string_ostream os(text);
    for (const DiagnosticArgument &argument : list)
      argument.print(os);
  };
  if (!metadata.empty())
    parts.code = ErrorCode(metadata.front().getAsUnsigned());
  if (metadata.size() > 1) {
    print(arguments.take_back(1), parts.fix);
    arguments = arguments.drop_back(metadata[1].getAsUnsigned());
  }
  print(arguments, parts.what);
  return parts;
}
