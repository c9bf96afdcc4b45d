//===- Highs.cpp - HiGHS as a back end ------------------------------------===//
//
// The headers come with the Python package highsbox and are needed at build time
// only; the library comes with highspy and is loaded when it is first asked for,
// so that nothing depends on it.
//
//===----------------------------------------------------------------------===//

#include "compiler/Solver/Backends/Backends.h"

#ifndef ALPA_WITH_HIGHS

llvm::Expected<alpa::Solution> alpa::solveByHighs(const Problem &, const SolveOptions &) {
  return llvm::createStringError("this build has no method 'highs'; pip install highsbox and "
                                 "highspy, then configure with -DALPA_WITH_HIGHS=ON");
}

#else

#include "compiler/Solver/Backends/Ilp.h"

#include "interfaces/highs_c_api.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <chrono>
#include <dlfcn.h>
#include <limits>

using namespace alpa;
using namespace alpa::solver;
using llvm::Twine;

static_assert(sizeof(HighsInt) == sizeof(int32_t));

namespace {

/// The functions of the library that are used.
struct Library {
  void *handle = nullptr;
  // clang-format off
#define ALPA_HIGHS_FUNCTIONS(X)                                                                    \
  X(create) X(destroy) X(run) X(passMip) X(setBoolOptionValue) X(setIntOptionValue)                \
  X(setDoubleOptionValue) X(setStringOptionValue) X(getModelStatus) X(getSolution)                 \
  X(getIntInfoValue) X(getDoubleInfoValue) X(getSizeofHighsInt) X(resetGlobalScheduler)
// clang-format on
#define ALPA_DECLARE(name) decltype(&Highs_##name) name = nullptr;
  ALPA_HIGHS_FUNCTIONS(ALPA_DECLARE)
#undef ALPA_DECLARE
};

} // namespace

/// Never unloaded: its threads may outlive a call.
static llvm::Expected<Library> loadLibrary(const std::string &path) {
  std::vector<std::string> places = {ALPA_HIGHS_PLACES, "libhighs.so.1"};
  if (!path.empty())
    places = {path};
  Library library;
  std::string why;
  for (const std::string &place : places) {
    library.handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library.handle)
      break;
    if (const char *reason = dlerror(); reason && why.empty())
      why = reason;
  }
  if (!library.handle)
    return llvm::createStringError(
        "method 'highs' cannot load HiGHS (" + why +
        "); pip install 'alpa-mlir[highs]', or name highspy's libhighs.so.1 (--library)");
#define ALPA_LOAD(name)                                                                            \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(library.handle, "Highs_" #name));  \
  if (!library.name)                                                                               \
    return llvm::createStringError("method 'highs': the library has no function Highs_" #name      \
                                   "; pip install --upgrade highspy");
  ALPA_HIGHS_FUNCTIONS(ALPA_LOAD)
#undef ALPA_LOAD
  return library;
}

namespace {

struct Answer {
  bool infeasible = false;
  std::vector<double> values; // By column; empty if nothing was found.
  double bound = 0;
};

} // namespace

static llvm::Expected<Answer> run(const Library &highs, const IlpModel &model,
                                  const SolveOptions &options, double seconds) {
  void *instance = highs.create();
  llvm::scope_exit cleanUp([&] { highs.destroy(instance); });
  if (highs.getSizeofHighsInt(instance) != sizeof(HighsInt))
    return llvm::createStringError("method 'highs': the library has integers of another size than "
                                   "its headers; pip install highspy");
  bool ok = true;
  auto note = [&](HighsInt status) { ok &= status == kHighsStatusOk; };
  note(highs.setBoolOptionValue(instance, "output_flag", 0));
  note(highs.setDoubleOptionValue(instance, "time_limit", std::max(0.0, seconds)));
  note(highs.setDoubleOptionValue(instance, "mip_rel_gap", options.acceptableGap));
  // Costs are integers: a difference below one is none.
  note(highs.setDoubleOptionValue(instance, "mip_abs_gap", std::min(0.5, 0.99 / model.unit)));
  note(highs.setDoubleOptionValue(instance, "mip_feasibility_tolerance", 1e-9));
  note(highs.setIntOptionValue(instance, "random_seed", options.seed & 0x7fffffff));
  // The scheduler is one per process; it must be made anew for another number.
  highs.resetGlobalScheduler(/*blocking=*/1);
  note(highs.setIntOptionValue(instance, "threads", std::max(1u, options.threads)));
  note(highs.setStringOptionValue(instance, "parallel", options.threads > 1 ? "on" : "off"));
  size_t numColumns = model.costs.size(), numRows = model.rowLower.size();
  std::vector<double> lower(numColumns, 0.0), upper(numColumns, 1.0);
  std::vector<HighsInt> integrality(numColumns, kHighsVarTypeContinuous);
  std::fill_n(integrality.begin(), model.numBinaries, kHighsVarTypeInteger);
  note(highs.passMip(instance, numColumns, numRows, model.columns.size(), kHighsMatrixFormatRowwise,
                     kHighsObjSenseMinimize, 0.0, model.costs.data(), lower.data(), upper.data(),
                     model.rowLower.data(), model.rowUpper.data(), model.rowStarts.data(),
                     model.columns.data(), model.values.data(), integrality.data()));
  if (!ok)
    return llvm::createStringError("HiGHS refuses the problem or an option");
  if (highs.run(instance) == kHighsStatusError)
    return llvm::createStringError("HiGHS failed; use method 'built-in'");

  Answer answer;
  HighsInt status = highs.getModelStatus(instance), found = 0;
  answer.infeasible = status == kHighsModelStatusInfeasible ||
                      status == kHighsModelStatusUnboundedOrInfeasible; // Never unbounded.
  highs.getIntInfoValue(instance, "primal_solution_status", &found);
  highs.getDoubleInfoValue(instance, "mip_dual_bound", &answer.bound);
  if (found == kHighsSolutionStatusFeasible && !answer.infeasible) {
    answer.values.resize(numColumns);
    std::vector<double> columnDuals(numColumns), rows(numRows), rowDuals(numRows);
    highs.getSolution(instance, answer.values.data(), columnDuals.data(), rows.data(),
                      rowDuals.data());
  }
  return answer;
}

llvm::Expected<Solution> solver::solveByHighs(const Problem &problem, const SolveOptions &options) {
  auto start = std::chrono::steady_clock::now();
  auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  llvm::Expected<Library> highs = loadLibrary(options.library);
  if (!highs)
    return highs.takeError();
  llvm::Expected<IlpModel> model = buildIlp(problem);
  if (!model)
    return model.takeError();
  std::vector<unsigned> choices;
  CostSum bound = model->constant;
  bool infeasible = model->impossible;
  if (!infeasible && model->costs.empty())
    choices = model->choices({});
  while (!infeasible && !model->costs.empty()) {
    llvm::Expected<Answer> answer =
        run(*highs, *model, options, options.timeLimitSeconds - options.spentSeconds - seconds());
    if (!answer)
      return answer.takeError();
    infeasible = answer->infeasible;
    bound = std::max(bound, model->lowerBound(answer->bound));
    choices.clear();
    if (!answer->values.empty())
      choices = model->choices(answer->values);
    if (choices.empty() || !model->cutOff(problem, choices))
      break;
  }
  llvm::Expected<Solution> solution =
      checkedSolution(problem, "HiGHS", std::move(choices), bound, infeasible);
  if (solution)
    solution->seconds = seconds();
  return solution;
}

#endif // ALPA_WITH_HIGHS
