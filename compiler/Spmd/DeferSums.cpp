//===- DeferSums.cpp - terms of sums get a place in their types -----------===//

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Sharding/Problem/SumCompletion.h"
#include "compiler/Spmd/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Matchers.h"

namespace alpa::spmd {
#define GEN_PASS_DEF_DEFERSUMS
#include "compiler/Spmd/Passes.h.inc"
} // namespace alpa::spmd

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;

//===----------------------------------------------------------------------===//
// The terms of a sum as a tensor
//===----------------------------------------------------------------------===//

namespace {

/// Mesh axes that split a dimension, major first.
using Axes = llvm::SmallVector<unsigned, 2>;

/// A tensor with leading dimensions over which it is to be summed, and the mesh axes
/// that split each of them to single elements.
struct Terms {
  Value value;
  llvm::SmallVector<int64_t> sizes;
  llvm::SmallVector<Axes> axes;

  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
};

} // namespace

namespace hlo = mlir::stablehlo;

namespace {

/// A dimension of an operand that becomes two: terms, and what is left of it.
struct Cut {
  int64_t dim = 0;
  Axes axes;
  int64_t size = 1; // How many terms.
};

/// Where dimension `dim`, or what is left of it, is after the cuts.
int64_t afterCuts(int64_t dim, ArrayRef<Cut> cuts) {
  return dim + llvm::count_if(cuts, [&](const Cut &cut) { return cut.dim <= dim; });
}
/// Where the terms of a cut are.
int64_t termsDim(const Cut &cut, ArrayRef<Cut> cuts) { return afterCuts(cut.dim, cuts) - 1; }

SmallVector<int64_t> afterCuts(ArrayRef<int64_t> dims, ArrayRef<Cut> cuts) {
  return llvm::map_to_vector(dims, [&](int64_t dim) { return afterCuts(dim, cuts); });
}

RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

ShardingSpec cutSpec(const ShardingSpec &spec, ArrayRef<Cut> cuts) {
  ShardingSpec made = ShardingSpec::replicated(spec.dims.size() + cuts.size());
  for (auto [dim, axes] : llvm::enumerate(spec.dims))
    made.dims[afterCuts(dim, cuts)] = axes;
  for (const Cut &cut : cuts) {
    made.dims[termsDim(cut, cuts)] = cut.axes;
    made.dims[afterCuts(cut.dim, cuts)].clear();
  }
  return made;
}

class TermsMaker {
public:
  TermsMaker(OpBuilder &builder, MeshAttr mesh) : builder(builder), mesh(mesh) {}

  FailureOr<Terms> make(Operation *op, const ShardingSpec &spec);

private:
  FailureOr<Terms> dot(hlo::DotGeneralOp op, const ShardingSpec &spec);
  FailureOr<Terms> groupedSum(GroupedSumOp op, const ShardingSpec &spec);
  FailureOr<Terms> reduce(hlo::ReduceOp op, const ShardingSpec &spec);
  FailureOr<Terms> scatter(hlo::ScatterOp op, const ShardingSpec &spec);
  FailureOr<Terms> convolution(hlo::ConvolutionOp op, const ShardingSpec &spec);

  /// Adds the cut of a dimension whose axes keep their terms; the axes must be all
  /// that split it.
  LogicalResult addCut(Operation *op, int64_t dim, ArrayRef<unsigned> axes,
                       const ShardingSpec &spec, SmallVectorImpl<Cut> &cuts);
  /// The same, and beside it the cut of the other operand's dimension that it meets.
  LogicalResult addCuts(Operation *op, int64_t dim, ArrayRef<unsigned> axes,
                        const ShardingSpec &spec, SmallVectorImpl<Cut> &cuts, int64_t otherDim,
                        SmallVectorImpl<Cut> &others);
  LogicalResult checkCuts(Operation *op, ArrayRef<Cut> cuts, const ShardingSpec &spec);
  Value cutOperand(Operation *op, unsigned operand, ArrayRef<Cut> cuts);
  Value transposed(Operation *origin, Value value, const ShardingSpec &spec,
                   ArrayRef<int64_t> permutation, ShardingSpec &made);
  Value reshaped(Operation *origin, Value value, ArrayRef<int64_t> shape, const ShardingSpec &spec);

