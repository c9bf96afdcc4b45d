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

/// One number for each (value, micro-batch, receiving stage).
using Tags = llvm::DenseMap<std::tuple<int64_t, int64_t, int64_t>, int64_t>;

class ProgramBuilder {
public:
  ProgramBuilder(SlicedModule &sliced, int64_t stage, Tags &tags)
      : sliced(sliced), stage(stage), tags(tags), builder(sliced.module.getContext()),
        loc(sliced.module.getLoc()) {}

  ProgramOp build(const ScheduleInfo &schedule);

private:
  void sendState();
  void runMicroBatch(const StageFunction &function, int64_t microBatch);
  void runUpdate(const StageFunction &function);
  ResultRange run(const StageFunction &function, int64_t microBatch);
  void finishMicroBatchValue(const Port &port, Value buffer, int64_t microBatch);
  void giveOutputs();
  void giveBatchOutput(int64_t arg, int64_t result);
  void freeDead(ProgramOp program);

  /// The buffer of a value that a function needs.
  Value need(const Port &port, int64_t microBatch);
  Value input(const Port &port, int64_t microBatch);
  void send(Value buffer, int64_t id, int64_t microBatch, int64_t to);
  IntegerAttr number(int64_t value) { return builder.getI64IntegerAttr(value); }
  IntegerAttr microBatchAttr(int64_t microBatch) {
    return microBatch == once ? IntegerAttr() : number(microBatch);
  }

  SlicedModule &sliced;
  int64_t stage;
  Tags &tags;
  OpBuilder builder;
  Location loc;
  llvm::DenseMap<std::pair<int64_t, int64_t>, Value> buffers; // (value, micro-batch or once)
  llvm::DenseMap<int64_t, int64_t> finished;                  // Value to micro-batches done.
};

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
    module->setAttr(attr::schedule, StringAttr::get(&getContext(), name));
    Tags tags;
    for (int64_t stage = 0, e = sliced->stages.size(); stage < e; ++stage) {
      ProgramOp program = ProgramBuilder(*sliced, stage, tags).build(*info);
      for (Operation &op : *program.getBody()) {
        ++numInstructions;
        numTransfers += isa<SendOp>(op);
      }
    }
  }
};

} // namespace

ProgramOp ProgramBuilder::build(const ScheduleInfo &schedule) {
  builder.setInsertionPointToEnd(sliced.module.getBody());
  auto program = ProgramOp::create(builder, loc, ("mesh_" + Twine(stage)).str(), uint64_t(stage));
  builder.setInsertionPointToEnd(&program.getBodyRegion().emplaceBlock());
  const Stage &current = sliced.stages[stage];
  sendState();
  for (ScheduleStep step : schedule.generate(stage, sliced.stages.size(), sliced.numMicroBatches))
    if (const auto &function = step.backward ? current.backward : current.forward)
      runMicroBatch(*function, step.microBatch);
  for (const StageFunction &update : current.updates)
    runUpdate(update);
  giveOutputs();
  freeDead(program);
  return program;
}

/// State that other stages need leaves first, once a step.
void ProgramBuilder::sendState() {
  for (int64_t arg = 0; arg < int64_t(sliced.numArguments); ++arg) {
    const ValueFlow &flow = sliced.flows[arg];
    if (flow.stage != stage)
      continue;
    llvm::SetVector<int64_t> receivers = flow.microBatchStages;
    receivers.insert(flow.updateStages.begin(), flow.updateStages.end());
    if (receivers.empty())
      continue;
    Value buffer = need(sliced.argumentAt(arg, stage), once);
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
  Value &buffer = buffers[{id, microBatch}];
  if (buffer)
    return buffer;
  if (sliced.isBatch(id) || (sliced.isArgument(id) && flow->stage == stage))
    return buffer = input(port, microBatch);
  int64_t tag = tags.try_emplace({id, microBatch, stage}, tags.size()).first->second;
  return buffer = RecvOp::create(builder, loc, port.type, number(flow->stage), number(tag),
                                 port.sharding);
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
    buffers[{port.id, microBatch}] = buffer;
    for (int64_t to : sliced.flows[port.id].microBatchStages)
      send(buffer, port.id, microBatch, to);
    if (port.nextOf >= 0 && microBatch + 1 < sliced.numMicroBatches)
      for (int64_t to : sliced.flows[port.nextOf].microBatchStages)
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
  Value &total = buffers[{port.id, once}];
  if (!total || port.accumulate == "last")
    total = buffer;
  else
    total = AccumulateOp::create(builder, loc, total, buffer);
  if (++finished[port.id] == sliced.numMicroBatches)
    for (int64_t to : sliced.flows[port.id].updateStages)
      send(total, port.id, once, to);
}

void ProgramBuilder::runUpdate(const StageFunction &function) {
  ResultRange results = run(function, once);
  for (auto [port, buffer] : llvm::zip_equal(function.outputs, results)) {
    buffers[{port.id, once}] = buffer;
    for (int64_t to : sliced.flows[port.id].updateStages)
      send(buffer, port.id, once, to);
  }
}

void ProgramBuilder::giveOutputs() {
  for (int64_t result = 0, e = sliced.main.getNumResults(); result < e; ++result) {
    int64_t id = cast<IntegerAttr>(sliced.main.getResultAttr(result, attr::value)).getInt();
    if (sliced.isBatch(id)) {
      if (stage == 0)
        giveBatchOutput(id, result);
      continue;
    }
    if (sliced.flows[id].stage != stage)
      continue;
    Value buffer = sliced.isArgument(id) ? need(sliced.argumentAt(id, stage), once)
                                         : buffers.lookup({id, once});
    if (buffer) // Concatenated results have left already.
      OutputOp::create(builder, loc, buffer, number(result), IntegerAttr());
  }
}

void ProgramBuilder::giveBatchOutput(int64_t arg, int64_t result) {
  for (int64_t microBatch = 0; microBatch < sliced.numMicroBatches; ++microBatch)
    OutputOp::create(builder, loc, input(sliced.argumentAt(arg, stage), microBatch), number(result),
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
