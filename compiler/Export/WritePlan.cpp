//===- WritePlan.cpp - plan.json and the stage modules in a folder --------===//

#include "compiler/Export/Passes.h"
#include "compiler/Export/PlanJson.h"

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
