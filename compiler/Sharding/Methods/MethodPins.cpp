//===- MethodPins.cpp - shardings that the user has decided ---------------===//

#include "compiler/Sharding/Methods/Methods.h"

#include "dialects/Alpa/AlpaDialect.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

using namespace alpa;
using namespace mlir;

/// Axes of one device split nothing, and shardings do not name them.
static ShardingSpec dropUnusedAxes(ShardingSpec spec, llvm::ArrayRef<int64_t> meshShape) {
  for (auto &dim : spec.dims)
    llvm::erase_if(dim,
                   [&](unsigned axis) { return axis < meshShape.size() && meshShape[axis] == 1; });
  return spec;
}

llvm::Expected<PlanFilter> alpa::pinnedFilter(const MethodRoles &roles,
                                              llvm::ArrayRef<int64_t> meshShape) {
  func::FuncOp main = roles.getFunction();
  if (auto shape = main->getParentOp()->getAttrOfType<DenseI64ArrayAttr>(attr::pinMesh);
      shape && shape.asArrayRef() != meshShape)
    return llvm::createStringError(llvm::formatv(
        "method 'manual': the step's shardings are for a mesh of [{0}], but this one is [{1}]; "
        "give the mesh's shape",
        llvm::make_range(shape.asArrayRef().begin(), shape.asArrayRef().end()),
        llvm::make_range(meshShape.begin(), meshShape.end())));
  PlanFilter filter;
  for (BlockArgument argument : main.getArguments())
    if (auto pin = main.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(), attr::sharding))
      filter.pinned[argument] = dropUnusedAxes(pin.getSpec(), meshShape);
  // Open dimensions may be split further.
  auto open = std::make_shared<llvm::DenseMap<Value, std::pair<ShardingSpec, uint64_t>>>();
  for (Operation &op : main.getBody().front()) {
    auto pin = op.getAttrOfType<ShardingAttr>(attr::pin);
    if (!pin || op.getNumResults() != 1)
      continue;
    ShardingSpec spec = dropUnusedAxes(pin.getSpec(), meshShape);
    auto dims = op.getAttrOfType<DenseI64ArrayAttr>(attr::pinOpen);
    if (!dims || dims.empty()) {
      filter.pinned[op.getResult(0)] = spec;
      continue;
    }
    uint64_t mask = 0;
    for (int64_t dim : dims.asArrayRef())
      if (dim >= 0 && dim < 64)
        mask |= uint64_t(1) << dim;
    (*open)[op.getResult(0)] = {spec, mask};
  }
  if (!open->empty())
    filter.allowsSpec = [open](Value value, const ShardingSpec &spec) {
      auto it = open->find(value);
      if (it == open->end())
        return true;
      const auto &[wanted, mask] = it->second;
      for (size_t dim = 0; dim < spec.dims.size() && dim < wanted.dims.size(); ++dim) {
        llvm::ArrayRef<unsigned> have = spec.dims[dim], want = wanted.dims[dim];
        bool isOpen = dim < 64 && ((mask >> dim) & 1);
        if (isOpen ? !llvm::equal(have.take_front(want.size()), want) : have != want)
          return false;
      }
      return true;
    };
  return filter;
}
