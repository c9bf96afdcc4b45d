//===- Prices.cpp - prices on the bytes of each moment --------------------===//

#include "compiler/Solver/Prices.h"

#include <algorithm>
#include <cmath>

using namespace alpa;

static constexpr unsigned kShift = 30; // Prices are multiples of 2^-30.
static constexpr double kMostPrice = 0x1p60;

PriceSearch::PriceSearch(const Graph &graph, Usage &usage, Buckets *buckets,
                         llvm::function_ref<bool()> outOfTime)
    : upper(CostSum(kInfinity) * (1 + graph.variables.size())), graph(graph), usage(usage),
      buckets(buckets), outOfTime(outOfTime), dual(graph), local(graph, usage),
      prices(usage.at().size(), 0) {}

std::vector<std::vector<int64_t>> PriceSearch::payments() const {
  std::vector<CostSum> sums(prices.size() + 1, 0);
  for (size_t t = 0; t < prices.size(); ++t)
    sums[t + 1] = sums[t] + prices[t];
  std::vector<std::vector<int64_t>> result(graph.variables.size());
  for (unsigned v = 0; v < result.size(); ++v) {
    // What lies above costs more than any answer; less is a valid bound too.
    constexpr int64_t kMost = int64_t(1) << 52;
    if (!graph.variables[v].uses.empty())
      result[v].assign(graph.variables[v].numChoices(), 0);
    for (const Use &use : graph.variables[v].uses) {
      CostSum price = 0;
      for (MomentRange range : use.life)
        price += sums[range.end] - sums[range.begin];
      for (size_t c = 0; c < use.bytes.size(); ++c) {
        int64_t bytes = use.bytes[c];
        bool large = bytes > 0 && price > (CostSum(kMost) << kShift) / bytes;
        int64_t paid = large ? kMost : int64_t((price * bytes) >> kShift);
        result[v][c] = std::min(result[v][c] + paid, kMost);
      }
    }
  }
  return result;
}

CostSum PriceSearch::offset() const {
  CostSum sum = 0;
  for (size_t t = 0; t < prices.size(); ++t)
    sum += CostSum(prices[t]) * (usage.limit() - graph.baseBytes[t]);
  return sum >> kShift;
}

/// False if it turns out that `upper` cannot be beaten.
bool PriceSearch::solvePriced(CostSum &bound, std::vector<unsigned> &values) {
  std::vector<std::vector<int64_t>> paid = payments();
  if (buckets) {
    bound = buckets->eliminate(paid) - offset();
    values = buckets->decode();
    return bound < upper;
  }
  for (unsigned v = 0; v < paid.size(); ++v)
    if (!paid[v].empty())
      dual.setPrices(v, paid[v]);
  if (!dual.sweep(upper + offset()))
    return false;
  bound = dual.bound() - offset();
  values = dual.decode();
  return bound < upper;
}

/// Makes choices fit, and better, and keeps them if they are the best so far.
void PriceSearch::offer(std::vector<unsigned> values) {
  if (!local.repair(values))
    return;
  CostSum objective = local.objective(values) - graph.constant;
  // Polishing is worth while for what is nearly the best.
  if (best.empty() || objective - lower < 2 * (upper - lower)) {
    local.polish(values, outOfTime);
    objective = local.objective(values) - graph.constant;
  }
  if (best.empty() || objective < upper) {
    upper = objective;
    best = std::move(values);
  }
}

/// Raises prices where the limit is exceeded, lowers them where bytes are left.
bool PriceSearch::step(llvm::ArrayRef<unsigned> values, CostSum bound, double pace) {
  usage.load(values);
  auto slope = [&](size_t t) {
    double excess = double(usage.at()[t]) - double(usage.limit());
    return prices[t] == 0 && excess < 0 ? 0.0 : excess;
  };
  double norm = 0;
  for (size_t t = 0; t < prices.size(); ++t)
    norm += slope(t) * slope(t);
  if (norm == 0)
    return false;
  double gap = best.empty() ? std::abs(double(lower)) * 0.1 : double(upper - bound);
  double length = pace * std::max(gap, 1.0) / norm * double(int64_t(1) << kShift);
  bool moved = false;
  for (size_t t = 0; t < prices.size(); ++t) {
    double next = std::clamp(double(prices[t]) + length * slope(t), 0.0, kMostPrice);
    moved |= int64_t(next) != prices[t];
    prices[t] = int64_t(next);
  }
  return moved;
}

void PriceSearch::run(llvm::function_ref<bool()> stop) {
  constexpr unsigned kMaxRounds = 600;
  constexpr unsigned kWarmUp = 12; // Sweeps before prices move at all.
  const unsigned patience = buckets ? 6 : 15;
  const unsigned offerEvery = buckets ? 1 : 5;
  std::vector<int64_t> bestPrices = prices;
  double pace = 1.0;
  unsigned stale = 0;
  bool bounded = false;
  for (unsigned round = 0; round < kMaxRounds && !stop(); ++round) {
    CostSum bound = 0;
    std::vector<unsigned> values;
    if (!solvePriced(bound, values)) {
      proven = !best.empty();
      break;
    }
    if (round % offerEvery == 0)
      offer(values);
    if (!bounded || bound > lower) {
      // Small gains do not count as progress.
      bool progress = !bounded || double(bound - lower) > 1e-3 * double(upper - lower);
      stale = progress ? 0 : stale + 1;
      lower = bounded ? std::max(lower, bound) : bound;
      bestPrices = prices;
      bounded = true;
    } else {
      ++stale;
    }
    if (!best.empty() && lower >= upper) {
      proven = true;
      break;
    }
    if (!best.empty() && upper - lower <= acceptable)
      break;
    if (!buckets && round < kWarmUp)
      continue;
    if (stale >= patience) {
      pace *= 0.5;
      stale = 0;
      if (pace < 1e-2)
        break;
      prices = bestPrices;
      continue;
    }
    if (!step(values, bound, pace))
      break;
  }
  prices = bestPrices;
}

Graph PriceSearch::remaining(CostSum &priceOfLimit) {
  priceOfLimit = offset();
  std::vector<std::vector<int64_t>> paid = payments();
  for (unsigned v = 0; v < paid.size(); ++v)
    if (!paid[v].empty())
      dual.setPrices(v, paid[v]);
  constexpr unsigned kSweeps = 30;
  for (unsigned i = 0; i < kSweeps && !proven && !outOfTime(); ++i)
    proven = !dual.sweep(upper + priceOfLimit) && !best.empty();
  if (dual.bound() - priceOfLimit > lower)
    lower = dual.bound() - priceOfLimit;
  return dual.shifted();
}
