//===- LocalTables.h - minimization over part of a problem ------*- C++ -*-===//
//
// Variables are eliminated one by one, cheapest table first; where a table would
// grow too large, variables are frozen: they keep their choice and all others
// are minimized exactly. Costs are doubles, for search that others check.
//
// Source: Dechter, "Enhancement schemes for constraint processing: backjumping,
// learning, and cutset decomposition" (1990), for freezing a cutset.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_MEMORYLIMITED_LOCALTABLES_H
#define ALPA_COMPILER_SOLVER_MEMORYLIMITED_LOCALTABLES_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"

#include <cstdint>
#include <vector>

namespace alpa::solver {

/// A forbidden pair in sums of doubles: many can be added, and finite costs
/// beside one still count a little.
inline constexpr double kBlocked = 1e18;

/// The same numbers everywhere for a seed.
class Random {
public:
  explicit Random(uint64_t seed) : state(seed) {}
  uint64_t next();
  unsigned below(unsigned count) { return unsigned((next() >> 32) * uint64_t(count) >> 32); }
  double unit() { return double(next() >> 11) * 0x1p-53; }

private:
  uint64_t state;
};

/// Chooses what to freeze and in which order to eliminate the rest.
class EliminationOrder {
public:
  /// `neighbours` is used up. No table of the result, the eliminated variable
  /// included, has more than `maxTable` entries.
  void run(std::vector<llvm::SmallVector<unsigned, 6>> &neighbours, llvm::ArrayRef<unsigned> sizes,
           double maxTable, Random &random);

  std::vector<unsigned> order;
  std::vector<char> frozen;
};

/// Tables of a problem over a few variables. Filled anew for each problem.
class LocalTables {
public:
  void clear();
  /// Variables are numbered from 0; they are eliminated in the order of adding.
  void addVariable(unsigned size);
  /// a < b; the table to fill is row-major with a's choices as rows.
  double *addPair(unsigned a, unsigned b);
  /// Lays out the tables.
  void plan();

  /// The least sum, given costs of all choices of all variables in a row.
  double run(llvm::ArrayRef<double> costs);
  /// By how much the least sum rises with each choice of a variable when those
  /// eliminated after it have `values`.
  void regrets(unsigned variable, llvm::ArrayRef<double> costs, llvm::ArrayRef<unsigned> values,
               double *result) const;

  /// The sum for complete values.
  double cost(llvm::ArrayRef<double> costs, llvm::ArrayRef<unsigned> values) const;

  unsigned size(unsigned variable) const { return sizes[variable]; }
  size_t first(unsigned variable) const { return firsts[variable]; }
  unsigned count() const { return sizes.size(); }
  /// Combinations that one run goes through.
  double work() const { return totalWork; }

private:
  /// Over variables in the order of elimination; the last varies fastest.
  struct Factor {
    llvm::SmallVector<unsigned, 4> scope;
    llvm::SmallVector<size_t, 4> strides;
    size_t at = 0; // In `tables`.
    size_t size = 1;
  };
  struct Bucket {
    llvm::SmallVector<unsigned, 4> inputs;
    int output = -1;
    double constant = 0;
  };
  unsigned addFactor(llvm::ArrayRef<unsigned> scope);
  double eliminate(unsigned variable, const double *costs);
  size_t offset(const Factor &factor, llvm::ArrayRef<unsigned> values, unsigned from) const;

  std::vector<unsigned> sizes;
  std::vector<size_t> firsts;
  std::vector<Factor> factors;
  std::vector<Bucket> buckets;
  std::vector<double> tables;
  std::vector<double> scratch;
  double totalWork = 0;
  size_t numPairs = 0; // Factors that are not results of eliminations.
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MEMORYLIMITED_LOCALTABLES_H
