//===- TransformerEngineCall.cpp - kernels of Transformer Engine ----------===//

#include "compiler/Analysis/Calls/TransformerEngineCall.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "llvm/Support/MathExtras.h"
#include <numeric>

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;
namespace hlo = mlir::stablehlo;
using Kind = TransformerEngineCall::Kind;
using Mask = TransformerEngineCall::Mask;

FfiAttributes::FfiAttributes(hlo::CustomCallOp op)
    : given(op->getAttrOfType<DictionaryAttr>("mhlo.backend_config")) {
  if (!given)
    given = dyn_cast_or_null<DictionaryAttr>(op.getBackendConfigAttr());
  if (auto inner = given ? given.getAs<DictionaryAttr>("config") : DictionaryAttr())
    given = inner;
}

std::optional<int64_t> FfiAttributes::number(StringRef name) const {
  Attribute value = given ? given.get(name) : Attribute();
  if (auto truth = dyn_cast_or_null<BoolAttr>(value))
    return truth.getValue();
  if (isa_and_nonnull<UnitAttr>(value))
    return 1;
  auto integer = dyn_cast_or_null<IntegerAttr>(value);
  return integer ? std::optional(integer.getInt()) : std::nullopt;
}

std::optional<double> FfiAttributes::real(StringRef name) const {
  auto value = given ? given.getAs<FloatAttr>(name) : FloatAttr();
  return value ? std::optional(value.getValueAsDouble()) : std::nullopt;
}

static bool areStatic(Operation *op) {
  return llvm::all_of(llvm::concat<const Type>(op->getOperandTypes(), op->getResultTypes()),
                      [](Type type) {
                        auto tensor = dyn_cast<RankedTensorType>(type);
                        return tensor && tensor.hasStaticShape();
                      });
}

/// For all of a tensor, or none.
static bool hasOneScale(int64_t scaling) {
  return llvm::is_contained({TransformerEngineCall::NoScaling, TransformerEngineCall::Delayed,
                             TransformerEngineCall::Current},
                            scaling);
}

/// Quantized calls have a mode, or a second output, of columns.
static bool isPlain(hlo::CustomCallOp op, const FfiAttributes &given) {
  return given.number("scaling_mode") == 0 && given.number("is_2x").value_or(0) == 0 &&
         cast<RankedTensorType>(op->getResult(1).getType()).getNumElements() <= 1;
}

static bool readNorm(TransformerEngineCall &call, const FfiAttributes &given) {
  hlo::CustomCallOp op = call.op;
  bool isForward = call.kind == Kind::NormForward;
  size_t operands = op->getNumOperands();
  bool hasCounts = isForward ? (operands == 4 || operands == 5) && op->getNumResults() == 8
                             : operands == 5 && op->getNumResults() == 4;
  std::optional<int64_t> type = given.number("norm_type"),
                         centered = given.number("zero_centered_gamma");
  if (!hasCounts || !type || (*type != 0 && *type != 1) || !centered)
    return false;
  call.isRootMeanSquare = *type == 1;
  call.isZeroCentered = *centered != 0;
  llvm::ArrayRef<int64_t> shape = shapeOf(call.input());
  if (shape.size() < 2 || shapeOf(call.gamma()) != shape.take_back(1) ||
      shapeOf(op->getResult(0)) != shape)
    return false;
  llvm::ArrayRef<int64_t> rows = shape.drop_back();
  auto isMean = [&](Value value) {
    return call.isRootMeanSquare ? cast<RankedTensorType>(value.getType()).getNumElements() == 1
                                 : shapeOf(value) == rows;
  };
  if (!isForward)
    return shapeOf(op->getOperand(0)) == shape && isMean(op->getOperand(2)) &&
           shapeOf(op->getOperand(3)) == rows && shapeOf(op->getResult(1)) == shape.take_back(1);
  std::optional<double> epsilon = given.real("epsilon");
  call.epsilon = epsilon.value_or(0);
  return epsilon && isPlain(op, given) && isMean(op->getResult(5)) &&
         shapeOf(op->getResult(6)) == rows;
}

