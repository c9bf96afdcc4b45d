//===- Broadcast.cpp - chains of devices, host by host --------------------===//
//
// After Zhuang et al., "On Optimizing the Communication of Model Parallelism" (MLSys
// 2023): a part that many devices want leaves its holder once, and goes on from host
// to host and inside each host from device to device, in chunks. So a link of the
// chain carries it once, and all of them work at the same time.
//
//===----------------------------------------------------------------------===//

#include "compiler/Reshard/Fragments.h"
#include "compiler/Reshard/TransferStrategies.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>

using namespace alpa;
using namespace alpa::reshard;

namespace {

constexpr double kFill = 0.02;      // Of all seconds: what the first chunk may take to get through.
constexpr double kBranch = 0.85;    // Of all seconds: up to which a link may serve more chains.
constexpr double kLeastChunk = 0.1; // Of a latency.
constexpr int64_t kMostChunks = 128;

class BroadcastPlanner {
public:
  explicit BroadcastPlanner(const TransferInput &input)
      : problem(input.problem), pieces(input.pieces), network(input.network),
        busy(network.numLinks()) {}

  std::vector<PlanStep> plan();

private:
  using Chain = llvm::SmallVector<int64_t, 8>;

  void findBound();
  void bring(const Fragment &fragment);
  std::vector<Chain> farChains(const Fragment &fragment, int64_t from, bool mayBranch);
  void bringNear(const Fragment &fragment, const Fragment::Way &way, int64_t relay,
                 llvm::ArrayRef<int64_t> behindIt);
  void send(const Fragment &fragment, int64_t holder, llvm::ArrayRef<int64_t> chain);
  Chain segment(llvm::ArrayRef<int64_t> receivers, int64_t first, bool goesOn);
  int64_t chunksFor(int64_t holder, llvm::ArrayRef<int64_t> chain, const Box &box) const;
  size_t chainsFrom(unsigned link, double bytes, size_t most) const;

  void give(unsigned link, double bytes) { busy[link] += bytes * network.secondsPerByteOf(link); }

  /// Of devices that use the link, the one that did so least.
  template <typename LinkOf>
  int64_t turn(llvm::ArrayRef<int64_t> devices, unsigned link, LinkOf linkOf) {
    int64_t best = -1;
    for (int64_t device : devices)
      if (linkOf(device) == link && (best < 0 || turns[{device, link}] < turns[{best, link}]))
        best = device;
    return best;
  }

  const TransferProblem &problem;
  llvm::ArrayRef<TransferPiece> pieces;
  const cost::Network &network;
  std::vector<double> busy; // Seconds of links.
  double bound = 0;         // Seconds of the busiest link, if all goes well.
  std::map<std::pair<int64_t, unsigned>, double> turns; // Bytes of a device on a link.
  PlanBuilder builder;
};

/// Rising by seconds; what differs by rounding only keeps its order.
template <typename Items, typename SecondsOf> void sortBy(Items &items, SecondsOf secondsOf) {
  for (auto it = items.begin(); it != items.end(); ++it) {
    auto at = it;
    while (at != items.begin() && secondsOf(*it) < secondsOf(*std::prev(at)) * (1 - 1e-9))
      --at;
    std::rotate(at, it, std::next(it));
  }
}

} // namespace

/// What comes to devices within their hosts counts as well.
void BroadcastPlanner::findBound() {
  llvm::DenseMap<int64_t, double> in;
  for (const TransferPiece &piece : pieces) {
    double bytes = double(problem.bytes(piece.box));
    for (llvm::ArrayRef<int64_t> host : byHost(piece.receivers, network)) {
      bool isNear = llvm::any_of(piece.holders, [&](int64_t holder) {
        return network.hostOf(holder) == network.hostOf(host.front());
      });
      for (int64_t device : host)
        in[device] += isNear ? bytes : bytes * (1 - 1 / double(host.size()));
    }
  }
  for (auto [device, bytes] : in)
    bound = std::max(bound, bytes * network.secondsPerByteOf(network.deviceIn(device)));
  for (double seconds : busy)
    bound = std::max(bound, seconds);
}

