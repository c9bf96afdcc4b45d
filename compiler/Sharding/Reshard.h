//===- Reshard.h - seconds to change a tensor's sharding ---------*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_RESHARD_H
#define ALPA_COMPILER_SHARDING_RESHARD_H

#include "compiler/CostModel/CostModel.h"
#include "compiler/Sharding/PackedSpec.h"

namespace alpa {

/// Costs are compared exactly, so they are whole picoseconds.
int64_t toPicoseconds(double seconds);
inline double toSeconds(double picoseconds) { return picoseconds * 1e-12; }

/// Time of the cheapest order of steps, one per axis that changes:
///   R  -> Sa   every device keeps its slice      nothing
///   Sa -> R    all-gather over a                 from bytes / pieces to more
///   Sa -> Sa'  all-to-all over a                 (another dimension)
/// A step on an axis that is not the minor one of its dimension also has to
/// permute the pieces, because all-gather and slice work on neighbours only.
int64_t reshardPicoseconds(PackedSpec from, PackedSpec to, double fullBytes,
                           const CostModel &model);

} // namespace alpa

#endif // ALPA_COMPILER_SHARDING_RESHARD_H
