//===- Liveness.cpp - when a stage's values take up memory ----------------===//

#include "compiler/Sharding/Problem/Liveness.h"

#include "compiler/Analysis/HostMemory.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/OpDefinition.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include <map>

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

/// Whether GPU libraries lack the convolution, since it pads one side more than the
/// other: XLA pads a copy of the image, or cuts one off the image's gradient.
static bool padsCopy(stablehlo::ConvolutionOp conv) {
  auto shapeOf = [](Value value) {
    return llvm::cast<RankedTensorType>(value.getType()).getShape();
  };
  auto entry = [](std::optional<llvm::ArrayRef<int64_t>> values, size_t index) {
    return values ? (*values)[index] : 1;
  };
  auto numbers = conv.getDimensionNumbers();
  for (auto [i, inDim, kernelDim, outDim] :
       llvm::enumerate(numbers.getInputSpatialDimensions(), numbers.getKernelSpatialDimensions(),
                       numbers.getOutputSpatialDimensions())) {
    int64_t image = shapeOf(conv->getOperand(0))[inDim];
    int64_t kernel = shapeOf(conv->getOperand(1))[kernelDim];
    int64_t out = shapeOf(conv->getResult(0))[outDim];
    int64_t low = conv.getPadding() ? conv.getPadding()->getValues<int64_t>()[2 * i] : 0;
    int64_t stride = entry(conv.getWindowStrides(), i);
    // As the convolution of which this is the gradient.
    if (int64_t base = entry(conv.getLhsDilation(), i); base > 1) {
      stride = base;
      std::swap(image, out);
      low = kernel - 1 - low;
    } else if (int64_t window = entry(conv.getRhsDilation(), i); window > 1) {
      stride = window;
      std::swap(kernel, out);
    }
    if (low < 0 || (image + 2 * low - kernel) / stride + 1 != out)
      return true;
  }
  return false;
}

namespace {

/// Micro-batches of which a stage may have sent values that the next one has not
/// taken yet: as many as the sender has in flight more than the next stage, which is
/// one in 1f1b and two in 1f1b-overlap (ScheduleRegistry.cpp).
constexpr int64_t kSendsUnderway = 2;
/// While forward runs follow each other without a backward run, as in a warm-up: one
/// for each micro-batch in flight where links are slow. More than these are not counted.
constexpr int64_t kSendsInWarmUp = 8;

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
    findPieces();
    findActivationPieces();
    for (unsigned index = 0; index < values.size(); ++index) {
      if (values[index].kind == ValueKind::Free || values[index].isScratch)
        continue;
      if (values[index].sumOf >= 0)
        addSum(index);
      else if (values[index].isInput)
        addInput(index);
      else
        addResult(index);
    }
    giveAway(OpPhase::Forward);
    giveAway(OpPhase::Backward);
    shareResults();
    // Larger than what they are made of, so that none lives in a result's buffer.
    for (auto [time, op] : llvm::enumerate(live.order))
      addCopies(ops[op], time);
    return std::move(live);
  }

