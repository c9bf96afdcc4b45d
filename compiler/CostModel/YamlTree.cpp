//===- YamlTree.cpp - YAML text as a tree with lines ----------------------===//

#include "compiler/CostModel/YamlTree.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/YAMLParser.h"

#include <cmath>
#include <optional>

using namespace alpa;
using namespace alpa::cost;
using llvm::StringRef;
using llvm::Twine;

static llvm::Error fail(const Twine &message) { return makeError(ErrorCode::ClusterFile, message); }

std::string YamlValue::describe() const {
  switch (kind) {
  case Null:
    return "nothing";
  case Scalar:
    return "'" + text + "'";
  case Map:
    return "a mapping";
  case List:
    return "a list";
  }
  return "";
}

const YamlValue *YamlValue::find(StringRef name) const {
  for (const auto &[key, value] : map)
    if (key == name)
      return &value;
  return nullptr;
}

namespace {

constexpr unsigned kMaxDepth = 8;

/// YAML text to a tree of values; the first error wins.
class TreeReader {
public:
  TreeReader(StringRef yaml, StringRef where, StringRef what) : where(where), what(what) {
    sources.setDiagHandler(
        [](const llvm::SMDiagnostic &diagnostic, void *self) {
          auto &reader = *static_cast<TreeReader *>(self);
          reader.note(diagnostic.getLineNo(), "not valid YAML: " + diagnostic.getMessage());
        },
        this);
    stream.emplace(yaml, sources, /*ShowColors=*/false);
  }

  llvm::Expected<YamlValue> read() {
    YamlValue root;
    auto document = stream->begin();
    if (document == stream->end() || stream->failed()) {
      note(1, "found nothing, expected the description of " + what);
      return fail(message);
    }
    convert(document->getRoot(), root, 0);
    if (message.empty() && !stream->failed() && ++document != stream->end())
      if (!llvm::isa_and_nonnull<llvm::yaml::NullNode>(document->getRoot()))
        note(lineOf(document->getRoot()), "found a second document, expected one");
    if (stream->failed())
      note(1, "not valid YAML");
    if (!message.empty())
      return fail(message);
    return root;
  }

private:
  unsigned lineOf(llvm::yaml::Node *node) {
    llvm::SMLoc start = node ? node->getSourceRange().Start : llvm::SMLoc();
    unsigned buffer = start.isValid() ? sources.FindBufferContainingLoc(start) : 0;
    return buffer ? sources.getLineAndColumn(start, buffer).first : 1;
  }

  void note(unsigned line, const Twine &text) {
    if (message.empty())
      message = llvm::formatv("{0}:{1}: {2}", where, std::max(line, 1u), text.str()).str();
  }

  /// False when reading must stop.
  bool convert(llvm::yaml::Node *node, YamlValue &value, unsigned depth) {
    if (!node || stream->failed()) {
      note(lineOf(node), "not valid YAML");
      return false;
    }
    value.line = lineOf(node);
    if (depth > kMaxDepth) {
      note(value.line, "found too many nested levels for the description of " + what);
      return false;
    }
    if (llvm::isa<llvm::yaml::NullNode>(node))
      return true;
    if (auto *scalar = llvm::dyn_cast<llvm::yaml::ScalarNode>(node)) {
      llvm::SmallString<32> storage;
      value.kind = YamlValue::Scalar;
      value.text = scalar->getValue(storage).str();
      return true;
    }
    if (auto *mapping = llvm::dyn_cast<llvm::yaml::MappingNode>(node)) {
      value.kind = YamlValue::Map;
      for (llvm::yaml::KeyValueNode &entry : *mapping) {
        auto *key = llvm::dyn_cast_or_null<llvm::yaml::ScalarNode>(entry.getKey());
        llvm::SmallString<32> storage;
        std::string name = key ? key->getValue(storage).str() : "";
        // A quoted key may have lines, which errors do not.
        if (!key || llvm::any_of(name, [](unsigned char letter) { return letter < ' '; })) {
          note(lineOf(&entry), "found a key that is not a name, expected 'field: value'");
          return false;
        }
        unsigned keyLine = lineOf(key);
        if (llvm::any_of(value.map, [&](const auto &other) { return other.first == name; })) {
          note(keyLine, "found field '" + name + "' twice, expected it once");
          return false;
        }
        value.map.emplace_back(std::move(name), YamlValue());
        YamlValue &child = value.map.back().second;
        if (!convert(entry.getValue(), child, depth + 1))
          return false;
        child.line = keyLine;
      }
      return !stream->failed();
    }
    if (auto *sequence = llvm::dyn_cast<llvm::yaml::SequenceNode>(node)) {
      value.kind = YamlValue::List;
      for (llvm::yaml::Node &entry : *sequence) {
        value.list.emplace_back();
        if (!convert(&entry, value.list.back(), depth + 1))
          return false;
      }
      return !stream->failed();
    }
    note(value.line, "found an alias or block text, expected plain values");
    return false;
  }

