//===- RuleBuilder.h - writing sharding rules --------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_RULEBUILDER_H
#define ALPA_COMPILER_ANALYSIS_RULEBUILDER_H

#include "compiler/Analysis/ShardingRuleInterface.h"
#include "mlir/IR/BuiltinTypes.h"

namespace alpa::analysis {

/// Shape of a tensor; empty for other types.
llvm::ArrayRef<int64_t> shapeOf(mlir::Value value);

/// A rule under construction: every dimension starts without factors, that is
/// never split.
class RuleBuilder {
public:
  explicit RuleBuilder(mlir::Operation *op);

  unsigned factor(int64_t size, FactorKind kind = FactorKind::Parallel);
  /// A reduction with that reducer, a sequential loop if there is none.
  unsigned reduction(int64_t size, std::optional<Reducer> reducer);
  RuleBuilder &operand(unsigned index, int64_t dim, DimFactors factors);
  RuleBuilder &result(unsigned index, int64_t dim, DimFactors factors);

  ShardingRule rule;
  mlir::Operation *op;
};

/// What sums of that tensor's elements are: booleans add up by or.
Reducer sumOf(mlir::Value value);
/// The reducer of a body that only combines its two arguments, if collectives
/// know it.
std::optional<Reducer> reducerOf(mlir::Region &body);

/// A dimension that a window slides over, as `in` elements on one side and `out`
/// windows on the other.
struct WindowDim {
  int64_t in = 1, out = 1;
  int64_t size = 1, stride = 1;
  int64_t padLow = 0, padHigh = 0;
  int64_t baseDilation = 1, windowDilation = 1;

  /// Whether every window lies in a tile of its own: window i takes nothing but the
  /// elements from i * stride to (i + 1) * stride.
  bool isTiled() const;
  /// The factors of the two sides; the loop over windows is parallel if they are
  /// tiled and a window loop otherwise.
  std::pair<DimFactors, DimFactors> factors(RuleBuilder &builder) const;
};

template <typename ConcreteOp, auto function>
struct RuleModel
    : ShardingRuleInterface::ExternalModel<RuleModel<ConcreteOp, function>, ConcreteOp> {
  ShardingRule getShardingRule(mlir::Operation *op) const { return function(op); }
};

/// What the compiler does not look into, or cannot split, runs on whole tensors.
template <typename ConcreteOp>
struct WholeModel : ShardingRuleInterface::ExternalModel<WholeModel<ConcreteOp>, ConcreteOp> {
  ShardingRule getShardingRule(mlir::Operation *op) const { return RuleBuilder(op).rule; }
  static bool runsWhole() { return true; }
};

template <auto function, typename... Ops> void attachRule(mlir::MLIRContext &context) {
  (Ops::template attachInterface<RuleModel<Ops, function>>(context), ...);
}
template <typename... Ops> void attachWhole(mlir::MLIRContext &context) {
  (Ops::template attachInterface<WholeModel<Ops>>(context), ...);
}

/// Operands of the result's shape are split with it; scalars (a predicate, the
/// bounds of a clamp) are needed whole.
ShardingRule elementwiseRule(mlir::Operation *op);
/// Operands and results of result 0's rank are split alike but for the dimensions
/// that `isTouched` names, which stay whole. Scalars have no dimensions.
ShardingRule untouchedRule(mlir::Operation *op, llvm::function_ref<bool(unsigned)> isTouched);
/// Works on whole vectors, matrices, ... along the last `inner` dimensions.
ShardingRule innermostRule(mlir::Operation *op, size_t inner);

void attachElementwiseRules(mlir::MLIRContext &context);
void attachShapeRules(mlir::MLIRContext &context);
void attachSliceRules(mlir::MLIRContext &context);
void attachContractionRules(mlir::MLIRContext &context);
void attachReductionRules(mlir::MLIRContext &context);
void attachIndexingRules(mlir::MLIRContext &context);
void attachCallRules(mlir::MLIRContext &context);
void attachLoopRules(mlir::MLIRContext &context);
void attachChloRules(mlir::MLIRContext &context);
void attachGroupedRules(mlir::MLIRContext &context);
void attachMapRules(mlir::MLIRContext &context);
void attachSdyRules(mlir::MLIRContext &context);

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_RULEBUILDER_H
