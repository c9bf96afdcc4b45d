//===- SliceStages.cpp - one module per stage, one function per phase -----===//

#include "compiler/Analysis/HostMemory.h"
#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Slice/SliceUtils.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SetVector.h"

#include <map>

namespace alpa::stage {
#define GEN_PASS_DEF_ALPASLICESTAGES
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace alpa;
using namespace alpa::stage;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Which op goes into which stage function
//===----------------------------------------------------------------------===//

namespace {

/// How values of the micro-batches become one.
enum class Accumulate { None, Sum, Last, Concat };

/// Functions are ranked by their phase, update_0 and those behind it by their number.
inline constexpr auto kForwardRank = int64_t(Phase::Forward);
inline constexpr auto kUpdateRank = int64_t(Phase::Update);

/// Whether a function of the rank runs once a step, not for each micro-batch.
inline bool runsOnce(int64_t rank) {
  return rank != kForwardRank && rank != int64_t(Phase::Backward);
}

/// One result of a stage function.
struct FunctionResult {
  Value source;
  int64_t id = -1;
  Accumulate accumulate = Accumulate::None;
  int64_t mainResult = -1; // Result of @main that this is, if any.
  Value partOf;            // The sum of stages to which this adds, if any.
  ShardingSpec spec;
};

/// One function of one stage, update_k with rank kUpdateRank + k.
struct FunctionPiece {
  int64_t stage = 0;
  int64_t rank = 0;
  llvm::SetVector<Operation *> ops; // Its own and the cheap ones it repeats.
  llvm::SetVector<Value> inputs;    // Arguments of @main, values of other pieces.
  llvm::SmallVector<FunctionResult> results;
  llvm::DenseMap<Value, unsigned> resultOf; // First entry in `results`.

  bool isUpdate() const { return rank >= kUpdateRank; }
  /// Not once for each micro-batch.
  bool runsOnce() const { return ::runsOnce(rank); }
  std::string name() const;
};

/// The whole cut of @main, computed before any op is moved.
class SlicePlan {
public:
  SlicePlan(func::FuncOp main, llvm::ArrayRef<StageAttr> stages, int64_t numMicroBatches)
      : main(main), stages(stages), numMicroBatches(numMicroBatches), repeated(main) {}

  /// Reports what cannot be cut and fails.
  LogicalResult compute();

  using Key = std::pair<int64_t, int64_t>; // Stage, rank.
  const std::map<Key, FunctionPiece> &getPieces() const { return pieces; }
  /// Position of a top-level op in @main.
  unsigned orderOf(Operation *op) const { return order.lookup(op); }
  int64_t idOf(Value value) const { return ids.lookup(value); }
  /// Value id of each result of @main.
  llvm::ArrayRef<int64_t> resultIds() const { return mainResultIds; }
  /// Stage that holds a state argument between steps; -1 if nothing needs it.
  int64_t ownerOf(BlockArgument arg) const { return owners[arg.getArgNumber()]; }
  /// How a stage holds a value.
  ShardingSpec specOn(Value value, int64_t stage) const;
  /// Whether a value is state in the host's memory, or the next one, or waits there for the
  /// backward phase.
  bool isOnHost(Value value) const { return onHost.contains(value); }
  /// Whether the search said how this stage holds the value.
  bool hasSpecOn(Value value, int64_t stage) const { return foreignSpecs.contains({value, stage}); }
  bool isPassedThrough(BlockArgument arg) const;
  /// The largest rank on this stage that uses the value.
  int64_t lastRank(Value value, int64_t stage) const { return lastRanks.lookup({value, stage}); }

private:
  void assignOwners();
  LogicalResult assignHomes();
  void sinkUpdates();
  /// The same for a sum of stages, which is nobody's: from which function on it is known.
  LogicalResult assignSum(SumOfStagesOp sum);
  void planParts(SumOfStagesOp sum);
  /// The first function of `stage` in the update that can give the value away.
  int64_t rankOfPart(Value value, int64_t stage) const;
  LogicalResult assignHome(Operation *op);
  LogicalResult collect();
  LogicalResult planOutput(int64_t index);
  void findHostActivations();
  LogicalResult planArgumentOutput(int64_t index, BlockArgument arg);
  LogicalResult planMicroBatchOutput(int64_t index, OpResult value);
  /// Truth values cannot be added up.
  LogicalResult checkAccumulated();
  void number();

  FunctionPiece &pieceAt(int64_t stage, int64_t rank);
  std::optional<Key> homeOf(Value value) const;
  /// Makes the value available in a function of this stage.
  void need(FunctionPiece &piece, Value value);
  /// `value` becomes result `index` of @main as a result of its own function.
  void outputFrom(FunctionPiece &piece, Value value, int64_t index, Accumulate kind);
  /// The same from a function that did not compute it.
  void outputThrough(int64_t stage, int64_t rank, Value value, int64_t index, Accumulate kind);
  std::string resultName(int64_t index) const;
  std::string resultReachedBy(Value value) const;
  llvm::StringRef reductionOf(int64_t index) const;
  Value returned(int64_t index) const;
  bool isTainted(Value value) const { return repeated.isTainted(value); }

