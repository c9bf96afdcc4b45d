//===- Reshard.cpp - the steps that change a tensor's sharding ------------===//

#include "compiler/Sharding/Problem/Reshard.h"

#include "llvm/ADT/STLExtras.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <set>

using namespace alpa;
using namespace alpa::sharding;

int64_t sharding::toPicoseconds(double seconds) {
  return static_cast<int64_t>(std::llround(std::min(seconds, 1e5) * 1e12));
}

/// Dearer than any path: two orders above what a single step can cost.
static constexpr int64_t kNoPath = std::numeric_limits<int64_t>::max() / 64;

namespace {

/// A spec with the order of each dimension's axes, in one word: dimension + 1 of
/// every axis in the low bytes as in PackedSpec, its position above.
uint64_t codeOf(const ShardingSpec &spec) {
  uint64_t code = 0;
  for (auto [dim, axes] : llvm::enumerate(spec.dims))
    for (auto [position, axis] : llvm::enumerate(axes))
      code |= static_cast<uint64_t>(dim + 1) << (8 * axis) | static_cast<uint64_t>(position)
                                                                 << (32 + 4 * axis);
  return code;
}

uint64_t codeOf(PackedSpec spec) {
  uint64_t code = spec.code;
  for (unsigned axis = 1; axis < PackedSpec::kMaxAxes; ++axis) {
    uint64_t position = 0;
    for (unsigned major = 0; major < axis; ++major)
      position += spec.dimOf(axis) >= 0 && spec.dimOf(major) == spec.dimOf(axis);
    code |= position << (32 + 4 * axis);
  }
  return code;
}

int64_t piecesOf(llvm::ArrayRef<unsigned> axes, llvm::ArrayRef<int64_t> meshShape) {
  int64_t pieces = 1;
  for (unsigned axis : axes)
    pieces *= meshShape[axis];
  return pieces;
}

/// What an axis does for a spec: the dimension it splits and how many pieces a
/// step along it skips; (-1, 0) for an axis that splits nothing.
std::pair<int, int64_t> roleOf(unsigned axis, const ShardingSpec &spec,
                               llvm::ArrayRef<int64_t> meshShape) {
  for (auto [dim, axes] : llvm::enumerate(spec.dims))
    for (auto [position, other] : llvm::enumerate(axes))
      if (other == axis)
        return {static_cast<int>(dim),
                piecesOf(llvm::ArrayRef(axes).drop_front(position + 1), meshShape)};
  return {-1, 0};
}

} // namespace

namespace alpa::sharding {

/// Specs of one rank on one mesh and the steps between them.
struct ReshardGraph {
  struct Edge {
    unsigned to = 0;
    ReshardKind kind = ReshardKind::Slice;
    uint8_t axis = 0;
    int16_t fromDim = -1, toDim = -1;
    uint16_t permuted = 0; // Bit a: a permute moves parts along axis a.
  };
  std::vector<ShardingSpec> specs;
  std::vector<int64_t> pieces;
  std::vector<Edge> edges;
  std::vector<unsigned> firstEdge; // Edges of spec i: firstEdge[i] .. firstEdge[i + 1].
  llvm::DenseMap<uint64_t, unsigned> index;

  /// Bit s of `fits[dim]`: the dimension can be split by the set s of axes.
  ReshardGraph(llvm::ArrayRef<uint16_t> fits, llvm::ArrayRef<int64_t> meshShape);

private:
  void addSpecs(llvm::ArrayRef<uint16_t> fits, llvm::ArrayRef<int64_t> meshShape);
  void addSteps(unsigned source, llvm::ArrayRef<int64_t> meshShape);
  void addEdge(const ShardingSpec &to, ReshardKind kind, unsigned axis, int fromDim, int toDim);
};

} // namespace alpa::sharding

