//===- PriceLayers.cpp - what single layers say about stages ---------------===//

#include "compiler/Stage/Costs/StageCosts.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
/// Of one layer at one price. What is left of the gap is in the bound.
static constexpr double kLayerSeconds = 0.05, kLayerGap = 5e-3;

static LayerBounds::Bytes bytesOf(const StageUsage &state, const StageUsage &activations,
                                  llvm::function_ref<int64_t(const StageUsage &)> count) {
  return {count(state), count(activations)};
}

/// The layer as a run of its own, without a limit.
llvm::Error StageCosts::askLayer(Run &run, unsigned layer, unsigned way) const {
  auto [facts, isNew] = run.layers.try_emplace(classesOf[variantOf(way)].countingOf(layer));
  if (!isNew)
    return llvm::Error::success();
  if (llvm::Error error = state(run, classOfLayer(layer), way))
    return error;
  LayerBounds::Layer &known = facts->second.known;
  run.isNew = true;
  if (!run.free.point) {
    known.numImpossible = 1;
    return llvm::Error::success();
  }
  const auto &uncounted = classesOf[variantOf(way)].countedBelow(layer);
  StageUsage state = run.problem->stateUsage(uncounted);
  StageUsage activations = run.problem->activationUsage(uncounted);
  known.freeSeconds = run.free.boundSeconds;
  BackwardParts parts = run.problem->backwardParts(*run.free.point);
  known.backwardSeconds = parts.inputSeconds + parts.weightSeconds;
  known.weightSeconds = parts.weightSeconds;
  known.waitingBytes = parts.waitingBytes;
  known.free = bytesOf(state, activations, [&](const StageUsage &usage) {
    return usage.bytes(run.free.point->choices);
  });
  known.least =
      bytesOf(state, activations, [](const StageUsage &usage) { return usage.leastBytes(); });
  return llvm::Error::success();
}

/// The layers that a layer's answers on a way are those of.
llvm::SmallVector<unsigned> StageCosts::layersLike(unsigned example, unsigned way) const {
  llvm::ArrayRef<unsigned> kinds = layerKinds[variantOf(way)];
  llvm::SmallVector<unsigned> layers;
  for (auto [layer, kind] : llvm::enumerate(kinds))
    if (kind == kinds[example])
      layers.push_back(layer);
  return layers;
}

llvm::Error StageCosts::prepare() {
  bounds = std::make_unique<LayerBounds>(numWays(), numLayers(), options.mostInFlight);
  // Layers whose bytes count alike.
  layerKinds.assign(variants.size(), {});
  for (unsigned variant = 0; variant < variants.size(); ++variant) {
    std::map<std::pair<unsigned, uint64_t>, unsigned> known;
    for (unsigned layer = 0; layer < numLayers(); ++layer) {
      std::pair<unsigned, uint64_t> key(classOfLayer(layer), classesOf[variant].countingOf(layer));
      layerKinds[variant].push_back(known.try_emplace(key, known.size()).first->second);
    }
  }
  struct Job {
    unsigned way;
    std::vector<unsigned> layers; // One of each kind.
    Run *run;
  };
  std::vector<Job> jobs;
  std::map<std::pair<unsigned, unsigned>, size_t> jobOf; // By class and way.
  for (unsigned way = 0; way < numWays(); ++way) {
    std::set<unsigned> seen;
    for (unsigned layer = 0; layer < numLayers(); ++layer) {
      if (!seen.insert(layerKinds[variantOf(way)][layer]).second)
        continue;
      std::pair<unsigned, unsigned> key(classOfLayer(layer), way);
      auto [it, isNew] = jobOf.try_emplace(key, jobs.size());
      if (isNew)
        jobs.push_back({way, {}, &runs[key]});
      jobs[it->second].layers.push_back(layer);
    }
  }
  llvm::Error error = forAll(jobs.size(), [&](size_t i) -> llvm::Error {
    Job &job = jobs[i];
    restore(*job.run, classOfLayer(job.layers.front()), job.way);
    for (unsigned layer : job.layers)
      if (llvm::Error error = askLayer(*job.run, layer, job.way))
        return error;
    job.run->problem.reset(); // Few are asked for again, and all together are large.
    return llvm::Error::success();
  });
  if (error)
    return error;
  for (const Job &job : jobs)
    for (unsigned example : job.layers) {
      const LayerFacts &facts =
          job.run->layers.at(classesOf[variantOf(job.way)].countingOf(example));
      for (unsigned layer : layersLike(example, job.way)) {
        bounds->setLayer(job.way, layer, facts.known);
        for (const auto &[inFlight, curve] : facts.curves)
          if (inFlight <= options.mostInFlight)
            bounds->setCurve(job.way, layer, bounds->curveIndex(inFlight), curve);
      }
    }
  for (unsigned way = 0; way < numWays(); ++way)
    bounds->update(way);
  for (const Job &job : jobs)
    for (const auto &[inFlight, answer] : job.run->answers)
      addLevel(inFlight);
  solvedCount += llvm::count_if(jobs, [](const Job &job) { return job.run->isNew; });
  reusedCount += size_t(numLayers()) * numWays() - jobs.size();
  return llvm::Error::success();
}

