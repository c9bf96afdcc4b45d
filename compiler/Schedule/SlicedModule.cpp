//===- SlicedModule.cpp - the sliced step as tables -----------------------===//

#include "compiler/Schedule/SlicedModule.h"

#include <map>

using namespace alpa;
using namespace alpa::schedule;
using namespace mlir;

static constexpr int64_t kMaxMicroBatches = 1'000'000;

static FailureOr<int64_t> readId(func::FuncOp function, Attribute attribute, StringRef what,
                                 unsigned index) {
  if (auto id = dyn_cast_or_null<IntegerAttr>(attribute))
    return id.getInt();
  return function.emitError() << what << " " << index << " has no `" << attr::value
                              << "`; run alpa-slice-stages first";
}

static FailureOr<Port> readPort(func::FuncOp function, Type type, DictionaryAttr attributes,
                                StringRef what, unsigned index) {
  if (!attributes)
    attributes = DictionaryAttr::get(function.getContext());
  Port port;
  port.type = wholeType(function, type, attributes);
  FailureOr<int64_t> id = readId(function, attributes.get(attr::value), what, index);
  if (failed(id))
    return failure();
  port.id = *id;
  port.sharding = attributes.getAs<ShardingAttr>(attr::sharding);
  if (!port.sharding)
    return function.emitError() << what << " " << index << " has no `" << attr::sharding << "`";
  if (auto accumulate = attributes.getAs<StringAttr>(attr::accumulate))
    port.accumulate = accumulate.getValue();
  port.isOnHost = attributes.contains(attr::memory);
  if (auto partOf = attributes.getAs<IntegerAttr>(attr::partOf))
    port.partOf = partOf.getInt();
  return port;
}

static LogicalResult readFunction(Stage &stage, int64_t index, func::FuncOp op) {
  StageFunction function;
  function.op = op;
  function.stage = index;
  function.callee = SymbolRefAttr::get(stage.module.getSymNameAttr(),
                                       {FlatSymbolRefAttr::get(op.getSymNameAttr())});
  for (unsigned i = 0; i < op.getNumArguments(); ++i) {
    FailureOr<Port> port =
        readPort(op, op.getArgumentTypes()[i], op.getArgAttrDict(i), "argument", i);
    if (failed(port))
      return failure();
    function.inputs.push_back(*port);
  }
  for (unsigned i = 0; i < op.getNumResults(); ++i) {
    FailureOr<Port> port =
        readPort(op, op.getResultTypes()[i], op.getResultAttrDict(i), "result", i);
    if (failed(port))
      return failure();
    function.outputs.push_back(*port);
  }
  StringRef name = op.getSymName();
  int64_t level = 0;
  if (name == "prepare")
    stage.prepare = std::move(function);
  else if (name == "forward")
    stage.forward = std::move(function);
  else if (name == "barrier")
    stage.barrier = std::move(function);
  else if (name == "backward")
    stage.backward = std::move(function);
  else if (name == "backward_input")
    stage.backwardInput = std::move(function);
  else if (name == "backward_weight")
    stage.backwardWeight = std::move(function);
  else if (name.consume_front("update_") && !name.getAsInteger(10, level))
    stage.updates.push_back(std::move(function));
  else
    return op.emitError() << "expected prepare, forward, barrier, backward, backward_input, "
                             "backward_weight or update_<k> in a stage, got "
                          << op.getSymName();
  return success();
}

SmallVector<ModuleOp> schedule::stageModules(ModuleOp module) {
  SmallVector<ModuleOp> stages;
  SymbolTable symbols(module);
  while (auto stage = symbols.lookup<ModuleOp>(("stage_" + Twine(stages.size())).str()))
    stages.push_back(stage);
  return stages;
}

SmallVector<MeshAttr> schedule::meshesOf(ModuleOp module) {
  llvm::SetVector<MeshAttr> meshes;
  for (ModuleOp stage : stageModules(module))
    if (auto mesh = stage->getAttrOfType<MeshAttr>(attr::mesh))
      meshes.insert(mesh);
  return llvm::to_vector(meshes);
}

/// Two meshes have no device in common.
static LogicalResult numberMeshes(SlicedModule &sliced) {
  sliced.meshes = meshesOf(sliced.module);
  llvm::DenseMap<int64_t, int64_t> meshOf; // Device to mesh.
  for (auto [index, stage] : llvm::enumerate(sliced.stages)) {
    stage.meshIndex = llvm::find(sliced.meshes, stage.mesh) - sliced.meshes.begin();
    for (int64_t device : stage.mesh.getDevices())
      if (int64_t other = meshOf.try_emplace(device, stage.meshIndex).first->second;
          other != stage.meshIndex)
        return ModuleOp(stage.module).emitError()
               << "stage " << index << " has device " << device << " on mesh " << stage.mesh
               << ", but another stage has it on " << sliced.meshes[other]
               << "; stages share all devices of a mesh or none";
  }
  return success();
}

