//===- PlanJson.cpp - a sliced and scheduled module as a plan -------------===//

#include "compiler/Export/PlanJson.h"

#include "compiler/Export/PlanTexts.h"
#include "compiler/Schedule/SlicedModule.h"

#include "mlir/IR/Diagnostics.h"

using namespace mlir;
using namespace alpa;

namespace {

/// Small numbers for buffers: a freed one is used again.
class Slots {
public:
  int64_t add(Value buffer) {
    int64_t slot = count;
    if (unused.empty())
      ++count;
    else
      slot = unused.pop_back_val();
    slots[buffer] = slot;
    return slot;
  }
  int64_t at(Value buffer) const { return slots.lookup(buffer); }
  int64_t release(Value buffer) {
    int64_t slot = at(buffer);
    unused.push_back(slot);
    return slot;
  }
  int64_t size() const { return count; }

private:
  llvm::DenseMap<Value, int64_t> slots;
  SmallVector<int64_t> unused;
  int64_t count = 0;
};

class PlanWriter {
public:
  PlanWriter(const SlicedModule &sliced, llvm::raw_ostream &os)
      : sliced(sliced), main(sliced.main), json(os) {}

  void write();

private:
  void writeSignature();
  void writeMeshes();
  void writeStages();
  void writeFunction(StringRef name, const StageFunction &function, MeshAttr mesh);
  void writeWeights(int64_t stage);
  void writeTensor(Type type);
  void writeHeldTensor(Type type, ShardingAttr sharding, MeshAttr mesh);
  void writeProgram(ProgramOp program);
  void writeInstruction(Operation &op, Slots &slots, MeshAttr mesh);
  void writeOptional(StringRef key, std::optional<int64_t> value) {
    if (value)
      json.attribute(key, *value);
    else
      json.attribute(key, nullptr);
  }
  void writeDictionary(StringRef key, Attribute attribute) {
    json.attribute(key, attribute ? toJson(attribute) : llvm::json::Value(llvm::json::Object()));
  }
  std::string nameOf(Attribute attribute, StringRef what, int64_t index) {
    if (auto name = dyn_cast_or_null<StringAttr>(attribute))
      return name.str();
    return (what + Twine(index)).str();
  }

  const SlicedModule &sliced;
  func::FuncOp main;
  llvm::json::OStream json;
};

} // namespace

void PlanWriter::writeTensor(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  json.attribute("shape", shapeJson(tensor.getShape()));
  json.attribute("dtype", numpyName(tensor.getElementType()));
}

void PlanWriter::writeHeldTensor(Type type, ShardingAttr sharding, MeshAttr mesh) {
  writeTensor(type);
  json.attribute("spec", specJson(sharding, mesh));
}

void PlanWriter::write() {
  ModuleOp module = sliced.module;
  StringRef name = module.getSymName().value_or("step");
  name.consume_front("jit_");
  auto schedule = module->getAttrOfType<StringAttr>(attr::schedule);
  json.object([&] {
    json.attribute("format", "alpa_mlir.plan");
    json.attribute("version", 1);
    json.attribute("name", name);
    json.attribute("cluster", clusterJson(module));
    json.attribute("num_micro_batches", sliced.numMicroBatches);
    json.attribute("schedule", schedule ? schedule.getValue() : "");
    writeSignature();
    writeMeshes();
    writeStages();
    writeDictionary("predicted", module->getAttr(attr::predicted));
    json.attributeArray("programs", [&] {
      for (auto program : module.getOps<ProgramOp>())
        writeProgram(program);
    });
  });
}

void PlanWriter::writeSignature() {
  json.attributeArray("inputs", [&] {
    for (unsigned i = 0; i < main.getNumArguments(); ++i) {
      json.object([&] {
        json.attribute("name", nameOf(main.getArgAttr(i, attr::name), "argument ", i));
        writeTensor(main.getArgumentTypes()[i]);
        json.attribute("kind", sliced.isBatch(i) ? "batch" : "state");
        auto carriedBy = main.getArgAttrOfType<IntegerAttr>(i, attr::carriedBy);
        writeOptional("carried_by", carriedBy ? std::optional(carriedBy.getInt()) : std::nullopt);
      });
    }
  });
  json.attributeArray("outputs", [&] {
    for (unsigned i = 0; i < main.getNumResults(); ++i) {
      json.object([&] {
        json.attribute("name", nameOf(main.getResultAttr(i, attr::name), "result ", i));
        writeTensor(main.getResultTypes()[i]);
        StringRef reduction = sliced.reductionOf(i);
        json.attribute("reduction", reduction.empty() ? llvm::json::Value(nullptr)
                                                      : llvm::json::Value(reduction));
      });
    }
  });
}

