//===- PricedProblem.cpp - one problem at many prices on bytes ------------===//

#include "compiler/Solver/PricedProblem.h"

#include "compiler/Solver/Presolve/Presolve.h"

#include "llvm/ADT/STLExtras.h"

#include <cmath>
#include <numeric>

using namespace alpa;
using namespace alpa::solver;

PricedProblem::PricedProblem(const Problem &problem,
                             llvm::ArrayRef<llvm::SmallVector<NodeBytes, 1>> kinds)
    : numNodes(problem.nodes.size()) {
  if (addsUp(problem))
    reduce(problem, kinds);
  else
    take(problem);
  for (const ProblemNode &node : small.nodes)
    costs.push_back(node.costs);
}

/// As it is.
void PricedProblem::take(const Problem &problem) {
  small.nodes = problem.nodes;
  small.edges = problem.edges;
  for (auto [index, node] : llvm::enumerate(problem.nodes)) {
    Member &member = graph.variables.emplace_back().members.emplace_back();
    member.node = unsigned(index);
    member.choices.resize(node.costs.size());
    std::iota(member.choices.begin(), member.choices.end(), 0);
  }
}

void PricedProblem::reduce(const Problem &problem,
                           llvm::ArrayRef<llvm::SmallVector<NodeBytes, 1>> kinds) {
  graph = translate(problem, /*timePoints=*/nullptr);
  // Kinds add up in any way: each has a time point of its own, at which a choice must use no more.
  unsigned time = 0;
  for (auto [variable, ofNode] : llvm::zip_equal(graph.variables, kinds))
    for (const NodeBytes &bytes : ofNode) {
      variable.uses.push_back({{TimeRange{time, time + 1}}, bytes});
      ++time;
    }
  graph.baseBytes.assign(time, 0);
  reduceGraph(graph);
  if (!graph.impossibleNode)
    presolveGraph(graph);
  auto toProblem = [](int64_t cost) { return cost < kInfinity ? cost : kForbiddenCost; };
  for (const Variable &variable : graph.variables) {
    // What moved here from edges may have left negative costs, which a problem must not have.
    int64_t least = *llvm::min_element(variable.costs);
    graph.constant += least;
    ProblemNode &node = small.nodes.emplace_back();
    for (int64_t cost : variable.costs)
      node.costs.push_back(cost < kInfinity ? cost - least : kForbiddenCost);
  }
  for (GraphEdge &edge : graph.edges) {
    llvm::transform(edge.costs, edge.costs.begin(), toProblem);
    small.edges.push_back({edge.a, edge.b, std::move(edge.costs)});
  }
}

llvm::Expected<Solution> PricedProblem::solve(llvm::ArrayRef<NodeBytes> bytes, double costPerByte,
                                              const SolveOptions &options) {
  if (graph.impossibleNode)
    return Solution();
  // Costs stay within what a problem may hold. Less than the price keeps bounds true.
  constexpr double kDearest = double(kForbiddenCost) / 10;
  auto priceOf = [&](const NodeBytes &ofNode, unsigned choice) {
    return int64_t(std::floor(std::min(costPerByte * double(ofNode[choice]), kDearest)));
  };
  auto hasPrice = [&](unsigned node) { return !bytes.empty() && !bytes[node].empty(); };
  CostSum constant = graph.constant;
  for (auto [node, choice] : graph.fixed)
    if (hasPrice(node))
      constant += priceOf(bytes[node], choice);
  // What follows from others uses as much with each choice that is left.
  for (const Elimination &elimination : graph.eliminated)
    for (const Member &member : elimination.members)
      if (hasPrice(member.node))
        constant += priceOf(bytes[member.node], member.choices.front());
  for (auto [index, node] : llvm::enumerate(small.nodes)) {
    node.costs = costs[index];
    for (const Member &member : graph.variables[index].members) {
      if (!hasPrice(member.node))
        continue;
      for (auto [cost, choice] : llvm::zip_equal(node.costs, member.choices))
        if (cost < kForbiddenCost)
          cost = std::min(cost + priceOf(bytes[member.node], choice), kForbiddenCost - 1);
    }
  }
  // Where memory is very dear, its prices may not add up as they are.
  llvm::Expected<Solution> solution = solveInUnits(small, options);
  if (!solution)
    return solution;
  solution->lowerBound += constant;
  if (!solution->choices.empty() || small.nodes.empty())
    solution->choices = readOut(graph, solution->choices, numNodes);
  return solution;
}

size_t PricedProblem::numBytes() const {
  size_t numbers = 0;
  for (const ProblemEdge &edge : small.edges)
    numbers += edge.costs.size();
  return numbers * sizeof(int64_t);
}
