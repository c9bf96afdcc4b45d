//===- WholeStepProblem.cpp - all of @main as one stage -------------------===//

#include "compiler/Sharding/WholeStepProblem.h"

#include "compiler/Sharding/Methods/ConstraintPins.h"
#include "compiler/Sharding/Methods/Methods.h"
#include "compiler/Sharding/Problem/IntraOp.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Common/ErrorCode.h"
#include "llvm/ADT/StringExtras.h"

using namespace alpa;
using namespace alpa::sharding;
using namespace mlir;

static llvm::Expected<cost::LogicalMesh> makeMesh(const WholeStepOptions &options,
                                                  std::string &clusterText) {
  if (options.cluster.empty())
    return makeError(ErrorCode::Method, "option 'cluster' is missing; give a preset (" +
                                            llvm::join(cost::clusterPresets(), ", ") +
                                            ") or a YAML file");
  llvm::Expected<cost::Cluster> described = cost::loadCluster(options.cluster);
  if (!described)
    return described.takeError();
  clusterText = cost::printCluster(*described);
  llvm::SmallVector<int64_t> shape = options.meshShape;
  if (shape.empty())
    shape = {1, described->numDevices()};
  int64_t devices = 1;
  for (int64_t size : shape) {
    if (size < 1)
      return makeError(ErrorCode::Method, "mesh-shape has an axis of " + llvm::Twine(size) +
                                              " devices; at least 1 is needed");
    devices *= size;
  }
  for (const cost::Submesh &submesh : cost::submeshShapes(*described))
    if (submesh.numDevices() == devices)
      return cost::makeLogicalMesh(*described, submesh, shape);
  std::string sizes;
  for (const cost::Submesh &submesh : cost::submeshShapes(*described))
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(submesh.numDevices());
  return makeError(ErrorCode::Method, "cluster '" + described->name + "' has no submesh of " +
                                          llvm::Twine(devices) + " devices; it has submeshes of " +
                                          sizes);
}

llvm::Expected<WholeStepProblem> sharding::readWholeStepProblem(ModuleOp module,
                                                                const WholeStepOptions &options) {
  WholeStepProblem stage;
  stage.main = module.lookupSymbol<func::FuncOp>("main");
  if (!stage.main || stage.main.isExternal())
    return llvm::createStringError("the module has no function @main with a body");
  llvm::Expected<cost::LogicalMesh> mesh = makeMesh(options, stage.clusterText);
  if (!mesh)
    return mesh.takeError();
  for (Operation &op : stage.main.getBody().front())
    stage.view.ops.push_back(&op);
  IntraOpOptions &intraOp = stage.options;
  intraOp.numMicroBatches = options.microBatches;
  intraOp.explainsInfeasible = true;
  if (options.memoryLimit >= 0)
    intraOp.memoryLimitBytes =
        options.memoryLimit > 0 ? options.memoryLimit : mesh->device.memoryBytes;
  if (llvm::Error error = checkMethod(options.method))
    return error;
  if (options.method != "auto") {
    stage.roles = std::make_unique<MethodRoles>(stage.main);
    llvm::Expected<PlanFilter> filter = makeFilter(options.method, *stage.roles, *mesh);
    if (!filter)
      return filter.takeError();
    intraOp.filter = std::move(*filter);
  }
  stage.freeFilter = intraOp.filter;
  stage.pins = std::make_unique<ConstraintPins>(stage.main);
  stage.pins->restrict(intraOp.filter, mesh->shape);
  for (BlockArgument argument : stage.main.getArguments())
    if (auto pin =
            stage.main.getArgAttrOfType<ShardingAttr>(argument.getArgNumber(), attr::sharding))
      intraOp.filter.pinned[argument] = stage.freeFilter.pinned[argument] = pin.getSpec();
  stage.model = std::make_unique<cost::CostModel>(std::move(*mesh));
  return std::move(stage);
}

