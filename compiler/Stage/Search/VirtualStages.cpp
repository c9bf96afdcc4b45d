//===- VirtualStages.cpp - several stages on each mesh --------------------===//

#include "compiler/Stage/Search/VirtualStages.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

using namespace alpa;
using namespace alpa::stage;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

namespace {

/// A cut whose stages are about equal is improved layer by layer. Where that is further from the
/// bound than wanted, branch and bound over the stages of all rounds but the last; a round is one
/// stage on each mesh. For what these leave, the last round's best cut is found by a dynamic
/// program.
class CutSearch {
public:
  explicit CutSearch(const VirtualStageProblem &problem)
      : problem(problem), numLayers(problem.numLayers), numStages(problem.numStages()),
        lastRound(numStages - problem.numMeshes) {}

  VirtualStagePlan run() {
    if (!problem.layerRanges.empty()) {
      Cut cut{0};
      for (auto [lo, hi] : problem.layerRanges)
        cut.push_back(hi);
      takeGiven(cut);
      return std::move(best);
    }
    findRest();
    best.leastSum = rest[0];
    if (rest[0] == kInfinity || averageOf(rest[0]) >= problem.mostSeconds)
      return std::move(best);
    if (numStages == numLayers) { // There is no other cut.
      takeGiven(evenLayers());
      return std::move(best);
    }
    stages.resize(numStages);
    meshes.resize(problem.numMeshes);
    for (const Cut &cut : {evenSeconds(), evenLayers()})
      improve(cut);
    stepsOfBest = steps;
    if (!isGoodEnough())
      place(0, 0);
    return std::move(best);
  }

private:
  /// Choices that are looked at in all, about a fifth of a second, and without a better cut.
  static constexpr size_t kMostSteps = 2000000, kMostInVain = 200000;

  /// Where stages begin, and the number of layers.
  using Cut = llvm::SmallVector<unsigned>;

  struct Option {
    double seconds;
    int64_t bytes;
    unsigned choice;
  };
  struct Mesh {
    double seconds = 0;
    int64_t bytes = 0;
    unsigned view = 0;
  };

  /// What no other choice beats in both, the fastest first.
  llvm::ArrayRef<Option> optionsOf(unsigned stage, unsigned view, unsigned lo, unsigned hi) {
    size_t at = ((size_t(stage) * problem.numViews + view) * numLayers + lo) * (numLayers + 1) + hi;
    auto [it, isNew] = known.try_emplace(at, options.size());
    if (isNew)
      options.push_back(findOptions(stage, view, lo, hi));
    return options[it->second];
  }
  double averageOf(double sum) const { return sum / double(problem.numMeshes); }
  bool isGoodEnough() const {
    return best.seconds * (1 - problem.tolerance) <= averageOf(rest[0]) || steps >= kMostSteps ||
           steps >= stepsOfBest + kMostInVain;
  }

  std::vector<Option> findOptions(unsigned stage, unsigned view, unsigned lo, unsigned hi) const {
    std::vector<Option> list;
    // Each stage has a layer at least.
    if (hi <= lo || lo < stage || numLayers - hi < numStages - stage - 1)
      return list;
    unsigned mesh = problem.meshOf(stage);
    for (auto [index, choice] : llvm::enumerate(problem.choices(lo, hi, mesh, view))) {
      int64_t bytes = choice.peakBytes(problem.inFlight[stage]);
      if (std::isfinite(choice.seconds) && bytes <= problem.memoryOf(mesh) &&
          problem.inFlight[stage] <= choice.mostInFlight)
        list.push_back({choice.seconds, bytes, unsigned(index)});
    }
    llvm::sort(list, [](const Option &a, const Option &b) {
      return std::make_tuple(a.seconds, a.bytes, a.choice) <
             std::make_tuple(b.seconds, b.bytes, b.choice);
    });
    size_t kept = 0;
    for (const Option &option : list)
      if (kept == 0 || option.bytes < list[kept - 1].bytes)
        list[kept++] = option;
    list.resize(kept);
    return list;
  }

