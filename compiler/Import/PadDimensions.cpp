//===- PadDimensions.cpp - dimensions that devices divide -----------------===//
//
// Sharding rules split what divides evenly. A dimension of 50,257 words or 25 heads is
// made longer here where more devices could share its work then. Dimensions that ops walk
// through by one factor are a class, and are padded together: the padding is made where
// values enter the class, holds anything inside of it, is left out of reductions by what
// changes nothing in them, and is cut off where values leave.
//
//===----------------------------------------------------------------------===//

#include "compiler/Analysis/Calls/AttentionCall.h"
#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Import/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Chlo/ChloOps.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/IntEqClasses.h"
#include "llvm/ADT/SmallBitVector.h"
#include <map>
#include <numeric>

namespace alpa::importer {
#define GEN_PASS_DEF_ALPAPADDIMENSIONS
#include "compiler/Import/Passes.h.inc"
} // namespace alpa::importer

using namespace mlir;
using namespace alpa;
namespace hlo = mlir::stablehlo;
using analysis::FactorKind;
using analysis::shapeOf;
using analysis::ShardingRule;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

/// Whether the op's rule also says what it does with tensors that are longer along a factor:
/// each place of the factor is worked on by itself, or the op is a reduction that masks can
/// keep from the padding. Kernels, random bits and products of groups are not.
static bool takesPadding(Operation *op) {
  if (analysis::isElementwiseName(op->getName().getStringRef()))
    return true;
  if (isa<hlo::CustomCallOp>(op))
    return analysis::AttentionCall::read(op).has_value();
  return isa<hlo::BroadcastInDimOp, hlo::TransposeOp, hlo::ReshapeOp, hlo::SliceOp,
             hlo::DynamicSliceOp, hlo::DynamicUpdateSliceOp, hlo::PadOp, hlo::ConcatenateOp,
             hlo::ReverseOp, hlo::SortOp, hlo::DotGeneralOp, hlo::ConvolutionOp, hlo::ReduceOp,
             hlo::ReduceWindowOp, hlo::SelectAndScatterOp, hlo::GatherOp, hlo::ScatterOp,
             hlo::OptimizationBarrierOp, hlo::BitcastConvertOp, chlo::TopKOp>(op);
}

namespace {

/// A set of dimensions, one bit for each.
using Dims = llvm::SmallBitVector;

/// Which dimensions are of one class, and which classes are padded.
class PadClasses {
public:
  explicit PadClasses(func::FuncOp main) : main(main) {}

  void find();
  struct Class {
    int64_t count = 0; // The greatest number that divides all of its dimensions.
    int64_t padded = 0;
    double flops = 0;  // Of dots, convolutions and attention that have it as a factor.
    int64_t align = 1; // What dots with their rows along it want to divide it.
    bool isOfBatch = false;
  };
  std::vector<Class> &all() { return classes; }
  double totalFlops() const { return flops; }

  /// Dimensions of the value that are of padded classes.
  Dims wanted(Value value) const;
  /// Those of them that whoever makes the value makes longer.
  Dims native(Value value) const;
  /// Those that an operand of the op must have.
  Dims taken(Operation *op, unsigned operand) const;
  int64_t paddedSize(Value value, unsigned dim) const;

private:
  struct Blocked { // Dimensions that an op does not take, or make, any longer.
    SmallVector<Dims> operands, results;
  };
  ArrayRef<unsigned> dims(Value value) const { return numbers.find(value)->second; }
  void number(Value value);
  void numberAll(Region &region);
  void join(Value a, Value b);
  void visit(Operation *op);
  void visitLoop(hlo::WhileOp loop);
  unsigned classOf(Value value, unsigned dim) const { return joined[dims(value)[dim]]; }

  func::FuncOp main;
  llvm::DenseMap<Value, SmallVector<unsigned, 4>> numbers;
  std::vector<int64_t> sizes;
  std::vector<std::pair<unsigned, unsigned>> joins;
  llvm::DenseMap<Operation *, Blocked> blocked;
  std::vector<std::pair<unsigned, double>> work;     // Dimension and flops.
  std::vector<std::pair<unsigned, int64_t>> rows;    // Dimension and what should divide it.
  std::vector<std::pair<unsigned, int64_t>> factors; // Dimension and the factor's size.
  llvm::IntEqClasses joined;
  std::vector<Class> classes;
  double flops = 0;
};

} // namespace

