//===- Placement.h - stages on the hosts of a cluster ------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_TIME_PLACEMENT_H
#define ALPA_COMPILER_STAGE_TIME_PLACEMENT_H

#include "compiler/Stage/Search/StageDp.h"

namespace alpa::stage {

/// Devices of each submesh, numbered host by host. Racks are
/// filled in the order of the list as far as it goes. Whole hosts are taken first; parts of hosts
/// are put together such that the seconds saved by neighbours in the list that share a host add up
/// to as much as possible: exactly if that takes few steps, else as well as was found. `savings[i]`
/// are for submeshes i and i+1; if it is empty each pair counts the same. `hostRacks` is empty for
/// one rack. Nothing if they do not fit side by side.
std::optional<std::vector<std::vector<int64_t>>>
placeSubmeshes(llvm::ArrayRef<int64_t> hostDevices, llvm::ArrayRef<cost::Submesh> submeshes,
               llvm::ArrayRef<unsigned> hostKinds = {}, llvm::ArrayRef<double> savings = {},
               llvm::ArrayRef<int64_t> hostRacks = {});

/// The same for the stages of a plan.
std::optional<std::vector<std::vector<int64_t>>> placeStages(const StageDpProblem &problem,
                                                             llvm::ArrayRef<PlannedStage> stages,
                                                             llvm::ArrayRef<double> savings = {});

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_TIME_PLACEMENT_H
