//===- Collectives.cpp - seconds for communication ------------------------===//
//
// The latency-bandwidth model (Hockney, Parallel Computing 1994): a message costs
// latency + bytes / bandwidth. Of two algorithms the faster counts, on n devices
// with buffers of B bytes:
//
//                          steps        bytes a device sends
//   all-gather  ring       n - 1        B (n - 1) / n        Thakur et al. 2005
//               doubling   ceil(lg n)   B (n - 1) / n        Bruck et al. 1997
//   reduce-scatter         the same, backwards; halving for any n: Traeff 2024
//   all-reduce  long       reduce-scatter, then all-gather   Rabenseifner
//               short      all-gather of the n buffers, added by every device
//   all-to-all  pairwise   n - 1        B (n - 1) / n        Thakur et al. 2005
//               doubling   ceil(lg n)   B ceil(lg n) / 2     Bruck et al. 1997
//   permute     direct     1            B
//
// In a ring one message at a time leaves a host or a rack; in the others all devices of
// a group send to other hosts and racks at once, and share what the axis has of each.
//
// Links with `nccl` have NCCL's algorithms instead, each with the protocol that is
// fastest for the size (its src/graph/tuning.cc; Hu et al., "Demystifying NCCL",
// arXiv 2507.04786, 2025). Of n devices, m of them on each of h hosts:
//
//                          steps between, within hosts         bytes a device sends
//   gather      ring       h - 1, n - h                         B (n - 1) / n
//               PAT        ceil(lg n), 0     where m is 1       B (n - 1) / n
//               NVLS       one of the switch, where h is 1      B (n - 1) / n
//   all-reduce  ring       twice that of a gather               2 B (n - 1) / n
//               tree       2 ceil(lg h), 2 (m - 1)              2 B / 0.9
//               NVLS       one of the switch, where h is 1      4 B / 3
//   all-to-all             (n - 1) / 8, eight peers at a time   as above
//
// In r racks, a ring has r - 1 of its steps between them, and a tree 2 ceil(lg r), with
// 2 ceil(lg h/r) between the hosts of each. Where a switch adds up for all hosts of a
// rack, NCCL takes the rack for one host.
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/CostModel.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

using namespace alpa;
using namespace alpa::cost;

namespace {
/// One axis of the mesh, in the terms of the table above.
struct Axis {
  Axis(const LogicalMesh &mesh, unsigned axis)
      : devices(mesh.shape[axis]), link(mesh.axes[axis]),
        rounds(llvm::Log2_64_Ceil(mesh.shape[axis])) {
    auto at = [&](llvm::ArrayRef<int64_t> values, int64_t otherwise) {
      return double(axis < values.size() ? values[axis] : otherwise);
    };
    auto share = [](const Link &of, double groups) { return of.bandwidthBytesPerSecond / groups; };
    local = at(mesh.devicesOnHost, mesh.shape[axis]);
    inRack = at(mesh.devicesInRack, mesh.shape[axis]);
    if (!spansHosts()) {
      levels = {{1, link.bandwidthBytesPerSecond, &link}};
      return;
    }
    if (local > 1)
      levels.push_back(
          {1, mesh.intraHost.among(int64_t(local)).bandwidthBytesPerSecond, &mesh.intraHost});
    levels.push_back({local, share(mesh.interHost, at(mesh.groupsPerHost, 1)), &mesh.interHost});
    if (spansRacks())
      levels.push_back({inRack, share(mesh.interRack, at(mesh.groupsPerRack, 1)), &mesh.interRack});
  }

