//===- ExplainNames.h - what explanations call ops and values -----*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_EXPLAIN_EXPLAINNAMES_H
#define ALPA_COMPILER_SHARDING_EXPLAIN_EXPLAINNAMES_H

#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "mlir/IR/Operation.h"
#include <optional>
#include <string>

namespace alpa {

const char *phaseName(OpPhase phase);

/// JAX's name for an op (null: the one that makes the value), or the name of an argument.
std::string whereIs(mlir::Value value, mlir::Operation *op);

/// The op's, such as "stablehlo.add", or "argument".
std::string nameOf(mlir::Value value, mlir::Operation *op);

std::optional<int64_t> layerOf(mlir::Operation *op);
/// The layer of the op that makes a value; of an argument the first layer that uses it.
std::optional<int64_t> layerOf(mlir::Value value);

/// "8x64xf32".
std::string typeText(mlir::Type type);
/// "(8x64xf32, 64xf32) -> 8x64xf32".
std::string typesText(mlir::Operation *op);

/// The name of the argument that a value is, in another precision or form; else nothing.
std::string argumentOf(mlir::Value value);

} // namespace alpa

#endif // ALPA_COMPILER_SHARDING_EXPLAIN_EXPLAINNAMES_H
