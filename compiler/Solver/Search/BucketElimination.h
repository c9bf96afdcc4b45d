//===- BucketElimination.h - elimination of variables one by one -*- C++ -*-===//
//
// Eliminating a variable leaves, for every combination of its neighbours, the
// least cost of its choices. That solves a graph exactly if the tables stay
// small (degree 0, 1 and 2 are the cases of chains and residual connections).
// A table that would be too large is split into smaller ones, which then only
// bound the cost from below.
//
// Sources: Dechter, "Bucket elimination" (1999); Dechter and Rish,
// "Mini-buckets" (2003); Kask and Dechter on branch and bound with such bounds.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_SEARCH_BUCKETELIMINATION_H
#define ALPA_COMPILER_SOLVER_SEARCH_BUCKETELIMINATION_H

#include "compiler/Solver/Model/Graph.h"

#include "llvm/ADT/SmallVector.h"

#include <deque>
#include <limits>

namespace alpa::solver {

/// A table over some variables. Variables that are eliminated later come first,
/// so the next one to go varies fastest.
struct BucketTable {
  llvm::SmallVector<unsigned, 4> scope;
  llvm::SmallVector<size_t, 4> strides;
  size_t size = 0;
  std::vector<int64_t> table; // Empty until it is needed.

  size_t offset(llvm::ArrayRef<unsigned> values, unsigned skipLast) const {
    size_t at = 0;
    for (size_t i = 0; i + skipLast < scope.size(); ++i)
      at += strides[i] * values[scope[i]];
    return at;
  }
};

class BucketElimination {
public:
  /// Chooses the order of elimination. Then `plan` must be called. Once an exact
  /// elimination is sure to go through more than `mostWork`, or when it is stopped,
  /// there is no order: `exactWork` is all that may be asked.
  explicit BucketElimination(const Graph &graph, double mostWork = kNoBound, Stop stop = nullptr);

  /// Says which tables each elimination reads and makes. They are as large as
  /// the limits allow: on the combinations of one table, of all of them (`work`),
  /// and on the entries kept. May be called again.
  void plan(double maxWork, double maxEntries);

  /// Eliminates all variables, with `prices` (one per choice, or empty) added to
  /// the costs of each. The result bounds the sum of costs without the graph's
  /// constant, and is kInfinity or more if nothing is allowed.
  /// Tables are left half made when it is stopped; the result is nothing then.
  CostSum eliminate(llvm::ArrayRef<std::vector<int64_t>> prices, Stop stop = nullptr);

  /// Whether the bound of `eliminate` is the optimum.
  bool isExact() const { return exact; }
  /// What an exact elimination goes through; known before `plan`. Infinite if that was
  /// not found out.
  double exactWork() const { return orderWork; }
  /// How many combinations one elimination of all variables goes through.
  double work() const { return totalWork; }
  /// Variables whose elimination needed a table over at most two others.
  unsigned numSimple() const { return simple; }

  /// Variables in the order of assignment: the last eliminated comes first.
  llvm::ArrayRef<unsigned> assignmentOrder() const { return assignment; }

  /// By how much the bound rises with each choice of `variable`, once all before
  /// it in the order of assignment have `values`.
  void regrets(unsigned variable, llvm::ArrayRef<unsigned> values,
               std::vector<int64_t> &result) const;

  /// What `regrets` of a variable goes through.
  double regretWork(unsigned variable) const;

  /// Takes the choice of least regret everywhere: optimal if exact.
  std::vector<unsigned> decode() const;

private:
  struct MiniBucket {
    std::vector<unsigned> inputs; // Indices of factors.
    int output = -1;              // Index of a factor; -1 for a constant.
    int64_t constant = 0;
  };

  static constexpr double kNoBound = std::numeric_limits<double>::infinity();

  void order(double mostWork, Stop stop);
  void planTables(double maxTable);
  CostSum eliminate(unsigned variable, MiniBucket &bucket, llvm::ArrayRef<int64_t> costs,
                    Stop stop);

  const Graph &graph;
  std::vector<unsigned> assignment;
  std::vector<unsigned> position; // In the order of elimination.
  std::vector<std::vector<int64_t>> costs;
  std::deque<BucketTable> factors;
  std::vector<std::vector<MiniBucket>> buckets; // By variable.
  bool exact = true;
  double totalWork = 0;
  double totalEntries = 0;
  double orderWork = 0;
  double largestTable = 0; // Of an exact elimination.
  unsigned simple = 0;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_SEARCH_BUCKETELIMINATION_H