static bool readSoftmax(TransformerEngineCall &call, const FfiAttributes &given) {
  hlo::CustomCallOp op = call.op;
  std::optional<double> scale = given.real("scale_factor");
  call.scale = scale.value_or(1);
  bool hasSecond = call.kind == Kind::SoftmaxBackward || call.mask == Mask::Given;
  if (!scale || op->getNumOperands() != (hasSecond ? 2 : 1) || op->getNumResults() != 1)
    return false;
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getOperand(0));
  if (shape.size() != 4 || shapeOf(op->getResult(0)) != shape)
    return false;
  if (call.kind == Kind::SoftmaxBackward)
    return shapeOf(op->getOperand(1)) == shape;
  if (call.mask != Mask::Given)
    return true;
  llvm::ArrayRef<int64_t> mask = shapeOf(op->getOperand(1));
  return mask.size() == 4 && (mask[0] == 1 || mask[0] == shape[0]) && mask[1] == 1 &&
         mask.take_back(2) == shape.take_back(2);
}

static bool readActivation(hlo::CustomCallOp op, bool isBackward, const FfiAttributes &given) {
  if (op->getNumOperands() < (isBackward ? 3 : 2) || op->getNumResults() < (isBackward ? 7 : 5) ||
      !isPlain(op, given) || given.number("is_dbias").value_or(0) != 0)
    return false;
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getOperand(isBackward ? 1 : 0));
  if (shape.size() < 3)
    return false;
  llvm::SmallVector<int64_t> output(shape);
  output.erase(output.end() - 2);
  return isBackward ? shapeOf(op->getOperand(0)) == llvm::ArrayRef(output) &&
                          shapeOf(op->getResult(0)) == shape
                    : shapeOf(op->getResult(0)) == llvm::ArrayRef(output);
}

static bool readProduct(TransformerEngineCall &call, const FfiAttributes &given) {
  hlo::CustomCallOp op = call.op;
  std::optional<int64_t> lhs = given.number("lhs_axis_boundary"),
                         rhs = given.number("rhs_axis_boundary"),
                         isLhsTransposed = given.number("lhs_transposed"),
                         isRhsTransposed = given.number("rhs_transposed");
  call.scaling = given.number("scaling_mode").value_or(-1);
  if (!lhs || !rhs || !isLhsTransposed || !isRhsTransposed || op->getNumOperands() < 6 ||
      !hasOneScale(call.scaling))
    return false;
  for (StringRef name : {"collective_op", "grad"})
    if (given.number(name).value_or(0) != 0)
      return false;
  bool isNothing = cast<RankedTensorType>(call.bias().getType()).getNumElements() == 0;
  call.hasBias = given.number("fuse_bias").value_or(!isNothing) != 0;
  call.hasGelu = given.number("fuse_gelu").value_or(0) != 0;
  call.lhsBoundary = *lhs;
  call.rhsBoundary = *rhs;
  call.isLhsTransposed = *isLhsTransposed != 0;
  call.isRhsTransposed = *isRhsTransposed != 0;
  llvm::ArrayRef<int64_t> left = shapeOf(op->getOperand(0)), right = shapeOf(call.rhs());
  if (*lhs <= 0 || *rhs <= 0 || *lhs >= int64_t(left.size()) || *rhs >= int64_t(right.size()))
    return false;
  // Contracted dimensions meet one by one, and the result has all others.
  llvm::SmallVector<int64_t> kept, contracted, met;
  auto part = [](llvm::ArrayRef<int64_t> shape, int64_t boundary, bool isFirst) {
    return isFirst ? shape.take_front(boundary) : shape.drop_front(boundary);
  };
  llvm::append_range(kept, part(left, *lhs, !call.isLhsTransposed));
  llvm::append_range(kept, part(right, *rhs, call.isRhsTransposed));
  llvm::append_range(contracted, part(left, *lhs, call.isLhsTransposed));
  llvm::append_range(met, part(right, *rhs, !call.isRhsTransposed));
  llvm::ArrayRef<int64_t> ofBias = part(right, *rhs, call.isRhsTransposed);
  if (call.hasBias && shapeOf(call.bias()) != ofBias)
    return false;
  // What GELU is applied to goes to the backward call.
  if (call.hasGelu &&
      (op->getNumResults() != 4 || shapeOf(op->getResult(2)) != llvm::ArrayRef(kept)))
    return false;
  return contracted == met && shapeOf(op->getResult(0)) == llvm::ArrayRef(kept);
}

