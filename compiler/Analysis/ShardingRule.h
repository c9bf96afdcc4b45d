//===- ShardingRule.h - how an op's dimensions may be split ------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_SHARDINGRULE_H
#define ALPA_COMPILER_ANALYSIS_SHARDINGRULE_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/SmallVector.h"
#include <optional>

namespace alpa {

enum class FactorKind {
  Parallel,   // Splits operands and results alike.
  Reduction,  // Splits operands only; results are partial sums (see reducer).
  Window,     // A dimension that a window slides over; not split.
  Sequential, // Must stay whole (sorted, scanned or concatenated dimension).
};

struct Factor {
  int64_t size = 1;
  FactorKind kind = FactorKind::Parallel;
};

/// A dimension is the product of its factors, major to minor; a dimension with
/// no factor has size 1 or is never split.
using DimFactors = llvm::SmallVector<unsigned, 1>;
using TensorFactors = llvm::SmallVector<DimFactors>;

/// One op's loops. The only place that knows the op's semantics: strategies,
/// propagation, memory and batch analysis all derive from it.
struct ShardingRule {
  llvm::SmallVector<Factor> factors;
  llvm::SmallVector<TensorFactors> operands;
  llvm::SmallVector<TensorFactors> results;
  bool heavy = false; // Dot and convolution: replicated only as a last resort.
  bool leads = false; // Worth a choice of its own, though cheap (gather, scatter).
  /// Result i is operand i, whatever the other operands are (optimization_barrier).
  bool forwards = false;
};

/// The rule of an op of the StableHLO set, or nothing if it has no rule yet.
std::optional<ShardingRule> getShardingRule(mlir::Operation *op);

/// Floating-point operations of the whole (unsplit) op, and bytes it reads and
/// writes.
double getFlops(mlir::Operation *op);
double getBytes(mlir::Operation *op);
/// Bytes of a tensor; 0 for other types.
double getTensorBytes(mlir::Type type);
/// Element type in which the op computes, by NumPy's name ("float32").
llvm::StringRef getComputeType(mlir::Operation *op);

} // namespace alpa

#endif // ALPA_COMPILER_ANALYSIS_SHARDINGRULE_H
