//===- ProgramOrder.cpp - an order in which all programs can run ----------===//

#include "compiler/Schedule/ProgramOrder.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::schedule;

static constexpr uint32_t nobody = ~0u;

bool ProgramOrder::run(SecondsOfRun seconds) {
  next.assign(table.programs.size(), 0);
  clocks.assign(table.programs.size(), 0);
  sent.assign(table.transfers.size(), std::nullopt);
  isWaiting.assign(table.transfers.size(), false);
  underWay.assign(table.numChannels, 0);
  sleepingSender.assign(table.numChannels, nobody);
  arrived.assign(table.sums.size(), {});
  places.clear();
  places.reserve(table.numInstructions());
  for (uint32_t program = 0; program < table.programs.size(); ++program)
    wake(program, 0);
  while (!ready.empty()) {
    auto [clock, program] = ready.top();
    ready.pop();
    while (next[program] < table.programs[program].instructions.size() && step(program, seconds))
      if (clocks[program] > clock) { // Others may be earlier now.
        wake(program, clock);
        break;
      }
  }
  return places.size() == table.numInstructions();
}

bool ProgramOrder::step(uint32_t program, SecondsOfRun seconds) {
  const Instruction &instruction = at(program);
  switch (instruction.kind) {
  case InstructionKind::Run:
    clocks[program] += seconds(cast<RunOp>(instruction.op));
    break;
  case InstructionKind::Send: {
    const Transfer &transfer = table.transfers[instruction.meeting];
    if (capacity >= 0 && underWay[transfer.channel] >= capacity) {
      sleepingSender[transfer.channel] = program;
      return false;
    }
    ++underWay[transfer.channel];
    sent[instruction.meeting] = clocks[program];
    if (isWaiting[instruction.meeting])
      wake(transfer.to, clocks[program]);
    break;
  }
  case InstructionKind::Recv: {
    const Transfer &transfer = table.transfers[instruction.meeting];
    if (!sent[instruction.meeting]) {
      isWaiting[instruction.meeting] = true;
      return false;
    }
    clocks[program] = std::max(clocks[program], *sent[instruction.meeting]);
    --underWay[transfer.channel];
    if (uint32_t &sender = sleepingSender[transfer.channel]; sender != nobody) {
      wake(sender, clocks[program]);
      sender = nobody;
    }
    break;
  }
  case InstructionKind::AllReduce: {
    const MeshSum &sum = table.sums[instruction.meeting];
    SmallVector<uint32_t> &there = arrived[instruction.meeting];
    there.push_back(program);
    if (there.size() < sum.programs.size())
      return false;
    for (uint32_t member : there)
      clocks[program] = std::max(clocks[program], clocks[member]);
    for (uint32_t member : sum.programs) {
      take(member);
      if (member != program)
        wake(member, clocks[program]);
    }
    return true;
  }
  default:
    break;
  }
  take(program);
  return true;
}

/// The program that has to go on before this one can.
uint32_t ProgramOrder::awaited(uint32_t program) const {
  const Instruction &instruction = at(program);
  if (instruction.kind == InstructionKind::Recv)
    return table.transfers[instruction.meeting].from;
  if (instruction.kind == InstructionKind::Send)
    return table.transfers[instruction.meeting].to;
  for (uint32_t member : table.sums[instruction.meeting].programs)
    if (!llvm::is_contained(arrived[instruction.meeting], member))
      return member;
  return program;
}

void ProgramOrder::describeWait(Diagnostic &diagnostic, uint32_t program, StringRef adverb) const {
  diagnostic << "mesh " << table.programs[program].mesh << " waits " << adverb << " for mesh "
             << table.programs[awaited(program)].mesh;
  const Instruction &instruction = at(program);
  if (auto recv = dyn_cast<RecvOp>(instruction.op))
    diagnostic << " to send tag " << recv.getTag();
  else if (isa<SendOp>(instruction.op))
    diagnostic << " to receive one of the " << capacity << " messages that may be under way to it";
  else
    diagnostic << " to come to the sum of tag " << cast<AllReduceOp>(instruction.op).getTag();
}

LogicalResult ProgramOrder::reportCycle() {
  uint32_t program = 0;
  while (next[program] == table.programs[program].instructions.size())
    ++program;
  // As many steps as there are programs end inside the circle, whose lowest mesh begins.
  for (size_t i = 0; i < table.programs.size(); ++i)
    program = awaited(program);
  uint32_t first = program;
  for (uint32_t other = awaited(program); other != program; other = awaited(other))
    first = std::min(first, other);
  InFlightDiagnostic diagnostic = at(first).op->emitError() << "alpa_programs_c6: ";
  describeWait(*diagnostic.getUnderlyingDiagnostic(), first, "forever");
  for (uint32_t other = awaited(first); other != first; other = awaited(other))
    describeWait(diagnostic.attachNote(at(other).op->getLoc()), other, "here");
  return diagnostic;
}
