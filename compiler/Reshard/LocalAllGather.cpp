//===- LocalAllGather.cpp - parts over slow links, the rest over fast -----===//
//
// Section 6 of the Alpa paper (Zheng et al., OSDI 2022): devices of the target mesh
// that want the same get a part of it each, and gather the whole among themselves.
// Here those of one host do so, for a ring across hosts would bring the same bytes
// over slow links several times.
//
//===----------------------------------------------------------------------===//

#include "compiler/Reshard/TransferStrategies.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::reshard;

namespace {

class LocalAllGatherPlanner {
public:
  explicit LocalAllGatherPlanner(const TransferInput &input)
      : problem(input.problem), pieces(input.pieces), network(input.network), loads(network) {}

  std::vector<PlanStep> plan() {
    for (const TransferPiece &piece : pieces) {
      for (int64_t device : piece.keepers)
        builder.cut(device, piece.box);
      for (llvm::ArrayRef<int64_t> host : byHost(piece.receivers, network))
        bring(piece, host);
    }
    return builder.take();
  }

private:
  void bring(const TransferPiece &piece, llvm::ArrayRef<int64_t> receivers);
  int64_t fetch(llvm::ArrayRef<int64_t> holders, const Box &box, int64_t receiver) {
    int64_t holder = pickHolder(holders, receiver, network, loads);
    loads.add(network.hop(holder, receiver), double(problem.bytes(box)));
    return builder.send(builder.cut(holder, box), receiver);
  }

  const TransferProblem &problem;
  llvm::ArrayRef<TransferPiece> pieces;
  const cost::Network &network;
  PlanBuilder builder;
  LinkLoads loads;
};

} // namespace

/// To devices of one host.
void LocalAllGatherPlanner::bring(const TransferPiece &piece, llvm::ArrayRef<int64_t> receivers) {
  llvm::SmallVector<int64_t> near, others;
  llvm::copy_if(piece.holders, std::back_inserter(near), [&](int64_t holder) {
    return network.hostOf(holder) == network.hostOf(receivers.front());
  });
  llvm::ArrayRef<int64_t> holders = near.empty() ? llvm::ArrayRef(piece.holders) : near;
  // What a device keeps is cut on it once and whole: others give away parts.
  llvm::copy_if(holders, std::back_inserter(others),
                [&](int64_t holder) { return !llvm::is_contained(piece.keepers, holder); });
  std::optional<std::vector<Box>> parts;
  if (!others.empty())
    parts = splitBox(piece.box, int64_t(receivers.size()));
  if (receivers.size() == 1) {
    fetch(holders, piece.box, receivers.front());
  } else if (!parts) { // Or it has fewer elements than there are devices.
    builder.broadcast(fetch(holders, piece.box, receivers.front()), receivers.drop_front(), 1);
  } else {
    llvm::SmallVector<int64_t> tiles;
    for (auto [part, device] : llvm::zip_equal(*parts, receivers))
      tiles.push_back(fetch(others, part, device));
    builder.allGather(tiles, piece.box);
  }
}

std::vector<PlanStep> reshard::planLocalAllGather(const TransferInput &input) {
  return LocalAllGatherPlanner(input).plan();
}
