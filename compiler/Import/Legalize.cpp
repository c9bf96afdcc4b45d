//===- Legalize.cpp - ops that others say as well -------------------------===//

#include "compiler/Import/Legalize.h"
#include "dialects/Common/Diagnostics.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectResourceBlobManager.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/Matchers.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "mlir/Transforms/RegionUtils.h"
#include "llvm/Support/CheckedArithmetic.h"

using namespace alpa;
using namespace mlir;
namespace hlo = mlir::stablehlo;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

//===----------------------------------------------------------------------===//
// Sizes
//===----------------------------------------------------------------------===//

namespace {

using Numbers = SmallVector<int64_t>;

/// Computes integers that say sizes, and with them the ops that take such.
class SizeResolver {
public:
  explicit SizeResolver(unsigned &count) : count(count) {}

  LogicalResult run(func::FuncOp main) {
    // Operands stand before what reads them.
    SmallVector<Operation *> ops;
    main.walk<WalkOrder::PreOrder>([&](Operation *op) { ops.push_back(op); });
    for (Operation *op : ops) {
      if (isDynamic(op)) {
        if (failed(writeStatic(op)))
          return failure();
        continue;
      }
      if (auto call = dyn_cast<hlo::CustomCallOp>(op);
          call && call.getCallTargetName() == "shape_assertion") {
        if (failed(checkAssertion(call)))
          return failure();
        continue;
      }
      takeShape(op);
      std::optional<Numbers> found = compute(op);
      if (auto size = dyn_cast<hlo::GetDimensionSizeOp>(op); size && found)
        writeConstant(size, found->front());
      else if (found)
        known[op->getResult(0)] = std::move(*found);
    }
    Operation *end = main.getBody().front().getTerminator();
    main.setType(
        FunctionType::get(main.getContext(), main.getArgumentTypes(), end->getOperandTypes()));
    return success();
  }

private:
  static constexpr int64_t kMostNumbers = 64; // No shape has more dimensions.

  static bool isDynamic(Operation *op) {
    return isa<hlo::DynamicBroadcastInDimOp, hlo::DynamicReshapeOp, hlo::DynamicIotaOp,
               hlo::DynamicPadOp, hlo::RealDynamicSliceOp, hlo::DynamicGatherOp>(op);
  }

  /// What JAX asserts of the sizes of arguments whose shapes have symbols. One that is not
  /// known stays.
  LogicalResult checkAssertion(hlo::CustomCallOp call) {
    std::optional<Numbers> holds =
        call.getInputs().empty() ? std::nullopt : lookup(call.getInputs().front());
    if (!holds || holds->size() != 1 || !call->use_empty())
      return success();
    if (holds->front() == 0) {
      auto message = call->getAttrOfType<StringAttr>("error_message");
      return call.emitOpError("does not hold: ") << (message ? message.getValue() : "no message");
    }
    call.erase();
    ++count;
    return success();
  }

  /// The shape that follows from the operands' shapes, all of which are known, in the ops
  /// that exported functions have most.
  static std::optional<Numbers> inferShape(Operation *op) {
    auto first = typeOf(op->getOperand(0));
    if (op->hasTrait<OpTrait::SameOperandsAndResultShape>() ||
        op->hasTrait<OpTrait::SameOperandsAndResultType>())
      return Numbers(first.getShape());
    Numbers shape;
    if (auto transpose = dyn_cast<hlo::TransposeOp>(op)) {
      for (int64_t dim : transpose.getPermutation())
        shape.push_back(first.getDimSize(dim));
      return shape;
    }
    if (auto reduce = dyn_cast<hlo::ReduceOp>(op)) {
      for (int64_t dim = 0; dim < first.getRank(); ++dim)
        if (!llvm::is_contained(reduce.getDimensions(), dim))
          shape.push_back(first.getDimSize(dim));
      return shape;
    }
    auto dot = dyn_cast<hlo::DotGeneralOp>(op);
    if (!dot)
      return std::nullopt;
    auto second = typeOf(dot.getRhs());
    hlo::DotDimensionNumbersAttr numbers = dot.getDotDimensionNumbers();
    for (int64_t dim : numbers.getLhsBatchingDimensions())
      shape.push_back(first.getDimSize(dim));
    auto addOthers = [&](RankedTensorType type, ArrayRef<int64_t> batch,
                         ArrayRef<int64_t> contracted) {
      for (int64_t dim = 0; dim < type.getRank(); ++dim)
        if (!llvm::is_contained(batch, dim) && !llvm::is_contained(contracted, dim))
          shape.push_back(type.getDimSize(dim));
    };
    addOthers(first, numbers.getLhsBatchingDimensions(), numbers.getLhsContractingDimensions());
    addOthers(second, numbers.getRhsBatchingDimensions(), numbers.getRhsContractingDimensions());
    return shape;
  }

