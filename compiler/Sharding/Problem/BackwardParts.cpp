//===- BackwardParts.cpp - a backward phase in two parts ------------------===//

#include "compiler/Sharding/Problem/BackwardParts.h"

#include "dialects/Alpa/AlpaDialect.h"

#include "llvm/ADT/STLExtras.h"
#include <cmath>

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

/// What has no layer is of none before the others.
static int64_t placeOf(Operation *op) {
  return layerOf(op).value_or(std::numeric_limits<int64_t>::max());
}

llvm::DenseSet<Operation *> sharding::findInputPart(llvm::ArrayRef<OpInfo> ops) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const OpInfo &info : ops)
    first = std::min(first, placeOf(info.op));
  llvm::DenseSet<Operation *> inputPart;
  for (const OpInfo &info : llvm::reverse(ops)) {
    if (info.phase != OpPhase::Backward)
      continue;
    // Layers number from 0, and the terminator has none.
    auto isWaitedFor = [&](Operation *user) {
      user = info.op->getBlock()->findAncestorOpInBlock(*user);
      return inputPart.contains(user) ||
             (placeOf(user) < first && opPhaseOf(user) != OpPhase::Update);
    };
    if (llvm::any_of(info.op->getUsers(), isWaitedFor))
      inputPart.insert(info.op);
  }
  return inputPart;
}

BackwardParts sharding::measureBackwardParts(const ProblemBuilder &builder,
                                             llvm::ArrayRef<unsigned> choices) {
  llvm::ArrayRef<int64_t> meshShape = builder.getMeshShape();
  const std::vector<ValueInfo> &values = builder.getValues();
  BackwardParts parts;
  parts.inputSeconds = builder.phaseSeconds(choices).seconds[size_t(OpPhase::Backward)];
  llvm::DenseSet<Operation *> inputPart = findInputPart(builder.getOps());
  if (inputPart.empty())
    return parts;
  auto isWeightPart = [&](Operation *op) {
    return op && builder.isInStage(op) && opPhaseOf(op) == OpPhase::Backward &&
           !inputPart.contains(op);
  };

  double picoseconds = 0;
  for (const OpPart &part : builder.getParts()) {
    const OpInfo &info = builder.getOps()[part.op];
    if (!isWeightPart(info.op))
      continue;
    RuleProjection projection(*info.rule, meshShape);
    picoseconds += double(
        builder.picoseconds(info, projection, builder.strategyOf(part, projection, choices)));
  }
  auto addMove = [&](const ValueInfo &value, PackedSpec from, PackedSpec to) {
    if (from != to)
      picoseconds += double(builder.movePicoseconds(value, from, to, OpPhase::Backward));
  };
  for (const OperandDemand &demand : builder.getDemands())
    if (demand.charged && isWeightPart(demand.user))
      picoseconds += double(builder.demandPicoseconds(demand, choices));
  for (const ValueInfo &value : values)
    if (value.isMoved && value.madeNode >= 0 && isWeightPart(value.value.getDefiningOp()))
      addMove(value, builder.specOf(value.madeNode, value.madeTable, choices),
              builder.specOf(value, choices));
  // Costs are rounded one by one.
  parts.weightSeconds = std::min(picoseconds * 1e-12, parts.inputSeconds);
  parts.inputSeconds -= parts.weightSeconds;

  // alpa-split-backward may hand over less: what cheap ops are made of instead.
  llvm::DenseSet<unsigned> read;
  for (const OpInfo &info : builder.getOps())
    if (isWeightPart(info.op))
      read.insert(info.operands.begin(), info.operands.end());
  for (unsigned index : read) {
    const ValueInfo &value = values[index];
    if (value.kind != ValueKind::Free && !isStateArgument(value.value) &&
        !isWeightPart(value.value.getDefiningOp()) && !value.isHostActivation)
      parts.waitingBytes += int64_t(
          std::ceil(value.bytes / double(builder.specOf(value, choices).numPieces(meshShape))));
  }
  return parts;
}
