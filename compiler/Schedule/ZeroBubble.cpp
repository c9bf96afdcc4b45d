//===- ZeroBubble.cpp - weight gradients fill what others wait ------------===//
//
// One stage on a mesh: ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
// 2024, section 2.1, and an order from seconds and memory. Two stages on a mesh, in a
// V: ZB-V of that paper's later version; V-Half and V-Min of Qi et al., "Pipeline
// Parallelism with Controllable Memory", NeurIPS 2024; DualPipeV, which is DualPipe
// (DeepSeek-V3 Technical Report, 2024, section 3.2.1) cut in half.
//
//===----------------------------------------------------------------------===//

#include "compiler/Schedule/ScheduleFamilies.h"
#include "compiler/Schedule/Timeline.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <deque>
#include <limits>
#include <optional>
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
// Orders from seconds and memory
//
// In the manner of Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section
// 3.1: time is followed run by run, and a mesh that is free takes a forward run or an
// input part if one is ready and memory allows it, else a weight part if it does not
// keep what comes next waiting for long. How eager it is are a few numbers; all
// combinations are tried, and the fastest order is taken.
//
// No mesh waits forever: a forward run leaves room for one of each later stage of its
// mesh, so that the oldest micro-batch that is not done always finds room.
//===----------------------------------------------------------------------===//

static constexpr double kNever = std::numeric_limits<double>::infinity();
/// Memory is counted in parts that need not add up exactly.
static constexpr double kRounding = 1e-6;
/// Orders that are tried on all micro-batches.
static constexpr size_t kFinalists = 12;
/// Runs that are followed to find them; about half a second.
static constexpr size_t kMostRuns = 3000000;

namespace {

struct Policy {
  /// Micro-batches that a stage may begin before the gradient of the first one is
  /// sent back, as a multiple of the stages from it to the end.
  double ahead;
  /// A weight part is taken if at least this part of it fits before the next run.
  double fill;
  /// A forward run is put off if an input part is ready within this part of it.
  double patience;
  /// Which comes first if a forward run and an input part are ready.
  enum { Input, InTurn, Forward } first;
};

/// Activations that each mesh keeps at most, as `KeptFunction` counts them.
using MostKept = std::vector<int64_t>;

class Greedy {
public:
  /// With `orders` forward runs and input parts come as in these lists.
  Greedy(const ScheduleProblem &problem, const Policy &policy, const MostKept &mostKept,
         llvm::ArrayRef<StepList> orders = {})
      : policy(policy), total(problem.numMicroBatches), orders(orders) {
    int64_t numStages = problem.numStages();
    stages.resize(numStages);
    meshes.resize(problem.numMeshes());
    for (auto [index, mesh] : llvm::enumerate(meshes)) {
      mesh.limit = problem.limitOf(int64_t(index));
      mesh.mostKept = mostKept.empty() ? std::numeric_limits<int64_t>::max() : mostKept[index];
    }
    for (size_t index = stages.size(); index-- > 0;) {
      Stage &stage = stages[index];
      stage.mesh = size_t(problem.meshOf[index]);
      stage.seconds = problem.secondsOf(int64_t(index));
      stage.keptPart = problem.keptPartOf(int64_t(index));
      stage.size = problem.sizeOf(int64_t(index));
      stage.inputs.assign(total, index == 0 ? 0 : kNever);
      stage.gradients.assign(total, kNever);
      double ahead = policy.ahead * double(numStages - int64_t(index));
      stage.ahead = std::max<int64_t>(1, int64_t(std::min<double>(ahead, double(total))));
      Mesh &mesh = meshes[stage.mesh];
      stage.laterStages = int64_t(mesh.stages.size());
      for (size_t later : mesh.stages)
        stage.laterSizes += stages[later].size;
      mesh.stages.insert(mesh.stages.begin(), index);
      mesh.steps.reserve(mesh.steps.capacity() + 3 * total);
    }
  }

