//===- LayerDp.cpp - equations into layers --------------------------------===//

#include "compiler/Stage/Layers/LayerDp.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

using namespace alpa;
using namespace alpa::stage;

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

Layering stage::clusterLayers(const LayerProblem &problem, unsigned numLayers, double delta) {
  numLayers = std::max(1u, std::min<unsigned>(numLayers, problem.units.size()));
  if (problem.units.empty())
    return Layering{{}, 1, 0, 0};
  return LayerDp(problem, numLayers, delta).run();
}

//===----------------------------------------------------------------------===//
// The repeated blocks of a model
//===----------------------------------------------------------------------===//

/// Fewer layers leave a pipeline too little choice. More are worth their search only
/// where they are alike: layers that all differ are all planned one by one.
static constexpr unsigned kEnoughLayers = 8;

namespace {

class RepeatFinder {
public:
  explicit RepeatFinder(const LayerProblem &problem)
      : units(problem.units), isComputedAgain(problem.isComputedAgain) {
    flops.assign(units.size() + 1, 0);
    heavy.assign(units.size() + 1, 0);
    for (size_t i = 0; i < units.size(); ++i) {
      flops[i + 1] = flops[i] + units[i].flops;
      heavy[i + 1] = heavy[i] + units[i].heavy;
    }
    fillCrossing();
  }

  std::vector<Repeat> run() {
    search(0, units.size());
    llvm::sort(found, [](const Repeat &a, const Repeat &b) { return a.begin < b.begin; });
    return std::move(found);
  }

private:
  /// A stretch of units that are what they are `period` units further on.
  struct Stretch {
    unsigned begin = 0, end = 0, period = 0;
    double flops = 0;
  };

  /// crossing[i]: bytes that units from i on read of earlier ones.
  void fillCrossing() {
    struct Value {
      unsigned producer, last;
      double bytes;
    };
    llvm::DenseMap<unsigned, Value> values;
    for (auto [number, unit] : llvm::enumerate(units))
      for (const LayerProblem::Input &input : unit.inputs) {
        Value fresh{input.producer, unsigned(number), input.bytes};
        auto [it, inserted] = values.try_emplace(input.value, fresh);
        it->second.last = std::max(it->second.last, unsigned(number));
      }
    crossing.assign(units.size() + 1, 0);
    for (auto &[number, value] : values) {
      crossing[value.producer + 1] += value.bytes;
      crossing[value.last + 1] -= value.bytes;
    }
    for (size_t i = 1; i < crossing.size(); ++i)
      crossing[i] += crossing[i - 1];
  }

  void search(unsigned begin, unsigned end) {
    if (end - begin < 2 || heavy[end] - heavy[begin] < 2)
      return;
    Stretch best = longest(begin, end);
    if (best.period == 0)
      return;
    Repeat repeat = align(best);
    found.push_back(repeat);
    search(begin, repeat.begin);
    search(repeat.end(), end);
  }

  /// The stretch of the most FLOPs; of those the shortest period.
  Stretch longest(unsigned begin, unsigned end) const {
    Stretch best;
    for (unsigned period = 1; period <= (end - begin) / 2; ++period) {
      unsigned equal = 0; // Units up to here that are repeated.
      for (unsigned i = begin; i + period <= end; ++i) {
        if (i + period < end && units[i].kind == units[i + period].kind) {
          ++equal;
          continue;
        }
        Stretch stretch{i - equal, i + period, period, flops[i + period] - flops[i - equal]};
        bool isHeavy = heavy[i] - heavy[i - equal] > 0;
        if (equal >= period && isHeavy && stretch.flops > best.flops * (1 + 1e-9))
          best = stretch;
        equal = 0;
      }
    }
    return best;
  }

  /// FLOPs of the last heavy unit before another, whose result, or what is made of it, crosses a
  /// cut there.
  double lastFlops(unsigned end) const {
    while (end > 0 && units[end - 1].heavy == 0)
      --end;
    return end > 0 ? units[end - 1].flops : 0;
  }

  /// Where in its period the stretch is best cut.
  Repeat align(const Stretch &stretch) const {
    Repeat best;
    double bestBytes = 0, bestFlops = 0;
    for (unsigned shift = 0; shift < stretch.period; ++shift) {
      Repeat repeat{stretch.begin + shift, stretch.period, 0};
      repeat.count = (stretch.end - repeat.begin) / stretch.period;
      if (repeat.count < 2)
        break;
      double bytes = 0;
      for (unsigned n = 1; n < repeat.count; ++n)
        bytes += crossing[repeat.begin + n * stretch.period] / (repeat.count - 1);
      // Rounding must not decide.
      bool fewer = bytes < bestBytes * (1 - 1e-9), same = bytes <= bestBytes * (1 + 1e-9);
      double flops = isComputedAgain ? lastFlops(repeat.begin + stretch.period) : 0;
      bool isFirst = std::pair(repeat.count, flops) > std::pair(best.count, bestFlops);
      if (best.count == 0 || fewer || (same && isFirst)) {
        best = repeat;
        bestBytes = bytes;
        bestFlops = flops;
      }
    }
    return best;
  }

