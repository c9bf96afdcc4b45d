//===- alpa-solve.cpp - solves a problem file -----------------------------===//

#include "compiler/Solver/Solve.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Threading.h"
#include "llvm/Support/ToolOutputFile.h"

#include <zlib.h>

using namespace alpa;
namespace cl = llvm::cl;

static cl::opt<std::string> input(cl::Positional, cl::desc("FILE.json[.gz]"), cl::Required);
static cl::opt<double> timeLimit("time-limit", cl::desc("Seconds to search at most"),
                                 cl::init(60.0));
static cl::opt<double> gap("gap", cl::desc("Stop when (cost - bound) / cost is no more than this"),
                           cl::init(0.0));
static cl::opt<uint64_t> seed("seed", cl::desc("Seed of the search"), cl::init(0));
static cl::opt<unsigned> threads("threads", cl::desc("Threads to search with; 0 for one a core"),
                                 cl::init(0));
static cl::opt<double> quickWork("quick-work",
                                 cl::desc("Combinations up to which tables are eliminated at once"),
                                 cl::init(SolveOptions().quickWork), cl::Hidden);
static cl::opt<bool> asJson("json", cl::desc("Print the result as JSON"));
static cl::opt<std::string> solutionFile("solution",
                                         cl::desc("Write the choices to this file, as JSON"));
static cl::opt<std::string> check("evaluate",
                                  cl::desc("Only evaluate the choices of this file (a JSON list)"));

static int fail(const llvm::Twine &message) {
  llvm::errs() << "alpa-solve: " << message << "\n";
  return 1;
}

/// The file's text; gzip is recognized by its content.
static llvm::Expected<std::string> readText(const std::string &path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (!file)
    return llvm::createStringError(llvm::inconvertibleErrorCode(), "cannot open the file");
  std::string text;
  std::vector<char> buffer(1 << 18);
  int count = 0;
  while ((count = gzread(file, buffer.data(), buffer.size())) > 0)
    text.append(buffer.data(), count);
  int code = gzclose_r(file);
  if (count < 0 || code != Z_OK)
    return llvm::createStringError(llvm::inconvertibleErrorCode(), "cannot read the file");
  return text;
}

static std::string decimal(CostSum value) {
  if (value < 0)
    return "-" + decimal(-value);
  std::string digits;
  do
    digits.insert(digits.begin(), char('0' + int(value % 10)));
  while (value /= 10);
  return digits;
}

static int evaluateChoices(const Problem &problem, const std::string &path) {
  llvm::Expected<std::string> text = readText(path);
  if (!text)
    return fail(path + ": " + llvm::toString(text.takeError()));
  llvm::Expected<llvm::json::Value> value = llvm::json::parse(*text);
  if (!value)
    return fail(path + ": not valid JSON: " + llvm::toString(value.takeError()));
  const llvm::json::Array *list = value->getAsArray();
  if (!list || list->size() != problem.nodes.size())
    return fail(path + ": expected a list of " + llvm::Twine(problem.nodes.size()) + " choices");
  std::vector<unsigned> choices;
  for (size_t i = 0; i < list->size(); ++i) {
    std::optional<int64_t> choice = (*list)[i].getAsInteger();
    if (!choice || *choice < 0 || size_t(*choice) >= problem.nodes[i].costs.size())
      return fail(path + ": node " + llvm::Twine(i) + " has " +
                  llvm::Twine(problem.nodes[i].costs.size()) + " choices, expected one of them");
    choices.push_back(*choice);
  }
  Evaluation evaluation = evaluate(problem, choices);
  llvm::outs() << llvm::formatv(
      "{{\"feasible\": {0}, \"cost\": {1}, \"peak_usage\": {2}, \"peak_moment\": {3}}\n",
      evaluation.feasible ? "true" : "false", decimal(evaluation.objective),
      evaluation.peakUsageBytes, evaluation.peakMoment);
  return 0;
}

int main(int argc, char **argv) {
  cl::ParseCommandLineOptions(
      argc, argv,
      "Chooses one strategy per node at least cost under a memory limit.\n\n"
      "Exit code: 0 with an answer, 2 if there is none, 1 after an error.\n");
  llvm::Expected<std::string> text = readText(input);
  if (!text)
    return fail(input + ": " + llvm::toString(text.takeError()));
  llvm::Expected<Problem> problem = parseProblem(*text);
  if (!problem)
    return fail(input + ": " + llvm::toString(problem.takeError()));
  std::string().swap(*text);
  if (!check.empty())
    return evaluateChoices(*problem, check);
  if (!(timeLimit > 0))
    return fail("--time-limit: expected a positive number of seconds");

  SolveOptions options;
  options.timeLimitSeconds = timeLimit;
  options.seed = seed;
  options.acceptableGap = gap;
  options.threads =
      threads ? unsigned(threads) : llvm::hardware_concurrency().compute_thread_count();
  options.quickWork = quickWork;
  llvm::Expected<Solution> solution = solve(*problem, options);
  if (!solution)
    return fail(input + ": " + llvm::toString(solution.takeError()));

  std::string choices = "[";
  for (size_t i = 0; i < solution->choices.size(); ++i)
    choices += (i ? "," : "") + std::to_string(solution->choices[i]);
  choices += "]";
  if (!solutionFile.empty()) {
    std::error_code error;
    llvm::ToolOutputFile out(solutionFile, error, llvm::sys::fs::OF_Text);
    if (error)
      return fail(solutionFile + ": " + error.message());
    out.os() << choices << "\n";
    out.keep();
  }
  llvm::StringRef status = stringifySolveStatus(solution->status);
  bool none = solution->status == SolveStatus::Infeasible;
  if (asJson) {
    llvm::outs() << "{\"status\": \"" << status << "\", ";
    if (none)
      llvm::outs() << "\"reason\": "
                   << llvm::json::Value(llvm::json::fixUTF8(solution->infeasibleReason)) << ", ";
    else
      llvm::outs() << llvm::formatv(
          "\"cost\": {0}, \"lower_bound\": {1}, \"gap\": {2:e6}, \"peak_usage\": {3}, ",
          decimal(solution->objective), decimal(solution->lowerBound), solution->gap,
          solution->peakUsageBytes);
    llvm::outs() << llvm::formatv("\"seconds\": {0:f6}, \"nodes\": {1}, \"eliminated\": {2}",
                                  solution->seconds, solution->nodes, solution->eliminated);
    if (!none)
      llvm::outs() << ", \"choices\": " << choices;
    llvm::outs() << "}\n";
  } else {
    llvm::outs() << "status:      " << status << "\n";
    if (none)
      llvm::outs() << "reason:      " << solution->infeasibleReason << "\n";
    else
      llvm::outs() << llvm::formatv(
          "cost:        {0}\nlower bound: {1}\ngap:         {2:f6} %\npeak usage:  {3} bytes\n",
          decimal(solution->objective), decimal(solution->lowerBound), 100 * solution->gap,
          solution->peakUsageBytes);
    llvm::outs() << llvm::formatv("nodes:       {0}, {1} eliminated exactly\nseconds:     {2:f3}\n",
                                  solution->nodes, solution->eliminated, solution->seconds);
  }
  return none ? 2 : 0;
}
