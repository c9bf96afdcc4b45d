//===- VirtualStageSearch.h - stages that share meshes -----------*- C++ -*-===//
//
// Plans for a schedule with several stages on each mesh: for every number of equal
// meshes the best cut of the layers (VirtualStages.h), found as LazyStageDp finds
// plans, by solving the stages that the best cut rests on; of these the plan whose
// step takes the fewest seconds. Devices may stay idle where that is faster.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_VIRTUALSTAGESEARCH_H
#define ALPA_COMPILER_STAGE_SEARCH_VIRTUALSTAGESEARCH_H

#include "compiler/Stage/Search/LazyStageDp.h"
#include "compiler/Stage/Search/VirtualStages.h"

namespace alpa::stage {

/// Why no plan has so many stages on each mesh; null if some may.
llvm::Error checkVirtualStages(const StageSearchSpace &tried, const SearchSpace &space,
                               const StageDpProblem &problem);

class VirtualStageSearch {
public:
  VirtualStageSearch(StageCosts &costs, const PlanTimer &timer, const SearchSpace &space,
                     const StageDpProblem &problem, double gap)
      : costs(costs), timer(timer), space(space), problem(problem), gap(gap) {}

  /// Looks for steps that take fewer seconds, and solves no more than is this much work
  /// (`StageCosts::work`).
  llvm::Expected<FoundPlan> run(const StageSearchSpace &tried,
                                double mostSeconds = std::numeric_limits<double>::infinity(),
                                size_t mostWork = std::numeric_limits<size_t>::max());

private:
  /// Submeshes of the meshes, by index; all are of one shape.
  using Meshes = std::vector<unsigned>;

  std::vector<Meshes> listMeshes(unsigned stagesPerMesh) const;
  /// How many of a submesh's shape the hosts have room for.
  int64_t mostOf(const cost::Submesh &submesh) const;
  int64_t numDevices(const Meshes &meshes) const;
  VirtualStageProblem makeProblem(const Meshes &meshes, const StageSearchSpace &tried,
                                  const StageRule &rule);
  /// Micro-batches that each stage keeps while an order of the schedule runs.
  llvm::ArrayRef<int64_t> inFlightOf(const VirtualStageProblem &cut,
                                     const schedule::ScheduleInfo &schedule);
  void shareMemory(const VirtualStageProblem &cut, const Meshes &meshes);
  double leastStepSeconds(const VirtualStageProblem &cut, llvm::ArrayRef<VirtualStage> stages,
                          bool splitsBackward) const;
  /// For steps that take fewer seconds than `mostStepSeconds`; `leastSum` is set to that of the
  /// cuts.
  llvm::Expected<VirtualStagePlan> search(const VirtualStageProblem &cut, const Meshes &meshes,
                                          const StageSearchSpace &tried, double mostStepSeconds,
                                          double &leastSum);
  StagePlan planOf(const VirtualStagePlan &found, const VirtualStageProblem &cut,
                   const Meshes &meshes) const;
  llvm::Expected<double> leastTimed(const VirtualStagePlan &found, const VirtualStageProblem &cut,
                                    const Meshes &meshes, const StageSearchSpace &tried) const;
  llvm::Error offer(FoundPlan &best, const VirtualStageProblem &cut, const Meshes &meshes,
                    const StageSearchSpace &tried, const VirtualStagePlan &found) const;
  llvm::Error climb(FoundPlan &best, VirtualStageProblem cut, const StageSearchSpace &tried);
  VirtualStagePlan solved(const VirtualStageProblem &cut, VirtualStagePlan plan) const;

  StageCosts &costs;
  const PlanTimer &timer;
  const SearchSpace &space;
  const StageDpProblem &problem;
  double gap;
  size_t mostWork = 0;
  /// By schedule, meshes and stages on each.
  std::map<std::tuple<const schedule::ScheduleInfo *, unsigned, unsigned>, std::vector<int64_t>>
      flights;
};

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SEARCH_VIRTUALSTAGESEARCH_H
