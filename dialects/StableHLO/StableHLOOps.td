//===- StableHLOOps.td - all ops of the set -------------------------------===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLOOPS
#define ALPA_DIALECTS_STABLEHLO_STABLEHLOOPS

include "dialects/StableHLO/StableHLOElementwise.td"
include "dialects/StableHLO/StableHLOShapes.td"
include "dialects/StableHLO/StableHLOCompute.td"
include "dialects/StableHLO/StableHLORegions.td"
include "dialects/StableHLO/StableHLOCollectives.td"

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOOPS
