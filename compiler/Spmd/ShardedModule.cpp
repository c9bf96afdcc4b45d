//===- ShardedModule.cpp - functions with shardings, and their mesh -------===//

#include "compiler/Spmd/ShardedModule.h"

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;

LogicalResult
spmd::forEachShardedFunction(ModuleOp module,
                             function_ref<LogicalResult(func::FuncOp, MeshAttr)> visit) {
  SmallVector<ModuleOp> modules{module};
  llvm::append_range(modules, module.getOps<ModuleOp>());
  bool found = false;
  for (ModuleOp stage : modules) {
    auto mesh = stage->getAttrOfType<MeshAttr>(attr::mesh);
    if (!mesh)
      continue;
    found = true;
    for (auto function : stage.getOps<func::FuncOp>())
      if (!function.isExternal() && failed(visit(function, mesh)))
        return failure();
  }
  if (found)
    return success();
  return module.emitError() << "no module has an `" << attr::mesh
                            << "`; run alpa-solve-sharding, or alpa-slice-stages first";
}

llvm::Expected<cost::LogicalMesh> spmd::logicalMeshOf(ModuleOp module, MeshAttr mesh) {
  if (auto text = module->getAttrOfType<StringAttr>(attr::cluster)) {
    llvm::Expected<cost::Cluster> cluster = cost::parseCluster(text.getValue(), attr::cluster);
    if (!cluster)
      return cluster.takeError();
    if (std::optional<cost::Submesh> submesh = cost::submeshOf(*cluster, mesh.getDevices())) {
      llvm::Expected<cost::LogicalMesh> found =
          cost::makeLogicalMesh(*cluster, *submesh, mesh.getShape());
      if (found)
        return found;
      llvm::consumeError(found.takeError()); // A mesh that the search does not make.
    }
  }
  cost::LogicalMesh even;
  even.shape.assign(mesh.getShape().begin(), mesh.getShape().end());
  even.devicesOnHost = even.shape;
  even.axes.assign(even.shape.size(), {/*bandwidth=*/1e10, /*latency=*/1e-6});
  return even;
}

RankedTensorType spmd::localType(RankedTensorType type, const ShardingSpec &spec,
                                 llvm::ArrayRef<int64_t> meshShape) {
  SmallVector<int64_t> shape(type.getShape());
  for (auto [size, axes] : llvm::zip_equal(shape, spec.dims))
    for (unsigned axis : axes)
      size /= meshShape[axis];
  return type.clone(shape);
}
