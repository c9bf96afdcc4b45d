//===- BranchAndBound.cpp - branch and bound by prices --------------------===//

#include "compiler/Solver/Search/BranchAndBound.h"
#include "compiler/Solver/MemoryLimited/LocalSearch.h"
#include "compiler/Solver/Presolve/Presolve.h"
#include "compiler/Solver/Search/LagrangianBound.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>

using namespace alpa;
using namespace alpa::solver;

Graph solver::lighten(const Graph &graph) {
  Graph light;
  light.constant = graph.constant;
  light.baseBytes = graph.baseBytes;
  light.edges = graph.edges;
  for (unsigned v = 0; v < graph.variables.size(); ++v) {
    const Variable &from = graph.variables[v];
    Variable &variable = light.variables.emplace_back();
    variable.costs = from.costs;
    variable.uses = from.uses;
    Member &member = variable.members.emplace_back();
    member.node = v;
    member.choices.resize(from.numChoices());
    std::iota(member.choices.begin(), member.choices.end(), 0);
  }
  return light;
}

/// What remains after a decision in its parent, which is not carried out yet.
struct BranchAndBound::Node {
  std::shared_ptr<const Graph> parent;
  std::shared_ptr<const std::vector<double>> prices;
  CostSum lower = 0;
  int variable = -1;         // None at the root.
  std::vector<char> allowed; // Which of its choices.
};

/// Choices of a variable in two parts.
struct BranchAndBound::Split {
  unsigned variable = 0;
  std::vector<char> first;
  double score = -1;
};

BranchAndBound::BranchAndBound(const Graph &graph, int64_t limitBytes,
                               llvm::ArrayRef<double> prices, CostSum lower)
    : numVariables(graph.variables.size()), limit(limitBytes) {
  open.push_back({std::make_shared<const Graph>(lighten(graph)),
                  std::make_shared<const std::vector<double>>(prices.begin(), prices.end()),
                  lower,
                  -1,
                  {}});
}

BranchAndBound::~BranchAndBound() = default;

CostSum BranchAndBound::lower() const {
  CostSum least = upper;
  for (const Node &node : open)
    least = std::min(least, node.lower);
  return least;
}

void BranchAndBound::run(
    double work, CostSum newUpper,
    llvm::function_ref<CostSum(const std::vector<unsigned> &, CostSum)> newOffer, Stop newStop) {
  upper = newUpper;
  offer = &newOffer;
  stop = newStop;
  for (spent = 0; spent < work && !open.empty() && !stops(stop);) {
    Node node = std::move(open.back());
    open.pop_back();
    if (node.lower < upper)
      expand(std::move(node));
  }
  offer = nullptr;
  stop = nullptr;
}

/// Makes an answer to the priced problem fit, and reports it if it is better.
void BranchAndBound::tryAnswer(const Graph &graph, llvm::ArrayRef<unsigned> values) {
  Usage usage(graph, limit);
  LocalSearch local(graph, usage);
  std::vector<unsigned> choices(values.begin(), values.end());
  constexpr double kMostWork = 5e7;
  bool fits = local.repair(choices, kMostWork, stop);
  if (fits)
    local.polish(choices, stop);
  spent += local.work();
  if (!fits)
    return;
  CostSum cost = local.objective(choices);
  if (cost < upper)
    upper = (*offer)(readOut(graph, choices, numVariables), cost);
}

/// Where priced answers take turns between choices that pay much and little, no
/// price is right: these two parts are kept apart. Without such a variable, the
/// choice that is taken most is, where answers agree least. The part that answers
/// take more often comes first.
BranchAndBound::Split BranchAndBound::chooseSplit(const Graph &graph,
                                                  const LagrangianBound &bound) {
  BranchAndBound::Split best;
  llvm::ArrayRef<float> shares = bound.shares();
  size_t at = 0;
  for (unsigned v = 0; v < graph.variables.size(); ++v) {
    unsigned count = graph.variables[v].numChoices();
    llvm::ArrayRef<float> share = shares.slice(at, count);
    llvm::ArrayRef<int64_t> paid = bound.paid(v);
    at += count;
    double mean = 0, sum = 0, spread = 0;
    for (unsigned c = 0; c < count; ++c) {
      mean += share[c] * (paid.empty() ? 0.0 : double(paid[c]));
      sum += share[c];
    }
    for (unsigned c = 0; c < count && !paid.empty(); ++c)
      spread += share[c] * std::abs(double(paid[c]) - mean / sum);
    unsigned most = llvm::max_element(share) - share.begin();
    double score = spread + 1e-6 * (1 - share[most]);
    if (score <= best.score)
      continue;
    best.score = score;
    best.variable = v;
    best.first.assign(count, false);
    double taken = 0;
    for (unsigned c = 0; c < count; ++c) {
      best.first[c] = spread > 0 ? double(paid[c]) <= mean / sum : c == most;
      taken += best.first[c] ? share[c] : 0;
    }
    if (!llvm::is_contained(best.first, false) || !llvm::is_contained(best.first, true)) {
      best.first.assign(count, false);
      best.first[most] = true;
    } else if (taken < 0.5 * sum) {
      for (char &isFirst : best.first)
        isFirst = !isFirst;
    }
  }
  return best;
}

