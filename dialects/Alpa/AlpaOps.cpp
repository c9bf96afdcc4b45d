//===- AlpaOps.cpp - verifiers of programs and instructions ---------------===//

#include "dialects/Alpa/AlpaDialect.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/OpImplementation.h"

using namespace mlir;
using namespace alpa;

#define GET_OP_CLASSES
#include "dialects/Alpa/AlpaOps.cpp.inc"

void AlpaDialect::registerOps() {
  addOperations<
#define GET_OP_LIST
#include "dialects/Alpa/AlpaOps.cpp.inc"
      >();
}

static LogicalResult notNegative(Operation *op, StringRef label, StringRef what,
                                 std::optional<int64_t> value) {
  if (value && *value < 0)
    return op->emitOpError() << label << ": " << what << " is negative: " << *value;
  return success();
}

static LogicalResult verifyPeer(Operation *op, StringRef label, int64_t peer, int64_t tag) {
  if (failed(notNegative(op, label, "the peer", peer)) ||
      failed(notNegative(op, label, "the tag", tag)))
    return failure();
  if (int64_t(cast<ProgramOp>(op->getParentOp()).getMesh()) == peer)
    return op->emitOpError() << label << ": mesh " << peer << " is this program's own mesh";
  return success();
}

static LogicalResult verifySharding(Operation *op, StringRef label, ShardingAttr sharding,
                                    Type type) {
  return verifySpec([&] { return op->emitOpError() << label << ": "; }, sharding.getSpec(), type);
}

static LogicalResult verifyNumbers(Operation *op, StringRef label, RankedTensorType type) {
  if (type.getElementType().isInteger(1))
    return op->emitOpError() << label << ": truth values cannot be added up";
  return success();
}

/// One buffer: its uses stand before the one instruction that ends it. Positions in a
/// block are numbered once, so that all buffers together take linear time.
static LogicalResult verifyLifetime(Operation *op, OpResult buffer) {
  Operation *end = nullptr;
  for (Operation *user : buffer.getUsers()) {
    if (!isa<FreeOp, OutputOp>(user))
      continue;
    if (user == end) // alpa_free_c1 says so.
      continue;
    if (end) {
      if (user->isBeforeInBlock(end))
        std::swap(user, end);
      InFlightDiagnostic diagnostic = user->emitError()
                                      << "alpa_program_c4: the buffer was already "
                                      << (isa<FreeOp>(end) ? "freed" : "given out");
      diagnostic.attachNote(end->getLoc()) << "it was here";
      return diagnostic;
    }
    end = user;
  }
  if (!end)
    return op->emitError() << "alpa_program_c5: buffer " << buffer.getResultNumber()
                           << " is neither freed nor output";
  Operation *late = nullptr;
  for (Operation *user : buffer.getUsers())
    if (end->isBeforeInBlock(user) && (!late || user->isBeforeInBlock(late)))
      late = user;
  if (!late)
    return success();
  InFlightDiagnostic diagnostic = late->emitError() << "alpa_program_c3: the buffer was "
                                                    << (isa<FreeOp>(end) ? "freed" : "given out");
  diagnostic.attachNote(end->getLoc()) << "it was here";
  return diagnostic;
}

static LogicalResult verifyGroups(Operation *op, StringRef label, RankedTensorType lhs,
                                  RankedTensorType rhs, int64_t rank, RankedTensorType groups) {
  if (lhs.getRank() == 2 && rhs.getRank() == rank && groups.getRank() == 1 &&
      isa<IntegerType>(groups.getElementType()))
    return success();
  return op->emitOpError() << label << ": expected tensors of 2, " << rank
                           << " and 1 dimensions, the last of whole numbers, got " << lhs << ", "
                           << rhs << " and " << groups;
}

LogicalResult GroupedDotOp::verify() {
  auto rows = cast<RankedTensorType>(getRows().getType());
  auto weights = cast<RankedTensorType>(getWeights().getType());
  auto groups = cast<RankedTensorType>(getGroups().getType());
  auto result = cast<RankedTensorType>(getResult().getType());
  if (failed(verifyGroups(*this, "alpa_grouped_dot_c1", rows, weights, 3, groups)))
    return failure();
  auto contracting = static_cast<int64_t>(getContracting());
  if (contracting != 1 && contracting != 2)
    return emitOpError("alpa_grouped_dot_c2: expected `contracting` to be 1 or 2, got ")
           << contracting;
  if (groups.getDimSize(0) != rows.getDimSize(0) ||
      weights.getDimSize(contracting) != rows.getDimSize(1))
    return emitOpError("alpa_grouped_dot_c3: sizes of ")
           << rows << ", " << weights << " and " << groups << " do not pair up";
  if (result.getShape() !=
      ArrayRef<int64_t>{rows.getDimSize(0), weights.getDimSize(3 - contracting)})
    return emitOpError("alpa_grouped_dot_c4: expected a result of ")
           << rows.getDimSize(0) << " by " << weights.getDimSize(3 - contracting) << ", got "
           << result;
  return success();
}

