//===- StageDpBench.cpp - how long the stage DP takes ---------------------===//
//
// Usage: stage-dp-bench LAYERS HOSTS DEVICES_PER_HOST MICRO_BATCHES SCHEDULE
//                       [MEMORY_GIB] [EPSILON]
//
// A transformer with made-up costs; prints one JSON object.
//
//===----------------------------------------------------------------------===//

#include "compiler/Stage/Search/StageDp.h"

#include "llvm/Support/Format.h"
#include "llvm/Support/raw_ostream.h"
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <map>

using namespace alpa;
using namespace alpa::stage;

namespace {

/// Devices of 100 TFLOP/s reachable. Layers differ a little, the last one (with
/// the vocabulary) a lot; more devices are less efficient, across hosts more so.
/// For each stage there is a fast way, and a slower one that needs less memory.
struct Model {
  unsigned layers;
  double flops(unsigned layer) const {
    return 4e12 * (1 + 0.03 * double(layer * 7 % 5)) * (layer + 1 == layers ? 1.6 : 1.0);
  }
  double parameters(unsigned layer) const { return 4e8 * (layer == 0 ? 1.5 : 1.0); }

  std::vector<StageChoice> choices(unsigned lo, unsigned hi, const cost::Submesh &submesh) const {
    double work = 0, weights = 0;
    for (unsigned layer = lo; layer < hi; ++layer) {
      work += flops(layer);
      weights += parameters(layer);
    }
    double devices = double(submesh.numDevices());
    double inside = 0.02 * std::log2(double(submesh.devicesPerHost));
    double between = 0.15 * std::log2(double(submesh.hosts));
    double seconds = work / (devices * 1e14) * (1 + inside + between) + 2e-4;
    auto bytes = [](double count) { return int64_t(count); };
    double activations = 2e9 * (hi - lo);
    return {
        {seconds, bytes(weights * 16 / std::sqrt(devices)), bytes(activations / devices),
         bytes(1e9), 0},
        {seconds * 1.1, bytes(weights * 16 / devices), bytes(activations / devices), bytes(1e9), 1},
        {seconds * 1.33, bytes(weights * 16 / devices), bytes(activations / devices / 10),
         bytes(1.2e9), 2}};
  }
};

} // namespace

int main(int argc, char **argv) {
  if (argc < 6) {
    llvm::errs() << "usage: stage-dp-bench LAYERS HOSTS DEVICES_PER_HOST MICRO_BATCHES SCHEDULE "
                    "[MEMORY_GIB] [EPSILON]\n";
    return 2;
  }
  Model model{unsigned(std::atoi(argv[1]))};
  cost::Cluster cluster;
  cluster.hosts.assign(std::atoi(argv[2]), cost::Host{0, std::atoi(argv[3])});
  StageDpProblem problem;
  problem.numLayers = model.layers;
  problem.numMicroBatches = std::atoi(argv[4]);
  problem.schedule = schedule::findSchedule(argv[5]);
  if (!problem.schedule) {
    llvm::errs() << "unknown schedule, expected " << schedule::scheduleNames() << "\n";
    return 2;
  }
  problem.submeshes = cost::submeshShapes(cluster);
  for (const cost::Host &host : cluster.hosts)
    problem.hostDevices.push_back(host.devices);
  double memory = argc > 6 ? std::atof(argv[6]) : 40;
  problem.memoryBytes.assign(problem.submeshes.size(), int64_t(memory * 0x1p30));
  problem.epsilonPart = argc > 7 ? std::atof(argv[7]) : 0.0025;

  std::map<std::tuple<unsigned, unsigned, unsigned>, std::vector<StageChoice>> table;
  for (unsigned lo = 0; lo < model.layers; ++lo)
    for (unsigned hi = lo + 1; hi <= model.layers; ++hi)
      for (unsigned m = 0; m < problem.submeshes.size(); ++m)
        table[{lo, hi, m}] = model.choices(lo, hi, problem.submeshes[m]);
  problem.choices = [&](unsigned lo, unsigned hi, unsigned m) -> llvm::ArrayRef<StageChoice> {
    return table.find({lo, hi, m})->second;
  };
  problem.transferSeconds = [&](unsigned, unsigned from, unsigned to) {
    const cost::Submesh &a = problem.submeshes[from], &b = problem.submeshes[to];
    bool oneHost = a.hosts == 1 && b.hosts == 1 &&
                   a.devicesPerHost + b.devicesPerHost <= problem.hostDevices.front();
    double bandwidth = oneHost ? 2e11 * double(std::min(a.devicesPerHost, b.devicesPerHost))
                               : 2.5e10 * double(std::min(a.hosts, b.hosts));
    return SendSeconds{1e-5 + 5e7 / bandwidth, 1e-5 + 5e7 / bandwidth};
  };

  std::clock_t begin = std::clock(); // Other processes do not matter.
  std::vector<StagePlan> seen;
  StagePlan plan = solveStageDp(problem, &seen);
  double seconds = double(std::clock() - begin) / CLOCKS_PER_SEC;
  llvm::outs() << llvm::format(
      "{\"layers\": %u, \"devices\": %lld, \"submeshes\": %zu, "
      "\"cpu_seconds\": %.4f, \"plans_seen\": %zu, \"stages\": %zu, "
      "\"step_seconds\": %.6f}\n",
      model.layers, (long long)(cluster.hosts.size()) * cluster.hosts.front().devices,
      problem.submeshes.size(), seconds, seen.size(), plan.stages.size(), plan.seconds);
  return plan.stages.empty() ? 1 : 0;
}
