//===- ParseProblem.cpp - problems and solutions from JSON ----------------===//

#include "compiler/Solver/Model/Problem.h"

#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/ConvertUTF.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

using llvm::StringRef;
using llvm::Twine;
using namespace alpa;
using namespace alpa::solver;

//===----------------------------------------------------------------------===//
// JSON read from left to right
//
// Problem files hold millions of integers, and what reads them wants to name the
// line of a mistake; a tree of values would cost memory and forget the lines. The
// first error is kept; after it every call returns false.
//===----------------------------------------------------------------------===//

namespace {

class JsonReader {
public:
  explicit JsonReader(llvm::StringRef text)
      : at(text.begin()), end(text.end()), lineBegin(text.begin()) {}

  /// Calls `field` with each key; it must read or skip the value.
  bool object(llvm::function_ref<bool(const std::string &)> field);
  /// Calls `entry` before each value; it must read or skip the value.
  bool array(llvm::function_ref<bool()> entry);
  bool integers(std::vector<int64_t> &values);
  /// 1.0 and 1e3 are integers too, as long as 64 bits hold them.
  bool integer(int64_t &value);
  bool string(std::string &value);
  /// Any value.
  bool skip();
  /// Nothing but white space is left.
  bool finish();

  /// The first character of what comes next; 0 at the end.
  char peek();
  /// Of what comes next, from 1.
  unsigned line();

  /// Notes an error at the current place; always false.
  bool fail(const llvm::Twine &message);
  /// Passes `ok` on; names the value that an error is in, from the inside out.
  bool within(const llvm::Twine &where, bool ok);
  /// The first error in one line, with line and column.
  std::string error() const { return place + context + message; }

private:
  void skipSpace();
  bool expect(char wanted);
  bool expected(const llvm::Twine &what);
  bool nest();
  bool real(const char *begin, int64_t &value);
  bool escape(std::string &value);
  bool hex(unsigned &code);

  const char *at;
  const char *end;
  const char *lineBegin;
  unsigned lineNumber = 1;
  unsigned depth = 0;
  std::string place, context, message;
};

} // namespace

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

//===----------------------------------------------------------------------===//
// Problems and solutions from JSON
//===----------------------------------------------------------------------===//

namespace {

/// The parallel lists of the JSON form, with the line of each entry for errors
/// that only show when all has been read.
class ProblemReader {
public:
  explicit ProblemReader(StringRef json) : reader(json) {}
  llvm::Expected<Problem> read();

private:
  using Keys = std::set<std::string>;

  template <typename Entry, typename Read>
  bool list(const char *name, std::vector<Entry> &entries, std::vector<unsigned> &lines, Read read);
  bool once(Keys &seen, const std::string &key, std::initializer_list<StringRef> known);
  bool complete(const Keys &seen, StringRef where, std::initializer_list<StringRef> fields);
  bool body();
  bool nodes();
  bool edges();
  bool intervals(std::vector<Interval> &into);
  bool ends(std::pair<unsigned, unsigned> &into);
  void assemble();
  unsigned lineOf(const ProblemFault &fault) const;

  JsonReader reader;
  Problem problem;
  std::vector<std::vector<Interval>> nodeIntervals;
  std::vector<std::vector<int64_t>> nodeCosts, nodeUsages, edgeCosts;
  std::vector<std::pair<unsigned, unsigned>> edgeEnds;
  std::vector<unsigned> lines[5]; // By field.
  unsigned limitLine = 0;
};

} // namespace

template <typename Entry, typename Read>
bool ProblemReader::list(const char *name, std::vector<Entry> &entries,
                         std::vector<unsigned> &lines, Read read) {
  return reader.within("field '" + Twine(name) + "'", reader.array([&] {
    lines.push_back(reader.line());
    Entry entry{};
    bool ok = reader.within(Twine(name) + "[" + Twine(entries.size()) + "]", read(entry));
    entries.push_back(std::move(entry));
    return ok;
  }));
}

/// Of two fields with one name, one would be lost.
bool ProblemReader::once(Keys &seen, const std::string &key,
                         std::initializer_list<StringRef> known) {
  if (std::find(known.begin(), known.end(), key) == known.end() || seen.insert(key).second)
    return true;
  return reader.fail("field '" + key + "' appears twice");
}

bool ProblemReader::complete(const Keys &seen, StringRef where,
                             std::initializer_list<StringRef> fields) {
  for (StringRef field : fields)
    if (!seen.count(field.str()))
      return reader.fail("found no field '" + field + "' in " + where + ", expected one");
  return true;
}

/// [begin, end], or a list of such pairs for a value that lives several times.
bool ProblemReader::intervals(std::vector<Interval> &into) {
  std::vector<int64_t> ends;
  bool isList = false;
  bool ok = reader.array([&] {
    isList |= reader.peek() == '[';
    if (isList)
      return ends.empty() ? intervals(into) : reader.fail("expected an integer, found a list");
    int64_t time;
    if (!reader.integer(time))
      return false;
    ends.push_back(time);
    return true;
  });
  if (!ok || ends.empty())
    return ok;
  if (ends.size() != 2)
    return reader.fail("expected [begin, end], found " + Twine(ends.size()) + " integers");
  into.push_back({ends[0], ends[1]});
  return true;
}

bool ProblemReader::ends(std::pair<unsigned, unsigned> &into) {
  std::vector<int64_t> values;
  if (!reader.integers(values))
    return false;
  if (values.size() != 2)
    return reader.fail("expected two nodes, found " + Twine(values.size()));
  for (int64_t value : values)
    if (value < 0 || value > INT32_MAX)
      return reader.fail("edge " + Twine(edgeEnds.size()) + ": found node " + Twine(value) +
                         ", expected 0 to " + Twine(INT32_MAX));
  into = {unsigned(values[0]), unsigned(values[1])};
  return true;
}