ArrayRef<int64_t> MapOp::levelsOf(unsigned operand) {
  return cast<DenseI64ArrayAttr>(getDims()[operand]).asArrayRef();
}

ArrayRef<int64_t> MapOp::levelSizes() {
  return cast<RankedTensorType>(getResult(0).getType()).getShape().take_front(getLevels());
}

LogicalResult MapOp::verify() {
  auto levels = static_cast<int64_t>(getLevels());
  if (levels < 0 || getDims().size() != getNumOperands() || getNumResults() == 0)
    return emitOpError("alpa_map_c1: expected a result, and a list of `dims` for each of the ")
           << getNumOperands() << " operands, got " << getDims().size();
  for (Attribute dims : getDims()) {
    auto listed = dyn_cast<DenseI64ArrayAttr>(dims);
    if (!listed || !llvm::is_sorted(listed.asArrayRef(), std::less_equal<int64_t>()) ||
        llvm::any_of(listed.asArrayRef(),
                     [&](int64_t level) { return level < 0 || level >= levels; }))
      return emitOpError("alpa_map_c1: expected levels that rise, below ")
             << levels << ", got " << dims;
  }
  if (auto first = cast<RankedTensorType>(getResult(0).getType()); levels > first.getRank())
    return emitOpError("alpa_map_c3: result 0 is ")
           << first << ", of fewer dimensions than there are levels, " << levels;
  SmallVector<int64_t> all = llvm::to_vector(llvm::seq<int64_t>(0, levels));
  SmallVector<std::optional<int64_t>> sizes(levels);
  auto visit = [&](Type whole, ArrayRef<int64_t> held, Type block, StringRef what,
                   size_t index) -> LogicalResult {
    ArrayRef<int64_t> shape = cast<RankedTensorType>(whole).getShape();
    for (auto [size, level] : llvm::zip(shape, held)) {
      if (sizes[level].value_or(size) != size)
        return emitOpError("alpa_map_c2: level ")
               << level << " is " << size << " in " << what << " " << index << " and "
               << *sizes[level] << " before";
      sizes[level] = size;
    }
    if (shape.size() < held.size() ||
        block != cast<RankedTensorType>(whole).clone(shape.drop_front(held.size())))
      return emitOpError("alpa_map_c3: ")
             << what << " " << index << " is " << whole << ", in the body " << block << ", of "
             << held.size() << " levels";
    return success();
  };
  Block &inner = getBody().front();
  ValueRange made = inner.getTerminator()->getOperands();
  if (inner.getNumArguments() != getNumOperands() || made.size() != getNumResults())
    return emitOpError("alpa_map_c3: the body takes ")
           << inner.getNumArguments() << " values and gives " << made.size() << ", expected "
           << getNumOperands() << " and " << getNumResults();
  for (auto [index, type] : llvm::enumerate(getOperandTypes()))
    if (failed(visit(type, levelsOf(index), inner.getArgument(index).getType(), "operand", index)))
      return failure();
  for (auto [index, type] : llvm::enumerate(getResultTypes()))
    if (failed(visit(type, all, made[index].getType(), "result", index)))
      return failure();
  return success();
}

LogicalResult GroupedSumOp::verify() {
  auto lhs = cast<RankedTensorType>(getLhs().getType());
  auto rhs = cast<RankedTensorType>(getRhs().getType());
  auto groups = cast<RankedTensorType>(getGroups().getType());
  auto result = cast<RankedTensorType>(getResult().getType());
  int64_t rank = lhs.getRank();
  if (rank < 2 || rhs.getRank() != rank || groups.getRank() != rank - 1 ||
      !isa<IntegerType>(groups.getElementType()))
    return emitOpError(
               "alpa_grouped_sum_c1: expected tensors of 2, 2 and 1 dimensions, or of as many "
               "more each, the last of whole numbers, got ")
           << lhs << ", " << rhs << " and " << groups;
  if (groups.getShape() != lhs.getShape().drop_back() ||
      groups.getShape() != rhs.getShape().drop_back())
    return emitOpError("alpa_grouped_sum_c2: rows of ")
           << lhs << ", " << rhs << " and " << groups << " do not pair up";
  if (result.getRank() != rank + 1 ||
      result.getShape().take_front(rank - 2) != lhs.getShape().take_front(rank - 2) ||
      result.getShape().take_back(2) != ArrayRef{lhs.getShape().back(), rhs.getShape().back()})
    return emitOpError("alpa_grouped_sum_c3: expected a result of groups by ")
           << lhs.getShape().back() << " by " << rhs.getShape().back() << ", got " << result;
  return success();
}