  Terms termsOf(Value value, ArrayRef<Cut> cuts) {
    Terms terms{value, {}, {}};
    for (const Cut &cut : cuts) {
      terms.sizes.push_back(cut.size);
      terms.axes.push_back(cut.axes);
    }
    return terms;
  }
  ShardingAttr attributeOf(const ShardingSpec &spec) {
    return ShardingAttr::get(builder.getContext(), spec);
  }

  OpBuilder &builder;
  MeshAttr mesh;
};

} // namespace

/// The spec of terms: their axes split leading dimensions.
static ShardingSpec withLeading(ArrayRef<Axes> leading, const ShardingSpec &spec) {
  ShardingSpec made;
  made.dims.append(leading.begin(), leading.end());
  made.dims.append(spec.dims.begin(), spec.dims.end());
  return made;
}

/// How an op wants an operand.
static ShardingSpec usedSpec(Operation *op, unsigned operand) {
  return cast<ShardingAttr>(op->getAttrOfType<ArrayAttr>(attr::useShardings)[operand]).getSpec();
}

/// Gives a new op the phase, layer and stage of another, and its result a spec.
static Operation *placeLike(Operation *made, Operation *origin, const ShardingSpec &spec) {
  for (StringRef name : {StringRef(attr::phase), StringRef(attr::eqn), StringRef(attr::layer),
                         StringRef(attr::stage)})
    if (Attribute value = origin->getAttr(name))
      made->setAttr(name, value);
  made->setAttr(attr::shardings,
                ArrayAttr::get(made->getContext(), ShardingAttr::get(made->getContext(), spec)));
  return made;
}

/// The same op on other operands, whose result has another shape.
static Operation *cloneAs(OpBuilder &builder, Operation *op, ValueRange operands,
                          ArrayRef<int64_t> shape, const ShardingSpec &spec) {
  Operation *made = builder.clone(*op);
  made->setOperands(operands);
  made->getResult(0).setType(typeOf(op->getResult(0)).clone(shape));
  for (StringRef name : {StringRef(attr::useShardings), StringRef(attr::operandShardings),
                         StringRef(attr::madeShardings), StringRef(attr::summedAs)})
    made->removeAttr(name);
  return placeLike(made, op, spec);
}

Value TermsMaker::reshaped(Operation *origin, Value value, ArrayRef<int64_t> shape,
                           const ShardingSpec &spec) {
  auto made = hlo::ReshapeOp::create(builder, origin->getLoc(), typeOf(value).clone(shape), value);
  return placeLike(made, origin, spec)->getResult(0);
}

Value TermsMaker::transposed(Operation *origin, Value value, const ShardingSpec &spec,
                             ArrayRef<int64_t> permutation, ShardingSpec &made) {
  SmallVector<int64_t> shape;
  made = ShardingSpec();
  for (int64_t dim : permutation) {
    shape.push_back(typeOf(value).getDimSize(dim));
    made.dims.push_back(spec.dims[dim]);
  }
  auto op = hlo::TransposeOp::create(builder, origin->getLoc(), typeOf(value).clone(shape), value,
                                     builder.getDenseI64ArrayAttr(permutation));
  return placeLike(op, origin, made)->getResult(0);
}

LogicalResult TermsMaker::addCut(Operation *op, int64_t dim, ArrayRef<unsigned> axes,
                                 const ShardingSpec &spec, SmallVectorImpl<Cut> &cuts) {
  auto waits = [&](unsigned axis) { return llvm::is_contained(spec.unreduced, axis); };
  if (llvm::none_of(axes, waits))
    return success();
  if (!llvm::all_of(axes, waits))
    return op->emitError("alpa_defer_sums_c2: of the mesh axes that split dimension ")
           << dim << " of an operand, some keep their terms and some do not";
  Cut cut{dim, Axes(axes), 1};
  for (unsigned axis : axes)
    cut.size *= mesh.getShape()[axis];
  cuts.push_back(std::move(cut));
  return success();
}

