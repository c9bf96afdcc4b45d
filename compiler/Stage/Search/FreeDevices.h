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
  std::vector<int64_t> inRacks = {}; // Hosts in each rack that has such, most first.
};

/// Hosts by kind, kinds in rising order; `kinds` may be empty for all of kind 0, and `racks`
/// for one rack.
std::vector<HostGroup> groupHosts(llvm::ArrayRef<int64_t> hostDevices,
                                  llvm::ArrayRef<unsigned> kinds,
                                  llvm::ArrayRef<int64_t> racks = {});

/// What can be free while submeshes are taken one after the other, as a graph
/// whose nodes are made when they are reached. Where the sizes of submeshes on
/// parts of a kind's hosts divide one another and the host's size, the number of
/// free devices says all: sizes that add up to no more always find room (theorem 1
/// of the Alpa paper). The same holds of racks and the submeshes of whole hosts within
/// them. Where it does not, kinds track each rack's free devices, or each host's, up to a
/// reordering; with too many of them a submesh goes to the fullest rack or host that has
/// room, without trying others.
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

  /// Numbers of a state that say what is free of so many hosts.
  struct Rack {
    size_t first = 0, size = 1;
    int64_t hosts = 0;
  };
  struct Group {
    HostGroup hosts;
    enum { Counted, ByRack, ByHost } tracked = Counted;
    bool triesAll = true; // Hosts, or racks.
    size_t first = 0;     // Of its numbers in a state.
    size_t size() const;
    /// Counted racks are one.
    std::vector<Rack> racks() const;
    void sort(State &state) const;
  };

  DeviceStates() = default;
  unsigned number(State state);
  void addAfter(const State &state, unsigned submesh, std::vector<unsigned> &next);
  void takePart(const State &state, const Group &group, int64_t devices,
                std::vector<unsigned> &next);
  bool takesAll(State state, llvm::ArrayRef<Group> fitting, const cost::Submesh &submesh,
                std::vector<unsigned> &next);
  void takeHosts(const State &state, const Group &group, const cost::Submesh &submesh,
                 std::vector<unsigned> &next);
  void takeMixedHosts(State state, llvm::ArrayRef<Group> left, const cost::Submesh &submesh,
                      int64_t hosts, std::vector<unsigned> &next);
  static int64_t wholeHosts(const State &state, const Group &group, const Rack &rack);
  static void takeWholeHosts(State &state, const Group &group, const Rack &rack, int64_t hosts);

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
