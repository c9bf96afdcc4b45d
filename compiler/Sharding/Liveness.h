//===- Liveness.h - when a stage's values take up memory ---------*- C++ -*-===//
//
// The liveness order numbers the stage's ops: those of the forward phase, then
// backward, then update, as each phase becomes a function of its own; forward and
// backward in program order, update result by result. Arguments of a function stay
// until it returns:
//
//   state         parameters, optimizer state, and gradients that are summed over
//                 micro-batches: always
//   activations   from forward to backward: for this micro-batch from where it is
//                 made to the end of the backward phase, for the others in flight
//                 throughout forward and backward
//   temporaries   from the op that makes them to the last one that reads them, or
//                 to the end of the phase if others read them as well
//
// Terms of a sum that waits for the update are summed over micro-batches as they
// are; the sum itself lives while the update reads it.
//
// The next value of a state argument is written into the argument's own space,
// unless an op still reads the argument then, or the two are split differently.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_LIVENESS_H
#define ALPA_COMPILER_SHARDING_LIVENESS_H

#include "compiler/Sharding/ProblemBuilder.h"

namespace alpa {

enum class Lifetime : uint8_t { Temporary, Activation, State };

/// Bytes of a value, so many times, for a stretch of the liveness order.
struct LiveItem {
  unsigned value = 0;
  Lifetime lifetime = Lifetime::Temporary;
  int64_t copies = 1;
  Interval life;
  /// A state argument whose space is used if both follow one node and are split
  /// alike; or -1.
  int replaces = -1;
};

struct Liveness {
  std::vector<unsigned> order; // The op of each time, as an index of the builder's ops.
  std::vector<LiveItem> items;
  int64_t microBatchesInFlight = 1;

  int64_t end() const { return std::max<int64_t>(1, order.size()); }
};

Liveness computeLiveness(const ProblemBuilder &builder, const IntraOpOptions &options);

} // namespace alpa

#endif // ALPA_COMPILER_SHARDING_LIVENESS_H
