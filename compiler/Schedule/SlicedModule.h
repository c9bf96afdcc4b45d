//===- SlicedModule.h - the sliced step as tables ----------------*- C++ -*-===//

#ifndef ALPA_COMPILER_SCHEDULE_SLICEDMODULE_H
#define ALPA_COMPILER_SCHEDULE_SLICEDMODULE_H

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include <vector>

namespace alpa::attr {
inline constexpr llvm::StringLiteral scheduleParameters = "alpa.schedule_parameters";
inline constexpr llvm::StringLiteral channelCapacity = "alpa.channel_capacity";
} // namespace alpa::attr

namespace alpa::schedule {

/// An argument or a result of a stage function.
struct Port {
  int64_t id = -1;
  mlir::Type type;
  ShardingAttr sharding;
  llvm::StringRef accumulate; // Results only; empty if nothing leaves the micro-batch.
  int64_t partOf = -1;        // Results only; the sum of stages to which this adds.
  bool isOnHost = false;      // In the host's memory.
};

struct StageFunction {
  mlir::func::FuncOp op;
  int64_t stage = 0;
  mlir::SymbolRefAttr callee;
  llvm::SmallVector<Port> inputs, outputs;
};

struct Stage {
  mlir::ModuleOp module;
  MeshAttr mesh;
  int64_t meshIndex = 0;                // Among those of the step.
  std::optional<StageFunction> prepare; // Once, before all forward runs.
  std::optional<StageFunction> forward, backward;
  std::optional<StageFunction> barrier; // Once, between all forward and all backward runs.
  std::optional<StageFunction> backwardInput, backwardWeight; // Instead of `backward`.
  llvm::SmallVector<StageFunction> updates;                   // In order of k.

  bool hasBackward() const { return backward || backwardInput || backwardWeight; }
};

/// The k of `update_<k>`.
int64_t levelOf(const StageFunction &update);

/// Where a value is made and who else needs it.
struct ValueFlow {
  int64_t stage = -1;                        // That makes it, or owns it; -1 for batch arguments.
  int64_t mesh = -1;                         // Of that stage.
  bool perMicroBatch = false;                // Made by a forward or backward function.
  llvm::SetVector<int64_t> microBatchMeshes; // Other meshes whose forward or backward needs it.
  llvm::SetVector<int64_t> onceMeshes;       // Other meshes whose barrier or update needs it.
};

/// A value that no stage makes: the sum of results of several stages' updates.
struct StageSum {
  int64_t id = -1;
  mlir::Type type;
  int64_t level = 0; // The k of the last update_<k> that adds to it.
  llvm::SmallVector<std::pair<int64_t, Port>> parts; // And their stages, rising.
  llvm::SmallVector<int64_t> members;                // Meshes that add to it or use it, rising.
};

/// The sliced module, read once.
struct SlicedModule {
  mlir::ModuleOp module;
  mlir::func::FuncOp main;
  int64_t numMicroBatches = 1;
  std::vector<Stage> stages;
  /// Stages whose meshes are equal share one; in order of first appearance.
  llvm::SmallVector<MeshAttr> meshes;
  llvm::DenseMap<int64_t, ValueFlow> flows;                  // By value id.
  llvm::DenseMap<std::pair<int64_t, int64_t>, Port> inputAt; // (id, stage) as functions take it.
  llvm::DenseMap<int64_t, llvm::SmallVector<int64_t, 1>> resultsOf; // Value id to results of @main.
  std::vector<StageSum> sums; // In order of levels, then of ids.

  bool isArgument(int64_t id) const { return id < int64_t(numArguments); }
  bool isBatch(int64_t id) const { return isArgument(id) && batch[id]; }
  /// How a stage holds an argument of @main.
  Port argumentAt(int64_t arg, int64_t stage) const;
  llvm::StringRef reductionOf(int64_t result) const;
  /// How a member holds a sum: as its first stage that uses it, else as its first part.
  ShardingAttr shardingOf(const StageSum &sum, int64_t mesh) const;

  unsigned numArguments = 0;
  llvm::SmallVector<bool> batch;
};

/// The modules `@stage_<s>`, in order.
llvm::SmallVector<mlir::ModuleOp> stageModules(mlir::ModuleOp module);
/// The meshes of the stage modules, each once, in the order of stages: program `on m`
/// is that of number m.
llvm::SmallVector<MeshAttr> meshesOf(mlir::ModuleOp module);
/// Calls back for each function in the order in which they run; `isOnce` tells whether it
/// runs once a step (weights, barrier and update) or for each micro-batch.
void forEachFunction(Stage &stage, llvm::function_ref<void(StageFunction &, bool isOnce)> callback);
void forEachFunction(SlicedModule &sliced,
                     llvm::function_ref<void(StageFunction &, bool isOnce)> callback);
/// The sums of stages and their parts, when it is known which values functions make.
mlir::LogicalResult collectSums(SlicedModule &sliced);
/// Checks their users and finds their members, when all users are known.
mlir::LogicalResult finishSums(SlicedModule &sliced);

/// Reports what a sliced module lacks and fails.
mlir::FailureOr<SlicedModule> readSlicedModule(mlir::ModuleOp module);

} // namespace alpa::schedule

#endif // ALPA_COMPILER_SCHEDULE_SLICEDMODULE_H
