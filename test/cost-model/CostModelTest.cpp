//===- CostModelTest.cpp - clusters, meshes and cost formulas -------------===//
//
// Without arguments: checks properties. With preset or file names: prints each
// cluster as read, or the error.
//
//===----------------------------------------------------------------------===//

#include "compiler/CostModel/CostModel.h"
#include "test/Check.h"

#include "llvm/Support/raw_ostream.h"

#include <cmath>
#include <random>

using namespace alpa;
using namespace alpa::cost;

static bool close(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(a, b); }

static Cluster makeCluster(int64_t hosts, int64_t devices) {
  Cluster cluster;
  DeviceType type;
  type.name = "d";
  type.memoryBytes = 1 << 30;
  type.memoryBandwidthBytesPerSecond = 1e11;
  type.peakFlopsPerSecond["float32"] = 1e12;
  type.peakFlopsPerSecond["bfloat16"] = 4e12;
  cluster.deviceTypes.push_back(type);
  cluster.hosts.assign(hosts, {0, devices});
  cluster.intraHost = {1e11, 1e-6};
  cluster.interHost = {1e10, 1e-5};
  return cluster;
}

static LogicalMesh makeMesh(const Cluster &cluster, Submesh submesh,
                            llvm::ArrayRef<int64_t> shape) {
  llvm::Expected<LogicalMesh> mesh = makeLogicalMesh(cluster, submesh, shape);
  if (mesh)
    return std::move(*mesh);
  llvm::errs() << llvm::toString(mesh.takeError()) << "\n";
  exit(1);
}

static std::string shapesOf(const Cluster &cluster) {
  std::string result;
  for (const Submesh &submesh : submeshShapes(cluster)) {
    result += std::to_string(submesh.hosts) + "x" + std::to_string(submesh.devicesPerHost);
    if (submesh.kind != 0)
      result += "@" + std::to_string(submesh.kind);
    if (submesh.racks > 1)
      result += "/" + std::to_string(submesh.racks);
    result += " ";
  }
  return result;
}

static void testSubmeshes() {
  CHECK(shapesOf(makeCluster(2, 4)) == "1x1 1x2 1x4 2x4 ");
  CHECK(shapesOf(makeCluster(3, 6)) == "1x1 1x2 1x3 1x4 1x6 2x6 3x6 ");
  CHECK(shapesOf(makeCluster(1, 1)) == "1x1 ");
  CHECK(shapesOf(makeCluster(20, 1)) == "1x1 2x1 4x1 5x1 8x1 10x1 16x1 20x1 ");
  CHECK(submeshShapes(makeCluster(20, 2), /*everyHostCount=*/true).size() == 21);
  Cluster unequal = makeCluster(2, 8);
  unequal.hosts[1].devices = 4;
  CHECK(shapesOf(unequal) == "1x1 1x2 1x4 1x8 1x1@1 1x2@1 1x4@1 ");
}

/// A mesh has the devices and links of the hosts that it may lie on.
static void testHostKinds() {
  Cluster cluster = makeCluster(4, 4);
  DeviceType small = cluster.deviceTypes.front();
  small.name = "small";
  small.memoryBytes /= 2;
  small.peakFlopsPerSecond["float32"] /= 4;
  cluster.deviceTypes.push_back(small);
  cluster.hosts[1].deviceType = cluster.hosts[3].deviceType = 1;
  cluster.hosts[1].intraHost = cluster.hosts[3].intraHost = Link{5e10, 2e-6};
  CHECK(cluster.hostKinds().size() == 2 && cluster.hostKinds()[1].hosts == 2);
  CHECK((cluster.kindOfHosts() == std::vector<unsigned>{0, 1, 0, 1}));

  LogicalMesh strong = makeMesh(cluster, {2, 4, 0}, {2, 4});
  LogicalMesh weak = makeMesh(cluster, {2, 4, 1}, {2, 4});
  LogicalMesh both = makeMesh(cluster, {3, 4, Submesh::anyKind}, {3, 4});
  CHECK(strong.device.memoryBytes == 2 * weak.device.memoryBytes);
  CHECK(strong.device.peakFlopsPerSecond.lookup("float32") == 1e12);
  CHECK(strong.axes[1] == (Link{1e11, 1e-6}) && weak.axes[1] == (Link{5e10, 2e-6}));
  CHECK(both.device.memoryBytes == weak.device.memoryBytes && both.axes[1] == weak.axes[1]);
  CHECK(both.deviceTypes.size() == 2);
  llvm::Expected<LogicalMesh> tooMany = makeLogicalMesh(cluster, {3, 4, 0}, {3, 4});
  CHECK(!tooMany);
  llvm::consumeError(tooMany.takeError());

  CHECK(submeshOf(cluster, {0, 1}) == (Submesh{1, 2, 0}));
  CHECK(submeshOf(cluster, {4, 5, 12, 13}) == (Submesh{2, 2, 1}));
  CHECK(submeshOf(cluster, {0, 4}) == (Submesh{2, 1, Submesh::anyKind}));
  CHECK(!submeshOf(cluster, {0, 1, 4}) && !submeshOf(cluster, {16}));

  // Devices of different kinds share no host.
  CHECK(transferLink(cluster, {1, 1, 0}, {1, 1, 0}) == (Link{1e11, 1e-6}));
  CHECK(transferLink(cluster, {1, 1, 0}, {1, 1, 1}) == (Link{1e10, 1e-5}));
  CHECK(transferLink(cluster, {1, 1, 0}, {1, 1, 0}, Span::Rack) == (Link{1e10, 1e-5}));
}

