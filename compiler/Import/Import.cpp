//===- Import.cpp - from JAX's module to one planned function -------------===//

#include "compiler/Analysis/Calls/CallRule.h"
#include "compiler/Analysis/PartSizes.h"
#include "compiler/Analysis/PlainOps.h"
#include "compiler/Analysis/RuleBuilder.h"
#include "compiler/Import/DataFlow.h"
#include "compiler/Import/ExpandKernels.h"
#include "compiler/Import/Legalize.h"
#include "compiler/Import/NameStack.h"
#include "compiler/Import/Passes.h"
#include "dialects/Alpa/AlpaDialect.h"
#include "dialects/Common/Diagnostics.h"
#include "dialects/Sdy/SdyOps.h"
#include "dialects/StableHLO/StableHLOOps.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Transforms/Passes.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/FormatVariadic.h"

namespace alpa::importer {
#define GEN_PASS_DEF_ALPAIMPORT
#include "compiler/Import/Passes.h.inc"
} // namespace alpa::importer

using namespace alpa;
using namespace alpa::importer;
using namespace mlir;

//===----------------------------------------------------------------------===//
// Private functions into their callers
//===----------------------------------------------------------------------===//

namespace {

/// On a call that the tracer writes for each kernel in a `jax.shard_map`: what `alpa.map` calls
/// `dims` and `levels`.
static constexpr llvm::StringLiteral kMapDims = "alpa.map_dims", kMapLevels = "alpa.map_levels";

class Inliner {
public:
  Inliner(SymbolTable &symbols, unsigned &count) : symbols(symbols), count(count) {}

  /// Leaves no call in `function`; callees first, so that each is flat before it is copied.
  LogicalResult flatten(func::FuncOp function) {
    if (states.lookup(function) == State::Flat)
      return success();
    states[function] = State::Active;
    SmallVector<Operation *> calls;
    function.walk([&](Operation *op) {
      if (getCallee(op))
        calls.push_back(op);
    });
    for (Operation *call : calls) {
      FlatSymbolRefAttr name = getCallee(call);
      auto callee = symbols.lookup<func::FuncOp>(name.getValue());
      if (!callee)
        return call->emitOpError() << "calls @" << name.getValue() << ", which is not defined";
      if (!callee.getBody().hasOneBlock())
        return call->emitOpError() << "calls @" << name.getValue() << ", which has no body";
      if (states.lookup(callee) == State::Active)
        return call->emitOpError() << "calls @" << name.getValue()
                                   << ", which calls itself; recursion cannot be planned";
      if (failed(flatten(callee)))
        return failure();
      if (call->hasAttr(kMapDims)) {
        if (failed(makeMap(call, callee)))
          return failure();
        continue;
      }
      if (!llvm::equal(callee.getArgumentTypes(), call->getOperandTypes()) ||
          !llvm::equal(callee.getResultTypes(), call->getResultTypes()))
        return call->emitOpError() << "does not fit the type of @" << name.getValue();
      inlineCall(call, callee);
    }
    states[function] = State::Flat;
    return success();
  }

private:
  enum class State { New, Active, Flat };

  static FlatSymbolRefAttr getCallee(Operation *op) {
    if (auto call = dyn_cast<func::CallOp>(op))
      return call.getCalleeAttr();
    if (op->getName().getStringRef() == "stablehlo.composite")
      return op->getAttrOfType<FlatSymbolRefAttr>("decomposition");
    auto called =
        op->hasAttr(kMapDims) ? op->getAttrOfType<ArrayAttr>("called_computations") : ArrayAttr();
    return called && called.size() == 1 ? dyn_cast<FlatSymbolRefAttr>(called[0]) : nullptr;
  }

  /// The callee takes blocks; the call says which leading dimensions they are without.
  LogicalResult makeMap(Operation *call, func::FuncOp callee) {
    WalkResult found = callee.walk([&](stablehlo::CustomCallOp inner) {
      return inner.getHasSideEffect() ? WalkResult::interrupt() : WalkResult::advance();
    });
    if (found.wasInterrupted())
      return withCode(call->emitOpError(), ErrorCode::UnsupportedOp)
             << "a kernel with side effects is in a shard_map; how often it runs depends on the "
                "plan";
    OpBuilder builder(call);
    OperationState state(call->getLoc(), MapOp::getOperationName(), call->getOperands(),
                         call->getResultTypes());
    state.addAttribute("dims", call->getAttr(kMapDims));
    state.addAttribute("levels", call->getAttr(kMapLevels));
    IRMapping mapping;
    callee.getBody().cloneInto(state.addRegion(), mapping);
    Operation *map = builder.create(state);
    Operation *end = map->getRegion(0).front().getTerminator();
    OpBuilder inner(end);
    inner.create(OperationState(end->getLoc(), "stablehlo.return", end->getOperands(), {}));
    end->erase();
    if (failed(verify(map)))
      return failure();
    call->replaceAllUsesWith(map->getResults());
    call->erase();
    ++count;
    return success();
  }

  void inlineCall(Operation *call, func::FuncOp callee) {
    IRMapping mapping;
    mapping.map(callee.getArguments(), call->getOperands());
    OpBuilder builder(call);
    for (Operation &op : callee.getBody().front().without_terminator()) {
      Operation *copy = builder.clone(op, mapping);
      copy->walk([&](Operation *inner) {
        inner->setLoc(CallSiteLoc::get(inner->getLoc(), call->getLoc()));
      });
    }
    Operation *terminator = callee.getBody().front().getTerminator();
    for (auto [result, value] : llvm::zip(call->getResults(), terminator->getOperands()))
      result.replaceAllUsesWith(mapping.lookup(value));
    call->erase();
    ++count;
  }

  SymbolTable &symbols;
  unsigned &count;
  llvm::DenseMap<Operation *, State> states;
};

} // namespace

/// Replaces every call in `main`, also inside loops and branches and calls of a
/// composite's decomposition, by the callee's body. Locations become call
/// sites: callee's op at caller's op. Recursion, a callee that does not exist
/// and a callee without a body are errors. Adds the number of calls to `count`.
static LogicalResult inlineCalls(func::FuncOp main, unsigned &count) {
  auto module = main->getParentOfType<ModuleOp>();
  SymbolTable symbols(module);
  return Inliner(symbols, count).flatten(main);
}

//===----------------------------------------------------------------------===//
// What a single-device step may hold
//===----------------------------------------------------------------------===//

static bool isShardingAnnotation(Operation *op) {
  llvm::StringRef name = op->getName().getStringRef();
  if (op->getNumOperands() != 1 || op->getNumResults() != 1)
    return false;
  if (name == "sdy.sharding_constraint")
    return true;
  if (name != "stablehlo.custom_call")
    return false;
  auto target = op->getAttrOfType<StringAttr>("call_target_name");
  return target && target.getValue() == "Sharding";
}

