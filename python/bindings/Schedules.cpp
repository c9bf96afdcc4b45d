//===- Schedules.cpp - schedules as Python lists ---------------------------===//
//
// A problem crosses as a dictionary of the fields of ScheduleProblem, a step as
// (letter, stage, micro-batch).
//
//===----------------------------------------------------------------------===//

#include "Bindings.h"
#include "compiler/Schedule/CustomSchedule.h"
#include "compiler/Schedule/Timeline.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace alpa;
using schedule::ScheduleInfo;
using schedule::ScheduleProblem;

namespace {

using Seconds = std::tuple<double, double, double, double, double>;
using Step = std::tuple<std::string, int64_t, int64_t>;
using Steps = std::vector<std::vector<Step>>;

[[noreturn]] void raise(const std::string &what) {
  throw CompilerError(CodedError(ErrorCode::Method, what));
}

const ScheduleInfo &scheduleNamed(const std::string &name) {
  if (const ScheduleInfo *info = schedule::findSchedule(name))
    return *info;
  raise("there is no schedule `" + name + "`; choose one of " + schedule::scheduleNames());
}

ScheduleProblem problemOf(const nb::dict &fields) {
  ScheduleProblem problem;
  problem.meshOf = nb::cast<std::vector<int64_t>>(fields["mesh_of"]);
  problem.numMicroBatches = nb::cast<int64_t>(fields["num_micro_batches"]);
  problem.hasBackward = nb::cast<std::vector<bool>>(fields["has_backward"]);
  for (auto [forward, input, weight, forth, back] :
       nb::cast<std::vector<Seconds>>(fields["seconds"]))
    problem.seconds.push_back({forward, input, weight, forth, back});
  problem.limits = nb::cast<std::vector<double>>(fields["limits"]);
  problem.keptParts = nb::cast<std::vector<double>>(fields["kept_parts"]);
  problem.sizes = nb::cast<std::vector<double>>(fields["sizes"]);
  problem.stepsOverlap = nb::cast<bool>(fields["steps_overlap"]);
  problem.steps = nb::cast<std::string>(fields["steps"]);
  if (llvm::Error error = schedule::checkProblem(problem))
    throw CompilerError(std::move(error), ErrorCode::Method);
  return problem;
}

Steps scheduleStepsOf(const std::string &name, const nb::dict &fields) {
  Steps result;
  for (const schedule::StepList &list :
       take(schedule::scheduleSteps(scheduleNamed(name), problemOf(fields)), ErrorCode::Method)) {
    std::vector<Step> &steps = result.emplace_back();
    steps.reserve(list.size());
    for (const schedule::ScheduleStep &step : list)
      steps.emplace_back(std::string(1, schedule::letterOf(step.kind)), step.stage,
                         step.microBatch);
  }
  return result;
}

std::vector<int64_t> keptOf(const std::string &name, const nb::dict &fields) {
  ScheduleProblem problem = problemOf(fields);
  const ScheduleInfo &info = scheduleNamed(name);
  std::vector<int64_t> kept;
  for (int64_t mesh = 0; mesh < problem.numMeshes(); ++mesh)
    kept.push_back(info.kept(problem, mesh));
  return kept;
}

std::vector<std::pair<double, double>> spansOf(const std::string &name, const nb::dict &fields) {
  ScheduleProblem problem = problemOf(fields);
  std::vector<schedule::StepList> lists =
      take(schedule::scheduleSteps(scheduleNamed(name), problem), ErrorCode::Method);
  std::optional<schedule::Timeline> timeline = schedule::followSteps(problem, lists);
  if (!timeline)
    raise("schedule `" + name + "` waits forever");
  std::vector<std::pair<double, double>> spans;
  for (const schedule::Timeline::Span &span : timeline->spans)
    spans.emplace_back(span.begin, span.end);
  return spans;
}

using Description = std::tuple<std::string, std::string, bool, bool, bool, int64_t, bool>;

std::vector<Description> schedules() {
  std::vector<Description> result;
  for (const ScheduleInfo &info : schedule::getSchedules())
    result.emplace_back(info.name.str(), info.summary.str(), info.splitsBackward,
                        info.takesSeveralStages, info.isForwardOnly, info.stagesPerMesh,
                        info.placement == schedule::Placement::V);
  return result;
}

} // namespace

void bindSchedules(nb::module_ &m) {
  m.def("schedules", &schedules,
        "Name, summary, and whether it splits backward runs, takes several stages on a mesh, "
        "runs forwards only; stages on a mesh if no one says how many, and whether they lie in a "
        "V.");
  m.def("schedule_steps", &scheduleStepsOf, nb::arg("name"), nb::arg("problem"));
  m.def("schedule_kept", &keptOf, nb::arg("name"), nb::arg("problem"));
  m.def("schedule_spans", &spansOf, nb::arg("name"), nb::arg("problem"));
}