/// What a chunk takes through all links but the slowest falls with the number of chunks; less than
/// a part of a latency gains nothing.
int64_t BroadcastPlanner::chunksFor(int64_t holder, llvm::ArrayRef<int64_t> chain,
                                    const Box &box) const {
  double bytes = double(problem.bytes(box));
  double fill = 0, slowest = 0, latency = 0;
  int64_t from = holder;
  for (int64_t device : chain) {
    cost::Hop hop = network.hop(from, device);
    double seconds = bytes * network.secondsPerByteOf(hop);
    fill += seconds;
    slowest = std::max(slowest, seconds);
    latency = std::max(latency, hop.latencySeconds);
    from = device;
  }
  double chunks = std::ceil((fill - slowest) / (kFill * bound));
  if (latency > 0)
    chunks = std::min(chunks, slowest / (kLeastChunk * latency));
  return std::clamp<int64_t>(int64_t(chunks), 1, std::min(kMostChunks, box.elements()));
}

/// One, and more where the link has nothing better to do: shorter chains have fewer latencies.
size_t BroadcastPlanner::chainsFrom(unsigned link, double bytes, size_t most) const {
  double each = bytes * network.secondsPerByteOf(link);
  double room = kBranch * bound - busy[link];
  size_t count = 1;
  while (count < most && room >= each) {
    room -= each;
    ++count;
  }
  return count;
}

void BroadcastPlanner::send(const Fragment &fragment, int64_t holder,
                            llvm::ArrayRef<int64_t> chain) {
  builder.broadcast(builder.cut(holder, fragment.box), chain,
                    chunksFor(holder, chain, fragment.box));
}

/// The receivers on a host, one behind the other. The last hands on to the next host, by the
/// adapter that does least, or to nobody, if it does most already.
BroadcastPlanner::Chain BroadcastPlanner::segment(llvm::ArrayRef<int64_t> receivers, int64_t first,
                                                  bool goesOn) {
  size_t begin = llvm::find(receivers, first) - receivers.begin();
  Chain chain;
  for (size_t i = 0; i < receivers.size(); ++i)
    chain.push_back(receivers[(begin + i) % receivers.size()]);
  if (chain.size() < 3)
    return chain;
  auto rank = [&](int64_t device) {
    return goesOn ? -busy[network.adapterOut(device)] : busy[network.deviceOut(device)];
  };
  auto last = std::max_element(chain.rbegin(), std::prev(chain.rend()),
                               [&](int64_t a, int64_t b) { return rank(a) < rank(b) - 1e-12; });
  std::rotate(std::prev(last.base()), last.base(), chain.end());
  return chain;
}

/// On a host that has a holder. The neighbour that stands at the end of a chain may have more
/// devices behind it, on other hosts.
void BroadcastPlanner::bringNear(const Fragment &fragment, const Fragment::Way &way, int64_t relay,
                                 llvm::ArrayRef<int64_t> behindIt) {
  double bytes = double(problem.bytes(fragment.box));
  auto outOf = [&](int64_t device) { return network.deviceOut(device); };
  int64_t holder = turn(fragment.piece->holders, way.link, outOf);
  turns[{holder, way.link}] += bytes;
  size_t chains = chainsFrom(way.link, bytes, way.receivers.size());
  // Whoever does most stands at the end.
  Chain order(way.receivers.begin(), way.receivers.end());
  auto next = llvm::find_if(order, [&](int64_t device) { return device > holder; });
  std::rotate(order.begin(), next, order.end());
  sortBy(order, [&](int64_t device) { return busy[outOf(device)]; });
  if (relay >= 0) {
    order.erase(llvm::find(order, relay));
    order.push_back(relay);
  }
  size_t last = order.size() - 1;
  for (size_t i = 0; i < chains; ++i) {
    Chain chain;
    for (size_t at = i; at < order.size(); at += chains)
      chain.push_back(order[at]);
    for (int64_t device : llvm::ArrayRef(chain).drop_back())
      give(outOf(device), bytes);
    if (i > 0)
      give(way.link, bytes);
    if (relay >= 0 && last % chains == i)
      chain.append(behindIt.begin(), behindIt.end());
    send(fragment, holder, chain);
  }
}

