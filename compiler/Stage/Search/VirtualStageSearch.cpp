//===- VirtualStageSearch.cpp - stages that share meshes ------------------===//

#include "compiler/Stage/Search/VirtualStageSearch.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

#include <map>
#include <numeric>

using namespace alpa;
using namespace alpa::stage;

llvm::Error stage::checkVirtualStages(const StageSearchSpace &tried, const SearchSpace &space,
                                      const StageDpProblem &problem) {
  unsigned perMesh = tried.stagesPerMesh, numLayers = problem.numLayers;
  const char *name = tried.schedules.front()->name.data();
  if (!space.manual) {
    if (!llvm::all_equal(problem.hostKinds) || !llvm::all_equal(problem.hostDevices))
      return llvm::createStringError(
          "schedule '%s' needs equal meshes, but the cluster's hosts differ; use another "
          "schedule, or give submeshes",
          name);
    if (perMesh > numLayers)
      return llvm::createStringError("%u stages on a mesh need as many layers, got %u; use fewer "
                                     "virtual-stages, or raise the number of layers of "
                                     "alpa-cluster-layers",
                                     perMesh, numLayers);
    return llvm::Error::success();
  }
  for (const cost::Submesh &submesh : space.submeshes)
    if (!(submesh == space.submeshes.front()))
      return llvm::createStringError("schedule '%s' needs equal submeshes, got %ldx%ld and %ldx%ld",
                                     name, long(space.submeshes.front().hosts),
                                     long(space.submeshes.front().devicesPerHost),
                                     long(submesh.hosts), long(submesh.devicesPerHost));
  if (perMesh * space.submeshes.size() > numLayers)
    return llvm::createStringError(
        "%u stages on each of %u meshes need %u layers, got %u; use fewer virtual-stages, or raise "
        "`layers`",
        perMesh, unsigned(space.submeshes.size()), unsigned(perMesh * space.submeshes.size()),
        numLayers);
  return llvm::Error::success();
}

std::vector<VirtualStageSearch::Meshes>
VirtualStageSearch::listMeshes(unsigned stagesPerMesh) const {
  std::vector<Meshes> list;
  if (space.manual) {
    list.emplace_back(space.submeshes.size());
    std::iota(list.back().begin(), list.back().end(), 0);
    return list;
  }
  int64_t devices =
      std::accumulate(problem.hostDevices.begin(), problem.hostDevices.end(), int64_t(0));
  for (auto [index, submesh] : llvm::enumerate(space.submeshes)) {
    int64_t count = devices / submesh.numDevices();
    if (devices % submesh.numDevices() == 0 && count * stagesPerMesh <= problem.numLayers)
      list.emplace_back(count, index);
  }
  return list;
}

VirtualStageProblem VirtualStageSearch::makeProblem(const Meshes &meshes,
                                                    const StageSearchSpace &tried,
                                                    const StageRule &rule) {
  VirtualStageProblem cut;
  cut.numLayers = problem.numLayers;
  cut.numMeshes = unsigned(meshes.size());
  cut.stagesPerMesh = tried.stagesPerMesh;
  cut.placement = tried.schedules.front()->placement;
  cut.layerRanges = space.layerRanges;
  cut.tolerance = gap / 4;
  cut.numViews = 0;
  for (unsigned submesh : meshes) {
    cut.numViews = std::max<unsigned>(cut.numViews, space.views[submesh].size());
    if (!problem.memoryBytes.empty())
      cut.memoryBytes.push_back(problem.memoryBytes[submesh]);
  }
  std::vector<int64_t> meshOf;
  for (unsigned stage = 0; stage < cut.numStages(); ++stage)
    meshOf.push_back(cut.meshOf(stage));
  // Seconds decide at most which of a mesh's stages keep more.
  StageTimes even;
  even.forwardSeconds = even.backwardWeightSeconds = 1;
  even.backwardSeconds = 2;
  std::vector<StageTimes> times(cut.numStages(), even);
  std::vector<FlightBytes> one(cut.numStages(), {1, 1});
  for (const StageFlights &flights : countFlights(
           orderPipeline(*tried.schedules.front(), times, problem.numMicroBatches, meshOf), one))
    cut.inFlight.push_back(std::max<int64_t>(1, flights.bytes));
  cut.choices = [this, meshes, rule](unsigned lo, unsigned hi, unsigned mesh,
                                     unsigned view) -> llvm::ArrayRef<StageChoice> {
    llvm::ArrayRef<unsigned> views = space.views[meshes[mesh]];
    if (view >= views.size() || (rule && !rule(lo, hi, meshes[mesh])))
      return {};
    return costs.choicesOn(lo, hi, views[view]);
  };
  return cut;
}

