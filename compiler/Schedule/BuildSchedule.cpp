//===- BuildSchedule.cpp - the instruction list of each mesh --------------===//

#include "compiler/Schedule/Passes.h"
#include "compiler/Schedule/Schedules.h"
#include "compiler/Schedule/SlicedModule.h"

#include "mlir/IR/Builders.h"

namespace alpa {
#define GEN_PASS_DEF_ALPABUILDSCHEDULE
#include "compiler/Schedule/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

constexpr int64_t once = -1; // In place of a micro-batch: one buffer for the step.

/// One number for each (value, micro-batch, receiving mesh).
using Tags = llvm::DenseMap<std::tuple<int64_t, int64_t, int64_t>, int64_t>;

class ProgramBuilder {
public:
  ProgramBuilder(SlicedModule &sliced, int64_t mesh, Tags &tags)
      : sliced(sliced), mesh(mesh), tags(tags), builder(sliced.module.getContext()),
        loc(sliced.module.getLoc()) {}

  ProgramOp build(ArrayRef<ScheduleStep> steps);

private:
  /// A value on this mesh, once for each way in which its stages hold it.
  struct Held {
    Value buffer;
    ShardingAttr sharding;
  };
  using Buffers = SmallVector<Held, 1>;

  void sendState();
  void runStep(const ScheduleStep &step);
  void runMicroBatch(const StageFunction &function, int64_t microBatch);
  void runUpdates();
  void runUpdate(const StageFunction &function);
  void meet(const StageSum &sum);
  ResultRange run(const StageFunction &function, int64_t microBatch);
  void finishMicroBatchValue(const Port &port, Value buffer, int64_t microBatch);
  void giveOutputs();
  void giveBatchOutput(int64_t arg, int64_t result);
  void freeDead(ProgramOp program);

  /// The buffer of a value that a function needs.
  Value need(const Port &port, int64_t microBatch);
  Value make(const Port &port, const ValueFlow &flow, int64_t id, int64_t microBatch);
  Value input(const Port &port, int64_t microBatch);
  void send(Value buffer, int64_t id, int64_t microBatch, int64_t to);
  IntegerAttr number(int64_t value) { return builder.getI64IntegerAttr(value); }
  IntegerAttr microBatchAttr(int64_t microBatch) {
    return microBatch == once ? IntegerAttr() : number(microBatch);
  }

  SlicedModule &sliced;
  int64_t mesh;
  Tags &tags;
  OpBuilder builder;
  Location loc;
  llvm::DenseMap<std::pair<int64_t, int64_t>, Buffers> buffers; // (value, micro-batch or once)
  llvm::DenseMap<int64_t, int64_t> finished;                    // Value to micro-batches done.
};

ScheduleProblem problemOf(const SlicedModule &sliced) {
  ScheduleProblem problem;
  problem.numMicroBatches = sliced.numMicroBatches;
  for (const Stage &stage : sliced.stages) {
    problem.meshOf.push_back(stage.meshIndex);
    problem.hasBackward.push_back(stage.hasBackward());
  }
  return problem;
}

struct BuildSchedule : alpa::impl::AlpaBuildScheduleBase<BuildSchedule> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    std::string name = schedule;
    if (name.empty()) {
      auto given = module->getAttrOfType<StringAttr>(attr::schedule);
      name = given ? given.str() : "1f1b";
    }
    const ScheduleInfo *info = findSchedule(name);
    if (!info) {
      InFlightDiagnostic diagnostic = module.emitError()
                                      << "there is no schedule `" << name << "`; choose one of ";
      llvm::interleaveComma(getSchedules(), diagnostic,
                            [&](const ScheduleInfo &item) { diagnostic << item.name; });
      return signalPassFailure();
    }
    FailureOr<SlicedModule> sliced = readSlicedModule(module);
    if (failed(sliced))
      return signalPassFailure();
    llvm::Expected<std::vector<StepList>> lists = scheduleSteps(*info, problemOf(*sliced));
    if (!lists) {
      module.emitError() << llvm::toString(lists.takeError());
      return signalPassFailure();
    }
    module->setAttr(attr::schedule, StringAttr::get(&getContext(), name));
    Tags tags;
    for (auto [mesh, steps] : llvm::enumerate(*lists)) {
      ProgramOp program = ProgramBuilder(*sliced, int64_t(mesh), tags).build(steps);
      for (Operation &op : *program.getBody()) {
        ++numInstructions;
        numTransfers += isa<SendOp>(op);
      }
    }
  }
};

} // namespace

ProgramOp ProgramBuilder::build(ArrayRef<ScheduleStep> steps) {
  builder.setInsertionPointToEnd(sliced.module.getBody());
  auto program = ProgramOp::create(builder, loc, ("mesh_" + Twine(mesh)).str(), uint64_t(mesh));
  builder.setInsertionPointToEnd(&program.getBodyRegion().emplaceBlock());
  sendState();
  for (const ScheduleStep &step : steps)
    runStep(step);
  runUpdates();
  giveOutputs();
  freeDead(program);
  return program;
}

