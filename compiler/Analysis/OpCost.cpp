//===- OpCost.cpp - arithmetic and memory traffic of an op ----------------===//

#include "compiler/Analysis/Calls/AttentionCall.h"
#include "compiler/Analysis/Calls/BlockScaledDot.h"
#include "compiler/Analysis/Calls/CallRule.h"
#include "compiler/Analysis/Calls/TransformerEngineCall.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Chlo/ChloOps.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/TypeUtilities.h"
#include "llvm/ADT/StringSwitch.h"
#include <cmath>

using namespace alpa;
using namespace alpa::analysis;
using namespace mlir;

static double numElements(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type && type.hasStaticShape() ? static_cast<double>(type.getNumElements()) : 0;
}

unsigned analysis::getElementBits(Type type) {
  Type element = getElementTypeOrSelf(type);
  if (auto complex = llvm::dyn_cast<ComplexType>(element))
    return 2 * getElementBits(complex.getElementType());
  return element.isIntOrFloat() ? element.getIntOrFloatBitWidth() : 0;
}

double analysis::getTensorBytes(Type type) {
  auto tensor = llvm::dyn_cast<RankedTensorType>(type);
  if (!tensor || !tensor.hasStaticShape())
    return 0;
  // Booleans take a byte; of 2 and 4 bits several share one.
  unsigned bits = getElementBits(type);
  double bytes = bits == 1 ? 1 : bits / 8.0;
  return bytes * static_cast<double>(tensor.getNumElements());
}

double analysis::getBytes(Operation *op) {
  double bytes = 0;
  for (Type type : op->getOperandTypes())
    bytes += getTensorBytes(type);
  for (Value result : op->getResults())
    bytes += isWorkspace(result) ? 0 : getTensorBytes(result.getType());
  return bytes;
}

/// Whether XLA looks through an op from a product to the numbers of 8 bits that its operand is
/// made of: to another type, by a scale for all elements, or only moved.
static bool isDequantizing(Operation *op) {
  if (llvm::isa<stablehlo::ConvertOp, stablehlo::ReshapeOp, stablehlo::TransposeOp,
                stablehlo::SliceOp, stablehlo::BroadcastInDimOp>(op))
    return true;
  if (!llvm::isa<stablehlo::MulOp, stablehlo::DivOp>(op))
    return false;
  auto scale = op->getOperand(1).getDefiningOp<stablehlo::BroadcastInDimOp>();
  return scale ? numElements(scale.getOperand()) == 1
               : matchPattern(op->getOperand(1), m_Constant());
}

Value analysis::getQuantized(Value operand) {
  constexpr int kMostOps = 8;
  Operation *op = operand.getDefiningOp();
  for (int depth = 0; op && depth < kMostOps && isDequantizing(op); ++depth) {
    Value source = op->getOperand(0);
    Type element = getElementTypeOrSelf(source.getType());
    if (llvm::isa<FloatType>(element) && element.getIntOrFloatBitWidth() == 8)
      return source;
    op = source.getDefiningOp();
  }
  return {};
}

bool analysis::isQuantizedDot(Operation *op) {
  auto dot = llvm::dyn_cast<stablehlo::DotGeneralOp>(op);
  if (!dot || dot.getDotDimensionNumbers().getLhsContractingDimensions().size() != 1)
    return false;
  // Two of 5 bits of exponent have no product.
  Value lhs = getQuantized(op->getOperand(0)), rhs = lhs ? getQuantized(op->getOperand(1)) : lhs;
  auto isWide = [](Value value) {
    return llvm::isa<Float8E5M2Type>(getElementTypeOrSelf(value.getType()));
  };
  return lhs && rhs && !(isWide(lhs) && isWide(rhs));
}

static stablehlo::DotAlgorithmAttr algorithmOf(Operation *op) {
  auto dot = llvm::dyn_cast<stablehlo::DotGeneralOp>(op);
  return dot ? dot.getAlgorithmAttr() : stablehlo::DotAlgorithmAttr();
}

