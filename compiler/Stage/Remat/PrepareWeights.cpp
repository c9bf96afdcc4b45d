//===- PrepareWeights.cpp - what of weights is the same for all micro-batches ---===//

#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Slice/SliceUtils.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/EquivalenceClasses.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

namespace alpa::stage {
#define GEN_PASS_DEF_ALPAPREPAREWEIGHTS
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;
namespace hlo = mlir::stablehlo;

static int64_t elementsOf(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.hasStaticShape() ? type.getNumElements() : 0;
}

/// Takes part in the loops of its readers, or names other elements of what is there.
static bool isMove(Operation *op) {
  return isa<hlo::BroadcastInDimOp, hlo::ReshapeOp, hlo::TransposeOp, hlo::SliceOp, hlo::ReverseOp>(
      op);
}

static unsigned bitsOf(Value value) {
  Type type = getElementTypeOrSelf(value.getType());
  return type.isIntOrFloat() ? type.getIntOrFloatBitWidth() : 0;
}

/// Gives each element of a tensor the same number, or that of its row.
static bool isScale(Value value) {
  auto broadcast = value.getDefiningOp<hlo::BroadcastInDimOp>();
  return broadcast ? elementsOf(broadcast.getOperand()) < elementsOf(value)
                   : value.getDefiningOp() && importer::isSplatLike(value.getDefiningOp());
}

/// The value of fewer bits that a value is made of by moves, scales and a conversion, such as the
/// 8-bit numbers of a weight: who reads it makes it as it loads them, in products of 8 bits too,
/// which XLA makes of just that. Null if there is none. `scales` are those of the way.
static Value narrowSource(Value value, SmallVectorImpl<Value> &scales) {
  while (Operation *op = value.getDefiningOp()) {
    if (isMove(op)) {
      value = op->getOperand(0);
    } else if (auto convert = dyn_cast<hlo::ConvertOp>(op)) {
      value = convert.getOperand();
      return bitsOf(value) && bitsOf(value) < bitsOf(convert) ? value : Value();
    } else if (isa<hlo::MulOp, hlo::DivOp, hlo::AddOp, hlo::SubtractOp>(op) &&
               isScale(op->getOperand(0)) != isScale(op->getOperand(1))) {
      bool isFirst = isScale(op->getOperand(0));
      scales.push_back(op->getOperand(isFirst ? 0 : 1));
      value = op->getOperand(isFirst ? 1 : 0);
    } else {
      break;
    }
  }
  return {};
}

namespace {

class WeightPreparer {
public:
  WeightPreparer(func::FuncOp main, int64_t leastElements)
      : main(main), leastElements(leastElements), repeated(main) {}

  /// Gives how many ops run once now.
  unsigned run(bool gather);

private:
  void find(Operation &op);
  bool isReturned(Value value) const;
  /// State, a constant, or what is made of them.
  bool isOnce(Value value) const { return ofState.contains(value) || repeated.isAvailable(value); }
  void choose();
  void mergeEqual();
  llvm::SetVector<Operation *> sourcesOf(Operation *root) const;
  bool isOfOneLayer(Operation *root, ArrayRef<Operation *> sources) const;
  void keepMoves();
  void gatherArguments(SmallVectorImpl<Operation *> &made);
  void annotate(ArrayRef<Operation *> prepared);
  bool isOutside(Operation *user) const {
    return !chosen.contains(user) && !user->hasTrait<OpTrait::IsTerminator>();
  }

  func::FuncOp main;
  int64_t leastElements;
  RepeatedOps repeated;
  /// Results that state and constants make, and the elements of the largest state argument among
  /// these.
  llvm::MapVector<Value, int64_t> ofState;
  llvm::SetVector<Operation *> chosen;
};

struct PrepareWeights : stage::impl::AlpaPrepareWeightsBase<PrepareWeights> {
  using Base::Base;

