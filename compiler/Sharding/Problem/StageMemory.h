//===- StageMemory.h - bytes that a sharded stage keeps ---------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_STAGEMEMORY_H
#define ALPA_COMPILER_SHARDING_PROBLEM_STAGEMEMORY_H

#include "compiler/Sharding/Problem/Liveness.h"

namespace alpa::sharding {

/// What one device of the stage's mesh holds.
struct MemoryUse {
  int64_t stateBytes = 0;      // Always.
  int64_t activationBytes = 0; // From forward to backward, of one micro-batch.
  int64_t hostBytes = 0;       // In the host's memory, with the micro-batches in flight.
  /// Of one micro-batch there, as much as they count.
  int64_t hostActivationBytes = 0;
  int64_t deviceBytes = 0; // The most on the device, with the micro-batches in flight.
  /// The same, or of the host's memory as much as that counts (ProblemBuilder::hostByteWeight).
  int64_t peakBytes = 0;
  int64_t peakTime = 0; // First time of the peak, in the liveness order.
  int64_t microBatchesInFlight = 1;
  /// Of each phase: what its function holds besides arguments and results.
  std::array<int64_t, kNumPhases> scratchBytes = {};
  std::vector<int64_t> bytesAt; // Of each time.

  /// What the peak holds besides state and activations.
  int64_t temporaryBytes() const {
    return deviceBytes - stateBytes - microBatchesInFlight * activationBytes;
  }
};

/// Recomputed from the specs of values alone; agrees with the evaluator of the
/// problem that `addMemory` makes.
MemoryUse measureMemory(const ProblemBuilder &builder, const Liveness &liveness,
                        llvm::ArrayRef<unsigned> choices);
int64_t itemBytes(const ProblemBuilder &builder, const LiveItem &item,
                  llvm::ArrayRef<unsigned> choices);

/// Adds the bytes of all values to the problem, at the given times of the liveness
/// order, or at all that can need more than every other whatever is chosen. The
/// problem's time m is the liveness order's time `result[m]`. A node carries the
/// bytes of its values with the longest common life; for each other life a node is
/// added that must follow it (one choice for each number of bytes, and an edge that
/// allows one of them for each of the node's choices).
std::vector<int64_t> addMemory(solver::Problem &problem, const ProblemBuilder &builder,
                               const Liveness &liveness, int64_t limitBytes,
                               llvm::ArrayRef<int64_t> times = {});

/// How each value of the stage is held.
llvm::DenseMap<mlir::Value, ShardingSpec> heldSpecs(const ProblemBuilder &builder,
                                                    llvm::ArrayRef<unsigned> choices);

/// Sets specs, seconds and bytes of a result that has its choices.
void reportPlan(const ProblemBuilder &builder, const MemoryUse &use, IntraOpResult &result);

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_STAGEMEMORY_H
