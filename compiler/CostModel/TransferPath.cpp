//===- TransferPath.cpp - the links between two meshes --------------------===//

#include "compiler/CostModel/TransferPath.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/Twine.h"

#include <algorithm>
#include <map>

using namespace alpa;
using llvm::Twine;

namespace {

/// Where a device stands, and the adapters of its host that it uses.
struct Place {
  int64_t device = 0, host = 0;
  int64_t adapter = 0, adapters = 1; // Of the host; devices share them evenly.
};

class Paths {
public:
  explicit Paths(const Cluster &cluster) : cluster(cluster) {
    for (const Host &host : cluster.hosts)
      firstDevice.push_back(firstDevice.back() + host.devices);
  }

  llvm::Expected<std::vector<Place>> find(llvm::ArrayRef<int64_t> devices) const {
    if (devices.empty())
      return llvm::createStringError("a transfer needs devices at both ends");
    std::vector<Place> places;
    for (int64_t device : devices) {
      if (device < 0 || device >= firstDevice.back())
        return llvm::createStringError("device " + Twine(device) + " is not in a cluster of " +
                                       Twine(firstDevice.back()) + " devices");
      int64_t host = llvm::upper_bound(firstDevice, device) - firstDevice.begin() - 1;
      const Host &on = cluster.hosts[host];
      int64_t adapters = std::min(on.nics, on.devices);
      int64_t adapter = (device - firstDevice[host]) * adapters / on.devices;
      places.push_back({device, host, adapter, adapters});
    }
    return places;
  }

  /// One end of the transfer: what each device exchanges with the devices `others`.
  void use(llvm::ArrayRef<Place> places, llvm::ArrayRef<Place> others, llvm::StringRef way) {
    llvm::DenseMap<int64_t, int64_t> onHost;
    for (const Place &other : others)
      ++onHost[other.host];
    double each = 1.0 / (double(places.size()) * double(others.size()));
    for (const Place &place : places) {
      int64_t near = onHost.lookup(place.host), far = int64_t(others.size()) - near;
      const Host &host = cluster.hosts[place.host];
      Link within = host.intraHost.value_or(cluster.intraHost);
      Link between = host.interHost.value_or(cluster.interHost);
      nearLatencySeconds = std::max(nearLatencySeconds, within.latencySeconds);
      if (near > 0)
        add(("device " + Twine(place.device) + " " + way).str(), within.bandwidthBytesPerSecond,
            each * double(near));
      if (far == 0)
        continue;
      leavesHost = true;
      farLatencySeconds = std::max(farLatencySeconds, between.latencySeconds);
      std::string name = "host " + std::to_string(place.host);
      if (place.adapters > 1)
        name += " adapter " + std::to_string(place.adapter);
      add(name + " " + way.str(), between.bandwidthBytesPerSecond / double(place.adapters),
          each * double(far));
    }
  }

  TransferPath take() {
    TransferPath path;
    double secondsPerByte = 0; // Of the slowest link.
    for (auto &[name, link] : links) {
      secondsPerByte = std::max(secondsPerByte, link.part / link.bandwidthBytesPerSecond);
      path.links.push_back(std::move(link));
    }
    path.bytesPerSecond = 1 / secondsPerByte;
    path.latencySeconds = leavesHost ? farLatencySeconds : nearLatencySeconds;
    return path;
  }

private:
  void add(std::string name, double bandwidth, double part) {
    LinkUse &link = links[name];
    link.link = std::move(name);
    link.bandwidthBytesPerSecond = bandwidth;
    link.part += part;
  }

  const Cluster &cluster;
  llvm::SmallVector<int64_t> firstDevice = {0}; // Of each host, and the end.
  std::map<std::string, LinkUse> links;
  bool leavesHost = false;
  double nearLatencySeconds = 0, farLatencySeconds = 0; // Of the slowest host.
};

} // namespace

llvm::Expected<TransferPath> alpa::transferPath(const Cluster &cluster,
                                                llvm::ArrayRef<int64_t> from,
                                                llvm::ArrayRef<int64_t> to) {
  Paths paths(cluster);
  llvm::Expected<std::vector<Place>> senders = paths.find(from);
  if (!senders)
    return senders.takeError();
  llvm::Expected<std::vector<Place>> receivers = paths.find(to);
  if (!receivers)
    return receivers.takeError();
  paths.use(*senders, *receivers, "out");
  paths.use(*receivers, *senders, "in");
  return paths.take();
}