  mutable func::FuncOp main; // A handle; its accessors are not const.
  llvm::ArrayRef<StageAttr> stages;
  int64_t numMicroBatches;
  RepeatedOps repeated;

  std::map<Key, FunctionPiece> pieces;
  llvm::DenseMap<Operation *, unsigned> order;
  llvm::DenseMap<Operation *, Key> homes;
  llvm::DenseMap<Value, int64_t> knownFrom; // Rank, of sums and what is repeated of them.
  llvm::DenseMap<Value, int64_t> ids;
  llvm::DenseMap<std::pair<Value, int64_t>, ShardingSpec> foreignSpecs;
  llvm::DenseMap<std::pair<Value, int64_t>, int64_t> lastRanks;
  llvm::DenseSet<Value> onHost;
  llvm::SmallVector<int64_t> owners, mainResultIds;
  llvm::SmallVector<BlockArgument> carriedArgs; // By result of @main; null if none.
};

} // namespace

static StringRef stringify(Accumulate kind) {
  switch (kind) {
  case Accumulate::Sum:
    return "sum";
  case Accumulate::Last:
    return "last";
  case Accumulate::Concat:
    return "concat";
  case Accumulate::None:
    break;
  }
  return "";
}

std::string FunctionPiece::name() const {
  if (isUpdate())
    return "update_" + std::to_string(rank - kUpdateRank);
  return stringifyPhase(Phase(rank)).str();
}

LogicalResult SlicePlan::compute() {
  for (auto [index, op] : llvm::enumerate(main.front()))
    order[&op] = index;
  mainResultIds.assign(main.getNumResults(), -1);
  carriedArgs.resize(main.getNumResults());
  for (BlockArgument arg : main.getArguments()) {
    std::optional<int64_t> result = carriedBy(arg);
    if (result)
      carriedArgs[*result] = arg;
    if (result && isHostArgument(arg)) {
      onHost.insert(arg);
      onHost.insert(main.front().getTerminator()->getOperand(*result));
    }
  }
  if (failed(assignHomes()))
    return failure();
  assignOwners();
  if (failed(collect()))
    return failure();
  for (int64_t index = 0, e = main.getNumResults(); index < e; ++index)
    if (failed(planOutput(index)))
      return failure();
  if (failed(checkAccumulated()))
    return failure();
  findHostActivations();
  number();
  return success();
}

void SlicePlan::findHostActivations() {
  for (auto &[key, piece] : pieces)
    for (const FunctionResult &result : piece.results) {
      auto isInStage = [&, stage = piece.stage](Operation *op) { return stageOf(op) == stage; };
      if (result.accumulate == Accumulate::None && result.mainResult < 0 &&
          analysis::isHostActivation(result.source, isInStage))
        onHost.insert(result.source);
    }
}

LogicalResult SlicePlan::assignHomes() {
  for (Operation &op : main.front().without_terminator()) {
    if (repeated.contains(&op)) {
      int64_t rank = 0;
      for (Value operand : op.getOperands())
        rank = std::max(rank, knownFrom.lookup(operand));
      if (rank > 0)
        knownFrom[op.getResult(0)] = rank;
      continue;
    }
    auto sum = dyn_cast<SumOfStagesOp>(op);
    if (failed(sum ? assignSum(sum) : assignHome(&op)))
      return failure();
  }
  sinkUpdates();
  return success();
}

/// Elementwise ops of the update whose results a later function alone reads go there: else
/// one function would hand a decayed moment to the next, of every weight at once.
void SlicePlan::sinkUpdates() {
  for (Operation &op : llvm::reverse(main.front().without_terminator())) {
    auto home = homes.find(&op);
    bool isCheap = analysis::isElementwiseName(op.getName().getStringRef()) ||
                   isa<stablehlo::BroadcastInDimOp, stablehlo::ReshapeOp>(op);
    if (home == homes.end() || home->second.second < kUpdateRank || op.use_empty() || !isCheap)
      continue;
    std::optional<int64_t> least;
    bool mayMove = llvm::all_of(op.getUsers(), [&](Operation *user) {
      auto other = homes.find(main.front().findAncestorOpInBlock(*user));
      if (other == homes.end() || other->second.first != home->second.first ||
          isa<SumOfStagesOp>(user))
        return false;
      least = std::min(least.value_or(other->second.second), other->second.second);
      return true;
    });
    if (mayMove)
      home->second.second = std::max(home->second.second, *least);
  }
}

LogicalResult SlicePlan::assignHome(Operation *op) {
  std::optional<int64_t> stage = stageOf(op);
  std::optional<Phase> phase = phaseOf(op);
  if (!stage || !phase)
    return op->emitError() << "has no `" << (stage ? attr::phase : attr::stage)
                           << "`; run the passes from alpa-import to alpa-search-stages first";
  if (*stage >= int64_t(stages.size()))
    return op->emitError() << "is in stage " << *stage << ", but `alpa.stages` has "
                           << stages.size();
  int64_t rank = int64_t(*phase);
  LogicalResult result = success();
  llvm::for_each(importer::getUsedValues(op), [&](Value input) {
    std::optional<Key> from = homeOf(input);
    if (int64_t known = knownFrom.lookup(input))
      from = Key{*stage, known};
    if (!from || failed(result))
      return;
    auto [fromStage, fromRank] = *from;
    // What the update gets from another stage's update comes one function later.
    if (*phase == Phase::Update && fromRank >= kUpdateRank)
      rank = std::max(rank, fromRank + (fromStage != *stage));
    bool late = fromRank > rank ||
                (fromRank == rank && *phase == Phase::Prepare && fromStage != *stage) ||
                (fromRank == rank && *phase == Phase::Forward && fromStage > *stage) ||
                (fromRank == rank && *phase == Phase::Barrier && fromStage != *stage) ||
                (fromRank == rank && *phase == Phase::Backward && fromStage < *stage);
    if (!late)
      return;
    InFlightDiagnostic diagnostic = op->emitError()
                                    << "runs in " << stringifyPhase(*phase) << " of stage "
                                    << *stage << ", before a value that it uses";
    diagnostic.attachNote(input.getLoc())
        << "the value is made in " << stringifyPhase(Phase(std::min(fromRank, kUpdateRank)))
        << " of stage " << fromStage;
    result = diagnostic;
  });
  homes[op] = {*stage, rank};
  return result;
}

/// A state argument lives where its next value is made, so that the step ends
/// with the state where the next one needs it.
void SlicePlan::assignOwners() {
  owners.assign(main.getNumArguments(), -1);
  for (BlockArgument arg : main.getArguments()) {
    int64_t &owner = owners[arg.getArgNumber()];
    if (auto given = main.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), attr::stage)) {
      owner = given.getInt();
      continue;
    }
    if (std::optional<int64_t> result = carriedBy(arg)) {
      Value next = returned(*result);
      if (std::optional<Key> home = homeOf(next))
        owner = home->first;
      else if (Operation *op = next.getDefiningOp())
        owner = stageOf(op).value_or(-1);
      if (owner >= 0)
        continue;
    }
    for (Operation *user : arg.getUsers())
      if (std::optional<int64_t> stage = stageOf(main.front().findAncestorOpInBlock(*user)))
        owner = owner < 0 ? *stage : std::min(owner, *stage);
    owner = std::max<int64_t>(owner, 0);
  }
}

