//===- CallRule.h - rules that stand on calls --------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_CALLS_CALLRULE_H
#define ALPA_COMPILER_ANALYSIS_CALLS_CALLRULE_H

#include "compiler/Analysis/ShardingRule.h"
#include "dialects/Sdy/SdyOps.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "llvm/Support/Error.h"

namespace alpa::analysis {

/// On a call, `alpa.sharding_rule` is its rule as text, and `alpa.flops` its work.
inline constexpr llvm::StringLiteral kCallRule = "alpa.sharding_rule";
inline constexpr llvm::StringLiteral kCallFlops = "alpa.flops";

/// Reads a rule for an op in the notation of docs/kernels.md,
/// `... m k, k n -> ... m n reduction={k}`: names of factors for each dimension of each
/// operand and result, `...` for leading dimensions, `(h d)` for a dimension of several
/// factors. Errors name the column. A factor is split only if the op says so about all of
/// its results: others are sequential.
llvm::Expected<ShardingRule> parseCallRule(llvm::StringRef text, mlir::Operation *op);

/// Shardy's rule of an op in that notation.
llvm::Expected<std::string> toCallRule(mlir::sdy::OpShardingRuleAttr rule);

/// The rule that stands on a call (`alpa.sharding_rule`), if any; whole if it does not fit.
std::optional<ShardingRule> getCallRule(mlir::Operation *op);

/// Scales the work that stands on a call (`alpa.flops`) to a part of it.
void fitCallRule(mlir::Operation *part, mlir::Operation *whole);

/// Whether a rule may split a call: it has no side effects, and was not compiled for its shapes.
bool mayHaveCallRule(mlir::stablehlo::CustomCallOp call);

/// Takes over Shardy's rule on a call, if it has none yet and JAX says that leading dimensions are
/// independent (`num_batch_dims`): these are split. Verifies that the rule fits.
/// Emits an error if it does not.
mlir::LogicalResult importCallRule(mlir::stablehlo::CustomCallOp call);

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_CALLS_CALLRULE_H
