//===- Mutate.cpp - damage to texts ---------------------------------------===//

#include "Mutate.h"

#include "llvm/ADT/StringExtras.h"

using namespace alpa;

static bool isWord(char c) { return llvm::isAlnum(c) || c == '_' || c == '.' || c == '-'; }

std::pair<size_t, size_t> Mutator::piece(const std::string &text) {
  size_t at = below(text.size()), begin = at, end = at + 1;
  switch (below(4)) {
  case 0: { // A line.
    begin = text.rfind('\n', at);
    begin = begin == std::string::npos ? 0 : begin + 1;
    end = text.find('\n', at);
    end = end == std::string::npos ? text.size() : end + 1;
    break;
  }
  case 1: { // Up to the matching bracket.
    begin = text.find_first_of("([{<", at);
    if (begin == std::string::npos)
      return {at, 1};
    int depth = 0;
    for (end = begin; end < text.size(); ++end) {
      depth += llvm::StringRef("([{<").contains(text[end]);
      depth -= llvm::StringRef(")]}>").contains(text[end]);
      if (depth == 0)
        break;
    }
    end = std::min(end + 1, text.size());
    break;
  }
  case 2: { // A number.
    begin = text.find_first_of("0123456789", at);
    if (begin == std::string::npos)
      return {at, 1};
    for (end = begin; end < text.size() && llvm::isDigit(text[end]);)
      ++end;
    break;
  }
  default: // A word.
    while (begin > 0 && isWord(text[begin - 1]))
      --begin;
    while (end < text.size() && isWord(text[end]))
      ++end;
  }
  // Between the two ends at least one character.
  return {begin, std::max<size_t>(end, begin + 1) - begin};
}

/// Everywhere the same, so that types still agree.
void Mutator::rename(std::string &text, const std::string &other) {
  static const char *const kNumbers[] = {"0", "1", "2", "3", "5", "8", "16", "100000", "-1"};
  size_t at = text.find_first_of("0123456789", below(text.size()));
  std::string from, to = kNumbers[below(std::size(kNumbers))];
  if (at != std::string::npos && below(2)) {
    size_t end = at;
    while (end < text.size() && llvm::isDigit(text[end]))
      ++end;
    from = text.substr(at, end - at);
  } else {
    auto word = [&](const std::string &of) {
      size_t begin = below(of.size()), end = begin;
      while (begin > 0 && isWord(of[begin - 1]))
        --begin;
      while (end < of.size() && isWord(of[end]))
        ++end;
      return of.substr(begin, end - begin);
    };
    from = word(text);
    to = word(other);
  }
  if (from.empty())
    return;
  for (size_t i = 0; (i = text.find(from, i)) != std::string::npos; i += to.size()) {
    // A number inside another one is not meant; 4xf32 is a number and a word.
    bool inside = llvm::isDigit(from[0]) &&
                  ((i > 0 && llvm::isDigit(text[i - 1])) ||
                   (i + from.size() < text.size() && llvm::isDigit(text[i + from.size()])));
    if (inside)
      i += from.size() - to.size();
    else
      text.replace(i, from.size(), to);
  }
}

void Mutator::damage(std::string &text, const std::string &other) {
  static const char *const kValues[] = {"-1",
                                        "0",
                                        "1",
                                        "3",
                                        "2147483648",
                                        "4294967296",
                                        "9223372036854775807",
                                        "-9223372036854775808",
                                        "1000000000000000000",
                                        "99999999999999999999999",
                                        "1.5",
                                        "1e999",
                                        "nan",
                                        "?",
                                        "null",
                                        "\"\"",
                                        "[]",
                                        "{}",
                                        "()",
                                        "tensor<*xf32>",
                                        "i1"};
  if (text.empty())
    text = other;
  if (text.empty())
    return;
  if (!other.empty() && below(3))
    return rename(text, other);
  auto [at, length] = piece(text);
  switch (below(9)) {
  case 0:
    text.erase(at, length);
    break;
  case 1: // Twice.
    text.insert(at, text.substr(at, length));
    break;
  case 2: // Two change places.
  {
    auto [from, size] = piece(text);
    std::string moved = text.substr(from, size);
    text.insert(at, moved);
    break;
  }
  case 3: // From elsewhere.
  {
    if (other.empty())
      break;
    auto [from, size] = piece(other);
    text.replace(at, length, other.substr(from, size));
    break;
  }
  case 4:
  case 5:
    text.replace(at, length, kValues[below(std::size(kValues))]);
    break;
  case 6:
    text[below(text.size())] =
        below(16) ? "{}[]()<>:,\"'-#&*!|%@^= \n\t\\?0a"[below(30)] : char(below(256));
    break;
  case 7:
    text.erase(below(text.size()), 1 + below(8));
    break;
  default:
    if (below(4) == 0) // Cut short.
      text.resize(below(text.size()) + 1);
    else if (below(8) == 0) // Deep.
      text.insert(at, std::string(200000, "[{(<"[below(4)]));
    else
      text.insert(below(text.size()), 1, "{}[]()<>:,\""[below(11)]);
  }
}
