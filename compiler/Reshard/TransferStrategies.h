//===- TransferStrategies.h - ways to plan a transfer -----------*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_TRANSFERSTRATEGIES_H
#define ALPA_COMPILER_RESHARD_TRANSFERSTRATEGIES_H

#include "compiler/CostModel/Network.h"
#include "compiler/Reshard/TransferPlan.h"

namespace alpa::reshard {

/// What a strategy starts from.
struct TransferInput {
  const TransferProblem &problem;
  llvm::ArrayRef<TransferPiece> pieces; // commonPieces(problem)
  const cost::Network &network;
};

struct StrategyInfo {
  llvm::StringLiteral name;
  llvm::StringLiteral summary;
  std::vector<PlanStep> (*plan)(const TransferInput &);
};

/// All strategies; a new one needs one entry.
llvm::ArrayRef<StrategyInfo> transferStrategies();
/// "auto, naive, ..", for messages.
std::string transferStrategyNames();
bool isTransferStrategy(llvm::StringRef name);

/// The plan of one strategy; with "auto" that of the strategy that brings the fewest
/// bytes from host to host, and of those the fastest. An error if the problem is not
/// sound, a device is not in the cluster, or there is no such strategy.
llvm::Expected<TransferPlan> planTransfer(const TransferProblem &problem,
                                          const cost::Network &network,
                                          llvm::StringRef strategy = "auto");

// Naive.cpp, LocalAllGather.cpp, Broadcast.cpp
std::vector<PlanStep> planNaive(const TransferInput &input);
std::vector<PlanStep> planLocalAllGather(const TransferInput &input);
std::vector<PlanStep> planBroadcast(const TransferInput &input);

/// Seconds that the links are given so far; picks the one that is done first.
class LinkLoads {
public:
  explicit LinkLoads(const cost::Network &network)
      : network(network), seconds(network.numLinks()) {}

  void add(unsigned link, double bytes) { seconds[link] += bytes * network.secondsPerByteOf(link); }
  void add(const cost::Hop &hop, double bytes) {
    for (unsigned link : hop.links())
      add(link, bytes);
  }
  double operator[](unsigned link) const { return seconds[link]; }

private:
  const cost::Network &network;
  std::vector<double> seconds;
};

/// The holder that a device should get something from: one on its own host if there
/// is any, and of those the one whose link is free first.
int64_t pickHolder(llvm::ArrayRef<int64_t> holders, int64_t receiver, const cost::Network &network,
                   const LinkLoads &loads);

/// Devices by host, hosts in the order in which they come first.
std::vector<llvm::SmallVector<int64_t, 4>> byHost(llvm::ArrayRef<int64_t> devices,
                                                  const cost::Network &network);

/// As many parts along one dimension, nearly equal; nothing if no dimension is long
/// enough. Equal parts are preferred, then outer dimensions.
std::optional<std::vector<Box>> splitBox(const Box &box, int64_t parts);

} // namespace alpa::reshard

#endif // ALPA_COMPILER_RESHARD_TRANSFERSTRATEGIES_H
