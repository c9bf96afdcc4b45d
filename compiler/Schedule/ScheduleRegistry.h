//===- ScheduleRegistry.h - the order of runs on each mesh ------*- C++ -*-===//
//
// A schedule makes one list of steps for each mesh, from numbers alone; no IR.
// Several stages may lie on one mesh.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SCHEDULE_SCHEDULEREGISTRY_H
#define ALPA_COMPILER_SCHEDULE_SCHEDULEREGISTRY_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <functional>
#include <vector>

namespace alpa::schedule {

/// What a step runs. The backward run of a stage may be split: its input part
/// makes the gradient that the stage before waits for, its weight part the rest.
enum class RunKind : uint8_t { Forward, Backward, BackwardInput, BackwardWeight };

struct ScheduleStep {
  RunKind kind;
  int64_t stage;
  int64_t microBatch;
  bool operator==(const ScheduleStep &other) const {
    return kind == other.kind && stage == other.stage && microBatch == other.microBatch;
  }
};

/// The steps of one mesh in their order.
using StepList = std::vector<ScheduleStep>;

/// Seconds of a stage's runs for one micro-batch, of sending to the stage after it and
/// back, of its barrier, and of preparing its weights.
struct StageSeconds {
  double forward = 1, backwardInput = 1, backwardWeight = 1;
  double forth = 0, back = 0;
  double barrier = 0; // Once, behind the forward runs of its mesh.
  double prepare = 0; // Once, before them.
};

/// Where stages lie: in rounds, stage s on mesh s modulo p; in a V, where every other
/// round goes back, stage s < p on mesh s and stage s >= p on mesh 2p - 1 - s.
enum class Placement : uint8_t { Rounds, V };
int64_t meshOfStage(Placement placement, int64_t numMeshes, int64_t stage);
/// The stage of a mesh in a round.
int64_t stageOnMesh(Placement placement, int64_t numMeshes, int64_t mesh, int64_t round);

/// Runs work for the numbers below `count`, on several threads and in any order.
using ForEach = std::function<void(size_t count, llvm::function_ref<void(size_t)> work)>;

struct ScheduleProblem {
  int64_t numMicroBatches = 1;
  std::vector<int64_t> meshOf;       // Of each stage; numbered by first appearance.
  std::vector<bool> hasBackward;     // Of each stage; empty for all.
  std::vector<StageSeconds> seconds; // Of each stage; empty where unknown.
  /// Whether something runs once between the forward runs of all micro-batches and their
  /// backward runs, so that no backward run comes before a forward run.
  bool hasBarrier = false;
  /// Activations of so many micro-batches fit on each mesh; empty for one a mesh, as many
  /// as 1F1B keeps, or as the schedule keeps. Only schedules that look for an order by
  /// themselves heed them.
  std::vector<double> limits;
  /// Of each stage, what is kept from the input part of a micro-batch's backward run to the
  /// weight part, as a part of its activations, or a multiple where layers are computed
  /// again; empty for as much. It counts in limits behind the input part.
  std::vector<double> keptParts;
  /// Of each stage, a micro-batch's activations as limits count them; empty for one each.
  std::vector<double> sizes;
  /// The steps of `custom`, a line for each mesh.
  std::string steps;
  /// Whether a mesh begins its next step without waiting for the others: then the
  /// time of the slowest mesh counts, from its first run to its last.
  bool stepsOverlap = false;
  /// For schedules that try many orders; null for one after another. Changes nothing but the time.
  ForEach forEach;

  int64_t numStages() const { return int64_t(meshOf.size()); }
  int64_t numMeshes() const;
  StageSeconds secondsOf(int64_t stage) const {
    return seconds.empty() ? StageSeconds() : seconds[stage];
  }
  double limitOf(int64_t mesh) const { return limits.empty() ? double(numMeshes()) : limits[mesh]; }
  double keptPartOf(int64_t stage) const { return keptParts.empty() ? 1 : keptParts[stage]; }
  double sizeOf(int64_t stage) const { return sizes.empty() ? 1 : sizes[stage]; }
};

/// `stagesPerMesh` stages on each mesh.
ScheduleProblem placeStages(Placement placement, int64_t numMeshes, int64_t stagesPerMesh,
                            int64_t numMicroBatches);
inline ScheduleProblem stagesInRounds(int64_t numMeshes, int64_t stagesPerMesh,
                                      int64_t numMicroBatches) {
  return placeStages(Placement::Rounds, numMeshes, stagesPerMesh, numMicroBatches);
}
inline ScheduleProblem stagesInV(int64_t numMeshes, int64_t stagesPerMesh,
                                 int64_t numMicroBatches) {
  return placeStages(Placement::V, numMeshes, stagesPerMesh, numMicroBatches);
}
inline ScheduleProblem oneStagePerMesh(int64_t numStages, int64_t numMicroBatches) {
  return stagesInRounds(numStages, 1, numMicroBatches);
}

/// The list of each mesh. Runs of one kind of a stage take the micro-batches in
/// ascending order.
using ScheduleFunction = llvm::Expected<std::vector<StepList>> (*)(const ScheduleProblem &);

/// How many micro-batches a stage has begun at most whose gradient it did not send
/// back yet, if there are so many stages from it to the end, itself included, one a
/// mesh. It begins no other one before the first of them came back.
using InFlightFunction = int64_t (*)(int64_t stagesFromHere, int64_t numMicroBatches);

/// How many activations a mesh keeps at most, one for each stage and micro-batch from
/// the forward run to the end of the backward run, both parts.
using KeptFunction = int64_t (*)(const ScheduleProblem &problem, int64_t mesh);

struct ScheduleInfo {
  llvm::StringLiteral name;
  llvm::StringLiteral summary;
  ScheduleFunction generate;
  InFlightFunction inFlight;
  KeptFunction kept;
  bool splitsBackward = false;
  bool takesSeveralStages = false; // On one mesh.
  bool isForwardOnly = false;
  bool takesBarrier = false; // All forward runs come first.
  int64_t stagesPerMesh = 1; // If no one says how many.
  Placement placement = Placement::Rounds;
  bool heedsLimits = false; // On activations, in seconds' favour.
};

/// All schedules; a new one needs one entry.
llvm::ArrayRef<ScheduleInfo> getSchedules();
/// Their names, "a, b or c", for messages.
std::string scheduleNames();
/// Null if there is none of that name.
const ScheduleInfo *findSchedule(llvm::StringRef name);

/// What a schedule generates, without the backward runs that stages lack. Fails,
/// saying why, if the schedule does not take the problem.
llvm::Expected<std::vector<StepList>> scheduleSteps(const ScheduleInfo &schedule,
                                                    const ScheduleProblem &problem);

} // namespace alpa::schedule

#endif // ALPA_COMPILER_SCHEDULE_SCHEDULEREGISTRY_H