LogicalResult TermsMaker::addCuts(Operation *op, int64_t dim, ArrayRef<unsigned> axes,
                                  const ShardingSpec &spec, SmallVectorImpl<Cut> &cuts,
                                  int64_t otherDim, SmallVectorImpl<Cut> &others) {
  size_t known = cuts.size();
  if (failed(addCut(op, dim, axes, spec, cuts)))
    return failure();
  if (cuts.size() > known)
    others.push_back({otherDim, cuts.back().axes, cuts.back().size});
  return success();
}

LogicalResult TermsMaker::checkCuts(Operation *op, ArrayRef<Cut> cuts, const ShardingSpec &spec) {
  Axes found;
  for (const Cut &cut : cuts)
    llvm::append_range(found, cut.axes);
  llvm::sort(found);
  if (found == spec.unreduced)
    return success();
  return op->emitError("alpa_defer_sums_c2: the result is ")
         << spec.str() << ", but its operands are not split so over a sum";
}

/// The operand with its cut dimensions in two.
Value TermsMaker::cutOperand(Operation *op, unsigned operand, ArrayRef<Cut> cuts) {
  Value value = op->getOperand(operand);
  SmallVector<int64_t> shape(typeOf(value).getRank() + cuts.size());
  for (auto [dim, size] : llvm::enumerate(typeOf(value).getShape()))
    shape[afterCuts(dim, cuts)] = size;
  for (const Cut &cut : cuts) {
    shape[termsDim(cut, cuts)] = cut.size;
    shape[afterCuts(cut.dim, cuts)] /= cut.size;
  }
  ShardingSpec before = usedSpec(op, operand);
  Value made = reshaped(op, value, shape, cutSpec(before, cuts));
  Operation *reshape = made.getDefiningOp();
  reshape->setAttr(attr::useShardings, builder.getArrayAttr(attributeOf(before)));
  if (auto held = op->getAttrOfType<ArrayAttr>(attr::operandShardings))
    reshape->setAttr(attr::operandShardings, builder.getArrayAttr(held[operand]));
  return made;
}

/// Terms become batching dimensions.
FailureOr<Terms> TermsMaker::dot(hlo::DotGeneralOp op, const ShardingSpec &spec) {
  auto numbers = op.getDotDimensionNumbers();
  SmallVector<Cut> lhs, rhs;
  for (auto [left, right] : llvm::zip_equal(numbers.getLhsContractingDimensions(),
                                            numbers.getRhsContractingDimensions())) {
    ShardingSpec leftSpec = usedSpec(op, 0);
    if (failed(addCuts(op, left, leftSpec.dims[left], spec, lhs, right, rhs)))
      return failure();
  }
  if (failed(checkCuts(op, lhs, spec)))
    return failure();
  auto batching = [](ArrayRef<int64_t> dims, ArrayRef<Cut> cuts) {
    SmallVector<int64_t> made;
    for (const Cut &cut : cuts)
      made.push_back(termsDim(cut, cuts));
    llvm::append_range(made, afterCuts(dims, cuts));
    return made;
  };
  SmallVector<Value> operands{cutOperand(op, 0, lhs), cutOperand(op, 1, rhs)};
  Terms made = termsOf({}, lhs);
  SmallVector<int64_t> shape(made.sizes);
  llvm::append_range(shape, typeOf(op.getResult()).getShape());
  auto clone =
      cast<hlo::DotGeneralOp>(cloneAs(builder, op, operands, shape, withLeading(made.axes, spec)));
  clone.setDotDimensionNumbersAttr(hlo::DotDimensionNumbersAttr::get(
      op.getContext(), batching(numbers.getLhsBatchingDimensions(), lhs),
      batching(numbers.getRhsBatchingDimensions(), rhs),
      afterCuts(numbers.getLhsContractingDimensions(), lhs),
      afterCuts(numbers.getRhsContractingDimensions(), rhs)));
  made.value = clone.getResult();
  return made;
}

