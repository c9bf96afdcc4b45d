//===- ExportShardy.cpp - shardings become Shardy annotations -------------===//

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/PlainOps.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Export/AttributeJson.h"
#include "compiler/Export/Passes.h"
#include "compiler/Spmd/OpSplit.h"
#include "compiler/Spmd/RingAttention.h"
#include "compiler/Stage/Slice/SliceUtils.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"

namespace alpa::exporter {
#define GEN_PASS_DEF_ALPAEXPORTSHARDY
#include "compiler/Export/Passes.h.inc"
} // namespace alpa::exporter

using namespace mlir;
using namespace alpa;
using namespace alpa::exporter;

static constexpr llvm::StringLiteral kConstraint = "sdy.sharding_constraint";

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
    FailureOr<Attribute> made = parse("#sdy.sharding" + textOf(sharding));
    if (succeeded(made))
      known = *made;
    return made;
  }

  /// One sharding for each operand or result of a manual computation.
  FailureOr<Attribute> perValue(ArrayRef<ShardingAttr> shardings) {
    std::string text = "#sdy.sharding_per_value<[";
    for (auto [i, sharding] : llvm::enumerate(shardings))
      text += (i ? ", " : "") + textOf(sharding);
    return parse(text + "]>");
  }

  FailureOr<Attribute> allAxes() {
    std::string text = "#sdy<manual_axes{";
    bool first = true;
    for (auto [axis, size] : llvm::enumerate(mesh.getShape()))
      if (size > 1) {
        text += (first ? "\"" : ", \"") + std::string(axisNames[axis]) + "\"";
        first = false;
      }
    return parse(text + "}>");
  }

private:
  /// `<@mesh, [{"x"}, {}]>`
  std::string textOf(ShardingAttr sharding) {
    std::string text = "<@mesh, [";
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
    return text;
  }

  FailureOr<Attribute> parse(StringRef text) {
    if (Attribute attribute = parseAttribute(text, mesh.getContext()))
      return attribute;
    return failure();
  }

  MeshAttr mesh;
  llvm::DenseMap<Attribute, Attribute> cache;
};

struct ExportShardy : exporter::impl::AlpaExportShardyBase<ExportShardy> {
  using Base::Base;

