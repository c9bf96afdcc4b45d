//===- StepValues.h - what each function of a step has to be given ----------===//

#ifndef ALPA_COMPILER_SCHEDULE_STEPVALUES_H
#define ALPA_COMPILER_SCHEDULE_STEPVALUES_H

#include "compiler/Schedule/SlicedModule.h"

namespace alpa {

/// A value of micro-batches `from` up to but not including `to`, added up. What there
/// is once a step counts as micro-batch -1.
struct Term {
  int64_t value = -1, from = -1, to = 0;
  bool operator==(const Term &other) const {
    return value == other.value && from == other.from && to == other.to;
  }
};

/// What a buffer is: the sum of its terms, which rise and neither overlap nor touch;
/// zeros without any.
using Content = llvm::SmallVector<Term, 1>;

/// "value 7 of micro-batch 2", "value 7 added up over micro-batches 0 to 3".
std::string stringify(const SlicedModule &sliced, llvm::ArrayRef<Term> content);

/// What functions take and give, from the sliced module alone.
class StepValues {
public:
  explicit StepValues(SlicedModule &sliced);

  /// What an argument with this value has to be in a run for `microBatch` (-1 in a
  /// barrier or an update), or a result of the step.
  Content wanted(int64_t value, int64_t microBatch) const;
  /// Whether any micro-batch's version will do instead: a value that does not depend
  /// on the batch.
  bool isSameForAll(int64_t value) const;
  /// Whether a value leaves the step once for each micro-batch.
  bool leavesInParts(int64_t value) const;
  /// Whether two different values may be added up: parts of one sum of stages.
  bool arePartsOfOne(int64_t first, int64_t second) const;

private:
  /// How the versions of a value of micro-batches become one.
  enum class Versions : uint8_t { Once, Summed, Any, Apart };
  struct Known {
    bool perMicroBatch = false, isBatch = false;
    Versions versions = Versions::Once;
    int64_t partOf = -1;                 // The sum of stages that this adds to.
    llvm::SmallVector<int64_t, 0> parts; // Of a sum of stages.
  };
  void read(const StageFunction &function, bool isOnce);
  const Known &at(int64_t value) const { return known.find(value)->second; }

  int64_t numMicroBatches;
  llvm::DenseMap<int64_t, Known> known;
};

} // namespace alpa

#endif // ALPA_COMPILER_SCHEDULE_STEPVALUES_H
