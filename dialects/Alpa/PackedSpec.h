//===- PackedSpec.h - a sharding spec in one word ----------------*- C++ -*-===//
//
// The search compares and looks up specs millions of times. A spec whose
// dimensions list their axes in rising order (S01, never S10) is a map from mesh
// axis to dimension; with at most four axes it fits in 32 bits.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_DIALECTS_ALPA_PACKEDSPEC_H
#define ALPA_DIALECTS_ALPA_PACKEDSPEC_H

#include "dialects/Alpa/ShardingSpec.h"
#include "llvm/ADT/ArrayRef.h"
#include <optional>

namespace alpa {

struct PackedSpec {
  static constexpr unsigned kMaxAxes = 4;
  static constexpr int kMaxRank = 254;
  /// In place of a dimension: over the axis, devices hold terms of a sum.
  static constexpr int kUnreduced = 254;

  uint32_t code = 0; // Eight bits per axis: dimension + 1, 0 for none.

  /// The dimension that `axis` splits, kUnreduced, or -1.
  int dimOf(unsigned axis) const { return static_cast<int>((code >> (8 * axis)) & 255u) - 1; }
  void set(unsigned axis, int dim) {
    code &= ~(255u << (8 * axis));
    code |= static_cast<uint32_t>(dim + 1) << (8 * axis);
  }
  bool operator==(PackedSpec other) const { return code == other.code; }
  bool operator!=(PackedSpec other) const { return code != other.code; }

  bool isUnreduced(unsigned axis) const { return dimOf(axis) == kUnreduced; }
  bool isUnreduced() const { return unreducedAxes() != 0; }
  /// Bit a: unreduced over axis a.
  unsigned unreducedAxes() const {
    unsigned axes = 0;
    for (unsigned axis = 0; axis < kMaxAxes; ++axis)
      axes |= unsigned(isUnreduced(axis)) << axis;
    return axes;
  }
  PackedSpec withoutUnreduced() const {
    PackedSpec spec = *this;
    for (unsigned axis = 0; axis < kMaxAxes; ++axis)
      if (isUnreduced(axis))
        spec.set(axis, -1);
    return spec;
  }

  /// Pieces of the whole tensor, and of one dimension.
  int64_t numPieces(llvm::ArrayRef<int64_t> meshShape) const;
  int64_t numPieces(int dim, llvm::ArrayRef<int64_t> meshShape) const;
  /// Whether an axis after `axis` splits the same dimension `dim`.
  bool hasMinorAxis(unsigned axis, int dim, unsigned numAxes) const;

  ShardingSpec unpack(size_t rank, unsigned numAxes) const;
  /// The way back; nothing if a dimension lists its axes out of order.
  static std::optional<PackedSpec> pack(const ShardingSpec &spec);
};

/// Every spec of a tensor whose pieces are even; axes of size 1 are not used.
llvm::SmallVector<PackedSpec> allSpecs(llvm::ArrayRef<int64_t> shape,
                                       llvm::ArrayRef<int64_t> meshShape);

} // namespace alpa

#endif // ALPA_DIALECTS_ALPA_PACKEDSPEC_H