LogicalResult SlicePlan::collect() {
  for (Operation &op : main.front().without_terminator()) {
    // Cheap ops say how their stage holds arguments, too.
    if (auto specs = op.getAttrOfType<ArrayAttr>(attr::operandShardings))
      if (std::optional<int64_t> stage = stageOf(&op))
        for (auto [operand, spec] : llvm::zip_equal(op.getOperands(), specs))
          foreignSpecs.try_emplace({operand, *stage}, cast<ShardingAttr>(spec).getSpec());
    if (auto sum = dyn_cast<SumOfStagesOp>(op))
      planParts(sum);
    auto home = homes.find(&op);
    if (home == homes.end())
      continue;
    FunctionPiece &piece = pieceAt(home->second.first, home->second.second);
    piece.ops.insert(&op);
    LogicalResult result = success();
    llvm::for_each(importer::getUsedValues(&op), [&](Value input) {
      if (isa<BlockArgument>(input) && !isStateArgument(input) && piece.runsOnce() &&
          numMicroBatches > 1 && succeeded(result))
        result = op.emitError() << "runs once a step and uses batch argument "
                                << cast<BlockArgument>(input).getArgNumber()
                                << ", which has a value for each of " << numMicroBatches
                                << " micro-batches; compute it inside the loss function";
      need(piece, input);
    });
    if (failed(result))
      return failure();
  }
  return success();
}

FunctionPiece &SlicePlan::pieceAt(int64_t stage, int64_t rank) {
  FunctionPiece &piece = pieces[{stage, rank}];
  piece.stage = stage;
  piece.rank = rank;
  return piece;
}

std::optional<SlicePlan::Key> SlicePlan::homeOf(Value value) const {
  Operation *op = value.getDefiningOp();
  auto it = op ? homes.find(op) : homes.end();
  if (it == homes.end())
    return std::nullopt;
  return it->second;
}

