//===- PlacementTest.cpp - submeshes on hosts -----------------------------===//
//
// Theorem 1 of the Alpa paper for random sizes, and neighbours on one host against
// all ways to place them.
//
//===----------------------------------------------------------------------===//

#include "compiler/Stage/Time/Placement.h"

#include "test/Check.h"

#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

using namespace alpa;
using namespace alpa::stage;
using cost::Submesh;

namespace {

using Devices = std::vector<std::vector<int64_t>>;

struct Random {
  std::mt19937 rng{3};
  int64_t operator()(int64_t lo, int64_t hi) {
    return std::uniform_int_distribution<int64_t>(lo, hi)(rng);
  }
};

std::vector<unsigned> hostOfDevices(const std::vector<int64_t> &hosts) {
  std::vector<unsigned> hostOf;
  for (unsigned h = 0; h < hosts.size(); ++h)
    hostOf.insert(hostOf.end(), hosts[h], h);
  return hostOf;
}

/// Each device once, and so many on so many hosts of the right kind as asked for.
bool isPlacement(const std::vector<int64_t> &hosts, const std::vector<unsigned> &kinds,
                 const std::vector<Submesh> &submeshes, const Devices &devices) {
  std::vector<unsigned> hostOf = hostOfDevices(hosts);
  std::set<int64_t> all;
  size_t count = 0;
  for (size_t i = 0; i < submeshes.size(); ++i) {
    std::map<unsigned, int64_t> onHost;
    for (int64_t device : devices[i])
      ++onHost[hostOf[device]];
    all.insert(devices[i].begin(), devices[i].end());
    count += devices[i].size();
    if (int64_t(onHost.size()) != submeshes[i].hosts)
      return false;
    for (auto [host, number] : onHost)
      if (number != submeshes[i].devicesPerHost ||
          !submeshes[i].fitsKind(kinds.empty() ? 0 : int(kinds[host])))
        return false;
  }
  return all.size() == count;
}

double saved(const std::vector<int64_t> &hosts, const std::vector<double> &savings,
             const Devices &devices) {
  std::vector<unsigned> hostOf = hostOfDevices(hosts);
  double sum = 0;
  for (size_t i = 0; i + 1 < devices.size(); ++i)
    if (hostOf[devices[i].front()] == hostOf[devices[i + 1].front()])
      sum += savings[i];
  return sum;
}

/// Parts of hosts on hosts in every way; the most that neighbours save.
double mostSaved(const std::vector<int64_t> &hosts, const std::vector<Submesh> &submeshes,
                 const std::vector<double> &savings) {
  std::vector<int64_t> left = hosts;
  std::vector<size_t> hostOf(submeshes.size());
  double best = -1;
  std::function<void(size_t, double)> place = [&](size_t i, double sum) {
    if (i == submeshes.size()) {
      best = std::max(best, sum);
      return;
    }
    for (size_t h = 0; h < hosts.size(); ++h) {
      if (left[h] < submeshes[i].devicesPerHost)
        continue;
      left[h] -= submeshes[i].devicesPerHost;
      hostOf[i] = h;
      place(i + 1, sum + (i > 0 && hostOf[i - 1] == h ? savings[i - 1] : 0));
      left[h] += submeshes[i].devicesPerHost;
    }
  };
  place(0, 0);
  return best;
}

/// Powers of two within hosts, and whole hosts, in any order: what adds up to no more
/// than the cluster has, finds room in it.
void testTheorem() {
  Random random;
  for (int round = 0; round < 400; ++round) {
    int64_t perHost = int64_t(1) << random(0, 4), numHosts = random(1, 24);
    std::vector<int64_t> hosts(numHosts, perHost);
    std::vector<Submesh> submeshes;
    int64_t left = perHost * numHosts;
    bool fills = round % 4 != 0;
    while (left > 0 && (fills || random(0, 15) > 0)) {
      Submesh submesh{1, int64_t(1) << random(0, 4)};
      if (random(0, 3) == 0)
        submesh = {random(1, numHosts), perHost};
      if (submesh.devicesPerHost > perHost || submesh.numDevices() > left)
        submesh = {1, 1};
      left -= submesh.numDevices();
      submeshes.push_back(submesh);
    }
    auto placed = placeSubmeshes(hosts, submeshes);
    CHECK(placed && isPlacement(hosts, {}, submeshes, *placed));
    submeshes.push_back({1, 1});
    CHECK(left > 0 || !placeSubmeshes(hosts, submeshes));
  }
}

void testNeighbours() {
  Random random;
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> hosts;
    for (int64_t h = random(1, 3); h > 0; --h)
      hosts.push_back(round % 2 ? 4 : 6);
    std::vector<Submesh> submeshes;
    std::vector<double> savings;
    int64_t left = std::accumulate(hosts.begin(), hosts.end(), int64_t(0));
    while (left > 0 && submeshes.size() < 6) {
      int64_t size = std::min(left, round % 2 ? int64_t(1) << random(0, 1) : random(1, 4));
      submeshes.push_back({1, size});
      savings.push_back(double(random(0, 9)));
      left -= size;
    }
    double most = mostSaved(hosts, submeshes, savings);
    auto placed = placeSubmeshes(hosts, submeshes, {}, savings);
    CHECK(placed.has_value() == (most >= 0));
    if (placed) {
      CHECK(isPlacement(hosts, {}, submeshes, *placed));
      CHECK(saved(hosts, savings, *placed) == most);
    }
  }
}

