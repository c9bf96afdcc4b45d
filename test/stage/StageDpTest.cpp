//===- StageDpTest.cpp - the stage DP against brute force -----------------===//
//
// Prints one line for each group of random problems and fails at the first plan
// that enumeration of all plans beats, or that does not tile or fit.
//
//===----------------------------------------------------------------------===//

#include "compiler/Stage/StageDp.h"
#include "compiler/Stage/DeviceStates.h"
#include "compiler/Stage/Placement.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

using namespace alpa;

namespace {

struct RandomProblem {
  StageDpProblem problem;
  std::map<std::tuple<unsigned, unsigned, unsigned>, std::vector<StageChoice>> table;
  std::map<std::tuple<unsigned, unsigned, unsigned>, SendSeconds> transfers;
};

/// Hosts, with those of one size being of one kind if `bySize`.
struct Hosts {
  std::vector<int64_t> devices;
  bool bySize = false;

  std::vector<unsigned> kinds() const {
    std::vector<unsigned> kinds;
    if (bySize) {
      std::set<int64_t> sizes(devices.begin(), devices.end());
      for (int64_t count : devices)
        kinds.push_back(unsigned(std::distance(sizes.begin(), sizes.find(count))));
    }
    return kinds;
  }
};

std::vector<Submesh> shapesFor(const Hosts &hosts) {
  std::vector<Submesh> shapes;
  for (const HostGroup &group : groupHosts(hosts.devices, hosts.kinds())) {
    for (int64_t d = 1; d < group.devices; ++d)
      if ((d & (d - 1)) == 0 || group.devices % d == 0)
        shapes.push_back({1, d, group.kind});
    for (int64_t n = 1; n <= group.hosts; ++n)
      shapes.push_back({n, group.devices, group.kind});
  }
  if (hosts.bySize)
    shapes.push_back({1, 1, Submesh::anyKind});
  return shapes;
}

void makeProblem(RandomProblem &r, std::mt19937 &rng, const Hosts &hosts) {
  auto uniform = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  StageDpProblem &p = r.problem;
  p.hostDevices = hosts.devices;
  p.hostKinds = hosts.kinds();
  p.submeshes = shapesFor(hosts);
  p.numLayers = uniform(1, 5);
  p.numMicroBatches = uniform(1, 6);
  p.schedule = &getSchedules()[uniform(0, getSchedules().size() - 1)];
  if (uniform(0, 3))
    for (size_t m = 0; m < p.submeshes.size(); ++m)
      p.memoryBytes.push_back(uniform(20, 120));
  for (unsigned lo = 0; lo < p.numLayers; ++lo)
    for (unsigned hi = lo + 1; hi <= p.numLayers; ++hi)
      for (unsigned m = 0; m < p.submeshes.size(); ++m)
        for (int c = uniform(0, 2); c >= 0; --c)
          r.table[{lo, hi, m}].push_back({double(uniform(1, 100)), uniform(1, 40), uniform(0, 20),
                                          uniform(0, 5), unsigned(c)});
  int slowest = uniform(0, 2) * 20;
  for (unsigned cut = 1; cut < p.numLayers; ++cut)
    for (unsigned a = 0; a < p.submeshes.size(); ++a)
      for (unsigned b = 0; b < p.submeshes.size(); ++b)
        r.transfers[{cut, a, b}] = {double(uniform(0, slowest)), double(uniform(0, slowest))};
  if (uniform(0, 2) == 0) {
    unsigned salt = uniform(0, 1000);
    p.allows = [salt](unsigned lo, unsigned hi, unsigned m) {
      return (lo * 7 + hi * 5 + m * 3 + salt) % 4 != 0;
    };
  }
  p.usesAllDevices = uniform(0, 3) == 0;
  p.choices = [&r](unsigned lo, unsigned hi, unsigned m) -> llvm::ArrayRef<StageChoice> {
    return r.table[{lo, hi, m}];
  };
  p.transferSeconds = [&r](unsigned cut, unsigned a, unsigned b) {
    return r.transfers[{cut, a, b}];
  };
}

/// Every plan there is; whether its submeshes fit is decided by placing them.
void enumerate(const StageDpProblem &p, std::vector<PlannedStage> &stages, double &best) {
  unsigned lo = stages.empty() ? 0 : stages.back().hi;
  int64_t total = std::accumulate(p.hostDevices.begin(), p.hostDevices.end(), int64_t(0)), used = 0;
  for (const PlannedStage &stage : stages)
    used += p.submeshes[stage.submesh].numDevices();
  if (used > total)
    return;
  if (lo == p.numLayers) {
    if ((!p.usesAllDevices || used == total) && stagePlanFits(p, stages) &&
        stagePlanSeconds(p, stages) < best && placeStages(p, stages))
      best = stagePlanSeconds(p, stages);
    return;
  }
  for (unsigned hi = lo + 1; hi <= p.numLayers; ++hi)
    for (unsigned m = 0; m < p.submeshes.size(); ++m)
      if (!p.allows || p.allows(lo, hi, m))
        for (const StageChoice &choice : p.choices(lo, hi, m)) {
          stages.push_back({lo, hi, m, choice});
          enumerate(p, stages, best);
          stages.pop_back();
        }
}

/// Devices of each submesh are its own, and lie as its shape says.
bool isPlacement(const StageDpProblem &p, llvm::ArrayRef<PlannedStage> stages,
                 const std::vector<std::vector<int64_t>> &placed) {
  std::vector<unsigned> hostOf;
  for (unsigned h = 0; h < p.hostDevices.size(); ++h)
    hostOf.insert(hostOf.end(), p.hostDevices[h], h);
  std::set<int64_t> all;
  size_t count = 0;
  for (auto [stage, devices] : llvm::zip_equal(stages, placed)) {
    const Submesh &submesh = p.submeshes[stage.submesh];
    all.insert(devices.begin(), devices.end());
    count += devices.size();
    std::map<unsigned, int64_t> onHost;
    for (int64_t device : devices)
      ++onHost[hostOf[device]];
    if (int64_t(onHost.size()) != submesh.hosts)
      return false;
    for (auto [host, number] : onHost)
      if (number != submesh.devicesPerHost ||
          !submesh.fitsKind(p.hostKinds.empty() ? 0 : p.hostKinds[host]))
        return false;
  }
  return all.size() == count;
}

bool check(const StageDpProblem &p, double epsilon) {
  StagePlan plan = solveStageDp(p);
  double best = std::numeric_limits<double>::infinity();
  std::vector<PlannedStage> stages;
  enumerate(p, stages, best);
  if (std::isinf(best))
    return plan.stages.empty();
  if (plan.stages.empty() || plan.seconds > best * (1 + 1e-9) + (p.numMicroBatches - 1) * epsilon)
    return false;
  auto placed = placeStages(p, plan.stages);
  return placed && stagePlanFits(p, plan.stages) && isPlacement(p, plan.stages, *placed) &&
         std::abs(stagePlanSeconds(p, plan.stages) - plan.seconds) < 1e-9;
}

bool checkGroup(const char *name, const Hosts &hosts, double epsilon, int rounds) {
  std::mt19937 rng(7);
  for (int round = 0; round < rounds; ++round) {
    RandomProblem r;
    makeProblem(r, rng, hosts);
    r.problem.epsilonSeconds = epsilon;
    if (!check(r.problem, epsilon)) {
      llvm::outs() << name << ": round " << round << " differs from brute force\n";
      return false;
    }
  }
  llvm::outs() << name << ": ok\n";
  return true;
}

} // namespace

int main() {
  bool ok =
      checkGroup("one host of 4", {{4}}, 0, 150) && checkGroup("2 hosts of 2", {{2, 2}}, 0, 150) &&
      checkGroup("2 hosts of 3", {{3, 3}}, 0, 60) && checkGroup("one host of 6", {{6}}, 0, 60) &&
      checkGroup("hosts of 1 and 3", {{1, 3}, true}, 0, 100) &&
      checkGroup("hosts of 2, 2 and 1", {{2, 2, 1}, true}, 0, 60) &&
      checkGroup("one host of 4, epsilon", {{4}}, 5, 150);
  return ok ? 0 : 1;
}
