//===- ZeroBubble.cpp - weight gradients fill what others wait ------------===//
//
// ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.1.
//
//===----------------------------------------------------------------------===//

#include "compiler/Schedule/ScheduleFamilies.h"
#include "compiler/Schedule/Timeline.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"

#include <limits>
#include <queue>
#include <tuple>

using namespace alpa;
using namespace alpa::schedule;

/// 1F1B of forward runs and input parts. Mesh i begins the weight parts i runs later
/// than it could, so that all meshes keep as many activations as the first one, and
/// the last ones do weight parts while they would wait at the end.
llvm::Expected<std::vector<StepList>> schedule::generateZbH1(const ScheduleProblem &problem) {
  std::vector<StepList> lists;
  int64_t numMeshes = problem.numMeshes(), total = problem.numMicroBatches;
  for (int64_t stage = 0; stage < numMeshes; ++stage) {
    StepList &steps = lists.emplace_back();
    steps.reserve(3 * total);
    int64_t warmUp = inFlight1F1B(numMeshes - stage, total) - 1;
    for (int64_t index = 0; index < warmUp; ++index)
      steps.push_back({RunKind::Forward, stage, index});
    for (int64_t index = 0; index < total; ++index) {
      if (warmUp + index < total)
        steps.push_back({RunKind::Forward, stage, warmUp + index});
      steps.push_back({RunKind::BackwardInput, stage, index});
      if (index >= stage)
        steps.push_back({RunKind::BackwardWeight, stage, index - stage});
    }
    for (int64_t index = std::max<int64_t>(0, total - stage); index < total; ++index)
      steps.push_back({RunKind::BackwardWeight, stage, index});
  }
  return lists;
}

int64_t schedule::keptZbH1(const ScheduleProblem &problem, int64_t) {
  return std::min(problem.numMeshes(), problem.numMicroBatches);
}

//===----------------------------------------------------------------------===//
// Zero bubble from seconds and memory
//
// In the manner of Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section
// 3.1: time is followed run by run, and a mesh that is free takes a forward run or an
// input part if one is ready and memory allows it, else a weight part if it does not
// keep what comes next waiting for long. How eager it is are a few numbers; all
// combinations are tried, beside the schedules by hand, and the fastest order is
// taken.
//===----------------------------------------------------------------------===//

static constexpr double kNever = std::numeric_limits<double>::infinity();
/// Memory is counted in parts that need not add up exactly.
static constexpr double kRounding = 1e-6;
/// Policies that are tried on all micro-batches.
static constexpr size_t kFinalists = 12;

namespace {

struct Policy {
  /// Micro-batches that a stage may begin before the gradient of the first one is
  /// sent back, as a multiple of the stages from it to the end.
  double ahead;
  /// A weight part is taken if at least this part of it fits before the next run.
  double fill;
  /// A forward run is put off if an input part is ready within this part of it.
  double patience;
  /// Whether forward runs and input parts take turns; else input parts come first.
  bool inTurn;
};

class Greedy {
public:
  Greedy(const ScheduleProblem &problem, const Policy &policy)
      : policy(policy), total(problem.numMicroBatches) {
    int64_t numStages = problem.numStages();
    stages.resize(numStages);
    for (auto [index, stage] : llvm::enumerate(stages)) {
      stage.seconds = problem.secondsOf(int64_t(index));
      stage.limit = problem.limitOf(int64_t(index));
      stage.keptPart = problem.keptPartOf(int64_t(index));
      stage.inputs.assign(total, index == 0 ? 0 : kNever);
      stage.gradients.assign(total, kNever);
      double ahead = policy.ahead * double(numStages - int64_t(index));
      stage.ahead = std::max<int64_t>(1, int64_t(std::min<double>(ahead, double(total))));
      stage.steps.reserve(3 * total);
    }
  }