LogicalResult ProgramOp::verify() {
  auto peak = (*this)->getAttrOfType<IntegerAttr>("peak_bytes");
  std::optional<int64_t> promised = peak ? std::optional(peak.getInt()) : std::nullopt;
  if (failed(notNegative(*this, "alpa_program_c1", "the mesh", int64_t(getMesh()))) ||
      failed(notNegative(*this, "alpa_program_c6", "the peak of memory", promised)))
    return failure();
  for (Operation &op : *getBody())
    if (!isa<AlpaDialect>(op.getDialect()) || isa<ProgramOp, SumOfStagesOp, CrossMeshReshardOp>(op))
      return op.emitError() << "alpa_program_c2: `" << op.getName()
                            << "` is not an instruction of a program";
  for (Operation &op : *getBody())
    for (OpResult buffer : op.getResults())
      if (failed(verifyLifetime(&op, buffer)))
        return failure();
  return success();
}

llvm::SmallVector<ShardingSpec> ReshardOp::specsAfterFrom() {
  llvm::SmallVector<ShardingSpec> specs;
  for (Attribute spec : getThrough())
    specs.push_back(cast<ShardingAttr>(spec).getSpec());
  specs.push_back(getTo().getSpec());
  return specs;
}

LogicalResult ReshardOp::verify() {
  for (Attribute item : getThrough())
    if (!isa<ShardingAttr>(item))
      return emitOpError("alpa_reshard_c1: expected #alpa.sharding in `through`, got ") << item;
  if (failed(verifySharding(*this, "alpa_reshard_c1", getFrom(), getType())))
    return failure();
  ShardingSpec before = getFrom().getSpec();
  for (ShardingSpec &spec : specsAfterFrom()) {
    ShardingAttr attribute = ShardingAttr::get(getContext(), spec);
    if (failed(verifySharding(*this, "alpa_reshard_c1", attribute, getType())))
      return failure();
    if (spec == before)
      return emitOpError("alpa_reshard_c2: the step to ") << attribute << " changes nothing";
    before = spec;
  }
  return success();
}

LogicalResult SumOfStagesOp::verify() {
  ArrayRef<int64_t> stages = getStages();
  if (stages.size() < 2 || stages.front() < 0 ||
      !llvm::is_sorted(stages, std::less_equal<int64_t>()))
    return emitOpError("alpa_sum_of_stages_c1: expected at least two stages that rise, got [")
           << stages << "]";
  if (stages.size() != getParts().size())
    return emitOpError("alpa_sum_of_stages_c1: expected a part of each of ")
           << stages.size() << " stages, got " << getParts().size();
  return verifyNumbers(*this, "alpa_sum_of_stages_c2", getSum().getType());
}

LogicalResult InputOp::verify() {
  if (failed(notNegative(*this, "alpa_input_c1", "the argument number", int64_t(getArg()))) ||
      failed(notNegative(*this, "alpa_input_c1", "the micro-batch", getMicroBatch())))
    return failure();
  return verifySharding(*this, "alpa_input_c2", getSharding(), getBuffer().getType());
}

LogicalResult RunOp::verify() {
  return notNegative(*this, "alpa_run_c3", "the micro-batch", getMicroBatch());
}

Type alpa::wholeType(Operation *function, Type type, DictionaryAttr attributes) {
  auto module = function->getParentOfType<ModuleOp>();
  auto tensor = dyn_cast<RankedTensorType>(type);
  auto sharding = attributes ? attributes.getAs<ShardingAttr>(attr::sharding) : ShardingAttr();
  auto mesh = module ? module->getAttrOfType<MeshAttr>(attr::mesh) : MeshAttr();
  if (!tensor || !sharding || !mesh || !module->hasAttr(attr::perDevice) ||
      tensor.getRank() != int64_t(sharding.getSpec().dims.size()))
    return type;
  SmallVector<int64_t> shape(tensor.getShape());
  for (auto [size, axes] : llvm::zip_equal(shape, sharding.getSpec().dims))
    for (unsigned axis : axes)
      if (axis < mesh.getShape().size())
        size *= mesh.getShape()[axis];
  return tensor.clone(shape);
}

LogicalResult RunOp::verifySymbolUses(SymbolTableCollection &symbolTable) {
  auto callee = symbolTable.lookupNearestSymbolFrom<func::FuncOp>(*this, getCallee());
  if (!callee)
    return emitOpError() << "alpa_run_c1: " << getCallee()
                         << " is not a function of a stage's module";
  SmallVector<Type> inputs, results;
  for (auto [i, type] : llvm::enumerate(callee.getArgumentTypes()))
    inputs.push_back(wholeType(callee, type, callee.getArgAttrDict(i)));
  for (auto [i, type] : llvm::enumerate(callee.getResultTypes()))
    results.push_back(wholeType(callee, type, callee.getResultAttrDict(i)));
  auto type = FunctionType::get(getContext(), inputs, results);
  if (TypeRange(inputs) == getInputs().getTypes() && TypeRange(results) == getOutputs().getTypes())
    return success();
  InFlightDiagnostic diagnostic = emitOpError()
                                  << "alpa_run_c2: expected " << type << ", got "
                                  << FunctionType::get(getContext(), getInputs().getTypes(),
                                                       getOutputs().getTypes());
  diagnostic.attachNote(callee.getLoc()) << "the function is here";
  return diagnostic;
}