/// What the program places in the host's memory (JAX's `device_put` to a memory space, and
/// policies of `jax.checkpoint` that offload) becomes an offloaded barrier, what it places
/// elsewhere stays: placement changes no value.
static unsigned readPlacements(func::FuncOp main, bool keeps) {
  unsigned placed = 0;
  main.walk([&](stablehlo::CustomCallOp call) {
    if (call.getCallTargetName() != "annotate_device_placement" || call->getNumOperands() != 1 ||
        call->getNumResults() != 1 || call->getOperand(0).getType() != call->getResult(0).getType())
      return;
    auto frontend = call->getAttrOfType<DictionaryAttr>("mhlo.frontend_attributes");
    auto memory = frontend ? frontend.getAs<StringAttr>("_xla_buffer_placement") : StringAttr();
    Value value = call->getOperand(0);
    if (keeps && memory && memory.getValue().ends_with("_host")) {
      OpBuilder builder(call);
      auto barrier =
          stablehlo::OptimizationBarrierOp::create(builder, call.getLoc(), value.getType(), value);
      setOffloaded(barrier->getResult(0));
      value = barrier->getResult(0);
      ++placed;
    }
    call->getResult(0).replaceAllUsesWith(value);
    call->erase();
  });
  return placed;
}

/// Removes sharding annotations of the user's program (JAX puts some on typed
/// random keys): the plan decides about shardings.
static void dropShardingAnnotations(ModuleOp module, func::FuncOp main) {
  main.walk([](Operation *op) {
    if (!isShardingAnnotation(op))
      return;
    op->getResult(0).replaceAllUsesWith(op->getOperand(0));
    op->erase();
  });
  for (Operation &op : llvm::make_early_inc_range(*module.getBody()))
    if (op.getName().getStringRef() == "sdy.mesh")
      op.erase();
  for (unsigned i = 0; i < main.getNumArguments(); ++i) {
    main.removeArgAttr(i, "sdy.sharding");
    main.removeArgAttr(i, "mhlo.sharding");
  }
  for (unsigned i = 0; i < main.getNumResults(); ++i) {
    main.removeResultAttr(i, StringAttr::get(main.getContext(), "sdy.sharding"));
    main.removeResultAttr(i, StringAttr::get(main.getContext(), "mhlo.sharding"));
  }
}

static bool isPartitioned(llvm::StringRef name) {
  return llvm::StringSwitch<bool>(name)
      .Cases({"stablehlo.all_gather", "stablehlo.all_reduce", "stablehlo.all_to_all"}, true)
      .Cases({"stablehlo.reduce_scatter", "stablehlo.collective_permute"}, true)
      .Cases({"stablehlo.collective_broadcast", "stablehlo.cross-replica-sum"}, true)
      .Cases({"stablehlo.partition_id", "stablehlo.replica_id"}, true)
      .Cases({"sdy.manual_computation", "sdy.all_gather", "sdy.all_reduce"}, true)
      .Default(false);
}

/// Says where @main holds an op or a type that a single-device step cannot have.
static LogicalResult verifySubset(func::FuncOp main) {
  if (!main.getBody().hasOneBlock())
    return emitError(main.getLoc())
           << "@main must have one block; control flow is written as stablehlo ops";
  WalkResult result = main.walk([](Operation *op) -> WalkResult {
    llvm::StringRef name = op->getName().getStringRef();
    llvm::StringRef dialect = op->getName().getDialectNamespace();
    if (isPartitioned(name)) {
      op->emitOpError() << "belongs to a program that is already partitioned; give the "
                           "step of whole arrays instead (of a step in Python, tracing makes one "
                           "of each jax.shard_map)";
      return WalkResult::interrupt();
    }
    if (dialect != "stablehlo" && dialect != "chlo" &&
        !isa<func::FuncOp, func::ReturnOp, MapOp>(op)) {
      withCode(op->emitOpError(), ErrorCode::UnsupportedOp)
          << "is not of the supported set (dialects stablehlo and chlo)";
      return WalkResult::interrupt();
    }
    for (Type type : op->getResultTypes())
      if (auto tensor = dyn_cast<RankedTensorType>(type); !tensor || !tensor.hasStaticShape()) {
        op->emitOpError() << "gives " << type << "; every value must be a tensor of static shape";
        return WalkResult::interrupt();
      }
    return WalkResult::advance();
  });
  if (result.wasInterrupted())
    return failure();
  for (BlockArgument arg : main.getArguments())
    if (auto tensor = dyn_cast<RankedTensorType>(arg.getType());
        !tensor || !tensor.hasStaticShape())
      return emitError(main.getLoc())
             << "argument " << arg.getArgNumber() << " is " << arg.getType()
             << "; every value must be a tensor of static shape";
  return success();
}

/// Checks the signature attributes of docs/ir.md. Without any, all
/// arguments become state: the whole function works on one micro-batch.
static LogicalResult verifySignature(func::FuncOp main) {
  unsigned numArgs = main.getNumArguments(), numResults = main.getNumResults();
  for (unsigned i = 0; i < numArgs; ++i)
    if (Attribute alias = main.getArgAttr(i, "tf.aliasing_output")) {
      auto result = dyn_cast<IntegerAttr>(alias);
      if (!result || result.getValue().uge(numResults))
        return emitError(main.getLoc()) << "argument " << i << " is donated to result " << alias
                                        << ", but there are " << numResults << " results";
    }
  bool any = false;
  for (unsigned i = 0; i < numArgs; ++i)
    any |= bool(main.getArgAttr(i, attr::kind));
  if (!any) {
    for (unsigned i = 0; i < numArgs; ++i)
      main.setArgAttr(i, attr::kind, StringAttr::get(main.getContext(), "state"));
    return success();
  }

  llvm::SmallVector<std::optional<unsigned>> carrier(numResults);
  for (unsigned i = 0; i < numArgs; ++i) {
    auto kind = main.getArgAttrOfType<StringAttr>(i, attr::kind);
    if (!kind || (kind.getValue() != "state" && kind.getValue() != "batch"))
      return emitError(main.getLoc())
             << "argument " << i << " needs alpa.kind = \"state\" or \"batch\", got "
             << main.getArgAttr(i, attr::kind);
    auto type = cast<RankedTensorType>(main.getArgumentTypes()[i]);
    if (kind.getValue() == "batch") {
      if (type.getRank() == 0)
        return emitError(main.getLoc())
               << "argument " << i << " is of kind \"batch\" but has no dimension to split";
      if (main.getArgAttr(i, attr::perMicroBatch))
        continue; // The micro-batch's number, however many samples it has.
    }
    auto carried = main.getArgAttrOfType<IntegerAttr>(i, attr::carriedBy);
    if (!carried)
      continue;
    int64_t result = carried.getInt();
    if (result < 0 || result >= int64_t(numResults))
      return emitError(main.getLoc()) << "argument " << i << " is carried by result " << result
                                      << ", but there are " << numResults << " results";
    if (main.getResultTypes()[result] != type)
      return emitError(main.getLoc())
             << "argument " << i << " is " << type << " but result " << result
             << " that carries it is " << main.getResultTypes()[result];
    if (carrier[result])
      return emitError(main.getLoc()) << "result " << result << " carries both argument "
                                      << *carrier[result] << " and argument " << i;
    carrier[result] = i;
  }
  for (unsigned i = 0; i < numResults; ++i)
    if (auto reduction = main.getResultAttrOfType<StringAttr>(i, attr::reduction))
      if (reduction.getValue() != "sum" && reduction.getValue() != "concat")
        return emitError(main.getLoc()) << "result " << i << " has the unknown alpa.reduction "
                                        << reduction << "; expected \"sum\" or \"concat\"";
  return success();
}

