//===- TransformerEngineCall.cpp - kernels of Transformer Engine ----------===//

#include "compiler/Analysis/TransformerEngineCall.h"

#include "compiler/Analysis/RuleBuilder.h"
#include "llvm/Support/MathExtras.h"

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;
namespace hlo = mlir::stablehlo;
using Kind = TransformerEngineCall::Kind;
using Mask = TransformerEngineCall::Mask;

namespace {

/// What an FFI call is given beside its operands.
class Attributes {
public:
  explicit Attributes(hlo::CustomCallOp op)
      : given(op->getAttrOfType<DictionaryAttr>("mhlo.backend_config")) {
    if (!given)
      given = dyn_cast_or_null<DictionaryAttr>(op.getBackendConfigAttr());
    if (auto inner = given ? given.getAs<DictionaryAttr>("config") : DictionaryAttr())
      given = inner;
  }

  std::optional<int64_t> number(StringRef name) const {
    Attribute value = given ? given.get(name) : Attribute();
    if (auto truth = dyn_cast_or_null<BoolAttr>(value))
      return truth.getValue();
    auto integer = dyn_cast_or_null<IntegerAttr>(value);
    return integer ? std::optional(integer.getInt()) : std::nullopt;
  }
  std::optional<double> real(StringRef name) const {
    auto value = given ? given.getAs<FloatAttr>(name) : FloatAttr();
    return value ? std::optional(value.getValueAsDouble()) : std::nullopt;
  }

private:
  DictionaryAttr given;
};

} // namespace

static bool areStatic(Operation *op) {
  return llvm::all_of(llvm::concat<const Type>(op->getOperandTypes(), op->getResultTypes()),
                      [](Type type) {
                        auto tensor = dyn_cast<RankedTensorType>(type);
                        return tensor && tensor.hasStaticShape();
                      });
}

/// Quantized calls have a mode, or a second output, of columns.
static bool isPlain(hlo::CustomCallOp op, const Attributes &given) {
  return given.number("scaling_mode") == 0 && given.number("is_2x").value_or(0) == 0 &&
         cast<RankedTensorType>(op->getResult(1).getType()).getNumElements() <= 1;
}

static bool readNorm(TransformerEngineCall &call, const Attributes &given) {
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

static bool readSoftmax(TransformerEngineCall &call, const Attributes &given) {
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

static bool readActivation(hlo::CustomCallOp op, bool isBackward, const Attributes &given) {
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

static bool readProduct(TransformerEngineCall &call, const Attributes &given) {
  hlo::CustomCallOp op = call.op;
  std::optional<int64_t> lhs = given.number("lhs_axis_boundary"),
                         rhs = given.number("rhs_axis_boundary"),
                         isLhsTransposed = given.number("lhs_transposed"),
                         isRhsTransposed = given.number("rhs_transposed");
  if (!lhs || !rhs || !isLhsTransposed || !isRhsTransposed || op->getNumOperands() < 6 ||
      given.number("scaling_mode") != 0)
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

static ShardingRule productRule(const TransformerEngineCall &call) {
  hlo::CustomCallOp op = call.op;
  RuleBuilder builder(op);
  auto left = call.lhsContracting(), right = call.rhsContracting();
  llvm::ArrayRef<int64_t> lhs = shapeOf(op->getOperand(0)), rhs = shapeOf(call.rhs());
  for (auto [from, to] : llvm::zip_equal(left, right)) {
    // GELU needs the whole sum.
    unsigned inner = call.hasGelu ? builder.factor(lhs[from], FactorKind::Sequential)
                                  : builder.reduction(lhs[from], sumOf(op->getResult(0)));
    builder.operand(0, from, {inner}).operand(2, to, {inner});
  }
  int64_t result = 0, ofBias = 0;
  for (auto [operand, shape, contracted] :
       {std::tuple(0u, lhs, llvm::ArrayRef(left)), {2u, rhs, llvm::ArrayRef(right)}})
    for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim)
      if (!llvm::is_contained(contracted, dim)) {
        unsigned factor = builder.factor(shape[dim]);
        if (operand == 2 && call.hasBias)
          builder.operand(4, ofBias++, {factor});
        if (call.hasGelu)
          builder.result(2, result, {factor});
        builder.operand(operand, dim, {factor}).result(0, result++, {factor});
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
  Attributes given(custom);
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

ShardingRule TransformerEngineCall::rule() const {
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
