//===- Rematerialize.cpp - forward values computed again ------------------===//

#include "compiler/Stage/Remat/Rematerialize.h"

#include "compiler/Analysis/Calls/AttentionCall.h"
#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Stage/Layers/StepLayers.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Slice/MinimumCut.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/SetVector.h"

#include <set>

namespace alpa::stage {
#define GEN_PASS_DEF_ALPAREMATERIALIZE
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;
using importer::getUsedValues;

/// Whether the op gives the same values when it runs a second time.
static bool canRunAgain(Operation *op) {
  return !op->walk([](Operation *inner) {
              StringRef name = inner->getName().getStringRef();
              if (name == "stablehlo.rng")
                return WalkResult::interrupt();
              auto effect = inner->getAttrOfType<BoolAttr>("has_side_effect");
              return effect && effect.getValue() ? WalkResult::interrupt() : WalkResult::advance();
            }).wasInterrupted();
}

/// Weights, and what is made of them alone.
static llvm::DenseSet<Value> valuesOfState(func::FuncOp main) {
  llvm::DenseSet<Value> ofState;
  for (BlockArgument argument : main.getArguments())
    if (isStateArgument(argument))
      ofState.insert(argument);
  for (Operation &op : main.front().without_terminator()) {
    SmallVector<Value> used = getUsedValues(&op);
    if (!used.empty() && llvm::all_of(used, [&](Value value) { return ofState.contains(value); }))
      ofState.insert(op.result_begin(), op.result_end());
  }
  return ofState;
}

KeptOps stage::findKeptProducts(func::FuncOp main) {
  KeptOps kept;
  llvm::DenseSet<Value> ofState = valuesOfState(main);
  for (Operation &op : main.front().without_terminator()) {
    if (!isOfPhase(&op, "forward"))
      continue;
    SmallVector<Value> used = getUsedValues(&op);
    std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(&op);
    if (!rule || !rule->heavy)
      continue;
    double given = 0, made = 0;
    for (Value value : used)
      given += analysis::getTensorBytes(value.getType());
    for (Value value : op.getResults())
      made += analysis::getTensorBytes(value.getType());
    bool hasWeights = llvm::any_of(used, [&](Value value) { return ofState.contains(value); });
    if (hasWeights || made <= given)
      kept.insert(&op);
  }
  return kept;
}

namespace {
/// What it takes on one device to make a value again, and what it takes to keep it.
class OpSeconds {
public:
  explicit OpSeconds(const cost::CostModel &device)
      : device(device), secondsPerByte(device.computeSeconds(0, 1e9, "float32") / 1e9) {}

  double perByte() const { return secondsPerByte; }

  /// Elementwise ops run within the kernels that read them; for a product they are written.
  double again(Operation *op) {
    auto [it, isNew] = known.try_emplace(op, 0);
    return isNew ? it->second = find(op) : it->second;
  }

  /// Of writing what would otherwise be computed where it is read.
  double keeping(Operation *op) const {
    return isKernel(op) || isReadByKernel(op) ? 0 : secondsPerByte * bytesOf(op->getResults());
  }

private:
  template <typename Values> static double bytesOf(const Values &values) {
    double bytes = 0;
    for (Value value : values)
      bytes += analysis::getTensorBytes(value.getType());
    return bytes;
  }
  static bool isKernel(Operation *op) {
    std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
    return !rule || rule->heavy || rule->leads || op->getNumRegions() > 0 ||
           op->getNumResults() != 1;
  }
  static bool isReadByKernel(Operation *op) {
    return llvm::any_of(importer::getUsers(op->getResult(0)), [](Operation *user) {
      return isKernel(user) && !isa<stablehlo::ReduceOp>(user);
    });
  }
  double find(Operation *op) const {
    if (importer::isConstantLike(op))
      return 0;
    double flops = analysis::getFlops(op), made = bytesOf(op->getResults());
    double bytes = bytesOf(getUsedValues(op)) + made;
    if (analysis::AttentionCall::read(op))
      return device.attentionSeconds(flops, bytes, analysis::getComputeType(op));
    if (isKernel(op))
      return device.computeSeconds(flops, bytes, analysis::getComputeType(op));
    double fused = double(fusedBytes(op));
    return secondsPerByte * (isReadByKernel(op) ? fused + made : fused);
  }

