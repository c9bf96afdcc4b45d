//===- TransferPath.h - the links between two meshes -------------*- C++ -*-===//

#ifndef ALPA_COMPILER_COSTMODEL_TRANSFERPATH_H
#define ALPA_COMPILER_COSTMODEL_TRANSFERPATH_H

#include "compiler/CostModel/Cluster.h"

namespace alpa {

/// One direction of a link, and the part of a transfer's bytes that takes it.
struct LinkUse {
  std::string link; // "device 3 out", "host 0 in", "host 0 adapter 1 in".
  double bandwidthBytesPerSecond = 0;
  double part = 0;
};

/// How a tensor gets from the devices of one mesh to those of another. Its bytes
/// are spread evenly over the senders and over the receivers. Devices of one host
/// use their own links, those of different hosts the hosts' adapters.
struct TransferPath {
  double latencySeconds = 0;
  double bytesPerSecond = 0; // With the links to itself.
  std::vector<LinkUse> links;

  double seconds(double bytes) const {
    return bytes > 0 ? latencySeconds + bytes / bytesPerSecond : 0;
  }
};

/// Devices are numbered host by host. An error if one is not in the cluster.
llvm::Expected<TransferPath> transferPath(const Cluster &cluster, llvm::ArrayRef<int64_t> from,
                                          llvm::ArrayRef<int64_t> to);

} // namespace alpa

#endif // ALPA_COMPILER_COSTMODEL_TRANSFERPATH_H
