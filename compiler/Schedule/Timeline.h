//===- Timeline.h - when the steps of a schedule take place ------*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_TIMELINE_H
#define ALPA_COMPILER_SCHEDULE_TIMELINE_H

#include "compiler/Schedule/ScheduleRegistry.h"

#include "llvm/ADT/STLFunctionalExtras.h"
#include <optional>

namespace alpa::schedule {

struct Timeline {
  struct Span {
    double begin = 0, end = 0; // Of the first run and the last.
  };
  std::vector<Span> spans; // Of each mesh.

  double seconds() const;
  double longestSpan() const;
};

/// When what stage `from` sends at `now` is with stage `to`. What one mesh sends to
/// another is asked for in the order in which it is sent.
using SendFunction = llvm::function_ref<double(int64_t from, int64_t to, double now)>;

/// Follows every run and send: a mesh takes its steps in order, one at a time, and
/// sends while it goes on. With `stuck`, the first step of each mesh that waits
/// forever, and no timeline, if there are any.
std::optional<Timeline> followSteps(const ScheduleProblem &problem, llvm::ArrayRef<StepList> lists,
                                    SendFunction send, std::vector<ScheduleStep> *stuck = nullptr);
/// The same where sends take the problem's seconds, and none waits for another.
std::optional<Timeline> followSteps(const ScheduleProblem &problem, llvm::ArrayRef<StepList> lists,
                                    std::vector<ScheduleStep> *stuck = nullptr);

/// The most activations that each mesh keeps, in micro-batches.
std::vector<double> peakActivations(const ScheduleProblem &problem, llvm::ArrayRef<StepList> lists);

} // namespace alpa::schedule

#endif // ALPA_COMPILER_SCHEDULE_TIMELINE_H