private:
  /// A function's argument or result.
  struct Port {
    OpPhase phase;
    unsigned value;
    size_t item; // Of `live`.
  };

  /// What reads a value.
  struct Uses {
    std::array<int64_t, kNumPhases> first, last;
    Uses() {
      first.fill(-1);
      last.fill(-1);
    }
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
      auto useAt = [&](int64_t at, unsigned index) {
        int64_t &first = uses[index].first[phase], &last = uses[index].last[phase];
        first = first < 0 ? at : std::min(first, at);
        last = std::max(last, at);
        // Within a function, whoever reads a name reads what it is a name for.
        while (aliased[index] >= 0 &&
               opPhaseOf(values[index].value.getDefiningOp()) == static_cast<OpPhase>(phase)) {
          index = aliased[index];
          uses[index].last[phase] = std::max(uses[index].last[phase], at);
        }
      };
      int64_t begin = time;
      bool areRows = joinsRows(ops[op]);
      for (unsigned operand : ops[op].operands) {
        int64_t at = areRows ? birth[operand] : int64_t(time); // Each where it is made.
        begin = std::min(begin, at);
        useAt(at, operand);
        for (unsigned read : values[operand].reads) // To compute it on the fly.
          useAt(at, read);
      }
      for (auto [number, result] : llvm::enumerate(ops[op].results)) {
        birth[result] = begin;
        aliased[result] = builder.aliasOf(ops[op], number);
      }
    }
    for (unsigned index = 0; index < values.size(); ++index) {
      updateWaits |= values[index].isInput && values[index].value.getDefiningOp() &&
                     uses[index].isIn(OpPhase::Update);
      if (values[index].sumOf >= 0) {
        updated.insert(values[index].sumOf);
        continue;
      }
      Value value = values[index].value;
      Block *block = value.getParentBlock();
      for (Operation *user : value.getUsers()) {
        Operation *top = block->findAncestorOpInBlock(*user);
        if (!top || !builder.isInStage(top)) {
          // Whether the layer that made it reads it again is no matter of this stage, which gets a
          // copy; layers that are computed again do not.
          if (values[index].isInput && top && isOfLayer(top, value))
            continue;
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

  /// Whether the op is of the layer that makes the value.
  static bool isOfLayer(Operation *op, Value value) {
    Operation *maker = value.getDefiningOp();
    Attribute layer = maker ? maker->getAttr(attr::layer) : Attribute();
    return layer && op->getAttr(attr::layer) == layer;
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

  /// Whether the op puts rows into a stack that the layers which make them write where they belong,
  /// as they become a loop.
  bool joinsRows(const OpInfo &info) const {
    auto join = llvm::dyn_cast<stablehlo::ConcatenateOp>(info.op);
    if (!join || !options.makesLoops || join.getInputs().size() < 2)
      return false;
    llvm::DenseSet<int64_t> layers;
    for (auto [row, index] : llvm::zip_equal(join.getInputs(), info.operands)) {
      auto type = llvm::cast<RankedTensorType>(row.getType());
      if (type.getDimSize(join.getDimension()) != 1 || birth[index] < 0 ||
          opPhaseOf(row.getDefiningOp()) != info.phase)
        return false;
      if (std::optional<int64_t> layer = layerOf(row.getDefiningOp()))
        layers.insert(*layer);
    }
    return 2 * layers.size() >= join.getInputs().size(); // A layer may have two.
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

  /// The value that was added last is an argument or a result of a function.
  void note(std::vector<Port> &ports, OpPhase phase, unsigned value) {
    if (!live.items.empty() && live.items.back().value == value)
      ports.push_back({phase, value, live.items.size() - 1});
  }

  int64_t beginOf(OpPhase phase) const {
    return phase == OpPhase::Prepare ? 0 : live.phaseEnd[unsigned(phase) - 1];
  }
  int64_t endOf(OpPhase phase) const { return live.phaseEnd[unsigned(phase)]; }
  int64_t backwardEnd() const { return endOf(OpPhase::Backward); }

  void addInput(unsigned index) {
    const Uses &use = uses[index];
    if (builder.isOnHost(values[index]))
      return addHostState(index);
    if (isStateArgument(values[index].value))
      return add(index, Lifetime::State, 1, 0, live.end());
    bool isForward = use.isIn(OpPhase::Forward), isBackward = use.isIn(OpPhase::Backward);
    Operation *maker = values[index].value.getDefiningOp();
    bool isOfBarrier = maker && opPhaseOf(maker) == OpPhase::Barrier;
    bool isOfCaller = llvm::isa<BlockArgument>(values[index].value);
    bool isLater = use.isIn(OpPhase::Barrier) || use.isIn(OpPhase::Update);
    if (maker && opPhaseOf(maker) == OpPhase::Prepare)
      return addPrepared(index);
    // A micro-batch of an argument is there when it is needed, as is a value of another
    // stage.
    if ((isForward && isBackward) || (isOfCaller && isLater)) {
      add(index, Lifetime::Activation, options.microBatchesInFlight, 0, backwardEnd());
      if (!isOfCaller && !isLater && !sent.contains(index))
        note(consumed, OpPhase::Backward, index);
    } else if (isForward || isBackward) {
      OpPhase phase = isForward ? OpPhase::Forward : OpPhase::Backward;
      add(index, Lifetime::Temporary, 1, beginOf(phase), endOf(phase));
      if (!isOfCaller && !isLater && !sent.contains(index))
        note(consumed, phase, index);
    }
    for (OpPhase phase : {OpPhase::Barrier, OpPhase::Update})
      if (use.isIn(phase) && !(isOfBarrier && phase == OpPhase::Barrier))
        add(index, Lifetime::Temporary, 1, beginOf(phase), endOf(phase));
  }

  void addResult(unsigned index) {
    const Uses &use = uses[index];
    OpPhase phase = opPhaseOf(values[index].value.getDefiningOp());
    if (phase == OpPhase::Prepare)
      return addPrepared(index);
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
    bool isRead = use.outside || use.isIn(OpPhase::Barrier) ||
                  (phase == OpPhase::Forward && use.isIn(OpPhase::Backward));
    if (isSummed && !isRead) {
      // The function adds the term: elementwise ops and products at once.
      const OpInfo &maker = ops[live.order[birth[index]]];
      bool isAdded = maker.fusible || llvm::isa<stablehlo::DotGeneralOp>(maker.op);
      if (!isAdded || lastUse(index) > birth[index])
        addInner(index, -1);
      return;
    }
    if (values[index].isHostActivation)
      return addHostActivation(index);
    if (phase == OpPhase::Forward && use.isIn(OpPhase::Backward)) {
      add(index, Lifetime::Activation, options.microBatchesInFlight, 0, backwardEnd());
      note(made, phase, index);
      if (!isUpdated && !isMet && !kept.contains(index) && !sent.contains(index))
        note(consumed, OpPhase::Backward, index);
      bool waits = options.numMicroBatches == 1 && kept.contains(index);
      if ((isUpdated && !isSummed) || waits)
        add(index, Lifetime::Temporary, 1, backwardEnd(), live.end());
      return;
    }
    // This micro-batch's share of a sum, until it is added.
    if (isMet && !isUpdated)
      return add(index, Lifetime::Temporary, 1, begin, end);
    if (isUpdated) {
      add(index, Lifetime::Temporary, 1, begin, isSummed ? end : live.end());
      note(made, phase, index);
      return;
    }
    if (next != replaced.end())
      return addNextState(index, next->second);
    if (use.outside) {
      bool waits = !isOfUpdate && options.numMicroBatches == 1 && kept.contains(index);
      add(index, Lifetime::Temporary, 1, begin, waits ? live.end() : end);
      note(made, phase, index);
      if (!isOfUpdate && sent.contains(index))
        addSends(index, phase);
      return;
    }
    if (values[index].materialized)
      addInner(index, aliased[index]);
  }

  /// What receivers may not have taken yet. Those of forward runs have by the time that
  /// the last backward run ends, since it needs what they make of it.
  void addSends(unsigned index, OpPhase phase) {
    int64_t others = options.numMicroBatches - 1;
    int64_t before = std::min(kSendsUnderway, others);
    if (phase == OpPhase::Forward) {
      add(index, Lifetime::Temporary, std::min(kSendsInWarmUp, others), 0, endOf(phase));
      add(index, Lifetime::Temporary, before, endOf(phase), backwardEnd());
    } else {
      add(index, Lifetime::Temporary, before, 0, backwardEnd());
      add(index, Lifetime::Temporary, before + 1, backwardEnd(), live.end());
    }
  }

  void addInner(unsigned index, int replaces) {
    int64_t last = lastUse(index), end = last + 1;
    if (last > birth[index] && isTakenOver(index, ops[live.order[last]]))
      end = last;
    LiveItem item{index, Lifetime::Temporary, 1, {birth[index], end}, -1, true};
    if (replaces >= 0)
      shareBuffer(item, replaces);
    add(item);
  }

  /// The item has another value's buffer where both are split alike, which is known if
  /// they follow one node or one device has all.
  void shareBuffer(LiveItem &item, unsigned other) const {
    if (values[item.value].node == values[other].node)
      item.replaces = other;
    else if (numDevices() == 1)
      item.fittingBytes = leastBytes(other);
  }

  /// Whether an op that is the last to read a value may write its result in its place.
  bool isTakenOver(unsigned index, const OpInfo &reader) const {
    auto isAlike = [&](unsigned result) {
      return values[result].materialized && values[result].node == values[index].node &&
             values[result].bytes == values[index].bytes && aliased[result] < 0;
    };
    if (llvm::isa<stablehlo::WhileOp>(reader.op)) // What its body captures comes behind.
      return llvm::any_of(llvm::zip(reader.operands, reader.results), [&](auto pair) {
        return std::get<0>(pair) == index && isAlike(std::get<1>(pair));
      });
    return reader.fusible && reader.results.size() == 1 && isAlike(reader.results[0]);
  }

  /// What each device has of a value at the least.
  int64_t leastBytes(unsigned value) const {
    return static_cast<int64_t>(values[value].bytes) / numDevices();
  }
  int64_t numDevices() const { return llvm::product_of(builder.getMeshShape()); }

  /// Results take the buffers of arguments that the function is the last to read, of
  /// which one copy is counted: as a temporary, or of an activation.
  void giveAway(OpPhase phase) {
    llvm::DenseMap<Type, llvm::SmallVector<const Port *>> free;
    for (const Port &port : llvm::reverse(consumed)) // The first at the end.
      if (port.phase == phase)
        free[values[port.value].value.getType()].push_back(&port);
    for (Port &port : made) {
      if (port.phase != phase)
        continue;
      auto it = free.find(values[port.value].value.getType());
      if (it == free.end() || it->second.empty())
        continue;
      const Port *argument = it->second.pop_back_val();
      // The result of which there is one, or the argument.
      size_t number = phase == OpPhase::Forward ? argument->item : port.item;
      LiveItem item = live.items[number];
      // Behind the function the buffer is the result's alone.
      if (int64_t end = endOf(phase); item.life.end > end) {
        live.items[number].life.end = end;
        item.life.begin = end;
        add(item);
      }
      shareBuffer(live.items[number], phase == OpPhase::Forward ? port.value : argument->value);
      isGiven.insert(port.value);
    }
  }

  /// Temporaries live in buffers of results that are not made yet: the least that fits.
  void shareResults() {
    std::vector<std::pair<int64_t, size_t>> temporaries; // Beginnings and items.
    for (OpPhase phase : {OpPhase::Forward, OpPhase::Backward}) {
      std::multimap<double, std::pair<int64_t, unsigned>> free; // By bytes: birth and value.
      for (const Port &port : made)
        if (port.phase == phase && !isGiven.contains(port.value))
          free.insert({values[port.value].bytes, {birth[port.value], port.value}});
      temporaries.clear();
      for (auto [number, item] : llvm::enumerate(live.items))
        if (item.isInner && item.replaces < 0 && item.life.begin >= beginOf(phase) &&
            item.life.end <= endOf(phase))
          temporaries.push_back({item.life.begin, number});
      llvm::sort(temporaries);
      using Slot = decltype(free)::value_type;
      std::multimap<int64_t, Slot> taken; // By when they are free again.
      for (auto [begin, number] : temporaries) {
        LiveItem &item = live.items[number];
        while (!taken.empty() && taken.begin()->first <= begin) {
          free.insert(taken.begin()->second);
          taken.erase(taken.begin());
        }
        constexpr unsigned kMostTries = 16;
        auto it = free.lower_bound(values[item.value].bytes);
        for (unsigned tries = 0; it != free.end() && tries < kMostTries; ++tries) {
          if (it->second.first <= begin) {
            it = free.erase(it); // Made by now.
            continue;
          }
          if (it->second.first >= item.life.end)
            break;
          ++it;
        }
        if (it == free.end() || it->second.first < item.life.end)
          continue;
        shareBuffer(item, it->second.second);
        item.fittingBytes = leastBytes(it->second.second);
        taken.insert({item.life.end, *it});
        free.erase(it);
      }
    }
  }

  /// Of what the op's kernel needs in another form.
  void addCopies(const OpInfo &info, int64_t time) {
    if (llvm::isa<GroupedDotOp, GroupedSumOp>(info.op))
      return addSorted(info, time);
    if (info.scratch >= 0) {
      LiveItem item{static_cast<unsigned>(info.scratch), Lifetime::Temporary, 1, {time, time + 1}};
      item.isInner = true;
      item.fittingBytes = info.scratchFits;
      return add(item);
    }
    auto conv = llvm::dyn_cast<stablehlo::ConvolutionOp>(info.op);
    if (!conv || !padsCopy(conv))
      return;
    auto dilation = conv.getLhsDilation();
    bool isOfImage = dilation && llvm::any_of(*dilation, [](int64_t size) { return size > 1; });
    unsigned value = isOfImage ? info.results[0] : info.operands[0];
    add({value, Lifetime::Temporary, 1, {time, time + 1}, -1, true});
  }

  /// Rows by their group, with more behind them; results before they are put back, or sums in
  /// float32.
  void addSorted(const OpInfo &info, int64_t time) {
    bool isSum = llvm::isa<GroupedSumOp>(info.op);
    auto copied = [&](unsigned value, int64_t copies) {
      add({value, Lifetime::Temporary, copies, {time, time + 1}, -1, true});
    };
    copied(info.operands[0], 1);
    if (isSum)
      copied(info.operands[1], 1);
    auto type = llvm::cast<RankedTensorType>(info.op->getResult(0).getType());
    int64_t bits = analysis::getElementBits(type);
    copied(info.results[0], isSum ? (bits < 32 ? 32 / bits : 0) : 1);
    // XLA adds what all loops of a function give to the sums of micro-batches in one kernel.
    if (isSum && options.numMicroBatches > 1)
      add({info.results[0], Lifetime::Temporary, 1, {time, endOf(info.phase)}, -1, true});
  }

  /// A prepared weight is there once, for the runs of all micro-batches.
  void addPrepared(unsigned index) {
    const Uses &use = uses[index];
    bool isUpdated = use.isIn(OpPhase::Update) || use.outside;
    if (isUpdated || use.isIn(OpPhase::Forward) || use.isIn(OpPhase::Barrier) ||
        use.isIn(OpPhase::Backward))
      add(index, Lifetime::Temporary, 1, 0, isUpdated ? live.end() : backwardEnd());
    else if (values[index].materialized)
      addInner(index, aliased[index]);
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

  /// A completed sum, while the update reads it; one that waits for what other stages
  /// make is handed from one function of the update to the next.
  void addSum(unsigned index) {
    const Uses &use = uses[index];
    unsigned update = static_cast<unsigned>(OpPhase::Update);
    if (use.first[update] < 0)
      return;
    if (updateWaits)
      add(index, Lifetime::Temporary, 1, backwardEnd(), live.end());
    else
      add({index, Lifetime::Temporary, 1, {use.first[update], use.last[update] + 1}, -1, true});
  }

  /// When state of the host's memory, and its next value, are on the device.
  void findPieces() {
    llvm::SmallVector<Operation *> updates;
    llvm::SmallVector<int64_t> timeOfUpdate;
    llvm::SmallVector<Value> results;
    for (auto [time, op] : llvm::enumerate(live.order))
      if (ops[op].phase == OpPhase::Update) {
        updates.push_back(ops[op].op);
        timeOfUpdate.push_back(time);
      }
    for (const CarriedValue &carried : builder.getCarried())
      if (builder.isOnHost(values[carried.argument]))
        results.push_back(values[carried.value].value);
    int64_t before = -1;
    for (const analysis::HostPiece &piece :
         analysis::findHostPieces(updates, isHostArgument, results)) {
      int64_t first = timeOfUpdate[piece.first], end = timeOfUpdate[piece.last] + 1;
      for (Value argument : piece.arguments)
        onDevice[argument] = {before < 0 ? first : std::min(before, first), end};
      for (Value result : piece.results)
        onDevice[result] = {first, end};
      before = first;
    }
  }

  /// Until when an activation of the host's memory is on the device in the forward phase, and
  /// from when in the backward phase.
  void findActivationPieces() {
    if (builder.getHostActivations().empty())
      return;
    // XLA has the copies of two values to the host under way at a time.
    std::vector<std::pair<int64_t, unsigned>> made;
    for (const HostActivation &activation : builder.getHostActivations())
      made.push_back({birth[activation.value], activation.value});
    llvm::sort(made);
    for (auto [number, value] : llvm::enumerate(llvm::make_second_range(made)))
      copied[value] = number + 2 < made.size() ? made[number + 2].first : endOf(OpPhase::Forward);
    llvm::SmallVector<Operation *> backward;
    llvm::SmallVector<int64_t> timeOfOp;
    for (auto [time, op] : llvm::enumerate(live.order))
      if (ops[op].phase == OpPhase::Backward) {
        backward.push_back(ops[op].op);
        timeOfOp.push_back(time);
      }
    auto pieceOf = [&](Value value) {
      int index = builder.find(value);
      return index >= 0 && values[index].isHostActivation
                 ? layerOf(analysis::firstBackwardReader(value)).value_or(0)
                 : -1;
    };
    std::vector<analysis::HostActivations> pieces =
        analysis::findHostActivations(backward, pieceOf);
    for (auto [index, piece] : llvm::enumerate(pieces)) {
      bool waits = index > 1 && !pieces[index - 2].results.empty();
      int64_t begin = waits ? timeOfOp[pieces[index - 1].first] : beginOf(OpPhase::Backward);
      for (Value value : piece.values)
        onDevice[value] = {begin, begin + 1};
    }
  }

  /// For all micro-batches in flight there; on the device while it is made, copied, and read.
  void addHostActivation(unsigned index) {
    LiveItem item{index,
                  Lifetime::Activation,
                  options.microBatchesInFlight,
                  {live.hostTime(), live.hostTime() + 1}};
    item.isOnHost = true;
    live.hasHostItems = true;
    add(item);
    int64_t end = std::max(lastUse(index) + 1, copied.lookup(index));
    int64_t made = birth[index];
    if (int name = aliased[index]; name >= 0) // Has its buffer.
      made = std::max(made, uses[name].last[unsigned(OpPhase::Forward)] + 1);
    add({index, Lifetime::Temporary, 1, {made, end}, -1, true});
    int64_t begin = onDevice.lookup(values[index].value).begin;
    int64_t last = uses[index].last[unsigned(OpPhase::Backward)];
    add({index, Lifetime::Temporary, 1, {begin, last + 1}, -1, true});
  }

  void addHostState(unsigned index) {
    LiveItem item{index, Lifetime::Temporary, 1, {live.hostTime(), live.hostTime() + 1}};
    item.isOnHost = true;
    live.hasHostItems = true;
    add(item);
    // One kernel reads all of a piece.
    if (auto it = onDevice.find(values[index].value); it != onDevice.end())
      add({index, Lifetime::Temporary, 1, it->second, -1, true});
  }

  void addNextState(unsigned index, unsigned argument) {
    if (builder.isOnHost(values[argument])) {
      auto it = onDevice.find(values[index].value);
      int64_t end = std::max(lastUse(index) + 1, it == onDevice.end() ? 0 : it->second.end);
      return add({index, Lifetime::Temporary, 1, {birth[index], end}, -1, true});
    }
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
  bool updateWaits = false; // For what other stages make: it has several functions then.
  std::vector<int64_t> birth;
  std::vector<int> aliased;               // What a value is another name for, or -1.
  llvm::DenseSet<unsigned> updated;       // By an update of another stage.
  llvm::DenseSet<unsigned> met;           // By the barrier of another stage.
  llvm::DenseSet<unsigned> sent;          // To another stage.
  llvm::DenseMap<unsigned, int64_t> kept; // Results of the step: buffers until its end.
  std::vector<Port> made, consumed;       // Results, and arguments that nothing reads later.
  llvm::DenseSet<unsigned> isGiven;       // Results with the buffer of an argument.
  llvm::DenseMap<unsigned, unsigned> replaced;
  llvm::DenseMap<Value, solver::Interval> onDevice; // Of what comes from the host's memory.
  llvm::DenseMap<unsigned, int64_t> copied;         // When what goes there has left the device.
  llvm::DenseMap<Operation *, int64_t> times;
};

} // namespace

Liveness sharding::computeLiveness(const ProblemBuilder &builder, const IntraOpOptions &options) {
  return LivenessBuilder(builder, options).run();
}
