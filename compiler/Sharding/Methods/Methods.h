//===- Methods.h - ways to parallelize that are known by name ----*- C++ -*-===//
//
// A method is a part of all plans: the solver fills in what it leaves open, so that
// cost, memory and execution are those of any other plan.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_METHODS_METHODS_H
#define ALPA_COMPILER_SHARDING_METHODS_METHODS_H

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Sharding/Problem/IntraOp.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"

namespace alpa::sharding {

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
  /// Whether the value is a parameter, or cheap ops make it of parameters alone.
  bool isWeight(mlir::Value value) const { return weights.contains(value); }
  /// Whether a dot goes through experts side by side, or rows are multiplied by those of
  /// their expert.
  bool isExpertOp(mlir::Operation *op) const { return expertOps.count(op); }
  /// The rule of a top-level op that leads or is heavy, or null.
  const analysis::ShardingRule *ruleOf(mlir::Operation *op) const;
  mlir::func::FuncOp getFunction() const { return main; }

private:
  using Labels = llvm::DenseMap<mlir::Value, uint64_t>;

  void findRoles();
  void findBatch();
  void findWeights();
  void findExperts();
  /// Labels of an op's results from those of its operands.
  bool pushForward(mlir::Operation *op, const analysis::ShardingRule &rule, Labels &labels);
  /// Labels of the operands that `wanted` accepts, from those of the results.
  template <typename Wanted>
  bool pushBackward(mlir::Operation *op, const analysis::ShardingRule &rule, Labels &labels,
                    Wanted wanted);

  mlir::func::FuncOp main;
  llvm::DenseMap<mlir::Value, ValueRole> roles;
  Labels batch, experts;
  llvm::DenseSet<mlir::Value> weights;
  llvm::DenseSet<mlir::Operation *> expertOps;
  llvm::DenseMap<mlir::Operation *, analysis::ShardingRule> rules;
};

//===----------------------------------------------------------------------===//
// Ways to parallelize that are known by name
//
// A method is a part of all plans: the solver fills in what it leaves open, so that
// cost, memory and execution are those of any other plan.
//===----------------------------------------------------------------------===//

struct MethodInfo {
  llvm::StringLiteral name;
  llvm::StringLiteral description;
};
/// The registry; "auto", which restricts nothing, comes first.
llvm::ArrayRef<MethodInfo> methodTable();
/// An error that lists the choices for a name that is none of them.
llvm::Error checkMethod(llvm::StringRef name);
/// What a method has the last axis of a mesh for ("tensors", "state"), so that it needs
/// two axes, whose order counts; or nothing.
llvm::StringRef useOfLastAxis(llvm::StringRef name);
/// The same as checkMethod for any table of methods; `kind` is what messages call them.
llvm::Error checkName(llvm::StringRef kind, llvm::ArrayRef<MethodInfo> table, llvm::StringRef name);

/// What a method leaves of the plans of a step on a mesh. `roles` must outlive the
/// filter. Errors: unknown method, or a mesh that the method or the user's
/// shardings cannot use.
llvm::Expected<PlanFilter> makeFilter(llvm::StringRef method, const MethodRoles &roles,
                                      const cost::LogicalMesh &mesh);

/// The GSPMD-propagation heuristic; for makeFilter.
PlanFilter propagatedFilter(const MethodRoles &roles, llvm::ArrayRef<int64_t> meshShape);
/// What the user has pinned; for makeFilter.
llvm::Expected<PlanFilter> pinnedFilter(const MethodRoles &roles,
                                        llvm::ArrayRef<int64_t> meshShape);

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_METHODS_METHODS_H