  std::string where;
  StringRef what;
  std::string message;
  llvm::SourceMgr sources;
  std::optional<llvm::yaml::Stream> stream;
};

} // namespace

llvm::Expected<YamlValue> cost::readYaml(StringRef text, StringRef where, StringRef what) {
  if (!llvm::json::isUTF8(text))
    return fail(where + ":1: found bytes that are not UTF-8, expected YAML text");
  // The YAML scanner reads one byte past what it was given.
  std::string terminated = text.str();
  return TreeReader(terminated, where, what).read();
}

bool FieldReader::error(const YamlValue &at, const Twine &field, const Twine &found,
                        const Twine &expected) {
  messages.push_back((where + ":" + Twine(std::max(at.line, 1u)) + ": field '" + field +
                      "': found " + found + ", expected " + expected)
                         .str());
  return false;
}

llvm::Error FieldReader::takeError() const {
  constexpr size_t most = 20;
  llvm::ArrayRef<std::string> shown = llvm::ArrayRef(messages).take_front(most);
  std::string text = llvm::join(shown, "\n");
  if (messages.size() > most)
    text += llvm::formatv("\nand {0} more", messages.size() - most).str();
  return fail(text);
}

bool FieldReader::checkMap(const YamlValue &value, StringRef path, llvm::ArrayRef<StringRef> fields,
                           StringRef expected) {
  if (value.kind != YamlValue::Map)
    return error(value, path, value.describe(), expected);
  bool allKnown = true;
  for (const auto &[name, child] : value.map)
    if (!llvm::is_contained(fields, name))
      allKnown =
          error(child, join(path, name), "an unknown field", "one of " + llvm::join(fields, ", "));
  return allKnown;
}

std::string FieldReader::join(StringRef path, StringRef name) {
  return path.empty() || path == "cluster" ? name.str() : (path + "." + name).str();
}

const YamlValue *FieldReader::child(const YamlValue &map, StringRef path, StringRef name,
                                    StringRef expected) {
  for (const auto &[key, value] : map.map)
    if (key == name)
      return &value;
  error(map, join(path, name), "nothing", expected);
  return nullptr;
}

bool FieldReader::readNumber(const YamlValue &map, StringRef path, StringRef name,
                             StringRef expected, double &result, bool allowZero) {
  return readQuantity(map, path, name, {}, expected, result, allowZero);
}

/// The number nearest to what the digits and a power of ten say; true if they say none.
static bool readDecimal(StringRef digits, int exponent, double &number) {
  if (exponent == 0 || digits.getAsDouble(number))
    return digits.getAsDouble(number);
  auto [mantissa, own] = digits.split(digits.contains('e') ? 'e' : 'E');
  int64_t power = 0;
  own.consume_front("+");
  if (!own.empty() && own.getAsInteger(10, power))
    return true;
  std::string text = (mantissa + "e" + Twine(power + exponent)).str();
  return StringRef(text).getAsDouble(number);
}

bool FieldReader::readQuantity(const YamlValue &map, StringRef path, StringRef name,
                               llvm::ArrayRef<Unit> units, StringRef expected, double &result,
                               bool allowZero, double most) {
  const YamlValue *value = child(map, path, name, expected);
  if (!value)
    return false;
  StringRef digits = StringRef(value->text).take_while([](char letter) {
    return llvm::isDigit(letter) || StringRef("+-.eE_").contains(letter);
  });
  double number = 0;
  Unit used{"", 1};
  StringRef unit = StringRef(value->text).drop_front(digits.size()).trim();
  if (auto it = llvm::find_if(units, [&](const Unit &known) { return known.name == unit; });
      it != units.end())
    used = *it;
  else
    digits = value->text;
  if (value->kind != YamlValue::Scalar || readDecimal(digits.trim(), used.exponent, number) ||
      !(number * used.factor <= most) || number < 0 || (number == 0 && !allowZero))
    return error(*value, join(path, name), value->describe(), expected);
  result = number * used.factor;
  return true;
}

bool FieldReader::readCount(const YamlValue &map, StringRef path, StringRef name, int64_t most,
                            int64_t &result) {
  std::string expected = llvm::formatv("an integer from 1 to {0}", most).str();
  const YamlValue *value = child(map, path, name, expected);
  if (!value)
    return false;
  if (value->kind != YamlValue::Scalar || StringRef(value->text).getAsInteger(10, result) ||
      result < 1 || result > most)
    return error(*value, join(path, name), value->describe(), expected);
  return true;
}

/// The shortest text that reads back as the same number.
std::string cost::printNumber(double value) {
  char buffer[40];
  for (int digits = 1; digits <= 17; ++digits) {
    snprintf(buffer, sizeof(buffer), "%.*g", digits, value);
    if (strtod(buffer, nullptr) == value)
      break;
  }
  return buffer;
}
