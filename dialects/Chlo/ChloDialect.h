//===- ChloDialect.h - client ops that JAX emits -----------------*- C++ -*-===//

#ifndef ALPA_DIALECTS_CHLO_CHLODIALECT_H
#define ALPA_DIALECTS_CHLO_CHLODIALECT_H

#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

#include "dialects/Chlo/ChloDialect.h.inc"

#define GET_OP_CLASSES
#include "dialects/Chlo/ChloOps.h.inc"

#endif // ALPA_DIALECTS_CHLO_CHLODIALECT_H
