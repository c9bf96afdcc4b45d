//===- Branch.cpp - branch and bound by prices ----------------------------===//

#include "compiler/Solver/Branch.h"
#include "compiler/Solver/Collapse.h"
#include "compiler/Solver/Memory.h"
#include "compiler/Solver/PricedBound.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <numeric>

using namespace alpa;

Graph alpa::lighten(const Graph &graph) {
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
struct Branching::Node {
  std::shared_ptr<const Graph> parent;
  std::shared_ptr<const std::vector<double>> prices;
  CostSum lower = 0;
  int variable = -1; // None at the root.
  unsigned choice = 0;
  bool takes = false; // The choice, or all others.
};

Branching::Branching(const Graph &graph, int64_t limitBytes, llvm::ArrayRef<double> prices,
                     CostSum lower)
    : numVariables(graph.variables.size()), limit(limitBytes) {
  open.push_back({std::make_shared<const Graph>(lighten(graph)),
                  std::make_shared<const std::vector<double>>(prices.begin(), prices.end()), lower,
                  -1, 0, false});
}

Branching::~Branching() = default;

CostSum Branching::lower() const {
  CostSum least = upper;
  for (const Node &node : open)
    least = std::min(least, node.lower);
  return least;
}

void Branching::run(double work, CostSum newUpper,
                    llvm::function_ref<CostSum(const std::vector<unsigned> &, CostSum)> newOffer,
                    llvm::function_ref<bool()> stop) {
  upper = newUpper;
  offer = &newOffer;
  for (spent = 0; spent < work && !open.empty() && !stop();) {
    Node node = std::move(open.back());
    open.pop_back();
    if (node.lower < upper)
      expand(std::move(node));
  }
  offer = nullptr;
}

/// Makes an answer to the priced problem fit, and reports it if it is better.
void Branching::tryAnswer(const Graph &graph, llvm::ArrayRef<unsigned> values) {
  Usage usage(graph, limit);
  LocalSearch local(graph, usage);
  std::vector<unsigned> choices(values.begin(), values.end());
  if (!local.repair(choices))
    return;
  local.polish(choices, [] { return false; });
  CostSum cost = local.objective(choices);
  if (cost < upper)
    upper = (*offer)(readOut(graph, choices, numVariables), cost);
}

void Branching::expand(Node &&node) {
  constexpr unsigned kSteps = 40, kAnswerEvery = 20;
  constexpr unsigned kMaxRounds = 6;
  constexpr double kWorthwhile = 0.85; // Share of choices left after a round.
  ++nodes;
  Graph graph = *node.parent;
  std::vector<double> prices = *node.prices;
  if (node.variable >= 0) {
    std::vector<int64_t> &costs = graph.variables[node.variable].costs;
    for (unsigned c = 0; c < costs.size(); ++c)
      if ((c == node.choice) != node.takes)
        costs[c] = kInfinity;
  }
  auto collapse = [&] {
    std::vector<int> standIn = collapseWithin(graph, limit);
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
  if (!collapse())
    return;
  std::vector<float> shares;
  for (unsigned round = 0; round < kMaxRounds; ++round) {
    if (graph.variables.empty()) {
      if (graph.constant < upper)
        upper = (*offer)(readOut(graph, {}, numVariables), graph.constant);
      return;
    }
    PricedBound bound(graph, limit);
    bound.startFrom(prices);
    for (unsigned step = 0; step < kSteps && !bound.isStuck(); ++step) {
      spent += bound.stepWork();
      if (!bound.step(upper))
        return;
      if (step % kAnswerEvery == kAnswerEvery - 1)
        tryAnswer(graph, bound.values());
      if (bound.lower() >= upper)
        return;
    }
    std::optional<Graph> left = bound.restricted(upper);
    if (!left || bound.lower() >= upper)
      return;
    node.lower = std::max(node.lower, bound.lower());
    prices = bound.pricePerByte();
    size_t before = numChoices(), removed = bound.numRemoved();
    shares.assign(bound.shares().begin(), bound.shares().end());
    if (double(removed) < (1 - kWorthwhile) * double(before))
      break;
    graph = std::move(*left);
    if (!collapse())
      return;
    shares.clear();
  }
  if (graph.variables.empty()) {
    open.push_back({std::make_shared<const Graph>(std::move(graph)),
                    std::make_shared<const std::vector<double>>(std::move(prices)), node.lower, -1,
                    0, false});
    return;
  }
  // Branch where the priced answers agree least, on the choice they take most.
  unsigned variable = 0, choice = 0;
  float score = -1;
  size_t at = 0;
  for (unsigned v = 0; v < graph.variables.size(); ++v) {
    unsigned count = graph.variables[v].numChoices();
    if (shares.empty()) {
      variable = 0;
      break;
    }
    auto most = std::max_element(shares.begin() + at, shares.begin() + at + count);
    float doubt = 1 - *most;
    if (graph.variables[v].uses.empty())
      doubt *= 0.5f;
    if (doubt > score) {
      score = doubt;
      variable = v;
      choice = unsigned(most - (shares.begin() + at));
    }
    at += count;
  }
  auto shared = std::make_shared<const Graph>(std::move(graph));
  auto sharedPrices = std::make_shared<const std::vector<double>>(std::move(prices));
  for (bool takes : {false, true})
    open.push_back({shared, sharedPrices, node.lower, int(variable), choice, takes});
}
