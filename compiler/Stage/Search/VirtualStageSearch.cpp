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
    if (perMesh > numLayers)
      return llvm::createStringError("%u stages on a mesh need as many layers, got %u; use fewer "
                                     "virtual-stages, or raise the number of layers of "
                                     "alpa-cluster-layers",
                                     perMesh, numLayers);
    if (perMesh > problem.mostStages)
      return llvm::createStringError("%u stages on a mesh are more than max-stages, %u", perMesh,
                                     problem.mostStages);
    if (space.layerRanges.size() % perMesh != 0)
      return llvm::createStringError("%u layer-ranges do not make %u stages on each mesh",
                                     unsigned(space.layerRanges.size()), perMesh);
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
  int64_t usable = problem.numUsable();
  const size_t given = space.layerRanges.size();
  // Where hosts differ in nothing but their number of devices, parts of them are equal meshes.
  auto areAlike = [&](size_t a, size_t b) {
    const cost::Submesh &one = space.submeshes[a], &other = space.submeshes[b];
    return one.hosts == other.hosts && one.devicesPerHost == other.devicesPerHost &&
           one.racks == other.racks && space.views[a] == space.views[b];
  };
  std::vector<bool> isListed(space.submeshes.size(), false);
  for (auto [index, submesh] : llvm::enumerate(space.submeshes)) {
    if (isListed[index])
      continue;
    Meshes all; // As many as the hosts have room for.
    for (size_t other = index; other < space.submeshes.size(); ++other)
      if (areAlike(index, other)) {
        isListed[other] = true;
        all.insert(all.end(), mostOf(space.submeshes[other]), unsigned(other));
      }
    int64_t most = std::min<int64_t>(
        {int64_t(all.size()), usable / submesh.numDevices(),
         int64_t(std::min(problem.numLayers, problem.mostStages) / stagesPerMesh)});
    for (int64_t count = most; count > 0; --count)
      if ((!problem.usesAllDevices || count * submesh.numDevices() == usable) &&
          (given == 0 || count * stagesPerMesh == int64_t(given)))
        list.emplace_back(all.begin(), all.begin() + count);
  }
  // What is found with more devices rules out most with fewer.
  llvm::sort(list, [&](const Meshes &a, const Meshes &b) {
    return std::make_pair(-numDevices(a), a) < std::make_pair(-numDevices(b), b);
  });
  return list;
}

int64_t VirtualStageSearch::mostOf(const cost::Submesh &submesh) const {
  int64_t parts = 0, whole = 0;
  for (auto [host, devices] : llvm::enumerate(problem.hostDevices)) {
    if (!submesh.fitsKind(problem.hostKinds.empty() ? 0 : int(problem.hostKinds[host])))
      continue;
    parts += devices / submesh.devicesPerHost;
    whole += devices == submesh.devicesPerHost;
  }
  return submesh.hosts == 1 ? parts : whole / submesh.hosts;
}

int64_t VirtualStageSearch::numDevices(const Meshes &meshes) const {
  int64_t sum = 0;
  for (unsigned submesh : meshes)
    sum += space.submeshes[submesh].numDevices();
  return sum;
}