/// Terms become batches of rows.
FailureOr<Terms> TermsMaker::groupedSum(GroupedSumOp op, const ShardingSpec &spec) {
  SmallVector<Cut> cuts;
  ShardingSpec rows = usedSpec(op, 0);
  int64_t batches = typeOf(op.getLhs()).getRank() - 2;
  if (failed(addCut(op, batches, rows.dims[batches], spec, cuts)) ||
      failed(checkCuts(op, cuts, spec)))
    return failure();
  SmallVector<Value> operands;
  for (unsigned operand = 0; operand < 3; ++operand)
    operands.push_back(cutOperand(op, operand, cuts));
  Terms made = termsOf({}, cuts);
  ArrayRef<int64_t> whole = typeOf(op.getResult()).getShape();
  SmallVector<int64_t> shape(whole.take_front(batches)), order;
  llvm::append_range(shape, made.sizes);
  llvm::append_range(shape, whole.drop_front(batches));
  ShardingSpec madeSpec, turned;
  madeSpec.dims.append(spec.dims.begin(), spec.dims.begin() + batches);
  madeSpec.dims.append(made.axes.begin(), made.axes.end());
  madeSpec.dims.append(spec.dims.begin() + batches, spec.dims.end());
  made.value = cloneAs(builder, op, operands, shape, madeSpec)->getResult(0);
  if (batches == 0 || cuts.empty())
    return made;
  for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim)
    order.push_back(dim < made.rank()             ? dim + batches
                    : dim < made.rank() + batches ? dim - made.rank()
                                                  : dim);
  made.value = transposed(op, made.value, madeSpec, order, turned);
  return made;
}

/// Terms are dimensions that are not reduced.
FailureOr<Terms> TermsMaker::reduce(hlo::ReduceOp op, const ShardingSpec &spec) {
  SmallVector<Cut> cuts;
  ShardingSpec held = usedSpec(op, 0);
  SmallVector<int64_t> dimensions(op.getDimensions());
  llvm::sort(dimensions);
  for (int64_t dim : dimensions)
    if (failed(addCut(op, dim, held.dims[dim], spec, cuts)))
      return failure();
  if (failed(checkCuts(op, cuts, spec)))
    return failure();
  Value input = cutOperand(op, 0, cuts);
  SmallVector<int64_t> reduced = afterCuts(dimensions, cuts);
  // The result's dimensions, and where its terms are among them.
  ShardingSpec inputSpec = cutSpec(held, cuts), madeSpec;
  SmallVector<int64_t> shape, permutation, others;
  for (int64_t dim = 0, kept = 0; dim < typeOf(input).getRank(); ++dim) {
    if (llvm::is_contained(reduced, dim))
      continue;
    bool isTerms = llvm::any_of(cuts, [&](const Cut &cut) { return termsDim(cut, cuts) == dim; });
    shape.push_back(typeOf(input).getDimSize(dim));
    madeSpec.dims.push_back(inputSpec.dims[dim]);
    (isTerms ? permutation : others).push_back(kept++);
  }
  llvm::append_range(permutation, others);
  Operation *made = cloneAs(builder, op, {input, op->getOperand(1)}, shape, madeSpec);
  cast<hlo::ReduceOp>(made).setDimensions(reduced);
  if (auto given = op->getAttrOfType<ArrayAttr>(attr::operandShardings))
    made->setAttr(attr::operandShardings, builder.getArrayAttr({attributeOf(inputSpec), given[1]}));
  Value value = made->getResult(0);
  if (!llvm::is_sorted(permutation))
    value = transposed(op, value, madeSpec, permutation, inputSpec);
  return termsOf(value, cuts);
}