  void runOnOperation() override {
    func::FuncOp main = findLayeredMain(getOperation());
    if (!main)
      return signalPassFailure();
    numPrepared += WeightPreparer(main, leastElements).run(gather);
  }
};

} // namespace

static bool runsPerMicroBatch(Operation *op) {
  std::optional<Phase> phase = phaseOf(op);
  return phase == Phase::Forward || phase == Phase::Backward;
}

bool WeightPreparer::isReturned(Value value) const {
  return llvm::any_of(value.getUsers(),
                      [](Operation *user) { return user->hasTrait<OpTrait::IsTerminator>(); });
}

/// Each layer has constants of its own.
static bool areEqual(Operation *a, Operation *b) {
  auto isSame = [](Value left, Value right) {
    Operation *x = left.getDefiningOp(), *y = right.getDefiningOp();
    return success(left == right || (x && y && importer::isConstantLike(x) &&
                                     importer::isConstantLike(y) && areEqual(x, y)));
  };
  return OperationEquivalence::isEquivalentTo(a, b, isSame, nullptr,
                                              OperationEquivalence::IgnoreLocations |
                                                  OperationEquivalence::IgnoreDiscardableAttrs);
}

void WeightPreparer::find(Operation &op) {
  if (!runsPerMicroBatch(&op) || repeated.contains(&op))
    return;
  // Barriers keep JAX from merging what it computes again; weights are there anyway.
  if (isa<hlo::OptimizationBarrierOp>(op) && !op.hasAttr(attr::pin)) {
    for (auto [operand, result] : llvm::zip_equal(op.getOperands(), op.getResults()))
      if (isOnce(operand))
        result.replaceAllUsesWith(operand);
    return;
  }
  bool mayRunOnce = isRepeatable(&op) || (isa<hlo::ReduceOp>(op) && op.getNumResults() == 1);
  if (!mayRunOnce || op.hasAttr(attr::pin) || isReturned(op.getResult(0)))
    return;
  int64_t elements = 0;
  for (Value used : importer::getUsedValues(&op)) {
    if (!isOnce(used))
      return;
    if (auto it = ofState.find(used); it != ofState.end())
      elements = std::max(elements, it->second);
    else if (isa<BlockArgument>(used))
      elements = std::max(elements, elementsOf(used));
  }
  // No bits of a random key, and nothing else that is larger than what it is made of.
  if (elements == 0 || elementsOf(op.getResult(0)) > elements)
    return;
  ofState[op.getResult(0)] = elements;
}

/// Large results that ops of micro-batches read, but for moves, with all that they are made of.
/// Elementwise readers, and those of a part, such as an embedding, make them on the fly, and all
/// do so of values of fewer bits.
void WeightPreparer::choose() {
  for (auto [value, elements] : ofState) {
    bool isRead = llvm::any_of(importer::getUsers(value), [&](Operation *user) {
      return runsPerMicroBatch(user) && !isRepeatable(user) && !analysis::readsPart(user) &&
             (user->getNumResults() != 1 || !ofState.contains(user->getResult(0)));
    });
    if (!isRead)
      continue;
    SmallVector<Value> roots = {value};
    SmallVector<Value> scales;
    if (Value narrow = narrowSource(value, scales)) {
      roots = {narrow};
      roots.append(scales);
    }
    for (Value each : roots) {
      Operation *root = each.getDefiningOp();
      while (root && isMove(root))
        root = root->getOperand(0).getDefiningOp();
      bool isLarge =
          root && (each != roots.front() || elementsOf(root->getResult(0)) >= leastElements);
      if (!isLarge || !ofState.contains(root->getResult(0)))
        break;
      llvm::SetVector<Operation *> all = sourcesOf(root);
      if (isOfOneLayer(root, all.getArrayRef()))
        chosen.insert(all.begin(), all.end());
    }
  }
}

/// Layers that share a weight, and gradients that make it again, prepare it once.
void WeightPreparer::mergeEqual() {
  llvm::DenseMap<llvm::hash_code, SmallVector<Operation *, 1>> known;
  auto ignore = [](Value) { return llvm::hash_code(0); };
  for (Operation &op : llvm::make_early_inc_range(main.front())) {
    if (!chosen.contains(&op))
      continue;
    SmallVector<Operation *, 1> &alike = known[OperationEquivalence::computeHash(
        &op, ignore, OperationEquivalence::ignoreHashValue,
        OperationEquivalence::IgnoreLocations | OperationEquivalence::IgnoreDiscardableAttrs)];
    auto other = llvm::find_if(alike, [&](Operation *each) { return areEqual(each, &op); });
    if (other == alike.end()) {
      alike.push_back(&op);
      continue;
    }
    op.replaceAllUsesWith(*other);
    chosen.remove(&op);
    op.erase();
  }
}

/// The op and those of state that it is made by.
llvm::SetVector<Operation *> WeightPreparer::sourcesOf(Operation *root) const {
  llvm::SetVector<Operation *> all;
  all.insert(root);
  for (size_t next = 0; next < all.size(); ++next)
    for (Value used : importer::getUsedValues(all[next]))
      if (Operation *source = used.getDefiningOp(); source && ofState.contains(used))
        all.insert(source);
  return all;
}

/// Stages prepare weights by themselves: what is made of weights of several layers, such as a
/// norm of all, would come from another one.
bool WeightPreparer::isOfOneLayer(Operation *root, ArrayRef<Operation *> sources) const {
  int64_t layer = *layerOf(root);
  return llvm::all_of(sources, [&](Operation *op) {
    return layerOf(op) == layer &&
           (op == root || llvm::all_of(importer::getUsers(op->getResult(0)),
                                       [&](Operation *user) { return layerOf(user) == layer; }));
  });
}

/// Rows of a stack and the like are no values of their own: micro-batches take them themselves.
void WeightPreparer::keepMoves() {
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(main.front()))) {
    if (!chosen.contains(&op) || !isMove(&op) ||
        llvm::none_of(importer::getUsers(op.getResult(0)),
                      [&](Operation *user) { return isOutside(user); }))
      continue;
    OpBuilder builder(main.getContext());
    builder.setInsertionPointAfter(&op);
    Operation *copy = builder.clone(op);
    op.getResult(0).replaceUsesWithIf(copy->getResult(0), [&](OpOperand &use) {
      return isOutside(main.front().findAncestorOpInBlock(*use.getOwner()));
    });
  }
}

