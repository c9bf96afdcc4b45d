//===- Methods.cpp - ways to parallelize that are known by name -----------===//

#include "compiler/Sharding/Methods/Methods.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Sharding/Problem/ProblemBuilder.h"
#include "llvm/ADT/StringExtras.h"

using namespace alpa;
using namespace mlir;

static constexpr MethodInfo kMethods[] = {
    {"auto", "Everything is the solver's choice"},
    {"data-parallel", "The batch is split over all devices, everything else is replicated, and "
                      "gradients are all-reduced"},
    {"zero-2", "Data parallel, with gradients and optimizer state split over all devices"},
    {"zero-3", "Data parallel, with gradients, optimizer state and parameters split over all "
               "devices; parameters are gathered for use"},
    {"megatron", "The batch is split over all mesh axes but the last, and dots by columns or rows "
                 "over the last"},
    {"expert-parallel", "Experts are split over all devices, everything else is data parallel"},
    {"expert-zero-2", "Experts are split over all devices, and for everything else gradients and "
                      "optimizer state are"},
    {"heuristic", "The largest dimension of every input is split over all devices, and propagated "
                  "through the step as GSPMD does"},
    {"manual", "What the user has pinned is kept, and the rest is the solver's choice"},
};
llvm::ArrayRef<MethodInfo> alpa::methodTable() { return kMethods; }

llvm::Error alpa::checkName(llvm::StringRef kind, llvm::ArrayRef<MethodInfo> table,
                            llvm::StringRef name) {
  std::string names;
  for (const MethodInfo &info : table) {
    if (info.name == name)
      return llvm::Error::success();
    names += (names.empty() ? "" : ", ") + info.name.str();
  }
  return llvm::createStringError("unknown " + kind + " '" + name + "', expected one of " + names);
}

llvm::Error alpa::checkMethod(llvm::StringRef name) { return checkName("method", kMethods, name); }

namespace {

/// Whether the axis splits one of the tensor's dimensions in `dims`, another one,
/// or none.
enum class Splits { Nothing, Wanted, Other };
Splits splits(const ShardingSpec &spec, unsigned axis, uint64_t dims) {
  for (size_t dim = 0; dim < spec.dims.size(); ++dim)
    if (llvm::is_contained(spec.dims[dim], axis))
      return dim < 64 && ((dims >> dim) & 1) ? Splits::Wanted : Splits::Other;
  return Splits::Nothing;
}

bool uses(const ShardingSpec &spec, unsigned axis) {
  return splits(spec, axis, 0) != Splits::Nothing;
}

struct Restriction {
  const MethodRoles &roles;
  llvm::SmallVector<int64_t> meshShape;
  bool splitsState = false;      // Optimizer state and gradients: ZeRO.
  bool splitsParameters = false; // ZeRO-3.
  bool splitsExperts = false;
  int tensorAxis = -1; // Megatron: all other axes are for the batch.

  bool allowsSpec(Value value, const ShardingSpec &spec) const;
  bool allowsStrategy(Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                      llvm::ArrayRef<ShardingSpec> results) const;

private:
  bool isBatchAxis(unsigned axis) const { return static_cast<int>(axis) != tensorAxis; }
  bool isMostSplit(Value value, const ShardingSpec &spec, uint64_t dims, bool onlyBatchAxes) const;
};

} // namespace

/// Whether no even spec that splits `dims` only has more pieces.
bool Restriction::isMostSplit(Value value, const ShardingSpec &spec, uint64_t dims,
                              bool onlyBatchAxes) const {
  auto isCandidate = [&](const ShardingSpec &other) {
    for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
      Splits how = splits(other, axis, dims);
      if (how == Splits::Other || (how == Splits::Wanted && onlyBatchAxes && !isBatchAxis(axis)))
        return false;
    }
    return true;
  };
  if (!isCandidate(spec))
    return false;
  llvm::ArrayRef<int64_t> shape = shapeOf(value);
  int64_t pieces = spec.numPieces(meshShape);
  return llvm::none_of(allSpecs(shape, meshShape), [&](PackedSpec packed) {
    ShardingSpec other = packed.unpack(shape.size(), meshShape.size());
    return other.numPieces(meshShape) > pieces && isCandidate(other);
  });
}