int64_t schedule::levelOf(const StageFunction &update) {
  StringRef name = update.op->getAttrOfType<StringAttr>("sym_name").getValue();
  int64_t level = 0;
  name.consume_front("update_");
  name.getAsInteger(10, level);
  return level;
}

static LogicalResult readStages(SlicedModule &sliced) {
  for (auto [index, module] : llvm::enumerate(stageModules(sliced.module))) {
    Stage &stage = sliced.stages.emplace_back();
    stage.module = module;
    stage.mesh = module->getAttrOfType<MeshAttr>(attr::mesh);
    if (!stage.mesh)
      return module.emitError() << "has no `" << attr::mesh << "`";
    for (auto op : module.getOps<func::FuncOp>())
      if (failed(readFunction(stage, index, op)))
        return failure();
    llvm::sort(stage.updates, [](const StageFunction &a, const StageFunction &b) {
      return levelOf(a) < levelOf(b);
    });
  }
  if (sliced.stages.empty())
    return sliced.module.emitError("has no module @stage_0; run alpa-slice-stages first");
  return numberMeshes(sliced);
}

void schedule::forEachFunction(Stage &stage,
                               function_ref<void(StageFunction &, bool isOnce)> callback) {
  for (auto *function : {&stage.prepare, &stage.forward, &stage.barrier, &stage.backward,
                         &stage.backwardInput, &stage.backwardWeight})
    if (*function)
      callback(**function, function == &stage.prepare || function == &stage.barrier);
  for (StageFunction &update : stage.updates)
    callback(update, true);
}

void schedule::forEachFunction(SlicedModule &sliced,
                               function_ref<void(StageFunction &, bool isOnce)> callback) {
  for (Stage &stage : sliced.stages)
    forEachFunction(stage, callback);
}

static LogicalResult readFlows(SlicedModule &sliced) {
  LogicalResult result = success();
  forEachFunction(sliced, [&](StageFunction &function, bool isOnce) {
    for (Port &port : function.outputs) {
      ValueFlow &flow = sliced.flows[port.id];
      if (flow.stage >= 0)
        result = function.op.emitError() << "value " << port.id << " is made twice";
      flow.stage = function.stage;
      flow.mesh = sliced.stages[function.stage].meshIndex;
      flow.perMicroBatch = !isOnce;
    }
  });
  if (failed(result) || failed(collectSums(sliced)))
    return failure();
  forEachFunction(sliced, [&](StageFunction &function, bool isOnce) {
    for (Port &port : function.inputs) {
      sliced.inputAt.try_emplace({port.id, function.stage}, port);
      auto flow = sliced.flows.find(port.id);
      if (flow == sliced.flows.end()) {
        result = function.op.emitError() << "nothing makes value " << port.id;
        continue;
      }
      if (int64_t mesh = sliced.stages[function.stage].meshIndex; mesh != flow->second.mesh)
        (isOnce ? flow->second.onceMeshes : flow->second.microBatchMeshes).insert(mesh);
    }
  });
  return result;
}

FailureOr<SlicedModule> schedule::readSlicedModule(ModuleOp module) {
  SlicedModule sliced;
  sliced.module = module;
  sliced.main = module.lookupSymbol<func::FuncOp>("main");
  if (!sliced.main)
    return module.emitError("has no function @main");
  if (auto count = module->getAttrOfType<IntegerAttr>(attr::numMicroBatches))
    sliced.numMicroBatches = count.getInt();
  if (sliced.numMicroBatches < 1 || sliced.numMicroBatches > kMaxMicroBatches)
    return module.emitError() << "`" << attr::numMicroBatches << "`: expected a number from 1 to "
                              << kMaxMicroBatches << ", got " << sliced.numMicroBatches;
  if (failed(readStages(sliced)))
    return failure();
  func::FuncOp main = sliced.main;
  sliced.numArguments = main.getNumArguments();
  for (unsigned i = 0; i < main.getNumArguments(); ++i) {
    auto kind = main.getArgAttrOfType<StringAttr>(i, attr::kind);
    sliced.batch.push_back(kind && kind.getValue() == "batch");
    FailureOr<int64_t> id = readId(main, main.getArgAttr(i, attr::value), "argument", i);
    if (failed(id))
      return failure();
    if (*id != i)
      return main.emitError() << "argument " << i << " has value id " << *id
                              << "; expected its own number";
    auto owner = main.getArgAttrOfType<IntegerAttr>(i, attr::stage);
    ValueFlow &flow = sliced.flows[i];
    if (!sliced.batch[i])
      flow.stage = owner ? owner.getInt() : 0;
    if (flow.stage >= int64_t(sliced.stages.size()))
      return main.emitError() << "argument " << i << " belongs to stage " << flow.stage
                              << ", which does not exist";
    if (flow.stage >= 0)
      flow.mesh = sliced.stages[flow.stage].meshIndex;
  }
  for (unsigned i = 0; i < main.getNumResults(); ++i) {
    FailureOr<int64_t> id = readId(main, main.getResultAttr(i, attr::value), "result", i);
    if (failed(id))
      return failure();
    sliced.resultsOf[*id].push_back(i);
  }
  if (failed(readFlows(sliced)) || failed(finishSums(sliced)))
    return failure();
  for (auto &[id, results] : sliced.resultsOf)
    if (!sliced.flows.contains(id))
      return main.emitError() << "result " << results.front() << " is value " << id
                              << ", which nothing makes";
  return sliced;
}

