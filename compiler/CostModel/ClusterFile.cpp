//===- ClusterFile.cpp - reading and writing cluster descriptions ---------===//
//
// The YAML text becomes a small tree first, so that fields may come in any
// order and each keeps its line. docs/cluster.md describes the fields.
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/Cluster.h"
#include "compiler/CostModel/ClusterPresets.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/YAMLParser.h"

#include <cmath>
#include <optional>

using namespace alpa;
using llvm::StringRef;
using llvm::Twine;

static llvm::Error fail(const Twine &message) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), message);
}

namespace {

struct Value {
  enum Kind { Null, Scalar, Map, List } kind = Null;
  unsigned line = 0;
  std::string text;                               // Of a scalar.
  std::vector<std::pair<std::string, Value>> map; // In the order of the file.
  std::vector<Value> list;

  std::string describe() const {
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
};

constexpr unsigned kMaxDepth = 8;
constexpr int64_t kMaxHosts = 100'000;
constexpr int64_t kMaxDevicesPerHost = 4096;

/// YAML text to a tree of values; the first error wins.
class TreeReader {
public:
  TreeReader(StringRef yaml, StringRef where) : where(where) {
    sources.setDiagHandler(
        [](const llvm::SMDiagnostic &diagnostic, void *self) {
          auto &reader = *static_cast<TreeReader *>(self);
          reader.note(diagnostic.getLineNo(), "not valid YAML: " + diagnostic.getMessage());
        },
        this);
    stream.emplace(yaml, sources, /*ShowColors=*/false);
  }

