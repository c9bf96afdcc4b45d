//===- Box.h - rectangular parts of a tensor ---------------------*- C++ -*-===//

#ifndef ALPA_DIALECTS_ALPA_BOX_H
#define ALPA_DIALECTS_ALPA_BOX_H

#include "dialects/Alpa/ShardingSpec.h"

#include <optional>

namespace alpa {

/// From `begin` up to, but not with, `end` in each dimension of a whole tensor. The
/// box of a scalar has no dimensions and one element.
struct Box {
  llvm::SmallVector<int64_t, 4> begin, end;

  static Box whole(llvm::ArrayRef<int64_t> shape);
  static Box at(llvm::ArrayRef<int64_t> offsets, llvm::ArrayRef<int64_t> sizes);

  size_t rank() const { return begin.size(); }
  int64_t size(size_t dim) const { return end[dim] - begin[dim]; }
  llvm::SmallVector<int64_t, 4> sizes() const;
  int64_t elements() const;
  bool contains(const Box &other) const;
  bool operator==(const Box &other) const { return begin == other.begin && end == other.end; }
  bool operator<(const Box &other) const {
    return begin != other.begin ? begin < other.begin : end < other.end;
  }
  /// As plans have it: [0:4,32:64], and [] for a scalar.
  std::string str() const;
};

/// What both have; nothing if that has no elements.
std::optional<Box> intersect(const Box &a, const Box &b);

/// The part of a tensor that a device holds, which is number `index` of its mesh in
/// row-major order. All sizes must be divisible by their pieces.
///
///   shape   mesh    spec     index  box
///   [8, 6]  [2, 2]  [S0, R]  1      [0:4,0:6]
///   [8, 6]  [2, 2]  [S0, R]  2      [4:8,0:6]
///   [8, 6]  [2, 2]  [R, S1]  1      [0:8,3:6]
///   [8, 6]  [2, 2]  [S10,R]  1      [4:6,0:6]   axis 1 is the major one
///   []      [2, 2]  []       3      []
Box shardOf(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> meshShape,
            const ShardingSpec &spec, int64_t index);

} // namespace alpa

#endif // ALPA_DIALECTS_ALPA_BOX_H
