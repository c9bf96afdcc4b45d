//===- ClosedSet.cpp - dialects whose set of ops is fixed -----------------===//

#include "dialects/Common/ClosedSet.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/OpImplementation.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;

static ParseResult refuse(OpAsmParser &parser, OperationState &state) {
  return parser.emitError(parser.getNameLoc())
         << "unregistered operation '" << state.name << "' found in dialect ('"
         << state.name.getDialectNamespace() << "') that does not allow unknown operations";
}

Dialect::ParseOpHook alpa::refuseUnknownOps() { return refuse; }

void alpa::explainUnknownOps(Dialect &dialect) {
  MLIRContext *context = dialect.getContext();
  std::string name = dialect.getNamespace().str();
  std::string prefix = "unregistered operation '" + name + ".";
  context->getDiagEngine().registerHandler([=](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() != DiagnosticSeverity::Error ||
        !StringRef(diagnostic.str()).contains(prefix))
      return failure();
    SmallVector<StringRef> names;
    for (RegisteredOperationName op : context->getRegisteredOperationsByDialect(name))
      names.push_back(op.stripDialect());
    llvm::sort(names);
    diagnostic.attachNote() << "supported " << name << " ops: " << llvm::join(names, ", ");
    return failure(); // Others print it.
  });
}
