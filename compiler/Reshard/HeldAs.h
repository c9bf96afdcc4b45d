//===- HeldAs.h - how programs hold their buffers ----------------*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_HELDAS_H
#define ALPA_COMPILER_RESHARD_HELDAS_H

#include "dialects/Alpa/AlpaDialect.h"

#include "llvm/ADT/DenseMap.h"

namespace alpa {

/// The sharding of each buffer of the programs, from the op that makes it.
class HeldAs {
public:
  explicit HeldAs(mlir::ModuleOp module) : symbols(module) {}

  /// Null if nothing says it.
  ShardingAttr operator()(mlir::Value buffer);

private:
  mlir::SymbolTable symbols;
  llvm::DenseMap<mlir::Value, ShardingAttr> sums; // Of accumulated buffers.
};

/// Bytes of one element on the wire, as NumPy has it; 0 if the type has no size.
int64_t bytesOfElement(mlir::Type element);

} // namespace alpa

#endif // ALPA_COMPILER_RESHARD_HELDAS_H
