//===- Schedules.h - the order of runs on each mesh --------------*- C++ -*-===//
//
// A schedule makes one list of steps for each mesh, from numbers alone; no IR.
// Several stages may lie on one mesh.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SCHEDULE_SCHEDULES_H
#define ALPA_COMPILER_SCHEDULE_SCHEDULES_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <vector>

namespace alpa {

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

/// Seconds of a stage's runs for one micro-batch, and of sending to the stage
/// after it and back.
struct StageSeconds {
  double forward = 1, backwardInput = 1, backwardWeight = 1;
  double forth = 0, back = 0;
};

struct ScheduleProblem {
  int64_t numMicroBatches = 1;
  std::vector<int64_t> meshOf;       // Of each stage; numbered by first appearance.
  std::vector<bool> hasBackward;     // Of each stage; empty for all.
  std::vector<StageSeconds> seconds; // Of each stage; empty where unknown.

  int64_t numStages() const { return int64_t(meshOf.size()); }
  int64_t numMeshes() const;
};

/// `numStages` stages on a mesh each.
ScheduleProblem oneStagePerMesh(int64_t numStages, int64_t numMicroBatches);

/// The list of each mesh. Runs of one kind of a stage take the micro-batches in
/// ascending order.
using ScheduleFunction = llvm::Expected<std::vector<StepList>> (*)(const ScheduleProblem &);

/// How many micro-batches a stage has begun and not finished at most, if there
/// are so many stages from it to the end, itself included, one a mesh. It keeps
/// their activations, and begins no other one before the first of them came back.
using InFlightFunction = int64_t (*)(int64_t stagesFromHere, int64_t numMicroBatches);

struct ScheduleInfo {
  llvm::StringLiteral name;
  llvm::StringLiteral summary;
  ScheduleFunction generate;
  InFlightFunction inFlight;
  bool splitsBackward = false;
  bool takesSeveralStages = false; // On one mesh.
};

/// All schedules; a new one needs one entry.
llvm::ArrayRef<ScheduleInfo> getSchedules();
/// Their names, "a, b or c", for messages.
std::string scheduleNames();
/// Null if there is none of that name.
const ScheduleInfo *findSchedule(llvm::StringRef name);

/// What a schedule generates, without the backward runs that stages lack. Fails
/// if the schedule does not take the problem.
llvm::Expected<std::vector<StepList>> scheduleSteps(const ScheduleInfo &schedule,
                                                    const ScheduleProblem &problem);

} // namespace alpa

#endif // ALPA_COMPILER_SCHEDULE_SCHEDULES_H
