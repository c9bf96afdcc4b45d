//===- LowerToCollectives.cpp - programs of one device --------------------===//

#include "compiler/Analysis/PartSizes.h"
#include "compiler/Sharding/Problem/Reshard.h"
#include "compiler/Spmd/OpSplit.h"
#include "compiler/Spmd/Passes.h"
#include "compiler/Spmd/RingAttention.h"
#include "compiler/Spmd/ShardedModule.h"
#include "dialects/Chlo/ChloOps.h"
#include "dialects/Common/Diagnostics.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Analysis/TopologicalSortUtils.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/SmallPtrSet.h"

namespace alpa::spmd {
#define GEN_PASS_DEF_LOWERTOCOLLECTIVES
#include "compiler/Spmd/Passes.h.inc"
} // namespace alpa::spmd

using namespace alpa;
using namespace alpa::spmd;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Writing what one device does
//===----------------------------------------------------------------------===//

namespace {

/// Makes the ops of a per-device program that depend on which device runs it.
/// Devices are numbered row-major in the mesh, and are replicas to StableHLO.
class DeviceBuilder {
public:
  DeviceBuilder(MLIRContext *context, llvm::ArrayRef<int64_t> meshShape)
      : builder(context), meshShape(meshShape) {}

  OpBuilder builder;
  unsigned numCollectives = 0;

  llvm::ArrayRef<int64_t> getMeshShape() const { return meshShape; }

  /// Place of this device's part in a dimension that `axes` split, as an i32 scalar.
  Value pieceIndex(llvm::ArrayRef<unsigned> axes, Location loc);
  /// First element of that part, if parts have `size` elements.
  Value pieceOffset(llvm::ArrayRef<unsigned> axes, int64_t size, Location loc);

  /// This device's part of a whole tensor.
  Value partOf(Value whole, const ShardingSpec &spec, Location loc);
  /// `value` is a part under `from`; the result is one under the step's spec.
  Value apply(const sharding::ReshardStep &step, const ShardingSpec &from, Value value);
  /// `reducer` is an op of two scalars: `stablehlo.add`.
  Value permute(Value value, const Ring::Pairs &pairs);
  Value allReduce(Value value, unsigned axis, llvm::StringRef reducer);
  Value reduceScatter(Value value, unsigned axis, int64_t dim, llvm::StringRef reducer);

  /// The number in any element type.
  Value scalar(int64_t value, Type element, Location loc);
  Value splat(Value scalar, llvm::ArrayRef<int64_t> shape, Location loc);
  Value binary(llvm::StringRef name, Value lhs, Value rhs);
  Value compare(stablehlo::ComparisonDirection direction, Value lhs, Value rhs);
  Value select(Value predicate, Value onTrue, Value onFalse);

  DenseIntElementsAttr groupsAlong(unsigned axis);

private:
  void fillReducer(Region &region, llvm::StringRef name, Value like);
  Value coordinate(unsigned axis, Location loc);
  RankedTensorType withDim(Value value, int64_t dim, int64_t size);

  llvm::ArrayRef<int64_t> meshShape;
  llvm::DenseMap<std::pair<Block *, unsigned>, Value> coordinates;
};

} // namespace

namespace hlo = mlir::stablehlo;
using analysis::nameOf;
using sharding::ReshardKind;

static RankedTensorType typeOf(Value value) { return cast<RankedTensorType>(value.getType()); }

static int64_t strideOf(unsigned axis, ArrayRef<int64_t> meshShape) {
  int64_t stride = 1;
  for (int64_t size : meshShape.drop_front(axis + 1))
    stride *= size;
  return stride;
}

Value DeviceBuilder::scalar(int64_t value, Type element, Location loc) {
  return hlo::ConstantOp::create(builder, loc,
                                 analysis::splatOf(value, RankedTensorType::get({}, element)));
}

Value DeviceBuilder::binary(StringRef name, Value lhs, Value rhs) {
  OperationState state(lhs.getLoc(), name, {lhs, rhs}, {lhs.getType()});
  return builder.create(state)->getResult(0);
}

Value DeviceBuilder::compare(hlo::ComparisonDirection direction, Value lhs, Value rhs) {
  OperationState state(lhs.getLoc(), hlo::CompareOp::getOperationName());
  state.addOperands({lhs, rhs});
  state.addTypes(typeOf(lhs).clone(builder.getI1Type()));
  state.addAttribute("comparison_direction",
                     hlo::ComparisonDirectionAttr::get(builder.getContext(), direction));
  return builder.create(state)->getResult(0);
}

Value DeviceBuilder::select(Value predicate, Value onTrue, Value onFalse) {
  OperationState state(onTrue.getLoc(), hlo::SelectOp::getOperationName(),
                       {predicate, onTrue, onFalse}, {onTrue.getType()});
  return builder.create(state)->getResult(0);
}

Value DeviceBuilder::splat(Value scalar, ArrayRef<int64_t> shape, Location loc) {
  if (shape.empty())
    return scalar;
  return hlo::BroadcastInDimOp::create(builder, loc, typeOf(scalar).clone(shape), scalar,
                                       builder.getDenseI64ArrayAttr({}));
}

/// Worked out once at the start of every block that needs it.
Value DeviceBuilder::coordinate(unsigned axis, Location loc) {
  Block *block = builder.getInsertionBlock();
  Value &known = coordinates[{block, axis}];
  if (known)
    return known;
  OpBuilder::InsertionGuard guard(builder);
  builder.setInsertionPointToStart(block);
  Type ui32 = builder.getIntegerType(32, /*isSigned=*/false);
  Value value = hlo::ReplicaIdOp::create(builder, loc, RankedTensorType::get({}, ui32));
  if (int64_t stride = strideOf(axis, meshShape); stride > 1)
    value = binary("stablehlo.divide", value, scalar(stride, ui32, loc));
  value = binary("stablehlo.remainder", value, scalar(meshShape[axis], ui32, loc));
  value =
      hlo::ConvertOp::create(builder, loc, RankedTensorType::get({}, builder.getI32Type()), value);
  return coordinates[{block, axis}] = value;
}

Value DeviceBuilder::pieceIndex(ArrayRef<unsigned> axes, Location loc) {
  Value index;
  for (unsigned axis : axes) {
    Value next = coordinate(axis, loc);
    if (index)
      next = binary(
          "stablehlo.add",
          binary("stablehlo.multiply", index, scalar(meshShape[axis], builder.getI32Type(), loc)),
          next);
    index = next;
  }
  return index ? index : scalar(0, builder.getI32Type(), loc);
}

Value DeviceBuilder::pieceOffset(ArrayRef<unsigned> axes, int64_t size, Location loc) {
  Value index = pieceIndex(axes, loc);
  if (axes.empty() || size == 1)
    return index;
  return binary("stablehlo.multiply", index, scalar(size, builder.getI32Type(), loc));
}

RankedTensorType DeviceBuilder::withDim(Value value, int64_t dim, int64_t size) {
  SmallVector<int64_t> shape(typeOf(value).getShape());
  shape[dim] = size;
  return typeOf(value).clone(shape);
}

Value DeviceBuilder::partOf(Value whole, const ShardingSpec &spec, Location loc) {
  if (spec.isReplicated())
    return whole;
  SmallVector<Value> starts;
  SmallVector<int64_t> sizes(typeOf(whole).getShape());
  for (auto [size, axes] : llvm::zip_equal(sizes, spec.dims)) {
    for (unsigned axis : axes)
      size /= meshShape[axis];
    starts.push_back(pieceOffset(axes, size, loc));
  }
  return hlo::DynamicSliceOp::create(builder, loc, typeOf(whole).clone(sizes), whole, starts,
                                     builder.getDenseI64ArrayAttr(sizes));
}