  double seconds(double steps, double bytes) const {
    return steps * link.latencySeconds + bytes / link.bandwidthBytesPerSecond;
  }
  bool spansHosts() const { return local < devices; }
  bool spansRacks() const { return inRack < devices; }
  /// What is on a link.
  struct Load {
    double bytes, bandwidthBytesPerSecond;
    double seconds(double part = 1) const { return bytes / (part * bandwidthBytesPerSecond); }
  };
  /// Of a device's link, its host's and its rack's the one that is done last, where `leaves`
  /// says how many bytes leave so many devices of a group.
  template <typename BytesOf> Load slowest(BytesOf leaves) const {
    Load most{0, 1};
    for (const Level &level : levels)
      if (Load load{leaves(level.devices), level.bandwidthBytesPerSecond};
          load.seconds() > most.seconds())
        most = load;
    return most;
  }
  /// Every device sends a buffer in equal parts to all devices.
  double spread(double steps, double bytes) const {
    return steps * link.latencySeconds + slowest([&](double part) {
                                           return part * bytes * (devices - part) / devices;
                                         }).seconds();
  }
  double ring(double bytes) const { return seconds(devices - 1, bytes * (devices - 1) / devices); }
  double gather(double bytes) const {
    if (link.nccl)
      return ncclGather(bytes);
    return std::min(ring(bytes), spread(rounds, bytes));
  }
  double reduce(double bytes) const {
    return link.nccl ? ncclReduce(bytes) : std::min(2 * gather(bytes), gather(bytes * devices));
  }
  double allToAll(double bytes) const {
    if (link.nccl)
      return spread(std::ceil((devices - 1) / kPeersAtOnce), bytes);
    double doubled = rounds * link.latencySeconds +
                     slowest([&](double part) { return bytes * rounds / 2 * part; }).seconds();
    return std::min(spread(devices - 1, bytes), doubled);
  }
  /// At worst all devices of a host, or a rack, send to others.
  double permute(double bytes) const {
    Load sent = slowest([&](double part) { return bytes * std::min(part, devices - part); });
    return link.nccl && bytes <= kMostBytesInLl ? fastest({0, 0, 0, 1}, sent)
                                                : link.latencySeconds + sent.seconds();
  }

  double devices;
  const Link &link; // Of a ring.
  double rounds;

private:
  /// Of the parts that a group is made of, devices, hosts and racks: how many of the group
  /// they have, and what it has of their links.
  struct Level {
    double devices;
    double bandwidthBytesPerSecond;
    const Link *link;
  };
  /// Steps of a collective within hosts, between hosts, between racks, and of the slowest
  /// link on the way.
  struct Steps {
    double withinHosts = 0, betweenHosts = 0, betweenRacks = 0, slowest = 0;
  };

  double hosts() const { return std::ceil(devices / local); }
  double racks() const { return std::ceil(devices / inRack); }
  /// The best protocol for so many steps, and for what is on the slowest link.
  double fastest(const Steps &steps, const Load &load) const {
    auto take = [&](auto stepOf, double part) {
      double sum = steps.slowest * stepOf(link);
      size_t level = levels.size();
      if (spansRacks())
        sum += steps.betweenRacks * stepOf(*levels[--level].link);
      if (spansHosts())
        sum += steps.betweenHosts * stepOf(*levels[--level].link);
      if (level > 0)
        sum += steps.withinHosts * stepOf(*levels[--level].link);
      return sum + load.seconds(part);
    };
    double best = take([](const Link &of) { return of.latencySeconds; }, 1);
    if (link.nccl->ll > 0)
      best = std::min(best, take([](const Link &of) { return of.nccl->ll; }, kLlPart));
    if (link.nccl->ll128 > 0)
      best = std::min(best, take([](const Link &of) { return of.nccl->ll128; }, kLl128Part));
    return best;
  }
  double ncclRing(double times, double bytes) const {
    double between = hosts() - 1, far = racks() - 1;
    return fastest({times * (devices - 1 - between), times * (between - far), times * far},
                   {times * bytes * (devices - 1) / devices, link.bandwidthBytesPerSecond});
  }
  /// Whether a switch connects all devices of a rack.
  bool hasRackSwitch() const {
    return spansHosts() && levels[levels.size() - (spansRacks() ? 2 : 1)].link->nccl->nvls > 0;
  }
  /// Of the switch that connects all devices of the axis; 0 if none does.
  double switchSeconds() const { return spansRacks() ? 0 : levels.back().link->nccl->nvls; }
  Steps treeSteps() const {
    auto rounds = [](double count) { return 2.0 * llvm::Log2_64_Ceil(uint64_t(count)); };
    double hostsInRack = std::ceil(inRack / local);
    if (hasRackSwitch())
      return {2 * (inRack - hostsInRack), 2 * (hostsInRack - 1), rounds(racks())};
    return {2 * (local - 1), rounds(hostsInRack), rounds(racks())};
  }
  double ncclGather(double bytes) const {
    double best = ncclRing(1, bytes);
    if (spansHosts() && (hasRackSwitch() ? inRack : local) == 1)
      best = std::min(best, spread(rounds, bytes));
    if (double step = switchSeconds(); step > 0)
      best = std::min(best, step + bytes * (devices - 1) / devices / link.bandwidthBytesPerSecond);
    return best;
  }
  double ncclReduce(double bytes) const {
    double best = std::min(ncclRing(2, bytes), 2 * ncclGather(bytes));
    if (spansRacks() || (spansHosts() && !hasRackSwitch()))
      best = std::min(best,
                      fastest(treeSteps(), {2 * bytes / kTreePart, link.bandwidthBytesPerSecond}));
    if (double step = switchSeconds(); step > 0)
      best = std::min(best, step + kNvlsBytes * bytes / link.bandwidthBytesPerSecond);
    return best;
  }

