//===- Timeline.cpp - when the steps of a schedule take place -------------===//

#include "compiler/Schedule/Timeline.h"

#include "llvm/ADT/STLExtras.h"
#include <limits>
#include <utility>

using namespace alpa;
using namespace alpa::schedule;

static constexpr double kNever = std::numeric_limits<double>::infinity();

double Timeline::seconds() const {
  double end = 0;
  for (const Span &span : spans)
    end = std::max(end, span.end);
  return end;
}

double Timeline::longestSpan() const {
  double longest = 0;
  for (const Span &span : spans)
    longest = std::max(longest, span.end - span.begin);
  return longest;
}

namespace {

class Follower {
public:
  Follower(const ScheduleProblem &problem, llvm::ArrayRef<StepList> lists, SendFunction send)
      : problem(problem), lists(lists), send(send), numStages(problem.numStages()),
        next(lists.size(), 0), isAwake(lists.size(), true), isBegun(lists.size(), false),
        barriers(lists.size(), 0), prepared(lists.size(), 0) {
    timeline.spans.resize(lists.size());
    for (int64_t stage = 0; stage < numStages; ++stage) {
      seconds.push_back(problem.secondsOf(stage));
      barriers[problem.meshOf[stage]] += seconds.back().barrier;
      prepared[problem.meshOf[stage]] += seconds.back().prepare;
    }
    size_t size = numStages * problem.numMicroBatches;
    inputs.assign(size, kNever);
    gradients.assign(size, kNever);
    ends.assign(size, kNever);
    std::fill_n(inputs.begin(), problem.numMicroBatches, 0.0);
    // Gradients go past stages that have no backward run.
    before.assign(numStages, -1);
    int64_t last = -1;
    for (int64_t stage = 0; stage < numStages; ++stage) {
      before[stage] = last;
      if (problem.hasBackward.empty() || problem.hasBackward[stage])
        last = stage;
    }
    if (last >= 0)
      std::fill_n(gradients.begin() + last * problem.numMicroBatches, problem.numMicroBatches, 0.0);
  }

  void run() {
    for (size_t mesh = lists.size(); mesh-- > 0;)
      awake.push_back(mesh);
    while (!awake.empty()) {
      size_t mesh = awake.back();
      awake.pop_back();
      isAwake[mesh] = false;
      while (next[mesh] < lists[mesh].size() && runStep(mesh, lists[mesh][next[mesh]]))
        ++next[mesh];
    }
  }

  std::vector<ScheduleStep> stuck() const {
    std::vector<ScheduleStep> steps;
    for (size_t mesh = 0; mesh < lists.size(); ++mesh)
      if (next[mesh] < lists[mesh].size())
        steps.push_back(lists[mesh][next[mesh]]);
    return steps;
  }

  Timeline timeline;

private:
  bool runStep(size_t mesh, const ScheduleStep &step) {
    size_t at = step.stage * problem.numMicroBatches + step.microBatch;
    const StageSeconds &time = seconds[step.stage];
    bool isForward = step.kind == RunKind::Forward;
    double ready = isForward ? inputs[at] : std::max(gradients[at], ends[at]);
    if (ready == kNever)
      return false;
    Timeline::Span &span = timeline.spans[mesh];
    if (!isForward)
      span.end += std::exchange(barriers[mesh], 0);
    double begin = std::max(isBegun[mesh] ? span.end : prepared[mesh], ready);
    if (!isBegun[mesh])
      span.begin = begin - prepared[mesh];
    isBegun[mesh] = true;
    switch (step.kind) {
    case RunKind::Forward:
      span.end = ends[at] = begin + time.forward;
      if (step.stage + 1 < numStages)
        deliver(inputs[at + problem.numMicroBatches], step.stage, step.stage + 1, span.end);
      return true;
    case RunKind::Backward:
      span.end = begin + time.backwardInput + time.backwardWeight;
      break;
    case RunKind::BackwardInput:
      span.end = begin + time.backwardInput;
      break;
    case RunKind::BackwardWeight:
      span.end = begin + time.backwardWeight;
      return true;
    }
    if (int64_t to = before[step.stage]; to >= 0)
      deliver(gradients[to * problem.numMicroBatches + step.microBatch], step.stage, to, span.end);
    return true;
  }

  void deliver(double &slot, int64_t from, int64_t to, double now) {
    slot = send(from, to, now);
    int64_t mesh = problem.meshOf[to];
    if (!isAwake[mesh])
      awake.push_back(mesh);
    isAwake[mesh] = true;
  }

  const ScheduleProblem &problem;
  llvm::ArrayRef<StepList> lists;
  SendFunction send;
  int64_t numStages;
  std::vector<StageSeconds> seconds;
  std::vector<int64_t> before; // The stage that waits for each one's gradient; -1 if none.
  std::vector<size_t> next, awake;
  std::vector<bool> isAwake, isBegun;
  std::vector<double> barriers; // Of each mesh, until it was there.
  std::vector<double> prepared; // When the weights of each mesh are.
  /// By stage and micro-batch: when it arrives, and when the forward run ended.
  std::vector<double> inputs, gradients, ends;
};

} // namespace

std::optional<Timeline> schedule::followSteps(const ScheduleProblem &problem,
                                              llvm::ArrayRef<StepList> lists, SendFunction send,
                                              std::vector<ScheduleStep> *stuck) {
  Follower follower(problem, lists, send);
  follower.run();
  std::vector<ScheduleStep> waiting = follower.stuck();
  bool isDone = waiting.empty();
  if (stuck)
    *stuck = std::move(waiting);
  if (!isDone)
    return std::nullopt;
  return std::move(follower.timeline);
}

std::optional<Timeline> schedule::followSteps(const ScheduleProblem &problem,
                                              llvm::ArrayRef<StepList> lists,
                                              std::vector<ScheduleStep> *stuck) {
  auto send = [&](int64_t from, int64_t to, double now) {
    if (problem.meshOf[from] == problem.meshOf[to])
      return now;
    return now + (to > from ? problem.secondsOf(from).forth : problem.secondsOf(from - 1).back);
  };
  return followSteps(problem, lists, send, stuck);
}

std::vector<double> schedule::peakActivations(const ScheduleProblem &problem,
                                              llvm::ArrayRef<StepList> lists) {
  std::vector<double> peaks;
  for (const StepList &list : lists) {
    double kept = 0, &peak = peaks.emplace_back(0);
    for (const ScheduleStep &step : list) {
      if (!problem.hasBackward.empty() && !problem.hasBackward[step.stage])
        continue; // Nothing is kept for it.
      double size = problem.sizeOf(step.stage), part = size * problem.keptPartOf(step.stage);
      if (step.kind == RunKind::Forward)
        peak = std::max(peak, kept += size);
      else if (step.kind == RunKind::Backward)
        kept -= size;
      else if (step.kind == RunKind::BackwardWeight)
        kept -= part;
      else
        peak = std::max(peak, std::exchange(kept, kept - size + part));
    }
  }
  return peaks;
}
