//===- LayerDp.h - equations into layers -------------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_LAYERS_LAYERDP_H
#define ALPA_COMPILER_STAGE_LAYERS_LAYERDP_H

#include <cstdint>
#include <vector>

namespace alpa {

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

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_LAYERS_LAYERDP_H