  std::vector<StepList> run() {
    for (size_t index = 0; index < meshes.size(); ++index)
      wakeAt(0, index);
    while (!events.empty()) {
      auto [time, index] = events.top();
      events.pop();
      Mesh &mesh = meshes[index];
      if (time != mesh.wake) // It was woken earlier.
        continue;
      mesh.wake = kNever;
      mesh.now = time;
      decide(mesh);
    }
    std::vector<StepList> lists;
    for (Mesh &mesh : meshes)
      lists.push_back(std::move(mesh.steps));
    return lists;
  }

private:
  struct Stage {
    size_t mesh = 0;
    StageSeconds seconds;
    double keptPart = 1, size = 1;
    double laterSizes = 0;                      // Of the later stages of its mesh,
    int64_t laterStages = 0;                    // and how many they are.
    int64_t forward = 0, input = 0, weight = 0; // The next micro-batch of each kind.
    int64_t ahead = 1;
    std::vector<double> inputs, gradients; // When they arrive.
  };
  struct Mesh {
    std::vector<size_t> stages;
    double limit = 0;
    int64_t mostKept = 0;
    double now = 0, kept = 0;
    int64_t numKept = 0;
    double wake = kNever; // Of its event; there is one at most that counts.
    bool wasForward = false;
    size_t next = 0;            // In its order, if that is given.
    std::deque<size_t> waiting; // Stages whose weight parts are to come.
    StepList steps;
  };
  using Event = std::pair<double, size_t>;

  void wakeAt(double time, size_t index) {
    Mesh &mesh = meshes[index];
    time = std::max(time, mesh.now);
    if (time < mesh.wake) {
      mesh.wake = time;
      events.push({time, index});
    }
  }

  bool isFull(const Mesh &mesh, const Stage &stage) const {
    return mesh.kept + stage.size + stage.laterSizes > mesh.limit + kRounding ||
           mesh.numKept + 1 + stage.laterStages > mesh.mostKept;
  }

  /// One run of a free mesh, or when to look again.
  void decide(Mesh &mesh) {
    if (!orders.empty())
      return follow(mesh);
    // What is ready, of the oldest micro-batch first.
    Stage *forward = nullptr, *input = nullptr;
    double next = kNever, inputNext = kNever;
    bool makesRoom = false;
    for (size_t index : mesh.stages) {
      Stage &stage = stages[index];
      double forwardAt = stage.forward < total ? stage.inputs[stage.forward] : kNever;
      double inputAt = stage.input < stage.forward ? stage.gradients[stage.input] : kNever;
      bool isAhead = stage.forward - stage.input >= stage.ahead;
      bool hasNoRoom = isFull(mesh, stage);
      if (forwardAt <= mesh.now && !isAhead) {
        makesRoom |= hasNoRoom;
        if (!hasNoRoom && (!forward || stage.forward < forward->forward))
          forward = &stage;
      }
      if (inputAt <= mesh.now && (!input || stage.input < input->input))
        input = &stage;
      if (inputAt > mesh.now)
        inputNext = std::min(inputNext, inputAt);
      if (forwardAt > mesh.now && !hasNoRoom && !isAhead)
        next = std::min(next, forwardAt);
    }
    next = std::min(next, inputNext);
    if (forward && input)
      (policy.first == Policy::Forward || (policy.first == Policy::InTurn && !mesh.wasForward)
           ? input
           : forward) = nullptr;
    if (forward && inputNext < mesh.now + policy.patience * forward->seconds.forward)
      forward = nullptr;
    bool hasWeight = !mesh.waiting.empty();
    // What waits may take more room than the activations.
    if (input && hasWeight && mesh.kept > mesh.limit + kRounding)
      return runWeight(mesh);
    if (input)
      return runInput(mesh, *input);
    if (forward)
      return runForward(mesh, *forward);
    if (hasWeight && (makesRoom || next >= mesh.now + policy.fill * weightSeconds(mesh)))
      return runWeight(mesh);
    if (next < kNever)
      wakeAt(next, indexOf(mesh));
  }

