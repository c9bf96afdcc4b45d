//===- LayerBounds.h - bounds on runs from their layers ----------*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_COSTS_LAYERBOUNDS_H
#define ALPA_COMPILER_STAGE_COSTS_LAYERBOUNDS_H

#include "compiler/Stage/Costs/LayerRangeEquivalence.h"
#include "compiler/Stage/Costs/RunSolver.h"

#include <memory>

namespace alpa::stage {

using LayerOps = std::vector<llvm::SmallVector<mlir::Operation *>>;

/// Fewest seconds of runs of layers on one mesh: the sum of what their layers take,
/// priced, at the best of some prices on bytes, less the price of the memory. At the fullest moment
/// of one layer its temporaries are there beside the state and the activations of all. What
/// is known of a layer at first is its seconds without a limit and the least bytes
/// of any of its choices; price curves, which take solving, are added where these
/// leave too much open.
class LayerBounds {
public:
  LayerBounds(unsigned numWays, unsigned numLayers, int64_t mostInFlight);

  struct Bytes {
    int64_t state = 0, activations = 0; // The latter of one micro-batch in flight.
    int64_t at(int64_t inFlight) const { return state + inFlight * activations; }
  };
  struct Layer {
    unsigned numImpossible = 0;            // 1 if there is no plan for it at all.
    double freeSeconds = 0;                // Without a limit.
    Bytes free, least;                     // Of that answer, and of any.
    int64_t freeInner = 0, leastInner = 0; // Beside these, at the layer's fullest moment.
    /// Of that answer: its backward seconds, those of the weight part where the phase
    /// is split, and what waits for that.
    double backwardSeconds = 0, weightSeconds = 0;
    int64_t waitingBytes = 0;
  };
  void setLayer(unsigned way, unsigned layer, const Layer &known);
  const Layer &layerOf(unsigned way, unsigned layer) const { return ways[way].layers[layer]; }

  /// Curves are traced for some numbers of micro-batches in flight, and serve for
  /// all up to the next.
  unsigned curveIndex(int64_t inFlight) const;
  int64_t inFlightOf(unsigned index) const { return curveInFlight[index]; }
  bool hasCurve(unsigned way, unsigned layer, unsigned index) const {
    return ways[way].prices[index].curves[layer] != nullptr;
  }
  /// Takes effect with the next `update`.
  void setCurve(unsigned way, unsigned layer, unsigned index,
                std::shared_ptr<const PriceCurve> curve);
  void update(unsigned way);

  /// Infinite if there is no plan at all.
  double freeSeconds(unsigned way, unsigned lo, unsigned hi) const;
  /// What the layers' answers without a limit add up to.
  Layer sumOf(unsigned way, unsigned lo, unsigned hi) const;
  /// Whether the answers without a limit fit, so that curves say nothing new.
  bool fitsFreely(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                  int64_t memoryBytes) const;
  /// With `inFlight` micro-batches' activations in memory; infinite if they do not fit.
  double seconds(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                 int64_t memoryBytes) const;
  /// Seconds a byte at which that bound is found; 0 if it is without a price.
  double priceFor(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                  int64_t memoryBytes) const;

private:
  /// Of a run at the fullest moment of one of its layers, at the least; or of the free answers.
  int64_t innerBytes(unsigned way, unsigned lo, unsigned hi, int64_t Layer::*bytes) const;
  std::pair<double, double> secondsAndPrice(unsigned way, unsigned lo, unsigned hi,
                                            int64_t inFlight, int64_t memoryBytes) const;

  struct Prices {
    std::vector<std::shared_ptr<const PriceCurve>> curves; // By layer; null if not known.
    std::vector<double> prices;
    std::vector<double> sums; // By price and layer: of those before it.
  };
  struct Way {
    std::vector<Layer> layers;
    std::vector<Layer> sums; // Of the layers before each.
    std::vector<Prices> prices;
  };
  void addUp(const Way &way, unsigned index, Prices &mine) const;

  unsigned numLayers;
  std::vector<int64_t> curveInFlight; // Rising.
  std::vector<Way> ways;
};

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_COSTS_LAYERBOUNDS_H
