//===- StackedRows.h - tensors made of rows of a dimension -----*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_STACKEDROWS_H
#define ALPA_COMPILER_IMPORT_STACKEDROWS_H

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinAttributes.h"

namespace alpa::importer {

/// Rows [start, start + size) of a dimension: the value itself, operands of the
/// concatenation that it is, or a slice with the given attributes.
mlir::Value rowsOf(mlir::OpBuilder &builder, mlir::Value whole, int64_t dim, int64_t start,
                   int64_t size, mlir::DictionaryAttr attributes, mlir::Location loc);

/// The one row of dimension 0 that a slice takes, all of its other dimensions; nothing if it
/// is not so.
std::optional<int64_t> takenRow(mlir::Operation *op);

/// A concatenation of single rows along dimension 0.
bool isStack(mlir::Operation *op);

} // namespace alpa::importer

#endif // ALPA_COMPILER_IMPORT_STACKEDROWS_H
