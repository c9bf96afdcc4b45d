//===- ReportPlan.h - what the choices of a stage mean -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_REPORTPLAN_H
#define ALPA_COMPILER_SHARDING_PROBLEM_REPORTPLAN_H

#include "compiler/Sharding/Problem/StageMemory.h"

namespace alpa {

/// Sets specs, seconds and bytes of a result that has its choices.
void reportPlan(const ProblemBuilder &builder, const MemoryUse &use, IntraOpResult &result);

} // namespace alpa

#endif // ALPA_COMPILER_SHARDING_PROBLEM_REPORTPLAN_H
