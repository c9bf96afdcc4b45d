//===- VerifyProgram.cpp - the programs of all meshes work together -------===//

#include "compiler/Schedule/Passes.h"

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

namespace alpa {
#define GEN_PASS_DEF_ALPAVERIFYPROGRAM
#include "compiler/Schedule/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

struct VerifyProgram : alpa::impl::AlpaVerifyProgramBase<VerifyProgram> {
  using Base::Base;

  void runOnOperation() override {
    if (failed(collect()) || failed(checkTransfers()) || failed(checkSums()))
      return signalPassFailure();
    for (auto &[mesh, program] : programs)
      if (failed(checkBuffers(program)))
        return signalPassFailure();
    if (failed(checkProgress()) || failed(checkComplete()))
      return signalPassFailure();
  }

private:
  LogicalResult collect();
  LogicalResult checkTransfers();
  LogicalResult checkSums();
  LogicalResult checkBuffers(ProgramOp program);
  LogicalResult checkProgress();
  LogicalResult checkComplete();
  LogicalResult checkRuns(int64_t numMicroBatches);
  LogicalResult checkOutputs(int64_t numMicroBatches);

  llvm::MapVector<int64_t, ProgramOp> programs; // By mesh.
  llvm::MapVector<int64_t, SendOp> sends;       // By tag.
  llvm::MapVector<int64_t, RecvOp> recvs;
  llvm::MapVector<int64_t, llvm::MapVector<int64_t, AllReduceOp>> sums; // Tag, then mesh.
  llvm::MapVector<Attribute, llvm::MapVector<int64_t, RunOp>> runs;     // Callee, then micro-batch.
  llvm::MapVector<int64_t, llvm::MapVector<int64_t, OutputOp>> outputs;
};

int64_t meshOf(Operation *op) { return cast<ProgramOp>(op->getParentOp()).getMesh(); }

InFlightDiagnostic twice(Operation *op, Operation *first, StringRef what) {
  InFlightDiagnostic diagnostic = op->emitError() << what;
  diagnostic.attachNote(first->getLoc()) << "the first one is here";
  return diagnostic;
}

} // namespace

LogicalResult VerifyProgram::collect() {
  for (auto program : getOperation().getOps<ProgramOp>()) {
    auto [it, isNew] = programs.try_emplace(program.getMesh(), program);
    if (!isNew)
      return twice(program, it->second, "alpa_programs_c1: mesh already has a program");
  }
  for (auto &[mesh, program] : programs) {
    for (Operation &op : *program.getBody()) {
      ++numInstructions;
      Operation *first = nullptr;
      if (auto send = dyn_cast<SendOp>(op)) {
        auto [it, isNew] = sends.try_emplace(send.getTag(), send);
        first = isNew ? nullptr : it->second.getOperation();
      } else if (auto recv = dyn_cast<RecvOp>(op)) {
        auto [it, isNew] = recvs.try_emplace(recv.getTag(), recv);
        first = isNew ? nullptr : it->second.getOperation();
      } else if (auto sum = dyn_cast<AllReduceOp>(op)) {
        auto [it, isNew] = sums[sum.getTag()].try_emplace(mesh, sum);
        first = isNew ? nullptr : it->second.getOperation();
      } else if (auto run = dyn_cast<RunOp>(op)) {
        auto [it, isNew] = runs[run.getCallee()].try_emplace(run.getMicroBatch().value_or(-1), run);
        if (!isNew)
          return twice(&op, it->second, "alpa_programs_c7: the function runs again");
      } else if (auto output = dyn_cast<OutputOp>(op)) {
        auto [it, isNew] =
            outputs[output.getResult()].try_emplace(output.getMicroBatch().value_or(-1), output);
        if (!isNew)
          return twice(&op, it->second, "alpa_programs_c7: the result leaves again");
      }
      if (first)
        return twice(&op, first, "alpa_programs_c2: the tag is used again");
    }
  }
  return success();
}

