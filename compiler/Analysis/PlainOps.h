//===- PlainOps.h - short ways to make ops -----------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_ANALYSIS_PLAINOPS_H
#define ALPA_COMPILER_ANALYSIS_PLAINOPS_H

#include "compiler/Analysis/PartSizes.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"

namespace alpa::analysis {

/// Makes ops in front of another one, at its place in the source.
class PlainOps {
public:
  explicit PlainOps(mlir::Operation *op) : builder(op), loc(op->getLoc()) {}
  PlainOps(const mlir::OpBuilder &builder, mlir::Location loc) : builder(builder), loc(loc) {}

  using Shape = llvm::SmallVector<int64_t>;

  static mlir::RankedTensorType typeOf(mlir::Value value) {
    return mlir::cast<mlir::RankedTensorType>(value.getType());
  }
  mlir::RankedTensorType real(llvm::ArrayRef<int64_t> shape) {
    return mlir::RankedTensorType::get(shape, builder.getF32Type());
  }
  mlir::Value make(llvm::StringRef name, mlir::ValueRange operands, mlir::Type type,
                   llvm::ArrayRef<mlir::NamedAttribute> attributes = {}) {
    mlir::OperationState state(loc, name, operands, type, attributes);
    return builder.create(state)->getResult(0);
  }
  mlir::NamedAttribute dims(llvm::StringRef name, llvm::ArrayRef<int64_t> values) {
    return builder.getNamedAttr(name, builder.getDenseI64ArrayAttr(values));
  }
  mlir::Value binary(llvm::StringRef name, mlir::Value lhs, mlir::Value rhs) {
    return make(name, {lhs, rhs}, lhs.getType());
  }
  mlir::Value unary(llvm::StringRef name, mlir::Value value) {
    return make(name, value, value.getType());
  }
  mlir::Value convert(mlir::Value value, mlir::Type element) {
    return typeOf(value).getElementType() == element
               ? value
               : make("stablehlo.convert", value, typeOf(value).clone(element));
  }
  mlir::Value transpose(mlir::Value value, llvm::ArrayRef<int64_t> order) {
    Shape shape;
    for (int64_t dim : order)
      shape.push_back(typeOf(value).getDimSize(dim));
    return make("stablehlo.transpose", value, typeOf(value).clone(shape),
                dims("permutation", order));
  }
  mlir::Value reshape(mlir::Value value, llvm::ArrayRef<int64_t> shape) {
    return make("stablehlo.reshape", value, typeOf(value).clone(shape));
  }
  mlir::Value broadcast(mlir::Value value, llvm::ArrayRef<int64_t> shape,
                        llvm::ArrayRef<int64_t> where) {
    return make("stablehlo.broadcast_in_dim", value, typeOf(value).clone(shape),
                dims("broadcast_dimensions", where));
  }
  mlir::Value iota(mlir::RankedTensorType type, int64_t dim) {
    return make("stablehlo.iota", {}, type,
                builder.getNamedAttr("iota_dimension", builder.getI64IntegerAttr(dim)));
  }
  /// A whole number, unless elements are real.
  mlir::Value splat(double number, mlir::RankedTensorType type);
  mlir::Value select(mlir::Value predicate, mlir::Value yes, mlir::Value no) {
    return make("stablehlo.select", {predicate, yes, no}, yes.getType());
  }
  /// `size` elements of a dimension from `start` on, a scalar; and the whole with such a part.
  mlir::Value dynamicSlice(mlir::Value value, int64_t dim, mlir::Value start, int64_t size);
  mlir::Value updateSlice(mlir::Value whole, mlir::Value part, int64_t dim, mlir::Value start);
  mlir::Value reduce(mlir::Value value, llvm::ArrayRef<int64_t> over, Reducer reducer);
  mlir::Value dot(mlir::Value lhs, mlir::Value rhs, int64_t batching,
                  llvm::ArrayRef<int64_t> lhsContracting, llvm::ArrayRef<int64_t> rhsContracting);
  mlir::Value compare(mlir::stablehlo::ComparisonDirection direction, mlir::Value lhs,
                      mlir::Value rhs);

  mlir::OpBuilder builder;
  mlir::Location loc;
};

} // namespace alpa::analysis

#endif // ALPA_COMPILER_ANALYSIS_PLAINOPS_H
