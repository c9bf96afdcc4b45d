//===- Network.cpp - the links between single devices ---------------------===//

#include "compiler/CostModel/Network.h"

#include "llvm/ADT/DenseMap.h"

#include <algorithm>
#include <cassert>

using namespace alpa;
using namespace alpa::cost;

Network::Network(const Cluster &cluster) {
  unsigned adapter = unsigned(cluster.numDevices());
  std::vector<double> adapters;
  for (auto [index, host] : llvm::enumerate(cluster.hosts)) {
    Link within = host.intraHost.value_or(cluster.intraHost).reachable();
    Link between = host.interHost.value_or(cluster.interHost).reachable();
    int64_t count = std::min(host.nics, host.devices);
    for (int64_t i = 0; i < host.devices; ++i) {
      places.push_back({int64_t(index), adapter + unsigned(i * count / host.devices),
                        within.latencySeconds, between.latencySeconds});
      secondsPerByte.insert(secondsPerByte.end(), 2, 1 / within.bandwidthBytesPerSecond);
    }
    adapters.insert(adapters.end(), 2 * count, double(count) / between.bandwidthBytesPerSecond);
    adapter += unsigned(count);
  }
  secondsPerByte.insert(secondsPerByte.end(), adapters.begin(), adapters.end());
}

Hop Network::hop(int64_t from, int64_t to) const {
  const Place &a = places[from], &b = places[to];
  if (a.host == b.host)
    return {deviceOut(from), deviceIn(to), a.nearLatencySeconds, false};
  return {adapterOut(from), adapterIn(to), std::max(a.farLatencySeconds, b.farLatencySeconds),
          true};
}

//===----------------------------------------------------------------------===//
// The way between two meshes
//===----------------------------------------------------------------------===//

TransferPath cost::transferPath(const Network &network, llvm::ArrayRef<int64_t> from,
                                llvm::ArrayRef<int64_t> to) {
  assert(!from.empty() && !to.empty() && "a transfer needs devices at both ends");
  llvm::DenseMap<unsigned, double> parts; // Of the bytes, on each link.
  double near = 0, far = 0;               // Latency of the slowest host.
  bool leavesHost = false;
  double each = 1.0 / (double(from.size()) * double(to.size()));
  auto use = [&](llvm::ArrayRef<int64_t> devices, llvm::ArrayRef<int64_t> others, bool isOut) {
    llvm::DenseMap<int64_t, int64_t> onHost;
    for (int64_t other : others)
      ++onHost[network.hostOf(other)];
    for (int64_t device : devices) {
      int64_t numNear = onHost.lookup(network.hostOf(device));
      int64_t numFar = int64_t(others.size()) - numNear;
      near = std::max(near, network.nearLatencySeconds(device));
      if (numNear > 0)
        parts[isOut ? network.deviceOut(device) : network.deviceIn(device)] +=
            each * double(numNear);
      if (numFar == 0)
        continue;
      leavesHost = true;
      far = std::max(far, network.farLatencySeconds(device));
      parts[isOut ? network.adapterOut(device) : network.adapterIn(device)] +=
          each * double(numFar);
    }
  };
  use(from, to, /*isOut=*/true);
  use(to, from, /*isOut=*/false);
  double secondsPerByte = 0; // Of the link that is slowest for its part.
  for (auto [link, part] : parts)
    secondsPerByte = std::max(secondsPerByte, part * network.secondsPerByteOf(link));
  return {leavesHost ? far : near, 1 / secondsPerByte};
}