  const std::vector<LayerProblem::Unit> &units;
  std::vector<double> flops, crossing; // Sums of the units before.
  std::vector<unsigned> heavy;
  bool isComputedAgain;
  std::vector<Repeat> found;
};

/// Units that are not cut apart: [begins[i], begins[i + 1]).
struct Atoms {
  std::vector<unsigned> begins;
  unsigned leastLayers = 0; // One for each part or group of blocks.
  unsigned layers = 0;      // Those, and what else weighs as much.
};

class BlockLayers {
public:
  BlockLayers(const LayerProblem &problem, double delta)
      : problem(problem), delta(delta), repeats(findRepeats(problem)) {
    for (const Repeat &repeat : repeats)
      if (!main || flopsOf(repeat.begin, repeat.end()) > flopsOf(main->begin, main->end()))
        main = &repeat;
  }

  Layering run(unsigned numLayers, unsigned mostLayers) {
    if (!main) {
      unsigned heavy = 0;
      for (const LayerProblem::Unit &unit : problem.units)
        heavy += unit.heavy > 0;
      unsigned automatic = std::min({heavy, mostLayers, kEnoughLayers});
      return clusterLayers(problem, numLayers ? numLayers : automatic, delta);
    }
    std::optional<Atoms> atoms = numLayers ? forNumber(numLayers) : automatic(mostLayers);
    if (!atoms) {
      numLayers = numLayers ? numLayers : mostLayers;
      atoms = cut(/*group=*/1, /*parts=*/1);
      if (atoms->leastLayers < numLayers)
        return clusterLayers(problem, numLayers, delta);
    }
    return layersOf(*atoms, numLayers ? numLayers : std::min(atoms->layers, mostLayers));
  }

private:
  double flopsOf(unsigned begin, unsigned end) const {
    double flops = 0;
    for (unsigned i = begin; i < end; ++i)
      flops += problem.units[i].flops;
    return flops;
  }
  unsigned heavyUnits(unsigned begin, unsigned end) const {
    unsigned count = 0;
    for (unsigned i = begin; i < end; ++i)
      count += problem.units[i].heavy > 0;
    return count;
  }

  std::optional<Atoms> automatic(unsigned mostLayers) const {
    Atoms natural = cut(1, 1);
    if (natural.layers > mostLayers) {
      // Equal groups if there are any that are not much larger than needed.
      unsigned least = (natural.layers + mostLayers - 1) / mostLayers;
      for (unsigned group = least; group <= std::min(2 * least, main->count); ++group)
        if (main->count % group == 0)
          if (Atoms atoms = cut(group, 1); atoms.layers <= mostLayers)
            return atoms;
      for (unsigned group = least; group <= main->count; ++group)
        if (Atoms atoms = cut(group, 1); atoms.layers <= mostLayers)
          return atoms;
      return std::nullopt;
    }
    Atoms best = natural;
    unsigned enough = std::min(kEnoughLayers, mostLayers);
    unsigned most = heavyUnits(main->begin, main->begin + main->period);
    for (unsigned parts = 2; parts <= most && best.layers < enough; ++parts) {
      Atoms atoms = cut(1, parts);
      if (atoms.layers > enough)
        break;
      best = atoms;
    }
    // Of few blocks a stage is cut within one: else what stands beside them, such as a large
    // vocabulary, leaves stages uneven.
    if (!problem.hasStacks && natural.layers >= enough && natural.layers < 2 * enough && most >= 2)
      if (Atoms halves = cut(1, 2); halves.layers <= mostLayers)
        return halves;
    return best;
  }

  std::optional<Atoms> forNumber(unsigned numLayers) const {
    auto fits = [&](const Atoms &atoms) {
      return atoms.leastLayers <= numLayers && numLayers <= atoms.layers;
    };
    for (unsigned group = 1; group <= main->count; ++group)
      if (Atoms atoms = cut(group, 1); main->count % group == 0 && fits(atoms))
        return atoms;
    unsigned most = heavyUnits(main->begin, main->begin + main->period);
    for (unsigned parts = 2; parts <= most; ++parts)
      if (Atoms atoms = cut(1, parts); fits(atoms))
        return atoms;
    return std::nullopt;
  }