  /// Results are as static as operands.
  static void takeShape(Operation *op) {
    auto isStatic = [](Type type) {
      auto tensor = dyn_cast<RankedTensorType>(type);
      return tensor && tensor.hasStaticShape();
    };
    if (op->getNumOperands() == 0 || llvm::all_of(op->getResultTypes(), isStatic) ||
        !llvm::all_of(op->getOperandTypes(), isStatic))
      return;
    if (std::optional<Numbers> shape = inferShape(op))
      for (Value result : op->getResults())
        result.setType(typeOf(result).clone(*shape));
  }

  void writeConstant(hlo::GetDimensionSizeOp op, int64_t size) {
    OpBuilder builder(op);
    auto value = DenseElementsAttr::get(typeOf(op.getResult()), static_cast<int32_t>(size));
    auto constant = hlo::ConstantOp::create(builder, op.getLoc(), value);
    constant->setDiscardableAttrs(op->getDiscardableAttrDictionary());
    known[constant.getOutput()] = {size};
    op.replaceAllUsesWith(constant.getOutput());
    op.erase();
    ++count;
  }

  std::optional<Numbers> lookup(Value value) const {
    auto it = known.find(value);
    return it == known.end() ? std::nullopt : std::optional(it->second);
  }

  /// The op's integers, in row-major order; nothing if they are not known or too many.
  std::optional<Numbers> compute(Operation *op) const {
    if (op->getNumResults() != 1)
      return std::nullopt;
    auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
    if (!type || !type.hasStaticShape() || type.getNumElements() > kMostNumbers ||
        !type.getElementType().isIntOrIndex())
      return std::nullopt;
    DenseIntElementsAttr constant;
    if (matchPattern(op, m_Constant(&constant)))
      return fit(readAll(constant), type);
    if (auto size = dyn_cast<hlo::GetDimensionSizeOp>(op)) {
      int64_t found = typeOf(size.getOperand()).getDimSize(size.getDimension());
      return ShapedType::isDynamic(found) ? std::nullopt : fit({found}, type);
    }
    SmallVector<Numbers> operands;
    for (Value operand : op->getOperands()) {
      std::optional<Numbers> found = lookup(operand);
      if (!found)
        return std::nullopt;
      operands.push_back(std::move(*found));
    }
    if (isa<hlo::ReshapeOp>(op) || (isa<hlo::ConvertOp>(op) && !type.getElementType().isInteger(1)))
      return fit(operands[0], type);
    if (isa<hlo::BroadcastInDimOp>(op) && operands[0].size() == 1)
      return Numbers(type.getNumElements(), operands[0].front());
    if (isa<hlo::ConcatenateOp>(op) && type.getRank() == 1) {
      Numbers all;
      for (const Numbers &part : operands)
        llvm::append_range(all, part);
      return all;
    }
    if (auto slice = dyn_cast<hlo::SliceOp>(op); slice && type.getRank() == 1) {
      Numbers part;
      int64_t stride = slice.getStrides()[0], limit = slice.getLimitIndices()[0];
      for (int64_t i = slice.getStartIndices()[0]; i < limit; i += std::min(stride, limit - i))
        part.push_back(operands[0][i]);
      return part;
    }
    if (operands.size() != 2 || operands[0].size() != operands[1].size())
      return std::nullopt;
    Numbers combined;
    for (auto [a, b] : llvm::zip_equal(operands[0], operands[1])) {
      std::optional<int64_t> number = combine(op, a, b);
      if (!number)
        return std::nullopt;
      combined.push_back(*number);
    }
    return fit(combined, type);
  }