  /// The next of the order, or what fits while that is not ready: a weight part, or with
  /// Policy::Forward another forward run. The order then has one run more of its stage than
  /// there are, which is left out when there is no room for the next micro-batch.
  void follow(Mesh &mesh) {
    llvm::ArrayRef<ScheduleStep> order = orders[indexOf(mesh)];
    auto isReady = [&](const Stage &stage) {
      return stage.forward < total && stage.inputs[stage.forward] <= mesh.now &&
             !isFull(mesh, stage);
    };
    auto isLeftOut = [&](const ScheduleStep &step) {
      const Stage &stage = stages[step.stage];
      return step.kind == RunKind::Forward && stage.forward > step.microBatch && !isReady(stage);
    };
    while (mesh.next < order.size() && isLeftOut(order[mesh.next]))
      ++mesh.next;
    bool hasWeight = !mesh.waiting.empty();
    if (mesh.next == order.size()) {
      if (hasWeight)
        runWeight(mesh);
      return;
    }
    const ScheduleStep &step = order[mesh.next];
    Stage &stage = stages[step.stage];
    bool isForward = step.kind == RunKind::Forward;
    double at = isForward ? stage.inputs[stage.forward] : stage.gradients[step.microBatch];
    bool needsRoom = isForward && (mesh.kept + stage.size > mesh.limit + kRounding ||
                                   mesh.numKept + 1 > mesh.mostKept);
    if (hasWeight && (needsRoom || (!isForward && mesh.kept > mesh.limit + kRounding) ||
                      at >= mesh.now + policy.fill * weightSeconds(mesh)))
      return runWeight(mesh);
    if (at > mesh.now && policy.first == Policy::Forward)
      for (size_t index : llvm::reverse(mesh.stages))
        if (Stage &other = stages[index];
            isReady(other) && at >= mesh.now + policy.fill * other.seconds.forward)
          return runForward(mesh, other);
    if (at == kNever)
      return;
    if (at > mesh.now)
      return wakeAt(at, indexOf(mesh));
    ++mesh.next;
    isForward ? runForward(mesh, stage) : runInput(mesh, stage);
  }

  size_t indexOf(const Mesh &mesh) const { return &mesh - meshes.data(); }
  double weightSeconds(const Mesh &mesh) const {
    return stages[mesh.waiting.front()].seconds.backwardWeight;
  }

  double sendSeconds(size_t from, size_t to, double seconds) const {
    return stages[from].mesh == stages[to].mesh ? 0 : seconds;
  }

  void runForward(Mesh &mesh, Stage &stage) {
    size_t index = &stage - stages.data();
    double end = mesh.now + stage.seconds.forward;
    mesh.kept += stage.size;
    ++mesh.numKept;
    mesh.wasForward = true;
    if (index + 1 < stages.size()) {
      double arrival = end + sendSeconds(index, index + 1, stage.seconds.forth);
      stages[index + 1].inputs[stage.forward] = arrival;
      wakeAt(arrival, stages[index + 1].mesh);
    } else {
      stage.gradients[stage.forward] = end;
    }
    finish(mesh, {RunKind::Forward, int64_t(index), stage.forward++}, end);
  }

  void runInput(Mesh &mesh, Stage &stage) {
    size_t index = &stage - stages.data();
    double end = mesh.now + stage.seconds.backwardInput;
    mesh.kept -= stage.size * (1 - stage.keptPart);
    mesh.wasForward = false;
    mesh.waiting.push_back(index);
    if (index > 0) {
      double arrival = end + sendSeconds(index, index - 1, stages[index - 1].seconds.back);
      stages[index - 1].gradients[stage.input] = arrival;
      wakeAt(arrival, stages[index - 1].mesh);
    }
    finish(mesh, {RunKind::BackwardInput, int64_t(index), stage.input++}, end);
  }

  void runWeight(Mesh &mesh) {
    size_t index = mesh.waiting.front();
    Stage &stage = stages[index];
    mesh.waiting.pop_front();
    mesh.kept -= stage.size * stage.keptPart;
    --mesh.numKept;
    finish(mesh, {RunKind::BackwardWeight, int64_t(index), stage.weight++},
           mesh.now + stage.seconds.backwardWeight);
  }

