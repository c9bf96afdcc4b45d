//===- SplitStacked.cpp - stacks of layers into their layers --------------===//

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Analysis/ShardingRule.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Import/Passes.h"
#include "compiler/Import/StackedRows.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

namespace alpa::importer {
#define GEN_PASS_DEF_ALPASPLITSTACKED
#include "compiler/Import/Passes.h.inc"
} // namespace alpa::importer

using namespace alpa;
using namespace alpa::importer;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Which tensors are split into their layers
//===----------------------------------------------------------------------===//

namespace {

/// The tensors of @main that are stacks of layers: state whose single rows are read,
/// concatenations of single rows, and what is connected with these by ops that work by
/// row or from step to step. Only stacks that hold state or are made of parts count.
class StackedValues {
public:
  explicit StackedValues(func::FuncOp main);

  bool contains(Value value) const { return values.contains(value); }
  bool empty() const { return values.empty(); }

private:
  void grow(Value seed);
  void visit(Value value, llvm::SmallVectorImpl<Value> &next);

  func::FuncOp main;
  llvm::DenseSet<Value> values, seen;
  llvm::DenseMap<Value, llvm::SmallVector<Value, 1>> nextSteps; // Both ways.
};

} // namespace

namespace hlo = mlir::stablehlo;

static int64_t rowsIn(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.getRank() > 0 ? type.getDimSize(0) : 1;
}

/// Ops that say nothing about dimension 0 apart from their types (and a slice's limits).
static bool isSplittableKind(Operation *op) {
  StringRef name = op->getName().getStringRef();
  if (auto constant = dyn_cast<hlo::ConstantOp>(op)) {
    auto value = dyn_cast<DenseElementsAttr>(constant.getValue());
    return value && value.isSplat();
  }
  if (auto iota = dyn_cast<hlo::IotaOp>(op))
    return iota.getIotaDimension() != 0;
  if (name.starts_with("chlo.")) // One number for one number.
    return op->getNumRegions() == 0 && llvm::all_of(op->getOperandTypes(), [&](Type type) {
             return getElementTypeOrSelf(type).isFloat() &&
                    cast<ShapedType>(type).getShape() ==
                        cast<ShapedType>(op->getResult(0).getType()).getShape();
           });
  return analysis::isElementwiseName(name) || op->hasAttr(attr::pin) ||
         isa<hlo::BroadcastInDimOp, hlo::ReshapeOp, hlo::TransposeOp, hlo::DotGeneralOp,
             hlo::SliceOp, hlo::PadOp, hlo::ConcatenateOp, hlo::ReverseOp, hlo::ReduceOp,
             hlo::BitcastConvertOp>(op);
}

/// Whether a pin leaves rows together; those of a constraint, which a plan may drop, do not.
static bool pinsRows(Operation *op) {
  auto pin = op->getAttrOfType<ShardingAttr>(attr::pin);
  return pin && !pin.getSpec().dims.empty() && !pin.getSpec().dims[0].empty() &&
         !op->getParentOfType<ModuleOp>()->hasAttr(attr::pinAxes);
}

/// A pin of a stack as one of a row.
static ShardingAttr pinOfRow(ShardingAttr pin) {
  ShardingSpec spec = pin.getSpec();
  if (!spec.dims.empty())
    spec.dims[0].clear();
  return ShardingAttr::get(pin.getContext(), spec);
}

/// The rule, if all results have one and the same parallel factor as their dimension 0,
/// and no operand has it anywhere else.
static std::optional<analysis::ShardingRule> rowRule(Operation *op, unsigned &rows) {
  if (op->getNumResults() == 0 || rowsIn(op->getResult(0)) < 2 || pinsRows(op) ||
      !isSplittableKind(op))
    return std::nullopt;
  std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
  if (!rule || rule->results[0].empty() || rule->results[0][0].size() != 1)
    return std::nullopt;
  rows = rule->results[0][0][0];
  const analysis::Factor &factor = rule->factors[rows];
  if (factor.kind != analysis::FactorKind::Parallel || factor.size != rowsIn(op->getResult(0)))
    return std::nullopt;
  auto fits = [&](const analysis::TensorFactors &tensor, bool isNeeded) {
    for (auto [dim, factors] : llvm::enumerate(tensor)) {
      bool has = llvm::is_contained(factors, rows);
      if (has && (dim != 0 || factors.size() != 1))
        return false;
      if (dim == 0 && isNeeded && !has)
        return false;
    }
    return !tensor.empty() || !isNeeded;
  };
  for (const analysis::TensorFactors &tensor : rule->operands)
    if (!fits(tensor, false))
      return std::nullopt;
  for (const analysis::TensorFactors &tensor : rule->results)
    if (!fits(tensor, true))
      return std::nullopt;
  return rule;
}