  static Numbers readAll(DenseIntElementsAttr constant) {
    Type element = constant.getElementType();
    bool isUnsigned = element.isUnsignedInteger() || element.isInteger(1);
    Numbers numbers;
    for (const APInt &number : constant.getValues<APInt>())
      numbers.push_back(isUnsigned ? int64_t(number.getLimitedValue(INT64_MAX))
                                   : number.getSExtValue());
    return numbers;
  }

  /// Numbers that the element type holds; what would wrap around is not known.
  static std::optional<Numbers> fit(Numbers numbers, RankedTensorType type) {
    auto element = dyn_cast<IntegerType>(type.getElementType());
    unsigned width = element ? element.getWidth() : 64;
    bool isUnsigned = element && (element.isUnsigned() || width == 1);
    for (int64_t number : numbers)
      if (isUnsigned ? number < 0 || (width < 64 && number >> width != 0)
                     : !llvm::isIntN(width, number))
        return std::nullopt;
    return numbers;
  }

  static bool compare(hlo::ComparisonDirection direction, int64_t a, int64_t b) {
    switch (direction) {
    case hlo::ComparisonDirection::EQ:
      return a == b;
    case hlo::ComparisonDirection::NE:
      return a != b;
    case hlo::ComparisonDirection::GE:
      return a >= b;
    case hlo::ComparisonDirection::GT:
      return a > b;
    case hlo::ComparisonDirection::LE:
      return a <= b;
    case hlo::ComparisonDirection::LT:
      return a < b;
    }
    llvm_unreachable("all directions are handled");
  }

  static std::optional<int64_t> combine(Operation *op, int64_t a, int64_t b) {
    if (isa<hlo::AddOp>(op))
      return llvm::checkedAdd(a, b);
    if (isa<hlo::SubtractOp>(op))
      return llvm::checkedSub(a, b);
    if (isa<hlo::MulOp>(op))
      return llvm::checkedMul(a, b);
    if (isa<hlo::MaxOp>(op))
      return std::max(a, b);
    if (isa<hlo::MinOp>(op))
      return std::min(a, b);
    if (auto comparison = dyn_cast<hlo::CompareOp>(op))
      return compare(comparison.getComparisonDirection(), a, b);
    if (isa<hlo::DivOp>(op) && a >= 0 && b > 0)
      return a / b;
    if (isa<hlo::RemOp>(op) && a >= 0 && b > 0)
      return a % b;
    return std::nullopt;
  }

  /// The sizes of a result: its type's, or those that `sizes` says.
  std::optional<Numbers> shapeOf(Value result, Value sizes) const {
    if (typeOf(result).hasStaticShape())
      return Numbers(typeOf(result).getShape());
    std::optional<Numbers> found = lookup(sizes);
    // What is negative, or disagrees with the type, is the verifier's to refuse.
    if (!found || int64_t(found->size()) != typeOf(result).getRank() ||
        llvm::any_of(*found, [](int64_t size) { return size < 0; }))
      return std::nullopt;
    return found;
  }

