//===- ClusterFile.cpp - reading and writing cluster descriptions ---------===//
//
// docs/cluster.md describes the fields.
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/Cluster.h"
#include "compiler/CostModel/ClusterPresets.h"
#include "compiler/CostModel/YamlTree.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"

using namespace alpa;
using namespace alpa::cost;
using llvm::StringRef;
using llvm::Twine;

/// The text of a file, or why there is none. A pipe or a device may have no end, or
/// nobody who writes to it.
static std::unique_ptr<llvm::MemoryBuffer> readRegularFile(const Twine &path, std::string &why) {
  llvm::sys::fs::file_status status;
  std::error_code error = llvm::sys::fs::status(path, status);
  if (!error && !llvm::sys::fs::is_regular_file(status)) {
    why = "it is no regular file";
    return nullptr;
  }
  llvm::ErrorOr<std::unique_ptr<llvm::MemoryBuffer>> buffer = error;
  if (!error)
    buffer = llvm::MemoryBuffer::getFile(path, /*IsText=*/true);
  if (buffer)
    return std::move(*buffer);
  why = buffer.getError().message();
  return nullptr;
}

static llvm::Error fail(const Twine &message) { return makeError(ErrorCode::ClusterFile, message); }

namespace {

constexpr Unit kBytes[] = {{"B", 1},        {"KB", 1, 3},    {"MB", 1, 6},
                           {"GB", 1, 9},    {"TB", 1, 12},   {"KiB", 0x1p10},
                           {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
constexpr double kBit = 0.125;
constexpr Unit kBytesPerSecond[] = {
    {"B/s", 1},          {"KB/s", 1, 3},       {"MB/s", 1, 6},     {"GB/s", 1, 9},
    {"TB/s", 1, 12},     {"MiB/s", 0x1p20},    {"GiB/s", 0x1p30},  {"TiB/s", 0x1p40},
    {"Mb/s", kBit, 6},   {"Gb/s", kBit, 9},    {"Tb/s", kBit, 12}, {"Mbit/s", kBit, 6},
    {"Gbit/s", kBit, 9}, {"Tbit/s", kBit, 12}, {"Mbps", kBit, 6},  {"Gbps", kBit, 9}};
constexpr Unit kFlops[] = {{"GFLOPS", 1, 9},  {"TFLOPS", 1, 12},  {"PFLOPS", 1, 15},
                           {"GFLOP/s", 1, 9}, {"TFLOP/s", 1, 12}, {"PFLOP/s", 1, 15}};
constexpr Unit kSeconds[] = {{"s", 1}, {"ms", 1, -3}, {"us", 1, -6}, {"ns", 1, -9}};

constexpr int64_t kMaxHosts = 100'000;
constexpr int64_t kMaxDevicesPerHost = 4096;
constexpr int64_t kMaxDevices = 1 << 17;
constexpr int64_t kMaxMultiprocessors = 100'000;

constexpr StringRef kRate = "a positive number of bytes a second, such as 9e11, 900GB/s or 400Gb/s";
constexpr StringRef kDuration = "a number of seconds from 0 to 1000, such as 3e-6 or 3us";
constexpr double kLongest = 1000;

/// Whether all of a list, each of which was looked at.
static bool all(std::initializer_list<bool> read) { return !llvm::is_contained(read, false); }

/// Reads the fields of a cluster, all that can be read: every method returns false after an error,
/// and what does not follow from it is read nevertheless.
class ClusterReader : FieldReader {
public:
  ClusterReader(StringRef where) : FieldReader(where) {}

  llvm::Expected<Cluster> read(const YamlValue &root) {
    readCluster(root);
    if (messages.empty())
      return std::move(cluster);
    return takeError();
  }

private:
  bool readBytes(const YamlValue &map, StringRef path, StringRef name, int64_t &result) {
    constexpr StringRef expected = "a positive number of bytes, such as 17179869184 or 16GiB";
    double number = 0;
    if (!readQuantity(map, path, name, kBytes, expected, number))
      return false;
    if (!(number >= 1 && number < 0x1p62))
      return error(*map.find(name), join(path, name), map.find(name)->describe(), expected);
    result = static_cast<int64_t>(number);
    return true;
  }

  /// Whether it is a mapping; other fields than these are errors that stop nothing.
  bool checkFields(const YamlValue &value, StringRef path, llvm::ArrayRef<StringRef> fields,
                   StringRef expected) {
    return checkMap(value, path, fields, expected) || value.kind == YamlValue::Map;
  }

  bool readLink(const YamlValue &links, const Twine &where, StringRef name, Link &link) {
    const YamlValue *value = child(links, where.str(), name, "bandwidth and latency");
    std::string path = (where + "." + name).str();
    return value &&
           checkFields(*value, path, {"bandwidth", "latency", "efficiency", "nccl", "groups"},
                       "bandwidth and latency") &&
           all({readQuantity(*value, path, "bandwidth", kBytesPerSecond, kRate,
                             link.bandwidthBytesPerSecond),
                readQuantity(*value, path, "latency", kSeconds, kDuration, link.latencySeconds,
                             /*allowZero=*/true, kLongest),
                readPart(*value, path, "efficiency", link.efficiency)}) &&
           all({readGroups(*value, path, name == "intra_host", link),
                readNccl(*value, path,
                         name == "intra_host" || (name == "inter_host" && cluster.racks), link)});
  }

  /// Bandwidths of fewer devices than a host has.
  bool readGroups(const YamlValue &map, StringRef path, bool isIntraHost, Link &link) {
    const YamlValue *value = map.find("groups");
    if (!value)
      return true;
    std::string where = join(path, "groups");
    if (!isIntraHost)
      return error(*value, where, value->describe(),
                   "no groups here; they are of devices within a host, in intra_host");
    if (value->kind != YamlValue::Map)
      return error(*value, where, value->describe(),
                   "bandwidths by number of devices, such as {2: 50GB/s, 4: 100GB/s}");
    for (const auto &[size, bandwidth] : value->map) {
      auto &[devices, read] = link.groups.emplace_back();
      if (StringRef(size).getAsInteger(10, devices) || devices < 2 || devices > kMaxDevicesPerHost)
        return error(bandwidth, where, "'" + size + "'",
                     "a number of devices from 2 to " + Twine(kMaxDevicesPerHost));
      if (!readQuantity(*value, where, size, kBytesPerSecond, kRate, read))
        return false;
    }
    llvm::sort(link.groups);
    double most = link.bandwidthBytesPerSecond;
    for (auto [devices, bandwidth] : llvm::reverse(link.groups)) {
      if (bandwidth > most)
        return error(*value, where, printNumber(bandwidth) + " of " + Twine(devices) + " devices",
                     "at most the " + printNumber(most) + " that more devices have");
      most = bandwidth;
    }
    return true;
  }

  /// Seconds of a step; what is left out the link does not have.
  bool readNccl(const YamlValue &map, StringRef path, bool hasSwitch, Link &link) {
    const YamlValue *value = map.find("nccl");
    if (!value)
      return true;
    std::string where = join(path, "nccl");
    constexpr StringRef expected = "seconds of a step of ll, ll128 and nvls, such as {ll: 0.6us}";
    if (!checkMap(*value, where, {"ll", "ll128", "nvls"}, expected))
      return false;
    NcclSteps &read = link.nccl.emplace();
    auto readStep = [&](StringRef name, double &seconds) {
      return !value->find(name) ||
             readQuantity(*value, where, name, kSeconds,
                          "a positive number of seconds, such as 6e-7 or 0.6us", seconds);
    };
    // Less of the bandwidth in longer steps than those of the Simple protocol is a mistake.
    auto readQuickStep = [&](StringRef name, double &seconds) {
      return readStep(name, seconds) &&
             (seconds <= link.latencySeconds ||
              error(*value->find(name), join(where, name), value->find(name)->describe(),
                    "at most the link's latency, " + printNumber(link.latencySeconds) +
                        ", which is a step of the Simple protocol; leave out what is slower"));
    };
    if (!readQuickStep("ll", read.ll) || !readQuickStep("ll128", read.ll128) ||
        !readStep("nvls", read.nvls))
      return false;
    const YamlValue *nvls = value->find("nvls");
    return !nvls || hasSwitch ||
           error(*nvls, join(where, "nvls"), nvls->describe(),
                 "no NVLink switch here; give nvls to intra_host, to inter_host of a cluster whose "
                 "racks each have one for all hosts, or leave it out");
  }

  /// What is reached of a peak; all of it if nothing is said.
  bool readPart(const YamlValue &map, StringRef path, StringRef name, double &result,
                StringRef expected = "a part of the peak, more than 0 and at most 1") {
    const YamlValue *part = map.find(name);
    if (!part)
      return true;
    if (!readNumber(map, path, name, expected, result))
      return false;
    return result <= 1 || error(*part, join(path, name), part->describe(), expected);
  }

  bool readFlag(const YamlValue &map, StringRef path, StringRef name, bool &result) {
    const YamlValue *flag = map.find(name);
    if (!flag)
      return true;
    result = flag->kind == YamlValue::Scalar && flag->text == "true";
    return result || (flag->kind == YamlValue::Scalar && flag->text == "false") ||
           error(*flag, join(path, name), flag->describe(), "true or false");
  }

  bool readDeviceType(StringRef name, const YamlValue &value) {
    DeviceType type;
    type.name = name.str();
    std::string path = "device_types." + type.name;
    bool isRead =
        checkFields(value, path,
                    {"memory_bytes", "memory_bandwidth", "peak_flops", "efficiency",
                     "multiprocessors", "launch", "overlap_slowdown", "collective_matmul",
                     "compute_capability"},
                    "memory_bytes, memory_bandwidth and peak_flops") &&
        all({readBytes(value, path, "memory_bytes", type.memoryBytes),
             readQuantity(value, path, "memory_bandwidth", kBytesPerSecond, kRate,
                          type.memoryBandwidthBytesPerSecond),
             !value.find("multiprocessors") || readCount(value, path, "multiprocessors",
                                                         kMaxMultiprocessors, type.multiprocessors),
             !value.find("launch") ||
                 readQuantity(value, path, "launch", kSeconds, kDuration, type.launchSeconds,
                              /*allowZero=*/true, kLongest),
             readPart(value, path, "overlap_slowdown", type.overlapSlowdown,
                      "what work loses for each second of a collective beside it, more than 0 and "
                      "at most 1"),
             readFlag(value, path, "collective_matmul", type.collectiveMatmul),
             !value.find("compute_capability") ||
                 readNumber(value, path, "compute_capability",
                            "a version of CUDA devices, such as 9.0", type.computeCapability),
             value.kind != YamlValue::Map || readRates(value, path, type)});
    cluster.deviceTypes.push_back(std::move(type)); // Hosts may name it.
    return isRead;
  }

  bool readRates(const YamlValue &value, std::string path, DeviceType &type) {
    constexpr StringRef expected = "a mapping from dtype to FLOP/s that has float32";
    constexpr StringRef dtypes[] = {"float64", "float32", "tf32",   "bfloat16",
                                    "float16", "float8",  "float4", "int8"};
    const YamlValue *peak = child(value, path, "peak_flops", expected);
    path += ".peak_flops";
    if (!peak || !checkFields(*peak, path, dtypes, expected))
      return false;
    bool isRead = true;
    for (const auto &[dtype, number] : peak->map)
      if (llvm::is_contained(dtypes, StringRef(dtype)))
        isRead &= readQuantity(*peak, path, dtype, kFlops,
                               "a positive number of FLOP/s, such as 312e12 or 312TFLOPS",
                               type.peakFlopsPerSecond[dtype]);
    if (!type.peakFlopsPerSecond.count("float32"))
      isRead = error(*peak, path + ".float32", "nothing", "a positive number of FLOP/s");
    return all({isRead, readEfficiency(value, type)});
  }

  bool readEfficiency(const YamlValue &value, DeviceType &type) {
    const YamlValue *parts = value.find("efficiency");
    if (!parts)
      return true;
    std::string path = "device_types." + type.name + ".efficiency";
    std::vector<StringRef> fields(type.peakFlopsPerSecond.keys().begin(),
                                  type.peakFlopsPerSecond.keys().end());
    llvm::sort(fields);
    fields.push_back("memory");
    fields.push_back("attention");
    fields.push_back("unaligned");
    if (!checkFields(
            *parts, path, fields,
            "a mapping from dtype or memory to a part of the peak, more than 0 and at most 1"))
      return false;
    bool isRead = true;
    for (const auto &[name, part] : parts->map)
      if (llvm::is_contained(fields, StringRef(name)))
        isRead &= readPart(*parts, path, name, type.efficiency[name]);
    return isRead;
  }

  /// A file beside the description, or the tables themselves.
  bool readMeasured(const YamlValue &value) {
    llvm::Expected<Profile> profile = Profile();
    if (value.kind == YamlValue::Scalar) {
      llvm::SmallString<128> path(value.text);
      if (llvm::sys::path::is_relative(path)) {
        path = llvm::sys::path::parent_path(where);
        llvm::sys::path::append(path, value.text);
      }
      std::string why;
      std::unique_ptr<llvm::MemoryBuffer> buffer = readRegularFile(path, why);
      if (!buffer)
        return error(value, "profile", value.describe() + " (" + why + ")",
                     "a file that can be read, or its content");
      profile = parseProfile(buffer->getBuffer(), path);
    } else {
      profile = readProfile(value, where);
    }
    if (!profile) {
      messages.push_back(llvm::toString(profile.takeError()));
      return false;
    }
    auto isKnown = [&](StringRef name) {
      return llvm::any_of(cluster.deviceTypes,
                          [&](const DeviceType &type) { return type.name == name; });
    };
    for (const auto &[key, table] : profile->matmul)
      if (!isKnown(key.first))
        return error(value, "profile", "device type '" + key.first + "'", "a type of this cluster");
    for (const auto &[name, table] : profile->memory)
      if (!isKnown(name))
        return error(value, "profile", "device type '" + name + "'", "a type of this cluster");
    cluster.profile = std::make_shared<Profile>(std::move(*profile));
    return true;
  }

  /// Links of one kind of hosts, where they differ from the cluster's.
  bool readHostLinks(const YamlValue &links, StringRef path, Host &host) {
    if (!checkFields(links, path, {"intra_host", "inter_host"}, "intra_host or inter_host"))
      return false;
    auto read = [&](StringRef name, std::optional<Link> &link) {
      return !links.find(name) || readLink(links, path, name, link.emplace());
    };
    return all({read("intra_host", host.intraHost), read("inter_host", host.interHost)});
  }

  bool readHostMemory(const YamlValue &value, StringRef path, Host &host) {
    HostMemory &memory = host.memory.emplace();
    return checkFields(value, path, {"bytes", "bandwidth", "latency", "efficiency"},
                       "{bytes, bandwidth, latency}, of the host and of a device's way to it") &&
           all({readBytes(value, path, "bytes", memory.bytes),
                readQuantity(value, path, "bandwidth", kBytesPerSecond, kRate,
                             memory.link.bandwidthBytesPerSecond),
                readQuantity(value, path, "latency", kSeconds, kDuration,
                             memory.link.latencySeconds,
                             /*allowZero=*/true, kLongest),
                readPart(value, path, "efficiency", memory.link.efficiency)});
  }

  bool readHosts(const YamlValue &value, StringRef path) {
    constexpr StringRef expected =
        "{count, devices, device_type, nics, links, host_memory} or a list of these";
    if (!checkFields(value, path,
                     {"count", "devices", "device_type", "nics", "links", "host_memory"}, expected))
      return false;
    int64_t count = 1;
    Host host;
    const YamlValue *links = value.find("links"), *memory = value.find("host_memory");
    if (!all({!value.find("count") || readCount(value, path, "count", kMaxHosts, count),
              !value.find("nics") || readCount(value, path, "nics", kMaxDevicesPerHost, host.nics),
              readCount(value, path, "devices", kMaxDevicesPerHost, host.devices),
              readDeviceTypeOf(value, path, host),
              !links || readHostLinks(*links, join(path, "links"), host),
              !memory || readHostMemory(*memory, join(path, "host_memory"), host)}))
      return false;
    if (static_cast<int64_t>(cluster.hosts.size()) + count > kMaxHosts)
      return error(value, path, "more hosts than can be planned for",
                   "at most " + Twine(kMaxHosts));
    numDevices += count * host.devices;
    if (numDevices > kMaxDevices)
      return error(value, path, Twine(numDevices) + " devices",
                   "at most " + Twine(kMaxDevices) + " together");
    cluster.hosts.insert(cluster.hosts.end(), count, host);
    return true;
  }

  bool readDeviceTypeOf(const YamlValue &value, StringRef path, Host &host) {
    const YamlValue *type = child(value, path, "device_type", "the name of a device type");
    if (!type)
      return false;
    std::vector<StringRef> names;
    for (const DeviceType &known : cluster.deviceTypes)
      names.push_back(known.name);
    auto found = llvm::find(names, type->text);
    if (type->kind != YamlValue::Scalar || found == names.end())
      return error(*type, join(path, "device_type"), type->describe(),
                   "one of the device types: " + llvm::join(names, ", "));
    host.deviceType = found - names.begin();
    return true;
  }

  bool readRacks(const YamlValue &value) {
    Racks &racks = cluster.racks.emplace();
    return checkFields(value, "racks", {"hosts", "nics"}, "{hosts, nics}, the same of each rack") &&
           all({readCount(value, "racks", "hosts", kMaxHosts, racks.hosts),
                !value.find("nics") ||
                    readCount(value, "racks", "nics", kMaxHosts * kMaxDevicesPerHost, racks.nics)});
  }

  void readCluster(const YamlValue &root) {
    constexpr StringRef fields[] = {"name", "device_types", "hosts", "racks", "links", "profile"};
    if (!checkFields(root, "cluster", fields,
                     "fields name, device_types, hosts, racks, links and profile"))
      return;
    if (const YamlValue *name = root.find("name")) {
      if (name->kind != YamlValue::Scalar || name->text.empty())
        error(*name, "name", name->describe(), "a name");
      cluster.name = name->text;
    }
    if (const YamlValue *racks = root.find("racks"))
      readRacks(*racks);
    if (readDeviceTypes(root))
      readAllHosts(root);

    if (const YamlValue *links = child(root, "", "links", "intra_host and inter_host");
        links && checkFields(*links, "links", {"intra_host", "inter_host", "inter_rack"},
                             "intra_host and inter_host, and with racks inter_rack")) {
      const YamlValue *between = links->find("inter_rack");
      if (between && !cluster.racks)
        error(*between, "links.inter_rack", between->describe(),
              "racks: {hosts: ..} beside it, or no such link");
      readLink(*links, "links", "intra_host", cluster.intraHost);
      readLink(*links, "links", "inter_host", cluster.interHost);
      if (cluster.racks)
        readLink(*links, "links", "inter_rack", cluster.racks->interRack);
    }
    if (const YamlValue *profile = root.find("profile"); profile && messages.empty())
      readMeasured(*profile);
  }

  /// Whether hosts can name types.
  bool readDeviceTypes(const YamlValue &root) {
    constexpr StringRef expected = "a mapping from name to device type";
    const YamlValue *types = child(root, "", "device_types", expected);
    if (!types)
      return false;
    if (types->kind != YamlValue::Map || types->map.empty())
      return error(*types, "device_types", types->kind == YamlValue::Map ? "{}" : types->describe(),
                   expected);
    for (const auto &[name, value] : types->map)
      readDeviceType(name, value);
    return true;
  }

  void readAllHosts(const YamlValue &root) {
    const YamlValue *hosts = child(root, "", "hosts", "at least one host");
    if (!hosts)
      return;
    if (hosts->kind != YamlValue::List) {
      readHosts(*hosts, "hosts");
      return;
    }
    if (hosts->list.empty())
      error(*hosts, "hosts", "an empty list", "at least one host");
    for (auto [index, host] : llvm::enumerate(hosts->list))
      readHosts(host, llvm::formatv("hosts[{0}]", index).str());
  }

  Cluster cluster;
  int64_t numDevices = 0;
};

} // namespace

llvm::Expected<Cluster> cost::parseCluster(StringRef yaml, StringRef where) {
  llvm::Expected<YamlValue> root = readYaml(yaml, where, "a cluster");
  if (!root)
    return root.takeError();
  return ClusterReader(where).read(*root);
}

llvm::Expected<Cluster> cost::loadCluster(StringRef presetOrFile) {
  // "dgx-a100:4" is four of the preset's hosts, "gb200-nvl72:4" four racks.
  auto [name, countText] = presetOrFile.rsplit(':');
  for (const ClusterPreset &preset : clusterPresetTable()) {
    if (preset.name != name)
      continue;
    llvm::Expected<Cluster> cluster = parseCluster(preset.yaml, preset.name);
    if (!cluster || name == presetOrFile)
      return cluster;
    int64_t count = 0;
    // Of a preset that is a rack, so many racks.
    int64_t each = cluster->racks ? cluster->racks->hosts : 1;
    int64_t most = std::min(kMaxHosts, kMaxDevices / cluster->hosts.front().devices) / each;
    if (countText.getAsInteger(10, count) || count < 1 || count > most)
      return fail("cluster '" + presetOrFile + "': found '" + countText +
                  "' after the preset, expected a number of " +
                  (cluster->racks ? "racks" : "hosts") + " from 1 to " + Twine(most));
    cluster->hosts.assign(count * each, cluster->hosts.front());
    return cluster;
  }
  bool isFile = presetOrFile.contains('/') || presetOrFile.ends_with(".yaml") ||
                presetOrFile.ends_with(".yml") || presetOrFile.ends_with(".json");
  if (!isFile)
    return fail("cluster '" + presetOrFile + "': no such preset, expected one of " +
                llvm::join(clusterPresets(), ", ") + ", or a file name that ends in .yaml");
  std::string why;
  std::unique_ptr<llvm::MemoryBuffer> buffer = readRegularFile(presetOrFile, why);
  if (!buffer)
    return fail("cluster file '" + presetOrFile + "': " + why);
  return parseCluster(buffer->getBuffer(), presetOrFile);
}

static std::string printLink(const Link &link) {
  std::string rest =
      link.efficiency == 1 ? "" : ", \"efficiency\": " + printNumber(link.efficiency);
  if (link.nccl) {
    llvm::ListSeparator separator;
    rest += ", \"nccl\": {";
    for (auto [name, seconds] :
         {std::pair("ll", link.nccl->ll), {"ll128", link.nccl->ll128}, {"nvls", link.nccl->nvls}})
      if (seconds > 0)
        rest += (StringRef(separator) + "\"" + name + "\": " + printNumber(seconds)).str();
    rest += "}";
  }
  if (!link.groups.empty()) {
    llvm::ListSeparator separator;
    rest += ", \"groups\": {";
    for (auto [devices, bandwidth] : link.groups)
      rest +=
          (StringRef(separator) + "\"" + Twine(devices) + "\": " + printNumber(bandwidth)).str();
    rest += "}";
  }
  return llvm::formatv("{{\"bandwidth\": {0}, \"latency\": {1}{2}}",
                       printNumber(link.bandwidthBytesPerSecond), printNumber(link.latencySeconds),
                       rest)
      .str();
}

static std::string printHostMemory(const HostMemory &memory) {
  return ("{\"bytes\": " + Twine(memory.bytes) + ", " +
          StringRef(printLink(memory.link)).drop_front())
      .str();
}

std::string cost::printCluster(const Cluster &cluster) {
  std::string text;
  llvm::raw_string_ostream os(text);
  auto quoted = [](StringRef name) { return llvm::json::Value(name); };
  os << "{\n";
  if (!cluster.name.empty())
    os << "  \"name\": " << quoted(cluster.name) << ",\n";
  os << "  \"device_types\": {";
  llvm::ListSeparator typeSeparator(",");
  for (const DeviceType &type : cluster.deviceTypes) {
    os << typeSeparator << "\n    " << quoted(type.name)
       << ": {\"memory_bytes\": " << type.memoryBytes
       << ", \"memory_bandwidth\": " << printNumber(type.memoryBandwidthBytesPerSecond)
       << ",\n      \"peak_flops\": {";
    std::vector<StringRef> dtypes(type.peakFlopsPerSecond.keys().begin(),
                                  type.peakFlopsPerSecond.keys().end());
    llvm::sort(dtypes);
    llvm::ListSeparator separator;
    for (StringRef dtype : dtypes)
      os << separator << quoted(dtype) << ": "
         << printNumber(type.peakFlopsPerSecond.lookup(dtype));
    os << "}";
    if (!type.efficiency.empty()) {
      std::vector<StringRef> parts(type.efficiency.keys().begin(), type.efficiency.keys().end());
      llvm::sort(parts);
      os << ",\n      \"efficiency\": {";
      llvm::ListSeparator partSeparator;
      for (StringRef part : parts)
        os << partSeparator << quoted(part) << ": " << printNumber(type.efficiency.lookup(part));
      os << "}";
    }
    if (type.multiprocessors)
      os << ",\n      \"multiprocessors\": " << type.multiprocessors;
    if (type.launchSeconds > 0)
      os << ",\n      \"launch\": " << printNumber(type.launchSeconds);
    if (type.overlapSlowdown < 1)
      os << ",\n      \"overlap_slowdown\": " << printNumber(type.overlapSlowdown);
    if (type.collectiveMatmul)
      os << ",\n      \"collective_matmul\": true";
    if (type.computeCapability > 0)
      os << ",\n      \"compute_capability\": " << printNumber(type.computeCapability);
    os << "}";
  }
  os << "\n  },\n  \"hosts\": [";
  llvm::ListSeparator hostSeparator(",");
  for (size_t i = 0; i < cluster.hosts.size();) {
    size_t begin = i;
    const Host &host = cluster.hosts[begin];
    while (i < cluster.hosts.size() && cluster.hosts[i].devices == host.devices &&
           cluster.hosts[i].deviceType == host.deviceType && cluster.hosts[i].nics == host.nics &&
           cluster.hosts[i].intraHost == host.intraHost &&
           cluster.hosts[i].interHost == host.interHost && cluster.hosts[i].memory == host.memory)
      ++i;
    os << hostSeparator << "\n    {\"count\": " << i - begin << ", \"devices\": " << host.devices
       << ", \"device_type\": " << quoted(cluster.deviceTypes[host.deviceType].name);
    if (host.nics != 1)
      os << ", \"nics\": " << host.nics;
    if (host.intraHost || host.interHost) {
      llvm::ListSeparator linkSeparator;
      os << ", \"links\": {";
      if (host.intraHost)
        os << linkSeparator << "\"intra_host\": " << printLink(*host.intraHost);
      if (host.interHost)
        os << linkSeparator << "\"inter_host\": " << printLink(*host.interHost);
      os << "}";
    }
    if (host.memory)
      os << ", \"host_memory\": " << printHostMemory(*host.memory);
    os << "}";
  }
  os << "\n  ],";
  if (cluster.racks) {
    os << "\n  \"racks\": {\"hosts\": " << cluster.racks->hosts;
    if (cluster.racks->nics != 1)
      os << ", \"nics\": " << cluster.racks->nics;
    os << "},";
  }
  os << "\n  \"links\": {\n    \"intra_host\": " << printLink(cluster.intraHost)
     << ",\n    \"inter_host\": " << printLink(cluster.interHost);
  if (cluster.racks)
    os << ",\n    \"inter_rack\": " << printLink(cluster.racks->interRack);
  os << "\n  }";
  if (cluster.profile && !cluster.profile->empty())
    os << ",\n  \"profile\": " << printProfile(*cluster.profile);
  os << "\n}\n";
  return text;
}

std::string cost::printMesh(const LogicalMesh &mesh) {
  Cluster part;
  part.deviceTypes.push_back(mesh.device);
  part.hosts.push_back({/*deviceType=*/0, /*devices=*/1});
  part.hosts.back().memory = mesh.hostMemory;
  part.intraHost = mesh.intraHost;
  part.profile = mesh.profile;
  std::string text = printCluster(part);
  llvm::raw_string_ostream os(text);
  os << "\nkinds: " << llvm::join(mesh.deviceTypes, ", ");
  for (auto [size, link, onHost, groups] :
       llvm::zip_equal(mesh.shape, mesh.axes, mesh.devicesOnHost, mesh.groupsPerHost))
    os << "\naxis of " << size << ": " << printLink(link) << ", " << onHost << " on a host, "
       << groups << " groups share it";
  if (mesh.interHost.bandwidthBytesPerSecond > 0)
    os << "\nhosts: " << printLink(mesh.interHost);
  if (mesh.interRack.bandwidthBytesPerSecond > 0) {
    os << "\nracks: " << printLink(mesh.interRack);
    for (auto [inRack, groups] : llvm::zip_equal(mesh.devicesInRack, mesh.groupsPerRack))
      os << ", " << inRack << " in a rack, " << groups << " groups share it";
  }
  return text;
}
