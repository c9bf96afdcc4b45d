//===- ShardingSpec.cpp - which mesh axes split which dimension -----------===//

#include "dialects/Alpa/ShardingSpec.h"

#include "llvm/ADT/STLExtras.h"

bool alpa::ShardingSpec::isReplicated() const {
  return unreduced.empty() && llvm::all_of(dims, [](const auto &axes) { return axes.empty(); });
}

int64_t alpa::ShardingSpec::numPieces(llvm::ArrayRef<int64_t> meshShape) const {
  int64_t pieces = 1;
  for (const auto &axes : dims)
    for (unsigned axis : axes)
      pieces *= meshShape[axis];
  return pieces;
}

std::string alpa::ShardingSpec::str() const {
  std::string text = "[";
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    if (dim)
      text += ", ";
    if (dims[dim].empty()) {
      text += "R";
      continue;
    }
    text += "S";
    for (unsigned axis : dims[dim])
      text += std::to_string(axis);
  }
  text += "]";
  for (size_t i = 0; i < unreduced.size(); ++i)
    text += (i ? "" : " unreduced ") + std::to_string(unreduced[i]);
  return text;
}
