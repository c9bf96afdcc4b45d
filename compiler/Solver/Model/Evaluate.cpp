//===- Evaluate.cpp - cost and memory of given choices --------------------===//

#include "compiler/Solver/Model/TimePoints.h"
#include "compiler/Solver/Solve.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <limits>

using namespace alpa;
using namespace alpa::solver;

/// Sorted, without empty and overlapping ones.
static std::vector<Interval> normalized(const ProblemNode &node) {
  std::vector<Interval> intervals;
  for (const Interval &interval : node.intervals)
    if (interval.begin < interval.end)
      intervals.push_back(interval);
  llvm::sort(intervals, [](const Interval &x, const Interval &y) { return x.begin < y.begin; });
  std::vector<Interval> result;
  for (const Interval &interval : intervals) {
    if (!result.empty() && interval.begin <= result.back().end)
      result.back().end = std::max(result.back().end, interval.end);
    else
      result.push_back(interval);
  }
  return result;
}

static bool usesMemory(const ProblemNode &node) {
  return llvm::any_of(node.usagesBytes, [](int64_t usage) { return usage > 0; });
}

TimePoints solver::collectTimePoints(const Problem &problem) {
  TimePoints timePoints;
  timePoints.ofNode.resize(problem.nodes.size());
  // At one time, ends come before begins.
  struct Event {
    int64_t time;
    bool begins;
    unsigned node;
  };
  std::vector<Event> events;
  for (unsigned i = 0; i < problem.nodes.size(); ++i) {
    if (!usesMemory(problem.nodes[i]))
      continue;
    for (const Interval &interval : normalized(problem.nodes[i])) {
      events.push_back({interval.begin, true, i});
      events.push_back({interval.end, false, i});
    }
  }
  llvm::sort(events, [](const Event &x, const Event &y) {
    return std::tie(x.time, x.begins, x.node) < std::tie(y.time, y.begins, y.node);
  });
  // The live set is locally largest where a begin is followed by an end.
  std::vector<unsigned> since(problem.nodes.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const Event &event = events[i];
    if (event.begins) {
      since[event.node] = timePoints.times.size();
      if (i + 1 < events.size() && !events[i + 1].begins)
        timePoints.times.push_back(event.time);
      continue;
    }
    timePoints.ofNode[event.node].push_back(
        {since[event.node], static_cast<unsigned>(timePoints.times.size())});
  }
  return timePoints;
}

Evaluation solver::evaluate(const Problem &problem, llvm::ArrayRef<unsigned> choices) {
  Evaluation result;
  if (choices.size() != problem.nodes.size())
    return result;
  for (unsigned i = 0; i < choices.size(); ++i)
    if (choices[i] >= problem.nodes[i].costs.size())
      return result;

  result.feasible = true;
  auto add = [&](int64_t cost) {
    result.objective += cost;
    result.feasible = result.feasible && cost < kForbiddenCost;
  };
  for (unsigned i = 0; i < choices.size(); ++i)
    add(problem.nodes[i].costs[choices[i]]);
  for (const ProblemEdge &edge : problem.edges)
    add(edge.costs[choices[edge.a] * problem.nodes[edge.b].costs.size() + choices[edge.b]]);

  std::vector<std::pair<int64_t, CostSum>> changes;
  for (unsigned i = 0; i < choices.size(); ++i) {
    const ProblemNode &node = problem.nodes[i];
    if (node.usagesBytes.empty() || node.usagesBytes[choices[i]] == 0)
      continue;
    for (const Interval &interval : normalized(node)) {
      changes.emplace_back(interval.begin, node.usagesBytes[choices[i]]);
      changes.emplace_back(interval.end, -CostSum(node.usagesBytes[choices[i]]));
    }
  }
  llvm::sort(changes);
  CostSum usage = 0, peak = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    usage += changes[i].second;
    bool last = i + 1 == changes.size() || changes[i + 1].first != changes[i].first;
    if (last && usage > peak) {
      peak = usage;
      result.peakTime = changes[i].first;
    }
  }
  result.peakUsageBytes =
      static_cast<int64_t>(std::min<CostSum>(peak, std::numeric_limits<int64_t>::max()));
  if (problem.usageLimitBytes && peak > *problem.usageLimitBytes)
    result.feasible = false;
  return result;
}
