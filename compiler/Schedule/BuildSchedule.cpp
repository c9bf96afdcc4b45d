//===- BuildSchedule.cpp - the instruction list of each mesh --------------===//

#include "compiler/CostModel/Cluster.h"
#include "compiler/Schedule/CustomSchedule.h"
#include "compiler/Schedule/Passes.h"
#include "compiler/Schedule/PeakMemory.h"
#include "compiler/Schedule/ProgramOrder.h"
#include "compiler/Schedule/ProgramTable.h"
#include "compiler/Schedule/ScheduleRegistry.h"
#include "compiler/Schedule/SlicedModule.h"
#include "dialects/Common/Diagnostics.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/Threading.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/MemoryBuffer.h"

#include <optional>

namespace alpa::schedule {
#define GEN_PASS_DEF_ALPABUILDSCHEDULE
#include "compiler/Schedule/Passes.h.inc"
} // namespace alpa::schedule

using namespace alpa;
using namespace alpa::schedule;
using namespace mlir;

//===----------------------------------------------------------------------===//
// The program of a mesh from its steps
//===----------------------------------------------------------------------===//

namespace {

/// In place of a micro-batch: one buffer for the step.
constexpr int64_t kOnce = -1;

/// The numbers of transfers, one for each value, micro-batch and receiving mesh. They
/// are given out in the order in which they are asked for.
class TransferTags {
public:
  explicit TransferTags(int64_t numMicroBatches) : numMicroBatches(numMicroBatches) {}
  /// Those of a value to a mesh, by micro-batch plus one; -1 where there is none yet.
  std::vector<int64_t> &of(int64_t id, int64_t mesh);
  int64_t at(std::vector<int64_t> &tags, int64_t microBatch);

private:
  int64_t numMicroBatches, next = 0;
  llvm::DenseMap<std::pair<int64_t, int64_t>, std::unique_ptr<std::vector<int64_t>>> tables;
};

/// Writes one mesh's program. What a step has many of is looked up by number: values
/// of this mesh are numbered when they are met first.
class ProgramBuilder {
public:
  ProgramBuilder(const SlicedModule &sliced, int64_t mesh, TransferTags &tags);

  /// Fails, saying so, if a step needs what a later one makes.
  FailureOr<ProgramOp> build(llvm::ArrayRef<ScheduleStep> steps);

  int64_t numInstructions = 0, numTransfers = 0;

private:
  /// A value on this mesh, once for each way in which its stages hold it.
  struct Held {
    Value buffer;
    ShardingAttr sharding;
  };
  using Buffers = llvm::SmallVector<Held, 1>;

  /// Tags of a value to one mesh.
  struct Route {
    int64_t to;
    std::vector<int64_t> *tags;
  };

  struct LocalValue {
    int64_t id;
    const ValueFlow *flow;
    bool isBatch, isState;
    std::vector<Buffers> buffers;               // By micro-batch plus one.
    int64_t finished = 0;                       // Micro-batches that are in the sum.
    std::vector<int64_t> *arriving = nullptr;   // Tags, if another mesh makes it.
    llvm::SmallVector<Route, 1> perMicroBatch;  // To meshes that need it for runs,
    llvm::SmallVector<Route, 1> once;           // and once, for the barrier or the update.
    llvm::SmallVector<int64_t, 1> concatenated; // Results of the step made of its parts.
  };

  struct Function {
    const StageFunction *info;
    llvm::SmallVector<int64_t> inputs, outputs; // Local values.
    llvm::SmallVector<Type> types;              // Of the outputs.
  };

  int64_t localOf(int64_t id);
  Function &functionOf(const StageFunction &info);
  void sendState();
  void runStep(const ScheduleStep &step);
  void runMicroBatch(const StageFunction &info, int64_t microBatch);
  void runUpdates();
  void runOnEach(std::optional<StageFunction> Stage::*function);
  void runOnce(const StageFunction &info);
  void meet(const StageSum &sum);
  ResultRange run(const Function &function, int64_t microBatch);
  void finishMicroBatchValue(const Port &port, LocalValue &value, Value buffer, int64_t microBatch);
  void giveOutputs();
  void giveBatchOutput(int64_t arg, int64_t result);
  void freeDead(ProgramOp program);

  /// The buffer of a value that a function needs.
  Value need(const Port &port, int64_t local, int64_t microBatch);
  Value make(const Port &port, LocalValue &value, int64_t microBatch);
  Value input(const Port &port, int64_t microBatch);
  void send(Value buffer, llvm::ArrayRef<Route> routes, int64_t microBatch);
  void sendOnce(Value buffer, const LocalValue &value);
  IntegerAttr number(int64_t value) { return builder.getI64IntegerAttr(value); }
  IntegerAttr microBatchAttr(int64_t microBatch) {
    return microBatch == kOnce ? IntegerAttr() : microBatchAttrs[microBatch];
  }

