//===- Native.cpp - the compiler as a Python module ------------------------===//
//
// Text goes in, text comes out; the first diagnostic of a failed call becomes
// one Python exception. The Python side wraps this in alpa_mlir.compiler and
// nothing else imports it.
//
//===----------------------------------------------------------------------===//

#include "Bindings.h"
#include "compiler/BuildInfo.h"
#include "compiler/Export/WritePlan.h"
#include "compiler/Import/Signature.h"
#include "compiler/ParserInput.h"
#include "compiler/Registration.h"
#include "compiler/Sharding/Methods/Methods.h"
#include "compiler/Stage/Search/PipelineMethods.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Common/Diagnostics.h"
#include "dialects/Common/UnknownOps.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"
#include "llvm/Support/ThreadPool.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using alpa::ErrorCode;

namespace {

/// The most telling part of a location: a file position, else a JAX name.
void setPlace(CompilerError &error, mlir::Location location) {
  std::string text;
  location->walk([&](mlir::Location part) {
    llvm::raw_string_ostream os(text);
    if (auto file = mlir::dyn_cast<mlir::FileLineColLoc>(part)) {
      error.file = file.getFilename().str();
      error.line = file.getLine();
      error.column = file.getColumn();
      os << error.file << ":" << error.line << ":" << error.column;
      return mlir::WalkResult::interrupt();
    }
    if (auto name = mlir::dyn_cast<mlir::NameLoc>(part); name && text.empty())
      os << name.getName().getValue() << " at ";
    return mlir::WalkResult::advance();
  });
  llvm::StringRef trimmed(text);
  trimmed.consume_back(" at ");
  error.where = trimmed.str();
}

/// Collects the first error of one call, with its notes: those behind it follow from it.
class Diagnostics {
public:
  /// Errors without a code get `otherwise`.
  Diagnostics(mlir::MLIRContext *context, ErrorCode otherwise)
      : otherwise(otherwise), handler(context, [this](mlir::Diagnostic &diagnostic) {
          if (!first && diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error)
            keep(diagnostic);
          return mlir::success();
        }) {}

  [[noreturn]] void raise(llvm::StringRef fallback) const {
    throw first ? *first : CompilerError(alpa::CodedError(otherwise, fallback));
  }

private:
  void keep(mlir::Diagnostic &diagnostic) {
    first.emplace(alpa::partsOf(
        diagnostic, alpa::isOfUnknownOp(diagnostic) ? ErrorCode::UnsupportedOp : otherwise));
    setPlace(*first, diagnostic.getLocation());
    for (mlir::Diagnostic &note : diagnostic.getNotes())
      first->notes.push_back(note.str());
  }

  ErrorCode otherwise;
  std::optional<CompilerError> first;
  mlir::ScopedDiagnosticHandler handler;
};

/// The numbers of a dictionary, by name.
void addNumbers(mlir::DictionaryAttr found, std::map<std::string, double> &numbers) {
  for (mlir::NamedAttribute entry :
       found ? found.getValue() : llvm::ArrayRef<mlir::NamedAttribute>()) {
    if (auto real = mlir::dyn_cast<mlir::FloatAttr>(entry.getValue()))
      numbers[entry.getName().str()] = real.getValueAsDouble();
    else if (auto integer = mlir::dyn_cast<mlir::IntegerAttr>(entry.getValue()))
      numbers[entry.getName().str()] = double(integer.getInt());
  }
}

/// One module and the context that owns it.
class Module {
public:
  static std::unique_ptr<Module> parse(const std::string &text, const std::string &fileName,
                                       unsigned threads) {
    if (llvm::Error error = alpa::checkNesting(text, fileName, ErrorCode::ModuleSyntax))
      throw CompilerError(std::move(error), ErrorCode::ModuleSyntax);
    mlir::DialectRegistry registry;
    alpa::registerDialects(registry);
    auto result = std::make_unique<Module>();
    result->context = makeContext(registry, threads);
    Diagnostics diagnostics(result->context.get(), ErrorCode::ModuleSyntax);
    nb::gil_scoped_release release;
    std::optional<std::string> packed = alpa::packBooleans(text);
    result->module = mlir::parseSourceString<mlir::ModuleOp>(
        packed ? *packed : text, mlir::ParserConfig(result->context.get()), fileName);
    if (!result->module)
      diagnostics.raise("the module could not be parsed");
    return result;
  }

  /// With so many threads, or one a core if it is 0; the context keeps the pool alive.
  static std::shared_ptr<mlir::MLIRContext> makeContext(const mlir::DialectRegistry &registry,
                                                        unsigned threads) {
    if (threads == 0)
      return std::make_shared<mlir::MLIRContext>(registry);
    using Threading = mlir::MLIRContext::Threading;
    auto pool = std::make_shared<llvm::DefaultThreadPool>(llvm::hardware_concurrency(threads));
    std::shared_ptr<mlir::MLIRContext> context(
        new mlir::MLIRContext(registry, Threading::DISABLED),
        [pool](mlir::MLIRContext *context) { delete context; });
    if (threads > 1)
      context->setThreadPool(*pool);
    return context;
  }

