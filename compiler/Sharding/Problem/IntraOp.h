//===- IntraOp.h - the best way to split a stage on one mesh -----*- C++ -*-===//

#ifndef ALPA_COMPILER_SHARDING_PROBLEM_INTRAOP_H
#define ALPA_COMPILER_SHARDING_PROBLEM_INTRAOP_H

#include "compiler/CostModel/CostModel.h"
#include "compiler/Solver/Solve.h"
#include "dialects/Alpa/ShardingSpec.h"

#include "mlir/IR/Value.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"

#include <array>
#include <functional>
#include <memory>

namespace alpa::sharding {

/// In the order in which a step runs them. Weights are prepared once, before the forward runs
/// of all micro-batches; the barrier runs once, between them and the backward runs.
enum class OpPhase : uint8_t { Prepare, Forward, Barrier, Backward, Update };
inline constexpr unsigned kNumPhases = 5;

class OpTable;

/// Top-level ops of one function, in program order, that run on one mesh.
/// Values defined outside (arguments, other stages' ops) are its inputs.
struct StageView {
  llvm::SmallVector<mlir::Operation *> ops;
  /// What is known of ops that several stages have; or null.
  std::shared_ptr<OpTable> table = nullptr;
};

/// A part of all plans, for methods that look at that part only and for what a
/// user has decided. The solver fills in the rest.
struct PlanFilter {
  /// Values (inputs and results of ops) that are held in one given way. An op
  /// that would make its result otherwise has it moved there at once.
  llvm::DenseMap<mlir::Value, ShardingSpec> pinned;
  /// Results that may be moved once where they are made, to a spec that is a choice of
  /// its own. Plans without that stay plans.
  llvm::DenseSet<mlir::Value> movable;
  /// Whether a value may be held so; null for yes. Asked for inputs, for results,
  /// and for each of their even specs.
  std::function<bool(mlir::Value, const ShardingSpec &)> allowsSpec;
  /// Whether an op that leads (see ProblemBuilder.h) may take its operands and make
  /// its results so; null for yes. All-reduced and scattered results differ in
  /// `results` alone.
  std::function<bool(mlir::Operation *, llvm::ArrayRef<ShardingSpec> operands,
                     llvm::ArrayRef<ShardingSpec> results)>
      allowsStrategy;
};

struct IntraOpOptions {
  int64_t numMicroBatches = 1; // Update ops run once, the rest once each.
  /// Of the solver, about a minute (SolveOptions); and the outer bound, which ends it
  /// only where the machine is slow.
  double workLimit = 3e10;
  double timeLimitSeconds = 600.0;
  /// Memory one device may use for this stage: state, the activations of
  /// `microBatchesInFlight`, and temporaries. Nothing for no limit.
  std::optional<int64_t> memoryLimitBytes;
  int64_t microBatchesInFlight = 1;
  /// Whether equal layers become a loop behind the search (alpa-roll-layers), which writes a row of
  /// a stack where it belongs.
  bool makesLoops = false;
  /// Where memory is a limit: how far the cost may be above the bound, as a part
  /// of it. Without, plans are proven best.
  double acceptableGap = 9e-3;
  /// Whether to find out, where nothing fits, what would and what takes the room.
  bool explainsInfeasible = false;
  PlanFilter filter;
};

struct IntraOpResult {
  /// Every result of every op of the stage, and every input.
  llvm::DenseMap<mlir::Value, ShardingSpec> specs;
  /// Results that `specs` has otherwise than their op makes them.
  llvm::DenseMap<mlir::Value, ShardingSpec> madeSpecs;
  /// Operands (op, number) that the op wants otherwise than `specs` has them. What a
  /// body uses from outside is numbered on, in the order of ShardingRule::captures.
  llvm::DenseMap<std::pair<mlir::Operation *, unsigned>, ShardingSpec> useSpecs;
  /// Calls of attention whose strategy has keys and values gathered.
  llvm::DenseSet<mlir::Operation *> gatherKeys;
  /// For a value that `specs` has as terms of a sum and that the update reads: how
  /// the sum is held when it is taken.
  llvm::DenseMap<mlir::Value, ShardingSpec> sumSpecs;
  /// How `user` finds a value before it moves it; null if the value is not known.
  const ShardingSpec *heldFor(mlir::Operation *user, mlir::Value value) const;
  /// With status infeasible only `solution` and `choices` are set.
  double forwardSeconds = 0;  // One micro-batch.
  double backwardSeconds = 0; // One micro-batch.
  double prepareSeconds = 0;  // Once a step.
  double barrierSeconds = 0;  // Once a step.
  double updateSeconds = 0;   // Once a step.
  /// Of `backwardSeconds`, and per device, where the backward phase is split
  /// (BackwardParts.h): its weight part, and what waits for that.
  double backwardWeightSeconds = 0;
  int64_t waitingBytes = 0;
  /// Per device: what is always held (parameters, optimizer state, gradients that
  /// are summed over micro-batches), what each micro-batch in flight keeps for the
  /// backward pass, and what else the fullest moment holds.
  int64_t stateBytes = 0;
  int64_t activationBytes = 0;
  int64_t temporaryBytes = 0;
  /// Of what lies in the host's memory, with the micro-batches in flight; and what a step waits
  /// for copies, for those of state in its update. Other copies run beside its work.
  int64_t hostBytes = 0;
  double hostSeconds = 0, hiddenHostSeconds = 0;
  /// By how much the host's memory counts for more than the fullest moment of the device.
  int64_t hostExcessBytes = 0;
  /// Of each phase: what its function holds besides arguments and results.
  std::array<int64_t, kNumPhases> scratchBytes = {};
  solver::Solution solution;
  unsigned choices = 0;
  double buildSeconds = 0; // To state the problem; `solution` has those to solve it.

  /// The seconds of one run of each phase.
  void setSeconds(const std::array<double, kNumPhases> &phases);
};

/// The optimization problem of a stage on a mesh, for tools and tests.
llvm::Expected<solver::Problem> buildIntraOpProblem(const StageView &stage,
                                                    const cost::CostModel &model,
                                                    const IntraOpOptions &options);
/// Builds, solves, and reads the answer back. An op without a rule is an error
/// that names the op and its location.
llvm::Expected<IntraOpResult> solveIntraOp(const StageView &stage, const cost::CostModel &model,
                                           const IntraOpOptions &options);

/// Reads choices of the problem of buildIntraOpProblem back. An error if they are
/// none of its solutions.
llvm::Expected<IntraOpResult> applyChoices(const StageView &stage, const cost::CostModel &model,
                                           const IntraOpOptions &options,
                                           llvm::ArrayRef<unsigned> choices);

/// How an op makes its results; null if it makes all as they are held.
mlir::Attribute madeShardings(mlir::Operation *op, const IntraOpResult &result);
/// How the body of an op wants each of its rule's captures; `heldAs` gives the
/// sharding of a value. Null for ops without captures.
mlir::Attribute captureShardings(
    mlir::Operation *op,
    const llvm::DenseMap<std::pair<mlir::Operation *, unsigned>, ShardingSpec> &useSpecs,
    llvm::function_ref<mlir::Attribute(mlir::Value)> heldAs);

} // namespace alpa::sharding

#endif // ALPA_COMPILER_SHARDING_PROBLEM_INTRAOP_H
