//===- Search.h - branch and bound over bucket tables ------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_SEARCH_SEARCH_H
#define ALPA_COMPILER_SOLVER_SEARCH_SEARCH_H

#include "compiler/Solver/Search/BucketElimination.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <optional>

namespace alpa {

struct SearchResult {
  bool complete = false;                        // Everything cheaper than the answer was ruled out.
  std::optional<std::vector<unsigned>> choices; // Better ones than known before.
  CostSum objective = 0;
};

/// Depth first in the buckets' order of assignment, least regret first. `bound`
/// is what `Buckets::eliminate` found, with all constants, so that it bounds what
/// `objective` says about complete assignments. Finds only solutions cheaper than
/// `upper`.
SearchResult branchAndBound(const Buckets &buckets, CostSum bound, CostSum upper,
                            llvm::function_ref<CostSum(llvm::ArrayRef<unsigned>)> objective,
                            llvm::function_ref<bool()> outOfTime);

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_SEARCH_SEARCH_H
