//===- Problem.h - the intra-operator optimization problem -------*- C++ -*-===//
//
// Choose one strategy per node so that node plus edge costs are least while, at
// every time point, the live nodes' memory stays under a limit. Costs are integers
// so that optimality proofs and comparisons are exact; the compiler counts in
// picoseconds. The JSON form is the one of the public IOPDDL contest.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SOLVER_MODEL_PROBLEM_H
#define ALPA_COMPILER_SOLVER_MODEL_PROBLEM_H

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace alpa::solver {

/// Cost of a choice, or of a pair of choices, that must not be taken.
inline constexpr int64_t kForbiddenCost = 1'000'000'000'000'000'000;

/// Sums of costs need more than 64 bits.
using CostSum = __int128;

/// Bytes in use at once, and the limit on them, stay below this, so that sums of
/// them need no more than 64 bits.
inline constexpr int64_t kMaxUsageBytes = int64_t(1) << 62;

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

/// The first mistake of a problem, in the part of its JSON form that `field` and
/// `index` name. The message names the node or edge and the value at fault.
struct ProblemFault {
  enum Field { Intervals, Costs, Usages, EdgeNodes, EdgeCosts, UsageLimit };
  Field field;
  size_t index;
  std::string message;
};

/// Checks sizes and ranges.
std::optional<ProblemFault> findFault(const Problem &problem);
llvm::Error verifyProblem(const Problem &problem);

/// Errors are one line that names the line of the text.
llvm::Expected<Problem> parseProblem(llvm::StringRef json);
std::string printProblem(const Problem &problem);

/// A solution is a JSON list of one choice per node.
llvm::Expected<std::vector<unsigned>> parseChoices(const Problem &problem, llvm::StringRef json);
std::string printChoices(const std::vector<unsigned> &choices);

/// In decimal digits.
std::string toText(CostSum sum);

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MODEL_PROBLEM_H
