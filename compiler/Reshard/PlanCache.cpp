//===- PlanCache.cpp - equal transfers are planned once -------------------===//

#include "compiler/Reshard/PlanCache.h"

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

using namespace alpa;
using namespace alpa::reshard;

static llvm::SmallVector<int64_t> devicesOf(const TransferProblem &problem) {
  llvm::SmallVector<int64_t> devices(problem.source.devices);
  devices.append(problem.target.devices.begin(), problem.target.devices.end());
  return devices;
}

/// Hosts, racks and their adapters are numbered in the order in which the meshes name them.
std::string PlanCache::keyOf(const TransferProblem &problem) const {
  std::string key;
  llvm::raw_string_ostream os(key);
  os << problem.elementBytes << " x";
  for (int64_t size : problem.shape)
    os << ' ' << size;
  llvm::SmallVector<int64_t> firstDevice = {0};
  for (const cost::Host &host : cluster.hosts)
    firstDevice.push_back(firstDevice.back() + host.devices);
  llvm::DenseMap<int64_t, size_t> hosts, racks, rackAdapters;
  auto numberOf = [](llvm::DenseMap<int64_t, size_t> &known, int64_t name) {
    return known.try_emplace(name, known.size()).first->second;
  };
  for (const MeshTensor *end : {&problem.source, &problem.target}) {
    os << " | " << end->spec.str() << " on";
    for (int64_t size : end->meshShape)
      os << ' ' << size;
    os << ':';
    for (int64_t device : end->devices) {
      int64_t host = network.hostOf(device);
      auto [it, isNew] = hosts.try_emplace(host, hosts.size());
      os << ' ' << it->second << '.' << device - firstDevice[host];
      if (isNew)
        os << '/' << kinds[host];
      if (cluster.racks)
        os << '@' << numberOf(racks, network.rackOf(device)) << '.'
           << numberOf(rackAdapters, network.rackAdapterOf(device)) << '/'
           << network.secondsPerByteOf(network.rackOut(device));
    }
  }
  return key;
}

llvm::Expected<TransferPlan> PlanCache::plan(const TransferProblem &problem) {
  llvm::SmallVector<int64_t> devices = devicesOf(problem);
  if (llvm::any_of(devices,
                   [&](int64_t device) { return device < 0 || device >= network.numDevices(); }))
    return planTransfer(problem, network, strategy);
  std::string key = keyOf(problem);
  auto known = entries.find(key);
  if (known == entries.end()) {
    llvm::Expected<TransferPlan> plan = planTransfer(problem, network, strategy);
    if (plan)
      entries.emplace(std::move(key), Entry{std::move(devices), *plan});
    return plan;
  }
  llvm::DenseMap<int64_t, int64_t> renamed;
  for (auto [from, to] : llvm::zip_equal(known->second.devices, devices))
    renamed[from] = to;
  TransferPlan plan = known->second.plan;
  for (PlanStep &step : plan.steps)
    for (int64_t &device : step.devices)
      device = renamed.at(device);
  return plan;
}
