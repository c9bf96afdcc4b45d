//===- StageDpTest.cpp - the stage DP against brute force -----------------===//
//
// Prints one line for each group of random problems and fails at the first plan
// that enumeration of all plans beats, or that does not tile or fit.
//
//===----------------------------------------------------------------------===//

#include "compiler/Stage/Search/StageDp.h"
#include "compiler/Stage/Search/FreeDevices.h"
#include "compiler/Stage/Search/StageInfeasibility.h"
#include "compiler/Stage/Time/Placement.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

using namespace alpa;
using namespace alpa::stage;
using cost::Submesh;

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
  int64_t perRack = 0; // 0 for one rack.

  std::vector<int64_t> racks() const {
    std::vector<int64_t> racks;
    for (size_t host = 0; perRack > 0 && host < devices.size(); ++host)
      racks.push_back(int64_t(host) / perRack);
    return racks;
  }
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
  if (hosts.perRack > 0) {
    cost::Cluster cluster;
    for (int64_t devices : hosts.devices)
      cluster.hosts.push_back({0, devices});
    cluster.racks = cost::Racks{hosts.perRack, 1, {}};
    return cost::submeshShapes(cluster);
  }
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

/// A part of the seconds is latency.
SendSeconds sendOf(double forth, double back, double latencyPart) {
  return {forth, back, forth * latencyPart, back * latencyPart};
}

void makeProblem(RandomProblem &r, std::mt19937 &rng, const Hosts &hosts) {
  auto uniform = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  StageDpProblem &p = r.problem;
  p.hostDevices = hosts.devices;
  p.hostKinds = hosts.kinds();
  p.hostRacks = hosts.racks();
  p.submeshes = shapesFor(hosts);
  p.numLayers = uniform(1, 5);
  p.numMicroBatches = uniform(1, 6);
  p.schedule = &schedule::getSchedules()[uniform(0, 2)];
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
        r.transfers[{cut, a, b}] =
            sendOf(double(uniform(0, slowest)), double(uniform(0, slowest)), uniform(0, 2) * 0.5);
  if (uniform(0, 2) == 0) {
    unsigned salt = uniform(0, 1000);
    p.allows = [salt](unsigned lo, unsigned hi, unsigned m) {
      return (lo * 7 + hi * 5 + m * 3 + salt) % 4 != 0;
    };
  }
  p.usesAllDevices = uniform(0, 3) == 0;
  if (!p.usesAllDevices && uniform(0, 2) == 0)
    p.mostDevices = uniform(1, int(p.numDevices()));
  if (uniform(0, 2) == 0)
    p.mostStages = unsigned(uniform(1, 4));
  if (uniform(0, 4) == 0)
    for (unsigned lo = 0, hi = 0; hi < p.numLayers; lo = hi) {
      hi = unsigned(uniform(int(lo) + 1, int(p.numLayers)));
      p.layerRanges.push_back({lo, hi});
    }
  if (uniform(0, 2) == 0)
    p.weightPart = [](unsigned lo, unsigned hi, unsigned m) { return (lo + hi + m) % 5 * 0.1; };
  p.leastHeld = uniform(0, 3) ? 1 : 3;
  p.choices = [&r](unsigned lo, unsigned hi, unsigned m) -> llvm::ArrayRef<StageChoice> {
    return r.table[{lo, hi, m}];
  };
  p.transferSeconds = [&r](unsigned cut, unsigned a, unsigned b) {
    return r.transfers[{cut, a, b}];
  };
}