DenseIntElementsAttr DeviceBuilder::groupsAlong(unsigned axis) {
  int64_t devices = 1;
  for (int64_t size : meshShape)
    devices *= size;
  int64_t stride = strideOf(axis, meshShape), size = meshShape[axis];
  SmallVector<int64_t> members;
  for (int64_t first = 0; first < devices; ++first)
    if (first / stride % size == 0)
      for (int64_t i = 0; i < size; ++i)
        members.push_back(first + i * stride);
  return DenseIntElementsAttr::get(
      RankedTensorType::get({devices / size, size}, builder.getI64Type()), members);
}

Value DeviceBuilder::apply(const sharding::ReshardStep &step, const ShardingSpec &from,
                           Value value) {
  Location loc = value.getLoc();
  int64_t size = step.kind == ReshardKind::Permute ? 1 : meshShape[step.axis];
  auto dimSize = [&](int dim) { return typeOf(value).getDimSize(dim); };
  if (step.kind == ReshardKind::Slice) {
    ShardingSpec part = ShardingSpec::replicated(from.dims.size());
    part.dims[step.toDim].push_back(step.axis);
    return partOf(value, part, loc);
  }
  if (step.kind == ReshardKind::Permute)
    return permute(value, sharding::permutePairs(from, step.spec, meshShape));
  ++numCollectives;
  OperationState state(loc, step.kind == ReshardKind::AllGather
                                ? hlo::AllGatherOp::getOperationName()
                                : hlo::AllToAllOp::getOperationName());
  state.addOperands(value);
  state.addAttribute("replica_groups", groupsAlong(step.axis));
  if (step.kind == ReshardKind::AllGather) {
    state.addAttribute("all_gather_dim", builder.getI64IntegerAttr(step.fromDim));
    state.addTypes(withDim(value, step.fromDim, dimSize(step.fromDim) * size));
  } else {
    SmallVector<int64_t> shape(typeOf(value).getShape());
    shape[step.fromDim] *= size;
    shape[step.toDim] /= size;
    state.addAttribute("split_dimension", builder.getI64IntegerAttr(step.toDim));
    state.addAttribute("concat_dimension", builder.getI64IntegerAttr(step.fromDim));
    state.addAttribute("split_count", builder.getI64IntegerAttr(size));
    state.addTypes(typeOf(value).clone(shape));
  }
  return builder.create(state)->getResult(0);
}

Value DeviceBuilder::permute(Value value, const Ring::Pairs &pairs) {
  ++numCollectives;
  OperationState state(value.getLoc(), hlo::CollectivePermuteOp::getOperationName(), value,
                       value.getType());
  state.addAttribute("source_target_pairs", sourceTargetPairs(pairs, builder));
  return builder.create(state)->getResult(0);
}

void DeviceBuilder::fillReducer(Region &region, StringRef name, Value like) {
  OpBuilder::InsertionGuard guard(builder);
  Location loc = like.getLoc();
  auto type = RankedTensorType::get({}, typeOf(like).getElementType());
  Block *block = builder.createBlock(&region, region.end(), {type, type}, {loc, loc});
  Value combined = binary(name, block->getArgument(0), block->getArgument(1));
  hlo::ReturnOp::create(builder, loc, combined);
}

Value DeviceBuilder::allReduce(Value value, unsigned axis, StringRef reducer) {
  ++numCollectives;
  OperationState state(value.getLoc(), hlo::AllReduceOp::getOperationName(), value,
                       value.getType());
  state.addAttribute("replica_groups", groupsAlong(axis));
  fillReducer(*state.addRegion(), reducer, value);
  return builder.create(state)->getResult(0);
}

Value DeviceBuilder::reduceScatter(Value value, unsigned axis, int64_t dim, StringRef reducer) {
  ++numCollectives;
  int64_t size = typeOf(value).getDimSize(dim) / meshShape[axis];
  OperationState state(value.getLoc(), hlo::ReduceScatterOp::getOperationName(), value,
                       withDim(value, dim, size));
  state.addAttribute("scatter_dimension", builder.getI64IntegerAttr(dim));
  state.addAttribute("replica_groups", groupsAlong(axis));
  fillReducer(*state.addRegion(), reducer, value);
  return builder.create(state)->getResult(0);
}

//===----------------------------------------------------------------------===//
// Collectives beside products
//===----------------------------------------------------------------------===//

namespace {

/// Cuts gathers that products read, and scatters of what products give, into pieces that go
/// round a ring beside the products of the pieces, where the cost model has that faster: Wang
/// et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep
/// Learning Models" (ASPLOS 2023). Barriers keep each piece's message beside its products; XLA
/// would merge the products else, and wait for messages that they could hide.
class PieceCutter {
public:
  PieceCutter(DeviceBuilder &devices, const cost::CostModel &model, func::FuncOp function)
      : devices(devices), builder(devices.builder), model(model), function(function) {}

  void run(Block &block);
  unsigned numCut = 0;

private:
  bool cut(hlo::AllGatherOp gather);
  bool cut(hlo::ReduceScatterOp scatter);
  std::optional<unsigned> axisOf(DenseIntElementsAttr groups) const;
  bool isOfState(Value value);
  bool isForUpdate(Value value);
  /// A dot's dimensions of the result for dimension `dim` of an operand, or -1 if the dot does
  /// not keep it, or both operands have it.
  static int64_t resultDimOf(hlo::DotGeneralOp dot, unsigned operand, int64_t dim);
  bool pays(hlo::DotGeneralOp dot, unsigned operand, cost::Collective collective, unsigned axis,
            Type whole, bool keepsWhole = false) const;
  bool needs(Value value, Operation *gather, ArrayRef<Operation *> dots) const;
  /// First element of the piece that lies so many places behind this device's own.
  Value offsetOf(unsigned axis, int64_t places, int64_t size, Location loc);
  Value sendBack(Value value, unsigned axis);
  Value product(hlo::DotGeneralOp dot, unsigned operand, Value piece);
  Value zeros(Type type, Location loc);
  void put(Value &whole, Value piece, int64_t dim, Value offset);
  void keepBeside(MutableArrayRef<Value *> values, Location loc);

  DeviceBuilder &devices;
  OpBuilder &builder;
  const cost::CostModel &model;
  func::FuncOp function;
};

} // namespace

/// Whether a value is made of state alone: its gather runs beside any other work.
bool PieceCutter::isOfState(Value value) {
  auto main = function->getParentOp()->getParentOfType<ModuleOp>();
  auto whole = main ? main.lookupSymbol<func::FuncOp>("main") : func::FuncOp();
  auto isState = [&](BlockArgument argument) {
    auto id = function.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), attr::value);
    for (unsigned i = 0; whole && id && i < whole.getNumArguments(); ++i)
      if (whole.getArgAttr(i, attr::value) == id) {
        auto kind = whole.getArgAttrOfType<StringAttr>(i, attr::kind);
        return kind && kind.getValue() == "state";
      }
    return false;
  };
  bool anyState = false;
  SmallVector<Value> pending{value};
  llvm::SmallPtrSet<Operation *, 16> seen;
  while (!pending.empty()) {
    Value next = pending.pop_back_val();
    if (auto argument = dyn_cast<BlockArgument>(next)) {
      if (argument.getOwner()->getParentOp() != function || !isState(argument))
        return false;
      anyState = true;
    } else if (Operation *op = next.getDefiningOp(); seen.insert(op).second) {
      llvm::append_range(pending, op->getOperands());
    }
  }
  return anyState;
}

