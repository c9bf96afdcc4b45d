//===- GatherSums.cpp - sums to which several stages contribute -----------===//
//
// A global norm is a chain of adds whose operands lie all over the pipeline. Each
// stage adds up what it knows itself, and the stages meet once.
//
//===----------------------------------------------------------------------===//

#include "compiler/Import/DataFlow.h"
#include "compiler/Stage/Passes.h"
#include "compiler/Stage/Slice/SliceUtils.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "llvm/ADT/SetVector.h"
#include <map>

namespace alpa::stage {
#define GEN_PASS_DEF_ALPAGATHERSUMS
#include "compiler/Stage/Passes.h.inc"
} // namespace alpa::stage

using namespace mlir;
using namespace alpa;
using namespace alpa::stage;
namespace hlo = mlir::stablehlo;

namespace {

class SumGatherer {
public:
  SumGatherer(func::FuncOp main, ArrayRef<StageAttr> stages)
      : main(main), stages(stages), repeated(main), builder(main.getContext()) {}

  void run();
  unsigned numSums = 0, numParts = 0;

private:
  using Leaves = std::map<int64_t, SmallVector<Value>>; // By stage.

  Leaves leavesOf(hlo::AddOp root);
  void addLeaf(Leaves &leaves, Value leaf, hlo::AddOp user, SmallVectorImpl<Value> &anywhere);
  /// Whether at least two meshes use the value, or what they make of it themselves.
  bool isUsedOnMeshes(hlo::AddOp root) const;
  Value addUp(ArrayRef<Value> leaves, hlo::AddOp root, int64_t stage);
  void gather(hlo::AddOp root, const Leaves &leaves);
  MeshAttr meshOf(int64_t stage) const { return stages[stage].getMesh(); }

  func::FuncOp main;
  ArrayRef<StageAttr> stages;
  RepeatedOps repeated;
  OpBuilder builder;
};

/// An add of the update that is no constant.
bool isSum(Operation *op) {
  auto add = dyn_cast_or_null<hlo::AddOp>(op);
  if (!add || phaseOf(op) != Phase::Update || !stageOf(op))
    return false;
  auto type = dyn_cast<RankedTensorType>(add.getType());
  return type && !type.getElementType().isInteger(1); // Those it would join by or.
}

/// Whether nothing but another such sum uses the add.
bool isInner(hlo::AddOp add) { return add->hasOneUse() && isSum(*add->user_begin()); }

} // namespace

void SumGatherer::addLeaf(Leaves &leaves, Value leaf, hlo::AddOp user,
                          SmallVectorImpl<Value> &anywhere) {
  Operation *source = leaf.getDefiningOp();
  if (repeated.isAvailable(leaf) && (source || isSingleElement(leaf.getType())))
    anywhere.push_back(leaf);
  else if (source && stageOf(source))
    leaves[*stageOf(source)].push_back(leaf);
  else
    leaves[*stageOf(user)].push_back(leaf);
}

/// The operands of the tree of adds, from left to right. What every stage knows is
/// added by the first one.
SumGatherer::Leaves SumGatherer::leavesOf(hlo::AddOp root) {
  Leaves leaves;
  SmallVector<Value> anywhere;
  SmallVector<std::pair<Value, hlo::AddOp>> worklist{{root.getRhs(), root}, {root.getLhs(), root}};
  while (!worklist.empty()) {
    auto [value, user] = worklist.pop_back_val();
    auto add = value.getDefiningOp<hlo::AddOp>();
    if (!add || !isSum(add) || repeated.contains(add) || !isInner(add)) {
      addLeaf(leaves, value, user, anywhere);
      continue;
    }
    worklist.push_back({add.getRhs(), add});
    worklist.push_back({add.getLhs(), add});
  }
  if (!leaves.empty())
    llvm::append_range(leaves.begin()->second, anywhere);
  return leaves;
}

bool SumGatherer::isUsedOnMeshes(hlo::AddOp root) const {
  DenseSet<Value> made{root.getResult()};
  llvm::SmallDenseSet<Attribute> meshes;
  for (Operation *op = root; op; op = op->getNextNode()) {
    if (op == root.getOperation() || llvm::none_of(importer::getUsedValues(op), [&](Value value) {
          return made.contains(value);
        }))
      continue;
    if (op->hasTrait<OpTrait::IsTerminator>()) {
      for (Value value : op->getOperands())
        if (made.contains(value))
          meshes.insert(meshOf(*stageOf(value.getDefiningOp())));
    } else if (repeated.isScalarArithmetic(op, made)) {
      made.insert(op->getResult(0));
    } else if (std::optional<int64_t> stage = stageOf(op)) {
      meshes.insert(meshOf(*stage));
    }
  }
  return meshes.size() > 1;
}

