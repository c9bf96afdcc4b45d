//===- LayerBlocks.h - the repeated blocks of a model ------------*- C++ -*-===//
//
// Most models repeat a block many times. Layers that are cut where a block ends,
// each with equally many blocks, do the same work: what is found out about one
// of them holds for all. So the repeated blocks decide how many layers there are
// and where they may be cut, and Eq. 6 decides about the rest.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_LAYERS_LAYERBLOCKS_H
#define ALPA_COMPILER_STAGE_LAYERS_LAYERBLOCKS_H

#include "compiler/Stage/Layers/LayerDp.h"

namespace alpa {

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
/// blocks; if it is fewer than 8, blocks are cut into parts, all in the same way.
/// A model without repeats gets a layer for each heavy unit, 8 at most.
Layering clusterBlocks(const LayerProblem &problem, unsigned numLayers, unsigned mostLayers,
                       double delta);

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_LAYERS_LAYERBLOCKS_H