void PadClasses::number(Value value) {
  SmallVector<unsigned, 4> &places = numbers[value];
  for (int64_t size : shapeOf(value)) {
    places.push_back(sizes.size());
    sizes.push_back(size);
  }
}

void PadClasses::numberAll(Region &region) {
  for (Block &block : region) {
    for (BlockArgument argument : block.getArguments())
      number(argument);
    for (Operation &op : block) {
      for (Value result : op.getResults())
        number(result);
      for (Region &inner : op.getRegions())
        numberAll(inner);
    }
  }
}

void PadClasses::join(Value a, Value b) {
  for (auto [x, y] : llvm::zip_equal(dims(a), dims(b)))
    joins.push_back({x, y});
}

void PadClasses::visitLoop(hlo::WhileOp loop) {
  for (auto [i, operand] : llvm::enumerate(loop->getOperands())) {
    join(operand, loop->getResult(i));
    for (Region &region : loop->getRegions())
      join(operand, region.front().getArgument(i));
  }
  Operation *end = loop->getRegion(1).front().getTerminator();
  for (auto [operand, next] : llvm::zip_equal(loop->getOperands(), end->getOperands()))
    join(operand, next);
  for (Region &region : loop->getRegions())
    for (Operation &op : region.front().without_terminator())
      visit(&op);
}

void PadClasses::visit(Operation *op) {
  if (auto loop = dyn_cast<hlo::WhileOp>(op))
    return visitLoop(loop);
  if (isa<hlo::CaseOp>(op)) {
    for (Region &region : op->getRegions()) {
      for (auto [result, given] :
           llvm::zip_equal(op->getResults(), region.front().getTerminator()->getOperands()))
        join(result, given);
      for (Operation &inner : region.front().without_terminator())
        visit(&inner);
    }
    // The index is a scalar.
    return;
  }
  Blocked kept;
  for (Value operand : op->getOperands())
    kept.operands.emplace_back(shapeOf(operand).size(), true);
  for (Value result : op->getResults())
    kept.results.emplace_back(shapeOf(result).size(), true);
  std::optional<ShardingRule> rule;
  auto constant = dyn_cast<hlo::ConstantOp>(op);
  bool isDense = constant && !cast<ElementsAttr>(constant.getValue()).isSplat();
  if (takesPadding(op) && !isDense)
    rule = analysis::getShardingRule(op);
  double work = rule && rule->heavy ? analysis::getFlops(op) : 0;
  for (Operation *around = op->getParentOp(); work && around != main;
       around = around->getParentOp())
    if (isa<hlo::WhileOp>(around))
      work *= analysis::getTripCount(around);
  flops += work;
  if (rule) {
    struct Place {
      Value value;
      unsigned dim;
      Dims *blocked;
      bool isMajor;
    };
    std::vector<SmallVector<Place>> places(rule->factors.size());
    auto add = [&](auto values, const auto &tensors, SmallVectorImpl<Dims> &blocks) {
      for (auto [value, tensor, block] : llvm::zip_equal(values, tensors, blocks))
        for (auto [dim, made] : llvm::enumerate(tensor))
          for (auto [i, factor] : llvm::enumerate(made))
            places[factor].push_back({value, static_cast<unsigned>(dim), &block, i == 0});
    };
    add(op->getOperands(), rule->operands, kept.operands);
    add(op->getResults(), rule->results, kept.results);
    for (auto [index, factor, where] : llvm::enumerate(rule->factors, places)) {
      // What others than sums make of zeros in place of padding is not known.
      bool isWalked = factor.kind == FactorKind::Parallel ||
                      (factor.kind == FactorKind::Reduction && !rule->isMixed(index));
      if (!isWalked || factor.size <= 1 ||
          !llvm::all_of(where, [](const Place &place) { return place.isMajor; }))
        continue;
      for (const Place &place : where) {
        place.blocked->reset(place.dim);
        unsigned element = dims(place.value)[place.dim];
        joins.push_back({dims(where[0].value)[where[0].dim], element});
        factors.push_back({element, factor.size});
      }
      if (work)
        this->work.push_back({dims(where[0].value)[where[0].dim], work});
    }
  }
  if (rule && isa<hlo::DotGeneralOp>(op))
    for (Value value : {op->getOperand(0), op->getOperand(1), Value(op->getResult(0))}) {
      RankedTensorType type = typeOf(value);
      int64_t align = 128 / std::max(8u, analysis::getElementBits(type));
      int64_t last = type.getRank() - 1; // Whose size is not 1.
      while (last >= 0 && type.getDimSize(last) == 1)
        --last;
      if (last >= 0 && align >= 8 && type.getDimSize(last) % align)
        rows.push_back({dims(value)[last], align});
    }
  blocked[op] = std::move(kept);
}