Port SlicedModule::argumentAt(int64_t arg, int64_t stage) const {
  if (auto it = inputAt.find({arg, stage}); it != inputAt.end())
    return it->second;
  func::FuncOp function = main;
  Port port;
  port.id = arg;
  port.type = function.getArgumentTypes()[arg];
  port.sharding = function.getArgAttrOfType<ShardingAttr>(arg, attr::sharding);
  port.isOnHost = bool(function.getArgAttr(arg, attr::memory));
  if (!port.sharding)
    port.sharding =
        ShardingAttr::get(function.getContext(),
                          ShardingSpec::replicated(cast<RankedTensorType>(port.type).getRank()));
  return port;
}

StringRef SlicedModule::reductionOf(int64_t result) const {
  func::FuncOp function = main;
  auto reduction = function.getResultAttrOfType<StringAttr>(result, attr::reduction);
  return reduction ? reduction.getValue() : StringRef();
}

//===----------------------------------------------------------------------===//
// Sums of stages in the sliced module
//===----------------------------------------------------------------------===//

static bool isUpdate(const StageFunction &function) {
  return function.callee.getLeafReference().getValue().starts_with("update_");
}

LogicalResult schedule::collectSums(SlicedModule &sliced) {
  std::map<int64_t, StageSum> sums;
  LogicalResult result = success();
  forEachFunction(sliced, [&](StageFunction &function, bool) {
    for (const Port &port : function.outputs) {
      if (port.partOf < 0)
        continue;
      auto emit = [&] {
        return function.op.emitError() << "value " << port.id << " is part of sum " << port.partOf;
      };
      StageSum &sum = sums[port.partOf];
      sum.id = port.partOf;
      if (!sum.type)
        sum.type = port.type;
      if (!isUpdate(function))
        result = emit() << " outside of the update; only results of the update are added up";
      else if (port.type != sum.type)
        result = emit() << ": expected " << sum.type << ", got " << port.type;
      else if (sliced.isArgument(sum.id) || sliced.flows.contains(sum.id))
        result = emit() << ", but value " << sum.id << " is made by itself";
      else
        sum.level = std::max(sum.level, levelOf(function));
      sum.parts.push_back({function.stage, port});
    }
  });
  if (failed(result))
    return failure();
  for (auto &[id, sum] : sums) {
    sliced.flows[id]; // No stage and no mesh make it.
    sliced.sums.push_back(std::move(sum));
  }
  llvm::sort(sliced.sums, [](const StageSum &a, const StageSum &b) {
    return std::make_pair(a.level, a.id) < std::make_pair(b.level, b.id);
  });
  return success();
}

LogicalResult schedule::finishSums(SlicedModule &sliced) {
  llvm::DenseMap<int64_t, StageSum *> byId;
  for (StageSum &sum : sliced.sums) {
    byId[sum.id] = &sum;
    if (auto results = sliced.resultsOf.find(sum.id); results != sliced.resultsOf.end())
      return sliced.main.emitError() << "result " << results->second.front() << " is sum " << sum.id
                                     << ", which a function has to pass on";
    llvm::SetVector<int64_t> members = sliced.flows[sum.id].onceMeshes;
    for (auto &[stage, port] : sum.parts)
      members.insert(sliced.stages[stage].meshIndex);
    sum.members = members.takeVector();
    llvm::sort(sum.members);
  }
  LogicalResult result = success();
  forEachFunction(sliced, [&](StageFunction &function, bool) {
    for (const Port &port : function.inputs) {
      const StageSum *sum = byId.lookup(port.id);
      if (!sum)
        continue;
      if (!isUpdate(function))
        result = function.op.emitError() << "uses sum " << sum->id << " before the update makes it";
      else if (port.type != sum->type)
        result = function.op.emitError()
                 << "sum " << sum->id << " is " << sum->type << ", but is taken as " << port.type;
      else if (levelOf(function) <= sum->level)
        result = function.op.emitError() << "uses sum " << sum->id << ", to which update_"
                                         << sum->level << " of a stage still adds";
    }
  });
  return result;
}

ShardingAttr SlicedModule::shardingOf(const StageSum &sum, int64_t mesh) const {
  for (auto [index, stage] : llvm::enumerate(stages))
    if (auto use = inputAt.find({sum.id, int64_t(index)});
        stage.meshIndex == mesh && use != inputAt.end())
      return use->second.sharding;
  for (auto &[stage, port] : sum.parts)
    if (stages[stage].meshIndex == mesh)
      return port.sharding;
  return ShardingAttr();
}
