//===- RestBounds.h - what the layers that are left cost at least -*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_RESTBOUNDS_H
#define ALPA_COMPILER_STAGE_SEARCH_RESTBOUNDS_H

#include "compiler/Stage/Search/StageTable.h"

namespace alpa {

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
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SEARCH_RESTBOUNDS_H
