//===- VirtualStagesTest.cpp - several stages a mesh, by brute force ------===//
//
// Every cut, view and choice of small random problems is enumerated; none may beat
// the plan that is found, which has to fit.
//
//===----------------------------------------------------------------------===//

#include "compiler/Stage/Search/VirtualStages.h"

#include "test/Check.h"

#include <map>
#include <random>

using namespace alpa;
using namespace alpa::stage;

namespace {

struct RandomProblem {
  VirtualStageProblem problem;
  std::map<std::tuple<unsigned, unsigned, unsigned>, std::vector<StageChoice>> table;

  void make(std::mt19937 &rng) {
    auto uniform = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
    problem.numMeshes = uniform(1, 3);
    problem.stagesPerMesh = uniform(1, problem.numMeshes == 1 ? 4 : 2);
    problem.placement = uniform(0, 1) ? schedule::Placement::V : schedule::Placement::Rounds;
    problem.numLayers = problem.numStages() + uniform(-1, 2);
    problem.numViews = uniform(1, 2);
    if (uniform(0, 2))
      for (unsigned mesh = 0; mesh < problem.numMeshes; ++mesh)
        problem.memoryBytes.push_back(uniform(40, 160));
    for (unsigned stage = 0; stage < problem.numStages(); ++stage)
      problem.inFlight.push_back(uniform(1, 4));
    bool areEven = uniform(0, 1); // As the layers of a model are.
    for (unsigned lo = 0; lo < problem.numLayers; ++lo)
      for (unsigned hi = lo + 1; hi <= problem.numLayers; ++hi)
        for (unsigned view = 0; view < problem.numViews; ++view)
          for (int c = uniform(0, 2); c > 0; --c) {
            double seconds = areEven ? (hi - lo) * (10 + view) + c : uniform(1, 100);
            table[{lo, hi, view}].push_back(
                {seconds, uniform(1, 30), uniform(0, 10), uniform(0, 5), unsigned(c)});
          }
    problem.choices = [this](unsigned lo, unsigned hi, unsigned, unsigned view) {
      return llvm::ArrayRef<StageChoice>(table[{lo, hi, view}]);
    };
  }
};

/// The view of the mesh of a stage, if an earlier stage lies on it.
std::optional<unsigned> viewOf(const VirtualStageProblem &p, llvm::ArrayRef<VirtualStage> stages,
                               unsigned stage) {
  for (unsigned before = 0; before < stage; ++before)
    if (p.meshOf(before) == p.meshOf(stage))
      return stages[before].view;
  return std::nullopt;
}

/// The fewest seconds of the busiest mesh, of all plans that go on from `stages`.
double enumerate(const VirtualStageProblem &p, std::vector<VirtualStage> &stages) {
  unsigned lo = stages.empty() ? 0 : stages.back().hi, stage = unsigned(stages.size());
  if (stage == p.numStages())
    return lo == p.numLayers && virtualStagesFit(p, stages)
               ? virtualStageSeconds(p, stages)
               : std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  for (unsigned hi = lo + 1; hi <= p.numLayers; ++hi) {
    if (!p.layerRanges.empty() && p.layerRanges[stage] != std::make_pair(lo, hi))
      continue;
    for (unsigned view = 0; view < p.numViews; ++view) {
      if (viewOf(p, stages, stage).value_or(view) != view)
        continue;
      for (const StageChoice &choice : p.choices(lo, hi, p.meshOf(stage), view)) {
        stages.push_back({lo, hi, view, choice});
        best = std::min(best, enumerate(p, stages));
        stages.pop_back();
      }
    }
  }
  return best;
}

bool isValid(const VirtualStageProblem &p, const VirtualStagePlan &plan) {
  if (plan.stages.size() != p.numStages() || !virtualStagesFit(p, plan.stages))
    return false;
  unsigned lo = 0;
  for (unsigned stage = 0; stage < p.numStages(); ++stage) {
    const VirtualStage &mine = plan.stages[stage];
    if (mine.lo != lo || mine.hi <= lo)
      return false;
    if (viewOf(p, plan.stages, stage).value_or(mine.view) != mine.view)
      return false;
    lo = mine.hi;
  }
  return lo == p.numLayers && virtualStageSeconds(p, plan.stages) == plan.seconds;
}

void testAgainstAll() {
  std::mt19937 rng(3);
  unsigned found = 0, rounds = 600;
  for (unsigned round = 0; round < rounds; ++round) {
    RandomProblem r;
    r.make(rng);
    if (round % 4 == 0 && r.problem.numStages() <= r.problem.numLayers) {
      for (unsigned stage = 0; stage < r.problem.numStages(); ++stage)
        r.problem.layerRanges.push_back(
            {stage, stage + 1 == r.problem.numStages() ? r.problem.numLayers : stage + 1});
    }
    std::vector<VirtualStage> stages;
    double best = enumerate(r.problem, stages);
    VirtualStagePlan plan = solveVirtualStages(r.problem);
    CHECK(plan.seconds == best);
    CHECK(plan.stages.empty() == std::isinf(best));
    if (!plan.stages.empty())
      CHECK(isValid(r.problem, plan));
    found += !plan.stages.empty();
  }
  CHECK(found > rounds / 3);
  CHECK(found < rounds);
}

/// Models of equal layers: no mesh has more than its even share, rounded up.
void testEvenLayers() {
  for (unsigned meshes : {2, 4, 8, 16})
    for (unsigned layers : {32, 48, 50, 64}) {
      VirtualStageProblem p;
      p.placement = layers % 3 ? schedule::Placement::V : schedule::Placement::Rounds;
      p.numLayers = layers;
      p.numMeshes = meshes;
      p.stagesPerMesh = 2;
      p.inFlight.assign(p.numStages(), 1);
      std::vector<std::vector<StageChoice>> choices(layers + 1);
      for (unsigned count = 1; count <= layers; ++count)
        choices[count].push_back({double(count), 0, 0, 0, count});
      p.choices = [&](unsigned lo, unsigned hi, unsigned, unsigned) {
        return llvm::ArrayRef<StageChoice>(choices[hi - lo]);
      };
      VirtualStagePlan plan = solveVirtualStages(p);
      CHECK(isValid(p, plan));
      CHECK(plan.seconds == double((layers + meshes - 1) / meshes));
    }
}

} // namespace

int main() {
  testAgainstAll();
  testEvenLayers();
  llvm::outs() << (failures ? "failed" : "all passed") << "\n";
  return failures != 0;
}