/// Whether only the update rests on a value: its sum runs beside any other work.
bool PieceCutter::isForUpdate(Value value) {
  SmallVector<Value> pending{value};
  llvm::SmallPtrSet<Operation *, 16> seen;
  while (!pending.empty())
    for (OpOperand &use : pending.pop_back_val().getUses()) {
      Operation *user = use.getOwner();
      if (user->hasTrait<OpTrait::IsTerminator>()) {
        if (user->getParentOp() != function ||
            !function.getResultAttr(use.getOperandNumber(), attr::accumulate))
          return false;
      } else if (seen.insert(user).second) {
        llvm::append_range(pending, user->getResults());
      }
    }
  return true;
}

std::optional<unsigned> PieceCutter::axisOf(DenseIntElementsAttr groups) const {
  for (unsigned axis = 0; axis < devices.getMeshShape().size(); ++axis)
    if (devices.getMeshShape()[axis] > 1 && devices.groupsAlong(axis) == groups)
      return axis;
  return std::nullopt;
}

int64_t PieceCutter::resultDimOf(hlo::DotGeneralOp dot, unsigned operand, int64_t dim) {
  hlo::DotDimensionNumbersAttr numbers = dot.getDotDimensionNumbers();
  ArrayRef<int64_t> batch[] = {numbers.getLhsBatchingDimensions(),
                               numbers.getRhsBatchingDimensions()};
  ArrayRef<int64_t> summed[] = {numbers.getLhsContractingDimensions(),
                                numbers.getRhsContractingDimensions()};
  auto isFree = [&](unsigned of, int64_t d) {
    return !llvm::is_contained(batch[of], d) && !llvm::is_contained(summed[of], d);
  };
  if (!isFree(operand, dim))
    return -1;
  int64_t place = static_cast<int64_t>(batch[0].size());
  if (operand == 1)
    place += typeOf(dot.getLhs()).getRank() - static_cast<int64_t>(batch[0].size()) -
             static_cast<int64_t>(summed[0].size());
  for (int64_t d = 0; d < dim; ++d)
    place += isFree(operand, d);
  return place;
}

bool PieceCutter::pays(hlo::DotGeneralOp dot, unsigned operand, cost::Collective collective,
                       unsigned axis, Type whole, bool keepsWhole) const {
  hlo::DotDimensionNumbersAttr numbers = dot.getDotDimensionNumbers();
  auto lhs = typeOf(dot.getLhs()), rhs = typeOf(dot.getRhs());
  auto sizeOf = [](RankedTensorType type, ArrayRef<int64_t> dims) {
    double size = 1;
    for (int64_t dim : dims)
      size *= static_cast<double>(type.getDimSize(dim));
    return size;
  };
  cost::CollectiveMatmul matmul;
  cost::Product &product = matmul.product;
  product.count = sizeOf(lhs, numbers.getLhsBatchingDimensions());
  product.inner = sizeOf(lhs, numbers.getLhsContractingDimensions());
  product.rows = static_cast<double>(lhs.getNumElements()) / (product.count * product.inner);
  product.columns = static_cast<double>(rhs.getNumElements()) / (product.count * product.inner);
  matmul.collective = collective;
  matmul.axis = axis;
  matmul.bytes = analysis::getTensorBytes(whole);
  matmul.cutsRows = operand == 0;
  matmul.keepsWhole = keepsWhole;
  matmul.elementBytes = analysis::getTensorBytes(lhs) /
                        static_cast<double>(std::max<int64_t>(1, lhs.getNumElements()));
  matmul.dtype = analysis::getComputeType(dot);
  return product.count * product.rows * product.columns * product.inner > 0 &&
         model.savedByPieces(matmul) > 0;
}

/// Whether a value is made of what is gathered or of one of the dots' results.
bool PieceCutter::needs(Value value, Operation *gather, ArrayRef<Operation *> dots) const {
  SmallVector<Value> pending{value};
  llvm::SmallPtrSet<Operation *, 16> seen;
  while (!pending.empty()) {
    Operation *op = pending.pop_back_val().getDefiningOp();
    if (!op || op->getBlock() != gather->getBlock() || op->isBeforeInBlock(gather) ||
        !seen.insert(op).second)
      continue;
    if (op == gather || llvm::is_contained(dots, op) || op->getNumRegions() > 0)
      return true;
    llvm::append_range(pending, op->getOperands());
  }
  return false;
}

Value PieceCutter::offsetOf(unsigned axis, int64_t places, int64_t size, Location loc) {
  Type i32 = builder.getI32Type();
  Value index = devices.pieceIndex({axis}, loc);
  int64_t count = devices.getMeshShape()[axis];
  if (places % count != 0)
    index = devices.binary(
        "stablehlo.remainder",
        devices.binary("stablehlo.add", index, devices.scalar(places % count, i32, loc)),
        devices.scalar(count, i32, loc));
  return devices.binary("stablehlo.multiply", index, devices.scalar(size, i32, loc));
}

/// From each device to the one before it.
Value PieceCutter::sendBack(Value value, unsigned axis) {
  ArrayRef<int64_t> shape = devices.getMeshShape();
  int64_t count = shape[axis], stride = strideOf(axis, shape), all = 1;
  for (int64_t size : shape)
    all *= size;
  SmallVector<int64_t> pairs;
  for (int64_t device = 0; device < all; ++device) {
    bool isFirst = device / stride % count == 0;
    pairs.append({device, device + (isFirst ? count - 1 : -1) * stride});
  }
  OperationState state(value.getLoc(), hlo::CollectivePermuteOp::getOperationName(), value,
                       value.getType());
  auto type = RankedTensorType::get({all, 2}, builder.getI64Type());
  state.addAttribute("source_target_pairs", DenseIntElementsAttr::get(type, pairs));
  ++devices.numCollectives;
  return builder.create(state)->getResult(0);
}

Value PieceCutter::product(hlo::DotGeneralOp dot, unsigned operand, Value piece) {
  Operation *made = builder.clone(*dot);
  int64_t cut = -1;
  for (int64_t dim = 0; dim < typeOf(piece).getRank(); ++dim)
    if (typeOf(piece).getDimSize(dim) != typeOf(dot->getOperand(operand)).getDimSize(dim))
      cut = dim;
  SmallVector<int64_t> shape(typeOf(dot.getResult()).getShape());
  shape[resultDimOf(dot, operand, cut)] = typeOf(piece).getDimSize(cut);
  made->setOperand(operand, piece);
  made->getResult(0).setType(typeOf(dot.getResult()).clone(shape));
  return made->getResult(0);
}

Value PieceCutter::zeros(Type type, Location loc) {
  auto tensor = cast<RankedTensorType>(type);
  return devices.splat(devices.scalar(0, tensor.getElementType(), loc), tensor.getShape(), loc);
}

void PieceCutter::put(Value &whole, Value piece, int64_t dim, Value offset) {
  SmallVector<Value> operands{whole, piece};
  Value zero = devices.scalar(0, builder.getI32Type(), piece.getLoc());
  for (int64_t d = 0; d < typeOf(whole).getRank(); ++d)
    operands.push_back(d == dim ? offset : zero);
  OperationState state(piece.getLoc(), hlo::DynamicUpdateSliceOp::getOperationName(), operands,
                       whole.getType());
  whole = builder.create(state)->getResult(0);
}

