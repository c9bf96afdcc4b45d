//===- LinkBalance.h - even loads of links ----------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_LINKBALANCE_H
#define ALPA_COMPILER_RESHARD_LINKBALANCE_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include <vector>

namespace alpa::reshard {

/// Bytes that may take any of some links, or parts of them each.
struct LinkDemand {
  double bytes = 0;
  llvm::SmallVector<unsigned, 4> links; // Different ones.
};

/// Bytes on a link.
struct Share {
  unsigned link = 0;
  double bytes = 0;
};

/// Spreads demands over links such that the busiest link is done as early as
/// possible, and the others are even where they can be.
///
/// `busy` has the seconds that each link is busy anyway, and those of the demands
/// when the call returns. A demand is cut in as few shares as the loads allow.
///
///   demands                     seconds a byte   shares
///   8 on {0, 1}                 1, 1             4 on 0, 4 on 1
///   8 on {0, 1}                 1, 3             6 on 0, 2 on 1
///   4 on {0, 1}, 4 on {0, 1}    1, 1             4 on 0; 4 on 1
///   6 on {0}, 2 on {0, 1}       1, 1             6 on 0; 2 on 1
std::vector<llvm::SmallVector<Share, 2>> balance(llvm::ArrayRef<LinkDemand> demands,
                                                 llvm::ArrayRef<double> secondsPerByte,
                                                 std::vector<double> &busy);

} // namespace alpa::reshard

#endif // ALPA_COMPILER_RESHARD_LINKBALANCE_H
