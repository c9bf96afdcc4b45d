//===- LocalSearch.h - usage over time, choices that respect it -*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_MEMORYLIMITED_LOCALSEARCH_H
#define ALPA_COMPILER_SOLVER_MEMORYLIMITED_LOCALSEARCH_H

#include "compiler/Solver/Model/Graph.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <optional>

namespace alpa::solver {

/// Bytes in use at each time point. A variable that is not placed counts with the
/// least that any of its choices uses, time point by time point. The uses of a variable
/// are kept as segments of its life that do not overlap, with what each choice
/// uses beyond that least.
class Usage {
public:
  Usage(const Graph &graph, int64_t limit);

  /// Starts over with nothing placed.
  void clear() { bytesAt = leastAt; }
  void load(llvm::ArrayRef<unsigned> choices);
  void place(unsigned variable, unsigned choice) { add(variable, choice, 1); }
  void remove(unsigned variable, unsigned choice) { add(variable, choice, -1); }
  void move(unsigned variable, unsigned from, unsigned to);
  /// Whether a variable that is not placed may take a choice.
  bool fits(unsigned variable, unsigned choice) const;
  bool fitsMove(unsigned variable, unsigned from, unsigned to) const;
  /// Whether the limit holds throughout a variable's life.
  bool holds(unsigned variable) const;

  struct Segment {
    unsigned begin = 0;
    unsigned end = 0;
    size_t bytes = 0; // Where its choices' bytes begin.
  };
  llvm::ArrayRef<Segment> segments(unsigned variable) const {
    return llvm::ArrayRef(allSegments)
        .slice(firstSegment[variable], firstSegment[variable + 1] - firstSegment[variable]);
  }
  int64_t bytes(const Segment &segment, unsigned choice) const {
    return allBytes[segment.bytes + choice];
  }
  llvm::ArrayRef<int64_t> at() const { return bytesAt; }
  int64_t limit() const { return limitBytes; }
  /// The time point with most use, or none if there are no time points.
  std::optional<unsigned> fullest() const;

private:
  void addSegments(const Variable &variable);
  void add(unsigned variable, unsigned choice, int sign);

  std::vector<size_t> firstSegment; // By variable, and one more.
  std::vector<Segment> allSegments;
  std::vector<int64_t> allBytes;
  std::vector<int64_t> leastAt;
  std::vector<int64_t> bytesAt;
  int64_t limitBytes;
};

/// Changes choices one or two at a time.
class LocalSearch {
public:
  LocalSearch(const Graph &graph, Usage &usage);

  /// Moves to choices that use less until the limit holds, at least cost.
  /// False if it gets stuck or is stopped, or after looking at `maxWork` choices.
  bool repair(std::vector<unsigned> &choices, double maxWork = 1e18, Stop stop = nullptr);
  /// Makes `choices`, which respect the limit, cheaper.
  void polish(std::vector<unsigned> &choices, Stop stop);
  /// Costs of single choices and pairs looked at so far.
  double work() const { return spent; }
  bool isAllowed(llvm::ArrayRef<unsigned> choices) const;
  CostSum objective(llvm::ArrayRef<unsigned> choices) const;

private:
  struct Link {
    unsigned edge;
    unsigned other;
  };
  int64_t pairCost(const Link &link, unsigned variable, unsigned choice, unsigned other) const;
  int64_t costOf(unsigned variable, unsigned choice, llvm::ArrayRef<unsigned> choices) const;
  bool usesLess(unsigned variable, unsigned from, unsigned to) const;
  void move(unsigned variable, unsigned choice, std::vector<unsigned> &choices);
  bool improveOne(unsigned variable, std::vector<unsigned> &choices);
  bool improvePair(unsigned variable, const Link &link, std::vector<unsigned> &choices);

  const Graph &graph;
  Usage &usage;
  std::vector<std::vector<Link>> links;
  mutable double spent = 0;
};

} // namespace alpa::solver

#endif // ALPA_COMPILER_SOLVER_MEMORYLIMITED_LOCALSEARCH_H
