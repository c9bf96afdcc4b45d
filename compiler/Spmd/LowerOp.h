//===- LowerOp.h - one op on one device --------------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SPMD_LOWEROP_H
#define ALPA_COMPILER_SPMD_LOWEROP_H

#include "compiler/Spmd/Devices.h"
#include "compiler/Spmd/OpSplit.h"

namespace alpa {

/// Writes what one device does for an op without control flow: the op on parts,
/// then the collectives that complete partial sums.
class OpLowering {
public:
  OpLowering(mlir::Operation *op, const ShardingRule &rule, const OpSplit &split,
             DeviceBuilder &devices)
      : op(op), rule(rule), split(split), devices(devices), builder(devices.builder) {}

  /// `operands` are parts; fills in the parts of the results.
  mlir::LogicalResult lower(mlir::ValueRange operands, llvm::SmallVectorImpl<mlir::Value> &results);

private:
  mlir::Operation *clone(mlir::ValueRange operands);
  mlir::RankedTensorType partialType(unsigned result);
  mlir::Value iota();
  mlir::Value random(mlir::ValueRange operands);
  mlir::Value constant();
  mlir::LogicalResult gather(mlir::ValueRange operands,
                             llvm::SmallVectorImpl<mlir::Value> &results);
  mlir::LogicalResult scatter(mlir::SmallVectorImpl<mlir::Value> &operands);
  void takeOut(mlir::SmallVectorImpl<mlir::Value> &operands);
  void putBack(mlir::SmallVectorImpl<mlir::Value> &results);
  /// Axes that split dimension `dim` of operand `operand`.
  llvm::ArrayRef<unsigned> axesOf(unsigned operand, int64_t dim) const {
    return split.operands[operand].dims[dim];
  }
  /// Indices into a dimension of `size` elements that `axes` split, counted from
  /// this device's part. `component` is where index vectors hold that dimension.
  struct LocalIndices {
    mlir::Value indices, component;
  };
  LocalIndices localIndices(mlir::Value indices, int64_t vectorDim, int64_t position, int64_t size,
                            llvm::ArrayRef<unsigned> axes, bool clamps);
  mlir::Value withSafeType(mlir::Value indices);
  mlir::Value complete(mlir::Value partial, unsigned result);

  mlir::Operation *op;
  const ShardingRule &rule;
  const OpSplit &split;
  DeviceBuilder &devices;
  mlir::OpBuilder &builder;
  llvm::SmallVector<std::pair<unsigned, mlir::Value>> takenOut; // By number of operand.
};

} // namespace alpa

#endif // ALPA_COMPILER_SPMD_LOWEROP_H
