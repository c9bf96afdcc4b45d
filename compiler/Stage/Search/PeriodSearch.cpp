//===- PeriodSearch.cpp - the least sum of seconds under a period ----------===//

#include "compiler/Stage/Search/PeriodSearch.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>

using namespace alpa;
using namespace alpa::stage;

//===----------------------------------------------------------------------===//
// What a stage problem offers, as arrays
//===----------------------------------------------------------------------===//

StageTable::StageTable(const StageDpProblem &problem)
    : problem(problem), numLayers(problem.numLayers), numSubmeshes(problem.submeshes.size()) {
  int64_t most = problem.manual ? numSubmeshes : problem.numUsable();
  mostStages = unsigned(std::min<int64_t>(numLayers, most));
  limitsStages = problem.mostStages < mostStages;
  mostStages = std::min(mostStages, problem.mostStages);
  for (unsigned s = 0; s <= mostStages; ++s) {
    flights.push_back(s == 0 ? 0 : problem.inFlight(s));
    holds.push_back(s == 0 ? 0 : problem.held(s));
  }

  begins.reserve(entryAt(numLayers, 0, 0) + 1);
  for (unsigned lo = 0; lo < numLayers; ++lo)
    for (unsigned hi = 0; hi <= numLayers; ++hi)
      for (unsigned m = 0; m < numSubmeshes; ++m) {
        begins.push_back(options.size());
        if (hi > lo)
          addOptions(lo, hi, m);
        if (!problem.weightPart)
          continue;
        bool isThere = options.size() > begins.back();
        tripParts.push_back(isThere ? problem.partOfTrip(lo, hi, m) : 1);
        sumParts.push_back(isThere ? problem.partOfSum(lo, hi, m) : 1);
      }
  begins.push_back(options.size());

  if (!problem.transferSeconds)
    return;
  sends.resize(size_t(numLayers + 1) * numSubmeshes * numSubmeshes);
  auto next = sends.begin() + size_t(numSubmeshes) * numSubmeshes;
  for (unsigned cut = 1; cut < numLayers; ++cut)
    for (unsigned from = 0; from < numSubmeshes; ++from)
      for (unsigned to = 0; to < numSubmeshes; ++to)
        *next++ = problem.transferSeconds(cut, from, to);
}

void StageTable::addOptions(unsigned lo, unsigned hi, unsigned submesh) {
  if (!problem.mayBeStage(lo, hi, submesh))
    return;
  size_t begin = options.size();
  int64_t memory = problem.memoryOf(submesh);
  for (auto [index, choice] : llvm::enumerate(problem.choices(lo, hi, submesh))) {
    int64_t left = memory - choice.stateBytes - choice.temporaryBytes;
    if (left < choice.activationBytes || !std::isfinite(choice.seconds))
      continue;
    int64_t most = choice.activationBytes > 0 ? left / choice.activationBytes
                                              : std::numeric_limits<int64_t>::max();
    options.push_back({choice.seconds, most, unsigned(index)});
  }
  std::sort(options.begin() + begin, options.end(), [](const Option &a, const Option &b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.mostInFlight > b.mostInFlight;
  });
  size_t kept = begin;
  for (size_t i = begin; i < options.size(); ++i)
    if (kept == begin || options[i].mostInFlight > options[kept - 1].mostInFlight)
      options[kept++] = options[i];
  options.resize(kept);
}

//===----------------------------------------------------------------------===//
// What the layers that are left cost at least
//===----------------------------------------------------------------------===//

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Devices are counted in units of which there are at most so many.
static constexpr int64_t kMostUnits = 512;
/// Up to so many stages, where no more are wanted, bounds count those that are left.
static constexpr unsigned kMostCounted = 8;
/// Bounds for a period this much longer than the one asked for still do.
static constexpr double kLonger = 1.02;

