//===- Infeasibility.h - why a problem has no answer ------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_MEMORYLIMITED_INFEASIBILITY_H
#define ALPA_COMPILER_SOLVER_MEMORYLIMITED_INFEASIBILITY_H

#include "compiler/Solver/Model/Budget.h"
#include "compiler/Solver/Model/Graph.h"

namespace alpa::solver {

/// For people: the node's name, or its number.
std::string nameOfNode(const Problem &problem, unsigned node);

/// The time point at which most memory is needed even if every node takes the least
/// of the choices that are left to it.
struct Tightest {
  int64_t bytes = 0;
  std::string live; // Names the largest nodes live then.
};

/// `graph` is reduced, with the time points of `timePoints`. Nothing if no memory is
/// used at all.
std::optional<Tightest> findTightest(const Problem &problem, const TimePoints &timePoints,
                                     const Graph &graph);

/// A limit that choices were found to stay within, as small as a short search
/// finds; `atLeast` bytes are needed. Nothing if no allowed choices were found.
std::optional<int64_t> findEnough(const Graph &graph, int64_t atLeast, const Budget &budget);

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MEMORYLIMITED_INFEASIBILITY_H
