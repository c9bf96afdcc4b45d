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

void StepVariant::know(bool allDiffer) {
  DescribeValue describe;
  if (roles)
    describe = [this](Value value, std::vector<uint64_t> &words) {
      words.push_back(uint64_t(roles->of(value)));
      words.push_back(roles->batchDims(value));
      words.push_back(roles->expertDims(value));
    };
  known = std::make_shared<KnownLayers>(layers.opsOfLayer, describe, allDiffer);
}

func::FuncOp stage::cloneMain(func::FuncOp main) {
  func::FuncOp copy = main.clone();
  copy.setPrivate();
  SymbolTable(main->getParentOp()).insert(copy, std::next(main->getIterator()));
  return copy;
}

void stage::rematerializeCopy(func::FuncOp main, func::FuncOp copy, llvm::ArrayRef<bool> layers,
                              const KeptOps *kept) {
  KeptOps here;
  if (kept)
    for (auto [op, mine] : llvm::zip_equal(main.front(), copy.front()))
      if (kept->contains(&op))
        here.insert(&mine);
  rematerializeLayers(copy, layers, kept ? &here : nullptr);
}

RematerializationSavings stage::findSavings(func::FuncOp main, unsigned numLayers) {
  func::FuncOp all = cloneMain(main);
  rematerializeCopy(main, all, llvm::SmallVector<bool>(numLayers, true));
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