/// Whether each row of dimension 0 of the op's results follows from the same rows of those
/// operands that have them: an op that can be written once for each row.
static bool worksByRow(Operation *op) {
  unsigned rows;
  return rowRule(op, rows).has_value();
}

/// For an op that works by row: the operands that have the rows.
static SmallVector<unsigned> operandsWithRows(Operation *op) {
  SmallVector<unsigned> found;
  unsigned rows;
  if (std::optional<analysis::ShardingRule> rule = rowRule(op, rows))
    for (auto [index, tensor] : llvm::enumerate(rule->operands))
      if (!tensor.empty() && llvm::is_contained(tensor[0], rows))
        found.push_back(index);
  return found;
}

/// Whether an argument of @main may become one argument for each row.
static bool canSplitArgument(func::FuncOp main, Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  if (!argument || rowsIn(value) < 2)
    return false;
  auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind);
  auto pinned = main.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(), attr::sharding);
  return (!kind || kind.getValue() == "state") &&
         (!pinned || pinned.getSpec().dims.empty() || pinned.getSpec().dims[0].empty());
}

StackedValues::StackedValues(func::FuncOp main) : main(main) {
  Block &body = main.getBody().front();
  for (BlockArgument argument : body.getArguments())
    if (auto carried =
            main.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), attr::carriedBy)) {
      Value next = body.getTerminator()->getOperand(carried.getInt());
      nextSteps[argument].push_back(next);
      nextSteps[next].push_back(argument);
    }
  SmallVector<Value> seeds;
  llvm::MapVector<Value, llvm::BitVector> rowsRead;
  for (Operation &op : body.without_terminator()) {
    if (isStack(&op))
      seeds.push_back(op.getResult(0));
    if (std::optional<int64_t> row = takenRow(&op)) {
      llvm::BitVector &rows = rowsRead[op.getOperand(0)];
      rows.resize(rowsIn(op.getOperand(0)));
      rows.set(*row);
    }
  }
  for (auto &[value, rows] : rowsRead)
    if (rows.all())
      seeds.push_back(value);
  for (Value seed : seeds)
    if (!seen.contains(seed))
      grow(seed);
}

void StackedValues::grow(Value seed) {
  SmallVector<Value> found{seed};
  seen.insert(seed);
  bool counts = false;
  for (size_t i = 0; i < found.size(); ++i) {
    Value value = found[i];
    Operation *op = value.getDefiningOp();
    counts |= op ? isStack(op) : canSplitArgument(main, value);
    visit(value, found);
  }
  if (counts)
    values.insert(found.begin(), found.end());
}

void StackedValues::visit(Value value, SmallVectorImpl<Value> &next) {
  auto add = [&](Value other) {
    if (seen.insert(other).second)
      next.push_back(other);
  };
  auto connect = [&](Operation *op) {
    SmallVector<unsigned> operands = operandsWithRows(op);
    bool isThrough = llvm::is_contained(op->getResults(), value) ||
                     llvm::any_of(operands, [&](unsigned i) { return op->getOperand(i) == value; });
    if (!isThrough)
      return;
    for (unsigned index : operands)
      add(op->getOperand(index));
    for (Value result : op->getResults())
      add(result);
  };
  if (Operation *op = value.getDefiningOp(); op && !isStack(op) && worksByRow(op))
    connect(op);
  for (Operation *user : value.getUsers())
    if (user->getBlock() == &main.getBody().front() && !takenRow(user) && worksByRow(user))
      connect(user);
  for (Value other : nextSteps.lookup(value))
    add(other);
}

//===----------------------------------------------------------------------===//
// Stacks of layers into their layers
//===----------------------------------------------------------------------===//

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

static RankedTensorType rowType(RankedTensorType type) {
  SmallVector<int64_t> shape(type.getShape());
  shape[0] = 1;
  return type.clone(shape);
}

/// Phase and equation of an op, for what is made in its place.
static DictionaryAttr attributesOf(Operation *op) {
  NamedAttrList attributes;
  for (StringRef name : {StringRef(attr::phase), StringRef(attr::eqn)})
    if (Attribute value = op->getAttr(name))
      attributes.set(name, value);
  if (attributes.empty()) // The terminator.
    attributes.set(attr::phase, StringAttr::get(op->getContext(), "update"));
  return attributes.getDictionary(op->getContext());
}