/// Terms are batching dimensions, each scattered into zeros of its own.
FailureOr<Terms> TermsMaker::scatter(hlo::ScatterOp op, const ShardingSpec &spec) {
  auto numbers = op.getScatterDimensionNumbers();
  SmallVector<Cut> indices, updates;
  ShardingSpec indexSpec = usedSpec(op, 1);
  SmallVector<int64_t> indexDims, updateDims;
  for (int64_t dim = 0; dim < typeOf(op->getOperand(1)).getRank(); ++dim)
    if (dim != numbers.getIndexVectorDim())
      indexDims.push_back(dim);
  for (int64_t dim = 0; dim < typeOf(op->getOperand(2)).getRank(); ++dim)
    if (!llvm::is_contained(numbers.getUpdateWindowDims(), dim))
      updateDims.push_back(dim);
  for (auto [index, update] : llvm::zip_equal(indexDims, updateDims)) {
    if (llvm::is_contained(numbers.getScatterIndicesBatchingDims(), index))
      continue;
    if (failed(addCuts(op, index, indexSpec.dims[index], spec, indices, update, updates)))
      return failure();
  }
  if (failed(checkCuts(op, indices, spec)))
    return failure();
  Terms made = termsOf({}, indices);
  int64_t leading = made.rank();
  ShardingSpec madeSpec = withLeading(made.axes, spec);
  SmallVector<int64_t> shape(made.sizes);
  llvm::append_range(shape, typeOf(op->getResult(0)).getShape());
  RankedTensorType type = typeOf(op->getResult(0)).clone(shape);
  Operation *zeros = hlo::ConstantOp::create(builder, op.getLoc(), analysis::splatOf(0, type));
  placeLike(zeros, op, madeSpec);
  SmallVector<Value> operands{zeros->getResult(0), cutOperand(op, 1, indices),
                              cutOperand(op, 2, updates)};
  auto moved = [&](ArrayRef<int64_t> dims) {
    return llvm::map_to_vector(dims, [&](int64_t dim) { return dim + leading; });
  };
  auto inputBatching = llvm::to_vector(llvm::seq<int64_t>(0, leading));
  llvm::append_range(inputBatching, moved(numbers.getInputBatchingDims()));
  SmallVector<int64_t> indexBatching;
  for (const Cut &cut : indices)
    indexBatching.push_back(termsDim(cut, indices));
  llvm::append_range(indexBatching, afterCuts(numbers.getScatterIndicesBatchingDims(), indices));
  auto clone = cast<hlo::ScatterOp>(cloneAs(builder, op, operands, shape, madeSpec));
  clone.setScatterDimensionNumbersAttr(hlo::ScatterDimensionNumbersAttr::get(
      op.getContext(), afterCuts(numbers.getUpdateWindowDims(), updates),
      moved(numbers.getInsertedWindowDims()), inputBatching, indexBatching,
      moved(numbers.getScatterDimsToOperandDims()),
      afterCuts(numbers.getIndexVectorDim(), indices)));
  made.value = clone->getResult(0);
  return made;
}

/// Terms are groups of features: of the input's they are already, and the kernel's
/// go where groups of output features are.
FailureOr<Terms> TermsMaker::convolution(hlo::ConvolutionOp op, const ShardingSpec &spec) {
  auto numbers = op.getDimensionNumbers();
  int64_t in = numbers.getKernelInputFeatureDimension();
  int64_t out = numbers.getKernelOutputFeatureDimension();
  int64_t features = numbers.getOutputFeatureDimension();
  SmallVector<Cut> cuts;
  ShardingSpec kernelSpec = usedSpec(op, 1);
  if (failed(addCut(op, in, kernelSpec.dims[in], spec, cuts)) || failed(checkCuts(op, cuts, spec)))
    return failure();
  if (!kernelSpec.dims[out].empty())
    return op.emitError("alpa_defer_sums_c2: the output features of a convolution that keeps its "
                        "terms are split, too");
  const Cut &cut = cuts.front();
  Value kernel = cutOperand(op, 1, cuts);
  ShardingSpec held = cutSpec(kernelSpec, cuts);
  SmallVector<int64_t> permutation;
  int64_t terms = termsDim(cut, cuts);
  for (int64_t dim = 0; dim < typeOf(kernel).getRank(); ++dim) {
    if (dim == terms)
      continue;
    if (dim == afterCuts(out, cuts))
      permutation.push_back(terms);
    permutation.push_back(dim);
  }
  kernel = transposed(op, kernel, ShardingSpec(held), permutation, held);
  SmallVector<int64_t> shape(typeOf(op.getRhs()).getShape());
  shape[in] /= cut.size;
  shape[out] *= cut.size;
  ShardingSpec grouped = kernelSpec;
  grouped.dims[in].clear();
  grouped.dims[out] = cut.axes;
  kernel = reshaped(op, kernel, shape, grouped);

  shape.assign(typeOf(op.getResult()).getShape().begin(), typeOf(op.getResult()).getShape().end());
  SmallVector<int64_t> parted(shape);
  parted.insert(parted.begin() + features, cut.size);
  shape[features] *= cut.size;
  ShardingSpec made = spec, partedSpec;
  made.unreduced.clear();
  partedSpec = made;
  partedSpec.dims.insert(partedSpec.dims.begin() + features, cut.axes);
  made.dims[features] = cut.axes;
  ShardingAttr image = attributeOf(usedSpec(op, 0));
  auto clone = cast<hlo::ConvolutionOp>(cloneAs(builder, op, {op.getLhs(), kernel}, shape, made));
  clone.setFeatureGroupCount(cut.size);
  clone->setAttr(attr::useShardings, builder.getArrayAttr({image, attributeOf(grouped)}));
  if (auto given = op->getAttrOfType<ArrayAttr>(attr::operandShardings))
    clone->setAttr(attr::operandShardings, builder.getArrayAttr({given[0], attributeOf(grouped)}));
  Value value = reshaped(op, clone.getResult(), parted, partedSpec);
  permutation.assign(1, features);
  for (int64_t dim = 0; dim < typeOf(value).getRank(); ++dim)
    if (dim != features)
      permutation.push_back(dim);
  return termsOf(transposed(op, value, partedSpec, permutation, made), cuts);
}

