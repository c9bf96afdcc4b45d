//===- ProgramOrder.h - an order in which all programs can run ---*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_PROGRAMORDER_H
#define ALPA_COMPILER_SCHEDULE_PROGRAMORDER_H

#include "compiler/Schedule/ProgramTable.h"

#include "llvm/ADT/STLFunctionalExtras.h"
#include <optional>
#include <queue>

namespace alpa::schedule {

constexpr int64_t unboundedCapacity = -1;

/// An instruction by program and position.
struct Place {
  uint32_t program, position;
};

/// Runs all programs: a receive waits for its send, a send waits while `capacity`
/// messages from its mesh to its peer are under way, an all_reduce waits for all
/// members. Of those that can go on the program goes first that is the earliest, by the
/// seconds of what it and those that it waited for have run; which one makes no
/// difference to who waits forever.
class ProgramOrder {
public:
  ProgramOrder(const ProgramTable &table, int64_t capacity) : table(table), capacity(capacity) {}

  using SecondsOfRun = llvm::function_ref<double(RunOp)>;

  /// Whether all programs come to their end. Fills `places` with an order in which
  /// every instruction stands behind what it waits for, and the members of an
  /// all_reduce behind each other.
  bool run(SecondsOfRun seconds = [](RunOp) { return 1.0; });
  std::vector<Place> places;

  /// Fails where programs wait for each other in a circle; after `run` said so.
  mlir::LogicalResult reportCycle();

private:
  /// Whether the program could take its next instruction, or waits.
  bool step(uint32_t program, SecondsOfRun seconds);
  void take(uint32_t program) { places.push_back({program, next[program]++}); }
  /// The program may go on, at that time if it has not come as far.
  void wake(uint32_t program, double now) {
    clocks[program] = std::max(clocks[program], now);
    ready.push({clocks[program], program});
  }
  uint32_t awaited(uint32_t program) const;
  void describeWait(mlir::Diagnostic &diagnostic, uint32_t program, llvm::StringRef adverb) const;
  const Instruction &at(uint32_t program) const {
    return table.programs[program].instructions[next[program]];
  }

  const ProgramTable &table;
  int64_t capacity;
  std::vector<uint32_t> next; // Of each program.
  std::vector<double> clocks;
  using Ready = std::pair<double, uint32_t>; // A program that may go on, with its clock.
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
  std::vector<std::optional<double>> sent;          // By transfer.
  std::vector<bool> isWaiting;                      // By transfer: whether its receiver sleeps.
  std::vector<int64_t> underWay;                    // By channel.
  std::vector<uint32_t> sleepingSender;             // By channel.
  std::vector<llvm::SmallVector<uint32_t>> arrived; // By sum.
};

} // namespace alpa::schedule

#endif // ALPA_COMPILER_SCHEDULE_PROGRAMORDER_H
