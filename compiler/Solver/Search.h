//===- Search.h - branch and bound over bucket tables ------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_SEARCH_H
#define ALPA_COMPILER_SOLVER_SEARCH_H

#include "compiler/Solver/Buckets.h"
#include "compiler/Solver/Memory.h"

namespace alpa {

struct SearchResult {
  bool complete = false;                        // Everything cheaper than the answer was ruled out.
  std::optional<std::vector<unsigned>> choices; // Better ones than known before.
  CostSum objective = 0;
};

/// Depth first in the buckets' order of assignment, least regret first. `bound`
/// is what `Buckets::eliminate` found less the prices of the whole limit; it
/// bounds costs with the graph's constant left out. Finds only solutions cheaper
/// than `upper`. `usage` may be null when memory does not count.
SearchResult branchAndBound(const Graph &graph, const Buckets &buckets, Usage *usage, CostSum bound,
                            CostSum upper, const std::function<bool()> &outOfTime);

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_SEARCH_H
