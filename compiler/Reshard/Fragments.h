//===- Fragments.h - parts that balance senders and receivers ----*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_FRAGMENTS_H
#define ALPA_COMPILER_RESHARD_FRAGMENTS_H

#include "compiler/CostModel/Network.h"
#include "compiler/Reshard/TransferProblem.h"

namespace alpa::reshard {

/// A part of a piece, and by which links it leaves its holders and comes to hosts.
struct Fragment {
  struct Way {
    llvm::SmallVector<int64_t, 4> receivers; // Devices of one host.
    unsigned link = 0;                       // That one of them takes it in by, or a holder
                                             // on the host gives it out by.
  };

  const TransferPiece *piece = nullptr;
  Box box;
  llvm::SmallVector<Way, 2> near; // Hosts with a holder: its own link.
  llvm::SmallVector<Way, 2> far;  // Hosts without: the adapter it comes in by.
  unsigned out = 0;               // The adapter that it goes far by: of a holder or its neighbour.
};

/// Cuts pieces such that, with each part on one link at either end, links are loaded
/// as evenly as they can be. `busy` gets the seconds of these links.
std::vector<Fragment> cutFragments(llvm::ArrayRef<TransferPiece> pieces,
                                   const TransferProblem &problem, const cost::Network &network,
                                   std::vector<double> &busy);

} // namespace alpa::reshard

#endif // ALPA_COMPILER_RESHARD_FRAGMENTS_H
