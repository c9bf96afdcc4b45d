//===- ChannelCapacity.cpp - how many sends may be underway ---------------===//
//
// Programs always end in the same way whichever mesh is faster, and end with a larger
// capacity if they do with a smaller one: the least one is found by halving.
//
//===----------------------------------------------------------------------===//

#include "compiler/Schedule/ChannelCapacity.h"

#include "compiler/Schedule/ProgramOrder.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

/// The most messages of a channel, which hold all that it carries; at least 1.
static int64_t mostMessages(const ProgramTable &table) {
  std::vector<int64_t> messages(table.numChannels + 1, 0);
  messages.back() = 1;
  for (const Transfer &transfer : table.transfers)
    ++messages[transfer.channel];
  return *llvm::max_element(messages);
}

std::optional<int64_t> alpa::leastChannelCapacity(const ProgramTable &table) {
  auto ends = [&](int64_t capacity) { return ProgramOrder(table, capacity).run(); };
  int64_t low = 1, high = mostMessages(table);
  if (!ends(high))
    return std::nullopt;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (ends(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}
