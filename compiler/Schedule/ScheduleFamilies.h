//===- ScheduleFamilies.h - what generates each family of schedules ------*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_SCHEDULEFAMILIES_H
#define ALPA_COMPILER_SCHEDULE_SCHEDULEFAMILIES_H

#include "compiler/Schedule/ScheduleRegistry.h"

namespace alpa::schedule {

/// Takes the backward runs out that stages lack.
void leaveOutMissing(const ScheduleProblem &problem, std::vector<StepList> &lists);

// ScheduleFamilies.cpp
llvm::Expected<std::vector<StepList>> generateGpipe(const ScheduleProblem &problem);
int64_t inFlightGpipe(int64_t stagesFromHere, int64_t numMicroBatches);
int64_t keptGpipe(const ScheduleProblem &problem, int64_t mesh);

llvm::Expected<std::vector<StepList>> generateBreadthFirst(const ScheduleProblem &problem);

llvm::Expected<std::vector<StepList>> generate1F1B(const ScheduleProblem &problem);
llvm::Expected<std::vector<StepList>> generateOverlap(const ScheduleProblem &problem);
int64_t inFlight1F1B(int64_t stagesFromHere, int64_t numMicroBatches);
int64_t inFlightOverlap(int64_t stagesFromHere, int64_t numMicroBatches);
int64_t kept1F1B(const ScheduleProblem &problem, int64_t mesh);
int64_t keptOverlap(const ScheduleProblem &problem, int64_t mesh);

llvm::Expected<std::vector<StepList>> generateInterleaved(const ScheduleProblem &problem);
int64_t keptInterleaved(const ScheduleProblem &problem, int64_t mesh);
/// Whether stage s lies on mesh s modulo the number of meshes, and all meshes have
/// as many stages.
bool isInRounds(const ScheduleProblem &problem);
/// Sizes of the groups of micro-batches that take turns in rounds: none smaller than
/// the number of meshes, unless there is only one.
std::vector<int64_t> groupMicroBatches(int64_t numMicroBatches, int64_t numMeshes);
/// Runs of one kind on a mesh in rounds: for each group all stages of the mesh, in
/// ascending or descending order.
StepList stepsInRounds(const ScheduleProblem &problem, int64_t mesh, RunKind kind, bool descending);

// ZeroBubble.cpp
llvm::Expected<std::vector<StepList>> generateZbH1(const ScheduleProblem &problem);
int64_t keptZbH1(const ScheduleProblem &problem, int64_t mesh);

llvm::Expected<std::vector<StepList>> generateZbAuto(const ScheduleProblem &problem);
int64_t keptZbAuto(const ScheduleProblem &problem, int64_t mesh);

llvm::Expected<std::vector<StepList>> generateZbV(const ScheduleProblem &problem);
int64_t keptZbV(const ScheduleProblem &problem, int64_t mesh);
llvm::Expected<std::vector<StepList>> generateVHalf(const ScheduleProblem &problem);
int64_t keptVHalf(const ScheduleProblem &problem, int64_t mesh);
llvm::Expected<std::vector<StepList>> generateVMin(const ScheduleProblem &problem);
int64_t keptVMin(const ScheduleProblem &problem, int64_t mesh);
llvm::Expected<std::vector<StepList>> generateDualPipeV(const ScheduleProblem &problem);
int64_t keptDualPipeV(const ScheduleProblem &problem, int64_t mesh);

// CustomSchedule.cpp
llvm::Expected<std::vector<StepList>> generateCustom(const ScheduleProblem &problem);
int64_t keptCustom(const ScheduleProblem &problem, int64_t mesh);

llvm::Expected<std::vector<StepList>> generateInference(const ScheduleProblem &problem);
int64_t inFlightInference(int64_t stagesFromHere, int64_t numMicroBatches);
int64_t keptInference(const ScheduleProblem &problem, int64_t mesh);

} // namespace alpa::schedule

#endif // ALPA_COMPILER_SCHEDULE_SCHEDULEFAMILIES_H
