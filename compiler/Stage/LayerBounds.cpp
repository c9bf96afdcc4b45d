//===- LayerBounds.cpp - bounds on runs from their layers -----------------===//

#include "compiler/Stage/LayerBounds.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

LayerBounds::LayerBounds(unsigned numWays, unsigned numLayers, int64_t mostInFlight)
    : numLayers(numLayers), ways(numWays) {
  for (int64_t inFlight = 1; inFlight <= mostInFlight; inFlight *= 4)
    inFlightOf.push_back(inFlight);
}

void LayerBounds::set(unsigned way, llvm::ArrayRef<std::vector<const PriceCurve *>> curveOf) {
  constexpr double kClose = 1.05;
  Way &mine = ways[way];
  mine.prices.resize(inFlightOf.size());
  mine.sums.clear();
  for (size_t ratio = 0; ratio < inFlightOf.size(); ++ratio) {
    // A sum of curves of straight lines bends where one of them does.
    std::vector<double> &prices = mine.prices[ratio];
    for (const std::vector<const PriceCurve *> &curves : curveOf)
      for (const PriceCurve::Known &known : curves[ratio]->known)
        prices.push_back(known.secondsPerByte);
    llvm::sort(prices);
    size_t kept = 0;
    for (double price : prices)
      if (kept == 0 || price > prices[kept - 1] * kClose)
        prices[kept++] = price;
    prices.resize(kept);
    for (double price : prices) {
      mine.sums.push_back(0);
      for (const std::vector<const PriceCurve *> &curves : curveOf)
        mine.sums.push_back(mine.sums.back() + curves[ratio]->at(price));
    }
  }
}

double LayerBounds::seconds(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                            int64_t memoryBytes) const {
  const Way &mine = ways[way];
  double most = 0;
  size_t begin = 0;
  for (size_t ratio = 0; ratio < mine.prices.size() && inFlightOf[ratio] <= inFlight; ++ratio)
    for (double price : mine.prices[ratio]) {
      const double *sums = &mine.sums[begin];
      most = std::max(most, sums[hi] - sums[lo] - price * double(memoryBytes));
      begin += numLayers + 1;
    }
  return most;
}
