//===- PlanTransfers.cpp - what goes where between meshes -----------------===//

#include "compiler/Reshard/Passes.h"
#include "compiler/Reshard/PlanCache.h"
#include "compiler/Reshard/PlanOps.h"
#include "compiler/Schedule/SlicedModule.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Common/Diagnostics.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/MapVector.h"

#include <map>

namespace alpa::reshard {
#define GEN_PASS_DEF_ALPAPLANTRANSFERS
#include "compiler/Reshard/Passes.h.inc"
} // namespace alpa::reshard

using namespace alpa;
using namespace alpa::reshard;
using namespace mlir;

//===----------------------------------------------------------------------===//
// How programs hold their buffers
//===----------------------------------------------------------------------===//

namespace {

/// The sharding of each buffer of the programs, from the op that makes it.
class HeldAs {
public:
  explicit HeldAs(ModuleOp module) : symbols(module) {}

  /// Null if nothing says it.
  ShardingAttr operator()(Value buffer);

private:
  SymbolTable symbols;
  llvm::DenseMap<Value, ShardingAttr> sums; // Of accumulated buffers.
};

} // namespace

ShardingAttr HeldAs::operator()(Value buffer) {
  SmallVector<Value> way; // Sums are held as their first term is.
  ShardingAttr found;
  while (Operation *op = buffer.getDefiningOp()) {
    if (auto it = sums.find(buffer); it != sums.end()) {
      found = it->second;
    } else if (isa<AccumulateOp, AllReduceOp>(op)) {
      way.push_back(buffer);
      buffer = op->getOperand(0);
      continue;
    } else if (auto reshard = dyn_cast<ReshardOp>(op)) {
      found = reshard.getTo();
    } else if (auto run = dyn_cast<RunOp>(op)) {
      auto stage = symbols.lookup<ModuleOp>(run.getCallee().getRootReference());
      auto callee = stage ? stage.lookupSymbol<func::FuncOp>(run.getCallee().getLeafReference())
                          : func::FuncOp();
      if (callee)
        found = callee.getResultAttrOfType<ShardingAttr>(cast<OpResult>(buffer).getResultNumber(),
                                                         attr::sharding);
    } else {
      found = op->getAttrOfType<ShardingAttr>("sharding");
    }
    break;
  }
  for (Value sum : way)
    sums[sum] = found;
  return found;
}

/// Bytes of one element on the wire, as NumPy has it; 0 if the type has no size.
static int64_t bytesOfElement(Type element) {
  if (auto complex = dyn_cast<ComplexType>(element))
    return 2 * bytesOfElement(complex.getElementType());
  return element.isIntOrFloat() ? (element.getIntOrFloatBitWidth() + 7) / 8 : 0;
}

//===----------------------------------------------------------------------===//
// What goes where between meshes
//===----------------------------------------------------------------------===//

namespace {

struct PlanTransfers : reshard::impl::AlpaPlanTransfersBase<PlanTransfers> {
  using Base::Base;

  void runOnOperation() override {
    if (!isTransferStrategy(strategy)) {
      getOperation().emitError() << "there is no strategy `" << strategy << "`; choose one of "
                                 << transferStrategyNames();
      return signalPassFailure();
    }
    if (failed(nameTransfers()) || failed(planAll()))
      return signalPassFailure();
  }

private:
  LogicalResult nameTransfers();
  LogicalResult name(SendOp send, RecvOp recv);
  LogicalResult name(AllReduceOp member, AllReduceOp first);
  FailureOr<FlatSymbolRefAttr> transferOf(Operation *op, Value from, int64_t fromMesh,
                                          ShardingAttr target, int64_t toMesh);
  LogicalResult planAll();
  LogicalResult fill(CrossMeshReshardOp op, PlanCache &plans);
  FlatSymbolRefAttr reshardFor(Location loc, Type type, ShardingAttr source, MeshAttr sourceMesh,
                               ShardingAttr target, MeshAttr targetMesh);
  void count(const TransferPlan &plan);

