//===- ParseProblem.cpp - problems and solutions from JSON ----------------===//

#include "compiler/Solver/Model/JsonReader.h"
#include "compiler/Solver/Model/Problem.h"

#include <algorithm>
#include <set>

using namespace alpa;
using llvm::StringRef;
using llvm::Twine;

namespace {

/// The parallel lists of the JSON form, with the line of each entry for errors
/// that only show when all has been read.
class ProblemReader {
public:
  explicit ProblemReader(StringRef json) : reader(json) {}
  llvm::Expected<Problem> read();

private:
  using Keys = std::set<std::string>;

  template <typename Entry, typename Read>
  bool list(const char *name, std::vector<Entry> &entries, std::vector<unsigned> &lines, Read read);
  bool once(Keys &seen, const std::string &key, std::initializer_list<StringRef> known);
  bool complete(const Keys &seen, StringRef where, std::initializer_list<StringRef> fields);
  bool body();
  bool nodes();
  bool edges();
  bool intervals(std::vector<Interval> &into);
  bool ends(std::pair<unsigned, unsigned> &into);
  void assemble();
  unsigned lineOf(const ProblemFault &fault) const;

  JsonReader reader;
  Problem problem;
  std::vector<std::vector<Interval>> nodeIntervals;
  std::vector<std::vector<int64_t>> nodeCosts, nodeUsages, edgeCosts;
  std::vector<std::pair<unsigned, unsigned>> edgeEnds;
  std::vector<unsigned> lines[5]; // By field.
  unsigned limitLine = 0;
};

} // namespace

template <typename Entry, typename Read>
bool ProblemReader::list(const char *name, std::vector<Entry> &entries,
                         std::vector<unsigned> &lines, Read read) {
  return reader.within("field '" + Twine(name) + "'", reader.array([&] {
    lines.push_back(reader.line());
    Entry entry{};
    bool ok = reader.within(Twine(name) + "[" + Twine(entries.size()) + "]", read(entry));
    entries.push_back(std::move(entry));
    return ok;
  }));
}

/// Of two fields with one name, one would be lost.
bool ProblemReader::once(Keys &seen, const std::string &key,
                         std::initializer_list<StringRef> known) {
  if (std::find(known.begin(), known.end(), key) == known.end() || seen.insert(key).second)
    return true;
  return reader.fail("field '" + key + "' appears twice");
}

bool ProblemReader::complete(const Keys &seen, StringRef where,
                             std::initializer_list<StringRef> fields) {
  for (StringRef field : fields)
    if (!seen.count(field.str()))
      return reader.fail("found no field '" + field + "' in " + where + ", expected one");
  return true;
}

/// [begin, end], or a list of such pairs for a value that lives several times.
bool ProblemReader::intervals(std::vector<Interval> &into) {
  std::vector<int64_t> ends;
  bool isList = false;
  bool ok = reader.array([&] {
    isList |= reader.peek() == '[';
    if (isList)
      return ends.empty() ? intervals(into) : reader.fail("expected an integer, found a list");
    int64_t time;
    if (!reader.integer(time))
      return false;
    ends.push_back(time);
    return true;
  });
  if (!ok || ends.empty())
    return ok;
  if (ends.size() != 2)
    return reader.fail("expected [begin, end], found " + Twine(ends.size()) + " integers");
  into.push_back({ends[0], ends[1]});
  return true;
}

bool ProblemReader::ends(std::pair<unsigned, unsigned> &into) {
  std::vector<int64_t> values;
  if (!reader.integers(values))
    return false;
  if (values.size() != 2)
    return reader.fail("expected two nodes, found " + Twine(values.size()));
  for (int64_t value : values)
    if (value < 0 || value > INT32_MAX)
      return reader.fail("edge " + Twine(edgeEnds.size()) + ": found node " + Twine(value) +
                         ", expected 0 to " + Twine(INT32_MAX));
  into = {unsigned(values[0]), unsigned(values[1])};
  return true;
}

bool ProblemReader::nodes() {
  Keys seen;
  auto integers = [&](std::vector<int64_t> &into) { return reader.integers(into); };
  bool ok = reader.object([&](const std::string &key) {
    if (!once(seen, key, {"intervals", "costs", "usages"}))
      return false;
    if (key == "intervals")
      return list("intervals", nodeIntervals, lines[ProblemFault::Intervals],
                  [&](auto &into) { return intervals(into); });
    if (key == "costs")
      return list("costs", nodeCosts, lines[ProblemFault::Costs], integers);
    if (key == "usages")
      return list("usages", nodeUsages, lines[ProblemFault::Usages], integers);
    return reader.skip();
  });
  if (!ok || !complete(seen, "'nodes'", {"intervals", "costs", "usages"}))
    return false;
  if (nodeIntervals.size() != nodeCosts.size() || nodeUsages.size() != nodeCosts.size())
    return reader.fail("found " + Twine(nodeIntervals.size()) + " intervals, " +
                       Twine(nodeCosts.size()) + " costs and " + Twine(nodeUsages.size()) +
                       " usages, expected as many of each");
  return true;
}