void SlicePlan::need(FunctionPiece &piece, Value value) {
  Operation *op = value.getDefiningOp();
  if (op && repeated.contains(op)) {
    if (piece.ops.insert(op))
      for (Value operand : op->getOperands())
        need(piece, operand);
    return;
  }
  std::optional<Key> home = homeOf(value);
  if (home == Key{piece.stage, piece.rank})
    return;
  piece.inputs.insert(value);
  if (!home)
    return;
  FunctionPiece &producer = pieces.find(*home)->second;
  auto [it, isNew] = producer.resultOf.try_emplace(value, producer.results.size());
  if (isNew) {
    FunctionResult &result = producer.results.emplace_back();
    result.source = value;
    result.spec = specOn(value, producer.stage);
  }
  if (piece.runsOnce() && !producer.runsOnce())
    producer.results[it->second].accumulate = isTainted(value) ? Accumulate::Sum : Accumulate::Last;
}

void SlicePlan::number() {
  SmallVector<FunctionResult *> results;
  for (auto &[key, piece] : pieces)
    for (auto [index, result] : llvm::enumerate(piece.results)) {
      auto it = piece.resultOf.find(result.source);
      if (it != piece.resultOf.end() && it->second == index)
        results.push_back(&result);
    }
  llvm::sort(results, [&](FunctionResult *a, FunctionResult *b) {
    auto position = [&](FunctionResult *result) {
      return std::make_pair(orderOf(result->source.getDefiningOp()),
                            cast<OpResult>(result->source).getResultNumber());
    };
    return position(a) < position(b);
  });
  int64_t next = main.getNumArguments();
  for (BlockArgument arg : main.getArguments())
    ids[arg] = arg.getArgNumber();
  for (FunctionResult *result : results)
    ids[result->source] = result->id = next++;
  for (auto sum : main.getOps<SumOfStagesOp>())
    ids[sum.getSum()] = next++;
  for (auto &[key, piece] : pieces) {
    for (FunctionResult &result : piece.results) {
      if (result.id < 0)
        result.id = next++;
      if (result.mainResult >= 0)
        mainResultIds[result.mainResult] = result.id;
    }
    for (Value input : piece.inputs) {
      int64_t &last = lastRanks[{input, key.first}];
      last = std::max(last, key.second);
    }
  }
}

ShardingSpec SlicePlan::specOn(Value value, int64_t stage) const {
  ShardingAttr homeSpec;
  int64_t home = -1;
  if (auto arg = dyn_cast<BlockArgument>(value)) {
    homeSpec = main.getArgAttrOfType<ShardingAttr>(arg.getArgNumber(), attr::sharding);
    home = ownerOf(arg);
  } else {
    Operation *op = value.getDefiningOp();
    if (auto specs = op->getAttrOfType<ArrayAttr>(attr::shardings))
      homeSpec = cast<ShardingAttr>(specs[cast<OpResult>(value).getResultNumber()]);
    home = stageOf(op).value_or(-1);
  }
  if (home == stage && homeSpec)
    return homeSpec.getSpec();
  if (auto it = foreignSpecs.find({value, stage}); it != foreignSpecs.end())
    return it->second;
  if (homeSpec && home >= 0 &&
      stages[home].getMesh().getShape() == stages[stage].getMesh().getShape())
    return homeSpec.getSpec();
  return ShardingSpec::replicated(cast<RankedTensorType>(value.getType()).getRank());
}

bool SlicePlan::isPassedThrough(BlockArgument arg) const {
  std::optional<int64_t> result = carriedBy(arg);
  return result && returned(*result) == arg;
}

Value SlicePlan::returned(int64_t index) const {
  return main.front().getTerminator()->getOperand(index);
}

//===----------------------------------------------------------------------===//
// How results leave the sliced step
//===----------------------------------------------------------------------===//

StringRef SlicePlan::reductionOf(int64_t index) const {
  auto reduction = main.getResultAttrOfType<StringAttr>(index, attr::reduction);
  return reduction ? reduction.getValue() : StringRef();
}

std::string SlicePlan::resultName(int64_t index) const {
  std::string name = "result " + std::to_string(index);
  if (auto given = main.getResultAttrOfType<StringAttr>(index, attr::name))
    name += " (" + given.getValue().str() + ")";
  return name;
}

std::string SlicePlan::resultReachedBy(Value value) const {
  SmallVector<Value> worklist{value};
  DenseSet<Value> seen;
  while (!worklist.empty()) {
    Value next = worklist.pop_back_val();
    if (!seen.insert(next).second)
      continue;
    for (OpOperand &use : next.getUses()) {
      if (use.getOwner() == main.front().getTerminator())
        return resultName(use.getOperandNumber());
      llvm::append_range(worklist,
                         main.front().findAncestorOpInBlock(*use.getOwner())->getResults());
    }
  }
  return "the update";
}

