//===- ProgramOrder.h - an order in which all programs can run ---*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_PROGRAMORDER_H
#define ALPA_COMPILER_SCHEDULE_PROGRAMORDER_H

#include "compiler/Schedule/ProgramTable.h"

namespace alpa {

constexpr int64_t unboundedCapacity = -1;

/// An instruction by program and position.
struct Place {
  uint32_t program, position;
};

/// Runs all programs, each as far as it gets: a receive waits for its send, a send
/// waits while `capacity` messages from its mesh to its peer are under way, an
/// all_reduce waits for all members. Which program runs first makes no difference
/// to who waits forever. Linear in the instructions.
class ProgramOrder {
public:
  ProgramOrder(const ProgramTable &table, int64_t capacity) : table(table), capacity(capacity) {}

  /// Whether all programs come to their end. Fills `places` with an order in which
  /// every instruction stands behind what it waits for.
  bool run();
  std::vector<Place> places;

  /// Fails where programs wait for each other in a circle; after `run` said so.
  mlir::LogicalResult reportCycle();

private:
  enum class Step { Done, Waits };
  Step step(uint32_t program, const Instruction &instruction);
  uint32_t awaited(uint32_t program) const;
  void describeWait(mlir::Diagnostic &diagnostic, uint32_t program, llvm::StringRef adverb) const;
  const Instruction &at(uint32_t program) const {
    return table.programs[program].instructions[next[program]];
  }

  const ProgramTable &table;
  int64_t capacity;
  std::vector<uint32_t> next;                       // Of each program.
  std::vector<uint32_t> ready;                      // Programs that may go on.
  std::vector<bool> sent, isWaiting;                // By transfer; whether its receiver sleeps.
  std::vector<int64_t> underWay;                    // By channel.
  std::vector<uint32_t> sleepingSender;             // By channel.
  std::vector<llvm::SmallVector<uint32_t>> arrived; // By sum.
};

} // namespace alpa

#endif // ALPA_COMPILER_SCHEDULE_PROGRAMORDER_H