bool Restriction::allowsSpec(Value value, const ShardingSpec &spec) const {
  constexpr uint64_t kAllDims = ~uint64_t(0);
  ValueRole role = roles.of(value);
  switch (role) {
  case ValueRole::Other:
    return true;
  case ValueRole::Batch:
    return isMostSplit(value, spec, /*dims=*/1, /*onlyBatchAxes=*/true);
  case ValueRole::Bookkeeping:
    return spec.isReplicated();
  case ValueRole::Parameter:
  case ValueRole::OptimizerState:
  case ValueRole::Gradient:
    break;
  }
  if (splitsExperts && roles.expertDims(value))
    return isMostSplit(value, spec, roles.expertDims(value), /*onlyBatchAxes=*/false);
  if (role == ValueRole::Parameter ? splitsParameters : splitsState)
    return isMostSplit(value, spec, kAllDims, /*onlyBatchAxes=*/false);
  for (unsigned axis = 0; axis < meshShape.size(); ++axis)
    if (isBatchAxis(axis) && uses(spec, axis))
      return false;
  return true;
}

bool Restriction::allowsStrategy(Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                                 llvm::ArrayRef<ShardingSpec> results) const {
  bool isUpdate = opPhaseOf(op) == OpPhase::Update;
  if (isUpdate && (splitsState || splitsExperts))
    return true;
  bool isExpertOp = splitsExperts && roles.isExpertOp(op);
  const ShardingRule *rule = roles.ruleOf(op);
  for (unsigned axis = 0; axis < meshShape.size(); ++axis) {
    bool wantsBatch = isBatchAxis(axis);
    bool isSummed = false;
    for (auto [i, value, spec] : llvm::enumerate(op->getOperands(), operands)) {
      uint64_t dims = isExpertOp ? roles.expertDims(value) : roles.batchDims(value);
      Splits how = splits(spec, axis, dims);
      if (how != Splits::Nothing && (how == Splits::Wanted) != wantsBatch)
        return false;
      if (how != Splits::Nothing && isUpdate && wantsBatch)
        return false;
      for (size_t dim = 0; rule && dim < spec.dims.size(); ++dim)
        if (llvm::is_contained(spec.dims[dim], axis) && !rule->operands[i][dim].empty())
          isSummed |= rule->factors[rule->operands[i][dim][0]].kind == FactorKind::Reduction;
    }
    for (auto [value, spec] : llvm::zip_equal(op->getResults(), results)) {
      if (!uses(spec, axis))
        continue;
      if (isSummed) { // A sum that is scattered.
        if (!splitsState || !wantsBatch)
          return false;
        continue;
      }
      uint64_t dims = isExpertOp ? roles.expertDims(value) : roles.batchDims(value);
      if ((splits(spec, axis, dims) == Splits::Wanted) != wantsBatch)
        return false;
    }
  }
  return true;
}

llvm::Expected<PlanFilter> alpa::makeFilter(llvm::StringRef method, const MethodRoles &roles,
                                            const LogicalMesh &mesh) {
  if (llvm::Error error = checkMethod(method))
    return error;
  llvm::SmallVector<int64_t> meshShape(mesh.shape.begin(), mesh.shape.end());
  if (method == "auto")
    return PlanFilter();
  if (method == "manual")
    return pinnedFilter(roles, meshShape);
  if (method == "heuristic")
    return propagatedFilter(roles, meshShape);
  auto restriction = std::make_shared<Restriction>(Restriction{roles, meshShape});
  restriction->splitsState = method == "zero-2" || method == "zero-3" || method == "expert-zero-2";
  restriction->splitsParameters = method == "zero-3";
  restriction->splitsExperts = method == "expert-parallel" || method == "expert-zero-2";
  if (method == "megatron") {
    if (meshShape.size() < 2)
      return llvm::createStringError("method 'megatron' needs a mesh of two axes or more, the last "
                                     "for tensors; this one has one");
    restriction->tensorAxis = static_cast<int>(meshShape.size()) - 1;
  }
  PlanFilter filter;
  filter.allowsSpec = [restriction](Value value, const ShardingSpec &spec) {
    return restriction->allowsSpec(value, spec);
  };
  filter.allowsStrategy = [restriction](Operation *op, llvm::ArrayRef<ShardingSpec> operands,
                                        llvm::ArrayRef<ShardingSpec> results) {
    return restriction->allowsStrategy(op, operands, results);
  };
  return filter;
}
