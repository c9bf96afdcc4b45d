//===- NameStack.h - what JAX's name stack says about an op ------*- C++ -*-===//

#ifndef ALPA_COMPILER_IMPORT_NAMESTACK_H
#define ALPA_COMPILER_IMPORT_NAMESTACK_H

#include "mlir/IR/Location.h"
#include "mlir/IR/Operation.h"
#include <optional>

namespace alpa::importer {

enum class NamedPhase {
  None,     // No name stack, or one outside the differentiated function.
  Forward,  // jvp(..)
  Backward, // transpose(jvp(..))
};

struct NameStack {
  NamedPhase phase = NamedPhase::None;
  std::optional<int64_t> eqn;   // From the outermost scope `alpa_eqn_<i>`.
  bool isInnerGradient = false; // Of a gradient that the forward equation has within itself.
};

/// Reads one name, such as "jit(step)/transpose(jvp(alpa_eqn_3))/dot_general".
///
///   name                                  phase
///   jit(f)/jvp(alpa_eqn_3)/add            Forward
///   jit(f)/transpose(jvp(M))/mul          Backward
///   jit(f)/transpose(vmap(jvp(M)))/mul    Backward
///   jit(f)/jvp(alpa_eqn_3)/transpose(jvp())/mul  Forward (a gradient within the loss)
///   jit(f)/transpose                      None (an op named transpose)
///   jit(f)/add                            None
///   jit(f)/alpa_eqn_3/add                 None (nothing is differentiated)
NameStack parseNameStack(llvm::StringRef name);

/// Reads a location. Names in a function do not repeat those of its callers: of
/// nested call sites the outermost one that names a phase or an equation counts, so that
/// a step may be a call of a jitted function, or a gradient's op a call.
NameStack readNameStack(mlir::Location location);

/// Whether the op is the barrier that `alpa_mlir.layer_boundary` leaves in a
/// program: any name of its location says so.
bool isLayerBoundary(mlir::Operation *op);

/// On a barrier of the forward phase: a layer begins here. Import sets it,
/// clustering takes the barrier away.
inline constexpr llvm::StringLiteral kBoundaryAttr = "alpa.boundary";

/// The equation of a loop's body that an op of it stems from, from the outermost scope
/// `alpa_inner<level>_<i>`; bodies of @main's own loops are of level 1.
std::optional<int64_t> readBodyEqn(mlir::Location location, unsigned level);

} // namespace alpa::importer

#endif // ALPA_COMPILER_IMPORT_NAMESTACK_H
