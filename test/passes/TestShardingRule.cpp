//===- TestShardingRule.cpp - print rules and strategies for tests --------===//

#include "compiler/Analysis/ShardingRuleInterface.h"
#include "compiler/Sharding/Problem/Strategies.h"
#include "test/passes/Passes.h"
#include "llvm/ADT/StringExtras.h"

namespace alpa {
#define GEN_PASS_DEF_TESTSHARDINGRULE
#define GEN_PASS_DEF_TESTSTRATEGIES
#include "test/passes/Passes.h.inc"
} // namespace alpa

using namespace alpa;
using namespace mlir;
using analysis::TensorFactors;

static std::string letter(unsigned factor) {
  return factor < 26 ? std::string(1, static_cast<char>('a' + factor))
                     : "f" + std::to_string(factor);
}

static std::string print(const TensorFactors &tensor) {
  auto dims = llvm::map_range(tensor, [](const analysis::DimFactors &dim) {
    return dim.empty() ? "-" : llvm::join(llvm::map_range(dim, letter), ".");
  });
  return "[" + llvm::join(dims, ", ") + "]";
}

static std::string print(const analysis::ShardingRule &rule) {
  auto tensors = [](llvm::ArrayRef<TensorFactors> list) {
    return llvm::join(
        llvm::map_range(list, [](const TensorFactors &tensor) { return print(tensor); }), ", ");
  };
  std::string text = "(" + tensors(rule.operands) + ")";
  if (!rule.captures.empty())
    text +=
        " captures " +
        tensors(llvm::map_to_vector(rule.captures, [](const auto &item) { return item.second; }));
  text += " -> " + tensors(rule.results) + " {";
  constexpr const char *kKinds[] = {"", " reduction", " window", " sequential", " ring"};
  constexpr const char *kReducers[] = {"", " product", " maximum", " minimum", " and", " or"};
  for (auto [i, factor] : llvm::enumerate(rule.factors)) {
    text += std::string(i ? ", " : "") + letter(i) + " = " + std::to_string(factor.size) +
            kKinds[static_cast<size_t>(factor.kind)];
    if (factor.kind == analysis::FactorKind::Reduction)
      text += kReducers[static_cast<size_t>(factor.reducer)];
  }
  text += "}";
  if (!rule.broughtOnce.empty())
    text += " once " + llvm::join(llvm::map_range(rule.broughtOnce,
                                                  [](unsigned i) { return std::to_string(i); }),
                                  ", ");
  return text + (rule.heavy ? " heavy" : "");
}

namespace {

struct TestShardingRule : public alpa::impl::TestShardingRuleBase<TestShardingRule> {
  using TestShardingRuleBase::TestShardingRuleBase;

  /// Prints what each op of the dialects whose rules are kept here has.
  void printCoverage() {
    for (RegisteredOperationName name : getContext().getRegisteredOperations()) {
      if (!llvm::is_contained({"stablehlo", "chlo"}, name.getDialectNamespace()))
        continue;
      const char *kind = "none";
      if (name.hasTrait<OpTrait::IsTerminator>())
        kind = "terminator";
      else if (auto *rules = name.getInterface<analysis::ShardingRuleInterface>())
        kind = rules->runsWhole() ? "whole" : "split";
      llvm::outs() << kind << ' ' << name.getStringRef() << '\n';
    }
  }

  void runOnOperation() override {
    if (coverage)
      return printCoverage();
    getOperation().walk([](Operation *op) {
      if (op->hasTrait<OpTrait::IsTerminator>() || op->getNumResults() == 0 ||
          op->getParentOp()->getName().getStringRef() != "func.func")
        return;
      if (std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op))
        op->emitRemark(print(*rule));
      else
        op->emitRemark("no rule");
    });
  }
};

struct TestStrategies : public alpa::impl::TestStrategiesBase<TestStrategies> {
  using TestStrategiesBase::TestStrategiesBase;

  void runOnOperation() override {
    llvm::SmallVector<int64_t> shape(meshShape.begin(), meshShape.end());
    getOperation().walk([&](Operation *op) {
      std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
      if (!rule || (!rule->heavy && !rule->leads) || op->getNumResults() == 0)
        return;
      auto result = llvm::dyn_cast<RankedTensorType>(op->getResult(0).getType());
      if (!result) // A token.
        return;
      sharding::RuleProjection projection(*rule, shape);
      for (const sharding::Strategy &strategy :
           sharding::enumerateStrategies(*rule, result.getShape(), shape)) {
        llvm::SmallVector<std::string> operands;
        for (const TensorFactors &tensor : rule->operands)
          operands.push_back(
              projection.toSpec(tensor, strategy.axes).unpack(tensor.size(), shape.size()).str());
        PackedSpec spec = projection.toSpec(rule->results[0], strategy.axes);
        std::string text =
            "(" + llvm::join(operands, ", ") + ") -> " +
            sharding::scatteredSpec(spec, strategy).unpack(result.getRank(), shape.size()).str();
        double bytes =
            analysis::getTensorBytes(result) / static_cast<double>(spec.numPieces(shape));
        for (bool scatters : {true, false})
          for (unsigned axis = 0; axis < shape.size(); ++axis) {
            int16_t factor = strategy.axes.factor[axis];
            if (factor < 0 || rule->factors[factor].kind != analysis::FactorKind::Reduction ||
                scatters != (strategy.scatter[axis] >= 0))
              continue;
            text += std::string(scatters ? " reduce-scatter " : " all-reduce ") +
                    std::to_string(axis) + " of " + std::to_string(static_cast<int64_t>(bytes));
            if (scatters)
              bytes /= static_cast<double>(shape[axis]);
          }
        op->emitRemark(text);
      }
    });
  }
};

} // namespace