FailureOr<Terms> TermsMaker::make(Operation *op, const ShardingSpec &spec) {
  if (auto dotGeneral = dyn_cast<hlo::DotGeneralOp>(op))
    return dot(dotGeneral, spec);
  if (auto sum = dyn_cast<GroupedSumOp>(op))
    return groupedSum(sum, spec);
  if (auto reduceOp = dyn_cast<hlo::ReduceOp>(op))
    return reduce(reduceOp, spec);
  if (auto scatterOp = dyn_cast<hlo::ScatterOp>(op))
    return scatter(scatterOp, spec);
  return convolution(cast<hlo::ConvolutionOp>(op), spec);
}

/// Builds an op that sums over devices (a dot, a reduction, a scatter or a convolution)
/// anew, so that its terms are a tensor. `spec` is that of its result, `mesh` its mesh.
/// Fails with an error of the op if its operands are not split as the spec says.
static FailureOr<Terms> makeTerms(OpBuilder &builder, Operation *op, const ShardingSpec &spec,
                                  MeshAttr mesh) {
  return TermsMaker(builder, mesh).make(op, spec);
}

//===----------------------------------------------------------------------===//
// Terms of sums get a place in their types
//===----------------------------------------------------------------------===//

namespace {

class SumDeferrer {
public:
  SumDeferrer(func::FuncOp function, function_ref<MeshAttr(Operation *)> meshOf)
      : function(function), meshOf(meshOf), builder(function.getContext()) {}

  LogicalResult run();
  unsigned numDeferred = 0, numSums = 0;

private:
  LogicalResult visit(Operation *op, const ShardingSpec &spec);
  FailureOr<Terms> passOn(Operation *op, unsigned operand, const ShardingSpec &spec);
  Value uniform(Operation *user, Value value, const Terms &like, ShardingAttr sharding);
  Value sum(Operation *op, const Terms &terms, ShardingAttr sharding);
  ShardingAttr attributeOf(const ShardingSpec &spec) {
    return ShardingAttr::get(builder.getContext(), spec);
  }

  func::FuncOp function;
  function_ref<MeshAttr(Operation *)> meshOf;
  OpBuilder builder;
  DenseMap<Value, Terms> terms;
  SmallVector<Operation *> replaced;
};

} // namespace