  void finish(Mesh &mesh, const ScheduleStep &step, double end) {
    mesh.steps.push_back(step);
    mesh.now = end;
    mesh.wake = kNever;
    wakeAt(end, indexOf(mesh));
  }

  Policy policy;
  int64_t total;
  llvm::ArrayRef<StepList> orders;
  std::vector<Stage> stages;
  std::vector<Mesh> meshes;
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

bool fits(const ScheduleProblem &problem, llvm::ArrayRef<StepList> lists,
          const MostKept &mostKept = {}) {
  for (auto [mesh, peak] : llvm::enumerate(peakActivations(problem, lists)))
    if (peak > problem.limitOf(int64_t(mesh)) + kRounding)
      return false;
  if (mostKept.empty())
    return true;
  ScheduleProblem counted = problem;
  counted.sizes.clear();
  counted.keptParts.clear();
  for (auto [most, peak] : llvm::zip_equal(mostKept, peakActivations(counted, lists)))
    if (peak > double(most) + kRounding)
      return false;
  return true;
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

void forEach(const ScheduleProblem &problem, size_t count, llvm::function_ref<void(size_t)> work) {
  if (problem.forEach)
    return problem.forEach(count, work);
  for (size_t i = 0; i < count; ++i)
    work(i);
}

/// An order's worth and the number of its way, the best one first.
using Ranks = std::vector<std::tuple<double, double, size_t>>;

/// Of the orders that ways make, those that fit.
Ranks rank(const ScheduleProblem &problem, size_t numWays, const MostKept &mostKept,
           llvm::function_ref<std::vector<StepList>(size_t)> make) {
  std::vector<std::optional<std::pair<double, double>>> found(numWays);
  forEach(problem, numWays, [&](size_t way) {
    std::vector<StepList> lists = make(way);
    if (fits(problem, lists, mostKept))
      found[way] = worth(problem, lists);
  });
  Ranks ranks;
  for (auto [way, its] : llvm::enumerate(found))
    if (its)
      ranks.emplace_back(its->first, its->second, way);
  llvm::sort(ranks);
  return ranks;
}

/// The best of what is offered, the first of equals.
class BestOrder {
public:
  BestOrder(const ScheduleProblem &problem, const MostKept &mostKept)
      : problem(problem), mostKept(mostKept) {}
  void offer(std::vector<StepList> lists) {
    if (fits(problem, lists, mostKept))
      take(worth(problem, lists), lists);
  }
  /// Those of the first ways, made for all of the problem; where none of these fits, of the next.
  void offer(const Ranks &ranks, llvm::function_ref<std::vector<StepList>(size_t)> make) {
    llvm::ArrayRef<Ranks::value_type> left(ranks);
    do {
      llvm::ArrayRef<Ranks::value_type> first = left.take_front(kFinalists);
      left = left.drop_front(first.size());
      std::vector<std::vector<StepList>> orders(first.size());
      std::vector<std::pair<double, double>> found(first.size(), {kNever, kNever});
      forEach(problem, first.size(), [&](size_t i) {
        orders[i] = make(std::get<2>(first[i]));
        if (fits(problem, orders[i], mostKept))
          found[i] = worth(problem, orders[i]);
      });
      for (auto [its, lists] : llvm::zip_equal(found, orders))
        take(its, lists);
    } while (best.empty() && !left.empty());
  }
  std::vector<StepList> take() { return std::move(best); }

private:
  void take(std::pair<double, double> found, std::vector<StepList> &lists) {
    if (found < least) {
      least = found;
      best = std::move(lists);
    }
  }

  const ScheduleProblem &problem;
  const MostKept &mostKept;
  std::vector<StepList> best;
  std::pair<double, double> least = {kNever, kNever};
};

/// A micro-batch's activations of each stage of a mesh.
double sizeOfOne(const ScheduleProblem &problem, int64_t mesh) {
  double size = 0;
  for (auto [stage, its] : llvm::enumerate(problem.meshOf))
    size += its == mesh ? problem.sizeOf(int64_t(stage)) : 0;
  return size;
}

llvm::Error checkRoom(llvm::StringRef name, const ScheduleProblem &problem) {
  for (int64_t mesh = 0; mesh < problem.numMeshes(); ++mesh)
    if (problem.limitOf(mesh) + kRounding < sizeOfOne(problem, mesh))
      return makeError(ErrorCode::Method,
                       "schedule '" + name.str() +
                           "' needs room for the activations of one micro-batch on each mesh, got "
                           "a limit of " +
                           std::to_string(problem.limitOf(mesh)) + " on mesh " +
                           std::to_string(mesh));
  return llvm::Error::success();
}

} // namespace

llvm::Expected<std::vector<StepList>> schedule::generateZbAuto(const ScheduleProblem &given) {
  ScheduleProblem problem = withoutMissing(given);
  if (llvm::Error error = checkRoom("zb-auto", problem))
    return std::move(error);
  const MostKept noLimit;
  BestOrder best(problem, noLimit);
  for (ScheduleFunction byHand : {generate1F1B, generateZbH1}) {
    llvm::Expected<std::vector<StepList>> lists = byHand(problem);
    if (!lists)
      return lists.takeError();
    best.offer(std::move(*lists));
  }
  // Which policies are good shows after some round trips.
  ScheduleProblem shorter = problem;
  shorter.numMicroBatches = std::min(problem.numMicroBatches, 4 * problem.numMeshes());
  std::vector<Policy> policies;
  for (double ahead : {1.0, 1.5, 2.0, kNever})
    for (double fill : {0.0, 0.5, 1.0})
      for (double patience : {0.0, 0.5})
        for (auto first : {Policy::InTurn, Policy::Input})
          policies.push_back({ahead, fill, patience, first});
  auto run = [&](const ScheduleProblem &problem) {
    return [&](size_t way) { return Greedy(problem, policies[way], {}).run(); };
  };
  best.offer(rank(shorter, policies.size(), noLimit, run(shorter)), run(problem));
  return best.take();
}

int64_t schedule::keptZbAuto(const ScheduleProblem &problem, int64_t mesh) {
  // What is kept between the two parts takes its part of the room.
  double least = std::min(problem.keptPartOf(mesh), 1.0);
  double most = least > 0 ? problem.limitOf(mesh) / least : double(problem.numMicroBatches);
  return int64_t(std::min(most + kRounding, double(problem.numMicroBatches)));
}

//===----------------------------------------------------------------------===//
// Under a limit on activations, whatever lies where
//
// In the manner of Qi et al., "Pipeline Parallelism with Controllable Memory": one
// micro-batch's runs are given times, which repeat for the next one a period later, and
// no two runs of a mesh meet in a period. How long a micro-batch is under way is how
// much is kept. The times give an order of forward runs and input parts, which then
// come as early as they can, with weight parts between them. Where the paper gives
// offsets for runs of one second, here each run takes the first time that is free,
// after a delay on each of the four ways (forth and back, down and up), for runs of any
// seconds. All of these orders, and those of a greedy policy, are tried on some round
// trips, the best ones on all micro-batches.
//===----------------------------------------------------------------------===//

namespace {

/// Times of one micro-batch's runs that repeat after a period.
class RepeatedTimes {
public:
  /// Delays of forward runs of the first half of the stages, of the second, and of input
  /// parts of the second and the first.
  using Delays = std::array<double, 4>;