static llvm::SmallVector<int64_t> withSize(llvm::ArrayRef<int64_t> shape, int64_t dim,
                                           int64_t size) {
  llvm::SmallVector<int64_t> changed(shape);
  changed[dim] = size;
  return changed;
}

constexpr int64_t kScaleBlock = 32; // Elements that have one scale, of MXFP8.

static bool isNothing(Value value) {
  return cast<RankedTensorType>(value.getType()).getNumElements() <= 1;
}

static bool readQuantize(TransformerEngineCall &call, const FfiAttributes &given) {
  hlo::CustomCallOp op = call.op;
  std::optional<int64_t> axis = given.number("flatten_axis");
  call.scaling = given.number("scaling_mode").value_or(-1);
  if (op->getNumOperands() < 2 || op->getNumResults() != 7 || !axis)
    return false;
  for (StringRef name : {"stochastic_rounding", "use_rht"})
    if (given.number(name).value_or(0) != 0)
      return false;
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getOperand(0));
  auto rank = static_cast<int64_t>(shape.size());
  call.flattenAxis = *axis < 0 ? *axis + rank : *axis;
  if (call.flattenAxis <= 0 || call.flattenAxis >= rank || isNothing(op->getOperand(0)))
    return false;
  auto is = [&](unsigned result, llvm::ArrayRef<int64_t> wanted) {
    return shapeOf(op->getResult(result)) == wanted;
  };
  bool hasRows = is(0, shape), hasColumns = !isNothing(op->getResult(1));
  if (!hasRows && !isNothing(op->getResult(0)))
    return false;
  if (call.scaling == TransformerEngineCall::Blocks) {
    int64_t last = rank - 1, before = call.flattenAxis - 1;
    if (shape[last] % kScaleBlock || shape[before] % kScaleBlock)
      return false;
    // Of other shapes they are padded, by blocks of parts in other places.
    return (!hasRows || is(2, withSize(shape, last, shape[last] / kScaleBlock))) &&
           (!hasColumns ||
            (is(1, shape) && is(3, withSize(shape, before, shape[before] / kScaleBlock))));
  }
  // Columns are those behind the axis, in front of the others.
  llvm::SmallVector<int64_t> turned(shape.drop_front(call.flattenAxis));
  llvm::append_range(turned, shape.take_front(call.flattenAxis));
  bool isDelayed = call.scaling == TransformerEngineCall::Delayed;
  return (isDelayed || call.scaling == TransformerEngineCall::Current) &&
         isNothing(op->getOperand(1)) && (!hasColumns || (isDelayed && is(1, turned)));
}

static bool readAuxLoss(TransformerEngineCall &call, const FfiAttributes &given) {
  hlo::CustomCallOp op = call.op;
  if (call.kind == TransformerEngineCall::Kind::AuxLossBackward)
    return op->getNumOperands() == 3 && op->getNumResults() == 1 &&
           shapeOf(op->getResult(0)).size() == 2 &&
           shapeOf(op->getOperand(1)) == shapeOf(op->getResult(0)).take_back(1) &&
           shapeOf(op->getOperand(0)).size() == 1 && isNothing(op->getOperand(2));
  std::optional<int64_t> topk = given.number("topk");
  std::optional<double> coefficient = given.real("coeff");
  if (!topk || *topk <= 0 || !coefficient || op->getNumOperands() != 2 || op->getNumResults() != 2)
    return false;
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getOperand(0));
  if (shape.size() != 2 || shapeOf(op->getOperand(1)) != shape.take_back(1) ||
      !isNothing(op->getResult(0)))
    return false;
  auto tokens = static_cast<double>(shape[0]), experts = static_cast<double>(shape[1]);
  call.factor = experts * *coefficient / static_cast<double>(*topk) / tokens / tokens;
  return true;
}

