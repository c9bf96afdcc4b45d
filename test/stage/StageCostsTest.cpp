//===- StageCostsTest.cpp - bounds, classes and answers of stages ---------===//
//
// On random steps of a few layers: layer ranges of one class are the same problem; no bound
// is above the optimum under the memory limit, and no answer below it or too large;
// and the plan of the search is as good as that of the DP over the optima of all
// stages.
//
//===----------------------------------------------------------------------===//

#include "compiler/Registration.h"
#include "compiler/Stage/Layers/StageShape.h"
#include "compiler/Stage/Layers/StepLayers.h"
#include "compiler/Stage/Search/LazyStageDp.h"
#include "test/Check.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <numeric>
#include <random>
#include <set>

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;

namespace {

/// The text of a training step of layers of three kinds; weights are updated in an
/// order that is not the layers'.
class StepWriter {
public:
  StepWriter(unsigned numLayers, std::mt19937 &random) : kinds(numLayers), order(numLayers) {
    for (unsigned &kind : kinds)
      kind = random() % 3;
    std::iota(order.begin(), order.end(), 0u);
    std::shuffle(order.begin(), order.end(), random);
  }

  std::string write() {
    unsigned n = kinds.size();
    text = "func.func @main(";
    for (unsigned i = 0; i < n; ++i)
      text += "%w" + number(i) +
              ": tensor<64x64xf32> {alpa.kind = \"state\", alpa.carried_by = " + number(i) +
              " : i64}, ";
    text += "%x0: tensor<32x64xf32> {alpa.kind = \"batch\"}) -> (";
    for (unsigned i = 0; i < n; ++i)
      text += i ? ", tensor<64x64xf32>" : "tensor<64x64xf32>";
    text += ") {\n";
    for (unsigned i = 0; i < n; ++i) {
      std::string x = "%x" + number(i), y = "%x" + number(i + 1), h = "%h" + number(i);
      dot(kinds[i] == 0 ? y : h, x, "%w" + number(i), "[1] x [0]", i, "forward", "32x64", "32x64",
          "64x64");
      if (kinds[i] == 1)
        op(y, "tanh", h, i, "forward", "32x64");
      if (kinds[i] == 2)
        op(y, "add", h + ", " + x, i, "forward", "32x64");
    }
    op("%d" + number(n), "multiply", "%x" + number(n) + ", %x" + number(n), n - 1, "backward",
       "32x64");
    for (unsigned i = n; i-- > 0;) {
      std::string d = "%d" + number(i + 1);
      if (kinds[i] == 1) {
        op("%e" + number(i), "multiply", d + ", %x" + number(i + 1), i, "backward", "32x64");
        d = "%e" + number(i);
      }
      dot("%g" + number(i), "%x" + number(i), d, "[0] x [0]", i, "backward", "64x64", "32x64",
          "32x64");
      std::string back = kinds[i] == 2 ? "%f" + number(i) : "%d" + number(i);
      dot(back, d, "%w" + number(i), "[1] x [1]", i, "backward", "32x64", "32x64", "64x64");
      if (kinds[i] == 2)
        op("%d" + number(i), "add", back + ", " + d, i, "backward", "32x64");
    }
    for (unsigned i : order)
      op("%n" + number(i), "subtract", "%w" + number(i) + ", %g" + number(i), i, "update", "64x64");
    text += "  return ";
    for (unsigned i = 0; i < n; ++i)
      text += (i ? ", %n" : "%n") + number(i);
    text += " : ";
    for (unsigned i = 0; i < n; ++i)
      text += i ? ", tensor<64x64xf32>" : "tensor<64x64xf32>";
    return text + "\n}\n";
  }

private:
  static std::string number(unsigned i) { return std::to_string(i); }
  static std::string place(unsigned layer, const char *phase) {
    return " {alpa.eqn = " + number(layer) + " : i64, alpa.layer = " + number(layer) +
           " : i64, alpa.phase = \"" + phase + "\"} : ";
  }
  void dot(const std::string &to, const std::string &a, const std::string &b, const char *dims,
           unsigned layer, const char *phase, const char *result, const char *left,
           const char *right) {
    text += "  " + to + " = stablehlo.dot_general " + a + ", " + b +
            ", contracting_dims = " + dims + place(layer, phase) + "(tensor<" + left +
            "xf32>, tensor<" + right + "xf32>) -> tensor<" + result + "xf32>\n";
  }
  void op(const std::string &to, const char *name, const std::string &operands, unsigned layer,
          const char *phase, const char *shape) {
    text += "  " + to + " = stablehlo." + name + " " + operands + place(layer, phase) + "tensor<" +
            shape + "xf32>\n";
  }

