//===- HostMemory.h - state that lies in the host's memory ------*- C++ -*-===//
//
// Between steps, and until the update, such state is in its host's memory. The update
// brings it to the device piece by piece: the copies of a piece begin once the piece
// before the previous one has its results, and run beside the work on the previous one
// and the way back of its results. So the inputs of two pieces and the results of one
// are on the device at a time.
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

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_HOSTMEMORY_H
