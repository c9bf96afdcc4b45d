//===- Prices.h - prices on the bytes of each moment -------------*- C++ -*-===//
//
// Lagrange multipliers turn the memory limit into costs: a choice pays for its
// bytes at every moment of its life, and the priced optimum less the price of
// the whole limit bounds the true optimum from below. Prices are fractions with
// a fixed denominator and payments are rounded down, so the bound holds exactly.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_PRICES_H
#define ALPA_COMPILER_SOLVER_PRICES_H

#include "compiler/Solver/Buckets.h"
#include "compiler/Solver/Dual.h"
#include "compiler/Solver/Memory.h"

namespace alpa {

class PriceSearch {
public:
  /// With `buckets` (small tables) every priced problem is solved exactly,
  /// otherwise bounded by shifting costs.
  PriceSearch(const Graph &graph, Usage &usage, Buckets *buckets,
              llvm::function_ref<bool()> outOfTime);

  /// Moves prices towards the best bound; repairs and improves what the priced
  /// problems answer. `lower` and `upper` leave the graph's constant out.
  void run(llvm::function_ref<bool()> stop);

  CostSum lower = 0;
  CostSum upper = 0;
  std::vector<unsigned> best; // Empty if nothing within the limit was found.
  bool proven = false;        // That `upper` cannot be beaten.
  CostSum acceptable = 0;     // Difference of the two at which to stop.

  /// A bound on costs in a graph that holds what may still beat `upper`, with
  /// the best prices in its costs. `offset` is the price of the whole limit.
  Graph remaining(CostSum &offset);

private:
  std::vector<std::vector<int64_t>> payments() const;
  CostSum offset() const;
  bool solvePriced(CostSum &bound, std::vector<unsigned> &values);
  void offer(std::vector<unsigned> values);
  bool step(llvm::ArrayRef<unsigned> values, CostSum bound, double pace);

  const Graph &graph;
  Usage &usage;
  Buckets *buckets;
  llvm::function_ref<bool()> outOfTime;
  Dual dual;
  LocalSearch local;
  std::vector<int64_t> prices;
};

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_PRICES_H