  const cost::CostModel &device;
  double secondsPerByte;
  llvm::DenseMap<Operation *, double> known;
};
} // namespace

namespace {

/// One layer. Its backward ops run from the point where gradients of later
/// layers first come in; there its forward values are computed again.
class LayerRematerializer {
public:
  /// `ops` are the layer's, in their order.
  LayerRematerializer(func::FuncOp main, int64_t layer, ArrayRef<Operation *> ops,
                      const KeptOps &kept)
      : main(main), layer(layer) {
    for (Operation *op : ops)
      if (isOfPhase(op, "forward") && canRunAgain(op) && !kept.contains(op) &&
          !op->hasAttr(attr::offloaded))
        forward.insert(op);
      else if (isOfPhase(op, "backward"))
        backward.push_back(op);
    findReaders();
  }

  /// For a price in seconds a byte: which ops of the layer make values that are cheaper to keep
  /// than to make again of what is kept. Adds up the bytes that the layer keeps, and the seconds
  /// that making the others again takes, and keeping these. The layer's first op costs by a part of
  /// `spread` more than its last one.
  void cut(double price, double spread, OpSeconds &seconds, KeptOps &kept, double &keptBytes,
           double &againSeconds) {
    std::map<Operation *, SmallVector<Value>> used; // Does not move what it holds.
    llvm::DenseMap<Operation *, double> spreadOf;
    for (auto [index, op] : llvm::enumerate(llvm::reverse(forward)))
      spreadOf[op] = 1 + spread * double(index) / double(forward.size());
    auto bytesOf = [&](Value value) -> int64_t {
      Operation *source = value.getDefiningOp();
      bool isFree = source ? !isForward(value) &&
                                 (importer::isConstantLike(source) || isOfPhase(source, "prepare"))
                           : isState(cast<BlockArgument>(value));
      return isFree ? 0 : int64_t(analysis::getTensorBytes(value.getType()));
    };
    llvm::SetVector<Value> wanted;
    for (Operation *op : readers)
      for (Value value : getUsedValues(op))
        if (isForward(value))
          wanted.insert(value);
    llvm::DenseSet<Value> held; // Wherever the cut is: gradients read them as they come in.
    for (Operation *op : backward)
      for (Value value : getUsedValues(op)) {
        Operation *source = value.getDefiningOp();
        if (source && isOfPhase(source, "forward") && layerOf(source) != layer &&
            held.insert(value).second)
          keptBytes += double(bytesOf(value));
      }
    auto keepCost = [&](Value value) -> int64_t {
      if (held.contains(value))
        return 0;
      double writing = isForward(value) ? seconds.keeping(value.getDefiningOp()) : 0;
      return bytesOf(value) + int64_t(writing / price);
    };
    ValueCut found =
        cutValues(wanted.getArrayRef(), keepCost, [&](Value value) -> std::optional<Remaking> {
          if (!isForward(value))
            return std::nullopt;
          Operation *op = value.getDefiningOp();
          if (importer::isConstantLike(op))
            return Remaking();
          SmallVector<Value> &operands = used[op];
          if (operands.empty())
            operands = getUsedValues(op);
          return Remaking{int64_t(seconds.again(op) * spreadOf.lookup(op) / price), operands};
        });
    for (Value value : found.kept) {
      keptBytes += held.contains(value) ? 0 : double(bytesOf(value));
      if (!isForward(value))
        continue;
      kept.insert(value.getDefiningOp());
      againSeconds += seconds.keeping(value.getDefiningOp());
    }
    for (Operation *op : found.remade)
      againSeconds += seconds.again(op);
  }

