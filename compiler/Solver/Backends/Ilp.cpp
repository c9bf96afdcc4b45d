//===- Ilp.cpp - a problem as an integer linear program -------------------===//

#include "compiler/Solver/Backends/Ilp.h"
#include "compiler/Solver/Model/TimePoints.h"
#include "compiler/Solver/Solve.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

using namespace alpa;
using namespace alpa::solver;

namespace {

constexpr CostSum kNone = -1; // A pair that must not be taken.

/// All edges between two nodes as one, row-major over all choices.
struct Pair {
  unsigned a, b;
  std::vector<CostSum> costs;
};

class IlpBuilder {
public:
  explicit IlpBuilder(const Problem &problem) : problem(problem) {}
  llvm::Expected<IlpModel> build();

private:
  void mergeEdges();
  bool dropForbidden();
  bool isSeparable(const Pair &pair) const;
  void shiftCosts(Pair &pair);
  void chooseUnit(llvm::ArrayRef<Pair> joint);
  void addNodes();
  void addPair(const Pair &pair);
  void addMemory();
  int32_t addColumn(CostSum cost);
  void addEntry(int32_t column, double value);
  void endRow(double lower, double upper);
  CostSum &at(Pair &pair, unsigned i, unsigned j) {
    return pair.costs[i * problem.nodes[pair.b].costs.size() + j];
  }
  CostSum at(const Pair &pair, unsigned i, unsigned j) const {
    return pair.costs[i * problem.nodes[pair.b].costs.size() + j];
  }

  const Problem &problem;
  std::vector<std::vector<CostSum>> nodeCosts;
  std::vector<std::vector<unsigned>> allowed; // Choices by node.
  std::vector<Pair> pairs;
  std::vector<int32_t> firstColumn; // By node.
  IlpModel model;
};

} // namespace

void IlpBuilder::mergeEdges() {
  std::map<std::pair<unsigned, unsigned>, size_t> index;
  for (const ProblemEdge &edge : problem.edges) {
    bool swap = edge.a > edge.b;
    unsigned a = swap ? edge.b : edge.a, b = swap ? edge.a : edge.b;
    auto [it, isNew] = index.try_emplace({a, b}, pairs.size());
    if (isNew)
      pairs.push_back({a, b, std::vector<CostSum>(edge.costs.size(), 0)});
    Pair &pair = pairs[it->second];
    size_t rows = problem.nodes[edge.a].costs.size(), columns = problem.nodes[edge.b].costs.size();
    for (unsigned i = 0; i < rows; ++i)
      for (unsigned j = 0; j < columns; ++j) {
        CostSum &sum = swap ? at(pair, j, i) : at(pair, i, j);
        int64_t cost = edge.costs[i * columns + j];
        sum = sum == kNone || cost >= kForbiddenCost ? kNone : sum + cost;
      }
  }
}

/// Drops choices without an allowed partner until none is left; false if a node
/// has no choice then.
bool IlpBuilder::dropForbidden() {
  auto prune = [&](unsigned node, llvm::function_ref<bool(unsigned)> isUseless) {
    size_t before = allowed[node].size();
    llvm::erase_if(allowed[node], isUseless);
    return allowed[node].size() < before;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const Pair &pair : pairs) {
      changed |= prune(pair.a, [&](unsigned i) {
        return llvm::all_of(allowed[pair.b], [&](unsigned j) { return at(pair, i, j) == kNone; });
      });
      changed |= prune(pair.b, [&](unsigned j) {
        return llvm::all_of(allowed[pair.a], [&](unsigned i) { return at(pair, i, j) == kNone; });
      });
    }
  }
  return llvm::none_of(allowed, [](const auto &choices) { return choices.empty(); });
}

bool IlpBuilder::isSeparable(const Pair &pair) const {
  unsigned i0 = allowed[pair.a].front(), j0 = allowed[pair.b].front();
  for (unsigned i : allowed[pair.a])
    for (unsigned j : allowed[pair.b])
      if (at(pair, i, j) == kNone ||
          at(pair, i, j) - at(pair, i0, j) - at(pair, i, j0) + at(pair, i0, j0) != 0)
        return false;
  return true;
}

