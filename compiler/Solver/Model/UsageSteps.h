//===- UsageSteps.h - a variable's bytes over time --------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_MODEL_USAGESTEPS_H
#define ALPA_COMPILER_SOLVER_MODEL_USAGESTEPS_H

#include "compiler/Solver/Model/Graph.h"

namespace alpa {

/// The sum of a variable's uses, as steps: stretches of moments throughout
/// which no use begins or ends.
class Profile {
public:
  struct Step {
    MomentRange range;
    std::vector<int64_t> bytes; // Per choice.
  };

  explicit Profile(const Variable &variable);

  llvm::ArrayRef<Step> steps() const { return all; }
  /// Whether `better` uses no more than `choice` at any moment.
  bool usesNoMore(unsigned better, unsigned choice) const;

private:
  std::vector<Step> all;
};

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_MODEL_USAGESTEPS_H