/// A backward run that the schedule or the stage does not split is one run, where
/// the stage before needs its gradient.
void ProgramBuilder::runStep(const ScheduleStep &step) {
  const Stage &stage = sliced.stages[step.stage];
  auto runIf = [&](const std::optional<StageFunction> &function) {
    if (function)
      runMicroBatch(*function, step.microBatch);
  };
  switch (step.kind) {
  case RunKind::Forward:
    return runIf(stage.forward);
  case RunKind::Backward:
  case RunKind::BackwardInput:
    runIf(stage.backward);
    runIf(stage.backwardInput);
    if (step.kind == RunKind::BackwardInput)
      return;
    [[fallthrough]];
  case RunKind::BackwardWeight:
    return runIf(stage.backwardWeight);
  }
}

/// State that other meshes need leaves first, once a step.
void ProgramBuilder::sendState() {
  for (int64_t arg = 0; arg < int64_t(sliced.numArguments); ++arg) {
    const ValueFlow &flow = sliced.flows[arg];
    if (flow.mesh != mesh)
      continue;
    llvm::SetVector<int64_t> receivers = flow.microBatchMeshes;
    receivers.insert(flow.updateMeshes.begin(), flow.updateMeshes.end());
    if (receivers.empty())
      continue;
    Value buffer = need(sliced.argumentAt(arg, flow.stage), once);
    for (int64_t to : receivers)
      send(buffer, arg, once, to);
  }
}

Value ProgramBuilder::input(const Port &port, int64_t microBatch) {
  return InputOp::create(builder, loc, port.type, number(port.id), microBatchAttr(microBatch),
                         port.sharding);
}

void ProgramBuilder::send(Value buffer, int64_t id, int64_t microBatch, int64_t to) {
  int64_t tag = tags.try_emplace({id, microBatch, to}, tags.size()).first->second;
  SendOp::create(builder, loc, buffer, number(to), number(tag));
}

Value ProgramBuilder::need(const Port &port, int64_t microBatch) {
  const ValueFlow *flow = &sliced.flows[port.id];
  int64_t id = port.id;
  if (sliced.isArgument(id) && !sliced.isBatch(id)) {
    auto next = sliced.nextVersion.find(id);
    // The first micro-batch starts from the step's argument, as the update does.
    if (next != sliced.nextVersion.end() && microBatch > 0) {
      id = next->second;
      flow = &sliced.flows[id];
      --microBatch;
    } else {
      microBatch = once;
    }
  } else if (sliced.isBatch(id)) {
    microBatch = std::max<int64_t>(microBatch, 0);
  }
  Buffers &held = buffers[{id, microBatch}];
  for (const Held &one : held)
    if (one.sharding == port.sharding)
      return one.buffer;
  Value buffer;
  if (held.empty())
    buffer = make(port, *flow, id, microBatch);
  else
    buffer = ReshardOp::create(builder, loc, held.front().buffer, held.front().sharding,
                               builder.getArrayAttr({}), port.sharding);
  held.push_back({buffer, port.sharding});
  return buffer;
}

/// Brings a value to this mesh.
Value ProgramBuilder::make(const Port &port, const ValueFlow &flow, int64_t id,
                           int64_t microBatch) {
  if (sliced.isBatch(id) || (sliced.isArgument(id) && flow.mesh == mesh))
    return input(port, microBatch);
  int64_t tag = tags.try_emplace({id, microBatch, mesh}, tags.size()).first->second;
  return RecvOp::create(builder, loc, port.type, number(flow.mesh), number(tag), port.sharding);
}

ResultRange ProgramBuilder::run(const StageFunction &function, int64_t microBatch) {
  SmallVector<Value> operands;
  SmallVector<Type> types;
  for (const Port &port : function.inputs)
    operands.push_back(need(port, microBatch));
  for (const Port &port : function.outputs)
    types.push_back(port.type);
  auto op =
      RunOp::create(builder, loc, types, function.callee, operands, microBatchAttr(microBatch));
  return op.getOutputs();
}

void ProgramBuilder::runMicroBatch(const StageFunction &function, int64_t microBatch) {
  ResultRange results = run(function, microBatch);
  for (auto [port, buffer] : llvm::zip_equal(function.outputs, results)) {
    buffers[{port.id, microBatch}] = {{buffer, port.sharding}};
    for (int64_t to : sliced.flows[port.id].microBatchMeshes)
      send(buffer, port.id, microBatch, to);
    if (port.nextOf >= 0 && microBatch + 1 < sliced.numMicroBatches)
      for (int64_t to : sliced.flows[port.nextOf].microBatchMeshes)
        send(buffer, port.id, microBatch, to);
  }
  for (auto [port, buffer] : llvm::zip_equal(function.outputs, results))
    finishMicroBatchValue(port, buffer, microBatch);
}

