//===- WritePlan.cpp - plan.json and the stage modules in a folder --------===//

#include "compiler/Export/WritePlan.h"

#include "compiler/Export/AttributeJson.h"
#include "compiler/Export/Passes.h"
#include "compiler/Export/ProgramText.h"
#include "compiler/Reshard/PlanOps.h"
#include "compiler/Schedule/SlicedModule.h"

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/Threading.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

namespace alpa::exporter {
#define GEN_PASS_DEF_ALPAWRITEPLAN
#include "compiler/Export/Passes.h.inc"
} // namespace alpa::exporter

using namespace mlir;
using namespace alpa;
using namespace alpa::exporter;
using schedule::Port;
using schedule::SlicedModule;
using schedule::StageFunction;

namespace {

constexpr StringLiteral kExplanation = "explanation";   // Among what the solver says of a stage.
constexpr StringLiteral kTimedOut = "timed_out_solves"; // Of alpa.planning.
constexpr StringLiteral kIdleReason = "idle_reason";    // The same.

std::string moduleFile(size_t stage) { return "stage_" + std::to_string(stage) + ".mlir"; }
std::string explanationFile(size_t stage) {
  return "stage_" + std::to_string(stage) + ".explain.json";
}

StageAttr infoOf(const SlicedModule &sliced, size_t stage) {
  auto infos = sliced.module->getAttrOfType<ArrayAttr>(attr::stages);
  return infos && stage < infos.size() ? dyn_cast<StageAttr>(infos[stage]) : StageAttr();
}

/// Where a stage's time goes, which is longer than all else and seldom read.
std::string explanationText(const SlicedModule &sliced, size_t stage) {
  StageAttr info = infoOf(sliced, stage);
  Attribute explanation =
      info && info.getSolver() ? info.getSolver().get(kExplanation) : Attribute();
  std::string text;
  if (explanation) {
    llvm::raw_string_ostream os(text);
    llvm::json::OStream json(os);
    writeJson(json, explanation);
  }
  return text;
}

class PlanWriter {
public:
  PlanWriter(SlicedModule &sliced, ArrayRef<ProgramText> programs, ArrayRef<std::string> order,
             llvm::raw_ostream &os)
      : sliced(sliced), programs(programs), order(order), main(sliced.main), json(os) {}

  void write();

private:
  void writeExactness();
  void writeSignature();
  void writeMeshes();
  void writeStages();
  void writeReshards();
  void writeFunction(const StageFunction &function, MeshAttr mesh);
  void writeWeights(int64_t stage);
  void writeTensor(Type type);
  void writeLines(StringRef key, ArrayRef<std::string> lines) {
    json.attributeArray(key, [&] {
      for (const std::string &line : lines)
        json.value(line);
    });
  }
  void writeProgram(int64_t mesh, const ProgramText &text);
  void writeOptional(StringRef key, std::optional<int64_t> value) {
    if (value)
      json.attribute(key, *value);
    else
      json.attribute(key, nullptr);
  }
  /// Which rows of which argument or result of the caller's function this is.
  void writePiece(DictionaryAttr attributes, StringRef of) {
    auto piece = attributes ? attributes.getAs<DictionaryAttr>(attr::piece) : DictionaryAttr();
    if (!piece)
      return;
    json.attributeObject("piece", [&] {
      for (StringRef key : {of, StringRef("axis"), StringRef("offset"), StringRef("size")})
        if (auto number = piece.getAs<IntegerAttr>(key))
          json.attribute(key == of ? "of" : key, number.getInt());
    });
  }
  /// Which arguments or results of the caller's function its rows are.
  void writeRows(DictionaryAttr attributes, StringRef of) {
    auto rows = attributes ? attributes.getAs<DictionaryAttr>(attr::rows) : DictionaryAttr();
    if (!rows)
      return;
    json.attributeObject("rows", [&] {
      json.attribute("shape", shapeJson(rows.getAs<DenseI64ArrayAttr>("shape").asArrayRef()));
      json.attribute("of", shapeJson(rows.getAs<DenseI64ArrayAttr>(of).asArrayRef()));
      json.attributeArray("names", [&] {
        for (auto name : rows.getAs<ArrayAttr>("names").getAsRange<StringAttr>())
          json.value(name.getValue());
      });
    });
  }
  void writeDictionary(StringRef key, DictionaryAttr attribute) {
    json.attributeBegin(key);
    writeJson(json, attribute ? attribute : DictionaryAttr::get(main.getContext()));
    json.attributeEnd();
  }
  std::string nameOf(Attribute attribute, StringRef what, int64_t index) {
    if (auto name = dyn_cast_or_null<StringAttr>(attribute))
      return name.str();
    return (what + Twine(index)).str();
  }

