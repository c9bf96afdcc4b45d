//===- StepVariants.cpp - ways to write the layers of a step --------------===//

#include "compiler/Stage/Remat/StepVariants.h"

#include "mlir/IR/SymbolTable.h"
#include "llvm/ADT/STLExtras.h"

#include <numeric>

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;

llvm::Expected<std::unique_ptr<StepVariant>>
StepVariant::read(func::FuncOp function, llvm::StringRef method,
                  llvm::ArrayRef<cost::LogicalMesh> meshes) {
  llvm::Expected<StepLayers> layers = readLayers(function);
  if (!layers)
    return layers.takeError();
  auto variant = std::make_unique<StepVariant>();
  variant->function = function;
  variant->layers = std::move(*layers);
  function.front().recomputeOpOrder(); // Nothing changes the block while threads read it.
  variant->pins.emplace(function);
  if (method == "auto" && variant->pins->empty())
    return std::move(variant);
  if (method != "auto")
    variant->roles.emplace(function);
  for (const cost::LogicalMesh &mesh : meshes) {
    llvm::Expected<sharding::PlanFilter> filter = variant->freeFilter(method, mesh);
    if (!filter)
      return filter.takeError();
    variant->pins->restrict(*filter, mesh.shape);
    variant->filters.push_back(std::move(*filter));
  }
  return std::move(variant);
}

llvm::Expected<sharding::PlanFilter> StepVariant::freeFilter(llvm::StringRef method,
                                                             const cost::LogicalMesh &mesh) const {
  return roles ? sharding::makeFilter(method, *roles, mesh) : sharding::PlanFilter();
}

func::FuncOp stage::cloneRematerialized(func::FuncOp main, llvm::ArrayRef<bool> layers,
                                        const KeptOps *kept) {
  func::FuncOp clone = main.clone();
  clone.setPrivate();
  SymbolTable(main->getParentOp()).insert(clone, std::next(main->getIterator()));
  KeptOps here;
  if (kept)
    for (auto [op, copy] : llvm::zip_equal(main.front(), clone.front()))
      if (kept->contains(&op))
        here.insert(&copy);
  rematerializeLayers(clone, layers, kept ? &here : nullptr);
  return clone;
}

RematerializationSavings stage::findSavings(func::FuncOp main, unsigned numLayers) {
  func::FuncOp all = cloneRematerialized(main, llvm::SmallVector<bool>(numLayers, true));
  std::vector<int64_t> before = keptBytes(main, numLayers), after = keptBytes(all, numLayers);
  all.erase();
  RematerializationSavings savings;
  double saved = 0;
  for (unsigned layer = 0; layer < numLayers; ++layer) {
    savings.layers.push_back(after[layer] < before[layer]);
    if (savings.layers.back() && layer + 1 < numLayers)
      saved += double(before[layer] - after[layer]);
  }
  savings.part = saved / std::max(1.0, std::accumulate(before.begin(), before.end(), 0.0));
  return savings;
}