void PlanWriter::writeMeshes() {
  json.attributeArray("meshes", [&] {
    for (const Stage &stage : sliced.stages) {
      json.object([&] {
        json.attribute("shape", shapeJson(stage.mesh.getShape()));
        json.attributeArray("axes", [&] {
          for (size_t axis = 0; axis < stage.mesh.getShape().size(); ++axis)
            json.value(axisNames[axis]);
        });
        json.attribute("devices", shapeJson(stage.mesh.getDevices()));
      });
    }
  });
}

void PlanWriter::writeStages() {
  auto infos = sliced.module->getAttrOfType<ArrayAttr>(attr::stages);
  json.attributeArray("stages", [&] {
    for (size_t index = 0; index < sliced.stages.size(); ++index) {
      const Stage &stage = sliced.stages[index];
      StageAttr info =
          infos && index < infos.size() ? dyn_cast<StageAttr>(infos[index]) : StageAttr();
      json.object([&] {
        json.attribute("mesh", int64_t(index));
        json.attribute("layers", info ? shapeJson({info.getFirstLayer(), info.getEndLayer()})
                                      : shapeJson({0, 0}));
        json.attribute("module", "stage_" + std::to_string(index) + ".mlir");
        json.attribute("export", stage.module->hasAttr(attr::perDevice) ? "collectives" : "shardy");
        json.attributeObject("functions", [&] {
          if (stage.forward)
            writeFunction("forward", *stage.forward, stage.mesh);
          if (stage.backward)
            writeFunction("backward", *stage.backward, stage.mesh);
          for (const StageFunction &update : stage.updates)
            writeFunction(update.callee.getLeafReference().getValue(), update, stage.mesh);
        });
        writeDictionary("predicted", info ? info.getPredicted() : DictionaryAttr());
        writeDictionary("solver", info ? info.getSolver() : DictionaryAttr());
        writeWeights(index);
      });
    }
  });
}

void PlanWriter::writeFunction(StringRef name, const StageFunction &function, MeshAttr mesh) {
  auto writePorts = [&](StringRef key, ArrayRef<Port> ports) {
    json.attributeArray(key, [&] {
      for (const Port &port : ports)
        json.object([&] { writeHeldTensor(port.type, port.sharding, mesh); });
    });
  };
  json.attributeObject(name, [&] {
    writePorts("inputs", function.inputs);
    writePorts("outputs", function.outputs);
  });
}

/// The state that people look at: matrices and larger that the stage computes with, not what
/// only the update knows, such as an optimizer's moments.
void PlanWriter::writeWeights(int64_t stage) {
  std::map<int64_t, Port> weights;
  const Stage &info = sliced.stages[stage];
  for (const std::optional<StageFunction> *function : {&info.forward, &info.backward}) {
    if (!*function)
      continue;
    for (const Port &input : (*function)->inputs)
      if (sliced.isArgument(input.id) && !sliced.isBatch(input.id))
        weights.try_emplace(input.id, input);
  }
  json.attributeArray("weights", [&] {
    for (const auto &weight : weights) {
      int64_t arg = weight.first;
      auto type = cast<RankedTensorType>(main.getArgumentTypes()[arg]);
      if (type.getRank() < 2)
        continue;
      json.object([&] {
        json.attribute("name", nameOf(main.getArgAttr(arg, attr::name), "argument ", arg));
        json.attribute("shape", shapeJson(type.getShape()));
        json.attribute("spec", specJson(weight.second.sharding, info.mesh));
      });
    }
  });
}

void PlanWriter::writeProgram(ProgramOp program) {
  Slots slots;
  MeshAttr mesh = sliced.stages[program.getMesh()].mesh;
  json.object([&] {
    json.attribute("mesh", int64_t(program.getMesh()));
    json.attributeArray("instructions", [&] {
      for (Operation &op : *program.getBody())
        json.object([&] { writeInstruction(op, slots, mesh); });
    });
    json.attribute("slots", slots.size());
  });
}