/// The op that a reduction over dimension 0 puts two values together with, if the
/// reduction may be done in parts.
static Operation *findReducer(Operation *op) {
  auto reduce = dyn_cast<hlo::ReduceOp>(op);
  if (!reduce || op->getNumResults() != 1 || !llvm::is_contained(reduce.getDimensions(), 0))
    return nullptr;
  std::optional<analysis::Reducer> reducer = analysis::reducerOf(op->getRegion(0));
  return reducer && analysis::isNeutral(op->getOperand(1), *reducer)
             ? &op->getRegion(0).front().front()
             : nullptr;
}

namespace {

class Splitter {
public:
  Splitter(func::FuncOp main, const StackedValues &stacked)
      : main(main), body(main.getBody().front()), stacked(stacked), builder(main.getContext()) {}

  void run();

  unsigned numArguments = 0, numOps = 0;

private:
  void splitArguments();
  void visit(Operation *op);
  void splitByRow(Operation *op);
  bool reduceByRow(Operation *op);
  void useWhole(Operation *op);
  void splitResults(unsigned oldArguments);
  void moveToReaders();
  Value rowOf(Value value, int64_t row, Operation *reader);
  Value wholeOf(Value value, Operation *reader);

  struct Given { // An argument or a result of the new @main.
    unsigned index = 0;
    int64_t row = -1;
  };
  DictionaryAttr attributesOfPart(DictionaryAttr old, StringRef of, Given part);

  func::FuncOp main;
  Block &body;
  const StackedValues &stacked;
  OpBuilder builder;
  llvm::DenseMap<Value, SmallVector<Value>> parts;
  llvm::DenseMap<std::pair<Value, Attribute>, Value> wholes;
  llvm::DenseMap<std::pair<Value, Attribute>, SmallVector<Value>> slices;
  SmallVector<Operation *> replaced, made;
  SmallVector<unsigned> splitArgs;
};

} // namespace

void Splitter::run() {
  unsigned oldArguments = main.getNumArguments();
  splitArguments();
  for (Operation &op : llvm::make_early_inc_range(body.without_terminator()))
    visit(&op);
  moveToReaders();
  splitResults(oldArguments);
}

/// New arguments stand behind the old ones until these are gone.
void Splitter::splitArguments() {
  for (unsigned index = 0, e = main.getNumArguments(); index < e; ++index) {
    BlockArgument argument = body.getArgument(index);
    if (!stacked.contains(argument) || !canSplitArgument(main, argument))
      continue;
    splitArgs.push_back(index);
    ++numArguments;
    for (int64_t row = 0, rows = typeOf(argument).getDimSize(0); row < rows; ++row)
      parts[argument].push_back(body.addArgument(rowType(typeOf(argument)), argument.getLoc()));
  }
}

void Splitter::visit(Operation *op) {
  if (isStack(op) && stacked.contains(op->getResult(0))) {
    for (Value part : op->getOperands())
      parts[op->getResult(0)].push_back(part);
    replaced.push_back(op);
    return;
  }
  if (std::optional<int64_t> row = takenRow(op); row && stacked.contains(op->getOperand(0))) {
    if (!parts.contains(op->getOperand(0)))
      return; // Taken from what is made as a whole.
    op->getResult(0).replaceAllUsesWith(parts[op->getOperand(0)][*row]);
    replaced.push_back(op);
    return;
  }
  if (op->getNumResults() > 0 && stacked.contains(op->getResult(0)) && worksByRow(op))
    return splitByRow(op);
  if (!reduceByRow(op))
    useWhole(op);
}

Value Splitter::rowOf(Value value, int64_t row, Operation *reader) {
  if (auto it = parts.find(value); it != parts.end())
    return it->second[row];
  SmallVector<Value> &rows = slices[{value, attributesOf(reader)}];
  if (rows.empty())
    for (int64_t i = 0, e = typeOf(value).getDimSize(0); i < e; ++i)
      rows.push_back(rowsOf(builder, value, i, 1, attributesOf(reader), reader->getLoc()));
  return rows[row];
}

