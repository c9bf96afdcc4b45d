//===- Placement.cpp - stages on the hosts of a cluster -------------------===//

#include "compiler/Stage/Time/Placement.h"

#include "compiler/Stage/Search/FreeDevices.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include <map>
#include <numeric>

using namespace alpa;
using namespace alpa::stage;
using cost::Submesh;

/// Steps after which the best placement so far is taken.
static constexpr unsigned kMostSteps = 4000;
/// Steps to find out whether parts of hosts fit at all.
static constexpr unsigned kMostPackSteps = 100000;

namespace {

class Placer {
public:
  Placer(llvm::ArrayRef<int64_t> hostDevices, llvm::ArrayRef<Submesh> submeshes,
         llvm::ArrayRef<unsigned> hostKinds, llvm::ArrayRef<double> savings,
         llvm::ArrayRef<int64_t> hostRacks)
      : hostDevices(hostDevices), submeshes(submeshes),
        hostKinds(hostKinds.empty() ? std::vector<unsigned>(hostDevices.size(), 0)
                                    : hostKinds.vec()),
        savings(savings.vec()), bins(hostDevices.size()), binOf(submeshes.size(), kNone),
        wholeHosts(submeshes.size()) {
    if (savings.empty())
      this->savings.assign(submeshes.size(), 1);
    for (auto [host, bin] : llvm::enumerate(bins)) {
      int64_t rack = hostRacks.empty() ? 0 : hostRacks[host];
      bin = {hostDevices[host], int(this->hostKinds[host]), 0, rack};
      numRacks = std::max(numRacks, rack + 1);
    }
    for (unsigned i = 0; i < submeshes.size(); ++i)
      (isPart(submeshes[i]) ? parts : blocks).push_back(i);
    // Larger ones first; those that may be anywhere last.
    llvm::sort(blocks, [&](unsigned a, unsigned b) {
      const Submesh &left = submeshes[a], &right = submeshes[b];
      bool leftAny = left.kind == Submesh::anyKind, rightAny = right.kind == Submesh::anyKind;
      return std::make_tuple(leftAny, -left.numDevices(), a) <
             std::make_tuple(rightAny, -right.numDevices(), b);
    });
    rest.assign(parts.size() + 1, 0);
    for (size_t i = parts.size(); i-- > 1;)
      rest[i] = rest[i + 1] + (canShare(parts[i - 1], parts[i]) ? this->savings[parts[i - 1]] : 0);
  }

  std::optional<std::vector<std::vector<int64_t>>> run() {
    if (numRacks > 1)
      chooseRacks();
    if (!placeBlocks(0))
      return std::nullopt;
    return number();
  }

private:
  static constexpr unsigned kNone = ~0u;

  /// A host, before it is known which of its kind and rack.
  struct Bin {
    int64_t devices;
    int kind;
    int64_t used;
    int64_t rack;
    int64_t left() const { return devices - used; }
  };

  bool fits(const Submesh &submesh, const Bin &bin) const {
    return submesh.fitsKind(bin.kind) && submesh.devicesPerHost <= bin.left();
  }
  bool isPart(const Submesh &submesh) const {
    return submesh.hosts == 1 && llvm::any_of(bins, [&](const Bin &bin) {
             return submesh.fitsKind(bin.kind) && submesh.devicesPerHost < bin.devices;
           });
  }
  bool canShare(unsigned a, unsigned b) const {
    if (b != a + 1)
      return false;
    int64_t both = submeshes[a].devicesPerHost + submeshes[b].devicesPerHost;
    return llvm::any_of(bins, [&](const Bin &bin) {
      return submeshes[a].fitsKind(bin.kind) && submeshes[b].fitsKind(bin.kind) &&
             both <= bin.devices;
    });
  }

  /// Whole hosts; those of several kinds in every way until the rest fits.
  bool placeBlocks(size_t index) {
    if (index == blocks.size()) {
      if (!packs(0))
        return false;
      placeParts(0, 0);
      return parts.empty() || !bestBins.empty();
    }
    if (numRacks > 1)
      return takeRacks(index);
    // Hosts of one kind are alike: only how many of each are taken matters.
    const Submesh &submesh = submeshes[blocks[index]];
    llvm::MapVector<int, std::vector<unsigned>> ofKind;
    for (auto [b, bin] : llvm::enumerate(bins))
      if (bin.used == 0 && bin.devices == submesh.devicesPerHost && submesh.fitsKind(bin.kind))
        ofKind[bin.kind].push_back(unsigned(b));
    std::vector<std::vector<unsigned>> free;
    for (auto &[kind, found] : ofKind)
      free.push_back(std::move(found));
    return takeHosts(index, submesh.hosts, free);
  }

