//===- Neighbourhood.h - search for good choices within the limit -*- C++ -*-===//
//
// Large-neighbourhood search: some variables at a time are freed and solved
// again beside the rest, first for choices that fit, then for cheaper ones.
//
// Source: Shaw, "Using constraint programming and local search methods to solve
// vehicle routing problems" (1998).
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_NEIGHBOURHOOD_H
#define ALPA_COMPILER_SOLVER_NEIGHBOURHOOD_H

#include "compiler/Solver/SubProblem.h"

#include "llvm/ADT/STLFunctionalExtras.h"

namespace alpa {

/// The same for the same seed and the same calls. Holds copies of what it needs,
/// so that it may run beside other users of the graph.
class PrimalSearch {
public:
  PrimalSearch(const Graph &graph, int64_t limitBytes, uint64_t seed);

  /// Goes on from these choices if they are better than the best.
  void offer(llvm::ArrayRef<unsigned> choices);
  /// Choices to take parts from, whether they fit or not.
  void propose(llvm::ArrayRef<unsigned> choices);
  /// What a byte is worth at each moment, as a guide.
  void setPrices(llvm::ArrayRef<double> prices);
  /// Goes through about `work` combinations.
  void run(double work, llvm::function_ref<bool()> stop);

  /// Empty as long as nothing within the limit is found.
  const std::vector<unsigned> &best() const { return bestChoices; }
  double bestCost() const { return lowest; }
  double work() const { return sub.work(); }

private:
  /// How variables are chosen: what is connected, what is live at a tight moment,
  /// or begins about the same time; or where proposals differ.
  enum Shape { Ball, Tight, Window, Fuse };
  struct Arm {
    Shape shape;
    unsigned size;
    double gain = 0, work = 0; // Of late.
  };
  bool fits() const;
  void keep();
  void settle(llvm::function_ref<bool()> done);
  void improve();
  bool solveFreed(double maxTable, const SubProblem::Effort &effort);
  void freeAll();
  Arm &chooseArm();
  void chooseFreed(Shape shape, unsigned size);
  void addBall(unsigned seed, size_t size);
  void addLiveAt(unsigned begin, unsigned end, size_t size);
  unsigned tightMoment();
  void free(unsigned variable);

  const FlatCosts costs;
  PrimalState state;
  SubProblem sub;
  Random random;
  std::vector<unsigned> bestChoices;
  double lowest = 0;
  std::vector<double> prices;
  double penalty = 0;
  std::vector<unsigned> freed;
  std::vector<char> isFreed;
  std::vector<std::vector<unsigned>> proposals;
  size_t nextProposal = 0;
  std::vector<Arm> arms;
};

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_NEIGHBOURHOOD_H