LogicalResult VerifyProgram::checkTransfers() {
  auto exists = [&](Operation *op, int64_t peer) -> LogicalResult {
    if (programs.contains(peer))
      return success();
    return op->emitError() << "alpa_programs_c1: mesh " << peer << " has no program";
  };
  for (auto &[tag, send] : sends) {
    if (failed(exists(send, send.getPeer())))
      return failure();
    RecvOp recv = recvs.lookup(tag);
    if (!recv)
      return send.emitError() << "alpa_programs_c2: mesh " << send.getPeer()
                              << " never receives tag " << tag;
    bool sameMeshes =
        meshOf(recv) == int64_t(send.getPeer()) && meshOf(send) == int64_t(recv.getPeer());
    if (!sameMeshes) {
      InFlightDiagnostic diagnostic =
          recv.emitError() << "alpa_programs_c2: mesh " << meshOf(recv) << " expects tag " << tag
                           << " from mesh " << recv.getPeer() << ", but mesh " << meshOf(send)
                           << " sends it to mesh " << send.getPeer();
      diagnostic.attachNote(send.getLoc()) << "the send is here";
      return diagnostic;
    }
    if (send.getBuffer().getType() != recv.getBuffer().getType()) {
      InFlightDiagnostic diagnostic = recv.emitError() << "alpa_programs_c3: tag " << tag
                                                       << " carries " << send.getBuffer().getType()
                                                       << ", got " << recv.getBuffer().getType();
      diagnostic.attachNote(send.getLoc()) << "the send is here";
      return diagnostic;
    }
  }
  for (auto &[tag, recv] : recvs) {
    if (failed(exists(recv, recv.getPeer())))
      return failure();
    if (!sends.contains(tag))
      return recv.emitError() << "alpa_programs_c2: mesh " << recv.getPeer() << " never sends tag "
                              << tag;
  }
  return success();
}

LogicalResult VerifyProgram::checkSums() {
  for (auto &[tag, members] : sums) {
    AllReduceOp first = members.front().second;
    for (int64_t mesh : first.getMembers())
      if (!members.contains(mesh))
        return first.emitError() << "alpa_programs_c2: mesh " << mesh
                                 << " takes no part in the sum of tag " << tag;
    for (auto &[mesh, sum] : members) {
      bool sameMembers = sum.getMembers() == first.getMembers();
      if (sameMembers && sum.getSum().getType() == first.getSum().getType())
        continue;
      InFlightDiagnostic diagnostic = sum.emitError();
      if (sameMembers)
        diagnostic << "alpa_programs_c3: tag " << tag << " adds up " << first.getSum().getType()
                   << ", got " << sum.getSum().getType();
      else
        diagnostic << "alpa_programs_c2: tag " << tag << " adds up among [" << first.getMembers()
                   << "], got [" << sum.getMembers() << "]";
      diagnostic.attachNote(first.getLoc()) << "the first one is here";
      return diagnostic;
    }
  }
  return success();
}

LogicalResult VerifyProgram::checkBuffers(ProgramOp program) {
  llvm::DenseMap<Value, Operation *> ended; // Freed or given out by.
  uint64_t alive = 0;
  for (Operation &op : *program.getBody()) {
    alive += op.getNumResults();
    peakBuffers.updateMax(alive);
    for (Value buffer : op.getOperands()) {
      Operation *end = ended.lookup(buffer);
      bool ends = isa<FreeOp, OutputOp>(op);
      if (end) {
        InFlightDiagnostic diagnostic = op.emitError()
                                        << (ends ? "alpa_programs_c5: the buffer was already "
                                                 : "alpa_programs_c4: the buffer was ")
                                        << (isa<FreeOp>(end) ? "freed" : "given out");
        diagnostic.attachNote(end->getLoc()) << "it was here";
        return diagnostic;
      }
      if (ends) {
        ended[buffer] = &op;
        --alive;
      }
    }
  }
  for (Operation &op : *program.getBody())
    for (auto [index, buffer] : llvm::enumerate(op.getResults()))
      if (!ended.contains(buffer))
        return op.emitError() << "alpa_programs_c5: buffer " << index
                              << " is neither freed nor output";
  return success();
}