  double local = 1, inRack = 1; // Devices of a group on a host, and in a rack.
  llvm::SmallVector<Level, 3> levels;

  // Parts of the bandwidth by which NCCL chooses.
  static constexpr double kLlPart = 0.25, kLl128Part = 0.92, kTreePart = 0.9;
  static constexpr double kMostBytesInLl = 16384; // Of a message to one peer.
  static constexpr double kPeersAtOnce = 8;
  /// Every device sends all and gets all, besides its own sum of them: B (1 + 1/n). Eight
  /// H100 take 4/3 of B, and fewer would take more than that.
  static constexpr double kNvlsBytes = 4.0 / 3;
};
} // namespace

static bool isFree(const LogicalMesh &mesh, double bytes, unsigned axis) {
  assert(axis < mesh.shape.size() && "no such axis");
  return mesh.shape[axis] <= 1 || bytes <= 0;
}

const CostTable *CostModel::measured(Collective collective, unsigned axis, double &bytes) const {
  if (!mesh.profile || axis >= mesh.devicesOnHost.size() ||
      mesh.devicesInRack[axis] < mesh.shape[axis])
    return nullptr;
  auto table = mesh.profile->collectives.find(
      {collective, mesh.shape[axis], std::min(mesh.devicesOnHost[axis], mesh.shape[axis])});
  if (table == mesh.profile->collectives.end())
    return nullptr;
  // Measured with one group on a host; several share its adapters.
  bytes *= static_cast<double>(mesh.groupsPerHost[axis]);
  return &table->second;
}

double CostModel::allGatherSeconds(double bytes, unsigned axis) const {
  if (isFree(mesh, bytes, axis))
    return 0;
  if (const CostTable *table = measured(Collective::AllGather, axis, bytes))
    return table->at(bytes);
  return Axis(mesh, axis).gather(bytes);
}

double CostModel::reduceScatterSeconds(double bytes, unsigned axis) const {
  if (isFree(mesh, bytes, axis))
    return 0;
  if (const CostTable *table = measured(Collective::ReduceScatter, axis, bytes))
    return table->at(bytes);
  return Axis(mesh, axis).gather(bytes);
}

double CostModel::allReduceSeconds(double bytes, unsigned axis) const {
  if (isFree(mesh, bytes, axis))
    return 0;
  if (const CostTable *table = measured(Collective::AllReduce, axis, bytes))
    return table->at(bytes);
  return Axis(mesh, axis).reduce(bytes);
}

double CostModel::allToAllSeconds(double bytes, unsigned axis) const {
  if (isFree(mesh, bytes, axis))
    return 0;
  if (const CostTable *table = measured(Collective::AllToAll, axis, bytes))
    return table->at(bytes);
  return Axis(mesh, axis).allToAll(bytes);
}

double CostModel::collectivePermuteSeconds(double bytes, unsigned axis) const {
  if (isFree(mesh, bytes, axis))
    return 0;
  if (const CostTable *table = measured(Collective::Permute, axis, bytes))
    return table->at(bytes);
  return Axis(mesh, axis).permute(bytes);
}

