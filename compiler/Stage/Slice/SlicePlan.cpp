//===- SlicePlan.cpp - which op goes into which stage function ------------===//

#include "compiler/Stage/Slice/SlicePlan.h"

#include "compiler/Import/DataFlow.h"
#include "compiler/Stage/Slice/SliceUtils.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace alpa;

StringRef alpa::stringify(Accumulate kind) {
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

std::string Piece::name() const {
  if (isUpdate())
    return "update_" + std::to_string(rank - kUpdateRank);
  return stringifyPhase(Phase(rank)).str();
}

LogicalResult SlicePlan::compute() {
  for (auto [index, op] : llvm::enumerate(main.front()))
    order[&op] = index;
  mainResultIds.assign(main.getNumResults(), -1);
  carriedArgs.resize(main.getNumResults());
  for (BlockArgument arg : main.getArguments())
    if (std::optional<int64_t> result = carriedBy(arg))
      carriedArgs[*result] = arg;
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
  number();
  return success();
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
  return success();
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
  llvm::for_each(getUsedValues(op), [&](Value input) {
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
    Piece &piece = pieceAt(home->second.first, home->second.second);
    piece.ops.insert(&op);
    LogicalResult result = success();
    llvm::for_each(getUsedValues(&op), [&](Value input) {
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

Piece &SlicePlan::pieceAt(int64_t stage, int64_t rank) {
  Piece &piece = pieces[{stage, rank}];
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

void SlicePlan::need(Piece &piece, Value value) {
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
  Piece &producer = pieces.find(*home)->second;
  auto [it, isNew] = producer.resultOf.try_emplace(value, producer.results.size());
  if (isNew) {
    PieceResult &result = producer.results.emplace_back();
    result.source = value;
    result.spec = specOn(value, producer.stage);
  }
  if (piece.runsOnce() && !producer.runsOnce())
    producer.results[it->second].accumulate = isTainted(value) ? Accumulate::Sum : Accumulate::Last;
}

void SlicePlan::number() {
  SmallVector<PieceResult *> results;
  for (auto &[key, piece] : pieces)
    for (auto [index, result] : llvm::enumerate(piece.results)) {
      auto it = piece.resultOf.find(result.source);
      if (it != piece.resultOf.end() && it->second == index)
        results.push_back(&result);
    }
  llvm::sort(results, [&](PieceResult *a, PieceResult *b) {
    auto position = [&](PieceResult *result) {
      return std::make_pair(orderOf(result->source.getDefiningOp()),
                            cast<OpResult>(result->source).getResultNumber());
    };
    return position(a) < position(b);
  });
  int64_t next = main.getNumArguments();
  for (BlockArgument arg : main.getArguments())
    ids[arg] = arg.getArgNumber();
  for (PieceResult *result : results)
    ids[result->source] = result->id = next++;
  for (auto sum : main.getOps<SumOfStagesOp>())
    ids[sum.getSum()] = next++;
  for (auto &[key, piece] : pieces) {
    for (PieceResult &result : piece.results) {
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
