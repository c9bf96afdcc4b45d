//===- NestingLimit.cpp - texts that MLIR's parser does not survive -------===//

#include "compiler/NestingLimit.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"

using namespace alpa;

/// Whether the text ends in the word `array`.
static bool endsInArray(llvm::StringRef text) {
  text = text.rtrim();
  return text.consume_back("array") &&
         (text.empty() ||
          !(llvm::isAlnum(text.back()) || llvm::StringRef("_.$#!%@\"").contains(text.back())));
}

llvm::Error alpa::checkNesting(llvm::StringRef text, llvm::StringRef file, ErrorCode code) {
  constexpr unsigned kMaxDepth = 1000;
  unsigned depth = 0;
  auto fail = [&](size_t at, const llvm::Twine &what) {
    return llvm::make_error<CodedError>(code, what, "",
                                        file + ":" +
                                            llvm::Twine(text.take_front(at).count('\n') + 1) + ":" +
                                            llvm::Twine(at - text.take_front(at).rfind('\n')));
  };
  // The reader of `array<index: ..>` asks for the width of a type that has none.
  bool inArray = false; // At the type of its elements.
  for (size_t i = 0; i < text.size(); ++i) {
    if (inArray && !llvm::isSpace(text[i]) && text[i] != '/') {
      inArray = false;
      // A name may stand for it.
      if (text[i] == '!' || text.substr(i).take_while(llvm::isAlnum) == "index")
        return fail(i, "an array holds numbers of i1, i8, .., i64, f32 or f64, not index or what "
                       "a name stands for");
    }
    switch (text[i]) {
    case '"': // A string; it ends on its line if it is one.
      while (++i < text.size() && text[i] != '"' && text[i] != '\n')
        i += text[i] == '\\';
      break;
    case '/':
      if (text.substr(i, 2) == "//")
        i = std::min(text.find('\n', i), text.size());
      break;
    case '-':
      i += text.substr(i, 2) == "->"; // No bracket.
      break;
    case '<':
      inArray = endsInArray(text.take_front(i));
      [[fallthrough]];
    case '(':
    case '[':
    case '{':
      if (++depth <= kMaxDepth)
        break;
      return fail(i, "brackets are nested more than " + llvm::Twine(kMaxDepth) + " deep");
    case '#': { // Of a value with several results.
      int32_t number;
      llvm::StringRef digits = text.substr(i + 1).take_while(llvm::isDigit);
      if (!digits.empty() && digits.getAsInteger(10, number))
        return fail(i, "result number " + digits + " is too large");
      break;
    }
    case ')':
    case ']':
    case '}':
    case '>':
      depth -= depth > 0;
      break;
    default:
      break;
    }
  }
  return llvm::Error::success();
}
