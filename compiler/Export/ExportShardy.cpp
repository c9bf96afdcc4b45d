//===- ExportShardy.cpp - shardings become Shardy annotations -------------===//

#include "compiler/Export/Passes.h"
#include "compiler/Export/PlanTexts.h"
#include "compiler/Stage/SliceUtils.h"
#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

namespace alpa {
#define GEN_PASS_DEF_ALPAEXPORTSHARDY
#include "compiler/Export/Passes.h.inc"
} // namespace alpa

using namespace mlir;
using namespace alpa;

namespace {

/// The annotations of one mesh. Shardy's attributes are made from their text.
class Annotations {
public:
  explicit Annotations(MeshAttr mesh) : mesh(mesh) {}

  FailureOr<Attribute> meshAttribute() {
    std::string text = "#sdy.mesh<[";
    llvm::raw_string_ostream os(text);
    bool first = true;
    for (auto [index, size] : llvm::enumerate(mesh.getShape())) {
      if (size == 1)
        continue;
      os << (first ? "" : ", ") << '"' << axisNames[index] << "\"=" << size;
      first = false;
    }
    os << "]>";
    return parse(text);
  }

  FailureOr<Attribute> sharding(ShardingAttr sharding) {
    Attribute &known = cache[sharding];
    if (known)
      return known;
    std::string text = "#sdy.sharding<@mesh, [";
    llvm::raw_string_ostream os(text);
    llvm::interleaveComma(sharding.getSpec().dims, os, [&](ArrayRef<unsigned> axes) {
      os << '{';
      bool first = true;
      for (unsigned axis : axes) {
        if (mesh.getShape()[axis] == 1)
          continue;
        os << (first ? "" : ", ") << '"' << axisNames[axis] << '"';
        first = false;
      }
      os << '}';
    });
    os << "]>";
    FailureOr<Attribute> made = parse(text);
    if (succeeded(made))
      known = *made;
    return made;
  }

private:
  FailureOr<Attribute> parse(StringRef text) {
    if (Attribute attribute = parseAttribute(text, mesh.getContext()))
      return attribute;
    return failure();
  }

  MeshAttr mesh;
  llvm::DenseMap<Attribute, Attribute> cache;
};

struct ExportShardy : alpa::impl::AlpaExportShardyBase<ExportShardy> {
  using Base::Base;

  /// The dialect's attributes are made from text, which must not load it later.
  LogicalResult initialize(MLIRContext *context) override {
    context->getOrLoadDialect("sdy");
    return success();
  }

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
    if (split && failed(addMesh(stage, annotations)))
      return failure();
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

  LogicalResult addMesh(ModuleOp stage, Annotations &annotations) {
    FailureOr<Attribute> meshAttribute = annotations.meshAttribute();
    if (failed(meshAttribute))
      return failure();
    OpBuilder builder = OpBuilder::atBlockBegin(stage.getBody());
    OperationState state(stage.getLoc(), "sdy.mesh");
    state.addAttribute("sym_name", builder.getStringAttr("mesh"));
    state.addAttribute("mesh", *meshAttribute);
    builder.create(state);
    return success();
  }

  LogicalResult annotateSignature(func::FuncOp function, MeshAttr mesh, Annotations &annotations) {
    // All attributes are set at once: one by one takes quadratic time.
    auto annotate = [&](DictionaryAttr given, Type type, StringRef what, unsigned index,
                        SmallVector<DictionaryAttr> &made) -> LogicalResult {
      NamedAttrList attributes(given);
      auto sharding = dyn_cast_or_null<ShardingAttr>(attributes.get(attr::sharding));
      if (!sharding)
        return function.emitError() << what << " " << index << " has no `" << attr::sharding << "`";
      auto emit = [&] { return function.emitError() << what << " " << index << ": "; };
      if (failed(verifySpec(emit, sharding.getSpec(), type, mesh.getShape())))
        return failure();
      FailureOr<Attribute> annotation = annotations.sharding(sharding);
      if (failed(annotation))
        return failure();
      attributes.set("sdy.sharding", *annotation);
      made.push_back(attributes.getDictionary(function.getContext()));
      return success();
    };
    SmallVector<DictionaryAttr> argAttrs, resultAttrs;
    for (auto [i, type] : llvm::enumerate(function.getArgumentTypes()))
      if (failed(annotate(function.getArgAttrDict(i), type, "argument", i, argAttrs)))
        return failure();
    for (auto [i, type] : llvm::enumerate(function.getResultTypes()))
      if (failed(annotate(function.getResultAttrDict(i), type, "result", i, resultAttrs)))
        return failure();
    function.setAllArgAttrs(argAttrs);
    function.setAllResultAttrs(resultAttrs);
    return success();
  }

