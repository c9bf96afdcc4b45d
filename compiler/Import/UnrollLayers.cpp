//===- UnrollLayers.cpp - scans over layers, layer by layer ---------------===//

#include "compiler/Import/DataFlow.h"
#include "compiler/Import/LayerLoops.h"
#include "compiler/Import/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Transforms/RegionUtils.h"
#include <map>

namespace alpa {
#define GEN_PASS_DEF_ALPAUNROLLLAYERS
#include "compiler/Import/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

/// The equations that take the place of a loop's one: `count` in each iteration.
struct Numbers {
  const LayerLoop *loop = nullptr;
  BodyEquations body;
  int64_t eqn = 0, first = 0;

  int64_t extra() const { return loop->forward.trips * body.count - 1; }
  int64_t last() const { return first + extra(); }
};

class AlpaUnrollLayersPass : public alpa::impl::AlpaUnrollLayersBase<AlpaUnrollLayersPass> {
public:
  using AlpaUnrollLayersBase::AlpaUnrollLayersBase;

  void runOnOperation() override {
    auto main = getOperation().lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration()) {
      emitError(getOperation().getLoc(), "the module has no function @main");
      return signalPassFailure();
    }
    for (Operation &op : main.getBody().front().without_terminator())
      if (!op.hasAttr(attr::phase)) {
        op.emitOpError() << "has no alpa.phase; run alpa-import first";
        return signalPassFailure();
      }
    levels.clear();
    bool any = false;
    do { // Loops within the layers come out as loops of @main.
      foundLoops = false;
      any |= unrollAll(main);
    } while (foundLoops);
    if (any) {
      repeatForReaders(main, {attr::phase, attr::eqn}, isConstantLike);
      eraseUnused(main);
    }
  }

private:
  static int64_t eqnOf(Operation *op) { return op->getAttrOfType<IntegerAttr>(attr::eqn).getInt(); }

  bool unrollAll(func::FuncOp main) {
    SmallVector<LayerLoop> loops = findLayerLoops(main, maxOps);
    if (loops.empty())
      return false;
    std::map<int64_t, Numbers> byEqn;
    for (const LayerLoop &loop : loops) {
      Numbers numbers;
      numbers.loop = &loop;
      numbers.eqn = eqnOf(loop.forward.loop);
      numbers.body = numberBody(loop, levels.lookup(loop.forward.loop) + 1);
      byEqn[numbers.eqn] = std::move(numbers);
    }
    int64_t shift = 0;
    for (auto &[eqn, numbers] : byEqn) {
      numbers.first = eqn + shift;
      shift += numbers.extra();
    }
    renumber(main, byEqn);
    for (auto &[eqn, numbers] : byEqn) {
      unroll(numbers, numbers.loop->forward, false);
      if (numbers.loop->backward)
        unroll(numbers, *numbers.loop->backward, true);
      ++numLoops;
      numIterations += numbers.loop->forward.trips;
    }
    return true;
  }

  /// Equations after a loop's move up; what else is of the loop's own belongs to its
  /// beginning or its end.
  void renumber(func::FuncOp main, const std::map<int64_t, Numbers> &byEqn) {
    Builder builder(&getContext());
    for (Operation &op : main.getBody().front().without_terminator()) {
      auto attribute = op.getAttrOfType<IntegerAttr>(attr::eqn);
      if (!attribute)
        continue;
      int64_t eqn = attribute.getInt(), number = eqn;
      auto next = byEqn.lower_bound(eqn);
      if (next != byEqn.begin())
        number += std::prev(next)->second.last() - std::prev(next)->first;
      if (next != byEqn.end() && next->first == eqn) {
        const Numbers &numbers = next->second;
        bool isBackward = op.getAttrOfType<StringAttr>(attr::phase).getValue() == "backward";
        Operation *loop = numbers.loop->forward.loop;
        if (isBackward)
          loop = numbers.loop->backward ? numbers.loop->backward->loop : nullptr;
        bool isBefore = !loop || op.isBeforeInBlock(loop);
        number = isBefore == isBackward ? numbers.last() : numbers.first;
      }
      op.setAttr(attr::eqn, builder.getI64IntegerAttr(number));
    }
  }

  void unroll(const Numbers &numbers, const LoopShape &shape, bool isBackward) {
    Builder builder(&getContext());
    Attribute phase = shape.loop->getAttr(attr::phase);
    auto attributes = [&](int64_t eqn) {
      return builder.getDictionaryAttr(
          {builder.getNamedAttr(attr::eqn, builder.getI64IntegerAttr(eqn)),
           builder.getNamedAttr(attr::phase, phase)});
    };
    const auto &numberOf = isBackward ? numbers.body.backward : numbers.body.forward;
    int64_t count = numbers.body.count;
    unsigned level = levels.lookup(shape.loop) + 1;
    unrollLoop(
        shape, attributes(isBackward ? numbers.first : numbers.last()),
        [&](Operation *op, int64_t trip) {
          int64_t iteration = isBackward ? shape.trips - 1 - trip : trip;
          auto it = numberOf.find(op);
          int64_t number = it != numberOf.end() ? it->second : isBackward ? 0 : count - 1;
          return attributes(numbers.first + iteration * count + number);
        },
        [&](Operation *, Operation *copy) {
          if (!isa<stablehlo::WhileOp>(copy))
            return;
          levels[copy] = level;
          foundLoops = true;
        });
  }

  /// Backwards, so that what only they read goes with them.
  void eraseUnused(func::FuncOp main) {
    SmallVector<Operation *> ops;
    for (Operation &op : main.getBody().front().without_terminator())
      ops.push_back(&op);
    for (Operation *op : llvm::reverse(ops))
      if (isOpTriviallyDead(op))
        op->erase();
  }

  llvm::DenseMap<Operation *, unsigned> levels; // Loops around it that were unrolled.
  bool foundLoops = false;
};

} // namespace
