//===- ReshardTest.cpp - paths between specs ------------------------------===//
//
// Checks the rows of the paper's table 2, and for every pair of specs of some
// tensors and meshes that the steps, played on devices, lead from one to the
// other and cost what the solver is told.
//
//===----------------------------------------------------------------------===//

#include "compiler/Sharding/Problem/Reshard.h"
#include "test/Check.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/raw_ostream.h"

#include <numeric>

using namespace alpa;
using namespace alpa::sharding;
using cost::CostModel;

static CostModel makeModel(llvm::ArrayRef<int64_t> shape) {
  cost::LogicalMesh mesh;
  mesh.shape.assign(shape.begin(), shape.end());
  mesh.devicesOnHost.assign(shape.begin(), shape.end());
  for (unsigned axis = 0; axis < shape.size(); ++axis)
    mesh.axes.push_back({1e9 * (axis + 1), 1e-6}); // Slow axes first.
  return CostModel(mesh);
}

/// What each device holds: for every dimension the indices along it.
using Holding = std::vector<std::vector<std::vector<int64_t>>>;

static std::vector<int64_t> coordinatesOf(int64_t device, llvm::ArrayRef<int64_t> meshShape) {
  std::vector<int64_t> coordinates(meshShape.size());
  for (unsigned axis = meshShape.size(); axis-- > 0; device /= meshShape[axis])
    coordinates[axis] = device % meshShape[axis];
  return coordinates;
}

static Holding holdingOf(const ShardingSpec &spec, llvm::ArrayRef<int64_t> shape,
                         llvm::ArrayRef<int64_t> meshShape, int64_t devices) {
  Holding holding(devices);
  for (int64_t device = 0; device < devices; ++device) {
    std::vector<int64_t> coordinates = coordinatesOf(device, meshShape);
    for (auto [dim, size] : llvm::enumerate(shape)) {
      int64_t pieces = 1, piece = 0;
      for (unsigned axis : spec.dims[dim]) {
        pieces *= meshShape[axis];
        piece = piece * meshShape[axis] + coordinates[axis];
      }
      std::vector<int64_t> indices(size / pieces);
      std::iota(indices.begin(), indices.end(), piece * (size / pieces));
      holding[device].push_back(std::move(indices));
    }
  }
  return holding;
}

static std::vector<int64_t> part(const std::vector<int64_t> &list, int64_t parts, int64_t which) {
  int64_t size = static_cast<int64_t>(list.size()) / parts;
  return {list.begin() + which * size, list.begin() + (which + 1) * size};
}

static Holding play(const ReshardStep &step, const ShardingSpec &from, const Holding &held,
                    llvm::ArrayRef<int64_t> meshShape) {
  Holding next = held;
  if (step.kind == ReshardKind::Permute) {
    for (auto [source, target] : permutePairs(from, step.spec, meshShape))
      next[target] = held[source];
    return next;
  }
  for (int64_t device = 0; device < static_cast<int64_t>(held.size()); ++device) {
    std::vector<int64_t> own = coordinatesOf(device, meshShape);
    if (step.toDim >= 0)
      next[device][step.toDim] =
          part(held[device][step.toDim], meshShape[step.axis], own[step.axis]);
    if (step.fromDim < 0)
      continue;
    next[device][step.fromDim].clear();
    for (int64_t peer = 0; peer < static_cast<int64_t>(held.size()); ++peer) {
      std::vector<int64_t> other = coordinatesOf(peer, meshShape);
      other[step.axis] = own[step.axis];
      if (other == own)
        llvm::append_range(next[device][step.fromDim], held[peer][step.fromDim]);
    }
  }
  return next;
}

/// Seconds of one step by the formulas, independent of the planner's tables.
static int64_t stepPicoseconds(const ReshardStep &step, const ShardingSpec &from, double bytes,
                               const CostModel &model) {
  llvm::ArrayRef<int64_t> meshShape = model.getMesh().shape;
  double local = bytes / static_cast<double>(from.numPieces(meshShape));
  switch (step.kind) {
  case ReshardKind::Slice:
    return 0;
  case ReshardKind::AllGather:
    return toPicoseconds(
        model.allGatherSeconds(local * static_cast<double>(meshShape[step.axis]), step.axis));
  case ReshardKind::AllToAll:
    return toPicoseconds(model.allToAllSeconds(local, step.axis));
  case ReshardKind::Permute:
    break;
  }
  double seconds = 0;
  for (auto [source, target] : permutePairs(from, step.spec, meshShape))
    for (unsigned axis = 0; axis < meshShape.size(); ++axis)
      if (coordinatesOf(source, meshShape)[axis] != coordinatesOf(target, meshShape)[axis])
        seconds = std::max(seconds, model.collectivePermuteSeconds(local, axis));
  return toPicoseconds(seconds);
}