  /// `group` blocks of the main repeat make a layer, or each block `parts` of
  /// them. Other repeats get layers of about the same FLOPs.
  Atoms cut(unsigned group, unsigned parts) const {
    double blockFlops = flopsOf(main->begin, main->begin + main->period);
    double layerFlops = blockFlops * group / parts;
    Atoms atoms;
    unsigned at = 0;
    auto between = [&](unsigned end) {
      double worth = layerFlops > 0 ? flopsOf(at, end) / layerFlops : 0;
      atoms.layers += std::min<unsigned>(heavyUnits(at, end), unsigned(std::lround(worth)));
      for (; at < end; ++at)
        atoms.begins.push_back(at);
    };
    for (const Repeat &repeat : repeats) {
      between(repeat.begin);
      double flops = flopsOf(repeat.begin, repeat.begin + repeat.period);
      unsigned size = 1;
      if (flops > 0 && parts == 1)
        size = std::clamp<unsigned>(unsigned(std::lround(layerFlops / flops)), 1, repeat.count);
      unsigned pieces = parts;
      if (&repeat != main && parts > 1)
        pieces = std::clamp<unsigned>(unsigned(std::lround(flops / layerFlops)), 1,
                                      heavyUnits(repeat.begin, repeat.begin + repeat.period));
      std::vector<unsigned> starts = partsOf(repeat, pieces);
      unsigned layers = 0;
      // A rest of fewer blocks comes last and may join its neighbours.
      for (unsigned n = 0; n < repeat.count; n += size)
        for (unsigned start : starts) {
          atoms.begins.push_back(repeat.begin + n * repeat.period + start);
          ++layers;
        }
      atoms.leastLayers += layers;
      atoms.layers += layers;
      at = repeat.end();
    }
    between(problem.units.size());
    return atoms;
  }

  /// Where the parts of a block begin, by Eq. 6 on one block.
  std::vector<unsigned> partsOf(const Repeat &repeat, unsigned parts) const {
    if (parts == 1)
      return {0};
    // The second block is like all that follow; the first may read something
    // else. Unit 0 stands for whatever made the values that come into it.
    unsigned begin = repeat.begin + repeat.period;
    LayerProblem block;
    block.units.emplace_back();
    for (unsigned i = begin; i < begin + repeat.period; ++i) {
      block.units.push_back(problem.units[i]);
      for (LayerProblem::Input &input : block.units.back().inputs)
        input.producer = input.producer < begin ? 0 : input.producer - begin + 1;
    }
    Layering layering = clusterLayers(block, parts, delta);
    std::vector<unsigned> starts = {0};
    for (unsigned i = 1; i < repeat.period; ++i)
      if (layering.layerOfUnit[i + 1] != layering.layerOfUnit[i])
        starts.push_back(i);
    return starts;
  }

  Layering layersOf(const Atoms &atoms, unsigned numLayers) const {
    std::vector<unsigned> atomOf(problem.units.size());
    for (size_t atom = 0; atom < atoms.begins.size(); ++atom) {
      unsigned end = atom + 1 < atoms.begins.size() ? atoms.begins[atom + 1] : atomOf.size();
      std::fill(atomOf.begin() + atoms.begins[atom], atomOf.begin() + end, atom);
    }
    LayerProblem coarse;
    coarse.units.resize(atoms.begins.size());
    std::vector<llvm::DenseSet<unsigned>> received(atoms.begins.size());
    for (auto [number, unit] : llvm::enumerate(problem.units)) {
      unsigned atom = atomOf[number];
      coarse.units[atom].flops += unit.flops;
      for (LayerProblem::Input input : unit.inputs) {
        input.producer = atomOf[input.producer];
        if (input.producer < atom && received[atom].insert(input.value).second)
          coarse.units[atom].inputs.push_back(input);
      }
    }
    Layering layering = clusterLayers(coarse, numLayers, delta);
    std::vector<unsigned> layerOfUnit;
    for (unsigned atom : atomOf)
      layerOfUnit.push_back(layering.layerOfUnit[atom]);
    layering.layerOfUnit = std::move(layerOfUnit);
    return layering;
  }

  const LayerProblem &problem;
  double delta;
  std::vector<Repeat> repeats;
  const Repeat *main = nullptr; // Of the most FLOPs.
};

} // namespace

std::vector<Repeat> stage::findRepeats(const LayerProblem &problem) {
  return RepeatFinder(problem).run();
}

Layering stage::clusterBlocks(const LayerProblem &problem, unsigned numLayers, unsigned mostLayers,
                              double delta) {
  if (problem.units.empty())
    return clusterLayers(problem, numLayers, delta);
  return BlockLayers(problem, delta).run(numLayers, std::max(1u, mostLayers));
}
