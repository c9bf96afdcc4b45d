//===- StepValues.cpp - what each function of a step has to be given --------===//

#include "compiler/Schedule/StepValues.h"

using namespace mlir;
using namespace alpa;

StepValues::StepValues(SlicedModule &sliced) : numMicroBatches(sliced.numMicroBatches) {
  for (int64_t argument = 0; argument < int64_t(sliced.numArguments); ++argument) {
    Known &value = known[argument];
    value.isBatch = value.perMicroBatch = sliced.isBatch(argument);
    value.versions = value.isBatch ? Versions::Apart : Versions::Once;
  }
  forEachFunction(sliced, [&](StageFunction &function, bool isOnce) { read(function, isOnce); });
}

void StepValues::read(const StageFunction &function, bool isOnce) {
  for (const Port &port : function.outputs) {
    Known &value = known[port.id];
    value.perMicroBatch = !isOnce;
    if (port.accumulate == "last")
      value.versions = Versions::Any;
    else if (port.accumulate == "concat")
      value.versions = Versions::Apart;
    else
      value.versions = isOnce ? Versions::Once : Versions::Summed;
    value.partOf = port.partOf;
    if (port.partOf >= 0)
      known[port.partOf].parts.push_back(port.id); // `value` may have moved.
  }
}

Content StepValues::wanted(int64_t value, int64_t microBatch) const {
  const Known &info = at(value);
  bool isOnce = microBatch < 0;
  if (!info.parts.empty()) {
    Content parts;
    for (int64_t part : info.parts)
      llvm::append_range(parts, wanted(part, -1));
    llvm::sort(parts, [](const Term &a, const Term &b) { return a.value < b.value; });
    return parts;
  }
  if (!info.perMicroBatch)
    return {{value, -1, 0}};
  if (!isOnce)
    return {{value, microBatch, microBatch + 1}};
  if (info.isBatch) // Of one micro-batch; slicing refuses others.
    return {{value, 0, 1}};
  if (info.versions == Versions::Summed)
    return {{value, 0, numMicroBatches}};
  return {{value, numMicroBatches - 1, numMicroBatches}};
}

bool StepValues::isSameForAll(int64_t value) const { return at(value).versions == Versions::Any; }

bool StepValues::leavesInParts(int64_t value) const {
  const Known &info = at(value);
  return info.perMicroBatch && info.versions == Versions::Apart;
}

bool StepValues::arePartsOfOne(int64_t first, int64_t second) const {
  int64_t sum = at(first).partOf;
  return sum >= 0 && sum == at(second).partOf;
}

std::string alpa::stringify(const SlicedModule &sliced, ArrayRef<Term> content) {
  if (content.empty())
    return "zeros";
  std::string text;
  for (const Term &term : content) {
    if (!text.empty())
      text += " plus ";
    text += (sliced.isArgument(term.value) ? "argument " : "value ") + std::to_string(term.value);
    if (term.to - term.from > 1)
      text += " added up over micro-batches " + std::to_string(term.from) + " to " +
              std::to_string(term.to - 1);
    else if (term.from >= 0)
      text += " of micro-batch " + std::to_string(term.from);
  }
  return text;
}