RestBounds::RestBounds(const StageTable &table) : table(table) {
  const StageDpProblem &problem = table.problem;
  if (!problem.manual)
    numDevices = problem.numUsable();
  unit = std::max<int64_t>(1, (numDevices + kMostUnits - 1) / kMostUnits);
  numUnits = numDevices / unit;
  countsStages = table.limitsStages && table.mostStages <= kMostCounted;
  // Memory rises with the stages after: few tables for few, more apart for many.
  for (unsigned after = 0; after < table.mostStages; after = after < 4 ? after + 1 : after * 5 / 4)
    if (buckets.empty() || countsStages || table.held(after + 1) > table.held(buckets.back() + 1))
      buckets.push_back(after);
  tables.resize(buckets.size());
  enough.resize(buckets.size());

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
        if (const SendSeconds &send = table.send(cut, from, to); send.busiest() <= period)
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
  std::vector<int64_t> &first = enough[bucket];
  first.assign(layers + 1, numUnits + 1);
  first[0] = 0;
  // What comes before a stage: as much of the same, or what one stage fewer can do.
  bool isFirst = countsStages && bucket + 1 == tables.size();
  unsigned rest = countsStages && !isFirst ? bucket + 1 : bucket;
  if (rest != bucket && tables[rest].empty())
    fill(rest);
  llvm::SmallVector<std::pair<int64_t, double>> ways; // Units, seconds.
  for (unsigned hi = 1; hi <= layers; ++hi) {
    if (hi == layers && buckets[bucket] > 0)
      break;
    double *mine = &bounds[hi * row];
    if (fewestAfter[hi] > numDevices)
      continue;
    // What the later layers need is not to be had here.
    int64_t most = (numDevices - fewestAfter[hi]) / unit;
    for (unsigned lo = 0; lo < (isFirst ? 1 : hi); ++lo) {
      int64_t least = enough[rest][lo];
      if (least > most)
        continue;
      ways.clear();
      for (unsigned m = 0; m < table.numSubmeshes; ++m)
        if (const StageTable::Option *option = table.fastest(lo, hi, m, held))
          if (option->seconds <= period && leavesEnough(lo, hi, m))
            ways.push_back({table.devices(m) / unit, option->seconds * table.partOfSum(lo, hi, m)});
      llvm::sort(ways);
      double sending = lo > 0 ? leastSend[lo] : 0, fastest = kInfinity;
      const double *before = &tables[rest][lo * row];
      for (auto [units, seconds] : ways) {
        if (seconds >= fastest)
          continue;
        fastest = seconds;
        for (int64_t i = least + units; i <= most; ++i)
          mine[i] = std::min(mine[i], before[i - units] + (seconds + sending));
        if (least + units <= most)
          first[hi] = std::min(first[hi], least + units);
      }
    }
    // Only asked for because units are rounded.
    std::fill(mine + most + 1, mine + row, mine[most]);
  }
}

//===----------------------------------------------------------------------===//
// The least sum of seconds under a period
//===----------------------------------------------------------------------===//

PeriodSearch::PeriodSearch(const StageTable &table)
    : table(table),
      states(table.problem.manual
                 ? DeviceStates::manual(table.numSubmeshes)
                 : DeviceStates(groupHosts(table.problem.hostDevices, table.problem.hostKinds,
                                           table.problem.hostRacks),
                                table.problem.submeshes, table.problem.usesAllDevices)),
      bounds(table), firstFree(table.mostStages + 1),
      reserved(table.problem.manual ? 0 : table.problem.numReserved()) {
  for (unsigned s = table.mostStages; s > 0 && !table.waits(s); --s)
    firstFree = s;
  stagesMatter = table.limitsStages || table.held(1) != table.held(table.mostStages);
  waitsEvenly = firstFree > table.mostStages;
  for (unsigned s = 3; s < firstFree; ++s)
    waitsEvenly &= table.moreInFlight(s) == table.moreInFlight(2);
  closed.resize(table.numLayers);
}

double PeriodSearch::leastSum() {
  bounds.setPeriod(kInfinity);
  return bounds.at(table.numLayers, freeDevices(states.start()), 0);
}

void PeriodSearch::prepareStages() {
  usable.assign(table.numLayers + 1, {});
  for (unsigned hi = 1; hi <= table.numLayers; ++hi)
    for (unsigned lo = hi; lo-- > 0;)
      for (unsigned m = 0; m < table.numSubmeshes; ++m)
        if (const StageTable::Option *option = table.fastest(lo, hi, m, table.held(1)))
          if (option->seconds <= period && bounds.leavesEnough(lo, hi, m))
            usable[hi].push_back({lo, m});
}

void PeriodSearch::prepareSends() {
  unsigned n = table.numSubmeshes;
  moreThan.assign(pairAt(table.numLayers, 0, 0), 0);
  mostTo.assign(size_t(table.numLayers) * n, 0);
  leastTo.assign(size_t(table.numLayers) * n, 0);
  if (!table.hasSends())
    return;
  for (unsigned cut = 1; cut < table.numLayers; ++cut)
    for (unsigned a = 0; a < n; ++a) {
      double most = 0, least = kInfinity;
      for (unsigned from = 0; from < n; ++from)
        if (const SendSeconds &send = table.send(cut, from, a); send.busiest() <= period) {
          most = std::max(most, send.sum());
          least = std::min(least, send.sum());
        }
      mostTo[size_t(cut) * n + a] = most;
      leastTo[size_t(cut) * n + a] = least;
      for (unsigned b = 0; b < n; ++b) {
        double more = -kInfinity;
        for (unsigned from = 0; from < n; ++from) {
          const SendSeconds &toB = table.send(cut, from, b), &toA = table.send(cut, from, a);
          if (toB.busiest() <= period)
            more = std::max(more, toA.busiest() <= period ? toA.sum() - toB.sum() : kInfinity);
        }
        moreThan[pairAt(cut, a, b)] = more;
      }
    }
}

