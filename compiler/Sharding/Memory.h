//===- Memory.h - bytes that a sharded stage keeps ---------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_MEMORY_H
#define ALPA_COMPILER_SHARDING_MEMORY_H

#include "compiler/Sharding/ProblemBuilder.h"

namespace alpa {

/// What one device of the stage's mesh holds.
struct MemoryUse {
  int64_t stateBytes = 0;      // Parameters, optimizer state, accumulated gradients.
  int64_t activationBytes = 0; // From forward to backward, of one micro-batch.
  int64_t temporaryBytes = 0;  // Most at one moment within one phase.
  /// Values behind temporaryBytes.
  std::vector<unsigned> peakValues;

  int64_t total(int64_t microBatchesInFlight) const {
    return stateBytes + microBatchesInFlight * activationBytes + temporaryBytes;
  }
};

/// Whether a value lives across steps (or micro-batches), or between the phases
/// of a micro-batch.
enum class Lifetime : uint8_t { Temporary, Activation, State };
std::vector<Lifetime> valueLifetimes(const ProblemBuilder &builder);

MemoryUse measureMemory(const ProblemBuilder &builder, llvm::ArrayRef<Lifetime> lifetimes,
                        llvm::ArrayRef<unsigned> choices);

/// Adds to the problem one moment at which all state, the activations in flight
/// and `peakValues` are held, under the limit. Bytes that do not depend on a
/// choice are taken from the limit.
void addMemory(Problem &problem, const ProblemBuilder &builder, llvm::ArrayRef<Lifetime> lifetimes,
               llvm::ArrayRef<unsigned> peakValues, int64_t microBatchesInFlight,
               int64_t limitBytes);

} // namespace alpa

#endif // ALPA_COMPILER_SHARDING_MEMORY_H