  unsigned run() {
    collectSlice();
    if (slice.empty())
      return 0;
    OpBuilder builder(start);
    guard(builder);
    for (Operation *op : slice) {
      if (takeFromBackward(op))
        continue;
      Operation *clone = builder.clone(*op, mapping);
      clone->setAttr(attr::recomputes, builder.getUnitAttr());
      annotate(clone);
    }
    for (Operation *op : early)
      op->moveBefore(start);
    for (auto [old, now] : mapping.getValueMap())
      old.replaceUsesWithIf(now, [&](OpOperand &use) {
        return readers.contains(main.front().findAncestorOpInBlock(*use.getOwner()));
      });
    // What only the gradients needed is not computed in the forward phase any more.
    for (Operation *op : llvm::reverse(slice))
      if (op->use_empty())
        op->erase();
    return slice.size();
  }

private:
  /// A gradient that another layer made, or what the barrier made of all micro-batches.
  bool comesIn(Value value) const {
    Operation *source = value.getDefiningOp();
    return source && (isOfPhase(source, "barrier") ||
                      (isOfPhase(source, "backward") && layerOf(source) != layer));
  }
  bool reads(Operation *op, llvm::function_ref<bool(Value)> which) const {
    return llvm::any_of(getUsedValues(op), which);
  }
  bool isForward(Value value) const {
    Operation *source = value.getDefiningOp();
    return source && forward.contains(source);
  }

  /// Where the layer's backward computation starts, and the ops that may read
  /// clones: those from there on, and earlier ones (derivatives of values that no
  /// gradient is needed for) that can wait until then.
  void findReaders() {
    llvm::DenseSet<Operation *> onGradients;
    for (Operation *op : backward)
      if (reads(op, [&](Value value) {
            return comesIn(value) || onGradients.contains(value.getDefiningOp());
          }))
        onGradients.insert(op);
    // The last layer has no gradients but its own.
    auto begins = [&](Operation *op) {
      return onGradients.empty() ? reads(op, [&](Value value) { return isForward(value); })
                                 : onGradients.contains(op);
    };
    auto first = llvm::find_if(backward, begins);
    if (first == backward.end())
      return;
    start = *first;
    readers.insert(first, backward.end());
    // What other layers' gradients read stays where it is, so that what becomes of one
    // layer does not depend on which others are computed again.
    llvm::DenseSet<Operation *> canWait;
    auto waits = [&](Operation *user) {
      bool isForeign = isOfPhase(user, "backward") && layerOf(user) != layer;
      return canWait.contains(user) || (!isForeign && !user->isBeforeInBlock(start));
    };
    for (Operation *op : llvm::reverse(llvm::make_range(backward.begin(), first)))
      if (llvm::all_of(op->getResults(), [&](Value result) {
            return llvm::all_of(importer::getUsers(result), waits);
          }))
        canWait.insert(op);
    for (Operation *op : llvm::make_range(backward.begin(), first))
      if (canWait.contains(op) && reads(op, [&](Value value) {
            return isForward(value) || readers.contains(value.getDefiningOp());
          })) {
        readers.insert(op);
        early.push_back(op);
      }
  }

  void collectSlice() {
    llvm::DenseSet<Operation *> needed;
    SmallVector<Operation *> worklist;
    auto need = [&](Operation *op) {
      for (Value value : getUsedValues(op))
        if (isForward(value) && needed.insert(value.getDefiningOp()).second)
          worklist.push_back(value.getDefiningOp());
    };
    llvm::for_each(readers, need);
    while (!worklist.empty())
      need(worklist.pop_back_val());
    for (Operation *op : forward)
      if (needed.contains(op))
        slice.push_back(op);
  }

  /// Readers that compute with values of the layer, or for its gradients or those of other layers.
  /// The others only hand gradients on, such as one that makes a stack of those of all layers.
  llvm::DenseSet<Operation *> findComputing() const {
    llvm::DenseSet<Operation *> computing;
    for (Operation *op : llvm::reverse(backward)) {
      auto serves = [&](Operation *user) {
        return computing.contains(user) || (isOfPhase(user, "backward") && layerOf(user) != layer);
      };
      bool isServing = llvm::any_of(op->getResults(), [&](Value result) {
        return llvm::any_of(importer::getUsers(result), serves);
      });
      if (isServing || reads(op, [&](Value value) { return isForward(value); }))
        computing.insert(op);
    }
    return computing;
  }

