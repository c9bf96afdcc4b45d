//===- RestBounds.cpp - what the layers that are left cost at least -------===//

#include "compiler/Stage/Search/RestBounds.h"

#include "llvm/ADT/STLExtras.h"
#include <numeric>

using namespace alpa;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Devices are counted in units of which there are at most so many.
static constexpr int64_t kMostUnits = 512;
/// Bounds for a period this much longer than the one asked for still do.
static constexpr double kLonger = 1.02;

RestBounds::RestBounds(const StageTable &table) : table(table) {
  const StageDpProblem &problem = table.problem;
  if (!problem.manual)
    numDevices =
        std::accumulate(problem.hostDevices.begin(), problem.hostDevices.end(), int64_t(0));
  unit = std::max<int64_t>(1, (numDevices + kMostUnits - 1) / kMostUnits);
  numUnits = numDevices / unit;
  // Memory rises with the stages after: few tables for few, more apart for many.
  for (unsigned after = 0; after < table.mostStages; after = after < 4 ? after + 1 : after * 5 / 4)
    if (buckets.empty() || table.held(after + 1) > table.held(buckets.back() + 1))
      buckets.push_back(after);
  tables.resize(buckets.size());

  // By bisection; devices are what a shorter period needs more of.
  if (!isFeasible(kInfinity)) {
    least = kInfinity;
    return;
  }
  std::vector<double> seconds;
  for (unsigned lo = 0; lo < table.numLayers; ++lo)
    for (unsigned hi = lo + 1; hi <= table.numLayers; ++hi)
      for (unsigned m = 0; m < table.numSubmeshes; ++m)
        if (const StageTable::Option *option = table.fastest(lo, hi, m, table.held(1)))
          seconds.push_back(option->seconds);
  llvm::sort(seconds);
  least = *std::partition_point(seconds.begin(), seconds.end(),
                                [&](double period) { return !isFeasible(period); });
}

/// Stages that are fast enough, those that begin earlier first.
template <typename Visit> void RestBounds::forEachStage(double bound, Visit visit) const {
  int64_t one = table.held(1);
  for (unsigned lo = 0; lo < table.numLayers; ++lo)
    for (unsigned hi = lo + 1; hi <= table.numLayers; ++hi)
      for (unsigned m = 0; m < table.numSubmeshes; ++m)
        if (const StageTable::Option *option = table.fastest(lo, hi, m, one))
          if (option->seconds <= bound)
            visit(lo, hi, table.devices(m));
}

static constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;

/// Whether there are devices enough.
bool RestBounds::isFeasible(double bound) const {
  std::vector<int64_t> before(table.numLayers + 1, kNever);
  before[0] = 0;
  forEachStage(bound, [&](unsigned lo, unsigned hi, int64_t devices) {
    before[hi] = std::min(before[hi], before[lo] + devices);
  });
  return before.back() <= numDevices;
}

void RestBounds::setPeriod(double bound) {
  if (bound <= period && period <= bound * kLonger)
    return;
  period = bound;
  for (Table &bounds : tables)
    bounds.clear();
  struct Stage {
    unsigned lo, hi;
    int64_t devices;
  };
  std::vector<Stage> stages;
  fewestBefore.assign(table.numLayers + 1, kNever);
  fewestBefore.front() = 0;
  forEachStage(period, [&](unsigned lo, unsigned hi, int64_t devices) {
    fewestBefore[hi] = std::min(fewestBefore[hi], fewestBefore[lo] + devices);
    stages.push_back({lo, hi, devices});
  });
  fewestAfter.assign(table.numLayers + 1, kNever);
  fewestAfter.back() = 0;
  for (const Stage &stage : llvm::reverse(stages))
    fewestAfter[stage.lo] = std::min(fewestAfter[stage.lo], fewestAfter[stage.hi] + stage.devices);
  leastSend.assign(table.numLayers + 1, 0);
  if (!table.hasSends())
    return;
  for (unsigned cut = 1; cut < table.numLayers; ++cut) {
    leastSend[cut] = kInfinity;
    for (unsigned from = 0; from < table.numSubmeshes; ++from)
      for (unsigned to = 0; to < table.numSubmeshes; ++to)
        if (const SendSeconds &send = table.send(cut, from, to); send.slowest() <= period)
          leastSend[cut] = std::min(leastSend[cut], send.sum());
  }
}

unsigned RestBounds::bucketOf(unsigned stagesAfter) const {
  auto it = llvm::upper_bound(buckets, stagesAfter);
  return unsigned(it - buckets.begin()) - 1;
}

double RestBounds::at(unsigned cut, int64_t devices, unsigned stagesAfter) {
  unsigned bucket = bucketOf(stagesAfter);
  if (tables[bucket].empty())
    fill(bucket);
  return tables[bucket][size_t(cut) * (numUnits + 1) + devices / unit];
}

void RestBounds::fill(unsigned bucket) {
  Table &bounds = tables[bucket];
  unsigned layers = table.numLayers;
  size_t row = numUnits + 1;
  bounds.assign((layers + 1) * row, kInfinity);
  std::fill(bounds.begin(), bounds.begin() + row, 0);
  int64_t held = table.held(buckets[bucket] + 1);
  std::vector<int64_t> first(layers + 1, numUnits + 1); // Units that are enough for a row.
  first[0] = 0;
  llvm::SmallVector<std::pair<int64_t, double>> ways; // Units, seconds.
  for (unsigned hi = 1; hi <= layers; ++hi) {
    if (hi == layers && buckets[bucket] > 0)
      break;
    double *mine = &bounds[hi * row];
    if (fewestAfter[hi] > numDevices)
      continue;
    // What the later layers need is not to be had here.
    int64_t most = (numDevices - fewestAfter[hi]) / unit;
    for (unsigned lo = 0; lo < hi; ++lo) {
      if (first[lo] > most)
        continue;
      ways.clear();
      for (unsigned m = 0; m < table.numSubmeshes; ++m)
        if (const StageTable::Option *option = table.fastest(lo, hi, m, held))
          if (option->seconds <= period && leavesEnough(lo, hi, m))
            ways.push_back({table.devices(m) / unit, option->seconds * table.partOfSum(lo, hi, m)});
      llvm::sort(ways);
      double sending = lo > 0 ? leastSend[lo] : 0, fastest = kInfinity;
      const double *before = &bounds[lo * row];
      for (auto [units, seconds] : ways) {
        if (seconds >= fastest)
          continue;
        fastest = seconds;
        for (int64_t i = first[lo] + units; i <= most; ++i)
          mine[i] = std::min(mine[i], before[i - units] + (seconds + sending));
        if (first[lo] + units <= most)
          first[hi] = std::min(first[hi], first[lo] + units);
      }
    }
    // Only asked for because units are rounded.
    std::fill(mine + most + 1, mine + row, mine[most]);
  }
}
