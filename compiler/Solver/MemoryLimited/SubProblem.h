//===- SubProblem.h - some variables of a state, all others fixed -*- C++ -*-===//
//
// Part of the variables may change; what the others cost and use is folded in.
// Time points between which none of the free variables' uses change become one
// span, with the least room of them all. Prices on the spans' bytes turn the
// rest into a problem that elimination solves; a search over its tables that
// minds the room finds answers, and the priced optimum proves when none is left.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_MEMORYLIMITED_SUBPROBLEM_H
#define ALPA_COMPILER_SOLVER_MEMORYLIMITED_SUBPROBLEM_H

#include "compiler/Solver/MemoryLimited/PrimalState.h"
#include "compiler/Solver/Model/Budget.h"

namespace alpa::solver {

class SubProblem {
public:
  explicit SubProblem(PrimalState &state);

  /// What a byte above the limit costs; infinite when none is allowed.
  double penalty = 0;
  /// Prices of a byte, summed over the time points before each, or empty.
  std::vector<double> priceSums;

  /// Where there are any, only choices that one of these takes are looked at.
  std::vector<const std::vector<unsigned> *> pool;

  /// Frees `variables`, but for some that are frozen so that no table has more
  /// than `maxTable` entries. False if there is nothing to choose.
  bool build(llvm::ArrayRef<unsigned> variables, double maxTable, Random &random);

  struct Effort {
    unsigned rounds = 10; // Of prices.
    size_t nodes = 1000;  // Of the search at the end.
    double slack = 0;     // By how much worse an answer may be.
    Stop stop = nullptr;  // Once it says so, the best so far is taken.
  };
  enum class Outcome { Better, Same, Proven };
  /// Looks for better choices and moves the state to the best it finds.
  Outcome solve(const Effort &effort);

  unsigned numFree() const { return free.size(); }
  /// Combinations looked at so far, all problems together.
  double work() const { return totalWork; }
  /// Adds the prices of the last problem's spans to their tightest time points.
  void exportPrices(std::vector<double> &prices) const;

private:
  struct Span {
    unsigned begin, end; // Time points.
    unsigned tightest;
    double room;
  };
  /// Bytes of a free variable's choices throughout some spans.
  struct Stretch {
    unsigned begin, end;
    size_t bytes;
    double least;
  };
  struct Level {
    size_t next = 0;
    double bound = 0;
    double over = 0;
    bool placed = false;
  };

  void gatherCosts(llvm::ArrayRef<unsigned> candidates);
  void addTables();
  void addSpans();
  double evaluate(llvm::ArrayRef<unsigned> values) const;
  double runPriced();
  void place(unsigned variable, unsigned value, double sign);
  double overWith(unsigned variable, unsigned value) const;
  void useOf(llvm::ArrayRef<unsigned> values);
  double overOf() const;
  void decode();
  bool offer(llvm::ArrayRef<unsigned> values, double over);
  bool dive(double bound, size_t maxNodes);
  bool stepPrices(double bound, double pace);
  llvm::ArrayRef<Stretch> stretchesOf(unsigned variable) const {
    return llvm::ArrayRef(stretches).slice(firstStretch[variable],
                                           firstStretch[variable + 1] - firstStretch[variable]);
  }

  PrimalState &state;
  LocalTables tables;
  EliminationOrder order;
  std::vector<int> localOf;      // Of all variables; -1 if not free.
  std::vector<unsigned> free;    // In the order of elimination.
  std::vector<unsigned> allowed; // Choices of free variables, in a row.
  std::vector<double> costs, priced;
  std::vector<Span> spans;
  std::vector<Stretch> stretches;
  std::vector<size_t> firstStretch;
  std::vector<double> bytes;
  std::vector<double> prices, bestPrices, use;
  std::vector<unsigned> values, bestValues;
  std::vector<Level> levels;
  std::vector<double> regrets;
  std::vector<unsigned> ranking;
  double bestValue = 0;
  double totalWork = 0;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MEMORYLIMITED_SUBPROBLEM_H
