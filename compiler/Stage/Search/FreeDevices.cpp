//===- FreeDevices.cpp - which devices are still free ---------------------===//

#include "compiler/Stage/Search/FreeDevices.h"

#include "llvm/ADT/STLExtras.h"
#include <numeric>

using namespace alpa;
using namespace alpa::stage;
using cost::Submesh;

/// Beyond this many states of a kind's racks or hosts, one is chosen without trying all.
static constexpr double kMostStates = 5000;

std::vector<HostGroup> stage::groupHosts(llvm::ArrayRef<int64_t> hostDevices,
                                         llvm::ArrayRef<unsigned> kinds,
                                         llvm::ArrayRef<int64_t> racks) {
  // Hosts that were given the same kind may still differ in size.
  std::map<std::pair<int, int64_t>, HostGroup> groups;
  std::map<std::pair<int, int64_t>, std::map<int64_t, int64_t>> inRacks;
  for (auto [index, devices] : llvm::enumerate(hostDevices)) {
    std::pair key(kinds.empty() ? 0 : int(kinds[index]), devices);
    HostGroup &group = groups[key];
    group.devices = devices;
    group.kind = key.first;
    ++group.hosts;
    ++inRacks[key][racks.empty() ? 0 : racks[index]];
  }
  std::vector<HostGroup> list;
  for (auto &[key, group] : groups) {
    for (auto [rack, hosts] : inRacks[key])
      group.inRacks.push_back(hosts);
    llvm::sort(group.inRacks, std::greater<>());
    list.push_back(std::move(group));
  }
  return list;
}

static bool divideOneAnother(llvm::SmallVector<int64_t> sizes) {
  llvm::sort(sizes);
  for (size_t i = 0; i + 1 < sizes.size(); ++i)
    if (sizes[i + 1] % sizes[i] != 0)
      return false;
  return true;
}

/// Whether the number of free devices of a rack says what else fits.
static bool isCountedInRack(const HostGroup &group, llvm::ArrayRef<Submesh> submeshes) {
  llvm::SmallVector<int64_t> sizes;
  for (const Submesh &submesh : submeshes)
    if (submesh.hosts == 1 && submesh.devicesPerHost < group.devices &&
        submesh.fitsKind(group.kind))
      sizes.push_back(submesh.devicesPerHost);
  sizes.push_back(group.devices);
  return divideOneAnother(std::move(sizes));
}

/// Whether that of all racks together does.
static bool isCounted(const HostGroup &group, llvm::ArrayRef<Submesh> submeshes) {
  if (group.inRacks.size() == 1)
    return true;
  int64_t whole = group.inRacks.front();
  llvm::SmallVector<int64_t> sizes = {whole};
  for (const Submesh &submesh : submeshes) {
    if (submesh.devicesPerHost != group.devices || !submesh.fitsKind(group.kind))
      continue;
    if (submesh.racks == 1)
      sizes.push_back(submesh.hosts);
    else if (submesh.hosts != submesh.racks * whole)
      return false;
  }
  return llvm::all_equal(group.inRacks) && divideOneAnother(std::move(sizes));
}

/// Ways in which so many hosts or racks of a size can be filled, up to a reordering.
static double numFillings(int64_t count, int64_t size) {
  double ways = 1;
  for (int64_t i = 1; i <= std::min(count, size); ++i)
    ways *= double(std::max(count, size) + i) / double(i);
  return ways;
}

size_t DeviceStates::Group::size() const {
  return tracked == Counted ? 1 : tracked == ByRack ? hosts.inRacks.size() : size_t(hosts.hosts);
}

std::vector<DeviceStates::Rack> DeviceStates::Group::racks() const {
  if (tracked == Counted)
    return {{first, 1, hosts.hosts}};
  std::vector<Rack> list;
  size_t at = first;
  for (int64_t count : hosts.inRacks) {
    list.push_back({at, tracked == ByRack ? 1 : size_t(count), count});
    at += list.back().size;
  }
  return list;
}

