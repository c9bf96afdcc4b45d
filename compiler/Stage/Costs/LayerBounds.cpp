//===- LayerBounds.cpp - bounds on runs from their layers -----------------===//

#include "compiler/Stage/Costs/LayerBounds.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::stage;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

LayerBounds::LayerBounds(unsigned numWays, unsigned numLayers, int64_t mostInFlight)
    : numLayers(numLayers), ways(numWays) {
  for (int64_t inFlight = 1; inFlight <= mostInFlight; inFlight *= 4)
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

void LayerBounds::setCurves(unsigned way, unsigned layer, unsigned index,
                            const LayerCurves &curves) {
  ways[way].prices[index].curves[layer] = curves;
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
  mine.more.clear();
  for (const LayerCurves &curves : mine.curves)
    for (const PriceCurve *curve : {curves.held.get(), curves.fullest.get()})
      for (const PriceCurve::Known &known :
           curve ? llvm::ArrayRef(curve->known) : llvm::ArrayRef<PriceCurve::Known>())
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
      if (mine.curves[layer].held)
        least = std::max(least, mine.curves[layer].held->at(price));
      mine.sums.push_back(mine.sums.back() + least);
      double more = price * double(known.leastInner);
      if (mine.curves[layer].fullest)
        more = std::max(more, mine.curves[layer].fullest->at(price) - least);
      mine.more.push_back(more);
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

/// Some layers of a run that tell: most are like the one in the middle.
static std::array<unsigned, 3> someOf(unsigned lo, unsigned hi) {
  return {lo, (lo + hi) / 2, hi - 1};
}

bool LayerBounds::fitsFreely(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                             int64_t memoryBytes) const {
  const Way &mine = ways[way];
  int64_t inner = 0;
  for (unsigned layer : someOf(lo, hi))
    inner = std::max(inner, mine.layers[layer].freeInner);
  return mine.sums[hi].free.at(inFlight) - mine.sums[lo].free.at(inFlight) + inner <= memoryBytes;
}

std::pair<double, double> LayerBounds::secondsAndPrice(unsigned way, unsigned lo, unsigned hi,
                                                       int64_t inFlight,
                                                       int64_t memoryBytes) const {
  std::pair<double, double> most(freeSeconds(way, lo, hi), 0);
  for (unsigned index = 0; index <= curveIndex(inFlight); ++index) {
    const Prices &priced = ways[way].prices[index];
    const double *sums = priced.sums.data(), *fuller = priced.more.data();
    for (double price : priced.prices) {
      double more = 0;
      for (unsigned layer : someOf(lo, hi))
        more = std::max(more, fuller[layer]);
      double seconds = sums[hi] - sums[lo] + more - price * double(memoryBytes);
      if (seconds > most.first)
        most = {seconds, price};
      sums += numLayers + 1;
      fuller += numLayers;
    }
  }
  return most;
}

double LayerBounds::seconds(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                            int64_t memoryBytes) const {
  const Way &mine = ways[way];
  int64_t inner = 0;
  for (unsigned layer : someOf(lo, hi))
    inner = std::max(inner, mine.layers[layer].leastInner);
  if (mine.sums[hi].least.at(inFlight) - mine.sums[lo].least.at(inFlight) + inner > memoryBytes)
    return kInfinity;
  return secondsAndPrice(way, lo, hi, inFlight, memoryBytes).first;
}

double LayerBounds::priceFor(unsigned way, unsigned lo, unsigned hi, int64_t inFlight,
                             int64_t memoryBytes) const {
  return secondsAndPrice(way, lo, hi, inFlight, memoryBytes).second;
}
