//===- Liveness.h - when a stage's values take up memory ---------*- C++ -*-===//
//
// The liveness order numbers the stage's ops: those that prepare weights, the forward
// phase, the barrier, backward, then update, as each phase becomes a function of its own;
// all in program order but update, which goes result by result. Arguments of a function
// stay until it returns:
//
//   host state    in the host's memory, which counts at a time of its own behind all others; in
//                 the update for as long as its piece is worked on, inputs from the piece
//                 before on (compiler/Analysis/HostMemory.h)
//   host activations  in the host's memory for all micro-batches in flight, at the same time; on
//                 the device until they are copied there, as inner values of forward, and again
//                 of backward from the piece before on
//   state         parameters, optimizer state, gradients that are summed over
//                 micro-batches, and results of the step that are there before the
//                 update (one for each micro-batch if they are joined): always
//   activations   from forward to backward: for all micro-batches in flight,
//                 throughout forward and backward
//   prepared      weights for all micro-batches: to the end of backward; counted as
//                 temporaries
//   joined        sums for the barrier: until it is over; what it makes for backward:
//                 from there to the end of backward; counted as temporaries
//   temporaries   results of a function that are no activations: as long as it
//                 runs, as do inputs that one function alone reads. Others: from the
//                 op that makes them to the last one that reads them
//
// A function's results have their buffers before it runs, as XLA gives them. Until a
// result is made, temporaries live in its buffer, one at a time, if they are sure to fit:
// both are split alike, or the result has no less on a device under any choice. In the
// same way a result takes the buffer of an activation of its type that is split alike
// and that the function is the last to read (the runtime donates it, unless it was
// sent), and an elementwise op or a loop that of an operand of its size that nothing
// reads later.
//
// Rows that layers make for a stack are written into it where the layers become a loop
// (IntraOpOptions::makesLoops): the stack lives from the first of them on, and they need
// no space beside it. XLA for layers written out puts the stack together in the end.
//
// What a stage sends keeps its buffer until the receiver takes it, while the sender
// goes on.
//
// Terms of a sum that waits for the update are summed over micro-batches as they
// are, each within the function that makes it (the term is a temporary there, until it
// is added); the sum itself lives while the update reads it.
//
// The next value of a state argument is written into the argument's own space,
// unless an op still reads the argument then, or the two are split differently. What
// a reshape or an optimization barrier gives, or a loop hands on as it is, is another
// name for its operand, unless it goes to another function.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_LIVENESS_H
#define ALPA_COMPILER_SHARDING_PROBLEM_LIVENESS_H

#include "compiler/Sharding/Problem/ProblemBuilder.h"

namespace alpa::sharding {

enum class Lifetime : uint8_t { Temporary, Activation, State };

/// Bytes of a value, so many times, for a stretch of the liveness order.
struct LiveItem {
  unsigned value = 0;
  Lifetime lifetime = Lifetime::Temporary;
  int64_t copies = 1;
  solver::Interval life;
  /// A value whose space is used if both follow one node and are split alike: a state
  /// argument, what this is another name for, or whose buffer this has; or -1.
  int replaces = -1;
  /// Neither argument nor result of the function in which it lives.
  bool isInner = false;
  /// If it has no more bytes on a device, it lives in a buffer that is counted elsewhere.
  int64_t fittingBytes = 0;
  /// In the host's memory.
  bool isOnHost = false;
};

struct Liveness {
  std::vector<unsigned> order; // The op of each time, as an index of the builder's ops.
  std::array<int64_t, kNumPhases> phaseEnd = {};
  std::vector<LiveItem> items;
  int64_t microBatchesInFlight = 1;

  int64_t end() const { return std::max<int64_t>(1, order.size()); }
  /// When the host's memory counts, if any item is there, and how many times there are.
  int64_t hostTime() const { return end(); }
  int64_t numTimes() const { return end() + hasHostItems; }
  bool hasHostItems = false;
};

Liveness computeLiveness(const ProblemBuilder &builder, const IntraOpOptions &options);

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_LIVENESS_H