//===----------------------------------------------------------------------===//
// Shardings that the user's program asks for
//===----------------------------------------------------------------------===//

namespace {
/// One sharding of the program, in the compiler's terms.
struct Pin {
  ShardingSpec spec;
  SmallVector<int64_t> open;
};

/// Reads shardings of the program. Strictly, for the method `manual`: all are on one mesh,
/// whose axes are those of the spec. Otherwise axes that split something are numbered as they
/// come in the meshes of the program, whatever mesh they belong to.
class PinReader {
public:
  PinReader(ModuleOp module, bool isStrict) : module(module), isStrict(isStrict) {}

  /// False after an error; nothing for a sharding that says nothing.
  bool read(Location location, sdy::TensorShardingAttr sharding, std::optional<Pin> &pin);
  std::optional<SmallVector<int64_t>> shape; // Of the one mesh.
  using Axis = std::pair<std::string, int64_t>;
  SmallVector<Axis> axes;
  SmallVector<SmallVector<Axis>> meshes; // The same axes, mesh by mesh.

private:
  const SmallVector<Axis> &numberAxes(sdy::MeshAttr mesh);
  std::optional<unsigned> axisOf(sdy::AxisRefAttr axis, sdy::MeshAttr mesh);

  ModuleOp module;
  bool isStrict;
  llvm::DenseMap<Attribute, size_t> numberOfMesh;
};
} // namespace

/// In the order of the mesh, whichever of them is used first. Returns those of the mesh.
const SmallVector<PinReader::Axis> &PinReader::numberAxes(sdy::MeshAttr mesh) {
  auto [it, isNew] = numberOfMesh.try_emplace(mesh, meshes.size());
  if (!isNew)
    return meshes[it->second];
  SmallVector<Axis> &own = meshes.emplace_back();
  for (sdy::MeshAxisAttr axis : mesh.getAxes()) {
    Axis entry(axis.getName().str(), axis.getSize());
    if (axis.getSize() == 1)
      continue;
    own.push_back(entry);
    if (!llvm::is_contained(axes, entry))
      axes.push_back(std::move(entry));
  }
  return own;
}

/// The number of an axis; nothing for one of a single device. A part of an axis counts as an
/// axis of its own.
std::optional<unsigned> PinReader::axisOf(sdy::AxisRefAttr axis, sdy::MeshAttr mesh) {
  const auto *found = llvm::find_if(
      mesh.getAxes(), [&](sdy::MeshAxisAttr other) { return other.getName() == axis.getName(); });
  if (isStrict)
    return found - mesh.getAxes().begin();
  Axis entry(axis.getName().str(), found->getSize());
  if (!axis.isFullAxis())
    entry = {llvm::formatv("{0}:({1}){2}", axis.getName(), axis.getPreSize(), axis.getSubSize()),
             axis.getSubSize()};
  if (entry.second == 1)
    return std::nullopt;
  auto *known = llvm::find(axes, entry);
  if (known == axes.end()) { // A part: the mesh is listed again with it.
    SmallVector<Axis> own = numberAxes(mesh);
    own.push_back(entry);
    meshes.push_back(std::move(own));
    axes.push_back(std::move(entry));
    known = std::prev(axes.end());
  }
  return known - axes.begin();
}

bool PinReader::read(Location location, sdy::TensorShardingAttr sharding, std::optional<Pin> &pin) {
  auto mesh = dyn_cast<sdy::MeshAttr>(sharding.getMeshOrRef());
  if (!mesh)
    if (auto op =
            module.lookupSymbol<sdy::MeshOp>(cast<FlatSymbolRefAttr>(sharding.getMeshOrRef())))
      mesh = op.getMesh();
  if (!mesh) {
    emitError(location) << "refers to a mesh that the module does not define";
    return false;
  }
  SmallVector<int64_t> sizes;
  for (sdy::MeshAxisAttr axis : mesh.getAxes())
    sizes.push_back(axis.getSize());
  if (llvm::all_of(sizes, [](int64_t size) { return size == 1; }))
    return true; // A mesh of one device, or JAX's mark on typed random keys.
  if (isStrict && shape && *shape != sizes) {
    emitError(location) << "asks for a sharding on a mesh of another shape than others before; "
                           "pinned shardings must share one mesh";
    return false;
  }
  shape = sizes;
  numberAxes(mesh);
  pin.emplace();
  for (auto [index, dim] : llvm::enumerate(sharding.getDimShardings())) {
    auto &split = pin->spec.dims.emplace_back();
    for (sdy::AxisRefAttr axis : dim.getAxes()) {
      if (isStrict && !axis.isFullAxis()) {
        emitError(location) << "splits a dimension by a part of mesh axis \"" << axis.getName()
                            << "\"; only whole axes can be pinned";
        return false;
      }
      if (std::optional<unsigned> number = axisOf(axis, mesh))
        split.push_back(*number);
    }
    if (!dim.getIsClosed())
      pin->open.push_back(index);
  }
  return true;
}

/// In place of a constraint: the same value, held as the pin says.
static void replaceByPin(sdy::ShardingConstraintOp op, const Pin &pin) {
  OpBuilder builder(op);
  OperationState state(op.getLoc(), "stablehlo.optimization_barrier");
  state.addOperands(op.getInput());
  state.addTypes(op.getType());
  Operation *barrier = builder.create(state);
  barrier->setAttr(attr::pin, ShardingAttr::get(op.getContext(), pin.spec));
  if (!pin.open.empty())
    barrier->setAttr(attr::pinOpen, builder.getDenseI64ArrayAttr(pin.open));
  op.getResult().replaceAllUsesWith(barrier->getResult(0));
  op.erase();
}

