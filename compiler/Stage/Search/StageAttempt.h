//===- StageAttempt.h - one search for stages --------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SEARCH_STAGEATTEMPT_H
#define ALPA_COMPILER_STAGE_SEARCH_STAGEATTEMPT_H

#include "compiler/Stage/Remat/StepVariants.h"
#include "compiler/Stage/Search/SearchSpace.h"
#include "compiler/Stage/Search/StageSearch.h"
#include "compiler/Stage/Search/VirtualStageSearch.h"

namespace alpa {

/// What all searches for the stages of a step have in common.
struct SearchSetup {
  mlir::MLIRContext *context;
  const Cluster &cluster;
  SearchSpace space;
  StageSearchSpace tried;
  StageDpProblem problem;   // All but choices and sends.
  StageCostOptions options; // All but what depends on the method's look at a variant.
  double gap = 0;
};

/// A search among some variants of the step, and the plan that it found.
class StageAttempt {
public:
  /// The variants and the setup outlive it.
  StageAttempt(const SearchSetup &setup, std::vector<const StepVariant *> variants,
               bool ignoresMemory = false);

  llvm::Error run();
  bool hasPlan() const { return !found.plan.stages.empty(); }
  /// Whether the plan fits into memory.
  bool fits() const;
  const StepVariant &variantOf(const PlannedStage &stage) const {
    return *variants[costs.variantOfChoice(stage.choice.id)];
  }

private:
  StageCostOptions makeOptions(bool ignoresMemory) const;
  StageDpProblem makeProblem(bool ignoresMemory) const;

  const SearchSetup &setup;
  std::vector<const StepVariant *> variants;

public:
  StageCosts costs;
  PlanTimer timer;
  StageSearch search;
  FoundPlan found;
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SEARCH_STAGEATTEMPT_H