void Splitter::splitByRow(Operation *op) {
  builder.setInsertionPoint(op);
  SmallVector<unsigned> withRows = operandsWithRows(op);
  int64_t rows = typeOf(op->getResult(0)).getDimSize(0);
  for (Value result : op->getResults())
    parts[result].reserve(rows);
  for (auto [index, operand] : llvm::enumerate(op->getOperands()))
    if (!llvm::is_contained(withRows, index) && parts.contains(operand))
      op->setOperand(index, wholeOf(operand, op));
  for (int64_t row = 0; row < rows; ++row) {
    if (row > 0 && withRows.empty() &&
        isSplatLike(op)) { // One for all; layers repeat it where they are.
      for (Value result : op->getResults())
        parts[result].push_back(parts[result][0]);
      continue;
    }
    SmallVector<Value> operands; // Their slices stand before the copy.
    for (unsigned index : withRows)
      operands.push_back(rowOf(op->getOperand(index), row, op));
    Operation *copy = builder.clone(*op);
    for (auto [index, operand] : llvm::zip_equal(withRows, operands))
      copy->setOperand(index, operand);
    for (Value result : copy->getResults())
      result.setType(rowType(typeOf(result)));
    if (auto pin = copy->getAttrOfType<ShardingAttr>(attr::pin))
      copy->setAttr(attr::pin, pinOfRow(pin));
    if (auto slice = dyn_cast<hlo::SliceOp>(copy)) {
      SmallVector<int64_t> limits(slice.getLimitIndices());
      limits[0] = 1;
      slice.setLimitIndices(limits);
    }
    if (auto constant = dyn_cast<hlo::ConstantOp>(copy))
      constant.setValueAttr(cast<ElementsAttr>(
          cast<DenseElementsAttr>(constant.getValue()).resizeSplat(typeOf(constant))));
    for (auto [result, part] : llvm::zip_equal(op->getResults(), copy->getResults()))
      parts[result].push_back(part);
    made.push_back(copy);
  }
  replaced.push_back(op);
  ++numOps;
}

bool Splitter::reduceByRow(Operation *op) {
  Operation *reducer =
      op->getNumOperands() == 2 && parts.contains(op->getOperand(0)) ? findReducer(op) : nullptr;
  if (!reducer)
    return false;
  builder.setInsertionPoint(op);
  Value sum;
  for (Value part : parts[op->getOperand(0)]) {
    Operation *copy = builder.clone(*op);
    copy->setOperand(0, part);
    if (!sum) {
      sum = copy->getResult(0);
      continue;
    }
    OperationState state(op->getLoc(), reducer->getName());
    state.addOperands({sum, copy->getResult(0)});
    state.addTypes(sum.getType());
    Operation *add = builder.create(state);
    add->setDiscardableAttrs(attributesOf(op));
    sum = add->getResult(0);
  }
  op->getResult(0).replaceAllUsesWith(sum);
  replaced.push_back(op);
  ++numOps;
  return true;
}

Value Splitter::wholeOf(Value value, Operation *reader) {
  Value &whole = wholes[{value, attributesOf(reader)}];
  if (!whole) {
    auto concat =
        hlo::ConcatenateOp::create(builder, reader->getLoc(), value.getType(), parts[value], 0);
    concat->setDiscardableAttrs(attributesOf(reader));
    whole = concat;
  }
  return whole;
}

void Splitter::useWhole(Operation *op) {
  builder.setInsertionPoint(op);
  for (Value value : getUsedValues(op)) {
    if (!parts.contains(value))
      continue;
    Value whole = wholeOf(value, op);
    op->walk([&](Operation *inner) { inner->replaceUsesOfWith(value, whole); });
  }
}

/// Rows of weights that are prepared before the first layer belong to their layer, and so do
/// gradients that are treated after the last one.
void Splitter::moveToReaders() {
  auto eqnOf = [](Operation *op) { return op->getAttrOfType<IntegerAttr>(attr::eqn); };
  auto isOf = [](Operation *op, StringRef phase) {
    auto attribute = op->getAttrOfType<StringAttr>(attr::phase);
    return attribute && attribute.getValue() == phase;
  };
  auto least = [&](IntegerAttr &found, Operation *op) {
    IntegerAttr eqn = eqnOf(op);
    if (eqn && (!found || eqn.getInt() < found.getInt()))
      found = eqn;
  };
  for (Operation *op : llvm::reverse(made)) {
    IntegerAttr eqn;
    if (isOf(op, "forward"))
      for (Operation *user : getUsers(op->getResult(0)))
        if (isOf(user, "forward"))
          least(eqn, user);
    if (eqn)
      op->setAttr(attr::eqn, eqn);
  }
  for (Operation *op : made) {
    IntegerAttr eqn;
    if (isOf(op, "backward"))
      for (Value value : getUsedValues(op))
        if (Operation *source = value.getDefiningOp(); source && isOf(source, "backward"))
          least(eqn, source);
    if (eqn)
      op->setAttr(attr::eqn, eqn);
  }
}

