//===- Solver.cpp - problems and their solvers as Python objects -----------===//
//
// Costs have more than 64 bits and cross as decimal digits; arrays of numbers
// cross as bytes, which numpy reads in place.
//
//===----------------------------------------------------------------------===//

#include "Bindings.h"
#include "compiler/Solver/Backends/Backends.h"
#include "compiler/Solver/Backends/Ilp.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace alpa;
using solver::Problem;

namespace {

template <typename T> nb::bytes toBytes(const std::vector<T> &values) {
  return nb::bytes(values.data(), values.size() * sizeof(T));
}

nb::dict describe(const solver::Solution &solution) {
  nb::dict result;
  bool none = solution.status == solver::SolveStatus::Infeasible;
  result["status"] = none && solution.isUnknown
                         ? std::string("unknown")
                         : solver::stringifySolveStatus(solution.status).str();
  result["choices"] = solution.choices;
  result["cost"] = solver::toText(solution.objective);
  result["lower_bound"] = solver::toText(solution.lowerBound);
  result["gap"] = solution.gap;
  result["peak_usage_bytes"] = solution.peakUsageBytes;
  result["reason"] = solution.infeasibleReason;
  return result;
}

/// An integer program and the problem it stands for.
class Ilp {
public:
  explicit Ilp(const Problem &problem)
      : problem(problem), model(take(solver::buildIlp(problem), ErrorCode::Solver)) {}

  std::vector<unsigned> choices(const std::vector<double> &values) const {
    return model.choices(values);
  }
  bool cutOff(const std::vector<unsigned> &choices) { return model.cutOff(problem, choices); }
  nb::dict finish(const std::string &solver, const std::vector<unsigned> &choices, double bound,
                  bool provesInfeasible) const {
    return describe(take(solver::checkedSolution(problem, solver, choices, model.lowerBound(bound),
                                                 provesInfeasible),
                         ErrorCode::Solver));
  }

  Problem problem;
  solver::IlpModel model;
};

nb::dict solveProblem(const Problem &problem, const std::string &method, double timeLimitSeconds,
                      double spentSeconds, double gap, unsigned threads, uint64_t seed,
                      const std::string &library) {
  solver::SolveOptions options;
  options.timeLimitSeconds = timeLimitSeconds;
  options.spentSeconds = spentSeconds;
  options.acceptableGap = gap;
  options.threads = threads;
  options.seed = seed;
  options.library = library;
  llvm::Expected<solver::Solution> solution = [&] {
    nb::gil_scoped_release release;
    return solver::solveWith(method, problem, options);
  }();
  return describe(take(std::move(solution), ErrorCode::Solver));
}

Problem parse(const std::string &text) {
  nb::gil_scoped_release release;
  return take(solver::parseProblem(text), ErrorCode::ProblemFormat);
}

std::vector<std::pair<std::string, std::string>> methods() {
  std::vector<std::pair<std::string, std::string>> result;
  for (const solver::Backend &backend : solver::backends())
    result.emplace_back(backend.name.str(), backend.description.str());
  return result;
}

} // namespace

void bindSolver(nb::module_ &m) {
  nb::class_<Problem>(m, "Problem");
  nb::class_<Ilp>(m, "Ilp")
      .def(nb::init<const Problem &>())
      .def_prop_ro("impossible", [](const Ilp &ilp) { return ilp.model.impossible; })
      .def_prop_ro("unit", [](const Ilp &ilp) { return ilp.model.unit; })
      .def_prop_ro("num_binaries", [](const Ilp &ilp) { return ilp.model.numBinaries; })
      .def_prop_ro("costs", [](const Ilp &ilp) { return toBytes(ilp.model.costs); })
      .def_prop_ro("row_lower", [](const Ilp &ilp) { return toBytes(ilp.model.rowLower); })
      .def_prop_ro("row_upper", [](const Ilp &ilp) { return toBytes(ilp.model.rowUpper); })
      .def_prop_ro("row_starts", [](const Ilp &ilp) { return toBytes(ilp.model.rowStarts); })
      .def_prop_ro("columns", [](const Ilp &ilp) { return toBytes(ilp.model.columns); })
      .def_prop_ro("values", [](const Ilp &ilp) { return toBytes(ilp.model.values); })
      .def("choices", &Ilp::choices, nb::arg("values"))
      .def("cut_off", &Ilp::cutOff, nb::arg("choices"))
      .def("finish", &Ilp::finish, nb::arg("solver"), nb::arg("choices"), nb::arg("bound"),
           nb::arg("proves_infeasible"));
  m.def("parse_problem", &parse, nb::arg("text"));
  m.def("solve_problem", &solveProblem, nb::arg("problem"), nb::arg("method"),
        nb::arg("time_limit_seconds"), nb::arg("spent_seconds"), nb::arg("gap"), nb::arg("threads"),
        nb::arg("seed"), nb::arg("library"));
  m.def("solver_methods", &methods, "Names and descriptions of the solvers; the default first.");
}