void SlicePlan::outputFrom(FunctionPiece &piece, Value value, int64_t index, Accumulate kind) {
  BlockArgument carried = carriedArgs[index];
  ShardingSpec spec = specOn(value, piece.stage);
  if (carried && ownerOf(carried) == piece.stage)
    spec = specOn(carried, piece.stage);
  // What other functions use is kept apart from sums and parts that only leave.
  bool isShared = kind != Accumulate::Sum && kind != Accumulate::Concat;
  auto it = piece.resultOf.find(value);
  if (isShared && it != piece.resultOf.end()) {
    FunctionResult &result = piece.results[it->second];
    bool sameKind = result.accumulate == kind || result.accumulate == Accumulate::None;
    if (result.mainResult < 0 && (sameKind || numMicroBatches == 1) && result.spec == spec) {
      result.accumulate = kind;
      result.mainResult = index;
      return;
    }
  } else if (isShared) {
    piece.resultOf[value] = piece.results.size();
  }
  FunctionResult &result = piece.results.emplace_back();
  result.source = value;
  result.accumulate = kind;
  result.mainResult = index;
  result.spec = spec;
}

void SlicePlan::outputThrough(int64_t stage, int64_t rank, Value value, int64_t index,
                              Accumulate kind) {
  FunctionPiece &piece = pieceAt(stage, rank);
  need(piece, value);
  BlockArgument carried = carriedArgs[index];
  FunctionResult &result = piece.results.emplace_back();
  result.source = value;
  result.accumulate = kind;
  result.mainResult = index;
  result.spec = specOn(carried && ownerOf(carried) == stage ? Value(carried) : value, stage);
}

LogicalResult SlicePlan::planOutput(int64_t index) {
  Value value = returned(index);
  if (auto arg = dyn_cast<BlockArgument>(value))
    return planArgumentOutput(index, arg);
  StringRef reduction = reductionOf(index);
  bool perMicroBatch = numMicroBatches > 1 && (reduction == "sum" || reduction == "concat");
  std::optional<Key> home = homeOf(value);
  int64_t known = knownFrom.lookup(value);
  // What runs once is made of all micro-batches.
  bool isOfAll = known > 0 || (home && runsOnce(home->second));
  if (isOfAll && numMicroBatches > 1 && reduction == "concat")
    return value.getDefiningOp()->emitError()
           << resultName(index) << " is computed once a step, but has a part for each of "
           << numMicroBatches
           << " micro-batches; compute it inside the loss function, or use one micro-batch";
  if (!home) { // Repeated, or a sum of stages: made or passed on where the result is needed.
    BlockArgument carried = carriedArgs[index];
    int64_t stage = carried ? ownerOf(carried) : stageOf(value.getDefiningOp()).value_or(0);
    Accumulate kind = reduction == "sum" ? Accumulate::Sum : Accumulate::Concat;
    if (perMicroBatch && !isOfAll)
      outputThrough(stage, kForwardRank, value, index, kind);
    else
      outputThrough(stage, std::max(known, kUpdateRank), value, index, Accumulate::None);
    return success();
  }
  if (!runsOnce(home->second))
    return planMicroBatchOutput(index, cast<OpResult>(value));
  outputFrom(pieces.find(*home)->second, value, index, Accumulate::None);
  return success();
}

LogicalResult SlicePlan::planArgumentOutput(int64_t index, BlockArgument arg) {
  StringRef reduction = reductionOf(index);
  BlockArgument carried = carriedArgs[index];
  bool concat = reduction == "concat";
  if (carried == arg || (!isStateArgument(arg) && concat)) {
    mainResultIds[index] = arg.getArgNumber();
    return success();
  }
  int64_t stage = ownerOf(carried ? carried : arg);
  if (numMicroBatches > 1 && (concat || reduction == "sum")) {
    outputThrough(stage, kForwardRank, arg, index, concat ? Accumulate::Concat : Accumulate::Sum);
    return success();
  }
  if (!isStateArgument(arg) && numMicroBatches > 1)
    return main.emitError() << resultName(index) << " is batch argument " << arg.getArgNumber()
                            << ", which has a value for each of " << numMicroBatches
                            << " micro-batches; give it the reduction `concat` or `sum`";
  outputThrough(stage, kUpdateRank, arg, index, Accumulate::None);
  return success();
}

LogicalResult SlicePlan::planMicroBatchOutput(int64_t index, OpResult value) {
  FunctionPiece &piece = pieces.find(*homeOf(value))->second;
  BlockArgument carried = carriedArgs[index];
  StringRef reduction = reductionOf(index);
  if (reduction == "sum" || reduction == "concat") {
    outputFrom(piece, value, index, reduction == "sum" ? Accumulate::Sum : Accumulate::Concat);
    return success();
  }
  if (numMicroBatches == 1 || (carried && !isTainted(value))) {
    outputFrom(piece, value, index, Accumulate::Last);
    return success();
  }
  // A sum leaves from the update.
  outputThrough(piece.stage, kUpdateRank, value, index, Accumulate::None);
  return success();
}

