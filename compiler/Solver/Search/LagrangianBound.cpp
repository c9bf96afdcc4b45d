//===- LagrangianBound.cpp - bounds by prices on the bytes of time points ---------===//

#include "compiler/Solver/Search/LagrangianBound.h"

#include <algorithm>
#include <cmath>

using namespace alpa;
using namespace alpa::solver;

static constexpr double kMostPrice = 0x1p60;
static constexpr double kMemory = 0.1;  // Weight of the latest answer in averages.
static constexpr unsigned kWarmUp = 10; // Sweeps before prices move at all.
static constexpr double kRestartPace = 0.1;
static constexpr double kSmallWork = 3e5;

LagrangianBound::LagrangianBound(const Graph &graph, int64_t limitBytes, Stop stop)
    : graph(graph), limit(limitBytes), dual(graph), payments(graph.variables.size()),
      prices(graph.baseBytes.size(), 0), bestPrices(prices), excess(prices.size(), 0),
      meanExcess(prices.size(), 0) {
  size_t numChoices = 0;
  for (const Variable &variable : graph.variables)
    numChoices += variable.numChoices();
  average.resize(numChoices, 0);
  work = dual.sweepWork();
  buckets.emplace(graph, kSmallWork, stop);
  if (buckets->exactWork() <= kSmallWork) {
    buckets->plan(1e18, 1e18);
    work = buckets->exactWork();
  } else {
    buckets.reset();
  }
  // To pay, to measure and to move takes time, too, and so does each small table.
  constexpr double kTimePoint = 4, kPayment = 6, kTable = 60;
  work += kTimePoint * double(prices.size());
  for (const Variable &variable : graph.variables)
    work += kPayment * double(variable.uses.size() * variable.numChoices());
  if (buckets)
    work += kTable * double(graph.variables.size());
  // Prices that matter are about the whole cost over the whole limit.
  double whole = std::max(1.0, std::abs(double(dual.bound() + graph.constant)));
  double scale = std::log2(whole / std::max(1.0, double(limit)));
  shift = static_cast<unsigned>(std::clamp(36.0 - scale, 0.0, 62.0));
}

void LagrangianBound::startFrom(llvm::ArrayRef<double> start) {
  for (size_t t = 0; t < prices.size(); ++t)
    prices[t] = int64_t(std::clamp(std::ldexp(start[t], int(shift)), 0.0, kMostPrice));
  bestPrices = prices;
  pace = kRestartPace;
}

void LagrangianBound::restart() {
  pace = kRestartPace;
  failures = 0;
}

std::vector<double> LagrangianBound::pricePerByte() const {
  std::vector<double> result;
  for (int64_t price : bestPrices)
    result.push_back(std::ldexp(double(price), -int(shift)));
  return result;
}

void LagrangianBound::pay() {
  std::vector<CostSum> sums(prices.size() + 1, 0);
  for (size_t t = 0; t < prices.size(); ++t)
    sums[t + 1] = sums[t] + prices[t];
  // What lies above costs more than any answer; less is a valid bound too.
  constexpr int64_t kMost = int64_t(1) << 52;
  for (unsigned v = 0; v < payments.size(); ++v) {
    const Variable &variable = graph.variables[v];
    if (variable.uses.empty())
      continue;
    std::vector<int64_t> &paid = payments[v];
    paid.assign(variable.numChoices(), 0);
    for (const Use &use : variable.uses) {
      CostSum price = 0;
      for (TimeRange range : use.life)
        price += sums[range.end] - sums[range.begin];
      if (price == 0)
        continue;
      for (size_t c = 0; c < paid.size(); ++c) {
        int64_t bytes = use.bytes[c];
        bool large = bytes > 0 && price > (CostSum(kMost) << shift) / bytes;
        paid[c] = std::min(kMost, paid[c] + (large ? kMost : int64_t((price * bytes) >> shift)));
      }
    }
  }
}

CostSum LagrangianBound::priceOfLimit() const {
  CostSum sum = 0;
  for (size_t t = 0; t < prices.size(); ++t)
    sum += CostSum(prices[t]) * (limit - graph.baseBytes[t]);
  return sum >> shift;
}

