//===- Problem.cpp - checking and writing problems ------------------------===//

#include "compiler/Solver/Model/Problem.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

using namespace alpa;
using namespace alpa::solver;
using llvm::StringRef;
using llvm::Twine;

static std::string nodeName(const Problem &problem, unsigned index) {
  const std::string &name = problem.nodes[index].name;
  std::string text = "node " + std::to_string(index);
  return name.empty() ? text : text + " (" + name + ")";
}

/// The first cost or usage out of range.
static std::optional<size_t> outOfRange(const std::vector<int64_t> &values) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] < 0 || values[i] > kForbiddenCost)
      return i;
  return std::nullopt;
}

static std::optional<ProblemFault> findNodeFault(const Problem &problem) {
  CostSum most = 0;
  for (unsigned i = 0; i < problem.nodes.size(); ++i) {
    const ProblemNode &node = problem.nodes[i];
    auto fault = [&](ProblemFault::Field field, const Twine &text) {
      return ProblemFault{field, i, (nodeName(problem, i) + ": " + text).str()};
    };
    if (node.costs.empty())
      return fault(ProblemFault::Costs, "found no choices, expected at least one");
    if (!node.usagesBytes.empty() && node.usagesBytes.size() != node.costs.size())
      return fault(ProblemFault::Usages, "found " + Twine(node.usagesBytes.size()) +
                                             " usages, expected one for each of " +
                                             Twine(node.costs.size()) + " choices");
    if (std::optional<size_t> at = outOfRange(node.costs))
      return fault(ProblemFault::Costs, "found cost " + Twine(node.costs[*at]) + " at position " +
                                            Twine(*at) + ", expected 0 to 10^18");
    if (std::optional<size_t> at = outOfRange(node.usagesBytes))
      return fault(ProblemFault::Usages, "found usage " + Twine(node.usagesBytes[*at]) +
                                             " at position " + Twine(*at) +
                                             ", expected 0 to 10^18 bytes");
    for (const Interval &interval : node.intervals)
      if (interval.begin > interval.end)
        return fault(ProblemFault::Intervals, "found interval [" + Twine(interval.begin) + ", " +
                                                  Twine(interval.end) +
                                                  "), expected it to end after it begins");
    if (!node.usagesBytes.empty())
      most += *llvm::max_element(node.usagesBytes);
    if (most >= kMaxUsageBytes)
      return fault(ProblemFault::Usages,
                   "the largest usages of the nodes up to this one add up to " + toText(most) +
                       " bytes, expected less than 2^62");
  }
  return std::nullopt;
}

static std::optional<ProblemFault> findEdgeFault(const Problem &problem) {
  for (unsigned i = 0; i < problem.edges.size(); ++i) {
    const ProblemEdge &edge = problem.edges[i];
    auto fault = [&](ProblemFault::Field field, const Twine &text) {
      return ProblemFault{field, i, ("edge " + Twine(i) + text).str()};
    };
    for (unsigned end : {edge.a, edge.b})
      if (end >= problem.nodes.size())
        return fault(ProblemFault::EdgeNodes, ": found node " + Twine(end) +
                                                  ", expected less than " +
                                                  Twine(problem.nodes.size()));
    if (edge.a == edge.b)
      return fault(ProblemFault::EdgeNodes,
                   ": found both ends at " + nodeName(problem, edge.a) + ", expected two nodes");
    std::string ends =
        " between nodes " + std::to_string(edge.a) + " and " + std::to_string(edge.b);
    size_t wanted = problem.nodes[edge.a].costs.size() * problem.nodes[edge.b].costs.size();
    if (edge.costs.size() != wanted)
      return fault(ProblemFault::EdgeCosts, ends + ": found " + Twine(edge.costs.size()) +
                                                " costs, expected " + Twine(wanted));
    if (std::optional<size_t> at = outOfRange(edge.costs))
      return fault(ProblemFault::EdgeCosts, ends + ": found cost " + Twine(edge.costs[*at]) +
                                                " at position " + Twine(*at) +
                                                ", expected 0 to 10^18");
  }
  return std::nullopt;
}

std::optional<ProblemFault> solver::findFault(const Problem &problem) {
  std::optional<ProblemFault> fault = findNodeFault(problem);
  if (!fault)
    fault = findEdgeFault(problem);
  if (!fault && problem.usageLimitBytes &&
      (*problem.usageLimitBytes < 0 || *problem.usageLimitBytes > kMaxUsageBytes))
    fault = ProblemFault{ProblemFault::UsageLimit, 0,
                         "usage_limit: found " + std::to_string(*problem.usageLimitBytes) +
                             ", expected 0 to 2^62 bytes"};
  return fault;
}

llvm::Error solver::verifyProblem(const Problem &problem) {
  if (std::optional<ProblemFault> fault = findFault(problem))
    return llvm::createStringError(fault->message);
  return llvm::Error::success();
}

std::string solver::toText(CostSum sum) {
  bool negative = sum < 0;
  std::string digits;
  do {
    int digit = int(sum % 10); // Negative if the sum is.
    digits.insert(digits.begin(), char('0' + (negative ? -digit : digit)));
  } while (sum /= 10);
  return negative ? "-" + digits : digits;
}

std::string solver::printChoices(const std::vector<unsigned> &choices) {
  std::string text = "[";
  for (size_t i = 0; i < choices.size(); ++i)
    text += (i ? "," : "") + std::to_string(choices[i]);
  return text + "]";
}

static void printList(llvm::raw_ostream &os, const std::vector<int64_t> &values) {
  os << "[";
  for (size_t i = 0; i < values.size(); ++i)
    os << (i ? "," : "") << values[i];
  os << "]";
}

template <typename Items, typename Print>
static void printField(llvm::raw_ostream &os, StringRef name, const Items &items, Print print) {
  os << "\"" << name << "\":[";
  bool first = true;
  for (const auto &item : items) {
    os << (first ? "" : ",");
    first = false;
    print(item);
  }
  os << "]";
}

std::string solver::printProblem(const Problem &problem) {
  std::string text;
  llvm::raw_string_ostream os(text);
  os << "{\"problem\":{\"name\":" << llvm::json::Value(llvm::json::fixUTF8(problem.name))
     << ",\n\"nodes\":{";
  printField(os, "intervals", problem.nodes, [&](const ProblemNode &node) {
    bool several = node.intervals.size() != 1;
    os << (several ? "[" : "");
    for (size_t i = 0; i < node.intervals.size(); ++i)
      os << (i ? "," : "") << "[" << node.intervals[i].begin << "," << node.intervals[i].end << "]";
    os << (several ? "]" : "");
  });
  os << ",\n";
  printField(os, "costs", problem.nodes,
             [&](const ProblemNode &node) { printList(os, node.costs); });
  os << ",\n";
  printField(os, "usages", problem.nodes,
             [&](const ProblemNode &node) { printList(os, node.usagesBytes); });
  os << "},\n\"edges\":{";
  printField(os, "nodes", problem.edges,
             [&](const ProblemEdge &edge) { os << "[" << edge.a << "," << edge.b << "]"; });
  os << ",\n";
  printField(os, "costs", problem.edges,
             [&](const ProblemEdge &edge) { printList(os, edge.costs); });
  os << "}";
  if (problem.usageLimitBytes)
    os << ",\n\"usage_limit\":" << *problem.usageLimitBytes;
  os << "}}\n";
  return text;
}