  /// Hosts of each rack that a block can have.
  std::vector<llvm::SmallVector<unsigned>> wholeInRacks(const Submesh &block) const {
    std::vector<llvm::SmallVector<unsigned>> free(numRacks);
    for (unsigned b = 0; b < bins.size(); ++b)
      if (bins[b].used == 0 && bins[b].devices == block.devicesPerHost &&
          block.fitsKind(bins[b].kind))
        free[bins[b].rack].push_back(b);
    return free;
  }

  /// Racks for the list in its order, one after the other: submeshes of several racks first,
  /// the others in the rack of the one before as long as it has devices enough, and then in
  /// the fullest that has.
  void chooseRacks() {
    std::vector<std::map<int, int64_t>> left(numRacks); // Of each kind.
    for (const Bin &bin : bins)
      left[bin.rack][bin.kind] += bin.devices;
    auto leftFor = [&](const Submesh &submesh, int64_t rack) {
      int64_t devices = 0;
      for (auto [kind, count] : left[rack])
        devices += submesh.fitsKind(kind) ? count : 0;
      return devices;
    };
    auto take = [&](const Submesh &submesh, int64_t rack, int64_t devices) {
      for (auto &[kind, count] : left[rack])
        if (submesh.fitsKind(kind)) {
          int64_t taken = std::min(devices, count);
          count -= taken;
          devices -= taken;
        }
    };
    rackOf.assign(submeshes.size(), kNone);
    for (const Submesh &submesh : submeshes) {
      int64_t each = submesh.hostsPerRack() * submesh.devicesPerHost;
      int64_t racks = submesh.racks > 1 ? submesh.racks : 0;
      for (int64_t rack = 0; rack < numRacks && racks > 0; ++rack)
        if (leftFor(submesh, rack) >= each) {
          take(submesh, rack, each);
          --racks;
        }
    }
    std::optional<int64_t> before;
    for (auto [index, submesh] : llvm::enumerate(submeshes)) {
      if (submesh.racks > 1)
        continue;
      if (!before || leftFor(submesh, *before) < submesh.numDevices()) {
        before = std::nullopt;
        for (int64_t rack = 0; rack < numRacks; ++rack)
          if (leftFor(submesh, rack) >= submesh.numDevices() &&
              (!before || leftFor(submesh, rack) < leftFor(submesh, *before)))
            before = rack;
      }
      if (!before)
        continue;
      rackOf[index] = unsigned(*before);
      take(submesh, *before, submesh.numDevices());
    }
  }

  /// A block within a rack in each that has room, the chosen one first and then the
  /// fullest; one of several racks in the fullest.
  bool takeRacks(size_t index) {
    unsigned block = blocks[index];
    const Submesh &submesh = submeshes[block];
    std::vector<llvm::SmallVector<unsigned>> free = wholeInRacks(submesh);
    int64_t each = submesh.hostsPerRack();
    std::vector<int64_t> racks;
    for (int64_t rack = 0; rack < numRacks; ++rack)
      if (int64_t(free[rack].size()) >= each ||
          (submesh.hosts < submesh.racks * each && !free[rack].empty()))
        racks.push_back(rack);
    llvm::sort(racks, [&](int64_t a, int64_t b) {
      return std::make_tuple(a != rackOf[block], free[a].size(), a) <
             std::make_tuple(b != rackOf[block], free[b].size(), b);
    });
    if (submesh.hosts < submesh.racks * each) // All there are, the last rack with fewer.
      llvm::sort(racks);
    for (size_t at = 0; at + submesh.racks <= racks.size(); ++at) {
      if (++blockSteps > kMostPackSteps)
        return false;
      int64_t left = submesh.hosts;
      auto chosen = llvm::ArrayRef(racks).slice(at, submesh.racks);
      for (int64_t rack : chosen)
        for (unsigned b : llvm::ArrayRef(free[rack]).take_front(std::min(each, left))) {
          bins[b].used = bins[b].devices;
          wholeHosts[block].push_back(b);
          --left;
        }
      if (left == 0 && placeBlocks(index + 1))
        return true;
      for (unsigned b : wholeHosts[block])
        bins[b].used = 0;
      wholeHosts[block].clear();
    }
    return false;
  }

