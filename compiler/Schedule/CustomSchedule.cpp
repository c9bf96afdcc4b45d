//===- CustomSchedule.cpp - schedules given as text -----------------------===//

#include "compiler/Schedule/CustomSchedule.h"

#include "compiler/Schedule/ScheduleFamilies.h"
#include "compiler/Schedule/Timeline.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"
#include <cmath>

using namespace alpa;
using namespace alpa::schedule;
using llvm::StringRef;
using llvm::Twine;

static constexpr StringRef letters = "FBIW"; // In the order of RunKind.
static constexpr StringRef separators = " \t\r,";

char schedule::letterOf(RunKind kind) { return letters[size_t(kind)]; }

std::string schedule::stepText(const ScheduleStep &step) {
  return (Twine(letterOf(step.kind)) + Twine(step.stage) + "." + Twine(step.microBatch)).str();
}

static llvm::Error fail(const Twine &message) {
  return makeError(ErrorCode::Method, "custom schedule: " + message.str());
}

static llvm::Error failAt(size_t mesh, size_t index, const ScheduleStep &step, StringRef constraint,
                          const Twine &message) {
  return fail("alpa_schedule_" + constraint + ": mesh " + Twine(mesh) + ", step " + Twine(index) +
              " `" + stepText(step) + "`: " + message);
}

llvm::Error schedule::checkProblem(const ScheduleProblem &problem) {
  int64_t next = 0;
  for (int64_t mesh : problem.meshOf) {
    if (mesh < 0 || mesh > next)
      return makeError(ErrorCode::Method,
                       "meshes are numbered by their first stage; expected at most " +
                           std::to_string(next) + ", got " + std::to_string(mesh));
    next += mesh == next;
  }
  if (problem.meshOf.empty() || problem.numMicroBatches < 1)
    return makeError(ErrorCode::Method, "a schedule needs a stage and a micro-batch");
  for (size_t size : {problem.hasBackward.size(), problem.seconds.size(), problem.keptParts.size(),
                      problem.sizes.size()})
    if (size != 0 && size != problem.meshOf.size())
      return makeError(ErrorCode::Method, "expected an entry for each of " +
                                              std::to_string(problem.meshOf.size()) +
                                              " stages, got " + std::to_string(size));
  for (const StageSeconds &time : problem.seconds)
    for (double seconds :
         {time.forward, time.backwardInput, time.backwardWeight, time.forth, time.back})
      if (!(seconds >= 0 && seconds < std::numeric_limits<double>::infinity()))
        return makeError(ErrorCode::Method,
                         "seconds are not negative and finite, got " + std::to_string(seconds));
  double total = 0;
  for (const StageSeconds &time : problem.seconds)
    total += time.forward + time.backwardInput + time.backwardWeight + time.forth + time.back;
  if (!std::isfinite(total * double(problem.numMicroBatches)))
    return makeError(ErrorCode::Method, "the seconds of all runs do not add up to a number");
  if (!problem.limits.empty() && int64_t(problem.limits.size()) != problem.numMeshes())
    return makeError(ErrorCode::Method, "expected a limit for each of " +
                                            std::to_string(problem.numMeshes()) + " meshes, got " +
                                            std::to_string(problem.limits.size()));
  if (!llvm::all_of(problem.limits, [](double limit) { return limit >= 0; }))
    return makeError(ErrorCode::Method, "limits are not negative");
  if (!llvm::all_of(problem.keptParts,
                    [](double part) { return part >= 0 && std::isfinite(part); }))
    return makeError(ErrorCode::Method, "parts that are kept are not negative and finite");
  if (!llvm::all_of(problem.sizes, [](double size) { return size >= 0 && std::isfinite(size); }))
    return makeError(ErrorCode::Method, "sizes of activations are not negative and finite");
  return llvm::Error::success();
}

llvm::Expected<std::vector<StepList>> schedule::parseSteps(StringRef text) {
  std::vector<StepList> lists;
  while (!text.empty()) {
    size_t end = text.find_first_of(";\n");
    StringRef line = text.substr(0, end).trim(separators);
    text = end == StringRef::npos ? StringRef() : text.substr(end + 1);
    if (line.empty() && text.trim().empty())
      break;
    StepList &steps = lists.emplace_back();
    while (!line.empty()) {
      auto [word, rest] = llvm::getToken(line, separators);
      line = rest.ltrim(separators);
      size_t letter = letters.find(word.front());
      auto [stage, microBatch] = word.drop_front().split('.');
      ScheduleStep step{RunKind(letter), 0, 0};
      if (letter == StringRef::npos || stage.getAsInteger(10, step.stage) ||
          microBatch.getAsInteger(10, step.microBatch))
        return fail("mesh " + Twine(lists.size() - 1) + ", step " + Twine(steps.size()) +
                    ": expected F, B, I or W with a stage, a dot and a micro-batch, as in `F0.3`, "
                    "got `" +
                    word + "`");
      steps.push_back(step);
    }
  }
  return lists;
}

