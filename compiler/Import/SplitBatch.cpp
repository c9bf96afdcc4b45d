//===- SplitBatch.cpp - the batch along an axis in time -------------------===//
//
// Splitting the batch over micro-batches is the question of splitting it over
// devices, and the sharding rules answer it. Every value is `whole` (all
// micro-batches have the same), `split` along the factor of one dimension that runs
// over the micro-batches, or `unreduced` (the micro-batches' values still have to be
// combined). What needs a completed value runs behind the micro-batches, in the
// update, on values of the whole batch.
//
// The backward pass is linear in what it is seeded with. So a scalar that is known
// only behind the micro-batches (one over the number of unmasked tokens) waits as a
// scale of what it multiplies: the value that the micro-batch makes is short of that
// factor, and gets it when it is completed.
//
//===----------------------------------------------------------------------===//

#include "compiler/Analysis/Calls/AttentionCall.h"
#include "compiler/Analysis/Draws.h"
#include "compiler/Analysis/PartSizes.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Import/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Chlo/ChloOps.h"
#include "dialects/Common/Diagnostics.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/FormatVariadic.h"
#include <deque>
#include <map>
#include <numeric>

namespace alpa::importer {
#define GEN_PASS_DEF_ALPASPLITBATCH
#include "compiler/Import/Passes.h.inc"
} // namespace alpa::importer

using namespace mlir;
using namespace alpa;
using namespace alpa::importer;
namespace hlo = mlir::stablehlo;
using analysis::AttentionCall;
using analysis::DimFactors;
using analysis::Factor;
using analysis::FactorKind;
using analysis::fitSizes;
using analysis::getShardingRule;
using analysis::holds;
using analysis::isNeutral;
using analysis::isSplatOf;
using analysis::nameOf;
using analysis::neutralOf;
using analysis::Reducer;
using analysis::ShardingRule;
using analysis::splatOf;
using analysis::TensorFactors;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

/// On ops that run behind the micro-batches, while the pass works.
static constexpr llvm::StringLiteral kLate = "alpa.late";
static bool runsLate(Operation *op) {
  return op->hasAttr(kLate) || op->hasTrait<OpTrait::IsTerminator>();
}

namespace {

/// How the micro-batches hold a value. A dimension that is split consists of `outer`
/// blocks, each of which has one part for every micro-batch.
struct Layout {
  enum Kind : uint8_t { Whole, Split, Unreduced, Estimate } kind = Whole;
  int64_t dim = 0, outer = 1;     // Of Split.
  Reducer reducer = Reducer::Sum; // Of Unreduced.

  static Layout split(int64_t dim, int64_t outer) { return {Split, dim, outer, Reducer::Sum}; }
  static Layout unreduced(Reducer reducer) { return {Unreduced, 0, 1, reducer}; }
  bool operator==(const Layout &other) const {
    return kind == other.kind && dim == other.dim && outer == other.outer &&
           reducer == other.reducer;
  }
};

/// Completed scalars by number, and the powers with which they multiply a value.
using Scale = std::map<unsigned, int>;

/// What a micro-batch makes of a value of the step.
struct Form {
  Value value;
  Layout layout;
  Scale scale;

  bool isPlain() const { return layout.kind == Layout::Whole && scale.empty(); }
  bool isSplit() const { return layout.kind == Layout::Split; }
  bool isUnreduced() const { return layout.kind == Layout::Unreduced; }
};

enum class Semantics { Exact, Relaxed, Independent };

/// Why something cannot be had from one micro-batch.
struct Refusal {
  Operation *op = nullptr;
  std::string text;
  std::string fix; // Of one that is not about what examples have to do with one another, whose
                   // text says it all.
  std::string hint = {}; // Behind the text: what may have been meant.
};

class BatchSplitter {
public:
  /// What an attempt found that another one should heed.
  struct Findings {
    DenseSet<Value> once;         // Values of the step whose parts are cut out of the whole.
    DenseSet<Operation *> joined; // Ops of the step that work on the whole batch.
    int64_t blocks = 1;           // Of the batch, of each of which micro-batches have a part.
    bool operator!=(const Findings &other) const {
      return once.size() != other.once.size() || joined.size() != other.joined.size() ||
             blocks != other.blocks;
    }
  };

  /// What an attempt may do.
  struct Freedom {
    Semantics semantics = Semantics::Exact;
    bool mayMeet = false;    // In a barrier.
    bool splitsDraws = true; // Rows that are drawn for the examples of the batch.
  };

  BatchSplitter(func::FuncOp main, const analysis::Draws &draws, int64_t count,
                const Freedom &freedom, bool widensSums, const Findings &known)
      : found(known), main(main), draws(draws), count(count), semantics(freedom.semantics),
        widensSums(widensSums), mayMeet(freedom.mayMeet), splitsDraws(freedom.splitsDraws),
        known(known), context(main.getContext()) {}

  /// Fails without a message if `found` is more than was known, or if examples are
  /// coupled: `refusal` says why.
  LogicalResult run();

  Refusal refusal;
  Findings found;
  bool hasSplitDraws = false;
  // Places, for the plan.
  SmallVector<Attribute> sums, scales, joins, repeats, estimates, barriers;

private:
  /// Where ops are made for one region of the step.
  struct Scope {
    OpBuilder builder; // At the end of a block of the step as it becomes.
    std::map<std::tuple<void *, int64_t, int64_t>, Value> slices;
  };

  // Ops.
  void visit(Operation *op);
  LogicalResult visitInner(Operation *op);
  LogicalResult inMicroBatch(Operation *op);
  LogicalResult plain(Operation *op, SmallVector<Form> in);
  LogicalResult barrier(Operation *op);
  LogicalResult loop(hlo::WhileOp op, bool meetsSums = false);
  LogicalResult branches(hlo::CaseOp op);
  void behind(Operation *op);
  bool cloneWhole(Operation *op);
  LogicalResult enter(Region &from, Region &to, ArrayRef<Layout> layouts, ArrayRef<Scale> scale,
                      SmallVectorImpl<Form> &yielded);
  void leave(Region &from, ArrayRef<Value> values);
  void unwind(size_t depth, Scope *to);
  void destroy(Operation *made);
  void noteWholeResults(Operation *op, Operation *made);
  void noteMixed(Operation *made);
  Value ofFirst(Value value, DictionaryAttr attributes);

  // Splitting by the rule.
  struct Assignment {
    int64_t factor = -1;
    int64_t outer = 1; // Blocks within the factor.
  };
  std::optional<Assignment> assignmentOf(const ShardingRule &rule, const TensorFactors &tensor,
                                         Layout layout);
  std::optional<Layout> layoutOf(const ShardingRule &rule, const TensorFactors &tensor,
                                 Assignment assignment);
  void widen(Operation *op, Operation *made);
  LogicalResult splitByRule(Operation *op, SmallVector<Form> &in, const Scale &scale);
  LogicalResult splitSpecially(Operation *op, SmallVector<Form> &in, const Scale &scale,
                               bool &handled);
  std::optional<Layout> reshaped(Layout layout, ArrayRef<int64_t> from, ArrayRef<int64_t> to);
  LogicalResult pickOwnRows(Operation *op, SmallVector<Form> &in, const Scale &scale,
                            bool &handled);
  RankedTensorType localType(Value value, Layout layout);
  Operation *make(Operation *op, ArrayRef<Value> operands, ArrayRef<Layout> results);
  void define(Operation *op, Operation *made, ArrayRef<Layout> layouts, const Scale &scale);

  // Linear algebra of scales and unreduced values.
  struct Joint {
    bool isUnreduced = false;
    Scale scale;
  };
  struct Base {
    unsigned id;
    Value completed, before; // The latter of the step as it was.
  };
  std::optional<Joint> jointOf(Operation *op, ArrayRef<Form> in);
  std::optional<Joint> linearJointOf(Operation *op, ArrayRef<Form> in);
  Form unscaled(Form form, function_ref<Value(const Base &)> factorOf);
  bool isZero(Value value);
  /// Whether the value is of the step itself, not of a loop or branch in it.
  bool isOfStep(Value value) { return value.getParentBlock() == &main.front(); }
  std::optional<Form> formOf(Value value);
  std::optional<Form> scaledForm(Value value);
  std::optional<Form> baseForm(Value value);
  std::optional<Form> estimateForm(Value value);
  std::optional<Form> metForm(Value value);
  bool isBehindBarrier(Value made);
  bool isLayerOfWhole(Operation *op);
  LogicalResult cutForLayer(Operation *op);
  LogicalResult cutDraw(Operation *op);
  void joinBefore(Value value);
  Value met(Value made);
  bool canRepeat(Value value);
  Value repeated(Value value);
  Value roundedOnce(Value value, OpBuilder &builder);
  void takeFromWhole(Operation *op);
  void findTwice();
  std::optional<Form> repeatedForm(Value value, const std::optional<Form> &form);
  const Refusal *whyWhole(Operation *op);
  bool isLayer(Operation *op);
  LogicalResult rearrange(Operation *op, const Refusal &why);
  bool joinRearranged(Operation *op);
  unsigned numberOf(Value value);

  // Parts of whole values.
  Value sliceOf(Value whole, Layout layout);
  Value cut(Value whole, Layout layout, Scope &scope, DictionaryAttr attributes);
  Value partOfOp(Operation *op, unsigned result, Layout layout, Scope &scope);
  Value partOfLoop(Operation *made, unsigned result, Layout layout);
  Value offset(int64_t inner, Scope &scope, DictionaryAttr attributes, Location loc);
  Value held(const Form &form, Layout wanted);
  std::optional<Layout> onlyPart(Value whole, size_t depth);

  // Completed values.
  Value complete(Value value);
  Value join(Form form, DictionaryAttr attributes);
  bool roundsTerms(Value value);
  bool isDoneOnce(Operation *op);
  Value scaleBy(Value value, const Scale &scale, DictionaryAttr attributes);
  LogicalResult finish();
  bool hasBarrier();
  DenseSet<Operation *> findMet();
  void joinBeforeBarrier();
  bool readsPartsLate();
  void findWork(Block &before);
  void relabel();

  LogicalResult refuse(Operation *op, const Twine &text, const Twine &fix = "") {
    last = {op, text.str(), fix.str()};
    return failure();
  }
  LogicalResult refuseCut(Operation *op, int64_t blocks);
  LogicalResult refuseBlocks(hlo::ReshapeOp op, Layout layout);
  bool canShareBlocks(int64_t blocks);
  int64_t commonRows();
  std::string numbersForBlocks();
  void nameBlocks();
  std::string hintForRows(Operation *op);
  LogicalResult refuseKernel(MapOp op, unsigned operand, int64_t dim);
  Scope &scopeOf(Value made);
  Scope &here() { return *active; }
  Scope &top() { return scopes.front(); }
  bool isAtTop() const { return active == &scopes.front(); }
  DictionaryAttr attributesOf(Operation *op);
  DictionaryAttr phaseAttributes(bool isLate);
  Value op1(OpBuilder &builder, StringRef name, ValueRange operands, Type type, Location loc,
            DictionaryAttr attributes, ArrayRef<NamedAttribute> own = {});
  Value constant(OpBuilder &builder, DenseElementsAttr value, Location loc, DictionaryAttr at);
  Value spread(OpBuilder &builder, Value scalar, ArrayRef<int64_t> shape, DictionaryAttr at);
  static StringRef phaseOf(Operation *op) {
    auto phase = op->getAttrOfType<StringAttr>(attr::phase);
    return phase ? phase.getValue() : StringRef("update");
  }
  static std::string placeOf(Location location);
  static std::string placeOf(Operation *op) { return placeOf(op->getLoc()); }
  /// Where a value is made; of an argument that has no place, the loop or function around it.
  static std::string placeOf(Value value);

  func::FuncOp main;
  const analysis::Draws &draws;
  int64_t count;
  Semantics semantics;
  bool widensSums;
  /// Whether micro-batches may read what was completed from all of them: what comes
  /// before runs for each of them first, then the barrier, then the rest.
  bool mayMeet;
  bool splitsDraws;
  const Findings &known;
  DenseSet<Value> cutOnly; // Whole values that are known to be cut.
  DenseSet<Value> parts;   // Of joined values: a micro-batch's rows among zeros.
  DenseSet<Value> parted;  // Whole values of which parts were computed.
  MLIRContext *context;
  Block *out = nullptr;
  BlockArgument number;
  std::deque<Scope> scopes;
  Scope *active = nullptr;
  DenseMap<Operation *, Operation *> loops; // What whole loops were, by what they became.
  DenseMap<Value, Form> forms;              // By value of the step.
  DenseMap<Value, Value> completed;         // By value of the step: of the whole batch.
  DenseMap<Value, bool> rounded;            // Terms that were rounded on the way.
  DenseMap<Value, std::optional<Form>> scaled, estimated;
  DenseSet<Value> zeros;         // Arguments of bodies that may be taken for zero.
  DenseSet<Value> mixed;         // The same for all micro-batches, but made with what is not.
  DenseMap<Value, Refusal> wide; // Completed from more than sums, and why.
  std::map<std::vector<const void *>, unsigned> numbers;
  DenseMap<Value, unsigned> numbered;
  DenseMap<Operation *, bool> behindBarrier; // Ops of the step as it becomes.
  DenseSet<Operation *> meeting;             // Ops of the step that read what was completed.
  DenseMap<Value, Value> handedOn;           // Values of the step as it becomes, to themselves.
  SmallVector<Base> bases;                   // Scalars that wait.
  /// Slices of what the batch's arguments say, with the dimension and number of all its examples.
  DenseMap<Value, std::pair<int64_t, int64_t>> someRows;
  DenseMap<Value, Refusal> ofWhole;          // Blocks of the whole batch, and why they are.
  DenseMap<Value, Value> repeats_;           // By value of the step, and by argument.
  SmallVector<BlockArgument> wholeArguments; // Of the step as it was.
  Refusal last;
  int64_t wantedBlocks = 1; // That reshapes make of the batch, and micro-batches cut apart.
  bool wantsEstimates = false;
};

} // namespace

//===----------------------------------------------------------------------===//
// Making ops
//===----------------------------------------------------------------------===//

DictionaryAttr BatchSplitter::attributesOf(Operation *op) {
  // Ops of bodies have no phase of their own.
  NamedAttrList attributes;
  for (StringRef name : {StringRef(attr::phase), StringRef(attr::eqn)})
    if (Attribute value = op->getAttr(name))
      attributes.set(name, value);
  return attributes.getDictionary(context);
}

/// Of an op that runs behind the micro-batches, or of one whose phase is that of its
/// first reader.
DictionaryAttr BatchSplitter::phaseAttributes(bool isLate) {
  NamedAttrList attributes;
  attributes.set(attr::phase, StringAttr::get(context, "update"));
  if (isLate)
    attributes.set(kLate, UnitAttr::get(context));
  return attributes.getDictionary(context);
}

Value BatchSplitter::op1(OpBuilder &builder, StringRef name, ValueRange operands, Type type,
                         Location loc, DictionaryAttr attributes, ArrayRef<NamedAttribute> own) {
  OperationState state(loc, name, operands, {type});
  if (attributes)
    state.addAttributes(attributes.getValue());
  state.addAttributes(own);
  return builder.create(state)->getResult(0);
}

Value BatchSplitter::constant(OpBuilder &builder, DenseElementsAttr value, Location loc,
                              DictionaryAttr at) {
  return op1(builder, "stablehlo.constant", {}, value.getType(), loc, at,
             {builder.getNamedAttr("value", value)});
}

Value BatchSplitter::spread(OpBuilder &builder, Value scalar, ArrayRef<int64_t> shape,
                            DictionaryAttr at) {
  if (shape.empty())
    return scalar;
  return op1(builder, "stablehlo.broadcast_in_dim", scalar, typeOf(scalar).clone(shape),
             scalar.getLoc(), at,
             {builder.getNamedAttr("broadcast_dimensions", builder.getDenseI64ArrayAttr({}))});
}

std::string BatchSplitter::placeOf(Location location) {
  std::string text;
  location->walk([&](Location part) {
    auto file = dyn_cast<FileLineColLoc>(part);
    if (!file)
      return WalkResult::advance();
    text = (file.getFilename().getValue() + ":" + Twine(file.getLine())).str();
    return WalkResult::interrupt();
  });
  return text;
}

std::string BatchSplitter::placeOf(Value value) {
  std::string place = placeOf(value.getLoc());
  Operation *around = value.getParentBlock()->getParentOp();
  return place.empty() && around ? placeOf(around) : place;
}

BatchSplitter::Scope &BatchSplitter::scopeOf(Value made) {
  for (Scope &scope : llvm::reverse(scopes))
    if (scope.builder.getInsertionBlock() == made.getParentBlock())
      return scope;
  return top();
}

RankedTensorType BatchSplitter::localType(Value value, Layout layout) {
  auto type = typeOf(value);
  if (layout.kind != Layout::Split)
    return type;
  SmallVector<int64_t> shape(type.getShape());
  shape[layout.dim] /= count;
  return type.clone(shape);
}

/// Whether a function of scalars, as those of reductions, reads what is made outside of it.
static bool readsOutside(Operation *op) {
  llvm::SetVector<Value> captured;
  if (!isa<hlo::WhileOp, hlo::CaseOp>(op))
    getUsedValuesDefinedAbove(op->getRegions(), captured);
  return !captured.empty();
}