DeviceStates::DeviceStates(llvm::ArrayRef<HostGroup> hostGroups, llvm::ArrayRef<Submesh> submeshes,
                           bool useAll)
    : useAll(useAll), submeshes(submeshes.begin(), submeshes.end()) {
  State all;
  for (const HostGroup &hosts : hostGroups) {
    Group &group = groups.emplace_back();
    group.hosts = hosts;
    group.first = all.size();
    if (!isCountedInRack(hosts, submeshes)) {
      group.tracked = Group::ByHost;
      group.triesAll = numFillings(hosts.hosts, hosts.devices) <= kMostStates;
      all.insert(all.end(), hosts.hosts, int32_t(hosts.devices));
    } else if (isCounted(hosts, submeshes)) {
      all.push_back(int32_t(hosts.devices * hosts.hosts));
    } else {
      group.tracked = Group::ByRack;
      int64_t racks = int64_t(hosts.inRacks.size());
      group.triesAll = numFillings(racks, hosts.devices * hosts.inRacks.front()) <= kMostStates;
      for (int64_t count : hosts.inRacks)
        all.push_back(int32_t(hosts.devices * count));
    }
  }
  number(std::move(all));
}

DeviceStates DeviceStates::manual(size_t numStages) {
  DeviceStates states;
  states.byHand = true;
  states.submeshes.resize(numStages);
  states.number({int32_t(numStages)});
  return states;
}

