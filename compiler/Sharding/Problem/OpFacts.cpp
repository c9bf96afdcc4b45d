//===- OpFacts.cpp - what an op is in any stage, on any mesh --------------===//

#include "compiler/Sharding/Problem/OpFacts.h"

#include "compiler/Sharding/Problem/SumCompletion.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/BuiltinTypes.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/SetVector.h"
#include <mutex>

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

static constexpr llvm::StringLiteral kPhaseNames[kNumPhases] = {"prepare", "forward", "barrier",
                                                                "backward", "update"};

OpPhase sharding::opPhaseOf(Operation *op) {
  if (auto attr = op->getAttrOfType<StringAttr>(alpa::attr::phase))
    for (unsigned phase = 0; phase < kNumPhases; ++phase)
      if (attr.getValue() == kPhaseNames[phase])
        return static_cast<OpPhase>(phase);
  return OpPhase::Forward;
}

llvm::StringRef sharding::phaseName(OpPhase phase) {
  return kPhaseNames[static_cast<unsigned>(phase)];
}

int64_t sharding::numElements(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type ? type.getNumElements() : 1;
}

static bool isPlain(Type type) {
  auto tensor = llvm::dyn_cast<RankedTensorType>(type);
  return !tensor || (tensor.hasStaticShape() && tensor.getRank() <= PackedSpec::kMaxRank);
}

OpFacts::OpFacts(Operation *op) {
  phase = opPhaseOf(op);
  hasPlainTypes =
      llvm::all_of(op->getOperandTypes(), isPlain) && llvm::all_of(op->getResultTypes(), isPlain);
  std::optional<analysis::ShardingRule> found;
  if (hasPlainTypes)
    found = analysis::getShardingRule(op);
  hasRule = found.has_value();
  if (!hasRule)
    return;
  rule = std::move(*found);
  flops = analysis::getFlops(op);
  computeType = analysis::getComputeType(op);
  attention = analysis::AttentionCall::read(op);
  fusible = analysis::isElementwise(op, rule);
  if (op->getNumResults() == 1) {
    deferrable = deferrableFactors(op, rule);
    link = linkOperand(op);
  }
  computedOnce = analysis::isComputedOnce(op);
  readsPart = analysis::readsPart(op);
  reducesRows = analysis::reducesRows(op);
  isQuantizedDot = analysis::isQuantizedDot(op);
  isName = llvm::isa<stablehlo::ReshapeOp, stablehlo::OptimizationBarrierOp>(op) ||
           analysis::keepsPrecision(op);
  // What a body uses from outside is like an operand.
  llvm::SetVector<Value> used;
  getUsedValuesDefinedAbove(op->getRegions(), used);
  for (const auto &[value, tensor] : rule.captures) {
    used.remove(value);
    rule.operands.push_back(tensor);
  }
  captured.assign(used.begin(), used.end());
}

std::vector<const OpFacts *> OpTable::find(llvm::ArrayRef<Operation *> ops) {
  std::vector<const OpFacts *> facts(ops.size());
  std::vector<size_t> missing;
  {
    std::shared_lock lock(mutex);
    for (auto [index, op] : llvm::enumerate(ops)) {
      auto it = known.find(op);
      if (it == known.end())
        missing.push_back(index);
      else
        facts[index] = it->second.get();
    }
  }
  std::vector<std::unique_ptr<OpFacts>> made;
  for (size_t index : missing)
    made.push_back(std::make_unique<OpFacts>(ops[index]));
  if (missing.empty())
    return facts;
  std::unique_lock lock(mutex);
  for (auto [index, mine] : llvm::zip_equal(missing, made))
    facts[index] = known.try_emplace(ops[index], std::move(mine)).first->second.get();
  return facts;
}
