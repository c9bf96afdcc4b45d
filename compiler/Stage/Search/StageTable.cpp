//===- StageTable.cpp - what a stage problem offers, as arrays ------------===//

#include "compiler/Stage/Search/StageTable.h"

#include "llvm/ADT/STLExtras.h"
#include <cmath>
#include <numeric>

using namespace alpa;

StageTable::StageTable(const StageDpProblem &problem)
    : problem(problem), numLayers(problem.numLayers), numSubmeshes(problem.submeshes.size()) {
  int64_t most = problem.manual ? numSubmeshes
                                : std::accumulate(problem.hostDevices.begin(),
                                                  problem.hostDevices.end(), int64_t(0));
  mostStages = unsigned(std::min<int64_t>(numLayers, most));
  for (unsigned s = 0; s <= mostStages; ++s) {
    flights.push_back(s == 0 ? 0 : problem.inFlight(s));
    holds.push_back(s == 0 ? 0 : problem.held(s));
  }

  begins.reserve(entryAt(numLayers, 0, 0) + 1);
  for (unsigned lo = 0; lo < numLayers; ++lo)
    for (unsigned hi = 0; hi <= numLayers; ++hi)
      for (unsigned m = 0; m < numSubmeshes; ++m) {
        begins.push_back(options.size());
        if (hi > lo)
          addOptions(lo, hi, m);
        if (!problem.weightPart)
          continue;
        bool isThere = options.size() > begins.back();
        tripParts.push_back(isThere ? problem.partOfTrip(lo, hi, m) : 1);
        sumParts.push_back(isThere ? problem.partOfSum(lo, hi, m) : 1);
      }
  begins.push_back(options.size());

  if (!problem.transferSeconds)
    return;
  sends.resize(size_t(numLayers + 1) * numSubmeshes * numSubmeshes);
  auto next = sends.begin() + size_t(numSubmeshes) * numSubmeshes;
  for (unsigned cut = 1; cut < numLayers; ++cut)
    for (unsigned from = 0; from < numSubmeshes; ++from)
      for (unsigned to = 0; to < numSubmeshes; ++to)
        *next++ = problem.transferSeconds(cut, from, to);
}

void StageTable::addOptions(unsigned lo, unsigned hi, unsigned submesh) {
  if (!problem.manualLayers.empty() && problem.manualLayers[submesh] != std::make_pair(lo, hi))
    return;
  if (problem.allows && !problem.allows(lo, hi, submesh))
    return;
  size_t begin = options.size();
  int64_t memory = problem.memoryOf(submesh);
  for (auto [index, choice] : llvm::enumerate(problem.choices(lo, hi, submesh))) {
    int64_t left = memory - choice.stateBytes - choice.temporaryBytes;
    if (left < choice.activationBytes || !std::isfinite(choice.seconds))
      continue;
    int64_t most = choice.activationBytes > 0 ? left / choice.activationBytes
                                              : std::numeric_limits<int64_t>::max();
    options.push_back({choice.seconds, most, unsigned(index)});
  }
  std::sort(options.begin() + begin, options.end(), [](const Option &a, const Option &b) {
    return a.seconds != b.seconds ? a.seconds < b.seconds : a.mostInFlight > b.mostInFlight;
  });
  size_t kept = begin;
  for (size_t i = begin; i < options.size(); ++i)
    if (kept == begin || options[i].mostInFlight > options[kept - 1].mostInFlight)
      options[kept++] = options[i];
  options.resize(kept);
}