/// Gives functions of scalars constants of their own, which may be those of a branch or loop around
/// them.
static void bringConstantsIn(func::FuncOp main) {
  main.walk([](Operation *op) {
    if (isa<func::FuncOp, hlo::WhileOp, hlo::CaseOp>(op))
      return;
    for (Region &region : op->getRegions()) {
      llvm::SetVector<Value> captured;
      getUsedValuesDefinedAbove(region, captured);
      for (Value value : captured)
        if (auto constant = value.getDefiningOp<hlo::ConstantOp>()) {
          OpBuilder builder = OpBuilder::atBlockBegin(&region.front());
          replaceAllUsesInRegionWith(value, builder.clone(*constant)->getResult(0), region);
        }
    }
  });
}

/// A copy of `op` on parts; its regions work on single elements or whole values.
Operation *BatchSplitter::make(Operation *op, ArrayRef<Value> operands, ArrayRef<Layout> results) {
  Operation *made = here().builder.clone(*op);
  made->setOperands(operands);
  for (auto [result, whole, layout] :
       llvm::zip_equal(made->getResults(), op->getResults(), results))
    result.setType(localType(whole, layout));
  fitSizes(made, op);
  return made;
}

void BatchSplitter::define(Operation *op, Operation *made, ArrayRef<Layout> layouts,
                           const Scale &scale) {
  for (auto [old, value, layout] : llvm::zip_equal(op->getResults(), made->getResults(), layouts))
    forms[old] = {value, layout, scale};
}

//===----------------------------------------------------------------------===//
// Parts of whole values
//===----------------------------------------------------------------------===//

/// Elements before this micro-batch's: its number times `inner`.
Value BatchSplitter::offset(int64_t inner, Scope &scope, DictionaryAttr attributes, Location loc) {
  OpBuilder &builder = scope.builder;
  auto scalar = RankedTensorType::get({}, typeOf(number).getElementType());
  Value index = op1(builder, "stablehlo.reshape", number, scalar, loc, attributes);
  auto i32 = RankedTensorType::get({}, builder.getI32Type());
  index = op1(builder, "stablehlo.convert", index, i32, loc, attributes);
  if (inner == 1)
    return index;
  Value factor = constant(builder, splatOf(inner, i32), loc, attributes);
  return op1(builder, "stablehlo.multiply", {index, factor}, i32, loc, attributes);
}

/// Cuts the part out of a value that is there as a whole.
Value BatchSplitter::cut(Value whole, Layout layout, Scope &scope, DictionaryAttr attributes) {
  OpBuilder &builder = scope.builder;
  Location loc = whole.getLoc();
  RankedTensorType type = typeOf(whole);
  int64_t inner = type.getDimSize(layout.dim) / (layout.outer * count);
  // With several blocks the micro-batches get a dimension of their own.
  SmallVector<int64_t> shape(type.getShape());
  int64_t dim = layout.dim;
  Value value = whole;
  if (layout.outer > 1) {
    shape[dim] = layout.outer;
    shape.insert(shape.begin() + dim + 1, {count, inner});
    value = op1(builder, "stablehlo.reshape", value, type.clone(shape), loc, attributes);
    ++dim;
    shape[dim] = 1;
  } else {
    shape[dim] = inner;
  }
  auto i32 = RankedTensorType::get({}, builder.getI32Type());
  SmallVector<Value> operands{value};
  Value zero = constant(builder, splatOf(0, i32), loc, attributes);
  Value start = offset(layout.outer > 1 ? 1 : inner, scope, attributes, loc);
  for (int64_t i = 0; i < int64_t(shape.size()); ++i)
    operands.push_back(i == dim ? start : zero);
  value = op1(builder, "stablehlo.dynamic_slice", operands, type.clone(shape), loc, attributes,
              {builder.getNamedAttr("slice_sizes", builder.getDenseI64ArrayAttr(shape))});
  if (layout.outer > 1)
    value = op1(builder, "stablehlo.reshape", value, localType(whole, layout), loc, attributes);
  return value;
}

/// Whether an op gives numbers of fewer bits.
static bool narrows(Operation *op) {
  if (!isa<hlo::ConvertOp>(op))
    return false;
  auto from = dyn_cast<FloatType>(typeOf(op->getOperand(0)).getElementType());
  auto to = dyn_cast<FloatType>(typeOf(op->getResult(0)).getElementType());
  return from && to && to.getWidth() < from.getWidth();
}

/// Whether parts of a value may be rounded otherwise than the whole: not if its op only
/// moves, chooses or converts elements.
static bool isRounded(Value value) {
  Operation *op = value.getDefiningOp();
  if (!op || !isa<FloatType, ComplexType>(typeOf(value).getElementType()))
    return false;
  return !isa<hlo::AbsOp, hlo::BroadcastInDimOp, hlo::CeilOp, hlo::ClampOp, hlo::ConcatenateOp,
              hlo::ConstantOp, hlo::ConvertOp, hlo::DynamicSliceOp, hlo::DynamicUpdateSliceOp,
              hlo::FloorOp, hlo::GatherOp, hlo::IotaOp, hlo::MaxOp, hlo::MinOp, hlo::NegOp,
              hlo::PadOp, hlo::ReshapeOp, hlo::ReverseOp, hlo::SelectOp, hlo::SignOp, hlo::SliceOp,
              hlo::TransposeOp>(op);
}

/// The part of an op's result, from parts of its operands: what depends on no example is
/// computed for the examples of the micro-batch alone. Null if the op cannot do that.
Value BatchSplitter::partOfOp(Operation *op, unsigned index, Layout layout, Scope &scope) {
  OpBuilder &builder = scope.builder;
  DictionaryAttr attributes = attributesOf(op);
  RankedTensorType type = localType(op->getResult(index), layout);
  if (auto known = dyn_cast<hlo::ConstantOp>(op)) {
    auto dense = dyn_cast<DenseElementsAttr>(known.getValue());
    if (!dense || !dense.isSplat())
      return {};
    return constant(builder, dense.resizeSplat(type), op->getLoc(), attributes);
  }
  if (auto iota = dyn_cast<hlo::IotaOp>(op)) {
    if (int64_t(iota.getIotaDimension()) == layout.dim && layout.outer > 1)
      return {};
    Operation *made = builder.clone(*op);
    made->removeAttr(kLate);
    if (int64_t(iota.getIotaDimension()) != layout.dim) {
      made->getResult(0).setType(type);
      return made->getResult(0);
    }
    // Counted as whole numbers, so that each is rounded once.
    auto integer = dyn_cast<IntegerType>(type.getElementType());
    bool isExact = integer && integer.getWidth() >= 32;
    RankedTensorType counted = isExact ? type : type.clone(builder.getI32Type());
    made->getResult(0).setType(counted);
    Value first = offset(type.getDimSize(layout.dim), scope, attributes, op->getLoc());
    if (typeOf(first).getElementType() != counted.getElementType())
      first = op1(builder, "stablehlo.convert", first,
                  RankedTensorType::get({}, counted.getElementType()), op->getLoc(), attributes);
    Value numbers = op1(builder, "stablehlo.add",
                        {made->getResult(0), spread(builder, first, type.getShape(), attributes)},
                        counted, op->getLoc(), attributes);
    return isExact ? numbers
                   : op1(builder, "stablehlo.convert", numbers, type, op->getLoc(), attributes);
  }
  if (op->getNumRegions() > 0 || op->getNumResults() != 1 || op->getNumOperands() == 0)
    return {};
  // Of the terms of a sum there are no parts.
  if (op->hasAttr(kLate) &&
      (isRounded(op->getResult(0)) || llvm::any_of(op->getOperands(), [](Value operand) {
         Operation *source = operand.getDefiningOp();
         return source && !source->hasAttr(kLate);
       })))
    return {};
  if (isa<hlo::ReshapeOp>(op)) {
    Value operand = op->getOperand(0);
    std::optional<Layout> from =
        reshaped(layout, typeOf(op->getResult(0)).getShape(), typeOf(operand).getShape());
    if (!from)
      return {};
    return op1(builder, "stablehlo.reshape", sliceOf(operand, *from), type, op->getLoc(),
               attributes);
  }
  std::optional<ShardingRule> rule = getShardingRule(op);
  if (!rule || rule->forwards || rule->heavy) // Products are made once.
    return {};
  std::optional<Assignment> assignment = assignmentOf(*rule, rule->results[index], layout);
  if (!assignment || rule->factors[assignment->factor].kind != FactorKind::Parallel)
    return {};
  SmallVector<Layout> layouts;
  for (const TensorFactors &tensor : rule->operands) {
    std::optional<Layout> wanted;
    if (holds(tensor, assignment->factor) && !(wanted = layoutOf(*rule, tensor, *assignment)))
      return {};
    layouts.push_back(wanted.value_or(Layout()));
  }
  SmallVector<Value> operands;
  for (auto [operand, wanted] : llvm::zip_equal(op->getOperands(), layouts))
    operands.push_back(wanted.kind == Layout::Split ? sliceOf(operand, wanted) : operand);
  Operation *made = builder.clone(*op);
  made->removeAttr(kLate);
  made->setOperands(operands);
  made->getResult(0).setType(type);
  fitSizes(made, op);
  if (isRounded(op->getResult(0)))
    parted.insert(op->getResult(0));
  return made->getResult(0);
}

/// Random bits are counters that go through a loop: each micro-batch has its own.
Value BatchSplitter::partOfLoop(Operation *made, unsigned index, Layout layout) {
  auto op = cast<hlo::WhileOp>(loops.lookup(made));
  Value init = op->getOperand(index);
  SmallVector<Form> kept;
  for (Value result : op->getResults())
    kept.push_back(forms.lookup(result));
  Form before = forms.lookup(init);
  if (!before.isPlain())
    return {};
  Refusal why = last;
  Scope *from = active;
  active = &scopeOf(made->getResult(0));
  forms[init] = {sliceOf(before.value, layout), layout, {}};
  Value found;
  if (succeeded(loop(op)))
    for (auto [result, whole] : llvm::zip_equal(op->getResults(), made->getResults())) {
      Form form = forms.lookup(result);
      if (!form.isSplit() || !form.scale.empty())
        continue;
      here().slices[{whole.getAsOpaquePointer(), form.layout.dim, form.layout.outer}] = form.value;
      if (result.getResultNumber() == index && form.layout == layout)
        found = form.value;
    }
  active = from;
  last = why;
  forms[init] = before;
  for (auto [result, form] : llvm::zip_equal(op->getResults(), kept))
    forms[result] = form;
  return found;
}

/// The micro-batch's part of a value that is the same for all.
Value BatchSplitter::sliceOf(Value whole, Layout layout) {
  Scope &scope = scopeOf(whole);
  auto key = std::make_tuple(whole.getAsOpaquePointer(), layout.dim, layout.outer);
  if (auto known = scope.slices.find(key); known != scope.slices.end())
    return known->second;
  Value part;
  Operation *op = whole.getDefiningOp();
  if (op && !cutOnly.contains(whole)) {
    unsigned index = cast<OpResult>(whole).getResultNumber();
    part = loops.contains(op) ? partOfLoop(op, index, layout) : partOfOp(op, index, layout, scope);
  }
  if (!part) {
    DictionaryAttr attributes = op                 ? attributesOf(op)
                                : &scope == &top() ? phaseAttributes(false)
                                                   : DictionaryAttr::get(context);
    part = cut(whole, layout, scope, attributes);
  }
  return scope.slices[key] = part;
}

/// A value as the layout asks for it, if it is whole.
Value BatchSplitter::held(const Form &form, Layout wanted) {
  bool isWhole = form.layout.kind == Layout::Whole || form.layout.kind == Layout::Estimate;
  return wanted.kind == Layout::Split && isWhole ? sliceOf(form.value, wanted) : form.value;
}

//===----------------------------------------------------------------------===//
// Scales that wait, and unreduced values
//===----------------------------------------------------------------------===//

bool BatchSplitter::isZero(Value value) { return zeros.contains(value) || isSplatOf(value, 0); }

/// Equal values have equal numbers, in whatever phase they are computed.
unsigned BatchSplitter::numberOf(Value value) {
  if (auto it = numbered.find(value); it != numbered.end())
    return it->second;
  // Explicit stack: steps are deep.
  SmallVector<Value> stack{value};
  while (!stack.empty()) {
    Value top = stack.back();
    if (numbered.contains(top)) {
      stack.pop_back();
      continue;
    }
    Operation *op = top.getDefiningOp();
    std::vector<const void *> key;
    bool isKnown = op && isMemoryEffectFree(op);
    if (isKnown && op->getNumRegions() == 1 && isa<hlo::ReduceOp>(op)) {
      Block &block = op->getRegion(0).front();
      isKnown = block.getOperations().size() == 2;
      if (isKnown)
        key.push_back(block.front().getName().getAsOpaquePointer());
    } else if (op && op->getNumRegions() > 0) {
      isKnown = false;
    }
    if (!isKnown) {
      key = {top.getAsOpaquePointer()};
    } else {
      bool isReady = true;
      for (Value operand : op->getOperands())
        if (!numbered.contains(operand)) {
          stack.push_back(operand);
          isReady = false;
        }
      if (!isReady)
        continue;
      NamedAttrList own;
      for (NamedAttribute attribute : op->getAttrDictionary())
        if (!attribute.getName().strref().starts_with("alpa."))
          own.push_back(attribute);
      key.push_back(op->getName().getAsOpaquePointer());
      key.push_back(own.getDictionary(context).getAsOpaquePointer());
      key.push_back(top.getType().getAsOpaquePointer());
      key.push_back(
          reinterpret_cast<const void *>(uintptr_t(cast<OpResult>(top).getResultNumber())));
      for (Value operand : op->getOperands())
        key.push_back(reinterpret_cast<const void *>(uintptr_t(numbered[operand])));
    }
    numbered[top] = numbers.try_emplace(std::move(key), numbers.size()).first->second;
    stack.pop_back();
  }
  return numbered[value];
}

/// One, with the completed scalar as the scale that waits.
std::optional<Form> BatchSplitter::baseForm(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type || !isa<FloatType>(type.getElementType()) || type.getNumElements() != 1 ||
      !isOfStep(value))
    return std::nullopt;
  unsigned id = numberOf(value);
  if (llvm::none_of(bases, [&](const Base &base) { return base.id == id; })) {
    Value base = complete(value);
    if (type.getRank() > 0)
      base = op1(top().builder, "stablehlo.reshape", base,
                 RankedTensorType::get({}, type.getElementType()), value.getLoc(),
                 phaseAttributes(true));
    bases.push_back({id, base, value});
    scales.push_back(StringAttr::get(context, placeOf(value)));
  }
  Operation *op = value.getDefiningOp();
  Value one = constant(top().builder, splatOf(1, type), value.getLoc(),
                       op ? attributesOf(op) : phaseAttributes(false));
  return Form{one, Layout(), {{id, 1}}};
}

/// A completed value as micro-batches can use it: whole, but for a scale.
std::optional<Form> BatchSplitter::scaledForm(Value value) {
  if (auto it = forms.find(value); it != forms.end()) {
    if (it->second.layout.kind == Layout::Whole)
      return it->second;
    if (!it->second.isUnreduced())
      return std::nullopt;
  }
  if (!isOfStep(value))
    return std::nullopt;
  if (auto it = scaled.find(value); it != scaled.end())
    return it->second;
  scaled[value] = std::nullopt; // While it is being made.
  std::optional<Form> result;
  Operation *op = value.getDefiningOp();
  if (op && op->getNumRegions() == 0 && op->getNumResults() == 1 && !wide.contains(value)) {
    SmallVector<Form> in;
    for (Value operand : op->getOperands()) {
      std::optional<Form> form = scaledForm(operand);
      if (!form)
        break;
      in.push_back(*form);
    }
    if (in.size() == op->getNumOperands())
      if (std::optional<Joint> joint = jointOf(op, in); joint && !joint->isUnreduced) {
        OpBuilder &builder = top().builder;
        Operation *made = builder.clone(*op);
        for (auto [i, form] : llvm::enumerate(in))
          made->setOperand(i, form.value);
        result = Form{made->getResult(0), Layout(), joint->scale};
        noteMixed(made);
      }
  }
  if (!result)
    result = baseForm(value);
  return scaled[value] = result;
}

/// What the micro-batch alone knows of a value of the whole batch: a sum is as many
/// times the micro-batch's as there are micro-batches.
std::optional<Form> BatchSplitter::estimateForm(Value value) {
  auto it = forms.find(value);
  if (it != forms.end() && !it->second.isUnreduced())
    return it->second;
  if (!isOfStep(value))
    return std::nullopt;
  if (auto known = estimated.find(value); known != estimated.end())
    return known->second;
  estimated[value] = std::nullopt;
  std::optional<Form> result;
  Operation *op = value.getDefiningOp();
  if (it != forms.end()) {
    Form form = it->second;
    DictionaryAttr attributes = attributesOf(op);
    OpBuilder &builder = scopeOf(form.value).builder;
    if (form.scale.empty()) {
      if (form.layout.reducer == Reducer::Sum) {
        Value factor =
            constant(builder, splatOf(count, typeOf(form.value)), op->getLoc(), attributes);
        form.value = op1(builder, "stablehlo.multiply", {form.value, factor}, form.value.getType(),
                         op->getLoc(), attributes);
      }
      if (form.layout.reducer != Reducer::Product) {
        form.layout = {Layout::Estimate, 0, 1, Reducer::Sum};
        result = form;
        estimates.push_back(StringAttr::get(context, placeOf(op)));
      }
    }
  } else if (op && op->getNumRegions() == 0 && !wide.contains(value)) {
    SmallVector<Value> operands;
    for (Value operand : op->getOperands()) {
      std::optional<Form> form = estimateForm(operand);
      if (!form || !form->scale.empty() || form->isSplit())
        break;
      operands.push_back(form->value);
    }
    if (operands.size() == op->getNumOperands()) {
      Operation *made = top().builder.clone(*op);
      made->setOperands(operands);
      for (auto [old, made] : llvm::zip_equal(op->getResults(), made->getResults()))
        estimated[old] = Form{made, {Layout::Estimate, 0, 1, Reducer::Sum}, {}};
      result = estimated[value];
    }
  }
  return estimated[value] = result;
}

