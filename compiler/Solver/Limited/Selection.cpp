//===- Selection.cpp - which variables to free together -------------------===//

#include "compiler/Solver/Limited/Selection.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

Selection::Selection(const PrimalState &state, Random &random)
    : state(state), random(random), isChosen(state.costs.count(), false) {}

void Selection::clear() {
  for (unsigned v : chosen)
    isChosen[v] = false;
  chosen.clear();
}

void Selection::add(unsigned variable) {
  if (!isChosen[variable]) {
    isChosen[variable] = true;
    chosen.push_back(variable);
  }
}

void Selection::addAll() {
  for (unsigned v = 0; v < isChosen.size(); ++v)
    add(v);
}

void Selection::addBall(unsigned variable, size_t size) {
  size_t next = chosen.size();
  add(variable);
  for (; next < chosen.size() && chosen.size() < size; ++next) {
    llvm::ArrayRef<FlatCosts::Arc> arcs = state.costs.arcs(chosen[next]);
    unsigned start = arcs.empty() ? 0 : random.below(arcs.size());
    for (size_t i = 0; i < arcs.size() && chosen.size() < size; ++i)
      add(arcs[(start + i) % arcs.size()].other);
  }
}

void Selection::addLive(unsigned begin, unsigned end, size_t size) {
  std::vector<unsigned> live;
  for (unsigned v = 0; v < isChosen.size(); ++v)
    if (llvm::any_of(state.usage.segments(v), [&](const Usage::Segment &segment) {
          return segment.begin < end && begin < segment.end;
        }))
      live.push_back(v);
  for (size_t i = 0; i < live.size() && chosen.size() < size; ++i) {
    std::swap(live[i], live[i + random.below(live.size() - i)]);
    add(live[i]);
  }
}

void Selection::spread(size_t size) {
  for (size_t next = 0; next < chosen.size() && chosen.size() < size; ++next)
    for (const FlatCosts::Arc &arc : state.costs.arcs(chosen[next]))
      if (chosen.size() < size)
        add(arc.other);
}

void Selection::addDifferent(llvm::ArrayRef<const std::vector<unsigned> *> others) {
  for (unsigned v = 0; v < isChosen.size(); ++v)
    if (llvm::any_of(others, [&](auto *choices) { return (*choices)[v] != state.at(v); }))
      add(v);
}

unsigned Selection::tightMoment() {
  constexpr unsigned kTried = 4;
  llvm::ArrayRef<int64_t> at = state.usage.at();
  unsigned best = random.below(at.size());
  for (unsigned i = 0; i < kTried; ++i) {
    unsigned other = random.below(at.size());
    if (at[other] > at[best])
      best = other;
  }
  return best;
}

std::optional<unsigned> Selection::exceededMoment() {
  llvm::ArrayRef<int64_t> at = state.usage.at();
  unsigned start = at.empty() ? 0 : random.below(at.size());
  for (unsigned i = 0; i < at.size(); ++i) {
    unsigned t = (start + i) % at.size();
    if (at[t] > state.usage.limit())
      return t;
  }
  return std::nullopt;
}
