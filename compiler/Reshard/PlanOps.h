//===- PlanOps.h - plans of transfers as ops ---------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_PLANOPS_H
#define ALPA_COMPILER_RESHARD_PLANOPS_H

#include "compiler/Reshard/TransferPlan.h"
#include "dialects/Alpa/AlpaDialect.h"

namespace alpa::reshard {

/// Puts the plan's steps into the body, which is empty, and what is known of it on
/// the op.
void writePlan(CrossMeshReshardOp op, const TransferPlan &plan);

/// The plan in the body; one written by hand has no strategy and takes no seconds.
TransferPlan readPlan(CrossMeshReshardOp op);

} // namespace alpa::reshard

#endif // ALPA_COMPILER_RESHARD_PLANOPS_H
