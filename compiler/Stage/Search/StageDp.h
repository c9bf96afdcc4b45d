//===- StageDp.h - layers onto submeshes -------------------------*- C++ -*-===//
//
// Eq. 2-4 of the Alpa paper, without any IR: choose stages (runs of layers) and
// a submesh for each, such that the submeshes tile the cluster, every stage fits
// into memory, and
//
//   sum_i (t_i + x_i) + (B - 1) * P
//
// is least; t_i are the seconds of stage i for one of B micro-batches, x_i those
// of sending to the next stage, forth and back. P is the time between two
// micro-batches: no stage can take longer, nor can a send keep its link busy for longer,
// which it does but for its latency; and with k_i micro-batches in flight at stage i a round
// trip of the stages i to j, for all i <= j, serves k_i - k_j + 1 micro-batches:
//
//   P = max_i max(t_i, busy forth_i, busy back_i),
//       max_{i < j, k_i < B} (t_i + x_i + ... + x_{j-1} + t_j) / (k_i - k_j + 1)
//
// Where a schedule puts off the weight part of the backward phase, w_i of t_i, others
// do not wait for it: a round trip has t_j - w_j for all stages but i. It also fills
// what a stage would wait at first, so that the sum has t_i - 2 w_i (with a single
// micro-batch t_i - w_i).
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_STAGEDP_H
#define ALPA_COMPILER_STAGE_SEARCH_STAGEDP_H

#include "compiler/CostModel/Cluster.h"
#include "compiler/Schedule/ScheduleRegistry.h"

#include "llvm/ADT/STLExtras.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

namespace alpa::stage {

/// One way to run a run of layers on a submesh.
struct StageChoice {
  double seconds = 0; // One micro-batch, forward and backward.
  int64_t stateBytes = 0;
  int64_t activationBytes = 0; // For each micro-batch in flight.
  int64_t temporaryBytes = 0;
  unsigned id = 0; // The caller's.
  /// Beyond which it says nothing.
  int64_t mostInFlight = std::numeric_limits<int64_t>::max();

  int64_t peakBytes(int64_t inFlight) const {
    return stateBytes + inFlight * activationBytes + temporaryBytes;
  }
};

/// Sending what crosses a cut; both directions at a time. Of the seconds those of latency
/// keep no link busy: the next send does not wait for them.
struct SendSeconds {
  double forth = 0, back = 0;
  double forthLatency = 0, backLatency = 0;
  double sum() const { return forth + back; }
  double busiest() const { return std::max(forth - forthLatency, back - backLatency); }
};

struct StageDpProblem {
  unsigned numLayers = 0;
  std::vector<int64_t> hostDevices; // Devices of each host.
  std::vector<unsigned> hostKinds;  // Of each host; empty for all of kind 0.
  std::vector<int64_t> hostRacks;   // Of each host, rising; empty for one rack.
  std::vector<cost::Submesh> submeshes;
  int64_t numMicroBatches = 1;
  /// Says how many micro-batches a stage keeps in flight.
  const schedule::ScheduleInfo *schedule = schedule::findSchedule("1f1b");
  /// Of one device of each submesh; empty for no limit.
  std::vector<int64_t> memoryBytes;
  /// Bounds on the slowest stage closer than this many seconds, or than this part
  /// of themselves, count as one.
  double epsilonSeconds = 0, epsilonPart = 0;
  /// Plans that take as long or longer are of no use.
  double mostSeconds = std::numeric_limits<double>::infinity();

  /// Whether no device may stay idle.
  bool usesAllDevices = false;
  /// How many devices the stages may take together, whichever these are.
  int64_t mostDevices = std::numeric_limits<int64_t>::max();
  /// How many stages there may be.
  unsigned mostStages = std::numeric_limits<unsigned>::max();

  /// Stages given by hand: stage i runs on submeshes[i]. Devices may then stay idle.
  bool manual = false;
  /// Layers of each stage; empty for any.
  std::vector<std::pair<unsigned, unsigned>> layerRanges;

