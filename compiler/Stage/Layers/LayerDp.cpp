//===- LayerDp.cpp - equations into layers --------------------------------===//

#include "compiler/Stage/Layers/LayerDp.h"

#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include <algorithm>
#include <limits>

using namespace alpa;

/// What costs little may go with an equation that is too large for any balance.
static constexpr double kBottleneckSlack = 0.1;
static constexpr double kInfinity = std::numeric_limits<double>::infinity();

namespace {

class LayerDp {
public:
  LayerDp(const LayerProblem &problem, unsigned numLayers, double delta)
      : units(problem.units), numLayers(numLayers), count(units.size()) {
    prefix.assign(count + 1, 0);
    for (size_t i = 0; i < count; ++i)
      prefix[i + 1] = prefix[i] + units[i].flops;
    limit = (1 + delta) * prefix[count] / numLayers;
    if (double least = leastBottleneck(); least > limit)
      limit = least * (1 + kBottleneckSlack);
    limit *= 1 + 1e-9; // Sums differ in their last bits with their order.
    fillRows();
    fillNeeded();
  }

  Layering run() {
    // The least possible maximum of received bytes, then the most even layers within it.
    std::vector<unsigned> cuts;
    double bytes = sweep([&](double best, double cost, double) { return std::max(best, cost); },
                         kInfinity, cuts);
    sweep([&](double best, double, double flops) { return best + flops * flops; }, bytes, cuts);

    Layering result;
    result.layerOfUnit.assign(count, 0);
    result.numLayers = numLayers;
    for (unsigned layer = 0; layer < numLayers; ++layer) {
      size_t begin = cuts[layer], end = layer + 1 < numLayers ? cuts[layer + 1] : count;
      std::fill(result.layerOfUnit.begin() + begin, result.layerOfUnit.begin() + end, layer);
      result.maxFlops = std::max(result.maxFlops, prefix[end] - prefix[begin]);
      result.maxInputBytes = std::max(result.maxInputBytes, rows[begin][end - begin - 1]);
    }
    return result;
  }

private:
  /// The least maximum of FLOPs with numLayers layers, by bisection over what a
  /// greedy cut can keep.
  double leastBottleneck() const {
    double low = 0, high = prefix[count];
    for (const LayerProblem::Unit &unit : units)
      low = std::max(low, unit.flops);
    for (int step = 0; step < 60 && low < high; ++step) {
      double middle = low + (high - low) / 2;
      (layersNeeded(middle) <= numLayers ? high : low) = middle;
    }
    return high;
  }

  unsigned layersNeeded(double most) const {
    unsigned layers = 1;
    double flops = 0;
    for (const LayerProblem::Unit &unit : units) {
      if (flops + unit.flops > most) {
        ++layers;
        flops = 0;
      }
      flops += unit.flops;
    }
    return layers;
  }

  /// rows[i][n]: bytes that the layer of units i .. i + n receives.
  void fillRows() {
    rows.resize(count);
    for (size_t i = 0; i < count; ++i) {
      llvm::DenseSet<unsigned> received;
      double bytes = 0;
      for (size_t k = i; k < count && (k == i || prefix[k + 1] - prefix[i] <= limit); ++k) {
        for (const LayerProblem::Input &input : units[k].inputs)
          if (input.producer < i && received.insert(input.value).second)
            bytes += input.bytes;
        rows[i].push_back(bytes);
      }
    }
  }

  /// needed[i]: the fewest layers that units i .. can be cut into.
  void fillNeeded() {
    needed.assign(count + 1, 0);
    size_t end = count;
    for (size_t i = count; i-- > 0;) {
      while (end - i > rows[i].size())
        --end;
      needed[i] = needed[end] + 1;
    }
  }

  /// best[r][k]: units 0 .. k - 1 in r layers. Returns the value of the whole
  /// and where its layers begin.
  template <typename Combine>
  double sweep(Combine combine, double mostBytes, std::vector<unsigned> &cuts) const {
    std::vector<std::vector<double>> best(numLayers + 1, std::vector<double>(count + 1, kInfinity));
    std::vector<std::vector<unsigned>> from(numLayers + 1, std::vector<unsigned>(count + 1, 0));
    best[0][0] = 0;
    for (unsigned r = 1; r <= numLayers; ++r)
      for (size_t i = r - 1; i + (numLayers - r) < count; ++i) {
        if (best[r - 1][i] == kInfinity || needed[i] > numLayers - r + 1)
          continue;
        for (size_t n = 0; n < rows[i].size(); ++n) {
          if (rows[i][n] > mostBytes)
            break; // Longer layers receive no less.
          size_t end = i + n + 1;
          double value = combine(best[r - 1][i], rows[i][n], prefix[end] - prefix[i]);
          if (value <= best[r][end]) { // Of equal cuts the last: results stay with their op.
            best[r][end] = value;
            from[r][end] = i;
          }
        }
      }
    cuts.assign(numLayers, 0);
    size_t end = count;
    for (unsigned r = numLayers; r > 0; --r)
      end = cuts[r - 1] = from[r][end];
    return best[numLayers][count];
  }

  const std::vector<LayerProblem::Unit> &units;
  unsigned numLayers;
  size_t count;
  double limit = 0;
  std::vector<double> prefix;
  std::vector<std::vector<double>> rows;
  std::vector<unsigned> needed;
};

} // namespace

Layering alpa::clusterLayers(const LayerProblem &problem, unsigned numLayers, double delta) {
  numLayers = std::max(1u, std::min<unsigned>(numLayers, problem.units.size()));
  if (problem.units.empty())
    return Layering{{}, 1, 0, 0};
  return LayerDp(problem, numLayers, delta).run();
}
