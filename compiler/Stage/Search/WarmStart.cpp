//===- WarmStart.cpp - a search near a plan from before --------------------===//

#include "compiler/Stage/Search/WarmStart.h"

#include "compiler/CostModel/Cluster.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"
#include <cmath>
#include <set>

using namespace alpa;
using namespace alpa::stage;
using cost::Cluster;
using cost::Submesh;

static llvm::Error fail(const llvm::Twine &message) {
  return makeError(ErrorCode::Method, "alpa-search-stages: " + message);
}

namespace {

/// A submesh of another cluster.
struct Shape {
  int64_t hosts = 1, devices = 1;
  llvm::StringRef type; // Of its devices; empty for any.
};

} // namespace

/// Whether a submesh has devices of a type, as far as the cluster knows that.
static bool isOfType(const Cluster &cluster, const Submesh &submesh, llvm::StringRef type) {
  bool isKnown = llvm::any_of(cluster.deviceTypes,
                              [&](const cost::DeviceType &other) { return other.name == type; });
  if (!isKnown || submesh.kind == Submesh::anyKind)
    return true;
  return cluster.deviceTypes[cluster.hostKinds()[submesh.kind].deviceType].name == type;
}

/// Submeshes of a shape; where there is none, those with the nearest numbers of devices.
static std::vector<unsigned> findAlike(const SearchSpace &space, const Cluster &cluster,
                                       const Shape &shape, bool &isExact) {
  std::vector<unsigned> exact, nearest;
  double least = std::numeric_limits<double>::infinity();
  for (auto [index, submesh] : llvm::enumerate(space.submeshes)) {
    if (!isOfType(cluster, submesh, shape.type))
      continue;
    if (submesh.hosts == shape.hosts && submesh.devicesPerHost == shape.devices)
      exact.push_back(index);
    double apart =
        std::abs(std::log(double(submesh.numDevices()) / double(shape.hosts * shape.devices)));
    if (apart < least)
      nearest.clear();
    least = std::min(least, apart);
    if (apart == least)
      nearest.push_back(index);
  }
  isExact = !exact.empty();
  return isExact ? exact : nearest;
}

/// Of the submeshes on hosts of the same kinds, those of the next smaller and the next larger
/// number of devices.
static void addNext(const SearchSpace &space, unsigned like, std::set<unsigned> &kept) {
  const Submesh &own = space.submeshes[like];
  int64_t smaller = 0, larger = std::numeric_limits<int64_t>::max();
  for (const Submesh &other : space.submeshes) {
    if (other.kind != own.kind)
      continue;
    if (other.numDevices() < own.numDevices())
      smaller = std::max(smaller, other.numDevices());
    if (other.numDevices() > own.numDevices())
      larger = std::min(larger, other.numDevices());
  }
  for (auto [index, other] : llvm::enumerate(space.submeshes))
    if (other.kind == own.kind && (other.numDevices() == smaller || other.numDevices() == larger))
      kept.insert(index);
}

/// Where stages end if the layers are as many; in proportion otherwise. Empty if there are fewer
/// layers than stages.
static std::vector<unsigned> cutLike(llvm::ArrayRef<std::pair<unsigned, unsigned>> ranges,
                                     unsigned numLayers) {
  if (ranges.size() > numLayers)
    return {};
  std::vector<unsigned> ends;
  double scale = double(numLayers) / double(ranges.back().second);
  unsigned last = 0;
  for (auto [index, range] : llvm::enumerate(ranges)) {
    auto end = unsigned(std::lround(double(range.second) * scale));
    unsigned most = numLayers - unsigned(ranges.size() - index - 1);
    last = std::min(std::max(end, last + 1), most);
    ends.push_back(last);
  }
  return ends;
}

llvm::Expected<WarmStart> stage::startNear(SearchSpace &space, const Cluster &cluster,
                                           unsigned numLayers, unsigned meshAxes,
                                           llvm::ArrayRef<std::string> submeshes,
                                           llvm::ArrayRef<std::string> layerRanges) {
  std::vector<std::pair<unsigned, unsigned>> ranges;
  if (llvm::Error error = readLayerRanges(layerRanges, /*numLayers=*/std::nullopt, ranges))
    return std::move(error);
  if (ranges.empty() || ranges.size() % submeshes.size() != 0)
    return fail(llvm::Twine(ranges.size()) + " start-layers for " + llvm::Twine(submeshes.size()) +
                " start-submeshes");
  WarmStart start;
  start.stagesPerMesh = unsigned(ranges.size() / submeshes.size());
  std::set<unsigned> kept;
  std::vector<std::vector<unsigned>> ofMesh;
  bool hasAll = true;
  for (llvm::StringRef text : submeshes) {
    Shape shape;
    auto [sizes, type] = text.split('@');
    auto [hosts, devices] = sizes.split('x');
    if (hosts.trim().getAsInteger(10, shape.hosts) ||
        devices.trim().getAsInteger(10, shape.devices) || shape.hosts < 1 || shape.devices < 1)
      return fail("start-submeshes '" + text + "' must be hosts x devices of each, such as 1x2");
    shape.type = type;
    bool isExact = false;
    // One that the cluster has, but is not among the usual ones.
    if (llvm::Expected<Submesh> own = readSubmesh(cluster, sizes.str()))
      addSubmesh(space, cluster, *own, meshAxes);
    else
      llvm::consumeError(own.takeError());
    std::vector<unsigned> alike = findAlike(space, cluster, shape, isExact);
    hasAll &= isExact;
    kept.insert(alike.begin(), alike.end());
    ofMesh.push_back(std::move(alike));
  }
  for (unsigned like : std::set<unsigned>(kept))
    addNext(space, like, kept);

  std::vector<unsigned> ends = cutLike(ranges, numLayers);
  if (hasAll && !ends.empty()) {
    // Several stages on a mesh need equal ones.
    std::set<std::array<int64_t, 5>> stages;
    unsigned lo = 0;
    for (auto [index, hi] : llvm::enumerate(ends)) {
      for (unsigned like : ofMesh[start.stagesPerMesh > 1 ? 0 : index]) {
        const Submesh &own = space.submeshes[like];
        stages.insert({lo, hi, own.hosts, own.devicesPerHost, own.kind});
      }
      lo = hi;
    }
    std::vector<Submesh> left;
    for (unsigned index : kept)
      left.push_back(space.submeshes[index]);
    start.stages = [stages, left](unsigned lo, unsigned hi, unsigned submesh) {
      const Submesh &own = left[submesh];
      return stages.count({lo, hi, own.hosts, own.devicesPerHost, own.kind}) != 0;
    };
  }
  std::set<const Submesh *> keptSubmeshes;
  for (unsigned index : kept)
    keptSubmeshes.insert(&space.submeshes[index]);
  keepSubmeshes(space, [&](const Submesh &submesh) { return keptSubmeshes.count(&submesh) != 0; });
  return start;
}
