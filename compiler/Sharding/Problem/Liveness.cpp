//===- Liveness.cpp - when a stage's values take up memory ----------------===//

#include "compiler/Sharding/Problem/Liveness.h"

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/IR/OpDefinition.h"
#include "mlir/Interfaces/FunctionInterfaces.h"

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

namespace {

/// Micro-batches of which a stage may have sent values that the next one has not
/// taken yet: as many as the sender has in flight more than the next stage, which is
/// one in 1f1b and two in 1f1b-overlap (ScheduleRegistry.cpp).
constexpr int64_t kSendsUnderway = 2;

class LivenessBuilder {
public:
  LivenessBuilder(const ProblemBuilder &builder, const IntraOpOptions &options)
      : builder(builder), ops(builder.getOps()), values(builder.getValues()), options(options) {}

  Liveness run() {
    for (unsigned phase = 0; phase < kNumPhases; ++phase) {
      if (static_cast<OpPhase>(phase) == OpPhase::Update)
        orderUpdate();
      else
        for (unsigned op = 0; op < ops.size(); ++op)
          if (ops[op].phase == static_cast<OpPhase>(phase))
            live.order.push_back(op);
      live.phaseEnd[phase] = live.order.size();
    }
    live.microBatchesInFlight = options.microBatchesInFlight;
    findUses();
    for (const CarriedValue &carried : builder.getCarried())
      replaced[carried.value] = carried.argument;
    for (unsigned index = 0; index < values.size(); ++index) {
      if (values[index].kind == ValueKind::Free)
        continue;
      if (values[index].sumOf >= 0)
        addSum(index);
      else if (values[index].isInput)
        addInput(index);
      else
        addResult(index);
    }
    return std::move(live);
  }

private:
  /// What reads a value.
  struct Uses {
    int64_t first[kNumPhases] = {-1, -1, -1, -1}, last[kNumPhases] = {-1, -1, -1, -1};
    bool outside = false; // By another stage, or as a result of the step.
    bool isIn(OpPhase phase) const { return last[unsigned(phase)] >= 0; }
  };

  /// XLA orders a function's ops so that little is alive at a time. An optimizer
  /// updates all weights step by step, and they have little to do with each other:
  /// each result is made in turn, with all that it takes.
  void orderUpdate() {
    llvm::DenseMap<Operation *, unsigned> left; // Ops of the update still to be placed.
    llvm::DenseSet<Operation *> read;
    for (unsigned op = 0; op < ops.size(); ++op)
      if (ops[op].phase == OpPhase::Update) {
        left[ops[op].op] = op;
        for (unsigned operand : ops[op].operands)
          if (Operation *source = values[operand].value.getDefiningOp())
            read.insert(source);
      }
    for (unsigned last = 0; last < ops.size(); ++last) {
      if (ops[last].phase != OpPhase::Update || read.contains(ops[last].op))
        continue;
      llvm::SmallVector<std::pair<unsigned, unsigned>> open{{last, 0}}; // Op and next operand.
      while (!open.empty()) {
        auto &[op, operand] = open.back();
        if (operand == ops[op].operands.size()) {
          if (left.erase(ops[op].op))
            live.order.push_back(op);
          open.pop_back();
          continue;
        }
        Operation *source = values[ops[op].operands[operand++]].value.getDefiningOp();
        if (auto it = left.find(source); it != left.end())
          open.push_back({it->second, 0});
      }
    }
  }

