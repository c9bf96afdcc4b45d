//===- SumTerms.h - the terms of a sum as a tensor ----------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SPMD_SUMTERMS_H
#define ALPA_COMPILER_SPMD_SUMTERMS_H

#include "dialects/Alpa/AlpaDialect.h"
#include "mlir/IR/Builders.h"

namespace alpa {

/// Mesh axes that split a dimension, major first.
using Axes = llvm::SmallVector<unsigned, 2>;

/// A tensor with leading dimensions over which it is to be summed, and the mesh axes
/// that split each of them to single elements.
struct Terms {
  mlir::Value value;
  llvm::SmallVector<int64_t> sizes;
  llvm::SmallVector<Axes> axes;

  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
};

/// Builds an op that sums over devices (a dot, a reduction, a scatter or a convolution)
/// anew, so that its terms are a tensor. `spec` is that of its result, `mesh` its mesh.
/// Fails with an error of the op if its operands are not split as the spec says.
mlir::FailureOr<Terms> makeTerms(mlir::OpBuilder &builder, mlir::Operation *op,
                                 const ShardingSpec &spec, MeshAttr mesh);

/// The spec of terms: their axes split leading dimensions.
ShardingSpec withLeading(llvm::ArrayRef<Axes> leading, const ShardingSpec &spec);

/// How an op wants an operand.
ShardingSpec usedSpec(mlir::Operation *op, unsigned operand);

/// Gives a new op the phase, layer and stage of another, and its result a spec.
mlir::Operation *placeLike(mlir::Operation *made, mlir::Operation *origin,
                           const ShardingSpec &spec);

/// The same op on other operands, whose result has another shape.
mlir::Operation *cloneAs(mlir::OpBuilder &builder, mlir::Operation *op, mlir::ValueRange operands,
                         llvm::ArrayRef<int64_t> shape, const ShardingSpec &spec);

} // namespace alpa

#endif // ALPA_COMPILER_SPMD_SUMTERMS_H
