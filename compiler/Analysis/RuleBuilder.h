//===- RuleBuilder.h - writing sharding rules --------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_RULEBUILDER_H
#define ALPA_COMPILER_ANALYSIS_RULEBUILDER_H

#include "compiler/Analysis/ShardingRule.h"
#include "mlir/IR/BuiltinTypes.h"
#include "llvm/ADT/StringMap.h"

namespace alpa {

/// Shape of a tensor; empty for other types.
llvm::ArrayRef<int64_t> shapeOf(mlir::Value value);

/// A rule under construction: every dimension starts without factors, that is
/// never split.
class RuleBuilder {
public:
  explicit RuleBuilder(mlir::Operation *op);

  unsigned factor(int64_t size, FactorKind kind = FactorKind::Parallel);
  RuleBuilder &operand(unsigned index, int64_t dim, DimFactors factors);
  RuleBuilder &result(unsigned index, int64_t dim, DimFactors factors);

  ShardingRule rule;
  mlir::Operation *op;
};

using RuleFunction = std::optional<ShardingRule> (*)(mlir::Operation *);
using RuleTable = llvm::StringMap<RuleFunction>;

void addElementwiseRules(RuleTable &table);
void addShapeRules(RuleTable &table);
void addSliceRules(RuleTable &table);
void addContractionRules(RuleTable &table);
void addReductionRules(RuleTable &table);
void addIndexingRules(RuleTable &table);
void addLoopRules(RuleTable &table);

} // namespace alpa

#endif // ALPA_COMPILER_ANALYSIS_RULEBUILDER_H
