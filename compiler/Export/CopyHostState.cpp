//===- CopyHostState.cpp - state of the host's memory, to devices and back ===//

#include "compiler/Analysis/HostMemory.h"
#include "compiler/Export/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Analysis/TopologicalSortUtils.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

namespace alpa::exporter {
#define GEN_PASS_DEF_ALPACOPYHOSTSTATE
#include "compiler/Export/Passes.h.inc"
} // namespace alpa::exporter

using namespace mlir;
using namespace alpa;

/// As JAX's memory kinds name them.
static constexpr StringLiteral kDevice = "device";
static constexpr StringLiteral kHost = "pinned_host";

static Value copyTo(OpBuilder &builder, Value value, StringRef memory) {
  OperationState state(value.getLoc(), stablehlo::CustomCallOp::getOperationName(), value,
                       value.getType());
  state.addAttribute("call_target_name", builder.getStringAttr("annotate_device_placement"));
  state.addAttribute("backend_config", builder.getStringAttr(""));
  state.addAttribute("has_side_effect", builder.getBoolAttr(true));
  state.addAttribute("mhlo.frontend_attributes",
                     builder.getDictionaryAttr(builder.getNamedAttr(
                         "_xla_buffer_placement", builder.getStringAttr(memory))));
  return builder.create(state)->getResult(0);
}

namespace {

struct CopyHostState : exporter::impl::AlpaCopyHostStateBase<CopyHostState> {
  using Base::Base;

  void runOnOperation() override {
    getOperation().walk([&](func::FuncOp function) {
      if (!function.isDeclaration())
        rewrite(function);
    });
  }

private:
  /// As JAX writes them; all at once, since one by one takes quadratic time.
  void setMemoryKinds(func::FuncOp function) {
    auto kind = StringAttr::get(&getContext(), kHost);
    bool hasAny = false;
    SmallVector<DictionaryAttr> argAttrs, resultAttrs;
    auto add = [&](DictionaryAttr given, SmallVector<DictionaryAttr> &made) {
      NamedAttrList attributes(given);
      if (given && given.contains(attr::memory)) {
        attributes.set("mhlo.memory_kind", kind);
        hasAny = true;
      }
      made.push_back(attributes.getDictionary(&getContext()));
    };
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      add(function.getArgAttrDict(i), argAttrs);
    for (unsigned i = 0; i < function.getNumResults(); ++i)
      add(function.getResultAttrDict(i), resultAttrs);
    if (!hasAny)
      return;
    function.setAllArgAttrs(argAttrs);
    function.setAllResultAttrs(resultAttrs);
  }

  void rewrite(func::FuncOp function) {
    Block &body = function.front();
    Operation *end = body.getTerminator();
    setMemoryKinds(function);
    SmallVector<OpOperand *> returned;
    SmallVector<Value> results;
    for (OpOperand &operand : end->getOpOperands())
      if (function.getResultAttr(operand.getOperandNumber(), attr::memory) &&
          operand.get().getDefiningOp()) {
        returned.push_back(&operand);
        results.push_back(operand.get());
      }
    SmallVector<Operation *> ops;
    for (Operation &op : body.without_terminator())
      ops.push_back(&op);
    auto pieceOf = [&](Value value) -> int64_t {
      auto argument = dyn_cast<BlockArgument>(value);
      auto layer =
          argument && argument.getOwner() == &body
              ? function.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), attr::layer)
              : IntegerAttr();
      return layer && isHostArgument(value) ? layer.getInt() : -1;
    };
    auto isHostState = [&](Value value) { return isHostArgument(value) && pieceOf(value) < 0; };
    std::vector<analysis::HostPiece> pieces = analysis::findHostPieces(ops, isHostState, results);
    std::vector<analysis::HostActivations> activations =
        analysis::findHostActivations(ops, pieceOf);
    OpBuilder builder = OpBuilder::atBlockBegin(&body);
    for (auto [index, piece] : llvm::enumerate(pieces)) {
      constexpr size_t kDistance = 2;
      ArrayRef<Value> awaited;
      if (index >= kDistance)
        awaited = pieces[index - kDistance].results;
      bring(builder, piece.arguments, awaited, end);
    }
    llvm::DenseMap<Operation *, unsigned> placeOf;
    for (auto [place, op] : llvm::enumerate(ops))
      placeOf[op] = place;
    for (auto [index, piece] : llvm::enumerate(activations)) {
      if (index < 2)
        bring(builder, piece.values, {}, end);
      if (index == 0)
        continue;
      // What reads the results of the piece before waits for all of them, and so do the copies of
      // the next piece.
      ArrayRef<Value> before = activations[index - 1].results, next;
      if (index + 1 < activations.size())
        next = activations[index + 1].values;
      Operation *barrier = bring(builder, next, before, end);
      if (!barrier)
        continue;
      auto isLater = [&, first = piece.first](OpOperand &use) {
        auto place = placeOf.find(body.findAncestorOpInBlock(*use.getOwner()));
        return place != placeOf.end() && place->second >= first;
      };
      for (auto [result, waiting] :
           llvm::zip_equal(before, barrier->getResults().drop_front(next.size())))
        Value(result).replaceUsesWithIf(waiting, isLater);
    }
    builder.setInsertionPoint(end);
    for (OpOperand *operand : returned) {
      operand->set(copyTo(builder, operand->get(), kHost));
      ++numCopies;
    }
    if (!pieces.empty() || !activations.empty())
      sortTopologically(&body);
  }

  /// Copies arguments to the device once these values are there, behind a barrier that is
  /// returned; `end` hands on what is there already.
  Operation *bring(OpBuilder &builder, ArrayRef<Value> arguments, ArrayRef<Value> awaited,
                   Operation *end) {
    SmallVector<Value> sources(arguments);
    Operation *barrier = nullptr;
    if (!awaited.empty()) {
      llvm::append_range(sources, awaited);
      OperationState state(sources.front().getLoc(),
                           stablehlo::OptimizationBarrierOp::getOperationName(), sources,
                           ValueRange(sources).getTypes());
      barrier = builder.create(state);
      sources.assign(barrier->result_begin(), barrier->result_end());
    }
    for (auto [given, source] : llvm::zip(arguments, sources)) {
      Value argument = given;
      Operation *waiting = source.getDefiningOp(); // A barrier, or nothing.
      Value copy = copyTo(builder, source, kDevice);
      argument.replaceUsesWithIf(copy, [&](OpOperand &use) {
        return use.getOwner() != copy.getDefiningOp() && use.getOwner() != end &&
               use.getOwner() != waiting;
      });
      ++numCopies;
    }
    return barrier;
  }
};

} // namespace
