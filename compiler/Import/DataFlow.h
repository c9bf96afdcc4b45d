//===- DataFlow.h - data flow between the ops of @main -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_DATAFLOW_H
#define ALPA_COMPILER_IMPORT_DATAFLOW_H

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SmallBitVector.h"

#include <optional>

namespace alpa::importer {

/// Every value from outside that the op reads, once each: its operands and what
/// its regions capture (branches of stablehlo.case have no operands at all).
llvm::SmallVector<mlir::Value> getUsedValues(mlir::Operation *op);

/// The ops of the value's own block that read it, the terminator included, once
/// each; a use inside a loop or branch counts for the loop or branch.
llvm::SmallVector<mlir::Operation *> getUsers(mlir::Value value);

/// Erases the ops of a block, and of the regions of its ops, whose results nobody reads.
void eraseUnused(mlir::Block &block);

/// A constant, an iota, or a broadcast of one: cheaper to repeat than to keep
/// or to send.
bool isConstantLike(mlir::Operation *op);
/// The same, or a broadcast of any single element.
bool isSplatLike(mlir::Operation *op);

/// Whether integers of so many bits, signed ones too, number so many rows.
bool countsInBits(int64_t rows, unsigned bits);
/// The dimension along which every element is its own number, if the value is such.
std::optional<int64_t> rowDimension(mlir::Value value);

/// Gives each group of readers that agree on `attributes` its own copy of the
/// ops of @main that `which` selects; a copy takes these attributes over. What
/// only the terminator reads is of the update phase unless it says otherwise.
void repeatForReaders(mlir::func::FuncOp main, llvm::ArrayRef<llvm::StringRef> attributes,
                      llvm::function_ref<bool(mlir::Operation *)> which);

/// What of @main depends on the arguments with `alpa.kind = "batch"`, and which
/// dimensions run over the samples of the batch. Dimensions follow the sharding
/// rules; an op without a rule is taken to spread the batch over all of its
/// results' dimensions.
class BatchAnalysis {
public:
  explicit BatchAnalysis(mlir::func::FuncOp main);

  /// A value that does not can be computed once, or again in each micro-batch.
  bool dependsOnBatch(mlir::Value value) const { return dims.contains(value); }
  bool hasBatchDim(mlir::Value value) const {
    auto it = dims.find(value);
    return it != dims.end() && it->second.any();
  }
  /// Whether the value is known to have one: all ops that its dimensions come from have rules.
  bool surelyHasBatchDim(mlir::Value value) const {
    return hasBatchDim(value) && !guessed.contains(value);
  }
  /// Whether it has one of several samples. A single sample's dimension may be one that the
  /// program has anyway, such as the first of a weight that is added to the batch.
  bool hasSeveralSamples(mlir::Value value) const;
  /// Whether an operand or a result of the op has a dimension of the batch.
  bool touchesBatchDim(mlir::Operation *op) const;

private:
  void visit(mlir::Operation *op);

  /// For values that depend on the batch: one bit for each dimension.
  llvm::DenseMap<mlir::Value, llvm::SmallBitVector> dims;
  /// Values whose dimensions went through an op without a rule.
  llvm::DenseSet<mlir::Value> guessed;
};

} // namespace alpa::importer

#endif // ALPA_COMPILER_IMPORT_DATAFLOW_H
