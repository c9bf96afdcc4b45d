//===- Profile.cpp - measured costs ---------------------------------------===//
//
// docs/cluster.md describes the fields.
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/Profile.h"

#include "compiler/CostModel/YamlTree.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <cassert>
#include <cmath>

using namespace alpa;
using namespace alpa::cost;
using llvm::StringRef;

CostTable::CostTable(std::vector<double> someSizes, std::vector<double> someSeconds)
    : sizes(std::move(someSizes)), seconds(std::move(someSeconds)) {
  assert(!sizes.empty() && sizes.size() == seconds.size() && llvm::is_sorted(sizes));
  for (size_t i = 1; i < seconds.size(); ++i)
    seconds[i] = std::max(seconds[i], seconds[i - 1]);
}

double CostTable::at(double size) const {
  auto above = llvm::upper_bound(sizes, size);
  size_t next = above - sizes.begin();
  if (next == 0)
    return seconds.front();
  if (next == sizes.size())
    return seconds.back() * (size / sizes.back());
  double part = (size - sizes[next - 1]) / (sizes[next] - sizes[next - 1]);
  return seconds[next - 1] + part * (seconds[next] - seconds[next - 1]);
}

static constexpr StringRef kCollectives[] = {"all_reduce", "all_gather", "reduce_scatter",
                                             "all_to_all", "collective_permute"};
llvm::ArrayRef<StringRef> cost::collectiveNames() { return kCollectives; }

static constexpr StringRef kLinks[] = {"intra_host", "inter_host"};
static constexpr int64_t kMaxGroup = 1'000'000;

namespace {
class ProfileReader : FieldReader {
public:
  ProfileReader(StringRef where) : FieldReader(where) {}

  llvm::Expected<Profile> read(const YamlValue &root) {
    if (readAll(root))
      return std::move(profile);
    return takeError();
  }

private:
  bool readAll(const YamlValue &root) {
    if (!checkMap(root, "profile", {"device_types", "collectives"},
                  "fields device_types and collectives"))
      return false;
    if (const YamlValue *types = root.find("device_types")) {
      if (types->kind != YamlValue::Map)
        return error(*types, "device_types", types->describe(),
                     "a mapping from device type to its tables");
      for (const auto &[name, value] : types->map)
        if (!readDeviceType(name, value))
          return false;
    }
    if (const YamlValue *groups = root.find("collectives")) {
      if (groups->kind != YamlValue::List)
        return error(*groups, "collectives", groups->describe(), "a list of tables");
      for (auto [index, group] : llvm::enumerate(groups->list))
        if (!readGroup(group, llvm::formatv("collectives[{0}]", index).str()))
          return false;
    }
    return true;
  }

  bool readDeviceType(StringRef name, const YamlValue &value) {
    std::string path = "device_types." + name.str();
    if (!checkMap(value, path, {"matmul", "memory"}, "matmul and memory"))
      return false;
    if (const YamlValue *matmul = value.find("matmul")) {
      constexpr StringRef dtypes[] = {"float64", "float32", "bfloat16", "float16",
                                      "float8",  "float4",  "int8"};
      std::string matmulPath = path + ".matmul";
      if (!checkMap(*matmul, matmulPath, dtypes, "a mapping from dtype to {flops, seconds}"))
        return false;
      for (const auto &[dtype, table] : matmul->map) {
        std::string tablePath = join(matmulPath, dtype);
        if (!checkMap(table, tablePath, {"flops", "seconds"}, "flops and seconds") ||
            !readTable(table, tablePath, "flops", profile.matmul[{name.str(), dtype}]))
          return false;
      }
    }
    if (const YamlValue *memory = value.find("memory"))
      return checkMap(*memory, path + ".memory", {"bytes", "seconds"}, "bytes and seconds") &&
             readTable(*memory, path + ".memory", "bytes", profile.memory[name.str()]);
    return true;
  }

  bool readGroup(const YamlValue &value, StringRef path) {
    constexpr StringRef fields[] = {"collective",       "link",  "devices",
                                    "devices_per_host", "bytes", "seconds"};
    if (!checkMap(value, path, fields, llvm::join(llvm::ArrayRef(fields), ", ")))
      return false;
    CollectiveGroup group;
    size_t collective = 0, link = 0;
    if (!readName(value, path, "collective", kCollectives, collective) ||
        !readName(value, path, "link", kLinks, link) ||
        !readCount(value, path, "devices", kMaxGroup, group.devices))
      return false;
    if (group.devices < 2)
      return error(*value.find("devices"), join(path, "devices"), "'1'", "at least 2 devices");
    group.collective = static_cast<Collective>(collective);
    group.devicesPerHost = link == 0 ? group.devices : 1;
    if (const YamlValue *perHost = value.find("devices_per_host")) {
      if (!readCount(value, path, "devices_per_host", group.devices, group.devicesPerHost))
        return false;
      if ((group.devicesPerHost < group.devices) != (link == 1))
        return error(*perHost, join(path, "devices_per_host"), perHost->describe(),
                     link == 0 ? "all devices on one host" : "fewer than all devices");
    }
    if (profile.collectives.count(group))
      return error(value, path, "a second table of this collective for such a group", "one");
    return readTable(value, path, "bytes", profile.collectives[group]);
  }