static void testMeshes() {
  Cluster cluster = makeCluster(2, 4);
  auto shapes = [&](Submesh submesh) {
    std::string result;
    for (const LogicalMesh &mesh : logicalMeshes(cluster, submesh))
      result += std::to_string(mesh.shape[0]) + "x" + std::to_string(mesh.shape[1]) + " ";
    return result;
  };
  CHECK(shapes({2, 4}) == "1x8 2x4 4x2 ");
  CHECK(shapes({1, 4}) == "1x4 2x2 ");
  CHECK(shapes({1, 1}) == "1x1 ");
  CHECK(shapes({3, 4}).empty());
  // Three axes only where each has devices; equal ones in another order once.
  std::string three;
  for (const LogicalMesh &mesh : logicalMeshes(cluster, {2, 4}, 3))
    if (mesh.shape.size() == 3)
      three += std::to_string(mesh.shape[0]) + "x" + std::to_string(mesh.shape[1]) + "x" +
               std::to_string(mesh.shape[2]) + " ";
  CHECK(three == "2x2x2 ");
  CHECK(logicalMeshes(cluster, {1, 4}, 3).size() == logicalMeshes(cluster, {1, 4}).size());

  // Shape (2, 4): four groups share each host's network along axis 0.
  LogicalMesh mesh = makeMesh(cluster, {2, 4}, {2, 4});
  CHECK(close(mesh.axes[0].bandwidthBytesPerSecond, 1e10 / 4));
  CHECK(close(mesh.axes[1].bandwidthBytesPerSecond, 1e11));
  mesh = makeMesh(cluster, {2, 4}, {4, 2});
  CHECK(close(mesh.axes[0].bandwidthBytesPerSecond, 1e10 / 2));
  mesh = makeMesh(cluster, {2, 4}, {1, 8});
  CHECK(close(mesh.axes[1].bandwidthBytesPerSecond, 1e10));
  mesh = makeMesh(cluster, {2, 4}, {2, 2, 2});
  CHECK(close(mesh.axes[0].bandwidthBytesPerSecond, 1e10 / 4));
  CHECK(close(mesh.axes[2].bandwidthBytesPerSecond, 1e11));
  // Groups of 4 of 12 devices on hosts of 6 do not end where hosts do.
  mesh = makeMesh(makeCluster(2, 6), {2, 6}, {3, 4});
  CHECK(mesh.axes[1].bandwidthBytesPerSecond <= 1e10);

  for (auto shape : {std::vector<int64_t>{}, {3, 3}, {0, 8}, {-2, -4}, {8}, {2, 8}}) {
    llvm::Expected<LogicalMesh> made = makeLogicalMesh(cluster, {2, 4}, shape);
    CHECK(bool(made) == (shape == std::vector<int64_t>{8}));
    if (!made)
      llvm::consumeError(made.takeError());
  }
}

static double between(std::mt19937_64 &random, double low, double high) {
  return low + (high - low) * double(random() >> 11) / 0x1p53;
}

/// Seconds of all kinds of collectives.
using Cost = double (CostModel::*)(double, unsigned) const;
static constexpr Cost costs[] = {&CostModel::allReduceSeconds, &CostModel::allGatherSeconds,
                                 &CostModel::reduceScatterSeconds, &CostModel::allToAllSeconds,
                                 &CostModel::collectivePermuteSeconds};

/// More bytes and slower links are never faster, nothing takes no time, and an all-reduce is
/// never slower than a reduce-scatter and an all-gather.
static void checkOrder(const CostModel &slow, const CostModel &fast, unsigned axis, double bytes,
                       double more) {
  for (Cost cost : costs) {
    CHECK((slow.*cost)(bytes, axis) <= (slow.*cost)(more, axis));
    CHECK((fast.*cost)(bytes, axis) <= (slow.*cost)(bytes, axis));
    CHECK(std::isfinite((slow.*cost)(bytes, axis)) && (slow.*cost)(0, axis) == 0);
  }
  CHECK(slow.allReduceSeconds(bytes, axis) <=
        slow.reduceScatterSeconds(bytes, axis) + slow.allGatherSeconds(bytes, axis));
}

/// A product and its collective in pieces are no faster than the product alone, no slower than
/// both, and never faster for more bytes, more work or a slower link.
static void testPieces() {
  std::mt19937_64 random(3);
  auto uniform = [&](double low, double high) { return between(random, low, high); };
  int numFaster = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    Cluster cluster = makeCluster(1, 8);
    DeviceType &type = cluster.deviceTypes[0];
    cluster.intraHost = {uniform(1e8, 1e10), uniform(0, 1e-5)};
    type.multiprocessors = static_cast<int64_t>(random() % 100);
    type.launchSeconds = uniform(0, 1e-5);
    type.overlapSlowdown = uniform(0.05, 0.95);
    Cluster slower = cluster, without = cluster, alone = cluster;
    slower.deviceTypes[0].collectiveMatmul = type.collectiveMatmul = true;
    alone.deviceTypes[0].collectiveMatmul = true;
    alone.deviceTypes[0].overlapSlowdown = 1;
    slower.intraHost.bandwidthBytesPerSecond /= uniform(1, 3);
    slower.deviceTypes[0].overlapSlowdown *= uniform(1, 1.05);

    CollectiveMatmul less;
    less.collective = random() % 2 ? Collective::AllGather : Collective::ReduceScatter;
    less.cutsRows = random() % 2;
    less.keepsWhole = random() % 2;
    less.elementBytes = 4;
    less.dtype = "float32";
    less.bytes = uniform(1e3, 1e9);
    less.product = {1, std::ceil(uniform(1, 1e4)), std::ceil(uniform(1, 1e4)),
                    std::ceil(uniform(1, 1e4))};
    CollectiveMatmul bytes = less, work = less;
    bytes.bytes *= uniform(1, 3);
    work.product.inner *= 2;
    auto seconds = [](const Cluster &of, const CollectiveMatmul &matmul) {
      CostModel model(makeMesh(of, {1, 8}, {8}));
      const Product &p = matmul.product;
      double elements = p.rows * p.inner + p.inner * p.columns + p.rows * p.columns;
      double product = model.kernelSeconds(2 * p.rows * p.columns * p.inner,
                                           matmul.elementBytes * elements, matmul.dtype, p);
      double collective = matmul.collective == Collective::AllGather
                              ? model.allGatherSeconds(matmul.bytes, 0)
                              : model.reduceScatterSeconds(matmul.bytes, 0);
      double saved = model.savedByPieces(matmul);
      CHECK(saved >= 0 && saved <= collective);
      return product + collective - saved;
    };
    double here = seconds(cluster, less);
    numFaster += here < seconds(without, less);
    CHECK(here <= seconds(without, less));
    CHECK(seconds(alone, less) == seconds(without, less)); // Nothing hides.
    for (double more : {seconds(slower, less), seconds(cluster, bytes), seconds(cluster, work)})
      CHECK(here <= more * (1 + 1e-12));
  }
  CHECK(numFaster > 100);
  // Four pieces of 0.25 s of work, and three messages of 1 s: one of 4 is not hidden, and both
  // sides lose a tenth. Results that are put in place are small beside the rest.
  Cluster cluster = makeCluster(1, 4);
  cluster.deviceTypes[0].collectiveMatmul = true;
  cluster.deviceTypes[0].overlapSlowdown = 0.1;
  cluster.intraHost = {1e9, 0};
  CostModel model(makeMesh(cluster, {1, 4}, {4}));
  CollectiveMatmul matmul{
      Collective::AllGather, 0, 4e9, {1, 4e3, 1e3, 1.25e5}, true, false, 1, "float32"};
  double expected = (3 + 0.1 * 1) + 0.9 * 1 / 4;
  CHECK(std::abs(1 + 3 - model.savedByPieces(matmul) - expected) < 1e-3);
}

