//===- ForwardUnits.h - the equations of the forward computation -*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_LAYERS_FORWARDUNITS_H
#define ALPA_COMPILER_STAGE_LAYERS_FORWARDUNITS_H

#include "compiler/Stage/Layers/LayerDp.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace alpa {

/// The forward ops of a step in groups of one equation each, in the order in
/// which layers are cut. That is the order of equations, but what is made of
/// state alone (a weight in another precision, a random key) comes right before
/// the equation that first reads it, so that it does not cross layers.
struct ForwardUnits {
  LayerProblem problem;
  std::vector<llvm::SmallVector<mlir::Operation *>> ops; // By unit.
  std::vector<int64_t> eqns;                             // By unit.
  std::vector<int64_t>
      places; // By unit, ascending: the equation that it belongs before, or its own.

  bool isMoved(unsigned unit) const { return places[unit] != eqns[unit]; }
};

/// `forward` are the forward ops of `main` in program order, with `alpa.eqn`.
ForwardUnits collectForwardUnits(mlir::func::FuncOp main,
                                 llvm::ArrayRef<mlir::Operation *> forward);

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_LAYERS_FORWARDUNITS_H
