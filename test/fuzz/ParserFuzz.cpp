//===- ParserFuzz.cpp - damaged input must end in an error ----------------===//
//
// Inputs are damaged copies of good ones. Each is parsed and, if it still can be,
// used: problems are solved, clusters printed, modules run through passes. A crash,
// a hang, or a failure without a one-line reason is a finding; its input is kept
// in a file. Runs go on in a child process, which is replaced when it dies.
//
//===----------------------------------------------------------------------===//

#include "Mutate.h"
#include "compiler/CostModel/Cluster.h"
#include "compiler/CostModel/Profile.h"
#include "compiler/ParserInput.h"
#include "compiler/Registration.h"
#include "compiler/Solver/Solve.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/Regex.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace alpa;
namespace cl = llvm::cl;

namespace {
enum class Kind { Problem, Solution, Cluster, Profile, Module };
} // namespace

static cl::opt<Kind>
    kind("kind", cl::desc("What the files hold"), cl::Required,
         cl::values(clEnumValN(Kind::Problem, "problem", "problems for alpa-solve"),
                    clEnumValN(Kind::Solution, "solution", "a problem, whose answer is damaged"),
                    clEnumValN(Kind::Cluster, "cluster", "cluster files"),
                    clEnumValN(Kind::Profile, "profile", "measured costs of a cluster"),
                    clEnumValN(Kind::Module, "module", "modules; RUN lines say which passes")));
static cl::list<std::string> files(cl::Positional, cl::desc("FILE..."), cl::OneOrMore);
static cl::opt<unsigned> runs("runs", cl::desc("How many inputs"), cl::init(1000));
static cl::opt<unsigned> firstRun("first", cl::desc("Number of the first input"), cl::init(0));
static cl::opt<unsigned> cpuSeconds("cpu-seconds", cl::desc("Longer is a hang"), cl::init(20));
static cl::opt<std::string> keep("keep", cl::desc("Folder for inputs of findings"), cl::init("."));

namespace {

struct Input {
  std::string text;
  bool allowUnregistered = false;
  std::vector<std::string> pipelines; // Of modules.
};

/// Findings of a child, and how far it got.
struct Shared {
  unsigned current;
  unsigned accepted;
  unsigned used; // And solved, or passed through all passes.
  char complaint[512];
};

} // namespace

/// How far an input got.
struct Progress {
  bool accepted = false;
  bool used = false;
};

static std::vector<Input> corpus;
static std::vector<std::string> allPipelines;
static std::optional<solver::Problem> solved; // Whose solutions are damaged.

/// The passes of a file's RUN lines as pipelines.
static std::vector<std::string> pipelinesOf(llvm::StringRef text, llvm::StringRef path) {
  std::vector<std::string> result;
  llvm::Regex pass(" --?(alpa-[a-z-]+)(=(\"[^\"]*\"|[^ |>]*))?");
  llvm::SmallVector<llvm::StringRef> lines;
  text.split(lines, '\n');
  for (llvm::StringRef line : lines) {
    if (!line.contains("RUN:"))
      continue;
    std::string pipeline;
    llvm::SmallVector<llvm::StringRef> match;
    while (pass.match(line, &match)) {
      if (match[1] != "alpa-write-plan") { // It writes files.
        pipeline += (pipeline.empty() ? "" : ",") + match[1].str();
        std::string options = match[3].trim('"').str();
        for (size_t at; (at = options.find("%S")) != std::string::npos;)
          options.replace(at, 2, llvm::sys::path::parent_path(path).str());
        if (!options.empty() && options.find('%') == std::string::npos)
          pipeline += "{" + options + "}";
      }
      line = line.substr(match[0].data() + match[0].size() - line.data());
    }
    if (!pipeline.empty())
      result.push_back(std::move(pipeline));
  }
  return result;
}