/// Whether XLA multiplies float32 as TF32 where a device has it: products without an algorithm,
/// unless they ask for the highest precision.
static bool roundsFloat32(Operation *op) {
  if (!llvm::isa<stablehlo::DotGeneralOp, stablehlo::ConvolutionOp, chlo::RaggedDotOp, GroupedDotOp,
                 GroupedSumOp>(op))
    return false;
  auto precisions = op->getAttrOfType<ArrayAttr>("precision_config");
  return llvm::none_of(precisions ? precisions.getValue() : llvm::ArrayRef<Attribute>(),
                       [](Attribute precision) {
                         if (auto named = llvm::dyn_cast<stablehlo::PrecisionAttr>(precision))
                           return named.getValue() == stablehlo::Precision::HIGHEST;
                         auto named = llvm::dyn_cast<chlo::PrecisionAttr>(precision);
                         return named && named.getValue() == stablehlo::Precision::HIGHEST;
                       });
}

llvm::StringRef analysis::getComputeType(Operation *op) {
  if (BlockScaledDot::read(op)) {
    // XLA makes the result's type of the operands where there are no units for them.
    bool isOfFour = getElementTypeOrSelf(op->getOperand(0).getType()).getIntOrFloatBitWidth() == 4;
    if (getElementTypeOrSelf(op->getResult(0).getType()).isF32())
      return isOfFour ? "nvfp4/tf32/float32" : "mxfp8/tf32/float32";
    return isOfFour ? "nvfp4/bfloat16" : "mxfp8/bfloat16";
  }
  bool isQuantized = isQuantizedDot(op);
  Value value = op->getNumOperands()  ? op->getOperand(0)
                : op->getNumResults() ? op->getResult(0)
                                      : Value();
  auto tensor = value ? llvm::dyn_cast<RankedTensorType>(value.getType()) : RankedTensorType();
  if (!tensor)
    return "float32";
  Type element = tensor.getElementType();
  auto algorithm = algorithmOf(op);
  if (algorithm)
    element = algorithm.getLhsPrecisionType();
  bool isComplex = llvm::isa<ComplexType>(element);
  if (isComplex)
    element = llvm::cast<ComplexType>(element).getElementType();
  if (element.isTF32() || (element.isF32() && !algorithm && !isComplex && roundsFloat32(op)))
    return isQuantized ? "float8/tf32/float32" : "tf32/float32";
  if (element.isBF16())
    return isQuantized ? "float8/bfloat16" : "bfloat16";
  if (element.isF16())
    return isQuantized ? "float8/float16" : "float16";
  if (element.isF64())
    return "float64";
  if (llvm::isa<FloatType>(element) && element.getIntOrFloatBitWidth() <= 8)
    return "float8/bfloat16";
  if (element.isInteger(8))
    return "int8";
  return isQuantized ? "float8/float32" : "float32";
}

static std::optional<int64_t> integerOf(Value value) {
  DenseIntElementsAttr number;
  if (!matchPattern(value, m_Constant(&number)) || number.getNumElements() != 1)
    return std::nullopt;
  return (*number.begin()).getSExtValue();
}

/// What each iteration adds to carried value `index`; nothing if that is not always the same.
static std::optional<int64_t> stepOf(Operation *loop, unsigned index) {
  if (!loop->getRegion(1).hasOneBlock())
    return std::nullopt;
  Block &body = loop->getRegion(1).front();
  Operation *next = body.getTerminator()->getOperand(index).getDefiningOp();
  bool isDown = next && llvm::isa<stablehlo::SubtractOp>(next);
  if (!next || !(isDown || llvm::isa<stablehlo::AddOp>(next)))
    return std::nullopt;
  Value other = next->getOperand(1);
  if (next->getOperand(0) != body.getArgument(index)) {
    if (isDown || other != body.getArgument(index))
      return std::nullopt;
    other = next->getOperand(0);
  }
  std::optional<int64_t> step = integerOf(other);
  return step && isDown ? -*step : step;
}

