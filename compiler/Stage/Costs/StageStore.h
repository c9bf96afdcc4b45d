//===- StageStore.h - solved stages on disk ----------------------*- C++ -*-===//
//
// A file for each class of layer ranges on one view of a submesh. Its name is a
// hash of all that decides the answer - the ops of the run, the mesh with its links
// and measured costs, the options, the compiler itself - so that an entry is never
// out of date: whatever changes has another name.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_COSTS_STAGESTORE_H
#define ALPA_COMPILER_STAGE_COSTS_STAGESTORE_H

#include "compiler/Stage/Costs/LayerBounds.h"

namespace alpa::stage {

/// What is known of a single layer as a part of runs.
struct LayerFacts {
  LayerBounds::Layer known;
  std::map<int64_t, std::shared_ptr<const PriceCurve>> curves; // By micro-batches in flight.
};

/// What is known of a class of layer ranges on one way.
struct StoredRun {
  struct Answer {
    int64_t inFlight = 1;
    int point = -1; // Of `points`; -1 if nothing fits.
    double boundSeconds = 0;
    bool isImproved = false;
  };
  double freeBoundSeconds = 0;
  double boundSeconds = 0, exposure = 0;
  int freePoint = -1; // -1 if there is no plan at all.
  std::vector<sharding::StagePoint> points;
  std::vector<Answer> answers;
  std::map<uint64_t, LayerFacts> layers; // By how their bytes count.
};

class StageStore {
public:
  /// The folder is made when the first entry is. The error is that it cannot be.
  static llvm::Expected<std::shared_ptr<StageStore>> open(llvm::StringRef folder);

  /// The name for a text that says all that decides an answer.
  std::string nameOf(llvm::StringRef text) const;
  /// Nothing if there is no such entry, or a damaged one, which is removed.
  std::optional<StoredRun> load(llvm::StringRef name) const;
  /// All of it appears at once. An entry that cannot be written is left out: the
  /// solution itself is good.
  void save(llvm::StringRef name, const StoredRun &run) const;
  /// Removes what was written longest ago while all take more than so many bytes.
  void shrink(uint64_t mostBytes) const;

private:
  StageStore(std::string folder, std::string version)
      : folder(std::move(folder)), version(std::move(version)) {}
  std::string pathOf(llvm::StringRef name) const;

  std::string folder;
  std::string version; // Of the compiler.
};

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_COSTS_STAGESTORE_H
