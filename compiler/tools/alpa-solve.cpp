//===- alpa-solve.cpp - solves a problem file -----------------------------===//

#include "compiler/BuildInfo.h"
#include "compiler/Solver/Backends/Backends.h"

#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/Threading.h"
#include "llvm/Support/ToolOutputFile.h"

#include <chrono>
#include <cmath>
#include <zlib.h>

using namespace alpa;
namespace cl = llvm::cl;
using solver::Problem;
using solver::toText;

static cl::OptionCategory category("alpa-solve");
static cl::opt<std::string> input(cl::Positional, cl::desc("FILE.json[.gz]"), cl::Required,
                                  cl::cat(category));
static cl::opt<double> timeLimit("time-limit", cl::init(60.0), cl::value_desc("S"),
                                 cl::desc("Seconds to use at most, reading the file included"),
                                 cl::cat(category));
static cl::opt<double> workLimit("work-limit", cl::value_desc("W"),
                                 cl::desc("Table entries and combinations to go through at most, "
                                          "about 5e8 a second; the same on any machine"),
                                 cl::init(std::numeric_limits<double>::infinity()),
                                 cl::cat(category));
static cl::opt<double> gap("gap", cl::init(0.0), cl::value_desc("G"),
                           cl::desc("Stop when (cost - lower bound) / cost is at most this"),
                           cl::cat(category));
static cl::opt<uint64_t> seed("seed", cl::init(0), cl::value_desc("N"),
                              cl::desc("Seed of the search"), cl::cat(category));
static cl::opt<unsigned> threads("threads", cl::init(0), cl::value_desc("N"),
                                 cl::desc("Threads to search with; 0 (the default): one a core"),
                                 cl::cat(category));
static cl::opt<std::string> library("library", cl::value_desc("FILE"),
                                    cl::desc("Shared library of the method, if it is not found"),
                                    cl::cat(category));
static cl::opt<double> quickWork("quick-work",
                                 cl::desc("Combinations up to which tables are eliminated at once"),
                                 cl::init(solver::SolveOptions().quickWork), cl::Hidden,
                                 cl::cat(category));
static cl::opt<bool> asJson("json", cl::desc("Print one JSON object"), cl::cat(category));
static cl::opt<std::string> solutionFile("solution", cl::value_desc("FILE"),
                                         cl::desc("Write the choices to this file, as a JSON list"),
                                         cl::cat(category));
static cl::opt<std::string> check("evaluate", cl::value_desc("SOLUTION"),
                                  cl::desc("Do not solve; evaluate the choices of this file"),
                                  cl::cat(category));

static const char *kOverview =
    "Chooses one strategy per node at least cost under a memory limit.\n\n"
    "Reads a problem in the form of the IOPDDL contest, plain or gzipped. Costs are\n"
    "exact integers; the answer is evaluated anew before it is printed.\n\n"
    "Example:\n"
    "  alpa-solve problem.json.gz --time-limit 60 --json --solution choices.json\n"
    "  alpa-solve problem.json.gz --evaluate choices.json\n\n"
    "Exit code: 0 with an answer, 2 if there is none, 3 if none was found in time,\n"
    "1 after an error.\n";

static int fail(const llvm::Twine &message) {
  llvm::errs() << "alpa-solve: " << message << "\n";
  return 1;
}

static int fail(const std::string &file, llvm::Error error) {
  return fail(file + ": " + llvm::toString(std::move(error)));
}

/// The file's text; gzip is recognized by its content.
static llvm::Expected<std::string> readText(const std::string &path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (!file)
    return llvm::createStringError("cannot open the file");
  gzbuffer(file, 1 << 18);
  std::string text;
  std::vector<char> buffer(1 << 18);
  int count = 0;
  while ((count = gzread(file, buffer.data(), buffer.size())) > 0)
    text.append(buffer.data(), count);
  int code = gzclose_r(file);
  if (count < 0 || code != Z_OK)
    return llvm::createStringError("cannot read the file, or it is cut short");
  return text;
}

static int evaluateChoices(const Problem &problem, const std::string &path) {
  llvm::Expected<std::string> text = readText(path);
  if (!text)
    return fail(path, text.takeError());
  llvm::Expected<std::vector<unsigned>> choices = solver::parseChoices(problem, *text);
  if (!choices)
    return fail(path, choices.takeError());
  solver::Evaluation evaluation = solver::evaluate(problem, *choices);
  llvm::outs() << llvm::formatv(
      "{{\"feasible\": {0}, \"cost\": {1}, \"peak_usage\": {2}, \"peak_moment\": {3}}\n",
      evaluation.feasible ? "true" : "false", toText(evaluation.objective),
      evaluation.peakUsageBytes, evaluation.peakTime);
  return 0;
}

