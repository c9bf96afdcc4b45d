//===- Box.cpp - rectangular parts of a tensor ----------------------------===//

#include "dialects/Alpa/Box.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;

Box Box::whole(llvm::ArrayRef<int64_t> shape) {
  Box box;
  box.begin.assign(shape.size(), 0);
  box.end.assign(shape.begin(), shape.end());
  return box;
}

Box Box::at(llvm::ArrayRef<int64_t> offsets, llvm::ArrayRef<int64_t> sizes) {
  Box box;
  box.begin.assign(offsets.begin(), offsets.end());
  for (auto [offset, size] : llvm::zip_equal(offsets, sizes))
    box.end.push_back(offset + size);
  return box;
}

llvm::SmallVector<int64_t, 4> Box::sizes() const {
  llvm::SmallVector<int64_t, 4> sizes;
  for (size_t dim = 0; dim < rank(); ++dim)
    sizes.push_back(size(dim));
  return sizes;
}

int64_t Box::elements() const {
  int64_t elements = 1;
  for (size_t dim = 0; dim < rank(); ++dim)
    elements *= size(dim);
  return elements;
}

bool Box::contains(const Box &other) const {
  for (size_t dim = 0; dim < rank(); ++dim)
    if (other.begin[dim] < begin[dim] || other.end[dim] > end[dim])
      return false;
  return true;
}

std::string Box::str() const {
  std::string text = "[";
  for (size_t dim = 0; dim < rank(); ++dim)
    text += (dim ? "," : "") + std::to_string(begin[dim]) + ":" + std::to_string(end[dim]);
  return text + "]";
}

std::optional<Box> alpa::intersect(const Box &a, const Box &b) {
  Box common;
  for (size_t dim = 0; dim < a.rank(); ++dim) {
    common.begin.push_back(std::max(a.begin[dim], b.begin[dim]));
    common.end.push_back(std::min(a.end[dim], b.end[dim]));
    if (common.begin[dim] >= common.end[dim])
      return std::nullopt;
  }
  return common;
}

Box alpa::shardOf(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> meshShape,
                  const ShardingSpec &spec, int64_t index) {
  llvm::SmallVector<int64_t, 3> place(meshShape.size());
  for (size_t axis = meshShape.size(); axis-- > 0; index /= meshShape[axis])
    place[axis] = index % meshShape[axis];
  Box box;
  for (auto [size, axes] : llvm::zip_equal(shape, spec.dims)) {
    int64_t piece = 0, pieces = 1;
    for (unsigned axis : axes) {
      piece = piece * meshShape[axis] + place[axis];
      pieces *= meshShape[axis];
    }
    box.begin.push_back(size / pieces * piece);
    box.end.push_back(size / pieces * (piece + 1));
  }
  return box;
}