/// Keeps what the user asks for, in a form that later passes know: arguments get
/// `alpa.sharding`, a constraint becomes a barrier with `alpa.pin`, and the module
/// gets the mesh's shape as `alpa.pin_mesh`.
static LogicalResult keepShardingAnnotations(ModuleOp module, func::FuncOp main) {
  PinReader reader(module, /*isStrict=*/true);
  MLIRContext *context = module.getContext();
  for (BlockArgument argument : main.getArguments()) {
    auto sharding =
        main.getArgAttrOfType<sdy::TensorShardingAttr>(argument.getArgNumber(), "sdy.sharding");
    std::optional<Pin> pin;
    if (!sharding)
      continue;
    if (!reader.read(argument.getLoc(), sharding, pin))
      return failure();
    if (pin)
      main.setArgAttr(argument.getArgNumber(), attr::sharding,
                      ShardingAttr::get(context, pin->spec));
  }
  SmallVector<sdy::ShardingConstraintOp> constraints;
  main.walk([&](sdy::ShardingConstraintOp op) { constraints.push_back(op); });
  for (sdy::ShardingConstraintOp op : constraints) {
    std::optional<Pin> pin;
    if (!reader.read(op.getLoc(), op.getSharding(), pin))
      return failure();
    if (!pin)
      continue;
    if (op->getParentOp() != main)
      return op.emitOpError() << "stands inside of a loop or branch, where a sharding cannot be "
                                 "pinned; put it on the operands or results";
    replaceByPin(op, *pin);
  }
  if (reader.shape)
    module->setAttr(attr::pinMesh, Builder(context).getDenseI64ArrayAttr(*reader.shape));
  return success();
}

/// Keeps constraints on whatever meshes: barriers with `alpa.pin`, and arguments with the same
/// attribute, whose specs count the axes that the module gets as `alpa.pin_axes`.
static LogicalResult pinConstraints(ModuleOp module, func::FuncOp main) {
  PinReader reader(module, /*isStrict=*/false);
  Builder builder(module.getContext());
  for (BlockArgument argument : main.getArguments()) {
    unsigned number = argument.getArgNumber();
    std::optional<Pin> pin;
    auto sharding = main.getArgAttrOfType<sdy::TensorShardingAttr>(number, "sdy.sharding");
    if (sharding && !reader.read(argument.getLoc(), sharding, pin))
      return failure();
    if (!pin)
      continue;
    main.setArgAttr(number, attr::pin, ShardingAttr::get(module.getContext(), pin->spec));
    if (!pin->open.empty())
      main.setArgAttr(number, attr::pinOpen, builder.getDenseI64ArrayAttr(pin->open));
  }
  SmallVector<sdy::ShardingConstraintOp> constraints;
  main.walk([&](sdy::ShardingConstraintOp op) { constraints.push_back(op); });
  for (sdy::ShardingConstraintOp op : constraints) {
    std::optional<Pin> pin;
    if (!reader.read(op.getLoc(), op.getSharding(), pin))
      return failure();
    if (pin)
      replaceByPin(op, *pin);
  }
  SmallVector<Attribute> meshes;
  for (ArrayRef<PinReader::Axis> mesh : reader.meshes) {
    SmallVector<Attribute> axes;
    for (const auto &[name, size] : mesh)
      axes.push_back(
          builder.getArrayAttr({builder.getStringAttr(name), builder.getI64IntegerAttr(size)}));
    meshes.push_back(builder.getArrayAttr(axes));
  }
  if (!meshes.empty())
    module->setAttr(attr::pinAxes, builder.getArrayAttr(meshes));
  return success();
}

//===----------------------------------------------------------------------===//
// Products that are transposed
//===----------------------------------------------------------------------===//

/// Whether the permutation exchanges what the operands give to the result, and no more.
static bool exchangesOperands(stablehlo::DotGeneralOp dot, ArrayRef<int64_t> permutation) {
  auto numbers = dot.getDotDimensionNumbers();
  int64_t batch = numbers.getLhsBatchingDimensions().size();
  int64_t left = cast<RankedTensorType>(dot.getLhs().getType()).getRank() - batch -
                 int64_t(numbers.getLhsContractingDimensions().size());
  int64_t rank = permutation.size();
  if (left == 0 || left + batch == rank)
    return false; // A matrix and a vector: nothing changes places.
  for (int64_t i = 0; i < rank; ++i) {
    int64_t source = i < batch ? i : i < rank - left ? i + left : i - (rank - batch - left);
    if (permutation[i] != source)
      return false;
  }
  return true;
}

static bool fold(stablehlo::TransposeOp transpose) {
  auto dot = transpose.getOperand().getDefiningOp<stablehlo::DotGeneralOp>();
  // An algorithm names the types of both operands.
  if (!dot || !dot->hasOneUse() || dot->getBlock() != transpose->getBlock() ||
      dot.getAlgorithmAttr() || !exchangesOperands(dot, transpose.getPermutation()))
    return false;
  OpBuilder builder(dot);
  auto numbers = dot.getDotDimensionNumbers();
  auto swapped = cast<stablehlo::DotGeneralOp>(builder.clone(*dot));
  swapped->setOperands({dot.getRhs(), dot.getLhs()});
  swapped.setDotDimensionNumbersAttr(stablehlo::DotDimensionNumbersAttr::get(
      dot.getContext(), numbers.getRhsBatchingDimensions(), numbers.getLhsBatchingDimensions(),
      numbers.getRhsContractingDimensions(), numbers.getLhsContractingDimensions()));
  if (ArrayAttr precision = dot.getPrecisionConfigAttr(); precision && precision.size() == 2)
    swapped.setPrecisionConfigAttr(builder.getArrayAttr({precision[1], precision[0]}));
  swapped->getResult(0).setType(transpose.getType());
  transpose.getResult().replaceAllUsesWith(swapped.getResult());
  transpose.erase();
  dot.erase();
  return true;
}

/// Makes one product of a product and the transposition behind it that exchanges the
/// dimensions of its operands: (A B)^T is B^T A^T, so the operands change places. JAX
/// writes the gradient of every weight of a matrix product as such a pair. Returns the
/// number of transpositions that are gone.
static unsigned foldTransposedDots(func::FuncOp main) {
  SmallVector<stablehlo::TransposeOp> transposes;
  main.walk([&](stablehlo::TransposeOp op) { transposes.push_back(op); });
  return llvm::count_if(transposes, fold);
}

//===----------------------------------------------------------------------===//
// Indices that number rows
//===----------------------------------------------------------------------===//

namespace {

/// What a gather and a scatter have in common.
struct IndexRoles {
  SmallVector<int64_t> dropped, operandBatch, indexBatch, map;
  int64_t vectorDim = 0;
};

} // namespace

