//===- Reshard.cpp - seconds to change a tensor's sharding ----------------===//

#include "compiler/Sharding/Reshard.h"

#include <algorithm>
#include <cmath>
#include <limits>

using namespace alpa;

int64_t alpa::toPicoseconds(double seconds) {
  return static_cast<int64_t>(std::llround(std::min(seconds, 1e5) * 1e12));
}

/// Tries every order of the remaining steps: at most 4! = 24.
static int64_t cheapest(PackedSpec now, PackedSpec to, double fullBytes, const CostModel &model) {
  if (now == to)
    return 0;
  llvm::ArrayRef<int64_t> shape = model.getMesh().shape;
  unsigned numAxes = shape.size();
  double localBytes = fullBytes / now.numPieces(shape);
  int64_t best = std::numeric_limits<int64_t>::max();
  for (unsigned axis = 0; axis < numAxes; ++axis) {
    int source = now.dimOf(axis), target = to.dimOf(axis);
    if (source == target)
      continue;
    double seconds = 0;
    if (target < 0)
      seconds = model.allGatherSeconds(localBytes * shape[axis], axis);
    else if (source >= 0)
      seconds = model.allToAllSeconds(localBytes, axis);
    bool permutes = (source >= 0 && now.hasMinorAxis(axis, source, numAxes)) ||
                    (target >= 0 && now.hasMinorAxis(axis, target, numAxes));
    if (permutes)
      seconds += model.allToAllSeconds(localBytes, axis);
    PackedSpec next = now;
    next.set(axis, target);
    best = std::min(best, toPicoseconds(seconds) + cheapest(next, to, fullBytes, model));
  }
  return best;
}

int64_t alpa::reshardPicoseconds(PackedSpec from, PackedSpec to, double fullBytes,
                                 const CostModel &model) {
  return cheapest(from, to, fullBytes, model);
}