  /// As many as possible of the first kind, then fewer.
  bool takeHosts(size_t index, int64_t hosts, llvm::ArrayRef<std::vector<unsigned>> free) {
    if (hosts == 0)
      return placeBlocks(index + 1);
    if (free.empty())
      return false;
    llvm::SmallVector<unsigned> &taken = wholeHosts[blocks[index]];
    auto take = [&](unsigned b) {
      bins[b].used = bins[b].devices;
      taken.push_back(b);
    };
    int64_t others = 0;
    for (const std::vector<unsigned> &kind : free.drop_front())
      others += int64_t(kind.size());
    int64_t count = std::min<int64_t>(hosts, int64_t(free.front().size()));
    for (int64_t i = 0; i < count; ++i)
      take(free.front()[i]);
    for (; hosts - count <= others; --count) {
      if (++blockSteps > kMostPackSteps)
        break;
      if (takeHosts(index, hosts - count, free.drop_front()))
        return true;
      if (count == 0)
        return false;
      bins[taken.pop_back_val()].used = 0;
    }
    for (; count > 0; --count)
      bins[taken.pop_back_val()].used = 0;
    return false;
  }

  /// Whether the parts from `first` on fit, largest first into the fullest host,
  /// which is exact where sizes divide one another; else by trying all hosts.
  bool packs(size_t first) {
    std::vector<unsigned> order(parts.begin() + first, parts.end());
    llvm::sort(order, [&](unsigned a, unsigned b) {
      return std::make_pair(-submeshes[a].devicesPerHost, a) <
             std::make_pair(-submeshes[b].devicesPerHost, b);
    });
    std::vector<Bin> copy = bins;
    unsigned steps = 0;
    return pack(order, copy, steps);
  }

  bool pack(llvm::ArrayRef<unsigned> order, std::vector<Bin> &copy, unsigned &steps) const {
    if (order.empty())
      return true;
    const Submesh &submesh = submeshes[order.front()];
    std::vector<unsigned> candidates = distinctBins(submesh, copy);
    for (unsigned b : candidates) {
      if (++steps > kMostPackSteps)
        return false;
      copy[b].used += submesh.devicesPerHost;
      if (pack(order.drop_front(), copy, steps))
        return true;
      copy[b].used -= submesh.devicesPerHost;
    }
    return false;
  }

  /// Hosts with room, the fullest first, one of those that are alike, or one in each rack.
  std::vector<unsigned> distinctBins(const Submesh &submesh, llvm::ArrayRef<Bin> list,
                                     bool inEachRack = false) const {
    std::vector<unsigned> found;
    for (unsigned b = 0; b < list.size(); ++b)
      if (fits(submesh, list[b]) && llvm::none_of(found, [&](unsigned other) {
            return list[other].kind == list[b].kind && list[other].devices == list[b].devices &&
                   list[other].used == list[b].used &&
                   (!inEachRack || list[other].rack == list[b].rack);
          }))
        found.push_back(b);
    llvm::sort(found, [&](unsigned a, unsigned b) {
      return std::make_pair(list[a].left(), a) < std::make_pair(list[b].left(), b);
    });
    return found;
  }

  /// Parts of hosts in the order of stages; keeps what saves most.
  void placeParts(size_t index, double saved) {
    if (index == parts.size()) {
      if (bestBins.empty() || saved > bestSaved) {
        bestSaved = saved;
        bestBins = binOf;
      }
      return;
    }
    if (!bestBins.empty() && (saved + rest[index ? index : 1] <= bestSaved || steps > kMostSteps))
      return;
    unsigned part = parts[index];
    const Submesh &submesh = submeshes[part];
    unsigned beside = part > 0 ? binOf[part - 1] : kNone;
    std::vector<unsigned> candidates;
    if (beside != kNone && fits(submesh, bins[beside]))
      candidates.push_back(beside);
    std::vector<unsigned> others = distinctBins(submesh, bins, /*inEachRack=*/true);
    // First where there is room for the next one, too.
    int64_t both = submesh.devicesPerHost;
    if (index + 1 < parts.size() && parts[index + 1] == part + 1)
      both += submeshes[part + 1].devicesPerHost;
    auto isElsewhere = [&](unsigned b) {
      return numRacks > 1 && rackOf[part] != kNone && bins[b].rack != rackOf[part];
    };
    llvm::sort(others, [&](unsigned a, unsigned b) {
      return std::make_tuple(isElsewhere(a), bins[a].left() < both, bins[a].left(), a) <
             std::make_tuple(isElsewhere(b), bins[b].left() < both, bins[b].left(), b);
    });
    for (unsigned b : others)
      if (b != beside)
        candidates.push_back(b);
    for (unsigned b : candidates) {
      ++steps;
      bins[b].used += submesh.devicesPerHost;
      binOf[part] = b;
      if (packs(index + 1))
        placeParts(index + 1, saved + (b == beside ? savings[part - 1] : 0));
      binOf[part] = kNone;
      bins[b].used -= submesh.devicesPerHost;
    }
  }