/// The number that an integer is, on average over the iterations of the loops around it: a
/// constant, a counter, or what a few linear ops make of these.
static std::optional<double> meanOf(Value value, int depth = 0) {
  constexpr int kMostOps = 16;
  if (std::optional<int64_t> number = integerOf(value))
    return static_cast<double>(*number);
  if (depth == kMostOps)
    return std::nullopt;
  if (auto argument = llvm::dyn_cast<BlockArgument>(value)) {
    auto loop = llvm::dyn_cast_or_null<stablehlo::WhileOp>(argument.getOwner()->getParentOp());
    if (!loop || !loop.getBody().hasOneBlock())
      return std::nullopt;
    unsigned index = argument.getArgNumber();
    Block &body = loop.getBody().front();
    std::optional<double> first = meanOf(loop->getOperand(index), depth + 1);
    if (!first || body.getTerminator()->getOperand(index) == body.getArgument(index))
      return first;
    std::optional<int64_t> step = stepOf(loop, index);
    if (!step)
      return std::nullopt;
    return *first + static_cast<double>(*step) * (getTripCount(loop) - 1) / 2;
  }
  Operation *op = value.getDefiningOp();
  if (llvm::isa<stablehlo::ConvertOp>(op))
    return meanOf(op->getOperand(0), depth + 1);
  if (!llvm::isa<stablehlo::AddOp, stablehlo::SubtractOp, stablehlo::MulOp, stablehlo::MinOp,
                 stablehlo::MaxOp>(op))
    return std::nullopt;
  std::optional<double> a = meanOf(op->getOperand(0), depth + 1);
  std::optional<double> b = a ? meanOf(op->getOperand(1), depth + 1) : std::nullopt;
  if (!b)
    return std::nullopt;
  if (llvm::isa<stablehlo::AddOp>(op))
    return *a + *b;
  if (llvm::isa<stablehlo::SubtractOp>(op))
    return *a - *b;
  if (llvm::isa<stablehlo::MulOp>(op))
    return *a * *b;
  return llvm::isa<stablehlo::MinOp>(op) ? std::min(*a, *b) : std::max(*a, *b);
}

/// The number that a value of a loop's condition is, or begins with.
static std::optional<double> beginsWith(Value value, Operation *loop) {
  if (auto argument = llvm::dyn_cast<BlockArgument>(value);
      argument && argument.getOwner()->getParentOp() == loop)
    value = loop->getOperand(argument.getArgNumber());
  return meanOf(value);
}

double analysis::getTripCount(Operation *loop) {
  // A loop that the data may end earlier is taken to do so, after as many at the most.
  constexpr double kMostUnknown = 32;
  Region &condition = loop->getRegion(0);
  if (!condition.hasOneBlock() || condition.front().getTerminator()->getNumOperands() != 1)
    return 1;
  std::optional<double> trips;
  bool isKnown = true;
  llvm::SmallVector<Value> parts{condition.front().getTerminator()->getOperand(0)};
  for (size_t part = 0; part < parts.size(); ++part) {
    Operation *op = parts[part].getDefiningOp();
    if (op && llvm::isa<stablehlo::AndOp>(op)) {
      parts.append(op->operand_begin(), op->operand_end());
      continue;
    }
    auto compare = llvm::dyn_cast_or_null<stablehlo::CompareOp>(op);
    std::optional<double> counted;
    for (unsigned side : {0u, 1u}) {
      auto counter =
          compare ? llvm::dyn_cast<BlockArgument>(compare->getOperand(side)) : BlockArgument();
      if (!counter || counter.getOwner() != &condition.front())
        continue;
      std::optional<double> limit = beginsWith(compare->getOperand(1 - side), loop);
      std::optional<int64_t> step = stepOf(loop, counter.getArgNumber());
      if (!limit || step == 0)
        continue;
      double from = beginsWith(counter, loop).value_or(0);
      auto direction = compare.getComparisonDirection();
      bool isInclusive = direction == stablehlo::ComparisonDirection::LE ||
                         direction == stablehlo::ComparisonDirection::GE;
      double way = std::abs(*limit - from) + isInclusive;
      double size = std::abs(static_cast<double>(step.value_or(1)));
      bool isOneNumber = *limit == std::floor(*limit) && from == std::floor(from);
      counted = std::max(1.0, isOneNumber ? std::ceil(way / size) : way / size);
      isKnown &= step.has_value();
      break;
    }
    isKnown &= counted.has_value();
    if (counted)
      trips = std::min(trips.value_or(*counted), *counted);
  }
  return !trips ? 1 : isKnown ? *trips : std::min(*trips, kMostUnknown);
}