static bool readRouter(hlo::CustomCallOp op, const FfiAttributes &given) {
  // Sizes that attributes of some versions repeat.
  for (StringRef name : {"num_tokens", "num_rows"})
    if (given.number(name))
      return false;
  return shapeOf(op->getOperand(0)).size() >= 2;
}

static llvm::SmallVector<int64_t> numbered(int64_t boundary, size_t rank, bool isFirst) {
  return isFirst ? llvm::to_vector(llvm::seq<int64_t>(0, boundary))
                 : llvm::to_vector(llvm::seq<int64_t>(boundary, static_cast<int64_t>(rank)));
}

llvm::SmallVector<int64_t> TransformerEngineCall::lhsContracting() const {
  return numbered(lhsBoundary, shapeOf(op->getOperand(0)).size(), isLhsTransposed);
}
llvm::SmallVector<int64_t> TransformerEngineCall::rhsContracting() const {
  return numbered(rhsBoundary, shapeOf(rhs()).size(), !isRhsTransposed);
}

double TransformerEngineCall::flops() const {
  double flops = 2;
  for (int64_t size : shapeOf(op->getResult(0)))
    flops *= static_cast<double>(size);
  for (int64_t dim : lhsContracting())
    flops *= static_cast<double>(shapeOf(op->getOperand(0))[dim]);
  return flops;
}

/// Factors of dimensions whose parts together keep a multiple of so many elements.
static llvm::SmallVector<DimFactors> inUnits(RuleBuilder &builder, llvm::ArrayRef<int64_t> sizes,
                                             int64_t unit, FactorKind kind = FactorKind::Parallel,
                                             Reducer reducer = Reducer::Sum) {
  int64_t total = 1;
  for (int64_t size : sizes)
    total *= size;
  if (total == 0 || total % unit != 0) {
    kind = FactorKind::Sequential;
    unit = 1;
  }
  llvm::SmallVector<int64_t> inner(sizes.size());
  for (size_t dim = sizes.size(); dim-- > 0; unit /= inner[dim])
    inner[dim] = std::gcd(unit, sizes[dim]);
  llvm::SmallVector<DimFactors> factors;
  for (auto [size, least] : llvm::zip_equal(sizes, inner)) {
    unsigned outer = builder.factor(size / least, kind);
    builder.rule.factors[outer].reducer = reducer;
    factors.push_back({outer});
    if (least > 1)
      factors.back().push_back(builder.factor(least, FactorKind::Sequential));
  }
  return factors;
}

constexpr int64_t kAlignment = 16; // Of elements of 8 bits in rows of products.

static ShardingRule productRule(const TransformerEngineCall &call) {
  hlo::CustomCallOp op = call.op;
  RuleBuilder builder(op);
  auto left = call.lhsContracting(), right = call.rhsContracting();
  llvm::ArrayRef<int64_t> lhs = shapeOf(op->getOperand(0)), rhs = shapeOf(call.rhs());
  int64_t unit = call.scaling == TransformerEngineCall::NoScaling ? 1 : kAlignment;
  auto factorsOf = [&](llvm::ArrayRef<int64_t> shape, llvm::ArrayRef<int64_t> dims,
                       FactorKind kind) {
    llvm::SmallVector<int64_t> sizes;
    for (int64_t dim : dims)
      sizes.push_back(shape[dim]);
    return inUnits(builder, sizes, unit, kind, sumOf(op->getResult(0)));
  };
  // GELU needs the whole sum.
  auto inner = factorsOf(lhs, left, call.hasGelu ? FactorKind::Sequential : FactorKind::Reduction);
  for (auto [from, to, factors] : llvm::zip_equal(left, right, inner))
    builder.operand(0, from, factors).operand(2, to, factors);
  int64_t result = 0, ofBias = 0;
  for (auto [operand, shape, contracted] :
       {std::tuple(0u, lhs, llvm::ArrayRef(left)), {2u, rhs, llvm::ArrayRef(right)}}) {
    llvm::SmallVector<int64_t> kept;
    for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim)
      if (!llvm::is_contained(contracted, dim))
        kept.push_back(dim);
    for (auto [dim, factors] :
         llvm::zip_equal(kept, factorsOf(shape, kept, FactorKind::Parallel))) {
      if (operand == 2 && call.hasBias)
        builder.operand(4, ofBias++, factors);
      if (call.hasGelu)
        builder.result(2, result, factors);
      builder.operand(operand, dim, factors).result(0, result++, factors);
    }
  }
  if (call.hasBias && !call.hasGelu)
    builder.rule.broughtOnce = {4};
  builder.rule.heavy = true;
  return builder.rule;
}

