//===- TransferStrategies.cpp - ways to plan a transfer -------------------===//

#include "compiler/Reshard/TransferStrategies.h"

#include "compiler/Reshard/Timing.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"

using llvm::Twine;
using namespace alpa;
using namespace alpa::reshard;

//===----------------------------------------------------------------------===//
// Every device fetches what it wants
//===----------------------------------------------------------------------===//

std::vector<PlanStep> reshard::planNaive(const TransferInput &input) {
  const auto &[problem, pieces, network] = input;
  PlanBuilder builder;
  LinkLoads loads(network);
  for (const TransferPiece &piece : pieces) {
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

//===----------------------------------------------------------------------===//
// Ways to plan a transfer
//===----------------------------------------------------------------------===//

llvm::ArrayRef<StrategyInfo> reshard::transferStrategies() {
  static const StrategyInfo strategies[] = {
      {"broadcast", "each part goes to all that want it on a chain of devices, host by host",
       planBroadcast},
      {"local-allgather", "devices of a host that want the same get a part each, then gather",
       planLocalAllGather},
      {"naive", "each device gets everything that it wants straight from one that holds it",
       planNaive}};
  return strategies;
}

std::string reshard::transferStrategyNames() {
  std::string names = "auto";
  for (const StrategyInfo &info : transferStrategies())
    names += (", " + info.name).str();
  return names;
}

bool reshard::isTransferStrategy(llvm::StringRef name) {
  return name == "auto" || llvm::any_of(transferStrategies(), [&](const StrategyInfo &info) {
           return info.name == name;
         });
}

llvm::Expected<TransferPlan> reshard::planTransfer(const TransferProblem &problem,
                                                   const cost::Network &network,
                                                   llvm::StringRef strategy) {
  if (!isTransferStrategy(strategy))
    return llvm::createStringError("there is no strategy `" + Twine(strategy) +
                                   "`; choose one of " + transferStrategyNames());
  if (llvm::Error error = checkProblem(problem))
    return error;
  for (const MeshTensor *end : {&problem.source, &problem.target})
    for (int64_t device : end->devices)
      if (device < 0 || device >= network.numDevices())
        return llvm::createStringError("device " + Twine(device) + " is not in a cluster of " +
                                       Twine(network.numDevices()) + " devices");
  std::vector<TransferPiece> pieces = commonPieces(problem);
  // Nothing is to be chosen, and all strategies say the same.
  if (strategy == "auto" && llvm::all_of(pieces, [](const TransferPiece &piece) {
        return piece.holders.size() == 1 && piece.receivers.size() <= 1;
      }))
    strategy = "naive";
  std::optional<TransferPlan> best;
  for (const StrategyInfo &info : transferStrategies()) {
    if (strategy != "auto" && strategy != info.name)
      continue;
    TransferPlan plan;
    plan.strategy = info.name.str();
    plan.steps = info.plan({problem, pieces, network});
    Timing timing = timePlan(plan.steps, problem, network);
    plan.seconds = timing.seconds;
    plan.slowBytes = timing.slowBytes;
    if (!best ||
        std::pair(plan.slowBytes, plan.seconds) < std::pair(best->slowBytes, best->seconds))
      best = std::move(plan);
  }
  return std::move(*best);
}

int64_t reshard::pickHolder(llvm::ArrayRef<int64_t> holders, int64_t receiver,
                            const cost::Network &network, const LinkLoads &loads) {
  auto rank = [&](int64_t holder) {
    cost::Hop hop = network.hop(holder, receiver);
    return std::tuple(hop.distance, loads[hop.out]);
  };
  return *llvm::min_element(holders, [&](int64_t a, int64_t b) { return rank(a) < rank(b); });
}

std::vector<llvm::SmallVector<int64_t, 4>> reshard::byHost(llvm::ArrayRef<int64_t> devices,
                                                           const cost::Network &network) {
  std::vector<llvm::SmallVector<int64_t, 4>> hosts;
  for (int64_t device : devices) {
    auto same = llvm::find_if(hosts, [&](const auto &host) {
      return network.hostOf(host.front()) == network.hostOf(device);
    });
    if (same == hosts.end())
      same = hosts.emplace(hosts.end());
    same->push_back(device);
  }
  return hosts;
}

std::optional<std::vector<Box>> reshard::splitBox(const Box &box, int64_t parts) {
  std::optional<size_t> along;
  for (size_t dim = box.rank(); dim-- > 0;)
    if (box.size(dim) >= parts &&
        (!along || box.size(dim) % parts == 0 || box.size(*along) % parts != 0))
      along = dim;
  if (parts == 1)
    return std::vector<Box>{box};
  if (!along)
    return std::nullopt;
  std::vector<Box> split(parts, box);
  for (int64_t i = 0; i < parts; ++i) {
    split[i].begin[*along] = box.begin[*along] + box.size(*along) * i / parts;
    split[i].end[*along] = box.begin[*along] + box.size(*along) * (i + 1) / parts;
  }
  return split;
}