/// A chain of adds on one stage.
Value SumGatherer::addUp(ArrayRef<Value> leaves, hlo::AddOp root, int64_t stage) {
  Attribute sharding;
  if (Operation *source = leaves.front().getDefiningOp())
    if (auto shardings = source->getAttrOfType<ArrayAttr>(attr::shardings))
      sharding = shardings[cast<OpResult>(leaves.front()).getResultNumber()];
  Value sum = leaves.front();
  for (Value leaf : leaves.drop_front()) {
    auto add = hlo::AddOp::create(builder, root.getLoc(), root.getType(), sum, leaf);
    for (StringRef name : {StringRef(attr::phase), StringRef(attr::layer)})
      if (Attribute value = root->getAttr(name))
        add->setAttr(name, value);
    add->setAttr(attr::stage, builder.getI64IntegerAttr(stage));
    if (sharding) {
      add->setAttr(attr::shardings, builder.getArrayAttr(sharding));
      add->setAttr(attr::useShardings, builder.getArrayAttr({sharding, sharding}));
    }
    sum = add.getResult();
  }
  return sum;
}

void SumGatherer::gather(hlo::AddOp root, const Leaves &leaves) {
  builder.setInsertionPoint(root);
  SmallVector<Value> parts;
  SmallVector<int64_t> from;
  for (auto &[stage, values] : leaves) {
    parts.push_back(addUp(values, root, stage));
    from.push_back(stage);
  }
  auto sum = SumOfStagesOp::create(builder, root.getLoc(), root.getType(), parts, from);
  for (StringRef name : {StringRef(attr::phase), StringRef(attr::layer), StringRef(attr::stage),
                         StringRef(attr::shardings)})
    if (Attribute value = root->getAttr(name))
      sum->setAttr(name, value);
  root.replaceAllUsesWith(sum.getSum());
  SmallVector<hlo::AddOp> dead{root};
  while (!dead.empty()) {
    hlo::AddOp add = dead.pop_back_val();
    SmallVector<Value> operands{add.getLhs(), add.getRhs()};
    add.erase();
    for (Value operand : operands)
      if (auto inner = operand.getDefiningOp<hlo::AddOp>(); inner && inner->use_empty())
        dead.push_back(inner);
  }
  ++numSums;
  numParts += parts.size();
}

void SumGatherer::run() {
  SmallVector<hlo::AddOp> roots;
  for (auto add : main.getOps<hlo::AddOp>())
    if (isSum(add) && !repeated.contains(add) && !isInner(add))
      roots.push_back(add);
  for (hlo::AddOp root : roots) {
    Leaves leaves = leavesOf(root);
    llvm::SmallDenseSet<Attribute> meshes;
    for (auto &[stage, values] : leaves)
      meshes.insert(meshOf(stage));
    if (meshes.size() > 1 && isUsedOnMeshes(root))
      gather(root, leaves);
  }
}

namespace {

struct GatherSums : stage::impl::AlpaGatherSumsBase<GatherSums> {
  using Base::Base;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto main = module.lookupSymbol<func::FuncOp>("main");
    auto given = module->getAttrOfType<ArrayAttr>(attr::stages);
    if (!main || main.isExternal() || !llvm::hasSingleElement(main.getBody())) {
      module.emitError("expected a function @main with a body of one block");
      return signalPassFailure();
    }
    if (!given) {
      module.emitError("has no `alpa.stages`; run alpa-search-stages first");
      return signalPassFailure();
    }
    auto stages =
        llvm::map_to_vector(given, [](Attribute stage) { return cast<StageAttr>(stage); });
    for (Operation &op : main.front())
      if (std::optional<int64_t> stage = stageOf(&op); stage && *stage >= int64_t(stages.size())) {
        op.emitError() << "is in stage " << *stage << ", but `alpa.stages` has " << stages.size();
        return signalPassFailure();
      }
    SumGatherer gatherer(main, stages);
    gatherer.run();
    numSums += gatherer.numSums;
    numParts += gatherer.numParts;
  }
};

} // namespace