llvm::ArrayRef<int64_t> VirtualStageSearch::inFlightOf(const VirtualStageProblem &cut,
                                                       const schedule::ScheduleInfo &schedule) {
  std::vector<int64_t> &inFlight = flights[{&schedule, cut.numMeshes, cut.stagesPerMesh}];
  if (!inFlight.empty())
    return inFlight;
  std::vector<int64_t> meshOf;
  for (unsigned stage = 0; stage < cut.numStages(); ++stage)
    meshOf.push_back(cut.meshOf(stage));
  // Seconds decide at most which of a mesh's stages keep more.
  StageTimes even;
  even.forwardSeconds = even.backwardWeightSeconds = 1;
  even.backwardSeconds = 2;
  std::vector<StageTimes> times(cut.numStages(), even);
  std::vector<FlightBytes> one(cut.numStages(), {1, 1});
  for (const StageFlights &held :
       countFlights(orderPipeline(schedule, times, problem.numMicroBatches, meshOf, {}, {}, {},
                                  costs.forEach()),
                    one))
    inFlight.push_back(std::max<int64_t>(1, held.bytes));
  return inFlight;
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
  cut.inFlight = inFlightOf(cut, *tried.schedules.front());
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

/// No mesh begins before its first micro-batch came through the meshes before it, nor is the step
/// done before these have had the last one back, unless weight parts fill that.
double VirtualStageSearch::leastStepSeconds(const VirtualStageProblem &cut,
                                            llvm::ArrayRef<VirtualStage> stages,
                                            bool splitsBackward) const {
  std::vector<double> sums(cut.numMeshes, 0);
  for (auto [index, stage] : llvm::enumerate(stages))
    sums[cut.meshOf(unsigned(index))] += stage.choice.seconds;
  double least = 0, before = 0;
  for (auto [mesh, seconds] : llvm::enumerate(sums)) {
    least = std::max(least, before + seconds * double(problem.numMicroBatches));
    if (!splitsBackward)
      before += stages[mesh].choice.seconds;
  }
  return least;
}

/// How much slower than what there is a plan may be that solves with the limit in the problem, or
/// layers that move, are tried on.
static constexpr double kHopeful = 1.02;

llvm::Expected<VirtualStagePlan> VirtualStageSearch::search(const VirtualStageProblem &cut,
                                                            const Meshes &meshes,
                                                            const StageSearchSpace &tried,
                                                            double mostStepSeconds,
                                                            double &leastSum) {
  const bool splitsBackward = tried.schedules.front()->splitsBackward;
  // That of the busiest mesh where stages are equal.
  const double mostSeconds =
      mostStepSeconds / (double(problem.numMicroBatches) +
                         (splitsBackward ? 0 : double(cut.numMeshes - 1) / cut.stagesPerMesh));
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
  // Nor does it make a cut that is much slower than what there is already the fastest.
  constexpr double kHopeless = 1.1;
  unsigned last = kMostRounds;
  for (unsigned round = 0; round < last; ++round) {
    costs.refresh(/*onlySolved=*/false);
    VirtualStagePlan hoped = solveVirtualStages(cut);
    leastSum = hoped.leastSum;
    if (hoped.stages.empty() || best.seconds * (1 - gap) <= hoped.seconds ||
        costs.work() >= mostWork)
      break;
    if (leastStepSeconds(cut, hoped.stages, splitsBackward) >= mostStepSeconds)
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
    if (!best.stages.empty() && best.seconds > mostSeconds * kHopeless)
      break;
    if (!best.stages.empty() && last == kMostRounds) {
      last = std::min(last, round + 1 + kMoreRounds);
      llvm::Expected<double> step = leastTimed(best, cut, meshes, tried);
      if (!step)
        return step.takeError();
      if (*step > mostStepSeconds * kHopeless)
        return best; // Its stages wait for each other.
    }
  }
  // Solves with the limit in the problem gain little where prices found something.
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

/// How much faster another order of the same stages has to be than the first one.
static constexpr double kWorthReordering = 5e-3;

StagePlan VirtualStageSearch::planOf(const VirtualStagePlan &found, const VirtualStageProblem &cut,
                                     const Meshes &meshes) const {
  StagePlan plan;
  plan.numMeshes = cut.numMeshes;
  plan.placement = cut.placement;
  for (auto [index, stage] : llvm::enumerate(found.stages))
    plan.stages.push_back({stage.lo, stage.hi, meshes[cut.meshOf(index)], stage.choice});
  return plan;
}

/// The fewest seconds of a cut under one of the schedules by their events.
llvm::Expected<double> VirtualStageSearch::leastTimed(const VirtualStagePlan &found,
                                                      const VirtualStageProblem &cut,
                                                      const Meshes &meshes,
                                                      const StageSearchSpace &tried) const {
  double least = std::numeric_limits<double>::infinity();
  StagePlan plan = planOf(found, cut, meshes);
  StageDpProblem scheduled = problem;
  for (const schedule::ScheduleInfo *schedule : tried.schedules) {
    scheduled.schedule = schedule;
    llvm::Expected<TimedPlan> timed = timer.time(plan, scheduled);
    if (!timed)
      return timed.takeError();
    least = std::min(least, timed->stepSeconds);
  }
  return least;
}

/// Takes a cut under one of the schedules if that is faster.
llvm::Error VirtualStageSearch::offer(FoundPlan &best, const VirtualStageProblem &cut,
                                      const Meshes &meshes, const StageSearchSpace &tried,
                                      const VirtualStagePlan &found) const {
  StagePlan plan = planOf(found, cut, meshes);
  StageDpProblem scheduled = problem;
  for (const schedule::ScheduleInfo *schedule : tried.schedules) {
    scheduled.schedule = schedule;
    llvm::Expected<TimedPlan> timed = timer.time(plan, scheduled);
    if (!timed)
      return timed.takeError();
    plan.seconds = timed->stepSeconds;
    if (timed->devices.empty() && !space.manual)
      break; // Such submeshes do not find room on the hosts.
    if (!timed->fits(scheduled, plan))
      continue; // The order for these seconds keeps more than that for equal ones.
    double worth = schedule == tried.schedules.front() ? 0 : kWorthReordering;
    if (!best.schedule || timed->stepSeconds < best.timed.stepSeconds * (1 - worth))
      best = {plan, schedule, std::move(*timed), schedule};
  }
  return llvm::Error::success();
}

/// Of cuts that load the busiest mesh about alike some take less time by their events: looks at
/// those next to the best one, in which a layer moves to another stage.
llvm::Error VirtualStageSearch::climb(FoundPlan &best, VirtualStageProblem cut,
                                      const StageSearchSpace &tried) {
  // Runs of orders that are looked at.
  constexpr size_t kMostRuns = 6000;
  if (!cut.layerRanges.empty())
    return llvm::Error::success();
  Meshes meshes;
  for (unsigned mesh = 0; mesh < cut.numMeshes; ++mesh)
    meshes.push_back(best.plan.stages[mesh].submesh);
  size_t left = kMostRuns / (cut.numStages() * size_t(problem.numMicroBatches));
  if (left < cut.numStages()) // It would be chance which ones these are.
    return llvm::Error::success();
  shareMemory(cut, meshes);
  for (double before = std::numeric_limits<double>::infinity();
       best.timed.stepSeconds < before && left > 0;) {
    before = best.timed.stepSeconds;
    std::vector<std::pair<double, std::vector<std::pair<unsigned, unsigned>>>> ranked;
    costs.refresh(/*onlySolved=*/false);
    cut.mostSeconds = std::numeric_limits<double>::infinity();
    for (unsigned from = 0; from < cut.numStages(); ++from)
      for (unsigned to = 0; to < cut.numStages(); ++to) {
        if (from == to || best.plan.stages[from].hi - best.plan.stages[from].lo < 2)
          continue;
        cut.layerRanges.clear();
        for (const PlannedStage &stage : best.plan.stages)
          cut.layerRanges.push_back({stage.lo, stage.hi});
        for (unsigned begin = std::min(from, to); begin < std::max(from, to); ++begin) {
          unsigned moved = cut.layerRanges[begin].second + (from < to ? -1 : 1);
          cut.layerRanges[begin].second = cut.layerRanges[begin + 1].first = moved;
        }
        VirtualStagePlan hoped = solveVirtualStages(cut);
        if (!hoped.stages.empty() &&
            hoped.seconds * double(problem.numMicroBatches) < best.timed.stepSeconds)
          ranked.emplace_back(hoped.seconds, cut.layerRanges);
      }
    llvm::sort(ranked);
    if (ranked.size() > left)
      ranked.resize(left);
    left -= ranked.size();
    for (auto &[seconds, ranges] : ranked) {
      cut.layerRanges = ranges;
      for (int tries = 0; tries < 3 && costs.work() < mostWork; ++tries) {
        costs.refresh(/*onlySolved=*/false);
        std::vector<StageCosts::Request> missing;
        for (auto [index, stage] : llvm::enumerate(solveVirtualStages(cut).stages))
          if (costs.isHope(stage.choice.id))
            missing.push_back({stage.choice.id, cut.inFlight[index]});
        if (missing.empty())
          break;
        if (llvm::Error error = costs.solve(missing))
          return error;
      }
      costs.refresh(/*onlySolved=*/true);
      VirtualStagePlan found = solveVirtualStages(cut);
      if (found.stages.empty())
        continue;
      if (llvm::Error error = offer(best, cut, meshes, tried, found))
        return error;
    }
  }
  return llvm::Error::success();
}

llvm::Expected<FoundPlan> VirtualStageSearch::run(const StageSearchSpace &tried, double mostSeconds,
                                                  size_t work) {
  mostWork = work;
  if (llvm::Error error = costs.prepare())
    return std::move(error);
  FoundPlan best;
  std::optional<VirtualStageProblem> bestCut;
  // Of all stages, on meshes of a shape: fewer of them are no faster. Near a plan from before its
  // own stages speak for all.
  std::map<unsigned, double> leastSums;
  double allDevicesSeconds = std::numeric_limits<double>::infinity();
  for (const Meshes &meshes : listMeshes(tried.stagesPerMesh)) {
    if (meshes.size() == 1 && mostSeconds < std::numeric_limits<double>::infinity())
      continue; // All of a step on one mesh is one program.
    const double least = costs.leastSeconds(space.views[meshes.front()]);
    for (const StageRule &rule : tried.rules) {
      if (costs.work() >= mostWork)
        break;
      // No step is faster than what its busiest mesh does.
      double mostStep = std::min(best.timed.stepSeconds, mostSeconds);
      double most = mostStep / double(problem.numMicroBatches);
      auto known = leastSums.find(meshes.front());
      double sum = known == leastSums.end() || rule ? least : std::max(least, known->second);
      if (sum / double(meshes.size()) >= most)
        continue;
      VirtualStageProblem cut = makeProblem(meshes, tried, rule);
      cut.mostSeconds = most;
      shareMemory(cut, meshes);
      double leastSum = 0;
      llvm::Expected<VirtualStagePlan> found = search(cut, meshes, tried, mostStep, leastSum);
      if (!found)
        return found.takeError();
      double &leastOfShape = leastSums[meshes.front()];
      leastOfShape = std::max(leastOfShape, leastSum);
      if (found->stages.empty())
        continue;
      double before = best.timed.stepSeconds;
      if (llvm::Error error = offer(best, cut, meshes, tried, *found))
        return std::move(error);
      if (best.timed.stepSeconds < before)
        bestCut = cut;
      if (numDevices(meshes) == problem.numDevices())
        allDevicesSeconds = std::min(allDevicesSeconds, best.timed.stepSeconds);
    }
  }
  if (bestCut && best.timed.stepSeconds < mostSeconds * kHopeful)
    if (llvm::Error error = climb(best, *bestCut, tried))
      return std::move(error);
  if (allDevicesSeconds > best.timed.stepSeconds)
    best.allDevicesSeconds = allDevicesSeconds;
  return best;
}
