//===- ProgramOrder.cpp - an order in which all programs can run ----------===//

#include "compiler/Schedule/ProgramOrder.h"

using namespace mlir;
using namespace alpa;

static constexpr uint32_t nobody = ~0u;

bool ProgramOrder::run() {
  next.assign(table.programs.size(), 0);
  sent.assign(table.transfers.size(), false);
  isWaiting.assign(table.transfers.size(), false);
  underWay.assign(table.numChannels, 0);
  sleepingSender.assign(table.numChannels, nobody);
  arrived.assign(table.sums.size(), {});
  places.clear();
  places.reserve(table.numInstructions());
  for (uint32_t program = table.programs.size(); program-- > 0;)
    ready.push_back(program);
  while (!ready.empty()) {
    uint32_t program = ready.back();
    ready.pop_back();
    const auto &instructions = table.programs[program].instructions;
    while (next[program] < instructions.size() &&
           step(program, instructions[next[program]]) == Step::Done)
      ++next[program];
  }
  return places.size() == table.numInstructions();
}

ProgramOrder::Step ProgramOrder::step(uint32_t program, const Instruction &instruction) {
  switch (instruction.kind) {
  case InstructionKind::Send: {
    const Transfer &transfer = table.transfers[instruction.meeting];
    if (capacity >= 0 && underWay[transfer.channel] >= capacity) {
      sleepingSender[transfer.channel] = program;
      return Step::Waits;
    }
    ++underWay[transfer.channel];
    sent[instruction.meeting] = true;
    if (isWaiting[instruction.meeting])
      ready.push_back(transfer.to);
    break;
  }
  case InstructionKind::Recv: {
    const Transfer &transfer = table.transfers[instruction.meeting];
    if (!sent[instruction.meeting]) {
      isWaiting[instruction.meeting] = true;
      return Step::Waits;
    }
    --underWay[transfer.channel];
    if (uint32_t &sender = sleepingSender[transfer.channel]; sender != nobody) {
      ready.push_back(sender);
      sender = nobody;
    }
    break;
  }
  case InstructionKind::AllReduce: {
    const MeshSum &sum = table.sums[instruction.meeting];
    SmallVector<uint32_t> &there = arrived[instruction.meeting];
    if (there.size() == sum.programs.size()) // The last one to come has let all go on.
      break;
    there.push_back(program);
    if (there.size() < sum.programs.size())
      return Step::Waits;
    for (uint32_t member : there)
      if (member != program)
        ready.push_back(member);
    break;
  }
  default:
    break;
  }
  places.push_back({program, next[program]});
  return Step::Done;
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