  std::vector<StepList> run() {
    for (size_t index = 0; index < stages.size(); ++index)
      wakeAt(0, index);
    while (!events.empty()) {
      auto [time, index] = events.top();
      events.pop();
      Stage &stage = stages[index];
      if (time != stage.wake) // It was woken earlier.
        continue;
      stage.wake = kNever;
      stage.now = time;
      decide(index);
    }
    std::vector<StepList> lists;
    for (Stage &stage : stages)
      lists.push_back(std::move(stage.steps));
    return lists;
  }

private:
  struct Stage {
    StageSeconds seconds;
    double limit = 0, keptPart = 1;
    double now = 0, kept = 0;
    double wake = kNever;                       // Of its event; there is one at most that counts.
    int64_t forward = 0, input = 0, weight = 0; // The next micro-batch of each kind.
    int64_t ahead = 1;
    bool wasForward = false;
    std::vector<double> inputs, gradients; // When they arrive.
    StepList steps;
  };
  using Event = std::pair<double, size_t>;

  void wakeAt(double time, size_t index) {
    Stage &stage = stages[index];
    time = std::max(time, stage.now);
    if (time < stage.wake) {
      stage.wake = time;
      events.push({time, index});
    }
  }

  /// One run of a free mesh, or when to look again.
  void decide(size_t index) {
    Stage &stage = stages[index];
    double forwardAt = stage.forward < total ? stage.inputs[stage.forward] : kNever;
    double inputAt = stage.input < stage.forward ? stage.gradients[stage.input] : kNever;
    bool isFull = stage.kept + 1 > stage.limit + kRounding;
    bool isAhead = stage.forward - stage.input >= stage.ahead;
    bool hasWeight = stage.weight < stage.input;
    bool canForward = forwardAt <= stage.now && !isFull && !isAhead;
    bool canInput = inputAt <= stage.now;
    if (canForward && canInput)
      (policy.inTurn && !stage.wasForward ? canInput : canForward) = false;
    if (canForward && inputAt > stage.now &&
        inputAt < stage.now + policy.patience * stage.seconds.forward)
      canForward = false;
    // What waits may take more room than the activations.
    if (canInput && hasWeight && stage.kept > stage.limit + kRounding)
      return runWeight(index);
    if (canInput)
      return runInput(index);
    if (canForward)
      return runForward(index);
    bool isPutOff = isFull || isAhead || forwardAt <= stage.now;
    double next = std::min(inputAt, isPutOff ? kNever : forwardAt);
    bool makesRoom = isFull && !isAhead && forwardAt <= stage.now;
    if (hasWeight && (makesRoom || next >= stage.now + policy.fill * stage.seconds.backwardWeight))
      return runWeight(index);
    if (next < kNever)
      wakeAt(next, index);
  }

  void runForward(size_t index) {
    Stage &stage = stages[index];
    double end = stage.now + stage.seconds.forward;
    stage.kept += 1;
    stage.wasForward = true;
    if (index + 1 < stages.size()) {
      stages[index + 1].inputs[stage.forward] = end + stage.seconds.forth;
      wakeAt(end + stage.seconds.forth, index + 1);
    } else {
      stage.gradients[stage.forward] = end;
    }
    finish(index, {RunKind::Forward, int64_t(index), stage.forward++}, end);
  }

  void runInput(size_t index) {
    Stage &stage = stages[index];
    double end = stage.now + stage.seconds.backwardInput;
    stage.kept -= 1 - stage.keptPart;
    stage.wasForward = false;
    if (index > 0) {
      double arrival = end + stages[index - 1].seconds.back;
      stages[index - 1].gradients[stage.input] = arrival;
      wakeAt(arrival, index - 1);
    }
    finish(index, {RunKind::BackwardInput, int64_t(index), stage.input++}, end);
  }

  void runWeight(size_t index) {
    Stage &stage = stages[index];
    stage.kept -= stage.keptPart;
    finish(index, {RunKind::BackwardWeight, int64_t(index), stage.weight++},
           stage.now + stage.seconds.backwardWeight);
  }