  std::vector<unsigned> kinds, order;
  std::string text;
};

class StageCostsTest {
public:
  StageCostsTest(func::FuncOp main, const cost::Cluster &cluster, std::mt19937 &random)
      : layers(llvm::cantFail(readLayers(main))), space(wholeSearchSpace(cluster, 2)),
        classes(layers.opsOfLayer), cluster(cluster), random(random) {
    main.front().recomputeOpOrder();
    for (const cost::Host &host : cluster.hosts)
      hostDevices.push_back(host.devices);
  }

  void checkClasses() {
    unsigned n = classes.numLayers();
    for (unsigned lo = 0; lo < n; ++lo)
      for (unsigned hi = lo + 1; hi <= n; ++hi) {
        auto [first, last] = classes.exampleOf(classes.classOf(lo, hi));
        if (first == lo)
          continue;
        ++shared;
        CHECK(describeStage(ops(lo, hi)).words == describeStage(ops(first, last)).words);
      }
  }

  /// Answers and bounds of every run and view against the optimum; and plans.
  void checkCosts() {
    memory = 50000 + random() % 150000;
    numMicroBatches = 1 + random() % 8;
    StageCostOptions options;
    options.numMicroBatches = numMicroBatches;
    options.memoryBytes.assign(space.meshes.size(), memory);
    options.mostInFlight = std::min<int64_t>(numMicroBatches, classes.numLayers());
    options.tolerance = 1e-3;
    if (classes.numLayers() % 2)
      options.mostAtOnce = 0;
    StageCosts costs(layers.opsOfLayer.front().front()->getContext(),
                     {std::make_shared<KnownLayers>(layers.opsOfLayer)}, space.meshes, space.views,
                     options);
    StageDpProblem problem;
    problem.numLayers = classes.numLayers();
    problem.hostDevices = hostDevices;
    problem.submeshes = space.submeshes;
    problem.numMicroBatches = numMicroBatches;
    problem.memoryBytes.assign(space.submeshes.size(), memory);
    PlanTimer timer(cluster, problem, layers, costs);
    problem.transferSeconds = [&](unsigned cut, unsigned from, unsigned to) {
      return timer.send(cut, from, to);
    };
    LazyStageDp search(costs, timer, problem, options.tolerance);
    StageSearchSpace tried;
    tried.schedules = {schedule::findSchedule("1f1b")};
    llvm::Expected<FoundPlan> found = search.run(tried);
    CHECK(bool(found));
    if (!found)
      return llvm::consumeError(found.takeError());
    problem.schedule = tried.schedules.front();
    std::map<std::tuple<unsigned, unsigned, unsigned>, std::vector<StageChoice>> optima;
    for (unsigned lo = 0; lo < problem.numLayers; ++lo)
      for (unsigned hi = lo + 1; hi <= problem.numLayers; ++hi)
        for (unsigned submesh = 0; submesh < space.submeshes.size(); ++submesh)
          optima[{lo, hi, submesh}] = optimaOf(lo, hi, submesh, options.mostInFlight);
    problem.choices = [&](unsigned lo, unsigned hi, unsigned submesh) {
      return llvm::ArrayRef(optima[{lo, hi, submesh}]);
    };
    checkHopes(options, problem.submeshes.size());
    StagePlan best = solveStageDp(problem);
    CHECK(best.stages.empty() == found->plan.stages.empty());
    if (best.stages.empty() || found->plan.stages.empty())
      return;
    ++plans;
    CHECK(stagePlanFits(problem, found->plan.stages));
    CHECK(found->timed.stepSeconds <= secondsByEvents(problem, best) * 1.01);
  }