/// None of the values is used before all of them are there.
void PieceCutter::keepBeside(MutableArrayRef<Value *> values, Location loc) {
  auto given = llvm::map_to_vector(values, [](Value *value) { return *value; });
  auto types = llvm::map_to_vector(given, [](Value value) { return value.getType(); });
  OperationState state(loc, hlo::OptimizationBarrierOp::getOperationName(), given, types);
  Operation *barrier = builder.create(state);
  for (auto [value, result] : llvm::zip_equal(values, barrier->getResults()))
    *value = result;
}

/// Devices multiply the piece that they have and send it on; the one that comes next is that
/// of the device behind.
bool PieceCutter::cut(hlo::AllGatherOp gather) {
  std::optional<unsigned> axis = axisOf(gather.getReplicaGroups());
  if (!axis || gather->getNumOperands() != 1 || isOfState(gather->getOperand(0)))
    return false;
  Value whole = gather->getResult(0), piece = gather->getOperand(0);
  int64_t dim = static_cast<int64_t>(gather.getAllGatherDim());
  auto keepsDim = [&](OpOperand &use) {
    auto dot = dyn_cast<hlo::DotGeneralOp>(use.getOwner());
    return dot && dot->getBlock() == gather->getBlock() && dot.getLhs() != dot.getRhs() &&
           resultDimOf(dot, use.getOperandNumber(), dim) >= 0;
  };
  bool keepsWhole = !llvm::all_of(whole.getUses(), keepsDim);
  SmallVector<OpOperand *> uses;
  for (OpOperand &use : whole.getUses())
    if (keepsDim(use) && pays(cast<hlo::DotGeneralOp>(use.getOwner()), use.getOperandNumber(),
                              cost::Collective::AllGather, *axis, whole.getType(), keepsWhole))
      uses.push_back(&use);
  llvm::sort(uses, [](OpOperand *a, OpOperand *b) {
    return a->getOwner()->isBeforeInBlock(b->getOwner());
  });
  SmallVector<Operation *> dots;
  llvm::erase_if(uses, [&](OpOperand *use) {
    Operation *dot = use->getOwner();
    if (needs(dot->getOperand(1 - use->getOperandNumber()), gather, dots))
      return true; // Its pieces cannot run beside theirs.
    dots.push_back(dot);
    return false;
  });
  if (uses.empty())
    return false;

  builder.setInsertionPoint(dots.back());
  Location loc = gather.getLoc();
  int64_t count = devices.getMeshShape()[*axis], size = typeOf(piece).getDimSize(dim);
  SmallVector<Value> results;
  for (Operation *dot : dots)
    results.push_back(zeros(dot->getResult(0).getType(), dot->getLoc()));
  bool hasOthers = llvm::any_of(whole.getUsers(),
                                [&](Operation *user) { return !llvm::is_contained(dots, user); });
  Value gathered = hasOthers ? zeros(whole.getType(), loc) : Value();
  for (int64_t place = 0; place < count; ++place) {
    SmallVector<Value> made;
    for (OpOperand *use : uses)
      made.push_back(
          product(cast<hlo::DotGeneralOp>(use->getOwner()), use->getOperandNumber(), piece));
    Value next = place + 1 < count ? sendBack(piece, *axis) : Value();
    if (next) {
      SmallVector<Value *> beside{&next};
      for (Value &value : made)
        beside.push_back(&value);
      keepBeside(beside, loc);
    }
    Value offset = offsetOf(*axis, place, size, loc);
    if (gathered)
      put(gathered, piece, dim, offset);
    for (auto [use, result, value] : llvm::zip_equal(uses, results, made))
      put(result, value,
          resultDimOf(cast<hlo::DotGeneralOp>(use->getOwner()), use->getOperandNumber(), dim),
          offset);
    piece = next;
  }
  for (auto [dot, result] : llvm::zip_equal(dots, results)) {
    dot->getResult(0).replaceAllUsesWith(result);
    dot->erase();
  }
  if (gathered)
    whole.replaceAllUsesWith(gathered);
  gather->erase();
  return true;
}

/// A piece's sum goes round, and each device adds its product; the last one keeps it.
bool PieceCutter::cut(hlo::ReduceScatterOp scatter) {
  std::optional<unsigned> axis = axisOf(scatter.getReplicaGroups());
  auto dot = scatter.getOperand().getDefiningOp<hlo::DotGeneralOp>();
  Block &reducer = scatter->getRegion(0).front();
  if (!axis || !dot || !dot->hasOneUse() || dot->getBlock() != scatter->getBlock() ||
      reducer.getOperations().size() != 2 || !isa<hlo::AddOp>(reducer.front()) ||
      isForUpdate(scatter->getResult(0)))
    return false;
  int64_t dim = static_cast<int64_t>(scatter.getScatterDimension());
  std::optional<unsigned> operand;
  int64_t cutDim = -1;
  for (unsigned i = 0; i < 2 && !operand; ++i)
    for (int64_t d = 0; d < typeOf(dot->getOperand(i)).getRank(); ++d)
      if (resultDimOf(dot, i, d) == dim) {
        operand = i;
        cutDim = d;
      }
  if (!operand ||
      !pays(dot, *operand, cost::Collective::ReduceScatter, *axis, scatter.getOperand().getType()))
    return false;

  builder.setInsertionPoint(scatter);
  Location loc = dot.getLoc();
  int64_t count = devices.getMeshShape()[*axis];
  Value factor = dot->getOperand(*operand), sum;
  SmallVector<int64_t> sizes(typeOf(factor).getShape());
  sizes[cutDim] /= count;
  Value zero = devices.scalar(0, builder.getI32Type(), loc);
  for (int64_t place = 0; place < count; ++place) {
    SmallVector<Value> starts(sizes.size(), zero);
    starts[cutDim] = offsetOf(*axis, place + 1, sizes[cutDim], loc);
    Value piece = hlo::DynamicSliceOp::create(builder, loc, typeOf(factor).clone(sizes), factor,
                                              starts, builder.getDenseI64ArrayAttr(sizes));
    Value term = product(dot, *operand, piece);
    SmallVector<Value *> beside{&term};
    Value received = sum ? sendBack(sum, *axis) : Value();
    if (received)
      beside.push_back(&received);
    if (place + 1 < count)
      beside.push_back(&factor);
    keepBeside(beside, loc);
    sum = received ? devices.binary("stablehlo.add", received, term) : term;
  }
  scatter->getResult(0).replaceAllUsesWith(sum);
  scatter->erase();
  dot->erase();
  return true;
}

void PieceCutter::run(Block &block) {
  SmallVector<Operation *> collectives;
  block.walk([&](Operation *op) {
    if (isa<hlo::AllGatherOp, hlo::ReduceScatterOp>(op))
      collectives.push_back(op);
  });
  llvm::SmallSetVector<Block *, 4> changed;
  for (Operation *op : collectives) {
    Block *around = op->getBlock();
    auto gather = dyn_cast<hlo::AllGatherOp>(op);
    if (gather ? cut(gather) : cut(cast<hlo::ReduceScatterOp>(op))) {
      changed.insert(around);
      ++numCut;
    }
  }
  // What else read a gathered value may stand before the products that it is put together beside.
  for (Block *each : changed)
    sortTopologically(each);
}

