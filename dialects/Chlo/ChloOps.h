//===- ChloOps.h - functions beside StableHLO that JAX emits -----*- C++ -*-===//

#ifndef ALPA_DIALECTS_CHLO_CHLOOPS_H
#define ALPA_DIALECTS_CHLO_CHLOOPS_H

#include "dialects/StableHLO/StableHLOOps.h"

#include "dialects/Chlo/ChloDialect.h.inc"
#define GET_ATTRDEF_CLASSES
#include "dialects/Chlo/ChloAttrs.h.inc"
#define GET_OP_CLASSES
#include "dialects/Chlo/ChloOps.h.inc"

#endif // ALPA_DIALECTS_CHLO_CHLOOPS_H