  llvm::Expected<Value> read() {
    Value root;
    auto document = stream->begin();
    if (document == stream->end() || stream->failed()) {
      note(1, "found nothing, expected the description of a cluster");
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
  bool convert(llvm::yaml::Node *node, Value &value, unsigned depth) {
    if (!node || stream->failed()) {
      note(lineOf(node), "not valid YAML");
      return false;
    }
    value.line = lineOf(node);
    if (depth > kMaxDepth) {
      note(value.line, "found too many nested levels for a cluster description");
      return false;
    }
    if (llvm::isa<llvm::yaml::NullNode>(node))
      return true;
    if (auto *scalar = llvm::dyn_cast<llvm::yaml::ScalarNode>(node)) {
      llvm::SmallString<32> storage;
      value.kind = Value::Scalar;
      value.text = scalar->getValue(storage).str();
      return true;
    }
    if (auto *mapping = llvm::dyn_cast<llvm::yaml::MappingNode>(node)) {
      value.kind = Value::Map;
      for (llvm::yaml::KeyValueNode &entry : *mapping) {
        auto *key = llvm::dyn_cast_or_null<llvm::yaml::ScalarNode>(entry.getKey());
        if (!key) {
          note(lineOf(&entry), "found a key that is not a name, expected 'field: value'");
          return false;
        }
        llvm::SmallString<32> storage;
        std::string name = key->getValue(storage).str();
        unsigned keyLine = lineOf(key);
        if (llvm::any_of(value.map, [&](const auto &other) { return other.first == name; })) {
          note(keyLine, "found field '" + name + "' twice, expected it once");
          return false;
        }
        value.map.emplace_back(std::move(name), Value());
        Value &child = value.map.back().second;
        if (!convert(entry.getValue(), child, depth + 1))
          return false;
        child.line = keyLine;
      }
      return !stream->failed();
    }
    if (auto *sequence = llvm::dyn_cast<llvm::yaml::SequenceNode>(node)) {
      value.kind = Value::List;
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
  std::string message;
  llvm::SourceMgr sources;
  std::optional<llvm::yaml::Stream> stream;
};

/// Reads the fields of a cluster; every method returns false after an error.
class ClusterReader {
public:
  ClusterReader(StringRef where) : where(where) {}

  llvm::Expected<Cluster> read(const Value &root) {
    if (readCluster(root))
      return std::move(cluster);
    return fail(message);
  }

private:
  bool error(const Value &at, const Twine &field, const Twine &found, const Twine &expected) {
    message = (where + ":" + Twine(std::max(at.line, 1u)) + ": field '" + field + "': found " +
               found + ", expected " + expected)
                  .str();
    return false;
  }

  bool checkMap(const Value &value, StringRef path, llvm::ArrayRef<StringRef> fields,
                StringRef expected) {
    if (value.kind != Value::Map)
      return error(value, path, value.describe(), expected);
    for (const auto &[name, child] : value.map)
      if (!llvm::is_contained(fields, name))
        return error(child, join(path, name), "an unknown field",
                     "one of " + llvm::join(fields, ", "));
    return true;
  }

  static std::string join(StringRef path, StringRef name) {
    return path.empty() || path == "cluster" ? name.str() : (path + "." + name).str();
  }

  /// A child that must be there; null after an error.
  const Value *child(const Value &map, StringRef path, StringRef name, StringRef expected) {
    for (const auto &[key, value] : map.map)
      if (key == name)
        return &value;
    error(map, join(path, name), "nothing", expected);
    return nullptr;
  }

  bool readNumber(const Value &map, StringRef path, StringRef name, StringRef expected,
                  double &result, bool allowZero = false) {
    const Value *value = child(map, path, name, expected);
    if (!value)
      return false;
    double number = 0;
    if (value->kind != Value::Scalar || StringRef(value->text).getAsDouble(number) ||
        !std::isfinite(number) || number < 0 || (number == 0 && !allowZero))
      return error(*value, join(path, name), value->describe(), expected);
    result = number;
    return true;
  }

  bool readBytes(const Value &map, StringRef path, StringRef name, int64_t &result) {
    constexpr StringRef expected = "a positive number of bytes, such as 17179869184 or 16GiB";
    const Value *value = child(map, path, name, expected);
    if (!value)
      return false;
    StringRef text = value->text;
    double unit = 1;
    constexpr std::pair<StringRef, double> units[] = {
        {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    for (auto [suffix, factor] : units)
      if (text.consume_back(suffix)) {
        unit = factor;
        text = text.rtrim();
        break;
      }
    double number = 0;
    if (value->kind != Value::Scalar || text.getAsDouble(number) ||
        !(number * unit >= 1 && number * unit < 0x1p62))
      return error(*value, join(path, name), value->describe(), expected);
    result = static_cast<int64_t>(number * unit);
    return true;
  }

  bool readCount(const Value &map, StringRef path, StringRef name, int64_t most, int64_t &result) {
    std::string expected = llvm::formatv("an integer from 1 to {0}", most).str();
    const Value *value = child(map, path, name, expected);
    if (!value)
      return false;
    if (value->kind != Value::Scalar || StringRef(value->text).getAsInteger(10, result) ||
        result < 1 || result > most)
      return error(*value, join(path, name), value->describe(), expected);
    return true;
  }

  bool readLink(const Value &links, StringRef name, Link &link) {
    const Value *value = child(links, "links", name, "bandwidth and latency");
    std::string path = "links." + name.str();
    return value && checkMap(*value, path, {"bandwidth", "latency"}, "bandwidth and latency") &&
           readNumber(*value, path, "bandwidth", "a positive number of bytes a second",
                      link.bandwidthBytesPerSecond) &&
           readNumber(*value, path, "latency", "a number of seconds, zero or more",
                      link.latencySeconds, /*allowZero=*/true);
  }

  bool readDeviceType(StringRef name, const Value &value) {
    DeviceType type;
    type.name = name.str();
    std::string path = "device_types." + type.name;
    if (!checkMap(value, path, {"memory_bytes", "memory_bandwidth", "peak_flops"},
                  "memory_bytes, memory_bandwidth and peak_flops") ||
        !readBytes(value, path, "memory_bytes", type.memoryBytes) ||
        !readNumber(value, path, "memory_bandwidth", "a positive number of bytes a second",
                    type.memoryBandwidthBytesPerSecond))
      return false;
    constexpr StringRef expected = "a mapping from dtype to FLOP/s that has float32";
    constexpr StringRef dtypes[] = {"float64", "float32", "bfloat16", "float16", "float8", "int8"};
    const Value *peak = child(value, path, "peak_flops", expected);
    path += ".peak_flops";
    if (!peak || !checkMap(*peak, path, dtypes, expected))
      return false;
    for (const auto &[dtype, number] : peak->map)
      if (!readNumber(*peak, path, dtype, "a positive number of FLOP/s",
                      type.peakFlopsPerSecond[dtype]))
        return false;
    if (!type.peakFlopsPerSecond.count("float32"))
      return error(*peak, path + ".float32", "nothing", "a positive number of FLOP/s");
    cluster.deviceTypes.push_back(std::move(type));
    return true;
  }

  bool readHosts(const Value &value, StringRef path) {
    constexpr StringRef expected = "{count, devices, device_type} or a list of these";
    if (!checkMap(value, path, {"count", "devices", "device_type"}, expected))
      return false;
    int64_t count = 1;
    Host host;
    bool counted =
        llvm::any_of(value.map, [](const auto &field) { return field.first == "count"; });
    if (counted && !readCount(value, path, "count", kMaxHosts, count))
      return false;
    if (!readCount(value, path, "devices", kMaxDevicesPerHost, host.devices))
      return false;
    const Value *type = child(value, path, "device_type", "the name of a device type");
    if (!type)
      return false;
    std::vector<StringRef> names;
    for (const DeviceType &known : cluster.deviceTypes)
      names.push_back(known.name);
    auto found = llvm::find(names, type->text);
    if (type->kind != Value::Scalar || found == names.end())
      return error(*type, join(path, "device_type"), type->describe(),
                   "one of the device types: " + llvm::join(names, ", "));
    host.deviceType = found - names.begin();
    if (static_cast<int64_t>(cluster.hosts.size()) + count > kMaxHosts)
      return error(value, path, "more hosts than can be planned for",
                   "at most " + Twine(kMaxHosts));
    cluster.hosts.insert(cluster.hosts.end(), count, host);
    return true;
  }

  bool readCluster(const Value &root) {
    constexpr StringRef fields[] = {"name", "device_types", "hosts", "links"};
    if (!checkMap(root, "cluster", fields, "fields name, device_types, hosts and links"))
      return false;
    for (const auto &[key, value] : root.map)
      if (key == "name") {
        if (value.kind != Value::Scalar || value.text.empty())
          return error(value, "name", value.describe(), "a name");
        cluster.name = value.text;
      }

    constexpr StringRef typesExpected = "a mapping from name to device type";
    const Value *types = child(root, "", "device_types", typesExpected);
    if (!types)
      return false;
    if (types->kind != Value::Map || types->map.empty())
      return error(*types, "device_types", types->kind == Value::Map ? "{}" : types->describe(),
                   typesExpected);
    for (const auto &[name, value] : types->map)
      if (!readDeviceType(name, value))
        return false;

    const Value *hosts = child(root, "", "hosts", "at least one host");
    if (!hosts)
      return false;
    if (hosts->kind == Value::List) {
      if (hosts->list.empty())
        return error(*hosts, "hosts", "an empty list", "at least one host");
      for (auto [index, host] : llvm::enumerate(hosts->list))
        if (!readHosts(host, llvm::formatv("hosts[{0}]", index).str()))
          return false;
    } else if (!readHosts(*hosts, "hosts")) {
      return false;
    }

    const Value *links = child(root, "", "links", "intra_host and inter_host");
    return links &&
           checkMap(*links, "links", {"intra_host", "inter_host"}, "intra_host and inter_host") &&
           readLink(*links, "intra_host", cluster.intraHost) &&
           readLink(*links, "inter_host", cluster.interHost);
  }

  std::string where;
  std::string message;
  Cluster cluster;
};

} // namespace

llvm::Expected<Cluster> alpa::parseCluster(StringRef yaml, StringRef where) {
  if (!llvm::json::isUTF8(yaml))
    return fail(where + ":1: found bytes that are not UTF-8, expected YAML text");
  // The YAML scanner reads one byte past what it was given.
  std::string text = yaml.str();
  llvm::Expected<Value> root = TreeReader(text, where).read();
  if (!root)
    return root.takeError();
  return ClusterReader(where).read(*root);
}

llvm::Expected<Cluster> alpa::loadCluster(StringRef presetOrFile) {
  // "dgx-a100:4" is four of the preset's hosts.
  auto [name, countText] = presetOrFile.rsplit(':');
  for (const ClusterPreset &preset : clusterPresetTable()) {
    if (preset.name != name)
      continue;
    llvm::Expected<Cluster> cluster = parseCluster(preset.yaml, preset.name);
    if (!cluster || name == presetOrFile)
      return cluster;
    int64_t count = 0;
    if (countText.getAsInteger(10, count) || count < 1 || count > kMaxHosts)
      return fail("cluster '" + presetOrFile + "': found '" + countText +
                  "' after the preset, expected a number of hosts from 1 to " + Twine(kMaxHosts));
    cluster->hosts.assign(count, cluster->hosts.front());
    return cluster;
  }
  bool isFile = presetOrFile.contains('/') || presetOrFile.ends_with(".yaml") ||
                presetOrFile.ends_with(".yml") || presetOrFile.ends_with(".json");
  if (!isFile)
    return fail("cluster '" + presetOrFile + "': no such preset, expected one of " +
                llvm::join(clusterPresets(), ", ") + ", or a file name that ends in .yaml");
  auto buffer = llvm::MemoryBuffer::getFile(presetOrFile, /*IsText=*/true);
  if (!buffer)
    return fail("cluster file '" + presetOrFile + "': " + buffer.getError().message());
  return parseCluster((*buffer)->getBuffer(), presetOrFile);
}

/// The shortest text that reads back as the same number.
static std::string number(double value) {
  char buffer[40];
  for (int digits = 1; digits <= 17; ++digits) {
    snprintf(buffer, sizeof(buffer), "%.*g", digits, value);
    if (strtod(buffer, nullptr) == value)
      break;
  }
  return buffer;
}

std::string alpa::printCluster(const Cluster &cluster) {
  std::string text;
  llvm::raw_string_ostream os(text);
  auto quoted = [](StringRef name) { return llvm::json::Value(name); };
  auto link = [&](const Link &value) {
    return llvm::formatv("{{\"bandwidth\": {0}, \"latency\": {1}}",
                         number(value.bandwidthBytesPerSecond), number(value.latencySeconds))
        .str();
  };
  os << "{\n";
  if (!cluster.name.empty())
    os << "  \"name\": " << quoted(cluster.name) << ",\n";
  os << "  \"device_types\": {";
  llvm::ListSeparator typeSeparator(",");
  for (const DeviceType &type : cluster.deviceTypes) {
    os << typeSeparator << "\n    " << quoted(type.name)
       << ": {\"memory_bytes\": " << type.memoryBytes
       << ", \"memory_bandwidth\": " << number(type.memoryBandwidthBytesPerSecond)
       << ",\n      \"peak_flops\": {";
    std::vector<StringRef> dtypes(type.peakFlopsPerSecond.keys().begin(),
                                  type.peakFlopsPerSecond.keys().end());
    llvm::sort(dtypes);
    llvm::ListSeparator separator;
    for (StringRef dtype : dtypes)
      os << separator << quoted(dtype) << ": " << number(type.peakFlopsPerSecond.lookup(dtype));
    os << "}}";
  }
  os << "\n  },\n  \"hosts\": [";
  llvm::ListSeparator hostSeparator(",");
  for (size_t i = 0; i < cluster.hosts.size();) {
    size_t begin = i;
    const Host &host = cluster.hosts[begin];
    while (i < cluster.hosts.size() && cluster.hosts[i].devices == host.devices &&
           cluster.hosts[i].deviceType == host.deviceType)
      ++i;
    os << hostSeparator << "\n    {\"count\": " << i - begin << ", \"devices\": " << host.devices
       << ", \"device_type\": " << quoted(cluster.deviceTypes[host.deviceType].name) << "}";
  }
  os << "\n  ],\n  \"links\": {\n    \"intra_host\": " << link(cluster.intraHost)
     << ",\n    \"inter_host\": " << link(cluster.interHost) << "\n  }\n}\n";
  return text;
}
