//===- MergeTimePoints.cpp - uses and time points that cannot matter ----------===//

#include "compiler/Solver/Model/Graph.h"
#include "compiler/Solver/Presolve/Presolve.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>

using namespace alpa;
using namespace alpa::solver;

static bool lessLife(const Use &x, const Use &y) {
  return std::lexicographical_compare(
      x.life.begin(), x.life.end(), y.life.begin(), y.life.end(),
      [](TimeRange p, TimeRange q) { return std::tie(p.begin, p.end) < std::tie(q.begin, q.end); });
}

void solver::tidyUses(Graph &graph, Variable &variable) {
  std::vector<Use> &uses = variable.uses;
  llvm::sort(uses, lessLife);
  size_t kept = 0;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (kept && !lessLife(uses[kept - 1], uses[i])) {
      for (size_t c = 0; c < uses[i].bytes.size(); ++c)
        uses[kept - 1].bytes[c] += uses[i].bytes[c];
      continue;
    }
    if (kept != i)
      uses[kept] = std::move(uses[i]);
    ++kept;
  }
  uses.resize(kept);
  for (Use &use : uses) {
    int64_t least = *llvm::min_element(use.bytes);
    if (least == 0)
      continue;
    for (int64_t &bytes : use.bytes)
      bytes -= least;
    for (TimeRange range : use.life)
      for (unsigned t = range.begin; t < range.end; ++t)
        graph.baseBytes[t] += least;
  }
  llvm::erase_if(uses, [](const Use &use) {
    return llvm::all_of(use.bytes, [](int64_t bytes) { return bytes == 0; });
  });
}

namespace {

/// How the bytes of some variables change from one kept time point to the next.
struct Change {
  unsigned variable;
  std::vector<int64_t> bytes; // Per choice.
};

class TimePointList {
public:
  TimePointList(Graph &graph, llvm::ArrayRef<unsigned> kept);
  /// Removes what a time point beside it makes redundant; returns what is left, and
  /// enters in `standIn` by which time point each that goes is implied.
  std::vector<unsigned> reduce(std::vector<int> &standIn);

private:
  bool implies(size_t strong, size_t weak, bool forward) const;
  void remove(size_t at);

  std::vector<unsigned> timePoints;
  std::vector<int64_t> base;
  std::vector<size_t> previous, next;
  std::vector<std::vector<Change>> changes; // From each time point to its next.
  std::vector<char> removed;
};

} // namespace

static void addChanges(std::vector<Change> &sum, std::vector<Change> &&more) {
  std::vector<Change> result;
  size_t i = 0, j = 0;
  while (i < sum.size() || j < more.size()) {
    if (j == more.size() || (i < sum.size() && sum[i].variable < more[j].variable)) {
      result.push_back(std::move(sum[i++]));
    } else if (i == sum.size() || more[j].variable < sum[i].variable) {
      result.push_back(std::move(more[j++]));
    } else {
      Change both = std::move(sum[i++]);
      for (size_t c = 0; c < both.bytes.size(); ++c)
        both.bytes[c] += more[j].bytes[c];
      ++j;
      if (llvm::any_of(both.bytes, [](int64_t bytes) { return bytes != 0; }))
        result.push_back(std::move(both));
    }
  }
  sum = std::move(result);
}

TimePointList::TimePointList(Graph &graph, llvm::ArrayRef<unsigned> kept)
    : timePoints(kept.begin(), kept.end()), changes(kept.size()), removed(kept.size(), false) {
  std::vector<unsigned> number(graph.baseBytes.size() + 1);
  for (size_t t = 0, k = 0; t < number.size(); ++t) {
    number[t] = k;
    k += k < kept.size() && kept[k] == t;
  }
  for (size_t k = 0; k < kept.size(); ++k) {
    base.push_back(graph.baseBytes[kept[k]]);
    previous.push_back(k - 1);
    next.push_back(k + 1);
  }
  for (unsigned v = 0; v < graph.variables.size(); ++v) {
    auto addAt = [&](unsigned timePoint, llvm::ArrayRef<int64_t> bytes, int sign) {
      if (timePoint == 0 || timePoint >= kept.size())
        return;
      std::vector<Change> &list = changes[timePoint - 1];
      if (list.empty() || list.back().variable != v)
        list.push_back({v, std::vector<int64_t>(bytes.size(), 0)});
      for (size_t c = 0; c < bytes.size(); ++c)
        list.back().bytes[c] += sign * bytes[c];
    };
    UsageSteps profile(graph.variables[v]);
    for (const UsageSteps::Step &step : profile.steps()) {
      unsigned begin = number[step.range.begin], end = number[step.range.end];
      if (begin == end)
        continue;
      addAt(begin, step.bytes, 1);
      addAt(end, step.bytes, -1);
    }
  }
}

/// Whether the limit holds at `weak` if it holds at its neighbour `strong`.
bool TimePointList::implies(size_t strong, size_t weak, bool forward) const {
  // Forward: the strong one comes first.
  int64_t excess = base[weak] - base[strong];
  for (const Change &change : changes[forward ? strong : weak]) {
    auto [least, most] = std::minmax_element(change.bytes.begin(), change.bytes.end());
    excess += forward ? *most : -*least;
  }
  return excess <= 0;
}

void TimePointList::remove(size_t at) {
  removed[at] = true;
  size_t before = previous[at], after = next[at];
  if (after < timePoints.size())
    previous[after] = before;
  if (before < timePoints.size()) {
    next[before] = after;
    addChanges(changes[before], std::move(changes[at]));
  }
}

