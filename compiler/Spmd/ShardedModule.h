//===- ShardedModule.h - functions with shardings, and their mesh -*- C++ -*-===//

#ifndef ALPA_COMPILER_SPMD_SHARDEDMODULE_H
#define ALPA_COMPILER_SPMD_SHARDEDMODULE_H

#include "compiler/CostModel/CostModel.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa::spmd {

/// Calls `visit` for each function with a body whose module has an `alpa.mesh`,
/// until one fails. It is an error if there is no such module.
mlir::LogicalResult
forEachShardedFunction(mlir::ModuleOp module,
                       llvm::function_ref<mlir::LogicalResult(mlir::func::FuncOp, MeshAttr)> visit);

/// The mesh with the links that it has in the cluster of `alpa.cluster`; with
/// equal links if the module does not know its cluster.
llvm::Expected<cost::LogicalMesh> logicalMeshOf(mlir::ModuleOp module, MeshAttr mesh);

/// Part of a tensor that one device holds.
mlir::RankedTensorType localType(mlir::RankedTensorType type, const ShardingSpec &spec,
                                 llvm::ArrayRef<int64_t> meshShape);

} // namespace alpa::spmd

#endif // ALPA_COMPILER_SPMD_SHARDEDMODULE_H
