//===- RunSolver.h - one run of layers on one mesh ---------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_COSTS_RUNSOLVER_H
#define ALPA_COMPILER_STAGE_COSTS_RUNSOLVER_H

#include "compiler/Sharding/Problem/StageProblem.h"

namespace alpa::stage {

/// The fewest seconds, priced, that a run takes at prices on its bytes: rising and
/// concave, so that between known prices a straight line bounds it from below.
struct PriceCurve {
  struct Known {
    double secondsPerByte = 0;
    double seconds = 0; // No choices cost less.
  };
  std::vector<Known> known; // By price, which begins at 0.

  double at(double secondsPerByte) const;
};

/// Solves at the prices at which the answer changes, until straight lines between
/// are within `tolerance` of the curve, or for `mostSolves`. `free` is the answer
/// without a price. `points` gets what is found.
llvm::Expected<PriceCurve>
tracePriceCurve(const sharding::StageProblem &problem, const sharding::StageUsage &usage,
                const sharding::StageProblem::Priced &free, double tolerance, unsigned mostSolves,
                const sharding::StageProblem::Effort &effort,
                std::vector<std::shared_ptr<sharding::StagePoint>> &points);

struct RunAnswer {
  std::shared_ptr<sharding::StagePoint> point; // Null if nothing was found that fits.
  double boundSeconds = 0;                     // Nothing that fits is faster.
  std::shared_ptr<sharding::StagePoint>
      least; // What needs least at the fullest moment, if that was asked.
};

/// The fastest plan within the limit, as far as prices find it: the price is moved
/// until what answers it just fits; what lies between two answers is tried by mixing
/// them. `points` are plans that are known, the first of them the fastest of all;
/// what is found is added. `likelyPrice` is where to begin, or 0.
llvm::Expected<RunAnswer> solveWithin(const sharding::StageProblem &problem,
                                      const sharding::StageProblem::Priced &free, int64_t inFlight,
                                      int64_t limitBytes, double likelyPrice, double tolerance,
                                      const sharding::StageProblem::Effort &effort,
                                      std::vector<std::shared_ptr<sharding::StagePoint>> &points);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_COSTS_RUNSOLVER_H