  SlicedModule &sliced;
  ArrayRef<ProgramText> programs; // In the order of the module.
  ArrayRef<std::string> order;
  func::FuncOp main;
  llvm::json::OStream json;
};

} // namespace

void PlanWriter::writeTensor(Type type) {
  auto tensor = cast<RankedTensorType>(type);
  json.attribute("shape", shapeJson(tensor.getShape()));
  json.attribute("dtype", numpyName(tensor.getElementType()));
}

void PlanWriter::write() {
  ModuleOp module = sliced.module;
  StringRef name = module.getSymName().value_or("step");
  name.consume_front("jit_");
  auto schedule = module->getAttrOfType<StringAttr>(attr::schedule);
  json.object([&] {
    json.attribute("format", "alpa_mlir.plan");
    json.attribute("version", 5);
    json.attribute("compiler", ALPA_VERSION);
    json.attribute("name", name);
    json.attributeBegin("cluster");
    writeCluster(json, module);
    json.attributeEnd();
    json.attribute("num_micro_batches", sliced.numMicroBatches);
    writeExactness();
    json.attribute("schedule", schedule ? schedule.getValue() : "");
    writeSignature();
    writeMeshes();
    writeStages();
    writeDictionary("predicted", module->getAttrOfType<DictionaryAttr>(attr::predicted));
    auto planning = module->getAttrOfType<DictionaryAttr>(attr::planning);
    auto timedOut = planning ? planning.getAs<IntegerAttr>(kTimedOut) : IntegerAttr();
    json.attribute("timed_out_solves", timedOut ? timedOut.getInt() : 0);
    if (auto idle = planning ? planning.getAs<StringAttr>(kIdleReason) : StringAttr())
      json.attribute(kIdleReason, idle.getValue());
    if (auto padded = module->getAttrOfType<ArrayAttr>(attr::padded))
      json.attributeArray("padded", [&] {
        for (StringAttr sizes : padded.getAsRange<StringAttr>())
          json.value(sizes.getValue());
      });
    writeReshards();
    writeLines("order", order);
    json.attributeArray("programs", [&] {
      for (auto [program, text] : llvm::zip_equal(module.getOps<ProgramOp>(), programs))
        writeProgram(program.getMesh(), text);
    });
  });
}

/// What makes several micro-batches give the results of the whole batch.
void PlanWriter::writeExactness() {
  auto said = sliced.module->getAttrOfType<DictionaryAttr>(attr::microBatches);
  if (!said)
    return;
  json.attributeObject("micro_batches", [&] {
    for (NamedAttribute entry : said) {
      if (auto truth = dyn_cast<BoolAttr>(entry.getValue()))
        json.attribute(entry.getName().strref(), truth.getValue());
      else if (auto places = dyn_cast<ArrayAttr>(entry.getValue()))
        json.attributeArray(entry.getName().strref(), [&] {
          for (StringAttr place : places.getAsRange<StringAttr>())
            json.value(place.getValue());
        });
    }
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
        writePiece(main.getArgAttrDict(i), "argument");
        writeRows(main.getArgAttrDict(i), "arguments");
        if (main.getArgAttr(i, attr::perMicroBatch))
          json.attribute("per_micro_batch", true);
        if (auto whole = main.getArgAttrOfType<StringAttr>(i, attr::wholeOf))
          json.attribute("whole_of", whole.getValue());
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
        writePiece(main.getResultAttrDict(i), "result");
        writeRows(main.getResultAttrDict(i), "results");
      });
    }
  });
}

