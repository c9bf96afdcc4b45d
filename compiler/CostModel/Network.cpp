//===- Network.cpp - the links between single devices ---------------------===//

#include "compiler/CostModel/Network.h"

using namespace alpa;

Network::Network(const Cluster &cluster) {
  unsigned adapter = unsigned(cluster.numDevices());
  std::vector<double> adapters;
  for (auto [index, host] : llvm::enumerate(cluster.hosts)) {
    Link within = host.intraHost.value_or(cluster.intraHost);
    Link between = host.interHost.value_or(cluster.interHost);
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