LogicalResult SlicePlan::checkAccumulated() {
  if (numMicroBatches == 1)
    return success();
  for (auto &[key, piece] : pieces) {
    for (FunctionResult &result : piece.results) {
      Type element = cast<RankedTensorType>(result.source.getType()).getElementType();
      if (result.accumulate != Accumulate::Sum || !element.isInteger(1))
        continue;
      std::string name =
          result.mainResult >= 0 ? resultName(result.mainResult) : resultReachedBy(result.source);
      return emitError(result.source.getLoc())
             << name << " needs the sum over " << numMicroBatches
             << " micro-batches of a value of type " << result.source.getType()
             << "; run alpa-split-batch first";
    }
  }
  return success();
}

//===----------------------------------------------------------------------===//
// Sums of stages in the sliced step
//===----------------------------------------------------------------------===//

int64_t SlicePlan::rankOfPart(Value value, int64_t stage) const {
  int64_t rank = std::max(kUpdateRank, knownFrom.lookup(value));
  if (std::optional<Key> home = homeOf(value))
    rank = std::max(rank, home->second + (home->second >= kUpdateRank && home->first != stage));
  return rank;
}

LogicalResult SlicePlan::assignSum(SumOfStagesOp sum) {
  if (phaseOf(sum) != Phase::Update)
    return sum.emitError("adds up values of stages outside of the update");
  if (sum.getStages().back() >= int64_t(stages.size()))
    return sum.emitError() << "adds up a value of stage " << sum.getStages().back()
                           << ", but `alpa.stages` has " << stages.size();
  int64_t &known = knownFrom[sum.getSum()];
  for (auto [value, stage] : llvm::zip_equal(sum.getParts(), sum.getStages()))
    known = std::max(known, rankOfPart(value, stage) + 1);
  return success();
}

/// Each stage's part is a result of its own, however else the value is used.
void SlicePlan::planParts(SumOfStagesOp sum) {
  for (auto [value, stage] : llvm::zip_equal(sum.getParts(), sum.getStages())) {
    FunctionPiece &piece = pieceAt(stage, rankOfPart(value, stage));
    need(piece, value);
    FunctionResult &result = piece.results.emplace_back();
    result.source = value;
    result.partOf = sum.getSum();
    result.spec = specOn(sum.getSum(), stage);
  }
}

//===----------------------------------------------------------------------===//
// One module per stage, one function per phase
//===----------------------------------------------------------------------===//

namespace {

/// Moves the ops of one piece into a function of its stage's module.
class PieceBuilder {
public:
  PieceBuilder(func::FuncOp main, const SlicePlan &plan, const FunctionPiece &piece, MeshAttr mesh)
      : main(main), plan(plan), piece(piece), mesh(mesh), builder(main.getContext()) {}

  LogicalResult build(Block *body);

private:
  DictionaryAttr resultAttributes(const FunctionResult &result);
  void cloneOp(Operation *op);
  void markDonated(ArrayRef<const FunctionResult *> results);
  LogicalResult check(Value value, const ShardingSpec &spec);
  IntegerAttr layerAttr(Operation *op) {
    return builder.getI64IntegerAttr(layerOf(op).value_or(0));
  }
  ShardingAttr shardingAttr(const ShardingSpec &spec) {
    return ShardingAttr::get(builder.getContext(), spec);
  }

  func::FuncOp main;
  const SlicePlan &plan;
  const FunctionPiece &piece;
  MeshAttr mesh;
  OpBuilder builder;
  func::FuncOp function;
  SmallVector<Value> inputs;
  SmallVector<NamedAttrList> argAttrs;
  IRMapping mapping;
};

} // namespace

LogicalResult PieceBuilder::check(Value value, const ShardingSpec &spec) {
  auto emit = [&] {
    return emitError(value.getLoc())
           << "held by stage " << piece.stage << " as " << shardingAttr(spec) << ": ";
  };
  return verifySpec(emit, spec, value.getType(), mesh.getShape());
}