/// Whether a value follows from what micro-batches read of the whole batch.
bool BatchSplitter::isBehindBarrier(Value made) {
  auto topOf = [&](Value value) -> Operation * {
    Operation *op = value.getDefiningOp();
    return op && op->getBlock() ? out->findAncestorOpInBlock(*op) : nullptr;
  };
  Operation *wanted = topOf(made);
  if (!wanted)
    return false;
  SmallVector<Operation *> stack{wanted}; // Steps are deep.
  while (!stack.empty()) {
    Operation *op = stack.back();
    if (behindBarrier.contains(op)) {
      stack.pop_back();
      continue;
    }
    bool isBehind = false, isReady = true;
    for (Value value : getUsedValues(op)) {
      Operation *source = topOf(value);
      if (!source || source == op)
        continue;
      auto known = behindBarrier.find(source);
      if (known == behindBarrier.end()) {
        stack.push_back(source);
        isReady = false;
        continue;
      }
      isBehind |= known->second || (source->hasAttr(kLate) && !op->hasAttr(kLate));
    }
    if (!isReady)
      continue;
    behindBarrier[op] = isBehind;
    stack.pop_back();
  }
  return behindBarrier.lookup(wanted);
}

/// A value as micro-batches read it behind the barrier, of which there is one: with what
/// it waits for.
std::optional<Form> BatchSplitter::metForm(Value value) {
  if (!mayMeet || !isOfStep(value))
    return std::nullopt;
  auto isLate = [&](Value before, Value made) {
    if (!isBehindBarrier(made))
      return false;
    joinBefore(before);
    return true;
  };
  auto it = forms.find(value);
  if (it != forms.end() && !it->second.isUnreduced()) {
    for (const Base &base : bases)
      if (it->second.scale.count(base.id) && isLate(base.before, base.completed))
        return std::nullopt;
    return unscaled(it->second, [&](const Base &base) { return met(base.completed); });
  }
  auto done = completed.find(value);
  if (done == completed.end() && it == forms.end())
    return std::nullopt;
  if (isLate(value, done != completed.end() ? done->second : it->second.value))
    return std::nullopt;
  return Form{met(done != completed.end() ? done->second : complete(value)), Layout(), {}};
}

/// What ops behind the micro-batches read is complete; what others read of a sum is their
/// micro-batch's term. So the barrier hands the value on, if need be before it is as long
/// as the batch.
Value BatchSplitter::met(Value made) {
  SmallVector<Operation *> moves;
  Value source = made;
  while (auto op = source.getDefiningOp<hlo::BroadcastInDimOp>()) {
    if (op->hasAttr(kLate))
      break;
    moves.push_back(op);
    source = op->getOperand(0);
  }
  Operation *op = source.getDefiningOp();
  if (!op || op->hasAttr(kLate))
    return made;
  DictionaryAttr late = phaseAttributes(true);
  Value &handed = handedOn[made];
  if (!handed) {
    OpBuilder &builder = top().builder;
    handed = op1(builder, "stablehlo.convert", source, source.getType(), made.getLoc(), late);
    for (Operation *move : llvm::reverse(moves)) {
      Operation *again = builder.clone(*move);
      again->setDiscardableAttrs(late);
      again->setOperand(0, handed);
      handed = again->getResult(0);
    }
  }
  return handed;
}

/// The value is needed before the barrier: what reads completed values on the way to it
/// has to work on the whole batch, then.
void BatchSplitter::joinBefore(Value value) {
  SmallVector<Value> stack{value};
  DenseSet<Operation *> seen;
  while (!stack.empty()) {
    Operation *op = stack.pop_back_val().getDefiningOp();
    if (!op || !seen.insert(op).second)
      continue;
    if (meeting.contains(op))
      found.joined.insert(op);
    else
      llvm::append_range(stack, getUsedValues(op));
  }
}

/// Elements that a micro-batch may compute again of the whole batch: counts of tokens,
/// weights of classes, normalized advantages, but no layers.
static constexpr int64_t kMostRepeated = int64_t(1) << 24;

/// Whether a value follows in a few elementwise steps and sums from the batch's arguments
/// and from what is the same for all micro-batches.
/// What a value is in front of the barrier that `jax.checkpoint` puts around it, or null.
static Value inFrontOfBarrier(Value value) {
  auto barrier = value.getDefiningOp<hlo::OptimizationBarrierOp>();
  return barrier ? barrier->getOperand(cast<OpResult>(value).getResultNumber()) : Value();
}

bool BatchSplitter::canRepeat(Value value) {
  SmallVector<Value> stack{value};
  DenseSet<Value> known;
  int64_t elements = 0;
  while (!stack.empty()) {
    Value next = stack.pop_back_val();
    if (!known.insert(next).second)
      continue;
    auto form = forms.find(next);
    if ((form != forms.end() && form->second.isPlain()) || repeats_.contains(next))
      continue;
    Operation *op = next.getDefiningOp();
    if (!op) {
      auto arg = cast<BlockArgument>(next);
      if (!isOfStep(next) || !main.getArgAttr(arg.getArgNumber(), attr::name))
        return false;
      elements += typeOf(next).getNumElements();
      continue;
    }
    if (Value source = inFrontOfBarrier(next)) {
      stack.push_back(source);
      continue;
    }
    std::optional<ShardingRule> rule = getShardingRule(op);
    if (!rule || rule->heavy || !isMemoryEffectFree(op) || readsOutside(op) ||
        isa<hlo::WhileOp, hlo::CaseOp, hlo::SortOp, hlo::CustomCallOp, MapOp>(op) ||
        op->getBlock() != &main.front())
      return false;
    elements += typeOf(next).getNumElements();
    if (elements > kMostRepeated)
      return false;
    llvm::append_range(stack, op->getOperands());
  }
  return elements <= kMostRepeated;
}

/// A value of which parts are cut: XLA would compute it again in kernels of its readers, and round
/// it in other ways there.
Value BatchSplitter::roundedOnce(Value value, OpBuilder &builder) {
  Value once = op1(builder, "stablehlo.optimization_barrier", value, value.getType(),
                   value.getLoc(), attributesOf(value.getDefiningOp()));
  noteMixed(once.getDefiningOp());
  return once;
}

/// The whole batch's value, in every micro-batch, from the whole arguments.
Value BatchSplitter::repeated(Value value) {
  auto form = forms.find(value);
  if (form != forms.end() && form->second.isPlain())
    return form->second.value;
  if (Value known = repeats_.lookup(value))
    return known;
  if (auto arg = dyn_cast<BlockArgument>(value)) {
    wholeArguments.push_back(arg);
    return repeats_[value] = out->addArgument(arg.getType(), arg.getLoc());
  }
  if (Value source = inFrontOfBarrier(value))
    return repeats_[value] = repeated(source);
  Operation *op = value.getDefiningOp();
  SmallVector<Value> operands;
  for (Value operand : op->getOperands())
    operands.push_back(repeated(operand));
  Operation *made = top().builder.clone(*op);
  made->setOperands(operands);
  noteMixed(made);
  for (auto [old, result] : llvm::zip_equal(op->getResults(), made->getResults()))
    repeats_[old] = result;
  if (Value &whole = repeats_[value]; known.once.contains(value))
    whole = roundedOnce(whole, top().builder);
  return repeats_[value];
}

/// Parts of what is known of the whole batch as well are cut out of that: computed for
/// themselves they may differ in the last bit, and comparisons tell.
void BatchSplitter::takeFromWhole(Operation *op) {
  for (Value value : op->getResults()) {
    auto it = forms.find(value);
    if (!known.once.contains(value) || it == forms.end() || !it->second.isSplit() ||
        !it->second.scale.empty() || !it->second.value.getDefiningOp())
      continue;
    const Form form = it->second;
    Value part = cut(repeated(value), form.layout, top(), attributesOf(form.value.getDefiningOp()));
    forms[value] = {part, form.layout, {}};
  }
}

/// Values of which both the whole and parts are computed and read; not those of bodies,
/// whose loops would then no longer be layers.
void BatchSplitter::findTwice() {
  DenseSet<Operation *> live; // Bodies of loops have dead ops as well.
  auto visitBlock = [&](auto &&self, Block &block) -> void {
    for (Operation &op : llvm::reverse(block)) {
      bool isLive = op.hasTrait<OpTrait::IsTerminator>() ||
                    (op.getNumRegions() == 0 && op.use_empty() && !isOpTriviallyDead(&op));
      for (Operation *user : op.getUsers())
        isLive |= live.contains(user);
      if (!isLive)
        continue;
      live.insert(&op);
      for (Region &region : op.getRegions())
        for (Block &inner : region)
          self(self, inner);
    }
  };
  visitBlock(visitBlock, *out);
  auto isRead = [&](Value made) {
    return llvm::any_of(made.getUsers(), [&](Operation *user) { return live.contains(user); });
  };
  for (auto [value, whole] : repeats_)
    if (isRounded(value) && isRead(whole)) {
      auto it = forms.find(value);
      if (it != forms.end() && it->second.isSplit() && isRead(it->second.value))
        found.once.insert(value);
    }
  for (const auto &[value, form] : forms)
    if (isOfStep(value) && form.isPlain() && parted.contains(form.value) && isRead(form.value))
      found.once.insert(value);
}

/// The micro-batch's value times the scalars for which it waits.
Form BatchSplitter::unscaled(Form form, function_ref<Value(const Base &)> factorOf) {
  RankedTensorType type = typeOf(form.value);
  Location loc = form.value.getLoc();
  for (const Base &base : bases) {
    int exponent = form.scale.count(base.id) ? form.scale[base.id] : 0;
    if (exponent == 0)
      continue;
    Value factor = factorOf(base);
    OpBuilder &builder = here().builder;
    Operation *source = form.value.getDefiningOp();
    DictionaryAttr attributes = source ? attributesOf(source) : DictionaryAttr::get(context);
    auto scalar = RankedTensorType::get({}, typeOf(factor).getElementType());
    if (factor.getType() != scalar)
      factor = op1(builder, "stablehlo.reshape", factor, scalar, loc, attributes);
    if (scalar.getElementType() != type.getElementType())
      factor = op1(builder, "stablehlo.convert", factor,
                   RankedTensorType::get({}, type.getElementType()), loc, attributes);
    factor = spread(builder, factor, type.getShape(), attributes);
    for (int i = 0; i < std::abs(exponent); ++i)
      form.value = op1(builder, exponent > 0 ? "stablehlo.multiply" : "stablehlo.divide",
                       {form.value, factor}, type, loc, attributes);
  }
  form.scale.clear();
  return form;
}

/// A form that waits for nothing, if the whole batch's part of it can be repeated.
std::optional<Form> BatchSplitter::repeatedForm(Value value, const std::optional<Form> &form) {
  if (form && form->layout.kind != Layout::Unreduced) {
    for (const Base &base : bases)
      if (form->scale.count(base.id) && !canRepeat(base.before))
        return std::nullopt;
    return unscaled(*form, [&](const Base &base) {
      if (Operation *op = base.before.getDefiningOp())
        repeats.push_back(StringAttr::get(context, placeOf(op)));
      return repeated(base.before);
    });
  }
  if (!canRepeat(value))
    return std::nullopt;
  Form result{repeated(value), Layout(), {}};
  if (Operation *op = value.getDefiningOp())
    repeats.push_back(StringAttr::get(context, placeOf(op)));
  return result;
}

/// Examples in another order, or some of them, of what the batch's arguments say (mixup): each
/// micro-batch knows them all, and takes as many rows as it has examples.
LogicalResult BatchSplitter::rearrange(Operation *op, const Refusal &why) {
  if (!isAtTop() || op->getNumResults() != 1 || !canRepeat(op->getResult(0)))
    return failure();
  Value result = op->getResult(0);
  Form ofAll{repeated(result), Layout(), {}};
  RankedTensorType type = typeOf(result);
  for (Value operand : op->getOperands()) {
    auto it = forms.find(operand);
    if (it == forms.end() || !it->second.isSplit() || it->second.layout.outer != 1)
      continue;
    Layout layout = it->second.layout;
    int64_t rows = typeOf(operand).getDimSize(layout.dim);
    if (auto gather = dyn_cast<hlo::GatherOp>(op)) { // The picked examples' dimension.
      SmallVector<int64_t> dims;
      for (int64_t dim = 0; dim < type.getRank(); ++dim)
        if (!llvm::is_contained(gather.getDimensionNumbers().getOffsetDims(), dim))
          dims.push_back(dim);
      layout.dim = dims.size() == 1 ? dims[0] : type.getRank();
    }
    if (layout.dim < type.getRank() && type.getDimSize(layout.dim) == rows)
      ofAll = {cut(ofAll.value, layout, top(), attributesOf(op)), layout, {}};
    else if (isa<hlo::SliceOp>(op))
      someRows[result] = {layout.dim, rows};
    break;
  }
  repeats.push_back(StringAttr::get(context, placeOf(op)));
  if (ofAll.layout.kind == Layout::Whole && !why.fix.empty())
    ofWhole[ofAll.value] = why;
  forms[result] = ofAll;
  return success();
}

/// All examples again, of slices of them (`jnp.roll`).
bool BatchSplitter::joinRearranged(Operation *op) {
  auto joined = dyn_cast<hlo::ConcatenateOp>(op);
  if (!joined || !llvm::all_of(op->getOperands(), [&](Value operand) {
        auto it = someRows.find(operand);
        return it != someRows.end() && it->second.first == int64_t(joined.getDimension()) &&
               it->second.second == typeOf(op->getResult(0)).getDimSize(it->second.first);
      }))
    return false;
  Layout layout = Layout::split(joined.getDimension(), 1);
  Value whole = repeated(op->getResult(0));
  forms[op->getResult(0)] = {cut(whole, layout, top(), attributesOf(op)), layout, {}};
  return true;
}

std::optional<Form> BatchSplitter::formOf(Value value) {
  if (auto it = forms.find(value); it != forms.end())
    return it->second;
  return scaledForm(value);
}

static void multiplyScale(Scale &into, const Scale &by, int power) {
  for (auto [id, exponent] : by)
    if ((into[id] += power * exponent) == 0)
      into.erase(id);
}

/// Whether the type holds far smaller numbers only than float32: half
/// precision, but not bfloat16. What is short of one over the number of tokens overflows there.
static bool hasNarrowRange(Type type) {
  auto element = dyn_cast<FloatType>(getElementTypeOrSelf(type));
  return element && APFloat::semanticsMaxExponent(element.getFloatSemantics()) <
                        APFloat::semanticsMaxExponent(APFloat::IEEEsingle());
}

std::optional<BatchSplitter::Joint> BatchSplitter::jointOf(Operation *op, ArrayRef<Form> in) {
  std::optional<Joint> joint = linearJointOf(op, in);
  if (joint && !joint->scale.empty() && llvm::any_of(op->getResultTypes(), hasNarrowRange))
    return std::nullopt;
  return joint;
}