std::vector<unsigned> TimePointList::reduce(std::vector<int> &standIn) {
  // Everything before `at` is settled.
  for (size_t at = 0; at < timePoints.size();) {
    size_t after = next[at], before = previous[at];
    if (after >= timePoints.size())
      break;
    if (implies(at, after, /*forward=*/true)) {
      standIn[timePoints[after]] = int(timePoints[at]);
      remove(after);
    } else if (implies(after, at, /*forward=*/false)) {
      standIn[timePoints[at]] = int(timePoints[after]);
      remove(at);
      at = before < timePoints.size() ? before : after;
    } else {
      at = after;
    }
  }
  std::vector<unsigned> left;
  for (size_t k = 0; k < timePoints.size(); ++k)
    if (!removed[k])
      left.push_back(timePoints[k]);
  return left;
}

static void renumber(Graph &graph, llvm::ArrayRef<unsigned> kept) {
  std::vector<unsigned> number(graph.baseBytes.size() + 1);
  for (size_t t = 0, k = 0; t < number.size(); ++t) {
    number[t] = k;
    k += k < kept.size() && kept[k] == t;
  }
  std::vector<int64_t> base;
  for (unsigned t : kept)
    base.push_back(graph.baseBytes[t]);
  graph.baseBytes = std::move(base);
  for (Variable &variable : graph.variables) {
    for (Use &use : variable.uses) {
      llvm::SmallVector<TimeRange, 1> life;
      for (TimeRange range : use.life) {
        TimeRange moved{number[range.begin], number[range.end]};
        if (moved.begin == moved.end)
          continue;
        if (!life.empty() && life.back().end == moved.begin)
          life.back().end = moved.end;
        else
          life.push_back(moved);
      }
      use.life = std::move(life);
    }
    llvm::erase_if(variable.uses, [](const Use &use) { return use.life.empty(); });
    tidyUses(graph, variable);
  }
}

/// What the graph blames when no single node is at fault.
static unsigned someNode(const Graph &graph) {
  return graph.variables.empty() ? graph.fixed.front().first
                                 : graph.variables.front().members.front().node;
}

std::vector<int> solver::dropTimePoints(Graph &graph, int64_t limitBytes) {
  size_t count = graph.baseBytes.size();
  // The most and the least that choices can use.
  std::vector<int64_t> most(count + 1, 0), least(count + 1, 0);
  for (const Variable &variable : graph.variables) {
    UsageSteps profile(variable);
    for (const UsageSteps::Step &step : profile.steps()) {
      auto [low, high] = std::minmax_element(step.bytes.begin(), step.bytes.end());
      most[step.range.begin] += *high;
      most[step.range.end] -= *high;
      least[step.range.begin] += *low;
      least[step.range.end] -= *low;
    }
  }
  std::vector<unsigned> kept;
  for (size_t t = 0; t < count; ++t) {
    if (t) {
      most[t] += most[t - 1];
      least[t] += least[t - 1];
    }
    if (graph.baseBytes[t] + least[t] > limitBytes)
      graph.impossibleNode = someNode(graph);
    if (graph.baseBytes[t] + most[t] > limitBytes)
      kept.push_back(t);
  }
  // What does not fit even if all others use least is forbidden.
  for (Variable &variable : graph.variables) {
    UsageSteps profile(variable);
    for (const UsageSteps::Step &step : profile.steps()) {
      int64_t low = *llvm::min_element(step.bytes), room = limitBytes;
      for (unsigned t = step.range.begin; t < step.range.end; ++t)
        room = std::min(room, limitBytes - graph.baseBytes[t] - least[t]);
      for (size_t c = 0; c < step.bytes.size(); ++c)
        if (step.bytes[c] - low > room)
          variable.costs[c] = kInfinity;
    }
  }
  std::vector<int> standIn(count, -1), result(count, -1);
  kept = TimePointList(graph, kept).reduce(standIn);
  renumber(graph, kept);
  for (size_t k = 0; k < kept.size(); ++k)
    result[kept[k]] = int(k);
  for (size_t t = 0; t < count; ++t) {
    int last = int(t);
    while (standIn[last] >= 0)
      last = standIn[last];
    result[t] = result[last];
  }
  return result;
}

std::vector<int> solver::presolveWithin(Graph &graph, int64_t limitBytes,
                                        std::vector<unsigned> *followed, Stop stop) {
  constexpr unsigned kMaxRounds = 8;
  std::vector<int> standIn(graph.baseBytes.size());
  std::iota(standIn.begin(), standIn.end(), 0);
  size_t before = 0;
  for (unsigned round = 0; round < kMaxRounds; ++round) {
    presolveGraph(graph, followed, stop);
    if (graph.impossibleNode || stops(stop))
      return standIn;
    std::vector<int> latest = dropTimePoints(graph, limitBytes);
    for (int &timePoint : standIn)
      timePoint = timePoint < 0 ? -1 : latest[timePoint];
    if (graph.impossibleNode)
      return standIn;
    size_t left = graph.baseBytes.size();
    bool forbids = false;
    for (const Variable &variable : graph.variables) {
      left += variable.numChoices() + variable.uses.size();
      forbids |= llvm::is_contained(variable.costs, kInfinity);
    }
    if (round && left == before && !forbids)
      return standIn;
    before = left;
  }
  presolveGraph(graph, followed, stop); // Nothing that is forbidden may be left.
  return standIn;
}
