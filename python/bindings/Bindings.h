//===- Bindings.h - the parts of the native module ---------------*- C++ -*-===//

#ifndef ALPA_PYTHON_BINDINGS_BINDINGS_H
#define ALPA_PYTHON_BINDINGS_BINDINGS_H

#include <nanobind/nanobind.h>
#include <stdexcept>

/// Becomes the Python exception of the same name; the text is diagnostics.
struct CompilerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Problems, their solvers, and their form as integer programs (Solver.cpp).
void bindSolver(nanobind::module_ &m);
/// Plans of transfers between meshes (Reshard.cpp).
void bindReshard(nanobind::module_ &m);

/// The table of schedules, and their steps (Schedules.cpp).
void bindSchedules(nanobind::module_ &m);

#endif // ALPA_PYTHON_BINDINGS_BINDINGS_H
