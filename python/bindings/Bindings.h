//===- Bindings.h - the parts of the native module ---------------*- C++ -*-===//

#ifndef ALPA_PYTHON_BINDINGS_BINDINGS_H
#define ALPA_PYTHON_BINDINGS_BINDINGS_H

#include "dialects/Common/ErrorCode.h"

#include <exception>
#include <nanobind/nanobind.h>
#include <string>
#include <vector>

/// Becomes the Python exception of the same name, with an attribute for each field.
struct CompilerError : std::exception {
  /// An error without a code gets `otherwise`.
  CompilerError(llvm::Error error, alpa::ErrorCode otherwise)
      : CompilerError(alpa::takeParts(std::move(error), otherwise)) {}
  explicit CompilerError(const alpa::CodedError &parts)
      : code(alpa::stringifyErrorCode(parts.code)), where(parts.where), text(parts.what),
        fix(parts.fix) {}

  const char *what() const noexcept override { return text.c_str(); }

  std::string code;              // One of alpa::errorCodeNames().
  std::string where;             // Of the program, such as `step.py:3:5`.
  std::string file;              // Of that place, if it is one in a file or in a text
  unsigned line = 0, column = 0; // that was read.
  std::string text;              // The cause; `what` in Python.
  std::string fix;               // Empty if there is none.
  std::vector<std::string> notes;
};

/// The value, or its error as an exception.
template <typename T> T take(llvm::Expected<T> value, alpa::ErrorCode otherwise) {
  if (!value)
    throw CompilerError(value.takeError(), otherwise);
  return std::move(*value);
}

/// Problems, their solvers, and their form as integer programs (Solver.cpp).
void bindSolver(nanobind::module_ &m);
/// Plans of transfers between meshes (Reshard.cpp).
void bindReshard(nanobind::module_ &m);

/// The table of schedules, and their steps (Schedules.cpp).
void bindSchedules(nanobind::module_ &m);

#endif // ALPA_PYTHON_BINDINGS_BINDINGS_H
