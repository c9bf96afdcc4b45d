//===- Reshard.h - the steps that change a tensor's sharding -----*- C++ -*-===//
//
// A reshard is a shortest path over specs (a dimension's axes ordered, major
// first). One step is one collective at most:
//
//   slice        R  -> Sa    each device keeps its part           nothing to send
//   all-gather   Sa -> R     over axis a
//   all-to-all   Sa -> Sa'   over axis a, to another dimension
//   permute      S01 -> S10  whole parts change places; local shapes stay
//
// Parts lie beside their neighbours along a dimension's minor axis only, so the
// first three steps work on minor axes; a permute brings other axes there. What
// the solver pays for a reshard is the sum of these steps, and the lowering emits
// the same steps.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_RESHARD_H
#define ALPA_COMPILER_SHARDING_PROBLEM_RESHARD_H

#include "compiler/CostModel/CostModel.h"
#include "dialects/Alpa/PackedSpec.h"
#include "llvm/ADT/DenseMap.h"
#include <map>
#include <memory>
#include <optional>

namespace alpa::sharding {

/// Costs are compared exactly, so they are whole picoseconds.
int64_t toPicoseconds(double seconds);
inline double toSeconds(double picoseconds) { return picoseconds * 1e-12; }

enum class ReshardKind : uint8_t { Slice, AllGather, AllToAll, Permute };

struct ReshardStep {
  ReshardKind kind = ReshardKind::Slice;
  unsigned axis = 0;       // That moves; not for permutes.
  int fromDim = -1;        // Dimension that the axis leaves, or -1.
  int toDim = -1;          // Dimension that it splits then, or -1.
  ShardingSpec spec;       // After the step.
  int64_t picoseconds = 0; // Of a path's step.
};

/// The one step that leads from one spec to the other, or nothing.
std::optional<ReshardStep> singleStep(const ShardingSpec &from, const ShardingSpec &to,
                                      llvm::ArrayRef<int64_t> meshShape);

/// For a permute: which device (row-major in the mesh) sends its part to which,
/// one pair for each device in order of targets. Parts that need not move stay.
llvm::SmallVector<std::pair<int64_t, int64_t>>
permutePairs(const ShardingSpec &from, const ShardingSpec &to, llvm::ArrayRef<int64_t> meshShape);

struct ReshardGraph;

/// All reshards of tensors of one shape and size on one mesh.
class TensorReshards {
public:
  TensorReshards(std::shared_ptr<const ReshardGraph> graph, double fullBytes,
                 const cost::CostModel &model);

  /// Cost of the cheapest path; the largest of all costs if a spec's pieces are
  /// uneven.
  int64_t picoseconds(PackedSpec from, PackedSpec to);
  /// The cheapest path; nothing if a spec's pieces are uneven.
  std::optional<std::vector<ReshardStep>> path(const ShardingSpec &from, const ShardingSpec &to);

private:
  struct Tree { // Shortest paths from one spec.
    std::vector<int64_t> costs;
    std::vector<unsigned> edges; // That led to each spec.
  };
  const Tree &treeFrom(unsigned source);

  std::shared_ptr<const ReshardGraph> graph;
  std::vector<int64_t> edgeCosts;
  std::vector<std::unique_ptr<Tree>> trees; // Grown when asked for.
};

/// Reshards of all tensors on one mesh; what is known of one is kept.
class ReshardPlanner {
public:
  explicit ReshardPlanner(const cost::CostModel &model) : model(model) {}

  TensorReshards &of(llvm::ArrayRef<int64_t> shape, double fullBytes);

private:
  const cost::CostModel &model;
  std::map<std::vector<uint16_t>, std::shared_ptr<const ReshardGraph>> graphs;
  std::map<std::pair<std::vector<uint16_t>, double>, TensorReshards> tensors;
};

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_RESHARD_H
