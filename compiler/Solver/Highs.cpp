//===- Highs.cpp - HiGHS as a back end ------------------------------------===//
//
// The headers come with the Python package highsbox and are needed at build time
// only; the library comes with highspy and is loaded when it is first asked for,
// so that nothing depends on it.
//
//===----------------------------------------------------------------------===//

#include "compiler/Solver/Backends.h"

#ifndef ALPA_WITH_HIGHS

llvm::Expected<alpa::Solution> alpa::solveByHighs(const Problem &, const SolveOptions &) {
  return llvm::createStringError("this build has no method 'highs'; pip install highsbox and "
                                 "highspy, then configure with -DALPA_WITH_HIGHS=ON");
}

#else

#include "compiler/Solver/Ilp.h"

#include "interfaces/highs_c_api.h"
#include "llvm/ADT/ScopeExit.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>
#include <chrono>
#include <dlfcn.h>
#include <limits>

using namespace alpa;
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
  std::vector<std::string> places = {ALPA_HIGHS_LIBRARY, "libhighs.so.1"};
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
    return llvm::createStringError("method 'highs' cannot load HiGHS (" + why +
                                   "); pip install highspy");
#define ALPA_LOAD(name)                                                                            \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(library.handle, "Highs_" #name));  \
  if (!library.name)                                                                               \
    return llvm::createStringError("method 'highs': the library has no function Highs_" #name      \
                                   "; pip install --upgrade highspy");
  ALPA_HIGHS_FUNCTIONS(ALPA_LOAD)
#undef ALPA_LOAD
  return library;
}

llvm::Expected<Solution> alpa::solveByHighs(const Problem &problem, const SolveOptions &options) {
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
  auto finish = [&](std::vector<unsigned> choices, CostSum bound, bool infeasible) {
    llvm::Expected<Solution> solution =
        checkedSolution(problem, "HiGHS", std::move(choices), bound, infeasible);
    if (solution)
      solution->seconds = seconds();
    return solution;
  };
  if (model->impossible)
    return finish({}, 0, /*infeasible=*/true);
  if (model->costs.empty())
    return finish(model->choices({}), model->constant, /*infeasible=*/false);

  void *instance = highs->create();
  llvm::scope_exit cleanUp([&] { highs->destroy(instance); });
  if (highs->getSizeofHighsInt(instance) != sizeof(HighsInt))
    return llvm::createStringError("method 'highs': the library has integers of another size than "
                                   "its headers; pip install highspy");
  // Costs are integers: a difference below one is none.
  bool ok = true;
  auto note = [&](HighsInt status) { ok &= status == kHighsStatusOk; };
  note(highs->setBoolOptionValue(instance, "output_flag", 0));
  note(highs->setDoubleOptionValue(instance, "time_limit",
                                   std::max(0.0, options.timeLimitSeconds - seconds())));
  note(highs->setDoubleOptionValue(instance, "mip_rel_gap", options.acceptableGap));
  note(highs->setDoubleOptionValue(instance, "mip_abs_gap", std::min(0.5, 0.99 / model->unit)));
  note(highs->setIntOptionValue(instance, "random_seed", options.seed & 0x7fffffff));
  // The scheduler is one per process; it must be made anew for another number.
  highs->resetGlobalScheduler(/*blocking=*/1);
  note(highs->setIntOptionValue(instance, "threads", std::max(1u, options.threads)));
  note(highs->setStringOptionValue(instance, "parallel", options.threads > 1 ? "on" : "off"));
  size_t numColumns = model->costs.size();
  std::vector<double> lower(numColumns, 0.0), upper(numColumns, 1.0);
  std::vector<HighsInt> integrality(numColumns, kHighsVarTypeContinuous);
  std::fill_n(integrality.begin(), model->numBinaries, kHighsVarTypeInteger);
  note(highs->passMip(instance, numColumns, model->rowLower.size(), model->columns.size(),
                      kHighsMatrixFormatRowwise, kHighsObjSenseMinimize, 0.0, model->costs.data(),
                      lower.data(), upper.data(), model->rowLower.data(), model->rowUpper.data(),
                      model->rowStarts.data(), model->columns.data(), model->values.data(),
                      integrality.data()));
  if (!ok)
    return llvm::createStringError("HiGHS refuses the problem or an option");
  if (highs->run(instance) == kHighsStatusError)
    return llvm::createStringError("HiGHS failed; use method 'built-in'");

  HighsInt status = highs->getModelStatus(instance);
  if (status == kHighsModelStatusInfeasible || status == kHighsModelStatusUnboundedOrInfeasible)
    return finish({}, 0, /*infeasible=*/true);
  HighsInt found = 0;
  double bound = 0;
  highs->getIntInfoValue(instance, "primal_solution_status", &found);
  highs->getDoubleInfoValue(instance, "mip_dual_bound", &bound);
  std::vector<unsigned> choices;
  if (found == kHighsSolutionStatusFeasible) {
    std::vector<double> values(numColumns), rows(model->rowLower.size());
    highs->getSolution(instance, values.data(), nullptr, rows.data(), nullptr);
    choices = model->choices(values);
  }
  return finish(std::move(choices), model->lowerBound(bound), /*infeasible=*/false);
}

#endif // ALPA_WITH_HIGHS
