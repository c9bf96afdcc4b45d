//===- MethodHeuristic.cpp - split the inputs, propagate the rest ---------===//
//
// The baseline "Heuristic" of Alpa (OSDI 2022, section 8.2): the largest dimension
// of every input is split over all devices, and shardings are propagated as GSPMD
// does (Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation
// Graphs", 2021, section 3.5): to and fro through the ops until nothing changes,
// through elementwise ops before others, and never against what is set already.
//
//===----------------------------------------------------------------------===//

#include "compiler/Sharding/Methods/Methods.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Sharding/Problem/Strategies.h"
#include "llvm/ADT/STLExtras.h"

using namespace alpa;
using namespace mlir;

namespace {

class Propagation {
public:
  Propagation(const MethodRoles &roles, llvm::ArrayRef<int64_t> meshShape)
      : roles(roles), meshShape(meshShape) {}

  PlanFilter run();

private:
  struct Visit {
    Operation *op;
    const ShardingRule *rule;
    unsigned priority; // 0 elementwise, 1 other cheap ops, 2 dots and the like.
  };

  PackedSpec largestDim(Value value) const;
  Assignment assign(const Visit &visit, bool resultsFirst) const;
  bool visit(const Visit &visit);
  bool refine(Value value, PackedSpec wanted);

  const MethodRoles &roles;
  llvm::ArrayRef<int64_t> meshShape;
  llvm::DenseMap<Value, PackedSpec> specs;
};

} // namespace

PackedSpec Propagation::largestDim(Value value) const {
  llvm::ArrayRef<int64_t> shape = shapeOf(value);
  PackedSpec spec;
  if (shape.empty())
    return spec;
  int dim = static_cast<int>(llvm::max_element(shape) - shape.begin());
  int64_t pieces = 1;
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (meshShape[axis] > 1 && shape[dim] % (pieces * meshShape[axis]) == 0) {
      spec.set(axis, dim);
      pieces *= meshShape[axis];
    }
  return spec;
}

/// What each axis splits, by the result and the operands, larger ones first. A sum
/// is split only if no axis of the result says otherwise.
Assignment Propagation::assign(const Visit &visit, bool resultsFirst) const {
  RuleProjection projection(*visit.rule, meshShape);
  Assignment axes;
  auto take = [&](const TensorFactors &tensor, Value value) {
    Assignment other = projection.fromSpec(tensor, specs.lookup(value));
    for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
      int16_t factor = other.factor[axis];
      if (factor < 0 || axes.factor[axis] >= 0)
        continue;
      int64_t pieces = meshShape[axis];
      for (unsigned before = 0; before < meshShape.size(); ++before)
        if (axes.factor[before] == factor)
          pieces *= meshShape[before];
      if (visit.rule->factors[factor].size % pieces == 0)
        axes.factor[axis] = factor;
    }
  };
  auto takeResults = [&] {
    for (auto [value, tensor] : llvm::zip_equal(visit.op->getResults(), visit.rule->results))
      take(tensor, value);
  };
  if (resultsFirst)
    takeResults();
  llvm::SmallVector<std::pair<double, unsigned>> order; // Largest first, then the first.
  for (auto [i, operand] : llvm::enumerate(visit.op->getOperands()))
    order.push_back({-getTensorBytes(operand.getType()), static_cast<unsigned>(i)});
  llvm::sort(order);
  for (auto [bytes, operand] : order)
    take(visit.rule->operands[operand], visit.op->getOperand(operand));
  if (!resultsFirst)
    takeResults();
  return axes;
}

/// Adds the axes that a value does not use yet; true if there was one.
bool Propagation::refine(Value value, PackedSpec wanted) {
  if (llvm::isa<BlockArgument>(value))
    return false; // Inputs stay as they were marked.
  PackedSpec &spec = specs[value], before = spec;
  llvm::ArrayRef<int64_t> shape = shapeOf(value);
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    int dim = wanted.dimOf(axis);
    if (dim >= 0 && spec.dimOf(axis) < 0 &&
        shape[dim] % (spec.numPieces(dim, meshShape) * meshShape[axis]) == 0)
      spec.set(axis, dim);
  }
  return spec != before;
}

bool Propagation::visit(const Visit &visit) {
  RuleProjection projection(*visit.rule, meshShape);
  Assignment axes = assign(visit, /*resultsFirst=*/true);
  bool isNew = false;
  for (auto [value, tensor] : llvm::zip_equal(visit.op->getResults(), visit.rule->results))
    isNew |= refine(value, projection.toSpec(tensor, axes));
  for (auto [value, tensor] : llvm::zip_equal(visit.op->getOperands(), visit.rule->operands))
    isNew |= refine(value, projection.toSpec(tensor, axes));
  return isNew;
}

PlanFilter Propagation::run() {
  Block &body = roles.getFunction().getBody().front();
  for (BlockArgument argument : body.getArguments())
    if (roles.of(argument) != ValueRole::Bookkeeping)
      specs[argument] = largestDim(argument);
  std::vector<Visit> visits;
  for (Operation &op : body.without_terminator())
    if (const ShardingRule *rule = roles.ruleOf(&op))
      visits.push_back({&op, rule,
                        isElementwiseName(op.getName().getStringRef()) ? 0u
                        : rule->heavy                                  ? 2u
                                                                       : 1u});
  // Specs only gain axes, so this ends.
  for (unsigned priority = 0; priority <= 2;) {
    bool isNew = false;
    for (const Visit &next : visits)
      isNew |= next.priority <= priority && visit(next);
    for (const Visit &next : llvm::reverse(visits))
      isNew |= next.priority <= priority && visit(next);
    priority = isNew ? 0 : priority + 1;
  }

  using Wanted = std::pair<llvm::SmallVector<ShardingSpec>, llvm::SmallVector<ShardingSpec>>;
  auto strategies = std::make_shared<llvm::DenseMap<Operation *, Wanted>>();
  PlanFilter filter;
  for (BlockArgument argument : body.getArguments())
    if (llvm::isa<RankedTensorType>(argument.getType()))
      filter.pinned[argument] =
          specs.lookup(argument).unpack(shapeOf(argument).size(), meshShape.size());
  for (const Visit &next : visits) {
    if (!next.rule->heavy && !next.rule->leads)
      continue;
    RuleProjection projection(*next.rule, meshShape);
    Assignment axes = assign(next, /*resultsFirst=*/true);
    Wanted &wanted = (*strategies)[next.op];
    for (auto [value, tensor] : llvm::zip_equal(next.op->getOperands(), next.rule->operands))
      wanted.first.push_back(
          projection.toSpec(tensor, axes).unpack(shapeOf(value).size(), meshShape.size()));
    for (auto [value, tensor] : llvm::zip_equal(next.op->getResults(), next.rule->results))
      wanted.second.push_back(
          projection.toSpec(tensor, axes).unpack(shapeOf(value).size(), meshShape.size()));
  }
  filter.allowsStrategy = [strategies](Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                                       llvm::ArrayRef<ShardingSpec> results) {
    auto it = strategies->find(op);
    return it == strategies->end() || (llvm::ArrayRef(it->second.first) == operands &&
                                       llvm::ArrayRef(it->second.second) == results);
  };
  return filter;
}

PlanFilter alpa::propagatedFilter(const MethodRoles &roles, llvm::ArrayRef<int64_t> meshShape) {
  return Propagation(roles, meshShape).run();
}
