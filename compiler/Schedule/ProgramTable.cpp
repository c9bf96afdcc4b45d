//===- ProgramTable.cpp - the programs of all meshes as arrays ------------===//

#include "compiler/Schedule/ProgramTable.h"

#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::schedule;

namespace {

class TableReader {
public:
  LogicalResult read(ModuleOp module);
  ProgramTable table;

private:
  LogicalResult readProgram(MeshProgram &program, uint32_t index);
  LogicalResult enter(Instruction &instruction, uint32_t program);
  LogicalResult pair(const Transfer &transfer);
  LogicalResult checkSum(const MeshSum &sum);
  LogicalResult exists(Operation *op, int64_t mesh) {
    if (programOf.contains(mesh))
      return success();
    return op->emitError() << "alpa_programs_c1: mesh " << mesh << " has no program";
  }
  uint32_t meetingOf(llvm::DenseMap<int64_t, uint32_t> &known, int64_t tag, size_t count) {
    return known.try_emplace(tag, count).first->second;
  }

  llvm::DenseMap<int64_t, uint32_t> programOf;         // By mesh.
  llvm::DenseMap<int64_t, uint32_t> transferOf, sumOf; // By tag.
  llvm::DenseMap<Operation *, uint32_t> firstResults;
};

InstructionKind kindOf(Operation *op) {
  return llvm::TypeSwitch<Operation *, InstructionKind>(op)
      .Case([](FreeOp) { return InstructionKind::Free; })
      .Case([](RunOp) { return InstructionKind::Run; })
      .Case([](SendOp) { return InstructionKind::Send; })
      .Case([](RecvOp) { return InstructionKind::Recv; })
      .Case([](AccumulateOp) { return InstructionKind::Accumulate; })
      .Case([](InputOp) { return InstructionKind::Input; })
      .Case([](ReshardOp) { return InstructionKind::Reshard; })
      .Case([](AllReduceOp) { return InstructionKind::AllReduce; })
      .Case([](ZeroOp) { return InstructionKind::Zero; })
      .Default([](Operation *) { return InstructionKind::Output; });
}

InFlightDiagnostic twice(Operation *op, Operation *first, StringRef what) {
  InFlightDiagnostic diagnostic = op->emitError() << what;
  diagnostic.attachNote(first->getLoc()) << "the first one is here";
  return diagnostic;
}

int64_t meshOf(Operation *op) { return cast<ProgramOp>(op->getParentOp()).getMesh(); }

} // namespace

size_t ProgramTable::numInstructions() const {
  size_t count = 0;
  for (const MeshProgram &program : programs)
    count += program.instructions.size();
  return count;
}

LogicalResult TableReader::read(ModuleOp module) {
  for (auto op : module.getOps<ProgramOp>()) {
    auto [it, isNew] = programOf.try_emplace(op.getMesh(), table.programs.size());
    if (!isNew)
      return twice(op, table.programs[it->second].op,
                   "alpa_programs_c1: mesh already has a program");
    table.programs.push_back({op, int64_t(op.getMesh()), {}});
  }
  for (auto [index, program] : llvm::enumerate(table.programs))
    if (failed(readProgram(program, index)))
      return failure();
  llvm::DenseMap<std::pair<uint32_t, uint32_t>, uint32_t> channels;
  for (Transfer &transfer : table.transfers) {
    if (failed(pair(transfer)))
      return failure();
    transfer.channel =
        channels.try_emplace({transfer.from, transfer.to}, channels.size()).first->second;
  }
  table.numChannels = channels.size();
  for (const MeshSum &sum : table.sums)
    if (failed(checkSum(sum)))
      return failure();
  return success();
}

LogicalResult TableReader::readProgram(MeshProgram &program, uint32_t index) {
  Block &body = *program.op.getBody();
  program.instructions.reserve(body.getOperations().size());
  firstResults.clear();
  firstResults.reserve(body.getOperations().size());
  for (Operation &op : body) {
    Instruction instruction{&op, kindOf(&op)};
    instruction.firstOperand = table.operands.size();
    instruction.firstResult = table.numBuffers;
    for (Value operand : op.getOperands())
      table.operands.push_back(firstResults.lookup(operand.getDefiningOp()) +
                               cast<OpResult>(operand).getResultNumber());
    if (op.getNumResults() > 0)
      firstResults[&op] = table.numBuffers;
    table.numBuffers += op.getNumResults();
    if (failed(enter(instruction, index)))
      return failure();
    program.instructions.push_back(instruction);
  }
  return success();
}

