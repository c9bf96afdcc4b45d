//===- SlicePlan.h - which op goes into which stage function -----*- C++ -*-===//

#ifndef ALPA_COMPILER_STAGE_SLICE_SLICEPLAN_H
#define ALPA_COMPILER_STAGE_SLICE_SLICEPLAN_H

#include "compiler/Stage/Slice/RepeatedOps.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include <map>

namespace alpa {

/// How values of the micro-batches become one.
enum class Accumulate { None, Sum, Last, Concat };
llvm::StringRef stringify(Accumulate kind);

/// Of update_0; the functions before it are forward (0), barrier (1) and backward (2).
inline constexpr int64_t kUpdateRank = 3;
/// Whether a function of the rank runs once a step, not for each micro-batch.
inline bool runsOnce(int64_t rank) { return rank == 1 || rank >= kUpdateRank; }

/// One result of a stage function.
struct PieceResult {
  mlir::Value source;
  int64_t id = -1;
  Accumulate accumulate = Accumulate::None;
  int64_t mainResult = -1; // Result of @main that this is, if any.
  mlir::Value partOf;      // The sum of stages to which this adds, if any.
  ShardingSpec spec;
};

/// One function of one stage, update_k with rank 3 + k.
struct Piece {
  int64_t stage = 0;
  int64_t rank = 0;
  llvm::SetVector<mlir::Operation *> ops; // Its own and the cheap ones it repeats.
  llvm::SetVector<mlir::Value> inputs;    // Arguments of @main, values of other pieces.
  llvm::SmallVector<PieceResult> results;
  llvm::DenseMap<mlir::Value, unsigned> resultOf; // First entry in `results`.

  bool isUpdate() const { return rank >= kUpdateRank; }
  /// Not once for each micro-batch.
  bool runsOnce() const { return alpa::runsOnce(rank); }
  std::string name() const;
};

/// The whole cut of @main, computed before any op is moved.
class SlicePlan {
public:
  SlicePlan(mlir::func::FuncOp main, llvm::ArrayRef<StageAttr> stages, int64_t numMicroBatches)
      : main(main), stages(stages), numMicroBatches(numMicroBatches), repeated(main) {}

  /// Reports what cannot be cut and fails.
  mlir::LogicalResult compute();

  using Key = std::pair<int64_t, int64_t>; // Stage, rank.
  const std::map<Key, Piece> &getPieces() const { return pieces; }
  /// Position of a top-level op in @main.
  unsigned orderOf(mlir::Operation *op) const { return order.lookup(op); }
  int64_t idOf(mlir::Value value) const { return ids.lookup(value); }
  /// Value id of each result of @main.
  llvm::ArrayRef<int64_t> resultIds() const { return mainResultIds; }
  /// Stage that holds a state argument between steps; -1 if nothing needs it.
  int64_t ownerOf(mlir::BlockArgument arg) const { return owners[arg.getArgNumber()]; }
  /// How a stage holds a value.
  ShardingSpec specOn(mlir::Value value, int64_t stage) const;
  /// Whether the search said how this stage holds the value.
  bool hasSpecOn(mlir::Value value, int64_t stage) const {
    return foreignSpecs.contains({value, stage});
  }
  bool isPassedThrough(mlir::BlockArgument arg) const;
  /// The largest rank on this stage that uses the value.
  int64_t lastRank(mlir::Value value, int64_t stage) const {
    return lastRanks.lookup({value, stage});
  }

private:
  void assignOwners();
  mlir::LogicalResult assignHomes();
  /// The same for a sum of stages, which is nobody's: from which function on it is known.
  mlir::LogicalResult assignSum(SumOfStagesOp sum);
  void planParts(SumOfStagesOp sum);
  /// The first function of `stage` in the update that can give the value away.
  int64_t rankOfPart(mlir::Value value, int64_t stage) const;
  mlir::LogicalResult assignHome(mlir::Operation *op);
  mlir::LogicalResult collect();
  mlir::LogicalResult planOutput(int64_t index);
  mlir::LogicalResult planArgumentOutput(int64_t index, mlir::BlockArgument arg);
  mlir::LogicalResult planMicroBatchOutput(int64_t index, mlir::OpResult value);
  /// Truth values cannot be added up.
  mlir::LogicalResult checkAccumulated();
  void number();

  Piece &pieceAt(int64_t stage, int64_t rank);
  std::optional<Key> homeOf(mlir::Value value) const;
  /// Makes the value available in a function of this stage.
  void need(Piece &piece, mlir::Value value);
  /// `value` becomes result `index` of @main as a result of its own function.
  void outputFrom(Piece &piece, mlir::Value value, int64_t index, Accumulate kind);
  /// The same from a function that did not compute it.
  void outputThrough(int64_t stage, int64_t rank, mlir::Value value, int64_t index,
                     Accumulate kind);
  std::string resultName(int64_t index) const;
  std::string resultReachedBy(mlir::Value value) const;
  llvm::StringRef reductionOf(int64_t index) const;
  mlir::Value returned(int64_t index) const;
  bool isTainted(mlir::Value value) const { return repeated.isTainted(value); }

  mutable mlir::func::FuncOp main; // A handle; its accessors are not const.
  llvm::ArrayRef<StageAttr> stages;
  int64_t numMicroBatches;
  RepeatedOps repeated;

  std::map<Key, Piece> pieces;
  llvm::DenseMap<mlir::Operation *, unsigned> order;
  llvm::DenseMap<mlir::Operation *, Key> homes;
  llvm::DenseMap<mlir::Value, int64_t> knownFrom; // Rank, of sums and what is repeated of them.
  llvm::DenseMap<mlir::Value, int64_t> ids;
  llvm::DenseMap<std::pair<mlir::Value, int64_t>, ShardingSpec> foreignSpecs;
  llvm::DenseMap<std::pair<mlir::Value, int64_t>, int64_t> lastRanks;
  llvm::SmallVector<int64_t> owners, mainResultIds;
  llvm::SmallVector<mlir::BlockArgument> carriedArgs; // By result of @main; null if none.
};

} // namespace alpa

#endif // ALPA_COMPILER_STAGE_SLICE_SLICEPLAN_H