std::optional<TransformerEngineCall> TransformerEngineCall::read(Operation *op) {
  auto custom = dyn_cast<hlo::CustomCallOp>(op);
  if (!custom)
    return std::nullopt;
  llvm::StringRef target = custom.getCallTargetName();
  if (!target.consume_front("te_") || !target.consume_back("_ffi") || custom.getHasSideEffect() ||
      !custom.getCalledComputations().empty() || !areStatic(op))
    return std::nullopt;
  TransformerEngineCall call;
  call.op = custom;
  FfiAttributes given(custom);
  if (target == "norm_forward" || target == "norm_backward") {
    call.kind = target == "norm_forward" ? Kind::NormForward : Kind::NormBackward;
    return readNorm(call, given) ? std::optional(call) : std::nullopt;
  }
  if (target == "act_lu" || target == "dact_dbias_quantize") {
    bool isBackward = target != "act_lu";
    call.kind = isBackward ? Kind::ActivationBackward : Kind::Activation;
    return readActivation(custom, isBackward, given) ? std::optional(call) : std::nullopt;
  }
  if (target == "gemm" || target == "gemm_v2") {
    call.kind = Kind::Product;
    return readProduct(call, given) ? std::optional(call) : std::nullopt;
  }
  if (target == "dbias_quantize") {
    call.kind = Kind::Quantize;
    return readQuantize(call, given) ? std::optional(call) : std::nullopt;
  }
  if (target == "fused_moe_aux_loss_forward" || target == "fused_moe_aux_loss_backward") {
    call.kind = target.ends_with("forward") ? Kind::AuxLoss : Kind::AuxLossBackward;
    return readAuxLoss(call, given) ? std::optional(call) : std::nullopt;
  }
  if (target.starts_with("fused_topk_with_score_function_")) {
    call.kind = Kind::Router;
    return readRouter(custom, given) ? std::optional(call) : std::nullopt;
  }
  if (!target.consume_front("scaled_"))
    return std::nullopt;
  call.mask = target.consume_front("masked_")                ? Mask::Given
              : target.consume_front("upper_triang_masked_") ? Mask::Causal
                                                             : Mask::None;
  if (target != "softmax_forward" && target != "softmax_backward")
    return std::nullopt;
  call.kind = target == "softmax_forward" ? Kind::SoftmaxForward : Kind::SoftmaxBackward;
  return readSoftmax(call, given) ? std::optional(call) : std::nullopt;
}

/// A part keeps what a block of the kernel's threads works on: so many rows.
static int64_t rowsOfBlock(int64_t columns) {
  constexpr int64_t kThreads = 128, kWarp = 32;
  auto padded = static_cast<int64_t>(llvm::PowerOf2Ceil(static_cast<uint64_t>(columns)));
  return kThreads / std::min(padded, kWarp) * (padded <= 128 ? 2 : 1);
}

