//===- WarmStart.h - a search near a plan from before -----------*- C++ -*-===//
//
// A plan for another model or cluster is mostly near the best one here: its submeshes, or
// those of the next sizes, with its stages or others. The search among these alone asks for
// far fewer stages; that of the plan's own stages, the first one, bounds it.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_WARMSTART_H
#define ALPA_COMPILER_STAGE_SEARCH_WARMSTART_H

#include "compiler/Stage/Search/PipelineMethods.h"
#include "compiler/Stage/Search/SearchSpace.h"

namespace alpa::stage {

struct WarmStart {
  /// What the plan's own stages are, as far as the model and the cluster have such; null if not.
  StageRule stages;
  unsigned stagesPerMesh = 1;
};

/// Leaves in `space` submeshes like a plan's, and those of the next sizes. `submeshes` are those
/// of its meshes ("1x8", "1x8@a100") and `layerRanges` the layers of its stages, of which each mesh
/// has as many; another number of layers is cut in proportion. The error is an option that cannot
/// be read.
llvm::Expected<WarmStart> startNear(SearchSpace &space, const cost::Cluster &cluster,
                                    unsigned numLayers, unsigned meshAxes,
                                    llvm::ArrayRef<std::string> submeshes,
                                    llvm::ArrayRef<std::string> layerRanges);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_WARMSTART_H
