//===- Search.cpp - branch and bound over bucket tables -------------------===//

#include "compiler/Solver/Search.h"

#include "llvm/ADT/STLExtras.h"

#include <numeric>

using namespace alpa;

namespace {

struct Level {
  std::vector<int64_t> regrets;
  std::vector<unsigned> order; // Choices by regret.
  size_t next = 0;
  CostSum bound = 0; // Before this level's choice.
  bool placed = false;
};

} // namespace

SearchResult alpa::branchAndBound(const Buckets &buckets, Usage *usage, CostSum bound,
                                  CostSum upper,
                                  llvm::function_ref<CostSum(llvm::ArrayRef<unsigned>)> objective,
                                  llvm::function_ref<bool()> outOfTime) {
  SearchResult result;
  llvm::ArrayRef<unsigned> order = buckets.assignmentOrder();
  size_t depth = order.size();
  std::vector<unsigned> values(depth, 0);
  // A choice that has not been taken yet uses at least the least.
  if (usage) {
    usage->clear();
    std::optional<unsigned> fullest = usage->fullest();
    if (fullest && usage->at()[*fullest] > usage->limit()) {
      result.complete = true;
      return result;
    }
  }
  std::vector<Level> levels(depth + 1);
  auto enter = [&](size_t at, CostSum lower) {
    Level &level = levels[at];
    level.bound = lower;
    level.next = 0;
    level.placed = false;
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
      // With prices, the cost of a complete assignment is not its bound.
      CostSum cost = objective(values);
      if (cost < upper) {
        upper = cost;
        result.objective = cost;
        result.choices = values;
      }
    }
    if (level.placed && at < depth) {
      if (usage)
        usage->remove(order[at], values[order[at]]);
      level.placed = false;
    }
    bool descended = false;
    while (at < depth && level.next < level.order.size()) {
      unsigned v = order[at], choice = level.order[level.next++];
      if (level.regrets[choice] >= kInfinity || level.bound + level.regrets[choice] >= upper) {
        level.next = level.order.size(); // The others are no better.
        break;
      }
      values[v] = choice;
      if (usage) {
        if (!usage->fits(v, choice))
          continue;
        usage->place(v, choice);
      }
      level.placed = true;
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
