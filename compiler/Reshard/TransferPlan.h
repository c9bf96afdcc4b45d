//===- TransferPlan.h - the steps of a transfer between meshes --*- C++ -*-===//

#ifndef ALPA_COMPILER_RESHARD_TRANSFERPLAN_H
#define ALPA_COMPILER_RESHARD_TRANSFERPLAN_H

#include "compiler/Reshard/TransferProblem.h"

#include <map>

namespace alpa::reshard {

enum class StepKind : uint8_t { Tile, Send, Broadcast, AllGather };

/// One step; docs/resharding.md says what each kind does. Tiles are numbered from 0
/// in the order in which steps make them.
struct PlanStep {
  StepKind kind = StepKind::Tile;
  llvm::SmallVector<int64_t, 1> operands; // Tiles: none, one, one, or those gathered.
  llvm::SmallVector<int64_t, 2> devices;  // Of the tiles that it makes, in order.
  int64_t firstTile = 0;                  // That it makes.
  int64_t chunks = 1;
  Box box; // Of what it makes.
};

struct TransferPlan {
  std::string strategy;
  double seconds = 0;
  int64_t slowBytes = 0; // From host to host.
  std::vector<PlanStep> steps;

  /// As plan.json has them, one line a step.
  std::vector<std::string> lines() const;
};

/// Puts steps together. Boxes are cut where they are first used.
class PlanBuilder {
public:
  /// The tile on a device of the source mesh.
  int64_t cut(int64_t device, const Box &box);
  int64_t send(int64_t tile, int64_t device);
  /// The first of the copies; a send if the chain has one link.
  int64_t broadcast(int64_t tile, llvm::ArrayRef<int64_t> devices, int64_t chunks);
  /// The first of the results.
  int64_t allGather(llvm::ArrayRef<int64_t> tiles, const Box &whole);

  int64_t deviceOf(int64_t tile) const { return placed[tile].first; }
  const Box &boxOf(int64_t tile) const { return steps[placed[tile].second].box; }

  std::vector<PlanStep> take() { return std::move(steps); }

private:
  PlanStep &add(StepKind kind, llvm::ArrayRef<int64_t> operands, llvm::ArrayRef<int64_t> devices,
                const Box &box);

  std::vector<PlanStep> steps;
  std::vector<std::pair<int64_t, size_t>> placed; // Device, and number of the step.
  std::map<std::pair<int64_t, Box>, int64_t> cuts;
};

} // namespace alpa::reshard

#endif // ALPA_COMPILER_RESHARD_TRANSFERPLAN_H
