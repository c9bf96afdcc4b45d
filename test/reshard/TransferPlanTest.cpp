//===- TransferPlanTest.cpp - plans against their definition --------------===//
//
// Loads against the bound by subsets, links against those of transferPath, and plans
// of random transfers, element by element.
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/Network.h"
#include "compiler/Reshard/LinkBalance.h"
#include "compiler/Reshard/PlanCache.h"

#include "test/Check.h"

#include <cmath>
#include <map>
#include <random>
#include <set>

using namespace alpa;
using namespace alpa::reshard;
using cost::Cluster;
using cost::Network;

static bool isClose(double a, double b) {
  return std::abs(a - b) <= 1e-5 * std::max(std::abs(a), std::abs(b));
}

static Cluster makeCluster(llvm::ArrayRef<cost::Host> hosts) {
  Cluster cluster;
  cluster.name = "test";
  cluster.deviceTypes.emplace_back();
  cluster.hosts.assign(hosts.begin(), hosts.end());
  cluster.intraHost = {1e11, 3e-6};
  cluster.interHost = {1e10, 2e-5};
  return cluster;
}

static void testLinks() {
  Cluster cluster =
      makeCluster({{0, 3, 2}, {0, 1, 4}, {0, 4, 4, cost::Link{2e10, 1e-6}, cost::Link{3e9, 5e-5}}});
  Network network(cluster);
  CHECK(network.numDevices() == 8);
  for (int64_t a = 0; a < 8; ++a)
    for (int64_t b = 0; b < 8; ++b) {
      if (a == b)
        continue;
      cost::Hop hop = network.hop(a, b);
      cost::TransferPath path = cost::transferPath(network, {a}, {b});
      double slower = std::max(network.secondsPerByteOf(hop.out), network.secondsPerByteOf(hop.in));
      CHECK(isClose(1 / slower, path.bytesPerSecond));
      CHECK(hop.latencySeconds == path.latencySeconds);
      CHECK(hop.leavesHost() == (network.hostOf(a) != network.hostOf(b)));
    }
  // Two devices of the first host share an adapter.
  CHECK(network.adapterOut(0) == network.adapterOut(1));
  CHECK(network.adapterOut(0) != network.adapterOut(2));
  // Half of the bytes each: two senders share an adapter, two have one each.
  CHECK(isClose(transferPath(network, {0, 1}, {3}).bytesPerSecond, 5e9));
  CHECK(isClose(transferPath(network, {0, 2}, {3}).bytesPerSecond, 1e10));
  // Half of the bytes stays in the host of 0; the rest takes its adapter.
  CHECK(isClose(transferPath(network, {0}, {1, 3}).bytesPerSecond, 1e10));
  // A third comes through a quarter of the slowest host's bandwidth.
  CHECK(isClose(transferPath(network, {0}, {1, 3, 4}).bytesPerSecond, 2.25e9));
}

/// Racks of two hosts, the last of one; two adapters for each.
static void testRackLinks() {
  Cluster cluster = makeCluster({{0, 2, 2}, {0, 2, 2}, {0, 2, 2}});
  cluster.racks = cost::Racks{2, 2, {4e9, 1e-4}};
  Network network(cluster);
  for (int64_t a = 0; a < 6; ++a)
    for (int64_t b = 0; b < 6; ++b) {
      if (a == b)
        continue;
      cost::Hop hop = network.hop(a, b);
      bool isFarthest = network.rackOf(a) != network.rackOf(b);
      CHECK(isFarthest == ((a < 4) != (b < 4)) && (hop.links().size() == 4) == isFarthest);
      cost::TransferPath path = cost::transferPath(network, {a}, {b});
      CHECK(isClose(1 / network.secondsPerByteOf(hop), path.bytesPerSecond));
      CHECK(hop.latencySeconds == path.latencySeconds);
      CHECK(!isFarthest || (isClose(path.bytesPerSecond, 2e9) && path.latencySeconds == 1e-4));
    }
  // Both devices of a host use one of their rack's adapters.
  CHECK(network.rackOut(0) == network.rackOut(1) && network.rackOut(0) != network.rackOut(2));
  CHECK(isClose(transferPath(network, {0, 1}, {4, 5}).bytesPerSecond, 2e9));
  CHECK(isClose(transferPath(network, {0, 2}, {4, 5}).bytesPerSecond, 4e9));
}