/// False if nothing below `upper` is left.
bool LagrangianBound::boundPriced(CostSum upper, CostSum &bound, Stop stop) {
  pay();
  CostSum offset = priceOfLimit() - graph.constant;
  if (buckets) {
    bound = buckets->eliminate(payments) - offset;
    taken = buckets->decode();
    return bound < upper;
  }
  for (unsigned v = 0; v < payments.size(); ++v)
    if (!payments[v].empty())
      dual.setPrices(v, payments[v]);
  for (unsigned sweeps = steps == 0 ? kWarmUp : 1; sweeps > 0; --sweeps)
    if (!dual.sweep(upper + offset, stop))
      return false;
  bound = dual.bound() - offset;
  taken = dual.decode();
  return bound < upper;
}

/// Looks at what the last answer uses.
void LagrangianBound::measure() {
  std::vector<int64_t> change(excess.size() + 1, 0);
  double weight = steps == 0 ? 1.0 : kMemory;
  size_t at = 0;
  for (unsigned v = 0; v < taken.size(); ++v) {
    for (const Use &use : graph.variables[v].uses)
      if (int64_t bytes = use.bytes[taken[v]])
        for (TimeRange range : use.life) {
          change[range.begin] += bytes;
          change[range.end] -= bytes;
        }
    unsigned count = graph.variables[v].numChoices();
    for (unsigned c = 0; c < count; ++c)
      average[at + c] *= float(1 - weight);
    average[at + taken[v]] += float(weight);
    at += count;
  }
  int64_t used = 0;
  for (size_t t = 0; t < excess.size(); ++t) {
    used += change[t];
    excess[t] = double(used) + double(graph.baseBytes[t]) - double(limit);
    meanExcess[t] += weight * (excess[t] - meanExcess[t]);
  }
}

/// From the best prices along the average excess.
void LagrangianBound::move(CostSum upper) {
  double norm = 0;
  auto slope = [&](size_t t) {
    return bestPrices[t] == 0 && meanExcess[t] < 0 ? 0.0 : meanExcess[t];
  };
  for (size_t t = 0; t < prices.size(); ++t)
    norm += slope(t) * slope(t);
  if (norm == 0) {
    pace *= 0.5;
    prices = bestPrices;
    return;
  }
  // Without an answer, a tenth above the bound stands for it.
  double gap = std::min(double(upper - best), 0.1 * std::abs(double(best)) + 1);
  gap = std::max(gap, 1e-6 * std::abs(double(best)));
  double length = std::ldexp(pace * gap / norm, int(shift));
  for (size_t t = 0; t < prices.size(); ++t)
    prices[t] =
        int64_t(std::clamp(double(bestPrices[t]) + length * meanExcess[t], 0.0, kMostPrice));
}

bool LagrangianBound::step(CostSum upper, Stop stop) {
  constexpr unsigned kPatience = 8;
  CostSum bound = 0;
  if (!boundPriced(upper, bound, stop)) {
    best = std::max(best, upper);
    return false;
  }
  measure();
  bool first = steps++ == 0;
  if (first || bound > best) {
    double gain = first ? 1 : double(bound - best);
    double dot = 0;
    for (size_t t = 0; t < excess.size(); ++t)
      dot += excess[t] * meanExcess[t];
    if (dot > 0)
      pace = std::min(2.0, pace * 1.1);
    failures = gain > 1e-7 * std::abs(double(bound)) ? 0 : failures + 1;
    best = bound;
    bestPrices = prices;
  } else {
    ++failures;
  }
  if (failures >= kPatience) {
    failures = 0;
    pace *= 0.66;
  }
  move(upper);
  return true;
}

std::optional<Graph> LagrangianBound::restricted(CostSum upper, std::vector<unsigned> *followed,
                                                 Stop stop) {
  prices = bestPrices;
  pay();
  CostSum offset = priceOfLimit() - graph.constant;
  for (unsigned v = 0; v < payments.size(); ++v)
    if (!payments[v].empty())
      dual.setPrices(v, payments[v]);
  for (unsigned i = 0; i < kSweeps; ++i)
    if (!dual.sweep(upper + offset, stop))
      return std::nullopt;
  best = std::max(best, dual.bound() - offset);
  return dual.restricted(upper + offset, followed);
}