void WeightPreparer::gatherArguments(SmallVectorImpl<Operation *> &made) {
  OpBuilder builder = OpBuilder::atBlockBegin(&main.front());
  for (BlockArgument arg : main.getArguments()) {
    if (!isStateArgument(arg) || elementsOf(arg) < leastElements)
      continue;
    SmallVector<Operation *> readers;
    for (Operation *user : importer::getUsers(arg))
      if (isOutside(user) && runsPerMicroBatch(user) && !isa<hlo::OptimizationBarrierOp>(user))
        readers.push_back(user);
    if (readers.empty())
      continue;
    auto barrier =
        hlo::OptimizationBarrierOp::create(builder, arg.getLoc(), arg.getType(), ValueRange{arg});
    barrier->setAttr(attr::eqn, readers.front()->getAttr(attr::eqn));
    barrier->setAttr(attr::layer, readers.front()->getAttr(attr::layer));
    arg.replaceUsesWithIf(barrier->getResult(0), [&](OpOperand &use) {
      return llvm::is_contained(readers, main.front().findAncestorOpInBlock(*use.getOwner()));
    });
    made.push_back(barrier);
  }
}

/// What is made of each other is of one layer, the first that reads any of it.
void WeightPreparer::annotate(ArrayRef<Operation *> prepared) {
  llvm::EquivalenceClasses<Operation *> related;
  for (Operation *op : prepared) {
    related.insert(op);
    for (Operation *user : importer::getUsers(op->getResult(0)))
      if (chosen.contains(user))
        related.unionSets(op, user);
  }
  llvm::DenseMap<Operation *, int64_t> layers; // By leader.
  for (Operation *op : prepared)
    for (Operation *user : importer::getUsers(op->getResult(0)))
      if (user->hasAttr(attr::layer) && phaseOf(user) != Phase::Update && !chosen.contains(user)) {
        auto [it, isNew] = layers.try_emplace(related.getLeaderValue(op), *layerOf(user));
        it->second = std::min(it->second, *layerOf(user));
      }
  Builder builder(main.getContext());
  for (Operation *op : prepared) {
    op->setAttr(attr::phase, builder.getStringAttr(stringifyPhase(Phase::Prepare)));
    if (auto it = layers.find(related.getLeaderValue(op)); it != layers.end())
      op->setAttr(attr::layer, builder.getI64IntegerAttr(it->second));
  }
}

unsigned WeightPreparer::run(bool gather) {
  for (Operation &op : main.front().without_terminator())
    find(op);
  choose();
  mergeEqual();
  keepMoves();
  SmallVector<Operation *> prepared;
  if (gather)
    gatherArguments(prepared);
  for (Operation &op : main.front())
    if (chosen.contains(&op))
      prepared.push_back(&op);
  annotate(prepared);
  for (Operation *op : prepared)
    if (gather && llvm::any_of(importer::getUsers(op->getResult(0)), runsPerMicroBatch))
      op->setAttr(attr::movable, UnitAttr::get(op->getContext()));
  return prepared.size();
}