void testKinds() {
  std::vector<int64_t> hosts = {8, 4, 8, 4};
  std::vector<unsigned> kinds = {0, 1, 2, 1};
  for (std::vector<Submesh> submeshes :
       {std::vector<Submesh>{{2, 4, 1}, {2, 8, Submesh::anyKind}},
        std::vector<Submesh>{{1, 8, Submesh::anyKind}, {1, 4, 1}, {1, 2, 0}, {1, 4, 0}},
        std::vector<Submesh>{{1, 4, Submesh::anyKind}, {1, 4, 1}, {1, 4, 1}, {1, 8, 2}}}) {
    auto placed = placeSubmeshes(hosts, submeshes, kinds);
    CHECK(placed && isPlacement(hosts, kinds, submeshes, *placed));
  }
  CHECK(!placeSubmeshes(hosts, std::vector<Submesh>{{2, 8, 0}}, kinds));
  CHECK(!placeSubmeshes(hosts, std::vector<Submesh>{{1, 8, 0}, {2, 8, Submesh::anyKind}}, kinds));
}

/// Blocks of hosts lie in one rack, as many of whole racks in several, and neighbours in
/// the same one where they can.
void testRacks() {
  std::vector<int64_t> hosts(8, 4), racks = {0, 0, 0, 0, 1, 1, 1, 1};
  auto racksOf = [&](const Devices &devices) {
    std::vector<std::set<int64_t>> found;
    for (const std::vector<int64_t> &mine : devices) {
      auto &set = found.emplace_back();
      for (int64_t device : mine)
        set.insert(racks[device / 4]);
    }
    return found;
  };
  // Side by side they would fit as 3 + 3 + 2 hosts without racks.
  CHECK(placeSubmeshes(hosts, std::vector<Submesh>{{3, 4}, {3, 4}, {2, 4}}));
  CHECK(!placeSubmeshes(hosts, std::vector<Submesh>{{3, 4}, {3, 4}, {2, 4}}, {}, {}, racks));
  CHECK(placeSubmeshes(hosts, std::vector<Submesh>{{6, 4, 0, 2}, {1, 4}, {1, 4}}, {}, {}, racks));
  CHECK(!placeSubmeshes(hosts, std::vector<Submesh>{{6, 4, 0, 2}, {2, 4}}, {}, {}, racks));

  std::vector<Submesh> submeshes = {{1, 4}, {2, 4}, {1, 2}, {1, 2}, {1, 4}, {1, 2}, {1, 2}, {1, 4}};
  auto placed = placeSubmeshes(hosts, submeshes, {}, {}, racks);
  CHECK(placed && isPlacement(hosts, {}, submeshes, *placed));
  if (placed) {
    auto found = racksOf(*placed);
    int together = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i].size() == 1);
      together += i > 0 && found[i] == found[i - 1];
    }
    CHECK(together >= 6); // Seven pairs, one of which has to be apart.
  }
  // Random blocks and parts: each in a rack, whichever order they come in.
  Random random;
  for (int round = 0; round < 300; ++round) {
    std::vector<Submesh> some;
    int64_t left = 32;
    while (left > 0) {
      int64_t size = int64_t(1) << random(0, 5);
      if (size > left)
        continue;
      some.push_back(size <= 4    ? Submesh{1, size}
                     : size <= 16 ? Submesh{size / 4, 4}
                                  : Submesh{8, 4, 0, 2});
      left -= size;
    }
    auto all = placeSubmeshes(hosts, some, {}, {}, racks);
    CHECK(all && isPlacement(hosts, {}, some, *all));
    if (!all)
      continue;
    auto found = racksOf(*all);
    for (size_t i = 0; i < some.size(); ++i)
      CHECK(int64_t(found[i].size()) == some[i].racks);
  }
}

/// As many stages as are planned at most: a good answer, soon.
void testLarge() {
  std::vector<int64_t> hosts(128, 8);
  std::vector<Submesh> submeshes;
  for (int i = 0; i < 96; ++i)
    submeshes.push_back(i % 8 == 7 ? Submesh{3, 8} : Submesh{1, int64_t(1) << i % 4});
  auto placed = placeSubmeshes(hosts, submeshes);
  CHECK(placed && isPlacement(hosts, {}, submeshes, *placed));
}

} // namespace

int main() {
  testTheorem();
  testNeighbours();
  testKinds();
  testRacks();
  testLarge();
  llvm::outs() << (failures ? "failed" : "all passed") << "\n";
  return failures != 0;
}
