//===- Problem.cpp - reading, writing and checking problems ---------------===//

#include "compiler/Solver/Problem.h"

#include "llvm/ADT/Twine.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

using namespace alpa;
using llvm::StringRef;
using llvm::Twine;

static llvm::Error fail(const Twine &message) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), message);
}

static std::string nodeName(const Problem &problem, unsigned index) {
  const std::string &name = problem.nodes[index].name;
  std::string text = "node " + std::to_string(index);
  return name.empty() ? text : text + " (" + name + ")";
}

static llvm::Error checkCosts(const Twine &where, const std::vector<int64_t> &costs) {
  for (size_t i = 0; i < costs.size(); ++i)
    if (costs[i] < 0 || costs[i] > kForbiddenCost)
      return fail(where + ": found cost " + Twine(costs[i]) + " at position " + Twine(i) +
                  ", expected 0 to 10^18");
  return llvm::Error::success();
}

llvm::Error alpa::verifyProblem(const Problem &problem) {
  for (unsigned i = 0; i < problem.nodes.size(); ++i) {
    const ProblemNode &node = problem.nodes[i];
    if (node.costs.empty())
      return fail(nodeName(problem, i) + ": found no choices, expected at least one");
    if (!node.usagesBytes.empty() && node.usagesBytes.size() != node.costs.size())
      return fail(nodeName(problem, i) + ": found " + Twine(node.usagesBytes.size()) +
                  " usages, expected one for each of " + Twine(node.costs.size()) + " choices");
    if (llvm::Error error = checkCosts(nodeName(problem, i), node.costs))
      return error;
    for (int64_t usage : node.usagesBytes)
      if (usage < 0 || usage > kForbiddenCost)
        return fail(nodeName(problem, i) + ": found usage " + Twine(usage) +
                    ", expected 0 to 10^18 bytes");
    for (const Interval &interval : node.intervals)
      if (interval.begin > interval.end)
        return fail(nodeName(problem, i) + ": found interval [" + Twine(interval.begin) + ", " +
                    Twine(interval.end) + "), expected it to end after it begins");
  }
  for (unsigned i = 0; i < problem.edges.size(); ++i) {
    const ProblemEdge &edge = problem.edges[i];
    for (unsigned end : {edge.a, edge.b})
      if (end >= problem.nodes.size())
        return fail("edge " + Twine(i) + ": found node " + Twine(end) + ", expected less than " +
                    Twine(problem.nodes.size()));
    if (edge.a == edge.b)
      return fail("edge " + Twine(i) + ": found both ends at " + nodeName(problem, edge.a) +
                  ", expected two nodes");
    size_t wanted = problem.nodes[edge.a].costs.size() * problem.nodes[edge.b].costs.size();
    if (edge.costs.size() != wanted)
      return fail("edge " + Twine(i) + " between nodes " + Twine(edge.a) + " and " + Twine(edge.b) +
                  ": found " + Twine(edge.costs.size()) + " costs, expected " + Twine(wanted));
    if (llvm::Error error = checkCosts("edge " + Twine(i), edge.costs))
      return error;
  }
  if (problem.usageLimitBytes && *problem.usageLimitBytes < 0)
    return fail("usage_limit: found " + Twine(*problem.usageLimitBytes) + ", expected 0 or more");
  return llvm::Error::success();
}

namespace {

/// Reads the JSON form; the first error is kept.
class Reader {
public:
  const llvm::json::Array *array(const llvm::json::Object &object, StringRef field) {
    const llvm::json::Array *result = object.getArray(field);
    if (!result)
      note("field '" + Twine(field) + "': found no array, expected one");
    return result;
  }

  const llvm::json::Object *object(const llvm::json::Object &parent, StringRef field) {
    const llvm::json::Object *result = parent.getObject(field);
    if (!result)
      note("field '" + Twine(field) + "': found no object, expected one");
    return result;
  }

  bool integers(const llvm::json::Value &value, const Twine &where, std::vector<int64_t> &into) {
    const llvm::json::Array *values = value.getAsArray();
    if (!values)
      return note(where + ": expected a list of integers");
    into.reserve(values->size());
    for (const llvm::json::Value &entry : *values) {
      std::optional<int64_t> integer = entry.getAsInteger();
      if (!integer)
        return note(where + ": found a value that is not an integer");
      into.push_back(*integer);
    }
    return true;
  }

