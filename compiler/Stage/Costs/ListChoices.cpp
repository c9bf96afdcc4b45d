//===- ListChoices.cpp - what the stage DP may choose from -----------------===//

#include "compiler/Stage/Costs/StageCosts.h"

#include "mlir/IR/Threading.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();
static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// For each number in flight the fastest of some views, and its bound where it is not
/// known.
void StageCosts::listChoices(unsigned runClass, llvm::ArrayRef<unsigned> views, bool onlySolved,
                             std::vector<StageChoice> &list) const {
  constexpr double kHopeless = 30; // Times as slow as without a limit.
  auto [lo, hi] = examples[runClass];
  list.clear();
  std::vector<StageChoice> fastest(levels.size(), {kInfinity, 0, 0, 0, 0});
  for (unsigned variant = 0; variant < variants.size(); ++variant)
    for (unsigned mesh : views) {
      unsigned way = variant * meshes.size() + mesh;
      unsigned id = (runClass * numWays() + way) * kSlots;
      int64_t memory = memoryOf(way);
      const Run *run = findRun(runClass, way);
      double free =
          run && run->free.point ? run->free.boundSeconds : bounds->freeSeconds(way, lo, hi);
      if (free == kInfinity)
        continue;
      double atLeast = 0; // With fewer in flight.
      for (auto [index, level] : llvm::enumerate(levels)) {
        int64_t last = index + 1 < levels.size() ? levels[index + 1] - 1 : options.mostInFlight;
        StageChoice choice{kInfinity, 0, 0, 0, id};
        if (std::optional<StageChoice> found = known(id, last))
          choice = *found;
        bool isSolved = false;
        if (run && run->answers.count(level)) {
          // What fits with more in flight is no faster than what was found for fewer.
          std::optional<StageChoice> found = known(id, level);
          atLeast = std::max(atLeast, found ? found->seconds : kInfinity);
          isSolved = level == last;
        }
        if (!isSolved && !onlySolved && atLeast < kInfinity) {
          double bound = free;
          if (memory < kNoLimit)
            bound = std::max(bound, bounds->seconds(way, lo, hi, level, memory));
          bound = std::max(bound, atLeast);
          bool isHopeless = bound > kHopeless * free;
          if (!isHopeless && bound < choice.seconds * (1 - options.tolerance / 4))
            choice = {bound, 0, memory < kNoLimit ? memory / last : 0, 0, id + kHope};
        }
        if (choice.seconds < fastest[index].seconds)
          fastest[index] = choice;
      }
    }
  // What fits with more in flight also fits with fewer.
  double best = kInfinity;
  for (const StageChoice &choice : llvm::reverse(fastest))
    if (choice.seconds < best) {
      best = choice.seconds;
      list.push_back(choice);
    }
}

/// What is listed of a class of runs, or of all, on the submeshes of a way is out of
/// date.
void StageCosts::touch(unsigned runClass, unsigned way) {
  for (Table &table : tables)
    for (unsigned submesh = 0; submesh < views.size(); ++submesh)
      if (llvm::is_contained(views[submesh], meshIndex(way)))
        table.isCurrent[runClass * views.size() + submesh] = false;
}

void StageCosts::touchAll(unsigned way) {
  for (unsigned runClass = 0; runClass < examples.size(); ++runClass)
    touch(runClass, way);
}

void StageCosts::refresh(bool onlySolved) {
  shown = onlySolved;
  Table &table = tables[shown];
  parallelFor(context, 0, examples.size(), [&](size_t runClass) {
    for (unsigned submesh = 0; submesh < views.size(); ++submesh) {
      size_t at = runClass * views.size() + submesh;
      if (!table.isCurrent[at])
        listChoices(runClass, views[submesh], onlySolved, table.choices[at]);
      table.isCurrent[at] = true;
    }
  });
}

llvm::ArrayRef<StageChoice> StageCosts::choices(unsigned lo, unsigned hi, unsigned submesh) const {
  return tables[shown].choices[classes[lo * (numLayers() + 1) + hi] * views.size() + submesh];
}

std::vector<StageChoice> StageCosts::choicesOn(unsigned lo, unsigned hi, unsigned mesh) const {
  std::vector<StageChoice> list;
  listChoices(classes[lo * (numLayers() + 1) + hi], mesh, shown, list);
  return list;
}

double StageCosts::weightPart(unsigned lo, unsigned hi, unsigned submesh) const {
  if (lo == 0)
    return 0; // Nobody waits for its gradients.
  double least = kInfinity, part = 0;
  for (unsigned way : views[submesh]) { // Of the first variant.
    LayerBounds::Layer sum = bounds->sumOf(way, lo, hi);
    if (sum.numImpossible || sum.freeSeconds <= 0 || sum.freeSeconds >= least)
      continue;
    least = sum.freeSeconds;
    part = std::min(1.0, sum.weightSeconds / sum.freeSeconds);
  }
  return part;
}
