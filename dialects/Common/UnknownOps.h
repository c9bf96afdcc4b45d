//===- UnknownOps.h - dialects whose set of ops is fixed --------*- C++ -*-===//

#ifndef ALPA_DIALECTS_COMMON_UNKNOWNOPS_H
#define ALPA_DIALECTS_COMMON_UNKNOWNOPS_H

#include "mlir/IR/Dialect.h"
#include "mlir/Transforms/InliningUtils.h"

namespace alpa {

/// For ops whose meaning does not depend on where they stand.
struct InlineAnything : mlir::DialectInlinerInterface {
  using DialectInlinerInterface::DialectInlinerInterface;
  bool isLegalToInline(mlir::Operation *, mlir::Operation *, bool) const final { return true; }
  bool isLegalToInline(mlir::Region *, mlir::Region *, bool, mlir::IRMapping &) const final {
    return true;
  }
  bool isLegalToInline(mlir::Operation *, mlir::Region *, bool, mlir::IRMapping &) const final {
    return true;
  }
};

/// A parse hook that refuses the pretty form of an op that is not registered,
/// with the error that MLIR gives for its generic form.
mlir::Dialect::ParseOpHook refuseUnknownOps();

/// Whether a diagnostic of MLIR's is about an op that no dialect has: the only place
/// that reads what MLIR says.
bool isOfUnknownOp(const mlir::Diagnostic &diagnostic);

/// Adds the list of the dialect's ops to errors about ops that it does not have, behind
/// what `reasonOf` says of the op's name without the dialect's, if anything.
void explainUnknownOps(mlir::Dialect &dialect,
                       llvm::StringRef (*reasonOf)(llvm::StringRef name) = nullptr);

} // namespace alpa

#endif // ALPA_DIALECTS_COMMON_UNKNOWNOPS_H
