//===- LogicalMesh.cpp - submeshes and their logical views ----------------===//

#include "compiler/CostModel/Cluster.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

using namespace alpa;
using namespace alpa::cost;

int64_t Cluster::numDevices() const {
  int64_t devices = 0;
  for (const Host &host : hosts)
    devices += host.devices;
  return devices;
}

int64_t Cluster::numRacks() const {
  return racks ? llvm::divideCeil(int64_t(hosts.size()), racks->hosts) : 1;
}

int64_t LogicalMesh::numDevices() const {
  int64_t devices = 1;
  for (int64_t size : shape)
    devices *= size;
  return devices;
}

static HostKind kindOf(const Cluster &cluster, const Host &host) {
  HostKind kind{host.deviceType,
                host.devices,
                host.nics,
                host.intraHost.value_or(cluster.intraHost).reachable(),
                host.interHost.value_or(cluster.interHost).reachable(),
                host.memory,
                1};
  if (kind.memory)
    kind.memory->link = kind.memory->link.reachable();
  return kind;
}

static size_t findKind(llvm::ArrayRef<HostKind> kinds, const HostKind &mine) {
  return llvm::find_if(kinds,
                       [&](const HostKind &kind) {
                         return kind.deviceType == mine.deviceType &&
                                kind.devices == mine.devices && kind.nics == mine.nics &&
                                kind.intraHost == mine.intraHost &&
                                kind.interHost == mine.interHost && kind.memory == mine.memory;
                       }) -
         kinds.begin();
}

std::vector<HostKind> Cluster::hostKinds() const {
  std::vector<HostKind> kinds;
  for (auto [index, host] : llvm::enumerate(hosts)) {
    HostKind mine = kindOf(*this, host);
    size_t known = findKind(kinds, mine);
    if (known < kinds.size()) {
      ++kinds[known].hosts;
    } else {
      kinds.push_back(mine);
      kinds.back().hostsInRack.assign(numRacks(), 0);
    }
    ++kinds[known].hostsInRack[rackOf(int64_t(index))];
  }
  return kinds;
}

std::vector<unsigned> Cluster::kindOfHosts() const {
  std::vector<HostKind> kinds = hostKinds();
  std::vector<unsigned> indices;
  for (const Host &host : hosts)
    indices.push_back(unsigned(findKind(kinds, kindOf(*this, host))));
  return indices;
}

/// Numbers of whole hosts for a submesh: all of them in small clusters, else
/// powers of two, divisors and the whole.
static bool isHostCount(int64_t count, int64_t hosts) {
  constexpr int64_t smallCluster = 16;
  return hosts <= smallCluster || llvm::isPowerOf2_64(count) || hosts % count == 0;
}

/// Hosts of each rack that a submesh may lie on, most first; racks without them are left
/// out.
static std::vector<int64_t> hostsInRacks(llvm::ArrayRef<HostKind> kinds, const Submesh &submesh) {
  std::vector<int64_t> racks;
  for (auto [index, kind] : llvm::enumerate(kinds)) {
    if (!submesh.fitsKind(int(index)) || submesh.devicesPerHost > kind.devices ||
        (submesh.hosts > 1 && submesh.devicesPerHost < kind.devices))
      continue;
    racks.resize(kind.hostsInRack.size());
    for (auto [rack, hosts] : llvm::enumerate(kind.hostsInRack))
      racks[rack] += hosts;
  }
  llvm::erase(racks, 0);
  llvm::sort(racks, std::greater<>());
  return racks;
}

std::optional<Submesh> cost::spreadOverRacks(const Cluster &cluster, Submesh submesh) {
  std::vector<int64_t> racks = hostsInRacks(cluster.hostKinds(), submesh);
  for (submesh.racks = 1; submesh.racks <= int64_t(racks.size()); ++submesh.racks) {
    llvm::ArrayRef<int64_t> used = llvm::ArrayRef(racks).take_front(submesh.racks);
    int64_t each = submesh.hostsPerRack();
    bool isEven = submesh.hosts % submesh.racks == 0 && used.back() >= each;
    // All of them, of which the last rack has fewer.
    bool isAll = used.size() == racks.size() &&
                 std::accumulate(used.begin(), used.end(), int64_t(0)) == submesh.hosts &&
                 llvm::all_of(used.drop_back(), [&](int64_t hosts) { return hosts == each; });
    if (isEven || isAll)
      return submesh;
  }
  return std::nullopt;
}

