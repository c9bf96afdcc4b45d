//===- LayerBounds.cpp - bounds on runs from their layers -----------------===//

#include "compiler/Stage/Costs/LayerBounds.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::stage;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

LayerBounds::LayerBounds(unsigned numWays, unsigned numLayers, int64_t mostInFlight)
    : numLayers(numLayers), ways(numWays) {
  for (int64_t inFlight = 1; inFlight <= mostInFlight;
       inFlight += std::max<int64_t>(1, inFlight / 2))
    curveInFlight.push_back(inFlight);
  for (Way &way : ways) {
    way.layers.resize(numLayers);
    way.prices.resize(curveInFlight.size());
    for (Prices &prices : way.prices)
      prices.curves.resize(numLayers);
  }
}

unsigned LayerBounds::curveIndex(int64_t inFlight) const {
  return llvm::upper_bound(curveInFlight, inFlight) - curveInFlight.begin() - 1;
}

void LayerBounds::setLayer(unsigned way, unsigned layer, const Layer &known) {
  ways[way].layers[layer] = known;
}

void LayerBounds::setCurve(unsigned way, unsigned layer, unsigned index,
                           std::shared_ptr<const PriceCurve> curve) {
  ways[way].prices[index].curves[layer] = std::move(curve);
}

void LayerBounds::update(unsigned way) {
  Way &mine = ways[way];
  mine.sums.assign(1, {});
  for (const Layer &layer : mine.layers) {
    Layer sum = mine.sums.back();
    sum.numImpossible += layer.numImpossible;
    sum.freeSeconds += layer.freeSeconds;
    sum.backwardSeconds += layer.backwardSeconds;
    sum.weightSeconds += layer.weightSeconds;
    sum.waitingBytes += layer.waitingBytes;
    for (auto bytes : {&Layer::free, &Layer::least}) {
      (sum.*bytes).state += (layer.*bytes).state;
      (sum.*bytes).activations += (layer.*bytes).activations;
    }
    mine.sums.push_back(sum);
  }
  for (auto [index, prices] : llvm::enumerate(mine.prices))
    addUp(mine, index, prices);
}

void LayerBounds::addUp(const Way &way, unsigned index, Prices &mine) const {
  constexpr double kClose = 1.05;
  // A sum of curves of straight lines bends where one of them does.
  mine.prices.clear();
  mine.sums.clear();
  for (const std::shared_ptr<const PriceCurve> &curve : mine.curves)
    if (curve)
      for (const PriceCurve::Known &known : curve->known)
        mine.prices.push_back(known.secondsPerByte);
  llvm::sort(mine.prices);
  size_t kept = 0;
  for (double price : mine.prices)
    if (price > 0 && (kept == 0 || price > mine.prices[kept - 1] * kClose))
      mine.prices[kept++] = price;
  mine.prices.resize(kept);
  for (double price : mine.prices) {
    mine.sums.push_back(0);
    for (unsigned layer = 0; layer < numLayers; ++layer) {
      const Layer &known = way.layers[layer];
      double least = known.freeSeconds + price * double(known.least.at(curveInFlight[index]));
      if (mine.curves[layer])
        least = std::max(least, mine.curves[layer]->at(price));
      mine.sums.push_back(mine.sums.back() + least);
    }
  }
}

double LayerBounds::freeSeconds(unsigned way, unsigned lo, unsigned hi) const {
  const Layer &before = ways[way].sums[lo], &with = ways[way].sums[hi];
  return with.numImpossible > before.numImpossible ? kInfinity
                                                   : with.freeSeconds - before.freeSeconds;
}

LayerBounds::Layer LayerBounds::sumOf(unsigned way, unsigned lo, unsigned hi) const {
  const Layer &before = ways[way].sums[lo];
  Layer sum = ways[way].sums[hi];
  sum.freeSeconds -= before.freeSeconds;
  sum.backwardSeconds -= before.backwardSeconds;
  sum.weightSeconds -= before.weightSeconds;
  sum.waitingBytes -= before.waitingBytes;
  for (auto bytes : {&Layer::free, &Layer::least}) {
    (sum.*bytes).state -= (before.*bytes).state;
    (sum.*bytes).activations -= (before.*bytes).activations;
  }
  sum.numImpossible -= before.numImpossible;
  return sum;
}

int64_t LayerBounds::innerBytes(unsigned way, unsigned lo, unsigned hi,
                                int64_t Layer::*bytes) const {
  int64_t most = 0;
  for (unsigned layer : {lo, (lo + hi) / 2, hi - 1}) // Most are like the one in the middle.
    most = std::max(most, ways[way].layers[layer].*bytes);
  return most;
}

bool LayerBounds::fitsFreely(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                             int64_t memoryBytes) const {
  const Way &mine = ways[way];
  return mine.sums[hi].free.at(inFlight) - mine.sums[lo].free.at(inFlight) +
             innerBytes(way, lo, hi, &Layer::freeInner) <=
         memoryBytes;
}

std::pair<double, double> LayerBounds::secondsAndPrice(unsigned way, unsigned lo, unsigned hi,
                                                       int64_t inFlight,
                                                       int64_t memoryBytes) const {
  std::pair<double, double> most(freeSeconds(way, lo, hi), 0);
  double left = double(memoryBytes - innerBytes(way, lo, hi, &Layer::leastInner));
  for (unsigned index = 0; index <= curveIndex(inFlight); ++index) {
    const Prices &priced = ways[way].prices[index];
    const double *sums = priced.sums.data();
    for (double price : priced.prices) {
      double seconds = sums[hi] - sums[lo] - price * left;
      if (seconds > most.first)
        most = {seconds, price};
      sums += numLayers + 1;
    }
  }
  return most;
}

double LayerBounds::seconds(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                            int64_t memoryBytes) const {
  const Way &mine = ways[way];
  int64_t least = mine.sums[hi].least.at(inFlight) - mine.sums[lo].least.at(inFlight);
  if (least + innerBytes(way, lo, hi, &Layer::leastInner) > memoryBytes)
    return kInfinity;
  return secondsAndPrice(way, lo, hi, inFlight, memoryBytes).first;
}

double LayerBounds::priceFor(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                             int64_t memoryBytes) const {
  return secondsAndPrice(way, lo, hi, inFlight, memoryBytes).second;
}