/// Devices on hosts without a holder, as so many chains.
std::vector<BroadcastPlanner::Chain> BroadcastPlanner::farChains(const Fragment &fragment,
                                                                 int64_t from, bool mayBranch) {
  double bytes = double(problem.bytes(fragment.box));
  // Hosts that are slow, or have much to send, stand at the end.
  llvm::SmallVector<std::pair<double, const Fragment::Way *>> hosts;
  for (const Fragment::Way &way : fragment.far) {
    double least = std::numeric_limits<double>::infinity();
    for (int64_t device : way.receivers) {
      unsigned link = network.adapterOut(device);
      least = std::min(least, busy[link] + bytes * network.secondsPerByteOf(link));
    }
    hosts.emplace_back(least, &way);
  }
  auto next = llvm::find_if(hosts, [&](const auto &host) {
    return network.hostOf(host.second->receivers.front()) > network.hostOf(from);
  });
  std::rotate(hosts.begin(), next, hosts.end());
  sortBy(hosts, [](const auto &host) { return host.first; });
  size_t count = mayBranch ? chainsFrom(fragment.out, bytes, hosts.size()) : 1;
  std::vector<Chain> chains(count);
  for (size_t at = 0; at < hosts.size(); ++at) {
    const Fragment::Way &way = *hosts[at].second;
    auto inOf = [&](int64_t device) { return network.adapterIn(device); };
    int64_t first = turn(way.receivers, way.link, inOf);
    turns[{first, way.link}] += bytes;
    bool goesOn = at + count < hosts.size();
    Chain part = segment(way.receivers, first, goesOn);
    for (int64_t device : llvm::ArrayRef(part).drop_back())
      give(network.deviceOut(device), bytes);
    if (goesOn)
      give(network.adapterOut(part.back()), bytes);
    chains[at % count].append(part.begin(), part.end());
  }
  for (size_t i = 1; i < count; ++i)
    give(fragment.out, bytes);
  return chains;
}

void BroadcastPlanner::bring(const Fragment &fragment) {
  auto outOf = [&](int64_t device) { return network.adapterOut(device); };
  int64_t relay = -1;
  std::vector<Chain> chains;
  if (!fragment.far.empty()) {
    int64_t holder = turn(fragment.piece->holders, fragment.out, outOf);
    if (holder < 0) {
      llvm::SmallVector<int64_t> neighbours;
      for (const Fragment::Way &way : fragment.near)
        neighbours.append(way.receivers.begin(), way.receivers.end());
      relay = turn(neighbours, fragment.out, outOf);
    }
    int64_t from = relay >= 0 ? relay : holder;
    turns[{from, fragment.out}] += double(problem.bytes(fragment.box));
    chains = farChains(fragment, from, relay < 0);
    if (relay < 0)
      for (const Chain &chain : chains)
        send(fragment, holder, chain);
  }
  for (const Fragment::Way &way : fragment.near) {
    bool isBehind = llvm::is_contained(way.receivers, relay);
    bringNear(fragment, way, isBehind ? relay : -1,
              isBehind ? llvm::ArrayRef<int64_t>(chains.front()) : llvm::ArrayRef<int64_t>());
  }
}

std::vector<PlanStep> BroadcastPlanner::plan() {
  std::vector<Fragment> fragments = cutFragments(pieces, problem, network, busy);
  findBound();
  for (const Fragment &fragment : fragments) {
    for (int64_t device : fragment.piece->keepers)
      builder.cut(device, fragment.box);
    bring(fragment);
  }
  return builder.take();
}

std::vector<PlanStep> reshard::planBroadcast(const TransferInput &input) {
  return BroadcastPlanner(input).plan();
}
