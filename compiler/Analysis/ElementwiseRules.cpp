//===- ElementwiseRules.cpp - ops that work element by element ------------===//

#include "compiler/Analysis/RuleBuilder.h"

#include "llvm/ADT/StringSet.h"

using namespace alpa;

/// Operands of the result's shape are split with it; scalars (a predicate, the
/// bounds of a clamp) are needed whole.
static std::optional<ShardingRule> elementwise(mlir::Operation *op) {
  RuleBuilder builder(op);
  if (op->getNumResults() == 0)
    return std::nullopt;
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getResult(0));
  for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim) {
    unsigned factor = builder.factor(shape[dim]);
    for (unsigned operand = 0; operand < op->getNumOperands(); ++operand)
      if (shapeOf(op->getOperand(operand)) == shape)
        builder.operand(operand, dim, {factor});
    for (unsigned result = 0; result < op->getNumResults(); ++result)
      if (shapeOf(op->getResult(result)) == shape)
        builder.result(result, dim, {factor});
  }
  return builder.rule;
}

/// Leading dimensions stay; a dimension that holds the parts of one element
/// (conversion between widths) is not split.
static std::optional<ShardingRule> bitcastConvert(mlir::Operation *op) {
  RuleBuilder builder(op);
  llvm::ArrayRef<int64_t> from = shapeOf(op->getOperand(0)), to = shapeOf(op->getResult(0));
  for (int64_t dim = 0, end = std::min(from.size(), to.size()); dim < end; ++dim) {
    unsigned factor = builder.factor(from[dim]);
    builder.operand(0, dim, {factor}).result(0, dim, {factor});
  }
  return builder.rule;
}

/// Every operand passes through on its own.
static std::optional<ShardingRule> passThrough(mlir::Operation *op) {
  RuleBuilder builder(op);
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    for (auto [dim, size] : llvm::enumerate(shapeOf(op->getOperand(i)))) {
      unsigned factor = builder.factor(size);
      builder.operand(i, dim, {factor}).result(i, dim, {factor});
    }
  builder.rule.forwards = true;
  return builder.rule;
}

/// What the compiler does not look into runs on whole tensors.
static std::optional<ShardingRule> opaque(mlir::Operation *op) { return RuleBuilder(op).rule; }

// Of StableHLO, without the dialect's name.
static constexpr llvm::StringLiteral kElementwise[] = {"abs",
                                                       "add",
                                                       "and",
                                                       "atan2",
                                                       "cbrt",
                                                       "ceil",
                                                       "clamp",
                                                       "compare",
                                                       "complex",
                                                       "convert",
                                                       "cosine",
                                                       "count_leading_zeros",
                                                       "divide",
                                                       "exponential",
                                                       "exponential_minus_one",
                                                       "floor",
                                                       "imag",
                                                       "is_finite",
                                                       "log",
                                                       "log_plus_one",
                                                       "logistic",
                                                       "map",
                                                       "maximum",
                                                       "minimum",
                                                       "multiply",
                                                       "negate",
                                                       "not",
                                                       "or",
                                                       "popcnt",
                                                       "power",
                                                       "real",
                                                       "reduce_precision",
                                                       "remainder",
                                                       "round_nearest_afz",
                                                       "round_nearest_even",
                                                       "rsqrt",
                                                       "select",
                                                       "shift_left",
                                                       "shift_right_arithmetic",
                                                       "shift_right_logical",
                                                       "sign",
                                                       "sine",
                                                       "sqrt",
                                                       "subtract",
                                                       "tan",
                                                       "tanh",
                                                       "xor",
                                                       "constant",
                                                       "iota"};

bool alpa::isElementwiseName(llvm::StringRef name) {
  static const llvm::StringSet<> names = [] {
    llvm::StringSet<> set;
    for (llvm::StringRef name : kElementwise)
      set.insert(name);
    return set;
  }();
  return name.consume_front("stablehlo.") && names.contains(name);
}

void alpa::addElementwiseRules(RuleTable &table) {
  for (llvm::StringRef name : kElementwise)
    table[("stablehlo." + name).str()] = elementwise;
  for (llvm::StringRef name :
       {"acos",      "acosh",      "asin",       "asinh",   "asin_acos_kernel",
        "atan",      "atanh",      "bessel_i1e", "conj",    "constant",
        "cosh",      "digamma",    "erf",        "erf_inv", "erfc",
        "is_inf",    "is_neg_inf", "is_pos_inf", "lgamma",  "next_after",
        "polygamma", "sinh",       "square",     "tan",     "zeta"})
    table[("chlo." + name).str()] = elementwise;
  table["sdy.sharding_constraint"] = elementwise;
  table["stablehlo.bitcast_convert"] = bitcastConvert;
  table["stablehlo.optimization_barrier"] = passThrough;
  for (llvm::StringRef name : {"case", "if", "custom_call", "rng_bit_generator", "rng",
                               "get_dimension_size", "create_token", "after_all"})
    table[("stablehlo." + name).str()] = opaque;
}
