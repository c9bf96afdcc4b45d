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
// In a ring one message at a time leaves a host; in the others all devices of a
// group send to other hosts at once, and share what the axis has.
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
      : devices(mesh.shape[axis]), link(mesh.axes[axis]), within(mesh.intraHost),
        local(axis < mesh.devicesOnHost.size() ? mesh.devicesOnHost[axis] : mesh.shape[axis]),
        rounds(llvm::Log2_64_Ceil(mesh.shape[axis])) {}

  double seconds(double steps, double bytes) const {
    return steps * link.latencySeconds + bytes / link.bandwidthBytesPerSecond;
  }
  bool spansHosts() const { return local < devices; }
  /// What passes a device's link, or its host's, when every device sends a buffer
  /// in equal parts to all devices.
  double spread(double bytes) const {
    double leavesDevice = bytes * (devices - 1) / devices;
    double leavesHost = spansHosts() ? local * bytes * (devices - local) / devices : 0;
    return std::max(leavesDevice, leavesHost);
  }
  double ring(double bytes) const { return seconds(devices - 1, bytes * (devices - 1) / devices); }
  double gather(double bytes) const {
    if (link.nccl)
      return ncclGather(bytes);
    return std::min(ring(bytes), seconds(rounds, spread(bytes)));
  }
  double reduce(double bytes) const {
    return link.nccl ? ncclReduce(bytes) : std::min(2 * gather(bytes), gather(bytes * devices));
  }
  double allToAll(double bytes) const {
    if (link.nccl)
      return seconds(std::ceil((devices - 1) / kPeersAtOnce), spread(bytes));
    double doubled = bytes * rounds / 2 * (spansHosts() ? local : 1);
    return std::min(seconds(devices - 1, spread(bytes)), seconds(rounds, doubled));
  }
  /// At worst all devices of a host send to other hosts.
  double permute(double bytes) const {
    double sent = bytes * (spansHosts() ? std::min(local, devices - local) : 1);
    return link.nccl && bytes <= kMostBytesInLl ? fastest(1, 0, sent) : seconds(1, sent);
  }

  double devices;
  const Link &link;
  const Link &within; // Of steps within hosts where the axis spans them.
  double local;
  double rounds;

private:
  double hosts() const { return std::ceil(devices / local); }
  /// The best protocol for so many steps between hosts (or all, of an axis within one)
  /// and within them.
  double fastest(double steps, double stepsWithin, double bytes) const {
    const NcclSteps inside = within.nccl.value_or(NcclSteps());
    auto take = [&](double step, double stepWithin, double part) {
      return steps * step + stepsWithin * stepWithin +
             bytes / (part * link.bandwidthBytesPerSecond);
    };
    double best = take(link.latencySeconds, within.latencySeconds, 1);
    if (link.nccl->ll > 0)
      best = std::min(best, take(link.nccl->ll, inside.ll, kLlPart));
    if (link.nccl->ll128 > 0)
      best = std::min(best, take(link.nccl->ll128, inside.ll128, kLl128Part));
    return best;
  }
  double ncclRing(double times, double bytes) const {
    double between = spansHosts() ? hosts() - 1 : devices - 1;
    return fastest(times * between, times * (devices - 1 - between),
                   times * bytes * (devices - 1) / devices);
  }
  bool hasSwitch() const { return !spansHosts() && link.nccl->nvls > 0; }
  double ncclGather(double bytes) const {
    double best = ncclRing(1, bytes);
    if (spansHosts() && local == 1)
      best = std::min(best, seconds(rounds, bytes * (devices - 1) / devices));
    if (hasSwitch())
      best = std::min(best, link.nccl->nvls +
                                bytes * (devices - 1) / devices / link.bandwidthBytesPerSecond);
    return best;
  }
  double ncclReduce(double bytes) const {
    double best = std::min(ncclRing(2, bytes), 2 * ncclGather(bytes));
    if (spansHosts())
      best = std::min(best, fastest(2 * llvm::Log2_64_Ceil(uint64_t(hosts())), 2 * (local - 1),
                                    2 * bytes / kTreePart));
    if (hasSwitch())
      best = std::min(best, link.nccl->nvls + kNvlsBytes * bytes / link.bandwidthBytesPerSecond);
    return best;
  }

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
  if (!mesh.profile || axis >= mesh.devicesOnHost.size())
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

/// The part of a host's adapters that some of its devices use.
static double partOfAdapters(const HostKind &host, double devices) {
  double adapters = double(std::min(host.nics, host.devices));
  return std::max(1.0, std::floor(devices * adapters / double(host.devices))) / adapters;
}

Link cost::transferLink(const Cluster &cluster, const Submesh &from, const Submesh &to,
                        std::optional<bool> sharesHost) {
  // Senders and receivers work side by side, each with a link of its own.
  double devices = std::min(from.devicesPerHost, to.devicesPerHost);
  double hosts = std::min(from.hosts, to.hosts);
  bool oneHost = sharesHost.value_or(cluster.hosts.size() == 1);
  Link within{std::numeric_limits<double>::infinity(), 0}, between = within;
  for (auto [index, kind] : llvm::enumerate(cluster.hostKinds())) {
    bool sends = from.fitsKind(int(index)), receives = to.fitsKind(int(index));
    if (sends || receives) {
      Link host = kind.interHost;
      host.bandwidthBytesPerSecond *= hosts * partOfAdapters(kind, devices);
      between = between.slower(host);
    }
    if (sends && receives) {
      Link host = kind.intraHost;
      host.bandwidthBytesPerSecond *= devices;
      within = within.slower(host);
      // Neighbouring stages are placed on one host when both fit.
      oneHost |= !sharesHost && from.hosts == 1 && to.hosts == 1 &&
                 from.devicesPerHost + to.devicesPerHost <= kind.devices;
    }
  }
  return oneHost ? within : between;
}