std::vector<Submesh> cost::submeshShapes(const Cluster &cluster, bool everyHostCount) {
  std::vector<Submesh> shapes;
  std::map<int64_t, int64_t> hostsOfSize; // By devices, hosts of all kinds.
  std::vector<HostKind> kinds = cluster.hostKinds();
  auto addHosts = [&](int64_t first, int64_t hosts, int64_t devices, int kind) {
    std::vector<int64_t> racks = hostsInRacks(kinds, {hosts, devices, kind});
    // With several kinds of hosts only racks with none but such are known to have room.
    bool isWithin = racks.size() == 1 || kind != Submesh::anyKind;
    for (int64_t count = first; isWithin && count <= racks.front(); ++count)
      if (everyHostCount || isHostCount(count, racks.front()))
        shapes.push_back({count, devices, kind});
    if (racks.size() == 1)
      return;
    int64_t whole = cluster.hostsPerRack();
    llvm::SmallVector<int64_t, 2> parts = {whole};
    if (kind != Submesh::anyKind && !llvm::isPowerOf2_64(whole))
      parts.push_back(int64_t(llvm::bit_floor(uint64_t(whole))));
    for (int64_t each : parts) {
      int64_t most = llvm::count_if(racks, [&](int64_t hosts) { return hosts >= each; });
      for (int64_t count = 2; count <= most; ++count)
        if (isHostCount(count, most) && (each == whole || llvm::isPowerOf2_64(count)))
          shapes.push_back({count * each, devices, kind, count});
    }
    std::optional<Submesh> all = spreadOverRacks(cluster, {hosts, devices, kind});
    if (all && !llvm::is_contained(shapes, *all))
      shapes.push_back(*all);
  };
  for (auto [index, kind] : llvm::enumerate(kinds)) {
    for (int64_t devices = 1; devices < kind.devices; ++devices)
      if (llvm::isPowerOf2_64(devices) || kind.devices % devices == 0)
        shapes.push_back({1, devices, int(index)});
    addHosts(1, kind.hosts, kind.devices, int(index));
    hostsOfSize[kind.devices] += kind.hosts;
  }
  for (auto [devices, hosts] : hostsOfSize) {
    auto ofSize = [&, devices = devices](const HostKind &kind) { return kind.devices == devices; };
    if (llvm::count_if(kinds, ofSize) > 1)
      addHosts(2, hosts, devices, Submesh::anyKind);
  }
  return shapes;
}

std::optional<Submesh> cost::submeshOf(const Cluster &cluster, llvm::ArrayRef<int64_t> devices) {
  std::map<size_t, int64_t> onHost;
  for (int64_t device : devices) {
    size_t host = 0;
    for (int64_t first = 0; host < cluster.hosts.size(); first += cluster.hosts[host++].devices)
      if (device < first + cluster.hosts[host].devices)
        break;
    if (device < 0 || host == cluster.hosts.size())
      return std::nullopt;
    ++onHost[host];
  }
  if (onHost.empty())
    return std::nullopt;
  std::vector<unsigned> kinds = cluster.kindOfHosts();
  auto [firstHost, count] = *onHost.begin();
  Submesh submesh{int64_t(onHost.size()), count, int(kinds[firstHost])};
  std::map<int64_t, int64_t> inRack;
  for (auto [host, number] : onHost) {
    if (number != submesh.devicesPerHost)
      return std::nullopt;
    if (int(kinds[host]) != submesh.kind)
      submesh.kind = Submesh::anyKind;
    ++inRack[cluster.rackOf(int64_t(host))];
  }
  submesh.racks = int64_t(inRack.size());
  for (auto [rack, number] : inRack)
    if (number != submesh.hostsPerRack() && rack != inRack.rbegin()->first)
      return std::nullopt;
  return submesh;
}

/// A way that only one of two links has is none that both have.
static double slowerStep(double a, double b) { return a > 0 && b > 0 ? std::max(a, b) : 0; }

Link Link::reachable() const {
  Link link{bandwidthBytesPerSecond * efficiency, latencySeconds, /*efficiency=*/1, nccl, groups};
  for (auto &[devices, bandwidth] : link.groups)
    bandwidth *= efficiency;
  return link;
}

