//===- CollapseResult.cpp - the graph that a collapse leaves --------------===//

#include "compiler/Solver/Presolve/Collapser.h"
#include "compiler/Solver/Presolve/Presolve.h"

#include <algorithm>
#include <numeric>

using namespace alpa;

void Collapser::record(const Removal &removal, llvm::SmallVector<Member, 1> members) {
  const Member &a = variables[removal.a].members.front();
  const Member &b = variables[removal.b].members.front();
  Elimination &elimination = graph.eliminated.emplace_back();
  elimination.members = std::move(members);
  elimination.a = a.node;
  elimination.b = b.node;
  elimination.columns = *llvm::max_element(b.choices) + 1;
  elimination.choices.resize(size_t(*llvm::max_element(a.choices) + 1) * elimination.columns, 0);
  for (size_t i = 0; i < a.choices.size(); ++i)
    for (size_t j = 0; j < b.choices.size(); ++j)
      elimination.choices[size_t(a.choices[i]) * elimination.columns + b.choices[j]] =
          removal.choices[i * b.choices.size() + j];
}

void Collapser::makeNonNegative(GraphEdge &edge) {
  int64_t least = *llvm::min_element(edge.costs);
  if (least >= 0)
    return;
  graph.constant += least;
  for (int64_t &cost : edge.costs)
    add(cost, -least);
}

void Collapser::finish() {
  // What each choice of the variable that is left means for one merged into it.
  std::vector<std::vector<unsigned>> taken(variables.size());
  std::vector<unsigned> root(variables.size());
  std::iota(root.begin(), root.end(), 0);
  for (unsigned v = 0; v < variables.size(); ++v)
    if (!gone[v])
      taken[v] = origin[v];
  for (const Removal &removal : removals)
    taken[removal.variable] = origin[removal.variable];
  for (const Merge &record : llvm::reverse(merges)) {
    root[record.from] = root[record.into];
    for (unsigned c : taken[record.into])
      taken[record.from].push_back(record.map[c]);
  }
  std::vector<llvm::SmallVector<Member, 1>> members(variables.size());
  auto moveMembers = [&](unsigned v) {
    for (Member &member : variables[v].members) {
      Member &moved = members[root[v]].emplace_back();
      moved.node = member.node;
      for (unsigned c : taken[v])
        moved.choices.push_back(member.choices[c]);
    }
  };
  // A variable's own members come first.
  for (bool own : {true, false})
    for (unsigned v = 0; v < variables.size(); ++v)
      if ((root[v] == v) == own)
        moveMembers(v);
  for (Removal &removal : removals)
    record(removal, std::move(members[removal.variable]));
  std::vector<unsigned> number(variables.size());
  std::vector<Variable> left;
  for (unsigned v = 0; v < variables.size(); ++v) {
    if (gone[v])
      continue;
    number[v] = left.size();
    tidyUses(graph, variables[v]);
    if (size(v) == 1) {
      graph.constant += variables[v].costs.front();
      for (const Member &member : members[v])
        graph.fixed.emplace_back(member.node, member.choices.front());
      continue;
    }
    variables[v].members = std::move(members[v]);
    if (followed)
      (*followed)[number[v]] = (*followed)[v];
    left.push_back(std::move(variables[v]));
  }
  variables = std::move(left);
  if (followed)
    followed->resize(variables.size());
  std::vector<GraphEdge> kept;
  for (unsigned e = 0; e < edges.size(); ++e)
    if (!dead[e]) {
      edges[e].a = number[edges[e].a];
      edges[e].b = number[edges[e].b];
      makeNonNegative(edges[e]);
      kept.push_back(std::move(edges[e]));
    }
  edges = std::move(kept);
}
