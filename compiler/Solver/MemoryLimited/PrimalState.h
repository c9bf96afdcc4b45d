//===- PrimalState.h - choices under change ---------------------*- C++ -*-===//
//
// A graph in flat arrays, with the choices taken and the memory they use, for
// search that changes many choices many times.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_MEMORYLIMITED_PRIMALSTATE_H
#define ALPA_COMPILER_SOLVER_MEMORYLIMITED_PRIMALSTATE_H

#include "compiler/Solver/MemoryLimited/LocalSearch.h"
#include "compiler/Solver/MemoryLimited/LocalTables.h"

namespace alpa::solver {

/// Costs of a graph as doubles; forbidden ones are `kBlocked`.
class FlatCosts {
public:
  /// An edge as one of its ends sees it: a row for every choice of the other.
  struct Arc {
    unsigned other;
    const double *rows;
  };

  explicit FlatCosts(const Graph &graph);

  unsigned count() const { return sizes.size(); }
  /// What choices cost that are allowed but not chosen well.
  double typical() const { return typicalCost; }
  unsigned size(unsigned variable) const { return sizes[variable]; }
  const double *costs(unsigned variable) const { return own.data() + firsts[variable]; }
  llvm::ArrayRef<Arc> arcs(unsigned variable) const {
    return llvm::ArrayRef(allArcs).slice(firstArc[variable],
                                         firstArc[variable + 1] - firstArc[variable]);
  }

private:
  std::vector<unsigned> sizes;
  std::vector<size_t> firsts, firstArc;
  std::vector<double> own, tables;
  std::vector<Arc> allArcs;
  double typicalCost = 0;
};

/// Complete choices, which may break the limit or take forbidden pairs.
class PrimalState {
public:
  PrimalState(const FlatCosts &costs, const Usage &usage);

  void load(llvm::ArrayRef<unsigned> choices);
  /// Changes one of several choices; all together change the cost by what is
  /// then told (step by step, forbidden pairs would spoil the sum).
  void move(unsigned variable, unsigned choice);
  void addToCost(double change) { total += change; }
  unsigned at(unsigned variable) const { return choices[variable]; }
  const std::vector<unsigned> &all() const { return choices; }
  double cost() const { return total; }
  /// By how much the limit is exceeded, summed over the time points.
  double excess() const;

  const FlatCosts &costs;
  Usage usage;

private:
  std::vector<unsigned> choices;
  double total = 0;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MEMORYLIMITED_PRIMALSTATE_H