static llvm::Error readCorpus() {
  for (const std::string &path : files) {
    auto buffer = llvm::MemoryBuffer::getFile(path);
    if (!buffer)
      return llvm::createStringError(path + ": " + buffer.getError().message());
    llvm::StringRef text = (*buffer)->getBuffer();
    if (kind != Kind::Module) {
      corpus.push_back({text.str(), false, {}});
      continue;
    }
    std::vector<std::string> pipelines = pipelinesOf(text, path);
    bool allow = text.contains("allow-unregistered-dialect");
    for (const char *all : {"alpa-import,alpa-cluster-layers",
                            "alpa-solve-sharding{cluster=cpu-test mesh-shape=2,2 time-limit=1}",
                            "alpa-import,alpa-cluster-layers,alpa-search-stages{cluster=cpu-test "
                            "time-limit=1},alpa-slice-stages,alpa-build-schedule,"
                            "alpa-plan-transfers,alpa-verify-program,alpa-export-shardy"})
      pipelines.push_back(all);
    allPipelines.insert(allPipelines.end(), pipelines.begin(), pipelines.end());
    // Comments would take most of the damage.
    std::string code;
    llvm::SmallVector<llvm::StringRef> parts, lines;
    text.split(parts, "// -----");
    for (llvm::StringRef part : parts) {
      lines.clear();
      code.clear();
      part.split(lines, '\n');
      for (llvm::StringRef line : lines)
        if (!line.ltrim().starts_with("//") && !line.trim().empty())
          code += line.str() + "\n";
      if (!code.empty())
        corpus.push_back({code, allow, pipelines});
    }
  }
  if (kind != Kind::Solution)
    return llvm::Error::success();
  llvm::Expected<solver::Problem> problem = solver::parseProblem(corpus.front().text);
  if (!problem)
    return problem.takeError();
  llvm::Expected<solver::Solution> solution = solver::solve(*problem);
  if (!solution)
    return solution.takeError();
  solved = std::move(*problem);
  corpus = {{solver::printChoices(solution->choices) + "\n", false, {}}};
  return llvm::Error::success();
}

/// An error must be one line and say where; where all errors of a file are said, each.
static std::string checkError(llvm::Error error, llvm::StringRef start, bool saysAll = false) {
  std::string text = llvm::toString(std::move(error));
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::StringRef(text).split(lines, '\n');
  if (lines.size() > 1 && !saysAll)
    return "more than one line: " + text;
  for (llvm::StringRef line : lines)
    if (!line.starts_with(start) && (lines.size() == 1 || !line.starts_with("and ")))
      return "no place: " + text;
  return "";
}

static std::string runProblem(const std::string &text, Progress &progress) {
  llvm::Expected<solver::Problem> problem = solver::parseProblem(text);
  if (!problem)
    return checkError(problem.takeError(), "line ");
  progress.accepted = true;
  solver::SolveOptions options;
  options.timeLimitSeconds = 0.5;
  llvm::Expected<solver::Solution> solution = solver::solve(*problem, options);
  if (!solution) // Only sums of costs can be too large for the solver.
    return checkError(solution.takeError(), "costs are too large");
  progress.used = true;
  return "";
}

static std::string runCluster(const std::string &text, Progress &progress) {
  llvm::Expected<cost::Cluster> cluster = cost::parseCluster(text, "damaged.yaml");
  if (!cluster)
    return checkError(cluster.takeError(), "damaged.yaml:", /*saysAll=*/true);
  progress.accepted = true;
  llvm::Expected<cost::Cluster> again =
      cost::parseCluster(cost::printCluster(*cluster), "printed.yaml");
  if (!again)
    return "cannot be read back: " + llvm::toString(again.takeError());
  progress.used = true;
  return "";
}

static std::string runProfile(const std::string &text, Progress &progress) {
  llvm::Expected<cost::Profile> profile = cost::parseProfile(text, "damaged.yaml");
  if (!profile)
    return checkError(profile.takeError(), "damaged.yaml:", /*saysAll=*/true);
  progress.accepted = true;
  llvm::Expected<cost::Profile> again =
      cost::parseProfile(cost::printProfile(*profile), "printed.yaml");
  if (!again)
    return "cannot be read back: " + llvm::toString(again.takeError());
  progress.used = true;
  return "";
}

static std::string runModule(const Input &input, const std::string &pipeline, Progress &progress) {
  static const mlir::DialectRegistry registry = [] {
    mlir::DialectRegistry result;
    registerDialects(result);
    return result;
  }();
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  context.allowUnregisteredDialects(input.allowUnregistered);
  if (llvm::Error error = checkNesting(input.text, "damaged.mlir"))
    return checkError(std::move(error), "damaged.mlir:");
  unsigned errors = 0;
  mlir::ScopedDiagnosticHandler handler(&context, [&](mlir::Diagnostic &diagnostic) {
    errors += diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error;
    (void)diagnostic.str(); // Printing must work too.
    return mlir::success();
  });
  std::optional<std::string> packed = packBooleans(input.text);
  mlir::OwningOpRef<mlir::ModuleOp> module = mlir::parseSourceString<mlir::ModuleOp>(
      packed ? *packed : input.text, mlir::ParserConfig(&context));
  if (!module)
    return errors ? "" : "not parsed, without a reason";
  progress.accepted = true;
  mlir::PassManager manager(&context);
  std::string problem;
  llvm::raw_string_ostream os(problem);
  if (mlir::failed(mlir::parsePassPipeline(pipeline, manager, os)))
    return ""; // A RUN line that tests bad options.
  progress.used = mlir::succeeded(manager.run(*module));
  return progress.used || errors ? "" : "passes fail without a reason: " + pipeline;
}

