//===- LagrangianBound.h - bounds by prices on the bytes of time points --*- C++ -*-===//
//
// Lagrange multipliers turn the memory limit into costs: a choice pays for its
// bytes at every time point of its life, and the priced optimum less the price of
// the whole limit bounds the true optimum from below. Prices are fractions with
// a fixed denominator and payments are rounded down, so the bound holds exactly.
//
// Prices follow an average of what the priced answers use beyond the limit.
// Source: Barahona and Anbil, "The volume algorithm: producing primal solutions
// with a subgradient method" (2000).
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_SEARCH_LAGRANGIANBOUND_H
#define ALPA_COMPILER_SOLVER_SEARCH_LAGRANGIANBOUND_H

#include "compiler/Solver/Search/BucketElimination.h"
#include "compiler/Solver/Search/CostShifting.h"

namespace alpa::solver {

class LagrangianBound {
public:
  /// Elimination, if its tables are small, solves every priced problem exactly;
  /// otherwise it is bounded by shifting costs.
  explicit LagrangianBound(const Graph &graph, int64_t limitBytes, Stop stop = nullptr);

  /// Cost per byte at each time point, to begin with.
  void startFrom(llvm::ArrayRef<double> prices);

  /// Bounds the priced problem and moves the prices. Choices that no solution
  /// below `upper` (with the graph's constant) can make use of are removed.
  /// False if there turns out to be none. Bounds hold if it is stopped.
  bool step(CostSum upper, Stop stop = nullptr);

  /// The best bound yet, with the graph's constant; none before the first step.
  CostSum lower() const { return best; }
  /// What answers the priced problem of the last step best.
  llvm::ArrayRef<unsigned> values() const { return taken; }
  /// How often each choice was taken lately, variable by variable.
  llvm::ArrayRef<float> shares() const { return average; }
  /// What each choice of a variable pays at the prices of the last step; none if
  /// it uses no memory.
  llvm::ArrayRef<int64_t> paid(unsigned variable) const { return payments[variable]; }
  std::vector<double> pricePerByte() const;
  /// Whether steps have become too small to promise much.
  bool isStuck() const { return pace < kLeastPace; }
  /// Makes steps large again, if not as large as at first.
  void restart();
  size_t numRemoved() const { return dual.numRemoved(); }
  /// Combinations or table entries that one step goes through.
  double stepWork() const { return work; }
  /// That `restricted` goes through.
  double restrictWork() const { return kSweeps * dual.sweepWork(); }

  /// What may still be part of a solution below `upper`, seen from the best
  /// prices. Costs are shifted, those of solutions are as in the graph. Empty if
  /// no such solution is left. `followed` are choices that are renumbered.
  std::optional<Graph> restricted(CostSum upper, std::vector<unsigned> *followed = nullptr,
                                  Stop stop = nullptr);

private:
  static constexpr double kLeastPace = 2e-3;
  static constexpr unsigned kSweeps = 20; // Before choices are ruled out.

  void pay();
  CostSum priceOfLimit() const;
  bool boundPriced(CostSum upper, CostSum &bound, Stop stop);
  void measure();
  void move(CostSum upper);

  const Graph &graph;
  int64_t limit;
  CostShifting dual;
  std::optional<BucketElimination> buckets;
  std::vector<std::vector<int64_t>> payments;
  std::vector<int64_t> prices, bestPrices; // Multiples of 2^-shift.
  unsigned shift = 0;
  std::vector<double> excess, meanExcess; // Bytes above the limit by time point.
  std::vector<unsigned> taken;
  std::vector<float> average;
  CostSum best = 0;
  double work = 0;
  double pace = 0.5;
  unsigned steps = 0, failures = 0;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_SEARCH_LAGRANGIANBOUND_H