  LogicalResult writeStatic(Operation *op) {
    OpBuilder builder(op);
    Operation *written = nullptr;
    Value result = op->getResult(0);
    auto typed = [&](ArrayRef<int64_t> shape) { return typeOf(result).clone(shape); };
    bool known = llvm::all_of(op->getOperandTypes(), [](Type type) {
      return cast<RankedTensorType>(type).hasStaticShape();
    });
    if (auto broadcast = dyn_cast<hlo::DynamicBroadcastInDimOp>(op); broadcast && known) {
      if (auto shape = shapeOf(result, broadcast.getOutputDimensions()))
        written = hlo::BroadcastInDimOp::create(builder, op->getLoc(), typed(*shape),
                                                broadcast.getOperand(),
                                                broadcast.getBroadcastDimensions());
    } else if (auto reshape = dyn_cast<hlo::DynamicReshapeOp>(op); reshape && known) {
      if (auto shape = shapeOf(result, reshape.getOutputShape()))
        written =
            hlo::ReshapeOp::create(builder, op->getLoc(), typed(*shape), reshape.getOperand());
    } else if (auto iota = dyn_cast<hlo::DynamicIotaOp>(op); iota && known) {
      if (auto shape = shapeOf(result, iota.getOutputShape()))
        written =
            hlo::IotaOp::create(builder, op->getLoc(), typed(*shape), iota.getIotaDimension());
    } else if (auto pad = dyn_cast<hlo::DynamicPadOp>(op); pad && known) {
      written = writePad(builder, pad);
    } else if (auto slice = dyn_cast<hlo::RealDynamicSliceOp>(op); slice && known) {
      written = writeSlice(builder, slice);
    } else if (auto gather = dyn_cast<hlo::DynamicGatherOp>(op); gather && known) {
      written = writeGather(builder, gather);
    }
    if (!written)
      return withCode(op->emitOpError(), ErrorCode::UnsupportedOp)
             << "has sizes that do not follow from constants and types; write the step for "
                "arrays of fixed shapes";
    written->setDiscardableAttrs(op->getDiscardableAttrDictionary());
    // `result` may have said sizes that the operands do not have.
    if (failed(verify(written)))
      return failure();
    if (!succeeded(verifyCompatibleShape(result.getType(), written->getResult(0).getType())))
      return op->emitOpError() << "gives " << written->getResult(0).getType() << ", which is no "
                               << result.getType();
    result.replaceAllUsesWith(written->getResult(0));
    op->erase();
    ++count;
    return success();
  }

  Operation *writePad(OpBuilder &builder, hlo::DynamicPadOp pad) const {
    std::optional<Numbers> low = lookup(pad.getEdgePaddingLow()),
                           high = lookup(pad.getEdgePaddingHigh()),
                           interior = lookup(pad.getInteriorPadding());
    if (!low || !high || !interior)
      return nullptr;
    auto from = typeOf(pad.getOperand());
    Numbers shape;
    for (auto [size, before, after, between] :
         llvm::zip_equal(from.getShape(), *low, *high, *interior)) {
      std::optional<int64_t> sum = llvm::checkedMul(std::max<int64_t>(size - 1, 0), between);
      for (int64_t part : {size, before, after})
        sum = sum ? llvm::checkedAdd(*sum, part) : sum;
      if (!sum || *sum < 0)
        return nullptr;
      shape.push_back(*sum);
    }
    return hlo::PadOp::create(builder, pad.getLoc(), from.clone(shape), pad.getOperand(),
                              pad.getPaddingValue(), *low, *high, *interior);
  }

  Operation *writeSlice(OpBuilder &builder, hlo::RealDynamicSliceOp slice) const {
    std::optional<Numbers> starts = lookup(slice.getStartIndices()),
                           limits = lookup(slice.getLimitIndices()),
                           strides = lookup(slice.getStrides());
    if (!starts || !limits || !strides)
      return nullptr;
    auto from = typeOf(slice.getOperand());
    Numbers shape;
    for (auto [start, limit, stride, size] :
         llvm::zip_equal(*starts, *limits, *strides, from.getShape())) {
      if (start < 0 || limit < start || limit > size || stride <= 0)
        return nullptr;
      shape.push_back((limit - start) / stride + ((limit - start) % stride != 0));
    }
    return hlo::SliceOp::create(builder, slice.getLoc(), from.clone(shape), slice.getOperand(),
                                *starts, *limits, *strides);
  }

  Operation *writeGather(OpBuilder &builder, hlo::DynamicGatherOp gather) const {
    std::optional<Numbers> sizes = lookup(gather.getSliceSizes());
    auto result = typeOf(gather.getResult());
    if (!sizes || !result.hasStaticShape())
      return nullptr;
    return hlo::GatherOp::create(builder, gather.getLoc(), result, gather.getOperand(),
                                 gather.getStartIndices(), gather.getDimensionNumbers(), *sizes,
                                 gather.getIndicesAreSorted());
  }

