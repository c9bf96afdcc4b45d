//===- LayerBounds.h - bounds on runs from their layers ----------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_LAYERBOUNDS_H
#define ALPA_COMPILER_STAGE_LAYERBOUNDS_H

#include "compiler/Stage/RunClasses.h"
#include "compiler/Stage/RunSolver.h"

namespace alpa {

using LayerOps = std::vector<llvm::SmallVector<mlir::Operation *>>;

/// Fewest seconds of runs of layers on one mesh: the sum of the price curves of
/// their layers, at the best of some prices, less the price of the memory.
class LayerBounds {
public:
  LayerBounds(unsigned numWays, unsigned numLayers, int64_t mostInFlight);

  /// The numbers of micro-batches in flight for which curves are wanted.
  llvm::ArrayRef<int64_t> ratios() const { return inFlightOf; }
  /// Curves of the layers on one way; `curveOf[layer][ratio]`.
  void set(unsigned way, llvm::ArrayRef<std::vector<const PriceCurve *>> curveOf);

  /// With `inFlight` micro-batches' activations in memory.
  double seconds(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                 int64_t memoryBytes) const;

private:
  struct Way {
    std::vector<std::vector<double>> prices; // Of each ratio.
    std::vector<double> sums;                // By ratio, price and layer: of those before it.
  };
  unsigned numLayers;
  std::vector<int64_t> inFlightOf; // Rising.
  std::vector<Way> ways;
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_LAYERBOUNDS_H