std::vector<PlannedStage> PeriodSearch::solve(double bound, double limit) {
  period = bound;
  bounds.setPeriod(period);
  prepareStages();
  prepareSends();
  labels.clear();
  open.clear();
  for (auto &list : closed)
    list.clear();
  labels.push_back({0, -kInfinity, table.numLayers, 0, states.start(), 0, 0, kNone,
                    freeDevices(states.start())});
  extend(0, limit);
  while (!open.empty()) {
    std::pop_heap(open.begin(), open.end());
    Open top = open.back();
    open.pop_back();
    const Label &label = labels[top.label];
    if (label.cut == 0)
      return readBack(top.label);
    if (isDominated(label))
      continue;
    closed[label.cut].push_back(top.label);
    extend(top.label, limit);
  }
  return {};
}

/// Puts a stage in front of a label, in every way.
void PeriodSearch::extend(unsigned index, double limit) {
  const Label after = labels[index]; // New labels move the others.
  unsigned hi = after.cut, stages = after.stages + 1;
  bool isLast = after.stages == 0;
  if (stages > table.mostStages)
    return;
  int64_t held = table.held(stages);
  for (auto [lo, m] : usable[hi]) {
    const StageTable::Option *option = table.fastest(lo, hi, m, held);
    if (!option || option->seconds > period)
      continue;
    double sending = 0;
    if (!isLast) {
      const SendSeconds &send = table.send(hi, m, after.submesh);
      if (send.busiest() > period)
        continue;
      sending = send.sum();
    }
    double trip = option->seconds * table.partOfTrip(lo, hi, m);
    double wait = waitOf(after, trip, sending, stages);
    if (wait + option->seconds - trip > 0)
      continue;
    double sum = after.sum + sending + option->seconds * table.partOfSum(lo, hi, m);
    for (unsigned state : states.after(after.state, m))
      if (freeDevices(state) >= 0 && (lo > 0 || states.isEnd(state)))
        push({sum, wait, lo, m, state, stages, option->choice, index, freeDevices(state)}, limit);
  }
}

/// The most that the round trips of a stage and those
/// after it exceed the time in which their micro-batches should be served.
double PeriodSearch::waitOf(const Label &next, double seconds, double sending,
                            unsigned stages) const {
  if (!table.waits(stages) || period == kInfinity)
    return -kInfinity;
  double wait = seconds - period;
  if (stages > 1)
    wait =
        std::max(wait, seconds + sending + next.wait - double(table.moreInFlight(stages)) * period);
  return wait;
}

void PeriodSearch::push(const Label &label, double limit) {
  double bound = label.sum;
  if (label.cut > 0)
    bound += bounds.at(label.cut, label.freeDevices, label.stages) +
             leastTo[size_t(label.cut) * table.numSubmeshes + label.submesh];
  if (!(bound < limit) || (label.cut > 0 && isDominated(label)))
    return;
  labels.push_back(label);
  open.push_back({bound, label.cut, unsigned(labels.size() - 1)});
  std::push_heap(open.begin(), open.end());
}

bool PeriodSearch::isDominated(const Label &label) const {
  return llvm::any_of(closed[label.cut],
                      [&](unsigned other) { return dominates(labels[other], label); });
}

/// Whether every way to go on from `b` is one from `a`, and none is faster.
bool PeriodSearch::dominates(const Label &a, const Label &b) const {
  if (a.freeDevices < b.freeDevices || (stagesMatter && a.stages > b.stages))
    return false;
  double delta = moreThan[pairAt(a.cut, a.submesh, b.submesh)];
  return a.sum + delta <= b.sum && waitsNoLonger(a, b, delta) &&
         (a.state == b.state || states.covers(a.state, b.state));
}

bool PeriodSearch::waitsNoLonger(const Label &a, const Label &b, double delta) const {
  if (a.stages + 1 >= firstFree || period == kInfinity)
    return true; // No stage before `a` waits.
  if (a.stages != b.stages && !waitsEvenly)
    return false; // Some may wait before `a` and not before `b`.
  if (a.wait + delta <= b.wait)
    return true;
  double most = mostTo[size_t(a.cut) * table.numSubmeshes + a.submesh];
  return a.wait + most <=
         double(table.moreInFlight(a.stages + 1) - 1) * period; // Less than the stage alone.
}

std::vector<PlannedStage> PeriodSearch::readBack(unsigned index) const {
  std::vector<PlannedStage> stages;
  for (; index != 0; index = labels[index].next) {
    const Label &label = labels[index];
    unsigned hi = labels[label.next].cut;
    stages.push_back({label.cut, hi, label.submesh,
                      table.problem.choices(label.cut, hi, label.submesh)[label.option]});
  }
  return stages;
}