  void finish(size_t index, const ScheduleStep &step, double end) {
    Stage &stage = stages[index];
    stage.steps.push_back(step);
    stage.now = end;
    stage.wake = kNever;
    wakeAt(end, index);
  }

  Policy policy;
  int64_t total;
  std::vector<Stage> stages;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
};

/// What is to be least, and then what else should be.
std::pair<double, double> worth(const ScheduleProblem &problem, std::vector<StepList> &lists) {
  leaveOutMissing(problem, lists);
  std::optional<Timeline> timeline = followSteps(problem, lists);
  if (!timeline)
    return {kNever, kNever};
  double seconds = timeline->seconds(), span = timeline->longestSpan();
  return problem.stepsOverlap ? std::make_pair(span, seconds) : std::make_pair(seconds, span);
}

bool fits(const ScheduleProblem &problem, llvm::ArrayRef<StepList> lists) {
  return llvm::all_of(llvm::enumerate(peakActivations(problem, lists)), [&](auto mesh) {
    return mesh.value() <= problem.limitOf(int64_t(mesh.index())) + kRounding;
  });
}

/// Runs that stages lack take no time.
ScheduleProblem withoutMissing(ScheduleProblem problem) {
  for (auto [stage, has] : llvm::enumerate(problem.hasBackward))
    if (!has) {
      if (problem.seconds.empty())
        problem.seconds.resize(problem.meshOf.size());
      problem.seconds[stage].backwardInput = problem.seconds[stage].backwardWeight = 0;
    }
  return problem;
}

} // namespace

llvm::Expected<std::vector<StepList>> schedule::generateZbAuto(const ScheduleProblem &given) {
  ScheduleProblem problem = withoutMissing(given);
  for (int64_t mesh = 0; mesh < problem.numMeshes(); ++mesh)
    if (problem.limitOf(mesh) < 1)
      return makeError(ErrorCode::Method,
                       "schedule 'zb-auto' needs room for the activations of one micro-batch on "
                       "each mesh, got a limit of " +
                           std::to_string(problem.limitOf(mesh)) + " on mesh " +
                           std::to_string(mesh));
  std::vector<StepList> best;
  std::pair<double, double> least = {kNever, kNever};
  auto offer = [&](std::vector<StepList> lists) {
    if (auto found = worth(problem, lists); found < least) {
      least = found;
      best = std::move(lists);
    }
  };
  for (ScheduleFunction byHand : {generate1F1B, generateZbH1}) {
    llvm::Expected<std::vector<StepList>> lists = byHand(problem);
    if (!lists)
      return lists.takeError();
    if (fits(problem, *lists))
      offer(std::move(*lists));
  }
  // Which policies are good shows after some round trips.
  ScheduleProblem shorter = problem;
  shorter.numMicroBatches = std::min(problem.numMicroBatches, 4 * problem.numMeshes());
  std::vector<Policy> policies;
  std::vector<std::tuple<double, double, size_t>> ranks;
  for (double ahead : {1.0, 1.5, 2.0, kNever})
    for (double fill : {0.0, 0.5, 1.0})
      for (double patience : {0.0, 0.5})
        for (bool inTurn : {true, false}) {
          std::vector<StepList> lists = Greedy(shorter, {ahead, fill, patience, inTurn}).run();
          auto [first, second] = worth(shorter, lists);
          ranks.emplace_back(first, second, policies.size());
          policies.push_back({ahead, fill, patience, inTurn});
        }
  llvm::sort(ranks);
  for (const auto &rank : llvm::ArrayRef(ranks).take_front(kFinalists))
    offer(Greedy(problem, policies[std::get<2>(rank)]).run());
  return best;
}

int64_t schedule::keptZbAuto(const ScheduleProblem &problem, int64_t mesh) {
  // What is kept between the two parts takes its part of the room.
  double least = std::min(problem.keptPartOf(mesh), 1.0);
  double most = least > 0 ? problem.limitOf(mesh) / least : double(problem.numMicroBatches);
  return int64_t(std::min(most + kRounding, double(problem.numMicroBatches)));
}