/// Hosts of a rack are alike, and racks of as many hosts; of racks whose devices are
/// counted, those with as many left.
void DeviceStates::Group::sort(State &state) const {
  if (tracked == ByRack)
    std::sort(state.begin() + first, state.begin() + first + size());
  if (tracked != ByHost)
    return;
  std::vector<Rack> list = racks();
  std::vector<State> parts;
  for (const Rack &rack : list) {
    auto begin = state.begin() + rack.first;
    std::sort(begin, begin + rack.size);
    if (list.size() > 1)
      parts.emplace_back(begin, begin + rack.size);
  }
  llvm::sort(parts, [](const State &a, const State &b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  auto out = state.begin() + first;
  for (const State &part : parts)
    out = std::copy(part.begin(), part.end(), out);
}

unsigned DeviceStates::number(State state) {
  for (const Group &group : groups)
    group.sort(state);
  auto [it, inserted] = numbers.try_emplace(std::move(state), states.size());
  if (inserted) {
    states.push_back(it->first);
    int64_t devices = 0;
    if (!byHand)
      for (int32_t part : it->first)
        devices += part;
    free.push_back(devices);
    next.resize(states.size() * submeshes.size());
    known.resize(next.size(), false);
  }
  return it->second;
}

bool DeviceStates::covers(unsigned a, unsigned b) const {
  if (byHand || useAll)
    return a == b;
  for (auto [left, right] : llvm::zip_equal(states[a], states[b]))
    if (left < right)
      return false;
  return true;
}

llvm::ArrayRef<unsigned> DeviceStates::after(unsigned state, unsigned submesh) {
  size_t slot = size_t(state) * submeshes.size() + submesh;
  if (!known[slot]) {
    std::vector<unsigned> list;
    State copy = states[state]; // New states move the others.
    addAfter(copy, submesh, list);
    llvm::sort(list);
    list.erase(llvm::unique(list), list.end());
    next[slot] = std::move(list);
    known[slot] = true;
  }
  return next[slot];
}

void DeviceStates::addAfter(const State &state, unsigned index, std::vector<unsigned> &list) {
  if (byHand) {
    if (state.front() == int32_t(index) + 1)
      list.push_back(number({int32_t(index)}));
    return;
  }
  const Submesh &submesh = submeshes[index];
  llvm::SmallVector<Group> fitting;
  for (const Group &group : groups) {
    if (!submesh.fitsKind(group.hosts.kind))
      continue;
    if (submesh.hosts == 1 && submesh.devicesPerHost <= group.hosts.devices)
      takePart(state, group, submesh.devicesPerHost, list);
    if (submesh.hosts > 1 && submesh.devicesPerHost == group.hosts.devices)
      fitting.push_back(group);
  }
  if (submesh.hosts == 1)
    return;
  if (takesAll(state, fitting, submesh, list))
    return;
  if (fitting.size() == 1)
    takeHosts(state, fitting.front(), submesh, list);
  else
    takeMixedHosts(state, fitting, submesh, submesh.hosts, list);
}

void DeviceStates::takePart(const State &state, const Group &group, int64_t devices,
                            std::vector<unsigned> &list) {
  std::optional<size_t> fullest;
  for (const Rack &rack : group.racks())
    for (size_t i = rack.first; i < rack.first + rack.size; ++i) {
      if (state[i] < devices || (i > rack.first && state[i] == state[i - 1]))
        continue;
      if (!group.triesAll) {
        if (!fullest || state[i] < state[*fullest])
          fullest = i;
        continue;
      }
      State left = state;
      left[i] -= int32_t(devices);
      list.push_back(number(std::move(left)));
    }
  if (fullest) {
    State left = state;
    left[*fullest] -= int32_t(devices);
    list.push_back(number(std::move(left)));
  }
}

int64_t DeviceStates::wholeHosts(const State &state, const Group &group, const Rack &rack) {
  auto begin = state.begin() + rack.first;
  if (group.tracked == Group::ByHost)
    return std::count(begin, begin + rack.size, int32_t(group.hosts.devices));
  return *begin / group.hosts.devices;
}

void DeviceStates::takeWholeHosts(State &state, const Group &group, const Rack &rack,
                                  int64_t hosts) {
  if (group.tracked != Group::ByHost) {
    state[rack.first] -= int32_t(hosts * group.hosts.devices);
    return;
  }
  for (size_t i = rack.first; hosts > 0; ++i)
    if (state[i] == int32_t(group.hosts.devices)) {
      state[i] = 0;
      --hosts;
    }
}

/// All hosts of all racks, where racks have unequal numbers of them.
bool DeviceStates::takesAll(State state, llvm::ArrayRef<Group> fitting, const Submesh &submesh,
                            std::vector<unsigned> &list) {
  int64_t hosts = 0;
  for (const Group &group : fitting)
    hosts += group.hosts.hosts;
  if (submesh.racks == 1 || hosts != submesh.hosts)
    return false;
  for (const Group &group : fitting) {
    auto begin = state.begin() + group.first, end = begin + group.size();
    if (std::accumulate(begin, end, int64_t(0)) < group.hosts.devices * group.hosts.hosts)
      return true; // Nothing.
    std::fill(begin, end, 0);
  }
  list.push_back(number(std::move(state)));
  return true;
}

void DeviceStates::takeHosts(const State &state, const Group &group, const Submesh &submesh,
                             std::vector<unsigned> &list) {
  // Counted racks are one, which has room for whole racks if there are devices enough.
  int64_t racks = group.tracked == Group::Counted ? 1 : submesh.racks;
  int64_t each = submesh.hosts / racks;
  std::vector<Rack> fitting;
  for (const Rack &rack : group.racks())
    if (wholeHosts(state, group, rack) >= each)
      fitting.push_back(rack);
  if (int64_t(fitting.size()) < racks)
    return;
  auto take = [&](llvm::ArrayRef<Rack> chosen) {
    State left = state;
    for (const Rack &rack : chosen)
      takeWholeHosts(left, group, rack, each);
    list.push_back(number(std::move(left)));
  };
  if (racks == 1 && group.triesAll) {
    for (const Rack &rack : fitting)
      take(rack);
    return;
  }
  llvm::sort(fitting, [&](const Rack &a, const Rack &b) {
    return std::make_pair(wholeHosts(state, group, a), a.first) <
           std::make_pair(wholeHosts(state, group, b), b.first);
  });
  take(llvm::ArrayRef(fitting).take_front(racks));
}

/// Whole hosts of several kinds, or whole racks, so many of each kind in every way.
void DeviceStates::takeMixedHosts(State state, llvm::ArrayRef<Group> left, const Submesh &submesh,
                                  int64_t hosts, std::vector<unsigned> &list) {
  if (hosts == 0) {
    list.push_back(number(std::move(state)));
    return;
  }
  if (left.empty())
    return;
  const Group &group = left.front();
  takeMixedHosts(state, left.drop_front(), submesh, hosts, list);
  int64_t each = submesh.racks > 1 ? submesh.hostsPerRack() : 1;
  std::vector<Rack> racks = group.racks();
  for (int64_t taken = each; taken <= hosts; taken += each) {
    auto rack = llvm::find_if(
        racks, [&](const Rack &rack) { return wholeHosts(state, group, rack) >= each; });
    if (rack == racks.end())
      return;
    takeWholeHosts(state, group, *rack, each);
    takeMixedHosts(state, left.drop_front(), submesh, hosts - taken, list);
  }
}