  llvm::MapVector<Attribute, CrossMeshReshardOp> known; // By type, shardings and meshes.
  SmallVector<MeshAttr> meshes;
  std::optional<HeldAs> heldAs;
};

int64_t meshOf(Operation *op) { return cast<ProgramOp>(op->getParentOp()).getMesh(); }

TransferProblem problemOf(CrossMeshReshardOp op) {
  auto tensor = [](MeshAttr mesh, ShardingAttr sharding) {
    MeshTensor held;
    held.meshShape.assign(mesh.getShape().begin(), mesh.getShape().end());
    held.devices.assign(mesh.getDevices().begin(), mesh.getDevices().end());
    held.spec = sharding.getSpec();
    return held;
  };
  TransferProblem problem;
  RankedTensorType type = op.getTensorType();
  problem.shape.assign(type.getShape().begin(), type.getShape().end());
  problem.elementBytes = bytesOfElement(type.getElementType());
  problem.source = tensor(op.getSourceMesh(), op.getSource());
  problem.target = tensor(op.getTargetMesh(), op.getTarget());
  return problem;
}

Attribute keyOf(Type type, ShardingAttr source, MeshAttr sourceMesh, ShardingAttr target,
                MeshAttr targetMesh) {
  return ArrayAttr::get(type.getContext(),
                        {TypeAttr::get(type), source, sourceMesh, target, targetMesh});
}

} // namespace

FlatSymbolRefAttr PlanTransfers::reshardFor(Location loc, Type type, ShardingAttr source,
                                            MeshAttr sourceMesh, ShardingAttr target,
                                            MeshAttr targetMesh) {
  CrossMeshReshardOp &op = known[keyOf(type, source, sourceMesh, target, targetMesh)];
  if (!op) {
    // Before the first program, for people who read from top to bottom.
    Block *body = getOperation().getBody();
    auto programs = getOperation().getOps<ProgramOp>();
    OpBuilder builder(body, programs.empty() ? body->end() : Block::iterator(*programs.begin()));
    auto name = builder.getStringAttr("reshard_" + Twine(known.size() - 1));
    op = CrossMeshReshardOp::create(builder, loc, name, TypeAttr::get(type), source, sourceMesh,
                                    target, targetMesh, StringAttr(), FloatAttr(), IntegerAttr());
    op.getBodyRegion().emplaceBlock();
    SymbolTable(getOperation()).insert(op);
  }
  return FlatSymbolRefAttr::get(op.getSymNameAttr());
}

FailureOr<FlatSymbolRefAttr> PlanTransfers::transferOf(Operation *op, Value from, int64_t fromMesh,
                                                       ShardingAttr target, int64_t toMesh) {
  ShardingAttr source = (*heldAs)(from);
  if (!source || !target)
    return op->emitOpError("nothing says how its buffer is held");
  for (int64_t mesh : {fromMesh, toMesh})
    if (mesh >= int64_t(meshes.size()))
      return op->emitOpError() << "there is no stage on mesh " << mesh;
  for (auto [sharding, mesh] : {std::pair(source, fromMesh), std::pair(target, toMesh)})
    if (failed(verifySpec([&] { return op->emitOpError("cannot be planned: "); },
                          sharding.getSpec(), from.getType(), meshes[mesh].getShape())))
      return failure();
  return reshardFor(op->getLoc(), from.getType(), source, meshes[fromMesh], target, meshes[toMesh]);
}

LogicalResult PlanTransfers::name(SendOp send, RecvOp recv) {
  if (!recv || recv.getBuffer().getType() != send.getBuffer().getType())
    return send.emitOpError() << "has no receive of tag " << int64_t(send.getTag())
                              << " and its type; alpa-verify-program says more";
  FailureOr<FlatSymbolRefAttr> by =
      transferOf(send, send.getBuffer(), meshOf(send), recv.getSharding(), meshOf(recv));
  if (failed(by))
    return failure();
  send.setByAttr(*by);
  recv.setByAttr(*by);
  return success();
}