Link Link::among(int64_t devices) const {
  Link link = *this;
  link.groups.clear();
  for (auto [most, bandwidth] : llvm::reverse(groups))
    if (devices <= most)
      link.bandwidthBytesPerSecond = bandwidth;
  return link;
}

Link Link::slower(const Link &other) const {
  Link both{std::min(bandwidthBytesPerSecond, other.bandwidthBytesPerSecond),
            std::max(latencySeconds, other.latencySeconds)};
  if (nccl && other.nccl)
    both.nccl =
        NcclSteps{slowerStep(nccl->ll, other.nccl->ll), slowerStep(nccl->ll128, other.nccl->ll128),
                  slowerStep(nccl->nvls, other.nccl->nvls)};
  std::map<int64_t, double> slower;
  for (const Link *link : {this, &other})
    for (auto [devices, bandwidth] : link->groups)
      slower[devices] = std::min(among(devices).bandwidthBytesPerSecond,
                                 other.among(devices).bandwidthBytesPerSecond);
  both.groups.assign(slower.begin(), slower.end());
  return both;
}

double DeviceType::reachableFlopsPerSecond(llvm::StringRef dtype) const {
  auto peak = peakFlopsPerSecond.find(dtype);
  if (peak == peakFlopsPerSecond.end())
    peak = peakFlopsPerSecond.find("float32"); // Integers and types without a rate of their own.
  if (peak == peakFlopsPerSecond.end())
    return 0;
  auto part = efficiency.find(peak->getKey());
  return peak->second * (part == efficiency.end() ? 1 : part->second);
}

double DeviceType::reachableBytesPerSecond() const {
  auto part = efficiency.find("memory");
  return memoryBandwidthBytesPerSecond * (part == efficiency.end() ? 1 : part->second);
}

static double partOf(const DeviceType &type, llvm::StringRef what) {
  auto part = type.efficiency.find(what);
  return part == type.efficiency.end() ? 1 : part->second;
}

double DeviceType::attentionPart() const { return partOf(*this, "attention"); }

double DeviceType::unalignedPart() const { return partOf(*this, "unaligned"); }

/// Kinds of hosts that a submesh may lie on, as far as they have the devices.
static std::vector<HostKind> kindsOf(const Cluster &cluster, const Submesh &submesh) {
  std::vector<HostKind> fitting;
  for (auto [index, kind] : llvm::enumerate(cluster.hostKinds()))
    if (submesh.fitsKind(int(index)) && submesh.devicesPerHost <= kind.devices)
      fitting.push_back(kind);
  return fitting;
}

/// A plan for several kinds of devices must fit the weakest. Its rates are those that
/// are reached, so only parts of these are efficiencies.
static DeviceType weakestDevice(const Cluster &cluster, llvm::ArrayRef<HostKind> kinds) {
  DeviceType weakest = cluster.deviceTypes[kinds.front().deviceType];
  for (llvm::StringMapEntry<double> &entry : weakest.peakFlopsPerSecond)
    entry.second = weakest.reachableFlopsPerSecond(entry.getKey());
  weakest.memoryBandwidthBytesPerSecond = weakest.reachableBytesPerSecond();
  double attention = weakest.attentionPart(), unaligned = weakest.unalignedPart();
  for (const HostKind &kind : kinds) {
    const DeviceType &type = cluster.deviceTypes[kind.deviceType];
    weakest.memoryBytes = std::min(weakest.memoryBytes, type.memoryBytes);
    weakest.memoryBandwidthBytesPerSecond =
        std::min(weakest.memoryBandwidthBytesPerSecond, type.reachableBytesPerSecond());
    for (llvm::StringMapEntry<double> &entry : weakest.peakFlopsPerSecond)
      entry.second = std::min(entry.second, type.reachableFlopsPerSecond(entry.getKey()));
    attention = std::min(attention, type.attentionPart());
    unaligned = std::min(unaligned, type.unalignedPart());
    weakest.overlapSlowdown = std::max(weakest.overlapSlowdown, type.overlapSlowdown);
    weakest.collectiveMatmul &= type.collectiveMatmul;
  }
  weakest.efficiency.clear();
  weakest.efficiency["attention"] = attention;
  weakest.efficiency["unaligned"] = unaligned;
  return weakest;
}

