//===- ErrorCode.cpp - what kind of error it is ---------------------------===//

#include "dialects/Common/ErrorCode.h"

#include "llvm/Support/raw_ostream.h"

using namespace alpa;

static constexpr llvm::StringLiteral kNames[] = {
    "pass",          "cluster-file", "infeasible",     "method", "micro-batches",
    "module-syntax", "precision",    "problem-format", "solver", "unsupported-op",
};
static_assert(std::size(kNames) == size_t(ErrorCode::UnsupportedOp) + 1);

llvm::ArrayRef<llvm::StringLiteral> alpa::errorCodeNames() { return kNames; }

llvm::StringRef alpa::stringifyErrorCode(ErrorCode code) { return kNames[size_t(code)]; }

char CodedError::ID = 0;

void CodedError::log(llvm::raw_ostream &os) const {
  if (!where.empty())
    os << where << ": error: ";
  os << what;
  if (!fix.empty())
    os << "; " << fix;
}

llvm::Error alpa::makeError(ErrorCode code, const llvm::Twine &what, const llvm::Twine &fix) {
  return llvm::make_error<CodedError>(code, what, fix);
}

CodedError alpa::takeParts(llvm::Error error, ErrorCode otherwise) {
  CodedError parts(otherwise, "");
  llvm::handleAllErrors(
      std::move(error), [&](const CodedError &found) { parts = found; },
      [&](const llvm::ErrorInfoBase &found) { parts.what = found.message(); });
  return parts;
}

llvm::Error alpa::prefixError(const llvm::Twine &prefix, llvm::Error error, ErrorCode otherwise) {
  CodedError parts = takeParts(std::move(error), otherwise);
  return llvm::make_error<CodedError>(parts.code, prefix + parts.what, parts.fix, parts.where);
}