/// What copying and collapsing a graph go through, and preparing bounds of what is left.
static double collapseWork(const Graph &graph) {
  constexpr double kEntry = 5, kNode = 500;
  double work = kNode * double(graph.variables.size() + graph.edges.size());
  for (const Variable &variable : graph.variables)
    work += kEntry * double(variable.numChoices() * (1 + variable.uses.size()));
  for (const GraphEdge &edge : graph.edges)
    work += kEntry * double(edge.costs.size());
  return work;
}

void BranchAndBound::expand(Node &&node) {
  constexpr unsigned kSteps = 40, kAnswerEvery = 20;
  constexpr unsigned kMaxRounds = 6;
  constexpr double kWorthwhile = 0.85; // Share of choices left after a round.
  ++nodes;
  Graph graph = *node.parent;
  std::vector<double> prices = *node.prices;
  if (node.variable >= 0) {
    std::vector<int64_t> &costs = graph.variables[node.variable].costs;
    for (unsigned c = 0; c < costs.size(); ++c)
      if (!node.allowed[c])
        costs[c] = kInfinity;
  }
  auto collapse = [&] {
    spent += collapseWork(graph);
    std::vector<int> standIn = presolveWithin(graph, limit, /*followed=*/nullptr, stop);
    if (graph.impossibleNode)
      return false;
    std::vector<double> moved(graph.baseBytes.size(), 0);
    for (size_t t = 0; t < standIn.size(); ++t)
      if (standIn[t] >= 0)
        moved[standIn[t]] += prices[t];
    prices = std::move(moved);
    return true;
  };
  auto numChoices = [&] {
    size_t count = 0;
    for (const Variable &variable : graph.variables)
      count += variable.numChoices();
    return count;
  };
  // What is cut short is still open.
  auto isStopped = [&] {
    if (!stops(stop))
      return false;
    open.push_back(std::move(node));
    return true;
  };
  if (!collapse() || isStopped())
    return;
  std::optional<Split> split;
  for (unsigned round = 0; round < kMaxRounds; ++round) {
    if (graph.variables.empty()) {
      if (graph.constant < upper)
        upper = (*offer)(readOut(graph, {}, numVariables), graph.constant);
      return;
    }
    LagrangianBound bound(graph, limit, stop);
    bound.startFrom(prices);
    for (unsigned step = 0; step < kSteps && !bound.isStuck(); ++step) {
      spent += bound.stepWork();
      if (!bound.step(upper, stop) || isStopped())
        return;
      if (step % kAnswerEvery == kAnswerEvery - 1)
        tryAnswer(graph, bound.values());
      if (bound.lower() >= upper)
        return;
    }
    spent += bound.restrictWork();
    std::optional<Graph> left = bound.restricted(upper, /*followed=*/nullptr, stop);
    if (!left || bound.lower() >= upper || isStopped())
      return;
    node.lower = std::max(node.lower, bound.lower());
    prices = bound.pricePerByte();
    size_t before = numChoices(), removed = bound.numRemoved();
    bool more = double(removed) >= (1 - kWorthwhile) * double(before);
    if (!more || round + 1 == kMaxRounds) {
      split = chooseSplit(graph, bound);
      break;
    }
    graph = std::move(*left);
    if (!collapse() || isStopped())
      return;
  }
  auto shared = std::make_shared<const Graph>(std::move(graph));
  auto sharedPrices = std::make_shared<const std::vector<double>>(std::move(prices));
  std::vector<char> second;
  for (char isFirst : split->first)
    second.push_back(!isFirst);
  for (std::vector<char> *part : {&second, &split->first})
    open.push_back({shared, sharedPrices, node.lower, int(split->variable), std::move(*part)});
}
