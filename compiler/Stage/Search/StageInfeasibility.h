//===- StageInfeasibility.h - how far stages are from fitting ---*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_STAGEINFEASIBILITY_H
#define ALPA_COMPILER_STAGE_SEARCH_STAGEINFEASIBILITY_H

#include "compiler/Stage/Search/StageDp.h"

namespace alpa::stage {

/// Why a problem has no plan, as far as memory is the reason.
struct StageInfeasibility {
  /// The plan that fits if every device had `factor` times its memory, which is the
  /// least for which there is one; no stages if memory is not the reason.
  StagePlan plan;
  double factor = 1;
  unsigned stage = 0; // Of the plan: the one that needs all of that.
  /// A layer that, alone and on any submesh, is too large for a device as the last
  /// stage, where the fewest micro-batches are in flight; its least part of the memory.
  std::optional<unsigned> layer;
  double layerFactor = 0;
};

/// The factor is found to one part in a thousand.
StageInfeasibility findStageInfeasibility(const StageDpProblem &problem);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_STAGEINFEASIBILITY_H
