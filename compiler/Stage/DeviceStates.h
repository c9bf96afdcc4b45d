//===- DeviceStates.h - which devices are still free -------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_DEVICESTATES_H
#define ALPA_COMPILER_STAGE_DEVICESTATES_H

#include "compiler/CostModel/Cluster.h"

#include <vector>

namespace alpa {

/// What can be free while submeshes are taken one after the other, as a graph.
/// Equal hosts of a power of two devices need the number of free devices only:
/// submeshes of powers of two, or of whole hosts, whose sizes add up always tile
/// them (theorem 1 of the Alpa paper). Other clusters track each host's free
/// devices, up to a reordering of equal hosts.
class DeviceStates {
public:
  DeviceStates(llvm::ArrayRef<int64_t> hostDevices, llvm::ArrayRef<Submesh> submeshes);
  /// Stages given by hand: the submeshes are taken in their order.
  static DeviceStates manual(size_t numStages);

  size_t size() const { return next.size(); }
  unsigned start() const { return startState; }
  unsigned done() const { return doneState; }
  /// States after taking the submesh; several when hosts differ in what is left.
  llvm::ArrayRef<unsigned> after(unsigned state, unsigned submesh) const {
    return next[state][submesh];
  }

private:
  DeviceStates() = default;
  void countDevices(int64_t total, llvm::ArrayRef<Submesh> submeshes);
  void trackHosts(llvm::ArrayRef<int64_t> hostDevices, llvm::ArrayRef<Submesh> submeshes,
                  bool everyHost);

  unsigned startState = 0;
  unsigned doneState = 0;
  bool overflowed = false;
  std::vector<std::vector<llvm::SmallVector<unsigned, 2>>> next; // [state][submesh]
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_DEVICESTATES_H