static void testBalance() {
  auto bytesOf = [](llvm::ArrayRef<LinkDemand> demands, std::vector<double> secondsPerByte) {
    std::vector<double> busy(secondsPerByte.size());
    std::vector<std::map<unsigned, double>> bytes;
    for (const auto &shares : balance(demands, secondsPerByte, busy)) {
      bytes.emplace_back();
      for (const Share &share : shares)
        bytes.back()[share.link] = share.bytes;
    }
    return bytes;
  };
  auto even = bytesOf({{8, {0, 1}}}, {1, 1});
  CHECK(isClose(even[0][0], 4) && isClose(even[0][1], 4));
  auto uneven = bytesOf({{8, {0, 1}}}, {1, 3});
  CHECK(isClose(uneven[0][0], 6) && isClose(uneven[0][1], 2));
  auto uncut = bytesOf({{4, {0, 1}}, {4, {0, 1}}}, {1, 1});
  CHECK(uncut[0].size() == 1 && uncut[1].size() == 1);
  auto forced = bytesOf({{6, {0}}, {2, {0, 1}}}, {1, 1});
  CHECK(forced[1].size() == 1 && isClose(forced[1][1], 2));

  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    unsigned numLinks = 1 + random() % 5, numDemands = 1 + random() % 6;
    std::vector<double> secondsPerByte;
    for (unsigned link = 0; link < numLinks; ++link)
      secondsPerByte.push_back(1 + random() % 3);
    std::vector<LinkDemand> demands(numDemands);
    for (LinkDemand &demand : demands) {
      demand.bytes = random() % 10;
      for (unsigned link = 0; link < numLinks; ++link)
        if (random() % 2 || link == numLinks - 1)
          demand.links.push_back(link);
    }
    std::vector<double> busy(numLinks), loads(numLinks);
    auto shares = balance(demands, secondsPerByte, busy);
    for (size_t d = 0; d < numDemands; ++d) {
      double sum = 0;
      for (const Share &share : shares[d]) {
        CHECK(llvm::is_contained(demands[d].links, share.link));
        sum += share.bytes;
        loads[share.link] += share.bytes * secondsPerByte[share.link];
      }
      CHECK(isClose(sum, demands[d].bytes));
    }
    // What only some links may take keeps them busy at least so long.
    double bound = 0;
    for (unsigned some = 1; some < 1u << numDemands; ++some) {
      double bytes = 0, rate = 0;
      std::set<unsigned> links;
      for (size_t d = 0; d < numDemands; ++d)
        if (some >> d & 1) {
          bytes += demands[d].bytes;
          links.insert(demands[d].links.begin(), demands[d].links.end());
        }
      for (unsigned link : links)
        rate += 1 / secondsPerByte[link];
      bound = std::max(bound, bytes / rate);
    }
    double most = *std::max_element(loads.begin(), loads.end());
    CHECK(most <= bound * (1 + 1e-4) + 1e-9);
  }
}

