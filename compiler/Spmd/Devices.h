//===- Devices.h - writing what one device does ------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SPMD_DEVICES_H
#define ALPA_COMPILER_SPMD_DEVICES_H

#include "compiler/Sharding/Problem/Reshard.h"
#include "dialects/StableHLO/StableHLOOps.h"
#include "mlir/IR/Builders.h"

namespace alpa {

/// Makes the ops of a per-device program that depend on which device runs it.
/// Devices are numbered row-major in the mesh, and are replicas to StableHLO.
class DeviceBuilder {
public:
  DeviceBuilder(mlir::MLIRContext *context, llvm::ArrayRef<int64_t> meshShape)
      : builder(context), meshShape(meshShape) {}

  mlir::OpBuilder builder;
  unsigned numCollectives = 0;

  llvm::ArrayRef<int64_t> getMeshShape() const { return meshShape; }

  /// Place of this device's part in a dimension that `axes` split, as an i32 scalar.
  mlir::Value pieceIndex(llvm::ArrayRef<unsigned> axes, mlir::Location loc);
  /// First element of that part, if parts have `size` elements.
  mlir::Value pieceOffset(llvm::ArrayRef<unsigned> axes, int64_t size, mlir::Location loc);

  /// This device's part of a whole tensor.
  mlir::Value partOf(mlir::Value whole, const ShardingSpec &spec, mlir::Location loc);
  /// `value` is a part under `from`; the result is one under the step's spec.
  mlir::Value apply(const ReshardStep &step, const ShardingSpec &from, mlir::Value value);
  /// `reducer` is an op of two scalars: `stablehlo.add`.
  mlir::Value allReduce(mlir::Value value, unsigned axis, llvm::StringRef reducer);
  mlir::Value reduceScatter(mlir::Value value, unsigned axis, int64_t dim, llvm::StringRef reducer);

  /// The number in any element type.
  mlir::Value scalar(int64_t value, mlir::Type element, mlir::Location loc);
  mlir::Value splat(mlir::Value scalar, llvm::ArrayRef<int64_t> shape, mlir::Location loc);
  mlir::Value binary(llvm::StringRef name, mlir::Value lhs, mlir::Value rhs);
  mlir::Value compare(mlir::stablehlo::ComparisonDirection direction, mlir::Value lhs,
                      mlir::Value rhs);
  mlir::Value select(mlir::Value predicate, mlir::Value onTrue, mlir::Value onFalse);

private:
  void fillReducer(mlir::Region &region, llvm::StringRef name, mlir::Value like);
  mlir::Value coordinate(unsigned axis, mlir::Location loc);
  mlir::DenseIntElementsAttr groupsAlong(unsigned axis);
  mlir::RankedTensorType withDim(mlir::Value value, int64_t dim, int64_t size);

  llvm::ArrayRef<int64_t> meshShape;
  llvm::DenseMap<std::pair<mlir::Block *, unsigned>, mlir::Value> coordinates;
};

} // namespace alpa

#endif // ALPA_COMPILER_SPMD_DEVICES_H
