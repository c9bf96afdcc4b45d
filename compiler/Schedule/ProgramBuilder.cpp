//===- ProgramBuilder.cpp - the program of a mesh from its steps ----------===//
//
// A value leaves right after it is made and comes right before its first use, so
// that it travels while the meshes compute.
//
//===----------------------------------------------------------------------===//

#include "compiler/Schedule/ProgramBuilder.h"

using namespace mlir;
using namespace alpa;

std::vector<int64_t> &TransferTags::of(int64_t id, int64_t mesh) {
  auto &table = tables[{id, mesh}];
  if (!table)
    table = std::make_unique<std::vector<int64_t>>(numMicroBatches + 1, -1);
  return *table;
}

int64_t TransferTags::at(std::vector<int64_t> &tags, int64_t microBatch) {
  int64_t &tag = tags[microBatch + 1];
  if (tag < 0)
    tag = next++;
  return tag;
}

ProgramBuilder::ProgramBuilder(const SlicedModule &sliced, int64_t mesh, TransferTags &tags)
    : sliced(sliced), mesh(mesh), tags(tags), builder(ModuleOp(sliced.module).getContext()),
      loc(ModuleOp(sliced.module).getLoc()) {
  for (int64_t index = 0; index < sliced.numMicroBatches; ++index)
    microBatchAttrs.push_back(number(index));
}

int64_t ProgramBuilder::localOf(int64_t id) {
  auto [it, isNew] = locals.try_emplace(id, int64_t(values.size()));
  int64_t local = it->second;
  if (!isNew)
    return local;
  LocalValue &value = *values.emplace_back(std::make_unique<LocalValue>());
  value.id = id;
  value.flow = &sliced.flows.find(id)->second;
  value.isBatch = sliced.isBatch(id);
  value.isState = sliced.isArgument(id) && !value.isBatch;
  value.buffers.resize(sliced.numMicroBatches + 1);
  if (!value.isBatch && value.flow->mesh != mesh)
    value.arriving = &tags.of(id, mesh);
  if (value.flow->mesh == mesh) {
    auto route = [&](llvm::SmallVector<Route, 1> &routes, const llvm::SetVector<int64_t> &meshes) {
      for (int64_t to : meshes)
        routes.push_back({to, &tags.of(id, to)});
    };
    route(value.perMicroBatch, value.flow->microBatchMeshes);
    route(value.once, value.flow->onceMeshes);
  }
  if (auto results = sliced.resultsOf.find(id); results != sliced.resultsOf.end())
    value.concatenated.assign(results->second.begin(), results->second.end());
  return local;
}

ProgramBuilder::Function &ProgramBuilder::functionOf(const StageFunction &info) {
  auto &function = functions[&info];
  if (function)
    return *function;
  function = std::make_unique<Function>();
  function->info = &info;
  for (const Port &port : info.inputs)
    function->inputs.push_back(localOf(port.id));
  for (const Port &port : info.outputs) {
    function->outputs.push_back(localOf(port.id));
    function->types.push_back(port.type);
  }
  return *function;
}

FailureOr<ProgramOp> ProgramBuilder::build(ArrayRef<ScheduleStep> steps) {
  builder.setInsertionPointToEnd(ModuleOp(sliced.module).getBody());
  auto program = ProgramOp::create(builder, loc, ("mesh_" + Twine(mesh)).str(), uint64_t(mesh));
  builder.setInsertionPointToEnd(&program.getBodyRegion().emplaceBlock());
  sendState();
  auto isForward = [](const ScheduleStep &step) { return step.kind == RunKind::Forward; };
  ArrayRef<ScheduleStep> forward = steps.take_while(isForward);
  for (const ScheduleStep &step : forward)
    runStep(step);
  runBarriers();
  for (const ScheduleStep &step : steps.drop_front(forward.size()))
    runStep(step);
  runUpdates();
  giveOutputs();
  freeDead(program);
  if (isWrong)
    return failure();
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
    const ValueFlow &flow = sliced.flows.find(arg)->second;
    if (flow.mesh != mesh || (flow.microBatchMeshes.empty() && flow.onceMeshes.empty()))
      continue;
    int64_t local = localOf(arg);
    sendOnce(need(sliced.argumentAt(arg, flow.stage), local, kOnce), *values[local]);
  }
}

