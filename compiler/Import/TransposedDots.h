//===- TransposedDots.h - products that are transposed -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_TRANSPOSEDDOTS_H
#define ALPA_COMPILER_IMPORT_TRANSPOSEDDOTS_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa {

/// Makes one product of a product and the transposition behind it that exchanges the
/// dimensions of its operands: (A B)^T is B^T A^T, so the operands change places. JAX
/// writes the gradient of every weight of a matrix product as such a pair. Returns the
/// number of transpositions that are gone.
unsigned foldTransposedDots(mlir::func::FuncOp main);

} // namespace alpa

#endif // ALPA_COMPILER_IMPORT_TRANSPOSEDDOTS_H