/// The same stages as they turned out, if all fit.
VirtualStagePlan VirtualStageSearch::solved(const VirtualStageProblem &cut,
                                            VirtualStagePlan plan) const {
  for (auto [index, stage] : llvm::enumerate(plan.stages)) {
    std::optional<StageChoice> known = costs.known(stage.choice.id, cut.inFlight[index]);
    if (!known)
      return {};
    stage.choice = *known;
  }
  if (!virtualStagesFit(cut, plan.stages))
    return {};
  plan.seconds = virtualStageSeconds(cut, plan.stages);
  return plan;
}

llvm::Expected<VirtualStagePlan> VirtualStageSearch::search(const VirtualStageProblem &cut,
                                                            double mostSeconds) {
  VirtualStagePlan best;
  auto offer = [&](VirtualStagePlan plan) {
    if (!plan.stages.empty() && plan.seconds < best.seconds)
      best = std::move(plan);
  };
  auto requestsOf = [&](const VirtualStagePlan &plan, bool onlyHopes) {
    std::vector<StageCosts::Request> requests;
    for (auto [index, stage] : llvm::enumerate(plan.stages))
      if (!onlyHopes || costs.isHope(stage.choice.id))
        requests.push_back({stage.choice.id, cut.inFlight[index]});
    return requests;
  };
  // Bounds of stages are a little too low, so that other cuts look better until their stages are
  // solved, too; that gains next to nothing where layers are alike.
  constexpr unsigned kMostRounds = 48, kMoreRounds = 3;
  unsigned last = kMostRounds;
  for (unsigned round = 0; round < last; ++round) {
    costs.refresh(/*onlySolved=*/false);
    VirtualStagePlan hoped = solveVirtualStages(cut);
    if (hoped.stages.empty() || best.seconds * (1 - gap) <= hoped.seconds ||
        costs.work() >= mostWork)
      break;
    if (hoped.seconds >= mostSeconds)
      return VirtualStagePlan();
    std::vector<StageCosts::Request> missing = requestsOf(hoped, /*onlyHopes=*/true);
    if (missing.empty()) {
      offer(std::move(hoped));
      break;
    }
    if (llvm::Error error = costs.solve(missing))
      return std::move(error);
    offer(solved(cut, std::move(hoped)));
    // What other rounds solved may go together.
    costs.refresh(/*onlySolved=*/true);
    offer(solveVirtualStages(cut));
    if (!best.stages.empty() && last == kMostRounds)
      last = std::min(last, round + 1 + kMoreRounds);
  }
  // Solves with the limit in the problem gain little where prices found something.
  constexpr double kHopeful = 1.02;
  while (true) {
    costs.refresh(/*onlySolved=*/true);
    offer(solveVirtualStages(cut));
    if (best.stages.empty() || best.seconds > mostSeconds * kHopeful)
      return best;
    llvm::Expected<bool> better = costs.improve(requestsOf(best, /*onlyHopes=*/false));
    if (!better)
      return better.takeError();
    if (!*better)
      return best;
    offer(solved(cut, best));
  }
}

