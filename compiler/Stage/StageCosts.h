//===- StageCosts.h - seconds and bytes of possible stages -------*- C++ -*-===//
//
// A stage (a run of layers on one view of a submesh) is solved only when a plan
// that could be the best one needs it. Until then a bound stands in: a stage is
// no faster than its parts one after the other, because what it does to each
// part could be done to that part alone.
//
//===----------------------------------------------------------------------===//

#ifndef ALPA_COMPILER_STAGE_STAGECOSTS_H
#define ALPA_COMPILER_STAGE_STAGECOSTS_H

#include "compiler/Sharding/Explain.h"
#include "compiler/Sharding/IntraOp.h"
#include "compiler/Stage/StageDp.h"
#include "compiler/Stage/StageShape.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include <map>
#include <memory>

namespace alpa {

struct StageCostOptions {
  int64_t numMicroBatches = 1;
  std::vector<int64_t> memoryBytes; // Of one device of each mesh, for plans.
  int64_t mostInFlight = 1;         // Micro-batches whose activations a stage may have to keep.
  double timeLimitSeconds = 60;
  /// What a method leaves of the plans, for each mesh; empty for everything.
  std::vector<PlanFilter> filters;
  /// What a filter may look at beside the ops of a stage, so that stages that it
  /// treats differently do not share a solution; null if nothing.
  std::function<void(const StageShape &, std::vector<uintptr_t> &)> describe;
};

/// Seconds of a micro-batch; an update's share is spread over the micro-batches.
double microBatchSeconds(const IntraOpResult &result, int64_t numMicroBatches);

class StageCosts {
public:
  /// `views[i]` are the views of submesh i, as indices into `meshes`.
  StageCosts(llvm::ArrayRef<llvm::SmallVector<mlir::Operation *>> opsOfLayer,
             std::vector<LogicalMesh> meshes, std::vector<llvm::SmallVector<unsigned>> views,
             StageCostOptions options);

  unsigned numLayers() const { return opsOfLayer.size(); }
  /// Stages that could be asked for, problems that were solved, and solutions
  /// that served stages of equal shape.
  size_t numPossible() const { return stages.size(); }
  size_t numSolved() const { return solvedCount; }
  size_t numReused() const { return reusedCount; }

  /// A choice of the DP: which stage, and which of its solutions.
  struct Request {
    unsigned id;
    int64_t inFlight;
  };
  /// Every single layer on every view, as far as not solved: what bounds start from.
  std::vector<Request> singleLayers() const;
  /// Solves the requests, several at a time. The error is an op that cannot be
  /// planned.
  llvm::Error solve(mlir::MLIRContext *context, llvm::ArrayRef<Request> requests);

  /// Takes the solution behind a choice apart.
  llvm::Expected<Explanation> explain(unsigned id);

  /// Bounds and choices after what was solved; with `onlySolved`, without
  /// anything that is only a bound.
  void refresh(bool onlySolved);
  llvm::ArrayRef<StageChoice> choices(unsigned lo, unsigned hi, unsigned submesh) const;

  /// The result behind a choice; null while it is only a bound.
  const IntraOpResult *result(unsigned id) const;
  const LogicalMesh &mesh(unsigned id) const { return meshes[stages[id / kSlots].mesh]; }

private:
  /// Solution 0 knows no memory limit; later ones were solved under it. Two slots
  /// stand for solutions that could still be had: another one under the limit,
  /// and a better solution 0 where the first was cut short.
  static constexpr unsigned kSlots = 12;
  static constexpr unsigned kUnsolved = kSlots - 2;
  static constexpr unsigned kRefined = kSlots - 1;

  struct Stage {
    unsigned lo, hi, mesh;
    std::vector<std::shared_ptr<IntraOpResult>> solutions; // Null: infeasible.
    StageChoice bound;        // Solution 0's numbers, once it is known; its bound if provisional.
    bool provisional = false; // Solution 0 was cut short and may get better.
    int64_t infeasibleFrom = std::numeric_limits<int64_t>::max(); // Micro-batches in flight.
  };

  size_t stageAt(unsigned lo, unsigned hi, unsigned mesh) const;
  const StageShape &shapeOf(const Stage &stage);
  StageChoice choiceOf(const IntraOpResult &result, unsigned id) const;
  void bound(Stage &stage);
  void listChoices(size_t index, bool onlySolved, std::vector<StageChoice> &list) const;

  std::vector<llvm::SmallVector<mlir::Operation *>> opsOfLayer;
  llvm::DenseMap<mlir::Operation *, unsigned> position; // In the block.
  std::vector<LogicalMesh> meshes;
  std::vector<llvm::SmallVector<unsigned>> views;
  StageCostOptions options;
  std::vector<Stage> stages;
  std::vector<std::vector<StageChoice>> table; // By (lo, hi, submesh).
  size_t solvedCount = 0, reusedCount = 0;

  /// What makes two requests one problem: shape, mesh, micro-batches in flight
  /// under the memory limit or 0 without, and whether it may take all its time.
  using ProblemKey = std::tuple<unsigned, unsigned, int64_t, bool>;
  struct Solved {
    const StageShape *shape;
    std::shared_ptr<IntraOpResult> result; // Null: infeasible.
  };
  std::map<std::pair<unsigned, unsigned>, StageShape> shapes; // By (lo, hi).
  std::map<std::vector<uintptr_t>, unsigned> shapeClasses;
  std::map<ProblemKey, Solved> solved;
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_STAGECOSTS_H