/// Makes batching dimensions of the columns of indices that number the rows of a dimension, as
/// in x[arange(n)[:, None], k]. Returns the other columns, or nothing where there is none such.
static SmallVector<Value> takeRowColumns(Value operand, Value indices, IndexRoles &roles) {
  unsigned bits = cast<RankedTensorType>(indices.getType()).getElementTypeBitWidth();
  if (auto convert = indices.getDefiningOp<stablehlo::ConvertOp>())
    indices = convert.getOperand();
  auto joined = indices.getDefiningOp<stablehlo::ConcatenateOp>();
  if (!joined || int64_t(joined.getDimension()) != roles.vectorDim)
    return {};
  SmallVector<Value> others;
  SmallVector<int64_t> map;
  SmallVector<std::pair<int64_t, int64_t>> batching;
  for (auto [dim, rows] : llvm::zip_equal(roles.operandBatch, roles.indexBatch))
    batching.emplace_back(dim, rows);
  int64_t at = 0;
  for (Value column : joined->getOperands()) {
    auto columnType = cast<RankedTensorType>(column.getType());
    int64_t width = columnType.getDimSize(roles.vectorDim), dim = roles.map[at];
    std::optional<int64_t> rows = width == 1 ? rowDimension(column) : std::nullopt;
    if (rows && countsInBits(columnType.getDimSize(*rows), bits) && *rows != roles.vectorDim &&
        llvm::is_contained(roles.dropped, dim) &&
        columnType.getDimSize(*rows) == cast<RankedTensorType>(operand.getType()).getDimSize(dim) &&
        llvm::none_of(batching, [&](auto pair) { return pair.second == *rows; })) {
      batching.emplace_back(dim, *rows);
      llvm::erase(roles.dropped, dim);
    } else {
      others.push_back(column);
      map.append(roles.map.begin() + at, roles.map.begin() + at + width);
    }
    at += width;
  }
  if (others.empty() || others.size() == joined->getNumOperands())
    return {};
  llvm::sort(batching);
  roles.operandBatch.clear();
  roles.indexBatch.clear();
  for (auto [dim, rows] : batching) {
    roles.operandBatch.push_back(dim);
    roles.indexBatch.push_back(rows);
  }
  roles.map = map;
  return others;
}

/// Says of a gather or a scatter in which each row names itself that rows are apart, so that it
/// can be split along them: x[arange(n)[:, None], k] is a batch of x[k].
static bool batchRows(Operation *op) {
  auto gather = dyn_cast<stablehlo::GatherOp>(op);
  auto scatter = dyn_cast<stablehlo::ScatterOp>(op);
  if (!gather && !scatter)
    return false;
  IndexRoles roles;
  auto read = [&](ArrayRef<int64_t> dropped, ArrayRef<int64_t> operandBatch,
                  ArrayRef<int64_t> indexBatch, ArrayRef<int64_t> map, int64_t vectorDim) {
    llvm::append_range(roles.dropped, dropped);
    llvm::append_range(roles.operandBatch, operandBatch);
    llvm::append_range(roles.indexBatch, indexBatch);
    llvm::append_range(roles.map, map);
    roles.vectorDim = vectorDim;
  };
  unsigned place = gather ? 1 : scatter.getInputs().size();
  if (gather) {
    auto numbers = gather.getDimensionNumbers();
    read(numbers.getCollapsedSliceDims(), numbers.getOperandBatchingDims(),
         numbers.getStartIndicesBatchingDims(), numbers.getStartIndexMap(),
         numbers.getIndexVectorDim());
    if (llvm::any_of(roles.dropped, [&](int64_t dim) { return gather.getSliceSizes()[dim] != 1; }))
      return false;
  } else {
    auto numbers = scatter.getScatterDimensionNumbers();
    read(numbers.getInsertedWindowDims(), numbers.getInputBatchingDims(),
         numbers.getScatterIndicesBatchingDims(), numbers.getScatterDimsToOperandDims(),
         numbers.getIndexVectorDim());
  }
  Value indices = op->getOperand(place);
  SmallVector<Value> columns = takeRowColumns(op->getOperand(0), indices, roles);
  if (columns.empty())
    return false;
  analysis::PlainOps ops(op);
  auto element = cast<RankedTensorType>(indices.getType()).getElementType();
  for (Value &column : columns)
    column = ops.convert(column, element);
  SmallVector<int64_t> shape(cast<RankedTensorType>(indices.getType()).getShape());
  shape[roles.vectorDim] = static_cast<int64_t>(roles.map.size());
  Value left = columns[0];
  if (columns.size() > 1)
    left = ops.make(
        "stablehlo.concatenate", columns, RankedTensorType::get(shape, element),
        ops.builder.getNamedAttr("dimension", ops.builder.getI64IntegerAttr(roles.vectorDim)));
  op->setOperand(place, left);
  // They may have been sorted by what is no column any more.
  if (gather) {
    auto numbers = gather.getDimensionNumbers();
    gather.setDimensionNumbersAttr(stablehlo::GatherDimensionNumbersAttr::get(
        op->getContext(), numbers.getOffsetDims(), roles.dropped, roles.operandBatch,
        roles.indexBatch, roles.map, roles.vectorDim));
    gather.setIndicesAreSorted(false);
  } else {
    auto numbers = scatter.getScatterDimensionNumbers();
    scatter.setScatterDimensionNumbersAttr(stablehlo::ScatterDimensionNumbersAttr::get(
        op->getContext(), numbers.getUpdateWindowDims(), roles.dropped, roles.operandBatch,
        roles.indexBatch, roles.map, roles.vectorDim));
    scatter.setIndicesAreSorted(false);
  }
  return true;
}

/// Returns how many gathers and scatters have rows that are apart now.
static unsigned batchAllRows(func::FuncOp main) {
  unsigned number = 0;
  main.walk([&](Operation *op) { number += batchRows(op); });
  return number;
}

//===----------------------------------------------------------------------===//
// Scatters of one element
//===----------------------------------------------------------------------===//