//===----------------------------------------------------------------------===//
// One op on one device
//===----------------------------------------------------------------------===//

namespace {

/// Writes what one device does for an op without control flow: the op on parts,
/// then the collectives that complete sums.
class OpLowering {
public:
  OpLowering(Operation *op, const analysis::ShardingRule &rule, const OpSplit &split,
             DeviceBuilder &devices)
      : op(op), rule(rule), split(split), devices(devices), builder(devices.builder) {}

  /// `operands` are parts; fills in the parts of the results.
  LogicalResult lower(ValueRange operands, llvm::SmallVectorImpl<Value> &results);

private:
  Operation *clone(ValueRange operands);
  RankedTensorType unreducedType(unsigned result);
  Value iota();
  Value random(ValueRange operands);
  Value constant();
  LogicalResult gather(ValueRange operands, llvm::SmallVectorImpl<Value> &results);
  LogicalResult scatter(SmallVectorImpl<Value> &operands);
  SmallVector<Value> ringAttention(const analysis::AttentionCall &call, ValueRange operands,
                                   ArrayRef<unsigned> axes);
  Value groupSizes(chlo::RaggedDotOp dot, ValueRange operands);
  Value localGroups(Value groups, int64_t count, ArrayRef<unsigned> axes);
  void takeOut(SmallVectorImpl<Value> &operands);
  void putBack(SmallVectorImpl<Value> &results);
  /// Axes that split dimension `dim` of operand `operand`.
  llvm::ArrayRef<unsigned> axesOf(unsigned operand, int64_t dim) const {
    return split.operands[operand].dims[dim];
  }
  /// Indices into a dimension of `size` elements that `axes` split, counted from
  /// this device's part. `component` is where index vectors hold that dimension.
  struct LocalIndices {
    Value indices, component;
  };
  LocalIndices localIndices(Value indices, int64_t vectorDim, int64_t position, int64_t size,
                            llvm::ArrayRef<unsigned> axes, bool clamps);
  Value withSafeType(Value indices);
  Value complete(Value unreduced, unsigned result);
  void completeAll(SmallVectorImpl<Value> &results);

  Operation *op;
  const analysis::ShardingRule &rule;
  const OpSplit &split;
  DeviceBuilder &devices;
  OpBuilder &builder;
  llvm::SmallVector<std::pair<unsigned, Value>> takenOut; // By number of operand.
};

} // namespace

RankedTensorType OpLowering::unreducedType(unsigned result) {
  return localType(typeOf(op->getResult(result)), split.unreduced[result], devices.getMeshShape());
}

Operation *OpLowering::clone(ValueRange operands) {
  IRMapping mapping;
  mapping.map(op->getOperands(), operands);
  // An operand that is there twice may be there in two forms.
  Operation *made = builder.clone(*op, mapping);
  made->setOperands(operands);
  for (auto [i, result] : llvm::enumerate(made->getResults()))
    if (isa<RankedTensorType>(result.getType()))
      result.setType(unreducedType(i));
  for (NamedAttribute attribute : llvm::to_vector(made->getDiscardableAttrs()))
    if (attribute.getName().strref().starts_with("alpa."))
      made->removeDiscardableAttr(attribute.getName());
  analysis::fitSizes(made, op);
  return made;
}

Value OpLowering::iota() {
  Value made = clone({})->getResult(0);
  auto dim = static_cast<int64_t>(cast<hlo::IotaOp>(op).getIotaDimension());
  ArrayRef<unsigned> axes = split.results[0].dims[dim];
  if (axes.empty())
    return made;
  RankedTensorType type = typeOf(made);
  Value offset = devices.pieceOffset(axes, type.getDimSize(dim), op->getLoc());
  if (type.getElementType() != typeOf(offset).getElementType())
    offset = hlo::ConvertOp::create(builder, op->getLoc(),
                                    typeOf(offset).clone(type.getElementType()), offset);
  return devices.binary("stablehlo.add", made,
                        devices.splat(offset, type.getShape(), op->getLoc()));
}

Value OpLowering::constant() {
  auto value = cast<hlo::ConstantOp>(op).getValue();
  auto dense = dyn_cast<DenseElementsAttr>(value);
  if (dense && dense.isSplat())
    return hlo::ConstantOp::create(builder, op->getLoc(),
                                   cast<ElementsAttr>(dense.resizeSplat(unreducedType(0))));
  Value whole = hlo::ConstantOp::create(builder, op->getLoc(), value);
  return devices.partOf(whole, split.results[0], op->getLoc());
}

/// Differences must neither wrap around nor lose their sign.
Value OpLowering::withSafeType(Value indices) {
  auto element = cast<IntegerType>(typeOf(indices).getElementType());
  bool fits = !element.isUnsigned() && element.getWidth() >= 32;
  if (fits)
    return indices;
  unsigned width = element.getWidth() < 32 ? 32 : 64;
  return hlo::ConvertOp::create(builder, op->getLoc(),
                                typeOf(indices).clone(builder.getIntegerType(width)), indices);
}

OpLowering::LocalIndices OpLowering::localIndices(Value indices, int64_t vectorDim,
                                                  int64_t position, int64_t size,
                                                  ArrayRef<unsigned> axes, bool clamps) {
  Location loc = op->getLoc();
  RankedTensorType type = typeOf(indices);
  int64_t rank = type.getRank();
  bool isVector = vectorDim < rank;
  auto part = [&](int64_t from, int64_t to) -> Value {
    SmallVector<int64_t> starts(rank, 0), limits(type.getShape()), strides(rank, 1);
    starts[vectorDim] = from;
    limits[vectorDim] = to;
    SmallVector<int64_t> shape(limits);
    shape[vectorDim] = to - from;
    return hlo::SliceOp::create(
        builder, loc, type.clone(shape), indices, builder.getDenseI64ArrayAttr(starts),
        builder.getDenseI64ArrayAttr(limits), builder.getDenseI64ArrayAttr(strides));
  };
  Value component = isVector ? part(position, position + 1) : indices;
  ArrayRef<int64_t> shape = typeOf(component).getShape();
  auto filled = [&](int64_t value) {
    return devices.splat(devices.scalar(value, type.getElementType(), loc), shape, loc);
  };
  if (clamps) { // As the op on whole tensors does it.
    component = devices.binary("stablehlo.maximum", component, filled(0));
    component = devices.binary("stablehlo.minimum", component, filled(size - 1));
  }
  int64_t pieces = 1;
  for (unsigned axis : axes)
    pieces *= devices.getMeshShape()[axis];
  Value offset = devices.pieceOffset(axes, size / pieces, loc);
  if (typeOf(offset).getElementType() != type.getElementType())
    offset =
        hlo::ConvertOp::create(builder, loc, typeOf(offset).clone(type.getElementType()), offset);
  component = devices.binary("stablehlo.subtract", component, devices.splat(offset, shape, loc));
  if (!isVector)
    return {component, component};
  SmallVector<Value> parts;
  if (position > 0)
    parts.push_back(part(0, position));
  parts.push_back(component);
  if (position + 1 < type.getDimSize(vectorDim))
    parts.push_back(part(position + 1, type.getDimSize(vectorDim)));
  Value joined = parts.size() == 1
                     ? component
                     : hlo::ConcatenateOp::create(builder, loc, type, parts,
                                                  builder.getI64IntegerAttr(vectorDim));
  return {joined, component};
}