/// Whether the op may work on values that are short of a scale, or are terms of a sum;
/// what its result is then short of.
std::optional<BatchSplitter::Joint> BatchSplitter::linearJointOf(Operation *op, ArrayRef<Form> in) {
  auto isLoose = [](const Form &form) { return form.isUnreduced() || !form.scale.empty(); };
  Joint joint;
  if (llvm::none_of(in, isLoose))
    return joint;
  for (const Form &form : in)
    if (form.isUnreduced() && form.layout.reducer != Reducer::Sum)
      return std::nullopt;
  for (Type type : op->getResultTypes())
    if (getElementTypeOrSelf(type).isInteger(1))
      return std::nullopt;
  StringRef name = op->getName().getStringRef().substr(StringRef("stablehlo.").size());
  auto arePlain = [&](std::initializer_list<unsigned> allowed) {
    for (auto [i, form] : llvm::enumerate(in))
      if (llvm::find(allowed, i) == allowed.end() && isLoose(form))
        return false;
    return true;
  };
  // Linear in these operands together: all of them are short of the same.
  auto linear = [&](std::initializer_list<unsigned> places) -> std::optional<Joint> {
    if (!arePlain(places))
      return std::nullopt;
    const Form *first = nullptr;
    for (unsigned place : places) {
      if (place >= in.size() || (isZero(op->getOperand(place)) && !isLoose(in[place])))
        continue;
      const Form &form = in[place];
      if (first && (first->isUnreduced() != form.isUnreduced() || first->scale != form.scale))
        return std::nullopt;
      first = &form;
    }
    if (!first)
      return Joint();
    return Joint{first->isUnreduced(), first->scale};
  };
  static const llvm::StringSet<> ofFirst = {
      "negate", "transpose", "reshape", "broadcast_in_dim", "slice", "reverse",
      "real",   "imag",      "fft",     "dynamic_slice",    "gather"};
  if (ofFirst.contains(name))
    return linear({0});
  if (name == "convert") {
    // Whole numbers wrap around, or are rounded, where their sum is; only what drops
    // digits of the terms as of the sum may come before it.
    Type from = getElementTypeOrSelf(op->getOperand(0).getType());
    Type to = getElementTypeOrSelf(op->getResult(0).getType());
    bool isReal = isa<FloatType, ComplexType>(from) && isa<FloatType, ComplexType>(to);
    bool drops = isa<IntegerType>(from) && isa<IntegerType>(to) &&
                 to.getIntOrFloatBitWidth() <= from.getIntOrFloatBitWidth();
    // The terms of a loop's rounds are added up within it.
    if (narrows(op) && in[0].isUnreduced() && to.getIntOrFloatBitWidth() < 16 &&
        op->getParentOp() != main)
      return std::nullopt;
    return isReal || drops ? linear({0}) : std::nullopt;
  }
  if (name == "pad")
    return isZero(op->getOperand(1)) ? linear({0}) : std::nullopt;
  if (name == "add" || name == "subtract" || name == "complex")
    return linear({0, 1});
  if (name == "select")
    return linear({1, 2});
  if (name == "dynamic_update_slice")
    return linear({0, 1});
  if (name == "concatenate") {
    const Form *first = nullptr;
    for (auto [operand, form] : llvm::zip_equal(op->getOperands(), in)) {
      if (isZero(operand) && !isLoose(form))
        continue;
      if (first && (first->isUnreduced() != form.isUnreduced() || first->scale != form.scale))
        return std::nullopt;
      first = &form;
    }
    return first ? Joint{first->isUnreduced(), first->scale} : Joint();
  }
  if (std::optional<AttentionCall> call = AttentionCall::read(op); call && call->isBackward)
    return linear({static_cast<unsigned>(call->outputGradient)});
  if (isa<hlo::ReduceOp, hlo::ReduceWindowOp>(op)) {
    if (op->getNumResults() != 1 || !isZero(op->getOperand(1)))
      return std::nullopt;
    Block &block = op->getRegion(0).front();
    if (block.getOperations().size() != 2 || !isa<hlo::AddOp>(block.front()))
      return std::nullopt;
    return linear({0});
  }
  if (isa<hlo::ScatterOp>(op)) {
    Block &block = op->getRegion(0).front();
    if (op->getNumResults() != 1)
      return std::nullopt;
    bool adds = block.getOperations().size() == 2 && isa<hlo::AddOp>(block.front());
    // An update that replaces is linear in both as well.
    bool replaces =
        block.getOperations().size() == 1 && block.front().getOperand(0) == block.getArgument(1);
    return adds || replaces ? linear({0, 2}) : std::nullopt;
  }
  if (isa<hlo::SelectAndScatterOp>(op))
    return isZero(op->getOperand(2)) ? linear({1}) : std::nullopt;
  if (isa<hlo::TriangularSolveOp>(op))
    return linear({1});
  if (isa<GroupedDotOp, GroupedSumOp>(op) && !arePlain({0, 1}))
    return std::nullopt;
  if (isa<hlo::MulOp, hlo::DotGeneralOp, hlo::ConvolutionOp, GroupedDotOp, GroupedSumOp>(op)) {
    if (in[0].isUnreduced() && in[1].isUnreduced())
      return std::nullopt;
    for (int i : {0, 1})
      if (in[i].isUnreduced() && in[1 - i].layout.kind != Layout::Whole)
        return std::nullopt;
    joint.isUnreduced = in[0].isUnreduced() || in[1].isUnreduced();
    joint.scale = in[0].scale;
    multiplyScale(joint.scale, in[1].scale, 1);
    return joint;
  }
  if (isa<hlo::DivOp>(op)) {
    if (!isa<FloatType, ComplexType>(getElementTypeOrSelf(op->getResult(0).getType())))
      return std::nullopt;
    if (in[1].isUnreduced() || (in[0].isUnreduced() && in[1].layout.kind != Layout::Whole))
      return std::nullopt;
    joint.isUnreduced = in[0].isUnreduced();
    joint.scale = in[0].scale;
    multiplyScale(joint.scale, in[1].scale, -1);
    return joint;
  }
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Ops of a micro-batch
//===----------------------------------------------------------------------===//

std::optional<BatchSplitter::Assignment>
BatchSplitter::assignmentOf(const ShardingRule &rule, const TensorFactors &tensor, Layout layout) {
  int64_t before = 1;
  const DimFactors &factors = tensor[layout.dim];
  for (unsigned factor : factors) {
    int64_t size = rule.factors[factor].size;
    if (layout.outer % before == 0 && size % (layout.outer / before * count) == 0)
      return Assignment{int64_t(factor), layout.outer / before};
    before *= size;
  }
  return std::nullopt;
}

/// Where the assignment splits a tensor; nothing if it splits it nowhere or twice.
std::optional<Layout> BatchSplitter::layoutOf(const ShardingRule &rule, const TensorFactors &tensor,
                                              Assignment assignment) {
  std::optional<Layout> found;
  for (auto [dim, factors] : llvm::enumerate(tensor)) {
    int64_t before = 1;
    for (unsigned factor : factors) {
      if (int64_t(factor) == assignment.factor) {
        if (found)
          return std::nullopt;
        found = Layout::split(dim, before * assignment.outer);
      }
      before *= rule.factors[factor].size;
    }
  }
  return found;
}

/// Where a split dimension goes in a reshape.
std::optional<Layout> BatchSplitter::reshaped(Layout layout, ArrayRef<int64_t> from,
                                              ArrayRef<int64_t> to) {
  int64_t outer = layout.outer, inner = from[layout.dim] / (layout.outer * count);
  for (int64_t size : from.take_front(layout.dim))
    outer *= size;
  for (int64_t size : from.drop_front(layout.dim + 1))
    inner *= size;
  int64_t before = 1, after = outer * count * inner;
  for (auto [dim, size] : llvm::enumerate(to)) {
    if (size == 0)
      return std::nullopt;
    after /= size;
    if (outer % before == 0 && inner % after == 0 &&
        outer / before * count * (inner / after) == size)
      return Layout::split(dim, outer / before);
    before *= size;
  }
  return std::nullopt;
}

/// gather and scatter in which each example names its own row: x[arange(n), labels].
LogicalResult BatchSplitter::pickOwnRows(Operation *op, SmallVector<Form> &in, const Scale &scale,
                                         bool &handled) {
  auto gather = dyn_cast<hlo::GatherOp>(op);
  auto scatter = dyn_cast<hlo::ScatterOp>(op);
  if ((!gather && !scatter) || op->getNumResults() != 1)
    return success();
  Value indices = op->getOperand(1);
  ArrayRef<int64_t> map = gather
                              ? gather.getDimensionNumbers().getStartIndexMap()
                              : scatter.getScatterDimensionNumbers().getScatterDimsToOperandDims();
  ArrayRef<int64_t> dropped = gather ? gather.getDimensionNumbers().getCollapsedSliceDims()
                                     : scatter.getScatterDimensionNumbers().getInsertedWindowDims();
  int64_t vectorDim = gather ? gather.getDimensionNumbers().getIndexVectorDim()
                             : scatter.getScatterDimensionNumbers().getIndexVectorDim();
  Layout layout = in[1].layout;
  if (!in[1].isSplit() || layout.outer != 1 || layout.dim == vectorDim ||
      vectorDim >= typeOf(indices).getRank())
    return success();
  int64_t rows = typeOf(indices).getDimSize(layout.dim);
  // Which column of the indices numbers the examples?
  int64_t column = -1, operandDim = -1, at = 0;
  auto consider = [&](Value piece, int64_t place) {
    if (place >= int64_t(map.size()) || rowDimension(piece) != layout.dim)
      return;
    int64_t dim = map[place];
    if (llvm::is_contained(dropped, dim) && typeOf(op->getOperand(0)).getDimSize(dim) == rows) {
      column = place;
      operandDim = dim;
    }
  };
  Value behind = indices;
  while (auto convert = behind.getDefiningOp<hlo::ConvertOp>())
    behind = convert->getOperand(0);
  if (auto joined = behind.getDefiningOp<hlo::ConcatenateOp>();
      joined && int64_t(joined.getDimension()) == vectorDim) {
    for (Value piece : joined->getOperands()) {
      if (typeOf(piece).getDimSize(vectorDim) == 1)
        consider(piece, at);
      at += typeOf(piece).getDimSize(vectorDim);
    }
  } else if (typeOf(indices).getDimSize(vectorDim) == 1) {
    consider(indices, 0);
  }
  if (column < 0)
    return success();
  Layout operandLayout = Layout::split(operandDim, 1);
  if (in[0].isSplit() && !(in[0].layout == operandLayout))
    return success();
  // What the indices' dimension is in the result, or in the updates.
  ArrayRef<int64_t> windows = gather ? gather.getDimensionNumbers().getOffsetDims()
                                     : scatter.getScatterDimensionNumbers().getUpdateWindowDims();
  int64_t wanted = layout.dim - (layout.dim > vectorDim), place = -1;
  int64_t rank = gather ? typeOf(op->getResult(0)).getRank() : typeOf(op->getOperand(2)).getRank();
  for (int64_t dim = 0, seen = 0; dim < rank; ++dim)
    if (!llvm::is_contained(windows, dim) && seen++ == wanted)
      place = dim;
  Layout outside = Layout::split(place, 1);
  if (scatter && in[2].isSplit() && !(in[2].layout == outside))
    return success();
  handled = true;
  // The rows are counted from the micro-batch's first.
  Scope &scope = here();
  DictionaryAttr attributes = attributesOf(op);
  RankedTensorType type = typeOf(in[1].value);
  Value first = offset(rows / count, scope, attributes, op->getLoc());
  auto scalar = RankedTensorType::get({}, type.getElementType());
  if (first.getType() != scalar)
    first = op1(scope.builder, "stablehlo.convert", first, scalar, op->getLoc(), attributes);
  SmallVector<Attribute> entries;
  auto columns =
      RankedTensorType::get({typeOf(indices).getDimSize(vectorDim)}, type.getElementType());
  SmallVector<APInt> numbers;
  unsigned width = cast<IntegerType>(type.getElementType()).getWidth();
  for (int64_t i = 0; i < columns.getDimSize(0); ++i)
    numbers.push_back(APInt(width, i == column));
  Value where =
      constant(scope.builder, DenseElementsAttr::get(columns, numbers), op->getLoc(), attributes);
  Value delta = op1(scope.builder, "stablehlo.multiply",
                    {where, spread(scope.builder, first, columns.getShape(), attributes)}, columns,
                    op->getLoc(), attributes);
  delta = op1(scope.builder, "stablehlo.broadcast_in_dim", delta, type, op->getLoc(), attributes,
              {scope.builder.getNamedAttr("broadcast_dimensions",
                                          scope.builder.getDenseI64ArrayAttr({vectorDim}))});
  Value local = op1(scope.builder, "stablehlo.subtract", {in[1].value, delta}, type, op->getLoc(),
                    attributes);
  SmallVector<Value> operands{held(in[0], operandLayout), local};
  if (scatter)
    operands.push_back(held(in[2], outside));
  Layout result = gather ? outside : operandLayout;
  define(op, make(op, operands, {result}), {result}, scale);
  return success();
}

/// A kernel in a `jax.shard_map` that is called for blocks of what is made of a value.
static MapOp kernelBehind(Value value) {
  constexpr size_t kMostOps = 4096; // That are looked at.
  SmallVector<Operation *> stack(value.getUsers());
  DenseSet<Operation *> seen(stack.begin(), stack.end());
  while (!stack.empty() && seen.size() < kMostOps) {
    Operation *op = stack.pop_back_val();
    if (auto map = dyn_cast<MapOp>(op))
      return map;
    for (Operation *user : op->getUsers())
      if (seen.insert(user).second)
        stack.push_back(user);
  }
  return {};
}

/// The largest numbers of micro-batches that are possible.
static std::string numbersText(int64_t most, function_ref<bool(int64_t)> isPossible) {
  SmallVector<std::string> numbers;
  for (int64_t number = 2; number <= most; ++number)
    if (isPossible(number))
      numbers.push_back(std::to_string(number));
  auto largest = ArrayRef(numbers).take_back(3);
  return largest.empty() ? "one micro-batch" : llvm::join(largest, " or ") + " micro-batches";
}

/// Numbers of micro-batches that share so many blocks evenly, and how there are more.
static std::string fixForBlocks(int64_t blocks) {
  return llvm::formatv("use {0}, or split the batch over more devices of the shard_map's mesh",
                       numbersText(blocks, [&](int64_t number) { return blocks % number == 0; }));
}

/// Blocks that a kernel is called for, of which micro-batches would have parts.
LogicalResult BatchSplitter::refuseCut(Operation *op, int64_t blocks) {
  return refuse(op,
                llvm::formatv("a jax.shard_map calls a kernel for each of {0} blocks of the "
                              "batch, which {1} micro-batches would cut apart",
                              blocks, count),
                fixForBlocks(blocks));
}

/// Whether each micro-batch can have an equal part of each of so many blocks of all arguments.
bool BatchSplitter::canShareBlocks(int64_t blocks) {
  return llvm::all_of(main.getArguments(), [&](BlockArgument arg) {
    return isStateArgument(arg) || (main.getArgAttr(arg.getArgNumber(), attr::name) &&
                                    typeOf(arg).getDimSize(0) % (blocks * count) == 0);
  });
}

/// Rows that all arguments of the batch can be cut into.
int64_t BatchSplitter::commonRows() {
  int64_t rows = 0;
  for (BlockArgument arg : main.getArguments())
    if (!isStateArgument(arg))
      rows = std::gcd(rows, typeOf(arg).getDimSize(0));
  return rows;
}

/// Numbers of micro-batches that have whole blocks, or an equal part of each.
std::string BatchSplitter::numbersForBlocks() {
  int64_t blocks = wantedBlocks, rows = commonRows();
  return numbersText(
      rows, [&](int64_t number) { return blocks % number == 0 || rows % (blocks * number) == 0; });
}

/// Says that micro-batches would not have equal parts of blocks.
void BatchSplitter::nameBlocks() {
  int64_t blocks = wantedBlocks, rows = commonRows();
  if (rows % blocks != 0 || rows % (blocks * count) == 0)
    return;
  refusal.text = llvm::formatv("the step makes {0} blocks of the batch's rows, as the devices of a "
                               "jax.shard_map have them, of which {1} micro-batches would not "
                               "have equal parts",
                               blocks, count);
  refusal.fix = "use " + numbersForBlocks();
}

/// Rows of the batch that become blocks of rows, as in a `jax.shard_map`. Unless a kernel needs
/// blocks as they are, micro-batches may have a part of each.
LogicalResult BatchSplitter::refuseBlocks(hlo::ReshapeOp op, Layout layout) {
  ArrayRef<int64_t> from = typeOf(op.getOperand()).getShape(),
                    to = typeOf(op.getResult()).getShape();
  int64_t dim = layout.dim, before = 1, blocks = 0;
  for (int64_t size : from.take_front(dim))
    before *= size;
  for (int64_t size : to) {
    if (before == 1)
      blocks = size;
    if (before <= 1 || before % size)
      break;
    before /= size;
  }
  if (blocks == 0 || from[dim] % blocks || blocks % count == 0)
    return refuse(op, "puts examples of several micro-batches into one row");
  if (kernelBehind(op.getResult()))
    return refuseCut(op, blocks);
  if (layout.outer == known.blocks)
    wantedBlocks = std::lcm(wantedBlocks, blocks);
  return refuse(op, "puts examples of several micro-batches into one row");
}

/// A kernel that has a dimension of the batch in its blocks, or in too few of them.
LogicalResult BatchSplitter::refuseKernel(MapOp op, unsigned operand, int64_t dim) {
  auto levels = static_cast<int64_t>(op.levelsOf(operand).size());
  int64_t blocks = dim < levels ? typeOf(op->getOperand(operand)).getDimSize(dim) : 1;
  if (blocks == 1)
    return refuse(
        op,
        "the blocks that a jax.shard_map calls a kernel for have all examples, because its "
        "in_specs do not split the batch",
        fixForBlocks(blocks));
  return refuseCut(op, blocks);
}

/// Ops whose rules keep a dimension whole that blocks of the batch pass through.
LogicalResult BatchSplitter::splitSpecially(Operation *op, SmallVector<Form> &in,
                                            const Scale &scale, bool &handled) {
  handled = true;
  if (isa<hlo::ReshapeOp>(op)) {
    std::optional<Layout> layout = reshaped(in[0].layout, typeOf(op->getOperand(0)).getShape(),
                                            typeOf(op->getResult(0)).getShape());
    if (!layout)
      return refuseBlocks(cast<hlo::ReshapeOp>(op), in[0].layout);
    define(op, make(op, {in[0].value}, {*layout}), {*layout}, scale);
    return success();
  }
  if (auto joined = dyn_cast<hlo::ConcatenateOp>(op)) {
    int64_t dim = joined.getDimension(), block = 0;
    if (llvm::all_of(in,
                     [&](const Form &form) { return !form.isSplit() || form.layout.dim != dim; })) {
      handled = false;
      return success();
    }
    for (auto [operand, form] : llvm::zip_equal(op->getOperands(), in)) {
      if (form.layout.kind == Layout::Whole)
        continue;
      if (!form.isSplit() || form.layout.dim != dim)
        return refuse(op, "joins examples with values of the whole batch");
      int64_t size = typeOf(operand).getDimSize(dim) / form.layout.outer;
      if (block && size != block)
        return refuse(op, "joins batches of several sizes");
      block = size;
    }
    SmallVector<Value> operands;
    for (auto [operand, form] : llvm::zip_equal(op->getOperands(), in)) {
      int64_t size = typeOf(operand).getDimSize(dim);
      if (size % block)
        return refuse(op, "joins examples with rows that are not as many");
      operands.push_back(held(form, Layout::split(dim, size / block)));
    }
    Layout layout = Layout::split(dim, typeOf(op->getResult(0)).getDimSize(dim) / block);
    define(op, make(op, operands, {layout}), {layout}, scale);
    return success();
  }
  if (auto slice = dyn_cast<hlo::SliceOp>(op)) {
    int64_t dim = in[0].layout.dim, size = typeOf(op->getOperand(0)).getDimSize(dim);
    int64_t start = slice.getStartIndices()[dim], limit = slice.getLimitIndices()[dim];
    int64_t block = size / in[0].layout.outer;
    if (start == 0 && limit == size && slice.getStrides()[dim] == 1) {
      handled = false;
      return success();
    }
    if (slice.getStrides()[dim] != 1 || start % block || limit % block || limit == start)
      return refuse(op, "takes some of the examples");
    Layout layout = Layout::split(dim, (limit - start) / block);
    Operation *made = make(op, {in[0].value}, {layout});
    auto changed = cast<hlo::SliceOp>(made);
    SmallVector<int64_t> starts(slice.getStartIndices()), limits(slice.getLimitIndices());
    starts[dim] = start / count;
    limits[dim] = limit / count;
    changed.setStartIndices(starts);
    changed.setLimitIndices(limits);
    define(op, made, {layout}, scale);
    return success();
  }
  if (auto pad = dyn_cast<hlo::PadOp>(op)) {
    int64_t dim = in[0].layout.dim, size = typeOf(op->getOperand(0)).getDimSize(dim);
    int64_t low = pad.getEdgePaddingLow()[dim], high = pad.getEdgePaddingHigh()[dim];
    int64_t block = size / in[0].layout.outer;
    if (low == 0 && high == 0 && pad.getInteriorPadding()[dim] == 0) {
      handled = false;
      return success();
    }
    if (low < 0 || high < 0 || low % block || high % block || pad.getInteriorPadding()[dim] != 0)
      return refuse(op, "pads the batch");
    Layout layout = Layout::split(dim, (low + size + high) / block);
    Operation *made = make(op, {in[0].value, in[1].value}, {layout});
    auto changed = cast<hlo::PadOp>(made);
    SmallVector<int64_t> lows(pad.getEdgePaddingLow()), highs(pad.getEdgePaddingHigh());
    lows[dim] = low / count;
    highs[dim] = high / count;
    changed.setEdgePaddingLow(lows);
    changed.setEdgePaddingHigh(highs);
    define(op, made, {layout}, scale);
    return success();
  }
  handled = false;
  return pickOwnRows(op, in, scale, handled);
}

static StringRef kindText(FactorKind kind) {
  return kind == FactorKind::Ring     ? "lets all examples meet"
         : kind == FactorKind::Window ? "slides a window over the examples (as jnp.cumsum does)"
                                      : "needs all examples of the batch at once";
}

/// What of a call of attention lets examples meet, for behind that it needs them all.
static std::string whyAll(Operation *op) {
  std::optional<AttentionCall> call = AttentionCall::read(op);
  StringRef why = call ? call->whyExamplesStay() : "";
  return why.empty() ? "" : (" (" + why + ")").str();
}

/// Whether a dimension has the factor behind another one.
static bool isMinor(const ShardingRule &rule, unsigned factor) {
  return llvm::any_of(llvm::concat<const TensorFactors>(rule.operands, rule.results),
                      [&](const TensorFactors &tensor) {
                        return llvm::any_of(tensor, [&](const DimFactors &dim) {
                          return llvm::is_contained(llvm::drop_begin(dim, dim.empty() ? 0 : 1),
                                                    factor);
                        });
                      });
}

/// If an op takes one row of a batch argument, as a scan over its rows does: they may be steps of
/// time.
std::string BatchSplitter::hintForRows(Operation *op) {
  auto slice = dyn_cast<hlo::DynamicSliceOp>(op);
  if (!slice || slice.getSliceSizes().empty() || slice.getSliceSizes()[0] != 1)
    return "";
  auto arg = dyn_cast<BlockArgument>(op->getOperand(0));
  while (arg && arg.getOwner() != &main.front()) { // As it comes into a loop.
    Block *body = arg.getOwner();
    unsigned i = arg.getArgNumber();
    auto around = dyn_cast<hlo::WhileOp>(body->getParentOp());
    if (!around || body->getParent() != &around->getRegion(1) ||
        body->getTerminator()->getOperand(i) != arg)
      return "";
    arg = dyn_cast<BlockArgument>(around->getOperand(i));
  }
  if (!arg || isStateArgument(arg))
    return "";
  auto name = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::name);
  if (!name)
    return "";
  return llvm::formatv("; dimension 0 of each batch argument is taken as its examples: if that of "
                       "{0} is time, transpose it before the call, or let the step take it with "
                       "examples first and transpose it (x.swapaxes(0, 1))",
                       name.getValue());
}