  /// Stages whose collectives run beside other work, against all choices there are.
  void checkOverlap() {
    for (unsigned lo = 0; lo < classes.numLayers(); ++lo)
      for (const cost::LogicalMesh &mesh : space.meshes) {
        sharding::IntraOpOptions intraOp;
        intraOp.numMicroBatches = 1 + random() % 2;
        auto problem = llvm::cantFail(
            sharding::StageProblem::build({ops(lo, lo + 1)}, cost::CostModel(mesh), intraOp));
        std::shared_ptr<sharding::StagePoint> best = fastestOfAll(*problem);
        if (!best)
          continue;
        ++enumerated;
        exposed += best->exposedSeconds > 0;
        for (double exposure : {0.0, 0.25, 0.5, 1.0}) {
          sharding::StageProblem::Effort effort;
          effort.exposure = exposure;
          sharding::StageProblem::Priced priced =
              llvm::cantFail(problem->solve(nullptr, 0, effort));
          CHECK(priced.boundSeconds <= best->seconds * (1 + 1e-6));
          CHECK(priced.point && priced.point->seconds >= best->seconds * (1 - 1e-9));
          double phases = priced.point->times.forwardSeconds + priced.point->times.backwardSeconds +
                          priced.point->times.updateSeconds / double(intraOp.numMicroBatches);
          CHECK(std::abs(phases - priced.point->seconds) <= 1e-6 * phases);
        }
        // Memory so dear that its prices do not add up as they are.
        constexpr double kSecondsPerByte = 1e6;
        sharding::StageUsage usage = problem->usageAt(best->steadyTime, 1);
        usage.add(problem->stateUsage(), 1);
        usage.add(problem->activationUsage(), 1);
        sharding::StageProblem::Priced dear =
            llvm::cantFail(problem->solve(&usage, kSecondsPerByte, {}));
        CHECK(dear.point);
        CHECK(dear.boundSeconds <=
              (best->seconds + kSecondsPerByte * double(usage.bytes(best->choices))) * (1 + 1e-6));
        sharding::StageProblem::Priced free = llvm::cantFail(problem->solve(nullptr, 0, {}));
        std::vector<std::shared_ptr<sharding::StagePoint>> points;
        auto found = llvm::cantFail(problem->solveExposed(free, {}, points));
        CHECK(found.boundSeconds <= best->seconds * (1 + 1e-6));
        // Between two kinds of plans prices find none.
        CHECK(found.point->seconds <= best->seconds * 1.2);
        exact += found.point->seconds <= best->seconds * (1 + 1e-9);
      }
  }

  unsigned shared = 0, plans = 0, limited = 0, enumerated = 0, exposed = 0, exact = 0;

private:
  /// What is hoped for by single devices, and by single layers.
  void checkHopes(StageCostOptions options, unsigned numSubmeshes) {
    options.mostAtOnce = 0;
    StageCosts costs(layers.opsOfLayer.front().front()->getContext(),
                     {std::make_shared<KnownLayers>(layers.opsOfLayer)}, space.meshes, space.views,
                     options);
    auto listHopes = [&] {
      costs.refresh(/*onlySolved=*/false);
      std::vector<double> hopes;
      for (unsigned lo = 0; lo < classes.numLayers(); ++lo)
        for (unsigned hi = lo + 1; hi <= classes.numLayers(); ++hi)
          for (unsigned submesh = 0; submesh < numSubmeshes; ++submesh) {
            hopes.push_back(std::numeric_limits<double>::infinity());
            for (const StageChoice &hope : costs.choices(lo, hi, submesh))
              hopes.back() = std::min(hopes.back(), hope.seconds);
          }
      return hopes;
    };
    llvm::cantFail(costs.prepare());
    std::vector<double> first = listHopes();
    llvm::cantFail(costs.askAll());
    std::vector<double> then = listHopes();
    CHECK(first != then);
    for (auto [before, after] : llvm::zip_equal(first, then))
      CHECK(before <= after * (1 + 1e-6)); // Costs are whole picoseconds.
  }

