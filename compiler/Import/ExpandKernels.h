//===- ExpandKernels.h - kernels whose parts need less -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_EXPANDKERNELS_H
#define ALPA_COMPILER_IMPORT_EXPANDKERNELS_H

#include "mlir/IR/Operation.h"

namespace alpa::importer {

/// Writes what a kernel of Transformer Engine computes of all rows in plain ops, so that a part of
/// the rows is all that the call needs: gradients of norms' weights, and of quantization the
/// largest element, the scale and the sum of a bias. A router's loss, which is nothing but sums,
/// becomes plain ops. Gives how many calls had some.
unsigned writeSumsOfRows(mlir::Operation *function);

/// Gives attention of Transformer Engine the lengths of each example, in place of sums over the
/// examples before (AttentionCall::hasOwnLengths), where they are found, and nothing that it does
/// not read. Gives how many calls have lengths of their own then.
unsigned separateExamples(mlir::Operation *function);

} // namespace alpa::importer

#endif // ALPA_COMPILER_IMPORT_EXPANDKERNELS_H
