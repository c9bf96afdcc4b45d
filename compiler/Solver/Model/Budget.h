//===- Budget.h - what a solve may take --------------------------*- C++ -*-===//
//
// Work decides results: it counts table entries and combinations gone through, so
// that a search ends at the same point on a fast machine and on a busy one. Seconds
// of the clock are the outer bound, and a budget remembers whether they struck.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_MODEL_BUDGET_H
#define ALPA_COMPILER_SOLVER_MODEL_BUDGET_H

#include "llvm/ADT/STLFunctionalExtras.h"

#include <atomic>
#include <chrono>

namespace alpa::solver {

/// Asked on the way through something long; null never says so.
using Stop = llvm::function_ref<bool()>;
inline bool stops(Stop stop) { return stop && stop(); }

class Budget {
public:
  /// `spentSeconds` of the limit are over already.
  Budget(double limitSeconds, double limitWork, double spentSeconds = 0)
      : limitSeconds(limitSeconds), limitWork(limitWork),
        start(std::chrono::steady_clock::now() -
              std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                  std::chrono::duration<double>(spentSeconds))) {}

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  /// Whether a share of the time is over. Any thread may ask.
  bool isLate(double share = 1) const {
    // What has been begun takes a moment to end.
    constexpr double kShare = 0.98;
    if (seconds() <= limitSeconds * share * kShare)
      return false;
    late = true;
    return true;
  }
  /// Whether the clock has ended something, rather than work or a proof.
  bool wasLate() const { return late; }

  /// Told and asked by the one thread that leads a search.
  void spend(double work) { spentWork += work; }
  double workLeft(double share = 1) const { return limitWork * share - spentWork; }
  double work() const { return spentWork; }
  bool isOver(double share = 1) const { return workLeft(share) <= 0 || isLate(share); }

private:
  double limitSeconds, limitWork;
  double spentWork = 0;
  std::chrono::steady_clock::time_point start;
  mutable std::atomic<bool> late = false;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MODEL_BUDGET_H
