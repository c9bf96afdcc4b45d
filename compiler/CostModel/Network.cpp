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
      places.push_back({int64_t(index), cluster.rackOf(int64_t(index)),
                        adapter + unsigned(i * count / host.devices), 0, within.latencySeconds,
                        between.latencySeconds});
      secondsPerByte.insert(secondsPerByte.end(), 2, 1 / within.bandwidthBytesPerSecond);
    }
    adapters.insert(adapters.end(), 2 * count, double(count) / between.bandwidthBytesPerSecond);
    adapter += unsigned(count);
  }
  if (cluster.racks) {
    Link between = cluster.racks->interRack.reachable();
    interRackLatencySeconds = between.latencySeconds;
    for (auto begin = places.begin(); begin != places.end();) {
      auto end = std::find_if(begin, places.end(),
                              [&](const Place &place) { return place.rack != begin->rack; });
      int64_t devices = end - begin, count = std::min(cluster.racks->nics, devices);
      for (auto place = begin; place != end; ++place)
        place->rackAdapter = adapter + unsigned((place - begin) * count / devices);
      adapters.insert(adapters.end(), 2 * count, double(count) / between.bandwidthBytesPerSecond);
      adapter += unsigned(count);
      begin = end;
    }
  }
  secondsPerByte.insert(secondsPerByte.end(), adapters.begin(), adapters.end());
}

Hop Network::hop(int64_t from, int64_t to) const {
  const Place &a = places[from], &b = places[to];
  Hop hop{deviceOut(from), deviceIn(to), rackOut(from), rackIn(to), a.nearLatencySeconds};
  if (a.host == b.host)
    return hop;
  hop.out = adapterOut(from);
  hop.in = adapterIn(to);
  hop.latencySeconds = std::max(a.farLatencySeconds, b.farLatencySeconds);
  hop.distance = Hop::Far;
  if (a.rack == b.rack)
    return hop;
  hop.latencySeconds = std::max(hop.latencySeconds, interRackLatencySeconds);
  hop.distance = Hop::Farthest;
  return hop;
}

double Network::secondsPerByteOf(const Hop &hop) const {
  double seconds = 0;
  for (unsigned link : hop.links())
    seconds = std::max(seconds, secondsPerByte[link]);
  return seconds;
}

//===----------------------------------------------------------------------===//
// The way between two meshes
//===----------------------------------------------------------------------===//

TransferPath cost::transferPath(const Network &network, llvm::ArrayRef<int64_t> from,
                                llvm::ArrayRef<int64_t> to) {
  assert(!from.empty() && !to.empty() && "a transfer needs devices at both ends");
  llvm::DenseMap<unsigned, double> parts; // Of the bytes, on each link.
  double near = 0, far = 0;               // Latency of the slowest host.
  bool leavesHost = false, leavesRack = false;
  double each = 1.0 / (double(from.size()) * double(to.size()));
  auto use = [&](llvm::ArrayRef<int64_t> devices, llvm::ArrayRef<int64_t> others, bool isOut) {
    llvm::DenseMap<int64_t, int64_t> onHost, inRack;
    for (int64_t other : others) {
      ++onHost[network.hostOf(other)];
      ++inRack[network.rackOf(other)];
    }
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
      if (int64_t numOut = int64_t(others.size()) - inRack.lookup(network.rackOf(device))) {
        leavesRack = true;
        parts[isOut ? network.rackOut(device) : network.rackIn(device)] += each * double(numOut);
      }
    }
  };
  use(from, to, /*isOut=*/true);
  use(to, from, /*isOut=*/false);
  double secondsPerByte = 0; // Of the link that is slowest for its part.
  for (auto [link, part] : parts)
    secondsPerByte = std::max(secondsPerByte, part * network.secondsPerByteOf(link));
  if (leavesRack)
    far = std::max(far, network.rackLatencySeconds());
  return {leavesHost ? far : near, 1 / secondsPerByte};
}