  /// Null if there are too many choices to look at.
  static std::shared_ptr<sharding::StagePoint> fastestOfAll(const sharding::StageProblem &problem) {
    constexpr size_t kMost = 20000;
    llvm::ArrayRef<sharding::NodeInfo> nodes = problem.nodes();
    size_t count = 1;
    for (const sharding::NodeInfo &node : nodes)
      if ((count *= node.numChoices()) > kMost)
        return nullptr;
    std::shared_ptr<sharding::StagePoint> best;
    for (size_t index = 0; index < count; ++index) {
      std::vector<unsigned> choices;
      size_t rest = index;
      for (const sharding::NodeInfo &node : nodes) {
        choices.push_back(rest % node.numChoices());
        rest /= node.numChoices();
      }
      std::shared_ptr<sharding::StagePoint> point = problem.evaluate(std::move(choices));
      if (point && (!best || point->seconds < best->seconds))
        best = point;
    }
    return best;
  }

  SmallVector<Operation *> ops(unsigned lo, unsigned hi) const {
    return orderLayerRange(llvm::ArrayRef(layers.opsOfLayer).slice(lo, hi - lo));
  }

  /// Of a plan of optima.
  double secondsByEvents(const StageDpProblem &problem, const StagePlan &plan) {
    std::vector<StageTimes> times;
    for (auto [index, stage] : llvm::enumerate(plan.stages)) {
      times.push_back(optimumTimes[stage.choice.id]);
      if (index + 1 == plan.stages.size())
        continue;
      SendSeconds send =
          problem.transferSeconds(stage.hi, stage.submesh, plan.stages[index + 1].submesh);
      times.back().forthSeconds = send.forth;
      times.back().backSeconds = send.back;
      times.back().forthLatencySeconds = send.forthLatency;
      times.back().backLatencySeconds = send.backLatency;
    }
    return pipelineSeconds(*problem.schedule, times, problem.numMicroBatches);
  }

  std::vector<StageChoice> optimaOf(unsigned lo, unsigned hi, unsigned submesh,
                                    int64_t mostInFlight) {
    std::vector<StageChoice> choices;
    for (unsigned view : space.views[submesh])
      for (int64_t inFlight = 1; inFlight <= mostInFlight; ++inFlight) {
        sharding::IntraOpOptions intraOp;
        intraOp.numMicroBatches = numMicroBatches;
        intraOp.memoryLimitBytes = memory;
        intraOp.microBatchesInFlight = inFlight;
        intraOp.acceptableGap = 0;
        sharding::StageView stage{ops(lo, hi)};
        cost::CostModel model(space.meshes[view]);
        sharding::IntraOpResult result =
            llvm::cantFail(sharding::solveIntraOp(stage, model, intraOp));
        bool fits = result.solution.status != solver::SolveStatus::Infeasible;
        double seconds = result.forwardSeconds + result.backwardSeconds +
                         result.updateSeconds / double(numMicroBatches);
        checkAnswer(stage, model, intraOp, fits, seconds);
        if (!fits)
          continue;
        choices.push_back({seconds, result.stateBytes, result.activationBytes,
                           result.temporaryBytes, unsigned(optimumTimes.size())});
        StageTimes &times = optimumTimes.emplace_back();
        times.forwardSeconds = result.forwardSeconds;
        times.backwardSeconds = result.backwardSeconds;
        times.updateSeconds = result.updateSeconds;
      }
    return choices;
  }

