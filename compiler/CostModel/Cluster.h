//===- Cluster.h - description of a GPU cluster ------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_COSTMODEL_CLUSTER_H
#define ALPA_COMPILER_COSTMODEL_CLUSTER_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <string>
#include <vector>

namespace alpa {

struct DeviceType {
  std::string name;
  int64_t memoryBytes = 0;
  double memoryBandwidthBytesPerSecond = 0;
  llvm::StringMap<double> peakFlopsPerSecond; // Keyed "float32", "bfloat16", ...
};

struct Link {
  double bandwidthBytesPerSecond = 0; // Per device within a host, per host between.
  double latencySeconds = 0;
};

struct Host {
  unsigned deviceType = 0; // Index into Cluster::deviceTypes.
  int64_t devices = 0;
};

struct Cluster {
  std::string name;
  std::vector<DeviceType> deviceTypes;
  std::vector<Host> hosts;
  Link intraHost;
  Link interHost;

  int64_t numDevices() const;
};

/// Parses YAML (JSON is YAML). `where` is the file name for messages. An error
/// says file, line, field, what was found and what is expected.
llvm::Expected<Cluster> parseCluster(llvm::StringRef yaml, llvm::StringRef where);
/// A named preset, or a file when the name has a path separator or a suffix.
llvm::Expected<Cluster> loadCluster(llvm::StringRef presetOrFile);
llvm::ArrayRef<llvm::StringRef> clusterPresets();
std::string printCluster(const Cluster &cluster); // YAML that parseCluster reads.

/// A rectangular part of the cluster: `hosts` whole hosts, or `devicesPerHost`
/// devices of one host.
struct Submesh {
  int64_t hosts = 1;
  int64_t devicesPerHost = 1;
  int64_t numDevices() const { return hosts * devicesPerHost; }
};

/// Shapes (1,1), (1,2), (1,4), ... (1,M), (2,M), ... (N,M); paper, section 5.2.
std::vector<Submesh> submeshShapes(const Cluster &cluster);

/// A submesh seen as an n-dimensional mesh; every axis has a link of its own.
struct LogicalMesh {
  llvm::SmallVector<int64_t, 3> shape;
  llvm::SmallVector<Link, 3> axes;
  DeviceType device;
  int64_t numDevices() const;
};

/// All two-axis views of a submesh (a 2x4 submesh gives 1x8, 2x4, 4x2, 8x1);
/// views that differ only by a swap of equal links are given once.
std::vector<LogicalMesh> logicalMeshes(const Cluster &cluster, const Submesh &submesh);
/// One given view; an error if sizes do not match.
llvm::Expected<LogicalMesh> makeLogicalMesh(const Cluster &cluster, const Submesh &submesh,
                                            llvm::ArrayRef<int64_t> shape);

} // namespace alpa

#endif // ALPA_COMPILER_COSTMODEL_CLUSTER_H