namespace {

/// A transfer between random meshes of up to eight devices each.
TransferProblem randomProblem(std::mt19937 &random, int64_t numDevices, bool areApart) {
  auto pick = [&](int64_t count) { return int64_t(random() % uint64_t(count)); };
  std::vector<int64_t> devices(numDevices);
  for (int64_t i = 0; i < numDevices; ++i)
    devices[i] = i;
  TransferProblem problem;
  size_t rank = pick(4);
  problem.elementBytes = 1 << pick(4);
  problem.shape.assign(rank, 1);
  size_t used = 0;
  for (MeshTensor *end : {&problem.source, &problem.target}) {
    std::shuffle(devices.begin() + used, devices.end(), random);
    int64_t count = 1;
    size_t left = areApart ? devices.size() / 2 : devices.size();
    for (int64_t axes = 1 + pick(3); axes > 0; --axes) {
      int64_t size = 1 + pick(3);
      if (count * size > int64_t(left))
        size = 1;
      end->meshShape.push_back(size);
      count *= size;
    }
    end->devices.assign(devices.begin() + used, devices.begin() + used + count);
    used = areApart ? used + count : 0;
    end->spec = ShardingSpec::replicated(rank);
    for (unsigned axis = 0; rank > 0 && axis < end->meshShape.size(); ++axis)
      if (pick(3) > 0) {
        size_t dim = pick(rank);
        end->spec.dims[dim].push_back(axis);
        problem.shape[dim] *= end->meshShape[axis];
      }
  }
  for (int64_t &size : problem.shape)
    size *= 1 + pick(3);
  return problem;
}

using Elements = std::set<int64_t>;

Elements elementsOf(const Box &box, llvm::ArrayRef<int64_t> shape) {
  Elements elements;
  for (int64_t i = 0, e = Box::whole(shape).elements(); i < e; ++i) {
    bool isIn = true;
    int64_t rest = i;
    for (size_t dim = shape.size(); dim-- > 0; rest /= shape[dim])
      isIn &= rest % shape[dim] >= box.begin[dim] && rest % shape[dim] < box.end[dim];
    if (isIn)
      elements.insert(i);
  }
  return elements;
}

std::map<int64_t, Elements> elementsOf(const TransferProblem &problem, const MeshTensor &end) {
  std::map<int64_t, Elements> elements;
  for (size_t i = 0; i < end.devices.size(); ++i)
    elements[end.devices[i]] =
        elementsOf(shardOf(problem.shape, end.meshShape, end.spec, int64_t(i)), problem.shape);
  return elements;
}

/// Carries the steps out, and says how many bytes went from host to host.
int64_t checkSteps(const TransferPlan &plan, const TransferProblem &problem,
                   const Network &network) {
  auto held = elementsOf(problem, problem.source), wanted = elementsOf(problem, problem.target);
  struct Tile {
    int64_t device = 0;
    Elements elements;
    bool isGathered = false;
  };
  std::vector<Tile> tiles;
  int64_t slowElements = 0;
  for (const PlanStep &step : plan.steps) {
    CHECK(step.firstTile == int64_t(tiles.size()));
    Elements elements;
    for (int64_t operand : step.operands) {
      CHECK(operand < step.firstTile);
      elements.insert(tiles[operand].elements.begin(), tiles[operand].elements.end());
    }
    if (step.kind == StepKind::Tile)
      elements = elementsOf(step.box, problem.shape);
    CHECK(elements == elementsOf(step.box, problem.shape));
    int64_t from = step.operands.empty() ? -1 : tiles[step.operands.front()].device;
    for (size_t i = 0; i < step.devices.size(); ++i) {
      int64_t device = step.devices[i];
      if (step.kind == StepKind::AllGather) {
        CHECK(tiles[step.operands[i]].device == device);
        CHECK(network.hostOf(device) == network.hostOf(from));
        tiles[step.operands[i]].isGathered = true;
      } else if (step.kind == StepKind::Tile) {
        CHECK(std::includes(held[device].begin(), held[device].end(), elements.begin(),
                            elements.end()));
      } else {
        CHECK(device != from);
        if (network.hostOf(device) != network.hostOf(from))
          slowElements += int64_t(elements.size());
        from = device;
      }
      tiles.push_back({device, elements, false});
    }
  }
  for (auto &[device, shard] : wanted) {
    Elements got;
    size_t count = 0;
    for (const Tile &tile : tiles)
      if (tile.device == device && !tile.isGathered && shard.count(*tile.elements.begin())) {
        got.insert(tile.elements.begin(), tile.elements.end());
        count += tile.elements.size();
      }
    CHECK(got == shard);
    CHECK(count == shard.size());
  }
  return slowElements * problem.elementBytes;
}

int64_t leastSlowBytes(const TransferProblem &problem, const Network &network) {
  std::map<int64_t, Elements> held, wanted; // By host.
  for (auto &[device, elements] : elementsOf(problem, problem.source))
    held[network.hostOf(device)].insert(elements.begin(), elements.end());
  for (auto &[device, elements] : elementsOf(problem, problem.target))
    wanted[network.hostOf(device)].insert(elements.begin(), elements.end());
  int64_t lacking = 0;
  for (auto &[host, elements] : wanted)
    for (int64_t element : elements)
      lacking += !held[host].count(element);
  return lacking * problem.elementBytes;
}

} // namespace

static void testPlans() {
  std::mt19937 random(2);
  std::map<std::string, int> chosen;
  for (int round = 0; round < 400; ++round) {
    std::vector<cost::Host> hosts;
    int64_t numDevices = 0;
    while (numDevices < 4 || hosts.size() < 2) {
      hosts.push_back({0, 1 + int64_t(random() % 5), 1 + int64_t(random() % 3)});
      numDevices += hosts.back().devices;
    }
    Cluster cluster = makeCluster(hosts);
    // Links so slow that even a few elements are worth cutting.
    cluster.intraHost = {100, 1e-3};
    cluster.interHost = {double(1 + random() % 50), 1e-3};
    Network network(cluster);
    TransferProblem problem = randomProblem(random, numDevices, round % 2);
    int64_t least = leastSlowBytes(problem, network);
    double fastest = 0;
    std::vector<std::string> strategies = {"auto"};
    for (const StrategyInfo &info : transferStrategies())
      strategies.push_back(info.name.str());
    for (const std::string &strategy : strategies) {
      llvm::Expected<TransferPlan> plan = planTransfer(problem, network, strategy);
      if (!plan) {
        llvm::errs() << llvm::toString(plan.takeError()) << "\n";
        ++failures;
        continue;
      }
      int64_t slowBytes = checkSteps(*plan, problem, network);
      CHECK(plan->slowBytes == slowBytes);
      CHECK(slowBytes >= least);
      if (strategy != "naive")
        CHECK(slowBytes == least);
      if (strategy == "auto") {
        fastest = plan->seconds;
        ++chosen[plan->strategy];
      } else if (slowBytes == least) {
        CHECK(fastest <= plan->seconds * (1 + 1e-9));
      }
    }
  }
  CHECK(chosen.size() == transferStrategies().size()); // Each wins somewhere.
}

