//===- Diagnostics.h - codes of errors on MLIR's diagnostics -----*- C++ -*-===//

#ifndef ALPA_DIALECTS_COMMON_DIAGNOSTICS_H
#define ALPA_DIALECTS_COMMON_DIAGNOSTICS_H

#include "dialects/Common/ErrorCode.h"

#include "mlir/IR/Diagnostics.h"
#include <optional>

namespace alpa {

/// The diagnostic with a code, which its printed text does not show.
mlir::InFlightDiagnostic withCode(mlir::InFlightDiagnostic &&diagnostic, ErrorCode code);

/// The diagnostic with the text of an error at its end, and its code.
mlir::InFlightDiagnostic withError(mlir::InFlightDiagnostic &&diagnostic, llvm::Error error);

/// Code, text and fix of a diagnostic; one that was made without a code, by MLIR
/// or by us, gets `otherwise`.
CodedError partsOf(mlir::Diagnostic &diagnostic, ErrorCode otherwise);

} // namespace alpa

#endif // ALPA_DIALECTS_COMMON_DIAGNOSTICS_H