  /// The fewest seconds of layers on any view of a mesh, and of a stage and those after it.
  void findRest() {
    // Every other stage has a layer at least.
    unsigned row = numLayers + 1, most = numLayers - numStages + 1;
    fastest.assign(size_t(problem.numMeshes) * numLayers * row, kInfinity);
    for (unsigned mesh = 0; mesh < problem.numMeshes; ++mesh)
      for (unsigned lo = 0; lo < numLayers; ++lo)
        for (unsigned hi = lo + 1; hi <= std::min(lo + most, numLayers); ++hi)
          for (unsigned view = 0; view < problem.numViews; ++view)
            for (const StageChoice &choice : problem.choices(lo, hi, mesh, view))
              fastest[(size_t(mesh) * numLayers + lo) * row + hi] =
                  std::min(fastest[(size_t(mesh) * numLayers + lo) * row + hi], choice.seconds);
    rest.assign(size_t(numStages + 1) * row, kInfinity);
    rest[size_t(numStages) * row + numLayers] = 0;
    for (unsigned stage = numStages; stage-- > 0;)
      for (unsigned lo = stage; lo < numLayers; ++lo)
        for (unsigned hi = lo + 1; hi <= numLayers; ++hi)
          rest[size_t(stage) * row + lo] =
              std::min(rest[size_t(stage) * row + lo],
                       fastestOf(stage, lo, hi) + rest[size_t(stage + 1) * row + hi]);
  }
  double fastestOf(unsigned stage, unsigned lo, unsigned hi) const {
    return fastest[(size_t(problem.meshOf(stage)) * numLayers + lo) * (numLayers + 1) + hi];
  }
  double restOf(unsigned stage, unsigned lo) const {
    return rest[size_t(stage) * (numLayers + 1) + lo];
  }

  /// The cut whose slowest stage is the fastest.
  Cut evenSeconds() const {
    unsigned row = numLayers + 1;
    std::vector<double> most(size_t(numStages + 1) * row, kInfinity);
    std::vector<unsigned> end(most.size(), 0);
    most[size_t(numStages) * row + numLayers] = 0;
    for (unsigned stage = numStages; stage-- > 0;)
      for (unsigned lo = stage; lo < numLayers; ++lo)
        for (unsigned hi = lo + 1; hi <= numLayers; ++hi) {
          double seconds = std::max(fastestOf(stage, lo, hi), most[size_t(stage + 1) * row + hi]);
          if (seconds < most[size_t(stage) * row + lo]) {
            most[size_t(stage) * row + lo] = seconds;
            end[size_t(stage) * row + lo] = hi;
          }
        }
    Cut cut{0};
    if (most[0] == kInfinity)
      return evenLayers();
    for (unsigned stage = 0; stage < numStages; ++stage)
      cut.push_back(end[size_t(stage) * row + cut.back()]);
    return cut;
  }
  Cut evenLayers() const {
    Cut cut;
    for (unsigned stage = 0; stage <= numStages; ++stage)
      cut.push_back(unsigned(size_t(stage) * numLayers / numStages));
    return cut;
  }

  /// What a mesh's stages of a cut take at best.
  struct Load {
    int64_t excess = std::numeric_limits<int64_t>::max() / 1024; // Bytes beyond its memory.
    double seconds = kInfinity;
    unsigned view = 0;
    llvm::SmallVector<const Option *, 4> chosen; // By round.
  };