LogicalResult BatchSplitter::splitByRule(Operation *op, SmallVector<Form> &in, const Scale &scale) {
  std::optional<ShardingRule> rule = getShardingRule(op);
  if (!rule)
    return refuse(op, "is not looked into");
  std::optional<Assignment> assignment;
  for (auto [index, form, tensor] : llvm::enumerate(in, rule->operands)) {
    if (!form.isSplit())
      continue;
    std::optional<Assignment> found = assignmentOf(*rule, tensor, form.layout);
    if (auto map = dyn_cast<MapOp>(op); map && !found)
      return refuseKernel(map, static_cast<unsigned>(index), form.layout.dim);
    if (!found) {
      (void)refuse(op, isa<hlo::DynamicSliceOp, hlo::DynamicUpdateSliceOp>(op)
                           ? "takes examples one after another"
                       : tensor[form.layout.dim].empty()
                           ? "needs all examples of the batch at once" + whyAll(op)
                           : "mixes the batch with another dimension");
      last.hint = hintForRows(op);
      return failure();
    }
    if (assignment && (assignment->factor != found->factor || assignment->outer != found->outer))
      return refuse(op, "pairs examples of the batch with one another");
    assignment = found;
  }
  const Factor &factor = rule->factors[assignment->factor];
  // Which factor of a call's dimension is smaller then, its shapes do not tell.
  if (isa<hlo::CustomCallOp>(op) && isMinor(*rule, assignment->factor))
    return refuse(op, "mixes the batch with another dimension");
  if (factor.kind != FactorKind::Parallel && factor.kind != FactorKind::Reduction)
    return refuse(op, kindText(factor.kind) + whyAll(op));
  if (auto dot = dyn_cast<chlo::RaggedDotOp>(op)) {
    int64_t ragged = dot.getRaggedDotDimensionNumbers().getLhsRaggedDimensions()[0];
    if (llvm::is_contained(rule->operands[0][ragged], assignment->factor))
      return refuse(op, "has groups of the whole batch's examples");
  }
  SmallVector<Value> operands;
  SmallVector<std::pair<unsigned, Value>> takenOut;
  for (auto [i, form] : llvm::enumerate(in)) {
    const TensorFactors &tensor = rule->operands[i];
    Value operand = op->getOperand(i);
    if (!holds(tensor, assignment->factor)) {
      if (form.layout.kind == Layout::Split)
        return refuse(op, "pairs examples of the batch with one another");
      if (factor.kind == FactorKind::Reduction && llvm::is_contained(rule->broughtOnce, i) &&
          !isNeutral(operand, factor.reducer) && !zeros.contains(operand))
        return refuse(op, isa<hlo::ScatterOp>(op) && factor.reducer != Reducer::Sum
                              ? "combines rows of the batch with a value that is not of the batch"
                              : "adds to a value that is not of the batch");
      operands.push_back(form.value);
      continue;
    }
    std::optional<Layout> layout = layoutOf(*rule, tensor, *assignment);
    if (!layout || (form.isSplit() && !(*layout == form.layout)))
      return refuse(op, "pairs examples of the batch with one another");
    operands.push_back(held(form, *layout));
  }
  if (auto gather = dyn_cast<hlo::GatherOp>(op); gather && factor.kind == FactorKind::Reduction)
    return refuse(op, "picks examples of the batch");
  if (isa<hlo::ScatterOp>(op) && factor.kind == FactorKind::Parallel && !in[1].isSplit()) {
    auto numbers = cast<hlo::ScatterOp>(op).getScatterDimensionNumbers();
    for (int64_t dim : numbers.getInsertedWindowDims())
      if (std::optional<Layout> layout = layoutOf(*rule, rule->operands[0], *assignment);
          layout && layout->dim == dim)
        return refuse(op, "writes to examples of the batch");
  }
  SmallVector<Layout> layouts;
  for (auto [result, tensor] : llvm::zip_equal(op->getResults(), rule->results)) {
    if (typeOf(result).getNumElements() == 0) { // A workspace.
      layouts.push_back(Layout());
      continue;
    }
    if (rule->isReduced(layouts.size(), assignment->factor)) {
      layouts.push_back(Layout::unreduced(factor.reducer));
      continue;
    }
    std::optional<Layout> layout = layoutOf(*rule, tensor, *assignment);
    // What a call gives beside what is asked for, such as a workspace, has no batch.
    if (!layout && isa<hlo::CustomCallOp>(op) && result.use_empty())
      layout = Layout();
    if (!layout)
      return refuse(op, "mixes the batch with another dimension");
    layouts.push_back(*layout);
  }
  if (factor.kind == FactorKind::Reduction && factor.reducer != Reducer::Sum && !scale.empty())
    return refuse(op, "compares values whose scale is known behind the micro-batches");
  Operation *made = make(op, operands, layouts);
  define(op, made, layouts, scale);
  if (factor.kind == FactorKind::Reduction)
    widen(op, made);
  return success();
}

/// Terms of a sum in half precision are rounded once, behind the sum, as the whole
/// batch's are: a product gives them in float32. Who goes on in half precision reads
/// the rounded term.
void BatchSplitter::widen(Operation *op, Operation *made) {
  auto type = typeOf(made->getResult(0));
  if (!widensSums || !isa<hlo::DotGeneralOp, GroupedDotOp, GroupedSumOp>(made) ||
      !isa<FloatType>(type.getElementType()) || type.getElementTypeBitWidth() >= 32)
    return;
  OpBuilder &builder = here().builder;
  made->getResult(0).setType(type.clone(builder.getF32Type()));
  forms[op->getResult(0)].value =
      op1(builder, "stablehlo.convert", made->getResult(0), type, op->getLoc(), attributesOf(op));
}

/// Why what an op reads are a kernel's blocks of the whole batch, in each micro-batch; nothing if
/// they are not.
const Refusal *BatchSplitter::whyWhole(Operation *op) {
  for (Value value : getUsedValues(op))
    if (auto form = forms.find(value); form != forms.end())
      if (auto why = ofWhole.find(form->second.value); why != ofWhole.end())
        return &why->second;
  return nullptr;
}

/// Whether weights go into an op, or it is a kernel: each micro-batch takes its own part of that.
bool BatchSplitter::isLayer(Operation *op) {
  if (isa<MapOp, hlo::CustomCallOp>(op))
    return true;
  std::optional<ShardingRule> rule = getShardingRule(op);
  return rule && rule->heavy && llvm::any_of(op->getOperands(), [&](Value operand) {
           auto form = forms.find(operand);
           return form != forms.end() && form->second.isPlain() &&
                  !ofWhole.contains(form->second.value);
         });
}

/// An op without control flow.
/// A product of weights with rows that are drawn for the examples of the batch, or a loop with
/// such: as with rows of the batch.
LogicalResult BatchSplitter::cutDraw(Operation *op) {
  if (phaseOf(op) == "update")
    return failure();
  SmallVector<unsigned> operands = draws.operandsOf(op);
  Layout layout = Layout::split(0, 1);
  auto isWhole = [&](Value value) {
    auto it = forms.find(value);
    return it != forms.end() && it->second.isPlain();
  };
  if (operands.empty() || !llvm::all_of(getUsedValues(op), isWhole))
    return failure();
  SmallVector<std::pair<Value, Form>> before;
  for (unsigned operand : operands) {
    Value value = op->getOperand(operand);
    if (!forms[value].isSplit()) { // A loop may carry it twice.
      before.push_back({value, forms[value]});
      forms[value] = {sliceOf(forms[value].value, layout), layout, {}};
    }
  }
  LogicalResult done = inMicroBatch(op);
  for (auto [value, form] : before)
    forms[value] = form;
  if (succeeded(done) && llvm::any_of(op->getResults(), [&](Value result) {
        return forms.lookup(result).isSplit();
      })) {
    takeFromWhole(op);
    hasSplitDraws = true;
    return success();
  }
  for (Value result : op->getResults())
    forms.erase(result);
  return failure();
}

LogicalResult BatchSplitter::plain(Operation *op, SmallVector<Form> in) {
  std::optional<Joint> joint = jointOf(op, in);
  if (!joint)
    return refuse(op, "needs a value of the whole batch");
  bool anySplit = llvm::any_of(in, [](const Form &form) { return form.isSplit(); });
  bool anyEstimate =
      llvm::any_of(in, [](const Form &form) { return form.layout.kind == Layout::Estimate; });
  if (joint->isUnreduced && anySplit)
    return refuse(op, "needs a value of the whole batch");
  if (joint->isUnreduced && anyEstimate)
    return refuse(op, "needs a value of the whole batch");
  if (!anySplit) {
    Layout layout = joint->isUnreduced ? Layout::unreduced(Reducer::Sum) : Layout();
    if (anyEstimate)
      layout.kind = Layout::Estimate;
    SmallVector<Value> operands;
    for (const Form &form : in)
      operands.push_back(form.value);
    SmallVector<Layout> layouts(op->getNumResults(), layout);
    Operation *made = make(op, operands, layouts);
    define(op, made, layouts, joint->scale);
    noteMixed(made);
    return success();
  }
  // What a micro-batch estimates is like a whole value to what it does with it.
  if (anyEstimate)
    for (Form &form : in)
      if (form.layout.kind == Layout::Estimate)
        form.layout.kind = Layout::Whole;
  bool handled = false;
  if (failed(splitSpecially(op, in, joint->scale, handled)))
    return failure();
  return handled ? success() : splitByRule(op, in, joint->scale);
}

/// Every operand goes through on its own.
LogicalResult BatchSplitter::barrier(Operation *op) {
  SmallVector<std::optional<Form>> in;
  for (Value operand : op->getOperands()) {
    auto it = forms.find(operand);
    in.push_back(it == forms.end() ? std::nullopt : std::optional(it->second));
    if (!in.back() && !isAtTop())
      return refuse(op, "needs a value of the whole batch");
  }
  // What is the same for all micro-batches goes through a barrier of its own, and so does what
  // follows from the batch alone, which gradients from behind a barrier are not to hold up.
  enum Group { Whole, OfBatch, Others };
  SmallVector<Group> groups;
  for (auto [operand, form] : llvm::zip_equal(op->getOperands(), in)) {
    bool isOfBatch = form && mayMeet && isAtTop() && form->isSplit() && canRepeat(operand);
    bool isWhole = form && form->layout.kind == Layout::Whole;
    groups.push_back(isWhole ? Whole : isOfBatch ? OfBatch : Others);
  }
  for (Group group : {Whole, OfBatch, Others}) {
    SmallVector<Value> operands;
    SmallVector<unsigned> places;
    for (auto [i, form] : llvm::enumerate(in))
      if (form && groups[i] == group) {
        operands.push_back(form->value);
        places.push_back(i);
      }
    if (operands.empty())
      continue;
    OperationState state(op->getLoc(), op->getName(), operands, ValueRange(operands).getTypes(),
                         op->getAttrs());
    Operation *made = here().builder.create(state);
    noteMixed(made);
    for (auto [next, place] : llvm::enumerate(places))
      forms[op->getResult(place)] = {made->getResult(next), in[place]->layout, in[place]->scale};
  }
  for (auto [operand, result, form] : llvm::zip_equal(op->getOperands(), op->getResults(), in)) {
    if (form)
      continue;
    completed[result] = complete(operand);
    if (op->hasAttr(attr::pin)) {
      Operation *made = top().builder.clone(*op);
      made->setOperand(0, completed[result]);
      made->removeAttr(attr::eqn);
      for (NamedAttribute attribute : phaseAttributes(true))
        made->setAttr(attribute.getName(), attribute.getValue());
      completed[result] = made->getResult(0);
    }
    if (auto known = wide.find(operand); known != wide.end()) {
      Refusal why = known->second;
      wide[result] = why;
    }
    if (std::optional<Form> known = scaledForm(operand))
      scaled[result] = known;
  }
  return success();
}

/// Clones an op that every micro-batch does alike.
bool BatchSplitter::cloneWhole(Operation *op) {
  IRMapping mapping;
  for (Value value : getUsedValues(op)) {
    auto it = forms.find(value);
    if (it == forms.end() || !it->second.isPlain())
      return false;
    mapping.map(value, it->second.value);
  }
  const Refusal *why = whyWhole(op);
  if (why && isLayer(op))
    return false;
  Operation *made = here().builder.clone(*op, mapping);
  if (isa<hlo::WhileOp>(op))
    loops[made] = op;
  noteMixed(made);
  if (const Refusal held = why ? *why : Refusal(); held.op)
    for (Value result : made->getResults())
      ofWhole[result] = held;
  for (auto [old, value] : llvm::zip_equal(op->getResults(), made->getResults())) {
    Value whole = value;
    if (known.once.contains(old)) {
      whole = roundedOnce(value, here().builder);
      cutOnly.insert(whole);
    }
    forms[old] = {whole, Layout(), {}};
  }
  return true;
}