  std::unique_ptr<Module> clone() {
    auto result = std::make_unique<Module>();
    result->context = context;
    result->module = module->clone();
    return result;
  }

  void annotate(const std::string &signatureJson) {
    if (llvm::Error error = alpa::importer::annotateSignature(*module, signatureJson))
      throw CompilerError(std::move(error), ErrorCode::Pass);
  }

  void runPipeline(const std::string &pipeline) {
    Diagnostics diagnostics(context.get(), ErrorCode::Pass);
    nb::gil_scoped_release release;
    std::string problem;
    llvm::raw_string_ostream os(problem);
    mlir::PassManager manager(context.get());
    if (mlir::failed(mlir::parsePassPipeline(pipeline, manager, os)))
      throw CompilerError(
          alpa::CodedError(ErrorCode::Method, "bad pass pipeline `" + pipeline + "`: " + problem));
    if (mlir::failed(manager.run(*module)))
      diagnostics.raise("a pass failed without saying why");
  }

  /// Numbers that the search left on the module, and how many stages it made.
  std::map<std::string, double> predicted() {
    std::map<std::string, double> numbers;
    addNumbers((*module)->getAttrOfType<mlir::DictionaryAttr>(alpa::attr::predicted), numbers);
    if (auto planning = (*module)->getAttrOfType<mlir::DictionaryAttr>(alpa::attr::planning))
      if (auto timedOut = planning.getAs<mlir::IntegerAttr>("timed_out_solves"))
        numbers["timed_out_solves"] = double(timedOut.getInt());
    auto stages = (*module)->getAttrOfType<mlir::ArrayAttr>(alpa::attr::stages);
    if (!stages)
      return numbers;
    numbers["stages"] = double(stages.size());
    double &peak = numbers["peak_bytes"], &again = numbers["rematerialized_stages"];
    std::map<int64_t, double> held; // By the first device of a mesh; stages may share it.
    for (auto stage : stages.getAsRange<alpa::StageAttr>())
      if (mlir::DictionaryAttr found = stage.getPredicted()) {
        if (auto bytes = found.getAs<mlir::IntegerAttr>("peak_bytes"))
          held[stage.getMesh().getDevices().front()] += double(bytes.getInt());
        if (auto layers = found.getAs<mlir::IntegerAttr>("rematerialized_layers"))
          again += layers.getInt() > 0;
      }
    for (auto [device, bytes] : held)
      peak = std::max(peak, bytes);
    return numbers;
  }

  /// The devices of each stage.
  std::vector<std::vector<int64_t>> stageDevices() {
    std::vector<std::vector<int64_t>> result;
    if (auto stages = (*module)->getAttrOfType<mlir::ArrayAttr>(alpa::attr::stages))
      for (auto stage : stages.getAsRange<alpa::StageAttr>())
        result.emplace_back(stage.getMesh().getDevices());
    return result;
  }

  /// Of each stage: what the search foresaw, where that time goes, and the kernels of a run of
  /// each phase.
  std::vector<std::map<std::string, double>> predictedStages() {
    std::vector<std::map<std::string, double>> result;
    auto stages = (*module)->getAttrOfType<mlir::ArrayAttr>(alpa::attr::stages);
    if (!stages)
      return result;
    auto count = (*module)->getAttrOfType<mlir::IntegerAttr>(alpa::attr::numMicroBatches);
    for (auto stage : stages.getAsRange<alpa::StageAttr>()) {
      std::map<std::string, double> &numbers = result.emplace_back();
      addNumbers(stage.getPredicted(), numbers);
      numbers["layers"] = double(stage.getEndLayer() - stage.getFirstLayer());
      numbers["devices"] = double(stage.getMesh().getDevices().size());
      auto why = stage.getSolver().getAs<mlir::DictionaryAttr>("explanation");
      if (why)
        addNumbers(why, numbers);
      auto ops = why ? why.getAs<mlir::ArrayAttr>("ops") : mlir::ArrayAttr();
      if (!ops)
        continue;
      for (auto op : ops.getAsRange<mlir::DictionaryAttr>()) {
        std::string phase = op.getAs<mlir::StringAttr>("phase").str();
        bool isEach = phase == "forward" || phase == "backward";
        double runs = isEach && count ? double(count.getInt()) : 1;
        numbers[phase + "_kernels"] +=
            double(op.getAs<mlir::IntegerAttr>("kernels").getInt()) / runs;
      }
    }
    return result;
  }

  std::string chosenSchedule() {
    auto name = (*module)->getAttrOfType<mlir::StringAttr>(alpa::attr::schedule);
    return name ? name.str() : "";
  }

