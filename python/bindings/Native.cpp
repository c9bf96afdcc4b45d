//===- Native.cpp - the compiler as a Python module ------------------------===//
//
// Text goes in, text comes out; every diagnostic of a failed call becomes one
// Python exception. The Python side wraps this in alpa_mlir.compiler and
// nothing else imports it.
//
//===----------------------------------------------------------------------===//

#include "Bindings.h"
#include "compiler/BuildInfo.h"
#include "compiler/Export/PlanJson.h"
#include "compiler/Import/Signature.h"
#include "compiler/Nesting.h"
#include "compiler/Registration.h"
#include "compiler/Sharding/Methods/Methods.h"
#include "compiler/Stage/Search/PipelineMethods.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassRegistry.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;

namespace {

/// The most telling part of a location: a file position, else a JAX name.
std::string describe(mlir::Location location) {
  std::string text;
  location->walk([&](mlir::Location part) {
    llvm::raw_string_ostream os(text);
    if (auto file = mlir::dyn_cast<mlir::FileLineColLoc>(part)) {
      os << file.getFilename().getValue() << ":" << file.getLine() << ":" << file.getColumn();
      return mlir::WalkResult::interrupt();
    }
    if (auto name = mlir::dyn_cast<mlir::NameLoc>(part); name && text.empty())
      os << name.getName().getValue() << " at ";
    return mlir::WalkResult::advance();
  });
  llvm::StringRef trimmed(text);
  trimmed.consume_back(" at ");
  return trimmed.str();
}

/// Collects the errors of one call, with their notes.
class Diagnostics {
public:
  explicit Diagnostics(mlir::MLIRContext *context)
      : handler(context, [this](mlir::Diagnostic &diagnostic) {
          if (diagnostic.getSeverity() != mlir::DiagnosticSeverity::Error)
            return mlir::success();
          append("error: ", diagnostic);
          for (mlir::Diagnostic &note : diagnostic.getNotes())
            append("note: ", note);
          return mlir::success();
        }) {}

  [[noreturn]] void raise(llvm::StringRef fallback) const {
    throw CompilerError(text.empty() ? fallback.str() : text);
  }

private:
  void append(llvm::StringRef kind, mlir::Diagnostic &diagnostic) {
    std::string where = describe(diagnostic.getLocation());
    if (!text.empty())
      text += "\n";
    if (!where.empty())
      text += where + ": ";
    text += kind.str() + diagnostic.str();
  }

  std::string text;
  mlir::ScopedDiagnosticHandler handler;
};

/// One module and the context that owns it.
class Module {
public:
  static std::unique_ptr<Module> parse(const std::string &text, const std::string &fileName) {
    if (llvm::Error error = alpa::checkNesting(text, fileName))
      throw CompilerError(llvm::toString(std::move(error)));
    mlir::DialectRegistry registry;
    alpa::registerDialects(registry);
    auto result = std::make_unique<Module>();
    result->context = std::make_shared<mlir::MLIRContext>(registry);
    Diagnostics diagnostics(result->context.get());
    nb::gil_scoped_release release;
    result->module = mlir::parseSourceString<mlir::ModuleOp>(
        text, mlir::ParserConfig(result->context.get()), fileName);
    if (!result->module)
      diagnostics.raise("the module could not be parsed");
    return result;
  }

  std::unique_ptr<Module> clone() {
    auto result = std::make_unique<Module>();
    result->context = context;
    result->module = module->clone();
    return result;
  }

  void annotate(const std::string &signatureJson) {
    if (llvm::Error error = alpa::annotateSignature(*module, signatureJson))
      throw CompilerError(llvm::toString(std::move(error)));
  }

  void runPipeline(const std::string &pipeline) {
    Diagnostics diagnostics(context.get());
    nb::gil_scoped_release release;
    std::string problem;
    llvm::raw_string_ostream os(problem);
    mlir::PassManager manager(context.get());
    if (mlir::failed(mlir::parsePassPipeline(pipeline, manager, os)))
      throw CompilerError("bad pass pipeline `" + pipeline + "`: " + problem);
    if (mlir::failed(manager.run(*module)))
      diagnostics.raise("a pass failed without saying why");
  }

