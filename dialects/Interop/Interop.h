//===- Interop.h - attributes of JAX's and XLA's own dialects ----*- C++ -*-===//
//
// JAX marks modules, functions and arguments with attributes of dialects that
// have no ops here: `mhlo.num_partitions`, `jax.buffer_donor`,
// `tf.aliasing_output`. Their dialects exist so that such text is read and kept.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_DIALECTS_INTEROP_INTEROP_H
#define ALPA_DIALECTS_INTEROP_INTEROP_H

#include "mlir/IR/DialectRegistry.h"

namespace alpa {

void registerInteropDialects(mlir::DialectRegistry &registry);

} // namespace alpa

#endif // ALPA_DIALECTS_INTEROP_INTEROP_H