  Load loadOf(unsigned mesh, const Cut &cut) {
    Load load;
    steps += problem.numViews * problem.stagesPerMesh;
    for (unsigned view = 0; view < problem.numViews; ++view) {
      llvm::SmallVector<llvm::ArrayRef<Option>, 4> lists;
      for (unsigned round = 0; round < problem.stagesPerMesh; ++round) {
        unsigned stage = problem.stageOf(mesh, round);
        lists.push_back(optionsOf(stage, view, cut[stage], cut[stage + 1]));
      }
      if (llvm::any_of(lists, [](llvm::ArrayRef<Option> list) { return list.empty(); }))
        continue;
      // The fastest of each; while they do not fit, what saves bytes for the fewest seconds.
      llvm::SmallVector<unsigned, 4> at(lists.size(), 0);
      Load mine;
      mine.view = view;
      int64_t bytes = -problem.memoryOf(mesh);
      for (llvm::ArrayRef<Option> list : lists)
        bytes += list.front().bytes;
      while (bytes > 0) {
        int next = -1;
        double least = kInfinity;
        for (auto [round, list] : llvm::enumerate(lists)) {
          if (at[round] + 1 == list.size())
            continue;
          const Option &now = list[at[round]], &after = list[at[round] + 1];
          double price = (after.seconds - now.seconds) / double(now.bytes - after.bytes);
          if (price < least) {
            least = price;
            next = int(round);
          }
        }
        if (next < 0)
          break;
        const Option &now = lists[next][at[next]], &after = lists[next][++at[next]];
        bytes += after.bytes - now.bytes;
      }
      mine.excess = std::max<int64_t>(0, bytes);
      mine.seconds = 0;
      for (auto [round, list] : llvm::enumerate(lists)) {
        mine.chosen.push_back(&list[at[round]]);
        mine.seconds += mine.chosen.back()->seconds;
      }
      if (std::make_pair(mine.excess, mine.seconds) < std::make_pair(load.excess, load.seconds))
        load = std::move(mine);
    }
    return load;
  }

  /// Moves single layers from stages of the busiest mesh to other stages, as long as that helps.
  void improve(Cut cut) {
    auto valueOf = [](llvm::ArrayRef<Load> loads) {
      int64_t excess = 0;
      double most = 0, sum = 0;
      for (const Load &load : loads) {
        excess += load.excess;
        most = std::max(most, load.seconds);
        sum += load.seconds;
      }
      return std::make_tuple(excess, most, sum);
    };
    auto worseThan = [](const Load &a, const Load &b) {
      return std::make_pair(a.excess, a.seconds) < std::make_pair(b.excess, b.seconds);
    };
    std::vector<Load> loads;
    for (unsigned mesh = 0; mesh < problem.numMeshes; ++mesh)
      loads.push_back(loadOf(mesh, cut));
    auto value = valueOf(loads);
    for (bool isChanged = true; isChanged && steps < kMostSteps / 4;) {
      isChanged = false;
      unsigned busiest = llvm::max_element(loads, worseThan) - loads.begin();
      Cut bestCut;
      std::vector<Load> bestLoads;
      for (unsigned round = 0; round < problem.stagesPerMesh; ++round) {
        unsigned from = problem.stageOf(busiest, round);
        if (cut[from + 1] - cut[from] < 2)
          continue;
        for (unsigned to = 0; to < numStages; ++to) {
          if (to == from)
            continue;
          Cut moved = cut;
          for (unsigned begin = std::min(from, to) + 1; begin <= std::max(from, to); ++begin)
            moved[begin] += from < to ? -1 : 1;
          std::vector<Load> other = loads;
          std::vector<bool> isChangedMesh(problem.numMeshes, false);
          for (unsigned stage = std::min(from, to); stage <= std::max(from, to); ++stage)
            isChangedMesh[problem.meshOf(stage)] = true;
          for (unsigned mesh = 0; mesh < problem.numMeshes; ++mesh)
            if (isChangedMesh[mesh])
              other[mesh] = loadOf(mesh, moved);
          auto changed = valueOf(other);
          if (changed < value) {
            value = changed;
            bestCut = std::move(moved);
            bestLoads = std::move(other);
          }
        }
      }
      if (!bestCut.empty()) {
        cut = std::move(bestCut);
        loads = std::move(bestLoads);
        isChanged = true;
      }
    }
    auto [excess, most, sum] = value;
    if (excess == 0 && most < best.seconds)
      take(cut, loads, most);
  }

  void take(const Cut &cut, llvm::ArrayRef<Load> loads, double seconds) {
    best.seconds = seconds;
    best.stages.resize(numStages);
    for (unsigned stage = 0; stage < numStages; ++stage) {
      const Load &load = loads[problem.meshOf(stage)];
      const Option &option = *load.chosen[stage / problem.numMeshes];
      best.stages[stage] = {cut[stage], cut[stage + 1], load.view,
                            choiceOf(stage, cut[stage], cut[stage + 1], load.view, option)};
    }
  }

