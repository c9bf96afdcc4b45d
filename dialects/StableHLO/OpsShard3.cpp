//===- OpsShard3.cpp - a quarter of the generated op classes --------------===//

#include "dialects/StableHLO/AssemblyFormat.h"
#include "dialects/StableHLO/StableHLOOps.h"

using namespace mlir;
using namespace mlir::stablehlo;

#define GET_OP_DEFS_3
#include "dialects/StableHLO/StableHLOOps.cpp.inc"
