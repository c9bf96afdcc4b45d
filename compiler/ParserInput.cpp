//===- ParserInput.cpp - texts before MLIR parses them ---------------------===//

#include "compiler/ParserInput.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/MathExtras.h"

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

/// Of `tensor<4x8xi1>`, which a text begins with: 32; nothing if it begins with another type.
static std::optional<uint64_t> numBooleans(llvm::StringRef text) {
  uint64_t count = 1, size = 0;
  if (!text.consume_front("tensor<"))
    return std::nullopt;
  while (!text.consumeInteger(10, size)) {
    bool overflows = false;
    count = llvm::SaturatingMultiply(count, size, &overflows);
    if (overflows || !text.consume_front("x"))
      return std::nullopt;
  }
  return text.starts_with("i1>") || text.starts_with("i1,") ? std::optional(count) : std::nullopt;
}

std::optional<std::string> alpa::packBooleans(llvm::StringRef text) {
  constexpr llvm::StringLiteral kBegin = "dense<\"0x", kEnd = "\">";
  std::string packed;
  size_t copied = 0;
  for (size_t at = text.find(kBegin); at != text.npos; at = text.find(kBegin, at)) {
    at += kBegin.size();
    llvm::StringRef digits = text.substr(at).take_while(llvm::isHexDigit);
    llvm::StringRef rest = text.substr(at + digits.size());
    if (!rest.consume_front(kEnd))
      continue;
    rest = rest.ltrim();
    if (!rest.consume_front(":"))
      continue;
    std::optional<uint64_t> count = numBooleans(rest.ltrim());
    // One alone is the same in both.
    if (!count || *count < 2 || digits.size() != 2 * *count)
      continue;
    packed += text.slice(copied, at);
    for (uint64_t first = 0; first < *count; first += 8) {
      unsigned byte = 0;
      for (uint64_t i = first; i < std::min(*count, first + 8); ++i)
        byte |= unsigned(digits.substr(2 * i, 2) != "00") << (i - first);
      packed += llvm::hexdigit(byte >> 4);
      packed += llvm::hexdigit(byte & 15);
    }
    copied = at + digits.size();
  }
  if (copied == 0)
    return std::nullopt;
  packed += text.substr(copied);
  return packed;
}