  RepeatedTimes(const ScheduleProblem &problem, double period, const Delays &delays)
      : meshOf(problem.meshOf), period(period), taken(problem.numMeshes()) {
    int64_t numStages = problem.numStages();
    double now = 0;
    for (int64_t stage = 0; stage < numStages; ++stage) {
      bool isSecond = 2 * stage >= numStages;
      bool isSent = stage > 0 && problem.meshOf[stage - 1] != problem.meshOf[stage];
      StageSeconds seconds = problem.secondsOf(stage);
      if (isSent)
        now += problem.secondsOf(stage - 1).forth + delays[isSecond];
      runs.push_back({place(stage, now, seconds.forward), RunKind::Forward, stage});
      now = runs.back().begin + seconds.forward;
    }
    for (int64_t stage = numStages; stage-- > 0;) {
      bool isFirst = 2 * stage < numStages;
      bool isSent = stage + 1 < numStages && problem.meshOf[stage + 1] != problem.meshOf[stage];
      StageSeconds seconds = problem.secondsOf(stage);
      if (isSent)
        now += seconds.back + delays[2 + isFirst];
      runs.push_back({place(stage, now, seconds.backwardInput), RunKind::BackwardInput, stage});
      now = runs.back().begin + seconds.backwardInput;
    }
  }