  /// The fewest seconds of a mesh's stages that fit.
  Load fastestLoad(unsigned mesh, const Cut &cut) {
    Load best;
    for (unsigned view = 0; view < problem.numViews; ++view) {
      // What no other choices of the first stages beat in both.
      std::vector<Load> partial(1);
      partial.front().seconds = 0;
      partial.front().excess = -problem.memoryOf(mesh);
      partial.front().view = view;
      for (unsigned round = 0; round < problem.stagesPerMesh; ++round) {
        unsigned stage = problem.stageOf(mesh, round);
        std::vector<Load> longer;
        for (const Load &load : partial)
          for (const Option &option : optionsOf(stage, view, cut[stage], cut[stage + 1])) {
            if (load.excess + option.bytes > 0)
              continue;
            longer.push_back(load);
            longer.back().seconds += option.seconds;
            longer.back().excess += option.bytes;
            longer.back().chosen.push_back(&option);
          }
        std::vector<unsigned> order(longer.size());
        std::iota(order.begin(), order.end(), 0);
        llvm::sort(order, [&](unsigned a, unsigned b) {
          return std::make_tuple(longer[a].seconds, longer[a].excess, a) <
                 std::make_tuple(longer[b].seconds, longer[b].excess, b);
        });
        partial.clear();
        for (unsigned index : order)
          if (partial.empty() || longer[index].excess < partial.back().excess)
            partial.push_back(std::move(longer[index]));
      }
      if (!partial.empty() && partial.front().seconds < best.seconds)
        best = std::move(partial.front());
    }
    return best;
  }

  /// With the cut given, no mesh depends on another.
  void takeGiven(const Cut &cut) {
    std::vector<Load> loads;
    double most = 0;
    for (unsigned mesh = 0; mesh < problem.numMeshes; ++mesh) {
      loads.push_back(fastestLoad(mesh, cut));
      most = std::max(most, loads.back().seconds);
    }
    if (most < kInfinity)
      take(cut, loads, most);
  }

  void place(unsigned stage, unsigned lo) {
    if (stage == lastRound)
      return finish(lo);
    struct Way {
      double difference; // From an even share of what is left.
      unsigned hi, view;
      const Option *option;
    };
    Mesh &mesh = meshes[problem.meshOf(stage)];
    double even = restOf(stage, lo) / double(numStages - stage);
    std::vector<Way> ways;
    bool isFirst = stage < problem.numMeshes;
    for (unsigned hi = lo + 1; hi <= numLayers; ++hi)
      for (unsigned view = isFirst ? 0 : mesh.view, end = isFirst ? problem.numViews : view + 1;
           view < end; ++view)
        for (const Option &option : optionsOf(stage, view, lo, hi))
          if (restOf(stage + 1, hi) < kInfinity)
            ways.push_back({std::abs(option.seconds + restOf(stage + 1, hi) - restOf(stage, lo)) +
                                std::abs(option.seconds - even),
                            hi, view, &option});
    steps += ways.size() + numLayers * problem.numViews;
    llvm::sort(ways, [](const Way &a, const Way &b) {
      return std::make_tuple(a.difference, a.hi, a.view, a.option) <
             std::make_tuple(b.difference, b.hi, b.view, b.option);
    });
    Mesh before = mesh;
    double sum = 0;
    for (const Mesh &other : meshes)
      sum += other.seconds;
    for (const Way &way : ways) {
      if (isGoodEnough())
        break;
      mesh = {before.seconds + way.option->seconds, before.bytes + way.option->bytes, way.view};
      double bound =
          std::max(mesh.seconds, averageOf(sum + way.option->seconds + restOf(stage + 1, way.hi)));
      if (bound >= best.seconds || mesh.bytes > problem.memoryOf(problem.meshOf(stage)))
        continue;
      stages[stage] = {lo, way.hi, way.view, choiceOf(stage, lo, way.hi, way.view, *way.option)};
      place(stage + 1, way.hi);
    }
    mesh = before;
  }