/// The same number for every term.
Value SumDeferrer::uniform(Operation *user, Value value, const Terms &like, ShardingAttr sharding) {
  SmallVector<int64_t> shape(like.sizes);
  llvm::append_range(shape, typeOf(value).getShape());
  DenseElementsAttr constant;
  if (matchPattern(value, m_Constant(&constant))) {
    auto made = hlo::ConstantOp::create(
        builder, user->getLoc(),
        cast<ElementsAttr>(constant.resizeSplat(typeOf(value).clone(shape))));
    return placeLike(made, user, sharding.getSpec())->getResult(0);
  }
  auto broadcast = value.getDefiningOp<hlo::BroadcastInDimOp>();
  auto dims = llvm::map_to_vector(broadcast.getBroadcastDimensions(),
                                  [&](int64_t dim) { return dim + like.rank(); });
  Operation *made = builder.clone(*broadcast);
  made->getResult(0).setType(typeOf(value).clone(shape));
  cast<hlo::BroadcastInDimOp>(made).setBroadcastDimensions(dims);
  made->setAttr(attr::shardings, builder.getArrayAttr(sharding));
  made->removeAttr(attr::useShardings);
  made->removeAttr(attr::madeShardings);
  return made->getResult(0);
}

FailureOr<Terms> SumDeferrer::passOn(Operation *op, unsigned operand, const ShardingSpec &spec) {
  Terms made = terms[op->getOperand(operand)];
  ShardingSpec source = usedSpec(op, operand);
  if (source.unreduced != spec.unreduced)
    return op->emitError("alpa_defer_sums_c3: takes terms of a sum as ")
           << source.str() << " and gives " << spec.str();
  ShardingSpec madeSpec = withLeading(made.axes, spec);
  SmallVector<int64_t> shape(made.sizes);
  llvm::append_range(shape, typeOf(op->getResult(0)).getShape());
  SmallVector<Value> operands;
  SmallVector<Attribute> uses;
  for (auto [i, value] : llvm::enumerate(op->getOperands())) {
    if (isa<hlo::ReduceOp>(op) && i != operand) { // What is added to nothing.
      operands.push_back(value);
      uses.push_back(attributeOf(usedSpec(op, i)));
      continue;
    }
    ShardingAttr use = attributeOf(withLeading(made.axes, usedSpec(op, i)));
    operands.push_back(i == operand ? made.value : uniform(op, value, made, use));
    uses.push_back(use);
  }
  Operation *clone = cloneAs(builder, op, operands, shape, madeSpec);
  clone->setAttr(attr::useShardings, builder.getArrayAttr(uses));
  if (auto transpose = dyn_cast<hlo::TransposeOp>(clone)) {
    auto permutation = llvm::to_vector(llvm::seq<int64_t>(0, made.rank()));
    for (int64_t dim : transpose.getPermutation())
      permutation.push_back(dim + made.rank());
    transpose.setPermutation(permutation);
  }
  if (auto broadcast = dyn_cast<hlo::BroadcastInDimOp>(clone)) {
    auto dims = llvm::to_vector(llvm::seq<int64_t>(0, made.rank()));
    for (int64_t dim : broadcast.getBroadcastDimensions())
      dims.push_back(dim + made.rank());
    broadcast.setBroadcastDimensions(dims);
  }
  if (auto reduceOp = dyn_cast<hlo::ReduceOp>(clone))
    reduceOp.setDimensions(llvm::map_to_vector(reduceOp.getDimensions(),
                                               [&](int64_t dim) { return dim + made.rank(); }));
  made.value = clone->getResult(0);
  return made;
}

Value SumDeferrer::sum(Operation *op, const Terms &terms, ShardingAttr sharding) {
  Location loc = op->getLoc();
  RankedTensorType type = typeOf(op->getResult(0));
  auto scalar = RankedTensorType::get({}, type.getElementType());
  StringAttr update = builder.getStringAttr("update");
  Operation *zero = hlo::ConstantOp::create(builder, loc, analysis::splatOf(0, scalar));
  placeLike(zero, op, ShardingSpec())->setAttr(attr::phase, update);
  OperationState state(loc, hlo::ReduceOp::getOperationName());
  state.addOperands({terms.value, zero->getResult(0)});
  state.addTypes(type);
  state.addAttribute("dimensions", builder.getDenseI64ArrayAttr(
                                       llvm::to_vector(llvm::seq<int64_t>(0, terms.rank()))));
  state.addRegion();
  Operation *made = builder.create(state);
  placeLike(made, op, sharding.getSpec())->setAttr(attr::phase, update);
  made->removeAttr(attr::eqn);
  OpBuilder::InsertionGuard guard(builder);
  Block &body = made->getRegion(0).emplaceBlock();
  body.addArguments({scalar, scalar}, {loc, loc});
  builder.setInsertionPointToEnd(&body);
  Value added = hlo::AddOp::create(builder, loc, body.getArgument(0), body.getArgument(1));
  OperationState end(loc, hlo::ReturnOp::getOperationName());
  end.addOperands(added);
  builder.create(end);
  return made->getResult(0);
}

