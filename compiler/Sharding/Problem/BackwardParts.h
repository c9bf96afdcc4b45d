//===- BackwardParts.h - a backward phase in two parts -----------*- C++ -*-===//
//
// alpa-split-backward makes two functions of a stage's backward phase. The input
// part is what earlier stages wait for: ops on which a value rests that leaves the
// stage for an earlier one. The weight part is the rest, and can run later; what it
// reads of the input part and of received gradients is handed to it.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_BACKWARDPARTS_H
#define ALPA_COMPILER_SHARDING_PROBLEM_BACKWARDPARTS_H

#include "compiler/Sharding/Problem/ProblemBuilder.h"

namespace alpa::sharding {

/// Of a stage's ops, those of the input part; none where no value leaves the stage
/// for an earlier one, so that its backward phase stays one. Ops have `alpa.layer`.
llvm::DenseSet<mlir::Operation *> findInputPart(llvm::ArrayRef<OpInfo> ops);

/// One micro-batch.
struct BackwardParts {
  double inputSeconds = 0;
  double weightSeconds = 0; // 0 where the phase stays one.
  /// Per device, from the input part to the weight part: what the former hands over
  /// at most, and the activations that the latter reads.
  int64_t waitingBytes = 0;
};
BackwardParts measureBackwardParts(const ProblemBuilder &builder, llvm::ArrayRef<unsigned> choices);

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_BACKWARDPARTS_H