  /// How many activations the busiest mesh keeps on average, for its part of what it may.
  double useOf(const MostKept &mostKept) const {
    std::vector<double> sums(taken.size(), 0);
    for (const Run &run : runs)
      sums[meshOf[run.stage]] += run.kind == RunKind::Forward ? -run.begin : run.begin;
    double most = 0;
    for (auto [sum, limit] : llvm::zip_equal(sums, mostKept))
      most = std::max(most, sum / period / double(limit));
    return most;
  }

  std::vector<StepList> orders(int64_t numMicroBatches) const {
    using Timed = std::tuple<double, int64_t, size_t>;
    std::vector<std::vector<Timed>> timed(taken.size());
    for (auto [index, run] : llvm::enumerate(runs))
      for (int64_t microBatch = 0; microBatch < numMicroBatches; ++microBatch)
        timed[meshOf[run.stage]].emplace_back(run.begin + double(microBatch) * period, microBatch,
                                              index);
    std::vector<StepList> lists;
    for (std::vector<Timed> &mine : timed) {
      llvm::sort(mine);
      StepList &list = lists.emplace_back();
      list.reserve(mine.size());
      for (auto [begin, microBatch, index] : mine)
        list.push_back({runs[index].kind, runs[index].stage, microBatch});
    }
    return lists;
  }

private:
  struct Run {
    double begin;
    RunKind kind;
    int64_t stage;
  };

  /// The first time from `now` on that is free in all periods.
  double place(int64_t stage, double now, double seconds) {
    auto &spans = taken[meshOf[stage]];
    const double little = kRounding * period;
    for (bool isMoved = true; isMoved;) {
      isMoved = false;
      for (auto [begin, end] : spans) {
        // The span's repetition that ends after `now`.
        double shift = std::floor((now + little - end) / period) + 1;
        double from = begin + shift * period, to = end + shift * period;
        if (from >= now + seconds - little || to <= now + little)
          continue;
        now = to;
        isMoved = true;
        if (++numMoves > 64 * int64_t(meshOf.size()))
          return now; // There is no room; the order is good all the same.
      }
    }
    spans.emplace_back(now, now + seconds);
    return now;
  }