  unsigned &count;
  llvm::DenseMap<Value, Numbers> known;
};

} // namespace

//===----------------------------------------------------------------------===//
// if and map
//===----------------------------------------------------------------------===//

/// Branches of a case are numbered: false is 0, true is 1.
static void writeAsCase(hlo::IfOp op) {
  OpBuilder builder(op);
  Type index = RankedTensorType::get({}, builder.getI32Type());
  Value number = hlo::ConvertOp::create(builder, op.getLoc(), index, op.getPred());
  auto choice = hlo::CaseOp::create(builder, op.getLoc(), op.getResultTypes(), number, 2);
  choice.getBranches()[0].takeBody(op.getFalseBranch());
  choice.getBranches()[1].takeBody(op.getTrueBranch());
  choice->setDiscardableAttrs(op->getDiscardableAttrDictionary());
  op.replaceAllUsesWith(choice.getResults());
  op.erase();
}

/// Whether the op does to every element of arrays what it does to scalars.
static bool isElementwise(Operation &op) {
  return op.hasTrait<OpTrait::Elementwise>() ||
         isa<hlo::AbsOp, hlo::BitcastConvertOp, hlo::ClampOp, hlo::CompareOp, hlo::ComplexOp,
             hlo::ConvertOp, hlo::ImagOp, hlo::IsFiniteOp, hlo::RealOp, hlo::ReducePrecisionOp,
             hlo::SelectOp>(op);
}

static bool isScalar(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.getRank() == 0;
}

/// The computation of scalars becomes one of arrays of the inputs' shape.
static LogicalResult writeOverArrays(hlo::MapOp map) {
  auto whole = typeOf(map.getResult());
  if (!whole.hasStaticShape())
    return withCode(map.emitOpError(), ErrorCode::UnsupportedOp)
           << "gives " << whole << "; every value must be a tensor of static shape";
  OpBuilder builder(map);
  Block &body = map.getComputation().front();
  IRMapping mapping;
  mapping.map(body.getArguments(), map.getInputs());
  auto spread = [&](Value scalar) {
    Type type = whole.clone(typeOf(scalar).getElementType());
    return hlo::BroadcastInDimOp::create(builder, map.getLoc(), type, scalar, ArrayRef<int64_t>{});
  };
  for (Operation &op : body.without_terminator()) {
    auto where = CallSiteLoc::get(op.getLoc(), map.getLoc());
    if (isa<hlo::ConstantOp>(op) && isScalar(op.getResult(0))) {
      Operation *copy = builder.clone(op);
      copy->setLoc(where);
      mapping.map(op.getResult(0), spread(copy->getResult(0)));
      continue;
    }
    bool ofScalars =
        llvm::all_of(op.getOperands(), isScalar) && llvm::all_of(op.getResults(), isScalar);
    if (ofScalars && isa<hlo::ReshapeOp, hlo::BroadcastInDimOp>(op)) {
      mapping.map(op.getResult(0), mapping.lookupOrDefault(op.getOperand(0)));
      continue;
    }
    if (!ofScalars || !isElementwise(op))
      return withCode(op.emitOpError(), ErrorCode::UnsupportedOp)
             << "is in a stablehlo.map, but does not act element by element; write the "
                "computation over whole arrays, as jax.vmap does";
    // Scalars of outside are the same for every element.
    for (Value operand : op.getOperands())
      if (!mapping.contains(operand))
        mapping.map(operand, spread(operand));
    Operation *copy = builder.clone(op, mapping);
    copy->setLoc(where);
    for (Value result : copy->getResults())
      result.setType(whole.clone(typeOf(result).getElementType()));
  }
  Value result = body.getTerminator()->getOperand(0);
  if (!mapping.contains(result))
    mapping.map(result, spread(result));
  map.getResult().replaceAllUsesWith(mapping.lookup(result));
  map.erase();
  return success();
}

