//===- StageAttempt.cpp - one search for stages ---------------------------===//

#include "compiler/Stage/Search/StageAttempt.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

static std::vector<LayerOps> opsOf(llvm::ArrayRef<const StepVariant *> variants) {
  std::vector<LayerOps> ops;
  for (const StepVariant *variant : variants)
    ops.push_back(variant->layers.opsOfLayer);
  return ops;
}

StageAttempt::StageAttempt(const SearchSetup &setup, std::vector<const StepVariant *> given,
                           bool ignoresMemory)
    : setup(setup), variants(std::move(given)),
      costs(setup.context, opsOf(variants), setup.space.meshes, setup.space.views,
            makeOptions(ignoresMemory)),
      // What is sent between layers does not depend on what is computed again within them.
      timer(setup.cluster, setup.problem, variants.front()->layers.crossings, costs),
      search(costs, timer, makeProblem(ignoresMemory), setup.gap) {}

StageCostOptions StageAttempt::makeOptions(bool ignoresMemory) const {
  StageCostOptions options = setup.options;
  // A mesh's stages are alike, so that each is solved for its share of the memory.
  for (int64_t &bytes : options.memoryBytes)
    bytes /= std::max(1u, setup.tried.stagesPerMesh);
  if (ignoresMemory)
    llvm::fill(options.memoryBytes, std::numeric_limits<int64_t>::max());
  for (const StepVariant *variant : variants)
    llvm::append_range(options.filters, variant->filters);
  if (variants.front()->roles)
    options.describe = [this](Value value, std::vector<uint64_t> &words) {
      auto function = value.getParentRegion()->getParentOfType<func::FuncOp>();
      for (const StepVariant *variant : variants)
        if (variant->function == function) {
          words.push_back(uint64_t(variant->roles->of(value)));
          words.push_back(variant->roles->batchDims(value));
          words.push_back(variant->roles->expertDims(value));
        }
    };
  return options;
}

StageDpProblem StageAttempt::makeProblem(bool ignoresMemory) const {
  StageDpProblem problem = setup.problem;
  if (ignoresMemory)
    problem.memoryBytes.clear();
  problem.transferSeconds = [this](unsigned cut, unsigned from, unsigned to) {
    return timer.send(cut, from, to);
  };
  return problem;
}

llvm::Error StageAttempt::run() {
  llvm::Expected<FoundPlan> plan =
      setup.tried.stagesPerMesh
          ? VirtualStageSearch(costs, timer, setup.space, search.getProblem(), setup.gap)
                .run(setup.tried)
          : search.run(setup.tried);
  if (!plan)
    return plan.takeError();
  found = std::move(*plan);
  return llvm::Error::success();
}

bool StageAttempt::fits() const {
  return hasPlan() && !found.timed.devices.empty() && found.timed.fits(setup.problem, found.plan);
}
