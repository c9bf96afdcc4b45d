//===- SolveSharding.cpp - split @main over one mesh ----------------------===//

#include "compiler/Sharding/CaptureShardings.h"
#include "compiler/Sharding/IntraOp.h"
#include "compiler/Sharding/Methods.h"
#include "compiler/Sharding/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringExtras.h"

namespace alpa {
#define GEN_PASS_DEF_SOLVESHARDING
#include "compiler/Sharding/Passes.h.inc"
} // namespace alpa

using namespace alpa;
using namespace mlir;

namespace {

struct SolveSharding : public alpa::impl::SolveShardingBase<SolveSharding> {
  using SolveShardingBase::SolveShardingBase;

  void runOnOperation() override {
    if (llvm::Error error = run()) {
      getOperation().emitError(llvm::toString(std::move(error)));
      signalPassFailure();
    }
  }

private:
  llvm::Expected<LogicalMesh> makeMesh();
  llvm::Error run();
  void annotate(func::FuncOp main, const IntraOpResult &result);

  std::string clusterText;
};

} // namespace

llvm::Expected<LogicalMesh> SolveSharding::makeMesh() {
  if (cluster.empty())
    return llvm::createStringError("option 'cluster' is missing; give a preset (" +
                                   llvm::join(clusterPresets(), ", ") + ") or a YAML file");
  llvm::Expected<Cluster> described = loadCluster(cluster);
  if (!described)
    return described.takeError();
  clusterText = printCluster(*described);
  llvm::SmallVector<int64_t> shape(meshShape.begin(), meshShape.end());
  if (shape.empty())
    shape = {1, described->numDevices()};
  int64_t devices = 1;
  for (int64_t size : shape) {
    if (size < 1)
      return llvm::createStringError("mesh-shape has an axis of %lld devices; at least 1 is needed",
                                     static_cast<long long>(size));
    devices *= size;
  }
  for (const Submesh &submesh : submeshShapes(*described))
    if (submesh.numDevices() == devices)
      return makeLogicalMesh(*described, submesh, shape);
  std::string sizes;
  for (const Submesh &submesh : submeshShapes(*described))
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(submesh.numDevices());
  return llvm::createStringError(
      "cluster '%s' has no submesh of %lld devices; it has submeshes of %s",
      described->name.c_str(), static_cast<long long>(devices), sizes.c_str());
}

llvm::Error SolveSharding::run() {
  auto main = getOperation().lookupSymbol<func::FuncOp>("main");
  if (!main || main.isExternal())
    return llvm::createStringError("the module has no function @main with a body");
  llvm::Expected<LogicalMesh> mesh = makeMesh();
  if (!mesh)
    return mesh.takeError();
  StageView stage;
  for (Operation &op : main.getBody().front())
    stage.ops.push_back(&op);
  IntraOpOptions options;
  options.numMicroBatches = microBatches;
  options.timeLimitSeconds = timeLimit;
  options.memoryLimitBytes = memoryLimit > 0 ? memoryLimit : mesh->device.memoryBytes;
  if (llvm::Error error = checkMethod(method))
    return error;
  std::optional<MethodRoles> roles;
  if (method != "auto") {
    roles.emplace(main);
    llvm::Expected<PlanFilter> filter = makeFilter(method, *roles, *mesh);
    if (!filter)
      return filter.takeError();
    options.filter = std::move(*filter);
  }
  for (BlockArgument argument : main.getArguments())
    if (auto pin = main.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(), attr::sharding))
      options.filter.pinned[argument] = pin.getSpec();
  CostModel model(std::move(*mesh));

  if (printProblem) {
    if (memoryLimit <= 0)
      options.memoryLimitBytes.reset();
    llvm::Expected<Problem> problem = buildIntraOpProblem(stage, model, options);
    if (!problem)
      return problem.takeError();
    llvm::outs() << ::printProblem(*problem) << "\n";
    return llvm::Error::success();
  }

  llvm::Expected<IntraOpResult> result = solveIntraOp(stage, model, options);
  if (!result)
    return result.takeError();
  const Solution &solution = result->solution;
  if (solution.status == SolveStatus::Infeasible)
    return llvm::createStringError("no sharding of @main fits in %lld bytes a device: %s",
                                   static_cast<long long>(*options.memoryLimitBytes),
                                   solution.infeasibleReason.c_str());
  numNodes = solution.nodes;
  numChoices = result->choices;
  numEliminated = solution.eliminated;
  boundNanoseconds = static_cast<uint64_t>(solution.lowerBound / 1000);
  objectiveNanoseconds = static_cast<uint64_t>(solution.objective / 1000);
  solveMicroseconds = static_cast<uint64_t>(solution.seconds * 1e6);
  // Alpa meshes have three axes at most; more are for studying problems.
  if (llvm::ArrayRef<int64_t> shape = model.getMesh().shape; shape.size() <= 3) {
    auto devices = llvm::to_vector(llvm::seq<int64_t>(0, model.getMesh().numDevices()));
    getOperation()->setAttr(attr::mesh, MeshAttr::get(&getContext(), shape, devices));
    getOperation()->setAttr(attr::cluster, StringAttr::get(&getContext(), clusterText));
  }
  annotate(main, *result);
  return llvm::Error::success();
}

