//===- LayerDp.h - equations into layers -------------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_LAYERS_LAYERDP_H
#define ALPA_COMPILER_STAGE_LAYERS_LAYERDP_H

#include <cstdint>
#include <vector>

namespace alpa::stage {

/// A sequence of units (equations of the forward computation).
struct LayerProblem {
  /// A value that a unit reads and an earlier one makes.
  struct Input {
    unsigned producer = 0; // Unit.
    unsigned value = 0;    // Equal for equal values: a layer receives a value once.
    double bytes = 0;
  };
  struct Unit {
    double flops = 0;
    std::vector<Input> inputs;
    uint64_t kind = 0;  // Equal for units that do the same work.
    unsigned heavy = 0; // Ops with a dot or a convolution.
  };
  std::vector<Unit> units;
  /// Whether layers read rows of stacks, as those of a scan do. Stages that are cut within such a
  /// layer may have no loop over their layers.
  bool hasStacks = false;
  /// Whether layers are computed again for their gradients. One that ends with a large product need
  /// not make it a second time.
  bool isComputedAgain = false;
};

struct Layering {
  std::vector<unsigned> layerOfUnit; // Ascending from 0, no layer is empty.
  unsigned numLayers = 0;
  double maxInputBytes = 0; // Of any layer, from all earlier ones.
  double maxFlops = 0;      // Of any layer.
};

/// Eq. 6 of the Alpa paper: cuts the units into `numLayers` runs (fewer if there
/// are not as many units) so that the most bytes that a layer receives from
/// earlier ones are least, while no layer has more than (1 + delta) times the
/// mean FLOPs (or a tenth more than the best possible balance, where that is
/// worse). Among those, the FLOPs vary least.
Layering clusterLayers(const LayerProblem &problem, unsigned numLayers, double delta);

//===----------------------------------------------------------------------===//
// The repeated blocks of a model
//
// Most models repeat a block many times. Layers that are cut where a block ends,
// each with equally many blocks, do the same work: what is found out about one
// of them holds for all. So the repeated blocks decide how many layers there are
// and where they may be cut, and Eq. 6 decides about the rest.
//===----------------------------------------------------------------------===//

/// `count` times the same `period` units, one after another from unit `begin`.
struct Repeat {
  unsigned begin = 0, period = 0, count = 0;

  unsigned end() const { return begin + period * count; }
};

/// Repeats with heavy work, in order and apart from each other; the one that
/// covers the most FLOPs is found first, then those beside it. A block begins
/// where the fewest bytes cross.
std::vector<Repeat> findRepeats(const LayerProblem &problem);

/// Layers from blocks. With `numLayers` 0 their number comes from the model: one
/// for each repeated block, one more for what stands between them for each
/// block's worth of FLOPs. If that is more than `mostLayers`, layers hold several
/// blocks; if it is fewer than 8, blocks are cut into parts, all in the same way, and
/// into halves if it is fewer than 16 and there are no stacks.
/// A model without repeats gets a layer for each heavy unit, 8 at most.
Layering clusterBlocks(const LayerProblem &problem, unsigned numLayers, unsigned mostLayers,
                       double delta);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_LAYERS_LAYERDP_H
