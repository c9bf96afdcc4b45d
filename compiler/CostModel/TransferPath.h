//===- TransferPath.h - the way between two meshes ---------------*- C++ -*-===//

#ifndef ALPA_COMPILER_COSTMODEL_TRANSFERPATH_H
#define ALPA_COMPILER_COSTMODEL_TRANSFERPATH_H

#include "compiler/CostModel/Network.h"

namespace alpa {

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

} // namespace alpa

#endif // ALPA_COMPILER_COSTMODEL_TRANSFERPATH_H