void ProgramBuilder::finishMicroBatchValue(const Port &port, Value buffer, int64_t microBatch) {
  if (port.accumulate.empty())
    return;
  if (port.accumulate == "concat") {
    for (int64_t result : sliced.resultsOf.lookup(port.id))
      OutputOp::create(builder, loc, buffer, number(result), number(microBatch));
    return;
  }
  Buffers &held = buffers[{port.id, once}];
  Value total = buffer;
  if (!held.empty() && port.accumulate != "last")
    total = AccumulateOp::create(builder, loc, held.front().buffer, buffer);
  held = {{total, port.sharding}};
  if (++finished[port.id] == sliced.numMicroBatches)
    for (int64_t to : sliced.flows[port.id].updateMeshes)
      send(total, port.id, once, to);
}

/// Level by level, because a stage's update may need what another one's made. Sums
/// come in one order on all meshes, behind the level of their last part, so that
/// meshes that wait for each other get there.
void ProgramBuilder::runUpdates() {
  SmallVector<const StageFunction *> updates;
  for (const Stage &stage : sliced.stages)
    if (stage.meshIndex == mesh)
      for (const StageFunction &update : stage.updates)
        updates.push_back(&update);
  llvm::sort(updates, [](const StageFunction *a, const StageFunction *b) {
    return std::make_pair(levelOf(*a), a->stage) < std::make_pair(levelOf(*b), b->stage);
  });
  ArrayRef<StageSum> sums = sliced.sums;
  for (const StageFunction *update : updates) {
    for (; !sums.empty() && sums.front().level < levelOf(*update); sums = sums.drop_front())
      meet(sums.front());
    runUpdate(*update);
  }
  for (const StageSum &sum : sums)
    meet(sum);
}

/// Adds up what this mesh's stages know of a sum, and takes the sum of all meshes.
void ProgramBuilder::meet(const StageSum &sum) {
  if (!llvm::is_contained(sum.members, mesh))
    return;
  ShardingAttr sharding = sliced.shardingOf(sum, mesh);
  Value total;
  for (auto [stage, port] : sum.parts) {
    if (sliced.stages[stage].meshIndex != mesh)
      continue;
    port.sharding = sharding;
    Value part = need(port, once);
    total = total ? AccumulateOp::create(builder, loc, total, part) : part;
  }
  if (!total)
    total = ZeroOp::create(builder, loc, sum.type, sharding);
  if (sum.members.size() > 1) {
    int64_t tag = tags.try_emplace({sum.id, once, once}, tags.size()).first->second;
    total = AllReduceOp::create(builder, loc, total, builder.getDenseI64ArrayAttr(sum.members),
                                number(tag), FlatSymbolRefAttr(), FlatSymbolRefAttr());
  }
  buffers[{sum.id, once}] = {{total, sharding}};
}

void ProgramBuilder::runUpdate(const StageFunction &function) {
  ResultRange results = run(function, once);
  for (auto [port, buffer] : llvm::zip_equal(function.outputs, results)) {
    buffers[{port.id, once}] = {{buffer, port.sharding}};
    for (int64_t to : sliced.flows[port.id].updateMeshes)
      send(buffer, port.id, once, to);
  }
}

void ProgramBuilder::giveOutputs() {
  for (int64_t result = 0, e = sliced.main.getNumResults(); result < e; ++result) {
    int64_t id = cast<IntegerAttr>(sliced.main.getResultAttr(result, attr::value)).getInt();
    if (sliced.isBatch(id)) {
      if (mesh == 0)
        giveBatchOutput(id, result);
      continue;
    }
    const ValueFlow &flow = sliced.flows[id];
    if (flow.mesh != mesh)
      continue;
    Value buffer;
    if (sliced.isArgument(id))
      buffer = need(sliced.argumentAt(id, flow.stage), once);
    else if (auto held = buffers.find({id, once}); held != buffers.end())
      buffer = held->second.front().buffer; // As it was made.
    if (buffer)                             // Concatenated results have left already.
      OutputOp::create(builder, loc, buffer, number(result), IntegerAttr());
  }
}

void ProgramBuilder::giveBatchOutput(int64_t arg, int64_t result) {
  for (int64_t microBatch = 0; microBatch < sliced.numMicroBatches; ++microBatch)
    OutputOp::create(builder, loc, input(sliced.argumentAt(arg, 0), microBatch), number(result),
                     number(microBatch));
}

/// Frees each buffer right after its last use, in one backward walk.
void ProgramBuilder::freeDead(ProgramOp program) {
  llvm::DenseSet<Value> used;
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(*program.getBody()))) {
    llvm::SetVector<Value> dead;
    auto visit = [&](Value value) {
      if (used.insert(value).second)
        dead.insert(value);
    };
    if (isa<OutputOp>(op)) {
      used.insert(op.getOperand(0));
      continue;
    }
    llvm::for_each(op.getOperands(), visit);
    llvm::for_each(op.getResults(), visit);
    if (dead.empty())
      continue;
    builder.setInsertionPointAfter(&op);
    FreeOp::create(builder, loc, dead.getArrayRef());
  }
}
