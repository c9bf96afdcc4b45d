//===- DataFlow.cpp - data flow between the ops of @main ------------------===//

#include "compiler/Import/DataFlow.h"

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/ShardingRule.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallPtrSet.h"

using namespace mlir;
using namespace alpa;
using namespace alpa::importer;

SmallVector<Value> importer::getUsedValues(Operation *op) {
  llvm::SetVector<Value> values(op->operand_begin(), op->operand_end());
  if (op->getNumRegions() > 0)
    getUsedValuesDefinedAbove(op->getRegions(), values);
  return values.takeVector();
}

SmallVector<Operation *> importer::getUsers(Value value) {
  llvm::SetVector<Operation *> users;
  Block *block = value.getParentBlock();
  for (Operation *user : value.getUsers())
    if (Operation *ancestor = block->findAncestorOpInBlock(*user))
      users.insert(ancestor);
  return users.takeVector();
}

void importer::eraseUnused(Block &block) {
  // Backwards, so that what only they read goes with them.
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block))) {
    if (isOpTriviallyDead(&op)) {
      op.erase();
      continue;
    }
    for (Region &region : op.getRegions())
      for (Block &inner : region)
        eraseUnused(inner);
  }
}

bool importer::isConstantLike(Operation *op) {
  llvm::StringRef name = op->getName().getStringRef();
  if (name == "stablehlo.constant" || name == "stablehlo.iota")
    return true;
  if (name != "stablehlo.broadcast_in_dim" && name != "stablehlo.reshape")
    return false;
  Operation *source = op->getOperand(0).getDefiningOp();
  return source && isConstantLike(source);
}

bool importer::isSplatLike(Operation *op) {
  if (isConstantLike(op))
    return true;
  llvm::StringRef name = op->getName().getStringRef();
  if (name != "stablehlo.broadcast_in_dim" && name != "stablehlo.reshape")
    return false;
  auto type = dyn_cast<RankedTensorType>(op->getOperand(0).getType());
  return type && type.getNumElements() == 1;
}

void importer::repeatForReaders(func::FuncOp main, ArrayRef<StringRef> attributes,
                                llvm::function_ref<bool(Operation *)> which) {
  Block &body = main.getBody().front();
  SmallVector<Operation *> selected;
  llvm::DenseMap<Operation *, unsigned> places; // A copy has that of the op behind it.
  for (Operation &op : body) {
    places[&op] = places.size();
    if (!op.hasTrait<OpTrait::IsTerminator>() && which(&op))
      selected.push_back(&op);
  }
  // The order that a block knows would be found anew after a few copies.
  auto isBefore = [&](Operation *a, Operation *b) {
    unsigned place = places.lookup(a);
    if (place != places.lookup(b))
      return place < places.lookup(b);
    for (Operation *next = a->getNextNode(); next && places.lookup(next) == place;
         next = next->getNextNode())
      if (next == b)
        return true;
    return false;
  };
  // Readers come last, so going backwards each op's readers are settled.
  for (Operation *op : llvm::reverse(selected)) {
    struct Group {
      Operation *first = nullptr;
      SmallVector<OpOperand *> uses;
    };
    llvm::MapVector<Attribute, Group> groups;
    for (OpOperand &use : op->getUses()) {
      Operation *user = body.findAncestorOpInBlock(*use.getOwner());
      Operation *pattern = user->hasTrait<OpTrait::IsTerminator>() ? op : user;
      NamedAttrList key;
      for (StringRef name : attributes)
        if (Attribute value = pattern->getAttr(name))
          key.set(name, value);
      // An equation that the text says of an op without a phase means nothing.
      if (!key.get(attr::phase)) {
        key.clear();
        key.set(attr::phase, StringAttr::get(main.getContext(), "update"));
      }
      Group &group = groups[key.getDictionary(main.getContext())];
      group.uses.push_back(&use);
      if (!group.first || isBefore(user, group.first))
        group.first = user;
    }
    for (auto &[key, group] : groups) {
      OpBuilder builder(group.first);
      Operation *copy = builder.clone(*op);
      places[copy] = places.lookup(group.first);
      for (StringRef name : attributes)
        copy->removeAttr(name);
      for (NamedAttribute attribute : cast<DictionaryAttr>(key))
        copy->setAttr(attribute.getName(), attribute.getValue());
      for (OpOperand *use : group.uses)
        use->set(copy->getResult(cast<OpResult>(use->get()).getResultNumber()));
    }
    op->erase();
  }
}