void PadClasses::find() {
  numberAll(main.getBody());
  for (Operation &op : main.getBody().front().without_terminator())
    visit(&op);
  joined.grow(sizes.size());
  for (auto [a, b] : joins)
    joined.join(a, b);
  joined.compress();
  classes.resize(joined.getNumClasses());
  for (auto [i, size] : llvm::enumerate(sizes)) {
    int64_t &count = classes[joined[i]].count;
    count = std::gcd(count, size);
  }
  for (auto [element, size] : factors) {
    int64_t &count = classes[joined[element]].count;
    count = std::gcd(count, size);
  }
  for (auto [element, flops] : work)
    classes[joined[element]].flops += flops;
  for (auto [element, align] : rows)
    classes[joined[element]].align = std::max(classes[joined[element]].align, align);
  for (BlockArgument argument : main.getArguments()) {
    auto kind = main.getArgAttrOfType<StringAttr>(argument.getArgNumber(), attr::kind);
    if (kind && kind.getValue() == "batch" && !shapeOf(argument).empty())
      classes[classOf(argument, 0)].isOfBatch = true;
  }
  for (Class &each : classes)
    each.padded = each.count;
}

Dims PadClasses::wanted(Value value) const {
  Dims found(shapeOf(value).size());
  for (unsigned dim = 0; dim < found.size(); ++dim) {
    const Class &each = classes[classOf(value, dim)];
    found[dim] = each.padded != each.count;
  }
  return found;
}

Dims PadClasses::native(Value value) const {
  Dims found = wanted(value);
  if (auto result = dyn_cast<OpResult>(value)) {
    auto it = blocked.find(result.getOwner());
    if (it != blocked.end())
      found.reset(it->second.results[result.getResultNumber()]);
  } else if (cast<BlockArgument>(value).getOwner()->getParentOp() == main) {
    found.reset();
  }
  return found;
}

Dims PadClasses::taken(Operation *op, unsigned operand) const {
  Dims found = wanted(op->getOperand(operand));
  auto it = blocked.find(op);
  if (it != blocked.end())
    found.reset(it->second.operands[operand]);
  return found;
}

int64_t PadClasses::paddedSize(Value value, unsigned dim) const {
  const Class &each = classes[classOf(value, dim)];
  return each.count == 0 ? 0 : shapeOf(value)[dim] / each.count * each.padded;
}

//===----------------------------------------------------------------------===//
// Writing the longer program
//===----------------------------------------------------------------------===//

namespace {

class Padder {
public:
  Padder(func::FuncOp main, const PadClasses &classes)
      : main(main), classes(classes), builder(main.getContext()) {}

  void run();
  unsigned numPads = 0, numMasks = 0;

private:
  void write(Block &from);
  void write(Operation *op);
  void writeRegions(Operation *op, Operation *made);
  /// The value, longer along exactly these of its dimensions, for `user`.
  Value use(Value value, const Dims &dims, Operation *user);
  Value change(Value made, Value value, const Dims &has, const Dims &wants, Operation *user);
  /// A long value with `scalar` in its padding along one dimension.
  Value masked(Value made, unsigned dim, int64_t size, DenseElementsAttr scalar, Operation *user);
  /// Zeros that an op moves along with the dimension that they pad.
  void passZeros(Operation *op, ValueRange operands, ValueRange results);
  void maskReductions(Operation *op, SmallVectorImpl<Value> &operands);
  void clampIndices(hlo::GatherOp gather, SmallVectorImpl<Value> &operands);
  RankedTensorType typeFor(Value value, const Dims &dims) const;
  template <typename Op, typename... Args> Value make(Operation *user, Args &&...args) {
    auto op = Op::create(builder, user->getLoc(), std::forward<Args>(args)...);
    return say(op, user)->getResult(0);
  }
  /// An op of the user's phase and equation.
  Operation *say(Operation *op, Operation *user) const;
  static Operation *inMain(Operation *op, func::FuncOp main) {
    while (op->getParentOp() != main)
      op = op->getParentOp();
    return op;
  }

