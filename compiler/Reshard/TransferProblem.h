//===- TransferProblem.h - what goes from one mesh to another ---*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_TRANSFERPROBLEM_H
#define ALPA_COMPILER_RESHARD_TRANSFERPROBLEM_H

#include "dialects/Alpa/Box.h"

#include "llvm/Support/Error.h"
#include <vector>

namespace alpa::reshard {

/// How a mesh holds a tensor.
struct MeshTensor {
  llvm::SmallVector<int64_t, 3> meshShape;
  llvm::SmallVector<int64_t> devices; // The cluster's numbers, row-major in the mesh.
  ShardingSpec spec;
};

/// A tensor on one mesh that another mesh wants.
struct TransferProblem {
  llvm::SmallVector<int64_t, 4> shape;
  int64_t elementBytes = 1;
  MeshTensor source, target;

  int64_t bytes(const Box &box) const { return box.elements() * elementBytes; }
};

/// What is wrong with a problem that no op was verified for.
llvm::Error checkProblem(const TransferProblem &problem);

/// A box that each device holds all of or nothing of, and wants all of or nothing of.
struct TransferPiece {
  Box box;
  llvm::SmallVector<int64_t, 4> holders;   // Devices of the source mesh that hold it.
  llvm::SmallVector<int64_t, 4> receivers; // Devices that want it and do not hold it.
  llvm::SmallVector<int64_t, 4> keepers;   // Devices that want it and hold it.
};

/// The common refinement of the two partitions of the tensor, row-major.
std::vector<TransferPiece> commonPieces(const TransferProblem &problem);

} // namespace alpa::reshard

#endif // ALPA_COMPILER_RESHARD_TRANSFERPROBLEM_H
