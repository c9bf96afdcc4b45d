//===- ExplainInfeasible.cpp - why no plan fits into memory ---------------===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Stage/Search/StageInfeasibility.h"
#include "compiler/Stage/Search/StageSearch.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace alpa;

static std::string formatBytes(double bytes) {
  static constexpr const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  unsigned unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit)
    bytes /= 1024;
  return llvm::formatv(unit == 0 ? "{0:F0} {1}" : "{0:F2} {1}", bytes, units[unit]).str();
}

llvm::Error alpa::explainMisfit(StageSearch &search, StageCosts &costs,
                                const StageSearchSpace &space, func::FuncOp main,
                                bool isRematerialized) {
  std::vector<int64_t> available = search.getProblem().memoryBytes;
  search.ignoreMemory();
  llvm::Expected<FoundPlan> found = search.run(space);
  if (!found)
    return found.takeError();
  const StagePlan *plan = &found->plan;
  const StageDpProblem &problem = search.getProblem();
  if (plan->stages.empty())
    return llvm::createStringError(
        "no plan exists: no way to split the model's operators was found for any stage");
  const PlannedStage *worst = nullptr;
  int64_t needed = -1, inFlight = 1;
  unsigned number = 0;
  for (auto [index, stage] : llvm::enumerate(plan->stages)) {
    bool isTimed = !found->timed.peakBytes.empty();
    int64_t flying = isTimed ? found->timed.flights[index].inFlight
                             : problem.inFlight(plan->stages.size() - index);
    int64_t bytes = isTimed ? found->timed.peakBytes[index] : stage.choice.peakBytes(flying);
    if (bytes > needed) {
      needed = bytes;
      worst = &stage;
      inFlight = flying;
      number = index;
    }
  }
  // Among the stages that were solved; what is only hoped for would fit.
  costs.refresh(/*onlySolved=*/true);
  StageDpProblem limited = problem;
  limited.memoryBytes = available;
  StageMisfit misfit = findStageMisfit(limited);
  std::string closest;
  if (misfit.layer)
    closest = llvm::formatv("; layer {0} alone needs {1:F2} times the memory, on any submesh that "
                            "was tried",
                            *misfit.layer, misfit.layerFactor);
  else if (!misfit.plan.stages.empty() && misfit.factor > 1)
    closest = llvm::formatv("; the plan that is closest, of {0} stages, needs {1:F2} times the "
                            "memory for stage {2}",
                            misfit.plan.stages.size(), misfit.factor, misfit.stage);
  const StageChoice &choice = worst->choice;
  std::vector<std::pair<int64_t, std::string>> largest;
  llvm::Expected<std::shared_ptr<IntraOpResult>> result = costs.result(*worst, inFlight);
  if (!result)
    return result.takeError();
  for (auto &[value, spec] : (*result)->specs) {
    auto arg = dyn_cast<BlockArgument>(value);
    if (!arg)
      continue;
    auto name = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::name);
    largest.push_back(
        {int64_t(getTensorBytes(arg.getType())) / spec.numPieces(costs.meshOf(choice.id).shape),
         name ? name.str() : "argument " + std::to_string(arg.getArgNumber())});
  }
  llvm::sort(largest, std::greater<>());
  std::string names;
  for (auto &[bytes, name] : llvm::ArrayRef(largest).take_front(3))
    names += (names.empty() ? "" : ", ") + name + " (" + formatBytes(bytes) + ")";
  return llvm::createStringError(
      llvm::Twine("no plan fits into memory: ") +
      (isRematerialized ? "with layers computed again " : "") + "the fastest one needs " +
      formatBytes(needed) + " on a device of stage " + llvm::Twine(number) + " of " +
      llvm::Twine(plan->stages.size()) + ", " + formatBytes(available[worst->submesh]) +
      " are available; it holds " + formatBytes(choice.stateBytes) + " of state and gradients, " +
      formatBytes(choice.activationBytes) + " of activations for each of " + llvm::Twine(inFlight) +
      " micro-batches and " + formatBytes(choice.temporaryBytes) + " of temporaries" +
      (names.empty() ? "" : "; the largest arguments are " + names) + closest +
      (isRematerialized ? "; use more devices or more and smaller micro-batches"
                        : "; use more devices, more and smaller micro-batches, or "
                          "rematerialization (jax.checkpoint)"));
}

llvm::Error alpa::explainVirtualMisfit(const FoundPlan &found, const StageDpProblem &problem,
                                       const StageSearchSpace &space) {
  std::string name = space.schedules.front()->name.str();
  if (found.plan.stages.empty())
    return llvm::createStringError("no plan exists: the layers cannot be cut into " +
                                   llvm::Twine(space.stagesPerMesh) +
                                   " stages on each of several equal meshes, as schedule '" + name +
                                   "' needs; use fewer virtual-stages or another schedule");
  std::vector<int64_t> needed;
  for (auto [index, bytes] : llvm::enumerate(found.timed.peakBytes)) {
    unsigned mesh = found.plan.meshOf(unsigned(index));
    needed.resize(std::max<size_t>(needed.size(), mesh + 1));
    needed[mesh] += bytes;
  }
  auto worst = llvm::max_element(needed);
  size_t mesh = worst - needed.begin();
  int64_t available = problem.memoryOf(found.plan.stages[mesh].submesh);
  return llvm::createStringError(
      "no plan fits into memory: with schedule '" + name + "' the fastest one needs " +
      formatBytes(double(*worst)) + " on a device of mesh " + llvm::Twine(mesh) + " of " +
      llvm::Twine(needed.size()) + " for its " + llvm::Twine(space.stagesPerMesh) + " stages, " +
      formatBytes(double(available)) +
      " are available; use fewer virtual-stages, another schedule, more devices, more and smaller "
      "micro-batches, or rematerialization (jax.checkpoint)");
}
