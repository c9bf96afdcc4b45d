//===- Cluster.h - description of a GPU cluster ------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_COSTMODEL_CLUSTER_H
#define ALPA_COMPILER_COSTMODEL_CLUSTER_H

#include "compiler/CostModel/Profile.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace alpa::cost {

struct DeviceType {
  std::string name;
  int64_t memoryBytes = 0;
  double memoryBandwidthBytesPerSecond = 0;
  llvm::StringMap<double> peakFlopsPerSecond; // Keyed "float32", "bfloat16", ...
  /// The part of a peak that large operations reach: by dtype for dots and
  /// convolutions, "memory" for memory_bandwidth, "attention" for fused attention, and
  /// "unaligned" for dots of 16 bits and fewer with rows of no multiple of 16 bytes, there
  /// of the rate that dots reach. Where missing, all of it.
  llvm::StringMap<double> efficiency;
  /// Parts that work on tiles of a product side by side; 0 where it is not known, and
  /// products of any shape reach the same rate.
  int64_t multiprocessors = 0;
  /// The least seconds from one kernel to the next, however little it does.
  double launchSeconds = 0;
  /// The seconds that work loses for each second of a collective that runs beside it;
  /// where 1, nothing runs beside collectives.
  double overlapSlowdown = 1;
  /// Gathers that products read and scatters of what they give are cut into pieces that run
  /// beside pieces of these products (collective matmul, asynchronous tensor parallelism).
  bool collectiveMatmul = false;
  /// Of CUDA devices, such as 9.0; 0 for others.
  double computeCapability = 0;

  double reachableFlopsPerSecond(llvm::StringRef dtype) const;
  double reachableBytesPerSecond() const;
  double attentionPart() const;
  double unalignedPart() const;
};

/// Seconds of a step of those ways in which NCCL moves small messages; each is 0 where
/// the link does not have it. Its Simple protocol has the link's own latency.
struct NcclSteps {
  double ll = 0;    // A flag beside every 4 bytes.
  double ll128 = 0; // A flag beside every 120 bytes.
  double nvls = 0;  // All devices at once, in a switch that adds up (NVLink SHARP).

  bool operator==(const NcclSteps &other) const {
    return ll == other.ll && ll128 == other.ll128 && nvls == other.nvls;
  }
};

struct Link {
  /// Per device within a host, per host between hosts, per rack between racks.
  double bandwidthBytesPerSecond = 0;
  double latencySeconds = 0;
  double efficiency = 1; // The part of the bandwidth that large messages reach.
  /// Where collectives are NCCL's; else they are as MPI libraries have them.
  std::optional<NcclSteps> nccl = {};
  /// Within hosts whose devices are linked to each other instead of to a switch: the
  /// bandwidth of a device among so many, in rising order; of more it is the one above.
  std::vector<std::pair<int64_t, double>> groups = {};

  bool operator==(const Link &other) const {
    return bandwidthBytesPerSecond == other.bandwidthBytesPerSecond &&
           latencySeconds == other.latencySeconds && efficiency == other.efficiency &&
           nccl == other.nccl && groups == other.groups;
  }
  /// The link with the bandwidth that it reaches.
  Link reachable() const;
  /// The link of a device among so many of a host that work together.
  Link among(int64_t devices) const;
  /// Of one message; nothing is no message.
  double secondsFor(double bytes) const {
    return bytes > 0 ? latencySeconds + bytes / bandwidthBytesPerSecond : 0;
  }
  /// What a group of devices gets that uses both.
  Link slower(const Link &other) const;
};

/// Memory of a host, and how its devices reach it.
struct HostMemory {
  int64_t bytes = 0; // That its devices share.
  Link link;         // Of each device in each direction, while all copy in both.

  bool operator==(const HostMemory &other) const {
    return bytes == other.bytes && link == other.link;
  }
};

struct Host {
  unsigned deviceType = 0; // Index into Cluster::deviceTypes.
  int64_t devices = 0;
  int64_t nics = 1; // Adapters that its bandwidth to other hosts is made of.
  std::optional<Link> intraHost = {}, interHost = {}; // Where they are not the cluster's.
  std::optional<HostMemory> memory = {};              // Where it may hold arrays of a step.
};

/// Hosts that are alike: equal devices, as many of them, and equal links.
struct HostKind {
  unsigned deviceType = 0;
  int64_t devices = 0;
  int64_t nics = 1;
  Link intraHost, interHost;             // As they are reached.
  std::optional<HostMemory> memory = {}; // The same.
  int64_t hosts = 0;                     // So many of the cluster's.
  std::vector<int64_t> hostsInRack = {}; // Of each rack.
};

/// Hosts that are closer to each other than to the rest: those that one NVLink switch or
/// one leaf switch connects, a pod of a fat tree. They are numbered rack by rack; the last
/// rack may have fewer hosts.
struct Racks {
  int64_t hosts = 1; // Of each rack.
  int64_t nics = 1;  // Parts of a rack's bandwidth to others, which its devices share evenly.
  Link interRack;    // Per rack.
};

struct Cluster {
  std::string name;
  std::vector<DeviceType> deviceTypes;
  std::vector<Host> hosts;
  Link intraHost;
  Link interHost;                         // Within racks, where there are any.
  std::optional<Racks> racks;             // Without, all hosts are as close.
  std::shared_ptr<const Profile> profile; // Measured costs, or null.

