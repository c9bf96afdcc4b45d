//===- SumCompletion.h - sums over devices that wait for the update -*- C++ -*-===//
//
// A gradient that contracts over split batch dimensions is a sum over devices.
// Where it only waits for the update, the devices may keep their terms, add them up
// over micro-batches, and exchange them once a step. The op that makes the terms is
// the producer; linear ops between it and the update are links; the value that the
// update reads crosses.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_SUMCOMPLETION_H
#define ALPA_COMPILER_SHARDING_PROBLEM_SUMCOMPLETION_H

#include "compiler/Sharding/Problem/Reshard.h"
#include "compiler/Sharding/Problem/Strategies.h"
#include "llvm/ADT/DenseSet.h"

namespace alpa::sharding {

/// A tensor whose elements are all equal: a splat constant, or one element that is
/// broadcast.
bool isUniform(mlir::Value value);
/// The operand whose terms the op passes on: f(a + b) = f(a) + f(b), with no
/// digit lost. Converts to wider types, transposes, reshapes, broadcasts and sums over
/// dimensions of one element, negation, products with and quotients by uniform tensors; -1 for
/// other ops.
int linkOperand(mlir::Operation *op);
/// Factors of an op's rule whose sums it can leave as terms: contracted dimensions
/// of dots and convolutions, dimensions that are added up, updates that are
/// scattered into zeros.
llvm::SmallVector<unsigned> deferrableFactors(mlir::Operation *op,
                                              const analysis::ShardingRule &rule);
/// Of a strategy, the axes whose sums can wait: those of a deferrable factor none of
/// whose axes is scattered. One bit for each.
uint8_t deferrableAxes(mlir::Operation *op, const analysis::ShardingRule &rule,
                       llvm::ArrayRef<unsigned> factors, const Strategy &strategy);

/// The values of a stage that only wait for the update.
class WaitingValues {
public:
  WaitingValues() = default;
  explicit WaitingValues(llvm::ArrayRef<mlir::Operation *> stageOps);

  /// Waits itself, or goes through links only into one that does.
  bool waits(mlir::Value value) const { return waiting.contains(value); }
  /// Is what the update reads.
  bool crosses(mlir::Value value) const { return crossing.contains(value); }

private:
  llvm::DenseSet<mlir::Value> waiting, crossing;
};

/// How terms become their sum, held in a given way.
struct SumCompletion {
  PackedSpec summed;                     // Right after all-reduces and reduce-scatters.
  llvm::SmallVector<CollectiveUse> uses; // Those.
  int64_t picoseconds = 0;               // With the reshard from `summed`.
};

/// The cheapest way from terms held as `from` (which may be unreduced over no axis) to
/// the sum held as `to`.
SumCompletion completeSum(llvm::ArrayRef<int64_t> shape, double bytes, PackedSpec from,
                          PackedSpec to, TensorReshards &reshards, const cost::CostModel &model);

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_SUMCOMPLETION_H