  /// Gives hosts their numbers in the order in which stages come to them.
  std::vector<std::vector<int64_t>> number() {
    std::vector<int64_t> firstDevice(hostDevices.size(), 0);
    for (size_t h = 1; h < hostDevices.size(); ++h)
      firstDevice[h] = firstDevice[h - 1] + hostDevices[h - 1];
    std::vector<unsigned> hostOf(bins.size(), kNone);
    // Of each kind of hosts in each rack, the next that is not given yet.
    std::map<std::tuple<int, int64_t, int64_t>, unsigned> next;
    auto give = [&](unsigned b) {
      if (hostOf[b] != kNone)
        return;
      const Bin &bin = bins[b];
      unsigned &h = next.try_emplace({bin.kind, bin.devices, bin.rack}, 0).first->second;
      while (int(hostKinds[h]) != bin.kind || hostDevices[h] != bin.devices ||
             bins[h].rack != bin.rack)
        ++h;
      hostOf[b] = h++;
    };
    for (unsigned i = 0; i < submeshes.size(); ++i) {
      for (unsigned b : wholeHosts[i])
        give(b);
      if (wholeHosts[i].empty())
        give(bestBins[i]);
    }
    std::vector<std::vector<int64_t>> devices(submeshes.size());
    auto take = [&](unsigned i, unsigned host, int64_t first) {
      for (int64_t d = 0; d < submeshes[i].devicesPerHost; ++d)
        devices[i].push_back(firstDevice[host] + first + d);
    };
    for (unsigned i : blocks) {
      llvm::SmallVector<unsigned> hosts;
      for (unsigned b : wholeHosts[i])
        hosts.push_back(hostOf[b]);
      llvm::sort(hosts);
      for (unsigned host : hosts)
        take(i, host, 0);
    }
    // The largest part of a host first: it begins at a multiple of its size.
    std::vector<unsigned> order = parts;
    llvm::sort(order, [&](unsigned a, unsigned b) {
      return std::make_pair(-submeshes[a].devicesPerHost, a) <
             std::make_pair(-submeshes[b].devicesPerHost, b);
    });
    std::vector<int64_t> used(bins.size(), 0);
    for (unsigned i : order) {
      unsigned host = hostOf[bestBins[i]];
      take(i, host, used[host]);
      used[host] += submeshes[i].devicesPerHost;
    }
    return devices;
  }

  llvm::ArrayRef<int64_t> hostDevices;
  llvm::ArrayRef<Submesh> submeshes;
  std::vector<unsigned> hostKinds;
  std::vector<double> savings;
  std::vector<unsigned> parts, blocks; // Of hosts, and of whole hosts.
  std::vector<double> rest;            // What the parts from one on can save at most.
  std::vector<Bin> bins;
  std::vector<unsigned> binOf, bestBins; // Of each part.
  std::vector<unsigned> rackOf;          // Of each submesh, where it should lie.
  std::vector<llvm::SmallVector<unsigned>> wholeHosts;
  int64_t numRacks = 1;
  double bestSaved = 0;
  unsigned steps = 0, blockSteps = 0;
};

} // namespace

std::optional<std::vector<std::vector<int64_t>>>
stage::placeSubmeshes(llvm::ArrayRef<int64_t> hostDevices, llvm::ArrayRef<Submesh> submeshes,
                      llvm::ArrayRef<unsigned> hostKinds, llvm::ArrayRef<double> savings,
                      llvm::ArrayRef<int64_t> hostRacks) {
  return Placer(hostDevices, submeshes, hostKinds, savings, hostRacks).run();
}

std::optional<std::vector<std::vector<int64_t>>>
stage::placeStages(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages,
                   llvm::ArrayRef<double> savings) {
  std::vector<Submesh> submeshes;
  for (const PlannedStage &stage : stages)
    submeshes.push_back(problem.submeshes[stage.submesh]);
  return placeSubmeshes(problem.hostDevices, submeshes, problem.hostKinds, savings,
                        problem.hostRacks);
}
