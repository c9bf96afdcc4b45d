//===- StageDpTest.cpp - the stage DP against brute force -----------------===//
//
// Prints one line for each group of random problems and fails at the first plan
// that enumeration of all plans beats, or that does not tile or fit.
//
//===----------------------------------------------------------------------===//

#include "compiler/Stage/StageDp.h"

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

std::vector<Submesh> shapesFor(const std::vector<int64_t> &hosts) {
  std::vector<Submesh> shapes;
  int64_t most = *std::max_element(hosts.begin(), hosts.end());
  for (int64_t d = 1; d < most; d *= 2)
    shapes.push_back({1, d});
  shapes.push_back({1, most});
  for (int64_t n = 2; n <= int64_t(hosts.size()); ++n)
    shapes.push_back({n, most});
  return shapes;
}

void makeProblem(RandomProblem &r, std::mt19937 &rng, std::vector<int64_t> hosts) {
  auto uniform = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  StageDpProblem &p = r.problem;
  p.hostDevices = std::move(hosts);
  p.submeshes = shapesFor(p.hostDevices);
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
  for (unsigned cut = 1; cut < p.numLayers; ++cut)
    for (unsigned a = 0; a < p.submeshes.size(); ++a)
      for (unsigned b = 0; b < p.submeshes.size(); ++b)
        // Round trips bind in other schedules.
        if (p.schedule->name == "gpipe")
          r.transfers[{cut, a, b}] = {double(uniform(0, 30)), double(uniform(0, 30))};
  p.choices = [&r](unsigned lo, unsigned hi, unsigned m) -> llvm::ArrayRef<StageChoice> {
    return r.table[{lo, hi, m}];
  };
  p.transferSeconds = [&r](unsigned cut, unsigned a, unsigned b) {
    return r.transfers[{cut, a, b}];
  };
}

/// Every plan there is; tiling is decided by placing the submeshes.
void enumerate(const StageDpProblem &p, std::vector<PlannedStage> &stages, double &best) {
  unsigned lo = stages.empty() ? 0 : stages.back().hi;
  int64_t total = std::accumulate(p.hostDevices.begin(), p.hostDevices.end(), int64_t(0)), used = 0;
  std::vector<Submesh> shapes;
  for (const PlannedStage &stage : stages) {
    shapes.push_back(p.submeshes[stage.submesh]);
    used += shapes.back().numDevices();
  }
  if (used > total)
    return;
  if (lo == p.numLayers) {
    if ((p.manual || used == total) && placeSubmeshes(p.hostDevices, shapes) &&
        stagePlanFits(p, stages))
      best = std::min(best, stagePlanSeconds(p, stages));
    return;
  }
  for (unsigned hi = lo + 1; hi <= p.numLayers; ++hi)
    for (unsigned m = 0; m < p.submeshes.size(); ++m)
      for (const StageChoice &choice : p.choices(lo, hi, m)) {
        stages.push_back({lo, hi, m, choice});
        enumerate(p, stages, best);
        stages.pop_back();
      }
}

bool check(const StageDpProblem &p, double epsilon) {
  StagePlan plan = solveStageDp(p);
  double best = std::numeric_limits<double>::infinity();
  std::vector<PlannedStage> stages;
  enumerate(p, stages, best);
  if (std::isinf(best))
    return plan.stages.empty();
  if (plan.stages.empty() || plan.seconds > best + (p.numMicroBatches - 1) * epsilon + 1e-9)
    return false;
  std::vector<Submesh> shapes;
  for (const PlannedStage &stage : plan.stages)
    shapes.push_back(p.submeshes[stage.submesh]);
  auto placed = placeSubmeshes(p.hostDevices, shapes);
  if (!placed || !stagePlanFits(p, plan.stages))
    return false;
  std::set<int64_t> devices;
  size_t count = 0;
  for (auto &list : *placed) {
    devices.insert(list.begin(), list.end());
    count += list.size();
  }
  return devices.size() == count &&
         std::abs(stagePlanSeconds(p, plan.stages) - plan.seconds) < 1e-9;
}

bool checkGroup(const char *name, std::vector<int64_t> hosts, double epsilon, int rounds) {
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
      checkGroup("one host of 4", {4}, 0, 150) && checkGroup("2 hosts of 2", {2, 2}, 0, 150) &&
      checkGroup("2 hosts of 3", {3, 3}, 0, 60) && checkGroup("hosts of 1 and 3", {1, 3}, 0, 100) &&
      checkGroup("one host of 4, epsilon", {4}, 5, 150);
  return ok ? 0 : 1;
}