  void findUses() {
    uses.resize(values.size());
    birth.assign(values.size(), -1);
    aliased.assign(values.size(), -1);
    for (auto [time, op] : llvm::enumerate(live.order)) {
      unsigned phase = static_cast<unsigned>(ops[op].phase);
      auto use = [&, time = time](unsigned index) {
        int64_t &first = uses[index].first[phase];
        first = first < 0 ? time : first;
        uses[index].last[phase] = time;
        // Within a function, whoever reads a name reads what it is a name for.
        while (aliased[index] >= 0 &&
               opPhaseOf(values[index].value.getDefiningOp()) == static_cast<OpPhase>(phase)) {
          index = aliased[index];
          uses[index].last[phase] = time;
        }
      };
      for (unsigned operand : ops[op].operands) {
        use(operand);
        llvm::for_each(values[operand].reads, use); // To compute it on the fly.
      }
      for (auto [number, result] : llvm::enumerate(ops[op].results)) {
        birth[result] = time;
        aliased[result] = builder.aliasOf(ops[op], number);
      }
    }
    for (unsigned index = 0; index < values.size(); ++index) {
      if (values[index].sumOf >= 0) {
        updated.insert(values[index].sumOf);
        continue;
      }
      Value value = values[index].value;
      Block *block = value.getParentBlock();
      for (Operation *user : value.getUsers()) {
        Operation *top = block->findAncestorOpInBlock(*user);
        if (!top || !builder.isInStage(top)) {
          bool ends = top && top->hasTrait<OpTrait::IsTerminator>();
          bool isRead = !values[index].isInput && !ends && top;
          if (isRead && opPhaseOf(top) == OpPhase::Update)
            updated.insert(index);
          bool isMet = isRead && opPhaseOf(top) == OpPhase::Barrier;
          if (isMet)
            met.insert(index);
          uses[index].outside = true;
          if (ends)
            kept[index] = std::max(kept.lookup(index), copiesKept(user, value));
          else if (!isMet)
            sent.insert(index);
        } else if (user != top) { // Captured by a region.
          int64_t time = timeOf(top);
          unsigned phase = static_cast<unsigned>(opPhaseOf(top));
          int64_t &first = uses[index].first[phase];
          first = first < 0 ? time : std::min(first, time);
          uses[index].last[phase] = std::max(uses[index].last[phase], time);
        }
      }
    }
  }

  /// Buffers in which a result of the step waits for its end.
  int64_t copiesKept(Operation *terminator, Value value) const {
    auto function = llvm::dyn_cast<FunctionOpInterface>(terminator->getParentOp());
    for (OpOperand &operand : terminator->getOpOperands()) {
      if (!function || operand.get() != value)
        continue;
      auto reduction =
          function.getResultAttrOfType<StringAttr>(operand.getOperandNumber(), attr::reduction);
      if (reduction && reduction.getValue() == "concat")
        return options.numMicroBatches;
    }
    return 1;
  }

  int64_t timeOf(Operation *op) {
    if (times.empty())
      for (auto [time, index] : llvm::enumerate(live.order))
        times[ops[index].op] = time;
    return times.lookup(op);
  }

  void add(unsigned value, Lifetime lifetime, int64_t copies, int64_t begin, int64_t end) {
    add({value, lifetime, copies, {begin, end}});
  }

  void add(const LiveItem &item) {
    if (item.copies > 0 && item.life.begin < item.life.end && values[item.value].bytes > 0)
      live.items.push_back(item);
  }

  int64_t beginOf(OpPhase phase) const {
    return phase == OpPhase::Forward ? 0 : live.phaseEnd[unsigned(phase) - 1];
  }
  int64_t endOf(OpPhase phase) const { return live.phaseEnd[unsigned(phase)]; }
  int64_t backwardEnd() const { return endOf(OpPhase::Backward); }

  void addInput(unsigned index) {
    const Uses &use = uses[index];
    if (isStateArgument(values[index].value))
      return add(index, Lifetime::State, 1, 0, live.end());
    bool isForward = use.isIn(OpPhase::Forward), isBackward = use.isIn(OpPhase::Backward);
    Operation *maker = values[index].value.getDefiningOp();
    bool isOfBarrier = maker && opPhaseOf(maker) == OpPhase::Barrier;
    // All micro-batches of a batch argument are there from the start; a value of
    // another stage comes when it is needed.
    if (llvm::isa<BlockArgument>(values[index].value) || (isForward && isBackward))
      add(index, Lifetime::Activation, options.microBatchesInFlight, 0, backwardEnd());
    else if (isForward || isBackward) {
      OpPhase phase = isForward ? OpPhase::Forward : OpPhase::Backward;
      add(index, Lifetime::Temporary, 1, beginOf(phase), endOf(phase));
    }
    for (OpPhase phase : {OpPhase::Barrier, OpPhase::Update})
      if (use.isIn(phase) && !(isOfBarrier && phase == OpPhase::Barrier))
        add(index, Lifetime::Temporary, 1, beginOf(phase), endOf(phase));
  }