/// A device finds the rows it holds; where an index is another's, its row is zero,
/// so that the sum over devices is the row.
LogicalResult OpLowering::gather(ValueRange operands, SmallVectorImpl<Value> &results) {
  Location loc = op->getLoc();
  auto numbers = cast<hlo::GatherOp>(op).getDimensionNumbers();
  int64_t vectorDim = numbers.getIndexVectorDim();
  Value indices = operands[1], isMine;
  for (int64_t dim : numbers.getCollapsedSliceDims()) {
    ArrayRef<unsigned> axes = axesOf(0, dim);
    if (axes.empty())
      continue;
    auto position =
        llvm::find(numbers.getStartIndexMap(), dim) - numbers.getStartIndexMap().begin();
    indices = withSafeType(indices);
    LocalIndices local = localIndices(indices, vectorDim, position,
                                      typeOf(op->getOperand(0)).getDimSize(dim), axes, true);
    indices = local.indices;
    RankedTensorType type = typeOf(local.component);
    auto filled = [&](int64_t value) {
      return devices.splat(devices.scalar(value, type.getElementType(), loc), type.getShape(), loc);
    };
    Value isInside = devices.binary(
        "stablehlo.and", devices.compare(hlo::ComparisonDirection::GE, local.component, filled(0)),
        devices.compare(hlo::ComparisonDirection::LT, local.component,
                        filled(typeOf(operands[0]).getDimSize(dim))));
    isMine = isMine ? devices.binary("stablehlo.and", isMine, isInside) : isInside;
  }
  Operation *made = clone({operands[0], indices});
  Value result = made->getResult(0);
  if (isMine) {
    // One truth value for each slice; spread over the slice.
    SmallVector<int64_t> batch(typeOf(isMine).getShape()), dims;
    if (vectorDim < typeOf(isMine).getRank())
      batch.erase(batch.begin() + vectorDim);
    isMine = hlo::ReshapeOp::create(builder, loc, typeOf(isMine).clone(batch), isMine);
    for (int64_t dim = 0; dim < typeOf(result).getRank(); ++dim)
      if (!llvm::is_contained(numbers.getOffsetDims(), dim))
        dims.push_back(dim);
    Value mask =
        hlo::BroadcastInDimOp::create(builder, loc, typeOf(result).clone(builder.getI1Type()),
                                      isMine, builder.getDenseI64ArrayAttr(dims));
    Value zeros = devices.splat(devices.scalar(0, typeOf(result).getElementType(), loc),
                                typeOf(result).getShape(), loc);
    result = devices.select(mask, result, zeros);
  }
  results.push_back(result);
  return success();
}

/// Updates that fall on another device's part fall outside of this one's, where
/// scatter drops them.
LogicalResult OpLowering::scatter(SmallVectorImpl<Value> &operands) {
  auto numbers = cast<hlo::ScatterOp>(op).getScatterDimensionNumbers();
  unsigned inputs = op->getNumResults();
  for (int64_t dim : numbers.getInsertedWindowDims()) {
    ArrayRef<unsigned> axes = axesOf(0, dim);
    if (axes.empty())
      continue;
    ArrayRef<int64_t> map = numbers.getScatterDimsToOperandDims();
    if (!llvm::is_contained(map, dim))
      return op->emitError("dimension ")
             << dim << " of the input is split, but no index says where updates fall in it";
    operands[inputs] = withSafeType(operands[inputs]);
    operands[inputs] = localIndices(operands[inputs], numbers.getIndexVectorDim(),
                                    llvm::find(map, dim) - map.begin(),
                                    typeOf(op->getOperand(0)).getDimSize(dim), axes, false)
                           .indices;
  }
  return success();
}

SmallVector<Value> OpLowering::ringAttention(const analysis::AttentionCall &call,
                                             ValueRange operands, ArrayRef<unsigned> axes) {
  Ring ring;
  for (unsigned axis : axes)
    ring.count *= devices.getMeshShape()[axis];
  ring.place = devices.pieceIndex(axes, op->getLoc());
  ring.send = [&](Value value, const Ring::Pairs &places) {
    return devices.permute(value, ringPairs(places, axes, devices.getMeshShape()));
  };
  setGathers(ring, builder, axes, devices.getMeshShape(), [&]() -> std::optional<int64_t> {
    ++devices.numCollectives;
    return std::nullopt;
  });
  SmallVector<Type> types;
  for (unsigned result = 0; result < op->getNumResults(); ++result)
    types.push_back(unreducedType(result));
  return writeRing(builder, call, operands, types, ring);
}

/// How many elements of each group this device's part of the ragged dimension has: where each
/// group ends, counted from the part's first element and kept within the part, less where the
/// group before it ends.
Value OpLowering::groupSizes(chlo::RaggedDotOp dot, ValueRange operands) {
  int64_t dim = dot.getRaggedDotDimensionNumbers().getLhsRaggedDimensions()[0];
  ArrayRef<unsigned> axes = axesOf(0, dim);
  Value given = operands[2];
  if (axes.empty() || typeOf(given).getNumElements() == 0)
    return given;
  Location loc = op->getLoc();
  Value sizes = withSafeType(given);
  RankedTensorType type = typeOf(sizes);
  int64_t count = type.getDimSize(0), rows = typeOf(operands[0]).getDimSize(dim);
  Value zero = devices.scalar(0, type.getElementType(), loc);
  auto shifted = [&](Value value, int64_t places) -> Value {
    Value kept = hlo::SliceOp::create(
        builder, loc, type.clone({count - places}), value, builder.getDenseI64ArrayAttr({0}),
        builder.getDenseI64ArrayAttr({count - places}), builder.getDenseI64ArrayAttr({1}));
    return hlo::PadOp::create(builder, loc, type, kept, zero,
                              builder.getDenseI64ArrayAttr({places}),
                              builder.getDenseI64ArrayAttr({0}), builder.getDenseI64ArrayAttr({0}));
  };
  Value ends = sizes;
  for (int64_t places = 1; places < count; places *= 2)
    ends = devices.binary("stablehlo.add", ends, shifted(ends, places));
  Value offset = devices.pieceOffset(axes, rows, loc);
  if (typeOf(offset).getElementType() != type.getElementType())
    offset =
        hlo::ConvertOp::create(builder, loc, typeOf(offset).clone(type.getElementType()), offset);
  auto filled = [&](Value scalar) { return devices.splat(scalar, type.getShape(), loc); };
  ends = devices.binary("stablehlo.subtract", ends, filled(offset));
  ends = devices.binary("stablehlo.maximum", ends, filled(zero));
  ends = devices.binary("stablehlo.minimum", ends,
                        filled(devices.scalar(rows, type.getElementType(), loc)));
  Value local = devices.binary("stablehlo.subtract", ends, shifted(ends, 1));
  if (local.getType() == given.getType())
    return local;
  return hlo::ConvertOp::create(builder, loc, typeOf(given), local);
}

/// Groups of rows, counted from the first of the `count` groups that this device knows; rows
/// of others fall out of them.
Value OpLowering::localGroups(Value groups, int64_t count, ArrayRef<unsigned> axes) {
  if (axes.empty())
    return groups;
  Location loc = op->getLoc();
  groups = withSafeType(groups);
  RankedTensorType type = typeOf(groups);
  Value offset = devices.pieceOffset(axes, count, loc);
  if (typeOf(offset).getElementType() != type.getElementType())
    offset =
        hlo::ConvertOp::create(builder, loc, typeOf(offset).clone(type.getElementType()), offset);
  return devices.binary("stablehlo.subtract", groups, devices.splat(offset, type.getShape(), loc));
}