  llvm::ArrayRef<int64_t> meshOf;
  double period;
  std::vector<std::vector<std::pair<double, double>>> taken; // Of each mesh.
  std::vector<Run> runs;
  int64_t numMoves = 0;
};

/// Seconds of a micro-batch on the busiest mesh.
double busiestSeconds(const ScheduleProblem &problem) {
  std::vector<double> sums(problem.numMeshes(), 0);
  for (auto [stage, mesh] : llvm::enumerate(problem.meshOf)) {
    StageSeconds seconds = problem.secondsOf(int64_t(stage));
    sums[mesh] += seconds.forward + seconds.backwardInput + seconds.backwardWeight;
  }
  return *llvm::max_element(sums);
}

/// The fastest order found in which no mesh keeps more than that.
llvm::Expected<std::vector<StepList>> orderWithin(llvm::StringRef name,
                                                  const ScheduleProblem &given,
                                                  const MostKept &mostKept,
                                                  std::vector<StepList> byHand = {}) {
  ScheduleProblem problem = withoutMissing(given);
  if (problem.limits.empty())
    problem.limits.assign(problem.numMeshes(), kNever);
  if (llvm::Error error = checkRoom(name, problem))
    return std::move(error);
  BestOrder best(problem, mostKept);
  if (!byHand.empty())
    best.offer(std::move(byHand));

  // Times are good for other seconds, too.
  ScheduleProblem even = problem;
  even.seconds.clear();
  struct Repeated {
    double use;
    size_t number;
    RepeatedTimes times;
  };
  std::vector<Repeated> repeated;
  for (const ScheduleProblem *timed : {&std::as_const(problem), &std::as_const(even)}) {
    double period = busiestSeconds(*timed);
    double unit = period * double(problem.numMeshes()) / double(3 * problem.numStages());
    for (double slack : {1.0, 1.1})
      for (int code = 0; code < 81 && period > 0; ++code) {
        RepeatedTimes::Delays delays;
        for (int rest = code, at = 0; at < 4; ++at, rest /= 3)
          delays[at] = double(rest % 3) * unit;
        RepeatedTimes times(*timed, period * slack, delays);
        if (double use = times.useOf(mostKept); use <= 1)
          repeated.push_back({use, repeated.size(), std::move(times)});
      }
  }
  // Those that keep as much are alike.
  llvm::sort(repeated, [](const Repeated &a, const Repeated &b) {
    return std::tie(a.use, a.number) < std::tie(b.use, b.number);
  });
  auto isAlike = [](const Repeated &a, const Repeated &b) { return b.use - a.use < kRounding; };
  repeated.erase(llvm::unique(repeated, isAlike), repeated.end());

  struct Way {
    Policy policy;
    const RepeatedTimes *times = nullptr;
  };
  std::vector<Way> ways;
  for (double ahead : {0.6, 1.0, kNever})
    for (double fill : {0.0, 1.0})
      for (double patience : {0.0, 0.5})
        for (auto first : {Policy::Forward, Policy::InTurn, Policy::Input})
          ways.push_back({{ahead, fill, patience, first}});
  ScheduleProblem shorter = problem;
  shorter.numMicroBatches = std::min(problem.numMicroBatches, 2 * problem.numMeshes());
  size_t numRuns = 3 * problem.numStages() * shorter.numMicroBatches;
  size_t most =
      std::clamp<size_t>(kMostRuns / numRuns / 4, 8, std::max<size_t>(repeated.size(), 8));
  double step = std::max(1.0, double(repeated.size()) / double(most));
  for (double at = 0; at < double(repeated.size()); at += step)
    for (double fill : {0.0, 1.0})
      for (auto first : {Policy::Input, Policy::Forward})
        ways.push_back({{kNever, fill, 0, first}, &repeated[size_t(at)].times});

  auto run = [&](const ScheduleProblem &problem) {
    return [&](size_t index) {
      const Way &way = ways[index];
      std::vector<StepList> orders;
      if (way.times)
        orders = way.times->orders(problem.numMicroBatches);
      return Greedy(problem, way.policy, mostKept, orders).run();
    };
  };
  best.offer(rank(shorter, ways.size(), mostKept, run(shorter)), run(problem));
  return best.take();
}

/// So many micro-batches on each mesh.
MostKept timesStages(const ScheduleProblem &problem, int64_t numMicroBatches) {
  MostKept most;
  for (int64_t mesh = 0; mesh < problem.numMeshes(); ++mesh)
    most.push_back(numMicroBatches * llvm::count(problem.meshOf, mesh));
  return most;
}

int64_t keptAtMost(const ScheduleProblem &problem, int64_t mesh, const MostKept &most) {
  return std::min<int64_t>(most[mesh], problem.numMicroBatches * llvm::count(problem.meshOf, mesh));
}

MostKept mostZbV(const ScheduleProblem &problem) {
  return timesStages(problem, problem.numMeshes());
}
MostKept mostVHalf(const ScheduleProblem &problem) {
  return timesStages(problem, (problem.numMeshes() + 2) / 2);
}
MostKept mostVMin(const ScheduleProblem &problem) {
  return timesStages(problem, (problem.numMeshes() + 4) / 3);
}
MostKept mostDualPipeV(const ScheduleProblem &problem) {
  MostKept most = mostZbV(problem);
  for (int64_t &count : most)
    ++count;
  return most;
}

} // namespace

llvm::Expected<std::vector<StepList>> schedule::generateZbV(const ScheduleProblem &problem) {
  return orderWithin("zb-v", problem, mostZbV(problem));
}
int64_t schedule::keptZbV(const ScheduleProblem &problem, int64_t mesh) {
  return keptAtMost(problem, mesh, mostZbV(problem));
}

llvm::Expected<std::vector<StepList>> schedule::generateVHalf(const ScheduleProblem &problem) {
  return orderWithin("v-half", problem, mostVHalf(problem));
}
int64_t schedule::keptVHalf(const ScheduleProblem &problem, int64_t mesh) {
  return keptAtMost(problem, mesh, mostVHalf(problem));
}

llvm::Expected<std::vector<StepList>> schedule::generateVMin(const ScheduleProblem &problem) {
  return orderWithin("v-min", problem, mostVMin(problem));
}
int64_t schedule::keptVMin(const ScheduleProblem &problem, int64_t mesh) {
  return keptAtMost(problem, mesh, mostVMin(problem));
}

//===----------------------------------------------------------------------===//
// DualPipeV
//===----------------------------------------------------------------------===//

/// Mesh i of p has stages i and 2p - 1 - i, and at least 2p micro-batches: forward runs of
/// both stages until the first gradients come; then, in turn, a forward run of one stage and
/// a backward run of the other; at the end input parts first.
static std::vector<StepList> dualPipeV(const ScheduleProblem &problem) {
  int64_t numMeshes = problem.numMeshes(), total = problem.numMicroBatches;
  std::vector<StepList> lists;
  for (int64_t mesh = 0; mesh < numMeshes; ++mesh) {
    int64_t stages[] = {mesh, 2 * numMeshes - 1 - mesh};
    int64_t forwards[] = {0, 0}, backwards[] = {0, 0};
    std::deque<ScheduleStep> waiting;
    StepList &steps = lists.emplace_back();
    auto forward = [&](int which) {
      steps.push_back({RunKind::Forward, stages[which], forwards[which]++});
    };
    auto input = [&](int which) {
      steps.push_back({RunKind::BackwardInput, stages[which], backwards[which]});
      waiting.push_back({RunKind::BackwardWeight, stages[which], backwards[which]++});
    };
    auto weight = [&] {
      steps.push_back(waiting.front());
      waiting.pop_front();
    };
    auto backward = [&](int which) {
      input(which);
      weight();
    };
    int64_t after = numMeshes - 1 - mesh; // Meshes between this one and the seam.
    for (int64_t i = 0; i < 2 * after; ++i)
      forward(0);
    for (int64_t i = 0; i <= mesh; ++i) {
      forward(0);
      forward(1);
    }
    for (int64_t i = 0; i < after; ++i) {
      backward(1);
      forward(1);
    }
    for (int64_t i = 0; i < total - 2 * numMeshes + mesh + 1; ++i) {
      forward(0);
      backward(1);
      forward(1);
      backward(0);
    }
    for (int64_t i = 0; i < after; ++i) {
      backward(1);
      forward(1);
      backward(0);
    }
    for (int64_t i = 0; i < 2 * (mesh + 1); ++i)
      i <= mesh ? backward(i % 2 == 0) : input(i % 2 == 0);
    for (int64_t i = 0; i < after; ++i) {
      weight();
      input(0);
    }
    while (!waiting.empty())
      weight();
  }
  return lists;
}

/// As it is by hand, if that fits and there are micro-batches enough.
llvm::Expected<std::vector<StepList>> schedule::generateDualPipeV(const ScheduleProblem &problem) {
  ScheduleProblem twice = stagesInV(problem.numMeshes(), 2, problem.numMicroBatches);
  bool isBig = problem.numMicroBatches >= problem.numStages();
  if (isBig && problem.meshOf == twice.meshOf) {
    std::vector<StepList> lists = dualPipeV(problem);
    if (problem.limits.empty() || fits(problem, lists))
      return lists;
  }
  return orderWithin("dualpipe-v", problem, mostDualPipeV(problem));
}
int64_t schedule::keptDualPipeV(const ScheduleProblem &problem, int64_t mesh) {
  return keptAtMost(problem, mesh, mostDualPipeV(problem));
}