  void checkAnswer(const sharding::StageView &stage, const cost::CostModel &model,
                   const sharding::IntraOpOptions &intraOp, bool fits, double seconds) {
    auto problem = llvm::cantFail(sharding::StageProblem::build(stage, model, intraOp));
    sharding::StageProblem::Priced free = llvm::cantFail(problem->solve(nullptr, 0, {}));
    CHECK(free.point);
    std::vector<std::shared_ptr<sharding::StagePoint>> points{free.point};
    // Wherever it begins.
    double likelyPrice = std::uniform_real_distribution<>(-1, 1)(random) * free.point->seconds /
                         double(std::max<int64_t>(memory, 1));
    RunAnswer answer =
        llvm::cantFail(solveWithin(*problem, free, intraOp.microBatchesInFlight, memory,
                                   std::max(likelyPrice, 0.0), 1e-3, {}, points));
    CHECK(fits || !answer.point);
    limited += free.point->peakBytes(intraOp.microBatchesInFlight) > memory;
    if (!fits)
      return;
    CHECK(answer.boundSeconds <= seconds * (1 + 1e-9));
    if (!answer.point)
      return;
    CHECK(answer.point->seconds >= seconds * (1 - 1e-9));
    CHECK(answer.point->peakBytes(intraOp.microBatchesInFlight) <= memory);
    std::shared_ptr<sharding::StagePoint> again = problem->evaluate(answer.point->choices);
    CHECK(again && again->seconds == answer.point->seconds);
  }

  StepLayers layers;
  SearchSpace space;
  LayerRangeEquivalence classes;
  const cost::Cluster &cluster;
  std::mt19937 &random;
  std::vector<int64_t> hostDevices;
  int64_t memory = 0, numMicroBatches = 1;
  std::vector<StageTimes> optimumTimes; // By the ids of choices.
};

} // namespace

int main() {
  DialectRegistry registry;
  registerDialects(registry);
  MLIRContext context(registry);
  context.loadAllAvailableDialects();
  std::mt19937 random(7);
  cost::Cluster cluster = llvm::cantFail(cost::loadCluster("cpu-test:1"));
  unsigned shared = 0, plans = 0, limited = 0;
  for (unsigned round = 0; round < 8; ++round) {
    std::string text = StepWriter(2 + round % 3, random).write();
    OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
    CHECK(bool(module));
    if (!module)
      return 1;
    StageCostsTest test(module->lookupSymbol<func::FuncOp>("main"), cluster, random);
    test.checkClasses();
    test.checkCosts();
    shared += test.shared;
    plans += test.plans;
    limited += test.limited;
  }
  for (unsigned round = 0; round < 8; ++round) {
    std::string text = StepWriter(10, random).write();
    OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
    StageCostsTest test(module->lookupSymbol<func::FuncOp>("main"), cluster, random);
    test.checkClasses();
    shared += test.shared;
  }
  unsigned enumerated = 0, exposed = 0, exact = 0;
  for (unsigned round = 0; round < 60; ++round) {
    cost::Cluster overlapping = cluster;
    for (cost::DeviceType &type : overlapping.deviceTypes)
      type.overlapSlowdown = round % 3 ? 0.2 : 0.6;
    // From links that hide behind work to such that work hides behind.
    overlapping.intraHost.bandwidthBytesPerSecond *= std::pow(10.0, double(random() % 4) - 2);
    overlapping.intraHost.latencySeconds = round % 2 ? 1e-9 : 1e-7;
    std::string text = StepWriter(1 + round % 2, random).write();
    OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(text, &context);
    StageCostsTest test(module->lookupSymbol<func::FuncOp>("main"), overlapping, random);
    test.checkOverlap();
    enumerated += test.enumerated;
    exposed += test.exposed;
    exact += test.exact;
  }
  // Otherwise nothing was tested.
  CHECK(enumerated > 30);
  CHECK(exposed > 5);
  CHECK(exact > enumerated * 0.9);
  CHECK(shared > 3);
  CHECK(plans > 3);
  CHECK(limited > 20);
  llvm::outs() << (failures == 0 ? "all passed\n" : "failed\n");
  return failures != 0;
}