static void testAllPairs(llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> meshShape) {
  CostModel model = makeModel(meshShape);
  int64_t devices = 1;
  double bytes = 4;
  for (int64_t size : meshShape)
    devices *= size;
  for (int64_t size : shape)
    bytes *= static_cast<double>(size);
  ReshardPlanner planner(model);
  TensorReshards &tensor = planner.of(shape, bytes);
  for (PackedSpec packedFrom : allSpecs(shape, meshShape))
    for (PackedSpec packedTo : allSpecs(shape, meshShape)) {
      ShardingSpec from = packedFrom.unpack(shape.size(), meshShape.size());
      ShardingSpec to = packedTo.unpack(shape.size(), meshShape.size());
      auto path = tensor.path(from, to);
      CHECK(path.has_value());
      if (!path)
        continue;
      Holding held = holdingOf(from, shape, meshShape, devices);
      ShardingSpec now = from;
      int64_t cost = 0;
      for (const ReshardStep &step : *path) {
        auto single = singleStep(now, step.spec, meshShape);
        CHECK(single && single->kind == step.kind && single->fromDim == step.fromDim &&
              single->toDim == step.toDim && single->axis == step.axis);
        cost += stepPicoseconds(step, now, bytes, model);
        held = play(step, now, held, meshShape);
        now = step.spec;
        CHECK(held == holdingOf(now, shape, meshShape, devices));
      }
      CHECK(now == to);
      CHECK(cost == tensor.picoseconds(packedFrom, packedTo));
    }
}

static ShardingSpec spec(llvm::ArrayRef<llvm::SmallVector<unsigned, 2>> dims) {
  ShardingSpec result;
  result.dims.assign(dims.begin(), dims.end());
  return result;
}

/// Zheng et al., "Alpa" (OSDI 2022), table 2: M bytes on an n0 x n1 mesh.
static void testTable2() {
  CostModel model = makeModel({2, 4});
  const double m = 1 << 20;
  ReshardPlanner planner(model);
  TensorReshards &tensor = planner.of({512, 512}, m);
  auto cost = [&](const ShardingSpec &from, const ShardingSpec &to) {
    ShardingSpec now = from;
    int64_t sum = 0;
    auto path = tensor.path(from, to);
    for (const ReshardStep &step : *path) {
      sum += stepPicoseconds(step, now, m, model);
      now = step.spec;
    }
    return sum;
  };
  auto whole = spec({{}, {}}), rows = spec({{0}, {}}), columns = spec({{}, {0}}),
       both = spec({{0}, {1}}), line = spec({{0, 1}, {}});
  CHECK(cost(whole, both) == 0);
  CHECK(cost(rows, whole) == toPicoseconds(model.allGatherSeconds(m, 0)));
  CHECK(cost(both, rows) == toPicoseconds(model.allGatherSeconds(m / 2, 1)));
  CHECK(cost(rows, columns) == toPicoseconds(model.allToAllSeconds(m / 2, 0)));
  CHECK(cost(both, line) == toPicoseconds(model.allToAllSeconds(m / 8, 1)));
}

static void testPermutes() {
  CostModel model = makeModel({2, 2});
  ReshardPlanner planner(model);
  TensorReshards &tensor = planner.of({8, 8}, 256);
  auto kinds = [&](const ShardingSpec &from, const ShardingSpec &to) {
    std::string text;
    auto path = tensor.path(from, to);
    for (const ReshardStep &step : *path)
      text += std::string("sgap").substr(static_cast<size_t>(step.kind), 1);
    return text;
  };
  CHECK(kinds(spec({{0, 1}, {}}), spec({{1, 0}, {}})) == "p");
  CHECK(kinds(spec({{0}, {}}), spec({{1}, {}})) == "p"); // One message, no gather.
  CHECK(kinds(spec({{0}, {1}}), spec({{1}, {0}})) == "p");
  CHECK(kinds(spec({{0, 1}, {}}), spec({{0}, {}})) == "g");
  CHECK(kinds(spec({{0, 1}, {}}), spec({{1}, {}})) == "pg"); // The major axis first gets minor.
  // Parts of three do not split in two.
  TensorReshards &odd = planner.of({6, 8}, 192);
  CHECK(!odd.path(spec({{0, 1}, {}}), spec({{}, {}})));
  CHECK(odd.path(spec({{0}, {1}}), spec({{}, {}})));
}

int main() {
  testTable2();
  testPermutes();
  testAllPairs({16, 8}, {2, 2});
  testAllPairs({8, 16}, {2, 4});
  testAllPairs({16, 24, 8}, {4, 2});
  testAllPairs({6, 8}, {3, 2});
  testAllPairs({8, 8, 8}, {2, 2, 2});
  testAllPairs({8, 12}, {2, 2, 3});
  testAllPairs({8, 0}, {2, 2});
  testAllPairs({16}, {1, 4});
  if (!failures)
    llvm::outs() << "all passed\n";
  return failures != 0;
}