bool ProblemReader::edges() {
  Keys seen;
  bool ok = reader.object([&](const std::string &key) {
    if (!once(seen, key, {"nodes", "costs"}))
      return false;
    if (key == "nodes")
      return list("nodes", edgeEnds, lines[ProblemFault::EdgeNodes],
                  [&](auto &into) { return ends(into); });
    if (key == "costs")
      return list("costs", edgeCosts, lines[ProblemFault::EdgeCosts], [&](auto &into) {
        bool ok = reader.integers(into);
        into.shrink_to_fit(); // Most of a problem's memory.
        return ok;
      });
    return reader.skip();
  });
  if (!ok || !complete(seen, "'edges'", {"nodes", "costs"}))
    return false;
  if (edgeEnds.size() != edgeCosts.size())
    return reader.fail("found " + Twine(edgeEnds.size()) + " pairs of nodes and " +
                       Twine(edgeCosts.size()) + " costs, expected as many of each");
  return true;
}

bool ProblemReader::body() {
  Keys seen;
  bool ok = reader.object([&](const std::string &key) {
    if (!once(seen, key, {"name", "nodes", "edges", "usage_limit"}))
      return false;
    if (key == "name" && reader.peek() == '"')
      return reader.string(problem.name);
    if (key == "nodes")
      return reader.within("field 'nodes'", nodes());
    if (key == "edges")
      return reader.within("field 'edges'", edges());
    if (key != "usage_limit" || reader.peek() == 'n')
      return reader.skip();
    limitLine = reader.line();
    int64_t limit = 0;
    if (!reader.within("field 'usage_limit'", reader.integer(limit)))
      return false;
    // Usages never add up to more, so a larger limit says the same.
    problem.usageLimitBytes = std::min(limit, kMaxUsageBytes);
    return true;
  });
  return ok && complete(seen, "'problem'", {"nodes", "edges"});
}

void ProblemReader::assemble() {
  problem.nodes.resize(nodeCosts.size());
  for (size_t i = 0; i < nodeCosts.size(); ++i) {
    problem.nodes[i].intervals = std::move(nodeIntervals[i]);
    problem.nodes[i].costs = std::move(nodeCosts[i]);
    problem.nodes[i].usagesBytes = std::move(nodeUsages[i]);
  }
  problem.edges.resize(edgeEnds.size());
  for (size_t i = 0; i < edgeEnds.size(); ++i) {
    std::tie(problem.edges[i].a, problem.edges[i].b) = edgeEnds[i];
    problem.edges[i].costs = std::move(edgeCosts[i]);
  }
}

unsigned ProblemReader::lineOf(const ProblemFault &fault) const {
  return fault.field == ProblemFault::UsageLimit ? limitLine : lines[fault.field][fault.index];
}

llvm::Expected<Problem> ProblemReader::read() {
  Keys seen;
  bool ok = reader.object([&](const std::string &key) {
    if (!once(seen, key, {"problem"}))
      return false;
    return key == "problem" ? reader.within("field 'problem'", body()) : reader.skip();
  });
  if (!ok || !reader.finish() || !complete(seen, "the file", {"problem"}))
    return llvm::createStringError(reader.error());
  assemble();
  if (std::optional<ProblemFault> fault = findFault(problem))
    return llvm::createStringError("line " + Twine(lineOf(*fault)) + ": " + fault->message);
  return std::move(problem);
}

llvm::Expected<Problem> alpa::parseProblem(StringRef json) { return ProblemReader(json).read(); }

llvm::Expected<std::vector<unsigned>> alpa::parseChoices(const Problem &problem, StringRef json) {
  JsonReader reader(json);
  std::vector<unsigned> choices;
  bool ok = reader.array([&] {
    int64_t choice;
    size_t node = choices.size();
    if (node == problem.nodes.size())
      return reader.fail("found more choices than the " + Twine(node) + " nodes of the problem");
    if (!reader.within("node " + Twine(node), reader.integer(choice)))
      return false;
    size_t count = problem.nodes[node].costs.size();
    if (choice < 0 || size_t(choice) >= count)
      return reader.fail("node " + Twine(node) + ": found choice " + Twine(choice) +
                         ", expected 0 to " + Twine(count - 1));
    choices.push_back(choice);
    return true;
  });
  if (ok && reader.finish() && choices.size() != problem.nodes.size())
    reader.fail("found " + Twine(choices.size()) + " choices, expected one for each of " +
                Twine(problem.nodes.size()) + " nodes");
  if (!reader.error().empty())
    return llvm::createStringError(reader.error());
  return choices;
}
