//===- SearchSpace.cpp - which stages the search may choose ---------------===//

#include "compiler/Stage/Search/SearchSpace.h"
#include "dialects/Common/ErrorCode.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include <algorithm>
#include <map>

using namespace alpa;
using namespace alpa::stage;
using cost::Cluster;
using cost::LogicalMesh;
using cost::Submesh;

static llvm::Error fail(const llvm::Twine &message) {
  return makeError(ErrorCode::Method, "alpa-search-stages: " + message);
}

/// Positive numbers with a separator between them.
static bool readNumbers(llvm::StringRef text, char separator, int64_t least,
                        llvm::SmallVectorImpl<int64_t> &numbers) {
  llvm::SmallVector<llvm::StringRef> parts;
  text.split(parts, separator);
  for (llvm::StringRef part : parts) {
    int64_t number;
    if (part.trim().getAsInteger(10, number) || number < least)
      return false;
    numbers.push_back(number);
  }
  return true;
}

/// The index of a mesh; those of hosts that differ in nothing else than their number
/// of devices are one.
static unsigned addMesh(SearchSpace &space, LogicalMesh mesh) {
  auto known = llvm::find_if(space.meshes, [&](const LogicalMesh &other) {
    return other.shape == mesh.shape && other.axes == mesh.axes &&
           other.intraHost == mesh.intraHost && other.devicesOnHost == mesh.devicesOnHost &&
           other.groupsPerHost == mesh.groupsPerHost && other.interHost == mesh.interHost &&
           other.devicesInRack == mesh.devicesInRack && other.groupsPerRack == mesh.groupsPerRack &&
           other.interRack == mesh.interRack && other.deviceTypes == mesh.deviceTypes;
  });
  auto index = unsigned(known - space.meshes.begin());
  if (known == space.meshes.end())
    space.meshes.push_back(std::move(mesh));
  return index;
}

void stage::addSubmesh(SearchSpace &space, const Cluster &cluster, const Submesh &submesh,
                       unsigned meshAxes) {
  if (llvm::is_contained(space.submeshes, submesh))
    return;
  space.submeshes.push_back(submesh);
  auto &views = space.views.emplace_back();
  for (LogicalMesh &mesh : cost::logicalMeshes(cluster, submesh, meshAxes))
    views.push_back(addMesh(space, std::move(mesh)));
}

SearchSpace stage::wholeSearchSpace(const Cluster &cluster, unsigned meshAxes) {
  SearchSpace space;
  for (const Submesh &submesh : cost::submeshShapes(cluster))
    addSubmesh(space, cluster, submesh, meshAxes);
  return space;
}

void stage::keepSubmeshes(SearchSpace &space, llvm::function_ref<bool(const Submesh &)> keep) {
  SearchSpace kept;
  std::map<unsigned, unsigned> keptViews;
  for (auto [submesh, views] : llvm::zip_equal(space.submeshes, space.views)) {
    if (!keep(submesh))
      continue;
    kept.submeshes.push_back(submesh);
    auto &own = kept.views.emplace_back();
    for (unsigned view : views) {
      auto [it, isNew] = keptViews.try_emplace(view, kept.meshes.size());
      if (isNew)
        kept.meshes.push_back(space.meshes[view]);
      own.push_back(it->second);
    }
  }
  space = std::move(kept);
}

void stage::addTurnedViews(const Cluster &cluster, SearchSpace &space) {
  for (auto [submesh, views] : llvm::zip_equal(space.submeshes, space.views)) {
    std::vector<llvm::SmallVector<int64_t, 3>> shapes;
    for (unsigned view : views)
      shapes.push_back(space.meshes[view].shape);
    for (size_t i = 0; i < shapes.size(); ++i) { // All rotations, which add themselves.
      llvm::SmallVector<int64_t, 3> turned = shapes[i];
      std::rotate(turned.begin(), turned.begin() + 1, turned.end());
      if (llvm::is_contained(shapes, turned))
        continue;
      llvm::Expected<LogicalMesh> mesh = cost::makeLogicalMesh(cluster, submesh, turned);
      if (!mesh) { // Has as many devices as the view that it is a rotation of.
        llvm::consumeError(mesh.takeError());
        continue;
      }
      views.push_back(addMesh(space, std::move(*mesh)));
      shapes.push_back(turned);
    }
  }
}