static double flopsIn(Region &region) {
  double flops = 0;
  for (Block &block : region)
    for (Operation &inner : block)
      flops += getFlops(&inner);
  return flops;
}

static double regionFlops(Operation *op) {
  double flops = 0;
  for (Region &region : op->getRegions())
    flops += flopsIn(region);
  return flops;
}

/// Operations of a batch of factorizations or triangular solves of LAPACK or cuSOLVER, by the
/// leading terms of Golub and Van Loan, "Matrix Computations"; nothing for other calls.
static std::optional<double> factorizationFlops(stablehlo::CustomCallOp call) {
  llvm::StringRef target = call.getCallTargetName();
  if (!target.starts_with("lapack_") && !target.starts_with("cusolver_"))
    return std::nullopt;
  llvm::ArrayRef<int64_t> shape =
      call->getNumOperands() ? shapeOf(call->getOperand(0)) : llvm::ArrayRef<int64_t>();
  if (shape.size() < 2)
    return std::nullopt;
  double elements = numElements(call->getOperand(0));
  double rows = static_cast<double>(std::max(shape.end()[-2], shape.end()[-1]));
  double columns = static_cast<double>(std::min(shape.end()[-2], shape.end()[-1]));
  auto has = [&](llvm::StringRef name) { return target.contains(name); };
  if (has("potrf"))
    return elements * columns / 3;
  if (has("getrf"))
    return elements * (columns - columns * columns / rows / 3);
  if (has("geqrf") || has("orgqr") || has("ungqr"))
    return elements * 2 * (columns - columns * columns / rows / 3);
  if (has("syev") || has("heev"))
    return elements * 9 * columns;
  if (has("gesdd") || has("gesvd"))
    return elements * (4 * rows + 22 * columns * columns / rows);
  if (has("trsm") && call->getNumOperands() > 1)
    return numElements(call->getOperand(1)) * columns;
  return std::nullopt;
}

/// Each run copies the weights of its group, or reads and writes a sum in float32, beside its
/// product: on an H100 that takes what these numbers of rows take, on an A100 three quarters of it.
static constexpr double kRowsOfWeights = 350, kRowsOfSum = 1400;
static constexpr int64_t kLeastRows = 128; // Of a tile.

analysis::GroupedLoop analysis::getGroupedLoop(int64_t rows, int64_t groups, bool isSum) {
  if (groups < 2 || rows < 2)
    return {};
  // The least of (rows / size + groups) * (size + what a run takes beside).
  double best = std::sqrt((isSum ? kRowsOfSum : kRowsOfWeights) * static_cast<double>(rows) /
                          static_cast<double>(groups));
  auto size = static_cast<int64_t>(std::exp2(std::round(std::log2(best))));
  size = std::max(size, kLeastRows);
  // Each group may have one run that is not full.
  int64_t count = (rows + groups * (size - 1)) / size;
  return size * count < rows * groups ? GroupedLoop{size, count} : GroupedLoop{};
}

double analysis::timesComputed(Operation *op) {
  if (auto dot = llvm::dyn_cast<chlo::RaggedDotOp>(op))
    return static_cast<double>(shapeOf(dot.getGroupSizes()).back());
  bool isSum = llvm::isa<GroupedSumOp>(op);
  if (!isSum && !llvm::isa<GroupedDotOp>(op))
    return 1;
  int64_t rows = shapeOf(op->getOperand(0)).end()[-2];
  int64_t groups = shapeOf(isSum ? op->getResult(0) : op->getOperand(1)).end()[-3];
  GroupedLoop loop = getGroupedLoop(rows, groups, isSum);
  return static_cast<double>(loop.count == 0 ? groups : loop.count * loop.rows) /
         static_cast<double>(loop.count == 0 ? 1 : rows);
}