DictionaryAttr Splitter::attributesOfPart(DictionaryAttr old, StringRef of, Given part) {
  NamedAttrList attributes(old);
  if (auto name = old.getAs<StringAttr>(attr::name))
    attributes.set(attr::name,
                   builder.getStringAttr(name.getValue() + "[" + Twine(part.row) + "]"));
  if (auto pin = old.getAs<ShardingAttr>(attr::pin))
    attributes.set(attr::pin, pinOfRow(pin));
  attributes.set(attr::piece,
                 builder.getDictionaryAttr(
                     {builder.getNamedAttr(of, builder.getI64IntegerAttr(part.index)),
                      builder.getNamedAttr("offset", builder.getI64IntegerAttr(part.row)),
                      builder.getNamedAttr("size", builder.getI64IntegerAttr(1))}));
  return attributes.getDictionary(builder.getContext());
}

void Splitter::splitResults(unsigned oldArguments) {
  Operation *end = body.getTerminator();
  builder.setInsertionPoint(end);
  SmallVector<Value> returned;
  SmallVector<DictionaryAttr> resultAttrs, argAttrs;
  SmallVector<unsigned> firstOfResult;
  llvm::SmallDenseSet<int64_t> splitCarriers; // Only what a split argument is next.
  for (unsigned arg : splitArgs)
    if (auto carried = main.getArgAttrOfType<IntegerAttr>(arg, attr::carriedBy))
      splitCarriers.insert(carried.getInt());
  for (auto [index, value] : llvm::enumerate(end->getOperands())) {
    firstOfResult.push_back(returned.size());
    DictionaryAttr attributes = main.getResultAttrDict(index);
    attributes = attributes ? attributes : builder.getDictionaryAttr({});
    Operation *source = value.getDefiningOp();
    if (splitCarriers.contains(index)) {
      for (int64_t row = 0, rows = typeOf(value).getDimSize(0); row < rows; ++row) {
        returned.push_back(rowOf(value, row, source ? source : end));
        resultAttrs.push_back(attributesOfPart(attributes, "result", {unsigned(index), row}));
      }
      continue;
    }
    returned.push_back(parts.contains(value) ? wholeOf(value, source ? source : end) : value);
    resultAttrs.push_back(attributes);
  }
  end->setOperands(returned);

  // The arguments in their order, parts in the place of their stack.
  SmallVector<Value> order;
  for (unsigned index = 0; index < oldArguments; ++index) {
    BlockArgument argument = body.getArgument(index);
    DictionaryAttr attributes = main.getArgAttrDict(index);
    attributes = attributes ? attributes : builder.getDictionaryAttr({});
    auto carried = attributes.getAs<IntegerAttr>(attr::carriedBy);
    auto withCarrier = [&](DictionaryAttr old, int64_t row) {
      if (!carried)
        return old;
      NamedAttrList list(old);
      list.set(attr::carriedBy, builder.getI64IntegerAttr(firstOfResult[carried.getInt()] + row));
      return list.getDictionary(builder.getContext());
    };
    auto it = parts.find(argument);
    if (it == parts.end()) {
      order.push_back(argument);
      argAttrs.push_back(withCarrier(attributes, 0));
      continue;
    }
    for (auto [row, part] : llvm::enumerate(it->second)) {
      order.push_back(part);
      argAttrs.push_back(
          withCarrier(attributesOfPart(attributes, "argument", {index, int64_t(row)}), row));
    }
  }
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
  unsigned known = body.getNumArguments();
  for (Value value : order)
    value.replaceAllUsesWith(body.addArgument(value.getType(), value.getLoc()));
  body.eraseArguments(0, known);
  main.setFunctionType(builder.getFunctionType(body.getArgumentTypes(), end->getOperandTypes()));
  main.setAllArgAttrs(argAttrs);
  main.setAllResultAttrs(resultAttrs);
}

namespace {

struct AlpaSplitStackedPass : importer::impl::AlpaSplitStackedBase<AlpaSplitStackedPass> {
  using AlpaSplitStackedBase::AlpaSplitStackedBase;

  void runOnOperation() override {
    auto main = getOperation().lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration()) {
      emitError(getOperation().getLoc(), "the module has no function @main");
      return signalPassFailure();
    }
    StackedValues stacked(main);
    if (stacked.empty())
      return;
    Splitter splitter(main, stacked);
    splitter.run();
    numArguments += splitter.numArguments;
    numOps += splitter.numOps;
  }
};

} // namespace