  const SlicedModule &sliced;
  int64_t mesh;
  TransferTags &tags;
  OpBuilder builder;
  Location loc;
  bool isWrong = false;
  llvm::SmallVector<IntegerAttr> microBatchAttrs;
  llvm::DenseMap<int64_t, int64_t> locals;         // By value id.
  std::vector<std::unique_ptr<LocalValue>> values; // Local values.
  llvm::DenseMap<const StageFunction *, std::unique_ptr<Function>> functions;
};

} // namespace

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
  runOnEach(&Stage::prepare);
  auto isForward = [](const ScheduleStep &step) { return step.kind == RunKind::Forward; };
  ArrayRef<ScheduleStep> forward = steps.take_while(isForward);
  for (const ScheduleStep &step : forward)
    runStep(step);
  runOnEach(&Stage::barrier);
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
  auto made = InputOp::create(builder, loc, port.type, number(port.id), microBatchAttr(microBatch),
                              port.sharding);
  if (port.isOnHost)
    made->setAttr(attr::memory, builder.getStringAttr("host"));
  return made;
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

/// What runs once of each stage of this mesh: before the first forward run, or behind the last.
void ProgramBuilder::runOnEach(std::optional<StageFunction> Stage::*function) {
  for (const Stage &stage : sliced.stages)
    if (stage.meshIndex == mesh && stage.*function)
      runOnce(*(stage.*function));
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

//===----------------------------------------------------------------------===//
// How many sends may be underway
//===----------------------------------------------------------------------===//

/// The most messages of a channel, which hold all that it carries; at least 1.
static int64_t mostMessages(const ProgramTable &table) {
  std::vector<int64_t> messages(table.numChannels + 1, 0);
  messages.back() = 1;
  for (const Transfer &transfer : table.transfers)
    ++messages[transfer.channel];
  return *llvm::max_element(messages);
}

/// The least number of messages that each ordered pair of meshes must be able to hold,
/// sent and not yet received, for all programs to run to their ends;
/// none if they do not end whatever it is. At least 1.
static std::optional<int64_t> leastChannelCapacity(const ProgramTable &table) {
  auto ends = [&](int64_t capacity) { return ProgramOrder(table, capacity).run(); };
  int64_t low = 1, high = mostMessages(table);
  if (!ends(high))
    return std::nullopt;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (ends(middle))
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

//===----------------------------------------------------------------------===//
// The instruction list of each mesh
//===----------------------------------------------------------------------===//

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
                      numberIn(predicted, "barrier_seconds", 0),
                      numberIn(predicted, "prepare_seconds", 0)};
}

/// Bytes of each device, if the module says which cluster it is for.
FailureOr<std::vector<int64_t>> deviceBytes(ModuleOp module) {
  std::vector<int64_t> bytes;
  auto text = module->getAttrOfType<StringAttr>(attr::cluster);
  if (!text)
    return bytes;
  llvm::Expected<cost::Cluster> cluster = cost::parseCluster(text.getValue(), attr::cluster);
  if (!cluster)
    return withError(module.emitError(), cluster.takeError());
  for (const cost::Host &host : cluster->hosts)
    bytes.insert(bytes.end(), host.devices, cluster->deviceTypes[host.deviceType].memoryBytes);
  return bytes;
}

struct BuildSchedule : schedule::impl::AlpaBuildScheduleBase<BuildSchedule> {
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
      withError(module.emitError(), lists.takeError());
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
  LogicalResult readParameters(ScheduleProblem &problem);
  const ScheduleInfo *choose(const ScheduleProblem &problem);
  LogicalResult promise(ProgramOp program, MeshAttr mesh, ArrayRef<int64_t> memory);
};

} // namespace

/// The room that the search left for what looks for an order by itself.
LogicalResult BuildSchedule::readParameters(ScheduleProblem &problem) {
  Attribute given = getOperation()->getAttr(attr::scheduleParameters);
  if (!given)
    return success();
  auto fail = [&] {
    return getOperation().emitError()
           << "`" << attr::scheduleParameters << "` is " << given
           << ", expected such as {limits = array<f64: 2.0>, kept_parts = array<f64: 0.5>}";
  };
  auto dictionary = dyn_cast<DictionaryAttr>(given);
  if (!dictionary)
    return fail();
  for (NamedAttribute entry : dictionary) {
    auto numbers = dyn_cast<DenseF64ArrayAttr>(entry.getValue());
    std::vector<double> *given = llvm::StringSwitch<std::vector<double> *>(entry.getName())
                                     .Case("limits", &problem.limits)
                                     .Case("kept_parts", &problem.keptParts)
                                     .Case("sizes", &problem.sizes)
                                     .Default(nullptr);
    if (!numbers || !given)
      return fail();
    *given = numbers.asArrayRef().vec();
  }
  return success();
}

FailureOr<ScheduleProblem> BuildSchedule::problemOf(const SlicedModule &sliced) {
  ModuleOp module = getOperation();
  ScheduleProblem problem;
  problem.numMicroBatches = sliced.numMicroBatches;
  problem.forEach = [context = &getContext()](size_t count, llvm::function_ref<void(size_t)> work) {
    parallelFor(context, 0, count, work);
  };
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
  if (failed(readParameters(problem)))
    return failure();
  if (limit > 0)
    problem.limits.assign(problem.numMeshes(), limit);
  problem.steps = steps;
  if (llvm::Error error = checkProblem(problem))
    return withError(module.emitError(), std::move(error));
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
    InFlightDiagnostic diagnostic = withCode(module.emitError(), ErrorCode::Method)
                                    << "there is no schedule `" << name << "`; choose one of ";
    llvm::interleaveComma(getSchedules(), diagnostic,
                          [&](const ScheduleInfo &item) { diagnostic << item.name; });
    return nullptr;
  }
  if (llvm::is_contained(problem.hasBackward, true) || name == "custom")
    return info;
  return findSchedule("inference");
}