  bool intervals(const llvm::json::Value &value, const Twine &where, std::vector<Interval> &into) {
    const llvm::json::Array *values = value.getAsArray();
    if (values && !values->empty() && values->front().getAsArray()) {
      for (const llvm::json::Value &entry : *values)
        if (!intervals(entry, where, into))
          return false;
      return true;
    }
    std::vector<int64_t> ends;
    if (!integers(value, where, ends))
      return false;
    if (ends.size() == 2)
      into.push_back({ends[0], ends[1]});
    else if (!ends.empty())
      return note(where + ": expected [begin, end]");
    return true;
  }

  bool note(const Twine &text) {
    if (message.empty())
      message = text.str();
    return false;
  }

  std::string message;
};

} // namespace

static bool readNodes(Reader &reader, const llvm::json::Object &object, Problem &problem) {
  const llvm::json::Array *intervals = reader.array(object, "intervals");
  const llvm::json::Array *costs = reader.array(object, "costs");
  const llvm::json::Array *usages = reader.array(object, "usages");
  if (!intervals || !costs || !usages)
    return false;
  if (intervals->size() != costs->size() || usages->size() != costs->size())
    return reader.note("field 'nodes': found " + Twine(intervals->size()) + " intervals, " +
                       Twine(costs->size()) + " costs and " + Twine(usages->size()) +
                       " usages, expected as many of each");
  problem.nodes.resize(costs->size());
  for (size_t i = 0; i < costs->size(); ++i) {
    ProblemNode &node = problem.nodes[i];
    if (!reader.intervals((*intervals)[i], "interval of node " + Twine(i), node.intervals) ||
        !reader.integers((*costs)[i], "costs of node " + Twine(i), node.costs) ||
        !reader.integers((*usages)[i], "usages of node " + Twine(i), node.usagesBytes))
      return false;
  }
  return true;
}

static bool readEdges(Reader &reader, const llvm::json::Object &object, Problem &problem) {
  const llvm::json::Array *nodes = reader.array(object, "nodes");
  const llvm::json::Array *costs = reader.array(object, "costs");
  if (!nodes || !costs)
    return false;
  if (nodes->size() != costs->size())
    return reader.note("field 'edges': found " + Twine(nodes->size()) + " node pairs and " +
                       Twine(costs->size()) + " costs, expected as many of each");
  problem.edges.resize(costs->size());
  for (size_t i = 0; i < costs->size(); ++i) {
    std::vector<int64_t> ends;
    if (!reader.integers((*nodes)[i], "nodes of edge " + Twine(i), ends))
      return false;
    int64_t count = problem.nodes.size();
    if (ends.size() != 2 || ends[0] < 0 || ends[1] < 0 || ends[0] >= count || ends[1] >= count)
      return reader.note("nodes of edge " + Twine(i) + ": expected two numbers less than " +
                         Twine(count));
    problem.edges[i].a = ends[0];
    problem.edges[i].b = ends[1];
    if (!reader.integers((*costs)[i], "costs of edge " + Twine(i), problem.edges[i].costs))
      return false;
  }
  return true;
}

llvm::Expected<Problem> alpa::parseProblem(StringRef json) {
  llvm::Expected<llvm::json::Value> root = llvm::json::parse(json);
  if (!root)
    return fail("not valid JSON: " + llvm::toString(root.takeError()));
  Reader reader;
  Problem problem;
  const llvm::json::Object *top = root->getAsObject();
  if (!top)
    return fail("expected an object with field 'problem'");
  const llvm::json::Object *body = reader.object(*top, "problem");
  const llvm::json::Object *nodes = body ? reader.object(*body, "nodes") : nullptr;
  const llvm::json::Object *edges = body ? reader.object(*body, "edges") : nullptr;
  if (!nodes || !edges || !readNodes(reader, *nodes, problem) ||
      !readEdges(reader, *edges, problem))
    return fail(reader.message);
  problem.name = body->getString("name").value_or("").str();
  if (const llvm::json::Value *limit = body->get("usage_limit");
      limit && limit->kind() != llvm::json::Value::Null) {
    problem.usageLimitBytes = limit->getAsInteger();
    if (!problem.usageLimitBytes)
      return fail("field 'usage_limit': expected an integer");
  }
  if (llvm::Error error = verifyProblem(problem))
    return error;
  return problem;
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

std::string alpa::printProblem(const Problem &problem) {
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
