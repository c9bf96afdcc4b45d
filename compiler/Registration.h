//===- Registration.h - every dialect and pass of the compiler ---*- C++ -*-===//

#ifndef ALPA_COMPILER_REGISTRATION_H
#define ALPA_COMPILER_REGISTRATION_H

#include "mlir/IR/DialectRegistry.h"

namespace alpa {

void registerDialects(mlir::DialectRegistry &registry);
/// Passes of this project and the upstream ones that are useful beside them.
void registerPasses();

} // namespace alpa

#endif // ALPA_COMPILER_REGISTRATION_H