LogicalResult PieceBuilder::build(Block *body) {
  inputs.assign(piece.inputs.begin(), piece.inputs.end());
  llvm::sort(inputs, [&](Value a, Value b) { return plan.idOf(a) < plan.idOf(b); });
  SmallVector<const FunctionResult *> results;
  for (const FunctionResult &result : piece.results)
    results.push_back(&result);
  llvm::sort(results, [](auto *a, auto *b) { return a->id < b->id; });

  SmallVector<Type> resultTypes;
  for (const FunctionResult *result : results)
    resultTypes.push_back(result->source.getType());
  builder.setInsertionPointToEnd(body);
  function =
      func::FuncOp::create(builder, main.getLoc(), piece.name(),
                           builder.getFunctionType(ValueRange(inputs).getTypes(), resultTypes));
  function.setPublic();
  Block *entry = function.addEntryBlock();
  builder.setInsertionPointToEnd(entry);
  argAttrs.resize(inputs.size());
  for (auto [index, input] : llvm::enumerate(inputs)) {
    ShardingSpec spec = plan.specOn(input, piece.stage);
    if (failed(check(input, spec)))
      return failure();
    argAttrs[index].set(attr::value, builder.getI64IntegerAttr(plan.idOf(input)));
    argAttrs[index].set(attr::sharding, shardingAttr(spec));
    if (plan.isOnHost(input)) {
      argAttrs[index].set(attr::memory, builder.getStringAttr("host"));
      if (input.getDefiningOp()) // Comes to the device with what its first reader's layer reads.
        argAttrs[index].set(attr::layer, layerAttr(analysis::firstBackwardReader(input)));
    }
    mapping.map(input, entry->getArgument(index));
  }

  SmallVector<Operation *> ops(piece.ops.begin(), piece.ops.end());
  llvm::sort(ops, [&](Operation *a, Operation *b) { return plan.orderOf(a) < plan.orderOf(b); });
  for (Operation *op : ops)
    cloneOp(op);

  SmallVector<Value> returned;
  SmallVector<DictionaryAttr> resultAttrs;
  for (const FunctionResult *result : results) {
    if (failed(check(result->source, result->spec)))
      return failure();
    resultAttrs.push_back(resultAttributes(*result));
    returned.push_back(mapping.lookup(result->source));
  }
  func::ReturnOp::create(builder, main.front().getTerminator()->getLoc(), returned);
  if (piece.isUpdate())
    markDonated(results);
  SmallVector<DictionaryAttr> argDictionaries;
  for (const NamedAttrList &attributes : argAttrs)
    argDictionaries.push_back(attributes.getDictionary(builder.getContext()));
  function.setAllArgAttrs(argDictionaries);
  function.setAllResultAttrs(resultAttrs);
  return success();
}

DictionaryAttr PieceBuilder::resultAttributes(const FunctionResult &result) {
  NamedAttrList attributes;
  attributes.set(attr::value, builder.getI64IntegerAttr(result.id));
  attributes.set(attr::sharding, shardingAttr(result.spec));
  if (plan.isOnHost(result.source)) {
    attributes.set(attr::memory, builder.getStringAttr("host"));
    if (!piece.isUpdate())
      attributes.set(attr::layer, layerAttr(result.source.getDefiningOp()));
  }
  if (!piece.runsOnce() && result.accumulate != Accumulate::None)
    attributes.set(attr::accumulate, builder.getStringAttr(stringify(result.accumulate)));
  if (result.partOf)
    attributes.set(attr::partOf, builder.getI64IntegerAttr(plan.idOf(result.partOf)));
  return attributes.getDictionary(builder.getContext());
}

void PieceBuilder::cloneOp(Operation *op) {
  Operation *clone = builder.clone(*op, mapping);
  for (StringRef name :
       {StringRef(attr::phase), StringRef(attr::eqn), StringRef(attr::layer),
        StringRef(attr::stage), StringRef(attr::operandShardings), StringRef(attr::offloaded)})
    clone->removeAttr(name);
  if (stageOf(op) == piece.stage)
    return;
  // Repeated on a mesh that the search did not place it on: how the op wants its
  // operands there follows from how its result is held.
  clone->removeAttr(attr::useShardings);
  clone->removeAttr(attr::madeShardings);
  clone->removeAttr(attr::captureShardings);
  clone->removeAttr(attr::gathersKeys);
  if (op->getNumResults() == 1 && plan.hasSpecOn(op->getResult(0), piece.stage))
    clone->setAttr(attr::shardings,
                   builder.getArrayAttr(shardingAttr(plan.specOn(op->getResult(0), piece.stage))));
  else
    clone->removeAttr(attr::shardings);
}

/// A state argument may be overwritten by its next value in the last function
/// of its owner that reads it, unless the step returns the argument itself.
void PieceBuilder::markDonated(ArrayRef<const FunctionResult *> results) {
  DenseMap<int64_t, int64_t> positions; // Result of @main to result of the function.
  for (auto [position, result] : llvm::enumerate(results))
    if (result->mainResult >= 0)
      positions[result->mainResult] = position;
  for (auto [index, input] : llvm::enumerate(inputs)) {
    auto arg = dyn_cast<BlockArgument>(input);
    if (!arg || !isStateArgument(arg) || plan.ownerOf(arg) != piece.stage ||
        plan.lastRank(arg, piece.stage) != piece.rank || plan.isPassedThrough(arg))
      continue;
    std::optional<int64_t> next = carriedBy(arg);
    auto it = next ? positions.find(*next) : positions.end();
    if (it == positions.end())
      continue;
    const FunctionResult &result = *results[it->second];
    if (result.source != input && result.source.getType() == input.getType() &&
        result.spec == plan.specOn(input, piece.stage))
      argAttrs[index].set("tf.aliasing_output", builder.getI32IntegerAttr(it->second));
  }
}