  /// Puts a barrier between what the clones and the gradients start from, and
  /// themselves: nothing is computed again before the gradients are there, and no
  /// later pass finds out that it was computed before.
  void guard(OpBuilder &builder) {
    llvm::SetVector<Value> values;
    for (Operation *op : slice)
      for (Value value : getUsedValues(op)) {
        Operation *source = value.getDefiningOp();
        bool keeps = source ? importer::isConstantLike(source) || isOfPhase(source, "prepare")
                            : isState(cast<BlockArgument>(value));
        if (!isForward(value) && !keeps)
          values.insert(value);
      }
    llvm::DenseSet<Operation *> computing = findComputing();
    for (Operation *op : readers)
      if (computing.contains(op))
        for (Value value : getUsedValues(op))
          if (comesIn(value) && value.getDefiningOp()->isBeforeInBlock(start))
            values.insert(value);
    if (values.empty())
      return;
    OperationState state(start->getLoc(), "stablehlo.optimization_barrier");
    state.addOperands(values.getArrayRef());
    state.addTypes(llvm::to_vector(ValueRange(values.getArrayRef()).getTypes()));
    Operation *barrier = builder.create(state);
    barrier->setAttr(attr::eqn, slice.back()->getAttr(attr::eqn));
    annotate(barrier);
    for (auto [value, guarded] : llvm::zip_equal(values, barrier->getResults()))
      mapping.map(value, guarded);
  }

  /// What is made of weights alone, such as a row of their stack, is the same for the clones and
  /// for gradients that make it themselves: weights that are gathered once serve both.
  bool takeFromBackward(Operation *op) {
    auto isOfState = [&](Value value) {
      auto argument = dyn_cast<BlockArgument>(value);
      return argument ? isState(argument) : taken.contains(value);
    };
    if (op->getNumOperands() == 0 || op->getNumRegions() > 0 || op->hasAttr(attr::pin) ||
        !llvm::all_of(op->getOperands(), isOfState))
      return false;
    auto isSame = [&](Value value, Value other) {
      return success(mapping.lookupOrDefault(value) == other);
    };
    auto it = llvm::find_if(backward, [&](Operation *other) {
      return !other->hasAttr(attr::pin) &&
             OperationEquivalence::isEquivalentTo(op, other, isSame, nullptr,
                                                  OperationEquivalence::IgnoreLocations |
                                                      OperationEquivalence::IgnoreDiscardableAttrs);
    });
    if (it == backward.end())
      return false;
    if (start->isBeforeInBlock(*it))
      (*it)->moveBefore(start);
    mapping.map(op->getResults(), (*it)->getResults());
    taken.insert(op->result_begin(), op->result_end());
    return true;
  }

  void annotate(Operation *op) const {
    Builder builder(op->getContext());
    op->setAttr(attr::phase, builder.getStringAttr("backward"));
    op->setAttr(attr::layer, builder.getI64IntegerAttr(layer));
  }

  bool isState(BlockArgument arg) {
    auto kind = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::kind);
    return !kind || kind.getValue() == "state";
  }

  func::FuncOp main;
  int64_t layer;
  llvm::SetVector<Operation *> forward; // That can be computed again, in program order.
  SmallVector<Operation *> backward;
  Operation *start = nullptr;
  llvm::SetVector<Operation *> readers;
  SmallVector<Operation *> early, slice;
  IRMapping mapping;
  llvm::DenseSet<Value> taken; // Of the forward phase: gradients make them themselves.
};

class AlpaRematerializePass : public stage::impl::AlpaRematerializeBase<AlpaRematerializePass> {
public:
  using AlpaRematerializeBase::AlpaRematerializeBase;

