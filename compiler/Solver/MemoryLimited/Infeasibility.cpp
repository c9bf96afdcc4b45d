//===- Infeasibility.cpp - why a problem has no answer --------------------===//

#include "compiler/Solver/MemoryLimited/Infeasibility.h"
#include "compiler/Solver/MemoryLimited/LargeNeighbourhoodSearch.h"
#include "compiler/Solver/MemoryLimited/LocalSearch.h"
#include "compiler/Solver/Model/TimePoints.h"

#include "llvm/ADT/STLExtras.h"

#include <limits>

using namespace alpa;
using namespace alpa::solver;

std::string solver::nameOfNode(const Problem &problem, unsigned node) {
  const std::string &name = problem.nodes[node].name;
  return name.empty() ? "node " + std::to_string(node) : name;
}

static std::string nameLargest(const Problem &problem, const TimePoints &timePoints,
                               const Graph &graph, unsigned timePoint) {
  std::vector<int64_t> least(problem.nodes.size(), 0);
  for (auto [node, choice] : graph.fixed)
    if (!timePoints.ofNode[node].empty())
      least[node] = problem.nodes[node].usagesBytes[choice];
  for (const Variable &variable : graph.variables)
    for (const Member &member : variable.members) {
      if (timePoints.ofNode[member.node].empty())
        continue;
      int64_t bytes = std::numeric_limits<int64_t>::max();
      for (unsigned choice : member.choices)
        bytes = std::min(bytes, problem.nodes[member.node].usagesBytes[choice]);
      least[member.node] = bytes;
    }
  std::vector<unsigned> live;
  for (unsigned node = 0; node < timePoints.ofNode.size(); ++node)
    if (llvm::any_of(timePoints.ofNode[node], [&](TimeRange range) {
          return range.begin <= timePoint && timePoint < range.end;
        }))
      live.push_back(node);
  llvm::sort(live, [&](unsigned x, unsigned y) {
    return std::make_pair(least[y], x) < std::make_pair(least[x], y);
  });
  std::string text = "live at moment " + std::to_string(timePoints.times[timePoint]) + ":";
  constexpr size_t kNamed = 8;
  for (size_t i = 0; i < std::min(kNamed, live.size()); ++i)
    text += (i ? ", " : " ") + nameOfNode(problem, live[i]) + " (at least " +
            std::to_string(least[live[i]]) + " bytes)";
  if (live.size() > kNamed)
    text += " and " + std::to_string(live.size() - kNamed) + " more";
  return text;
}

std::optional<Tightest> solver::findTightest(const Problem &problem, const TimePoints &timePoints,
                                             const Graph &graph) {
  Usage least(graph, problem.usageLimitBytes.value_or(std::numeric_limits<int64_t>::max()));
  std::optional<unsigned> fullest = least.fullest();
  if (!fullest)
    return std::nullopt;
  return Tightest{least.at()[*fullest], nameLargest(problem, timePoints, graph, *fullest)};
}

std::optional<int64_t> solver::findEnough(const Graph &graph, int64_t atLeast,
                                          const Budget &budget) {
  constexpr double kWork = 5e6; // Of one search: some hundredths of a second.
  constexpr double kPrecision = 1e-3;
  if (graph.variables.empty())
    return atLeast;
  if (budget.isLate())
    return std::nullopt;
  auto peakWithin = [&](int64_t limit) -> std::optional<int64_t> {
    LargeNeighbourhoodSearch search(graph, limit, /*seed=*/0);
    search.run(kWork, [&] { return budget.isLate(); });
    if (search.best().empty())
      return std::nullopt;
    Usage usage(graph, limit);
    usage.load(search.best());
    std::optional<unsigned> fullest = usage.fullest();
    return fullest ? usage.at()[*fullest] : 0;
  };
  if (std::optional<int64_t> peak = peakWithin(atLeast))
    return peak;
  // All choices together are never too much.
  int64_t low = atLeast, most = 0;
  for (const Variable &variable : graph.variables)
    for (const Use &use : variable.uses)
      most += *llvm::max_element(use.bytes);
  most += graph.baseBytes.empty() ? 0 : *llvm::max_element(graph.baseBytes);
  std::optional<int64_t> high = peakWithin(most);
  while (high && *high - low > std::max<int64_t>(1, int64_t(kPrecision * double(*high))) &&
         !budget.isLate()) {
    int64_t middle = low + (*high - low) / 2;
    if (std::optional<int64_t> peak = peakWithin(middle))
      high = peak;
    else
      low = middle;
  }
  return high;
}