static void testCosts() {
  std::mt19937_64 random(0);
  auto uniform = [&](double low, double high) { return between(random, low, high); };
  for (int trial = 0; trial < 200; ++trial) {
    Cluster cluster = makeCluster(1 + random() % 4, 1 + random() % 8);
    cluster.intraHost = {uniform(1e9, 1e12), uniform(0, 1e-4)};
    cluster.interHost = {uniform(1e8, 1e11), uniform(0, 1e-3)};
    for (const Submesh &submesh : submeshShapes(cluster))
      for (const LogicalMesh &mesh : logicalMeshes(cluster, submesh)) {
        CostModel model(mesh);
        CHECK(mesh.numDevices() == submesh.numDevices());
        for (unsigned axis = 0; axis < 2; ++axis) {
          double bytes = uniform(1, 1e9), more = bytes + uniform(1, 1e9);
          for (Cost cost : costs) {
            double less = (model.*cost)(bytes, axis);
            CHECK(std::isfinite(less) && less >= 0);
            CHECK((model.*cost)(0, axis) == 0);
            if (mesh.shape[axis] == 1)
              CHECK(less == 0);
            else
              CHECK(less < (model.*cost)(more, axis));
          }
          // At most its two halves, and at least each of them.
          double reduced = model.allReduceSeconds(bytes, axis),
                 scattered = model.reduceScatterSeconds(bytes, axis),
                 gathered = model.allGatherSeconds(bytes, axis);
          CHECK(reduced <= scattered + gathered && reduced >= std::max(scattered, gathered));
        }
      }
    // More devices on an axis, all on one host, are never faster; more bandwidth
    // or less latency is never slower, within hosts and between.
    double bytes = uniform(1, 1e9);
    for (Cost cost : costs)
      for (int64_t devices = 2; devices < 9; ++devices) {
        Cluster host = cluster;
        host.hosts.assign(1, {0, 9});
        CostModel fewer(makeMesh(host, {1, devices}, {devices})),
            more(makeMesh(host, {1, devices + 1}, {devices + 1}));
        CHECK((fewer.*cost)(bytes, 0) <= (more.*cost)(bytes, 0));
        Cluster pair = cluster, faster = cluster;
        pair.hosts.assign(2, {0, devices});
        faster.hosts = pair.hosts;
        faster.intraHost.bandwidthBytesPerSecond *= uniform(1, 3);
        faster.interHost.bandwidthBytesPerSecond *= uniform(1, 3);
        faster.intraHost.latencySeconds *= uniform(0, 1);
        for (auto shape : {std::vector<int64_t>{2 * devices}, {2, devices}, {devices, 2}}) {
          CostModel slow(makeMesh(pair, {2, devices}, shape)),
              fast(makeMesh(faster, {2, devices}, shape));
          for (unsigned axis = 0; axis < shape.size(); ++axis)
            CHECK((fast.*cost)(bytes, axis) <= (slow.*cost)(bytes, axis));
        }
      }
    CostModel one(makeMesh(cluster, {1, 1}, {1}));
    double flops = uniform(1, 1e15);
    CHECK(one.computeSeconds(flops, bytes, "float32") <=
          one.computeSeconds(2 * flops, bytes, "float32"));
    CHECK(one.computeSeconds(flops, bytes, "float32") <=
          one.computeSeconds(flops, 2 * bytes, "float32"));
    CHECK(transferLink(cluster, {1, 1}, {1, 1}).secondsFor(bytes) <
          transferLink(cluster, {1, 1}, {1, 1}).secondsFor(2 * bytes));
    CHECK(transferLink(cluster, {1, 1}, {1, 1}).secondsFor(0) == 0);
  }

  // 4 devices: 2 steps that double, of a quarter and a half; twice for a long sum,
  // and for a short one all four buffers.
  CostModel model(makeMesh(makeCluster(2, 4), {1, 4}, {1, 4}));
  CHECK(close(model.allGatherSeconds(4e8, 1), 2e-6 + 3e8 / 1e11));
  CHECK(close(model.allReduceSeconds(4e8, 1), 2 * (2e-6 + 3e8 / 1e11)));
  CHECK(close(model.allReduceSeconds(40, 1), 2e-6 + 120 / 1e11));
  CHECK(close(model.allToAllSeconds(4e8, 1), 3e-6 + 3e8 / 1e11));
  CHECK(close(model.allToAllSeconds(4, 1), 2e-6 + 4 / 1e11));
  CHECK(close(model.collectivePermuteSeconds(4e8, 1), 1e-6 + 4e8 / 1e11));
  // 8 devices on two hosts: 4 of them send half of their part through one link; in
  // a ring only one message leaves a host at a time.
  CostModel flat(makeMesh(makeCluster(2, 4), {2, 4}, {1, 8}));
  CHECK(close(flat.allToAllSeconds(8e8, 1), 7e-5 + 4 * 4e8 / 1e10));
  CHECK(close(flat.allGatherSeconds(8e8, 1), 7e-5 + 7e8 / 1e10));
  CHECK(close(flat.collectivePermuteSeconds(8e8, 1), 1e-5 + 4 * 8e8 / 1e10));
  // Bound by arithmetic, by memory, and dtypes without a rate of their own.
  CHECK(close(model.computeSeconds(1e12, 1e3, "float32"), 1));
  CHECK(close(model.computeSeconds(1e12, 1e3, "bf16"), 0.25));
  CHECK(close(model.computeSeconds(1e3, 1e11, "float32"), 1));
  CHECK(close(model.computeSeconds(1e12, 0, "int32"), 1));
  CHECK(model.computeSeconds(0, 0, "float32") == 0);
  // The part of a peak that is reached.
  Cluster slower = makeCluster(1, 1);
  slower.deviceTypes[0].efficiency["float32"] = 0.5;
  slower.deviceTypes[0].efficiency["memory"] = 0.25;
  CostModel part(makeMesh(slower, {1, 1}, {1}));
  CHECK(close(part.computeSeconds(1e12, 0, "float32"), 2));
  CHECK(close(part.computeSeconds(1e12, 0, "bfloat16"), 0.25));
  CHECK(close(part.computeSeconds(0, 1e11, "float32"), 4));
  // Tiles of a product: 4 x 8 of [256, 128] on as many multiprocessors, and a half of
  // them; a short product leaves most of them idle, a deep one less.
  Cluster tiled = makeCluster(1, 1);
  tiled.deviceTypes[0].multiprocessors = 32;
  CostModel tiles(makeMesh(tiled, {1, 1}, {1}));
  auto seconds = [&](Product product) {
    double flops = 2 * product.count * product.rows * product.columns * product.inner;
    return tiles.computeSeconds(flops, 0, "float32", product);
  };
  double full = 2 * 1024.0 * 1024 * (4096 + 128) / 1e12;
  CHECK(close(seconds({1, 1024, 1024, 4096}), full));
  CHECK(close(seconds({32, 256, 128, 4096}), full));
  CHECK(close(seconds({1, 1024, 1025, 4096}), 2 * full) ||
        seconds({1, 1024, 1025, 4096}) < 2 * full);
  CHECK(seconds({1, 128, 1024, 4096}) > full / 8);
  CHECK(seconds({1, 64, 64, 65536}) < 32 * seconds({1, 64, 64, 4096}));
  CHECK(close(tiles.computeSeconds(1e12, 0, "float32"), 1)); // No product.
  // Sums of products (a row's loss) and products without a sum (the scale of a norm).
  CHECK(close(seconds({16384, 1, 1, 4096}), 2 * 16384.0 * 4096 / 1e12));
  CHECK(close(seconds({4096, 16384, 1, 1}), 2 * 16384.0 * 4096 / 1e12));
  // CUDA devices have tensor cores for float32, whose tiles these are, from 8.0 on.
  Product small{1, 100, 100, 100};
  for (double capability : {7.0, 8.0}) {
    tiled.deviceTypes[0].computeCapability = capability;
    CostModel cores(makeMesh(tiled, {1, 1}, {1}));
    CHECK(close(cores.computeSeconds(2e6, 0, "float32", small), 2e6 / 1e12) == (capability < 8));
  }
  // Where a device says what TF32 reaches, float32 has none, and is what measured dots are not.
  tiled.deviceTypes[0].peakFlopsPerSecond["tf32"] = 8e12;
  LogicalMesh rounded = makeMesh(tiled, {1, 1}, {1});
  CHECK(close(CostModel(rounded).computeSeconds(2e6, 0, "float32", small), 2e6 / 1e12));
  CHECK(!close(CostModel(rounded).computeSeconds(2e6, 0, "tf32/float32", small), 2e6 / 8e12));
  CHECK(close(CostModel(rounded).computeSeconds(8e12, 0, "tf32/float32"), 1));
  tiled.deviceTypes[0].peakFlopsPerSecond.erase("tf32");
  CHECK(close(CostModel(makeMesh(tiled, {1, 1}, {1})).computeSeconds(1e12, 0, "tf32/float32"), 1));
  for (int trial = 0; trial < 200; ++trial) {
    Product product{std::ceil(uniform(0, 40)), std::ceil(uniform(0, 5000)),
                    std::ceil(uniform(0, 5000)), std::ceil(uniform(0, 9000))};
    for (double Product::*size :
         {&Product::count, &Product::rows, &Product::columns, &Product::inner}) {
      Product larger = product;
      larger.*size += std::ceil(uniform(0, 300));
      CHECK(seconds(product) <= seconds(larger));
    }
    // Never faster than the device.
    CHECK(seconds(product) * 1e12 >=
          2 * product.count * product.rows * product.columns * product.inner);
  }
  // Rows of no multiple of 16 bytes, where the device says what that costs.
  Product odd{1, 1024, 1001, 4096, 1001};
  for (double part : {1.0, 0.25}) {
    tiled.deviceTypes[0].efficiency["unaligned"] = part;
    CostModel rows(makeMesh(tiled, {1, 1}, {1}));
    CHECK(rows.alignedPart(odd, "bf16") == part && rows.alignedPart(odd, "i8") == part);
    CHECK(rows.alignedPart(odd, "f32") == 1); // Measured of 16 bits alone.
    Product even = odd;
    even.alignment = 1000;
    CHECK(rows.alignedPart(even, "bf16") == 1 && rows.alignedPart(Product(), "bf16") == 1);
    CHECK(close(rows.computeSeconds(1e12, 0, "bf16", odd) * part,
                rows.computeSeconds(1e12, 0, "bf16", even)));
  }
  tiled.deviceTypes[0].efficiency.clear();
  // A kernel of its own takes at least as long as its launch.
  tiled.deviceTypes[0].launchSeconds = 1e-3;
  CostModel launched(makeMesh(tiled, {1, 1}, {1}));
  CHECK(launched.kernelSeconds(1, 1, "float32") == 1e-3);
  CHECK(launched.computeSeconds(1, 1, "float32") < 1e-3);
  CHECK(close(launched.kernelSeconds(1e12, 0, "float32"), 1));
  // Of a link's bandwidth a part is reached.
  Cluster reached = makeCluster(2, 4);
  reached.intraHost.efficiency = 0.5;
  reached.interHost.efficiency = 0.25;
  CostModel half(makeMesh(reached, {2, 4}, {2, 4}));
  CHECK(close(half.allGatherSeconds(4e8, 1), 2e-6 + 3e8 / 5e10));
  CHECK(close(half.getMesh().axes[0].bandwidthBytesPerSecond, 1e10 / 4 / 4));
  CHECK(close(transferLink(reached, {1, 4}, {1, 4}, Span::Rack).bandwidthBytesPerSecond, 1e10 / 4));
  // Hosts of one cluster, then between hosts: the network is slower.
  Cluster two = makeCluster(2, 4);
  CHECK(transferLink(two, {1, 2}, {1, 2}).secondsFor(1e9) <
        transferLink(two, {1, 4}, {1, 4}).secondsFor(1e9));
}

