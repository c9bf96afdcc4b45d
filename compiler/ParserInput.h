//===- ParserInput.h - texts before MLIR parses them -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_PARSERINPUT_H
#define ALPA_COMPILER_PARSERINPUT_H

#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

#include <optional>
#include <string>

namespace alpa {

/// MLIR's parser, and LLVM's of JSON, call themselves for every bracket within a
/// bracket, without a limit; MLIR's does not survive arrays of `index` either. An error
/// if a text, whose name is `file`, goes deeper than any program does, or has one; `code` is that
/// of a text of its kind that cannot be parsed. To be called before the text is parsed.
llvm::Error checkNesting(llvm::StringRef text, llvm::StringRef file,
                         ErrorCode code = ErrorCode::Pass);

/// MLIR's parser wants eight Booleans of a `dense<"0x..">` in a byte; since JAX 0.12 its texts have
/// one in each. The text as the parser wants it; nothing if it is that already.
std::optional<std::string> packBooleans(llvm::StringRef text);

} // namespace alpa

#endif // ALPA_COMPILER_PARSERINPUT_H