/// Each device sends a piece to the next one and multiplies the piece that it has, so that one
/// piece of the shorter side is not hidden. Sums go round with the pieces of the result.
double CostModel::savedByPieces(const CollectiveMatmul &matmul) const {
  double pieces = static_cast<double>(mesh.shape[matmul.axis]), part = hiddenPart();
  if (!cutsProducts() || pieces < 2)
    return 0;
  const Product &whole = matmul.product;
  double element = matmul.elementBytes * whole.count;
  auto secondsOf = [&](const Product &product) {
    double flops = 2 * product.count * product.rows * product.columns * product.inner;
    double traffic = element * (product.rows * product.inner + product.inner * product.columns +
                                product.rows * product.columns);
    return kernelSeconds(flops, traffic, matmul.dtype, product);
  };
  auto copySeconds = [&](double bytes) { return kernelSeconds(0, bytes, matmul.dtype); };
  bool gathers = matmul.collective == Collective::AllGather;
  Product piece = whole;
  (matmul.cutsRows ? piece.rows : piece.columns) /= pieces;
  double work = pieces * secondsOf(piece), bytes = matmul.bytes / pieces;
  if (gathers) // Pieces are put in their places, of zeros at first.
    work += pieces * (copySeconds(3 * element * piece.rows * piece.columns) +
                      (matmul.keepsWhole ? copySeconds(3 * bytes) : 0));
  else // Pieces are cut off an operand, and added up.
    work += pieces * copySeconds(2 * element * piece.inner *
                                 (matmul.cutsRows ? piece.rows : piece.columns)) +
            (pieces - 1) * copySeconds(3 * bytes);
  double hops = (pieces - 1) * collectivePermuteSeconds(bytes, matmul.axis);
  double seconds =
      std::max(work + part * hops, hops + part * work) + (1 - part) * std::min(work, hops) / pieces;
  double collective = gathers ? allGatherSeconds(matmul.bytes, matmul.axis)
                              : reduceScatterSeconds(matmul.bytes, matmul.axis);
  return std::clamp(secondsOf(whole) + collective - seconds, 0.0, collective);
}

/// The part of a host's adapters that some of its devices use.
static double partOfAdapters(const HostKind &host, double devices) {
  double adapters = double(std::min(host.nics, host.devices));
  return std::max(1.0, std::floor(devices * adapters / double(host.devices))) / adapters;
}

/// Whether both meshes have room in one rack.
static bool canShareRack(const Cluster &cluster, llvm::ArrayRef<HostKind> kinds,
                         const Submesh &from, const Submesh &to) {
  if (from.racks > 1 || to.racks > 1)
    return false;
  for (int64_t rack = 0; rack < cluster.numRacks(); ++rack) {
    int64_t forFrom = 0, forTo = 0, forAny = 0;
    for (auto [index, kind] : llvm::enumerate(kinds)) {
      bool sends = from.fitsKind(int(index)), receives = to.fitsKind(int(index));
      forFrom += sends ? kind.hostsInRack[rack] : 0;
      forTo += receives ? kind.hostsInRack[rack] : 0;
      forAny += sends || receives ? kind.hostsInRack[rack] : 0;
    }
    if (forFrom >= from.hosts && forTo >= to.hosts && forAny >= from.hosts + to.hosts)
      return true;
  }
  return false;
}

Link cost::transferLink(const Cluster &cluster, const Submesh &from, const Submesh &to,
                        std::optional<Span> span) {
  // Senders and receivers work side by side, each with a link of its own.
  double devices = std::min(from.devicesPerHost, to.devicesPerHost);
  double hosts = std::min(from.hosts, to.hosts);
  std::vector<HostKind> kinds = cluster.hostKinds();
  bool oneHost = span ? *span == Span::Host : cluster.hosts.size() == 1;
  int64_t most = 0;
  Link within{std::numeric_limits<double>::infinity(), 0}, between = within;
  for (auto [index, kind] : llvm::enumerate(kinds)) {
    bool sends = from.fitsKind(int(index)), receives = to.fitsKind(int(index));
    most = std::max(most, kind.devices);
    if (sends || receives) {
      Link host = kind.interHost;
      host.bandwidthBytesPerSecond *= hosts * partOfAdapters(kind, devices);
      between = between.slower(host);
    }
    if (sends && receives) {
      Link host = kind.intraHost;
      host.bandwidthBytesPerSecond *= devices;
      within = within.slower(host);
      // Neighbouring stages are placed on one host when both fit, else in one rack.
      oneHost |= !span && from.hosts == 1 && to.hosts == 1 &&
                 from.devicesPerHost + to.devicesPerHost <= kind.devices;
    }
  }
  if (oneHost)
    return within;
  if (!cluster.racks || (span ? *span == Span::Rack : canShareRack(cluster, kinds, from, to)))
    return between;
  double racks = double(std::min(from.racks, to.racks));
  Link rack = rackShare(
      *cluster.racks,
      std::min(from.hostsPerRack() * from.devicesPerHost, to.hostsPerRack() * to.devicesPerHost),
      most);
  rack.bandwidthBytesPerSecond *= racks;
  return between.slower(rack);
}