/// NCCL's algorithms, each with its best protocol.
/// Devices that are linked to each other have less bandwidth among fewer of them.
static void testHostMemory() {
  Cluster cluster = makeCluster(2, 4);
  CHECK(!makeMesh(cluster, {1, 4}, {1, 4}).hostMemory);
  cluster.hosts[0].memory = HostMemory{4000, {1e9, 1e-5, 0.5}};
  // Of one kind of hosts each; two together have the worse of both.
  CHECK(cluster.hostKinds().size() == 2);
  LogicalMesh mesh = makeMesh(cluster, {1, 2, 0}, {1, 2});
  CHECK(mesh.hostMemory && mesh.hostMemory->bytes == 1000);
  CostModel model(mesh);
  CHECK(close(model.hostSeconds(5e8), 1 + 1e-5) && model.hostSeconds(0) == 0);
  CHECK(!makeMesh(cluster, {2, 4, Submesh::anyKind}, {2, 4}).hostMemory);
  std::string key = printMesh(mesh);
  cluster.hosts[1].memory = HostMemory{800, {2e9, 1e-3}};
  mesh = makeMesh(cluster, {2, 4, Submesh::anyKind}, {2, 4});
  CHECK(mesh.hostMemory && mesh.hostMemory->bytes == 200);
  CHECK(close(mesh.hostMemory->link.bandwidthBytesPerSecond, 5e8) &&
        close(mesh.hostMemory->link.latencySeconds, 1e-3));
  cluster.hosts[0].memory->bytes *= 2;
  CHECK(printMesh(makeMesh(cluster, {1, 2, 0}, {1, 2})) != key);
}

