//===- Nesting.cpp - texts that would use up the parser's stack -----------===//

#include "compiler/Nesting.h"

#include "llvm/ADT/Twine.h"

using namespace alpa;

llvm::Error alpa::checkNesting(llvm::StringRef text, llvm::StringRef file) {
  constexpr unsigned kMaxDepth = 1000;
  unsigned depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
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
    case '(':
    case '[':
    case '{':
    case '<':
      if (++depth <= kMaxDepth)
        break;
      return llvm::createStringError(file + ":" + llvm::Twine(text.take_front(i).count('\n') + 1) +
                                     ":" + llvm::Twine(i - text.take_front(i).rfind('\n')) +
                                     ": error: brackets are nested more than " +
                                     llvm::Twine(kMaxDepth) + " deep");
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
