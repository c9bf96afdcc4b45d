//===- StageDp.cpp - layers onto submeshes --------------------------------===//

#include "compiler/Stage/StageDp.h"

#include "compiler/Stage/DeviceStates.h"

#include "llvm/ADT/STLExtras.h"
#include <algorithm>
#include <numeric>

using namespace alpa;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

namespace {

class StageDp {
public:
  explicit StageDp(const StageDpProblem &problem)
      : problem(problem),
        states(problem.manual ? DeviceStates::manual(problem.submeshes.size())
                              : DeviceStates(problem.hostDevices, problem.submeshes)),
        numLayers(problem.numLayers), numSubmeshes(problem.submeshes.size()) {
    int64_t devices =
        std::accumulate(problem.hostDevices.begin(), problem.hostDevices.end(), int64_t(0));
    mostStages = problem.manual
                     ? numSubmeshes
                     : unsigned(std::min<int64_t>(numLayers, std::max<int64_t>(devices, 1)));
    collectCandidates();
    cells.resize(size_t(mostStages + 1) * (numLayers + 1) * states.size() * numSubmeshes);
    onward.resize(cells.size());
  }

  StagePlan run() {
    StagePlan best;
    // The bound is of no matter to a single micro-batch; and every layer is somewhere.
    size_t begin =
        problem.numMicroBatches == 1 ? std::max<size_t>(candidates.size(), 1) - 1 : leastSlowest();
    for (size_t i = begin; i < candidates.size(); ++i) {
      if ((problem.numMicroBatches - 1) * candidates[i] >= best.seconds)
        break; // All later plans are slower.
      double first = candidates[i];
      double close = std::max(problem.epsilonSeconds, problem.epsilonPart * first);
      while (i + 1 < candidates.size() && candidates[i + 1] - first < close)
        ++i;
      sweep(candidates[i]);
      StagePlan plan = readBack();
      if (plan.seconds < best.seconds)
        best = std::move(plan);
    }
    return best;
  }

private:
  /// Stages from layer k to the end, the first of them on the submesh.
  struct Cell {
    double seconds = kInfinity; // Sum, with the sending between these stages.
    unsigned hi = 0, state = 0, choice = 0, nextSubmesh = 0;
  };
  /// The best continuation for a stage on the submesh, with the sending to it.
  struct Onward {
    double seconds = kInfinity;
    unsigned submesh = 0;
  };

  size_t at(unsigned s, unsigned k, unsigned state, unsigned submesh) const {
    return ((size_t(s) * (numLayers + 1) + k) * states.size() + state) * numSubmeshes + submesh;
  }

  template <typename Visit> void forEachEntry(Visit visit) const {
    for (unsigned lo = 0; lo < numLayers; ++lo)
      for (unsigned hi = lo + 1; hi <= numLayers; ++hi)
        for (unsigned m = 0; m < numSubmeshes; ++m)
          visit(lo, hi, m);
  }

  /// The first candidate that no plan's slowest stage can be below.
  size_t leastSlowest() const {
    std::vector<double> fastest(numLayers, kInfinity);
    forEachEntry([&](unsigned lo, unsigned hi, unsigned m) {
      for (const StageChoice &choice : entries[entryAt(lo, hi, m)])
        for (unsigned layer = lo; layer < hi; ++layer)
          fastest[layer] = std::min(fastest[layer], choice.seconds);
    });
    double least = *llvm::max_element(fastest);
    return llvm::lower_bound(candidates, least) - candidates.begin();
  }

  bool allowed(unsigned lo, unsigned hi, unsigned submesh) const {
    if (problem.allows && !problem.allows(lo, hi, submesh))
      return false;
    return problem.manualLayers.empty() || problem.manualLayers[submesh] == std::make_pair(lo, hi);
  }

  void collectCandidates() {
    entries.resize(size_t(numLayers + 1) * (numLayers + 1) * numSubmeshes);
    forEachEntry([&](unsigned lo, unsigned hi, unsigned m) {
      if (!allowed(lo, hi, m))
        return;
      auto &entry = entries[entryAt(lo, hi, m)];
      entry = problem.choices(lo, hi, m);
      for (const StageChoice &choice : entry)
        candidates.push_back(choice.seconds);
    });
    transfers.resize(size_t(numLayers + 1) * numSubmeshes * numSubmeshes);
    for (unsigned cut = 1; cut < numLayers; ++cut)
      for (unsigned from = 0; from < numSubmeshes; ++from)
        for (unsigned to = 0; to < numSubmeshes; ++to) {
          if (!problem.transferSeconds)
            continue;
          SendSeconds seconds = problem.transferSeconds(cut, from, to);
          transfers[transferAt(cut, from, to)] = seconds;
          candidates.push_back(seconds.slowest());
        }
    llvm::sort(candidates);
    candidates.erase(llvm::unique(candidates), candidates.end());
  }