/// Moves what each choice costs in any case to its node. Of a separable pair
/// nothing is left.
void IlpBuilder::shiftCosts(Pair &pair) {
  for (unsigned i : allowed[pair.a]) {
    CostSum least = -1;
    for (unsigned j : allowed[pair.b])
      if (CostSum cost = at(pair, i, j); cost != kNone && (least < 0 || cost < least))
        least = cost;
    nodeCosts[pair.a][i] += least;
    for (unsigned j : allowed[pair.b])
      if (at(pair, i, j) != kNone)
        at(pair, i, j) -= least;
  }
  for (unsigned j : allowed[pair.b]) {
    CostSum least = -1;
    for (unsigned i : allowed[pair.a])
      if (CostSum cost = at(pair, i, j); cost != kNone && (least < 0 || cost < least))
        least = cost;
    nodeCosts[pair.b][j] += least;
    for (unsigned i : allowed[pair.a])
      if (at(pair, i, j) != kNone)
        at(pair, i, j) -= least;
  }
}

void IlpBuilder::chooseUnit(llvm::ArrayRef<Pair> joint) {
  CostSum largest = 0;
  for (unsigned n = 0; n < allowed.size(); ++n) {
    CostSum least = nodeCosts[n][allowed[n].front()];
    for (unsigned c : allowed[n])
      least = std::min(least, nodeCosts[n][c]);
    model.constant += least;
    for (unsigned c : allowed[n])
      largest = std::max(largest, nodeCosts[n][c] -= least);
  }
  for (const Pair &pair : joint)
    for (unsigned i : allowed[pair.a])
      for (unsigned j : allowed[pair.b])
        largest = std::max(largest, at(pair, i, j));
  for (CostSum limit = CostSum(1) << 30; limit < largest; limit *= 2)
    model.unit *= 2;
}

int32_t IlpBuilder::addColumn(CostSum cost) {
  model.costs.push_back(double(cost) / model.unit);
  return model.costs.size() - 1;
}

void IlpBuilder::addEntry(int32_t column, double value) {
  model.columns.push_back(column);
  model.values.push_back(value);
}

void IlpBuilder::endRow(double lower, double upper) {
  model.rowLower.push_back(lower);
  model.rowUpper.push_back(upper);
  model.rowStarts.push_back(model.columns.size());
}

void IlpBuilder::addNodes() {
  for (unsigned n = 0; n < allowed.size(); ++n) {
    firstColumn.push_back(model.costs.size());
    model.fixed.push_back(allowed[n].front());
    if (allowed[n].size() == 1)
      continue;
    for (unsigned c : allowed[n]) {
      model.binary.emplace_back(n, c);
      addEntry(addColumn(nodeCosts[n][c]), 1);
    }
    endRow(1, 1);
  }
  model.numBinaries = model.costs.size();
}

void IlpBuilder::addPair(const Pair &pair) {
  llvm::ArrayRef<unsigned> rows = allowed[pair.a], columns = allowed[pair.b];
  std::vector<int32_t> y(rows.size() * columns.size(), -1);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t j = 0; j < columns.size(); ++j)
      if (CostSum cost = at(pair, rows[i], columns[j]); cost != kNone)
        y[i * columns.size() + j] = addColumn(cost);
  auto link = [&](unsigned node, size_t choice, llvm::function_ref<int32_t(size_t)> column,
                  size_t count) {
    for (size_t k = 0; k < count; ++k)
      if (column(k) >= 0)
        addEntry(column(k), 1);
    addEntry(firstColumn[node] + choice, -1);
    endRow(0, 0);
  };
  for (size_t i = 0; i < rows.size(); ++i)
    link(pair.a, i, [&](size_t j) { return y[i * columns.size() + j]; }, columns.size());
  for (size_t j = 0; j < columns.size(); ++j)
    link(pair.b, j, [&](size_t i) { return y[i * columns.size() + j]; }, rows.size());
}