/// The same transfer between other hosts is taken from the cache, renamed.
static void testCache() {
  std::mt19937 random(3);
  std::vector<cost::Host> hosts(6, {0, 4, 2});
  hosts[2] = {0, 4, 1}; // Of another kind.
  Cluster cluster = makeCluster(hosts);
  Network network(cluster);
  PlanCache cache(cluster, "auto");
  for (int round = 0; round < 50; ++round) {
    TransferProblem problem = randomProblem(random, 8, round % 2);
    for (int64_t shift : {0, 8, 16}) {
      TransferProblem moved = problem;
      for (MeshTensor *end : {&moved.source, &moved.target})
        for (int64_t &device : end->devices)
          device += shift;
      llvm::Expected<TransferPlan> plan = cache.plan(moved);
      llvm::Expected<TransferPlan> anew = planTransfer(moved, network);
      CHECK(bool(plan) && bool(anew));
      checkSteps(*plan, moved, network);
      CHECK(isClose(plan->seconds, anew->seconds) || plan->seconds == anew->seconds);
      CHECK(plan->slowBytes == anew->slowBytes);
    }
  }
}

static void testErrors() {
  Network network(makeCluster({{0, 4, 1}}));
  TransferProblem good;
  good.shape = {6};
  good.elementBytes = 4;
  good.source = {{2}, {0, 1}, ShardingSpec::replicated(1)};
  good.target = {{2}, {2, 3}, ShardingSpec::replicated(1)};
  auto message = [&](auto spoil) {
    TransferProblem bad = good;
    spoil(bad);
    llvm::Expected<TransferPlan> plan = planTransfer(bad, network);
    return plan ? std::string("no error") : llvm::toString(plan.takeError());
  };
  CHECK(message([](TransferProblem &) {}) == "no error");
  CHECK(message([](TransferProblem &p) { p.shape = {-1}; }) == "a dimension of size -1");
  CHECK(message([](TransferProblem &p) { p.elementBytes = 0; }) == "elements of 0 bytes");
  CHECK(message([](TransferProblem &p) {
          p.shape = {7};
          p.target.spec.dims[0].push_back(0);
        }) == "target: dimension 0 of size 7 is not divisible by its 2 pieces");
  CHECK(message([](TransferProblem &p) { p.source.spec.dims[0].push_back(1); }) ==
        "source: the sharding uses mesh axis 1, but the mesh has 1 axes");
  CHECK(message([](TransferProblem &p) { p.source.spec.dims[0] = {0, 0}; }) ==
        "source: mesh axis 0 splits twice");
  CHECK(message([](TransferProblem &p) { p.source.spec.dims.clear(); }) ==
        "source: the sharding has 0 entries, the tensor 1 dimensions");
  CHECK(message([](TransferProblem &p) { p.source.spec.unreduced = {0}; }) ==
        "source: sums along mesh axis 0 are not taken yet");
  CHECK(message([](TransferProblem &p) { p.source.meshShape = {}; }) ==
        "source: expected one to three mesh axes, got 0");
  CHECK(message([](TransferProblem &p) { p.source.meshShape = {0}; }) ==
        "source: a mesh axis of size 0");
  CHECK(message([](TransferProblem &p) { p.target.meshShape = {3}; }) ==
        "target: the mesh needs 3 devices, got 2");
  CHECK(message([](TransferProblem &p) { p.target.devices = {2, 2}; }) ==
        "target: device 2 is there twice");
  CHECK(message([](TransferProblem &p) { p.target.devices = {2, 4}; }) ==
        "device 4 is not in a cluster of 4 devices");
}

int main() {
  testLinks();
  testRackLinks();
  testBalance();
  testPlans();
  testCache();
  testErrors();
  llvm::outs() << (failures ? "failed\n" : "all passed\n");
  return failures != 0;
}