LogicalResult SendOp::verify() { return verifyPeer(*this, "alpa_send_c1", getPeer(), getTag()); }

LogicalResult RecvOp::verify() {
  if (failed(verifyPeer(*this, "alpa_recv_c1", getPeer(), getTag())))
    return failure();
  return verifySharding(*this, "alpa_recv_c2", getSharding(), getBuffer().getType());
}

/// The transfer that a send or receive names; null, and reported, if there is none.
static FailureOr<CrossMeshReshardOp> findReshard(Operation *op, StringRef label,
                                                 FlatSymbolRefAttr by, Type type,
                                                 SymbolTableCollection &symbolTable) {
  auto reshard = symbolTable.lookupNearestSymbolFrom<CrossMeshReshardOp>(op->getParentOp(), by);
  if (!reshard)
    return op->emitOpError() << label << ": " << by << " is not an alpa.cross_mesh_reshard";
  if (reshard.getType() == type)
    return reshard;
  InFlightDiagnostic diagnostic = op->emitOpError() << label << ": " << by << " is for "
                                                    << reshard.getType() << ", got " << type;
  diagnostic.attachNote(reshard.getLoc()) << "it is here";
  return diagnostic;
}

LogicalResult SendOp::verifySymbolUses(SymbolTableCollection &symbolTable) {
  if (!getByAttr())
    return success();
  return findReshard(*this, "alpa_send_c2", getByAttr(), getBuffer().getType(), symbolTable);
}

LogicalResult RecvOp::verifySymbolUses(SymbolTableCollection &symbolTable) {
  if (!getByAttr())
    return success();
  FailureOr<CrossMeshReshardOp> reshard =
      findReshard(*this, "alpa_recv_c3", getByAttr(), getBuffer().getType(), symbolTable);
  if (failed(reshard))
    return failure();
  if (reshard->getTarget() == getSharding())
    return success();
  InFlightDiagnostic diagnostic = emitOpError()
                                  << "alpa_recv_c3: " << getByAttr() << " leads to "
                                  << reshard->getTarget() << ", got " << getSharding();
  diagnostic.attachNote(reshard->getLoc()) << "it is here";
  return diagnostic;
}

LogicalResult AccumulateOp::verify() {
  return verifyNumbers(*this, "alpa_accumulate_c1", getSum().getType());
}

LogicalResult ZeroOp::verify() {
  if (failed(verifySharding(*this, "alpa_zero_c1", getSharding(), getBuffer().getType())))
    return failure();
  return verifyNumbers(*this, "alpa_zero_c2", getBuffer().getType());
}

LogicalResult AllReduceOp::verify() {
  ArrayRef<int64_t> members = getMembers();
  if (members.size() < 2 || members.front() < 0 ||
      !llvm::is_sorted(members, std::less_equal<int64_t>()))
    return emitOpError("alpa_all_reduce_c1: expected at least two meshes that rise, got [")
           << members << "]";
  int64_t mesh = cast<ProgramOp>((*this)->getParentOp()).getMesh();
  if (!llvm::is_contained(members, mesh))
    return emitOpError("alpa_all_reduce_c2: mesh ") << mesh << " is not among [" << members << "]";
  if (failed(notNegative(*this, "alpa_all_reduce_c3", "the tag", int64_t(getTag()))) ||
      failed(verifyNumbers(*this, "alpa_all_reduce_c4", getSum().getType())))
    return failure();
  if (mesh == members.front() && getTo())
    return emitOpError("alpa_all_reduce_c5: mesh ")
           << mesh << " takes the sum itself and sends nothing, got `by` " << getToAttr();
  return success();
}

LogicalResult FreeOp::verify() {
  if (getBuffers().empty())
    return emitOpError("alpa_free_c1: expected at least one buffer");
  llvm::DenseSet<Value> seen;
  for (Value buffer : getBuffers())
    if (!seen.insert(buffer).second)
      return emitOpError("alpa_free_c1: a buffer is there twice");
  return success();
}

LogicalResult OutputOp::verify() {
  if (failed(notNegative(*this, "alpa_output_c1", "the result number", int64_t(getResult()))))
    return failure();
  return notNegative(*this, "alpa_output_c1", "the micro-batch", getMicroBatch());
}