  func::FuncOp main;
  const PadClasses &classes;
  OpBuilder builder;
  IRMapping mapping; // To values that are long where their makers make them so.
  /// By value, dimensions, phase and equation: what `use` has made in the block of main.
  std::map<std::tuple<const void *, std::vector<bool>, const void *, const void *>, Value> known;
  llvm::DenseSet<std::pair<Value, unsigned>> zeros; // Padding that is zero.
};

} // namespace

Operation *Padder::say(Operation *op, Operation *user) const {
  for (StringRef name : {attr::phase, attr::eqn})
    if (Attribute value = user->getAttr(name))
      op->setAttr(name, value);
  return op;
}

RankedTensorType Padder::typeFor(Value value, const Dims &dims) const {
  SmallVector<int64_t> shape(shapeOf(value));
  for (unsigned dim : dims.set_bits())
    shape[dim] = classes.paddedSize(value, dim);
  return typeOf(value).clone(shape);
}

Value Padder::change(Value made, Value value, const Dims &has, const Dims &wants, Operation *user) {
  size_t rank = has.size();
  Dims cut = has, grown = wants;
  cut.reset(wants);
  grown.reset(has);
  if (cut.any()) {
    SmallVector<int64_t> limits(shapeOf(made));
    for (unsigned dim : cut.set_bits())
      limits[dim] = shapeOf(value)[dim];
    auto type = typeOf(made).clone(limits);
    Value whole = made;
    made = make<hlo::SliceOp>(user, type, made,
                              builder.getDenseI64ArrayAttr(SmallVector<int64_t>(rank, 0)),
                              builder.getDenseI64ArrayAttr(limits),
                              builder.getDenseI64ArrayAttr(SmallVector<int64_t>(rank, 1)));
    for (unsigned dim = 0; dim < rank; ++dim)
      if (!cut[dim] && zeros.contains({whole, dim}))
        zeros.insert({made, dim});
  }
  if (grown.any()) {
    SmallVector<int64_t> high(rank, 0), none(rank, 0), shape(shapeOf(made));
    for (unsigned dim : grown.set_bits()) {
      shape[dim] = classes.paddedSize(value, dim);
      high[dim] = shape[dim] - shapeOf(made)[dim];
    }
    auto type = typeOf(made).clone(shape);
    Value zero = make<hlo::ConstantOp>(
        user,
        cast<ElementsAttr>(analysis::splatOf(0, RankedTensorType::get({}, type.getElementType()))));
    Value part = made;
    made = make<hlo::PadOp>(user, type, made, zero, builder.getDenseI64ArrayAttr(none),
                            builder.getDenseI64ArrayAttr(high), builder.getDenseI64ArrayAttr(none));
    for (unsigned dim = 0; dim < rank; ++dim)
      if (grown[dim] || zeros.contains({part, dim}))
        zeros.insert({made, dim});
    ++numPads;
  }
  return made;
}

Value Padder::use(Value value, const Dims &dims, Operation *user) {
  Value made = mapping.lookup(value);
  Dims has = classes.native(value);
  if (has == dims)
    return made;
  if (value.getParentRegion() != &main.getBody())
    return change(made, value, has, dims, user);
  Operation *around = inMain(user, main);
  std::vector<bool> bits;
  for (unsigned dim = 0; dim < dims.size(); ++dim)
    bits.push_back(dims[dim]);
  auto key = std::make_tuple(value.getAsOpaquePointer(), bits,
                             around->getAttr(attr::phase).getAsOpaquePointer(),
                             around->getAttr(attr::eqn).getAsOpaquePointer());
  Value &found = known[key];
  if (!found) {
    OpBuilder::InsertionGuard guard(builder);
    if (around != user) { // In front of the loop, in whose new body the builder is.
      Block *body = builder.getInsertionBlock();
      Operation *loop = body->getParentOp();
      while (loop->getParentOp() != main)
        loop = loop->getParentOp();
      builder.setInsertionPoint(loop);
    }
    found = change(made, value, has, dims, around);
  }
  return found;
}

