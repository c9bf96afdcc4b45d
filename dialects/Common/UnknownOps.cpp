//===- UnknownOps.cpp - dialects whose set of ops is fixed ----------------===//

#include "dialects/Common/UnknownOps.h"

#include "dialects/Common/Diagnostics.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/OpImplementation.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace alpa;

static ParseResult refuse(OpAsmParser &parser, OperationState &state) {
  return withCode(parser.emitError(parser.getNameLoc()), ErrorCode::UnsupportedOp)
         << "unregistered operation '" << state.name << "' found in dialect ('"
         << state.name.getDialectNamespace() << "') that does not allow unknown operations";
}

// What MLIR 22.1 says of ops that no dialect has; it has nothing but text.
static constexpr StringLiteral kUnregistered = "unregistered operation '";
static constexpr StringLiteral kUnregisteredDialect =
    "operation being parsed with an unregistered dialect";
static constexpr StringLiteral kNoDialect = "' not found for custom op '";
static constexpr StringLiteral kCustomOp = "custom op '", kIsUnknown = "' is unknown";

bool alpa::isOfUnknownOp(const Diagnostic &diagnostic) {
  std::string said = diagnostic.str();
  StringRef text(said);
  return text.starts_with(kUnregistered) || text.starts_with(kUnregisteredDialect) ||
         text.contains(kNoDialect) || (text.starts_with(kCustomOp) && text.contains(kIsUnknown));
}

Dialect::ParseOpHook alpa::refuseUnknownOps() { return refuse; }

void alpa::explainUnknownOps(Dialect &dialect, StringRef (*reasonOf)(StringRef)) {
  MLIRContext *context = dialect.getContext();
  std::string name = dialect.getNamespace().str();
  std::string prefix = (kUnregistered + name + ".").str();
  context->getDiagEngine().registerHandler([=](Diagnostic &diagnostic) {
    std::string said = diagnostic.str();
    size_t at = StringRef(said).find(prefix);
    if (diagnostic.getSeverity() != DiagnosticSeverity::Error || at == StringRef::npos)
      return failure();
    StringRef op = StringRef(said).substr(at + prefix.size()).split('\'').first;
    if (StringRef reason = reasonOf ? reasonOf(op) : ""; !reason.empty())
      diagnostic.attachNote() << name << "." << op << ' ' << reason;
    SmallVector<StringRef> names;
    for (RegisteredOperationName op : context->getRegisteredOperationsByDialect(name))
      names.push_back(op.stripDialect());
    llvm::sort(names);
    diagnostic.attachNote() << "supported " << name << " ops: " << llvm::join(names, ", ");
    return failure(); // Others print it.
  });
}
