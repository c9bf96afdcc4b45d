//===- PlanAttributes.h - a plan as attributes of the module -----*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_PLANATTRIBUTES_H
#define ALPA_COMPILER_STAGE_SEARCH_PLANATTRIBUTES_H

#include "compiler/Sharding/Problem/IntraOp.h"
#include "compiler/Stage/Search/PipelineTime.h"
#include "compiler/Stage/Search/StageDp.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa {

/// One stage as it will run.
struct StageOutcome {
  unsigned firstLayer = 0, endLayer = 0;
  llvm::SmallVector<int64_t, 3> meshShape;
  std::vector<int64_t> devices;
  const IntraOpResult *result = nullptr;
  StageFlights flights;             // Micro-batches whose values it keeps.
  int64_t peakBytes = 0;            // Of a device, of this stage's values.
  SendSeconds sends;                // To the next stage and back.
  mlir::DictionaryAttr explanation; // Where the time goes, and what else was close.
};

struct PlanOutcome {
  std::vector<StageOutcome> stages;
  int64_t numMicroBatches = 1;
  const ScheduleInfo *schedule = nullptr;
  double limit = 0, keptPart = 1; // As TimedPlan has them.
  double stepSeconds = 0, slowestStageSeconds = 0, transferSeconds = 0, updateSeconds = 0;
  double searchSeconds = 0;
  double dpSeconds = 0; // Of the search, in the stage DP itself.
  int64_t solvedStages = 0, reusedStages = 0, possibleStages = 0;
};

/// Sets the attributes that docs/architecture.md gives to search-stages. Ops
/// carry `alpa.layer`.
void annotatePlan(mlir::func::FuncOp main, const Cluster &cluster, const PlanOutcome &plan);

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SEARCH_PLANATTRIBUTES_H