  void runOnOperation() override {
    auto main = getOperation().lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration())
      return fail("the module has no function @main");
    llvm::Expected<unsigned> count = countLayers(main);
    if (!count)
      return fail(llvm::toString(count.takeError()));
    int64_t numLayers = *count;
    if (keep == "products")
      main->setAttr(attr::keepsProducts, UnitAttr::get(&getContext()));
    else if (keep != "nothing")
      return fail("keep must be nothing or products, got '" + keep + "'");
    SmallVector<bool> chosen(numLayers, false);
    for (const std::string &word : layers) {
      int64_t layer = 0;
      if (word == "all") {
        chosen.assign(numLayers, true);
      } else if (word != "none") {
        if (StringRef(word).getAsInteger(10, layer) || layer < 0 || layer >= numLayers)
          return fail("layers has '" + word + "'; expected all, none or numbers from 0 to " +
                      llvm::Twine(numLayers - 1));
        chosen[layer] = true;
      }
    }
    clonedOps += rematerializeLayers(main, chosen);
  }

private:
  void fail(const llvm::Twine &message) {
    emitError(getOperation().getLoc(), "alpa-rematerialize: " + message);
    signalPassFailure();
  }
};

} // namespace

/// Those of the first so many layers, in their order.
static std::vector<SmallVector<Operation *>> opsOfLayers(func::FuncOp main, size_t numLayers) {
  std::vector<SmallVector<Operation *>> ops(numLayers);
  for (Operation &op : main.front().without_terminator())
    if (std::optional<int64_t> layer = layerOf(&op); layer && size_t(*layer) < numLayers)
      ops[*layer].push_back(&op);
  return ops;
}

unsigned stage::rematerializeLayers(func::FuncOp main, ArrayRef<bool> chosen,
                                    const KeptOps *given) {
  unsigned clones = 0;
  KeptOps kept;
  if (given)
    kept = *given;
  else if (main->hasAttr(attr::keepsProducts))
    kept = findKeptProducts(main);
  std::vector<SmallVector<Operation *>> opsOf = opsOfLayers(main, chosen.size());
  std::set<int64_t> changed;
  if (auto known = main->getAttrOfType<DenseI64ArrayAttr>(attr::rematerialized))
    changed.insert(known.asArrayRef().begin(), known.asArrayRef().end());
  for (auto [layer, again] : llvm::enumerate(chosen))
    if (again)
      if (unsigned added = LayerRematerializer(main, layer, opsOf[layer], kept).run()) {
        clones += added;
        changed.insert(layer);
      }
  if (!changed.empty())
    main->setAttr(attr::rematerialized,
                  DenseI64ArrayAttr::get(main.getContext(), llvm::to_vector(changed)));
  return clones;
}

namespace {
struct Cut {
  KeptOps kept;
  double bytes = 0, seconds = 0; // Kept, and to make the rest again.
};

/// Minimum cuts of these layers.
class LayersCutter {
public:
  LayersCutter(func::FuncOp main, ArrayRef<bool> layers, const cost::CostModel &device)
      : seconds(device) {
    for (auto [layer, ops] : llvm::enumerate(opsOfLayers(main, layers.size())))
      if (layers[layer])
        cutters.emplace_back(main, layer, ops, KeptOps());
  }

  Cut at(double price, double spread = 0) {
    Cut cut;
    for (LayerRematerializer &cutter : cutters)
      cutter.cut(price, spread, seconds, cut.kept, cut.bytes, cut.seconds);
    return cut;
  }

  /// At prices from half of what it takes to write a byte up to products of the largest models:
  /// from all that is kept to all that is made again.
  void forEach(llvm::function_ref<WalkResult(Cut)> visit) {
    if (leastPrice() > 0)
      for (unsigned step = 0; step < kDoublings; ++step)
        if (visit(at(leastPrice() * double(1 << step))).wasInterrupted())
          return;
  }

  double leastPrice() const { return 0.5 * seconds.perByte(); }
  static constexpr unsigned kDoublings = 18;

private:
  OpSeconds seconds;
  std::vector<LayerRematerializer> cutters;
};
} // namespace

std::optional<KeptOps> stage::findCut(func::FuncOp main, ArrayRef<bool> layers,
                                      const cost::CostModel &device) {
  constexpr double kDistinct = 0.02, kWorth = 0.01;
  std::vector<Cut> cuts;
  LayersCutter(main, layers, device).forEach([&](Cut cut) {
    if (cuts.empty() || cut.bytes < cuts.back().bytes * (1 - kDistinct))
      cuts.push_back(std::move(cut));
    return WalkResult::advance();
  });
  if (cuts.empty())
    return std::nullopt;
  // The ends are the step as it is written, or nearly so, and all made again.
  const Cut &a = cuts.front(), &b = cuts.back();
  double most = kWorth * (b.seconds - a.seconds);
  std::optional<KeptOps> best;
  for (Cut &cut : llvm::drop_end(llvm::drop_begin(cuts))) {
    double part = (a.bytes - cut.bytes) / (a.bytes - b.bytes);
    double saved = a.seconds + part * (b.seconds - a.seconds) - cut.seconds;
    if (saved > most) {
      most = saved;
      best = std::move(cut.kept);
    }
  }
  return best;
}

