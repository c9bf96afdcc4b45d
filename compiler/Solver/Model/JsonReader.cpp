//===- JsonReader.cpp - JSON read from left to right ----------------------===//

#include "compiler/Solver/Model/JsonReader.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/ConvertUTF.h"

#include <cmath>
#include <cstdlib>

using namespace alpa;
using llvm::Twine;

/// Deeper values would use up the stack; no known field is nested that deep.
static constexpr unsigned kMaxDepth = 64;

bool JsonReader::fail(const Twine &text) {
  if (!message.empty())
    return false;
  message = text.str();
  place = "line " + std::to_string(lineNumber) + ", column " + std::to_string(at - lineBegin + 1) +
          ": ";
  return false;
}

bool JsonReader::within(const Twine &where, bool ok) {
  if (!ok)
    context = where.str() + ": " + context;
  return ok;
}

void JsonReader::skipSpace() {
  for (; at != end; ++at) {
    if (*at == '\n') {
      ++lineNumber;
      lineBegin = at + 1;
    } else if (*at != ' ' && *at != '\t' && *at != '\r') {
      return;
    }
  }
}

char JsonReader::peek() {
  skipSpace();
  return at == end ? 0 : *at;
}

unsigned JsonReader::line() {
  skipSpace();
  return lineNumber;
}

/// What stands at the current place, for an error.
bool JsonReader::expected(const Twine &what) {
  if (at == end)
    return fail("expected " + what + ", found the end of the text");
  unsigned char first = *at;
  if (!llvm::isPrint(first))
    return fail("expected " + what + ", found byte 0x" + llvm::utohexstr(first));
  const char *last = at;
  while (last != end && last - at < 24 && (llvm::isAlnum(*last) || *last == '-' || *last == '.'))
    ++last;
  std::string found(at, std::max(last, at + 1));
  return fail("expected " + what + ", found '" + found + "'");
}

bool JsonReader::expect(char wanted) {
  if (peek() != wanted || at == end)
    return expected("'" + Twine(wanted) + "'");
  ++at;
  return true;
}

bool JsonReader::nest() {
  return ++depth <= kMaxDepth || fail("values are nested more than " + Twine(kMaxDepth) + " deep");
}

bool JsonReader::object(llvm::function_ref<bool(const std::string &)> field) {
  if (peek() != '{')
    return expected("an object");
  ++at;
  if (!nest())
    return false;
  if (peek() != '}') {
    while (true) {
      std::string key;
      if (peek() != '"')
        return expected("a field name in quotes");
      if (!string(key) || !expect(':') || !field(key))
        return false;
      if (peek() == '}')
        break;
      if (peek() != ',')
        return expected("',' or '}'");
      ++at;
    }
  }
  ++at;
  --depth;
  return true;
}

bool JsonReader::array(llvm::function_ref<bool()> entry) {
  if (peek() != '[')
    return expected("a list");
  ++at;
  if (!nest())
    return false;
  if (peek() != ']') {
    while (true) {
      if (!entry())
        return false;
      if (peek() == ']')
        break;
      if (peek() != ',')
        return expected("',' or ']'");
      ++at;
    }
  }
  ++at;
  --depth;
  return true;
}

bool JsonReader::integers(std::vector<int64_t> &values) {
  return array([&] {
    int64_t value;
    if (!integer(value))
      return false;
    values.push_back(value);
    return true;
  });
}

bool JsonReader::integer(int64_t &value) {
  skipSpace();
  const char *begin = at;
  const char *next = at;
  bool negative = next != end && *next == '-';
  next += negative;
  const char *digits = next;
  uint64_t sum = 0;
  bool overflow = false;
  for (; next != end && llvm::isDigit(*next); ++next) {
    unsigned digit = *next - '0';
    overflow |= sum > (uint64_t(1) << 63) / 10; // Then ten times as much has 64 bits or more.
    sum = 10 * sum + digit;
  }
  if (next == digits || (next - digits > 1 && *digits == '0'))
    return expected("an integer");
  if (next != end && (*next == '.' || *next == 'e' || *next == 'E'))
    return real(begin, value);
  uint64_t limit = (uint64_t(1) << 63) - !negative;
  if (overflow || sum > limit)
    return expected("an integer of 64 bits");
  value = negative ? int64_t(0 - sum) : int64_t(sum);
  at = next;
  return true;
}

bool JsonReader::real(const char *begin, int64_t &value) {
  const char *last = begin;
  while (last != end && (llvm::isAlnum(*last) || *last == '.' || *last == '-' || *last == '+'))
    ++last;
  std::string text(begin, last);
  char *stop = nullptr;
  double number = std::strtod(text.c_str(), &stop);
  // JSON has no hexadecimal numbers and no infinity, which strtod reads.
  if (*stop || llvm::StringRef(text).find_first_not_of("0123456789+-.eE") != llvm::StringRef::npos)
    return expected("an integer");
  if (number != std::floor(number))
    return expected("an integer");
  if (!(std::fabs(number) < 0x1p63))
    return expected("an integer of 64 bits");
  value = int64_t(number);
  at = last;
  return true;
}

bool JsonReader::hex(unsigned &code) {
  code = 0;
  for (int i = 0; i < 4; ++i, ++at) {
    if (at == end || !llvm::isHexDigit(*at))
      return expected("four hexadecimal digits");
    code = 16 * code + llvm::hexDigitValue(*at);
  }
  return true;
}

bool JsonReader::escape(std::string &value) {
  if (at == end)
    return expected("an escaped character");
  static constexpr llvm::StringLiteral kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (size_t index = kNames.find(*at); index != llvm::StringRef::npos) {
    value += kMeanings[index];
    ++at;
    return true;
  }
  if (*at != 'u')
    return expected("an escaped character");
  ++at;
  unsigned code = 0, low = 0;
  if (!hex(code))
    return false;
  if (code >= 0xD800 && code < 0xDC00 && end - at >= 2 && at[0] == '\\' && at[1] == 'u') {
    at += 2;
    if (!hex(low))
      return false;
    if (low < 0xDC00 || low > 0xDFFF)
      return fail("expected the second half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  char bytes[4];
  char *last = bytes;
  if (!llvm::ConvertCodePointToUTF8(code, last))
    return fail("expected a character, found half of a surrogate pair");
  value.append(bytes, last);
  return true;
}

bool JsonReader::string(std::string &value) {
  if (peek() != '"')
    return expected("a text in quotes");
  ++at;
  while (at != end && *at != '"') {
    if (static_cast<unsigned char>(*at) < 0x20)
      return expected("a character or '\"'");
    if (*at == '\\') {
      ++at;
      if (!escape(value))
        return false;
    } else {
      value += *at++;
    }
  }
  if (at == end)
    return expected("'\"'");
  ++at;
  return true;
}

bool JsonReader::skip() {
  std::string text;
  switch (peek()) {
  case '{':
    return object([&](const std::string &) { return skip(); });
  case '[':
    return array([&] { return skip(); });
  case '"':
    return string(text);
  default:
    break;
  }
  for (llvm::StringRef word : {"null", "true", "false"})
    if (llvm::StringRef(at, end - at).starts_with(word)) {
      at += word.size();
      return true;
    }
  const char *last = at;
  while (last != end && (llvm::isDigit(*last) || llvm::StringRef("+-.eE").contains(*last)))
    ++last;
  text.assign(at, last);
  char *stop = nullptr;
  std::strtod(text.c_str(), &stop);
  if (text.empty() || *stop)
    return expected("a value");
  at = last;
  return true;
}

bool JsonReader::finish() {
  skipSpace();
  return at == end || expected("nothing more");
}