void PlanWriter::writeMeshes() {
  json.attributeArray("meshes", [&] {
    for (MeshAttr mesh : sliced.meshes) {
      json.object([&] {
        json.attribute("shape", shapeJson(mesh.getShape()));
        json.attributeArray("axes", [&] {
          for (size_t axis = 0; axis < mesh.getShape().size(); ++axis)
            json.value(axisNames[axis]);
        });
        json.attribute("devices", shapeJson(mesh.getDevices()));
      });
    }
  });
}

void PlanWriter::writeStages() {
  json.attributeArray("stages", [&] {
    for (size_t index = 0; index < sliced.stages.size(); ++index) {
      schedule::Stage &stage = sliced.stages[index];
      StageAttr info = infoOf(sliced, index);
      json.object([&] {
        json.attribute("mesh", stage.meshIndex);
        json.attribute("layers", info ? shapeJson({info.getFirstLayer(), info.getEndLayer()})
                                      : shapeJson({0, 0}));
        json.attribute("module", moduleFile(index));
        json.attribute("export", stage.module->hasAttr(attr::perDevice) ? "collectives" : "shardy");
        json.attributeObject("functions", [&] {
          schedule::forEachFunction(
              stage, [&](StageFunction &function, bool) { writeFunction(function, stage.mesh); });
        });
        writeDictionary("predicted", info ? info.getPredicted() : DictionaryAttr());
        NamedAttrList solver(info ? info.getSolver() : DictionaryAttr());
        bool explained(solver.erase(kExplanation));
        writeDictionary("solver", solver.getDictionary(main.getContext()));
        json.attribute("explanation", explained ? llvm::json::Value(explanationFile(index))
                                                : llvm::json::Value(nullptr));
        writeWeights(index);
      });
    }
  });
}

void PlanWriter::writeFunction(const StageFunction &function, MeshAttr mesh) {
  auto writePorts = [&](StringRef key, ArrayRef<Port> ports) {
    json.attributeArray(key, [&] {
      for (const Port &port : ports)
        json.value(tensorText(port.type, port.sharding, mesh, port.isOnHost));
    });
  };
  json.attributeObject(function.callee.getLeafReference().getValue(), [&] {
    writePorts("inputs", function.inputs);
    writePorts("outputs", function.outputs);
  });
}

