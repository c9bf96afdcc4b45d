//===- InteropDialects.h - dialects known by attributes only -----*- C++ -*-===//

#ifndef ALPA_DIALECTS_INTEROP_INTEROPDIALECTS_H
#define ALPA_DIALECTS_INTEROP_INTEROPDIALECTS_H

#include "mlir/IR/DialectRegistry.h"

namespace alpa {

/// `mhlo`, `jax` and `tf`: JAX hangs attributes of these names on modules, calls
/// and arguments (`mhlo.num_partitions`, `jax.result_info`, `tf.aliasing_output`).
/// They have no ops here; their attributes are passed on as they are. `quant`: its
/// types are refused by name.
void registerInteropDialects(mlir::DialectRegistry &registry);

} // namespace alpa

#endif // ALPA_DIALECTS_INTEROP_INTEROPDIALECTS_H
