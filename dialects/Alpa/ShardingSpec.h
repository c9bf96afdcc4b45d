//===- ShardingSpec.h - which mesh axes split which dimension ----*- C++ -*-===//

#ifndef ALPA_DIALECTS_ALPA_SHARDINGSPEC_H
#define ALPA_DIALECTS_ALPA_SHARDINGSPEC_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include <cstdint>
#include <string>

namespace alpa {

/// For each tensor dimension the ordered mesh axes that split it, major first.
/// Prints as [S0, R, S01]. An axis of size 1 never appears.
///
/// Over the axes of `unreduced`, rising, the devices hold terms of a sum: what the
/// tensor is only all of them together say. Prints as [R, S0] unreduced 1.
struct ShardingSpec {
  llvm::SmallVector<llvm::SmallVector<unsigned, 2>> dims;
  llvm::SmallVector<unsigned, 2> unreduced;

  static ShardingSpec replicated(size_t rank) {
    ShardingSpec spec;
    spec.dims.resize(rank);
    return spec;
  }
  bool operator==(const ShardingSpec &other) const {
    return dims == other.dims && unreduced == other.unreduced;
  }
  bool operator!=(const ShardingSpec &other) const { return !(*this == other); }
  /// Whether every device holds all of it.
  bool isReplicated() const;
  /// Number of pieces of the tensor on a mesh.
  int64_t numPieces(llvm::ArrayRef<int64_t> meshShape) const;
  std::string str() const;
};

} // namespace alpa

#endif // ALPA_DIALECTS_ALPA_SHARDINGSPEC_H