/// Writes a scatter that adds one slice to zeros, for every place of its batching
/// dimensions, as a choice between the slice and zero by a comparison of indices.
static bool writeAsSelect(stablehlo::ScatterOp scatter) {
  auto numbers = scatter.getScatterDimensionNumbers();
  if (scatter.getInputs().size() != 1 ||
      analysis::reducerOf(scatter.getUpdateComputation()) != analysis::Reducer::Sum ||
      !analysis::isNeutral(scatter.getInputs()[0], analysis::Reducer::Sum))
    return false;
  Value input = scatter.getInputs()[0], indices = scatter.getScatterIndices();
  Value update = scatter.getUpdates()[0];
  auto type = cast<RankedTensorType>(input.getType());
  auto indexType = cast<RankedTensorType>(indices.getType());
  auto updateType = cast<RankedTensorType>(update.getType());
  int64_t vectorDim = numbers.getIndexVectorDim(), rank = type.getRank();
  ArrayRef<int64_t> scattered = numbers.getScatterDimsToOperandDims();
  ArrayRef<int64_t> inserted = numbers.getInsertedWindowDims();
  ArrayRef<int64_t> inputBatch = numbers.getInputBatchingDims();
  unsigned indexBits = indexType.getElementType().getIntOrFloatBitWidth();
  // Every place of the result is named by one index vector at most, whose size it holds.
  for (int64_t dim : scattered)
    if (!llvm::is_contained(inserted, dim) ||
        (indexBits < 32 && type.getDimSize(dim) >> (indexBits - 1)))
      return false;
  if (inserted.size() != scattered.size() || rank == 0)
    return false;
  // Dimensions of the input that those of indices and updates stand for; -1 for one of size 1.
  SmallVector<int64_t> ofIndices, ofUpdate;
  for (int64_t dim = 0; dim < indexType.getRank(); ++dim) {
    const auto *it = llvm::find(numbers.getScatterIndicesBatchingDims(), dim);
    if (it != numbers.getScatterIndicesBatchingDims().end())
      ofIndices.push_back(inputBatch[it - numbers.getScatterIndicesBatchingDims().begin()]);
    else if (dim == vectorDim || indexType.getDimSize(dim) == 1)
      ofIndices.push_back(-1);
    else
      return false;
  }
  SmallVector<int64_t> windows;
  for (int64_t dim = 0; dim < rank; ++dim)
    if (!llvm::is_contained(inserted, dim) && !llvm::is_contained(inputBatch, dim))
      windows.push_back(dim);
  const int64_t *window = windows.begin(), *place = ofIndices.begin();
  for (int64_t dim = 0; dim < updateType.getRank(); ++dim) {
    if (!llvm::is_contained(numbers.getUpdateWindowDims(), dim)) {
      place += place - ofIndices.begin() == vectorDim;
      ofUpdate.push_back(*place++);
    } else if (updateType.getDimSize(dim) == type.getDimSize(*window)) {
      ofUpdate.push_back(*window++);
    } else {
      return false; // The window's place is told by more than the indices.
    }
  }

  ImplicitLocOpBuilder builder(scatter.getLoc(), scatter);
  auto make = [&](StringRef name, ValueRange operands, Type result,
                  ArrayRef<NamedAttribute> attributes = {}) {
    return builder.create(OperationState(builder.getLoc(), name, operands, result, attributes))
        ->getResult(0);
  };
  auto named = [&](StringRef name, Attribute value) { return builder.getNamedAttr(name, value); };
  // The value without the dimensions that stand for none, along those of the result.
  auto spread = [&](Value value, ArrayRef<int64_t> dims) {
    auto from = cast<RankedTensorType>(value.getType());
    SmallVector<int64_t> shape, to;
    for (auto [dim, size] : llvm::zip_equal(dims, from.getShape()))
      if (dim >= 0) {
        shape.push_back(size);
        to.push_back(dim);
      }
    if (to.size() != dims.size())
      value = make("stablehlo.reshape", value, from.clone(shape));
    return make("stablehlo.broadcast_in_dim", value, type.clone(from.getElementType()),
                named("broadcast_dimensions", builder.getDenseI64ArrayAttr(to)));
  };
  Value isThere;
  for (auto [number, dim] : llvm::enumerate(scattered)) {
    Value index = indices;
    if (vectorDim < indexType.getRank()) {
      SmallVector<int64_t> from(indexType.getRank(), 0), to(indexType.getShape());
      SmallVector<int64_t> steps(indexType.getRank(), 1), shape(to);
      from[vectorDim] = static_cast<int64_t>(number);
      to[vectorDim] = from[vectorDim] + 1;
      shape[vectorDim] = 1;
      index = make("stablehlo.slice", index, indexType.clone(shape),
                   {named("start_indices", builder.getDenseI64ArrayAttr(from)),
                    named("limit_indices", builder.getDenseI64ArrayAttr(to)),
                    named("strides", builder.getDenseI64ArrayAttr(steps))});
    }
    Value own = make("stablehlo.iota", {}, type.clone(indexType.getElementType()),
                     named("iota_dimension", builder.getI64IntegerAttr(dim)));
    Value isEqual =
        make("stablehlo.compare", {spread(index, ofIndices), own}, type.clone(builder.getI1Type()),
             named("comparison_direction",
                   stablehlo::ComparisonDirectionAttr::get(builder.getContext(),
                                                           stablehlo::ComparisonDirection::EQ)));
    isThere = isThere ? make("stablehlo.and", {isThere, isEqual}, isEqual.getType()) : isEqual;
  }
  Value added = spread(update, ofUpdate);
  Value result = isThere ? make("stablehlo.select", {isThere, added, input}, type) : added;
  scatter.getResult(0).replaceAllUsesWith(result);
  scatter.erase();
  return true;
}

/// The gradient of what takes one element of each row (`jnp.take_along_axis`, as in a cross
/// entropy) is such a scatter. As a choice it can be split along every dimension, and XLA
/// computes it in the kernels that read it, where the scatter fills an array as large as
/// the logits. Returns how many were written so.
static unsigned writeScattersAsSelects(func::FuncOp main) {
  SmallVector<stablehlo::ScatterOp> scatters;
  main.walk([&](stablehlo::ScatterOp op) { scatters.push_back(op); });
  return llvm::count_if(scatters, writeAsSelect);
}

//===----------------------------------------------------------------------===//
// Arrays without elements
//===----------------------------------------------------------------------===//

static bool isEmpty(Value value) { return llvm::is_contained(analysis::shapeOf(value), 0); }

/// What an op makes of an array without elements, or nothing where that is not known.
static Value withoutEmpty(Operation *op, analysis::PlainOps plain) {
  if (op->getNumResults() != 1 || isEmpty(op->getResult(0)))
    return {};
  ArrayRef<int64_t> shape = analysis::shapeOf(op->getResult(0));
  if (auto join = dyn_cast<stablehlo::ConcatenateOp>(op)) {
    SmallVector<Value> parts;
    llvm::copy_if(join->getOperands(), std::back_inserter(parts),
                  [](Value part) { return !isEmpty(part); });
    if (parts.size() == 1)
      return parts.front();
    join->setOperands(parts);
    return {};
  }
  if (isa<stablehlo::DynamicUpdateSliceOp, stablehlo::ScatterOp>(op)) {
    unsigned update = isa<stablehlo::ScatterOp>(op) ? 2 : 1;
    return isEmpty(op->getOperand(update)) ? op->getOperand(0) : Value();
  }
  if (!isEmpty(op->getOperand(0)))
    return {};
  if (isa<stablehlo::PadOp, stablehlo::ReduceOp>(op))
    return plain.broadcast(op->getOperand(1), shape, {});
  if (isa<stablehlo::DotGeneralOp>(op))
    return plain.splat(0, analysis::PlainOps::typeOf(op->getResult(0)));
  return {};
}

/// Writes what has no elements as a broadcast zero, and drops it from what it is part of: nobody
/// reads it, and how its other dimensions are split would have to be known. JAX makes such arrays
/// where a recursion ends (`associative_scan`), and of leaves that are empty. Returns how many
/// ops are gone.
static unsigned dropEmpty(func::FuncOp main) {
  unsigned count = 0;
  main.walk([&](Operation *op) {
    if (op->getNumResults() == 0 || op->hasTrait<OpTrait::IsTerminator>())
      return;
    bool isZero = isa<stablehlo::BroadcastInDimOp>(op) && op->getOperand(0).getDefiningOp() &&
                  isa<stablehlo::ConstantOp>(op->getOperand(0).getDefiningOp());
    analysis::PlainOps plain(op);
    SmallVector<Value> results;
    if (llvm::all_of(op->getResults(), isEmpty)) {
      if (isZero || isa<stablehlo::ConstantOp>(op) || !isMemoryEffectFree(op))
        return;
      for (Value result : op->getResults()) {
        RankedTensorType type = analysis::PlainOps::typeOf(result);
        Value zero = plain.splat(0, RankedTensorType::get({}, type.getElementType()));
        results.push_back(plain.broadcast(zero, type.getShape(), {}));
      }
    } else if (llvm::any_of(op->getOperands(), isEmpty)) {
      if (Value made = withoutEmpty(op, plain))
        results.push_back(made);
    }
    if (results.empty())
      return;
    op->replaceAllUsesWith(results);
    op->erase();
    ++count;
  });
  return count;
}

