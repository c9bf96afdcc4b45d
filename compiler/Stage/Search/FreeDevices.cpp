//===- FreeDevices.cpp - which devices are still free ---------------------===//

#include "compiler/Stage/Search/FreeDevices.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::stage;
using cost::Submesh;

/// Beyond this many states of a kind's hosts, a host is chosen without trying all.
static constexpr double kMostStates = 5000;

std::vector<HostGroup> stage::groupHosts(llvm::ArrayRef<int64_t> hostDevices,
                                         llvm::ArrayRef<unsigned> kinds) {
  // Hosts that were given the same kind may still differ in size.
  std::map<std::pair<int, int64_t>, HostGroup> groups;
  for (auto [index, devices] : llvm::enumerate(hostDevices)) {
    int kind = kinds.empty() ? 0 : int(kinds[index]);
    HostGroup &group = groups[{kind, devices}];
    group = {devices, group.hosts + 1, kind};
  }
  std::vector<HostGroup> list;
  for (auto &[key, group] : groups)
    list.push_back(group);
  return list;
}

/// Whether the number of free devices says what else fits.
static bool isCounted(const HostGroup &group, llvm::ArrayRef<Submesh> submeshes) {
  llvm::SmallVector<int64_t> sizes;
  for (const Submesh &submesh : submeshes)
    if (submesh.hosts == 1 && submesh.devicesPerHost < group.devices &&
        submesh.fitsKind(group.kind))
      sizes.push_back(submesh.devicesPerHost);
  sizes.push_back(group.devices);
  llvm::sort(sizes);
  for (size_t i = 0; i + 1 < sizes.size(); ++i)
    if (sizes[i + 1] % sizes[i] != 0)
      return false;
  return true;
}

/// Ways in which hosts can be filled, up to a reordering.
static double numFillings(const HostGroup &group) {
  double count = 1;
  for (int64_t i = 1; i <= group.devices; ++i)
    count *= double(group.hosts + i) / double(i);
  return count;
}

DeviceStates::DeviceStates(llvm::ArrayRef<HostGroup> hostGroups, llvm::ArrayRef<Submesh> submeshes,
                           bool useAll)
    : useAll(useAll), submeshes(submeshes.begin(), submeshes.end()) {
  State all;
  for (const HostGroup &hosts : hostGroups) {
    Group &group = groups.emplace_back();
    group.hosts = hosts;
    group.counted = isCounted(hosts, submeshes);
    group.everyHost = numFillings(hosts) <= kMostStates;
    group.first = all.size();
    if (group.counted)
      all.push_back(int32_t(hosts.devices * hosts.hosts));
    else
      all.insert(all.end(), hosts.hosts, int32_t(hosts.devices));
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

unsigned DeviceStates::number(State state) {
  for (const Group &group : groups)
    if (!group.counted)
      std::sort(state.begin() + group.first, state.begin() + group.first + group.size());
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
  if (submesh.hosts > 1)
    takeHosts(state, fitting, submesh, submesh.hosts, list);
}

void DeviceStates::takePart(const State &state, const Group &group, int64_t devices,
                            std::vector<unsigned> &list) {
  std::optional<size_t> fullest;
  for (size_t i = group.first; i < group.first + group.size(); ++i) {
    if (state[i] < devices || (i > group.first && state[i] == state[i - 1]))
      continue;
    if (!group.everyHost && !group.counted) {
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

/// Whole hosts, so many of each kind in every way.
void DeviceStates::takeHosts(State state, llvm::ArrayRef<Group> left, const Submesh &submesh,
                             int64_t hosts, std::vector<unsigned> &list) {
  if (hosts == 0) {
    list.push_back(number(std::move(state)));
    return;
  }
  if (left.empty())
    return;
  const Group &group = left.front();
  takeHosts(state, left.drop_front(), submesh, hosts, list);
  for (int64_t taken = 1; taken <= hosts; ++taken) {
    if (group.counted) {
      if (state[group.first] < submesh.devicesPerHost)
        return;
      state[group.first] -= int32_t(submesh.devicesPerHost);
    } else {
      auto begin = state.begin() + group.first, end = begin + group.size();
      auto whole = std::find(begin, end, int32_t(group.hosts.devices));
      if (whole == end)
        return;
      *whole = 0;
    }
    takeHosts(state, left.drop_front(), submesh, hosts - taken, list);
  }
}
