//===- ExportShardy.cpp - shardings become Shardy annotations -------------===//

#include "compiler/Export/Passes.h"
#include "compiler/Export/PlanTexts.h"
#include "compiler/Stage/SliceUtils.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Sdy/SdyDialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

namespace alpa {
#define GEN_PASS_DEF_ALPAEXPORTSHARDY
#include "compiler/Export/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

/// The annotations of one mesh.
class Annotations {
public:
  explicit Annotations(MeshAttr mesh) : mesh(mesh), context(mesh.getContext()) {}

  sdy::MeshAttr meshAttribute() {
    SmallVector<sdy::MeshAxisAttr> axes;
    for (auto [index, size] : llvm::enumerate(mesh.getShape()))
      if (size > 1)
        axes.push_back(sdy::MeshAxisAttr::get(context, axisNames[index], size));
    return sdy::MeshAttr::get(context, axes, {});
  }

  sdy::TensorShardingAttr sharding(ShardingAttr sharding) {
    sdy::TensorShardingAttr &known = cache[sharding];
    if (known)
      return known;
    SmallVector<sdy::DimensionShardingAttr> dims;
    for (ArrayRef<unsigned> axes : sharding.getSpec().dims) {
      SmallVector<sdy::AxisRefAttr> names;
      for (unsigned axis : axes)
        if (mesh.getShape()[axis] > 1)
          names.push_back(sdy::AxisRefAttr::get(context, axisNames[axis], 1, 0));
      dims.push_back(sdy::DimensionShardingAttr::get(context, names, /*is_closed=*/true,
                                                     /*priority=*/-1));
    }
    return known = sdy::TensorShardingAttr::get(context, FlatSymbolRefAttr::get(context, "mesh"),
                                                dims, {}, {});
  }

private:
  MeshAttr mesh;
  MLIRContext *context;
  llvm::DenseMap<Attribute, sdy::TensorShardingAttr> cache;
};

struct ExportShardy : alpa::impl::AlpaExportShardyBase<ExportShardy> {
  using Base::Base;

  void runOnOperation() override {
    bool found = false;
    for (auto stage : getOperation().getOps<ModuleOp>()) {
      auto mesh = stage->getAttrOfType<MeshAttr>(attr::mesh);
      if (!mesh)
        continue;
      found = true;
      if (failed(exportStage(stage, mesh)))
        return signalPassFailure();
    }
    if (found)
      return;
    getOperation().emitError("has no stage modules; run alpa-slice-stages first");
    signalPassFailure();
  }

private:
  LogicalResult exportStage(ModuleOp stage, MeshAttr mesh) {
    Annotations annotations(mesh);
    bool split = mesh.getDevices().size() > 1;
    if (split)
      addMesh(stage, annotations);
    for (auto function : stage.getOps<func::FuncOp>()) {
      if (split && (failed(annotateSignature(function, mesh, annotations)) ||
                    failed(constrainBody(function, mesh, annotations))))
        return failure();
      function.getBody().walk([](Operation *op) {
        for (NamedAttribute attribute : llvm::to_vector(op->getDiscardableAttrs()))
          if (attribute.getName().strref().starts_with("alpa."))
            op->removeDiscardableAttr(attribute.getName());
      });
    }
    return success();
  }

  void addMesh(ModuleOp stage, Annotations &annotations) {
    OpBuilder builder = OpBuilder::atBlockBegin(stage.getBody());
    sdy::MeshOp::create(builder, stage.getLoc(), "mesh", annotations.meshAttribute());
  }

  LogicalResult annotateSignature(func::FuncOp function, MeshAttr mesh, Annotations &annotations) {
    auto annotate = [&](Attribute given, Type type, StringRef what, unsigned index,
                        function_ref<void(Attribute)> set) -> LogicalResult {
      auto sharding = dyn_cast_or_null<ShardingAttr>(given);
      if (!sharding)
        return function.emitError() << what << " " << index << " has no `" << attr::sharding << "`";
      auto emit = [&] { return function.emitError() << what << " " << index << ": "; };
      if (failed(verifySpec(emit, sharding.getSpec(), type, mesh.getShape())))
        return failure();
      set(annotations.sharding(sharding));
      return success();
    };
    for (unsigned i = 0; i < function.getNumArguments(); ++i)
      if (failed(annotate(function.getArgAttr(i, attr::sharding), function.getArgumentTypes()[i],
                          "argument", i,
                          [&](Attribute a) { function.setArgAttr(i, "sdy.sharding", a); })))
        return failure();
    for (unsigned i = 0; i < function.getNumResults(); ++i)
      if (failed(annotate(function.getResultAttr(i, attr::sharding), function.getResultTypes()[i],
                          "result", i,
                          [&](Attribute a) { function.setResultAttr(i, "sdy.sharding", a); })))
        return failure();
    return success();
  }

  LogicalResult constrainBody(func::FuncOp function, MeshAttr mesh, Annotations &annotations) {
    if (function.isExternal())
      return success();
    llvm::DenseMap<Value, ShardingAttr> known;
    for (BlockArgument arg : function.getArguments())
      known[arg] = function.getArgAttrOfType<ShardingAttr>(arg.getArgNumber(), attr::sharding);
    for (Operation &op : llvm::make_early_inc_range(function.front())) {
      auto shardings = op.getAttrOfType<ArrayAttr>(attr::shardings);
      if (!shardings)
        continue;
      for (auto [result, item] : llvm::zip_equal(op.getResults(), shardings)) {
        auto sharding = cast<ShardingAttr>(item);
        auto type = dyn_cast<RankedTensorType>(result.getType());
        if (!type || type.getRank() == 0 || op.getNumOperands() == 0)
          continue;
        auto emit = [&] { return op.emitError(); };
        if (failed(verifySpec(emit, sharding.getSpec(), type, mesh.getShape())))
          return failure();
        bool follows = isElementwise(&op) && llvm::all_of(op.getOperands(), [&](Value operand) {
                         return known.lookup(operand) == sharding;
                       });
        Value held = follows ? Value(result) : constrain(result, annotations.sharding(sharding));
        known[held] = sharding;
      }
    }
    return success();
  }

  Value constrain(OpResult result, sdy::TensorShardingAttr sharding) {
    OpBuilder builder(result.getContext());
    builder.setInsertionPointAfter(result.getOwner());
    auto constraint = sdy::ShardingConstraintOp::create(builder, result.getLoc(), result, sharding);
    result.replaceAllUsesExcept(constraint.getResult(), constraint);
    ++numConstraints;
    return constraint.getResult();
  }
};

} // namespace