static int64_t rankOf(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type ? type.getRank() : 0;
}

BatchAnalysis::BatchAnalysis(func::FuncOp main) {
  for (BlockArgument arg : main.getArguments()) {
    auto kind = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::kind);
    if (!kind || kind.getValue() != "batch")
      continue;
    llvm::SmallBitVector bits(rankOf(arg));
    if (!bits.empty())
      bits.set(0);
    dims[arg] = bits;
  }
  for (Operation &op : main.getBody().front())
    visit(&op);
}

bool BatchAnalysis::touchesBatchDim(Operation *op) const {
  auto has = [&](Value value) { return hasBatchDim(value); };
  return llvm::any_of(getUsedValues(op), has) || llvm::any_of(op->getResults(), has);
}

bool BatchAnalysis::hasSeveralSamples(Value value) const {
  auto it = dims.find(value);
  return it != dims.end() && llvm::any_of(it->second.set_bits(), [&](unsigned dim) {
           return cast<RankedTensorType>(value.getType()).getDimSize(dim) > 1;
         });
}

/// Where `dim`, a dimension of one sample, goes in a reshape. Rules leave it out, because it
/// splits nothing: it is the first of one element that has as many elements before it.
static std::optional<unsigned> findSingleSample(RankedTensorType from, unsigned dim,
                                                RankedTensorType to) {
  int64_t before = 1, passed = 1;
  for (int64_t size : from.getShape().take_front(dim))
    before *= size;
  for (auto [place, size] : llvm::enumerate(to.getShape())) {
    if (passed == before && size == 1)
      return place;
    passed *= size;
  }
  return std::nullopt;
}

void BatchAnalysis::visit(Operation *op) {
  bool depends = false, hasDim = false, isGuessed = false;
  for (Value value : getUsedValues(op)) {
    depends |= dependsOnBatch(value);
    hasDim |= hasBatchDim(value);
    isGuessed |= guessed.contains(value);
  }
  if (!depends)
    return;
  std::optional<analysis::ShardingRule> rule =
      hasDim ? analysis::getShardingRule(op) : std::nullopt;
  if (isGuessed || (hasDim && !rule))
    guessed.insert(op->result_begin(), op->result_end());
  if (!rule) {
    for (Value result : op->getResults())
      dims[result] = llvm::SmallBitVector(rankOf(result), hasDim);
    return;
  }
  llvm::SmallBitVector factors(rule->factors.size());
  auto setFactors = [&](Value value, const analysis::TensorFactors &tensor) {
    auto it = dims.find(value);
    if (it == dims.end())
      return;
    for (unsigned dim : it->second.set_bits())
      if (dim < tensor.size())
        for (unsigned factor : tensor[dim])
          factors.set(factor);
  };
  for (auto [operand, tensor] : llvm::zip(op->getOperands(), rule->operands))
    setFactors(operand, tensor);
  for (const auto &[value, tensor] : rule->captures)
    setFactors(value, tensor);
  for (auto [result, tensor] : llvm::zip(op->getResults(), rule->results)) {
    llvm::SmallBitVector bits(rankOf(result));
    for (auto [dim, dimFactors] : llvm::enumerate(tensor))
      if (llvm::any_of(dimFactors, [&](unsigned factor) { return factors.test(factor); }))
        bits.set(dim);
    dims[result] = bits;
  }
  if (op->getName().getStringRef() != "stablehlo.reshape")
    return;
  auto from = cast<RankedTensorType>(op->getOperand(0).getType());
  auto to = cast<RankedTensorType>(op->getResult(0).getType());
  for (unsigned dim : dims[op->getOperand(0)].set_bits())
    if (from.getDimSize(dim) == 1)
      if (std::optional<unsigned> place = findSingleSample(from, dim, to))
        dims[op->getResult(0)].set(*place);
}