LogicalResult BatchSplitter::visitInner(Operation *op) {
  if (cloneWhole(op))
    return success();
  return inMicroBatch(op);
}

/// Makes the ops of a region; the caller leaves it when it knows what is returned.
LogicalResult BatchSplitter::enter(Region &from, Region &to, ArrayRef<Layout> layouts,
                                   ArrayRef<Scale> scale, SmallVectorImpl<Form> &yielded) {
  Block *block = new Block();
  to.push_back(block);
  for (auto [i, old] : llvm::enumerate(from.getArguments()))
    forms[old] = {block->addArgument(localType(old, layouts[i]), old.getLoc()), layouts[i],
                  scale[i]};
  scopes.push_back({OpBuilder::atBlockEnd(block), {}});
  active = &scopes.back();
  for (Operation &op : from.front().without_terminator())
    if (failed(visitInner(&op)))
      return failure();
  for (Value value : from.front().getTerminator()->getOperands()) {
    std::optional<Form> form = formOf(value);
    if (!form)
      return refuse(from.getParentOp(), "needs a value of the whole batch");
    yielded.push_back(*form);
  }
  return success();
}

void BatchSplitter::leave(Region &from, ArrayRef<Value> values) {
  OperationState state(from.front().getTerminator()->getLoc(), "stablehlo.return");
  state.addOperands(values);
  here().builder.create(state);
}

void BatchSplitter::unwind(size_t depth, Scope *to) {
  while (scopes.size() > depth)
    scopes.pop_back();
  active = to;
}

void BatchSplitter::destroy(Operation *made) {
  made->walk([&](Operation *op) {
    loops.erase(op);
    behindBarrier.erase(op);
    for (Value result : op->getResults())
      parts.erase(result);
  });
  made->destroy();
}

/// A loop or branch that works on parts depends on the micro-batch, with all of its
/// results, also with those that are the same for all.
void BatchSplitter::noteWholeResults(Operation *op, Operation *made) {
  // What a loop only hands on is what it was given.
  if (isa<hlo::WhileOp>(made))
    for (auto [i, value] :
         llvm::enumerate(made->getRegion(1).front().getTerminator()->getOperands()))
      if (value == made->getRegion(1).getArgument(i) &&
          made->getOperand(i).getType() == made->getResult(i).getType())
        forms[op->getResult(i)].value = made->getOperand(i);
  mixed.insert(made->result_begin(), made->result_end());
}

/// Marks results of an op that reads such a value.
void BatchSplitter::noteMixed(Operation *made) {
  if (llvm::any_of(getUsedValues(made), [&](Value value) { return mixed.contains(value); }))
    mixed.insert(made->result_begin(), made->result_end());
}

/// What goes around a loop takes one form: parts if any iteration makes parts, terms if
/// any adds terms to what began as zero.
/// With `meetsSums` the loop begins behind the barrier with sums, not with their terms.
/// How a whole value is cut in the scopes from that depth on, if that is all that is done with it.
std::optional<Layout> BatchSplitter::onlyPart(Value whole, size_t depth) {
  std::optional<Layout> found;
  for (const Scope &scope : llvm::drop_begin(scopes, depth))
    for (const auto &[key, part] : scope.slices) {
      if (std::get<0>(key) != whole.getAsOpaquePointer())
        continue;
      if (found)
        return std::nullopt;
      found = Layout::split(std::get<1>(key), std::get<2>(key));
    }
  return whole.hasOneUse() ? found : std::nullopt;
}

LogicalResult BatchSplitter::loop(hlo::WhileOp op, bool meetsSums) {
  unsigned size = op->getNumOperands();
  SmallVector<Form> inits;
  SmallVector<bool> mayBeZero;
  SmallVector<Layout> layouts;
  SmallVector<Scale> scale;
  for (Value operand : op->getOperands()) {
    std::optional<Form> form = formOf(operand);
    bool isLoose = !form || (meetsSums && (form->isUnreduced() || !form->scale.empty()));
    if (std::optional<Form> known = isLoose ? metForm(operand) : std::nullopt) {
      form = known;
      meeting.insert(op);
    }
    if (!form || form->layout.kind == Layout::Estimate)
      return refuse(op, "needs a value of the whole batch");
    inits.push_back(*form);
    mayBeZero.push_back(form->isPlain() && isZero(operand));
    layouts.push_back(form->layout);
    scale.push_back(form->scale);
  }
  Region &condition = op->getRegion(0), &body = op->getRegion(1);
  ValueRange returned = body.front().getTerminator()->getOperands();
  size_t depth = scopes.size();
  Scope *outside = active;
  auto setZeros = [&](bool isOver) {
    for (unsigned i = 0; i < size; ++i)
      for (Region &region : op->getRegions()) {
        if (mayBeZero[i] && !isOver)
          zeros.insert(region.getArgument(i));
        else
          zeros.erase(region.getArgument(i));
      }
  };
  for (unsigned round = 0; round < 3 * size + 4; ++round) {
    setZeros(false);
    OperationState state(op->getLoc(), op->getName());
    state.addAttributes(op->getAttrs());
    for (unsigned i = 0; i < size; ++i) {
      state.addTypes(localType(op->getResult(i), layouts[i]));
      state.operands.push_back(inits[i].value);
    }
    state.addRegion();
    state.addRegion();
    Operation *made = Operation::create(state);
    auto giveUp = [&] {
      unwind(depth, outside);
      destroy(made);
      setZeros(true);
      return failure();
    };
    SmallVector<Form> goesOn, next;
    if (failed(enter(condition, made->getRegion(0), layouts, scale, goesOn)))
      return giveUp();
    if (!goesOn[0].isPlain()) {
      (void)refuse(op, "goes on as long as examples say");
      return giveUp();
    }
    leave(condition, {goesOn[0].value});
    unwind(depth, outside);
    if (failed(enter(body, made->getRegion(1), layouts, scale, next)))
      return giveUp();
    bool changed = false;
    for (unsigned i = 0; i < size; ++i) {
      const Form &form = next[i];
      if (form.isPlain() && isZero(returned[i]) && layouts[i].kind != Layout::Split)
        continue;
      if (mayBeZero[i]) { // It is not: what is it then?
        mayBeZero[i] = false;
        layouts[i] = form.layout;
        scale[i] = form.scale;
        changed = true;
        continue;
      }
      if (form.layout == layouts[i] && form.scale == scale[i])
        continue;
      bool isAlike = form.scale == scale[i] && inits[i].layout.kind == Layout::Whole;
      if (isAlike && form.isSplit() && layouts[i].kind == Layout::Whole) {
        layouts[i] = form.layout;
        changed = true;
        continue;
      }
      if (layouts[i].kind == Layout::Split && form.layout.kind == Layout::Whole &&
          form.scale == scale[i])
        continue; // Its part is taken below.
      (void)refuse(op, "carries a value of the whole batch from iteration to iteration");
      return giveUp();
    }
    // What the loop only hands on, and cuts, is cut in front of it.
    bool isSettled = !changed;
    for (unsigned i = 0; i < size && isSettled; ++i) {
      bool isHandedOn = layouts[i].kind == Layout::Whole && returned[i] == body.getArgument(i) &&
                        op->getResult(i).use_empty() && condition.getArgument(i).use_empty();
      std::optional<Layout> part =
          isHandedOn ? onlyPart(made->getRegion(1).getArgument(i), depth) : std::nullopt;
      changed |= part.has_value();
      layouts[i] = part.value_or(layouts[i]);
    }
    if (changed) {
      unwind(depth, outside);
      destroy(made);
      continue;
    }
    SmallVector<Value> values;
    for (unsigned i = 0; i < size; ++i)
      values.push_back(held(next[i], layouts[i]));
    leave(body, values);
    unwind(depth, outside);
    for (unsigned i = 0; i < size; ++i)
      made->setOperand(i, held(inits[i], layouts[i]));
    here().builder.insert(made);
    for (unsigned i = 0; i < size; ++i)
      forms[op->getResult(i)] = {made->getResult(i), layouts[i], scale[i]};
    setZeros(true);
    noteWholeResults(op, made);
    return success();
  }
  setZeros(true);
  return refuse(op, "carries a value of the whole batch from iteration to iteration");
}

/// The results' forms are those of all branches together.
LogicalResult BatchSplitter::branches(hlo::CaseOp op) {
  std::optional<Form> index = formOf(op->getOperand(0));
  if (std::optional<Form> met =
          index && index->isPlain() ? std::nullopt : metForm(op->getOperand(0))) {
    index = met;
    meeting.insert(op);
  }
  if (!index || !index->isPlain())
    return refuse(op, "takes a branch that the whole batch decides about");
  unsigned size = op->getNumResults();
  SmallVector<Layout> layouts(size);
  SmallVector<Scale> scale(size);
  SmallVector<bool> isKnown(size, false);
  size_t depth = scopes.size();
  Scope *outside = active;
  for (bool isLast : {false, true}) {
    OperationState state(op->getLoc(), op->getName(), index->value, TypeRange(), op->getAttrs());
    for (unsigned i = 0; i < op->getNumRegions(); ++i)
      state.addRegion();
    for (unsigned i = 0; i < size; ++i)
      state.addTypes(localType(op->getResult(i), layouts[i]));
    Operation *made = Operation::create(state);
    auto giveUp = [&] {
      unwind(depth, outside);
      destroy(made);
      return failure();
    };
    for (unsigned branch = 0; branch < op->getNumRegions(); ++branch) {
      SmallVector<Form> yielded;
      Region &from = op->getRegion(branch);
      if (failed(enter(from, made->getRegion(branch), {}, {}, yielded)))
        return giveUp();
      SmallVector<Value> values;
      for (unsigned i = 0; i < size; ++i) {
        const Form &form = yielded[i];
        Value returned = from.front().getTerminator()->getOperand(i);
        if (form.layout.kind == Layout::Estimate) {
          (void)refuse(op, "needs a value of the whole batch");
          return giveUp();
        }
        if (isLast) {
          values.push_back(held(form, layouts[i]));
          continue;
        }
        if (form.isPlain() && isZero(returned))
          continue;
        bool isSame = form.scale == scale[i];
        if (!isKnown[i] || (isSame && form.isSplit() && layouts[i].kind == Layout::Whole)) {
          layouts[i] = form.layout;
          scale[i] = form.scale;
          isKnown[i] = true;
        } else if (!isSame ||
                   (!(form.layout == layouts[i]) &&
                    !(form.layout.kind == Layout::Whole && layouts[i].kind == Layout::Split))) {
          (void)refuse(op, "has branches of which some need a value of the whole batch");
          return giveUp();
        }
      }
      if (isLast)
        leave(from, values);
      unwind(depth, outside);
    }
    if (!isLast) {
      destroy(made);
      continue;
    }
    here().builder.insert(made);
    for (unsigned i = 0; i < size; ++i)
      forms[op->getResult(i)] = {made->getResult(i), layouts[i], scale[i]};
    noteWholeResults(op, made);
  }
  return success();
}

LogicalResult BatchSplitter::inMicroBatch(Operation *op) {
  last = {};
  if (isa<hlo::OptimizationBarrierOp>(op))
    return barrier(op);
  if (auto repeat = dyn_cast<hlo::WhileOp>(op))
    return succeeded(loop(repeat)) || (mayMeet && succeeded(loop(repeat, /*meetsSums=*/true)))
               ? success()
               : failure();
  if (auto choice = dyn_cast<hlo::CaseOp>(op))
    return branches(choice);
  if (readsOutside(op))
    return refuse(op, "reads in its body a value of outside");
  SmallVector<Form> in;
  bool isComplete = true;
  for (Value operand : op->getOperands()) {
    std::optional<Form> form = formOf(operand);
    isComplete &= form.has_value();
    in.push_back(form.value_or(Form()));
  }
  if (isComplete && succeeded(plain(op, in)))
    return success();
  Refusal first = last.op ? last : Refusal{op, "needs a value of the whole batch", ""};
  // A sum as a scale that waits.
  bool anySplit = llvm::any_of(in, [](const Form &form) { return form.isSplit(); });
  bool anyUnreduced = llvm::any_of(in, [](const Form &form) { return form.isUnreduced(); });
  if (anySplit && anyUnreduced && isComplete && semantics != Semantics::Independent) {
    SmallVector<Form> other = in;
    bool found = true;
    for (auto [operand, form] : llvm::zip_equal(op->getOperands(), other))
      if (form.isUnreduced()) {
        std::optional<Form> known = scaledForm(operand);
        found &= known.has_value();
        if (known)
          form = *known;
      }
    if (found && succeeded(plain(op, other)))
      return success();
  }
  // What follows from the batch alone, each micro-batch can know of the whole batch.
  if (anySplit && semantics != Semantics::Independent) {
    SmallVector<Form> other;
    for (Value operand : op->getOperands()) {
      auto it = forms.find(operand);
      std::optional<Form> form = it == forms.end() ? std::nullopt : std::optional(it->second);
      form = repeatedForm(operand, form);
      if (!form)
        break;
      other.push_back(*form);
    }
    if (other.size() == in.size() && succeeded(plain(op, other))) {
      for (Value result : op->getResults())
        if (const Form &form = forms[result];
            form.layout.kind == Layout::Whole && !first.fix.empty())
          ofWhole[form.value] = first;
      return success();
    }
  }
  if (anySplit && semantics != Semantics::Independent && succeeded(rearrange(op, first)))
    return success();
  if (wantsEstimates) {
    SmallVector<Form> other;
    for (Value operand : op->getOperands()) {
      std::optional<Form> form = estimateForm(operand);
      if (!form)
        break;
      other.push_back(*form);
    }
    if (other.size() == in.size() && succeeded(plain(op, other)))
      return success();
  }
  // Behind the barrier: what is complete already, then also sums that wait.
  if (mayMeet && anySplit) {
    for (bool meetsSums : {false, true}) {
      SmallVector<Form> other;
      for (auto [operand, form] : llvm::zip_equal(op->getOperands(), in)) {
        bool isLoose = !form.value || (meetsSums && (form.isUnreduced() || !form.scale.empty()));
        std::optional<Form> met = isLoose ? metForm(operand) : form;
        if (!met)
          break;
        other.push_back(*met);
      }
      if (other.size() == in.size() && succeeded(plain(op, other))) {
        meeting.insert(op);
        return success();
      }
    }
  }
  if (isLayerOfWhole(op) && succeeded(cutForLayer(op)))
    return success();
  last = first;
  return failure();
}

/// Whether a layer works on what the barrier made of all examples.
bool BatchSplitter::isLayerOfWhole(Operation *op) {
  if (!mayMeet || phaseOf(op) == "update")
    return false;
  std::optional<ShardingRule> rule = getShardingRule(op);
  if (!rule || !rule->heavy)
    return false;
  bool hasWeights = false, isWide = false;
  for (Value operand : op->getOperands()) {
    auto it = forms.find(operand);
    hasWeights |= it != forms.end() && it->second.isPlain();
    isWide |= wide.contains(operand);
  }
  return hasWeights && isWide;
}

/// Examples are along any dimension that each result has, and weights do not have.
LogicalResult BatchSplitter::cutForLayer(Operation *op) {
  SmallVector<Form> in;
  for (Value operand : op->getOperands()) {
    std::optional<Form> form = metForm(operand);
    if (!form)
      return failure();
    in.push_back(*form);
  }
  for (auto [operand, form] : llvm::zip_equal(op->getOperands(), in)) {
    if (!wide.contains(operand))
      continue;
    for (auto [dim, size] : llvm::enumerate(typeOf(operand).getShape())) {
      if (size % count != 0)
        continue;
      const Form whole = form;
      form = {sliceOf(whole.value, Layout::split(dim, 1)), Layout::split(dim, 1), {}};
      if (succeeded(plain(op, in)) && llvm::all_of(op->getResults(), [&](Value result) {
            return forms.lookup(result).isSplit();
          })) {
        meeting.insert(op);
        return success();
      }
      form = whole;
    }
  }
  for (Value result : op->getResults())
    forms.erase(result);
  return failure();
}

//===----------------------------------------------------------------------===//
// Completed values
//===----------------------------------------------------------------------===//

