//===- ShardingRule.h - how an op's dimensions may be split ------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_SHARDINGRULE_H
#define ALPA_COMPILER_ANALYSIS_SHARDINGRULE_H

#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallVector.h"
#include <optional>
#include <vector>

namespace alpa::analysis {

enum class FactorKind : uint8_t {
  Parallel, // Splits operands and results alike.
  /// Splits operands; results without it are unreduced until the reducer combines them. Results
  /// that have it (gradients by example, beside one for all examples) are split alike.
  Reduction,
  Window,     // A dimension that a window slides over; not split.
  Sequential, // Must stay whole (sorted, scanned or concatenated dimension).
  /// Splits operands and results alike, on devices only: parts go round them (tokens of
  /// attention, of which each meets all).
  Ring,
};

/// What makes one result of unreduced ones. Each is a reduction that collectives
/// know; And and Or are those of booleans only.
enum class Reducer : uint8_t { Sum, Product, Maximum, Minimum, And, Or };

struct Factor {
  int64_t size = 1;
  FactorKind kind = FactorKind::Parallel;
  Reducer reducer = Reducer::Sum; // Of reductions.
};

/// A dimension is the product of its factors, major to minor; a dimension with
/// no factor has size 1 or is never split.
using DimFactors = llvm::SmallVector<unsigned, 1>;
using TensorFactors = llvm::SmallVector<DimFactors>;
/// Whether some dimension of a tensor has the factor.
bool holds(const TensorFactors &tensor, unsigned factor);

/// One op's loops. The only place that knows the op's semantics: strategies,
/// propagation, memory and batch analysis all derive from it.
struct ShardingRule {
  llvm::SmallVector<Factor> factors;
  llvm::SmallVector<TensorFactors> operands;
  llvm::SmallVector<TensorFactors> results;
  bool heavy = false; // Dot and convolution: replicated only as a last resort.
  bool leads = false; // Worth a choice of its own, though cheap (gather, scatter).
  /// Result i is operand i, whatever the other operands are (optimization_barrier).
  bool forwards = false;
  /// Operands that go into a result once (initial values, what a scatter adds to).
  /// Where a reduction is split, one device of each group brings them and the
  /// others the reducer's neutral element; with Maximum, Minimum, And and Or all may.
  llvm::SmallVector<unsigned> broughtOnce;

  /// For an op with a body of its own (while, case): the values from outside that
  /// the body uses. Others that regions use are needed whole.
  std::vector<std::pair<mlir::Value, TensorFactors>> captures;

  /// For an op with a body of its own: its work, parted by the factors
  /// that divide it, the type it is done in and whether it is a product's, and the
  /// sums that its iterations complete. Empty for other ops, whose work is divided by
  /// all factors.
  struct Work {
    double flops = 0;
    double bytes = 0;
    llvm::SmallVector<unsigned> factors;
    llvm::StringRef type = "float32";
    bool heavy = false;
  };
  struct PartialSum {
    double bytes = 0; // Of one whole result.
    double times = 0;
    llvm::SmallVector<unsigned> factors; // That split the result.
    llvm::SmallVector<unsigned> summed;  // That it is summed over.
  };
  std::vector<Work> work;
  std::vector<PartialSum> sums;

  /// Whether a result is a reduction over a factor, rather than split along it.
  bool isReduced(size_t result, unsigned factor) const;
  /// Whether a factor is a reduction in some results and splits others.
  bool isMixed(unsigned factor) const;
};

/// The rule of an op, or nothing if ops of its kind have none: the one door to
/// ShardingRuleInterface.
std::optional<ShardingRule> getShardingRule(mlir::Operation *op);

/// How dimensions of the values that a body (of a while or case) works on are made
/// of the factors of its op's rule; a value that is missing is whole. Bodies within
/// the body have factors of their own.
using BodyFactors = llvm::DenseMap<mlir::Value, TensorFactors>;
BodyFactors getBodyFactors(mlir::Operation *op);

/// Gives the ops of StableHLO, CHLO and Shardy their rules.
void registerShardingRules(mlir::DialectRegistry &registry);

/// Whether the op of that full name is a constant or computes every element of its
/// result from the elements that stand there in its operands (StableHLO only).
bool isElementwiseName(llvm::StringRef name);

/// Floating-point operations of the whole (unsplit) op, and bytes it reads and
/// writes.
double getFlops(mlir::Operation *op);
double getBytes(mlir::Operation *op);
/// A product of rows with the weights of their group, or a sum over the rows of each group, as
/// plain products in a loop: `count` runs, each with `rows` rows of one group. None where one
/// product of all rows with the weights of all groups, in which rows are zero but for those of
/// their group, does less.
struct GroupedLoop {
  int64_t rows = 0, count = 0;
};
GroupedLoop getGroupedLoop(int64_t rows, int64_t groups, bool isSum);
/// How often the operations of such a product are done, where nothing is split; those of a
/// `ragged_dot` by XLA, which multiplies rows by the weights of all groups.
double timesComputed(mlir::Operation *op);
/// Iterations of a loop that counts to a constant, as scans do; of one within another loop whose
/// counter it begins or ends with, those on average. Where the data may end it earlier, so many
/// but at most 32; 1 if nothing is counted.
double getTripCount(mlir::Operation *loop);
/// Which branch of a choice has the most FLOPs. One branch runs; which one is not known.
unsigned getLongestBranch(mlir::Operation *choice);
/// What XLA takes for too dear on a GPU to be computed again for every user.
bool isComputedOnce(mlir::Operation *op);
/// Whether it rounds to what its operand is, as JAX has it for what a checkpoint keeps: XLA leaves
/// it to the kernel that makes the operand.
bool keepsPrecision(mlir::Operation *op);
/// Whether an op computes each element of its results by itself, in any kernel.
bool isElementwise(mlir::Operation *op, const ShardingRule &rule);
/// Whether an op reads no more elements of its operand than its result has.
bool readsPart(mlir::Operation *op);
/// Whether an op reduces rows that a multiprocessor can hold: its kernel goes on with the row, so
/// that a softmax or a norm reads its input once.
bool reducesRows(mlir::Operation *op);
/// Whether a value is the memory that a call works in: bytes that nobody reads. It takes room,
/// but how much of it is written is not known.
bool isWorkspace(mlir::Value value);
/// Bits of a number, or of those of a tensor: of complex ones both parts.
unsigned getElementBits(mlir::Type type);
/// Bytes of a tensor; 0 for other types.
double getTensorBytes(mlir::Type type);
/// Element type in which the op computes, by NumPy's name ("float32"); the next best behind a
/// slash ("float8/bfloat16") where only some devices have it.
llvm::StringRef getComputeType(mlir::Operation *op);
/// The numbers of 8 bits from which a product's operand is made by a conversion and a scale for
/// all of them, or nothing.
mlir::Value getQuantized(mlir::Value operand);
/// A product of two such operands, which XLA hands to the library as one of 8 bits
/// (`xla_gpu_enable_cublaslt`, its rewriter of products).
bool isQuantizedDot(mlir::Operation *op);

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_SHARDINGRULE_H