  bool readName(const YamlValue &map, StringRef path, StringRef name,
                llvm::ArrayRef<StringRef> names, size_t &result) {
    std::string expected = "one of " + llvm::join(names, ", ");
    const YamlValue *value = child(map, path, name, expected);
    if (!value)
      return false;
    auto found = llvm::find(names, value->text);
    if (value->kind != YamlValue::Scalar || found == names.end())
      return error(*value, join(path, name), value->describe(), expected);
    result = found - names.begin();
    return true;
  }

  bool readTable(const YamlValue &map, StringRef path, StringRef sizeName, CostTable &table) {
    std::vector<double> sizes, seconds;
    if (!readNumbers(map, path, sizeName, sizes) || !readNumbers(map, path, "seconds", seconds))
      return false;
    for (size_t i = 1; i < sizes.size(); ++i)
      if (sizes[i] <= sizes[i - 1])
        return error(map.find(sizeName)->list[i], join(path, sizeName),
                     map.find(sizeName)->list[i].text + " after " +
                         map.find(sizeName)->list[i - 1].text,
                     "rising sizes");
    if (sizes.size() != seconds.size())
      return error(*map.find("seconds"), join(path, "seconds"),
                   llvm::formatv("{0} numbers", seconds.size()).str(),
                   llvm::formatv("{0}, one for each of '{1}'", sizes.size(), sizeName).str());
    table = CostTable(std::move(sizes), std::move(seconds));
    return true;
  }

  bool readNumbers(const YamlValue &map, StringRef path, StringRef name,
                   std::vector<double> &numbers) {
    constexpr StringRef expected = "a list of positive numbers";
    const YamlValue *list = child(map, path, name, expected);
    if (!list)
      return false;
    if (list->kind != YamlValue::List || list->list.empty())
      return error(*list, join(path, name),
                   list->kind == YamlValue::List ? "an empty list" : list->describe(), expected);
    for (const YamlValue &value : list->list) {
      double number = 0;
      if (value.kind != YamlValue::Scalar || StringRef(value.text).getAsDouble(number) ||
          !std::isfinite(number) || number <= 0)
        return error(value, join(path, name), value.describe(), expected);
      numbers.push_back(number);
    }
    return true;
  }

  Profile profile;
};
} // namespace

llvm::Expected<Profile> cost::readProfile(const YamlValue &root, StringRef where) {
  return ProfileReader(where).read(root);
}

llvm::Expected<Profile> cost::parseProfile(StringRef yaml, StringRef where) {
  llvm::Expected<YamlValue> root = readYaml(yaml, where, "a profile");
  if (!root)
    return root.takeError();
  return readProfile(*root, where);
}

static std::string printTable(StringRef sizeName, const CostTable &table) {
  auto numbers = [](llvm::ArrayRef<double> values) {
    return llvm::join(llvm::map_range(values, printNumber), ", ");
  };
  return llvm::formatv("\"{0}\": [{1}], \"seconds\": [{2}]", sizeName, numbers(table.getSizes()),
                       numbers(table.getSeconds()))
      .str();
}

std::string cost::printProfile(const Profile &profile) {
  std::map<std::string, std::vector<std::string>> types;
  std::map<std::string, std::vector<std::string>> matmuls;
  auto quoted = [](StringRef name) { return llvm::formatv("{0}", llvm::json::Value(name)).str(); };
  for (const auto &[key, table] : profile.matmul)
    matmuls[key.first].push_back(quoted(key.second) + ": {" + printTable("flops", table) + "}");
  for (const auto &[name, tables] : matmuls)
    types[name].push_back("\"matmul\": {" + llvm::join(tables, ",\n      ") + "}");
  for (const auto &[name, table] : profile.memory)
    types[name].push_back("\"memory\": {" + printTable("bytes", table) + "}");

  std::string text = "{\"device_types\": {";
  llvm::ListSeparator typeSeparator(",");
  for (const auto &[name, fields] : types)
    (text += StringRef(typeSeparator)) +=
        "\n    " + quoted(name) + ": {" + llvm::join(fields, ",\n      ") + "}";
  text += "},\n   \"collectives\": [";
  llvm::ListSeparator separator(",");
  for (const auto &[group, table] : profile.collectives)
    (text += StringRef(separator)) +=
        llvm::formatv("\n    {{\"collective\": \"{0}\", \"link\": \"{1}\", \"devices\": {2}, "
                      "\"devices_per_host\": {3}, {4}}",
                      kCollectives[static_cast<size_t>(group.collective)],
                      kLinks[group.devicesPerHost < group.devices], group.devices,
                      group.devicesPerHost, printTable("bytes", table))
            .str();
  return text + "]}";
}
