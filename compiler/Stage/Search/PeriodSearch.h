//===- PeriodSearch.h - the least sum of seconds under a period ---*- C++ -*-===//
//
// One question of the stage DP: of all plans whose period is at most T, which has
// the least sum of seconds? Answered from the last stage backwards, best first:
// a partial plan is a label (layers that are left, devices that are left, stages,
// sum, waiting), ordered by its sum and a bound for the layers that are left. A
// label that another one beats in everything is dropped.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_PERIODSEARCH_H
#define ALPA_COMPILER_STAGE_SEARCH_PERIODSEARCH_H

#include "compiler/Stage/Search/FreeDevices.h"
#include "compiler/Stage/Search/StageDp.h"

namespace alpa::stage {

/// A stage problem's choices and sends, asked for once. Of the choices of a stage
/// those are kept that no other one beats in both seconds and micro-batches in
/// flight that fit.
class StageTable {
public:
  struct Option {
    double seconds;
    int64_t mostInFlight;
    unsigned choice; // Index into what the problem gave.
  };

  explicit StageTable(const StageDpProblem &problem);

  const StageDpProblem &problem;
  const unsigned numLayers, numSubmeshes;
  unsigned mostStages = 0;
  bool limitsStages = false; // Fewer than layers and devices would allow.

  /// The fastest way that fits with so many micro-batches in flight; null if none.
  const Option *fastest(unsigned lo, unsigned hi, unsigned submesh, int64_t inFlight) const {
    size_t at = entryAt(lo, hi, submesh);
    for (size_t i = begins[at]; i < begins[at + 1]; ++i)
      if (options[i].mostInFlight >= inFlight)
        return &options[i];
    return nullptr;
  }
  const SendSeconds &send(unsigned cut, unsigned from, unsigned to) const {
    return sends.empty() ? noSend : sends[(size_t(cut) * numSubmeshes + from) * numSubmeshes + to];
  }
  bool hasSends() const { return !sends.empty(); }
  /// With so many stages from here to the end, 1 to mostStages: micro-batches that a
  /// stage must have room for.
  int64_t held(unsigned stagesFromHere) const { return holds[stagesFromHere]; }
  /// The parts of a stage's seconds that are in a round trip, and in the sum.
  double partOfTrip(unsigned lo, unsigned hi, unsigned submesh) const {
    return tripParts.empty() ? 1 : tripParts[entryAt(lo, hi, submesh)];
  }
  double partOfSum(unsigned lo, unsigned hi, unsigned submesh) const {
    return sumParts.empty() ? 1 : sumParts[entryAt(lo, hi, submesh)];
  }
  /// In flight, than a stage later.
  int64_t moreInFlight(unsigned stagesFromHere) const {
    return flights[stagesFromHere] - flights[stagesFromHere - 1];
  }
  /// Whether a stage begins some micro-batch only after another one came back.
  bool waits(unsigned stagesFromHere) const {
    return flights[stagesFromHere] < problem.numMicroBatches;
  }
  /// Devices that a stage takes from those that are free; 0 with stages by hand.
  int64_t devices(unsigned submesh) const {
    return problem.manual ? 0 : problem.submeshes[submesh].numDevices();
  }

private:
  size_t entryAt(unsigned lo, unsigned hi, unsigned submesh) const {
    return (size_t(lo) * (numLayers + 1) + hi) * numSubmeshes + submesh;
  }
  void addOptions(unsigned lo, unsigned hi, unsigned submesh);

  std::vector<Option> options;
  std::vector<size_t> begins;
  std::vector<SendSeconds> sends;
  std::vector<int64_t> flights, holds;
  std::vector<double> tripParts, sumParts;
  SendSeconds noSend;
};

/// Bounds on the sum of seconds of the first layers, given how many devices and
/// how many stages after them there are: a small DP that knows devices by their
/// number only, sends by their least seconds, and no waiting.
class RestBounds {
public:
  explicit RestBounds(const StageTable &table);

