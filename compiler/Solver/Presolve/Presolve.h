//===- Presolve.h - exact reductions that respect memory --------*- C++ -*-===//
//
// Forbidden pairs often leave a variable no choice of its own once a neighbour
// has chosen; the two are then merged into one. Every step keeps, of the
// solutions within the limit, an optimal one.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_PRESOLVE_PRESOLVE_H
#define ALPA_COMPILER_SOLVER_PRESOLVE_PRESOLVE_H

#include "compiler/Solver/Model/Graph.h"

namespace alpa::solver {

/// To a fixpoint: drops choices that have no allowed partner at some edge;
/// merges v into u where each choice of u allows, or makes preferable, exactly
/// one of v; folds separable edges into their ends; drops choices that cost no
/// less than another one and use no less at any time point.
/// `followed`, if there are any, are choices that become others which are
/// allowed where they were, cost no more and use no more. Once it is stopped, what is
/// done so far stands, and forbidden choices may be left.
void presolveGraph(Graph &graph, std::vector<unsigned> *followed = nullptr, Stop stop = nullptr);

/// Drops choices that cannot fit, and time points at which no choices can use more
/// than the limit, or more than at a time point next to them. Returns for each time point
/// the number of the one that now stands for it, or -1.
std::vector<int> dropTimePoints(Graph &graph, int64_t limitBytes);

/// Both in turn, for as long as one gives the other something to do.
std::vector<int> presolveWithin(Graph &graph, int64_t limitBytes,
                                std::vector<unsigned> *followed = nullptr, Stop stop = nullptr);

/// Adds up uses with equal lives and moves what is used whatever is chosen to
/// the graph's base.
void tidyUses(Graph &graph, Variable &variable);

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_PRESOLVE_PRESOLVE_H