Value Padder::masked(Value made, unsigned dim, int64_t size, DenseElementsAttr scalar,
                     Operation *user) {
  RankedTensorType type = typeOf(made);
  ++numMasks;
  auto i32 = type.clone(builder.getI32Type());
  Value place = make<hlo::IotaOp>(user, i32, builder.getI64IntegerAttr(dim));
  Value end = make<hlo::ConstantOp>(user, cast<ElementsAttr>(analysis::splatOf(size, i32)));
  OperationState compare(user->getLoc(), hlo::CompareOp::getOperationName());
  compare.addOperands({place, end});
  compare.addTypes(type.clone(builder.getI1Type()));
  compare.addAttribute(
      "comparison_direction",
      hlo::ComparisonDirectionAttr::get(builder.getContext(), hlo::ComparisonDirection::LT));
  Value isInside = say(builder.create(compare), user)->getResult(0);
  Value other = make<hlo::ConstantOp>(user, cast<ElementsAttr>(scalar.resizeSplat(type)));
  OperationState select(user->getLoc(), hlo::SelectOp::getOperationName(), {isInside, made, other},
                        {type});
  return say(builder.create(select), user)->getResult(0);
}

/// What goes into a reduction over a padded dimension: nothing of the padding.
void Padder::maskReductions(Operation *op, SmallVectorImpl<Value> &operands) {
  std::optional<ShardingRule> rule = analysis::getShardingRule(op);
  if (!rule || isa<hlo::GatherOp>(op)) // A gather picks; its indices are kept from the padding.
    return;
  bool isProduct = isa<hlo::DotGeneralOp, hlo::ConvolutionOp>(op);
  for (auto [i, tensor] : llvm::enumerate(rule->operands)) {
    // Places of updates that bring nothing do not matter.
    if (isa<hlo::ScatterOp>(op) && i == 1)
      continue;
    Dims taken = classes.taken(op, i);
    for (unsigned dim : taken.set_bits()) {
      const analysis::Factor &factor = rule->factors[tensor[dim][0]];
      if (factor.kind != FactorKind::Reduction || (isProduct && zeros.contains({operands[i], dim})))
        continue;
      Type element = typeOf(operands[i]).getElementType();
      DenseElementsAttr neutral = isProduct
                                      ? analysis::splatOf(0, RankedTensorType::get({}, element))
                                      : analysis::neutralOf(factor.reducer, element);
      operands[i] = masked(operands[i], dim, shapeOf(op->getOperand(i))[dim], neutral, op);
    }
  }
}

/// An index beyond the end means the last element.
void Padder::clampIndices(hlo::GatherOp gather, SmallVectorImpl<Value> &operands) {
  auto numbers = gather.getDimensionNumbers();
  RankedTensorType type = typeOf(operands[1]);
  auto element = cast<IntegerType>(type.getElementType());
  APInt most = element.isUnsigned() ? APInt::getMaxValue(element.getWidth())
                                    : APInt::getSignedMaxValue(element.getWidth());
  SmallVector<APInt> limits(numbers.getStartIndexMap().size(), most);
  Dims taken = classes.taken(gather, 0);
  bool isAny = false;
  for (auto [limit, dim] : llvm::zip_equal(limits, numbers.getStartIndexMap())) {
    int64_t last = shapeOf(gather.getOperand())[dim] - 1;
    if (gather.getSliceSizes()[dim] != 1 || !taken[dim] ||
        most.getActiveBits() < APInt(64, last).getActiveBits())
      continue;
    limit = APInt(element.getWidth(), last);
    isAny = true;
  }
  if (!isAny)
    return;
  int64_t vector = numbers.getIndexVectorDim();
  bool hasVector = vector < type.getRank();
  auto small = RankedTensorType::get(
      hasVector ? ArrayRef<int64_t>(static_cast<int64_t>(limits.size())) : ArrayRef<int64_t>(),
      element);
  Value least = make<hlo::ConstantOp>(
      gather, cast<ElementsAttr>(DenseElementsAttr(DenseIntElementsAttr::get(small, limits))));
  least = make<hlo::BroadcastInDimOp>(
      gather, type, least,
      builder.getDenseI64ArrayAttr(hasVector ? ArrayRef<int64_t>(vector) : ArrayRef<int64_t>()));
  OperationState state(gather.getLoc(), hlo::MinOp::getOperationName(), {operands[1], least},
                       {type});
  operands[1] = say(builder.create(state), gather)->getResult(0);
}

