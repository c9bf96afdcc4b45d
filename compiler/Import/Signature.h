//===- Signature.h - what the tracer knows about @main -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_SIGNATURE_H
#define ALPA_COMPILER_IMPORT_SIGNATURE_H

#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"

namespace alpa::importer {

/// Sets the signature attributes of docs/ir.md on @main from JSON:
/// {"inputs": [{"name", "kind", "carried_by"}], "outputs": [{"name"}]}.
/// A count that differs from @main's is an error.
llvm::Error annotateSignature(mlir::ModuleOp module, llvm::StringRef json);

} // namespace alpa::importer

#endif // ALPA_COMPILER_IMPORT_SIGNATURE_H
