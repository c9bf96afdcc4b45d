//===- VirtualStages.cpp - several stages on each mesh --------------------===//

#include "compiler/Stage/Search/VirtualStages.h"

#include "llvm/ADT/STLExtras.h"
#include <algorithm>
#include <cmath>

using namespace alpa;
using namespace alpa::stage;

static constexpr double kInfinity = std::numeric_limits<double>::infinity();

namespace {

/// Branch and bound over the stages of all rounds but the last; a round is one stage
/// on each mesh. For what these leave, the last round's best cut is found by a
/// dynamic program.
class CutSearch {
public:
  explicit CutSearch(const VirtualStageProblem &problem)
      : problem(problem), numLayers(problem.numLayers), numStages(problem.numStages()),
        lastRound(numStages - problem.numMeshes) {}

  VirtualStagePlan run() {
    readOptions();
    findRest();
    if (rest[0] == kInfinity)
      return {};
    stages.resize(numStages);
    meshes.resize(problem.numMeshes);
    place(0, 0);
    return std::move(best);
  }

private:
  /// Times that the last round is solved.
  static constexpr unsigned kMostTries = 4000;

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

  size_t entryAt(unsigned stage, unsigned view, unsigned lo, unsigned hi) const {
    return ((size_t(stage) * problem.numViews + view) * numLayers + lo) * (numLayers + 1) + hi;
  }
  llvm::ArrayRef<Option> optionsOf(unsigned stage, unsigned view, unsigned lo, unsigned hi) const {
    size_t at = entryAt(stage, view, lo, hi);
    return llvm::ArrayRef(options).slice(begins[at], begins[at + 1] - begins[at]);
  }
  bool allows(unsigned stage, unsigned lo, unsigned hi) const {
    return problem.layerRanges.empty() || problem.layerRanges[stage] == std::make_pair(lo, hi);
  }
  double averageOf(double sum) const { return sum / double(problem.numMeshes); }
  bool isGoodEnough() const {
    return best.seconds * (1 - problem.tolerance) <= averageOf(rest[0]) || tries >= kMostTries;
  }

  /// For each stage, view and run of layers what no other choice beats in both.
  void readOptions() {
    begins.reserve(entryAt(numStages, 0, 0, 0) + 1);
    for (unsigned stage = 0; stage < numStages; ++stage)
      for (unsigned view = 0; view < problem.numViews; ++view)
        for (unsigned lo = 0; lo < numLayers; ++lo)
          for (unsigned hi = 0; hi <= numLayers; ++hi) {
            begins.push_back(options.size());
            // Each stage has a layer at least.
            if (hi > lo && lo >= stage && numLayers - hi >= numStages - stage - 1 &&
                allows(stage, lo, hi))
              addOptions(stage, view, lo, hi);
          }
    begins.push_back(options.size());
  }

  void addOptions(unsigned stage, unsigned view, unsigned lo, unsigned hi) {
    unsigned mesh = problem.meshOf(stage);
    size_t begin = options.size();
    for (auto [index, choice] : llvm::enumerate(problem.choices(lo, hi, mesh, view))) {
      int64_t bytes = choice.peakBytes(problem.inFlight[stage]);
      if (std::isfinite(choice.seconds) && bytes <= problem.memoryOf(mesh))
        options.push_back({choice.seconds, bytes, unsigned(index)});
    }
    std::sort(options.begin() + begin, options.end(), [](const Option &a, const Option &b) {
      return a.seconds != b.seconds ? a.seconds < b.seconds : a.bytes < b.bytes;
    });
    size_t kept = begin;
    for (size_t i = begin; i < options.size(); ++i)
      if (kept == begin || options[i].bytes < options[kept - 1].bytes)
        options[kept++] = options[i];
    options.resize(kept);
  }

  /// The fewest seconds of a stage and those after it, on whatever views.
  void findRest() {
    unsigned row = numLayers + 1;
    rest.assign(size_t(numStages + 1) * row, kInfinity);
    rest[size_t(numStages) * row + numLayers] = 0;
    for (unsigned stage = numStages; stage-- > 0;)
      for (unsigned lo = 0; lo < numLayers; ++lo)
        for (unsigned hi = lo + 1; hi <= numLayers; ++hi)
          for (unsigned view = 0; view < problem.numViews; ++view)
            if (auto list = optionsOf(stage, view, lo, hi); !list.empty())
              rest[size_t(stage) * row + lo] =
                  std::min(rest[size_t(stage) * row + lo],
                           list.front().seconds + rest[size_t(stage + 1) * row + hi]);
  }
  double restOf(unsigned stage, unsigned lo) const {
    return rest[size_t(stage) * (numLayers + 1) + lo];
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
    ++tries;
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
      const Mesh &mesh = meshes[m];
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
              if (mesh.bytes + option.bytes > problem.memoryOf(m))
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
  std::vector<Option> options;
  std::vector<size_t> begins;
  std::vector<double> rest;
  std::vector<VirtualStage> stages;
  std::vector<Mesh> meshes;
  unsigned tries = 0;
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