  /// The dialect's attributes are made from text, which must not load it later.
  LogicalResult initialize(MLIRContext *context) override {
    context->getOrLoadDialect("sdy");
    context->getOrLoadDialect("stablehlo");
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
      if (split) {
        suitPartitioner(function);
        if (failed(annotateSignature(function, mesh, annotations)) ||
            failed(constrainBody(function, mesh, annotations)))
          return failure();
      }
      function.getBody().walk([](Operation *op) {
        for (NamedAttribute attribute : llvm::to_vector(op->getDiscardableAttrs()))
          if (attribute.getName().strref().starts_with("alpa."))
            op->removeDiscardableAttr(attribute.getName());
      });
    }
    return success();
  }

  /// What XLA's partitioner gets wrong, or ends the process for, written in other ways.
  static void suitPartitioner(func::FuncOp function) {
    function.walk([](Operation *op) {
      if (auto sort = dyn_cast<stablehlo::SortOp>(op)) {
        auto type = cast<RankedTensorType>(sort->getOperand(0).getType());
        if (auto dim = static_cast<int64_t>(sort.getDimension()); dim < 0)
          sort.setDimension(dim + type.getRank());
      } else if (isa<stablehlo::GatherOp, stablehlo::ScatterOp>(op)) {
        OpOperand &indices = op->getOpOperand(
            isa<stablehlo::GatherOp>(op) ? 1 : cast<stablehlo::ScatterOp>(op).getInputs().size());
        widenIndices(op, indices);
      } else if (auto reduce = dyn_cast<stablehlo::ReduceOp>(op)) {
        addInitialOnce(reduce);
      }
    });
  }

  static void widenIndices(Operation *op, OpOperand &indices) {
    auto element =
        cast<IntegerType>(cast<RankedTensorType>(indices.get().getType()).getElementType());
    if (element.getWidth() >= 32)
      return;
    analysis::PlainOps ops(op);
    indices.set(ops.convert(indices.get(), ops.builder.getI32Type()));
  }

  /// Or each device of those that share the sum adds the initial value.
  static void addInitialOnce(stablehlo::ReduceOp op) {
    std::optional<analysis::Reducer> reducer = analysis::reducerOf(op.getBody());
    if (!reducer || op->getNumResults() != 1)
      return;
    Value initial = op.getInitValues()[0];
    if (analysis::isNeutral(initial, *reducer))
      return;
    analysis::PlainOps ops(op);
    auto type = cast<RankedTensorType>(op->getResult(0).getType());
    Type element = type.getElementType();
    Value neutral = stablehlo::ConstantOp::create(
        ops.builder, op.getLoc(), cast<ElementsAttr>(analysis::neutralOf(*reducer, element)));
    op->setOperand(1, neutral);
    ops.builder.setInsertionPointAfter(op);
    Value all = ops.broadcast(initial, type.getShape(), {});
    Value sum = ops.binary(analysis::nameOf(*reducer, element), op->getResult(0), all);
    if (Attribute shardings = op->getAttr(attr::shardings))
      sum.getDefiningOp()->setAttr(attr::shardings, shardings);
    op->getResult(0).replaceAllUsesExcept(sum, sum.getDefiningOp());
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
    return constrain(function.front(), mesh, annotations, known);
  }

  LogicalResult constrain(Block &block, MeshAttr mesh, Annotations &annotations,
                          llvm::DenseMap<Value, ShardingAttr> &known) {
    for (Operation &op : llvm::make_early_inc_range(block)) {
      auto shardings = op.getAttrOfType<ArrayAttr>(attr::shardings);
      if (!shardings)
        continue;
      if (isa<stablehlo::WhileOp>(op)) { // Its condition is of whole numbers and tests.
        for (auto [argument, operand] :
             llvm::zip_equal(op.getRegion(1).getArguments(), op.getOperands()))
          if (ShardingAttr sharding = known.lookup(operand))
            known[argument] = sharding;
        if (failed(constrain(op.getRegion(1).front(), mesh, annotations, known)))
          return failure();
      }
      FailureOr<bool> isManual = false;
      if (auto convolution = dyn_cast<stablehlo::ConvolutionOp>(op))
        isManual = exportConvolution(convolution, mesh, annotations, known);
      else if (isa<stablehlo::FftOp>(op))
        isManual = exportFft(&op, mesh, annotations, known);
      else if (isa<stablehlo::CustomCallOp, MapOp>(op))
        isManual = exportCall(&op, mesh, annotations, known);
      else if (isa<GroupedDotOp, GroupedSumOp>(op))
        isManual = exportGrouped(&op, mesh, annotations, known);
      if (failed(isManual))
        return failure();
      if (*isManual)
        continue;
      for (auto [result, item] : llvm::zip_equal(op.getResults(), shardings)) {
        auto type = dyn_cast<RankedTensorType>(result.getType());
        if (!type || type.getRank() == 0 || op.getNumOperands() == 0)
          continue;
        ShardingAttr sharding = normal(cast<ShardingAttr>(item), mesh);
        auto emit = [&] { return op.emitError(); };
        if (failed(verifySpec(emit, sharding.getSpec(), type, mesh.getShape())))
          return failure();
        // Any other reader might have the partitioner split it otherwise.
        bool isPlain = llvm::all_of(result.getUsers(), [](Operation *user) {
          return stage::isElementwise(user) || user->getName().getStringRef() == kConstraint;
        });
        bool follows = stage::isElementwise(&op) && isPlain &&
                       llvm::all_of(op.getOperands(), [&](Value operand) {
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
      OperationState state(op.getLoc(), kConstraint, constrained, op.getType());
      state.addAttribute("sharding", *made);
      constrained = builder.create(state)->getResult(0);
      known[constrained] = normal(sharding, mesh);
      ++numConstraints;
    }
    op.getResult().replaceAllUsesWith(constrained);
    op.erase();
    return success();
  }

  /// XLA's partitioner computes something else of some convolutions: of patches that one axis
  /// splits and output features that another one does, or of gradients of grouped weights where an
  /// axis repeats what others share. Each device convolves its part by itself.
  FailureOr<bool> exportConvolution(stablehlo::ConvolutionOp op, MeshAttr mesh,
                                    Annotations &annotations,
                                    llvm::DenseMap<Value, ShardingAttr> &known) {
    FailureOr<spmd::OpSplit> split = splitOf(op, mesh, known);
    if (failed(split))
      return failure();
    if (!split->summedAxes.empty())
      return exportTerms(op, *split, mesh, annotations, known);
    return exportManually(op, split->operands, split->results, mesh, annotations, known);
  }

  /// XLA for CPUs transforms tensors that lie in the order of their dimensions only, and may lay
  /// them out as a product of parts likes them.
  FailureOr<bool> exportFft(Operation *op, MeshAttr mesh, Annotations &annotations,
                            llvm::DenseMap<Value, ShardingAttr> &known) {
    FailureOr<spmd::OpSplit> split = splitOf(op, mesh, known);
    if (failed(split))
      return failure();
    auto body = [&](OpBuilder &builder, ValueRange parts, TypeRange types) {
      auto laidOut = [&](Value value) -> Value {
        auto order = llvm::to_vector(llvm::reverse(
            llvm::seq<int64_t>(0, cast<RankedTensorType>(value.getType()).getRank())));
        auto count = static_cast<int64_t>(order.size());
        Attribute layout = DenseIntElementsAttr::get(
            RankedTensorType::get({count}, builder.getIndexType()), order);
        OperationState state(op->getLoc(), "stablehlo.custom_call", value, value.getType());
        state.addAttribute("call_target_name", builder.getStringAttr("LayoutConstraint"));
        for (StringRef name : {"operand_layouts", "result_layouts"})
          state.addAttribute(name, builder.getArrayAttr(layout));
        return builder.create(state)->getResult(0);
      };
      Value operand = laidOut(parts[0]);
      Operation *local = builder.clone(*op);
      local->setOperands(operand);
      local->getResult(0).setType(types[0]);
      return SmallVector<Value>{laidOut(local->getResult(0))};
    };
    return exportManually(op, split->operands, split->results, mesh, annotations, known,
                          op->getOperands(), body);
  }

  /// The strategy that the shardings of an op of one result say.
  static FailureOr<spmd::OpSplit> splitOf(Operation *op, MeshAttr mesh,
                                          const llvm::DenseMap<Value, ShardingAttr> &known) {
    std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
    SmallVector<ShardingSpec> operands;
    for (Value operand : op->getOperands())
      operands.push_back(specOf(operand, mesh, known));
    auto made = cast<ShardingAttr>(op->getAttrOfType<ArrayAttr>(attr::shardings)[0]);
    ShardingSpec result = normal(made, mesh).getSpec();
    llvm::Expected<spmd::OpSplit> read =
        spmd::readSplit(*rule, operands, result, {}, mesh.getShape());
    if (read)
      return std::move(*read);
    // What a constant would be is left to propagation.
    llvm::consumeError(read.takeError());
    spmd::OpSplit split =
        spmd::nearestSplit(op, *rule, operands, ArrayRef(result), {}, mesh.getShape());
    if (split.results[0] != result)
      return op->emitError("no strategy of the op has these shardings");
    return split;
  }

  /// How the plan makes the operands of an op. Constants and the like are left to propagation, but
  /// made as the plan says.
  static ShardingSpec specOf(Value value, MeshAttr mesh,
                             const llvm::DenseMap<Value, ShardingAttr> &known) {
    if (ShardingAttr sharding = known.lookup(value))
      return sharding.getSpec();
    Operation *source = value.getDefiningOp();
    auto made = source ? source->getAttrOfType<ArrayAttr>(attr::shardings) : ArrayAttr();
    auto sharding = made ? dyn_cast<ShardingAttr>(made[cast<OpResult>(value).getResultNumber()])
                         : ShardingAttr();
    return sharding ? normal(sharding, mesh).getSpec()
                    : ShardingSpec::replicated(spmd::specRank(value));
  }

  using Body = llvm::function_ref<SmallVector<Value>(OpBuilder &, ValueRange, TypeRange)>;

  /// A copy of the op on parts, as a body.
  static auto copyOf(Operation *op) {
    return [op](OpBuilder &builder, ValueRange parts, TypeRange types) {
      Operation *local = builder.clone(*op);
      local->setOperands(parts);
      for (auto [result, type] : llvm::zip_equal(local->getResults(), types))
        result.setType(type);
      analysis::fitSizes(local, op);
      return SmallVector<Value>(local->getResults());
    };
  }

  /// The partitioner makes operands of calls whole, since it does not know what they
  /// compute. Where the call's rule splits it, each device calls for its part.
  FailureOr<bool> exportCall(Operation *op, MeshAttr mesh, Annotations &annotations,
                             llvm::DenseMap<Value, ShardingAttr> &known) {
    std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
    SmallVector<ShardingSpec> operands, results;
    for (Value operand : op->getOperands())
      operands.push_back(specOf(operand, mesh, known));
    for (Attribute item : op->getAttrOfType<ArrayAttr>(attr::shardings))
      results.push_back(isa<ShardingAttr>(item) ? normal(cast<ShardingAttr>(item), mesh).getSpec()
                                                : ShardingSpec());
    if (!rule)
      return false;
    if (llvm::Expected<spmd::OpSplit> split =
            spmd::readSplit(*rule, operands, results, {}, mesh.getShape())) {
      if (leavesTerms(*rule, *split))
        return exportSplitCall(op, *split, mesh, annotations, known);
    } else {
      llvm::consumeError(split.takeError());
    }
    // XLA's partitioner takes what has effects only where it says what each device does.
    auto custom = dyn_cast<stablehlo::CustomCallOp>(op);
    bool hasEffect = custom && custom.getHasSideEffect();
    if (!hasEffect &&
        llvm::all_of(results, [](const ShardingSpec &spec) { return spec.isReplicated(); }))
      return false;
    for (auto [operand, spec] : llvm::zip_equal(op->getOperands(), operands))
      spec = ShardingSpec::replicated(spmd::specRank(operand));
    spmd::OpSplit split =
        spmd::nearestSplit(op, *rule, operands, ArrayRef(results), {}, mesh.getShape());
    if ((!split.summedAxes.empty() && !leavesTerms(*rule, split)) || split.results != results)
      return op->emitError("no strategy of the call has these shardings");
    return exportSplitCall(op, split, mesh, annotations, known);
  }

  FailureOr<bool> exportSplitCall(Operation *op, const spmd::OpSplit &split, MeshAttr mesh,
                                  Annotations &annotations,
                                  llvm::DenseMap<Value, ShardingAttr> &known) {
    std::optional<analysis::AttentionCall> call = analysis::AttentionCall::read(op);
    if (call && !spmd::ringAxes(*call, split.operands[0]).empty())
      return exportRing(*call, split, mesh, annotations, known);
    return exportTerms(op, split, mesh, annotations, known);
  }

  /// Whether devices have terms of sums that nothing else goes into.
  static bool leavesTerms(const analysis::ShardingRule &rule, const spmd::OpSplit &split) {
    return !split.summedAxes.empty() && rule.broughtOnce.empty() &&
           llvm::all_of(split.summedAxes, [](const spmd::OpSplit::SummedAxis &summed) {
             return summed.reducer == analysis::Reducer::Sum;
           });
  }

  /// Each device runs the op on its parts.
  FailureOr<bool> exportTerms(Operation *op, const spmd::OpSplit &split, MeshAttr mesh,
                              Annotations &annotations,
                              llvm::DenseMap<Value, ShardingAttr> &known) {
    return exportTerms(op, split, split.operands, mesh, annotations, known, op->getOperands(),
                       copyOf(op));
  }

  /// What each device computes of its parts of `inputs`: the results of `body`, of which terms get
  /// a dimension over which the partitioner adds up.
  FailureOr<bool> exportTerms(Operation *op, const spmd::OpSplit &split,
                              ArrayRef<ShardingSpec> operands, MeshAttr mesh,
                              Annotations &annotations, llvm::DenseMap<Value, ShardingAttr> &known,
                              ValueRange inputs, Body body) {
    SmallVector<ShardingSpec> made(split.unreduced);
    SmallVector<Type> types(op->getResultTypes());
    SmallVector<unsigned> sums;
    for (auto [i, result] : llvm::enumerate(op->getResults())) {
      auto axes = split.summedAxesOf(i);
      if (axes.empty() || result.use_empty())
        continue;
      types[i] = withTerms(cast<RankedTensorType>(types[i]), axes, mesh, made[i]);
      sums.push_back(i);
    }
    Location loc = op->getLoc();
    auto terms = [&](OpBuilder &builder, ValueRange parts, TypeRange types) {
      SmallVector<Type> own(types);
      for (unsigned i : sums) {
        auto type = cast<RankedTensorType>(own[i]);
        own[i] = type.clone(type.getShape().drop_front());
      }
      SmallVector<Value> values = body(builder, parts, own);
      for (unsigned i : sums)
        values[i] = builder.create(OperationState(loc, "stablehlo.reshape", values[i], types[i]))
                        ->getResult(0);
      return values;
    };
    FailureOr<Operation *> manual =
        createManually(op, operands, made, types, mesh, annotations, inputs, terms);
    if (failed(manual))
      return failure();
    OpBuilder builder(op);
    for (auto [i, result] : llvm::enumerate((*manual)->getResults())) {
      auto sharding = ShardingAttr::get(op->getContext(), split.results[i]);
      Value held = result;
      if (llvm::is_contained(sums, i))
        held = sumOfTerms(builder, result);
      op->getResult(i).replaceAllUsesWith(held);
      if (held != result && failed(constrain(*held.getDefiningOp(), cast<OpResult>(held), sharding,
                                             annotations, held)))
        return failure();
      known[held] = sharding;
    }
    op->erase();
    return true;
  }

  /// The type with a dimension in front for each device's term, and its sharding.
  static RankedTensorType withTerms(RankedTensorType type,
                                    ArrayRef<spmd::OpSplit::SummedAxis> summedAxes, MeshAttr mesh,
                                    ShardingSpec &spec) {
    SmallVector<unsigned, 2> axes;
    int64_t count = 1;
    for (spmd::OpSplit::SummedAxis summed : summedAxes) {
      axes.push_back(summed.axis);
      count *= mesh.getShape()[summed.axis];
    }
    spec.dims.insert(spec.dims.begin(), axes);
    SmallVector<int64_t> shape(type.getShape());
    shape.insert(shape.begin(), count);
    return type.clone(shape);
  }

  static Value sumOfTerms(OpBuilder &builder, Value terms) {
    return analysis::PlainOps(builder, terms.getLoc()).reduce(terms, {0}, analysis::Reducer::Sum);
  }

  /// Keys and values go round the devices that share the tokens, or are gathered.
  FailureOr<bool> exportRing(const analysis::AttentionCall &call, const spmd::OpSplit &split,
                             MeshAttr mesh, Annotations &annotations,
                             llvm::DenseMap<Value, ShardingAttr> &known) {
    Operation *op = stablehlo::CustomCallOp(call.op);
    ArrayRef<unsigned> axes = spmd::ringAxes(call, split.operands[0]);
    spmd::Ring ring;
    for (unsigned axis : axes)
      ring.count *= mesh.getShape()[axis];
    // A device finds its place as its part of all places.
    OpBuilder builder(op);
    Location loc = op->getLoc();
    auto i32 = builder.getI32Type();
    Value places = stablehlo::IotaOp::create(builder, loc, RankedTensorType::get({ring.count}, i32),
                                             builder.getI64IntegerAttr(0));
    SmallVector<Value> inputs(op->getOperands());
    inputs.push_back(places);
    SmallVector<ShardingSpec> operands(split.operands);
    operands.push_back(ShardingSpec::replicated(1));
    operands.back().dims[0].assign(axes.begin(), axes.end());
    auto body = [&](OpBuilder &inner, ValueRange parts, TypeRange types) {
      ring.place =
          stablehlo::ReshapeOp::create(inner, loc, RankedTensorType::get({}, i32), parts.back());
      ring.send = [&](Value value, const spmd::Ring::Pairs &pairs) -> Value {
        OperationState state(loc, stablehlo::CollectivePermuteOp::getOperationName(), value,
                             value.getType());
        state.addAttribute(
            "source_target_pairs",
            spmd::sourceTargetPairs(spmd::ringPairs(pairs, axes, mesh.getShape()), inner));
        // Between the partitions of one program.
        state.addAttribute("channel_handle",
                           stablehlo::ChannelHandleAttr::get(inner.getContext(), ++numChannels, 1));
        return inner.create(state)->getResult(0);
      };
      spmd::setGathers(ring, inner, axes, mesh.getShape(), [&] { return ++numChannels; });
      return spmd::writeRing(inner, call, parts.drop_back(), types, ring);
    };
    return exportTerms(op, split, operands, mesh, annotations, known, inputs, body);
  }

  /// Rows of a group are found by sorting, for which the partitioner makes them whole. Each
  /// device sorts its own; terms of sums get a dimension, over which the partitioner adds up.
  FailureOr<bool> exportGrouped(Operation *op, MeshAttr mesh, Annotations &annotations,
                                llvm::DenseMap<Value, ShardingAttr> &known) {
    SmallVector<ShardingSpec> operands = llvm::map_to_vector(
        op->getOperands(), [&](Value value) { return specOf(value, mesh, known); });
    auto final = normal(cast<ShardingAttr>(op->getAttrOfType<ArrayAttr>(attr::shardings)[0]), mesh);
    llvm::Expected<spmd::OpSplit> split = spmd::readSplit(*analysis::getShardingRule(op), operands,
                                                          {final.getSpec()}, {}, mesh.getShape());
    if (!split)
      return op->emitError("no strategy of the op has these shardings: ")
             << llvm::toString(split.takeError());
    if (final.getSpec().isReplicated() && split->summedAxes.empty())
      return false;
    OpBuilder builder(op);
    Location loc = op->getLoc();
    auto type = cast<RankedTensorType>(op->getResult(0).getType());
    auto attributeOf = [&](const ShardingSpec &spec) {
      return ShardingAttr::get(op->getContext(), spec);
    };
    auto create = [&](StringRef name, ValueRange operands, Type type,
                      ArrayRef<NamedAttribute> attributes = {}) {
      OperationState state(loc, name, operands, type, attributes);
      return builder.create(state)->getResult(0);
    };
    auto part = [&](RankedTensorType type, const ShardingSpec &spec) {
      SmallVector<int64_t> shape(type.getShape());
      for (auto [size, axes] : llvm::zip_equal(shape, spec.dims))
        for (unsigned axis : axes)
          size /= mesh.getShape()[axis];
      return type.clone(shape);
    };
    // The numbers of a device's groups, where it does not have all.
    bool isSum = isa<GroupedSumOp>(op);
    ArrayRef<unsigned> ofGroups =
        isSum ? split->unreduced[0].dims[type.getRank() - 3] : split->operands[1].dims[0];
    SmallVector<Value> inputs(op->getOperands());
    if (!ofGroups.empty()) {
      int64_t count = isSum ? type.getDimSize(type.getRank() - 3)
                            : cast<RankedTensorType>(inputs[1].getType()).getDimSize(0);
      inputs.push_back(
          create("stablehlo.iota", {}, RankedTensorType::get({count}, builder.getI32Type()),
                 builder.getNamedAttr("iota_dimension", builder.getI64IntegerAttr(0))));
      ShardingSpec spec = ShardingSpec::replicated(1);
      spec.dims[0].assign(ofGroups.begin(), ofGroups.end());
      operands.push_back(spec);
    }
    ShardingSpec terms = split->unreduced[0];
    RankedTensorType termsType = type;
    if (!split->summedAxes.empty())
      termsType = withTerms(type, split->summedAxes, mesh, terms);
    FailureOr<Attribute> in = annotations.perValue(llvm::map_to_vector(operands, attributeOf)),
                         out = annotations.perValue(attributeOf(terms)),
                         axes = annotations.allAxes();
    if (failed(in) || failed(out) || failed(axes))
      return failure();
    OperationState state(loc, "sdy.manual_computation", inputs, termsType);
    state.addAttribute("in_shardings", *in);
    state.addAttribute("out_shardings", *out);
    state.addAttribute("manual_axes", *axes);
    state.addRegion();
    Operation *manual = builder.create(state);
    Block &body = manual->getRegion(0).emplaceBlock();
    for (auto [input, spec] : llvm::zip_equal(inputs, operands))
      body.addArgument(part(cast<RankedTensorType>(input.getType()), spec), loc);
    builder.setInsertionPointToEnd(&body);
    Value groups = body.getArgument(2);
    if (!ofGroups.empty()) {
      auto i32 = builder.getI32Type();
      auto local = cast<RankedTensorType>(groups.getType());
      if (local.getElementType() != i32)
        groups = create("stablehlo.convert", groups, local.clone(i32));
      auto one = builder.getDenseI64ArrayAttr({1});
      Value first = create(
          "stablehlo.slice", body.getArgument(3), RankedTensorType::get({1}, i32),
          {builder.getNamedAttr("start_indices", builder.getDenseI64ArrayAttr({0})),
           builder.getNamedAttr("limit_indices", one), builder.getNamedAttr("strides", one)});
      first = create("stablehlo.reshape", first, RankedTensorType::get({}, i32));
      first =
          create("stablehlo.broadcast_in_dim", first, local.clone(i32),
                 builder.getNamedAttr("broadcast_dimensions", builder.getDenseI64ArrayAttr({})));
      groups = create("stablehlo.subtract", {groups, first}, local.clone(i32));
    }
    Operation *local = builder.clone(*op);
    local->setOperands({body.getArgument(0), body.getArgument(1), groups});
    local->getResult(0).setType(part(type, split->unreduced[0]));
    Value result = local->getResult(0);
    if (termsType != type)
      result = create("stablehlo.reshape", result, part(termsType, terms));
    builder.create(OperationState(loc, "sdy.return", result, TypeRange()));
    builder.setInsertionPointAfter(manual);
    Value made = manual->getResult(0);
    if (termsType != type)
      made = sumOfTerms(builder, made);
    op->replaceAllUsesWith(ValueRange(made));
    op->erase();
    Value held = made;
    if (termsType != type &&
        failed(constrain(*made.getDefiningOp(), cast<OpResult>(made), final, annotations, held)))
      return failure();
    known[held] = final;
    return true;
  }

  /// A copy of the op that each device runs on its parts.
  FailureOr<bool> exportManually(Operation *op, ArrayRef<ShardingSpec> operands,
                                 ArrayRef<ShardingSpec> results, MeshAttr mesh,
                                 Annotations &annotations,
                                 llvm::DenseMap<Value, ShardingAttr> &known) {
    return exportManually(op, operands, results, mesh, annotations, known, op->getOperands(),
                          copyOf(op));
  }

  /// What each device computes of its parts of `inputs`: the results of `body`.
  FailureOr<bool> exportManually(Operation *op, ArrayRef<ShardingSpec> operands,
                                 ArrayRef<ShardingSpec> results, MeshAttr mesh,
                                 Annotations &annotations,
                                 llvm::DenseMap<Value, ShardingAttr> &known, ValueRange inputs,
                                 Body body) {
    FailureOr<Operation *> manual = createManually(op, operands, results, op->getResultTypes(),
                                                   mesh, annotations, inputs, body);
    if (failed(manual))
      return failure();
    for (auto [result, spec] : llvm::zip_equal((*manual)->getResults(), results))
      known[result] = ShardingAttr::get(op->getContext(), spec);
    op->replaceAllUsesWith((*manual)->getResults());
    op->erase();
    return true;
  }

  /// The computation of the parts, beside the op.
  static FailureOr<Operation *> createManually(Operation *op, ArrayRef<ShardingSpec> operands,
                                               ArrayRef<ShardingSpec> results, TypeRange made,
                                               MeshAttr mesh, Annotations &annotations,
                                               ValueRange inputs, Body body) {
    auto attributesOf = [&](ArrayRef<ShardingSpec> specs) {
      return llvm::map_to_vector(specs, [&](const ShardingSpec &spec) {
        return ShardingAttr::get(op->getContext(), spec);
      });
    };
    FailureOr<Attribute> in = annotations.perValue(attributesOf(operands)),
                         out = annotations.perValue(attributesOf(results)),
                         axes = annotations.allAxes();
    if (failed(in) || failed(out) || failed(axes))
      return failure();
    auto part = [&](Type type, const ShardingSpec &spec) -> Type {
      SmallVector<int64_t> shape(cast<RankedTensorType>(type).getShape());
      for (auto [size, axes] : llvm::zip_equal(shape, spec.dims))
        for (unsigned axis : axes)
          size /= mesh.getShape()[axis];
      return cast<RankedTensorType>(type).clone(shape);
    };
    OpBuilder builder(op);
    Location loc = op->getLoc();
    OperationState state(loc, "sdy.manual_computation", inputs, made);
    state.addAttribute("in_shardings", *in);
    state.addAttribute("out_shardings", *out);
    state.addAttribute("manual_axes", *axes);
    state.addRegion();
    Operation *manual = builder.create(state);
    Block &block = manual->getRegion(0).emplaceBlock();
    for (auto [input, spec] : llvm::zip_equal(inputs, operands))
      block.addArgument(part(input.getType(), spec), loc);
    builder.setInsertionPointToEnd(&block);
    SmallVector<Type> types;
    for (auto [type, spec] : llvm::zip_equal(made, results))
      types.push_back(part(type, spec));
    builder.create(
        OperationState(loc, "sdy.return", body(builder, block.getArguments(), types), TypeRange()));
    return manual;
  }

  int64_t numChannels = 0; // Each of an exchange between the partitions of one program.

  LogicalResult constrain(Operation &op, OpResult result, ShardingAttr sharding,
                          Annotations &annotations, Value &held) {
    FailureOr<Attribute> made = annotations.sharding(sharding);
    if (failed(made))
      return failure();
    OpBuilder builder(op.getContext());
    builder.setInsertionPointAfter(&op);
    OperationState state(op.getLoc(), kConstraint);
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
