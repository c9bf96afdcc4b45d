//===- BuildSchedule.cpp - the instruction list of each mesh --------------===//

#include "compiler/CostModel/Cluster.h"
#include "compiler/Schedule/ChannelCapacity.h"
#include "compiler/Schedule/Passes.h"
#include "compiler/Schedule/PeakMemory.h"
#include "compiler/Schedule/ProgramBuilder.h"

#include "llvm/Support/MemoryBuffer.h"

namespace alpa {
#define GEN_PASS_DEF_ALPABUILDSCHEDULE
#include "compiler/Schedule/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

/// A number that a pass left in a dictionary, or what it is else.
double numberIn(DictionaryAttr dictionary, StringRef name, double otherwise) {
  auto number = dictionary ? dictionary.getAs<FloatAttr>(name) : FloatAttr();
  return number ? number.getValueAsDouble() : otherwise;
}

/// What the search foresaw of a stage; all of it, or the schedule counts in units.
std::optional<StageSeconds> secondsOf(StageAttr stage) {
  DictionaryAttr predicted = stage.getPredicted();
  if (!predicted || !predicted.contains("forward_seconds") ||
      !predicted.contains("backward_seconds"))
    return std::nullopt;
  double backward = numberIn(predicted, "backward_seconds", 0);
  double weight = numberIn(predicted, "backward_weight_seconds", backward / 2);
  return StageSeconds{numberIn(predicted, "forward_seconds", 0),
                      backward - weight,
                      weight,
                      numberIn(predicted, "forth_seconds", 0),
                      numberIn(predicted, "back_seconds", 0),
                      numberIn(predicted, "barrier_seconds", 0)};
}

/// Bytes of each device, if the module says which cluster it is for.
FailureOr<std::vector<int64_t>> deviceBytes(ModuleOp module) {
  std::vector<int64_t> bytes;
  auto text = module->getAttrOfType<StringAttr>(attr::cluster);
  if (!text)
    return bytes;
  llvm::Expected<Cluster> cluster = parseCluster(text.getValue(), attr::cluster);
  if (!cluster)
    return module.emitError() << llvm::toString(cluster.takeError());
  for (const Host &host : cluster->hosts)
    bytes.insert(bytes.end(), host.devices, cluster->deviceTypes[host.deviceType].memoryBytes);
  return bytes;
}

struct BuildSchedule : alpa::impl::AlpaBuildScheduleBase<BuildSchedule> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    FailureOr<SlicedModule> sliced = readSlicedModule(module);
    if (failed(sliced))
      return signalPassFailure();
    FailureOr<ScheduleProblem> problem = problemOf(*sliced);
    const ScheduleInfo *info = failed(problem) ? nullptr : choose(*problem);
    if (!info)
      return signalPassFailure();
    llvm::Expected<std::vector<StepList>> lists = scheduleSteps(*info, *problem);
    if (!lists) {
      module.emitError() << llvm::toString(lists.takeError());
      return signalPassFailure();
    }
    FailureOr<std::vector<int64_t>> memory = deviceBytes(module);
    if (failed(memory))
      return signalPassFailure();
    module->setAttr(attr::schedule, StringAttr::get(&getContext(), info->name));
    TransferTags tags(sliced->numMicroBatches);
    for (auto [mesh, steps] : llvm::enumerate(*lists)) {
      ProgramBuilder builder(*sliced, int64_t(mesh), tags);
      FailureOr<ProgramOp> program = builder.build(steps);
      if (failed(program))
        return signalPassFailure();
      if (!memory->empty() && failed(promise(*program, sliced->meshes[mesh], *memory)))
        return signalPassFailure();
      numInstructions += builder.numInstructions;
      numTransfers += builder.numTransfers;
    }
    FailureOr<ProgramTable> table = readPrograms(module);
    if (failed(table))
      return signalPassFailure();
    if (std::optional<int64_t> capacity = leastChannelCapacity(*table))
      module->setAttr(attr::channelCapacity, Builder(&getContext()).getI64IntegerAttr(*capacity));
  }

private:
  FailureOr<ScheduleProblem> problemOf(const SlicedModule &sliced);
  const ScheduleInfo *choose(const ScheduleProblem &problem);
  LogicalResult promise(ProgramOp program, MeshAttr mesh, ArrayRef<int64_t> memory);
};

} // namespace

FailureOr<ScheduleProblem> BuildSchedule::problemOf(const SlicedModule &sliced) {
  ModuleOp module = getOperation();
  ScheduleProblem problem;
  problem.numMicroBatches = sliced.numMicroBatches;
  auto infos = module->getAttrOfType<ArrayAttr>(attr::stages);
  for (auto [index, stage] : llvm::enumerate(sliced.stages)) {
    problem.meshOf.push_back(stage.meshIndex);
    problem.hasBackward.push_back(stage.hasBackward());
    problem.hasBarrier |= stage.barrier.has_value();
    auto info = infos && index < infos.size() ? dyn_cast<StageAttr>(infos[index]) : StageAttr();
    if (std::optional<StageSeconds> seconds = info ? secondsOf(info) : std::nullopt)
      problem.seconds.push_back(*seconds);
  }
  if (problem.seconds.size() != problem.meshOf.size())
    problem.seconds.clear();
  auto parameters = module->getAttrOfType<DictionaryAttr>(attr::scheduleParameters);
  problem.limit = limit > 0 ? double(limit) : numberIn(parameters, "limit", 0);
  problem.keptPart = numberIn(parameters, "kept_part", 1);
  problem.steps = steps;
  if (stepsFile.empty())
    return problem;
  auto file = llvm::MemoryBuffer::getFile(stepsFile, /*IsText=*/true);
  if (!file)
    return module.emitError() << "cannot read the steps in " << stepsFile << ": "
                              << file.getError().message();
  problem.steps = (*file)->getBuffer().str();
  return problem;
}

/// The program must do with what the weakest device of its mesh has.
LogicalResult BuildSchedule::promise(ProgramOp program, MeshAttr mesh, ArrayRef<int64_t> memory) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int64_t device : mesh.getDevices()) {
    if (device >= int64_t(memory.size()))
      return getOperation().emitError() << "mesh " << mesh << " has device " << device
                                        << ", which is not in a cluster of " << memory.size();
    least = std::min(least, memory[device]);
  }
  promiseBytes(program, least);
  return success();
}

/// The schedule that is asked for; steps that are given are `custom`, and without a
/// backward run there is only one.
const ScheduleInfo *BuildSchedule::choose(const ScheduleProblem &problem) {
  ModuleOp module = getOperation();
  std::string name = schedule;
  if (name.empty()) {
    auto given = module->getAttrOfType<StringAttr>(attr::schedule);
    name = !problem.steps.empty() ? "custom" : given ? given.str() : "1f1b";
  }
  const ScheduleInfo *info = findSchedule(name);
  if (!info) {
    InFlightDiagnostic diagnostic = module.emitError()
                                    << "there is no schedule `" << name << "`; choose one of ";
    llvm::interleaveComma(getSchedules(), diagnostic,
                          [&](const ScheduleInfo &item) { diagnostic << item.name; });
    return nullptr;
  }
  if (llvm::is_contained(problem.hasBackward, true) || name == "custom")
    return info;
  return findSchedule("inference");
}
