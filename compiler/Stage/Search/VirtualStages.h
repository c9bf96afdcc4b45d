//===- VirtualStages.h - several stages on each mesh -------------*- C++ -*-===//
//
// Some schedules have v stages on each of p equal meshes, in rounds or in a V. Layers are cut into
// p v consecutive stages such that the busiest mesh has the fewest seconds for a micro-batch, all
// stages of a mesh on one view of it, and all of them within its memory. Free of IR.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_VIRTUALSTAGES_H
#define ALPA_COMPILER_STAGE_SEARCH_VIRTUALSTAGES_H

#include "compiler/Stage/Search/StageDp.h"

namespace alpa::stage {

struct VirtualStageProblem {
  unsigned numLayers = 0;
  unsigned numMeshes = 1;
  unsigned stagesPerMesh = 1;
  schedule::Placement placement = schedule::Placement::Rounds;
  unsigned numViews = 1; // Of every mesh.
  /// Of a device of each mesh, for all of the mesh's stages together; empty for no
  /// limit.
  std::vector<int64_t> memoryBytes;
  std::vector<int64_t> inFlight; // Micro-batches that each stage keeps.
  /// Layers given by hand; empty for a free cut.
  std::vector<std::pair<unsigned, unsigned>> layerRanges;
  /// Ways to run layers [lo, hi) on a view of a mesh.
  std::function<llvm::ArrayRef<StageChoice>(unsigned lo, unsigned hi, unsigned mesh, unsigned view)>
      choices;
  /// A cut this close to a bound, as a part, is good enough.
  double tolerance = 0;
  /// Cuts that take as long or longer are of no use.
  double mostSeconds = std::numeric_limits<double>::infinity();

  unsigned numStages() const { return numMeshes * stagesPerMesh; }
  unsigned meshOf(unsigned stage) const {
    return unsigned(schedule::meshOfStage(placement, numMeshes, stage));
  }
  unsigned stageOf(unsigned mesh, unsigned round) const {
    return unsigned(schedule::stageOnMesh(placement, numMeshes, mesh, round));
  }
  int64_t memoryOf(unsigned mesh) const {
    return memoryBytes.empty() ? std::numeric_limits<int64_t>::max() : memoryBytes[mesh];
  }
};

struct VirtualStage {
  unsigned lo = 0, hi = 0;
  unsigned view = 0;
  StageChoice choice;
};

struct VirtualStagePlan {
  double seconds = std::numeric_limits<double>::infinity(); // Of the busiest mesh.
  std::vector<VirtualStage> stages;                         // Empty when nothing fits.
  /// That no cut's stages are below together, whatever the memory; 0 for a given cut.
  double leastSum = 0;
};

/// The best cut. Where there are very many that could be it, the best of those that
/// were looked at.
VirtualStagePlan solveVirtualStages(const VirtualStageProblem &problem);

/// Of given stages: seconds of the busiest mesh, and whether each mesh has room for
/// its own.
double virtualStageSeconds(const VirtualStageProblem &problem, llvm::ArrayRef<VirtualStage> stages);
bool virtualStagesFit(const VirtualStageProblem &problem, llvm::ArrayRef<VirtualStage> stages);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_VIRTUALSTAGES_H