LogicalResult SumDeferrer::visit(Operation *op, const ShardingSpec &spec) {
  int link = sharding::linkOperand(op);
  bool isLink = link >= 0 && terms.contains(op->getOperand(link));
  std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
  if (!isLink && (!rule || sharding::deferrableFactors(op, *rule).empty()))
    return op->emitError("alpa_defer_sums_c1: the result is ")
           << spec.str() << ", but the op neither sums over devices nor passes terms on";
  if (!op->getAttrOfType<ArrayAttr>(attr::useShardings))
    return op->emitError("alpa_defer_sums_c1: expected `")
           << attr::useShardings << "` on an op whose result is " << spec.str();
  builder.setInsertionPoint(op);
  FailureOr<Terms> made =
      isLink ? passOn(op, link, spec) : makeTerms(builder, op, spec, meshOf(op));
  if (failed(made))
    return failure();
  numDeferred += !isLink;
  replaced.push_back(op);
  Value value = op->getResult(0);
  if (auto sharding = op->getAttrOfType<ShardingAttr>(attr::summedAs)) {
    value.replaceAllUsesWith(sum(op, *made, sharding));
    ++numSums;
    return success();
  }
  for (OpOperand &use : value.getUses()) {
    Operation *user = use.getOwner();
    auto shardings = user->getAttrOfType<ArrayAttr>(attr::shardings);
    if (sharding::linkOperand(user) != static_cast<int>(use.getOperandNumber()) || !shardings ||
        cast<ShardingAttr>(shardings[0]).getSpec().unreduced != spec.unreduced)
      return user->emitError("alpa_defer_sums_c3: uses terms of a sum (")
             << spec.str() << ") as if they were the sum";
  }
  terms[value] = std::move(*made);
  return success();
}

LogicalResult SumDeferrer::run() {
  for (Operation &op : llvm::make_early_inc_range(function.front().without_terminator())) {
    auto shardings = op.getAttrOfType<ArrayAttr>(attr::shardings);
    if (!shardings)
      continue;
    bool isUnreduced = llvm::any_of(shardings, [](Attribute item) {
      return !cast<ShardingAttr>(item).getSpec().unreduced.empty();
    });
    if (!isUnreduced)
      continue;
    if (op.getNumResults() != 1)
      return op.emitError("alpa_defer_sums_c1: an op of several results keeps no terms of a sum");
    if (!meshOf(&op))
      return op.emitError("has no mesh; run alpa-search-stages or alpa-solve-sharding first");
    if (failed(visit(&op, cast<ShardingAttr>(shardings[0]).getSpec())))
      return failure();
  }
  for (Operation *op : llvm::reverse(replaced))
    op->erase();
  return success();
}

namespace {

struct DeferSums : public spmd::impl::DeferSumsBase<DeferSums> {
  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto whole = module->getAttrOfType<MeshAttr>(attr::mesh);
    auto stages = module->getAttrOfType<ArrayAttr>(attr::stages);
    auto meshOf = [&](Operation *op) -> MeshAttr {
      auto stage = op->getAttrOfType<IntegerAttr>(attr::stage);
      if (!stage || !stages || stage.getInt() >= static_cast<int64_t>(stages.size()))
        return whole;
      return cast<StageAttr>(stages[stage.getInt()]).getMesh();
    };
    for (auto function : module.getOps<func::FuncOp>()) {
      if (function.isExternal() || !llvm::hasSingleElement(function.getBody()))
        continue;
      SumDeferrer deferrer(function, meshOf);
      if (failed(deferrer.run()))
        return signalPassFailure();
      numDeferred += deferrer.numDeferred;
      numSums += deferrer.numSums;
    }
  }
};

} // namespace