  StageChoice choiceOf(unsigned stage, unsigned lo, unsigned hi, unsigned view,
                       const Option &option) const {
    return problem.choices(lo, hi, problem.meshOf(stage), view)[option.choice];
  }

  /// The last round, from its last stage backwards: the least that its busiest mesh
  /// takes, by the layer where the round's stages from here on begin.
  void finish(unsigned lo) {
    struct Entry {
      double seconds = kInfinity;
      unsigned hi = 0, view = 0;
      const Option *option = nullptr;
    };
    unsigned row = numLayers + 1;
    std::vector<Entry> table(size_t(problem.numMeshes + 1) * row);
    table[size_t(problem.numMeshes) * row + numLayers].seconds = 0;
    for (unsigned m = problem.numMeshes; m-- > 0;) {
      unsigned stage = lastRound + m;
      const Mesh &mesh = meshes[problem.meshOf(stage)];
      bool isFirst = lastRound == 0;
      for (unsigned from = lo; from < numLayers; ++from) {
        if (m == 0 && from != lo)
          break;
        Entry &entry = table[size_t(m) * row + from];
        for (unsigned hi = from + 1; hi <= numLayers; ++hi) {
          double after = table[size_t(m + 1) * row + hi].seconds;
          if (after >= std::min(best.seconds, entry.seconds))
            continue;
          for (unsigned view = isFirst ? 0 : mesh.view, end = isFirst ? problem.numViews : view + 1;
               view < end; ++view)
            for (const Option &option : optionsOf(stage, view, from, hi)) {
              ++steps;
              if (mesh.bytes + option.bytes > problem.memoryOf(problem.meshOf(stage)))
                continue; // Slower ones may fit.
              double seconds = std::max(after, mesh.seconds + option.seconds);
              if (seconds < entry.seconds)
                entry = {seconds, hi, view, &option};
              break;
            }
        }
      }
    }
    if (table[lo].seconds >= best.seconds)
      return;
    best.seconds = table[lo].seconds;
    stepsOfBest = steps;
    for (unsigned m = 0, from = lo; m < problem.numMeshes; ++m) {
      const Entry &entry = table[size_t(m) * row + from];
      unsigned stage = lastRound + m;
      stages[stage] = {from, entry.hi, entry.view,
                       choiceOf(stage, from, entry.hi, entry.view, *entry.option)};
      from = entry.hi;
    }
    best.stages = stages;
  }

  const VirtualStageProblem &problem;
  unsigned numLayers, numStages, lastRound;
  llvm::DenseMap<size_t, unsigned> known;  // Options by stage, view and layers.
  std::deque<std::vector<Option>> options; // Stay where they are.
  std::vector<double> fastest, rest;
  std::vector<VirtualStage> stages;
  std::vector<Mesh> meshes;
  size_t steps = 0, stepsOfBest = 0;
  VirtualStagePlan best;
};

} // namespace

VirtualStagePlan stage::solveVirtualStages(const VirtualStageProblem &problem) {
  if (problem.numStages() == 0 || problem.numStages() > problem.numLayers)
    return {};
  return CutSearch(problem).run();
}

double stage::virtualStageSeconds(const VirtualStageProblem &problem,
                                  llvm::ArrayRef<VirtualStage> stages) {
  std::vector<double> sums(problem.numMeshes, 0);
  for (auto [index, stage] : llvm::enumerate(stages))
    sums[problem.meshOf(unsigned(index))] += stage.choice.seconds;
  return *llvm::max_element(sums);
}

bool stage::virtualStagesFit(const VirtualStageProblem &problem,
                             llvm::ArrayRef<VirtualStage> stages) {
  std::vector<int64_t> bytes(problem.numMeshes, 0);
  for (auto [index, stage] : llvm::enumerate(stages))
    bytes[problem.meshOf(unsigned(index))] += stage.choice.peakBytes(problem.inFlight[index]);
  for (unsigned mesh = 0; mesh < problem.numMeshes; ++mesh)
    if (bytes[mesh] > problem.memoryOf(mesh))
      return false;
  return true;
}