void PlanWriter::writeInstruction(Operation &op, Slots &slots, MeshAttr mesh) {
  json.attribute("op", op.getName().stripDialect());
  if (auto input = dyn_cast<InputOp>(op)) {
    json.attribute("slot", slots.add(input.getBuffer()));
    json.attribute("arg", int64_t(input.getArg()));
    writeOptional("micro_batch", input.getMicroBatch());
    writeHeldTensor(input.getBuffer().getType(), input.getSharding(), mesh);
  } else if (auto run = dyn_cast<RunOp>(op)) {
    int64_t stage = 0;
    run.getCallee().getRootReference().getValue().drop_front(6).getAsInteger(10, stage);
    json.attribute("stage", stage);
    json.attribute("function", run.getCallee().getLeafReference().getValue());
    writeOptional("micro_batch", run.getMicroBatch());
    json.attributeArray("inputs", [&] {
      for (Value buffer : run.getInputs())
        json.value(slots.at(buffer));
    });
    json.attributeArray("outputs", [&] {
      for (Value buffer : run.getOutputs())
        json.value(slots.add(buffer));
    });
  } else if (auto send = dyn_cast<SendOp>(op)) {
    json.attribute("slot", slots.at(send.getBuffer()));
    json.attribute("to", int64_t(send.getPeer()));
    json.attribute("tag", int64_t(send.getTag()));
  } else if (auto recv = dyn_cast<RecvOp>(op)) {
    json.attribute("slot", slots.add(recv.getBuffer()));
    json.attribute("from", int64_t(recv.getPeer()));
    json.attribute("tag", int64_t(recv.getTag()));
    writeHeldTensor(recv.getBuffer().getType(), recv.getSharding(), mesh);
  } else if (auto accumulate = dyn_cast<AccumulateOp>(op)) {
    json.attribute("slot", slots.add(accumulate.getSum()));
    json.attribute("left", slots.at(accumulate.getLeft()));
    json.attribute("right", slots.at(accumulate.getRight()));
  } else if (auto free = dyn_cast<FreeOp>(op)) {
    json.attributeArray("slots", [&] {
      for (Value buffer : free.getBuffers())
        json.value(slots.release(buffer));
    });
  } else if (auto output = dyn_cast<OutputOp>(op)) {
    json.attribute("slot", slots.at(output.getBuffer()));
    json.attribute("result", int64_t(output.getResult()));
    writeOptional("micro_batch", output.getMicroBatch());
  }
}

/// What the rest of this file takes for granted.
static LogicalResult check(const SlicedModule &sliced) {
  ModuleOp module = sliced.module;
  llvm::DenseSet<int64_t> meshes;
  for (auto program : module.getOps<ProgramOp>()) {
    if (program.getMesh() >= sliced.stages.size())
      return program.emitError() << "mesh " << program.getMesh() << " has no stage";
    meshes.insert(program.getMesh());
  }
  if (meshes.size() != sliced.stages.size())
    return module.emitError("has no alpa.program for each stage; run alpa-build-schedule first");
  func::FuncOp main = sliced.main;
  for (auto types : {main.getArgumentTypes(), main.getResultTypes()})
    for (Type type : types) {
      auto tensor = dyn_cast<RankedTensorType>(type);
      if (!tensor || numpyName(tensor.getElementType()).empty())
        return main.emitError() << "NumPy has no name for " << type;
    }
  for (const Stage &stage : sliced.stages)
    if (stage.mesh.getDevices().size() > 1 && !stage.module->hasAttr(attr::perDevice) &&
        !SymbolTable::lookupSymbolIn(stage.module, "mesh"))
      return ModuleOp(stage.module)
          .emitError("has no sdy.mesh; run alpa-export-shardy or alpa-lower-to-collectives before "
                     "the plan is written");
  return success();
}

llvm::Expected<ExportedPlan> alpa::exportPlan(ModuleOp module) {
  std::string problem;
  ScopedDiagnosticHandler handler(module.getContext(), [&](Diagnostic &diagnostic) {
    if (problem.empty())
      problem = diagnostic.str();
    return success();
  });
  FailureOr<SlicedModule> sliced = readSlicedModule(module);
  if (failed(sliced) || failed(check(*sliced)))
    return llvm::createStringError("the plan cannot be written: " + problem);
  ExportedPlan plan;
  llvm::raw_string_ostream os(plan.json);
  PlanWriter(*sliced, os).write();
  os << "\n";
  for (auto [index, stage] : llvm::enumerate(sliced->stages))
    plan.modules["stage_" + std::to_string(index) + ".mlir"] = plainText(stage.module);
  return plan;
}