/// What goes into a result once is left out of the unreduced results, and put to the
/// whole one. (XLA drops a reduction's initial value where the part of a dimension has
/// one element, so it cannot be left to one of the devices.)
void OpLowering::takeOut(SmallVectorImpl<Value> &operands) {
  if (split.summedAxes.empty())
    return;
  analysis::Reducer reducer = split.summedAxes[0].reducer;
  for (unsigned index : rule.broughtOnce) {
    RankedTensorType type = typeOf(operands[index]);
    if (analysis::isNeutral(op->getOperand(index), reducer))
      continue;
    DenseElementsAttr neutral = analysis::neutralOf(reducer, type.getElementType());
    takenOut.push_back({index, operands[index]});
    operands[index] =
        devices.splat(hlo::ConstantOp::create(builder, op->getLoc(), cast<ElementsAttr>(neutral)),
                      type.getShape(), op->getLoc());
  }
}

/// Result i is brought operand broughtOnce[i], held as the unreduced result is.
void OpLowering::putBack(SmallVectorImpl<Value> &results) {
  for (auto [index, value] : takenOut) {
    auto result = llvm::find(rule.broughtOnce, index) - rule.broughtOnce.begin();
    RankedTensorType type = typeOf(results[result]);
    int64_t rank = typeOf(value).getRank();
    SmallVector<int64_t> dims; // Of the result, by dimension of the operand.
    for (int64_t dim = 0; dim < rank; ++dim)
      dims.push_back(rank == type.getRank()
                         ? dim
                         : llvm::find(rule.results[result], rule.operands[index][dim]) -
                               rule.results[result].begin());
    // What the sum was scattered over splits the operand now, too.
    ShardingSpec part = ShardingSpec::replicated(rank);
    for (auto [axes, dim] : llvm::zip_equal(part.dims, dims)) {
      ArrayRef<unsigned> whole = split.results[result].dims[dim];
      llvm::append_range(axes, whole.drop_front(split.unreduced[result].dims[dim].size()));
    }
    if (rank > 0)
      value = devices.partOf(value, part, op->getLoc());
    if (rank == 0 && type.getRank() > 0)
      value = devices.splat(value, type.getShape(), op->getLoc());
    else if (rank != type.getRank())
      value = hlo::BroadcastInDimOp::create(builder, op->getLoc(), type, value,
                                            builder.getDenseI64ArrayAttr(dims));
    analysis::Reducer reducer = split.summedAxes[0].reducer;
    results[result] =
        devices.binary(nameOf(reducer, type.getElementType()), results[result], value);
  }
}

/// As the search counts: scatters first, then the rest of the axes.
Value OpLowering::complete(Value unreduced, unsigned result) {
  Type element = typeOf(unreduced).getElementType();
  SmallVector<OpSplit::SummedAxis, 2> summedAxes = split.summedAxesOf(result);
  SmallVector<std::pair<unsigned, int64_t>> scatters;
  for (auto [dim, axes] : llvm::enumerate(split.results[result].dims))
    for (unsigned axis : llvm::drop_begin(axes, split.unreduced[result].dims[dim].size()))
      scatters.push_back({axis, static_cast<int64_t>(dim)});
  // Of one dimension the major axis first; rising axes keep that order.
  bool rises = llvm::all_of(split.results[result].dims,
                            [&](ArrayRef<unsigned> axes) { return llvm::is_sorted(axes); });
  if (rises)
    llvm::sort(scatters);
  auto isScattered = [&](unsigned axis) {
    return llvm::is_contained(llvm::make_first_range(scatters), axis);
  };
  for (auto [axis, dim] : scatters)
    for (OpSplit::SummedAxis summed : summedAxes)
      if (summed.axis == axis)
        unreduced = devices.reduceScatter(unreduced, axis, dim, nameOf(summed.reducer, element));
  for (OpSplit::SummedAxis summed : summedAxes)
    if (!isScattered(summed.axis))
      unreduced = devices.allReduce(unreduced, summed.axis, nameOf(summed.reducer, element));
  return unreduced;
}

/// All but what nobody reads, such as a workspace.
void OpLowering::completeAll(SmallVectorImpl<Value> &results) {
  for (auto [i, result] : llvm::enumerate(results))
    if (!op->getResult(i).use_empty())
      result = complete(result, i);
}

/// Each device would draw numbers of its own; all take the first one's.
Value OpLowering::random(ValueRange operands) {
  Location loc = op->getLoc();
  Value drawn = clone(operands)->getResult(0);
  SmallVector<unsigned> axes;
  for (auto [axis, size] : llvm::enumerate(devices.getMeshShape()))
    if (size > 1)
      axes.push_back(axis);
  if (axes.empty())
    return drawn;
  RankedTensorType type = typeOf(drawn);
  Value place = devices.pieceIndex(axes, loc);
  Value isFirst = devices.compare(hlo::ComparisonDirection::EQ, place,
                                  devices.scalar(0, typeOf(place).getElementType(), loc));
  Value zeros = devices.splat(devices.scalar(0, type.getElementType(), loc), type.getShape(), loc);
  drawn = devices.select(isFirst, drawn, zeros);
  for (unsigned axis : axes)
    drawn = devices.allReduce(drawn, axis, nameOf(analysis::Reducer::Sum, type.getElementType()));
  return drawn;
}

LogicalResult OpLowering::lower(ValueRange given, SmallVectorImpl<Value> &results) {
  StringRef name = op->getName().getStringRef();
  SmallVector<Value> operands(given);
  if (name == "sdy.sharding_constraint" || name == "sdy.reshard") {
    results.push_back(operands[0]);
    return success();
  }
  if (isa<hlo::IotaOp>(op)) {
    results.push_back(iota());
    return success();
  }
  if (isa<hlo::RngOp>(op)) {
    results.push_back(random(operands));
    return success();
  }
  if (isa<hlo::ConstantOp>(op)) {
    results.push_back(constant());
    return success();
  }
  if (isa<hlo::GatherOp>(op)) {
    if (failed(gather(operands, results)))
      return failure();
    results[0] = complete(results[0], 0);
    return success();
  }
  if (std::optional<analysis::AttentionCall> call = analysis::AttentionCall::read(op))
    if (ArrayRef<unsigned> axes = ringAxes(*call, split.operands[0]); !axes.empty()) {
      llvm::append_range(results, ringAttention(*call, operands, axes));
      completeAll(results);
      return success();
    }
  if (isa<hlo::ScatterOp>(op) && failed(scatter(operands)))
    return failure();
  if (auto dot = dyn_cast<chlo::RaggedDotOp>(op))
    operands[2] = groupSizes(dot, operands);
  if (auto dot = dyn_cast<GroupedDotOp>(op))
    operands[2] = localGroups(operands[2], typeOf(operands[1]).getDimSize(0), axesOf(1, 0));
  if (isa<GroupedSumOp>(op)) {
    int64_t dim = unreducedType(0).getRank() - 3;
    operands[2] =
        localGroups(operands[2], unreducedType(0).getDimSize(dim), split.unreduced[0].dims[dim]);
  }
  takeOut(operands);
  llvm::append_range(results, clone(operands)->getResults());
  if (split.summedAxes.empty())
    return success();
  completeAll(results);
  putBack(results);
  return success();
}

//===----------------------------------------------------------------------===//
// Programs of one device
//===----------------------------------------------------------------------===//

