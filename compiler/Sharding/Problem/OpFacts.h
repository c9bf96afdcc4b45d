//===- OpFacts.h - what an op is in any stage, on any mesh -------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_OPFACTS_H
#define ALPA_COMPILER_SHARDING_PROBLEM_OPFACTS_H

#include "compiler/Analysis/Calls/AttentionCall.h"
#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Sharding/Problem/IntraOp.h"

#include "llvm/ADT/DenseMap.h"
#include <memory>
#include <shared_mutex>

namespace alpa::sharding {

OpPhase opPhaseOf(mlir::Operation *op);
/// As `alpa.phase` of an op says it.
llvm::StringRef phaseName(OpPhase phase);
inline bool runsOnce(OpPhase phase) {
  return phase != OpPhase::Forward && phase != OpPhase::Backward;
}

/// Elements of a tensor; 1 for other values.
int64_t numElements(mlir::Value value);

struct OpFacts {
  OpPhase phase = OpPhase::Forward;
  bool hasRule = false;
  bool hasPlainTypes = false; // Static, and of no more dimensions than specs have.
  /// Captures are among its operands.
  analysis::ShardingRule rule;
  /// What regions use from outside besides: needed whole.
  llvm::SmallVector<mlir::Value, 0> captured;
  double flops = 0;
  llvm::StringRef computeType;
  std::optional<analysis::AttentionCall> attention; // In one kernel.
  /// If its result waits for the update: factors whose sums may wait as well, and the operand
  /// whose terms it passes on, or -1.
  llvm::SmallVector<unsigned, 0> deferrable;
  int link = -1;
  // As `analysis` has them.
  bool fusible = false;
  bool computedOnce = false;
  bool readsPart = false;
  bool reducesRows = false;
  bool isQuantizedDot = false;
  bool isName = false; // Result i is another name for operand i, whatever is around it.

  explicit OpFacts(mlir::Operation *op);
};

/// The facts of ops that several stages have, which are found once. May be asked by several
/// threads; ops must not change meanwhile.
class OpTable {
public:
  /// Of each op.
  std::vector<const OpFacts *> find(llvm::ArrayRef<mlir::Operation *> ops);

private:
  std::shared_mutex mutex;
  llvm::DenseMap<mlir::Operation *, std::unique_ptr<OpFacts>> known;
};

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_OPFACTS_H
