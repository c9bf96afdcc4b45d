//===- MinimumCut.h - which values to keep, which to make again ----*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SLICE_MINIMUMCUT_H
#define ALPA_COMPILER_STAGE_SLICE_MINIMUMCUT_H

#include "mlir/IR/ValueRange.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLFunctionalExtras.h"
#include "llvm/ADT/SetVector.h"
#include <optional>

namespace alpa::stage {

/// How an op that a value comes from may run once more.
struct Remaking {
  int64_t cost = 0; // In bytes that could be kept instead.
  mlir::ValueRange operands;
};

/// What it costs to run an op of one result within the loops of those that read it, in bytes that
/// could be read or written in the same time. Broadcasts and slices cost nothing, transposes and
/// the like are copies.
int64_t fusedBytes(mlir::Operation *op);

struct ValueCut {
  llvm::SetVector<mlir::Value> kept;
  llvm::DenseSet<mlir::Operation *> remade; // That the wanted values take besides.
};

/// Where the wanted values come from for the smallest sum of costs (see MinCut): each is
/// kept, or made again of values of which the same holds. `remaking` is empty for values
/// that cannot be made again.
ValueCut cutValues(llvm::ArrayRef<mlir::Value> wanted,
                   llvm::function_ref<int64_t(mlir::Value)> keepCost,
                   llvm::function_ref<std::optional<Remaking>(mlir::Value)> remaking);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_SLICE_MINIMUMCUT_H
