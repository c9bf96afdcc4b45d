//===- Selection.h - which variables to free together ------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_LIMITED_SELECTION_H
#define ALPA_COMPILER_SOLVER_LIMITED_SELECTION_H

#include "compiler/Solver/Limited/PrimalState.h"

namespace alpa {

/// A set of variables that grows along edges or by what is live together.
class Selection {
public:
  Selection(const PrimalState &state, Random &random);

  void clear();
  void addAll();
  void add(unsigned variable);
  /// What is connected to a variable, nearest first, up to `size` in all.
  void addBall(unsigned variable, size_t size);
  /// Some of those whose choice counts between two moments.
  void addLive(unsigned begin, unsigned end, size_t size);
  /// Neighbours of what was added, first of what came first.
  void spread(size_t size);
  /// Those of which one of the others takes another choice.
  void addDifferent(llvm::ArrayRef<const std::vector<unsigned> *> others);

  /// The fullest of some moments. There must be one.
  unsigned tightMoment();
  /// Some moment above the limit, or none.
  std::optional<unsigned> exceededMoment();

  llvm::ArrayRef<unsigned> variables() const { return chosen; }

private:
  const PrimalState &state;
  Random &random;
  std::vector<unsigned> chosen;
  std::vector<char> isChosen;
};

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_LIMITED_SELECTION_H