/// Calls `visit` with every plan in `stages`, whose submeshes may not fit side by side.
void forEachPlan(const StageDpProblem &p, std::vector<PlannedStage> &stages,
                 const std::function<void()> &visit) {
  unsigned lo = stages.empty() ? 0 : stages.back().hi;
  int64_t left = std::accumulate(p.hostDevices.begin(), p.hostDevices.end(), int64_t(0));
  for (const PlannedStage &stage : stages)
    left -= p.submeshes[stage.submesh].numDevices();
  if (left < 0)
    return;
  if (lo == p.numLayers) {
    if ((!p.usesAllDevices || left == 0) && left >= p.numReserved() &&
        stages.size() <= p.mostStages && stagePlanFits(p, stages))
      visit();
    return;
  }
  for (unsigned hi = lo + 1; hi <= p.numLayers; ++hi)
    for (unsigned m = 0; m < p.submeshes.size(); ++m)
      if (p.mayBeStage(lo, hi, m))
        for (const StageChoice &choice : p.choices(lo, hi, m)) {
          stages.push_back({lo, hi, m, choice});
          forEachPlan(p, stages, visit);
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
    std::map<unsigned, int64_t> onHost, inRack;
    for (int64_t device : devices)
      ++onHost[hostOf[device]];
    for (auto [host, number] : onHost)
      ++inRack[p.hostRacks.empty() ? 0 : unsigned(p.hostRacks[host])];
    if (int64_t(onHost.size()) != submesh.hosts || int64_t(inRack.size()) != submesh.racks)
      return false;
    for (auto [rack, number] : inRack)
      if (number != submesh.hostsPerRack() && rack != inRack.rbegin()->first)
        return false;
    for (auto [host, number] : onHost)
      if (number != submesh.devicesPerHost ||
          !submesh.fitsKind(p.hostKinds.empty() ? 0 : p.hostKinds[host]))
        return false;
  }
  return all.size() == count;
}

/// The least factor on memory with which some plan fits; infinity if none does.
double leastFactor(const StageDpProblem &p) {
  StageDpProblem unbounded = p;
  unbounded.memoryBytes.assign(p.submeshes.size(), int64_t(1) << 40);
  double least = std::numeric_limits<double>::infinity();
  std::vector<PlannedStage> stages;
  forEachPlan(unbounded, stages, [&] {
    double most = 0;
    for (size_t i = 0; i < stages.size(); ++i)
      most = std::max(most, double(stages[i].choice.peakBytes(p.held(stages.size() - i))) /
                                double(p.memoryOf(stages[i].submesh)));
    if (most < least && placeStages(p, stages))
      least = most;
  });
  return least;
}

bool checkInfeasibility(const StageDpProblem &p) {
  StageInfeasibility infeasibility = findStageInfeasibility(p);
  double least = leastFactor(p);
  if (std::isinf(least))
    return infeasibility.plan.stages.empty();
  return !infeasibility.plan.stages.empty() && infeasibility.factor >= least * (1 - 1e-9) &&
         infeasibility.factor <= least * 1.0011 &&
         infeasibility.stage < infeasibility.plan.stages.size() &&
         placeStages(p, infeasibility.plan.stages) &&
         (!infeasibility.layer || infeasibility.layerFactor > 1);
}

bool check(const StageDpProblem &p, double epsilon) {
  StagePlan plan = solveStageDp(p);
  double best = std::numeric_limits<double>::infinity();
  std::vector<PlannedStage> stages;
  forEachPlan(p, stages, [&] {
    if (double seconds = stagePlanSeconds(p, stages); seconds < best && placeStages(p, stages))
      best = seconds;
  });
  if (std::isinf(best))
    return plan.stages.empty() && (p.memoryBytes.empty() || checkInfeasibility(p));
  if (plan.stages.empty() || plan.seconds > best * (1 + 1e-9) + (p.numMicroBatches - 1) * epsilon)
    return false;
  auto placed = placeStages(p, plan.stages);
  auto mayBe = [&](const PlannedStage &stage) {
    return p.mayBeStage(stage.lo, stage.hi, stage.submesh);
  };
  return placed && plan.stages.size() <= p.mostStages && llvm::all_of(plan.stages, mayBe) &&
         stagePlanFits(p, plan.stages) && isPlacement(p, plan.stages, *placed) &&
         std::abs(stagePlanSeconds(p, plan.stages) - plan.seconds) < 1e-9;
}