/// To the member that takes the sum, and back.
LogicalResult PlanTransfers::name(AllReduceOp member, AllReduceOp first) {
  if (!first || first.getBuffer().getType() != member.getBuffer().getType())
    return member.emitOpError() << "has no instruction of tag " << int64_t(member.getTag())
                                << " and its type on mesh " << member.getMembers().front()
                                << "; alpa-verify-program says more";
  FailureOr<FlatSymbolRefAttr> to = transferOf(member, member.getBuffer(), meshOf(member),
                                               (*heldAs)(first.getBuffer()), meshOf(first));
  if (failed(to))
    return failure();
  FailureOr<FlatSymbolRefAttr> back = transferOf(member, first.getBuffer(), meshOf(first),
                                                 (*heldAs)(member.getBuffer()), meshOf(member));
  if (failed(back))
    return failure();
  member.setToAttr(*to);
  member.setBackAttr(*back);
  return success();
}

/// Gives all that crosses meshes in the programs its transfer.
LogicalResult PlanTransfers::nameTransfers() {
  for (auto op : getOperation().getOps<CrossMeshReshardOp>())
    known.try_emplace(
        keyOf(op.getType(), op.getSource(), op.getSourceMesh(), op.getTarget(), op.getTargetMesh()),
        op);
  std::map<int64_t, RecvOp> recvs;       // By tag.
  std::map<int64_t, AllReduceOp> firsts; // The members that take the sums.
  for (auto program : getOperation().getOps<ProgramOp>()) {
    for (auto recv : program.getOps<RecvOp>())
      recvs[recv.getTag()] = recv;
    for (auto member : program.getOps<AllReduceOp>())
      if (member.getMembers().front() == int64_t(program.getMesh()))
        firsts[member.getTag()] = member;
  }
  meshes = schedule::meshesOf(getOperation());
  heldAs.emplace(getOperation());
  for (auto program : getOperation().getOps<ProgramOp>())
    for (Operation &op : *program.getBody()) {
      auto send = dyn_cast<SendOp>(op);
      if (send && !send.getByAttr() && failed(name(send, recvs[send.getTag()])))
        return failure();
      auto member = dyn_cast<AllReduceOp>(op);
      if (member && !member.getToAttr() && member.getMembers().front() != meshOf(member) &&
          failed(name(member, firsts[member.getTag()])))
        return failure();
    }
  return success();
}

LogicalResult PlanTransfers::planAll() {
  ModuleOp module = getOperation();
  auto text = module->getAttrOfType<StringAttr>(attr::cluster);
  if (known.empty())
    return success();
  if (cluster.empty() && !text)
    return module.emitError() << "transfers need links: give alpa-plan-transfers a cluster, or the "
                                 "module an `"
                              << attr::cluster << "`";
  llvm::Expected<cost::Cluster> described = cluster.empty()
                                                ? cost::parseCluster(text.getValue(), attr::cluster)
                                                : cost::loadCluster(cluster);
  if (!described)
    return withError(module.emitError(), described.takeError());
  PlanCache plans(*described, strategy);
  for (auto op : module.getOps<CrossMeshReshardOp>())
    if (bool isDone = op.isPlanned() && (op.getStrategy() || !op.getBody()->empty());
        !isDone && failed(fill(op, plans)))
      return failure();
  return success();
}

LogicalResult PlanTransfers::fill(CrossMeshReshardOp op, PlanCache &plans) {
  if (bytesOfElement(op.getTensorType().getElementType()) == 0)
    return op.emitOpError() << "elements of " << op.getType() << " have no size";
  llvm::Expected<TransferPlan> plan = plans.plan(problemOf(op));
  if (!plan)
    return withError(op.emitOpError(), plan.takeError());
  writePlan(op, *plan);
  count(*plan);
  return success();
}

void PlanTransfers::count(const TransferPlan &plan) {
  ++numReshards;
  slowBytes += plan.slowBytes;
  numBroadcast += plan.strategy == "broadcast";
  numLocalAllGather += plan.strategy == "local-allgather";
  numNaive += plan.strategy == "naive";
}
