//===- StepVariants.h - ways to write the layers of a step -------*- C++ -*-===//
//
// A search may choose for each stage between the layers as they are and the same
// layers computed again for their gradients, with more or fewer of their values kept. All are
// functions while it searches; the plan's layers are then rewritten in @main, and the other
// functions are gone.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_REMAT_STEPVARIANTS_H
#define ALPA_COMPILER_STAGE_REMAT_STEPVARIANTS_H

#include "compiler/Sharding/Methods/ConstraintPins.h"
#include "compiler/Sharding/Methods/Methods.h"
#include "compiler/Stage/Costs/StageCosts.h"
#include "compiler/Stage/Layers/StepLayers.h"
#include "compiler/Stage/Remat/Rematerialize.h"

#include <memory>

namespace alpa::stage {

/// A function with the layers of the step, and what a method leaves of their plans.
struct StepVariant {
  mlir::func::FuncOp function;
  StepLayers layers;
  std::optional<sharding::MethodRoles> roles; // None for the method "auto".
  std::optional<sharding::ConstraintPins> pins;
  std::vector<sharding::PlanFilter> filters; // For each mesh; empty for everything.
  std::shared_ptr<const KnownLayers> known;  // Null before `know`.

  /// Finds which ranges of layers are alike; `allDiffer` says that none are.
  void know(bool allDiffer);
  /// What the method leaves on a mesh, without the program's sharding constraints.
  llvm::Expected<sharding::PlanFilter> freeFilter(llvm::StringRef method,
                                                  const cost::LogicalMesh &mesh) const;

  /// Errors: an op without layer or phase, or a method that does not suit a mesh.
  static llvm::Expected<std::unique_ptr<StepVariant>>
  read(mlir::func::FuncOp function, llvm::StringRef method,
       llvm::ArrayRef<cost::LogicalMesh> meshes);
};

/// What computing layers again saves of what they hold between their phases.
struct RematerializationSavings {
  llvm::SmallVector<bool> layers; // That hold less.
  /// Of all bytes that are held, without the last layer's: its gradients come at once.
  double part = 0;
};
RematerializationSavings findSavings(mlir::func::FuncOp main, unsigned numLayers);

/// A copy of @main beside it in its module.
mlir::func::FuncOp cloneMain(mlir::func::FuncOp main);
/// Has a copy of @main compute these layers again; `kept` are ops of @main.
void rematerializeCopy(mlir::func::FuncOp main, mlir::func::FuncOp copy,
                       llvm::ArrayRef<bool> layers, const KeptOps *kept = nullptr);

} // namespace alpa::stage

#endif // ALPA_COMPILER_STAGE_REMAT_STEPVARIANTS_H