  size_t entryAt(unsigned lo, unsigned hi, unsigned m) const {
    return (size_t(lo) * (numLayers + 1) + hi) * numSubmeshes + m;
  }
  size_t transferAt(unsigned cut, unsigned from, unsigned to) const {
    return (size_t(cut) * numSubmeshes + from) * numSubmeshes + to;
  }

  void sweep(double bound) {
    std::fill(cells.begin(), cells.end(), Cell());
    std::fill(onward.begin(), onward.end(), Onward());
    for (unsigned s = 1; s <= mostStages; ++s) {
      int64_t inFlight = problem.inFlight(s);
      for (unsigned k = 0; k < numLayers; ++k)
        for (unsigned m = 0; m < numSubmeshes; ++m)
          for (unsigned hi = k + 1; hi <= numLayers; ++hi) {
            if ((s == 1) != (hi == numLayers))
              continue;
            fillCells(s, k, m, hi, bound, inFlight);
          }
      for (unsigned k = 1; k < numLayers; ++k)
        for (unsigned state = 0; state < states.size(); ++state)
          for (unsigned m = 0; m < numSubmeshes; ++m)
            fillOnward(s, k, state, m, bound);
    }
  }

  void fillCells(unsigned s, unsigned k, unsigned m, unsigned hi, double bound, int64_t inFlight) {
    const llvm::ArrayRef<StageChoice> entry = entries[entryAt(k, hi, m)];
    std::optional<unsigned> best;
    for (unsigned c = 0; c < entry.size(); ++c)
      if (entry[c].seconds <= bound && entry[c].peakBytes(inFlight) <= problem.memoryOf(m) &&
          (!best || entry[c].seconds < entry[*best].seconds))
        best = c;
    if (!best)
      return;
    for (unsigned state = 0; state < states.size(); ++state)
      for (unsigned after : states.after(state, m)) {
        double rest = 0;
        unsigned nextSubmesh = 0;
        if (s == 1) {
          if (after != states.done())
            continue;
        } else {
          const Onward &next = onward[at(s - 1, hi, after, m)];
          rest = next.seconds;
          nextSubmesh = next.submesh;
        }
        double seconds = entry[*best].seconds + rest;
        Cell &cell = cells[at(s, k, state, m)];
        if (seconds < cell.seconds)
          cell = {seconds, hi, after, *best, nextSubmesh};
      }
  }

  /// What stages from layer k on cost a stage on submesh m that sends to them.
  void fillOnward(unsigned s, unsigned k, unsigned state, unsigned m, double bound) {
    Onward &best = onward[at(s, k, state, m)];
    for (unsigned to = 0; to < numSubmeshes; ++to) {
      const SendSeconds &sending = transfers[transferAt(k, m, to)];
      double seconds = cells[at(s, k, state, to)].seconds + sending.sum();
      if (sending.slowest() <= bound && seconds < best.seconds)
        best = {seconds, to};
    }
  }

  StagePlan readBack() const {
    StagePlan best;
    for (unsigned s = 1; s <= mostStages; ++s)
      for (unsigned m = 0; m < numSubmeshes; ++m) {
        if (cells[at(s, 0, states.start(), m)].seconds == kInfinity)
          continue;
        StagePlan plan;
        unsigned k = 0, state = states.start(), submesh = m;
        for (unsigned left = s; left > 0; --left) {
          const Cell &cell = cells[at(left, k, state, submesh)];
          plan.stages.push_back(
              {k, cell.hi, submesh, entries[entryAt(k, cell.hi, submesh)][cell.choice]});
          k = cell.hi;
          state = cell.state;
          submesh = cell.nextSubmesh;
        }
        plan.seconds = stagePlanSeconds(problem, plan.stages);
        if (plan.seconds < best.seconds)
          best = std::move(plan);
      }
    return best;
  }

  const StageDpProblem &problem;
  DeviceStates states;
  unsigned numLayers, numSubmeshes, mostStages = 0;
  std::vector<double> candidates;
  std::vector<SendSeconds> transfers;
  std::vector<llvm::ArrayRef<StageChoice>> entries;
  std::vector<Cell> cells;
  std::vector<Onward> onward;
};

} // namespace

StagePlan alpa::solveStageDp(const StageDpProblem &problem) {
  if (problem.numLayers == 0 || problem.submeshes.empty())
    return {};
  return StageDp(problem).run();
}

