//===- CustomSchedule.h - schedules given as text ---------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_CUSTOMSCHEDULE_H
#define ALPA_COMPILER_SCHEDULE_CUSTOMSCHEDULE_H

#include "compiler/Schedule/ScheduleRegistry.h"

namespace alpa::schedule {

/// F, B, I or W.
char letterOf(RunKind kind);
/// "F0.3": the letter, the stage and the micro-batch.
std::string stepText(const ScheduleStep &step);

/// Fails unless numbers are in range and lists as long as there are stages.
llvm::Error checkProblem(const ScheduleProblem &problem);

/// Reads one line for each mesh, steps with spaces or commas between them; a semicolon
/// ends a line as well.
llvm::Expected<std::vector<StepList>> parseSteps(llvm::StringRef text);

/// Fails at the first step that is wrong, naming it, unless
/// - alpa_schedule_c1: there is a list for each mesh, and stages and micro-batches exist.
/// - alpa_schedule_c2: each step is on the mesh of its stage.
/// - alpa_schedule_c3: no run is there twice: B, or I and W, once at most.
/// - alpa_schedule_c4: none is missing; a stage without a backward run needs none.
/// - alpa_schedule_c5: a stage's B or I comes after its F, W after its I.
/// - alpa_schedule_c6: no mesh waits forever.
llvm::Error checkSteps(const ScheduleProblem &problem, llvm::ArrayRef<StepList> lists);

} // namespace alpa::schedule

#endif // ALPA_COMPILER_SCHEDULE_CUSTOMSCHEDULE_H