/// Notes the transfer or the sum of which an instruction is a part.
LogicalResult TableReader::enter(Instruction &instruction, uint32_t program) {
  Operation *first = nullptr;
  auto transferAt = [&](int64_t tag) -> Transfer & {
    instruction.meeting = meetingOf(transferOf, tag, table.transfers.size());
    if (instruction.meeting == table.transfers.size())
      table.transfers.emplace_back();
    return table.transfers[instruction.meeting];
  };
  if (auto send = dyn_cast<SendOp>(instruction.op)) {
    Transfer &transfer = transferAt(send.getTag());
    first = transfer.send;
    transfer.send = send;
    transfer.from = program;
  } else if (auto recv = dyn_cast<RecvOp>(instruction.op)) {
    Transfer &transfer = transferAt(recv.getTag());
    first = transfer.recv;
    transfer.recv = recv;
    transfer.to = program;
  } else if (auto reduce = dyn_cast<AllReduceOp>(instruction.op)) {
    instruction.meeting = meetingOf(sumOf, reduce.getTag(), table.sums.size());
    if (instruction.meeting == table.sums.size())
      table.sums.emplace_back();
    MeshSum &sum = table.sums[instruction.meeting];
    if (!sum.programs.empty() && sum.programs.back() == program)
      first = sum.ops.back();
    sum.ops.push_back(reduce);
    sum.programs.push_back(program);
    sum.buffers.push_back(table.operands.back());
  }
  if (first)
    return twice(instruction.op, first, "alpa_programs_c2: the tag is used again");
  return success();
}

LogicalResult TableReader::pair(const Transfer &transfer) {
  SendOp send = transfer.send;
  RecvOp recv = transfer.recv;
  if (send && failed(exists(send, send.getPeer())))
    return failure();
  if (recv && failed(exists(recv, recv.getPeer())))
    return failure();
  if (!recv)
    return send.emitError() << "alpa_programs_c2: mesh " << send.getPeer() << " never receives tag "
                            << send.getTag();
  if (!send)
    return recv.emitError() << "alpa_programs_c2: mesh " << recv.getPeer() << " never sends tag "
                            << recv.getTag();
  bool sameMeshes =
      meshOf(recv) == int64_t(send.getPeer()) && meshOf(send) == int64_t(recv.getPeer());
  bool sameTypes = send.getBuffer().getType() == recv.getBuffer().getType();
  if (sameMeshes && sameTypes && send.getByAttr() == recv.getByAttr())
    return success();
  InFlightDiagnostic diagnostic = recv.emitError();
  auto way = [](FlatSymbolRefAttr by) { return by ? ("by " + by.getValue()).str() : "unplanned"; };
  if (sameMeshes && sameTypes)
    diagnostic << "alpa_programs_c3: tag " << send.getTag() << " is sent " << way(send.getByAttr())
               << ", but received " << way(recv.getByAttr());
  else if (sameMeshes)
    diagnostic << "alpa_programs_c3: tag " << send.getTag() << " carries "
               << send.getBuffer().getType() << ", got " << recv.getBuffer().getType();
  else
    diagnostic << "alpa_programs_c2: mesh " << meshOf(recv) << " expects tag " << send.getTag()
               << " from mesh " << recv.getPeer() << ", but mesh " << meshOf(send)
               << " sends it to mesh " << send.getPeer();
  diagnostic.attachNote(send.getLoc()) << "the send is here";
  return diagnostic;
}

LogicalResult TableReader::checkSum(const MeshSum &sum) {
  AllReduceOp first = sum.ops.front();
  for (int64_t mesh : first.getMembers()) {
    if (failed(exists(first, mesh)))
      return failure();
    if (!llvm::is_contained(sum.programs, programOf.lookup(mesh)))
      return first.emitError() << "alpa_programs_c2: mesh " << mesh
                               << " takes no part in the sum of tag " << first.getTag();
  }
  for (AllReduceOp op : sum.ops) {
    bool sameMembers = op.getMembers() == first.getMembers();
    if (sameMembers && op.getSum().getType() == first.getSum().getType())
      continue;
    InFlightDiagnostic diagnostic = op.emitError();
    if (sameMembers)
      diagnostic << "alpa_programs_c3: tag " << first.getTag() << " adds up "
                 << first.getSum().getType() << ", got " << op.getSum().getType();
    else
      diagnostic << "alpa_programs_c2: tag " << first.getTag() << " adds up among ["
                 << first.getMembers() << "], got [" << op.getMembers() << "]";
    diagnostic.attachNote(first.getLoc()) << "the first one is here";
    return diagnostic;
  }
  return success();
}

FailureOr<ProgramTable> schedule::readPrograms(ModuleOp module) {
  TableReader reader;
  if (failed(reader.read(module)))
    return failure();
  return std::move(reader.table);
}
