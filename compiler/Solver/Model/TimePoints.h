//===- TimePoints.h - the moments at which memory can be tight --*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_MODEL_TIMEPOINTS_H
#define ALPA_COMPILER_SOLVER_MODEL_TIMEPOINTS_H

#include "compiler/Solver/Model/Problem.h"

namespace alpa {

/// A node's life is a set of ranges of moment numbers.
struct MomentRange {
  unsigned begin = 0;
  unsigned end = 0;
};

/// Only moments whose set of live nodes is not contained in that of the moment
/// before or after are kept: the others can never be tighter.
struct Moments {
  std::vector<int64_t> times; // One instant of each kept moment.
  std::vector<std::vector<MomentRange>> ofNode;
};

/// Nodes without usage take no part.
Moments compressMoments(const Problem &problem);

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_MODEL_TIMEPOINTS_H
