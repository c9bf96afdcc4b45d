//===- RingAttention.h - attention whose tokens are split --------*- C++ -*-===//

#ifndef ALPA_COMPILER_SPMD_RINGATTENTION_H
#define ALPA_COMPILER_SPMD_RINGATTENTION_H

#include "compiler/Analysis/Calls/AttentionCall.h"
#include "dialects/Alpa/ShardingSpec.h"
#include "mlir/IR/Builders.h"

namespace alpa::spmd {

/// The devices that share the tokens of a call, in the order of the tokens.
struct Ring {
  using Pairs = llvm::SmallVector<std::pair<int64_t, int64_t>>;

  int64_t count = 1;
  /// Which of them runs the program: a scalar of type i32.
  mlir::Value place;
  /// Sends a value from places to places of each ring; where nothing arrives, zeros do.
  std::function<mlir::Value(mlir::Value, const Pairs &)> send;
  /// What all have, one behind the other along a dimension; and a place's part of the sum of that.
  std::function<mlir::Value(mlir::Value, int64_t dim)> gather, scatterSum;
};

/// Axes that split the tokens of a call whose queries are held so.
llvm::ArrayRef<unsigned> ringAxes(const analysis::AttentionCall &call, const ShardingSpec &queries);

/// From and to which device (row-major in the mesh) values go when each place in the rings
/// along `axes` sends to another one.
Ring::Pairs ringPairs(const Ring::Pairs &places, llvm::ArrayRef<unsigned> axes,
                      llvm::ArrayRef<int64_t> meshShape);

/// The pairs as a permute has them.
mlir::DenseIntElementsAttr sourceTargetPairs(const Ring::Pairs &pairs, mlir::Builder &builder);

/// Sets how a ring gathers and scatters. `channel` is asked for each collective, for the number of
/// one between the partitions of one program.
void setGathers(Ring &ring, mlir::OpBuilder &builder, llvm::ArrayRef<unsigned> axes,
                llvm::ArrayRef<int64_t> meshShape, std::function<std::optional<int64_t>()> channel);

/// What one device computes of a call, forward or backward, of its own tokens: keys and values go
/// round the ring, one step beside each kernel (Liu et al., "Ring Attention with Blockwise
/// Transformers for Near-Infinite Context", 2023). Of causal attention each device takes an
/// early and a late half of what two devices have, so that all have as much to do. With a sliding
/// window it gets the keys that it needs from the devices before, all at once. With
/// `alpa.gathers_keys` all keys and values come before the first kernel (Llama Team, "The Llama 3
/// Herd of Models", 2024, section 3.3.2).
///
/// `parts` are the device's operands, `types` those of its results.
llvm::SmallVector<mlir::Value> writeRing(mlir::OpBuilder &builder,
                                         const analysis::AttentionCall &call,
                                         mlir::ValueRange parts, mlir::TypeRange types,
                                         const Ring &ring);

} // namespace alpa::spmd

#endif // ALPA_COMPILER_SPMD_RINGATTENTION_H
