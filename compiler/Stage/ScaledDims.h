//===- ScaledDims.h - where a step's batch is in its tensors -----*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SCALEDDIMS_H
#define ALPA_COMPILER_STAGE_SCALEDDIMS_H

#include "dialects/StableHLO/StableHLOOps.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallSet.h"

namespace alpa {

struct ShardingRule;

/// The part of a dimension that the batch makes up: a dimension is outer x extent x
/// inner elements, major to minor. [batch, seq] reshaped to [batch * seq] has seq
/// as inner part. No extent: the batch is not in there.
struct BatchPart {
  int64_t inner = 0, extent = 0;
  explicit operator bool() const { return extent != 0; }
  bool operator==(const BatchPart &other) const {
    return inner == other.inner && extent == other.extent;
  }
  bool operator!=(const BatchPart &other) const { return !(*this == other); }
};

using BatchParts = llvm::SmallVector<BatchPart, 4>;

/// Follows dimension 0 of the batch arguments through all ops, forth and back (what
/// is made of constants takes its size from its users), bodies of loops included.
class ScaledDims {
public:
  /// Fails with a diagnostic at an op through which the batch cannot be followed:
  /// one that takes a part of it, goes through it example by example, or splits it.
  static mlir::FailureOr<ScaledDims> find(mlir::func::FuncOp main);

  /// The parts of the value's dimensions, or null if the batch is in none.
  const BatchParts *lookup(mlir::Value value) const {
    auto it = parts.find(value);
    return it == parts.end() ? nullptr : &it->second;
  }

private:
  mlir::LogicalResult run(mlir::func::FuncOp main);
  mlir::LogicalResult visitPending();
  mlir::LogicalResult visit(mlir::Operation *op);
  mlir::LogicalResult visitUnread(mlir::stablehlo::WhileOp loop);
  mlir::LogicalResult visitRule(mlir::Operation *op, const ShardingRule &rule);
  mlir::LogicalResult visitReshape(mlir::Operation *op);
  mlir::LogicalResult visitConcatenate(mlir::Operation *op);
  /// Values that are one and the same: what a loop is given, works on and gives.
  mlir::LogicalResult join(mlir::Operation *op, mlir::ValueRange values);
  mlir::LogicalResult set(mlir::Operation *op, mlir::Value value, unsigned dim, BatchPart part);
  bool isScaled(mlir::Value value) const { return parts.contains(value); }
  BatchPart at(mlir::Value value, unsigned dim) const {
    const BatchParts *found = lookup(value);
    return found ? (*found)[dim] : BatchPart();
  }

  llvm::DenseMap<mlir::Value, BatchParts> parts;
  llvm::SetVector<mlir::Operation *> pending;
  llvm::SmallSet<int64_t, 4> extents; // Of the batch arguments.
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SCALEDDIMS_H