  void addResult(unsigned index) {
    const Uses &use = uses[index];
    OpPhase phase = opPhaseOf(values[index].value.getDefiningOp());
    if (phase == OpPhase::Barrier)
      return addMet(index);
    bool isOfUpdate = phase == OpPhase::Update;
    int64_t begin = beginOf(phase), end = endOf(phase);
    bool isUpdated = !isOfUpdate && (use.isIn(OpPhase::Update) || updated.contains(index));
    bool isSummed = isUpdated && options.numMicroBatches > 1;
    bool isMet = use.isIn(OpPhase::Barrier) || met.contains(index);
    auto next = replaced.find(index);
    if (isMet && !isSummed)
      add(index, Lifetime::Temporary, 1, 0, endOf(OpPhase::Barrier));
    if (isSummed)
      add(index, Lifetime::State, 1, 0, live.end());
    else if (!isOfUpdate && options.numMicroBatches > 1 && next == replaced.end())
      add(index, Lifetime::State, kept.lookup(index), 0, live.end());
    if (phase == OpPhase::Forward && use.isIn(OpPhase::Backward)) {
      add(index, Lifetime::Activation, options.microBatchesInFlight, 0, backwardEnd());
      if (isUpdated && !isSummed)
        add(index, Lifetime::Temporary, 1, backwardEnd(), live.end());
      return;
    }
    // This micro-batch's share of a sum, until it is added.
    if (isMet && !isUpdated)
      return add(index, Lifetime::Temporary, 1, begin, end);
    if (isUpdated)
      return add(index, Lifetime::Temporary, 1, begin, isSummed ? end : live.end());
    if (next != replaced.end())
      return addNextState(index, next->second);
    if (use.outside) {
      add(index, Lifetime::Temporary, 1, begin, end);
      if (!isOfUpdate && sent.contains(index))
        add(index, Lifetime::Temporary, std::min(kSendsUnderway, options.numMicroBatches - 1), 0,
            backwardEnd());
      return;
    }
    if (values[index].materialized)
      add({index,
           Lifetime::Temporary,
           1,
           {birth[index], lastUse(index) + 1},
           aliased[index],
           true});
  }

  /// What the barrier makes is there once, for the backward runs of all micro-batches and
  /// for the update.
  void addMet(unsigned index) {
    const Uses &use = uses[index];
    bool isUpdated = use.isIn(OpPhase::Update) || updated.contains(index) || kept.contains(index);
    if (isUpdated || use.isIn(OpPhase::Backward) || use.outside)
      add(index, Lifetime::Temporary, 1, beginOf(OpPhase::Barrier),
          isUpdated ? live.end() : backwardEnd());
    else if (values[index].materialized)
      add({index, Lifetime::Temporary, 1, {birth[index], lastUse(index) + 1}, -1, true});
  }

  /// Within the function that makes the value.
  int64_t lastUse(unsigned index) const {
    unsigned phase = static_cast<unsigned>(opPhaseOf(values[index].value.getDefiningOp()));
    return std::max(birth[index], uses[index].last[phase]);
  }

  /// A completed sum, while the update reads it.
  void addSum(unsigned index) {
    const Uses &use = uses[index];
    unsigned update = static_cast<unsigned>(OpPhase::Update);
    if (use.first[update] >= 0)
      add({index, Lifetime::Temporary, 1, {use.first[update], use.last[update] + 1}, -1, true});
  }

  void addNextState(unsigned index, unsigned argument) {
    int64_t begin = birth[index], lastRead = -1;
    for (int64_t last : uses[argument].last)
      lastRead = std::max(lastRead, last);
    // An elementwise op may overwrite what it reads.
    bool inPlace = lastRead < begin || (lastRead == begin && ops[live.order[begin]].fusible);
    int64_t end = std::max(lastRead, lastUse(index)) + 1;
    add({index, Lifetime::Temporary, 1, {begin, end}, inPlace ? int(argument) : -1, !inPlace});
  }

  const ProblemBuilder &builder;
  const std::vector<OpInfo> &ops;
  const std::vector<ValueInfo> &values;
  const IntraOpOptions &options;
  Liveness live;
  std::vector<Uses> uses;
  std::vector<int64_t> birth;
  std::vector<int> aliased;               // What a value is another name for, or -1.
  llvm::DenseSet<unsigned> updated;       // By an update of another stage.
  llvm::DenseSet<unsigned> met;           // By the barrier of another stage.
  llvm::DenseSet<unsigned> sent;          // To another stage.
  llvm::DenseMap<unsigned, int64_t> kept; // Results of the step: buffers until its end.
  llvm::DenseMap<unsigned, unsigned> replaced;
  llvm::DenseMap<Operation *, int64_t> times;
};

} // namespace

Liveness sharding::computeLiveness(const ProblemBuilder &builder, const IntraOpOptions &options) {
  return LivenessBuilder(builder, options).run();
}