static void testGroups() {
  Cluster cluster = makeCluster(2, 8);
  cluster.intraHost = {8e10, 0, /*efficiency=*/0.5, {}, {{2, 2e10}, {4, 4e10}}};
  CostModel one(makeMesh(cluster, {1, 8}, {2, 4}));
  CHECK(close(one.allGatherSeconds(4e8, 0), 2e8 / 1e10));
  CHECK(close(one.allGatherSeconds(4e8, 1), 3e8 / 2e10));
  CHECK(close(CostModel(makeMesh(cluster, {1, 8}, {1, 8})).allGatherSeconds(4e8, 1), 3.5e8 / 4e10));
  CHECK(close(CostModel(makeMesh(cluster, {1, 3}, {1, 3})).allGatherSeconds(3e8, 1), 2e8 / 2e10));
  // Between hosts the links within count for those of a group that share a host.
  cluster.interHost.bandwidthBytesPerSecond = 1e12;
  CostModel both(makeMesh(cluster, {2, 8}, {4, 4}));
  CHECK(both.getMesh().axes[0].bandwidthBytesPerSecond == 1e10);
  // Of two links each group has the slower.
  Link other{6e10, 0, 1, {}, {{3, 3e9}}};
  Link slower = cluster.intraHost.reachable().slower(other);
  CHECK(slower.groups == (std::vector<std::pair<int64_t, double>>{{2, 3e9}, {3, 3e9}, {4, 2e10}}));
  CHECK(slower.bandwidthBytesPerSecond == 4e10);
}

