//===- BlockScaledDot.h - products of blocks with scales ---------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_CALLS_BLOCKSCALEDDOT_H
#define ALPA_COMPILER_ANALYSIS_CALLS_BLOCKSCALEDDOT_H

#include "compiler/Analysis/ShardingRule.h"
#include "dialects/StableHLO/StableHLOOps.h"

namespace alpa::analysis {

/// The call that `jax.nn.scaled_matmul` and `jax.nn.scaled_dot_general` make on CUDA (MXFP8,
/// NVFP4): numbers of 8 or 4 bits, with a scale for each block along the contracted dimension.
///
///   __op$block_scaled_dot: lhs [B, M, K], rhs [B, N, K], scales [B, M, K / block] and
///                          [B, N, K / block] -> [B, M, N]
struct BlockScaledDot {
  mlir::stablehlo::CustomCallOp op;
  int64_t blocks = 0; // Of each row.

  /// Nothing for other ops, and for calls of another form.
  static std::optional<BlockScaledDot> read(mlir::Operation *op);
  /// A block stays whole; blocks are terms of a sum.
  ShardingRule rule() const;
  double flops() const;
};

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_CALLS_BLOCKSCALEDDOT_H