/// Whether every result combines all elements up to its own, or from it on: XLA goes through these
/// once (its ReduceWindowRewriter), as a running sum needs.
static bool isCumulative(stablehlo::ReduceWindowOp op, size_t dim) {
  int64_t size = shapeOf(op.getInputs().front())[dim];
  return size > 1 && op.getWindowDimensions()[dim] == size &&
         shapeOf(op->getResult(0))[dim] == size;
}

static llvm::SmallVector<double> branchFlops(Operation *choice) {
  return llvm::map_to_vector(choice->getRegions(), [](Region &region) { return flopsIn(region); });
}

unsigned analysis::getLongestBranch(Operation *choice) {
  llvm::SmallVector<double> flops = branchFlops(choice);
  return unsigned(llvm::max_element(flops) - flops.begin());
}

double analysis::getFlops(Operation *op) {
  llvm::StringRef name = op->getName().getStringRef();
  if (name == "stablehlo.while")
    return getTripCount(op) * regionFlops(op);
  if (name == "stablehlo.case") {
    llvm::SmallVector<double> flops = branchFlops(op);
    return *llvm::max_element(flops);
  }
  if (auto map = llvm::dyn_cast<MapOp>(op)) {
    double times = 1;
    for (int64_t size : map.levelSizes())
      times *= static_cast<double>(size);
    return times * regionFlops(op);
  }
  if (op->getNumResults() == 0)
    return 0;
  double results = numElements(op->getResult(0));
  if (name == "stablehlo.dot_general" || name == "stablehlo.convolution") {
    std::optional<ShardingRule> rule = getShardingRule(op);
    if (!rule)
      return 0;
    double flops = 2 * results;
    for (const Factor &factor : rule->factors)
      if (factor.kind == FactorKind::Reduction)
        flops *= static_cast<double>(factor.size);
    // A convolution's window: the kernel's spatial dimensions.
    if (name == "stablehlo.convolution")
      for (const DimFactors &dim : rule->operands[1])
        if (dim.size() == 1 && rule->factors[dim[0]].kind == FactorKind::Window)
          flops *= static_cast<double>(rule->factors[dim[0]].size);
    // One product may be made of several, of parts of its operands.
    auto algorithm = algorithmOf(op);
    return algorithm ? flops * static_cast<double>(algorithm.getNumPrimitiveOperations()) : flops;
  }
  if (auto dot = llvm::dyn_cast<chlo::RaggedDotOp>(op)) {
    auto numbers = dot.getRaggedDotDimensionNumbers();
    llvm::ArrayRef<int64_t> lhs = shapeOf(dot.getLhs());
    double flops = 2 * results;
    for (int64_t dim : numbers.getLhsContractingDimensions())
      flops *= static_cast<double>(lhs[dim]);
    // Each group contracts a part of its own.
    bool isParted = llvm::is_contained(numbers.getLhsContractingDimensions(),
                                       numbers.getLhsRaggedDimensions()[0]);
    return isParted ? flops / std::max(1.0, numElements(dot.getGroupSizes())) : flops;
  }
  // Each row meets one group.
  if (auto dot = llvm::dyn_cast<GroupedDotOp>(op))
    return 2 * results * static_cast<double>(shapeOf(dot.getRows())[1]);
  if (auto sum = llvm::dyn_cast<GroupedSumOp>(op))
    return 2 * numElements(sum.getLhs()) * static_cast<double>(shapeOf(sum.getRhs()).back());
  if (auto given = op->getAttrOfType<FloatAttr>(kCallFlops))
    return given.getValueAsDouble();
  if (auto call = llvm::dyn_cast<stablehlo::CustomCallOp>(op))
    if (std::optional<double> flops = factorizationFlops(call))
      return *flops;
  if (std::optional<AttentionCall> call = AttentionCall::read(op))
    return call->flops();
  if (std::optional<TransformerEngineCall> call = TransformerEngineCall::read(op);
      call && call->kind == TransformerEngineCall::Kind::Product)
    return call->flops();
  if (std::optional<BlockScaledDot> call = BlockScaledDot::read(op))
    return call->flops();
  bool movesOnly = llvm::StringSwitch<bool>(name)
                       .Cases({"stablehlo.constant", "stablehlo.iota", "stablehlo.broadcast_in_dim",
                               "stablehlo.reshape", "stablehlo.transpose", "stablehlo.slice",
                               "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice",
                               "stablehlo.concatenate", "stablehlo.pad", "stablehlo.reverse",
                               "stablehlo.gather", "stablehlo.optimization_barrier",
                               "stablehlo.bitcast_convert", "sdy.sharding_constraint"},
                              true)
                       .Default(false);
  if (movesOnly)
    return 0;
  if (name == "stablehlo.reduce")
    return numElements(op->getOperand(0));
  if (name == "stablehlo.scatter")
    return numElements(op->getOperand(op->getNumResults() + 1));
  if (name == "stablehlo.sort" || name == "chlo.top_k")
    return numElements(op->getOperand(0)) * std::log2(2 + numElements(op->getOperand(0)));
  if (name == "stablehlo.fft")
    return 5 * numElements(op->getOperand(0)) * std::log2(2 + numElements(op->getOperand(0)));
  if (auto window = llvm::dyn_cast<stablehlo::ReduceWindowOp>(op))
    for (auto [dim, size] : llvm::enumerate(window.getWindowDimensions()))
      if (!isCumulative(window, dim))
        results *= static_cast<double>(size);
  return results;
}