static void testNccl() {
  Cluster cluster = makeCluster(2, 4);
  cluster.intraHost = {1e11, 3e-6, 1, NcclSteps{5e-7, 2e-6, 0}};
  cluster.interHost = {1e10, 1e-5, 1, NcclSteps{2e-6, 4e-6, 0}};
  CostModel model(makeMesh(cluster, {1, 4}, {1, 4}));
  // Rings: of large messages with the Simple protocol, of small ones with LL at a
  // quarter of the bandwidth, between them with LL128.
  CHECK(close(model.allGatherSeconds(4e8, 1), 3 * 3e-6 + 3e8 / 1e11));
  CHECK(close(model.reduceScatterSeconds(4e3, 1), 3 * 5e-7 + 3e3 / 2.5e10));
  CHECK(close(model.allGatherSeconds(1e6, 1), 3 * 2e-6 + 7.5e5 / 9.2e10));
  CHECK(close(model.allReduceSeconds(4e8, 1), 2 * (3 * 3e-6 + 3e8 / 1e11)));
  CHECK(close(model.collectivePermuteSeconds(1e3, 1), 5e-7 + 1e3 / 2.5e10));
  CHECK(close(model.collectivePermuteSeconds(1e6, 1), 3e-6 + 1e6 / 1e11));
  CHECK(close(model.allToAllSeconds(4e8, 1), 3e-6 + 3e8 / 1e11));
  // On two hosts one step of the ring leaves a host; trees have fewer steps for sums.
  CostModel flat(makeMesh(cluster, {2, 4}, {1, 8}));
  CHECK(close(flat.allGatherSeconds(8e8, 1), 1e-5 + 6 * 3e-6 + 7e8 / 1e10));
  CHECK(close(flat.allReduceSeconds(8, 1), 2 * 2e-6 + 6 * 5e-7 + 2 * 8 / 0.9 / 2.5e9));
  CHECK(close(flat.allReduceSeconds(8e8, 1), 2 * (1e-5 + 6 * 3e-6 + 7e8 / 1e10)));
  // One device on each host: doubling.
  CostModel thin(makeMesh(makeCluster(8, 1), {8, 1}, {8, 1}));
  Cluster hosts = makeCluster(8, 1);
  hosts.intraHost = cluster.intraHost;
  hosts.interHost = {1e10, 1e-5, 1, NcclSteps()};
  CostModel patterned(makeMesh(hosts, {8, 1}, {8, 1}));
  CHECK(close(patterned.allGatherSeconds(8e6, 0), 3e-5 + 7e6 / 1e10));
  CHECK(close(patterned.allGatherSeconds(8e6, 0), thin.allGatherSeconds(8e6, 0)));
  // A switch that adds up sends less and has one step, but a long one.
  Cluster switched = cluster;
  switched.intraHost.nccl->nvls = 2e-5;
  CostModel nvls(makeMesh(switched, {1, 4}, {1, 4}));
  CHECK(close(nvls.allReduceSeconds(4e8, 1), 2e-5 + 4.0 / 3 * 4e8 / 1e11));
  CHECK(nvls.allReduceSeconds(4e3, 1) == model.allReduceSeconds(4e3, 1));
  CostModel acrossHosts(makeMesh(switched, {2, 4}, {1, 8}));
  CHECK(acrossHosts.allReduceSeconds(8e8, 1) == flat.allReduceSeconds(8e8, 1));
  // A link that both hosts do not have is none of an axis that spans them.
  CHECK(!cluster.intraHost.slower({1e10, 1e-5}).nccl);

  std::mt19937_64 random(2);
  auto uniform = [&](double low, double high) { return between(random, low, high); };
  for (int trial = 0; trial < 200; ++trial) {
    auto link = [&] {
      double least = uniform(1e-7, 1e-5);
      NcclSteps steps{least, trial % 3 ? least * uniform(1, 3) : 0, 0};
      return Link{uniform(1e9, 1e12), least * uniform(3, 6), 1, steps};
    };
    Cluster some = makeCluster(1 + random() % 5, 9);
    some.intraHost = link();
    some.interHost = link();
    if (trial % 2)
      some.intraHost.nccl->nvls = uniform(1e-6, 1e-4);
    Cluster faster = some;
    for (Link *better : {&faster.intraHost, &faster.interHost}) {
      better->bandwidthBytesPerSecond *= uniform(1, 3);
      for (double *seconds :
           {&better->latencySeconds, &better->nccl->ll, &better->nccl->ll128, &better->nccl->nvls})
        *seconds *= uniform(0.1, 1);
    }
    double bytes = std::exp(uniform(0, 20)), more = bytes * uniform(1, 3);
    int64_t all = int64_t(some.hosts.size());
    for (auto shape : {std::vector<int64_t>{9 * all}, {all, 9}, {3 * all, 3}}) {
      CostModel slow(makeMesh(some, {all, 9}, shape)), fast(makeMesh(faster, {all, 9}, shape));
      for (unsigned axis = 0; axis < shape.size(); ++axis) {
        checkOrder(slow, fast, axis, bytes, more);
      }
    }
    for (Cost cost : costs)
      for (int64_t devices = 2; devices < 9; ++devices) {
        CostModel fewer(makeMesh(some, {1, devices}, {devices})),
            larger(makeMesh(some, {1, devices + 1}, {devices + 1}));
        CHECK((fewer.*cost)(bytes, 0) <= (larger.*cost)(bytes, 0));
      }
  }
}

/// Two racks of two hosts of two devices.
static Cluster makeRacks() {
  Cluster cluster = makeCluster(4, 2);
  cluster.interHost = {4e10, 1e-5};
  cluster.racks = Racks{/*hosts=*/2, /*nics=*/1, {1e10, 1e-4}};
  return cluster;
}