/// Stages of a mesh divide its memory by what they hold: state alike, activations by the
/// micro-batches that each has in flight. How much is of which kind is that of the layers as they
/// are written, or computed again if that cannot fit.
void VirtualStageSearch::shareMemory(const VirtualStageProblem &cut, const Meshes &meshes) {
  std::vector<double> sums(cut.numMeshes, 0);
  for (unsigned stage = 0; stage < cut.numStages(); ++stage)
    sums[cut.meshOf(stage)] += double(cut.inFlight[stage]);
  double held = 0;
  for (unsigned variant : {0u, std::min(1u, costs.numVariants() - 1)}) {
    LayerBounds::Bytes least = costs.leastBytes(variant, space.views[meshes.front()].front());
    held = double(least.state) / std::max<double>(1, double(least.activations));
    double runs = *llvm::max_element(sums) / cut.stagesPerMesh;
    double bytes = double(least.state) + double(least.activations) * runs;
    if (bytes / cut.numMeshes <= double(cut.memoryOf(0)))
      break;
  }
  std::map<int64_t, double> parts; // By micro-batches in flight.
  std::string name = " shared";
  for (unsigned stage = 0; stage < cut.numStages(); ++stage) {
    int64_t inFlight = cut.inFlight[stage];
    double part = (double(inFlight) + held) / (sums[cut.meshOf(stage)] + held * cut.stagesPerMesh);
    double &known = parts.try_emplace(inFlight, part).first->second;
    known = std::min(known, part);
  }
  for (auto [inFlight, part] : parts)
    name += llvm::formatv(" {0}:{1:F6}", inFlight, part).str();
  costs.shareMemory(
      [parts](int64_t inFlight) {
        auto it = parts.lower_bound(inFlight);
        return it == parts.end() ? parts.rbegin()->second : it->second;
      },
      std::move(name));
}

llvm::Expected<FoundPlan> VirtualStageSearch::run(const StageSearchSpace &tried, double mostSeconds,
                                                  size_t work) {
  mostWork = work;
  if (llvm::Error error = costs.prepare())
    return std::move(error);
  FoundPlan best;
  StageDpProblem scheduled = problem;
  scheduled.schedule = tried.schedules.front();
  for (const Meshes &meshes : listMeshes(tried.stagesPerMesh)) {
    if (meshes.size() == 1 && mostSeconds < std::numeric_limits<double>::infinity())
      continue; // Of stages that follow each other anyway none is faster for being cut.
    // No step is faster than what its busiest mesh does, behind what its first stages need to
    // reach the last mesh and come back, unless weight parts fill that.
    double runs = double(problem.numMicroBatches);
    if (!scheduled.schedule->splitsBackward)
      runs += double(meshes.size() - 1) / tried.stagesPerMesh;
    for (const StageRule &rule : tried.rules) {
      if (costs.work() >= mostWork)
        return best;
      VirtualStageProblem cut = makeProblem(meshes, tried, rule);
      shareMemory(cut, meshes);
      llvm::Expected<VirtualStagePlan> found =
          search(cut, std::min(best.timed.stepSeconds, mostSeconds) / runs);
      if (!found)
        return found.takeError();
      if (found->stages.empty())
        continue;
      StagePlan plan;
      plan.numMeshes = cut.numMeshes;
      plan.placement = cut.placement;
      for (auto [index, stage] : llvm::enumerate(found->stages))
        plan.stages.push_back({stage.lo, stage.hi, meshes[cut.meshOf(index)], stage.choice});
      llvm::Expected<TimedPlan> timed = timer.time(plan, scheduled);
      if (!timed)
        return timed.takeError();
      plan.seconds = timed->stepSeconds;
      if (timed->devices.empty() && !space.manual)
        continue; // Such submeshes do not tile the hosts.
      if (!timed->fits(scheduled, plan))
        continue; // The order for these seconds keeps more than that for equal ones.
      if (!best.schedule || timed->stepSeconds < best.timed.stepSeconds)
        best = {std::move(plan), tried.schedules.front(), std::move(*timed)};
    }
  }
  return best;
}
