//===- ProgramTable.h - the programs of all meshes as arrays -----*- C++ -*-===//
//
// A step of many micro-batches has a million instructions. Checks of all meshes
// together work on numbers that are given out in one pass: programs, instructions,
// buffers, transfers and sums count from 0.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SCHEDULE_PROGRAMTABLE_H
#define ALPA_COMPILER_SCHEDULE_PROGRAMTABLE_H

#include "dialects/Alpa/AlpaDialect.h"

#include <vector>

namespace alpa::schedule {

enum class InstructionKind : uint8_t {
  Input,
  Run,
  Send,
  Recv,
  Accumulate,
  Zero,
  AllReduce,
  Reshard,
  Free,
  Output
};

struct Instruction {
  mlir::Operation *op;
  InstructionKind kind;
  uint32_t meeting = 0; // Of a send or receive its transfer, of an all_reduce its sum.
  uint32_t firstOperand = 0, firstResult = 0;
};

struct MeshProgram {
  ProgramOp op;
  int64_t mesh = 0;
  std::vector<Instruction> instructions;
};

/// A send and the receive that takes it.
struct Transfer {
  SendOp send;
  RecvOp recv;
  uint32_t from = 0, to = 0; // Programs.
  uint32_t channel = 0;      // One for each ordered pair of programs.
};

/// The all_reduce of each member, in the order of members.
struct MeshSum {
  llvm::SmallVector<AllReduceOp> ops;
  llvm::SmallVector<uint32_t> programs, buffers; // Where, and what each adds.
};

struct ProgramTable {
  std::vector<MeshProgram> programs; // In the order of the module.
  std::vector<uint32_t> operands;    // Buffers that instructions read.
  uint32_t numBuffers = 0;
  std::vector<Transfer> transfers;
  std::vector<MeshSum> sums;
  uint32_t numChannels = 0;

  size_t numInstructions() const;
  llvm::ArrayRef<uint32_t> operandsOf(const Instruction &instruction) const {
    return llvm::ArrayRef(operands).slice(instruction.firstOperand,
                                          instruction.op->getNumOperands());
  }
};

/// Fails at the guilty instruction unless meshes have one program each, peers exist,
/// and tags pair: one send with one receive, or the all_reduce of all members, of
/// one type and by one plan (alpa_programs_c1 to c3).
mlir::FailureOr<ProgramTable> readPrograms(mlir::ModuleOp module);

} // namespace alpa::schedule

#endif // ALPA_COMPILER_SCHEDULE_PROGRAMTABLE_H
