//===- Profile.h - measured costs --------------------------------*- C++ -*-===//

#ifndef ALPA_COMPILER_COSTMODEL_PROFILE_H
#define ALPA_COMPILER_COSTMODEL_PROFILE_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace alpa::cost {

struct YamlValue;

/// Seconds measured at some sizes (FLOPs or bytes). Between two of them straight
/// lines, which latency + size / rate is; below the first its seconds; above the
/// last in proportion. Where a larger size was measured faster, the slower of the
/// two counts, so that seconds never fall.
class CostTable {
public:
  CostTable() = default;
  /// Sizes rise; both lists are of one length, at least 1, and positive.
  CostTable(std::vector<double> sizes, std::vector<double> seconds);

  double at(double size) const;
  llvm::ArrayRef<double> getSizes() const { return sizes; }
  llvm::ArrayRef<double> getSeconds() const { return seconds; }

private:
  std::vector<double> sizes, seconds;
};

enum class Collective { AllReduce, AllGather, ReduceScatter, AllToAll, Permute };
llvm::ArrayRef<llvm::StringRef> collectiveNames(); // In the order of the enum.

/// One group of devices that runs a collective.
struct CollectiveGroup {
  Collective collective = Collective::AllReduce;
  int64_t devices = 2;
  int64_t devicesPerHost = 2; // As many as `devices` when it stays on one host.
  bool operator<(const CollectiveGroup &other) const {
    return std::tie(collective, devices, devicesPerHost) <
           std::tie(other.collective, other.devices, other.devicesPerHost);
  }
};

/// What was measured on a cluster; the cost model's formulas fill the gaps.
struct Profile {
  std::map<std::pair<std::string, std::string>, CostTable> matmul; // Device type, dtype: FLOPs.
  std::map<std::string, CostTable> memory;                         // Device type: bytes.
  std::map<CollectiveGroup, CostTable> collectives;                // Bytes of the full buffer.

  bool empty() const { return matmul.empty() && memory.empty() && collectives.empty(); }
};

/// Parses YAML; an error says file, line, field, what was found and expected.
llvm::Expected<Profile> parseProfile(llvm::StringRef yaml, llvm::StringRef where);
llvm::Expected<Profile> readProfile(const YamlValue &root, llvm::StringRef where);
/// JSON, and so YAML, that parseProfile reads back as the same profile.
std::string printProfile(const Profile &profile);

} // namespace alpa::cost

#endif // ALPA_COMPILER_COSTMODEL_PROFILE_H
