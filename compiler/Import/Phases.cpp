//===- Phases.cpp - forward, backward, update -----------------------------===//

#include "compiler/Import/Phases.h"

#include "compiler/Import/DataFlow.h"
#include "compiler/Import/NameStack.h"

#include "mlir/IR/Builders.h"

using namespace mlir;
using namespace alpa;

namespace {

enum class Phase { Forward, Backward, Update };

struct OpFacts {
  NamedPhase named = NamedPhase::None;
  std::optional<int64_t> eqn;
  bool needsBackward = false; // Depends on a named backward op.
  bool feedsForward = false;  // A named forward op depends on it.
  bool feedsBackward = false;
  Phase phase = Phase::Forward;
};

class PhaseAnalysis {
public:
  explicit PhaseAnalysis(func::FuncOp main) : main(main) {
    for (Operation &op : main.getBody().front().without_terminator())
      if (!isConstantLike(&op))
        ops.push_back(&op);
  }

  LogicalResult run() {
    readNames();
    bool anyBackward =
        llvm::any_of(ops, [&](Operation *op) { return facts[op].named == NamedPhase::Backward; });
    if (anyBackward) {
      followDataFlow();
      BatchAnalysis batch(main);
      for (Operation *op : ops)
        facts[op].phase = choose(op, batch);
      pullSources();
    }
    // Gradients of gradients, losses behind an update, and the like: all of it is one
    // program, as in a step without gradients.
    if (!isInOrder())
      for (Operation *op : ops)
        facts[op] = OpFacts();
    numberForward();
    numberBackward();
    annotate();
    markBoundaries();
    return success();
  }

private:
  void readNames() {
    for (Operation *op : ops) {
      NameStack stack = readNameStack(op->getLoc());
      facts[op] = OpFacts{stack.phase, stack.eqn};
    }
  }

  void followDataFlow() {
    for (Operation *op : ops)
      for (Operation *source : sources(op)) {
        const OpFacts &from = facts[source];
        facts[op].needsBackward |= from.needsBackward || from.named == NamedPhase::Backward;
      }
    for (Operation *op : llvm::reverse(ops))
      for (Operation *user : readers(op)) {
        const OpFacts &to = facts[user];
        facts[op].feedsForward |= to.feedsForward || to.named == NamedPhase::Forward;
        facts[op].feedsBackward |= to.feedsBackward || to.named == NamedPhase::Backward;
      }
  }

  /// Update work is done once, on sums; so what holds no sample of the batch any more,
  /// such as the exponential of the mean loss, is update. Gradients of
  /// single samples, and what is made of them until they are added up, are backward.
  Phase choose(Operation *op, const BatchAnalysis &batch) {
    const OpFacts &fact = facts[op];
    if (fact.named == NamedPhase::Backward)
      return Phase::Backward;
    if (fact.named == NamedPhase::Forward || fact.feedsForward)
      return Phase::Forward;
    if (fact.feedsBackward)
      return Phase::Backward;
    if (!fact.needsBackward)
      return batch.touchesBatchDim(op) ? Phase::Forward : Phase::Update;
    bool holdsSamples = false;
    for (Value value : getUsedValues(op)) {
      Operation *source = value.getDefiningOp();
      auto it = facts.find(source);
      if (it != facts.end() && it->second.needsBackward && it->second.phase == Phase::Update)
        return Phase::Update;
      holdsSamples |= isPerSample(value, batch);
    }
    return holdsSamples ? Phase::Backward : Phase::Update;
  }

