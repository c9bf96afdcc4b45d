//===- StageTable.h - what a stage problem offers, as arrays -----*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_STAGETABLE_H
#define ALPA_COMPILER_STAGE_SEARCH_STAGETABLE_H

#include "compiler/Stage/Search/StageDp.h"

namespace alpa {

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

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SEARCH_STAGETABLE_H