/// [batch, heads, queries, keys]: rows are independent, but a kernel asks for multiples, of
/// queries, and of all heads of all examples.
static ShardingRule softmaxRule(const TransformerEngineCall &call) {
  hlo::CustomCallOp op = call.op;
  RuleBuilder builder(op);
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getOperand(0));
  bool isCausal = call.mask == Mask::Causal;
  int64_t block = rowsOfBlock(shape[3]), least = isCausal ? block : 4;
  auto inUnits = [&](int64_t size, int64_t unit) {
    if (size == 0 || size % unit)
      return DimFactors{builder.factor(size, FactorKind::Sequential)};
    DimFactors factors{builder.factor(size / unit)};
    if (unit > 1)
      factors.push_back(builder.factor(unit, FactorKind::Sequential));
    return factors;
  };
  int64_t examples = 1; // That a part has at least.
  if (shape[1] % least != 0)
    while (examples <= shape[0] && examples * shape[1] % least != 0)
      ++examples;
  DimFactors dims[] = {inUnits(shape[0], examples),
                       shape[1] % least == 0
                           ? inUnits(shape[1], least)
                           : DimFactors{builder.factor(shape[1], FactorKind::Sequential)},
                       isCausal ? DimFactors{builder.factor(shape[2], FactorKind::Sequential)}
                                : inUnits(shape[2], block)};
  for (auto [dim, factors] : llvm::enumerate(dims)) {
    auto at = static_cast<int64_t>(dim);
    builder.operand(0, at, factors).result(0, at, factors);
    if (op->getNumOperands() > 1 && shapeOf(op->getOperand(1))[at] == shape[dim])
      builder.operand(1, at, factors);
  }
  return builder.rule;
}

/// With one scale an element is worked on by itself, with scales of blocks a block: rows and
/// columns then keep a multiple of 128 elements, for parts whose scales are not padded.
static ShardingRule quantizeRule(const TransformerEngineCall &call) {
  hlo::CustomCallOp op = call.op;
  RuleBuilder builder(op);
  bool hasBlocks = call.scaling == TransformerEngineCall::Blocks;
  // Scales of what is not asked for have any shape.
  auto hasScales = [&](unsigned result) {
    return hasBlocks && !isNothing(op->getResult(result - 2));
  };
  for (unsigned result = 2; result < op->getNumResults(); ++result)
    if (!op->getResult(result).use_empty() && !(result < 4 && hasScales(result)))
      return builder.rule;
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getOperand(0));
  auto axis = static_cast<size_t>(call.flattenAxis);
  int64_t unit = hasBlocks ? 4 * kScaleBlock : 1;
  llvm::SmallVector<DimFactors> dims = inUnits(builder, shape.take_front(axis), unit);
  llvm::append_range(dims, inUnits(builder, shape.drop_front(axis), unit));
  auto set = [&](unsigned result, llvm::ArrayRef<DimFactors> factors) {
    if (!isNothing(op->getResult(result)))
      for (auto [dim, of] : llvm::enumerate(factors))
        builder.result(result, static_cast<int64_t>(dim), of);
  };
  llvm::SmallVector<DimFactors> turned(llvm::drop_begin(dims, axis));
  llvm::append_range(turned, llvm::ArrayRef(dims).take_front(axis));
  if (hasBlocks)
    for (size_t dim : {shape.size() - 1, axis - 1}) {
      // A unit is some blocks of elements, and as many scales.
      int64_t inUnit = dims[dim].size() > 1 ? builder.rule.factors[dims[dim][1]].size : 1;
      if (inUnit % kScaleBlock)
        return RuleBuilder(op).rule;
      dims[dim] = {dims[dim][0], builder.factor(inUnit / kScaleBlock, FactorKind::Sequential),
                   builder.factor(kScaleBlock, FactorKind::Sequential)};
    }
  for (auto [dim, of] : llvm::enumerate(dims))
    builder.operand(0, static_cast<int64_t>(dim), of);
  set(0, dims);
  set(5, llvm::ArrayRef(dims).drop_front(axis)); // A sum of the part's rows, which nobody reads.
  set(1, hasBlocks ? llvm::ArrayRef(dims) : llvm::ArrayRef(turned));
  if (hasBlocks)
    for (auto [dim, result] : {std::pair(shape.size() - 1, 2u), {axis - 1, 3u}}) {
      llvm::SmallVector<DimFactors> scales(dims);
      scales[dim].pop_back();
      if (hasScales(result))
        set(result, scales);
    }
  return builder.rule;
}