bool analysis::isComputedOnce(Operation *op) {
  return llvm::StringSwitch<bool>(op->getName().getStringRef())
      .Cases({"stablehlo.tanh", "stablehlo.log", "stablehlo.log_plus_one", "stablehlo.power",
              "stablehlo.exponential_minus_one", "stablehlo.logistic", "stablehlo.sine",
              "stablehlo.cosine", "stablehlo.tan", "stablehlo.atan2", "stablehlo.cbrt",
              "stablehlo.concatenate", "stablehlo.rng_bit_generator"},
             true)
      .Default(op->getDialect() && op->getDialect()->getNamespace() == "chlo");
}

bool analysis::keepsPrecision(Operation *op) {
  auto rounded = llvm::dyn_cast<stablehlo::ReducePrecisionOp>(op);
  auto type = rounded ? llvm::dyn_cast<FloatType>(mlir::getElementTypeOrSelf(op->getOperand(0)))
                      : FloatType();
  if (!type)
    return false;
  const llvm::fltSemantics &semantics = type.getFloatSemantics();
  int64_t mantissa = llvm::APFloat::semanticsPrecision(semantics) - 1;
  int64_t exponent = llvm::APFloat::semanticsSizeInBits(semantics) - 1 - mantissa;
  return static_cast<int64_t>(rounded.getExponentBits()) == exponent &&
         static_cast<int64_t>(rounded.getMantissaBits()) >= mantissa;
}

bool analysis::isElementwise(Operation *op, const ShardingRule &rule) {
  return !rule.heavy && !rule.leads && op->getNumRegions() == 0 &&
         llvm::none_of(rule.factors,
                       [](const Factor &factor) { return factor.kind == FactorKind::Reduction; });
}

bool analysis::readsPart(Operation *op) {
  return llvm::isa<stablehlo::SliceOp, stablehlo::DynamicSliceOp, stablehlo::GatherOp>(op);
}

bool analysis::reducesRows(Operation *op) {
  constexpr int64_t kLongestRow = 16384;
  auto reduce = llvm::dyn_cast<stablehlo::ReduceOp>(op);
  if (!reduce || reduce->getNumResults() != 1 || reduce.getDimensions().size() != 1)
    return false;
  llvm::ArrayRef<int64_t> shape = shapeOf(reduce->getOperand(0));
  return reduce.getDimensions()[0] + 1 == static_cast<int64_t>(shape.size()) &&
         shape.back() <= kLongestRow;
}

bool analysis::isWorkspace(Value value) {
  auto type = llvm::dyn_cast<RankedTensorType>(value.getType());
  return type && type.getRank() == 1 && type.getElementType().isUnsignedInteger(8) &&
         value.use_empty() && value.getDefiningOp<stablehlo::CustomCallOp>();
}
