//===- Legalize.h - ops that others say as well ------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_LEGALIZE_H
#define ALPA_COMPILER_IMPORT_LEGALIZE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa::importer {

/// Leaves none of the ops that others say as well: ops whose sizes are run-time values
/// become those of known sizes, `if` a `case`, and `map` its computation over whole
/// arrays; bodies of others have their own constants. Sizes have to follow from constants and
/// types; what does not is an error. Adds the number of ops that were written anew to `count`.
mlir::LogicalResult legalize(mlir::func::FuncOp main, unsigned &count);

} // namespace alpa::importer

#endif // ALPA_COMPILER_IMPORT_LEGALIZE_H
