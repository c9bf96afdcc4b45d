//===- LeastMemory.h - what a stage cannot do without ------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_LEASTMEMORY_H
#define ALPA_COMPILER_SHARDING_PROBLEM_LEASTMEMORY_H

#include "compiler/Sharding/Problem/StageMemory.h"

namespace alpa {

/// The smallest memory in which the stage's plans fit.
struct LeastMemory {
  int64_t lowerBytes = 0;        // No plan needs less.
  int64_t upperBytes = 0;        // A plan needs this.
  std::vector<unsigned> choices; // That plan.
};

/// Minimizes the peak by minimizing weighted sums of the bytes at some moments,
/// of which each bounds it from below; the answer's fullest moment gets more
/// weight until the two bounds meet, or for some rounds.
LeastMemory findLeastMemory(const ProblemBuilder &builder, const Liveness &liveness);

/// Why nothing fits: the smallest memory that would do, the fullest moment of the
/// plan that needs least, and what takes most room then. `isProven` says that
/// nothing fits for certain.
std::string explainInfeasible(const ProblemBuilder &builder, const Liveness &liveness,
                              const LeastMemory &least, int64_t limitBytes, bool isProven);

} // namespace alpa

#endif // ALPA_COMPILER_SHARDING_PROBLEM_LEASTMEMORY_H