/// A scalar that constants alone make; those who make it come first in `ops`.
static bool isMadeOfConstants(Value value, llvm::SetVector<Operation *> &ops, unsigned depth = 0) {
  constexpr unsigned kMostDepth = 256; // Of the stack.
  Operation *op = value.getDefiningOp();
  if (ops.contains(op))
    return true;
  if (!op || op->getNumRegions() > 0 || op->getNumResults() != 1 || !isScalar(value) ||
      !isMemoryEffectFree(op) || depth == kMostDepth)
    return false;
  for (Value operand : op->getOperands())
    if (!isMadeOfConstants(operand, ops, depth + 1))
      return false;
  return ops.insert(op);
}

/// Functions of scalars have no value of outside for XLA: programs that were made small for export
/// have constants of theirs there. What else they read is refused.
static LogicalResult takeConstantsIntoBodies(Operation *op, unsigned &count) {
  for (Region &region : op->getRegions()) {
    llvm::SetVector<Value> captured;
    getUsedValuesDefinedAbove(region, captured);
    for (Value value : captured) {
      llvm::SetVector<Operation *> ops;
      if (!isMadeOfConstants(value, ops))
        return withCode(op->emitOpError(), ErrorCode::UnsupportedOp)
               << "reads in its body a value that is computed outside of it; make it an "
                  "operand, or compute it in the body";
      OpBuilder builder = OpBuilder::atBlockBegin(&region.front());
      IRMapping mapping;
      for (Operation *made : ops)
        builder.clone(*made, mapping);
      value.replaceUsesWithIf(mapping.lookup(value), [&](OpOperand &use) {
        return region.isAncestor(use.getOwner()->getParentRegion());
      });
      ++count;
    }
  }
  return success();
}

/// Large constants may stand at the end of a file.
static LogicalResult takeResource(hlo::ConstantOp op, unsigned &count) {
  auto resource = dyn_cast<DenseResourceElementsAttr>(op.getValue());
  if (!resource)
    return success();
  AsmResourceBlob *blob = resource.getRawHandle().getBlob();
  Type element = resource.getType().getElementType();
  bool isSplat = false;
  // Others are packed in ways of their own.
  bool isOfBytes = element.isIntOrFloat() && element.getIntOrFloatBitWidth() % 8 == 0;
  if (!blob || !isOfBytes ||
      !DenseElementsAttr::isValidRawBuffer(resource.getType(), blob->getData(), isSplat))
    return withCode(op.emitOpError(), ErrorCode::UnsupportedOp)
           << "is the resource '" << resource.getRawHandle().getKey() << "', which "
           << (blob ? "is not as many bytes as its type" : "the file does not have")
           << "; write it as `dense<..>`";
  op->setAttr(op.getValueAttrName(),
              DenseElementsAttr::getFromRawBuffer(resource.getType(), blob->getData()));
  ++count;
  return success();
}

LogicalResult importer::legalize(func::FuncOp main, unsigned &count) {
  if (main.walk([&](hlo::ConstantOp op) { return WalkResult(takeResource(op, count)); })
          .wasInterrupted())
    return failure();
  if (failed(SizeResolver(count).run(main)))
    return failure();
  main.walk([&](hlo::IfOp op) {
    writeAsCase(op);
    ++count;
  });
  // A map within another is written over scalars first.
  WalkResult result = main.walk([&](hlo::MapOp op) {
    ++count;
    return WalkResult(writeOverArrays(op));
  });
  if (result.wasInterrupted())
    return failure();
  result = main.walk([&](Operation *op) {
    bool isOfScalars = isa<hlo::ReduceOp, hlo::ReduceWindowOp, hlo::SortOp, hlo::ScatterOp,
                           hlo::SelectAndScatterOp, hlo::AllReduceOp, hlo::ReduceScatterOp>(op);
    return WalkResult(isOfScalars ? takeConstantsIntoBodies(op, count) : success());
  });
  return failure(result.wasInterrupted());
}
