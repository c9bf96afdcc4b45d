//===- FreeDevices.h - which devices are still free -------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_FREEDEVICES_H
#define ALPA_COMPILER_STAGE_SEARCH_FREEDEVICES_H

#include "compiler/CostModel/Cluster.h"

#include <map>
#include <vector>

namespace alpa::stage {

/// Hosts of one kind as the search for stages sees them.
struct HostGroup {
  int64_t devices = 0; // Of each host.
  int64_t hosts = 0;
  int kind = 0;
};

/// Hosts by kind, kinds in rising order; `kinds` may be empty for all of kind 0.
std::vector<HostGroup> groupHosts(llvm::ArrayRef<int64_t> hostDevices,
                                  llvm::ArrayRef<unsigned> kinds);

/// What can be free while submeshes are taken one after the other, as a graph
/// whose nodes are made when they are reached. Where the sizes of submeshes on
/// parts of a kind's hosts divide one another and the host's size, the number of
/// free devices says all: sizes that add up to no more always find room (theorem 1
/// of the Alpa paper). Other kinds track each host's free devices, up to a
/// reordering of hosts; with too many of them a submesh goes to the fullest host
/// that has room, without trying others.
class DeviceStates {
public:
  /// With `useAll` no device is free in the end.
  DeviceStates(llvm::ArrayRef<HostGroup> groups, llvm::ArrayRef<cost::Submesh> submeshes,
               bool useAll);
  /// Stages given by hand: the submeshes are taken in their order, the last first,
  /// and all of them are.
  static DeviceStates manual(size_t numStages);

  unsigned start() const { return 0; }
  bool isEnd(unsigned state) const {
    return byHand ? states[state].front() == 0 : !useAll || free[state] == 0;
  }
  /// States after taking the submesh; several when hosts differ in what is left.
  /// Valid until the next call.
  llvm::ArrayRef<unsigned> after(unsigned state, unsigned submesh);
  int64_t freeDevices(unsigned state) const { return free[state]; }
  /// Whether what can go on from `b` can go on from `a`.
  bool covers(unsigned a, unsigned b) const;

private:
  using State = std::vector<int32_t>; // Per counted kind, or per host of a tracked one.

  struct Group {
    HostGroup hosts;
    bool counted = true, everyHost = true;
    size_t first = 0; // Of its numbers in a state.
    size_t size() const { return counted ? 1 : size_t(hosts.hosts); }
  };

  DeviceStates() = default;
  unsigned number(State state);
  void addAfter(const State &state, unsigned submesh, std::vector<unsigned> &next);
  void takePart(const State &state, const Group &group, int64_t devices,
                std::vector<unsigned> &next);
  void takeHosts(State state, llvm::ArrayRef<Group> left, const cost::Submesh &submesh,
                 int64_t hosts, std::vector<unsigned> &next);

  bool byHand = false, useAll = false;
  std::vector<Group> groups;
  std::vector<cost::Submesh> submeshes;
  std::map<State, unsigned> numbers;
  std::vector<State> states;
  std::vector<int64_t> free;
  std::vector<std::vector<unsigned>> next; // By state and submesh.
  std::vector<bool> known;
};

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_FREEDEVICES_H