static void printJson(const solver::Solution &solution, llvm::StringRef status,
                      const Problem &problem) {
  bool none = solution.status == solver::SolveStatus::Infeasible;
  auto unless = [&](std::string value) { return none ? "null" : value; };
  llvm::outs() << llvm::formatv(
      "{{\"cost\": {0}, \"lower_bound\": {1}, \"gap\": {2}, \"status\": \"{3}\", "
      "\"peak_usage\": {4}, \"seconds\": {5:f6}, \"nodes\": {6}, \"edges\": {7}, "
      "\"eliminated\": {8}",
      unless(toText(solution.objective)), unless(toText(solution.lowerBound)),
      unless(llvm::formatv("{0:e6}", solution.gap)), status,
      unless(std::to_string(solution.peakUsageBytes)), solution.seconds, problem.nodes.size(),
      problem.edges.size(), solution.eliminated);
  if (none)
    llvm::outs() << ", \"reason\": "
                 << llvm::json::Value(llvm::json::fixUTF8(solution.infeasibleReason));
  llvm::outs() << "}\n";
}

static void printText(const solver::Solution &solution, llvm::StringRef status,
                      const Problem &problem) {
  llvm::raw_ostream &os = llvm::outs();
  os << "status:      " << status << "\n";
  if (solution.status == solver::SolveStatus::Infeasible)
    os << "reason:      " << solution.infeasibleReason << "\n";
  else
    os << llvm::formatv(
        "cost:        {0}\nlower bound: {1}\ngap:         {2:f6} %\npeak usage:  {3} bytes\n",
        toText(solution.objective), toText(solution.lowerBound), 100 * solution.gap,
        solution.peakUsageBytes);
  os << llvm::formatv("nodes:       {0}, {1} eliminated exactly\nseconds:     {2:f3}\n",
                      problem.nodes.size(), solution.eliminated, solution.seconds);
}

int main(int argc, char **argv) {
  auto start = std::chrono::steady_clock::now();
  auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::string methods = "How to solve:";
  for (const solver::Backend &backend : solver::backends())
    methods += "\n" + backend.name.str() + ": " + backend.description.str();
  cl::opt<std::string> method("method", cl::init(solver::backends().front().name.str()),
                              cl::value_desc("NAME"), cl::desc(methods), cl::cat(category));
  cl::HideUnrelatedOptions(category);
  printBuildInfoAsVersion();
  cl::ParseCommandLineOptions(argc, argv, kOverview);
  if (!(timeLimit > 0) || !std::isfinite(timeLimit))
    return fail("--time-limit: expected a positive number of seconds");
  if (!(workLimit > 0))
    return fail("--work-limit: expected a positive number");
  if (!(gap >= 0) || !std::isfinite(gap))
    return fail("--gap: expected 0 or a positive number");
  if (threads > 1024)
    return fail("--threads: expected 0 to 1024");

  llvm::Expected<std::string> text = readText(input);
  if (!text)
    return fail(input, text.takeError());
  llvm::Expected<Problem> problem = solver::parseProblem(*text);
  if (!problem)
    return fail(input, problem.takeError());
  std::string().swap(*text);
  if (!check.empty())
    return evaluateChoices(*problem, check);

  solver::SolveOptions options;
  options.findsEnough = true;
  options.timeLimitSeconds = timeLimit;
  options.spentSeconds = seconds();
  options.workLimit = workLimit;
  options.seed = seed;
  options.threads =
      threads ? unsigned(threads) : llvm::hardware_concurrency().compute_thread_count();
  options.acceptableGap = gap;
  options.quickWork = quickWork;
  options.library = library;
  llvm::Expected<solver::Solution> solution = solver::solveWith(method, *problem, options);
  if (!solution)
    return fail(input, solution.takeError());
  solution->seconds = seconds();

  bool none = solution->status == solver::SolveStatus::Infeasible;
  if (!solutionFile.empty() && !none) {
    std::error_code error;
    llvm::ToolOutputFile out(solutionFile, error, llvm::sys::fs::OF_Text);
    if (error)
      return fail(solutionFile + ": " + error.message());
    out.os() << solver::printChoices(solution->choices) << "\n";
    out.keep();
  }
  llvm::StringRef status =
      none && solution->isUnknown ? "unknown" : solver::stringifySolveStatus(solution->status);
  if (asJson)
    printJson(*solution, status, *problem);
  else
    printText(*solution, status, *problem);
  return none ? (solution->isUnknown ? 3 : 2) : 0;
}
