//===- Inline.cpp - private functions into their callers ------------------===//

#include "compiler/Import/Inline.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/SymbolTable.h"
#include "llvm/ADT/DenseMap.h"

using namespace mlir;

namespace {

class Inliner {
public:
  Inliner(SymbolTable &symbols, unsigned &count) : symbols(symbols), count(count) {}

  /// Leaves no call in `function`; callees first, so that each is flat before it is copied.
  LogicalResult flatten(func::FuncOp function) {
    if (states.lookup(function) == State::Flat)
      return success();
    states[function] = State::Active;
    SmallVector<Operation *> calls;
    function.walk([&](Operation *op) {
      if (getCallee(op))
        calls.push_back(op);
    });
    for (Operation *call : calls) {
      FlatSymbolRefAttr name = getCallee(call);
      auto callee = symbols.lookup<func::FuncOp>(name.getValue());
      if (!callee)
        return call->emitOpError() << "calls @" << name.getValue() << ", which is not defined";
      if (!callee.getBody().hasOneBlock())
        return call->emitOpError() << "calls @" << name.getValue() << ", which has no body";
      if (states.lookup(callee) == State::Active)
        return call->emitOpError() << "calls @" << name.getValue()
                                   << ", which calls itself; recursion cannot be planned";
      if (failed(flatten(callee)))
        return failure();
      if (!llvm::equal(callee.getArgumentTypes(), call->getOperandTypes()) ||
          !llvm::equal(callee.getResultTypes(), call->getResultTypes()))
        return call->emitOpError() << "does not fit the type of @" << name.getValue();
      inlineCall(call, callee);
    }
    states[function] = State::Flat;
    return success();
  }

private:
  enum class State { New, Active, Flat };

  static FlatSymbolRefAttr getCallee(Operation *op) {
    if (auto call = dyn_cast<func::CallOp>(op))
      return call.getCalleeAttr();
    if (op->getName().getStringRef() == "stablehlo.composite")
      return op->getAttrOfType<FlatSymbolRefAttr>("decomposition");
    return nullptr;
  }

  void inlineCall(Operation *call, func::FuncOp callee) {
    IRMapping mapping;
    mapping.map(callee.getArguments(), call->getOperands());
    OpBuilder builder(call);
    for (Operation &op : callee.getBody().front().without_terminator()) {
      Operation *copy = builder.clone(op, mapping);
      copy->walk([&](Operation *inner) {
        inner->setLoc(CallSiteLoc::get(inner->getLoc(), call->getLoc()));
      });
    }
    Operation *terminator = callee.getBody().front().getTerminator();
    for (auto [result, value] : llvm::zip(call->getResults(), terminator->getOperands()))
      result.replaceAllUsesWith(mapping.lookup(value));
    call->erase();
    ++count;
  }

  SymbolTable &symbols;
  unsigned &count;
  llvm::DenseMap<Operation *, State> states;
};

} // namespace

LogicalResult alpa::inlineCalls(func::FuncOp main, unsigned &count) {
  auto module = main->getParentOfType<ModuleOp>();
  SymbolTable symbols(module);
  return Inliner(symbols, count).flatten(main);
}
