//===- Naive.cpp - every device fetches what it wants ---------------------===//

#include "compiler/Reshard/Strategies.h"

using namespace alpa;

std::vector<PlanStep> alpa::planNaive(const TransferInput &input) {
  const auto &[problem, pieces, network] = input;
  PlanBuilder builder;
  LinkLoads loads(network);
  for (const Piece &piece : pieces) {
    for (int64_t device : piece.keepers)
      builder.cut(device, piece.box);
    for (int64_t receiver : piece.receivers) {
      int64_t holder = pickHolder(piece.holders, receiver, network, loads);
      loads.add(network.hop(holder, receiver), double(problem.bytes(piece.box)));
      builder.send(builder.cut(holder, piece.box), receiver);
    }
  }
  return builder.take();
}
