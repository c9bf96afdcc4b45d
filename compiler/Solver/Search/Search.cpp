//===- Search.cpp - branch and bound over bucket tables -------------------===//

#include "compiler/Solver/Search/Search.h"

#include "llvm/ADT/STLExtras.h"

#include <numeric>

using namespace alpa;

namespace {

struct Level {
  std::vector<int64_t> regrets;
  std::vector<unsigned> order; // Choices by regret.
  size_t next = 0;
  CostSum bound = 0; // Before this level's choice.
};

} // namespace

SearchResult alpa::branchAndBound(const Buckets &buckets, CostSum bound, CostSum upper,
                                  llvm::function_ref<CostSum(llvm::ArrayRef<unsigned>)> objective,
                                  llvm::function_ref<bool()> outOfTime) {
  SearchResult result;
  llvm::ArrayRef<unsigned> order = buckets.assignmentOrder();
  size_t depth = order.size();
  std::vector<unsigned> values(depth, 0);
  std::vector<Level> levels(depth + 1);
  auto enter = [&](size_t at, CostSum lower) {
    Level &level = levels[at];
    level.bound = lower;
    level.next = 0;
    if (at == depth)
      return;
    buckets.regrets(order[at], values, level.regrets);
    level.order.resize(level.regrets.size());
    std::iota(level.order.begin(), level.order.end(), 0);
    llvm::sort(level.order, [&](unsigned x, unsigned y) {
      return std::tie(level.regrets[x], x) < std::tie(level.regrets[y], y);
    });
  };
  enter(0, bound);
  uint64_t steps = 0;
  for (size_t at = 0;;) {
    if ((++steps & 0xff) == 0 && outOfTime())
      return result;
    Level &level = levels[at];
    if (at == depth) {
      CostSum cost = objective(values);
      if (cost < upper) {
        upper = cost;
        result.objective = cost;
        result.choices = values;
      }
    }
    bool descended = false;
    while (at < depth && level.next < level.order.size()) {
      unsigned v = order[at], choice = level.order[level.next++];
      if (level.regrets[choice] >= kInfinity || level.bound + level.regrets[choice] >= upper) {
        level.next = level.order.size(); // The others are no better.
        break;
      }
      values[v] = choice;
      enter(at + 1, level.bound + level.regrets[choice]);
      ++at;
      descended = true;
      break;
    }
    if (descended)
      continue;
    if (at == 0) {
      result.complete = true;
      return result;
    }
    --at;
  }
}