static void testRacks() {
  Cluster cluster = makeRacks();
  CHECK(cluster.numRacks() == 2 && cluster.rackOf(1) == 0 && cluster.rackOf(2) == 1);
  CHECK(shapesOf(cluster) == "1x1 1x2 2x2 4x2/2 ");
  Cluster nvl = makeCluster(36, 4);
  nvl.racks = Racks{18, 72, {1e10, 1e-4}};
  CHECK(shapesOf(nvl) == "1x1 1x2 1x4 2x4 3x4 4x4 6x4 8x4 9x4 16x4 18x4 36x4/2 32x4/2 ");
  // The last rack may have fewer hosts; all of them are a submesh none the less.
  Cluster uneven = makeRacks();
  uneven.hosts.pop_back();
  CHECK(shapesOf(uneven) == "1x1 1x2 2x2 3x2/2 ");
  // Kinds of hosts in racks of their own, and in the same racks.
  Cluster mixed = makeRacks();
  for (int host : {2, 3})
    mixed.hosts[host].nics = 2;
  CHECK(shapesOf(mixed) == "1x1 1x2 2x2 1x1@1 1x2@1 2x2@1 4x2@-1/2 ");
  CHECK((mixed.hostKinds()[1].hostsInRack == std::vector<int64_t>{0, 2}));

  CHECK(spreadOverRacks(cluster, {2, 2})->racks == 1 &&
        spreadOverRacks(cluster, {4, 2})->racks == 2);
  CHECK(!spreadOverRacks(cluster, {3, 2}) && spreadOverRacks(uneven, {3, 2})->racks == 2);
  CHECK(spreadOverRacks(nvl, {24, 4})->hostsPerRack() == 12);
  CHECK(submeshOf(cluster, {0, 1, 2, 3})->racks == 1);
  CHECK(submeshOf(cluster, {0, 1, 4, 5})->racks == 2);
  CHECK(!submeshOf(nvl, {0, 72, 76}) && submeshOf(nvl, {0, 4, 72})->racks == 2);

  // As many hosts of one rack and of two are different meshes.
  LogicalMesh within = makeMesh(cluster, {2, 2}, {4, 1}),
              across = makeMesh(cluster, {2, 2, 0, 2}, {4, 1});
  CHECK(printMesh(within) != printMesh(across));
  CHECK(within.axes[0] == (Link{4e10, 1e-5}) && across.axes[0] == (Link{1e10, 1e-4}));
  CHECK(close(CostModel(within).allGatherSeconds(4e8, 0), 3e-5 + 3e8 / 4e10));
  // Four groups of two devices, one in each rack, share each rack's link.
  LogicalMesh both = makeMesh(cluster, {4, 2, 0, 2}, {2, 4});
  CHECK(close(both.axes[0].bandwidthBytesPerSecond, 1e10 / 4));
  CHECK(close(both.axes[1].bandwidthBytesPerSecond, 4e10));
  CHECK(both.devicesInRack[0] == 1 && both.devicesInRack[1] == 4 && both.groupsPerRack[0] == 4);

  // All eight devices: a ring crosses racks with one message at a time; else four
  // devices of a rack send half of their part to the other one.
  CostModel flat(makeMesh(cluster, {4, 2, 0, 2}, {1, 8}));
  CHECK(close(flat.allGatherSeconds(8e8, 1), 7e-4 + 7e8 / 1e10));
  CHECK(close(flat.allGatherSeconds(8, 1), 3e-4 + 4 * 4 / 1e10));
  CHECK(close(flat.allToAllSeconds(8e8, 1), 7e-4 + 4 * 4e8 / 1e10));
  CHECK(close(flat.collectivePermuteSeconds(8e8, 1), 1e-4 + 4 * 8e8 / 1e10));

  // NCCL: steps of each level.
  Cluster nccl = makeRacks();
  nccl.intraHost.nccl = NcclSteps{1e-7, 0, 0};
  nccl.interHost.nccl = NcclSteps{1e-6, 0, 0};
  nccl.racks->interRack.nccl = NcclSteps{1e-5, 0, 0};
  CostModel levels(makeMesh(nccl, {4, 2, 0, 2}, {1, 8}));
  CHECK(close(levels.allGatherSeconds(8e8, 1), 1e-4 + 2 * 1e-5 + 4 * 1e-6 + 7e8 / 1e10));
  CHECK(
      close(levels.allReduceSeconds(8, 1), 2 * (1e-5 + 1e-6 + 1e-7) + 2 * 8 / 0.9 / (0.25 * 1e10)));
  // With a switch for all of a rack, that is one host.
  nccl.interHost.nccl->nvls = 2e-6;
  CostModel racks(makeMesh(nccl, {4, 2, 0, 2}, {1, 8}));
  CHECK(close(racks.allReduceSeconds(8, 1),
              2 * (1e-5 + 1e-6 + 2 * 1e-7) + 2 * 8 / 0.9 / (0.25 * 1e10)));
  CostModel rack(makeMesh(nccl, {2, 2}, {1, 4}));
  CHECK(close(rack.allReduceSeconds(4e8, 1), 2e-6 + 4.0 / 3 * 4e8 / 4e10));

  // Stages share a rack if they fit into one.
  CHECK(transferLink(cluster, {1, 2}, {1, 2}) == (Link{4e10, 1e-5}));
  CHECK(transferLink(cluster, {2, 2}, {2, 2}) == (Link{1e10, 1e-4}));
  CHECK(transferLink(cluster, {1, 2}, {1, 2}, Span::Cluster) == (Link{1e10, 1e-4}));
  CHECK(transferLink(mixed, {1, 2, 0}, {1, 2, 1}) == (Link{1e10, 1e-4}));
  cluster.racks->nics = 4; // Each device has a part of its own.
  CHECK(transferLink(cluster, {1, 2}, {1, 2}, Span::Cluster) == (Link{5e9, 1e-4}));

  llvm::Expected<Cluster> pair = loadCluster("gb200-nvl72:2");
  CHECK(pair && pair->numDevices() == 144 && pair->numRacks() == 2);
  CHECK(close(makeMesh(*pair, {36, 4, 0, 2}, {2, 72}).axes[0].bandwidthBytesPerSecond, 0.9 * 50e9));
}

/// Costs on three levels of links: more bytes never faster, better links never slower.
static void testRackCosts() {
  std::mt19937_64 random(3);
  auto uniform = [&](double low, double high) { return between(random, low, high); };
  for (int trial = 0; trial < 150; ++trial) {
    bool isNccl = trial % 2;
    auto link = [&] {
      Link made{std::exp(uniform(20, 27)), uniform(1e-6, 1e-4)};
      if (isNccl) {
        double least = made.latencySeconds * uniform(0.1, 0.9);
        made.nccl = NcclSteps{least, trial % 3 ? uniform(least, made.latencySeconds) : 0, 0};
      }
      return made;
    };
    int64_t perRack = 1 + random() % 4;
    Cluster some = makeCluster(perRack * int64_t(1 + random() % 4) - int64_t(random() % perRack),
                               1 + random() % 4);
    some.intraHost = link();
    some.interHost = link();
    if (isNccl && random() % 2)
      some.interHost.nccl->nvls = uniform(1e-6, 1e-4);
    some.racks = Racks{perRack, int64_t(1 + random() % 16), link()};
    Cluster faster = some;
    for (Link *better : {&faster.intraHost, &faster.interHost, &faster.racks->interRack}) {
      better->bandwidthBytesPerSecond *= uniform(1, 3);
      better->latencySeconds *= uniform(0.1, 1);
      if (better->nccl)
        for (double *seconds : {&better->nccl->ll, &better->nccl->ll128, &better->nccl->nvls})
          *seconds *= uniform(0.1, 1);
    }
    double bytes = std::exp(uniform(0, 20)), more = bytes * uniform(1, 3);
    for (const Submesh &submesh : submeshShapes(some))
      for (const LogicalMesh &mesh : logicalMeshes(some, submesh, 3)) {
        CHECK(mesh.numDevices() == submesh.numDevices());
        CostModel slow(mesh), fast(makeMesh(faster, submesh, mesh.shape));
        for (unsigned axis = 0; axis < mesh.shape.size(); ++axis) {
          checkOrder(slow, fast, axis, bytes, more);
        }
        // Never faster than the same devices in one rack.
        Cluster one = some;
        one.racks.reset();
        if (submesh.racks > 1 &&
            some.racks->interRack.latencySeconds >=
                std::max(some.interHost.latencySeconds, some.intraHost.latencySeconds) &&
            !isNccl) {
          CostModel near(makeMesh(one, {submesh.hosts, submesh.devicesPerHost}, mesh.shape));
          for (unsigned axis = 0; axis < mesh.shape.size(); ++axis)
            for (Cost cost : costs)
              CHECK((near.*cost)(bytes, axis) <= (slow.*cost)(bytes, axis) * (1 + 1e-12));
        }
      }
    std::string text = printCluster(some);
    llvm::Expected<Cluster> again = parseCluster(text, "printed");
    if (!again) {
      llvm::errs() << llvm::toString(again.takeError()) << "\n";
      ++failures;
    } else {
      CHECK(printCluster(*again) == text);
    }
  }
}

