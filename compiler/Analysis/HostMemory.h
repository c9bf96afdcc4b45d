//===- HostMemory.h - what lies in the host's memory ------------*- C++ -*-===//
//
// State: between steps, and until the update, such state is in its host's memory. The update
// brings it to the device piece by piece: the copies of a piece begin once the piece
// before the previous one has its results, and run beside the work on the previous one
// and the way back of its results. So the inputs of two pieces and the results of one
// are on the device at a time.
//
// Activations: results of forward ops with `alpa.offloaded` that the forward and backward ops
// of one stage alone read go to the host as they are made, and stay until the backward
// run of their micro-batch. That brings them back piece by piece, a piece being what
// one layer is the first to read. Each piece is done with before the next one is begun, and
// only then do the copies of the one behind that begin, which run beside it.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_ANALYSIS_HOSTMEMORY_H
#define ALPA_COMPILER_ANALYSIS_HOSTMEMORY_H

#include "mlir/IR/Value.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <vector>

namespace alpa::analysis {

/// Arguments that an update brings to the device together, and what it sends back for them:
/// the moments of one weight, or all that some next value depends on.
struct HostPiece {
  llvm::SmallVector<mlir::Value> arguments, results;
  /// Of the ops that read the arguments or make the results.
  unsigned first = 0, last = 0;
};

/// In the order in which `ops`, of one block, first read them.
std::vector<HostPiece> findHostPieces(llvm::ArrayRef<mlir::Operation *> ops,
                                      llvm::function_ref<bool(mlir::Value)> isHostArgument,
                                      llvm::ArrayRef<mlir::Value> hostResults);

/// Whether a value waits for the backward phase in the host's memory.
bool isHostActivation(mlir::Value value, llvm::function_ref<bool(mlir::Operation *)> isInStage);

/// The first backward op that reads it, in the block of its op.
mlir::Operation *firstBackwardReader(mlir::Value activation);

/// Activations that a backward function brings to the device together.
struct HostActivations {
  llvm::SmallVector<mlir::Value> values;
  unsigned first = 0; // Of the ops that read them.
  /// Of what these ops and those up to the next piece make: what others read, or the function
  /// returns. Empty for the last piece.
  llvm::SmallVector<mlir::Value> results;
};

/// In the order in which `ops`, of one block, first read them. `pieceOf` gives the number of the
/// piece of a host activation, -1 for other values.
std::vector<HostActivations> findHostActivations(llvm::ArrayRef<mlir::Operation *> ops,
                                                 llvm::function_ref<int64_t(mlir::Value)> pieceOf);

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_HOSTMEMORY_H