  std::vector<std::string> padded() {
    std::vector<std::string> sizes;
    if (auto said = (*module)->getAttrOfType<mlir::ArrayAttr>(alpa::attr::padded))
      for (auto text : said.getAsRange<mlir::StringAttr>())
        sizes.push_back(text.str());
    return sizes;
  }

  std::string toText(bool generic, bool debugInfo) {
    std::string text;
    llvm::raw_string_ostream os(text);
    mlir::OpPrintingFlags flags;
    flags.printGenericOpForm(generic);
    if (debugInfo)
      flags.enableDebugInfo();
    module->print(os, flags);
    return text;
  }

  std::pair<std::string, std::map<std::string, std::string>> exportPlan() {
    alpa::exporter::ExportedPlan plan = take(alpa::exporter::exportPlan(*module), ErrorCode::Pass);
    return {std::move(plan.json), std::move(plan.files)};
  }

private:
  std::shared_ptr<mlir::MLIRContext> context; // Shared with clones.
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

std::string checkCluster(const std::string &nameOrPath, const std::string &yaml) {
  return alpa::cost::printCluster(take(yaml.empty() ? alpa::cost::loadCluster(nameOrPath)
                                                    : alpa::cost::parseCluster(yaml, nameOrPath),
                                       ErrorCode::ClusterFile));
}

std::vector<std::string> clusterPresets() {
  std::vector<std::string> names;
  for (llvm::StringRef name : alpa::cost::clusterPresets())
    names.push_back(name.str());
  return names;
}

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

NamedTexts describeMethods(llvm::ArrayRef<alpa::sharding::MethodInfo> table) {
  NamedTexts methods;
  for (const alpa::sharding::MethodInfo &info : table)
    methods.emplace_back(info.name.str(), info.description.str());
  return methods;
}

NamedTexts shardingMethods() { return describeMethods(alpa::sharding::methodTable()); }
NamedTexts pipelineMethods() { return describeMethods(alpa::stage::pipelineMethodTable()); }

void raiseInPython(const std::exception_ptr &thrown, void *type) {
  try {
    std::rethrow_exception(thrown);
  } catch (const CompilerError &error) {
    nb::object raised = nb::handle(static_cast<PyObject *>(type))(error.text);
    raised.attr("code") = error.code;
    raised.attr("where") = error.where;
    raised.attr("file") = error.file;
    raised.attr("line") = error.line;
    raised.attr("column") = error.column;
    raised.attr("what") = error.text;
    raised.attr("fix") = error.fix;
    raised.attr("notes") = error.notes;
    PyErr_SetObject(static_cast<PyObject *>(type), raised.ptr());
  }
}

void bindCompilerError(nb::module_ &m) {
  nb::object type = nb::steal(PyErr_NewExceptionWithDoc(
      "alpa_mlir._native.CompilerError",
      "An error of the compiler: code, where, file, line, column, what, fix and notes.",
      PyExc_Exception, nullptr));
  m.attr("CompilerError") = type;
  nb::register_exception_translator(raiseInPython, type.release().ptr());
  std::vector<std::string> codes;
  for (llvm::StringRef name : alpa::errorCodeNames())
    codes.push_back(name.str());
  m.attr("ERROR_CODES") = codes;
}

} // namespace

NB_MODULE(_native, m) {
  alpa::registerPasses();
  bindCompilerError(m);
  nb::class_<Module>(m, "Module")
      .def("clone", &Module::clone)
      .def("annotate", &Module::annotate, nb::arg("signature_json"))
      .def("run_pipeline", &Module::runPipeline, nb::arg("pipeline"))
      .def("predicted", &Module::predicted)
      .def("predicted_stages", &Module::predictedStages)
      .def("stage_devices", &Module::stageDevices)
      .def("chosen_schedule", &Module::chosenSchedule)
      .def("padded", &Module::padded)
      .def("to_text", &Module::toText, nb::arg("generic") = false, nb::arg("debug_info") = false)
      .def("export_plan", &Module::exportPlan);
  m.def("parse_module", &Module::parse, nb::arg("text"), nb::arg("file_name") = "<module>",
        nb::arg("threads") = 0);
  m.def("check_cluster", &checkCluster, nb::arg("name_or_path"), nb::arg("yaml") = "",
        "Canonical YAML of a preset, a file, or of YAML text.");
  m.def("cluster_presets", &clusterPresets);
  m.def("sharding_methods", &shardingMethods, "Names and descriptions of the methods.");
  m.def("pipeline_methods", &pipelineMethods, "Names and descriptions of the pipeline methods.");
  bindReshard(m);
  bindSchedules(m);
  bindSolver(m);
  m.attr("BUILD") = alpa::kBuildInfo;
  m.attr("VERSION") = ALPA_VERSION;
}