/// Many stages, each of which waits for sends or has just the memory that it needs:
/// labels differ in little else than stages and waiting.
void makeTight(RandomProblem &r, std::mt19937 &rng) {
  auto uniform = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  StageDpProblem &p = r.problem;
  p.hostDevices = {6};
  p.submeshes = {{1, 1}, {1, 2}};
  p.numLayers = 6;
  p.numMicroBatches = uniform(3, 30);
  p.schedule = schedule::findSchedule(uniform(0, 2) ? "1f1b" : "1f1b-overlap");
  p.memoryBytes.assign(2, 60);
  if (uniform(0, 1))
    p.mostStages = unsigned(uniform(2, 5));
  for (unsigned lo = 0; lo < p.numLayers; ++lo)
    for (unsigned hi = lo + 1; hi <= p.numLayers; ++hi)
      for (unsigned m = 0; m < p.submeshes.size(); ++m)
        for (unsigned c = 0; c < 2; ++c)
          r.table[{lo, hi, m}].push_back(
              {double((hi - lo) * uniform(5, 15)), uniform(5, 20), uniform(2, 25), 0, c});
  if (uniform(0, 1))
    p.weightPart = [](unsigned lo, unsigned hi, unsigned) { return lo == 0 ? 0 : 0.6 / (2 + hi); };
  int slowest = uniform(0, 1) * 6;
  for (unsigned cut = 1; cut < p.numLayers; ++cut)
    for (unsigned a = 0; a < 2; ++a)
      for (unsigned b = 0; b < 2; ++b)
        r.transfers[{cut, a, b}] =
            sendOf(double(uniform(0, slowest)), double(uniform(0, slowest)), uniform(0, 1) * 0.8);
  p.choices = [&r](unsigned lo, unsigned hi, unsigned m) -> llvm::ArrayRef<StageChoice> {
    return r.table[{lo, hi, m}];
  };
  p.transferSeconds = [&r](unsigned cut, unsigned a, unsigned b) {
    return r.transfers[{cut, a, b}];
  };
}

bool checkTight(int rounds) {
  std::mt19937 rng(23);
  for (int round = 0; round < rounds; ++round) {
    RandomProblem r;
    makeTight(r, rng);
    if (!check(r.problem, 0)) {
      llvm::outs() << "tight: round " << round << " differs from brute force\n";
      return false;
    }
  }
  llvm::outs() << "tight: ok\n";
  return true;
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

/// Stages of a model: more devices are faster and hold less.
void makeModel(RandomProblem &r, std::mt19937 &rng, const Hosts &hosts, unsigned layers) {
  auto uniform = [&](double lo, double hi) {
    return std::uniform_real_distribution<double>(lo, hi)(rng);
  };
  StageDpProblem &p = r.problem;
  p.hostDevices = hosts.devices;
  p.hostKinds = hosts.kinds();
  p.hostRacks = hosts.racks();
  p.submeshes = shapesFor(hosts);
  p.numLayers = layers;
  p.numMicroBatches = int64_t(uniform(2, 64));
  p.schedule = &schedule::getSchedules()[size_t(uniform(0, 2.99))];
  p.memoryBytes.assign(p.submeshes.size(), int64_t(uniform(2000, 20000)));
  std::vector<double> work(layers + 1, 0);
  for (unsigned layer = 0; layer < layers; ++layer)
    work[layer + 1] = work[layer] + uniform(1, 3);
  for (unsigned lo = 0; lo < layers; ++lo)
    for (unsigned hi = lo + 1; hi <= layers; ++hi)
      for (unsigned m = 0; m < p.submeshes.size(); ++m) {
        double devices = double(p.submeshes[m].numDevices());
        double speed = p.submeshes[m].kind == 1 ? 0.5 : 1;
        double seconds = (work[hi] - work[lo]) / std::pow(devices, 0.9) / speed;
        auto bytes = [&](double part) { return int64_t(1000 * part * (hi - lo) / devices); };
        r.table[{lo, hi, m}] = {{seconds, bytes(8), bytes(1), 100, 0},
                                {seconds * 1.3, bytes(8), bytes(0.2), 100, 1}};
      }
  p.choices = [&r](unsigned lo, unsigned hi, unsigned m) -> llvm::ArrayRef<StageChoice> {
    return r.table[{lo, hi, m}];
  };
  double slow = uniform(0, 0.5);
  p.transferSeconds = [slow](unsigned cut, unsigned a, unsigned b) {
    return SendSeconds{slow * ((cut + a) % 3), slow * ((cut + b) % 2)};
  };
}

bool isValid(const StageDpProblem &p, const StagePlan &plan) {
  unsigned lo = 0;
  for (const PlannedStage &stage : plan.stages) {
    if (stage.lo != lo || stage.hi <= lo || (p.allows && !p.allows(lo, stage.hi, stage.submesh)))
      return false;
    lo = stage.hi;
  }
  auto placed = placeStages(p, plan.stages);
  return lo == p.numLayers && placed && isPlacement(p, plan.stages, *placed) &&
         stagePlanFits(p, plan.stages) &&
         std::abs(stagePlanSeconds(p, plan.stages) - plan.seconds) < 1e-9 * plan.seconds;
}

/// What holds for problems that are too large to enumerate.
bool checkModels(const char *name, const Hosts &hosts, unsigned layers, int rounds) {
  std::mt19937 rng(19);
  int found = 0;
  for (int round = 0; round < rounds; ++round) {
    RandomProblem r;
    makeModel(r, rng, hosts, layers);
    StageDpProblem &p = r.problem;
    auto fail = [&](const char *what) {
      llvm::outs() << name << ": round " << round << ": " << what << "\n";
      return false;
    };
    StagePlan plan = solveStageDp(p);
    found += !plan.stages.empty();
    if (!plan.stages.empty() && !isValid(p, plan))
      return fail("no valid plan");
    // Less that is ruled out is never worse; nor are more devices.
    StageDpProblem other = p;
    for (int64_t &bytes : other.memoryBytes)
      bytes *= 2;
    StagePlan roomy = solveStageDp(other);
    if (!(roomy.seconds <= plan.seconds * (1 + 1e-9)))
      return fail("more memory is slower");
    other = p;
    other.allows = [](unsigned lo, unsigned hi, unsigned m) { return (lo + hi + m) % 3 != 0; };
    StagePlan narrow = solveStageDp(other);
    if (!(plan.seconds <= narrow.seconds * (1 + 1e-9)))
      return fail("fewer stages are faster");
    if (!narrow.stages.empty() && !isValid(other, narrow))
      return fail("a stage that is ruled out");
    other = p;
    other.hostDevices.push_back(p.hostDevices.back());
    if (!other.hostKinds.empty())
      other.hostKinds.push_back(p.hostKinds.back());
    if (!other.hostRacks.empty())
      other.hostRacks.push_back(int64_t(p.hostRacks.size()) / hosts.perRack);
    if (!(solveStageDp(other).seconds <= plan.seconds * (1 + 1e-9)))
      return fail("a host more is slower");
    other = p;
    other.epsilonPart = 0.02;
    if (!(solveStageDp(other).seconds <= plan.seconds * 1.0201))
      return fail("outside of epsilon");
    other = p;
    other.usesAllDevices = true;
    StagePlan full = solveStageDp(other);
    if (!(plan.seconds <= full.seconds * (1 + 1e-9)))
      return fail("using all devices is faster");
  }
  if (found < rounds / 3)
    llvm::outs() << name << ": only " << found << " of " << rounds << " have a plan\n";
  else
    llvm::outs() << name << ": ok\n";
  return found >= rounds / 3;
}

} // namespace