static SendSeconds sendAfter(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages,
                             size_t i) {
  if (i + 1 >= stages.size() || !problem.transferSeconds)
    return {};
  return problem.transferSeconds(stages[i].hi, stages[i].submesh, stages[i + 1].submesh);
}

double alpa::stagePlanPeriod(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages) {
  double period = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    int64_t inFlight = problem.inFlight(stages.size() - i);
    double trip = 0;
    for (size_t j = i; j < stages.size(); ++j) {
      SendSeconds send = sendAfter(problem, stages, j);
      trip += stages[j].choice.seconds;
      int64_t served = inFlight - problem.inFlight(stages.size() - j) + 1;
      if (i == j)
        period = std::max({period, trip, send.slowest()});
      else if (inFlight < problem.numMicroBatches)
        period = std::max(period, trip / served);
      trip += send.sum();
    }
  }
  return period;
}

double alpa::stagePlanSeconds(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages) {
  double sum = 0;
  for (size_t i = 0; i < stages.size(); ++i)
    sum += stages[i].choice.seconds + sendAfter(problem, stages, i).sum();
  return sum + (problem.numMicroBatches - 1) * stagePlanPeriod(problem, stages);
}

bool alpa::stagePlanFits(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages) {
  for (size_t i = 0; i < stages.size(); ++i)
    if (stages[i].choice.peakBytes(problem.inFlight(stages.size() - i)) >
        problem.memoryOf(stages[i].submesh))
      return false;
  return true;
}

namespace {

/// Depth-first search over hosts; equal submeshes and hosts make it short.
class Placement {
public:
  Placement(llvm::ArrayRef<int64_t> hostDevices, llvm::ArrayRef<Submesh> submeshes)
      : hosts(hostDevices), submeshes(submeshes), used(hosts.size(), 0), order(submeshes.size()),
        devices(submeshes.size()) {
    int64_t first = 0;
    for (int64_t count : hosts) {
      firstDevice.push_back(first);
      first += count;
    }
    std::iota(order.begin(), order.end(), 0u);
    llvm::sort(order, [&](unsigned a, unsigned b) {
      int64_t left = submeshes[a].numDevices(), right = submeshes[b].numDevices();
      return left != right ? left > right : a < b;
    });
  }

  bool place(size_t index = 0) {
    if (index == order.size())
      return true;
    if (++steps > 100000)
      return false;
    const Submesh &submesh = submeshes[order[index]];
    std::vector<int64_t> &mine = devices[order[index]];
    if (submesh.hosts > 1) {
      llvm::SmallVector<size_t> taken;
      for (size_t h = 0; h < hosts.size() && int64_t(taken.size()) < submesh.hosts; ++h)
        if (used[h] == 0 && hosts[h] == submesh.devicesPerHost)
          taken.push_back(h);
      if (int64_t(taken.size()) < submesh.hosts)
        return false;
      for (size_t h : taken)
        take(mine, h, submesh.devicesPerHost);
      if (place(index + 1))
        return true;
      for (size_t h : taken)
        used[h] -= submesh.devicesPerHost;
      mine.clear();
      return false;
    }
    llvm::SmallVector<std::pair<int64_t, int64_t>> tried; // Hosts alike need one try.
    for (size_t h = 0; h < hosts.size(); ++h) {
      std::pair<int64_t, int64_t> kind(hosts[h], used[h]);
      if (hosts[h] - used[h] < submesh.devicesPerHost || llvm::is_contained(tried, kind))
        continue;
      tried.push_back(kind);
      take(mine, h, submesh.devicesPerHost);
      if (place(index + 1))
        return true;
      used[h] -= submesh.devicesPerHost;
      mine.clear();
    }
    return false;
  }

  std::vector<std::vector<int64_t>> takeDevices() { return std::move(devices); }

private:
  void take(std::vector<int64_t> &mine, size_t host, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      mine.push_back(firstDevice[host] + used[host] + i);
    used[host] += count;
  }

  llvm::ArrayRef<int64_t> hosts;
  llvm::ArrayRef<Submesh> submeshes;
  std::vector<int64_t> used, firstDevice;
  std::vector<unsigned> order;
  std::vector<std::vector<int64_t>> devices;
  unsigned steps = 0;
};

} // namespace

std::optional<std::vector<std::vector<int64_t>>>
alpa::placeSubmeshes(llvm::ArrayRef<int64_t> hostDevices, llvm::ArrayRef<Submesh> submeshes) {
  Placement placement(hostDevices, submeshes);
  if (!placement.place())
    return std::nullopt;
  return placement.takeDevices();
}