/// Runs all programs with sends that never wait. A program that waits sleeps
/// until its tag is sent, so the work is linear in the instructions.
LogicalResult VerifyProgram::checkProgress() {
  llvm::DenseMap<int64_t, Operation *> at; // Mesh to its next instruction; null at the end.
  llvm::DenseSet<int64_t> sent;
  llvm::DenseMap<int64_t, int64_t> sleepers;             // Tag to the mesh that waits for it.
  llvm::DenseMap<int64_t, SmallVector<int64_t>> arrived; // Tag of a sum to the meshes there.
  SmallVector<int64_t> ready;
  for (auto &[mesh, program] : llvm::reverse(programs)) {
    at[mesh] = program.getBody()->empty() ? nullptr : &program.getBody()->front();
    ready.push_back(mesh);
  }
  while (!ready.empty()) {
    int64_t mesh = ready.pop_back_val();
    Operation *op = at[mesh];
    for (; op; op = op->getNextNode()) {
      if (auto recv = dyn_cast<RecvOp>(op); recv && !sent.contains(recv.getTag())) {
        sleepers[recv.getTag()] = mesh;
        break;
      }
      if (auto sum = dyn_cast<AllReduceOp>(op); sum && !sent.contains(sum.getTag())) {
        SmallVector<int64_t> &there = arrived[sum.getTag()];
        if (there.size() + 1 < sum.getMembers().size()) {
          there.push_back(mesh);
          break;
        }
        sent.insert(sum.getTag());
        llvm::append_range(ready, there);
      }
      auto send = dyn_cast<SendOp>(op);
      if (!send)
        continue;
      sent.insert(send.getTag());
      if (auto it = sleepers.find(send.getTag()); it != sleepers.end()) {
        ready.push_back(it->second);
        sleepers.erase(it);
      }
    }
    at[mesh] = op;
  }
  for (auto &[mesh, program] : programs) {
    auto recv = dyn_cast_or_null<RecvOp>(at[mesh]);
    if (auto sum = dyn_cast_or_null<AllReduceOp>(at[mesh]))
      for (int64_t member : sum.getMembers()) {
        if (llvm::is_contained(arrived[sum.getTag()], member))
          continue;
        InFlightDiagnostic diagnostic =
            sum.emitError() << "alpa_programs_c6: mesh " << mesh << " waits forever: mesh "
                            << member << " never comes to the sum of tag " << sum.getTag();
        if (Operation *other = at[member])
          diagnostic.attachNote(other->getLoc()) << "mesh " << member << " waits here";
        return diagnostic;
      }
    if (!recv)
      continue;
    InFlightDiagnostic diagnostic = recv.emitError()
                                    << "alpa_programs_c6: mesh " << mesh << " waits forever: mesh "
                                    << recv.getPeer() << " sends tag " << recv.getTag()
                                    << " only after it received something itself";
    if (Operation *other = at[recv.getPeer()])
      diagnostic.attachNote(other->getLoc()) << "mesh " << recv.getPeer() << " waits here";
    return diagnostic;
  }
  return success();
}

LogicalResult VerifyProgram::checkComplete() {
  auto count = getOperation()->getAttrOfType<IntegerAttr>(attr::numMicroBatches);
  int64_t numMicroBatches = count ? count.getInt() : 1;
  if (failed(checkRuns(numMicroBatches)))
    return failure();
  return checkOutputs(numMicroBatches);
}

LogicalResult VerifyProgram::checkRuns(int64_t numMicroBatches) {
  for (auto stage : getOperation().getOps<ModuleOp>()) {
    if (!stage.getSymNameAttr())
      continue;
    for (auto function : stage.getOps<func::FuncOp>()) {
      auto callee = SymbolRefAttr::get(stage.getSymNameAttr(),
                                       {FlatSymbolRefAttr::get(function.getSymNameAttr())});
      bool isUpdate = function.getSymName().starts_with("update");
      int64_t expected = isUpdate ? 1 : numMicroBatches;
      auto it = runs.find(callee);
      int64_t got = it == runs.end() ? 0 : it->second.size();
      if (got != expected)
        return function.emitError()
               << "alpa_programs_c7: expected " << expected << " runs, got " << got;
      for (auto &[microBatch, run] : it->second)
        if (isUpdate ? microBatch != -1 : microBatch < 0 || microBatch >= numMicroBatches)
          return run.emitError() << "alpa_programs_c7: expected "
                                 << (isUpdate ? "no micro-batch" : "a micro-batch below ")
                                 << (isUpdate ? "" : std::to_string(numMicroBatches));
    }
  }
  return success();
}

LogicalResult VerifyProgram::checkOutputs(int64_t numMicroBatches) {
  auto main = getOperation().lookupSymbol<func::FuncOp>("main");
  if (!main)
    return success();
  for (int64_t result = 0, e = main.getNumResults(); result < e; ++result) {
    auto reduction = main.getResultAttrOfType<StringAttr>(result, attr::reduction);
    auto it = outputs.find(result);
    int64_t got = it == outputs.end() ? 0 : it->second.size();
    bool parts =
        reduction && reduction.getValue() == "concat" && got != 0 && it->second.front().first != -1;
    int64_t expected = parts ? numMicroBatches : 1;
    if (got != expected)
      return main.emitError() << "alpa_programs_c7: result " << result << " leaves " << got
                              << " times, expected " << expected;
  }
  return success();
}
