//===- PackedSpec.cpp - a sharding spec in one word -----------------------===//

#include "dialects/Alpa/PackedSpec.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

int64_t PackedSpec::numPieces(llvm::ArrayRef<int64_t> meshShape) const {
  int64_t pieces = 1;
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (dimOf(axis) >= 0 && !isUnreduced(axis))
      pieces *= meshShape[axis];
  return pieces;
}

int64_t PackedSpec::numPieces(int dim, llvm::ArrayRef<int64_t> meshShape) const {
  int64_t pieces = 1;
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (dimOf(axis) == dim)
      pieces *= meshShape[axis];
  return pieces;
}

bool PackedSpec::hasMinorAxis(unsigned axis, int dim, unsigned numAxes) const {
  for (unsigned other = axis + 1; other < numAxes; ++other)
    if (dimOf(other) == dim)
      return true;
  return false;
}

ShardingSpec PackedSpec::unpack(size_t rank, unsigned numAxes) const {
  ShardingSpec spec = ShardingSpec::replicated(rank);
  for (unsigned axis = 0; axis < numAxes; ++axis)
    if (isUnreduced(axis))
      spec.unreduced.push_back(axis);
    else if (int dim = dimOf(axis); dim >= 0)
      spec.dims[dim].push_back(axis);
  return spec;
}

std::optional<PackedSpec> PackedSpec::pack(const ShardingSpec &spec) {
  PackedSpec packed;
  for (auto [dim, axes] : llvm::enumerate(spec.dims)) {
    if (!llvm::is_sorted(axes) || (!axes.empty() && axes.back() >= kMaxAxes) || dim >= kMaxRank)
      return std::nullopt;
    for (unsigned axis : axes)
      packed.set(axis, static_cast<int>(dim));
  }
  for (unsigned axis : spec.unreduced) {
    if (axis >= kMaxAxes)
      return std::nullopt;
    packed.set(axis, kUnreduced);
  }
  return packed;
}

llvm::SmallVector<PackedSpec> alpa::allSpecs(llvm::ArrayRef<int64_t> shape,
                                             llvm::ArrayRef<int64_t> meshShape) {
  llvm::SmallVector<PackedSpec> specs{PackedSpec{}};
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    if (meshShape[axis] <= 1)
      continue;
    size_t known = specs.size();
    for (size_t i = 0; i < known; ++i) {
      for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
        PackedSpec spec = specs[i];
        int64_t pieces = spec.numPieces(dim, meshShape) * meshShape[axis];
        if (shape[dim] % pieces != 0 || shape[dim] == 0)
          continue;
        spec.set(axis, dim);
        specs.push_back(spec);
      }
    }
  }
  return specs;
}
