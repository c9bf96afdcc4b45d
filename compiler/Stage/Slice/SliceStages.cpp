//===- SliceStages.cpp - one module per stage, one function per phase -----===//

#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Slice/SlicePlan.h"
#include "compiler/Stage/Slice/SliceUtils.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"

namespace alpa {
#define GEN_PASS_DEF_ALPASLICESTAGES
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

/// Moves the ops of one piece into a function of its stage's module.
class PieceBuilder {
public:
  PieceBuilder(func::FuncOp main, const SlicePlan &plan, const Piece &piece, MeshAttr mesh)
      : main(main), plan(plan), piece(piece), mesh(mesh), builder(main.getContext()) {}

  LogicalResult build(Block *body);

private:
  DictionaryAttr resultAttributes(const PieceResult &result);
  void cloneOp(Operation *op);
  void markDonated(ArrayRef<const PieceResult *> results);
  LogicalResult check(Value value, const ShardingSpec &spec);
  ShardingAttr shardingAttr(const ShardingSpec &spec) {
    return ShardingAttr::get(builder.getContext(), spec);
  }

  func::FuncOp main;
  const SlicePlan &plan;
  const Piece &piece;
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
  SmallVector<const PieceResult *> results;
  for (const PieceResult &result : piece.results)
    results.push_back(&result);
  llvm::sort(results, [](auto *a, auto *b) { return a->id < b->id; });

  SmallVector<Type> resultTypes;
  for (const PieceResult *result : results)
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
    mapping.map(input, entry->getArgument(index));
  }

  SmallVector<Operation *> ops(piece.ops.begin(), piece.ops.end());
  llvm::sort(ops, [&](Operation *a, Operation *b) { return plan.orderOf(a) < plan.orderOf(b); });
  for (Operation *op : ops)
    cloneOp(op);

  SmallVector<Value> returned;
  SmallVector<DictionaryAttr> resultAttrs;
  for (const PieceResult *result : results) {
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

DictionaryAttr PieceBuilder::resultAttributes(const PieceResult &result) {
  NamedAttrList attributes;
  attributes.set(attr::value, builder.getI64IntegerAttr(result.id));
  attributes.set(attr::sharding, shardingAttr(result.spec));
  if (!piece.runsOnce() && result.accumulate != Accumulate::None)
    attributes.set(attr::accumulate, builder.getStringAttr(stringify(result.accumulate)));
  if (result.partOf)
    attributes.set(attr::partOf, builder.getI64IntegerAttr(plan.idOf(result.partOf)));
  return attributes.getDictionary(builder.getContext());
}

void PieceBuilder::cloneOp(Operation *op) {
  Operation *clone = builder.clone(*op, mapping);
  for (StringRef name : {StringRef(attr::phase), StringRef(attr::eqn), StringRef(attr::layer),
                         StringRef(attr::stage), StringRef(attr::operandShardings)})
    clone->removeAttr(name);
  if (stageOf(op) == piece.stage)
    return;
  // Repeated on a mesh that the search did not place it on: how the op wants its
  // operands there follows from how its result is held.
  clone->removeAttr(attr::useShardings);
  clone->removeAttr(attr::captureShardings);
  if (op->getNumResults() == 1 && plan.hasSpecOn(op->getResult(0), piece.stage))
    clone->setAttr(attr::shardings,
                   builder.getArrayAttr(shardingAttr(plan.specOn(op->getResult(0), piece.stage))));
  else
    clone->removeAttr(attr::shardings);
}

/// A state argument may be overwritten by its next value in the last function
/// of its owner that reads it, unless the step returns the argument itself.
void PieceBuilder::markDonated(ArrayRef<const PieceResult *> results) {
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
    const PieceResult &result = *results[it->second];
    if (result.source != input && result.source.getType() == input.getType() &&
        result.spec == plan.specOn(input, piece.stage))
      argAttrs[index].set("tf.aliasing_output", builder.getI32IntegerAttr(it->second));
  }
}

namespace {

struct SliceStages : alpa::impl::AlpaSliceStagesBase<SliceStages> {
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