ReshardGraph::ReshardGraph(llvm::ArrayRef<uint16_t> fits, llvm::ArrayRef<int64_t> meshShape) {
  addSpecs(fits, meshShape);
  std::map<std::vector<int64_t>, std::vector<unsigned>> bySplit;
  auto split = [&](const ShardingSpec &spec) {
    std::vector<int64_t> counts;
    for (const auto &axes : spec.dims)
      counts.push_back(piecesOf(axes, meshShape));
    return counts;
  };
  for (auto [i, spec] : llvm::enumerate(specs))
    bySplit[split(spec)].push_back(i);
  for (unsigned source = 0; source < specs.size(); ++source) {
    firstEdge.push_back(edges.size());
    addSteps(source, meshShape);
    for (unsigned target : bySplit[split(specs[source])]) {
      if (target == source)
        continue;
      Edge edge;
      edge.to = target;
      edge.kind = ReshardKind::Permute;
      for (unsigned axis = 0; axis < meshShape.size(); ++axis)
        if (roleOf(axis, specs[source], meshShape) != roleOf(axis, specs[target], meshShape))
          edge.permuted |= 1u << axis;
      edges.push_back(edge);
    }
  }
  firstEdge.push_back(edges.size());
}

void ReshardGraph::addSpecs(llvm::ArrayRef<uint16_t> fits, llvm::ArrayRef<int64_t> meshShape) {
  auto add = [&](ShardingSpec spec) {
    if (!index.try_emplace(codeOf(spec), specs.size()).second)
      return;
    pieces.push_back(spec.numPieces(meshShape));
    specs.push_back(std::move(spec));
  };
  add(ShardingSpec::replicated(fits.size()));
  for (unsigned next = 0; next < specs.size(); ++next) {
    unsigned used = 0;
    for (const auto &axes : specs[next].dims)
      for (unsigned axis : axes)
        used |= 1u << axis;
    for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
      if (meshShape[axis] <= 1 || (used >> axis & 1))
        continue;
      for (unsigned dim = 0; dim < fits.size(); ++dim) {
        ShardingSpec spec = specs[next];
        spec.dims[dim].push_back(axis);
        unsigned set = 0;
        for (unsigned other : spec.dims[dim])
          set |= 1u << other;
        if (fits[dim] >> set & 1)
          add(std::move(spec));
      }
    }
  }
}

void ReshardGraph::addEdge(const ShardingSpec &to, ReshardKind kind, unsigned axis, int fromDim,
                           int toDim) {
  auto it = index.find(codeOf(to));
  if (it == index.end())
    return; // Uneven pieces.
  Edge edge;
  edge.to = it->second;
  edge.kind = kind;
  edge.axis = static_cast<uint8_t>(axis);
  edge.fromDim = static_cast<int16_t>(fromDim);
  edge.toDim = static_cast<int16_t>(toDim);
  edges.push_back(edge);
}

void ReshardGraph::addSteps(unsigned source, llvm::ArrayRef<int64_t> meshShape) {
  int rank = static_cast<int>(specs[source].dims.size());
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    if (meshShape[axis] <= 1)
      continue;
    int held = roleOf(axis, specs[source], meshShape).first;
    if (held >= 0 && specs[source].dims[held].back() != axis)
      continue;
    ShardingSpec without = specs[source];
    if (held >= 0) {
      without.dims[held].pop_back();
      addEdge(without, ReshardKind::AllGather, axis, held, -1);
    }
    for (int dim = 0; dim < rank; ++dim) {
      if (dim == held)
        continue;
      ShardingSpec spec = without;
      spec.dims[dim].push_back(axis);
      addEdge(spec, held < 0 ? ReshardKind::Slice : ReshardKind::AllToAll, axis, held, dim);
    }
  }
}