  /// Numbers that the search left on the module, and how many stages it made.
  std::map<std::string, double> predicted() {
    std::map<std::string, double> numbers;
    if (auto found = (*module)->getAttrOfType<mlir::DictionaryAttr>(alpa::attr::predicted))
      for (mlir::NamedAttribute entry : found) {
        if (auto real = mlir::dyn_cast<mlir::FloatAttr>(entry.getValue()))
          numbers[entry.getName().str()] = real.getValueAsDouble();
        else if (auto integer = mlir::dyn_cast<mlir::IntegerAttr>(entry.getValue()))
          numbers[entry.getName().str()] = double(integer.getInt());
      }
    auto stages = (*module)->getAttrOfType<mlir::ArrayAttr>(alpa::attr::stages);
    if (!stages)
      return numbers;
    numbers["stages"] = double(stages.size());
    double &peak = numbers["peak_bytes"], &again = numbers["rematerialized_stages"];
    for (auto stage : stages.getAsRange<alpa::StageAttr>())
      if (mlir::DictionaryAttr found = stage.getPredicted()) {
        if (auto bytes = found.getAs<mlir::IntegerAttr>("peak_bytes"))
          peak = std::max(peak, double(bytes.getInt()));
        if (auto layers = found.getAs<mlir::IntegerAttr>("rematerialized_layers"))
          again += layers.getInt() > 0;
      }
    return numbers;
  }

  std::string chosenSchedule() {
    auto name = (*module)->getAttrOfType<mlir::StringAttr>(alpa::attr::schedule);
    return name ? name.str() : "";
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
    llvm::Expected<alpa::ExportedPlan> plan = alpa::exportPlan(*module);
    if (!plan)
      throw CompilerError(llvm::toString(plan.takeError()));
    return {std::move(plan->json), std::move(plan->files)};
  }

private:
  std::shared_ptr<mlir::MLIRContext> context; // Shared with clones.
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

std::string checkCluster(const std::string &nameOrPath, const std::string &yaml) {
  llvm::Expected<alpa::Cluster> cluster =
      yaml.empty() ? alpa::loadCluster(nameOrPath) : alpa::parseCluster(yaml, nameOrPath);
  if (!cluster)
    throw CompilerError(llvm::toString(cluster.takeError()));
  return alpa::printCluster(*cluster);
}

std::vector<std::string> clusterPresets() {
  std::vector<std::string> names;
  for (llvm::StringRef name : alpa::clusterPresets())
    names.push_back(name.str());
  return names;
}

using NamedTexts = std::vector<std::pair<std::string, std::string>>;

NamedTexts describeMethods(llvm::ArrayRef<alpa::MethodInfo> table) {
  NamedTexts methods;
  for (const alpa::MethodInfo &info : table)
    methods.emplace_back(info.name.str(), info.description.str());
  return methods;
}

NamedTexts shardingMethods() { return describeMethods(alpa::methodTable()); }
NamedTexts pipelineMethods() { return describeMethods(alpa::pipelineMethodTable()); }

} // namespace

NB_MODULE(_native, m) {
  alpa::registerPasses();
  nb::exception<CompilerError>(m, "CompilerError");
  nb::class_<Module>(m, "Module")
      .def("clone", &Module::clone)
      .def("annotate", &Module::annotate, nb::arg("signature_json"))
      .def("run_pipeline", &Module::runPipeline, nb::arg("pipeline"))
      .def("predicted", &Module::predicted)
      .def("chosen_schedule", &Module::chosenSchedule)
      .def("to_text", &Module::toText, nb::arg("generic") = false, nb::arg("debug_info") = false)
      .def("export_plan", &Module::exportPlan);
  m.def("parse_module", &Module::parse, nb::arg("text"), nb::arg("file_name") = "<module>");
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
