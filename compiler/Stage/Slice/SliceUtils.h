//===- SliceUtils.h - small questions that slicing asks an op ----*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SLICE_SLICEUTILS_H
#define ALPA_COMPILER_STAGE_SLICE_SLICEUTILS_H

#include "dialects/Alpa/AlpaDialect.h"

namespace alpa {

/// The barrier is what runs once, between the forward runs of all micro-batches and
/// their backward runs.
enum class Phase { Forward, Barrier, Backward, Update };

std::optional<Phase> phaseOf(mlir::Operation *op);
llvm::StringRef stringifyPhase(Phase phase);
std::optional<int64_t> stageOf(mlir::Operation *op);

/// One result computed element by element (or a constant, or only moved), no
/// regions: running it twice costs little and changes nothing.
bool isRepeatable(mlir::Operation *op);
bool isBroadcast(mlir::Operation *op);
/// Result and operands have one shape, and elements do not move.
bool isElementwise(mlir::Operation *op);
bool isSingleElement(mlir::Type type);
/// Index of the result of @main that is the argument's next value.
std::optional<int64_t> carriedBy(mlir::BlockArgument arg);

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SLICE_SLICEUTILS_H