/// Traces the price curves that requests rest on and that are not known. Returns the
/// requests for which there are none to trace.
llvm::Expected<std::vector<StageCosts::Request>>
StageCosts::priceLayers(llvm::ArrayRef<Request> requests) {
  constexpr double kTolerance = 0.01;
  constexpr unsigned kMostSolves = 7;
  struct Wanted {
    unsigned layer, index;
    std::shared_ptr<PriceCurve> curve;
  };
  std::map<std::pair<unsigned, unsigned>, std::vector<Wanted>> wanted; // By class and way.
  std::set<std::array<unsigned, 3>> seen;                              // Way, kind and index.
  std::vector<Request> others;
  for (const Request &request : requests) {
    unsigned way = wayOf(request.id);
    auto [lo, hi] = examples[classOf(request.id)];
    bool isReady = true;
    if (memoryOf(way) < kNoLimit &&
        !bounds->fitsFreely(way, lo, hi, request.inFlight, memoryOf(way))) {
      unsigned index = bounds->curveIndex(request.inFlight);
      for (unsigned layer = lo; layer < hi; ++layer) {
        if (bounds->hasCurve(way, layer, index))
          continue;
        isReady = false;
        if (seen.insert({way, layerKinds[variantOf(way)][layer], index}).second)
          wanted[{classOfLayer(layer), way}].push_back({layer, index, nullptr});
      }
    }
    if (isReady)
      others.push_back(request);
  }
  std::vector<std::pair<std::pair<unsigned, unsigned>, std::vector<Wanted>>> jobs(wanted.begin(),
                                                                                  wanted.end());
  for (const auto &[key, list] : jobs)
    runs[key].usedAt = ++clock;
  StageProblem::Effort effort{std::min(options.timeLimitSeconds, kLayerSeconds), kLayerGap};
  llvm::Error error = forAll(jobs.size(), [&](size_t i) -> llvm::Error {
    auto [runClass, way] = jobs[i].first;
    Run &run = runs.find(jobs[i].first)->second;
    if (llvm::Error error = state(run, runClass, way))
      return error;
    for (Wanted &one : jobs[i].second) {
      const auto &uncounted = classesOf[variantOf(way)].countedBelow(one.layer);
      StageUsage usage = run.problem->stateUsage(uncounted);
      usage.add(run.problem->activationUsage(uncounted), bounds->inFlightOf(one.index));
      llvm::Expected<PriceCurve> curve = tracePriceCurve(*run.problem, usage, run.free, kTolerance,
                                                         kMostSolves, effort, run.points);
      if (!curve)
        return curve.takeError();
      one.curve = std::make_shared<PriceCurve>(std::move(*curve));
      run.layers.at(classesOf[variantOf(way)].countingOf(one.layer))
          .curves[bounds->inFlightOf(one.index)] = one.curve;
      run.isNew = true;
    }
    return llvm::Error::success();
  });
  if (error)
    return std::move(error);
  std::set<unsigned> changed;
  for (const auto &[key, list] : jobs)
    for (const Wanted &one : list) {
      unsigned way = key.second;
      for (unsigned layer : layersLike(one.layer, way))
        bounds->setCurve(way, layer, one.index, one.curve);
      changed.insert(way);
    }
  for (unsigned way : changed) {
    bounds->update(way);
    touchAll(way);
  }
  forgetProblems();
  return others;
}
