//===- DeviceStates.cpp - which devices are still free --------------------===//

#include "compiler/Stage/DeviceStates.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"
#include <limits>
#include <map>

using namespace alpa;

/// Beyond this many states a host is chosen by best fit instead of trying all.
static constexpr size_t kMostStates = 5000;

DeviceStates::DeviceStates(llvm::ArrayRef<int64_t> hostDevices, llvm::ArrayRef<Submesh> submeshes) {
  int64_t perHost = hostDevices.empty() ? 0 : hostDevices.front();
  bool regular = llvm::all_equal(hostDevices) && llvm::isPowerOf2_64(perHost);
  for (const Submesh &submesh : submeshes)
    regular &= submesh.hosts == 1 ? llvm::isPowerOf2_64(submesh.devicesPerHost)
                                  : submesh.devicesPerHost == perHost;
  if (regular) {
    countDevices(perHost * hostDevices.size(), submeshes);
    return;
  }
  trackHosts(hostDevices, submeshes, /*everyHost=*/true);
  if (overflowed)
    trackHosts(hostDevices, submeshes, /*everyHost=*/false);
}

DeviceStates DeviceStates::manual(size_t numStages) {
  DeviceStates states;
  states.startState = numStages;
  states.next.resize(numStages + 1);
  for (size_t left = 0; left <= numStages; ++left) {
    states.next[left].resize(numStages);
    if (left > 0)
      states.next[left][numStages - left].push_back(left - 1);
  }
  return states;
}

void DeviceStates::countDevices(int64_t total, llvm::ArrayRef<Submesh> submeshes) {
  startState = total;
  next.resize(total + 1);
  for (int64_t free = 0; free <= total; ++free)
    for (const Submesh &submesh : submeshes) {
      auto &states = next[free].emplace_back();
      if (submesh.numDevices() <= free)
        states.push_back(free - submesh.numDevices());
    }
}

void DeviceStates::trackHosts(llvm::ArrayRef<int64_t> hostDevices,
                              llvm::ArrayRef<Submesh> submeshes, bool everyHost) {
  using Host = std::pair<int64_t, int64_t>; // Devices, free devices.
  using Hosts = std::vector<Host>;          // Sorted.
  overflowed = false;
  next.clear();
  std::map<Hosts, unsigned> numbers;
  std::vector<Hosts> states;
  auto number = [&](Hosts hosts) {
    llvm::sort(hosts);
    auto [it, inserted] = numbers.try_emplace(std::move(hosts), states.size());
    if (inserted)
      states.push_back(it->first);
    return it->second;
  };

  Hosts all, none;
  for (int64_t devices : hostDevices) {
    all.push_back({devices, devices});
    none.push_back({devices, 0});
  }
  startState = number(all);
  doneState = number(none);
  for (size_t state = 0; state < states.size(); ++state) {
    if (everyHost && states.size() > kMostStates) {
      overflowed = true;
      return;
    }
    auto &edges = next.emplace_back(submeshes.size());
    for (auto [submesh, edge] : llvm::zip(submeshes, edges)) {
      Hosts hosts = states[state];
      if (submesh.hosts > 1) {
        int64_t needed = submesh.hosts;
        for (Host &host : hosts)
          if (needed > 0 && host.first == submesh.devicesPerHost && host.second == host.first) {
            host.second = 0;
            --needed;
          }
        if (needed == 0)
          edge.push_back(number(hosts));
        continue;
      }
      std::optional<size_t> best;
      for (size_t i = 0; i < hosts.size(); ++i) {
        if (hosts[i].second < submesh.devicesPerHost || (i > 0 && hosts[i] == hosts[i - 1]))
          continue;
        if (!everyHost) {
          if (!best || hosts[i].second < hosts[*best].second)
            best = i;
          continue;
        }
        Hosts left = hosts;
        left[i].second -= submesh.devicesPerHost;
        edge.push_back(number(std::move(left)));
      }
      if (best) {
        hosts[*best].second -= submesh.devicesPerHost;
        edge.push_back(number(std::move(hosts)));
      }
    }
  }
}
