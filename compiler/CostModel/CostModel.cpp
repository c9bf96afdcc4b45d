//===- CostModel.cpp - seconds for compute and communication --------------===//
//
// Compute follows the roofline model (Williams, Waterman, Patterson, CACM 2009).
// Communication follows the latency-bandwidth model (Hockney, Parallel Computing
// 1994): a message costs latency + bytes / bandwidth. Collectives use the ring
// algorithms and step counts of Thakur, Rabenseifner, Gropp, "Optimization of
// Collective Communication Operations in MPICH" (2005):
//
//   all-gather, reduce-scatter:  n - 1 steps of bytes / n
//   all-reduce:                  reduce-scatter, then all-gather
//   all-to-all (pairwise):       n - 1 steps of bytes / n
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/CostModel.h"

#include "llvm/ADT/StringSwitch.h"

#include <algorithm>
#include <cassert>

using namespace alpa;

/// Rates are looked up by NumPy's names; MLIR's are understood as well.
static llvm::StringRef canonicalDtype(llvm::StringRef dtype) {
  return llvm::StringSwitch<llvm::StringRef>(dtype)
      .Case("f64", "float64")
      .Case("f32", "float32")
      .Case("f16", "float16")
      .Case("bf16", "bfloat16")
      .Cases({"i8", "ui8", "uint8"}, "int8")
      .StartsWith("float8", "float8")
      .StartsWith("f8", "float8")
      .Case("complex128", "float64")
      .Case("complex64", "float32")
      .Default(dtype);
}

double CostModel::computeSeconds(double flops, double bytes, llvm::StringRef dtype) const {
  const llvm::StringMap<double> &peaks = mesh.device.peakFlopsPerSecond;
  auto peak = peaks.find(canonicalDtype(dtype));
  if (peak == peaks.end())
    peak = peaks.find("float32"); // Integers and types without a rate of their own.
  double seconds = 0;
  if (flops > 0 && peak != peaks.end())
    seconds = flops / peak->second;
  if (bytes > 0 && mesh.device.memoryBandwidthBytesPerSecond > 0)
    seconds = std::max(seconds, bytes / mesh.device.memoryBandwidthBytesPerSecond);
  return seconds;
}

/// Seconds of `steps` steps round the ring of an axis with `bytes` / n each.
static double ringSeconds(const LogicalMesh &mesh, double bytes, unsigned axis, double rounds) {
  assert(axis < mesh.shape.size() && "no such axis");
  double devices = mesh.shape[axis];
  if (devices <= 1 || bytes <= 0)
    return 0;
  const Link &link = mesh.axes[axis];
  double steps = rounds * (devices - 1);
  return steps * (link.latencySeconds + bytes / devices / link.bandwidthBytesPerSecond);
}

double CostModel::allReduceSeconds(double bytes, unsigned axis) const {
  return ringSeconds(mesh, bytes, axis, 2);
}

double CostModel::allGatherSeconds(double bytes, unsigned axis) const {
  return ringSeconds(mesh, bytes, axis, 1);
}

double CostModel::reduceScatterSeconds(double bytes, unsigned axis) const {
  return ringSeconds(mesh, bytes, axis, 1);
}

double CostModel::allToAllSeconds(double bytes, unsigned axis) const {
  double ring = ringSeconds(mesh, bytes, axis, 1);
  if (ring == 0 || axis >= mesh.devicesOnHost.size())
    return ring;
  // In a ring one message at a time leaves a host; here all of its devices send
  // to other hosts at once.
  double devices = mesh.shape[axis], local = mesh.devicesOnHost[axis];
  const Link &link = mesh.axes[axis];
  double leaving = local * bytes * (devices - local) / devices;
  return std::max(ring,
                  (devices - 1) * link.latencySeconds + leaving / link.bandwidthBytesPerSecond);
}

double alpa::transferSeconds(const Cluster &cluster, const Submesh &from, const Submesh &to,
                             double bytes) {
  if (bytes <= 0)
    return 0;
  int64_t most = 0;
  for (const Host &host : cluster.hosts)
    most = std::max(most, host.devices);
  // Neighbouring stages are placed on one host when both fit.
  bool oneHost = cluster.hosts.size() == 1 || (from.hosts == 1 && to.hosts == 1 &&
                                               from.devicesPerHost + to.devicesPerHost <= most);
  const Link &link = oneHost ? cluster.intraHost : cluster.interHost;
  // Senders and receivers work side by side, each with a link of its own.
  double lanes =
      oneHost ? std::min(from.devicesPerHost, to.devicesPerHost) : std::min(from.hosts, to.hosts);
  return link.latencySeconds + bytes / (link.bandwidthBytesPerSecond * std::max(lanes, 1.0));
}