int main() {
  bool ok =
      checkGroup("one host of 4", {{4}}, 0, 150) && checkGroup("2 hosts of 2", {{2, 2}}, 0, 150) &&
      checkGroup("2 hosts of 3", {{3, 3}}, 0, 60) && checkGroup("one host of 6", {{6}}, 0, 60) &&
      checkGroup("hosts of 1 and 3", {{1, 3}, true}, 0, 100) &&
      checkGroup("hosts of 2, 2 and 1", {{2, 2, 1}, true}, 0, 60) &&
      checkGroup("2 racks of 2 hosts of 1", {{1, 1, 1, 1}, false, 2}, 0, 100) &&
      checkGroup("2 racks of 3 hosts of 1", {{1, 1, 1, 1, 1, 1}, false, 3}, 0, 30) &&
      checkGroup("racks of 2 hosts and of 1", {{1, 1, 1}, false, 2}, 0, 100) &&
      checkGroup("2 racks of a host of 3", {{3, 3}, false, 1}, 0, 60) &&
      checkGroup("one host of 4, epsilon", {{4}}, 5, 150) && checkTight(300) &&
      checkModels("16 layers, 4 hosts of 8", {{8, 8, 8, 8}}, 16, 25) &&
      checkModels("12 layers, hosts of 8 and 4", {{8, 4, 8, 4}, true}, 12, 15) &&
      checkModels("12 layers, 3 hosts of 6", {{6, 6, 6}}, 12, 15) &&
      checkModels("16 layers, 3 racks of 2 hosts of 4", {{4, 4, 4, 4, 4, 4}, false, 2}, 16, 25) &&
      checkModels("12 layers, 3 racks of 3 hosts of 2", {{2, 2, 2, 2, 2, 2, 2, 2, 2}, false, 3}, 12,
                  15) &&
      checkModels("12 layers, 2 racks of 2 hosts of 6", {{6, 6, 6, 6}, false, 2}, 12, 10);
  return ok ? 0 : 1;
}
