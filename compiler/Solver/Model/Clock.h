//===- Clock.h - time since a solve began ------------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_MODEL_CLOCK_H
#define ALPA_COMPILER_SOLVER_MODEL_CLOCK_H

#include <chrono>

namespace alpa::solver {

class Clock {
public:
  explicit Clock(double limitSeconds)
      : limitSeconds(limitSeconds), start(std::chrono::steady_clock::now()) {}

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  /// Whether a share of the limit, and some seconds of grace, are over.
  bool isLate(double share = 1.0, double graceSeconds = 0.0) const {
    return seconds() > limitSeconds * share + graceSeconds;
  }

private:
  double limitSeconds;
  std::chrono::steady_clock::time_point start;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MODEL_CLOCK_H
