//===- PeriodSearch.cpp - the least sum of seconds under a period ----------===//

#include "compiler/Stage/Search/PeriodSearch.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

PeriodSearch::PeriodSearch(const StageTable &table)
    : table(table),
      states(table.problem.manual
                 ? DeviceStates::manual(table.numSubmeshes)
                 : DeviceStates(groupHosts(table.problem.hostDevices, table.problem.hostKinds),
                                table.problem.submeshes, table.problem.usesAllDevices)),
      bounds(table), firstFree(table.mostStages + 1) {
  for (unsigned s = table.mostStages; s > 0 && !table.waits(s); --s)
    firstFree = s;
  stagesMatter = table.held(1) != table.held(table.mostStages);
  waitsEvenly = firstFree > table.mostStages;
  for (unsigned s = 3; s < firstFree; ++s)
    waitsEvenly &= table.moreInFlight(s) == table.moreInFlight(2);
  closed.resize(table.numLayers);
}

double PeriodSearch::leastSum() {
  bounds.setPeriod(kInfinity);
  return bounds.at(table.numLayers, states.freeDevices(states.start()), 0);
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
        if (const SendSeconds &send = table.send(cut, from, a); send.slowest() <= period) {
          most = std::max(most, send.sum());
          least = std::min(least, send.sum());
        }
      mostTo[size_t(cut) * n + a] = most;
      leastTo[size_t(cut) * n + a] = least;
      for (unsigned b = 0; b < n; ++b) {
        double more = -kInfinity;
        for (unsigned from = 0; from < n; ++from) {
          const SendSeconds &toB = table.send(cut, from, b), &toA = table.send(cut, from, a);
          if (toB.slowest() <= period)
            more = std::max(more, toA.slowest() <= period ? toA.sum() - toB.sum() : kInfinity);
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
                    states.freeDevices(states.start())});
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
      if (send.slowest() > period)
        continue;
      sending = send.sum();
    }
    double trip = option->seconds * table.partOfTrip(lo, hi, m);
    double wait = waitOf(after, trip, sending, stages);
    if (wait + option->seconds - trip > 0)
      continue;
    double sum = after.sum + sending + option->seconds * table.partOfSum(lo, hi, m);
    for (unsigned state : states.after(after.state, m))
      if (lo > 0 || states.isEnd(state))
        push({sum, wait, lo, m, state, stages, option->choice, index, states.freeDevices(state)},
             limit);
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