void Padder::writeRegions(Operation *op, Operation *made) {
  OpBuilder::InsertionGuard guard(builder);
  for (auto [region, longer] : llvm::zip_equal(op->getRegions(), made->getRegions())) {
    Block *block = builder.createBlock(&longer);
    for (BlockArgument argument : region.getArguments())
      mapping.map(argument, block->addArgument(typeFor(argument, classes.wanted(argument)),
                                               argument.getLoc()));
    write(region.front());
    Operation *end = region.front().getTerminator();
    SmallVector<Value> results;
    // The condition of a loop gives a truth value, which has no dimensions.
    for (Value result : end->getOperands())
      results.push_back(use(result, classes.wanted(result), end));
    builder.clone(*end, mapping)->setOperands(results);
  }
}

void Padder::write(Operation *op) {
  auto isTensor = [](Value value) { return isa<RankedTensorType>(value.getType()); };
  if (isa<hlo::WhileOp, hlo::CaseOp>(op)) {
    SmallVector<Value> operands;
    for (Value operand : op->getOperands())
      operands.push_back(isTensor(operand) ? use(operand, classes.wanted(operand), op)
                                           : mapping.lookup(operand));
    Operation *made = builder.cloneWithoutRegions(*op, mapping);
    made->setOperands(operands);
    for (auto [result, longer] : llvm::zip_equal(op->getResults(), made->getResults()))
      if (isTensor(result))
        longer.setType(typeFor(result, classes.wanted(result)));
    writeRegions(op, made);
    mapping.map(op->getResults(), made->getResults());
    return;
  }
  bool isPadded = false;
  SmallVector<Value> operands;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (!isTensor(operand)) {
      operands.push_back(mapping.lookup(operand));
      continue;
    }
    Dims taken = classes.taken(op, i);
    isPadded |= taken.any();
    operands.push_back(use(operand, taken, op));
  }
  for (Value result : op->getResults())
    isPadded |= classes.native(result).any();
  if (isPadded) {
    maskReductions(op, operands);
    if (auto gather = dyn_cast<hlo::GatherOp>(op))
      clampIndices(gather, operands);
  }
  Operation *made = builder.clone(*op, mapping);
  made->setOperands(operands);
  for (auto [result, longer] : llvm::zip_equal(op->getResults(), made->getResults())) {
    mapping.map(result, longer);
    if (!isPadded || !isTensor(result))
      continue;
    longer.setType(typeFor(result, classes.native(result)));
  }
  if (!isPadded)
    return;
  analysis::fitSizes(made, op);
  // Indices in the padding are neither in order nor apart.
  unsigned indices = isa<hlo::GatherOp>(op) ? 1 : op->getNumResults();
  if (isa<hlo::GatherOp, hlo::ScatterOp>(op) && classes.taken(op, indices).any())
    for (StringRef name : {"indices_are_sorted", "unique_indices"})
      if (made->hasAttr(name))
        made->setAttr(name, builder.getBoolAttr(false));
  if (auto constant = dyn_cast<hlo::ConstantOp>(made)) {
    auto value = cast<DenseElementsAttr>(constant.getValue());
    constant->setAttr("value", value.resizeSplat(typeOf(constant->getResult(0))));
  }
  passZeros(op, operands, made->getResults());
}

/// Dimensions that begin with one factor have their padding in common.
void Padder::passZeros(Operation *op, ValueRange operands, ValueRange results) {
  if (!isa<hlo::ConvertOp, hlo::NegOp, hlo::OptimizationBarrierOp, hlo::TransposeOp,
           hlo::ReshapeOp>(op))
    return;
  std::optional<ShardingRule> rule = analysis::getShardingRule(op);
  llvm::SmallDenseSet<unsigned> ofZeros; // Factors, each of one operand.
  for (auto [operand, tensor] : llvm::zip_equal(operands, rule->operands))
    for (auto [dim, factors] : llvm::enumerate(tensor))
      if (!factors.empty() && zeros.contains({operand, static_cast<unsigned>(dim)}))
        ofZeros.insert(factors[0]);
  for (auto [result, tensor] : llvm::zip_equal(results, rule->results))
    for (auto [dim, factors] : llvm::enumerate(tensor))
      if (!factors.empty() && ofZeros.contains(factors[0]))
        zeros.insert({result, static_cast<unsigned>(dim)});
}

void Padder::write(Block &from) {
  for (Operation &op : from.without_terminator())
    write(&op);
}

