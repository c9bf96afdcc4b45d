//===- Timing.h - what a plan takes ------------------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_TIMING_H
#define ALPA_COMPILER_RESHARD_TIMING_H

#include "compiler/CostModel/Network.h"
#include "compiler/Reshard/TransferPlan.h"

namespace alpa::reshard {

struct Timing {
  double seconds = 0;    // Until the last tile is there.
  int64_t slowBytes = 0; // From host to host.
};

/// Docs/resharding.md describes how links are shared.
Timing timePlan(llvm::ArrayRef<PlanStep> steps, const TransferProblem &problem,
                const cost::Network &network);

} // namespace alpa::reshard

#endif // ALPA_COMPILER_RESHARD_TIMING_H
