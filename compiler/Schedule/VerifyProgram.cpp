//===- VerifyProgram.cpp - the programs of all meshes work together -------===//

#include "compiler/Schedule/Passes.h"
#include "compiler/Schedule/PeakMemory.h"
#include "compiler/Schedule/ProgramOrder.h"
#include "compiler/Schedule/ProgramTable.h"
#include "compiler/Schedule/SlicedModule.h"
#include "compiler/Schedule/TraceValues.h"

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
    if (failed(verify()))
      signalPassFailure();
  }

private:
  LogicalResult verify() {
    FailureOr<int64_t> capacity = capacityOf(getOperation());
    if (failed(capacity))
      return failure();
    FailureOr<ProgramTable> table = readPrograms(getOperation());
    if (failed(table))
      return failure();
    numInstructions = table->numInstructions();
    ProgramOrder order(*table, *capacity);
    if (!order.run())
      return order.reportCycle();
    // Transfers can be checked by themselves; what runs and leaves follows from a step.
    if (!hasStep(*table))
      return success();
    FailureOr<SlicedModule> sliced = readSlicedModule(getOperation());
    if (failed(sliced) || failed(checkMeshes(*table, *sliced)) ||
        failed(traceValues(*table, *sliced, order.places)))
      return failure();
    return checkMemory(*table, *sliced, order.places, *capacity);
  }

  FailureOr<int64_t> capacityOf(ModuleOp module) const {
    int64_t capacity = channelCapacity;
    auto given = module->getAttrOfType<IntegerAttr>(attr::channelCapacity);
    if (!channelCapacity.hasValue())
      capacity = given ? given.getInt() : unboundedCapacity;
    if (capacity < 1 && capacity != unboundedCapacity)
      return module.emitError() << "the capacity of channels is " << capacity
                                << "; expected at least 1 message";
    return capacity;
  }

  bool hasStep(const ProgramTable &table) {
    ModuleOp module = getOperation();
    if (module.lookupSymbol("main") || module.lookupSymbol("stage_0"))
      return true;
    for (const MeshProgram &program : table.programs)
      for (const Instruction &instruction : program.instructions)
        if (instruction.kind == InstructionKind::Run)
          return true;
    return false;
  }

  LogicalResult checkMeshes(const ProgramTable &table, const SlicedModule &sliced) {
    for (const MeshProgram &program : table.programs)
      if (program.mesh >= int64_t(sliced.meshes.size()))
        return ProgramOp(program.op).emitError()
               << "alpa_programs_c1: mesh " << program.mesh << " has no stage";
    return success();
  }

  LogicalResult checkMemory(const ProgramTable &table, SlicedModule &sliced, ArrayRef<Place> places,
                            int64_t capacity) {
    for (auto [program, peak] :
         llvm::zip_equal(table.programs, peakMemory(table, sliced, places, capacity))) {
      peakBytes.updateMax(peak.bytes);
      if (!peak.exceeds)
        continue;
      InFlightDiagnostic diagnostic = peak.exceeds->emitError()
                                      << "alpa_programs_c8: a device of mesh " << program.mesh
                                      << " needs " << peak.exceedingBytes
                                      << " bytes here, but its program promises at most "
                                      << *promisedBytes(program.op);
      for (auto [bytes, maker] : peak.largest)
        diagnostic.attachNote(maker->getLoc()) << "a buffer of " << bytes << " bytes";
      return diagnostic;
    }
    return success();
  }
};

} // namespace
