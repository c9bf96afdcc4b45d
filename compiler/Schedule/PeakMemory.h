//===- PeakMemory.h - the most bytes that devices need for a step --*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_PEAKMEMORY_H
#define ALPA_COMPILER_SCHEDULE_PEAKMEMORY_H

#include "compiler/Schedule/ProgramOrder.h"
#include "compiler/Schedule/SlicedModule.h"

namespace alpa::schedule {

/// What a program promises in `peak_bytes`, if it does.
std::optional<int64_t> promisedBytes(ProgramOp program);
void promiseBytes(ProgramOp program, int64_t bytes);

/// The most memory of a device of one mesh.
struct PeakMemory {
  int64_t bytes = 0;
  /// The first instruction that needs more than the program's `peak_bytes`, if any.
  mlir::Operation *exceeds = nullptr;
  int64_t exceedingBytes = 0;
  /// The largest buffers there: bytes and the instruction that made each.
  llvm::SmallVector<std::pair<int64_t, mlir::Operation *>> largest;
};

/// For each program, however long its runs and transfers take: state that the step is
/// given counts from the beginning, other buffers from the instruction that makes them
/// until they are freed and, if they were sent, until it is certain that they were
/// received (another message says so, or a channel of `capacity` would be full). What
/// the search foresaw that a function holds besides its arguments and results counts
/// while it runs. A result takes the buffer of an argument of its form that is freed
/// next and was never sent, and a sum that of its left operand. A term that a function
/// adds to a sum itself, as the runtime has it, takes no buffer.
std::vector<PeakMemory> peakMemory(const ProgramTable &table, SlicedModule &sliced,
                                   llvm::ArrayRef<Place> places, int64_t capacity);

} // namespace alpa::schedule

#endif // ALPA_COMPILER_SCHEDULE_PEAKMEMORY_H
