//===- StableHLOOps.h - the dialect of single-device programs ----*- C++ -*-===//

#ifndef ALPA_DIALECTS_STABLEHLO_STABLEHLOOPS_H
#define ALPA_DIALECTS_STABLEHLO_STABLEHLOOPS_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "dialects/StableHLO/StableHLODialect.h.inc"
#include "dialects/StableHLO/StableHLOEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/StableHLO/StableHLOAttrs.h.inc"
#define GET_TYPEDEF_CLASSES
#include "dialects/StableHLO/StableHLOTypes.h.inc"
namespace mlir::stablehlo {
/// Element types are equal, and sizes as far as they are known.
bool allTypesAgree(TypeRange a, TypeRange b);
} // namespace mlir::stablehlo

#define GET_OP_CLASSES
#include "dialects/StableHLO/StableHLOOps.h.inc"

#endif // ALPA_DIALECTS_STABLEHLO_STABLEHLOOPS_H