Link cost::rackShare(const Racks &racks, int64_t devices, int64_t devicesPerHost) {
  double inRack = double(racks.hosts * devicesPerHost);
  double parts = std::min(double(racks.nics), inRack);
  Link link = racks.interRack.reachable();
  link.bandwidthBytesPerSecond *=
      std::clamp(std::floor(double(devices) * parts / inRack), 1.0, parts) / parts;
  return link;
}

/// What a device of the worst of the hosts has of its host's memory.
static std::optional<HostMemory> hostMemoryShare(llvm::ArrayRef<HostKind> kinds) {
  std::optional<HostMemory> share;
  for (const HostKind &kind : kinds) {
    if (!kind.memory)
      return std::nullopt;
    HostMemory mine{kind.memory->bytes / kind.devices, kind.memory->link};
    share = share ? HostMemory{std::min(share->bytes, mine.bytes), share->link.slower(mine.link)}
                  : mine;
  }
  return share;
}

/// How the groups of an axis lie on hosts, or in racks: parts of so many devices each.
/// Devices are numbered part by part, and those of a group are `stride` apart.
namespace {
struct Placement {
  bool spansParts = false;
  int64_t onPart = 1;        // Most devices of a group (that spans) on one part.
  int64_t groupsPerPart = 1; // Most groups that leave one part.
};
} // namespace

static Placement placeGroups(int64_t devices, int64_t partSize, int64_t size, int64_t stride) {
  Placement placement;
  std::vector<int64_t> groupsOnPart(llvm::divideCeil(devices, partSize), 0);
  for (int64_t first = 0; first < devices; ++first) {
    if (first / stride % size != 0)
      continue;
    auto partOf = [&](int64_t k) { return (first + k * stride) / partSize; };
    if (partOf(0) == partOf(size - 1))
      continue;
    placement.spansParts = true;
    int64_t run = 0;
    for (int64_t k = 0; k < size; ++k) {
      bool samePart = k > 0 && partOf(k) == partOf(k - 1);
      run = samePart ? run + 1 : 1;
      placement.onPart = std::max(placement.onPart, run);
      if (!samePart)
        ++groupsOnPart[partOf(k)];
    }
  }
  if (!placement.spansParts)
    placement.onPart = size;
  else
    placement.groupsPerPart = *llvm::max_element(groupsOnPart);
  return placement;
}