/// The values of all micro-batches, put where they belong in one sum: a micro-batch
/// adds zeros for the others.
Value BatchSplitter::join(Form form, DictionaryAttr attributes) {
  Scope &scope = top();
  OpBuilder &builder = scope.builder;
  Location loc = form.value.getLoc();
  RankedTensorType type = typeOf(form.value);
  Value value = form.value;
  bool isTruth = type.getElementType().isInteger(1);
  if (isTruth) {
    type = type.clone(builder.getIntegerType(8, /*isSigned=*/false));
    value = op1(builder, "stablehlo.convert", value, type, loc, attributes);
  }
  int64_t dim = 0, inner = 1;
  SmallVector<int64_t> shape(type.getShape());
  if (form.isSplit() && form.layout.outer == 1) {
    dim = form.layout.dim;
    inner = shape[dim];
    shape[dim] *= count;
  } else if (form.isSplit()) {
    dim = form.layout.dim + 1;
    int64_t rows = shape[form.layout.dim] / form.layout.outer;
    shape[form.layout.dim] = form.layout.outer;
    shape.insert(shape.begin() + dim, {1, rows});
    value = op1(builder, "stablehlo.reshape", value, type.clone(shape), loc, attributes);
    shape[dim] = count;
  } else { // One value of each micro-batch.
    shape.insert(shape.begin(), 1);
    value = op1(builder, "stablehlo.reshape", value, type.clone(shape), loc, attributes);
    shape[0] = count;
  }
  auto i32 = RankedTensorType::get({}, builder.getI32Type());
  Value none = constant(builder, splatOf(0, type.clone(shape)), loc, attributes);
  SmallVector<Value> operands{none, value};
  Value zero = constant(builder, splatOf(0, i32), loc, attributes);
  Value start = offset(inner, scope, attributes, loc);
  for (int64_t i = 0; i < int64_t(shape.size()); ++i)
    operands.push_back(i == dim ? start : zero);
  value =
      op1(builder, "stablehlo.dynamic_update_slice", operands, type.clone(shape), loc, attributes);
  parts.insert(value);
  // Behind the micro-batches, of which the value is the sum now.
  DictionaryAttr update = phaseAttributes(true);
  if (form.isSplit() && form.layout.outer > 1) {
    SmallVector<int64_t> whole(typeOf(form.value).getShape());
    whole[form.layout.dim] *= count;
    value = op1(builder, "stablehlo.reshape", value, type.clone(whole), loc, update);
  }
  if (isTruth) {
    Value none = constant(builder, splatOf(0, typeOf(value)), loc, update);
    value = op1(
        builder, "stablehlo.compare", {value, none}, typeOf(value).clone(builder.getI1Type()), loc,
        update,
        {builder.getNamedAttr("comparison_direction", hlo::ComparisonDirectionAttr::get(
                                                          context, hlo::ComparisonDirection::NE))});
  }
  return value;
}

/// The first micro-batch's value, as a sum to which the others add zeros.
Value BatchSplitter::ofFirst(Value value, DictionaryAttr attributes) {
  OpBuilder &builder = top().builder;
  Location loc = value.getLoc();
  RankedTensorType type = typeOf(value);
  bool isTruth = type.getElementType().isInteger(1);
  if (isTruth) {
    type = type.clone(builder.getIntegerType(8, /*isSigned=*/false));
    value = op1(builder, "stablehlo.convert", value, type, loc, attributes);
  }
  auto compare = [&](Value left, hlo::ComparisonDirection direction, DictionaryAttr at) {
    Value zero = constant(builder, splatOf(0, typeOf(left)), loc, at);
    return op1(builder, "stablehlo.compare", {left, zero}, typeOf(left).clone(builder.getI1Type()),
               loc, at,
               {builder.getNamedAttr("comparison_direction",
                                     hlo::ComparisonDirectionAttr::get(context, direction))});
  };
  Value isFirst =
      compare(offset(1, top(), attributes, loc), hlo::ComparisonDirection::EQ, attributes);
  Value none = constant(builder, splatOf(0, type), loc, attributes);
  value = op1(builder, "stablehlo.select",
              {spread(builder, isFirst, type.getShape(), attributes), value, none}, type, loc,
              attributes);
  parts.insert(value);
  return isTruth ? compare(value, hlo::ComparisonDirection::NE, phaseAttributes(true)) : value;
}

/// Whether terms of a sum were rounded to fewer bits on the way: the whole batch's sum is rounded
/// once, which is not the sum of rounded terms.
bool BatchSplitter::roundsTerms(Value value) {
  auto form = forms.find(value);
  Operation *op = value.getDefiningOp();
  if (form == forms.end() || !form->second.isUnreduced() ||
      form->second.layout.reducer != Reducer::Sum || !op)
    return false;
  auto [it, isNew] = rounded.try_emplace(value, false);
  if (!isNew)
    return it->second;
  bool isLoop = isa<hlo::WhileOp, hlo::CaseOp>(op);
  bool found = narrows(op) || (!isLoop && llvm::any_of(op->getOperands(), [&](Value operand) {
                 return roundsTerms(operand);
               }));
  return rounded[value] = found;
}

/// Whether an op on terms of sums does with the sums what it does with the terms, and need
/// not do it in each micro-batch: it moves, converts or joins them, or adds two, as gradients
/// of a weight that is used twice. Behind what rounds terms all ops are done once.
bool BatchSplitter::isDoneOnce(Operation *op) {
  auto isSum = [&](Value value) {
    auto it = forms.find(value);
    return it != forms.end() && it->second.isUnreduced() &&
           it->second.layout.reducer == Reducer::Sum &&
           isa<FloatType>(typeOf(value).getElementType()) &&
           isa<FloatType>(typeOf(op->getResult(0)).getElementType());
  };
  if (op->getNumResults() == 1 && roundsTerms(op->getResult(0)) &&
      (widensSums || analysis::getElementBits(op->getResult(0).getType()) < 16 || !narrows(op)))
    return llvm::all_of(op->getOperands(), [&](Value value) {
      auto it = forms.find(value);
      Operation *source = value.getDefiningOp();
      return isSum(value) || (it != forms.end() && it->second.isPlain()) ||
             (source && importer::isConstantLike(source));
    });
  bool movesOnly =
      isa<hlo::ConcatenateOp, hlo::TransposeOp, hlo::ReshapeOp>(op) ||
      (isa<hlo::ConvertOp>(op) && widensSums) || // Or sums would be as narrow as terms.
      (isa<hlo::BroadcastInDimOp>(op) &&
       typeOf(op->getOperand(0)).getNumElements() == typeOf(op->getResult(0)).getNumElements());
  bool addsTwo = isa<hlo::AddOp>(op) && llvm::none_of(op->getOperands(), [](Value value) {
                   return value.getDefiningOp<hlo::AddOp>();
                 });
  return (movesOnly || addsTwo) && llvm::all_of(op->getOperands(), isSum);
}

Value BatchSplitter::scaleBy(Value value, const Scale &scale, DictionaryAttr attributes) {
  OpBuilder &builder = top().builder;
  RankedTensorType type = typeOf(value);
  for (auto [id, exponent] : scale) {
    Value base;
    for (const Base &known : bases)
      if (known.id == id)
        base = known.completed;
    auto scalar = RankedTensorType::get({}, type.getElementType());
    if (base.getType() != scalar)
      base = op1(builder, "stablehlo.convert", base, scalar, value.getLoc(), attributes);
    base = spread(builder, base, type.getShape(), attributes);
    for (int i = 0; i < std::abs(exponent); ++i)
      value = op1(builder, exponent > 0 ? "stablehlo.multiply" : "stablehlo.divide", {value, base},
                  type, value.getLoc(), attributes);
  }
  return value;
}

/// The whole batch's value, as ops of the update read it.
Value BatchSplitter::complete(Value value) {
  if (auto it = completed.find(value); it != completed.end())
    return it->second;
  Form form = forms.find(value)->second;
  if (Operation *op = value.getDefiningOp(); op && form.isUnreduced() && isDoneOnce(op)) {
    behind(op);
    return completed[value];
  }
  OpBuilder &builder = top().builder;
  DictionaryAttr update = phaseAttributes(true);
  Operation *op = form.value.getDefiningOp();
  DictionaryAttr attributes = op ? attributesOf(op) : phaseAttributes(false);
  Location loc = value.getLoc();
  Value result = form.value;
  switch (form.layout.kind) {
  case Layout::Whole:
    if (mixed.contains(result))
      result = ofFirst(result, attributes);
    break;
  case Layout::Estimate: {
    Value factor;
    RankedTensorType type = typeOf(result);
    if (isa<FloatType>(type.getElementType())) {
      APFloat part(1.0 / static_cast<double>(count));
      bool loses;
      part.convert(cast<FloatType>(type.getElementType()).getFloatSemantics(),
                   APFloat::rmNearestTiesToEven, &loses);
      factor = constant(builder, DenseElementsAttr::get(type, part), loc, attributes);
      result = op1(builder, "stablehlo.multiply", {result, factor}, type, loc, attributes);
      break;
    }
    result = ofFirst(result, attributes);
    break;
  }
  case Layout::Split:
    result = join(form, attributes);
    joins.push_back(StringAttr::get(context, placeOf(value)));
    break;
  case Layout::Unreduced: {
    RankedTensorType type = typeOf(result);
    if (form.layout.reducer == Reducer::Sum) {
      Type element = type.getElementType();
      if (widensSums && isa<FloatType>(element) && element.getIntOrFloatBitWidth() < 32) {
        // Terms are added as they were before they were rounded; their sum is rounded.
        auto wider = type.clone(builder.getF32Type());
        bool isRounded = op && isa<hlo::ConvertOp>(op) && op->getOperand(0).getType() == wider;
        result = isRounded ? op->getOperand(0)
                           : op1(builder, "stablehlo.convert", result, wider, loc, attributes);
        if (!form.scale.empty())
          result = scaleBy(result, form.scale, update);
        form.scale.clear();
        result = op1(builder, "stablehlo.convert", result, type, loc, update);
      }
      sums.push_back(StringAttr::get(context, placeOf(value)));
      break;
    }
    result = join(form, attributes);
    OperationState state(loc, "stablehlo.reduce");
    Value init =
        constant(builder, neutralOf(form.layout.reducer, type.getElementType()), loc, update);
    state.addOperands({result, init});
    state.addTypes(type);
    state.addAttributes(update.getValue());
    state.addAttribute("dimensions", builder.getDenseI64ArrayAttr({0}));
    Region *region = state.addRegion();
    auto scalar = RankedTensorType::get({}, type.getElementType());
    Block *block = new Block();
    region->push_back(block);
    block->addArguments({scalar, scalar}, {loc, loc});
    OpBuilder inner(context);
    inner.setInsertionPointToEnd(block);
    Value both = op1(inner, nameOf(form.layout.reducer, type.getElementType()),
                     {block->getArgument(0), block->getArgument(1)}, scalar, loc, {});
    OperationState end(loc, "stablehlo.return");
    end.addOperands(both);
    inner.create(end);
    result = builder.create(state)->getResult(0);
    break;
  }
  }
  result = scaleBy(result, form.scale, update);
  return completed[value] = result;
}

/// An op of the update, on values of the whole batch.
void BatchSplitter::behind(Operation *op) {
  IRMapping mapping;
  bool isWide = false, hasWeights = false;
  Refusal why;
  std::optional<ShardingRule> rule = getShardingRule(op);
  for (Value value : getUsedValues(op)) {
    auto it = forms.find(value);
    if (auto known = wide.find(value); known != wide.end() && !why.op)
      why = known->second;
    bool isOfWhole = it != forms.end() && ofWhole.contains(it->second.value);
    if (isOfWhole && !why.op)
      why = ofWhole[it->second.value];
    isWide |= wide.contains(value) || isOfWhole || (it != forms.end() && it->second.isSplit());
    hasWeights |= it != forms.end() && it->second.isPlain() && !isOfWhole;
    mapping.map(value, complete(value));
  }
  if (isWide && !why.op)
    why = last.op ? last : Refusal{op, "needs all examples of the batch at once", ""};
  // Layers are for micro-batches, and gradients go back from one barrier.
  bool isRefused = rule && rule->heavy && hasWeights;
  if (isWide && phaseOf(op) == "backward") {
    isRefused |= !mayMeet;
    for (Value value : getUsedValues(op))
      if (mayMeet && isBehindBarrier(mapping.lookup(value))) {
        isRefused = true;
        joinBefore(value);
      }
  }
  if (isWide && isRefused && !refusal.op)
    refusal = why;
  Operation *made = top().builder.clone(*op, mapping);
  made->removeAttr(attr::eqn);
  for (NamedAttribute attribute : phaseAttributes(true))
    made->setAttr(attribute.getName(), attribute.getValue());
  for (auto [old, value] : llvm::zip_equal(op->getResults(), made->getResults())) {
    completed[old] = value;
    if (isWide)
      wide[old] = why;
  }
}

void BatchSplitter::visit(Operation *op) {
  // The update's work on what loops made beside parts is done once, too.
  bool isLate = phaseOf(op) == "update" && llvm::any_of(getUsedValues(op), [&](Value value) {
                  return mixed.contains(forms.lookup(value).value);
                });
  if (splitsDraws && succeeded(cutDraw(op)))
    return;
  if (!isLate && (joinRearranged(op) || cloneWhole(op)))
    return;
  bool anySplit = false, anyLoose = false, anyEstimate = false;
  for (Value value : getUsedValues(op)) {
    auto it = forms.find(value);
    if (it == forms.end())
      continue;
    anySplit |= it->second.isSplit();
    anyLoose |= it->second.isUnreduced() || !it->second.scale.empty();
    anyEstimate |= it->second.layout.kind == Layout::Estimate;
  }
  // Sums of the backward pass go on as terms. Those of the forward pass, as a metric, are
  // completed, and so is what the update reads.
  StringRef phase = phaseOf(op);
  bool isEarly = anySplit || (phase == "backward" && anyLoose) ||
                 (phase != "update" && (anyEstimate || semantics == Semantics::Independent)) ||
                 isa<hlo::OptimizationBarrierOp>(op) || isLayerOfWhole(op);
  last = {};
  if (isEarly && !known.joined.contains(op) && succeeded(inMicroBatch(op)))
    return takeFromWhole(op);
  behind(op);
}

/// Results leave as they are made where they are sums or parts of dimension 0.
LogicalResult BatchSplitter::finish() {
  auto end = cast<func::ReturnOp>(main.front().getTerminator());
  DenseSet<int64_t> carried;
  for (BlockArgument arg : main.getArguments())
    if (auto next = main.getArgAttrOfType<IntegerAttr>(arg.getArgNumber(), attr::carriedBy))
      carried.insert(next.getInt());
  SmallVector<Value> results;
  SmallVector<StringRef> reductions;
  for (OpOperand &operand : end->getOpOperands()) {
    Value value = operand.get();
    auto it = forms.find(value);
    StringRef reduction;
    if (it == forms.end() || carried.contains(operand.getOperandNumber())) {
      results.push_back(complete(value));
    } else if (const Form form = it->second;
               form.isSplit() && form.layout == Layout::split(0, 1) && form.scale.empty()) {
      results.push_back(form.value);
      reduction = "concat";
    } else {
      results.push_back(complete(value));
    }
    reductions.push_back(reduction);
  }
  OperationState state(end.getLoc(), "func.return");
  state.addOperands(results);
  top().builder.create(state);
  for (auto [i, reduction] : llvm::enumerate(reductions)) {
    if (reduction.empty())
      main.removeResultAttr(i, StringAttr::get(context, attr::reduction));
    else
      main.setResultAttr(i, attr::reduction, StringAttr::get(context, reduction));
  }
  return success();
}

/// Of the ops behind the micro-batches those of which micro-batches read what comes.
DenseSet<Operation *> BatchSplitter::findMet() {
  DenseSet<Operation *> met;
  for (Operation &op : llvm::reverse(*out))
    if (op.hasAttr(kLate) && llvm::any_of(op.getResults(), [&](Value value) {
          return llvm::any_of(getUsers(value), [&](Operation *user) {
            return met.contains(user) || !runsLate(user);
          });
        }))
      met.insert(&op);
  return met;
}

/// Phases of what was made: what only the update reads is of the update if it is the
/// same for all micro-batches, and what micro-batches read is not. What was completed for
/// micro-batches is the barrier; what they make of it comes behind it, as gradients do.
void BatchSplitter::relabel() {
  enum Rank { Forward, Barrier, Backward, Update };
  static constexpr llvm::StringLiteral names[] = {"forward", "barrier", "backward", "update"};
  auto rankOf = [&](Operation *op) {
    return Rank(llvm::find(names, phaseOf(op)) - std::begin(names));
  };
  auto set = [&](Operation *op, Rank rank, int64_t eqn) {
    op->setAttr(attr::phase, StringAttr::get(context, names[rank]));
    if (rank == Update)
      op->removeAttr(attr::eqn);
    else
      op->setAttr(attr::eqn, IntegerAttr::get(IntegerType::get(context, 64), eqn));
  };
  auto eqnOf = [&](Operation *op) {
    auto eqn = op->getAttrOfType<IntegerAttr>(attr::eqn);
    return eqn ? eqn.getInt() : int64_t(0);
  };
  int64_t lastEqn = 0;
  for (Operation &op : *out)
    if (!runsLate(&op) && rankOf(&op) == Forward)
      lastEqn = std::max(lastEqn, eqnOf(&op));
  DenseSet<Operation *> met = findMet(), feedsBarrier;
  for (Operation &op : llvm::reverse(*out)) {
    if (runsLate(&op))
      continue;
    for (Value value : op.getResults())
      for (Operation *user : getUsers(value))
        if (met.contains(user) || feedsBarrier.contains(user))
          feedsBarrier.insert(&op);
  }
  DenseSet<Value> tainted;
  for (BlockArgument arg : main.getArguments())
    if (!isStateArgument(arg))
      tainted.insert(arg);
  for (Operation &op : *out) {
    bool isMet = met.contains(&op);
    if (runsLate(&op) && !isMet)
      continue;
    Rank rank = Forward;
    std::optional<int64_t> eqn;
    bool isTainted = isMet, readsParts = false;
    for (Value value : getUsedValues(&op)) {
      isTainted |= tainted.contains(value);
      Operation *source = value.getDefiningOp();
      if (!source || !tainted.contains(value))
        continue;
      readsParts |= !met.contains(source);
      Rank other = met.contains(source) ? Backward : rankOf(source);
      if (other > rank)
        eqn.reset();
      rank = std::max(rank, other);
      if (other == rank)
        eqn = !eqn               ? eqnOf(source)
              : rank == Backward ? std::min(*eqn, eqnOf(source))
                                 : std::max(*eqn, eqnOf(source));
    }
    if (!isTainted)
      continue;
    tainted.insert(op.result_begin(), op.result_end());
    if (isMet) {
      set(&op, Barrier, lastEqn);
      if (readsParts)
        barriers.push_back(StringAttr::get(context, placeOf(&op)));
    } else if (feedsBarrier.contains(&op) && rankOf(&op) != Forward) {
      set(&op, Forward, eqn.value_or(0));
    } else if (rankOf(&op) == Update || rankOf(&op) < rank) {
      set(&op, rank, eqn.value_or(0));
    }
  }
  eraseUnused(*out); // In branches and loops, what was made of the whole batch beside each part.
  for (Operation &op : llvm::reverse(*out)) {
    if (runsLate(&op))
      continue;
    if (llvm::any_of(op.getResults(), [&](Value value) { return tainted.contains(value); }))
      continue;
    Operation *first = nullptr;
    for (Value value : op.getResults())
      for (Operation *user : getUsers(value))
        if ((!runsLate(user) || met.contains(user)) && rankOf(user) < Update &&
            (!first || rankOf(user) < rankOf(first) ||
             (rankOf(user) == rankOf(first) && user->isBeforeInBlock(first))))
          first = user;
    if (!first)
      set(&op, Update, 0);
    else if (rankOf(&op) == Update || rankOf(&op) > rankOf(first))
      set(&op, rankOf(first), eqnOf(first));
  }
  for (Operation &op : *out)
    op.removeAttr(kLate);
}

