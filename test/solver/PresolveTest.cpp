//===- PresolveTest.cpp - prints what a collapse leaves of a problem ------===//

#include "compiler/Solver/Presolve/Presolve.h"
#include "compiler/Solver/Model/TimePoints.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"

using namespace alpa;
using namespace alpa::solver;
namespace cl = llvm::cl;

static cl::opt<std::string> input(cl::Positional, cl::desc("FILE.json"), cl::Required);

static void printMember(const Member &member) {
  llvm::outs() << " node " << member.node << ": [";
  llvm::interleaveComma(member.choices, llvm::outs());
  llvm::outs() << "]";
}

static void printUse(const Use &use) {
  llvm::outs() << "  uses [";
  llvm::interleaveComma(use.bytes, llvm::outs());
  llvm::outs() << "] in";
  for (TimeRange range : use.life)
    llvm::outs() << " [" << range.begin << ", " << range.end << ")";
  llvm::outs() << "\n";
}

static void print(const Graph &graph) {
  llvm::outs() << "constant " << static_cast<int64_t>(graph.constant) << "\n";
  std::vector<std::pair<unsigned, unsigned>> fixed = graph.fixed;
  llvm::sort(fixed);
  for (auto [node, choice] : fixed)
    llvm::outs() << "fixed node " << node << ": " << choice << "\n";
  for (unsigned v = 0; v < graph.variables.size(); ++v) {
    const Variable &variable = graph.variables[v];
    llvm::outs() << "variable " << v << ":";
    for (const Member &member : variable.members)
      printMember(member);
    llvm::outs() << "\n  costs [";
    llvm::interleaveComma(variable.costs, llvm::outs());
    llvm::outs() << "]\n";
    for (const Use &use : variable.uses)
      printUse(use);
  }
  for (const GraphEdge &edge : graph.edges) {
    llvm::outs() << "edge " << edge.a << " " << edge.b << ": [";
    llvm::interleaveComma(edge.costs, llvm::outs());
    llvm::outs() << "]\n";
  }
  for (const Elimination &elimination : graph.eliminated) {
    llvm::outs() << "follows from nodes " << elimination.a << " and " << elimination.b << ":";
    for (const Member &member : elimination.members)
      printMember(member);
    llvm::outs() << " by [";
    llvm::interleaveComma(elimination.choices, llvm::outs());
    llvm::outs() << "]\n";
  }
  llvm::outs() << "base [";
  llvm::interleaveComma(graph.baseBytes, llvm::outs());
  llvm::outs() << "]\n";
}

int main(int argc, char **argv) {
  cl::ParseCommandLineOptions(argc, argv, "Prints what a collapse leaves of a problem.\n");
  llvm::ErrorOr<std::unique_ptr<llvm::MemoryBuffer>> file = llvm::MemoryBuffer::getFile(input);
  if (!file) {
    llvm::errs() << "presolve-test: cannot read " << input << "\n";
    return 1;
  }
  llvm::Expected<Problem> problem = parseProblem((*file)->getBuffer());
  if (!problem) {
    llvm::errs() << "presolve-test: " << llvm::toString(problem.takeError()) << "\n";
    return 1;
  }
  TimePoints timePoints = collectTimePoints(*problem);
  Graph graph = translate(*problem, &timePoints);
  if (problem->usageLimitBytes)
    presolveWithin(graph, *problem->usageLimitBytes);
  else
    presolveGraph(graph);
  if (graph.impossibleNode)
    llvm::outs() << "impossible\n";
  else
    print(graph);
  return 0;
}