Value ProgramBuilder::input(const Port &port, int64_t microBatch) {
  return InputOp::create(builder, loc, port.type, number(port.id), microBatchAttr(microBatch),
                         port.sharding);
}

void ProgramBuilder::send(Value buffer, ArrayRef<Route> routes, int64_t microBatch) {
  for (const Route &route : routes) {
    SendOp::create(builder, loc, buffer, number(route.to),
                   number(tags.at(*route.tags, microBatch)));
    ++numTransfers;
  }
}

/// What there is once a step is sent once to each mesh.
void ProgramBuilder::sendOnce(Value buffer, const LocalValue &value) {
  SmallVector<Route, 1> routes = value.perMicroBatch;
  for (const Route &route : value.once)
    if (!value.flow->microBatchMeshes.contains(route.to))
      routes.push_back(route);
  send(buffer, routes, kOnce);
}

Value ProgramBuilder::need(const Port &port, int64_t local, int64_t microBatch) {
  LocalValue *value = values[local].get();
  if (value->isBatch)
    microBatch = std::max<int64_t>(microBatch, 0);
  else if (value->isState || !value->flow->perMicroBatch)
    microBatch = kOnce;
  Buffers &held = value->buffers[microBatch + 1];
  for (const Held &one : held)
    if (one.sharding == port.sharding)
      return one.buffer;
  Value buffer;
  if (held.empty())
    buffer = make(port, *value, microBatch);
  else
    buffer = ReshardOp::create(builder, loc, held.front().buffer, held.front().sharding,
                               builder.getArrayAttr({}), port.sharding);
  held.push_back({buffer, port.sharding});
  return buffer;
}

/// Brings a value to this mesh.
Value ProgramBuilder::make(const Port &port, LocalValue &value, int64_t microBatch) {
  if (!value.arriving) {
    if (!value.isBatch && !value.isState && !std::exchange(isWrong, true))
      ModuleOp(sliced.stages[value.flow->stage].module).emitError()
          << "mesh " << mesh << " needs value " << value.id << " before stage " << value.flow->stage
          << " makes it";
    return input(port, microBatch);
  }
  return RecvOp::create(builder, loc, port.type, number(value.flow->mesh),
                        number(tags.at(*value.arriving, microBatch)), port.sharding);
}

ResultRange ProgramBuilder::run(const Function &function, int64_t microBatch) {
  SmallVector<Value> operands;
  operands.reserve(function.inputs.size());
  for (auto [port, local] : llvm::zip_equal(function.info->inputs, function.inputs))
    operands.push_back(need(port, local, microBatch));
  auto op = RunOp::create(builder, loc, function.types, function.info->callee, operands,
                          microBatchAttr(microBatch));
  return op.getOutputs();
}

void ProgramBuilder::runMicroBatch(const StageFunction &info, int64_t microBatch) {
  const Function &function = functionOf(info);
  ResultRange results = run(function, microBatch);
  for (auto [port, local, buffer] : llvm::zip_equal(info.outputs, function.outputs, results)) {
    LocalValue &value = *values[local];
    value.buffers[microBatch + 1] = {{buffer, port.sharding}};
    send(buffer, value.perMicroBatch, microBatch);
  }
  for (auto [port, local, buffer] : llvm::zip_equal(info.outputs, function.outputs, results))
    if (!port.accumulate.empty())
      finishMicroBatchValue(port, *values[local], buffer, microBatch);
}