void Padder::run() {
  Block &body = main.getBody().front();
  Block *longer = builder.createBlock(&main.getBody(), main.getBody().end());
  for (BlockArgument argument : body.getArguments())
    mapping.map(argument, longer->addArgument(argument.getType(), argument.getLoc()));
  write(body);
  Operation *end = body.getTerminator();
  SmallVector<Value> results;
  for (Value result : end->getOperands()) {
    Operation *source = result.getDefiningOp();
    Dims none(shapeOf(result).size());
    // Cut off in the phase that made it.
    results.push_back(use(result, none, source ? source : end));
  }
  builder.clone(*end, mapping)->setOperands(results);
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(body))) {
    op.dropAllUses();
    op.erase();
  }
  body.erase();
}

//===----------------------------------------------------------------------===//
// Which classes are padded, and how far
//===----------------------------------------------------------------------===//

/// How much longer products take with rows of no multiple of 16 bytes, of 3 to 4 measured.
static constexpr double kUnaligned = 3;

/// The size that lets most devices share the work, for the least of it, with rows that `align`
/// divides on each of them; `count` where none is better by a tenth.
static int64_t bestSize(int64_t count, ArrayRef<int64_t> parts, int64_t align, double mostWaste) {
  // Part of the work that the slowest device has.
  auto share = [&](int64_t size, int64_t part) {
    double waste = static_cast<double>(size) / static_cast<double>(count);
    return waste / static_cast<double>(part) * (size % (part * align) == 0 ? 1 : kUnaligned);
  };
  SmallVector<int64_t> all(1, 1);
  llvm::copy_if(parts, std::back_inserter(all), [](int64_t part) { return part > 1; });
  double best = std::numeric_limits<double>::infinity();
  for (int64_t part : all)
    if (count % part == 0)
      best = std::min(best, 0.9 * share(count, part));
  int64_t chosen = count;
  for (int64_t part : all)
    for (int64_t unit : {part, part * align}) {
      int64_t padded = llvm::divideCeil(count, unit) * unit;
      bool isLittle = static_cast<double>(padded - count) <= mostWaste * static_cast<double>(count);
      if (padded == count || !isLittle || share(padded, part) >= best)
        continue;
      best = share(padded, part);
      chosen = padded;
    }
  return chosen;
}

namespace {

class AlpaPadDimensionsPass : public importer::impl::AlpaPadDimensionsBase<AlpaPadDimensionsPass> {
public:
  using AlpaPadDimensionsBase::AlpaPadDimensionsBase;

  void runOnOperation() override {
    auto main = getOperation().lookupSymbol<func::FuncOp>("main");
    if (!main || !main.getBody().hasOneBlock())
      return;
    PadClasses classes(main);
    classes.find();
    SmallVector<std::string> said;
    unsigned numPadded = 0;
    if (auto before = getOperation()->getAttrOfType<ArrayAttr>(attr::padded))
      for (StringAttr text : before.getAsRange<StringAttr>())
        said.push_back(text.str());
    for (PadClasses::Class &each : classes.all()) {
      if (each.count < 2 || each.flops < minShare * classes.totalFlops() || each.flops == 0 ||
          (onlyBatch && !each.isOfBatch))
        continue;
      each.padded = bestSize(each.count, parts, alignsRows ? each.align : 1, mostWaste);
      if (each.padded == each.count)
        continue;
      ++numPadded;
      std::string from = std::to_string(each.count);
      // A run before may have begun with less.
      for (std::string &text : said)
        if (StringRef(text).ends_with(" to " + from))
          from = StringRef(text).take_until([](char c) { return c == ' '; }).str();
      llvm::erase_if(said, [&](StringRef text) {
        return text.starts_with(from + " to ") &&
               text.ends_with(" to " + std::to_string(each.count));
      });
      said.push_back(from + " to " + std::to_string(each.padded));
    }
    if (numPadded == 0)
      return;
    numClasses = numPadded;
    llvm::sort(said);
    said.erase(llvm::unique(said), said.end());
    SmallVector<StringRef> texts(said.begin(), said.end());
    getOperation()->setAttr(attr::padded, Builder(&getContext()).getStrArrayAttr(texts));
    Padder padder(main, classes);
    padder.run();
    numPads = padder.numPads;
    numMasks = padder.numMasks;
  }
};

} // namespace
