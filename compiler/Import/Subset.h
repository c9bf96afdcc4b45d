//===- Subset.h - what a single-device step may hold -------------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_SUBSET_H
#define ALPA_COMPILER_IMPORT_SUBSET_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa {

/// Removes sharding annotations of the user's program (JAX puts some on typed
/// random keys): the plan decides about shardings.
void dropShardingAnnotations(mlir::ModuleOp module, mlir::func::FuncOp main);

/// Keeps what the user asks for, in a form that later passes know: arguments get
/// `alpa.sharding`, a constraint becomes a barrier with `alpa.pin`, and the module
/// gets the mesh's shape as `alpa.pin_mesh`.
mlir::LogicalResult keepShardingAnnotations(mlir::ModuleOp module, mlir::func::FuncOp main);

/// Says where @main holds an op or a type that a single-device step cannot have.
mlir::LogicalResult verifySubset(mlir::func::FuncOp main);

/// Checks the signature attributes of docs/architecture.md. Without any, all
/// arguments become state: the whole function works on one micro-batch.
mlir::LogicalResult verifySignature(mlir::func::FuncOp main);

} // namespace alpa

#endif // ALPA_COMPILER_IMPORT_SUBSET_H