TensorReshards::TensorReshards(std::shared_ptr<const ReshardGraph> graph, double fullBytes,
                               const cost::CostModel &model)
    : graph(std::move(graph)) {
  trees.resize(this->graph->specs.size());
  edgeCosts.reserve(this->graph->edges.size());
  for (unsigned source = 0; source < this->graph->specs.size(); ++source)
    for (unsigned edge = this->graph->firstEdge[source]; edge < this->graph->firstEdge[source + 1];
         ++edge) {
      const ReshardGraph::Edge &step = this->graph->edges[edge];
      double localBytes = fullBytes / static_cast<double>(this->graph->pieces[source]);
      double seconds = 0;
      switch (step.kind) {
      case ReshardKind::Slice:
        break;
      case ReshardKind::AllGather:
        seconds = model.allGatherSeconds(
            localBytes * static_cast<double>(model.getMesh().shape[step.axis]), step.axis);
        break;
      case ReshardKind::AllToAll:
        seconds = model.allToAllSeconds(localBytes, step.axis);
        break;
      case ReshardKind::Permute:
        // Messages go straight to their targets: the slowest axis they cross counts.
        for (unsigned axis = 0; axis < model.getMesh().shape.size(); ++axis)
          if (step.permuted >> axis & 1)
            seconds = std::max(seconds, model.collectivePermuteSeconds(localBytes, axis));
        break;
      }
      edgeCosts.push_back(toPicoseconds(seconds));
    }
}

/// Dijkstra's algorithm; of equally cheap paths the one of fewest steps, then the
/// one found first, so that the same question always gets the same answer.
const TensorReshards::Tree &TensorReshards::treeFrom(unsigned source) {
  if (trees[source])
    return *trees[source];
  trees[source] = std::make_unique<Tree>();
  Tree &tree = *trees[source];
  size_t count = graph->specs.size();
  tree.costs.assign(count, kNoPath);
  tree.edges.assign(count, ~0u);
  std::vector<unsigned> steps(count, 0);
  using Entry = std::tuple<int64_t, unsigned, unsigned>; // Cost, steps, spec.
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  tree.costs[source] = 0;
  queue.push({0, 0, source});
  while (!queue.empty()) {
    auto [cost, numSteps, spec] = queue.top();
    queue.pop();
    if (std::make_pair(cost, numSteps) != std::make_pair(tree.costs[spec], steps[spec]))
      continue;
    for (unsigned edge = graph->firstEdge[spec]; edge < graph->firstEdge[spec + 1]; ++edge) {
      unsigned target = graph->edges[edge].to;
      auto reached = std::make_pair(cost + edgeCosts[edge], numSteps + 1);
      if (reached >= std::make_pair(tree.costs[target], steps[target]))
        continue;
      tree.costs[target] = reached.first;
      steps[target] = reached.second;
      tree.edges[target] = edge;
      queue.push({reached.first, reached.second, target});
    }
  }
  return tree;
}

int64_t TensorReshards::picoseconds(PackedSpec from, PackedSpec to) {
  if (from == to)
    return 0;
  auto source = graph->index.find(codeOf(from)), target = graph->index.find(codeOf(to));
  if (source == graph->index.end() || target == graph->index.end())
    return kNoPath;
  return treeFrom(source->second).costs[target->second];
}

