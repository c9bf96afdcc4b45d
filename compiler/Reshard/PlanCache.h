//===- PlanCache.h - equal transfers are planned once ------------*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_PLANCACHE_H
#define ALPA_COMPILER_RESHARD_PLANCACHE_H

#include "compiler/Reshard/TransferStrategies.h"

#include <map>

namespace alpa::reshard {

/// Transfers between the stages of a pipeline are alike but for the hosts that they
/// lie on: a plan is taken over if hosts, places on them and racks correspond.
class PlanCache {
public:
  PlanCache(const cost::Cluster &cluster, llvm::StringRef strategy)
      : cluster(cluster), network(cluster), strategy(strategy), kinds(cluster.kindOfHosts()) {}

  llvm::Expected<TransferPlan> plan(const TransferProblem &problem);

private:
  std::string keyOf(const TransferProblem &problem) const;

  const cost::Cluster &cluster;
  cost::Network network;
  std::string strategy;
  std::vector<unsigned> kinds; // Of hosts.
  struct Entry {
    llvm::SmallVector<int64_t> devices; // That the plan is for.
    TransferPlan plan;
  };
  std::map<std::string, Entry> entries;
};

} // namespace alpa::reshard

#endif // ALPA_COMPILER_RESHARD_PLANCACHE_H