//===----------------------------------------------------------------------===//
// Forward, backward, update
//===----------------------------------------------------------------------===//

namespace {

enum class Phase { Forward, Backward, Update };

struct OpFacts {
  NamedPhase named = NamedPhase::None;
  std::optional<int64_t> eqn;
  bool isInnerGradient = false;
  bool needsBackward = false; // Depends on a named backward op.
  bool feedsForward = false;  // A named forward op depends on it.
  bool feedsBackward = false;
  Phase phase = Phase::Forward;
};

class PhaseAnalysis {
public:
  explicit PhaseAnalysis(func::FuncOp main) : main(main) {
    for (Operation &op : main.getBody().front().without_terminator())
      if (!isConstantLike(&op))
        ops.push_back(&op);
  }

  LogicalResult run() {
    readNames();
    bool anyBackward =
        llvm::any_of(ops, [&](Operation *op) { return facts[op].named == NamedPhase::Backward; });
    bool isOneProgram = false;
    if (anyBackward) {
      followDataFlow();
      BatchAnalysis batch(main);
      isOneProgram = llvm::any_of(ops, [&](Operation *op) { return sumsInLoss(op, batch); });
      for (Operation *op : ops)
        facts[op].phase = choose(op, batch);
      pullSources();
    }
    // Gradients behind an update within the loss, losses behind an update, and the like: all of it
    // is one program, as in a step without gradients.
    if (isOneProgram || !isInOrder())
      for (Operation *op : ops)
        facts[op] = OpFacts();
    numberForward();
    numberBackward();
    annotate();
    markBoundaries();
    return success();
  }

private:
  void readNames() {
    for (Operation *op : ops) {
      NameStack stack = readNameStack(op->getLoc());
      facts[op] = OpFacts{stack.phase, stack.eqn, stack.isInnerGradient};
    }
  }

  /// Whether the op is of a gradient within the loss that adds up over examples: what comes behind
  /// needs all of them. That of a gradient penalty is each example's own.
  bool sumsInLoss(Operation *op, const BatchAnalysis &batch) {
    return facts[op].isInnerGradient && llvm::any_of(op->getResults(), [&](Value value) {
             return batch.dependsOnBatch(value) && !batch.hasBatchDim(value);
           });
  }

  void followDataFlow() {
    for (Operation *op : ops)
      for (Operation *source : sources(op)) {
        const OpFacts &from = facts[source];
        facts[op].needsBackward |= from.needsBackward || from.named == NamedPhase::Backward;
      }
    for (Operation *op : llvm::reverse(ops))
      for (Operation *user : readers(op)) {
        const OpFacts &to = facts[user];
        facts[op].feedsForward |= to.feedsForward || to.named == NamedPhase::Forward;
        facts[op].feedsBackward |= to.feedsBackward || to.named == NamedPhase::Backward;
      }
  }

  /// Update work is done once, on sums; so what holds no sample of the batch any more,
  /// such as the exponential of the mean loss, is update. Gradients of
  /// single samples, and what is made of them until they are added up, are backward.
  Phase choose(Operation *op, const BatchAnalysis &batch) {
    const OpFacts &fact = facts[op];
    if (fact.named == NamedPhase::Backward)
      return Phase::Backward;
    if (fact.named == NamedPhase::Forward || fact.feedsForward)
      return Phase::Forward;
    if (fact.feedsBackward)
      return Phase::Backward;
    if (!fact.needsBackward)
      return batch.touchesBatchDim(op) ? Phase::Forward : Phase::Update;
    bool holdsSamples = false;
    for (Value value : getUsedValues(op)) {
      Operation *source = value.getDefiningOp();
      auto it = facts.find(source);
      if (it != facts.end() && it->second.needsBackward && it->second.phase == Phase::Update)
        return Phase::Update;
      holdsSamples |= isPerSample(value, batch);
    }
    return holdsSamples ? Phase::Backward : Phase::Update;
  }

  /// Whether micro-batches have parts of the value, not terms of it. With one sample in each a
  /// gradient looks the same either way, but for a weight's it has the shape of the weight.
  bool isPerSample(Value value, const BatchAnalysis &batch) {
    if (!batch.surelyHasBatchDim(value))
      return false;
    Operation *source = value.getDefiningOp();
    if (!source || batch.hasSeveralSamples(value) || facts[source].named != NamedPhase::Backward)
      return true;
    return llvm::none_of(main.getArguments(), [&](BlockArgument arg) {
      auto kind = main.getArgAttrOfType<StringAttr>(arg.getArgNumber(), attr::kind);
      return kind && kind.getValue() == "state" &&
             cast<RankedTensorType>(arg.getType()).getShape() ==
                 cast<RankedTensorType>(value.getType()).getShape();
    });
  }

  /// What a forward or backward op without a name reads is at least as early.
  void pullSources() {
    for (Operation *op : llvm::reverse(ops))
      for (Operation *source : sources(op))
        if (facts[source].named == NamedPhase::None && !facts[source].needsBackward)
          facts[source].phase = std::min(facts[source].phase, facts[op].phase);
  }

  /// Whether every op reads what is made before it: forward, backward, update.
  bool isInOrder() {
    return llvm::all_of(ops, [&](Operation *op) {
      return llvm::all_of(
          sources(op), [&](Operation *source) { return facts[op].phase >= facts[source].phase; });
    });
  }

  /// Equations of forward ops that the tracer did not name: a value for later
  /// use belongs to its first reader, anything else to the last op it reads.
  /// Without any named equation every op is one, in program order.
  void numberForward() {
    SmallVector<Operation *> forward = ofPhase(Phase::Forward);
    if (llvm::none_of(forward, [&](Operation *op) { return facts[op].eqn.has_value(); })) {
      for (auto [index, op] : llvm::enumerate(forward))
        facts[op].eqn = index;
      return;
    }
    for (Operation *op : llvm::reverse(forward))
      if (!facts[op].eqn)
        for (Operation *user : readers(op))
          if (facts[user].phase == Phase::Forward && facts[user].eqn)
            facts[op].eqn = std::min(facts[op].eqn.value_or(*facts[user].eqn), *facts[user].eqn);
    for (Operation *op : forward) {
      if (facts[op].eqn)
        continue;
      int64_t eqn = 0;
      for (Operation *source : sources(op))
        eqn = std::max(eqn, facts[source].eqn.value_or(0));
      facts[op].eqn = eqn;
    }
  }