  /// A period that no plan can be below.
  double leastPeriod() const { return least; }
  /// For plans of at most this period; bounds for a slightly longer one are kept.
  void setPeriod(double period);
  /// Whether layers [lo, hi) on a submesh leave devices enough for the others.
  bool leavesEnough(unsigned lo, unsigned hi, unsigned submesh) const {
    return fewestBefore[lo] + table.devices(submesh) + fewestAfter[hi] <= numDevices;
  }
  /// Layers before `cut`, on so many devices, before so many stages; infinity if
  /// there is no way.
  double at(unsigned cut, int64_t devices, unsigned stagesAfter);

private:
  using Table = std::vector<double>; // By layers and units of devices.

  template <typename Visit> void forEachStage(double period, Visit visit) const;
  bool isFeasible(double period) const;
  unsigned bucketOf(unsigned stagesAfter) const;
  void fill(unsigned bucket);

  const StageTable &table;
  int64_t numDevices = 0, unit = 1, numUnits = 0;
  double least = 0, period = -1;
  /// Devices for the layers before a cut, and for those from it to the end.
  std::vector<int64_t> fewestBefore, fewestAfter;
  std::vector<double> leastSend; // By cut.
  std::vector<unsigned> buckets; // Least number of stages after, for each table.
  std::vector<Table> tables;
  std::vector<std::vector<int64_t>> enough; // By table and cut: units with which there is a way.
  bool countsStages = false;                // A table for each number of stages after.
};

//===----------------------------------------------------------------------===//
// The least sum of seconds under a period
//
// One question of the stage DP: of all plans whose period is at most T, which has
// the least sum of seconds? Answered from the last stage backwards, best first:
// a partial plan is a label (layers that are left, devices that are left, stages,
// sum, waiting), ordered by its sum and a bound for the layers that are left. A
// label that another one beats in everything is dropped.
//===----------------------------------------------------------------------===//

class PeriodSearch {
public:
  explicit PeriodSearch(const StageTable &table);

  /// A period that no plan is below.
  double leastPeriod() const { return bounds.leastPeriod(); }
  /// A sum that no plan of any period is below.
  double leastSum();
  /// The plan of least sum among those of at most the period, if that is below
  /// `limit`; no stages otherwise.
  std::vector<PlannedStage> solve(double period, double limit);

private:
  static constexpr unsigned kNone = ~0u;

  /// Stages from layer `cut` to the end, the first of them on `submesh`.
  struct Label {
    double sum;
    double wait; // By how much the round trips from the first stage exceed the period.
    unsigned cut, submesh, state, stages, option, next;
    int64_t freeDevices;
  };
  struct Open {
    double bound;
    unsigned cut, label;
    bool operator<(const Open &other) const { // The top of a queue is the largest.
      return bound != other.bound ? bound > other.bound : cut > other.cut;
    }
  };

  int64_t freeDevices(unsigned state) const { return states.freeDevices(state) - reserved; }
  void prepareStages();
  void prepareSends();
  void extend(unsigned index, double limit);
  void push(const Label &label, double limit);
  double waitOf(const Label &next, double seconds, double sending, unsigned stages) const;
  bool isDominated(const Label &label) const;
  bool dominates(const Label &a, const Label &b) const;
  bool waitsNoLonger(const Label &a, const Label &b, double delta) const;
  std::vector<PlannedStage> readBack(unsigned label) const;
  size_t pairAt(unsigned cut, unsigned a, unsigned b) const {
    return (size_t(cut) * table.numSubmeshes + a) * table.numSubmeshes + b;
  }

  const StageTable &table;
  DeviceStates states;
  RestBounds bounds;
  bool stagesMatter = false; // More stages can need more memory, or be too many.
  bool waitsEvenly = true;   // A stage more always means as many micro-batches more.
  unsigned firstFree = 0;    // From so many stages on nothing waits.
  int64_t reserved = 0;      // Devices that have to stay idle.

  double period = 0;
  /// By the layer after the last: stages that can be part of a plan.
  struct Stage {
    unsigned lo, submesh;
  };
  std::vector<std::vector<Stage>> usable;
  std::vector<Label> labels;
  std::vector<Open> open;
  std::vector<std::vector<unsigned>> closed; // By cut.
  /// By cut: how much more sending to a submesh than to another can cost, and the
  /// most and least that sending to it costs.
  std::vector<double> moreThan, mostTo, leastTo;
};

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_PERIODSEARCH_H
