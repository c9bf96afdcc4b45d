//===- TraceValues.h - every run gets the values it takes ---------*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_TRACEVALUES_H
#define ALPA_COMPILER_SCHEDULE_TRACEVALUES_H

#include "compiler/Schedule/ProgramOrder.h"
#include "compiler/Schedule/StepValues.h"

namespace alpa {

/// Follows what every buffer holds through all programs in the order of `places`:
/// which value, of which micro-batches, held how. Fails at the first instruction that
/// takes something else than the sliced module says (alpa_programs_c4, c5 and c7).
mlir::LogicalResult traceValues(const ProgramTable &table, SlicedModule &sliced,
                                llvm::ArrayRef<Place> places);

} // namespace alpa

#endif // ALPA_COMPILER_SCHEDULE_TRACEVALUES_H