bool importer::countsInBits(int64_t rows, unsigned bits) {
  return bits >= 64 || rows <= int64_t(1) << (bits - 1);
}

/// What a loop begins with of a value that it hands on as it is; null for others.
static Value carriedAsItIs(Value value) {
  auto argument = dyn_cast<BlockArgument>(value);
  auto loop = argument ? dyn_cast<stablehlo::WhileOp>(argument.getOwner()->getParentOp())
                       : stablehlo::WhileOp();
  unsigned number = argument ? argument.getArgNumber() : 0;
  if (!loop)
    return Value();
  Block &body = loop.getBody().front();
  return body.getTerminator()->getOperand(number) == body.getArgument(number)
             ? loop->getOperand(number)
             : Value();
}

std::optional<int64_t> importer::rowDimension(Value value) {
  while (Value first = carriedAsItIs(value))
    value = first;
  Operation *op = value.getDefiningOp();
  auto type = dyn_cast<RankedTensorType>(value.getType());
  auto integer = type ? dyn_cast<IntegerType>(type.getElementType()) : IntegerType();
  if (!op || !integer)
    return std::nullopt;
  auto counted = [&](std::optional<int64_t> dim) {
    return dim && countsInBits(type.getDimSize(*dim), integer.getWidth()) ? dim : std::nullopt;
  };
  auto sizesOf = [](Value of) { return cast<RankedTensorType>(of.getType()).getShape(); };
  if (auto iota = dyn_cast<stablehlo::IotaOp>(op))
    return counted(iota.getIotaDimension());
  if (auto known = dyn_cast<stablehlo::ConstantOp>(op)) { // NumPy's arange.
    auto dense = dyn_cast<DenseIntElementsAttr>(known.getValue());
    std::optional<int64_t> found;
    for (auto [dim, size] : llvm::enumerate(type.getShape()))
      if (size > 1)
        found = found ? -1 : int64_t(dim);
    if (!dense || !found || *found < 0)
      return std::nullopt;
    int64_t next = 0;
    bool counts = llvm::all_of(dense.getValues<APInt>(),
                               [&](const APInt &number) { return number == uint64_t(next++); });
    return counts ? counted(found) : std::nullopt;
  }
  if (isa<stablehlo::ConvertOp>(op))
    return counted(rowDimension(op->getOperand(0)));
  if (auto broadcast = dyn_cast<stablehlo::BroadcastInDimOp>(op)) {
    std::optional<int64_t> dim = rowDimension(op->getOperand(0));
    if (!dim)
      return std::nullopt;
    int64_t target = broadcast.getBroadcastDimensions()[*dim];
    return sizesOf(op->getOperand(0))[*dim] == type.getDimSize(target) ? std::optional(target)
                                                                       : std::nullopt;
  }
  if (isa<stablehlo::ReshapeOp>(op)) {
    std::optional<int64_t> dim = rowDimension(op->getOperand(0));
    if (!dim)
      return std::nullopt;
    ArrayRef<int64_t> from = sizesOf(op->getOperand(0));
    int64_t before = 1;
    for (int64_t size : from.take_front(*dim))
      before *= size;
    for (auto [place, size] : llvm::enumerate(type.getShape())) {
      if (before == 1 && size == from[*dim])
        return place;
      if (size > 1 && before % size != 0)
        return std::nullopt;
      before /= std::max<int64_t>(size, 1);
    }
    return std::nullopt;
  }
  if (isa<stablehlo::SelectOp>(op)) { // Negative indices count from the end; there are none.
    auto compare = op->getOperand(0).getDefiningOp<stablehlo::CompareOp>();
    std::optional<int64_t> dim = rowDimension(op->getOperand(2));
    if (dim && compare && compare.getComparisonDirection() == stablehlo::ComparisonDirection::LT &&
        rowDimension(compare->getOperand(0)) == dim &&
        analysis::isSplatOf(compare->getOperand(1), 0))
      return dim;
  }
  return std::nullopt;
}
