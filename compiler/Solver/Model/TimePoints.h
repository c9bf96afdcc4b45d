//===- TimePoints.h - the time points at which memory can be tight --*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_MODEL_TIMEPOINTS_H
#define ALPA_COMPILER_SOLVER_MODEL_TIMEPOINTS_H

#include "compiler/Solver/Model/Problem.h"

namespace alpa::solver {

/// A node's life is a set of ranges of time point numbers.
struct TimeRange {
  unsigned begin = 0;
  unsigned end = 0;
};

/// Only time points whose set of live nodes is not contained in that of the time point
/// before or after are kept: the others can never be tighter.
struct TimePoints {
  std::vector<int64_t> times; // One instant of each kept time point.
  std::vector<std::vector<TimeRange>> ofNode;
};

/// Nodes without usage take no part.
TimePoints collectTimePoints(const Problem &problem);

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MODEL_TIMEPOINTS_H