  int64_t numDevices() const;
  int64_t hostsPerRack() const { return racks ? racks->hosts : int64_t(hosts.size()); }
  int64_t numRacks() const;
  int64_t rackOf(int64_t host) const { return host / hostsPerRack(); }
  /// The kinds of hosts, in the order in which they come first; and each host's.
  std::vector<HostKind> hostKinds() const;
  std::vector<unsigned> kindOfHosts() const;
};

/// Parses YAML (JSON is YAML). `where` is the file name for messages. An error
/// says file, line, field, what was found and what is expected.
llvm::Expected<Cluster> parseCluster(llvm::StringRef yaml, llvm::StringRef where);
/// A named preset ("dgx-a100"), so many hosts of one ("dgx-a100:4"), or a file
/// when the name has a path separator or ends in .yaml, .yml or .json.
llvm::Expected<Cluster> loadCluster(llvm::StringRef presetOrFile);
llvm::ArrayRef<llvm::StringRef> clusterPresets();
/// JSON, and so YAML, that parseCluster reads back as the same cluster.
std::string printCluster(const Cluster &cluster);

/// What so many devices of a rack have of its bandwidth to others, on hosts of so many.
Link rackShare(const Racks &racks, int64_t devices, int64_t devicesPerHost);

/// A rectangular part of the cluster: `hosts` whole hosts, or `devicesPerHost`
/// devices of one host. Hosts lie in so many racks, as many in each of them; only where
/// it is all hosts of a cluster the last rack may have fewer.
struct Submesh {
  static constexpr int anyKind = -1;

  int64_t hosts = 1;
  int64_t devicesPerHost = 1;
  int kind = 0; // Of its hosts; with anyKind they may be of several.
  int64_t racks = 1;

  bool fitsKind(int other) const { return kind == anyKind || kind == other; }
  bool operator==(const Submesh &other) const {
    return hosts == other.hosts && devicesPerHost == other.devicesPerHost && kind == other.kind &&
           racks == other.racks;
  }
  int64_t hostsPerRack() const { return (hosts + racks - 1) / racks; }
  int64_t numDevices() const { return hosts * devicesPerHost; }
};

/// For each kind of hosts, shapes (1,1), (1,2), (1,4), ... (1,M), (2,M), ... (N,M);
/// paper, section 5.2. If M is no power of two its divisors as well. Where kinds have
/// equally many devices a host, also whole hosts of any of them. Of more than 16
/// hosts only powers of two and divisors of their number, unless every count is asked
/// for. With racks the hosts are those of one rack, or of several racks all of them, or
/// if these are no power of two, the largest power of two; of racks as of hosts only
/// some numbers.
std::vector<Submesh> submeshShapes(const Cluster &cluster, bool everyHostCount = false);
/// So many hosts in as few racks as have them; nothing if they cannot lie evenly.
std::optional<Submesh> spreadOverRacks(const Cluster &cluster, Submesh submesh);

/// A submesh seen as an n-dimensional mesh; every axis has a link of its own.
struct LogicalMesh {
  llvm::SmallVector<int64_t, 3> shape;
  llvm::SmallVector<Link, 3> axes;
  Link intraHost; // Of the steps within hosts of axes that span them.
  Link interHost; // Of a whole host, where the submesh has several.
  Link interRack; // Of what the submesh has of a rack, where it lies in several.
  /// How many devices of a group along the axis share a host: the whole axis for
  /// a link within hosts, fewer where the axis spans hosts. The same of a rack.
  llvm::SmallVector<int64_t, 3> devicesOnHost, devicesInRack;
  /// How many groups along the axis share a host's adapters; 1 within hosts. The same
  /// of a rack's.
  llvm::SmallVector<int64_t, 3> groupsPerHost, groupsPerRack;
  DeviceType device; // The weakest one if hosts may be of several kinds.
  /// What a device has of its host's memory, which all of the host's devices share evenly;
  /// nothing if some host does not say.
  std::optional<HostMemory> hostMemory;
  llvm::SmallVector<std::string, 1> deviceTypes;
  std::shared_ptr<const Profile> profile;
  int64_t numDevices() const;
};

/// All that costs on the mesh depend on, for people and as a key.
std::string printMesh(const LogicalMesh &mesh);

/// All two-axis views of a submesh; of views with the same axes in another order
/// the first is given (a 2x4 submesh gives 1x8, 2x4 and 4x2, a 1x4 one 1x4 and
/// 2x2), since they have the same plans. With `maxAxes` of 3 also those that need
/// three axes of more than one device.
std::vector<LogicalMesh> logicalMeshes(const Cluster &cluster, const Submesh &submesh,
                                       unsigned maxAxes = 2);
/// The submesh that devices (numbered host by host) make up; nothing if their hosts
/// hold unequal numbers of them.
std::optional<Submesh> submeshOf(const Cluster &cluster, llvm::ArrayRef<int64_t> devices);
/// One given view, devices numbered host by host in row-major order. An axis
/// within hosts has the link within a host; one that spans hosts has the host's
/// network bandwidth, shared by the groups of devices that use it at once, and one that
/// spans racks the slower of that and of what it has of the rack's. An error if sizes do
/// not match.
llvm::Expected<LogicalMesh> makeLogicalMesh(const Cluster &cluster, const Submesh &submesh,
                                            llvm::ArrayRef<int64_t> shape);

} // namespace alpa::cost

#endif // ALPA_COMPILER_COSTMODEL_CLUSTER_H