llvm::Expected<Submesh> stage::readSubmesh(const Cluster &cluster, llvm::StringRef text) {
  auto [shape, type] = text.split('@');
  llvm::SmallVector<int64_t> sizes;
  if (!readNumbers(shape, 'x', 1, sizes) || sizes.size() != 2)
    return fail("submesh '" + text +
                "' must be hosts x devices of each host, such as 1x2, or 1x2@TYPE for hosts of a "
                "device type");
  std::string names;
  bool known = type.empty();
  for (const cost::DeviceType &device : cluster.deviceTypes) {
    names += (names.empty() ? "" : ", ") + device.name;
    known |= device.name == type;
  }
  if (!known)
    return fail("submesh '" + text + "' names no device type of cluster '" + cluster.name +
                "': " + names);
  llvm::SmallVector<int> kinds;
  int64_t hosts = 0;
  for (auto [index, kind] : llvm::enumerate(cluster.hostKinds())) {
    bool fits = sizes[0] == 1 ? kind.devices >= sizes[1] : kind.devices == sizes[1];
    if (!fits || (!type.empty() && cluster.deviceTypes[kind.deviceType].name != type))
      continue;
    kinds.push_back(int(index));
    hosts += kind.hosts;
  }
  if (hosts < sizes[0])
    return fail("submesh '" + text + "' is no part of cluster '" + cluster.name +
                "': it must be devices of one host, or all devices of several hosts");
  if (kinds.size() > 1 && !type.empty())
    return fail("submesh '" + text + "': cluster '" + cluster.name +
                "' has hosts of this device type that differ; leave the type out");
  std::optional<Submesh> submesh = cost::spreadOverRacks(
      cluster, {sizes[0], sizes[1], kinds.size() == 1 ? kinds.front() : Submesh::anyKind});
  if (!submesh)
    return fail("submesh '" + text + "' is no part of cluster '" + cluster.name +
                "': its hosts must lie in one rack of " + llvm::Twine(cluster.hostsPerRack()) +
                ", or be as many of each of several racks");
  return *submesh;
}

llvm::Error stage::readLayerRanges(llvm::ArrayRef<std::string> texts,
                                   std::optional<unsigned> numLayers,
                                   std::vector<std::pair<unsigned, unsigned>> &ranges) {
  unsigned next = 0;
  for (const std::string &text : texts) {
    llvm::SmallVector<int64_t> range;
    if (!readNumbers(text, '-', 0, range) || range.size() != 2 || range[0] != next ||
        range[1] <= range[0] || range[1] > int64_t(numLayers.value_or(range[1])))
      return fail("layer range '" + text + "' must begin at layer " + llvm::Twine(next) +
                  " and end after it" +
                  (numLayers ? ", at most after all " + llvm::Twine(*numLayers) + " layers" : ""));
    next = range[1];
    ranges.push_back({unsigned(range[0]), unsigned(range[1])});
  }
  if (!texts.empty() && next != numLayers.value_or(next))
    return fail("layer-ranges end after " + llvm::Twine(next) + " of " + llvm::Twine(*numLayers) +
                " layers");
  return llvm::Error::success();
}

llvm::Expected<SearchSpace> stage::manualSearchSpace(const Cluster &cluster, unsigned numLayers,
                                                     unsigned meshAxes,
                                                     llvm::ArrayRef<std::string> submeshes,
                                                     llvm::ArrayRef<std::string> meshShapes,
                                                     llvm::ArrayRef<std::string> layerRanges,
                                                     unsigned stagesPerMesh) {
  if (!meshShapes.empty() && meshShapes.size() != submeshes.size())
    return fail("expected one of mesh-shapes for each of submeshes, got " +
                llvm::Twine(meshShapes.size()) + " for " + llvm::Twine(submeshes.size()));
  size_t numStages = submeshes.size() * stagesPerMesh;
  if (!layerRanges.empty() && layerRanges.size() != numStages)
    return fail("expected one of layer-ranges for each of " +
                llvm::Twine(stagesPerMesh > 1 ? "the stages" : "submeshes") + ", got " +
                llvm::Twine(layerRanges.size()) + " for " + llvm::Twine(numStages));
  if (numStages > numLayers)
    return fail(llvm::Twine(numStages) + " stages need as many layers, got " +
                llvm::Twine(numLayers) +
                "; use fewer stages, or raise `layers`; a branch or jax.checkpoint around several "
                "layers makes them one");

  SearchSpace space;
  space.manual = true;
  // Stages that look alike share their views, and with them the solutions.
  std::vector<std::pair<Submesh, std::string>> known;
  std::vector<llvm::SmallVector<unsigned>> knownViews;
  for (auto [index, text] : llvm::enumerate(submeshes)) {
    llvm::Expected<Submesh> submesh = readSubmesh(cluster, text);
    if (!submesh)
      return submesh.takeError();
    std::string shapeText = meshShapes.empty() ? "" : meshShapes[index];
    auto same = llvm::find_if(known, [&](const auto &entry) {
      return entry.first == *submesh && entry.second == shapeText;
    });
    if (same == known.end()) {
      auto &views = knownViews.emplace_back();
      if (meshShapes.empty()) {
        for (LogicalMesh &mesh : cost::logicalMeshes(cluster, *submesh, meshAxes)) {
          views.push_back(space.meshes.size());
          space.meshes.push_back(std::move(mesh));
        }
      } else {
        llvm::SmallVector<int64_t> shape;
        if (!readNumbers(shapeText, 'x', 1, shape) || shape.size() > 3)
          return fail("mesh shape '" + shapeText + "' must be one to three sizes, such as 2x4");
        llvm::Expected<LogicalMesh> mesh = cost::makeLogicalMesh(cluster, *submesh, shape);
        if (!mesh)
          return mesh.takeError();
        views.push_back(space.meshes.size());
        space.meshes.push_back(std::move(*mesh));
      }
      known.push_back({*submesh, shapeText});
      same = std::prev(known.end());
    }
    space.submeshes.push_back(*submesh);
    space.views.push_back(knownViews[same - known.begin()]);
  }

  if (llvm::Error error = readLayerRanges(layerRanges, numLayers, space.layerRanges))
    return std::move(error);
  return space;
}