/// What the choices of each node use beyond their least has to fit in what that
/// leaves of the limit.
void IlpBuilder::addMemory() {
  TimePoints timePoints = collectTimePoints(problem);
  std::vector<std::vector<unsigned>> live(timePoints.times.size());
  for (unsigned n = 0; n < problem.nodes.size(); ++n)
    for (TimeRange range : timePoints.ofNode[n])
      for (unsigned t = range.begin; t < range.end; ++t)
        live[t].push_back(n);
  auto usage = [&](unsigned n, unsigned c) { return problem.nodes[n].usagesBytes[c]; };
  for (llvm::ArrayRef<unsigned> nodes : live) {
    int64_t rest = *problem.usageLimitBytes, most = 0;
    std::vector<int64_t> least;
    for (unsigned n : nodes) {
      auto [low, high] =
          std::minmax_element(allowed[n].begin(), allowed[n].end(),
                              [&](unsigned x, unsigned y) { return usage(n, x) < usage(n, y); });
      least.push_back(usage(n, *low));
      rest -= least.back();
      most += usage(n, *high) - least.back();
    }
    model.impossible |= rest < 0;
    if (most <= rest || rest < 0)
      continue;
    double unit = 1;
    for (int64_t limit = 1 << 20; limit < rest; limit *= 2)
      unit *= 2;
    for (auto [n, base] : llvm::zip_equal(nodes, least))
      for (size_t k = 0; k < allowed[n].size(); ++k)
        if (int64_t more = usage(n, allowed[n][k]) - base)
          addEntry(firstColumn[n] + k, double(std::min(more, rest + 1)) / unit);
    endRow(-std::numeric_limits<double>::infinity(), double(rest) / unit);
    if (model.columns.size() > size_t(std::numeric_limits<int32_t>::max()))
      return;
  }
}

llvm::Expected<IlpModel> IlpBuilder::build() {
  model.rowStarts.push_back(0);
  for (const ProblemNode &node : problem.nodes) {
    nodeCosts.emplace_back(node.costs.begin(), node.costs.end());
    allowed.emplace_back();
    for (unsigned c = 0; c < node.costs.size(); ++c)
      if (node.costs[c] < kForbiddenCost)
        allowed.back().push_back(c);
  }
  mergeEdges();
  if (!dropForbidden()) {
    model.impossible = true;
    return std::move(model);
  }
  std::vector<Pair> joint;
  for (Pair &pair : pairs) {
    bool separable = isSeparable(pair);
    shiftCosts(pair);
    if (!separable)
      joint.push_back(std::move(pair));
  }
  pairs.clear();
  chooseUnit(joint);
  addNodes();
  for (const Pair &pair : joint)
    addPair(pair);
  if (problem.usageLimitBytes)
    addMemory();
  if (model.columns.size() > size_t(std::numeric_limits<int32_t>::max()))
    return llvm::createStringError("the problem has more than 2^31 terms as an integer program; "
                                   "use method 'built-in'");
  return std::move(model);
}

llvm::Expected<IlpModel> solver::buildIlp(const Problem &problem) {
  if (llvm::Error error = verifyProblem(problem))
    return error;
  return IlpBuilder(problem).build();
}

std::vector<unsigned> IlpModel::choices(llvm::ArrayRef<double> columnValues) const {
  std::vector<unsigned> result = fixed;
  std::vector<double> best(fixed.size(), -1);
  for (size_t i = 0; i < binary.size() && i < columnValues.size(); ++i) {
    auto [node, choice] = binary[i];
    if (columnValues[i] > best[node]) {
      best[node] = columnValues[i];
      result[node] = choice;
    }
  }
  return result;
}

CostSum IlpModel::lowerBound(double bound) const {
  // Solvers accept reduced costs of -10^-7, once for each column in the worst case.
  double doubt = 1e-7 * double(costs.size()) + 1e-9 * std::fabs(bound);
  double safe = std::ceil((bound - doubt) * unit);
  return std::isfinite(safe) && std::fabs(safe) < 1e36 ? constant + CostSum(safe) : 0;
}

bool IlpModel::cutOff(const Problem &problem, llvm::ArrayRef<unsigned> choices) {
  Evaluation evaluation = evaluate(problem, choices);
  if (!problem.usageLimitBytes || evaluation.peakUsageBytes <= *problem.usageLimitBytes)
    return false;
  auto isLive = [&](const Interval &interval) {
    return interval.begin <= evaluation.peakTime && evaluation.peakTime < interval.end;
  };
  size_t before = columns.size();
  for (size_t x = 0; x < binary.size(); ++x) {
    auto [n, choice] = binary[x];
    const ProblemNode &node = problem.nodes[n];
    if (choices[n] != choice || node.usagesBytes.empty() || node.usagesBytes[choice] == 0 ||
        llvm::none_of(node.intervals, isLive))
      continue;
    columns.push_back(x);
    values.push_back(1);
  }
  rowLower.push_back(-std::numeric_limits<double>::infinity());
  rowUpper.push_back(double(columns.size() - before) - 1);
  rowStarts.push_back(columns.size());
  return true;
}