void SolveSharding::annotate(func::FuncOp main, const IntraOpResult &result) {
  Builder builder(&getContext());
  auto attrOf = [&](Value value) -> Attribute {
    return ShardingAttr::get(&getContext(), result.specs.lookup(value));
  };
  for (BlockArgument argument : main.getArguments()) {
    if (!result.specs.count(argument))
      continue;
    main.setArgAttr(argument.getArgNumber(), attr::sharding, attrOf(argument));
    // The next step finds the state as this step found it.
    auto next = main.getArgAttrOfType<IntegerAttr>(argument.getArgNumber(), attr::carriedBy);
    if (next && argument.getType() == main.getResultTypes()[next.getInt()])
      main.setResultAttr(next.getInt(), attr::sharding, attrOf(argument));
  }
  for (Operation &op : main.getBody().front().without_terminator()) {
    llvm::SmallVector<Attribute> shardings, uses;
    bool isMoved = false;
    for (Value value : op.getResults())
      shardings.push_back(attrOf(value));
    op.setAttr(attr::shardings, builder.getArrayAttr(shardings));
    for (OpOperand &operand : op.getOpOperands()) {
      auto it = result.useSpecs.find({&op, operand.getOperandNumber()});
      isMoved |= it != result.useSpecs.end();
      uses.push_back(it == result.useSpecs.end()
                         ? attrOf(operand.get())
                         : Attribute(ShardingAttr::get(&getContext(), it->second)));
    }
    if (isMoved)
      op.setAttr(attr::useShardings, builder.getArrayAttr(uses));
    if (Attribute captured = captureShardings(&op, result.useSpecs, attrOf))
      op.setAttr(attr::captureShardings, captured);
  }
  auto seconds = [&](double value) { return builder.getF64FloatAttr(value); };
  auto bytes = [&](int64_t value) { return builder.getI64IntegerAttr(value); };
  getOperation()->setAttr(
      attr::predicted,
      builder.getDictionaryAttr(
          {builder.getNamedAttr("forward_seconds", seconds(result.forwardSeconds)),
           builder.getNamedAttr("backward_seconds", seconds(result.backwardSeconds)),
           builder.getNamedAttr("update_seconds", seconds(result.updateSeconds)),
           builder.getNamedAttr("state_bytes", bytes(result.stateBytes)),
           builder.getNamedAttr("activation_bytes", bytes(result.activationBytes)),
           builder.getNamedAttr("temporary_bytes", bytes(result.temporaryBytes))}));
  const Solution &solution = result.solution;
  auto picoseconds = [&](CostSum cost) { return seconds(static_cast<double>(cost) * 1e-12); };
  getOperation()->setAttr(
      "alpa.solver",
      builder.getDictionaryAttr(
          {builder.getNamedAttr("status",
                                builder.getStringAttr(stringifySolveStatus(solution.status))),
           builder.getNamedAttr("objective_seconds", picoseconds(solution.objective)),
           builder.getNamedAttr("lower_bound_seconds", picoseconds(solution.lowerBound)),
           builder.getNamedAttr("gap", seconds(solution.gap)),
           builder.getNamedAttr("nodes", bytes(solution.nodes)),
           builder.getNamedAttr("choices", bytes(result.choices)),
           builder.getNamedAttr("eliminated", bytes(solution.eliminated)),
           builder.getNamedAttr("build_seconds", seconds(result.buildSeconds)),
           builder.getNamedAttr("seconds", seconds(solution.seconds))}));
}
