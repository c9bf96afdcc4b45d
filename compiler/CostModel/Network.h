//===- Network.h - the links between single devices --------------*- C++ -*-===//

#ifndef ALPA_COMPILER_COSTMODEL_NETWORK_H
#define ALPA_COMPILER_COSTMODEL_NETWORK_H

#include "compiler/CostModel/Cluster.h"

namespace alpa::cost {

/// What a message from one device to another takes.
struct Hop {
  enum Distance { Near, Far, Farthest }; // Within a host, within a rack, between racks.

  unsigned out = 0, in = 0;         // Links of the devices, or their adapters.
  unsigned rackOut = 0, rackIn = 0; // Between racks.
  double latencySeconds = 0;
  Distance distance = Near;

  bool leavesHost() const { return distance != Near; }
  llvm::SmallVector<unsigned, 4> links() const {
    if (distance == Farthest)
      return {out, rackOut, rackIn, in};
    return {out, in};
  }
};

/// Every device has a link of its own within its host, a part of the host's adapters to
/// others, and a part of the rack's to other racks, where there are any. Links carry both
/// directions at full speed. Devices are numbered host by host.
class Network {
public:
  explicit Network(const Cluster &cluster);

  int64_t numDevices() const { return int64_t(places.size()); }
  int64_t hostOf(int64_t device) const { return places[device].host; }
  int64_t rackOf(int64_t device) const { return places[device].rack; }
  /// The device's part of its host; devices with the same one share it. The same of its
  /// rack.
  unsigned adapterOf(int64_t device) const { return places[device].adapter; }
  unsigned rackAdapterOf(int64_t device) const { return places[device].rackAdapter; }
  Hop hop(int64_t from, int64_t to) const;
  double secondsPerByteOf(const Hop &hop) const;
  double nearLatencySeconds(int64_t device) const { return places[device].nearLatencySeconds; }
  double farLatencySeconds(int64_t device) const { return places[device].farLatencySeconds; }
  double rackLatencySeconds() const { return interRackLatencySeconds; }

  /// Directions of links; numbers of devices' links and adapters do not meet.
  unsigned numLinks() const { return unsigned(secondsPerByte.size()); }
  double secondsPerByteOf(unsigned link) const { return secondsPerByte[link]; }
  llvm::ArrayRef<double> allSecondsPerByte() const { return secondsPerByte; }
  unsigned deviceOut(int64_t device) const { return 2 * unsigned(device); }
  unsigned deviceIn(int64_t device) const { return 2 * unsigned(device) + 1; }
  unsigned adapterOut(int64_t device) const { return 2 * adapterOf(device); }
  unsigned adapterIn(int64_t device) const { return 2 * adapterOf(device) + 1; }
  unsigned rackOut(int64_t device) const { return 2 * rackAdapterOf(device); }
  unsigned rackIn(int64_t device) const { return 2 * rackAdapterOf(device) + 1; }

private:
  struct Place {
    int64_t host = 0, rack = 0;
    unsigned adapter = 0;     // Numbered behind the devices' own links.
    unsigned rackAdapter = 0; // Numbered behind those.
    double nearLatencySeconds = 0, farLatencySeconds = 0;
  };
  std::vector<Place> places;
  std::vector<double> secondsPerByte; // Of each direction of a link.
  double interRackLatencySeconds = 0;
};

/// How a tensor gets from the devices of one mesh to those of another. Its bytes
/// are spread evenly over the senders and over the receivers, and take the links of
/// the network that connect them.
struct TransferPath {
  double latencySeconds = 0;
  double bytesPerSecond = 0; // With the links to itself.

  double seconds(double bytes) const {
    return bytes > 0 ? latencySeconds + bytes / bytesPerSecond : 0;
  }
};

/// Both meshes have devices, all of the network.
TransferPath transferPath(const Network &network, llvm::ArrayRef<int64_t> from,
                          llvm::ArrayRef<int64_t> to);

} // namespace alpa::cost

#endif // ALPA_COMPILER_COSTMODEL_NETWORK_H