static void testProfile() {
  CostTable table({10, 20, 40}, {1, 3, 2}); // The last is noise: never less than 3.
  CHECK(table.at(1) == 1 && table.at(10) == 1 && close(table.at(15), 2));
  CHECK(table.at(20) == 3 && table.at(30) == 3 && table.at(40) == 3);
  CHECK(close(table.at(80), 6));

  llvm::Expected<Profile> profile = parseProfile(R"(
device_types:
  d:
    matmul: {float32: {flops: [1e9, 1e12], seconds: [1e-3, 2]}}
    memory: {bytes: [1e6], seconds: [1e-2]}
collectives:
  - {collective: all_reduce, link: intra_host, devices: 4, bytes: [1e3, 1e6], seconds: [1, 2]}
  - {collective: all_gather, link: inter_host, devices: 2, bytes: [1e3, 1e6], seconds: [3, 4]}
)",
                                                 "profile");
  if (!profile) {
    llvm::errs() << llvm::toString(profile.takeError()) << "\n";
    ++failures;
    return;
  }
  llvm::Expected<Profile> again = parseProfile(printProfile(*profile), "printed");
  CHECK(bool(again) && printProfile(*again) == printProfile(*profile));
  Cluster cluster = makeCluster(2, 4);
  cluster.profile = std::make_shared<Profile>(std::move(*profile));
  std::string text = printCluster(cluster);
  llvm::Expected<Cluster> read = parseCluster(text, "printed");
  CHECK(bool(read) && printCluster(*read) == text);

  CostModel plain(makeMesh(makeCluster(2, 4), {2, 4}, {2, 4}));
  CostModel model(makeMesh(cluster, {2, 4}, {2, 4}));
  CHECK(close(model.allReduceSeconds(5e2, 1), 1));
  CHECK(close(model.allReduceSeconds(2e6, 1), 4));
  // Four groups share each host's network.
  CHECK(close(model.allGatherSeconds(5e5, 0), 8));
  // Not measured: the other collectives, dtypes and other work than dots.
  CHECK(model.allGatherSeconds(1e6, 1) == plain.allGatherSeconds(1e6, 1));
  CHECK(model.allReduceSeconds(1e6, 0) == plain.allReduceSeconds(1e6, 0));
  CHECK(close(model.computeSeconds(1e12, 0, "f32", Product()), 2));
  CHECK(close(model.computeSeconds(1e12, 0, "bf16", Product()), 0.25));
  CHECK(close(model.computeSeconds(1e12, 0, "f32"), 1));
  CHECK(close(model.computeSeconds(0, 2e6, "f32"), 2e-2));
  for (double size = 1; size < 1e13; size *= 1.7) {
    CHECK(model.allReduceSeconds(size, 1) <= model.allReduceSeconds(1.1 * size, 1));
    CHECK(model.computeSeconds(size, 1, "f32", Product()) <=
          model.computeSeconds(1.1 * size, 1, "f32", Product()));
  }
}

static void testPresets() {
  CHECK(!clusterPresets().empty());
  for (llvm::StringRef name : clusterPresets()) {
    llvm::Expected<Cluster> cluster = loadCluster(name);
    if (!cluster) {
      llvm::errs() << llvm::toString(cluster.takeError()) << "\n";
      ++failures;
      continue;
    }
    CHECK(cluster->name == name);
    std::string text = printCluster(*cluster);
    llvm::Expected<Cluster> again = parseCluster(text, "printed");
    CHECK(bool(again));
    if (again)
      CHECK(printCluster(*again) == text);
    else
      llvm::errs() << llvm::toString(again.takeError()) << "\n";
  }
}

/// Damaged text gives an error or a cluster, but never ends the process.
static void testDamage() {
  Cluster cluster = makeCluster(2, 4);
  Profile profile;
  profile.matmul[{"d", "float32"}] = CostTable({1, 2}, {1, 2});
  profile.memory["d"] = CostTable({1, 2}, {1, 2});
  profile.collectives[{Collective::AllToAll, 8, 4}] = CostTable({1, 2}, {1, 2});
  cluster.profile = std::make_shared<Profile>(profile);
  std::string good = printCluster(cluster);
  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string bad = good;
    for (int edit = 0; edit <= trial % 3 && !bad.empty(); ++edit) {
      size_t at = random() % bad.size();
      switch (random() % 3) {
      case 0:
        bad.erase(at, 1 + random() % 9);
        break;
      case 1:
        bad[at] = "{}[]:,\"'-#&*!|>%@ \n\t\\?0a"[random() % 25];
        break;
      default:
        bad.resize(at + 1);
      }
    }
    llvm::Expected<Cluster> parsed = parseCluster(bad, "damaged.yaml");
    if (!parsed)
      CHECK(llvm::StringRef(llvm::toString(parsed.takeError())).starts_with("damaged.yaml:"));
  }
}

int main(int argc, char **argv) {
  for (int i = 1; i < argc; ++i) {
    llvm::Expected<Cluster> cluster = loadCluster(argv[i]);
    if (cluster)
      llvm::outs() << printCluster(*cluster);
    else
      llvm::outs() << "error: " << llvm::toString(cluster.takeError()) << "\n";
  }
  if (argc > 1)
    return 0;
  testSubmeshes();
  testHostKinds();
  testMeshes();
  testCosts();
  testHostMemory();
  testGroups();
  testPieces();
  testNccl();
  testRacks();
  testRackCosts();
  testProfile();
  testPresets();
  testDamage();
  llvm::outs() << (failures ? "failed" : "all passed") << "\n";
  return failures != 0;
}