bool ProblemReader::nodes() {
  Keys seen;
  auto integers = [&](std::vector<int64_t> &into) { return reader.integers(into); };
  bool ok = reader.object([&](const std::string &key) {
    if (!once(seen, key, {"intervals", "costs", "usages"}))
      return false;
    if (key == "intervals")
      return list("intervals", nodeIntervals, lines[ProblemFault::Intervals],
                  [&](auto &into) { return intervals(into); });
    if (key == "costs")
      return list("costs", nodeCosts, lines[ProblemFault::Costs], integers);
    if (key == "usages")
      return list("usages", nodeUsages, lines[ProblemFault::Usages], integers);
    return reader.skip();
  });
  if (!ok || !complete(seen, "'nodes'", {"intervals", "costs", "usages"}))
    return false;
  if (nodeIntervals.size() != nodeCosts.size() || nodeUsages.size() != nodeCosts.size())
    return reader.fail("found " + Twine(nodeIntervals.size()) + " intervals, " +
                       Twine(nodeCosts.size()) + " costs and " + Twine(nodeUsages.size()) +
                       " usages, expected as many of each");
  return true;
}

bool ProblemReader::edges() {
  Keys seen;
  bool ok = reader.object([&](const std::string &key) {
    if (!once(seen, key, {"nodes", "costs"}))
      return false;
    if (key == "nodes")
      return list("nodes", edgeEnds, lines[ProblemFault::EdgeNodes],
                  [&](auto &into) { return ends(into); });
    if (key == "costs")
      return list("costs", edgeCosts, lines[ProblemFault::EdgeCosts], [&](auto &into) {
        bool ok = reader.integers(into);
        into.shrink_to_fit(); // Most of a problem's memory.
        return ok;
      });
    return reader.skip();
  });
  if (!ok || !complete(seen, "'edges'", {"nodes", "costs"}))
    return false;
  if (edgeEnds.size() != edgeCosts.size())
    return reader.fail("found " + Twine(edgeEnds.size()) + " pairs of nodes and " +
                       Twine(edgeCosts.size()) + " costs, expected as many of each");
  return true;
}

bool ProblemReader::body() {
  Keys seen;
  bool ok = reader.object([&](const std::string &key) {
    if (!once(seen, key, {"name", "nodes", "edges", "usage_limit"}))
      return false;
    if (key == "name" && reader.peek() == '"')
      return reader.string(problem.name);
    if (key == "nodes")
      return reader.within("field 'nodes'", nodes());
    if (key == "edges")
      return reader.within("field 'edges'", edges());
    if (key != "usage_limit" || reader.peek() == 'n')
      return reader.skip();
    limitLine = reader.line();
    int64_t limit = 0;
    if (!reader.within("field 'usage_limit'", reader.integer(limit)))
      return false;
    // Usages never add up to more, so a larger limit says the same.
    problem.usageLimitBytes = std::min(limit, kMaxUsageBytes);
    return true;
  });
  return ok && complete(seen, "'problem'", {"nodes", "edges"});
}

void ProblemReader::assemble() {
  problem.nodes.resize(nodeCosts.size());
  for (size_t i = 0; i < nodeCosts.size(); ++i) {
    problem.nodes[i].intervals = std::move(nodeIntervals[i]);
    problem.nodes[i].costs = std::move(nodeCosts[i]);
    problem.nodes[i].usagesBytes = std::move(nodeUsages[i]);
  }
  problem.edges.resize(edgeEnds.size());
  for (size_t i = 0; i < edgeEnds.size(); ++i) {
    std::tie(problem.edges[i].a, problem.edges[i].b) = edgeEnds[i];
    problem.edges[i].costs = std::move(edgeCosts[i]);
  }
}

unsigned ProblemReader::lineOf(const ProblemFault &fault) const {
  return fault.field == ProblemFault::UsageLimit ? limitLine : lines[fault.field][fault.index];
}

llvm::Expected<Problem> ProblemReader::read() {
  Keys seen;
  bool ok = reader.object([&](const std::string &key) {
    if (!once(seen, key, {"problem"}))
      return false;
    return key == "problem" ? reader.within("field 'problem'", body()) : reader.skip();
  });
  if (!ok || !reader.finish() || !complete(seen, "the file", {"problem"}))
    return llvm::createStringError(reader.error());
  assemble();
  if (std::optional<ProblemFault> fault = findFault(problem))
    return llvm::createStringError("line " + Twine(lineOf(*fault)) + ": " + fault->message);
  return std::move(problem);
}

llvm::Expected<Problem> solver::parseProblem(StringRef json) { return ProblemReader(json).read(); }

llvm::Expected<std::vector<unsigned>> solver::parseChoices(const Problem &problem, StringRef json) {
  JsonReader reader(json);
  std::vector<unsigned> choices;
  bool ok = reader.array([&] {
    int64_t choice;
    size_t node = choices.size();
    if (node == problem.nodes.size())
      return reader.fail("found more choices than the " + Twine(node) + " nodes of the problem");
    if (!reader.within("node " + Twine(node), reader.integer(choice)))
      return false;
    size_t count = problem.nodes[node].costs.size();
    if (choice < 0 || size_t(choice) >= count)
      return reader.fail("node " + Twine(node) + ": found choice " + Twine(choice) +
                         ", expected 0 to " + Twine(count - 1));
    choices.push_back(choice);
    return true;
  });
  if (ok && reader.finish() && choices.size() != problem.nodes.size())
    reader.fail("found " + Twine(choices.size()) + " choices, expected one for each of " +
                Twine(problem.nodes.size()) + " nodes");
  if (!reader.error().empty())
    return llvm::createStringError(reader.error());
  return choices;
}