  /// Whether layers [lo, hi) may be a stage on submeshes[submesh]; null for always.
  std::function<bool(unsigned lo, unsigned hi, unsigned submesh)> allows;
  /// Ways to run layers [lo, hi) on submeshes[submesh].
  std::function<llvm::ArrayRef<StageChoice>(unsigned lo, unsigned hi, unsigned submesh)> choices;
  /// Sending what crosses the cut before layer `cut`; null for no time.
  std::function<SendSeconds(unsigned cut, unsigned from, unsigned to)> transferSeconds;

  /// The part of a stage's seconds that is w_i above; null for none.
  std::function<double(unsigned lo, unsigned hi, unsigned submesh)> weightPart;
  /// Every stage is to have room for the activations of so many micro-batches, also
  /// where fewer are in flight: what waits for the weight part needs room too.
  int64_t leastHeld = 1;

  /// Micro-batches between their forward run and the gradient that is sent back, k_i.
  int64_t inFlight(unsigned stagesFromHere) const {
    return schedule->inFlight(stagesFromHere, numMicroBatches);
  }
  /// Those that a stage must have room for.
  int64_t held(unsigned stagesFromHere) const {
    return std::max(inFlight(stagesFromHere), leastHeld);
  }
  /// The part of t_i that is in round trips of other stages, and in the sum.
  double partOfTrip(unsigned lo, unsigned hi, unsigned submesh) const {
    return weightPart ? 1 - weightPart(lo, hi, submesh) : 1;
  }
  double partOfSum(unsigned lo, unsigned hi, unsigned submesh) const {
    return weightPart ? 1 - (numMicroBatches > 1 ? 2 : 1) * weightPart(lo, hi, submesh) : 1;
  }
  /// Whether layers [lo, hi) may be a stage on a submesh.
  bool mayBeStage(unsigned lo, unsigned hi, unsigned submesh) const {
    std::pair<unsigned, unsigned> range(lo, hi);
    if (!layerRanges.empty() &&
        !(manual ? layerRanges[submesh] == range : llvm::is_contained(layerRanges, range)))
      return false;
    return !allows || allows(lo, hi, submesh);
  }
  /// Devices that the stages may take, and those that have to stay idle.
  int64_t numUsable() const { return std::min(numDevices(), mostDevices); }
  int64_t numReserved() const { return numDevices() - numUsable(); }
  int64_t numDevices() const {
    return std::accumulate(hostDevices.begin(), hostDevices.end(), int64_t(0));
  }
  int64_t memoryOf(unsigned submesh) const {
    return memoryBytes.empty() ? std::numeric_limits<int64_t>::max() : memoryBytes[submesh];
  }
};

struct PlannedStage {
  unsigned lo = 0, hi = 0;
  unsigned submesh = 0;
  StageChoice choice;
};

struct StagePlan {
  double seconds = std::numeric_limits<double>::infinity();
  std::vector<PlannedStage> stages; // Empty when nothing fits.
  /// Several stages lie on each of so many meshes; 0 for a mesh each.
  unsigned numMeshes = 0;
  schedule::Placement placement = schedule::Placement::Rounds;

  unsigned meshOf(unsigned stage) const {
    return numMeshes ? unsigned(schedule::meshOfStage(placement, numMeshes, stage)) : stage;
  }
};

/// The best plan, or one within (B - 1) * epsilonSeconds, or the part epsilonPart,
/// of it. Devices may stay idle where using them is slower or impossible. `others`
/// gets the plans that were found on the way, that one among them.
StagePlan solveStageDp(const StageDpProblem &problem, std::vector<StagePlan> *others = nullptr);

/// Seconds between two micro-batches of given stages, P above.
double stagePlanPeriod(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages);
/// The objective of given stages, and whether they fit into memory.
double stagePlanSeconds(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages);
bool stagePlanFits(const StageDpProblem &problem, llvm::ArrayRef<PlannedStage> stages);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_STAGEDP_H