std::optional<KeptOps> stage::findCutBetween(func::FuncOp main, ArrayRef<bool> layers,
                                             const cost::CostModel &device, double leastBytes,
                                             double mostBytes) {
  constexpr double kSpread = 0.25, kDistinct = 0.02; // Of the price, and of the bytes.
  constexpr unsigned kSteps = 12;
  LayersCutter cutter(main, layers, device);
  double low = 0, high = LayersCutter::kDoublings, middle = 0.5 * (leastBytes + mostBytes);
  double nearest = std::numeric_limits<double>::infinity();
  std::optional<KeptOps> best;
  for (unsigned step = 0; step < kSteps && cutter.leastPrice() > 0; ++step) {
    double exponent = 0.5 * (low + high);
    Cut cut = cutter.at(cutter.leastPrice() * std::exp2(exponent), kSpread);
    (cut.bytes > middle ? low : high) = exponent;
    bool isBetween =
        cut.bytes > leastBytes * (1 + kDistinct) && cut.bytes < mostBytes * (1 - kDistinct);
    if (isBetween && std::abs(cut.bytes - middle) < nearest) {
      nearest = std::abs(cut.bytes - middle);
      best = std::move(cut.kept);
    }
  }
  return best;
}

KeptOps stage::findHostCut(func::FuncOp main, ArrayRef<bool> layers,
                           const cost::CostModel &device) {
  OpSeconds seconds(device);
  double forward = 0;
  for (Operation &op : main.front().without_terminator())
    if (isOfPhase(&op, "forward"))
      forward += seconds.again(&op);
  KeptOps kept;
  LayersCutter(main, layers, device).forEach([&](Cut cut) {
    kept = std::move(cut.kept);
    return device.hostSeconds(cut.bytes) > forward ? WalkResult::advance()
                                                   : WalkResult::interrupt();
  });
  return kept;
}

unsigned stage::offloadActivations(func::FuncOp main, ArrayRef<bool> layers) {
  constexpr double kLeastBytes = 1 << 18; // Below, a copy's latency is most of what it takes.
  llvm::DenseSet<Value> ofState = valuesOfState(main);
  unsigned offloaded = 0;
  for (Operation &op : main.front().without_terminator()) {
    auto layer = static_cast<size_t>(*layerOf(&op));
    bool isLast = layers.size() > 1 && layer + 1 == layers.size();
    if (!isOfPhase(&op, "forward") || !layers[layer] || isLast || importer::isConstantLike(&op))
      continue;
    for (OpResult result : op.getResults()) {
      if (ofState.contains(result) || analysis::getTensorBytes(result.getType()) < kLeastBytes ||
          llvm::none_of(importer::getUsers(result),
                        [](Operation *user) { return isOfPhase(user, "backward"); }))
        continue;
      setOffloaded(result);
      ++offloaded;
    }
  }
  return offloaded;
}

std::vector<int64_t> stage::keptBytes(func::FuncOp main, unsigned numLayers) {
  std::vector<int64_t> bytes(numLayers, 0);
  std::vector<llvm::DenseSet<Value>> kept(numLayers);
  for (Operation &op : main.front().without_terminator()) {
    if (!isOfPhase(&op, "backward"))
      continue;
    int64_t layer = *layerOf(&op);
    for (Value value : getUsedValues(&op)) {
      Operation *source = value.getDefiningOp();
      if (source && isOfPhase(source, "forward") && !importer::isConstantLike(source) &&
          kept[layer].insert(value).second)
        bytes[layer] += analysis::getTensorBytes(value.getType());
    }
  }
  return bytes;
}
