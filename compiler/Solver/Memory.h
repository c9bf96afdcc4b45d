//===- Memory.h - usage over time, and choices that respect it ---*- C++ -*-===//

#ifndef ALPA_COMPILER_SOLVER_MEMORY_H
#define ALPA_COMPILER_SOLVER_MEMORY_H

#include "compiler/Solver/Graph.h"
#include "compiler/Solver/Moments.h"

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/STLFunctionalExtras.h"

#include <optional>

namespace alpa {

/// Bytes in use at each moment; usages are far below 2^63 in sum or are cut off
/// at the limit plus one.
class Usage {
public:
  Usage(const Graph &graph, const Moments &moments, int64_t limit);

  /// Whether `bytes` more fit everywhere in the variable's life.
  bool fits(unsigned variable, int64_t bytes) const;
  void add(unsigned variable, int64_t bytes);
  /// Starts over with nothing in use.
  void clear() { std::fill(bytesAt.begin(), bytesAt.end(), 0); }

  int64_t of(unsigned variable, unsigned choice) const {
    return usages[variable].empty() ? 0 : usages[variable][choice];
  }
  int64_t least(unsigned variable) const { return leastUsage[variable]; }
  llvm::ArrayRef<int64_t> at() const { return bytesAt; }
  llvm::ArrayRef<MomentRange> life(unsigned variable) const { return lives[variable]; }
  llvm::ArrayRef<unsigned> liveAt(unsigned moment) const { return live[moment]; }
  int64_t limit() const { return limitBytes; }
  /// The moment with most use, or none if there are no moments.
  std::optional<unsigned> fullest() const;

private:
  std::vector<std::vector<int64_t>> usages; // Cut off.
  std::vector<int64_t> leastUsage;
  std::vector<std::vector<MomentRange>> lives;
  std::vector<std::vector<unsigned>> live; // Variables by moment.
  std::vector<int64_t> bytesAt;
  int64_t limitBytes;
};

/// Changes choices one or two at a time.
class LocalSearch {
public:
  LocalSearch(const Graph &graph, Usage &usage);

  /// Moves to choices that use less until the limit holds, at least cost.
  /// False if it gets stuck.
  bool repair(std::vector<unsigned> &choices);
  /// Makes `choices`, which respect the limit, cheaper.
  void polish(std::vector<unsigned> &choices, llvm::function_ref<bool()> outOfTime);
  CostSum objective(llvm::ArrayRef<unsigned> choices) const;

private:
  struct Link {
    unsigned edge;
    unsigned other;
  };
  int64_t pairCost(const Link &link, unsigned variable, unsigned choice, unsigned other) const;
  int64_t costOf(unsigned variable, unsigned choice, llvm::ArrayRef<unsigned> choices) const;
  void load(llvm::ArrayRef<unsigned> choices);
  void move(unsigned variable, unsigned choice, std::vector<unsigned> &choices);
  bool improveOne(unsigned variable, std::vector<unsigned> &choices);
  bool improvePair(unsigned variable, const Link &link, std::vector<unsigned> &choices);

  const Graph &graph;
  Usage &usage;
  std::vector<std::vector<Link>> links;
};

} // namespace alpa

#endif // ALPA_COMPILER_SOLVER_MEMORY_H