std::optional<std::vector<ReshardStep>> TensorReshards::path(const ShardingSpec &from,
                                                             const ShardingSpec &to) {
  auto source = graph->index.find(codeOf(from)), target = graph->index.find(codeOf(to));
  if (source == graph->index.end() || target == graph->index.end())
    return std::nullopt;
  const Tree &tree = treeFrom(source->second);
  std::vector<ReshardStep> steps;
  for (unsigned spec = target->second; spec != source->second;) {
    const ReshardGraph::Edge &edge = graph->edges[tree.edges[spec]];
    steps.push_back({edge.kind, edge.axis, edge.fromDim, edge.toDim, graph->specs[spec],
                     edgeCosts[tree.edges[spec]]});
    auto next = llvm::upper_bound(graph->firstEdge, tree.edges[spec]);
    spec = static_cast<unsigned>(next - graph->firstEdge.begin()) - 1;
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

TensorReshards &ReshardPlanner::of(llvm::ArrayRef<int64_t> shape, double fullBytes) {
  llvm::ArrayRef<int64_t> meshShape = model.getMesh().shape;
  std::vector<uint16_t> fits;
  for (int64_t size : shape) {
    uint16_t sets = 0;
    for (unsigned set = 0; set < (1u << meshShape.size()); ++set) {
      int64_t pieces = 1;
      for (unsigned axis = 0; axis < meshShape.size(); ++axis)
        if (set >> axis & 1)
          pieces *= meshShape[axis];
      if (size % pieces == 0 && (size > 0 || pieces == 1))
        sets |= 1u << set;
    }
    fits.push_back(sets);
  }
  auto known = tensors.find({fits, fullBytes});
  if (known != tensors.end())
    return known->second;
  std::shared_ptr<const ReshardGraph> &graph = graphs[fits];
  if (!graph)
    graph = std::make_shared<ReshardGraph>(fits, meshShape);
  return tensors.try_emplace({fits, fullBytes}, graph, fullBytes, model).first->second;
}

std::optional<ReshardStep> sharding::singleStep(const ShardingSpec &from, const ShardingSpec &to,
                                                llvm::ArrayRef<int64_t> meshShape) {
  llvm::SmallVector<unsigned> grown, shrunk;
  bool evenSplit = true;
  for (auto [dim, axes] : llvm::enumerate(llvm::zip(from.dims, to.dims))) {
    llvm::ArrayRef<unsigned> before = std::get<0>(axes), after = std::get<1>(axes);
    evenSplit &= piecesOf(before, meshShape) == piecesOf(after, meshShape);
    if (before == after)
      continue;
    if (after.size() == before.size() + 1 && llvm::equal(llvm::drop_end(after), before))
      grown.push_back(dim);
    else if (before.size() == after.size() + 1 && llvm::equal(llvm::drop_end(before), after))
      shrunk.push_back(dim);
    else
      grown.append(2, dim); // No single minor axis comes or goes.
  }
  if (evenSplit)
    return ReshardStep{ReshardKind::Permute, 0, -1, -1, to};
  if (grown.size() > 1 || shrunk.size() > 1)
    return std::nullopt;
  int fromDim = shrunk.empty() ? -1 : static_cast<int>(shrunk[0]);
  int toDim = grown.empty() ? -1 : static_cast<int>(grown[0]);
  unsigned axis = fromDim >= 0 ? from.dims[fromDim].back() : to.dims[toDim].back();
  if (fromDim >= 0 && toDim >= 0 && to.dims[toDim].back() != axis)
    return std::nullopt;
  ReshardKind kind = fromDim < 0 ? ReshardKind::Slice
                     : toDim < 0 ? ReshardKind::AllGather
                                 : ReshardKind::AllToAll;
  return ReshardStep{kind, axis, fromDim, toDim, to};
}

llvm::SmallVector<std::pair<int64_t, int64_t>>
sharding::permutePairs(const ShardingSpec &from, const ShardingSpec &to,
                       llvm::ArrayRef<int64_t> meshShape) {
  int64_t devices = 1;
  for (int64_t size : meshShape)
    devices *= size;
  // Two devices may exchange parts if they differ in axes of another role only.
  auto keyOf = [&](int64_t device, const ShardingSpec &spec) {
    std::vector<int64_t> coordinates(meshShape.size()), key;
    for (unsigned axis = meshShape.size(); axis-- > 0; device /= meshShape[axis])
      coordinates[axis] = device % meshShape[axis];
    for (const auto &axes : spec.dims) {
      int64_t piece = 0;
      for (unsigned axis : axes)
        piece = piece * meshShape[axis] + coordinates[axis];
      key.push_back(piece);
    }
    for (unsigned axis = 0; axis < meshShape.size(); ++axis)
      if (roleOf(axis, from, meshShape) == roleOf(axis, to, meshShape))
        key.push_back(coordinates[axis]);
    return key;
  };
  std::map<std::vector<int64_t>, llvm::SmallVector<int64_t>> holders;
  llvm::SmallVector<std::pair<int64_t, int64_t>> pairs;
  std::vector<bool> stays(devices);
  for (int64_t device = 0; device < devices; ++device)
    stays[device] = keyOf(device, from) == keyOf(device, to);
  for (int64_t device = devices; device-- > 0;)
    if (!stays[device])
      holders[keyOf(device, from)].push_back(device);
  for (int64_t device = 0; device < devices; ++device)
    pairs.push_back({stays[device] ? device : holders[keyOf(device, to)].pop_back_val(), device});
  return pairs;
}
