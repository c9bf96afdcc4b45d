//===- ErrorCode.h - what kind of error it is --------------------*- C++ -*-===//
//
// Texts are for people. Who has to decide something about an error, in C++ or
// in Python, goes by its code.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_DIALECTS_COMMON_ERRORCODE_H
#define ALPA_DIALECTS_COMMON_ERRORCODE_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/Error.h"

namespace alpa {

/// Python has a class for each (alpa_mlir.errors).
enum class ErrorCode {
  Pass, // None of the others.
  ClusterFile,
  Infeasible,
  Method,
  MicroBatches,
  ModuleSyntax,
  Precision,
  ProblemFormat,
  Solver,
  UnsupportedOp,
};

/// All codes as words, in the order of the enum.
llvm::ArrayRef<llvm::StringLiteral> errorCodeNames();

/// A code as the word that leaves C++: "unsupported-op".
llvm::StringRef stringifyErrorCode(ErrorCode code);

/// An error with a code. Its text is `WHERE: error: WHAT; FIX`, without the parts
/// that are empty.
class CodedError : public llvm::ErrorInfo<CodedError> {
public:
  static char ID;

  CodedError(ErrorCode code, const llvm::Twine &what, const llvm::Twine &fix = "",
             const llvm::Twine &where = "")
      : code(code), what(what.str()), fix(fix.str()), where(where.str()) {}

  void log(llvm::raw_ostream &os) const override;
  std::error_code convertToErrorCode() const override { return llvm::inconvertibleErrorCode(); }

  ErrorCode code;
  std::string what;
  std::string fix;   // What to do about it.
  std::string where; // A place in a text.
};

llvm::Error makeError(ErrorCode code, const llvm::Twine &what, const llvm::Twine &fix = "");

/// The parts of an error. One without a code gets `otherwise`.
CodedError takeParts(llvm::Error error, ErrorCode otherwise = ErrorCode::Pass);

/// The same error with `prefix` in front of what it says.
llvm::Error prefixError(const llvm::Twine &prefix, llvm::Error error,
                        ErrorCode otherwise = ErrorCode::Pass);

} // namespace alpa

#endif // ALPA_DIALECTS_COMMON_ERRORCODE_H
