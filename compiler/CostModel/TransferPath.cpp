//===- TransferPath.cpp - the way between two meshes ----------------------===//

#include "compiler/CostModel/TransferPath.h"

#include "llvm/ADT/DenseMap.h"

#include <algorithm>
#include <cassert>

using namespace alpa;

TransferPath alpa::transferPath(const Network &network, llvm::ArrayRef<int64_t> from,
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