void sharding::annotateMain(const WholeStepProblem &stage, const IntraOpResult &result) {
  func::FuncOp main = stage.main;
  Operation *module = main->getParentOp();
  MLIRContext *context = main.getContext();
  Builder builder(context);
  // Alpa meshes have three axes at most; more are for studying problems.
  if (llvm::ArrayRef<int64_t> shape = stage.model->getMesh().shape; shape.size() <= 3) {
    auto devices = llvm::to_vector(llvm::seq<int64_t>(0, stage.model->getMesh().numDevices()));
    module->setAttr(attr::mesh, MeshAttr::get(context, shape, devices));
    module->setAttr(attr::cluster, builder.getStringAttr(stage.clusterText));
  }
  auto attrOf = [&](Value value) -> Attribute {
    return ShardingAttr::get(context, result.specs.lookup(value));
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
    for (Value value : op.getResults()) {
      shardings.push_back(attrOf(value));
      // alpa-defer-sums asks how the factors that make terms are split.
      isMoved |= !result.specs.lookup(value).unreduced.empty();
      if (auto sum = result.sumSpecs.find(value); sum != result.sumSpecs.end())
        op.setAttr(attr::summedAs, ShardingAttr::get(context, sum->second));
    }
    op.setAttr(attr::shardings, builder.getArrayAttr(shardings));
    if (Attribute made = madeShardings(&op, result)) {
      op.setAttr(attr::madeShardings, made);
      isMoved = true;
    }
    for (OpOperand &operand : op.getOpOperands()) {
      auto it = result.useSpecs.find({&op, operand.getOperandNumber()});
      const ShardingSpec *held = result.heldFor(&op, operand.get());
      isMoved |= it != result.useSpecs.end();
      uses.push_back(it == result.useSpecs.end()
                         ? Attribute(ShardingAttr::get(context, held ? *held : ShardingSpec()))
                         : Attribute(ShardingAttr::get(context, it->second)));
    }
    if (result.gatherKeys.contains(&op))
      op.setAttr(attr::gathersKeys, builder.getUnitAttr());
    if (isMoved)
      op.setAttr(attr::useShardings, builder.getArrayAttr(uses));
    if (Attribute captured = captureShardings(&op, result.useSpecs, attrOf))
      op.setAttr(attr::captureShardings, captured);
  }
  auto seconds = [&](double value) { return builder.getF64FloatAttr(value); };
  auto bytes = [&](int64_t value) { return builder.getI64IntegerAttr(value); };
  module->setAttr(attr::predicted,
                  builder.getDictionaryAttr(
                      {builder.getNamedAttr("forward_seconds", seconds(result.forwardSeconds)),
                       builder.getNamedAttr("backward_seconds", seconds(result.backwardSeconds)),
                       builder.getNamedAttr("update_seconds", seconds(result.updateSeconds)),
                       builder.getNamedAttr("state_bytes", bytes(result.stateBytes)),
                       builder.getNamedAttr("activation_bytes", bytes(result.activationBytes)),
                       builder.getNamedAttr("temporary_bytes", bytes(result.temporaryBytes))}));
  const solver::Solution &solution = result.solution;
  auto picoseconds = [&](solver::CostSum cost) {
    return seconds(static_cast<double>(cost) * 1e-12);
  };
  module->setAttr(
      "alpa.solver",
      builder.getDictionaryAttr(
          {builder.getNamedAttr(
               "status", builder.getStringAttr(solver::stringifySolveStatus(solution.status))),
           builder.getNamedAttr("objective_seconds", picoseconds(solution.objective)),
           builder.getNamedAttr("lower_bound_seconds", picoseconds(solution.lowerBound)),
           builder.getNamedAttr("gap", seconds(solution.gap)),
           builder.getNamedAttr("nodes", bytes(solution.nodes)),
           builder.getNamedAttr("choices", bytes(result.choices)),
           builder.getNamedAttr("eliminated", bytes(solution.eliminated)),
           builder.getNamedAttr("build_seconds", seconds(result.buildSeconds)),
           builder.getNamedAttr("seconds", seconds(solution.seconds))}));
}
