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
    return std::min(ring(bytes), seconds(rounds, spread(bytes)));
  }

  double devices;
  const Link &link;
  double local;
  double rounds;
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
  Axis on(mesh, axis);
  return std::min(2 * on.gather(bytes), on.gather(bytes * on.devices));
}

double CostModel::allToAllSeconds(double bytes, unsigned axis) const {
  if (isFree(mesh, bytes, axis))
    return 0;
  if (const CostTable *table = measured(Collective::AllToAll, axis, bytes))
    return table->at(bytes);
  Axis on(mesh, axis);
  double doubled = bytes * on.rounds / 2 * (on.spansHosts() ? on.local : 1);
  return std::min(on.seconds(on.devices - 1, on.spread(bytes)), on.seconds(on.rounds, doubled));
}

double CostModel::collectivePermuteSeconds(double bytes, unsigned axis) const {
  if (isFree(mesh, bytes, axis))
    return 0;
  if (const CostTable *table = measured(Collective::Permute, axis, bytes))
    return table->at(bytes);
  // At worst all devices of a host send to other hosts.
  Axis on(mesh, axis);
  return on.seconds(1, bytes * (on.spansHosts() ? std::min(on.local, on.devices - on.local) : 1));
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