/// A weight that may be held otherwise than its state, and is not, needs no copy of its own.
static void dropUnmoved(func::FuncOp main) {
  for (Operation &op : llvm::make_early_inc_range(main.front())) {
    if (!isa<stablehlo::OptimizationBarrierOp>(op) || phaseOf(&op) != Phase::Prepare ||
        op.hasAttr(attr::madeShardings) || op.getNumOperands() != 1)
      continue;
    auto arg = dyn_cast<BlockArgument>(op.getOperand(0));
    auto owner =
        arg ? main.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), attr::stage) : IntegerAttr();
    auto held = arg ? main.getArgAttrOfType<ShardingAttr>(arg.getArgNumber(), attr::sharding)
                    : ShardingAttr();
    auto shardings = op.getAttrOfType<ArrayAttr>(attr::shardings);
    if (!owner || stageOf(&op) != owner.getInt() || !held || !shardings || shardings[0] != held ||
        op.hasAttr(attr::useShardings))
      continue;
    op.getResult(0).replaceAllUsesWith(arg);
    op.erase();
  }
}

namespace {

struct SliceStages : stage::impl::AlpaSliceStagesBase<SliceStages> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto main = module.lookupSymbol<func::FuncOp>("main");
    if (!main || main.isExternal())
      return fail(module, "expected a function @main with a body");
    if (!llvm::hasSingleElement(main.getBody()))
      return fail(main, "expected @main to have one block");
    auto stageAttrs = module->getAttrOfType<ArrayAttr>(attr::stages);
    if (!stageAttrs)
      return fail(module, "has no `alpa.stages`; run alpa-search-stages first");
    for (Operation &op : main.front())
      for (Type type : op.getResultTypes())
        if (auto tensor = dyn_cast<RankedTensorType>(type); !tensor || !tensor.hasStaticShape())
          return fail(&op, "only tensors of static shape can be sliced into stages");
    SmallVector<StageAttr> stages;
    for (Attribute stage : stageAttrs)
      stages.push_back(cast<StageAttr>(stage));
    int64_t numMicroBatches = 1;
    if (auto count = module->getAttrOfType<IntegerAttr>(attr::numMicroBatches))
      numMicroBatches = count.getInt();

    dropUnmoved(main);
    SlicePlan plan(main, stages, numMicroBatches);
    if (failed(plan.compute()) || failed(build(main, plan, stages)))
      return signalPassFailure();
    declareMain(main, plan);
  }

private:
  void fail(Operation *op, const Twine &message) {
    op->emitError() << message;
    signalPassFailure();
  }

  LogicalResult build(func::FuncOp main, const SlicePlan &plan, ArrayRef<StageAttr> stages) {
    OpBuilder builder(main->getContext());
    builder.setInsertionPointAfter(main);
    SmallVector<ModuleOp> modules;
    for (auto [index, stage] : llvm::enumerate(stages)) {
      auto module = ModuleOp::create(builder, main.getLoc(), ("stage_" + Twine(index)).str());
      module->setAttr(attr::mesh, stage.getMesh());
      modules.push_back(module);
    }
    for (auto &[key, piece] : plan.getPieces()) {
      int64_t stage = key.first;
      PieceBuilder pieceBuilder(main, plan, piece, stages[stage].getMesh());
      if (failed(pieceBuilder.build(modules[stage].getBody())))
        return failure();
      ++numFunctions;
      numCrossing += piece.inputs.size();
      numRepeated += llvm::count_if(piece.ops, [&](Operation *op) { return stageOf(op) != stage; });
    }
    return success();
  }

  void declareMain(func::FuncOp main, const SlicePlan &plan) {
    Builder builder(&getContext());
    SmallVector<DictionaryAttr> argAttrs, resultAttrs;
    for (BlockArgument arg : main.getArguments()) {
      NamedAttrList attributes(main.getArgAttrDict(arg.getArgNumber()));
      attributes.set(attr::value, builder.getI64IntegerAttr(plan.idOf(arg)));
      if (isStateArgument(arg))
        attributes.set(attr::stage, builder.getI64IntegerAttr(plan.ownerOf(arg)));
      argAttrs.push_back(attributes.getDictionary(&getContext()));
    }
    for (auto [index, id] : llvm::enumerate(plan.resultIds())) {
      NamedAttrList attributes(main.getResultAttrDict(index));
      attributes.set(attr::value, builder.getI64IntegerAttr(id));
      resultAttrs.push_back(attributes.getDictionary(&getContext()));
    }
    main.setAllArgAttrs(argAttrs);
    main.setAllResultAttrs(resultAttrs);
    main.eraseBody();
    main.setPrivate();
  }
};

} // namespace
