//===- Inline.h - private functions into their callers -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_INLINE_H
#define ALPA_COMPILER_IMPORT_INLINE_H

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa {

/// Replaces every call in `main`, also inside loops and branches and calls of a
/// composite's decomposition, by the callee's body. Locations become call
/// sites: callee's op at caller's op. Recursion, a callee that does not exist
/// and a callee without a body are errors. Adds the number of calls to `count`.
mlir::LogicalResult inlineCalls(mlir::func::FuncOp main, unsigned &count);

} // namespace alpa

#endif // ALPA_COMPILER_IMPORT_INLINE_H
