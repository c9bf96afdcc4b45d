//===- LayerDpTest.cpp - the layer DP and repeated blocks -----------------===//
//
// Eq. 6 against every way of cutting small problems; blocks that were planted
// into random sequences against those that are found.
//
//===----------------------------------------------------------------------===//

#include "compiler/Stage/Layers/LayerDp.h"

#include "llvm/Support/raw_ostream.h"
#include <map>
#include <random>
#include <set>

using namespace alpa;
using namespace alpa::stage;

namespace {

/// Layers by trying every cut.
bool checkCuts() {
  std::mt19937 rng(11);
  auto uniform = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  for (int round = 0; round < 300; ++round) {
    LayerProblem problem;
    unsigned n = uniform(1, 9), layers = uniform(1, 4);
    problem.units.resize(n);
    for (unsigned u = 0; u < n; ++u) {
      problem.units[u].flops = uniform(0, 10);
      for (unsigned v = 0; v < u; ++v)
        if (v + 1 == u || uniform(0, 3) == 0)
          problem.units[u].inputs.push_back({v, v, double(1 + (v * 7) % 5)});
    }
    double delta = uniform(0, 10) / 10.0, total = 0;
    for (auto &unit : problem.units)
      total += unit.flops;
    Layering got = clusterLayers(problem, layers, delta);
    unsigned wanted = std::min(layers, n);

    struct Score {
      double flops, bytes, square;
    };
    std::vector<Score> scores;
    double leastFlops = std::numeric_limits<double>::infinity();
    for (unsigned mask = 0; mask < (1u << (n - 1)); ++mask) {
      if (unsigned(__builtin_popcount(mask)) + 1 != wanted)
        continue;
      Score score{0, 0, 0};
      for (unsigned lo = 0; lo < n;) {
        unsigned hi = lo + 1;
        while (hi < n && !(mask >> (hi - 1) & 1))
          ++hi;
        double flops = 0, bytes = 0;
        std::set<unsigned> seen;
        for (unsigned u = lo; u < hi; ++u) {
          flops += problem.units[u].flops;
          for (auto &input : problem.units[u].inputs)
            if (input.producer < lo && seen.insert(input.value).second)
              bytes += input.bytes;
        }
        score = {std::max(score.flops, flops), std::max(score.bytes, bytes),
                 score.square + flops * flops};
        lo = hi;
      }
      scores.push_back(score);
      leastFlops = std::min(leastFlops, score.flops);
    }
    double limit = (1 + delta) * total / wanted;
    if (leastFlops > limit)
      limit = leastFlops * 1.1;
    limit += 1e-6;
    Score best{0, std::numeric_limits<double>::infinity(), 0};
    for (const Score &score : scores)
      if (score.flops <= limit &&
          std::tie(score.bytes, score.square) < std::tie(best.bytes, best.square))
        best = score;
    double square = 0;
    std::vector<double> flops(got.numLayers);
    for (unsigned u = 0; u < n; ++u)
      flops[got.layerOfUnit[u]] += problem.units[u].flops;
    for (double f : flops)
      square += f * f;
    if (got.numLayers != wanted || got.maxInputBytes != best.bytes || square != best.square) {
      llvm::outs() << "layers: round " << round << " differs from brute force\n";
      return false;
    }
  }
  llvm::outs() << "layers: ok\n";
  return true;
}

/// `count` equal blocks between units that are like no other. A unit reads the
/// one before it; the first of a block is read by the last as well, so that the
/// fewest bytes cross where a block ends.
struct Planted {
  LayerProblem problem;
  unsigned before, period, count;
};

Planted plant(std::mt19937 &rng) {
  auto uniform = [&](int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(rng); };
  Planted p;
  p.before = uniform(0, 6);
  p.period = uniform(2, 9);
  p.count = uniform(3, 40);
  unsigned after = uniform(0, 6), total = p.before + p.period * p.count + after;
  std::vector<double> flops(p.period);
  for (double &f : flops)
    f = uniform(1, 9);
  for (unsigned u = 0; u < total; ++u) {
    LayerProblem::Unit unit;
    unit.kind = 1000 + u;
    if (u >= p.before && u < total - after) {
      unsigned place = (u - p.before) % p.period;
      // Kinds within a block repeat too, but never a whole block.
      unit.kind = place == 0 ? 1 : 2 + place % 3;
      unit.flops = flops[place];
      unit.heavy = place == 1;
      if (place + 1 == p.period)
        unit.inputs.push_back({u - place, u - place, 8});
    }
    if (u > 0)
      unit.inputs.push_back({u - 1, u - 1, 8});
    p.problem.units.push_back(std::move(unit));
  }
  return p;
}

/// Of cuts that equally many bytes cross, the one behind the larger product is taken where layers
/// are computed again, else the first.
bool checkEqualCuts() {
  LayerProblem problem;
  for (unsigned i = 0; i < 9; ++i) { // A large product, then a small one.
    LayerProblem::Unit unit;
    unit.kind = i % 2;
    unit.flops = i % 2 ? 1 : 4;
    unit.heavy = 1;
    if (i > 0)
      unit.inputs.push_back({i - 1, i - 1, 8});
    problem.units.push_back(std::move(unit));
  }
  for (bool again : {false, true}) {
    problem.isComputedAgain = again;
    std::vector<Repeat> repeats = findRepeats(problem);
    if (repeats.size() != 1 || repeats[0].begin != unsigned(again) || repeats[0].count != 4) {
      llvm::outs() << "equal cuts: wrong blocks, computed again: " << again << "\n";
      return false;
    }
  }
  return true;
}

bool checkBlocks() {
  std::mt19937 rng(5);
  for (int round = 0; round < 300; ++round) {
    Planted p = plant(rng);
    std::vector<Repeat> repeats = findRepeats(p.problem);
    if (repeats.size() != 1 || repeats[0].begin != p.before || repeats[0].period != p.period ||
        repeats[0].count != p.count) {
      llvm::outs() << "blocks: round " << round << " finds others than were planted\n";
      return false;
    }
    // One layer for each block, and as many blocks in each as fit into the limit.
    for (unsigned most : {64u, 16u}) {
      Layering layering = clusterBlocks(p.problem, 0, most, 0.5);
      if (layering.numLayers > most)
        return false;
      std::map<unsigned, unsigned> blocks;
      for (unsigned b = 0; b < p.count; ++b) {
        unsigned begin = p.before + b * p.period, end = begin + p.period;
        bool whole = layering.layerOfUnit[begin] == layering.layerOfUnit[end - 1];
        if (!whole && p.count >= 8) {
          llvm::outs() << "blocks: round " << round << " cuts a block\n";
          return false;
        }
        ++blocks[layering.layerOfUnit[begin]];
      }
      std::set<unsigned> sizes;
      for (auto &[layer, size] : blocks)
        if (layer + 1 < layering.numLayers)
          sizes.insert(size);
      if (p.count >= 8 && sizes.size() > 1) {
        llvm::outs() << "blocks: round " << round << " has unequal layers\n";
        return false;
      }
    }
  }
  llvm::outs() << "blocks: ok\n";
  return true;
}

/// Blocks of a model that was asked for other numbers of layers than it has.
bool checkNumbers() {
  std::mt19937 rng(9);
  for (int round = 0; round < 100; ++round) {
    Planted p = plant(rng);
    for (unsigned wanted = 1; wanted <= 12; ++wanted) {
      Layering layering = clusterBlocks(p.problem, wanted, 64, 0.5);
      std::set<unsigned> used(layering.layerOfUnit.begin(), layering.layerOfUnit.end());
      bool ascends = std::is_sorted(layering.layerOfUnit.begin(), layering.layerOfUnit.end());
      if (used.size() != std::min<size_t>(wanted, p.problem.units.size()) || !ascends) {
        llvm::outs() << "numbers: round " << round << " has " << used.size() << " layers, not "
                     << wanted << "\n";
        return false;
      }
    }
  }
  llvm::outs() << "numbers: ok\n";
  return true;
}

} // namespace

int main() { return checkCuts() && checkEqualCuts() && checkBlocks() && checkNumbers() ? 0 : 1; }
