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

#include "compiler/Stage/Search/DeviceStates.h"
#include "compiler/Stage/Search/RestBounds.h"

namespace alpa {

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
  bool stagesMatter = false; // More stages can need more memory.
  bool waitsEvenly = true;   // A stage more always means as many micro-batches more.
  unsigned firstFree = 0;    // From so many stages on nothing waits.

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

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SEARCH_PERIODSEARCH_H
