//===- LargeNeighbourhoodSearch.h - search for good choices within the limit -*- C++ -*-===//
//
// Large-neighbourhood search: some variables at a time are freed and solved
// again beside the rest, first for choices that fit, then for cheaper ones.
// Where best choices and proposals differ, their parts are recombined.
//
// Sources: Shaw, "Using constraint programming and local search methods to solve
// vehicle routing problems" (1998); Lempitsky, Rother, Roth and Blake, "Fusion
// moves for Markov random field optimization" (2010).
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_MEMORYLIMITED_LARGENEIGHBOURHOODSEARCH_H
#define ALPA_COMPILER_SOLVER_MEMORYLIMITED_LARGENEIGHBOURHOODSEARCH_H

#include "compiler/Solver/MemoryLimited/PrimalState.h"
#include "compiler/Solver/MemoryLimited/SubProblem.h"

#include "llvm/ADT/STLFunctionalExtras.h"

namespace alpa::solver {

/// A set of variables that grows along edges or by what is live together.
class Selection {
public:
  Selection(const PrimalState &state, Random &random);

  void clear();
  void addAll();
  void add(unsigned variable);
  /// What is connected to a variable, nearest first, up to `size` in all.
  void addBall(unsigned variable, size_t size);
  /// Some of those whose choice counts between two time points.
  void addLive(unsigned begin, unsigned end, size_t size);
  /// Neighbours of what was added, first of what came first.
  void spread(size_t size);
  /// Those of which one of the others takes another choice.
  void addDifferent(llvm::ArrayRef<const std::vector<unsigned> *> others);

  /// The fullest of some time points. There must be one.
  unsigned tightTimePoint();
  /// Some time point above the limit, or none.
  std::optional<unsigned> exceededTimePoint();

  llvm::ArrayRef<unsigned> variables() const { return chosen; }

private:
  const PrimalState &state;
  Random &random;
  std::vector<unsigned> chosen;
  std::vector<char> isChosen;
};

//===----------------------------------------------------------------------===//
// Search for good choices within the limit
//
// Large-neighbourhood search: some variables at a time are freed and solved
// again beside the rest, first for choices that fit, then for cheaper ones.
// Where best choices and proposals differ, their parts are recombined.
//
// Sources: Shaw, "Using constraint programming and local search methods to solve
// vehicle routing problems" (1998); Lempitsky, Rother, Roth and Blake, "Fusion
// moves for Markov random field optimization" (2010).
//===----------------------------------------------------------------------===//

/// Complete choices; the oldest go when there are too many.
class Pool {
public:
  void add(llvm::ArrayRef<unsigned> choices);
  size_t size() const { return kept.size(); }
  const std::vector<unsigned> &operator[](size_t i) const { return kept[i]; }
  bool hasNew() const { return isNew; }
  /// The newest that was not taken before, or none.
  const std::vector<unsigned> *takeNewest();

private:
  std::vector<std::vector<unsigned>> kept;
  size_t next = 0;
  bool isNew = false;
};

/// The same for the same seed and the same calls. Holds copies of what it needs,
/// so that it may run beside other users of the graph.
class LargeNeighbourhoodSearch {
public:
  LargeNeighbourhoodSearch(const Graph &graph, int64_t limitBytes, uint64_t seed);

  /// Goes on from these choices if they are better than the best.
  void offer(llvm::ArrayRef<unsigned> choices);
  /// Choices to take parts from, or to begin with again, whether they fit or not.
  void propose(llvm::ArrayRef<unsigned> choices) { proposals.add(choices); }
  /// What a byte is worth at each time point, as a guide.
  void setPrices(llvm::ArrayRef<double> prices);
  /// Goes through about `work` combinations.
  void run(double work, llvm::function_ref<bool()> stop);

  /// Empty as long as nothing within the limit is found.
  const std::vector<unsigned> &best() const { return bestChoices; }
  double bestCost() const { return lowest; }
  double work() const { return sub.work(); }

private:
  /// How variables are chosen: what is connected; what is live at a tight time point,
  /// or begins about the same time; where others differ. Or all, from a proposal.
  enum Shape { Ball, Tight, Window, Fuse, Restart };
  struct Arm {
    Shape shape;
    unsigned size;
    double gain = 0, work = 0; // Of late.
  };
  using Done = llvm::function_ref<bool()>;

  bool fits() const;
  void keep();
  double valued() const { return state.cost() + penalty * state.excess(); }
  double firstPenalty() const;
  void settle(Done done, Done stop);
  Arm &chooseArm(bool evenly);
  void improve(Done stop);
  void improveBy(const Arm &arm, Done stop);
  double spent();
  void restart(Done stop);
  void select(Shape shape, unsigned size);

  const FlatCosts costs;
  PrimalState state;
  SubProblem sub;
  Random random;
  Selection selection;
  std::vector<unsigned> bestChoices;
  double lowest = 0;
  std::vector<double> prices;
  double penalty = 0;
  double looks = 0;
  double nextRestart = 0; // The work after which to begin again at the latest.
  bool inParts = false;   // Whether parts rather than all is led below the limit.
  Pool proposals, optima;
  std::vector<Arm> arms;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MEMORYLIMITED_LARGENEIGHBOURHOODSEARCH_H
