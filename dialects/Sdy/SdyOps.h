//===- SdyOps.h - shardings as JAX and XLA write them ------------*- C++ -*-===//

#ifndef ALPA_DIALECTS_SDY_SDYOPS_H
#define ALPA_DIALECTS_SDY_SDYOPS_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "dialects/Sdy/SdyDialect.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Sdy/SdyAttrs.h.inc"
#define GET_OP_CLASSES
#include "dialects/Sdy/SdyOps.h.inc"

#endif // ALPA_DIALECTS_SDY_SDYOPS_H
