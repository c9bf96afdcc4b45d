//===- MethodRoles.h - what a step's values are to a method ------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_METHODS_METHODROLES_H
#define ALPA_COMPILER_SHARDING_METHODS_METHODROLES_H

#include "compiler/Analysis/ShardingRule.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"

namespace alpa {

enum class ValueRole : uint8_t {
  Other,
  Batch,          // An argument that is split into micro-batches.
  Parameter,      // State of real numbers that forward or backward reads.
  OptimizerState, // State of real numbers that only the update reads.
  Bookkeeping,    // State of integers: counters, random keys.
  Gradient,       // Real numbers that backward makes for the update.
};

/// Read off the attributes of an imported step (alpa.kind, alpa.phase), and its
/// data flow through the ops' sharding rules. Thread-safe once built.
class MethodRoles {
public:
  explicit MethodRoles(mlir::func::FuncOp main);

  ValueRole of(mlir::Value value) const { return roles.lookup(value); }
  /// Dimensions that run over the examples of the batch, as bits.
  uint64_t batchDims(mlir::Value value) const { return batch.lookup(value); }
  /// Dimensions that run over experts: a weight has one set of numbers for each,
  /// and a dot that uses it goes through them side by side.
  uint64_t expertDims(mlir::Value value) const { return experts.lookup(value); }
  /// Whether a dot goes through experts side by side.
  bool isExpertOp(mlir::Operation *op) const { return expertOps.count(op); }
  /// The rule of a top-level op that leads or is heavy, or null.
  const ShardingRule *ruleOf(mlir::Operation *op) const;
  mlir::func::FuncOp getFunction() const { return main; }

private:
  using Labels = llvm::DenseMap<mlir::Value, uint64_t>;

  void findRoles();
  void findBatch();
  void findExperts();
  /// Labels of an op's results from those of its operands.
  bool pushForward(mlir::Operation *op, const ShardingRule &rule, Labels &labels);
  /// Labels of the operands that `wanted` accepts, from those of the results.
  template <typename Wanted>
  bool pushBackward(mlir::Operation *op, const ShardingRule &rule, Labels &labels, Wanted wanted);

  mlir::func::FuncOp main;
  llvm::DenseMap<mlir::Value, ValueRole> roles;
  Labels batch, experts;
  llvm::DenseSet<mlir::Operation *> expertOps;
  llvm::DenseMap<mlir::Operation *, ShardingRule> rules;
};

} // namespace alpa

#endif // ALPA_COMPILER_SHARDING_METHODS_METHODROLES_H
