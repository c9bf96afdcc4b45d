//===- IndexArithmetic.cpp - integer scalars of a loop, computed ----------===//

#include "compiler/Import/IndexArithmetic.h"

#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Matchers.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace alpa;
namespace hlo = mlir::stablehlo;

static IntegerType scalarType(Type type) {
  auto tensor = dyn_cast<RankedTensorType>(type);
  auto element = tensor && tensor.getRank() == 0 ? dyn_cast<IntegerType>(tensor.getElementType())
                                                 : IntegerType();
  return element && element.getWidth() <= 64 ? element : IntegerType();
}

static bool isUnsigned(IntegerType type) { return type.isUnsigned() || type.getWidth() == 1; }

/// What is left of a number in a type.
static int64_t wrapped(uint64_t number, IntegerType type) {
  APInt bits(64, number);
  bits = bits.trunc(type.getWidth());
  return isUnsigned(type) ? int64_t(bits.getZExtValue()) : bits.getSExtValue();
}

bool alpa::isIndexScalar(Type type) { return bool(scalarType(type)); }

std::optional<int64_t> KnownScalars::get(Value value) const {
  if (auto it = numbers.find(value); it != numbers.end())
    return it->second;
  IntegerType type = scalarType(value.getType());
  DenseIntElementsAttr constant;
  if (!type || !matchPattern(value, m_Constant(&constant)))
    return std::nullopt;
  APInt bits = *constant.value_begin<APInt>();
  return isUnsigned(type) ? int64_t(bits.getZExtValue()) : bits.getSExtValue();
}

static bool compares(hlo::ComparisonDirection direction, int64_t left, int64_t right, bool noSign) {
  bool less = noSign ? uint64_t(left) < uint64_t(right) : left < right;
  switch (direction) {
  case hlo::ComparisonDirection::EQ:
    return left == right;
  case hlo::ComparisonDirection::NE:
    return left != right;
  case hlo::ComparisonDirection::GE:
    return !less;
  case hlo::ComparisonDirection::GT:
    return !less && left != right;
  case hlo::ComparisonDirection::LE:
    return less || left == right;
  case hlo::ComparisonDirection::LT:
    break;
  }
  return less;
}

bool KnownScalars::run(Operation *op) {
  if (op->getNumResults() != 1 || op->getNumRegions() > 0 || op->getNumOperands() > 3)
    return false;
  IntegerType type = scalarType(op->getResult(0).getType());
  if (!type)
    return false;
  if (op->getNumOperands() == 0)
    return get(op->getResult(0)).has_value();
  SmallVector<int64_t, 3> in;
  for (Value operand : op->getOperands()) {
    std::optional<int64_t> number = get(operand);
    if (!number)
      return false;
    in.push_back(*number);
  }
  IntegerType from = scalarType(op->getOperand(0).getType());
  auto less = [&] {
    return compares(hlo::ComparisonDirection::LT, in[0], in[1], isUnsigned(from));
  };
  std::optional<uint64_t> result;
  if (auto compare = dyn_cast<hlo::CompareOp>(op)) {
    result = compares(compare.getComparisonDirection(), in[0], in[1], isUnsigned(from));
  } else {
    result = llvm::StringSwitch<std::optional<uint64_t>>(op->getName().getStringRef())
                 .Case("stablehlo.add", in.size() < 2 ? 0 : uint64_t(in[0]) + uint64_t(in[1]))
                 .Case("stablehlo.subtract", in.size() < 2 ? 0 : uint64_t(in[0]) - uint64_t(in[1]))
                 .Case("stablehlo.multiply", in.size() < 2 ? 0 : uint64_t(in[0]) * uint64_t(in[1]))
                 .Case("stablehlo.minimum", in.size() < 2 ? 0
                                            : less()      ? in[0]
                                                          : in[1])
                 .Case("stablehlo.maximum", in.size() < 2 ? 0
                                            : less()      ? in[1]
                                                          : in[0])
                 .Case("stablehlo.negate", -uint64_t(in[0]))
                 .Case("stablehlo.select", in.size() < 3 ? 0
                                           : in[0]       ? in[1]
                                                         : in[2])
                 .Default(std::nullopt);
    if (isa<hlo::ConvertOp>(op)) // To a truth value: whether it is zero.
      result = type.getWidth() == 1 ? uint64_t(in[0] != 0) : uint64_t(in[0]);
    // On truth values these are logical.
    if (type.getWidth() == 1 && !isa<hlo::ConvertOp, hlo::SelectOp>(op))
      return false;
  }
  if (!result)
    return false;
  set(op->getResult(0), wrapped(*result, type));
  return true;
}

std::optional<SmallVector<int64_t>> alpa::knownStarts(ValueRange starts, ArrayRef<int64_t> whole,
                                                      ArrayRef<int64_t> part,
                                                      const KnownScalars &scalars) {
  SmallVector<int64_t> result;
  for (auto [start, size, taken] : llvm::zip_equal(starts, whole, part)) {
    if (size == taken) { // Clamped, whatever it is.
      result.push_back(0);
      continue;
    }
    std::optional<int64_t> number = scalars.get(start);
    if (!number)
      return std::nullopt;
    bool isHuge = isUnsigned(scalarType(start.getType())) && *number < 0; // Of 64 bits.
    result.push_back(isHuge ? size - taken : std::clamp<int64_t>(*number, 0, size - taken));
  }
  return result;
}