/// The damaged input of a run; the same every time.
static Input makeInput(unsigned run, std::string &pipeline) {
  Mutator mutator(run);
  Input input = corpus[mutator.below(corpus.size())];
  if (!input.pipelines.empty()) {
    // Some are meant for other modules.
    const std::vector<std::string> &from = mutator.below(3) ? input.pipelines : allPipelines;
    pipeline = from[mutator.below(from.size())];
  }
  // Some not at all, for passes that they are not meant for.
  unsigned changes = mutator.below(8) ? 1 + mutator.below(2) * mutator.below(4) : 0;
  for (; changes > 0; --changes)
    mutator.damage(input.text, corpus[mutator.below(corpus.size())].text);
  return input;
}

static std::string runOne(unsigned run, Progress &progress) {
  std::string pipeline;
  Input input = makeInput(run, pipeline);
  switch (kind) {
  case Kind::Problem:
    return runProblem(input.text, progress);
  case Kind::Solution: {
    llvm::Expected<std::vector<unsigned>> choices = solver::parseChoices(*solved, input.text);
    if (!choices)
      return checkError(choices.takeError(), "line ");
    progress.accepted = true;
    progress.used = solver::evaluate(*solved, *choices).feasible;
    return "";
  }
  case Kind::Cluster:
    return runCluster(input.text, progress);
  case Kind::Profile:
    return runProfile(input.text, progress);
  case Kind::Module:
    return runModule(input, pipeline, progress);
  }
  return "";
}

[[noreturn]] static void runChild(Shared &shared, unsigned begin, unsigned end) {
  int null = open("/dev/null", O_WRONLY);
  dup2(null, STDOUT_FILENO);
  dup2(null, STDERR_FILENO);
#if !LLVM_ADDRESS_SANITIZER_BUILD // Which reserves far more than it uses.
  rlimit memory{rlim_t(4) << 30, rlim_t(4) << 30};
  setrlimit(RLIMIT_AS, &memory);
#endif
  for (unsigned run = begin; run < end; ++run) {
    shared.current = run;
    itimerval watchdog{{0, 0}, {int(unsigned(cpuSeconds)), 0}};
    setitimer(ITIMER_PROF, &watchdog, nullptr);
    Progress progress;
    std::string complaint = runOne(run, progress);
    shared.accepted += progress.accepted;
    shared.used += progress.used;
    if (!complaint.empty()) {
      std::strncpy(shared.complaint, complaint.c_str(), sizeof(shared.complaint) - 1);
      _exit(1);
    }
  }
  _exit(0);
}

int main(int argc, char **argv) {
  cl::ParseCommandLineOptions(argc, argv, "Feeds damaged inputs to the parsers.\n");
  registerPasses();
  if (llvm::Error error = readCorpus()) {
    llvm::errs() << llvm::toString(std::move(error)) << "\n";
    return 1;
  }
  auto *shared = static_cast<Shared *>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  unsigned begin = firstRun, end = firstRun + runs, findings = 0;
  while (begin < end) {
    shared->complaint[0] = 0;
    pid_t child = fork();
    if (child == 0)
      runChild(*shared, begin, end);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
      break;
    ++findings;
    std::string pipeline, what = shared->complaint;
    if (WIFSIGNALED(status))
      what = WTERMSIG(status) == SIGPROF ? "hang" : strsignal(WTERMSIG(status));
    std::string path = keep + "/finding-" + std::to_string(shared->current);
    std::error_code error;
    llvm::raw_fd_ostream(path, error) << makeInput(shared->current, pipeline).text;
    llvm::errs() << "run " << shared->current << ": " << what << "; " << path
                 << (pipeline.empty() ? "" : " with ") << pipeline << "\n";
    begin = shared->current + 1;
  }
  llvm::outs() << runs << " damaged inputs, " << shared->accepted << " still valid, "
               << shared->used << " of use, " << findings << " findings\n";
  return findings != 0;
}