namespace {

class FunctionLowering {
public:
  FunctionLowering(func::FuncOp function, MeshAttr mesh, const cost::CostModel &model)
      : function(function), meshShape(mesh.getShape()),
        devices(function.getContext(), mesh.getShape()), model(model) {}

  LogicalResult run();
  unsigned numCollectives() const { return devices.numCollectives; }
  unsigned numCut = 0;

private:
  LogicalResult lower(Block &block);
  LogicalResult lower(Operation *op);
  LogicalResult lower(ReshardOp op);
  LogicalResult lowerControlFlow(Operation *op);
  Type localTypeOf(Value value) {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    return type ? localType(type, held[value], meshShape) : value.getType();
  }

  func::FuncOp function;
  ArrayRef<int64_t> meshShape;
  DeviceBuilder devices;
  const cost::CostModel &model;
  DenseMap<Value, ShardingSpec> held;
  IRMapping parts; // Of each value, what a device holds.
};

} // namespace

LogicalResult FunctionLowering::lower(ReshardOp op) {
  Value value = parts.lookup(op.getOperand());
  ShardingSpec before = withoutOnes(op.getFrom().getSpec(), meshShape);
  for (const ShardingSpec &spec : op.specsAfterFrom()) {
    ShardingSpec after = withoutOnes(spec, meshShape);
    std::optional<sharding::ReshardStep> step = sharding::singleStep(before, after, meshShape);
    if (!step)
      return op.emitError("from ") << before.str() << " to " << after.str() << " is not one step";
    value = devices.apply(*step, before, value);
    before = after;
  }
  held[op.getResult()] = before;
  parts.map(op.getResult(), value);
  return success();
}

LogicalResult FunctionLowering::lowerControlFlow(Operation *op) {
  OpBuilder &builder = devices.builder;
  Operation *made = builder.cloneWithoutRegions(*op, parts);
  for (auto [result, local] : llvm::zip_equal(op->getResults(), made->getResults()))
    local.setType(localTypeOf(result));
  made->removeDiscardableAttr(attr::shardings);
  OpBuilder::InsertionGuard guard(builder);
  for (auto [region, local] : llvm::zip_equal(op->getRegions(), made->getRegions())) {
    Block *block = builder.createBlock(&local);
    for (auto [argument, operand] : llvm::zip(region.getArguments(), op->getOperands())) {
      ShardingSpec spec = held[operand]; // A copy: the map may grow.
      held[argument] = std::move(spec);
      parts.map(argument, block->addArgument(localTypeOf(argument), argument.getLoc()));
    }
    if (failed(lower(region.front())))
      return failure();
    builder.clone(*region.front().getTerminator(), parts);
  }
  return success();
}

LogicalResult FunctionLowering::lower(Operation *op) {
  if (auto reshard = dyn_cast<ReshardOp>(op))
    return lower(reshard);
  std::optional<analysis::ShardingRule> rule = analysis::getShardingRule(op);
  auto shardings = op->getAttrOfType<ArrayAttr>(attr::shardings);
  if (!rule)
    return withCode(op->emitError("has no sharding rule yet"), ErrorCode::UnsupportedOp);
  if (!shardings)
    return op->emitError("has no `alpa.shardings`; run alpa-insert-reshards first");
  auto operands = llvm::map_to_vector(op->getOperands(), [&](Value v) { return held[v]; });
  SmallVector<ShardingSpec> results;
  for (auto [result, item] : llvm::zip_equal(op->getResults(), shardings)) {
    ShardingSpec spec;
    if (isa<RankedTensorType>(result.getType()))
      spec = withoutOnes(cast<ShardingAttr>(item).getSpec(), meshShape);
    results.push_back(spec);
    held[result] = spec;
  }
  if (carriesOperands(op)) {
    if (results != operands)
      return op->emitError("the loop hands on values otherwise than it gets them");
    return lowerControlFlow(op);
  }
  auto captures =
      llvm::map_to_vector(rule->captures, [&](const auto &item) { return held[item.first]; });
  llvm::Expected<OpSplit> split = readSplit(*rule, operands, results, captures, meshShape);
  if (!split)
    return op->emitError("no strategy of the op has these shardings: ")
           << llvm::toString(split.takeError());
  if (isControlFlow(op))
    return lowerControlFlow(op);
  SmallVector<Value> given, made;
  for (Value operand : op->getOperands())
    given.push_back(parts.lookup(operand));
  if (failed(OpLowering(op, *rule, *split, devices).lower(given, made)))
    return failure();
  parts.map(op->getResults(), made);
  return success();
}

LogicalResult FunctionLowering::lower(Block &block) {
  for (Operation &op : block.without_terminator())
    if (failed(lower(&op)))
      return failure();
  return success();
}

LogicalResult FunctionLowering::run() {
  if (!function.getBody().hasOneBlock())
    return function.emitError("expected a function of one block");
  Block &body = function.getBody().front();
  auto specOf = [&](DictionaryAttr attributes, Type type) -> FailureOr<ShardingSpec> {
    auto sharding = attributes ? attributes.getAs<ShardingAttr>(attr::sharding) : ShardingAttr();
    if (!isa<RankedTensorType>(type))
      return ShardingSpec{};
    if (!sharding)
      return function.emitError("expected `")
             << attr::sharding << "` on every argument and result; run alpa-insert-reshards first";
    return withoutOnes(sharding.getSpec(), meshShape);
  };
  for (BlockArgument argument : function.getArguments()) {
    FailureOr<ShardingSpec> spec =
        specOf(function.getArgAttrDict(argument.getArgNumber()), argument.getType());
    if (failed(spec))
      return failure();
    held[argument] = *spec;
  }
  Block *local = devices.builder.createBlock(&function.getBody(), function.getBody().end());
  for (BlockArgument argument : body.getArguments())
    parts.map(argument, local->addArgument(localTypeOf(argument), argument.getLoc()));
  if (failed(lower(body)))
    return failure();
  Operation *terminator = devices.builder.clone(*body.getTerminator(), parts);
  body.erase();
  if (model.cutsProducts()) {
    PieceCutter cutter(devices, model, function);
    cutter.run(*local);
    numCut = cutter.numCut;
  }
  function.setType(FunctionType::get(function.getContext(), local->getArgumentTypes(),
                                     terminator->getOperandTypes()));
  return success();
}

namespace {

struct LowerToCollectives : public spmd::impl::LowerToCollectivesBase<LowerToCollectives> {
  void runOnOperation() override {
    llvm::DenseMap<Attribute, std::unique_ptr<cost::CostModel>> models;
    auto visit = [&](func::FuncOp function, MeshAttr mesh) -> LogicalResult {
      auto module = function->getParentOfType<ModuleOp>();
      std::unique_ptr<cost::CostModel> &model = models[mesh];
      if (!model) {
        llvm::Expected<cost::LogicalMesh> logical = logicalMeshOf(getOperation(), mesh);
        if (!logical)
          return withError(function.emitError(), logical.takeError());
        model = std::make_unique<cost::CostModel>(std::move(*logical));
      }
      FunctionLowering lowering(function, mesh, *model);
      if (failed(lowering.run()))
        return failure();
      module->setAttr(attr::perDevice, UnitAttr::get(&getContext()));
      numCollectives += lowering.numCollectives();
      numCut += lowering.numCut;
      return success();
    };
    if (failed(forEachShardedFunction(getOperation(), visit)))
      signalPassFailure();
  }
};

} // namespace
