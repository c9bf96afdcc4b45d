//===- Memory.cpp - bytes that a sharded stage keeps ----------------------===//

#include "compiler/Sharding/Memory.h"

#include "mlir/Interfaces/FunctionInterfaces.h"
#include <cmath>

using namespace alpa;
using namespace mlir;

static int64_t localBytes(double bytes, PackedSpec spec, llvm::ArrayRef<int64_t> meshShape) {
  return static_cast<int64_t>(std::ceil(bytes / spec.numPieces(meshShape)));
}

/// The user at the top level of the stage's function.
static Operation *topLevel(Operation *user, Block *block) {
  return block->findAncestorOpInBlock(*user);
}

static Lifetime lifetimeOfInput(const ProblemBuilder &builder, Value value) {
  if (auto argument = llvm::dyn_cast<BlockArgument>(value)) {
    auto function = llvm::dyn_cast<FunctionOpInterface>(argument.getOwner()->getParentOp());
    auto kind = function
                    ? function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), "alpa.kind")
                    : StringAttr();
    return kind && kind.getValue() == "batch" ? Lifetime::Activation : Lifetime::State;
  }
  // From another stage: kept with the micro-batch unless only the update reads it.
  for (Operation *user : value.getUsers())
    if (Operation *top = topLevel(user, value.getParentBlock()))
      if (builder.isInStage(top) && opPhaseOf(top) != OpPhase::Update)
        return Lifetime::Activation;
  return Lifetime::Temporary;
}

std::vector<Lifetime> alpa::valueLifetimes(const ProblemBuilder &builder) {
  std::vector<Lifetime> lifetimes;
  for (const ValueInfo &info : builder.getValues()) {
    Lifetime lifetime = Lifetime::Temporary;
    if (info.isInput) {
      if (info.kind != ValueKind::Free)
        lifetime = lifetimeOfInput(builder, info.value);
    } else if (info.kind != ValueKind::Free) {
      Value value = info.value;
      OpPhase phase = opPhaseOf(value.getDefiningOp());
      for (Operation *user : value.getUsers()) {
        Operation *top = topLevel(user, value.getParentBlock());
        if (!top || phase == OpPhase::Update)
          continue;
        OpPhase userPhase = opPhaseOf(top);
        if (userPhase == OpPhase::Update && !top->hasTrait<OpTrait::IsTerminator>())
          lifetime = Lifetime::State; // Accumulated over micro-batches.
        else if (phase == OpPhase::Forward && userPhase == OpPhase::Backward &&
                 builder.isInStage(top))
          lifetime = std::max(lifetime, Lifetime::Activation);
      }
    }
    lifetimes.push_back(lifetime);
  }
  return lifetimes;
}

/// Values born and last read in the phase's run of ops; a value read by no op of
/// the phase dies at the end of it.
MemoryUse alpa::measureMemory(const ProblemBuilder &builder, llvm::ArrayRef<Lifetime> lifetimes,
                              llvm::ArrayRef<unsigned> choices) {
  MemoryUse use;
  llvm::ArrayRef<int64_t> meshShape = builder.getMeshShape();
  const std::vector<ValueInfo> &values = builder.getValues();
  const std::vector<OpInfo> &ops = builder.getOps();
  std::vector<int64_t> bytes;
  for (auto [info, lifetime] : llvm::zip_equal(values, lifetimes)) {
    bytes.push_back(localBytes(info.bytes, builder.specOf(info, choices), meshShape));
    if (lifetime == Lifetime::State)
      use.stateBytes += bytes.back();
    else if (lifetime == Lifetime::Activation)
      use.activationBytes += bytes.back();
  }

  constexpr size_t kNever = ~size_t(0);
  std::vector<size_t> lastUse(values.size(), kNever);
  for (size_t position = 0; position < ops.size(); ++position)
    for (unsigned operand : ops[position].operands)
      lastUse[operand] = position;
  for (unsigned phase = 0; phase < kNumPhases; ++phase) {
    int64_t live = 0, peak = 0;
    size_t peakPosition = 0;
    auto isCounted = [&](unsigned index) {
      const ValueInfo &info = values[index];
      return !info.isInput && info.materialized && info.kind != ValueKind::Free &&
             lifetimes[index] == Lifetime::Temporary;
    };
    std::vector<bool> isLive(values.size(), false);
    auto sweep = [&](size_t end) {
      for (size_t position = 0; position < end; ++position) {
        const OpInfo &op = ops[position];
        if (op.phase != static_cast<OpPhase>(phase))
          continue;
        for (unsigned result : op.results)
          if (isCounted(result)) {
            live += bytes[result];
            isLive[result] = true;
          }
        if (live > peak) {
          peak = live;
          peakPosition = position;
        }
        if (position + 1 == end)
          return;
        for (unsigned index : llvm::concat<const unsigned>(op.operands, op.results))
          if (isLive[index] && (lastUse[index] == position || lastUse[index] == kNever)) {
            live -= bytes[index];
            isLive[index] = false;
          }
      }
    };
    sweep(ops.size());
    if (peak <= use.temporaryBytes)
      continue;
    use.temporaryBytes = peak;
    use.peakValues.clear();
    isLive.assign(values.size(), false);
    live = 0;
    sweep(peakPosition + 1);
    for (unsigned index = 0; index < values.size(); ++index)
      if (isLive[index])
        use.peakValues.push_back(index);
  }
  return use;
}

void alpa::addMemory(Problem &problem, const ProblemBuilder &builder,
                     llvm::ArrayRef<Lifetime> lifetimes, llvm::ArrayRef<unsigned> peakValues,
                     int64_t microBatchesInFlight, int64_t limitBytes) {
  llvm::ArrayRef<int64_t> meshShape = builder.getMeshShape();
  for (ProblemNode &node : problem.nodes) {
    node.intervals = {{0, 1}};
    node.usagesBytes.assign(node.costs.size(), 0);
  }
  auto add = [&](const ValueInfo &info, int64_t copies) {
    if (info.node < 0) {
      limitBytes -= copies * localBytes(info.bytes, {}, meshShape);
      return;
    }
    const SpecTable &table = builder.getTables()[info.table];
    llvm::SmallVector<int64_t> sizes;
    for (PackedSpec spec : table.specs)
      sizes.push_back(copies * localBytes(info.bytes, spec, meshShape));
    std::vector<int64_t> &usages = problem.nodes[info.node].usagesBytes;
    for (size_t choice = 0; choice < usages.size(); ++choice)
      usages[choice] += sizes[table.index[choice]];
  };
  for (auto [info, lifetime] : llvm::zip_equal(builder.getValues(), lifetimes)) {
    if (lifetime == Lifetime::State)
      add(info, 1);
    else if (lifetime == Lifetime::Activation)
      add(info, microBatchesInFlight);
  }
  for (unsigned index : peakValues)
    add(builder.getValues()[index], 1);
  problem.usageLimitBytes = limitBytes;
}
