//===- Problem.h - the intra-operator optimization problem -------*- C++ -*-===//
//
// Choose one strategy per node so that node plus edge costs are least while, at
// every moment, the live nodes' memory stays under a limit. Costs are integers
// so that optimality proofs and comparisons are exact; the compiler counts in
// picoseconds. The JSON form is the one of the public IOPDDL contest.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_PROBLEM_H
#define ALPA_COMPILER_SOLVER_PROBLEM_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace alpa {

/// Cost of a choice, or of a pair of choices, that must not be taken.
inline constexpr int64_t kForbiddenCost = 1'000'000'000'000'000'000;

/// Sums of costs need more than 64 bits.
using CostSum = __int128;

/// Half-open stretch [begin, end) of the liveness order.
struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
};

struct ProblemNode {
  std::string name; // For people; not part of the JSON form.
  std::vector<Interval> intervals;
  std::vector<int64_t> costs;       // One per choice.
  std::vector<int64_t> usagesBytes; // One per choice, or empty for none.
};

/// `costs` is row-major: index = choiceA * |choices of b| + choiceB. Parallel
/// edges are allowed and add up.
struct ProblemEdge {
  unsigned a = 0;
  unsigned b = 0;
  std::vector<int64_t> costs;
};

struct Problem {
  std::string name;
  std::vector<ProblemNode> nodes;
  std::vector<ProblemEdge> edges;
  std::optional<int64_t> usageLimitBytes;
};

/// Checks sizes and ranges; the message names the node or edge at fault.
llvm::Error verifyProblem(const Problem &problem);
llvm::Expected<Problem> parseProblem(llvm::StringRef json);
std::string printProblem(const Problem &problem);

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_PROBLEM_H