  /// Whether micro-batches have parts of the value, not terms of it. With one sample in each a
  /// gradient looks the same either way, but for a weight's it has the shape of the weight.
  bool isPerSample(Value value, const BatchAnalysis &batch) {
    if (!batch.surelyHasBatchDim(value))
      return false;
    Operation *source = value.getDefiningOp();
    if (!source || batch.hasSeveralSamples(value) || facts[source].named != NamedPhase::Backward)
      return true;
    return llvm::none_of(main.getArguments(), [&](BlockArgument arg) {
      auto kind = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), "alpa.kind");
      return kind && kind.getValue() == "state" &&
             cast<RankedTensorType>(arg.getType()).getShape() ==
                 cast<RankedTensorType>(value.getType()).getShape();
    });
  }

  /// What a forward or backward op without a name reads is at least as early.
  void pullSources() {
    for (Operation *op : llvm::reverse(ops))
      for (Operation *source : sources(op))
        if (facts[source].named == NamedPhase::None && !facts[source].needsBackward)
          facts[source].phase = std::min(facts[source].phase, facts[op].phase);
  }

  /// Whether every op reads what is made before it: forward, backward, update.
  bool isInOrder() {
    return llvm::all_of(ops, [&](Operation *op) {
      return llvm::all_of(
          sources(op), [&](Operation *source) { return facts[op].phase >= facts[source].phase; });
    });
  }

  /// Equations of forward ops that the tracer did not name: a value for later
  /// use belongs to its first reader, anything else to the last op it reads.
  /// Without any named equation every op is one, in program order.
  void numberForward() {
    SmallVector<Operation *> forward = ofPhase(Phase::Forward);
    if (llvm::none_of(forward, [&](Operation *op) { return facts[op].eqn.has_value(); })) {
      for (auto [index, op] : llvm::enumerate(forward))
        facts[op].eqn = index;
      return;
    }
    for (Operation *op : llvm::reverse(forward))
      if (!facts[op].eqn)
        for (Operation *user : readers(op))
          if (facts[user].phase == Phase::Forward && facts[user].eqn)
            facts[op].eqn = std::min(facts[op].eqn.value_or(*facts[user].eqn), *facts[user].eqn);
    for (Operation *op : forward) {
      if (facts[op].eqn)
        continue;
      int64_t eqn = 0;
      for (Operation *source : sources(op))
        eqn = std::max(eqn, facts[source].eqn.value_or(0));
      facts[op].eqn = eqn;
    }
  }

  /// Backward ops without a name go back in step with what they read: the
  /// gradients of later equations, or forward values that a forward op read too.
  void numberBackward() {
    for (Operation *op : ofPhase(Phase::Backward)) {
      if (facts[op].eqn)
        continue;
      std::optional<int64_t> eqn;
      auto limit = [&](int64_t value) { eqn = std::min(eqn.value_or(value), value); };
      for (Value value : getUsedValues(op)) {
        Operation *source = value.getDefiningOp();
        if (source && facts.contains(source) && facts[source].phase == Phase::Backward) {
          limit(facts[source].eqn.value_or(0));
          continue;
        }
        std::optional<int64_t> last;
        if (source && facts.contains(source))
          last = facts[source].eqn;
        for (Operation *user : getUsers(value))
          if (facts.contains(user) && facts[user].phase == Phase::Forward && facts[user].eqn)
            last = std::max(last.value_or(0), *facts[user].eqn);
        if (last)
          limit(*last);
      }
      facts[op].eqn = eqn.value_or(lastForwardEqn());
    }
  }

  void annotate() {
    static constexpr llvm::StringLiteral names[] = {"forward", "backward", "update"};
    Builder builder(main.getContext());
    for (Operation *op : ops) {
      const OpFacts &fact = facts[op];
      op->setAttr("alpa.phase", builder.getStringAttr(names[unsigned(fact.phase)]));
      if (fact.phase != Phase::Update)
        op->setAttr("alpa.eqn", builder.getI64IntegerAttr(*fact.eqn));
    }
  }

  /// A boundary counts in the forward phase, at the top level. Its gradient's and
  /// any inside a loop would only be in the way.
  void markBoundaries() {
    SmallVector<Operation *> idle;
    main.walk([&](Operation *op) {
      if (!isLayerBoundary(op))
        return;
      auto it = facts.find(op);
      if (it != facts.end() && it->second.phase == Phase::Forward)
        op->setAttr(kBoundaryAttr, UnitAttr::get(main.getContext()));
      else
        idle.push_back(op);
    });
    for (Operation *op : idle) {
      op->replaceAllUsesWith(op->getOperands());
      op->erase();
    }
  }

  int64_t lastForwardEqn() {
    int64_t last = 0;
    for (Operation *op : ops)
      if (facts[op].phase == Phase::Forward)
        last = std::max(last, facts[op].eqn.value_or(0));
    return last;
  }

  SmallVector<Operation *> ofPhase(Phase phase) {
    SmallVector<Operation *> result;
    llvm::copy_if(ops, std::back_inserter(result),
                  [&](Operation *op) { return facts[op].phase == phase; });
    return result;
  }

  SmallVector<Operation *> sources(Operation *op) {
    SmallVector<Operation *> result;
    for (Value value : getUsedValues(op))
      if (Operation *source = value.getDefiningOp(); source && facts.contains(source))
        result.push_back(source);
    return result;
  }

  SmallVector<Operation *> readers(Operation *op) {
    SmallVector<Operation *> result;
    for (Value value : op->getResults())
      for (Operation *user : getUsers(value))
        if (facts.contains(user))
          result.push_back(user);
    return result;
  }

  func::FuncOp main;
  SmallVector<Operation *> ops; // Without the repeatable ones, in program order.
  llvm::DenseMap<Operation *, OpFacts> facts;
};

} // namespace

LogicalResult alpa::assignPhases(func::FuncOp main) {
  if (failed(PhaseAnalysis(main).run()))
    return failure();
  repeatForReaders(main, {"alpa.phase", "alpa.eqn"}, isConstantLike);
  return success();
}
