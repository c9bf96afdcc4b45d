//===- PipelineMethods.cpp - pipelines that are known by name -------------===//

#include "compiler/Stage/Search/PipelineMethods.h"

#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace alpa::stage;
using cost::Submesh;

static constexpr sharding::MethodInfo kPipelines[] = {
    {"auto", "Everything is the search's choice"},
    {"intra-only", "One stage on the whole cluster"},
    {"inter-only", "Every stage on one device"},
    {"equal-layer", "Stages of as many layers each, beside an embedding and a head"},
    {"equal-mesh", "Stages on submeshes of one shape"},
    {"uniform", "Stages of as many layers each, as equal-layer, on submeshes of one shape"},
};
llvm::ArrayRef<sharding::MethodInfo> stage::pipelineMethodTable() { return kPipelines; }

llvm::Error stage::checkPipelineMethod(llvm::StringRef name) {
  return sharding::checkName("pipeline", kPipelines, name);
}

/// Submeshes of the shape of a given one, whatever their devices; none if one of
/// that shape comes before it.
static StageRule sameShape(llvm::ArrayRef<Submesh> submeshes, size_t index) {
  std::vector<bool> isAlike;
  for (const Submesh &other : submeshes)
    isAlike.push_back(other.hosts == submeshes[index].hosts &&
                      other.devicesPerHost == submeshes[index].devicesPerHost &&
                      other.racks == submeshes[index].racks);
  if (llvm::find(isAlike, true) - isAlike.begin() != ptrdiff_t(index))
    return nullptr;
  return [isAlike = std::move(isAlike)](unsigned, unsigned, unsigned submesh) {
    return bool(isAlike[submesh]);
  };
}

static StageRule sameCount(unsigned count) {
  return [count](unsigned lo, unsigned hi, unsigned) { return hi - lo == count; };
}

/// Equal submeshes tile the cluster, and each takes a layer at least.
static bool canTile(const Submesh &submesh, int64_t devices, unsigned numLayers) {
  return devices % submesh.numDevices() == 0 && devices / submesh.numDevices() <= numLayers;
}

std::vector<StageRule> stage::evenRules(const cost::Cluster &cluster, unsigned numLayers,
                                        const SearchSpace &space) {
  std::vector<StageRule> rules;
  for (size_t index = 0; index < space.submeshes.size(); ++index)
    if (canTile(space.submeshes[index], cluster.numDevices(), numLayers))
      if (StageRule rule = sameShape(space.submeshes, index))
        rules.push_back(std::move(rule));
  for (unsigned count = 1; count <= numLayers; ++count)
    if (numLayers % count == 0)
      rules.push_back(sameCount(count));
  return rules;
}

Blocks stage::findBlocks(llvm::ArrayRef<double> flopsOfLayer) {
  constexpr double kAlike = 1.1;
  Blocks best;
  for (unsigned begin = 0; begin < flopsOfLayer.size(); ++begin) {
    double least = flopsOfLayer[begin], most = least;
    unsigned end = begin;
    for (; end < flopsOfLayer.size(); ++end) {
      least = std::min(least, flopsOfLayer[end]);
      most = std::max(most, flopsOfLayer[end]);
      if (most > kAlike * least)
        break;
    }
    if (end - begin > best.end - best.begin)
      best = {begin, end};
  }
  return best;
}

std::vector<StageRule> stage::pipelineRules(llvm::StringRef method, const cost::Cluster &cluster,
                                            llvm::ArrayRef<double> flopsOfLayer,
                                            const SearchSpace &space, unsigned stagesPerMesh) {
  unsigned numLayers = flopsOfLayer.size();
  int64_t devices = cluster.numDevices();
  bool equalLayers = method == "equal-layer" || method == "uniform";
  bool equalMeshes = method == "equal-mesh" || method == "uniform";
  if (method == "auto")
    return {nullptr};
  if (method == "intra-only") {
    if (space.submeshes.empty())
      return {};
    return {[numLayers](unsigned lo, unsigned hi, unsigned) { return lo == 0 && hi == numLayers; }};
  }
  if (method == "inter-only") {
    if (devices * stagesPerMesh > int64_t(numLayers))
      return {};
    return {nullptr};
  }
  std::vector<StageRule> rules;
  auto add = [&](Blocks blocks) {
    unsigned numBlocks = blocks.end - blocks.begin;
    for (unsigned count = 1; count <= numBlocks; ++count) {
      if (equalLayers && numBlocks % count != 0)
        continue;
      StageRule even = [=](unsigned lo, unsigned hi, unsigned) {
        return (lo == 0 || lo > blocks.begin) && (hi == numLayers || hi < blocks.end) &&
               std::min(hi, blocks.end) == std::max(lo, blocks.begin) + count;
      };
      if (!equalMeshes) {
        rules.push_back(even);
        continue;
      }
      for (auto [index, submesh] : llvm::enumerate(space.submeshes)) {
        if (equalLayers && devices / submesh.numDevices() * stagesPerMesh != numBlocks / count)
          continue;
        StageRule alike = sameShape(space.submeshes, index);
        if (!alike)
          continue; // A rule for each shape.
        rules.push_back([=](unsigned lo, unsigned hi, unsigned other) {
          return alike(lo, hi, other) && (!equalLayers || even(lo, hi, other));
        });
      }
      if (!equalLayers)
        break; // The number of layers is free.
    }
  };
  add({0, numLayers});
  Blocks blocks = findBlocks(flopsOfLayer);
  if (equalLayers && (blocks.begin > 0 || blocks.end < numLayers))
    add(blocks);
  return rules;
}

llvm::Expected<std::vector<StageRule>>
stage::applyPipelineMethod(llvm::StringRef method, const cost::Cluster &cluster,
                           llvm::ArrayRef<double> flopsOfLayer, SearchSpace &space,
                           unsigned stagesPerMesh) {
  unsigned numLayers = flopsOfLayer.size();
  if (llvm::Error error = checkPipelineMethod(method))
    return std::move(error);
  auto fail = [&](const llvm::Twine &message) {
    return llvm::createStringError("pipeline '" + method + "' " + message);
  };
  if (method == "auto")
    return std::vector<StageRule>{nullptr};
  if (space.manual)
    return fail("chooses the stages, which submeshes give; leave one of them out");

  int64_t devices = cluster.numDevices();
  bool equalMeshes = method == "equal-mesh" || method == "uniform";
  keepSubmeshes(space, [&](const Submesh &submesh) {
    int64_t size = submesh.numDevices();
    if (method == "intra-only")
      return size == devices;
    if (method == "inter-only")
      return size == 1;
    return !equalMeshes || canTile(submesh, devices, numLayers / stagesPerMesh);
  });

  std::vector<StageRule> rules = pipelineRules(method, cluster, flopsOfLayer, space, stagesPerMesh);
  if (rules.empty() && method == "intra-only")
    return fail("needs a cluster that is one mesh: hosts with as many devices each");
  if (rules.empty() && method == "inter-only")
    return fail(
        "needs " +
        (stagesPerMesh > 1 ? llvm::Twine(stagesPerMesh) + " layers" : llvm::Twine("a layer")) +
        " for each of " + llvm::Twine(devices) + " devices, got " + llvm::Twine(numLayers) +
        "; raise `layers`");
  if (rules.empty())
    return fail("finds no number of stages that divides both " + llvm::Twine(numLayers) +
                " layers and " + llvm::Twine(devices) + " devices");
  return rules;
}
