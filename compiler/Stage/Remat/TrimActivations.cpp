//===- TrimActivations.cpp - what is cheap is computed again ---------------===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Slice/MinimumCut.h"
#include "compiler/Stage/Slice/SliceUtils.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/StringSet.h"

#include <limits>
#include <map>

namespace alpa::stage {
#define GEN_PASS_DEF_ALPATRIMACTIVATIONS
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;

namespace {

/// More than any activation.

using Order = llvm::DenseMap<Operation *, unsigned>;

/// What the backward ops of one layer read of its forward ops.
class LayerActivations {
public:
  LayerActivations(func::FuncOp main, const Order &order, ArrayRef<Operation *> forward)
      : main(main), order(order), forward(forward), members(forward.begin(), forward.end()),
        layer(forward.front()->getAttr(attr::layer)) {}

  void trim();

  int64_t numRepeated = 0, bytesBefore = 0, bytesAfter = 0;

private:
  void findCrossing();
  int64_t keepCost(Value value) const;
  int64_t repeatCost(Value value) const;
  bool isOwn(Operation *op) const { return op && members.contains(op) && isRepeatable(op); }
  void chooseKept();
  void repeat();

  func::FuncOp main;
  const Order &order; // Of the ops of @main, before anything was repeated.
  ArrayRef<Operation *> forward;
  llvm::DenseSet<Operation *> members;
  Attribute layer;
  llvm::MapVector<Value, SmallVector<Operation *>> crossing; // And their backward readers.
  ValueCut cut;
};

/// What the program places in the host's memory, and does not keep there from the forward to the
/// backward phase, stays on the device.
void dropPlacements(func::FuncOp main) {
  main.walk([&](stablehlo::OptimizationBarrierOp barrier) {
    if (!barrier->hasAttr(attr::offloaded))
      return;
    bool isTop = barrier->getBlock() == &main.front();
    auto isBackward = [](Operation *user) { return phaseOf(user) == Phase::Backward; };
    if (isTop && phaseOf(barrier) == Phase::Forward &&
        llvm::any_of(importer::getUsers(barrier->getResult(0)), isBackward))
      return;
    barrier->replaceAllUsesWith(barrier->getOperands());
    barrier->erase();
  });
}

struct TrimActivations : stage::impl::AlpaTrimActivationsBase<TrimActivations> {
  using Base::Base;

  void runOnOperation() override {
    auto main = getOperation().lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration()) {
      getOperation().emitError("the module has no function @main");
      return signalPassFailure();
    }
    dropPlacements(main);
    Order order;
    std::map<int64_t, SmallVector<Operation *>> layers;
    for (Operation &op : main.front()) {
      order[&op] = order.size();
      std::optional<int64_t> layer = layerOf(&op);
      if (layer && phaseOf(&op) == Phase::Forward)
        layers[*layer].push_back(&op);
    }
    for (auto &[number, forward] : layers) {
      LayerActivations layer(main, order, forward);
      layer.trim();
      numRepeated += layer.numRepeated;
      bytesBefore += layer.bytesBefore;
      bytesAfter += layer.bytesAfter;
    }
  }
};

} // namespace

void LayerActivations::findCrossing() {
  for (Operation *op : forward)
    for (Value value : op->getResults())
      for (Operation *user : importer::getUsers(value))
        if (phaseOf(user) == Phase::Backward && user->getAttr(attr::layer) == layer)
          crossing[value].push_back(user);
}

/// Bytes of an activation; weights, and what gradients read anyway, are free.
int64_t LayerActivations::keepCost(Value value) const {
  auto bytes = static_cast<int64_t>(analysis::getTensorBytes(value.getType()));
  auto argument = dyn_cast<BlockArgument>(value);
  if ((argument && isStateArgument(argument)) || isOffloaded(value))
    return 0;
  // Of a value of this layer that gradients of its own read, the cut decides.
  bool isKeptAnyway = llvm::any_of(importer::getUsers(value), [&](Operation *user) {
    return phaseOf(user) == Phase::Backward &&
           (!isOwn(value.getDefiningOp()) || user->getAttr(attr::layer) != layer);
  });
  return isKeptAnyway ? 0 : bytes;
}

int64_t LayerActivations::repeatCost(Value value) const {
  int64_t cost = fusedBytes(value.getDefiningOp());
  // Products and the like read memory: the value is written and read as if it were kept.
  bool isRead = llvm::any_of(crossing.lookup(value), [](Operation *user) {
    return !isRepeatable(user) && user->getName().getStringRef() != "stablehlo.reduce";
  });
  return isRead ? cost + static_cast<int64_t>(analysis::getTensorBytes(value.getType())) : cost;
}

void LayerActivations::chooseKept() {
  auto remaking = [&](Value value) -> std::optional<Remaking> {
    Operation *op = value.getDefiningOp();
    if (!isOwn(op))
      return std::nullopt;
    if (importer::isConstantLike(op))
      return Remaking();
    return Remaking{repeatCost(value), op->getOperands()};
  };
  cut = cutValues(
      llvm::to_vector(llvm::make_first_range(crossing)),
      [&](Value value) { return keepCost(value); }, remaking);
}

/// Each op again, as late as its first reader allows.
void LayerActivations::repeat() {
  llvm::DenseMap<Operation *, Operation *> places;
  auto precede = [&](Operation *op, Operation *reader) {
    Operation *&place = places[op];
    if (!place || order.lookup(reader) < order.lookup(place))
      place = reader;
  };
  for (Operation *op : llvm::reverse(forward)) {
    if (!cut.remade.contains(op))
      continue;
    for (Operation *reader : crossing.lookup(op->getResult(0)))
      precede(op, reader);
    for (Value operand : op->getOperands())
      if (Operation *source = operand.getDefiningOp(); source && cut.remade.contains(source))
        precede(source, places.lookup(op));
  }
  IRMapping mapping;
  OpBuilder builder(main.getContext());
  for (Operation *op : forward) {
    if (!cut.remade.contains(op))
      continue;
    builder.setInsertionPoint(places.lookup(op));
    Operation *clone = builder.clone(*op, mapping);
    clone->setAttr(attr::phase, builder.getStringAttr(stringifyPhase(Phase::Backward)));
    llvm::SmallPtrSet<Operation *, 8> readers(llvm::from_range, crossing.lookup(op->getResult(0)));
    op->getResult(0).replaceUsesWithIf(clone->getResult(0), [&](OpOperand &use) {
      return readers.contains(main.front().findAncestorOpInBlock(*use.getOwner()));
    });
    ++numRepeated;
  }
  // What only the gradients needed is not computed in the forward phase any more.
  for (Operation *op : llvm::reverse(forward))
    if (cut.remade.contains(op) && op->use_empty())
      op->erase();
}

void LayerActivations::trim() {
  findCrossing();
  if (crossing.empty())
    return;
  chooseKept();
  for (auto &[value, readers] : crossing)
    bytesBefore += static_cast<int64_t>(analysis::getTensorBytes(value.getType()));
  for (Value value : cut.kept)
    bytesAfter += keepCost(value);
  repeat();
}
