//===- LayerTies.h - layers of a stage that are split alike ------*- C++ -*-===//
//
// Layers of a loop that was written out have the same nodes, one iteration apart. A
// plan that treats them alike can be a loop again. Ties are sets of nodes that take
// the same choice; a problem in which each is one node has such plans as its
// solutions, and is about as large as one layer.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_LAYERTIES_H
#define ALPA_COMPILER_SHARDING_PROBLEM_LAYERTIES_H

#include "compiler/Sharding/Problem/ProblemBuilder.h"

namespace alpa::sharding {

/// A value that comes into the first of some equal layers, and the one that the next layer
/// gets for it from the first.
struct LayerEntry {
  mlir::Value value, carried;
};
/// Those of forward and of backward computations; none where nothing reads rows of a stack.
llvm::SmallVector<LayerEntry> findLayerEntries(const StageView &view);

class LayerTies {
public:
  /// `equations` are the forward equations of the builder's nodes, -1 for none. No ties
  /// where nothing reads rows of a stack: other layers cannot be a loop.
  LayerTies(const ProblemBuilder &builder, llvm::ArrayRef<int64_t> equations,
            llvm::ArrayRef<LayerEntry> entries);

  bool empty() const { return ties.empty(); }
  /// Layers at the ends that are no part of the ties.
  struct Ends {
    bool first = false, last = false;
  };
  bool holdFor(llvm::ArrayRef<unsigned> choices, Ends free) const;
  /// The problem with each tie as one node; `variableOf` gets the node of each node. Entries
  /// are held as what is carried where all layers are tied.
  solver::Problem tie(const solver::Problem &problem, Ends free,
                      std::vector<unsigned> &variableOf) const;
  /// The choices that most layers have, for all tied nodes.
  std::vector<unsigned> likeMost(llvm::ArrayRef<unsigned> choices, Ends free) const;

private:
  struct Member {
    int64_t layer = 0;
    unsigned node = 0;
  };
  using Tie = llvm::SmallVector<Member>;
  bool isTied(const Member &member, Ends free) const {
    return !(free.first && member.layer <= firstLayer) && !(free.last && member.layer >= lastLayer);
  }

  bool isCarried(const LayerEntry &entry, llvm::ArrayRef<unsigned> choices) const;

  const ProblemBuilder &builder;
  std::vector<Tie> ties;
  llvm::SmallVector<LayerEntry> entries; // With nodes.
  int64_t firstLayer = 0, lastLayer = 0;
};

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_LAYERTIES_H
