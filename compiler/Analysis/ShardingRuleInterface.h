//===- ShardingRuleInterface.h - ops that say how they may be split -*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_SHARDINGRULEINTERFACE_H
#define ALPA_COMPILER_ANALYSIS_SHARDINGRULEINTERFACE_H

#include "compiler/Analysis/ShardingRule.h"
#include "mlir/IR/OpDefinition.h"

#include "compiler/Analysis/ShardingRuleInterface.h.inc"

#endif // ALPA_COMPILER_ANALYSIS_SHARDINGRULEINTERFACE_H
