//===- OpSplit.h - one strategy of an op, read off its specs -----*- C++ -*-===//

#ifndef ALPA_COMPILER_SPMD_OPSPLIT_H
#define ALPA_COMPILER_SPMD_OPSPLIT_H

#include "compiler/Analysis/ShardingRule.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "llvm/Support/Error.h"
#include <optional>

namespace alpa::spmd {

/// Which mesh axes split each factor of an op's rule, major first, and the specs
/// that follow: of every operand and result, and of unreduced results before their
/// sums are completed.
struct OpSplit {
  llvm::SmallVector<llvm::SmallVector<unsigned, 2>> factorAxes;
  llvm::SmallVector<ShardingSpec> operands, results, unreduced;
  llvm::SmallVector<ShardingSpec> captures; // Of the rule's, in its order.
  /// Axes of split reductions, rising: every result is unreduced over them that they do not split.
  struct SummedAxis {
    unsigned axis = 0;
    analysis::Reducer reducer = analysis::Reducer::Sum;
    bool operator<(const SummedAxis &other) const { return axis < other.axis; }
  };
  llvm::SmallVector<SummedAxis, 2> summedAxes;
  llvm::SmallVector<SummedAxis, 2> summedAxesOf(size_t result) const;
};

/// Every axis of more than one device, in the order of a spec without the others.
ShardingSpec withoutOnes(const ShardingSpec &spec, llvm::ArrayRef<int64_t> meshShape);
/// For values that are no tensors, a spec without dimensions.
size_t specRank(mlir::Value value);

/// The one strategy that has exactly these specs. Axes of a split reduction may
/// end a dimension of a result: its sum is scattered there. The error names the
/// first operand or result that differs, with both specs. `captures` only say how
/// factors are split that nothing else has; the split has what follows for them.
llvm::Expected<OpSplit> readSplit(const analysis::ShardingRule &rule,
                                  llvm::ArrayRef<ShardingSpec> operands,
                                  llvm::ArrayRef<ShardingSpec> results,
                                  llvm::ArrayRef<ShardingSpec> captures,
                                  llvm::ArrayRef<int64_t> meshShape);

/// A strategy that makes the results (if given) as nearly as the rule can; the
/// operands say how reductions are split, and everything where no results are
/// given. Larger operands count first.
OpSplit nearestSplit(mlir::Operation *op, const analysis::ShardingRule &rule,
                     llvm::ArrayRef<ShardingSpec> operands,
                     std::optional<llvm::ArrayRef<ShardingSpec>> results,
                     llvm::ArrayRef<ShardingSpec> captures, llvm::ArrayRef<int64_t> meshShape);

/// A value in a body whose op is split so.
ShardingSpec specInBody(const analysis::TensorFactors &tensor, const OpSplit &split);

/// Holds whole computations in its regions: while, case, if.
bool isControlFlow(mlir::Operation *op);
/// The region's arguments are the op's operands (while).
bool carriesOperands(mlir::Operation *op);

} // namespace alpa::spmd

#endif // ALPA_COMPILER_SPMD_OPSPLIT_H
