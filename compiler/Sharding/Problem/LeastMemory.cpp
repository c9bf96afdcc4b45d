//===- LeastMemory.cpp - what a stage cannot do without -------------------===//

#include "compiler/Sharding/Problem/LeastMemory.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/Interfaces/FunctionInterfaces.h"
#include "llvm/ADT/STLExtras.h"
#include <limits>

using namespace alpa;
using namespace mlir;

LeastMemory alpa::findLeastMemory(const ProblemBuilder &builder, const Liveness &liveness) {
  constexpr unsigned kMaxRounds = 24;
  constexpr double kSecondsPerRound = 0.5;
  LeastMemory least;
  least.upperBytes = std::numeric_limits<int64_t>::max();
  // What may be combined counts, what it costs does not.
  Problem sums = builder.getProblem();
  llvm::erase_if(sums.edges, [](ProblemEdge &edge) {
    for (int64_t &cost : edge.costs)
      cost = cost < kForbiddenCost ? 0 : kForbiddenCost;
    return llvm::all_of(edge.costs, [](int64_t cost) { return cost == 0; });
  });
  for (ProblemNode &node : sums.nodes)
    for (int64_t &cost : node.costs)
      cost = cost < kForbiddenCost ? 0 : kForbiddenCost;
  int64_t fixedBytes = 0; // What no choice changes, as often as it was counted.
  std::vector<unsigned> choices(sums.nodes.size(), 0);
  for (unsigned round = 1; round <= kMaxRounds; ++round) {
    // One more count of the fullest moment.
    int64_t time = measureMemory(builder, liveness, choices).peakTime;
    Problem moment = builder.getProblem();
    addMemory(moment, builder, liveness, std::numeric_limits<int64_t>::max(), {time});
    for (auto [i, node] : llvm::enumerate(moment.nodes)) {
      if (i >= sums.nodes.size()) {
        fixedBytes += node.usagesBytes.front();
        continue;
      }
      for (auto [cost, bytes] : llvm::zip(sums.nodes[i].costs, node.usagesBytes))
        if (cost < kForbiddenCost)
          cost += bytes;
    }
    SolveOptions options;
    options.timeLimitSeconds = kSecondsPerRound;
    llvm::Expected<Solution> solution = solve(sums, options);
    if (!solution) {
      llvm::consumeError(solution.takeError());
      break;
    }
    if (solution->choices.empty() && !sums.nodes.empty())
      break;
    auto bound = static_cast<int64_t>((solution->lowerBound + fixedBytes + round - 1) / round);
    least.lowerBytes = std::max(least.lowerBytes, bound);
    choices = solution->choices;
    int64_t peak = measureMemory(builder, liveness, choices).peakBytes;
    if (peak < least.upperBytes) {
      least.upperBytes = peak;
      least.choices = choices;
    }
    if (least.lowerBytes >= least.upperBytes)
      break;
  }
  return least;
}

static std::string describe(Value value) {
  std::string text;
  llvm::raw_string_ostream os(text);
  if (auto argument = llvm::dyn_cast<BlockArgument>(value)) {
    auto function = llvm::dyn_cast<FunctionOpInterface>(argument.getOwner()->getParentOp());
    auto name = function
                    ? function.getArgAttrOfType<StringAttr>(argument.getArgNumber(), "alpa.name")
                    : StringAttr();
    if (name)
      os << name.getValue();
    else
      os << "argument " << argument.getArgNumber();
  } else {
    os << "a result of '" << value.getDefiningOp()->getName() << "'";
  }
  os << " : " << value.getType();
  return text;
}

static llvm::StringRef phaseName(OpPhase phase) {
  switch (phase) {
  case OpPhase::Forward:
    return "forward";
  case OpPhase::Barrier:
    return "barrier";
  case OpPhase::Backward:
    return "backward";
  case OpPhase::Update:
    return "update";
  }
  return "";
}

std::string alpa::explainInfeasible(const ProblemBuilder &builder, const Liveness &liveness,
                                    const LeastMemory &least, int64_t limitBytes, bool isProven) {
  if (least.choices.empty())
    return "no combination of choices is allowed at all";
  std::string text;
  llvm::raw_string_ostream os(text);
  int64_t lower = least.lowerBytes;
  if (isProven)
    lower = std::max(lower, std::min(limitBytes + 1, least.upperBytes));
  if (lower >= least.upperBytes)
    os << "the smallest memory that would do is " << least.upperBytes << " bytes";
  else
    os << least.upperBytes << " bytes would do, fewer than " << lower << " would not";
  MemoryUse use = measureMemory(builder, liveness, least.choices);
  if (liveness.order.empty())
    return text;
  const OpInfo &op = builder.getOps()[liveness.order[use.peakTime]];
  os << "; the fullest moment is then '" << op.op->getName() << "' of the " << phaseName(op.phase)
     << " phase at " << op.op->getLoc() << ", which needs";
  // A value in several copies or roles is one tensor.
  std::vector<std::pair<int64_t, unsigned>> live;
  llvm::DenseMap<unsigned, size_t> places;
  for (const LiveItem &item : liveness.items) {
    int64_t bytes = itemBytes(builder, item, least.choices);
    if (bytes == 0 || item.life.begin > use.peakTime || item.life.end <= use.peakTime)
      continue;
    auto [it, isNew] = places.try_emplace(item.value, live.size());
    if (isNew)
      live.emplace_back(0, item.value);
    live[it->second].first -= bytes;
  }
  llvm::sort(live);
  constexpr size_t kNamed = 6;
  for (size_t i = 0; i < std::min(kNamed, live.size()); ++i)
    os << (i ? ", " : " ") << -live[i].first << " bytes for "
       << describe(builder.getValues()[live[i].second].value);
  if (live.size() > kNamed) {
    int64_t rest = 0;
    for (size_t i = kNamed; i < live.size(); ++i)
      rest -= live[i].first;
    os << ", and " << rest << " for " << live.size() - kNamed << " more";
  }
  return text;
}