  /// Backward ops without a name go back in step with what they read: the
  /// gradients of later equations, or forward values that a forward op read too.
  void numberBackward() {
    for (Operation *op : ofPhase(Phase::Backward)) {
      if (facts[op].eqn)
        continue;
      std::optional<int64_t> eqn;
      auto limit = [&](int64_t value) { eqn = std::min(eqn.value_or(value), value); };
      for (Value value : getUsedValues(op)) {
        Operation *source = value.getDefiningOp();
        if (source && facts.contains(source) && facts[source].phase == Phase::Backward) {
          limit(facts[source].eqn.value_or(0));
          continue;
        }
        std::optional<int64_t> last;
        if (source && facts.contains(source))
          last = facts[source].eqn;
        for (Operation *user : getUsers(value))
          if (facts.contains(user) && facts[user].phase == Phase::Forward && facts[user].eqn)
            last = std::max(last.value_or(0), *facts[user].eqn);
        if (last)
          limit(*last);
      }
      facts[op].eqn = eqn.value_or(lastForwardEqn());
    }
  }

  void annotate() {
    static constexpr llvm::StringLiteral names[] = {"forward", "backward", "update"};
    Builder builder(main.getContext());
    for (Operation *op : ops) {
      const OpFacts &fact = facts[op];
      op->setAttr(attr::phase, builder.getStringAttr(names[unsigned(fact.phase)]));
      if (fact.phase != Phase::Update)
        op->setAttr(attr::eqn, builder.getI64IntegerAttr(*fact.eqn));
    }
  }

  /// A boundary counts in the forward phase, at the top level. Its gradient's and
  /// any inside a loop would only be in the way.
  void markBoundaries() {
    SmallVector<Operation *> idle;
    main.walk([&](Operation *op) {
      if (!isLayerBoundary(op))
        return;
      auto it = facts.find(op);
      if (it != facts.end() && it->second.phase == Phase::Forward)
        op->setAttr(kBoundaryAttr, UnitAttr::get(main.getContext()));
      else
        idle.push_back(op);
    });
    for (Operation *op : idle) {
      op->replaceAllUsesWith(op->getOperands());
      op->erase();
    }
  }

  int64_t lastForwardEqn() {
    int64_t last = 0;
    for (Operation *op : ops)
      if (facts[op].phase == Phase::Forward)
        last = std::max(last, facts[op].eqn.value_or(0));
    return last;
  }

  SmallVector<Operation *> ofPhase(Phase phase) {
    SmallVector<Operation *> result;
    llvm::copy_if(ops, std::back_inserter(result),
                  [&](Operation *op) { return facts[op].phase == phase; });
    return result;
  }

  SmallVector<Operation *> sources(Operation *op) {
    SmallVector<Operation *> result;
    for (Value value : getUsedValues(op))
      if (Operation *source = value.getDefiningOp(); source && facts.contains(source))
        result.push_back(source);
    return result;
  }

  SmallVector<Operation *> readers(Operation *op) {
    SmallVector<Operation *> result;
    for (Value value : op->getResults())
      for (Operation *user : getUsers(value))
        if (facts.contains(user))
          result.push_back(user);
    return result;
  }

  func::FuncOp main;
  SmallVector<Operation *> ops; // Without the repeatable ones, in program order.
  llvm::DenseMap<Operation *, OpFacts> facts;
};

} // namespace

/// Sets `alpa.phase` and `alpa.eqn` on every op of @main's body that is not
/// repeatable (see DataFlow.h), then repeats those that are for each phase and
/// equation of their users.
static LogicalResult assignPhases(func::FuncOp main) {
  if (failed(PhaseAnalysis(main).run()))
    return failure();
  repeatForReaders(main, {attr::phase, attr::eqn}, isConstantLike);
  return success();
}

//===----------------------------------------------------------------------===//
// From JAX's module to one planned function
//===----------------------------------------------------------------------===//

namespace {

class AlpaImportPass : public importer::impl::AlpaImportBase<AlpaImportPass> {
public:
  using AlpaImportBase::AlpaImportBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto main = module.lookupSymbol<func::FuncOp>("main");
    if (!main || main.isDeclaration()) {
      emitError(module.getLoc(), "the module has no function @main to import");
      return signalPassFailure();
    }
    unsigned calls = 0;
    if (failed(inlineCalls(main, calls)))
      return signalPassFailure();
    inlinedCalls += calls;
    unsigned legalized = 0;
    if (failed(legalize(main, legalized)))
      return signalPassFailure();
    legalizedOps += legalized;
    if (keepShardings && pinShardings) {
      emitError(module.getLoc(), "keep-shardings and pin-shardings exclude each other");
      return signalPassFailure();
    }
    if ((keepShardings && failed(keepShardingAnnotations(module, main))) ||
        (pinShardings && failed(pinConstraints(module, main))))
      return signalPassFailure();
    dropShardingAnnotations(module, main);
    numPlaced += readPlacements(main, keepPlacements);
    if (failed(removeOtherFunctions(module, main)) || failed(verifySubset(main)) ||
        failed(verifySignature(main)))
      return signalPassFailure();
    droppedEmpty += dropEmpty(main);
    separatedKernels += writeSumsOfRows(main);
    separatedKernels += separateExamples(main);
    if (main.walk([](stablehlo::CustomCallOp call) {
              return WalkResult(analysis::importCallRule(call));
            })
            .wasInterrupted())
      return signalPassFailure();
    foldedTransposes += foldTransposedDots(main);
    batchedRows += batchAllRows(main);
    selects += writeScattersAsSelects(main);

    // Before phases are known, because folding shares constants; it merges no other ops.
    OpPassManager canonicalize("builtin.module");
    canonicalize.addPass(createCanonicalizerPass());
    if (failed(runPipeline(canonicalize, module)) || failed(assignPhases(main)))
      return signalPassFailure();
    // Attributes count when ops are compared, so nothing merges across phases or equations.
    OpPassManager merge("builtin.module");
    merge.addPass(createCSEPass());
    if (failed(runPipeline(merge, module)))
      return signalPassFailure();
    count(main);
  }

private:
  LogicalResult removeOtherFunctions(ModuleOp module, func::FuncOp main) {
    for (Operation &op : llvm::make_early_inc_range(*module.getBody())) {
      if (&op == main)
        continue;
      auto function = dyn_cast<func::FuncOp>(op);
      if (!function)
        return op.emitOpError() << "cannot be planned; only functions may stand beside @main";
      std::optional<SymbolTable::UseRange> uses = SymbolTable::getSymbolUses(function, main);
      if (uses && !uses->empty())
        return (*uses->begin()).getUser()->emitOpError()
               << "refers to @" << function.getName() << ", which cannot be inlined";
      op.erase();
    }
    return success();
  }

  void count(func::FuncOp main) {
    for (Operation &op : main.getBody().front().without_terminator()) {
      auto phase = op.getAttrOfType<StringAttr>(attr::phase);
      if (phase.getValue() == "forward")
        ++forwardOps;
      else if (phase.getValue() == "backward")
        ++backwardOps;
      else
        ++updateOps;
    }
  }
};

} // namespace
