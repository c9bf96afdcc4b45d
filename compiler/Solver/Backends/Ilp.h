//===- Ilp.h - a problem as an integer linear program ------------*- C++ -*-===//
//
//   minimize    sum c x + sum d y
//   subject to  sum of a node's x = 1
//               sum of an edge's y over the choices of one end = x of the other
//               sum of bytes x <= limit, at each time point that can be tight
//               x binary, y >= 0
//
// x chooses for a node, y for the two ends of an edge (Alpa, section 4.2, where
// y is written e; the rows make it the local polytope, so y need not be integer).
// Parallel edges are one; what separates into costs of the two ends has no y;
// forbidden choices and pairs have no column.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_BACKENDS_ILP_H
#define ALPA_COMPILER_SOLVER_BACKENDS_ILP_H

#include "compiler/Solver/Model/Problem.h"

#include "llvm/ADT/ArrayRef.h"

namespace alpa::solver {

/// Costs are divided by `unit`, a power of two that brings the largest one to
/// 2^30: solvers' tolerances are absolute, and their sums are doubles. Where all
/// costs are below that, `unit` is 1 and nothing is lost; otherwise a solver does
/// not see differences of less than a millionth of the unit. Memory rows are
/// divided alike, to 2^20, so that a tolerance of 10^-6 stays below a byte up to
/// limits of 2^40 bytes.
struct IlpModel {
  std::vector<double> costs; // By column; x first.
  size_t numBinaries = 0;    // Columns of x.
  std::vector<double> rowLower, rowUpper;
  std::vector<int32_t> rowStarts; // Compressed rows; one more than there are rows.
  std::vector<int32_t> columns;
  std::vector<double> values;

  double unit = 1;
  CostSum constant = 0;                              // In the problem's unit.
  std::vector<std::pair<unsigned, unsigned>> binary; // Node and choice of each x.
  std::vector<unsigned> fixed;                       // Of nodes without columns.
  bool impossible = false;                           // Seen before any search.

  /// The choices of a solver's values.
  std::vector<unsigned> choices(llvm::ArrayRef<double> columnValues) const;
  /// An integer that the cost of no solution is below, from a solver's bound, less
  /// what the solver's tolerances leave in doubt. Costs are integers, so where the
  /// doubt is less than one the bound of a finished search is still the optimum.
  CostSum lowerBound(double bound) const;
  /// Excludes choices that break the memory limit by less than a solver's
  /// tolerances: what they use at the fullest time point must not all be taken. False
  /// if they do not break it.
  bool cutOff(const Problem &problem, llvm::ArrayRef<unsigned> choices);
};

llvm::Expected<IlpModel> buildIlp(const Problem &problem);

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_BACKENDS_ILP_H
