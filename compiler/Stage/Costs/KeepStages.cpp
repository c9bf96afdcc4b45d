//===- KeepStages.cpp - solved stages from and to the store ----------------===//

#include "compiler/Stage/Costs/StageCosts.h"

#include "llvm/Support/Format.h"

using namespace mlir;
using namespace alpa;

/// The name of the store's entry.
std::string StageCosts::nameOf(unsigned runClass, unsigned way) const {
  unsigned variant = variantOf(way);
  const RunKey &key = classesOf[variant].keyOf(parts[runClass][variant]);
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "run " << key[0] << ' ' << key[1] << "\nmesh " << meshKeys[meshIndex(way)] << "\nmemory "
     << memoryOf(way) << "\nmicro-batches " << options.numMicroBatches << "\nseconds "
     << llvm::format("%.17g", options.timeLimitSeconds) << "\ntolerance "
     << llvm::format("%.17g", options.tolerance) << "\nmethod " << options.methodKey;
  return options.store->nameOf(text);
}

/// Takes over what the store knows of a run that is looked at for the first time.
void StageCosts::restore(Run &run, unsigned runClass, unsigned way) {
  if (!options.store || run.isRestored)
    return;
  run.isRestored = true;
  std::optional<StoredRun> stored = options.store->load(nameOf(runClass, way));
  if (!stored)
    return;
  ++loadedCount;
  for (StagePoint &point : stored->points)
    run.points.push_back(std::make_shared<StagePoint>(std::move(point)));
  run.free.boundSeconds = stored->freeBoundSeconds;
  if (stored->freePoint >= 0)
    run.free.point = run.points[stored->freePoint];
  for (const StoredRun::Answer &answer : stored->answers)
    run.answers[answer.inFlight] = {answer.point < 0 ? -1 : slotOf(run, run.points[answer.point]),
                                    answer.boundSeconds, answer.isImproved};
  run.layers = std::move(stored->layers);
}

void StageCosts::keep() const {
  constexpr uint64_t kMostBytes = uint64_t(512) << 20;
  if (!options.store)
    return;
  for (const auto &[key, run] : runs) {
    if (!run.isNew)
      continue;
    StoredRun stored;
    std::map<const StagePoint *, int> numbers;
    auto numberOf = [&](const std::shared_ptr<StagePoint> &point) {
      auto [it, isNew] = numbers.try_emplace(point.get(), stored.points.size());
      if (isNew)
        stored.points.push_back(*point);
      return it->second;
    };
    stored.freeBoundSeconds = run.free.boundSeconds;
    if (run.free.point)
      stored.freePoint = numberOf(run.free.point);
    for (const auto &[inFlight, answer] : run.answers)
      stored.answers.push_back({inFlight, answer.slot < 0 ? -1 : numberOf(run.chosen[answer.slot]),
                                answer.boundSeconds, answer.isImproved});
    stored.layers = run.layers;
    options.store->save(nameOf(key.first, key.second), stored);
  }
  options.store->shrink(kMostBytes);
}