/// All dimensions but the last, of all tensors that have them.
static ShardingRule routerRule(hlo::CustomCallOp op) {
  RuleBuilder builder(op);
  llvm::ArrayRef<int64_t> shape = shapeOf(op->getOperand(0));
  auto hasRows = [&](Value value) {
    llvm::ArrayRef<int64_t> other = shapeOf(value);
    return other.size() == shape.size() && other.drop_back() == shape.drop_back();
  };
  if (!llvm::all_of(op->getResults(), hasRows))
    return builder.rule;
  for (size_t dim = 0; dim + 1 < shape.size(); ++dim) {
    unsigned row = builder.factor(shape[dim]);
    auto at = static_cast<int64_t>(dim);
    for (auto [index, operand] : llvm::enumerate(op->getOperands()))
      if (hasRows(operand))
        builder.operand(static_cast<unsigned>(index), at, {row});
    for (unsigned result = 0; result < op->getNumResults(); ++result)
      builder.result(result, at, {row});
  }
  return builder.rule;
}

ShardingRule TransformerEngineCall::rule() const {
  if (kind == Kind::Quantize)
    return quantizeRule(*this);
  if (kind == Kind::Router)
    return routerRule(op);
  if (kind == Kind::AuxLoss || kind == Kind::AuxLossBackward)
    return RuleBuilder(op).rule; // `alpa-import` writes it in plain ops.
  if (kind == Kind::SoftmaxForward || kind == Kind::SoftmaxBackward)
    return softmaxRule(*this);
  RuleBuilder builder(op);
  bool isOfRows = llvm::all_of(llvm::enumerate(op->getResults()), [&](auto result) {
    bool hasRows = result.index() == 0 || (hasGelu && result.index() == 2) ||
                   (kind == Kind::NormForward && (result.index() == 5 || result.index() == 6));
    return hasRows || result.value().use_empty();
  });
  if (!isOfRows)
    return builder.rule;
  if (kind == Kind::Product)
    return productRule(*this);
  // The tensors that have rows, numbered with results behind operands.
  auto results = static_cast<unsigned>(op->getNumOperands());
  llvm::SmallVector<unsigned> tensors;
  bool hasMean = !isRootMeanSquare;
  if (kind == Kind::NormForward)
    tensors = {0, results, results + 6};
  else if (kind == Kind::NormBackward)
    tensors = {0, 1, 3, results};
  else if (kind == Kind::Activation)
    tensors = {0, results};
  else
    tensors = {0, 1, results};
  if (kind == Kind::NormForward && hasMean)
    tensors.push_back(results + 5);
  if (kind == Kind::NormBackward && hasMean)
    tensors.push_back(2);
  auto set = [&](unsigned tensor, int64_t dim, unsigned factor) {
    if (tensor < results)
      builder.operand(tensor, dim, {factor});
    else
      builder.result(tensor - results, dim, {factor});
  };
  auto valueOf = [&](unsigned tensor) {
    return tensor < results ? op->getOperand(tensor) : Value(op->getResult(tensor - results));
  };
  bool isActivation = kind == Kind::Activation || kind == Kind::ActivationBackward;
  // Of an activation the shorter side is without the dimension of gates.
  unsigned shorter = kind == Kind::Activation ? results : 0;
  llvm::ArrayRef<int64_t> shape = shapeOf(valueOf(shorter));
  for (int64_t dim = 0; dim + 1 < static_cast<int64_t>(shape.size()); ++dim) {
    unsigned row = builder.factor(shape[dim]);
    for (unsigned tensor : tensors)
      set(tensor, dim, row);
  }
  if (isActivation) {
    unsigned feature = builder.factor(shape.back());
    for (unsigned tensor : tensors)
      set(tensor, static_cast<int64_t>(shapeOf(valueOf(tensor)).size()) - 1, feature);
  }
  return builder.rule;
}