/// Whether all that reads joined values runs when they are: micro-batches would find zeros for
/// the rows of others.
bool BatchSplitter::readsPartsLate() {
  return llvm::all_of(parts, [&](Value part) {
    return part.getParentBlock() != out || llvm::all_of(getUsers(part), runsLate);
  });
}

/// What the barrier completes of what micro-batches made behind it: there would have to be another
/// one. What they read of it on the way there has to be joined, then.
void BatchSplitter::joinBeforeBarrier() {
  DenseSet<Value> again;
  for (Operation *op : findMet())
    for (Value value : getUsedValues(op))
      if (Operation *source = value.getDefiningOp();
          source && !runsLate(source) && isBehindBarrier(value))
        again.insert(value);
  if (again.empty())
    return;
  size_t known = found.joined.size();
  Operation *first = nullptr;
  // Completed ones may be made of it by one op more.
  auto isAgain = [&](Value made) {
    Operation *op = made.getDefiningOp();
    return again.contains(made) ||
           (op && op->hasAttr(kLate) && llvm::any_of(op->getOperands(), [&](Value operand) {
              return again.contains(operand);
            }));
  };
  for (Operation &op : main.front().without_terminator())
    for (Value value : op.getResults())
      if (auto form = forms.find(value);
          form != forms.end() && (again.contains(form->second.value) ||
                                  isAgain(completed.lookup_or(value, form->second.value)))) {
        first = first ? first : &op;
        joinBefore(value);
      }
  if (found.joined.size() == known)
    refusal = {first ? first : &main.front().front(),
               "needs a value of the whole batch that follows from another one", ""};
}

/// Whether micro-batches read what was completed. Where they do not, all that couples
/// examples ran in the update, on the whole batch, and micro-batches save nothing.
bool BatchSplitter::hasBarrier() {
  return llvm::any_of(*out, [](Operation &op) {
    return !runsLate(&op) && llvm::any_of(getUsedValues(&op), [](Value value) {
      Operation *source = value.getDefiningOp();
      return source && source->hasAttr(kLate);
    });
  });
}

/// Refuses where products of weights with examples are there, and all that reads examples runs
/// once, on the whole batch.
void BatchSplitter::findWork(Block &before) {
  auto isReadEarly = [](Value value) { return !llvm::all_of(getUsers(value), runsLate); };
  if (isReadEarly(number) || llvm::any_of(before.getArguments(), [&](BlockArgument arg) {
        return !isStateArgument(arg) && isReadEarly(forms[arg].value);
      }))
    return;
  DenseSet<Value> ofState, ofBatch;
  for (BlockArgument arg : before.getArguments())
    (isStateArgument(arg) ? ofState : ofBatch).insert(arg);
  for (Operation &op : before.without_terminator()) {
    SmallVector<Value> used = getUsedValues(&op);
    auto isOf = [&](const DenseSet<Value> &values) {
      return llvm::any_of(used, [&](Value value) { return values.contains(value); });
    };
    bool readsState = isOf(ofState), readsBatch = isOf(ofBatch);
    std::optional<ShardingRule> rule = analysis::getShardingRule(&op);
    if (readsState && readsBatch && rule && rule->heavy && isOfPhase(&op, "forward")) {
      refusal = {
          &op,
          ("`" + op.getName().getStringRef() +
           "` would run once, on the whole batch, like all that reads the batch, and no "
           "micro-batch would do anything")
              .str(),
          wantedBlocks > 1
              ? llvm::formatv("the step computes by itself on each of {0} blocks of the batch's "
                              "rows: use {1}",
                              wantedBlocks, numbersForBlocks())
                    .str()
              : "use one micro-batch, or read all rows of the batch alike; where the step cuts its "
                "batch into parts, use a number of micro-batches that divides theirs"};
      return;
    }
    if (readsState)
      ofState.insert(op.result_begin(), op.result_end());
    if (readsBatch)
      ofBatch.insert(op.result_begin(), op.result_end());
  }
}

LogicalResult BatchSplitter::run() {
  Block &before = main.front();
  out = new Block();
  main.getBody().push_back(out);
  scopes.push_back({OpBuilder::atBlockEnd(out), {}});
  active = &top();
  wantsEstimates = semantics != Semantics::Exact;
  wantedBlocks = known.blocks;
  for (BlockArgument arg : before.getArguments()) {
    Layout layout;
    auto kind = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::kind);
    if (kind && kind.getValue() == "batch")
      layout = Layout::split(0, 1);
    forms[arg] = {out->addArgument(localType(arg, layout), arg.getLoc()), layout, {}};
  }
  auto numberType =
      RankedTensorType::get({1}, IntegerType::get(context, 32, IntegerType::Unsigned));
  number = out->addArgument(numberType, main.getLoc());
  // Parts of blocks are cut out of the whole: rows of an argument come one after another.
  for (BlockArgument arg : before.getArguments())
    if (known.blocks > 1 && forms[arg].isSplit()) {
      Layout layout = Layout::split(0, known.blocks);
      forms[arg] = {cut(repeated(arg), layout, top(), phaseAttributes(false)), layout, {}};
    }
  for (Operation &op : before.without_terminator()) {
    visit(&op);
    if (refusal.op)
      break;
  }
  if (!refusal.op)
    findWork(before);
  if (refusal.op && wantedBlocks != known.blocks && canShareBlocks(wantedBlocks))
    found.blocks = wantedBlocks;
  else if (refusal.op && wantedBlocks != 1 && isa<hlo::ReshapeOp>(refusal.op))
    nameBlocks();
  bool isComplete = !refusal.op && succeeded(finish());
  if (isComplete && !readsPartsLate())
    refusal = {&before.front(), "internal error: micro-batches read what is not joined yet",
               "use one micro-batch"};
  size_t joined = found.joined.size();
  if (isComplete && mayMeet && !refusal.op)
    joinBeforeBarrier();
  bool isGood =
      !refusal.op && isComplete && found.joined.size() == joined && (!mayMeet || hasBarrier());
  if (isGood) {
    found.joined = known.joined; // More was not needed in the end.
    findTwice();
  }
  if (!isGood || found != known) {
    out->erase();
    return failure();
  }
  SmallVector<DictionaryAttr> arguments;
  main.getAllArgAttrs(arguments);
  bool isNumbered = !number.use_empty();
  if (isNumbered) {
    NamedAttrList attributes;
    attributes.set(attr::kind, StringAttr::get(context, "batch"));
    attributes.set(attr::perMicroBatch, UnitAttr::get(context));
    attributes.set(attr::name, StringAttr::get(context, "micro_batch"));
    arguments.push_back(attributes.getDictionary(context));
  }
  for (BlockArgument arg : wholeArguments) {
    NamedAttrList attributes;
    StringRef name;
    if (auto given = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::name))
      name = given.getValue();
    attributes.set(attr::kind, StringAttr::get(context, "state"));
    attributes.set(attr::name, StringAttr::get(context, name + " (whole)"));
    attributes.set(attr::wholeOf, StringAttr::get(context, name));
    arguments.push_back(attributes.getDictionary(context));
  }
  if (!isNumbered)
    out->eraseArgument(number.getArgNumber());
  before.erase();
  main.setFunctionType(
      FunctionType::get(context, out->getArgumentTypes(), out->getTerminator()->getOperandTypes()));
  main.setAllArgAttrs(arguments);
  relabel();
  // Where a micro-batch's part begins, every reader finds by itself.
  DenseSet<Operation *> places;
  for (Operation &op : out->without_terminator()) {
    bool isOfNumber = false, isPlace = op.getNumResults() == 1 && op.getNumRegions() == 0 &&
                                       typeOf(op.getResult(0)).getNumElements() == 1;
    for (Value operand : op.getOperands()) {
      Operation *source = operand.getDefiningOp();
      bool isNumber = isNumbered && (operand == number || places.contains(source));
      isOfNumber |= isNumber;
      isPlace &= isNumber || (source && isConstantLike(source));
    }
    if (isPlace && isOfNumber)
      places.insert(&op);
  }
  repeatForReaders(main, {attr::phase, attr::eqn},
                   [&](Operation *op) { return places.contains(op) || isConstantLike(op); });
  return success();
}

/// Reads in the backward phase what the forward phase has already, of small values: where layers
/// are computed again for their gradients (`jax.checkpoint`), so are statistics over the batch (of
/// a balance loss), which would need all examples a second time.
static void keepStatistics(func::FuncOp main) {
  constexpr int64_t kMostElements = 4096;
  constexpr auto kFlags = static_cast<OperationEquivalence::Flags>(
      OperationEquivalence::IgnoreLocations | OperationEquivalence::IgnoreDiscardableAttrs);
  llvm::DenseMap<Value, Value> same; // By a value the first one that is equal to it.
  auto first = [&](Value value) {
    Value known = same.lookup(value);
    return known ? known : value;
  };
  llvm::DenseMap<size_t, SmallVector<Operation *, 1>> known; // By hash.
  for (Operation &op : main.getBody().front()) {
    if (isa<hlo::OptimizationBarrierOp>(op) || analysis::keepsPrecision(&op)) {
      for (auto [operand, result] : llvm::zip_equal(op.getOperands(), op.getResults()))
        same[result] = first(operand);
      continue;
    }
    if (op.getNumOperands() == 0 || op.getNumResults() == 0 || !isMemoryEffectFree(&op) ||
        isa<hlo::RngOp>(op))
      continue;
    size_t hash = OperationEquivalence::computeHash(
        &op, [&](Value value) { return llvm::hash_value(first(value).getAsOpaquePointer()); },
        OperationEquivalence::ignoreHashValue, kFlags);
    SmallVector<Operation *, 1> &likely = known[hash];
    auto found = llvm::find_if(likely, [&](Operation *other) {
      llvm::DenseMap<Value, Value> inner;
      return OperationEquivalence::isEquivalentTo(
          other, &op,
          [&](Value a, Value b) { return success(first(a) == first(b) || inner.lookup(a) == b); },
          [&](Value a, Value b) { inner[a] = b; }, kFlags);
    });
    if (found == likely.end()) {
      likely.push_back(&op);
      continue;
    }
    bool isAgain = isOfPhase(*found, "forward") && isOfPhase(&op, "backward");
    for (auto [earlier, result] : llvm::zip_equal((*found)->getResults(), op.getResults())) {
      same[result] = first(earlier);
      if (isAgain && typeOf(result).getNumElements() <= kMostElements)
        result.replaceAllUsesWith(earlier);
    }
  }
}

namespace {

class AlpaSplitBatchPass : public importer::impl::AlpaSplitBatchBase<AlpaSplitBatchPass> {
public:
  using AlpaSplitBatchBase::AlpaSplitBatchBase;

  void runOnOperation() override {
    if (failed(run()))
      signalPassFailure();
  }

private:
  LogicalResult run() {
    ModuleOp module = getOperation();
    auto main = module.lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration())
      return emitError(module.getLoc(), "the module has no function @main to split");
    if (!main.getBody().hasOneBlock())
      return emitError(main.getLoc(), "@main must have one block");
    for (Operation &op : main.front())
      if (isOfPhase(&op, "prepare"))
        return op.emitOpError("prepares a weight; split the batch before alpa-prepare-weights");
    std::optional<Semantics> wanted = llvm::StringSwitch<std::optional<Semantics>>(semantics)
                                          .Case("exact", Semantics::Exact)
                                          .Case("relaxed", Semantics::Relaxed)
                                          .Case("independent", Semantics::Independent)
                                          .Default(std::nullopt);
    if (!wanted)
      return emitError(module.getLoc(), "option `semantics`: expected exact, relaxed or "
                                        "independent, got `")
             << semantics << "`";
    if (microBatches < 1)
      return emitError(module.getLoc(), "option `micro-batches`: expected 1 or more, got ")
             << microBatches.getValue();
    if (microBatches == 1)
      return success();
    bringConstantsIn(main);
    for (BlockArgument arg : main.getArguments()) {
      if (isStateArgument(arg))
        continue;
      auto type = llvm::dyn_cast<RankedTensorType>(arg.getType());
      if (!type || type.getRank() == 0)
        return withCode(emitError(module.getLoc()), ErrorCode::MicroBatches)
               << nameOfArgument(main, arg) << " of type " << arg.getType()
               << " has no rows that micro-batches could share";
      if (int64_t rows = type.getDimSize(0); rows == 0 || rows % microBatches)
        return withCode(emitError(module.getLoc()), ErrorCode::MicroBatches)
               << nameOfArgument(main, arg) << " has " << rows << " rows, which "
               << microBatches.getValue() << " micro-batches do not divide";
    }
    // One pass where that is exact; else what is allowed instead of a barrier, or that.
    using Freedom = BatchSplitter::Freedom;
    SmallVector<Freedom> tries;
    bool mayMeet = *wanted != Semantics::Independent && allowBarrier;
    if (*wanted != Semantics::Independent)
      tries.append({Freedom(), {Semantics::Exact, /*mayMeet=*/false, /*splitsDraws=*/false}});
    if (*wanted != Semantics::Exact)
      tries.push_back({*wanted});
    if (mayMeet)
      tries.append({{Semantics::Exact, /*mayMeet=*/true},
                    {Semantics::Exact, /*mayMeet=*/true, /*splitsDraws=*/false}});
    Refusal refusal;
    bool hasDraws = false, hasKept = false;
    std::optional<analysis::Draws> draws(main);
    for (const Freedom &freedom : tries) {
      if (!freedom.splitsDraws && !hasDraws)
        continue; // As before.
      if (freedom.mayMeet && !std::exchange(hasKept, true)) {
        keepStatistics(main);
        draws.emplace(main);
      }
      BatchSplitter::Findings known;
      Refusal why;
      for (bool knowsMore = true; knowsMore;) {
        BatchSplitter splitter(main, *draws, microBatches, freedom, widenSums, known);
        if (succeeded(splitter.run())) {
          report(module, splitter);
          return success();
        }
        hasDraws |= splitter.hasSplitDraws;
        why = splitter.refusal;
        knowsMore = splitter.found != known;
        known = std::move(splitter.found);
      }
      if (!refusal.op)
        refusal = why;
    }
    if (!refusal.fix.empty())
      return withError(refusal.op->emitError(),
                       makeError(ErrorCode::MicroBatches, refusal.text, refusal.fix));
    return withCode(refusal.op->emitError(), ErrorCode::MicroBatches)
           << "`" << refusal.op->getName() << "` " << refusal.text
           << ": the step couples examples, "
           << "and " << microBatches.getValue()
           << " micro-batches would give other results than the whole batch"
           << (mayMeet ? ", also with a barrier between forward and backward runs" : "")
           << refusal.hint;
  }

  static std::string nameOfArgument(func::FuncOp main, BlockArgument arg) {
    if (auto name = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::name))
      return ("batch argument " + name.getValue()).str();
    return ("batch argument " + Twine(arg.getArgNumber())).str();
  }

  void report(ModuleOp module, BatchSplitter &splitter) {
    Builder builder(&getContext());
    NamedAttrList entries;
    auto add = [&](StringRef name, ArrayRef<Attribute> places) {
      llvm::SmallSetVector<Attribute, 8> once(places.begin(), places.end());
      entries.set(name, builder.getArrayAttr(once.getArrayRef()));
    };
    entries.set("exact", builder.getBoolAttr(splitter.estimates.empty()));
    add("sums", splitter.sums);
    add("scales", splitter.scales);
    add("joins", splitter.joins);
    add("repeats", splitter.repeats);
    add("barriers", splitter.barriers);
    add("estimates", splitter.estimates);
    module->setAttr(attr::microBatches, entries.getDictionary(&getContext()));
    numSums += splitter.sums.size();
    numScales += splitter.scales.size();
    numJoins += splitter.joins.size();
  }
};

} // namespace