llvm::Error schedule::checkSteps(const ScheduleProblem &problem, llvm::ArrayRef<StepList> lists) {
  size_t numMeshes = size_t(problem.numMeshes());
  if (lists.size() != numMeshes)
    return fail("alpa_schedule_c1: expected a line for each of " + Twine(numMeshes) +
                " meshes, got " + Twine(lists.size()));
  enum : uint8_t { Forward = 1, Input = 2, Weight = 4 };
  std::vector<uint8_t> done(problem.numStages() * problem.numMicroBatches, 0);
  static constexpr uint8_t parts[] = {Forward, Input | Weight, Input, Weight};
  static constexpr uint8_t before[] = {0, Forward, Forward, Input};
  for (auto [mesh, list] : llvm::enumerate(lists))
    for (auto [index, step] : llvm::enumerate(list)) {
      if (step.stage < 0 || step.stage >= problem.numStages())
        return failAt(mesh, index, step, "c1",
                      "there are " + Twine(problem.numStages()) + " stages");
      if (step.microBatch < 0 || step.microBatch >= problem.numMicroBatches)
        return failAt(mesh, index, step, "c1",
                      "there are " + Twine(problem.numMicroBatches) + " micro-batches");
      if (problem.meshOf[step.stage] != int64_t(mesh))
        return failAt(mesh, index, step, "c2",
                      "stage " + Twine(step.stage) + " is on mesh " +
                          Twine(problem.meshOf[step.stage]));
      uint8_t &sofar = done[step.stage * problem.numMicroBatches + step.microBatch];
      if (sofar & parts[size_t(step.kind)])
        return failAt(mesh, index, step, "c3", "this run is there already");
      if ((sofar & before[size_t(step.kind)]) != before[size_t(step.kind)])
        return failAt(
            mesh, index, step, "c5",
            Twine(step.kind == RunKind::BackwardWeight ? "its input part" : "its forward run") +
                " comes later or never");
      sofar |= parts[size_t(step.kind)];
    }
  for (int64_t stage = 0; stage < problem.numStages(); ++stage)
    for (int64_t index = 0; index < problem.numMicroBatches; ++index) {
      uint8_t missing =
          ~done[stage * problem.numMicroBatches + index] &
          (problem.hasBackward.empty() || problem.hasBackward[stage] ? Forward | Input | Weight
                                                                     : Forward);
      if (!missing)
        continue;
      RunKind kind = missing & Forward             ? RunKind::Forward
                     : missing == (Input | Weight) ? RunKind::Backward
                     : missing == Weight           ? RunKind::BackwardWeight
                                                   : RunKind::BackwardInput;
      return fail("alpa_schedule_c4: mesh " + Twine(problem.meshOf[stage]) + " lacks `" +
                  stepText({kind, stage, index}) + "`");
    }
  std::vector<ScheduleStep> stuck;
  if (followSteps(problem, lists, &stuck))
    return llvm::Error::success();
  std::string waiting;
  for (const ScheduleStep &step : llvm::ArrayRef(stuck).drop_front())
    waiting +=
        ", mesh " + std::to_string(problem.meshOf[step.stage]) + " at `" + stepText(step) + "`";
  return fail("alpa_schedule_c6: mesh " + Twine(problem.meshOf[stuck.front().stage]) +
              " waits forever at `" + stepText(stuck.front()) + "`" + waiting);
}

llvm::Expected<std::vector<StepList>> schedule::generateCustom(const ScheduleProblem &problem) {
  if (problem.steps.empty())
    return fail("no steps are given; give a line for each mesh, such as `F0.0 B0.0`");
  llvm::Expected<std::vector<StepList>> lists = parseSteps(problem.steps);
  if (!lists)
    return lists.takeError();
  if (llvm::Error error = checkSteps(problem, *lists))
    return std::move(error);
  return lists;
}

/// As the steps have it.
int64_t schedule::keptCustom(const ScheduleProblem &problem, int64_t mesh) {
  llvm::Expected<std::vector<StepList>> lists = generateCustom(problem);
  if (!lists) {
    llvm::consumeError(lists.takeError());
    return 0;
  }
  ScheduleProblem whole = problem;
  whole.keptParts.clear();
  whole.sizes.clear();
  return int64_t(peakActivations(whole, *lists)[mesh]);
}