  /// Without axes of one device, so that equal splits are equal attributes.
  static ShardingAttr normal(ShardingAttr sharding, MeshAttr mesh) {
    ShardingSpec spec = sharding.getSpec();
    for (auto &axes : spec.dims)
      llvm::erase_if(axes, [&](unsigned axis) {
        return axis < mesh.getShape().size() && mesh.getShape()[axis] == 1;
      });
    return ShardingAttr::get(sharding.getContext(), spec);
  }

  LogicalResult constrainBody(func::FuncOp function, MeshAttr mesh, Annotations &annotations) {
    if (function.isExternal())
      return success();
    llvm::DenseMap<Value, ShardingAttr> known;
    for (BlockArgument arg : function.getArguments())
      known[arg] =
          normal(function.getArgAttrOfType<ShardingAttr>(arg.getArgNumber(), attr::sharding), mesh);
    SmallVector<ReshardOp> reshards;
    function.walk([&](ReshardOp op) { reshards.push_back(op); });
    for (ReshardOp op : reshards)
      if (failed(exportReshard(op, mesh, annotations, known)))
        return failure();
    for (Operation &op : llvm::make_early_inc_range(function.front())) {
      auto shardings = op.getAttrOfType<ArrayAttr>(attr::shardings);
      if (!shardings)
        continue;
      for (auto [result, item] : llvm::zip_equal(op.getResults(), shardings)) {
        auto type = dyn_cast<RankedTensorType>(result.getType());
        if (!type || type.getRank() == 0 || op.getNumOperands() == 0)
          continue;
        ShardingAttr sharding = normal(cast<ShardingAttr>(item), mesh);
        auto emit = [&] { return op.emitError(); };
        if (failed(verifySpec(emit, sharding.getSpec(), type, mesh.getShape())))
          return failure();
        bool follows = isElementwise(&op) && llvm::all_of(op.getOperands(), [&](Value operand) {
                         return known.lookup(operand) == sharding;
                       });
        Value held = result;
        if (!follows && failed(constrain(op, result, sharding, annotations, held)))
          return failure();
        known[held] = sharding;
      }
    }
    return success();
  }

  /// One constraint for each step of the path: the partitioner knows a collective for
  /// every single step, but might make the whole tensor for several at once.
  LogicalResult exportReshard(ReshardOp op, MeshAttr mesh, Annotations &annotations,
                              llvm::DenseMap<Value, ShardingAttr> &known) {
    OpBuilder builder(op);
    Value constrained = op.getOperand();
    for (const ShardingSpec &spec : op.specsAfterFrom()) {
      auto emit = [&] { return op.emitError(); };
      if (failed(verifySpec(emit, spec, op.getType(), mesh.getShape())))
        return failure();
      auto sharding = ShardingAttr::get(op.getContext(), spec);
      FailureOr<Attribute> made = annotations.sharding(sharding);
      if (failed(made))
        return failure();
      OperationState state(op.getLoc(), "sdy.sharding_constraint", constrained, op.getType());
      state.addAttribute("sharding", *made);
      constrained = builder.create(state)->getResult(0);
      known[constrained] = normal(sharding, mesh);
      ++numConstraints;
    }
    op.getResult().replaceAllUsesWith(constrained);
    op.erase();
    return success();
  }

  LogicalResult constrain(Operation &op, OpResult result, ShardingAttr sharding,
                          Annotations &annotations, Value &held) {
    FailureOr<Attribute> made = annotations.sharding(sharding);
    if (failed(made))
      return failure();
    OpBuilder builder(op.getContext());
    builder.setInsertionPointAfter(&op);
    OperationState state(op.getLoc(), "sdy.sharding_constraint");
    state.addOperands(result);
    state.addTypes(result.getType());
    state.addAttribute("sharding", *made);
    Operation *constraint = builder.create(state);
    held = constraint->getResult(0);
    result.replaceAllUsesExcept(held, constraint);
    ++numConstraints;
    return success();
  }
};

} // namespace