llvm::Expected<LogicalMesh> cost::makeLogicalMesh(const Cluster &cluster, const Submesh &submesh,
                                                  llvm::ArrayRef<int64_t> shape) {
  auto fail = [](const llvm::Twine &message) { return makeError(ErrorCode::Method, message); };
  std::vector<HostKind> kinds = kindsOf(cluster, submesh);
  int64_t hosts = 0, most = 0;
  for (const HostKind &kind : kinds)
    hosts += kind.hosts;
  for (const Host &host : cluster.hosts)
    most = std::max(most, host.devices);
  if (submesh.hosts < 1 || submesh.devicesPerHost < 1 || submesh.hosts > hosts ||
      submesh.racks < 1 || submesh.racks > cluster.numRacks() ||
      submesh.hostsPerRack() > cluster.hostsPerRack())
    return fail(llvm::formatv("submesh of {0} x {1} devices does not fit a cluster of {2} hosts "
                              "with {3} devices",
                              submesh.hosts, submesh.devicesPerHost, cluster.hosts.size(), most));
  int64_t left = submesh.numDevices();
  bool divides = !shape.empty();
  for (int64_t size : shape) {
    divides = divides && size > 0 && left % size == 0;
    left = divides ? left / size : left;
  }
  if (!divides || left != 1)
    return fail(
        llvm::formatv("mesh shape [{0}] does not have the {1} devices of the submesh {2} x {3}",
                      llvm::make_range(shape.begin(), shape.end()), submesh.numDevices(),
                      submesh.hosts, submesh.devicesPerHost));

  LogicalMesh mesh;
  mesh.shape.assign(shape.begin(), shape.end());
  mesh.device = weakestDevice(cluster, kinds);
  mesh.hostMemory = hostMemoryShare(kinds);
  mesh.profile = cluster.profile;
  Link intraHost = kinds.front().intraHost, interHost = kinds.front().interHost;
  for (const HostKind &kind : kinds) {
    intraHost = intraHost.slower(kind.intraHost);
    interHost = interHost.slower(kind.interHost);
    if (const std::string &name = cluster.deviceTypes[kind.deviceType].name;
        !llvm::is_contained(mesh.deviceTypes, name))
      mesh.deviceTypes.push_back(name);
  }
  mesh.intraHost = intraHost;
  if (submesh.hosts > 1)
    mesh.interHost = interHost;
  if (submesh.racks > 1)
    mesh.interRack =
        rackShare(*cluster.racks, submesh.hostsPerRack() * submesh.devicesPerHost, most);
  int64_t stride = submesh.numDevices();
  for (int64_t size : shape) {
    stride /= size;
    Placement onHosts = placeGroups(submesh.numDevices(), submesh.devicesPerHost, size, stride);
    mesh.devicesOnHost.push_back(onHosts.onPart);
    mesh.groupsPerHost.push_back(onHosts.groupsPerPart);
    Placement inRacks;
    inRacks.onPart = size;
    if (submesh.racks > 1)
      inRacks = placeGroups(submesh.numDevices(), submesh.hostsPerRack() * submesh.devicesPerHost,
                            size, stride);
    mesh.devicesInRack.push_back(inRacks.onPart);
    mesh.groupsPerRack.push_back(inRacks.groupsPerPart);
    if (!onHosts.spansParts) {
      mesh.axes.push_back(intraHost.among(size));
      continue;
    }
    // Groups that run at the same time share a host's adapters; a ring that has
    // several devices on a host also uses the links within.
    Link link = interHost;
    link.bandwidthBytesPerSecond /= onHosts.groupsPerPart;
    if (onHosts.onPart > 1)
      link = link.slower(intraHost.among(onHosts.onPart));
    if (inRacks.spansParts) {
      Link between = mesh.interRack;
      between.bandwidthBytesPerSecond /= inRacks.groupsPerPart;
      link = link.slower(between);
    }
    mesh.axes.push_back(link);
  }
  return mesh;
}

/// All ways to write `devices` as a product of `axes` numbers, in rising order.
static std::vector<llvm::SmallVector<int64_t, 3>> factorizations(int64_t devices, unsigned axes) {
  if (axes == 1)
    return {{devices}};
  std::vector<llvm::SmallVector<int64_t, 3>> shapes;
  for (int64_t outer = 1; outer <= devices; ++outer) {
    if (devices % outer != 0)
      continue;
    for (llvm::SmallVector<int64_t, 3> &shape : factorizations(devices / outer, axes - 1)) {
      shape.insert(shape.begin(), outer);
      shapes.push_back(std::move(shape));
    }
  }
  return shapes;
}

std::vector<LogicalMesh> cost::logicalMeshes(const Cluster &cluster, const Submesh &submesh,
                                             unsigned maxAxes) {
  using Axis = std::tuple<int64_t, double, double, int64_t, int64_t, int64_t, int64_t>;
  std::vector<LogicalMesh> meshes;
  std::vector<std::vector<Axis>> seen;
  for (unsigned numAxes = 2; numAxes <= std::max(2u, maxAxes); ++numAxes) {
    for (llvm::ArrayRef<int64_t> shape : factorizations(submesh.numDevices(), numAxes)) {
      if (numAxes > 2 && llvm::is_contained(shape, 1))
        continue; // A view of fewer axes.
      llvm::Expected<LogicalMesh> mesh = makeLogicalMesh(cluster, submesh, shape);
      if (!mesh) { // The submesh does not fit; no view does.
        llvm::consumeError(mesh.takeError());
        return {};
      }
      std::vector<Axis> axes;
      for (unsigned axis = 0; axis < numAxes; ++axis)
        if (mesh->shape[axis] > 1) // An axis of one device never communicates.
          axes.emplace_back(mesh->shape[axis], mesh->axes[axis].bandwidthBytesPerSecond,
                            mesh->axes[axis].latencySeconds, mesh->devicesOnHost[axis],
                            mesh->devicesInRack[axis], mesh->groupsPerHost[axis],
                            mesh->groupsPerRack[axis]);
      llvm::sort(axes);
      if (llvm::is_contained(seen, axes))
        continue;
      seen.push_back(std::move(axes));
      meshes.push_back(std::move(*mesh));
    }
  }
  return meshes;
}