void ProgramBuilder::finishMicroBatchValue(const Port &port, LocalValue &value, Value buffer,
                                           int64_t microBatch) {
  if (port.accumulate == "concat") {
    for (int64_t result : value.concatenated)
      OutputOp::create(builder, loc, buffer, number(result), microBatchAttr(microBatch));
    return;
  }
  Buffers &held = value.buffers[kOnce + 1];
  Value total = buffer;
  if (!held.empty() && port.accumulate != "last")
    total = AccumulateOp::create(builder, loc, held.front().buffer, buffer);
  held = {{total, port.sharding}};
  if (++value.finished == sliced.numMicroBatches)
    send(total, value.once, kOnce);
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
    runOnce(*update);
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
    Value part = need(port, localOf(port.id), kOnce);
    total = total ? AccumulateOp::create(builder, loc, total, part) : part;
  }
  if (!total)
    total = ZeroOp::create(builder, loc, sum.type, sharding);
  if (sum.members.size() > 1) {
    int64_t tag = tags.at(tags.of(sum.id, kOnce), kOnce);
    total = AllReduceOp::create(builder, loc, total, builder.getDenseI64ArrayAttr(sum.members),
                                number(tag), FlatSymbolRefAttr(), FlatSymbolRefAttr());
  }
  values[localOf(sum.id)]->buffers[kOnce + 1] = {{total, sharding}};
}

/// Of the stages of this mesh, whose forward runs are all over.
void ProgramBuilder::runBarriers() {
  for (const Stage &stage : sliced.stages)
    if (stage.meshIndex == mesh && stage.barrier)
      runOnce(*stage.barrier);
}

void ProgramBuilder::runOnce(const StageFunction &info) {
  const Function &function = functionOf(info);
  ResultRange results = run(function, kOnce);
  for (auto [port, local, buffer] : llvm::zip_equal(info.outputs, function.outputs, results)) {
    values[local]->buffers[kOnce + 1] = {{buffer, port.sharding}};
    sendOnce(buffer, *values[local]);
  }
}

void ProgramBuilder::giveOutputs() {
  func::FuncOp main = sliced.main;
  for (int64_t result = 0, e = main.getNumResults(); result < e; ++result) {
    int64_t id = cast<IntegerAttr>(main.getResultAttr(result, attr::value)).getInt();
    if (sliced.isBatch(id)) {
      if (mesh == 0)
        giveBatchOutput(id, result);
      continue;
    }
    const ValueFlow &flow = sliced.flows.find(id)->second;
    if (flow.mesh != mesh)
      continue;
    Value buffer;
    int64_t local = localOf(id);
    if (sliced.isArgument(id))
      buffer = need(sliced.argumentAt(id, flow.stage), local, kOnce);
    else if (const Buffers &held = values[local]->buffers[kOnce + 1]; !held.empty())
      buffer = held.front().buffer; // As it was made.
    if (buffer)                     // Concatenated results have left already.
      OutputOp::create(builder, loc, buffer, number(result), IntegerAttr());
  }
}

void ProgramBuilder::giveBatchOutput(int64_t arg, int64_t result) {
  for (int64_t microBatch = 0; microBatch < sliced.numMicroBatches; ++microBatch)
    OutputOp::create(builder, loc, input(sliced.argumentAt(arg, 0), microBatch), number(result),
                     number(microBatch));
}

/// Frees each buffer right after its last use. Instructions were made in their order,
/// so that the last use of a value is the first in its list of uses.
void ProgramBuilder::freeDead(ProgramOp program) {
  Block &body = *program.getBody();
  auto lastUser = [](Value value) { return value.use_begin()->getOwner(); };
  SmallVector<Value> dead;
  for (Operation &op : llvm::make_early_inc_range(body)) {
    if (isa<OutputOp>(op)) {
      // What leaves as a part of a result may be used still.
      if (Operation *last = lastUser(op.getOperand(0)); last != &op)
        op.moveAfter(last);
      continue;
    }
    dead.clear();
    for (Value operand : op.getOperands())
      if (lastUser(operand) == &op && !llvm::is_contained(dead, operand) &&
          llvm::none_of(operand.getUsers(), llvm::IsaPred<OutputOp>))
        dead.push_back(operand);
    for (Value result : op.getResults())
      if (result.use_empty())
        dead.push_back(result);
    if (dead.empty())
      continue;
    builder.setInsertionPointAfter(&op);
    FreeOp::create(builder, loc, dead);
  }
  numInstructions = int64_t(body.getOperations().size());
}