/// The state that people look at: matrices and larger that the stage computes with, not what
/// only the update knows, such as an optimizer's moments.
void PlanWriter::writeWeights(int64_t stage) {
  std::map<int64_t, Port> weights;
  schedule::Stage &info = sliced.stages[stage];
  schedule::forEachFunction(info, [&](StageFunction &function, bool isOnce) {
    bool computes = !isOnce || function.callee.getLeafReference() == "prepare";
    for (const Port &input : function.inputs)
      if (computes && sliced.isArgument(input.id) && !sliced.isBatch(input.id))
        weights.try_emplace(input.id, input);
  });
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

void PlanWriter::writeReshards() {
  json.attributeArray("reshards", [&] {
    for (auto op : ModuleOp(sliced.module).getOps<CrossMeshReshardOp>()) {
      reshard::TransferPlan plan = reshard::readPlan(op);
      json.object([&] {
        auto writeEnd = [&](StringRef what, ShardingAttr sharding, MeshAttr mesh) {
          json.attribute((what + "_mesh").str(),
                         llvm::find(sliced.meshes, mesh) - sliced.meshes.begin());
          json.attribute(what, tensorText(op.getType(), sharding, mesh));
        };
        writeEnd("source", op.getSource(), op.getSourceMesh());
        writeEnd("target", op.getTarget(), op.getTargetMesh());
        json.attribute("strategy", plan.strategy);
        json.attribute("seconds", plan.seconds);
        writeLines("steps", plan.lines());
      });
    }
  });
}

void PlanWriter::writeProgram(int64_t mesh, const ProgramText &text) {
  json.object([&] {
    json.attribute("mesh", mesh);
    json.attribute("slots", text.slots);
    writeLines("instructions", text.lines);
  });
}

/// What the search foresaw of each function, by callee; where it did not, all are alike.
static llvm::DenseMap<Attribute, double> secondsOfRuns(SlicedModule &sliced) {
  llvm::DenseMap<Attribute, double> seconds;
  for (auto [index, stage] : llvm::enumerate(sliced.stages)) {
    StageAttr info = infoOf(sliced, index);
    DictionaryAttr predicted = info ? info.getPredicted() : DictionaryAttr();
    schedule::forEachFunction(stage, [&](StageFunction &function, bool) {
      StringRef name = function.callee.getLeafReference().getValue();
      std::string key = (name.starts_with("update") ? "update" : name).str() + "_seconds";
      auto found = predicted ? predicted.getAs<FloatAttr>(key) : FloatAttr();
      bool isKnown = found && found.getValueAsDouble() > 0;
      seconds[function.callee] = isKnown ? found.getValueAsDouble() : 1e-3;
    });
  }
  return seconds;
}

/// Transfers are planned, between meshes of the step, and named wherever something crosses.
static LogicalResult checkTransfers(const SlicedModule &sliced) {
  ModuleOp module = sliced.module;
  for (auto op : module.getOps<CrossMeshReshardOp>()) {
    if (!op.isPlanned())
      return op.emitError("is not planned; run alpa-plan-transfers first");
    for (MeshAttr mesh : {op.getSourceMesh(), op.getTargetMesh()})
      if (!llvm::is_contained(sliced.meshes, mesh))
        return op.emitError() << "no stage runs on " << mesh;
  }
  SymbolTable symbols(module);
  for (auto program : module.getOps<ProgramOp>())
    for (Operation &op : *program.getBody()) {
      bool isNamed = true;
      if (auto send = dyn_cast<SendOp>(op))
        isNamed = bool(send.getByAttr());
      else if (auto recv = dyn_cast<RecvOp>(op))
        isNamed = bool(recv.getByAttr());
      else if (auto sum = dyn_cast<AllReduceOp>(op)) {
        isNamed = sum.getMembers().front() == int64_t(program.getMesh()) || sum.getToAttr();
        for (FlatSymbolRefAttr by : {sum.getToAttr(), sum.getBackAttr()})
          if (by && !symbols.lookup<CrossMeshReshardOp>(by.getAttr()))
            return op.emitError() << by << " is not an alpa.cross_mesh_reshard";
      }
      if (!isNamed)
        return op.emitError("names no transfer; run alpa-plan-transfers first");
    }
  return success();
}

/// What the rest of this file takes for granted.
static LogicalResult check(const SlicedModule &sliced) {
  ModuleOp module = sliced.module;
  llvm::DenseSet<int64_t> meshes;
  for (auto program : module.getOps<ProgramOp>()) {
    if (program.getMesh() >= sliced.meshes.size())
      return program.emitError() << "mesh " << program.getMesh() << " has no stage";
    meshes.insert(program.getMesh());
  }
  if (meshes.size() != sliced.meshes.size())
    return module.emitError("has no alpa.program for each mesh; run alpa-build-schedule first");
  func::FuncOp main = sliced.main;
  for (auto types : {main.getArgumentTypes(), main.getResultTypes()})
    for (Type type : types) {
      auto tensor = dyn_cast<RankedTensorType>(type);
      if (!tensor || numpyName(tensor.getElementType()).empty())
        return main.emitError() << "NumPy has no name for " << type;
    }
  for (const schedule::Stage &stage : sliced.stages)
    if (stage.mesh.getDevices().size() > 1 && !stage.module->hasAttr(attr::perDevice) &&
        !SymbolTable::lookupSymbolIn(stage.module, "mesh"))
      return ModuleOp(stage.module)
          .emitError("has no sdy.mesh; run alpa-export-shardy or alpa-lower-to-collectives before "
                     "the plan is written");
  return success();
}

/// How the search went, and its seconds of the clock: no two searches take the same.
static std::string planningText(DictionaryAttr planning) {
  NamedAttrList measured(planning);
  measured.erase(kTimedOut); // These are properties of the plan.
  measured.erase(kIdleReason);
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::json::OStream json(os, /*IndentSize=*/1);
  writeJson(json, measured.getDictionary(planning.getContext()));
  os << "\n";
  return text;
}

llvm::Expected<ExportedPlan> exporter::exportPlan(ModuleOp module) {
  std::string problem;
  ScopedDiagnosticHandler handler(module.getContext(), [&](Diagnostic &diagnostic) {
    if (problem.empty())
      problem = diagnostic.str();
    return success();
  });
  FailureOr<SlicedModule> sliced = schedule::readSlicedModule(module);
  auto refused = [&] { return llvm::createStringError("the plan cannot be written: " + problem); };
  if (failed(sliced) || failed(check(*sliced)) || failed(checkTransfers(*sliced)))
    return refused();
  FailureOr<schedule::ProgramTable> table = schedule::readPrograms(module);
  if (failed(table))
    return refused();
  llvm::DenseMap<Attribute, double> seconds = secondsOfRuns(*sliced);
  schedule::ProgramOrder order(*table, schedule::unboundedCapacity);
  if (!order.run([&](RunOp run) { return seconds.lookup(run.getCallee()); })) {
    (void)order.reportCycle();
    return refused();
  }
  ExportedPlan plan;
  size_t numStages = sliced->stages.size();
  auto ops = llvm::to_vector(module.getOps<ProgramOp>());
  llvm::DenseMap<Attribute, int64_t> reshards;
  for (auto op : module.getOps<CrossMeshReshardOp>())
    reshards.try_emplace(FlatSymbolRefAttr::get(op.getSymNameAttr()), int64_t(reshards.size()));
  std::vector<ProgramText> programs(ops.size());
  std::vector<std::string> modules(numStages), explanations(numStages);
  parallelFor(module.getContext(), 0, ops.size() + 2 * numStages, [&](size_t i) {
    if (i < ops.size()) {
      programs[i] = programText(ops[i], sliced->meshes[ops[i].getMesh()], reshards);
    } else if (i -= ops.size(); i < numStages) {
      modules[i] = plainText(sliced->stages[i].module);
    } else {
      explanations[i - numStages] = explanationText(*sliced, i - numStages);
    }
  });
  llvm::raw_string_ostream os(plan.json);
  PlanWriter(*sliced, programs, orderText(*table, order.places, programs), os).write();
  os << "\n";
  if (auto planning = module->getAttrOfType<DictionaryAttr>(attr::planning))
    plan.files["planning.json"] = planningText(planning);
  for (size_t stage = 0; stage < numStages; ++stage) {
    plan.files[moduleFile(stage)] = std::move(modules[stage]);
    if (!explanations[stage].empty())
      plan.files[explanationFile(stage)] = std::move(explanations[stage]);
  }
  return plan;
}

namespace {

struct WritePlan : exporter::impl::AlpaWritePlanBase<WritePlan> {
  using Base::Base;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    if (directory.empty())
      return fail("option `directory` is missing; say where to write the plan");
    llvm::Expected<ExportedPlan> plan = exportPlan(getOperation());
    if (!plan)
      return fail(llvm::toString(plan.takeError()));
    if (std::error_code error = llvm::sys::fs::create_directories(directory))
      return fail("cannot make the folder " + directory + ": " + error.message());
    write("plan.json", plan->json);
    for (auto &[name, text] : plan->files)
      write(name, text);
  }

private:
  void fail(const Twine &message) {
    getOperation().emitError() << message;
    signalPassFailure();
  }

  void write(StringRef name, StringRef text) {
    SmallString<128> path(directory);
    llvm::sys::path::append(path, name);
    std::error_code error;
    llvm::raw_fd_ostream os(path, error);
    if (error)
      return fail("cannot write " + Twine(path) + ": " + error.message());
    os << text;
  }
};

} // namespace
